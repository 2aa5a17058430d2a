//! Runs an island until its run ends or it is told to drain.

use super::join::{Joined, Site, join};
use super::stepper::{CheckpointJob, Shared, Status, Stepper, Turn};
use super::task::Crew;
use crate::bucket::record::IslandState;
use crate::clock::{self, Duration};
use crate::error::{Error, Kind, Result};
use crate::outer::Feedback;
use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::JoinSet;

/// Offers that may wait for the codec.
const OFFERS_MAX: usize = 4;
/// How long an ending island waits for its last transfers.
const FLUSH: Duration = Duration::from_secs(20);

/// Lives in a row that may go astray.
const ROLLBACKS_MAX: u32 = 3;
/// Steps after which going astray again is another accident, not the same one.
const ASTRAY_APART: u64 = 200;

/// How the training loop is driven.
#[derive(Debug, Clone, Copy)]
pub enum Drive {
    /// On a thread of its own, as fast as it goes.
    Thread,
    /// Inside a task, one step each time this much (virtual) time has passed.
    Virtual(Duration),
}

/// How an island ended.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Why the run has ended; none if the island was drained or went astray.
    pub stopped: Option<String>,
    /// What was no longer finite, if that is why it ended: the next life goes on from the last good checkpoint.
    pub astray: Option<String>,
    /// Where the training loop stood.
    pub status: Status,
}

/// Lives one life after another until the run ends or `drain` completes. Whose state is no longer finite rolls itself back: its next life, in this process,
/// goes on from its last good checkpoint, behind the data that it was trained on last. If that goes astray at once, the life after it leaves the
/// checkpoint aside and starts from what is committed. `site` makes everything that a life is given.
///
/// # Errors
/// Those of `site`; unavailable or corrupt bucket; fenced if a newer life of this island was claimed; invalid if an inner step is impossible; corrupt if more than [`ROLLBACKS_MAX`] lives in a row went astray.
pub async fn live<F: Future<Output = Result<Site>>>(
    mut site: impl FnMut() -> F,
    drive: Drive,
    drain: impl Future<Output = ()>,
) -> Result<Outcome> {
    tokio::pin!(drain);
    let mut in_a_row = 0;
    loop {
        let site = site().await?;
        let (name, sink) = (site.name.clone(), site.sink.clone());
        let joined = join(site, in_a_row < 2).await?;
        let step = joined.status.step;
        let outcome = run(joined, drive, &mut drain).await?;
        let Some(what) = &outcome.astray else { return Ok(outcome) };
        in_a_row = if outcome.status.step - step >= ASTRAY_APART { 1 } else { in_a_row + 1 };
        if in_a_row > ROLLBACKS_MAX {
            return Err(Error::corrupt(format!(
                "island {name}: went astray {in_a_row} times within {ASTRAY_APART} steps each, lastly at step {}: {what}; \
                 try a lower learning_rate or clip_norm",
                outcome.status.step
            )));
        }
        sink.note(&name, format!("rolls itself back at step {}: {what}", outcome.status.step));
    }
}

/// Runs the island until the run ends or `drain` completes; then publishes what is open, writes a checkpoint and returns.
///
/// # Errors
/// Fenced if a newer life of this island was claimed; invalid if an inner step is impossible. A step whose loss or gradient is not finite is an outcome.
async fn run(joined: Joined, drive: Drive, drain: impl Future<Output = ()>) -> Result<Outcome> {
    let Joined { site, incarnation, tail, machine, status, bases } = joined;
    let spec = &site.record.spec;
    let shared = Arc::new(Shared::new(machine, status, bases));
    let crew = Arc::new(Crew {
        bucket: site.bucket,
        shared: shared.clone(),
        layout: site.layout,
        fragments: site.fragments.clone(),
        name: site.name,
        run: spec.run.clone(),
        incarnation,
        shelf: site.shelf,
        down: site.record.down.clone(),
        cannot_step: AtomicBool::new(false),
        active: Mutex::new(tail.ledger.active.clone()),
        feedback: Mutex::new(Feedback::new(site.fragments.count())),
        news: Notify::new(),
        sink: site.sink,
        beat_every: site.beat_every,
        checkpoints_kept: spec.keep.checkpoints,
    });
    let (offers, offers_out) = mpsc::channel(OFFERS_MAX);
    let (checkpoints, checkpoints_out) = mpsc::channel(1);
    let mut beside = JoinSet::new();
    beside.spawn(crew.clone().follow(tail));
    beside.spawn(crew.clone().fetch());
    beside.spawn(crew.clone().beat());
    beside.spawn(crew.clone().claim());
    let mut flush = JoinSet::new();
    flush.spawn(crew.clone().publish(offers_out));
    flush.spawn(crew.clone().checkpoint(checkpoints_out));

    let stepper = Stepper::new(
        site.inner,
        site.fragments,
        shared.clone(),
        spec.schedule(),
        offers,
        checkpoints,
        Duration::from_secs(spec.keep.checkpoint_seconds),
    );
    let ended = train(stepper, drive, shared.clone());
    tokio::pin!(ended);
    tokio::pin!(drain);
    // A task that ends while the loop goes on has failed (or has seen that this life is over): an island that trains and no longer offers
    // would look alive for ever.
    let mut failed = false;
    let job = tokio::select! {
        biased;
        job = &mut ended => job,
        () = &mut drain => {
            shared.drain.store(true, Ordering::Relaxed);
            ended.await
        }
        _ = beside.join_next() => {
            failed = true;
            shared.drain.store(true, Ordering::Relaxed);
            ended.await
        }
        _ = flush.join_next() => {
            failed = true;
            shared.drain.store(true, Ordering::Relaxed);
            ended.await
        }
    };
    let (job, astray) = match job {
        Ok(job) => (Some(job), None),
        Err(error) if error.kind() == Kind::Corrupt => (None, Some(error.chain())),
        Err(error) => return Err(error),
    };
    // The loop's senders are gone with it, so these two end when they have sent what was left.
    let flushed = clock::timeout(FLUSH, async { while flush.join_next().await.is_some() {} }).await;
    if flushed.is_err() {
        crew.sink.note(&crew.name, "ends without its last transfers: the bucket does not answer");
    }
    let fenced = shared.fenced.load(Ordering::Relaxed);
    beside.abort_all();
    while beside.join_next().await.is_some() {}
    if fenced {
        return Err(Error::fenced(format!(
            "island {}: life {incarnation} ended because a newer one was claimed",
            crew.name
        )));
    }
    // A state that went astray is not worth keeping.
    if let Some(job) = job {
        match clock::timeout(FLUSH, crew.write_checkpoint(job)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => crew.sink.note(&crew.name, format!("ends without a last checkpoint: {}", error.chain())),
            Err(_) => crew.sink.note(&crew.name, "ends without a last checkpoint: the bucket does not answer"),
        }
    }
    let card = crew.card(u64::from(u32::MAX), IslandState::Done);
    crew.report(&card);
    let _ = clock::timeout(Duration::from_secs(5), crew.bucket.put_card(&card)).await;
    if failed {
        return Err(Error::unavailable(format!(
            "island {}: one of its tasks has failed; its next life goes on",
            crew.name
        )));
    }
    let stopped = shared.machine().stopped().map(str::to_string);
    Ok(Outcome { stopped, astray, status: shared.status() })
}

/// Drives the training loop to its end and returns what a last checkpoint holds.
async fn train(mut stepper: Stepper, drive: Drive, shared: Arc<Shared>) -> Result<CheckpointJob> {
    match drive {
        Drive::Virtual(step) => {
            while stepper.turn()? == Turn::Stepped {
                clock::sleep(step).await;
            }
            Ok(stepper.checkpoint_job())
        }
        Drive::Thread => {
            let (done, result) = oneshot::channel();
            let body = move || {
                let outcome = loop {
                    match stepper.turn() {
                        Ok(Turn::Stepped) => {}
                        Ok(Turn::Ended) => break Ok(stepper.checkpoint_job()),
                        Err(error) => break Err(error),
                    }
                };
                // Said before the loop's queues close, so that their tasks are not taken for failed ones.
                let _ = done.send(outcome);
                drop(stepper);
            };
            std::thread::Builder::new()
                .name("train".into())
                .spawn(body)
                .map_err(|e| Error::unavailable("no thread for the training loop").because(e))?;
            drop(shared);
            result.await.map_err(|_| Error::bug("the training loop panicked"))?
        }
    }
}
