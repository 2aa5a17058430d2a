//! Policies that misbehave, at every door: each is one clear error, and the host goes on.

use tombolo::policy::{At, Codec, Error, Limits, Merged, Role, Runtime, TensorKind, bundled_wasm};

use crate::guest::{CodecText, MergeText};
use crate::memory::{Fragment, contribution, round, runtime, tensor};

const AT: At = At { tensor: 0, offset: 0 };

/// A runtime that gives up soon.
fn impatient() -> Runtime {
    let limits = Limits { call_fuel: 1_000_000, call_seconds_max: 1, instance_bytes_max: 8 << 20, ..Limits::default() };
    Runtime::new(limits, None).expect("an engine")
}

fn open(text: &CodecText) -> Result<Codec, Error> {
    Codec::open(&impatient().load(&text.wasm())?, b"", &[tensor("t", &[64], TensorKind::Matrix)])
}

fn encode(text: &CodecText) -> Result<Vec<u8>, Error> {
    open(text).expect("opens").encode(AT, &[1.0; 64])
}

fn decode(text: &CodecText) -> Result<Vec<f32>, Error> {
    open(text).expect("opens").decode(AT, &[0; 256], 64)
}

/// Merges two contributions to 64 values on two threads.
fn merged(text: &MergeText) -> Result<(Merged, Fragment), Error> {
    let mut fragment = Fragment::new(vec![tensor("t", &[40_000], TensorKind::Matrix)], vec![2.0; 40_000]);
    let islands = [contribution("a", 10, 1), contribution("b", 10, 1)];
    let values = [vec![1.0; 40_000], vec![1.0; 40_000]];
    let merged = fragment.merge(&impatient().load(&text.wasm())?, "", round(0), &islands, &values, 2)?;
    Ok((merged, fragment))
}

fn load(wasm: &[u8]) -> Error {
    runtime().load(wasm).expect_err("not a policy")
}

#[test]
fn an_honest_codec_and_an_honest_merge_rule_in_text_are_taken() {
    let codec = CodecText::default();
    assert_eq!(decode(&codec).expect("decodes"), [0.0; 64]);
    assert_eq!(encode(&codec).expect("encodes"), 1.0_f32.to_le_bytes().repeat(64));
    assert_eq!(impatient().load(&codec.wasm()).expect("loads").roles(), [Role::Codec]);
    let (merged, fragment) = merged(&MergeText { plan: (1, 2), ..MergeText::default() }).expect("merges");
    assert_eq!((merged.weights, merged.state_slots), (vec![1.0, 1.0], 2));
    assert!(fragment.parameters.iter().all(|value| *value == 2.0));
}

#[test]
fn an_infinite_loop_runs_out_of_fuel() {
    let error = encode(&CodecText { encode: "(loop $forever (br $forever)) (unreachable)", ..CodecText::default() });
    assert!(matches!(error, Err(Error::OutOfFuel { call: "encode", .. })), "{error:?}");
    let error = merged(&MergeText { step: "(loop $forever (br $forever)) (unreachable)", ..MergeText::default() });
    assert!(matches!(error, Err(Error::OutOfFuel { call: "step", .. })), "{error:?}");
}

#[test]
fn a_loop_that_fuel_allows_meets_the_deadline() {
    let limits = Limits { call_fuel: u64::MAX, call_seconds_max: 1, ..Limits::default() };
    let text = CodecText { encode: "(loop $forever (br $forever)) (unreachable)", ..CodecText::default() };
    let policy = Runtime::new(limits, None).expect("an engine").load(&text.wasm()).expect("loads");
    let mut codec = Codec::open(&policy, b"", &[tensor("t", &[64], TensorKind::Matrix)]).expect("opens");
    let error = codec.encode(AT, &[1.0; 64]);
    assert!(matches!(error, Err(Error::TimedOut { seconds: 1, .. })), "{error:?}");
}

#[test]
fn a_memory_bomb_meets_the_cap() {
    let grow = "(drop (memory.grow (i32.const 1000))) (unreachable)";
    let error = encode(&CodecText { encode: grow, ..CodecText::default() });
    assert!(matches!(error, Err(Error::OutOfMemory { wanted, limit, .. }) if wanted > limit), "{error:?}");
}

#[test]
fn a_component_that_starts_too_large_is_refused_when_loaded() {
    let load = |pages| impatient().load(&CodecText { pages, ..CodecText::default() }.wasm());
    assert!(load(100).is_ok());
    let error = load(2_000).expect_err("131 MB where 8 MiB are allowed");
    assert!(matches!(error, Error::OutOfMemory { wanted: 131_072_000, .. }), "{error}");
}

#[test]
fn components_within_components_without_end_are_refused_before_anything_recurses_into_them() {
    // Innermost first: each wraps the one before as its section 4.
    let header = [0, b'a', b's', b'm', 0x0d, 0, 1, 0];
    let mut wasm = header.to_vec();
    for _ in 0..50_000 {
        let mut outer = header.to_vec();
        outer.push(4);
        let mut length = wasm.len();
        while length >= 0x80 {
            outer.push(length as u8 | 0x80);
            length >>= 7;
        }
        outer.push(length as u8);
        outer.extend(&wasm);
        wasm = outer;
        if wasm.len() > 900_000 {
            break;
        }
    }
    let error = impatient().load(&wasm).expect_err("far too deep");
    assert!(matches!(&error, Error::NotAPolicy { what, .. } if what.contains("within")), "{error}");
}

#[test]
fn a_trap_is_reported_and_the_instance_replaced() {
    let text = CodecText {
        encode: "(if (f32.eq (f32.load (local.get $values)) (f32.const 13)) (then (unreachable)))
            (call $answer (local.get $values) (i32.shl (local.get $count) (i32.const 2)))",
        ..CodecText::default()
    };
    let mut codec = open(&text).expect("opens");
    let error = codec.encode(AT, &[13.0; 64]);
    assert!(
        matches!(&error, Err(Error::Trapped { call: "encode", what, .. }) if what.contains("unreachable")),
        "{error:?}"
    );
    assert!(codec.encode(AT, &[1.0; 64]).is_ok(), "a fresh instance goes on");
}

#[test]
fn deep_recursion_is_a_trap() {
    let text = CodecText {
        extra: "(func $deep (param i32) (result i32) (i32.add (call $deep (local.get 0)) (i32.const 1)))",
        encode: "(call $deep (i32.const 0))",
        ..CodecText::default()
    };
    let error = encode(&text);
    assert!(matches!(&error, Err(Error::Trapped { what, .. }) if what.contains("stack")), "{error:?}");
}

#[test]
fn an_address_out_of_bounds_is_a_trap() {
    let error = encode(&CodecText { encode: "(i32.load (i32.const -4))", ..CodecText::default() });
    assert!(matches!(error, Err(Error::Trapped { .. })), "{error:?}");
    let error = encode(&CodecText { encode: "(call $answer (i32.const -16) (i32.const 64))", ..CodecText::default() });
    assert!(matches!(error, Err(Error::Trapped { .. })), "{error:?}");
}

#[test]
fn a_policy_that_says_no_is_quoted_without_control_characters() {
    let error = encode(&CodecText { encode: "(call $refuse)", ..CodecText::default() });
    assert!(matches!(&error, Err(Error::Refused { reason, .. }) if reason == "no  !"), "{error:?}");
}

#[test]
fn answers_of_the_wrong_length_are_nonsense() {
    let error =
        decode(&CodecText { decode: "(call $answer (local.get $bytes) (i32.const 63))", ..CodecText::default() });
    assert!(
        matches!(&error, Err(Error::Nonsense { expected, found, .. }) if expected == "64" && found == "63"),
        "{error:?}"
    );
    let error = encode(&CodecText { encode: "(call $answer (i32.const 0) (i32.const 577))", ..CodecText::default() });
    assert!(matches!(error, Err(Error::Nonsense { .. })), "more than 8 bytes a value: {error:?}");
    for step in [
        "(call $stepped (local.get $parameters) (i32.const 5) (local.get $state) (local.get $slots))",
        "(call $stepped (local.get $parameters) (local.get $elements) (local.get $state) (i32.const 0))",
        "(i32.store (i32.add (local.get $state) (i32.const 4)) (i32.const 7))
            (call $stepped (local.get $parameters) (local.get $elements) (local.get $state) (local.get $slots))",
    ] {
        let error = merged(&MergeText { plan: (0, 1), step, ..MergeText::default() });
        assert!(matches!(error, Err(Error::Nonsense { call: "step", .. })), "{error:?}");
    }
}

#[test]
fn a_list_of_lists_that_share_their_memory_cannot_flood_the_host() {
    // A million lists of the same megabyte would be a terabyte here.
    let step = "(local $i i32)
        (drop (memory.grow (i32.const 64)))
        (loop $next
          (i32.store (i32.add (i32.const 131072) (i32.shl (local.get $i) (i32.const 3))) (i32.const 0))
          (i32.store (i32.add (i32.const 131076) (i32.shl (local.get $i) (i32.const 3))) (i32.const 262144))
          (local.set $i (i32.add (local.get $i) (i32.const 1)))
          (br_if $next (i32.lt_u (local.get $i) (i32.const 200000))))
        (call $stepped (local.get $parameters) (local.get $elements) (i32.const 131072) (i32.const 200000))";
    let error = merged(&MergeText { step, ..MergeText::default() });
    assert!(matches!(error, Err(Error::Trapped { call: "step", .. } | Error::Nonsense { .. })), "{error:?}");
}

#[test]
fn answers_that_are_not_finite_are_nonsense() {
    let poison = "(f32.store (local.get $bytes) (f32.div (f32.const 0) (f32.const 0)))
        (call $answer (local.get $bytes) (local.get $elements))";
    let error = decode(&CodecText { decode: poison, ..CodecText::default() });
    assert!(matches!(&error, Err(Error::Nonsense { found, .. }) if found == "NaN"), "{error:?}");
    let step = "(f32.store (local.get $parameters) (f32.const inf))
        (call $stepped (local.get $parameters) (local.get $elements) (local.get $state) (local.get $slots))";
    let error = merged(&MergeText { step, ..MergeText::default() });
    assert!(matches!(&error, Err(Error::Nonsense { found, .. }) if found == "inf"), "{error:?}");
}

#[test]
fn plans_out_of_bounds_are_nonsense() {
    let plans = [
        MergeText { weight: "(f32.store (i32.const 256) (f32.const -1))", ..MergeText::default() },
        MergeText { weight: "(f32.store (i32.const 256) (f32.const nan))", ..MergeText::default() },
        MergeText {
            weight: "(f32.store (i32.const 256) (f32.const 0)) (f32.store (i32.const 260) (f32.const 0))",
            ..MergeText::default()
        },
        MergeText { more_weights: 1, ..MergeText::default() },
        MergeText { more_weights: -2, ..MergeText::default() },
        MergeText { plan: (5, 0), ..MergeText::default() },
        MergeText { plan: (0, 9), ..MergeText::default() },
    ];
    for plan in plans {
        let error = merged(&plan);
        let Err(Error::Nonsense { call: "plan", what, .. }) = error else { panic!("{error:?}") };
        assert_ne!(what, "answers of several instances", "each answer is looked at by itself first");
    }
}

#[test]
fn memories_of_a_pass_and_of_a_round_are_bounded() {
    let error = merged(&MergeText {
        plan: (1, 0),
        observe: "(call $answer (i32.const 0) (i32.const 65537))",
        ..MergeText::default()
    });
    assert!(matches!(error, Err(Error::Nonsense { call: "observe", .. })), "{error:?}");
    let error = merged(&MergeText { close: "(call $answer (i32.const 0) (i32.const 65537))", ..MergeText::default() });
    assert!(matches!(error, Err(Error::Nonsense { call: "close", .. })), "{error:?}");
}

#[test]
fn a_memo_that_depends_on_the_chunks_seen_is_caught() {
    // Counts its steps: instances that saw different chunks remember different things. 40,000 values are two chunks for two
    // threads, but one may be fast enough to take both, so all that is asked for is: equal or caught.
    let text = MergeText {
        extra: "(global $steps (mut i32) (i32.const 0))",
        step: "(global.set $steps (i32.add (global.get $steps) (i32.const 1)))
            (call $stepped (local.get $parameters) (local.get $elements) (local.get $state) (local.get $slots))",
        close: "(i32.store (i32.const 128) (global.get $steps)) (call $answer (i32.const 128) (i32.const 4))",
        ..MergeText::default()
    };
    match merged(&text) {
        Ok((merged, _)) => assert_eq!(merged.memo, [1, 0, 0, 0]),
        Err(error) => assert!(matches!(error, Error::Nonsense { call: "close", .. }), "{error}"),
    }
}

#[test]
fn traits_out_of_range_are_nonsense() {
    for traits in [
        ("0", 0, "0", "0", 1),
        ("65", 0, "0", "0", 1),
        ("nan", 0, "0", "0", 1),
        ("8", 1, "1.5", "0", 1),
        ("8", 1, "nan", "0", 1),
        ("8", 0, "0", "-1", 1),
        ("8", 0, "0", "nan", 1),
        ("8", 0, "0", "0", 0),
    ] {
        let error = open(&CodecText { traits, ..CodecText::default() });
        assert!(matches!(error, Err(Error::Nonsense { call: "traits", .. })), "{traits:?}: {error:?}");
    }
}

#[test]
fn bytes_that_are_no_component_are_named_for_what_they_are() {
    let said = |wasm: &[u8], what: &str| {
        let error = load(wasm);
        assert!(matches!(error, Error::NotAPolicy { .. }), "{error}");
        assert!(error.to_string().contains(what), "{error}");
    };
    said(b"", "no bytes at all");
    said(b"GIF89a", "bytes that start 47 49 46 38");
    said(b"\0asm\x01\0\0\0", "a core WebAssembly module");
    said(b"\0asm\x0d\0\x01\0", "no exports");
    said(&wat::parse_str("(component (core module))").expect("text"), "no exports");
    let wasm = bundled_wasm("bf16").expect("bundled");
    for length in [5, 100, wasm.len() / 2, wasm.len() - 1] {
        let error = load(&wasm[..length]);
        assert!(matches!(error, Error::NotAPolicy { .. }), "{length}: {error}");
    }
}

#[test]
fn damaged_components_are_errors_and_never_crash() {
    // A flipped byte in the code may leave a valid component; in that case it loads. What counts is that nothing panics or hangs.
    let wasm = bundled_wasm("bf16").expect("bundled");
    let runtime = impatient();
    for index in 0..60 {
        let mut damaged = wasm.to_vec();
        let place = (index * 7_919) % damaged.len();
        damaged[place] ^= 1 << (index % 8);
        let _ = runtime.load(&damaged);
    }
}

#[test]
fn imports_are_refused_by_name() {
    let import = |name: &str| {
        let text = format!(
            r#"(component (import "{name}" (instance (export "now" (func (result u64)))))
                (instance $empty) (export "tombolo:policy/codec@0.1.0" (instance $empty)))"#
        );
        load(&wat::parse_str(&text).expect("text")).to_string()
    };
    let error = import("wasi:clocks/monotonic-clock@0.2.0");
    assert!(error.contains("wasi:clocks/monotonic-clock@0.2.0") && error.contains("wasm32-unknown-unknown"), "{error}");
    let error = import("my:own/clock");
    assert!(error.contains("my:own/clock"), "{error}");
    // A function under the name of the types is still a function.
    let error = import("tombolo:policy/types@0.1.0");
    assert!(error.contains("not a policy"), "{error}");
}

#[test]
fn a_component_of_another_world_is_told_what_a_policy_exports() {
    let export = |name: &str| {
        let text = format!(r#"(component (instance $empty) (export "{name}" (instance $empty)))"#);
        load(&wat::parse_str(&text).expect("text")).to_string()
    };
    let error = export("tombolo:policy/codec@0.9.0");
    assert!(
        error.contains("exports tombolo:policy/codec@0.9.0") && error.contains("tombolo:policy/codec@0.1.0"),
        "{error}"
    );
}

#[test]
fn an_interface_with_the_right_name_and_other_functions_is_refused_when_loaded() {
    let limits = Limits { simd_required: false, ..Limits::default() };
    let text = r#"(component (instance $empty) (export "tombolo:policy/merge@0.1.0" (instance $empty)))"#;
    let error = Runtime::new(limits, None).expect("an engine").load(&wat::parse_str(text).expect("text"));
    assert!(error.is_err(), "{error:?}");
}

#[test]
fn a_scalar_build_is_refused_with_the_flag_that_helps() {
    let text = r#"(component (core module (func (param f32) (result f32) (f32.add (local.get 0) (local.get 0))))
        (instance $empty) (export "tombolo:policy/codec@0.1.0" (instance $empty)))"#;
    let error = load(&wat::parse_str(text).expect("text")).to_string();
    assert!(error.contains("no SIMD instruction") && error.contains("+simd128"), "{error}");
}

#[test]
fn features_that_policies_do_not_have_are_refused() {
    for module in [
        "(memory 1 1 shared)",
        "(memory i64 1)",
        "(memory 1) (memory 1)",
        "(func (param v128 v128 v128) (result v128) (f32x4.relaxed_madd (local.get 0) (local.get 1) (local.get 2)))",
        "(func $f (return_call $f))",
        "(type (struct (field i32)))",
    ] {
        let text = format!(
            r#"(component (core module {module}) (instance $empty) (export "tombolo:policy/codec@0.1.0" (instance $empty)))"#
        );
        let error = load(&wat::parse_str(&text).expect("text"));
        assert!(matches!(&error, Error::NotAPolicy { what, .. } if what.contains("bytes")), "{module}: {error}");
    }
}

#[test]
fn functions_that_would_cost_a_compiler_too_much_are_refused_before_it_sees_them() {
    let load = |module: String| {
        let text = format!(
            r#"(component (core module {module}) (instance $empty) (export "tombolo:policy/codec@0.1.0" (instance $empty)))"#
        );
        load(&wat::parse_str(&text).expect("text"))
    };
    let large = load(format!("(func {})", "(drop (i32.const 1))".repeat(30_000)));
    assert!(matches!(&large, Error::TooCostly { what, .. } if what.contains("bytes of the function")), "{large}");
    let wide = load(format!("(func (local {}))", "i32 ".repeat(3_000)));
    assert!(matches!(&wide, Error::TooCostly { what, .. } if what.contains("locals of the function")), "{wide}");
    let tangled = load(format!("(func (local {}) {})", "i32 ".repeat(1_500), "(block)".repeat(1_000)));
    assert!(matches!(&tangled, Error::TooCostly { what, .. } if what.contains("locals times branches")), "{tangled}");
    let limits = Limits { component_bytes_max: 1_000, ..Limits::default() };
    let heavy = Runtime::new(limits, None).expect("an engine").load(bundled_wasm("bf16").expect("bundled"));
    assert!(matches!(heavy, Err(Error::TooCostly { .. })), "{heavy:?}");
}

#[test]
fn a_policy_asked_to_fill_another_role_says_which_it_has() {
    let codec = runtime().bundled("bf16").expect("bundled");
    let mut fragment = Fragment::new(vec![tensor("t", &[1], TensorKind::Matrix)], vec![0.0]);
    let error = fragment.merge(&codec, "", round(0), &[contribution("a", 1, 1)], &[vec![1.0]], 1).expect_err("a codec");
    assert!(error.to_string().ends_with("has no role merge; it has codec"), "{error}");
    let error = runtime().bundled("bf17").expect_err("no such policy");
    assert!(
        error
            .to_string()
            .contains("adaptive-grace, bf16, f32, fixed, fp4, int4, int8, krum, mean, median, norm-clip, rda"),
        "{error}"
    );
}

#[test]
fn the_default_limits_have_room_for_the_largest_chunk_of_many_contributions() {
    let policy = runtime().bundled("rda").expect("bundled");
    let mut fragment = Fragment::new(vec![tensor("t", &[32_768], TensorKind::Matrix)], vec![0.0; 32_768]);
    let islands: Vec<_> = (0..64).map(|index| contribution(&format!("island-{index}"), 100, 10)).collect();
    let values: Vec<Vec<f32>> = (0..64).map(|seed| crate::memory::noise(seed, 32_768)).collect();
    fragment.merge(&policy, "", round(0), &islands, &values, 1).expect("merges");
}
