//! The roles that `tombolo run` starts: processes of their own, or tasks of this process where only this process can reach the bucket.

use super::assembly::Run;
use super::role::told;
use super::supervise::{Exit, Launches, Process, Verdict};
use crate::bucket::{Location, Rate};
use crate::clock::{self, Instant};
use crate::error::{Error, Result};
use crate::event::{Event, Sink};
use crate::island::{self, Drive};
use crate::policy::Runtime;
use crate::report::Board;
use crate::spec::Spec;
use crate::syncer;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

/// One role in a process of its own.
struct Slot {
    name: String,
    arguments: Vec<String>,
    process: Option<Process>,
    launches: Launches,
    launch_at: Option<Instant>,
    /// Ended for good: normally, or for this reason.
    ended: Option<std::result::Result<(), String>>,
}

/// One role that a fleet is to start as a process.
pub struct Seat {
    name: String,
    arguments: Vec<String>,
}

/// Name of the island with this index, from 0.
pub fn island_name(index: usize) -> String {
    format!("island-{index}")
}

/// Name of syncer number `n`, from 1.
pub fn syncer_name(n: usize) -> String {
    if n == 1 { "syncer".to_string() } else { format!("syncer-{n}") }
}

/// The islands of the spec, `island-0` and on, and `syncers` syncers: `syncer`, `syncer-2` and on. `place` says where a role finds the bucket,
/// by its name; `link` caps each role's transfers.
pub fn seats(
    spec: &Spec,
    syncers: usize,
    threads: usize,
    link: Option<Rate>,
    place: impl Fn(&str) -> Location,
) -> (Vec<Seat>, Vec<Seat>) {
    let seat = |role: &str, name: String, more: &[&str]| {
        let Location { url, endpoint } = place(&name);
        let mut arguments: Vec<String> =
            [role, &url, "--run", &spec.run, "--supervised", "--name", &name].map(String::from).to_vec();
        if let Some(endpoint) = endpoint {
            arguments.extend(["--endpoint".to_string(), endpoint]);
        }
        if let Some(link) = link {
            arguments.extend(["--link".to_string(), link.to_string()]);
        }
        arguments.extend(more.iter().map(ToString::to_string));
        Seat { name, arguments }
    };
    let threads = threads.to_string();
    let mut more = vec!["--threads", &threads, "--may-sync"];
    if !spec.data.path.is_empty() {
        more.extend(["--data", &spec.data.path]);
    }
    let islands = (0..spec.islands).map(|i| seat("island", island_name(i), &more)).collect();
    let syncers = (1..=syncers).map(|n| seat("syncer", syncer_name(n), &["--threads", "1"])).collect();
    (islands, syncers)
}

/// All roles of a run on this machine.
pub enum Fleet {
    /// As processes; the syncers last.
    Processes(Processes),
    /// As tasks.
    Tasks(Tasks),
}

/// Roles as processes.
pub struct Processes {
    islands: Vec<Slot>,
    syncers: Vec<Slot>,
    /// Frozen processes whose successors have been started, by their names.
    replaced: Vec<(String, Process)>,
    events: mpsc::Sender<Event>,
}

/// Roles as tasks.
pub struct Tasks {
    islands: JoinSet<Result<()>>,
    syncer: JoinSet<Result<()>>,
    drain_islands: watch::Sender<bool>,
    drain_syncer: watch::Sender<bool>,
}

impl Fleet {
    /// Islands and syncers as processes of this program.
    pub fn processes((islands, syncers): (Vec<Seat>, Vec<Seat>), events: mpsc::Sender<Event>) -> Fleet {
        let slots = |seats: Vec<Seat>| {
            let slot = |Seat { name, arguments }| Slot {
                name,
                arguments,
                process: None,
                launches: Launches::default(),
                launch_at: Some(clock::now()),
                ended: None,
            };
            seats.into_iter().map(slot).collect()
        };
        Fleet::Processes(Processes { islands: slots(islands), syncers: slots(syncers), replaced: Vec::new(), events })
    }

    /// Islands and a syncer as tasks of this process.
    ///
    /// # Errors
    /// A role cannot be put together.
    pub async fn tasks(
        run: &Run,
        runtime: &Runtime,
        threads: usize,
        spec: &Spec,
        events: mpsc::Sender<Event>,
    ) -> Result<Fleet> {
        let sink = Sink::Channel(events);
        let (drain_islands, islands_asked) = watch::channel(false);
        let (drain_syncer, syncer_asked) = watch::channel(false);
        let (mut islands, mut syncers) = (JoinSet::new(), JoinSet::new());
        for i in 0..spec.islands {
            let asked = told(islands_asked.clone());
            let (run, runtime, sink, data) = (run.clone(), runtime.clone(), sink.clone(), spec.data.path.clone());
            islands.spawn(async move {
                let (name, data) = (island_name(i), (!data.is_empty()).then_some(data.as_str()));
                let site = || run.site(&runtime, &name, threads, data, sink.clone());
                island::live(site, Drive::Thread, asked).await.map(|_| ())
            });
        }
        let desk = run.desk(runtime, 1, sink).await?;
        syncers.spawn(async move { syncer::run(desk, told(syncer_asked)).await.map(|_| ()) });
        Ok(Fleet::Tasks(Tasks { islands, syncer: syncers, drain_islands, drain_syncer }))
    }

    /// Asks the islands to drain; the syncer follows when they are gone.
    pub fn drain_islands(&mut self) {
        match self {
            Fleet::Processes(processes) => {
                processes.islands.iter_mut().filter_map(|s| s.process.as_mut()).for_each(Process::drain);
                processes.replaced.iter_mut().for_each(|(_, process)| process.drain());
            }
            // Nobody listening means that they are gone already.
            Fleet::Tasks(tasks) => drop(tasks.drain_islands.send(true)),
        }
    }

    /// Ends everything at once.
    pub async fn kill(&mut self) {
        match self {
            Fleet::Processes(processes) => {
                for slot in processes.islands.iter_mut().chain(&mut processes.syncers) {
                    slot.launch_at = None;
                    if let Some(process) = &mut slot.process {
                        process.kill().await;
                    }
                }
                for (_, process) in &mut processes.replaced {
                    process.kill().await;
                }
            }
            Fleet::Tasks(tasks) => {
                tasks.islands.abort_all();
                tasks.syncer.abort_all();
            }
        }
    }

    /// Looks after everyone; true once all have ended.
    ///
    /// # Errors
    /// The run cannot go on: the syncer or every island is given up.
    pub async fn tend(&mut self, ending: bool, board: &Board) -> Result<bool> {
        match self {
            Fleet::Processes(processes) => processes.tend(ending, board).await,
            Fleet::Tasks(tasks) => tasks.tend(),
        }
    }
}

impl Processes {
    async fn tend(&mut self, ending: bool, board: &Board) -> Result<bool> {
        let now = clock::now();
        for slot in self.islands.iter_mut().chain(&mut self.syncers) {
            let ended = match &mut slot.process {
                Some(process) => process.ended()?,
                None => None,
            };
            if let Some(exit) = ended {
                slot.process = None;
                slot.settle(exit, ending, now, board);
            }
            if slot.launch_at.is_some_and(|at| at <= now) {
                slot.launch_at = None;
                if ending {
                    slot.ended = Some(Ok(()));
                } else {
                    slot.launches.launched(now);
                    slot.process = Some(Process::start(&slot.arguments, self.events.clone())?);
                    if let Some(id) = slot.process.as_ref().and_then(Process::id) {
                        board.note(&format!("{}: process {id}", slot.name));
                    }
                }
            }
        }
        for (name, process) in std::mem::take(&mut self.replaced) {
            self.keep_replaced(name, process, board)?;
        }
        let islands_gone = self.islands.iter().all(|s| s.ended.is_some()) && self.replaced.is_empty();
        if islands_gone {
            self.syncers.iter_mut().filter_map(|s| s.process.as_mut()).for_each(Process::drain);
        }
        for (what, slots) in [("syncer", &self.syncers), ("island", &self.islands)] {
            if let Some(Err(reason)) = slots.first().and_then(|s| s.ended.as_ref())
                && slots.iter().all(|s| matches!(s.ended, Some(Err(_))))
            {
                return Err(Error::unavailable(format!("every {what} is given up: {reason}; see their words above")));
            }
        }
        Ok(islands_gone && self.syncers.iter().all(|s| s.ended.is_some()))
    }

    fn keep_replaced(&mut self, name: String, mut process: Process, board: &Board) -> Result<()> {
        match process.ended()? {
            Some(exit) => board.note(&format!("{name}: its earlier process ended ({exit:?})")),
            None => self.replaced.push((name, process)),
        }
        Ok(())
    }

    fn slot(&mut self, name: &str) -> Option<&mut Slot> {
        self.islands.iter_mut().chain(&mut self.syncers).find(|s| s.name == name)
    }

    /// The id of a role's process, while it has one.
    pub fn pid(&mut self, name: &str) -> Option<u32> {
        self.slot(name)?.process.as_ref()?.id()
    }

    /// How often a role was launched within the last window of its budget.
    pub fn launches(&mut self, name: &str) -> usize {
        self.slot(name).map_or(0, |slot| slot.launches.within_window(clock::now()))
    }

    /// Starts a role's next process beside the one that it has, which nobody looks after any more.
    pub fn replace(&mut self, name: &str) {
        let Some(slot) = self.slot(name) else { return };
        slot.launch_at = Some(clock::now());
        if let Some(process) = slot.process.take() {
            self.replaced.push((name.to_string(), process));
        }
    }
}

impl Slot {
    fn settle(&mut self, exit: Exit, ending: bool, now: Instant, board: &Board) {
        match self.launches.verdict(exit, ending, now) {
            Verdict::Done => self.ended = Some(Ok(())),
            Verdict::Relaunch(pause) => {
                board.note(&format!("{}: ended ({exit:?}), launched again", self.name));
                self.launch_at = Some(now + pause);
            }
            Verdict::GiveUp(reason) => {
                board.note(&format!("{}: given up: {reason}", self.name));
                self.ended = Some(Err(reason));
            }
        }
    }
}

impl Tasks {
    fn tend(&mut self) -> Result<bool> {
        for set in [&mut self.islands, &mut self.syncer] {
            while let Some(ended) = set.try_join_next() {
                match ended {
                    Ok(outcome) => outcome?,
                    Err(error) if error.is_cancelled() => {}
                    Err(error) => return Err(Error::bug("a role panicked").because(error)),
                }
            }
        }
        if self.islands.is_empty() {
            // Nobody listening means that it is gone already.
            let _ = self.drain_syncer.send(true);
        }
        Ok(self.islands.is_empty() && self.syncer.is_empty())
    }
}
