//! Golden vectors: for every bundled policy, inputs and the exact bits of its answers, in tests/fixtures/policy/.
//!
//! The shipped components are held to them, and so are components rebuilt from source, whatever compiler is here: WebAssembly leaves a compiler no
//! freedom in what arithmetic means, so the bits must agree even where the bytes of the components do not.
//!
//! `TOMBOLO_BLESS=1` writes the files anew. `TOMBOLO_REQUIRE=guests` makes it a failure where nothing can be rebuilt, and allows a
//! compiler to be fetched for it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tombolo::policy::{
    Codec, Contribution, Decision, Island, Lag, Pace, Policy, Round, Tensor, TensorKind, View, bundled_names, chunks,
};

use crate::codec::{hostile, tensors};
use crate::memory::{Fragment, noise, runtime, tensor};

/// What a file holds.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Golden {
    policy: String,
    configuration: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    encoded: Vec<Encoded>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    merged: Vec<Merged>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    paced: Vec<Paced>,
}

/// A list of values, what a codec makes of it and what that decodes to. Values are f32 bits, all bytes hexadecimal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Encoded {
    name: String,
    values: String,
    encoded: String,
    decoded: String,
}

/// A run of merges of one fragment, each on top of the one before.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Merged {
    name: String,
    tensors: Vec<Tensor>,
    parameters: String,
    rounds: Vec<MergedRound>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct MergedRound {
    round: Round,
    contributions: Vec<Contribution>,
    values: Vec<String>,
    weights: String,
    parameters: String,
    state: Vec<String>,
    memo: String,
}

type Live = (bool, bool, Option<(f32, f32)>);

/// A view, in the order of the fields of [`View`], and the decision: milliseconds to wait, or none to close.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Paced {
    since_quorum_ms: u64,
    quorum: u32,
    offers: u32,
    /// Live islands: whether each keeps up, whether it has answered, and its lag.
    islands: Vec<Live>,
    step_ms: f32,
    quorum_ms: f32,
    sync_ms: f32,
    overlap_steps: u32,
    wait_ms: Option<u64>,
}

fn hex(bytes: impl IntoIterator<Item = u8>) -> String {
    bytes.into_iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Big-endian, so that a file shows `3f800000` for 1.
fn bits(values: &[f32]) -> String {
    hex(values.iter().flat_map(|value| value.to_bits().to_be_bytes()))
}

fn values(text: &str) -> Vec<f32> {
    let word = |at: usize| u32::from_str_radix(&text[at..at + 8], 16).expect("hexadecimal");
    (0..text.len()).step_by(8).map(|at| f32::from_bits(word(at))).collect()
}

fn encode(policy: &Policy, configuration: &str, name: &str, values: &[f32]) -> Encoded {
    let tensors = tensors(&[("t", values.to_vec())]);
    let open = || Codec::open(policy, configuration.as_bytes(), &tensors).expect("opens");
    let (mut encoder, mut decoder) = (open(), open());
    let (mut bytes, mut decoded) = (Vec::new(), Vec::new());
    for (at, elements) in chunks(&tensors) {
        let chunk = encoder.encode(at, &values[at.offset as usize..][..elements]).expect("encodes");
        decoded.extend(decoder.decode(at, &chunk, elements).expect("decodes"));
        bytes.extend(chunk);
    }
    Encoded { name: name.into(), values: bits(values), encoded: hex(bytes), decoded: bits(&decoded) }
}

fn merge(policy: &Policy, configuration: &str, given: &Merged) -> Merged {
    let mut fragment = Fragment::new(given.tensors.clone(), values(&given.parameters));
    let mut out = given.clone();
    for round in &mut out.rounds {
        let lists: Vec<Vec<f32>> = round.values.iter().map(|list| values(list)).collect();
        let done = fragment.merge(policy, configuration, round.round, &round.contributions, &lists, 2).expect("merges");
        round.weights = bits(&done.weights);
        round.memo = hex(done.memo);
        round.parameters = bits(&fragment.parameters);
        round.state = fragment.state.iter().map(|list| bits(list)).collect();
    }
    out
}

fn pace(policy: &Policy, configuration: &str, given: &Paced) -> Paced {
    let offer =
        |index| Contribution { island: format!("island-{index}"), tokens: 10, steps: 1, staleness: 0, norm: 1.0 };
    let island = |(index, (keeps_up, answered, lag)): (u32, &Live)| Island {
        name: format!("island-{index}"),
        keeps_up: *keeps_up,
        answered: *answered,
        lag: lag.map(|(mean_ms, deviation_ms)| Lag { mean_ms, deviation_ms }),
    };
    let view = View {
        round: 1,
        since_quorum: Duration::from_millis(given.since_quorum_ms),
        quorum: given.quorum,
        offers: (0..given.offers).map(offer).collect(),
        islands: (0..).zip(&given.islands).map(island).collect(),
        step_ms: given.step_ms,
        quorum_ms: given.quorum_ms,
        sync_ms: given.sync_ms,
        overlap_steps: given.overlap_steps,
    };
    let pace = Pace::open(policy, configuration.as_bytes()).expect("opens");
    let wait_ms = match pace.decide(&view).expect("decides") {
        Decision::Wait(wait) => Some(wait.as_millis() as u64),
        Decision::Close => None,
    };
    Paced { wait_ms, ..given.clone() }
}

/// The same questions, answered by `policy`.
fn answered(policy: &Policy, given: &Golden) -> Golden {
    let configuration = &given.configuration;
    Golden {
        policy: given.policy.clone(),
        configuration: configuration.clone(),
        encoded: (given.encoded.iter())
            .map(|list| encode(policy, configuration, &list.name, &values(&list.values)))
            .collect(),
        merged: given.merged.iter().map(|run| merge(policy, configuration, run)).collect(),
        paced: given.paced.iter().map(|view| pace(policy, configuration, view)).collect(),
    }
}

/// The questions for a bundled policy, answers left open.
fn questions(name: &str) -> Golden {
    let mut golden = Golden {
        policy: name.into(),
        configuration: String::new(),
        encoded: Vec::new(),
        merged: Vec::new(),
        paced: Vec::new(),
    };
    match name {
        "bf16" | "f32" | "fp4" | "int4" | "int8" | "sign" | "topk" => {
            if name == "topk" {
                golden.configuration = r#"{"share": 0.05}"#.into();
            }
            let short = hostile().into_iter().filter(|(_, values)| values.len() < 2_000);
            golden.encoded.extend(short.map(|(name, values)| Encoded {
                name: name.into(),
                values: bits(&values[..values.len().min(270)]),
                encoded: String::new(),
                decoded: String::new(),
            }));
        }
        "krum" | "mean" | "median" | "norm-clip" | "rda" | "sparseloco" | "trimmed-mean" => {
            golden.configuration = match name {
                "krum" => r#"{"keep": 2, "outer": "delayed-nesterov", "eta": 0.7, "period": 2, "spread": 0.5}"#,
                "median" => r#"{"outer": "adam", "eta": 0.01}"#,
                "norm-clip" => r#"{"factor": 1.5, "staleness_discount": 0.5, "eta": 0.7, "cooldown": 0.25}"#,
                "sparseloco" => r#"{"eta": 0.9, "cooldown": 0.25, "staleness_discount": 0.5}"#,
                "trimmed-mean" => r#"{"trim": 0.2, "outer": "sgd", "eta": 0.7, "cooldown": 0.25}"#,
                _ => r#"{"eta": 0.7, "momentum": 0.9, "warmup": 10, "cooldown": 0.25}"#,
            }
            .into();
            let shapes = vec![
                tensor("embed", &[9, 8], TensorKind::Embedding),
                tensor("gain", &[8], TensorKind::Vector),
                tensor("up", &[13, 8], TensorKind::Matrix),
                tensor("head", &[9, 8], TensorKind::Head),
            ];
            let count = shapes.iter().map(Tensor::elements).sum::<u64>() as usize;
            let island = |index: u64| Contribution {
                island: format!("island-{index}"),
                tokens: 1_000 + 111 * index,
                steps: 10 + index as u32,
                staleness: index as u32 % 2,
                norm: if name == "norm-clip" { 1.0 + index as f32 } else { 1.0 },
            };
            let rounds = [1_u64, 2, 3, 5].into_iter().enumerate().map(|(version, islands)| MergedRound {
                round: Round {
                    index: version as u64 * 4,
                    fragment: 0,
                    version: version as u64 * 20,
                    // Two rounds before the outer step cools down, one while it does, one after the last token.
                    tokens_merged: version as u64 * 400_000,
                    token_budget: 1_000_000,
                },
                contributions: (0..islands).map(island).collect(),
                values: (0..islands).map(|seed| bits(&noise(version as u32 * 10 + seed as u32, count))).collect(),
                weights: String::new(),
                parameters: String::new(),
                state: Vec::new(),
                memo: String::new(),
            });
            golden.merged.push(Merged {
                name: "four rounds of 1, 2, 3 and 5 islands".into(),
                tensors: shapes,
                parameters: bits(&noise(99, count)),
                rounds: rounds.collect(),
            });
        }
        _ => {
            golden.configuration = match name {
                "fixed" => r#"{"grace_ms": 37}"#,
                "wait-all" => r#"{"wait_ms_max": 500}"#,
                _ => "",
            }
            .into();
            for (offers, since_quorum_ms) in [(1, 0), (1, 37), (1, 500), (2, 10), (3, 10)] {
                for (step_ms, sync_ms) in [(100.0, 30.0), (333.3, 61.7), (0.0, 0.0), (10.0, 400.0)] {
                    let lag = |index: u32| (index != 1).then_some((41.7 * index as f32, 3.3));
                    golden.paced.push(Paced {
                        since_quorum_ms,
                        quorum: 1,
                        offers,
                        islands: (0..3).map(|index| (index < 2 || offers != 2, index < offers, lag(index))).collect(),
                        step_ms,
                        quorum_ms: 12.5,
                        sync_ms,
                        overlap_steps: 2,
                        wait_ms: None,
                    });
                }
            }
        }
    }
    golden
}

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/policy").join(format!("{name}.json"))
}

fn hold(name: &str, policy: &Policy) {
    let path = file(name);
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let golden: Golden = serde_json::from_str(&text).expect("a golden file");
    let found = answered(policy, &golden);
    assert!(found == golden, "{name} ({policy:?}) no longer answers with the bits in {}", path.display());
}

#[test]
fn bundled_policies_answer_with_the_bits_of_the_golden_vectors() {
    for name in bundled_names() {
        let policy = runtime().bundled(name).expect("bundled");
        if std::env::var_os("TOMBOLO_BLESS").is_some() {
            let golden = answered(&policy, &questions(name));
            let text = serde_json::to_string_pretty(&golden).expect("serialises");
            fs::write(file(name), text + "\n").expect("writable");
        }
        hold(name, &policy);
    }
}

#[test]
fn rebuilt_policies_answer_with_the_same_bits() {
    let required = crate::support::required("guests");
    let folder = tempfile::tempdir().expect("a folder");
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let mut command = Command::new(cargo);
    command
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .args(["run", "--release", "--quiet", "-p", "xtask", "--", "plugins"])
        .args((!required).then_some("--offline"))
        .arg("--out")
        .arg(folder.path());
    let output = command.output().expect("cargo starts");
    let said = String::from_utf8_lossy(&output.stderr);
    match output.status.code() {
        Some(0) => {}
        Some(3) if !required => {
            crate::support::not_tested("guests", said.trim());
            return;
        }
        code => panic!("cargo xtask plugins ended with {code:?}: {said}"),
    }
    for name in bundled_names() {
        let wasm = fs::read(folder.path().join(format!("{name}.wasm"))).expect("built");
        hold(name, &runtime().load(&wasm).expect("loads"));
    }
}
