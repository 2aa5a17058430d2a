//! Merge `trimmed-mean`: for each value the mean of the contributions without the smallest and the largest few, then an outer optimiser.
//!
//! Δᵢ = mean of vᵢ without its k smallest and k largest, k = ⌈β·M⌉, but never so many that none is left: at most ⌊(M − 1)/2⌋
//! (Byzantine-robust distributed learning, arXiv 1803.01498). Whatever up to k islands send, each Δᵢ stays within what the others sent there; with M ≤ 2
//! it is the mean and protects from nothing. Contributions count alike, whatever tokens their islands say that they have trained on: a
//! weight that an island states itself would let a liar outweigh the others. Those that have not stepped are left out.
//!
//! Trimming shortens: where islands disagree on a value's sign, what is left in the middle is small. So Δ is shorter than the mean's, and far shorter than
//! `rda`'s.
//!
//! Configuration: `trim` (β, default 0.25, from 0 to 0.5), `outer` and its fields (see the SDK's `outer`). State: the outer optimiser's.

use tombolo_policy_sdk::outer::Outer;
use tombolo_policy_sdk::robust::trimmed_mean;
use tombolo_policy_sdk::{At, Config, Merge, Opening, Plan, export_merge, weight};

/// One round of the rule.
pub struct TrimmedMean {
    weights: Vec<f32>,
    /// Contributions left out at each end.
    trimmed: usize,
    outer: Outer,
}

impl Merge for TrimmedMean {
    fn open(opening: Opening) -> Result<Self, String> {
        let config = Config::parse(&opening.config, &[&["trim"], Outer::FIELDS].concat())?;
        let trim = config.number_within("trim", 0.25, 0.0, 0.5, "between 0 and 0.5")?;
        let outer = Outer::configured(&config, &opening.round, &opening.memo)?;
        let weights = weight::equal(&opening.contributions)?;
        let count = weights.iter().filter(|weight| **weight > 0.0).count();
        Ok(TrimmedMean { weights, trimmed: trimmed(trim, count), outer })
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
        trimmed_mean(&counted, self.trimmed, &mut delta);
        self.outer.descend(&[1.0], &[delta], state, parameters);
        Ok(())
    }

    fn memo(&self) -> Vec<u8> {
        self.outer.memo()
    }
}

/// k of `count` contributions. A product that is a whole number but for its rounding is that number.
fn trimmed(trim: f64, count: usize) -> usize {
    let wanted = (trim * count as f64 - 1e-9).ceil().max(0.0) as usize;
    wanted.min(count.saturating_sub(1) / 2)
}

export_merge!(TrimmedMean);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_trimmed_from_each_end_and_something_is_left() {
        let quarter: Vec<usize> = (1..=9).map(|count| trimmed(0.25, count)).collect();
        assert_eq!(quarter, [0, 0, 1, 1, 2, 2, 2, 2, 3]);
        assert_eq!((trimmed(0.0, 9), trimmed(0.5, 9), trimmed(0.5, 8), trimmed(0.07, 100)), (0, 4, 3, 7));
    }
}
