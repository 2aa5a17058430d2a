//! The syncer's I/O: read the log, list and fetch offers, merge, publish, commit.
//!
//! The life of a commit: (1) the round is closed by the machine; (2) the policy merges; (3) the new version and the optimiser's state are
//! written under keys that nobody else writes; (4) the commit is created at the next index of the log. A crash before (4) leaves objects that
//! no log entry names, and the next syncer merges the round again from the same offers; after (4) the round is committed for good. Whoever
//! loses the index reads on and decides anew, so two syncers at once waste work and break nothing.

use super::machine::{Decision, Machine, Rules};
use super::merge::{RoundInput, merge_round};
use super::offer::{Facts, NO_WEIGHT, Verdict, check};
use crate::bucket::record::{
    Beat, Body, Commit, Entry, FORMAT, Fate, IslandState, OfferRecord, RunRecord, Skip, Version,
};
use crate::bucket::{Bucket, Created, Ledger, MEMORY_ROUNDS, OfferId, Tail};
use crate::clock::{self, Duration, Instant};
use crate::error::{Error, Kind, Result};
use crate::event::Sink;
use crate::nonce::nonce;
use crate::outer::Fragments;
use crate::policy::{Contribution, Policy, Round, Tensor};
use futures::future::join_all;
use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::task::JoinSet;

/// Time between two looks at all offers that are still there, for those that came late.
const LATE_EVERY: Duration = Duration::from_secs(1);
/// Polls between two looks at the log while acting.
const LOG_EVERY: u64 = 8;
/// Offers that are fetched at once.
const FETCHES_MAX: usize = 16;
/// Beats that an acting syncer may miss before another takes the role.
const MISSED_BEATS: u32 = 5;

/// Everything that a syncer is given.
pub struct Desk {
    /// The run's bucket.
    pub bucket: Bucket,
    /// The run's record.
    pub record: RunRecord,
    /// Its own name, never used before.
    pub id: String,
    /// Fragments of the model.
    pub fragments: Arc<Fragments>,
    /// Per fragment, its tensors as policies see them.
    pub tensors: Vec<Vec<Tensor>>,
    /// The codec of offers.
    pub codec: Policy,
    /// The merge policy.
    pub merge: Policy,
    /// Threads of a merge.
    pub threads: usize,
    /// Whether it takes a role that nobody has yet at once.
    pub eager: bool,
    /// Where events go.
    pub sink: Sink,
    /// Time between two beats.
    pub beat_every: Duration,
}

/// How a syncer ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    /// The run has ended, for this reason.
    Stopped(String),
    /// It was drained.
    Drained,
}

/// Per island what its card said last: life, counter, whether it trains, milliseconds of a step.
type Cards = Arc<Mutex<BTreeMap<String, (u64, u64, bool, f64)>>>;

struct Syncer {
    desk: Arc<Desk>,
    tail: Tail,
    machine: Machine,
    cards: Cards,
    incarnations: Arc<Mutex<BTreeMap<String, u64>>>,
    acting: Arc<Mutex<Option<u64>>>,
    watched: Option<(String, u64, Instant)>,
    polls: u64,
    /// When all offers were listed last.
    looked_at: Option<Instant>,
    /// What the next round extends, read while its offers come in.
    ahead: Option<Ahead>,
    cleanup: JoinSet<()>,
}

/// A fragment as it stands before a round: its version, parameters, optimiser slots and memo.
struct Ahead {
    version: Version,
    parameters: Vec<f32>,
    state: Vec<Vec<f32>>,
    memo: Vec<u8>,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs a syncer until the run ends or `drain` completes; it stands by while another acts.
///
/// # Errors
/// Corrupt objects that the log names; a merge policy that fails. An unavailable bucket is waited for.
pub async fn run(desk: Desk, drain: impl Future<Output = ()>) -> Result<Ended> {
    let desk = Arc::new(desk);
    let outer = &desk.record.spec.outer;
    let rules = Rules::of(&desk.record.spec, desk.fragments.count());
    let empty = Ledger::new(desk.fragments.count(), outer.staleness_max, &desk.record.merge.hash);
    let tail = Tail::join(&desk.bucket, empty).await?;
    let mut syncer = Syncer {
        tail,
        machine: Machine::new(rules),
        cards: Arc::default(),
        incarnations: Arc::default(),
        acting: Arc::default(),
        watched: None,
        polls: 0,
        looked_at: None,
        ahead: None,
        cleanup: JoinSet::new(),
        desk: desk.clone(),
    };
    let mut beside = JoinSet::new();
    beside.spawn(beat(desk.clone(), syncer.acting.clone()));
    beside.spawn(watch_islands(desk.clone(), syncer.cards.clone(), syncer.incarnations.clone()));
    tokio::pin!(drain);
    let mut failing = false;
    loop {
        let turn = tokio::select! {
            biased;
            () = &mut drain => {
                syncer.finish().await;
                return Ok(Ended::Drained);
            }
            turn = syncer.turn() => turn,
        };
        match turn {
            Ok(Next::Ended(reason)) => {
                while syncer.cleanup.join_next().await.is_some() {}
                return Ok(Ended::Stopped(reason));
            }
            Ok(Next::Again(pause)) => {
                failing = false;
                clock::sleep(pause).await;
            }
            Err(error) if error.kind() == Kind::Unavailable => {
                if !failing {
                    desk.sink.note(&desk.id, format!("waits for the bucket: {}", error.chain()));
                }
                failing = true;
                clock::sleep(Duration::from_millis(200)).await;
            }
            Err(error) => return Err(error),
        }
    }
}

/// Beats until it is aborted.
async fn beat(desk: Arc<Desk>, acting: Arc<Mutex<Option<u64>>>) {
    for counter in 1u64.. {
        let beat = Beat { format: FORMAT, syncer: desk.id.clone(), counter, acting: *lock(&acting) };
        // A beat that does not get through is missed, not repeated.
        let _ = clock::timeout(desk.beat_every * MISSED_BEATS, desk.bucket.put_beat(&beat)).await;
        clock::sleep(desk.beat_every).await;
    }
}

/// Reads all islands' heartbeats, again and again, and the newest life of each whose life has changed.
async fn watch_islands(desk: Arc<Desk>, cards: Cards, incarnations: Arc<Mutex<BTreeMap<String, u64>>>) {
    loop {
        let names = desk.bucket.islands().await.unwrap_or_default();
        for batch in names.chunks(FETCHES_MAX) {
            let read = join_all(batch.iter().map(|name| desk.bucket.card(name))).await;
            for (name, card) in batch.iter().zip(read) {
                let Ok(Some(card)) = card else { continue };
                let training = card.state == IslandState::Training;
                let seen = (card.incarnation, card.counter, training, f64::from(card.step_ms));
                let before = lock(&cards).insert(name.clone(), seen);
                if before.is_none_or(|b| b.0 != card.incarnation)
                    && let Ok(newest) = desk.bucket.newest_incarnation(name).await
                {
                    lock(&incarnations).insert(name.clone(), newest);
                }
            }
        }
        clock::sleep(desk.beat_every).await;
    }
}

enum Next {
    Again(Duration),
    Ended(String),
}

impl Syncer {
    fn ledger(&self) -> &Ledger {
        &self.tail.ledger
    }

    async fn read_on(&mut self) -> Result<()> {
        let desk = self.desk.clone();
        let entries = self.tail.advance(&desk.bucket, usize::MAX).await?;
        for entry in &entries {
            if let Err(violation) = entry {
                desk.sink.note(&desk.id, violation.to_string());
            }
        }
        if !entries.is_empty() {
            self.machine.settle(&self.tail.ledger);
        }
        Ok(())
    }

    fn is_acting(&self) -> bool {
        self.ledger().acting.as_deref() == Some(self.desk.id.as_str())
    }

    async fn turn(&mut self) -> Result<Next> {
        let looks_around = self.polls.is_multiple_of(LOG_EVERY) || !self.is_acting();
        self.polls += 1;
        if looks_around {
            self.read_on().await?;
        }
        if let Some(reason) = &self.ledger().stopped {
            return Ok(Next::Ended(reason.clone()));
        }
        if self.ledger().versions.is_empty() {
            return Ok(Next::Again(Duration::from_millis(200)));
        }
        let acting = self.is_acting();
        *lock(&self.acting) = acting.then_some(self.ledger().term);
        if !acting {
            return self.stand_by().await;
        }
        let now = clock::now();
        for (name, (life, counter, training, step_ms)) in lock(&self.cards).iter() {
            self.machine.heartbeat(name, (*life, *counter), *training, *step_ms, now);
        }
        let (ahead, known) =
            (self.ahead.take(), self.ledger().versions[self.ledger().fragment_of(self.ledger().next_round)].clone());
        let desk = self.desk.clone();
        let (ahead, collected) = tokio::join!(read_ahead(&desk, known, ahead), self.collect(looks_around));
        self.ahead = Some(ahead?);
        collected?;
        let now = clock::now();
        match self.machine.decide(&self.tail.ledger, now) {
            Decision::Close(reason) => {
                self.close(reason, now).await?;
                Ok(Next::Again(Duration::ZERO))
            }
            Decision::Skip(reason) => {
                self.skip(reason, now).await?;
                Ok(Next::Again(Duration::ZERO))
            }
            Decision::Wait(until) => Ok(Next::Again(until.min(self.poll_every(now)))),
            Decision::Idle => Ok(Next::Again(self.poll_every(now))),
        }
    }

    fn poll_every(&self, now: Instant) -> Duration {
        Duration::from_secs_f64(self.machine.step_ms(now) / 1000.0 / 8.0)
            .clamp(Duration::from_millis(5), Duration::from_millis(500))
    }

    /// Watches the acting syncer; takes the role when there is none or its beat has stopped.
    async fn stand_by(&mut self) -> Result<Next> {
        let desk = self.desk.clone();
        let now = clock::now();
        // Nobody has the role yet: a syncer takes it at once, one beside an island leaves it to a syncer first.
        let (acting, counter) = match self.ledger().acting.clone() {
            Some(acting) => {
                let counter = desk.bucket.beat(&acting).await?.map_or(0, |b| b.counter);
                (acting, counter)
            }
            None => (String::new(), 0),
        };
        if self.watched.as_ref().is_none_or(|(id, c, _)| (id, *c) != (&acting, counter)) {
            self.watched = Some((acting.clone(), counter, now));
        }
        let quiet = self.watched.as_ref().map_or(Duration::ZERO, |(_, _, at)| now - *at);
        let silent = quiet > desk.beat_every * MISSED_BEATS || (acting.is_empty() && desk.eager);
        if silent {
            let term = self.ledger().term + 1;
            if self.append(Body::Term { number: term }, term).await? {
                desk.sink.note(&desk.id, format!("acts as the syncer of term {term}"));
                self.watched = None;
                return Ok(Next::Again(Duration::ZERO));
            }
        }
        Ok(Next::Again(desk.beat_every / 2))
    }

    /// Appends an entry at the next index. False: somebody else's entry is there, and has been read.
    async fn append(&mut self, body: Body, term: u64) -> Result<bool> {
        let desk = self.desk.clone();
        let seq = self.ledger().next;
        let entry = Entry { format: FORMAT, seq, nonce: nonce(), writer: desk.id.clone(), term, body };
        // Judged as every reader will read it, not as it lies in memory.
        let entry: Entry =
            serde_json::to_vec(&entry).and_then(|bytes| serde_json::from_slice(&bytes)).map_err(|e| {
                Error::bug(format!("{}: was about to write an entry that nobody can read", desk.id)).because(e)
            })?;
        // Before put: what is about to be written extends what was read.
        if let Err(violation) = self.ledger().check(seq, &entry) {
            return Err(Error::bug(format!("{}: was about to write an entry that does not extend the log", desk.id))
                .because(violation));
        }
        let created = desk.bucket.append(&entry).await?;
        if created == Created::Mine {
            // What was just written need not be read to be known.
            let applied = self.tail.ledger.apply(seq, &entry);
            assert!(applied.is_ok(), "an entry that was checked before its put is valid after it: {applied:?}");
            self.machine.settle(&self.tail.ledger);
        } else {
            self.read_on().await?;
        }
        if self.ledger().next / crate::bucket::STATE_EVERY > seq / crate::bucket::STATE_EVERY {
            let (bucket, ledger) = (desk.bucket.clone(), self.ledger().clone());
            self.cleanup.spawn(async move {
                // Only a shortcut for joiners; the next one will be written anyway.
                let _ = bucket.put_state(&ledger).await;
            });
        }
        Ok(created == Created::Mine)
    }

    /// Lists the rounds that are open (and, now and then, all offers that are there) and fetches what is new.
    async fn collect(&mut self, late_too: bool) -> Result<()> {
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
        for batch in new.chunks(FETCHES_MAX) {
            let fetched = join_all(batch.iter().map(|(id, _)| {
                let p = (id.round % desk.fragments.count() as u64) as usize;
                desk.bucket.offer(id, offer_bytes_max(&desk, p))
            }))
            .await;
            for ((id, _), object) in batch.iter().zip(fetched) {
                let verdict = match object {
                    Ok(object) => {
                        let tensors = &desk.tensors[self.ledger().fragment_of(id.round)];
                        let codec = (&desk.codec, desk.record.codec.config.as_bytes());
                        let (header, chunks) = (&object.header, &object.chunks);
                        check(id, header, chunks, &desk.record.spec, self.ledger(), &desk.fragments, codec, tensors)
                    }
                    Err(error) if error.kind() == Kind::Corrupt => {
                        desk.sink.note(&desk.id, format!("refuses an offer: {}", error.chain()));
                        Verdict::Decided(unreadable(id))
                    }
                    // Not there yet, or gone again: it is listed again next time.
                    Err(error) if error.kind() == Kind::Unavailable => continue,
                    Err(error) => return Err(error),
                };
                if let Verdict::Decided(OfferRecord { fate: Fate::Refused(reason), .. }) = &verdict {
                    desk.sink
                        .note(&desk.id, format!("refuses the offer of {} for round {}: {reason}", id.island, id.round));
                }
                let newest = lock(&self.incarnations).get(&id.island).copied().unwrap_or(0);
                self.machine.offer(id.clone(), verdict, newest, clock::now());
            }
        }
        Ok(())
    }

    /// Merges the next round and commits it.
    async fn close(&mut self, reason: String, closed_at: Instant) -> Result<()> {
        let desk = self.desk.clone();
        let ahead = self.ahead.take();
        let ledger = self.ledger();
        let round = ledger.next_round;
        let p = ledger.fragment_of(round);
        let base = ledger.versions[p].clone();
        let Ahead { parameters, state, memo, .. } = read_ahead(&desk, base.clone(), ahead).await?;
        let chosen: Vec<Facts> = self.machine.chosen(round).into_iter().cloned().collect();
        let merge = |facts: &[Facts]| {
            let contributions = facts.iter().map(|f| (contribution(f, ledger, round), f.values.clone())).collect();
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
                parameters: parameters.clone(),
                state: state.clone(),
                memo: memo.clone(),
            };
            merge_round(&desk.merge, desk.record.merge.config.as_bytes(), input, desk.threads)
        };
        let output = match merge(&chosen) {
            Ok(output) => output,
            Err(error) => {
                // One offer can be finite and still overflow when it is applied. Whichever cannot be merged alone is refused, and the round
                // decided again; if each can, the largest is.
                let mut unfit: Vec<&Facts> =
                    chosen.iter().filter(|f| merge(std::slice::from_ref(*f)).is_err()).collect();
                if unfit.is_empty() && chosen.len() > 1 {
                    unfit.extend(chosen.iter().max_by(|a, b| a.norm.total_cmp(&b.norm)));
                }
                // A policy that cannot even merge nothing much is itself what failed.
                let nothing = Facts { norm: 0.0, values: vec![0.0; parameters.len()], ..chosen[0].clone() };
                if unfit.is_empty() || merge(&[nothing]).is_err() {
                    return Err(error);
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
        let (hash, state_hash) = tokio::join!(
            desk.bucket.put_fragment(&desk.fragments, p, round, &output.parameters),
            desk.bucket.put_fragment_state(&desk.fragments, p, round, &output.state, &output.memo)
        );
        let made = Version { round, hash: hash?, state: Some(state_hash?) };

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
            merge: desk.record.merge.hash.clone(),
            fragment_tokens: ledger.fragment_tokens[p] + tokens,
            tokens: (ledger.fragment_tokens.iter().sum::<u64>() + tokens) / ledger.fragments,
            pace: self.machine.pace(clock::now()),
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
            if self.ledger().tokens() >= desk.record.spec.tokens && self.ledger().stopped.is_none() {
                self.append(Body::Stop { reason: "the token budget is merged".into() }, term).await?;
            }
        }
        Ok(())
    }

    /// Closes the next round without a merge.
    ///
    /// Before: its quorum is not reached, and islands wait for the fate of offers that were turned down. After: the log says what became of
    /// every offer for it, and the fragment's next round can be offered for. A crash leaves the round open or skipped; the next syncer judges
    /// the same offers anew.
    async fn skip(&mut self, reason: String, closed_at: Instant) -> Result<()> {
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
    async fn finish(&mut self) {
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

/// The largest offer of fragment `p` that is read: no codec needs more than plain values do, and framing is at most 4 KiB a chunk.
pub(super) fn offer_bytes_max(desk: &Desk, p: usize) -> u64 {
    let tensors = &desk.tensors[p];
    let chunks: u64 = tensors.iter().map(|t| t.elements().div_ceil(crate::policy::CHUNK_ELEMENTS as u64)).sum();
    desk.fragments.elements(p) as u64 * 5 + chunks * 4096 + (1 << 16)
}

/// Reads what a round extends, unless `known` already is that.
async fn read_ahead(desk: &Desk, version: Version, known: Option<Ahead>) -> Result<Ahead> {
    if let Some(known) = known
        && known.version == version
    {
        return Ok(known);
    }
    let p = (version.round % desk.fragments.count() as u64) as usize;
    let (parameters, state) = tokio::join!(
        desk.bucket.fragment(&desk.fragments, p, &version),
        desk.bucket.fragment_state(&desk.fragments, p, &version)
    );
    let (state, memo) = state?;
    Ok(Ahead { version, parameters: parameters?, state, memo })
}

fn contribution(facts: &Facts, ledger: &Ledger, round: u64) -> Contribution {
    Contribution {
        island: facts.id.island.clone(),
        tokens: facts.tokens,
        steps: facts.steps,
        staleness: ledger.staleness(round, facts.base).unwrap_or(0) as u32,
        norm: facts.norm,
    }
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
