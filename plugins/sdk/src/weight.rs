//! How much an island's contribution counts.
//!
//! Decoupled DiLoCo (arXiv 2604.21428) weighs island m by w = tokens · (tokens / steps): tokens for how much it has learnt, tokens
//! a step for how steady its gradients are. An island that has not stepped since it adopted the fragment has weight 0.

use crate::Contribution;

/// w = tokens · (tokens / steps), 0 without steps.
pub fn weight(contribution: &Contribution) -> f64 {
    if contribution.steps == 0 {
        return 0.0;
    }
    let tokens = contribution.tokens as f64;
    tokens * (tokens / f64::from(contribution.steps))
}

/// The weights as shares of their sum, in the order of the contributions.
///
/// Errors: no contribution has any weight.
pub fn shares(contributions: &[Contribution]) -> Result<Vec<f32>, String> {
    let weights: Vec<f64> = contributions.iter().map(weight).collect();
    let sum: f64 = weights.iter().sum();
    if sum > 0.0 {
        Ok(weights.iter().map(|weight| (weight / sum) as f32).collect())
    } else {
        Err("no contribution has any weight: none has trained on a token since it adopted the fragment".into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contribution(tokens: u64, steps: u32) -> Contribution {
        Contribution { island: "a".into(), tokens, steps, staleness: 0, norm: 1.0 }
    }

    #[test]
    fn weights_grow_with_tokens_and_with_tokens_a_step() {
        assert_eq!(weight(&contribution(100, 10)), 1_000.0);
        assert_eq!(weight(&contribution(200, 10)), 4_000.0);
        assert_eq!(weight(&contribution(200, 20)), 2_000.0);
        assert_eq!(weight(&contribution(200, 0)), 0.0);
    }

    #[test]
    fn shares_add_up_to_one_and_need_one_with_weight() {
        assert_eq!(
            shares(&[contribution(100, 10), contribution(0, 5), contribution(300, 30)]),
            Ok(vec![0.25, 0.0, 0.75])
        );
        assert!(shares(&[contribution(0, 10), contribution(50, 0)]).is_err());
        assert!(shares(&[]).is_err());
    }
}
