//! The kit for writing Tombolo policies in Rust.
//!
//! A policy is a WebAssembly component that a run uses to decide how updates travel ([`Codec`]), how they are merged
//! ([`Merge`]) or when a round is closed ([`Pace`]). Implement one of these traits, name the type in [`export_codec!`],
//! [`export_merge!`] or [`export_pace!`], and build for `wasm32-unknown-unknown`. The contract, with what the host checks, is
//! `wit/policy.wit`; the traits here repeat what a writer needs.
//!
//! A complete merge rule (the weighted mean, with the outer optimiser that the configuration names):
//!
//! ```
//! use tombolo_policy_sdk::{At, Config, Merge, Opening, Plan, export_merge, outer::Outer, weight};
//!
//! struct Mean { shares: Vec<f32>, outer: Outer }
//!
//! impl Merge for Mean {
//!     fn open(opening: Opening) -> Result<Self, String> {
//!         let config = Config::parse(&opening.config, Outer::FIELDS)?;
//!         let outer = Outer::configured(&config, &opening.round, &opening.memo)?;
//!         Ok(Mean { shares: weight::shares(&opening.contributions)?, outer })
//!     }
//!     fn plan(&self) -> Plan {
//!         Plan { weights: self.shares.clone(), passes: 0, state_slots: self.outer.state_slots() }
//!     }
//!     fn step(&self, _: At, values: &[Vec<f32>], state: &mut [Vec<f32>], parameters: &mut [f32]) -> Result<(), String> {
//!         self.outer.descend(&self.shares, values, state, parameters);
//!         Ok(())
//!     }
//!     fn memo(&self) -> Vec<u8> {
//!         self.outer.memo()
//!     }
//! }
//!
//! export_merge!(Mean);
//! # fn main() {}
//! ```
//!
//! The building blocks ([`vector`], [`robust`], [`outer`], [`quantise`],
//! [`nibble`], [`sparse`], [`weight`]) run in blocks of [`LANES`] values that compile to
//! 128-bit SIMD and make the host's fuel count nearly free. They add up in a fixed order, so results are the same bits everywhere.

pub mod bindings;
pub mod config;
pub mod nibble;
pub mod outer;
pub mod quantise;
pub mod robust;
pub mod sparse;
pub mod vector;
pub mod weight;

mod role;

pub use bindings::{At, Contribution, Decision, Island, Lag, Plan, Round, Tensor, TensorKind, Traits, View};
pub use config::Config;
pub use role::{Codec, CodecSession, Merge, MergeSession, Opening, Pace};

/// Values that one turn of a loop in the building blocks handles: eight 128-bit registers of four.
pub const LANES: usize = 32;

/// Values of a full chunk.
pub const CHUNK: usize = 32_768;

/// Where the chunks of `tensors` start, in chunk order: what the blobs of an observing pass belong to.
pub fn chunks(tensors: &[Tensor]) -> impl Iterator<Item = At> + '_ {
    tensors
        .iter()
        .zip(0u32..)
        .flat_map(|(tensor, index)| (0..tensor.elements).step_by(CHUNK).map(move |offset| At { tensor: index, offset }))
}

/// Exports a type that implements [`Codec`] as the component's codec.
#[macro_export]
macro_rules! export_codec {
    ($codec:ty) => {
        #[cfg(target_arch = "wasm32")]
        const _: () = {
            struct Component;
            impl $crate::bindings::codec::exports::tombolo::policy::codec::Guest for Component {
                type Session = $crate::CodecSession<$codec>;
            }
    $crate::bindings::codec::export!(Component with_types_in $crate::bindings::codec);
        };
    };
}

/// Exports a type that implements [`Merge`] as the component's merge rule.
#[macro_export]
macro_rules! export_merge {
    ($rule:ty) => {
        #[cfg(target_arch = "wasm32")]
        const _: () = {
            struct Component;
            impl $crate::bindings::merge::exports::tombolo::policy::merge::Guest for Component {
                type Session = $crate::MergeSession<$rule>;
            }
    $crate::bindings::merge::export!(Component with_types_in $crate::bindings::merge);
        };
    };
}

/// Exports a type that implements [`Pace`] as the component's pace.
#[macro_export]
macro_rules! export_pace {
    ($pace:ty) => {
        #[cfg(target_arch = "wasm32")]
        const _: () = {
            struct Component;
            impl $crate::bindings::pace::exports::tombolo::policy::pace::Guest for Component {
                fn decide(config: Vec<u8>, view: $crate::View) -> Result<$crate::Decision, String> {
                    <$pace as $crate::Pace>::decide(&config, &view)
                }
            }
    $crate::bindings::pace::export!(Component with_types_in $crate::bindings::pace);
        };
    };
}
