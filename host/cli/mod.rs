//! The command line: arguments in, a role or a report out. Thin: every command reads its arguments, puts the parts together and runs them.

/// Prints a line for a person. A reader that has gone away (`| head`) is no error.
macro_rules! say {
    ($($line:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stdout(), $($line)*);
    }};
}

mod arguments;
mod assembly;
mod audit;
mod bench;
mod bucket;
mod chaos;
mod doctor;
mod export;
mod fleet;
mod policy;
mod replay;
mod role;
mod run;
mod serve;
mod status;
mod submit;
mod supervise;
mod template;

use crate::error::Result;
use arguments::{Arguments, Command};
use clap::Parser;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::process::ExitCode;

/// As many open files as this user may have: each offer of a large fragment that waits for its round is one. Where it cannot be raised, the usual number has to do.
fn raise_files() {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// Runs the command that the process was started with.
pub fn main() -> ExitCode {
    if std::env::args().nth(1).as_deref() == Some(crate::policy::COMPILE_COMMAND) {
        let arguments: Vec<String> = std::env::args().skip(2).collect();
        return crate::policy::compile_child(&arguments);
    }
    let arguments = Arguments::parse();
    raise_files();
    let runtime = match tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("error: no threads for the runtime: {error}");
            return ExitCode::from(70);
        }
    };
    let outcome = runtime.block_on(dispatch(arguments.command));
    // Transfers that nobody waits for any more must not hold up the exit.
    runtime.shutdown_timeout(std::time::Duration::from_millis(200));
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", error.chain());
            ExitCode::from(error.kind().exit_code())
        }
    }
}

async fn dispatch(command: Command) -> Result<()> {
    match command {
        Command::Run(arguments) => run::command(arguments).await,
        Command::Submit(arguments) => submit::command(arguments).await,
        Command::Island(arguments) => role::island_command(arguments).await,
        Command::Syncer(arguments) => role::syncer_command(arguments).await,
        Command::Status(arguments) => status::command(arguments).await,
        Command::Export(arguments) => export::command(arguments).await,
        Command::Bench(arguments) => tokio::task::spawn_blocking(move || bench::command(&arguments))
            .await
            .map_err(|e| crate::error::Error::bug("the bench panicked").because(e))?,
        Command::Ledger(arguments) => audit::ledger_command(arguments).await,
        Command::Verify(arguments) => audit::verify_command(arguments).await,
        Command::Chaos(arguments) => chaos::command(arguments).await,
        Command::Sim(arguments) => tokio::task::spawn_blocking(move || bench::sim_command(&arguments))
            .await
            .map_err(|e| crate::error::Error::bug("the simulation panicked").because(e))?,
        Command::Doctor(arguments) => doctor::command(arguments).await,
        Command::Bucket(arguments) => bucket::command(arguments).await,
        Command::Policy(arguments) => policy::command(arguments.command).await,
        Command::Serve(arguments) => serve::command(arguments).await,
        Command::Generate(arguments) => export::generate_command(&arguments),
    }
}
