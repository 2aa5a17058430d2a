//! Merge `mean`: Δ = Σ w·v / Σ w over the contributions, then an outer optimiser: by default SGD with Nesterov momentum.
//!
//! w = tokens · (tokens / steps), as Decoupled DiLoCo (arXiv 2604.21428) weighs islands. Configuration: `outer` (default `nesterov`) and its
//! fields (see the SDK's `outer`), `staleness_discount` (see its `weight`). State: the outer optimiser's.

use tombolo_policy_sdk::outer::Outer;
use tombolo_policy_sdk::{At, Config, Merge, Opening, Plan, export_merge, weight};

/// One round of the rule.
pub struct Mean {
    shares: Vec<f32>,
    outer: Outer,
}

impl Merge for Mean {
    fn open(opening: Opening) -> Result<Self, String> {
        let config = Config::parse(&opening.config, &[Outer::FIELDS, weight::FIELDS].concat())?;
        let outer = Outer::configured(&config, &opening.round, &opening.memo)?;
        Ok(Mean { shares: weight::discounted(&config, &opening.contributions)?, outer })
    }

    fn plan(&self) -> Plan {
        Plan { weights: self.shares.clone(), passes: 0, state_slots: self.outer.state_slots() }
    }

    fn step(&self, _: At, values: &[Vec<f32>], state: &mut [Vec<f32>], parameters: &mut [f32]) -> Result<(), String> {
        self.outer.descend(&self.shares, values, state, parameters);
        Ok(())
    }

    fn memo(&self) -> Vec<u8> {
        self.outer.memo()
    }
}

export_merge!(Mean);
