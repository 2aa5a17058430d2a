//! Whether an acting syncer deserves its role, and how often a silent island is looked at. Pure.

use crate::clock::{Duration, Instant};

/// How long an acting syncer may get nothing done that it owes, before it leaves its role to another. Longer than any one fetch, put, or chunk
/// of a merge should take: whoever comes next would be no faster.
const NEGLECTED_AFTER: Duration = Duration::from_secs(120);
/// The longest time between two looks at a silent island's card.
const LOOK_MAX: Duration = Duration::from_secs(60);

/// How long after one look at an island's card the next is due, if it has been silent for so long: at once while it beats, ever more rarely
/// later, so that islands that are gone for good cost next to nothing.
pub fn next_look(silent: Duration) -> Duration {
    (silent / 8).min(LOOK_MAX)
}

/// Whether an acting syncer deserves its role. One that can beat but not, say, read offers would otherwise keep it for ever.
#[derive(Debug, Clone, Default)]
pub struct Duty {
    moved: u64,
    since: Option<Instant>,
}

impl Duty {
    /// Looks again: whether a round could be closed if it were not for this syncer's own work, and a count that grows with everything that it gets
    /// done. False once nothing has got done for [`NEGLECTED_AFTER`] although it was owed.
    pub fn is_done(&mut self, owes: bool, moved: u64, now: Instant) -> bool {
        if !owes || moved != self.moved || self.since.is_none() {
            (self.moved, self.since) = (moved, owes.then_some(now));
        }
        self.since.is_none_or(|since| now - since < NEGLECTED_AFTER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;

    #[test]
    fn a_duty_is_neglected_only_when_nothing_moves_for_long_while_it_is_owed() {
        let start = clock::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut duty = Duty::default();
        assert!(duty.is_done(false, 0, at(0)) && duty.is_done(false, 0, at(1000)), "nothing is owed");
        assert!(duty.is_done(true, 0, at(1000)) && duty.is_done(true, 0, at(1119)));
        assert!(!duty.is_done(true, 0, at(1120)) && !duty.is_done(true, 0, at(5000)), "for 120 seconds");
        assert!(duty.is_done(true, 1, at(5001)) && duty.is_done(true, 1, at(5120)), "something moves again");
        assert!(duty.is_done(true, 2, at(5121)) && duty.is_done(true, 3, at(5240)), "and again");
        assert!(duty.is_done(false, 3, at(9000)) && duty.is_done(true, 3, at(9001)));
    }

    #[test]
    fn a_silent_island_is_looked_at_ever_more_rarely() {
        let seconds = |s| Duration::from_secs(s);
        assert_eq!(next_look(seconds(0)), seconds(0));
        assert_eq!(next_look(seconds(80)), seconds(10));
        assert_eq!(next_look(seconds(100_000)), seconds(60));
    }
}
