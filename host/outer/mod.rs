//! Fragments of the model, the period in which they are merged, and error feedback: the pure arithmetic of the outer loop on an island's side.
//!
//! The merge itself and the outer optimiser live in policies; nothing here moves a global parameter.

mod feedback;
mod fragment;
mod period;

pub use feedback::Feedback;
pub use fragment::{Fragments, norm};
pub use period::Period;
