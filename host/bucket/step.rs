//! The way down. Where a run names a codec for it, a commit also writes the encoded step from the version before, and **the committed version is what that
//! decodes to**, added to the version before: an island that holds the version before reaches the same bits from a fraction of the bytes. The whole version is
//! written all the same, for joiners and for whoever cannot go the step. What the codec lost stays with the syncer, beside the optimiser's state, and goes
//! into the fragment's next step (error feedback, as on the way up).

use super::encoded::{Encoder, decode};
use super::payload::{self, Chunk, ContentHash, Data};
use super::record::{FORMAT, Version};
use super::run::Bucket;
use super::spool::{Flat, MEMORY_BYTES, Spool, Vector};
use super::tensors::{check_same, encoded_bytes_max, fragment_hash};
use crate::error::{Error, Result};
use crate::outer::Fragments;
use crate::policy::{Policy, Tensor};
use serde::{Deserialize, Serialize};

/// Header of an encoded step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StepHeader {
    /// Format number.
    pub format: u32,
    /// Fingerprint of layout and fragments.
    pub layout: String,
    /// Fragment.
    pub fragment: usize,
    /// Round that makes the newer version.
    pub round: u64,
    /// Round that made the older version.
    pub from: u64,
    /// Content hash.
    pub hash: String,
}

/// A step that was encoded.
#[derive(Debug)]
pub struct Step {
    /// Content hash.
    pub hash: String,
    spool: Spool,
    /// Its chunks without their bytes, and where these lie.
    places: Vec<(Chunk, u64, usize)>,
}

impl Step {
    /// Encodes the step from `before` to `after`, and what the last one lost of it, `residual`. Also returns what is to be committed, which is what `before`
    /// and the decoded step come to, and what this step lost, where the codec wants it back. Memory does not grow with the fragment.
    ///
    /// # Errors
    /// Invalid: the codec (`name` is for messages) fails, or the step decodes to no finite version. Unavailable: a temporary file fails.
    pub fn encode(
        name: &str,
        codec: (&Policy, &[u8]),
        tensors: &[Tensor],
        before: &impl Flat,
        after: &impl Flat,
        residual: Option<&Vector>,
    ) -> Result<(Step, Vector, Option<Vector>)> {
        let elements = tensors.iter().map(Tensor::elements).sum::<u64>() as usize;
        let mut encoder = Encoder::open(name, codec, tensors)?;
        let decay = encoder.feedback_decay();
        let committed = Vector::zeros(elements, MEMORY_BYTES)?;
        let lost = decay.map(|_| Vector::zeros(elements, MEMORY_BYTES)).transpose()?;
        let (mut spool, mut places, mut hash) = (Spool::new(MEMORY_BYTES), Vec::new(), ContentHash::default());
        let mut room = Vec::new();
        let read = |start: usize, values: &mut [f32]| {
            room.resize(values.len(), 0.0);
            after.read(start, values)?;
            before.read(start, &mut room)?;
            values.iter_mut().zip(&room).for_each(|(value, before)| *value -= before);
            if let (Some(residual), Some(decay)) = (residual, decay) {
                residual.read(start, &mut room)?;
                values.iter_mut().zip(&room).for_each(|(value, residual)| *value += decay * residual);
            }
            Ok(())
        };
        encoder.encode("step", read, |mut encoded| {
            if let Some(lost) = &lost {
                let lost_here: Vec<f32> = encoded.values.iter().zip(&encoded.decoded).map(|(v, d)| v - d).collect();
                lost.write(encoded.start, &lost_here)?;
            }
            advance(before, encoded.start, &mut encoded.decoded)?;
            if encoded.decoded.iter().any(|value| !value.is_finite()) {
                return Err(Error::invalid(format!("codec {name}: the version before and its step are not finite")));
            }
            committed.write(encoded.start, &encoded.decoded)?;
            let mut chunk = encoded.chunk;
            hash.add(&chunk);
            if let Data::Encoded(bytes) = std::mem::replace(&mut chunk.data, Data::Encoded(Vec::new())) {
                places.push((chunk, spool.bytes(), bytes.len()));
                spool.push(&bytes)?;
            }
            Ok(())
        })?;
        Ok((Step { hash: hash.finish(), spool, places }, committed, lost))
    }

    fn chunks(&self) -> impl Iterator<Item = Result<Chunk>> + '_ {
        self.places.iter().map(|(chunk, start, length)| {
            let bytes = self.spool.part(*start, *length)?.unwrap_or_default();
            Ok(Chunk { data: Data::Encoded(bytes), ..chunk.clone() })
        })
    }
}

/// Adds what `before` holds from `start` on to a decoded step. The order of the operands is part of the format.
fn advance(before: &impl Flat, start: usize, step: &mut [f32]) -> Result<()> {
    let mut room = vec![0.0; step.len()];
    before.read(start, &mut room)?;
    step.iter_mut().zip(&room).for_each(|(step, before)| *step += before);
    Ok(())
}

impl Bucket {
    /// Writes the encoded step of fragment `p` from the version of round `from` to that of round `round`.
    ///
    /// # Errors
    /// Unavailable.
    pub async fn put_step(&self, fragments: &Fragments, p: usize, round: u64, from: u64, step: &Step) -> Result<()> {
        let header = StepHeader {
            format: FORMAT,
            layout: fragments.fingerprint().into(),
            fragment: p,
            round,
            from,
            hash: step.hash.clone(),
        };
        let key = self.keys.fragment_step(p, round, &step.hash);
        payload::write(&*self.store, &key, &header, true, step.chunks()).await.map(|_| ())
    }

    /// Goes the step to `version` from `before`, the version that it names, and returns the new one: the very bits of the whole version that the log names. None
    /// where the version has no step.
    ///
    /// # Errors
    /// Unavailable: no such object, or no answer. Corrupt: it is not what the log names, or does not lead there.
    pub async fn fragment_after(
        &self,
        fragments: &Fragments,
        p: usize,
        version: &Version,
        before: &impl Flat,
        codec: (&Policy, &[u8]),
        memory_max: usize,
    ) -> Result<Option<Vector>> {
        let Some(step) = &version.step else { return Ok(None) };
        let key = self.keys.fragment_step(p, version.round, &step.hash);
        let tensors = fragments.policy_tensors(p);
        let limit = encoded_bytes_max(fragments, p);
        let object = payload::fetch::<StepHeader>(&*self.store, &key, limit, memory_max).await?;
        check_same(&key, "format", &FORMAT.to_string(), &object.header.format.to_string())?;
        check_same(&key, "layout", fragments.fingerprint(), &object.header.layout)?;
        let after = Vector::zeros(fragments.elements(p), memory_max)?;
        let (hash, decoded) = decode(&object, codec, &tensors, |start, mut values| {
            advance(before, start, &mut values)?;
            after.write(start, &values)
        })?;
        check_same(&key, "content hash", &step.hash, &hash)?;
        decoded.map_err(|reason| Error::corrupt(format!("{key}: {reason}")))?;
        check_same(
            &key,
            "content hash of the version it leads to",
            &version.hash,
            &fragment_hash(fragments, p, &after)?,
        )?;
        Ok(Some(after))
    }
}
