//! Forms of the generated code, and the processors that programs are generated for.
//!
//! A backend region runs as thread-pool tasks, with GNU C vectors and a host-provided workspace. A program is
//! self-contained: one thread, an arena that is planned in advance, constants that are laid out at code generation, and
//! plain C99 unless the machine has [`vectors`](Machine::vectors). A device runs one launch of work-items per phase.

use crate::nest::stmt::{Grid, visit};
use crate::nest::{Expr, Stmt, Ty};
use byoc_plugin_api::DType;

/// Form of the generated code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Tasks that run in parallel on the host's threads.
    Tasks,
    /// Functions of a self-contained program for the given machine.
    Program(Machine, Concatenation),
    /// Kernels of a device.
    Device(Device),
}

impl Form {
    /// Returns the number of tasks in this form: `tasks` for a region, 1 for any other form.
    pub fn tasks(self, tasks: i64) -> i64 {
        if self == Form::Tasks { tasks } else { 1 }
    }
}

/// Device that kernels are tuned for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device {
    /// Native float32 vector width in elements, from 1 to 16.
    pub width: i64,
    /// True if local memory is faster than global memory.
    pub local_memory: bool,
}

/// Maximum number of work-items per work-group for independent points.
const GROUP: i64 = 64;

/// Maximum number of rows per work-group.
const ROWS: i64 = 4;

/// Returns the smallest power of two >= `n`, capped at `limit`.
fn power_of_two(n: i64, limit: i64) -> i64 {
    (n.max(1) as u64).next_power_of_two().min(limit as u64) as i64
}

impl Device {
    /// Returns the launch with `columns` work-items along the first dimension and `rows` along the second.
    pub fn grid(self, columns: i64, rows: i64) -> Grid {
        let x = power_of_two(columns, GROUP);
        let y = power_of_two(rows, GROUP / x);
        Grid { local: [x as usize, y as usize, 1], items: [columns, rows, 1] }
    }

    /// Returns the launch with one work-item per row.
    pub fn row_grid(self, rows: i64) -> Grid {
        Grid { local: [ROWS.min(rows) as usize, 1, 1], items: [rows, 1, 1] }
    }

    /// Returns the number of points of the loop over `var`, of `size` points, that a vector computes: 1 if an element is
    /// not float32, the elements are not adjacent, or something else than an address depends on the index.
    pub fn lanes(self, stmts: &[Stmt], var: &str, size: i64) -> i64 {
        let mut is_vector = true;
        visit(stmts, &mut |stmt| {
            let is_float = |ty: &Ty| matches!(ty, Ty::Of(DType::F32));
            match stmt {
                Stmt::Let { ty: Ty::Index, value, .. } => is_vector &= !value.reads(var),
                Stmt::Let { ty, value, .. } | Stmt::Var { ty, value, .. } => {
                    is_vector &= is_float(ty) && is_lanewise(value, var);
                }
                Stmt::Store { dtype, index, value, .. } => {
                    let step = index.coefficient(var);
                    is_vector &= *dtype == DType::F32 && matches!(step, Some(0 | 1)) && is_lanewise(value, var);
                }
                Stmt::Reduce(reduce) => {
                    let bounds = reduce.loops.iter().flat_map(|level| [&level.from, &level.to]);
                    is_vector &= is_lanewise(&reduce.value, var) && !bounds.into_iter().any(|bound| bound.reads(var));
                }
                _ => {}
            }
        });
        let max_width = self.width.clamp(4, 16);
        let widths = [16, 8, 4, 2].into_iter().filter(|_| is_vector);
        widths.into_iter().find(|&width| width <= max_width && width <= size).unwrap_or(1)
    }
}

/// Returns true if a value can be computed for several values of the index `var` at once.
fn is_lanewise(value: &Expr, var: &str) -> bool {
    match value {
        Expr::Load(_, dtype, index) => *dtype == DType::F32 && matches!(index.coefficient(var), Some(0 | 1)),
        Expr::Name(name) => name != var,
        // A comparison of vectors gives masks, which only a choice reads.
        Expr::Binary(infix, _) if infix.sign().1 <= 8 => false,
        Expr::Select(operands) => {
            let [condition, chosen @ ..] = &**operands;
            is_lane_condition(condition, var) && chosen.iter().all(|operand| is_lanewise(operand, var))
        }
        // A reduction of a row, and a comparison of indices, have one value for all lanes.
        Expr::Call(..) | Expr::Cast(..) => !value.reads(var),
        Expr::Convert { from, to, .. } if (*from, *to) != (DType::F32, DType::F32) => false,
        _ => value.operands().iter().all(|operand| is_lanewise(operand, var)),
    }
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

/// Returns true if a condition can be tested for several values of the index `var` at once.
fn is_lane_condition(condition: &Expr, var: &str) -> bool {
    match condition {
        Expr::Binary(infix, operands) if infix.sign().1 <= 8 => {
            operands.iter().all(|operand| is_lane_condition(operand, var))
        }
        operand => is_lanewise(operand, var),
    }
}
