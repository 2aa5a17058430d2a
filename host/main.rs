//! tombolo
use std::process::ExitCode;

use tombolo::policy::{COMPILE_COMMAND, compile_child};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.split_first() {
        Some((command, rest)) if command == COMPILE_COMMAND => compile_child(rest),
        _ => ExitCode::SUCCESS,
    }
}
