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
use super::simd::{LANES, dispatched, dot, maximum, sum};

/// Queries a block. Larger blocks make larger matrix products, smaller ones waste less above the diagonal.
pub(crate) const BLOCK: usize = 64;

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
    /// Both panels, `values` long.
    fn panels(&mut self, values: usize) -> (&mut [f32], &mut [f32]) {
        if self.probabilities.len() < values {
            self.probabilities.resize(values, 0.0);
            self.gradients.resize(values, 0.0);
        }
        (&mut self.probabilities[..values], &mut self.gradients[..values])
    }
}

/// out (T, G·D) and log_sums (G, T), from qkv (T, (H + 2·K)·D) of one sequence.
pub(crate) fn forward(out: &mut [f32], log_sums: &mut [f32], qkv: &[f32], head: Head, scratch: &mut Scratch) {
    let (width, group, d) = (head.width(), head.group(), head.head_dim);
    let positions = qkv.len() / width;
    let keys = Rows { data: &qkv[head.key()..], stride: width };
    let values = Rows { data: &qkv[head.value()..], stride: width };
    for member in 0..group {
        for first in (0..positions).step_by(BLOCK) {
            let rows = BLOCK.min(positions - first);
            let queries = Rows { data: &qkv[first * width + head.query(member)..], stride: width };
            let out = &mut out[first * group * d + member * d..];
            let log_sums = &mut log_sums[member * positions + first..][..rows];
            block(out, group * d, log_sums, queries, keys, values, first, d, scratch);
        }
    }
}

/// The same for new positions after a cache: out (N, H·D) of all heads, from the N new rows of qkv
/// (N, (H + 2·K)·D), the first of which is at position `first`, and from keys and values (first + N, K·D), theirs
/// included. N is at most [`BLOCK`].
pub(crate) fn forward_cached(
    out: &mut [f32],
    qkv: &[f32],
    keys: &[f32],
    values: &[f32],
    head: Head,
    first: usize,
    scratch: &mut Scratch,
) {
    let (width, d) = (head.width(), head.head_dim);
    let (out_width, stride) = (head.heads * d, head.kv_heads * d);
    let mut log_sums = [0.0; BLOCK];
    let rows = qkv.len() / width;
    for index in 0..head.kv_heads {
        let head = Head { index, ..head };
        let keys = Rows { data: &keys[index * d..], stride };
        let values = Rows { data: &values[index * d..], stride };
        for member in 0..head.group() {
            let queries = Rows { data: &qkv[head.query(member)..], stride: width };
            let out = &mut out[head.query(member)..];
            block(out, out_width, &mut log_sums[..rows], queries, keys, values, first, d, scratch);
        }
    }
}

/// Rows of one head inside wider rows.
#[derive(Clone, Copy)]
struct Rows<'a> {
    data: &'a [f32],
    stride: usize,
}

impl<'a> Rows<'a> {
    fn matrix(self, rows: usize, head_dim: usize) -> Matrix<'a> {
        Matrix::strided(self.data, rows, head_dim, self.stride)
    }
}

/// One block of queries, the first of which is at position `first` and sees `first` + 1 keys: out (rows, D) with rows
/// `out_stride` apart, and log_sums (rows).
#[allow(clippy::too_many_arguments)]
fn block(
    out: &mut [f32],
    out_stride: usize,
    log_sums: &mut [f32],
    queries: Rows,
    keys: Rows,
    values: Rows,
    first: usize,
    d: usize,
    scratch: &mut Scratch,
) {
    let rows = log_sums.len();
    let seen = first + rows;
    let (p, _) = scratch.panels(rows * seen);
    scores(p, queries, keys, first, rows, d);
    softmax(p, log_sums, seen, first, scale(d));
    multiply(
        MatrixMut::strided(out, rows, d, out_stride),
        Matrix::new(p, rows, seen),
        values.matrix(seen, d),
        Destination::Overwrite,
    );
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
    let keys = Rows { data: &qkv[head.key()..], stride: width };
    let values = Rows { data: &qkv[head.value()..], stride: width };
    // Keys and values add up over blocks and members.
    for row in dqkv.chunks_exact_mut(dwidth) {
        row[group * d..].fill(0.0);
    }
    for member in 0..group {
        for first in (0..positions).step_by(BLOCK) {
            let rows = BLOCK.min(positions - first);
            let seen = first + rows;
            let (p, ds) = scratch.panels(rows * seen);
            let queries = Rows { data: &qkv[first * width + head.query(member)..], stride: width };
            let start = first * out_width + head.query(member);
            let (block_out, block_dout) = (&out[start..], &dout[start..]);
            scores(p, queries, keys, first, rows, d);
            multiply(
                MatrixMut::new(ds, rows, seen),
                Matrix::strided(block_dout, rows, d, out_width),
                values.matrix(seen, d).transposed(),
                Destination::Overwrite,
            );
            let log_sums = &log_sums[member * positions + first..][..rows];
            let mut deltas = [0.0; BLOCK];
            row_dots(&mut deltas[..rows], block_dout, block_out, out_width, d);
            softmax_backward(ds, p, log_sums, &deltas, seen, first, scale(d));
            // dq (rows, D)
            multiply(
                MatrixMut::strided(&mut dqkv[first * dwidth + member * d..], rows, d, dwidth),
                Matrix::new(ds, rows, seen),
                keys.matrix(seen, d),
                Destination::Overwrite,
            );
            // dk (keys, D)
            multiply(
                MatrixMut::strided(&mut dqkv[group * d..], seen, d, dwidth),
                Matrix::new(ds, rows, seen).transposed(),
                queries.matrix(rows, d),
                Destination::Add,
            );
            // dv (keys, D)
            multiply(
                MatrixMut::strided(&mut dqkv[(group + 1) * d..], seen, d, dwidth),
                Matrix::new(p, rows, seen).transposed(),
                Matrix::strided(block_dout, rows, d, out_width),
                Destination::Add,
            );
        }
    }
}

/// 1/√D
fn scale(head_dim: usize) -> f32 {
    1.0 / (head_dim as f32).sqrt()
}

/// s (rows, first + rows) = q·kᵀ.
fn scores(s: &mut [f32], queries: Rows, keys: Rows, first: usize, rows: usize, d: usize) {
    let seen = first + rows;
    multiply(
        MatrixMut::new(s, rows, seen),
        queries.matrix(rows, d),
        keys.matrix(seen, d).transposed(),
        Destination::Overwrite,
    );
}

/// `values` rounded up to whole vectors, as far as there are `all`.
#[inline(always)]
fn whole_vectors(values: usize, all: usize) -> usize {
    values.next_multiple_of(LANES).min(all)
}

dispatched! {
    /// Scores (R, keys) become probabilities, 0 above the diagonal, and log_sums (R) are set: ln Σ exp(scale·s).
    /// Row r may see the first first + r + 1 keys.
    fn softmax(s: &mut [f32], log_sums: &mut [f32], keys: usize, first: usize, scale: f32) {
        for (row, (s, log_sum)) in s.chunks_exact_mut(keys).zip(log_sums).enumerate() {
            let seen = first + row + 1;
            // Whole vectors: what they reach above the diagonal is out of the sum and 0 in the end.
            let (s, hidden) = s.split_at_mut(whole_vectors(seen, keys));
            s[seen..].fill(f32::NEG_INFINITY);
            let top = maximum(s) * scale;
            for s in s.iter_mut() {
                *s = exponential(*s * scale - top);
            }
            s[seen..].fill(0.0);
            let total = sum(s);
            *log_sum = total.ln() + top;
            let inverse = 1.0 / total;
            for p in s.iter_mut() {
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
        for (row, (((dp, s), &log_sum), &delta)) in rows.enumerate() {
            let seen = first + row + 1;
            let whole = whole_vectors(seen, keys);
            // Two loops: with both arrays written in one, LLVM does not vectorise.
            for s in &mut s[..whole] {
                *s = exponential(*s * scale - log_sum);
            }
            for (dp, p) in dp[..whole].iter_mut().zip(s.iter()) {
                *dp = p * (*dp - delta) * scale;
            }
            s[seen..].fill(0.0);
            dp[seen..].fill(0.0);
        }
    }

    /// dots (R): row r of a times row r of b, each `width` long, rows `stride` apart.
    fn row_dots(dots: &mut [f32], a: &[f32], b: &[f32], stride: usize, width: usize) {
        for (row, to) in dots.iter_mut().enumerate() {
            *to = dot(&a[row * stride..][..width], &b[row * stride..][..width]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::finite_difference::{draws, hold, weighted};

    /// Two query heads share each of two key/value heads.
    const HEADS: Head = Head { index: 0, heads: 4, kv_heads: 2, head_dim: 6 };

    /// All heads' outputs (T, H·D) and log_sums (K, G, T).
    fn outputs(qkv: &[f32]) -> (Vec<f32>, Vec<f32>) {
        let positions = qkv.len() / HEADS.width();
        let width = HEADS.group() * HEADS.head_dim;
        let mut scratch = Scratch::default();
        let mut all = vec![f32::NAN; positions * HEADS.heads * HEADS.head_dim];
        let mut log_sums = vec![f32::NAN; HEADS.heads * positions];
        for (index, log_sums) in log_sums.chunks_exact_mut(HEADS.group() * positions).enumerate() {
            let mut out = vec![f32::NAN; positions * width];
            forward(&mut out, log_sums, qkv, Head { index, ..HEADS }, &mut scratch);
            for (all, out) in all.chunks_exact_mut(HEADS.kv_heads * width).zip(out.chunks_exact(width)) {
                all[index * width..][..width].copy_from_slice(out);
            }
        }
        (all, log_sums)
    }

    /// Softmax attention as its definition says, in f64.
    fn reference(qkv: &[f32]) -> Vec<f64> {
        let (width, d) = (HEADS.width(), HEADS.head_dim);
        let at = |t: usize, column: usize| f64::from(qkv[t * width + column]);
        let mut all = Vec::new();
        for t in 0..qkv.len() / width {
            for query in 0..HEADS.heads {
                let head = Head { index: query / HEADS.group(), ..HEADS };
                let weights: Vec<f64> = (0..=t)
                    .map(|j| (0..d).map(|c| at(t, query * d + c) * at(j, head.key() + c)).sum::<f64>())
                    .map(|score| (score / (d as f64).sqrt()).exp())
                    .collect();
                let total: f64 = weights.iter().sum();
                for c in 0..d {
                    all.push((0..=t).map(|j| weights[j] * at(j, head.value() + c)).sum::<f64>() / total);
                }
            }
        }
        all
    }

    #[test]
    fn it_is_what_the_definition_says_over_block_borders() {
        for positions in [1, BLOCK - 1, BLOCK, 2 * BLOCK + 5] {
            let qkv = draws(positions * HEADS.width(), 3);
            for (place, (found, expected)) in outputs(&qkv).0.iter().zip(reference(&qkv)).enumerate() {
                // Weighted means of values near 1: some roundings of 6e-8 each, and of scores up to about 10.
                assert!((f64::from(*found) - expected).abs() < 3e-6, "{found} {expected} at {place} of {positions}");
            }
        }
    }

    #[test]
    fn the_future_is_not_seen() {
        let positions = BLOCK + 9;
        let mut qkv = draws(positions * HEADS.width(), 3);
        let (before, _) = outputs(&qkv);
        let border = 20;
        qkv[border * HEADS.width()..].fill(1e6);
        let (after, _) = outputs(&qkv);
        let seen = border * HEADS.heads * HEADS.head_dim;
        assert_eq!(before[..seen], after[..seen]);
    }

    #[test]
    fn gradients_are_those_of_differences() {
        let positions = BLOCK + 3;
        let (width, d, group) = (HEADS.width(), HEADS.head_dim, HEADS.group());
        let qkv = draws(positions * width, 1);
        let (out, log_sums) = outputs(&qkv);
        let dout = draws(out.len(), 2);
        let mut dqkv = vec![f32::NAN; qkv.len()];
        let mut scratch = Scratch::default();
        for (index, log_sums) in log_sums.chunks_exact(group * positions).enumerate() {
            let head = Head { index, ..HEADS };
            let mut part = vec![f32::NAN; positions * (group + 2) * d];
            backward(&mut part, &qkv, log_sums, &out, &dout, head, &mut scratch);
            for (to, from) in dqkv.chunks_exact_mut(width).zip(part.chunks_exact((group + 2) * d)) {
                to[head.query(0)..][..group * d].copy_from_slice(&from[..group * d]);
                to[head.key()..][..d].copy_from_slice(&from[group * d..][..d]);
                to[head.value()..][..d].copy_from_slice(&from[(group + 1) * d..]);
            }
        }
        hold("queries, keys and values", &qkv, &dqkv, |qkv| weighted(&outputs(qkv).0, &dout));
    }

    #[test]
    fn a_cache_continues_where_the_whole_sequence_would() {
        let (positions, cached) = (BLOCK + 20, BLOCK + 3);
        let (width, d) = (HEADS.width(), HEADS.head_dim);
        let qkv = draws(positions * width, 4);
        let (all, _) = outputs(&qkv);
        let column = |start: usize| -> Vec<f32> {
            qkv.chunks_exact(width).flat_map(|row| row[start..start + HEADS.kv_heads * d].to_vec()).collect()
        };
        let mut out = vec![f32::NAN; (positions - cached) * HEADS.heads * d];
        let (keys, values) = (column(HEADS.key()), column(HEADS.value()));
        forward_cached(&mut out, &qkv[cached * width..], &keys, &values, HEADS, cached, &mut Scratch::default());
        for (found, expected) in out.iter().zip(&all[cached * HEADS.heads * d..]) {
            // Blocks of other sizes add up in another order.
            assert!((found - expected).abs() < 1e-6, "{found} {expected}");
        }
    }
}
