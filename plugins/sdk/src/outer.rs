//! The outer optimiser: what the global model does with a merged pseudo-gradient.
//!
//! SGD with Nesterov momentum as in DiLoCo (arXiv 2311.08105): buf ← μ·buf + Δ; Θ ← Θ − η·(Δ + μ·buf). The momentum warms up
//! with the merges of its fragment, μₖ = min(μ_max, k / (k + c)) with k = merges, this one included: few merges with correlated
//! pseudo-gradients over-drive a constant 0.9, while later 0.9 is what helps.
//!
//! The step cools down over the last share d of the token budget, linearly from η to η · min(1, 30 / k). Long outer steps learn faster, and their noise
//! is what the committed model is behind by at the end; but a fragment that was merged a few times only still has its way to go, and there a
//! shorter step costs more than the noise.
//!
//! [`Outer`] offers others beside it, by name; they cool down in the same way.

mod adam;
mod choice;
mod delayed;

pub use adam::Adam;
pub use choice::Outer;
pub use delayed::Delayed;

use crate::LANES;
use crate::bindings::Round;
use crate::config::Config;
use crate::vector::{lanes_mut, weighted_lanes, weighted_value};

/// Merges of a fragment from which on its noise is worth settling.
const SETTLED_MERGES: f64 = 30.0;

/// SGD with Nesterov momentum, at one point of its schedule. Plain SGD where the momentum is 0: then it needs no state.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Nesterov {
    /// Outer learning rate η.
    eta: f32,
    /// Momentum μ of this round.
    momentum: f32,
    /// Whether some round of this schedule has momentum, so that the buffer exists in all.
    buffered: bool,
}

impl Nesterov {
    /// The fields that [`configured`](Nesterov::configured) reads, for [`Config::parse`].
    pub const FIELDS: &'static [&'static str] = &["eta", "momentum", "warmup", "cooldown"];

    /// Reads `eta` (default 0.7), `momentum` (μ_max, default 0.9; 0 is plain SGD), `warmup` (c, default 10; 0 is constant
    /// momentum) and `cooldown` (d, default a third of the tokens; 0 is constant η), for this round.
    pub fn configured(config: &Config, round: &Round) -> Result<Nesterov, String> {
        let eta = config.number_within("eta", 0.7, 1e-6, 100.0, "between 1e-6 and 100")?;
        let momentum = config.number_within("momentum", 0.9, 0.0, 0.9999, "at least 0 and below 1 (at most 0.9999)")?;
        let warmup = config.number_within("warmup", 10.0, 0.0, 1e9, "between 0 and 1e9 merges")?;
        let cooldown = config.number_within("cooldown", 1.0 / 3.0, 0.0, 1.0, "between 0 and 1")?;
        Ok(Nesterov::new(eta * cooled(cooldown, round), momentum, warmup, round.version))
    }

    /// The fields that [`plain`](Nesterov::plain) reads, for [`Config::parse`].
    pub const PLAIN_FIELDS: &'static [&'static str] = &["eta", "cooldown"];

    /// A step without momentum, and so without state: reads `eta`, by default `eta_default`, and `cooldown`, as [`configured`](Nesterov::configured) does.
    pub fn plain(config: &Config, eta_default: f64, round: &Round) -> Result<Nesterov, String> {
        let eta = config.number_within("eta", eta_default, 1e-6, 100.0, "between 1e-6 and 100")?;
        let cooldown = config.number_within("cooldown", 1.0 / 3.0, 0.0, 1.0, "between 0 and 1")?;
        Ok(Nesterov::new(eta * cooled(cooldown, round), 0.0, 0.0, round.version))
    }

    /// η, μ_max and c as they are, for the fragment's merge number `version` + 1.
    pub fn new(eta: f64, momentum: f64, warmup: f64, version: u64) -> Nesterov {
        let merges = version as f64 + 1.0;
        let warm = (merges / (merges + warmup)).min(momentum);
        Nesterov { eta: eta as f32, momentum: warm as f32, buffered: momentum > 0.0 }
    }

    /// η of this round.
    pub fn eta(&self) -> f32 {
        self.eta
    }

    /// Vectors of state: the momentum's buffer, or none.
    pub fn state_slots(&self) -> u32 {
        u32::from(self.buffered)
    }

    /// Momentum of this round.
    pub fn momentum(&self) -> f32 {
        self.momentum
    }

    /// Descends along Δ = Σₘ coefficients\[m\] · values\[m\]: merge and step in one sweep over the chunk. `state` has
    /// [`state_slots`](Nesterov::state_slots) vectors; all lists are as long as `parameters`.
    pub fn descend(&self, coefficients: &[f32], values: &[Vec<f32>], state: &mut [Vec<f32>], parameters: &mut [f32]) {
        match state.first_mut() {
            Some(buffer) if self.buffered => self.descend_buffered(coefficients, values, buffer, parameters),
            _ => self.descend_plain(coefficients, values, parameters),
        }
    }

    fn descend_buffered(&self, coefficients: &[f32], values: &[Vec<f32>], buffer: &mut [f32], parameters: &mut [f32]) {
        let (eta, momentum) = (self.eta, self.momentum);
        let mut start = 0;
        while start + LANES <= parameters.len() {
            let delta = weighted_lanes(coefficients, values, start);
            let (buffer, parameters) = (lanes_mut(buffer, start), lanes_mut(parameters, start));
            let (mut moved, mut left) = (*buffer, *parameters);
            for lane in 0..LANES {
                moved[lane] = momentum * moved[lane] + delta[lane];
                left[lane] -= eta * (delta[lane] + momentum * moved[lane]);
            }
            (*buffer, *parameters) = (moved, left);
            start += LANES;
        }
        for index in start..parameters.len() {
            let delta = weighted_value(coefficients, values, index);
            buffer[index] = momentum * buffer[index] + delta;
            parameters[index] -= eta * (delta + momentum * buffer[index]);
        }
    }

    fn descend_plain(&self, coefficients: &[f32], values: &[Vec<f32>], parameters: &mut [f32]) {
        let eta = self.eta;
        let mut start = 0;
        while start + LANES <= parameters.len() {
            let delta = weighted_lanes(coefficients, values, start);
            let parameters = lanes_mut(parameters, start);
            for lane in 0..LANES {
                parameters[lane] -= eta * delta[lane];
            }
            start += LANES;
        }
        for (index, parameter) in parameters.iter_mut().enumerate().skip(start) {
            *parameter -= eta * weighted_value(coefficients, values, index);
        }
    }
}

/// What η is multiplied with in this round, the last `cooldown` of the token budget being cooler. A run without a budget has no end.
fn cooled(cooldown: f64, round: &Round) -> f64 {
    let left = round.token_budget.saturating_sub(round.tokens_merged) as f64 / round.token_budget.max(1) as f64;
    if round.token_budget == 0 || left >= cooldown {
        return 1.0;
    }
    let end = (SETTLED_MERGES / (round.version as f64 + 1.0)).min(1.0);
    end + (1.0 - end) * left / cooldown
}

/// Calls `step` for each value with Δ = Σₘ coefficients\[m\] · values\[m\], its two values of state and its parameter.
///
/// Panics where `state` has not two vectors: the host gives as many as were planned.
#[inline(always)]
fn sweep(
    coefficients: &[f32],
    values: &[Vec<f32>],
    state: &mut [Vec<f32>],
    parameters: &mut [f32],
    step: impl Fn(f32, &mut f32, &mut f32, &mut f32),
) {
    let [first, second] = state else { panic!("this optimiser has two vectors of state, not {}", state.len()) };
    let mut start = 0;
    while start + LANES <= parameters.len() {
        let delta = weighted_lanes(coefficients, values, start);
        let (first, second) = (&mut first[start..start + LANES], &mut second[start..start + LANES]);
        let parameters = &mut parameters[start..start + LANES];
        for lane in 0..LANES {
            step(delta[lane], &mut first[lane], &mut second[lane], &mut parameters[lane]);
        }
        start += LANES;
    }
    for index in start..parameters.len() {
        let delta = weighted_value(coefficients, values, index);
        step(delta, &mut first[index], &mut second[index], &mut parameters[index]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A fragment's merge number `version` + 1, after `merged` of 100 tokens.
    fn round(version: u64, merged: u64) -> Round {
        Round { index: 0, fragment: 0, version, tokens_merged: merged, token_budget: 100 }
    }

    #[test]
    fn momentum_warms_up_with_the_merges_of_the_fragment() {
        let momentum = |version| Nesterov::new(0.7, 0.9, 10.0, version).momentum();
        assert_eq!(momentum(0), (1.0_f64 / 11.0) as f32);
        assert_eq!(momentum(9), 0.5);
        assert_eq!(momentum(89), 0.9);
        assert_eq!(momentum(1_000_000), 0.9);
        assert_eq!(Nesterov::new(0.7, 0.9, 0.0, 0).momentum(), 0.9, "warmup 0 is constant momentum");
    }

    #[test]
    fn the_step_cools_down_over_the_last_tokens_of_the_run() {
        let eta = |json: &str, round: &Round| {
            let config = Config::parse(json.as_bytes(), Nesterov::FIELDS).expect(json);
            Nesterov::configured(&config, round).expect(json).eta()
        };
        // The fragment's merge number 60 ends at half of η, its merge number 25 where it was.
        let json = r#"{"eta":1,"cooldown":0.5}"#;
        assert_eq!([0, 50, 75, 100, 200].map(|merged| eta(json, &round(59, merged))), [1.0, 1.0, 0.75, 0.5, 0.5]);
        assert_eq!(eta(json, &round(24, 100)), 1.0);
        assert_eq!(eta("", &round(99, 66)), 0.7, "two thirds of the tokens by default");
        assert!((eta("", &round(99, 100)) - 0.21).abs() < 1e-6);
        assert_eq!(eta(r#"{"cooldown":0}"#, &round(99, 100)), 0.7, "no cooldown");
        assert_eq!(eta("", &Round { token_budget: 0, ..round(99, 100) }), 0.7, "no budget");
    }

    #[test]
    fn two_steps_by_hand() {
        // η 1, μ 0.5: buf 2, Θ 10 − (2 + 1) = 7; then buf 1 + 4 = 5, Θ 7 − (4 + 2.5) = 0.5.
        let outer = Nesterov::new(1.0, 0.5, 0.0, 0);
        let (mut state, mut parameters) = (vec![vec![0.0; 33]], vec![10.0; 33]);
        outer.descend(&[1.0], &[vec![2.0; 33]], &mut state, &mut parameters);
        assert_eq!((state[0][0], parameters[0], parameters[32]), (2.0, 7.0, 7.0));
        outer.descend(&[0.5, 0.5], &[vec![3.0; 33], vec![5.0; 33]], &mut state, &mut parameters);
        assert_eq!((state[0][32], parameters[0], parameters[32]), (5.0, 0.5, 0.5));
    }

    #[test]
    fn without_momentum_there_is_no_state() {
        let outer = Nesterov::new(0.5, 0.0, 10.0, 3);
        let mut parameters = vec![1.0; 40];
        outer.descend(&[1.0], &[vec![2.0; 40]], &mut [], &mut parameters);
        assert_eq!((outer.state_slots(), parameters[0], parameters[39]), (0, 0.0, 0.0));
    }

    #[test]
    fn values_out_of_range_are_refused() {
        for json in [
            r#"{"eta":0}"#,
            r#"{"eta":-1}"#,
            r#"{"momentum":1}"#,
            r#"{"warmup":-1}"#,
            r#"{"cooldown":2}"#,
            r#"{"eta":true}"#,
        ] {
            let config = Config::parse(json.as_bytes(), Nesterov::FIELDS).expect(json);
            assert!(Nesterov::configured(&config, &round(0, 0)).is_err(), "{json}");
        }
    }
}
