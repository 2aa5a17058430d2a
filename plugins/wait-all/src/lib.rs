//! Pace `wait-all`: close when every island that is expected has answered, or when the bound has passed.
//!
//! Synchronous DiLoCo (arXiv 2311.08105) merges once all islands are there; this is its pace, with a bound, so that an island that hangs holds up a round and not the
//! run. No island waits for it, either: only the merge comes later. Expected are the live islands, however slow; where `islands` is set, that many offers,
//! even if fewer islands live at the moment. Configuration: `islands` (default 0: those that live; at most 1e6), `wait_ms_max` (default
//! 60000, from 0 to 600000, after which a host closes the round anyway), counted from the quorum.

use tombolo_policy_sdk::{Config, Decision, Pace, View, export_pace};

/// The policy; it remembers nothing.
pub struct WaitAll;

impl Pace for WaitAll {
    fn decide(config: &[u8], view: &View) -> Result<Decision, String> {
        let config = Config::parse(config, &["islands", "wait_ms_max"])?;
        let islands = config.number_within("islands", 0.0, 0.0, 1e6, "between 0 and 1e6")? as usize;
        let bound = config.number_within("wait_ms_max", 6e4, 0.0, 6e5, "between 0 and 600000 milliseconds")? as u64;
        let answered = view.islands.iter().all(|island| island.answered);
        if answered && view.offers.len() >= islands {
            return Ok(Decision::Close);
        }
        let left = bound.saturating_sub(view.since_quorum_ms);
        Ok(if left > 0 { Decision::Wait(left) } else { Decision::Close })
    }
}

export_pace!(WaitAll);
