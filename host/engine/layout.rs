//! Where each named tensor lies in the flat arena of parameters.
//!
//! The order is part of the format that islands exchange: embedding; per layer norm, query, key, value, output, norm,
//! gate, up, down; final norm; head. There are no gaps. Query, key and value lie side by side so that one matrix
//! product serves all three, and so do gate and up.

use serde::{Deserialize, Serialize};

use crate::ModelConfig;

/// What a tensor is to an optimiser or a merge policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TensorKind {
    /// Token embedding (V, C); of a tied model also the head.
    Embedding,
    /// Output head (V, C).
    Head,
    /// A linear map inside a layer.
    Matrix,
    /// A scale, such as the weight of a norm.
    Vector,
}

/// One named tensor of the arena.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tensor {
    /// The name that Hugging Face gives it.
    pub name: String,
    /// Its shape, row-major; linear maps are (outputs, inputs).
    pub shape: Vec<usize>,
    /// What it is.
    pub kind: TensorKind,
    /// Its first element's index in the arena.
    pub offset: usize,
}

impl Tensor {
    /// Number of values.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Its range of the arena.
    pub fn range(&self) -> std::ops::Range<usize> {
        self.offset..self.offset + self.elements()
    }
}

/// All tensors of a model, in the order of the arena.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    /// The tensors, by ascending offset.
    pub tensors: Vec<Tensor>,
}

impl Layout {
    /// The layout of a model of this shape, which must be a possible one ([`ModelConfig::problems`]).
    pub fn of(config: &ModelConfig) -> Layout {
        let channels = config.hidden_size;
        let queries = config.heads * config.head_dim;
        let keys = config.kv_heads * config.head_dim;
        let inner = config.intermediate_size;
        let mut layout = Layout { tensors: Vec::new() };
        layout.push("model.embed_tokens.weight", &[config.vocab_size, channels], TensorKind::Embedding);
        for layer in 0..config.layers {
            let mut push = |name: &str, shape: &[usize]| {
                let kind = if shape.len() == 1 { TensorKind::Vector } else { TensorKind::Matrix };
                layout.push(&format!("model.layers.{layer}.{name}.weight"), shape, kind);
            };
            push("input_layernorm", &[channels]);
            push("self_attn.q_proj", &[queries, channels]);
            push("self_attn.k_proj", &[keys, channels]);
            push("self_attn.v_proj", &[keys, channels]);
            push("self_attn.o_proj", &[channels, queries]);
            push("post_attention_layernorm", &[channels]);
            push("mlp.gate_proj", &[inner, channels]);
            push("mlp.up_proj", &[inner, channels]);
            push("mlp.down_proj", &[channels, inner]);
        }
        layout.push("model.norm.weight", &[channels], TensorKind::Vector);
        if !config.tied {
            layout.push("lm_head.weight", &[config.vocab_size, channels], TensorKind::Head);
        }
        layout
    }

    /// Number of values of all tensors together: the length of the arena.
    pub fn elements(&self) -> usize {
        self.tensors.last().map_or(0, |last| last.range().end)
    }

    /// The tensor of that name.
    pub fn tensor(&self, name: &str) -> Option<&Tensor> {
        self.tensors.iter().find(|tensor| tensor.name == name)
    }

    fn push(&mut self, name: &str, shape: &[usize], kind: TensorKind) {
        let offset = self.elements();
        self.tensors.push(Tensor { name: name.to_owned(), shape: shape.to_vec(), kind, offset });
    }
}
