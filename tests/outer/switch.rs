//! Switching policies while a run goes on: everybody at the same round, recomputed to the same bytes; and what fails is given up for what did not.

use futures::StreamExt;
use tombolo::activate;
use tombolo::bucket::record::{Activate, Body, Commit, Entry, Fate, PolicyUse};
use tombolo::bucket::{Shelf, Tail};
use tombolo::policy::{Policy, Role};
use tombolo::syncer::{Desk, Replayed, Rounds};

use super::*;
use crate::guest::{CodecText, MergeText, PaceText};

/// Runs two islands and a syncer over `shelf` to the end while `switches` goes on beside them; gives the ledger and every entry, all of which recompute.
async fn switched(
    world: &World,
    shelf: &Shelf,
    switches: impl AsyncFnOnce() -> Result<()>,
) -> Result<(Ledger, Vec<Entry>)> {
    with_islands(&[("a", STEP), ("b", STEP)], world, shelf, switches).await
}

/// The same with these islands, whose steps take so long.
async fn with_islands(
    islands: &[(&str, Duration)],
    world: &World,
    shelf: &Shelf,
    switches: impl AsyncFnOnce() -> Result<()>,
) -> Result<(Ledger, Vec<Entry>)> {
    let mut roles = JoinSet::new();
    for &(name, step) in islands {
        let inner = Box::new(Constant { parameters: vec![0.0; 2], gradient: vec![0.25; 2] });
        let mut site = Some(Site { shelf: shelf.clone(), ..world.site(name, inner, STEP) });
        let once = move || std::future::ready(site.take().ok_or_else(|| Error::bug("one life")));
        roles.spawn(async move { island::live(once, Drive::Virtual(step), std::future::pending()).await.map(|_| ()) });
    }
    let desk = Desk { shelf: shelf.clone(), ..world.desk(STEP) };
    roles.spawn(async move { syncer::run(desk, std::future::pending()).await.map(|_| ()) });
    switches().await?;
    ended(roles, Duration::from_secs(3_000)).await?;
    let mut tail = Tail::new(Ledger::of(&world.record));
    let entries = tail.advance(&world.bucket, usize::MAX).await?;
    let entries = entries.into_iter().collect::<std::result::Result<Vec<_>, _>>().expect("no entry is void");
    let desk = Desk { shelf: shelf.clone(), ..world.desk(STEP) };
    let verified = syncer::verify(&desk, 1, |_| ()).await?;
    assert!(verified.is_clean() && verified.same > 10, "{verified:?}");
    Ok((tail.ledger, entries))
}

fn runtime() -> Runtime {
    Runtime::new(Limits::default(), None).expect("the policy runtime starts")
}

/// A policy as a run names it.
fn used(policy: &Policy, config: &str) -> PolicyUse {
    PolicyUse { name: "another".into(), hash: policy.hash().to_string(), config: config.into() }
}

fn short(tokens: u64) -> Spec {
    let mut spec = Spec { tokens, ..spec(2, "mean", "eta = 1\nmomentum = 0.5\nwarmup = 0\ncooldown = 0\n") };
    // Nothing is collected, so that all of it can be looked at afterwards.
    spec.keep.versions = 1_000;
    spec
}

fn committed(entries: &[Entry]) -> impl Iterator<Item = &Commit> {
    entries.iter().filter_map(|entry| match &entry.body {
        Body::Commit(commit) => Some(&**commit),
        _ => None,
    })
}

/// Rounds committed, and the policy that merged each.
fn commits(entries: &[Entry]) -> Vec<(u64, &str)> {
    committed(entries).map(|commit| (commit.round, commit.merge.as_str())).collect()
}

/// Islands that a round was merged from.
fn merged(commit: &Commit) -> Vec<&str> {
    let merged = commit.offers.iter().filter(|offer| offer.fate == Fate::Merged && offer.id.round == commit.round);
    merged.map(|offer| offer.id.island.as_str()).collect()
}

fn switches(entries: &[Entry]) -> Vec<&Activate> {
    entries
        .iter()
        .filter_map(|entry| match &entry.body {
            Body::Activate(activate) => Some(&**activate),
            _ => None,
        })
        .collect()
}

/// Waits until this many rounds are committed.
async fn after(world: &World, rounds: u64) -> Result<()> {
    while world.ledger().await?.rounds_committed() < rounds {
        clock::sleep(STEP).await;
    }
    Ok(())
}

/// Switches once this many rounds are committed.
async fn switch(world: &World, rounds: u64, role: Role, policy: &PolicyUse, from_round: Option<u64>) -> Result<()> {
    after(world, rounds).await?;
    activate::activate(&world.bucket, &world.record, role, policy, from_round).await.map(|_| ())
}

#[test]
fn every_round_from_the_one_named_on_is_merged_by_the_other_policy_and_recomputes_to_the_same_bytes() {
    on_virtual_time(41, async {
        let world = world(short(3_000), 2, 2).await?;
        let other = runtime().bundled("trimmed-mean").unwrap();
        let shelf = Shelf::holding([world.codec.clone(), world.merge.clone(), world.pace.clone(), other.clone()]);
        let policy = used(&other, "");
        let (ledger, entries) = switched(&world, &shelf, async || {
            after(&world, 6).await?;
            let switch = activate::activate(&world.bucket, &world.record, Role::Merge, &policy, Some(20)).await?;
            assert_eq!(switch.from_round, 20);
            let early = activate::activate(&world.bucket, &world.record, Role::Merge, &policy, Some(3)).await;
            assert!(early.expect_err("it is closed").chain().contains("found 3"));
            Ok(())
        })
        .await?;
        let commits = commits(&entries);
        assert!(commits.len() > 30 && commits.iter().any(|(round, _)| *round < 20));
        for (round, merge) in commits {
            let expected = if round < 20 { &world.record.merge.hash } else { &policy.hash };
            assert_eq!(merge, expected, "round {round}");
        }
        assert_eq!((ledger.fates.refused, ledger.fates.late), (0, 0), "nobody's offer was lost for it");
        let ended = activate::activate(&world.bucket, &world.record, Role::Merge, &policy, None).await;
        assert!(ended.expect_err("over").chain().contains("nothing follows the end of the run"));
        Ok(())
    })
    .unwrap();
}

#[test]
fn every_offer_from_the_round_named_on_is_encoded_by_the_other_codec_and_none_is_refused() {
    on_virtual_time(42, async {
        let world = world(short(3_000), 2, 2).await?;
        let other = runtime().bundled("int8").unwrap();
        let shelf = Shelf::holding([world.codec.clone(), world.merge.clone(), world.pace.clone(), other.clone()]);
        let policy = used(&other, "");
        let (ledger, entries) =
            switched(&world, &shelf, async || switch(&world, 6, Role::Codec, &policy, None).await).await?;
        let from = switches(&entries)[0].from_round;
        assert_eq!((ledger.fates.refused, ledger.fates.late), (0, 0));
        let mut seen = [0, 0];
        for entry in &entries {
            let Body::Commit(commit) = &entry.body else { continue };
            for offer in &commit.offers {
                let object = world.bucket.offer_spooled(&offer.id, 1 << 20).await?;
                let switched = offer.id.round >= from;
                seen[usize::from(switched)] += 1;
                let expected = if switched { &policy.hash } else { &world.record.codec.hash };
                assert_eq!(&object.header.codec, expected, "{:?}", offer.id);
            }
        }
        assert!(seen.iter().all(|&n| n > 0), "{seen:?}");
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_merge_policy_that_traps_is_given_up_and_its_round_is_redone_with_the_one_before_it() {
    on_virtual_time(43, async {
        let world = world(short(3_000), 2, 2).await?;
        let bad = runtime().load(&MergeText { step: "(unreachable)", ..MergeText::default() }.wasm()).unwrap();
        let shelf = Shelf::holding([world.codec.clone(), world.merge.clone(), world.pace.clone(), bad.clone()]);
        let policy = used(&bad, "");
        let (ledger, entries) =
            switched(&world, &shelf, async || switch(&world, 6, Role::Merge, &policy, Some(15)).await).await?;
        let [asked, given_up] = switches(&entries)[..] else { panic!("{:?}", switches(&entries)) };
        assert_eq!((asked.from_round, &asked.failed), (15, &None));
        assert_eq!((given_up.from_round, given_up.policy.is_same(&world.record.merge)), (15, true));
        assert!(given_up.failed.as_ref().is_some_and(|failed| failed.why.contains("trapped")), "{given_up:?}");
        let rounds: Vec<u64> = commits(&entries).into_iter().map(|(round, _)| round).collect();
        assert_eq!(rounds, (2..2 + rounds.len() as u64).collect::<Vec<_>>(), "no round is left out");
        assert!(commits(&entries).iter().all(|(_, merge)| *merge == world.record.merge.hash));
        assert_eq!((ledger.fates.refused, ledger.fates.late), (0, 0), "the offers were not at fault");
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_policy_that_is_not_in_the_bucket_is_given_up_too() {
    on_virtual_time(44, async {
        let world = world(short(2_000), 2, 2).await?;
        let shelf = world.shelf();
        let absent = |name: &str| PolicyUse { name: name.into(), hash: "0".repeat(64), config: String::new() };
        let (ledger, entries) = switched(&world, &shelf, async || {
            after(&world, 4).await?;
            for role in Role::ALL {
                activate::activate(&world.bucket, &world.record, role, &absent("forged"), None).await?;
            }
            Ok(())
        })
        .await?;
        let failed: Vec<Role> = switches(&entries).iter().filter(|s| s.failed.is_some()).map(|s| s.role).collect();
        assert_eq!(failed.len(), 3, "{:?}", switches(&entries));
        assert!(Role::ALL.iter().all(|role| failed.contains(role)), "{failed:?}");
        assert_eq!(ledger.fates.refused, 0);
        Ok(())
    })
    .unwrap();
}

#[test]
fn an_island_whose_codec_traps_offers_with_the_one_before_it_and_the_run_goes_back_to_that() {
    on_virtual_time(45, async {
        let world = world(short(3_000), 2, 2).await?;
        let bad = runtime().load(&CodecText { encode: "(unreachable)", ..CodecText::default() }.wasm()).unwrap();
        let shelf = Shelf::holding([world.codec.clone(), world.merge.clone(), world.pace.clone(), bad.clone()]);
        let policy = used(&bad, "");
        let (ledger, entries) =
            switched(&world, &shelf, async || switch(&world, 6, Role::Codec, &policy, Some(15)).await).await?;
        let [_, given_up] = switches(&entries)[..] else { panic!("{:?}", switches(&entries)) };
        assert!(given_up.policy.is_same(&world.record.codec) && given_up.from_round > 15);
        assert!(
            given_up.failed.as_ref().is_some_and(|failed| failed.why.contains("no island could encode with it: a, b"))
        );
        assert_eq!(ledger.fates.refused, 0);
        let merged = committed(&entries).map(|commit| merged(commit).len());
        assert_eq!(merged.sum::<usize>(), ledger.fates.merged as usize);
        assert!(commits(&entries).iter().any(|(round, _)| *round > given_up.from_round), "it went on");
        Ok(())
    })
    .unwrap();
}

#[test]
fn the_state_of_one_merge_policy_is_never_handed_to_another() {
    on_virtual_time(46, async {
        let world = world(short(3_000), 2, 2).await?;
        let shelf = world.shelf();
        // The same component with another configuration is another policy: what it remembers may mean something else.
        let hotter = PolicyUse {
            config: r#"{"eta":0.5,"momentum":0.5,"warmup":0,"cooldown":0}"#.into(),
            ..world.record.merge.clone()
        };
        let (_, entries) =
            switched(&world, &shelf, async || switch(&world, 6, Role::Merge, &hotter, Some(20)).await).await?;
        // With eta 1 and momentum 0.5 (Nesterov) the first step from no state is 1.5 times the mean, later ones up to twice; half of that
        // with eta 0.5.
        let ratio = |round: u64| {
            let commit = entries.iter().find_map(|entry| match &entry.body {
                Body::Commit(commit) if commit.round == round => Some(commit),
                _ => None,
            });
            let outer = commit.expect("it was committed").outer;
            outer.step_norm / outer.delta_norm
        };
        assert!((ratio(2) - 1.5).abs() < 1e-3, "{}", ratio(2));
        assert!(ratio(18) > 1.9, "{}", ratio(18));
        assert!((ratio(20) - 0.75).abs() < 1e-3 && (ratio(21) - 0.75).abs() < 1e-3, "{} {}", ratio(20), ratio(21));
        assert!(ratio(30) > 0.95, "{}", ratio(30));
        Ok(())
    })
    .unwrap();
}

#[test]
fn rounds_replayed_under_their_own_policy_give_the_same_bytes_and_under_another_they_differ() {
    on_virtual_time(47, async {
        let world = world(short(2_000), 2, 2).await?;
        let other = runtime().bundled("trimmed-mean").unwrap();
        let shelf = Shelf::holding([world.codec.clone(), world.merge.clone(), world.pace.clone(), other.clone()]);
        let (ledger, entries) = switched(&world, &shelf, async || Ok(())).await?;
        let before = world.bucket.store().list(None).count().await;
        let desk = Desk { shelf: shelf.clone(), ..world.desk(STEP) };
        let mut replayed = Vec::new();
        let all = Rounds::Past { first: 0, last: u64::MAX };
        let gone = syncer::replay(&desk, &world.record.merge, all, |round| replayed.push(round)).await?;
        assert_eq!((gone, replayed.len()), (0, ledger.rounds_committed() as usize));
        assert!(replayed.iter().all(|round| round.same && round.failed.is_none()), "{replayed:?}");
        let mut replayed = Vec::new();
        let some = Rounds::Past { first: 5, last: 8 };
        syncer::replay(&desk, &used(&other, r#"{"outer":"sgd","eta":1,"cooldown":0}"#), some, |round| {
            replayed.push(round);
        })
        .await?;
        let rounds: Vec<u64> = replayed.iter().map(|round| round.round).collect();
        assert_eq!(rounds, [5, 6, 7, 8]);
        for round in &replayed {
            // Plain SGD takes the mean itself; what was committed is ahead of that by its momentum.
            let commit = entries.iter().find_map(|entry| match &entry.body {
                Body::Commit(commit) if commit.round == round.round => Some(commit.outer),
                _ => None,
            });
            let outer = commit.expect("it was committed");
            let [tensor] = &round.tensors[..] else { panic!("one tensor a fragment: {round:?}") };
            assert!((tensor.candidate_norm - f64::from(outer.delta_norm)).abs() < 1e-6, "{round:?}");
            assert!((tensor.committed_norm - f64::from(outer.step_norm)).abs() < 1e-6, "{round:?}");
            let expected = f64::from(outer.step_norm - outer.delta_norm);
            assert!((tensor.difference_norm - expected).abs() < 1e-6 && !round.same, "{round:?}");
        }
        assert_eq!(world.bucket.store().list(None).count().await, before, "nothing was written");
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_candidate_in_the_shadow_that_traps_is_reported_and_the_run_never_hears_of_it() {
    on_virtual_time(48, async {
        let world = world(short(2_000), 2, 2).await?;
        let bad = runtime().load(&MergeText { step: "(unreachable)", ..MergeText::default() }.wasm()).unwrap();
        let shelf = Shelf::holding([world.codec.clone(), world.merge.clone(), world.pace.clone(), bad.clone()]);
        let mut replayed = Vec::new();
        let (ledger, entries) = switched(&world, &shelf, async || {
            after(&world, 3).await?;
            let desk = Desk { shelf: shelf.clone(), ..world.desk(STEP) };
            syncer::replay(&desk, &used(&bad, ""), Rounds::Next(5), |round| replayed.push(round)).await.map(|_| ())
        })
        .await?;
        let rounds: Vec<u64> = replayed.iter().map(|round| round.round).collect();
        assert_eq!(rounds.len(), 5);
        assert!(rounds.windows(2).all(|pair| pair[1] == pair[0] + 1), "{rounds:?}");
        let trapped = |round: &Replayed| round.failed.as_ref().is_some_and(|why| why.contains("trapped"));
        assert!(replayed.iter().all(trapped), "{replayed:?}");
        assert!(switches(&entries).is_empty() && ledger.fates.refused == 0);
        Ok(())
    })
    .unwrap();
}

/// Two islands and one that takes ten of their steps for one, and is left behind by `adaptive-grace`.
const ONE_SLOW: [(&str, Duration); 3] = [("a", STEP), ("b", STEP), ("c", Duration::from_secs(1))];

/// Runs [`ONE_SLOW`] to the end, switched to this pace after six rounds; gives the first round of the new one, and all that were committed.
async fn paced(name: &str, config: &str) -> Result<(u64, Vec<Entry>)> {
    let world = world(short(6_000), 2, 3).await?;
    let other = runtime().bundled(name).unwrap();
    let shelf = Shelf::holding([world.codec.clone(), world.merge.clone(), world.pace.clone(), other.clone()]);
    let policy = used(&other, config);
    let (ledger, entries) =
        with_islands(&ONE_SLOW, &world, &shelf, async || switch(&world, 6, Role::Pace, &policy, None).await).await?;
    assert_eq!(ledger.fates.refused, 0);
    let [switch] = switches(&entries)[..] else { panic!("{:?}", switches(&entries)) };
    let (from, before) = (switch.from_round, "bundled closed it ");
    assert!(committed(&entries).filter(|commit| commit.round < from).all(|commit| commit.reason.starts_with(before)));
    let behind = committed(&entries).filter(|commit| commit.round < from && merged(commit) == ["a", "b"]).count();
    assert!(behind > 0, "the slow one was left behind");
    Ok((from, entries))
}

#[test]
fn every_round_from_the_one_named_on_is_closed_by_the_other_pace_and_wait_all_waits_for_the_slowest() {
    on_virtual_time(49, async {
        let (from, entries) = paced("wait-all", "").await?;
        let after: Vec<&Commit> = committed(&entries).filter(|commit| commit.round >= from).collect();
        assert!(after.len() > 10, "{}", after.len());
        for commit in after {
            assert_eq!(merged(commit), ["a", "b", "c"], "{commit:?}");
            let in_words = commit.reason.starts_with("another closed it ");
            assert!(in_words && commit.reason.ends_with(" ms after quorum, with every live island"), "{commit:?}");
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn fixed_closes_rounds_its_time_after_quorum_whoever_is_missing() {
    on_virtual_time(50, async {
        let (from, entries) = paced("fixed", r#"{"grace_ms":250}"#).await?;
        let mut without = 0;
        for commit in committed(&entries).filter(|commit| commit.round >= from) {
            let Some(reason) = commit.reason.strip_suffix(" ms after quorum, without c") else { continue };
            let waited: u64 = reason.strip_prefix("another closed it ").unwrap().parse().unwrap();
            // It is asked again after the next look at the offers, of which each call takes a millisecond.
            assert!((250..=255).contains(&waited) && merged(commit) == ["a", "b"], "{commit:?}");
            without += 1;
        }
        assert!(without > 10, "{without}");
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_pace_that_traps_loops_or_answers_an_error_is_given_up_for_the_one_before_it_and_no_offer_is_lost() {
    let bad = [
        ("(unreachable)", "trapped in decide"),
        ("(loop $forever (br $forever)) (unreachable)", "used up its"),
        (PaceText::REFUSE, "refused decide"),
    ];
    for (seed, (decide, why)) in (51..).zip(bad) {
        on_virtual_time(seed, async {
            let world = world(short(3_000), 2, 2).await?;
            let bad = runtime().load(&PaceText { decide }.wasm()).unwrap();
            let shelf = Shelf::holding([world.codec.clone(), world.merge.clone(), world.pace.clone(), bad.clone()]);
            let policy = used(&bad, "");
            let (ledger, entries) =
                switched(&world, &shelf, async || switch(&world, 6, Role::Pace, &policy, Some(15)).await).await?;
            let [asked, given_up] = switches(&entries)[..] else { panic!("{:?}", switches(&entries)) };
            assert_eq!((asked.from_round, &asked.failed), (15, &None));
            assert_eq!((given_up.from_round, given_up.policy.is_same(&world.record.pace)), (15, true));
            assert!(given_up.failed.as_ref().is_some_and(|failed| failed.why.contains(why)), "{given_up:?}");
            let rounds: Vec<u64> = committed(&entries).map(|commit| commit.round).collect();
            assert_eq!(rounds, (2..2 + rounds.len() as u64).collect::<Vec<_>>(), "no round is left out");
            assert!(rounds.len() > 30 && committed(&entries).all(|commit| merged(commit) == ["a", "b"]));
            assert_eq!((ledger.fates.refused, ledger.fates.late), (0, 0));
            Ok(())
        })
        .unwrap();
    }
}

#[test]
fn a_run_whose_first_pace_fails_ends_its_syncer_with_the_error_and_closes_no_round() {
    on_virtual_time(54, async {
        let mut world = world(short(3_000), 2, 2).await?;
        world.pace = runtime().load(&PaceText { decide: "(unreachable)" }.wasm()).unwrap();
        world.record.pace = used(&world.pace, "");
        let error = switched(&world, &world.shelf(), async || Ok(())).await.expect_err("there is none before it");
        assert!(error.chain().contains("the pace policy failed") && error.chain().contains("trapped"), "{error:?}");
        assert_eq!(world.ledger().await?.rounds_committed(), 0, "by no silent default");
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_pace_that_never_closes_a_round_holds_it_up_for_ten_minutes_and_the_run_goes_on() {
    on_virtual_time(55, async {
        let world = world(short(200), 2, 2).await?;
        let never = runtime().load(&PaceText { decide: PaceText::WAIT }.wasm()).unwrap();
        let shelf = Shelf::holding([world.codec.clone(), world.merge.clone(), world.pace.clone(), never.clone()]);
        let policy = used(&never, "");
        let (ledger, entries) =
            switched(&world, &shelf, async || switch(&world, 12, Role::Pace, &policy, None).await).await?;
        let last = committed(&entries).last().expect("a commit");
        assert!(last.reason.starts_with("the syncer closed it over another 600"), "{last:?}");
        assert_eq!((merged(last), ledger.fates.refused), (vec!["a", "b"], 0));
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_first_codec_that_encodes_nothing_leaves_the_log_going_and_the_run_goes_on_under_another() {
    on_virtual_time(61, async {
        let mut world = world(short(1_500), 2, 1).await?;
        let good = world.codec.clone();
        let bad = runtime().load(&CodecText { encode: "(unreachable)", ..CodecText::default() }.wasm()).unwrap();
        (world.codec, world.record.codec) = (bad.clone(), used(&bad, ""));
        let shelf = Shelf::holding([bad.clone(), good.clone(), world.merge.clone(), world.pace.clone()]);
        let policy = used(&good, "");
        let (ledger, entries) = with_islands(&[("a", STEP)], &world, &shelf, async || {
            while world.ledger().await?.rounds_skipped() < 4 {
                clock::sleep(STEP).await;
            }
            activate::activate(&world.bucket, &world.record, Role::Codec, &policy, None).await.map(|_| ())
        })
        .await?;
        let refused = ledger.fates.reasons.get("its values are not of the fragment's shape").copied().unwrap_or(0);
        assert!(ledger.rounds_skipped() >= 4 && refused >= ledger.rounds_skipped(), "{:?}", ledger.fates);
        assert_eq!(ledger.stopped.as_deref(), Some("the token budget is merged"));
        assert!(switches(&entries).iter().all(|switch| switch.failed.is_none()), "nobody had to give anything up");
        Ok(())
    })
    .unwrap();
}
