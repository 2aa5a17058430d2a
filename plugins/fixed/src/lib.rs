//! Pace `fixed`: close a fixed time after the round's first offer, once quorum is there.
//!
//! The plain window that adaptive ones are measured against; no paper's. A policy remembers nothing and is told how long ago the first offer came, so that is what
//! the time counts from: with a quorum of 1 (the default) that is the quorum itself, with a larger one the time in which it came together is part of the window. A
//! round is closed early when every live island has offered: there is nobody to wait for. Configuration: `grace_ms` (default 1000, from 0 to 3.6e6).

use tombolo_policy_sdk::{Config, Decision, Pace, View, export_pace};

/// The policy; it remembers nothing.
pub struct Fixed;

/// How soon to look again while there is no quorum. Offers wake the host anyway.
const IDLE_MS: u64 = 1_000;

impl Pace for Fixed {
    fn decide(config: &[u8], view: &View) -> Result<Decision, String> {
        let config = Config::parse(config, &["grace_ms"])?;
        let grace = config.number_within("grace_ms", 1_000.0, 0.0, 3.6e6, "between 0 and 3.6e6 milliseconds")? as u64;
        let offers = view.offers.len() as u64;
        if offers == 0 || offers < u64::from(view.quorum) {
            return Ok(Decision::Wait(IDLE_MS));
        }
        if offers >= u64::from(view.islands_live) || view.waited_ms >= grace {
            return Ok(Decision::Close);
        }
        Ok(Decision::Wait(grace - view.waited_ms))
    }
}

export_pace!(Fixed);
