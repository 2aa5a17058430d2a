//! Fleets under fire on virtual time, and every crash point of a scripted run. `tombolo sim --seeds N` does more seeds of the first.

use object_store::ObjectStoreExt;
use object_store::path::Path;
use serde_json::Value;
use std::collections::BTreeMap;
use tombolo::bucket::{Bucket, Keys};
use tombolo::clock::{self, Duration};
use tombolo::data::BLOCK_WINDOWS;
use tombolo::error::Result;
use tombolo::policy::{Limits, Runtime};
use tombolo::sim::toy::{self, STEP_WINDOWS};
use tombolo::sim::{Faults, Fleet, Role, on_virtual_time, simulate};
use tombolo::spec::Spec;

fn runtime() -> Runtime {
    Runtime::new(Limits::default(), None).expect("the policy runtime starts")
}

#[test]
fn five_hundred_fleets_under_fire_keep_every_invariant_and_go_on_once_healed() {
    let runtime = runtime();
    let (mut rounds, mut blows) = (0, 0);
    for seed in 0..500 {
        let report = simulate(seed, &runtime).unwrap_or_else(|e| panic!("{}", e.chain()));
        rounds += report.checked.rounds;
        blows += report.blows;
    }
    assert!(rounds > 500 * 10 && blows > 500 * 3, "{rounds} rounds, {blows} blows: the fleets did not do much");
}

#[test]
fn the_same_seed_gives_the_same_bytes() {
    let runtime = runtime();
    for seed in [3, 11, 42] {
        assert_eq!(simulate(seed, &runtime).unwrap(), simulate(seed, &runtime).unwrap());
    }
}

const CALM: Faults = Faults { before: 0.0, after: 0.0, truncated: 0.0, latency_ms: (1, 1) };

/// One island and one syncer until `rounds` rounds are committed. If the trap springs, both die at once and start again. Returns the calls made.
async fn scripted(trap: Option<(u64, bool)>, rounds: u64, runtime: &Runtime) -> Result<u64> {
    let mut spec = Spec { tokens: 1 << 50, islands: 1, ..Spec::default() };
    spec.outer.fragments = 2;
    spec.outer.sync_steps = 2;
    spec.outer.overlap_steps = 1;
    spec.keep.versions = 2;
    spec.keep.checkpoint_seconds = 1;
    let mut fleet = Fleet::new(5, spec, 2, runtime).await?;
    if let Some((call, after)) = trap {
        fleet.trap.set(call, after);
    }
    let roles = [Role::Island("a".into(), Duration::from_millis(100)), Role::Syncer];
    let mut processes: Vec<_> = roles.iter().map(|role| fleet.start(role.clone(), CALM)).collect();
    let springs = fleet.trap.clone();
    let done = async |fleet: &Fleet| -> Result<()> {
        while fleet.ledger().await?.rounds_committed() < rounds {
            clock::sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    };
    let died = tokio::select! {
        biased;
        () = springs.sprung() => true,
        ended = clock::timeout(Duration::from_secs(300), done(&fleet)) => {
            ended.expect("the run goes on")?;
            false
        }
    };
    let calls = fleet.trap.calls();
    if died {
        processes.clear();
        let before = log(&fleet).await?;
        for role in &roles {
            processes.push(fleet.start(role.clone(), CALM));
        }
        let ended = clock::timeout(Duration::from_secs(300), done(&fleet)).await;
        assert!(ended.is_ok(), "after a crash at {trap:?} the run does not go on");
        let after = log(&fleet).await?;
        assert_eq!(before[..], after[..before.len()], "after a crash at {trap:?} the log has changed");
    }
    fleet.check().await?;
    Ok(calls)
}

async fn log(fleet: &Fleet) -> Result<Vec<Vec<u8>>> {
    let mut entries = Vec::new();
    let keys = Keys::new("quickstart");
    while let Ok(found) = fleet.store.get(&keys.log(entries.len() as u64)).await {
        entries.push(found.bytes().await.expect("a store in memory answers").to_vec());
    }
    Ok(entries)
}

#[test]
fn dying_just_before_or_just_after_any_call_of_the_store_loses_nothing_that_was_committed() {
    let runtime = runtime();
    let calls = on_virtual_time(5, scripted(None, 6, &runtime)).unwrap();
    assert!(calls > 100, "{calls} calls");
    for call in 1..=calls {
        for after in [false, true] {
            on_virtual_time(5, scripted(Some((call, after)), 6, &runtime))
                .unwrap_or_else(|e| panic!("call {call}, after {after}: {}", e.chain()));
        }
    }
}

#[test]
fn what_a_dead_island_has_not_trained_on_is_taken_over_and_only_its_last_steps_are_seen_twice_or_never() {
    let runtime = runtime();
    on_virtual_time(6, async {
        let mut spec = Spec { tokens: 1 << 50, islands: 2, ..Spec::default() };
        spec.outer.fragments = 2;
        spec.outer.sync_steps = 2;
        let mut fleet = Fleet::new(6, spec, 2, &runtime).await?;
        let island = |name: &str| Role::Island(name.into(), Duration::from_millis(100));
        let _survivor = fleet.start(island("a"), CALM);
        let _syncer = fleet.start(Role::Syncer, CALM);
        let dead = fleet.start(island("b"), CALM);
        clock::sleep(Duration::from_millis(8_150)).await;
        drop(dead);
        clock::sleep(Duration::from_secs(100)).await;
        let bucket = Bucket::new(fleet.store.clone(), "quickstart");
        let held = bucket.card("a").await?.expect("it beats").held;
        let taken: BTreeMap<(u64, usize), u32> = fleet.seen.lock().unwrap().clone();
        let newest = taken.keys().map(|(block, _)| *block).max().expect("blocks were trained on");
        let done = (0..=newest).filter(|block| held.iter().all(|held| held.block != *block));
        let (mut never, mut twice) = (0, 0);
        for window in done.flat_map(|block| (0..BLOCK_WINDOWS).map(move |window| (block, window))) {
            match taken.get(&window) {
                None => never += 1,
                Some(1) => {}
                Some(_) => twice += 1,
            }
        }
        // At a step of 100 ms and a heartbeat every 500 ms at most five steps are not on the last one.
        assert_eq!(never, 0, "of the blocks that are done every window was trained on: {taken:?}");
        assert!(twice <= 5 * STEP_WINDOWS, "{twice} windows were trained on twice");
        assert!(newest >= 20, "the survivor went on: {newest} blocks");
        Ok(())
    })
    .unwrap();
}

#[test]
fn an_island_that_comes_back_goes_on_in_its_data_where_its_last_heartbeat_was() {
    let runtime = runtime();
    on_virtual_time(7, async {
        let mut spec = Spec { tokens: 1 << 50, islands: 1, ..Spec::default() };
        spec.outer.fragments = 2;
        spec.outer.sync_steps = 2;
        spec.keep.checkpoint_seconds = 1000;
        let mut fleet = Fleet::new(7, spec, 2, &runtime).await?;
        let _syncer = fleet.start(Role::Syncer, CALM);
        for _ in 0..4 {
            let island = fleet.start(Role::Island("a".into(), Duration::from_millis(100)), CALM);
            clock::sleep(Duration::from_millis(7_350)).await;
            drop(island);
        }
        let seen = fleet.seen.lock().unwrap().clone();
        let newest = seen.keys().map(|(block, _)| *block).max().expect("blocks were trained on");
        let never = (0..newest).flat_map(|b| (0..BLOCK_WINDOWS).map(move |w| (b, w))).filter(|w| !seen.contains_key(w));
        assert_eq!(never.count(), 0, "{seen:?}");
        let twice = seen.values().filter(|times| **times > 1).count();
        assert!(twice <= 3 * 5 * STEP_WINDOWS, "{twice} windows were trained on twice by four lives");
        Ok(())
    })
    .unwrap();
}

/// What the checkers must not overlook: each change to a sound bucket, and what they say to it.
#[test]
fn the_checkers_find_every_forgery_in_a_bucket() {
    type Forge = fn(&mut Value);
    let forgeries: [(&str, Forge, &str); 8] = [
        ("commit", |e| e["offers"][0]["tokens"] = 1.into(), "the fragment has"),
        ("commit", |e| e["base"]["hash"] = "ab".repeat(32).into(), "it extends"),
        ("commit", |e| e["round"] = (e["round"].as_u64().unwrap() + 1).into(), "is committed after"),
        (
            "commit",
            |e| {
                let twice = e["offers"][0].clone();
                e["offers"].as_array_mut().unwrap().push(twice);
            },
            "a second fate",
        ),
        (
            "commit",
            |e| {
                let mut other_life = e["offers"][0].clone();
                other_life["incarnation"] = 7.into();
                e["offers"].as_array_mut().unwrap().push(other_life);
            },
            "already",
        ),
        ("commit", |e| e["offers"][0]["base"] = 0.into(), "were merged in round"),
        ("commit", |e| e["merge"] = "ab".repeat(32).into(), "is merged by"),
        ("card", |e| e["progress"]["lost"] = 1_000_000.into(), "come to"),
    ];
    let runtime = runtime();
    on_virtual_time(9, async {
        let mut spec = Spec { tokens: 1 << 50, islands: 1, ..Spec::default() };
        spec.outer.fragments = 2;
        spec.outer.sync_steps = 2;
        let mut fleet = Fleet::new(9, spec, 2, &runtime).await?;
        let processes = [Role::Island("a".into(), Duration::from_millis(100)), Role::Syncer];
        let processes = processes.map(|role| fleet.start(role, CALM));
        clock::sleep(Duration::from_secs(8)).await;
        drop(processes);
        let (store, bucket) = (fleet.store.clone(), Bucket::new(fleet.store.clone(), "quickstart"));
        let fragments = toy::model(2, 2)?.1;
        let checked = fleet.check().await?;
        assert!(checked.rounds > 10, "{checked:?}");
        let keys = Keys::new("quickstart");
        let commit = keys.log(checked.entries - 1);
        let read = async |key: &Path| store.get(key).await.unwrap().bytes().await.unwrap();
        for (what, forge, said) in forgeries {
            let key = if what == "card" { keys.card("a") } else { commit.clone() };
            let sound = read(&key).await;
            let mut record: Value = serde_json::from_slice(&sound).unwrap();
            assert!(what == "card" || record["kind"] == "commit", "the log ends with a commit: {record}");
            forge(&mut record);
            store.put(&key, record.to_string().into()).await.unwrap();
            let error = fleet.check().await.expect_err(said).chain();
            assert!(error.contains(said), "expected `{said}`, found: {error}");
            store.put(&key, sound.into()).await.unwrap();
        }
        fleet.check().await?;

        // A hole in the log, a current version that is gone, one of which a bit has changed.
        let middle = keys.log(checked.entries / 2);
        let sound = read(&middle).await;
        store.delete(&middle).await.unwrap();
        assert!(fleet.check().await.expect_err("a hole").chain().contains("the log has a gap"));
        store.put(&middle, sound.into()).await.unwrap();
        let version = fleet.ledger().await?.versions[1].clone();
        let value = bucket.fragment(&fragments, 1, &version).await?[0].to_le_bytes();
        let key = keys.fragment(1, version.round, &version.hash);
        let sound = read(&key).await;
        store.delete(&key).await.unwrap();
        assert!(fleet.check().await.expect_err("a version is gone").chain().contains("is gone"));
        let mut damaged = sound.to_vec();
        let at = damaged.windows(4).position(|bytes| bytes == value).expect("values lie in the file as they are");
        damaged[at] ^= 1;
        store.put(&key, damaged.into()).await.unwrap();
        assert!(fleet.check().await.is_err(), "a bit of a current version has changed");
        store.put(&key, sound.into()).await.unwrap();
        assert_eq!(fleet.check().await?, checked);
        Ok(())
    })
    .unwrap();
}
