//! The way down: versions travel as encoded steps, every reader comes to the same bits, and whatever is wrong with a step costs bytes, never progress.

use object_store::ObjectStoreExt;
use tombolo::bucket::record::{StepRef, Version};
use tombolo::bucket::{Step, Tail};
use tombolo::policy::{CHUNK_ELEMENTS, Policy};
use tombolo::sim::toy::{Drift, Seen};

use super::*;
use crate::guest::CodecText;
use crate::support::watched::{Call, Watched};

fn is_step((what, key): Call<'_>) -> bool {
    what == "get" && key.ends_with(".step.arrow")
}

/// A version of a fragment, read whole.
fn is_whole((what, key): Call<'_>) -> bool {
    what == "get" && key.contains("/fragment/") && !key.ends_with(".step.arrow")
}

/// A whole version that is none of the two initial ones.
fn is_whole_and_made(call: Call<'_>) -> bool {
    is_whole(call) && ![0, 1].iter().any(|round| call.1.contains(&format!("/{round:020}-")))
}

/// Steps and whole versions that were read through a store.
fn read(store: &Watched) -> (u64, u64) {
    (store.calls(is_step), store.calls(is_whole))
}

/// The world as an island finds it that reaches the bucket through a store of its own, which fails what `refuses` names.
fn through(world: &World, refuses: fn(Call<'_>) -> bool) -> (World, Arc<Watched>) {
    let store = Arc::new(Watched::refusing(world.bucket.store().clone(), refuses));
    (World { bucket: Bucket::new(store.clone(), &world.record.spec.run), ..world.clone() }, store)
}

/// Two fragments of more than one chunk each.
fn wide() -> Layout {
    let length = CHUNK_ELEMENTS + 1000;
    let tensor =
        |i: usize| Tensor { name: format!("t{i}"), shape: vec![length], kind: TensorKind::Matrix, offset: i * length };
    Layout { tensors: (0..2).map(tensor).collect() }
}

/// A run over [`wide`] whose versions go down by `down`.
async fn wide_world(down: &Policy) -> Result<World> {
    let mut spec = Spec { tokens: 400, ..spec(2, "mean", SGD) };
    spec.keep.versions = 1_000;
    let mut world = world_of(spec, wide(), 2).await?;
    world.record.down = Some(PolicyUse { name: "down".into(), hash: down.hash().to_string(), config: String::new() });
    world.bucket.create_run(&world.record).await?;
    world.others.push(down.clone());
    Ok(world)
}

/// Runs islands, each in the world as it finds it and as soon as so many rounds are committed, and a syncer, to the end of the run. Gives the ledger, every
/// commit's version with that which it extends, and what was noted.
async fn run(world: &World, islands: &[(&str, &World, u64)]) -> Result<(Ledger, Vec<(Version, Version)>, Vec<String>)> {
    let (sender, mut events) = tokio::sync::mpsc::channel(100_000);
    let sink = Sink::Channel(sender);
    let mut roles = JoinSet::new();
    for &(name, found, rounds) in islands {
        let inner = Box::new(Drift::new(name, world.layout.elements(), Seen::default()));
        let mut site = Some(Site { sink: sink.clone(), ..found.site(name, inner, STEP) });
        let once = move || std::future::ready(site.take().ok_or_else(|| Error::bug("one life")));
        let world = world.clone();
        roles.spawn(async move {
            while world.ledger().await?.rounds_committed() < rounds {
                clock::sleep(STEP).await;
            }
            island::live(once, Drive::Virtual(STEP), std::future::pending()).await.map(|_| ())
        });
    }
    let desk = syncer::Desk { sink, ..world.desk(STEP) };
    roles.spawn(async move { syncer::run(desk, std::future::pending()).await.map(|_| ()) });
    ended(roles, Duration::from_secs(600)).await?;
    let mut tail = Tail::new(Ledger::of(&world.record));
    let mut versions = Vec::new();
    for entry in tail.advance(&world.bucket, usize::MAX).await? {
        if let Body::Commit(commit) = entry.expect("no entry is void").body {
            versions.push((commit.base, commit.made));
        }
    }
    let verified = syncer::verify(&world.desk(STEP), 1, |_| ()).await?;
    assert!(verified.is_clean() && verified.same as usize == versions.len(), "{verified:?}");
    let mut notes = Vec::new();
    while let Ok(event) = events.try_recv() {
        if let Event::Note { text, .. } = event {
            notes.push(text);
        }
    }
    Ok((tail.ledger, versions, notes))
}

const SGD: &str = "outer = \"sgd\"\neta = 1\ncooldown = 0\n";

fn runtime() -> Runtime {
    Runtime::new(Limits::default(), None).expect("the policy runtime starts")
}

#[test]
fn islands_that_see_steps_only_and_one_that_joins_from_a_whole_version_come_to_the_same_bits() {
    on_virtual_time(61, async {
        let down = runtime().bundled("int4").unwrap();
        let world = wide_world(&down).await?;
        let [a, b] = [(); 2].map(|()| through(&world, is_whole_and_made));
        let late = through(&world, |_| false);
        let (ledger, versions, notes) = run(&world, &[("a", &a.0, 0), ("b", &b.0, 0), ("late", &late.0, 6)]).await?;
        assert!(notes.iter().all(|note| !note.contains("ALERT")), "{notes:?}");
        assert_eq!((ledger.fates.late, ledger.fates.refused), (0, 0));
        assert!(ledger.breadth.get(&2).is_some_and(|&rounds| rounds > 3), "{:?}", ledger.breadth);
        assert!(ledger.breadth.get(&3).is_some_and(|&rounds| rounds > 3), "the joiner keeps up: {:?}", ledger.breadth);
        for (_, store) in [&a, &b] {
            let (steps, wholes) = read(store);
            assert!(steps > 10 && wholes == 2, "{steps} steps and {wholes} whole versions");
        }
        assert_eq!(read(&late.1).1, 2, "whole versions are for joining");

        // What a version is: the one before it, and what the step decodes to.
        for (base, made) in &versions {
            let p = (made.round % 2) as usize;
            assert_eq!(made.step.as_ref().map(|step| step.from), Some(base.round));
            let before = world.bucket.fragment(&world.fragments, p, base).await?;
            let whole = world.bucket.fragment(&world.fragments, p, made).await?;
            let stepped = world
                .bucket
                .fragment_after(&world.fragments, p, made, &before, (&down, b""), usize::MAX)
                .await?
                .expect("a step")
                .into_vec()?;
            assert!(stepped.iter().zip(&whole).all(|(a, b)| a.to_bits() == b.to_bits()));
            // Levels of four bits in blocks: hardly any step of many values needs more than fifteen of them a block.
            let mut levels: Vec<u32> = before[..64].iter().zip(&whole).map(|(b, w)| (w - b).to_bits()).collect();
            levels.sort_unstable();
            levels.dedup();
            assert!(levels.len() <= 48, "the step is not the codec's: {} levels", levels.len());
            let lost = world.bucket.fragment_state(&world.fragments, p, made).await?.residual;
            assert!(lost.is_some(), "what four bits lose is kept");
        }
        Ok(())
    })
    .unwrap();
}

/// With plain SGD and η 1 the model is minus the sum of the merged means, whatever the way down: only what is lost last is missing.
#[test]
fn what_one_step_loses_goes_into_the_next() {
    on_virtual_time(62, async {
        let down = runtime().bundled("int4").unwrap();
        let world = wide_world(&down).await?;
        let (_, versions, _) = run(&world, &[("a", &world, 0)]).await?;
        let decay = Codec::open(&down, b"", &world.fragments.policy_tensors(0)).unwrap().traits().feedback_decay;
        assert_eq!(decay, Some(1.0), "the identity below holds for a residual that is carried whole");
        let mut sum: Vec<Vec<f64>> = (0..2).map(|p| vec![0.0; world.fragments.elements(p)]).collect();
        for (_, made) in &versions {
            let p = (made.round % 2) as usize;
            let offers = world.bucket.offers(made.round).await?;
            let offer = world.bucket.offer_spooled(&offers[0].0, 1 << 20).await?;
            let tensors = world.fragments.policy_tensors(p);
            tombolo::bucket::decode(&offer, (&world.codec, b""), &tensors, |start, values| {
                sum[p][start..].iter_mut().zip(values).for_each(|(sum, value)| *sum -= f64::from(value));
                Ok(())
            })?
            .1
            .expect("it decodes");
            let whole = world.bucket.fragment(&world.fragments, p, made).await?;
            let lost = world.bucket.fragment_state(&world.fragments, p, made).await?.residual.expect("it is kept");
            let lost = lost.into_vec()?;
            for ((sum, whole), lost) in sum[p].iter().zip(&whole).zip(&lost) {
                let missing = sum - f64::from(whole + lost);
                assert!(missing.abs() < 1e-4, "round {}: {missing} is neither here nor owed", made.round);
            }
            let owed = lost.iter().map(|value| value.abs()).fold(0.0, f32::max);
            assert!(owed > 1e-3, "round {}: four bits lose something", made.round);
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn islands_that_cannot_go_a_step_read_whole_versions_and_keep_up_and_say_so_once_where_a_step_is_wrong() {
    on_virtual_time(63, async {
        let (down, other) = (runtime().bundled("int8").unwrap(), runtime().bundled("bf16").unwrap());
        let world = wide_world(&down).await?;
        let gone = through(&world, is_step);
        // To this one, steps are bytes that its codec cannot have written.
        let (mut wrong, read_wrong) = through(&world, |_| false);
        wrong.record.down = Some(PolicyUse { hash: other.hash().to_string(), ..wrong.record.down.unwrap() });
        wrong.others.push(other);
        let (ledger, _, notes) = run(&world, &[("a", &world, 0), ("gone", &gone.0, 0), ("wrong", &wrong, 0)]).await?;
        assert_eq!(notes.iter().filter(|note| note.contains("reads versions whole")).count(), 1, "{notes:?}");
        for store in [&gone.1, &read_wrong] {
            let (steps, wholes) = read(store);
            assert!(steps > 5 && wholes >= steps, "{steps} steps and {wholes} whole versions");
        }
        assert_eq!((ledger.fates.late, ledger.fates.refused), (0, 0), "they keep up");
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_codec_that_fails_on_the_way_down_costs_bytes_and_no_round() {
    on_virtual_time(64, async {
        let bad = runtime().load(&CodecText { encode: "(unreachable)", ..CodecText::default() }.wasm()).unwrap();
        let world = wide_world(&bad).await?;
        let (a, store) = through(&world, |_| false);
        let (ledger, versions, notes) = run(&world, &[("a", &a, 0), ("b", &world, 0)]).await?;
        assert!(versions.len() > 10 && versions.iter().all(|(_, made)| made.step.is_none()));
        assert_eq!(notes.iter().filter(|note| note.contains("without a step down")).count(), versions.len());
        assert_eq!((ledger.fates.late, ledger.fates.refused), (0, 0));
        assert_eq!(read(&store).0, 0);
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_step_that_is_absent_another_models_or_leads_elsewhere_is_refused_with_its_key() {
    on_virtual_time(65, async {
        let down = runtime().bundled("bf16").unwrap();
        let world = wide_world(&down).await?;
        let (bucket, fragments) = (&world.bucket, &world.fragments);
        let tensors = fragments.policy_tensors(0);
        let values = |seed: usize| -> Vec<f32> {
            (0..fragments.elements(0)).map(|i| ((i * 31 + seed) % 97) as f32 * 0.01).collect()
        };
        let (before, after) = (values(1), values(2));
        let (step, committed, lost) = Step::encode("bf16", (&down, b""), &tensors, &before, &after, None)?;
        assert!(lost.is_none(), "bf16 wants nothing back");
        bucket.put_step(fragments, 0, 4, 2, &step).await?;
        let hash = bucket.put_fragment(fragments, 0, 4, &committed).await?;
        let version = |hash: &str, step: &str| Version {
            round: 4,
            hash: hash.into(),
            state: None,
            step: Some(StepRef { from: 2, hash: step.into() }),
        };
        let go = async |version: &Version, before: &Vec<f32>, fragments: &Fragments| {
            bucket.fragment_after(fragments, 0, version, before, (&down, b""), 0).await
        };
        let right = version(&hash, &step.hash);
        let reached = go(&right, &before, fragments).await?.expect("a step").into_vec()?;
        assert_eq!(reached, bucket.fragment(fragments, 0, &right).await?);
        let whole = Version { step: None, ..right.clone() };
        assert!(go(&whole, &before, fragments).await?.is_none());

        let key = bucket.keys().fragment_step(0, 4, &step.hash);
        let foreign = Fragments::partition(&world.layout, 1)?;
        let absent = "0".repeat(64);
        let wrong = [
            (go(&version(&hash, &absent), &before, fragments).await, Kind::Unavailable, absent.as_str()),
            (go(&right, &before, &foreign).await, Kind::Corrupt, foreign.fingerprint()),
            // From another version than it was made for.
            (go(&right, &after, fragments).await, Kind::Corrupt, hash.as_str()),
        ];
        for (error, kind, named) in wrong {
            let error = error.expect_err("it is refused");
            assert_eq!(error.kind(), kind);
            assert!(error.chain().contains(named), "{}", error.chain());
        }
        let body = world.bucket.store().get(&key).await.unwrap().bytes().await.unwrap();
        let mut damaged = body.to_vec();
        let at = damaged.len() / 2;
        damaged[at] ^= 1;
        world.bucket.store().put(&key, damaged.into()).await.unwrap();
        let error = go(&right, &before, fragments).await.expect_err("it is damaged");
        assert_eq!(error.kind(), Kind::Corrupt);
        assert!(error.chain().contains(key.as_ref()), "{}", error.chain());
        Ok(())
    })
    .unwrap();
}
