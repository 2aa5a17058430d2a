//! What a bucket can prove: every offer with its fate, and every merge recomputed.

use super::arguments::{LedgerArguments, VerifyArguments};
use super::assembly::{Run, cores, policy_runtime};
use super::role::location;
use crate::bucket::record::{Activate, Body, Failed, Fate};
use crate::bucket::{Ledger, Tail};
use crate::error::{Error, Result};
use crate::event::Sink;
use crate::syncer::verify;
use std::io::IsTerminal;

/// `tombolo ledger`.
pub async fn ledger_command(arguments: LedgerArguments) -> Result<()> {
    let run = Run::open(&location(&arguments.target), arguments.target.run.as_deref()).await?;
    let mut tail = Tail::new(Ledger::of(&run.record));
    if !arguments.json {
        say!(
            "{:>9} {:>9} {:<16} {:>5} {:>9} {:>9} {:>6} {:>10} {:>8}  fate",
            "closed",
            "round",
            "island",
            "life",
            "base",
            "tokens",
            "steps",
            "norm",
            "weight"
        );
    }
    while let Some(read) = tail.advance(&run.bucket, 1).await?.pop() {
        let entry = match read {
            Ok(entry) => entry,
            Err(violation) => {
                eprintln!("{violation}");
                continue;
            }
        };
        if let Body::Activate(switch) = &entry.body {
            show_switch(switch, arguments.json);
        }
        let (round, offers) = match &entry.body {
            Body::Commit(commit) => (commit.round, &commit.offers),
            Body::Skip(skip) => (skip.round, &skip.offers),
            _ => continue,
        };
        for offer in offers {
            if arguments.json {
                let line = serde_json::json!({ "closed": round, "offer": offer });
                say!("{line}");
                continue;
            }
            let fate = match &offer.fate {
                Fate::Merged => "merged".to_string(),
                Fate::Late => "late".to_string(),
                Fate::Superseded => "superseded".to_string(),
                Fate::Refused(reason) => format!("refused: {reason}"),
            };
            say!(
                "{:>9} {:>9} {:<16} {:>5} {:>9} {:>9} {:>6} {:>10.4} {:>8.4}  {fate}",
                round,
                offer.id.round,
                offer.id.island,
                offer.id.incarnation,
                offer.base,
                offer.tokens,
                offer.steps,
                offer.norm,
                offer.weight
            );
        }
    }
    let fates = &tail.ledger.fates;
    if !arguments.json {
        say!(
            "{} merged, {} late, {} superseded, {} refused",
            fates.merged,
            fates.late,
            fates.superseded,
            fates.refused
        );
    }
    Ok(())
}

/// A switch of policies, between the offers before and after it.
fn show_switch(switch: &Activate, json: bool) {
    if json {
        say!("{}", serde_json::json!({ "activate": switch }));
        return;
    }
    let Activate { role, policy, from_round, failed } = switch;
    let given_up = |Failed { policy, why }: &Failed| {
        format!("; {} ({:.12}) was given up for it: {}", policy.name.escape_debug(), policy.hash, why.escape_debug())
    };
    let why = failed.as_ref().map_or(String::new(), given_up);
    say!("{role} policy {} ({:.12}) from round {from_round} on{why}", policy.name.escape_debug(), policy.hash);
}

/// `tombolo verify`.
pub async fn verify_command(arguments: VerifyArguments) -> Result<()> {
    let run = Run::open(&location(&arguments.target), arguments.target.run.as_deref()).await?;
    let desk = run.desk(&policy_runtime()?, cores(), Sink::Null).await?;
    let shows = std::io::stderr().is_terminal();
    let verified = verify(&desk, arguments.every, |round| {
        if shows && round % 16 == 0 {
            eprint!("\rround {round}");
        }
    })
    .await?;
    if shows {
        eprintln!();
    }
    for problem in verified.void.iter().chain(&verified.wrong) {
        say!("{problem}");
    }
    say!(
        "{} log entries, {} void; {} merges recomputed to the same bytes, {} wrong, {} whose objects have been collected",
        verified.entries,
        verified.void.len(),
        verified.same,
        verified.wrong.len(),
        verified.gone
    );
    if verified.is_clean() {
        Ok(())
    } else {
        Err(Error::corrupt(format!("run {}: the log or a merge is not what it should be", run.record.spec.run)))
    }
}
