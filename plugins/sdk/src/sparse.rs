//! The largest values of a chunk, in two bits each; the others become zero.
//!
//! A chunk of n values, of which k are kept: two magnitudes as f32, little-endian, the smaller first; for each run of [`RUN`] values how many are
//! kept, a byte; the kept ones' places in their runs, a byte each, ascending; then two bits each, from the low ones up: bit 0 for the greater magnitude,
//! bit 1 for a negative sign. What is left of the last byte is zero. As in SparseLoCo (arXiv 2508.15706), which also keeps its places apart in short blocks.

/// Values that share a count: as many as a byte can count, all of them kept.
pub const RUN: usize = 255;

/// Bytes of the two magnitudes.
const HEAD: usize = 8;

/// Bits of a magnitude that choose its bucket, and those below them.
const BUCKET_BITS: u32 = 11;
const REST_BITS: u32 = 31 - BUCKET_BITS;

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
    let (threshold, mut ties) = threshold(values, kept);
    let mut counts = Vec::with_capacity(values.len().div_ceil(RUN));
    let (mut places, mut chosen) = (Vec::with_capacity(kept), Vec::with_capacity(kept));
    for run in values.chunks(RUN) {
        let before = chosen.len();
        for (place, value) in run.iter().enumerate() {
            let size = magnitude(*value);
            if size > threshold || (size == threshold && ties > 0) {
                ties -= usize::from(size == threshold);
                places.push(place as u8);
                chosen.push(*value);
            }
        }
        counts.push((chosen.len() - before) as u8);
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

/// The magnitude, as bits, of the value number `kept` from the largest, and how many values of just that magnitude are kept. Counts values by
/// their upper bits, then looks at one bucket: cheaper than sorting.
fn threshold(values: &[f32], kept: usize) -> (u32, usize) {
    if kept == 0 {
        return (u32::MAX, 0);
    }
    let mut counts = vec![0_usize; 1 << BUCKET_BITS];
    for value in values {
        counts[(magnitude(*value) >> REST_BITS) as usize] += 1;
    }
    let (mut above, mut bucket) = (0, counts.len() - 1);
    while above + counts[bucket] < kept {
        above += counts[bucket];
        bucket -= 1;
    }
    let mut sizes: Vec<u32> =
        values.iter().map(|value| magnitude(*value)).filter(|size| (size >> REST_BITS) as usize == bucket).collect();
    sizes.sort_unstable_by(|a, b| b.cmp(a));
    let threshold = sizes[kept - above - 1];
    let larger = above + sizes.iter().filter(|size| **size > threshold).count();
    (threshold, kept - larger)
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
