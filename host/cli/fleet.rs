//! The roles that `tombolo run` starts: processes of their own, or tasks of this process where only this process can reach the bucket.

use super::assembly::Run;
use super::role::told;
use super::supervise::{Exit, Launches, Process, Verdict};
use crate::bucket::Location;
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

/// All roles of a run on this machine.
pub enum Fleet {
    /// As processes; the syncer last.
    Processes(Processes),
    /// As tasks.
    Tasks(Tasks),
}

/// Roles as processes.
pub struct Processes {
    slots: Vec<Slot>,
    events: mpsc::Sender<Event>,
    draining: bool,
}

/// Roles as tasks.
pub struct Tasks {
    islands: JoinSet<Result<()>>,
    syncer: JoinSet<Result<()>>,
    drain_islands: watch::Sender<bool>,
    drain_syncer: watch::Sender<bool>,
}

impl Fleet {
    /// Islands and a syncer as processes of this program.
    pub fn processes(location: &Location, spec: &Spec, threads: usize, events: mpsc::Sender<Event>) -> Result<Fleet> {
        let slot = |role: &str, name: &str, more: Vec<String>| {
            let mut arguments: Vec<String> =
                [role, location.url.as_str(), "--run", &spec.run, "--supervised"].map(String::from).to_vec();
            if let Some(endpoint) = &location.endpoint {
                arguments.extend(["--endpoint".to_string(), endpoint.clone()]);
            }
            arguments.extend(more);
            let now = clock::now();
            Slot {
                name: name.to_string(),
                arguments,
                process: None,
                launches: Launches::default(),
                launch_at: Some(now),
                ended: None,
            }
        };
        let mut slots: Vec<Slot> = (0..spec.islands)
            .map(|i| {
                let name = format!("island-{i}");
                let mut more = vec!["--name".to_string(), name.clone(), "--threads".to_string(), threads.to_string()];
                more.push("--may-sync".to_string());
                if !spec.data.path.is_empty() {
                    more.extend(["--data".to_string(), spec.data.path.clone()]);
                }
                slot("island", &name, more)
            })
            .collect();
        slots.push(slot("syncer", "syncer", vec!["--threads".to_string(), "1".to_string()]));
        Ok(Fleet::Processes(Processes { slots, events, draining: false }))
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
                let (name, data) = (format!("island-{i}"), (!data.is_empty()).then_some(data.as_str()));
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
                processes.draining = true;
                processes.islands().filter_map(|s| s.process.as_mut()).for_each(Process::drain);
            }
            // Nobody listening means that they are gone already.
            Fleet::Tasks(tasks) => drop(tasks.drain_islands.send(true)),
        }
    }

    /// Ends everything at once.
    pub async fn kill(&mut self) {
        match self {
            Fleet::Processes(processes) => {
                processes.draining = true;
                for slot in &mut processes.slots {
                    slot.launch_at = None;
                    if let Some(process) = &mut slot.process {
                        process.kill().await;
                    }
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
    fn islands(&mut self) -> impl Iterator<Item = &mut Slot> {
        let count = self.slots.len() - 1;
        self.slots[..count].iter_mut()
    }

    async fn tend(&mut self, ending: bool, board: &Board) -> Result<bool> {
        let now = clock::now();
        for slot in &mut self.slots {
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
        let (syncer, islands) = self.slots.split_last_mut().expect("a fleet has a syncer");
        let islands_gone = islands.iter().all(|s| s.ended.is_some());
        if islands_gone && let Some(process) = &mut syncer.process {
            process.drain();
        }
        if let Some(Err(reason)) = &syncer.ended {
            return Err(Error::unavailable(format!("the syncer is given up: {reason}; see its words above")));
        }
        if let Some(Err(reason)) = islands.first().and_then(|s| s.ended.as_ref())
            && islands.iter().all(|s| matches!(s.ended, Some(Err(_))))
        {
            return Err(Error::unavailable(format!("every island is given up: {reason}; see their words above")));
        }
        Ok(islands_gone && syncer.ended.is_some())
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
