//! The one public error of the host. Its [`Kind`] says what the operator has to do, and is the exit code of the binary.
//!
//! A message gives what went wrong, where, what was expected, what was found and a hint. `Display` never repeats the source; the binary
//! prints the chain.

use std::fmt;

/// What an error asks of the operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The input is wrong: change it and try again.
    Invalid,
    /// Something outside did not answer: try again later.
    Unavailable,
    /// Another process has taken this place: do not try again.
    Fenced,
    /// Stored bytes are not what they were when they were written.
    Corrupt,
    /// A mistake of this program: report it.
    Bug,
}

impl Kind {
    /// The exit code of a process that ends with an error of this kind.
    pub fn exit_code(self) -> u8 {
        match self {
            Kind::Invalid => 2,
            Kind::Unavailable => 3,
            Kind::Fenced => 4,
            Kind::Corrupt => 5,
            Kind::Bug => 70,
        }
    }
}

/// An error with its kind, a message for people and what caused it.
#[derive(Debug)]
pub struct Error {
    kind: Kind,
    message: String,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// The result of nearly everything in the host.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    fn of(kind: Kind, message: impl Into<String>) -> Error {
        Error { kind, message: message.into(), source: None }
    }

    /// Wrong input.
    pub fn invalid(message: impl Into<String>) -> Error {
        Error::of(Kind::Invalid, message)
    }

    /// Something outside did not answer.
    pub fn unavailable(message: impl Into<String>) -> Error {
        Error::of(Kind::Unavailable, message)
    }

    /// Another process has taken this place.
    pub fn fenced(message: impl Into<String>) -> Error {
        Error::of(Kind::Fenced, message)
    }

    /// Stored bytes are damaged.
    pub fn corrupt(message: impl Into<String>) -> Error {
        Error::of(Kind::Corrupt, message)
    }

    /// A mistake of this program.
    pub fn bug(message: impl Into<String>) -> Error {
        Error::of(Kind::Bug, message)
    }

    /// Adds what caused this error.
    pub fn because(mut self, source: impl std::error::Error + Send + Sync + 'static) -> Error {
        self.source = Some(Box::new(source));
        self
    }

    /// Says in front where it happened.
    pub fn at(mut self, place: &str) -> Error {
        self.message = format!("{place}: {}", self.message);
        self
    }

    /// What the error asks of the operator.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The message and every source below it, in one line. Errors of libraries that say their sources themselves are not repeated.
    pub fn chain(&self) -> String {
        let mut text = self.message.clone();
        let mut next = std::error::Error::source(self);
        while let Some(error) = next {
            let said = error.to_string();
            if !text.contains(&said) {
                text.push_str(": ");
                text.push_str(&said);
            }
            next = error.source();
        }
        text
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_deref().map(|s| s as _)
    }
}

impl From<tombolo_engine::Error> for Error {
    fn from(error: tombolo_engine::Error) -> Error {
        // Numbers that left the finite range belong to this process's state: starting again from the last good checkpoint mends them.
        let kind = match error {
            tombolo_engine::Error::NonFinite { .. } | tombolo_engine::Error::Damaged { .. } => Kind::Corrupt,
            tombolo_engine::Error::Threads { .. } => Kind::Unavailable,
            _ => Kind::Invalid,
        };
        Error::of(kind, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{0}")]
    struct Said(&'static str, #[source] Option<Box<Said>>);

    #[test]
    fn the_chain_says_every_source_once() {
        let root = Said("connection refused", None);
        let repeats_it = Said("request failed: connection refused", Some(Box::new(root)));
        let error =
            Error::unavailable("the bucket cannot be listed").because(Said("no answer", Some(Box::new(repeats_it))));
        assert_eq!(error.chain(), "the bucket cannot be listed: no answer: request failed: connection refused");
    }
}
