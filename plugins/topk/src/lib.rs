//! Codec `topk`: of each chunk the values of the largest magnitude, in two bits each; the others become zero.
//!
//! Kept are ⌈share · n⌉ of the n values of a chunk, each as its sign and one of two magnitudes, and its place as a byte (SparseLoCo, arXiv 2508.15706;
//! the SDK's `sparse` has the bytes). 0.134 bits a value at the default share of 1 %. Error of a value: up to the largest magnitude in its chunk, so this codec
//! needs its error feedback, of which 0.95 is carried on (SparseLoCo's decay): what was left out long ago fades.
//!
//! Configuration: `share` (default 0.01, from 0.0001 to 0.5).

use tombolo_policy_sdk::sparse::{sparse_bytes, sparse_decode, sparse_encode};
use tombolo_policy_sdk::{At, CHUNK, Codec, Config, Tensor, Traits, export_codec};

/// The codec under one configuration.
pub struct TopK {
    share: f64,
}

impl TopK {
    /// Values kept of `elements`. A product that is a whole number but for its rounding is that number.
    fn kept(&self, elements: usize) -> usize {
        ((self.share * elements as f64 - 1e-9).ceil() as usize).min(elements)
    }
}

impl Codec for TopK {
    fn open(config: &[u8], _: Vec<Tensor>) -> Result<Self, String> {
        let config = Config::parse(config, &["share"])?;
        Ok(TopK { share: config.number_within("share", 0.01, 0.0001, 0.5, "between 0.0001 and 0.5")? })
    }

    fn traits(&self) -> Traits {
        Traits {
            bits_per_value: (8 * sparse_bytes(CHUNK, self.kept(CHUNK))) as f32 / CHUNK as f32,
            feedback_decay: Some(0.95),
            error_max: 1.0,
            block: CHUNK as u32,
        }
    }

    fn encode(&self, _: At, values: &[f32]) -> Result<Vec<u8>, String> {
        Ok(sparse_encode(values, self.kept(values.len())))
    }

    fn decode(&self, _: At, bytes: &[u8], elements: usize) -> Result<Vec<f32>, String> {
        sparse_decode(bytes, elements, self.kept(elements))
    }
}

export_codec!(TopK);
