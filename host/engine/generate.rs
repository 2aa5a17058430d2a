//! Sampling text from a model, one token at a time, with a cache of keys and values.
use crate::{Model, Result};

/// How the next token is drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// 0 takes the likeliest token; 1 samples from the model's distribution; lower sharpens it.
    pub temperature: f32,
    /// Only the likeliest this many tokens are drawn; 0 means all.
    pub top_k: usize,
    /// Seed of the draws.
    pub seed: u64,
}

/// TODO
pub fn generate(_model: &Model, _prompt: &[u32], _tokens: usize, _sampling: &Sampling) -> Result<Vec<u32>> {
    Ok(Vec::new())
}
