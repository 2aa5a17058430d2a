//! How much an island's contribution counts.
//!
//! Decoupled DiLoCo (arXiv 2604.21428) weighs island m by w = tokens · (tokens / steps): tokens for how much it has learnt, tokens
//! a step for how steady its gradients are. An island that has not stepped since it adopted the fragment has weight 0.
//!
//! An offer that starts from an old version says less about where to go from the current one. The field `staleness_discount` is the share of
//! its weight that each version of staleness leaves it: w · dˢ (asynchronous federated optimisation, arXiv 1903.03934, discounts by
//! staleness, too). 1, the default, discounts nothing.

use crate::{Config, Contribution};

/// The fields that [`discounted`] reads, for [`Config::parse`].
pub const FIELDS: &[&str] = &["staleness_discount"];

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
    normal(&contributions.iter().map(weight).collect::<Vec<f64>>())
}

/// The weights, discounted by staleness as the configuration's `staleness_discount` says (default 1, not at all), as shares of their sum.
///
/// Errors: a discount that is not between 0.001 and 1; no contribution has any weight.
pub fn discounted(config: &Config, contributions: &[Contribution]) -> Result<Vec<f32>, String> {
    let discount = config.number_within("staleness_discount", 1.0, 0.001, 1.0, "between 0.001 and 1")?;
    let weights = contributions.iter().map(|contribution| {
        // Repeated products are the same bits everywhere; staleness beyond 100 counts as 100.
        (0..contribution.staleness.min(100)).fold(weight(contribution), |weight, _| weight * discount)
    });
    normal(&weights.collect::<Vec<f64>>())
}

/// 1 for each contribution that has any weight and 0 for the others: what rules count by that must not be swayed by how much an island
/// says that it has done.
///
/// Errors: no contribution has any weight.
pub fn equal(contributions: &[Contribution]) -> Result<Vec<f32>, String> {
    shares(contributions).map(|shares| shares.iter().map(|share| f32::from(u8::from(*share > 0.0))).collect())
}

fn normal(weights: &[f64]) -> Result<Vec<f32>, String> {
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

    #[test]
    fn each_version_of_staleness_costs_its_share_of_the_weight() {
        let stale = |staleness| Contribution { staleness, ..contribution(100, 10) };
        let islands = [stale(0), stale(1), stale(2)];
        let config = |json: &str| Config::parse(json.as_bytes(), FIELDS).expect("valid");
        let halved = discounted(&config(r#"{"staleness_discount": 0.5}"#), &islands);
        assert_eq!(halved, Ok(vec![(4.0_f64 / 7.0) as f32, (2.0_f64 / 7.0) as f32, (1.0_f64 / 7.0) as f32]));
        assert_eq!(discounted(&config(""), &islands), shares(&islands), "no discount by default");
        assert!(discounted(&config(r#"{"staleness_discount": 0}"#), &islands).is_err());
    }

    #[test]
    fn equal_weights_leave_out_who_has_not_stepped() {
        assert_eq!(equal(&[contribution(100, 10), contribution(9, 0), contribution(900, 9)]), Ok(vec![1.0, 0.0, 1.0]));
        assert!(equal(&[contribution(9, 0)]).is_err());
    }
}
