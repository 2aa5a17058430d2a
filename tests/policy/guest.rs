//! Policies in WebAssembly text: honest ones of a few lines, of which a test replaces a part to see what the host makes of it.

/// A codec whose functions are given as WebAssembly text. By default it passes f32 through.
pub struct CodecText {
    /// Further parts of the core module.
    pub extra: &'static str,
    /// Body of `encode`; parameters `$values` and `$count`; leaves the address of a `result<list<u8>, string>`.
    pub encode: &'static str,
    /// Body of `decode`; parameters `$bytes`, `$length` and `$elements`; leaves the address of a `result<list<f32>, string>`.
    pub decode: &'static str,
    /// `traits`: bits per value, feedback (0 or 1), its decay, greatest error, block.
    pub traits: (&'static str, u8, &'static str, &'static str, u32),
    /// Pages of 64 KiB that its memory begins with.
    pub pages: u32,
}

/// Passes what came in on, as bytes or as values.
const PASS_ENCODED: &str = "(call $answer (local.get $values) (i32.shl (local.get $count) (i32.const 2)))";
const PASS_DECODED: &str = "(call $answer (local.get $bytes) (i32.shr_u (local.get $length) (i32.const 2)))";

impl Default for CodecText {
    fn default() -> CodecText {
        CodecText { extra: "", encode: PASS_ENCODED, decode: PASS_DECODED, traits: ("32", 0, "0", "0", 1), pages: 4 }
    }
}

/// What both kinds share: memory, an allocator that only goes up, and an answer of a list at address 16 (`ok`, pointer, length).
const CORE: &str = r#"
    (import "host" "new" (func $new (param i32) (result i32)))
    (memory (export "memory") 4)
    (global $next (mut i32) (i32.const 8192))
    (func (export "realloc") (param i32 i32 i32) (param $size i32) (result i32)
      (local $place i32)
      (local.set $place (i32.and (i32.add (global.get $next) (i32.const 15)) (i32.const -16)))
      (global.set $next (i32.add (local.get $place) (local.get $size)))
      (block $room
        (br_if $room (i32.le_u (global.get $next) (i32.shl (memory.size) (i32.const 16))))
        (drop (memory.grow (i32.add (i32.const 1) (i32.shr_u (local.get $size) (i32.const 16))))))
      (local.get $place))
    (func $answer (param $list i32) (param $length i32) (result i32)
      (i32.store8 (i32.const 16) (i32.const 0))
      (i32.store (i32.const 20) (local.get $list))
      (i32.store (i32.const 24) (local.get $length))
      (i32.const 16))
    (func $refuse (result i32)
      (i32.store8 (i32.const 16) (i32.const 1))
      (i32.store (i32.const 20) (i32.const 512))
      (i32.store (i32.const 24) (i32.const 5))
      (i32.const 16))
    (data (i32.const 512) "no\n\00!")
    (func $simd (result v128) (v128.const i32x4 0 0 0 0))
"#;

/// The records of the interface `types`: name and definition, `%` before what is named in this list.
const TYPES: [(&str, &str); 5] = [
    ("tensor-kind", r#"(enum "embedding" "head" "matrix" "vector")"#),
    (
        "tensor",
        r#"(record (field "name" string) (field "shape" (list u32)) (field "elements" u64) (field "kind" %tensor-kind))"#,
    ),
    ("at", r#"(record (field "tensor" u32) (field "offset" u64))"#),
    (
        "round",
        r#"(record (field "index" u64) (field "fragment" u32) (field "version" u64) (field "tokens-merged" u64)
            (field "token-budget" u64))"#,
    ),
    (
        "contribution",
        r#"(record (field "island" string) (field "tokens" u64) (field "steps" u32) (field "staleness" u32)
            (field "norm" f32))"#,
    ),
];

impl CodecText {
    pub fn wasm(&self) -> Vec<u8> {
        let (bits, feedback, decay, error, block) = self.traits;
        let core = format!(
            r#"{core} {extra}
            (func (export "open") (param i32 i32 i32 i32) (result i32)
              (i32.store8 (i32.const 16) (i32.const 0)) (i32.store (i32.const 20) (call $new (i32.const 1))) (i32.const 16))
            (func (export "traits") (param i32) (result i32)
              (f32.store (i32.const 64) (f32.const {bits})) (i32.store8 (i32.const 68) (i32.const {feedback}))
              (f32.store (i32.const 72) (f32.const {decay})) (f32.store (i32.const 76) (f32.const {error}))
              (i32.store (i32.const 80) (i32.const {block})) (i32.const 64))
            (func (export "encode") (param i32 i32 i64) (param $values i32) (param $count i32) (result i32) {encode})
            (func (export "decode") (param i32 i32 i64) (param $bytes i32) (param $length i32) (param $elements i32) (result i32) {decode})"#,
            core = CORE.replace("\"memory\") 4)", &format!("\"memory\") {})", self.pages)),
            extra = self.extra,
            encode = self.encode,
            decode = self.decode,
        );
        let records = [(
            "traits",
            r#"(record (field "bits-per-value" f32) (field "feedback-decay" (option f32)) (field "error-max" f32)
                (field "block" u32))"#,
        )];
        let functions = [
            (
                "[static]session.open",
                r#"(param "config" (list u8)) (param "tensors" (list %tensor)) (result (result (own %session) (error string)))"#,
            ),
            ("[method]session.traits", r#"(param "self" (borrow %session)) (result %traits)"#),
            (
                "[method]session.encode",
                r#"(param "self" (borrow %session)) (param "at" %at) (param "values" (list f32))
                    (result (result (list u8) (error string)))"#,
            ),
            (
                "[method]session.decode",
                r#"(param "self" (borrow %session)) (param "at" %at) (param "bytes" (list u8)) (param "elements" u32)
                    (result (result (list f32) (error string)))"#,
            ),
        ];
        component("codec", &core, &records, &functions)
    }
}

/// A merge rule whose functions are given as WebAssembly text. By default every weight is 1 and nothing moves.
pub struct MergeText {
    /// Further parts of the core module.
    pub extra: &'static str,
    /// Passes and state slots of the plan.
    pub plan: (u32, u32),
    /// Writes the first weight to address 256; the others are 1.
    pub weight: &'static str,
    /// Added to the number of weights.
    pub more_weights: i32,
    /// Body of `observe`; parameters `$values` and `$count`; leaves the address of a `result<list<u8>, string>`.
    pub observe: &'static str,
    /// Body of `step`; parameters `$state`, `$slots`, `$parameters`, `$elements`; leaves the address of a `result<stepped, string>`.
    pub step: &'static str,
    /// Body of `close`; leaves the address of a `result<list<u8>, string>`.
    pub close: &'static str,
}

/// Gives state and parameters back as they came.
const STAND_STILL: &str =
    "(call $stepped (local.get $parameters) (local.get $elements) (local.get $state) (local.get $slots))";

impl Default for MergeText {
    fn default() -> MergeText {
        MergeText {
            extra: "",
            plan: (0, 0),
            weight: "(f32.store (i32.const 256) (f32.const 1))",
            more_weights: 0,
            observe: "(call $answer (i32.const 512) (i32.const 3))",
            step: STAND_STILL,
            close: "(call $answer (i32.const 0) (i32.const 0))",
        }
    }
}

impl MergeText {
    pub fn wasm(&self) -> Vec<u8> {
        let core = format!(
            r#"{CORE} {extra}
            (global $count (mut i32) (i32.const 0))
            (func $stepped (param i32 i32 i32 i32) (result i32)
              (i32.store8 (i32.const 32) (i32.const 0))
              (i32.store (i32.const 36) (local.get 0)) (i32.store (i32.const 40) (local.get 1))
              (i32.store (i32.const 44) (local.get 2)) (i32.store (i32.const 48) (local.get 3)) (i32.const 32))
            (func (export "open") (param i32 i32 i64 i32 i64 i64 i64 i32 i32 i32) (param $contributions i32) (param i32 i32) (result i32)
              (global.set $count (local.get $contributions))
              (i32.store8 (i32.const 16) (i32.const 0)) (i32.store (i32.const 20) (call $new (i32.const 1))) (i32.const 16))
            (func (export "plan") (param i32) (result i32) (local $i i32)
              (loop $next
                (f32.store (i32.add (i32.const 256) (i32.shl (local.get $i) (i32.const 2))) (f32.const 1))
                (local.set $i (i32.add (local.get $i) (i32.const 1)))
                (br_if $next (i32.lt_u (local.get $i) (global.get $count))))
              {weight}
              (i32.store8 (i32.const 64) (i32.const 0))
              (i32.store (i32.const 68) (i32.const 256)) (i32.store (i32.const 72) (i32.add (global.get $count) (i32.const {more})))
              (i32.store (i32.const 76) (i32.const {passes})) (i32.store (i32.const 80) (i32.const {slots})) (i32.const 64))
            (func (export "observe") (param i32 i32 i32 i64) (param $values i32) (param $count i32) (result i32) {observe})
            (func (export "observed") (param i32 i32 i32 i32) (result i32) (i32.store8 (i32.const 16) (i32.const 0)) (i32.const 16))
            (func (export "step") (param i32 i32 i64 i32 i32) (param $state i32) (param $slots i32) (param $parameters i32) (param $elements i32) (result i32) {step})
            (func (export "close") (param i32) (result i32) {close})"#,
            extra = self.extra,
            weight = self.weight,
            more = self.more_weights,
            passes = self.plan.0,
            slots = self.plan.1,
            observe = self.observe,
            step = self.step,
            close = self.close,
        );
        let records = [
            ("plan", r#"(record (field "weights" (list f32)) (field "passes" u32) (field "state-slots" u32))"#),
            ("stepped", r#"(record (field "parameters" (list f32)) (field "state" (list (list f32))))"#),
        ];
        let functions = [
            (
                "[static]session.open",
                r#"(param "config" (list u8)) (param "round" %round) (param "tensors" (list %tensor))
                    (param "contributions" (list %contribution)) (param "memo" (list u8))
                    (result (result (own %session) (error string)))"#,
            ),
            ("[method]session.plan", r#"(param "self" (borrow %session)) (result (result %plan (error string)))"#),
            (
                "[method]session.observe",
                r#"(param "self" (borrow %session)) (param "pass" u32) (param "at" %at) (param "values" (list (list f32)))
                    (result (result (list u8) (error string)))"#,
            ),
            (
                "[method]session.observed",
                r#"(param "self" (borrow %session)) (param "pass" u32) (param "blobs" (list (list u8)))
                    (result (result (error string)))"#,
            ),
            (
                "[method]session.step",
                r#"(param "self" (borrow %session)) (param "at" %at) (param "values" (list (list f32)))
                    (param "state" (list (list f32))) (param "parameters" (list f32))
                    (result (result %stepped (error string)))"#,
            ),
            ("[method]session.close", r#"(param "self" (borrow %session)) (result (result (list u8) (error string)))"#),
        ];
        component("merge", &core, &records, &functions)
    }
}

/// A pace whose decision is given as WebAssembly text. By default it closes every round.
pub struct PaceText {
    /// Body of `decide`; leaves the address of a `result<decision, string>`.
    pub decide: &'static str,
}

impl Default for PaceText {
    fn default() -> PaceText {
        PaceText { decide: "(i32.store8 (i32.const 40) (i32.const 1)) (i32.const 32)" }
    }
}

impl PaceText {
    /// Answers an error, and waits for five seconds. The answer lies at 32: `ok` or not, then `wait` or not, then the milliseconds.
    pub const REFUSE: &'static str =
        "(i32.store8 (i32.const 32) (i32.const 1)) (i32.store (i32.const 40) (i32.const 512))
        (i32.store (i32.const 44) (i32.const 5)) (i32.const 32)";
    pub const WAIT: &'static str = "(i64.store (i32.const 48) (i64.const 5000)) (i32.const 32)";

    pub fn wasm(&self) -> Vec<u8> {
        let core = format!(
            r#"{CORE}
            (func (export "decide") (param i32 i32 i64 i64 i32 i32 i32 i32 i32 f32 f32 f32 i32) (result i32) {})"#,
            self.decide
        );
        let records = [
            ("lag", r#"(record (field "mean-ms" f32) (field "deviation-ms" f32))"#),
            (
                "island",
                r#"(record (field "name" string) (field "keeps-up" bool) (field "answered" bool) (field "lag" (option %lag)))"#,
            ),
            (
                "view",
                r#"(record (field "round" u64) (field "since-quorum-ms" u64) (field "quorum" u32)
                    (field "offers" (list %contribution)) (field "islands" (list %island)) (field "step-ms" f32)
                    (field "quorum-ms" f32) (field "sync-ms" f32) (field "overlap-steps" u32))"#,
            ),
            ("decision", r#"(variant (case "wait" u64) (case "close"))"#),
        ];
        let decide = r#"(param "config" (list u8)) (param "view" %view) (result (result %decision (error string)))"#;
        component("pace", &core, &records, &[("decide", decide)])
    }
}

/// Makes a core module, which exports each function under the last part of its name, into a component that exports the interface of `role`.
///
/// What an interface exports may only mention types that it exports by name, so an inner component takes the types and functions in and gives
/// them out again: `$o-` names are those outside, `$i-` taken in, `$e-` given out.
fn component(role: &str, core: &str, records: &[(&str, &str)], functions: &[(&str, &str)]) -> Vec<u8> {
    let types: Vec<(&str, &str)> = TYPES.iter().chain(records).copied().collect();
    let all = |part: &dyn Fn(&str, &str) -> String, list: &[(&str, &str)]| {
        list.iter().map(|(name, text)| part(name, text)).collect::<Vec<_>>().join("\n")
    };
    let short = |name: &str| name.rsplit('.').next().unwrap_or(name).to_string();
    let outer_types = all(&|name, text| format!("(type $o-{name} {})", text.replace('%', "$o-")), &types);
    let lifted = all(
        &|name, text| {
            let (short, text) = (short(name), text.replace('%', "$o-"));
            format!(
                r#"(func ${short} {text}
                    (canon lift (core func $main "{short}") (memory (core memory $main "memory")) (realloc (core func $main "realloc"))))"#
            )
        },
        functions,
    );
    let types_in = all(
        &|name, text| {
            format!(
                "(type $r-{name} {})\n(import \"t-{name}\" (type $i-{name} (eq $r-{name})))",
                text.replace('%', "$i-")
            )
        },
        &types,
    );
    let functions_in = all(
        &|name, text| {
            let (short, text) = (short(name), text.replace('%', "$i-"));
            format!(r#"(import "f-{short}" (func ${short} {text}))"#)
        },
        functions,
    );
    let types_out = all(
        &|name, text| {
            format!("(type $x-{name} {})\n(export $e-{name} \"{name}\" (type $x-{name}))", text.replace('%', "$e-"))
        },
        &types,
    );
    let functions_out = all(
        &|name, text| format!(r#"(export "{name}" (func ${}) (func {}))"#, short(name), text.replace('%', "$e-")),
        functions,
    );
    let given_types = all(&|name, _| format!(r#"(with "t-{name}" (type $o-{name}))"#), &types);
    let given_functions = all(&|name, _| format!(r#"(with "f-{0}" (func ${0}))"#, short(name)), functions);
    let text = format!(
        r#"(component
          {outer_types}
          (type $o-session (resource (rep i32)))
          (core func $new (canon resource.new $o-session))
          (core module $module {core})
          (core instance $main (instantiate $module (with "host" (instance (export "new" (func $new))))))
          {lifted}
          (component $named
            {types_in}
            (import "t-session" (type $i-session (sub resource)))
            {functions_in}
            {types_out}
            (export $e-session "session" (type $i-session))
            {functions_out})
          (instance $out (instantiate $named (with "t-session" (type $o-session)) {given_types} {given_functions}))
          (export "tombolo:policy/{role}@0.1.0" (instance $out)))"#
    );
    wat::parse_str(&text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}
