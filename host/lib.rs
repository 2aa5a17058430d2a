//! Tombolo

pub mod data;
pub mod report;
