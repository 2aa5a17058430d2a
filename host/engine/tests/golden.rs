//! Golden numbers of transformers and PyTorch: `tests/fixtures/golden`, whose README says how they were made.

use std::path::{Path, PathBuf};

use safetensors::SafeTensors;
use tombolo_engine::{AdamW, Batch, Model, Trainer};

/// The golden batch: 3 rows of 48 targets.
const BATCH: usize = 3;
const CONTEXT: usize = 48;

const ADAMW: AdamW = AdamW { beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.1, clip_norm: 1.0 };

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/golden").join(name)
}

/// The golden tensors of one model.
struct Golden {
    bytes: Vec<u8>,
}

impl Golden {
    fn read(name: &str) -> Golden {
        Golden {
            bytes: std::fs::read(folder(name).join("golden.safetensors")).expect("the fixture is in the repository"),
        }
    }

    fn bytes(&self, name: &str) -> Vec<[u8; 4]> {
        let file = SafeTensors::deserialize(&self.bytes).expect("a safetensors file");
        file.tensor(name).expect("the golden tensor").data().as_chunks().0.to_vec()
    }

    fn floats(&self, name: &str) -> Vec<f32> {
        self.bytes(name).into_iter().map(f32::from_le_bytes).collect()
    }

    fn tokens(&self) -> Vec<u32> {
        self.bytes("tokens").into_iter().map(u32::from_le_bytes).collect()
    }
}

fn trainer(name: &str, threads: usize) -> Trainer {
    let model = Model::load(&folder(name)).expect("the golden model loads");
    Trainer::new(model, ADAMW, threads).expect("a trainer")
}

/// Euclidean distance as a share of the golden value's norm.
fn distance(found: &[f32], golden: &[f32]) -> f64 {
    assert_eq!(found.len(), golden.len());
    let square = |x: f64| x * x;
    let apart: f64 = found.iter().zip(golden).map(|(a, b)| square(f64::from(*a) - f64::from(*b))).sum();
    let norm: f64 = golden.iter().map(|b| square(f64::from(*b))).sum();
    (apart / norm).sqrt()
}

#[test]
fn loss_and_every_gradient_are_pytorchs() {
    for name in ["llama", "llama-tied"] {
        let golden = Golden::read(name);
        let tokens = golden.tokens();
        let batch = Batch { tokens: &tokens, batch: BATCH, context: CONTEXT };
        let mut trainer = trainer(name, 2);
        let stats = trainer.gradient(batch).expect("a gradient");
        let loss = golden.floats("loss")[0];
        // One f32 unit in the last place of 5 to 8 is 4.8e-7; the mean of 144 rows differs by rounding alone.
        assert!((stats.loss - loss).abs() < 2e-6, "{name}: loss {} instead of {loss}", stats.loss);
        assert_eq!(trainer.loss(batch).expect("a loss"), stats.loss, "{name}: the loss alone has other bits");
        for tensor in &trainer.model().layout.tensors {
            let found = &trainer.gradients()[tensor.range()];
            let apart = distance(found, &golden.floats(&format!("grad.{}", tensor.name)));
            // Sums of up to 144·176 products in another order: some tens of roundings of 6e-8 each.
            println!("{name}: grad {} {apart:.2e}", tensor.name);
            assert!(apart < 5e-6, "{name}: gradient of {} is {apart:.2e} off", tensor.name);
        }
    }
}

#[test]
fn logits_are_pytorchs() {
    for name in ["llama", "llama-tied"] {
        let golden = Golden::read(name);
        let model = Model::load(&folder(name)).expect("the golden model loads");
        let logits = golden.floats("logits");
        for (row, golden) in golden.tokens().chunks(CONTEXT + 1).zip(logits.chunks(CONTEXT * 256)) {
            let found = model.logits(&row[..CONTEXT]).expect("logits");
            let apart = distance(&found, golden);
            println!("{name}: logits {apart:.2e}");
            // Two layers of sums of 64 and 176 products: some tens of roundings of 6e-8 each.
            assert!(apart < 3e-6, "{name}: logits are {apart:.2e} off");
        }
    }
}

#[test]
fn ten_adamw_steps_are_pytorchs() {
    for name in ["llama", "llama-tied"] {
        let golden = Golden::read(name);
        let tokens = golden.tokens();
        let mut trainer = trainer(name, 2);
        let (losses, norms) = (golden.floats("losses"), golden.floats("grad_norms"));
        for (step, (loss, norm)) in losses.iter().zip(&norms).enumerate() {
            let batch = Batch { tokens: &tokens, batch: BATCH, context: CONTEXT };
            let stats = trainer.step(batch, 1e-3).expect("a step");
            println!("{name} {step}: {:e} {:e}", (stats.loss - loss).abs(), (stats.gradient_norm - norm).abs() / norm);
            assert!((stats.loss - loss).abs() < 1e-5, "{name}, step {step}: loss {} instead of {loss}", stats.loss);
            assert!(
                (stats.gradient_norm - norm).abs() < 1e-5 * norm,
                "{name}, step {step}: gradient norm {} instead of {norm}",
                stats.gradient_norm
            );
        }
        for tensor in &trainer.model().layout.tensors {
            let apart = distance(
                trainer.model().tensor(&tensor.name).expect("it is there"),
                &golden.floats(&format!("final.{}", tensor.name)),
            );
            println!("{name}: final {} {apart:.2e}", tensor.name);
            // Adam divides by the root of the second moment: of a value whose gradient is near its own rounding error,
            // that error moves it by a share of the learning rate. A few such values make 1e-5 of a matrix.
            assert!(apart < 5e-5, "{name}: final {} is {apart:.2e} off", tensor.name);
        }
    }
}

#[test]
fn one_and_two_threads_give_the_same_bits() {
    let golden = Golden::read("llama");
    let tokens = golden.tokens();
    let run = |threads| {
        let mut trainer = trainer("llama", threads);
        let batch = Batch { tokens: &tokens, batch: BATCH, context: CONTEXT };
        let stats: Vec<_> = (0..5).map(|_| trainer.step(batch, 1e-3).expect("a step")).collect();
        (stats, trainer.parameters().to_vec())
    };
    let one = run(1);
    assert_eq!(one, run(2));
    assert_eq!(one, run(3));
}
