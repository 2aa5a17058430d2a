//! When a pace is asked, and when a round is closed, skipped, or left open, step by step.

use super::*;
use crate::bucket::record::{Activate, Body, Entry, FORMAT, Failed, PolicyUse, Skip, Version};
use crate::bucket::{Active, Vector};
use crate::spec::OuterSpec;
use std::sync::Arc;

const STEP: Duration = Duration::from_millis(100);

/// A log of one fragment that has started.
fn ledger() -> Ledger {
    let policy =
        |name: &str, digit: &str| PolicyUse { name: name.into(), hash: digit.repeat(64), config: String::new() };
    let mut ledger = Ledger::new(1, 4, Active::new(&policy("c", "c"), &policy("m", "a"), &policy("p", "b")));
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
    let rules = Rules {
        fragments: 1,
        period: Period::of(&OuterSpec { sync_steps: 2, ..OuterSpec::default() }),
        overlap_steps: 1,
        quorum,
        islands: islands.len(),
    };
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

    /// Answers the question that is due, and gives what was asked.
    fn told(&mut self, ledger: &Ledger, now: Instant, decision: policy::Decision) -> View {
        let Decision::Ask(question) = self.decide(ledger, now) else { panic!("{:?}", self.decide(ledger, now)) };
        let view = question.view.clone();
        self.answer(*question, decision, now);
        view
    }

    /// The hearts of these islands beat once more.
    fn beat(&mut self, islands: &[&str], counter: u64, step_ms: f64, now: Instant) {
        for island in islands {
            self.heartbeat(island, (1, counter), true, step_ms, now);
        }
    }
}

const CLOSE: policy::Decision = policy::Decision::Close;

fn wait(ms: u64) -> policy::Decision {
    policy::Decision::Wait(Duration::from_millis(ms))
}

/// How long a machine waits before it looks again.
fn waits(machine: &Machine, ledger: &Ledger, now: Instant) -> Duration {
    match machine.decide(ledger, now) {
        Decision::Wait(wait) => wait,
        other => panic!("{other:?}"),
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
    let view = machine.told(&ledger, now, CLOSE);
    assert_eq!(view.offers.iter().map(|offer| offer.island.as_str()).collect::<Vec<_>>(), ["b"]);
    assert!(view.islands.len() == 2 && view.islands.iter().all(|island| island.answered), "{view:?}");
    let closed = Decision::Close("p closed it 0 ms after quorum, with every live island".into());
    assert_eq!(machine.decide(&ledger, now), closed);
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
    assert!(matches!(machine.decide(&ledger, now + STEP * 30), Decision::Ask(_)), "in time after all");
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
    assert!(matches!(machine.decide(&ledger, now + STARTING / 2), Decision::Wait(_)));
    assert!(matches!(machine.decide(&ledger, now + STARTING), Decision::Skip(_)));
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
fn a_pace_is_asked_once_the_round_has_its_quorum_is_far_enough_from_the_last_one_and_nobody_is_still_starting() {
    let (mut ledger, now) = (ledger(), clock::now());
    let mut machine = machine(2, &["a", "b", "c"], now);
    assert_eq!(machine.decide(&ledger, now), Decision::Idle);
    machine.good("a", 1, now);
    assert_eq!(machine.decide(&ledger, now), Decision::Idle, "one of two");
    let quorum = now + STEP;
    machine.good("b", 1, quorum);
    assert_eq!(waits(&machine, &ledger, quorum), STARTING, "the very first round waits for c");
    let later = quorum + STARTING;
    let view = machine.told(&ledger, later, wait(100));
    assert_eq!((view.round, view.quorum, view.since_quorum, view.overlap_steps), (1, 2, STARTING, 1));
    assert_eq!((view.step_ms, view.quorum_ms, view.sync_ms), (100.0, 0.0, 0.0));
    let offers: Vec<&str> = view.offers.iter().map(|offer| offer.island.as_str()).collect();
    assert_eq!(offers, ["a", "b"]);
    let island = |name: &str, answered| policy::Island { name: name.into(), keeps_up: true, answered, lag: None };
    assert_eq!(view.islands, [island("a", true), island("b", true), island("c", false)]);

    // A round later: a came 100 ms before b, by which the round had its quorum; c missed it.
    let offers = machine.chosen(1).iter().map(|facts| facts.record(0.0, Fate::Late)).collect();
    apply(&mut ledger, Body::Skip(Box::new(Skip { round: 1, offers, reason: "as good as a commit here".into() })));
    machine.committed(1, &ledger, later, later);
    machine.beat(&["a", "b", "c"], 2, 100.0, later);
    machine.good("a", 2, later);
    machine.good("c", 2, later);
    assert_eq!(waits(&machine, &ledger, later), STEP * 2, "H is two steps");
    let view = machine.told(&ledger, later + STEP * 30, CLOSE);
    assert_eq!((view.quorum_ms, view.since_quorum), (100.0, STEP * 30));
    let lag = |mean_ms| Some(Lag { mean_ms, deviation_ms: mean_ms });
    let lags: Vec<Option<Lag>> = view.islands.iter().map(|island| island.lag).collect();
    assert_eq!(lags, [lag(0.0), lag(0.0), None]);
    let closed = "p closed it 3000 ms after quorum, without b";
    assert_eq!(machine.decide(&ledger, later + STEP * 30), Decision::Close(closed.into()));
}

#[test]
fn an_answer_stands_until_its_time_is_over_or_there_is_something_new_to_know() {
    let (mut ledger, now) = (ledger(), clock::now());
    let mut machine = machine(1, &["a", "b", "c"], now);
    for island in ["a", "b"] {
        machine.good(island, 1, now);
    }
    let ms = |ms| Duration::from_millis(ms);
    let start = now + STARTING;
    machine.told(&ledger, start, wait(500));
    assert_eq!(waits(&machine, &ledger, start), ms(500));
    // Hearts that beat and steps that take a little longer are no news.
    machine.beat(&["a", "b", "c"], 2, 110.0, start);
    assert_eq!(waits(&machine, &ledger, start + ms(200)), ms(300));
    assert!(matches!(machine.decide(&ledger, start + ms(500)), Decision::Ask(_)), "its time is over");
    let asks = |change: &dyn Fn(&mut Machine)| {
        let mut machine = machine.clone();
        change(&mut machine);
        matches!(machine.decide(&ledger, start + ms(200)), Decision::Ask(_))
    };
    assert!(!asks(&|_| ()));
    assert!(asks(&|m| m.good("c", 1, start)), "an offer came");
    assert!(asks(&|m| m.bad("c", 1, 1, start)), "c has answered");
    assert!(asks(&|m| m.refuse(&OfferId { round: 1, island: "b".into(), incarnation: 1 }, "bad")), "an offer went");
    assert!(asks(&|m| m.heartbeat("d", (1, 1), true, 100.0, start)), "an island came");
    assert!(asks(&|m| m.heartbeat("c", (1, 3), false, 100.0, start)), "an island went");
    // A policy that was given up leaves no answer behind.
    let policy = PolicyUse { name: "other".into(), hash: "9".repeat(64), config: String::new() };
    let failed = Some(Failed { policy: ledger.active.at(Role::Pace, 1).clone(), why: "it trapped".into() });
    apply(&mut ledger, Body::Activate(Box::new(Activate { role: Role::Pace, policy, from_round: 1, failed })));
    machine.told(&ledger, start + ms(200), wait(0));
    assert_eq!(waits(&machine, &ledger, start + ms(200)), ASK_EVERY, "nobody is asked without end");
}

#[test]
fn a_round_that_has_lost_its_quorum_is_not_closed_whatever_the_pace_has_said() {
    let (ledger, now) = (ledger(), clock::now());
    let mut machine = machine(2, &["a", "b"], now);
    machine.good("a", 1, now);
    machine.good("b", 1, now);
    machine.told(&ledger, now, CLOSE);
    assert!(matches!(machine.decide(&ledger, now), Decision::Close(_)));
    machine.refuse(&OfferId { round: 1, island: "b".into(), incarnation: 1 }, "it cannot be merged");
    assert!(matches!(machine.decide(&ledger, now), Decision::Skip(_)), "both have answered, one may be merged");
}

#[test]
fn a_pace_that_never_closes_a_round_is_passed_over_after_ten_minutes_or_sixteen_steps() {
    for (step_ms, bound) in [(100.0, 600), (60_000.0, 960)] {
        let (ledger, now) = (ledger(), clock::now());
        let mut machine = machine(1, &["a", "b"], now);
        machine.good("a", 1, now);
        let mut at = |seconds: u64, counter| {
            let now = now + Duration::from_secs(seconds);
            machine.beat(&["a", "b"], counter, step_ms, now);
            if matches!(machine.decide(&ledger, now), Decision::Ask(_)) {
                machine.told(&ledger, now, wait(60_000));
            }
            machine.decide(&ledger, now)
        };
        for seconds in (4..bound).step_by(4) {
            assert!(matches!(at(seconds, seconds), Decision::Wait(_)), "{seconds} s");
        }
        let closed = format!("the syncer closed it over p {bound}000 ms after quorum, without b");
        assert_eq!(at(bound, bound), Decision::Close(closed));
    }
}

#[test]
fn a_reason_names_a_few_of_many_islands() {
    assert_eq!(with("all", &[]), "with all");
    assert_eq!(with("all", &["a", "b"]), "without a, b");
    let names: Vec<String> = (0..20).map(|i| i.to_string()).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    assert_eq!(with("all", &names), "without 0, 1, 2, 3, 4, 5, 6, 7 and 12 others");
}

#[test]
fn a_commit_opens_the_rounds_that_start_within_the_overlap_at_the_period_of_that_time() {
    // P 24, τ 2; H 8 at first, 24 after 50 rounds of each fragment: three rounds start in a step, then one.
    let rules = Rules::of(&Spec::default(), 24);
    let machine = Machine::new(rules, Duration::from_millis(500));
    let pace = |round| machine.pace(round, clock::now());
    assert_eq!(rules.first_window(), 6);
    assert_eq!([24, 24 * 26, 24 * 51].map(|round| pace(round).window), [6, 3, 2]);
    assert_eq!([24, 24 * 26, 24 * 51].map(|round| pace(round).sync_steps), [8.0, 16.0, 24.0]);
}

#[test]
fn one_slow_island_does_not_say_how_long_a_step_is() {
    let now = clock::now();
    let mut machine = machine(1, &["a", "b"], now);
    machine.beat(&["b"], 2, 10_000.0, now);
    assert_eq!(machine.step_ms(now), 100.0, "of two the faster");
    machine.beat(&["c"], 2, 10_000.0, now);
    assert_eq!(machine.step_ms(now), 10_000.0, "of three the one between");
    machine.islands.get_mut("c").expect("known").misses = MISSES_MAX;
    assert_eq!(machine.step_ms(now), 100.0, "who does not keep up is not asked");
    machine.islands.values_mut().for_each(|island| island.misses = MISSES_MAX);
    assert_eq!(machine.step_ms(now), 10_000.0, "unless nobody does");
}

#[test]
fn a_round_is_closed_with_the_first_offers_and_as_many_as_a_policy_is_made_for() {
    let now = clock::now();
    let mut machine = machine(1, &[], now);
    // The last by name come first.
    for i in (0..ISLANDS_MAX + 3).rev() {
        machine.good(&format!("i{i:03}"), 1, now + Duration::from_millis((ISLANDS_MAX + 3 - i) as u64));
    }
    let chosen: Vec<String> = machine.chosen(1).into_iter().map(|facts| facts.id.island.clone()).collect();
    assert_eq!(chosen.len(), ISLANDS_MAX);
    assert!(chosen.is_sorted() && chosen[0] == "i003", "{}", chosen[0]);
}
