//! The syncer: closes rounds, merges what was offered, commits. A role that any process can take; safety rests on the log alone.
//!
//! `machine` decides when the pace policy is asked, when a round is closed and with which offers (pure), `offer` is the firewall, `merge` runs the merge policy, `down` takes the way down, `duty` says whether
//! this syncer deserves its role. The I/O is in three files: `run` is the loop, `role` is about who acts, `round` does what is decided about a round. `verify` recomputes what was committed, `replay` does so under
//! another policy.

mod down;
mod duty;
mod machine;
mod merge;
mod offer;
mod replay;
mod role;
mod round;
mod run;
mod verify;

pub use duty::{Duty, next_look};
pub use machine::{Decision, Machine, Question, Rules};
pub use merge::{RoundInput, RoundOutput, merge_round};
pub use offer::{Facts, Verdict, check};
pub use replay::{Replayed, Rounds, TensorStep, replay};
pub use run::{Desk, Ended, run};
pub use verify::{Verified, verify};
