//! One round: collect its offers, close it, merge, publish, commit; or skip it.
//!
//! The life of a commit: (1) the round is closed by the machine; (2) the policy merges; (3) the new version, the step to it and the optimiser's state are
//! written under keys that nobody else writes; (4) the commit is created at the next index of the log. A crash before (4) leaves objects that
//! no log entry names, and the next syncer merges the round again from the same offers; after (4) the round is committed for good. Whoever
//! loses the index reads on and decides anew, so two syncers at once waste work and break nothing.

use super::down::step_down;
use super::merge::{RoundInput, merge_round};
use super::offer::{Facts, NO_WEIGHT, UNCLAIMED, Verdict, check};
use super::run::{Desk, Syncer, lock};
use crate::bucket::payload::Stored;
use crate::bucket::record::{Body, Commit, Fate, OfferRecord, PolicyUse, Skip, StepRef, Version};
use crate::bucket::{MEMORY_BYTES, MEMORY_ROUNDS, OfferHeader, OfferId, OuterState, Vector, encoded_bytes_max};
use crate::clock::{self, Duration, Instant};
use crate::error::{Kind, Result};
use crate::policy::{Policy, Role, Round};
use futures::future::join_all;
use std::sync::Arc;

/// Time between two looks at all offers that are still there, for those that came late.
const LATE_EVERY: Duration = Duration::from_secs(1);
/// Offers that are fetched at once.
const FETCHES_MAX: usize = 16;

/// A fragment as it stands before a round.
pub(super) struct Ahead {
    version: Version,
    parameters: Vector,
    state: OuterState,
}

impl Syncer {
    /// Lists the rounds that are open (and, now and then, all offers that are there) and fetches what is new.
    pub(super) async fn collect(&mut self, late_too: bool) -> Result<()> {
        let desk = self.desk.clone();
        let open = self.ledger().open_rounds();
        let late_too = late_too && self.looked_at.is_none_or(|at| clock::now() - at >= LATE_EVERY);
        let mut new: Vec<(OfferId, u64)> = Vec::new();
        if late_too {
            self.looked_at = Some(clock::now());
            new = desk.bucket.all_offers().await?;
        } else {
            for offers in join_all(open.clone().map(|round| desk.bucket.offers(round))).await {
                new.extend(offers?);
            }
        }
        let oldest = open.start.saturating_sub(MEMORY_ROUNDS);
        new.retain(|(id, _)| (oldest..open.end).contains(&id.round) && self.machine.is_new(id, &self.tail.ledger));
        self.unfetched = new.iter().filter(|(id, _)| id.round == open.start).count();
        self.office.owes(self.machine.owes(&self.tail.ledger, self.unfetched, clock::now()));
        for batch in new.chunks(FETCHES_MAX) {
            let fetched = join_all(batch.iter().map(|(id, _)| {
                let p = (id.round % desk.fragments.count() as u64) as usize;
                desk.bucket.offer_spooled(id, encoded_bytes_max(&desk.fragments, p))
            }))
            .await;
            for ((id, _), object) in batch.iter().zip(fetched) {
                let verdict = match object {
                    Ok(offer) => self.judge(id, &offer).await,
                    Err(error) => Err(error),
                };
                let verdict = match verdict {
                    Ok(verdict) => verdict,
                    Err(error) if error.kind() == Kind::Corrupt => {
                        desk.sink.note(&desk.id, format!("refuses an offer: {}", error.chain()));
                        Verdict::Decided(unreadable(id))
                    }
                    // Not there yet, or gone again: it is listed again next time.
                    Err(error) if error.kind() == Kind::Unavailable => continue,
                    Err(error) => return Err(error),
                };
                let (verdict, newest) = match self.of_claimed_life(id, verdict).await {
                    Ok(found) => found,
                    Err(error) if error.kind() == Kind::Unavailable => continue,
                    Err(error) => return Err(error),
                };
                if let Verdict::Decided(OfferRecord { fate: Fate::Refused(reason), .. }) = &verdict {
                    desk.sink
                        .note(&desk.id, format!("refuses the offer of {} for round {}: {reason}", id.island, id.round));
                }
                self.machine.offer(id.clone(), verdict, newest, clock::now());
                self.unfetched -= usize::from(id.round == open.start);
                self.office.moved();
            }
        }
        Ok(())
    }

    /// The newest life of an offer's island. An offer of a life that nobody has claimed is refused: merged, it would outrank every life to come.
    async fn of_claimed_life(&self, id: &OfferId, verdict: Verdict) -> Result<(Verdict, u64)> {
        let mut newest = lock(&self.incarnations).get(&id.island).copied().unwrap_or(0);
        let Verdict::Good(facts) = verdict else { return Ok((verdict, newest)) };
        if id.incarnation > newest {
            newest = self.desk.bucket.newest_incarnation(&id.island).await?;
            let mut known = lock(&self.incarnations);
            let known = known.entry(id.island.clone()).or_default();
            *known = newest.max(*known);
        }
        if id.incarnation > newest {
            return Ok((Verdict::Decided(facts.record(0.0, Fate::Refused(UNCLAIMED.into()))), newest));
        }
        Ok((Verdict::Good(facts), newest))
    }

    /// What the firewall says of an offer. Notes an island that could not encode with the codec of its round.
    async fn judge(&mut self, id: &OfferId, offer: &Stored<OfferHeader>) -> Result<Verdict> {
        let (desk, ledger) = (self.desk.clone(), self.ledger());
        let header = &offer.header;
        let known = ledger.active.find(Role::Codec, id.round, &header.codec, &header.codec_config);
        let codec = match known {
            Some(known) => match desk.shelf.get(Role::Codec, known).await {
                Ok(policy) => Some((policy, known.config.as_bytes())),
                Err(error) if error.kind() == Kind::Unavailable => return Err(error),
                // Its island could load it, if it is honest.
                Err(_) => None,
            },
            None => None,
        };
        let codec = codec.as_ref().map(|(policy, config)| (policy, *config));
        let tensors = &desk.tensors[ledger.fragment_of(id.round)];
        let verdict = check(id, offer, &desk.record.spec, ledger, &desk.fragments, codec, tensors)?;
        let falls_back = known.is_some_and(|known| !known.is_same(ledger.active.at(Role::Codec, id.round)));
        if falls_back && matches!(verdict, Verdict::Good(_)) {
            self.fell_back.insert(id.clone());
        }
        Ok(verdict)
    }

    /// Merges the next round and commits it. Where the merge policy fails, it is given up for the last one that did not, and the round is still to be closed.
    pub(super) async fn close(&mut self, reason: String, closed_at: Instant) -> Result<()> {
        let desk = self.desk.clone();
        let ahead = self.ahead.take();
        let ledger = self.ledger();
        let round = ledger.next_round;
        let p = ledger.fragment_of(round);
        let base = ledger.versions[p].clone();
        let Ahead { parameters, mut state, .. } = read_ahead(&desk, base.clone(), ahead).await?;
        if !ledger.active.keeps_state(base.round, round) {
            state = state.of_another_policy();
        }
        let active = ledger.active.at(Role::Merge, round).clone();
        let policy = match desk.shelf.get(Role::Merge, &active).await {
            Ok(policy) => policy,
            Err(error) if error.kind() == Kind::Unavailable => return Err(error),
            Err(error) => {
                let why = error.chain();
                return if self.give_up(Role::Merge, round, round, why).await? { Ok(()) } else { Err(error) };
            }
        };
        let ledger = self.ledger();
        self.office.moved();
        let chosen: Vec<Facts> = self.machine.chosen(round).into_iter().cloned().collect();
        let merge_with = |policy: &Policy, active: &PolicyUse, facts: &[Facts]| {
            let contributions = facts.iter().map(|f| (f.contribution(ledger, round), f.values.clone())).collect();
            let input = RoundInput {
                round: Round {
                    index: round,
                    fragment: p as u32,
                    version: ledger.merges_of(p),
                    tokens_merged: ledger.tokens(),
                    token_budget: desk.record.spec.tokens,
                },
                tensors: &desk.tensors[p],
                contributions,
                parameters: &parameters,
                state: &state,
            };
            merge_round(policy, active.config.as_bytes(), &input, desk.threads, &|| self.office.moved())
        };
        let merge = |facts: &[Facts]| merge_with(&policy, &active, facts);
        // A temporary file that fails says nothing of the offers.
        let fails = |facts: &[Facts]| match merge(facts) {
            Err(error) if error.kind() == Kind::Unavailable => Err(error),
            merged => Ok(merged.is_err()),
        };
        let mut output = match merge(&chosen) {
            Ok(output) => output,
            Err(error) if error.kind() == Kind::Unavailable => return Err(error),
            Err(error) => {
                // One offer can be finite and still overflow when it is applied. Whichever cannot be merged alone is refused, and the round
                // decided again; if each can, the largest is.
                let mut unfit: Vec<&Facts> = Vec::new();
                for facts in &chosen {
                    if fails(std::slice::from_ref(facts))? {
                        unfit.push(facts);
                    }
                }
                // A policy that cannot even merge nothing much is itself what failed.
                let zeros = Arc::new(Vector::zeros(parameters.elements(), MEMORY_BYTES)?);
                let nothing = Facts { norm: 0.0, values: zeros, ..chosen[0].clone() };
                let mut at_fault = fails(&[nothing])?;
                if unfit.is_empty() && !at_fault {
                    // Nothing is wrong with any of them alone. If they are too much together, they are so for the policy before this one, too.
                    at_fault = chosen.len() < 2;
                    if let Some(&before) = ledger.active.candidates(Role::Merge, round).get(1)
                        && let Ok(good) = desk.shelf.get(Role::Merge, before).await
                    {
                        at_fault |= merge_with(&good, before, &chosen).is_ok();
                    }
                    unfit.extend(chosen.iter().max_by(|a, b| a.norm.total_cmp(&b.norm)));
                }
                if at_fault {
                    let why = error.chain();
                    return if self.give_up(Role::Merge, round, round, why).await? { Ok(()) } else { Err(error) };
                }
                let unfit: Vec<OfferId> = unfit.into_iter().map(|f| f.id.clone()).collect();
                for id in unfit {
                    desk.sink.note(
                        &desk.id,
                        format!("refuses the offer of {} for round {round}: {}", id.island, error.chain()),
                    );
                    self.machine.refuse(&id, "it cannot be merged");
                }
                return Ok(());
            }
        };
        let step = match step_down(&desk, p, &parameters, &mut output, state.residual.as_ref()).await {
            Err(error) if error.kind() != Kind::Unavailable => {
                let note = format!("ALERT: round {round} is committed without a step down: {}", error.chain());
                desk.sink.note(&desk.id, note);
                None
            }
            step => step?,
        };
        self.office.moved();
        let (hash, state_hash, written) = tokio::join!(
            desk.bucket.put_fragment(&desk.fragments, p, round, &output.parameters),
            desk.bucket.put_fragment_state(&desk.fragments, p, round, &output.state),
            async {
                match &step {
                    Some(step) => desk.bucket.put_step(&desk.fragments, p, round, base.round, step).await,
                    None => Ok(()),
                }
            }
        );
        self.office.moved();
        written?;
        let step = step.map(|step| StepRef { from: base.round, hash: step.hash });
        let made = Version { round, hash: hash?, state: Some(state_hash?), step };

        let mut offers: Vec<OfferRecord> = Vec::new();
        let mut tokens = 0;
        for (facts, &weight) in chosen.iter().zip(&output.weights) {
            let merged = weight > 0.0;
            tokens += if merged { facts.tokens } else { 0 };
            let fate = if merged { Fate::Merged } else { Fate::Refused(NO_WEIGHT.into()) };
            offers.push(facts.record(weight, fate));
        }
        offers.extend(self.machine.pending(ledger));
        let ledger = self.ledger();
        let commit = Commit {
            round,
            base,
            made,
            offers,
            merge: active.hash.clone(),
            fragment_tokens: ledger.fragment_tokens[p] + tokens,
            tokens: (ledger.fragment_tokens.iter().sum::<u64>() + tokens) / ledger.fragments,
            pace: self.machine.pace(round, clock::now()),
            outer: output.outer,
            reason,
        };
        let term = ledger.term;
        // Booked before the log is read on, while the machine still has the round's offers.
        let mut after = self.machine.clone();
        if self.append(Body::Commit(Box::new(commit)), term).await? {
            after.committed(round, &self.tail.ledger, closed_at, clock::now());
            self.machine = after;
            self.clean_up(p, round);
            self.judge_codec(round, &chosen).await?;
            if self.ledger().tokens() >= desk.record.spec.tokens && self.ledger().stopped.is_none() {
                self.append(Body::Stop { reason: "the token budget is merged".into() }, term).await?;
            }
        }
        Ok(())
    }

    /// Gives the codec of a committed round up if no island could encode with it; one alone may be mistaken, or mean no good.
    async fn judge_codec(&mut self, round: u64, merged: &[Facts]) -> Result<()> {
        let by_none = merged.iter().all(|facts| self.fell_back.contains(&facts.id));
        self.fell_back.retain(|id| id.round > round);
        let from = self.ledger().first_switch(Role::Codec);
        let active = &self.ledger().active;
        // Given up already, or switched anyway: nothing to do.
        if by_none && active.at(Role::Codec, from).is_same(active.at(Role::Codec, round)) {
            let names: Vec<&str> = merged.iter().map(|facts| facts.id.island.as_str()).collect();
            let why = format!("no island could encode with it: {}", names.join(", "));
            self.give_up(Role::Codec, round, from, why).await?;
        }
        Ok(())
    }

    /// Closes the next round without a merge.
    ///
    /// Before: its quorum is not reached, and islands wait for the fate of offers that were turned down. After: the log says what became of
    /// every offer for it, and the fragment's next round can be offered for. A crash leaves the round open or skipped; the next syncer judges
    /// the same offers anew.
    pub(super) async fn skip(&mut self, reason: String, closed_at: Instant) -> Result<()> {
        let ledger = self.ledger();
        let (round, term) = (ledger.next_round, ledger.term);
        let mut offers: Vec<OfferRecord> =
            self.machine.chosen(round).into_iter().map(|facts| facts.record(0.0, Fate::Late)).collect();
        offers.extend(self.machine.pending(ledger));
        let note = format!("skips round {round}: {reason}");
        let mut after = self.machine.clone();
        if self.append(Body::Skip(Box::new(Skip { round, offers, reason })), term).await? {
            after.skipped(round, &self.tail.ledger, closed_at, clock::now());
            self.machine = after;
            self.desk.sink.note(&self.desk.id, note);
            self.clean_up(self.ledger().fragment_of(round), round);
        }
        Ok(())
    }

    /// Removes what no reader needs any more, beside everything else.
    fn clean_up(&mut self, p: usize, round: u64) {
        let ledger = self.ledger();
        let back = self.desk.record.spec.keep.versions * ledger.fragments;
        let Some(oldest) = round.checked_sub(back) else { return };
        // Rounds that were skipped made no versions: the one before the current stays, for those who have read the log up to it.
        let oldest_version = ledger.lineages[p].previous().map_or(0, |previous| previous.min(oldest));
        let (bucket, ledger) = (self.desk.bucket.clone(), ledger.clone());
        while self.cleanup.try_join_next().is_some() {}
        self.cleanup.spawn(async move {
            // Not removed now, it is removed with the fragment's next version.
            let _ = bucket.prune_fragment(p, oldest_version, &ledger.versions[p]).await;
            let _ = bucket.prune_offers(oldest, &ledger).await;
        });
    }

    /// The last round before a drained syncer ends: whatever can be closed is.
    pub(super) async fn finish(&mut self) {
        for _ in 0..self.ledger().window {
            if self.read_on().await.is_err() || !self.is_acting() || self.ledger().stopped.is_some() {
                break;
            }
            let quorum = self.desk.record.spec.outer.quorum;
            if self.collect(true).await.is_err() || self.machine.chosen(self.ledger().next_round).len() < quorum {
                break;
            }
            if let Err(error) = self.close("the syncer was drained".into(), clock::now()).await {
                self.desk.sink.note(&self.desk.id, format!("ends with an open round: {}", error.chain()));
                break;
            }
        }
        while self.cleanup.join_next().await.is_some() {}
    }
}

/// Reads what a round extends, unless `known` already is that.
pub(super) async fn read_ahead(desk: &Desk, version: Version, known: Option<Ahead>) -> Result<Ahead> {
    if let Some(known) = known
        && known.version == version
    {
        return Ok(known);
    }
    let p = (version.round % desk.fragments.count() as u64) as usize;
    let (parameters, state) = tokio::join!(
        desk.bucket.fragment_spooled(&desk.fragments, p, &version),
        desk.bucket.fragment_state(&desk.fragments, p, &version)
    );
    Ok(Ahead { version, parameters: parameters?, state: state? })
}

fn unreadable(id: &OfferId) -> OfferRecord {
    OfferRecord {
        id: id.clone(),
        hash: String::new(),
        base: 0,
        tokens: 0,
        steps: 0,
        norm: 0.0,
        weight: 0.0,
        fate: Fate::Refused("its bytes are damaged".into()),
    }
}
