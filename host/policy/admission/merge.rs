//! What a merge rule must hold: agreement counts once, the order of the islands counts nothing, and no bit depends on which instance saw which
//! chunk.

use super::probe::{Offers, Standing, elements, fragment, noise};
use super::{End, Examination, answered, other_bits, probe, refused};
use crate::policy::{Tensor, TensorKind};

const SETTINGS: &str = "takes its configuration and merges one offer";
const EQUAL: &str = "equal offers give what one gives";
const ORDER: &str = "the order of the islands does not matter";
const SAME: &str = "same bits from two instances, on one thread and on two";
const FINITE: &str = "answers are finite";

/// How far two ways of adding the same things up may differ, as a share of the largest step: sums of a few terms and norms of a tensor in f32 are off by parts
/// in a million, a rule that looks at the order or counts twice by far more.
const STEP_SLACK: f32 = 1e-3;
/// And as a share of the largest parameter, for rounding it.
const PARAMETER_SLACK: f32 = 4.0 * f32::EPSILON;

/// Islands of a round, and rounds that follow each other.
const ISLANDS: u32 = 4;
const ROUNDS: u32 = 3;

/// Values of the fragment that speed is measured on: with four contributions 16 MiB.
const MEASURED_ELEMENTS: u32 = 1 << 20;

pub(super) fn examine(exam: &mut Examination<'_>) -> Result<(), End> {
    let tensors = fragment();
    let count = elements(&tensors);
    let (policy, config) = (exam.policy, exam.config);
    let start = Standing::new(noise(99, count, 0.1));
    let merged = |property: &str, what: &str, from: &Standing, offers: &Offers, threads: usize| {
        answered(property, || what.into(), from.merged(policy, config, &tensors, offers, threads))
    };

    let values = noise(1, count, 0.01);
    let (alone, _) = merged(SETTINGS, "merging one offer", &start, &Offers::of(vec![values.clone()], true), 1)?;
    exam.fact("state_slots", alone.state.len() as f64);
    exam.fact("memo_bytes", alone.memo.len() as f64);
    exam.pass(SETTINGS, if config.is_empty() { "the defaults".into() } else { String::from_utf8_lossy(config) });

    let equal = Offers::of(vec![values; ISLANDS as usize], true);
    let (together, _) = merged(EQUAL, "merging equal offers", &start, &equal, 1)?;
    let what = format!("{ISLANDS} equal offers against one");
    alike(EQUAL, &what, &tensors, &start, &alone, &together)?;
    exam.pass(EQUAL, what);

    let offers =
        |round: u32| Offers::of((0..ISLANDS).map(|island| noise(10 * round + island, count, 0.01)).collect(), false);
    let (forwards, fuel) = merged(ORDER, "merging", &start, &offers(1), 1)?;
    exam.fact("fuel_per_value", fuel as f64 / (count as f64 * f64::from(ISLANDS)));
    let (backwards, _) = merged(ORDER, "merging the islands in another order", &start, &offers(1).reversed(), 1)?;
    let what = format!("{ISLANDS} offers, last island first");
    alike(ORDER, &what, &tensors, &start, &forwards, &backwards)?;
    exam.pass(ORDER, what);

    for (threads, who) in [(1, "a second time"), (2, "on two threads")] {
        let (mut one, mut other) = (start.clone(), start.clone());
        for round in 1..=ROUNDS {
            exam.in_time()?;
            one = merged(SAME, "merging", &one, &offers(round), 1)?.0;
            other = merged(SAME, &format!("merging {who}"), &other, &offers(round), threads)?.0;
            let place = format!("round {round}, {who}");
            same_bits(&place, &tensors, &one, &other)?;
        }
    }
    exam.pass(SAME, format!("{ROUNDS} rounds on top of each other"));

    exam.in_time()?;
    for (what, scale) in [("zeros", 0.0), ("values near 1e-38", 1e-38), ("values near 1e15", 1e15)] {
        let offers = Offers::of((0..ISLANDS).map(|island| noise(50 + island, count, scale)).collect(), false);
        merged(FINITE, &format!("merging {what}"), &start, &offers, 1)?;
    }
    exam.pass(FINITE, "zeros, values near 1e-38 and values near 1e15");
    measure(exam)
}

/// Holds that two versions of the fragment differ by no more than rounding.
fn alike(
    property: &str,
    what: &str,
    tensors: &[Tensor],
    start: &Standing,
    a: &Standing,
    b: &Standing,
) -> Result<(), End> {
    let largest = |list: &[f32]| list.iter().fold(0.0_f32, |max, value| max.max(value.abs()));
    let steps: Vec<f32> = a.parameters.iter().zip(&start.parameters).map(|(after, before)| after - before).collect();
    let slack = STEP_SLACK * largest(&steps) + PARAMETER_SLACK * largest(&a.parameters);
    match a.parameters.iter().zip(&b.parameters).position(|(a, b)| (a - b).abs() > slack) {
        None => Ok(()),
        Some(at) => Err(refused(
            property,
            format!(
                "{what}: {} became {} and {}, the start was {}",
                named(tensors, at),
                a.parameters[at],
                b.parameters[at],
                start.parameters[at]
            ),
        )),
    }
}

fn same_bits(place: &str, tensors: &[Tensor], a: &Standing, b: &Standing) -> Result<(), End> {
    let differs = |what: &str| Err(refused(SAME, format!("{place}: {what}")));
    if other_bits(&a.weights, &b.weights).is_some() {
        return differs(&format!("weights are {:?} and {:?}", a.weights, b.weights));
    }
    if let Some(at) = other_bits(&a.parameters, &b.parameters) {
        return differs(&format!("{} became {} and {}", named(tensors, at), a.parameters[at], b.parameters[at]));
    }
    if a.state.len() != b.state.len() {
        return differs(&format!("vectors of state are {} and {}", a.state.len(), b.state.len()));
    }
    for (slot, (a, b)) in a.state.iter().zip(&b.state).enumerate() {
        if let Some(at) = other_bits(a, b) {
            return differs(&format!("state {slot} of {} became {} and {}", named(tensors, at), a[at], b[at]));
        }
    }
    if a.memo != b.memo { differs("the memos differ") } else { Ok(()) }
}

/// Value number `at` of the fragment, in words.
fn named(tensors: &[Tensor], at: usize) -> String {
    let mut before = 0;
    for tensor in tensors {
        let elements = tensor.elements() as usize;
        if at < before + elements {
            return format!("value {} of {}", at - before, tensor.name);
        }
        before += elements;
    }
    format!("value {at}")
}

fn measure(exam: &mut Examination<'_>) -> Result<(), End> {
    if exam.clock.is_none() {
        return Ok(());
    }
    let tensors =
        [Tensor { name: "measured".into(), shape: vec![1024, MEASURED_ELEMENTS / 1024], kind: TensorKind::Matrix }];
    let count = elements(&tensors);
    let offers = Offers::of((0..ISLANDS).map(|island| probe::noise(70 + island, count, 0.01)).collect(), false);
    let (policy, config) = (exam.policy, exam.config);
    let mut standing = Standing::new(noise(98, count, 0.1));
    exam.speed("gb_per_s", count * ISLANDS as usize * 4, || {
        let merged = standing.merged(policy, config, &tensors, &offers, 1);
        standing = answered(FINITE, || "merging for time".into(), merged)?.0;
        Ok(())
    })
}
