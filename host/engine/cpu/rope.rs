//! Rotary position embedding (Su et al., RoFormer, 2021) in Hugging Face's arrangement: channel i of a head turns
//! together with channel i + D/2, by the angle t·θ^(−2i/D) at position t.
//!
//! Backward is the rotation by the opposite angle.

use super::simd::dispatched;

/// Which way to turn.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    /// As the model does.
    Forward,
    /// Back, as gradients do.
    Backward,
}

/// Cosines and sines of all angles.
#[derive(Default)]
pub(crate) struct Rotation {
    /// (T, D/2)
    cosines: Vec<f32>,
    /// (T, D/2)
    sines: Vec<f32>,
    half: usize,
}

impl Rotation {
    /// Angles of positions 0..`positions`. Frequencies and angles are rounded to f32 as transformers does, so that
    /// both turn by the same angle; only the cosine itself is taken in f64.
    pub(crate) fn new(positions: usize, head_dim: usize, theta: f32) -> Rotation {
        let half = head_dim / 2;
        let frequencies: Vec<f32> =
            (0..half).map(|i| (1.0 / f64::from(theta).powf((2 * i) as f64 / head_dim as f64)) as f32).collect();
        let angles: Vec<f64> = (0..positions)
            .flat_map(|t| frequencies.iter().map(move |frequency| f64::from(t as f32 * frequency)))
            .collect();
        Rotation {
            cosines: angles.iter().map(|angle| angle.cos() as f32).collect(),
            sines: angles.iter().map(|angle| angle.sin() as f32).collect(),
            half,
        }
    }

    /// Number of positions.
    pub(crate) fn positions(&self) -> usize {
        self.cosines.len() / self.half.max(1)
    }

    /// Turns the first `heads` heads of each row of `x` (R, width), in place. Row r is at position
    /// (first + r) mod `context`.
    pub(crate) fn apply(&self, x: &mut [f32], width: usize, heads: usize, first: usize, context: usize, turn: Turn) {
        let half = self.half;
        for (row, x) in x.chunks_exact_mut(width).enumerate() {
            let start = (first + row) % context * half;
            let (cosines, sines) = (&self.cosines[start..start + half], &self.sines[start..start + half]);
            rotate(&mut x[..heads * 2 * half], cosines, sines, turn == Turn::Backward);
        }
    }
}

dispatched! {
    /// Turns heads (n·D) at one position; cosines and sines are (D/2).
    fn rotate(heads: &mut [f32], cosines: &[f32], sines: &[f32], back: bool) {
        let sign = if back { -1.0 } else { 1.0 };
        for head in heads.chunks_exact_mut(2 * cosines.len()) {
            let (low, high) = head.split_at_mut(cosines.len());
            for (((a, b), cosine), sine) in low.iter_mut().zip(high).zip(cosines).zip(sines) {
                let sine = sign * sine;
                (*a, *b) = (*a * cosine - *b * sine, *b * cosine + *a * sine);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::finite_difference::{draws, hold, weighted};

    #[test]
    fn channels_i_and_i_plus_half_turn_by_the_same_angle() {
        let rotation = Rotation::new(8, 4, 100.0);
        // One row at position 3 with one head to turn and one more to leave alone.
        let mut x = [1.0, 0.0, 0.0, 1.0, 5.0, 6.0, 7.0, 8.0];
        rotation.apply(&mut x, 8, 1, 3, 8, Turn::Forward);
        // Frequencies 1 and 100^(-1/2) = 0.1; f32 rounding only.
        let expected = [3f32.cos(), -(0.3f32.sin()), 3f32.sin(), 0.3f32.cos(), 5.0, 6.0, 7.0, 8.0];
        assert!(x.iter().zip(expected).all(|(x, expected)| (x - expected).abs() < 1e-6), "{x:?}");
    }

    #[test]
    fn positions_start_again_with_each_sequence() {
        let rotation = Rotation::new(4, 4, 100.0);
        let turned = |first| {
            let mut x = [1.0, 2.0, 3.0, 4.0];
            rotation.apply(&mut x, 4, 1, first, 4, Turn::Forward);
            x
        };
        assert_eq!(turned(1), turned(5));
        assert_ne!(turned(1), turned(2));
    }

    #[test]
    fn gradients_are_those_of_differences() {
        let rotation = Rotation::new(5, 6, 10_000.0);
        let (x, dy) = (draws(5 * 20, 1), draws(5 * 20, 2));
        let mut dx = dy.clone();
        rotation.apply(&mut dx, 20, 2, 0, 5, Turn::Backward);
        hold("x", &x, &dx, |x| {
            let mut y = x.to_vec();
            rotation.apply(&mut y, 20, 2, 0, 5, Turn::Forward);
            weighted(&y, &dy)
        });
    }
}
