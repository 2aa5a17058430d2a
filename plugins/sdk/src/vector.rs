//! Sums, norms and inner products over the contributions of a chunk.
//!
//! Everything adds up in a fixed order: contributions in the order given, values in [`LANES`] interleaved lanes that are folded
//! pairwise. Same input, same bits, whatever machine or number of threads.

use crate::LANES;

/// Σₘ coefficients\[m\] · values\[m\]\[start ..\], for [`LANES`] values from `start`. Added up in the order of the contributions.
///
/// Four at a time: what a turn of the loop hands to the next must have canonical NaNs, which costs more than the sum.
#[inline(always)]
pub fn weighted_lanes(coefficients: &[f32], values: &[Vec<f32>], start: usize) -> [f32; LANES] {
    let mut sum = [0.0; LANES];
    let (coefficients, last_coefficients) = coefficients.as_chunks::<4>();
    let (values, last_values) = values.as_chunks::<4>();
    for (coefficients, values) in coefficients.iter().zip(values) {
        add_weighted(&mut sum, coefficients, values, start);
    }
    match last_coefficients {
        &[a] => add_weighted(&mut sum, &[a], first(last_values), start),
        &[a, b] => add_weighted(&mut sum, &[a, b], first(last_values), start),
        &[a, b, c] => add_weighted(&mut sum, &[a, b, c], first(last_values), start),
        _ => {}
    }
    sum
}

/// Adds coefficients · values of `N` contributions.
#[inline(always)]
fn add_weighted<const N: usize>(sum: &mut [f32; LANES], coefficients: &[f32; N], values: &[Vec<f32>; N], start: usize) {
    let values: [&[f32; LANES]; N] = core::array::from_fn(|index| lanes(&values[index], start));
    for lane in 0..LANES {
        let mut total = sum[lane];
        for index in 0..N {
            total += coefficients[index] * values[index][lane];
        }
        sum[lane] = total;
    }
}

/// The first `N`.
#[inline(always)]
fn first<T, const N: usize>(list: &[T]) -> &[T; N] {
    list.first_chunk().expect("as many values as coefficients")
}

/// Σₘ coefficients\[m\] · values\[m\]\[index\].
#[inline(always)]
pub fn weighted_value(coefficients: &[f32], values: &[Vec<f32>], index: usize) -> f32 {
    let mut sum = 0.0;
    for (&coefficient, values) in coefficients.iter().zip(values) {
        sum += coefficient * values[index];
    }
    sum
}

/// `out` = Σₘ coefficients\[m\] · values\[m\]. All lists as long as `out`.
pub fn weighted_sum(coefficients: &[f32], values: &[Vec<f32>], out: &mut [f32]) {
    let mut start = 0;
    while start + LANES <= out.len() {
        let sum = weighted_lanes(coefficients, values, start);
        out[start..start + LANES].copy_from_slice(&sum);
        start += LANES;
    }
    for (index, out) in out.iter_mut().enumerate().skip(start) {
        *out = weighted_value(coefficients, values, index);
    }
}

/// Inner product in f64: exact products, so that neither squares of huge values overflow nor those of tiny ones vanish.
pub fn dot(a: &[f32], b: &[f32]) -> f64 {
    let length = a.len().min(b.len());
    let mut sums = [0.0_f64; LANES];
    let mut start = 0;
    while start + LANES <= length {
        let (x, y): (&[f32; LANES], &[f32; LANES]) = (lanes(a, start), lanes(b, start));
        for lane in 0..LANES {
            sums[lane] += f64::from(x[lane]) * f64::from(y[lane]);
        }
        start += LANES;
    }
    let mut sum = fold(sums);
    for index in start..length {
        sum += f64::from(a[index]) * f64::from(b[index]);
    }
    sum
}

/// ‖Σₘ coefficients\[m\] · values\[m\]‖² in f64, so that neither short contributions with large coefficients nor their squares leave its range.
pub fn norm_squared_of_sum(coefficients: &[f64], values: &[Vec<f32>]) -> f64 {
    let length = values.iter().map(Vec::len).min().unwrap_or(0);
    let mut squares = [0.0_f64; LANES];
    let mut start = 0;
    while start + LANES <= length {
        let mut sums = [0.0_f64; LANES];
        for (coefficient, values) in coefficients.iter().zip(values) {
            let values: &[f32; LANES] = lanes(values, start);
            for lane in 0..LANES {
                sums[lane] += coefficient * f64::from(values[lane]);
            }
        }
        for lane in 0..LANES {
            squares[lane] += sums[lane] * sums[lane];
        }
        start += LANES;
    }
    let mut total = fold(squares);
    for index in start..length {
        let mut sum = 0.0;
        for (coefficient, values) in coefficients.iter().zip(values) {
            sum += coefficient * f64::from(values[index]);
        }
        total += sum * sum;
    }
    total
}

/// Blocks of [`LANES`] values whose products [`add_run`] adds up in f32.
const RUN: usize = 16;

/// `sum` and the inner product of a run of up to [`RUN`] blocks, a third of the cost of [`dot`]: products and sums in f32, only their total in f64. Its error is below
/// 2^-20 of Σ |a·b|, unless products leave the range of f32; see [`Gram::of`] for how to tell.
#[inline(always)]
fn add_run(mut sum: f64, a: &[f32], b: &[f32]) -> f64 {
    let mut sums = [0.0_f32; LANES];
    let (a, a_tail) = a.as_chunks::<LANES>();
    let (b, b_tail) = b.as_chunks::<LANES>();
    let (a_fours, a_rest) = a.as_chunks::<4>();
    let (b_fours, b_rest) = b.as_chunks::<4>();
    for (x, y) in a_fours.iter().zip(b_fours) {
        add_products(&mut sums, x, y);
    }
    for (x, y) in a_rest.iter().zip(b_rest) {
        add_products(&mut sums, &[*x], &[*y]);
    }
    sum += fold(sums.map(f64::from));
    for (x, y) in a_tail.iter().zip(b_tail) {
        sum += f64::from(*x) * f64::from(*y);
    }
    sum
}

/// Adds the products of `N` blocks, one after the other.
#[inline(always)]
fn add_products<const N: usize>(sums: &mut [f32; LANES], x: &[[f32; LANES]; N], y: &[[f32; LANES]; N]) {
    for lane in 0..LANES {
        let mut total = sums[lane];
        for block in 0..N {
            total += x[block][lane] * y[block][lane];
        }
        sums[lane] = total;
    }
}

/// Squared L2 norm in f64.
pub fn norm_squared(a: &[f32]) -> f64 {
    dot(a, a)
}

/// The inner products of all pairs of contributions: an upper triangle, row by row, (0,0) (0,1) … (1,1) ….
#[derive(Debug, Clone, PartialEq)]
pub struct Gram {
    count: usize,
    products: Vec<f64>,
}

impl Gram {
    /// All zero, for `count` contributions.
    pub fn zero(count: usize) -> Gram {
        Gram { count, products: vec![0.0; count * (count + 1) / 2] }
    }

    /// Of one chunk. Contributions whose squares might leave the range of f32 (their own sum tells) are handled in f64 throughout.
    ///
    /// Run by run, all pairs: so each run of values is in the nearest cache for all its pairs.
    pub fn of(values: &[Vec<f32>]) -> Gram {
        let mut gram = Gram::zero(values.len());
        let length = values.iter().map(Vec::len).min().unwrap_or_default();
        for start in (0..length).step_by(RUN * LANES) {
            let end = length.min(start + RUN * LANES);
            let mut product = gram.products.iter_mut();
            for (a, list) in values.iter().enumerate() {
                for (other, product) in values[a..].iter().zip(&mut product) {
                    *product = add_run(*product, &list[start..end], &other[start..end]);
                }
            }
        }
        let ordinary: Vec<bool> =
            (0..values.len()).map(|index| (1e-20..1e30).contains(&gram.product(index, index))).collect();
        let mut product = gram.products.iter_mut();
        for (a, list) in values.iter().enumerate() {
            for (b, product) in (a..values.len()).zip(&mut product) {
                if !(ordinary[a] && ordinary[b]) {
                    *product = dot(list, &values[b]);
                }
            }
        }
        gram
    }

    /// Inner product of contributions `a` and `b`.
    pub fn product(&self, a: usize, b: usize) -> f64 {
        let (low, high) = if a < b { (a, b) } else { (b, a) };
        self.products[low * self.count - low * (low + 1) / 2 + high]
    }

    /// Norm of contribution `a`.
    pub fn norm(&self, a: usize) -> f64 {
        self.product(a, a).sqrt()
    }

    /// Norm of Σₘ coefficients\[m\] · vₘ, never below zero.
    pub fn norm_of_sum(&self, coefficients: &[f64]) -> f64 {
        let mut squared = 0.0;
        for (a, x) in coefficients.iter().enumerate() {
            for (b, y) in coefficients.iter().enumerate() {
                squared += x * y * self.product(a, b);
            }
        }
        squared.max(0.0).sqrt()
    }

    /// The products as bytes: f64, little-endian.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.products.iter().flat_map(|product| product.to_le_bytes()).collect()
    }

    /// Adds another chunk's products, as [`to_bytes`](Gram::to_bytes) wrote them.
    ///
    /// Errors: not the bytes of as many contributions.
    pub fn add_bytes(&mut self, bytes: &[u8]) -> Result<(), String> {
        if bytes.len() != self.products.len() * 8 {
            return Err("an observed blob is not a Gram matrix of these contributions".into());
        }
        for (product, bytes) in self.products.iter_mut().zip(bytes.chunks_exact(8)) {
            let mut word = [0; 8];
            word.copy_from_slice(bytes);
            *product += f64::from_le_bytes(word);
        }
        Ok(())
    }
}

/// [`LANES`] values from `start`.
#[inline(always)]
fn lanes<T>(values: &[T], start: usize) -> &[T; LANES] {
    values[start..start + LANES].first_chunk().expect("the slice has this length")
}

/// The same to write to.
#[inline(always)]
pub(crate) fn lanes_mut<T>(values: &mut [T], start: usize) -> &mut [T; LANES] {
    values[start..start + LANES].first_chunk_mut().expect("the slice has this length")
}

/// Folds lanes pairwise: 32 → 16 → … → 1.
#[inline(always)]
fn fold(mut sums: [f64; LANES]) -> f64 {
    let mut width = LANES / 2;
    while width > 0 {
        for lane in 0..width {
            sums[lane] += sums[lane + width];
        }
        width /= 2;
    }
    sums[0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_weighted_sum_covers_blocks_and_tail() {
        let values: Vec<Vec<f32>> = vec![(0..70).map(|i| i as f32).collect(), vec![2.0; 70]];
        let mut out = vec![0.0; 70];
        weighted_sum(&[0.5, 0.25], &values, &mut out);
        for (index, value) in out.iter().enumerate() {
            assert_eq!(*value, index as f32 * 0.5 + 0.5);
        }
    }

    #[test]
    fn products_of_extreme_values_neither_overflow_nor_vanish() {
        assert!(norm_squared(&[f32::MAX; 40]).is_finite());
        assert!(norm_squared(&[f32::from_bits(1); 40]) > 0.0);
    }

    #[test]
    fn short_products_are_as_good_as_exact_ones_where_a_gram_matrix_uses_them() {
        let noise = |seed: u32, scale: f32| -> Vec<f32> {
            let mut state = seed;
            let mut next = || {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                ((state >> 8) as f32 / (1 << 23) as f32 - 1.0) * scale
            };
            (0..5_003).map(|_| next()).collect()
        };
        for scale in [1.0, 1e-9, 1e-15, 1e-25, 1e-40, 1e12, 1e20, 3e38] {
            let values = vec![noise(1, scale), noise(2, scale), noise(3, 1.0)];
            let gram = Gram::of(&values);
            for a in 0..3 {
                for b in 0..3 {
                    let bound = (norm_squared(&values[a]) * norm_squared(&values[b])).sqrt() * 2.0_f64.powi(-20);
                    assert!((gram.product(a, b) - dot(&values[a], &values[b])).abs() <= bound, "{scale} {a} {b}");
                }
            }
        }
    }

    #[test]
    fn norms_of_sums_are_those_of_a_gram_matrix() {
        let values: Vec<Vec<f32>> =
            (1..4).map(|m| (0..70).map(|i| ((i * 7_919 * m) % 101) as f32 - 50.0).collect()).collect();
        let (gram, coefficients) = (Gram::of(&values), [0.5, -2.0, 1e-3]);
        let squared = norm_squared_of_sum(&coefficients, &values);
        assert!((squared.sqrt() / gram.norm_of_sum(&coefficients) - 1.0).abs() < 1e-6, "{squared}");
        // Short contributions with coefficients beyond f32's range.
        assert!((norm_squared_of_sum(&[1e40], &[vec![1e-40; 33]]) / 33.0 - 1.0).abs() < 1e-4);
        assert_eq!(norm_squared_of_sum(&[], &[]), 0.0);
    }

    #[test]
    fn a_gram_matrix_knows_norms_of_sums() {
        let values = vec![vec![3.0, 0.0, 0.0], vec![0.0, 4.0, 0.0], vec![1.0, 1.0, 1.0]];
        let mut gram = Gram::zero(3);
        gram.add_bytes(&Gram::of(&values).to_bytes()).expect("same count");
        assert_eq!(gram, Gram::of(&values));
        assert_eq!((gram.norm(0), gram.norm(1), gram.product(2, 0), gram.product(1, 2)), (3.0, 4.0, 3.0, 4.0));
        assert_eq!(gram.norm_of_sum(&[1.0, 1.0, 0.0]), 5.0);
        assert_eq!(gram.norm_of_sum(&[0.0, 1.0, 2.0]), (4.0_f64 + 36.0 + 4.0).sqrt());
        assert!(gram.add_bytes(&[0; 8]).is_err());
    }
}
