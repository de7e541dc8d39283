//! Forms of the generated code, and the processors that programs are generated for.
//!
//! A backend region runs as thread-pool tasks, with GNU C vectors and a host-provided workspace. A program is
//! self-contained: one thread, an arena that is planned in advance, constants that are laid out at code generation, and
//! plain C99 unless the machine has [`vectors`](Machine::vectors).

/// Form of the generated code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Tasks that run in parallel on the host's threads.
    Tasks,
    /// Functions of a self-contained program for the given machine.
    Program(Machine, Concatenation),
}

/// Placement of concatenation operands that the program computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Concatenation {
    /// Computes the operand in the result of the first concatenation that reads it.
    First,
    /// Computes the operand in the result of the last concatenation that reads it.
    Last,
    /// Computes the operand in a separate buffer, from which the concatenation copies.
    Copied,
}

/// Processor that a program is generated for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machine {
    /// Number of floats in a vector, the granularity of tile columns.
    pub lanes: i64,
    /// Number of vector registers.
    pub registers: i64,
    /// True for GNU C vectors and `restrict`, false for plain C99.
    pub vectors: bool,
    /// C compiler flags.
    pub flags: &'static str,
}

impl Machine {
    /// Generic processor, for which the code is plain C99.
    pub const GENERIC: Machine = Machine { lanes: 4, registers: 16, vectors: false, flags: "-O2" };

    /// Machines by target name.
    pub const TARGETS: &[(&str, Machine)] = &[
        ("generic", Machine::GENERIC),
        ("cortex-m55", Machine::GENERIC),
        (
            "x86-64-v4",
            Machine {
                lanes: 16,
                registers: 32,
                vectors: true,
                flags: "-O3 -march=x86-64-v4 -mprefer-vector-width=512",
            },
        ),
        ("x86-64-v3", Machine { lanes: 8, registers: 16, vectors: true, flags: "-O3 -march=x86-64-v3" }),
        ("aarch64", Machine { lanes: 4, registers: 32, vectors: true, flags: "-O3" }),
    ];

    /// Returns the machine of a target; `None` for an unknown name.
    pub fn of_target(name: &str) -> Option<Machine> {
        Machine::TARGETS.iter().find(|entry| entry.0 == name).map(|entry| entry.1)
    }
}
