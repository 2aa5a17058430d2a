//! Thousands of damaged components: each is refused with a clear error, or is a policy like any other. No input brings the host down, hangs it or costs it
//! memory without bound.
//!
//! What passes inspection is compiled in a child process, and what that makes is put through admission, for as many as there is time for. See
//! `support/mutant.rs` for the seed.

use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use tombolo::policy::{Error, Limits, Runtime, admit, bundled_names, bundled_wasm};

use crate::guest::{CodecText, MergeText};
use crate::support::mutant::{Mutants, assert_readable, each, memory_peak_bytes, told};
use crate::support::say;

/// Components that are made, and how many of those that pass inspection are compiled.
const INPUTS: usize = 3_000;
const COMPILED_MAX: usize = 60;

/// Alone this test needs some 22 MiB; the others of this program run beside it. Far less than what a component could ask for.
const MEMORY_MAX_BYTES: u64 = 2 << 30;

fn whole() -> Vec<Vec<u8>> {
    let mut whole = vec![CodecText::default().wasm(), MergeText::default().wasm()];
    whole.extend(bundled_names().iter().map(|name| bundled_wasm(name).expect("bundled").to_vec()));
    whole
}

/// What became of an input.
#[derive(PartialEq)]
enum Fate {
    Refused,
    NotCompiled,
    RefusedByAdmission,
    Admitted,
}

/// Loads an input and, where it loads, asks for admission in every role. Whatever fails must be the input's fault.
fn examine(runtime: &Runtime, wasm: &[u8], which: &str) -> Fate {
    let policy = match runtime.load(wasm) {
        Ok(policy) => policy,
        Err(error) => {
            assert!(!matches!(error, Error::Host { .. } | Error::Input { .. }), "{which}: {error}");
            assert_readable(&error.to_string(), which);
            return Fate::Refused;
        }
    };
    let mut fate = Fate::Admitted;
    for role in policy.roles() {
        let card = admit(&policy, *role, b"", None).unwrap_or_else(|error| panic!("{which}: {error}"));
        if let Some(refusal) = card.refusal() {
            assert_readable(&refusal, which);
            fate = Fate::RefusedByAdmission;
        }
    }
    fate
}

#[tokio::test]
async fn no_damaged_component_brings_the_host_down() {
    let (seed, inputs) = told("damaged components", INPUTS);
    let limits = Limits { call_fuel: 2_000_000, value_fuel: 200, instance_bytes_max: 8 << 20, ..Limits::default() };
    // A compiler that does not exist: whatever gets that far has passed inspection.
    let gate = Runtime::compiling_with(limits.clone(), None, "/nonexistent".into()).expect("an engine");
    let program = env!("CARGO_BIN_EXE_tombolo").into();
    let runtime = Runtime::compiling_with(limits, None, program).expect("an engine");
    let (whole, compiled) = (whole(), AtomicUsize::new(0));
    let fates = each(inputs, move |input| {
        let wasm = Mutants::new(&whole, seed, input).make();
        let which = format!("input {input} of seed {seed}");
        match gate.load(&wasm) {
            Ok(_) => panic!("{which}: loaded without a compiler"),
            Err(Error::Host { .. }) if compiled.fetch_add(1, Relaxed) < COMPILED_MAX => {
                examine(&runtime, &wasm, &which)
            }
            Err(Error::Host { .. }) => Fate::NotCompiled,
            Err(error) => {
                assert_readable(&error.to_string(), &which);
                Fate::Refused
            }
        }
    })
    .await;
    let count = |fate: Fate| fates.iter().filter(|found| **found == fate).count();
    say(&format!(
        "damaged components: {} refused, {} refused by admission, {} admitted, {} passed inspection and were not compiled",
        count(Fate::Refused),
        count(Fate::RefusedByAdmission),
        count(Fate::Admitted),
        count(Fate::NotCompiled)
    ));
    assert_eq!(fates.len(), inputs);
    assert!(count(Fate::Refused) > inputs / 2, "most damage is found before anything runs");
    let peak = memory_peak_bytes();
    say(&format!("damaged components: {peak:?} bytes of memory at most, all tests of this process included"));
    assert!(peak.is_none_or(|peak| peak < MEMORY_MAX_BYTES), "{peak:?} bytes of memory");
}

#[test]
fn what_a_component_names_cannot_steer_a_terminal() {
    let text = r#"(component
      (core module $m)
      (core instance $i (instantiate $m))
      (alias core export $i "\1b[2Jgone" (core func $f)))"#;
    let error = crate::memory::runtime().load(&wat::parse_str(text).expect("parses")).expect_err("no such export");
    let message = error.to_string();
    assert!(message.contains("[2Jgone"), "{message}");
    assert_readable(&message, "an export's name");
}
