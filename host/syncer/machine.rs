//! When a round is closed, and with which offers. Pure: offers, heartbeats and the time come in, a decision with its reason goes out.
//!
//! A round may be closed once K offers are in (quorum). It is closed when every island that keeps up has offered, or when the grace window is
//! over (Decoupled DiLoCo, method.md section 3: slack = τ·ξ_step − (ξ_quorum + ξ_sync), grace ≤ γ·slack), and not before the rounds are
//! H·ξ_step/P apart. With a store in between a round trip can be longer than τ steps, and the paper's grace is then nothing: near-equal islands
//! would be merged one at a time. **Breadth before freshness**: the window is at least as long as the islands that keep up have needed lately,
//! up to [`GRACE_STEPS_MAX`] steps; rounds are then further apart, and nobody waits for it but the round itself.
//!
//! An offer that is turned down (refused, or from too old a base) never counts towards the quorum, but its island has answered: it cannot offer
//! for that round again, and is not waited for. Where a round has too few offers for its quorum and such answers are all that is still to be had
//! within the window, it is **skipped**: closed without a merge, so that every island learns what became of its offer and offers for the
//! fragment's next round.
//!
//! An island keeps up while its heartbeat moves and it has not missed [`MISSES_MAX`] rounds in a row; one that does not is not waited for,
//! but merged whenever its offer is there in time.

use super::offer::{Facts, Verdict};
use crate::bucket::record::{Fate, OfferRecord, Pace};
use crate::bucket::{Ledger, OfferId};
use crate::clock::{self, Duration, Instant};
use crate::spec::Spec;
use std::collections::{BTreeMap, BTreeSet};

/// Rounds in a row without an offer after which an island is no longer waited for.
const MISSES_MAX: u32 = 3;
/// The longest grace window, in inner steps.
const GRACE_STEPS_MAX: f64 = 8.0;
/// The grace window while nobody has said yet how long a step takes, and that of the very first round, for which islands are still starting.
const GRACE_UNKNOWN: Duration = Duration::from_secs(3);
/// Fates of other rounds' offers that one commit carries at most.
const RECORDS_MAX: usize = 256;
/// The longest inner step that is believed.
const STEP_MS_MAX: f64 = 3_600_000.0;
/// A heartbeat that has not moved for this long, and for this many beats, is a dead island's.
const DEAD_AFTER: Duration = Duration::from_secs(6);
const DEAD_BEATS: u32 = 12;

/// How long an acting syncer may get nothing done that it owes, before it leaves its role to another. Longer than any one fetch, put, or chunk
/// of a merge should take: whoever comes next would be no faster.
const NEGLECTED_AFTER: Duration = Duration::from_secs(120);
/// The longest time between two looks at a silent island's card.
const LOOK_MAX: Duration = Duration::from_secs(60);

/// How long after one look at an island's card the next is due, if it has been silent for so long: at once while it beats, ever more rarely
/// later, so that islands that are gone for good cost next to nothing.
pub fn next_look(silent: Duration) -> Duration {
    (silent / 8).min(LOOK_MAX)
}

/// Whether an acting syncer deserves its role. One that can beat but not, say, read offers would otherwise keep it for ever.
#[derive(Debug, Clone, Default)]
pub struct Duty {
    moved: u64,
    since: Option<Instant>,
}

impl Duty {
    /// Looks again: whether a round could be closed if it were not for this syncer's own work, and a count that grows with everything that it gets
    /// done. False once nothing has got done for [`NEGLECTED_AFTER`] although it was owed.
    pub fn is_done(&mut self, owes: bool, moved: u64, now: Instant) -> bool {
        if !owes || moved != self.moved || self.since.is_none() {
            (self.moved, self.since) = (moved, owes.then_some(now));
        }
        self.since.is_none_or(|since| now - since < NEGLECTED_AFTER)
    }
}

/// The outer loop's numbers that the syncer needs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rules {
    /// P.
    pub fragments: u64,
    /// H.
    pub sync_steps: u64,
    /// τ.
    pub overlap_steps: u64,
    /// K.
    pub quorum: usize,
    /// γ.
    pub grace_ratio: f64,
    /// Islands that the run was made for; the very first round waits a little for that many.
    pub islands: usize,
}

impl Rules {
    /// The rules of a run with this many fragments.
    pub fn of(spec: &Spec, fragments: usize) -> Rules {
        let outer = &spec.outer;
        Rules {
            fragments: fragments as u64,
            sync_steps: outer.sync_steps as u64,
            overlap_steps: outer.overlap_steps as u64,
            quorum: outer.quorum,
            grace_ratio: f64::from(outer.grace_ratio),
            islands: spec.islands,
        }
    }

    /// Rounds that are open at once: those that start within τ inner steps, at least one, at most one for each fragment.
    pub fn window(&self) -> u64 {
        (self.overlap_steps * self.fragments).div_ceil(self.sync_steps).clamp(1, self.fragments)
    }
}

/// What to do now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// Nothing to do until something new comes in.
    Idle,
    /// Look again after this long at the latest.
    Wait(Duration),
    /// Close the next round with the offers that are in, for this reason.
    Close(String),
    /// Close the next round without a merge, for this reason.
    Skip(String),
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

    /// Names of the islands that are waited for.
    pub fn expected(&self, now: Instant) -> Vec<&str> {
        self.live(now).filter(|(_, i)| i.misses < MISSES_MAX).map(|(name, _)| name.as_str()).collect()
    }

    /// An inner step of the live islands, in ms: their median, so that no single island decides; 0 while nobody has said.
    pub fn step_ms(&self, now: Instant) -> f64 {
        let mut steps: Vec<f64> = self.live(now).map(|(_, i)| i.step_ms).filter(|&ms| ms > 0.0).collect();
        steps.sort_by(f64::total_cmp);
        steps.get(steps.len() / 2).copied().unwrap_or(0.0)
    }

    /// How long a round stays open after its quorum.
    fn grace(&self, now: Instant) -> Duration {
        let step = self.step_ms(now);
        if step == 0.0 {
            return GRACE_UNKNOWN;
        }
        let slack = self.rules.overlap_steps as f64 * step - (self.quorum_ms + self.sync_ms);
        let paper = (self.rules.grace_ratio * slack).clamp(0.0, step);
        let needed = self
            .live(now)
            .filter(|(_, i)| i.misses < MISSES_MAX)
            .map(|(_, i)| i.lag.map_or(GRACE_STEPS_MAX * step, |(mean, deviation)| mean + 6.0 * deviation + 0.5 * step))
            .fold(0.0, f64::max);
        let ms = paper.max(needed.min(GRACE_STEPS_MAX * step));
        Duration::from_secs_f64(ms.max(1.0) / 1000.0)
    }

    /// What to do about the next round.
    pub fn decide(&self, ledger: &Ledger, now: Instant) -> Decision {
        let round = ledger.next_round;
        let mut seen: Vec<Instant> = self.of_round(round).map(|(_, (_, at))| *at).collect();
        seen.sort();
        // Where too few may be merged, the window is counted from the first answer that was turned down; without one there is nothing to end.
        let quorum = seen.get(self.rules.quorum - 1).copied();
        let Some(from) = quorum.or_else(|| self.turned_down(round).map(|(_, at)| *at).min()) else {
            return Decision::Idle;
        };
        let wait = |until: Instant| Decision::Wait(until - now);
        let end = |reason: String| match quorum {
            Some(_) => Decision::Close(reason),
            None => Decision::Skip(format!("{} of {} offers may be merged; {reason}", seen.len(), self.rules.quorum)),
        };
        if let Some(due) = self.due_at
            && now < due
        {
            return wait(due);
        }
        let answers = seen.len() + self.turned_down(round).count();
        if ledger.rounds_committed() == 0 && answers < self.rules.islands && now - from < GRACE_UNKNOWN {
            return wait(from + GRACE_UNKNOWN);
        }
        let expected = self.expected(now);
        // A skip has no hurry: where nobody is known who could have answered, its round stays open for the whole window.
        let known = quorum.is_some() || !expected.is_empty();
        let missing: Vec<&str> = expected.into_iter().filter(|name| !self.has_answered(name, round)).collect();
        if missing.is_empty() && known {
            return end("every island that keeps up is in".into());
        }
        let grace = self.grace(now);
        if now - from >= grace {
            let without = if missing.is_empty() { String::new() } else { format!(" without {}", missing.join(", ")) };
            return end(format!("the grace window of {:.0} ms is over{without}", clock::ms(grace)));
        }
        wait(from + grace)
    }

    /// Whether an island has offered for a round, or cannot any more in its present life.
    fn has_answered(&self, name: &str, round: u64) -> bool {
        let life = self.islands.get(name).map_or(0, |island| island.beat.0);
        self.of_round(round).any(|(id, _)| id.island == name)
            || self.turned_down(round).any(|(record, _)| record.id.island == name && record.id.incarnation >= life)
    }

    /// Offers for a round that were turned down, and whose islands wait for its end. One that a newer life supersedes has nobody who waits.
    fn turned_down(&self, round: u64) -> impl Iterator<Item = &(OfferRecord, Instant)> {
        self.pending.iter().filter(move |(record, _)| record.id.round == round && record.fate != Fate::Superseded)
    }

    /// Whether the next round could be closed if it were not for this syncer's own work: what was decided is still to be done, or its quorum is
    /// listed, with `unfetched` offers that are still to be fetched.
    pub fn owes(&self, ledger: &Ledger, unfetched: usize, now: Instant) -> bool {
        let good = self.of_round(ledger.next_round).count();
        let decided = matches!(self.decide(ledger, now), Decision::Close(_) | Decision::Skip(_));
        decided || (good < self.rules.quorum && good + unfetched >= self.rules.quorum)
    }

    fn of_round(&self, round: u64) -> impl Iterator<Item = (&OfferId, &(Facts, Instant))> {
        self.good.iter().filter(move |(id, _)| id.round == round)
    }

    /// The offers that a round is closed with, in order of island.
    pub fn chosen(&self, round: u64) -> Vec<&Facts> {
        self.of_round(round).map(|(_, (facts, _))| facts).collect()
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

    /// The pace that a commit made now carries.
    pub fn pace(&self, now: Instant) -> Pace {
        let step_ms = self.step_ms(now);
        let spacing = if self.spacing_ms > 0.0 { self.spacing_ms } else { step_ms };
        let asked = self.rules.sync_steps as f64;
        let sync_steps =
            if step_ms > 0.0 { (self.rules.fragments as f64 * spacing / step_ms).max(asked) } else { asked };
        Pace {
            window: self.rules.window(),
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
        self.closed(|name| seen.iter().any(|(s, _)| s == name), closed_at, now);
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
        self.closed(|name| good.iter().any(|g| g == name), closed_at, now);
        self.settle(ledger);
    }

    /// Books the end of a round, to which the islands of `was_in` have brought an offer that may be merged.
    fn closed(&mut self, was_in: impl Fn(&str) -> bool, closed_at: Instant, now: Instant) {
        let absent: Vec<String> = self.expected(now).iter().filter(|n| !was_in(n)).map(|n| n.to_string()).collect();
        for name in absent {
            self.islands.get_mut(&name).expect("expected islands are known").misses += 1;
        }
        let apart = Duration::from_secs_f64(
            self.rules.sync_steps as f64 * self.step_ms(now) / self.rules.fragments as f64 / 1000.0,
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
