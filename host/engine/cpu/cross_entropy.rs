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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::finite_difference::{draws, hold};

    const VOCABULARY: usize = 37;

    fn losses(logits: &[f32], targets: &[u32]) -> (Vec<f32>, Vec<f32>) {
        let (mut losses, mut logits) = (vec![f32::NAN; targets.len()], logits.to_vec());
        forward_backward(&mut losses, &mut logits, targets, VOCABULARY, 0.25);
        (losses, logits)
    }

    #[test]
    fn gradients_are_those_of_differences() {
        let (logits, targets) = (draws(3 * VOCABULARY, 1), [0, 36, 17]);
        let (_, gradient) = losses(&logits, &targets);
        hold("logits", &logits, &gradient, |logits| {
            losses(logits, &targets).0.iter().map(|loss| 0.25 * f64::from(*loss)).sum()
        });
    }

    #[test]
    fn equal_logits_cost_the_logarithm_of_the_vocabulary() {
        for level in [0.0, 1e4, -1e4] {
            let (losses, _) = losses(&[level; VOCABULARY], &[5]);
            // Rounding of ln 37 = 3.6.
            assert!((losses[0] - (VOCABULARY as f32).ln()).abs() < 1e-6, "{losses:?} at {level}");
        }
    }

    #[test]
    fn a_logit_that_is_not_a_number_is_not_hidden() {
        let mut logits = [0.0; VOCABULARY];
        logits[20] = f32::NAN;
        let (losses, _) = losses(&logits, &[5]);
        assert!(losses[0].is_nan());
    }
}
