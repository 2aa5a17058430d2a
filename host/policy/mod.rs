//! Policies: WebAssembly components that decide how updates travel ([`Codec`]), how they are merged ([`merge`]) and when a round
//! is closed ([`Pace`]). The contract is `wit/policy.wit`; the host has no native rule beside it, so the bundled policies
//! take the same road as a user's.
//!
//! A component is loaded by [`Runtime::load`] and named by the SHA-256 of its bytes. What it can do to the host is bounded at every door:
//!
//! - before compiling, its size, its functions' sizes, locals and branches, the features it uses and what it imports are read (`inspect`);
//! - compiling happens in a child process with limits on memory and time, where [`Runtime::compiling_with`] names one (`compile`);
//! - running is bounded by fuel in proportion to the values of a call, by a deadline on the wall clock, and by memory; growth past
//!   the cap traps (`instance`);
//! - answers are input: lengths, finiteness, counts and sizes are checked, and what fails is [`Error::Nonsense`].
//!
//! An instance that trapped is thrown away. No answer of a policy, and no trap, panics the host.
//!
//! Same inputs, same bits: policies import nothing, NaNs are canonicalised, relaxed SIMD and threads are off, and a merge folds what
//! its instances observed in chunk order, so neither the number of threads nor chance changes a result.

mod admission;
mod artefact;
mod bindings;
mod bundled;
mod codec;
mod compile;
mod error;
mod hash;
mod inspect;
mod instance;
mod limit;
mod merge;
mod nan;
mod pace;
mod runtime;
mod tensor;
mod tuning;

pub use admission::{CARD_FORMAT, Card, Check, Clock, RoleCard, admit, examine};
pub use bundled::{bundled_name, bundled_names, bundled_wasm};
pub use codec::{BYTES_PER_VALUE_MAX, Codec, CodecTraits};
pub use compile::{COMPILE_COMMAND, compile_child};
pub use error::Error;
pub use hash::{Hash, HashError};
pub use inspect::Role;
pub use limit::Limits;
pub use merge::{Contribution, Lent, MergeSource, Merged, Round, merge};
pub use pace::{Decision, Island, Lag, Pace, View};
pub use runtime::{Policy, Runtime};
pub use tensor::{At, CHUNK_ELEMENTS, Tensor, TensorKind, chunks};
pub use tuning::{Tuned, tuned, untuned};

/// What the functions here answer.
pub type Result<T> = std::result::Result<T, Error>;
