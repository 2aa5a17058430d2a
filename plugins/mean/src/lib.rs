//! Merge `mean`: Δ = Σ w·v / Σ w over the contributions, then SGD with Nesterov momentum.
//!
//! w = tokens · (tokens / steps), as Decoupled DiLoCo (arXiv 2604.21428) weighs islands. Configuration: `eta`, `momentum`, `warmup`, `cooldown` (see
//! the SDK's `outer`). State: the momentum's buffer.

use tombolo_policy_sdk::outer::Nesterov;
use tombolo_policy_sdk::{At, Config, Merge, Opening, Plan, export_merge, weight};

/// One round of the rule.
pub struct Mean {
    shares: Vec<f32>,
    outer: Nesterov,
}

impl Merge for Mean {
    fn open(opening: Opening) -> Result<Self, String> {
        let config = Config::parse(&opening.config, Nesterov::FIELDS)?;
        let outer = Nesterov::configured(&config, &opening.round)?;
        Ok(Mean { shares: weight::shares(&opening.contributions)?, outer })
    }

    fn plan(&self) -> Plan {
        Plan { weights: self.shares.clone(), passes: 0, state_slots: self.outer.state_slots() }
    }

    fn step(&self, _: At, values: &[Vec<f32>], state: &mut [Vec<f32>], parameters: &mut [f32]) -> Result<(), String> {
        self.outer.descend(&self.shares, values, state, parameters);
        Ok(())
    }
}

export_merge!(Mean);
