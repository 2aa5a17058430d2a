//! The worked examples in other languages: built by `cargo xtask guest`, admitted, and the same bits as the bundled policies of the same formula.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use tombolo::policy::{
    Codec, Decision, Error, Island, Limits, Pace, Policy, Role, Runtime, TensorKind, View, admit, bundled_wasm, chunks,
};

use crate::codec::{hostile, tensors};
use crate::memory::{Fragment, contribution, noise, round, runtime, tensor};

/// The component of the example in `language`; none where `compiler` is missing.
fn component(language: &str, compiler: &str) -> Option<Vec<u8>> {
    let folder = tempfile::tempdir().expect("a folder");
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let mut command = Command::new(cargo);
    command
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")))
        .args(["run", "--release", "--quiet", "-p", "xtask", "--", "guest", language])
        .arg(folder.path());
    let output = command.output().expect("cargo starts");
    let said = String::from_utf8_lossy(&output.stderr);
    match output.status.code() {
        Some(0) => {}
        Some(3) => {
            crate::support::not_tested(compiler, said.trim());
            return None;
        }
        code => panic!("cargo xtask guest {language} ended with {code:?}: {said}"),
    }
    Some(fs::read(folder.path().join(format!("{language}.wasm"))).expect("built"))
}

/// The example in `language`, admitted; none where `compiler` is missing.
fn built(language: &str, compiler: &str, role: Role) -> Option<Policy> {
    let wasm = component(language, compiler)?;
    let policy = runtime().load(&wasm).expect("loads");
    assert_eq!(policy.roles(), [role]);
    assert_eq!(admit(&policy, role, b"", None).expect("examined").refused, None, "{language}");
    let refusal = admit(&policy, role, br#"{"eta": 1}"#, None).expect("examined").refusal().expect("refused");
    assert!(refusal.contains("takes no configuration"), "{refusal}");
    Some(policy)
}

#[test]
fn the_merge_rule_in_c_gives_the_bits_of_the_bundled_mean() {
    let Some(policy) = built("c", "zig", Role::Merge) else { return };
    let mean = runtime().bundled("mean").expect("bundled");
    // More than one chunk, and a tail that fills no block.
    let shapes = vec![tensor("a", &[181, 200], TensorKind::Matrix), tensor("g", &[71], TensorKind::Vector)];
    let count = 181 * 200 + 71;
    let islands = [contribution("a", 100, 10), contribution("b", 0, 0), contribution("c", 130, 11)];
    let values: Vec<Vec<f32>> = (0..3).map(|seed| noise(seed, count)).collect();
    let merged = |policy: &Policy, config: &str| {
        let mut fragment = Fragment::new(shapes.clone(), noise(9, count));
        for version in 0..3 {
            fragment.merge(policy, config, round(version), &islands, &values, 2).expect("merges");
        }
        fragment
    };
    assert!(merged(&policy, " {} ") == merged(&mean, r#"{"outer": "sgd", "eta": 0.7, "cooldown": 0}"#));
    let none = [contribution("a", 0, 0)];
    let error = Fragment::new(shapes.clone(), noise(9, count)).merge(&policy, "", round(0), &none, &values[..1], 1);
    assert!(error.expect_err("no weight").to_string().contains("no contribution has any weight"));
}

#[test]
fn the_codec_in_assemblyscript_gives_the_bytes_of_the_bundled_bf16() {
    let Some(policy) = built("assemblyscript", "assemblyscript", Role::Codec) else { return };
    let bf16 = runtime().bundled("bf16").expect("bundled");
    for (name, values) in hostile() {
        let tensors = tensors(&[(name, values.clone())]);
        let open = |policy: &Policy| Codec::open(policy, b"", &tensors).expect("opens");
        let (mut ours, mut theirs) = (open(&policy), open(&bf16));
        for (at, elements) in chunks(&tensors) {
            let chunk = &values[at.offset as usize..][..elements];
            let bytes = ours.encode(at, chunk).expect("encodes");
            assert_eq!(bytes, theirs.encode(at, chunk).expect("encodes"), "{name}");
            let bits = |list: Vec<f32>| list.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
            let decoded = bits(ours.decode(at, &bytes, elements).expect("decodes"));
            assert_eq!(decoded, bits(theirs.decode(at, &bytes, elements).expect("decodes")), "{name}");
            assert!(ours.decode(at, &bytes[1..], elements).is_err(), "{name}: a byte short");
        }
    }
}

#[test]
fn the_pace_in_python_is_too_large_by_default_and_a_pace_like_any_other_under_large_limits() {
    let Some(wasm) = component("python", "componentize-py") else { return };
    let error = runtime().load(&wasm).expect_err("too large");
    assert!(matches!(&error, Error::TooCostly { what, .. } if what == "bytes of the component"), "{error}");

    let program = env!("CARGO_BIN_EXE_tombolo").into();
    let large = Runtime::compiling_with(Limits::large(), None, program).expect("an engine");
    let policy = large.load(&wasm).expect("loads");
    assert_eq!(policy.roles(), [Role::Pace]);
    assert_eq!(admit(&policy, Role::Pace, b"", None).expect("examined").refused, None);

    let island = |index, answered| Island { name: format!("island-{index}"), keeps_up: true, answered, lag: None };
    let view = |offers: usize, since_quorum| View {
        round: 7,
        since_quorum: Duration::from_millis(since_quorum),
        quorum: 2,
        offers: (0..offers).map(|index| contribution(&format!("island-{index}"), 10, 1)).collect(),
        islands: (0..4).map(|index| island(index, index < offers)).collect(),
        step_ms: 100.0,
        quorum_ms: 50.0,
        sync_ms: 30.0,
        overlap_steps: 2,
    };
    let wait = |milliseconds| Decision::Wait(Duration::from_millis(milliseconds));
    let pace = Pace::open(&policy, br#"{"patience_ms": 300}"#).expect("opens");
    let decide = |offers, since_quorum| pace.decide(&view(offers, since_quorum)).expect("decides");
    assert_eq!([decide(2, 100), decide(2, 300), decide(4, 0)], [wait(200), Decision::Close, Decision::Close]);
    for (config, said) in
        [("{", "not JSON"), (r#"{"gamma": 1}"#, "one field"), (r#"{"patience_ms": 0}"#, "whole number")]
    {
        let error = Pace::open(&policy, config.as_bytes()).expect_err(config);
        assert!(matches!(&error, Error::Refused { reason, .. } if reason.contains(said)), "{error}");
    }
}

#[test]
fn a_large_component_is_refused_unless_the_operator_of_the_machine_allows_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("padded.wasm");
    // A custom section of two mebibytes that nobody reads.
    let mut wasm = bundled_wasm("adaptive-grace").expect("bundled").to_vec();
    let padding = 2_u32 << 20;
    wasm.push(0);
    wasm.extend((0..4).map(|part| ((padding >> (7 * part)) & 0x7f) as u8 | if part < 3 { 0x80 } else { 0 }));
    wasm.push(0);
    wasm.resize(wasm.len() + padding as usize - 1, 0);
    fs::write(&file, wasm).expect("a file");
    let checked = |limits: Option<&str>| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tombolo"));
        command.args(["policy", "check"]).arg(&file).env_remove("TOMBOLO_POLICY_LIMITS");
        if let Some(limits) = limits {
            command.env("TOMBOLO_POLICY_LIMITS", limits);
        }
        let output = command.output().expect("starts");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, said) = checked(None);
    assert!(code == Some(2) && said.contains("TOMBOLO_POLICY_LIMITS=large allows more"), "{said}");
    let (code, said) = checked(Some("huge"));
    assert!(code == Some(2) && said.contains("expected default or large"), "{said}");
    let (code, said) = checked(Some("large"));
    assert!(code == Some(0), "{said}");
}
