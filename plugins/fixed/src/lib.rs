//! Pace `fixed`: close a fixed time after the round had its quorum.
//!
//! The plain window that adaptive ones are measured against; no paper's. A round is closed early when every live island has answered: there is nobody to wait for.
//! Configuration: `grace_ms` (default 1000, from 0 to 600000, after which a host closes the round anyway).

use tombolo_policy_sdk::{Config, Decision, Pace, View, export_pace};

/// The policy; it remembers nothing.
pub struct Fixed;

impl Pace for Fixed {
    fn decide(config: &[u8], view: &View) -> Result<Decision, String> {
        let config = Config::parse(config, &["grace_ms"])?;
        let grace = config.number_within("grace_ms", 1_000.0, 0.0, 6e5, "between 0 and 600000 milliseconds")? as u64;
        if view.islands.iter().all(|island| island.answered) {
            return Ok(Decision::Close);
        }
        let left = grace.saturating_sub(view.since_quorum_ms);
        Ok(if left > 0 { Decision::Wait(left) } else { Decision::Close })
    }
}

export_pace!(Fixed);
