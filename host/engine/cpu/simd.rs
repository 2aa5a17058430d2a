//! Element-wise kernels in the widest vectors that the processor has, chosen at run time.
//!
//! The binary is built for the oldest x86-64, so a hot loop is compiled three times, for AVX-512, AVX2 and the baseline,
//! by [`dispatched!`]. Loops are written so that LLVM vectorises them; sums run in [`LANES`] fixed lanes and multiply-add
//! is never contracted, so all three versions give the same bits.

// The only unsafe step is to call a function compiled for features that were just detected.
#![allow(unsafe_code)]

/// Partial sums that a reduction keeps side by side: four 512-bit registers' worth would be faster on long rows,
/// one keeps short rows (64 values) efficient.
pub(crate) const LANES: usize = 16;

/// The vector extensions for which kernels are compiled.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Level {
    /// AVX-512 F, VL, BW, DQ.
    #[cfg(target_arch = "x86_64")]
    Wide,
    /// AVX2.
    #[cfg(target_arch = "x86_64")]
    Middle,
    /// Whatever every processor of the architecture has.
    Baseline,
}

/// The best level of this processor. Detection is cached by the standard library: a few loads.
#[inline]
pub(crate) fn level() -> Level {
    #[cfg(target_arch = "x86_64")]
    {
        if std::arch::is_x86_feature_detected!("avx512f")
            && std::arch::is_x86_feature_detected!("avx512vl")
            && std::arch::is_x86_feature_detected!("avx512bw")
            && std::arch::is_x86_feature_detected!("avx512dq")
        {
            return Level::Wide;
        }
        if std::arch::is_x86_feature_detected!("avx2") {
            return Level::Middle;
        }
    }
    Level::Baseline
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
