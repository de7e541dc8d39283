//! Forms of the generated code, and the text that depends on the form.
//!
//! A region of a backend runs as tasks of a thread pool, with vectors of GNU C and a workspace that the host provides. A
//! program runs alone: plain C99, one thread, an arena that is planned beforehand, constants that are laid out when the
//! code is generated.

/// Form of the generated code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Tasks that run in parallel on the host's threads.
    Tasks,
    /// Functions of a program of its own, for this machine.
    Program(Machine, Concatenation),
}

/// Memory of the operands of a concatenation that are computed by the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Concatenation {
    /// In the result of the first concatenation that reads the operand.
    First,
    /// In the result of the last concatenation that reads the operand.
    Last,
    /// Apart; the concatenation copies.
    Copied,
}

/// Processor that a program is generated for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machine {
    /// Number of floats in a vector: the granularity of the columns of a tile.
    pub lanes: i64,
    /// Number of vector registers.
    pub registers: i64,
    /// Uses the vectors of GNU C and `restrict` if true, otherwise plain C99.
    pub vectors: bool,
    /// Flags of the C compiler.
    pub flags: &'static str,
}

impl Machine {
    /// Any processor, in plain C99.
    pub const GENERIC: Machine = Machine { lanes: 4, registers: 16, vectors: false, flags: "-O2" };

    /// Machines by the name of a target.
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
