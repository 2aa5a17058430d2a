//! Codec `bf16`: every value rounded to bfloat16, ties to even; 2 bytes a value, little-endian.
//!
//! Error of a value: at most 2^-8 of its own magnitude. Values beyond the largest bfloat16 become that. Takes no configuration. No error
//! feedback: what rounding loses is noise far below that of the training itself.

use tombolo_policy_sdk::quantise::{BF16_ERROR, bf16_decode, bf16_encode};
use tombolo_policy_sdk::{At, Codec, Config, Tensor, Traits, export_codec};

/// The codec; it has no settings.
pub struct Bf16;

impl Codec for Bf16 {
    fn open(config: &[u8], _: Vec<Tensor>) -> Result<Self, String> {
        Config::parse(config, &[])?;
        Ok(Bf16)
    }

    fn traits(&self) -> Traits {
        Traits { bits_per_value: 16.0, feedback_decay: None, error_max: BF16_ERROR, block: 1 }
    }

    fn encode(&self, _: At, values: &[f32]) -> Result<Vec<u8>, String> {
        Ok(bf16_encode(values))
    }

    fn decode(&self, _: At, bytes: &[u8], elements: usize) -> Result<Vec<f32>, String> {
        if bytes.len() != elements * 2 {
            return Err(format!("{elements} values take {} bytes, found {}", elements * 2, bytes.len()));
        }
        Ok(bf16_decode(bytes))
    }
}

export_codec!(Bf16);
