//! The worked examples in other languages: built by `cargo xtask guest`, admitted, and the same bits as the bundled policies of the same formula.

use std::fs;
use std::path::Path;
use std::process::Command;

use tombolo::policy::{Codec, Policy, Role, TensorKind, admit, chunks};

use crate::codec::{hostile, tensors};
use crate::memory::{Fragment, contribution, noise, round, runtime, tensor};

/// The example in `language`, admitted; none where `compiler` is missing.
fn built(language: &str, compiler: &str, role: Role) -> Option<Policy> {
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
    let wasm = fs::read(folder.path().join(format!("{language}.wasm"))).expect("built");
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
