//! The training loop of an island: step boundary, inner step, step boundary. It never waits for anything: adoptions lie ready in memory, offers
//! and checkpoints are handed on through bounded queues and skipped where a queue is full, blocks of data are claimed ahead and repeated where
//! none is there.
//!
//! The same code runs on a thread of its own (a real island) and inside a task on virtual time (a simulation).

use super::inner::Inner;
use super::machine::{Adoption, Due, Machine};
use crate::clock::{self, Duration, Instant};
use crate::data::Cursor;
use crate::error::Result;
use crate::outer::{Fragments, norm};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::mpsc;
use tombolo_engine::Schedule;

/// A pseudo-gradient on its way to the codec.
#[derive(Debug)]
pub struct Snapshot {
    /// Round, fragment, base, steps, tokens.
    pub due: Due,
    /// Δ = base − θ. Shape: (elements of the fragment).
    pub delta: Vec<f32>,
}

/// Everything that a checkpoint holds, copied at one step boundary.
#[derive(Debug)]
pub struct CheckpointJob {
    /// Inner steps over all lives.
    pub step: u64,
    /// Tokens over all lives.
    pub tokens: u64,
    /// Of those, repeated.
    pub tokens_repeated: u64,
    /// Tokens that came too late to be merged, summed over the fragments.
    pub late: u64,
    /// Blocks of data and the place in each.
    pub held: Vec<Cursor>,
    /// Place in every fragment.
    pub fragments: Vec<crate::bucket::FragmentFacts>,
    /// θ.
    pub parameters: Vec<f32>,
    /// Adam's first moment.
    pub first: Vec<f32>,
    /// Adam's second moment.
    pub second: Vec<f32>,
    /// Steps that the moments have seen.
    pub adam_steps: u64,
}

/// What others may know of the training loop at any time.
#[derive(Debug, Clone, Default)]
pub struct Status {
    /// Inner steps over all lives.
    pub step: u64,
    /// Of the tokens over all lives, those that were repeated.
    pub tokens_repeated: u64,
    /// Blocks of data and the place in each.
    pub held: Vec<Cursor>,
    /// Training loss, smoothed over about 20 steps.
    pub loss: Option<f32>,
    /// Milliseconds of a whole turn, smoothed.
    pub step_ms: f32,
    /// Tokens per second, smoothed.
    pub tokens_per_s: f32,
    /// Time in this life's training loop.
    pub total: Duration,
    /// Of that, time outside inner steps.
    pub outside: Duration,
    /// Longest time between two inner steps.
    pub outside_max: Duration,
    /// Offers that were not made because the queue was full or the values were not finite.
    pub offers_dropped: u64,
}

impl Status {
    /// Share of the time that the island was not stepping.
    pub fn wait_ratio(&self) -> f32 {
        if self.total.is_zero() { 0.0 } else { self.outside.as_secs_f32() / self.total.as_secs_f32() }
    }
}

/// A version of a fragment as an island holds it.
#[derive(Debug)]
pub struct Base {
    /// Round that made it.
    pub round: u64,
    /// Θ. Shape: (elements of the fragment).
    pub values: Vec<f32>,
}

/// What the training loop and the tasks around it share. Locks are held for copies of small things only.
#[derive(Debug)]
pub struct Shared {
    machine: Mutex<Machine>,
    /// Versions that are ready to be taken in, per fragment.
    inbox: Mutex<BTreeMap<usize, Base>>,
    /// The versions that were taken in last, per fragment.
    bases: Mutex<Vec<Arc<Base>>>,
    blocks: Mutex<Vec<Cursor>>,
    status: Mutex<Status>,
    /// Publish what is open, then end.
    pub drain: AtomicBool,
    /// A newer life of this island has been claimed: end at once, write nothing more.
    pub fenced: AtomicBool,
    /// Another block of data should be claimed.
    pub wants_block: AtomicBool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic elsewhere already ends the process with its message; what the lock guards is still whole.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// Around a machine that holds `bases`, one per fragment.
    pub fn new(machine: Machine, status: Status, bases: Vec<Base>) -> Shared {
        Shared {
            machine: Mutex::new(machine),
            inbox: Mutex::default(),
            bases: Mutex::new(bases.into_iter().map(Arc::new).collect()),
            blocks: Mutex::default(),
            status: Mutex::new(status),
            drain: AtomicBool::new(false),
            fenced: AtomicBool::new(false),
            wants_block: AtomicBool::new(true),
        }
    }

    /// The decisions.
    pub fn machine(&self) -> MutexGuard<'_, Machine> {
        lock(&self.machine)
    }

    /// A copy of the status.
    pub fn status(&self) -> Status {
        lock(&self.status).clone()
    }

    /// A version is ready to be taken in; an older one of the same fragment is dropped.
    pub fn deliver(&self, p: usize, version: Base) {
        let mut inbox = lock(&self.inbox);
        if inbox.get(&p).is_none_or(|there| there.round < version.round) {
            inbox.insert(p, version);
        }
    }

    /// The version of fragment `p` that was taken in last.
    pub fn base(&self, p: usize) -> Arc<Base> {
        lock(&self.bases)[p].clone()
    }

    /// Whether this version, or a newer one, already lies ready.
    pub fn is_delivered(&self, p: usize, round: u64) -> bool {
        lock(&self.inbox).get(&p).is_some_and(|there| there.round >= round)
    }

    /// A block of data was claimed.
    pub fn give_block(&self, block: Cursor) {
        lock(&self.blocks).push(block);
    }
}

/// What a turn of the training loop came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// A step was taken.
    Stepped,
    /// The run has ended, or the island was drained; nothing more to do.
    Ended,
}

/// The training loop.
pub struct Stepper {
    inner: Box<dyn Inner>,
    fragments: Arc<Fragments>,
    shared: Arc<Shared>,
    schedule: Schedule,
    offers: mpsc::Sender<Snapshot>,
    checkpoints: mpsc::Sender<CheckpointJob>,
    checkpoint_every: Duration,
    checkpointed_at: Instant,
    boundary_at: Instant,
}

impl Stepper {
    /// A loop over `inner`.
    pub fn new(
        inner: Box<dyn Inner>,
        fragments: Arc<Fragments>,
        shared: Arc<Shared>,
        schedule: Schedule,
        offers: mpsc::Sender<Snapshot>,
        checkpoints: mpsc::Sender<CheckpointJob>,
        checkpoint_every: Duration,
    ) -> Stepper {
        let now = clock::now();
        Stepper {
            inner,
            fragments,
            shared,
            schedule,
            offers,
            checkpoints,
            checkpoint_every,
            checkpointed_at: now,
            boundary_at: now,
        }
    }

    /// One step boundary and, unless the island is to end, one inner step.
    ///
    /// # Errors
    /// The inner step is impossible.
    pub fn turn(&mut self) -> Result<Turn> {
        let draining = self.shared.drain.load(Ordering::Relaxed);
        self.adopt();
        self.offer(draining);
        let stopped = self.shared.machine().stopped().is_some();
        if stopped || draining || self.shared.fenced.load(Ordering::Relaxed) {
            return Ok(Turn::Ended);
        }
        if clock::now() - self.checkpointed_at >= self.checkpoint_every {
            self.checkpoint();
        }
        for block in std::mem::take(&mut *lock(&self.shared.blocks)) {
            self.inner.give_block(block);
        }
        let learning_rate = self.schedule.at(self.shared.machine().schedule_tokens());
        let started = clock::now();
        let stepped = self.inner.step(learning_rate);
        // After a step that failed, too: whoever goes on from here does so behind what made it fail.
        lock(&self.shared.status).held = self.held();
        let stepped = stepped?;
        let ended = clock::now();
        let wants_block = self.inner.wants_block() && lock(&self.shared.blocks).is_empty();
        self.shared.wants_block.store(wants_block, Ordering::Relaxed);
        self.shared.machine().stepped(stepped.tokens);
        let (outside, total) = (started - self.boundary_at, ended - self.boundary_at);
        self.boundary_at = ended;
        let mut status = lock(&self.shared.status);
        status.step += 1;
        status.tokens_repeated += stepped.repeated;
        status.loss = Some(status.loss.map_or(stepped.loss, |old| old + 0.05 * (stepped.loss - old)));
        status.total += total;
        status.outside += outside;
        status.outside_max = status.outside_max.max(outside);
        let ms = clock::ms(total) as f32;
        status.step_ms = if status.step_ms == 0.0 { ms } else { status.step_ms + 0.1 * (ms - status.step_ms) };
        status.tokens_per_s = stepped.tokens as f32 * 1000.0 / status.step_ms.max(1e-3);
        Ok(Turn::Stepped)
    }

    /// Takes in every version that lies ready.
    fn adopt(&mut self) {
        let ready = std::mem::take(&mut *lock(&self.shared.inbox));
        for (p, version) in ready {
            let base = self.shared.base(p);
            match self.shared.machine().adopt(p, version.round) {
                Adoption::Ignore => continue,
                Adoption::Overwrite => self.fragments.scatter(p, &version.values, self.inner.parameters_mut()),
                Adoption::Rebase => {
                    let parameters = self.inner.parameters_mut();
                    let mut values = base.values.iter().zip(&version.values);
                    for range in self.fragments.ranges(p) {
                        for (theta, (base, new)) in parameters[range].iter_mut().zip(&mut values) {
                            *theta = new - (base - *theta);
                        }
                    }
                }
            }
            lock(&self.shared.bases)[p] = Arc::new(version);
        }
    }

    fn offer(&mut self, draining: bool) {
        loop {
            // Asked first: an offer for which there is no room must not use up its round.
            let permit = match self.offers.try_reserve() {
                Ok(permit) => permit,
                Err(_) => return,
            };
            let Some(due) = self.shared.machine().offer_due(draining) else { return };
            let base = self.shared.base(due.fragment);
            let delta = self.fragments.pseudo_gradient(due.fragment, &base.values, self.inner.parameters());
            if norm(&delta).is_finite() {
                permit.send(Snapshot { due, delta });
            } else {
                self.shared.machine().offer_dropped(due.round);
                lock(&self.shared.status).offers_dropped += 1;
            }
        }
    }

    fn checkpoint(&mut self) {
        if self.checkpoints.capacity() > 0 {
            self.checkpointed_at = clock::now();
            let job = self.checkpoint_job();
            // The only sender, and there is room.
            let _ = self.checkpoints.try_send(job);
        }
    }

    fn held(&self) -> Vec<Cursor> {
        [self.inner.held(), lock(&self.shared.blocks).clone()].concat()
    }

    /// Copies everything that a checkpoint holds.
    pub fn checkpoint_job(&self) -> CheckpointJob {
        let status = self.shared.status();
        let (first, second, adam_steps) = self.inner.moments();
        let machine = self.shared.machine();
        CheckpointJob {
            step: status.step,
            tokens: machine.trained(),
            tokens_repeated: status.tokens_repeated,
            late: machine.progress().late,
            held: self.held(),
            fragments: machine.facts(),
            parameters: self.inner.parameters().to_vec(),
            first: first.to_vec(),
            second: second.to_vec(),
            adam_steps,
        }
    }
}
