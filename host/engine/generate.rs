//! Sampling from a model one token at a time, with a cache of keys and values.
//!
//! Runs on the calling thread. Where the model's context is full, generation slides: it starts again from the last
//! half context, because a rotary cache cannot be shifted without changing what its keys mean.

use crate::cpu::{Decoder, Parts};
use crate::random::Random;
use crate::{Error, Model, Result};

/// How the next token is drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// 0 takes the likeliest token; 1 samples from the model's distribution; lower sharpens it.
    pub temperature: f32,
    /// Only the likeliest this many tokens are drawn; 0 means all.
    pub top_k: usize,
    /// Seed of the draws.
    pub seed: u64,
}

/// `tokens` new tokens after `prompt`, without the prompt. The same arguments give the same tokens.
///
/// # Errors
/// [`Error::Argument`] for an empty prompt, ids beyond the vocabulary, a negative or non-finite temperature;
/// [`Error::Config`] for an impossible shape.
pub fn generate(model: &Model, prompt: &[u32], tokens: usize, sampling: &Sampling) -> Result<Vec<u32>> {
    check_tokens(model, prompt)?;
    if !(sampling.temperature >= 0.0 && sampling.temperature.is_finite()) {
        return Err(Error::Argument {
            what: "sampling.temperature",
            expected: "a finite number of at least 0".to_owned(),
            found: sampling.temperature.to_string(),
        });
    }
    let context = model.config.context;
    let weights = Parts::of(&model.config, &model.parameters);
    let mut random = Random::new(sampling.seed, 0);
    let mut decoder = Decoder::new(&model.config, &weights);
    let mut history = prompt.to_vec();
    let mut fed = prompt.len().saturating_sub(context);
    for _ in 0..tokens {
        if decoder.position() + (history.len() - fed) > context {
            decoder.clear();
            fed = history.len() - (context / 2).max(1);
        }
        let logits = decoder.last_logits(&history[fed..]);
        fed = history.len();
        history.push(draw(&logits, sampling, &mut random));
    }
    Ok(history.split_off(prompt.len()))
}

impl Model {
    /// Logits (T, V) of every position of one sequence of at most `config.context` tokens.
    ///
    /// # Errors
    /// [`Error::Argument`] for an empty or too long sequence or ids beyond the vocabulary.
    pub fn logits(&self, tokens: &[u32]) -> Result<Vec<f32>> {
        check_tokens(self, tokens)?;
        if tokens.len() > self.config.context {
            return Err(Error::Argument {
                what: "tokens",
                expected: format!("at most {} tokens", self.config.context),
                found: tokens.len().to_string(),
            });
        }
        let weights = Parts::of(&self.config, &self.parameters);
        Ok(Decoder::new(&self.config, &weights).logits(tokens))
    }
}

fn check_tokens(model: &Model, tokens: &[u32]) -> Result<()> {
    model.check()?;
    let argument = |expected, found| Err(Error::Argument { what: "tokens", expected, found });
    if tokens.is_empty() {
        return argument("at least 1 token to start from".to_owned(), "none".to_owned());
    }
    match tokens.iter().find(|&&token| token as usize >= model.config.vocab_size) {
        None => Ok(()),
        Some(token) => argument(format!("ids below {}", model.config.vocab_size), token.to_string()),
    }
}

/// Draws from softmax(logits / temperature) over the `top_k` likeliest; of equal logits the lower id comes first.
fn draw(logits: &[f32], sampling: &Sampling, random: &mut Random) -> u32 {
    let mut order: Vec<u32> = (0..logits.len() as u32).collect();
    let likelier = |a: &u32, b: &u32| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b));
    let kept = match (sampling.temperature == 0.0, sampling.top_k) {
        (true, _) => 1,
        (false, 0) => order.len(),
        (false, top_k) => top_k.min(order.len()),
    };
    if kept < order.len() {
        order.select_nth_unstable_by(kept - 1, likelier);
        order.truncate(kept);
    }
    if kept == 1 {
        return order[0];
    }
    // Selection leaves no order of its own that one may rely on.
    order.sort_unstable_by(likelier);
    let top = f64::from(logits[order[0] as usize]);
    let temperature = f64::from(sampling.temperature);
    let weights: Vec<f64> =
        order.iter().map(|&token| ((f64::from(logits[token as usize]) - top) / temperature).exp()).collect();
    let mut left = random.uniform() * weights.iter().sum::<f64>();
    for (token, weight) in order.iter().zip(&weights) {
        left -= weight;
        if left < 0.0 {
            return *token;
        }
    }
    // Only rounding gets here.
    order[kept - 1]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ModelConfig;

    fn model() -> Model {
        let config = ModelConfig {
            vocab_size: 48,
            hidden_size: 32,
            intermediate_size: 48,
            layers: 2,
            heads: 4,
            kv_heads: 2,
            head_dim: 8,
            context: 96,
            rope_theta: 10_000.0,
            norm_eps: 1e-5,
            tied: false,
            initializer_range: 0.3,
        };
        Model::init(&config, 5).expect("a possible shape")
    }

    const GREEDY: Sampling = Sampling { temperature: 0.0, top_k: 0, seed: 0 };

    #[test]
    fn the_cache_changes_no_token() {
        let model = model();
        for sampling in [GREEDY, Sampling { temperature: 1.0, top_k: 10, seed: 3 }] {
            let prompt = [1, 2, 3];
            let cached = generate(&model, &prompt, 80, &sampling).expect("tokens");
            let mut random = Random::new(sampling.seed, 0);
            let mut history = prompt.to_vec();
            for _ in 0..80 {
                let logits = model.logits(&history).expect("logits");
                history.push(draw(&logits[logits.len() - 48..], &sampling, &mut random));
            }
            assert_eq!(cached, history[3..]);
        }
    }

    #[test]
    fn cached_logits_are_those_of_the_whole_sequence() {
        let model = model();
        let tokens: Vec<u32> = (0..90).map(|i| i * i % 48).collect();
        let whole = model.logits(&tokens).expect("logits");
        let weights = Parts::of(&model.config, &model.parameters);
        let mut decoder = Decoder::new(&model.config, &weights);
        for (position, token) in tokens.iter().enumerate() {
            let logits = decoder.last_logits(&[*token]);
            for (cached, whole) in logits.iter().zip(&whole[position * 48..]) {
                // Products of one row and of many add up in another order: roundings of values up to about 10.
                assert!((cached - whole).abs() < 2e-5, "{cached} {whole} at {position}");
            }
        }
    }

    #[test]
    fn generation_slides_past_the_context() {
        let model = model();
        let prompt: Vec<u32> = (0..96).map(|i| i % 48).collect();
        let tokens = generate(&model, &prompt, 120, &GREEDY).expect("tokens");
        assert_eq!(tokens.len(), 120);
        // The second token is drawn after the first slide: from the last 48 tokens.
        let mut window = prompt[prompt.len() - 47..].to_vec();
        window.push(tokens[0]);
        assert_eq!(generate(&model, &window, 1, &GREEDY).expect("tokens")[0], tokens[1]);
        // A prompt longer than the context keeps its last tokens.
        let longer = [&[7, 7, 7][..], &prompt].concat();
        assert_eq!(generate(&model, &longer, 1, &GREEDY).expect("tokens")[0], tokens[0]);
    }

    #[test]
    fn top_k_and_temperature_are_respected() {
        let logits = [0.0, 3.0, 1.0, 2.0];
        let mut random = Random::new(1, 0);
        let mut counts = [0; 4];
        let sampling = Sampling { temperature: 1.0, top_k: 2, seed: 0 };
        for _ in 0..10_000 {
            counts[draw(&logits, &sampling, &mut random) as usize] += 1;
        }
        assert_eq!((counts[0], counts[2]), (0, 0));
        // e³/(e³ + e²) = 0.731; five standard errors of 10,000 draws are 0.022.
        assert!((f64::from(counts[1]) / 10_000.0 - 0.731).abs() < 0.022, "{counts:?}");
        assert_eq!(draw(&[1.0, 5.0, 5.0], &GREEDY, &mut random), 1);
    }

    #[test]
    fn what_cannot_be_generated_from_is_refused() {
        let model = model();
        for (prompt, temperature) in [(&[][..], 1.0), (&[48][..], 1.0), (&[1][..], -1.0), (&[1][..], f32::NAN)] {
            let sampling = Sampling { temperature, ..GREEDY };
            assert!(matches!(generate(&model, prompt, 1, &sampling), Err(Error::Argument { .. })));
        }
    }
}
