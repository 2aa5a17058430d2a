//! What a policy is told of a fragment's shape, and how a fragment is cut into chunks.

use serde::{Deserialize, Serialize};

use super::Error;

/// Values of a full chunk. Small enough for a policy's data to stay in cache, large enough that a call costs little beside its work.
pub const CHUNK_ELEMENTS: usize = 32_768;

/// What a tensor is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TensorKind {
    /// Token embedding.
    Embedding,
    /// Output projection onto the vocabulary.
    Head,
    /// Any other tensor of two dimensions.
    Matrix,
    /// Everything else.
    Vector,
}

/// One tensor of a fragment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tensor {
    /// Name as in the model file.
    pub name: String,
    /// Sizes of the dimensions, outermost first.
    pub shape: Vec<u32>,
    /// What it is for.
    pub kind: TensorKind,
}

impl Tensor {
    /// Number of values: the product of the shape.
    pub fn elements(&self) -> u64 {
        self.shape.iter().map(|size| u64::from(*size)).product()
    }
}

/// Where a chunk starts. Chunks never cross tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct At {
    /// Index into the fragment's tensors.
    pub tensor: u32,
    /// Values of this tensor before the chunk: a multiple of [`CHUNK_ELEMENTS`].
    pub offset: u64,
}

/// The chunks of a fragment, in chunk order, each with its number of values.
pub fn chunks(tensors: &[Tensor]) -> impl Iterator<Item = (At, usize)> + '_ {
    tensors.iter().zip(0u32..).flat_map(|(tensor, index)| {
        let elements = tensor.elements();
        (0..elements)
            .step_by(CHUNK_ELEMENTS)
            .map(move |offset| (At { tensor: index, offset }, (elements - offset).min(CHUNK_ELEMENTS as u64) as usize))
    })
}

/// Checks that `elements` values at `at` are a chunk of `tensors`.
pub(super) fn check_chunk(tensors: &[Tensor], at: At, elements: usize) -> Result<(), Error> {
    let wrong = |expected: String, found: String| Err(Error::Input { what: "a chunk", expected, found });
    let Some(tensor) = tensors.get(at.tensor as usize) else {
        return wrong(format!("one of {} tensors", tensors.len()), format!("tensor {}", at.tensor));
    };
    let whole = tensor.elements();
    if !at.offset.is_multiple_of(CHUNK_ELEMENTS as u64) || at.offset >= whole {
        let expected =
            format!("an offset within the {whole} values of {} and a multiple of {CHUNK_ELEMENTS}", tensor.name);
        return wrong(expected, format!("offset {}", at.offset));
    }
    let length = (whole - at.offset).min(CHUNK_ELEMENTS as u64);
    if elements as u64 != length {
        return wrong(format!("{length} values of {} at {}", tensor.name, at.offset), format!("{elements}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(name: &str, shape: &[u32]) -> Tensor {
        Tensor { name: name.into(), shape: shape.into(), kind: TensorKind::Matrix }
    }

    #[test]
    fn chunks_never_cross_tensors_and_cover_each_value_once() {
        let tensors = [tensor("a", &[3]), tensor("b", &[0, 7]), tensor("c", &[300, 300]), tensor("d", &[32_768])];
        let list: Vec<_> = chunks(&tensors).collect();
        let at = |tensor, offset| At { tensor, offset };
        assert_eq!(
            list,
            [(at(0, 0), 3), (at(2, 0), 32_768), (at(2, 32_768), 32_768), (at(2, 65_536), 24_464), (at(3, 0), 32_768)]
        );
        for (at, elements) in list {
            assert!(check_chunk(&tensors, at, elements).is_ok());
            assert!(check_chunk(&tensors, at, elements - 1).is_err());
        }
        assert!(check_chunk(&tensors, at(1, 0), 0).is_err());
        assert!(check_chunk(&tensors, at(2, 5), 32_768).is_err());
        assert!(check_chunk(&tensors, at(4, 0), 1).is_err());
    }
}
