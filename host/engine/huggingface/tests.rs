//! What loads, what comes back, and what is refused with which words.

use super::*;

fn config(tied: bool) -> ModelConfig {
    ModelConfig {
        vocab_size: 11,
        hidden_size: 8,
        intermediate_size: 12,
        layers: 2,
        heads: 4,
        kv_heads: 2,
        head_dim: 4,
        context: 32,
        rope_theta: 50_000.0,
        norm_eps: 1e-5,
        tied,
        initializer_range: 0.02,
    }
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

/// A saved model whose `config.json` and tensors a test may spoil.
fn saved(tied: bool) -> (tempfile::TempDir, Model) {
    let dir = folder();
    let model = Model::init(&config(tied), 1).expect("a possible shape");
    model.save(dir.path()).expect("saved");
    (dir, model)
}

fn edit_config(dir: &Path, edit: impl FnOnce(&mut Map<String, Value>)) {
    let path = dir.join(CONFIG);
    let mut fields = serde_json::from_str(&fs::read_to_string(&path).expect("text")).expect("an object");
    edit(&mut fields);
    fs::write(path, Value::Object(fields).to_string()).expect("written");
}

/// A tensor on its way into a test's file: name, shape, type, bytes.
type Raw = (String, Vec<usize>, Dtype, Vec<u8>);

fn edit_weights(dir: &Path, edit: impl FnOnce(&mut Vec<Raw>)) {
    let path = dir.join(WEIGHTS);
    let bytes = fs::read(&path).expect("bytes");
    let file = SafeTensors::deserialize(&bytes).expect("safetensors");
    let mut tensors: Vec<Raw> = file
        .iter()
        .map(|(name, view)| (name.to_owned(), view.shape().to_vec(), view.dtype(), view.data().to_vec()))
        .collect();
    tensors.sort();
    edit(&mut tensors);
    let views = tensors.iter().map(|(name, shape, dtype, data)| {
        let view = safetensors::tensor::TensorView::new(*dtype, shape.clone(), data).expect("a fitting view");
        (name.as_str(), view)
    });
    safetensors::serialize_to_file(views, None, &path).expect("written");
}

/// The message of a load that must fail.
fn refusal(dir: &Path) -> String {
    Model::load(dir).expect_err("this must not load").to_string()
}

fn tensor<'a>(tensors: &'a mut [Raw], name: &str) -> &'a mut Raw {
    tensors.iter_mut().find(|tensor| tensor.0 == name).expect("the tensor")
}

#[test]
fn a_saved_model_loads_as_it_was() {
    for tied in [false, true] {
        let (dir, model) = saved(tied);
        assert_eq!(Model::load(dir.path()).expect("it loads"), model);
        let mut names: Vec<String> = fs::read_dir(dir.path())
            .expect("a folder")
            .map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8"))
            .collect();
        names.sort();
        assert_eq!(names, [CONFIG, WEIGHTS], "nothing else is left behind");
    }
}

#[test]
fn numbers_are_written_as_one_would_write_them() {
    let (dir, _) = saved(false);
    let text = fs::read_to_string(dir.path().join(CONFIG)).expect("text");
    for line in ["\"rms_norm_eps\": 0.00001,", "\"initializer_range\": 0.02,", "\"rope_theta\": 50000.0,"] {
        assert!(text.contains(line) || text.contains(&line.replace("0.00001", "1e-5")), "{line} in {text}");
    }
}

#[test]
fn saving_replaces_what_is_there() {
    let (dir, mut model) = saved(false);
    model.parameters[5] = 42.0;
    model.save(dir.path()).expect("saved again");
    assert_eq!(Model::load(dir.path()).expect("it loads").parameters[5], 42.0);
}

#[test]
fn a_failed_save_leaves_the_old_model_and_no_partial_file() {
    let (dir, mut model) = saved(false);
    model.parameters.pop();
    assert!(model.save(dir.path()).is_err());
    // A folder in the way of the temporary name makes the write fail.
    fs::create_dir(dir.path().join("model.partial")).expect("made");
    model.parameters.push(1.0);
    assert!(matches!(model.save(dir.path()), Err(Error::Io { .. })));
    assert!(Model::load(dir.path()).is_ok());
}

#[test]
fn older_and_newer_forms_of_a_config_are_read() {
    let (dir, model) = saved(false);
    // transformers 4: no rope_parameters, explicit nulls.
    edit_config(dir.path(), |fields| {
        fields.remove("rope_parameters");
        fields.insert("rope_scaling".to_owned(), Value::Null);
        fields.insert("sliding_window".to_owned(), Value::Null);
        fields.insert("attention_dropout".to_owned(), json!(0));
    });
    assert_eq!(Model::load(dir.path()).expect("it loads").config, model.config);
    // transformers 5: no rope_theta at the top.
    let (dir, model) = saved(false);
    edit_config(dir.path(), |fields| {
        fields.remove("rope_theta");
    });
    assert_eq!(Model::load(dir.path()).expect("it loads").config, model.config);
}

#[test]
fn what_is_absent_has_the_defaults_of_transformers() {
    let (dir, _) = saved(false);
    edit_config(dir.path(), |fields| {
        for field in ["rope_parameters", "rope_theta", "max_position_embeddings", "rms_norm_eps", "initializer_range"] {
            fields.remove(field);
        }
        fields.insert("head_dim".to_owned(), Value::Null);
    });
    // head_dim would be 8 / 4 = 2 now, and the weights say 4.
    assert!(refusal(dir.path()).contains("q_proj.weight: expected shape [8, 8], found [16, 8]"));
    edit_config(dir.path(), |fields| {
        fields.insert("head_dim".to_owned(), json!(4));
    });
    let found = Model::load(dir.path()).expect("it loads").config;
    let expected =
        ModelConfig { rope_theta: 10_000.0, context: 2048, norm_eps: 1e-6, initializer_range: 0.02, ..config(false) };
    assert_eq!(found, expected);
}

#[test]
fn bf16_weights_are_widened_exactly() {
    let (dir, model) = saved(false);
    edit_weights(dir.path(), |tensors| {
        for (_, _, dtype, data) in tensors {
            *dtype = Dtype::BF16;
            *data = data.as_chunks::<4>().0.iter().flat_map(|bytes| [bytes[2], bytes[3]]).collect();
        }
    });
    let found = Model::load(dir.path()).expect("it loads");
    for (found, original) in found.parameters.iter().zip(&model.parameters) {
        assert_eq!(found.to_bits(), original.to_bits() & 0xffff_0000);
    }
}

#[test]
fn a_tied_model_may_bring_its_head_along() {
    let (dir, model) = saved(true);
    edit_weights(dir.path(), |tensors| {
        let (_, shape, dtype, data) = tensor(tensors, "model.embed_tokens.weight").clone();
        tensors.push(("lm_head.weight".to_owned(), shape, dtype, data));
    });
    assert_eq!(Model::load(dir.path()).expect("it loads"), model);
}

#[test]
fn a_config_that_asks_for_more_than_is_computed_is_refused_by_name() {
    let cases = [
        ("model_type", json!("mistral")),
        ("architectures", json!(["Qwen2ForCausalLM"])),
        ("hidden_act", json!("gelu")),
        ("attention_bias", json!(true)),
        ("mlp_bias", json!(true)),
        ("attention_dropout", json!(0.1)),
        ("sliding_window", json!(4096)),
        ("use_sliding_window", json!(true)),
        ("quantization_config", json!({ "bits": 4 })),
        ("partial_rotary_factor", json!(0.5)),
        ("rope_scaling", json!({ "rope_type": "llama3", "factor": 8.0 })),
        ("rope_parameters", json!({ "rope_theta": 1e4, "rope_type": "llama3" })),
        ("rope_parameters", json!({ "rope_theta": 1e4, "rope_type": "default", "factor": 8.0 })),
        ("rope_parameters", json!(3)),
        ("hidden_size", json!("many")),
        ("num_hidden_layers", json!(-1)),
        ("rms_norm_eps", json!("small")),
        ("tie_word_embeddings", json!("yes")),
        ("num_key_value_heads", json!(3)),
        ("vocab_size", json!(0)),
    ];
    for (field, value) in cases {
        let (dir, _) = saved(false);
        edit_config(dir.path(), |fields| {
            fields.insert(field.to_owned(), value.clone());
        });
        let error = Model::load(dir.path()).expect_err("this must not load");
        assert!(matches!(error, Error::Unsupported { .. }), "{field}: {error}");
        let text = error.to_string();
        // num_key_value_heads is kv_heads in our words.
        let named = if field == "num_key_value_heads" { "kv_heads" } else { field };
        assert!(text.contains(named) && text.contains("expected") && text.contains("found"), "{field}: {text}");
        assert!(text.contains(CONFIG), "the file is named: {text}");
    }
}

#[test]
fn all_problems_of_a_config_are_told_at_once() {
    let (dir, _) = saved(false);
    edit_config(dir.path(), |fields| {
        fields.remove("model_type");
        fields.remove("vocab_size");
        fields.insert("attention_bias".to_owned(), json!(true));
    });
    let text = refusal(dir.path());
    for problem in ["model_type: expected \"llama\", found nothing", "vocab_size", "attention_bias"] {
        assert!(text.contains(problem), "{text}");
    }
}

#[test]
fn broken_files_are_refused_with_their_names() {
    for (file, content) in [(CONFIG, "{ \"model_type\": "), (CONFIG, "[1, 2]"), (WEIGHTS, "not safetensors")] {
        let (dir, _) = saved(false);
        fs::write(dir.path().join(file), content).expect("written");
        let error = Model::load(dir.path()).expect_err("this must not load");
        assert!(matches!(error, Error::Damaged { .. }) && error.to_string().contains(file), "{error}");
    }
    for file in [CONFIG, WEIGHTS] {
        let (dir, _) = saved(false);
        fs::remove_file(dir.path().join(file)).expect("removed");
        let error = Model::load(dir.path()).expect_err("this must not load");
        assert!(matches!(error, Error::Io { .. }) && error.to_string().contains(file), "{error}");
    }
}

#[test]
fn truncated_weights_are_refused() {
    let (dir, _) = saved(false);
    let path = dir.path().join(WEIGHTS);
    let bytes = fs::read(&path).expect("bytes");
    for length in [0, 7, 100, bytes.len() - 1] {
        fs::write(&path, &bytes[..length]).expect("written");
        let error = Model::load(dir.path()).expect_err("this must not load");
        assert!(matches!(error, Error::Damaged { .. }), "{length} bytes: {error}");
    }
}

#[test]
fn weights_that_do_not_fit_are_refused_tensor_by_tensor() {
    let (dir, _) = saved(false);
    edit_weights(dir.path(), |tensors| tensors.retain(|tensor| tensor.0 != "model.norm.weight"));
    assert!(refusal(dir.path()).contains("model.norm.weight: expected shape [8], found no such tensor"));

    let (dir, _) = saved(false);
    edit_weights(dir.path(), |tensors| {
        let extra = tensor(tensors, "model.norm.weight").clone();
        tensors.push(("model.norm.bias".to_owned(), extra.1, extra.2, extra.3));
    });
    assert!(refusal(dir.path()).contains("model.norm.bias: expected no tensor of that name, found one"));

    let (dir, _) = saved(false);
    edit_weights(dir.path(), |tensors| tensor(tensors, "lm_head.weight").1 = vec![8, 11]);
    assert!(refusal(dir.path()).contains("lm_head.weight: expected shape [11, 8], found [8, 11]"));

    let (dir, _) = saved(false);
    edit_weights(dir.path(), |tensors| tensor(tensors, "lm_head.weight").2 = Dtype::I32);
    assert!(refusal(dir.path()).contains("lm_head.weight: expected values in F32 or BF16, found I32"));
}
