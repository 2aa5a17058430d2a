//! Pace `wait-all`: close when every island that is expected has offered, or when the bound has passed.
//!
//! Synchronous DiLoCo (arXiv 2311.08105) merges once all islands are there; this is its pace, with a bound, so that an island that hangs holds up a round and not the
//! run. No island waits for it, either: only the merge comes later. Expected are those whose heartbeat moves, or, where `islands` is set, that many, even if fewer
//! live at the moment. Below quorum a round stays open whatever has passed. Configuration: `islands` (default 0: those that live; at most 1e6), `wait_ms_max` (default
//! 60000, from 0 to 3.6e6), counted from the round's first offer.

use tombolo_policy_sdk::{Config, Decision, Pace, View, export_pace};

/// The policy; it remembers nothing.
pub struct WaitAll;

/// How soon to look again while there is no quorum. Offers wake the host anyway.
const IDLE_MS: u64 = 1_000;

impl Pace for WaitAll {
    fn decide(config: &[u8], view: &View) -> Result<Decision, String> {
        let config = Config::parse(config, &["islands", "wait_ms_max"])?;
        let islands = config.number_within("islands", 0.0, 0.0, 1e6, "between 0 and 1e6")? as u64;
        let bound = config.number_within("wait_ms_max", 6e4, 0.0, 3.6e6, "between 0 and 3.6e6 milliseconds")? as u64;
        let offers = view.offers.len() as u64;
        if offers == 0 || offers < u64::from(view.quorum) {
            return Ok(Decision::Wait(IDLE_MS));
        }
        let expected = if islands > 0 { islands } else { u64::from(view.islands_live) };
        if offers >= expected || view.waited_ms >= bound {
            return Ok(Decision::Close);
        }
        Ok(Decision::Wait(bound - view.waited_ms))
    }
}

export_pace!(WaitAll);
