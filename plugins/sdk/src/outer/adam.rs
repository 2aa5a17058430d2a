//! Adam (arXiv 1412.6980) on merged pseudo-gradients, as adaptive federated optimisation does (FedAdam, arXiv 2003.00295).
//!
//! m ← β₁·m + (1 − β₁)·Δ; v ← β₂·v + (1 − β₂)·Δ²; Θ ← Θ − η · m̂ / (√v̂ + ε), m̂ = m / (1 − β₁ᵏ), v̂ = v / (1 − β₂ᵏ), with k = merges of
//! the fragment since the state was zero, this one included (the memo counts them: the state is zero at first, and after a switch of policies). A parameter moves by about η whatever the length of Δ, so η is about as far as an
//! island moves it between two merges, and no share of Δ. The first merges move noise as far as signal, so on short runs this is far behind Nesterov's
//! momentum (EXPERIMENTS.md). State: m, v.

use super::{cooled, sweep};
use crate::bindings::Round;
use crate::config::Config;

/// Adam at one point of its schedule.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Adam {
    /// η / (1 − β₁ᵏ).
    eta: f32,
    /// 1 / √(1 − β₂ᵏ).
    root: f32,
    beta1: f32,
    beta2: f32,
    epsilon: f32,
    /// k.
    merges: u64,
}

impl Adam {
    /// Reads `eta` (default 0.01), `beta1` (default 0.5), `beta2` (default 0.99), `epsilon` (default 1e-8) and `cooldown` (a third of
    /// the tokens).
    pub(super) fn configured(config: &Config, round: &Round, memo: &[u8]) -> Result<Adam, String> {
        let eta = config.number_within("eta", 0.01, 1e-9, 100.0, "between 1e-9 and 100")?;
        let beta1 = config.number_within("beta1", 0.5, 0.0, 0.9999, "at least 0 and below 1 (at most 0.9999)")?;
        let beta2 = config.number_within("beta2", 0.99, 0.0, 0.9999, "at least 0 and below 1 (at most 0.9999)")?;
        let epsilon = config.number_within("epsilon", 1e-8, 1e-20, 1.0, "between 1e-20 and 1")?;
        let cooldown = config.number_within("cooldown", 1.0 / 3.0, 0.0, 1.0, "between 0 and 1")?;
        let merges = memo.first_chunk().map_or(0, |k| u64::from_le_bytes(*k)).saturating_add(1);
        Ok(Adam {
            eta: (eta * cooled(cooldown, round) / (1.0 - power(beta1, merges))) as f32,
            root: (1.0 / (1.0 - power(beta2, merges)).sqrt()) as f32,
            beta1: beta1 as f32,
            beta2: beta2 as f32,
            epsilon: epsilon as f32,
            merges,
        })
    }

    /// k, little-endian.
    pub(super) fn memo(&self) -> Vec<u8> {
        self.merges.to_le_bytes().to_vec()
    }

    pub(super) fn descend(
        &self,
        coefficients: &[f32],
        values: &[Vec<f32>],
        state: &mut [Vec<f32>],
        parameters: &mut [f32],
    ) {
        let Adam { eta, root, beta1, beta2, epsilon, .. } = *self;
        let (fresh1, fresh2) = (1.0 - beta1, 1.0 - beta2);
        sweep(coefficients, values, state, parameters, |delta, mean, square, parameter| {
            *mean = beta1 * *mean + fresh1 * delta;
            // Held to what is finite: the square of a huge Δ must not make the state infinite.
            let sum = beta2 * *square + fresh2 * (delta * delta);
            *square = if sum < f32::MAX { sum } else { f32::MAX };
            *parameter -= eta * (*mean / (square.sqrt() * root + epsilon));
        });
    }
}

/// `base` to the power of `exponent`, by squaring: the same bits everywhere, which a library's power function does not promise.
fn power(base: f64, mut exponent: u64) -> f64 {
    let (mut square, mut product) = (base, 1.0);
    while exponent > 0 {
        if exponent & 1 == 1 {
            product *= square;
        }
        square *= square;
        exponent >>= 1;
    }
    product
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outer::Outer;

    /// Adam of the first merge since the state was zero, or of the one after `merges`.
    fn adam(merges: u64) -> Adam {
        let json = br#"{"outer":"adam","eta":0.5,"beta1":0.5,"beta2":0.75,"epsilon":1e-12}"#;
        let round = Round { index: 0, fragment: 0, version: 1_000, tokens_merged: 0, token_budget: 0 };
        let memo = if merges == 0 { Vec::new() } else { merges.to_le_bytes().to_vec() };
        let adam = Adam::configured(&Config::parse(json, Outer::FIELDS).expect("valid"), &round, &memo).expect("valid");
        assert_eq!(adam.memo(), (merges + 1).to_le_bytes());
        adam
    }

    #[test]
    fn two_steps_by_hand() {
        // 1: m 2, v 4, m̂ 4, v̂ 16: Θ = 10 − 0.5·4/4 = 9.5. 2: m 1 + 1 = 2, v 3 + 1 = 4, m̂ = 2/0.75, v̂ = 4/0.4375:
        // Θ = 9.5 − 0.5 · (8/3) / (2/√0.4375) = 9.5 − (2/3)·√0.4375.
        let (mut state, mut parameters) = (vec![vec![0.0; 35]; 2], vec![10.0; 35]);
        adam(0).descend(&[1.0], &[vec![4.0; 35]], &mut state, &mut parameters);
        assert_eq!((state[0][0], state[1][34], parameters[0], parameters[34]), (2.0, 4.0, 9.5, 9.5));
        adam(1).descend(&[0.5, 0.5], &[vec![3.0; 35], vec![1.0; 35]], &mut state, &mut parameters);
        assert_eq!((state[0][34], state[1][0]), (2.0, 4.0));
        let expected = 9.5 - 2.0 / 3.0 * 0.4375_f32.sqrt();
        assert!((parameters[0] - expected).abs() < 1e-5 && parameters[0] == parameters[34], "{}", parameters[0]);
    }

    #[test]
    fn a_huge_pseudo_gradient_leaves_everything_finite() {
        let (mut state, mut parameters) = (vec![vec![0.0; 33]; 2], vec![0.0; 33]);
        adam(0).descend(&[1.0], &[vec![1e30; 33]], &mut state, &mut parameters);
        assert!(state.iter().flatten().chain(&parameters).all(|value| value.is_finite()));
    }

    #[test]
    fn powers_are_those_of_repeated_products() {
        assert_eq!((power(0.5, 0), power(0.5, 1), power(0.5, 10)), (1.0, 0.5, 1.0 / 1024.0));
        assert_eq!(power(0.9, u64::MAX), 0.0);
    }
}
