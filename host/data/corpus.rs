//! A corpus: documents, read once, split into a training part and a held-out part, in one block of
//! memory.
//!
//! **Splitting.** Whole documents are held out, never parts that share text with the training part.
//! Only documents longer than a 64th of the corpus are cut, at line ends, so that a corpus of one
//! file can be split too. Pieces are taken in the order of a seeded hash of their content until the
//! held-out part is as long as [`CorpusLimits`] says; the seed of the *run* has no part in it, so
//! runs with different seeds are scored on the same text.
//!
//! **Memory.** The whole corpus is held, once per process, up to [`CorpusLimits::bytes`]; while it
//! is read nothing is held twice.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;

use bytes::Bytes;
use sha2::{Digest, Sha256};

use super::error::{Error, Result, Skipped};
use super::source::{self, Candidate, Listing, Source};
use super::tokenizer::SEPARATOR;

/// Least text that can be split at all: room for pieces of the smallest size on both sides.
const CORPUS_BYTES_MIN: u64 = 16 * 1024;

/// A document is cut into pieces of at most this part of the corpus …
const PIECES_AT_LEAST: u64 = 64;
/// … but of no fewer bytes than this, so that a piece is still some sentences …
const PIECE_BYTES_MIN: u64 = 4 * 1024;
/// … and of no more than this, so that the held-out part is not one document.
const PIECE_BYTES_MAX: u64 = 256 * 1024;

/// A file is taken for binary by this much of its head, so that large ones are not read to the end.
const SNIFF_BYTES: u64 = 8 * 1024;

/// How much text to take and how to split it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CorpusLimits {
    /// The most text to hold, in bytes, both parts together.
    pub bytes: u64,
    /// Files of crates larger than this are passed over: they are tables and generated code. Does
    /// not apply to a path of the user's.
    pub registry_file_bytes: u64,
    /// Share of the text to hold out, in thousandths …
    pub held_out_per_mille: u32,
    /// … but at least this many bytes (or a tenth of the corpus, if that is less) …
    pub held_out_bytes_min: u64,
    /// … and about this many at most.
    pub held_out_bytes_max: u64,
    /// Chooses which documents are held out.
    pub split_seed: u64,
}

impl Default for CorpusLimits {
    fn default() -> Self {
        Self {
            bytes: 64 << 20,
            registry_file_bytes: 256 << 10,
            held_out_per_mille: 20,
            held_out_bytes_min: 64 << 10,
            held_out_bytes_max: 1 << 20,
            split_seed: 0,
        }
    }
}

/// Text to train on and text to be scored on. Cheap to clone: clones share the text.
#[derive(Debug, Clone)]
pub struct Corpus {
    /// Training part, then held-out part; in each, documents are followed by a separator.
    text: Bytes,
    training: usize,
    documents: usize,
    skipped: Skipped,
    fingerprint: String,
    description: String,
}

impl Corpus {
    /// Reads and splits what `source` names.
    ///
    /// # Errors
    /// [`Error::RegistryEmpty`], [`Error::NotFound`], [`Error::NoText`], [`Error::TooSmall`] or
    /// [`Error::Io`].
    pub fn open(source: &Source, limits: &CorpusLimits) -> Result<Self> {
        Self::read(source, source::list(source)?, limits)
    }

    /// Reads and splits the files of `listing`.
    pub(super) fn read(source: &Source, listing: Listing, limits: &CorpusLimits) -> Result<Self> {
        let file_bytes_max = match source {
            Source::CargoRegistry => limits.registry_file_bytes,
            Source::Path(_) => u64::MAX,
        };
        let read = read_documents(&listing, limits.bytes, file_bytes_max);
        if read.documents.is_empty() {
            return Err(Error::NoText { path: listing.description.into(), skipped: read.skipped });
        }
        let bytes = read.text.len() as u64;
        if bytes < CORPUS_BYTES_MIN {
            return Err(Error::TooSmall { corpus: listing.description, bytes, expected: CORPUS_BYTES_MIN });
        }
        let documents = read.documents.len();
        let (text, training) = split(read.text, &read.documents, limits);
        let mut hash = Sha256::new();
        hash.update(b"tombolo corpus 1");
        hash.update((training as u64).to_le_bytes());
        hash.update(&text);
        let fingerprint = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        let description = format!(
            "{}: {documents} documents, {} to train on and {} held out; {}",
            listing.description,
            size(training),
            size(text.len() - training),
            read.skipped
        );
        Ok(Self { text: text.into(), training, documents, skipped: read.skipped, fingerprint, description })
    }

    /// SHA-256 of both parts, in hexadecimal. Islands whose fingerprints differ do not have the
    /// same corpus and must not share a run.
    pub fn fingerprint(&self) -> String {
        self.fingerprint.clone()
    }

    /// Length of the training part, separators included.
    pub fn training_bytes(&self) -> u64 {
        self.training as u64
    }

    /// Length of the held-out part, separators included.
    pub fn held_out_bytes(&self) -> u64 {
        (self.text.len() - self.training) as u64
    }

    /// How many documents were taken.
    pub fn documents(&self) -> usize {
        self.documents
    }

    /// Which files were not taken.
    pub fn skipped(&self) -> Skipped {
        self.skipped
    }

    /// The corpus in one line for people: source, documents, sizes, what was passed over.
    pub fn description(&self) -> &str {
        &self.description
    }

    /// The text to train on.
    pub fn training(&self) -> &[u8] {
        &self.text[..self.training]
    }

    /// The text to be scored on.
    pub fn held_out(&self) -> &[u8] {
        &self.text[self.training..]
    }
}

/// Documents back to back, each followed by a separator.
struct Documents {
    text: Vec<u8>,
    /// Where each is in `text`, its separator included.
    documents: Vec<Range<usize>>,
    skipped: Skipped,
}

/// Reads files in the order of the listing until `bytes_max` is reached.
fn read_documents(listing: &Listing, bytes_max: u64, file_bytes_max: u64) -> Documents {
    let within = |file: &&Candidate| file.bytes <= file_bytes_max;
    let expected = listing.files.iter().filter(within).map(|file| file.bytes + 1).sum::<u64>().min(bytes_max);
    // A little more than is needed, as the split adds a separator here and there.
    let capacity = usize::try_from(expected).unwrap_or(usize::MAX).saturating_add(4096);
    let mut read = Documents {
        text: Vec::with_capacity(capacity),
        documents: Vec::new(),
        skipped: Skipped { unreadable: listing.unreadable, ..Skipped::default() },
    };
    let mut seen: BTreeSet<[u8; 32]> = BTreeSet::new();
    for file in &listing.files {
        let start = read.text.len();
        let room = bytes_max.saturating_sub(start as u64 + 1);
        let fate = if file.bytes == 0 {
            Err(&mut read.skipped.empty)
        } else if file.bytes > file_bytes_max {
            Err(&mut read.skipped.oversized)
        } else if room == 0 {
            Err(&mut read.skipped.beyond_limit)
        } else {
            match append_text(file, room, &mut read.text) {
                Err(_) => Err(&mut read.skipped.unreadable),
                Ok(false) => Err(&mut read.skipped.binary),
                Ok(true) if read.text[start..].trim_ascii().is_empty() => Err(&mut read.skipped.empty),
                Ok(true) if !seen.insert(Sha256::digest(&read.text[start..]).into()) => {
                    Err(&mut read.skipped.duplicate)
                }
                Ok(true) => Ok(()),
            }
        };
        match fate {
            Ok(()) => {
                read.text.push(SEPARATOR);
                read.documents.push(start..read.text.len());
            }
            Err(count) => {
                *count += 1;
                read.text.truncate(start);
            }
        }
    }
    read
}

/// Appends the first `room` bytes of a file, cut at a line end if there is more of it. False if it
/// is not text.
fn append_text(file: &Candidate, room: u64, text: &mut Vec<u8>) -> io::Result<bool> {
    let start = text.len();
    let mut reader = File::open(&file.path)?;
    Read::by_ref(&mut reader).take(SNIFF_BYTES.min(room)).read_to_end(text)?;
    if text[start..].contains(&SEPARATOR) {
        return Ok(false);
    }
    let rest = room.saturating_sub((text.len() - start) as u64);
    Read::by_ref(&mut reader).take(rest).read_to_end(text)?;
    let cut = (text.len() - start) as u64 == room && reader.read(&mut [0])? > 0;
    let found = &text[start..];
    let valid = match std::str::from_utf8(found) {
        Ok(_) => found.len(),
        // The cut went through a character.
        Err(error) if cut && error.error_len().is_none() => error.valid_up_to(),
        Err(_) => return Ok(false),
    };
    if found.contains(&SEPARATOR) {
        return Ok(false);
    }
    let end = if cut { line_end(&found[..valid]) } else { valid };
    text.truncate(start + end);
    Ok(true)
}

/// Where to cut a text that goes on: behind its last line end, or else at its end, which must not
/// be inside a character.
fn line_end(text: &[u8]) -> usize {
    text.iter().rposition(|byte| *byte == b'\n').map_or(text.len(), |at| at + 1)
}

/// Moves the held-out pieces behind the others. Returns the text and the length of its training
/// part.
fn split(mut text: Vec<u8>, documents: &[Range<usize>], limits: &CorpusLimits) -> (Vec<u8>, usize) {
    let total = text.len() as u64;
    let piece_bytes = (total / PIECES_AT_LEAST).clamp(PIECE_BYTES_MIN, PIECE_BYTES_MAX);
    let pieces: Vec<Range<usize>> =
        documents.iter().flat_map(|document| cut(&text, document.clone(), piece_bytes)).collect();
    let held_out = choose_held_out(&text, &pieces, limits);

    let mut apart = Vec::new();
    let mut end = 0;
    for (index, piece) in pieces.iter().enumerate() {
        if held_out.contains(&index) {
            apart.extend_from_slice(&text[piece.clone()]);
            if apart.last() != Some(&SEPARATOR) {
                apart.push(SEPARATOR);
            }
            // What comes next does not go on from what came before. The piece taken out left room
            // for this.
            if end > 0 && text[end - 1] != SEPARATOR {
                text[end] = SEPARATOR;
                end += 1;
            }
        } else {
            text.copy_within(piece.clone(), end);
            end += piece.len();
        }
    }
    text.truncate(end);
    text.extend_from_slice(&apart);
    (text, end)
}

/// Cuts a document into pieces of at most `piece_bytes`, at line ends where there are any.
fn cut(text: &[u8], document: Range<usize>, piece_bytes: u64) -> Vec<Range<usize>> {
    let most = usize::try_from(piece_bytes).unwrap_or(usize::MAX);
    let mut pieces = Vec::new();
    let mut start = document.start;
    while document.end - start > most {
        // Steps back out of a character that the cut would split: continuation bytes are 10xxxxxx.
        let mut end = start + most;
        while end > start + 1 && text[end] & 0xc0 == 0x80 {
            end -= 1;
        }
        let end = start + line_end(&text[start..end]);
        pieces.push(start..end);
        start = end;
    }
    pieces.push(start..document.end);
    pieces
}

/// The indices of the pieces to hold out; at least one, and at least one is left.
fn choose_held_out(text: &[u8], pieces: &[Range<usize>], limits: &CorpusLimits) -> BTreeSet<usize> {
    let total = text.len() as u64;
    let share = total / 1000 * u64::from(limits.held_out_per_mille.min(1000));
    let target = share.max(limits.held_out_bytes_min.min(total / 10)).min(limits.held_out_bytes_max);
    let mut order: Vec<([u8; 32], usize)> = pieces
        .iter()
        .enumerate()
        .map(|(index, piece)| {
            let mut hash = Sha256::new();
            hash.update(limits.split_seed.to_le_bytes());
            hash.update(&text[piece.clone()]);
            (hash.finalize().into(), index)
        })
        .collect();
    order.sort_unstable();
    let mut chosen = BTreeSet::new();
    let mut bytes = 0;
    for (_, index) in order.iter().take(pieces.len().saturating_sub(1)) {
        if bytes >= target && !chosen.is_empty() {
            break;
        }
        bytes += pieces[*index].len() as u64;
        chosen.insert(*index);
    }
    chosen
}

/// A size for people.
fn size(bytes: usize) -> String {
    #[expect(clippy::cast_precision_loss, reason = "shown with one decimal")]
    let mib = bytes as f64 / f64::from(1 << 20);
    if mib < 1.0 { format!("{:.0} KiB", mib * 1024.0) } else { format!("{mib:.1} MiB") }
}
