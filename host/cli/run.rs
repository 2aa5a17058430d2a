//! `tombolo run`: everything on this machine. Islands and a syncer as processes of their own (as tasks of this process where the bucket is
//! `memory:`), relaunched when they die, watched through their events and the log; at the end a summary, a picture, a sample, the model.

use super::arguments::RunArguments;
use super::assembly::{Run, cores, open_for_writing, policy_runtime};
use super::chaos::{Chaos, Order, server_to_strike};
use super::export::{STRUCK, committed_model, continue_text, current_ledger, write_model};
use super::fleet::{Fleet, seats};
use super::submit::{Draft, read_spec};
use crate::bucket::record::{Body, Entry, Fate, IslandState};
use crate::bucket::{Ledger, Location, Tail, rated, run_names};
use crate::clock::{self, Duration, Instant};
use crate::data::Corpus;
use crate::error::{Error, Result};
use crate::event::{Event, Sink};
use crate::policy::Runtime;
use crate::report::{Board, Curves, IslandLine, RunLine, Series, Summary, loss_curves_svg, loss_curves_text};
use crate::score::Evaluator;
use crate::spec::Spec;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tombolo_engine::Sampling;

/// Where runs go when nothing is said.
const HOME: &str = "tombolo-runs";
/// Time between two scores of the committed model.
const SCORE_EVERY: Duration = Duration::from_secs(8);
/// Time between two looks at events, processes and the log.
const TICK: Duration = Duration::from_millis(100);
/// The longest look at the log: signals and processes must not wait for a bucket that does not answer.
const LOOK: Duration = Duration::from_secs(2);
/// Rounds over which the breadth on the board is averaged.
const BREADTH_ROUNDS: usize = 50;
/// How long ended roles may take to leave.
const PATIENCE: Duration = Duration::from_secs(60);

/// `tombolo run`.
pub async fn command(arguments: RunArguments) -> Result<()> {
    conduct(arguments, None).await
}

/// Conducts a run from its spec to its summary; under chaos, if that was ordered, to its report.
///
/// # Errors
/// Whatever keeps the run from its end; under chaos also an invariant that does not hold, or no progress after the last blow.
pub async fn conduct(arguments: RunArguments, chaos: Option<Order>) -> Result<()> {
    let mut spec = read_spec(&arguments.spec)?;
    let runtime = policy_runtime()?;
    let url = arguments.bucket.clone().unwrap_or_else(|| format!("file:{HOME}/bucket"));
    let location = Location { url, endpoint: arguments.server.endpoint.clone() };
    // Checked before anything is made: a spec that cannot run leaves nothing behind.
    if let Some(report) = arguments.report.as_ref().filter(|report| report.is_dir()) {
        return Err(Error::invalid(format!(
            "--report {}: expected a file or a free name, found a folder",
            report.display()
        )));
    }
    if let Some(out) = arguments.out.as_ref().filter(|out| out.exists() && !out.is_dir()) {
        return Err(Error::invalid(format!("--out {}: expected a folder or a free name, found a file", out.display())));
    }
    if chaos.is_some() {
        server_to_strike(&location)?;
    }
    let draft = Draft::new(&spec, &runtime)?;
    let store = open_for_writing(&location, true).await?;
    let fresh_name = arguments.bucket.is_none() && arguments.spec.run.is_none();
    if fresh_name {
        // Not a run's own name: one that chaos did not strike from its beginning cannot be marked any more.
        spec.run = next_name(&store, &location, if chaos.is_some() { "chaos" } else { &spec.run }).await?;
    }
    let draft = if fresh_name { Draft::new(&spec, &runtime)? } else { draft };
    let draft = draft.struck(chaos.is_some());
    let (corpus, warning) = (draft.corpus.clone(), draft.warning());
    let run = draft.submit(store, &location).await?;
    if let Some(told) = warning {
        eprintln!("warning: {told}");
    }
    let out = arguments.out.clone().unwrap_or_else(|| Path::new(HOME).join(&spec.run));
    // What the end of the run writes to is made at its beginning, so that hours of training are not reported nowhere.
    for folder in [Some(out.as_path()), arguments.report.as_deref().and_then(Path::parent)].into_iter().flatten() {
        std::fs::create_dir_all(folder)
            .map_err(|e| Error::invalid(format!("{}: cannot be made", folder.display())).because(e))?;
    }

    eprintln!(
        "run {}: {} islands on {} cores, {} parameters in {} fragments, bucket {}",
        spec.run,
        spec.islands,
        cores(),
        run.layout.elements(),
        run.fragments.count(),
        location.url
    );
    eprintln!("text: {}, {} bytes to train on", corpus.description(), corpus.training_bytes());
    let ledger = current_ledger(&run).await?;
    if let (Some(reason), Some(_)) = (&ledger.stopped, chaos) {
        return Err(Error::invalid(format!(
            "run {} has ended already ({reason}); give another name with --run",
            spec.run
        )));
    }
    if let Some(reason) = &ledger.stopped {
        say!("run {} has ended already ({reason}); another one needs another name (--run NAME)", spec.run);
        let mut watch = Watch::new(run, &spec, &corpus)?;
        watch.tail.ledger = ledger;
        say!("{}", watch.finish(&out, arguments.report.as_deref(), &corpus, 0.0).await?);
        return Ok(());
    }
    let (events, incoming) = mpsc::channel(1024);
    let threads = (cores() / spec.islands).max(1);
    let chaos = match chaos {
        Some(order) => Some(Chaos::prepare(order, &location, &spec, run.bucket.clone()).await?),
        None => None,
    };
    let fleet = if let Some(chaos) = &chaos {
        let place = |role: &str| chaos.place(role, &location);
        Fleet::processes(seats(&spec, chaos.syncers(), threads, arguments.link, place), events)
    } else if location.is_memory()? {
        let bucket = crate::bucket::Bucket::new(rated(run.bucket.store().clone(), arguments.link), &spec.run);
        Fleet::tasks(&Run::of(bucket, run.record.clone(), &location)?, &runtime, threads, &spec, events).await?
    } else {
        Fleet::processes(seats(&spec, 1, threads, arguments.link, |_| location.clone()), events)
    };
    let mut watch = Watch::new(run, &spec, &corpus)?;
    watch.chaos = chaos;
    let drained = watch.until_ended(fleet, incoming).await?;
    let seconds = (clock::now() - watch.started).as_secs_f64();
    let (chaos, ledger) = (watch.chaos.take(), watch.tail.ledger.clone());
    let report = arguments.report.as_deref();
    let summary = watch.finish(&out, report.filter(|_| chaos.is_none()), &corpus, seconds).await?;
    say!("{summary}");
    match chaos {
        Some(chaos) => judge(chaos, &location, &runtime, &ledger, &spec.run, report).await,
        None => {
            if drained {
                say!("drained; the same command goes on from here");
            }
            Ok(())
        }
    }
}

/// Sums up what chaos did and found.
async fn judge(
    chaos: Chaos,
    location: &Location,
    runtime: &Runtime,
    ledger: &Ledger,
    name: &str,
    to: Option<&Path>,
) -> Result<()> {
    let run = Run::open(location, Some(name)).await?;
    let desk = run.desk(runtime, cores(), Sink::Null).await?;
    let report = chaos.report(&run, &desk, ledger).await?;
    say!("{report}");
    if let Some(path) = to {
        report.write_json(path).map_err(|e| Error::invalid(e.to_string()))?;
    }
    let broken: Vec<&str> = report.invariants.iter().filter(|i| !i.holds).map(|i| i.what.as_str()).collect();
    if !broken.is_empty() {
        return Err(Error::corrupt(format!("run {name}: this does not hold: {}", broken.join("; "))));
    }
    if report.survived {
        return Ok(());
    }
    Err(Error::unavailable(format!("run {name}: no round was committed after the last blow")))
}

/// The name itself, or the first numbered one after it whose run has not ended.
async fn next_name(
    store: &std::sync::Arc<dyn object_store::ObjectStore>,
    location: &Location,
    name: &str,
) -> Result<String> {
    let taken = run_names(&**store).await?;
    let mut candidate = name.to_string();
    for n in 2..10_000 {
        if !taken.contains(&candidate) {
            return Ok(candidate);
        }
        let bucket = crate::bucket::Bucket::new(store.clone(), &candidate);
        let Some(record) = bucket.run_record().await? else { return Ok(candidate) };
        let run = Run::of(bucket, record, location)?;
        let mut tail = Tail::of(&run.bucket, &run.record).await?;
        tail.advance(&run.bucket, usize::MAX).await?;
        if tail.ledger.stopped.is_none() {
            return Ok(candidate);
        }
        candidate = format!("{name}-{n}");
    }
    Err(Error::invalid(format!("{HOME}: holds thousands of ended runs called {name}; remove some or say --run NAME")))
}

#[derive(Debug, Clone, Default)]
struct IslandView {
    last: Option<Event>,
    /// Seconds in the training loop, and outside inner steps, of lives that have ended.
    before: (f64, f64),
    curve: Vec<(f64, f64)>,
}

struct Scored {
    evaluator: Evaluator,
    loss: Result<f32>,
    tokens: u64,
}

struct Watch {
    run: Run,
    spec: Spec,
    tail: Tail,
    board: Board,
    islands: Vec<IslandView>,
    evaluator: Option<Evaluator>,
    scoring: Option<JoinHandle<Scored>>,
    scored_at: Option<Instant>,
    held_out: Vec<(f64, f64)>,
    breadths: Vec<usize>,
    started: Instant,
    /// Who strikes this run, if anybody does.
    chaos: Option<Chaos>,
}

impl Watch {
    fn new(run: Run, spec: &Spec, corpus: &Corpus) -> Result<Watch> {
        let empty = Ledger::of(&run.record);
        Ok(Watch {
            tail: Tail::new(empty),
            board: Board::new(spec.islands, spec.tokens),
            islands: vec![IslandView::default(); spec.islands],
            evaluator: Some(Evaluator::new(&run.record.spec, corpus, 1)?),
            scoring: None,
            scored_at: None,
            held_out: Vec::new(),
            breadths: Vec::new(),
            started: clock::now(),
            chaos: None,
            spec: spec.clone(),
            run,
        })
    }

    /// Watches until every role has ended; true if the run was drained rather than finished.
    async fn until_ended(&mut self, mut fleet: Fleet, mut incoming: mpsc::Receiver<Event>) -> Result<bool> {
        let failed = |e| Error::unavailable("signals cannot be watched").because(e);
        let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
        let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
        let mut asked: u32 = 0;
        let mut ending: Option<Instant> = None;
        let mut failing = false;
        loop {
            tokio::select! {
                biased;
                _ = interrupt.recv() => asked += 1,
                _ = terminate.recv() => asked += 1,
                () = clock::sleep(TICK) => {}
            }
            if asked == 1 && ending.is_none() {
                self.board.note("draining: islands publish what they have (once more Ctrl-C ends at once)");
                fleet.drain_islands();
                ending = Some(clock::now());
            }
            if asked > 1 {
                fleet.kill().await;
                return Err(Error::unavailable(
                    "ended at once as asked; what was committed is in the bucket, the same command goes on from there",
                ));
            }
            while let Ok(event) = incoming.try_recv() {
                self.take_in(event);
            }
            let read = clock::timeout(LOOK, self.tail.advance(&self.run.bucket, 256)).await;
            match read.unwrap_or_else(|_| Err(Error::unavailable("the bucket does not answer"))) {
                Ok(entries) => {
                    failing = false;
                    entries.into_iter().flatten().for_each(|entry| self.entry(&entry));
                }
                Err(error) if !failing => {
                    failing = true;
                    self.board.note(&error.chain());
                }
                Err(_) => {}
            }
            self.score().await;
            self.show_run();
            let stopped = self.tail.ledger.stopped.is_some();
            if stopped && ending.is_none() {
                ending = Some(clock::now());
            }
            if let Some(chaos) = &mut self.chaos
                && chaos.tick(&mut fleet, &self.tail.ledger, &self.board, ending.is_some()).await?
                && ending.is_none()
            {
                fleet.drain_islands();
                ending = Some(clock::now());
            }
            let gone = fleet.tend(ending.is_some(), &self.board).await?;
            if gone {
                self.board.finish();
                while let Ok(event) = incoming.try_recv() {
                    self.take_in(event);
                }
                // What a drained syncer committed last.
                let entries = self.tail.advance(&self.run.bucket, usize::MAX).await?;
                entries.into_iter().flatten().for_each(|entry| self.entry(&entry));
                return Ok(!stopped);
            }
            if ending.is_some_and(|at| clock::now() - at > PATIENCE) {
                self.board.note("some roles do not end by themselves and are ended");
                fleet.kill().await;
                ending = Some(clock::now());
            }
        }
    }

    fn take_in(&mut self, event: Event) {
        if let Some(chaos) = &mut self.chaos {
            chaos.event(&event);
        }
        match &event {
            Event::Note { who, text } => self.board.note(&format!("{who}: {text}")),
            Event::Island { island, step, loss, tokens_per_s, adopted, state, train_seconds, .. } => {
                let Some(index) = island.strip_prefix("island-").and_then(|n| n.parse::<usize>().ok()) else { return };
                let Some(view) = self.islands.get_mut(index) else { return };
                if let Some(Event::Island { train_seconds: before, wait_ratio: waited, .. }) = view.last
                    && *train_seconds < before
                {
                    view.before.0 += f64::from(before);
                    view.before.1 += f64::from(before) * f64::from(waited);
                }
                if let Some(loss) = loss {
                    view.curve.push((self.tail.ledger.tokens() as f64, f64::from(*loss)));
                    let state = match state {
                        IslandState::Starting => "starting",
                        IslandState::Training => "training",
                        IslandState::Draining => "draining",
                        IslandState::Done => "done",
                    };
                    let line = IslandLine {
                        step: *step,
                        loss: *loss,
                        tokens_per_s: f64::from(*tokens_per_s),
                        round: *adopted,
                        state,
                    };
                    self.board.island(index, &line);
                }
                view.last = Some(event);
            }
        }
    }

    fn entry(&mut self, entry: &Entry) {
        if let Some(chaos) = &mut self.chaos {
            chaos.entry(entry, &self.board);
        }
        if let Body::Commit(commit) = &entry.body {
            self.breadths.push(commit.offers.iter().filter(|o| o.fate == Fate::Merged).count());
        }
    }

    fn show_run(&self) {
        let last = &self.breadths[self.breadths.len().saturating_sub(BREADTH_ROUNDS)..];
        let breadth = (!last.is_empty()).then(|| last.iter().sum::<usize>() as f32 / last.len() as f32);
        let ledger = &self.tail.ledger;
        self.board.run(&RunLine {
            rounds: ledger.rounds_committed(),
            tokens_merged: ledger.tokens(),
            held_out_loss: self.held_out.last().map(|&(_, loss)| loss as f32),
            breadth,
        });
    }

    /// Scores the committed model now and then, beside everything else.
    async fn score(&mut self) {
        if self.scoring.as_ref().is_some_and(JoinHandle::is_finished) {
            self.scored().await;
        }
        let due = self.scored_at.is_none_or(|at| clock::now() - at > SCORE_EVERY);
        if !due || self.tail.ledger.versions.is_empty() {
            return;
        }
        if let Some(evaluator) = self.evaluator.take() {
            self.scored_at = Some(clock::now());
            self.scoring = Some(self.spawn_score(evaluator));
        }
    }

    fn spawn_score(&self, mut evaluator: Evaluator) -> JoinHandle<Scored> {
        let (bucket, fragments, ledger) =
            (self.run.bucket.clone(), self.run.fragments.clone(), self.tail.ledger.clone());
        tokio::spawn(async move {
            let tokens = ledger.tokens();
            match bucket.committed(&fragments, &ledger.versions).await {
                Ok(parameters) => {
                    let scored = tokio::task::spawn_blocking(move || {
                        let loss = evaluator.score(&parameters);
                        Scored { evaluator, loss, tokens }
                    });
                    scored.await.expect("scoring does not panic")
                }
                // A version was collected under our eyes; the next score reads newer ones.
                Err(error) => Scored { evaluator, loss: Err(error), tokens },
            }
        })
    }

    async fn scored(&mut self) {
        let Some(scoring) = self.scoring.take() else { return };
        let Scored { evaluator, loss, tokens } = scoring.await.expect("scoring does not panic");
        if let Ok(loss) = loss {
            self.held_out.push((tokens as f64, f64::from(loss)));
        }
        self.evaluator = Some(evaluator);
    }

    /// Scores, draws, exports and sums up.
    async fn finish(mut self, out: &Path, report: Option<&Path>, corpus: &Corpus, seconds: f64) -> Result<Summary> {
        self.scored().await;
        let mut evaluator = self.evaluator.take().ok_or_else(|| Error::bug("the evaluator is gone"))?;
        let ledger = self.tail.ledger.clone();
        let model = committed_model(&self.run, &ledger).await?;
        let last = evaluator.score(&model.parameters)?;
        self.held_out.push((ledger.tokens() as f64, f64::from(last)));

        let curves = Curves {
            title: format!(
                "{}: {} islands, {} parameters",
                self.spec.run,
                self.spec.islands,
                self.run.layout.elements()
            ),
            held_out: Series { name: "committed model, held-out".into(), points: self.held_out.clone() },
            islands: self
                .islands
                .iter()
                .enumerate()
                .map(|(i, view)| Series { name: format!("island {i}, training"), points: view.curve.clone() })
                .collect(),
        };
        let picture = out.join("loss.svg");
        loss_curves_svg(&picture, &curves).map_err(|e| Error::invalid(e.to_string()))?;
        if std::io::stdout().is_terminal() {
            say!("{}", loss_curves_text(78, 18, &curves));
        }
        let exported: PathBuf = out.join("model");
        write_model(&model, &self.run.record, &exported)?;
        let held_out = corpus.held_out();
        let prompt = String::from_utf8_lossy(&held_out[..held_out.len().min(64)]).into_owned();
        let sampling = Sampling { temperature: 0.8, top_k: 40, seed: self.spec.seed };
        let text = continue_text(&model, &prompt, 200, &sampling)?;
        say!("--- held-out text, continued by the model\n{prompt}|{text}\n---");

        let (mut train, mut waited) = (0.0, 0.0);
        for view in &self.islands {
            train += view.before.0;
            waited += view.before.1;
            if let Some(Event::Island { train_seconds, wait_ratio, .. }) = view.last {
                train += f64::from(train_seconds);
                waited += f64::from(train_seconds) * f64::from(wait_ratio);
            }
        }
        let summary = Summary {
            held_out_loss_first: self.held_out.first().map(|&(_, loss)| loss),
            held_out_loss_last: Some(f64::from(last)),
            rounds_committed: ledger.rounds_committed(),
            tokens_merged: ledger.tokens(),
            offers_merged: ledger.fates.merged,
            offers_late: ledger.fates.late,
            offers_superseded: ledger.fates.superseded,
            offers_refused: ledger.fates.refused,
            islands: self.spec.islands,
            seconds,
            wait_ratio: if train > 0.0 { waited / train } else { 0.0 },
            exported: Some(exported.display().to_string()),
        };
        let failed = |e: crate::report::Error| Error::invalid(e.to_string());
        summary.write_json(&out.join("summary.json")).map_err(failed)?;
        if let Some(report) = report {
            summary.write_json(report).map_err(failed)?;
        }
        if self.run.record.chaos {
            say!("{STRUCK}; README.md beside it says so");
        }
        say!("picture: {}", picture.display());
        Ok(summary)
    }
}
