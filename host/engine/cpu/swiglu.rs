//! SwiGLU: y = silu(gate) · up, silu(g) = g·σ(g) (Shazeer, "GLU variants improve Transformer", 2020).
//!
//! Backward: dup = dy·silu(g), dgate = dy·up·σ(g)·(1 + g·(1 − σ(g))).

use super::exponential::sigmoid;
use super::simd::dispatched;

dispatched! {
    /// y (R, F) from gate_up (R, 2·F), each row the gate's channels and then up's.
    pub(crate) fn forward(y: &mut [f32], gate_up: &[f32], width: usize) {
        for (y, gate_up) in y.chunks_exact_mut(width).zip(gate_up.chunks_exact(2 * width)) {
            let (gate, up) = gate_up.split_at(width);
            for ((y, g), u) in y.iter_mut().zip(gate).zip(up) {
                *y = g * sigmoid(*g) * u;
            }
        }
    }

    /// dgate_up (R, 2·F) from dy (R, F) and gate_up (R, 2·F).
    pub(crate) fn backward(dgate_up: &mut [f32], dy: &[f32], gate_up: &[f32], width: usize) {
        let rows = dgate_up.chunks_exact_mut(2 * width).zip(dy.chunks_exact(width)).zip(gate_up.chunks_exact(2 * width));
        for ((dgate_up, dy), gate_up) in rows {
            let (dgate, dup) = dgate_up.split_at_mut(width);
            let (gate, up) = gate_up.split_at(width);
            for ((((dgate, dup), dy), g), u) in dgate.iter_mut().zip(dup).zip(dy).zip(gate).zip(up) {
                let s = sigmoid(*g);
                let silu = g * s;
                *dup = dy * silu;
                // σ + silu·(1 − σ): the same as σ·(1 + g·(1 − σ)), one product less.
                *dgate = dy * u * (s + silu * (1.0 - s));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::finite_difference::{draws, hold, weighted};

    #[test]
    fn gradients_are_those_of_differences() {
        // 21 channels: one whole vector and a rest.
        let (rows, width) = (3, 21);
        let (gate_up, dy) = (draws(rows * 2 * width, 1), draws(rows * width, 2));
        let mut dgate_up = vec![f32::NAN; gate_up.len()];
        backward(&mut dgate_up, &dy, &gate_up, width);
        hold("gate and up", &gate_up, &dgate_up, |gate_up| {
            let mut y = vec![f32::NAN; rows * width];
            forward(&mut y, gate_up, width);
            weighted(&y, &dy)
        });
    }

    #[test]
    fn extreme_gates_stay_finite() {
        let (mut y, mut dgate_up) = ([0.0; 2], [0.0; 4]);
        let gate_up = [1e30, -1e30, 1.0, 1.0];
        forward(&mut y, &gate_up, 2);
        backward(&mut dgate_up, &[1.0, 1.0], &gate_up, 2);
        assert_eq!(y[0], 1e30);
        // −1e30 times the smallest sigmoid; nothing that a residual stream would feel.
        assert!(y[1].abs() < 1e-7);
        assert!(dgate_up.iter().all(|g| g.is_finite()), "{dgate_up:?}");
    }
}
