//! Codec: blocks of 64 values share a scale, absmax / 7; each value is the nearest of 15 multiples of it, in 4 bits.
//!
//! 4.5 bits a value. Error of a value: at most 1/14 of the largest magnitude in its block. What is lost is carried into the next offer
//! whole (feedback decay 1): the host does that. Takes no configuration.

use tombolo_policy_sdk::{At, Codec, Config, Tensor, Traits, export_codec};

const BLOCK: usize = 64;

/// The codec; it has no settings.
pub struct Scheme;

impl Codec for Scheme {
    fn open(config: &[u8], _: Vec<Tensor>) -> Result<Self, String> {
        Config::parse(config, &[])?;
        Ok(Scheme)
    }

    fn traits(&self) -> Traits {
        // A hundredth more than 1/14, since the scale is rounded.
        Traits { bits_per_value: 4.5, feedback_decay: Some(1.0), error_max: 1.01 / 14.0, block: BLOCK as u32 }
    }

    fn encode(&self, _: At, values: &[f32]) -> Result<Vec<u8>, String> {
        let mut bytes = Vec::with_capacity(size(values.len()));
        for block in values.chunks(BLOCK) {
            let scale = block.iter().fold(0.0_f32, |max, value| max.max(value.abs())) / 7.0;
            // Where the scale is zero this divides by it, and the cast makes zero of what is not a number.
            let level = |value: f32| (value / scale).round_ties_even().clamp(-7.0, 7.0) as i8;
            bytes.extend(scale.to_le_bytes());
            bytes.extend(block.chunks(2).map(|pair| {
                let (low, high) = (level(pair[0]), pair.get(1).map_or(0, |value| level(*value)));
                (low + 8) as u8 | ((high + 8) as u8) << 4
            }));
        }
        Ok(bytes)
    }

    fn decode(&self, _: At, bytes: &[u8], elements: usize) -> Result<Vec<f32>, String> {
        if bytes.len() != size(elements) {
            return Err(format!("{elements} values take {} bytes, found {}", size(elements), bytes.len()));
        }
        let mut values = Vec::with_capacity(elements + 1);
        for block in bytes.chunks(4 + BLOCK / 2) {
            let scale = f32::from_le_bytes([block[0], block[1], block[2], block[3]]);
            let value = |level: u8| (f32::from(level) - 8.0) * scale;
            values.extend(block[4..].iter().flat_map(|byte| [value(byte & 15), value(byte >> 4)]));
        }
        values.truncate(elements);
        Ok(values)
    }
}

/// Bytes of `elements` values: 4 for each block and half a byte for each value.
fn size(elements: usize) -> usize {
    elements.div_ceil(BLOCK) * 4 + elements.div_ceil(2)
}

export_codec!(Scheme);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn multiples_of_the_scale_come_back_exactly() {
        let at = At { tensor: 0, offset: 0 };
        let values: Vec<f32> = (0..139).map(|i| (i % 15) as f32 - 7.0).collect();
        let bytes = Scheme.encode(at, &values).expect("encodes");
        assert_eq!(Scheme.decode(at, &bytes, values.len()).as_ref(), Ok(&values));
        assert!(Scheme.decode(at, &bytes[1..], values.len()).is_err());
    }
}
