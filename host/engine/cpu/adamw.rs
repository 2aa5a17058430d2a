//! AdamW (Loshchilov and Hutter, 2019) over ranges of the flat arena, gradient clipping fused in.

use super::simd::dispatched;

/// The numbers of one step, the same for all values of a range.
#[derive(Clone, Copy)]
pub(crate) struct Step {
    /// Factor on the gradient: clipping.
    pub(crate) gradient_scale: f32,
    pub(crate) beta1: f32,
    pub(crate) beta2: f32,
    pub(crate) epsilon: f32,
    /// 1 − learning rate · weight decay.
    pub(crate) keep: f32,
    /// learning rate / (1 − β₁ᵗ).
    pub(crate) rate: f32,
    /// 1/√(1 − β₂ᵗ).
    pub(crate) root_correction: f32,
}

dispatched! {
    /// One step on parameters p, moments m and v, with gradient g: all of one length.
    pub(crate) fn update(p: &mut [f32], m: &mut [f32], v: &mut [f32], g: &[f32], step: Step) {
        let Step { gradient_scale, beta1, beta2, epsilon, keep, rate, root_correction } = step;
        let (keep1, keep2) = (1.0 - beta1, 1.0 - beta2);
        for (((p, m), v), g) in p.iter_mut().zip(m).zip(v).zip(g) {
            let g = g * gradient_scale;
            *m = beta1 * *m + keep1 * g;
            *v = beta2 * *v + keep2 * (g * g);
            *p = keep * *p - rate * *m / ((*v).sqrt() * root_correction + epsilon);
        }
    }
}
