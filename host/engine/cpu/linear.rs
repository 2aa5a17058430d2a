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
