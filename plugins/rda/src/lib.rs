//! Merge `rda`: radial-directional averaging, then an outer optimiser: by default SGD with Nesterov momentum.
//!
//! Per tensor Δ = (Σ w‖v‖ / Σ w) · φ(Σ w φ(v) / Σ w), φ(x) = x/‖x‖, φ(0) = 0: mean of the norms times direction of the mean direction
//! (Decoupled DiLoCo, arXiv 2604.21428, with the weighted mean of norms as the radius). Pseudo-gradients of different islands are nearly
//! orthogonal, so the plain mean shrinks like 1/√M; this keeps its norm whatever M. Vectors (gains of the normalisations) go with the
//! matrices: they shrink in the same way, and nothing in the paper sets them apart. So by default do embedding and head, which measured better with a vocabulary of bytes
//! (EXPERIMENTS.md). The paper averages these two plainly, for vocabularies of which any one island touches few rows; `vocabulary` says which.
//!
//! One observing pass collects the Gram matrix of the contributions per tensor, summed in f64 over the chunks; it holds all the norms that the formula needs, so a
//! step is a linear combination with coefficients per tensor. A single contribution passes as it is, bit for bit. Where the mean direction
//! vanishes (shorter than a thousandth of a unit: the islands contradict each other) the plain mean is taken.
//!
//! Configuration: `vocabulary`, how embedding and head are averaged, `"rda"` (the default) or `"mean"`; `outer` (default `nesterov`) and its fields (see the SDK's
//! `outer`), `staleness_discount` (see its `weight`). State: the outer optimiser's. Memory in a round grows with contributions², which is meant for tens of islands.

use tombolo_policy_sdk::outer::Outer;
use tombolo_policy_sdk::vector::Gram;
use tombolo_policy_sdk::{At, Config, Merge, Opening, Plan, Tensor, TensorKind, chunks, export_merge, weight};

/// Mean directions shorter than this are noise: scaled up to the mean norm, they would be noise of full size. Orthogonal contributions of equal
/// weight have a mean direction of 1/√M, so this is out of reach of honest islands up to M of a million.
const DIRECTION_MIN: f64 = 1e-3;

/// A contribution shorter than this share of the longest one has no direction, as if it were zero: it is rounding, and scaled up to the mean norm
/// it would be rounding of full size. Keeps coefficients within f32, too.
const NORM_MIN: f64 = 1e-12;

/// One round of the rule.
pub struct Rda {
    tensors: Vec<Tensor>,
    shares: Vec<f32>,
    /// Whether embedding and head are averaged plainly.
    plain_vocabulary: bool,
    /// Per tensor, what each contribution is multiplied with. The shares until the pass has ended.
    coefficients: Vec<Vec<f32>>,
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
        let outer = Outer::configured(&config, &opening.round)?;
        let shares = weight::discounted(&config, &opening.contributions)?;
        let several = shares.iter().filter(|share| **share > 0.0).count() > 1;
        let coefficients = vec![shares.clone(); opening.tensors.len()];
        let mut rda = Rda { tensors: opening.tensors, shares, plain_vocabulary, coefficients, passes: 0, outer };
        rda.passes = u32::from(several && rda.tensors.iter().any(|tensor| rda.is_radial(tensor)));
        Ok(rda)
    }

    fn plan(&self) -> Plan {
        Plan { weights: self.shares.clone(), passes: self.passes, state_slots: self.outer.state_slots() }
    }

    fn observe(&self, _: u32, at: At, values: &[Vec<f32>]) -> Result<Vec<u8>, String> {
        let tensor = self.tensors.get(at.tensor as usize).ok_or("no such tensor")?;
        Ok(if self.is_radial(tensor) { Gram::of(values).to_bytes() } else { Vec::new() })
    }

    fn observed(&mut self, _: u32, blobs: &[Vec<u8>]) -> Result<(), String> {
        let mut grams = vec![Gram::zero(self.shares.len()); self.tensors.len()];
        if chunks(&self.tensors).count() != blobs.len() {
            return Err("there must be one blob a chunk".into());
        }
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

    fn step(&self, at: At, values: &[Vec<f32>], state: &mut [Vec<f32>], parameters: &mut [f32]) -> Result<(), String> {
        let coefficients = self.coefficients.get(at.tensor as usize).ok_or("no such tensor")?;
        self.outer.descend(coefficients, values, state, parameters);
        Ok(())
    }
}

impl Rda {
    fn is_radial(&self, tensor: &Tensor) -> bool {
        !(self.plain_vocabulary && matches!(tensor.kind, TensorKind::Embedding | TensorKind::Head))
    }
}

/// The coefficients aₘ with Σ aₘ vₘ = radius · direction: aₘ = radius · (wₘ/‖vₘ‖) / ‖Σ (w/‖v‖) v‖, weights as shares.
fn radial(shares: &[f32], gram: &Gram) -> Vec<f32> {
    let longest = (0..shares.len()).map(|index| gram.norm(index)).fold(0.0, f64::max);
    let mut radius = 0.0;
    let mut pulls = vec![0.0; shares.len()];
    for (index, share) in shares.iter().enumerate() {
        let (share, norm) = (f64::from(*share), gram.norm(index));
        radius += share * norm;
        if norm > longest * NORM_MIN {
            pulls[index] = share / norm;
        }
    }
    let direction = gram.norm_of_sum(&pulls);
    if direction.is_nan() || direction < DIRECTION_MIN {
        return shares.to_vec();
    }
    pulls.iter().map(|pull| (radius * pull / direction) as f32).collect()
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
    fn a_zero_contribution_only_shortens() {
        assert_eq!(merged(&[0.75, 0.25], &[vec![4.0, 0.0], vec![0.0, 0.0]]), [3.0, 0.0]);
    }
}
