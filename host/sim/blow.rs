//! The blows of `tombolo chaos`: what is done to whom, when, for how long. A pure function of the seed and of what can be struck.
//!
//! Kinds are dealt like cards: each comes once, in an order of the seed's, before any comes again. A quiet beginning lets undisturbed rates
//! be measured, a quiet end lets the last blow be recovered from; between them blows overlap as they fall.

use crate::clock::Duration;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use std::fmt;

/// What is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Blow {
    /// The process is ended with SIGKILL.
    Kill,
    /// It is stopped with SIGSTOP, and goes on later.
    Freeze,
    /// It is stopped, its successor is started beside it, and then it goes on.
    Replace,
    /// Its link to the bucket is closed.
    Cut,
    /// Its link becomes slow and far.
    Slow,
    /// Most of its requests are answered with 503.
    Refuse,
    /// Many of its connections are closed before or after the request was applied.
    Close,
    /// Many of its answers are cut off in the middle.
    CutOff,
    /// Many of its requests are delivered twice.
    Double,
    /// An offer that is no offer is put into the bucket.
    CorruptOffer,
}

impl fmt::Display for Blow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Blow::Kill => "killed",
            Blow::Freeze => "frozen",
            Blow::Replace => "frozen and replaced",
            Blow::Cut => "cut off from the bucket",
            Blow::Slow => "given a slow link",
            Blow::Refuse => "refused with 503",
            Blow::Close => "closed on before and after",
            Blow::CutOff => "given answers cut off",
            Blow::Double => "delivered twice",
            Blow::CorruptOffer => "corrupt offer put",
        })
    }
}

/// Who is struck.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// Island with this index.
    Island(usize),
    /// Whoever acts as the syncer then.
    Syncer,
    /// The bucket.
    Bucket,
}

/// One blow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Strike {
    /// When, from the beginning.
    pub at: Duration,
    /// For how long; zero where it is over at once.
    pub lasts: Duration,
    /// Who.
    pub target: Target,
    /// What.
    pub blow: Blow,
}

/// The kinds, each with whether it strikes the syncer and with the least and most milliseconds that it lasts. The syncer is frozen and cut off for
/// longer than the five beats after which another takes its role.
const PROCESS: [(Blow, bool, u64, u64); 6] = [
    (Blow::Kill, false, 0, 0),
    (Blow::Kill, true, 0, 0),
    (Blow::Freeze, false, 1000, 4000),
    (Blow::Replace, false, 2500, 4000),
    (Blow::Freeze, true, 4000, 6000),
    (Blow::CorruptOffer, false, 0, 0),
];
const NETWORK: [(Blow, bool, u64, u64); 7] = [
    (Blow::Cut, false, 1000, 4000),
    (Blow::Cut, true, 4000, 6000),
    (Blow::Slow, false, 2000, 5000),
    (Blow::Refuse, false, 1000, 4000),
    (Blow::Close, false, 1000, 4000),
    (Blow::CutOff, false, 1000, 4000),
    (Blow::Double, false, 1000, 4000),
];

/// How long the beginning and the end of `length` stay quiet.
pub fn quiet(length: Duration) -> Duration {
    (length / 8).clamp(Duration::from_secs(4), Duration::from_secs(30))
}

/// The blows within `length` on `islands` islands, those on links only where there are links between processes and the bucket (`network`).
///
/// # Panics
/// There are no islands.
pub fn schedule(seed: u64, length: Duration, islands: usize, network: bool) -> Vec<Strike> {
    assert!(islands > 0, "a run has islands");
    let mut random = StdRng::seed_from_u64(seed);
    let (quiet, gap_ms) = (quiet(length), (length.as_millis() as u64 / 30).clamp(1500, 6000));
    let last = length.saturating_sub(quiet);
    let mut strikes = Vec::new();
    let (mut at, mut cards) = (quiet, Vec::new());
    loop {
        if cards.is_empty() {
            cards = PROCESS.to_vec();
            if network {
                cards.extend(NETWORK);
            }
            cards.shuffle(&mut random);
        }
        let Some((blow, syncer, least_ms, most_ms)) = cards.pop() else { return strikes };
        let target = match (blow, syncer) {
            (Blow::CorruptOffer, _) => Target::Bucket,
            (_, true) => Target::Syncer,
            (_, false) => Target::Island(random.random_range(0..islands)),
        };
        let lasts = Duration::from_millis(random.random_range(least_ms..=most_ms));
        if at + lasts > last {
            return strikes;
        }
        strikes.push(Strike { at, lasts, target, blow });
        at += Duration::from_millis(random.random_range(gap_ms / 2..=gap_ms * 3 / 2));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    const TEN_MINUTES: Duration = Duration::from_secs(600);

    #[test]
    fn the_same_seed_gives_the_same_blows_and_another_gives_others() {
        let blows = schedule(7, TEN_MINUTES, 4, true);
        assert_eq!(blows, schedule(7, TEN_MINUTES, 4, true));
        assert_ne!(blows, schedule(8, TEN_MINUTES, 4, true));
    }

    #[test]
    fn blows_fall_between_a_quiet_beginning_and_a_quiet_end() {
        for seed in 0..200 {
            for seconds in [20, 60, 600] {
                let length = Duration::from_secs(seconds);
                let blows = schedule(seed, length, 4, true);
                assert!(blows.len() as u64 >= seconds / 10, "seed {seed}: {} blows in {seconds} s", blows.len());
                assert!(blows.windows(2).all(|two| two[0].at < two[1].at));
                let inside = |s: &Strike| s.at >= quiet(length) && s.at + s.lasts <= length - quiet(length);
                assert!(blows.iter().all(inside), "seed {seed}, {seconds} s");
            }
        }
    }

    #[test]
    fn ten_minutes_have_every_kind_on_every_island_that_can_be_struck() {
        for seed in 0..50 {
            let blows = schedule(seed, TEN_MINUTES, 4, true);
            let kinds: BTreeSet<(Blow, bool)> = blows.iter().map(|s| (s.blow, s.target == Target::Syncer)).collect();
            assert_eq!(kinds.len(), PROCESS.len() + NETWORK.len(), "seed {seed}");
            for island in 0..4 {
                assert!(blows.iter().any(|s| s.target == Target::Island(island)), "seed {seed}, island {island}");
            }
        }
    }

    #[test]
    fn without_links_processes_are_struck_and_nothing_else() {
        let blows = schedule(3, TEN_MINUTES, 2, false);
        let kinds: BTreeSet<Blow> = blows.iter().map(|s| s.blow).collect();
        assert_eq!(kinds, BTreeSet::from([Blow::Kill, Blow::Freeze, Blow::Replace, Blow::CorruptOffer]));
    }

    #[test]
    fn no_time_has_no_blows() {
        assert_eq!(schedule(0, Duration::from_secs(7), 3, true), []);
    }
}
