//! The transfers of an island, beside its training loop. Each task owns one kind of object; each retries by itself and gives up only with the
//! process. What cannot be sent is dropped (its progress goes out with a later offer), what cannot be fetched is asked for again.

use super::machine::{Due, Settled};
use super::stepper::{Base, CheckpointJob, Shared, Snapshot};
use crate::bucket::payload::{Chunk, content_hash};
use crate::bucket::record::{Body, Card, FORMAT, IslandState, PolicyUse, Version};
use crate::bucket::{
    Active, Bucket, CheckpointHeader, Encoded, Encoder, Flat, OfferHeader, OfferId, Shelf, Tail, Vector,
};
use crate::clock::{self, Duration, Instant};
use crate::data::Cursor;
use crate::error::{Error, Kind, Result};
use crate::event::{Event, Sink};
use crate::outer::{Feedback, Fragments};
use crate::policy::{Policy, Role};
use futures::future::join_all;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{Notify, mpsc};
use tombolo_engine::Layout;

/// How long a task fails before it says so.
const WORTH_SAYING: Duration = Duration::from_secs(3);
/// Fragments that are fetched at once.
const FETCHES_MAX: usize = 4;
/// Beats that an island may miss before its blocks of data are taken over: a minute at two beats a second. An island that comes back later claims new ones.
const DEAD_BEATS: u32 = 120;
/// Blocks that a heartbeat is believed to hold.
const BLOCKS_LEFT_MAX: usize = 16;

/// What the tasks of an island share.
pub(super) struct Crew {
    pub bucket: Bucket,
    pub shared: Arc<Shared>,
    pub layout: Layout,
    pub fragments: Arc<Fragments>,
    pub name: String,
    pub run: String,
    pub incarnation: u64,
    pub shelf: Shelf,
    /// The codec of the way down, if the run has one.
    pub down: Option<PolicyUse>,
    /// Whether it has been said that a step down cannot be taken.
    pub cannot_step: AtomicBool,
    /// The policies that are active, as far as the log has been read.
    pub active: Mutex<Active>,
    pub feedback: Mutex<Feedback>,
    pub news: Notify,
    pub sink: Sink,
    pub beat_every: Duration,
    pub checkpoints_kept: usize,
}

impl Crew {
    fn poll_every(&self) -> Duration {
        let step = Duration::from_secs_f32(self.shared.status().step_ms / 1000.0);
        (step / 5).clamp(Duration::from_millis(10), Duration::from_secs(1))
    }

    fn active(&self) -> std::sync::MutexGuard<'_, Active> {
        self.active.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn feedback(&self) -> std::sync::MutexGuard<'_, Feedback> {
        self.feedback.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says once that something has been failing for a while, and once that it works again. A request that is lost now and then is nobody's concern.
    fn trouble(&self, trouble: &mut Trouble, result: std::result::Result<(), &Error>) {
        let Err(error) = result else {
            if std::mem::take(trouble).said {
                self.sink.note(&self.name, "reaches the bucket again");
            }
            return;
        };
        let since = *trouble.since.get_or_insert_with(clock::now);
        if !trouble.said && clock::now() - since >= WORTH_SAYING {
            trouble.said = true;
            self.sink.note(&self.name, format!("goes on alone: {}", error.chain()));
        }
    }

    /// Follows the log.
    pub async fn follow(self: Arc<Crew>, mut tail: Tail) {
        let mut trouble = Trouble::default();
        loop {
            match tail.advance(&self.bucket, 1).await {
                Ok(entries) => {
                    self.trouble(&mut trouble, Ok(()));
                    for entry in &entries {
                        match entry {
                            Ok(entry) => {
                                if let Body::Activate(_) = &entry.body {
                                    let ledger = &tail.ledger;
                                    *self.active() = ledger.active.clone();
                                    self.shelf.prepare(Role::Codec, &ledger.active, ledger.next_round).await;
                                }
                                self.take_in(entry, tail.ledger.window);
                            }
                            Err(violation) => self.sink.note(&self.name, violation.to_string()),
                        }
                    }
                    if !entries.is_empty() {
                        self.news.notify_one();
                        continue;
                    }
                }
                Err(error) => self.trouble(&mut trouble, Err(&error)),
            }
            clock::sleep(self.poll_every()).await;
        }
    }

    fn take_in(&self, entry: &crate::bucket::record::Entry, window: u64) {
        match &entry.body {
            Body::Commit(commit) => {
                let settled = self.shared.machine().commit(commit, window);
                self.settle(settled);
            }
            Body::Skip(skip) => {
                let settled = self.shared.machine().skip(skip.round, window);
                self.settle(settled);
            }
            Body::Stop { reason } => self.shared.machine().stop(reason),
            Body::Start { .. } | Body::Term { .. } | Body::Activate(_) => {}
        }
    }

    fn settle(&self, settled: Option<Settled>) {
        if let Some(settled) = settled {
            self.feedback().decided(settled.fragment, settled.merged);
        }
    }

    /// Fetches every version that the island wants.
    pub async fn fetch(self: Arc<Crew>) {
        let mut trouble = Trouble::default();
        loop {
            let mut wanted = self.shared.machine().wanted();
            wanted.retain(|(p, version)| !self.shared.is_delivered(*p, version.round));
            wanted.truncate(FETCHES_MAX);
            if wanted.is_empty() {
                // A boundary that takes in an older version makes the current one wanted again, without news.
                let _ = clock::timeout(Duration::from_secs(1), self.news.notified()).await;
                continue;
            }
            let fetched = join_all(wanted.iter().map(|(p, version)| self.fetch_version(*p, version))).await;
            let mut result = Ok(());
            for ((p, version), values) in wanted.iter().zip(fetched) {
                match values {
                    Ok(values) => self.shared.deliver(*p, Base { round: version.round, values }),
                    // An old version may have been collected meanwhile; a newer one is wanted then.
                    Err(error) if self.shared.machine().is_current(*p, version.round) => result = Err(error),
                    Err(_) => {}
                }
            }
            self.trouble(&mut trouble, result.as_ref().map(|_| ()));
            if result.is_err() {
                clock::sleep(Duration::from_millis(200)).await;
            }
        }
    }

    /// A version of fragment `p`: by the step from the version that the island holds, where there is one, or else whole. Either way it comes to the bits that the
    /// log names.
    async fn fetch_version(&self, p: usize, version: &Version) -> Result<Vec<f32>> {
        let held = self.shared.base(p);
        if let (Some(down), Some(step)) = (&self.down, &version.step)
            && step.from == held.round
        {
            match self.take_step(p, version, &held.values, down).await {
                Ok(Some(values)) => return values.into_vec(),
                Ok(None) => {}
                Err(error) if error.kind() == Kind::Unavailable => {}
                Err(error) if self.cannot_step.swap(true, Ordering::Relaxed) => drop(error),
                Err(error) => {
                    let note = format!("ALERT: reads versions whole where steps fail: {}", error.chain());
                    self.sink.note(&self.name, note);
                }
            }
        }
        self.bucket.fragment(&self.fragments, p, version).await
    }

    async fn take_step(&self, p: usize, version: &Version, held: &[f32], down: &PolicyUse) -> Result<Option<Vector>> {
        let codec = self.shelf.get(Role::Codec, down).await?;
        let codec = (&codec, down.config.as_bytes());
        self.bucket.fragment_after(&self.fragments, p, version, &held, codec, usize::MAX).await
    }

    /// Encodes and publishes offers until the training loop ends.
    pub async fn publish(self: Arc<Crew>, mut offers: mpsc::Receiver<Snapshot>) {
        let mut trouble = Trouble::default();
        while let Some(snapshot) = offers.recv().await {
            let round = snapshot.due.round;
            let encoded = loop {
                match self.encode(&snapshot).await {
                    Err(error) if error.kind() == Kind::Unavailable && self.shared.machine().is_open(round) => {
                        self.trouble(&mut trouble, Err(&error));
                        clock::sleep(Duration::from_millis(200)).await;
                    }
                    encoded => break encoded,
                }
            };
            let (header, chunks) = match encoded {
                Ok(encoded) => encoded,
                Err(error) if error.kind() == Kind::Unavailable => {
                    self.sink.note(&self.name, format!("offer for round {round} dropped: {}", error.chain()));
                    self.shared.machine().offer_dropped(round);
                    continue;
                }
                // Refused by every syncer, and so the round is closed and the log goes on: an island that said nothing could stop its run for good.
                Err(error) => {
                    let note = format!("offers nothing for round {round}, which no codec encodes: {}", error.chain());
                    self.sink.note(&self.name, note);
                    (self.header(&snapshot.due, self.active().at(Role::Codec, round), &[]), Vec::new())
                }
            };
            let mut pause = Duration::from_millis(50);
            loop {
                match self.bucket.put_offer(&header, chunks.clone()).await {
                    Ok(_) => {
                        self.trouble(&mut trouble, Ok(()));
                        break;
                    }
                    Err(error) => {
                        self.trouble(&mut trouble, Err(&error));
                        if !self.shared.machine().is_open(round) {
                            self.shared.machine().offer_dropped(round);
                            break;
                        }
                        clock::sleep(pause).await;
                        pause = (pause * 2).min(Duration::from_secs(2));
                    }
                }
            }
        }
    }

    /// Encodes what is to be offered with the codec of its round. Where that fails, with the last one before it that does not, and says so.
    async fn encode(&self, snapshot: &Snapshot) -> Result<(OfferHeader, Vec<Chunk>)> {
        let active = self.active().clone();
        let round = snapshot.due.round;
        let mut first = None;
        for which in active.candidates(Role::Codec, round) {
            let encoded = match self.shelf.get(Role::Codec, which).await {
                Ok(codec) => self.encode_with(&codec, which, snapshot),
                Err(error) => Err(error),
            };
            match (encoded, &first) {
                (Ok(encoded), None) => return Ok(encoded),
                (Ok(encoded), Some(failed)) => {
                    let failed = Error::chain(failed);
                    let note = format!("ALERT: offers for round {round} with codec {} instead: {failed}", which.name);
                    self.sink.note(&self.name, note);
                    return Ok(encoded);
                }
                (Err(error), _) if error.kind() == Kind::Unavailable => return Err(error),
                (Err(error), _) => first = first.or(Some(error)),
            }
        }
        Err(first.unwrap_or_else(|| Error::bug("a run without a codec")))
    }

    fn encode_with(&self, codec: &Policy, which: &PolicyUse, snapshot: &Snapshot) -> Result<(OfferHeader, Vec<Chunk>)> {
        let Snapshot { due, delta } = snapshot;
        let p = due.fragment;
        let tensors = self.fragments.policy_tensors(p);
        let mut encoder = Encoder::open(&which.name, (codec, which.config.as_bytes()), &tensors)?;
        let decay = encoder.feedback_decay();
        let mut delta = delta.clone();
        if let Some(decay) = decay {
            self.feedback().add(p, decay, &mut delta);
        }
        let (mut residual, mut chunks) = (Vec::new(), Vec::new());
        encoder.encode(
            "offer",
            |start, values| delta.read(start, values),
            |Encoded { chunk, values, decoded, .. }| {
                if decay.is_some() {
                    residual.extend(values.iter().zip(&decoded).map(|(v, d)| v - d));
                }
                chunks.push(chunk);
                Ok(())
            },
        )?;
        if decay.is_some() {
            self.feedback().offered(p, residual);
        }
        Ok((self.header(due, which, &chunks), chunks))
    }

    /// The header of an offer whose values `which` has encoded as `chunks`.
    fn header(&self, due: &Due, which: &PolicyUse, chunks: &[Chunk]) -> OfferHeader {
        OfferHeader {
            format: FORMAT,
            run: self.run.clone(),
            layout: self.fragments.fingerprint().to_string(),
            id: OfferId { round: due.round, island: self.name.clone(), incarnation: self.incarnation },
            fragment: due.fragment,
            base: due.facts.base,
            tokens: due.facts.tokens,
            steps: due.facts.steps,
            codec: which.hash.clone(),
            codec_config: which.config.clone(),
            hash: content_hash(chunks),
        }
    }

    /// The heartbeat as of now.
    pub fn card(&self, counter: u64, state: IslandState) -> Card {
        let status = self.shared.status();
        let machine = self.shared.machine();
        Card {
            format: FORMAT,
            island: self.name.clone(),
            incarnation: self.incarnation,
            counter,
            state,
            layout: self.fragments.fingerprint().to_string(),
            step: status.step,
            tokens: machine.trained(),
            tokens_repeated: status.tokens_repeated,
            progress: machine.progress(),
            held: status.held.clone(),
            loss: status.loss,
            tokens_per_s: status.tokens_per_s,
            step_ms: status.step_ms,
            wait_ratio: status.wait_ratio(),
            train_seconds: status.total.as_secs_f32(),
            adopted: machine.adopted(),
            versions: machine.facts().iter().map(|f| f.base).collect(),
        }
    }

    /// Says how the island stands.
    pub fn report(&self, card: &Card) {
        self.sink.emit(Event::Island {
            island: card.island.clone(),
            state: card.state,
            step: card.step,
            tokens: card.tokens,
            loss: card.loss,
            tokens_per_s: card.tokens_per_s,
            adopted: card.adopted,
            wait_ratio: card.wait_ratio,
            train_seconds: card.train_seconds,
        });
    }

    /// Beats, and notices when a newer life of this island was claimed.
    pub async fn beat(self: Arc<Crew>) {
        let mut looked_at = clock::now();
        for counter in 2u64.. {
            // Every fourth beat, and first of all after a freeze: the heartbeat of the newer life is not to be overwritten.
            if clock::now() - looked_at >= self.beat_every * 4 {
                let looked = clock::timeout(self.beat_every * 5, self.is_succeeded()).await;
                looked_at = clock::now();
                if let Ok(Ok(true)) = looked {
                    return;
                }
            }
            let state =
                if self.shared.drain.load(Ordering::Relaxed) { IslandState::Draining } else { IslandState::Training };
            let card = self.card(counter, state);
            self.report(&card);
            // A beat that does not get through is missed, not repeated: the next one is fresher.
            let _ = clock::timeout(self.beat_every * 5, self.bucket.put_card(&card)).await;
            clock::sleep(self.beat_every).await;
        }
    }

    /// Whether a newer life of this island has been claimed; this one then ends at its next step boundary.
    async fn is_succeeded(&self) -> Result<bool> {
        let newest = self.bucket.newest_incarnation(&self.name).await?;
        let succeeded = newest > self.incarnation;
        if succeeded && !self.shared.fenced.swap(true, Ordering::Relaxed) {
            self.sink.note(&self.name, format!("life {} ends: life {newest} has been claimed", self.incarnation));
        }
        Ok(succeeded)
    }

    /// Writes checkpoints until the training loop ends.
    pub async fn checkpoint(self: Arc<Crew>, mut jobs: mpsc::Receiver<CheckpointJob>) {
        let mut trouble = Trouble::default();
        while let Some(job) = jobs.recv().await {
            let result = self.write_checkpoint(job).await;
            self.trouble(&mut trouble, result.as_ref().map(|_| ()));
        }
    }

    /// Writes one checkpoint and removes those that are too many.
    ///
    /// Before: this is the newest life of its island. One that was frozen, and has been succeeded meanwhile, writes nothing and is fenced, or it would remove what
    /// its successor has written.
    pub async fn write_checkpoint(&self, job: CheckpointJob) -> Result<()> {
        if self.is_succeeded().await? {
            return Ok(());
        }
        let step = job.step;
        let header = CheckpointHeader {
            format: FORMAT,
            layout: self.fragments.fingerprint().to_string(),
            island: self.name.clone(),
            incarnation: self.incarnation,
            step: job.step,
            tokens: job.tokens,
            tokens_repeated: job.tokens_repeated,
            adam_steps: job.adam_steps,
            late: job.late,
            held: job.held,
            fragments: job.fragments,
            hash: String::new(),
        };
        self.bucket.put_checkpoint(&self.layout, header, [&job.parameters, &job.first, &job.second]).await?;
        self.bucket.prune_checkpoints(&self.name, step, self.checkpoints_kept).await
    }

    /// Claims blocks of data ahead of the training loop: those that a dead island has left first, then the first that nobody has.
    pub async fn claim(self: Arc<Crew>) {
        let mut next = None;
        let mut peers = Peers::default();
        loop {
            if !self.shared.wants_block.load(Ordering::Relaxed) {
                clock::sleep(self.poll_every() * 4).await;
                continue;
            }
            if let Err(error) = self.claim_one(&mut next, &mut peers).await {
                self.sink
                    .note(&self.name, format!("no new block of data, goes over its last one again: {}", error.chain()));
                clock::sleep(Duration::from_secs(2)).await;
            }
        }
    }

    async fn claim_one(&self, next: &mut Option<u64>, peers: &mut Peers) -> Result<()> {
        let claimed = match self.take_over(peers).await? {
            Some(left) => left,
            None => {
                let mut block = match *next {
                    Some(block) => block,
                    None => self.bucket.next_block().await?,
                };
                while !self.bucket.claim_block(block, &self.name, self.incarnation).await? {
                    block += 1;
                }
                *next = Some(block + 1);
                Cursor::at(block)
            }
        };
        self.shared.give_block(claimed);
        // After the block is there: the training loop asks again only once it has taken it.
        self.shared.wants_block.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// A block that an island left unfinished whose heartbeat has not moved for long. Looks at one peer each time, so that a claim costs the same
    /// whatever their number.
    async fn take_over(&self, peers: &mut Peers) -> Result<Option<Cursor>> {
        let names: Vec<String> = self.bucket.islands().await?.into_iter().filter(|name| *name != self.name).collect();
        if names.is_empty() {
            return Ok(None);
        }
        peers.looks += 1;
        let name = &names[peers.looks % names.len()];
        let card = match self.bucket.card(name).await {
            // One that cannot be read is its island's trouble.
            Err(error) if error.kind() == Kind::Corrupt => None,
            card => card?,
        };
        let Some(card) = card else { return Ok(None) };
        let beat = (card.incarnation, card.counter);
        let now = clock::now();
        let known = peers.known.entry(name.clone()).or_insert(Peer { beat, since: now, has_blocks: true });
        if known.beat != beat {
            *known = Peer { beat, since: now, has_blocks: true };
        }
        if !known.has_blocks || now - known.since < self.beat_every * DEAD_BEATS {
            return Ok(None);
        }
        let mut left = card.held;
        let newest = left.iter().map(|held| held.block).max();
        if let Some(newest) = newest {
            // Those that it claimed after its last heartbeat.
            let lives = card.incarnation..=card.incarnation;
            let more = self.bucket.blocks_held_from(newest.saturating_add(1), name, lives).await?;
            left.extend(more.into_iter().map(Cursor::at));
        }
        left.retain(|block| !block.is_used_up() && !peers.taken.contains(&block.block));
        for block in left.into_iter().take(BLOCKS_LEFT_MAX) {
            let taken = self.bucket.take_over_block(block.block, name, &self.name, self.incarnation).await?;
            if let Some(attempt) = taken {
                peers.taken.insert(block.block);
                let windows = block.window;
                self.sink.note(
                    &self.name,
                    format!("takes over block {} of {name}, which is silent, from window {windows} on", block.block),
                );
                return Ok(Some(Cursor { attempt, ..block }));
            }
        }
        known.has_blocks = false;
        Ok(None)
    }
}

/// A task's trouble with the bucket.
#[derive(Default)]
struct Trouble {
    since: Option<Instant>,
    said: bool,
}

/// What the claiming task knows of the other islands.
#[derive(Default)]
struct Peers {
    looks: usize,
    known: BTreeMap<String, Peer>,
    /// Blocks that were taken over.
    taken: BTreeSet<u64>,
}

struct Peer {
    /// Life and counter of its heartbeat.
    beat: (u64, u64),
    /// Since when it has been that.
    since: Instant,
    /// False once nothing of its was left to take over.
    has_blocks: bool,
}
