//! Text that depends on the form of the generated code.

use crate::form::{Concatenation, Form, Machine};
use crate::lowering::Lowering;

impl Lowering<'_, '_> {
    /// Returns the target machine of a program; `None` for a region.
    pub fn machine(&self) -> Option<Machine> {
        match self.form {
            Form::Tasks => None,
            Form::Program(machine, _) => Some(machine),
        }
    }

    /// Returns the placement of concatenation operands.
    pub fn concatenations(&self) -> Concatenation {
        match self.form {
            Form::Tasks => Concatenation::First,
            Form::Program(_, concatenation) => concatenation,
        }
    }

    /// Returns the number of tasks in this form: `tasks` for a region, 1 for a program.
    pub fn tasks(&self, tasks: i64) -> i64 {
        if self.form == Form::Tasks { tasks } else { 1 }
    }

    /// Formats the head of a phase function, with its argument declarations.
    pub fn head(&self, name: &str) -> String {
        let symbol = self.symbol;
        match self.form {
            Form::Tasks => {
                format!("static void {name}(void *arg, int64_t task) {{\n    const {symbol}_args *args = arg;\n")
            }
            Form::Program(..) => format!("void {name}(const {symbol}_args *args) {{\n"),
        }
    }

    /// Formats the statement that marks the task number as used in a single-task phase; empty for other phases.
    pub fn unused_task(&self, tasks: i64) -> &'static str {
        if tasks == 1 && self.form == Form::Tasks { "    (void)task;\n" } else { "" }
    }

    /// Formats the call to a phase function.
    pub fn call(&self, name: &str, tasks: i64) -> String {
        match self.form {
            Form::Tasks => format!("    byoc_run(pool, {tasks}, {name}, &args);\n"),
            Form::Program(..) => format!("    {name}(&args);\n"),
        }
    }
}
