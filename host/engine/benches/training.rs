//! `cargo bench -p tombolo-engine`: training tokens/s of the model sizes of the engine's notes, at 1 and 2 threads.
//!
//! Arguments name sizes (tiny, small, medium; default tiny); `--rounds N` repeats the interleaved measurement.
//! `benches/baseline.py` measures PyTorch on the same shapes.

use std::time::Instant;

use tombolo_engine::{AdamW, Batch, Model, ModelConfig, Trainer};

struct Size {
    name: &'static str,
    config: ModelConfig,
    batch: usize,
    context: usize,
    steps: usize,
}

fn sizes() -> Vec<Size> {
    let size = |name, vocab_size, hidden_size, intermediate_size, layers, heads, context, batch, steps| Size {
        name,
        config: ModelConfig {
            vocab_size,
            hidden_size,
            intermediate_size,
            layers,
            heads,
            kv_heads: heads,
            head_dim: hidden_size / heads,
            context,
            rope_theta: 10_000.0,
            norm_eps: 1e-5,
            tied: false,
            initializer_range: 0.02,
        },
        batch,
        context,
        steps,
    };
    vec![
        size("tiny", 256, 128, 384, 4, 4, 128, 16, 40),
        size("small", 4096, 384, 1024, 6, 6, 256, 8, 4),
        size("medium", 32_000, 768, 2048, 12, 12, 512, 2, 2),
    ]
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let rounds = match arguments.iter().position(|argument| argument == "--rounds") {
        Some(place) => {
            arguments.get(place + 1).and_then(|rounds| rounds.parse().ok()).expect("--rounds takes a number")
        }
        None => 5,
    };
    let named: Vec<&String> = arguments.iter().filter(|argument| argument.chars().all(char::is_alphabetic)).collect();
    for size in sizes() {
        if named.iter().any(|name| *name == size.name) || (named.is_empty() && size.name == "tiny") {
            measure(&size, rounds);
        }
    }
}

/// Medians over `rounds`, 1 and 2 threads in turn, so that a busy neighbour slows both.
fn measure(size: &Size, rounds: usize) {
    let adamw = AdamW { beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.1, clip_norm: 1.0 };
    let tokens: Vec<u32> = (0..size.batch * (size.context + 1))
        .map(|i| (i * 2_654_435_761) as u32 % size.config.vocab_size as u32)
        .collect();
    let batch = Batch { tokens: &tokens, batch: size.batch, context: size.context };
    let mut trainers: Vec<Trainer> = [1, 2]
        .map(|threads| {
            let model = Model::init(&size.config, 1).expect("a possible shape");
            Trainer::new(model, adamw, threads).expect("a trainer")
        })
        .into();
    let mut speeds = vec![Vec::new(); trainers.len()];
    for _ in 0..rounds {
        for (trainer, speeds) in trainers.iter_mut().zip(&mut speeds) {
            trainer.step(batch, 1e-4).expect("a step");
            let start = Instant::now();
            for _ in 0..size.steps {
                trainer.step(batch, 1e-4).expect("a step");
            }
            let tokens = size.steps * size.batch * size.context;
            speeds.push(tokens as f64 / start.elapsed().as_secs_f64());
        }
    }
    for (threads, speeds) in speeds.iter_mut().enumerate() {
        speeds.sort_by(f64::total_cmp);
        println!(
            "{} ({:.2} M parameters), {} thread(s): {:.0} tokens/s (median of {rounds}; {:.0} to {:.0})",
            size.name,
            size.config.parameters() as f64 / 1e6,
            threads + 1,
            speeds[rounds / 2],
            speeds[0],
            speeds[rounds - 1],
        );
    }
}
