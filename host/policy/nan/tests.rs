//! Whatever a policy can see is the same bits as if the compiler had made every result canonical.

use super::*;
use wasmtime::{Config, Engine, Instance, Module, Store};

/// Memory of `wasm` after its function `run`, with and without the compiler's own canonical NaNs.
fn memory(wasm: &[u8], by_compiler: bool) -> Vec<u8> {
    let engine = Engine::new(Config::new().cranelift_nan_canonicalization(by_compiler)).expect("an engine");
    let module = Module::new(&engine, wasm).expect("valid");
    let mut store = Store::new(&engine, ());
    let instance = Instance::new(&mut store, &module, &[]).expect("instantiates");
    let run = instance.get_typed_func::<(), ()>(&mut store, "run").expect("exported");
    run.call(&mut store, ()).expect("runs");
    instance.get_memory(&mut store, "memory").expect("exported").data(&store)[..4_096].to_vec()
}

fn module(body: &str) -> Vec<u8> {
    let text = format!(
        r#"(module (memory (export "memory") 1)
            (data (i32.const 0) "\00\00\80\7f\00\00\80\ff\00\00\c0\7f\01\00\a0\ff\00\00\00\00\00\00\00\80\00\00\80\3f\ff\ff\7f\7f")
            (data (i32.const 32) "\00\00\00\00\00\00\f0\7f\00\00\00\00\00\00\f0\ff\01\00\00\00\00\00\f8\ff\00\00\00\00\00\00\00\00")
            (func $same (param f32) (result f32) (local.get 0))
            (func (export "run") (local $n i32) (local $v0 v128) (local $v1 v128) (local $v2 v128) (local $v3 v128)
                (local $f0 f32) (local $f1 f32) (local $d0 f64) (local $d1 f64)
                (local.set $v0 (v128.load (i32.const 0))) (local.set $v1 (v128.load (i32.const 16)))
                (local.set $v2 (v128.load (i32.const 32))) (local.set $v3 (v128.load (i32.const 48)))
                (local.set $f0 (f32.load (i32.const 0))) (local.set $d0 (f64.load (i32.const 32)))
                {body}))"#
    );
    wat::parse_str(text).expect("text")
}

/// How many results of the last function count as seen.
fn seen(wasm: &[u8]) -> usize {
    canonical(wasm).expect("valid").windows(4).filter(|four| four == &[0xfd, 0x41, 0xfd, 0x52]).count()
}

#[test]
fn a_chain_of_arithmetic_is_made_canonical_once_and_where_it_is_stored() {
    let sum = "(f32x4.add (f32x4.mul (local.get $v0) (local.get $v1)) (f32x4.sub (local.get $v0) (local.get $v0)))";
    assert_eq!(seen(&module(&format!("(v128.store (i32.const 64) {sum})"))), 1);
    assert_eq!(seen(&module(&format!("(drop (f32x4.eq {sum} {sum}))"))), 0, "a comparison sees no NaN's bits");
    assert_eq!(seen(&module(&format!("(drop (f64x2.eq {sum} {sum}))"))), 2, "as another type it does");
    let wasm = module(&format!("(local.set $v2 {sum}) (v128.store (i32.const 64) (f32x4.sqrt (local.get $v2)))"));
    assert_eq!(seen(&wasm), 1, "nothing looks at the local");
}

#[test]
fn a_sum_that_a_loop_carries_is_made_canonical_where_it_is_stored() {
    let turn = "(local.set $v2 (f32x4.add (local.get $v2) (local.get $v0)))";
    let again = "(br_if $again (i32.lt_u (local.tee $n (i32.add (local.get $n) (i32.const 1))) (i32.const 3)))";
    let store = "(v128.store (i32.const 64) (f32x4.mul (local.get $v2) (local.get $v1)))";
    let after = |rest: &str| module(&format!("(loop $again {turn} {again}) {rest}"));
    assert_eq!(seen(&after(store)), 1, "the product");
    assert_eq!(seen(&after("(v128.store (i32.const 64) (local.get $v2))")), 1, "the sum");
    assert_eq!(seen(&after(&format!("{store} (v128.store (i32.const 80) (v128.not (local.get $v2)))"))), 2, "both");
    // By way of another local, and read as another type.
    assert_eq!(seen(&after("(local.set $v3 (local.get $v2)) (block) (v128.store (i32.const 64) (local.get $v3))")), 1);
    assert_eq!(seen(&after("(drop (f64x2.sqrt (local.get $v2)))")), 1);
    assert_eq!(seen(&after("(local.set $v3 (local.get $v2)) (block) (drop (f32x4.sqrt (local.get $v3)))")), 0);
}

#[test]
fn a_nan_has_the_canonical_bits_whichever_way_it_goes() {
    let nan = "(f32.sub (local.get $f0) (local.get $f0))";
    for way in [
        format!("(f32.store (i32.const 64) {nan})"),
        format!("(i32.store (i32.const 64) (i32.reinterpret_f32 {nan}))"),
        format!("(local.set $f1 {nan}) (f32.store (i32.const 64) (local.get $f1))"),
        format!("(f32.store (i32.const 64) (call $same {nan}))"),
        format!("(f32.store (i32.const 64) (select {nan} (local.get $f0) (i32.const 1)))"),
        format!("(f32.store (i32.const 64) (block (result f32) {nan}))"),
        format!("(if (i32.const 1) (then (local.set $f1 {nan}))) (f32.store (i32.const 64) (local.get $f1))"),
        format!("(v128.store (i32.const 64) (f32x4.splat {nan}))"),
        format!("(f32.store (i32.const 64) (f32.mul (f32.load (i32.const 12)) {nan}))"),
        format!("(local.set $f1 {nan}) (loop $again (f32.store (i32.const 64) (local.get $f1))
            (local.set $f1 (f32.neg (f32.abs (local.get $f1)))) (local.set $f1 (f32.add (local.get $f1) (local.get $f0)))
            (br_if $again (i32.lt_u (local.tee $n (i32.add (local.get $n) (i32.const 1))) (i32.const 3))))"),
    ] {
        let wasm = module(&way);
        let bits = memory(&canonical(&wasm).expect("valid"), false);
        assert_eq!(bits[64..68], 0x7fc0_0000_u32.to_le_bytes(), "{way}");
    }
}

/// Text of random instructions.
struct Random(u32);

impl Random {
    fn below(&mut self, count: usize) -> usize {
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (self.0 >> 8) as usize % count
    }

    fn of(&mut self, words: &[&str]) -> String {
        words[self.below(words.len())].to_string()
    }

    fn place(&mut self) -> String {
        format!("(i32.const {})", 64 + 16 * self.below(60))
    }

    /// An expression of a type: v, f or d.
    fn value(&mut self, kind: char, depth: usize) -> String {
        if depth == 0 || self.below(6) == 0 {
            let load = match kind {
                'v' => "v128.load",
                'f' => "f32.load",
                _ => "f64.load",
            };
            return match self.below(3) {
                0 => format!("({load} (i32.const {}))", 8 * self.below(6)),
                _ => format!("(local.get ${kind}{})", self.below(if kind == 'v' { 4 } else { 2 })),
            };
        }
        let binary = ["add", "sub", "mul", "div", "min", "max"];
        let unary = ["sqrt", "ceil", "nearest", "neg", "abs"];
        let scalar = if kind == 'f' { "f32" } else { "f64" };
        let (next, choice) = (depth - 1, self.below(10));
        if kind == 'v' {
            let shape = self.of(&["f32x4", "f32x4", "f64x2"]);
            let (a, b) = (self.value('v', next), self.value('v', next));
            return match choice {
                0 => format!("({shape}.{} {a})", self.of(&unary)),
                1 => {
                    format!("({} {a} {b})", self.of(&["v128.xor", "i32x4.add", "f32x4.pmin", "f64x2.pmax", "f32x4.lt"]))
                }
                2 => format!("({} {a})", self.of(&["f32x4.demote_f64x2_zero", "f64x2.promote_low_f32x4"])),
                3 => format!("(f32x4.splat {})", self.value('f', next)),
                4 => format!("(i32x4.trunc_sat_f32x4_s {a})"),
                5 => format!("(local.tee $v{} {a})", self.below(4)),
                _ => format!("({shape}.{} {a} {b})", self.of(&binary)),
            };
        }
        let (a, b) = (self.value(kind, next), self.value(kind, next));
        match choice {
            0 => format!("({scalar}.{} {a})", self.of(&unary)),
            1 if kind == 'f' => format!("(f32.demote_f64 {})", self.value('d', next)),
            1 => format!("(f64.promote_f32 {})", self.value('f', next)),
            2 => format!("({scalar}.copysign {a} {b})"),
            3 => format!("(select {a} {b} ({scalar}.lt {b} {a}))"),
            4 if kind == 'f' => format!("(call $same {a})"),
            5 if kind == 'f' => format!("(f32x4.extract_lane 1 {})", self.value('v', next)),
            _ => format!("({scalar}.{} {a} {b})", self.of(&binary)),
        }
    }

    fn statements(&mut self, count: usize, depth: usize) -> String {
        (0..count).map(|_| self.statement(depth)).collect()
    }

    fn statement(&mut self, depth: usize) -> String {
        let kind = ['v', 'v', 'f', 'd'][self.below(4)];
        let (value, place) = (self.value(kind, 3), self.place());
        match self.below(if depth == 0 { 6 } else { 8 }) {
            0 => match kind {
                'v' => format!("(v128.store {place} {value})\n"),
                'f' => format!("(i32.store {place} (i32.reinterpret_f32 {value}))\n"),
                _ => format!("(f64.store {place} {value})\n"),
            },
            6 => {
                let (then, other) = (self.statements(3, depth - 1), self.statements(2, depth - 1));
                format!("(if (f32.le {} (local.get $f0)) (then {then}) (else {other}))\n", self.value('f', 2))
            }
            7 => format!(
                "(local.set $n (i32.const 0)) (loop {} (br_if 0 (i32.lt_u (local.tee $n (i32.add (local.get $n) (i32.const 1))) (i32.const 3))))\n",
                self.statements(4, 0)
            ),
            _ => format!("(local.set ${kind}{} {value})\n", self.below(2)),
        }
    }
}

#[test]
fn random_code_shows_the_same_bits_as_if_every_result_were_made_canonical() {
    let mut told_apart = 0;
    for seed in 0..1_000 {
        let mut random = Random(seed);
        let body = random.statements(12, 1);
        let all = "(v128.store (i32.const 1100) (local.get $v0)) (v128.store (i32.const 1120) (local.get $v1))
            (f32.store (i32.const 1140) (local.get $f0)) (f64.store (i32.const 1148) (local.get $d0))";
        let wasm = module(&format!("{body}{all}"));
        let expected = memory(&wasm, true);
        assert!(memory(&canonical(&wasm).expect("valid"), false) == expected, "seed {seed}:\n{body}");
        told_apart += usize::from(memory(&wasm, false) != expected);
    }
    assert!(told_apart > 60, "{told_apart} programs would have shown other bits");
}

#[test]
fn components_are_rewritten_within_and_stay_valid() {
    for name in crate::policy::bundled_names() {
        let wasm = crate::policy::bundled_wasm(name).expect("bundled");
        wasmparser::Validator::new().validate_all(&canonical(wasm).expect("valid")).expect(name);
    }
    assert!(canonical(b"\0asm\x0d\0\x01\0\x01\xff").is_err(), "a section that is cut short");
}
