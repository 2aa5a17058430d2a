//! What integration tests share: real servers on loopback, and what must not be missing.

#![allow(dead_code, reason = "every test binary includes all of this and uses a part of it")]

pub mod careless;
pub mod flaky;
pub mod forgetful;
pub mod mutant;
pub mod program;
pub mod server;
pub mod store;
pub mod tape;
pub mod watched;

use std::env;
use std::io::{self, Write};

/// Whether this machine was declared to have `name`: the environment variable `TOMBOLO_REQUIRE`
/// lists, separated by commas, what must be there (`versitygw`, `seaweedfs`, `minio`, `azurite`, `guests`, `schemathesis`). CI
/// sets it, so that nothing is passed over there.
pub fn required(name: &str) -> bool {
    env::var("TOMBOLO_REQUIRE").is_ok_and(|list| list.split(',').any(|item| item.trim() == name))
}

/// Tells that something could not be tested here, and fails if it was [`required`]. The line goes
/// past the test harness, which would show it for failed tests only.
///
/// # Panics
/// If `name` is required.
pub fn not_tested(name: &str, why: &str) {
    assert!(!required(name), "{name} is in TOMBOLO_REQUIRE, but {why}");
    say(&format!("NOT TESTED: {name}: {why}"));
}

/// Writes a line to standard error, whether the test passes or fails.
pub fn say(line: &str) {
    // Nobody is reading if this fails.
    let _ = writeln!(io::stderr(), "{line}");
}
