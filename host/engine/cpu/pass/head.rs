//! The end of the model, both ways at once: last norm, logits, losses, and their gradients in place of the logits.

use rayon::prelude::*;

use super::weight::{Pieces, add_up};
use super::{Pass, Shape, own};
use crate::cpu::matrix::Destination;
use crate::cpu::parts::Parts;
use crate::cpu::{cross_entropy, linear, rms_norm};

impl Pass {
    /// Last norm, logits, losses; with `gradients` also those of head, norm and the stream before them.
    pub(super) fn head(
        &mut self,
        weights: &Parts<&[f32]>,
        mut gradients: Option<&mut Parts<&mut [f32]>>,
        shape: Shape,
    ) {
        let Shape { rows, chunk, channels, vocabulary, .. } = shape;
        let epsilon = self.config.norm_eps;
        let backward = gradients.is_some();
        let (scratch, last) = (&self.scratch, &self.stream[self.stream.len() - 1]);
        let at_a_time = shape.logit_rows(self.logits_max);
        for first in (0..rows).step_by(at_a_time) {
            let count = at_a_time.min(rows - first);
            let some = first..first + count;
            let first_piece = first / chunk;
            (
                self.norm[some.start * channels..some.end * channels].par_chunks_mut(chunk * channels),
                self.scale[some.clone()].par_chunks_mut(chunk),
                self.logits[..count * vocabulary].par_chunks_mut(chunk * vocabulary),
                self.losses[some.clone()].par_chunks_mut(chunk),
                self.dstream[some.start * channels..some.end * channels].par_chunks_mut(chunk * channels),
                self.dnorm1[first_piece * channels..].par_chunks_mut(channels),
                last[some.start * channels..some.end * channels].par_chunks(chunk * channels),
                self.targets[some.clone()].par_chunks(chunk),
            )
                .into_par_iter()
                .with_max_len(1)
                .for_each(|(norm, scale, logits, losses, dx, dweight, x, targets)| {
                    rms_norm::forward(norm, scale, x, weights.norm, epsilon);
                    linear::forward(logits, norm, weights.logits(), channels, Destination::Overwrite);
                    cross_entropy::forward_backward(losses, logits, targets, vocabulary, 1.0 / rows as f32);
                    if backward {
                        let scratch = &mut *own(scratch);
                        let dnorm = &mut scratch.channels[..norm.len()];
                        linear::backward_input(dnorm, logits, weights.logits(), channels);
                        dweight.fill(0.0);
                        // Nothing flows past the last norm, so there is no residual to add.
                        dx.fill(0.0);
                        rms_norm::backward(dx, dweight, dnorm, x, scale, weights.norm);
                    }
                });
            if let Some(gradients) = gradients.as_deref_mut() {
                let destination = if first == 0 { Destination::Overwrite } else { Destination::Add };
                let head = gradients.head.as_deref_mut().unwrap_or(gradients.embedding);
                let norm = &self.norm[some.start * channels..some.end * channels];
                let mut pieces = Pieces::default();
                pieces.add(head, &self.logits[..count * vocabulary], norm, channels, destination);
                pieces.run();
            }
        }
        if let Some(gradients) = gradients {
            add_up(gradients.norm, &self.dnorm1);
        }
    }
}
