//! How fast an island trains while nothing disturbs it, and whether it takes steps now, from what it says of itself. Pure.
//!
//! An island speaks with each heartbeat, twice a second. A calm stretch is the time between two of its words when it was calm at both: no blow
//! under way or not yet recovered from, anywhere, since on one machine the dead leave their share of the cores to the living.

use crate::clock::{Duration, Instant};

/// How old the last step may be: three heartbeats, and what it takes to hear of them.
const STEPPED_WITHIN: Duration = Duration::from_millis(1700);
/// Calm seconds from which on a rate is believed.
const CALM_SECONDS_MIN: f64 = 1.0;

/// One island's figures.
#[derive(Debug, Clone, Default)]
pub struct Gauge {
    step: Option<u64>,
    stepped: Option<Instant>,
    calm_from: Option<(Instant, u64)>,
    calm_seconds: f64,
    calm_tokens: u64,
}

impl Gauge {
    /// The island says that it has taken `step` steps over `tokens` tokens; `calm`: nothing disturbs anybody.
    pub fn heard(&mut self, step: u64, tokens: u64, calm: bool, now: Instant) {
        if self.step.is_some_and(|before| step > before) {
            self.stepped = Some(now);
        }
        self.step = Some(step);
        if let Some((from, before)) = self.calm_from
            && calm
            && let Some(trained) = tokens.checked_sub(before)
        {
            self.calm_seconds += (now - from).as_secs_f64();
            self.calm_tokens += trained;
        }
        self.calm_from = calm.then_some((now, tokens));
    }

    /// Whether it has taken steps lately.
    pub fn steps(&self, now: Instant) -> bool {
        self.stepped.is_some_and(|at| now.saturating_duration_since(at) <= STEPPED_WITHIN)
    }

    /// Tokens per second in calm stretches; none if they were too short to tell.
    pub fn rate(&self) -> Option<f64> {
        (self.calm_seconds >= CALM_SECONDS_MIN).then(|| self.calm_tokens as f64 / self.calm_seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_that_of_calm_stretches_alone() {
        let start = crate::clock::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut gauge = Gauge::default();
        for (ms, tokens, calm) in [
            (0, 0, true),
            (1000, 100, true),
            // Struck between these two, and calm again from the third on.
            (2000, 110, false),
            (3000, 110, true),
            // A next life, back at its checkpoint.
            (4000, 50, true),
            (5000, 150, true),
        ] {
            gauge.heard(tokens / 10, tokens, calm, at(ms));
        }
        assert_eq!(gauge.rate(), Some(100.0));
    }

    #[test]
    fn without_calm_there_is_no_rate_and_without_steps_no_stepping() {
        let start = crate::clock::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut gauge = Gauge::default();
        gauge.heard(5, 50, false, at(0));
        assert!(!gauge.steps(at(0)), "one word says nothing of steps");
        gauge.heard(6, 60, false, at(500));
        gauge.heard(6, 60, false, at(1000));
        assert!(gauge.steps(at(2000)) && !gauge.steps(at(2300)));
        assert_eq!(gauge.rate(), None);
    }
}
