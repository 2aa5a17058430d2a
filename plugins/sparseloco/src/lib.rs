//! Merge `sparseloco`: Δ = Σ w·v / Σ w over contributions that are mostly zeros, then a plain step Θ ← Θ − η·Δ. No momentum and no state.
//!
//! SparseLoCo (arXiv 2508.15706): islands send the largest 1 to 3 % of their values in two bits and keep the rest as error feedback, and that feedback, local to each
//! island and decaying, takes the place of DiLoCo's outer momentum, so the global step is the mean of what arrived. For use with the codec `topk`, which asks for
//! that feedback. A value that only one of M islands sent moves by that island's share, as in the paper, not by all of it: zeros count. The paper's mean counts islands
//! alike; here w = tokens · (tokens / steps), which is the same where islands are equally fast.
//!
//! Configuration: `eta` (η, default 1: what a lone island sends is applied as it is; our choice, not the paper's), `cooldown` (default a third of the tokens, see
//! the SDK's `outer`), `staleness_discount` (see its `weight`). State: none.

use tombolo_policy_sdk::outer::Nesterov;
use tombolo_policy_sdk::{At, Config, Merge, Opening, Plan, export_merge, weight};

/// One round of the rule.
pub struct SparseLoCo {
    shares: Vec<f32>,
    /// Without momentum: a plain step, which needs no state.
    outer: Nesterov,
}

impl Merge for SparseLoCo {
    fn open(opening: Opening) -> Result<Self, String> {
        let config = Config::parse(&opening.config, &[Nesterov::PLAIN_FIELDS, weight::FIELDS].concat())?;
        let outer = Nesterov::plain(&config, 1.0, &opening.round)?;
        Ok(SparseLoCo { shares: weight::discounted(&config, &opening.contributions)?, outer })
    }

    fn plan(&self) -> Plan {
        Plan { weights: self.shares.clone(), passes: 0, state_slots: self.outer.state_slots() }
    }

    fn step(&self, _: At, values: &[Vec<f32>], state: &mut [Vec<f32>], parameters: &mut [f32]) -> Result<(), String> {
        self.outer.descend(&self.shares, values, state, parameters);
        Ok(())
    }
}

export_merge!(SparseLoCo);
