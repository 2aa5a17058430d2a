//! The largest values of a chunk, in two bits each; the others become zero.
//!
//! A chunk of n values, of which k are kept: two magnitudes as f32, little-endian, the smaller first; for each run of [`RUN`] values how many are
//! kept, a byte; the kept ones' places in their runs, a byte each, ascending; then two bits each, from the low ones up: bit 0 for the greater magnitude,
//! bit 1 for a negative sign. What is left of the last byte is zero. As in SparseLoCo (arXiv 2508.15706), which also keeps its places apart in short blocks.

use crate::LANES;

/// Values that share a count: as many as a byte can count, all of them kept.
pub const RUN: usize = 255;

/// Bytes of the two magnitudes.
const HEAD: usize = 8;

/// Groups of which the greatest values are compared, for each value kept.
const GROUPS: usize = 3;

/// Bytes of `elements` values of which `kept` are kept.
pub const fn sparse_bytes(elements: usize, kept: usize) -> usize {
    HEAD + elements.div_ceil(RUN) + kept + kept.div_ceil(4)
}

/// Keeps the `kept` values of the largest magnitude, of equal ones the first. What is kept becomes one of two magnitudes: the mean of those
/// above the mean of all, and the mean of the others.
///
/// Panics unless there are as many values.
pub fn sparse_encode(values: &[f32], kept: usize) -> Vec<u8> {
    assert!(kept <= values.len(), "{kept} of {} values", values.len());
    let largest = largest(values, kept);
    let mut counts = vec![0_u8; values.len().div_ceil(RUN)];
    let (mut places, mut chosen) = (Vec::with_capacity(kept), Vec::with_capacity(kept));
    for index in largest {
        counts[index / RUN] += 1;
        places.push((index % RUN) as u8);
        chosen.push(values[index]);
    }
    let mean = mean(chosen.iter().copied(), 0.0);
    let low = mean_within(&chosen, |size| size <= mean, mean);
    let high = mean_within(&chosen, |size| size > mean, mean);
    let mut bytes = Vec::with_capacity(sparse_bytes(values.len(), kept));
    bytes.extend(low.to_le_bytes());
    bytes.extend(high.to_le_bytes());
    bytes.extend(counts);
    bytes.extend(places);
    bytes.extend(chosen.chunks(4).map(|four| {
        let code = |value: &f32| u8::from(value.abs() > mean) | (u8::from(value.is_sign_negative()) << 1);
        four.iter().enumerate().fold(0, |byte, (index, value)| byte | (code(value) << (2 * index)))
    }));
    bytes
}

/// What [`sparse_encode`] wrote.
///
/// Errors: another length; magnitudes that are negative, not finite or out of order; counts that do not add up to `kept`; places that do not ascend
/// within their run; bits that nothing needs.
pub fn sparse_decode(bytes: &[u8], elements: usize, kept: usize) -> Result<Vec<f32>, String> {
    let length = sparse_bytes(elements, kept);
    let parts = (bytes.len() == length).then(|| bytes.split_first_chunk::<4>()).flatten();
    let Some((low, Some((high, rest)))) = parts.map(|(low, rest)| (low, rest.split_first_chunk::<4>())) else {
        return Err(format!("{elements} values take {length} bytes, found {}", bytes.len()));
    };
    let (low, high) = (f32::from_le_bytes(*low), f32::from_le_bytes(*high));
    if !(low.is_sign_positive() && low <= high && high.is_finite()) {
        return Err("the two magnitudes are not finite, positive and in order".into());
    }
    let (counts, rest) = rest.split_at(elements.div_ceil(RUN));
    let (mut places, codes) = rest.split_at(kept);
    if counts.iter().map(|count| usize::from(*count)).sum::<usize>() != kept {
        return Err(format!("the runs do not keep {kept} values together"));
    }
    if kept % 4 > 0 && codes.last().is_some_and(|last| last >> (2 * (kept % 4)) != 0) {
        return Err("bits behind the last value are set".into());
    }
    let mut values = vec![0.0; elements];
    let mut index = 0;
    for (run, count) in values.chunks_mut(RUN).zip(counts) {
        let (here, after) = places.split_at(usize::from(*count));
        places = after;
        if here.windows(2).any(|pair| pair[0] >= pair[1])
            || here.last().is_some_and(|last| usize::from(*last) >= run.len())
        {
            return Err("the places of a run do not ascend within it".into());
        }
        for place in here {
            let code = codes[index / 4] >> (2 * (index % 4));
            let size = if code & 1 == 1 { high } else { low };
            run[usize::from(*place)] = if code & 2 == 2 { -size } else { size };
            index += 1;
        }
    }
    Ok(values)
}

/// A magnitude as bits, which order as it does.
#[inline(always)]
fn magnitude(value: f32) -> u32 {
    value.to_bits() & 0x7fff_ffff
}

/// The places of the `kept` values of the largest magnitude, ascending; of equal ones the first.
///
/// Exact, and mostly in blocks: a floor that cannot be above the least magnitude kept, then the few values that reach it, then a selection among those. Lists
/// that are made to defeat the floor (all values equal, say) cost a selection among all of them, which is several times slower and no less right.
fn largest(values: &[f32], kept: usize) -> Vec<usize> {
    if kept == 0 {
        return Vec::new();
    }
    let mut found = reaching(values, floor(values, kept));
    let mut sizes: Vec<u32> = found.iter().map(|index| magnitude(values[*index as usize])).collect();
    let (larger, threshold, _) = sizes.select_nth_unstable_by(kept - 1, |a, b| b.cmp(a));
    let threshold = *threshold;
    let mut ties = kept - larger.iter().filter(|size| **size > threshold).count();
    found.retain(|index| {
        let size = magnitude(values[*index as usize]);
        let tied = size == threshold && ties > 0;
        ties -= usize::from(tied);
        size > threshold || tied
    });
    found.into_iter().map(|index| index as usize).collect()
}

/// A magnitude that at least `kept` values reach: of the greatest in each of many groups the one number `kept` from the largest. With [`GROUPS`] times as many groups as
/// are kept, few values that are not kept reach it, too.
fn floor(values: &[f32], kept: usize) -> u32 {
    let rows = values.len() / (kept * GROUPS).max(LANES);
    if rows < 2 {
        return 0;
    }
    let mut greatest = Vec::with_capacity(values.len() / rows + LANES);
    for group in values.chunks(rows * LANES) {
        let mut most = [0_u32; LANES];
        let (blocks, rest) = group.as_chunks::<LANES>();
        for block in blocks {
            for lane in 0..LANES {
                most[lane] = most[lane].max(magnitude(block[lane]));
            }
        }
        for (most, value) in most.iter_mut().zip(rest) {
            *most = (*most).max(magnitude(*value));
        }
        greatest.extend(most);
    }
    if greatest.len() < kept {
        return 0;
    }
    *greatest.select_nth_unstable_by(kept - 1, |a, b| b.cmp(a)).1
}

/// The places of the values whose magnitude is at least `floor`, ascending.
fn reaching(values: &[f32], floor: u32) -> Vec<u32> {
    let mut found = Vec::new();
    let (blocks, rest) = values.as_chunks::<LANES>();
    let (mut start, below) = (0, floor as i32 - 1);
    let mut places = [0_u32; LANES];
    for block in blocks {
        // Negative where a value reaches the floor: no difference of magnitudes overflows.
        let mut reached = [0_i32; LANES];
        for lane in 0..LANES {
            reached[lane] = below - magnitude(block[lane]) as i32;
        }
        let mut eight = [0_i32; 8];
        for lane in 0..8 {
            eight[lane] = (reached[lane] | reached[lane + 8]) | (reached[lane + 16] | reached[lane + 24]);
        }
        if (eight[0] | eight[1] | eight[2] | eight[3] | eight[4] | eight[5] | eight[6] | eight[7]) < 0 {
            let mut count = 0;
            for (lane, value) in block.iter().enumerate() {
                places[count] = start + lane as u32;
                count += usize::from(magnitude(*value) >= floor);
            }
            found.extend_from_slice(&places[..count]);
        }
        start += LANES as u32;
    }
    found.extend((start..).zip(rest).filter(|(_, value)| magnitude(**value) >= floor).map(|(place, _)| place));
    found
}

/// Mean magnitude, in f64; `without` where there are no values.
fn mean(values: impl Iterator<Item = f32>, without: f32) -> f32 {
    let (sum, count) = values.fold((0.0, 0_u32), |(sum, count), value| (sum + f64::from(value.abs()), count + 1));
    if count == 0 { without } else { (sum / f64::from(count)) as f32 }
}

fn mean_within(values: &[f32], belongs: impl Fn(f32) -> bool, without: f32) -> f32 {
    mean(values.iter().copied().filter(|value| belongs(value.abs())), without)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_become_one_of_two_magnitudes_and_the_others_zero() {
        // Kept: −8, 4, 2, −2 (the first of the two of that size), mean 4: magnitudes 8 and 8/3.
        let values = [1.0, -8.0, 0.5, 4.0, 2.0, -2.0, 2.0, 0.0];
        let bytes = sparse_encode(&values, 4);
        assert_eq!(bytes.len(), 8 + 1 + 4 + 1);
        let small = 8.0 / 3.0;
        assert_eq!(sparse_decode(&bytes, 8, 4), Ok(vec![0.0, -8.0, 0.0, small, small, -small, 0.0, 0.0]));
    }

    #[test]
    fn any_share_of_any_list_comes_back_with_as_many_values_and_the_largest_among_them() {
        for count in [1, 2, 254, 255, 256, 1_000] {
            let values: Vec<f32> = (0..count).map(|index| (index * 7_919 % 1_009) as f32 - 500.5).collect();
            for kept in [0, 1, count / 3, count] {
                let decoded = sparse_decode(&sparse_encode(&values, kept), count, kept).expect("own bytes");
                assert_eq!(decoded.iter().filter(|value| **value != 0.0).count(), kept);
                let least = (values.iter().zip(&decoded)).filter(|(_, out)| **out != 0.0).map(|(value, _)| value.abs());
                let least = least.fold(f32::MAX, f32::min);
                let left = values.iter().zip(&decoded).filter(|(_, out)| **out == 0.0);
                assert!(left.into_iter().all(|(value, _)| value.abs() <= least), "{kept} of {count}");
            }
        }
    }

    #[test]
    fn the_values_kept_are_those_that_sorting_finds() {
        let mut state = 7_u32;
        let mut noise = move || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        };
        for count in [1, 31, 33, 1_000, 4_099, 32_768] {
            let noisy: Vec<f32> = (0..count).map(|_| noise()).collect();
            let coarse = noisy.iter().map(|value| (value * 4.0).round()).collect();
            let rising = (0..count).map(|index| index as f32).collect();
            let lumped = (0..count).map(|index| if index % 97 < 2 { -1e30 } else { 1e-40 }).collect();
            for values in [noisy, coarse, rising, lumped, vec![0.0; count], vec![f32::MAX; count]] {
                let mut sorted: Vec<usize> = (0..count).collect();
                sorted.sort_by_key(|index| core::cmp::Reverse(magnitude(values[*index])));
                for kept in [1, count.div_ceil(100), count.div_ceil(20), count / 2, count] {
                    let mut expected = sorted[..kept].to_vec();
                    expected.sort_unstable();
                    assert_eq!(largest(&values, kept), expected, "{kept} of {count}");
                }
            }
        }
    }

    #[test]
    fn bytes_that_nobody_encoded_are_refused() {
        let values: Vec<f32> = (0..300).map(|index| index as f32).collect();
        let bytes = sparse_encode(&values, 5);
        assert!(sparse_decode(&bytes, 300, 5).is_ok());
        assert!(sparse_decode(&bytes[1..], 300, 5).is_err() && sparse_decode(&bytes, 300, 4).is_err());
        // The upper byte of a magnitude, a count, a place beyond its run, one that does not ascend, a sixth value.
        for (at, byte) in [(7, 0xff), (3, 0x7f), (8, 9), (14, 45), (13, 1), (16, 0xff)] {
            let mut forged = bytes.clone();
            forged[at] = byte;
            assert!(sparse_decode(&forged, 300, 5).is_err(), "byte {at}");
        }
    }
}
