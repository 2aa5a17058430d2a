//! Forward: from tokens to the residual stream after the last layer.

use rayon::prelude::*;

use super::{Activations, Pass, Shape, own, sequence};
use crate::cpu::matrix::Destination;
use crate::cpu::parts::{LayerParts, Parts};
use crate::cpu::rope::Turn;
use crate::cpu::{attention, embedding, linear, rms_norm, swiglu};

impl Pass {
    /// From tokens to the residual stream after the last layer.
    pub(super) fn forward(&mut self, weights: &Parts<&[f32]>, shape: Shape) {
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
