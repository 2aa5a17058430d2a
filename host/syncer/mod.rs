//! The syncer: closes rounds, merges what was offered, commits. A role that any process can take; safety rests on the log alone.
//!
//! `machine` decides when a round is closed and with which offers (pure), `offer` is the firewall, `merge` runs the policy, `run` does the I/O, `verify` recomputes what
//! was committed.

mod machine;
mod merge;
mod offer;
mod run;
mod verify;

pub use machine::{Decision, Machine, Rules};
pub use merge::{RoundInput, RoundOutput, merge_round};
pub use offer::{Facts, Verdict, check};
pub use run::{Desk, Ended, run};
pub use verify::{Verified, verify};
