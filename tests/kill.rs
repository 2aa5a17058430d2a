//! Real processes, killed with real signals at random instants: islands, the syncer, the supervisor. Whatever dies, the run goes on, what was
//! committed stays, and no token counts twice.
//!
//! The instants come from a seed that is printed; `TOMBOLO_SEED` sets it. What a process was doing when the signal came still differs from
//! time to time, and is meant to.

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use serde_json::Value;
use support::program::{MEDIUM, Running, Workshop, exists, signal, wait_for};
use support::say;
use support::tape::Tape;
use tombolo::bucket::record::{Body, Fate};
use tombolo::bucket::{Bucket, Ledger, Tail};
use tombolo::outer::Fragments;
use tombolo_engine::Layout;

/// Kills in one run, an island and the syncer in turn.
const KILLS: usize = 10;

/// Islands that the runs here have.
const ISLANDS: u64 = 3;

/// How much worse the held-out loss of the disturbed run may be.
///
/// A killed island loses what it had not yet offered, and its moments go back to its last checkpoint, two seconds; without a syncer nothing
/// is merged for up to six seconds, in which the islands drift apart. While the kills last, half of the time or more is without a syncer,
/// and a token takes part in fewer outer steps. Measured on a busy machine: -0.1 to +3.4 % in twelve runs. A round that is lost or merged
/// twice, which no loss shows, is found in the log.
const LOSS_TOLERANCE: f64 = 0.06;

const COMMAND: &str = "run spec.toml --bucket file:bucket --out out --report report.json";

fn random() -> StdRng {
    let given = env::var("TOMBOLO_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = given.unwrap_or_else(|| u64::from(std::process::id()));
    say(&format!("TOMBOLO_SEED={seed}"));
    StdRng::seed_from_u64(seed)
}

/// One test at a time: they count on the time that things take.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn workshop(sections: &str, tokens: u64) -> Workshop {
    let head = format!("run = \"small\"\ntokens = {tokens}\nislands = {ISLANDS}");
    Workshop::new(&head, &format!("{sections}[keep]\ncheckpoint_seconds = 2\n"))
}

fn report(workshop: &Workshop) -> Value {
    workshop.json("report.json")
}

fn number(report: &Value, field: &str) -> f64 {
    report[field].as_f64().unwrap_or_else(|| panic!("{field} is a number in {report}"))
}

fn on_runtime<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(work)
}

/// Waits until the role has a process other than `before`, and then for a moment of at most `moment`.
fn victim(running: &mut Running, role: &str, before: Option<u32>, moment: Duration, random: &mut StdRng) -> u32 {
    let there = |running: &mut Running| running.roles().get(role).copied().filter(|pid| Some(*pid) != before);
    running.until(&format!("{role} has a process"), there);
    thread::sleep(moment.mul_f64(random.random_range(0.0..1.0)));
    running.until(&format!("{role} has a process"), there)
}

/// The role whose process acts as the syncer: the one called `syncer`, or an island that stood by.
fn acting_role(workshop: &Workshop) -> Option<String> {
    let tape = on_runtime(Tape::read(&workshop.bucket()));
    let newest = tape.entries().iter().rfind(|entry| matches!(entry.body, Body::Term { .. }))?;
    // A writer is a role and a nonce.
    newest.writer.rsplit_once('-').map(|(role, _)| role.to_owned())
}

/// Kills an island and whoever acts as the syncer in turn, and returns how often each role was killed; none if less than a quarter of the
/// run is left by then, too little for what was lost to be made up for.
fn kill_in_turn(
    running: &mut Running,
    workshop: &Workshop,
    tokens: u64,
    random: &mut StdRng,
) -> Option<BTreeMap<String, u64>> {
    let mut kills: BTreeMap<String, u64> = BTreeMap::new();
    let mut last: BTreeMap<String, u32> = BTreeMap::new();
    for n in 0..KILLS {
        let role = if n % 2 == 0 {
            let count = |island: &u64| kills.get(&format!("island-{island}")).copied().unwrap_or(0);
            let fewest = (0..ISLANDS).map(|island| count(&island)).min();
            let candidates: Vec<u64> = (0..ISLANDS).filter(|island| Some(count(island)) == fewest).collect();
            format!("island-{}", candidates.choose(random).expect("there are islands"))
        } else {
            // One that has taken the role and commits, so that most of the time it dies at work.
            let goal = workshop.log_entries() + 4;
            running.until("the log grows", |_| (workshop.log_entries() >= goal).then_some(()));
            let acting = acting_role(workshop).expect("somebody acts");
            // A role that was launched six times within a minute is given up.
            if kills.get(&acting).is_some_and(|&kills| kills >= 5) { "syncer".to_owned() } else { acting }
        };
        let merged = tokens_merged(workshop);
        if merged > tokens / 4 * 3 {
            say(&format!("{merged} of {tokens} tokens are merged after {n} kills: too few for this machine"));
            return None;
        }
        let pid = victim(running, &role, last.get(&role).copied(), Duration::from_secs(1), random);
        let what = if n % 2 == 0 { "island" } else { "syncer" };
        say(&format!("kill {}: {what} {role}, process {pid}, at {merged} of {tokens} tokens", n + 1));
        signal(pid, "KILL");
        wait_for("a killed process is gone", || (!exists(pid)).then_some(()));
        last.insert(role.clone(), pid);
        *kills.entry(role).or_insert(0) += 1;
    }
    Some(kills)
}

/// Everything that the log of an ended run says is so, and what it names is there.
async fn assert_is_whole(bucket: &Bucket) {
    let tape = Tape::read(bucket).await;
    let tokens = tape.assert_is_a_ledger();

    let record = bucket.run_record().await.expect("readable").expect("a record");
    let layout = Layout::of(&record.spec.model_config());
    let fragments = Fragments::partition(&layout, record.spec.outer.fragments).expect("as the run did");
    let empty = || Ledger::of(&record);
    let mut tail = Tail::new(empty());
    tail.advance(bucket, usize::MAX).await.expect("readable");
    assert!(tail.ledger.void.is_empty(), "nobody wrote an entry that does not extend the log");
    assert_eq!(tail.ledger.fragment_tokens, tokens);
    let mut joined = Tail::join(bucket, empty()).await.expect("readable");
    joined.advance(bucket, usize::MAX).await.expect("readable");
    assert_eq!(joined.ledger, tail.ledger, "a joiner comes to the same");

    // A life that a newer one has followed brings nothing in any more.
    let mut lives: BTreeMap<&str, u64> = BTreeMap::new();
    for offer in tape.commits().flat_map(|commit| &commit.offers).filter(|offer| offer.fate == Fate::Merged) {
        let life = lives.entry(&offer.id.island).or_default();
        assert!(offer.id.incarnation >= *life, "{:?} is merged after life {life}", offer.id);
        *life = offer.id.incarnation;
    }

    // What the ledger names: the current versions, and those that are still kept. Reading one checks its hash.
    let newest = tape.commits().last().expect("a commit").round;
    let kept = newest.saturating_sub((record.spec.keep.versions - 1) * fragments.count() as u64);
    for commit in tape.commits().filter(|commit| commit.round > kept) {
        let p = (commit.round % fragments.count() as u64) as usize;
        bucket.fragment(&fragments, p, &commit.made).await.expect("the version is there and has its hash");
        bucket.fragment_state(&fragments, p, &commit.made).await.expect("the state is there and has its hash");
    }
    bucket.committed(&fragments, &tail.ledger.versions).await.expect("the committed model is whole");
}

/// Tokens that this machine merges in a second once islands are at work, from the second half of a short run.
fn tokens_per_second() -> f64 {
    let workshop = workshop(MEDIUM, 800_000);
    workshop.run_well(COMMAND);
    let tape = on_runtime(Tape::read(&workshop.bucket()));
    let commits: Vec<_> = tape.commits().collect();
    let half = &commits[commits.len() / 2..];
    let tokens = half.last().expect("rounds").tokens - half[0].tokens;
    tokens as f64 / (half[1..].iter().map(|commit| commit.pace.spacing_ms).sum::<f64>() / 1000.0)
}

fn tokens_merged(workshop: &Workshop) -> u64 {
    if workshop.log_entries() == 0 {
        return 0;
    }
    on_runtime(Tape::read(&workshop.bucket())).commits().last().map_or(0, |commit| commit.tokens)
}

/// A run in which islands and the syncer were killed, with how often each; none if it was over before, since the machine had got faster.
fn disturbed_run(tokens: u64, random: &mut StdRng) -> Option<(Workshop, BTreeMap<String, u64>)> {
    let workshop = workshop(MEDIUM, tokens);
    let mut running = workshop.start(COMMAND);
    let kills = kill_in_turn(&mut running, &workshop, tokens, random)?;
    running.end().well();
    Some((workshop, kills))
}

#[test]
fn islands_and_the_syncer_killed_ten_times_at_random_leave_a_run_that_ends_as_well_as_undisturbed() {
    let _alone = alone();
    let mut random = random();
    // Ten kills take 10 to 15 s, most of it the beats that a silent syncer is given.
    let mut tokens = (tokens_per_second() * 20.0) as u64;
    let (workshop, kills) = (0..3)
        .find_map(|_| {
            let disturbed = disturbed_run(tokens, &mut random);
            tokens *= if disturbed.is_none() { 2 } else { 1 };
            disturbed
        })
        .expect("a machine does not get four times faster while it is measured");
    let disturbed = report(&workshop);
    say(&format!("disturbed: {disturbed}"));
    assert!(number(&disturbed, "tokens_merged") >= tokens as f64, "{disturbed}");
    assert_eq!(number(&disturbed, "offers_refused"), 0.0, "{disturbed}");

    let bucket = workshop.bucket();
    on_runtime(async {
        assert_is_whole(&bucket).await;
        let tape = Tape::read(&bucket).await;
        let terms = tape.entries().iter().filter(|entry| matches!(entry.body, Body::Term { .. })).count();
        say(&format!("{terms} terms, {} rounds, {:?}", tape.commits().count(), tape.fates()));
        for island in 0..ISLANDS {
            let name = format!("island-{island}");
            let lives = bucket.newest_incarnation(&name).await.expect("readable");
            // A life that was killed before it claimed one has none; none is claimed that was not lived.
            let killed = kills.get(&name).copied().unwrap_or(0);
            assert!((1..=1 + killed).contains(&lives), "{name}: {lives} lives after {killed} kills");
        }
    });

    let undisturbed = self::workshop(MEDIUM, tokens);
    undisturbed.run_well(COMMAND);
    let undisturbed = report(&undisturbed);
    say(&format!("undisturbed: {undisturbed}"));
    let (loss, expected) = (number(&disturbed, "held_out_loss_last"), number(&undisturbed, "held_out_loss_last"));
    say(&format!("held-out loss {loss:.4}, undisturbed {expected:.4}: {:+.2} %", 100.0 * (loss / expected - 1.0)));
    assert!(loss <= expected * (1.0 + LOSS_TOLERANCE), "held-out loss {loss}, undisturbed {expected}");
}

#[test]
fn a_killed_supervisor_leaves_no_orphan_and_the_same_command_goes_on() {
    let _alone = alone();
    let mut random = random();
    // A new syncer waits for two and a half seconds until it believes that the last one is gone, and what the islands train meanwhile is
    // merged at once after that; hence many tokens for few rounds.
    let tokens = 4_000_000u32;
    let workshop = workshop(MEDIUM, tokens.into());
    let mut orphans = BTreeSet::new();
    // While its children start; at work; and at work again, with the next one started before the orphans are gone.
    for (rounds, waits) in [(0, true), (5, true), (5, false)] {
        let goal = workshop.log_entries() + rounds;
        let mut running = workshop.start(COMMAND);
        running.until("it is at work", |running| {
            let at_work = running.roles().len() == 4 && workshop.log_entries() >= goal;
            at_work.then_some(())
        });
        thread::sleep(Duration::from_millis(random.random_range(0..300)));
        let roles = running.roles();
        assert!(running.runs(), "it was not done yet: {}", running.stderr());
        running.kill();
        let killed_at = Instant::now();
        orphans.extend(roles.values().copied());
        if waits {
            wait_for("the orphans are gone", || roles.values().all(|pid| !exists(*pid)).then_some(()));
            let waited = killed_at.elapsed();
            say(&format!("no orphan {:.1} s after the supervisor was killed", waited.as_secs_f64()));
            // They publish what they have and write a checkpoint; a few seconds where others keep the machine busy.
            assert!(waited < Duration::from_secs(20), "{waited:?}");
        }
    }
    workshop.run_well(COMMAND);
    let report = report(&workshop);
    assert!(number(&report, "tokens_merged") >= f64::from(tokens), "{report}");
    on_runtime(assert_is_whole(&workshop.bucket()));
    wait_for("all orphans are gone", || orphans.iter().all(|pid| !exists(*pid)).then_some(()));
}
