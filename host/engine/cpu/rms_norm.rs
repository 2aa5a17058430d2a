//! RMSNorm: y = x · s · w with s = 1/√(mean(x²) + ε) (Zhang and Sennrich, 2019).
//!
//! Backward: with x̂ = x·s and g = dy·w, dx = s·(g − x̂·mean(g·x̂)) and dw = Σ dy·x̂ over rows.

use super::simd::{dispatched, dot};

dispatched! {
    /// y (R, C) and scale (R), from x (R, C) and weight (C).
    pub(crate) fn forward(y: &mut [f32], scale: &mut [f32], x: &[f32], weight: &[f32], epsilon: f32) {
        let channels = weight.len();
        for ((y, scale), x) in y.chunks_exact_mut(channels).zip(scale).zip(x.chunks_exact(channels)) {
            let s = 1.0 / (dot(x, x) / channels as f32 + epsilon).sqrt();
            *scale = s;
            for ((y, x), w) in y.iter_mut().zip(x).zip(weight) {
                *y = x * s * w;
            }
        }
    }

    /// dx (R, C) += the norm's part and dweight (C) += its part, from dy (R, C), which is spoilt: it holds
    /// dy · weight afterwards.
    pub(crate) fn backward(
        dx: &mut [f32],
        dweight: &mut [f32],
        dy: &mut [f32],
        x: &[f32],
        scale: &[f32],
        weight: &[f32],
    ) {
        let channels = weight.len();
        let rows = dx.chunks_exact_mut(channels).zip(dy.chunks_exact_mut(channels)).zip(x.chunks_exact(channels)).zip(scale);
        for (((dx, dy), x), &s) in rows {
            for (((dweight, dy), x), w) in dweight.iter_mut().zip(dy.iter_mut()).zip(x).zip(weight) {
                *dweight += *dy * (x * s);
                *dy *= w;
            }
            let mean = dot(dy, x) * s / channels as f32;
            for ((dx, g), x) in dx.iter_mut().zip(dy.iter()).zip(x) {
                *dx += s * (g - x * s * mean);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::finite_difference::{draws, hold, weighted};

    const EPSILON: f32 = 0.1;

    #[test]
    fn gradients_are_those_of_differences() {
        // 19 channels: one whole vector and a rest.
        let (rows, channels) = (4, 19);
        let (x, weight, dy) = (draws(rows * channels, 1), draws(channels, 2), draws(rows * channels, 3));
        let outputs = |x: &[f32], weight: &[f32]| {
            let (mut y, mut scale) = (vec![f32::NAN; x.len()], vec![f32::NAN; rows]);
            forward(&mut y, &mut scale, x, weight, EPSILON);
            (y, scale)
        };
        let (_, scale) = outputs(&x, &weight);
        let residual = draws(x.len(), 4);
        let (mut dx, mut dweight) = (residual.clone(), vec![0.0; channels]);
        backward(&mut dx, &mut dweight, &mut dy.clone(), &x, &scale, &weight);
        for (dx, residual) in dx.iter_mut().zip(residual) {
            *dx -= residual;
        }
        hold("x", &x, &dx, |x| weighted(&outputs(x, &weight).0, &dy));
        hold("weight", &weight, &dweight, |weight| weighted(&outputs(&x, weight).0, &dy));
    }

    #[test]
    fn the_root_mean_square_becomes_the_weight() {
        let (mut y, mut scale) = ([0.0; 4], [0.0; 2]);
        forward(&mut y, &mut scale, &[3.0, -3.0, 0.0, 2.0], &[2.0, 1.0], 0.0);
        // 0 and 2 have the root mean square √2; one rounding each for root, quotient and products.
        let expected = [2.0, -1.0, 0.0, 2.0 / 2.0f32.sqrt()];
        assert!(y.iter().zip(expected).all(|(y, expected)| (y - expected).abs() < 1e-6), "{y:?}");
    }
}
