//! `tombolo chaos` on real servers, and syncers that are frozen and thawed: real processes under real signals and real faults. What is demanded is
//! read from the bucket by the tests themselves, beside what the command says.
//!
//! The blows come from a seed that is printed; `TOMBOLO_SEED` sets it. What a process was doing when it was struck still differs from time to
//! time, and is meant to.

mod support;

use std::env;
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use serde_json::Value;
use support::program::{MEDIUM, Running, Workshop, signal};
use support::say;
use support::server::{Server, servers};
use support::store::on_server;
use support::tape::Tape;
use tombolo::bucket::record::{Body, Entry};
use tombolo::bucket::{Bucket, Ledger, Tail};

/// More than any run here merges: each is ended by its command or by its test.
const TOKENS: u64 = 1_000_000_000;

/// Time under fire on each server; there are two or three.
const SECONDS: u64 = 30;

fn seed() -> u64 {
    let seed = env::var("TOMBOLO_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| u64::from(std::process::id()));
    say(&format!("TOMBOLO_SEED={seed}"));
    seed
}

/// One test at a time: they count on the time that things take.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn workshop(islands: usize) -> Workshop {
    let head = format!("run = \"small\"\ntokens = {TOKENS}\nislands = {islands}");
    Workshop::new(&head, &format!("{MEDIUM}[keep]\ncheckpoint_seconds = 2\n"))
}

fn on_runtime<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(work)
}

/// Reads the log as it grows, until it is told to stop, and gives back the bytes of every entry as they were then.
fn read_along(bucket: Bucket, over: Arc<AtomicBool>) -> thread::JoinHandle<Vec<Bytes>> {
    thread::spawn(move || {
        on_runtime(async {
            let mut entries = Vec::new();
            while !over.load(Ordering::Relaxed) {
                match bucket.log_bytes(entries.len() as u64).await {
                    Ok(Some(entry)) => entries.push(entry),
                    // Not there yet, or a server that is busy.
                    _ => thread::sleep(Duration::from_millis(20)),
                }
            }
            entries
        })
    })
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("a number, not {value}"))
}

fn chaos_on(server: &Server, seed: u64) {
    let mut workshop = workshop(4);
    workshop.set(server.environment().into_iter().filter(|(name, _)| *name != "AWS_ENDPOINT_URL"));
    let name = server.bucket();
    let (bucket, place) = (format!("s3://{name}"), format!("--endpoint {}", server.endpoint));
    let store = Bucket::new(on_server(server, &name), "small");
    let over = Arc::new(AtomicBool::new(false));
    let reader = read_along(store.clone(), over.clone());
    let ended = workshop.run(&format!(
        "chaos spec.toml --bucket {bucket} {place} --for {SECONDS}s --seed {seed} --link 200mbit --out out --report report.json"
    ));
    over.store(true, Ordering::Relaxed);
    let read = reader.join().expect("reading does not panic");
    say(&format!("{}: {}", server.name, ended.stdout));
    let ended = ended.well();

    // Nothing that was committed has gone or changed, whatever the command says of it.
    assert!(read.len() > 20, "{}: {} entries were read during the run", server.name, read.len());
    on_runtime(async {
        for (seq, bytes) in (0u64..).zip(&read) {
            let found = store.log_bytes(seq).await.expect("readable");
            assert_eq!(found.as_ref(), Some(bytes), "{}: log entry {seq}", server.name);
        }
        Tape::read(&store).await.assert_is_a_ledger();
        assert!(store.run_record().await.expect("readable").expect("a record").chaos, "the run is marked");
    });
    let verified = workshop.run_well(&format!("verify {bucket} {place}")).stdout;
    assert!(verified.contains(" 0 void;") && verified.contains(" 0 wrong,"), "{verified}");

    let report = workshop.json("report.json");
    assert_eq!(report["survived"], true, "{report}");
    let invariants = report["invariants"].as_array().expect("a list");
    assert!(invariants.len() == 3 && invariants.iter().all(|invariant| invariant["holds"] == true), "{report}");
    let blows = report["blows"].as_array().expect("a list");
    assert!(blows.len() >= 5, "{} blows in {SECONDS} s: {report}", blows.len());
    let recovered = blows.iter().filter(|blow| blow["recovered_after_seconds"].is_number()).count();
    assert!(recovered > 0, "{report}");
    assert!(number(&report["rounds_after_last_blow"]) > 0.0, "{report}");
    assert!(number(&report["goodput"]) > 0.0 && number(&report["uptime"]) > 0.0, "{report}");
    let spoilt = report["spoilt"].as_object().expect("by what was done");
    assert!(spoilt.values().any(|n| number(n) > 0.0), "links were struck, too: {report}");

    let status = workshop.run_well(&format!("status {bucket} {place}")).stdout;
    assert!(status.contains("under chaos"), "{status}");
    let exported = workshop.run_well(&format!("export {bucket} exported {place}")).stdout;
    for folder in ["exported", "out/model"] {
        let readme = fs::read_to_string(workshop.path(folder).join("README.md")).expect("a README.md");
        assert!(readme.contains("`tombolo chaos` struck the run"), "{readme}");
    }
    assert!(exported.contains("`tombolo chaos` struck") && ended.stdout.contains("`tombolo chaos` struck"));
}

#[test]
fn whatever_is_struck_on_every_s3_server_nothing_committed_is_lost() {
    let _alone = alone();
    let seed = seed();
    for (server, seed) in servers().iter().zip(seed..) {
        chaos_on(server, seed);
    }
}

#[test]
fn chaos_refuses_what_it_cannot_strike_and_a_run_that_is_not_marked() {
    let _alone = alone();
    let workshop = workshop(1);
    let refused = workshop.run("chaos spec.toml --bucket memory:");
    assert!(refused.error(2).contains("no processes to strike"));
    let refused = workshop.run("chaos spec.toml --bucket s3://b --endpoint https://127.0.0.1:9");
    assert!(refused.error(2).contains("plain HTTP"));
    let refused = workshop.run("chaos spec.toml --bucket s3://b");
    assert!(refused.error(2).contains("chaos needs a server"));
    assert_eq!(workshop.names(), ["spec.toml", "text"], "nothing was begun");
    workshop.run_well("submit spec.toml --bucket file:bucket");
    let refused = workshop.run("chaos spec.toml --bucket file:bucket --out out");
    assert!(refused.error(2).contains("chaos: here true, in the bucket false"));
    let status = workshop.run_well("status bucket").stdout;
    assert!(!status.contains("chaos"), "{status}");
}

/// The log's entries from `seq` on, as they lie there.
fn entries_from(bucket: &Bucket, seq: usize) -> Vec<Entry> {
    on_runtime(Tape::read(bucket)).entries()[seq..].to_vec()
}

/// Who acts as the syncer: term and id.
fn acting(bucket: &Bucket) -> Option<(u64, String)> {
    entries_from(bucket, 0).into_iter().rev().find_map(|entry| match entry.body {
        Body::Term { number } => Some((number, entry.writer)),
        _ => None,
    })
}

#[test]
fn a_syncer_that_was_frozen_at_work_stands_by_when_it_wakes_and_takes_the_role_again_when_it_is_needed() {
    let _alone = alone();
    let workshop = workshop(2);
    workshop.run_well("submit spec.toml --bucket file:bucket");
    let mut syncers = ["first", "second"]
        .map(|name| (name, workshop.start(&format!("syncer file:bucket --name {name} --threads 1"))));
    let islands = ["a", "b"].map(|name| workshop.start(&format!("island file:bucket --name {name} --threads 1")));
    let bucket = workshop.bucket();
    let grown = |running: &mut Running, more: usize| {
        let goal = workshop.log_entries() + more;
        running.until("the log grows", |_| (workshop.log_entries() >= goal).then_some(()));
    };
    grown(&mut syncers[0].1, 20);
    let (term, frozen_id) = acting(&bucket).expect("somebody acts");
    assert_eq!(term, 1);
    syncers.sort_by_key(|(name, _)| !frozen_id.starts_with(name));
    let [(_, mut frozen), (other_name, mut other)] = syncers;

    signal(frozen.pid(), "STOP");
    let (term, other_id) = other.until("another takes the role", |_| acting(&bucket).filter(|(term, _)| *term == 2));
    assert!(other_id.starts_with(other_name), "term {term} is of {other_id}, the other one");
    let taken = workshop.log_entries();
    grown(&mut other, 3);
    signal(frozen.pid(), "CONT");
    // Its beat says what it takes itself for.
    let counter = on_runtime(bucket.beat(&frozen_id)).expect("readable").map_or(0, |beat| beat.counter);
    frozen.until("it stands by", |_| {
        let beat = on_runtime(bucket.beat(&frozen_id)).expect("readable")?;
        (beat.counter > counter && beat.acting.is_none()).then_some(())
    });
    grown(&mut other, 10);
    for entry in entries_from(&bucket, taken) {
        assert_eq!(entry.writer, other_id, "what the frozen one woke up with did not get into the log: {entry:?}");
    }
    assert!(frozen.runs() && other.runs());

    signal(other.pid(), "STOP");
    let (_, id) = frozen.until("it takes the role", |_| acting(&bucket).filter(|(term, _)| *term == 3));
    assert_eq!(id, frozen_id, "the one that was frozen first goes on where the other stopped");
    grown(&mut frozen, 3);
    signal(other.pid(), "CONT");
    for island in islands {
        signal(island.pid(), "INT");
        island.end().well();
    }
    for syncer in [frozen, other] {
        signal(syncer.pid(), "INT");
        syncer.end().well();
    }
    on_runtime(async {
        let tape = Tape::read(&bucket).await;
        let tokens = tape.assert_is_a_ledger();
        let record = bucket.run_record().await.expect("readable").expect("a record");
        let ledger = Ledger::of(&record);
        let mut tail = Tail::new(ledger);
        tail.advance(&bucket, usize::MAX).await.expect("readable");
        assert!(tail.ledger.void.is_empty(), "nobody wrote an entry that does not extend the log");
        assert_eq!(tail.ledger.fragment_tokens, tokens);
    });
    let verified = workshop.run_well("verify bucket").stdout;
    assert!(verified.contains(" 0 void;") && verified.contains(" 0 wrong,"), "{verified}");
}
