//! Llama-family transformers with explicit forward and backward passes: what an island runs as its inner loop.
//!
//! A model is one flat arena of f32 parameters with named tensors ([`Layout`]), so that a fragment is a list of ranges
//! and nothing is copied to offer or adopt one. [`Trainer`] does AdamW steps on it, [`generate()`] samples from it, and
//! [`Model::load`] and [`Model::save`] speak Hugging Face's `config.json` + `model.safetensors`.
//!
//! Guarantees:
//! - the same bits for any number of threads on one kind of processor: every sum has an order that depends on shapes
//!   alone;
//! - a step whose loss or gradient is not finite changes nothing and says so;
//! - no network, no clock, no async; randomness only from seeds that the caller gives.
//!
//! Letters for dimensions, used in every shape comment: B batch, T time (positions), R = B·T rows, C channels
//! (`hidden_size`), F feed-forward channels (`intermediate_size`), V vocabulary, L layers, H query heads,
//! K key/value heads, G = H/K query heads that share one key/value head, D channels of a head.

mod config;
mod cpu;
mod error;
mod generate;
mod huggingface;
mod layout;
mod model;
mod random;
mod schedule;
mod trainer;

/// For `benches/training.rs`; no part of the interface.
#[doc(hidden)]
pub use cpu::measure;

pub use config::ModelConfig;
pub use cpu::first_not_finite;
pub use error::{Error, Result};
pub use generate::{Sampling, generate};
pub use layout::{Layout, Tensor, TensorKind};
pub use model::Model;
pub use schedule::Schedule;
pub use trainer::{AdamW, Batch, StepStats, Trainer};
