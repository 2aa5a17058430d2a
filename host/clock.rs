//! Time as the host sees it: tokio's clock, which a simulation pauses and moves. No other module reads a clock, and no two machines' clocks
//! are ever compared.

use tokio::time::error::Elapsed;
pub use tokio::time::{Duration, Instant};

/// Tokio's timer counts whole milliseconds from an instant of its own. Only whole ones of ours stay on that grid, and a simulation whose waits
/// leave it is rounded one way or the other by chance.
fn whole_ms(duration: Duration) -> Duration {
    Duration::from_millis(duration.as_nanos().div_ceil(1_000_000).min(u128::from(u64::MAX)) as u64)
}

/// Waits this long, rounded up to whole milliseconds.
pub async fn sleep(duration: Duration) {
    tokio::time::sleep(whole_ms(duration)).await;
}

/// Waits for `future` this long at most, rounded up to whole milliseconds.
///
/// # Errors
/// The time is over.
pub async fn timeout<F: Future>(duration: Duration, future: F) -> Result<F::Output, Elapsed> {
    tokio::time::timeout(whole_ms(duration), future).await
}

/// The current instant of this process's clock.
pub fn now() -> Instant {
    Instant::now()
}

/// Milliseconds, for records and events.
pub fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}
