//! What policies are asked about: lists of values that have broken codecs before, and fragments in memory to merge.

use std::sync::{Barrier, Mutex, PoisonError};

use crate::policy::merge::metered;
use crate::policy::{At, Contribution, Lent, MergeSource, Policy, Result, Round, Tensor, TensorKind, chunks};

/// Values between −`scale` and `scale` that look like a pseudo-gradient, the same for the same seed: a linear congruential generator's upper bits.
pub(super) fn noise(seed: u32, count: usize, scale: f32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(1);
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        ((state >> 8) as f32 / (1 << 23) as f32 - 1.0) * scale
    };
    (0..count).map(|_| next()).collect()
}

/// The list of full chunks, by which bits and fuel are counted.
pub(super) const FULL_CHUNKS: &str = "full chunks of noise";

/// Lists of values for codecs, each a tensor.
pub(super) fn lists() -> Vec<(&'static str, Vec<f32>)> {
    let powers = noise(5, 640, 1.0).into_iter().zip(0..);
    let spiked = noise(6, 640, 1e-3).into_iter().zip(0..);
    vec![
        ("zeros", vec![0.0; 300]),
        ("negative zeros", vec![-0.0; 5]),
        ("one value", vec![0.1]),
        ("the largest f32", vec![f32::MAX; 129]),
        ("the most negative f32", vec![f32::MIN; 31]),
        ("the smallest normal f32", vec![f32::MIN_POSITIVE; 128]),
        ("the smallest f32", vec![f32::from_bits(1); 200]),
        ("next to nothing", vec![1e-30, -1e-31, 8e-31, 0.0]),
        ("noise", noise(1, 1_000, 1.0)),
        ("tiny noise", noise(2, 1_000, 1e-20)),
        ("denormal noise", noise(3, 257, 1e-39)),
        ("huge noise", noise(4, 1_000, 3e38)),
        ("powers of ten", powers.map(|(value, i): (f32, i32)| value * 10.0_f32.powi(i % 70 - 35)).collect()),
        ("outliers", spiked.map(|(value, i)| if i % 97 == 0 { f32::MAX } else { value }).collect()),
        ("several chunks of noise", noise(7, 70_000, 0.01)),
        (FULL_CHUNKS, noise(8, 2 * super::super::CHUNK_ELEMENTS, 0.01)),
    ]
}

/// A fragment with a tensor of each kind; the matrix has two chunks.
pub(super) fn fragment() -> Vec<Tensor> {
    let tensor = |name: &str, shape: &[u32], kind| Tensor { name: name.into(), shape: shape.into(), kind };
    vec![
        tensor("model.embed_tokens.weight", &[96, 16], TensorKind::Embedding),
        tensor("model.layers.0.mlp.up_proj.weight", &[250, 160], TensorKind::Matrix),
        tensor("model.norm.weight", &[16], TensorKind::Vector),
        tensor("lm_head.weight", &[96, 16], TensorKind::Head),
    ]
}

/// Values of all tensors together.
pub(super) fn elements(tensors: &[Tensor]) -> usize {
    tensors.iter().map(Tensor::elements).sum::<u64>() as usize
}

/// What islands offer: facts and values over the whole fragment.
#[derive(Clone)]
pub(super) struct Offers {
    pub(super) contributions: Vec<Contribution>,
    pub(super) values: Vec<Vec<f32>>,
}

impl Offers {
    /// One offer for each list, from islands that have trained alike where `alike`, else not.
    pub(super) fn of(values: Vec<Vec<f32>>, alike: bool) -> Offers {
        let island = |(index, list): (usize, &Vec<f32>)| {
            let other = if alike { 0 } else { index as u64 };
            Contribution {
                island: format!("island-{index}"),
                tokens: 1_000 + 111 * other,
                steps: 10 + other as u32,
                staleness: other as u32 % 2,
                norm: list.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt() as f32,
            }
        };
        Offers { contributions: values.iter().enumerate().map(island).collect(), values }
    }

    /// The same offers, last first.
    pub(super) fn reversed(&self) -> Offers {
        let Offers { mut contributions, mut values } = self.clone();
        contributions.reverse();
        values.reverse();
        Offers { contributions, values }
    }
}

/// A fragment between two rounds.
#[derive(Clone)]
pub(super) struct Standing {
    pub(super) parameters: Vec<f32>,
    pub(super) state: Vec<Vec<f32>>,
    pub(super) memo: Vec<u8>,
    /// Weights of the round that led here.
    pub(super) weights: Vec<f32>,
    /// Merges so far.
    pub(super) version: u64,
}

impl Standing {
    pub(super) fn new(parameters: Vec<f32>) -> Standing {
        Standing { parameters, state: Vec::new(), memo: Vec::new(), weights: Vec::new(), version: 0 }
    }

    /// The next round, and the fuel it took. With two threads each is sure to do one of the first two chunks.
    pub(super) fn merged(
        &self,
        policy: &Policy,
        config: &[u8],
        tensors: &[Tensor],
        offers: &Offers,
        threads: usize,
    ) -> Result<(Standing, u64)> {
        let round = Round {
            index: 4 * self.version,
            fragment: 0,
            version: self.version,
            tokens_merged: 10_000 * self.version,
            token_budget: 1_000_000,
        };
        let source = Source {
            tensors,
            before: self,
            values: &offers.values,
            after: Mutex::new((self.parameters.clone(), Vec::new())),
            early: chunks(tensors).take(2).map(|(at, _)| at).collect(),
            meeting: (threads == 2).then(|| Barrier::new(2)),
        };
        let (merged, fuel) =
            metered(policy, config, &round, tensors, &offers.contributions, &self.memo, &source, threads)?;
        let (parameters, mut state) = source.after.into_inner().unwrap_or_else(PoisonError::into_inner);
        state.resize(merged.state_slots, vec![0.0; parameters.len()]);
        let standing =
            Standing { parameters, state, memo: merged.memo, weights: merged.weights, version: self.version + 1 };
        Ok((standing, fuel))
    }
}

/// A fragment while it is merged.
struct Source<'a> {
    tensors: &'a [Tensor],
    before: &'a Standing,
    values: &'a [Vec<f32>],
    after: Mutex<(Vec<f32>, Vec<Vec<f32>>)>,
    early: Vec<At>,
    /// Where the threads that do the first two chunks wait for each other, so that neither does both. Both threads come, since each takes a chunk before
    /// any can have failed on one.
    meeting: Option<Barrier>,
}

impl Source<'_> {
    fn place(&self, at: At) -> usize {
        elements(&self.tensors[..at.tensor as usize]) + at.offset as usize
    }

    fn part<'a>(&self, list: &'a [f32], at: At, elements: usize) -> &'a [f32] {
        let place = self.place(at);
        &list[place..place + elements]
    }
}

impl MergeSource for Source<'_> {
    fn state_slots(&self) -> usize {
        self.before.state.len()
    }

    fn values<'a>(&'a self, contribution: usize, at: At, room: &'a mut [f32]) -> std::result::Result<Lent<'a>, String> {
        if let Some(meeting) = &self.meeting
            && contribution == 0
            && self.early.contains(&at)
        {
            meeting.wait();
        }
        Ok(Box::new(self.part(&self.values[contribution], at, room.len())))
    }

    fn state<'a>(&'a self, slot: usize, at: At, room: &'a mut [f32]) -> std::result::Result<Lent<'a>, String> {
        Ok(Box::new(self.part(&self.before.state[slot], at, room.len())))
    }

    fn parameters<'a>(&'a self, at: At, room: &'a mut [f32]) -> std::result::Result<Lent<'a>, String> {
        Ok(Box::new(self.part(&self.before.parameters, at, room.len())))
    }

    fn store(&self, at: At, parameters: Vec<f32>, state: Vec<Vec<f32>>) -> std::result::Result<(), String> {
        let place = self.place(at);
        let mut after = self.after.lock().unwrap_or_else(PoisonError::into_inner);
        let all = after.0.len();
        after.0[place..place + parameters.len()].copy_from_slice(&parameters);
        after.1.resize(state.len(), vec![0.0; all]);
        for (slot, list) in after.1.iter_mut().zip(state) {
            slot[place..place + list.len()].copy_from_slice(&list);
        }
        Ok(())
    }
}
