//! What a run under `tombolo chaos` came to, as JSON for programs and as a table for people.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use serde::Serialize;

use super::number::{duration, grouped, short};
use super::{Error, Result, write_whole};

/// The figures of a run under chaos. Field names are part of the interface: `--report` writes them as they stand.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ChaosReport {
    /// Seed of the run and of its blows.
    pub seed: u64,
    /// Time over which everything here is measured, in seconds: from when every island trained and a round was committed.
    pub seconds: f64,
    /// Islands that took part.
    pub islands: usize,
    /// Syncers beside them.
    pub syncers: usize,
    /// Whether links between processes and the bucket were struck as well.
    pub links: bool,
    /// Tokens merged in that time.
    pub tokens_useful: u64,
    /// Tokens that the islands would have trained on in that time, each at the rate of its calm stretches; none if an island had none.
    pub tokens_possible: Option<f64>,
    /// Tokens useful ÷ tokens possible.
    pub goodput: Option<f64>,
    /// Share of the time in which at least one island took steps.
    pub uptime: f64,
    /// Rounds committed in that time.
    pub rounds_committed: u64,
    /// Rounds committed after the last blow was over, those after the time included.
    pub rounds_after_last_blow: u64,
    /// Islands merged in a round, on average; none without rounds.
    pub breadth: Option<f64>,
    /// Every blow, in order.
    pub blows: Vec<BlowLine>,
    /// Blows of the schedule that met nobody: the target was down already, or had been killed so often that it would not be launched again.
    pub passed_over: u64,
    /// Blows by kind.
    pub kinds: BTreeMap<String, KindLine>,
    /// What the fault proxies spoilt, by what they did.
    pub spoilt: BTreeMap<String, u64>,
    /// Tokens per second of each island in calm stretches; none where it had none.
    pub tokens_per_s: BTreeMap<String, Option<f64>>,
    /// What must hold whatever is struck.
    pub invariants: Vec<Invariant>,
    /// Whether every invariant holds and rounds were committed after the last blow.
    pub survived: bool,
}

/// One blow.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BlowLine {
    /// When, in seconds.
    pub at_seconds: f64,
    /// Who was struck.
    pub struck: String,
    /// What was done.
    pub blow: String,
    /// Seconds until it was recovered from; none if it was not before the end.
    pub recovered_after_seconds: Option<f64>,
}

/// All blows of one kind.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct KindLine {
    /// How many there were.
    pub blows: u64,
    /// How many were recovered from.
    pub recovered: u64,
    /// Mean of the seconds until then; none if none was.
    pub recovery_seconds_mean: Option<f64>,
    /// The longest of them.
    pub recovery_seconds_max: Option<f64>,
}

/// Something that must hold.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Invariant {
    /// What.
    pub what: String,
    /// Whether it does.
    pub holds: bool,
    /// What was found.
    pub found: String,
}

/// Blows by kind.
pub fn by_kind(blows: &[BlowLine]) -> BTreeMap<String, KindLine> {
    let mut kinds: BTreeMap<String, KindLine> = BTreeMap::new();
    for blow in blows {
        let kind = kinds.entry(blow.blow.clone()).or_default();
        kind.blows += 1;
        if let Some(seconds) = blow.recovered_after_seconds {
            let sum = kind.recovery_seconds_mean.unwrap_or(0.0) * kind.recovered as f64 + seconds;
            kind.recovered += 1;
            kind.recovery_seconds_mean = Some(sum / kind.recovered as f64);
            kind.recovery_seconds_max = Some(kind.recovery_seconds_max.map_or(seconds, |most| most.max(seconds)));
        }
    }
    kinds
}

impl ChaosReport {
    /// Writes the figures to `path` as one JSON object.
    ///
    /// # Errors
    /// [`Error::Write`] if the file cannot be written.
    pub fn write_json(&self, path: &Path) -> Result<()> {
        let mut text = serde_json::to_vec_pretty(self)
            .map_err(|error| Error::Write { path: path.to_owned(), source: error.into() })?;
        text.push(b'\n');
        write_whole(path, &text)
    }
}

impl fmt::Display for ChaosReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = |share: f64| format!("{:.1} %", share * 100.0);
        let goodput = match (self.goodput, self.tokens_possible) {
            (Some(goodput), Some(possible)) => {
                format!("{} ({} of {} tokens)", percent(goodput), short(self.tokens_useful as f64), short(possible))
            }
            _ => "not measured: an island had no calm stretch".into(),
        };
        let breadth = self.breadth.map_or("-".into(), |b| format!("{b:.2} of {}", self.islands));
        let struck = if self.links { "processes, links, bucket" } else { "processes, bucket" };
        let rows = [
            ("chaos", format!("{}, seed {}, on {struck}", duration(self.seconds), self.seed)),
            ("goodput", goodput),
            ("uptime", percent(self.uptime)),
            ("merge breadth", breadth),
            (
                "rounds committed",
                format!("{}, {} after the last blow", grouped(self.rounds_committed), self.rounds_after_last_blow),
            ),
            ("blows", format!("{}, {} passed over", self.blows.len(), self.passed_over)),
        ];
        for (name, value) in rows {
            writeln!(f, "  {name:<17} {value}")?;
        }
        for (kind, line) in &self.kinds {
            let recovery = match (line.recovery_seconds_mean, line.recovery_seconds_max) {
                (Some(mean), Some(max)) => format!(", after {mean:.1} s on average, {max:.1} s at most"),
                _ => String::new(),
            };
            writeln!(f, "    {:<50} {} of {} recovered{recovery}", kind, line.recovered, line.blows)?;
        }
        if !self.spoilt.is_empty() {
            let spoilt: Vec<String> = self.spoilt.iter().map(|(what, n)| format!("{} {what}", grouped(*n))).collect();
            writeln!(f, "  {:<17} {}", "requests spoilt", spoilt.join(", "))?;
        }
        for invariant in &self.invariants {
            let verdict = if invariant.holds { "holds" } else { "BROKEN" };
            writeln!(f, "  {verdict:<17} {}: {}", invariant.what, invariant.found)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blows_are_summed_up_by_kind_and_one_that_was_not_recovered_from_counts() {
        let blow = |blow: &str, recovered_after_seconds| BlowLine {
            at_seconds: 1.0,
            struck: "island-0".into(),
            blow: blow.into(),
            recovered_after_seconds,
        };
        let kinds =
            by_kind(&[blow("killed", Some(1.0)), blow("killed", Some(4.0)), blow("killed", None), blow("cut", None)]);
        let killed =
            KindLine { blows: 3, recovered: 2, recovery_seconds_mean: Some(2.5), recovery_seconds_max: Some(4.0) };
        assert_eq!(kinds["killed"], killed);
        assert_eq!(kinds["cut"], KindLine { blows: 1, ..KindLine::default() });
    }
}
