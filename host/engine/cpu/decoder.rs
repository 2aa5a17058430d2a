//! Forward of one growing sequence with a cache of keys and values: what generation needs.

use super::attention::{self, BLOCK};
use super::matrix::Destination;
use super::parts::{LayerParts, Parts};
use super::rope::{Rotation, Turn};
use super::{embedding, linear, rms_norm, swiglu};
use crate::ModelConfig;

/// A sequence as far as it was fed, and the memory to go on.
pub(crate) struct Decoder<'a> {
    config: &'a ModelConfig,
    weights: &'a Parts<&'a [f32]>,
    rotation: Rotation,
    /// A layer each.
    caches: Vec<Cache>,
    /// Positions fed, P.
    position: usize,
    scratch: attention::Scratch,
}

/// Keys and values of one layer, (P, K·D) each.
#[derive(Clone, Default)]
struct Cache {
    keys: Vec<f32>,
    values: Vec<f32>,
}

impl<'a> Decoder<'a> {
    pub(crate) fn new(config: &'a ModelConfig, weights: &'a Parts<&'a [f32]>) -> Decoder<'a> {
        Decoder {
            config,
            weights,
            rotation: Rotation::new(config.context, config.head_dim, config.rope_theta),
            caches: vec![Cache::default(); config.layers],
            position: 0,
            scratch: attention::Scratch::default(),
        }
    }

    /// Positions fed so far.
    pub(crate) fn position(&self) -> usize {
        self.position
    }

    /// Forgets the sequence.
    pub(crate) fn clear(&mut self) {
        self.position = 0;
        for cache in &mut self.caches {
            cache.keys.clear();
            cache.values.clear();
        }
    }

    /// Feeds at least one token; logits (V) after the last of them.
    pub(crate) fn last_logits(&mut self, tokens: &[u32]) -> Vec<f32> {
        let mut last = Vec::new();
        for tokens in tokens.chunks(BLOCK) {
            let stream = self.feed(tokens);
            last = stream[stream.len() - self.config.hidden_size..].to_vec();
        }
        self.head(&last)
    }

    /// Feeds tokens; logits (N, V) after each of them.
    pub(crate) fn logits(&mut self, tokens: &[u32]) -> Vec<f32> {
        let mut logits = Vec::with_capacity(tokens.len() * self.config.vocab_size);
        for tokens in tokens.chunks(BLOCK) {
            let stream = self.feed(tokens);
            logits.extend(self.head(&stream));
        }
        logits
    }

    /// Feeds at most [`BLOCK`] tokens; the residual stream (N, C) after the last layer.
    fn feed(&mut self, tokens: &[u32]) -> Vec<f32> {
        assert!(self.position + tokens.len() <= self.config.context, "the context is full: the caller slides first");
        let channels = self.config.hidden_size;
        let mut x = vec![0.0; tokens.len() * channels];
        embedding::forward(&mut x, tokens, self.weights.embedding, channels);
        let weights = self.weights;
        for (layer, weights) in weights.layers.iter().enumerate() {
            self.attend(&mut x, weights, layer);
            feed_forward(&mut x, weights, self.config);
        }
        self.position += tokens.len();
        x
    }

    /// x (N, C) += attention(norm(x)).
    fn attend(&mut self, x: &mut [f32], weights: &LayerParts<&[f32]>, layer: usize) {
        let config = self.config;
        let (channels, width, d) = (config.hidden_size, config.qkv_width(), config.head_dim);
        let rows = x.len() / channels;
        let head = attention::Head { index: 0, heads: config.heads, kv_heads: config.kv_heads, head_dim: d };
        // (N, C), (N), (N, (H + 2·K)·D), (N, H·D)
        let (mut norm, mut scale) = (vec![0.0; x.len()], vec![0.0; rows]);
        let (mut qkv, mut out) = (vec![0.0; rows * width], vec![0.0; rows * config.attention_width()]);
        rms_norm::forward(&mut norm, &mut scale, x, weights.norm1, config.norm_eps);
        linear::forward(&mut qkv, &norm, weights.qkv, channels, Destination::Overwrite);
        let rotated = config.heads + config.kv_heads;
        self.rotation.apply(&mut qkv, width, rotated, self.position, config.context, Turn::Forward);
        let cache = &mut self.caches[layer];
        for row in qkv.chunks_exact(width) {
            let (key, value) = row[head.key()..].split_at(config.kv_heads * d);
            cache.keys.extend_from_slice(key);
            cache.values.extend_from_slice(value);
        }
        let scratch = &mut self.scratch;
        attention::forward_cached(&mut out, &qkv, &cache.keys, &cache.values, head, self.position, scratch);
        linear::forward(x, &out, weights.output, config.attention_width(), Destination::Add);
    }

    /// logits (N, V) from x (N, C).
    fn head(&self, x: &[f32]) -> Vec<f32> {
        let channels = self.config.hidden_size;
        let rows = x.len() / channels;
        let (mut norm, mut scale) = (vec![0.0; x.len()], vec![0.0; rows]);
        let mut logits = vec![0.0; rows * self.config.vocab_size];
        rms_norm::forward(&mut norm, &mut scale, x, self.weights.norm, self.config.norm_eps);
        linear::forward(&mut logits, &norm, self.weights.logits(), channels, Destination::Overwrite);
        logits
    }
}

/// x (N, C) += down(silu(gate) · up).
fn feed_forward(x: &mut [f32], weights: &LayerParts<&[f32]>, config: &ModelConfig) {
    let (channels, inner) = (config.hidden_size, config.intermediate_size);
    let rows = x.len() / channels;
    // (N, C), (N), (N, 2·F), (N, F)
    let (mut norm, mut scale) = (vec![0.0; x.len()], vec![0.0; rows]);
    let (mut gate_up, mut product) = (vec![0.0; rows * 2 * inner], vec![0.0; rows * inner]);
    rms_norm::forward(&mut norm, &mut scale, x, weights.norm2, config.norm_eps);
    linear::forward(&mut gate_up, &norm, weights.gate_up, channels, Destination::Overwrite);
    swiglu::forward(&mut product, &gate_up, inner);
    linear::forward(x, &product, weights.down, inner, Destination::Add);
}
