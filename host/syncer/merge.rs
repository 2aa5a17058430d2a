//! One round through the merge policy. The fragment's data stays here; the policy sees chunks of it.

use crate::bucket::record::OuterFacts;
use crate::error::{Error, Result};
use crate::outer::norm;
use crate::policy::{self, At, Contribution, MergeSource, Policy, Round, Tensor};
use std::sync::{Mutex, PoisonError};

/// What is merged. Vectors are flat fragments; contributions are sorted by island, so that arrival changes nothing.
pub struct RoundInput<'a> {
    /// Which round.
    pub round: Round,
    /// Tensors of its fragment.
    pub tensors: &'a [Tensor],
    /// Facts and decoded pseudo-gradient of every offer.
    pub contributions: Vec<(Contribution, Vec<f32>)>,
    /// Θ.
    pub parameters: Vec<f32>,
    /// The outer optimiser's slots.
    pub state: Vec<Vec<f32>>,
    /// What the policy remembers of this fragment's last round.
    pub memo: Vec<u8>,
}

/// What came out.
#[derive(Debug)]
pub struct RoundOutput {
    /// The new Θ.
    pub parameters: Vec<f32>,
    /// The new slots.
    pub state: Vec<Vec<f32>>,
    /// What the policy wants to remember.
    pub memo: Vec<u8>,
    /// Weight of each contribution.
    pub weights: Vec<f32>,
    /// Norms, for the commit; the cosine is between the merged Δ and the step taken.
    pub outer: OuterFacts,
}

struct Memory<'a> {
    starts: Vec<usize>,
    contributions: &'a [(Contribution, Vec<f32>)],
    parameters: &'a [f32],
    state: &'a [Vec<f32>],
    out: Mutex<(Vec<f32>, Vec<Vec<f32>>)>,
}

impl Memory<'_> {
    fn copy(&self, from: &[f32], at: At, out: &mut [f32]) -> std::result::Result<(), String> {
        let start = self.starts[at.tensor as usize] + at.offset as usize;
        out.copy_from_slice(&from[start..start + out.len()]);
        Ok(())
    }
}

impl MergeSource for Memory<'_> {
    fn values(&self, contribution: usize, at: At, out: &mut [f32]) -> std::result::Result<(), String> {
        self.copy(&self.contributions[contribution].1, at, out)
    }

    fn state_slots(&self) -> usize {
        self.state.len()
    }

    fn state(&self, slot: usize, at: At, out: &mut [f32]) -> std::result::Result<(), String> {
        self.copy(&self.state[slot], at, out)
    }

    fn parameters(&self, at: At, out: &mut [f32]) -> std::result::Result<(), String> {
        self.copy(self.parameters, at, out)
    }

    fn store(&self, at: At, parameters: &[f32], state: &[Vec<f32>]) -> std::result::Result<(), String> {
        let start = self.starts[at.tensor as usize] + at.offset as usize;
        let mut out = self.out.lock().unwrap_or_else(PoisonError::into_inner);
        let (new, slots) = &mut *out;
        new[start..start + parameters.len()].copy_from_slice(parameters);
        let elements = new.len();
        slots.resize_with(state.len(), || vec![0.0; elements]);
        for (slot, values) in slots.iter_mut().zip(state) {
            slot[start..start + values.len()].copy_from_slice(values);
        }
        Ok(())
    }
}

/// Merges one round on `threads` threads. The same input gives the same bytes, whatever the number of threads.
///
/// # Errors
/// The policy failed or answered nonsense.
pub fn merge_round(policy: &Policy, config: &[u8], input: RoundInput<'_>, threads: usize) -> Result<RoundOutput> {
    let mut at = 0usize;
    let starts = input
        .tensors
        .iter()
        .map(|t| {
            let start = at;
            at += t.elements() as usize;
            start
        })
        .collect();
    let facts: Vec<Contribution> = input.contributions.iter().map(|(c, _)| c.clone()).collect();
    let source = Memory {
        starts,
        contributions: &input.contributions,
        parameters: &input.parameters,
        state: &input.state,
        out: Mutex::new((vec![0.0; input.parameters.len()], Vec::new())),
    };
    let merged = policy::merge(policy, config, &input.round, input.tensors, &facts, &input.memo, &source, threads)
        .map_err(|e| Error::invalid(format!("round {}: the merge policy failed", input.round.index)).because(e))?;
    let (parameters, state) = source.out.into_inner().unwrap_or_else(PoisonError::into_inner);
    let outer = outer_facts(&input, &merged.weights, &parameters);
    Ok(RoundOutput { parameters, state, memo: merged.memo, weights: merged.weights, outer })
}

fn outer_facts(input: &RoundInput<'_>, weights: &[f32], new: &[f32]) -> OuterFacts {
    let total: f64 = weights.iter().map(|&w| f64::from(w)).sum();
    let mut mean = vec![0.0f64; new.len()];
    for ((_, values), &weight) in input.contributions.iter().zip(weights) {
        for (m, &v) in mean.iter_mut().zip(values) {
            *m += f64::from(weight) / total * f64::from(v);
        }
    }
    let step: Vec<f32> = input.parameters.iter().zip(new).map(|(old, new)| old - new).collect();
    let mean: Vec<f32> = mean.into_iter().map(|m| m as f32).collect();
    let (delta_norm, step_norm) = (norm(&mean), norm(&step));
    let dot: f64 = mean.iter().zip(&step).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum();
    let product = f64::from(delta_norm) * f64::from(step_norm);
    let cosine = (product > 0.0).then(|| (dot / product) as f32);
    // Facts for people: they must not stop a merge whose values are finite, nor be numbers that JSON cannot carry.
    let finite = |v: f32| if v.is_finite() { v } else { f32::MAX };
    OuterFacts {
        delta_norm: finite(delta_norm),
        step_norm: finite(step_norm),
        cosine: cosine.filter(|c| c.is_finite()),
    }
}
