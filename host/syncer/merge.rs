//! One round through the merge policy. The fragment's data stays where it lies, in memory or in temporary files; the policy sees chunks of it.

use crate::bucket::record::OuterFacts;
use crate::bucket::{Flat, MEMORY_BYTES, OuterState, Vector, unfit};
use crate::error::{Error, Result};
use crate::policy::{self, At, CHUNK_ELEMENTS, Contribution, Lent, MergeSource, Policy, Round, Tensor};
use std::sync::{Arc, Mutex, PoisonError};

/// What is merged. Vectors are flat fragments; contributions are sorted by island, so that arrival changes nothing.
pub struct RoundInput<'a> {
    /// Which round.
    pub round: Round,
    /// Tensors of its fragment.
    pub tensors: &'a [Tensor],
    /// Facts and decoded pseudo-gradient of every offer.
    pub contributions: Vec<(Contribution, Arc<Vector>)>,
    /// Θ.
    pub parameters: &'a Vector,
    /// What lies beside it.
    pub state: &'a OuterState,
}

/// What came out.
#[derive(Debug)]
pub struct RoundOutput {
    /// The new Θ.
    pub parameters: Vector,
    /// What is to lie beside it.
    pub state: OuterState,
    /// Weight of each contribution.
    pub weights: Vec<f32>,
    /// Norms, for the commit; the cosine is between the merged Δ and the step taken.
    pub outer: OuterFacts,
}

/// The fragment where it lies, and room for what comes out.
struct Source<'a> {
    starts: Vec<usize>,
    input: &'a RoundInput<'a>,
    parameters: Vector,
    /// Made with the first chunk, which tells how many there are.
    state: Mutex<Vec<Arc<Vector>>>,
    progress: &'a (dyn Fn() + Sync),
}

/// An answer to the policy's host.
type Answer<T = ()> = std::result::Result<T, String>;

impl Source<'_> {
    fn start(&self, at: At) -> usize {
        self.starts[at.tensor as usize] + at.offset as usize
    }

    fn read<'a>(&self, from: &Vector, at: At, room: &'a mut [f32]) -> Answer<Lent<'a>> {
        from.read(self.start(at), room).map_err(|e| e.chain())?;
        Ok(Box::new(&*room))
    }

    fn write(&self, at: At, parameters: &[f32], state: &[Vec<f32>]) -> Result<()> {
        let slots = {
            let mut slots = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            while slots.len() < state.len() {
                slots.push(Arc::new(Vector::zeros(self.parameters.elements(), MEMORY_BYTES)?));
            }
            slots.clone()
        };
        self.parameters.write(self.start(at), parameters)?;
        slots.iter().zip(state).try_for_each(|(slot, values)| slot.write(self.start(at), values))
    }
}

impl MergeSource for Source<'_> {
    fn values<'a>(&'a self, contribution: usize, at: At, room: &'a mut [f32]) -> Answer<Lent<'a>> {
        (self.progress)();
        self.read(&self.input.contributions[contribution].1, at, room)
    }

    fn state_slots(&self) -> usize {
        self.input.state.slots.len()
    }

    fn state<'a>(&'a self, slot: usize, at: At, room: &'a mut [f32]) -> Answer<Lent<'a>> {
        self.read(&self.input.state.slots[slot], at, room)
    }

    fn parameters<'a>(&'a self, at: At, room: &'a mut [f32]) -> Answer<Lent<'a>> {
        self.read(self.input.parameters, at, room)
    }

    fn store(&self, at: At, parameters: Vec<f32>, state: Vec<Vec<f32>>) -> Answer {
        self.write(at, &parameters, &state).map_err(|e| e.chain())
    }
}

/// Merges one round on `threads` threads, in memory that does not grow with the fragment: every thread holds one chunk of everything. The same
/// input gives the same bytes, whatever the number of threads. `progress` is called again and again, from any of them.
///
/// # Errors
/// Unavailable: a temporary file cannot be made, read or written. Invalid: the policy failed or answered nonsense.
pub fn merge_round(
    policy: &Policy,
    config: &[u8],
    input: &RoundInput<'_>,
    threads: usize,
    progress: &(dyn Fn() + Sync),
) -> Result<RoundOutput> {
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
    let parameters = Vector::zeros(input.parameters.elements(), MEMORY_BYTES)?;
    let source = Source { starts, input, parameters, state: Mutex::default(), progress };
    let merged =
        policy::merge(policy, config, &input.round, input.tensors, &facts, &input.state.memo, &source, threads)
            .map_err(|e| match &e {
                policy::Error::Source { .. } => {
                    Error::unavailable(format!("round {}: a temporary file fails", input.round.index)).because(e)
                }
                _ => unfit(format!("round {}: the merge policy failed", input.round.index), e),
            })?;
    let Source { parameters, state, .. } = source;
    let state = state.into_inner().unwrap_or_else(PoisonError::into_inner);
    let slots = state.into_iter().map(|slot| Arc::into_inner(slot).expect("no thread is left that writes")).collect();
    let state = OuterState { slots, memo: merged.memo, residual: None };
    let outer = outer_facts(input, &merged.weights, &parameters)?;
    Ok(RoundOutput { parameters, state, weights: merged.weights, outer })
}

/// Sums run in the order of the values, so that the chunks in which they are read change nothing.
fn outer_facts(input: &RoundInput<'_>, weights: &[f32], new: &Vector) -> Result<OuterFacts> {
    let total: f64 = weights.iter().map(|&w| f64::from(w)).sum();
    let elements = new.elements();
    let (mut delta, mut step, mut dot) = (0.0f64, 0.0f64, 0.0f64);
    let room = CHUNK_ELEMENTS.min(elements);
    let (mut mean, mut values, mut before, mut after) =
        (vec![0.0f64; room], vec![0.0f32; room], vec![0.0f32; room], vec![0.0f32; room]);
    for start in (0..elements).step_by(CHUNK_ELEMENTS) {
        let length = CHUNK_ELEMENTS.min(elements - start);
        let (mean, values) = (&mut mean[..length], &mut values[..length]);
        mean.fill(0.0);
        for ((_, contribution), &weight) in input.contributions.iter().zip(weights) {
            contribution.read(start, values)?;
            for (m, &v) in mean.iter_mut().zip(&*values) {
                *m += f64::from(weight) / total * f64::from(v);
            }
        }
        let (before, after) = (&mut before[..length], &mut after[..length]);
        input.parameters.read(start, before)?;
        new.read(start, after)?;
        for ((&m, &old), &new) in mean.iter().zip(&*before).zip(&*after) {
            let (m, s) = (f64::from(m as f32), f64::from(old - new));
            delta += m * m;
            step += s * s;
            dot += m * s;
        }
    }
    let (delta_norm, step_norm) = (delta.sqrt() as f32, step.sqrt() as f32);
    let product = f64::from(delta_norm) * f64::from(step_norm);
    let cosine = (product > 0.0).then(|| (dot / product) as f32);
    // Facts for people: they must not stop a merge whose values are finite, nor be numbers that JSON cannot carry.
    let finite = |v: f32| if v.is_finite() { v } else { f32::MAX };
    Ok(OuterFacts {
        delta_norm: finite(delta_norm),
        step_norm: finite(step_norm),
        cosine: cosine.filter(|c| c.is_finite()),
    })
}
