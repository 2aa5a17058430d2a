//! Gradients by differences, against which the tests hold every op's backward.
//!
//! Ops compute in f32, so a difference quotient carries their rounding divided by the step. The five-point formula
//! allows a large step: its truncation error is h⁴·f⁽⁵⁾/30.

use crate::random::Random;

/// The step. With values and derivatives near 1, truncation is some 1e-8, and rounding some 6e-8·√n/h ≈ 1e-5 for sums of
/// n ≈ 100 outputs.
const STEP: f32 = 0.03;
/// Share of the largest gradient by which one may differ: ten times the rounding estimated above and more, ten times
/// less than any wrong factor or sign makes.
const TOLERANCE: f64 = 1e-3;

/// `count` draws with mean 0 and standard deviation 1.
pub(crate) fn draws(count: usize, seed: u64) -> Vec<f32> {
    let mut random = Random::new(seed, 0);
    (0..count).map(|_| random.normal()).collect()
}

/// Σ a·b in f64: a scalar loss of an op's outputs.
pub(crate) fn weighted(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
}

/// Holds `gradient` of `loss` at `x` to differences, value by value.
pub(crate) fn hold(what: &str, x: &[f32], gradient: &[f32], mut loss: impl FnMut(&[f32]) -> f64) {
    assert_eq!(x.len(), gradient.len(), "{what}");
    let largest = gradient.iter().fold(0.0, |top: f32, g| top.max(g.abs()));
    assert!(largest > 0.0, "{what}: the gradient is zero everywhere");
    let mut moved = x.to_vec();
    for (place, &analytic) in gradient.iter().enumerate() {
        let mut at = |shift: f32| {
            moved[place] = x[place] + shift * STEP;
            loss(&moved)
        };
        let difference = 8.0 * (at(1.0) - at(-1.0)) - (at(2.0) - at(-2.0));
        moved[place] = x[place];
        // The step that was really taken, after rounding to f32.
        let step = f64::from(x[place] + STEP) - f64::from(x[place] - STEP);
        let numeric = difference / (6.0 * step);
        let apart = (numeric - f64::from(analytic)).abs();
        assert!(
            apart < TOLERANCE * f64::from(largest),
            "{what}[{place}]: gradient {analytic}, by differences {numeric}, largest {largest}"
        );
    }
}
