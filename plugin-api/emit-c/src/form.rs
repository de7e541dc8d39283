//! Forms of the generated code, and the text that depends on the form.
//!
//! A region of a backend runs as tasks of a thread pool, with vectors of GNU C and a workspace that the host provides. A
//! program runs alone: plain C99, one thread, an arena that is planned beforehand, constants that are laid out when the
//! code is generated.

use crate::lowering::Lowering;

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
}

impl Machine {
    /// Any processor, in plain C99.
    pub const GENERIC: Machine = Machine { lanes: 4, registers: 16, vectors: false };

    /// Machines by the name of a target.
    pub const TARGETS: &[(&str, Machine)] = &[("generic", Machine::GENERIC)];

    /// Returns the machine of a target; `None` for an unknown name.
    pub fn of_target(name: &str) -> Option<Machine> {
        Machine::TARGETS.iter().find(|entry| entry.0 == name).map(|entry| entry.1)
    }
}

impl Lowering<'_, '_> {
    /// Returns the machine of a program; `None` for a region.
    pub fn machine(&self) -> Option<Machine> {
        match self.form {
            Form::Tasks => None,
            Form::Program(machine, _) => Some(machine),
        }
    }

    /// Returns the memory of the operands of concatenations.
    pub fn concatenations(&self) -> Concatenation {
        match self.form {
            Form::Tasks => Concatenation::First,
            Form::Program(_, concatenation) => concatenation,
        }
    }

    /// Returns the number of tasks that a schedule with `tasks` tasks has in this form.
    pub fn tasks(&self, tasks: i64) -> i64 {
        if self.form == Form::Tasks { tasks } else { 1 }
    }

    /// Formats the head of the function of a phase, with the declaration of its arguments.
    pub fn head(&self, name: &str) -> String {
        let symbol = self.symbol;
        match self.form {
            Form::Tasks => {
                format!("static void {name}(void *arg, int64_t task) {{\n    const {symbol}_args *args = arg;\n")
            }
            Form::Program(..) => format!("void {name}(const {symbol}_args *args) {{\n"),
        }
    }

    /// Formats the statement that marks the number of the task as used, for a phase that is a single task.
    pub fn unused_task(&self, tasks: i64) -> &'static str {
        if tasks == 1 && self.form == Form::Tasks { "    (void)task;\n" } else { "" }
    }

    /// Formats the call of a phase.
    pub fn call(&self, name: &str, tasks: i64) -> String {
        match self.form {
            Form::Tasks => format!("    byoc_run(pool, {tasks}, {name}, &args);\n"),
            Form::Program(..) => format!("    {name}(&args);\n"),
        }
    }
}
