//! Everything that can be said of the repository without running its tests, cheapest first: the tidy test (compiled alone, a second), formatting
//! of both workspaces, lints and documentation, all with warnings as errors.

use std::path::Path;
use std::process::Command;

use crate::plugins::{cargo, root};
use crate::{Failure, run};

/// `cargo xtask check`: stops at the first step that fails.
pub(crate) fn check() -> Result<(), Failure> {
    step("tidy", tidy)?;
    step("formatting", || {
        ["", "plugins"].iter().try_for_each(|folder| shown(&["fmt", "--all", "--check"], folder, ""))
    })?;
    let lints = ["clippy", "--release", "--workspace", "--all-targets", "--", "-D", "warnings"];
    step("lints", || shown(&lints, "", ""))?;
    step("documentation", || shown(&["doc", "--release", "--workspace", "--no-deps"], "", "-D warnings"))
}

fn step(name: &str, work: impl FnOnce() -> Result<(), Failure>) -> Result<(), Failure> {
    println!("== {name}");
    work()
}

/// The test of the sources needs nothing but the standard library, and so no build of the workspace.
fn tidy() -> Result<(), Failure> {
    let folder = root().join("target/check");
    std::fs::create_dir_all(&folder)?;
    let program = folder.join("tidy");
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    run(Command::new(rustc)
        .current_dir(root())
        .args(["--edition", "2024", "--test", "tests/tidy.rs", "-o"])
        .arg(&program))?;
    finished(Command::new(&program).current_dir(root()).arg("--quiet"), &program)
}

/// Runs cargo in `folder` of the repository, with what it writes shown as it comes.
fn shown(arguments: &[&str], folder: &str, rustdoc_flags: &str) -> Result<(), Failure> {
    let cargo = cargo();
    let mut command = Command::new(&cargo);
    command.current_dir(root().join(folder)).args(arguments);
    if !rustdoc_flags.is_empty() {
        command.env("RUSTDOCFLAGS", rustdoc_flags);
    }
    finished(&mut command, cargo.as_ref())
}

fn finished(command: &mut Command, program: &Path) -> Result<(), Failure> {
    let status =
        command.status().map_err(|error| Failure::Failed(format!("cannot start {}: {error}", program.display())))?;
    if status.success() { Ok(()) } else { Err(Failure::Failed(format!("{} ended with {status}", program.display()))) }
}
