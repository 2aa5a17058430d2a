//! The runs of the bucket, and how one stands, from the bucket alone. Who is alive is not said, since that is a matter of somebody's clock: an
//! island whose `counter` has moved between two answers is.
//!
//! What the log came to is kept for the runs that were asked for last, so that whoever asks again costs only the entries since.

use super::problem::Problem;
use super::query::Query;
use super::{Answer, Service, json};
use crate::activate::shape;
use crate::bucket::record::{Body, Card, Entry, Fate, PolicyUse, RunRecord};
use crate::bucket::{Bucket, Chosen, Ledger, Tail, run_names};
use crate::error::{Error, Kind};
use crate::outer::Fragments;
use crate::policy::Role;
use hyper::StatusCode;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::sync::PoisonError;

/// Runs whose logs are kept.
const KEPT_MAX: usize = 8;
/// Rounds whose islands are told.
const ROUNDS_TOLD: usize = 8;
/// Log entries that are looked through for them at first; skips and terms stand between commits.
const ENTRIES_LOOKED_AT: u64 = 16;

/// What the log of a run came to.
#[derive(Debug, Clone)]
pub struct Kept {
    /// Nonce of the run's record: a run that was removed and made anew is another.
    nonce: String,
    /// The log itself.
    pub tail: Tail,
    /// The last rounds that were committed and the islands merged in each, newest first.
    rounds: VecDeque<(u64, Vec<String>)>,
}

/// `GET /v1/runs`: their names.
pub async fn list(service: &Service, query: Option<&str>) -> Result<Answer, Problem> {
    Query::parse(query)?.end(&[])?;
    let runs: Vec<Value> = run_names(&*service.store).await?.into_iter().map(|name| json!({ "run": name })).collect();
    Ok(json(StatusCode::OK, &json!({ "runs": runs })))
}

/// `GET /v1/runs/RUN`: how it stands.
pub async fn status(service: &Service, run: &str, query: Option<&str>) -> Result<Answer, Problem> {
    Query::parse(query)?.end(&[])?;
    let (bucket, record, _) = find(service, run).await?;
    let mut islands = Vec::new();
    for name in bucket.islands().await? {
        islands.extend(bucket.card(&name).await?.map(|card| (name, card)));
    }
    // Read after the heartbeats, so that nothing that they have read is missing.
    let kept = follow(service, run, &bucket, &record).await?;
    Ok(json(StatusCode::OK, &standing(run, &record, &kept, &islands)))
}

/// A run, its record and its fragments. The record is input: one that this version would not have made is the bucket's fault, not the caller's.
pub async fn find(service: &Service, run: &str) -> Result<(Bucket, RunRecord, Fragments), Problem> {
    let bucket = Bucket::new(service.store.clone(), run);
    let absent = || {
        Problem::new(StatusCode::NOT_FOUND, "this run is not here").at("path.run", "one that GET /v1/runs lists", run)
    };
    let unknown =
        |error: Error| Problem::new(StatusCode::INTERNAL_SERVER_ERROR, format!("run {run}: {}", error.chain()));
    let record = bucket.run_record().await.map_err(|error| match error.kind() {
        Kind::Invalid => unknown(error),
        _ => error.into(),
    })?;
    let record = record.ok_or_else(absent)?;
    let (_, fragments) = shape(&record).map_err(unknown)?;
    Ok((bucket, record, fragments))
}

/// The log of a run up to now.
pub async fn follow(service: &Service, run: &str, bucket: &Bucket, record: &RunRecord) -> Result<Kept, Problem> {
    let known = service.kept.lock().unwrap_or_else(PoisonError::into_inner).get(run).cloned();
    let mut kept = match known.filter(|kept| kept.nonce == record.nonce) {
        Some(kept) => kept,
        None => {
            let mut tail = Tail::of(bucket, record).await?;
            tail.advance(bucket, usize::MAX).await?;
            let rounds = last_rounds(bucket, &tail.ledger).await?;
            Kept { nonce: record.nonce.clone(), tail, rounds }
        }
    };
    for entry in kept.tail.advance(bucket, usize::MAX).await?.into_iter().flatten() {
        if let Some(round) = merged(&entry) {
            kept.rounds.push_front(round);
            kept.rounds.truncate(ROUNDS_TOLD);
        }
    }
    let mut all = service.kept.lock().unwrap_or_else(PoisonError::into_inner);
    if all.len() >= KEPT_MAX && !all.contains_key(run) {
        all.pop_first();
    }
    all.insert(run.to_string(), kept.clone());
    Ok(kept)
}

/// A commit's round and the islands merged in it.
fn merged(entry: &Entry) -> Option<(u64, Vec<String>)> {
    let Body::Commit(commit) = &entry.body else { return None };
    let offers = commit.offers.iter().filter(|offer| offer.fate == Fate::Merged);
    Some((commit.round, offers.map(|offer| offer.id.island.clone()).collect()))
}

/// The last rounds committed, newest first.
async fn last_rounds(bucket: &Bucket, ledger: &Ledger) -> Result<VecDeque<(u64, Vec<String>)>, Problem> {
    let mut rounds = VecDeque::new();
    let looked_at = ledger.next.saturating_sub(ENTRIES_LOOKED_AT)..ledger.next;
    for seq in looked_at.rev().filter(|seq| !ledger.void.contains(seq)) {
        let Some(bytes) = bucket.log_bytes(seq).await? else { continue };
        rounds.extend(serde_json::from_slice(&bytes).ok().and_then(|entry| merged(&entry)));
        if rounds.len() == ROUNDS_TOLD {
            break;
        }
    }
    Ok(rounds)
}

fn standing(run: &str, record: &RunRecord, kept: &Kept, islands: &[(String, Card)]) -> Value {
    let ledger = &kept.tail.ledger;
    let rounds: Vec<Value> =
        kept.rounds.iter().map(|(round, islands)| json!({ "round": round, "islands": islands })).collect();
    let breadth: Vec<Value> =
        ledger.breadth.iter().map(|(islands, rounds)| json!({ "islands": islands, "rounds": rounds })).collect();
    json!({
        "run": run,
        "chaos": record.chaos,
        "stopped": ledger.stopped,
        "log_entries": ledger.next,
        "void_entries": ledger.void.len(),
        "term": ledger.term,
        "acting": ledger.acting,
        "policies": {
            "codec": filled(ledger, Role::Codec),
            "merge": filled(ledger, Role::Merge),
            "pace": filled(ledger, Role::Pace),
            "down": record.down.as_ref().map(|down| json!({ "policy": down.hash, "name": down.name, "config": down.config })),
        },
        "rounds": { "next": ledger.next_round, "committed": ledger.rounds_committed(), "skipped": ledger.rounds_skipped() },
        "tokens": { "merged": ledger.tokens(), "budget": record.spec.tokens },
        "offers": ledger.fates,
        "breadth": breadth,
        "pace": ledger.pace,
        "islands": islands.iter().map(|(name, card)| island(name, card, ledger)).collect::<Vec<Value>>(),
        "last_rounds": rounds,
    })
}

/// Who fills a role in the next round to be closed, and who will.
fn filled(ledger: &Ledger, role: Role) -> Value {
    let told = |(since, chosen): (u64, &Chosen)| {
        let PolicyUse { name, hash, config } = &chosen.policy;
        let gave_up = chosen.failed.as_ref().map(|failed| &failed.why);
        json!({ "policy": hash, "name": name, "config": config, "from_round": since, "gave_up": gave_up })
    };
    let ahead: Vec<Value> = ledger.active.ahead(role, ledger.next_round).map(told).collect();
    json!({ "active": told(ledger.active.since(role, ledger.next_round)), "ahead": ahead })
}

fn island(name: &str, card: &Card, ledger: &Ledger) -> Value {
    // Of the versions that it holds, the oldest.
    let behind = card.versions.iter().zip(&ledger.lineages).filter_map(|(held, lineage)| lineage.since(*held)).max();
    let last = ledger.accounts.get(name).and_then(|account| account.last.as_ref()).map(|(round, fate)| match fate {
        Fate::Merged => json!({ "round": round, "fate": "merged", "reason": null }),
        Fate::Late => json!({ "round": round, "fate": "late", "reason": null }),
        Fate::Superseded => json!({ "round": round, "fate": "superseded", "reason": null }),
        Fate::Refused(reason) => json!({ "round": round, "fate": "refused", "reason": reason }),
    });
    json!({
        "island": name,
        "state": card.state,
        "incarnation": card.incarnation,
        "counter": card.counter,
        "step": card.step,
        "tokens": card.tokens,
        "tokens_per_s": card.tokens_per_s,
        "loss": card.loss,
        "wait_ratio": card.wait_ratio,
        "adopted": card.adopted,
        "versions_behind": behind.unwrap_or(0),
        "last_offer": last,
        "fragment_tokens": card.progress,
    })
}
