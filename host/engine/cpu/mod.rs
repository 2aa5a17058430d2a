//! The CPU backend: one file per op, forward and backward together, and [`Pass`], which runs them over a batch.
//!
//! Ops are plain functions on slices that run on the calling thread. [`Pass`] alone knows of threads: it cuts a batch
//! into pieces whose borders depend on shapes only, so the bits of a result do not depend on the number of threads.

pub(crate) mod adamw;
pub(crate) mod attention;
pub(crate) mod cross_entropy;
pub(crate) mod embedding;
mod exponential;
pub(crate) mod linear;
mod matrix;
mod parts;
mod pass;
pub(crate) mod rms_norm;
pub(crate) mod rope;
pub(crate) mod simd;
pub(crate) mod swiglu;

pub(crate) use pass::Pass;
