//! One bit pattern for every NaN, at the places where a policy could see it.
//!
//! WebAssembly leaves sign and payload of a computed NaN open, and processors differ there. A compiler that makes every result canonical spends more on that than on
//! the arithmetic: a comparison and a blend after each operation. But most results go straight into the next operation, which asks only whether
//! its operand is a NaN, never which. So a component is rewritten before it is compiled: a result is made canonical where something else may look at it, and
//! left alone where all its uses are arithmetic, float comparisons or conversions to integers that read it as the type it was made as. Whatever a policy can see is the same bits as
//! if every result had been made canonical; the tests hold random code to that.
//!
//! What counts as a use is followed through the operand stack and the locals of straight-line code. At every branch, call and block boundary all results
//! on the stack count as seen, and those in locals if anything, anywhere in the function, looks at what such a local was left with; so a sum that a loop
//! carries from turn to turn is made canonical after the loop, where it is stored. What is not known here counts as looking.
//!
//! Only function bodies change: instructions are put in, and up to three locals a function. Bytes are taken to be valid (`inspect` has validated them).

use std::collections::{BTreeMap, BTreeSet};

use wasmparser::{
    BinaryReader, BlockType, CodeSectionReader, ContType, FrameKind, FuncType, FunctionBody, FunctionSectionReader,
    ModuleArity, Operator, RefType, SubType, TypeSectionReader,
};

/// Names this rewriting in the cache of compiled code: to be changed with it.
pub(super) const REWRITING: &str = "nan 2";

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
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Shape {
    F32,
    F64,
    F32x4,
    F64x2,
}

impl Shape {
    const ALL: [Shape; 4] = [Shape::F32, Shape::F64, Shape::F32x4, Shape::F64x2];

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

/// A value whose bits may not be canonical.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Value {
    /// A result of this straight-line code: an index into `results`.
    Result(usize),
    /// What a local was left with before this straight-line code.
    Left(u32),
}

/// What float arithmetic makes, and where it is while one function's instructions are read.
#[derive(Default)]
struct Flow {
    /// Where the instruction ends that made it, what as, and whether anything may look at its bits.
    results: Vec<(usize, Shape, bool)>,
    /// The upper end of the operand stack. What lies below is canonical, or seen.
    stack: Vec<Option<Value>>,
    /// What locals hold in this straight-line code; others, what they were left with.
    locals: BTreeMap<u32, Option<Value>>,
    /// All that a local is ever left with.
    left: BTreeMap<u32, BTreeSet<Value>>,
    /// Locals of which something looks at what they were left with, if it was made as this shape.
    looked_at: BTreeSet<(u32, Shape)>,
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
        flow.look_back();
        Ok(flow.results.into_iter().filter(|(.., seen)| *seen).map(|(end, shape, _)| (end, shape)).collect())
    }

    fn follow(&mut self, operator: &Operator<'_>, end: usize) {
        match operator {
            Operator::LocalGet { local_index } => {
                let value = self.locals.get(local_index).copied().unwrap_or(Some(Value::Left(*local_index)));
                self.stack.push(value);
            }
            Operator::LocalSet { local_index } => {
                let value = self.pop();
                self.locals.insert(*local_index, value);
            }
            Operator::LocalTee { local_index } => {
                let value = self.pop();
                self.locals.insert(*local_index, value);
                self.stack.push(value);
            }
            Operator::Drop => {
                self.pop();
            }
            _ => match (float(operator), arity(operator)) {
                (Some((takes, makes)), Some((operands, _))) => {
                    for _ in 0..operands {
                        let value = self.pop();
                        self.see(value, Some(takes));
                    }
                    self.stack.push(makes.map(|shape| {
                        self.results.push((end, shape, false));
                        Value::Result(self.results.len() - 1)
                    }));
                }
                (None, Some((operands, answers))) => {
                    for _ in 0..operands {
                        let value = self.pop();
                        self.see(value, None);
                    }
                    self.stack.extend((0..answers).map(|_| None));
                }
                (_, None) => self.boundary(),
            },
        }
    }

    fn pop(&mut self) -> Option<Value> {
        self.stack.pop().flatten()
    }

    /// Something looks at the bits of `value`, if it was not made as `but`.
    fn see(&mut self, value: Option<Value>, but: Option<Shape>) {
        match value {
            Some(Value::Result(result)) => self.results[result].2 |= but != Some(self.results[result].1),
            Some(Value::Left(local)) => {
                self.looked_at
                    .extend(Shape::ALL.iter().filter(|shape| but != Some(**shape)).map(|shape| (local, *shape)));
            }
            None => {}
        }
    }

    /// Anything may look at what is on the stack from here on, and locals are left with what they hold.
    fn boundary(&mut self) {
        for value in std::mem::take(&mut self.stack) {
            self.see(value, None);
        }
        for (local, value) in std::mem::take(&mut self.locals) {
            self.left.entry(local).or_default().extend(value);
        }
    }

    /// What is looked at in a local is looked at wherever it came from.
    fn look_back(&mut self) {
        let mut queue: Vec<(u32, Shape)> = self.looked_at.iter().copied().collect();
        while let Some((local, shape)) = queue.pop() {
            for value in self.left.get(&local).into_iter().flatten() {
                match *value {
                    Value::Result(result) => self.results[result].2 |= self.results[result].1 == shape,
                    Value::Left(from) if self.looked_at.insert((from, shape)) => queue.push((from, shape)),
                    Value::Left(_) => {}
                }
            }
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
mod tests;
