//! Gradients of weights: products over all rows, cut by output channel, so that no sum is split between threads.

use rayon::prelude::*;

use super::CHANNELS_A_PIECE;
use crate::cpu::matrix::Destination;
use crate::cpu::{linear, simd};

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

/// Pieces of one or more weights' gradients, to be computed together.
#[derive(Default)]
pub(super) struct Pieces<'a> {
    list: Vec<Piece<'a>>,
}

impl<'a> Pieces<'a> {
    /// Adds dweight (O, I) = or += dyᵀ·x of dy (R, O) and x (R, I).
    pub(super) fn add(
        &mut self,
        dweight: &'a mut [f32],
        dy: &'a [f32],
        x: &'a [f32],
        inputs: usize,
        destination: Destination,
    ) {
        let outputs = dweight.len() / inputs;
        for (number, dweight) in dweight.chunks_mut(CHANNELS_A_PIECE * inputs).enumerate() {
            let first = number * CHANNELS_A_PIECE;
            self.list.push(Piece { dweight, dy, x, outputs, inputs, first, destination });
        }
    }

    /// Computes them all.
    pub(super) fn run(self) {
        self.list.into_par_iter().with_max_len(1).for_each(|piece| {
            let Piece { dweight, dy, x, outputs, inputs, first, destination } = piece;
            linear::backward_weight(dweight, dy, x, outputs, inputs, first, destination);
        });
    }
}

/// dweight (C) = the sum of parts (chunks, C), in order.
pub(super) fn add_up(dweight: &mut [f32], parts: &[f32]) {
    dweight.fill(0.0);
    for part in parts.chunks_exact(dweight.len()) {
        simd::add(dweight, part);
    }
}
