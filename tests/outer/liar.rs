//! Islands that lie: two of eight send noise, their updates with the opposite sign, or NaN, in offers that are otherwise in order.

use super::{Constant, spec, world};
use crate::support::program::text;
use tombolo::bucket::Ledger;
use tombolo::clock::Duration;
use tombolo::data::{Corpus, CorpusLimits, Source};
use tombolo::error::Result;
use tombolo::island::Inner;
use tombolo::policy::{Limits, Runtime};
use tombolo::sim::{Attack, Comparison, Liar, Quality, compare, on_virtual_time};
use tombolo::spec::{ModelSpec, Spec};

/// Inner steps until the budget is merged.
const STEPS: u64 = 12;

/// Eight islands with the same gradient and a plain outer step; the last `liars` of them lie. The log and the committed numbers.
fn run(rule: &str, own: &str, liars: u64, attack: Attack) -> (Ledger, Vec<f32>) {
    on_virtual_time(5, async {
        let mut spec = spec(1, rule, &format!("{own}outer = 'sgd'\neta = 1\ncooldown = 0\n"));
        let merged = if attack == Attack::Nan { 8 - liars } else { 8 };
        spec.tokens = STEPS * 8 * merged;
        let world = world(spec, 3, 8).await?;
        let liars: Vec<_> = (0..liars).map(|seed| Liar::bucket(&world, attack, seed)).collect();
        let inner = |_: usize| -> Result<Box<dyn Inner>> {
            Ok(Box::new(Constant { parameters: vec![0.0; 3], gradient: vec![1.0, -2.0, 0.5] }))
        };
        let ledger = world.run_with_liars(inner, &liars, Duration::from_secs(60)).await?;
        let theta = world.bucket.committed(&world.fragments, &ledger.versions).await?;
        Ok((ledger, theta))
    })
    .unwrap()
}

fn distance(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum::<f32>().sqrt()
}

#[test]
fn two_of_eight_who_lie_move_nothing_under_a_robust_rule_and_much_under_the_mean() {
    let (_, honest) = run("mean", "", 0, Attack::Flip);
    let length = distance(&honest, &[0.0; 3]);
    assert!(length > 20.0, "{honest:?}");
    for attack in [Attack::Noise, Attack::Flip] {
        for (rule, own) in [("trimmed-mean", ""), ("median", ""), ("krum", "byzantine = 2\nkeep = 6\n")] {
            let (ledger, theta) = run(rule, own, 2, attack);
            assert_eq!(theta, honest, "{rule}, {attack}");
            assert_eq!((ledger.fates.refused, ledger.breadth.len()), (0, 1), "all eight in every round: {ledger:?}");
        }
        let (_, theta) = run("mean", "", 2, attack);
        let moved = distance(&theta, &honest) / length;
        // Of eight equal updates two turned about leave half; a quarter of noise 100 times as long is some ten times the whole.
        let expected = if attack == Attack::Flip { 0.5..0.51 } else { 2.0..51.0 };
        assert!(expected.contains(&moved), "{attack}: {moved}");
    }
}

#[test]
fn two_of_eight_who_send_nan_are_refused_and_move_nothing_whatever_the_rule() {
    let (honest_ledger, honest) = run("mean", "", 0, Attack::Flip);
    for rule in ["mean", "rda", "trimmed-mean", "median", "krum"] {
        let (ledger, theta) = run(rule, "", 2, Attack::Nan);
        // The mean of directions is scaled to the mean of norms: the same but for the rounding of the scale.
        assert!(distance(&theta, &honest) <= 1e-4, "{rule}: {theta:?}, {honest:?}");
        assert_eq!(ledger.rounds_committed(), honest_ledger.rounds_committed(), "{rule}");
        let reasons: Vec<&str> = ledger.fates.reasons.keys().map(String::as_str).collect();
        assert_eq!(reasons, ["its codec does not decode it to finite values"], "{rule}");
        assert_eq!(ledger.fates.merged, 6 * ledger.rounds_committed(), "{rule}: {:?}", ledger.fates);
    }
}

/// A model of 25,000 parameters on invented text, eight islands of which two lie, beside the honest six alone.
fn on_text(rule: &str, attack: Attack) -> Comparison {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("text.txt"), text(128 << 10, 9)).unwrap();
    let limits = CorpusLimits { held_out_bytes_min: 4 << 10, ..CorpusLimits::default() };
    let corpus = Corpus::open(&Source::Path(folder.path().to_owned()), &limits).unwrap();
    let runtime = Runtime::new(Limits::default(), None).unwrap();
    let model = ModelSpec {
        hidden_size: 32,
        intermediate_size: 64,
        layers: 1,
        heads: 2,
        kv_heads: 2,
        context: 32,
        ..ModelSpec::default()
    };
    let mut spec = Spec { islands: 8, model, ..Spec::default() };
    (spec.train.batch, spec.train.learning_rate) = (4, 5e-3);
    (spec.outer.sync_steps, spec.outer.fragments) = (8, 4);
    spec.merge.policy = rule.into();
    let [codec, merge, pace] = ["bf16", rule, "adaptive-grace"].map(|name| runtime.bundled(name).unwrap());
    let liars = Some((2, attack));
    let quality = Quality { spec, codec, merge, pace, down: None, steps: 60, threads: 1, liars, baseline: true };
    compare(&quality, &corpus).unwrap()
}

#[test]
fn a_model_learns_beside_islands_that_send_noise_under_the_median_and_is_ruined_under_the_mean() {
    let robust = on_text("median", Attack::Noise);
    let ruined = on_text("mean", Attack::Noise);
    let behind = [robust.gap().unwrap(), ruined.gap().unwrap()];
    assert!(behind[0] < 0.05 && behind[1] > 0.5, "{behind:?}: {robust:?}, {ruined:?}");
    // bf16 has 16 bits a value; what offers have beside their values is most of the rest in a model of this size.
    assert!((16.0..24.0).contains(&robust.offer_bits_per_value), "{robust:?}");
    let refused = on_text("mean", Attack::Nan);
    assert!(refused.refused > 0 && refused.gap().unwrap() < 0.05, "{refused:?}");
}
