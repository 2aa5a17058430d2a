//! The syncer: closes rounds, merges what was offered, commits. A role that any process can take; safety rests on the log alone.
//!
//! `machine` decides when a round is closed and with which offers (pure), `offer` is the firewall, `merge` runs the policy. The I/O is in three
//! files: `run` is the loop, `role` is about who acts, `round` does what is decided about a round. `verify` recomputes what was committed, `replay` does so under
//! another policy.

mod machine;
mod merge;
mod offer;
mod replay;
mod role;
mod round;
mod run;
mod verify;

pub use machine::{Decision, Duty, Machine, Rules, next_look};
pub use merge::{RoundInput, RoundOutput, merge_round};
pub use offer::{Facts, Verdict, check};
pub use replay::{Replayed, Rounds, TensorStep, replay};
pub use run::{Desk, Ended, run};
pub use verify::{Verified, verify};
