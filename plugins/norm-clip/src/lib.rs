//! Merge `norm-clip`: the weighted mean of contributions that are scaled down to a bound on their norm, then an outer optimiser.
//!
//! Δ = Σ wₘ · min(1, c·ñ / ‖vₘ‖) · vₘ / Σ w, with ñ the median of the norms (of an even number the smaller of the two in the middle), over the whole
//! fragment. A bound on norms is the defence of Sun et al. (Can you really backdoor federated learning?, arXiv 1911.07963); the median makes it follow the run.
//! An island can then add at most its share of c times an honest norm, as long as more than half are honest. It may still point anywhere: a
//! sign-flipped contribution of ordinary norm passes as it is, and `median`, `trimmed-mean` and `krum` are for that. The norm is the one that the
//! syncer has measured on the decoded values.
//!
//! w = tokens · (tokens / steps). Configuration: `factor` (c, default 2, from 1), `staleness_discount` (see the SDK's `weight`), `outer` and its
//! fields (see the SDK's `outer`). State: the outer optimiser's.

use tombolo_policy_sdk::outer::Outer;
use tombolo_policy_sdk::{At, Config, Contribution, Merge, Opening, Plan, export_merge, weight};

/// One round of the rule.
pub struct NormClip {
    shares: Vec<f32>,
    /// The shares, scaled down where the norm is out of bounds.
    coefficients: Vec<f32>,
    outer: Outer,
}

impl Merge for NormClip {
    fn open(opening: Opening) -> Result<Self, String> {
        let config = Config::parse(&opening.config, &[&["factor"], Outer::FIELDS, weight::FIELDS].concat())?;
        let factor = config.number_within("factor", 2.0, 1.0, 1e6, "between 1 and 1e6")?;
        let outer = Outer::configured(&config, &opening.round, &opening.memo)?;
        let shares = weight::discounted(&config, &opening.contributions)?;
        let coefficients = clipped(&shares, &opening.contributions, factor);
        Ok(NormClip { shares, coefficients, outer })
    }

    fn plan(&self) -> Plan {
        Plan { weights: self.shares.clone(), passes: 0, state_slots: self.outer.state_slots() }
    }

    fn step(&self, _: At, values: &[Vec<f32>], state: &mut [Vec<f32>], parameters: &mut [f32]) -> Result<(), String> {
        self.outer.descend(&self.coefficients, values, state, parameters);
        Ok(())
    }

    fn memo(&self) -> Vec<u8> {
        self.outer.memo()
    }
}

fn clipped(shares: &[f32], contributions: &[Contribution], factor: f64) -> Vec<f32> {
    let mut norms: Vec<f32> =
        contributions.iter().zip(shares).filter(|(_, share)| **share > 0.0).map(|(island, _)| island.norm).collect();
    norms.sort_by(f32::total_cmp);
    let bound = factor * norms.get(norms.len().saturating_sub(1) / 2).copied().map_or(0.0, f64::from);
    let scale = |norm: f64| if norm > bound { bound / norm } else { 1.0 };
    (shares.iter().zip(contributions))
        .map(|(share, island)| (f64::from(*share) * scale(f64::from(island.norm))) as f32)
        .collect()
}

export_merge!(NormClip);

#[cfg(test)]
mod tests {
    use super::*;

    fn coefficients(shares: &[f32], norms: &[f32]) -> Vec<f32> {
        let island = |norm| Contribution { island: "a".into(), tokens: 10, steps: 1, staleness: 0, norm };
        clipped(shares, &norms.iter().map(|norm| island(*norm)).collect::<Vec<_>>(), 2.0)
    }

    #[test]
    fn who_is_longer_than_twice_the_median_is_scaled_down_to_it() {
        assert_eq!(coefficients(&[0.25, 0.25, 0.5], &[1.0, 2.0, 400.0]), [0.25, 0.25, 0.005]);
        assert_eq!(coefficients(&[0.25, 0.25, 0.5], &[1.0, 2.0, 3.0]), [0.25, 0.25, 0.5]);
        assert_eq!(coefficients(&[0.5, 0.5], &[1.0, 8.0]), [0.5, 0.125], "of two the smaller norm rules");
        assert_eq!(
            coefficients(&[0.5, 0.5, 0.0], &[1.0, 8.0, 0.0]),
            [0.5, 0.125, 0.0],
            "who has no weight has no vote"
        );
        assert_eq!(coefficients(&[1.0], &[9.0]), [1.0]);
    }
}
