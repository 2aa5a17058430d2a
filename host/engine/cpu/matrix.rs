//! Matrix products: borrowed views with strides, and one call into the `gemm` crate.
//!
//! Every product runs on the calling thread. Parallel work is made of products of fixed pieces, so the bits of a
//! result depend on shapes alone; the sum over the inner dimension is never split between threads.

// gemm takes raw pointers; `multiply` checks that all that it touches lies inside the slices.
#![allow(unsafe_code)]

/// A read-only matrix inside a slice.
#[derive(Clone, Copy)]
pub(crate) struct Matrix<'a> {
    data: &'a [f32],
    rows: usize,
    columns: usize,
    row_stride: usize,
    column_stride: usize,
}

/// A matrix inside a slice, to be written; its rows are contiguous.
pub(crate) struct MatrixMut<'a> {
    data: &'a mut [f32],
    rows: usize,
    columns: usize,
    row_stride: usize,
}

/// What becomes of the values that the destination holds.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Destination {
    /// They are replaced.
    Overwrite,
    /// The product is added to them.
    Add,
}

impl<'a> Matrix<'a> {
    /// `rows` rows of `columns` values, without gaps.
    pub(crate) fn new(data: &'a [f32], rows: usize, columns: usize) -> Matrix<'a> {
        Matrix::strided(data, rows, columns, columns)
    }

    /// Rows that start every `row_stride` values.
    pub(crate) fn strided(data: &'a [f32], rows: usize, columns: usize, row_stride: usize) -> Matrix<'a> {
        check(data.len(), rows, columns, row_stride);
        Matrix { data, rows, columns, row_stride, column_stride: 1 }
    }

    /// The same values with rows and columns exchanged; nothing moves.
    pub(crate) fn transposed(self) -> Matrix<'a> {
        Matrix {
            rows: self.columns,
            columns: self.rows,
            row_stride: self.column_stride,
            column_stride: self.row_stride,
            ..self
        }
    }
}

impl<'a> MatrixMut<'a> {
    /// `rows` rows of `columns` values, without gaps.
    pub(crate) fn new(data: &'a mut [f32], rows: usize, columns: usize) -> MatrixMut<'a> {
        MatrixMut::strided(data, rows, columns, columns)
    }

    /// Rows that start every `row_stride` values.
    pub(crate) fn strided(data: &'a mut [f32], rows: usize, columns: usize, row_stride: usize) -> MatrixMut<'a> {
        check(data.len(), rows, columns, row_stride);
        MatrixMut { data, rows, columns, row_stride }
    }
}

/// A view must not reach beyond its slice.
fn check(length: usize, rows: usize, columns: usize, row_stride: usize) {
    let end = if rows == 0 { 0 } else { (rows - 1) * row_stride + columns };
    assert!(
        end <= length && columns <= row_stride,
        "a view of {rows}x{columns}, stride {row_stride}, in {length} values"
    );
}

/// out = a · b, or out += a · b.
pub(crate) fn multiply(out: MatrixMut, a: Matrix, b: Matrix, destination: Destination) {
    assert_eq!((out.rows, out.columns), (a.rows, b.columns), "the product's shape is not the destination's");
    assert_eq!(a.columns, b.rows, "the factors' inner dimensions differ");
    // SAFETY: each view was checked when made: row i, column j lies inside its slice for all i, j of its shape
    // (transposing exchanges both), and the shapes fit. The slices are borrowed, `out` exclusively, for the call.
    unsafe {
        gemm::gemm(
            out.rows,
            out.columns,
            a.columns,
            out.data.as_mut_ptr(),
            1,
            out.row_stride as isize,
            destination == Destination::Add,
            a.data.as_ptr(),
            a.column_stride as isize,
            a.row_stride as isize,
            b.data.as_ptr(),
            b.column_stride as isize,
            b.row_stride as isize,
            1.0,
            1.0,
            false,
            false,
            false,
            gemm::Parallelism::None,
        );
    }
}
