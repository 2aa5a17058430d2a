//! The learning rate as a function of the tokens that the run has trained on.
//!
//! It follows tokens and not steps because islands come and go: what the run has merged is the one clock that all of
//! them share.

use serde::{Deserialize, Serialize};

/// Linear warm-up from 0 to `peak`, then half a cosine down to `peak · floor_ratio`, then flat
/// (cosine: Loshchilov and Hutter, "SGDR", 2017).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Schedule {
    /// The highest learning rate.
    pub peak: f32,
    /// Tokens until the peak is reached; 0 starts at the peak.
    pub warmup_tokens: u64,
    /// Tokens of the whole run, warm-up included.
    pub total_tokens: u64,
    /// The last learning rate as a share of `peak`, 0 to 1.
    pub floor_ratio: f32,
}

impl Schedule {
    /// The learning rate after `tokens` tokens.
    pub fn at(&self, tokens: u64) -> f32 {
        let peak = f64::from(self.peak);
        if tokens < self.warmup_tokens {
            return (peak * tokens as f64 / self.warmup_tokens as f64) as f32;
        }
        let span = self.total_tokens.saturating_sub(self.warmup_tokens);
        let done = if span == 0 { 1.0 } else { ((tokens - self.warmup_tokens) as f64 / span as f64).min(1.0) };
        let floor = peak * f64::from(self.floor_ratio);
        (floor + (peak - floor) * 0.5 * (1.0 + (std::f64::consts::PI * done).cos())) as f32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_rises_to_the_peak_and_falls_to_the_floor() {
        let schedule = Schedule { peak: 1e-3, warmup_tokens: 100, total_tokens: 1100, floor_ratio: 0.1 };
        assert_eq!(schedule.at(0), 0.0);
        assert_eq!(schedule.at(50), 5e-4);
        assert_eq!(schedule.at(100), 1e-3);
        // Halfway down: the mean of peak and floor, to f32 rounding.
        assert!((schedule.at(600) - 5.5e-4).abs() < 1e-10);
        assert!((schedule.at(1100) - 1e-4).abs() < 1e-10);
        assert_eq!(schedule.at(u64::MAX), schedule.at(1100));
    }

    #[test]
    fn a_run_without_warm_up_or_length_is_defined() {
        let schedule = Schedule { peak: 1.0, warmup_tokens: 0, total_tokens: 10, floor_ratio: 0.0 };
        assert_eq!(schedule.at(0), 1.0);
        let empty = Schedule { peak: 1.0, warmup_tokens: 0, total_tokens: 0, floor_ratio: 0.5 };
        assert_eq!(empty.at(0), 0.5);
    }
}
