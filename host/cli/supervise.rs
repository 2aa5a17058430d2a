//! Keeping processes alive: a pure rule that says whether a child is launched again, and children that are told to drain by closing their
//! standard input.

use crate::clock::{Duration, Instant};
use crate::error::{Error, Kind, Result};
use crate::event::Event;
use std::collections::VecDeque;
use std::process::{ExitStatus, Stdio};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::mpsc;

/// Launches within [`WINDOW`] after which a child is given up.
const LAUNCHES_MAX: usize = 6;
/// The window in which launches are counted; stable running empties it again.
const WINDOW: Duration = Duration::from_secs(60);
/// The longest line that a child can make us hold.
const LINE_BYTES_MAX: usize = 64 << 10;

/// How a child ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// It ended by itself with this code.
    Code(i32),
    /// A signal ended it.
    Signal,
}

impl From<ExitStatus> for Exit {
    fn from(status: ExitStatus) -> Exit {
        status.code().map_or(Exit::Signal, Exit::Code)
    }
}

/// What follows from it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It is done.
    Done,
    /// It is launched again after this long.
    Relaunch(Duration),
    /// It is not launched again, for this reason.
    GiveUp(String),
}

/// The launches of one child so far.
#[derive(Debug, Clone, Default)]
pub struct Launches(VecDeque<Instant>);

impl Launches {
    /// A launch at this time.
    pub fn launched(&mut self, now: Instant) {
        self.0.push_back(now);
    }

    /// How many there were within the window that ends now.
    pub fn within_window(&self, now: Instant) -> usize {
        self.0.iter().filter(|&&at| now.saturating_duration_since(at) <= WINDOW).count()
    }

    /// Whether a child that ended like this is launched again. Pure, but for forgetting launches that are long past.
    pub fn verdict(&mut self, exit: Exit, stop_asked: bool, now: Instant) -> Verdict {
        if exit == Exit::Code(0) || stop_asked {
            return Verdict::Done;
        }
        let final_codes = [Kind::Invalid, Kind::Fenced, Kind::Bug].map(|k| i32::from(k.exit_code()));
        if let Exit::Code(code) = exit
            && final_codes.contains(&code)
        {
            return Verdict::GiveUp(format!("it ended with code {code}, which another try would not change"));
        }
        while self.0.front().is_some_and(|&at| now - at > WINDOW) {
            self.0.pop_front();
        }
        match self.0.len() {
            n if n >= LAUNCHES_MAX => {
                Verdict::GiveUp(format!("it was launched {n} times within {} seconds", WINDOW.as_secs()))
            }
            n => Verdict::Relaunch(Duration::from_millis(100 << n.min(5))),
        }
    }
}

/// Sends a signal, such as `KILL`, `STOP` or `CONT`, to a process of ours. It may be gone already.
///
/// # Errors
/// There is no shell to send it.
pub async fn signal(pid: u32, name: &str) -> Result<()> {
    // The shell's own `kill`: a call of the C library would be unsafe code.
    let status = Command::new("sh").args(["-c", "kill -s \"$0\" \"$1\" 2>/dev/null", name, &pid.to_string()]).status();
    status.await.map(drop).map_err(|e| Error::unavailable(format!("SIG{name} cannot be sent")).because(e))
}

/// A child process that speaks in events.
pub struct Process {
    child: Child,
    stdin: Option<ChildStdin>,
}

impl Process {
    /// Starts this program with `arguments`; its events go to `events`, its words on standard error stay ours.
    ///
    /// # Errors
    /// The process cannot be started.
    pub fn start(arguments: &[String], events: mpsc::Sender<Event>) -> Result<Process> {
        let program =
            std::env::current_exe().map_err(|e| Error::unavailable("this program does not find itself").because(e))?;
        let mut child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(|e| Error::unavailable("a process cannot be started").because(e))?;
        let stdin = child.stdin.take();
        if let Some(stdout) = child.stdout.take() {
            tokio::spawn(async move {
                let mut lines = BufReader::new(stdout).lines();
                while let Ok(Some(line)) = lines.next_line().await {
                    if line.len() <= LINE_BYTES_MAX
                        && let Ok(event) = serde_json::from_str(&line)
                    {
                        let _ = events.send(event).await;
                    }
                }
            });
        }
        Ok(Process { child, stdin })
    }

    /// The id of the process while it runs.
    pub fn id(&self) -> Option<u32> {
        self.child.id()
    }

    /// Asks it to publish what it has and end.
    pub fn drain(&mut self) {
        self.stdin = None;
    }

    /// Ends it at once.
    pub async fn kill(&mut self) {
        // Already gone is as good.
        let _ = self.child.kill().await;
    }

    /// How it ended, if it has.
    ///
    /// # Errors
    /// The operating system does not say.
    pub fn ended(&mut self) -> Result<Option<Exit>> {
        let status =
            self.child.try_wait().map_err(|e| Error::unavailable("a child cannot be waited for").because(e))?;
        Ok(status.map(Exit::from))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(start: Instant, seconds: u64) -> Instant {
        start + Duration::from_secs(seconds)
    }

    #[test]
    fn a_killed_child_comes_back_and_one_that_ended_well_does_not() {
        let now = crate::clock::now();
        let mut launches = Launches::default();
        launches.launched(now);
        assert!(matches!(launches.verdict(Exit::Signal, false, now), Verdict::Relaunch(_)));
        assert_eq!(launches.verdict(Exit::Code(0), false, now), Verdict::Done);
    }

    #[test]
    fn nothing_is_launched_once_a_stop_was_asked_for() {
        let now = crate::clock::now();
        assert_eq!(Launches::default().verdict(Exit::Signal, true, now), Verdict::Done);
    }

    #[test]
    fn wrong_input_is_not_tried_again_but_an_unavailable_bucket_is() {
        let now = crate::clock::now();
        assert!(matches!(Launches::default().verdict(Exit::Code(2), false, now), Verdict::GiveUp(_)));
        assert!(matches!(Launches::default().verdict(Exit::Code(3), false, now), Verdict::Relaunch(_)));
    }

    #[test]
    fn the_budget_runs_out_in_a_burst_and_fills_up_again_after_stable_running() {
        let start = crate::clock::now();
        let mut launches = Launches::default();
        for second in 0..LAUNCHES_MAX as u64 {
            assert!(matches!(launches.verdict(Exit::Signal, false, at(start, second)), Verdict::Relaunch(_)));
            launches.launched(at(start, second));
        }
        assert!(matches!(launches.clone().verdict(Exit::Signal, false, at(start, 10)), Verdict::GiveUp(_)));
        assert!(matches!(launches.verdict(Exit::Signal, false, at(start, 100)), Verdict::Relaunch(_)));
    }
}
