//! What if: `tombolo policy replay` and `tombolo policy shadow`.

use super::arguments::{CandidateArguments, PolicyReplayArguments, PolicyShadowArguments, Target};
use super::assembly::{Run, cores, policy_runtime};
use super::policy::component;
use super::role::location;
use crate::bucket::policy::canonical;
use crate::bucket::record::PolicyUse;
use crate::bucket::{Shelf, unfit};
use crate::error::{Error, Result};
use crate::event::Sink;
use crate::policy::Hash;
use crate::syncer::{Desk, Replayed, Rounds, TensorStep, replay};
use std::collections::BTreeMap;

/// A range of rounds, both ends included.
pub fn range(text: &str) -> std::result::Result<(u64, u64), String> {
    let ends = text.split_once("..").and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
    ends.filter(|(first, last)| first <= last).ok_or_else(|| "expected A..B with A at most B, both included".into())
}

/// `tombolo policy replay`.
///
/// # Errors
/// No such run; a candidate that is no merge policy, or that failed in a round; an unreadable bucket.
pub async fn replay_command(arguments: &PolicyReplayArguments) -> Result<()> {
    let (first, last) = arguments.rounds.unwrap_or((0, u64::MAX));
    compare(&arguments.target, &arguments.candidate, Rounds::Past { first, last }).await
}

/// `tombolo policy shadow`.
///
/// # Errors
/// As [`replay_command`].
pub async fn shadow_command(arguments: &PolicyShadowArguments) -> Result<()> {
    compare(&arguments.target, &arguments.candidate, Rounds::Next(arguments.rounds)).await
}

/// What the rounds come to, for the lines at the end.
#[derive(Default)]
struct Sum {
    rounds: u64,
    same: u64,
    failed: u64,
    ms: Vec<f64>,
    tensors: BTreeMap<String, Vec<TensorStep>>,
}

async fn compare(target: &Target, candidate: &CandidateArguments, rounds: Rounds) -> Result<()> {
    let run = Run::open(&location(target), target.run.as_deref()).await?;
    let runtime = policy_runtime()?;
    let name = &candidate.merge;
    let wasm = match name.parse::<Hash>() {
        Ok(_) => run.bucket.policies().component(name).await?.to_vec(),
        Err(_) => component(name)?,
    };
    // From here, not from the bucket: nothing is written there.
    let policy = runtime.load(&wasm).map_err(|e| unfit(name.clone(), e))?;
    let config = canonical(candidate.config.as_deref().unwrap_or_default()).map_err(|e| e.at("--config"))?;
    let used = PolicyUse { name: name.clone(), hash: policy.hash().to_string(), config };
    let shelf = Shelf::new(&runtime, &run.bucket);
    shelf.put(policy);
    let desk = Desk { shelf, ..run.desk(&runtime, cores(), Sink::Null).await? };
    if !candidate.json {
        say!(
            "{:>9} {:>8} {:>6} {:>12} {:>12} {:>12} {:>8} {:>9}",
            "round",
            "fragment",
            "offers",
            "committed",
            "candidate",
            "difference",
            "cosine",
            "ms"
        );
    }
    let mut sum = Sum::default();
    let gone = replay(&desk, &used, rounds, |replayed| {
        if candidate.json {
            say!("{}", serde_json::to_string(&replayed).expect("it serialises"));
        } else {
            show(&replayed);
        }
        sum.add(replayed);
    })
    .await?;
    if !candidate.json {
        sum.show(gone);
    }
    if sum.failed > 0 {
        return Err(Error::invalid(format!("{name}: failed in {} of {} rounds", sum.failed, sum.rounds)));
    }
    Ok(())
}

/// Norms of the steps of a whole fragment, from those of its tensors: committed, candidate, difference; and their cosine.
fn whole(tensors: &[TensorStep]) -> (f64, f64, f64, Option<f64>) {
    let norm = |of: fn(&TensorStep) -> f64| tensors.iter().map(|t| of(t).powi(2)).sum::<f64>().sqrt();
    let (committed, candidate) = (norm(|t| t.committed_norm), norm(|t| t.candidate_norm));
    let dot: f64 = tensors.iter().map(|t| t.cosine.unwrap_or(0.0) * t.committed_norm * t.candidate_norm).sum();
    let product = committed * candidate;
    (committed, candidate, norm(|t| t.difference_norm), (product > 0.0).then(|| dot / product))
}

fn show(replayed: &Replayed) {
    let Replayed { round, fragment, offers, ms, tensors, failed, .. } = replayed;
    if let Some(why) = failed {
        say!("{round:>9} {fragment:>8} {offers:>6} failed: {}", why.escape_debug());
        return;
    }
    let (committed, candidate, difference, cosine) = whole(tensors);
    let cosine = cosine.map_or("-".to_string(), |cosine| format!("{cosine:.4}"));
    say!(
        "{round:>9} {fragment:>8} {offers:>6} {committed:>12.6} {candidate:>12.6} {difference:>12.6} {cosine:>8} {ms:>9.1}"
    );
}

impl Sum {
    fn add(&mut self, replayed: Replayed) {
        self.rounds += 1;
        self.same += u64::from(replayed.same);
        self.failed += u64::from(replayed.failed.is_some());
        self.ms.push(replayed.ms);
        for tensor in replayed.tensors {
            self.tensors.entry(tensor.name.clone()).or_default().push(tensor);
        }
    }

    /// Tensor by tensor over all rounds: the norm of both steps, of their difference, and their cosine.
    fn show(&mut self, gone: u64) {
        say!(
            "{:<48} {:>12} {:>12} {:>12} {:>8}",
            "tensor, over all rounds",
            "committed",
            "candidate",
            "difference",
            "cosine"
        );
        for (name, steps) in &self.tensors {
            let (committed, candidate, difference, cosine) = whole(steps);
            let cosine = cosine.map_or("-".to_string(), |cosine| format!("{cosine:.4}"));
            say!("{name:<48} {committed:>12.6} {candidate:>12.6} {difference:>12.6} {cosine:>8}");
        }
        self.ms.sort_by(f64::total_cmp);
        let median = self.ms.get(self.ms.len() / 2).copied().unwrap_or(0.0);
        say!(
            "{} rounds, {} to the same bytes, {} failed, median {median:.1} ms; {gone} could not be read any more",
            self.rounds,
            self.same,
            self.failed
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_of_rounds_is_two_numbers_in_order() {
        assert_eq!(range("3..7"), Ok((3, 7)));
        assert_eq!(range("7..7"), Ok((7, 7)));
        for wrong in ["", "7", "8..7", "a..b", "1..", "..3", "-1..3"] {
            assert!(range(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_step_of_a_fragment_is_put_together_from_those_of_its_tensors() {
        let step = |a: f64, b: f64, difference: f64, cosine: f64| TensorStep {
            name: "t".into(),
            committed_norm: a,
            candidate_norm: b,
            difference_norm: difference,
            cosine: Some(cosine),
        };
        // Steps (3, 0) and (0, 4) against (3, 0) and (0, -4).
        let (committed, candidate, difference, cosine) = whole(&[step(3.0, 3.0, 0.0, 1.0), step(4.0, 4.0, 8.0, -1.0)]);
        assert_eq!((committed, candidate, difference), (5.0, 5.0, 8.0));
        assert!((cosine.unwrap() - (9.0 - 16.0) / 25.0).abs() < 1e-12);
    }
}
