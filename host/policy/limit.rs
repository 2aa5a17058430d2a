//! How much a policy may cost the host.

/// Bounds on loading and running policies. The defaults let the bundled policies and anything of their kind through with a wide margin.
#[derive(Debug, Clone, PartialEq)]
pub struct Limits {
    /// Bytes of a component.
    pub component_bytes_max: usize,
    /// Bytes of one function's body. Compilers take time and memory that grow faster than a function does.
    pub function_bytes_max: u32,
    /// Locals of one function, parameters left out.
    pub function_locals_max: u32,
    /// Locals times branches of one function: what a register allocator has to weigh.
    pub function_work_max: u64,
    /// Core instances, tables and memories of one component, each: a toolchain makes a handful, an interpreter with its libraries dozens.
    pub parts_max: usize,
    /// Bytes of address space that the compiling child process may take.
    pub compile_bytes_max: u64,
    /// Seconds that the compiling child process may take.
    pub compile_seconds_max: u64,
    /// Bytes of memory of one instance.
    pub instance_bytes_max: usize,
    /// Fuel of a call, whatever its arguments. A unit is about one instruction.
    pub call_fuel: u64,
    /// Fuel of a call for each value that goes in (for each byte of what an observing pass remembers).
    pub value_fuel: u64,
    /// Seconds on the clock that one call may take. The backstop: fuel runs out first, unless the machine is overloaded.
    pub call_seconds_max: u64,
    /// Whether codecs and merge rules must use SIMD: without it they are several times slower.
    pub simd_required: bool,
}

impl Limits {
    /// For paces in languages that bring their interpreter along: components of up to 32 MiB, functions of up to 1 MiB (CPython has one of 417 KiB), and two
    /// minutes for compiling them. The memory for that and all bounds on running are those of the defaults.
    pub fn large() -> Limits {
        Limits {
            component_bytes_max: 32 << 20,
            function_bytes_max: 1 << 20,
            parts_max: 128,
            compile_seconds_max: 120,
            ..Limits::default()
        }
    }
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            component_bytes_max: 1 << 20,
            function_bytes_max: 64 << 10,
            function_locals_max: 2_000,
            function_work_max: 1 << 20,
            parts_max: 32,
            compile_bytes_max: 2 << 30,
            compile_seconds_max: 30,
            instance_bytes_max: 64 << 20,
            call_fuel: 100_000_000,
            value_fuel: 1_000,
            call_seconds_max: 10,
            simd_required: true,
        }
    }
}
