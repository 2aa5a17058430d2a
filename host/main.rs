//! tombolo
fn main() {}
