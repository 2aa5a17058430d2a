//! A fleet under fire, from one seed: islands and syncers over faulty links, killed, frozen, cut off, deafened and replaced while virtual time runs,
//! with now and then a rogue among them (safety);
//! then everything heals and the run has to go on (liveness). The checkers are in `check.rs`, apart from the code they check.

use super::check::{Checked, check_bucket};
use super::fault::{Faults, Link, Trap};
use super::toy::{self, Drift, Seen};
use super::{World, rogue};
use crate::activate::activate;
use crate::bucket::record::PolicyUse;
use crate::bucket::{Bucket, Ledger};
use crate::clock::{self, Duration};
use crate::error::{Error, Kind, Result};
use crate::island::{self, Drive};
use crate::policy::{self, Runtime};
use crate::spec::Spec;
use crate::syncer::{self, Desk, Rules};
use object_store::ObjectStore;
use object_store::memory::InMemory;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::task::JoinSet;

/// Virtual time that a healed fleet has for its next rounds.
const HEALED_WITHIN: Duration = Duration::from_secs(120);
/// The same while one process stays deaf: if it acts as the syncer, it keeps the role for two minutes before it leaves it to another.
const HEALED_BESIDE_DEAF_WITHIN: Duration = Duration::from_secs(300);
/// Time between two heartbeats.
const BEAT_EVERY: Duration = Duration::from_millis(500);

/// What an operator switches to: role, bundled policy and its configuration, of which the last one's is an error.
const SWITCHES: [(policy::Role, &str, &str); 9] = [
    (policy::Role::Codec, "f32", ""),
    (policy::Role::Codec, "int8", ""),
    (policy::Role::Merge, "mean", ""),
    (policy::Role::Merge, "rda", ""),
    (policy::Role::Merge, "trimmed-mean", ""),
    (policy::Role::Pace, "adaptive-grace", ""),
    (policy::Role::Pace, "fixed", PACES[1].1),
    (policy::Role::Pace, "wait-all", PACES[2].1),
    (policy::Role::Pace, "fixed", r#"{"pace":"slow"}"#),
];

/// What a run begins with: pace and its configuration. They wait for seconds at most, so that a healed fleet has its rounds in time.
const PACES: [(&str, &str); 3] =
    [("adaptive-grace", ""), ("fixed", r#"{"grace_ms":300}"#), ("wait-all", r#"{"wait_ms_max":2000}"#)];

/// What a seed came to.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// Islands that took part.
    pub islands: usize,
    /// Kills, freezes, cuts and what else was dealt.
    pub blows: u64,
    /// What the checkers found in the bucket at the end.
    pub checked: Checked,
}

/// One process of the fleet.
pub struct Process {
    link: Arc<Link>,
    role: Role,
    tasks: JoinSet<()>,
}

/// What a process does.
#[derive(Debug, Clone)]
pub enum Role {
    /// Island with this name and step time.
    Island(String, Duration),
    /// A syncer.
    Syncer,
    /// An island with this name that counts its tokens again and again, and the seed of what it does.
    Rogue(String, u64),
}

/// A run of toy islands in a bucket in memory.
pub struct Fleet {
    /// The store itself, without any link.
    pub store: Arc<dyn ObjectStore>,
    /// Counts calls and may spring.
    pub trap: Arc<Trap>,
    /// Which data the islands trained on.
    pub seen: Seen,
    /// The run, over a link without faults.
    world: World,
    failures: Arc<Mutex<Vec<String>>>,
    random: StdRng,
    lives: u64,
}

impl Fleet {
    /// Puts the run into an empty bucket.
    ///
    /// # Errors
    /// The spec or a policy does not fit.
    pub async fn new(seed: u64, spec: Spec, tensors: usize, runtime: &Runtime) -> Result<Fleet> {
        let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
        let (layout, fragments) = toy::model(tensors, spec.outer.fragments)?;
        let (record, toy::Policies { codec, merge, pace }) = toy::record(spec, &fragments, runtime)?;
        let bucket = Bucket::new(store.clone(), &record.spec.run);
        bucket.create_run(&record).await?;
        let window = Rules::of(&record.spec, fragments.count()).first_window();
        bucket.start(&fragments, &vec![0.0; layout.elements()], window, "sim").await?;
        let (fragments, steps) = (Arc::new(fragments), Vec::new());
        let bundled = |name: &str| runtime.bundled(name).map_err(|e| Error::bug("a bundled policy").because(e));
        let down = record.down.as_ref().map(|down| down.name.as_str());
        let others = SWITCHES.iter().map(|(_, name, _)| *name).chain(down).map(bundled).collect::<Result<_>>()?;
        Ok(Fleet {
            store,
            trap: Arc::default(),
            seen: Seen::default(),
            world: World { bucket, record, layout, fragments, codec, merge, pace, others, steps },
            failures: Arc::default(),
            random: StdRng::seed_from_u64(seed),
            lives: 0,
        })
    }

    /// Starts a process; it is started again when it ends because the bucket did not answer.
    pub fn start(&mut self, role: Role, faults: Faults) -> Process {
        self.lives += 1;
        let link = Arc::new(Link::new(self.store.clone(), self.random.random(), faults, self.trap.clone()));
        let mut tasks = JoinSet::new();
        let bucket = Bucket::new(link.clone(), &self.world.record.spec.run);
        let world = World { bucket, ..self.world.clone() };
        let life = Life { world, seen: self.seen.clone(), number: self.lives };
        let (failures, own) = (self.failures.clone(), role.clone());
        tasks.spawn(async move {
            loop {
                match life.work(&own).await {
                    Ok(()) => return,
                    Err(error) if error.kind() == Kind::Fenced => return,
                    Err(error) if error.kind() == Kind::Unavailable => clock::sleep(Duration::from_millis(500)).await,
                    Err(error) => {
                        let line = format!("{own:?}: {}", error.chain());
                        return failures.lock().unwrap_or_else(PoisonError::into_inner).push(line);
                    }
                }
            }
        });
        Process { link, role, tasks }
    }

    /// What went wrong in a process that should never go wrong.
    pub fn failures(&self) -> Vec<String> {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Switches a policy, at once or some rounds ahead, or to one that nobody has. A round that has come too near meanwhile is no error.
    async fn switch(&self, random: &mut StdRng) {
        let which = random.random_range(0..SWITCHES.len());
        let (role, name, config) = SWITCHES[which];
        let known = random.random_bool(0.8);
        let hash = if known { self.world.others[which].hash().to_string() } else { "0".repeat(64) };
        let used = PolicyUse { name: name.into(), hash, config: config.into() };
        let ahead = random.random_range(0..8);
        let next = self.ledger().await.map_or(0, |ledger| ledger.open_rounds().end);
        let from = (ahead > 0).then_some(next + ahead);
        let _ = activate(&self.world.bucket, &self.world.record, role, &used, from).await;
    }

    /// What the log says.
    ///
    /// # Errors
    /// Never, on a store in memory.
    pub async fn ledger(&self) -> Result<Ledger> {
        self.world.ledger().await
    }

    /// Checks the bucket with everything that is known about how it must look.
    ///
    /// # Errors
    /// The first invariant that does not hold.
    pub async fn check(&self) -> Result<Checked> {
        if let Some(failure) = self.failures().first() {
            return Err(Error::bug(failure.clone()));
        }
        check_bucket(&self.store, &self.world.record.spec.run, &self.world.desk(BEAT_EVERY)).await
    }
}

/// One life of a process, over its own link.
struct Life {
    world: World,
    seen: Seen,
    number: u64,
}

impl Life {
    async fn work(&self, role: &Role) -> Result<()> {
        let world = &self.world;
        match role {
            Role::Syncer => {
                let desk = Desk { id: format!("syncer-{:04}", self.number), ..world.desk(BEAT_EVERY) };
                syncer::run(desk, std::future::pending()).await.map(|_| ())
            }
            Role::Island(name, step) => {
                let drift = || Box::new(Drift::new(name, world.layout.elements(), self.seen.clone()));
                let site = || std::future::ready(Ok(world.site(name, drift(), BEAT_EVERY)));
                island::live(site, Drive::Virtual(*step), std::future::pending()).await.map(|_| ())
            }
            Role::Rogue(name, seed) => rogue::offer_again_and_again(world, name, *seed).await,
        }
    }
}

/// Simulates one seed.
///
/// # Errors
/// An invariant that does not hold, or no progress after everything healed.
pub fn simulate(seed: u64, runtime: &Runtime) -> Result<Report> {
    super::on_virtual_time(seed, async {
        let mut random = StdRng::seed_from_u64(seed);
        let islands = if random.random_bool(0.05) { random.random_range(8..=64) } else { random.random_range(1..=5) };
        let mut spec = Spec { tokens: 1 << 50, ..Spec::default() };
        let tensors = random.random_range(1..=6);
        spec.outer.fragments = random.random_range(1..=tensors);
        spec.outer.sync_steps = random.random_range(1..=8);
        spec.outer.sync_warmup = [0, seed % 8][(seed % 2) as usize];
        spec.outer.overlap_steps = random.random_range(0..=4);
        spec.outer.quorum = if islands > 2 { random.random_range(1..=2) } else { 1 };
        spec.outer.staleness_max = random.random_range(0..=4);
        spec.keep.versions = random.random_range(2..=8);
        spec.keep.checkpoint_seconds = random.random_range(1..=5);
        spec.codec.policy = ["bf16", "int8"][random.random_range(0..2)].into();
        spec.merge.policy = ["mean", "rda"][random.random_range(0..2)].into();
        spec.down.policy = ["", "int4", "bf16"][(seed % 3) as usize].into();
        let (pace, config) = PACES[random.random_range(0..PACES.len())];
        spec.pace.policy = pace.into();
        spec.pace.config = serde_json::from_str(if config.is_empty() { "{}" } else { config }).expect("an object");
        let calm = Faults { latency_ms: (1, random.random_range(2..=30)), ..Faults::default() };
        let storm = Faults {
            before: random.random_range(0.0..0.15),
            after: random.random_range(0.0..0.15),
            truncated: random.random_range(0.0..0.05),
            latency_ms: (1, random.random_range(5..=150)),
        };
        let mut fleet = Fleet::new(seed, spec.clone(), tensors, runtime).await?;
        let step = |random: &mut StdRng| Duration::from_millis(random.random_range(40..=250));
        let mut processes: Vec<Process> = Vec::new();
        for i in 0..islands {
            let role = Role::Island(format!("island-{i}"), step(&mut random));
            processes.push(fleet.start(role, storm));
        }
        for _ in 0..random.random_range(1..=3) {
            processes.push(fleet.start(Role::Syncer, storm));
        }
        if random.random_bool(0.3) {
            processes.push(fleet.start(Role::Rogue("rogue".into(), random.random()), storm));
        }
        let blows = under_fire(&mut fleet, &mut processes, &mut random, storm, islands).await;
        let safe = fleet.check().await.map_err(|e| Error::bug(format!("seed {seed}, under fire: {}", e.chain())))?;

        // What a rogue offers honestly must not pass for progress.
        processes.retain(|process| !matches!(process.role, Role::Rogue(..)));
        // One stays deaf: the others have to go on without it.
        let deaf = processes.iter().rposition(|process| process.link.is_deaf());
        for (i, process) in processes.iter().enumerate() {
            process.link.set_faults(calm);
            process.link.cut(false);
            process.link.freeze(false);
            process.link.deafen(deaf == Some(i));
        }
        processes.push(fleet.start(Role::Syncer, calm));
        for process in &mut processes {
            while process.tasks.try_join_next().is_some() {}
        }
        while processes.iter().filter(|p| matches!(p.role, Role::Island(..)) && !p.tasks.is_empty()).count()
            < islands.max(2) + usize::from(deaf.is_some())
        {
            let role = Role::Island(format!("healed-{}", processes.len()), step(&mut random));
            processes.push(fleet.start(role, calm));
        }
        let wanted = safe.rounds + 2 * spec.outer.fragments as u64 + 2;
        let within = if deaf.is_some() { HEALED_BESIDE_DEAF_WITHIN } else { HEALED_WITHIN };
        let healed = clock::timeout(within, async {
            while fleet.ledger().await?.rounds_committed() < wanted {
                clock::sleep(Duration::from_millis(250)).await;
            }
            Ok::<(), Error>(())
        });
        let progressed = healed.await;
        let checked = fleet.check().await.map_err(|e| Error::bug(format!("seed {seed}, healed: {}", e.chain())))?;
        if progressed.is_err() {
            return Err(Error::bug(format!(
                "seed {seed}: no progress after everything healed: {} rounds under fire, {} of {wanted} after {within:?}; {:?}",
                safe.rounds, checked.rounds, spec.outer
            )));
        }
        Ok(Report { seed, islands, blows, checked })
    })
}

/// Deals blows for a while; returns how many.
async fn under_fire(
    fleet: &mut Fleet,
    processes: &mut Vec<Process>,
    random: &mut StdRng,
    storm: Faults,
    islands: usize,
) -> u64 {
    let until = clock::now() + Duration::from_secs(random.random_range(10..=30));
    let mut blows = 0;
    while clock::now() < until {
        clock::sleep(Duration::from_millis(random.random_range(200..=4000))).await;
        let which = random.random_range(0..processes.len());
        let kind = random.random_range(0..8);
        let process = &mut processes[which];
        blows += 1;
        match kind {
            // Killed and started again at once or later, as the same island or a new syncer.
            0 | 1 => {
                let role = process.role.clone();
                processes.remove(which);
                clock::sleep(Duration::from_millis(random.random_range(0..3000))).await;
                processes.push(fleet.start(role, storm));
            }
            // Frozen while a second life of it starts: a zombie that wakes later.
            2 => {
                process.link.freeze(true);
                let role = process.role.clone();
                processes.push(fleet.start(role, storm));
            }
            3 => process.link.cut(true),
            4 => {
                for process in processes.iter() {
                    process.link.cut(false);
                    process.link.freeze(false);
                    process.link.deafen(false);
                }
            }
            // It beats, lists and writes, and large objects do not come through.
            5 => process.link.deafen(true),
            6 => fleet.switch(random).await,
            _ if processes.len() < islands + 8 => {
                let step = Duration::from_millis(random.random_range(40..=250));
                processes.push(fleet.start(Role::Island(format!("late-{blows}"), step), storm));
            }
            _ => {}
        }
    }
    blows
}
