//! Whether values are numbers at all, at the speed of memory.

use crate::cpu::simd::dispatched;

dispatched! {
    /// Whether any of the values is infinite or not a number.
    ///
    /// Reads at several places at once: memory feeds eight streams faster than one, and this is often where data first comes near.
    fn any_not_finite(values: &[f32]) -> bool {
        const STREAMS: usize = 8;
        const LANES: usize = 16;
        const EXPONENT: u32 = 0x7f80_0000;
        let (blocks, tail) = values.as_chunks::<LANES>();
        let length = blocks.len() / STREAMS;
        let (streams, rest) = blocks.split_at(length * STREAMS);
        let streams: [&[[f32; LANES]]; STREAMS] = std::array::from_fn(|stream| &streams[stream * length..][..length]);
        // All ones in lanes where there was one, as comparisons leave them.
        let mut found = [0_u32; LANES];
        for index in 0..length {
            for stream in streams {
                look(&mut found, &stream[index], EXPONENT);
            }
        }
        for block in rest {
            look(&mut found, block, EXPONENT);
        }
        found.iter().any(|found| *found > 0) || tail.iter().any(|value| !value.is_finite())
    }
}

#[inline(always)]
fn look<const LANES: usize>(found: &mut [u32; LANES], block: &[f32; LANES], exponent: u32) {
    for (found, value) in found.iter_mut().zip(block) {
        *found |= u32::from(value.to_bits() & exponent == exponent).wrapping_neg();
    }
}

/// Index of the first value that is infinite or not a number.
pub fn first_not_finite(values: &[f32]) -> Option<usize> {
    if any_not_finite(values) { values.iter().position(|value| !value.is_finite()) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_value_that_is_not_finite_is_found() {
        assert_eq!(first_not_finite(&[0.0, f32::MAX, f32::MIN_POSITIVE, -1.0]), None);
        assert_eq!(first_not_finite(&[0.0, 1.0, f32::NEG_INFINITY, f32::NAN]), Some(2));
        assert_eq!(first_not_finite(&[]), None);
        for length in [1, 15, 16, 127, 128, 129, 1_000] {
            let mut values = vec![f32::MAX; length];
            assert_eq!(first_not_finite(&values), None);
            for index in 0..length {
                values[index] = f32::NAN;
                assert_eq!(first_not_finite(&values), Some(index), "of {length}");
                values[index] = -f32::MAX;
            }
        }
    }
}
