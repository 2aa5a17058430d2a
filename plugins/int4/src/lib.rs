//! Codec `int4`: blocks of 64 values share a scale, absmax / 7 as bfloat16; each value is the nearest multiple of it.
//!
//! 4.25 bits a value. Error of a value: at most 1/14 of the largest magnitude in its block (stated with 1 % of slack for the rounding of the
//! scale). Takes no configuration. Error feedback carries the whole residual (decay 1): the quantiser is a contraction, so what it loses stays
//! bounded and goes out with later offers. Decoupled DiLoCo (arXiv 2604.21428) sends outer gradients in four bits.

use tombolo_policy_sdk::nibble::{FOUR_BLOCK, INT4_ERROR, four_bytes, int4_decode, int4_encode};
use tombolo_policy_sdk::{At, CHUNK, Codec, Config, Tensor, Traits, export_codec};

/// The codec; it has no settings.
pub struct Int4;

impl Codec for Int4 {
    fn open(config: &[u8], _: Vec<Tensor>) -> Result<Self, String> {
        Config::parse(config, &[])?;
        Ok(Int4)
    }

    fn traits(&self) -> Traits {
        Traits {
            bits_per_value: (8 * four_bytes(CHUNK)) as f32 / CHUNK as f32,
            feedback_decay: Some(1.0),
            error_max: INT4_ERROR,
            block: FOUR_BLOCK as u32,
        }
    }

    fn encode(&self, _: At, values: &[f32]) -> Result<Vec<u8>, String> {
        Ok(int4_encode(values))
    }

    fn decode(&self, _: At, bytes: &[u8], elements: usize) -> Result<Vec<f32>, String> {
        if bytes.len() != four_bytes(elements) {
            return Err(format!("{elements} values take {} bytes, found {}", four_bytes(elements), bytes.len()));
        }
        int4_decode(bytes, elements)
    }
}

export_codec!(Int4);
