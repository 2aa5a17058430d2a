//! What a bucket says about its runs; nothing but the bucket is asked.

use super::arguments::StatusArguments;
use super::assembly::Run;
use super::export::current_ledger;
use super::role::location;
use crate::bucket::record::{Body, Card, Entry, Failed, Fate, PolicyUse, Progress};
use crate::bucket::{Ledger, run_names};
use crate::clock;
use crate::error::Result;
use crate::outer::Period;
use crate::policy::Role;
use std::collections::{BTreeMap, BTreeSet};

/// Beats within which a heartbeat has to move, or its island is called silent.
const LOOK_BEATS: u32 = 5;
/// Rounds whose participants are shown.
const LAST_ROUNDS: usize = 8;

/// `tombolo status`.
pub async fn command(arguments: StatusArguments) -> Result<()> {
    let place = location(&arguments.target);
    let names = match &arguments.target.run {
        Some(name) => vec![name.clone()],
        None => run_names(&*place.open(false).await?).await?,
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
    if run.record.chaos {
        say!("  under chaos: `tombolo chaos` strikes its islands and syncers");
    }
    say!("  rounds committed {}, tokens merged {} of {}", ledger.rounds_committed(), ledger.tokens(), spec.tokens);
    if ledger.rounds_skipped() > 0 {
        say!("  rounds skipped {}: too few of their offers could be merged", ledger.rounds_skipped());
    }
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
    let config = |policy: &PolicyUse| match policy.config.as_str() {
        "" => "no configuration".to_string(),
        config => config.to_string(),
    };
    for role in [Role::Merge, Role::Codec, Role::Pace] {
        let (since, chosen) = ledger.active.since(role, ledger.next_round);
        let since = if since == 0 { String::new() } else { format!(" since round {since}") };
        let policy = &chosen.policy;
        let (name, config) = (policy.name.escape_debug(), config(policy));
        say!("  {role}: {name} ({:.12}), {config}{since}", policy.hash);
        if let Some(Failed { policy, why }) = &chosen.failed {
            let name = policy.name.escape_debug();
            say!("    ALERT: {name} ({:.12}) was given up for it: {}", policy.hash, why.escape_debug());
        }
        for (round, chosen) in ledger.active.ahead(role, ledger.next_round) {
            say!("    from round {round} on: {} ({:.12})", chosen.policy.name.escape_debug(), chosen.policy.hash);
        }
    }
    if let Some(down) = &run.record.down {
        say!("  way down: codec {} ({:.12}), {}", down.name.escape_debug(), down.hash, config(down));
    }
    let breadth: Vec<String> =
        ledger.breadth.iter().map(|(islands, rounds)| format!("{islands} in {rounds}")).collect();
    say!("  islands merged per round: {}", if breadth.is_empty() { "none yet".into() } else { breadth.join(", ") });
    if let Some(pace) = ledger.pace {
        say!(
            "  rounds {:.0} ms apart, a step {:.0} ms, H {:.1} (asked {}), {} rounds open at once",
            pace.spacing_ms,
            pace.step_ms,
            pace.sync_steps,
            Period::of(&spec.outer).before(ledger.next_round, ledger.fragments),
            pace.window
        );
    }
    let before = cards(run).await?;
    if ledger.stopped.is_none() && !before.is_empty() {
        clock::sleep(run.beat_every * LOOK_BEATS).await;
    }
    let after = cards(run).await?;
    // Read after the heartbeats, so that nothing that they have read is missing.
    let ledger = current_ledger(run).await?;
    let offering = offering(run, &ledger).await?;
    say!(
        "  {:<16} {:<22} {:>4} {:>8} {:>10} {:>8} {:>7} {:>7}  {:<12} last offer",
        "island",
        "state",
        "life",
        "step",
        "tokens/s",
        "loss",
        "waits",
        "behind",
        "contributes"
    );
    for (name, card) in &after {
        let moved = before.get(name).is_some_and(|b| (b.incarnation, b.counter) != (card.incarnation, card.counter));
        let state = format!("{:?}", card.state).to_lowercase();
        let state = if moved || state == "done" { state } else { format!("silent (was {state})") };
        let account = ledger.accounts.get(name).cloned().unwrap_or_default();
        let recent = ledger.next_round.saturating_sub(ledger.fragments);
        let merged = ledger.merged_rounds.get(name).is_some_and(|m| m.values().any(|&round| round >= recent));
        let offers = offering.contains(name) || account.last.as_ref().is_some_and(|(round, _)| *round >= recent);
        let contributes = match (merged, offers) {
            (true, _) => "merged",
            (false, true) => "offers",
            (false, false) => "no",
        };
        // Of the versions that it holds, the oldest.
        let behind = card.versions.iter().zip(&ledger.lineages);
        let behind = behind.filter_map(|(held, lineage)| lineage.since(*held)).max().unwrap_or(0);
        let last = match &account.last {
            None => "none".to_string(),
            Some((round, Fate::Merged)) => format!("round {round} merged"),
            Some((round, Fate::Late)) => format!("round {round} late"),
            Some((round, Fate::Superseded)) => format!("round {round} superseded"),
            Some((round, Fate::Refused(reason))) => format!("round {round} refused: {reason}"),
        };
        say!(
            "  {:<16} {state:<22} {:>4} {:>8} {:>10.0} {:>8} {:>6.2}% {:>7}  {contributes:<12} {last}",
            name,
            card.incarnation,
            card.step,
            card.tokens_per_s,
            card.loss.map_or("-".into(), |l| format!("{l:.3}")),
            card.wait_ratio * 100.0,
            format!("{behind} v."),
        );
    }
    show_tokens(&ledger, &after);
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

/// Islands that have an offer for an open round in the bucket.
async fn offering(run: &Run, ledger: &Ledger) -> Result<BTreeSet<String>> {
    let mut islands = BTreeSet::new();
    for round in ledger.open_rounds() {
        islands.extend(run.bucket.offers(round).await?.into_iter().map(|(id, _)| id.island));
    }
    Ok(islands)
}

/// What became of every token trained on, per island: the four parts add up to the whole, or a line says that they do not.
fn show_tokens(ledger: &Ledger, cards: &BTreeMap<String, Card>) {
    let fragments = ledger.fragments;
    let mean = |sum: i64| (sum as f64 / fragments as f64).round() as i64;
    let row = |name: &str, trained: u64, progress: &Progress| {
        say!(
            "  {:<16} {:>12} = {:>12} + {:>10} + {:>10} + {:>10}",
            name,
            trained,
            mean(progress.merged as i64),
            mean(progress.late as i64),
            mean(progress.in_flight as i64),
            mean(progress.lost)
        );
    };
    say!(
        "  {:<16} {:>12} = {:>12} + {:>10} + {:>10} + {:>10}",
        "tokens",
        "trained",
        "merged",
        "late",
        "in flight",
        "lost"
    );
    let (mut trained, mut all) = (0, Progress::default());
    let mut wrong = Vec::new();
    for (name, card) in cards {
        let progress = &card.progress;
        row(name, card.tokens, progress);
        trained += card.tokens;
        all.merged += progress.merged;
        all.late += progress.late;
        all.in_flight += progress.in_flight;
        all.lost += progress.lost;
        if progress.total() != (card.tokens * fragments) as i64 {
            wrong.push(format!(
                "{name}: trained {} tokens for each of {fragments} fragments, its parts come to {}",
                card.tokens,
                progress.total()
            ));
        }
        let logged = ledger.accounts.get(name).map_or(0, |account| account.fragment_tokens);
        if progress.merged > logged {
            wrong
                .push(format!("{name}: says that {} of its tokens were merged, the log has {logged}", progress.merged));
        }
    }
    if cards.len() > 1 {
        row("all", trained, &all);
    }
    let logged: u64 = ledger.accounts.values().map(|account| account.fragment_tokens).sum();
    if logged > all.merged {
        say!("    merged since these heartbeats: {}", mean((logged - all.merged) as i64));
    }
    for line in wrong {
        say!("  warning: tokens do not add up: {line}");
    }
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
