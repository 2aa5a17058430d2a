//! Codec `fp4`: E3M0 floats, a sign and three bits of exponent; blocks of 64 values share a scale, absmax as bfloat16.
//!
//! Each value is the nearest of 0 and ±2^-6, ±2^-5 … ±1 times the scale, as Streaming DiLoCo (arXiv 2501.18512) sends outer gradients. 4.25 bits a value. Error of a
//! value: at most a quarter of the largest magnitude in its block (stated with 2 % of slack for the rounding of the scale), and at most its
//! own magnitude. Takes no configuration. Error feedback carries the whole residual (decay 1), as `int4` does.

use tombolo_policy_sdk::nibble::{FOUR_BLOCK, FP4_ERROR, four_bytes, fp4_decode, fp4_encode};
use tombolo_policy_sdk::{At, CHUNK, Codec, Config, Tensor, Traits, export_codec};

/// The codec; it has no settings.
pub struct Fp4;

impl Codec for Fp4 {
    fn open(config: &[u8], _: Vec<Tensor>) -> Result<Self, String> {
        Config::parse(config, &[])?;
        Ok(Fp4)
    }

    fn traits(&self) -> Traits {
        Traits {
            bits_per_value: (8 * four_bytes(CHUNK)) as f32 / CHUNK as f32,
            feedback_decay: Some(1.0),
            error_max: FP4_ERROR,
            block: FOUR_BLOCK as u32,
        }
    }

    fn encode(&self, _: At, values: &[f32]) -> Result<Vec<u8>, String> {
        Ok(fp4_encode(values))
    }

    fn decode(&self, _: At, bytes: &[u8], elements: usize) -> Result<Vec<f32>, String> {
        if bytes.len() != four_bytes(elements) {
            return Err(format!("{elements} values take {} bytes, found {}", four_bytes(elements), bytes.len()));
        }
        fp4_decode(bytes, elements)
    }
}

export_codec!(Fp4);
