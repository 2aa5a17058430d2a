//! The bucket: where islands and syncers meet, and the only place where they do.
//!
//! `key` spells keys, `create` is the one primitive, `record` and `payload` are the two kinds of objects, `ledger` says what the log means.
//! [`Bucket`] is one run in one bucket, with one method per kind of object.

mod create;
mod deadline;
mod frame;
pub mod key;
mod ledger;
mod location;
pub mod payload;
mod rate;
pub mod record;
mod run;
mod tail;
mod tensors;

pub use create::{Created, create};
pub use key::{Keys, OfferId};
pub use ledger::{Account, Ledger, MEMORY_ROUNDS, TOKENS_MAX, Violation};
pub use location::Location;
pub use rate::{Queue, Rate, rated};
pub use run::Bucket;
pub use tail::{STATE_EVERY, Tail};
pub use tensors::{Checkpoint, CheckpointHeader, FragmentFacts, FragmentHeader, OfferHeader, StateHeader};
