//! eˣ for whole arrays without a call a value: range reduction and a polynomial that LLVM vectorises.
//!
//! x = n·ln 2 + r with |r| ≤ ln 2 / 2, eˣ = 2ⁿ·eʳ. eʳ is the Taylor polynomial of degree 7, whose remainder is
//! below r⁸/8! ≤ 5.2e-9, a twentieth of an f32's half unit; what is left is rounding, at most 2 units in the last
//! place in all (tested over the whole range).

/// Below this the result would be subnormal, and is the smallest normal number instead.
const LOWEST: f32 = -87.336_54;
/// Above this the result would overflow; it is held at about 3.4e38.
const HIGHEST: f32 = 88.722_83;

/// eˣ with at most 2 units in the last place of error; arguments are clamped to [-87.3, 88.7], NaN stays NaN.
/// For use inside `dispatched!`.
#[inline(always)]
pub(crate) fn exponential(x: f32) -> f32 {
    // Comparisons instead of min and max: those would turn NaN into a number and hide a diverged model.
    let x = if x < LOWEST { LOWEST } else { x };
    let x = if x > HIGHEST { HIGHEST } else { x };
    // Adding 1.5·2²³ leaves the nearest integer in the low bits of the mantissa.
    const MAGIC: f32 = 12_582_912.0;
    let shifted = x * std::f32::consts::LOG2_E + MAGIC;
    let n = shifted - MAGIC;
    // ln 2 in two parts; the first has 9 significant bits, so n times it is exact (Cody and Waite).
    let r = x - n * 0.693_359_4 - n * -2.121_944_4e-4;
    let even = 1.0 / 5_040.0;
    let p = even * r + 1.0 / 720.0;
    let p = p * r + 1.0 / 120.0;
    let p = p * r + 1.0 / 24.0;
    let p = p * r + 1.0 / 6.0;
    let p = p * r + 0.5;
    let p = p * r + 1.0;
    let p = p * r + 1.0;
    // 2ⁿ in two halves, since n = 128 alone would not fit an exponent.
    let n = shifted.to_bits().wrapping_sub(MAGIC.to_bits()) as i32;
    let half = n >> 1;
    let power = |n: i32| f32::from_bits(((n + 127) << 23) as u32);
    p * power(half) * power(n - half)
}

/// 1 / (1 + e⁻ˣ). For use inside `dispatched!`.
#[inline(always)]
pub(crate) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exponential(-x))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_within_two_units_in_the_last_place() {
        let mut worst = 0.0f64;
        for step in 0..2_000_000 {
            let x = -87.3 + 176.0 * step as f32 / 2_000_000.0;
            let exact = f64::from(x).exp();
            let error = ((f64::from(exponential(x)) - exact) / exact).abs();
            worst = worst.max(error);
        }
        // Two units in the last place of a number just above a power of two: 2·2⁻²³.
        assert!(worst < 2.4e-7, "{worst}");
    }

    #[test]
    fn extremes_are_finite_and_nan_stays_nan() {
        assert!(exponential(f32::NEG_INFINITY) < 1.2e-38);
        assert!(exponential(f32::INFINITY) > 3.3e38 && exponential(f32::INFINITY).is_finite());
        assert!(exponential(f32::NAN).is_nan());
        assert_eq!(exponential(0.0), 1.0);
        assert_eq!(sigmoid(0.0), 0.5);
        assert!(sigmoid(-100.0) < 1e-37 && sigmoid(100.0) == 1.0);
    }
}
