//! How often an island offers.

use super::*;
use crate::bucket::Active;
use crate::bucket::record::{Body, Entry, FORMAT, PolicyUse};
use crate::spec::OuterSpec;

/// An island of a run that has just started.
fn machine(fragments: usize, sync_steps: usize) -> Machine {
    growing(fragments, sync_steps, 0)
}

fn growing(fragments: usize, sync_steps: usize, sync_warmup: u64) -> Machine {
    let period = Period::of(&OuterSpec { sync_steps, sync_warmup, overlap_steps: 0, ..OuterSpec::default() });
    let policy = |digit: &str| PolicyUse { name: "p".into(), hash: digit.repeat(64), config: String::new() };
    let mut ledger = Ledger::new(fragments, 4, Active::new(&policy("a"), &policy("b"), &policy("c")));
    let version = |round| Version { round, hash: "0".repeat(64), state: None, step: None };
    let body = Body::Start { versions: (0..fragments as u64).map(version).collect(), window: fragments as u64 };
    let seq = ledger.next;
    let entry = Entry { format: FORMAT, seq, nonce: "n".into(), writer: "w".into(), term: 0, body };
    ledger.apply(seq, &entry).expect("it extends the log");
    Machine::new("island", 1, Rules { fragments, period, staleness_max: 4 }, &ledger)
}

/// One step, and the rounds that are offered for after it.
fn step(machine: &mut Machine) -> Vec<u64> {
    machine.stepped(8);
    std::iter::from_fn(|| machine.offer_due(false)).map(|due| due.round).collect()
}

#[test]
fn an_island_offers_p_fragments_in_h_steps_whether_one_divides_the_other_or_not() {
    for (fragments, sync_steps) in [(24, 24), (21, 24), (24, 16), (24, 13), (6, 24), (24, 12), (7, 3), (1, 500)] {
        let mut machine = machine(fragments, sync_steps);
        let mut offers = 0;
        for _ in 0..10 * sync_steps {
            for round in step(&mut machine) {
                offers += 1;
                machine.skip(round, fragments as u64);
            }
        }
        assert_eq!(offers, 10 * fragments, "P {fragments}, H {sync_steps}");
    }
}

#[test]
fn an_island_offers_as_often_as_the_period_of_the_round_says() {
    // H 2 for a fragment's first round, then 4 and from then on 6: P offers in 2, 4, 6, 6 steps.
    let mut machine = growing(4, 6, 2);
    let mut offered = Vec::new();
    for boundary in 1..=18 {
        for round in step(&mut machine) {
            offered.push((round, boundary));
            machine.skip(round, 4);
        }
    }
    let last_of =
        |version: u64| offered.iter().find(|(round, _)| *round == 4 * version + 3).map(|(_, boundary)| *boundary);
    assert_eq!([1, 2, 3, 4].map(last_of), [2, 6, 12, 18].map(Some), "{offered:?}");
}

#[test]
fn offers_that_were_not_made_are_not_made_up_for() {
    let mut machine = machine(24, 16);
    let open: Vec<u64> = (0..40).flat_map(|_| step(&mut machine)).collect();
    assert_eq!(open, (24..48).collect::<Vec<u64>>(), "the rounds that were open");
    for round in open {
        machine.skip(round, 24);
    }
    assert!(step(&mut machine).len() <= 2, "P / H is 1.5");
}

#[test]
fn an_island_that_had_nothing_to_offer_for_offers_as_soon_as_it_has() {
    for waited in 20..24 {
        let mut machine = machine(4, 8);
        let open: Vec<u64> = (0..waited).flat_map(|_| step(&mut machine)).collect();
        assert_eq!(open.len(), 4);
        machine.skip(open[0], 4);
        assert_eq!(step(&mut machine), [8], "after {waited} steps");
    }
}
