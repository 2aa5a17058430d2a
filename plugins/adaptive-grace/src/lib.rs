//! Pace `adaptive-grace`: close at quorum plus a grace window that fits into the overlap.
//!
//! Decoupled DiLoCo (arXiv 2604.21428): slack = τ·ξ_step − (ξ_quorum + ξ_sync); the window is γ·slack, γ = 0.9, at most one inner step. A round
//! is closed early when every live island has offered. Configuration: `gamma` (default 0.9), `grace_ms_max` (default: one inner step).

use tombolo_policy_sdk::{Config, Decision, Pace, View, export_pace};

/// The policy; it remembers nothing.
pub struct AdaptiveGrace;

/// How soon to look again while there is no quorum. Offers wake the host anyway.
const IDLE_MS: u64 = 1_000;

impl Pace for AdaptiveGrace {
    fn decide(config: &[u8], view: &View) -> Result<Decision, String> {
        let config = Config::parse(config, &["gamma", "grace_ms_max"])?;
        let gamma = config.number_within("gamma", 0.9, 0.0, 1.0, "between 0 and 1")?;
        let step = f64::from(view.step_ms);
        let cap = config.number_within("grace_ms_max", step, 0.0, 1e9, "between 0 and 1e9 milliseconds")?;
        let offers = view.offers.len() as u64;
        if offers == 0 || offers < u64::from(view.quorum) {
            return Ok(Decision::Wait(IDLE_MS));
        }
        if offers >= u64::from(view.islands_live) {
            return Ok(Decision::Close);
        }
        let slack = f64::from(view.overlap_steps) * step - f64::from(view.quorum_ms) - f64::from(view.sync_ms);
        let grace = (gamma * slack).clamp(0.0, cap.max(0.0)) as u64;
        Ok(match grace.checked_sub(view.waited_ms) {
            Some(left) if left > 0 => Decision::Wait(left),
            _ => Decision::Close,
        })
    }
}

export_pace!(AdaptiveGrace);
