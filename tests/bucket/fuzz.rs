//! Thousands of damaged offers: each is refused by the reader or by the firewall with a clear reason, or it is still one of the offers that were written, value
//! for value. None brings a syncer down, hangs it or costs it memory without bound.
//!
//! See `support/mutant.rs` for the seed.

use std::sync::Arc;

use object_store::memory::InMemory;
use object_store::{ObjectStore, ObjectStoreExt};
use tombolo::bucket::payload::{Chunk, Data, content_hash};
use tombolo::bucket::record::{Body, Entry, FORMAT, Fate, Version};
use tombolo::bucket::{Bucket, Flat, Ledger, OfferHeader, OfferId};
use tombolo::error::{Error, Kind};
use tombolo::nonce::{nonce, sha256};
use tombolo::outer::Fragments;
use tombolo::policy::{Codec, Limits, Policy, Runtime, Tensor, chunks};
use tombolo::spec::Spec;
use tombolo::syncer::{Verdict, check};

use crate::log::policies;
use crate::support::mutant::{Mutants, assert_readable, each, memory_peak_bytes, told};
use crate::support::say;
use crate::{FRAGMENTS, model};

/// Offers that are made.
const INPUTS: usize = 7_000;

/// Their codecs, all that are bundled, in turn.
const CODECS: [&str; 7] = ["bf16", "f32", "fp4", "int4", "int8", "sign", "topk"];

/// Whole offers that they are made from, for each codec.
const WHOLE: usize = 3;

/// The round of all of them, the first after the initial versions.
const ROUND: u64 = FRAGMENTS as u64;

/// Alone this test needs some 32 MiB; the others of this program run beside it. Far less than what a header could ask for.
const MEMORY_MAX_BYTES: u64 = 2 << 30;

fn id() -> OfferId {
    OfferId { round: ROUND, island: "a".into(), incarnation: 1 }
}

fn ledger() -> Ledger {
    let mut ledger = Ledger::new(FRAGMENTS, 4, policies());
    let version = |round: u64| Version { round, hash: sha256(&round.to_le_bytes()), state: None, step: None };
    let body = Body::Start { versions: (0..FRAGMENTS as u64).map(version).collect(), window: 1 };
    let start = Entry { format: FORMAT, seq: 0, nonce: nonce(), writer: "s".into(), term: 0, body };
    ledger.apply(0, &start).expect("a start");
    ledger
}

/// An offer that the firewall lets pass: header, chunks, and what they decode to.
fn offer(
    fragments: &Fragments,
    policy: &Policy,
    tensors: &[Tensor],
    seed: usize,
) -> (OfferHeader, Vec<Chunk>, Vec<f32>) {
    let mut codec = Codec::open(policy, b"", tensors).expect("opens");
    let mut decoded = Vec::new();
    let encoded = chunks(tensors).map(|(at, elements)| {
        let values: Vec<f32> = (0..elements).map(|i| ((i * 31 + seed * 17) % 101) as f32 * 1e-3 - 0.05).collect();
        let bytes = codec.encode(at, &values).expect("encodes");
        decoded.extend(codec.decode(at, &bytes, elements).expect("decodes"));
        Chunk {
            section: "offer".into(),
            tensor: at.tensor,
            offset: at.offset,
            elements: elements as u32,
            data: Data::Encoded(bytes),
        }
    });
    let encoded: Vec<Chunk> = encoded.collect();
    let header = OfferHeader {
        format: FORMAT,
        run: Spec::default().run,
        layout: fragments.fingerprint().into(),
        id: id(),
        fragment: 0,
        base: 0,
        tokens: 100,
        steps: 2,
        codec: policy.hash().to_string(),
        codec_config: String::new(),
        hash: content_hash(&encoded),
    };
    (header, encoded, decoded)
}

/// What whole offers of one codec are.
struct Whole {
    name: &'static str,
    policy: Policy,
    /// As they lie in the store.
    bodies: Vec<Vec<u8>>,
    /// What they decode to.
    values: Vec<Vec<f32>>,
}

/// What a syncer has at hand for a round.
struct Desk {
    store: Arc<dyn ObjectStore>,
    bucket: Bucket,
    spec: Spec,
    ledger: Ledger,
    fragments: Fragments,
    tensors: Vec<Tensor>,
    codecs: Vec<Whole>,
}

/// What became of an input.
#[derive(PartialEq)]
enum Found {
    Unreadable,
    Corrupt,
    Decided,
    Good,
}

impl Desk {
    async fn new() -> Desk {
        let runtime = Runtime::new(Limits::default(), None).expect("an engine");
        let (_, fragments) = model(32);
        let tensors = fragments.policy_tensors(0);
        let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
        let spec = Spec::default();
        let bucket = Bucket::new(store.clone(), &spec.run);
        let mut codecs = Vec::new();
        for name in CODECS {
            let policy = runtime.bundled(name).expect("bundled");
            let mut whole = Whole { name, policy, bodies: Vec::new(), values: Vec::new() };
            for seed in 0..WHOLE {
                let (header, chunks, values) = offer(&fragments, &whole.policy, &tensors, seed);
                bucket.put_offer(&header, chunks).await.expect("written");
                let body = store.get(&bucket.keys().offer(&id())).await.expect("there").bytes().await.expect("read");
                whole.bodies.push(body.to_vec());
                whole.values.push(values);
            }
            codecs.push(whole);
        }
        Desk { store, bucket, spec, ledger: ledger(), fragments, tensors, codecs }
    }

    /// Reads an offer of this body and puts it through the firewall.
    async fn look(&self, whole: &Whole, body: Vec<u8>, which: &str) -> Found {
        self.store.put(&self.bucket.keys().offer(&id()), body.into()).await.expect("written");
        let bytes_max = whole.bodies.iter().map(Vec::len).max().unwrap_or(0) as u64 + 4096;
        let corrupt = |error: Error| {
            assert_eq!(error.kind(), Kind::Corrupt, "{which}: {}", error.chain());
            assert_readable(&error.chain(), which);
        };
        let stored = match self.bucket.offer_spooled(&id(), bytes_max).await {
            Ok(stored) => stored,
            Err(error) => {
                corrupt(error);
                return Found::Unreadable;
            }
        };
        // As the syncer finds it: by the hash and the configuration that the header names.
        let header = &stored.header;
        let known = header.codec == whole.policy.hash().to_string() && header.codec_config.is_empty();
        let codec = known.then_some((&whole.policy, &b""[..]));
        match check(&id(), &stored, &self.spec, &self.ledger, &self.fragments, codec, &self.tensors) {
            Err(error) => {
                corrupt(error);
                Found::Corrupt
            }
            Ok(Verdict::Decided(record)) => {
                assert!(record.fate != Fate::Merged, "{which}");
                if let Fate::Refused(reason) = &record.fate {
                    assert_readable(reason, which);
                }
                Found::Decided
            }
            Ok(Verdict::Good(facts)) => {
                let mut values = vec![0.0; facts.values.elements()];
                facts.values.read(0, &mut values).expect("read");
                let bits = |list: &[f32]| list.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
                assert!(
                    whole.values.iter().any(|list| bits(list) == bits(&values)),
                    "{which} counts with other values"
                );
                Found::Good
            }
        }
    }
}

#[tokio::test]
async fn no_damaged_offer_brings_a_syncer_down_or_counts_with_other_values() {
    let (seed, inputs) = told("damaged offers", INPUTS);
    let desk = Desk::new().await;
    for whole in &desk.codecs {
        assert!(
            desk.look(whole, whole.bodies[0].clone(), whole.name).await == Found::Good,
            "{}: a whole one",
            whole.name
        );
    }
    let found = each(inputs, move |input| {
        let whole = &desk.codecs[input % CODECS.len()];
        let body = Mutants::new(&whole.bodies, seed, input).make();
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(desk.look(whole, body, &format!("input {input} of seed {seed}, {}", whole.name)))
    })
    .await;
    let count = |wanted: Found| found.iter().filter(|found| **found == wanted).count();
    let (unreadable, corrupt) = (count(Found::Unreadable), count(Found::Corrupt));
    let (decided, good) = (count(Found::Decided), count(Found::Good));
    say(&format!("damaged offers: {unreadable} not read, {corrupt} corrupt, {decided} turned down, {good} good"));
    assert_eq!(found.len(), inputs);
    assert!(unreadable > inputs / 10 && corrupt > inputs / 10, "both the reader and the content hash find damage");
    let peak = memory_peak_bytes();
    say(&format!("damaged offers: {peak:?} bytes of memory at most, all tests of this process included"));
    assert!(peak.is_none_or(|peak| peak < MEMORY_MAX_BYTES), "{peak:?} bytes of memory");
}
