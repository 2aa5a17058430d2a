//! An arena cut into the pieces that ops take: query, key and value as one matrix, gate and up as one.

use crate::ModelConfig;

/// The pieces of an arena, in its order; `S` is `&[f32]` for parameters and `&mut [f32]` for gradients.
pub(crate) struct Parts<S> {
    /// (V, C)
    pub(crate) embedding: S,
    pub(crate) layers: Vec<LayerParts<S>>,
    /// (C)
    pub(crate) norm: S,
    /// (V, C); none for a tied model, whose head is the embedding.
    pub(crate) head: Option<S>,
}

/// The pieces of one layer.
pub(crate) struct LayerParts<S> {
    /// (C), before attention
    pub(crate) norm1: S,
    /// ((H + 2·K)·D, C): queries, keys, values
    pub(crate) qkv: S,
    /// (C, H·D)
    pub(crate) output: S,
    /// (C), before the feed-forward block
    pub(crate) norm2: S,
    /// (2·F, C): gate, up
    pub(crate) gate_up: S,
    /// (C, F)
    pub(crate) down: S,
}

impl<'a> Parts<&'a [f32]> {
    /// Cuts parameters.
    pub(crate) fn of(config: &ModelConfig, mut arena: &'a [f32]) -> Self {
        Parts::cut(config, |values| arena.split_off(..values).unwrap_or_default())
    }

    /// The matrix that makes logits: (V, C).
    pub(crate) fn logits(&self) -> &'a [f32] {
        self.head.unwrap_or(self.embedding)
    }
}

impl<'a> Parts<&'a mut [f32]> {
    /// Cuts gradients.
    pub(crate) fn of_mut(config: &ModelConfig, mut arena: &'a mut [f32]) -> Self {
        Parts::cut(config, |values| arena.split_off_mut(..values).unwrap_or_default())
    }
}

impl<S> Parts<S> {
    fn cut(config: &ModelConfig, mut take: impl FnMut(usize) -> S) -> Self {
        let (channels, inner) = (config.hidden_size, config.intermediate_size);
        Parts {
            embedding: take(config.vocab_size * channels),
            layers: (0..config.layers)
                .map(|_| LayerParts {
                    norm1: take(channels),
                    qkv: take(config.qkv_width() * channels),
                    output: take(channels * config.attention_width()),
                    norm2: take(channels),
                    gate_up: take(2 * inner * channels),
                    down: take(channels * inner),
                })
                .collect(),
            norm: take(channels),
            head: (!config.tied).then(|| take(config.vocab_size * channels)),
        }
    }
}
