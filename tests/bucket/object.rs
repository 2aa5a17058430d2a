//! Large objects: what was written is what is read, and what is damaged, oversized or foreign is refused with its key.

use object_store::ObjectStoreExt;
use object_store::path::Path;
use tombolo::bucket::payload::{Chunk, Data, content_hash};
use tombolo::bucket::record::{FORMAT, PolicyUse, Version};
use tombolo::bucket::{
    Active, Bucket, CheckpointHeader, FragmentFacts, Ledger, OfferHeader, OfferId, OuterState, Vector,
};
use tombolo::data::Cursor;
use tombolo::error::{Error, Kind};
use tombolo::outer::Fragments;
use tombolo::sim::{Disturbance, Proxy};
use tombolo_engine::Layout;

use crate::support::server::servers;
use crate::support::store::{Place, everywhere, on_server, through};
use crate::{bucket, model, values};

/// Width of the model: its embedding takes two chunks.
const HIDDEN: usize = 160;

fn id(round: u64, island: &str, incarnation: u64) -> OfferId {
    OfferId { round, island: island.into(), incarnation }
}

fn offer(id: &OfferId, bytes: Vec<u8>) -> (OfferHeader, Vec<Chunk>) {
    let half = bytes.len() / 2;
    let chunk = |offset: usize, bytes: &[u8]| Chunk {
        section: "offer".into(),
        tensor: 0,
        offset: offset as u64,
        elements: bytes.len() as u32,
        data: Data::Encoded(bytes.to_vec()),
    };
    let chunks = vec![chunk(0, &bytes[..half]), chunk(half, &bytes[half..])];
    let header = OfferHeader {
        format: FORMAT,
        run: "run".into(),
        layout: "layout".into(),
        id: id.clone(),
        fragment: 0,
        base: 0,
        tokens: 100,
        steps: 2,
        codec: "codec".into(),
        codec_config: String::new(),
        hash: content_hash(&chunks),
    };
    (header, chunks)
}

/// Asserts that an error is of this kind and names the key.
fn assert_names(error: &Error, kind: Kind, key: &Path) {
    assert_eq!(error.kind(), kind, "{}", error.chain());
    assert!(error.chain().contains(key.as_ref()), "expected {key} in: {}", error.chain());
}

/// The object under `key`, after `change`, put back in its place.
async fn tamper(place: &Place, key: &Path, change: impl Fn(&mut Vec<u8>)) {
    let mut body = place.store.get(key).await.expect("the object").bytes().await.expect("its body").to_vec();
    change(&mut body);
    place.store.put(key, body.into()).await.expect("written");
}

#[test]
fn offers_are_listed_by_round_and_read_back_as_they_were_written() {
    everywhere(|place| async move {
        let bucket = bucket(&place);
        assert_eq!(bucket.offers(5).await.expect("listed"), []);
        let ids = [id(5, "a", 1), id(5, "a", 12), id(5, "a-b", 2), id(5, "c", 1), id(6, "a", 1), id(50, "a", 1)];
        for (i, id) in ids.iter().enumerate() {
            let (header, chunks) = offer(id, vec![i as u8; 3000]);
            let written = bucket.put_offer(&header, chunks.clone()).await.expect("written");
            assert!(written > 3000);
            // Written again after a lost answer, it is the same.
            bucket.put_offer(&header, chunks.clone()).await.expect("written");
            let read = bucket.offer(id, written).await.expect("read");
            assert_eq!((read.header, read.chunks), (header, chunks));
        }
        let mut listed: Vec<OfferId> = bucket.offers(5).await.expect("listed").into_iter().map(|(id, _)| id).collect();
        listed.sort();
        assert_eq!(listed, ids[..4], "only those of the round");
        let sizes = bucket.offers(6).await.expect("listed");
        assert_eq!(sizes.len(), 1);
        assert!(bucket.offer(&ids[4], sizes[0].1).await.is_ok(), "the listing gives the size");
        let policy = |digit: &str| PolicyUse { name: digit.into(), hash: digit.repeat(64), config: String::new() };
        let mut ledger = Ledger::new(1, 4, Active::new(&policy("c"), &policy("a"), &policy("p")));
        ledger
            .decided
            .extend(ids.iter().filter(|id| id.island != "c").map(|id| (id.round, id.island.clone(), id.incarnation)));
        bucket.prune_offers(5, &ledger).await.expect("nothing is older");
        assert_eq!(bucket.offers(5).await.expect("listed").len(), 4, "the round itself keeps its own");
        bucket.prune_offers(6, &ledger).await.expect("pruned");
        let left: Vec<String> = bucket.offers(5).await.expect("listed").into_iter().map(|(id, _)| id.island).collect();
        assert_eq!(left, ["c"], "an offer without a fate stays until it has one");
        ledger.next_round = 6 + tombolo::bucket::MEMORY_ROUNDS;
        bucket.prune_offers(6, &ledger).await.expect("pruned");
        assert_eq!(bucket.offers(5).await.expect("listed"), [], "unless it is too old to get one");
        assert_eq!(bucket.offers(6).await.expect("listed"), sizes, "other rounds keep theirs");
    });
}

#[test]
fn a_damaged_oversized_or_absent_offer_is_refused_with_its_key_and_a_foreign_object_is_no_offer() {
    everywhere(|place| async move {
        let bucket = bucket(&place);
        let at = |island: &str| bucket.keys().offer(&id(5, island, 1));
        for island in ["cut", "flipped", "forged", "large"] {
            let (header, chunks) = offer(&id(5, island, 1), (0..3000u32).map(|i| (i % 251) as u8).collect());
            bucket.put_offer(&header, chunks).await.expect("written");
        }
        tamper(&place, &at("cut"), |body| body.truncate(body.len() / 2)).await;
        // Somewhere in the second half of the values: 1,500 bytes that no other part of the file resembles.
        tamper(&place, &at("flipped"), |body| {
            let pattern: Vec<u8> = (2000..2100u32).map(|i| (i % 251) as u8).collect();
            let found = body.windows(100).position(|w| w == pattern).expect("the values are in the file");
            body[found] ^= 1;
        })
        .await;
        // Another island's object under this key: whole, but its header says whose it is.
        let (header, chunks) = offer(&id(5, "other", 1), vec![1; 3000]);
        bucket.put_offer(&header, chunks).await.expect("written");
        let copied = place.store.get(&at("other")).await.expect("the object").bytes().await.expect("its body");
        place.store.put(&at("forged"), copied.into()).await.expect("written");

        for island in ["cut", "flipped"] {
            let error = bucket.offer(&id(5, island, 1), 1 << 20).await.expect_err("damaged");
            assert_names(&error, Kind::Corrupt, &at(island));
        }
        let error = bucket.offer(&id(5, "large", 1), 2000).await.expect_err("oversized");
        assert_names(&error, Kind::Corrupt, &at("large"));
        let error = bucket.offer(&id(5, "absent", 1), 1 << 20).await.expect_err("absent");
        assert_names(&error, Kind::Unavailable, &at("absent"));
        let forged = bucket.offer(&id(5, "forged", 1), 1 << 20).await.expect("whole");
        assert_eq!(forged.header.id.island, "other", "the firewall compares this with the key");

        let folder = bucket.keys().offers(5);
        for name in ["README.txt", "A.000001.arrow", "a.1.arrow", "a.000001.parquet"] {
            place.store.put(&Path::from(format!("{folder}/{name}")), "foreign".into()).await.expect("written");
        }
        let listed = bucket.offers(5).await.expect("listed");
        assert_eq!(listed.len(), 5, "foreign objects are no offers: {listed:?}");
    });
}

#[test]
fn a_version_and_its_state_come_back_bit_by_bit_and_refuse_another_layout_or_hash() {
    everywhere(|place| async move {
        let bucket = bucket(&place);
        let (_, fragments) = model(HIDDEN);
        let p = 0;
        let elements = fragments.elements(p);
        assert!(elements > tombolo::policy::CHUNK_ELEMENTS, "more than one chunk");
        let parameters = values(elements, 1);
        let vectors = [values(elements, 2), values(elements, 3), values(elements, 4)];
        let [first, second, lost] = vectors.clone().map(Vector::from);
        let beside = OuterState { slots: vec![first, second], memo: vec![0, 255, 7], residual: Some(lost) };
        let hash = bucket.put_fragment(&fragments, p, 10, &parameters).await.expect("written");
        let state = bucket.put_fragment_state(&fragments, p, 10, &beside).await.expect("written");
        let version = Version { round: 10, hash: hash.clone(), state: Some(state.clone()), step: None };
        assert_eq!(bucket.fragment(&fragments, p, &version).await.expect("read"), parameters);
        let OuterState { slots, memo, residual } = bucket.fragment_state(&fragments, p, &version).await.expect("read");
        let found: Vec<Vec<f32>> = slots.into_iter().chain(residual).map(|v| v.into_vec().expect("read")).collect();
        assert_eq!((&found[..], &memo), (&vectors[..], &beside.memo));
        let initial = Version { state: None, ..version.clone() };
        let none = bucket.fragment_state(&fragments, p, &initial).await.expect("none");
        assert!(none.vectors().count() == 0 && none.memo.is_empty());

        let again = bucket.put_fragment(&fragments, p, 10, &parameters).await.expect("written");
        assert_eq!(again, hash, "the same values have the same name");
        let beside = OuterState { memo: b"another memo".to_vec(), ..beside };
        let other = bucket.put_fragment_state(&fragments, p, 10, &beside).await.expect("written");
        assert_ne!(other, state, "the memo is part of what the name says");

        // The same sizes, cut into another number of fragments: another layout.
        let (layout, _) = model(HIDDEN);
        let foreign = Fragments::partition(&layout, 3).expect("partitioned");
        let key = bucket.keys().fragment(p, 10, &hash);
        let error = bucket.fragment(&foreign, p, &version).await.expect_err("another layout");
        assert_names(&error, Kind::Corrupt, &key);
        assert!(error.chain().contains(foreign.fingerprint()) && error.chain().contains(fragments.fingerprint()));
        let error = bucket.fragment_state(&foreign, p, &version).await.expect_err("another layout");
        assert_names(&error, Kind::Corrupt, &bucket.keys().fragment_state(p, 10, &state));

        let absent = Version { hash: "0".repeat(64), ..version.clone() };
        let error = bucket.fragment(&fragments, p, &absent).await.expect_err("absent");
        assert_names(&error, Kind::Unavailable, &bucket.keys().fragment(p, 10, &absent.hash));
        // Other values under this name, whole in themselves.
        let wrong = bucket.put_fragment(&fragments, p, 10, &values(elements, 4)).await.expect("written");
        let body =
            place.store.get(&bucket.keys().fragment(p, 10, &wrong)).await.expect("it").bytes().await.expect("it");
        place.store.put(&key, body.into()).await.expect("written");
        assert_names(&bucket.fragment(&fragments, p, &version).await.expect_err("other values"), Kind::Corrupt, &key);
    });
}

#[test]
fn values_that_are_not_finite_are_never_read_as_a_version() {
    everywhere(|place| async move {
        let bucket = bucket(&place);
        let (_, fragments) = model(32);
        let mut parameters = values(fragments.elements(1), 1);
        parameters[3] = f32::NAN;
        let hash = bucket.put_fragment(&fragments, 1, 11, &parameters).await.expect("written");
        let version = Version { round: 11, hash: hash.clone(), state: None, step: None };
        let error = bucket.fragment(&fragments, 1, &version).await.expect_err("not finite");
        assert_names(&error, Kind::Corrupt, &bucket.keys().fragment(1, 11, &hash));
    });
}

fn checkpoint_header(fragments: &Fragments, step: u64) -> CheckpointHeader {
    CheckpointHeader {
        format: FORMAT,
        layout: fragments.fingerprint().into(),
        island: "a".into(),
        incarnation: 3,
        step,
        tokens: step * 512,
        tokens_repeated: 7,
        adam_steps: step,
        late: 5,
        held: vec![Cursor { block: 4, attempt: 1, window: 19 }, Cursor::at(8)],
        fragments: (0..fragments.count()).map(|p| FragmentFacts { base: p as u64, steps: 2, tokens: 1024 }).collect(),
        hash: String::new(),
    }
}

async fn put_checkpoint(bucket: &Bucket, layout: &Layout, fragments: &Fragments, step: u64) {
    let [parameters, first, second] = [1, 2, 3].map(|seed| values(layout.elements(), seed + step as usize));
    let header = checkpoint_header(fragments, step);
    bucket.put_checkpoint(layout, header, [&parameters, &first, &second]).await.expect("written");
}

#[test]
fn checkpoints_come_back_whole_newest_last_and_only_as_many_as_are_kept() {
    everywhere(|place| async move {
        let bucket = bucket(&place);
        let (layout, fragments) = model(32);
        assert!(bucket.checkpoints("a").await.expect("listed").is_empty());
        for step in [9, 10, 100, 1000] {
            put_checkpoint(&bucket, &layout, &fragments, step).await;
        }
        assert_eq!(bucket.checkpoints("a").await.expect("listed"), [9, 10, 100, 1000]);
        let (header, parameters, first, second) = bucket.checkpoint(&layout, &fragments, "a", 100).await.expect("read");
        assert_eq!(CheckpointHeader { hash: String::new(), ..header }, checkpoint_header(&fragments, 100));
        let expected = [101, 102, 103].map(|seed| values(layout.elements(), seed));
        assert_eq!([parameters, first, second], expected);

        bucket.prune_checkpoints("a", 1000, 2).await.expect("pruned");
        assert_eq!(bucket.checkpoints("a").await.expect("listed"), [100, 1000]);
        bucket.prune_checkpoints("a", 1000, 2).await.expect("nothing left to prune");
        assert_eq!(bucket.checkpoints("a").await.expect("listed"), [100, 1000]);
        bucket.prune_checkpoints("a", 100, 2).await.expect("pruned");
        assert_eq!(bucket.checkpoints("a").await.expect("listed"), [100], "steps beyond the newest are of a lost life");
        assert!(bucket.checkpoints("a-b").await.expect("listed").is_empty(), "another island's are its own");
    });
}

#[test]
fn a_damaged_checkpoint_or_one_of_another_layout_is_refused() {
    everywhere(|place| async move {
        let bucket = bucket(&place);
        let (layout, fragments) = model(32);
        put_checkpoint(&bucket, &layout, &fragments, 5).await;
        put_checkpoint(&bucket, &layout, &fragments, 6).await;
        let key = bucket.keys().checkpoint("a", 5);
        tamper(&place, &key, |body| {
            let middle = body.len() / 2;
            body[middle] ^= 0x40;
        })
        .await;
        let error = bucket.checkpoint(&layout, &fragments, "a", 5).await.expect_err("damaged");
        assert_names(&error, Kind::Corrupt, &key);
        let foreign = Fragments::partition(&layout, 3).expect("partitioned");
        let error = bucket.checkpoint(&layout, &foreign, "a", 6).await.expect_err("another layout");
        assert_names(&error, Kind::Corrupt, &bucket.keys().checkpoint("a", 6));
        assert!(bucket.checkpoint(&layout, &fragments, "a", 6).await.is_ok());
    });
}

#[test]
fn pruning_a_fragment_never_removes_its_current_version() {
    everywhere(|place| async move {
        let bucket = bucket(&place);
        let (_, fragments) = model(32);
        let (p, elements) = (1, fragments.elements(1));
        let mut versions = Vec::new();
        for round in [1, 6, 11, 16] {
            let parameters = values(elements, round as usize);
            let hash = bucket.put_fragment(&fragments, p, round, &parameters).await.expect("written");
            let beside = OuterState { slots: vec![parameters.into()], ..OuterState::default() };
            let state = bucket.put_fragment_state(&fragments, p, round, &beside).await.expect("written");
            versions.push(Version { round, hash, state: Some(state), step: None });
        }
        let another = bucket.put_fragment(&fragments, 2, 2, &values(fragments.elements(2), 1)).await.expect("written");

        // Far beyond the newest round, as a syncer that is far behind with its bookkeeping might.
        bucket.prune_fragment(p, 1000, &versions[2]).await.expect("pruned");
        let (values, state) =
            (bucket.fragment(&fragments, p, &versions[2]), bucket.fragment_state(&fragments, p, &versions[2]));
        assert_eq!(values.await.expect("it is there").len(), elements);
        assert_eq!(state.await.expect("it is there").slots.len(), 1);
        for gone in [0, 1, 3] {
            let error = bucket.fragment(&fragments, p, &versions[gone]).await.expect_err("pruned");
            assert_eq!(error.kind(), Kind::Unavailable);
        }
        let other = Version { round: 2, hash: another, state: None, step: None };
        assert!(bucket.fragment(&fragments, 2, &other).await.is_ok(), "another fragment is left alone");
    });
}

#[test]
fn the_committed_model_is_every_fragment_in_the_version_that_the_log_names() {
    everywhere(|place| async move {
        let bucket = bucket(&place);
        let (layout, fragments) = model(32);
        let arena = values(layout.elements(), 9);
        let mut versions = Vec::new();
        for p in 0..fragments.count() {
            let hash =
                bucket.put_fragment(&fragments, p, p as u64, &fragments.gather(p, &arena)).await.expect("written");
            versions.push(Version { round: p as u64, hash, state: None, step: None });
        }
        assert_eq!(bucket.committed(&fragments, &versions).await.expect("read"), arena);
        versions[3].hash = versions[2].hash.clone();
        assert!(bucket.committed(&fragments, &versions).await.is_err());
    });
}

/// The client asks for the rest four times by itself; sixteen are needed. With a body of 2^16 bytes each cut leaves half, so as many cuts as that,
/// each on half of what the one before was on, are bytes that are fetched once and no byte twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_object_whose_every_body_is_cut_in_half_arrives_whole_with_each_byte_fetched_once() {
    let downloads = servers().iter().map(|server| async move {
        let name = server.bucket();
        let body: Vec<u8> = (0..1u32 << 16).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        let key = Path::from("large");
        on_server(server, &name).put(&key, body.clone().into()).await.expect("written");
        let proxy = Proxy::start(&server.endpoint, 0).await.expect("a proxy");
        proxy.set(Disturbance { cut_off: 1.0, ..Disturbance::default() });
        let found = through(server, proxy.endpoint(), &name).get(&key).await.expect(server.name);
        let got = found.bytes().await.unwrap_or_else(|error| panic!("{}: {error}", server.name));
        assert!(got == body, "{}: {} bytes that are others", server.name, got.len());
        let cuts = proxy.spoilt().get("answers cut off").copied();
        assert_eq!(cuts, Some(16), "{}: cuts of 65536, 32768, ... 2 bytes", server.name);
    });
    futures::future::join_all(downloads).await;
}
