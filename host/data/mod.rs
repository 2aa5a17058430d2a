//! Text on disk → batches of tokens: which files, which of them are held out, in which order they
//! are seen.
//!
//! Guarantees, each held by a test beside this file:
//! - What an island trains on is a pure function of the corpus' [fingerprint](Corpus::fingerprint),
//!   the seed, the context and a block number ([`Blocks`]); any island can regenerate any block, on
//!   any machine, so a dead island's block can be given to another.
//! - Training text and held-out text are disjoint: the split is by document, and a document that
//!   occurs twice is taken once.
//! - In one epoch every window is in at most one block, and the blocks leave out fewer windows than
//!   one block has.
//! - No token crosses this module's border that is not a byte of the text or the
//!   [separator](SEPARATOR).
//!
//! Units: sizes are bytes of text; a token is one byte, so they are also tokens. Shapes: a window
//! is `context + 1` tokens (inputs and targets overlap by all but one), a batch is `(B, T + 1)` of
//! `u32`, row by row.
//!
//! Nothing here knows of a bucket or a network: who may train on which block is decided elsewhere.

mod corpus;
mod error;
mod glob;
mod permutation;
mod source;
mod tokenizer;
mod window;

pub use corpus::{Corpus, CorpusLimits};
pub use error::{Error, Result, Skipped};
pub use permutation::Permutation;
pub use source::Source;
pub use tokenizer::{SEPARATOR, VOCABULARY, write_tokenizer_files};
pub use window::{BLOCK_WINDOWS, Blocks, Cursor};

#[cfg(test)]
mod tests;
