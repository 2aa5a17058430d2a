//! What every bundled merge rule promises, and what the robust ones promise of islands that lie; and the outer optimisers that all of them know.

use tombolo::policy::{Contribution, TensorKind};

use crate::memory::{Fragment, contribution, noise, round, runtime, tensor};

/// Every bundled merge rule.
const RULES: [&str; 7] = ["krum", "mean", "median", "norm-clip", "rda", "sparseloco", "trimmed-mean"];

/// The one of them that has no choice of outer optimiser: its step is plain, which is its point.
const WITHOUT_OUTER: &str = "sparseloco";

/// Descent of step 1 without momentum: the step shows what was merged.
const PLAIN: &str = r#"{"eta": 1, "outer": "sgd"}"#;

/// [`PLAIN`] in the words of `rule`.
fn plain(rule: &str) -> &'static str {
    if rule == WITHOUT_OUTER { r#"{"eta": 1}"# } else { PLAIN }
}

fn norm(values: &[f32]) -> f32 {
    values.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt() as f32
}

/// Islands `a`, `b`, … with what each sends, in this order.
fn islands(values: &[Vec<f32>]) -> Vec<Contribution> {
    ('a'..)
        .zip(values)
        .map(|(name, list)| Contribution { norm: norm(list), ..contribution(&name.to_string(), 100, 10) })
        .collect()
}

/// What `rule` merges, one matrix.
fn merged(rule: &str, config: &str, islands: &[Contribution], values: &[Vec<f32>]) -> Vec<f32> {
    let policy = runtime().bundled(rule).expect("bundled");
    let length = values[0].len();
    let mut fragment = Fragment::new(vec![tensor("t", &[length as u32], TensorKind::Matrix)], vec![0.0; length]);
    fragment.merge(&policy, config, round(0), islands, values, 1).expect("merges");
    fragment.parameters.iter().map(|value| 0.0 - value).collect()
}

fn distance(a: &[f32], b: &[f32]) -> f32 {
    norm(&a.iter().zip(b).map(|(a, b)| a - b).collect::<Vec<f32>>())
}

/// Seven honest contributions: what they have in common, and as much again of each one's own.
fn honest() -> Vec<Vec<f32>> {
    let common = noise(50, 600);
    (0..7).map(|seed| noise(seed, 600).iter().zip(&common).map(|(own, common)| own + common).collect()).collect()
}

#[test]
fn equal_contributions_merge_to_themselves() {
    let values = noise(9, 777);
    for rule in RULES {
        for count in [1, 2, 3, 5, 8] {
            let same = vec![values.clone(); count];
            let found = merged(rule, plain(rule), &islands(&same), &same);
            for (found, value) in found.iter().zip(&values) {
                // Shares are rounded to f32 once and applied in f32: a few units in the last place.
                assert!(
                    (found - value).abs() <= 8.0 * f32::EPSILON * value.abs(),
                    "{rule} of {count}: {found} for {value}"
                );
            }
        }
    }
}

#[test]
fn the_order_of_islands_changes_no_bit_where_the_rule_adds_up_in_an_order_of_its_own_and_next_to_nothing_elsewhere() {
    let values = honest();
    let first = islands(&values);
    for rule in RULES {
        let straight = merged(rule, plain(rule), &first, &values);
        for turn in [1, 3, 6] {
            let (mut names, mut lists) = (first.clone(), values.clone());
            names.rotate_left(turn);
            lists.rotate_left(turn);
            let turned = merged(rule, plain(rule), &names, &lists);
            if ["krum", "median", "trimmed-mean"].contains(&rule) {
                assert_eq!(turned, straight, "{rule}");
            }
            // Sums in another order round otherwise: some units in the last place of the largest term.
            assert!(distance(&turned, &straight) <= 1e-5 * norm(&straight), "{rule}");
        }
    }
}

#[test]
fn one_island_that_lies_moves_a_robust_rule_less_than_the_mean() {
    let values = honest();
    let attack = |of: &dyn Fn(&[f32]) -> Vec<f32>| {
        let mut lists = values.clone();
        lists.push(of(&values[0]));
        lists
    };
    let huge = attack(&|list| noise(77, list.len()).iter().map(|value| value * 100.0).collect());
    let flipped = attack(&|list| list.iter().map(|value| -10.0 * value).collect());
    for (what, lists) in [("a hundred times the norm", huge), ("sign-flipped", flipped)] {
        let moved = |rule: &str, config: &str| {
            distance(&merged(rule, config, &islands(&lists), &lists), &merged(rule, config, &islands(&values), &values))
        };
        let mean = moved("mean", PLAIN);
        let multi = r#"{"eta": 1, "outer": "sgd", "keep": 4}"#;
        for (rule, config) in
            [("trimmed-mean", PLAIN), ("median", PLAIN), ("krum", PLAIN), ("krum", multi), ("norm-clip", PLAIN)]
        {
            let found = moved(rule, config);
            assert!(found < mean, "{rule} {config}, {what}: moved by {found}, the mean by {mean}");
        }
    }
}

#[test]
fn trimmed_mean_and_median_stay_between_honest_values_whatever_a_minority_sends() {
    let values = honest();
    for (rule, liars) in [("trimmed-mean", 2), ("median", 6)] {
        let mut lists = values.clone();
        // A quarter of nine is trimmed as three, and six are fewer than half of thirteen.
        lists
            .extend((0..liars).map(|seed| noise(90 + seed, 600).iter().map(|value| value * 1e6).collect::<Vec<f32>>()));
        for (index, found) in merged(rule, PLAIN, &islands(&lists), &lists).into_iter().enumerate() {
            let column = values.iter().map(|list| list[index]);
            let (low, high) = column.fold((f32::MAX, f32::MIN), |(low, high), value| (low.min(value), high.max(value)));
            assert!((low..=high).contains(&found), "{rule}: {found} is not within {low} and {high}");
        }
    }
}

#[test]
fn an_island_that_has_not_stepped_changes_nothing_in_any_rule() {
    let values = honest();
    for rule in RULES {
        let mut lists = values.clone();
        lists.push(vec![5.0; 600]);
        let mut names = islands(&lists);
        names[7].steps = 0;
        let config = plain(rule);
        assert_eq!(merged(rule, config, &names, &lists), merged(rule, config, &islands(&values), &values), "{rule}");
    }
}

#[test]
fn every_rule_with_a_choice_takes_every_outer_optimiser_and_its_state_follows() {
    let values = honest();
    for rule in RULES.into_iter().filter(|rule| *rule != WITHOUT_OUTER) {
        let policy = runtime().bundled(rule).expect("bundled");
        for (outer, slots) in [("nesterov", 1), ("sgd", 0), ("adam", 2), ("delayed-nesterov", 2)] {
            let config = format!(r#"{{"outer": "{outer}"}}"#);
            let mut fragment = Fragment::new(vec![tensor("t", &[600], TensorKind::Matrix)], vec![0.0; 600]);
            for version in 0..5 {
                let done =
                    fragment.merge(&policy, &config, round(version), &islands(&values), &values, 1).expect("merges");
                assert_eq!(done.state_slots, slots, "{rule} {outer}");
            }
            // Same contributions five times: whatever the optimiser, it has gone down along what they have in common.
            let common = noise(50, 600);
            let along: f32 = fragment.parameters.iter().zip(&common).map(|(moved, common)| -moved * common).sum();
            assert!(along > 0.0, "{rule} {outer}");
        }
    }
}

#[test]
fn the_default_outer_optimiser_is_nesterov_to_the_bit() {
    let values = honest();
    for rule in RULES.into_iter().filter(|rule| *rule != WITHOUT_OUTER) {
        let named = r#"{"outer": "nesterov", "eta": 0.7, "momentum": 0.9, "warmup": 10}"#;
        assert_eq!(
            merged(rule, "", &islands(&values), &values),
            merged(rule, named, &islands(&values), &values),
            "{rule}"
        );
    }
}

#[test]
fn a_staleness_discount_takes_weight_from_old_offers() {
    // Weights 1 and 1/2: (2 · 1 + 4) / 3 = 2.
    let values = [vec![1.0; 3], vec![4.0; 3]];
    let mut names = islands(&values);
    names[1].staleness = 1;
    names.iter_mut().for_each(|island| island.norm = 1.0);
    for rule in ["mean", "norm-clip", "sparseloco"] {
        let config = plain(rule).replace('}', r#", "staleness_discount": 0.5}"#);
        for found in merged(rule, &config, &names, &values) {
            // Shares are rounded to f32.
            assert!((found - 2.0).abs() < 1e-6, "{rule}: {found}");
        }
    }
}

#[test]
fn sparseloco_counts_zeros_takes_a_plain_step_and_keeps_no_state() {
    // A third of what one of three sent, two thirds of what two sent; nothing of what nobody sent.
    let values = [vec![3.0, 3.0, 0.0, 0.0], vec![0.0, 3.0, 0.0, -6.0], vec![0.0; 4]];
    let policy = runtime().bundled("sparseloco").expect("bundled");
    let mut fragment = Fragment::new(vec![tensor("t", &[4], TensorKind::Matrix)], vec![0.0; 4]);
    for rounds in 1..=3_u8 {
        let done =
            fragment.merge(&policy, "", round(u64::from(rounds)), &islands(&values), &values, 1).expect("merges");
        assert_eq!((done.state_slots, done.memo.len()), (0, 0));
        for (found, delta) in fragment.parameters.iter().zip([1.0, 2.0, 0.0, -2.0]) {
            // No momentum: every round moves as far as the first. Shares are rounded to f32.
            assert!((found + f32::from(rounds) * delta).abs() < 1e-5, "round {rounds}: {found}");
        }
    }
}

#[test]
fn as_many_islands_as_a_run_may_have_are_merged_by_every_rule_but_krum_which_says_so() {
    let count = tombolo::spec::ISLANDS_MAX;
    let length = 32_768;
    // Alike but for their size, so that every rule comes to the same direction.
    let common = noise(3, length);
    let values: Vec<Vec<f32>> =
        (0..count).map(|m| common.iter().map(|v| v * (1.0 + m as f32 / count as f32)).collect()).collect();
    let islands: Vec<Contribution> = (values.iter().enumerate())
        .map(|(m, list)| Contribution { norm: norm(list), ..contribution(&format!("island-{m:03}"), 100, 10) })
        .collect();
    for rule in RULES {
        let policy = runtime().bundled(rule).expect("bundled");
        let tensors = vec![tensor("t", &[length as u32], TensorKind::Matrix)];
        let mut fragment = Fragment::new(tensors, vec![0.0; length]);
        let merged = fragment.merge(&policy, plain(rule), round(0), &islands, &values, 2);
        if rule == "krum" {
            let error = merged.expect_err("all pairs of so many").to_string();
            assert!(error.contains("krum compares all pairs") && error.contains("256 contributions"), "{error}");
            continue;
        }
        merged.expect(rule);
        let mean = common.iter().map(|v| v * (1.0 + 0.5 * (count - 1) as f32 / count as f32)).collect::<Vec<f32>>();
        let found: Vec<f32> = fragment.parameters.iter().map(|value| 0.0 - value).collect();
        // Half of the way between the shortest and the longest, to a few parts in a hundred: rules differ in what they leave out.
        assert!(distance(&found, &mean) < 0.02 * norm(&mean), "{rule}: {}", distance(&found, &mean) / norm(&mean));
    }
}
