//! The bucket: where islands and syncers meet, and the only place where they do.
//!
//! `key` spells keys, `create` is the one primitive, `doctor` tries whether a store has what this rests on, `record` and `payload` are the two kinds of objects, `ledger` says what the log means.
//! `location`, `client` and `provision` know where buckets can be.
//! [`Bucket`] is one run in one bucket, with one method per kind of object; [`Policies`] are what all runs of a bucket share.

mod active;
mod client;
mod create;
mod deadline;
pub mod doctor;
mod encoded;
mod examination;
mod frame;
pub mod key;
mod ledger;
mod lineage;
mod location;
pub mod payload;
pub mod policy;
pub mod provision;
mod rate;
pub mod record;
mod resume;
mod run;
mod shelf;
mod spool;
mod step;
mod tail;
mod tensors;

pub use active::{Active, Chosen};
pub use create::{Created, create};
pub use deadline::Deadlines;
pub use encoded::{Encoded, Encoder, decode};
pub use key::{Keys, OfferId};
pub use ledger::{Account, CONFIG_BYTES_MAX, Ledger, MEMORY_ROUNDS, TOKENS_MAX, Violation};
pub use lineage::Lineage;
pub use location::Location;
pub use policy::Policies;
pub use rate::{Queue, Rate, rated};
pub use run::{Bucket, run_names};
pub use shelf::{Shelf, aside, unfit};
pub use spool::{Flat, MEMORY_BYTES, Vector};
pub use step::{Step, StepHeader};
pub use tail::{STATE_EVERY, Tail};
pub use tensors::{
    Checkpoint, CheckpointHeader, FragmentFacts, FragmentHeader, OfferHeader, OuterState, StateHeader,
    encoded_bytes_max,
};
