//! What can be wrong with the text a run is to train on, with what to do about it.

use std::fmt;
use std::path::PathBuf;

/// Result of everything in this module.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a corpus could not be opened or cut into blocks. All of these are for the user to mend, none
/// is worth a retry.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// None of the crates whose sources are the default corpus lies in cargo's registry.
    #[error(
        "no sources of this project's crates in cargo's registry (looked for {expected} crates, \
         such as {example}, under {looked}); pass text with --data PATH, where PATH is a file, a \
         directory or a glob"
    )]
    RegistryEmpty {
        /// The folders searched, or why there were none.
        looked: String,
        /// How many crates would have been taken.
        expected: usize,
        /// Name and version of the first of them.
        example: String,
    },
    /// The path does not exist, or the glob matches nothing.
    #[error(
        "--data {path}: {problem}; expected a text file, a directory with text files, or a glob \
         that matches some",
        path = path.display()
    )]
    NotFound {
        /// The path as given.
        path: PathBuf,
        /// What was looked for.
        problem: &'static str,
    },
    /// The place exists but no file in it is text.
    #[error(
        "--data {path}: no text in it; {skipped}. Text is valid UTF-8 without zero bytes; unpack \
         archives and convert documents first",
        path = path.display()
    )]
    NoText {
        /// The path as given.
        path: PathBuf,
        /// How many files were passed over, and why.
        skipped: Skipped,
    },
    /// Text was found, but not enough to split into a training part and a held-out part.
    #[error(
        "{corpus}: {bytes} bytes of text after duplicates were removed, expected at least \
         {expected}; give more text with --data PATH"
    )]
    TooSmall {
        /// Description of the source.
        corpus: String,
        /// Bytes found.
        bytes: u64,
        /// Bytes needed.
        expected: u64,
    },
    /// Enough for a corpus, not enough for the islands of this run.
    #[error(
        "{corpus}: {bytes} bytes in the {part} part, expected at least {expected} for {islands} \
         island(s) at a context of {context} (a block is {block_windows} windows); give more text \
         with --data PATH, or take fewer islands or a shorter context"
    )]
    TooSmallForRun {
        /// Description of the source.
        corpus: String,
        /// `training` or `held-out`.
        part: &'static str,
        /// Bytes found.
        bytes: u64,
        /// Bytes needed.
        expected: u64,
        /// Islands asked for.
        islands: usize,
        /// Tokens of context asked for.
        context: usize,
        /// Windows in a block.
        block_windows: usize,
    },
    /// A context of nothing cannot be trained on.
    #[error("context is {found} tokens, expected 1 to {most}")]
    Context {
        /// What was asked for.
        found: usize,
        /// The largest possible.
        most: usize,
    },
    /// A file or folder could not be read or written.
    #[error("{what} {path} failed", path = path.display())]
    Io {
        /// `reading` or `writing`.
        what: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
}

/// Files that were found and not taken, by reason.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Skipped {
    /// Nothing in them.
    pub empty: u64,
    /// Zero bytes inside, or not valid UTF-8.
    pub binary: u64,
    /// The same bytes as a file taken before.
    pub duplicate: u64,
    /// Above the size limit for one file.
    pub oversized: u64,
    /// The file could not be opened or read (permissions, a broken link).
    pub unreadable: u64,
    /// Good text, but the corpus had reached its size limit.
    pub beyond_limit: u64,
}

impl Skipped {
    /// Files not taken, for whatever reason.
    pub fn total(&self) -> u64 {
        self.empty + self.binary + self.duplicate + self.oversized + self.unreadable + self.beyond_limit
    }
}

impl fmt::Display for Skipped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reasons = [
            (self.binary, "binary"),
            (self.empty, "empty"),
            (self.duplicate, "duplicates"),
            (self.oversized, "too large"),
            (self.unreadable, "unreadable"),
            (self.beyond_limit, "beyond the size limit"),
        ];
        if self.total() == 0 {
            return f.write_str("no file was passed over");
        }
        write!(f, "{} file(s) passed over (", self.total())?;
        let mut first = true;
        for (count, reason) in reasons.into_iter().filter(|(count, _)| *count > 0) {
            if !first {
                f.write_str(", ")?;
            }
            first = false;
            write!(f, "{count} {reason}")?;
        }
        f.write_str(")")
    }
}
