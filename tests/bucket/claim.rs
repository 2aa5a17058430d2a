//! Claims and small records: lives of an island, blocks of data, the run itself, heartbeats, policies.

use std::collections::BTreeSet;

use bytes::Bytes;
use object_store::ObjectStoreExt;
use tombolo::bucket::policy::{Listed, Pushed};
use tombolo::bucket::record::{Beat, Card, FORMAT, IslandState, PolicyUse, RunRecord};
use tombolo::bucket::{Policies, key};
use tombolo::error::Kind;
use tombolo::nonce::nonce;
use tombolo::policy::{Hash, Limits, Role, Runtime, bundled_wasm};
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

#[test]
fn a_claim_whose_answer_was_lost_is_its_own_when_it_is_made_again() {
    everywhere(|place| async move {
        let bucket = bucket(&place);
        assert!(bucket.claim_block(0, "a", 2).await.expect("an answer"));
        assert!(bucket.claim_block(0, "a", 2).await.expect("an answer"), "the same life");
        assert!(!bucket.claim_block(0, "a", 3).await.expect("an answer"), "another life");
        assert!(!bucket.claim_block(0, "b", 2).await.expect("an answer"), "another island");
        let taken = async || bucket.take_over_block(0, "a", "b", 1).await.expect("an answer");
        assert_eq!((taken().await, taken().await), (Some(1), Some(1)));
        assert_eq!(bucket.take_over_block(0, "a", "c", 1).await.expect("an answer"), None);
        for (block, life) in [(1, 1), (2, 2), (3, 4)] {
            assert!(bucket.claim_block(block, "a", life).await.expect("an answer"));
        }
        let held = async |from, lives| bucket.blocks_held_from(from, "a", lives).await.expect("listed");
        assert_eq!((held(0, 1..=2).await, held(2, 1..=9).await), (vec![1, 2], vec![2, 3]), "0 is b's now");
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
        down: None,
        pace: policy("adaptive-grace"),
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
        let hash = bucket.policies().put(b"some component").await.expect("written");
        assert_eq!(
            bucket.policies().put(b"some component").await.expect("written"),
            hash,
            "the same bytes, the same name"
        );
        assert_eq!(bucket.policies().component(&hash).await.expect("read"), b"some component".as_slice());
        place.store.put(&key::policy(&hash), "another component".into()).await.expect("written");
        assert_eq!(bucket.policies().component(&hash).await.expect_err("damaged").kind(), Kind::Corrupt);
        // Whoever has the right bytes mends it.
        bucket.policies().put(b"some component").await.expect("written");
        assert_eq!(bucket.policies().component(&hash).await.expect("read"), b"some component".as_slice());
        assert_eq!(bucket.policies().component(&"0".repeat(64)).await.expect_err("absent").kind(), Kind::Corrupt);
        assert_eq!(bucket.policies().component("../run.json").await.expect_err("no hash").kind(), Kind::Corrupt);
    });
}

#[test]
fn only_what_is_admitted_is_stored_and_a_card_speaks_for_its_own_component_alone() {
    everywhere(|place| async move {
        let policies = Policies::new(place.store.clone());
        let cache = tempfile::tempdir().expect("a folder");
        let runtime = Runtime::new(Limits::default(), Some(cache.path().join("code"))).expect("an engine");
        let mean = Bytes::from_static(bundled_wasm("mean").expect("bundled"));
        let push = async |config: &str| policies.push(&runtime, mean.clone(), config).await;

        let refused = push(r#"{"speed": 1}"#).await.expect("an answer");
        assert!(matches!(&refused, Pushed::Refused(card) if !card.is_admitted()), "{refused:?}");
        assert_eq!(push("[]").await.expect_err("no object").kind(), Kind::Invalid);
        let other = policies.push(&runtime, Bytes::from_static(b"GIF89a"), "").await;
        assert_eq!(other.expect_err("no component").kind(), Kind::Invalid);
        assert_eq!(policies.list(None, 9).await.expect("listed"), [], "what is refused leaves nothing");

        let Pushed::New(card) = push("").await.expect("pushed") else { panic!("it was not there") };
        // What speeds are measured is a matter of chance, so a second examination would show in the bytes.
        let stored = async || place.store.get(&key::policy_card(&card.policy.to_string())).await?.bytes().await;
        let first = stored().await.expect("a card");
        assert!(matches!(push(" {} ").await.expect("pushed"), Pushed::Known(_)));
        assert_eq!(stored().await.expect("a card"), first, "not examined again");
        let Pushed::Known(both) = push(r#"{"momentum": 0.5}"#).await.expect("pushed") else { panic!("it was there") };
        assert!(both.admits(Role::Merge, "") && both.admits(Role::Merge, r#"{"momentum":0.5}"#), "{both:?}");
        assert!(!both.admits(Role::Codec, "") && !both.admits(Role::Merge, r#"{"momentum":0.6}"#));
        let both = policies.card(card.policy).await.expect("an answer").expect("a card");
        let listed = Listed { policy: card.policy, component_bytes: mean.len() as u64, card: Some(both.clone()) };
        assert_eq!(policies.list(None, 9).await.expect("listed"), std::slice::from_ref(&listed));
        assert_eq!(policies.list(Some(card.policy), 9).await.expect("listed"), [], "after the last one");

        // Not admitted: a card for another component, one that says that it was refused, one that is none; and no card at all.
        let key = key::policy_card(&card.policy.to_string());
        let mut foreign = both.clone();
        foreign.policy = Hash::of(b"another");
        let Pushed::Refused(refused) = refused else { panic!("see above") };
        for bytes in [serde_json::to_vec(&foreign), serde_json::to_vec(&refused), Ok(b"{".to_vec())] {
            place.store.put(&key, bytes.expect("serialises").into()).await.expect("written");
            let bare = Listed { card: None, ..listed.clone() };
            assert_eq!(policies.list(None, 9).await.expect("listed"), [bare]);
        }
        place.store.delete(&key).await.expect("deleted");
        assert_eq!(policies.card(card.policy).await.expect("an answer"), None);
        assert!(matches!(push("").await.expect("pushed"), Pushed::Known(_)), "its component was there");
        let mended = policies.card(card.policy).await.expect("an answer");
        assert!(mended.is_some_and(|card| card.admits(Role::Merge, "")), "whoever pushes it mends it");
    });
}
