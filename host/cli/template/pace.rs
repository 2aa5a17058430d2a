//! Pace: close when every live island has answered, or a fixed time after quorum. Configuration: `grace_ms` (default 200).

use tombolo_policy_sdk::{Config, Decision, Pace, View, export_pace};

/// The policy; it remembers nothing.
pub struct Timing;

impl Pace for Timing {
    fn decide(config: &[u8], view: &View) -> Result<Decision, String> {
        let config = Config::parse(config, &["grace_ms"])?;
        let grace = config.number_within("grace_ms", 200.0, 0.0, 60_000.0, "between 0 and 60000 milliseconds")? as u64;
        if view.since_quorum_ms >= grace || view.islands.iter().all(|island| island.answered) {
            return Ok(Decision::Close);
        }
        Ok(Decision::Wait(grace - view.since_quorum_ms))
    }
}

export_pace!(Timing);

#[cfg(test)]
mod tests {
    use super::*;
    use tombolo_policy_sdk::Island;

    #[test]
    fn an_island_that_has_not_answered_is_waited_for_until_the_time_is_over() {
        let island = Island { name: "a".into(), keeps_up: true, answered: false, lag: None };
        let mut view = View {
            round: 1,
            since_quorum_ms: 50,
            quorum: 1,
            offers: Vec::new(),
            islands: vec![island],
            step_ms: 0.0,
            quorum_ms: 0.0,
            sync_ms: 0.0,
            overlap_steps: 1,
        };
        assert_eq!(Timing::decide(b"", &view), Ok(Decision::Wait(150)));
        view.since_quorum_ms = 200;
        assert_eq!(Timing::decide(b"", &view), Ok(Decision::Close));
    }
}
