//! What a person sees of a run: progress while it goes on, a summary and a picture of the loss when
//! it ends.
//!
//! Pure of the bucket and of the run's machinery: it is given numbers and shows them. Losses are in
//! nats per token, and a token of the byte-level tokenizer is a byte; x values are tokens merged
//! into the committed model.
//!
//! Files appear whole or not at all: they are written beside their final name and renamed.

mod board;
mod chaos;
mod chart;
mod curves;
mod number;
mod summary;
mod svg;

use std::io::{self, Write};
use std::path::{Path, PathBuf};

pub use board::{Board, IslandLine, RunLine};
pub use chaos::{BlowLine, ChaosReport, Invariant, KindLine, by_kind};
pub use chart::loss_curves_text;
pub use curves::{Curves, Series};
pub use summary::Summary;
pub use svg::loss_curves_svg;

/// Result of writing a report.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a report could not be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The picture could not be drawn: a bug, as no input can cause it.
    #[error("drawing the loss curves failed: {problem}")]
    Drawing {
        /// What the drawing library said.
        problem: String,
    },
    /// The file could not be written.
    #[error("writing {path} failed; is its folder there and writable?", path = path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// Writes a file so that its name never holds half of it.
fn write_whole(path: &Path, content: &[u8]) -> Result<()> {
    let failed = |source| Error::Write { path: path.to_owned(), source };
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut builder = tempfile::Builder::new();
    #[cfg(unix)]
    {
        // A temporary file is for its owner alone; a report is as readable as any other file.
        use std::os::unix::fs::PermissionsExt;
        builder.permissions(std::fs::Permissions::from_mode(0o666));
    }
    let mut file = builder.prefix(".report").tempfile_in(dir).map_err(failed)?;
    file.write_all(content).map_err(failed)?;
    file.persist(path).map_err(|error| failed(error.error))?;
    Ok(())
}

#[cfg(test)]
mod tests;
