//! A model small enough to simulate by the hundred: a few tensors of a few numbers, and an inner loop that drifts.

use crate::bucket::record::{FORMAT, PolicyUse, RunRecord};
use crate::data::{BLOCK_WINDOWS, Cursor};
use crate::error::{Error, Result};
use crate::island::{Inner, Stepped};
use crate::nonce::nonce;
use crate::outer::Fragments;
use crate::policy::{Policy, Runtime};
use crate::spec::Spec;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use tombolo_engine::{Layout, Tensor, TensorKind};

/// `tensors` tensors of one to three numbers, in `fragments` fragments.
///
/// # Errors
/// No fragments.
pub fn model(tensors: usize, fragments: usize) -> Result<(Layout, Fragments)> {
    let mut offset = 0;
    let tensor = |i: usize| {
        let length = 1 + i % 3;
        let kind = if i.is_multiple_of(2) { TensorKind::Matrix } else { TensorKind::Vector };
        offset += length;
        Tensor { name: format!("toy.{i}"), shape: vec![length], kind, offset: offset - length }
    };
    let layout = Layout { tensors: (0..tensors).map(tensor).collect() };
    let fragments = Fragments::partition(&layout, fragments)?;
    Ok((layout, fragments))
}

/// The policies that a run begins with.
pub struct Policies {
    /// Codec of offers.
    pub codec: Policy,
    /// Merge policy.
    pub merge: Policy,
    /// Pace.
    pub pace: Policy,
}

/// The record of a run of `spec` with bundled policies.
///
/// # Errors
/// A policy that is not bundled.
pub fn record(spec: Spec, fragments: &Fragments, runtime: &Runtime) -> Result<(RunRecord, Policies)> {
    let bundled = |name: &str| runtime.bundled(name).map_err(|e| Error::invalid(format!("policy {name}")).because(e));
    let policies = Policies {
        codec: bundled(&spec.codec.policy)?,
        merge: bundled(&spec.merge.policy)?,
        pace: bundled(&spec.pace.policy)?,
    };
    let down = match spec.down.policy.as_str() {
        "" => None,
        name => Some(PolicyUse::of(&spec.down, &bundled(name)?)),
    };
    let record = RunRecord {
        format: FORMAT,
        nonce: nonce(),
        layout: fragments.fingerprint().to_string(),
        corpus: String::new(),
        fragments: fragments.count(),
        codec: PolicyUse::of(&spec.codec, &policies.codec),
        merge: PolicyUse::of(&spec.merge, &policies.merge),
        pace: PolicyUse::of(&spec.pace, &policies.pace),
        down,
        spec,
        chaos: false,
    };
    Ok((record, policies))
}

/// How often each window of data was trained on: by block and window.
pub type Seen = Arc<Mutex<BTreeMap<(u64, usize), u32>>>;

/// Windows that a step takes; a block lasts 32 steps.
pub const STEP_WINDOWS: usize = BLOCK_WINDOWS / 32;

/// An inner loop that takes a pseudo-random but reproducible step, eight tokens and [`STEP_WINDOWS`] windows at a time, and writes down which windows it saw.
pub struct Drift {
    parameters: Vec<f32>,
    first: Vec<f32>,
    second: Vec<f32>,
    steps: u64,
    name: u64,
    held: VecDeque<Cursor>,
    seen: Seen,
}

impl Drift {
    /// An island called `name` over `elements` numbers.
    pub fn new(name: &str, elements: usize, seen: Seen) -> Drift {
        let name = name.bytes().fold(7u64, |h, b| h.wrapping_mul(31).wrapping_add(u64::from(b)));
        Drift {
            parameters: vec![0.0; elements],
            first: vec![0.0; elements],
            second: vec![0.0; elements],
            steps: 0,
            name,
            held: VecDeque::new(),
            seen,
        }
    }
}

impl Inner for Drift {
    fn parameters(&self) -> &[f32] {
        &self.parameters
    }

    fn parameters_mut(&mut self) -> &mut [f32] {
        &mut self.parameters
    }

    fn step(&mut self, _learning_rate: f32) -> Result<Stepped> {
        self.steps += 1;
        for (i, p) in self.parameters.iter_mut().enumerate() {
            let noise =
                (self.name ^ self.steps.wrapping_mul(0x9e37_79b9) ^ i as u64).wrapping_mul(0x2545_f491_4f6c_dd1d) >> 40;
            *p += noise as f32 / (1u64 << 24) as f32 - 0.4;
        }
        if self.held.len() > 1 && self.held[0].is_used_up() {
            self.held.pop_front();
        }
        let mut repeated = 0;
        if let Some(cursor) = self.held.front_mut() {
            if cursor.is_used_up() {
                cursor.window = 0;
                repeated = 8;
            }
            let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
            for window in cursor.window..cursor.window + STEP_WINDOWS {
                *seen.entry((cursor.block, window)).or_default() += 1;
            }
            cursor.window += STEP_WINDOWS;
        }
        Ok(Stepped { loss: 1.0, tokens: 8, repeated })
    }

    fn moments(&self) -> (&[f32], &[f32], u64) {
        (&self.first, &self.second, self.steps)
    }

    fn set_moments(&mut self, first: &[f32], second: &[f32], steps: u64) -> Result<()> {
        self.first.copy_from_slice(first);
        self.second.copy_from_slice(second);
        self.steps = steps;
        Ok(())
    }

    fn held(&self) -> Vec<Cursor> {
        self.held.iter().copied().collect()
    }

    fn wants_block(&self) -> bool {
        self.held.len() < 2
    }

    fn give_block(&mut self, block: Cursor) {
        self.held.push_back(block);
    }
}
