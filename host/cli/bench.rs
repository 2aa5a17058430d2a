//! Measurements and simulations in this process. `tombolo bench`: how good the committed model is, beside data-parallel training on the same windows; or,
//! where some islands lie, beside the honest ones alone.

use super::arguments::{BenchArguments, SimArguments};
use super::assembly::{cores, open_corpus, policy_runtime, policy_wasm};
use super::submit::read_spec;
use crate::error::{Error, Result};
use crate::sim::{Attack, Quality, compare, simulate};
use crate::spec::PolicySpec;

/// An attack by its name.
pub fn attack(name: &str) -> std::result::Result<Attack, String> {
    let known = Attack::KNOWN.iter().find(|(known, _)| *known == name);
    known.map(|(_, attack)| *attack).ok_or_else(|| "expected noise, flip or nan".into())
}

/// Prints a line per seed and their mean.
pub fn command(arguments: &BenchArguments) -> Result<()> {
    let spec = read_spec(&arguments.spec)?;
    let runtime = policy_runtime()?;
    let policy = |field: &str, policy: &PolicySpec| {
        let wasm = policy_wasm(policy, field)?;
        runtime.load(&wasm).map_err(|e| Error::invalid(format!("{field}.policy: {}", policy.policy)).because(e))
    };
    let (codec, merge, pace) =
        (policy("codec", &spec.codec)?, policy("merge", &spec.merge)?, policy("pace", &spec.pace)?);
    let down = if spec.down.policy.is_empty() { None } else { Some(policy("down", &spec.down)?) };
    let corpus = open_corpus(&spec, None)?;
    let liars = arguments.liars.zip(arguments.attack);
    let lying = liars.map_or(String::new(), |(liars, attack)| format!(", of which {liars} lie ({attack})"));
    say!(
        "{} islands{lying}, {} steps each, merge {}, codec {}, pace {}, H {} (warm-up {}), P {}; held-out loss in nats per byte",
        spec.islands,
        arguments.steps,
        spec.merge.policy,
        spec.codec.policy,
        spec.pace.policy,
        spec.outer.sync_steps,
        spec.outer.sync_warmup,
        spec.outer.fragments
    );
    say!(
        "{:>6} {:>7} {:>8} {:>14} {:>9} {:>8} {:>12} {:>8} {:>12} {:>11}",
        "seed",
        "steps",
        "rounds",
        if liars.is_some() { "honest alone" } else { "data-parallel" },
        "islands",
        "gap",
        "full rounds",
        "refused",
        "bytes/offer",
        "bits/value"
    );
    let mut gaps = Vec::new();
    for seed in 0..arguments.seeds {
        let mut spec = spec.clone();
        spec.seed += seed;
        let threads = arguments.threads.unwrap_or_else(cores);
        let quality = Quality {
            spec,
            codec: codec.clone(),
            merge: merge.clone(),
            pace: pace.clone(),
            down: down.clone(),
            steps: arguments.steps,
            threads,
            liars,
            baseline: !arguments.no_baseline,
        };
        let c = compare(&quality, &corpus)?;
        let (baseline, gap) = match (c.baseline, c.gap()) {
            (Some(loss), Some(gap)) => (format!("{loss:.4}"), format!("{:+.2}%", gap * 100.0)),
            _ => ("-".to_string(), "-".to_string()),
        };
        say!(
            "{:>6} {:>7} {:>8} {baseline:>14} {:>9.4} {gap:>8} {:>11.1}% {:>8} {:>12.0} {:>11.3}",
            quality.spec.seed,
            c.steps,
            c.rounds,
            c.islands,
            c.full_rounds * 100.0,
            c.refused,
            c.offer_bytes,
            c.offer_bits_per_value
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
