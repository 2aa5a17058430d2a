//! An island that means no good: it offers properly until it is merged, and then what was merged again, from the same base, and now and then
//! twice in one round under two of its lives. Whoever counted its tokens twice would be found by the checkers.

use super::World;
use crate::bucket::payload::{Chunk, Data, content_hash};
use crate::bucket::record::FORMAT;
use crate::bucket::{Ledger, OfferHeader, OfferId, Tail};
use crate::clock::{self, Duration};
use crate::error::{Error, Result};
use crate::policy::{At, Codec};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::{BTreeMap, BTreeSet};

/// Time between two looks at the log.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Offers for ever as the island `name`. It has no heartbeat, so nobody waits for it.
///
/// # Errors
/// Unavailable: a request failed.
pub(super) async fn offer_again_and_again(world: &World, name: &str, seed: u64) -> Result<()> {
    let mut random = StdRng::seed_from_u64(seed);
    let outer = &world.record.spec.outer;
    let mut tail = Tail::new(Ledger::of(&world.record));
    let mut life = world.bucket.claim_incarnation(name).await?;
    let mut bases: BTreeMap<usize, u64> = BTreeMap::new();
    let mut offered = BTreeSet::new();
    loop {
        tail.advance(&world.bucket, usize::MAX).await?;
        let ledger = &tail.ledger;
        for round in ledger.open_rounds() {
            if ledger.versions.is_empty() || !offered.insert(round) {
                continue;
            }
            let p = ledger.fragment_of(round);
            let base = bases.entry(p).or_insert(ledger.versions[p].round);
            // The same base again for as long as it is recent enough, whatever has become of it.
            if ledger.staleness(round, *base).is_none_or(|behind| behind > outer.staleness_max) {
                *base = ledger.versions[p].round;
            }
            let base = *base;
            offer(world, OfferId { round, island: name.into(), incarnation: life }, p, base).await?;
            if random.random_bool(0.1) {
                life = world.bucket.claim_incarnation(name).await?;
                offer(world, OfferId { round, island: name.into(), incarnation: life }, p, base).await?;
            }
        }
        clock::sleep(LOOK_EVERY).await;
    }
}

/// Puts an offer of eight tokens for fragment `p` whose values are all ones.
async fn offer(world: &World, id: OfferId, p: usize, base: u64) -> Result<()> {
    let failed = |e: crate::policy::Error| Error::bug("the codec cannot encode ones").because(e);
    let tensors = world.fragments.policy_tensors(p);
    let mut codec = Codec::open(&world.codec, world.record.codec.config.as_bytes(), &tensors).map_err(failed)?;
    let mut chunks = Vec::new();
    for (tensor, t) in (0u32..).zip(&tensors) {
        let values = vec![1.0; t.elements() as usize];
        let bytes = codec.encode(At { tensor, offset: 0 }, &values).map_err(failed)?;
        let (section, elements) = ("offer".into(), values.len() as u32);
        chunks.push(Chunk { section, tensor, offset: 0, elements, data: Data::Encoded(bytes) });
    }
    let header = OfferHeader {
        format: FORMAT,
        run: world.record.spec.run.clone(),
        layout: world.fragments.fingerprint().into(),
        id,
        fragment: p,
        base,
        tokens: 8,
        steps: 1,
        codec: world.codec.hash().to_string(),
        codec_config: world.record.codec.config.clone(),
        hash: content_hash(&chunks),
    };
    world.bucket.put_offer(&header, chunks).await.map(|_| ())
}
