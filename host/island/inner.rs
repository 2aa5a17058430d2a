//! The inner loop as an island sees it: something that takes optimiser steps on blocks of data. The real one trains a transformer on text; tests
//! and simulations put toys in its place.

use crate::data::{Blocks, Cursor};
use crate::error::Result;
use std::collections::VecDeque;
use tombolo_engine::{Batch, Trainer};

/// One inner step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Stepped {
    /// Mean loss in nats per token.
    pub loss: f32,
    /// Tokens in the batch.
    pub tokens: u64,
    /// Of those, tokens that were trained on again because no new block was there.
    pub repeated: u64,
}

/// An inner optimiser with its model and its data. Vectors are in the arena's order. Shape of each: (elements of the model).
pub trait Inner: Send + Sync {
    /// The parameters θ.
    fn parameters(&self) -> &[f32];
    /// The parameters, to be overwritten.
    fn parameters_mut(&mut self) -> &mut [f32];
    /// Takes one step at this learning rate.
    ///
    /// # Errors
    /// The step is impossible (a batch that does not fit the model).
    fn step(&mut self, learning_rate: f32) -> Result<Stepped>;
    /// First moments, second moments and the steps that they have seen.
    fn moments(&self) -> (&[f32], &[f32], u64);
    /// Puts moments from a checkpoint in place.
    ///
    /// # Errors
    /// They have another shape.
    fn set_moments(&mut self, first: &[f32], second: &[f32], steps: u64) -> Result<()>;
    /// Its blocks of data and where it is in each: first the one in use, then those that it has not begun.
    fn held(&self) -> Vec<Cursor>;
    /// Whether another block should be claimed by now.
    fn wants_block(&self) -> bool;
    /// A block that was claimed, from this place on.
    fn give_block(&mut self, block: Cursor);
}

/// Trains a transformer on blocks of text.
pub struct TextInner {
    trainer: Trainer,
    blocks: Blocks,
    rows: usize,
    /// The block in use, and those to come.
    held: VecDeque<Cursor>,
    /// Whether the block in use has been used up before.
    repeating: bool,
    batch: Vec<u32>,
}

impl TextInner {
    /// `rows` windows a batch (B).
    pub fn new(trainer: Trainer, blocks: Blocks, rows: usize) -> TextInner {
        let batch = vec![0; rows * (blocks.context() + 1)];
        TextInner { trainer, blocks, rows, held: VecDeque::new(), repeating: false, batch }
    }
}

impl Inner for TextInner {
    fn parameters(&self) -> &[f32] {
        self.trainer.parameters()
    }

    fn parameters_mut(&mut self) -> &mut [f32] {
        self.trainer.parameters_mut()
    }

    fn step(&mut self, learning_rate: f32) -> Result<Stepped> {
        let (rows, context) = (self.rows, self.blocks.context());
        let mut begun = None;
        // An island's first block is claimed before its first step; the fallback keeps a step possible whatever happens.
        let mut cursor = self.held.pop_front().unwrap_or(Cursor::at(0));
        let held = &mut self.held;
        self.blocks.batch(&mut cursor, rows, &mut self.batch, |used| {
            let next = held.pop_front();
            begun = Some(next.is_none());
            next.unwrap_or(Cursor { window: 0, ..used })
        });
        // Rows of a block that is gone over again; in the batch in which a block ends, only those after its end.
        let rows_since = |begun: Option<bool>| if begun.is_some() { cursor.window.min(rows) } else { rows };
        self.repeating = begun.unwrap_or(self.repeating);
        let repeated_rows = if self.repeating { rows_since(begun) } else { 0 };
        self.held.push_front(cursor);
        let stats = self.trainer.step(Batch { tokens: &self.batch, batch: rows, context }, learning_rate)?;
        Ok(Stepped { loss: stats.loss, tokens: (rows * context) as u64, repeated: (repeated_rows * context) as u64 })
    }

    fn moments(&self) -> (&[f32], &[f32], u64) {
        self.trainer.moments()
    }

    fn set_moments(&mut self, first: &[f32], second: &[f32], steps: u64) -> Result<()> {
        Ok(self.trainer.set_moments(first, second, steps)?)
    }

    fn held(&self) -> Vec<Cursor> {
        self.held.iter().copied().collect()
    }

    fn wants_block(&self) -> bool {
        self.held.len() < 2
    }

    fn give_block(&mut self, block: Cursor) {
        self.held.push_back(block);
    }
}
