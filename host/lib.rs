//! Tombolo trains one language model on many islands of compute that never talk to each other. They meet in an object-storage bucket;
//! WebAssembly policies decide how updates are compressed and merged.
//!
//! Modules import one way, each only those above it: `error`, `nonce`, `clock`, `spec`; `policy`, `data`, `report`, `score`; `outer`; `bucket`; `event`;
//! `island` and `syncer` (which never import each other); `activate`; `api`; `sim`; `cli`.

pub mod activate;
pub mod api;
pub mod bucket;
pub mod cli;
pub mod clock;
pub mod data;
pub mod error;
pub mod event;
pub mod island;
pub mod nonce;
pub mod outer;
pub mod policy;
pub mod report;
pub mod score;
pub mod sim;
pub mod spec;
pub mod syncer;
