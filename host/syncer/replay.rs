//! What if: rounds that were committed, merged again under another policy. It reads and writes nothing but that, so it can follow a run while it goes on: a
//! candidate in the shadow of the policy that is active.
//!
//! Every round starts from the parameters that were committed before it, so that what differs is the policy's own step; the candidate's optimiser goes on with its own
//! state from round to round, which reads as zero at first.

use super::run::Desk;
use super::verify::{Tape, same_bits};
use crate::bucket::record::{Body, PolicyUse};
use crate::bucket::{Flat, Ledger, OuterState, Tail, Vector};
use crate::clock::{self, Duration};
use crate::error::{Error, Kind, Result};
use crate::policy::{CHUNK_ELEMENTS, Role};
use serde::Serialize;
use std::collections::BTreeMap;

/// Time between two looks at the log of a run that is followed.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// How one tensor's step under the candidate compares with the one that was committed.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TensorStep {
    /// Tensor.
    pub name: String,
    /// L2 norm of the step that was committed.
    pub committed_norm: f64,
    /// L2 norm of the candidate's.
    pub candidate_norm: f64,
    /// L2 norm of their difference.
    pub difference_norm: f64,
    /// Cosine between them; none if either is zero.
    pub cosine: Option<f64>,
}

/// One round under the candidate.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Replayed {
    /// Round.
    pub round: u64,
    /// Its fragment.
    pub fragment: usize,
    /// Offers that it was merged from.
    pub offers: usize,
    /// Weights that the candidate gave, in order of island; empty where it failed.
    pub weights: Vec<f32>,
    /// Milliseconds of the candidate's merge.
    pub ms: f64,
    /// Tensor by tensor; empty where it failed.
    pub tensors: Vec<TensorStep>,
    /// Whether the candidate gave the bytes that were committed.
    pub same: bool,
    /// Why the candidate failed, if it did.
    pub failed: Option<String>,
}

/// Which rounds are replayed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rounds {
    /// Those of this range that are committed.
    Past {
        /// The first.
        first: u64,
        /// The last.
        last: u64,
    },
    /// As many as this, from now on, as they are committed.
    Next(u64),
}

/// Replays rounds under the policy `candidate`, and hands each to `report`. Returns how many were committed but cannot be replayed any more, since what they were
/// merged from has been collected.
///
/// # Errors
/// The bucket does not answer, an object is not what the log names, or the candidate is no merge policy. A candidate that fails is no error but a report.
pub async fn replay(
    desk: &Desk,
    candidate: &PolicyUse,
    rounds: Rounds,
    mut report: impl FnMut(Replayed),
) -> Result<u64> {
    let policy = desk.shelf.get(Role::Merge, candidate).await?;
    let mut tail = Tail::new(Ledger::of(&desk.record));
    let (first, last, mut left) = match rounds {
        Rounds::Past { first, last } => (first, last, u64::MAX),
        Rounds::Next(count) => {
            tail = Tail::of(&desk.bucket, &desk.record).await?;
            tail.advance(&desk.bucket, usize::MAX).await?;
            (tail.ledger.next_round, u64::MAX, count)
        }
    };
    let mut memories: BTreeMap<usize, OuterState> = BTreeMap::new();
    let mut gone = 0;
    while left > 0 && tail.ledger.next_round <= last {
        let before = tail.ledger.clone();
        let Some(read) = tail.advance(&desk.bucket, 1).await?.pop() else {
            if matches!(rounds, Rounds::Past { .. }) || tail.ledger.stopped.is_some() {
                break;
            }
            clock::sleep(LOOK_EVERY).await;
            continue;
        };
        let Ok(entry) = read else { continue };
        let Body::Commit(commit) = entry.body else { continue };
        if commit.round < first {
            continue;
        }
        let mut tape = match Tape::read(desk, &before, &commit).await {
            Ok(tape) => tape,
            Err(error) if error.kind() == Kind::Unavailable => {
                gone += 1;
                continue;
            }
            Err(error) => return Err(error),
        };
        let committed = desk.bucket.fragment_spooled(&desk.fragments, tape.p, &commit.made).await?;
        let p = tape.p;
        let state = match memories.remove(&p) {
            Some(state) => state,
            // Where it is the very policy that was active, it goes on from what that left.
            None if candidate.is_same(before.active.at(Role::Merge, commit.round)) => std::mem::take(&mut tape.state),
            None => std::mem::take(&mut tape.state).of_another_policy(),
        };
        let begun = clock::now();
        let mut merged = tape.merge(desk, (&policy, &candidate.config), &state);
        let ms = clock::ms(begun.elapsed());
        let mut replayed = Replayed {
            round: commit.round,
            fragment: p,
            offers: tape.contributions.len(),
            weights: Vec::new(),
            ms,
            tensors: Vec::new(),
            same: false,
            failed: None,
        };
        if let Ok(output) = &mut merged
            && let Err(error) = tape.go_down(desk, &commit, output, state.residual.as_ref()).await
        {
            merged = Err(error);
        }
        match merged {
            Ok(output) => {
                replayed.tensors = compare(desk, p, &tape.parameters, &committed, &output.parameters)?;
                replayed.same = same_bits(&committed, &output.parameters)?;
                replayed.weights = output.weights;
                memories.insert(p, output.state);
            }
            Err(error) if error.kind() == Kind::Unavailable => return Err(error),
            Err(error) => replayed.failed = Some(Error::chain(&error)),
        }
        report(replayed);
        left -= 1;
    }
    Ok(gone)
}

/// Both steps from `before`, tensor by tensor.
fn compare(desk: &Desk, p: usize, before: &Vector, committed: &Vector, candidate: &Vector) -> Result<Vec<TensorStep>> {
    let mut start = 0;
    let mut room = [vec![0.0f32; CHUNK_ELEMENTS], vec![0.0f32; CHUNK_ELEMENTS], vec![0.0f32; CHUNK_ELEMENTS]];
    let mut steps = Vec::new();
    for tensor in &desk.tensors[p] {
        let end = start + tensor.elements() as usize;
        let [mut a, mut b, mut difference, mut dot] = [0.0f64; 4];
        for at in (start..end).step_by(CHUNK_ELEMENTS) {
            let length = CHUNK_ELEMENTS.min(end - at);
            for (room, vector) in room.iter_mut().zip([before, committed, candidate]) {
                vector.read(at, &mut room[..length])?;
            }
            let [from, committed, candidate] = &room;
            for ((from, committed), candidate) in from.iter().zip(committed).zip(candidate).take(length) {
                let (x, y) = (f64::from(from - committed), f64::from(from - candidate));
                a += x * x;
                b += y * y;
                difference += (x - y) * (x - y);
                dot += x * y;
            }
        }
        let product = a.sqrt() * b.sqrt();
        steps.push(TensorStep {
            name: tensor.name.clone(),
            committed_norm: a.sqrt(),
            candidate_norm: b.sqrt(),
            difference_norm: difference.sqrt(),
            cosine: (product > 0.0).then(|| dot / product),
        });
        start = end;
    }
    Ok(steps)
}
