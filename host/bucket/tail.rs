//! Following the log: a [`Ledger`] and the way to bring it up to date.

use super::record::{Entry, RunRecord};
use super::{Bucket, Ledger, Violation};
use crate::error::Result;

/// Log entries between two states that are written for joiners.
pub const STATE_EVERY: u64 = 256;

/// A reader's place in the log.
#[derive(Debug, Clone)]
pub struct Tail {
    /// What the log said so far.
    pub ledger: Ledger,
}

/// A log entry as a reader took it in.
pub type Read = std::result::Result<Entry, Violation>;

impl Tail {
    /// A reader that has read nothing.
    pub fn new(ledger: Ledger) -> Tail {
        Tail { ledger }
    }

    /// A reader of the log of the run that has this record, which starts as [`Tail::join`] does.
    ///
    /// # Errors
    /// Unavailable.
    pub async fn of(bucket: &Bucket, record: &RunRecord) -> Result<Tail> {
        Tail::join(bucket, Ledger::of(record)).await
    }

    /// Starts from the newest state in the bucket, so that a joiner need not read the whole log.
    ///
    /// # Errors
    /// Unavailable. A state that cannot be parsed is passed over: the log alone says everything.
    pub async fn join(bucket: &Bucket, empty: Ledger) -> Result<Tail> {
        for seq in bucket.states().await?.into_iter().rev() {
            if let Some(ledger) = bucket.state(seq).await?
                && (ledger.next, ledger.fragments, ledger.format) == (seq, empty.fragments, empty.format)
                && ledger.staleness_max == empty.staleness_max
                && ledger.is_whole()
                && bucket.log_bytes(seq - 1).await?.is_some()
            {
                return Ok(Tail { ledger });
            }
        }
        Ok(Tail::new(empty))
    }

    /// Reads on until the end of the log, at most `entries_max` entries, and returns them in order.
    ///
    /// # Errors
    /// Unavailable; what was read before is kept.
    pub async fn advance(&mut self, bucket: &Bucket, entries_max: usize) -> Result<Vec<Read>> {
        let mut read = Vec::new();
        while read.len() < entries_max {
            let Some(bytes) = bucket.log_bytes(self.ledger.next).await? else { break };
            read.push(self.ledger.apply_bytes(self.ledger.next, &bytes));
        }
        Ok(read)
    }
}
