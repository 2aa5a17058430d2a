//! Whether a store can be a bucket: everything that the protocol relies on, tried on the store itself.
//!
//! [`examine`] tries all of it in some seconds and some two hundred requests; [`require_conditions`] tries only the one primitive, in four,
//! before a role is taken. Both write below `doctor/<nonce>` alone, which no run can be called, and remove what they wrote whatever they
//! find; a process that is killed meanwhile leaves it there, and the bucket's lifecycle rule (`tombolo bucket init`) takes it after a day.
//!
//! What is tried: one answer at all; create-if-absent, alone and raced for; reading, listing and overwriting what was just written; large
//! objects, parts of them, and multipart uploads; a beat that a reader sees move by its own clock; deletion. What is not tried, because
//! nothing relies on it: update-if-unchanged, conditional multipart completion, conditional copy and delete, the order of listings, an
//! object below another object's key.

use super::examination::{Examination, Found, Trouble, second_create, wrong};
use super::key::DoctorKeys;
use super::run::remove;
use crate::clock::{self, Duration};
use crate::error::{Error, Kind, Result};
use crate::nonce::nonce;
use object_store::{Error as StoreError, ObjectStore};
use serde::Serialize;
use std::sync::Arc;

/// The longest that one check may take: large objects over a slow link, 64 racers on a store that makes them wait.
const CHECK_TIME: Duration = Duration::from_secs(90);

/// What one check found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What was tried, in a few words.
    pub check: &'static str,
    /// Whether the store does what is needed.
    pub ok: bool,
    /// What it did.
    pub found: String,
    /// What in Tombolo does not work on a store that fails this.
    pub without: &'static str,
}

/// Times of one kind of request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Spread {
    /// Requests that were timed.
    pub requests: usize,
    /// Half of them took at most so many milliseconds.
    pub median_ms: f64,
    /// 99 of 100 took at most so many milliseconds.
    pub p99_ms: f64,
}

impl Spread {
    pub(super) fn of(times: &mut [Duration]) -> Spread {
        times.sort();
        let at = |percent: usize| {
            times.get((times.len() * percent).div_ceil(100).max(1) - 1).copied().map_or(0.0, clock::ms)
        };
        Spread { requests: times.len(), median_ms: at(50), p99_ms: at(99) }
    }
}

/// What was measured on the way. Nothing here makes a store unfit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Measured {
    /// Puts of small objects, retries included.
    pub put: Spread,
    /// Gets of them.
    pub get: Spread,
    /// Creates of those who lost a race among sixteen for one key.
    pub lost_create: Spread,
    /// Megabytes (10⁶ bytes) per second of one large put.
    pub up_mb_per_s: f64,
    /// Megabytes per second of reading it back.
    pub down_mb_per_s: f64,
}

/// What an examination found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// One for each check, in the order in which they were made.
    pub findings: Vec<Finding>,
    /// Times on the way.
    pub measured: Measured,
}

impl Report {
    /// Whether the store can be a bucket.
    pub fn is_fit(&self) -> bool {
        self.findings.iter().all(|f| f.ok)
    }

    /// Names of the checks that failed.
    pub fn failed(&self) -> Vec<&'static str> {
        self.findings.iter().filter(|f| !f.ok).map(|f| f.check).collect()
    }
}

/// Tries everything that the protocol relies on, tells each finding as it comes, and removes what it wrote. Objects are overwritten every
/// `beat_every`, as those of islands and syncers are in this store ([`Location::beat_every`](super::Location::beat_every)).
///
/// # Errors
/// Unavailable: the store does not answer, or stopped answering. Invalid: there is no such bucket, or it refuses the credentials.
pub async fn examine(
    store: &Arc<dyn ObjectStore>,
    beat_every: Duration,
    mut tell: impl FnMut(&Finding),
) -> Result<Report> {
    let mut examination = Examination::new(store.clone(), beat_every);
    let mut findings = Vec::new();
    let outcome = all(&mut examination, &mut findings, &mut tell).await;
    // Also after a store that has stopped answering: it may have come back.
    let removed = clock::timeout(CHECK_TIME, examination.removal()).await;
    outcome?;
    let removed = removed.unwrap_or_else(|_| wrong(format!("no end within {} s", CHECK_TIME.as_secs())));
    let finding = finding("deletes", "what nobody needs any more is kept, and paid for", removed);
    tell(&finding);
    findings.push(finding);
    let measured = Measured {
        put: Spread::of(&mut examination.puts),
        get: Spread::of(&mut examination.gets),
        lost_create: Spread::of(&mut examination.lost),
        ..examination.measured
    };
    Ok(Report { findings, measured })
}

/// Tries whether a second create of a key is refused, with one key and four requests, and removes the key again. `place` names the store
/// in the error.
///
/// # Errors
/// Invalid: the store ignores the condition, or cannot be asked for it. Unavailable: no clear answer.
pub async fn require_conditions(store: &dyn ObjectStore, place: &str) -> Result<()> {
    let key = DoctorKeys::new(&nonce()).single("create");
    let verdict = second_create(store, &key).await;
    let removed = remove(store, &key).await;
    match verdict {
        Ok(_) => removed,
        Err(Trouble::Wrong(found)) => Err(Error::invalid(format!(
            "{place}: expected a store that creates an object only if it is absent, found one that does not: {found}. Two \
             syncers could commit the same round there; use another store, and see what this one does with `tombolo doctor`"
        ))),
        Err(Trouble::Failed(error)) if error.kind() == Kind::Invalid => {
            Err(Error::invalid(format!("{place}: cannot be a bucket; `tombolo doctor` says more")).because(error))
        }
        Err(Trouble::Failed(error)) if is_absent(&error) => {
            Err(Error::invalid(format!("{place}: there is no such bucket; `tombolo bucket init` makes one"))
                .because(error))
        }
        Err(Trouble::Failed(error)) => Err(error),
    }
}

/// Whether a request failed because there is no bucket: of a put, nothing else is not found.
fn is_absent(error: &Error) -> bool {
    let source = std::error::Error::source(error).and_then(|source| source.downcast_ref::<StoreError>());
    matches!(source, Some(StoreError::NotFound { .. }))
}

fn finding(check: &'static str, without: &'static str, found: Found) -> Finding {
    let (ok, found) = match found {
        Ok(found) => (true, found),
        Err(Trouble::Wrong(found)) => (false, found),
        Err(Trouble::Failed(error)) => (false, error.chain()),
    };
    Finding { check, ok, found, without }
}

/// All checks but the last, which also cleans up: in this order, each with what does not work without it.
async fn all(
    examination: &mut Examination,
    findings: &mut Vec<Finding>,
    tell: &mut impl FnMut(&Finding),
) -> Result<()> {
    let nothing = "nothing works: islands and syncers meet in the bucket alone";
    let answers = examination.answers().await?;
    let mut note = |check: &'static str, without: &'static str, found: Found| {
        let finding = finding(check, without, found);
        tell(&finding);
        findings.push(finding);
    };
    note("answers", nothing, answers);
    // A macro, since each check borrows the examination for itself.
    macro_rules! check {
        ($name:literal, $check:expr, $without:literal) => {{
            let ended = clock::timeout(CHECK_TIME, $check).await;
            let late = || Error::unavailable(format!("no end within {} s", CHECK_TIME.as_secs()));
            let found = ended.unwrap_or_else(|_| Err(late().into()));
            if let Err(Trouble::Failed(_)) = &found
                && let Err(error) = examination.answers().await
            {
                return Err(
                    Error::unavailable(format!("the store stopped answering during `{}`", $name)).because(error)
                );
            }
            note($name, $without, found);
        }};
    }
    check!(
        "create if absent",
        examination.create_if_absent(),
        "every commit can be overwritten: rounds that were committed are lost"
    );
    check!(
        "racing creates",
        examination.racing_creates(),
        "two syncers that act at once, or two lives of one island, both believe that a key is theirs: rounds are lost and tokens counted twice"
    );
    check!(
        "read after write",
        examination.read_after_write(),
        "whoever reads the log misses entries or the objects that they name, and nobody can tell whose entry stands at an index"
    );
    check!(
        "read after overwrite",
        examination.read_after_overwrite(),
        "heartbeats stand still or go back: islands and syncers that live are taken for dead"
    );
    check!(
        "listing",
        examination.listing(),
        "syncers do not find offers, islands do not find blocks, lives and checkpoints: progress comes late or is made again"
    );
    check!("large put", examination.large_put(), "fragments, offers and checkpoints do not arrive as they were sent");
    check!("ranges", examination.ranges(), "a download that broke off begins again instead of going on");
    check!(
        "multipart upload",
        examination.multipart_upload(),
        "objects above 8 MiB cannot be written: fragments, offers and checkpoints of all but small models"
    );
    check!(
        "liveness",
        examination.liveness(),
        "a beat looks dead while its writer lives: syncers take the role from each other, and rounds do not wait for islands that keep up"
    );
    Ok(())
}
