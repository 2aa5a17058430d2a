//! Pace `adaptive-grace`: close at quorum plus a grace window; breadth before freshness.
//!
//! Decoupled DiLoCo (arXiv 2604.21428): slack = τ·ξ_step − (ξ_quorum + ξ_sync); the window is γ·slack, at most one inner step. With a store in between, a round trip can
//! take longer than τ steps, and that window is nothing: with a quorum of 1, near-equal islands would be merged one at a time. So the window is at least what the islands
//! that keep up have needed lately (mean lag behind quorum, six mean deviations, half a step), at most 8 steps. Rounds are then further apart, and nobody waits for it but the
//! round. A round is closed early when every island that keeps up has answered. Configuration: `gamma` (default 0.9, from 0 to 1), `grace_ms_max` (the longest window whatever
//! was measured; default and at most 600000, after which a host closes the round anyway).

use tombolo_policy_sdk::{Config, Decision, Island, Pace, View, export_pace};

/// The policy; it remembers nothing.
pub struct AdaptiveGrace;

/// The longest window, in inner steps; also what an island is given that has not been merged yet.
const STEPS_MAX: f64 = 8.0;
/// The window while nobody has said how long a step takes, in milliseconds.
const UNKNOWN_MS: f64 = 3_000.0;
/// Mean deviations of an island's lag that the window has room for.
const DEVIATIONS: f64 = 6.0;

impl Pace for AdaptiveGrace {
    fn decide(config: &[u8], view: &View) -> Result<Decision, String> {
        let config = Config::parse(config, &["gamma", "grace_ms_max"])?;
        let gamma = config.number_within("gamma", 0.9, 0.0, 1.0, "between 0 and 1")?;
        let longest = config.number_within("grace_ms_max", 6e5, 0.0, 6e5, "between 0 and 600000 milliseconds")?;
        if !view.islands.iter().any(|island| island.keeps_up && !island.answered) {
            return Ok(Decision::Close);
        }
        let window = window_ms(gamma, view).min(longest) as u64;
        let left = window.saturating_sub(view.since_quorum_ms);
        Ok(if left > 0 { Decision::Wait(left) } else { Decision::Close })
    }
}

/// How long after quorum the round is closed at the latest.
fn window_ms(gamma: f64, view: &View) -> f64 {
    let step = f64::from(view.step_ms);
    if step <= 0.0 {
        return UNKNOWN_MS;
    }
    let slack = f64::from(view.overlap_steps) * step - f64::from(view.quorum_ms) - f64::from(view.sync_ms);
    let paper = (gamma * slack).max(0.0).min(step);
    let needed = |island: &Island| match island.lag {
        Some(lag) => f64::from(lag.mean_ms) + DEVIATIONS * f64::from(lag.deviation_ms) + 0.5 * step,
        None => STEPS_MAX * step,
    };
    let needed = view.islands.iter().filter(|island| island.keeps_up).map(needed).fold(0.0, f64::max);
    // At least a millisecond, so that of offers that come at once none is left out.
    paper.max(needed.min(STEPS_MAX * step)).max(1.0)
}

export_pace!(AdaptiveGrace);
