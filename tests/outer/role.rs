//! The role of the syncer, and what all roles together ask of a store.

use super::firewall::{beat, offer, put};
use super::{Constant, STEP, spec, world};
use crate::support::watched::Watched;
use std::sync::Arc;
use tombolo::bucket::{Bucket, Tail};
use tombolo::clock::{self, Duration};
use tombolo::error::Result;
use tombolo::island::Inner;
use tombolo::sim::{World, on_virtual_time};
use tombolo::syncer::{self, Desk};

/// `world` as seen through another store.
fn through(world: &World, store: Arc<Watched>) -> World {
    World { bucket: Bucket::new(store, &world.record.spec.run), ..world.clone() }
}

#[test]
fn a_syncer_that_beats_but_cannot_read_offers_leaves_its_role_to_one_that_can() {
    let (acted_first, ledger, waited) = on_virtual_time(31, async {
        let world = world(spec(1, "mean", "eta = 1\nmomentum = 0\n"), 2, 0).await?;
        let deaf =
            Watched::refusing(world.bucket.store().clone(), |(what, key)| what == "get" && key.contains("/offer/"));
        let deaf = Desk { id: "deaf".into(), ..through(&world, Arc::new(deaf)).desk(STEP) };
        tokio::spawn(async move { syncer::run(deaf, std::future::pending()).await.expect("it waits") });
        clock::sleep(STEP * 5).await;
        let acted_first = world.ledger().await?.acting;
        let able = Desk { id: "able".into(), ..world.desk(STEP) };
        tokio::spawn(async move { syncer::run(able, std::future::pending()).await.expect("it works") });
        // Nothing is owed while nothing is offered: it may keep the role for as long as it likes.
        clock::sleep(Duration::from_secs(600)).await;
        assert_eq!(world.ledger().await?.acting.as_deref(), Some("deaf"));
        let offered = clock::now();
        for round in 1..=3 {
            let (mut header, chunks) = offer(&world, "a", 1, [-1.0, -1.0]);
            (header.id.round, header.base) = (round, round - 1);
            put(&world, (header, chunks)).await?;
            while world.ledger().await?.next_round == round {
                clock::sleep(STEP).await;
            }
        }
        let waited = clock::now() - offered;
        clock::sleep(Duration::from_secs(600)).await;
        Ok((acted_first, world.ledger().await?, waited))
    })
    .unwrap();
    assert_eq!(acted_first.as_deref(), Some("deaf"));
    assert_eq!((ledger.acting.as_deref(), ledger.term), (Some("able"), 2), "and it does not come back");
    assert_eq!(ledger.rounds_committed(), 3);
    assert!(waited < Duration::from_secs(180), "{waited:?}");
}

/// Requests of a whole run of `islands` islands, per round, at each of these rounds.
fn requests(islands: usize, at: &[u64]) -> Vec<f64> {
    const ROUNDS: u64 = 40;
    on_virtual_time(32, async {
        let world = world(spec(4, "mean", "eta = 0.1\n"), 4, islands).await?;
        let store = Arc::new(Watched::new(world.bucket.store().clone()));
        let seen = through(&world, store.clone());
        let inner = |_: usize| -> Result<Box<dyn Inner>> {
            Ok(Box::new(Constant { parameters: vec![0.0; 4], gradient: vec![0.25; 4] }))
        };
        let sample = async {
            let empty = tombolo::bucket::Ledger::of(&world.record);
            let mut tail = Tail::new(empty);
            let mut reached = async |rounds: u64| -> Result<u64> {
                while tail.ledger.rounds_committed() < rounds {
                    tail.advance(&world.bucket, usize::MAX).await?;
                    clock::sleep(STEP / 10).await;
                }
                Ok(store.calls(|_| true))
            };
            let mut found = Vec::new();
            for &round in at {
                let before = reached(round).await?;
                found.push((reached(round + ROUNDS).await? - before) as f64 / ROUNDS as f64);
            }
            Ok(found)
        };
        tokio::select! {
            biased;
            found = sample => found,
            ended = seen.run(inner, Duration::from_secs(100_000)) => panic!("the run goes on: {ended:?}"),
        }
    })
    .unwrap()
}

#[test]
fn requests_of_a_round_do_not_grow_with_the_run_and_grow_linearly_with_the_islands() {
    let [early, late] = requests(4, &[50, 500])[..] else { panic!("two answers") };
    assert!((late / early - 1.0).abs() < 0.05, "{early} requests a round after 50 rounds, {late} after 500");
    let [two, six] = [2, 6].map(|islands| requests(islands, &[50])[0]);
    // From two to four islands as from four to six: within a twentieth of the whole.
    assert!(((early - two) - (six - early)).abs() < 0.05 * six, "{two}, {early} and {six} requests a round");
}

#[test]
fn cards_of_islands_that_have_been_silent_for_long_are_read_once_a_minute() {
    let reads = on_virtual_time(33, async {
        let world = world(spec(1, "mean", ""), 2, 0).await?;
        for i in 0..20 {
            beat(&world, &format!("gone-{i}"), 1).await?;
        }
        let store = Arc::new(Watched::new(world.bucket.store().clone()));
        let desk = through(&world, store.clone()).desk(STEP);
        tokio::spawn(async move { syncer::run(desk, std::future::pending()).await.expect("it works") });
        let cards = || store.calls(|(what, key)| what == "get" && key.ends_with("/card.json"));
        clock::sleep(Duration::from_secs(3600)).await;
        let before = cards();
        clock::sleep(Duration::from_secs(600)).await;
        Ok((cards() - before) as f64 / 20.0)
    })
    .unwrap();
    assert!((9.0..=11.0).contains(&reads), "{reads} reads of a card in ten minutes");
}
