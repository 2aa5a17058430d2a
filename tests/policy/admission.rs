//! Admission: all that ships passes, and each policy that breaks its contract is refused with the property that it breaks.

use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use tombolo::policy::{Error, Limits, Role, RoleCard, Runtime, admit, bundled_names, bundled_wasm};

use crate::guest::{CodecText, MergeText, PaceText};
use crate::memory::runtime;
use crate::support::program::{SMALL, Workshop};

/// Little fuel, so that a loop is over soon; the values of a chunk bring their own.
fn impatient() -> Runtime {
    let limits = Limits { call_fuel: 10_000_000, instance_bytes_max: 8 << 20, ..Limits::default() };
    Runtime::new(limits, None).expect("an engine")
}

fn card(wasm: &[u8], role: Role) -> RoleCard {
    admit(&impatient().load(wasm).expect("loads"), role, b"", None).expect("examined")
}

/// The component is refused, for this property, with a counterexample that says this.
fn assert_refused(card: &RoleCard, property: &str, found: &str) {
    let refused = card.refused.as_ref().unwrap_or_else(|| panic!("admitted: {card:?}"));
    assert!(refused.property.contains(property) && refused.found.contains(found), "{refused:?}");
}

#[test]
fn every_bundled_policy_is_admitted() {
    for name in bundled_names() {
        let policy = runtime().bundled(name).expect("bundled");
        for role in policy.roles() {
            let card = admit(&policy, *role, b"", None).expect("examined");
            assert_eq!(card.refused, None, "{name}");
            assert!(card.passed.len() >= 4, "{name}: {card:?}");
        }
    }
    let int8 = admit(&runtime().bundled("int8").expect("bundled"), Role::Codec, b"", None).expect("examined");
    assert_eq!((int8.facts["bits_per_value"], int8.facts["feedback_decay"]), (8.25, 1.0));
    assert!(int8.facts["error_of_block_max"] > 0.5 / 127.0 * 0.9, "{int8:?}");
    assert!(int8.facts["error_of_block_max"] <= int8.facts["stated_error_of_block_max"], "{int8:?}");
}

#[test]
fn two_examinations_of_a_policy_say_the_same() {
    for (name, role) in [("rda", Role::Merge), ("bf16", Role::Codec)] {
        let policy = runtime().bundled(name).expect("bundled");
        let examined = || admit(&policy, role, b"", None).expect("examined");
        assert_eq!(examined(), examined());
    }
}

#[test]
fn speeds_are_measured_where_there_is_a_clock() {
    // A clock that says a second has passed each time it is asked: one turn is enough, and the speed is known.
    let seconds = std::cell::Cell::new(0);
    let clock = || Duration::from_secs(seconds.replace(seconds.get() + 1));
    let measured = |name, role| {
        admit(&runtime().bundled(name).expect("bundled"), role, b"", Some(&clock)).expect("examined").facts
    };
    let turn = f64::from(1 << 22) / 1e9;
    assert_eq!(measured("bf16", Role::Codec)["encode_gb_per_s"], turn);
    assert_eq!(measured("bf16", Role::Codec)["decode_gb_per_s"], turn);
    assert_eq!(measured("mean", Role::Merge)["gb_per_s"], 4.0 * turn);
}

#[test]
fn honest_policies_in_text_are_admitted() {
    assert_eq!(card(&CodecText::default().wasm(), Role::Codec).refused, None);
    assert_eq!(card(&MergeText::default().wasm(), Role::Merge).refused, None);
    assert_eq!(card(&PaceText::default().wasm(), Role::Pace).refused, None);
}

#[test]
fn paces_that_trap_loop_never_rest_or_never_close_are_refused() {
    let refused = |decide, property, found| {
        assert_refused(&card(&PaceText { decide }.wasm(), Role::Pace), property, found);
    };
    refused("(unreachable)", "takes its configuration", "trapped in decide");
    refused("(loop $forever (br $forever)) (unreachable)", "takes its configuration", "used up its");
    refused(PaceText::REFUSE, "takes its configuration", "refused decide");
    refused("(i32.const 32)", "waits at least a millisecond", "asks to be asked again at once");
    refused(PaceText::WAIT, "closes a round in which every live island has answered", "600000 ms after it");
}

#[test]
fn a_configuration_that_the_policy_does_not_take_is_what_it_is_refused_for() {
    for (name, role) in [("mean", Role::Merge), ("bf16", Role::Codec), ("adaptive-grace", Role::Pace)] {
        let policy = runtime().bundled(name).expect("bundled");
        let card = admit(&policy, role, br#"{"speed": 1}"#, None).expect("examined");
        assert_refused(&card, "takes its configuration", r#"unknown field "speed""#);
    }
}

#[test]
fn a_component_is_not_examined_for_a_role_that_it_does_not_have() {
    let policy = runtime().bundled("mean").expect("bundled");
    assert!(matches!(admit(&policy, Role::Codec, b"", None), Err(Error::WrongRole { .. })));
}

#[test]
fn codecs_that_loop_trap_or_hoard_are_refused_with_the_call_that_did() {
    let refused = |encode, found| {
        let card = card(&CodecText { encode, ..CodecText::default() }.wasm(), Role::Codec);
        assert_refused(&card, "round trip", found);
        assert_refused(&card, "round trip", "encoding zeros");
    };
    refused("(loop $forever (br $forever)) (unreachable)", "used up its");
    refused("(unreachable)", "trapped in encode");
    refused("(drop (memory.grow (i32.const 1000))) (unreachable)", "of memory in encode");
    refused("(call $refuse)", "refused encode");
    refused("(call $answer (i32.const 0) (i32.const 200000))", "nonsense");
}

#[test]
fn a_codec_that_answers_with_another_length_or_no_number_is_refused() {
    let refused = |decode, found| {
        assert_refused(&card(&CodecText { decode, ..CodecText::default() }.wasm(), Role::Codec), "round trip", found);
    };
    refused("(call $answer (local.get $bytes) (i32.const 63))", "expected 300, found 63");
    let poison = "(f32.store (local.get $bytes) (f32.div (f32.const 0) (f32.const 0)))
        (call $answer (local.get $bytes) (local.get $elements))";
    refused(poison, "a finite number");
}

#[test]
fn a_codec_that_loses_more_than_it_states_is_refused_with_the_value() {
    // Gives the first value of every chunk back as zero, and states to lose nothing.
    let decode = "(i32.store (local.get $bytes) (i32.const 0)) (call $answer (local.get $bytes) (local.get $elements))";
    let card = card(&CodecText { decode, ..CodecText::default() }.wasm(), Role::Codec);
    assert_refused(&card, "round trip", "one value: value 0, 1e-1, came back as 0e0");
}

#[test]
fn a_codec_that_keeps_the_values_instead_of_writing_them_is_refused() {
    // Encodes the address at which its own memory holds the values: the same instance would decode them perfectly.
    let text = CodecText {
        extra: "(global $kept (mut i32) (i32.const 0))",
        encode: "(global.set $kept (local.get $values)) (call $answer (i32.const 512) (i32.const 4))",
        decode: "(call $answer (select (global.get $kept) (i32.const 131072) (global.get $kept)) (local.get $elements))",
        ..CodecText::default()
    };
    assert_refused(&card(&text.wasm(), Role::Codec), "round trip", "came back as");
}

/// Counts its calls in a byte at the end; the values themselves come back right.
fn counting() -> CodecText {
    CodecText {
        extra: "(global $calls (mut i32) (i32.const 0))",
        encode: "(global.set $calls (i32.add (global.get $calls) (i32.const 1)))
            (i32.store8 (i32.add (local.get $values) (i32.shl (local.get $count) (i32.const 2))) (global.get $calls))
            (call $answer (local.get $values) (i32.add (i32.const 1) (i32.shl (local.get $count) (i32.const 2))))",
        traits: ("33", 0, "0", "0", 1),
        ..CodecText::default()
    }
}

#[test]
fn a_codec_whose_bytes_depend_on_what_it_saw_before_is_refused() {
    assert_refused(&card(&counting().wasm(), Role::Codec), "same bits", "other bytes from byte");
}

#[test]
fn a_run_with_a_component_that_breaks_its_contract_is_not_made() {
    let sections = format!("{SMALL}[codec]\npolicy = \"guest.wasm\"\n");
    let workshop = Workshop::new("run = \"small\"\ntokens = 100000", &sections);
    std::fs::write(workshop.path("guest.wasm"), counting().wasm()).expect("a file");
    for command in ["submit spec.toml --bucket file:bucket", "run spec.toml --bucket file:bucket --out out"] {
        let ended = workshop.run(command);
        let error = ended.error(2);
        assert!(error.contains("codec.policy: guest.wasm: refused as codec: same bits"), "{error}");
        assert!(!workshop.path("bucket").exists() && !workshop.path("out").exists(), "nothing was begun");
    }
}

#[test]
fn a_codec_that_takes_more_bits_than_it_states_is_refused() {
    let card = card(&CodecText { traits: ("16", 0, "0", "0", 1), ..CodecText::default() }.wasm(), Role::Codec);
    assert_refused(&card, "bits that it states", "states 16 bits a value, takes 32.00");
}

#[test]
fn a_codec_that_damaged_bytes_bring_down_is_refused() {
    let decode = "(if (i32.eqz (local.get $length)) (then (unreachable)))
        (call $answer (local.get $bytes) (i32.shr_u (local.get $length) (i32.const 2)))";
    let card = card(&CodecText { decode, ..CodecText::default() }.wasm(), Role::Codec);
    assert_refused(&card, "damaged bytes", "decoding no bytes");
}

#[test]
fn merge_rules_that_loop_trap_or_answer_nonsense_are_refused() {
    let refused = |step, found| {
        let text = MergeText { step, plan: (0, 1), ..MergeText::default() };
        assert_refused(&card(&text.wasm(), Role::Merge), "merges one offer", found);
    };
    refused("(loop $forever (br $forever)) (unreachable)", "used up its");
    refused("(unreachable)", "trapped in step");
    refused("(call $stepped (local.get $parameters) (i32.const 5) (local.get $state) (local.get $slots))", "nonsense");
    let infinite = "(f32.store (local.get $parameters) (f32.const inf))
        (call $stepped (local.get $parameters) (local.get $elements) (local.get $state) (local.get $slots))";
    refused(infinite, "found inf");
}

#[test]
fn a_merge_rule_that_moves_further_the_more_islands_agree_is_refused() {
    // One more for every island.
    let step = "(f32.store (local.get $parameters) (f32.convert_i32_u (global.get $count)))
        (call $stepped (local.get $parameters) (local.get $elements) (local.get $state) (local.get $slots))";
    let card = card(&MergeText { step, ..MergeText::default() }.wasm(), Role::Merge);
    assert_refused(&card, "equal offers", "value 0 of model.embed_tokens.weight became 1 and 4");
}

#[test]
fn a_merge_rule_that_remembers_which_chunks_it_saw_is_refused() {
    let text = MergeText {
        extra: "(global $steps (mut i32) (i32.const 0))",
        step: "(global.set $steps (i32.add (global.get $steps) (i32.const 1)))
            (f32.store (local.get $parameters) (f32.convert_i32_u (global.get $steps)))
            (call $stepped (local.get $parameters) (local.get $elements) (local.get $state) (local.get $slots))",
        ..MergeText::default()
    };
    assert_refused(&card(&text.wasm(), Role::Merge), "same bits", "on two threads");
}

/// `tombolo policy check`: exit code, standard output, standard error.
fn checked(arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_tombolo")).args(["policy", "check"]).args(arguments).output();
    let output = output.expect("starts");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn the_command_prints_the_card_of_what_it_admits() {
    let (code, said, errors) = checked(&["mean", "--config", r#"{"momentum": 0.5}"#]);
    assert_eq!((code, errors.as_str()), (Some(0), ""), "{said}");
    let tuned = "tuned    outer nesterov, H 24, overwrite (alpha 0) on adoption";
    for part in ["role     merge", "ok       equal offers", "gb per s", "fuel per value", tuned, "\nadmitted\n"] {
        assert!(said.contains(part), "expected `{part}` in: {said}");
    }
    let (_, said, _) = checked(&["krum"]);
    assert!(said.contains("tuned    not that is known here"), "{said}");
    let (code, said, _) = checked(&["bf16", "--json"]);
    let card: Value = serde_json::from_str(&said).expect("JSON");
    assert_eq!((code, card["format"].as_u64(), card["roles"][0]["refused"].is_null()), (Some(0), Some(1), true));
    assert!(card.get("tuned").is_none(), "only merge rules are tuned: {card}");
    assert_eq!(card["component_bytes"].as_u64(), Some(bundled_wasm("bf16").expect("bundled").len() as u64));
    for fact in ["bits_per_value", "encode_fuel_per_value", "encode_gb_per_s", "decode_gb_per_s"] {
        assert!(card["roles"][0]["facts"][fact].as_f64().is_some_and(|value| value > 0.0), "{fact}: {card}");
    }
}

#[test]
fn the_command_ends_with_the_counterexample_of_what_it_refuses() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("policy.wasm");
    let refuses = |wasm: &[u8], expected: &str| {
        std::fs::write(&file, wasm).expect("writable");
        let name = file.to_str().expect("UTF-8");
        let (code, _, errors) = checked(&[name]);
        assert_eq!(code, Some(2), "{errors}");
        assert!(errors.starts_with("error: ") && errors.contains(expected), "expected `{expected}` in: {errors}");
        let (code, said, _) = checked(&[name, "--json"]);
        let card: Value = serde_json::from_str(&said).expect("JSON");
        assert_eq!(code, Some(2));
        assert!(card["refused"].is_string() || card["roles"][0]["refused"]["found"].is_string(), "{said}");
    };
    let trap = CodecText { encode: "(unreachable)", ..CodecText::default() };
    refuses(&trap.wasm(), "refused as codec: round trip within the stated error");
    let bf16 = bundled_wasm("bf16").expect("bundled");
    refuses(&bf16[..bf16.len() / 2], "not a policy");
    refuses(b"GIF89a", "not a policy");
    refuses(&vec![0; (1 << 20) + 1], "at most 1048576 bytes");
    let component = |text: &str| wat::parse_str(text).expect("text");
    let exports = r#"(instance $empty) (export "tombolo:policy/codec@0.1.0" (instance $empty))"#;
    refuses(&component("(component (core module))"), "no exports");
    refuses(
        &component(&format!(
            r#"(component (import "my:own/clock" (instance (export "now" (func (result u64))))) {exports})"#
        )),
        "my:own/clock",
    );
    refuses(
        &component(&format!(
            "(component (core module (func (param f32) (result f32) (f32.add (local.get 0) (local.get 0)))) {exports})"
        )),
        "+simd128",
    );
    let giant = "(drop (i32.const 1))".repeat(30_000);
    refuses(&component(&format!("(component (core module (func {giant})) {exports})")), "costs too much to compile");
}
