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
//! memory, and everything is safe code. Pieces depend on shapes only.

use std::sync::{Mutex, MutexGuard, PoisonError};

use rayon::prelude::*;

use super::matrix::Destination;
use super::parts::{LayerParts, Parts};
use super::rope::{Rotation, Turn};
use super::{attention, cross_entropy, embedding, linear, rms_norm, simd, swiglu};
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
    rotation: Rotation,
    inputs: Vec<u32>,
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
    fn logit_rows(&self) -> usize {
        (LOGITS_MAX / self.vocabulary / self.chunk).max(1) * self.chunk
    }

    fn chunks(&self) -> usize {
        self.rows.div_ceil(self.chunk)
    }
}

impl Pass {
    pub(crate) fn new(config: &ModelConfig, threads: usize) -> Pass {
        Pass {
            config: config.clone(),
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
        self.logits.resize(shape.logit_rows().min(rows) * vocabulary, 0.0);
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

    /// From tokens to the residual stream after the last layer.
    fn forward(&mut self, weights: &Parts<&[f32]>, shape: Shape) {
        let Shape { chunk, channels, .. } = shape;
        self.stream[0]
            .par_chunks_mut(chunk * channels)
            .zip(self.inputs.par_chunks(chunk))
            .for_each(|(x, tokens)| embedding::forward(x, tokens, weights.embedding, channels));
        for (layer, weights) in weights.layers.iter().enumerate() {
            self.project(weights, layer, shape);
            self.attend(layer, shape);
            self.feed(weights, layer, shape);
        }
    }

    /// Stage 1: norm, query/key/value, rotation.
    fn project(&mut self, weights: &LayerParts<&[f32]>, layer: usize, shape: Shape) {
        let Shape { chunk, channels, .. } = shape;
        let (epsilon, rotation) = (self.config.norm_eps, &self.rotation);
        let rotated = shape.head.heads + shape.head.kv_heads;
        let kept = &mut self.layers[layer];
        (
            kept.norm1.par_chunks_mut(chunk * channels),
            kept.scale1.par_chunks_mut(chunk),
            kept.qkv.par_chunks_mut(chunk * shape.qkv),
            self.stream[layer].par_chunks(chunk * channels),
        )
            .into_par_iter()
            .enumerate()
            .with_max_len(1)
            .for_each(|(piece, (norm, scale, qkv, x))| {
                rms_norm::forward(norm, scale, x, weights.norm1, epsilon);
                linear::forward(qkv, norm, weights.qkv, channels, Destination::Overwrite);
                rotation.apply(qkv, shape.qkv, rotated, piece * chunk, shape.context, Turn::Forward);
            });
    }

    /// Stage 2: attention of each sequence and key/value head.
    fn attend(&mut self, layer: usize, shape: Shape) {
        let Shape { context, head, .. } = shape;
        let group = head.group();
        let Activations { qkv, log_sums, .. } = &mut self.layers[layer];
        let (qkv, scratch) = (&*qkv, &self.scratch);
        self.heads
            .par_chunks_mut(context * group * head.head_dim)
            .zip(log_sums.par_chunks_mut(group * context))
            .enumerate()
            .with_max_len(1)
            .for_each(|(piece, (out, log_sums))| {
                let head = attention::Head { index: piece % head.kv_heads, ..head };
                let qkv = sequence(qkv, piece / head.kv_heads, context * shape.qkv);
                attention::forward(out, log_sums, qkv, head, &mut own(scratch).attention);
            });
    }

    /// Stage 3: output, residual, norm, gate and up, SwiGLU, down, residual.
    fn feed(&mut self, weights: &LayerParts<&[f32]>, layer: usize, shape: Shape) {
        let Shape { chunk, channels, inner, .. } = shape;
        let epsilon = self.config.norm_eps;
        let heads = &self.heads;
        let kept = &mut self.layers[layer];
        let (before, after) = self.stream.split_at_mut(layer + 1);
        (
            kept.attention.par_chunks_mut(chunk * shape.attention),
            kept.middle.par_chunks_mut(chunk * channels),
            kept.norm2.par_chunks_mut(chunk * channels),
            kept.scale2.par_chunks_mut(chunk),
            kept.gate_up.par_chunks_mut(chunk * 2 * inner),
            kept.product.par_chunks_mut(chunk * inner),
            before[layer].par_chunks(chunk * channels),
            after[0].par_chunks_mut(chunk * channels),
        )
            .into_par_iter()
            .enumerate()
            .with_max_len(1)
            .for_each(|(piece, (attention, middle, norm, scale, gate_up, product, x, y))| {
                gather_heads(attention, heads, piece * chunk, shape);
                middle.copy_from_slice(x);
                linear::forward(middle, attention, weights.output, shape.attention, Destination::Add);
                rms_norm::forward(norm, scale, middle, weights.norm2, epsilon);
                linear::forward(gate_up, norm, weights.gate_up, channels, Destination::Overwrite);
                swiglu::forward(product, gate_up, inner);
                y.copy_from_slice(middle);
                linear::forward(y, product, weights.down, inner, Destination::Add);
            });
    }

    /// Last norm, logits, losses; with `gradients` also those of head, norm and the stream before them.
    fn head(&mut self, weights: &Parts<&[f32]>, mut gradients: Option<&mut Parts<&mut [f32]>>, shape: Shape) {
        let Shape { rows, chunk, channels, vocabulary, .. } = shape;
        let epsilon = self.config.norm_eps;
        let backward = gradients.is_some();
        let (scratch, last) = (&self.scratch, &self.stream[self.stream.len() - 1]);
        let at_a_time = shape.logit_rows();
        for first in (0..rows).step_by(at_a_time) {
            let count = at_a_time.min(rows - first);
            let some = first..first + count;
            let first_piece = first / chunk;
            (
                self.norm[some.start * channels..some.end * channels].par_chunks_mut(chunk * channels),
                self.scale[some.clone()].par_chunks_mut(chunk),
                self.logits[..count * vocabulary].par_chunks_mut(chunk * vocabulary),
                self.losses[some.clone()].par_chunks_mut(chunk),
                self.dstream[some.start * channels..some.end * channels].par_chunks_mut(chunk * channels),
                self.dnorm1[first_piece * channels..].par_chunks_mut(channels),
                last[some.start * channels..some.end * channels].par_chunks(chunk * channels),
                self.targets[some.clone()].par_chunks(chunk),
            )
                .into_par_iter()
                .with_max_len(1)
                .for_each(|(norm, scale, logits, losses, dx, dweight, x, targets)| {
                    rms_norm::forward(norm, scale, x, weights.norm, epsilon);
                    linear::forward(logits, norm, weights.logits(), channels, Destination::Overwrite);
                    cross_entropy::forward_backward(losses, logits, targets, vocabulary, 1.0 / rows as f32);
                    if backward {
                        let scratch = &mut *own(scratch);
                        let dnorm = &mut scratch.channels[..norm.len()];
                        linear::backward_input(dnorm, logits, weights.logits(), channels);
                        dweight.fill(0.0);
                        // Nothing flows past the last norm, so there is no residual to add.
                        dx.fill(0.0);
                        rms_norm::backward(dx, dweight, dnorm, x, scale, weights.norm);
                    }
                });
            if let Some(gradients) = gradients.as_deref_mut() {
                let destination = if first == 0 { Destination::Overwrite } else { Destination::Add };
                let head = gradients.head.as_deref_mut().unwrap_or(gradients.embedding);
                let mut pieces = Vec::new();
                let norm = &self.norm[some.start * channels..some.end * channels];
                cut(&mut pieces, head, &self.logits[..count * vocabulary], norm, channels, destination);
                run(pieces);
            }
        }
        if let Some(gradients) = gradients {
            add_up(gradients.norm, &self.dnorm1);
        }
    }

    /// From the gradient of the stream after the last layer to all others.
    fn backward(&mut self, weights: &Parts<&[f32]>, gradients: Parts<&mut [f32]>, shape: Shape) {
        let Shape { channels, .. } = shape;
        let layers = weights.layers.iter().zip(gradients.layers).enumerate().rev();
        for (layer, (weights, gradients)) in layers {
            self.feed_backward(weights, layer, shape);
            self.attend_backward(layer, shape);
            self.project_backward(weights, layer, shape);
            self.weights_backward(gradients, layer, shape);
            std::mem::swap(&mut self.dstream, &mut self.dnext);
        }
        let tied = gradients.head.is_none();
        let (dstream, occurrences) = (&self.dstream, &self.occurrences);
        gradients.embedding.par_chunks_mut(TOKENS_A_PIECE * channels).enumerate().for_each(|(piece, dweight)| {
            // A tied embedding already holds the gradient of the head.
            if !tied {
                dweight.fill(0.0);
            }
            embedding::backward(dweight, dstream, occurrences, piece * TOKENS_A_PIECE, channels);
        });
    }

    /// Stage 3 backward: dstream → dgate_up, dmiddle, dattention.
    fn feed_backward(&mut self, weights: &LayerParts<&[f32]>, layer: usize, shape: Shape) {
        let Shape { chunk, channels, inner, .. } = shape;
        let (kept, scratch) = (&self.layers[layer], &self.scratch);
        (
            self.dgate_up.par_chunks_mut(chunk * 2 * inner),
            self.dmiddle.par_chunks_mut(chunk * channels),
            self.dattention.par_chunks_mut(chunk * shape.attention),
            self.dnorm2.par_chunks_mut(channels),
            self.dstream.par_chunks(chunk * channels),
            kept.gate_up.par_chunks(chunk * 2 * inner),
            kept.middle.par_chunks(chunk * channels),
            kept.scale2.par_chunks(chunk),
        )
            .into_par_iter()
            .with_max_len(1)
            .for_each(|(dgate_up, dmiddle, dattention, dweight, dy, gate_up, middle, scale)| {
                let scratch = &mut *own(scratch);
                let dproduct = &mut scratch.inner[..scale.len() * inner];
                let dnorm = &mut scratch.channels[..dmiddle.len()];
                linear::backward_input(dproduct, dy, weights.down, inner);
                swiglu::backward(dgate_up, dproduct, gate_up, inner);
                linear::backward_input(dnorm, dgate_up, weights.gate_up, channels);
                dweight.fill(0.0);
                dmiddle.copy_from_slice(dy);
                rms_norm::backward(dmiddle, dweight, dnorm, middle, scale, weights.norm2);
                linear::backward_input(dattention, dmiddle, weights.output, shape.attention);
            });
    }

    /// Stage 2 backward: dattention → dheads.
    fn attend_backward(&mut self, layer: usize, shape: Shape) {
        let Shape { context, head, .. } = shape;
        let group = head.group();
        let (kept, scratch, dattention) = (&self.layers[layer], &self.scratch, &self.dattention);
        self.dheads
            .par_chunks_mut(context * (group + 2) * head.head_dim)
            .zip(kept.log_sums.par_chunks(group * context))
            .enumerate()
            .with_max_len(1)
            .for_each(|(piece, (dqkv, log_sums))| {
                let head = attention::Head { index: piece % head.kv_heads, ..head };
                let number = piece / head.kv_heads;
                let qkv = sequence(&kept.qkv, number, context * shape.qkv);
                let out = sequence(&kept.attention, number, context * shape.attention);
                let dout = sequence(dattention, number, context * shape.attention);
                attention::backward(dqkv, qkv, log_sums, out, dout, head, &mut own(scratch).attention);
            });
    }

    /// Stage 1 backward: dheads, dmiddle → dqkv, dnext.
    fn project_backward(&mut self, weights: &LayerParts<&[f32]>, layer: usize, shape: Shape) {
        let Shape { chunk, channels, .. } = shape;
        let (rotation, scratch, dheads) = (&self.rotation, &self.scratch, &self.dheads);
        let rotated = shape.head.heads + shape.head.kv_heads;
        (
            self.dqkv.par_chunks_mut(chunk * shape.qkv),
            self.dnext.par_chunks_mut(chunk * channels),
            self.dnorm1.par_chunks_mut(channels),
            self.dmiddle.par_chunks(chunk * channels),
            self.stream[layer].par_chunks(chunk * channels),
            self.layers[layer].scale1.par_chunks(chunk),
        )
            .into_par_iter()
            .enumerate()
            .with_max_len(1)
            .for_each(|(piece, (dqkv, dx, dweight, dmiddle, x, scale))| {
                let scratch = &mut *own(scratch);
                let dnorm = &mut scratch.channels[..dx.len()];
                gather_gradients(dqkv, dheads, piece * chunk, shape);
                rotation.apply(dqkv, shape.qkv, rotated, piece * chunk, shape.context, Turn::Backward);
                linear::backward_input(dnorm, dqkv, weights.qkv, channels);
                dweight.fill(0.0);
                dx.copy_from_slice(dmiddle);
                rms_norm::backward(dx, dweight, dnorm, x, scale, weights.norm1);
            });
    }

    /// Stage 4: the gradients of a layer's own parameters.
    fn weights_backward(&mut self, gradients: LayerParts<&mut [f32]>, layer: usize, shape: Shape) {
        let Shape { channels, inner, .. } = shape;
        let kept = &self.layers[layer];
        let mut pieces = Vec::new();
        let mut add = |dweight, dy, x, inputs| cut(&mut pieces, dweight, dy, x, inputs, Destination::Overwrite);
        add(gradients.gate_up, &self.dgate_up, &kept.norm2, channels);
        add(gradients.down, &self.dstream, &kept.product, inner);
        add(gradients.qkv, &self.dqkv, &kept.norm1, channels);
        add(gradients.output, &self.dmiddle, &kept.attention, shape.attention);
        run(pieces);
        add_up(gradients.norm1, &self.dnorm1);
        add_up(gradients.norm2, &self.dnorm2);
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

/// One piece of a weight's gradient: a product over all rows.
struct Piece<'a> {
    /// (o, I): output channels first..first + o
    dweight: &'a mut [f32],
    /// (R, O)
    dy: &'a [f32],
    /// (R, I)
    x: &'a [f32],
    outputs: usize,
    inputs: usize,
    first: usize,
    destination: Destination,
}

/// Cuts the gradient of a weight (O, I) by output channel.
fn cut<'a>(
    pieces: &mut Vec<Piece<'a>>,
    dweight: &'a mut [f32],
    dy: &'a [f32],
    x: &'a [f32],
    inputs: usize,
    destination: Destination,
) {
    let outputs = dweight.len() / inputs;
    for (number, dweight) in dweight.chunks_mut(CHANNELS_A_PIECE * inputs).enumerate() {
        let first = number * CHANNELS_A_PIECE;
        pieces.push(Piece { dweight, dy, x, outputs, inputs, first, destination });
    }
}

fn run(pieces: Vec<Piece>) {
    pieces.into_par_iter().with_max_len(1).for_each(|piece| {
        let Piece { dweight, dy, x, outputs, inputs, first, destination } = piece;
        linear::backward_weight(dweight, dy, x, outputs, inputs, first, destination);
    });
}

/// dweight (C) = the sum of parts (chunks, C), in order.
fn add_up(dweight: &mut [f32], parts: &[f32]) {
    dweight.fill(0.0);
    for part in parts.chunks_exact(dweight.len()) {
        simd::add(dweight, part);
    }
}

/// Rows first.. of attention (R, H·D) from heads (B, K, T, G·D).
fn gather_heads(attention: &mut [f32], heads: &[f32], first: usize, shape: Shape) {
    let Shape { context, head, .. } = shape;
    let width = head.group() * head.head_dim;
    for (row, attention) in attention.chunks_exact_mut(shape.attention).enumerate() {
        let (number, position) = ((first + row) / context, (first + row) % context);
        for (index, to) in attention.chunks_exact_mut(width).enumerate() {
            let start = ((number * head.kv_heads + index) * context + position) * width;
            to.copy_from_slice(&heads[start..start + width]);
        }
    }
}

/// Rows first.. of dqkv (R, (H + 2·K)·D) from dheads (B, K, T, (G + 2)·D).
fn gather_gradients(dqkv: &mut [f32], dheads: &[f32], first: usize, shape: Shape) {
    let Shape { context, head, .. } = shape;
    let (group, d) = (head.group(), head.head_dim);
    let width = (group + 2) * d;
    for (row, dqkv) in dqkv.chunks_exact_mut(shape.qkv).enumerate() {
        let (number, position) = ((first + row) / context, (first + row) % context);
        for index in 0..head.kv_heads {
            let head = attention::Head { index, ..head };
            let start = ((number * head.kv_heads + index) * context + position) * width;
            let (queries, rest) = dheads[start..start + width].split_at(group * d);
            let (key, value) = rest.split_at(d);
            dqkv[head.query(0)..][..group * d].copy_from_slice(queries);
            dqkv[head.key()..][..d].copy_from_slice(key);
            dqkv[head.value()..][..d].copy_from_slice(value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Model;
    use crate::random::Random;

    fn model(tied: bool) -> Model {
        let config = ModelConfig {
            vocab_size: 40,
            hidden_size: 24,
            intermediate_size: 36,
            layers: 2,
            heads: 4,
            kv_heads: 2,
            head_dim: 8,
            context: 80,
            rope_theta: 10_000.0,
            norm_eps: 1e-5,
            tied,
            initializer_range: 0.3,
        };
        let mut model = Model::init(&config, 9).expect("a possible shape");
        // Norms other than 1, so that a forgotten weight shows.
        let mut random = Random::new(10, 0);
        for tensor in model.layout.tensors.iter().filter(|tensor| tensor.shape.len() == 1) {
            for value in &mut model.parameters[tensor.range()] {
                *value += 0.2 * random.normal();
            }
        }
        model
    }

    fn tokens(count: usize) -> Vec<u32> {
        let mut random = Random::new(11, 0);
        (0..count).map(|_| (random.next() % 40) as u32).collect()
    }

    fn parallel<R: Send>(threads: usize, run: impl FnOnce() -> R + Send) -> R {
        rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("threads").install(run)
    }

    #[test]
    fn the_gradient_of_every_tensor_is_that_of_differences() {
        for tied in [false, true] {
            let model = model(tied);
            // 3 · 67 rows: pieces of 32 that cross sequences, with a shorter one at the end; two attention blocks.
            let tokens = tokens(3 * 68);
            let batch = Batch { tokens: &tokens, batch: 3, context: 67 };
            let mut pass = Pass::new(&model.config, 2);
            let mut gradient = vec![f32::NAN; model.parameters.len()];
            parallel(2, || pass.gradient(&model.parameters, &batch, &mut gradient));
            let mut random = Random::new(12, 0);
            for tensor in &model.layout.tensors {
                // Along the gradient of a random half of the tensor the loss must change by that half's norm: a
                // direction in which it changes far more than by its rounding, which a single value does not.
                let mut direction = vec![0.0f64; tensor.elements()];
                for (direction, g) in direction.iter_mut().zip(&gradient[tensor.range()]) {
                    *direction = if random.next().is_multiple_of(2) { f64::from(*g) } else { 0.0 };
                }
                let norm = direction.iter().map(|d| d * d).sum::<f64>().sqrt();
                assert!(norm > 1e-3, "{}: hardly any gradient", tensor.name);
                // A change of 1e-2 by the first derivative: large against the loss's rounding (5e-7 for a loss of 5),
                // small against its bends.
                let step = 1e-2 / norm;
                let mut at = |shift: f64| {
                    let mut moved = model.parameters.clone();
                    for (value, direction) in moved[tensor.range()].iter_mut().zip(&direction) {
                        *value = (f64::from(*value) + shift * step * direction / norm) as f32;
                    }
                    parallel(2, || pass.loss(&moved, &batch))
                };
                let difference = 8.0 * (at(1.0) - at(-1.0)) - (at(2.0) - at(-2.0));
                let numeric = difference / (12.0 * step);
                assert!(
                    (numeric / norm - 1.0).abs() < 1e-3,
                    "{}: gradient {norm}, by differences {numeric}",
                    tensor.name
                );
            }
        }
    }

    #[test]
    fn any_number_of_threads_gives_the_same_bits() {
        let model = model(false);
        let tokens = tokens(5 * 81);
        let batch = Batch { tokens: &tokens, batch: 5, context: 80 };
        let run = |threads| {
            let mut gradient = vec![f32::NAN; model.parameters.len()];
            let mut pass = Pass::new(&model.config, threads);
            let loss = parallel(threads, || pass.gradient(&model.parameters, &batch, &mut gradient));
            (loss, gradient)
        };
        let one = run(1);
        for threads in [2, 3, 5] {
            assert!(one == run(threads), "{threads} threads differ from one");
        }
    }

    #[test]
    fn a_used_pass_gives_the_same_bits_as_a_fresh_one() {
        let model = model(false);
        let tokens = tokens(5 * 81);
        let large = Batch { tokens: &tokens, batch: 5, context: 80 };
        let small = Batch { tokens: &tokens[..2 * 31], batch: 2, context: 30 };
        let run = |pass: &mut Pass, batch| {
            let mut gradient = vec![f32::NAN; model.parameters.len()];
            (parallel(2, || pass.gradient(&model.parameters, batch, &mut gradient)), gradient)
        };
        let mut used = Pass::new(&model.config, 2);
        let first = run(&mut used, &large);
        let second = run(&mut used, &small);
        assert!(second == run(&mut Pass::new(&model.config, 2), &small));
        assert!(first == run(&mut used, &large));
    }
}
