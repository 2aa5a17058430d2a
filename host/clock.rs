//! Time as the host sees it: tokio's clock, which a simulation pauses and moves. No other module reads a clock, and no two machines' clocks
//! are ever compared.

pub use tokio::time::{Duration, Instant, sleep, timeout};

/// The current instant of this process's clock.
pub fn now() -> Instant {
    Instant::now()
}

/// Milliseconds, for records and events.
pub fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}
