//! Delayed Nesterov (Async Local-SGD, arXiv 2401.09135): momentum that is renewed every N merges only.
//!
//! Every merge adds Δ to a sum. Every N-th one renews the momentum by the mean of the sum and empties it: m ← μ·m + sum / N, sum ← 0. Each merge moves
//! Θ ← Θ − η·(Δ + a·μ·m), a = N·(1 − s) + s at a renewal and s in between, so that the weight of the momentum over N merges is N whatever
//! the spread s.
//! It is the paper's rule with ε = N·η and c = s / N. There an update comes from one of N workers and counts 1/N; our Δ is the mean of all islands of its
//! round, and counts in full. With N = 1 this is Nesterov's momentum. State: m, sum.

use super::{Nesterov, sweep};
use crate::bindings::Round;
use crate::config::Config;

/// Delayed Nesterov at one point of its schedule.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Delayed {
    eta: f32,
    /// μ of this round.
    momentum: f32,
    /// a·μ.
    pull: f32,
    /// 1 / N where this merge renews the momentum.
    renewal: Option<f32>,
}

impl Delayed {
    /// Reads `eta`, `momentum`, `warmup` and `cooldown` as [`Nesterov::configured`] does, `period` (N, default 2) and `spread` (s, default 0:
    /// momentum moves the parameters at renewals only).
    pub(super) fn configured(config: &Config, round: &Round) -> Result<Delayed, String> {
        let nesterov = Nesterov::configured(config, round)?;
        let period = config.number_within("period", 2.0, 1.0, 1_000.0, "a whole number between 1 and 1000")?;
        if period != period.trunc() {
            return Err("configuration: field \"period\" must be a whole number between 1 and 1000".into());
        }
        let spread = config.number_within("spread", 0.0, 0.0, 1.0, "between 0 and 1")?;
        let renews = round.version.saturating_add(1).is_multiple_of(period as u64);
        let weight = if renews { period * (1.0 - spread) + spread } else { spread };
        Ok(Delayed {
            eta: nesterov.eta(),
            momentum: nesterov.momentum(),
            pull: (weight * f64::from(nesterov.momentum())) as f32,
            renewal: renews.then_some((1.0 / period) as f32),
        })
    }

    pub(super) fn descend(
        &self,
        coefficients: &[f32],
        values: &[Vec<f32>],
        state: &mut [Vec<f32>],
        parameters: &mut [f32],
    ) {
        let Delayed { eta, momentum, pull, .. } = *self;
        match self.renewal {
            Some(share) => sweep(coefficients, values, state, parameters, |delta, buffer, sum, parameter| {
                *buffer = momentum * *buffer + share * (*sum + delta);
                *sum = 0.0;
                *parameter -= eta * (delta + pull * *buffer);
            }),
            None => sweep(coefficients, values, state, parameters, |delta, buffer, sum, parameter| {
                *sum += delta;
                *parameter -= eta * (delta + pull * *buffer);
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outer::Outer;

    /// Parameters, momentum and sum after Δ = 1, 2, 3, 4.
    fn run(json: &str) -> Vec<[f32; 3]> {
        let config = Config::parse(json.as_bytes(), Outer::FIELDS).expect(json);
        let (mut state, mut parameters) = (vec![vec![0.0; 37]; 2], vec![0.0; 37]);
        let merge = |version: u64| {
            let round = Round { index: 0, fragment: 0, version, tokens_merged: 0, token_budget: 0 };
            let delta = vec![version as f32 + 1.0; 37];
            let outer = Outer::configured(&config, &round, b"").expect(json);
            outer.descend(&[1.0], &[delta], &mut state, &mut parameters);
            assert_eq!(parameters[0], parameters[36]);
            [parameters[0], state[0][36], if state.len() > 1 { state[1][0] } else { 0.0 }]
        };
        (0..4).map(merge).collect()
    }

    fn parameters(run: &[[f32; 3]]) -> Vec<f32> {
        run.iter().map(|[parameter, _, _]| *parameter).collect()
    }

    #[test]
    fn four_merges_by_hand_with_a_period_of_two() {
        // μ 0.5, η 1. 1: −1. 2: m = 3/2, Θ −= 2 + 2·0.5·1.5. 3: Θ −= 3. 4: m = 0.75 + 7/2 = 4.25, Θ −= 4 + 4.25.
        let json =
            r#"{"outer":"delayed-nesterov","eta":1,"momentum":0.5,"warmup":0,"period":2,"spread":0,"cooldown":0}"#;
        assert_eq!(run(json), [[-1.0, 0.0, 1.0], [-4.5, 1.5, 0.0], [-7.5, 1.5, 3.0], [-15.75, 4.25, 0.0]]);
        // Spread evenly: Θ −= Δ + 0.5·m each time.
        let even =
            r#"{"outer":"delayed-nesterov","eta":1,"momentum":0.5,"warmup":0,"period":2,"spread":1,"cooldown":0}"#;
        assert_eq!(parameters(&run(even)), [-1.0, -3.75, -7.5, -13.625]);
    }

    #[test]
    fn with_a_period_of_one_it_is_nesterov() {
        let rest = r#""eta":1,"momentum":0.5,"warmup":1,"cooldown":0"#;
        let delayed = run(&format!(r#"{{"outer":"delayed-nesterov","period":1,{rest}}}"#));
        let nesterov = run(&format!(r#"{{"outer":"nesterov",{rest}}}"#));
        assert_eq!(parameters(&delayed), parameters(&nesterov));
    }
}
