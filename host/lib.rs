//! Tombolo
pub mod policy;
