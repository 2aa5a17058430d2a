//! `tombolo chaos`: a run on this machine like that of `tombolo run`, while plugs are pulled on a schedule that the seed gives, and a report of what
//! it cost. Roles are processes of their own; where the bucket is a server, each reaches it through a fault proxy of its own.
//!
//! This process strikes and watches, and takes no part: it reads the bucket past all proxies. What it holds against the run at the end is what it
//! has read itself, and what the simulation's checkers find in the bucket, which share no code with the ledger.

mod gauge;
mod wound;

use super::arguments::{ChaosArguments, RunArguments};
use super::assembly::Run;
use super::fleet::{Fleet, Processes};
use super::run::conduct;
use super::supervise::signal;
use crate::bucket::record::{Body, Entry, Fate, IslandState};
use crate::bucket::{Bucket, Ledger, Location, OfferId, Rate, Tail};
use crate::clock::{self, Duration, Instant};
use crate::error::{Error, Result};
use crate::event::Event;
use crate::nonce::sha256;
use crate::report::{BlowLine, Board, ChaosReport, Invariant, by_kind};
use crate::sim::{Blow, Disturbance, Proxy, Strike, Target, check_bucket, schedule};
use crate::spec::Spec;
use crate::syncer::Desk;
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
/// The shortest time that has room for a quiet beginning, blows and a quiet end.
const LENGTH_MIN: Duration = Duration::from_secs(15);

/// What was asked for.
#[derive(Debug, Clone, Copy)]
pub struct Order {
    /// How long, from when the run is under way.
    pub length: Duration,
    /// Syncers beside the islands.
    pub syncers: usize,
}

/// Reads `90s`, `10m` or `2h`.
///
/// # Errors
/// It is something else.
pub fn span(text: &str) -> std::result::Result<Duration, String> {
    let units = [("s", 1), ("m", 60), ("h", 3600)];
    units
        .iter()
        .find_map(|(unit, seconds)| text.strip_suffix(unit)?.parse::<u32>().ok().map(|n| u64::from(n) * seconds))
        .map(Duration::from_secs)
        .filter(|length| (LENGTH_MIN..=Duration::from_secs(7 * 86_400)).contains(length))
        .ok_or_else(|| format!("expected {} s to 7 days such as 90s, 10m or 2h, found `{text}`", LENGTH_MIN.as_secs()))
}

/// The server whose links can be struck; none where the bucket is a directory.
///
/// # Errors
/// The bucket is in memory, or behind a server that no fault proxy can stand before.
pub fn server_to_strike(location: &Location) -> Result<Option<String>> {
    if location.is_memory()? {
        return Err(Error::invalid(
            "--bucket memory: has no processes to strike; expected file:DIR or s3://BUCKET/PREFIX",
        ));
    }
    if location.is_local()? {
        return Ok(None);
    }
    let server = location.s3_endpoint()?.ok_or_else(|| {
        Error::invalid(format!(
            "{}: chaos needs a server to put fault proxies before, such as --endpoint http://127.0.0.1:9000; found none",
            location.url
        ))
    })?;
    Proxy::check(&server)?;
    Ok(Some(server))
}

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
        let (Some(began), Body::Commit(commit)) = (self.began, &entry.body) else { return };
        let now = clock::now();
        if self.measured.is_none() {
            self.merged.0 += 1;
            self.merged.1 += commit.offers.iter().filter(|offer| offer.fate == Fate::Merged).count() as u64;
        }
        self.rounds_after_blow += 1;
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

    /// What it all came to. `desk` is of the run; `ledger` what its log says at the end, when every role is gone.
    ///
    /// # Errors
    /// Unavailable: the time never began.
    pub async fn report(mut self, run: &Run, desk: &Desk, ledger: &Ledger) -> Result<ChaosReport> {
        let began = self.began.ok_or_else(|| {
            Error::unavailable(
                "the run ended before every island trained and a round was committed: nothing was struck",
            )
        })?;
        let (seconds, tokens_useful) =
            self.measured.unwrap_or_else(|| ((clock::now() - began.at).as_secs_f64(), ledger.tokens() - began.tokens));
        let tokens_per_s: BTreeMap<String, Option<f64>> =
            self.gauges.iter().map(|(name, gauge)| (name.clone(), gauge.rate())).collect();
        let rates: Option<f64> = tokens_per_s.values().copied().sum();
        let tokens_possible = rates.map(|rate| rate * seconds).filter(|possible| *possible > 0.0);
        let mut spoilt: BTreeMap<String, u64> = BTreeMap::new();
        for (what, n) in self.proxies.values().flat_map(Proxy::spoilt) {
            *spoilt.entry(what.to_string()).or_default() += n;
        }
        // A run that reached its budget has gone on to its end.
        let progressed = self.rounds_after_blow > 0 || ledger.stopped.is_some();
        self.record(ledger).await;
        let invariants = self.invariants(run, desk).await;
        Ok(ChaosReport {
            seed: self.seed,
            seconds,
            islands: self.islands,
            syncers: self.order.syncers,
            links: !self.proxies.is_empty(),
            tokens_useful,
            tokens_possible,
            goodput: tokens_possible.map(|possible| tokens_useful as f64 / possible),
            uptime: self.stepping.as_secs_f64() / self.watched.as_secs_f64().max(f64::MIN_POSITIVE),
            rounds_committed: self.merged.0,
            rounds_after_last_blow: self.rounds_after_blow,
            breadth: (self.merged.0 > 0).then(|| self.merged.1 as f64 / self.merged.0 as f64),
            kinds: by_kind(&self.lines),
            blows: self.lines,
            passed_over: self.passed_over,
            spoilt,
            tokens_per_s,
            survived: progressed && invariants.iter().all(|invariant| invariant.holds),
            invariants,
        })
    }

    async fn invariants(&self, run: &Run, desk: &Desk) -> Vec<Invariant> {
        let invariant = |what: &str, found: Result<String>| {
            let (holds, found) = found.map_or_else(|error| (false, error.chain()), |found| (true, found));
            Invariant { what: what.into(), holds, found }
        };
        vec![
            invariant("no entry that was read has changed or gone", self.same_tape().await),
            invariant("the log read from its start has no void entry", no_void(run).await),
            invariant(
                "commits extend the log, no offer counts twice, tokens add up, merges recompute to the same bytes",
                check_bucket(self.bucket.store(), &run.record.spec.run, desk).await.map(|checked| {
                    format!("{} entries, {} rounds, {} recomputed", checked.entries, checked.rounds, checked.recomputed)
                }),
            ),
        ]
    }

    async fn same_tape(&self) -> Result<String> {
        for (seq, hash) in (0u64..).zip(&self.tape) {
            let found = self.bucket.log_bytes(seq).await?.map(|bytes| sha256(&bytes));
            if found.as_ref() != Some(hash) {
                return Err(Error::corrupt(format!("log entry {seq}: expected content {hash}, found {found:?}")));
            }
        }
        Ok(format!("{} entries", self.tape.len()))
    }
}

/// Reads the whole log as every reader does.
async fn no_void(run: &Run) -> Result<String> {
    let mut tail = Tail::new(Ledger::of(&run.record));
    for read in tail.advance(&run.bucket, usize::MAX).await? {
        read.map_err(|violation| Error::corrupt(violation.to_string()))?;
    }
    let fates = &tail.ledger.fates;
    Ok(format!(
        "{} rounds; offers: {} merged, {} late, {} superseded, {} refused",
        tail.ledger.rounds_committed(),
        fates.merged,
        fates.late,
        fates.superseded,
        fates.refused
    ))
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
    use crate::sim::quiet;

    #[test]
    fn spans_are_read_in_seconds_minutes_and_hours_and_too_short_ones_are_refused() {
        assert_eq!(span("90s"), Ok(Duration::from_secs(90)));
        assert_eq!(span("10m"), Ok(Duration::from_secs(600)));
        assert_eq!(span("2h"), Ok(Duration::from_secs(7200)));
        for text in ["", "10", "m", "-1m", "1.5h", "14s", "8000h"] {
            assert!(span(text).expect_err(text).contains("such as 90s"), "{text}");
        }
    }

    #[test]
    fn the_shortest_span_has_blows() {
        assert!(!schedule(0, LENGTH_MIN, 4, true).is_empty() && quiet(LENGTH_MIN) * 2 < LENGTH_MIN);
    }

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
