//! Element-wise kernels in the widest vectors that the processor has, chosen at run time.
//!
//! The binary is built for the oldest x86-64, so a hot loop is compiled three times, for AVX-512, AVX2 and the baseline,
//! by [`dispatched!`]. Loops are written so that LLVM vectorises them; sums run in [`LANES`] fixed lanes and multiply-add
//! is never contracted, so all three versions give the same bits. (Matrix products, which are not made here, do differ
//! between kinds of processor.)

// The only unsafe step is to call a function compiled for features that were just detected.
#![allow(unsafe_code)]

/// Partial sums that a reduction keeps side by side: four 512-bit registers' worth would be faster on long rows,
/// one keeps short rows (64 values) efficient.
pub(crate) const LANES: usize = 16;

/// The vector extensions for which kernels are compiled beside the baseline.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    /// AVX-512 F, VL, BW, DQ.
    Wide,
    /// AVX2.
    Middle,
    /// What every processor of the architecture has.
    Baseline,
}

/// The best level of this processor. Detection is cached by the standard library: a few loads.
#[cfg(target_arch = "x86_64")]
#[inline]
pub(crate) fn level() -> Level {
    #[cfg(test)]
    if let Some(forced) = tests::FORCED.get() {
        return forced;
    }
    if std::arch::is_x86_feature_detected!("avx512f")
        && std::arch::is_x86_feature_detected!("avx512vl")
        && std::arch::is_x86_feature_detected!("avx512bw")
        && std::arch::is_x86_feature_detected!("avx512dq")
    {
        Level::Wide
    } else if std::arch::is_x86_feature_detected!("avx2") {
        Level::Middle
    } else {
        Level::Baseline
    }
}

/// Defines functions whose bodies are compiled for each [`Level`]; a call picks the best one. Everything that a body
/// calls must be `#[inline(always)]` or a small standard function, or it will run at the baseline.
macro_rules! dispatched {
    ($($(#[$attribute:meta])* $visibility:vis fn $name:ident($($argument:ident: $type:ty),* $(,)?) $(-> $result:ty)? $body:block)+) => {$(
        $(#[$attribute])*
        // Kernels take all that they work on: they are the innermost loops.
        #[allow(clippy::too_many_arguments)]
        $visibility fn $name($($argument: $type),*) $(-> $result)? {
            #[inline(always)]
            #[allow(clippy::too_many_arguments)]
            fn body($($argument: $type),*) $(-> $result)? $body
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq")]
                #[allow(clippy::too_many_arguments)]
                fn wide($($argument: $type),*) $(-> $result)? { body($($argument),*) }
                #[target_feature(enable = "avx2")]
                #[allow(clippy::too_many_arguments)]
                fn middle($($argument: $type),*) $(-> $result)? { body($($argument),*) }
                #[allow(unsafe_code)]
                match $crate::cpu::simd::level() {
                    // SAFETY: this level was detected, so the processor has the features that `wide` is compiled for.
                    $crate::cpu::simd::Level::Wide => return unsafe { wide($($argument),*) },
                    // SAFETY: as above, for `middle`.
                    $crate::cpu::simd::Level::Middle => return unsafe { middle($($argument),*) },
                    $crate::cpu::simd::Level::Baseline => {}
                }
            }
            body($($argument),*)
        }
    )+};
}
pub(crate) use dispatched;

/// Adds the lanes of partial sums pairwise, in one fixed order.
#[inline(always)]
fn fold(mut lanes: [f32; LANES], join: impl Fn(f32, f32) -> f32) -> f32 {
    let mut width = LANES / 2;
    while width > 0 {
        for lane in 0..width {
            lanes[lane] = join(lanes[lane], lanes[lane + width]);
        }
        width /= 2;
    }
    lanes[0]
}

/// Σ a·b, for use inside [`dispatched!`].
#[inline(always)]
pub(crate) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let (a, a_rest) = a.as_chunks::<LANES>();
    let (b, b_rest) = b.as_chunks::<LANES>();
    let mut sums = [0.0; LANES];
    for (a, b) in a.iter().zip(b) {
        for lane in 0..LANES {
            sums[lane] += a[lane] * b[lane];
        }
    }
    let rest: f32 = a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum();
    fold(sums, |x, y| x + y) + rest
}

/// Σ a, for use inside [`dispatched!`].
#[inline(always)]
pub(crate) fn sum(a: &[f32]) -> f32 {
    let (chunks, rest) = a.as_chunks::<LANES>();
    let mut sums = [0.0; LANES];
    for chunk in chunks {
        for lane in 0..LANES {
            sums[lane] += chunk[lane];
        }
    }
    fold(sums, |x, y| x + y) + rest.iter().sum::<f32>()
}

/// The largest value; NaN are passed over. For use inside [`dispatched!`].
#[inline(always)]
pub(crate) fn maximum(a: &[f32]) -> f32 {
    let larger = |x: f32, y: f32| if y > x { y } else { x };
    let (chunks, rest) = a.as_chunks::<LANES>();
    let mut tops = [f32::NEG_INFINITY; LANES];
    for chunk in chunks {
        for lane in 0..LANES {
            tops[lane] = larger(tops[lane], chunk[lane]);
        }
    }
    rest.iter().fold(fold(tops, larger), |x, &y| larger(x, y))
}

dispatched! {
    /// Σ a² in f32 lanes: for at most some ten thousand values, whose sums are then added in f64.
    pub(crate) fn sum_of_squares(a: &[f32]) -> f32 {
        dot(a, a)
    }

    /// to += from.
    pub(crate) fn add(to: &mut [f32], from: &[f32]) {
        for (to, from) in to.iter_mut().zip(from) {
            *to += from;
        }
    }
}

#[cfg(test)]
mod tests {
    #[cfg(target_arch = "x86_64")]
    use std::cell::Cell;

    use super::*;
    use crate::cpu::finite_difference::draws;
    #[cfg(target_arch = "x86_64")]
    use crate::cpu::{cross_entropy, rms_norm, swiglu};

    #[cfg(target_arch = "x86_64")]
    thread_local! {
        /// A level to use instead of the best one.
        pub(super) static FORCED: Cell<Option<Level>> = const { Cell::new(None) };
    }

    #[test]
    fn sums_and_maxima_of_any_length_are_right() {
        for length in 0..70 {
            let a = draws(length, 5);
            let exact: f64 = a.iter().map(|a| f64::from(*a).powi(2)).sum();
            // At most 70 roundings of values below 100.
            assert!((f64::from(sum_of_squares(&a)) - exact).abs() < 1e-4);
            assert!((f64::from(sum(&a)) - a.iter().map(|a| f64::from(*a)).sum::<f64>()).abs() < 1e-4);
            assert_eq!(maximum(&a), a.iter().copied().fold(f32::NEG_INFINITY, f32::max));
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn every_level_gives_the_same_bits() {
        let (rows, width) = (3, 53);
        let run = |level| {
            FORCED.set(Some(level));
            let (x, weight) = (draws(rows * width, 1), draws(width, 2));
            let (mut y, mut scale, mut dweight) = (x.clone(), vec![0.0; rows], weight.clone());
            rms_norm::forward(&mut y, &mut scale, &x, &weight, 1e-5);
            let (mut dx, mut dy) = (x.clone(), y.clone());
            rms_norm::backward(&mut dx, &mut dweight, &mut dy, &x, &scale, &weight);
            let (mut losses, mut logits) = (vec![0.0; rows], x.clone());
            cross_entropy::forward_backward(&mut losses, &mut logits, &[1, 2, 52], width, 1.0);
            let (gate_up, mut product) = (draws(rows * 2 * width, 3), x.clone());
            let mut dgate_up = gate_up.clone();
            swiglu::forward(&mut product, &gate_up, width);
            swiglu::backward(&mut dgate_up, &product, &gate_up, width);
            FORCED.set(None);
            [y, scale, dx, dweight, losses, logits, product, dgate_up]
                .map(|v| v.iter().map(|x| x.to_bits()).collect::<Vec<_>>())
        };
        let baseline = run(Level::Baseline);
        // Levels that this processor lacks cannot be run.
        if level() != Level::Baseline {
            assert_eq!(baseline, run(Level::Middle));
        }
        if level() == Level::Wide {
            assert_eq!(baseline, run(Level::Wide));
        }
    }
}
