//! Merge `median`: for each value the median of the contributions, then an outer optimiser.
//!
//! Δᵢ = median of vᵢ; of an even number the mean of the two in the middle (Byzantine-robust distributed learning, arXiv 1803.01498). Whatever fewer
//! than half of the islands send, each Δᵢ stays within what the others sent there; with M ≤ 2 it is the mean and protects from nothing. Contributions
//! count alike, whatever tokens their islands say that they have trained on; those that have not stepped are left out.
//!
//! Where islands disagree the median is small, so Δ is shorter than the mean's.
//!
//! Configuration: `outer` and its fields (see the SDK's `outer`). State: the outer optimiser's.

use tombolo_policy_sdk::outer::Outer;
use tombolo_policy_sdk::robust::trimmed_mean;
use tombolo_policy_sdk::{At, Config, Merge, Opening, Plan, export_merge, weight};

/// One round of the rule.
pub struct Median {
    weights: Vec<f32>,
    outer: Outer,
}

impl Merge for Median {
    fn open(opening: Opening) -> Result<Self, String> {
        let config = Config::parse(&opening.config, Outer::FIELDS)?;
        let outer = Outer::configured(&config, &opening.round, &opening.memo)?;
        Ok(Median { weights: weight::equal(&opening.contributions)?, outer })
    }

    fn plan(&self) -> Plan {
        Plan { weights: self.weights.clone(), passes: 0, state_slots: self.outer.state_slots() }
    }

    fn step(&self, _: At, values: &[Vec<f32>], state: &mut [Vec<f32>], parameters: &mut [f32]) -> Result<(), String> {
        let counted: Vec<&[f32]> = (values.iter().zip(&self.weights))
            .filter(|(_, weight)| **weight > 0.0)
            .map(|(list, _)| &list[..])
            .collect();
        let mut delta = vec![0.0; parameters.len()];
        // All but the one or two in the middle.
        trimmed_mean(&counted, (counted.len() - 1) / 2, &mut delta);
        self.outer.descend(&[1.0], &[delta], state, parameters);
        Ok(())
    }

    fn memo(&self) -> Vec<u8> {
        self.outer.memo()
    }
}

export_merge!(Median);

#[cfg(test)]
mod tests {
    use super::*;
    use tombolo_policy_sdk::{Contribution, Round};

    #[test]
    fn the_middle_of_those_that_stepped_is_taken() {
        let island = |steps| Contribution { island: "a".into(), tokens: 10, steps, staleness: 0, norm: 1.0 };
        let merged = |values: &[(u32, f32)]| {
            let rule = Median::open(Opening {
                config: br#"{"outer":"sgd","eta":1}"#.into(),
                round: Round { index: 0, fragment: 0, version: 0, tokens_merged: 0, token_budget: 0 },
                tensors: Vec::new(),
                contributions: values.iter().map(|(steps, _)| island(*steps)).collect(),
                memo: Vec::new(),
            })
            .expect("opens");
            let lists: Vec<Vec<f32>> = values.iter().map(|(_, value)| vec![*value; 3]).collect();
            let mut parameters = vec![0.0; 3];
            rule.step(At { tensor: 0, offset: 0 }, &lists, &mut [], &mut parameters).expect("steps");
            0.0 - parameters[2]
        };
        assert_eq!(merged(&[(1, 9.0), (1, -1.0), (1, 2.0)]), 2.0);
        assert_eq!(merged(&[(1, 9.0), (1, -1.0), (1, 2.0), (1, 3.0)]), 2.5);
        assert_eq!(merged(&[(1, 9.0), (0, -1.0), (1, 3.0)]), 6.0, "who has not stepped does not count");
        assert_eq!(merged(&[(1, 7.0)]), 7.0);
    }
}
