//! Backward: from the gradient of the stream after the last layer to those of all parameters before it.

use rayon::prelude::*;

use super::weight::{Pieces, add_up};
use super::{Pass, Shape, TOKENS_A_PIECE, own, sequence};
use crate::cpu::matrix::Destination;
use crate::cpu::parts::{LayerParts, Parts};
use crate::cpu::rope::Turn;
use crate::cpu::{attention, embedding, linear, rms_norm, swiglu};

impl Pass {
    /// From the gradient of the stream after the last layer to all others.
    pub(super) fn backward(&mut self, weights: &Parts<&[f32]>, gradients: Parts<&mut [f32]>, shape: Shape) {
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
        let mut pieces = Pieces::default();
        let mut add = |dweight, dy, x, inputs| pieces.add(dweight, dy, x, inputs, Destination::Overwrite);
        // The largest first, so that the last pieces to be taken are small ones.
        add(gradients.gate_up, &self.dgate_up, &kept.norm2, channels);
        add(gradients.down, &self.dstream, &kept.product, inner);
        add(gradients.qkv, &self.dqkv, &kept.norm1, channels);
        add(gradients.output, &self.dmiddle, &kept.attention, shape.attention);
        pieces.run();
        add_up(gradients.norm1, &self.dnorm1);
        add_up(gradients.norm2, &self.dnorm2);
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
