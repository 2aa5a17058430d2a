//! Windows of text, shuffled and bundled into blocks: which tokens an island sees, in which order.
//!
//! The training part of `n` tokens has `(n − 1) / context` windows; window `w` is the `context + 1`
//! tokens from `w · context` on, so every token but the first is predicted once an epoch. An epoch
//! sees the windows in an order that a keyed [`Permutation`] gives; [`BLOCK_WINDOWS`] windows next
//! to each other in that order are a block, the unit that an island claims. Blocks are numbered
//! through: block `b` belongs to epoch `b / blocks_per_epoch`, so there is no last one. Windows
//! that do not fill a block are left out of that epoch (another set each time).

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::corpus::Corpus;
use super::error::{Error, Result};
use super::permutation::Permutation;

/// Windows in a block. At 8 windows a step an island works on a block for 32 steps: a claim is a
/// rare event, and the work that a dead island leaves half done is small.
pub const BLOCK_WINDOWS: usize = 256;

/// The longest context, in tokens.
const CONTEXT_MAX: usize = 1 << 20;

/// Everything there is to train on, in an order given by a seed. Holds no state: where an island
/// is, its [`Cursor`] says.
#[derive(Debug, Clone)]
pub struct Blocks {
    corpus: Corpus,
    context: usize,
    windows: u64,
    key: u64,
}

/// Where an island is in its data: the block that it works on and the next window of it. Part of a
/// checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cursor {
    /// The block.
    pub block: u64,
    /// Which claim of the block gives the right to train on it, from 0: whoever goes on with another's block, or with one of an earlier life,
    /// claims it again.
    pub attempt: u32,
    /// The next window, from 0; [`BLOCK_WINDOWS`] once the block is used up.
    pub window: usize,
}

impl Cursor {
    /// The beginning of `block`, claimed for the first time.
    pub fn at(block: u64) -> Self {
        Self { block, attempt: 0, window: 0 }
    }

    /// Whether nothing of the block is left.
    pub fn is_used_up(&self) -> bool {
        self.window >= BLOCK_WINDOWS
    }
}

impl Blocks {
    /// The blocks of `corpus` in the order that `seed` gives, for `islands` islands that train with
    /// `context` tokens.
    ///
    /// # Errors
    /// [`Error::TooSmallForRun`] if there is not one block for every island, or not one held-out
    /// window; [`Error::Context`] if `context` is 0 or out of bounds.
    pub fn new(corpus: &Corpus, seed: u64, context: usize, islands: usize) -> Result<Self> {
        if !(1..=CONTEXT_MAX).contains(&context) {
            return Err(Error::Context { found: context, most: CONTEXT_MAX });
        }
        let too_small = |part, bytes, expected| Error::TooSmallForRun {
            corpus: corpus.description().to_owned(),
            part,
            bytes,
            expected,
            islands,
            context,
            block_windows: BLOCK_WINDOWS,
        };
        let expected = ((islands.max(1) * BLOCK_WINDOWS) as u64).saturating_mul(context as u64).saturating_add(1);
        if corpus.training_bytes() < expected {
            return Err(too_small("training", corpus.training_bytes(), expected));
        }
        let window_tokens = context as u64 + 1;
        if corpus.held_out_bytes() < window_tokens {
            return Err(too_small("held-out", corpus.held_out_bytes(), window_tokens));
        }
        let mut hash = Sha256::new();
        hash.update(b"tombolo windows 1");
        hash.update(corpus.fingerprint().as_bytes());
        hash.update(seed.to_le_bytes());
        hash.update((context as u64).to_le_bytes());
        let digest: [u8; 32] = hash.finalize().into();
        let mut key = [0; 8];
        key.copy_from_slice(&digest[..8]);
        let windows = (corpus.training_bytes() - 1) / context as u64;
        Ok(Self { corpus: corpus.clone(), context, windows, key: u64::from_le_bytes(key) })
    }

    /// Tokens of context, T.
    pub fn context(&self) -> usize {
        self.context
    }

    /// Windows in the training part.
    pub fn windows(&self) -> u64 {
        self.windows
    }

    /// Blocks in one pass over the training part.
    pub fn blocks_per_epoch(&self) -> u64 {
        self.windows / BLOCK_WINDOWS as u64
    }

    /// The pass that `block` belongs to, from 0.
    pub fn epoch(&self, block: u64) -> u64 {
        block / self.blocks_per_epoch()
    }

    /// Tokens that are trained on in one block.
    pub fn block_tokens(&self) -> u64 {
        (BLOCK_WINDOWS * self.context) as u64
    }

    /// Which window of the training part is at place `index` of `block`.
    ///
    /// # Panics
    /// If `index` is not below [`BLOCK_WINDOWS`].
    pub fn position(&self, block: u64, index: usize) -> u64 {
        assert!(index < BLOCK_WINDOWS, "window {index} of a block of {BLOCK_WINDOWS}");
        let place = (block % self.blocks_per_epoch()) * BLOCK_WINDOWS as u64 + index as u64;
        Permutation::new(self.windows, self.key, self.epoch(block)).apply(place)
    }

    /// Fills `out`, `(T + 1)`, with the window at place `index` of `block`.
    ///
    /// # Panics
    /// If `out` has another length, or `index` is not below [`BLOCK_WINDOWS`].
    pub fn window(&self, block: u64, index: usize, out: &mut [u32]) {
        // Below the length of the text, so it fits.
        let start = self.position(block, index) as usize * self.context;
        copy_tokens(&self.corpus.training()[start..], out, self.context);
    }

    /// Fills `out`, `(rows, T + 1)`, with the windows that come next and moves `cursor` behind
    /// them. Whenever a block is used up, `next` is given the place and says where to go on.
    ///
    /// # Panics
    /// If `out` has another length than `rows · (T + 1)`.
    pub fn batch(&self, cursor: &mut Cursor, rows: usize, out: &mut [u32], mut next: impl FnMut(Cursor) -> Cursor) {
        assert_eq!(out.len(), rows * (self.context + 1), "a batch of {rows} windows of {} + 1 tokens", self.context);
        for row in out.chunks_exact_mut(self.context + 1) {
            if cursor.is_used_up() {
                *cursor = next(*cursor);
            }
            self.window(cursor.block, cursor.window, row);
            cursor.window += 1;
        }
    }

    /// How many batches of `rows` windows the held-out part gives without repeating a token, at
    /// least 1.
    pub fn held_out_batches(&self, rows: usize) -> usize {
        let windows = (self.corpus.held_out().len() - 1) / self.context;
        (windows / rows.max(1)).max(1)
    }

    /// Fills `out`, `(rows, T + 1)`, with batch `index` of `batches`, which together are `rows ·
    /// batches` windows evenly spaced over the held-out part. They depend on nothing but the
    /// corpus, the context and these numbers, so every score of a run is of the same text. More of
    /// them than [`held_out_batches`](Self::held_out_batches) overlap.
    ///
    /// # Panics
    /// If `index` is not below `batches`, or `out` has another length than `rows · (T + 1)`.
    pub fn held_out_batch(&self, index: usize, batches: usize, rows: usize, out: &mut [u32]) {
        assert!(index < batches, "held-out batch {index} of {batches}");
        assert_eq!(out.len(), rows * (self.context + 1), "a batch of {rows} windows of {} + 1 tokens", self.context);
        let text = self.corpus.held_out();
        let last_start = text.len() - (self.context + 1);
        let count = rows * batches;
        for (row, out) in out.chunks_exact_mut(self.context + 1).enumerate() {
            let place = (index * rows + row) as u128;
            // The last window ends where the text does; one window alone starts at the beginning.
            // In 128 bits, as the product may not fit 64.
            let start = place * last_start as u128 / (count as u128 - 1).max(1);
            copy_tokens(&text[start as usize..], out, self.context);
        }
    }
}

/// Copies the head of `text` as tokens.
fn copy_tokens(text: &[u8], out: &mut [u32], context: usize) {
    assert_eq!(out.len(), context + 1, "a window of {context} + 1 tokens");
    for (token, byte) in out.iter_mut().zip(&text[..=context]) {
        *token = u32::from(*byte);
    }
}
