//! Measurements and simulations in this process. `tombolo bench`: how good the committed model is, beside data-parallel training on the same windows, measured in this process.

use super::arguments::{BenchArguments, SimArguments};
use super::assembly::{cores, open_corpus, policy_runtime};
use super::submit::read_spec;
use crate::error::Result;
use crate::sim::{Quality, compare, simulate};

/// Prints a line per seed and their mean.
pub fn command(arguments: &BenchArguments) -> Result<()> {
    let spec = read_spec(&arguments.spec)?;
    let runtime = policy_runtime()?;
    let corpus = open_corpus(&spec, None)?;
    say!(
        "{} islands, {} steps each, merge {}, codec {}, pace {}, H {}, P {}; held-out loss in nats per byte",
        spec.islands,
        arguments.steps,
        spec.merge.policy,
        spec.codec.policy,
        spec.pace.policy,
        spec.outer.sync_steps,
        spec.outer.fragments
    );
    say!(
        "{:>6} {:>7} {:>8} {:>14} {:>9} {:>8} {:>12}",
        "seed",
        "steps",
        "rounds",
        "data-parallel",
        "islands",
        "gap",
        "full rounds"
    );
    let mut gaps = Vec::new();
    for seed in 0..arguments.seeds {
        let mut spec = spec.clone();
        spec.seed += seed;
        let threads = arguments.threads.unwrap_or_else(cores);
        let quality = Quality { spec, steps: arguments.steps, threads, baseline: !arguments.no_baseline };
        let c = compare(&quality, &corpus, &runtime)?;
        let (baseline, gap) = match (c.data_parallel, c.gap()) {
            (Some(loss), Some(gap)) => (format!("{loss:.4}"), format!("{:+.2}%", gap * 100.0)),
            _ => ("-".to_string(), "-".to_string()),
        };
        say!(
            "{:>6} {:>7} {:>8} {baseline:>14} {:>9.4} {gap:>8} {:>11.1}%",
            quality.spec.seed,
            c.steps,
            c.rounds,
            c.islands,
            c.full_rounds * 100.0
        );
        gaps.extend(c.gap());
    }
    if !gaps.is_empty() {
        say!("mean gap {:+.2}% over {} seeds", gaps.iter().sum::<f64>() / gaps.len() as f64 * 100.0, gaps.len());
    }
    Ok(())
}

/// `tombolo sim`: stops at the first seed that breaks an invariant and names it.
pub fn sim_command(arguments: &SimArguments) -> Result<()> {
    let runtime = policy_runtime()?;
    let (mut rounds, mut blows, mut recomputed, mut switches, mut given_up) = (0, 0, 0, 0, 0);
    let seeds = arguments.seed..arguments.seed + arguments.seeds;
    for seed in seeds.clone() {
        let report = simulate(seed, &runtime)?;
        rounds += report.checked.rounds;
        blows += report.blows;
        recomputed += report.checked.recomputed;
        switches += report.checked.switches;
        given_up += report.checked.given_up;
        if (seed + 1) % 50 == 0 {
            eprintln!("seed {seed}: {rounds} rounds, {blows} blows so far");
        }
    }
    say!(
        "{} seeds: {rounds} rounds committed under {blows} blows, {recomputed} merges recomputed; {switches} switches of policies, \
         {given_up} of them away from one that failed; every invariant held",
        seeds.end - seeds.start
    );
    Ok(())
}
