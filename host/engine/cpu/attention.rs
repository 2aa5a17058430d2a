//! Causal grouped-query attention of one sequence and one key/value head, in blocks of queries.
//!
//! For query row i: p = softmax(q_i·k_j/√D) over j ≤ i, o_i = Σ p_j·v_j. A block of [`BLOCK`] queries meets only the
//! keys that it may see, so no T×T matrix exists: scratch is two BLOCK×T panels a thread. Forward keeps the logarithm
//! of each row's softmax denominator, backward recomputes the probabilities from it (Dao et al., FlashAttention, 2022).
//!
//! Backward: dv_j = Σ_i p_ij·do_i; with dp_ij = do_i·v_j and δ_i = do_i·o_i, ds_ij = p_ij·(dp_ij − δ_i)/√D;
//! dq_i = Σ_j ds_ij·k_j and dk_j = Σ_i ds_ij·q_i. The G query heads of a key/value head add up in order.

use super::exponential::exponential;
use super::matrix::{Destination, Matrix, MatrixMut, multiply};
use super::simd::{dispatched, dot, maximum, sum};

/// Queries a block. Larger blocks make larger matrix products, smaller ones waste less above the diagonal.
const BLOCK: usize = 64;

/// Which columns of a row of queries, keys and values belong to one key/value head.
#[derive(Clone, Copy)]
pub(crate) struct Head {
    /// This key/value head's number, below `kv_heads`.
    pub(crate) index: usize,
    /// H
    pub(crate) heads: usize,
    /// K
    pub(crate) kv_heads: usize,
    /// D
    pub(crate) head_dim: usize,
}

impl Head {
    /// G
    pub(crate) fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// Width of a row of queries, keys and values.
    pub(crate) fn width(&self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.head_dim
    }

    /// First column of query head `member` (below G) of this group.
    pub(crate) fn query(&self, member: usize) -> usize {
        (self.index * self.group() + member) * self.head_dim
    }

    /// First column of the key.
    pub(crate) fn key(&self) -> usize {
        (self.heads + self.index) * self.head_dim
    }

    /// First column of the value.
    pub(crate) fn value(&self) -> usize {
        (self.heads + self.kv_heads + self.index) * self.head_dim
    }
}

/// What a thread needs beside inputs and outputs; grows to the longest sequence seen.
#[derive(Default)]
pub(crate) struct Scratch {
    /// (BLOCK, T): scores, then probabilities.
    probabilities: Vec<f32>,
    /// (BLOCK, T): gradients of the probabilities, then of the scores.
    gradients: Vec<f32>,
}

impl Scratch {
    fn fit(&mut self, positions: usize) {
        let values = BLOCK.min(positions) * positions;
        if self.probabilities.len() < values {
            self.probabilities.resize(values, 0.0);
            self.gradients.resize(values, 0.0);
        }
    }
}

/// out (T, G·D) and log_sums (G, T), from qkv (T, (H + 2·K)·D) of one sequence.
pub(crate) fn forward(out: &mut [f32], log_sums: &mut [f32], qkv: &[f32], head: Head, scratch: &mut Scratch) {
    let (width, group, d) = (head.width(), head.group(), head.head_dim);
    let positions = qkv.len() / width;
    scratch.fit(positions);
    for member in 0..group {
        for first in (0..positions).step_by(BLOCK) {
            let rows = BLOCK.min(positions - first);
            let keys = first + rows;
            let p = &mut scratch.probabilities[..rows * keys];
            scores(p, qkv, head, member, first, rows);
            let log_sums = &mut log_sums[member * positions + first..][..rows];
            softmax(p, log_sums, keys, first, scale(d));
            multiply(
                MatrixMut::strided(&mut out[first * group * d + member * d..], rows, d, group * d),
                Matrix::new(p, rows, keys),
                Matrix::strided(&qkv[head.value()..], keys, d, width),
                Destination::Overwrite,
            );
        }
    }
}

/// dqkv (T, (G + 2)·D): gradients of the group's queries, the key and the value, side by side; from qkv
/// (T, (H + 2·K)·D), log_sums (G, T), and out and dout (T, H·D) of all heads.
pub(crate) fn backward(
    dqkv: &mut [f32],
    qkv: &[f32],
    log_sums: &[f32],
    out: &[f32],
    dout: &[f32],
    head: Head,
    scratch: &mut Scratch,
) {
    let (width, group, d) = (head.width(), head.group(), head.head_dim);
    let out_width = head.heads * d;
    let positions = qkv.len() / width;
    let dwidth = (group + 2) * d;
    scratch.fit(positions);
    // Keys and values add up over blocks and members.
    for row in dqkv.chunks_exact_mut(dwidth) {
        row[group * d..].fill(0.0);
    }
    for member in 0..group {
        for first in (0..positions).step_by(BLOCK) {
            let rows = BLOCK.min(positions - first);
            let keys = first + rows;
            let p = &mut scratch.probabilities[..rows * keys];
            let ds = &mut scratch.gradients[..rows * keys];
            let start = first * out_width + head.query(member);
            let (block_out, block_dout) = (&out[start..], &dout[start..]);
            scores(p, qkv, head, member, first, rows);
            multiply(
                MatrixMut::new(ds, rows, keys),
                Matrix::strided(block_dout, rows, d, out_width),
                Matrix::strided(&qkv[head.value()..], keys, d, width).transposed(),
                Destination::Overwrite,
            );
            let log_sums = &log_sums[member * positions + first..][..rows];
            let mut deltas = [0.0; BLOCK];
            row_dots(&mut deltas[..rows], block_dout, block_out, out_width, d);
            softmax_backward(ds, p, log_sums, &deltas, keys, first, scale(d));
            // dq (rows, D)
            multiply(
                MatrixMut::strided(&mut dqkv[first * dwidth + member * d..], rows, d, dwidth),
                Matrix::new(ds, rows, keys),
                Matrix::strided(&qkv[head.key()..], keys, d, width),
                Destination::Overwrite,
            );
            // dk (keys, D)
            multiply(
                MatrixMut::strided(&mut dqkv[group * d..], keys, d, dwidth),
                Matrix::new(ds, rows, keys).transposed(),
                Matrix::strided(&qkv[first * width + head.query(member)..], rows, d, width),
                Destination::Add,
            );
            // dv (keys, D)
            multiply(
                MatrixMut::strided(&mut dqkv[(group + 1) * d..], keys, d, dwidth),
                Matrix::new(p, rows, keys).transposed(),
                Matrix::strided(block_dout, rows, d, out_width),
                Destination::Add,
            );
        }
    }
}

/// 1/√D
pub(crate) fn scale(head_dim: usize) -> f32 {
    1.0 / (head_dim as f32).sqrt()
}

/// s (rows, first + rows) = q·kᵀ for queries first..first + rows.
fn scores(s: &mut [f32], qkv: &[f32], head: Head, member: usize, first: usize, rows: usize) {
    let width = head.width();
    let keys = first + rows;
    multiply(
        MatrixMut::new(s, rows, keys),
        Matrix::strided(&qkv[first * width + head.query(member)..], rows, head.head_dim, width),
        Matrix::strided(&qkv[head.key()..], keys, head.head_dim, width).transposed(),
        Destination::Overwrite,
    );
}

dispatched! {
    /// Scores (R, keys) become probabilities, 0 above the diagonal, and log_sums (R) are set: ln Σ exp(scale·s).
    /// Row r may see the first first + r + 1 keys.
    pub(crate) fn softmax(s: &mut [f32], log_sums: &mut [f32], keys: usize, first: usize, scale: f32) {
        for (row, (s, log_sum)) in s.chunks_exact_mut(keys).zip(log_sums).enumerate() {
            let (seen, hidden) = s.split_at_mut(first + row + 1);
            let top = maximum(seen) * scale;
            for s in seen.iter_mut() {
                *s = exponential(*s * scale - top);
            }
            let total = sum(seen);
            *log_sum = total.ln() + top;
            let inverse = 1.0 / total;
            for p in seen.iter_mut() {
                *p *= inverse;
            }
            hidden.fill(0.0);
        }
    }

    /// Scores s (R, keys) become probabilities again, and their gradients dp (R, keys) those of the scores.
    fn softmax_backward(
        dp: &mut [f32],
        s: &mut [f32],
        log_sums: &[f32],
        deltas: &[f32],
        keys: usize,
        first: usize,
        scale: f32,
    ) {
        let rows = dp.chunks_exact_mut(keys).zip(s.chunks_exact_mut(keys)).zip(log_sums).zip(deltas);
        for (row, (((dp, s), log_sum), delta)) in rows.enumerate() {
            let (seen, hidden) = s.split_at_mut(first + row + 1);
            let (dseen, dhidden) = dp.split_at_mut(first + row + 1);
            for (s, dp) in seen.iter_mut().zip(dseen) {
                *s = exponential(*s * scale - log_sum);
                *dp = *s * (*dp - delta) * scale;
            }
            hidden.fill(0.0);
            dhidden.fill(0.0);
        }
    }

    /// dots (R): row r of a times row r of b, each `width` long, rows `stride` apart.
    fn row_dots(dots: &mut [f32], a: &[f32], b: &[f32], stride: usize, width: usize) {
        for (row, to) in dots.iter_mut().enumerate() {
            *to = dot(&a[row * stride..][..width], &b[row * stride..][..width]);
        }
    }
}
