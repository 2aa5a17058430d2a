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
