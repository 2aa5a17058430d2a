//! Recomputing merges: given the objects that a commit names, anyone gets the same bytes (guarantee G6). The log is the tape.

use super::down::step_down;
use super::merge::{RoundInput, RoundOutput, merge_round};
use super::offer::{NO_WEIGHT, decode};
use super::run::Desk;
use crate::bucket::record::{Body, Commit, Fate, OfferRecord};
use crate::bucket::{Flat, Ledger, MEMORY_BYTES, OfferHeader, OuterState, Step, Tail, Vector, encoded_bytes_max};
use crate::error::{Error, Kind, Result};
use crate::nonce::hex;
use crate::policy::{CHUNK_ELEMENTS, Contribution, Policy, Role, Round};
use std::sync::Arc;

/// What a verification came to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Verified {
    /// Log entries read.
    pub entries: u64,
    /// Entries that are void, and why.
    pub void: Vec<String>,
    /// Commits that were recomputed to the same bytes.
    pub same: u64,
    /// Commits of which an object has been collected, so that they cannot be recomputed any more.
    pub gone: u64,
    /// Commits that were recomputed to other bytes, or whose objects are damaged: what is wrong.
    pub wrong: Vec<String>,
}

impl Verified {
    /// Whether nothing is wrong.
    pub fn is_clean(&self) -> bool {
        self.wrong.is_empty() && self.void.is_empty()
    }
}

/// Reads the whole log, checks every entry, and recomputes every `every`-th commit whose objects still exist. `progress` is told the round
/// after each commit.
///
/// # Errors
/// The bucket does not answer, or the policies cannot be run.
pub async fn verify(desk: &Desk, every: u64, mut progress: impl FnMut(u64)) -> Result<Verified> {
    let mut tail = Tail::new(Ledger::of(&desk.record));
    let mut verified = Verified::default();
    loop {
        let before = tail.ledger.clone();
        let Some(read) = tail.advance(&desk.bucket, 1).await?.pop() else { break };
        verified.entries += 1;
        match read {
            Err(violation) => verified.void.push(violation.to_string()),
            Ok(entry) => {
                if let Body::Commit(commit) = &entry.body {
                    if commit.round % every.max(1) == 0 {
                        match recompute(desk, &before, commit).await {
                            Ok(()) => verified.same += 1,
                            Err(error) if error.kind() == Kind::Unavailable => {
                                // Collected, or the store is away; what must still be there is looked at below.
                                verified.gone += 1;
                            }
                            Err(error) => verified.wrong.push(format!("round {}: {}", commit.round, error.chain())),
                        }
                    }
                    progress(commit.round);
                }
            }
        }
    }
    current(desk, &tail.ledger, &mut verified).await;
    Ok(verified)
}

/// Whether the current version of every fragment, and the state beside it, are there and whole.
async fn current(desk: &Desk, ledger: &Ledger, verified: &mut Verified) {
    for (p, version) in ledger.versions.iter().enumerate() {
        let parameters = desk.bucket.fragment_spooled(&desk.fragments, p, version).await.map(|_| ());
        let state = desk.bucket.fragment_state(&desk.fragments, p, version).await.map(|_| ());
        for error in [parameters, state].into_iter().filter_map(Result::err) {
            verified.wrong.push(format!("the current version of fragment {p}: {}", error.chain()));
        }
    }
}

/// What a commit was merged from.
pub(super) struct Tape {
    /// Its fragment.
    pub p: usize,
    /// Which round, as its policy was told.
    pub round: Round,
    /// Θ before it.
    pub parameters: Vector,
    /// What lay beside it, as the policy that was active read it.
    pub state: OuterState,
    /// Facts and decoded pseudo-gradient of every offer that took part, in order of island.
    pub contributions: Vec<(Contribution, Arc<Vector>)>,
}

impl Tape {
    /// Reads what `commit` names; `before` is what the log said before it.
    ///
    /// # Errors
    /// Unavailable: something has been collected. Corrupt: something is not what the log names.
    pub async fn read(desk: &Desk, before: &Ledger, commit: &Commit) -> Result<Tape> {
        let p = before.fragment_of(commit.round);
        let parameters = desk.bucket.fragment_spooled(&desk.fragments, p, &commit.base).await?;
        let mut state = desk.bucket.fragment_state(&desk.fragments, p, &commit.base).await?;
        if !before.active.keeps_state(commit.base.round, commit.round) {
            state = state.of_another_policy();
        }
        let took_part = |o: &&OfferRecord| {
            o.id.round == commit.round
                && match &o.fate {
                    Fate::Merged => true,
                    Fate::Refused(reason) => reason == NO_WEIGHT,
                    Fate::Late | Fate::Superseded => false,
                }
        };
        let mut contributions = Vec::new();
        for record in commit.offers.iter().filter(took_part) {
            let object = desk.bucket.offer_spooled(&record.id, encoded_bytes_max(&desk.fragments, p)).await?;
            if object.header.hash != record.hash {
                return Err(Error::corrupt(format!(
                    "the offer of {}: expected content {}, found {}",
                    record.id.island, record.hash, object.header.hash
                )));
            }
            let OfferHeader { codec, codec_config, .. } = &object.header;
            let codec = before.active.find(Role::Codec, commit.round, codec, codec_config);
            let codec = codec.ok_or_else(|| {
                Error::corrupt(format!("the offer of {}: its codec is not one of the run's", record.id.island))
            })?;
            let codec = (&desk.shelf.get(Role::Codec, codec).await?, codec.config.as_bytes());
            let (values, _) = decode(&object, codec, &desk.tensors[p])?
                .map_err(|reason| Error::corrupt(format!("the offer of {}: {reason}", record.id.island)))?;
            let facts = Contribution {
                island: record.id.island.clone(),
                tokens: record.tokens,
                steps: record.steps,
                staleness: before.staleness(commit.round, record.base).unwrap_or(0) as u32,
                norm: record.norm,
            };
            contributions.push((facts, Arc::new(values)));
        }
        let round = Round {
            index: commit.round,
            fragment: p as u32,
            version: before.merges_of(p),
            tokens_merged: before.tokens(),
            token_budget: desk.record.spec.tokens,
        };
        Ok(Tape { p, round, parameters, state, contributions })
    }

    /// Merges it with `policy`, whose optimiser goes on from `state`.
    ///
    /// # Errors
    /// Those of [`merge_round`].
    pub fn merge(&self, desk: &Desk, (policy, config): (&Policy, &str), state: &OuterState) -> Result<RoundOutput> {
        let input = RoundInput {
            round: self.round,
            tensors: &desk.tensors[self.p],
            contributions: self.contributions.clone(),
            parameters: &self.parameters,
            state,
        };
        merge_round(policy, config.as_bytes(), &input, desk.threads, &|| ())
    }

    /// Takes the way down with a merge of it, if `commit` did.
    ///
    /// # Errors
    /// Those of [`step_down`].
    pub async fn go_down(
        &self,
        desk: &Desk,
        commit: &Commit,
        output: &mut RoundOutput,
        residual: Option<&Vector>,
    ) -> Result<Option<Step>> {
        if commit.made.step.is_none() {
            return Ok(None);
        }
        step_down(desk, self.p, &self.parameters, output, residual).await
    }
}

/// Merges the offers of `commit` again on what it extends.
async fn recompute(desk: &Desk, before: &Ledger, commit: &Commit) -> Result<()> {
    let tape = Tape::read(desk, before, commit).await?;
    let p = tape.p;
    let active = before.active.at(Role::Merge, commit.round);
    let policy = desk.shelf.get(Role::Merge, active).await?;
    let mut output = tape.merge(desk, (&policy, &active.config), &tape.state)?;
    let step = tape.go_down(desk, commit, &mut output, tape.state.residual.as_ref()).await?;
    let committed = desk.bucket.fragment_spooled(&desk.fragments, p, &commit.made).await?;
    let state = desk.bucket.fragment_state(&desk.fragments, p, &commit.made).await?;
    if !same_bits(&committed, &output.parameters)? {
        return Err(Error::corrupt(format!("the merge of {} offers gives other parameters", commit.offers.len())));
    }
    let mut same = state.vectors().count() == output.state.vectors().count();
    for (stored, recomputed) in state.vectors().zip(output.state.vectors()) {
        same &= same_bits(stored, recomputed)?;
    }
    if !same {
        return Err(Error::corrupt("the merge gives another state of the outer optimiser"));
    }
    if state.memo != output.state.memo {
        return Err(Error::corrupt(format!(
            "the policy remembers {}, the state says {}",
            hex(&output.state.memo),
            hex(&state.memo)
        )));
    }
    let (Some(step), Some(named), Some(down)) = (step, &commit.made.step, &desk.record.down) else { return Ok(()) };
    if step.hash != named.hash {
        return Err(Error::corrupt(format!("the step down is {}, the commit names {}", step.hash, named.hash)));
    }
    // What an island does: it fails unless it comes to the whole version.
    let codec = desk.shelf.get(Role::Codec, down).await?;
    let codec = (&codec, down.config.as_bytes());
    desk.bucket
        .fragment_after(&desk.fragments, p, &commit.made, &tape.parameters, codec, MEMORY_BYTES)
        .await
        .map(|_| ())
}

/// Whether two vectors of one fragment are the same, bit by bit.
pub(super) fn same_bits(a: &Vector, b: &Vector) -> Result<bool> {
    let elements = a.elements();
    if elements != b.elements() {
        return Ok(false);
    }
    let room = CHUNK_ELEMENTS.min(elements);
    let (mut left, mut right) = (vec![0.0f32; room], vec![0.0f32; room]);
    for start in (0..elements).step_by(CHUNK_ELEMENTS) {
        let length = CHUNK_ELEMENTS.min(elements - start);
        a.read(start, &mut left[..length])?;
        b.read(start, &mut right[..length])?;
        if left[..length].iter().zip(&right[..length]).any(|(a, b)| a.to_bits() != b.to_bits()) {
            return Ok(false);
        }
    }
    Ok(true)
}
