//! When a round is closed, and with which offers. Pure: offers, heartbeats and the time come in, a decision with its reason goes out.
//!
//! A round may be closed once K offers are in (quorum) and it is H·ξ_step/P after the one before; the very first one waits a little for islands that are still
//! starting. From then on the **pace policy** is asked (`wit/policy.wit`), with all that is known here: its answer stands until its time is over or until
//! there is something new to know. It decides between breadth and freshness; nobody waits for it but the round. Whatever it says, the round is closed once it
//! could have been for [`OPEN_MAX`], or [`OPEN_STEPS_MAX`] inner steps where those are longer.
//!
//! An offer that is turned down (refused, or from too old a base) never counts towards the quorum, but its island has answered: it cannot offer
//! for that round again, and is not waited for. Where a round has too few offers for its quorum and such answers are all that is still to be had
//! within [`SKIP_STEPS`] inner steps, it is **skipped**: closed without a merge, so that every island learns what became of its offer and offers for the
//! fragment's next round.
//!
//! An island keeps up while its heartbeat moves and it has not missed [`MISSES_MAX`] rounds in a row; no round is kept from being skipped for one that does not, and
//! a pace is told, but it is merged whenever its offer is there in time.

use super::offer::{Facts, UNCLAIMED, Verdict};
use crate::bucket::record::{Fate, OfferRecord, Pace, PolicyUse};
use crate::bucket::{Ledger, OfferId};
use crate::clock::{self, Duration, Instant};
use crate::outer::Period;
use crate::policy::{self, Lag, Role, View};
use crate::spec::{ISLANDS_MAX, Spec};
use std::collections::{BTreeMap, BTreeSet};

/// Rounds in a row without an offer after which an island no longer keeps up.
const MISSES_MAX: u32 = 3;
/// How long a round that may be closed stays open at most, whatever the pace policy says: the longer of the two.
const OPEN_MAX: Duration = Duration::from_secs(600);
const OPEN_STEPS_MAX: f64 = 16.0;
/// Inner steps that a round without a quorum stays open after its first answer.
const SKIP_STEPS: f64 = 8.0;
/// The same while nobody has said yet how long a step takes; also how long the very first round is kept open for islands that are still starting.
const STARTING: Duration = Duration::from_secs(3);
/// The shortest time after which a pace policy is asked again.
const ASK_EVERY: Duration = Duration::from_millis(1);
/// Names that one reason lists at most.
const NAMES_MAX: usize = 8;
/// Fates of other rounds' offers that one commit carries at most.
const RECORDS_MAX: usize = 256;
/// The longest inner step that is believed.
const STEP_MS_MAX: f64 = 3_600_000.0;
/// A heartbeat that has not moved for this long, and for this many beats, is a dead island's.
const DEAD_AFTER: Duration = Duration::from_secs(6);
const DEAD_BEATS: u32 = 12;

/// The outer loop's numbers that the syncer needs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rules {
    /// P.
    pub fragments: u64,
    /// H.
    pub period: Period,
    /// τ.
    pub overlap_steps: u64,
    /// K.
    pub quorum: usize,
    /// Islands that the run was made for; the very first round waits a little for that many.
    pub islands: usize,
}

impl Rules {
    /// The rules of a run with this many fragments.
    pub fn of(spec: &Spec, fragments: usize) -> Rules {
        let outer = &spec.outer;
        Rules {
            fragments: fragments as u64,
            period: Period::of(outer),
            overlap_steps: outer.overlap_steps as u64,
            quorum: outer.quorum,
            islands: spec.islands,
        }
    }

    /// Inner steps between the offers of a fragment for `round` and for its round before (H).
    pub fn sync_steps(&self, round: u64) -> u64 {
        self.period.before(round, self.fragments)
    }

    /// Rounds that are open when the run starts.
    pub fn first_window(&self) -> u64 {
        self.window(self.fragments)
    }

    /// Rounds that are open at once when `round` is the first of them: those that start within τ inner steps, at least one, at most one for each fragment.
    fn window(&self, round: u64) -> u64 {
        (self.overlap_steps * self.fragments).div_ceil(self.sync_steps(round)).clamp(1, self.fragments)
    }
}

/// What to do now.
#[derive(Debug, Clone, PartialEq)]
pub enum Decision {
    /// Nothing to do until something new comes in.
    Idle,
    /// Look again after this long at the latest.
    Wait(Duration),
    /// Ask the pace policy, and take its answer in ([`Machine::answer`]).
    Ask(Box<Question>),
    /// Close the next round with the offers that are in, for this reason.
    Close(String),
    /// Close the next round without a merge, for this reason.
    Skip(String),
}

/// What a pace policy is asked.
#[derive(Debug, Clone, PartialEq)]
pub struct Question {
    /// Which policy, with its configuration.
    pub pace: PolicyUse,
    /// What it is told.
    pub view: View,
}

impl Question {
    /// Whether this is asked for no other reason than that time has passed.
    fn tells_nothing_new(&self, before: &Question) -> bool {
        let (view, then) = (&self.view, &before.view);
        self.pace == before.pace
            && view.round == then.round
            && view.offers == then.offers
            && view.islands == then.islands
            && (view.step_ms > 0.0) == (then.step_ms > 0.0)
    }
}

/// What a pace policy answered, and when it is to be asked again if there is nothing new to know.
#[derive(Debug, Clone)]
struct Answer {
    question: Question,
    decision: policy::Decision,
    until: Instant,
}

#[derive(Debug, Clone)]
struct Island {
    beat: (u64, u64),
    moved_at: Instant,
    training: bool,
    step_ms: f64,
    misses: u32,
    /// Mean and mean deviation of how long after the quorum its offers come, in ms.
    lag: Option<(f64, f64)>,
}

/// The syncer's view of its rounds.
#[derive(Debug, Clone)]
pub struct Machine {
    rules: Rules,
    /// How long an island's heartbeat may stand still.
    dead_after: Duration,
    /// Offers that may be merged, of rounds not committed yet, with the time when each was seen.
    good: BTreeMap<OfferId, (Facts, Instant)>,
    /// Fates that the next entry has to carry, with the time when each offer was seen.
    pending: Vec<(OfferRecord, Instant)>,
    seen: BTreeSet<OfferId>,
    islands: BTreeMap<String, Island>,
    quorum_ms: f64,
    sync_ms: f64,
    spacing_ms: f64,
    due_at: Option<Instant>,
    committed_at: Option<Instant>,
    /// What the pace policy said last.
    answer: Option<Answer>,
}

/// With or without whom a round is ended, in words.
fn with(all: &str, missing: &[&str]) -> String {
    let listed = missing.iter().take(NAMES_MAX).copied().collect::<Vec<_>>().join(", ");
    match missing.len() {
        0 => format!("with {all}"),
        more if more > NAMES_MAX => format!("without {listed} and {} others", more - NAMES_MAX),
        _ => format!("without {listed}"),
    }
}

fn average(old: f64, new: f64) -> f64 {
    if old == 0.0 { new } else { old + 0.1 * (new - old) }
}

impl Machine {
    /// A syncer that has seen nothing, in a bucket where hearts beat every `beat_every`.
    pub fn new(rules: Rules, beat_every: Duration) -> Machine {
        Machine {
            rules,
            dead_after: DEAD_AFTER.max(beat_every * DEAD_BEATS),
            good: BTreeMap::new(),
            pending: Vec::new(),
            seen: BTreeSet::new(),
            islands: BTreeMap::new(),
            quorum_ms: 0.0,
            sync_ms: 0.0,
            spacing_ms: 0.0,
            due_at: None,
            committed_at: None,
            answer: None,
        }
    }

    /// Whether this offer is new and has no fate; asked before it is fetched.
    pub fn is_new(&self, id: &OfferId, ledger: &Ledger) -> bool {
        !self.seen.contains(id) && !ledger.is_decided(id.round, &id.island, id.incarnation)
    }

    /// Takes in what the firewall said of an offer.
    pub fn offer(&mut self, id: OfferId, verdict: Verdict, newest_incarnation: u64, now: Instant) {
        if !self.seen.insert(id.clone()) {
            return;
        }
        match verdict {
            Verdict::Decided(record) => self.pending.push((record, now)),
            Verdict::Good(facts) if id.incarnation < newest_incarnation => {
                self.pending.push((facts.record(0.0, Fate::Superseded), now));
            }
            Verdict::Good(facts) => {
                self.good.insert(id.clone(), (facts, now));
                self.supersede(&id);
            }
        }
    }

    /// Of one island's offers for one round, only the newest life's counts.
    fn supersede(&mut self, id: &OfferId) {
        let same = |other: &OfferId| other.round == id.round && other.island == id.island;
        let newest = self.good.keys().filter(|o| same(o)).map(|o| o.incarnation).max().unwrap_or(0);
        let old: Vec<OfferId> = self.good.keys().filter(|o| same(o) && o.incarnation < newest).cloned().collect();
        for id in old {
            self.turn_down(&id, Fate::Superseded);
        }
    }

    /// A good offer gets another fate.
    fn turn_down(&mut self, id: &OfferId, fate: Fate) {
        if let Some((facts, at)) = self.good.remove(id) {
            self.pending.push((facts.record(0.0, fate), at));
        }
    }

    /// Takes in a heartbeat: (life, counter), whether the island trains, and its step time.
    pub fn heartbeat(&mut self, island: &str, beat: (u64, u64), training: bool, step_ms: f64, now: Instant) {
        let known = self.islands.entry(island.to_string()).or_insert(Island {
            beat: (0, 0),
            moved_at: now,
            training,
            step_ms,
            misses: 0,
            lag: None,
        });
        if known.beat != beat {
            if known.beat.0 != beat.0 {
                (known.misses, known.lag) = (0, None);
            }
            (known.beat, known.moved_at) = (beat, now);
        }
        known.training = training;
        // A card is outside input, and what it says becomes a time to wait.
        if step_ms.is_finite() && step_ms > 0.0 {
            known.step_ms = step_ms.min(STEP_MS_MAX);
        }
    }

    fn live(&self, now: Instant) -> impl Iterator<Item = (&String, &Island)> {
        self.islands.iter().filter(move |(_, i)| i.training && now - i.moved_at < self.dead_after)
    }

    /// Names of the islands that keep up.
    pub fn expected(&self, now: Instant) -> Vec<&str> {
        self.live(now).filter(|(_, i)| i.misses < MISSES_MAX).map(|(name, _)| name.as_str()).collect()
    }

    /// An inner step of the islands that keep up (of all live ones, where none does), in ms: their median, of an even number the lower one, so that no single slow island
    /// decides; 0 while nobody has said.
    pub fn step_ms(&self, now: Instant) -> f64 {
        let told = |keeping_up: bool| {
            let islands = self.live(now).filter(move |(_, i)| !keeping_up || i.misses < MISSES_MAX);
            islands.map(|(_, i)| i.step_ms).filter(|&ms| ms > 0.0)
        };
        let mut steps: Vec<f64> = told(true).collect();
        if steps.is_empty() {
            steps.extend(told(false));
        }
        steps.sort_by(f64::total_cmp);
        steps.get(steps.len().saturating_sub(1) / 2).copied().unwrap_or(0.0)
    }

    /// So many inner steps; `unknown` while nobody has said how long one takes.
    fn steps(&self, count: f64, unknown: Duration, now: Instant) -> Duration {
        let step_ms = self.step_ms(now);
        if step_ms == 0.0 { unknown } else { Duration::from_secs_f64(count * step_ms / 1000.0) }
    }

    /// What to do about the next round.
    pub fn decide(&self, ledger: &Ledger, now: Instant) -> Decision {
        let round = ledger.next_round;
        let mut seen: Vec<Instant> = self.of_round(round).map(|(_, (_, at))| *at).collect();
        seen.sort();
        // Where too few may be merged, the time is counted from the first answer that was turned down; without one there is nothing to end.
        let quorum = seen.get(self.rules.quorum - 1).copied();
        let Some(from) = quorum.or_else(|| self.turned_down(round).map(|(_, at)| *at).min()) else {
            return Decision::Idle;
        };
        let wait = |until: Instant| Decision::Wait(until - now);
        if let Some(due) = self.due_at
            && now < due
        {
            return wait(due);
        }
        let answers = seen.len() + self.turned_down(round).count();
        if ledger.rounds_committed() == 0 && answers < self.rules.islands && now - from < STARTING {
            return wait(from + STARTING);
        }
        match quorum {
            Some(quorum) => self.paced(ledger, quorum, now),
            None => {
                // A skip has no hurry: where nobody is known who could have answered, its round stays open all the time.
                let expected = self.expected(now);
                let missing: Vec<&str> =
                    expected.iter().copied().filter(|name| !self.has_answered(name, round)).collect();
                let until = from + self.steps(SKIP_STEPS, STARTING, now);
                if (expected.is_empty() || !missing.is_empty()) && now < until {
                    return wait(until);
                }
                let few = format!("{} of {} offers may be merged", seen.len(), self.rules.quorum);
                let waited = clock::ms(now - from);
                Decision::Skip(format!(
                    "{few} {waited:.0} ms after the first answer, {}",
                    with("every island that keeps up", &missing)
                ))
            }
        }
    }

    /// What to do about the next round, which had its quorum at `quorum` and may be closed: as the pace policy says, within bounds.
    fn paced(&self, ledger: &Ledger, quorum: Instant, now: Instant) -> Decision {
        let view = self.view(ledger, quorum, now);
        let question = Question { pace: ledger.active.at(Role::Pace, ledger.next_round).clone(), view };
        let missing = question.view.islands.iter().filter(|island| !island.answered);
        let missing: Vec<&str> = missing.map(|island| island.name.as_str()).collect();
        let when =
            || format!("{:.0} ms after quorum, {}", clock::ms(now - quorum), with("every live island", &missing));
        let last =
            self.due_at.map_or(quorum, |due| due.max(quorum)) + self.steps(OPEN_STEPS_MAX, OPEN_MAX, now).max(OPEN_MAX);
        let stands = self.answer.as_ref().filter(|answer| question.tells_nothing_new(&answer.question));
        match stands {
            Some(Answer { decision: policy::Decision::Close, .. }) => {
                Decision::Close(format!("{} closed it {}", question.pace.name, when()))
            }
            _ if now >= last => Decision::Close(format!("the syncer closed it over {} {}", question.pace.name, when())),
            Some(answer) if now < answer.until => Decision::Wait(answer.until.min(last) - now),
            _ => Decision::Ask(Box::new(question)),
        }
    }

    /// Takes in what the pace policy answered to a question of [`decide`](Machine::decide), which was put to it at `asked_at`.
    pub fn answer(&mut self, question: Question, decision: policy::Decision, asked_at: Instant) {
        let until = match decision {
            policy::Decision::Wait(wait) => asked_at + wait.max(ASK_EVERY),
            policy::Decision::Close => asked_at,
        };
        self.answer = Some(Answer { question, decision, until });
    }

    /// What a pace policy is told of the next round.
    fn view(&self, ledger: &Ledger, quorum: Instant, now: Instant) -> View {
        let round = ledger.next_round;
        let lag = |(mean, deviation): (f64, f64)| Lag { mean_ms: mean as f32, deviation_ms: deviation as f32 };
        let island = |(name, island): (&String, &Island)| policy::Island {
            name: name.clone(),
            keeps_up: island.misses < MISSES_MAX,
            answered: self.has_answered(name, round),
            lag: island.lag.map(lag),
        };
        View {
            round,
            since_quorum: now - quorum,
            quorum: self.rules.quorum as u32,
            offers: self.of_round(round).map(|(_, (facts, _))| facts.contribution(ledger, round)).collect(),
            islands: self.live(now).map(island).collect(),
            step_ms: self.step_ms(now) as f32,
            quorum_ms: self.quorum_ms as f32,
            sync_ms: self.sync_ms as f32,
            overlap_steps: self.rules.overlap_steps.try_into().unwrap_or(u32::MAX),
        }
    }

    /// Whether an island has offered for a round, or cannot any more in its present life.
    fn has_answered(&self, name: &str, round: u64) -> bool {
        let life = self.islands.get(name).map_or(0, |island| island.beat.0);
        self.of_round(round).any(|(id, _)| id.island == name)
            || self.turned_down(round).any(|(record, _)| record.id.island == name && record.id.incarnation >= life)
    }

    /// Offers for a round that were turned down, and whose islands wait for its end. One that a newer life supersedes has nobody who waits, nor has one of a life
    /// that nobody claimed.
    fn turned_down(&self, round: u64) -> impl Iterator<Item = &(OfferRecord, Instant)> {
        let is_answer = |fate: &Fate| match fate {
            Fate::Superseded => false,
            Fate::Refused(reason) => reason != UNCLAIMED,
            _ => true,
        };
        self.pending.iter().filter(move |(record, _)| record.id.round == round && is_answer(&record.fate))
    }

    /// Whether the next round could be closed if it were not for this syncer's own work: what was decided is still to be done, or its quorum is
    /// listed, with `unfetched` offers that are still to be fetched.
    pub fn owes(&self, ledger: &Ledger, unfetched: usize, now: Instant) -> bool {
        let good = self.of_round(ledger.next_round).count();
        let decided = matches!(self.decide(ledger, now), Decision::Ask(_) | Decision::Close(_) | Decision::Skip(_));
        decided || (good < self.rules.quorum && good + unfetched >= self.rules.quorum)
    }

    fn of_round(&self, round: u64) -> impl Iterator<Item = (&OfferId, &(Facts, Instant))> {
        self.good.iter().filter(move |(id, _)| id.round == round)
    }

    /// The offers that a round is closed with, in order of island: the first [`ISLANDS_MAX`] that came. Policies are made for as many; more are late.
    pub fn chosen(&self, round: u64) -> Vec<&Facts> {
        let mut first: Vec<_> = self.of_round(round).collect();
        if first.len() > ISLANDS_MAX {
            first.sort_by_key(|(id, (_, at))| (*at, *id));
            first.truncate(ISLANDS_MAX);
            first.sort_by_key(|(id, _)| *id);
        }
        first.into_iter().map(|(_, (facts, _))| facts).collect()
    }

    /// An offer turned out not to be fit when its round was merged.
    pub fn refuse(&mut self, id: &OfferId, reason: &str) {
        self.turn_down(id, Fate::Refused(reason.to_string()));
    }

    /// Fates of other offers that the next entry carries: first those of the round that it closes.
    pub fn pending(&self, ledger: &Ledger) -> Vec<OfferRecord> {
        let open = ledger.open_rounds();
        let fresh =
            |r: &&OfferRecord| !ledger.is_decided(r.id.round, &r.id.island, r.id.incarnation) && r.id.round < open.end;
        let mut records: Vec<&OfferRecord> = self.pending.iter().map(|(record, _)| record).filter(fresh).collect();
        records.sort_by_key(|r| r.id.round != open.start);
        records.into_iter().take(RECORDS_MAX).cloned().collect()
    }

    /// The pace that a commit of `round` made now carries.
    pub fn pace(&self, round: u64, now: Instant) -> Pace {
        let step_ms = self.step_ms(now);
        let spacing = if self.spacing_ms > 0.0 { self.spacing_ms } else { step_ms };
        let asked = self.rules.sync_steps(round + 1) as f64;
        let sync_steps =
            if step_ms > 0.0 { (self.rules.fragments as f64 * spacing / step_ms).max(asked) } else { asked };
        Pace {
            window: self.rules.window(round + 1),
            sync_steps,
            step_ms,
            quorum_ms: self.quorum_ms,
            sync_ms: self.sync_ms,
            spacing_ms: self.committed_at.map_or(0.0, |at| clock::ms(now - at)),
        }
    }

    /// A round was committed (by this syncer): `closed_at` is when its closing was decided.
    pub fn committed(&mut self, round: u64, ledger: &Ledger, closed_at: Instant, now: Instant) {
        let mut seen: Vec<(String, Instant)> =
            self.of_round(round).map(|(id, (_, at))| (id.island.clone(), *at)).collect();
        seen.sort_by_key(|(_, at)| *at);
        if let Some(&(_, first)) = seen.first() {
            let quorum_at = seen[(self.rules.quorum - 1).min(seen.len() - 1)].1;
            self.quorum_ms = average(self.quorum_ms, clock::ms(quorum_at - first));
            for (name, at) in &seen {
                if let Some(island) = self.islands.get_mut(name) {
                    let lag = clock::ms(at.saturating_duration_since(quorum_at));
                    island.misses = 0;
                    island.lag = Some(island.lag.map_or((lag, lag), |(mean, deviation)| {
                        (mean + 0.1 * (lag - mean), deviation + 0.1 * ((lag - mean).abs() - deviation))
                    }));
                }
            }
        }
        self.closed(round, |name| seen.iter().any(|(s, _)| s == name), closed_at, now);
        self.sync_ms = average(self.sync_ms, clock::ms(now - closed_at));
        if let Some(before) = self.committed_at {
            self.spacing_ms = average(self.spacing_ms, clock::ms(now - before));
        }
        self.committed_at = Some(now);
        self.settle(ledger);
    }

    /// A round was skipped (by this syncer): `closed_at` is when that was decided.
    pub fn skipped(&mut self, round: u64, ledger: &Ledger, closed_at: Instant, now: Instant) {
        let good: Vec<String> = self.of_round(round).map(|(id, _)| id.island.clone()).collect();
        self.closed(round, |name| good.iter().any(|g| g == name), closed_at, now);
        self.settle(ledger);
    }

    /// Books the end of `round`, to which the islands of `was_in` have brought an offer that may be merged.
    fn closed(&mut self, round: u64, was_in: impl Fn(&str) -> bool, closed_at: Instant, now: Instant) {
        let absent: Vec<String> = self.expected(now).iter().filter(|n| !was_in(n)).map(|n| n.to_string()).collect();
        for name in absent {
            self.islands.get_mut(&name).expect("expected islands are known").misses += 1;
        }
        let apart = Duration::from_secs_f64(
            self.rules.sync_steps(round + 1) as f64 * self.step_ms(now) / self.rules.fragments as f64 / 1000.0,
        );
        // Behind the clock by one round at most, so that jitter does not add up and a long pause is not made up for.
        self.due_at = Some(self.due_at.map_or(closed_at + apart, |due| (due + apart).max(closed_at)));
    }

    /// Drops what has its fate: called after every entry that was read.
    pub fn settle(&mut self, ledger: &Ledger) {
        let late: Vec<OfferId> = self.good.keys().take_while(|id| id.round < ledger.next_round).cloned().collect();
        for id in late {
            if ledger.is_decided(id.round, &id.island, id.incarnation) {
                self.good.remove(&id);
            } else {
                self.turn_down(&id, Fate::Late);
            }
        }
        let outranked =
            |id: &OfferId| ledger.incarnations.get(&id.island).is_some_and(|&newest| id.incarnation < newest);
        let superseded: Vec<OfferId> = self.good.keys().filter(|id| outranked(id)).cloned().collect();
        for id in superseded {
            self.turn_down(&id, Fate::Superseded);
        }
        let oldest = ledger.next_round.saturating_sub(crate::bucket::MEMORY_ROUNDS);
        self.pending
            .retain(|(r, _)| r.id.round >= oldest && !ledger.is_decided(r.id.round, &r.id.island, r.id.incarnation));
        self.seen.retain(|id| id.round >= oldest);
    }
}

#[cfg(test)]
mod tests;
