//! Forward and backward of a whole model over one batch.
//!
//! A layer is three stages, each a set of independent pieces that any thread may take; a stage starts when the one
//! before has ended:
//! 1. rows: norm, query/key/value, rotation;
//! 2. sequences × key/value heads: attention;
//! 3. rows: output, residual, norm, gate and up, SwiGLU, down, residual.
//!
//! Backward runs 3, 2, 1 and then, as a fourth, the gradients of the layer's matrices, cut by output channel, each
//! summed over all rows in one product.
//!
//! Every piece writes one contiguous range of each of its outputs, and readers gather: so there is no shared mutable
//! memory, and everything is safe code. Pieces depend on shapes only. A single sequence with a single key/value head is
//! one piece of attention: there, threads only share the rows.

mod backward;
mod forward;
mod head;
#[cfg(test)]
mod tests;
mod weight;

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::parts::Parts;
use super::rope::Rotation;
use super::{attention, embedding};
use crate::{Batch, ModelConfig};

/// Output channels of one piece of a weight's gradient.
pub(super) const CHANNELS_A_PIECE: usize = 128;
/// The most logits that exist at a time, as long as one chunk of rows fits: 64 MiB.
const LOGITS_MAX: usize = 16 << 20;
/// Tokens of the vocabulary in one piece of the embedding's gradient.
const TOKENS_A_PIECE: usize = 64;

/// Rows in one piece: large enough that a product amortises the packing of its weight, small enough that few rows
/// still make eight pieces.
pub(super) fn rows_a_piece(rows: usize) -> usize {
    rows.div_ceil(8).next_multiple_of(16).clamp(32, 256)
}

/// What one layer's forward pass leaves for its backward pass.
#[derive(Default)]
struct Activations {
    /// (R, C)
    norm1: Vec<f32>,
    /// (R)
    scale1: Vec<f32>,
    /// (R, (H + 2·K)·D), rotated
    qkv: Vec<f32>,
    /// (B, K, G, T)
    log_sums: Vec<f32>,
    /// (R, H·D)
    attention: Vec<f32>,
    /// (R, C): the residual stream between the two blocks
    middle: Vec<f32>,
    /// (R, C)
    norm2: Vec<f32>,
    /// (R)
    scale2: Vec<f32>,
    /// (R, 2·F)
    gate_up: Vec<f32>,
    /// (R, F)
    product: Vec<f32>,
}

/// What a thread needs for itself.
#[derive(Default)]
struct Scratch {
    attention: attention::Scratch,
    /// (chunk, F)
    inner: Vec<f32>,
    /// (chunk, C)
    channels: Vec<f32>,
}

/// The memory of a forward and backward pass; allocated for the largest batch seen and kept.
pub(crate) struct Pass {
    config: ModelConfig,
    logits_max: usize,
    rotation: Rotation,
    /// (R)
    inputs: Vec<u32>,
    /// (R)
    targets: Vec<u32>,
    occurrences: embedding::Occurrences,
    /// The residual stream before each layer and after the last: L + 1 times (R, C).
    stream: Vec<Vec<f32>>,
    layers: Vec<Activations>,
    /// (B, K, T, G·D): attention's output before its heads are gathered.
    heads: Vec<f32>,
    /// (R, C), (R): the last norm.
    norm: Vec<f32>,
    scale: Vec<f32>,
    /// (rows at a time, V)
    logits: Vec<f32>,
    /// (R)
    losses: Vec<f32>,
    /// (R, C) each: gradients of the stream after, between and before the two blocks of a layer.
    dstream: Vec<f32>,
    dmiddle: Vec<f32>,
    dnext: Vec<f32>,
    /// (R, 2·F)
    dgate_up: Vec<f32>,
    /// (R, H·D)
    dattention: Vec<f32>,
    /// (B, K, T, (G + 2)·D)
    dheads: Vec<f32>,
    /// (R, (H + 2·K)·D)
    dqkv: Vec<f32>,
    /// (chunks, C) each: parts of the gradients of a layer's two norms.
    dnorm1: Vec<f32>,
    dnorm2: Vec<f32>,
    /// One a thread.
    scratch: Vec<Mutex<Scratch>>,
}

/// The lengths that every stage needs.
#[derive(Clone, Copy)]
struct Shape {
    /// T
    context: usize,
    /// R = B·T
    rows: usize,
    /// Rows a piece.
    chunk: usize,
    /// C
    channels: usize,
    /// F
    inner: usize,
    /// (H + 2·K)·D
    qkv: usize,
    /// H·D
    attention: usize,
    /// V
    vocabulary: usize,
    /// H, K, D; `index` is filled in per piece.
    head: attention::Head,
}

impl Shape {
    fn of(config: &ModelConfig, batch: &Batch) -> Shape {
        let rows = batch.batch * batch.context;
        Shape {
            context: batch.context,
            rows,
            chunk: rows_a_piece(rows),
            channels: config.hidden_size,
            inner: config.intermediate_size,
            qkv: config.qkv_width(),
            attention: config.attention_width(),
            vocabulary: config.vocab_size,
            head: attention::Head {
                index: 0,
                heads: config.heads,
                kv_heads: config.kv_heads,
                head_dim: config.head_dim,
            },
        }
    }

    /// Rows whose logits exist at a time: whole chunks.
    fn logit_rows(&self, logits_max: usize) -> usize {
        (logits_max / self.vocabulary / self.chunk).max(1) * self.chunk
    }

    fn chunks(&self) -> usize {
        self.rows.div_ceil(self.chunk)
    }
}

impl Pass {
    /// A pass for models of this shape, to be run on a pool of at most `threads` threads.
    pub(crate) fn new(config: &ModelConfig, threads: usize) -> Pass {
        Pass {
            config: config.clone(),
            logits_max: LOGITS_MAX,
            rotation: Rotation::default(),
            inputs: Vec::new(),
            targets: Vec::new(),
            occurrences: embedding::Occurrences::default(),
            stream: vec![Vec::new(); config.layers + 1],
            layers: (0..config.layers).map(|_| Activations::default()).collect(),
            heads: Vec::new(),
            norm: Vec::new(),
            scale: Vec::new(),
            logits: Vec::new(),
            losses: Vec::new(),
            dstream: Vec::new(),
            dmiddle: Vec::new(),
            dnext: Vec::new(),
            dgate_up: Vec::new(),
            dattention: Vec::new(),
            dheads: Vec::new(),
            dqkv: Vec::new(),
            dnorm1: Vec::new(),
            dnorm2: Vec::new(),
            scratch: (0..threads).map(|_| Mutex::default()).collect(),
        }
    }

    /// The mean loss of a batch in nats per target.
    pub(crate) fn loss(&mut self, parameters: &[f32], batch: &Batch) -> f64 {
        self.run(parameters, batch, None)
    }

    /// The mean loss of a batch and its gradient, which replaces what `gradients` holds.
    pub(crate) fn gradient(&mut self, parameters: &[f32], batch: &Batch, gradients: &mut [f32]) -> f64 {
        self.run(parameters, batch, Some(gradients))
    }

    fn run(&mut self, parameters: &[f32], batch: &Batch, gradients: Option<&mut [f32]>) -> f64 {
        let shape = Shape::of(&self.config, batch);
        self.fit(batch, shape, gradients.is_some());
        let config = self.config.clone();
        let weights = Parts::of(&config, parameters);
        self.forward(&weights, shape);
        match gradients {
            None => self.head(&weights, None, shape),
            Some(gradients) => {
                let mut gradients = Parts::of_mut(&config, gradients);
                self.head(&weights, Some(&mut gradients), shape);
                self.backward(&weights, gradients, shape);
            }
        }
        let total: f64 = self.losses[..shape.rows].iter().map(|&loss| f64::from(loss)).sum();
        total / shape.rows as f64
    }

    /// Makes every buffer as long as this batch needs; one that is longer keeps its memory.
    fn fit(&mut self, batch: &Batch, shape: Shape, backward: bool) {
        let Shape { context, rows, channels, inner, vocabulary, .. } = shape;
        if self.rotation.positions() < context {
            self.rotation = Rotation::new(context, self.config.head_dim, self.config.rope_theta);
        }
        self.inputs.clear();
        self.targets.clear();
        for row in batch.tokens.chunks_exact(context + 1) {
            self.inputs.extend_from_slice(&row[..context]);
            self.targets.extend_from_slice(&row[1..]);
        }
        let fit = |buffer: &mut Vec<f32>, width: usize| buffer.resize(rows * width, 0.0);
        for stream in &mut self.stream {
            fit(stream, channels);
        }
        for layer in &mut self.layers {
            fit(&mut layer.norm1, channels);
            fit(&mut layer.scale1, 1);
            fit(&mut layer.qkv, shape.qkv);
            fit(&mut layer.log_sums, shape.head.heads);
            fit(&mut layer.attention, shape.attention);
            fit(&mut layer.middle, channels);
            fit(&mut layer.norm2, channels);
            fit(&mut layer.scale2, 1);
            fit(&mut layer.gate_up, 2 * inner);
            fit(&mut layer.product, inner);
        }
        fit(&mut self.heads, shape.attention);
        fit(&mut self.norm, channels);
        fit(&mut self.scale, 1);
        fit(&mut self.losses, 1);
        self.logits.resize(shape.logit_rows(self.logits_max).min(rows) * vocabulary, 0.0);
        fit(&mut self.dstream, channels);
        self.dnorm1.resize(shape.chunks() * channels, 0.0);
        if backward {
            fit(&mut self.dmiddle, channels);
            fit(&mut self.dnext, channels);
            fit(&mut self.dgate_up, 2 * inner);
            fit(&mut self.dattention, shape.attention);
            fit(&mut self.dheads, shape.qkv);
            fit(&mut self.dqkv, shape.qkv);
            self.dnorm2.resize(shape.chunks() * channels, 0.0);
            self.occurrences.sort(&self.inputs, vocabulary);
        }
        for scratch in &mut self.scratch {
            let scratch = scratch.get_mut().unwrap_or_else(PoisonError::into_inner);
            scratch.inner.resize(shape.chunk * inner, 0.0);
            scratch.channels.resize(shape.chunk * channels, 0.0);
        }
    }
}

/// The thread's own scratch. A piece never starts another one, so the lock is always free.
fn own(scratch: &[Mutex<Scratch>]) -> MutexGuard<'_, Scratch> {
    let thread = rayon::current_thread_index().unwrap_or(0);
    scratch[thread].lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sequence `number` of a buffer with `values` a sequence.
fn sequence(buffer: &[f32], number: usize, values: usize) -> &[f32] {
    &buffer[number * values..(number + 1) * values]
}
