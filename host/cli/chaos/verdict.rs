//! What a run under blows came to: the figures, and whether every invariant held. Reads the bucket itself, past all proxies.

use super::Chaos;
use crate::bucket::{Ledger, Tail};
use crate::cli::assembly::Run;
use crate::clock;
use crate::error::{Error, Result};
use crate::nonce::sha256;
use crate::report::{ChaosReport, Invariant, by_kind};
use crate::sim::{Proxy, check_bucket};
use crate::syncer::Desk;
use std::collections::BTreeMap;

impl Chaos {
    /// What it all came to. `desk` is of the run; `ledger` what its log says at the end, when every role is gone.
    ///
    /// # Errors
    /// Unavailable: the time never began.
    pub async fn report(mut self, run: &Run, desk: &Desk, ledger: &Ledger) -> Result<ChaosReport> {
        let began = self.began.ok_or_else(|| {
            Error::unavailable(
                "the run ended before every island trained and a round was committed: nothing was struck",
            )
        })?;
        let (seconds, tokens_useful) =
            self.measured.unwrap_or_else(|| ((clock::now() - began.at).as_secs_f64(), ledger.tokens() - began.tokens));
        let tokens_per_s: BTreeMap<String, Option<f64>> =
            self.gauges.iter().map(|(name, gauge)| (name.clone(), gauge.rate())).collect();
        let rates: Option<f64> = tokens_per_s.values().copied().sum();
        let tokens_possible = rates.map(|rate| rate * seconds).filter(|possible| *possible > 0.0);
        let mut spoilt: BTreeMap<String, u64> = BTreeMap::new();
        for (what, n) in self.proxies.values().flat_map(Proxy::spoilt) {
            *spoilt.entry(what.to_string()).or_default() += n;
        }
        // A run that reached its budget has gone on to its end.
        let progressed = self.rounds_after_blow > 0 || ledger.stopped.is_some();
        self.record(ledger).await;
        let invariants = self.invariants(run, desk).await;
        Ok(ChaosReport {
            seed: self.seed,
            seconds,
            islands: self.islands,
            syncers: self.order.syncers,
            links: !self.proxies.is_empty(),
            tokens_useful,
            tokens_possible,
            goodput: tokens_possible.map(|possible| tokens_useful as f64 / possible),
            uptime: self.stepping.as_secs_f64() / self.watched.as_secs_f64().max(f64::MIN_POSITIVE),
            rounds_committed: self.merged.0,
            rounds_after_last_blow: self.rounds_after_blow,
            breadth: (self.merged.0 > 0).then(|| self.merged.1 as f64 / self.merged.0 as f64),
            kinds: by_kind(&self.lines),
            blows: self.lines,
            passed_over: self.passed_over,
            spoilt,
            tokens_per_s,
            survived: progressed && invariants.iter().all(|invariant| invariant.holds),
            invariants,
        })
    }

    async fn invariants(&self, run: &Run, desk: &Desk) -> Vec<Invariant> {
        let invariant = |what: &str, found: Result<String>| {
            let (holds, found) = found.map_or_else(|error| (false, error.chain()), |found| (true, found));
            Invariant { what: what.into(), holds, found }
        };
        vec![
            invariant("no entry that was read has changed or gone", self.same_tape().await),
            invariant("the log read from its start has no void entry", no_void(run).await),
            invariant(
                "commits extend the log, no offer counts twice, tokens add up, merges recompute to the same bytes",
                check_bucket(self.bucket.store(), &run.record.spec.run, desk).await.map(|checked| {
                    format!("{} entries, {} rounds, {} recomputed", checked.entries, checked.rounds, checked.recomputed)
                }),
            ),
        ]
    }

    async fn same_tape(&self) -> Result<String> {
        for (seq, hash) in (0u64..).zip(&self.tape) {
            let found = self.bucket.log_bytes(seq).await?.map(|bytes| sha256(&bytes));
            if found.as_ref() != Some(hash) {
                return Err(Error::corrupt(format!("log entry {seq}: expected content {hash}, found {found:?}")));
            }
        }
        Ok(format!("{} entries", self.tape.len()))
    }
}

/// Reads the whole log as every reader does.
async fn no_void(run: &Run) -> Result<String> {
    let mut tail = Tail::new(Ledger::of(&run.record));
    for read in tail.advance(&run.bucket, usize::MAX).await? {
        read.map_err(|violation| Error::corrupt(violation.to_string()))?;
    }
    let fates = &tail.ledger.fates;
    Ok(format!(
        "{} rounds; offers: {} merged, {} late, {} superseded, {} refused",
        tail.ledger.rounds_committed(),
        fates.merged,
        fates.late,
        fates.superseded,
        fates.refused
    ))
}
