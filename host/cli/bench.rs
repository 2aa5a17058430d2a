//! `tombolo bench`: how good the committed model is, beside data-parallel training on the same windows, measured in this process.

use super::arguments::BenchArguments;
use super::assembly::{cores, open_corpus, policy_runtime};
use super::submit::read_spec;
use crate::error::Result;
use crate::sim::{Quality, compare};

/// Prints a line per seed and their mean.
pub fn command(arguments: &BenchArguments) -> Result<()> {
    let spec = read_spec(&arguments.spec)?;
    let runtime = policy_runtime()?;
    let corpus = open_corpus(&spec, None)?;
    println!(
        "{} islands, {} steps each, merge {}, codec {}, H {}, P {}; held-out loss in nats per byte",
        spec.islands,
        arguments.steps,
        spec.merge.policy,
        spec.codec.policy,
        spec.outer.sync_steps,
        spec.outer.fragments
    );
    println!(
        "{:>6} {:>7} {:>8} {:>14} {:>9} {:>8} {:>12}",
        "seed", "steps", "rounds", "data-parallel", "islands", "gap", "full rounds"
    );
    let mut gaps = Vec::new();
    for seed in 0..arguments.seeds {
        let mut spec = spec.clone();
        spec.seed += seed;
        let quality = Quality { spec, steps: arguments.steps, threads: cores() };
        let c = compare(&quality, &corpus, &runtime)?;
        println!(
            "{:>6} {:>7} {:>8} {:>14.4} {:>9.4} {:>+7.2}% {:>11.1}%",
            quality.spec.seed,
            c.steps,
            c.rounds,
            c.data_parallel,
            c.islands,
            c.gap() * 100.0,
            c.full_rounds * 100.0
        );
        gaps.push(c.gap());
    }
    println!("mean gap {:+.2}% over {} seeds", gaps.iter().sum::<f64>() / gaps.len() as f64 * 100.0, gaps.len());
    Ok(())
}
