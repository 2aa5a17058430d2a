//! Merge `rda`: radial-directional averaging, then an outer optimiser: by default SGD with Nesterov momentum.
//!
//! Per tensor Δ = (Σ w‖v‖ / Σ w) · φ(Σ w φ(v) / Σ w), φ(x) = x/‖x‖, φ(0) = 0: mean of the norms times direction of the mean direction
//! (Decoupled DiLoCo, arXiv 2604.21428, with the weighted mean of norms as the radius). Pseudo-gradients of different islands are nearly
//! orthogonal, so the plain mean shrinks like 1/√M; this keeps its norm whatever M. Vectors (gains of the normalisations) go with the
//! matrices: they shrink in the same way, and nothing in the paper sets them apart. So by default do embedding and head, which measured better with a vocabulary of bytes
//! (EXPERIMENTS.md). The paper averages these two plainly, for vocabularies of which any one island touches few rows; `vocabulary` says which.
//!
//! Up to 12 contributions, one observing pass collects their Gram matrix per tensor, summed in f64 over the chunks; it holds all the norms that the formula needs. Of more
//! the first pass collects the norms and the second the norm of the mean direction: two readings are cheaper there than all pairs. A step is
//! a linear combination with coefficients per tensor. A single contribution passes as it is, bit for bit. Where the mean direction
//! vanishes (shorter than a thousandth of a unit: the islands contradict each other) the plain mean is taken.
//!
//! Configuration: `vocabulary`, how embedding and head are averaged, `"rda"` (the default) or `"mean"`; `outer` (default `nesterov`) and its fields (see the SDK's
//! `outer`), `staleness_discount` (see its `weight`). State: the outer optimiser's.

use tombolo_policy_sdk::outer::Outer;
use tombolo_policy_sdk::vector::{Gram, norm_squared, norm_squared_of_sum};
use tombolo_policy_sdk::{At, Config, Merge, Opening, Plan, Tensor, TensorKind, chunks, export_merge, weight};

/// Mean directions shorter than this are noise: scaled up to the mean norm, they would be noise of full size. Orthogonal contributions of equal
/// weight have a mean direction of 1/√M, so this is out of reach of honest islands up to M of a million.
const DIRECTION_MIN: f64 = 1e-3;

/// A contribution shorter than this share of the longest one has no direction, as if it were zero: it is rounding, and scaled up to the mean norm
/// it would be rounding of full size. Keeps coefficients within f32, too.
const NORM_MIN: f64 = 1e-12;

/// Contributions of which one pass compares all pairs.
const PAIRED_MAX: usize = 12;

/// Mean norm and direction of a tensor: Σ w‖v‖ over shares w, and what each contribution is multiplied with to add up to the mean direction Σ w φ(v).
struct Polar {
    radius: f64,
    pulls: Vec<f64>,
}

/// One round of the rule.
pub struct Rda {
    tensors: Vec<Tensor>,
    shares: Vec<f32>,
    /// Whether embedding and head are averaged plainly.
    plain_vocabulary: bool,
    /// Per tensor, what each contribution is multiplied with. The shares until the pass has ended.
    coefficients: Vec<Vec<f32>>,
    /// Per tensor, after the first of two passes.
    polars: Vec<Polar>,
    passes: u32,
    outer: Outer,
}

impl Merge for Rda {
    fn open(opening: Opening) -> Result<Self, String> {
        let config = Config::parse(&opening.config, &[Outer::FIELDS, weight::FIELDS, &["vocabulary"]].concat())?;
        let plain_vocabulary = match config.text("vocabulary", "rda")? {
            "rda" => false,
            "mean" => true,
            other => {
                return Err(
                    ["configuration: field \"vocabulary\" must be \"rda\" or \"mean\", not \"", other, "\""].concat()
                );
            }
        };
        let outer = Outer::configured(&config, &opening.round, &opening.memo)?;
        let shares = weight::discounted(&config, &opening.contributions)?;
        let several = shares.iter().filter(|share| **share > 0.0).count() > 1;
        let coefficients = vec![shares.clone(); opening.tensors.len()];
        let (tensors, polars) = (opening.tensors, Vec::new());
        let mut rda = Rda { tensors, shares, plain_vocabulary, coefficients, polars, passes: 0, outer };
        if several && rda.tensors.iter().any(|tensor| rda.is_radial(tensor)) {
            rda.passes = if rda.shares.len() <= PAIRED_MAX { 1 } else { 2 };
        }
        Ok(rda)
    }

    fn plan(&self) -> Plan {
        Plan { weights: self.shares.clone(), passes: self.passes, state_slots: self.outer.state_slots() }
    }

    fn observe(&self, pass: u32, at: At, values: &[Vec<f32>]) -> Result<Vec<u8>, String> {
        let tensor = self.tensors.get(at.tensor as usize).ok_or("no such tensor")?;
        if !self.is_radial(tensor) {
            return Ok(Vec::new());
        }
        if self.passes == 1 {
            return Ok(Gram::of(values).to_bytes());
        }
        if pass == 0 {
            return Ok(values.iter().flat_map(|list| norm_squared(list).to_le_bytes()).collect());
        }
        let polar = self.polars.get(at.tensor as usize).ok_or("the second pass before the end of the first")?;
        Ok(norm_squared_of_sum(&polar.pulls, values).to_le_bytes().to_vec())
    }

    fn observed(&mut self, pass: u32, blobs: &[Vec<u8>]) -> Result<(), String> {
        if chunks(&self.tensors).count() != blobs.len() {
            return Err("there must be one blob a chunk".into());
        }
        if self.passes == 1 {
            self.paired(blobs)
        } else if pass == 0 {
            let norms = self.summed(blobs, self.shares.len())?;
            let norms = norms.into_iter().map(|squares| squares.into_iter().map(f64::sqrt).collect::<Vec<_>>());
            self.polars = norms.map(|norms| polar(&self.shares, &norms)).collect();
            Ok(())
        } else {
            for (index, squared) in self.summed(blobs, 1)?.into_iter().enumerate() {
                if self.is_radial(&self.tensors[index]) {
                    self.coefficients[index] = coefficients(&self.shares, &self.polars[index], squared[0].sqrt());
                }
            }
            Ok(())
        }
    }

    fn step(&self, at: At, values: &[Vec<f32>], state: &mut [Vec<f32>], parameters: &mut [f32]) -> Result<(), String> {
        let coefficients = self.coefficients.get(at.tensor as usize).ok_or("no such tensor")?;
        self.outer.descend(coefficients, values, state, parameters);
        Ok(())
    }

    fn memo(&self) -> Vec<u8> {
        self.outer.memo()
    }
}

impl Rda {
    fn is_radial(&self, tensor: &Tensor) -> bool {
        !(self.plain_vocabulary && matches!(tensor.kind, TensorKind::Embedding | TensorKind::Head))
    }

    /// Ends the one pass of few contributions.
    fn paired(&mut self, blobs: &[Vec<u8>]) -> Result<(), String> {
        let mut grams = vec![Gram::zero(self.shares.len()); self.tensors.len()];
        for (at, blob) in chunks(&self.tensors).zip(blobs) {
            if self.is_radial(&self.tensors[at.tensor as usize]) {
                grams[at.tensor as usize].add_bytes(blob)?;
            }
        }
        for (index, gram) in grams.iter().enumerate() {
            if self.is_radial(&self.tensors[index]) {
                self.coefficients[index] = radial(&self.shares, gram);
            }
        }
        Ok(())
    }

    /// Per tensor the sums of `count` numbers a chunk, in chunk order; zeros for those that are averaged plainly.
    fn summed(&self, blobs: &[Vec<u8>], count: usize) -> Result<Vec<Vec<f64>>, String> {
        let mut sums = vec![vec![0.0; count]; self.tensors.len()];
        for (at, blob) in chunks(&self.tensors).zip(blobs) {
            if !self.is_radial(&self.tensors[at.tensor as usize]) {
                continue;
            }
            let (words, rest) = blob.as_chunks::<8>();
            if words.len() != count || !rest.is_empty() {
                return Err("an observed blob does not hold the norms of these contributions".into());
            }
            for (sum, word) in sums[at.tensor as usize].iter_mut().zip(words) {
                *sum += f64::from_le_bytes(*word);
            }
        }
        Ok(sums)
    }
}

/// Radius, and pulls wₘ/‖vₘ‖, weights as shares.
fn polar(shares: &[f32], norms: &[f64]) -> Polar {
    let longest = norms.iter().copied().fold(0.0, f64::max);
    let mut polar = Polar { radius: 0.0, pulls: vec![0.0; shares.len()] };
    for (index, (share, norm)) in shares.iter().zip(norms).enumerate() {
        let share = f64::from(*share);
        polar.radius += share * norm;
        if *norm > longest * NORM_MIN {
            polar.pulls[index] = share / norm;
        }
    }
    polar
}

/// The coefficients aₘ with Σ aₘ vₘ = radius · direction: aₘ = radius · (wₘ/‖vₘ‖) / ‖Σ (w/‖v‖) v‖, where the last is `direction`.
fn coefficients(shares: &[f32], polar: &Polar, direction: f64) -> Vec<f32> {
    if direction.is_nan() || direction < DIRECTION_MIN {
        return shares.to_vec();
    }
    polar.pulls.iter().map(|pull| (polar.radius * pull / direction) as f32).collect()
}

/// The same of all pairs of contributions.
fn radial(shares: &[f32], gram: &Gram) -> Vec<f32> {
    let norms: Vec<f64> = (0..shares.len()).map(|index| gram.norm(index)).collect();
    let polar = polar(shares, &norms);
    coefficients(shares, &polar, gram.norm_of_sum(&polar.pulls))
}

export_merge!(Rda);

#[cfg(test)]
mod tests {
    use super::*;

    fn merged(shares: &[f32], values: &[Vec<f32>]) -> Vec<f32> {
        let coefficients = radial(shares, &Gram::of(values));
        let mut out = vec![0.0; values[0].len()];
        tombolo_policy_sdk::vector::weighted_sum(&coefficients, values, &mut out);
        out
    }

    #[test]
    fn orthogonal_contributions_keep_their_norm() {
        // Mean (1.5, 2) is shorter than either; RDA: radius 3.5, direction (1, 1)/√2.
        let out = merged(&[0.5, 0.5], &[vec![3.0, 0.0], vec![0.0, 4.0]]);
        let expected = 3.5 / 2.0_f32.sqrt();
        assert!((out[0] - expected).abs() < 1e-6 && (out[1] - expected).abs() < 1e-6, "{out:?}");
    }

    #[test]
    fn opposed_contributions_fall_back_to_the_mean() {
        assert_eq!(merged(&[0.5, 0.5], &[vec![2.0, 2.0], vec![-2.0, -2.0]]), [0.0, 0.0]);
        assert_eq!(merged(&[0.5, 0.5], &[vec![0.0; 2], vec![0.0; 2]]), [0.0, 0.0]);
    }

    #[test]
    fn a_contribution_of_next_to_nothing_has_no_direction() {
        let out = merged(&[0.5, 0.5], &[vec![1e30, 0.0], vec![0.0, 1e-30]]);
        assert!((out[0] / 5e29 - 1.0).abs() < 1e-6 && out[1].abs() < 1.0, "{out:?}");
    }

    #[test]
    fn many_contributions_are_merged_in_two_passes_and_as_few_are_in_one() {
        let tensor = |kind| Tensor { name: "t".into(), shape: vec![8, 10], elements: 80, kind };
        let tensors = vec![tensor(TensorKind::Matrix), tensor(TensorKind::Embedding), tensor(TensorKind::Vector)];
        // A zero among them, and one next to nothing.
        let length = |m: usize| [1.0, 0.0, 1e-20, 2.0][m % 4];
        let values: Vec<Vec<f32>> = (0..100_usize)
            .map(|m| (0..80_usize).map(|i| ((i * 7_919 * (m + 1) % 101) as f32 - 49.5) * length(m)).collect())
            .collect();
        for vocabulary in ["rda", "mean"] {
            let contributions = (0..100).map(|m| tombolo_policy_sdk::Contribution {
                island: format!("{m}"),
                tokens: 10 + m,
                steps: 1,
                staleness: 0,
                norm: 1.0,
            });
            let mut rda = Rda::open(Opening {
                config: format!("{{\"vocabulary\":\"{vocabulary}\"}}").into_bytes(),
                round: tombolo_policy_sdk::Round {
                    index: 0,
                    fragment: 0,
                    version: 0,
                    tokens_merged: 0,
                    token_budget: 0,
                },
                tensors: tensors.clone(),
                contributions: contributions.collect(),
                memo: Vec::new(),
            })
            .expect("opens");
            assert_eq!(rda.plan().passes, 2);
            for pass in 0..2 {
                let blobs: Vec<Vec<u8>> =
                    chunks(&tensors).map(|at| rda.observe(pass, at, &values).expect("observes")).collect();
                rda.observed(pass, &blobs).expect("ends the pass");
            }
            let expected = radial(&rda.shares, &Gram::of(&values));
            for (index, found) in rda.coefficients.iter().enumerate() {
                let expected = if vocabulary == "mean" && index == 1 { &rda.shares } else { &expected };
                for (found, expected) in found.iter().zip(expected) {
                    // The products of a Gram matrix are good to 2^-20.
                    assert!((found - expected).abs() <= 1e-5 * expected.abs(), "{index}: {found} and {expected}");
                }
            }
        }
    }

    #[test]
    fn a_zero_contribution_only_shortens() {
        assert_eq!(merged(&[0.75, 0.25], &[vec![4.0, 0.0], vec![0.0, 0.0]]), [3.0, 0.0]);
    }
}
