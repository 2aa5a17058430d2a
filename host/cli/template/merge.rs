//! Merge rule: a weighted mean in which stale offers count for less, then SGD with Nesterov momentum.
//!
//! w = tokens · (tokens / steps) · discount^staleness. Configuration: `discount` (default 0.7), and `eta`, `momentum`, `warmup`, `cooldown` of
//! the outer optimiser. State: the momentum's buffer.

use tombolo_policy_sdk::outer::Nesterov;
use tombolo_policy_sdk::{At, Config, Merge, Opening, Plan, export_merge, weight};

/// One round of the rule.
pub struct Rule {
    shares: Vec<f32>,
    outer: Nesterov,
}

impl Merge for Rule {
    fn open(opening: Opening) -> Result<Self, String> {
        let config = Config::parse(&opening.config, &[&["discount"], Nesterov::FIELDS].concat())?;
        let discount = config.number_within("discount", 0.7, 0.01, 1.0, "between 0.01 and 1")? as f32;
        let outer = Nesterov::configured(&config, &opening.round)?;
        let mut shares = weight::shares(&opening.contributions)?;
        for (share, offer) in shares.iter_mut().zip(&opening.contributions) {
            (0..offer.staleness).for_each(|_| *share *= discount);
        }
        let sum: f32 = shares.iter().sum();
        shares.iter_mut().for_each(|share| *share /= sum);
        Ok(Rule { shares, outer })
    }

    fn plan(&self) -> Plan {
        Plan { weights: self.shares.clone(), passes: 0, state_slots: self.outer.state_slots() }
    }

    fn step(&self, _: At, values: &[Vec<f32>], state: &mut [Vec<f32>], parameters: &mut [f32]) -> Result<(), String> {
        self.outer.descend(&self.shares, values, state, parameters);
        Ok(())
    }
}

export_merge!(Rule);

#[cfg(test)]
mod tests {
    use super::*;
    use tombolo_policy_sdk::{Contribution, Round};

    #[test]
    fn a_stale_offer_counts_for_less() {
        let offer = |staleness| Contribution { island: "a".into(), tokens: 10, steps: 1, staleness, norm: 1.0 };
        let round = Round { index: 0, fragment: 0, version: 0, tokens_merged: 0, token_budget: 0 };
        let (config, contributions) = (br#"{"discount": 0.5}"#.to_vec(), vec![offer(0), offer(1)]);
        let rule = Rule::open(Opening { config, round, tensors: Vec::new(), contributions, memo: Vec::new() });
        let shares = rule.expect("opens").shares;
        assert!((shares[0] - 2.0 / 3.0).abs() < 1e-6 && (shares[1] - 1.0 / 3.0).abs() < 1e-6, "{shares:?}");
    }
}
