//! Reads a component before any compiler sees it: is it a policy, and can it be compiled at a bounded cost?
//!
//! Compilers are the unguarded door: one function of 2.9 MB took half a minute and gigabytes, and 130 kB with thousands of locals alive over
//! tens of thousands of branches still most of a gigabyte. So bodies are bounded one by one. The same pass validates the bytes under exactly the
//! features that policies may use, and finds roles, imports and whether there is SIMD.

use std::fmt;

use serde::{Deserialize, Serialize};
use wasmparser::{Encoding, FunctionBody, Operator, Parser, Payload, ValidPayload, Validator, WasmFeatures};

use super::instance::shown;
use super::{Error, Hash, Limits, Result};

/// What a policy does for a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// Encodes and decodes what travels.
    Codec,
    /// Merges contributions into the global model.
    Merge,
    /// Decides when a round is closed.
    Pace,
}

impl Role {
    /// Every role.
    pub const ALL: [Role; 3] = [Role::Codec, Role::Merge, Role::Pace];

    /// The interface that fills this role.
    pub fn interface(self) -> &'static str {
        match self {
            Role::Codec => "tombolo:policy/codec@0.1.0",
            Role::Merge => "tombolo:policy/merge@0.1.0",
            Role::Pace => "tombolo:policy/pace@0.1.0",
        }
    }

    /// Roles as words.
    pub(super) fn list(roles: &[Role]) -> String {
        roles.iter().map(Role::to_string).collect::<Vec<_>>().join(", ")
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Role::Codec => "codec",
            Role::Merge => "merge",
            Role::Pace => "pace",
        })
    }
}

/// The one import that a policy may have: types that its exports use.
const TYPES: &str = "tombolo:policy/types@0.1.0";

/// What a policy may be written in: WebAssembly 2.0 in components. Not: threads, relaxed SIMD, 64-bit memories, several
/// memories, garbage collection, exceptions, tail calls.
fn features() -> WasmFeatures {
    WasmFeatures::WASM2 | WasmFeatures::EXTENDED_CONST | WasmFeatures::COMPONENT_MODEL
}

/// Reads `wasm` and answers the roles that it exports.
///
/// Errors: [`Error::NotAPolicy`] and [`Error::TooCostly`].
pub(super) fn inspect(policy: Hash, wasm: &[u8], limits: &Limits) -> Result<Vec<Role>> {
    if wasm.len() > limits.component_bytes_max {
        return Err(too_costly(policy, "bytes of the component", limits.component_bytes_max, wasm.len()));
    }
    if !wasm.starts_with(b"\0asm") {
        let start: Vec<String> = wasm.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
        let found =
            if wasm.is_empty() { "no bytes at all".into() } else { format!("bytes that start {}", start.join(" ")) };
        return Err(not_a_policy("the file", found, "a policy is a WebAssembly component, which starts 00 61 73 6d"));
    }
    let mut reader = Reader { policy, wasm, limits, depth: 0, roles: Vec::new(), exports: Vec::new(), simd: false };
    reader.read()?;
    reader.finish()
}

fn not_a_policy(what: impl Into<String>, found: impl Into<String>, hint: impl Into<String>) -> Error {
    // What was found may be in the component's own words.
    Error::NotAPolicy { what: what.into(), found: shown(&found.into()), hint: hint.into() }
}

fn too_costly(policy: Hash, what: impl Into<String>, limit: impl ToString, found: impl ToString) -> Error {
    Error::TooCostly { policy, what: what.into(), limit: limit.to_string(), found: found.to_string() }
}

/// Components and modules that may lie within each other: whoever rewrites and compiles them may recurse.
const DEPTH_MAX: u32 = 64;

struct Reader<'a> {
    policy: Hash,
    wasm: &'a [u8],
    limits: &'a Limits,
    /// Modules and components around the current payload; 1 is the component itself.
    depth: u32,
    roles: Vec<Role>,
    exports: Vec<String>,
    simd: bool,
}

impl Reader<'_> {
    fn read(&mut self) -> Result<()> {
        let broken = |error: wasmparser::BinaryReaderError| {
            let hint = if error.message().contains("unexpected end") || error.message().contains("end-of-file") {
                "is the file cut short?"
            } else {
                "policies are components of WebAssembly 2.0: no threads, relaxed SIMD, 64-bit memories, garbage collection or exceptions"
            };
            not_a_policy("the component's bytes", error.to_string(), hint)
        };
        let mut validator = Validator::new_with_features(features());
        let mut allocations = wasmparser::FuncValidatorAllocations::default();
        for payload in Parser::new(0).parse_all(self.wasm) {
            let payload = payload.map_err(broken)?;
            self.payload(&payload, broken)?;
            if let ValidPayload::Func(function, body) = validator.payload(&payload).map_err(broken)? {
                self.body(&body, broken)?;
                let mut function = function.into_validator(allocations);
                function.validate(&body).map_err(broken)?;
                allocations = function.into_allocations();
            }
        }
        Ok(())
    }

    fn payload(
        &mut self,
        payload: &Payload<'_>,
        broken: impl Fn(wasmparser::BinaryReaderError) -> Error,
    ) -> Result<()> {
        match payload {
            Payload::Version { encoding, .. } => {
                self.depth += 1;
                if self.depth > DEPTH_MAX {
                    let found = format!("more than {DEPTH_MAX} of them");
                    return Err(not_a_policy("components within components", found, "a linker makes two or three"));
                }
                if self.depth == 1 && *encoding == Encoding::Module {
                    return Err(not_a_policy(
                        "the file",
                        "a core WebAssembly module",
                        "make it a component: link with wasm-component-ld, or run `wasm-tools component new`",
                    ));
                }
            }
            Payload::End(_) => self.depth = self.depth.saturating_sub(1),
            Payload::ComponentImportSection(imports) if self.depth == 1 => {
                for import in imports.clone() {
                    let name = import.map_err(&broken)?.name.name;
                    if name != TYPES {
                        let hint = if name.starts_with("wasi:") {
                            "a policy has no system interface: build it for wasm32-unknown-unknown"
                        } else {
                            "a policy knows only what it is given as arguments"
                        };
                        return Err(not_a_policy("its imports, of which only types are allowed", name, hint));
                    }
                }
            }
            Payload::ComponentExportSection(exports) if self.depth == 1 => {
                for export in exports.clone() {
                    let name = export.map_err(&broken)?.name.name;
                    self.roles.extend(Role::ALL.into_iter().filter(|role| role.interface() == name));
                    self.exports.push(name.to_string());
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn body(&mut self, body: &FunctionBody<'_>, broken: impl Fn(wasmparser::BinaryReaderError) -> Error) -> Result<()> {
        let range = body.range();
        let named = |what: &str| format!("{what} of the function at byte {}", range.start);
        let bytes = range.len() as u64;
        if bytes > u64::from(self.limits.function_bytes_max) {
            return Err(too_costly(self.policy, named("bytes"), self.limits.function_bytes_max, bytes));
        }
        let mut locals = 0_u64;
        for group in body.get_locals_reader().map_err(&broken)? {
            locals += u64::from(group.map_err(&broken)?.0);
        }
        if locals > u64::from(self.limits.function_locals_max) {
            return Err(too_costly(self.policy, named("locals"), self.limits.function_locals_max, locals));
        }
        let mut branches = 0_u64;
        let mut operators = body.get_operators_reader().map_err(&broken)?;
        while !operators.eof() {
            let (operator, position) = operators.read_with_offset().map_err(&broken)?;
            // All of the vector instructions, and nothing else, start with this byte.
            self.simd |= self.wasm.get(position) == Some(&0xfd);
            branches += match operator {
                Operator::Block { .. }
                | Operator::Loop { .. }
                | Operator::If { .. }
                | Operator::Br { .. }
                | Operator::BrIf { .. } => 1,
                Operator::BrTable { targets } => u64::from(targets.len()),
                _ => 0,
            };
        }
        let work = locals.saturating_mul(branches);
        if work > self.limits.function_work_max {
            return Err(too_costly(self.policy, named("locals times branches"), self.limits.function_work_max, work));
        }
        Ok(())
    }

    fn finish(mut self) -> Result<Vec<Role>> {
        self.roles.sort();
        self.roles.dedup();
        if self.roles.is_empty() {
            let expected: Vec<&str> = Role::ALL.into_iter().map(Role::interface).collect();
            let found = if self.exports.is_empty() {
                "no exports".into()
            } else {
                format!("exports {}", self.exports.join(", "))
            };
            return Err(not_a_policy("its world", found, format!("a policy exports {}", expected.join(" or "))));
        }
        if self.limits.simd_required && !self.simd && self.roles != [Role::Pace] {
            return Err(not_a_policy(
                "its code",
                "no SIMD instruction",
                "scalar policies are several times slower: build with -C target-feature=+simd128 (in C, -msimd128)",
            ));
        }
        Ok(self.roles)
    }
}
