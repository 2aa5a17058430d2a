//! How often one token may ask: a bucket of requests that fills at a steady rate. Pure: the time comes in.

use crate::clock::{Duration, Instant};

/// Requests a second, on average.
const PER_SECOND: f64 = 20.0;
/// Requests that may come at once after a pause.
const AT_ONCE: f64 = 40.0;

/// What one token has left.
#[derive(Debug, Clone, Copy)]
pub struct Allowance {
    left: f64,
    since: Instant,
}

impl Allowance {
    /// A full one.
    pub fn new(now: Instant) -> Allowance {
        Allowance { left: AT_ONCE, since: now }
    }

    /// Takes one request, or says in how long there is one.
    pub fn take(&mut self, now: Instant) -> Result<(), Duration> {
        let passed = now.saturating_duration_since(self.since).as_secs_f64();
        self.left = (self.left + passed * PER_SECOND).min(AT_ONCE);
        self.since = now;
        if self.left < 1.0 {
            return Err(Duration::from_secs_f64((1.0 - self.left) / PER_SECOND));
        }
        self.left -= 1.0;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;

    #[test]
    fn a_pause_gives_back_what_was_taken_and_no_more_than_there_is_room_for() {
        let start = clock::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let mut allowance = Allowance::new(start);
        let taken = |allowance: &mut Allowance, now| (0..1000).take_while(|_| allowance.take(now).is_ok()).count();
        assert_eq!(taken(&mut allowance, start), AT_ONCE as usize);
        let wait = allowance.take(start).unwrap_err();
        assert!(wait > Duration::ZERO && wait <= Duration::from_secs_f64(1.0 / PER_SECOND), "{wait:?}");
        assert_eq!(taken(&mut allowance, at(1)), PER_SECOND as usize);
        assert_eq!(taken(&mut allowance, at(1000)), AT_ONCE as usize);
    }
}
