//! The run as it goes on: a bar per island and a line for the run where standard error is a
//! terminal, a plain line every ten seconds where it is not.

use std::io::{self, IsTerminal};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::number::{grouped, short};

/// How often a plain line is printed at most.
const PLAIN_EVERY: Duration = Duration::from_secs(10);

/// The state of an island with which all is well.
const USUAL: &str = "training";

/// What an island says of itself.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct IslandLine<'a> {
    /// Inner steps done.
    pub step: u64,
    /// Training loss of late, in nats per byte.
    pub loss: f32,
    /// Tokens trained on per second.
    pub tokens_per_s: f64,
    /// The last round that it took in; none before the first.
    pub round: Option<u64>,
    /// One or two words: `training`, `restarting`, …
    pub state: &'a str,
}

/// What there is to say of the run as a whole.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RunLine {
    /// Rounds committed.
    pub rounds: u64,
    /// Tokens that they carried.
    pub tokens_merged: u64,
    /// Held-out loss of the committed model, in nats per byte; none before it was scored.
    pub held_out_loss: Option<f32>,
    /// Islands merged per round, on average over the last rounds; none before the first.
    pub breadth: Option<f32>,
}

/// Shows a run on standard error. All methods may be called from any thread.
#[derive(Debug)]
pub struct Board {
    token_budget: u64,
    display: Display,
}

#[derive(Debug)]
enum Display {
    Bars { all: MultiProgress, islands: Vec<ProgressBar>, run: ProgressBar },
    Plain(Mutex<Plain>),
}

/// The last words of everyone, kept until a line is due.
#[derive(Debug, Default)]
struct Plain {
    islands: Vec<Option<(f32, f64)>>,
    printed: Option<Instant>,
}

impl Board {
    /// A board for `islands` islands and a run of `token_budget` tokens.
    pub fn new(islands: usize, token_budget: u64) -> Self {
        let terminal = io::stderr().is_terminal().then(ProgressDrawTarget::stderr);
        Self::on(terminal, islands, token_budget)
    }

    /// A board that draws bars on `target`, or prints plain lines if there is none.
    pub(super) fn on(target: Option<ProgressDrawTarget>, islands: usize, token_budget: u64) -> Self {
        let display = match target {
            Some(target) => {
                let all = MultiProgress::with_draw_target(target);
                let bar = |template: &str| {
                    let bar = all.add(ProgressBar::new(token_budget.max(1)));
                    // A template of ours that does not parse shows as the default style, not as a
                    // crash.
                    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
                    bar.set_style(style.progress_chars("━╸─"));
                    bar
                };
                let islands = (0..islands)
                    .map(|index| {
                        let bar = bar("{prefix} {bar:12} {percent:>3}%  {wide_msg}");
                        bar.set_prefix(format!("island {index}"));
                        bar.set_message("starting");
                        bar
                    })
                    .collect();
                let run = bar("{wide_msg}");
                run.set_message("no round committed yet");
                Display::Bars { all, islands, run }
            }
            None => Display::Plain(Mutex::new(Plain { islands: vec![None; islands], printed: None })),
        };
        Self { token_budget, display }
    }

    /// Shows what island `index` is doing. An index that was not announced is passed over.
    pub fn island(&self, index: usize, line: &IslandLine<'_>) {
        match &self.display {
            Display::Bars { islands, .. } => {
                if let Some(bar) = islands.get(index) {
                    bar.set_message(island_text(line));
                }
            }
            Display::Plain(plain) => {
                if let Some(island) = locked(plain).islands.get_mut(index) {
                    *island = Some((line.loss, line.tokens_per_s));
                }
            }
        }
    }

    /// Shows how far the run is.
    pub fn run(&self, line: &RunLine) {
        match &self.display {
            Display::Bars { islands, run, .. } => {
                run.set_message(run_text(line, self.token_budget));
                for bar in islands {
                    bar.set_position(line.tokens_merged.min(self.token_budget));
                }
            }
            Display::Plain(plain) => {
                let mut plain = locked(plain);
                if let Some(text) = plain.line(line, self.token_budget, Instant::now()) {
                    eprintln!("{text}");
                }
            }
        }
    }

    /// Tells of an event, in a line that stays.
    pub fn note(&self, text: &str) {
        match &self.display {
            // Fails only if standard error is gone, and then there is nobody to tell.
            Display::Bars { all, .. } => drop(all.println(text)),
            Display::Plain(_) => eprintln!("{text}"),
        }
    }

    /// Leaves the bars as they are and gives the terminal back.
    pub fn finish(&self) {
        if let Display::Bars { islands, run, .. } = &self.display {
            for bar in islands.iter().chain([run]) {
                bar.abandon();
            }
        }
    }
}

impl Plain {
    /// The line to print now, or none if the last one is not long enough ago.
    fn line(&mut self, line: &RunLine, token_budget: u64, now: Instant) -> Option<String> {
        if self.printed.is_some_and(|printed| now.duration_since(printed) < PLAIN_EVERY) {
            return None;
        }
        self.printed = Some(now);
        let mut text = run_text(line, token_budget);
        let heard: Vec<(f32, f64)> = self.islands.iter().flatten().copied().collect();
        if !heard.is_empty() {
            let losses = heard.iter().map(|(loss, _)| format!("{loss:.3}")).collect::<Vec<_>>().join(" ");
            let speed: f64 = heard.iter().map(|(_, speed)| speed).sum();
            text.push_str(&format!(" · islands at {losses} · {} tokens/s", short(speed)));
        }
        Some(text)
    }
}

/// A panic elsewhere while the lock was held leaves numbers that are at worst old.
fn locked(plain: &Mutex<Plain>) -> MutexGuard<'_, Plain> {
    plain.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Short enough for a terminal of 80 columns, bar included. The state is told where it is not the
/// usual one.
fn island_text(line: &IslandLine<'_>) -> String {
    let round = line.round.map_or_else(|| "-".to_owned(), grouped);
    let state = if line.state == USUAL { String::new() } else { format!("{}  ", line.state) };
    format!(
        "{state}step {}  loss {:.3}  {} tokens/s  round {round}",
        grouped(line.step),
        line.loss,
        short(line.tokens_per_s)
    )
}

fn run_text(line: &RunLine, token_budget: u64) -> String {
    let held_out = line.held_out_loss.map_or_else(|| "not scored yet".to_owned(), |loss| format!("{loss:.3}"));
    let breadth = line.breadth.map(|breadth| format!(" · breadth {breadth:.2}")).unwrap_or_default();
    format!(
        "{} rounds · held-out loss {held_out} · {} of {} tokens{breadth}",
        grouped(line.rounds),
        short(line.tokens_merged as f64),
        short(token_budget as f64)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: RunLine =
        RunLine { rounds: 1234, tokens_merged: 2_500_000, held_out_loss: Some(1.5), breadth: Some(2.96) };

    #[test]
    fn a_plain_line_is_printed_every_ten_seconds_and_not_more_often() {
        let mut plain = Plain { islands: vec![Some((1.25, 9000.0)), None], printed: None };
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let first = plain.line(&LINE, 5_000_000, start).expect("the first at once");
        assert_eq!(
            first,
            "1,234 rounds · held-out loss 1.500 · 2.50 M of 5.00 M tokens · breadth 2.96 · islands at 1.250 · 9.00 k tokens/s"
        );
        assert_eq!(plain.line(&LINE, 5_000_000, after(9)), None);
        assert!(plain.line(&LINE, 5_000_000, after(10)).is_some());
        assert_eq!(plain.line(&LINE, 5_000_000, after(19)), None);
    }

    #[test]
    fn a_run_that_has_nothing_to_show_yet_says_so() {
        let line = RunLine { rounds: 0, tokens_merged: 0, held_out_loss: None, breadth: None };
        assert_eq!(run_text(&line, 0), "0 rounds · held-out loss not scored yet · 0 of 0 tokens");
        let line = IslandLine { step: 1, loss: 5.5, tokens_per_s: 0.0, round: None, state: "starting" };
        assert_eq!(island_text(&line), "starting  step 1  loss 5.500  0 tokens/s  round -");
    }

    #[test]
    fn an_island_that_was_not_announced_is_passed_over() {
        for target in [None, Some(ProgressDrawTarget::hidden())] {
            let board = Board::on(target, 1, 100);
            let line = IslandLine { step: 1, loss: 5.5, tokens_per_s: 0.0, round: None, state: "training" };
            board.island(0, &line);
            board.island(7, &line);
            board.finish();
        }
    }
}
