//! Codec `f32`: every value as it is, 4 bytes, little-endian.
//!
//! 32 bits a value, no error, no error feedback. Takes no configuration. For comparisons: what the other codecs cost is the difference to this one.

use tombolo_policy_sdk::{At, Codec, Config, Tensor, Traits, export_codec};

/// The codec; it has no settings.
pub struct F32;

impl Codec for F32 {
    fn open(config: &[u8], _: Vec<Tensor>) -> Result<Self, String> {
        Config::parse(config, &[])?;
        Ok(F32)
    }

    fn traits(&self) -> Traits {
        Traits { bits_per_value: 32.0, feedback_decay: None, error_max: 0.0, block: 1 }
    }

    fn encode(&self, _: At, values: &[f32]) -> Result<Vec<u8>, String> {
        Ok(values.iter().flat_map(|value| value.to_le_bytes()).collect())
    }

    fn decode(&self, _: At, bytes: &[u8], elements: usize) -> Result<Vec<f32>, String> {
        let (words, rest) = bytes.as_chunks::<4>();
        if words.len() != elements || !rest.is_empty() {
            return Err(format!("{elements} values take {} bytes, found {}", elements * 4, bytes.len()));
        }
        Ok(words.iter().map(|word| f32::from_le_bytes(*word)).collect())
    }
}

export_codec!(F32);
