//! Every op of a training step at a model's shape, one at a time, on the calling thread: for the benchmark only.
//!
//! Each op runs over all rows of a batch in the pieces that a training pass would cut, on data of its own; so the
//! sum over ops is what a step would cost without threads, gathering and waiting, and with warmer caches.

use super::attention::{self, Head};
use super::matrix::Destination;
use super::pass::{CHANNELS_A_PIECE, rows_a_piece};
use super::rope::{Rotation, Turn};
use super::{adamw, cross_entropy, embedding, linear, rms_norm, simd, swiglu};
use crate::{ModelConfig, random::Random};

/// One op, ready to run.
pub struct Op {
    /// Its name, with direction.
    pub name: &'static str,
    /// How often a step runs it.
    pub calls: usize,
    /// Floating-point operations of one call's matrix products; 0 for element-wise ops.
    pub flops: f64,
    /// One call.
    pub run: Box<dyn FnMut()>,
}

/// All ops of a step on `batch` sequences of `context` tokens.
pub fn ops(config: &ModelConfig, batch: usize, context: usize) -> Vec<Op> {
    let mut ops = Ops { rows: batch * context, random: Random::new(1, 0), list: Vec::new() };
    let (layers, channels, inner) = (config.layers, config.hidden_size, config.intermediate_size);
    ops.embedding(config);
    ops.norms(channels, 2 * layers + 1);
    ops.linear(["qkv", "qkv backward to input", "qkv backward to weight"], channels, config.qkv_width(), layers);
    ops.rotation(config, context);
    ops.attention(config, batch, context);
    let width = config.attention_width();
    ops.linear(["output", "output backward to input", "output backward to weight"], width, channels, layers);
    ops.linear(["gate+up", "gate+up backward to input", "gate+up backward to weight"], channels, 2 * inner, layers);
    ops.swiglu(inner, layers);
    ops.linear(["down", "down backward to input", "down backward to weight"], inner, channels, layers);
    ops.linear(["head", "head backward to input", "head backward to weight"], channels, config.vocab_size, 1);
    ops.cross_entropy(config.vocab_size);
    ops.optimiser(config.parameters());
    ops.list
}

struct Ops {
    rows: usize,
    random: Random,
    list: Vec<Op>,
}

impl Ops {
    fn push(&mut self, name: &'static str, calls: usize, flops: f64, run: impl FnMut() + 'static) {
        self.list.push(Op { name, calls, flops, run: Box::new(run) });
    }

    fn draws(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.random.normal()).collect()
    }

    fn tokens(&mut self, vocabulary: usize) -> Vec<u32> {
        (0..self.rows).map(|_| (self.random.next() % vocabulary as u64) as u32).collect()
    }

    fn embedding(&mut self, config: &ModelConfig) {
        let (vocabulary, channels) = (config.vocab_size, config.hidden_size);
        let (weight, tokens, mut x) =
            (self.draws(vocabulary * channels), self.tokens(vocabulary), self.draws(self.rows * channels));
        let mut occurrences = embedding::Occurrences::default();
        occurrences.sort(&tokens, vocabulary);
        let (mut dweight, dx) = (weight.clone(), x.clone());
        self.push("embedding", 1, 0.0, move || embedding::forward(&mut x, &tokens, &weight, channels));
        self.push("embedding backward", 1, 0.0, move || {
            dweight.fill(0.0);
            embedding::backward(&mut dweight, &dx, &occurrences, 0, channels);
        });
    }

    fn norms(&mut self, channels: usize, calls: usize) {
        let (x, weight, dy) =
            (self.draws(self.rows * channels), self.draws(channels), self.draws(self.rows * channels));
        let (mut y, mut scale) = (x.clone(), vec![0.0; self.rows]);
        rms_norm::forward(&mut y, &mut scale, &x, &weight, 1e-5);
        let (x2, weight2, mut scale2) = (x.clone(), weight.clone(), scale.clone());
        self.push("norm", calls, 0.0, move || rms_norm::forward(&mut y, &mut scale2, &x2, &weight2, 1e-5));
        let (mut dx, mut dweight, mut spoilt) = (x.clone(), weight.clone(), dy.clone());
        self.push("norm backward", calls, 0.0, move || {
            // In a step dy is fresh each time; left alone it would grow out of range here.
            spoilt.copy_from_slice(&dy);
            dx.fill(0.0);
            rms_norm::backward(&mut dx, &mut dweight, &mut spoilt, &x, &scale, &weight);
        });
    }

    fn linear(&mut self, names: [&'static str; 3], inputs: usize, outputs: usize, calls: usize) {
        let chunk = rows_a_piece(self.rows);
        let flops = 2.0 * (self.rows * inputs * outputs) as f64;
        let (x, dy) = (self.draws(self.rows * inputs), self.draws(self.rows * outputs));
        let weight = self.draws(outputs * inputs);
        let [forward, backward_input, backward_weight] = names;
        let (mut y, x2, weight2) = (dy.clone(), x.clone(), weight.clone());
        self.push(forward, calls, flops, move || {
            for (y, x) in y.chunks_mut(chunk * outputs).zip(x2.chunks(chunk * inputs)) {
                linear::forward(y, x, &weight2, inputs, Destination::Overwrite);
            }
        });
        let (mut dx, dy2, mut dweight) = (x.clone(), dy.clone(), weight.clone());
        self.push(backward_input, calls, flops, move || {
            for (dx, dy) in dx.chunks_mut(chunk * inputs).zip(dy2.chunks(chunk * outputs)) {
                linear::backward_input(dx, dy, &weight, inputs);
            }
        });
        self.push(backward_weight, calls, flops, move || {
            for (piece, dweight) in dweight.chunks_mut(CHANNELS_A_PIECE * inputs).enumerate() {
                let first = piece * CHANNELS_A_PIECE;
                linear::backward_weight(dweight, &dy, &x, outputs, inputs, first, Destination::Overwrite);
            }
        });
    }

    fn rotation(&mut self, config: &ModelConfig, context: usize) {
        let (width, rotated) = (config.qkv_width(), config.heads + config.kv_heads);
        let rotation = Rotation::new(context, config.head_dim, config.rope_theta);
        let mut qkv = self.draws(self.rows * width);
        self.push("rotation, both ways", 2 * config.layers, 0.0, move || {
            rotation.apply(&mut qkv, width, rotated, 0, context, Turn::Forward);
        });
    }

    fn attention(&mut self, config: &ModelConfig, batch: usize, context: usize) {
        let head = Head { index: 0, heads: config.heads, kv_heads: config.kv_heads, head_dim: config.head_dim };
        let width = head.group() * head.head_dim;
        // The scores below and on the diagonal, two products forward and five backward.
        let product = 2.0 * (batch * config.heads * config.head_dim * context * (context + 1) / 2) as f64;
        let qkv = self.draws(batch * context * head.width());
        let mut heads = vec![0.0; batch * config.kv_heads * context * width];
        let mut log_sums = vec![0.0; batch * config.heads * context];
        let every = move |qkv: &[f32], heads: &mut [f32], log_sums: &mut [f32], scratch: &mut attention::Scratch| {
            let pieces = heads.chunks_mut(context * width).zip(log_sums.chunks_mut(head.group() * context));
            for (piece, (out, log_sums)) in pieces.enumerate() {
                let number = piece / head.kv_heads * context * head.width();
                let head = Head { index: piece % head.kv_heads, ..head };
                attention::forward(out, log_sums, &qkv[number..][..context * head.width()], head, scratch);
            }
        };
        let mut scratch = attention::Scratch::default();
        every(&qkv, &mut heads, &mut log_sums, &mut scratch);
        let (qkv2, mut heads2, mut log_sums2) = (qkv.clone(), heads.clone(), log_sums.clone());
        self.push("attention", config.layers, 2.0 * product, move || {
            every(&qkv2, &mut heads2, &mut log_sums2, &mut scratch);
        });
        let mut scratch = attention::Scratch::default();
        let (out, dout) = (self.draws(batch * context * config.attention_width()), heads);
        let (mut dheads, all) = (vec![0.0; qkv.len()], config.attention_width());
        self.push("attention backward", config.layers, 5.0 * product, move || {
            let pieces = dheads.chunks_mut(context * (head.group() + 2) * head.head_dim);
            for (piece, (dqkv, log_sums)) in pieces.zip(log_sums.chunks(head.group() * context)).enumerate() {
                let number = piece / head.kv_heads * context;
                let head = Head { index: piece % head.kv_heads, ..head };
                let qkv = &qkv[number * head.width()..][..context * head.width()];
                let (out, dout) = (&out[number * all..][..context * all], &dout[number * all..][..context * all]);
                attention::backward(dqkv, qkv, log_sums, out, dout, head, &mut scratch);
            }
        });
    }

    fn swiglu(&mut self, inner: usize, calls: usize) {
        let (gate_up, dy) = (self.draws(self.rows * 2 * inner), self.draws(self.rows * inner));
        let (mut y, gate_up2, mut dgate_up) = (dy.clone(), gate_up.clone(), gate_up.clone());
        self.push("SwiGLU", calls, 0.0, move || swiglu::forward(&mut y, &gate_up2, inner));
        self.push("SwiGLU backward", calls, 0.0, move || swiglu::backward(&mut dgate_up, &dy, &gate_up, inner));
    }

    fn cross_entropy(&mut self, vocabulary: usize) {
        let (targets, logits) = (self.tokens(vocabulary), self.draws(self.rows * vocabulary));
        let (mut losses, mut spoilt) = (vec![0.0; self.rows], logits);
        self.push("cross-entropy, both ways", 1, 0.0, move || {
            cross_entropy::forward_backward(&mut losses, &mut spoilt, &targets, vocabulary, 1.0);
        });
    }

    fn optimiser(&mut self, parameters: usize) {
        let (mut p, g) = (self.draws(parameters), self.draws(parameters));
        let (mut m, mut v) = (vec![0.0; parameters], vec![0.0; parameters]);
        let g2 = g.clone();
        self.push("gradient norm", 1, 0.0, move || {
            std::hint::black_box(g2.chunks(16 << 10).map(simd::sum_of_squares).sum::<f32>());
        });
        let step = adamw::Step {
            gradient_scale: 1.0,
            beta1: 0.9,
            beta2: 0.95,
            epsilon: 1e-8,
            keep: 1.0,
            rate: 1e-4,
            root_correction: 1.0,
        };
        self.push("AdamW", 1, 0.0, move || adamw::update(&mut p, &mut m, &mut v, &g, step));
    }
}
