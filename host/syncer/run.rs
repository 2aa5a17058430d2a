//! The syncer's loop: read the log on, stand by or act, look at the next round. What acting is lies in `role`, what is done with a round in
//! `round`; what is decided, in `machine`.

use super::machine::{Decision, Machine, Question, Rules};
use super::role::{Office, beat, watch_islands};
use super::round::{Ahead, read_ahead};
use crate::bucket::record::{Activate, Body, Entry, FORMAT, Failed, PolicyUse, RunRecord};
use crate::bucket::{Bucket, Created, Ledger, OfferId, Shelf, Tail, aside, unfit};
use crate::clock::{self, Duration, Instant};
use crate::error::{Error, Kind, Result};
use crate::event::Sink;
use crate::nonce::nonce;
use crate::outer::Fragments;
use crate::policy::{Pace, Role, Tensor};
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::task::JoinSet;

/// Polls between two looks at the log while acting.
const LOG_EVERY: u64 = 8;

/// The longest reason for giving a policy up, in characters.
const REASON_CHARS_MAX: usize = 500;

/// How long the bucket fails before the syncer says so.
const WORTH_SAYING: Duration = Duration::from_secs(3);

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
    /// The run's policies.
    pub shelf: Shelf,
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
pub(super) type Cards = Arc<Mutex<BTreeMap<String, (u64, u64, bool, f64)>>>;

pub(super) struct Syncer {
    pub(super) desk: Arc<Desk>,
    pub(super) tail: Tail,
    pub(super) machine: Machine,
    cards: Cards,
    pub(super) incarnations: Arc<Mutex<BTreeMap<String, u64>>>,
    pub(super) office: Arc<Office>,
    pub(super) watched: Option<(String, u64, Instant)>,
    polls: u64,
    /// When all offers were listed last.
    pub(super) looked_at: Option<Instant>,
    /// Offers for the next round that are listed and have not been fetched.
    pub(super) unfetched: usize,
    /// What the next round extends, read while its offers come in.
    pub(super) ahead: Option<Ahead>,
    pub(super) cleanup: JoinSet<()>,
    /// Good offers that their islands could not encode with the codec of their round.
    pub(super) fell_back: BTreeSet<OfferId>,
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs a syncer until the run ends or `drain` completes; it stands by while another acts.
///
/// # Errors
/// Corrupt objects that the log names; no policy of the run can be used; a merge policy or a pace that fails, with none before it. An unavailable bucket is waited for.
pub async fn run(desk: Desk, drain: impl Future<Output = ()>) -> Result<Ended> {
    let desk = Arc::new(desk);
    let rules = Rules::of(&desk.record.spec, desk.fragments.count());
    let mut tail = Tail::of(&desk.bucket, &desk.record).await?;
    tail.advance(&desk.bucket, usize::MAX).await?;
    for role in Role::ALL {
        desk.shelf.require(role, &tail.ledger.active, tail.ledger.next_round).await?;
    }
    let mut syncer = Syncer {
        tail,
        machine: Machine::new(rules, desk.beat_every),
        cards: Arc::default(),
        incarnations: Arc::default(),
        office: Arc::default(),
        watched: None,
        polls: 0,
        looked_at: None,
        unfetched: 0,
        ahead: None,
        cleanup: JoinSet::new(),
        fell_back: BTreeSet::new(),
        desk: desk.clone(),
    };
    let mut beside = JoinSet::new();
    beside.spawn(beat(desk.clone(), syncer.office.clone()));
    beside.spawn(watch_islands(desk.clone(), syncer.cards.clone(), syncer.incarnations.clone()));
    tokio::pin!(drain);
    let mut failing = None;
    let mut said = false;
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
                if std::mem::take(&mut said) {
                    desk.sink.note(&desk.id, "reaches the bucket again");
                }
                failing = None;
                clock::sleep(pause).await;
            }
            Err(error) if error.kind() == Kind::Unavailable => {
                // A request that is lost now and then is nobody's concern.
                let since = *failing.get_or_insert_with(clock::now);
                if !said && clock::now() - since >= WORTH_SAYING {
                    said = true;
                    desk.sink.note(&desk.id, format!("waits for the bucket: {}", error.chain()));
                }
                // What stands in the way may be in the log: another acts, or the run has ended.
                syncer.polls = 0;
                clock::sleep(Duration::from_millis(200)).await;
            }
            Err(error) => return Err(error),
        }
    }
}

pub(super) enum Next {
    Again(Duration),
    Ended(String),
}

impl Syncer {
    pub(super) fn ledger(&self) -> &Ledger {
        &self.tail.ledger
    }

    pub(super) async fn read_on(&mut self) -> Result<()> {
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
        let switches = |entry: &Entry| matches!(entry.body, Body::Activate(_));
        if entries.iter().flatten().any(switches) {
            let ledger = self.ledger();
            for role in Role::ALL {
                desk.shelf.prepare(role, &ledger.active, ledger.next_round).await;
            }
        }
        Ok(())
    }

    /// Gives up the policy that fills `role` in `round`, which failed: from `from` on, the last one that did not takes its place again. False where there is
    /// none; true also where somebody else's entry has come first.
    pub(super) async fn give_up(&mut self, role: Role, round: u64, from: u64, why: String) -> Result<bool> {
        let active = &self.ledger().active;
        let candidates: Vec<PolicyUse> = active.candidates(role, round).into_iter().cloned().collect();
        let [failed, good, ..] = &candidates[..] else { return Ok(false) };
        let (failed, good) = (failed.clone(), good.clone());
        let why: String = why.chars().take(REASON_CHARS_MAX).collect();
        let note = format!(
            "ALERT: gives up the {role} policy {} ({}) for {} ({}) from round {from} on: {why}",
            failed.name, failed.hash, good.name, good.hash
        );
        let activate = Activate { role, policy: good, from_round: from, failed: Some(Failed { policy: failed, why }) };
        let term = self.ledger().term;
        if self.append(Body::Activate(Box::new(activate)), term).await? {
            self.desk.sink.note(&self.desk.id, note);
        }
        Ok(true)
    }

    pub(super) fn is_acting(&self) -> bool {
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
        self.office.hold(acting.then_some(self.ledger().term));
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
        let now = clock::now();
        self.office.owes(self.machine.owes(&self.tail.ledger, self.unfetched, now));
        self.ahead = Some(ahead?);
        collected?;
        let mut decision = self.machine.decide(&self.tail.ledger, now);
        if let Decision::Ask(question) = decision {
            if !self.ask(*question, now).await? {
                return Ok(Next::Again(Duration::ZERO));
            }
            decision = self.machine.decide(&self.tail.ledger, clock::now());
        }
        let now = clock::now();
        match decision {
            Decision::Close(reason) => {
                self.close(reason, now).await?;
                Ok(Next::Again(Duration::ZERO))
            }
            Decision::Skip(reason) => {
                self.skip(reason, now).await?;
                Ok(Next::Again(Duration::ZERO))
            }
            Decision::Wait(until) => Ok(Next::Again(until.min(self.poll_every(now)))),
            // A policy that takes longer to answer than it wants to wait has its turn again after the next look at the offers.
            Decision::Idle | Decision::Ask(_) => Ok(Next::Again(self.poll_every(now))),
        }
    }

    /// Asks the pace policy. False where it failed and was given up, so that there is another to ask.
    async fn ask(&mut self, question: Question, asked_at: Instant) -> Result<bool> {
        let (desk, round) = (self.desk.clone(), question.view.round);
        let answer = match desk.shelf.get(Role::Pace, &question.pace).await {
            Ok(pace) => {
                let pace = Pace::untried(&pace, question.pace.config.as_bytes());
                aside(|| pace.decide(&question.view))
                    .map_err(|e| unfit(format!("round {round}: the pace policy failed"), e))
            }
            Err(error) => Err(error),
        };
        match answer {
            Ok(decision) => {
                self.office.moved();
                self.machine.answer(question, decision, asked_at);
                Ok(true)
            }
            Err(error) if error.kind() == Kind::Unavailable => Err(error),
            Err(error) => {
                let why = error.chain();
                if self.give_up(Role::Pace, round, round, why).await? { Ok(false) } else { Err(error) }
            }
        }
    }

    fn poll_every(&self, now: Instant) -> Duration {
        Duration::from_secs_f64(self.machine.step_ms(now) / 1000.0 / 8.0)
            .clamp(Duration::from_millis(5), Duration::from_millis(500))
    }

    /// Appends an entry at the next index. False: somebody else's entry is there, and has been read.
    pub(super) async fn append(&mut self, body: Body, term: u64) -> Result<bool> {
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
        self.office.moved();
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
}
