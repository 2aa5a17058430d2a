//! Scoring the committed model on held-out text.

use crate::data::{Blocks, Corpus};
use crate::error::{Error, Result};
use crate::spec::Spec;
use tombolo_engine::{Batch, Model, Trainer};

/// Windows of a batch when scoring.
const ROWS: usize = 16;
/// Batches of a score, where the held-out text has as many.
const BATCHES_MAX: usize = 16;

/// Scores parameters on the held-out text of a run: always the same windows.
pub struct Evaluator {
    trainer: Trainer,
    blocks: Blocks,
}

impl Evaluator {
    /// For the run that `spec` describes, on `threads` threads.
    ///
    /// # Errors
    /// The text or the model does not fit the spec.
    pub fn new(spec: &Spec, corpus: &Corpus, threads: usize) -> Result<Evaluator> {
        let blocks =
            Blocks::new(corpus, spec.seed, spec.model.context, 1).map_err(|e| Error::invalid(e.to_string()))?;
        let trainer = Trainer::new(Model::init(&spec.model_config(), spec.seed)?, spec.adamw(), threads)?;
        Ok(Evaluator { trainer, blocks })
    }

    /// Held-out loss in nats per token of these parameters. Shape: (elements of the model), in the arena's order.
    ///
    /// # Errors
    /// They have another shape.
    pub fn score(&mut self, parameters: &[f32]) -> Result<f32> {
        self.trainer.parameters_mut().copy_from_slice(parameters);
        let context = self.blocks.context();
        let batches = self.blocks.held_out_batches(ROWS).min(BATCHES_MAX);
        let mut tokens = vec![0u32; ROWS * (context + 1)];
        let mut sum = 0.0f64;
        for i in 0..batches {
            self.blocks.held_out_batch(i, batches, ROWS, &mut tokens);
            sum += f64::from(self.trainer.loss(Batch { tokens: &tokens, batch: ROWS, context })?);
        }
        Ok((sum / batches as f64) as f32)
    }

    /// The model with the parameters scored last.
    pub fn model(&self) -> &Model {
        self.trainer.model()
    }
}
