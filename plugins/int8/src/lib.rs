//! Codec `int8`: blocks of 128 values share a scale, absmax / 127; each value is the nearest multiple of it.
//!
//! 8.25 bits a value. Error of a value: at most 1/254 of the largest magnitude in its block (stated with 1 % of slack for the
//! rounding of the scale). Takes no configuration. Error feedback carries the whole residual (decay 1): the quantiser is a contraction, so what it
//! loses stays bounded and goes out with later offers.

use tombolo_policy_sdk::quantise::{INT8_BLOCK, INT8_ERROR, int8_bytes, int8_decode, int8_encode};
use tombolo_policy_sdk::{At, CHUNK, Codec, Config, Tensor, Traits, export_codec};

/// The codec; it has no settings.
pub struct Int8;

impl Codec for Int8 {
    fn open(config: &[u8], _: Vec<Tensor>) -> Result<Self, String> {
        Config::parse(config, &[])?;
        Ok(Int8)
    }

    fn traits(&self) -> Traits {
        Traits {
            bits_per_value: (8 * int8_bytes(CHUNK)) as f32 / CHUNK as f32,
            feedback_decay: Some(1.0),
            error_max: INT8_ERROR,
            block: INT8_BLOCK as u32,
        }
    }

    fn encode(&self, _: At, values: &[f32]) -> Result<Vec<u8>, String> {
        Ok(int8_encode(values))
    }

    fn decode(&self, _: At, bytes: &[u8], elements: usize) -> Result<Vec<f32>, String> {
        if bytes.len() != int8_bytes(elements) {
            return Err(format!("{elements} values take {} bytes, found {}", int8_bytes(elements), bytes.len()));
        }
        int8_decode(bytes, elements)
    }
}

export_codec!(Int8);
