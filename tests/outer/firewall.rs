//! The firewall as a run sees it: offers that must not count, and rounds that have no others.

use super::{Constant, STEP, spec, world};
use crate::support::tape::Tape;
use object_store::ObjectStoreExt;
use tombolo::bucket::payload::{Chunk, Data, content_hash};
use tombolo::bucket::record::{Card, Commit, FORMAT, Fate, IslandState};
use tombolo::bucket::{OfferHeader, OfferId};
use tombolo::clock::{self, Duration};
use tombolo::error::Result;
use tombolo::island::{self, Drive, Inner};
use tombolo::policy::{At, Codec};
use tombolo::sim::{World, on_virtual_time};
use tombolo::syncer;

/// A run of one fragment of two numbers, with η 4, so that what is near the largest f32 overflows when it is applied.
async fn two_numbers() -> Result<World> {
    world(spec(1, "mean", "eta = 4\nmomentum = 0\n"), 2, 0).await
}

/// An offer as it should be: Δ of both numbers, eight tokens of one step, from the initial version, for round 1.
pub fn offer(world: &World, island: &str, incarnation: u64, delta: [f32; 2]) -> (OfferHeader, Vec<Chunk>) {
    let mut codec = Codec::open(&world.codec, b"", &world.fragments.policy_tensors(0)).unwrap();
    let mut chunk = |tensor: u32, value: f32| {
        let bytes = codec.encode(At { tensor, offset: 0 }, &[value]).unwrap();
        Chunk { section: "offer".into(), tensor, offset: 0, elements: 1, data: Data::Encoded(bytes) }
    };
    let chunks = vec![chunk(0, delta[0]), chunk(1, delta[1])];
    let header = OfferHeader {
        format: FORMAT,
        run: world.record.spec.run.clone(),
        layout: world.fragments.fingerprint().into(),
        id: OfferId { round: 1, island: island.into(), incarnation },
        fragment: 0,
        base: 0,
        tokens: 8,
        steps: 1,
        codec: world.codec.hash().to_string(),
        codec_config: String::new(),
        hash: content_hash(&chunks),
    };
    (header, chunks)
}

/// Puts an offer; its island claims its first life before, if it has none.
pub async fn put(world: &World, (mut header, chunks): (OfferHeader, Vec<Chunk>)) -> Result<()> {
    if world.bucket.newest_incarnation(&header.id.island).await? == 0 {
        world.bucket.claim_incarnation(&header.id.island).await?;
    }
    header.hash = content_hash(&chunks);
    world.bucket.put_offer(&header, chunks).await.map(|_| ())
}

/// Six offers that do not count, each for a reason of its own.
async fn six_bad_offers(world: &World) -> Result<()> {
    let (header, mut chunks) = offer(world, "short", 1, [1.0, 1.0]);
    chunks.pop();
    put(world, (header, chunks)).await?;
    let (header, mut chunks) = offer(world, "nan", 1, [1.0, 1.0]);
    // What the codec bf16 would write for it, if it did.
    chunks[1].data = Data::Encoded(vec![0xc0, 0x7f]);
    put(world, (header, chunks)).await?;
    let (mut header, chunks) = offer(world, "future", 1, [1.0, 1.0]);
    header.base = 1;
    put(world, (header, chunks)).await?;
    let (mut header, chunks) = offer(world, "idle", 1, [1.0, 1.0]);
    header.tokens = 0;
    put(world, (header, chunks)).await?;
    put(world, offer(world, "huge", 1, [-3.0e38, 1.0])).await?;
    put(world, offer(world, "good", 1, [7.0, 7.0])).await
}

/// The log's first commit, with or without the bad offers, and everything else that the log says.
fn first_commit(with_bad: bool) -> (Commit, Tape) {
    on_virtual_time(21, async {
        let world = two_numbers().await?;
        let desk = world.desk(STEP);
        tokio::spawn(async move { syncer::run(desk, std::future::pending()).await.expect("the syncer works") });
        assert_eq!(
            (world.bucket.claim_incarnation("good").await?, world.bucket.claim_incarnation("good").await?),
            (1, 2)
        );
        beat(&world, "good", 2).await?;
        clock::sleep(STEP * 3).await;
        if with_bad {
            six_bad_offers(&world).await?;
            clock::sleep(STEP * 3).await;
        }
        let good = offer(&world, "good", 2, [-0.5, 0.25]);
        put(&world, good.clone()).await?;
        put(&world, good).await?;
        while world.ledger().await?.rounds_committed() == 0 {
            clock::sleep(STEP).await;
        }
        let tape = Tape::read(&world.bucket).await;
        tape.assert_is_a_ledger();
        let commit = tape.commits().next().expect("one").clone();
        Ok((commit, tape))
    })
    .unwrap()
}

#[test]
fn a_round_with_six_bad_offers_closes_on_the_good_one_alone_with_the_same_bytes() {
    let (alone, _) = first_commit(false);
    let (commit, tape) = first_commit(true);
    assert_eq!(commit.made, alone.made, "the version and the state have the same hashes");
    assert_eq!((commit.fragment_tokens, commit.outer), (alone.fragment_tokens, alone.outer));
    assert_eq!(tape.skipped().count(), 0);
    let mut fates: Vec<(String, u64, Fate)> =
        tape.offers().map(|o| (o.id.island.clone(), o.id.incarnation, o.fate.clone())).collect();
    fates.sort_by_key(|(island, life, _)| (island.clone(), *life));
    let refused = |reason: &str| Fate::Refused(reason.into());
    let expected = [
        ("future", 1, refused("its base is in the future")),
        ("good", 1, Fate::Superseded),
        ("good", 2, Fate::Merged),
        ("huge", 1, refused("it cannot be merged")),
        ("idle", 1, refused("it has no tokens or no steps")),
        ("nan", 1, refused("its codec does not decode it to finite values")),
        ("short", 1, refused("its values are not of the fragment's shape")),
    ]
    .map(|(island, life, fate)| (island.to_string(), life, fate));
    assert_eq!(fates, expected);
}

/// A heartbeat of an island that trains in its life `incarnation`, a step in 100 ms.
pub async fn beat(world: &World, island: &str, incarnation: u64) -> Result<()> {
    let card = Card {
        format: FORMAT,
        island: island.into(),
        incarnation,
        counter: 1,
        state: IslandState::Training,
        step: 1,
        tokens: 8,
        tokens_per_s: 80.0,
        step_ms: 100.0,
        train_seconds: 1.0,
        ..Card::default()
    };
    world.bucket.put_card(&card).await
}

/// An island alone, whose first offer is damaged in the bucket before a syncer sees it.
#[test]
fn a_lone_island_whose_only_offer_is_refused_offers_again_and_the_run_goes_on() {
    let tape = on_virtual_time(22, async {
        let mut spec = spec(2, "mean", "eta = 1\nmomentum = 0\n");
        spec.tokens = 400;
        spec.outer.staleness_max = 0;
        let world = world(spec, 2, 1).await?;
        let inner: Box<dyn Inner> = Box::new(Constant { parameters: vec![0.0; 2], gradient: vec![1.0, 2.0] });
        let mut site = Some(world.site("alone", inner, STEP));
        let island = tokio::spawn(async move {
            let site = || std::future::ready(Ok(site.take().expect("it has one life")));
            island::live(site, Drive::Virtual(STEP), std::future::pending()).await.map(|_| ())
        });
        while world.bucket.offers(2).await?.is_empty() {
            clock::sleep(STEP).await;
        }
        let key = world.bucket.keys().offer(&OfferId { round: 2, island: "alone".into(), incarnation: 1 });
        world.bucket.store().put(&key, "no offer".into()).await.expect("written");
        let desk = world.desk(STEP);
        let syncer = tokio::spawn(async move { syncer::run(desk, std::future::pending()).await });
        let ended = clock::timeout(Duration::from_secs(120), island).await;
        ended.expect("the run ends").expect("no panic")?;
        syncer.await.expect("no panic")?;
        Ok(Tape::read(&world.bucket).await)
    })
    .unwrap();
    let tokens = tape.assert_is_a_ledger();
    let skipped: Vec<u64> = tape.skipped().map(|skip| skip.round).collect();
    assert_eq!(skipped, [2], "the round of the damaged offer, and no other");
    let refused: Vec<_> = tape.offers().filter(|o| o.fate != Fate::Merged).map(|o| (o.id.round, &o.fate)).collect();
    assert_eq!(refused, [(2, &Fate::Refused("its bytes are damaged".into()))]);
    // What the refused offer would have brought in comes with the fragment's next one, from the same base.
    let next = tape.commits().find(|commit| commit.round == 4).expect("round 4 is committed");
    assert_eq!(next.base.round, 0);
    assert_eq!(next.offers[0].base, 0);
    assert!(tokens.iter().sum::<u64>() / 2 >= 400, "{tokens:?}");
}

/// Two are wanted; one of them cannot be merged, so the other's progress must not wait for a round that can never be closed.
#[test]
fn a_round_that_cannot_reach_its_quorum_any_more_is_skipped_and_its_good_offer_is_late() {
    let tape = on_virtual_time(23, async {
        let mut spec = spec(1, "mean", "eta = 1\nmomentum = 0\n");
        spec.outer.quorum = 2;
        let world = world(spec, 2, 2).await?;
        let desk = world.desk(STEP);
        beat(&world, "a", 1).await?;
        beat(&world, "b", 1).await?;
        tokio::spawn(async move { syncer::run(desk, std::future::pending()).await.expect("the syncer works") });
        clock::sleep(STEP * 5).await;
        let (mut header, chunks) = offer(&world, "a", 1, [1.0, 1.0]);
        header.tokens = 0;
        put(&world, (header, chunks)).await?;
        put(&world, offer(&world, "b", 1, [1.0, 1.0])).await?;
        while world.ledger().await?.next_round == 1 {
            clock::sleep(STEP).await;
        }
        for island in ["a", "b"] {
            let (mut header, chunks) = offer(&world, island, 1, [1.0, -1.0]);
            header.id.round = 2;
            put(&world, (header, chunks)).await?;
        }
        while world.ledger().await?.next_round == 2 {
            clock::sleep(STEP).await;
        }
        Ok(Tape::read(&world.bucket).await)
    })
    .unwrap();
    tape.assert_is_a_ledger();
    let fates: Vec<_> = tape.offers().map(|o| (o.id.round, o.id.island.as_str(), o.fate.clone())).collect();
    let idle = Fate::Refused("it has no tokens or no steps".into());
    assert_eq!(fates, [(1, "b", Fate::Late), (1, "a", idle), (2, "a", Fate::Merged), (2, "b", Fate::Merged)]);
}

#[test]
fn an_offer_of_a_life_that_nobody_claimed_is_refused_and_locks_nobody_out() {
    let tape = on_virtual_time(22, async {
        let world = two_numbers().await?;
        let desk = world.desk(STEP);
        tokio::spawn(async move { syncer::run(desk, std::future::pending()).await.expect("the syncer works") });
        world.bucket.claim_incarnation("good").await?;
        beat(&world, "good", 1).await?;
        clock::sleep(STEP * 3).await;
        // Sound but for its life, which would outrank every life to come.
        put(&world, offer(&world, "good", 999_999, [1.0, 1.0])).await?;
        put(&world, offer(&world, "other", 2, [1.0, 1.0])).await?;
        clock::sleep(STEP * 3).await;
        put(&world, offer(&world, "good", 1, [-0.5, 0.25])).await?;
        while world.ledger().await?.rounds_committed() == 0 {
            clock::sleep(STEP).await;
        }
        Ok(Tape::read(&world.bucket).await)
    })
    .unwrap();
    tape.assert_is_a_ledger();
    let mut fates: Vec<(&str, u64, Fate)> =
        tape.offers().map(|o| (o.id.island.as_str(), o.id.incarnation, o.fate.clone())).collect();
    fates.sort_by_key(|(island, life, _)| (island.to_string(), *life));
    let unclaimed = Fate::Refused("its life was never claimed".into());
    assert_eq!(fates, [("good", 1, Fate::Merged), ("good", 999_999, unclaimed.clone()), ("other", 2, unclaimed)]);
}
