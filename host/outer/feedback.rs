//! Error feedback: what a lossy codec left out of one offer goes into the next (Seide et al. 2014; SparseLoCo arXiv 2508.15706).
//!
//! The residual belongs to the host, not to the codec: residual = input − decode(encode(input)), carried with the decay that the codec
//! states. It is settled only when the log says that the offer was merged: an offer that came late reached nobody, and its whole progress
//! goes out again with the next one, so its residual must not.

/// Residuals of one island, one vector per fragment, empty until the codec first leaves something out.
#[derive(Debug, Default, Clone)]
pub struct Feedback {
    settled: Vec<Vec<f32>>,
    pending: Vec<Option<Vec<f32>>>,
}

impl Feedback {
    /// No residual yet, for `fragments` fragments.
    pub fn new(fragments: usize) -> Feedback {
        Feedback { settled: vec![Vec::new(); fragments], pending: vec![None; fragments] }
    }

    /// Adds `decay` times the settled residual of fragment `p` to what is about to be encoded.
    pub fn add(&self, p: usize, decay: f32, values: &mut [f32]) {
        for (v, r) in values.iter_mut().zip(&self.settled[p]) {
            *v += decay * r;
        }
    }

    /// Notes what the offer of fragment `p` left out; it counts once the offer is merged.
    pub fn offered(&mut self, p: usize, residual: Vec<f32>) {
        self.pending[p] = Some(residual);
    }

    /// The offer of fragment `p` has its fate.
    pub fn decided(&mut self, p: usize, merged: bool) {
        if let (Some(residual), true) = (self.pending[p].take(), merged) {
            self.settled[p] = residual;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_residual_counts_only_when_its_offer_was_merged() {
        let mut feedback = Feedback::new(1);
        feedback.offered(0, vec![1.0, -2.0]);
        let mut values = [0.0, 0.0];
        feedback.add(0, 1.0, &mut values);
        assert_eq!(values, [0.0, 0.0], "not decided yet");
        feedback.decided(0, false);
        feedback.add(0, 1.0, &mut values);
        assert_eq!(values, [0.0, 0.0], "the offer came late");
        feedback.offered(0, vec![1.0, -2.0]);
        feedback.decided(0, true);
        feedback.add(0, 0.5, &mut values);
        assert_eq!(values, [0.5, -1.0]);
    }
}
