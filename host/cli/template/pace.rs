//! Pace: close when every live island has offered, or a fixed time after the first offer. Configuration: `grace_ms` (default 200).

use tombolo_policy_sdk::{Config, Decision, Pace, View, export_pace};

/// The policy; it remembers nothing.
pub struct Timing;

/// How soon to look again while there is no quorum, in milliseconds. Offers wake the host anyway.
const IDLE_MS: u64 = 1_000;

impl Pace for Timing {
    fn decide(config: &[u8], view: &View) -> Result<Decision, String> {
        let config = Config::parse(config, &["grace_ms"])?;
        let grace = config.number_within("grace_ms", 200.0, 0.0, 60_000.0, "between 0 and 60000 milliseconds")? as u64;
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

export_pace!(Timing);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_round_waits() {
        let view = View {
            round: 0,
            waited_ms: 10_000,
            islands_live: 2,
            quorum: 1,
            offers: Vec::new(),
            step_ms: 0.0,
            quorum_ms: 0.0,
            sync_ms: 0.0,
            overlap_steps: 1,
        };
        assert_eq!(Timing::decide(b"", &view), Ok(Decision::Wait(IDLE_MS)));
    }
}
