//! What `wit-bindgen` makes of `wit/policy.wit`, one module a world, with the types of the interface `types` shared.
//!
//! The metadata that turns a module into a component is emitted by the export macros only, so a policy exports the one role
//! that it names.

#![allow(missing_docs, clippy::all)]

pub use codec::exports::tombolo::policy::codec::Traits;
pub use codec::tombolo::policy::types::{At, Contribution, Round, Tensor, TensorKind};
pub use merge::exports::tombolo::policy::merge::{Plan, Stepped};
pub use pace::exports::tombolo::policy::pace::{Decision, Island, Lag, View};

pub mod codec {
    wit_bindgen::generate!({
        path: "../../wit",
        world: "codec-policy",
        pub_export_macro: true,
        generate_unused_types: true,
        additional_derives: [PartialEq],
    });
}

pub mod merge {
    wit_bindgen::generate!({
        path: "../../wit",
        world: "merge-policy",
        pub_export_macro: true,
        with: { "tombolo:policy/types@0.1.0": crate::bindings::codec::tombolo::policy::types },
        additional_derives: [PartialEq],
    });
}

pub mod pace {
    wit_bindgen::generate!({
        path: "../../wit",
        world: "pace-policy",
        pub_export_macro: true,
        with: { "tombolo:policy/types@0.1.0": crate::bindings::codec::tombolo::policy::types },
        additional_derives: [PartialEq],
    });
}
