//! The log of a run, read entry by entry and judged by rules of its own: what the host's ledger says is not asked.

use std::collections::BTreeMap;

use tombolo::bucket::Bucket;
use tombolo::bucket::record::{Body, Commit, Entry, Fate, OfferRecord, Skip};

/// All entries of a log, in order.
pub struct Tape {
    entries: Vec<Entry>,
}

/// Offers by fate.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Fates {
    /// Merged.
    pub merged: u64,
    /// Late.
    pub late: u64,
    /// Superseded.
    pub superseded: u64,
    /// Refused.
    pub refused: u64,
}

impl Tape {
    /// Reads a log to its end.
    ///
    /// # Panics
    /// If it cannot be read, or an entry is not what this version writes.
    pub async fn read(bucket: &Bucket) -> Self {
        let mut entries = Vec::new();
        while let Some(bytes) = bucket.log_bytes(entries.len() as u64).await.expect("the log is readable") {
            let entry: Entry = serde_json::from_slice(&bytes).expect("an entry of this version");
            assert_eq!(entry.seq, entries.len() as u64, "an entry names its index");
            entries.push(entry);
        }
        Self { entries }
    }

    /// The entries.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// The commits, in order.
    pub fn commits(&self) -> impl Iterator<Item = &Commit> {
        self.entries.iter().filter_map(|entry| match &entry.body {
            Body::Commit(commit) => Some(&**commit),
            _ => None,
        })
    }

    /// Every offer that has its fate, in the order of the log.
    pub fn offers(&self) -> impl Iterator<Item = &OfferRecord> {
        self.entries.iter().flat_map(|entry| match &entry.body {
            Body::Commit(commit) => &commit.offers[..],
            Body::Skip(skip) => &skip.offers[..],
            _ => &[],
        })
    }

    /// Rounds that were closed without a merge.
    pub fn skipped(&self) -> impl Iterator<Item = &Skip> {
        self.entries.iter().filter_map(|entry| match &entry.body {
            Body::Skip(skip) => Some(&**skip),
            _ => None,
        })
    }

    /// What became of the offers.
    pub fn fates(&self) -> Fates {
        let mut fates = Fates::default();
        for offer in self.offers() {
            match offer.fate {
                Fate::Merged => fates.merged += 1,
                Fate::Late => fates.late += 1,
                Fate::Superseded => fates.superseded += 1,
                Fate::Refused(_) => fates.refused += 1,
            }
        }
        fates
    }

    /// Of the rounds that were committed after all islands had taken steps and the syncer knew how long one takes: how many merged
    /// `islands` islands, how many there are.
    ///
    /// The rounds before are left out. An island that starts later than another is not waited for, and the first second of a run, in
    /// which heartbeats do not yet say how long a step takes, is many rounds where a step takes a millisecond.
    pub fn breadth_once_paced(&self, islands: usize) -> (usize, usize) {
        let merged = |commit: &Commit| commit.offers.iter().filter(|offer| offer.fate == Fate::Merged).count();
        let mut started = false;
        let paced: Vec<usize> = self
            .commits()
            .skip_while(|commit| {
                started |= merged(commit) == islands;
                !started || commit.pace.step_ms == 0.0
            })
            .map(merged)
            .collect();
        (paced.iter().filter(|&&merged| merged == islands).count(), paced.len())
    }

    /// Checks what makes the log a ledger: rounds without gap, each on the version before; every offer with one fate; no token of an
    /// island merged twice; tokens that add up. Returns tokens merged per fragment.
    ///
    /// # Panics
    /// If something does not hold.
    pub fn assert_is_a_ledger(&self) -> Vec<u64> {
        let Some(Body::Start { versions, .. }) = self.entries.first().map(|entry| &entry.body) else {
            panic!("the first entry starts the run");
        };
        let mut versions = versions.clone();
        let fragments = versions.len();
        let mut tokens = vec![0u64; fragments];
        let mut decided = BTreeMap::new();
        // Per island and fragment: the round up to which its tokens are merged.
        let mut merged_up_to: BTreeMap<(&str, usize), u64> = BTreeMap::new();
        let mut round = fragments as u64 - 1;
        for entry in &self.entries {
            let commit = match &entry.body {
                Body::Commit(commit) => commit,
                Body::Skip(skip) => {
                    round += 1;
                    assert_eq!(skip.round, round, "rounds are closed one after another");
                    assert!(skip.offers.iter().any(|offer| offer.id.round == round), "{skip:?}");
                    for offer in &skip.offers {
                        assert_ne!(offer.fate, Fate::Merged, "{skip:?}");
                        let before = decided.insert(offer.id.clone(), &offer.fate);
                        assert_eq!(before, None, "round {round}: {:?} has one fate", offer.id);
                    }
                    continue;
                }
                _ => continue,
            };
            round += 1;
            let p = (round % fragments as u64) as usize;
            assert_eq!(commit.round, round, "rounds are closed one after another");
            assert_eq!(commit.base, versions[p], "round {round} extends the version before");
            for offer in &commit.offers {
                let before = decided.insert(offer.id.clone(), &offer.fate);
                assert_eq!(before, None, "round {round}: {:?} has one fate, and it is {:?}", offer.id, offer.fate);
                if offer.fate != Fate::Merged {
                    continue;
                }
                assert_eq!(offer.id.round, round, "{:?} is merged in its own round", offer.id);
                assert!(offer.base < round && offer.base % fragments as u64 == p as u64, "{offer:?}");
                // Its tokens are those since it took in its base: they begin where those merged before end, or later.
                let place = (offer.id.island.as_str(), p);
                let up_to = merged_up_to.insert(place, round).unwrap_or(0);
                assert!(offer.base >= up_to, "round {round}: tokens since {} of {place:?} overlap {up_to}", offer.base);
                assert!(offer.tokens > 0 && offer.steps > 0, "{offer:?}");
                tokens[p] += offer.tokens;
            }
            assert_eq!(commit.fragment_tokens, tokens[p], "round {round}: the fragment's tokens add up");
            let total = tokens.iter().sum::<u64>() / fragments as u64;
            assert_eq!(commit.tokens, total, "round {round}: the run's tokens add up");
            versions[p] = commit.made.clone();
        }
        for (entry, next) in self.entries.iter().zip(self.entries.iter().skip(1)) {
            assert!(!matches!(entry.body, Body::Stop { .. }), "{next:?} follows the end of the run");
        }
        tokens
    }
}
