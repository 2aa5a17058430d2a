//! The binary: arguments to the library, its exit code to the system.

use std::process::ExitCode;

fn main() -> ExitCode {
    tombolo::cli::main()
}
