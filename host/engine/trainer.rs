//! Training: AdamW steps on a model, with everything that a step needs allocated once.

use rayon::prelude::*;

use crate::cpu::{Pass, adamw, simd};
use crate::{Error, Layout, Model, ModelConfig, Result, TensorKind};

/// Settings of AdamW, constant over a run; the learning rate comes with each step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamW {
    /// Decay of the first moment.
    pub beta1: f32,
    /// Decay of the second moment.
    pub beta2: f32,
    /// Added to the root of the second moment.
    pub eps: f32,
    /// Decoupled weight decay of matrices, embedding and head; vectors have none.
    pub weight_decay: f32,
    /// The gradient is scaled down to this norm where it is longer; infinity never scales.
    pub clip_norm: f32,
}

/// One batch of token ids.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    /// (B, T+1), row-major: inputs are the first T of a row, targets the last T.
    pub tokens: &'a [u32],
    /// B
    pub batch: usize,
    /// T
    pub context: usize,
}

/// What one step measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepStats {
    /// Mean loss before the step, in nats per target.
    pub loss: f32,
    /// Euclidean norm of the gradient, before clipping.
    pub gradient_norm: f32,
}

/// A model in training: parameters, moments, threads and the memory of a pass.
pub struct Trainer {
    model: Model,
    adamw: AdamW,
    gradients: Vec<f32>,
    first: Vec<f32>,
    second: Vec<f32>,
    steps: u64,
    spans: Vec<Span>,
    pass: Pass,
    pool: rayon::ThreadPool,
}

/// The most values of a [`Span`].
const SPAN: usize = 16 << 10;

/// A range of the arena within one tensor: the grain of norms and of the optimiser's work.
struct Span {
    values: usize,
    decays: bool,
}

impl Span {
    fn of(layout: &Layout) -> Vec<Span> {
        let mut spans = Vec::new();
        for tensor in &layout.tensors {
            let decays = tensor.kind != TensorKind::Vector;
            let elements = tensor.elements();
            spans.extend((0..elements).step_by(SPAN).map(|start| Span { values: SPAN.min(elements - start), decays }));
        }
        spans
    }
}

impl Trainer {
    /// A trainer with fresh moments and its own `threads` threads; 0 means one per core.
    ///
    /// # Errors
    /// [`Error::Config`] for an impossible shape, [`Error::Argument`] for parameters that do not fit it or settings
    /// out of range, [`Error::Threads`].
    pub fn new(model: Model, adamw: AdamW, threads: usize) -> Result<Trainer> {
        model.check()?;
        let elements = model.layout.elements();
        check_adamw(&adamw)?;
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .thread_name(|thread| format!("engine-{thread}"))
            .build()
            .map_err(|source| Error::Threads { threads, source })?;
        Ok(Trainer {
            pass: Pass::new(&model.config, pool.current_num_threads()),
            gradients: vec![0.0; elements],
            first: vec![0.0; elements],
            second: vec![0.0; elements],
            steps: 0,
            spans: Span::of(&model.layout),
            model,
            adamw,
            pool,
        })
    }

    /// One AdamW step on one batch.
    ///
    /// # Errors
    /// [`Error::Argument`] for a batch that does not fit the model, [`Error::NonFinite`] where loss or gradient is
    /// not finite. Parameters and moments are then as before.
    pub fn step(&mut self, batch: Batch, learning_rate: f32) -> Result<StepStats> {
        let stats = self.gradient(batch)?;
        for (what, value) in [("loss", stats.loss), ("gradient norm", stats.gradient_norm)] {
            if !value.is_finite() {
                return Err(Error::NonFinite { what, value, step: self.steps });
            }
        }
        self.update(stats.gradient_norm, learning_rate);
        Ok(stats)
    }

    /// The mean loss of a batch, in nats per target. Nothing changes; a diverged model gives NaN.
    ///
    /// # Errors
    /// [`Error::Argument`] for a batch that does not fit the model.
    pub fn loss(&mut self, batch: Batch) -> Result<f32> {
        check_batch(&self.model.config, &batch)?;
        let Trainer { pool, pass, model, .. } = self;
        Ok(pool.install(|| pass.loss(&model.parameters, &batch)) as f32)
    }

    /// Loss and gradient of a batch without a step; [`Trainer::gradients`] has the gradient afterwards.
    ///
    /// # Errors
    /// [`Error::Argument`] for a batch that does not fit the model.
    pub fn gradient(&mut self, batch: Batch) -> Result<StepStats> {
        check_batch(&self.model.config, &batch)?;
        let Trainer { pool, pass, model, gradients, spans, .. } = self;
        pool.install(|| {
            let loss = pass.gradient(&model.parameters, &batch, gradients) as f32;
            Ok(StepStats { loss, gradient_norm: norm(gradients, spans) })
        })
    }

    /// The gradient of the last [`Trainer::gradient`] or [`Trainer::step`], in the order of the arena, not clipped.
    pub fn gradients(&self) -> &[f32] {
        &self.gradients
    }

    /// The model as it stands.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// The arena of parameters.
    pub fn parameters(&self) -> &[f32] {
        &self.model.parameters
    }

    /// The arena of parameters, to adopt fragments into.
    pub fn parameters_mut(&mut self) -> &mut [f32] {
        &mut self.model.parameters
    }

    /// First and second moments, in the order of the arena, and the number of steps that they have seen.
    pub fn moments(&self) -> (&[f32], &[f32], u64) {
        (&self.first, &self.second, self.steps)
    }

    /// Continues from stored moments.
    ///
    /// # Errors
    /// [`Error::Argument`] if a length is not that of the arena; nothing is changed then.
    pub fn set_moments(&mut self, first: &[f32], second: &[f32], steps: u64) -> Result<()> {
        expect("first moments", "values", self.first.len(), first.len())?;
        expect("second moments", "values", self.second.len(), second.len())?;
        self.first.copy_from_slice(first);
        self.second.copy_from_slice(second);
        self.steps = steps;
        Ok(())
    }

    /// AdamW with the gradient clipped to `clip_norm`.
    fn update(&mut self, gradient_norm: f32, learning_rate: f32) {
        self.steps += 1;
        let AdamW { beta1, beta2, eps, weight_decay, clip_norm } = self.adamw;
        // Powers and corrections in f64: at step 1, 1 − β₂ in f32 would have lost four digits.
        let correction = |beta: f32| 1.0 - f64::from(beta).powf(self.steps as f64);
        let step = |decays: bool| adamw::Step {
            // The 1e-6 is PyTorch's, so that both clip to the same value.
            gradient_scale: (clip_norm / (gradient_norm + 1e-6)).min(1.0),
            beta1,
            beta2,
            epsilon: eps,
            keep: if decays { (1.0 - f64::from(learning_rate) * f64::from(weight_decay)) as f32 } else { 1.0 },
            rate: (f64::from(learning_rate) / correction(beta1)) as f32,
            root_correction: (1.0 / correction(beta2).sqrt()) as f32,
        };
        let (decaying, other) = (step(true), step(false));
        let mut work = Vec::with_capacity(self.spans.len());
        let (mut p, mut m, mut v, mut g) =
            (&mut self.model.parameters[..], &mut self.first[..], &mut self.second[..], &self.gradients[..]);
        for span in &self.spans {
            let piece = (
                p.split_off_mut(..span.values).unwrap_or_default(),
                m.split_off_mut(..span.values).unwrap_or_default(),
                v.split_off_mut(..span.values).unwrap_or_default(),
                g.split_off(..span.values).unwrap_or_default(),
            );
            work.push((piece, if span.decays { decaying } else { other }));
        }
        self.pool.install(|| {
            work.into_par_iter().for_each(|((p, m, v, g), step)| adamw::update(p, m, v, g, step));
        });
    }
}

/// Euclidean norm: f32 within a span, f64 over spans, in their order.
fn norm(values: &[f32], spans: &[Span]) -> f32 {
    let mut rest = values;
    let pieces: Vec<&[f32]> = spans.iter().map(|span| rest.split_off(..span.values).unwrap_or_default()).collect();
    let squares: Vec<f32> = pieces.into_par_iter().map(simd::sum_of_squares).collect();
    squares.into_iter().map(f64::from).sum::<f64>().sqrt() as f32
}

fn expect(what: &'static str, unit: &str, expected: usize, found: usize) -> Result<()> {
    if expected == found {
        return Ok(());
    }
    Err(Error::Argument { what, expected: format!("{expected} {unit}"), found: format!("{found}") })
}

fn check_adamw(adamw: &AdamW) -> Result<()> {
    let AdamW { beta1, beta2, eps, weight_decay, clip_norm } = *adamw;
    let checks = [
        ("beta1", (0.0..1.0).contains(&beta1), "at least 0 and below 1", beta1),
        ("beta2", (0.0..1.0).contains(&beta2), "at least 0 and below 1", beta2),
        ("eps", eps > 0.0 && eps.is_finite(), "a finite number above 0", eps),
        (
            "weight_decay",
            weight_decay >= 0.0 && weight_decay.is_finite(),
            "a finite number of at least 0",
            weight_decay,
        ),
        ("clip_norm", clip_norm > 0.0, "a number above 0, infinity for no clipping", clip_norm),
    ];
    for (what, good, expected, found) in checks {
        if !good {
            return Err(Error::Argument { what, expected: expected.to_owned(), found: found.to_string() });
        }
    }
    Ok(())
}

fn check_batch(config: &ModelConfig, batch: &Batch) -> Result<()> {
    let argument = |what, expected, found| Err(Error::Argument { what, expected, found });
    if batch.batch == 0 {
        return argument("batch.batch", "at least 1 sequence".to_owned(), "0".to_owned());
    }
    if batch.context == 0 || batch.context > config.context {
        return argument("batch.context", format!("1 to {} tokens", config.context), batch.context.to_string());
    }
    expect(
        "batch.tokens",
        "values (batch · (context + 1))",
        batch.batch.saturating_mul(batch.context + 1),
        batch.tokens.len(),
    )?;
    match batch.tokens.iter().find(|&&token| token as usize >= config.vocab_size) {
        None => Ok(()),
        Some(token) => argument("batch.tokens", format!("ids below {}", config.vocab_size), token.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADAMW: AdamW = AdamW { beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.1, clip_norm: 1.0 };

    fn trainer(adamw: AdamW) -> Trainer {
        let config = ModelConfig {
            vocab_size: 20,
            hidden_size: 16,
            intermediate_size: 24,
            layers: 1,
            heads: 2,
            kv_heads: 1,
            head_dim: 8,
            context: 12,
            rope_theta: 10_000.0,
            norm_eps: 1e-5,
            tied: false,
            initializer_range: 0.1,
        };
        Trainer::new(Model::init(&config, 3).expect("a possible shape"), adamw, 2).expect("a trainer")
    }

    /// Two rows of a cycle through the vocabulary: easily learnt.
    fn tokens() -> Vec<u32> {
        (0..2 * 13).map(|i| i % 20).collect()
    }

    fn batch(tokens: &[u32]) -> Batch<'_> {
        Batch { tokens, batch: 2, context: 12 }
    }

    #[test]
    fn training_learns_what_can_be_learnt() {
        let (mut trainer, tokens) = (trainer(ADAMW), tokens());
        let first = trainer.loss(batch(&tokens)).expect("a loss");
        for _ in 0..200 {
            trainer.step(batch(&tokens), 1e-2).expect("a step");
        }
        let last = trainer.loss(batch(&tokens)).expect("a loss");
        // ln 20 = 3.0 at the start, and every next token follows from the one before.
        assert!(first > 2.5 && last < 0.05, "{first} {last}");
    }

    #[test]
    fn a_step_that_is_not_finite_changes_nothing() {
        let (mut trainer, tokens) = (trainer(ADAMW), tokens());
        trainer.step(batch(&tokens), 1e-2).expect("a step");
        let place = trainer.model().layout.tensor("lm_head.weight").expect("a head").offset;
        for value in [f32::NAN, f32::INFINITY, 1e38] {
            let good = std::mem::replace(&mut trainer.parameters_mut()[place], value);
            let before = (trainer.parameters().to_vec(), trainer.first.clone(), trainer.second.clone());
            let error = trainer.step(batch(&tokens), 1e-2).expect_err("this step must fail");
            assert!(matches!(error, Error::NonFinite { step: 1, .. }), "{error}");
            let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(trainer.parameters()), bits(&before.0));
            assert_eq!(trainer.moments(), (&before.1[..], &before.2[..], 1));
            trainer.parameters_mut()[place] = good;
        }
        trainer.step(batch(&tokens), 1e-2).expect("training goes on");
    }

    #[test]
    fn stored_moments_continue_where_they_were() {
        let (mut whole, tokens) = (trainer(ADAMW), tokens());
        for _ in 0..3 {
            whole.step(batch(&tokens), 1e-2).expect("a step");
        }
        let mut resumed = trainer(ADAMW);
        resumed.parameters_mut().copy_from_slice(whole.parameters());
        let (first, second, steps) = whole.moments();
        resumed.set_moments(first, second, steps).expect("fitting moments");
        for _ in 0..3 {
            whole.step(batch(&tokens), 1e-2).expect("a step");
            resumed.step(batch(&tokens), 1e-2).expect("a step");
        }
        assert_eq!(whole.parameters(), resumed.parameters());
        let error = resumed.set_moments(&[0.0], &[0.0], 0).expect_err("wrong lengths");
        assert!(matches!(error, Error::Argument { what: "first moments", .. }));
    }

    #[test]
    fn vectors_do_not_decay() {
        let settings = AdamW { weight_decay: 0.5, ..ADAMW };
        let (mut with, mut without) = (trainer(settings), trainer(AdamW { weight_decay: 0.0, ..settings }));
        let tokens = tokens();
        for trainer in [&mut with, &mut without] {
            trainer.step(batch(&tokens), 1e-2).expect("a step");
        }
        for tensor in &with.model().layout.tensors {
            let same = with.parameters()[tensor.range()] == without.parameters()[tensor.range()];
            assert_eq!(same, tensor.kind == TensorKind::Vector, "{}", tensor.name);
        }
    }

    #[test]
    fn clipping_scales_the_whole_gradient_down() {
        // Without moments AdamW would hide the scale; the first moment after one step is (1 − β₁) times the gradient.
        let tokens = tokens();
        let mut clipped = trainer(AdamW { clip_norm: 0.01, ..ADAMW });
        let norm = clipped.step(batch(&tokens), 1e-3).expect("a step").gradient_norm;
        assert!(norm > 0.01);
        let first = clipped.moments().0.iter().map(|m| f64::from(*m).powi(2)).sum::<f64>().sqrt();
        // 0.01 · 0.1, to the rounding of the norm and the 1e-6 in the quotient.
        assert!((first / 1e-3 - 1.0).abs() < 1e-4, "{first}");
    }

    #[test]
    fn batches_that_do_not_fit_are_refused() {
        let mut trainer = trainer(ADAMW);
        let tokens = tokens();
        let cases = [
            ("batch.batch", Batch { batch: 0, ..batch(&tokens) }),
            ("batch.context", Batch { context: 0, ..batch(&tokens) }),
            ("batch.context", Batch { context: 13, ..batch(&tokens) }),
            ("batch.tokens", Batch { context: 11, ..batch(&tokens) }),
            ("batch.tokens", Batch { batch: 1, tokens: &[20; 13], context: 12 }),
        ];
        for (field, batch) in cases {
            for error in [trainer.loss(batch).err(), trainer.step(batch, 1e-3).err()] {
                let Some(Error::Argument { what, .. }) = error else { panic!("{field}: {error:?}") };
                assert_eq!(what, field);
            }
        }
    }

    #[test]
    fn settings_out_of_range_are_refused() {
        let model = trainer(ADAMW).model().clone();
        for (field, adamw) in [
            ("beta1", AdamW { beta1: 1.0, ..ADAMW }),
            ("beta2", AdamW { beta2: f32::NAN, ..ADAMW }),
            ("eps", AdamW { eps: 0.0, ..ADAMW }),
            ("weight_decay", AdamW { weight_decay: -0.1, ..ADAMW }),
            ("clip_norm", AdamW { clip_norm: 0.0, ..ADAMW }),
        ] {
            let Err(Error::Argument { what, .. }) = Trainer::new(model.clone(), adamw, 1) else { panic!("{field}") };
            assert_eq!(what, field);
        }
        let mut short = model;
        short.parameters.pop();
        assert!(matches!(Trainer::new(short, ADAMW, 1), Err(Error::Argument { what: "model.parameters", .. })));
    }
}
