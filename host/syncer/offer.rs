//! The firewall: what is asked of an offer before it may count. Everything that an island says of itself is checked against the log; what does
//! not fit changes nothing but a counter. Reasons are a closed set, so that they can be counted.

use crate::bucket::payload::{Chunk, Data};
use crate::bucket::record::{FORMAT, Fate, OfferRecord};
use crate::bucket::{Ledger, OfferHeader, OfferId, TOKENS_MAX};
use crate::outer::{Fragments, norm};
use crate::policy::{At, CHUNK_ELEMENTS, Codec, Policy, Tensor};
use crate::spec::Spec;

/// An offer that may be merged.
#[derive(Debug, Clone, PartialEq)]
pub struct Facts {
    /// Which offer.
    pub id: OfferId,
    /// Content hash.
    pub hash: String,
    /// Round of its base.
    pub base: u64,
    /// Tokens since then.
    pub tokens: u64,
    /// Steps since then.
    pub steps: u32,
    /// L2 norm of the decoded pseudo-gradient.
    pub norm: f32,
    /// The decoded pseudo-gradient. Shape: (elements of the fragment).
    pub values: Vec<f32>,
}

impl Facts {
    /// The offer's line in the ledger.
    pub fn record(&self, weight: f32, fate: Fate) -> OfferRecord {
        OfferRecord {
            id: self.id.clone(),
            hash: self.hash.clone(),
            base: self.base,
            tokens: self.tokens,
            steps: self.steps,
            norm: self.norm,
            weight,
            fate,
        }
    }
}

/// Why an offer of a closed round was not merged although nothing was wrong with it.
pub(super) const NO_WEIGHT: &str = "the merge policy gave it no weight";

/// What the firewall says.
#[derive(Debug, Clone, PartialEq)]
pub enum Verdict {
    /// It may be merged.
    Good(Facts),
    /// It has its fate already.
    Decided(OfferRecord),
}

/// Why an offer's header does not fit, if it does not: its fate and what it claims.
fn header_fate(
    id: &OfferId,
    header: &OfferHeader,
    run: &str,
    ledger: &Ledger,
    fragments: &Fragments,
    codec: &str,
    step_tokens: u64,
) -> Option<Fate> {
    let refused = |reason: &str| Some(Fate::Refused(reason.to_string()));
    if header.id != *id {
        return refused("its header and its key differ");
    }
    if header.format != FORMAT {
        return refused("its format is not known");
    }
    if header.run != run {
        return refused("it belongs to another run");
    }
    if header.layout != fragments.fingerprint() {
        return refused("its layout is another model's");
    }
    let p = ledger.fragment_of(id.round);
    if header.fragment != p {
        return refused("its fragment is not its round's");
    }
    if header.tokens == 0 || header.steps == 0 {
        return refused("it has no tokens or no steps");
    }
    if header.tokens > u64::from(header.steps).saturating_mul(step_tokens).min(TOKENS_MAX) {
        return refused("it claims more tokens than its steps have");
    }
    if header.codec != codec {
        return refused("its codec is not the run's");
    }
    if header.base > ledger.versions[p].round {
        return refused("its base is in the future");
    }
    if id.round < ledger.next_round {
        return Some(Fate::Late);
    }
    if ledger.incarnations.get(&id.island).is_some_and(|&newest| id.incarnation < newest) {
        return Some(Fate::Superseded);
    }
    match ledger.staleness(id.round, header.base) {
        None => refused("its base is no version of its fragment"),
        Some(staleness) if staleness > ledger.staleness_max => Some(Fate::Late),
        Some(_) if ledger.counts_twice(&id.island, p, header.base) => refused("its tokens were merged before"),
        Some(_) => None,
    }
}

/// Checks an offer against the log and decodes it. `tensors` are those of the round's fragment.
#[allow(clippy::too_many_arguments)] // each a different authority on what the offer may be
pub fn check(
    id: &OfferId,
    header: &OfferHeader,
    chunks: &[Chunk],
    spec: &Spec,
    ledger: &Ledger,
    fragments: &Fragments,
    codec: (&Policy, &[u8]),
    tensors: &[Tensor],
) -> Verdict {
    let step_tokens = (spec.train.batch * spec.model.context) as u64;
    let facts = Facts {
        id: id.clone(),
        hash: header.hash.clone(),
        base: header.base,
        tokens: header.tokens.min(TOKENS_MAX),
        steps: header.steps,
        norm: 0.0,
        values: Vec::new(),
    };
    if let Some(fate) = header_fate(id, header, &spec.run, ledger, fragments, &codec.0.hash().to_string(), step_tokens)
    {
        return Verdict::Decided(facts.record(0.0, fate));
    }
    match decode(chunks, codec, tensors) {
        Ok(values) => {
            let norm = norm(&values);
            if norm.is_finite() {
                Verdict::Good(Facts { norm, values, ..facts })
            } else {
                Verdict::Decided(facts.record(0.0, Fate::Refused("its values are not finite".into())))
            }
        }
        Err(reason) => Verdict::Decided(facts.record(0.0, Fate::Refused(reason.into()))),
    }
}

/// Decodes the chunks of a whole fragment, none missing, none doubled.
pub(super) fn decode(chunks: &[Chunk], codec: (&Policy, &[u8]), tensors: &[Tensor]) -> Result<Vec<f32>, &'static str> {
    let mut codec = Codec::open(codec.0, codec.1, tensors).map_err(|_| "its codec does not open")?;
    let mut values = Vec::new();
    let mut left = chunks.iter();
    for (tensor, t) in tensors.iter().enumerate() {
        let length = t.elements() as usize;
        for offset in (0..length).step_by(CHUNK_ELEMENTS) {
            let elements = CHUNK_ELEMENTS.min(length - offset);
            let chunk = left.next().ok_or("its values are not of the fragment's shape")?;
            let expected = (tensor as u32, offset as u64, elements as u32);
            if (chunk.tensor, chunk.offset, chunk.elements) != expected {
                return Err("its values are not of the fragment's shape");
            }
            let Data::Encoded(bytes) = &chunk.data else { return Err("its values are not encoded") };
            let at = At { tensor: tensor as u32, offset: offset as u64 };
            let decoded =
                codec.decode(at, bytes, elements).map_err(|_| "its codec does not decode it to finite values")?;
            values.extend_from_slice(&decoded);
        }
    }
    if left.next().is_some() { Err("its values are not of the fragment's shape") } else { Ok(values) }
}
