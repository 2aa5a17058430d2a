//! Linear maps: y = x·Wᵀ, with W as Hugging Face stores it, (outputs, inputs).
//!
//! Rows are independent in `forward` and `backward_input`; in `backward_weight` output channels are. Both are what the
//! callers split over threads.

use super::matrix::{Destination, Matrix, MatrixMut, multiply};

/// y (R, O) = or += x (R, I) · weight (O, I)ᵀ.
pub(crate) fn forward(y: &mut [f32], x: &[f32], weight: &[f32], inputs: usize, destination: Destination) {
    let (rows, outputs) = (x.len() / inputs, weight.len() / inputs);
    multiply(
        MatrixMut::new(y, rows, outputs),
        Matrix::new(x, rows, inputs),
        Matrix::new(weight, outputs, inputs).transposed(),
        destination,
    );
}

/// dx (R, I) = dy (R, O) · weight (O, I).
pub(crate) fn backward_input(dx: &mut [f32], dy: &[f32], weight: &[f32], inputs: usize) {
    let outputs = weight.len() / inputs;
    let rows = dy.len() / outputs;
    multiply(
        MatrixMut::new(dx, rows, inputs),
        Matrix::new(dy, rows, outputs),
        Matrix::new(weight, outputs, inputs),
        Destination::Overwrite,
    );
}

/// dweight (o, I) = or += dy[:, first..first + o]ᵀ · x: the gradient of `o` of the `outputs` rows of the weight.
/// dy is (R, O), x is (R, I).
pub(crate) fn backward_weight(
    dweight: &mut [f32],
    dy: &[f32],
    x: &[f32],
    outputs: usize,
    inputs: usize,
    first: usize,
    destination: Destination,
) {
    let rows = x.len() / inputs;
    let part = dweight.len() / inputs;
    multiply(
        MatrixMut::new(dweight, part, inputs),
        Matrix::strided(&dy[first..], rows, part, outputs).transposed(),
        Matrix::new(x, rows, inputs),
        destination,
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::finite_difference::{draws, hold, weighted};

    const ROWS: usize = 5;
    const INPUTS: usize = 7;
    const OUTPUTS: usize = 6;

    fn outputs(x: &[f32], weight: &[f32]) -> Vec<f32> {
        let mut y = vec![f32::NAN; ROWS * OUTPUTS];
        forward(&mut y, x, weight, INPUTS, Destination::Overwrite);
        y
    }

    #[test]
    fn gradients_are_those_of_differences() {
        let (x, weight, dy) = (draws(ROWS * INPUTS, 1), draws(OUTPUTS * INPUTS, 2), draws(ROWS * OUTPUTS, 3));
        let mut dx = vec![f32::NAN; x.len()];
        backward_input(&mut dx, &dy, &weight, INPUTS);
        hold("x", &x, &dx, |x| weighted(&outputs(x, &weight), &dy));
        // In two pieces of output channels, as threads do it.
        let mut dweight = vec![f32::NAN; weight.len()];
        let (low, high) = dweight.split_at_mut(4 * INPUTS);
        backward_weight(low, &dy, &x, OUTPUTS, INPUTS, 0, Destination::Overwrite);
        backward_weight(high, &dy, &x, OUTPUTS, INPUTS, 4, Destination::Overwrite);
        hold("weight", &weight, &dweight, |weight| weighted(&outputs(&x, weight), &dy));
    }

    #[test]
    fn adding_adds_to_what_is_there() {
        let (x, weight) = (draws(ROWS * INPUTS, 1), draws(OUTPUTS * INPUTS, 2));
        let mut y = vec![1.0; ROWS * OUTPUTS];
        forward(&mut y, &x, &weight, INPUTS, Destination::Add);
        for (sum, product) in y.iter().zip(outputs(&x, &weight)) {
            // One rounding of a sum of a few units.
            assert!((sum - (1.0 + product)).abs() < 1e-6);
        }
    }
}
