//! When a blow is recovered from, read from the log. Pure.
//!
//! An island has recovered when an offer is merged that it made after the blow: one of a newer life where the process was killed or replaced, one
//! for a round that was not yet open when the blow was over otherwise. The role of the syncer has when a round is committed by another syncer, or,
//! once the blow is over, by anyone. A corrupt offer has when its refusal is recorded, in a commit or in a skip.

use crate::bucket::OfferId;
use crate::bucket::record::{Body, Entry, Fate};
use crate::clock::Instant;

/// What the log has to say for a blow to be recovered from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cure {
    /// An offer of this island from a life after this one is merged.
    Life(String, u64),
    /// An offer of this island for this round or a later one is merged.
    Offer(String, u64),
    /// A round is committed, not by this syncer.
    CommitNotBy(String),
    /// A round is committed.
    Commit,
    /// This offer is refused.
    Refused(OfferId),
}

impl Cure {
    /// Whether this entry says so.
    pub fn is_in(&self, entry: &Entry) -> bool {
        let (offers, commits) = match &entry.body {
            Body::Commit(commit) => (&commit.offers, true),
            Body::Skip(skip) => (&skip.offers, false),
            _ => return false,
        };
        let mut merged = offers.iter().filter(|offer| offer.fate == Fate::Merged).map(|offer| &offer.id);
        match self {
            Cure::Life(island, life) => merged.any(|id| id.island == *island && id.incarnation > *life),
            Cure::Offer(island, round) => merged.any(|id| id.island == *island && id.round >= *round),
            Cure::CommitNotBy(syncer) => commits && entry.writer != *syncer,
            Cure::Commit => commits,
            Cure::Refused(id) => offers.iter().any(|o| o.id == *id && matches!(o.fate, Fate::Refused(_))),
        }
    }
}

/// A blow that is not recovered from yet.
#[derive(Debug, Clone, PartialEq)]
pub struct Wound {
    /// Index of the blow's line in the report.
    pub line: usize,
    /// From when on recovery is counted.
    pub since: Instant,
    /// What it takes.
    pub cure: Cure,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bucket::record::{Commit, FORMAT, OfferRecord, OuterFacts, Pace, Skip, Version};

    fn commit(writer: &str, round: u64, life: u64, fate: Fate) -> Entry {
        let version = Version { round, hash: String::new(), state: None, step: None };
        let offer = OfferRecord {
            id: OfferId { round, island: "a".into(), incarnation: life },
            hash: String::new(),
            base: 0,
            tokens: 1,
            steps: 1,
            norm: 1.0,
            weight: 1.0,
            fate,
        };
        let commit = Commit {
            round,
            base: version.clone(),
            made: version,
            offers: vec![offer],
            merge: String::new(),
            fragment_tokens: 1,
            tokens: 1,
            pace: Pace { window: 1, sync_steps: 1.0, step_ms: 1.0, quorum_ms: 1.0, sync_ms: 1.0, spacing_ms: 1.0 },
            outer: OuterFacts::default(),
            reason: String::new(),
        };
        let (seq, nonce, writer) = (1, String::new(), writer.to_string());
        Entry { format: FORMAT, seq, nonce, writer, term: 1, body: Body::Commit(Box::new(commit)) }
    }

    #[test]
    fn an_island_has_recovered_once_what_it_made_after_the_blow_is_merged() {
        let (old, new) = (commit("s", 9, 1, Fate::Merged), commit("s", 10, 2, Fate::Merged));
        let killed = Cure::Life("a".into(), 1);
        assert!(!killed.is_in(&old) && killed.is_in(&new), "what the dead life had offered is no recovery");
        let thawed = Cure::Offer("a".into(), 10);
        assert!(!thawed.is_in(&old) && thawed.is_in(&new));
        assert!(!thawed.is_in(&commit("s", 10, 2, Fate::Late)), "it must be merged");
        assert!(!Cure::Offer("b".into(), 0).is_in(&new), "another island's offers are no recovery");
    }

    #[test]
    fn the_syncers_role_has_recovered_once_another_commits() {
        let entry = commit("syncer-1", 9, 1, Fate::Merged);
        assert!(!Cure::CommitNotBy("syncer-1".into()).is_in(&entry));
        assert!(Cure::CommitNotBy("syncer-2".into()).is_in(&entry) && Cure::Commit.is_in(&entry));
        let term = Entry { body: Body::Term { number: 2 }, ..entry };
        assert!(!Cure::Commit.is_in(&term), "a role that was taken is not yet a round");
    }

    #[test]
    fn a_corrupt_offer_has_its_fate_once_it_is_refused() {
        let cure = Cure::Refused(OfferId { round: 9, island: "a".into(), incarnation: 1 });
        let refused = commit("s", 9, 1, Fate::Refused("damaged".into()));
        assert!(cure.is_in(&refused));
        let Body::Commit(inner) = refused.body else { unreachable!("made as a commit") };
        let skip = Body::Skip(Box::new(Skip { round: 9, offers: inner.offers, reason: String::new() }));
        let skipped = Entry { body: skip, ..commit("s", 9, 1, Fate::Late) };
        assert!(cure.is_in(&skipped), "in the entry of a round without a merge as well");
        assert!(
            !Cure::Commit.is_in(&skipped) && !Cure::CommitNotBy("x".into()).is_in(&skipped),
            "no round is committed"
        );
        assert!(
            !cure.is_in(&commit("s", 9, 1, Fate::Late)) && !cure.is_in(&commit("s", 9, 2, Fate::Refused("x".into())))
        );
    }
}
