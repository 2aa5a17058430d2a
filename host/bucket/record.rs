//! The small records of the bucket: JSON with a `format` number. What is created once carries a nonce (see `create.rs`).

use super::key::OfferId;
use crate::data::Cursor;
use crate::policy::{Policy, Role};
use crate::spec::{PolicySpec, Spec};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The format number of every record written by this version.
pub const FORMAT: u32 = 1;

/// A policy as a run uses it: the component's hash and its configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyUse {
    /// What the user called it (a bundled name, or a file's name); for people only.
    pub name: String,
    /// SHA-256 of the component.
    pub hash: String,
    /// Configuration as JSON text; empty for none.
    pub config: String,
}

impl PolicyUse {
    /// This policy, as a spec names and configures it.
    pub fn of(spec: &PolicySpec, policy: &Policy) -> PolicyUse {
        let config = String::from_utf8(spec.config_json()).expect("JSON is UTF-8");
        PolicyUse { name: spec.policy.clone(), hash: policy.hash().to_string(), config }
    }

    /// Whether both are the same component with the same configuration.
    pub fn is_same(&self, other: &PolicyUse) -> bool {
        (&self.hash, &self.config) == (&other.hash, &other.config)
    }
}

/// `run.json`: the run, resolved; created once, so that two islands cannot disagree.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunRecord {
    /// Format number.
    pub format: u32,
    /// Tells this writer's record from another's.
    pub nonce: String,
    /// The spec as the creator resolved it.
    pub spec: Spec,
    /// Fingerprint of the model's layout and fragments.
    pub layout: String,
    /// Fingerprint of the training text.
    pub corpus: String,
    /// Fragments (P), after clipping to the number of tensors.
    pub fragments: usize,
    /// The codec of offers, until an `activate` entry says otherwise.
    pub codec: PolicyUse,
    /// The merge policy, until an `activate` entry says otherwise.
    pub merge: PolicyUse,
    /// The pace policy, until an `activate` entry says otherwise.
    pub pace: PolicyUse,
    /// The codec of the way down; none where islands read versions in f32.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub down: Option<PolicyUse>,
    /// Whether `tombolo chaos` struck this run; a record that does not say so is of a run that it did not.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub chaos: bool,
}

impl RunRecord {
    /// Where this record and another describe different runs: `field: here X, there Y`, empty if they are the same run.
    pub fn differences(&self, other: &RunRecord) -> Vec<String> {
        fn walk(at: &str, a: &serde_json::Value, b: &serde_json::Value, out: &mut Vec<String>) {
            match (a, b) {
                (serde_json::Value::Object(a), serde_json::Value::Object(b)) => {
                    let names: std::collections::BTreeSet<_> = a.keys().chain(b.keys()).collect();
                    for name in names {
                        let null = serde_json::Value::Null;
                        let path = if at.is_empty() { name.clone() } else { format!("{at}.{name}") };
                        walk(&path, a.get(name).unwrap_or(&null), b.get(name).unwrap_or(&null), out);
                    }
                }
                _ if a != b => out.push(format!("{at}: here {a}, in the bucket {b}")),
                _ => {}
            }
        }
        let value = |r: &RunRecord| {
            // Where the text lies and how many islands this machine starts are nobody else's business.
            let mut r = RunRecord { nonce: String::new(), chaos: false, ..r.clone() };
            r.spec.islands = 0;
            r.spec.data.path = String::new();
            r.spec.codec.policy = String::new();
            r.spec.merge.policy = String::new();
            r.spec.down.policy = String::new();
            r.spec.pace.policy = String::new();
            serde_json::to_value(r).expect("a record serialises")
        };
        let mut out = Vec::new();
        walk("", &value(self), &value(other), &mut out);
        // A run that chaos struck may go on without it, and stays marked; one that is not marked cannot be marked any more.
        if self.chaos && !other.chaos {
            out.push("chaos: here true, in the bucket false".into());
        }
        out
    }
}

/// One version of one fragment, as the log names it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Version {
    /// The round that made it; round p (< P) is the initial version of fragment p.
    pub round: u64,
    /// Content hash of the fragment object.
    pub hash: String,
    /// Content hash of the outer optimiser's state beside it; none for an initial version.
    pub state: Option<String>,
    /// The way to it from the version before; none where it has to be read whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<StepRef>,
}

/// An encoded step between two versions of one fragment. The newer version is defined as what this decodes to, added to the older one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepRef {
    /// Round that made the older version.
    pub from: u64,
    /// Content hash of the step object.
    pub hash: String,
}

/// What became of an offer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Fate {
    /// It is part of the commit that names it.
    Merged,
    /// It came after its round was closed, its base was too old, or its round was skipped for want of others; its progress goes out with the
    /// island's next offer.
    Late,
    /// A newer life of the same island has taken its place.
    Superseded,
    /// It was not fit to be merged, for this reason.
    Refused(String),
}

/// An offer in the ledger.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OfferRecord {
    /// Which offer.
    #[serde(flatten)]
    pub id: OfferId,
    /// Content hash of the offer object; empty where it could not be read.
    pub hash: String,
    /// Round of the version that the island had adopted.
    pub base: u64,
    /// Tokens trained on since then.
    pub tokens: u64,
    /// Inner steps over the same span.
    pub steps: u32,
    /// L2 norm of the decoded pseudo-gradient.
    pub norm: f32,
    /// Weight that the merge policy gave; 0 where it was not merged.
    pub weight: f32,
    /// What became of it.
    pub fate: Fate,
}

/// How rounds are paced, decided by the syncer with every commit.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Pace {
    /// Rounds that are open at once.
    pub window: u64,
    /// Inner steps between two offers of one fragment that this amounts to (H; grows where the store is slow).
    pub sync_steps: f64,
    /// Moving average of an inner step, in milliseconds.
    pub step_ms: f64,
    /// Moving average from the first offer of a round to its closing.
    pub quorum_ms: f64,
    /// Moving average of merging and publishing.
    pub sync_ms: f64,
    /// Time between this commit and the one before, in milliseconds of the syncer's clock.
    pub spacing_ms: f64,
}

/// What tells how well the outer loop is tuned.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct OuterFacts {
    /// L2 norm of the weighted mean of the merged pseudo-gradients.
    pub delta_norm: f32,
    /// L2 norm of the step that the parameters took.
    pub step_norm: f32,
    /// Cosine between that mean and that step: near 1 while momentum follows the islands, small where it leads them; none if either is zero.
    pub cosine: Option<f32>,
}

/// One merged round.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Commit {
    /// Index of the round; its fragment is round mod P.
    pub round: u64,
    /// The version that it extends.
    pub base: Version,
    /// The version that it makes.
    pub made: Version,
    /// Every offer that got its fate with this commit, of this and of earlier rounds.
    pub offers: Vec<OfferRecord>,
    /// Hash of the merge policy that ran.
    pub merge: String,
    /// Tokens merged into this fragment so far, this round included.
    pub fragment_tokens: u64,
    /// Tokens merged by the run so far: the mean over the fragments.
    pub tokens: u64,
    /// Pace of the rounds from here on.
    pub pace: Pace,
    /// Outer-loop facts.
    pub outer: OuterFacts,
    /// Why the round was closed when it was.
    pub reason: String,
}

/// A round that was closed without a merge, because too few of the offers for it may be merged: their islands cannot offer for it again, and
/// would wait for it for ever. Its fragment keeps its version.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Skip {
    /// Index of the round; its fragment is round mod P.
    pub round: u64,
    /// Every offer that got its fate with this entry, of this and of earlier rounds: none merged, at least one of this round.
    pub offers: Vec<OfferRecord>,
    /// Why the round was skipped when it was.
    pub reason: String,
}

/// A policy that was given up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failed {
    /// Which.
    pub policy: PolicyUse,
    /// What it did.
    pub why: String,
}

/// Another policy fills a role from some round on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Activate {
    /// The role.
    pub role: Role,
    /// Who fills it.
    pub policy: PolicyUse,
    /// The first round in which it does. A codec's is not open yet.
    pub from_round: u64,
    /// The policy that it takes the place of, if that failed; none where somebody asked for the switch.
    pub failed: Option<Failed>,
}

/// What a log entry says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Body {
    /// Entry 0: the initial version of every fragment, and the first pace.
    Start {
        /// Versions of rounds 0 to P − 1.
        versions: Vec<Version>,
        /// Rounds open at once until the first commit says otherwise.
        window: u64,
    },
    /// A merged round.
    Commit(Box<Commit>),
    /// A round without a merge.
    Skip(Box<Skip>),
    /// Another policy fills a role.
    Activate(Box<Activate>),
    /// A syncer takes the role.
    Term {
        /// Number of the term, one more than the last.
        number: u64,
    },
    /// The run has ended.
    Stop {
        /// Why.
        reason: String,
    },
}

/// A log entry.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// Format number.
    pub format: u32,
    /// Its index in the log.
    pub seq: u64,
    /// Tells this writer's entry from another's.
    pub nonce: String,
    /// Who wrote it.
    pub writer: String,
    /// The term under which it was written; 0 before the first.
    pub term: u64,
    /// What it says.
    #[serde(flatten)]
    pub body: Body,
}

/// What an island is doing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum IslandState {
    /// Preparing: reading data, compiling policies, restoring.
    #[default]
    Starting,
    /// Taking inner steps.
    Training,
    /// Publishing what it has before it stops.
    Draining,
    /// Ended normally.
    Done,
}

/// What became of the tokens that an island trained on. Every token counts once for each fragment, since every fragment learns from it and each is
/// merged by itself, so all of this is summed over the P fragments: P · tokens trained = merged + late + in flight + lost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// In offers that were merged, as far as the island has read.
    pub merged: u64,
    /// Dropped because its base had become too old before it could be merged.
    pub late: u64,
    /// Not merged yet; it goes out with the next offers.
    pub in_flight: u64,
    /// Overwritten by a version that was merged from earlier steps, or gone with an earlier life. Below 0 while an offer of an earlier life, given up
    /// for lost, has been merged after all and is still in flight here.
    pub lost: i64,
}

impl Progress {
    /// P · tokens trained.
    pub fn total(&self) -> i64 {
        (self.merged + self.late + self.in_flight) as i64 + self.lost
    }
}

/// `island/<id>/card.json`: the heartbeat. One writer; the only overwritten key of an island.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Card {
    /// Format number.
    pub format: u32,
    /// Island.
    pub island: String,
    /// Its life.
    pub incarnation: u64,
    /// Grows with every beat; whoever watches compares it with what it saw before, on its own clock.
    pub counter: u64,
    /// What it is doing.
    pub state: IslandState,
    /// Fingerprint of its model's layout.
    pub layout: String,
    /// Inner steps over all lives.
    pub step: u64,
    /// Tokens trained on over all lives.
    pub tokens: u64,
    /// Of those, tokens trained on again because no new block could be claimed.
    pub tokens_repeated: u64,
    /// What became of them.
    pub progress: Progress,
    /// Blocks of training data and the place in each: first the one in use.
    pub held: Vec<Cursor>,
    /// Training loss, smoothed; none before the first step.
    pub loss: Option<f32>,
    /// Tokens per second, smoothed.
    pub tokens_per_s: f32,
    /// Milliseconds of an inner step, smoothed.
    pub step_ms: f32,
    /// Share of the time since it started that it was not stepping.
    pub wait_ratio: f32,
    /// Seconds of this life spent in the training loop.
    pub train_seconds: f32,
    /// The newest round taken in.
    pub adopted: Option<u64>,
    /// Round of the version held, per fragment.
    pub versions: Vec<u64>,
}

/// `island/<id>/incarnation/<n>.json`, `data/<block>.<attempt>.json`: a claim, created once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// Format number.
    pub format: u32,
    /// Tells this claim from another's.
    pub nonce: String,
    /// Who claims.
    pub island: String,
    /// In which life; for an incarnation's claim, the life claimed.
    pub incarnation: u64,
}

/// `syncer/<id>.json`: the beat of a syncer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Beat {
    /// Format number.
    pub format: u32,
    /// Syncer.
    pub syncer: String,
    /// Grows with every beat.
    pub counter: u64,
    /// The term in which it acts; none while it stands by.
    pub acting: Option<u64>,
}

/// Offers by fate.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fates {
    /// Merged.
    pub merged: u64,
    /// Late.
    pub late: u64,
    /// Superseded.
    pub superseded: u64,
    /// Refused.
    pub refused: u64,
    /// Refused, by reason.
    pub reasons: BTreeMap<String, u64>,
}

impl Fates {
    /// Counts one offer.
    pub fn count(&mut self, fate: &Fate) {
        match fate {
            Fate::Merged => self.merged += 1,
            Fate::Late => self.late += 1,
            Fate::Superseded => self.superseded += 1,
            Fate::Refused(reason) => {
                self.refused += 1;
                // Reasons come from a closed set in `syncer/offer`, but the log is input: bound what it can make us hold.
                if self.reasons.len() < 64 || self.reasons.contains_key(reason) {
                    *self.reasons.entry(reason.clone()).or_default() += 1;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(chaos: bool) -> RunRecord {
        let policy = PolicyUse { name: "p".into(), hash: "h".into(), config: String::new() };
        RunRecord {
            format: FORMAT,
            nonce: "n".into(),
            spec: Spec::default(),
            layout: "l".into(),
            corpus: "c".into(),
            fragments: 1,
            codec: policy.clone(),
            merge: policy.clone(),
            pace: policy,
            down: None,
            chaos,
        }
    }

    #[test]
    fn a_record_that_says_nothing_of_chaos_is_of_a_run_without() {
        let text = serde_json::to_string(&run(false)).unwrap();
        assert!(!text.contains("chaos"), "as it was before there was such a field: {text}");
        assert_eq!(serde_json::from_str::<RunRecord>(&text).unwrap(), run(false));
        let text = serde_json::to_string(&run(true)).unwrap();
        assert_eq!(serde_json::from_str::<RunRecord>(&text).unwrap(), run(true));
    }

    #[test]
    fn a_run_may_go_on_without_chaos_but_chaos_takes_no_run_that_is_not_marked() {
        assert_eq!(run(false).differences(&run(true)), Vec::<String>::new());
        assert_eq!(run(true).differences(&run(true)), Vec::<String>::new());
        assert_eq!(run(true).differences(&run(false)), ["chaos: here true, in the bucket false"]);
    }

    #[test]
    fn every_kind_of_entry_is_read_as_it_was_written() {
        let version = Version { round: 3, hash: "h".into(), state: Some("s".into()), step: None };
        let pace = Pace { window: 2, sync_steps: 24.0, step_ms: 70.0, quorum_ms: 1.0, sync_ms: 2.0, spacing_ms: 80.5 };
        let offer = OfferRecord {
            id: OfferId { round: 27, island: "a".into(), incarnation: 1 },
            hash: "x".into(),
            base: 3,
            tokens: 10,
            steps: 1,
            norm: 0.1,
            weight: 10.0,
            fate: Fate::Refused("why".into()),
        };
        let skip = Skip { round: 28, offers: vec![offer.clone()], reason: "nothing to merge".into() };
        let commit = Commit {
            round: 27,
            base: version.clone(),
            made: version.clone(),
            offers: vec![offer],
            merge: "m".into(),
            fragment_tokens: 10,
            tokens: 1,
            pace,
            outer: OuterFacts { delta_norm: 1.0, step_norm: 0.1, cosine: Some(0.3) },
            reason: "all in".into(),
        };
        for body in [
            Body::Start { versions: vec![version], window: 2 },
            Body::Commit(Box::new(commit)),
            Body::Skip(Box::new(skip)),
            Body::Term { number: 1 },
            Body::Stop { reason: "done".into() },
        ] {
            let entry = Entry { format: FORMAT, seq: 1, nonce: "n".into(), writer: "w".into(), term: 1, body };
            let text = serde_json::to_string(&entry).unwrap();
            assert_eq!(serde_json::from_str::<Entry>(&text).unwrap(), entry, "{text}");
        }
    }
}
