//! A fragment in memory, for merging.

use std::sync::{Mutex, OnceLock};

use tombolo::policy::{
    At, Contribution, Error, Lent, Limits, MergeSource, Merged, Policy, Round, Runtime, Tensor, TensorKind, chunks,
    merge,
};

/// One engine for all tests of this process.
pub fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| Runtime::new(Limits::default(), None).expect("an engine"))
}

pub fn tensor(name: &str, shape: &[u32], kind: TensorKind) -> Tensor {
    Tensor { name: name.into(), shape: shape.into(), kind }
}

/// Of an island that trained on `tokens` in `steps`.
pub fn contribution(island: &str, tokens: u64, steps: u32) -> Contribution {
    Contribution { island: island.into(), tokens, steps, staleness: 0, norm: 1.0 }
}

/// The fragment's merge number `version` + 1.
pub fn round(version: u64) -> Round {
    Round { index: version * 3, fragment: 0, version, tokens_merged: 0, token_budget: 0 }
}

/// Parameters, state and contributions of a fragment, each as one list over all tensors.
#[derive(Debug, Clone, PartialEq)]
pub struct Fragment {
    pub tensors: Vec<Tensor>,
    pub parameters: Vec<f32>,
    pub state: Vec<Vec<f32>>,
    pub memo: Vec<u8>,
}

/// A fragment while it is merged.
struct Merging<'a> {
    before: &'a Fragment,
    values: &'a [Vec<f32>],
    after: Mutex<Fragment>,
}

impl Fragment {
    pub fn new(tensors: Vec<Tensor>, parameters: Vec<f32>) -> Fragment {
        assert_eq!(tensors.iter().map(Tensor::elements).sum::<u64>(), parameters.len() as u64);
        Fragment { tensors, parameters, state: Vec::new(), memo: Vec::new() }
    }

    fn place(&self, at: At) -> usize {
        let before: u64 = self.tensors[..at.tensor as usize].iter().map(Tensor::elements).sum();
        (before + at.offset) as usize
    }

    /// Merges `values` into this fragment.
    pub fn merge(
        &mut self,
        policy: &Policy,
        config: &str,
        round: Round,
        contributions: &[Contribution],
        values: &[Vec<f32>],
        threads: usize,
    ) -> Result<Merged, Error> {
        let merging = Merging { before: self, values, after: Mutex::new(self.clone()) };
        let (tensors, memo) = (&self.tensors, &self.memo);
        let merged = merge(policy, config.as_bytes(), &round, tensors, contributions, memo, &merging, threads)?;
        let mut after = merging.after.into_inner().expect("no thread panicked");
        after.memo.clone_from(&merged.memo);
        let longest = self.parameters.len();
        after.state.resize(merged.state_slots, vec![0.0; longest]);
        *self = after;
        Ok(merged)
    }
}

impl MergeSource for Merging<'_> {
    fn state_slots(&self) -> usize {
        self.before.state.len()
    }

    /// Every second contribution where it lies, so that both ways are taken in every merge.
    fn values<'a>(&'a self, contribution: usize, at: At, room: &'a mut [f32]) -> Result<Lent<'a>, String> {
        let place = self.before.place(at);
        let values = &self.values[contribution][place..place + room.len()];
        if contribution % 2 == 1 {
            return Ok(Box::new(values));
        }
        room.copy_from_slice(values);
        Ok(Box::new(&*room))
    }

    fn state<'a>(&'a self, slot: usize, at: At, room: &'a mut [f32]) -> Result<Lent<'a>, String> {
        let place = self.before.place(at);
        room.copy_from_slice(&self.before.state[slot][place..place + room.len()]);
        Ok(Box::new(&*room))
    }

    fn parameters<'a>(&'a self, at: At, room: &'a mut [f32]) -> Result<Lent<'a>, String> {
        let place = self.before.place(at);
        Ok(Box::new(&self.before.parameters[place..place + room.len()]))
    }

    fn store(&self, at: At, parameters: Vec<f32>, state: Vec<Vec<f32>>) -> Result<(), String> {
        let place = self.before.place(at);
        let mut after = self.after.lock().expect("no thread panicked");
        let longest = after.parameters.len();
        after.parameters[place..place + parameters.len()].copy_from_slice(&parameters);
        after.state.resize(state.len(), vec![0.0; longest]);
        for (slot, list) in after.state.iter_mut().zip(state) {
            slot[place..place + list.len()].copy_from_slice(&list);
        }
        Ok(())
    }
}

/// Values that look like a pseudo-gradient, the same for the same seed: a linear congruential generator's upper bits.
pub fn noise(seed: u32, count: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(1);
    (0..count)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            ((state >> 8) as f32 / (1 << 23) as f32 - 1.0) * 0.01
        })
        .collect()
}

/// The number of chunks of `tensors`.
pub fn chunk_count(tensors: &[Tensor]) -> usize {
    chunks(tensors).count()
}
