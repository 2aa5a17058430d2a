//! The values of a whole fragment as a codec encodes them: chunk by chunk, in bounded memory. Offers go up in this form, and steps come down.

use super::payload::{Chunk, ContentHash, Data, Stored};
use super::shelf::unfit;
use crate::error::{Error, Result};
use crate::policy::{At, Codec, Policy, Tensor, chunks};

/// A codec that is set up for the tensors of one fragment and shows what becomes of what it encodes.
pub struct Encoder<'a> {
    name: &'a str,
    tensors: &'a [Tensor],
    codec: Codec,
    /// What it decodes must not rest on what it remembers of encoding, so another instance decodes.
    decoder: Codec,
}

/// One chunk, encoded.
pub struct Encoded<'a> {
    /// The chunk.
    pub chunk: Chunk,
    /// Where its values begin in the flat fragment.
    pub start: usize,
    /// What was encoded.
    pub values: &'a [f32],
    /// What it decodes to.
    pub decoded: Vec<f32>,
}

impl<'a> Encoder<'a> {
    /// Sets `codec` up with its configuration; `name` is for messages.
    ///
    /// # Errors
    /// Invalid: the codec does not open. Unavailable: this machine fails.
    pub fn open(name: &'a str, codec: (&Policy, &[u8]), tensors: &'a [Tensor]) -> Result<Encoder<'a>> {
        let open = || Codec::open(codec.0, codec.1, tensors).map_err(|e| failed(name, e));
        Ok(Encoder { name, tensors, codec: open()?, decoder: open()? })
    }

    /// Share of what a round trip loses that goes into the next one; none where the codec wants no error feedback.
    pub fn feedback_decay(&self) -> Option<f32> {
        self.codec.traits().feedback_decay
    }

    /// Encodes a whole fragment, whose values `read` gives from a place on. `take` gets the chunks in order, their section `section`.
    ///
    /// # Errors
    /// Invalid: the codec cannot encode something, or not decode what it made of it. Unavailable: this machine fails. Those of `read` and `take`.
    pub fn encode(
        &mut self,
        section: &str,
        mut read: impl FnMut(usize, &mut [f32]) -> Result<()>,
        mut take: impl FnMut(Encoded<'_>) -> Result<()>,
    ) -> Result<()> {
        let Encoder { name, tensors, codec, decoder } = self;
        let mut start = 0;
        let mut room = Vec::new();
        for (at, elements) in chunks(tensors) {
            room.resize(elements, 0.0);
            read(start, &mut room)?;
            let bytes = codec.encode(at, &room).map_err(|e| failed(name, e))?;
            // Whoever reads it could not decode it either.
            let decoded = decoder.decode(at, &bytes, elements).map_err(|e| failed(name, e))?;
            let chunk = Chunk {
                section: section.to_string(),
                tensor: at.tensor,
                offset: at.offset,
                elements: elements as u32,
                data: Data::Encoded(bytes),
            };
            take(Encoded { chunk, start, values: &room, decoded })?;
            start += elements;
        }
        Ok(())
    }
}

fn failed(name: &str, error: crate::policy::Error) -> Error {
    unfit(format!("codec {name} cannot encode it"), error)
}

/// Decodes the chunks of a whole fragment, none missing, none doubled, in one pass: `take` gets the values with the place where they begin. Returns the hash of
/// the chunks, and why they are no such fragment, if so; what `take` has got then counts for nothing.
///
/// # Errors
/// Corrupt: a chunk is damaged. Unavailable: this machine fails, which says nothing of the object. Those of `take`.
pub fn decode<H>(
    object: &Stored<H>,
    codec: (&Policy, &[u8]),
    tensors: &[Tensor],
    mut take: impl FnMut(usize, Vec<f32>) -> Result<()>,
) -> Result<(String, std::result::Result<(), &'static str>)> {
    let mut hash = ContentHash::default();
    let mut start = 0usize;
    let mut expected = chunks(tensors);
    let mut opened = blamed(Codec::open(codec.0, codec.1, tensors), "its codec does not open")?;
    for chunk in object.chunks() {
        let chunk = chunk?;
        hash.add(&chunk);
        // What is wrong with a chunk says something of its writer only if its bytes are what was written; so the hash goes on.
        let Ok(codec) = &mut opened else { continue };
        match decode_chunk(codec, expected.next(), &chunk)? {
            Ok(values) => {
                let length = values.len();
                take(start, values)?;
                start += length;
            }
            Err(reason) => opened = Err(reason),
        }
    }
    let whole = match opened {
        Ok(_) if expected.next().is_some() => Err(SHAPE),
        opened => opened.map(|_| ()),
    };
    Ok((hash.finish(), whole))
}

const SHAPE: &str = "its values are not of the fragment's shape";

/// What a policy did, or what an object is to be blamed for where the policy could not.
///
/// # Errors
/// Unavailable: this machine failed, and nobody is to blame.
fn blamed<T>(
    done: std::result::Result<T, crate::policy::Error>,
    reason: &'static str,
) -> Result<std::result::Result<T, &'static str>> {
    match done {
        Err(error) if error.is_of_host() => Err(unfit("a codec cannot be used here", error)),
        done => Ok(done.map_err(|_| reason)),
    }
}

fn decode_chunk(
    codec: &mut Codec,
    expected: Option<(At, usize)>,
    chunk: &Chunk,
) -> Result<std::result::Result<Vec<f32>, &'static str>> {
    let Some((at, elements)) = expected else { return Ok(Err(SHAPE)) };
    if (chunk.tensor, chunk.offset, chunk.elements as usize) != (at.tensor, at.offset, elements) {
        return Ok(Err(SHAPE));
    }
    let Data::Encoded(bytes) = &chunk.data else { return Ok(Err("its values are not encoded")) };
    blamed(codec.decode(at, bytes, elements), "its codec does not decode it to finite values")
}
