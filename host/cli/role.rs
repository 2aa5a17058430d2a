//! One role by hand, or as a child of `tombolo run`.

use super::arguments::{IslandArguments, SyncerArguments, Target};
use super::assembly::{Run, cores, policy_runtime};
use crate::bucket::key::is_name;
use crate::bucket::{Location, Rate, rated};
use crate::error::{Error, Result};
use crate::event::Sink;
use crate::island::{self, Drive};
use crate::nonce::nonce;
use crate::syncer::{self, Desk};
use std::future::Future;
use tokio::io::AsyncReadExt;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

pub fn location(target: &Target) -> Location {
    Location { url: target.bucket.clone(), endpoint: target.server.endpoint.clone() }
}

/// The run that the arguments name, over a link of this speed, to take a role in it.
async fn open(target: &Target, link: Option<Rate>) -> Result<Run> {
    let place = location(target);
    Run::enter(rated(place.open(false).await?, link), &place, target.run.as_deref()).await
}

/// Completes when the process is asked to drain: Ctrl-C or SIGTERM; under a supervisor SIGTERM or the end of standard input (a Ctrl-C at the
/// terminal reaches the whole group, and the supervisor decides who drains when).
pub fn drained(supervised: bool) -> Result<impl Future<Output = ()>> {
    let failed = |e| Error::unavailable("signals cannot be watched").because(e);
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    Ok(async move {
        if supervised {
            let mut stdin = tokio::io::stdin();
            let closed = async {
                let mut buffer = [0u8; 64];
                while matches!(stdin.read(&mut buffer).await, Ok(n) if n > 0) {}
            };
            tokio::select! {
                biased;
                _ = terminate.recv() => {}
                () = closed => {}
            }
        } else {
            tokio::select! {
                biased;
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
        }
    })
}

/// Completes when the channel says so, or its sender is gone.
pub async fn told(mut receiver: watch::Receiver<bool>) {
    let _ = receiver.wait_for(|told| *told).await;
}

fn sink(supervised: bool) -> Sink {
    if supervised { Sink::Lines } else { Sink::Words }
}

/// `tombolo island`.
pub async fn island_command(arguments: IslandArguments) -> Result<()> {
    let drain = drained(arguments.supervised)?;
    let run = open(&arguments.target, arguments.link).await?;
    let runtime = policy_runtime()?;
    let threads = arguments.threads.unwrap_or_else(cores);
    let sink = sink(arguments.supervised);
    let site = || run.site(&runtime, &arguments.name, threads, arguments.data.as_deref(), sink.clone());
    let (stand_down, asked) = watch::channel(false);
    let standby = if arguments.may_sync {
        // The log says which island it is that acts.
        let id = format!("{:.48}-{}", arguments.name, &nonce()[..8]);
        let desk = Desk { id, eager: false, ..run.desk(&runtime, 1, sink.clone()).await? };
        Some(tokio::spawn(syncer::run(desk, told(asked))))
    } else {
        None
    };
    let outcome = island::live(site, Drive::Thread, drain).await?;
    if let Some(standby) = standby {
        // Nobody listening means that it has ended already.
        let _ = stand_down.send(true);
        match standby.await {
            Ok(Ok(_)) => {}
            // The island has done its own work; another syncer goes on.
            Ok(Err(error)) => sink.note(&arguments.name, format!("its syncer ended: {}", error.chain())),
            Err(error) => return Err(Error::bug("the syncer beside an island panicked").because(error)),
        }
    }
    let why = outcome.stopped.unwrap_or_else(|| "it was told to drain".into());
    sink.note(&arguments.name, format!("ends at step {}: {why}", outcome.status.step));
    Ok(())
}

/// `tombolo syncer`.
pub async fn syncer_command(arguments: SyncerArguments) -> Result<()> {
    let drain = drained(arguments.supervised)?;
    let run = open(&arguments.target, arguments.link).await?;
    let runtime = policy_runtime()?;
    let sink = sink(arguments.supervised);
    // Short enough to stand in a key beside the nonce.
    if !is_name(&arguments.name) || arguments.name.len() > 48 {
        return Err(Error::invalid(format!(
            "--name: expected 1 to 48 lower-case letters, digits and dashes, found `{}`",
            arguments.name.escape_debug()
        )));
    }
    let id = format!("{}-{}", arguments.name, &nonce()[..8]);
    let desk = run.desk(&runtime, arguments.threads.unwrap_or_else(cores), sink.clone()).await?;
    let desk = Desk { id: id.clone(), ..desk };
    match syncer::run(desk, drain).await? {
        syncer::Ended::Stopped(reason) => sink.note(&id, format!("ends: {reason}")),
        syncer::Ended::Drained => sink.note(&id, "ends: it was told to drain"),
    }
    Ok(())
}
