//! What may be too large for memory: bytes as they came, and vectors of f32. Up to a bound they lie in memory, beyond it in an unnamed temporary
//! file, which no other process can open and which is gone with this one, however it ends. Reading and writing at a place takes `&self`, so that
//! several threads can work on different parts.

use crate::error::{Error, Result};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::{PoisonError, RwLock};

/// Bytes up to which a spool or a vector of a syncer stays in memory: two chunks of f32. Fragments of small models never touch a disk.
pub const MEMORY_BYTES: usize = 256 << 10;

/// A number of values that can be read piece by piece.
pub trait Flat {
    /// Copies the values from `start` on into `out`.
    ///
    /// # Errors
    /// Unavailable: a temporary file cannot be read.
    fn read(&self, start: usize, out: &mut [f32]) -> Result<()>;
}

impl Flat for Vec<f32> {
    fn read(&self, start: usize, out: &mut [f32]) -> Result<()> {
        out.copy_from_slice(&self[start..start + out.len()]);
        Ok(())
    }
}

impl Flat for &[f32] {
    fn read(&self, start: usize, out: &mut [f32]) -> Result<()> {
        out.copy_from_slice(&self[start..start + out.len()]);
        Ok(())
    }
}

fn temporary() -> Result<File> {
    tempfile::tempfile().map_err(|error| failed("made", error))
}

fn failed(what: &str, error: std::io::Error) -> Error {
    Error::unavailable(format!(
        "a temporary file in {}: cannot be {what}; is its disk full? TMPDIR names another folder",
        std::env::temp_dir().display()
    ))
    .because(error)
}

/// Bytes in the order in which they came.
#[derive(Debug)]
pub struct Spool {
    memory: Vec<u8>,
    memory_max: usize,
    file: Option<File>,
    bytes: u64,
}

impl Spool {
    /// An empty one, in memory up to `memory_max` bytes.
    pub fn new(memory_max: usize) -> Spool {
        Spool { memory: Vec::new(), memory_max, file: None, bytes: 0 }
    }

    /// Bytes so far.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Adds bytes at the end.
    ///
    /// # Errors
    /// Unavailable: the temporary file cannot be made or written.
    pub fn push(&mut self, bytes: &[u8]) -> Result<()> {
        if self.file.is_none() && self.memory.len() + bytes.len() > self.memory_max {
            let file = temporary()?;
            file.write_all_at(&self.memory, 0).map_err(|error| failed("written", error))?;
            (self.memory, self.file) = (Vec::new(), Some(file));
        }
        match &self.file {
            Some(file) => file.write_all_at(bytes, self.bytes).map_err(|error| failed("written", error))?,
            None => self.memory.extend_from_slice(bytes),
        }
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    /// The `length` bytes from `start` on; none if it does not hold them.
    ///
    /// # Errors
    /// Unavailable: the temporary file cannot be read.
    pub fn part(&self, start: u64, length: usize) -> Result<Option<Vec<u8>>> {
        let Some(end) = start.checked_add(length as u64).filter(|&end| end <= self.bytes) else { return Ok(None) };
        let Some(file) = &self.file else { return Ok(Some(self.memory[start as usize..end as usize].to_vec())) };
        let mut bytes = vec![0; length];
        file.read_exact_at(&mut bytes, start).map_err(|error| failed("read", error))?;
        Ok(Some(bytes))
    }
}

/// A vector of f32 of a length that does not change. Shape: (elements).
#[derive(Debug)]
pub struct Vector {
    elements: usize,
    place: Place,
}

#[derive(Debug)]
enum Place {
    Memory(RwLock<Vec<f32>>),
    File(File),
}

impl Vector {
    /// Zeros, in memory up to `memory_max` bytes.
    ///
    /// # Errors
    /// Unavailable: the temporary file cannot be made.
    pub fn zeros(elements: usize, memory_max: usize) -> Result<Vector> {
        let bytes = elements.saturating_mul(4);
        let place = if bytes <= memory_max {
            Place::Memory(RwLock::new(vec![0.0; elements]))
        } else {
            let file = temporary()?;
            file.set_len(bytes as u64).map_err(|error| failed("written", error))?;
            Place::File(file)
        };
        Ok(Vector { elements, place })
    }

    /// Its values.
    pub fn elements(&self) -> usize {
        self.elements
    }

    /// Writes `values` from `start` on.
    ///
    /// # Errors
    /// Unavailable: the temporary file cannot be written.
    ///
    /// # Panics
    /// It has no such values.
    pub fn write(&self, start: usize, values: &[f32]) -> Result<()> {
        assert!(start + values.len() <= self.elements, "values {start} and on of {}", self.elements);
        match &self.place {
            Place::Memory(memory) => {
                let mut memory = memory.write().unwrap_or_else(PoisonError::into_inner);
                memory[start..start + values.len()].copy_from_slice(values);
                Ok(())
            }
            Place::File(file) => {
                let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
                file.write_all_at(&bytes, 4 * start as u64).map_err(|error| failed("written", error))
            }
        }
    }

    /// All values, in memory.
    ///
    /// # Errors
    /// Unavailable: the temporary file cannot be read.
    pub fn into_vec(self) -> Result<Vec<f32>> {
        match self.place {
            Place::Memory(memory) => Ok(memory.into_inner().unwrap_or_else(PoisonError::into_inner)),
            Place::File(_) => {
                let mut values = vec![0.0; self.elements];
                self.read(0, &mut values)?;
                Ok(values)
            }
        }
    }
}

impl From<Vec<f32>> for Vector {
    fn from(values: Vec<f32>) -> Vector {
        Vector { elements: values.len(), place: Place::Memory(RwLock::new(values)) }
    }
}

impl Flat for Vector {
    fn read(&self, start: usize, out: &mut [f32]) -> Result<()> {
        assert!(start + out.len() <= self.elements, "values {start} and on of {}", self.elements);
        match &self.place {
            Place::Memory(memory) => {
                let memory = memory.read().unwrap_or_else(PoisonError::into_inner);
                out.copy_from_slice(&memory[start..start + out.len()]);
            }
            Place::File(file) => {
                let mut bytes = vec![0; 4 * out.len()];
                file.read_exact_at(&mut bytes, 4 * start as u64).map_err(|error| failed("read", error))?;
                let (values, _) = bytes.as_chunks::<4>();
                for (value, bytes) in out.iter_mut().zip(values) {
                    *value = f32::from_le_bytes(*bytes);
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spool_gives_back_what_it_was_given_in_memory_and_on_disk() {
        for memory_max in [0, 7, 100] {
            let mut spool = Spool::new(memory_max);
            for part in [&[1, 2, 3][..], &[], &[4, 5, 6, 7, 8], &[9]] {
                spool.push(part).unwrap();
            }
            assert_eq!(spool.bytes(), 9);
            assert_eq!(spool.part(0, 9).unwrap(), Some(vec![1, 2, 3, 4, 5, 6, 7, 8, 9]));
            assert_eq!(spool.part(2, 3).unwrap(), Some(vec![3, 4, 5]));
            assert_eq!(spool.part(2, 8).unwrap(), None, "more than there is");
            assert_eq!(spool.part(u64::MAX, 8).unwrap(), None);
        }
    }

    #[test]
    fn a_vector_keeps_every_bit_in_memory_and_on_disk() {
        for memory_max in [0, 100] {
            let vector = Vector::zeros(6, memory_max).unwrap();
            vector.write(1, &[f32::NAN, -0.0, 1e-45]).unwrap();
            vector.write(5, &[f32::MIN]).unwrap();
            let mut part = [1.0; 2];
            vector.read(2, &mut part).unwrap();
            assert_eq!(part.map(f32::to_bits), [-0.0f32, 1e-45].map(f32::to_bits));
            let all: Vec<u32> = vector.into_vec().unwrap().into_iter().map(f32::to_bits).collect();
            assert_eq!(all, [0.0, f32::NAN, -0.0, 1e-45, 0.0, f32::MIN].map(f32::to_bits));
        }
    }
}
