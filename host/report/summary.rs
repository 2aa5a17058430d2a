//! What a run came to, as JSON for programs and as a table for people.

use std::fmt;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::number::{duration, grouped, short};
use super::{Error, Result, write_whole};

/// The figures of a finished, or drained, run. Field names are part of the interface: `--report`
/// writes them as they stand.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Summary {
    /// Held-out loss of the model that the run began with, in nats per byte; none if it was never
    /// scored.
    pub held_out_loss_first: Option<f64>,
    /// Held-out loss of the last committed model.
    pub held_out_loss_last: Option<f64>,
    /// Rounds in the log.
    pub rounds_committed: u64,
    /// Tokens that merged offers carried.
    pub tokens_merged: u64,
    /// Offers merged into some round.
    pub offers_merged: u64,
    /// Offers that came after their round was closed, or were based on too old a version.
    pub offers_late: u64,
    /// Offers of an earlier life of an island that had begun another one.
    pub offers_superseded: u64,
    /// Offers that failed a check.
    pub offers_refused: u64,
    /// Islands that took part.
    pub islands: usize,
    /// Wall time, in seconds.
    pub seconds: f64,
    /// Share of the islands' time in which they were ready to step and did not, from 0 to 1.
    pub wait_ratio: f64,
    /// Folder that the model was exported to; none if it was not.
    pub exported: Option<String>,
}

impl Summary {
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

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let loss = |loss: Option<f64>| loss.map_or_else(|| "not scored".to_owned(), |loss| format!("{loss:.3}"));
        let speed = if self.seconds > 0.0 { self.tokens_merged as f64 / self.seconds } else { 0.0 };
        let offers = self.offers_merged + self.offers_late + self.offers_superseded + self.offers_refused;
        let rows = [
            (
                "held-out loss",
                format!("{} → {} nats per byte", loss(self.held_out_loss_first), loss(self.held_out_loss_last)),
            ),
            ("rounds committed", grouped(self.rounds_committed)),
            (
                "tokens merged",
                format!(
                    "{} ({} islands, {} tokens/s together)",
                    short(self.tokens_merged as f64),
                    self.islands,
                    short(speed)
                ),
            ),
            (
                "offers",
                format!(
                    "{}: {} merged, {} late, {} superseded, {} refused",
                    grouped(offers),
                    grouped(self.offers_merged),
                    grouped(self.offers_late),
                    grouped(self.offers_superseded),
                    grouped(self.offers_refused)
                ),
            ),
            ("wall time", duration(self.seconds)),
            ("islands waited", format!("{:.2} % of the time", self.wait_ratio * 100.0)),
            ("model", self.exported.clone().unwrap_or_else(|| "not exported".to_owned())),
        ];
        for (name, value) in rows {
            writeln!(f, "  {name:<17} {value}")?;
        }
        Ok(())
    }
}
