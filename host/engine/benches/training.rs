//! `cargo bench -p tombolo-engine`: training tokens/s at 1 and 2 threads, and where the time of a step goes, op by op.
//!
//! `cargo bench -p tombolo-engine -- small medium --rounds 3` names sizes (tiny, small, medium; default tiny) and how
//! often to repeat the interleaved measurement. `benches/baseline.py` measures PyTorch on the same shapes.

use std::time::Instant;

use tombolo_engine::{AdamW, Batch, Model, ModelConfig, Trainer, measure};

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
        size("tiny", 256, 128, 384, 4, 4, 128, 16, 8),
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
            steps(&size, rounds);
            ops(&size, rounds);
        }
    }
}

/// Medians over `rounds`, 1 and 2 threads in turn, so that a busy neighbour slows both. On a busy machine the figure
/// per CPU second (all threads together) is the one that can be compared.
fn steps(size: &Size, rounds: usize) {
    let adamw = AdamW { beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.1, clip_norm: 1.0 };
    let tokens: Vec<u32> = (0..size.batch * (size.context + 1))
        .map(|i| (i * 2_654_435_761) as u32 % size.config.vocab_size as u32)
        .collect();
    let batch = Batch { tokens: &tokens, batch: size.batch, context: size.context };
    let mut trainers = [1, 2].map(|threads| {
        let model = Model::init(&size.config, 1).expect("a possible shape");
        Trainer::new(model, adamw, threads).expect("a trainer")
    });
    let mut speeds = [Vec::new(), Vec::new()];
    let mut speeds_cpu = [Vec::new(), Vec::new()];
    for _ in 0..rounds {
        for (which, trainer) in trainers.iter_mut().enumerate() {
            trainer.step(batch, 1e-4).expect("a step");
            let (start, start_cpu) = (Instant::now(), cpu_seconds());
            for _ in 0..size.steps {
                trainer.step(batch, 1e-4).expect("a step");
            }
            let tokens = (size.steps * size.batch * size.context) as f64;
            speeds[which].push(tokens / start.elapsed().as_secs_f64());
            speeds_cpu[which].push(tokens / (cpu_seconds() - start_cpu));
        }
    }
    for threads in [1, 2] {
        let (speeds, speeds_cpu) = (sorted(&speeds[threads - 1]), sorted(&speeds_cpu[threads - 1]));
        println!(
            "{} ({:.2} M parameters), {threads} thread(s): {:.0} tokens/s, median of {rounds} ({:.0} to {:.0}); {:.0} a CPU second",
            size.name,
            size.config.parameters() as f64 / 1e6,
            speeds[rounds / 2],
            speeds[0],
            speeds[rounds - 1],
            speeds_cpu[rounds / 2],
        );
    }
}

/// CPU seconds over which one op is measured.
const TICKS_SECONDS: f64 = 0.05;

/// Time of each op in a step on one thread, medians of CPU time.
fn ops(size: &Size, rounds: usize) {
    let mut rows = Vec::new();
    for mut op in measure::ops(&size.config, size.batch, size.context) {
        // The system counts CPU time in ticks of some milliseconds: enough calls for many of them.
        let mut many = |calls: usize| {
            let start = cpu_seconds();
            (0..calls).for_each(|_| (op.run)());
            (cpu_seconds() - start) / calls as f64
        };
        let mut calls = 1;
        while many(calls) * (calls as f64) < TICKS_SECONDS {
            calls *= 2;
        }
        let times: Vec<f64> = (0..rounds).map(|_| many(calls)).collect();
        rows.push((op.name, op.calls, op.flops, sorted(&times)[rounds / 2]));
    }
    let total: f64 = rows.iter().map(|(_, calls, _, seconds)| *calls as f64 * seconds).sum();
    println!("{}: ops of one step on one thread, {:.2} ms together", size.name, total * 1e3);
    for (name, calls, flops, seconds) in rows {
        let spent = calls as f64 * seconds;
        let rate = if flops > 0.0 { format!("{:.0} GFLOP/s", flops / seconds * 1e-9) } else { String::new() };
        println!("  {name:<28} {:7.3} ms {:5.1} %  {rate}", spent * 1e3, 100.0 * spent / total);
    }
}

fn sorted(values: &[f64]) -> Vec<f64> {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values
}

/// Seconds that this process's live threads have been on a CPU; NaN where the system does not say.
fn cpu_seconds() -> f64 {
    let nanoseconds = || {
        let mut sum = 0u64;
        for task in std::fs::read_dir("/proc/self/task").ok()? {
            let text = std::fs::read_to_string(task.ok()?.path().join("schedstat")).ok()?;
            sum += text.split_whitespace().next()?.parse::<u64>().ok()?;
        }
        Some(sum as f64)
    };
    nanoseconds().map_or(f64::NAN, |sum| sum * 1e-9)
}
