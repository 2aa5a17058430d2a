//! Claims and small records: lives of an island, blocks of data, the run itself, heartbeats, policies.

use std::collections::BTreeSet;

use object_store::ObjectStoreExt;
use tombolo::bucket::key;
use tombolo::bucket::record::{Beat, Card, FORMAT, IslandState, PolicyUse, RunRecord};
use tombolo::error::Kind;
use tombolo::nonce::nonce;
use tombolo::spec::Spec;

use crate::support::store::everywhere;
use crate::{FRAGMENTS, bucket, race};

/// Who races for a claim. Each takes another number in turn, and SeaweedFS makes the losers of a key wait for seconds, so they are few.
const RACERS: usize = 4;

#[test]
fn lives_of_an_island_count_up_from_one_under_racing_claims() {
    everywhere(|place| async move {
        let bucket = bucket(&place);
        assert_eq!(bucket.newest_incarnation("a").await.expect("listed"), 0);
        let lives = race(RACERS, |_| {
            let bucket = bucket.clone();
            async move { bucket.claim_incarnation("a").await.expect("claimed") }
        })
        .await;
        let distinct: BTreeSet<u64> = lives.iter().copied().collect();
        assert_eq!(distinct, (1..=RACERS as u64).collect(), "{lives:?}");
        assert_eq!(bucket.newest_incarnation("a").await.expect("listed"), RACERS as u64);
        // Names that begin alike are different islands.
        assert_eq!(bucket.claim_incarnation("a-b").await.expect("claimed"), 1);
        assert_eq!(bucket.claim_incarnation("a").await.expect("claimed"), RACERS as u64 + 1);
    });
}

#[test]
fn a_block_of_data_goes_to_one_island_and_the_next_is_the_first_that_nobody_claimed() {
    everywhere(|place| async move {
        let bucket = bucket(&place);
        assert_eq!(bucket.next_block().await.expect("listed"), 0);
        let claimed = race(RACERS, |i| {
            let bucket = bucket.clone();
            async move {
                let mut mine = Vec::new();
                for block in 0..6 {
                    if bucket.claim_block(block, &format!("island-{i}"), 1).await.expect("an answer") {
                        mine.push(block);
                    }
                }
                mine
            }
        })
        .await;
        let mut all: Vec<u64> = claimed.concat();
        all.sort_unstable();
        assert_eq!(all, [0, 1, 2, 3, 4, 5], "every block has one owner: {claimed:?}");
        assert_eq!(bucket.next_block().await.expect("listed"), 6);
        assert!(!bucket.claim_block(5, "late", 1).await.expect("an answer"));
        assert!(bucket.claim_block(6, "late", 1).await.expect("an answer"));
    });
}

fn record(seed: u64) -> RunRecord {
    let policy = |name: &str| PolicyUse { name: name.into(), hash: "0".repeat(64), config: String::new() };
    RunRecord {
        format: FORMAT,
        nonce: nonce(),
        spec: Spec { run: "run".into(), seed, ..Spec::default() },
        layout: "layout".into(),
        corpus: "corpus".into(),
        fragments: FRAGMENTS,
        codec: policy("bf16"),
        merge: policy("rda"),
        chaos: false,
    }
}

#[test]
fn whoever_creates_a_run_gets_the_one_record_that_is_there() {
    everywhere(|place| async move {
        let bucket = bucket(&place);
        assert_eq!(bucket.run_record().await.expect("an answer"), None);
        let records = race(RACERS, |i| {
            let bucket = bucket.clone();
            async move { bucket.create_run(&record(i as u64)).await.expect("an answer") }
        })
        .await;
        let stored = bucket.run_record().await.expect("an answer").expect("a record");
        assert!(records.iter().all(|r| *r == stored), "{records:?}");
        let other = record(stored.spec.seed + 1);
        let differences = other.differences(&stored);
        assert_eq!(differences.len(), 1, "{differences:?}");
        assert!(differences[0].starts_with("spec.seed:"), "{differences:?}");
    });
}

#[test]
fn heartbeats_are_overwritten_by_their_owner_and_a_damaged_one_reads_as_none() {
    everywhere(|place| async move {
        let bucket = bucket(&place);
        assert_eq!(bucket.islands().await.expect("listed"), Vec::<String>::new());
        assert_eq!(bucket.card("a").await.expect("an answer"), None);
        let mut card = Card { format: FORMAT, island: "a".into(), incarnation: 1, counter: 1, ..Card::default() };
        for counter in 1..=3 {
            (card.counter, card.state, card.loss) = (counter, IslandState::Training, Some(2.5));
            bucket.put_card(&card).await.expect("written");
            assert_eq!(bucket.card("a").await.expect("an answer"), Some(card.clone()));
        }
        bucket.claim_incarnation("b").await.expect("claimed");
        assert_eq!(bucket.islands().await.expect("listed"), ["a", "b"]);
        place.store.put(&bucket.keys().card("a"), "{".into()).await.expect("written");
        assert_eq!(bucket.card("a").await.expect("an answer"), None);

        let beat = Beat { format: FORMAT, syncer: "s".into(), counter: 4, acting: Some(1) };
        assert_eq!(bucket.beat("s").await.expect("an answer"), None);
        bucket.put_beat(&beat).await.expect("written");
        assert_eq!(bucket.beat("s").await.expect("an answer"), Some(beat));
    });
}

#[test]
fn a_policy_is_read_only_if_its_bytes_are_those_that_its_name_promises() {
    everywhere(|place| async move {
        let bucket = bucket(&place);
        let hash = bucket.put_policy(b"some component").await.expect("written");
        assert_eq!(bucket.put_policy(b"some component").await.expect("written"), hash, "the same bytes, the same name");
        assert_eq!(bucket.policy(&hash).await.expect("read"), b"some component".as_slice());
        place.store.put(&key::policy(&hash), "another component".into()).await.expect("written");
        assert_eq!(bucket.policy(&hash).await.expect_err("damaged").kind(), Kind::Corrupt);
        // Whoever has the right bytes mends it.
        bucket.put_policy(b"some component").await.expect("written");
        assert_eq!(bucket.policy(&hash).await.expect("read"), b"some component".as_slice());
        assert_eq!(bucket.policy(&"0".repeat(64)).await.expect_err("absent").kind(), Kind::Corrupt);
        assert_eq!(bucket.policy("../run.json").await.expect_err("no hash").kind(), Kind::Corrupt);
    });
}
