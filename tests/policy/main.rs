//! Policies through the public interface: the bundled ones against numbers worked out by hand and against golden vectors, and hostile
//! ones against every door.

#[path = "../support/mod.rs"]
mod support;

mod admission;
mod child;
mod codec;
mod fuzz;
mod golden;
mod guest;
mod hostile;
mod memory;
mod merge;
mod other;
mod pace;
mod robust;
mod template;
