//! Token embedding: `x[r] = weight[token[r]]`.
//!
//! Backward adds the rows of one token in ascending position, whatever the number of threads: positions are sorted by
//! token first ([`Occurrences`]), and threads take disjoint ranges of tokens.

use super::simd::add;

/// x (R, C) = rows of weight (V, C).
pub(crate) fn forward(x: &mut [f32], tokens: &[u32], weight: &[f32], channels: usize) {
    for (x, &token) in x.chunks_exact_mut(channels).zip(tokens) {
        let start = token as usize * channels;
        x.copy_from_slice(&weight[start..start + channels]);
    }
}

/// dweight (v, C) of tokens first..first + v: += the rows of dx (R, C) where they occur.
pub(crate) fn backward(dweight: &mut [f32], dx: &[f32], occurrences: &Occurrences, first: usize, channels: usize) {
    for (token, dweight) in dweight.chunks_exact_mut(channels).enumerate() {
        for &row in occurrences.of(first + token) {
            let start = row as usize * channels;
            add(dweight, &dx[start..start + channels]);
        }
    }
}

/// Where each token occurs, by counting sort.
#[derive(Default)]
pub(crate) struct Occurrences {
    /// `starts[t]..starts[t + 1]` is token t's part of `rows`.
    starts: Vec<u32>,
    rows: Vec<u32>,
}

impl Occurrences {
    /// Sorts the rows of `tokens`, each below `vocabulary`, by token and then by row.
    pub(crate) fn sort(&mut self, tokens: &[u32], vocabulary: usize) {
        self.starts.clear();
        self.starts.resize(vocabulary + 2, 0);
        // Counts two places ahead; after the running sum, place t + 1 is where token t's next row goes …
        for &token in tokens {
            self.starts[token as usize + 2] += 1;
        }
        for place in 1..self.starts.len() {
            self.starts[place] += self.starts[place - 1];
        }
        self.rows.resize(tokens.len(), 0);
        for (row, &token) in tokens.iter().enumerate() {
            let next = &mut self.starts[token as usize + 1];
            self.rows[*next as usize] = row as u32;
            *next += 1;
        }
        // … and now it has moved up to where token t ends, that is where token t + 1 starts.
    }

    /// The rows at which `token` occurs, ascending.
    fn of(&self, token: usize) -> &[u32] {
        &self.rows[self.starts[token] as usize..self.starts[token + 1] as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_found_under_its_token_in_order() {
        let tokens = [3, 0, 3, 1, 3, 0];
        let mut occurrences = Occurrences::default();
        occurrences.sort(&[9, 9, 9], 10);
        occurrences.sort(&tokens, 5);
        let found: Vec<&[u32]> = (0..5).map(|token| occurrences.of(token)).collect();
        assert_eq!(found, [&[1, 5][..], &[3], &[], &[0, 2, 4], &[]]);
    }

    #[test]
    fn backward_is_the_transpose_of_forward() {
        let (tokens, channels) = ([2, 0, 2], 2);
        let mut x = [0.0; 6];
        forward(&mut x, &tokens, &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], channels);
        assert_eq!(x, [5.0, 6.0, 1.0, 2.0, 5.0, 6.0]);
        let mut occurrences = Occurrences::default();
        occurrences.sort(&tokens, 3);
        let mut dweight = [10.0, 0.0, 0.0, 0.0, 0.0, 0.0];
        backward(&mut dweight[..2], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &occurrences, 0, channels);
        backward(&mut dweight[2..], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &occurrences, 1, channels);
        assert_eq!(dweight, [13.0, 4.0, 0.0, 0.0, 6.0, 8.0]);
    }
}
