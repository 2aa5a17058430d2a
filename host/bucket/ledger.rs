//! What the log says, entry by entry: versions, tokens, fates, term, end. Pure.
//!
//! A commit is valid exactly if it extends what came before: the next round, the current version of its fragment as base, the active policy,
//! no offer that already has a fate, no island's tokens twice. A skip closes the next round without a merge; its fragment keeps its version, so
//! versions are counted by what was merged, not by rounds. The index of an entry is the fence: its writer has read all entries before it.
//! Every reader applies the same rules in the same order, so all agree on which entries count; an entry that breaks a rule is void and
//! changes nothing.

use super::active::{AHEAD_MAX, Active};
use super::key::{is_hash, is_name};
use super::lineage::Lineage;
use super::record::{Activate, Body, Commit, Entry, FORMAT, Fate, Fates, OfferRecord, Pace, RunRecord, Skip, Version};
use crate::policy::Role;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// How many rounds back the fate of an offer is remembered one by one; older offers can get no fate any more.
pub const MEMORY_ROUNDS: u64 = 256;

/// The most tokens that one offer can have; far above anything real, far below what overflows a sum.
pub const TOKENS_MAX: u64 = 1 << 50;

/// The longest configuration of a policy, in bytes.
pub const CONFIG_BYTES_MAX: usize = 64 << 10;

/// The longest name of a policy and the longest reason for giving one up, in bytes.
const WORDS_MAX: usize = 4096;

/// How many rounds ahead a switch of policies may be.
const ROUNDS_AHEAD_MAX: u64 = 1 << 40;

/// The state of the log after a number of entries.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ledger {
    /// Format number.
    pub format: u32,
    /// Index of the next entry.
    pub next: u64,
    /// Fragments (P).
    pub fragments: u64,
    /// Most versions that an offer's base may be behind.
    pub staleness_max: u64,
    /// The policies that are active, by role and round.
    pub active: Active,
    /// Current version of each fragment; empty before the start entry.
    pub versions: Vec<Version>,
    /// Per fragment: the rounds that made its last versions, `staleness_max` + 2 of them, so that "too old" can be told from "far too old".
    pub lineages: Vec<Lineage>,
    /// Per fragment: merges so far.
    pub merges: Vec<u64>,
    /// Next round to be closed.
    pub next_round: u64,
    /// Tokens merged, per fragment.
    pub fragment_tokens: Vec<u64>,
    /// Acting term; 0 before the first.
    pub term: u64,
    /// Writer of the acting term.
    pub acting: Option<String>,
    /// Why the run has ended, if it has.
    pub stopped: Option<String>,
    /// Pace of the last commit.
    pub pace: Option<Pace>,
    /// Rounds open at once.
    pub window: u64,
    /// Offers by fate.
    pub fates: Fates,
    /// Offers that have a fate, of the last [`MEMORY_ROUNDS`] rounds.
    pub decided: BTreeSet<(u64, String, u64)>,
    /// Per island: per fragment the last round in which it was merged. Its next offer must start from there or later.
    pub merged_rounds: BTreeMap<String, BTreeMap<u64, u64>>,
    /// Per island: the newest incarnation that had an offer merged.
    pub incarnations: BTreeMap<String, u64>,
    /// Per island: what became of its offers.
    pub accounts: BTreeMap<String, Account>,
    /// Commits by the number of islands merged in them.
    pub breadth: BTreeMap<u64, u64>,
    /// Indices of void entries.
    pub void: Vec<u64>,
}

/// What became of one island's offers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Account {
    /// Tokens of its merged offers, summed over the fragments.
    pub fragment_tokens: u64,
    /// Its offers by fate.
    pub fates: Fates,
    /// The newest round for which one of its offers has a fate, and that fate.
    pub last: Option<(u64, Fate)>,
}

impl Account {
    fn count(&mut self, offer: &OfferRecord) {
        self.fates.count(&offer.fate);
        if offer.fate == Fate::Merged {
            self.fragment_tokens = self.fragment_tokens.saturating_add(offer.tokens);
        }
        if self.last.as_ref().is_none_or(|(round, _)| *round <= offer.id.round) {
            self.last = Some((offer.id.round, offer.fate.clone()));
        }
    }
}

/// Why an entry does not count.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("log entry {seq} is void: {rule}; expected {expected}, found {found}")]
pub struct Violation {
    /// Index of the entry.
    pub seq: u64,
    /// The rule that it breaks.
    pub rule: &'static str,
    /// What would have been valid.
    pub expected: String,
    /// What the entry says.
    pub found: String,
}

impl Ledger {
    /// The log of this run before its first entry.
    pub fn of(record: &RunRecord) -> Ledger {
        let active = Active::new(&record.codec, &record.merge, &record.pace);
        Ledger::new(record.fragments, record.spec.outer.staleness_max, active)
    }

    /// A log before its first entry.
    pub fn new(fragments: usize, staleness_max: u64, active: Active) -> Ledger {
        Ledger {
            format: FORMAT,
            next: 0,
            fragments: fragments as u64,
            staleness_max,
            active,
            versions: Vec::new(),
            lineages: Vec::new(),
            merges: vec![0; fragments],
            next_round: fragments as u64,
            fragment_tokens: vec![0; fragments],
            term: 0,
            acting: None,
            stopped: None,
            pace: None,
            window: 1,
            fates: Fates::default(),
            decided: BTreeSet::new(),
            merged_rounds: BTreeMap::new(),
            incarnations: BTreeMap::new(),
            accounts: BTreeMap::new(),
            breadth: BTreeMap::new(),
            void: Vec::new(),
        }
    }

    /// Whether a stored state can be what a log comes to: as many entries of each kind as there are fragments, rounds in range.
    pub fn is_whole(&self) -> bool {
        let p = self.fragments as usize;
        let rounds_fit = |(p, v): (usize, &Version)| {
            let follows = self.lineages[p].is_whole(p as u64, self.fragments, v.round);
            v.round % self.fragments == p as u64 && v.round < self.next_round && is_hash(&v.hash) && follows
        };
        self.fragments > 0
            && self.versions.len() == p
            && self.lineages.len() == p
            && self.merges.len() == p
            && self.fragment_tokens.len() == p
            && self.next_round >= self.fragments
            && self.active.is_whole(self.next_round)
            && self.versions.iter().enumerate().all(rounds_fit)
    }

    /// Fragment of a round.
    pub fn fragment_of(&self, round: u64) -> usize {
        (round % self.fragments) as usize
    }

    /// Rounds that are open now.
    pub fn open_rounds(&self) -> std::ops::Range<u64> {
        let window = self.window.clamp(1, self.fragments);
        self.next_round..self.next_round + window
    }

    /// Commits so far.
    pub fn rounds_committed(&self) -> u64 {
        self.merges.iter().sum()
    }

    /// Rounds so far that were closed without a merge.
    pub fn rounds_skipped(&self) -> u64 {
        self.next_round - self.fragments - self.rounds_committed()
    }

    /// Merges of fragment `p` so far.
    pub fn merges_of(&self, p: usize) -> u64 {
        self.merges[p]
    }

    /// Tokens merged by the run so far: the mean over the fragments, rounded down.
    pub fn tokens(&self) -> u64 {
        self.fragment_tokens.iter().sum::<u64>() / self.fragments
    }

    /// How many versions an offer for `round`, one that is still to be closed, is behind if its base is version `base` of the round's
    /// fragment: exactly up to `staleness_max` + 1, at least that beyond. None if no such version was made. (Open rounds are of different
    /// fragments, so no other one comes in between.)
    pub fn staleness(&self, round: u64, base: u64) -> Option<u64> {
        let p = round % self.fragments;
        if base % self.fragments != p { None } else { self.lineages.get(p as usize)?.since(base) }
    }

    /// Whether an offer of `island` for fragment `p` from `base` would count tokens twice: an offer of its own was merged after that base.
    pub fn counts_twice(&self, island: &str, p: usize, base: u64) -> bool {
        self.merged_rounds.get(island).and_then(|m| m.get(&(p as u64))).is_some_and(|&merged| base < merged)
    }

    /// Whether this offer already has its fate.
    pub fn is_decided(&self, round: u64, island: &str, incarnation: u64) -> bool {
        self.decided.contains(&(round, island.to_string(), incarnation))
    }

    /// Takes in the entry at index `next`. Void entries are noted and change nothing else.
    ///
    /// # Errors
    /// The rule that the entry breaks.
    ///
    /// # Panics
    /// The entry is not the next one: a reader that skips entries is a bug.
    pub fn apply(&mut self, seq: u64, entry: &Entry) -> Result<(), Violation> {
        assert_eq!(seq, self.next, "entries are read in order, none left out");
        let valid = self.check(seq, entry);
        self.next += 1;
        if valid.is_err() {
            self.void.push(seq);
            return valid;
        }
        match &entry.body {
            Body::Start { versions, window } => {
                self.lineages = versions.iter().map(|v| Lineage::new(v.round)).collect();
                self.versions = versions.clone();
                self.window = (*window).min(self.fragments);
            }
            Body::Commit(commit) => self.take(commit),
            Body::Skip(skip) => {
                self.fated(&skip.offers);
                self.close(skip.round);
            }
            Body::Activate(activate) => self.active.take(activate),
            Body::Term { number } => {
                self.term = *number;
                self.acting = Some(entry.writer.clone());
            }
            Body::Stop { reason } => self.stopped = Some(reason.clone()),
        }
        Ok(())
    }

    /// Takes in the bytes at index `next`: as [`Ledger::apply`]; bytes that are no entry are void, too.
    ///
    /// # Errors
    /// The rule that the entry breaks.
    pub fn apply_bytes(&mut self, seq: u64, bytes: &[u8]) -> Result<Entry, Violation> {
        match serde_json::from_slice::<Entry>(bytes) {
            Ok(entry) => self.apply(seq, &entry).map(|()| entry),
            Err(error) => {
                assert_eq!(seq, self.next, "entries are read in order, none left out");
                self.next += 1;
                self.void.push(seq);
                Err(Violation {
                    seq,
                    rule: "an entry is JSON of its form",
                    expected: "a log entry".into(),
                    found: error.to_string(),
                })
            }
        }
    }

    fn take(&mut self, commit: &Commit) {
        let p = self.fragment_of(commit.round);
        self.fated(&commit.offers);
        let mut merged = 0;
        for offer in commit.offers.iter().filter(|offer| offer.fate == Fate::Merged) {
            merged += 1;
            self.merged_rounds.entry(offer.id.island.clone()).or_default().insert(p as u64, commit.round);
            let newest = self.incarnations.entry(offer.id.island.clone()).or_default();
            *newest = (*newest).max(offer.id.incarnation);
        }
        *self.breadth.entry(merged).or_default() += 1;
        self.versions[p] = commit.made.clone();
        self.lineages[p].push(commit.made.round, self.staleness_max as usize + 2);
        self.merges[p] += 1;
        self.fragment_tokens[p] = commit.fragment_tokens;
        // What was open stays open: islands have offered for it, in the codec of then.
        self.window = commit.pace.window.max(self.window - 1).min(self.fragments);
        self.pace = Some(commit.pace);
        self.close(commit.round);
    }

    fn fated(&mut self, offers: &[OfferRecord]) {
        for offer in offers {
            self.fates.count(&offer.fate);
            self.accounts.entry(offer.id.island.clone()).or_default().count(offer);
            self.decided.insert((offer.id.round, offer.id.island.clone(), offer.id.incarnation));
        }
    }

    fn close(&mut self, round: u64) {
        self.next_round = round + 1;
        let oldest = self.next_round.saturating_sub(MEMORY_ROUNDS);
        self.decided = self.decided.split_off(&(oldest, String::new(), 0));
        let made = self.versions.iter().map(|version| version.round).min().unwrap_or(0);
        self.active.forget(oldest.min(made));
    }

    /// Whether `entry` at index `seq` extends this state; a syncer asks before it writes, every reader before it believes.
    ///
    /// # Errors
    /// The rule that the entry breaks.
    pub fn check(&self, seq: u64, entry: &Entry) -> Result<(), Violation> {
        let rule = |ok: bool, name: &'static str, expected: &dyn std::fmt::Debug, found: &dyn std::fmt::Debug| {
            rule(seq, ok, name, expected, found)
        };
        rule(entry.format == FORMAT, "the format is known", &FORMAT, &entry.format)?;
        rule(entry.seq == seq, "an entry names its index", &seq, &entry.seq)?;
        rule(self.stopped.is_none(), "nothing follows the end of the run", &"no entry", &"an entry")?;
        match &entry.body {
            Body::Start { versions, window } => {
                rule(seq == 0, "only the first entry starts the run", &0, &seq)?;
                rule(
                    versions.len() as u64 == self.fragments,
                    "one version per fragment",
                    &self.fragments,
                    &versions.len(),
                )?;
                let rounds: Vec<u64> = versions.iter().map(|v| v.round).collect();
                rule(
                    rounds.iter().copied().eq(0..self.fragments),
                    "round p makes the initial fragment p",
                    &(0..self.fragments),
                    &rounds,
                )?;
                rule(
                    versions.iter().all(|v| is_hash(&v.hash)),
                    "a version is named by its hash",
                    &"SHA-256",
                    versions,
                )?;
                rule(*window >= 1, "at least one round is open", &1, window)
            }
            Body::Commit(commit) => {
                rule(!self.versions.is_empty(), "the run has started", &"a start entry", &"a commit")?;
                self.check_commit(seq, commit)
            }
            Body::Skip(skip) => {
                rule(!self.versions.is_empty(), "the run has started", &"a start entry", &"a skip")?;
                self.check_skip(seq, skip)
            }
            Body::Activate(activate) => {
                rule(!self.versions.is_empty(), "the run has started", &"a start entry", &"a switch of policies")?;
                self.check_activate(seq, activate)
            }
            Body::Term { number } => rule(*number == self.term + 1, "terms count up by one", &(self.term + 1), number),
            Body::Stop { .. } => Ok(()),
        }
    }

    fn check_commit(&self, seq: u64, commit: &Commit) -> Result<(), Violation> {
        let rule = |ok: bool, name: &'static str, expected: &dyn std::fmt::Debug, found: &dyn std::fmt::Debug| {
            rule(seq, ok, name, expected, found)
        };
        let p = self.fragment_of(commit.round);
        rule(commit.round == self.next_round, "rounds are closed in order", &self.next_round, &commit.round)?;
        rule(
            commit.base == self.versions[p],
            "a commit extends the current version of its fragment",
            &self.versions[p],
            &commit.base,
        )?;
        let named = is_hash(&commit.made.hash) && commit.made.state.as_deref().is_some_and(is_hash);
        rule(named, "a version is named by hashes", &"two SHA-256", &commit.made)?;
        if let Some(step) = &commit.made.step {
            rule(is_hash(&step.hash), "a step is named by its hash", &"SHA-256", &step.hash)?;
            rule(
                step.from == commit.base.round,
                "a step leads on from the version before",
                &commit.base.round,
                &step.from,
            )?;
        }
        rule(commit.made.round == commit.round, "a version is named by its round", &commit.round, &commit.made.round)?;
        let active = &self.active.at(Role::Merge, commit.round).hash;
        rule(commit.merge == *active, "the active policy merged", active, &commit.merge)?;
        rule(commit.pace.window >= 1, "at least one round is open", &1, &commit.pace.window)?;
        self.check_fates(seq, &commit.offers)?;
        let mut islands = BTreeSet::new();
        let mut tokens = 0u64;
        for offer in &commit.offers {
            if offer.fate != Fate::Merged {
                continue;
            }
            rule(offer.id.round == commit.round, "a merged offer is for this round", &commit.round, &offer.id.round)?;
            rule(
                islands.insert(&offer.id.island),
                "an island is merged once in a round",
                &"one offer",
                &offer.id.island,
            )?;
            let newest = self.incarnations.get(&offer.id.island).copied().unwrap_or(0);
            rule(offer.id.incarnation >= newest, "a superseded life is not merged", &newest, &offer.id.incarnation)?;
            rule(
                offer.weight.is_finite() && offer.weight > 0.0,
                "a merged offer has a weight",
                &"more than 0",
                &offer.weight,
            )?;
            rule(
                offer.tokens > 0 && offer.steps > 0,
                "a merged offer has tokens and steps",
                &"more than 0",
                &(offer.tokens, offer.steps),
            )?;
            let staleness = self.staleness(commit.round, offer.base);
            rule(
                staleness.is_some_and(|s| s <= self.staleness_max),
                "a merged offer starts from a recent version of its fragment",
                &format!("at most {} versions back", self.staleness_max),
                &offer.base,
            )?;
            rule(
                !self.counts_twice(&offer.id.island, p, offer.base),
                "no token is counted twice",
                &"a base at or after its last merge",
                &offer.base,
            )?;
            tokens = tokens.saturating_add(offer.tokens);
        }
        rule(!islands.is_empty(), "a commit merges at least one offer", &"1", &0)?;
        let expected = self.fragment_tokens[p].saturating_add(tokens);
        rule(commit.fragment_tokens == expected, "the fragment's tokens add up", &expected, &commit.fragment_tokens)?;
        let total = self.fragment_tokens.iter().fold(tokens, |a, &b| a.saturating_add(b)) / self.fragments;
        rule(commit.tokens == total, "the run's tokens add up", &total, &commit.tokens)
    }

    fn check_skip(&self, seq: u64, skip: &Skip) -> Result<(), Violation> {
        rule(seq, skip.round == self.next_round, "rounds are closed in order", &self.next_round, &skip.round)?;
        self.check_fates(seq, &skip.offers)?;
        let merged = skip.offers.iter().filter(|offer| offer.fate == Fate::Merged).count();
        rule(seq, merged == 0, "a skipped round merges nothing", &0, &merged)?;
        let own = skip.offers.iter().filter(|offer| offer.id.round == skip.round).count();
        rule(seq, own > 0, "a round is skipped for an offer that cannot be merged", &"1 or more", &own)
    }

    fn check_activate(&self, seq: u64, activate: &Activate) -> Result<(), Violation> {
        let rule = |ok: bool, name: &'static str, expected: &dyn std::fmt::Debug, found: &dyn std::fmt::Debug| {
            rule(seq, ok, name, expected, found)
        };
        let Activate { role, policy, from_round: from, failed } = activate;
        let first = self.first_switch(*role);
        let possible = first..first.saturating_add(ROUNDS_AHEAD_MAX);
        rule(possible.contains(from), "a switch is ahead of the rounds that it would change", &possible, from)?;
        let ahead = self.active.ahead(*role, self.next_round).filter(|(round, _)| round != from).count();
        rule(ahead < AHEAD_MAX, "few switches lie ahead", &AHEAD_MAX, &(ahead + 1))?;
        for policy in std::iter::once(policy).chain(failed.as_ref().map(|failed| &failed.policy)) {
            rule(is_hash(&policy.hash), "a policy is named by its hash", &"SHA-256", &policy.hash)?;
            let object = policy.config.is_empty() || policy.config.starts_with('{');
            let fits = object && policy.config.len() <= CONFIG_BYTES_MAX;
            rule(fits, "a configuration is a JSON object of bounded size", &CONFIG_BYTES_MAX, &policy.config.len())?;
            rule(policy.name.len() <= WORDS_MAX, "a name is of bounded size", &WORDS_MAX, &policy.name.len())?;
        }
        let why = failed.as_ref().map_or(0, |failed| failed.why.len());
        rule(why <= WORDS_MAX, "a reason is of bounded size", &WORDS_MAX, &why)
    }

    /// The first round in which another policy can fill `role`: for a codec, the first that nobody may offer for yet.
    pub fn first_switch(&self, role: Role) -> u64 {
        match role {
            Role::Codec => self.open_rounds().end,
            Role::Merge | Role::Pace => self.next_round,
        }
    }

    /// What holds for every offer that gets its fate, whatever it is.
    fn check_fates(&self, seq: u64, offers: &[OfferRecord]) -> Result<(), Violation> {
        let mut ids = BTreeSet::new();
        for offer in offers {
            let id = (offer.id.round, offer.id.island.clone(), offer.id.incarnation);
            rule(
                seq,
                !self.decided.contains(&id) && ids.insert(id.clone()),
                "an offer has one fate",
                &"an undecided offer",
                &id,
            )?;
            rule(
                seq,
                offer.id.round < self.open_rounds().end,
                "an offer is for a round that was open",
                &self.open_rounds(),
                &id,
            )?;
            rule(
                seq,
                offer.id.round + MEMORY_ROUNDS >= self.next_round,
                "an offer that is forgotten gets no fate",
                &self.next_round,
                &id,
            )?;
            rule(seq, is_name(&offer.id.island), "an island has a name", &"letters, digits, dashes", &id.1)?;
            let possible = offer.tokens <= TOKENS_MAX;
            rule(seq, possible, "an offer has a possible number of tokens", &TOKENS_MAX, &offer.tokens)?;
        }
        Ok(())
    }
}

/// A rule that an entry keeps or breaks.
fn rule(
    seq: u64,
    ok: bool,
    rule: &'static str,
    expected: &dyn std::fmt::Debug,
    found: &dyn std::fmt::Debug,
) -> Result<(), Violation> {
    if ok {
        Ok(())
    } else {
        Err(Violation { seq, rule, expected: format!("{expected:?}"), found: format!("{found:?}") })
    }
}
