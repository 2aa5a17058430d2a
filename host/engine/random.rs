//! Seeded random numbers, the same on every machine: integers and exactly rounded f64 arithmetic only, no libm.

/// SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014).
pub(crate) struct Random {
    state: u64,
}

impl Random {
    /// Stream number `stream` of `seed`; streams of one seed are unrelated.
    pub(crate) fn new(seed: u64, stream: u64) -> Random {
        let mut random = Random { state: seed };
        random.state = random.next().wrapping_add(stream);
        random.state = random.next();
        random
    }

    /// 64 uniform bits.
    pub(crate) fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in [0, 1), a multiple of 2⁻⁵³.
    pub(crate) fn uniform(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Mean 0, variance 1: the sum of twelve uniforms (Irwin and Hall), less 6. Close to normal within ±3 and never
    /// beyond ±6; chosen over Box–Muller because it needs no logarithm, whose last bit differs between platforms,
    /// and two islands that draw the same model must agree in every bit.
    pub(crate) fn normal(&mut self) -> f32 {
        let sum: u64 = (0..6).map(|_| self.next()).map(|bits| (bits >> 32) + (bits & 0xffff_ffff)).sum();
        // Twelve times the half step that the integer parts lost, then exact: the sum is below 2³⁶.
        ((sum as f64 + 6.0) / (1u64 << 32) as f64 - 6.0) as f32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normal_has_mean_zero_and_variance_one() {
        let mut random = Random::new(7, 0);
        let count = 200_000;
        let draws: Vec<f64> = (0..count).map(|_| f64::from(random.normal())).collect();
        let mean = draws.iter().sum::<f64>() / f64::from(count);
        let variance = draws.iter().map(|x| x * x).sum::<f64>() / f64::from(count) - mean * mean;
        // Five standard errors: 5/√200000 = 0.011 for the mean, √2 times that for the variance.
        assert!(mean.abs() < 0.011, "{mean}");
        assert!((variance - 1.0).abs() < 0.016, "{variance}");
    }

    #[test]
    fn streams_of_one_seed_differ_and_repeat() {
        let first = |stream| Random::new(1, stream).next();
        assert_eq!(first(3), first(3));
        assert_ne!(first(3), first(4));
        assert_ne!(first(0), Random::new(2, 0).next());
    }
}
