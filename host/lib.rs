//! Tombolo
