//! Statistics that a few wild contributions cannot move far: the mean of what is left between the extremes, value by value.

use crate::LANES;

/// `out` = for each index the mean of the values there, without the `trimmed` smallest and the `trimmed` largest. Lists as long as `out`.
///
/// The result lies within what was kept, to the bit, and depends on no order: what is kept is added up from the smallest to the largest. Values are
/// kept apart in a block of [`LANES`] lists at once; `trimmed` turns of exchanges carry the extremes to the ends, which is a sorting network where all
/// but the middle is trimmed. Work grows with lists · `trimmed`.
///
/// Panics unless more than 2 · `trimmed` lists are given.
pub fn trimmed_mean(lists: &[&[f32]], trimmed: usize, out: &mut [f32]) {
    assert!(lists.len() > 2 * trimmed, "{} lists, {trimmed} trimmed from each end", lists.len());
    let mut rows = vec![[0.0_f32; LANES]; lists.len()];
    let mut start = 0;
    while start < out.len() {
        let count = LANES.min(out.len() - start);
        for (row, list) in rows.iter_mut().zip(lists) {
            match list[start..].first_chunk() {
                Some(block) => *row = *block,
                None => row[..count].copy_from_slice(&list[start..start + count]),
            }
        }
        let mean = middle_mean(&mut rows, trimmed);
        out[start..start + count].copy_from_slice(&mean[..count]);
        start += count;
    }
}

#[inline(always)]
fn middle_mean(rows: &mut [[f32; LANES]], trimmed: usize) -> [f32; LANES] {
    let count = rows.len();
    for turn in 0..trimmed {
        for row in turn..count - 1 - turn {
            exchange(rows, row);
        }
        for row in (turn..count - 2 - turn).rev() {
            exchange(rows, row);
        }
    }
    let kept = &mut rows[trimmed..count - trimmed];
    // In order, so that the sum is the same whatever order the contributions came in.
    for last in (1..kept.len()).rev() {
        for row in 0..last {
            exchange(kept, row);
        }
    }
    let share = 1.0 / kept.len() as f32;
    let mut mean = [0.0; LANES];
    for row in kept.iter() {
        for lane in 0..LANES {
            mean[lane] += share * row[lane];
        }
    }
    let (low, high) = (kept[0], kept[kept.len() - 1]);
    for lane in 0..LANES {
        let held = if mean[lane] < low[lane] { low[lane] } else { mean[lane] };
        mean[lane] = if high[lane] < held { high[lane] } else { held };
    }
    mean
}

/// Puts rows `row` and `row + 1` in order, lane by lane. Written as wasm's pmin and pmax are defined.
#[inline(always)]
fn exchange(rows: &mut [[f32; LANES]], row: usize) {
    let (low, high) = (rows[row], rows[row + 1]);
    for lane in 0..LANES {
        rows[row][lane] = if high[lane] < low[lane] { high[lane] } else { low[lane] };
        rows[row + 1][lane] = if high[lane] < low[lane] { low[lane] } else { high[lane] };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(lists: &[Vec<f32>], trimmed: usize) -> Vec<f32> {
        let mut out = vec![0.0; lists[0].len()];
        trimmed_mean(&lists.iter().map(Vec::as_slice).collect::<Vec<_>>(), trimmed, &mut out);
        out
    }

    #[test]
    fn the_extremes_are_trimmed_value_by_value() {
        let lists: Vec<Vec<f32>> = [5.0, -100.0, 1.0, 3.0, 1e30].iter().map(|value| vec![*value; 70]).collect();
        assert_eq!(of(&lists, 1), [3.0; 70]);
        assert_eq!(of(&lists, 2), [3.0; 70]);
        assert_eq!(of(&[vec![1.0, 9.0], vec![2.0, 8.0], vec![9.0, 1.0], vec![4.0, 4.0]], 1), [3.0, 6.0]);
        assert_eq!(of(&[vec![1.0; 40], vec![2.0; 40]], 0), [1.5; 40]);
        assert_eq!(of(&[vec![0.1; 33]], 0), [0.1; 33]);
    }

    #[test]
    fn it_agrees_with_sorting_whatever_is_trimmed() {
        let mut seed = 5_u32;
        let mut random = move || {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (seed >> 8) as f32 / (1 << 23) as f32 - 1.0
        };
        for count in 1..12_usize {
            let lists: Vec<Vec<f32>> = (0..count).map(|_| (0..67).map(|_| random()).collect()).collect();
            for trimmed in 0..count.div_ceil(2) {
                let found = of(&lists, trimmed);
                let turned: Vec<Vec<f32>> = lists.iter().rev().cloned().collect();
                assert_eq!(found, of(&turned, trimmed), "the order of the lists changes no bit");
                for index in 0..67 {
                    let mut column: Vec<f32> = lists.iter().map(|list| list[index]).collect();
                    column.sort_by(f32::total_cmp);
                    let kept = &column[trimmed..count - trimmed];
                    let mean = kept.iter().map(|value| f64::from(*value)).sum::<f64>() / kept.len() as f64;
                    // Up to eleven products and sums, each rounded once to f32.
                    assert!((f64::from(found[index]) - mean).abs() < 1e-6, "{count} {trimmed} {index}");
                }
            }
        }
    }

    #[test]
    fn equal_lists_give_themselves_to_the_bit() {
        for count in 1..9 {
            assert_eq!(of(&vec![vec![0.1, -7.3e-20, 3e38]; count], 0), [0.1, -7.3e-20, 3e38]);
        }
    }
}
