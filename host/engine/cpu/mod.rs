//! The CPU backend: one file per op, forward and backward together, and [`Pass`], which runs them over a batch;
//! [`Decoder`] runs them over one growing sequence.
//!
//! Ops are plain functions on slices that run on the calling thread. [`Pass`] alone knows of threads: it cuts a batch
//! into pieces whose borders depend on shapes only, so the bits of a result do not depend on the number of threads.

pub(crate) mod adamw;
mod attention;
mod cross_entropy;
mod decoder;
mod embedding;
mod exponential;
mod finite;
#[cfg(test)]
pub(crate) mod finite_difference;
mod linear;
mod matrix;
pub mod measure;
mod parts;
mod pass;
mod rms_norm;
mod rope;
pub(crate) mod simd;
mod swiglu;

pub(crate) use decoder::Decoder;
pub use finite::first_not_finite;
pub(crate) use parts::Parts;
pub(crate) use pass::Pass;
