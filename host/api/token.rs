//! Who may ask for what. A token is a line `ACCESS NAME TOKEN`, in a file or an environment variable: `read` may look, `operate` may also change. The
//! name is for people and for the rate; only the hash of a token is kept.

use crate::bucket::key::is_name;
use crate::error::{Error, Result};
use crate::policy::Hash;
use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// The fewest characters of a token: 32 hexadecimal digits are 128 bits.
const CHARACTERS_MIN: usize = 32;
/// The most tokens, so that looking one up stays cheap and the allowances few.
const TOKENS_MAX: usize = 64;

/// What a token allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Access {
    /// To look.
    Read,
    /// To look, and to change what a run does.
    Operate,
}

/// One who may ask.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// Name of the token.
    pub name: String,
    /// What it allows.
    pub access: Access,
    hash: Hash,
}

/// All who may ask; at least one.
#[derive(Debug, Clone)]
pub struct Tokens {
    callers: Vec<Caller>,
}

impl Tokens {
    /// Reads tokens: one a line or after a comma, `read NAME TOKEN` or `operate NAME TOKEN`; `#` before a word begins a comment.
    ///
    /// # Errors
    /// Invalid, with the place in `origin`; never with a token.
    pub fn parse(text: &str, origin: &str) -> Result<Tokens> {
        let mut callers: Vec<Caller> = Vec::new();
        let (mut names, mut hashes) = (BTreeSet::new(), BTreeSet::new());
        for (index, line) in text.lines().enumerate() {
            // Within a word, so within a token, it is a character like others.
            let begins = |at: &usize| line[..*at].chars().next_back().is_none_or(char::is_whitespace);
            let comment = line.match_indices('#').map(|(at, _)| at).find(begins);
            let line = &line[..comment.unwrap_or(line.len())];
            for entry in line.split(',').map(str::trim).filter(|entry| !entry.is_empty()) {
                let wrong = |what: String| Error::invalid(format!("{origin}, line {}: {what}", index + 1));
                let words: Vec<&str> = entry.split_whitespace().collect();
                let [access, name, token] = words[..] else {
                    return Err(wrong(format!(
                        "expected `read NAME TOKEN` or `operate NAME TOKEN`, found {} words",
                        words.len()
                    )));
                };
                let access = match access {
                    "read" => Access::Read,
                    "operate" => Access::Operate,
                    _ => return Err(wrong("expected `read` or `operate` as the first word".into())),
                };
                if !is_name(name) {
                    return Err(wrong(
                        "expected a name of 1 to 64 lower-case letters, digits and dashes as the second word".into(),
                    ));
                }
                if token.len() < CHARACTERS_MIN || !token.bytes().all(|b| b.is_ascii_graphic()) {
                    return Err(wrong(format!(
                        "{name}: expected a token of at least {CHARACTERS_MIN} characters of ASCII, found one of {}; `openssl rand -hex 32` makes one",
                        token.chars().count()
                    )));
                }
                let hash = Hash::of(token.as_bytes());
                if !names.insert(name.to_string()) || !hashes.insert(hash) {
                    return Err(wrong(format!(
                        "{name}: expected a name and a token of its own, found one that another line has"
                    )));
                }
                callers.push(Caller { name: name.into(), access, hash });
            }
        }
        if callers.is_empty() || callers.len() > TOKENS_MAX {
            return Err(Error::invalid(format!(
                "{origin}: expected 1 to {TOKENS_MAX} lines `read NAME TOKEN` or `operate NAME TOKEN`, found {}",
                callers.len()
            )));
        }
        Ok(Tokens { callers })
    }

    /// Reads tokens from a file, which must be closed to others.
    ///
    /// # Errors
    /// Invalid: it cannot be read, is open to others, or holds something else.
    pub fn read(path: &Path) -> Result<Tokens> {
        let origin = path.display().to_string();
        let unreadable = |e| Error::invalid(format!("{origin}: the tokens cannot be read")).because(e);
        let mode = std::fs::metadata(path).map_err(unreadable)?.permissions().mode();
        if mode & 0o007 != 0 {
            return Err(Error::invalid(format!(
                "{origin}: expected a file that others cannot read, found mode {:o}; chmod 600 {origin}",
                mode & 0o777
            )));
        }
        Tokens::parse(&std::fs::read_to_string(path).map_err(unreadable)?, &origin)
    }

    /// All who may ask, in the order of the lines.
    pub fn callers(&self) -> &[Caller] {
        &self.callers
    }

    /// The place of the one whose token this is. Hashes are compared, each with all its bytes and all of them, so the time that this takes tells
    /// nothing about a token.
    pub fn find(&self, token: &str) -> Option<usize> {
        let presented = Hash::of(token.as_bytes());
        let mut found = None;
        for (place, caller) in self.callers.iter().enumerate() {
            let difference = presented.0.iter().zip(&caller.hash.0).fold(0, |sum, (a, b)| sum | (a ^ b));
            if std::hint::black_box(difference) == 0 {
                found = Some(place);
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
    const B: &str = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb";

    #[test]
    fn tokens_stand_in_lines_or_between_commas_and_each_finds_its_own() {
        for text in [
            format!("# who looks\nread board {A}\n\n  operate ci\t{B} # who changes\n"),
            format!("read board {A}, operate ci {B}"),
        ] {
            let tokens = Tokens::parse(&text, "t").unwrap();
            let found = |token: &str| tokens.find(token).map(|place| tokens.callers()[place].clone());
            let both = [found(A), found(B)].map(|caller| caller.map(|c| (c.name, c.access)));
            assert_eq!(both, [Some(("board".into(), Access::Read)), Some(("ci".into(), Access::Operate))]);
            for other in ["", &A[1..], &format!("{A}a"), "operate"] {
                assert_eq!(found(other), None, "{other}");
            }
        }
    }

    #[test]
    fn a_token_with_a_sign_in_it_that_begins_comments_is_taken_whole() {
        let whole = format!("{A}#{B}");
        let tokens = Tokens::parse(&format!("read board {whole} # who looks, and more"), "t").unwrap();
        assert_eq!((tokens.find(&whole), tokens.find(A)), (Some(0), None));
    }

    #[test]
    fn what_is_no_list_of_tokens_is_refused_without_repeating_a_token() {
        let secret = "S3cretS3cretS3cretS3cretS3cretS3cret";
        for (text, expected) in [
            (String::new(), "1 to 64 lines"),
            (format!("operate {secret}"), "line 1: expected `read NAME TOKEN`"),
            (format!("admin ci {secret}"), "`read` or `operate`"),
            (format!("read {secret} {secret}"), "a name of 1 to 64"),
            ("\nread ci S3cret".to_string(), "line 2: ci: expected a token of at least 32"),
            (format!("read a {secret}\noperate b {secret}"), "b: expected a name and a token of its own"),
            (format!("read a {secret}\noperate a {A}"), "a: expected a name and a token of its own"),
        ] {
            let error = Tokens::parse(&text, "tokens.txt").unwrap_err().to_string();
            assert!(error.contains(expected) && !error.contains("S3cret"), "{text}: {error}");
        }
    }
}
