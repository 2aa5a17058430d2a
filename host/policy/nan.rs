//! One bit pattern for every NaN, at the places where a policy could see it.
//!
//! WebAssembly leaves sign and payload of a computed NaN open, and processors differ there. A compiler that makes every result canonical spends more on that than on
//! the arithmetic: a comparison and a blend after each operation. But most results go straight into the next operation, which asks only whether
//! its operand is a NaN, never which. So a component is rewritten before it is compiled: a result is made canonical where something else may look at it, and
//! left alone where all its uses are arithmetic, float comparisons or conversions to integers that read it as the type it was made as. Whatever a policy can see is the same bits as
//! if every result had been made canonical; the tests hold random code to that.
//!
//! What counts as a use is followed through the operand stack and the locals of straight-line code. At every branch, call and block boundary all results
//! that are still held anywhere count as seen. What is not known here counts as looking.
//!
//! Only function bodies change: instructions are put in, and up to three locals a function. Bytes are taken to be valid (`inspect` has validated them).

use std::collections::BTreeMap;

use wasmparser::{
    BinaryReader, BlockType, CodeSectionReader, ContType, FrameKind, FuncType, FunctionBody, FunctionSectionReader,
    ModuleArity, Operator, RefType, SubType, TypeSectionReader,
};

/// Names this rewriting in the cache of compiled code: to be changed with it.
pub(super) const REWRITING: &str = "nan 1";

type Result<T> = std::result::Result<T, wasmparser::BinaryReaderError>;

/// Bytes of magic number, version and layer.
const HEADER: usize = 8;
/// Sections of a component that hold a module or a component.
const CORE_MODULE: u8 = 1;
const COMPONENT: u8 = 4;
/// Sections of a module.
const TYPES: u8 = 1;
const FUNCTIONS: u8 = 3;
const CODE: u8 = 10;

/// The component (or module) `wasm` with its NaNs made canonical.
///
/// Errors: `wasm` is not valid.
pub(super) fn canonical(wasm: &[u8]) -> Result<Vec<u8>> {
    let mut reader = BinaryReader::new(wasm, 0);
    let header = reader.read_bytes(HEADER)?;
    // Version and layer, little-endian: a module has layer 0, a component 1.
    let is_component = header[6] == 1;
    let mut out = header.to_vec();
    let (mut parameters, mut functions) = (Vec::new(), Vec::new());
    while reader.bytes_remaining() > 0 {
        let section = reader.read_u8()?;
        let length = reader.read_var_u32()? as usize;
        let bytes = reader.read_bytes(length)?;
        let content = || BinaryReader::new(bytes, 0);
        let rewritten = match (is_component, section) {
            (true, CORE_MODULE | COMPONENT) => Some(canonical(bytes)?),
            (false, TYPES) => {
                for function in TypeSectionReader::new(content())?.into_iter_err_on_gc_types() {
                    parameters.push(function?.params().len() as u32);
                }
                None
            }
            (false, FUNCTIONS) => {
                for index in FunctionSectionReader::new(content())? {
                    functions.push(parameters.get(index? as usize).copied().unwrap_or_default());
                }
                None
            }
            (false, CODE) => Some(code(CodeSectionReader::new(content())?, &functions)?),
            _ => None,
        };
        out.push(section);
        sized(&mut out, rewritten.as_deref().unwrap_or(bytes));
    }
    Ok(out)
}

/// A code section; `parameters` counts those of each function.
fn code(bodies: CodeSectionReader<'_>, parameters: &[u32]) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    leb(&mut out, bodies.count());
    for (index, function) in bodies.into_iter().enumerate() {
        let parameters = parameters.get(index).copied().unwrap_or_default();
        sized(&mut out, &body(&function?, parameters)?);
    }
    Ok(out)
}

/// One function's locals and instructions.
fn body(function: &FunctionBody<'_>, parameters: u32) -> Result<Vec<u8>> {
    let seen = Flow::seen(function)?;
    let bytes = function.as_bytes();
    if seen.is_empty() {
        return Ok(bytes.to_vec());
    }
    let base = function.range().start;
    let mut groups = function.get_locals_reader()?;
    let (count, first) = (groups.get_count(), groups.original_position() - base);
    let mut locals = parameters;
    for _ in 0..count {
        locals += groups.read()?.0;
    }
    let mut at = groups.original_position() - base;

    let mut scratch = BTreeMap::new();
    for (_, shape) in &seen {
        let next = locals + scratch.len() as u32;
        scratch.entry(shape.local_type()).or_insert(next);
    }
    let mut types: Vec<(u32, u8)> = scratch.iter().map(|(kind, local)| (*local, *kind)).collect();
    types.sort_unstable();

    let mut out = Vec::with_capacity(bytes.len() + seen.len() * 40);
    leb(&mut out, count + types.len() as u32);
    out.extend(&bytes[first..at]);
    for (_, kind) in types {
        out.extend([1, kind]);
    }
    for (end, shape) in seen {
        out.extend(&bytes[at..end - base]);
        at = end - base;
        shape.make_canonical(&mut out, scratch[&shape.local_type()]);
    }
    out.extend(&bytes[at..]);
    Ok(out)
}

/// What a float result is made as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
    F32,
    F64,
    F32x4,
    F64x2,
}

impl Shape {
    /// The binary format's name of the type that holds it.
    fn local_type(self) -> u8 {
        match self {
            Shape::F32 => 0x7d,
            Shape::F64 => 0x7c,
            Shape::F32x4 | Shape::F64x2 => 0x7b,
        }
    }

    /// Instructions that replace a NaN on top of the stack, in every lane, by the canonical one: value, NaN, value equals itself, select.
    fn make_canonical(self, out: &mut Vec<u8>, scratch: u32) {
        const LOCAL_GET: u8 = 0x20;
        const LOCAL_TEE: u8 = 0x22;
        const SIMD: u8 = 0xfd;
        let (f32_nan, f64_nan) = (0x7fc0_0000_u32.to_le_bytes(), 0x7ff8_0000_0000_0000_u64.to_le_bytes());
        out.push(LOCAL_TEE);
        leb(out, scratch);
        match self {
            Shape::F32 => {
                out.push(0x43);
                out.extend(f32_nan);
            }
            Shape::F64 => {
                out.push(0x44);
                out.extend(f64_nan);
            }
            Shape::F32x4 => {
                out.extend([SIMD, 0x0c]);
                out.extend(f32_nan.repeat(4));
            }
            Shape::F64x2 => {
                out.extend([SIMD, 0x0c]);
                out.extend(f64_nan.repeat(2));
            }
        }
        for _ in 0..2 {
            out.push(LOCAL_GET);
            leb(out, scratch);
        }
        match self {
            // f32.eq or f64.eq, select.
            Shape::F32 => out.extend([0x5b, 0x1b]),
            Shape::F64 => out.extend([0x61, 0x1b]),
            // f32x4.eq or f64x2.eq, v128.bitselect.
            Shape::F32x4 => out.extend([SIMD, 0x41, SIMD, 0x52]),
            Shape::F64x2 => out.extend([SIMD, 0x47, SIMD, 0x52]),
        }
    }
}

/// Results of float arithmetic, and where they are while one function's instructions are read.
#[derive(Default)]
struct Flow {
    /// Where the instruction ends that made it, what as, and whether anything may look at its bits.
    results: Vec<(usize, Shape, bool)>,
    /// The upper end of the operand stack: an index into `results`, or none. What lies below holds no result that is not seen.
    stack: Vec<Option<usize>>,
    /// Locals that hold a result.
    locals: BTreeMap<u32, usize>,
}

impl Flow {
    /// The results that something may look at: where the instruction ends, and the shape.
    fn seen(function: &FunctionBody<'_>) -> Result<Vec<(usize, Shape)>> {
        let mut flow = Flow::default();
        let mut operators = function.get_operators_reader()?;
        while !operators.eof() {
            let operator = operators.read()?;
            flow.follow(&operator, operators.original_position());
        }
        flow.boundary();
        Ok(flow.results.into_iter().filter(|(.., seen)| *seen).map(|(end, shape, _)| (end, shape)).collect())
    }

    fn follow(&mut self, operator: &Operator<'_>, end: usize) {
        match operator {
            Operator::LocalGet { local_index } => self.stack.push(self.locals.get(local_index).copied()),
            Operator::LocalSet { local_index } => {
                let value = self.pop();
                self.hold(*local_index, value);
            }
            Operator::LocalTee { local_index } => {
                let value = self.pop();
                self.hold(*local_index, value);
                self.stack.push(value);
            }
            Operator::Drop => {
                self.pop();
            }
            _ => match (float(operator), arity(operator)) {
                (Some((takes, makes)), Some((operands, _))) => {
                    for _ in 0..operands {
                        let value = self.pop();
                        if value.is_some_and(|value| self.results[value].1 != takes) {
                            self.see(value);
                        }
                    }
                    self.stack.push(makes.map(|shape| {
                        self.results.push((end, shape, false));
                        self.results.len() - 1
                    }));
                }
                (None, Some((operands, answers))) => {
                    for _ in 0..operands {
                        let value = self.pop();
                        self.see(value);
                    }
                    self.stack.extend((0..answers).map(|_| None));
                }
                (_, None) => self.boundary(),
            },
        }
    }

    fn pop(&mut self) -> Option<usize> {
        self.stack.pop().flatten()
    }

    fn hold(&mut self, local: u32, value: Option<usize>) {
        match value {
            Some(value) => self.locals.insert(local, value),
            None => self.locals.remove(&local),
        };
    }

    fn see(&mut self, value: Option<usize>) {
        if let Some(value) = value {
            self.results[value].2 = true;
        }
    }

    /// Whatever is held may be looked at from here on.
    fn boundary(&mut self) {
        let held: Vec<usize> =
            self.stack.drain(..).flatten().chain(std::mem::take(&mut self.locals).into_values()).collect();
        for value in held {
            self.see(Some(value));
        }
    }
}

/// Values that an instruction takes and answers; none for what ends straight-line code, and for what is not known.
fn arity(operator: &Operator<'_>) -> Option<(u32, u32)> {
    use Operator as O;
    match operator {
        O::Unreachable
        | O::Block { .. }
        | O::Loop { .. }
        | O::If { .. }
        | O::Else
        | O::End
        | O::Br { .. }
        | O::BrIf { .. }
        | O::BrTable { .. }
        | O::Return
        | O::Call { .. }
        | O::CallIndirect { .. } => None,
        other => other.operator_arity(&NoModule),
    }
}

/// Instructions whose arity depends on the module's types are not asked for theirs.
struct NoModule;

impl ModuleArity for NoModule {
    fn sub_type_at(&self, _: u32) -> Option<&SubType> {
        None
    }
    fn tag_type_arity(&self, _: u32) -> Option<(u32, u32)> {
        None
    }
    fn type_index_of_function(&self, _: u32) -> Option<u32> {
        None
    }
    fn func_type_of_cont_type(&self, _: &ContType) -> Option<&FuncType> {
        None
    }
    fn sub_type_of_ref_type(&self, _: &RefType) -> Option<&SubType> {
        None
    }
    fn control_stack_height(&self) -> u32 {
        0
    }
    fn label_block(&self, _: u32) -> Option<(BlockType, FrameKind)> {
        None
    }
}

/// Instructions to which all NaNs are alike: the shape that they read, and the shape of their result where it is a float.
fn float(operator: &Operator<'_>) -> Option<(Shape, Option<Shape>)> {
    use Operator as O;
    use Shape::{F32, F32x4, F64, F64x2};
    Some(match operator {
        O::F32Add | O::F32Sub | O::F32Mul | O::F32Div | O::F32Min | O::F32Max | O::F32Sqrt => (F32, Some(F32)),
        O::F32Ceil | O::F32Floor | O::F32Trunc | O::F32Nearest => (F32, Some(F32)),
        O::F64Add | O::F64Sub | O::F64Mul | O::F64Div | O::F64Min | O::F64Max | O::F64Sqrt => (F64, Some(F64)),
        O::F64Ceil | O::F64Floor | O::F64Trunc | O::F64Nearest => (F64, Some(F64)),
        O::F32x4Add | O::F32x4Sub | O::F32x4Mul | O::F32x4Div | O::F32x4Min | O::F32x4Max => (F32x4, Some(F32x4)),
        O::F32x4Sqrt | O::F32x4Ceil | O::F32x4Floor | O::F32x4Trunc | O::F32x4Nearest => (F32x4, Some(F32x4)),
        O::F64x2Add | O::F64x2Sub | O::F64x2Mul | O::F64x2Div | O::F64x2Min | O::F64x2Max => (F64x2, Some(F64x2)),
        O::F64x2Sqrt | O::F64x2Ceil | O::F64x2Floor | O::F64x2Trunc | O::F64x2Nearest => (F64x2, Some(F64x2)),
        O::F32DemoteF64 => (F64, Some(F32)),
        O::F64PromoteF32 => (F32, Some(F64)),
        O::F32x4DemoteF64x2Zero => (F64x2, Some(F32x4)),
        O::F64x2PromoteLowF32x4 => (F32x4, Some(F64x2)),
        O::F32Eq | O::F32Ne | O::F32Lt | O::F32Gt | O::F32Le | O::F32Ge => (F32, None),
        O::F64Eq | O::F64Ne | O::F64Lt | O::F64Gt | O::F64Le | O::F64Ge => (F64, None),
        O::F32x4Eq | O::F32x4Ne | O::F32x4Lt | O::F32x4Gt | O::F32x4Le | O::F32x4Ge => (F32x4, None),
        O::F64x2Eq | O::F64x2Ne | O::F64x2Lt | O::F64x2Gt | O::F64x2Le | O::F64x2Ge => (F64x2, None),
        O::I32TruncF32S | O::I32TruncF32U | O::I64TruncF32S | O::I64TruncF32U => (F32, None),
        O::I32TruncF64S | O::I32TruncF64U | O::I64TruncF64S | O::I64TruncF64U => (F64, None),
        O::I32TruncSatF32S | O::I32TruncSatF32U | O::I64TruncSatF32S | O::I64TruncSatF32U => (F32, None),
        O::I32TruncSatF64S | O::I32TruncSatF64U | O::I64TruncSatF64S | O::I64TruncSatF64U => (F64, None),
        O::I32x4TruncSatF32x4S | O::I32x4TruncSatF32x4U => (F32x4, None),
        O::I32x4TruncSatF64x2SZero | O::I32x4TruncSatF64x2UZero => (F64x2, None),
        _ => return None,
    })
}

/// Bytes with their length before them.
fn sized(out: &mut Vec<u8>, bytes: &[u8]) {
    leb(out, bytes.len() as u32);
    out.extend(bytes);
}

/// A number in the binary format.
fn leb(out: &mut Vec<u8>, mut value: u32) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

#[cfg(test)]
mod tests {
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
        assert_eq!(seen(&wasm), 2, "the local is still there at the end");
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
                    1 => format!(
                        "({} {a} {b})",
                        self.of(&["v128.xor", "i32x4.add", "f32x4.pmin", "f64x2.pmax", "f32x4.lt"])
                    ),
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
        for seed in 0..400 {
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
}
