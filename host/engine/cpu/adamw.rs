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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::finite_difference::draws;

    #[test]
    fn steps_are_those_of_the_published_rule_in_f64() {
        let (beta1, beta2, epsilon, rate, decay) = (0.9f64, 0.95f64, 1e-8f64, 1e-3f64, 0.1f64);
        // 37 values: two whole vectors and a rest.
        let start = draws(37, 1);
        let (mut p, mut m, mut v) = (start.clone(), vec![0.0; 37], vec![0.0; 37]);
        let mut reference: Vec<[f64; 3]> = start.iter().map(|p| [f64::from(*p), 0.0, 0.0]).collect();
        for t in 1..=20 {
            let g = draws(37, 100 + t as u64);
            let (correction1, correction2) = (1.0 - beta1.powi(t), 1.0 - beta2.powi(t));
            let step = Step {
                gradient_scale: 0.5,
                beta1: beta1 as f32,
                beta2: beta2 as f32,
                epsilon: epsilon as f32,
                keep: (1.0 - rate * decay) as f32,
                rate: (rate / correction1) as f32,
                root_correction: (1.0 / correction2.sqrt()) as f32,
            };
            update(&mut p, &mut m, &mut v, &g, step);
            for ([p, m, v], g) in reference.iter_mut().zip(&g) {
                let g = 0.5 * f64::from(*g);
                *m = beta1 * *m + (1.0 - beta1) * g;
                *v = beta2 * *v + (1.0 - beta2) * g * g;
                *p -= rate * decay * *p;
                *p -= rate * (*m / correction1) / ((*v / correction2).sqrt() + epsilon);
            }
        }
        for (p, reference) in p.iter().zip(&reference) {
            // Twenty roundings of values up to 3: at most 20 · 1.2e-7.
            assert!((f64::from(*p) - reference[0]).abs() < 2.4e-6, "{p} {}", reference[0]);
        }
    }
}
