//! Merge `krum`: the contribution that lies closest to its neighbours, or the mean of several such, then an outer optimiser.
//!
//! score(m) = Σ ‖vₘ − vⱼ‖² over the M − f − 2 (at least one) closest others j, over the whole fragment; Δ = the contribution with the lowest score (Krum) or
//! the mean of the `keep` lowest (Multi-Krum): Blanchard et al., Machine Learning with Adversaries, NeurIPS 2017. f is how many
//! islands may lie; the promise needs M ≥ 2f + 3, so f is at most ⌊(M − 3)/2⌋ whatever is configured. With M ≤ 2 all scores are equal. Of equal scores the
//! shorter contribution goes first, then the island whose name does. Contributions count alike, whatever tokens their islands say that they have
//! trained on; those that have not stepped are left out.
//!
//! One observing pass collects the Gram matrix of the contributions, summed in f64 over the chunks: ‖a − b‖² = a·a + b·b − 2 a·b. That is good to a few
//! parts in a million of the squared norms; contributions closer than a thousandth of their norms count as equally close. Which
//! were chosen is known after the pass only, so the log gives all of them the same weight. What the pass remembers grows with contributions² and with the
//! fragment, so a host's bounds set an end: 127 contributions, 64 of at most 33 million values.
//!
//! Configuration: `byzantine` (f, default as many as M allows), `keep` (default 1; at most M − f are kept), `outer` and its fields (see
//! the SDK's `outer`). State: the outer optimiser's.

use tombolo_policy_sdk::outer::Outer;
use tombolo_policy_sdk::vector::Gram;
use tombolo_policy_sdk::{At, Config, Merge, Opening, Plan, chunks, export_merge, weight};

/// Bytes that the pass may remember of a chunk, and of all (the contract's bounds).
const BLOB_BYTES_MAX: usize = 64 << 10;
const PASS_BYTES_MAX: usize = 16 << 20;

/// More islands than any run has: what `byzantine` and `keep` are held to.
const ISLANDS_MAX: f64 = 1e6;

/// One round of the rule.
pub struct Krum {
    islands: Vec<String>,
    weights: Vec<f32>,
    byzantine: usize,
    keep: usize,
    /// What each contribution is multiplied with. The weights as shares until the pass has ended.
    coefficients: Vec<f32>,
    outer: Outer,
}

impl Merge for Krum {
    fn open(opening: Opening) -> Result<Self, String> {
        let config = Config::parse(&opening.config, &[&["byzantine", "keep"], Outer::FIELDS].concat())?;
        let byzantine = whole(&config, "byzantine", ISLANDS_MAX, 0.0)?;
        let keep = whole(&config, "keep", 1.0, 1.0)?;
        let outer = Outer::configured(&config, &opening.round, &opening.memo)?;
        let weights = weight::equal(&opening.contributions)?;
        let count: f32 = weights.iter().sum();
        let coefficients = weights.iter().map(|weight| weight / count).collect();
        let blob = Gram::zero(weights.len()).to_bytes().len();
        if blob > BLOB_BYTES_MAX || blob * chunks(&opening.tensors).count() > PASS_BYTES_MAX {
            let (offers, values) = (weights.len(), opening.tensors.iter().map(|tensor| tensor.elements).sum::<u64>());
            return Err(format!(
                "krum compares all pairs, which is too much for {offers} contributions of {values} values; trimmed-mean and median do so many"
            ));
        }
        let islands = opening.contributions.into_iter().map(|contribution| contribution.island).collect();
        Ok(Krum { islands, weights, byzantine, keep, coefficients, outer })
    }

    fn plan(&self) -> Plan {
        let several = self.weights.iter().filter(|weight| **weight > 0.0).count() > 1;
        Plan { weights: self.weights.clone(), passes: u32::from(several), state_slots: self.outer.state_slots() }
    }

    fn observe(&self, _: u32, _: At, values: &[Vec<f32>]) -> Result<Vec<u8>, String> {
        Ok(Gram::of(values).to_bytes())
    }

    fn observed(&mut self, _: u32, blobs: &[Vec<u8>]) -> Result<(), String> {
        let mut gram = Gram::zero(self.weights.len());
        for blob in blobs {
            gram.add_bytes(blob)?;
        }
        let counted: Vec<usize> = (0..self.weights.len()).filter(|index| self.weights[*index] > 0.0).collect();
        let chosen = self.chosen(&gram, &counted);
        let share = 1.0 / chosen.len() as f32;
        self.coefficients = vec![0.0; self.weights.len()];
        for index in chosen {
            self.coefficients[index] = share;
        }
        Ok(())
    }

    fn step(&self, _: At, values: &[Vec<f32>], state: &mut [Vec<f32>], parameters: &mut [f32]) -> Result<(), String> {
        self.outer.descend(&self.coefficients, values, state, parameters);
        Ok(())
    }

    fn memo(&self) -> Vec<u8> {
        self.outer.memo()
    }
}

impl Krum {
    /// The contributions with the lowest scores.
    fn chosen(&self, gram: &Gram, counted: &[usize]) -> Vec<usize> {
        let byzantine = self.byzantine.min(counted.len().saturating_sub(3) / 2);
        let neighbours = counted.len().saturating_sub(byzantine + 2).max(1);
        let score = |of: usize| -> f64 {
            let others = counted.iter().filter(|other| **other != of);
            let mut distances: Vec<f64> = others.map(|other| distance_squared(gram, of, *other)).collect();
            distances.sort_by(f64::total_cmp);
            distances.iter().take(neighbours).sum()
        };
        let mut ranked: Vec<(f64, f64, usize)> =
            counted.iter().map(|index| (score(*index), gram.norm(*index), *index)).collect();
        ranked.sort_by(|a, b| {
            let lengths = a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1));
            lengths.then_with(|| self.islands[a.2].cmp(&self.islands[b.2]))
        });
        ranked.truncate(self.keep.min(counted.len() - byzantine));
        ranked.into_iter().map(|(_, _, index)| index).collect()
    }
}

/// ‖a − b‖², 0 where it is lost in the rounding of the products.
fn distance_squared(gram: &Gram, a: usize, b: usize) -> f64 {
    let squares = gram.product(a, a) + gram.product(b, b);
    let distance = squares - 2.0 * gram.product(a, b);
    if distance > squares * 1e-6 { distance } else { 0.0 }
}

/// A whole number of contributions.
fn whole(config: &Config, name: &str, default: f64, low: f64) -> Result<usize, String> {
    let number = config.number_within(name, default, low, ISLANDS_MAX, "a whole number of islands")?;
    if number == number.trunc() {
        Ok(number as usize)
    } else {
        Err(["configuration: field \"", name, "\" must be a whole number of islands"].concat())
    }
}

export_merge!(Krum);

#[cfg(test)]
mod tests {
    use super::*;
    use tombolo_policy_sdk::{Contribution, Round};

    /// The coefficients of contributions of two values each.
    fn coefficients(config: &str, values: &[[f32; 2]]) -> Vec<f32> {
        let islands = (0..values.len()).map(|index| Contribution {
            island: index.to_string(),
            tokens: 10,
            steps: 1,
            staleness: 0,
            norm: 1.0,
        });
        let mut rule = Krum::open(Opening {
            config: config.into(),
            round: Round { index: 0, fragment: 0, version: 0, tokens_merged: 0, token_budget: 0 },
            tensors: Vec::new(),
            contributions: islands.collect(),
            memo: Vec::new(),
        })
        .expect("opens");
        let lists: Vec<Vec<f32>> = values.iter().map(|list| list.to_vec()).collect();
        let blob = rule.observe(0, At { tensor: 0, offset: 0 }, &lists).expect("observes");
        rule.observed(0, &[blob]).expect("ends the pass");
        rule.coefficients
    }

    #[test]
    fn the_contribution_closest_to_its_neighbours_is_chosen() {
        // M 5, f 1, two neighbours: scores 1 + 4, 1 + 1, 1 + 4, far, far.
        let five = [[0.0, 0.0], [1.0, 0.0], [2.0, 0.0], [0.0, 100.0], [-90.0, 0.0]];
        assert_eq!(coefficients("", &five), [0.0, 1.0, 0.0, 0.0, 0.0]);
        // Of equal scores the shorter one is second.
        assert_eq!(coefficients(r#"{"keep":2}"#, &five), [0.5, 0.5, 0.0, 0.0, 0.0]);
        // At most M − f are kept.
        assert_eq!(coefficients(r#"{"keep":9}"#, &five), [0.25, 0.25, 0.25, 0.0, 0.25]);
    }

    #[test]
    fn of_two_the_shorter_is_chosen_and_of_equals_the_first_name() {
        assert_eq!(coefficients("", &[[3.0, 0.0], [1.0, 1.0]]), [0.0, 1.0]);
        assert_eq!(coefficients("", &[[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]]), [1.0, 0.0, 0.0]);
    }
}
