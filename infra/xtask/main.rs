//! Chores of the repository: `cargo xtask plugins` builds the bundled policies, `cargo xtask check` checks everything short of the tests.
//!
//! Exit codes: 0 done, 1 failed or found a difference, 2 called wrongly, 3 no way to build for WebAssembly here.

mod check;
mod guest;
mod plugins;
mod toolchain;

use std::fmt::Write as _;
use std::process::ExitCode;

use toolchain::Fetch;

/// What a chore ended with when it did not end well.
#[derive(Debug)]
enum Failure {
    /// Called wrongly.
    Usage(String),
    /// Tried and failed, or found a difference.
    Failed(String),
    /// There is no compiler for WebAssembly here, and none could be had.
    NoGuestCompiler(String),
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Failure {
        Failure::Failed(error.to_string())
    }
}

const USAGE: &str = "\
usage: cargo xtask CHORE

  check               tidy, formatting, lints and documentation, with warnings as errors
  plugins             build the bundled policies into plugins/bundled/ and write its manifest
  plugins --check     rebuild them elsewhere and say whether sources and bytes agree with the manifest
  plugins --out DIR   build them into DIR, manifest included; with --offline before --out, fetch no compiler
  policy DIR          build the crate in DIR, made by `tombolo policy new`, with the compiler that builds the bundled ones; with
                      --offline before DIR, fetch no compiler and no crate
  guest LANGUAGE DIR  build the worked example in plugins/LANGUAGE (c, assemblyscript, python) to DIR/LANGUAGE.wasm, with a compiler on PATH
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match words.as_slice() {
        ["check"] => check::check(),
        ["plugins"] => plugins::bundle(),
        ["plugins", "--check"] => plugins::check(),
        ["plugins", "--out", folder] => plugins::build_into(folder.as_ref(), Fetch::Allowed),
        ["plugins", "--offline", "--out", folder] => plugins::build_into(folder.as_ref(), Fetch::Forbidden),
        ["policy", "--offline", folder] => plugins::build_crate(folder.as_ref(), Fetch::Forbidden),
        ["policy", folder] => plugins::build_crate(folder.as_ref(), Fetch::Allowed),
        ["guest", language, folder] => guest::build(language, folder.as_ref()),
        _ => Err(Failure::Usage(USAGE.into())),
    };
    let (code, message) = match done {
        Ok(()) => return ExitCode::SUCCESS,
        Err(Failure::Failed(message)) => (1, message),
        Err(Failure::Usage(message)) => (2, message),
        Err(Failure::NoGuestCompiler(message)) => (3, message),
    };
    eprintln!("{}", message.trim_end());
    ExitCode::from(code)
}

/// Runs a command to its end.
///
/// Errors: it cannot be started, or ends with another code than 0; the message has what it wrote.
fn run(command: &mut std::process::Command) -> Result<String, Failure> {
    let named = format!("{command:?}");
    let shown = || named.chars().take(300).collect::<String>();
    let output = command
        .stdin(std::process::Stdio::null())
        .output()
        .map_err(|error| Failure::Failed(format!("cannot start {}: {error}", shown())))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let mut message = format!("{} ended with {}\n", shown(), output.status);
    for stream in [&output.stdout, &output.stderr] {
        let _ = write!(message, "{}", String::from_utf8_lossy(stream));
    }
    Err(Failure::Failed(message))
}
