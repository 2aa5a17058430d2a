//! When a round is closed, skipped, or left open, step by step.

use super::*;
use crate::bucket::record::{Body, Entry, FORMAT, PolicyUse, Skip, Version};
use crate::bucket::{Active, Vector};
use std::sync::Arc;

const STEP: Duration = Duration::from_millis(100);

/// A log of one fragment that has started.
fn ledger() -> Ledger {
    let policy = |digit: &str| PolicyUse { name: digit.into(), hash: digit.repeat(64), config: String::new() };
    let mut ledger = Ledger::new(1, 4, Active::new(&policy("c"), &policy("a")));
    let version = Version { round: 0, hash: "0".repeat(64), state: None, step: None };
    apply(&mut ledger, Body::Start { versions: vec![version], window: 1 });
    ledger
}

fn apply(ledger: &mut Ledger, body: Body) {
    let seq = ledger.next;
    let entry = Entry { format: FORMAT, seq, nonce: "n".into(), writer: "w".into(), term: 0, body };
    ledger.apply(seq, &entry).expect("it extends the log");
}

fn machine(quorum: usize, islands: &[&str], now: Instant) -> Machine {
    let rules =
        Rules { fragments: 1, sync_steps: 2, overlap_steps: 1, quorum, grace_ratio: 0.9, islands: islands.len() };
    let mut machine = Machine::new(rules, Duration::from_millis(500));
    for island in islands {
        machine.heartbeat(island, (1, 1), true, 100.0, now);
    }
    machine
}

fn facts(island: &str, incarnation: u64, round: u64) -> Facts {
    let id = OfferId { round, island: island.into(), incarnation };
    Facts {
        id,
        hash: String::new(),
        base: 0,
        tokens: 8,
        steps: 1,
        norm: 1.0,
        values: Arc::new(Vector::from(Vec::new())),
    }
}

impl Machine {
    fn good(&mut self, island: &str, round: u64, now: Instant) {
        let facts = facts(island, 1, round);
        self.offer(facts.id.clone(), Verdict::Good(facts), 1, now);
    }

    fn bad(&mut self, island: &str, incarnation: u64, round: u64, now: Instant) {
        let record = facts(island, incarnation, round).record(0.0, Fate::Refused("bad".into()));
        self.offer(record.id.clone(), Verdict::Decided(record), 1, now);
    }
}

#[test]
fn a_refused_offer_never_counts_towards_the_quorum_but_its_island_is_not_waited_for() {
    let (ledger, now) = (ledger(), clock::now());
    let mut machine = machine(1, &["a", "b"], now);
    assert_eq!(machine.decide(&ledger, now), Decision::Idle);
    machine.bad("a", 1, 1, now);
    assert!(matches!(machine.decide(&ledger, now), Decision::Wait(_)), "b may still offer");
    machine.good("b", 1, now);
    assert_eq!(machine.decide(&ledger, now), Decision::Close("every island that keeps up is in".into()));
    assert_eq!(machine.chosen(1).len(), 1);
    assert_eq!(machine.pending(&ledger).len(), 1, "the refusal is in the same commit");
}

#[test]
fn a_round_of_refused_offers_is_skipped_once_all_have_answered_or_the_window_is_over() {
    let (ledger, now) = (ledger(), clock::now());
    let mut machine = machine(1, &["a", "b"], now);
    machine.bad("a", 1, 1, now);
    let mut later = machine.clone();
    later.bad("b", 1, 1, now);
    assert!(matches!(later.decide(&ledger, now), Decision::Skip(_)), "both have answered");
    // Unknown lags count as eight steps; the first round waits three seconds for islands that are starting.
    assert!(matches!(machine.decide(&ledger, now + STEP * 29), Decision::Wait(_)));
    assert!(matches!(machine.decide(&ledger, now + STEP * 30), Decision::Skip(_)));
    machine.good("b", 1, now + STEP * 30);
    assert!(matches!(machine.decide(&ledger, now + STEP * 30), Decision::Close(_)), "in time after all");
}

#[test]
fn an_island_is_dead_after_six_seconds_or_twelve_beats_whichever_is_longer() {
    let now = clock::now();
    let at = |seconds| now + Duration::from_secs(seconds);
    for (beat_ms, dead) in [(4, 6), (500, 6), (2000, 24)] {
        let mut machine = Machine::new(machine(1, &[], now).rules, Duration::from_millis(beat_ms));
        machine.heartbeat("a", (1, 1), true, 100.0, now);
        assert_eq!(machine.live(at(dead - 1)).count(), 1, "beats of {beat_ms} ms");
        assert_eq!(machine.live(at(dead)).count(), 0, "beats of {beat_ms} ms");
    }
}

#[test]
fn a_life_that_is_followed_by_another_answers_for_nobody() {
    let (ledger, now) = (ledger(), clock::now());
    let mut machine = machine(1, &["a"], now);
    machine.heartbeat("a", (2, 1), true, 100.0, now);
    machine.bad("a", 1, 1, now);
    assert!(matches!(machine.decide(&ledger, now + STEP), Decision::Wait(_)), "life 2 may still offer");
    machine.bad("a", 2, 1, now);
    assert!(matches!(machine.decide(&ledger, now + STEP), Decision::Skip(_)));
}

#[test]
fn a_round_is_not_skipped_at_once_for_offers_of_islands_that_nobody_knows() {
    let (ledger, now) = (ledger(), clock::now());
    let mut machine = machine(1, &[], now);
    machine.bad("stranger", 1, 1, now);
    assert!(matches!(machine.decide(&ledger, now + GRACE_UNKNOWN / 2), Decision::Wait(_)));
    assert!(matches!(machine.decide(&ledger, now + GRACE_UNKNOWN), Decision::Skip(_)));
}

#[test]
fn a_skip_settles_its_offers_and_an_island_that_only_sends_bad_ones_is_no_longer_waited_for() {
    let (mut ledger, mut now) = (ledger(), clock::now());
    let mut machine = machine(1, &["a", "b"], now);
    for round in 1..=u64::from(MISSES_MAX) {
        machine.bad("a", 1, round, now);
        machine.bad("b", 1, round, now);
        now += STEP * 2;
        assert!(matches!(machine.decide(&ledger, now), Decision::Skip(_)), "round {round}");
        let offers = machine.pending(&ledger);
        assert_eq!(offers.len(), 2);
        apply(&mut ledger, Body::Skip(Box::new(Skip { round, offers, reason: "none".into() })));
        machine.skipped(round, &ledger, now, now);
        assert!(machine.pending(&ledger).is_empty());
        assert_eq!(machine.decide(&ledger, now), Decision::Idle);
    }
    assert!(machine.expected(now).is_empty());
}

#[test]
fn work_is_owed_once_a_quorum_is_listed_and_until_the_round_is_closed() {
    let (mut ledger, now) = (ledger(), clock::now());
    let mut machine = machine(2, &["a", "b"], now);
    assert!(!machine.owes(&ledger, 0, now), "nothing is offered");
    assert!(!machine.owes(&ledger, 1, now), "one offer is no quorum");
    assert!(machine.owes(&ledger, 2, now), "two are, if they can be fetched");
    machine.good("a", 1, now);
    assert!(!machine.owes(&ledger, 0, now) && machine.owes(&ledger, 1, now));
    machine.good("b", 1, now);
    assert!(machine.owes(&ledger, 0, now), "it is to be merged");
    machine.bad("a", 1, 2, now);
    let offers = machine.pending(&ledger);
    assert_eq!(offers.len(), 0, "round 2 is not open yet");
    let offers = machine.chosen(1).iter().map(|facts| facts.record(0.0, Fate::Late)).collect();
    apply(&mut ledger, Body::Skip(Box::new(Skip { round: 1, offers, reason: "elsewhere".into() })));
    machine.settle(&ledger);
    assert!(!machine.owes(&ledger, 0, now), "another syncer has closed the round");
}

#[test]
fn a_duty_is_neglected_only_when_nothing_moves_for_long_while_it_is_owed() {
    let start = clock::now();
    let at = |seconds| start + Duration::from_secs(seconds);
    let mut duty = Duty::default();
    assert!(duty.is_done(false, 0, at(0)) && duty.is_done(false, 0, at(1000)), "nothing is owed");
    assert!(duty.is_done(true, 0, at(1000)) && duty.is_done(true, 0, at(1119)));
    assert!(!duty.is_done(true, 0, at(1120)) && !duty.is_done(true, 0, at(5000)), "for 120 seconds");
    assert!(duty.is_done(true, 1, at(5001)) && duty.is_done(true, 1, at(5120)), "something moves again");
    assert!(duty.is_done(true, 2, at(5121)) && duty.is_done(true, 3, at(5240)), "and again");
    assert!(duty.is_done(false, 3, at(9000)) && duty.is_done(true, 3, at(9001)));
}

#[test]
fn a_silent_island_is_looked_at_ever_more_rarely() {
    let seconds = |s| Duration::from_secs(s);
    assert_eq!(next_look(seconds(0)), seconds(0));
    assert_eq!(next_look(seconds(80)), seconds(10));
    assert_eq!(next_look(seconds(100_000)), seconds(60));
}
