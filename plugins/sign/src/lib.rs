//! Codec `sign`: the sign of each value; blocks of 128 values share a magnitude, their mean one as bfloat16.
//!
//! 1.125 bits a value. Error of a value: up to the largest magnitude in its block, so this codec needs its error feedback: with the whole residual
//! carried on (decay 1) it is the scaled sign of Karimireddy et al. (arXiv 1901.09847), which converges as SGD does, while signs alone need not. Takes no
//! configuration.

use tombolo_policy_sdk::nibble::{SIGN_BLOCK, sign_bytes, sign_decode, sign_encode};
use tombolo_policy_sdk::{At, CHUNK, Codec, Config, Tensor, Traits, export_codec};

/// The codec; it has no settings.
pub struct Sign;

impl Codec for Sign {
    fn open(config: &[u8], _: Vec<Tensor>) -> Result<Self, String> {
        Config::parse(config, &[])?;
        Ok(Sign)
    }

    fn traits(&self) -> Traits {
        Traits {
            bits_per_value: (8 * sign_bytes(CHUNK)) as f32 / CHUNK as f32,
            feedback_decay: Some(1.0),
            error_max: 1.0,
            block: SIGN_BLOCK as u32,
        }
    }

    fn encode(&self, _: At, values: &[f32]) -> Result<Vec<u8>, String> {
        Ok(sign_encode(values))
    }

    fn decode(&self, _: At, bytes: &[u8], elements: usize) -> Result<Vec<f32>, String> {
        if bytes.len() != sign_bytes(elements) {
            return Err(format!("{elements} values take {} bytes, found {}", sign_bytes(elements), bytes.len()));
        }
        sign_decode(bytes, elements)
    }
}

export_codec!(Sign);
