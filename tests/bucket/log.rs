//! The log: a total order that every reader sees alike, in which an entry that breaks a rule is void, and the states that spare a joiner most
//! of it.

use object_store::ObjectStoreExt;
use tombolo::bucket::record::{
    Activate, Body, Commit, Entry, FORMAT, Fate, OfferRecord, OuterFacts, Pace, PolicyUse, Skip, Version,
};
use tombolo::bucket::{Active, Bucket, Created, Ledger, OfferId, Tail};
use tombolo::nonce::nonce;
use tombolo::policy::Role;

use crate::support::store::{Place, everywhere};
use crate::{FRAGMENTS, bucket, race};

/// Writers of one log at once, and entries that each gets in. SeaweedFS makes the losers of an index wait for seconds, so they are few.
const WRITERS: usize = 3;
const ENTRIES_EACH: usize = 3;

/// Made-up policies, told apart by their hashes.
pub fn policies() -> Active {
    let policy =
        |name: &str, digit: &str| PolicyUse { name: name.into(), hash: digit.repeat(64), config: String::new() };
    Active::new(&policy("codec", "c"), &policy("merge", "a"), &policy("pace", "e"))
}

fn empty() -> Ledger {
    Ledger::new(FRAGMENTS, 4, policies())
}

fn entry(seq: u64, writer: &str, body: Body) -> Entry {
    Entry { format: FORMAT, seq, nonce: nonce(), writer: writer.into(), term: 0, body }
}

fn version(round: u64) -> Version {
    let hash = |of: &str| tombolo::nonce::sha256(format!("{of} {round}").as_bytes());
    Version { round, hash: hash("parameters"), state: (round >= FRAGMENTS as u64).then(|| hash("state")), step: None }
}

fn start() -> Body {
    Body::Start { versions: (0..FRAGMENTS as u64).map(version).collect(), window: 1 }
}

/// The commit that extends `ledger` with one offer of each of `islands`, 100 tokens each.
fn commit(ledger: &Ledger, islands: &[&str]) -> Body {
    let round = ledger.next_round;
    let p = ledger.fragment_of(round);
    let offer = |island: &&str| OfferRecord {
        id: OfferId { round, island: island.to_string(), incarnation: 1 },
        hash: String::new(),
        base: ledger.versions[p].round,
        tokens: 100,
        steps: 4,
        norm: 1.0,
        weight: 100.0,
        fate: Fate::Merged,
    };
    let tokens = 100 * islands.len() as u64;
    Body::Commit(Box::new(Commit {
        round,
        base: ledger.versions[p].clone(),
        made: version(round),
        offers: islands.iter().map(offer).collect(),
        merge: ledger.active.at(Role::Merge, round).hash.clone(),
        fragment_tokens: ledger.fragment_tokens[p] + tokens,
        tokens: (ledger.fragment_tokens.iter().sum::<u64>() + tokens) / ledger.fragments,
        pace: Pace { window: 1, sync_steps: 24.0, step_ms: 1.0, quorum_ms: 1.0, sync_ms: 1.0, spacing_ms: 1.0 },
        outer: OuterFacts::default(),
        reason: "all in".into(),
    }))
}

/// The skip of the next round of `ledger`, for one refused offer of `island`.
fn skip(ledger: &Ledger, island: &str) -> Skip {
    let Body::Commit(commit) = commit(ledger, &[island]) else { unreachable!("a commit was asked for") };
    let refused = |offer: OfferRecord| OfferRecord { weight: 0.0, fate: Fate::Refused("no".into()), ..offer };
    let offers = commit.offers.into_iter().map(refused).collect();
    Skip { round: commit.round, offers, reason: "nothing to merge".into() }
}

/// Each of these at the end of the log is void, for the reason beside it.
async fn assert_void(place: &Place, bucket: &Bucket, tail: &Tail, cases: impl IntoIterator<Item = (Body, &str)>) {
    for (body, rule) in cases {
        let seq = tail.ledger.next;
        assert_eq!(bucket.append(&entry(seq, "wrong", body)).await.expect("an answer"), Created::Mine);
        let read = tail.clone().advance(bucket, usize::MAX).await.expect("the log is readable");
        assert_eq!(read.len(), 1);
        assert_eq!(read[0].as_ref().expect_err("void").rule, rule);
        place.store.delete(&bucket.keys().log(seq)).await.expect("deleted");
    }
}

async fn whole_log(bucket: &Bucket) -> Tail {
    let mut tail = Tail::new(empty());
    tail.advance(bucket, usize::MAX).await.expect("the log is readable");
    tail
}

/// Appends `body` at the end of the log that `tail` has read, and reads it back.
async fn append(bucket: &Bucket, tail: &mut Tail, body: Body) {
    let entry = entry(tail.ledger.next, "writer", body);
    assert_eq!(bucket.append(&entry).await.expect("an answer"), Created::Mine);
    let read = tail.advance(bucket, usize::MAX).await.expect("the log is readable");
    assert_eq!(read, [Ok(entry)]);
}

#[test]
fn whoever_appends_at_a_taken_index_reads_what_is_there_and_every_reader_sees_one_order() {
    everywhere(|place| async move {
        let bucket = bucket(&place);
        let mut tail = Tail::new(empty());
        append(&bucket, &mut tail, start()).await;
        race(WRITERS, |i| {
            let (bucket, mut tail) = (bucket.clone(), tail.clone());
            async move {
                for _ in 0..ENTRIES_EACH {
                    loop {
                        let term = Body::Term { number: tail.ledger.term + 1 };
                        let entry = entry(tail.ledger.next, &format!("writer-{i}"), term);
                        let created = bucket.append(&entry).await.expect("an answer");
                        let read = tail.advance(&bucket, usize::MAX).await.expect("the log is readable");
                        assert!(read.iter().all(Result::is_ok), "each entry extends the log: {read:?}");
                        assert!(!read.is_empty(), "the index is taken, by us or by another");
                        if created == Created::Mine {
                            assert_eq!(read[0], Ok(entry), "what was appended is what is read");
                            break;
                        }
                    }
                }
            }
        })
        .await;
        let (mut one, mut other) = (Tail::new(empty()), Tail::new(empty()));
        let entries = one.advance(&bucket, usize::MAX).await.expect("the log is readable");
        assert_eq!(entries.len(), 1 + WRITERS * ENTRIES_EACH);
        for writer in 0..WRITERS {
            let name = format!("writer-{writer}");
            let count = entries.iter().flatten().filter(|entry| entry.writer == name).count();
            assert_eq!(count, ENTRIES_EACH, "no entry of {name} is lost or doubled");
        }
        // A reader that goes two entries at a time comes to the same.
        while !other.advance(&bucket, 2).await.expect("the log is readable").is_empty() {}
        assert_eq!(one.ledger, other.ledger);
        assert_eq!(one.ledger.term, (WRITERS * ENTRIES_EACH) as u64);
        assert!(one.ledger.void.is_empty());
    });
}

#[test]
fn an_entry_that_breaks_a_rule_is_void_for_every_reader_and_the_log_goes_on_after_it() {
    everywhere(|place| async move {
        let bucket = bucket(&place);
        let mut tail = Tail::new(empty());
        append(&bucket, &mut tail, start()).await;
        let body = commit(&tail.ledger, &["a"]);
        append(&bucket, &mut tail, body).await;
        let before = tail.ledger.clone();

        // A second commit of the same round, as by a syncer that did not read on.
        let mut stale = Tail::new(empty());
        stale.advance(&bucket, 1).await.expect("the log is readable");
        let doubled = entry(2, "stale", commit(&stale.ledger, &["b"]));
        assert_eq!(bucket.append(&doubled).await.expect("an answer"), Created::Mine);
        // Bytes that are no entry, an entry at another's place, a term that skips one.
        place.store.put(&bucket.keys().log(3), "{\"kind\":\"commit\"".into()).await.expect("written");
        let misplaced = entry(9, "lost", Body::Term { number: 1 });
        let body = serde_json::to_vec(&misplaced).expect("it serialises");
        place.store.put(&bucket.keys().log(4), body.into()).await.expect("written");
        let skips = entry(5, "eager", Body::Term { number: 7 });
        assert_eq!(bucket.append(&skips).await.expect("an answer"), Created::Mine);

        let read = tail.advance(&bucket, usize::MAX).await.expect("the log is readable");
        let rules: Vec<(u64, &str)> =
            read.iter().map(|r| r.as_ref().expect_err("void")).map(|v| (v.seq, v.rule)).collect();
        assert_eq!(
            rules,
            [
                (2, "rounds are closed in order"),
                (3, "an entry is JSON of its form"),
                (4, "an entry names its index"),
                (5, "terms count up by one"),
            ]
        );
        let unchanged = Ledger { next: 6, void: vec![2, 3, 4, 5], ..before };
        assert_eq!(tail.ledger, unchanged, "void entries change nothing but the index");
        let body = commit(&tail.ledger, &["b"]);
        append(&bucket, &mut tail, body).await;
        assert_eq!(tail.ledger.rounds_committed(), 2);
        assert_eq!(whole_log(&bucket).await.ledger, tail.ledger);
    });
}

#[test]
fn a_commit_that_counts_tokens_twice_or_merges_an_offer_again_is_void() {
    everywhere(|place| async move {
        let bucket = bucket(&place);
        let mut tail = Tail::new(empty());
        append(&bucket, &mut tail, start()).await;
        let body = commit(&tail.ledger, &["a", "b"]);
        append(&bucket, &mut tail, body).await;
        let tampered = |change: &dyn Fn(&mut Commit)| {
            let Body::Commit(mut body) = commit(&tail.ledger, &["a"]) else { unreachable!("a commit was asked for") };
            change(&mut body);
            Body::Commit(body)
        };
        let cases: [(Body, &str); 5] = [
            (tampered(&|c| c.offers[0].id.round -= 1), "an offer has one fate"),
            (tampered(&|c| c.offers.push(c.offers[0].clone())), "an offer has one fate"),
            (tampered(&|c| c.fragment_tokens += 1), "the fragment's tokens add up"),
            (tampered(&|c| c.offers.clear()), "a commit merges at least one offer"),
            (tampered(&|c| c.base.hash.push('x')), "a commit extends the current version of its fragment"),
        ];
        assert_void(&place, &bucket, &tail, cases).await;
    });
}

#[test]
fn a_skip_closes_its_round_without_a_version_and_one_that_merges_or_has_no_offer_is_void() {
    everywhere(|place| async move {
        let bucket = bucket(&place);
        let mut tail = Tail::new(empty());
        append(&bucket, &mut tail, start()).await;
        // Every fragment once, then the first one's round is skipped ten times over.
        for _ in 0..FRAGMENTS {
            let body = commit(&tail.ledger, &["a"]);
            append(&bucket, &mut tail, body).await;
        }
        let before = tail.ledger.clone();
        let wrong = |change: &dyn Fn(&mut Skip)| {
            let mut skip = skip(&before, "a");
            change(&mut skip);
            Body::Skip(Box::new(skip))
        };
        let cases: [(Body, &str); 4] = [
            (wrong(&|s| s.round += 1), "rounds are closed in order"),
            (wrong(&|s| s.offers.clear()), "a round is skipped for an offer that cannot be merged"),
            (wrong(&|s| s.offers[0].fate = Fate::Merged), "a skipped round merges nothing"),
            (wrong(&|s| s.offers[0].id.round -= 1), "an offer has one fate"),
        ];
        assert_void(&place, &bucket, &tail, cases).await;
        for _ in 0..10 {
            for p in 0..FRAGMENTS {
                let body =
                    if p == 0 { Body::Skip(Box::new(skip(&tail.ledger, "a"))) } else { commit(&tail.ledger, &["a"]) };
                append(&bucket, &mut tail, body).await;
            }
        }
        let ledger = &tail.ledger;
        assert_eq!(ledger.versions[0], before.versions[0], "a skipped round makes no version");
        assert_eq!((ledger.rounds_skipped(), ledger.merges_of(0), ledger.merges_of(1)), (10, 1, 11));
        assert_eq!(ledger.rounds_committed(), (FRAGMENTS + 10 * (FRAGMENTS - 1)) as u64);
        assert_eq!((ledger.fates.merged, ledger.fates.refused), (ledger.rounds_committed(), 10));
        // Ten rounds after it was made it still is the newest version, and an offer from there is as fresh as can be.
        assert_eq!(ledger.staleness(ledger.next_round, before.versions[0].round), Some(0));
        assert_eq!(ledger.staleness(ledger.next_round, 0), Some(1));
        assert_eq!(ledger.staleness(ledger.next_round, ledger.next_round - FRAGMENTS as u64), None, "skipped");
        let body = commit(&tail.ledger, &["b"]);
        append(&bucket, &mut tail, body).await;
        assert!(tail.ledger.is_whole());
        assert_eq!(whole_log(&bucket).await.ledger, tail.ledger);
    });
}

#[test]
fn a_joiner_that_starts_from_a_state_comes_to_the_same_ledger_as_one_that_reads_everything() {
    everywhere(|place| async move {
        let bucket = bucket(&place);
        assert_eq!(Tail::join(&bucket, empty()).await.expect("an answer").ledger, empty(), "nothing is there yet");
        let mut tail = Tail::new(empty());
        append(&bucket, &mut tail, start()).await;
        for n in 1..20u64 {
            let body = match n {
                7 => Body::Term { number: 1 },
                9 | 17 => Body::Skip(Box::new(skip(&tail.ledger, "a"))),
                n if n % 2 == 0 => commit(&tail.ledger, &["a", "b"]),
                _ => commit(&tail.ledger, &["b"]),
            };
            append(&bucket, &mut tail, body).await;
            if n == 5 || n == 12 {
                bucket.put_state(&tail.ledger).await.expect("written");
            }
        }
        let mut joined = Tail::join(&bucket, empty()).await.expect("an answer");
        assert_eq!(joined.ledger.next, 13, "the newest state is taken");
        joined.advance(&bucket, usize::MAX).await.expect("the log is readable");
        assert_eq!(joined.ledger, whole_log(&bucket).await.ledger);

        // Newer states that are damaged, say another index, or belong to another run are passed over.
        place.store.put(&bucket.keys().state(14), "{}".into()).await.expect("written");
        let elsewhere = serde_json::to_vec(&tail.ledger).expect("it serialises");
        place.store.put(&bucket.keys().state(15), elsewhere.into()).await.expect("written");
        let foreign = Ledger { next: 16, ..Ledger::new(FRAGMENTS, 5, policies()) };
        bucket.put_state(&foreign).await.expect("written");
        assert_eq!(bucket.states().await.expect("listed"), [6, 13, 14, 15, 16]);
        assert_eq!(Tail::join(&bucket, empty()).await.expect("an answer").ledger.next, 13);
    });
}

fn switch(role: Role, from_round: u64) -> Activate {
    let policy = PolicyUse { name: "b".into(), hash: "b".repeat(64), config: String::new() };
    Activate { role, policy, from_round, failed: None }
}

#[test]
fn a_switch_of_policies_counts_for_every_reader_from_its_round_on_and_one_that_comes_too_late_is_void() {
    everywhere(|place| async move {
        let bucket = bucket(&place);
        let mut tail = Tail::new(empty());
        append(&bucket, &mut tail, start()).await;
        let body = commit(&tail.ledger, &["a"]);
        append(&bucket, &mut tail, body).await;
        let next = tail.ledger.next_round;
        let wrong = |change: &dyn Fn(&mut Activate)| {
            let mut switch = switch(Role::Merge, next);
            change(&mut switch);
            Body::Activate(Box::new(switch))
        };
        let cases: [(Body, &str); 6] = [
            (wrong(&|s| s.from_round -= 1), "a switch is ahead of the rounds that it would change"),
            (wrong(&|s| s.from_round = u64::MAX), "a switch is ahead of the rounds that it would change"),
            // An island may have offered for that round already.
            (wrong(&|s| s.role = Role::Codec), "a switch is ahead of the rounds that it would change"),
            (wrong(&|s| s.policy.hash.push('b')), "a policy is named by its hash"),
            (wrong(&|s| s.policy.config = "[]".into()), "a configuration is a JSON object of bounded size"),
            (wrong(&|s| s.policy.name = "n".repeat(5000)), "a name is of bounded size"),
        ];
        assert_void(&place, &bucket, &tail, cases).await;
        append(&bucket, &mut tail, Body::Activate(Box::new(switch(Role::Merge, next + 1)))).await;
        append(&bucket, &mut tail, Body::Activate(Box::new(switch(Role::Codec, next + 1)))).await;
        for round in next..next + 3 {
            let merge = tail.ledger.active.at(Role::Merge, round).name.clone();
            assert_eq!(merge, if round > next { "b" } else { "merge" });
            let stale = Body::Commit(Box::new(match commit(&tail.ledger, &["a"]) {
                Body::Commit(body) => Commit { merge: "d".repeat(64), ..*body },
                _ => unreachable!("a commit was asked for"),
            }));
            let violation = tail.ledger.check(tail.ledger.next, &entry(tail.ledger.next, "stale", stale));
            assert_eq!(violation.expect_err("void").rule, "the active policy merged");
            let body = commit(&tail.ledger, &["a"]);
            append(&bucket, &mut tail, body).await;
        }
        // A log that is flooded with switches holds no reader's memory.
        for n in 0..40 {
            let flood = Body::Activate(Box::new(switch(Role::Merge, tail.ledger.next_round + 1 + n)));
            let flood = entry(tail.ledger.next, "flood", flood);
            let applied = tail.ledger.apply(tail.ledger.next, &flood);
            assert_eq!(applied.is_ok(), n < 16, "switch {n}: {applied:?}");
        }
        assert!(tail.ledger.is_whole());
        let read: Ledger = serde_json::from_slice(&serde_json::to_vec(&tail.ledger).expect("written")).expect("read");
        assert_eq!(read, tail.ledger, "a state carries it");
    });
}

#[test]
fn a_round_that_was_open_stays_open_however_the_window_shrinks() {
    let mut ledger = empty();
    let mut apply = |body: Body| {
        let next = ledger.next;
        ledger.apply(next, &entry(next, "s", body)).expect("valid");
        ledger.clone()
    };
    let window = FRAGMENTS as u64;
    let started = apply(Body::Start { versions: (0..window).map(version).collect(), window });
    let mut end = started.open_rounds().end;
    let mut before = started;
    for _ in 0..3 {
        // The commit asks for one open round from now on.
        let after = apply(commit(&before, &["a"]));
        assert!(after.open_rounds().end >= end && after.window >= 1, "{:?}", after.open_rounds());
        (end, before) = (after.open_rounds().end, after);
    }
    assert_eq!(before.window, window.saturating_sub(3).max(1), "one less with each commit");
}
