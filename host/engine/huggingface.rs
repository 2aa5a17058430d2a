//! Models in Hugging Face's form: `config.json` and `model.safetensors`, as transformers reads and writes them.
//!
//! What a `config.json` asks for beyond what this engine computes (other position embeddings, biases, windows, other
//! activations) is refused by name: a model that loads computes what transformers would compute. Files are written
//! under temporary names and then renamed, weights first, so that a folder with a `config.json` is complete.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fs;
use std::path::Path;

use safetensors::tensor::{Dtype, SafeTensors, View};
use serde_json::{Map, Value, json};

use crate::{Error, Layout, Model, ModelConfig, Result, Tensor};

const CONFIG: &str = "config.json";
const WEIGHTS: &str = "model.safetensors";

impl Model {
    /// Reads a model from a folder with `config.json` and `model.safetensors` (f32 or bf16).
    ///
    /// # Errors
    /// [`Error::Unsupported`] and [`Error::Weights`] list everything that does not fit; [`Error::Damaged`] and
    /// [`Error::Io`] name the file.
    pub fn load(dir: &Path) -> Result<Model> {
        let config = read_config(&dir.join(CONFIG))?;
        let layout = Layout::of(&config);
        let parameters = read_weights(&dir.join(WEIGHTS), &layout, config.tied)?;
        Ok(Model { config, layout, parameters })
    }

    /// Writes `config.json` and `model.safetensors` (f32) into a folder, which is made if need be. A crash leaves
    /// either the old files or the new ones, at worst new weights beside the old `config.json`.
    ///
    /// # Errors
    /// [`Error::Io`] names the file; [`Error::Config`] or [`Error::Argument`] where shape, layout and arena do not
    /// belong together.
    pub fn save(&self, dir: &Path) -> Result<()> {
        self.check()?;
        fs::create_dir_all(dir).map_err(Error::io("make", dir))?;
        write_renamed(&dir.join(WEIGHTS), |path| write_weights(path, self))?;
        write_renamed(&dir.join(CONFIG), |path| {
            let text = format!("{:#}\n", config_json(&self.config));
            fs::write(path, text).map_err(Error::io("write", path))
        })
    }
}

/// Lets `write` fill a temporary neighbour of `path`, makes it durable and renames it.
fn write_renamed(path: &Path, write: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    let partial = path.with_extension("partial");
    // What this user's new files are like: safetensors makes its own for nobody else to read.
    let made = fs::File::create(&partial).and_then(|file| file.metadata()).map_err(Error::io("create", &partial))?;
    let done = write(&partial).and_then(|()| {
        fs::set_permissions(&partial, made.permissions()).map_err(Error::io("set the permissions of", &partial))?;
        let file = fs::File::open(&partial).map_err(Error::io("open", &partial))?;
        file.sync_all().map_err(Error::io("sync", &partial))?;
        fs::rename(&partial, path).map_err(Error::io("rename to", path))
    });
    if done.is_err() {
        // The first error is the one to tell; what is left behind is only a partial file.
        let _ = fs::remove_file(&partial);
    }
    done
}

/// The `config.json` of a shape. The base of the rotary embedding is written twice: transformers 4 reads
/// `rope_theta`, transformers 5 `rope_parameters`.
fn config_json(config: &ModelConfig) -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": false,
        "attention_dropout": 0.0,
        "bos_token_id": null,
        "dtype": "float32",
        "eos_token_id": null,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "hidden_size": config.hidden_size,
        "initializer_range": decimal(config.initializer_range),
        "intermediate_size": config.intermediate_size,
        "max_position_embeddings": config.context,
        "mlp_bias": false,
        "model_type": "llama",
        "num_attention_heads": config.heads,
        "num_hidden_layers": config.layers,
        "num_key_value_heads": config.kv_heads,
        "rms_norm_eps": decimal(config.norm_eps),
        "rope_parameters": { "rope_theta": decimal(config.rope_theta), "rope_type": "default" },
        "rope_theta": decimal(config.rope_theta),
        "tie_word_embeddings": config.tied,
        "use_cache": true,
        "vocab_size": config.vocab_size,
    })
}

/// An f32 as the shortest decimal that means it: 1e-5 and not 9.999999747378752e-6, which is its value in f64.
fn decimal(value: f32) -> f64 {
    value.to_string().parse().unwrap_or(f64::from(value))
}

fn read_config(path: &Path) -> Result<ModelConfig> {
    let text = fs::read_to_string(path).map_err(Error::io("read", path))?;
    let damaged = |problem: String| Error::Damaged { path: path.to_owned(), expected: "a JSON object", problem };
    let value: Value = serde_json::from_str(&text).map_err(|error| damaged(error.to_string()))?;
    let Value::Object(fields) = value else {
        return Err(damaged("it holds another kind of value".to_owned()));
    };
    let mut reader = Reader { fields: &fields, problems: Vec::new() };
    reader.refuse_what_is_not_computed();
    let config = reader.shape();
    let mut problems = reader.problems;
    if problems.is_empty() {
        problems = config.problems();
    }
    if problems.is_empty() { Ok(config) } else { Err(Error::Unsupported { path: path.to_owned(), problems }) }
}

/// Reads fields of a `config.json` and gathers what is wrong with them.
struct Reader<'a> {
    fields: &'a Map<String, Value>,
    problems: Vec<String>,
}

impl Reader<'_> {
    /// Everything that would make transformers compute something else than this engine.
    fn refuse_what_is_not_computed(&mut self) {
        self.only("model_type", &json!("llama"), true);
        if let Some(found) = self.fields.get("architectures").filter(|found| !found.is_null())
            && found != &json!(["LlamaForCausalLM"])
        {
            self.problems.push(format!("architectures: expected [\"LlamaForCausalLM\"], found {found}"));
        }
        self.only("hidden_act", &json!("silu"), false);
        self.only("attention_bias", &json!(false), false);
        self.only("mlp_bias", &json!(false), false);
        self.only("attention_dropout", &json!(0.0), false);
        self.only("sliding_window", &Value::Null, false);
        self.only("use_sliding_window", &json!(false), false);
        self.only("quantization_config", &Value::Null, false);
        self.only("partial_rotary_factor", &json!(1.0), false);
        self.only("rope_scaling", &Value::Null, false);
        let Some(rope) = self.fields.get("rope_parameters").filter(|found| !found.is_null()) else { return };
        let Some(rope) = rope.as_object() else {
            return self.problems.push(format!("rope_parameters: expected an object, found {rope}"));
        };
        for (field, found) in rope {
            let known = match field.as_str() {
                "rope_theta" => continue,
                "rope_type" | "type" => found == "default",
                "partial_rotary_factor" => found.as_f64() == Some(1.0),
                _ => false,
            };
            if !known {
                self.problems.push(format!(
                    "rope_parameters.{field}: expected nothing beyond rope_theta and rope_type \"default\", found {found}"
                ));
            }
        }
    }

    fn shape(&mut self) -> ModelConfig {
        let hidden_size = self.count("hidden_size", None);
        let heads = self.count("num_attention_heads", None);
        // The defaults are those of transformers' LlamaConfig.
        let rope_theta = match self.fields.get("rope_parameters").and_then(|rope| rope.get("rope_theta")) {
            Some(theta) => self.as_number("rope_parameters.rope_theta", theta),
            None => self.number("rope_theta", 10_000.0),
        };
        ModelConfig {
            vocab_size: self.count("vocab_size", None),
            hidden_size,
            intermediate_size: self.count("intermediate_size", None),
            layers: self.count("num_hidden_layers", None),
            heads,
            kv_heads: self.count("num_key_value_heads", Some(heads)),
            head_dim: self.count("head_dim", Some(hidden_size.checked_div(heads).unwrap_or(0))),
            context: self.count("max_position_embeddings", Some(2048)),
            rope_theta,
            norm_eps: self.number("rms_norm_eps", 1e-6),
            tied: self.flag("tie_word_embeddings"),
            initializer_range: self.number("initializer_range", 0.02),
        }
    }

    /// A field that may only have one value; absent and null mean that value, unless it is `required`.
    fn only(&mut self, field: &str, expected: &Value, required: bool) {
        let found = self.fields.get(field).filter(|found| !found.is_null());
        let same = match found {
            None => !required,
            // 0 and 0.0 are different JSON numbers but the same setting.
            Some(found) => found == expected || found.as_f64().is_some_and(|found| expected.as_f64() == Some(found)),
        };
        if !same {
            let found = found.map_or_else(|| "nothing".to_owned(), Value::to_string);
            let expected = if expected.is_null() { "nothing".to_owned() } else { expected.to_string() };
            self.problems.push(format!("{field}: expected {expected}, found {found}"));
        }
    }

    fn count(&mut self, field: &str, default: Option<usize>) -> usize {
        let found = self.fields.get(field).filter(|found| !found.is_null());
        let count = match found {
            None => default,
            Some(found) => found.as_u64().and_then(|count| usize::try_from(count).ok()),
        };
        count.unwrap_or_else(|| {
            let found = found.map_or_else(|| "nothing".to_owned(), Value::to_string);
            self.problems.push(format!("{field}: expected a whole number, found {found}"));
            0
        })
    }

    fn number(&mut self, field: &str, default: f32) -> f32 {
        match self.fields.get(field).filter(|found| !found.is_null()) {
            None => default,
            Some(found) => self.as_number(field, found),
        }
    }

    fn as_number(&mut self, field: &str, found: &Value) -> f32 {
        found.as_f64().map(|number| number as f32).unwrap_or_else(|| {
            self.problems.push(format!("{field}: expected a number, found {found}"));
            0.0
        })
    }

    fn flag(&mut self, field: &str) -> bool {
        match self.fields.get(field).filter(|found| !found.is_null()) {
            None => false,
            Some(found) => found.as_bool().unwrap_or_else(|| {
                self.problems.push(format!("{field}: expected true or false, found {found}"));
                false
            }),
        }
    }
}

fn read_weights(path: &Path, layout: &Layout, tied: bool) -> Result<Vec<f32>> {
    let bytes = fs::read(path).map_err(Error::io("read", path))?;
    let file = SafeTensors::deserialize(&bytes).map_err(|error| Error::Damaged {
        path: path.to_owned(),
        expected: "a safetensors file",
        problem: error.to_string(),
    })?;
    let mut problems = Vec::new();
    let mut parameters = vec![0.0; layout.elements()];
    for tensor in &layout.tensors {
        match file.tensor(&tensor.name) {
            Err(_) => {
                problems.push(format!("{}: expected shape {:?}, found no such tensor", tensor.name, tensor.shape))
            }
            Ok(found) if found.shape() != tensor.shape => {
                problems.push(format!("{}: expected shape {:?}, found {:?}", tensor.name, tensor.shape, found.shape()));
            }
            Ok(found) => {
                let values = &mut parameters[tensor.range()];
                match found.dtype() {
                    Dtype::F32 => decode(values, found.data(), f32::from_le_bytes),
                    Dtype::BF16 => decode(values, found.data(), |[low, high]| f32::from_le_bytes([0, 0, low, high])),
                    other => problems.push(format!("{}: expected values in F32 or BF16, found {other:?}", tensor.name)),
                }
            }
        }
    }
    let mut names = file.names();
    names.sort_unstable();
    for name in names {
        // Some writers store the head of a tied model as well; it is the embedding once more.
        let known = layout.tensor(name).is_some() || (tied && name == "lm_head.weight");
        if !known {
            problems.push(format!("{name}: expected no tensor of that name, found one"));
        }
    }
    if problems.is_empty() { Ok(parameters) } else { Err(Error::Weights { path: path.to_owned(), problems }) }
}

/// Fills `values` from little-endian bytes, N a value; safetensors has checked that their number fits the shape.
fn decode<const N: usize>(values: &mut [f32], bytes: &[u8], value: impl Fn([u8; N]) -> f32) {
    for (to, from) in values.iter_mut().zip(bytes.as_chunks::<N>().0) {
        *to = value(*from);
    }
}

/// One tensor on its way into a file; its bytes are made when their turn comes, so one tensor at a time is doubled.
struct Outgoing<'a> {
    tensor: &'a Tensor,
    values: &'a [f32],
}

impl View for Outgoing<'_> {
    fn dtype(&self) -> Dtype {
        Dtype::F32
    }

    fn shape(&self) -> &[usize] {
        &self.tensor.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Owned(self.values.iter().flat_map(|value| value.to_le_bytes()).collect())
    }

    fn data_len(&self) -> usize {
        size_of_val(self.values)
    }
}

fn write_weights(path: &Path, model: &Model) -> Result<()> {
    let tensors = model.layout.tensors.iter().map(|tensor| {
        let values = &model.parameters[tensor.range()];
        (tensor.name.as_str(), Outgoing { tensor, values })
    });
    // transformers refuses a file that does not say which framework's layout it has.
    let metadata = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    safetensors::serialize_to_file(tensors, Some(metadata), path).map_err(|error| Error::Io {
        action: "write",
        path: path.to_owned(),
        source: std::io::Error::other(error),
    })
}

#[cfg(test)]
mod tests;
