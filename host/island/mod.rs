//! An island: trains on its own, offers what it has learned, takes in what was merged, and never waits for anybody.
//!
//! `machine` decides (pure), `stepper` is the training loop, `task` holds the transfers that go on beside it, `join` brings an island into a run,
//! `run` puts them together. If any of the tasks fails or the bucket is dead, the training loop goes on.

mod inner;
mod join;
mod machine;
mod run;
mod stepper;
mod task;

pub use inner::{Inner, Stepped, TextInner};
pub use join::Site;
pub use machine::{Adoption, Due, Machine, Rules, Settled};
pub use run::{Drive, Outcome, live};
pub use stepper::Status;
