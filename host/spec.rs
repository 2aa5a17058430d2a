//! The run spec: what a user writes (TOML, every field optional) and what every process of a run agrees on.
//!
//! [`Spec::parse`] reports all problems at once: unknown fields (with the known ones), wrong types, impossible values.

use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};
use tombolo_engine::{AdamW, ModelConfig, Schedule};

/// Islands that a run may have: as many offers of full chunks fit into the memory of a policy.
pub const ISLANDS_MAX: usize = 256;

/// A run, as a user describes it. Defaults are those of `examples/quickstart.toml`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Spec {
    /// Name of the run: the first part of its keys in the bucket. Lower-case letters, digits and dashes.
    pub run: String,
    /// Seed of initial parameters and of the order of the data.
    pub seed: u64,
    /// The run ends when this many training tokens have been merged.
    pub tokens: u64,
    /// Islands that `tombolo run` starts; others may join at any time.
    pub islands: usize,
    /// The model.
    pub model: ModelSpec,
    /// The text.
    pub data: DataSpec,
    /// The inner loop.
    pub train: TrainSpec,
    /// The outer loop.
    pub outer: OuterSpec,
    /// How offers are encoded.
    pub codec: PolicySpec,
    /// How offers are merged.
    pub merge: PolicySpec,
    /// When rounds are closed.
    pub pace: PolicySpec,
    /// How new versions reach the islands: a codec; none: in f32.
    pub down: PolicySpec,
    /// What is kept, and for how long.
    pub keep: KeepSpec,
}

/// Shape of a Llama-family decoder; the vocabulary is the tokenizer's (256 bytes).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ModelSpec {
    /// Width of the residual stream (C).
    pub hidden_size: usize,
    /// Width of the SwiGLU.
    pub intermediate_size: usize,
    /// Decoder layers (L).
    pub layers: usize,
    /// Query heads (H).
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Tokens of a training window (T).
    pub context: usize,
    /// Base of the rotary embedding.
    pub rope_theta: f32,
    /// ε of RMSNorm.
    pub norm_eps: f32,
    /// Whether the head shares the embedding's matrix.
    pub tied: bool,
}

/// The text that is trained on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DataSpec {
    /// Directory, file or glob of UTF-8 text; empty: the sources of the crates that cargo has fetched.
    pub path: String,
}

/// The inner loop: AdamW with linear warm-up and cosine decay over the tokens merged.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TrainSpec {
    /// Windows in a batch (B).
    pub batch: usize,
    /// Peak learning rate.
    pub learning_rate: f32,
    /// Share of the token budget over which the rate warms up.
    pub warmup_ratio: f32,
    /// Last learning rate as a share of the peak.
    pub floor_ratio: f32,
    /// Weight decay of matrices.
    pub weight_decay: f32,
    /// First moment's decay.
    pub beta1: f32,
    /// Second moment's decay.
    pub beta2: f32,
    /// ε of AdamW.
    pub eps: f32,
    /// Gradients are clipped to this L2 norm.
    pub clip_norm: f32,
}

/// The outer loop (Decoupled DiLoCo, arXiv 2604.21428).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct OuterSpec {
    /// Fragments (P); fewer where there are fewer tensors.
    pub fragments: usize,
    /// Inner steps between two offers of one fragment (H), in the long run.
    pub sync_steps: usize,
    /// Rounds of a fragment over which H grows from a third of `sync_steps`, but no less than 4 τ, to all of it; 0: it does not grow.
    pub sync_warmup: u64,
    /// Inner steps that a round may take unnoticed (τ).
    pub overlap_steps: usize,
    /// Offers without which a round is not closed (K).
    pub quorum: usize,
    /// An offer whose base is more versions old than this is late.
    pub staleness_max: u64,
}

/// One policy and its configuration.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PolicySpec {
    /// Name of a bundled policy, or path of a component (`.wasm`).
    pub policy: String,
    /// Given to the policy as JSON; each policy documents its fields.
    pub config: toml::Table,
}

/// What is kept in the bucket.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct KeepSpec {
    /// Versions of each fragment, and the rounds of offers that belong to them.
    pub versions: u64,
    /// Seconds between two checkpoints of an island.
    pub checkpoint_seconds: u64,
    /// Checkpoints of each island.
    pub checkpoints: usize,
}

impl Default for Spec {
    fn default() -> Spec {
        Spec {
            run: "quickstart".into(),
            seed: 0,
            tokens: 6_000_000,
            islands: 3,
            model: ModelSpec::default(),
            data: DataSpec::default(),
            train: TrainSpec::default(),
            outer: OuterSpec::default(),
            codec: PolicySpec { policy: "bf16".into(), ..PolicySpec::default() },
            merge: PolicySpec { policy: "rda".into(), ..PolicySpec::default() },
            down: PolicySpec::default(),
            pace: PolicySpec { policy: "adaptive-grace".into(), ..PolicySpec::default() },
            keep: KeepSpec::default(),
        }
    }
}

impl Default for ModelSpec {
    fn default() -> ModelSpec {
        ModelSpec {
            hidden_size: 128,
            intermediate_size: 344,
            layers: 4,
            heads: 4,
            kv_heads: 4,
            context: 128,
            rope_theta: 10_000.0,
            norm_eps: 1e-5,
            tied: false,
        }
    }
}

#[allow(clippy::derivable_impls)] // the empty path is a documented default like the others
impl Default for DataSpec {
    fn default() -> DataSpec {
        DataSpec { path: String::new() }
    }
}

impl Default for TrainSpec {
    fn default() -> TrainSpec {
        TrainSpec {
            batch: 8,
            learning_rate: 1e-3,
            warmup_ratio: 0.05,
            floor_ratio: 0.3,
            weight_decay: 0.1,
            beta1: 0.9,
            beta2: 0.95,
            eps: 1e-8,
            clip_norm: 1.0,
        }
    }
}

impl Default for OuterSpec {
    fn default() -> OuterSpec {
        OuterSpec { fragments: 24, sync_steps: 24, sync_warmup: 50, overlap_steps: 2, quorum: 1, staleness_max: 4 }
    }
}

impl Default for PolicySpec {
    fn default() -> PolicySpec {
        PolicySpec { policy: String::new(), config: toml::Table::new() }
    }
}

impl Default for KeepSpec {
    fn default() -> KeepSpec {
        KeepSpec { versions: 6, checkpoint_seconds: 20, checkpoints: 2 }
    }
}

impl PolicySpec {
    /// The configuration as the policy receives it: JSON, keys in order; nothing for an empty table.
    pub fn config_json(&self) -> Vec<u8> {
        if self.config.is_empty() {
            Vec::new()
        } else {
            serde_json::to_vec(&self.config).expect("a TOML table is valid JSON")
        }
    }
}

impl Spec {
    /// Reads a spec from TOML.
    ///
    /// # Errors
    /// Invalid input, naming `origin` and every problem found.
    pub fn parse(text: &str, origin: &str) -> Result<Spec> {
        let table: toml::Table =
            text.parse().map_err(|e: toml::de::Error| Error::invalid(format!("{origin}: not valid TOML: {e}")))?;
        let known = toml::Table::try_from(Spec::default()).expect("the default spec serialises");
        let mut problems = Vec::new();
        compare(&table, &known, "", &mut problems);
        if !problems.is_empty() {
            return Err(refusal(origin, &problems));
        }
        // Over the defaults, since those of a policy depend on its role: `[merge.config]` alone configures the default one.
        let mut whole = known;
        overlay(&mut whole, table);
        let spec: Spec = whole.try_into().map_err(|e| Error::invalid(format!("{origin}: {e}")))?;
        spec.check(origin)?;
        Ok(spec)
    }

    /// Refuses impossible values, all of them at once.
    ///
    /// # Errors
    /// Invalid input, naming `origin` and every problem found.
    pub fn check(&self, origin: &str) -> Result<()> {
        let fields = toml::Table::try_from(&self.model).expect("a spec serialises");
        let in_spec = |problem: String| match problem.split_once(':') {
            Some((field, _)) if fields.contains_key(field) => format!("model.{problem}"),
            _ => problem,
        };
        let mut problems: Vec<String> = self.model_config().problems().into_iter().map(in_spec).collect();
        let (hidden, heads) = (self.model.hidden_size, self.model.heads);
        if hidden > 0 && heads > 0 && hidden % heads > 0 {
            problems.push(format!("model.hidden_size: expected a multiple of heads ({heads}), found {hidden}"));
        }
        let mut want = |ok: bool, problem: String| {
            if !ok {
                problems.push(problem);
            }
        };
        let name_ok = !self.run.is_empty()
            && self.run.len() <= 64
            && !self.run.starts_with('-')
            && self.run.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
            && !["policy", "doctor"].contains(&self.run.as_str());
        want(
            name_ok,
            format!(
                "run: expected 1 to 64 lower-case letters, digits and dashes, neither `policy` nor `doctor`; found `{}`",
                self.run
            ),
        );
        want(self.tokens > 0, "tokens: expected at least 1, found 0".into());
        want(
            (1..=ISLANDS_MAX).contains(&self.islands),
            format!("islands: expected 1 to {ISLANDS_MAX}, found {}", self.islands),
        );
        want(
            (1..=65_536).contains(&self.train.batch),
            format!("train.batch: expected 1 to 65536, found {}", self.train.batch),
        );
        for (name, value, low, high) in [
            ("train.learning_rate", self.train.learning_rate, 0.0, 10.0),
            ("train.warmup_ratio", self.train.warmup_ratio, 0.0, 1.0),
            ("train.floor_ratio", self.train.floor_ratio, 0.0, 1.0),
            ("train.weight_decay", self.train.weight_decay, 0.0, 10.0),
            ("train.beta1", self.train.beta1, 0.0, 0.9999),
            ("train.beta2", self.train.beta2, 0.0, 0.99999),
            ("train.eps", self.train.eps, 0.0, 1.0),
            ("train.clip_norm", self.train.clip_norm, 0.0, 1e6),
        ] {
            want((low..=high).contains(&value), format!("{name}: expected {low} to {high}, found {value}"));
        }
        for (name, value, low, high) in [
            ("outer.fragments", self.outer.fragments as u64, 1, 9999),
            ("outer.sync_steps", self.outer.sync_steps as u64, 1, 1_000_000),
            ("outer.sync_warmup", self.outer.sync_warmup, 0, 1_000_000),
            ("outer.overlap_steps", self.outer.overlap_steps as u64, 0, 1_000_000),
            ("outer.quorum", self.outer.quorum as u64, 1, ISLANDS_MAX as u64),
            ("outer.staleness_max", self.outer.staleness_max, 0, 1_000),
            ("keep.versions", self.keep.versions, 2, 1_000_000),
            ("keep.checkpoint_seconds", self.keep.checkpoint_seconds, 1, 86_400),
            ("keep.checkpoints", self.keep.checkpoints as u64, 1, 1_000),
        ] {
            want((low..=high).contains(&value), format!("{name}: expected {low} to {high}, found {value}"));
        }
        for (role, policy) in [("codec", &self.codec), ("merge", &self.merge), ("pace", &self.pace)] {
            want(
                !policy.policy.is_empty(),
                format!(
                    "{role}.policy: expected a bundled policy's name or the path of a .wasm component, found nothing"
                ),
            );
        }
        if self.down.policy.is_empty() && !self.down.config.is_empty() {
            problems.push("down.config: expected none where down.policy names no codec, found some".into());
        }
        if problems.is_empty() { Ok(()) } else { Err(refusal(origin, &problems)) }
    }

    /// The model that the spec describes, over 256 byte tokens.
    pub fn model_config(&self) -> ModelConfig {
        let m = &self.model;
        ModelConfig {
            vocab_size: 256,
            hidden_size: m.hidden_size,
            intermediate_size: m.intermediate_size,
            layers: m.layers,
            heads: m.heads,
            kv_heads: m.kv_heads,
            head_dim: m.hidden_size / m.heads.max(1),
            context: m.context,
            rope_theta: m.rope_theta,
            norm_eps: m.norm_eps,
            tied: m.tied,
            initializer_range: 0.02,
        }
    }

    /// The inner optimiser.
    pub fn adamw(&self) -> AdamW {
        let t = &self.train;
        AdamW { beta1: t.beta1, beta2: t.beta2, eps: t.eps, weight_decay: t.weight_decay, clip_norm: t.clip_norm }
    }

    /// The learning rate as a function of the tokens merged.
    pub fn schedule(&self) -> Schedule {
        Schedule {
            peak: self.train.learning_rate,
            warmup_tokens: (self.tokens as f64 * f64::from(self.train.warmup_ratio)) as u64,
            total_tokens: self.tokens,
            floor_ratio: self.train.floor_ratio,
        }
    }
}

fn refusal(origin: &str, problems: &[String]) -> Error {
    let list: Vec<String> = problems.iter().map(|p| format!("\n  {p}")).collect();
    Error::invalid(format!(
        "{origin}: {} problem{} in the run spec:{}",
        problems.len(),
        if problems.len() == 1 { "" } else { "s" },
        list.concat()
    ))
}

/// Puts the fields of `found` in place of those of `known`; a policy's configuration as a whole.
fn overlay(known: &mut toml::Table, found: toml::Table) {
    for (name, value) in found {
        match (known.get_mut(&name), value) {
            (Some(toml::Value::Table(inner)), toml::Value::Table(value)) if name != "config" => overlay(inner, value),
            (_, value) => {
                known.insert(name, value);
            }
        }
    }
}

/// Walks `found` beside `known` (the default spec, which has every field) and notes unknown fields and wrong types.
fn compare(found: &toml::Table, known: &toml::Table, at: &str, problems: &mut Vec<String>) {
    for (name, value) in found {
        let path = if at.is_empty() { name.clone() } else { format!("{at}.{name}") };
        match known.get(name) {
            None => {
                let names: Vec<&str> = known.keys().map(String::as_str).collect();
                let place = if at.is_empty() { "the spec".to_string() } else { format!("[{at}]") };
                problems.push(format!("{path}: unknown field; {place} knows {}", names.join(", ")));
            }
            // A policy's configuration is the policy's to check.
            Some(toml::Value::Table(_)) if name == "config" && value.is_table() => {}
            Some(toml::Value::Table(inner)) if value.is_table() => {
                compare(value.as_table().expect("just asked"), inner, &path, problems);
            }
            Some(toml::Value::Float(_)) if value.is_integer() => {}
            Some(expected) if expected.same_type(value) => {
                if value.as_integer().is_some_and(|i| i < 0) {
                    problems.push(format!("{path}: expected a number that is not negative, found {value}"));
                }
            }
            Some(expected) => {
                let kind = expected.type_str();
                let article = if kind.starts_with(['a', 'i']) { "an" } else { "a" };
                problems.push(format!("{path}: expected {article} {kind}, found {value}"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_spec_is_the_default() {
        assert_eq!(Spec::parse("", "x.toml").unwrap(), Spec::default());
    }

    #[test]
    fn a_policy_may_be_configured_without_being_named() {
        let spec = Spec::parse("[merge.config]\nmomentum = 0.5\n[codec]\npolicy = \"int8\"\n", "x.toml").unwrap();
        assert_eq!((spec.merge.policy.as_str(), spec.codec.policy.as_str()), ("rda", "int8"));
        assert_eq!(spec.merge.config_json(), b"{\"momentum\":0.5}");
        assert_eq!(Spec { merge: Spec::default().merge, codec: Spec::default().codec, ..spec }, Spec::default());
    }

    #[test]
    fn the_commented_example_says_what_the_defaults_are() {
        let text = include_str!("../examples/quickstart.toml");
        assert_eq!(Spec::parse(text, "examples/quickstart.toml").unwrap(), Spec::default());
    }

    #[test]
    fn all_problems_are_reported_at_once_and_unknown_fields_list_the_known_ones() {
        let error = Spec::parse("tokns = 5\nseed = \"x\"\n[outer]\nfragment = 3\n", "x.toml").unwrap_err().to_string();
        assert!(error.contains("3 problems"), "{error}");
        assert!(error.contains("tokns: unknown field; the spec knows") && error.contains("tokens"), "{error}");
        assert!(error.contains("outer.fragment: unknown field; [outer] knows fragments"), "{error}");
        assert!(error.contains("seed: expected an integer"), "{error}");
    }

    #[test]
    fn impossible_shapes_and_values_are_refused_together() {
        let error = Spec::parse("[model]\nhidden_size = 130\nheads = 4\n[outer]\nquorum = 0\n", "x.toml")
            .unwrap_err()
            .to_string();
        assert!(error.contains("outer.quorum: expected 1"), "{error}");
        assert!(error.contains("model.hidden_size: expected a multiple of heads (4), found 130"), "{error}");
    }

    #[test]
    fn a_run_name_cannot_leave_its_place_in_the_bucket() {
        for name in ["", "a/b", "..", "A", "policy", "doctor", "-x"] {
            let spec = Spec { run: name.into(), ..Spec::default() };
            assert!(spec.check("x").is_err(), "{name}");
        }
    }
}
