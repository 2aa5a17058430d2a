//! The whole model: gradients by differences, and the same bits whatever the threads and the history.

use super::*;
use crate::Model;
use crate::random::Random;

fn model(tied: bool) -> Model {
    let config = ModelConfig {
        vocab_size: 40,
        hidden_size: 24,
        intermediate_size: 36,
        layers: 2,
        heads: 4,
        kv_heads: 2,
        head_dim: 8,
        context: 80,
        rope_theta: 10_000.0,
        norm_eps: 1e-5,
        tied,
        initializer_range: 0.3,
    };
    let mut model = Model::init(&config, 9).expect("a possible shape");
    // Norms other than 1, so that a forgotten weight shows.
    let mut random = Random::new(10, 0);
    for tensor in model.layout.tensors.iter().filter(|tensor| tensor.shape.len() == 1) {
        for value in &mut model.parameters[tensor.range()] {
            *value += 0.2 * random.normal();
        }
    }
    model
}

fn tokens(count: usize) -> Vec<u32> {
    let mut random = Random::new(11, 0);
    (0..count).map(|_| (random.next() % 40) as u32).collect()
}

fn parallel<R: Send>(threads: usize, run: impl FnOnce() -> R + Send) -> R {
    rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("threads").install(run)
}

#[test]
fn the_gradient_of_every_tensor_is_that_of_differences() {
    for tied in [false, true] {
        let model = model(tied);
        // 3 · 67 rows: pieces of 32 that cross sequences, with a shorter one at the end; two attention blocks.
        let tokens = tokens(3 * 68);
        let batch = Batch { tokens: &tokens, batch: 3, context: 67 };
        let mut pass = Pass::new(&model.config, 2);
        let mut gradient = vec![f32::NAN; model.parameters.len()];
        parallel(2, || pass.gradient(&model.parameters, &batch, &mut gradient));
        let mut random = Random::new(12, 0);
        for tensor in &model.layout.tensors {
            // Along the gradient of a random half of the tensor the loss must change by that half's norm: a
            // direction in which it changes far more than by its rounding, which a single value does not.
            let mut direction = vec![0.0f64; tensor.elements()];
            for (direction, g) in direction.iter_mut().zip(&gradient[tensor.range()]) {
                *direction = if random.next().is_multiple_of(2) { f64::from(*g) } else { 0.0 };
            }
            let norm = direction.iter().map(|d| d * d).sum::<f64>().sqrt();
            assert!(norm > 1e-3, "{}: hardly any gradient", tensor.name);
            // A change of 1e-2 by the first derivative: large against the loss's rounding (5e-7 for a loss of 5),
            // small against its bends.
            let step = 1e-2 / norm;
            let mut at = |shift: f64| {
                let mut moved = model.parameters.clone();
                for (value, direction) in moved[tensor.range()].iter_mut().zip(&direction) {
                    *value = (f64::from(*value) + shift * step * direction / norm) as f32;
                }
                parallel(2, || pass.loss(&moved, &batch))
            };
            let difference = 8.0 * (at(1.0) - at(-1.0)) - (at(2.0) - at(-2.0));
            let numeric = difference / (12.0 * step);
            assert!((numeric / norm - 1.0).abs() < 1e-3, "{}: gradient {norm}, by differences {numeric}", tensor.name);
        }
    }
}

#[test]
fn any_number_of_threads_gives_the_same_bits() {
    let model = model(false);
    let tokens = tokens(5 * 81);
    let batch = Batch { tokens: &tokens, batch: 5, context: 80 };
    let run = |threads| {
        let mut gradient = vec![f32::NAN; model.parameters.len()];
        let mut pass = Pass::new(&model.config, threads);
        let loss = parallel(threads, || pass.gradient(&model.parameters, &batch, &mut gradient));
        (loss, gradient)
    };
    let one = run(1);
    for threads in [2, 3, 5] {
        assert!(one == run(threads), "{threads} threads differ from one");
    }
}

#[test]
fn a_used_pass_gives_the_same_bits_as_a_fresh_one() {
    let model = model(false);
    let tokens = tokens(5 * 81);
    let large = Batch { tokens: &tokens, batch: 5, context: 80 };
    let small = Batch { tokens: &tokens[..2 * 31], batch: 2, context: 30 };
    let run = |pass: &mut Pass, batch| {
        let mut gradient = vec![f32::NAN; model.parameters.len()];
        (parallel(2, || pass.gradient(&model.parameters, batch, &mut gradient)), gradient)
    };
    let mut used = Pass::new(&model.config, 2);
    let first = run(&mut used, &large);
    let second = run(&mut used, &small);
    assert!(second == run(&mut Pass::new(&model.config, 2), &small));
    assert!(first == run(&mut used, &large));
}

#[test]
fn logits_a_few_rows_at_a_time_change_only_rounding() {
    for tied in [false, true] {
        let model = model(tied);
        let tokens = tokens(5 * 81);
        let batch = Batch { tokens: &tokens, batch: 5, context: 80 };
        let run = |logits_max| {
            let mut gradient = vec![f32::NAN; model.parameters.len()];
            let mut pass = Pass { logits_max, ..Pass::new(&model.config, 2) };
            (parallel(2, || pass.gradient(&model.parameters, &batch, &mut gradient)), gradient)
        };
        let (whole, few) = (run(LOGITS_MAX), run(0));
        assert_eq!(whole.0, few.0);
        for (whole, few) in whole.1.iter().zip(&few.1) {
            // The head's gradient adds up 400 rows in eight parts instead of one.
            assert!((whole - few).abs() < 1e-6, "{whole} {few}");
        }
    }
}
