//! Fewer bits for a value: rounding to bfloat16, and block-scaled integers.

use crate::LANES;

/// Largest finite bfloat16, as the upper half of its f32.
const BF16_MAX: u32 = 0x7f7f;

/// Largest error of rounding to bfloat16, as a share of the value: half a unit in the eighth significant bit.
pub const BF16_ERROR: f32 = 1.0 / 256.0;

/// Rounds a finite value to bfloat16, ties to even; what would overflow becomes the largest finite one.
#[inline(always)]
pub fn bf16_round(value: f32) -> u16 {
    let bits = value.to_bits();
    let magnitude = bits & 0x7fff_ffff;
    let rounded = (magnitude + 0x7fff + ((magnitude >> 16) & 1)) >> 16;
    (rounded.min(BF16_MAX) | ((bits >> 16) & 0x8000)) as u16
}

/// `values` as bfloat16, two bytes each, little-endian.
pub fn bf16_encode(values: &[f32]) -> Vec<u8> {
    let mut bytes = vec![0; values.len() * 2];
    let (blocks, tail) = values.as_chunks::<LANES>();
    let (out_blocks, out_tail) = bytes.split_at_mut(blocks.len() * LANES * 2);
    for (block, out) in blocks.iter().zip(out_blocks.chunks_exact_mut(LANES * 2)) {
        for lane in 0..LANES {
            let word = bf16_round(block[lane]).to_le_bytes();
            out[2 * lane] = word[0];
            out[2 * lane + 1] = word[1];
        }
    }
    for (value, out) in tail.iter().zip(out_tail.chunks_exact_mut(2)) {
        out.copy_from_slice(&bf16_round(*value).to_le_bytes());
    }
    bytes
}

/// What [`bf16_encode`] wrote, as f32; the caller has checked the length.
pub fn bf16_decode(bytes: &[u8]) -> Vec<f32> {
    let mut values = vec![0.0; bytes.len() / 2];
    let (words, _) = bytes.as_chunks::<2>();
    let (blocks, tail) = words.as_chunks::<LANES>();
    let (out_blocks, out_tail) = values.split_at_mut(blocks.len() * LANES);
    for (block, out) in blocks.iter().zip(out_blocks.chunks_exact_mut(LANES)) {
        for lane in 0..LANES {
            out[lane] = f32::from_bits(u32::from(u16::from_le_bytes(block[lane])) << 16);
        }
    }
    for (word, out) in tail.iter().zip(out_tail) {
        *out = f32::from_bits(u32::from(u16::from_le_bytes(*word)) << 16);
    }
    values
}

/// Values that share a scale in [`int8_encode`].
pub const INT8_BLOCK: usize = 128;

/// Largest error of [`int8_encode`] as a share of the block's largest magnitude: half a step of 1/127, and 1 % more for the
/// rounding of scale and products.
pub const INT8_ERROR: f32 = 0.505 / 127.0;

/// Below this (2^-100) a block becomes zero, so that scales and their inverses stay normal numbers.
const FLUSH: f32 = 7.888_609e-31;

/// Adding and dropping 1.5 · 2^23 leaves the nearest integer, ties to even, in the low bits: cheaper than a conversion.
const MAGIC: f32 = 12_582_912.0;

/// Bytes of `elements` values in [`int8_encode`]'s form.
pub const fn int8_bytes(elements: usize) -> usize {
    elements + 4 * elements.div_ceil(INT8_BLOCK)
}

/// Blocks of up to [`INT8_BLOCK`] values: the scale (absmax / 127) as f32, then round(value / scale) as i8.
pub fn int8_encode(values: &[f32]) -> Vec<u8> {
    let mut bytes = vec![0; int8_bytes(values.len())];
    let (blocks, tail) = values.as_chunks::<INT8_BLOCK>();
    let (out_blocks, out_tail) = bytes.split_at_mut(blocks.len() * (INT8_BLOCK + 4));
    for (block, out) in blocks.iter().zip(out_blocks.chunks_exact_mut(INT8_BLOCK + 4)) {
        let scale = int8_scale(absmax_block(block));
        let (head, out) = out.split_at_mut(4);
        head.copy_from_slice(&scale.to_le_bytes());
        let inverse = inverse(scale);
        let (quarters, _) = block.as_chunks::<LANES>();
        for (quarter, out) in quarters.iter().zip(out.chunks_exact_mut(LANES)) {
            // In two steps, with arrays between, compilers find the narrowing instructions.
            let mut bits = [0_u32; LANES];
            for lane in 0..LANES {
                bits[lane] = (quarter[lane] * inverse + MAGIC).to_bits();
            }
            let mut packed = [0_u8; LANES];
            for lane in 0..LANES {
                packed[lane] = bits[lane] as u8;
            }
            out.copy_from_slice(&packed);
        }
    }
    if !tail.is_empty() {
        let scale = int8_scale(tail.iter().fold(0.0, |max, value| f32::max(max, value.abs())));
        let (head, out) = out_tail.split_at_mut(4);
        head.copy_from_slice(&scale.to_le_bytes());
        let inverse = inverse(scale);
        for (value, out) in tail.iter().zip(out) {
            *out = (value * inverse + MAGIC).to_bits() as u8;
        }
    }
    bytes
}

/// What [`int8_encode`] wrote; the caller has checked the length.
///
/// Errors: a scale that is negative, infinite or not a number.
pub fn int8_decode(bytes: &[u8], elements: usize) -> Result<Vec<f32>, String> {
    let mut values = vec![0.0; elements];
    for (block, out) in bytes.chunks(INT8_BLOCK + 4).zip(values.chunks_mut(INT8_BLOCK)) {
        let Some((head, block)) = block.split_first_chunk::<4>() else {
            return Err("a block is cut short".into());
        };
        let scale = f32::from_le_bytes(*head);
        if !(scale.is_finite() && scale.is_sign_positive()) {
            return Err("a block's scale is not a finite, positive number".into());
        }
        let (quarters, tail) = block.as_chunks::<LANES>();
        let (out_quarters, out_tail) = out.split_at_mut(quarters.len() * LANES);
        for (quarter, out) in quarters.iter().zip(out_quarters.chunks_exact_mut(LANES)) {
            for lane in 0..LANES {
                out[lane] = f32::from(quarter[lane] as i8) * scale;
            }
        }
        for (byte, out) in tail.iter().zip(out_tail) {
            *out = f32::from(*byte as i8) * scale;
        }
    }
    Ok(values)
}

/// Largest magnitude of a block. Magnitudes of finite values order like their bits, so integers do.
#[inline(always)]
fn absmax_block(block: &[f32; INT8_BLOCK]) -> f32 {
    let mut max = [0_u32; LANES];
    let (quarters, _) = block.as_chunks::<LANES>();
    for quarter in quarters {
        for lane in 0..LANES {
            max[lane] = max[lane].max(quarter[lane].to_bits() & 0x7fff_ffff);
        }
    }
    let mut width = LANES / 2;
    while width > 0 {
        for lane in 0..width {
            max[lane] = max[lane].max(max[lane + width]);
        }
        width /= 2;
    }
    f32::from_bits(max[0])
}

/// absmax / 127, or 0 for a block that is flushed; lowered where 127 times it would overflow.
#[inline(always)]
fn int8_scale(absmax: f32) -> f32 {
    if absmax < FLUSH {
        return 0.0;
    }
    let scale = absmax / 127.0;
    if (scale * 127.0).is_finite() { scale } else { f32::from_bits(scale.to_bits() - 1) }
}

#[inline(always)]
fn inverse(scale: f32) -> f32 {
    if scale > 0.0 { 1.0 / scale } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Zeros, tiny, huge, denormal and mixed values, and enough of each for blocks and tails.
    fn hostile() -> Vec<Vec<f32>> {
        let mut seed = 7_u32;
        let mut random = move || {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (seed >> 8) as f32 / (1 << 23) as f32 - 1.0
        };
        let mut lists = vec![
            vec![0.0; 300],
            vec![-0.0; 5],
            vec![f32::MAX; 129],
            vec![f32::MIN; 31],
            vec![f32::MIN_POSITIVE; 128],
            vec![f32::from_bits(1); 200],
            vec![1e-30, -1e-31, 8e-31, 0.0],
        ];
        for scale in [1.0, 1e-8, 1e-20, 1e-38, 1e20, 3e38] {
            lists.push((0..1_000).map(|_| random() * scale).collect());
        }
        lists.push((0..1_000).map(|i| if i % 97 == 0 { f32::MAX } else { random() * 1e-3 }).collect());
        lists
    }

    fn worst(values: &[f32], decoded: &[f32], block: usize) -> f32 {
        let mut worst = 0.0;
        for (values, decoded) in values.chunks(block).zip(decoded.chunks(block)) {
            let largest = values.iter().fold(0.0, |max: f64, value| max.max(f64::from(value.abs())));
            for (value, decoded) in values.iter().zip(decoded) {
                let error = (f64::from(*value) - f64::from(*decoded)).abs();
                if error >= 2.0_f64.powi(-100) {
                    worst = f32::max(worst, (error / largest) as f32);
                }
            }
        }
        worst
    }

    #[test]
    fn bf16_rounds_to_nearest_even_and_saturates() {
        assert_eq!(bf16_round(1.0), 0x3f80);
        assert_eq!(bf16_round(-2.0), 0xc000);
        assert_eq!(bf16_round(f32::from_bits(0x3f80_8000)), 0x3f80, "a tie goes to even");
        assert_eq!(bf16_round(f32::from_bits(0x3f81_8000)), 0x3f82, "a tie goes to even");
        assert_eq!(bf16_round(f32::from_bits(0x3f80_8001)), 0x3f81);
        assert_eq!(bf16_round(f32::MAX), 0x7f7f);
        assert_eq!(bf16_round(f32::MIN), 0xff7f);
    }

    #[test]
    fn bf16_keeps_its_error_bound() {
        for values in hostile() {
            let decoded = bf16_decode(&bf16_encode(&values));
            assert_eq!(decoded.len(), values.len());
            assert!(decoded.iter().all(|value| value.is_finite()));
            assert!(worst(&values, &decoded, 1) <= BF16_ERROR, "{values:?}");
        }
    }

    #[test]
    fn int8_keeps_its_error_bound() {
        for values in hostile() {
            let bytes = int8_encode(&values);
            assert_eq!(bytes.len(), int8_bytes(values.len()));
            let decoded = int8_decode(&bytes, values.len()).expect("own bytes");
            assert_eq!(decoded.len(), values.len());
            assert!(decoded.iter().all(|value| value.is_finite()), "{values:?}");
            assert!(worst(&values, &decoded, INT8_BLOCK) <= INT8_ERROR, "{values:?}");
        }
    }

    #[test]
    fn int8_keeps_the_largest_of_a_block_and_zero() {
        let values = [127.0, -127.0, 1.0, 0.4, 0.6, -64.5, 63.5];
        let decoded = int8_decode(&int8_encode(&values), values.len()).expect("own bytes");
        assert_eq!(decoded, [127.0, -127.0, 1.0, 0.0, 1.0, -64.0, 64.0], "steps of one, ties to even");
    }

    #[test]
    fn forged_scales_are_refused() {
        for scale in [f32::NAN, f32::INFINITY, -1.0] {
            let mut bytes = int8_encode(&[1.0; 40]);
            bytes[..4].copy_from_slice(&scale.to_le_bytes());
            assert!(int8_decode(&bytes, 40).is_err(), "{scale}");
        }
    }
}
