//! What a bucket says about its runs; nothing but the bucket is asked.

use super::arguments::StatusArguments;
use super::assembly::{Run, run_names};
use super::export::current_ledger;
use super::role::location;
use crate::bucket::record::{Body, Card, Entry, Fate};
use crate::clock::{self, Duration};
use crate::error::Result;
use std::collections::BTreeMap;

/// How long a heartbeat may take to move before its island is called silent.
const LOOK: Duration = Duration::from_millis(2500);
/// Rounds whose participants are shown.
const LAST_ROUNDS: usize = 8;

/// `tombolo status`.
pub async fn command(arguments: StatusArguments) -> Result<()> {
    let place = location(&arguments.target);
    let names = match &arguments.target.run {
        Some(name) => vec![name.clone()],
        None => run_names(&place.open(false).await?).await?,
    };
    if names.is_empty() {
        say!("{}: no runs", place.url);
    }
    for name in names {
        show(&Run::open(&place, Some(&name)).await?).await?;
    }
    Ok(())
}

async fn cards(run: &Run) -> Result<BTreeMap<String, Card>> {
    let mut cards = BTreeMap::new();
    for island in run.bucket.islands().await? {
        if let Some(card) = run.bucket.card(&island).await? {
            cards.insert(island, card);
        }
    }
    Ok(cards)
}

async fn show(run: &Run) -> Result<()> {
    let ledger = current_ledger(run).await?;
    let spec = &run.record.spec;
    let state = ledger.stopped.as_deref().map_or("open".to_string(), |reason| format!("ended: {reason}"));
    say!("run {}  ({state})", spec.run);
    say!("  rounds committed {}, tokens merged {} of {}", ledger.rounds_committed(), ledger.tokens(), spec.tokens);
    let fates = &ledger.fates;
    say!(
        "  offers: {} merged, {} late, {} superseded, {} refused",
        fates.merged,
        fates.late,
        fates.superseded,
        fates.refused
    );
    for (reason, count) in &fates.reasons {
        say!("    refused {count}: {reason}");
    }
    let breadth: Vec<String> =
        ledger.breadth.iter().map(|(islands, rounds)| format!("{islands} in {rounds}")).collect();
    say!("  islands merged per round: {}", if breadth.is_empty() { "none yet".into() } else { breadth.join(", ") });
    if let Some(pace) = ledger.pace {
        say!(
            "  pace: rounds {:.0} ms apart, a step {:.0} ms, H {:.1} (asked {}), {} rounds open at once",
            pace.spacing_ms,
            pace.step_ms,
            pace.sync_steps,
            spec.outer.sync_steps,
            pace.window
        );
    }
    let before = cards(run).await?;
    if ledger.stopped.is_none() && !before.is_empty() {
        clock::sleep(LOOK).await;
    }
    let after = cards(run).await?;
    say!(
        "  {:<16} {:>5} {:>9} {:>9} {:>12} {:>7} {:>9} {:>7}  state",
        "island",
        "life",
        "step",
        "tokens",
        "tokens/s",
        "loss",
        "adopted",
        "waits"
    );
    for (name, card) in &after {
        let moved = before.get(name).is_some_and(|b| (b.incarnation, b.counter) != (card.incarnation, card.counter));
        let state = format!("{:?}", card.state).to_lowercase();
        let alive = if moved || state == "done" { state } else { format!("silent (was {state})") };
        say!(
            "  {:<16} {:>5} {:>9} {:>9} {:>12.0} {:>7} {:>9} {:>6.2}%  {alive}",
            name,
            card.incarnation,
            card.step,
            card.tokens,
            card.tokens_per_s,
            card.loss.map_or("-".into(), |l| format!("{l:.3}")),
            card.adopted.map_or("-".into(), |r| r.to_string()),
            card.wait_ratio * 100.0
        );
    }
    let last = last_commits(run, ledger.next).await?;
    for (round, islands) in &last {
        say!("  round {round}: {}", islands.join(", "));
    }
    let live = after.keys().filter(|n| before.get(*n).is_some_and(|b| b.counter != after[*n].counter)).count();
    if live > 1 && last.len() >= 4 && last.iter().all(|(_, islands)| islands.len() <= 1) {
        say!(
            "  warning: {live} islands are alive but the last rounds merged one each; is the bucket slow for some of them?"
        );
    }
    Ok(())
}

/// The islands merged in the last rounds, newest first.
async fn last_commits(run: &Run, next: u64) -> Result<Vec<(u64, Vec<String>)>> {
    let mut rounds = Vec::new();
    for seq in (next.saturating_sub(2 * LAST_ROUNDS as u64)..next).rev() {
        let Some(bytes) = run.bucket.log_bytes(seq).await? else { continue };
        if let Ok(Entry { body: Body::Commit(commit), .. }) = serde_json::from_slice(&bytes) {
            let merged = commit.offers.iter().filter(|o| o.fate == Fate::Merged).map(|o| o.id.island.clone());
            rounds.push((commit.round, merged.collect()));
        }
        if rounds.len() == LAST_ROUNDS {
            break;
        }
    }
    Ok(rounds)
}
