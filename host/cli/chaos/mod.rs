//! `tombolo chaos`: a run on this machine like that of `tombolo run`, while plugs are pulled on a schedule that the seed gives, and a report of what
//! it cost. Roles are processes of their own; where the bucket is a server, each reaches it through a fault proxy of its own.
//!
//! `order` is what can be asked for, `verdict` what it came to, `gauge` how fast islands train, `wound` how a blow is recovered from; here is who is struck, and when.
//!
//! This process strikes and watches, and takes no part: it reads the bucket past all proxies. What it holds against the run at the end is what it
//! has read itself, and what the simulation's checkers find in the bucket, which share no code with the ledger.

mod gauge;
mod order;
mod verdict;
mod wound;

pub use order::{Order, server_to_strike, span};

use super::arguments::{ChaosArguments, RunArguments};
use super::fleet::{Fleet, Processes};
use super::run::conduct;
use super::supervise::signal;
use crate::bucket::record::{Body, Entry, Fate, IslandState};
use crate::bucket::{Bucket, Ledger, Location, OfferId, Rate};
use crate::clock::{self, Duration, Instant};
use crate::error::{Error, Result};
use crate::event::Event;
use crate::nonce::sha256;
use crate::report::{BlowLine, Board};
use crate::sim::{Blow, Disturbance, Proxy, Strike, Target, schedule};
use crate::spec::Spec;
use gauge::Gauge;
use object_store::ObjectStoreExt;
use std::collections::{BTreeMap, VecDeque};
use wound::{Cure, Wound};

/// Launches of a role within its budget's window after which it is left alone: the supervisor gives a role up after six, and one that is cut off
/// while it starts ends and is launched again by itself.
const LAUNCHES_MAX: usize = 3;
/// How long the run may take, once the blows are over, to recover from them.
const HEALS_WITHIN: Duration = Duration::from_secs(60);
/// The longest look at the bucket; what it does not answer is asked again.
const LOOK: Duration = Duration::from_secs(2);
/// Log entries that are read again at once, to be compared at the end.
const TAPE_ENTRIES_MAX: usize = 64;
/// `tombolo chaos`.
pub async fn command(arguments: ChaosArguments) -> Result<()> {
    let ChaosArguments { spec, length, syncers, bucket, server, link, out, report } = arguments;
    let order = Order { length, syncers: syncers.into() };
    conduct(RunArguments { spec, bucket, server, link, out, report }, Some(order)).await
}

/// A blow that is under way.
struct Active {
    strike: Strike,
    role: String,
    /// The process that was struck.
    pid: u32,
    over_at: Instant,
    /// The line of the report.
    line: usize,
}

/// How the run stood when measuring began.
#[derive(Debug, Clone, Copy)]
struct Began {
    at: Instant,
    tokens: u64,
}

/// Pulls the plugs of one run, and keeps the books on it.
pub struct Chaos {
    order: Order,
    seed: u64,
    islands: usize,
    bucket: Bucket,
    proxies: BTreeMap<String, Proxy>,
    coming: VecDeque<Strike>,
    began: Option<Began>,
    /// Seconds and tokens when the time was over.
    measured: Option<(f64, u64)>,
    active: Vec<Active>,
    wounds: Vec<Wound>,
    lines: Vec<BlowLine>,
    passed_over: u64,
    gauges: BTreeMap<String, Gauge>,
    ticked: Option<Instant>,
    stepping: Duration,
    watched: Duration,
    /// Rounds committed while it was measured, and islands merged in them.
    merged: (u64, u64),
    rounds_after_blow: u64,
    /// SHA-256 of every log entry as it was read during the run.
    tape: Vec<String>,
}

impl Chaos {
    /// Starts the proxies, and says what can be struck.
    ///
    /// # Errors
    /// The bucket is in memory, or behind a server that no proxy can stand before.
    pub async fn prepare(order: Order, location: &Location, spec: &Spec, bucket: Bucket) -> Result<Chaos> {
        let server = server_to_strike(location)?;
        let mut proxies = BTreeMap::new();
        if let Some(server) = &server {
            let syncers = (1..=order.syncers).map(super::fleet::syncer_name);
            let roles = (0..spec.islands).map(super::fleet::island_name).chain(syncers);
            for (role, seed) in roles.zip(spec.seed..) {
                proxies.insert(role, Proxy::start(server, seed).await?);
            }
        }
        let coming = VecDeque::from(schedule(spec.seed, order.length, spec.islands, server.is_some()));
        eprintln!(
            "chaos: {} blows within {} s, seed {}, on processes, the bucket{}",
            coming.len(),
            order.length.as_secs(),
            spec.seed,
            if server.is_some() { " and links" } else { "; links only where the bucket is a server" }
        );
        Ok(Chaos {
            order,
            seed: spec.seed,
            islands: spec.islands,
            bucket,
            proxies,
            coming,
            began: None,
            measured: None,
            active: Vec::new(),
            wounds: Vec::new(),
            lines: Vec::new(),
            passed_over: 0,
            gauges: (0..spec.islands).map(|i| (super::fleet::island_name(i), Gauge::default())).collect(),
            ticked: None,
            stepping: Duration::ZERO,
            watched: Duration::ZERO,
            merged: (0, 0),
            rounds_after_blow: 0,
            tape: Vec::new(),
        })
    }

    /// Syncers to start.
    pub fn syncers(&self) -> usize {
        self.order.syncers
    }

    /// Where a role finds the bucket: behind its proxy, if it has one.
    pub fn place(&self, role: &str, location: &Location) -> Location {
        match self.proxies.get(role) {
            Some(proxy) => Location { endpoint: Some(proxy.endpoint().to_string()), ..location.clone() },
            None => location.clone(),
        }
    }

    fn is_calm(&self) -> bool {
        self.began.is_some() && self.active.is_empty() && self.wounds.is_empty()
    }

    /// Takes in what a role says of itself.
    pub fn event(&mut self, event: &Event) {
        if let Event::Island { island, state, step, tokens, .. } = event {
            let calm = self.is_calm() && self.measured.is_none() && *state == IslandState::Training;
            if let Some(gauge) = self.gauges.get_mut(island) {
                gauge.heard(*step, *tokens, calm, clock::now());
            }
        }
    }

    /// Takes in a log entry that is valid.
    pub fn entry(&mut self, entry: &Entry, board: &Board) {
        let Some(began) = self.began else { return };
        let now = clock::now();
        if let Body::Commit(commit) = &entry.body {
            if self.measured.is_none() {
                self.merged.0 += 1;
                self.merged.1 += commit.offers.iter().filter(|offer| offer.fate == Fate::Merged).count() as u64;
            }
            self.rounds_after_blow += 1;
        }
        let (healed, open) = std::mem::take(&mut self.wounds).into_iter().partition(|wound| wound.cure.is_in(entry));
        self.wounds = open;
        let healed: Vec<Wound> = healed;
        for wound in healed {
            let line = &mut self.lines[wound.line];
            let seconds = now.saturating_duration_since(wound.since).as_secs_f64();
            line.recovered_after_seconds = Some(seconds);
            let at = (now - began.at).as_secs_f64();
            board.note(&format!("{at:6.1} s  {}: {}: recovered after {seconds:.1} s", line.struck, line.blow));
        }
    }

    /// Strikes whom it is time to strike, and looks around; true once all is over and the run may end. `ending`: it ends already.
    ///
    /// # Errors
    /// A signal cannot be sent.
    pub async fn tick(&mut self, fleet: &mut Fleet, ledger: &Ledger, board: &Board, ending: bool) -> Result<bool> {
        let Fleet::Processes(fleet) = fleet else {
            return Err(Error::bug("chaos strikes processes, and was given tasks"));
        };
        self.record(ledger).await;
        let now = clock::now();
        let Some(began) = self.began else {
            let all_train = self.gauges.values().all(|gauge| gauge.steps(now));
            if all_train && ledger.rounds_committed() > 0 {
                self.began = Some(Began { at: now, tokens: ledger.tokens() });
                board.note("   0.0 s  every island trains: the time begins");
            }
            return Ok(false);
        };
        let elapsed = now - began.at;
        if self.measured.is_none() {
            let passed = now - self.ticked.replace(now).unwrap_or(now);
            self.watched += passed;
            if self.gauges.values().any(|gauge| gauge.steps(now)) {
                self.stepping += passed;
            }
            if ending || elapsed >= self.order.length {
                self.measured = Some((elapsed.as_secs_f64(), ledger.tokens() - began.tokens));
            }
        }
        for active in std::mem::take(&mut self.active) {
            if ending || active.over_at <= now {
                self.heal(active, ledger, elapsed, board).await?;
            } else {
                self.active.push(active);
            }
        }
        while !ending && self.coming.front().is_some_and(|strike| strike.at <= elapsed) {
            let strike = self.coming.pop_front().expect("just looked at");
            self.strike(strike, fleet, ledger, elapsed, board).await?;
        }
        let healed = self.wounds.is_empty() && self.rounds_after_blow > 0;
        Ok(elapsed >= self.order.length && (healed || elapsed >= self.order.length + HEALS_WITHIN))
    }

    /// Reads log entries as they lie in the bucket, to compare them at the end.
    async fn record(&mut self, ledger: &Ledger) {
        for _ in 0..TAPE_ENTRIES_MAX {
            let seq = self.tape.len() as u64;
            if seq >= ledger.next {
                break;
            }
            let Ok(Ok(Some(bytes))) = clock::timeout(LOOK, self.bucket.log_bytes(seq)).await else { break };
            self.tape.push(sha256(&bytes));
        }
    }

    async fn strike(
        &mut self,
        strike: Strike,
        fleet: &mut Processes,
        ledger: &Ledger,
        elapsed: Duration,
        board: &Board,
    ) -> Result<()> {
        let now = clock::now();
        let seconds = elapsed.as_secs_f64();
        if strike.blow == Blow::CorruptOffer {
            return self.put_corrupt_offer(ledger, seconds, board).await;
        }
        let role = match strike.target {
            Target::Island(index) => Some(super::fleet::island_name(index)),
            // Whoever writes to the log has a name and a nonce.
            _ => ledger.acting.as_deref().and_then(|id| id.rsplit_once('-')).map(|(role, _)| role.to_string()),
        };
        let pid = role.as_ref().and_then(|role| fleet.pid(role));
        let (Some(role), Some(pid)) = (role, pid) else { return self.pass_over("nobody is there", seconds, board) };
        let ends_it = matches!(strike.blow, Blow::Kill | Blow::Replace);
        let acting = ledger.acting.clone().unwrap_or_default();
        let cure_of_role = Cure::CommitNotBy(acting);
        if strike.target == Target::Syncer && self.wounds.iter().any(|wound| wound.cure == cure_of_role) {
            return self.pass_over("nobody acts as the syncer", seconds, board);
        }
        if self.active.iter().any(|active| active.role == role) {
            return self.pass_over(&format!("{role} is down already"), seconds, board);
        }
        if fleet.launches(&role) >= LAUNCHES_MAX {
            return self.pass_over(&format!("{role} has been launched often enough"), seconds, board);
        }
        let done = match strike.target {
            Target::Syncer => format!("{} while acting as the syncer", strike.blow),
            _ => strike.blow.to_string(),
        };
        let line = self.line(seconds, &role, &done);
        let lasts =
            if strike.lasts.is_zero() { String::new() } else { format!(" for {:.1} s", strike.lasts.as_secs_f64()) };
        board.note(&format!("{seconds:6.1} s  {role}: {done}{lasts} (process {pid})"));
        // What this life had offered may still be merged, and is no recovery of the next.
        let cure = match strike.target {
            Target::Syncer => Some(cure_of_role),
            _ if ends_it => {
                let claimed = clock::timeout(LOOK, self.bucket.newest_incarnation(&role)).await;
                let merged = ledger.incarnations.get(&role).copied().unwrap_or(0);
                Some(Cure::Life(role.clone(), claimed.ok().and_then(Result::ok).unwrap_or(merged)))
            }
            // Counted from when it is over.
            _ => None,
        };
        self.wounds.extend(cure.map(|cure| Wound { line, since: now, cure }));
        match strike.blow {
            Blow::Kill => return signal(pid, "KILL").await,
            Blow::Freeze => signal(pid, "STOP").await?,
            Blow::Replace => {
                signal(pid, "STOP").await?;
                fleet.replace(&role);
            }
            blow => {
                if let Some(proxy) = self.proxies.get(&role) {
                    proxy.set(disturbance(blow));
                }
            }
        }
        self.active.push(Active { strike, role, pid, over_at: now + strike.lasts, line });
        Ok(())
    }

    /// Ends a blow that lasts.
    async fn heal(&mut self, active: Active, ledger: &Ledger, elapsed: Duration, board: &Board) -> Result<()> {
        let Active { strike, role, pid, line, .. } = active;
        self.rounds_after_blow = 0;
        match strike.blow {
            Blow::Freeze | Blow::Replace => signal(pid, "CONT").await?,
            _ => {
                if let Some(proxy) = self.proxies.get(&role) {
                    proxy.set(Disturbance::default());
                }
            }
        }
        board.note(&format!("{:6.1} s  {role}: no longer {}", elapsed.as_secs_f64(), strike.blow));
        if strike.target == Target::Syncer {
            for wound in self.wounds.iter_mut().filter(|wound| wound.line == line) {
                wound.cure = Cure::Commit;
            }
        } else if strike.blow != Blow::Replace {
            let cure = Cure::Offer(role, ledger.open_rounds().end);
            self.wounds.push(Wound { line, since: clock::now(), cure });
        }
        Ok(())
    }

    fn line(&mut self, at_seconds: f64, struck: &str, blow: &str) -> usize {
        self.rounds_after_blow = 0;
        let (struck, blow) = (struck.into(), blow.into());
        self.lines.push(BlowLine { at_seconds, struck, blow, recovered_after_seconds: None });
        self.lines.len() - 1
    }

    fn pass_over(&mut self, why: &str, seconds: f64, board: &Board) -> Result<()> {
        self.passed_over += 1;
        board.note(&format!("{seconds:6.1} s  a blow is passed over: {why}"));
        Ok(())
    }

    async fn put_corrupt_offer(&mut self, ledger: &Ledger, seconds: f64, board: &Board) -> Result<()> {
        let line = self.line(seconds, "bucket", &Blow::CorruptOffer.to_string());
        let id = OfferId { round: ledger.next_round, island: format!("chaos-{line}"), incarnation: 1 };
        let body = format!("blow {line} is no offer");
        let key = self.bucket.keys().offer(&id);
        let put = self.bucket.store().put(&key, body.into_bytes().into());
        if !matches!(clock::timeout(LOOK, put).await, Ok(Ok(_))) {
            self.lines.pop();
            return self.pass_over("the bucket takes no corrupt offer", seconds, board);
        }
        board.note(&format!("{seconds:6.1} s  bucket: {} for round {}", Blow::CorruptOffer, id.round));
        self.wounds.push(Wound { line, since: clock::now(), cure: Cure::Refused(id) });
        Ok(())
    }
}

/// What a blow on a link does to what passes through it.
fn disturbance(blow: Blow) -> Disturbance {
    let none = Disturbance::default();
    match blow {
        Blow::Cut => Disturbance { cut: true, ..none },
        // A megabit per second, a long way off.
        Blow::Slow => {
            Disturbance { rate: Some(Rate::bytes_per_s(125_000.0)), latency: Duration::from_millis(80), ..none }
        }
        Blow::Refuse => Disturbance { refused: 0.7, ..none },
        Blow::Close => Disturbance { closed_before: 0.2, closed_after: 0.2, ..none },
        Blow::CutOff => Disturbance { cut_off: 0.4, ..none },
        Blow::Double => Disturbance { doubled: 0.5, ..none },
        Blow::Kill | Blow::Freeze | Blow::Replace | Blow::CorruptOffer => none,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_blow_on_a_link_disturbs_it() {
        let kinds: std::collections::BTreeSet<Blow> =
            schedule(1, Duration::from_secs(600), 4, true).iter().map(|strike| strike.blow).collect();
        for blow in kinds {
            let on_processes = matches!(blow, Blow::Kill | Blow::Freeze | Blow::Replace | Blow::CorruptOffer);
            assert_eq!(disturbance(blow) == Disturbance::default(), on_processes, "{blow}");
        }
    }
}
