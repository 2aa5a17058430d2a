//! Softmax cross-entropy of the next token, in nats, with the gradient in place of the logits.

use super::exponential::exponential;
use super::simd::{dispatched, maximum, sum};

dispatched! {
    /// losses (R) from logits (R, V) and targets (R); each logit x_v becomes weight·(softmax(x)_v − [v = target]).
    pub(crate) fn forward_backward(losses: &mut [f32], logits: &mut [f32], targets: &[u32], vocabulary: usize, weight: f32) {
        for ((loss, logits), &target) in losses.iter_mut().zip(logits.chunks_exact_mut(vocabulary)).zip(targets) {
            let target = target as usize;
            let top = maximum(logits);
            let above = top - logits[target];
            for x in logits.iter_mut() {
                *x = exponential(*x - top);
            }
            let total = sum(logits);
            // −ln softmax = ln Σ eˣ − x_target; one logarithm a row is not worth a vector.
            *loss = total.ln() + above;
            let factor = weight / total;
            for x in logits.iter_mut() {
                *x *= factor;
            }
            logits[target] -= weight;
        }
    }
}
