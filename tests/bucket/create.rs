//! Create-if-absent, decided by reading back: one owner for each key, and everybody knows who.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use tombolo::bucket::{Created, create};
use tombolo::error::Kind;

use crate::race;
use crate::support::flaky::Flaky;
use crate::support::say;
use crate::support::store::everywhere;

/// Who races for one key.
const RACERS: usize = 16;

fn body(writer: usize) -> Bytes {
    format!("written by {writer}").into()
}

fn key(n: usize) -> Path {
    Path::from(format!("run/log/{n:020}.json"))
}

async fn stored(store: &dyn ObjectStore, key: &Path) -> Bytes {
    store.get(key).await.expect("the object").bytes().await.expect("its body")
}

#[test]
fn of_sixteen_who_create_one_key_one_has_it_and_all_others_are_given_its_bytes() {
    everywhere(|place| async move {
        let ends = race(RACERS, |i| {
            let store = place.store.clone();
            async move { create(&*store, &key(0), body(i)).await.expect("an answer") }
        })
        .await;
        let owners: Vec<usize> = (0..RACERS).filter(|&i| ends[i] == Created::Mine).collect();
        assert_eq!(owners.len(), 1, "owners {owners:?}");
        let winner = body(owners[0]);
        assert_eq!(stored(&*place.store, &key(0)).await, winner);
        let others = ends.iter().filter(|end| **end == Created::Other(winner.clone())).count();
        assert_eq!(others, RACERS - 1, "{ends:?}");
    });
}

#[test]
fn who_creates_the_same_bytes_again_is_told_that_they_are_its_own() {
    everywhere(|place| async move {
        // The first answer was lost: the writer asks again with the same nonce.
        for _ in 0..3 {
            assert_eq!(create(&*place.store, &key(0), body(7)).await.expect("an answer"), Created::Mine);
        }
        let other = create(&*place.store, &key(0), body(8)).await.expect("an answer");
        assert_eq!(other, Created::Other(body(7)));
        assert_eq!(stored(&*place.store, &key(0)).await, body(7));
    });
}

/// On paused time and one thread, so that a seed gives the same faults every time.
fn on_paused_time(body: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
    runtime.expect("a runtime").block_on(body);
}

#[test]
fn a_lone_writer_always_owns_what_it_creates_though_a_third_of_its_puts_fail_before_or_after_they_were_applied() {
    on_paused_time(async {
        let store = Flaky::new(Arc::new(InMemory::new()), 0.3, 1);
        for n in 0..2000 {
            let created = create(&store, &key(n), body(n)).await;
            assert_eq!(created.expect("six tries are enough at this seed"), Created::Mine, "key {n}");
        }
        say(&format!("{} puts failed", store.faults()));
        assert!(store.faults() > 500, "the store did fail: {} times", store.faults());
    });
}

#[test]
fn many_writers_on_a_failing_store_still_come_to_one_owner_for_each_key() {
    on_paused_time(async {
        for seed in 0..20 {
            let store = Arc::new(Flaky::new(Arc::new(InMemory::new()), 0.3, seed));
            for n in 0..20 {
                let ends = race(RACERS, |i| {
                    let store = store.clone();
                    async move { create(&*store, &key(n), body(i)).await }
                })
                .await;
                let winner = stored(&*store, &key(n)).await;
                let mut count = BTreeMap::new();
                for (i, end) in ends.into_iter().enumerate() {
                    let says = match end {
                        Ok(Created::Mine) => {
                            assert_eq!(winner, body(i), "seed {seed}, key {n}: {i} believes that the key is its own");
                            "mine"
                        }
                        Ok(Created::Other(bytes)) => {
                            assert_eq!(winner, bytes, "seed {seed}, key {n}: {i} was told of another owner");
                            "another's"
                        }
                        Err(error) => panic!("seed {seed}, key {n}: {}", error.chain()),
                    };
                    *count.entry(says).or_insert(0) += 1;
                }
                assert_eq!(count.get("mine"), Some(&1), "seed {seed}, key {n}: {count:?}");
            }
        }
    });
}

#[test]
fn a_store_that_takes_nothing_is_unavailable_and_the_error_names_the_key() {
    on_paused_time(async {
        let store = Flaky::down(Arc::new(InMemory::new()));
        let error = create(&store, &key(0), body(0)).await.expect_err("no put gets through");
        assert_eq!(error.kind(), Kind::Unavailable);
        assert!(error.chain().contains(key(0).as_ref()) && error.chain().contains("503"), "{}", error.chain());
    });
}
