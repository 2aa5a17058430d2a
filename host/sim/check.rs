//! The checkers: how a bucket must look whatever happened. They read raw JSON and know nothing of the ledger's code, so that a mistake there
//! cannot hide itself.

use crate::error::{Error, Result};
use crate::syncer::{Desk, verify};
use futures::TryStreamExt;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What the checkers counted.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Checked {
    /// Log entries.
    pub entries: u64,
    /// Commits.
    pub rounds: u64,
    /// Rounds that were skipped.
    pub skipped: u64,
    /// Offers by fate.
    pub fates: BTreeMap<String, u64>,
    /// Switches of policies.
    pub switches: u64,
    /// Of those, switches away from a policy that failed.
    pub given_up: u64,
    /// Commits that were recomputed to the same bytes.
    pub recomputed: u64,
    /// SHA-256 over the whole log.
    pub log: String,
}

fn wrong(what: String) -> Error {
    Error::bug(what)
}

fn number(value: &Value, name: &str) -> Result<u64> {
    value[name].as_u64().ok_or_else(|| wrong(format!("expected a number {name}, found {}", value[name])))
}

/// Checks the run called `run`.
///
/// # Errors
/// The first invariant that does not hold.
pub async fn check_bucket(store: &Arc<dyn ObjectStore>, run: &str, desk: &Desk) -> Result<Checked> {
    let unreadable = |e: object_store::Error| wrong(format!("the checker cannot read the bucket: {e}"));
    let keys: Vec<Path> = store.list(None).map_ok(|meta| meta.location).try_collect().await.map_err(unreadable)?;
    let keys: BTreeSet<String> = keys.iter().map(|k| k.as_ref().to_string()).collect();
    let log: Vec<&String> = keys.iter().filter(|k| k.starts_with(&format!("{run}/log/"))).collect();
    let mut checked = Checked { entries: log.len() as u64, ..Checked::default() };
    let mut state = State { merges: [(0, desk.record.merge.hash.clone())].into(), ..State::default() };
    let mut all = Vec::new();
    for (seq, key) in log.iter().enumerate() {
        let expected = format!("{run}/log/{seq:020}.json");
        if **key != expected {
            return Err(wrong(format!("the log has a gap: expected {expected}, found {key}")));
        }
        let bytes =
            store.get(&Path::from(key.as_str())).await.map_err(unreadable)?.bytes().await.map_err(unreadable)?;
        all.extend_from_slice(&bytes);
        let entry: Value = serde_json::from_slice(&bytes).map_err(|e| wrong(format!("{key} is not JSON: {e}")))?;
        state.take(&entry, &mut checked).map_err(|e| wrong(format!("{key}: {e}")))?;
    }
    checked.log = crate::nonce::sha256(&all);
    for key in keys.iter().filter(|k| k.starts_with(&format!("{run}/island/")) && k.ends_with("/card.json")) {
        let card = store.get(&Path::from(key.as_str())).await.map_err(unreadable)?.bytes().await.map_err(unreadable)?;
        let card: Value = serde_json::from_slice(&card).map_err(|e| wrong(format!("{key} is not JSON: {e}")))?;
        state.adds_up(&card).map_err(|e| wrong(format!("{key}: {e}")))?;
    }
    for (p, (round, hash)) in state.versions.iter().enumerate() {
        let key = format!("{run}/fragment/{p:04}/{round:020}-{hash}.arrow");
        if !keys.contains(&key) {
            return Err(wrong(format!("the committed version {key} is gone")));
        }
    }
    let verified = verify(desk, 1, |_| {}).await?;
    if let Some(what) = verified.void.first().or(verified.wrong.first()) {
        return Err(wrong(what.clone()));
    }
    checked.recomputed = verified.same;
    Ok(checked)
}

#[derive(Default)]
struct State {
    /// Per fragment: round and hash.
    versions: Vec<(u64, String)>,
    tokens: Vec<u64>,
    fated: BTreeSet<(u64, String, u64)>,
    /// Per island and fragment: the round that merged it last.
    merged: BTreeMap<(String, u64), u64>,
    lives: BTreeMap<String, u64>,
    /// Per island: tokens merged, summed over the fragments.
    island_tokens: BTreeMap<String, u64>,
    term: u64,
    stopped: bool,
    /// Hash of the merge policy, by the first round that it merges.
    merges: BTreeMap<u64, String>,
}

impl State {
    fn take(&mut self, entry: &Value, checked: &mut Checked) -> Result<()> {
        if self.stopped {
            return Err(wrong("an entry follows the end of the run".into()));
        }
        match entry["kind"].as_str() {
            Some("start") => {
                let versions = entry["versions"].as_array().cloned().unwrap_or_default();
                for version in &versions {
                    self.versions
                        .push((number(version, "round")?, version["hash"].as_str().unwrap_or_default().into()));
                }
                self.tokens = vec![0; versions.len()];
                Ok(())
            }
            Some("term") => {
                let term = number(entry, "number")?;
                if term != self.term + 1 {
                    return Err(wrong(format!("term {term} follows term {}", self.term)));
                }
                self.term = term;
                Ok(())
            }
            Some("stop") => {
                self.stopped = true;
                Ok(())
            }
            Some("activate") => self.activate(entry, checked),
            Some("commit") => self.commit(entry, checked),
            Some("skip") => self.skip(entry, checked),
            other => Err(wrong(format!("an entry of kind {other:?}"))),
        }
    }

    /// A switch comes before the rounds that it changes.
    fn activate(&mut self, entry: &Value, checked: &mut Checked) -> Result<()> {
        checked.switches += 1;
        checked.given_up += u64::from(!entry["failed"].is_null());
        let from = number(entry, "from_round")?;
        let next = self.versions.len() as u64 + checked.rounds + checked.skipped;
        if from < next {
            return Err(wrong(format!("a switch from round {from} on, when {next} is next")));
        }
        if entry["role"] == "merge" {
            self.merges.insert(from, entry["policy"]["hash"].as_str().unwrap_or_default().into());
        }
        Ok(())
    }

    /// Every token that an island trained on is merged, late, in flight or lost, once for each fragment, and what it calls merged is.
    fn adds_up(&self, card: &Value) -> Result<()> {
        let progress = &card["progress"];
        let lost = progress["lost"].as_i64().ok_or_else(|| wrong(format!("no lost tokens in {progress}")))?;
        let merged = number(progress, "merged")?;
        let parts = (merged + number(progress, "late")? + number(progress, "in_flight")?) as i64 + lost;
        let trained = number(card, "tokens")? * self.versions.len() as u64;
        if parts != trained as i64 {
            return Err(wrong(format!("{trained} tokens were trained on, {progress} come to {parts}")));
        }
        let logged = card["island"].as_str().and_then(|island| self.island_tokens.get(island)).copied().unwrap_or(0);
        if merged > logged {
            return Err(wrong(format!("it says that {merged} tokens were merged, the log has {logged}")));
        }
        Ok(())
    }

    fn commit(&mut self, entry: &Value, checked: &mut Checked) -> Result<()> {
        let fragments = self.versions.len() as u64;
        let round = number(entry, "round")?;
        if round != fragments + checked.rounds + checked.skipped {
            return Err(wrong(format!(
                "round {round} is committed after {} and {} skipped",
                checked.rounds, checked.skipped
            )));
        }
        let merge = self.merges.range(..=round).next_back().map(|(_, hash)| hash.as_str());
        if entry["merge"].as_str() != merge {
            return Err(wrong(format!("round {round} is merged by {}, active is {merge:?}", entry["merge"])));
        }
        checked.rounds += 1;
        let p = (round % fragments) as usize;
        let (base, made) = (&entry["base"], &entry["made"]);
        if (number(base, "round")?, base["hash"].as_str()) != (self.versions[p].0, Some(self.versions[p].1.as_str())) {
            return Err(wrong(format!("it extends {base}, the fragment stands at {:?}", self.versions[p])));
        }
        let mut tokens = 0;
        for offer in entry["offers"].as_array().into_iter().flatten() {
            let (island, life) =
                (offer["island"].as_str().unwrap_or_default().to_string(), number(offer, "incarnation")?);
            let fate = self.fate(offer, checked)?;
            if fate != "merged" {
                continue;
            }
            tokens += number(offer, "tokens")?;
            *self.island_tokens.entry(island.clone()).or_default() += number(offer, "tokens")?;
            let from = number(offer, "base")?;
            let before = self.merged.insert((island.clone(), p as u64), round);
            if before.is_some_and(|before| before > from) {
                return Err(wrong(format!(
                    "tokens of {island} since round {from} were merged in round {before:?} already"
                )));
            }
            if before == Some(round) {
                return Err(wrong(format!("{island} is merged twice")));
            }
            let newest = self.lives.entry(island.clone()).or_default();
            if life < *newest {
                return Err(wrong(format!("life {life} of {island} is merged after life {newest}")));
            }
            *newest = life;
        }
        if tokens == 0 {
            return Err(wrong("a commit without tokens".into()));
        }
        self.tokens[p] += tokens;
        if number(entry, "fragment_tokens")? != self.tokens[p] {
            return Err(wrong(format!(
                "the fragment has {} tokens, it says {}",
                self.tokens[p], entry["fragment_tokens"]
            )));
        }
        if number(entry, "tokens")? != self.tokens.iter().sum::<u64>() / fragments {
            return Err(wrong(format!("the run's tokens do not add up: {}", entry["tokens"])));
        }
        self.versions[p] = (round, made["hash"].as_str().unwrap_or_default().into());
        Ok(())
    }

    /// A round without a merge: the next one, for at least one offer of its own, and none of its offers merged. Versions and tokens stay.
    fn skip(&mut self, entry: &Value, checked: &mut Checked) -> Result<()> {
        let round = number(entry, "round")?;
        let next = self.versions.len() as u64 + checked.rounds + checked.skipped;
        if round != next {
            return Err(wrong(format!("round {round} is skipped where {next} is next")));
        }
        checked.skipped += 1;
        let mut own = 0;
        for offer in entry["offers"].as_array().into_iter().flatten() {
            if self.fate(offer, checked)? == "merged" {
                return Err(wrong(format!("a skipped round merges {offer}")));
            }
            own += u64::from(number(offer, "round")? == round);
        }
        if own == 0 { Err(wrong(format!("round {round} is skipped without an offer"))) } else { Ok(()) }
    }

    /// An offer's fate, which it has once.
    fn fate(&mut self, offer: &Value, checked: &mut Checked) -> Result<String> {
        let island = offer["island"].as_str().unwrap_or_default().to_string();
        if !self.fated.insert((number(offer, "round")?, island, number(offer, "incarnation")?)) {
            return Err(wrong(format!("a second fate for {offer}")));
        }
        let fate = offer["fate"].as_str().unwrap_or("refused").to_string();
        *checked.fates.entry(fate.clone()).or_default() += 1;
        Ok(fate)
    }
}
