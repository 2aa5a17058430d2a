//! How many inner steps lie between two merges of a fragment.

use crate::spec::OuterSpec;

/// H, which grows with the rounds of a fragment: linearly from a third of `sync_steps` to all of it over the first `sync_warmup` of them. Early on the islands
/// move apart fast, and a merge is worth the most (EXPERIMENTS.md). It does not begin below four times τ, since the τ steps that are taken while a merge is under
/// way are overwritten by it. Nothing else enters it, so every process of a run comes to the same H.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Period {
    first: u64,
    sync_steps: u64,
    warmup: u64,
}

impl Period {
    /// The period that a spec asks for.
    pub fn of(outer: &OuterSpec) -> Period {
        let (sync_steps, overlap) = (outer.sync_steps as u64, outer.overlap_steps as u64);
        let first = sync_steps.div_ceil(3).max(4 * overlap).min(sync_steps);
        Period { first, sync_steps, warmup: outer.sync_warmup }
    }

    /// H before round `round` of a run with that many fragments, of which the first round is number `fragments`.
    pub fn before(&self, round: u64, fragments: u64) -> u64 {
        self.at((round / fragments).saturating_sub(1))
    }

    /// H before the round of a fragment that `version` rounds of it precede, to the nearest step.
    pub fn at(&self, version: u64) -> u64 {
        if version >= self.warmup {
            return self.sync_steps;
        }
        self.first + ((self.sync_steps - self.first) * version + self.warmup / 2) / self.warmup
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn period(sync_steps: usize, sync_warmup: u64, overlap_steps: usize) -> Period {
        Period::of(&OuterSpec { sync_steps, sync_warmup, overlap_steps, ..OuterSpec::default() })
    }

    #[test]
    fn the_period_grows_from_a_third_to_the_whole_and_stays_there() {
        let grown = period(24, 50, 2);
        assert_eq!([0, 1, 2, 25, 49, 50, u64::MAX].map(|version| grown.at(version)), [8, 8, 9, 16, 24, 24, 24]);
        assert!((0..60).all(|version| grown.at(version) <= grown.at(version + 1)));
        assert_eq!([4, 7, 8, 11, 12].map(|round| period(6, 2, 0).before(round, 4)), [2, 2, 4, 4, 6]);
        assert_eq!(period(24, 0, 2).at(0), 24, "no warm-up");
        assert_eq!(
            [period(500, 50, 2), period(12, 50, 2)].map(|period| period.at(0)),
            [167, 8],
            "a third, or four times τ"
        );
        assert_eq!([period(1, 50, 0), period(6, 50, 2)].map(|period| period.at(0)), [1, 6], "but no more than H");
        assert_eq!(period(1_000_000, 1_000_000, 0).at(500_000), 666_667);
    }
}
