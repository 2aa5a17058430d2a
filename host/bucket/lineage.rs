//! Which rounds made the last versions of one fragment, so that versions can be counted. Rounds do not count them: one that is skipped makes none.

use serde::{Deserialize, Serialize};

/// Rounds of a fragment's last versions, ascending; the last one made the current version. Never empty, and bounded: of what is older only
/// is known that it is older.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Lineage(Vec<u64>);

impl Lineage {
    /// A fragment whose first version was made by round `round`.
    pub fn new(round: u64) -> Lineage {
        Lineage(vec![round])
    }

    /// Round `round` made the next version; the last `keep` (at least one) are remembered.
    pub fn push(&mut self, round: u64, keep: usize) {
        self.0.push(round);
        let forgotten = self.0.len().saturating_sub(keep.max(1));
        self.0.drain(..forgotten);
    }

    /// The round that made the current version.
    pub fn current(&self) -> u64 {
        self.0.last().copied().unwrap_or(0)
    }

    /// The round that made the version before the current one, if it is remembered.
    pub fn previous(&self) -> Option<u64> {
        self.0.iter().rev().nth(1).copied()
    }

    /// Versions made after that of round `base`, at least so many if it is older than all that are remembered; none if no round `base` made a
    /// version.
    pub fn since(&self, base: u64) -> Option<u64> {
        match self.0.binary_search(&base) {
            Ok(at) => Some((self.0.len() - 1 - at) as u64),
            Err(0) => Some(self.0.len() as u64),
            Err(_) => None,
        }
    }

    /// Whether this can be the lineage of fragment `p` of `fragments` whose current version round `current` made.
    pub fn is_whole(&self, p: u64, fragments: u64, current: u64) -> bool {
        self.0.last() == Some(&current)
            && self.0.is_sorted_by(|a, b| a < b)
            && self.0.iter().all(|round| round % fragments == p)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_counted_and_skipped_rounds_are_not() {
        let mut lineage = Lineage::new(1);
        for round in [3, 5, 11] {
            lineage.push(round, 3);
        }
        assert_eq!((lineage.current(), lineage.previous()), (11, Some(5)));
        assert_eq!(lineage.since(11), Some(0));
        assert_eq!(lineage.since(5), Some(1), "rounds 7 and 9 were skipped");
        assert_eq!(lineage.since(7), None, "and made no version");
        assert_eq!(lineage.since(1), Some(3), "older than what is remembered");
        assert_eq!(lineage.since(13), None, "not made yet");
        assert!(lineage.is_whole(1, 2, 11) && !lineage.is_whole(0, 2, 11) && !lineage.is_whole(1, 2, 13));
    }
}
