//! The shape of a model: what `config.json` says, as far as it matters to arithmetic.

use serde::{Deserialize, Serialize};

use crate::{Error, Layout, Result};

/// The shape and the constants of one Llama-family model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelConfig {
    /// Number of tokens, V.
    pub vocab_size: usize,
    /// Channels of the residual stream, C.
    pub hidden_size: usize,
    /// Channels inside the feed-forward block, F.
    pub intermediate_size: usize,
    /// Transformer layers, L.
    pub layers: usize,
    /// Query heads, H.
    pub heads: usize,
    /// Key/value heads, K; divides `heads`.
    pub kv_heads: usize,
    /// Channels of one head, D; even. `heads · head_dim` need not equal `hidden_size`.
    pub head_dim: usize,
    /// The longest sequence, in tokens (`max_position_embeddings`).
    pub context: usize,
    /// Base of the rotary position embedding.
    pub rope_theta: f32,
    /// Added to the mean square in RMSNorm.
    pub norm_eps: f32,
    /// Whether the head is the embedding, transposed.
    pub tied: bool,
    /// Standard deviation of freshly drawn matrices.
    pub initializer_range: f32,
}

/// The most parameters of a model that this engine lays out: offsets stay far from overflow, and a slip of the
/// finger in a spec is an error instead of an attempt to allocate terabytes.
const PARAMETERS_MAX: u128 = 1 << 40;

impl ModelConfig {
    /// Every reason why no model can have this shape; empty for a good one.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        for (field, found) in [
            ("vocab_size", self.vocab_size),
            ("hidden_size", self.hidden_size),
            ("intermediate_size", self.intermediate_size),
            ("layers", self.layers),
            ("heads", self.heads),
            ("kv_heads", self.kv_heads),
            ("head_dim", self.head_dim),
            ("context", self.context),
        ] {
            if found == 0 {
                problems.push(format!("{field}: expected at least 1, found 0"));
            }
            // Token ids and positions are u32.
            if u32::try_from(found).is_err() {
                problems.push(format!("{field}: expected less than 2^32, found {found}"));
            }
        }
        if self.kv_heads > 0 && !self.heads.is_multiple_of(self.kv_heads) {
            problems.push(format!("kv_heads: expected a divisor of heads ({}), found {}", self.heads, self.kv_heads));
        }
        if !self.head_dim.is_multiple_of(2) {
            problems.push(format!(
                "head_dim: expected an even number (rotary embedding turns pairs), found {}",
                self.head_dim
            ));
        }
        for (field, found) in [("rope_theta", self.rope_theta), ("norm_eps", self.norm_eps)] {
            if !(found.is_finite() && found > 0.0) {
                problems.push(format!("{field}: expected a finite number above 0, found {found}"));
            }
        }
        if !(self.initializer_range.is_finite() && self.initializer_range >= 0.0) {
            problems.push(format!(
                "initializer_range: expected a finite number of at least 0, found {}",
                self.initializer_range
            ));
        }
        if problems.is_empty() {
            let parameters = self.parameters_wide();
            if parameters > PARAMETERS_MAX {
                problems.push(format!("number of parameters: expected at most 2^40, found {parameters}"));
            }
        }
        problems
    }

    /// Refuses an impossible shape with all its problems.
    pub(crate) fn check(&self) -> Result<()> {
        let problems = self.problems();
        if problems.is_empty() { Ok(()) } else { Err(Error::Config { problems }) }
    }

    /// Number of parameters without allocating anything.
    pub fn parameters(&self) -> usize {
        Layout::of(self).elements()
    }

    /// Width of a row of queries, keys and values side by side: (H + 2·K)·D.
    pub(crate) fn qkv_width(&self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.head_dim
    }

    /// Width of a row of all heads' outputs: H·D.
    pub(crate) fn attention_width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Number of parameters in integers that cannot overflow for fields below 2³².
    fn parameters_wide(&self) -> u128 {
        let wide = |n: usize| n as u128;
        let (c, f, v) = (wide(self.hidden_size), wide(self.intermediate_size), wide(self.vocab_size));
        let qkv = (wide(self.heads) + 2 * wide(self.kv_heads)) * wide(self.head_dim);
        let layer = (qkv + wide(self.heads) * wide(self.head_dim) + 2).saturating_add(3 * f).saturating_mul(c);
        let ends = v * c * if self.tied { 1 } else { 2 } + c;
        layer.saturating_mul(wide(self.layers)).saturating_add(ends)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> ModelConfig {
        ModelConfig {
            vocab_size: 256,
            hidden_size: 64,
            intermediate_size: 176,
            layers: 2,
            heads: 4,
            kv_heads: 2,
            head_dim: 16,
            context: 128,
            rope_theta: 10_000.0,
            norm_eps: 1e-5,
            tied: false,
            initializer_range: 0.02,
        }
    }

    #[test]
    fn a_good_shape_has_no_problem_and_both_counts_agree() {
        for tied in [false, true] {
            let config = ModelConfig { tied, ..config() };
            assert_eq!(config.problems(), Vec::<String>::new());
            assert_eq!(config.parameters() as u128, config.parameters_wide());
        }
    }

    #[test]
    fn all_problems_are_listed_at_once() {
        let bad = ModelConfig { layers: 0, kv_heads: 3, head_dim: 15, norm_eps: f32::NAN, ..config() };
        let problems = bad.problems();
        assert_eq!(problems.len(), 4, "{problems:?}");
        for (problem, field) in problems.iter().zip(["layers", "kv_heads", "head_dim", "norm_eps"]) {
            assert!(
                problem.starts_with(field) && problem.contains("expected") && problem.contains("found"),
                "{problem}"
            );
        }
    }

    #[test]
    fn a_model_of_absurd_size_is_refused_before_it_is_laid_out() {
        let huge = ModelConfig {
            hidden_size: 1 << 31,
            vocab_size: 1 << 31,
            intermediate_size: 1 << 31,
            layers: 1 << 31,
            ..config()
        };
        assert_eq!(huge.problems().len(), 1, "{:?}", huge.problems());
    }
}
