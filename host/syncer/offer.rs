//! The firewall: what is asked of an offer before it may count. Everything that an island says of itself is checked against the log; what does
//! not fit changes nothing but a counter. Reasons are a closed set, so that they can be counted.

use crate::bucket::payload::{ContentHash, Stored};
use crate::bucket::record::{FORMAT, Fate, OfferRecord};
use crate::bucket::{self, Ledger, MEMORY_BYTES, OfferHeader, OfferId, TOKENS_MAX, Vector};
use crate::error::{Error, Result};
use crate::outer::Fragments;
use crate::policy::{Contribution, Policy, Tensor};
use crate::spec::Spec;
use std::sync::Arc;

/// An offer that may be merged.
#[derive(Debug, Clone)]
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
    /// The decoded pseudo-gradient, in memory or in a temporary file. Shape: (elements of the fragment).
    pub values: Arc<Vector>,
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

    /// What a policy is told of it in `round`.
    pub fn contribution(&self, ledger: &Ledger, round: u64) -> Contribution {
        Contribution {
            island: self.id.island.clone(),
            tokens: self.tokens,
            steps: self.steps,
            staleness: ledger.staleness(round, self.base).unwrap_or(0) as u32,
            norm: self.norm,
        }
    }
}

/// Tokens that one offer counts for at most: a quarter of the budget, or those of sixteen periods where that is more. An island whose syncer was away for long may have
/// trained on more; what an island merely says must not end the run.
fn counted_max(spec: &Spec, step_tokens: u64) -> u64 {
    let periods = step_tokens.saturating_mul(16 * spec.outer.sync_steps as u64);
    if spec.tokens == 0 { TOKENS_MAX } else { (spec.tokens / 4).max(periods).min(TOKENS_MAX) }
}

/// Why an offer of a closed round was not merged although nothing was wrong with it.
pub(super) const NO_WEIGHT: &str = "the merge policy gave it no weight";

/// Why an offer is refused whose life is newer than any claim. Anybody may have put it there: it is no answer of its island.
pub(super) const UNCLAIMED: &str = "its life was never claimed";

/// What the firewall says.
#[derive(Debug, Clone)]
pub enum Verdict {
    /// It may be merged.
    Good(Facts),
    /// It has its fate already.
    Decided(OfferRecord),
}

const UNKNOWN_CODEC: &str = "its codec is not the run's";

/// Why an offer's header does not fit, if it does not: its fate and what it claims.
fn header_fate(
    id: &OfferId,
    header: &OfferHeader,
    run: &str,
    ledger: &Ledger,
    fragments: &Fragments,
    codec_is_known: bool,
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
    if !codec_is_known {
        return refused(UNKNOWN_CODEC);
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

/// Checks an offer against the log and decodes it, in one pass over its chunks. `codec` is the one that its header names, with its configuration, if it fills that
/// role in the offer's round or did before; `tensors` are those of the round's fragment.
///
/// # Errors
/// Corrupt: its bytes are not those that its header names. Unavailable: a temporary file fails, which says nothing of the offer.
#[allow(clippy::too_many_arguments)] // each a different authority on what the offer may be
pub fn check(
    id: &OfferId,
    offer: &Stored<OfferHeader>,
    spec: &Spec,
    ledger: &Ledger,
    fragments: &Fragments,
    codec: Option<(&Policy, &[u8])>,
    tensors: &[Tensor],
) -> Result<Verdict> {
    let header = &offer.header;
    let step_tokens = (spec.train.batch * spec.model.context) as u64;
    let tokens = header.tokens.min(counted_max(spec, step_tokens));
    let turned_down = |fate: Fate| {
        Verdict::Decided(OfferRecord {
            id: id.clone(),
            hash: header.hash.clone(),
            base: header.base,
            tokens,
            steps: header.steps,
            norm: 0.0,
            weight: 0.0,
            fate,
        })
    };
    let fate = header_fate(id, header, &spec.run, ledger, fragments, codec.is_some(), step_tokens);
    let codec = match (fate, codec) {
        (None, Some(codec)) => codec,
        (fate, _) => {
            check_content(offer)?;
            return Ok(turned_down(fate.unwrap_or_else(|| Fate::Refused(UNKNOWN_CODEC.into()))));
        }
    };
    Ok(match decode(offer, codec, tensors)? {
        Err(reason) => turned_down(Fate::Refused(reason.into())),
        Ok((_, norm)) if !norm.is_finite() => turned_down(Fate::Refused("its values are not finite".into())),
        Ok((values, norm)) => Verdict::Good(Facts {
            id: id.clone(),
            hash: header.hash.clone(),
            base: header.base,
            tokens,
            steps: header.steps,
            norm,
            values: Arc::new(values),
        }),
    })
}

fn check_hash(offer: &Stored<OfferHeader>, found: String) -> Result<()> {
    if found == offer.header.hash {
        return Ok(());
    }
    let OfferId { round, island, .. } = &offer.header.id;
    let expected = offer.header.hash.escape_debug();
    Err(Error::corrupt(format!(
        "the offer of {} for round {round}: content hash: expected {expected}, found {found}",
        island.escape_debug()
    )))
}

fn check_content(offer: &Stored<OfferHeader>) -> Result<()> {
    let mut hash = ContentHash::default();
    for chunk in offer.chunks() {
        hash.add(&chunk?);
    }
    check_hash(offer, hash.finish())
}

/// Decodes an offer: its values and their L2 norm, or why it has none. What is merged is read from these values, which come from the very bytes that were
/// hashed.
///
/// # Errors
/// As [`check`].
pub(super) fn decode(
    offer: &Stored<OfferHeader>,
    codec: (&Policy, &[u8]),
    tensors: &[Tensor],
) -> Result<std::result::Result<(Vector, f32), &'static str>> {
    let elements: u64 = tensors.iter().map(Tensor::elements).sum();
    let vector = Vector::zeros(elements as usize, MEMORY_BYTES)?;
    let mut squares = 0.0f64;
    let (hash, decoded) = bucket::decode(offer, codec, tensors, |start, values| {
        squares = values.iter().fold(squares, |sum, &v| sum + f64::from(v) * f64::from(v));
        vector.write(start, &values)
    })?;
    check_hash(offer, hash)?;
    Ok(decoded.map(|()| (vector, squares.sqrt() as f32)))
}
