//! The one error of the engine. Each message says what, where, expected, found and what to do; none includes its source.

use std::path::{Path, PathBuf};

/// `Result` with the engine's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// Everything that can go wrong in the engine.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The shape of the model is impossible; all problems are listed at once.
    #[error("the model's shape is impossible: {}", .problems.join("; "))]
    Config {
        /// One sentence a problem, with field, expected and found.
        problems: Vec<String>,
    },
    /// A `config.json` describes a model that this engine does not compute; all problems are listed at once.
    #[error("{path} describes a model that this engine cannot compute: {}", .problems.join("; "))]
    Unsupported {
        /// The file.
        path: PathBuf,
        /// One sentence a problem, with field, expected and found.
        problems: Vec<String>,
    },
    /// A `model.safetensors` does not hold the tensors that its `config.json` asks for.
    #[error("{path} does not fit its config.json: {}", .problems.join("; "))]
    Weights {
        /// The file.
        path: PathBuf,
        /// One sentence a problem, with tensor, expected and found.
        problems: Vec<String>,
    },
    /// A file is not what its name says: broken JSON, a truncated or damaged safetensors file.
    #[error("{path} cannot be read as {expected}: {problem}")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The format that was expected.
        expected: &'static str,
        /// What is wrong with it.
        problem: String,
    },
    /// The file system refused.
    #[error("cannot {action} {path}")]
    Io {
        /// What was tried: "read", "write", …
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// What the system answered.
        source: std::io::Error,
    },
    /// What the caller passed does not fit the model; nothing was changed.
    #[error("{what}: expected {expected}, found {found}")]
    Argument {
        /// Which argument.
        what: &'static str,
        /// What it has to be.
        expected: String,
        /// What it was.
        found: String,
    },
    /// Loss or gradient is not finite; parameters and moments are as they were before the step.
    #[error(
        "the {what} is {value} at Adam step {step}: nothing was changed; go back to a good checkpoint or lower the learning rate"
    )]
    NonFinite {
        /// "loss" or "gradient norm".
        what: &'static str,
        /// The value: NaN or an infinity.
        value: f32,
        /// Adam steps taken before.
        step: u64,
    },
    /// The threads of the trainer could not be started.
    #[error("cannot start {threads} threads")]
    Threads {
        /// How many were asked for.
        threads: usize,
        /// What the system answered.
        source: rayon::ThreadPoolBuildError,
    },
}

impl Error {
    /// Wraps an I/O error with what was tried and where; for `map_err`.
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Error {
        let path = path.to_owned();
        move |source| Error::Io { action, path, source }
    }
}
