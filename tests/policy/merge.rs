//! The bundled merge rules against numbers worked out by hand.

use tombolo::policy::{Error, TensorKind};

use crate::memory::{Fragment, chunk_count, contribution, noise, round, runtime, tensor};

/// Plain descent of step 1 without momentum: the step shows what was merged.
const PLAIN: &str = r#"{"eta": 1, "momentum": 0}"#;

/// What `rule` merges of `values`, one tensor of the given kind, all islands weighing the same.
fn merged(rule: &str, kind: TensorKind, values: &[Vec<f32>]) -> Vec<f32> {
    let policy = runtime().bundled(rule).expect("bundled");
    let length = values[0].len();
    let mut fragment = Fragment::new(vec![tensor("t", &[length as u32], kind)], vec![0.0; length]);
    let islands: Vec<_> = (0..values.len()).map(|index| contribution(&format!("island-{index}"), 100, 10)).collect();
    fragment.merge(&policy, PLAIN, round(0), &islands, values, 1).expect("merges");
    fragment.parameters.iter().map(|value| 0.0 - value).collect()
}

fn assert_close(found: &[f32], expected: &[f32]) {
    // Coefficients are rounded to f32 once and applied in f32: a few units in the last place.
    for (found, expected) in found.iter().zip(expected) {
        assert!((found - expected).abs() <= 4.0 * f32::EPSILON * expected.abs().max(1.0), "{found} for {expected}");
    }
}

#[test]
fn nesterov_with_warm_up_matches_numbers_by_hand() {
    // c 1, μ_max 0.75: μ₁ = min(0.75, 1/2), μ₂ = min(0.75, 2/3), μ₃ = 0.75 (3/4). η 0.5, Δ = 1 each time, Θ₀ = 4.
    // 1: buf 1;             Θ = 4 − 0.5·(1 + 0.5·1) = 3.25
    // 2: buf 2/3 + 1 = 5/3; Θ = 3.25 − 0.5·(1 + 2/3·5/3) = 3.25 − 19/18
    // 3: buf 5/4 + 1 = 9/4; Θ −= 0.5·(1 + 3/4·9/4) = 43/32
    let policy = runtime().bundled("mean").expect("bundled");
    let mut fragment = Fragment::new(vec![tensor("t", &[5], TensorKind::Matrix)], vec![4.0; 5]);
    let expected = [(1.0, 3.25), (5.0 / 3.0, 3.25 - 19.0 / 18.0), (2.25, 3.25 - 19.0 / 18.0 - 43.0 / 32.0)];
    for (version, (buffer, parameter)) in expected.into_iter().enumerate() {
        let config = r#"{"eta": 0.5, "momentum": 0.75, "warmup": 1}"#;
        let islands = [contribution("a", 10, 1)];
        let merged =
            fragment.merge(&policy, config, round(version as u64), &islands, &[vec![1.0; 5]], 1).expect("merges");
        assert_eq!((merged.weights, merged.state_slots, merged.memo), (vec![1.0], 1, vec![]));
        assert_close(&fragment.state[0], &[buffer; 5]);
        assert_close(&fragment.parameters, &[parameter; 5]);
    }
}

#[test]
fn the_defaults_are_the_published_step_with_a_warm_up_of_ten() {
    // η 0.7, μ₁ = 1/11: Θ = 0 − 0.7·(1 + 1/11).
    let policy = runtime().bundled("rda").expect("bundled");
    let mut fragment = Fragment::new(vec![tensor("t", &[1], TensorKind::Matrix)], vec![0.0]);
    fragment.merge(&policy, "", round(0), &[contribution("a", 10, 1)], &[vec![1.0]], 1).expect("merges");
    assert_close(&fragment.parameters, &[-0.7 * (12.0 / 11.0)]);
    // The ninetieth merge and all later ones have the full momentum: 90 / 100.
    let mut fragment = Fragment::new(vec![tensor("t", &[1], TensorKind::Matrix)], vec![0.0]);
    fragment.merge(&policy, "{}", round(89), &[contribution("a", 10, 1)], &[vec![1.0]], 1).expect("merges");
    assert_close(&fragment.parameters, &[-0.7 * 1.9]);
}

#[test]
fn weights_are_tokens_times_tokens_a_step() {
    // a: 100·10 = 1000, b: 200·10 = 2000, c has not stepped, d: 100·10. Δ = (1·1 + 2·4 + 1·7)/4 = 4.
    let policy = runtime().bundled("mean").expect("bundled");
    let mut fragment = Fragment::new(vec![tensor("t", &[2], TensorKind::Matrix)], vec![0.0; 2]);
    let islands =
        [contribution("a", 100, 10), contribution("b", 200, 20), contribution("c", 900, 0), contribution("d", 100, 10)];
    let values: Vec<Vec<f32>> = [1.0, 4.0, 100.0, 7.0].map(|value| vec![value; 2]).into();
    let merged = fragment.merge(&policy, PLAIN, round(0), &islands, &values, 1).expect("merges");
    assert_eq!(merged.weights, [0.25, 0.5, 0.0, 0.25]);
    assert_eq!(fragment.parameters, [-4.0, -4.0]);
    assert_eq!(merged.state_slots, 0);
}

#[test]
fn a_round_without_any_weight_is_refused() {
    for rule in ["mean", "rda"] {
        let policy = runtime().bundled(rule).expect("bundled");
        let mut fragment = Fragment::new(vec![tensor("t", &[1], TensorKind::Matrix)], vec![0.0]);
        let error =
            fragment.merge(&policy, "", round(0), &[contribution("a", 0, 5)], &[vec![1.0]], 1).expect_err("no weight");
        assert!(
            matches!(&error, Error::Refused { reason, .. } if reason.contains("no contribution has any weight")),
            "{error}"
        );
    }
}

#[test]
fn one_contribution_passes_bit_for_bit() {
    for rule in ["mean", "rda"] {
        for kind in [TensorKind::Matrix, TensorKind::Embedding] {
            let values = noise(3, 1_000);
            assert_eq!(merged(rule, kind, std::slice::from_ref(&values)), values, "{rule}");
        }
    }
}

#[test]
fn rda_keeps_the_norm_of_orthogonal_contributions() {
    // Norms 3 and 4: radius 3.5, mean direction (1/2, 1/2), of direction (1, 1)/√2.
    let half = 3.5 / 2.0_f32.sqrt();
    let two = [vec![3.0, 0.0, 0.0], vec![0.0, 4.0, 0.0]];
    assert_close(&merged("rda", TensorKind::Matrix, &two), &[half, half, 0.0]);
    // All other kinds go with the matrices.
    for kind in [TensorKind::Vector, TensorKind::Embedding, TensorKind::Head] {
        assert_close(&merged("rda", kind, &two), &[half, half, 0.0]);
    }
    assert_close(&merged("mean", TensorKind::Matrix, &two), &[1.5, 2.0, 0.0]);
    // Three of them, norms 3, 4 and 5: radius 4, direction (1, 1, 1)/√3.
    let third = 4.0 / 3.0_f32.sqrt();
    let three = [vec![3.0, 0.0, 0.0], vec![0.0, 4.0, 0.0], vec![0.0, 0.0, 5.0]];
    assert_close(&merged("rda", TensorKind::Matrix, &three), &[third; 3]);
}

#[test]
fn rda_of_equal_contributions_is_the_identity() {
    let values = noise(9, 777);
    let same = [values.clone(), values.clone(), values.clone()];
    for rule in ["mean", "rda"] {
        assert_close(&merged(rule, TensorKind::Matrix, &same), &values);
    }
}

#[test]
fn where_directions_cancel_rda_is_the_mean() {
    // 2 and −1 along the same line: directions cancel, the mean is 0.5.
    assert_close(&merged("rda", TensorKind::Matrix, &[vec![2.0, 0.0], vec![-1.0, 0.0]]), &[0.5, 0.0]);
    assert_close(&merged("rda", TensorKind::Matrix, &[vec![0.0, 0.0], vec![0.0, 0.0]]), &[0.0, 0.0]);
    // One silent island: it takes part in the mean of norms only.
    assert_close(&merged("rda", TensorKind::Matrix, &[vec![0.0, 0.0], vec![6.0, 8.0]]), &[3.0, 4.0]);
}

#[test]
fn rda_treats_every_tensor_for_itself_and_the_vocabulary_as_it_is_told() {
    let policy = runtime().bundled("rda").expect("bundled");
    let tensors = || {
        vec![
            tensor("a", &[2], TensorKind::Matrix),
            tensor("e", &[2], TensorKind::Embedding),
            tensor("b", &[2], TensorKind::Head),
        ]
    };
    let values = [vec![3.0, 0.0, 3.0, 0.0, 1.0, 1.0], vec![0.0, 4.0, 0.0, 4.0, 1.0, 1.0]];
    let islands = [contribution("a", 10, 1), contribution("b", 10, 1)];
    let merged = |config: &str| {
        let mut fragment = Fragment::new(tensors(), vec![0.0; 6]);
        fragment.merge(&policy, config, round(0), &islands, &values, 2).map(|_| fragment.parameters)
    };
    let half = 3.5 / 2.0_f32.sqrt();
    assert_close(&merged(PLAIN).expect("merges"), &[-half, -half, -half, -half, -1.0, -1.0]);
    let plainly = r#"{"eta": 1, "momentum": 0, "vocabulary": "mean"}"#;
    assert_close(&merged(plainly).expect("merges"), &[-half, -half, -1.5, -2.0, -1.0, -1.0]);
    let error = merged(r#"{"vocabulary": "median"}"#).expect_err("no such way").to_string();
    assert!(error.contains(r#"field "vocabulary" must be "rda" or "mean", not "median""#), "{error}");
}

#[test]
fn the_golden_trace_of_the_outer_loop_holds() {
    // Two islands of a linear model after three inner steps (figures of a public test): η 1, μ 0.9 Nesterov, plain mean.
    let policy = runtime().bundled("mean").expect("bundled");
    let mut fragment = Fragment::new(
        vec![tensor("w", &[2], TensorKind::Matrix), tensor("b", &[1], TensorKind::Vector)],
        vec![2.0, 1.0, 1.0],
    );
    let delta = vec![0.245, -0.026, 0.219];
    let islands = [contribution("a", 6, 3), contribution("b", 6, 3)];
    let config = r#"{"eta": 1.0, "momentum": 0.9, "warmup": 0}"#;
    fragment.merge(&policy, config, round(0), &islands, &[delta.clone(), delta], 1).expect("merges");
    // The trace gives three to four digits.
    for (found, expected) in fragment.parameters.iter().zip([1.5345, 1.0494, 0.5839]) {
        assert!((found - expected).abs() < 1e-4, "{found} for {expected}");
    }
}

#[test]
fn no_bit_depends_on_the_number_of_threads() {
    let tensors = || {
        vec![
            tensor("a", &[300, 300], TensorKind::Matrix),
            tensor("g", &[70], TensorKind::Vector),
            tensor("e", &[50, 900], TensorKind::Embedding),
        ]
    };
    assert!(chunk_count(&tensors()) >= 6, "chunks for several threads");
    let count = 300 * 300 + 70 + 50 * 900;
    let islands = [contribution("a", 100, 10), contribution("b", 130, 11), contribution("c", 90, 12)];
    let values: Vec<Vec<f32>> = (0..3).map(|seed| noise(seed, count)).collect();
    for rule in ["krum", "mean", "median", "norm-clip", "rda", "sparseloco", "trimmed-mean"] {
        let policy = runtime().bundled(rule).expect("bundled");
        let run = |threads| {
            let mut fragment = Fragment::new(tensors(), noise(77, count));
            for version in 0..3 {
                fragment.merge(&policy, "", round(version), &islands, &values, threads).expect("merges");
            }
            fragment
        };
        let alone = run(1);
        for threads in [2, 3, 16] {
            assert!(run(threads) == alone, "{rule} on {threads} threads");
        }
    }
}

#[test]
fn the_order_of_contributions_changes_next_to_nothing() {
    // Sums in another order round otherwise, so bits may differ, by some units in the last place.
    let islands = [contribution("a", 100, 10), contribution("b", 130, 11), contribution("c", 90, 12)];
    let values: Vec<Vec<f32>> = (0..3).map(|seed| noise(seed, 500)).collect();
    for rule in ["mean", "rda"] {
        let policy = runtime().bundled(rule).expect("bundled");
        let run = |order: [usize; 3]| {
            let mut fragment = Fragment::new(vec![tensor("t", &[500], TensorKind::Matrix)], vec![0.0; 500]);
            let islands = order.map(|index| islands[index].clone());
            let values = order.map(|index| values[index].clone());
            fragment.merge(&policy, "", round(5), &islands, &values, 1).expect("merges");
            fragment.parameters
        };
        let first = run([0, 1, 2]);
        assert_eq!(first, run([0, 1, 2]), "the same order gives the same bits");
        assert_close(&run([2, 0, 1]), &first);
    }
}

#[test]
fn values_that_are_not_finite_never_reach_a_policy() {
    let policy = runtime().bundled("mean").expect("bundled");
    let mut fragment = Fragment::new(vec![tensor("t", &[3], TensorKind::Matrix)], vec![0.0; 3]);
    let islands = [contribution("a", 10, 1), contribution("b", 10, 1)];
    let values = [vec![1.0; 3], vec![1.0, f32::NAN, 1.0]];
    let error = fragment.merge(&policy, "", round(0), &islands, &values, 1).expect_err("NaN");
    assert!(matches!(&error, Error::Input { found, .. } if found.contains("of b")), "{error}");
    let error = fragment.merge(&policy, "", round(0), &[], &[], 1).expect_err("nothing to merge");
    assert!(matches!(error, Error::Input { .. }), "{error}");
}

#[test]
fn a_step_that_overflows_is_nonsense_and_stores_nothing_infinite() {
    let policy = runtime().bundled("mean").expect("bundled");
    let mut fragment = Fragment::new(vec![tensor("t", &[3], TensorKind::Matrix)], vec![-f32::MAX; 3]);
    let before = fragment.clone();
    let values = [vec![f32::MAX; 3]];
    let error =
        fragment.merge(&policy, PLAIN, round(0), &[contribution("a", 10, 1)], &values, 1).expect_err("overflow");
    assert!(matches!(error, Error::Nonsense { .. }), "{error}");
    assert_eq!(fragment, before);
}

#[test]
fn a_configuration_with_a_misspelt_field_is_refused_by_name() {
    for rule in ["mean", "rda"] {
        let policy = runtime().bundled(rule).expect("bundled");
        let mut fragment = Fragment::new(vec![tensor("t", &[1], TensorKind::Matrix)], vec![0.0]);
        let island = [contribution("a", 10, 1)];
        for (config, said) in [
            (r#"{"momemtum": 0.9}"#, r#"unknown field "momemtum"; known are outer, eta, momentum, warmup, cooldown"#),
            (r#"{"eta": 0}"#, r#"field "eta" must be between"#),
            ("[1]", "not a flat JSON object"),
        ] {
            let error = fragment.merge(&policy, config, round(0), &island, &[vec![1.0]], 1).expect_err(config);
            assert!(error.to_string().contains(said), "{error}");
        }
    }
}
