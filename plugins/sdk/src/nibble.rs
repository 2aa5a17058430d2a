//! Four bits and one bit for a value, in blocks that share a scale: integers, floats without mantissa, signs.
//!
//! A block is its scale as bfloat16, little-endian, then the values packed from the low bits up; what is left of the last byte is zero. The last block of a
//! chunk may be short.

use crate::quantise::bf16_round;

/// Values that share a scale in [`int4_encode`] and [`fp4_encode`].
pub const FOUR_BLOCK: usize = 64;

/// Values that share a scale in [`sign_encode`].
pub const SIGN_BLOCK: usize = 128;

/// Bytes of a scale.
const SCALE: usize = 2;

/// Largest error of [`int4_encode`] as a share of the block's largest magnitude: half a step of 1/7, and 1 % more for the rounding of the scale.
pub const INT4_ERROR: f32 = 0.505 / 7.0;

/// Largest error of [`fp4_encode`] as a share of the block's largest magnitude: a quarter, between 1/2 and 1, and 2 % more for the
/// rounding of the scale.
pub const FP4_ERROR: f32 = 0.255;

/// Below this (2^-100) a block becomes zero, so that scales and their inverses stay normal numbers.
const FLUSH: f32 = 7.888_609e-31;

/// Adding and dropping 1.5 · 2^23 leaves the nearest integer, ties to even, in the low bits.
const MAGIC: f32 = 12_582_912.0;

/// Bytes of `elements` values in blocks of `block`, `bits` each.
const fn packed(elements: usize, block: usize, bits: usize) -> usize {
    let tail = elements % block;
    let blocks = elements / block * (SCALE + block * bits / 8);
    if tail == 0 { blocks } else { blocks + SCALE + (tail * bits).div_ceil(8) }
}

/// Bytes of `elements` values in the form of [`int4_encode`] and [`fp4_encode`].
pub const fn four_bytes(elements: usize) -> usize {
    packed(elements, FOUR_BLOCK, 4)
}

/// Bytes of `elements` values in the form of [`sign_encode`].
pub const fn sign_bytes(elements: usize) -> usize {
    packed(elements, SIGN_BLOCK, 1)
}

/// Blocks of up to [`FOUR_BLOCK`] values: the scale (absmax / 7), then round(value / scale) in −7 ..= 7 plus 8.
pub fn int4_encode(values: &[f32]) -> Vec<u8> {
    four_encode(values, 7.0, |value, inverse| {
        let scaled = value * inverse;
        let low = if scaled < -7.0 { -7.0 } else { scaled };
        let held = if low > 7.0 { 7.0 } else { low };
        ((held + 8.0 + MAGIC).to_bits() & 15) as u8
    })
}

/// What [`int4_encode`] wrote; the caller has checked the length.
///
/// Errors: a scale that is negative or not finite; code 0, which is never written; bits that nothing needs.
pub fn int4_decode(bytes: &[u8], elements: usize) -> Result<Vec<f32>, String> {
    four_decode(bytes, elements, 0, |code| f32::from(code) - 8.0)
}

/// Blocks of up to [`FOUR_BLOCK`] values: the scale (absmax), then for each the sign as bit 3 and the nearest of 0, 2^-6, 2^-5 … 1 as
/// bits 0 to 2 (E3M0). Of two that are equally near the larger.
pub fn fp4_encode(values: &[f32]) -> Vec<u8> {
    four_encode(values, 1.0, |value, inverse| {
        let bits = (value * inverse).to_bits();
        let magnitude = bits & 0x7fff_ffff;
        // Half a mantissa more carries into the exponent from 1.5 · 2^e on, which is the middle between 2^e and 2^(e + 1).
        let exponent = ((magnitude + 0x40_0000) >> 23) as i32 - 120;
        let code = if exponent > 7 {
            7
        } else if exponent < 1 {
            1
        } else {
            exponent
        };
        // From 2^-7 on, half of the smallest, it is not zero.
        let code = if magnitude < 120 << 23 { 0 } else { code };
        (code as u32 | ((bits >> 28) & 8)) as u8
    })
}

/// What [`fp4_encode`] wrote; the caller has checked the length.
///
/// Errors: a scale that is negative or not finite; bits that nothing needs.
pub fn fp4_decode(bytes: &[u8], elements: usize) -> Result<Vec<f32>, String> {
    four_decode(bytes, elements, 16, |code| {
        let exponent = u32::from(code & 7);
        let magnitude = if exponent == 0 { 0 } else { (exponent + 120) << 23 };
        f32::from_bits(magnitude | (u32::from(code & 8) << 28))
    })
}

#[inline(always)]
fn four_encode(values: &[f32], steps: f32, code: impl Fn(f32, f32) -> u8) -> Vec<u8> {
    let mut bytes = vec![0; four_bytes(values.len())];
    for (block, out) in values.chunks(FOUR_BLOCK).zip(bytes.chunks_mut(SCALE + FOUR_BLOCK / 2)) {
        let scale = scale(largest(block), steps);
        let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
        let (head, out) = out.split_at_mut(SCALE);
        head.copy_from_slice(&((scale.to_bits() >> 16) as u16).to_le_bytes());
        if let (Ok(block), Ok(out)) =
            (<&[f32; FOUR_BLOCK]>::try_from(block), <&mut [u8; FOUR_BLOCK / 2]>::try_from(&mut *out))
        {
            let mut codes = [0_u8; FOUR_BLOCK];
            for lane in 0..FOUR_BLOCK {
                codes[lane] = code(block[lane], inverse);
            }
            for lane in 0..FOUR_BLOCK / 2 {
                out[lane] = codes[2 * lane] | (codes[2 * lane + 1] << 4);
            }
        } else {
            for (pair, out) in block.chunks(2).zip(out) {
                *out = code(pair[0], inverse) | pair.get(1).map_or(0, |value| code(*value, inverse) << 4);
            }
        }
    }
    bytes
}

const UNWRITTEN: &str = "a value has a code that is never written";

/// `unused` is the code that nothing is written as, 16 for none.
#[inline(always)]
fn four_decode(bytes: &[u8], elements: usize, unused: u8, value: impl Fn(u8) -> f32) -> Result<Vec<f32>, String> {
    let mut values = vec![0.0; elements];
    for (block, out) in bytes.chunks(SCALE + FOUR_BLOCK / 2).zip(values.chunks_mut(FOUR_BLOCK)) {
        let (scale, codes) = read_scale(block)?;
        if out.len() % 2 == 1 && codes.last().is_some_and(|last| last >> 4 != 0) {
            return Err("bits behind the last value are set".into());
        }
        let mut wrong = 0_u8;
        if let (Ok(out), Ok(codes)) =
            (<&mut [f32; FOUR_BLOCK]>::try_from(&mut *out), <&[u8; FOUR_BLOCK / 2]>::try_from(codes))
        {
            let mut apart = [0_u8; FOUR_BLOCK];
            for lane in 0..FOUR_BLOCK / 2 {
                apart[2 * lane] = codes[lane] & 15;
                apart[2 * lane + 1] = codes[lane] >> 4;
            }
            for lane in 0..FOUR_BLOCK {
                out[lane] = value(apart[lane]) * scale;
            }
            for lane in 0..FOUR_BLOCK {
                wrong |= u8::from(apart[lane] == unused);
            }
            if wrong > 0 {
                return Err(UNWRITTEN.into());
            }
            continue;
        }
        for (pair, byte) in out.chunks_mut(2).zip(codes) {
            pair[0] = value(byte & 15) * scale;
            wrong |= u8::from(byte & 15 == unused);
            if let Some(second) = pair.get_mut(1) {
                *second = value(byte >> 4) * scale;
                wrong |= u8::from(byte >> 4 == unused);
            }
        }
        if wrong > 0 {
            return Err(UNWRITTEN.into());
        }
    }
    Ok(values)
}

/// Blocks of up to [`SIGN_BLOCK`] values: the scale (mean magnitude), then a bit for each, set where it is negative.
pub fn sign_encode(values: &[f32]) -> Vec<u8> {
    let mut bytes = vec![0; sign_bytes(values.len())];
    for (block, out) in values.chunks(SIGN_BLOCK).zip(bytes.chunks_mut(SCALE + SIGN_BLOCK / 8)) {
        // Shares are added up, so that huge values do not overflow; in eight lanes, in a fixed order.
        let share = 1.0 / block.len() as f32;
        let mut sums = [0.0_f32; 8];
        let (eights, rest) = block.as_chunks::<8>();
        for eight in eights {
            for lane in 0..8 {
                sums[lane] += eight[lane].abs() * share;
            }
        }
        for (sum, value) in sums.iter_mut().zip(rest) {
            *sum += value.abs() * share;
        }
        let mean = ((sums[0] + sums[4]) + (sums[1] + sums[5])) + ((sums[2] + sums[6]) + (sums[3] + sums[7]));
        let (head, out) = out.split_at_mut(SCALE);
        head.copy_from_slice(&bf16_round(if mean < f32::MAX { mean } else { f32::MAX }).to_le_bytes());
        for (eight, out) in eights.iter().zip(&mut *out) {
            // Each sign in its place first, then folded: both in blocks.
            let mut bits = [0_u32; 8];
            for lane in 0..8 {
                bits[lane] = if eight[lane].is_sign_negative() { 1 << lane } else { 0 };
            }
            let four = [bits[0] | bits[4], bits[1] | bits[5], bits[2] | bits[6], bits[3] | bits[7]];
            *out = ((four[0] | four[2]) | (four[1] | four[3])) as u8;
        }
        if let Some(out) = out.get_mut(eights.len()) {
            for (bit, value) in rest.iter().enumerate() {
                *out |= ((value.to_bits() >> 31) as u8) << bit;
            }
        }
    }
    bytes
}

/// What [`sign_encode`] wrote; the caller has checked the length.
///
/// Errors: a scale that is negative or not finite; bits that nothing needs.
pub fn sign_decode(bytes: &[u8], elements: usize) -> Result<Vec<f32>, String> {
    let mut values = vec![0.0; elements];
    for (block, out) in bytes.chunks(SCALE + SIGN_BLOCK / 8).zip(values.chunks_mut(SIGN_BLOCK)) {
        let (scale, bits) = read_scale(block)?;
        let spare = out.len() % 8;
        if spare > 0 && bits.last().is_some_and(|last| last >> spare != 0) {
            return Err("bits behind the last value are set".into());
        }
        let (eights, rest) = out.as_chunks_mut::<8>();
        for (eight, byte) in eights.iter_mut().zip(bits) {
            for lane in 0..8 {
                let sign = if u32::from(*byte) & (1 << lane) != 0 { 1 << 31 } else { 0 };
                eight[lane] = f32::from_bits(scale.to_bits() | sign);
            }
        }
        if let Some(byte) = bits.get(eights.len()) {
            for (bit, out) in rest.iter_mut().enumerate() {
                *out = f32::from_bits(scale.to_bits() | (u32::from((byte >> bit) & 1) << 31));
            }
        }
    }
    Ok(values)
}

/// Scale and codes of a block.
fn read_scale(block: &[u8]) -> Result<(f32, &[u8]), String> {
    let Some((head, codes)) = block.split_first_chunk::<SCALE>() else {
        return Err("a block is cut short".into());
    };
    let scale = f32::from_bits(u32::from(u16::from_le_bytes(*head)) << 16);
    if scale.is_finite() && scale.is_sign_positive() {
        Ok((scale, codes))
    } else {
        Err("a block's scale is not a finite, positive number".into())
    }
}

/// Largest magnitude. Magnitudes of finite values order like their bits.
#[inline(always)]
fn largest(block: &[f32]) -> f32 {
    f32::from_bits(block.iter().fold(0, |max, value| max.max(value.to_bits() & 0x7fff_ffff)))
}

/// absmax / steps as bfloat16, or 0 for a block that is flushed; lowered where `steps` times it would overflow.
#[inline(always)]
fn scale(absmax: f32, steps: f32) -> f32 {
    if absmax < FLUSH {
        return 0.0;
    }
    let scale = f32::from_bits(u32::from(bf16_round(absmax / steps)) << 16);
    if (scale * steps).is_finite() { scale } else { f32::from_bits(scale.to_bits() - (1 << 16)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn int4_keeps_multiples_of_a_seventh_of_the_largest() {
        let values = [7.0, -7.0, 3.2, -0.6, 0.4, 1.5, 2.5];
        let decoded = int4_decode(&int4_encode(&values), 7).expect("own bytes");
        assert_eq!(decoded, [7.0, -7.0, 3.0, -1.0, 0.0, 2.0, 2.0], "steps of one, ties to even");
        assert_eq!(int4_encode(&values).len(), 6);
    }

    #[test]
    fn fp4_keeps_powers_of_two_down_to_a_sixty_fourth() {
        let values = [1.0, -0.5, 0.8, 0.7, 0.015625, 0.008, -0.007, 0.0, 0.3];
        let decoded = fp4_decode(&fp4_encode(&values), 9).expect("own bytes");
        assert_eq!(decoded, [1.0, -0.5, 1.0, 0.5, 0.015625, 0.015625, 0.0, 0.0, 0.25]);
    }

    #[test]
    fn signs_have_the_mean_magnitude() {
        let decoded = sign_decode(&sign_encode(&[1.0, -3.0, 0.0, 4.0]), 4).expect("own bytes");
        assert_eq!(decoded, [2.0, -2.0, 2.0, 2.0]);
    }

    #[test]
    fn every_length_takes_the_bytes_that_it_should_and_full_blocks_agree_with_short_ones() {
        for count in [1, 2, 7, 8, 63, 64, 65, 127, 128, 129, 300] {
            let values: Vec<f32> = (0..count).map(|index| ((index * 37 % 101) as f32 - 50.0) * 0.01).collect();
            assert_eq!(int4_encode(&values).len(), four_bytes(count));
            assert_eq!(fp4_encode(&values).len(), four_bytes(count));
            assert_eq!(sign_encode(&values).len(), sign_bytes(count));
            let decoded = int4_decode(&int4_encode(&values), count).expect("own bytes");
            for (value, decoded) in values.iter().zip(decoded) {
                assert!((value - decoded).abs() <= INT4_ERROR * 0.5, "{value} became {decoded}");
            }
        }
    }

    #[test]
    fn bytes_that_nobody_encoded_are_refused() {
        let (int4, fp4, sign) = (int4_encode(&[1.0; 3]), fp4_encode(&[1.0; 3]), sign_encode(&[1.0; 3]));
        for scale in [0x7fc0_u16, 0x7f80, 0xbf80] {
            let forged = |bytes: &[u8]| [&scale.to_le_bytes()[..], &bytes[2..]].concat();
            assert!(int4_decode(&forged(&int4), 3).is_err() && fp4_decode(&forged(&fp4), 3).is_err());
            assert!(sign_decode(&forged(&sign), 3).is_err());
        }
        assert!(int4_decode(&[0x80, 0x3f, 0x00, 0x0f], 3).is_err(), "code 0");
        assert!(int4_decode(&[0x80, 0x3f, 0x88, 0xf8], 3).is_err(), "a fourth value");
        assert!(fp4_decode(&[0x80, 0x3f, 0x11, 0x11], 3).is_err(), "a fourth value");
        assert!(sign_decode(&[0x80, 0x3f, 0x08], 3).is_err(), "a fourth sign");
    }
}
