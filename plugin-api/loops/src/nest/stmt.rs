//! Statements of a loop nest.

use super::{Expr, Memory, Place};
use byoc_plugin_api::DType;
use std::collections::BTreeMap;

/// Type of a variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ty {
    /// Index.
    Index,
    /// Element of a tensor, in the type in which it is computed.
    Of(DType),
    /// Vector of float32 elements.
    Vector(i64),
}

/// Statement.
#[derive(Clone, Debug, PartialEq)]
pub enum Stmt {
    /// Declaration of a variable that keeps its value. The note names the operator that it computes.
    Let {
        /// Name of the variable.
        name: String,
        /// Type of the variable.
        ty: Ty,
        /// Value.
        value: Expr,
        /// Operator, for a comment; empty for none.
        note: String,
    },
    /// Declaration of a variable that [`Stmt::Set`] changes.
    Var {
        /// Name of the variable.
        name: String,
        /// Type of the variable.
        ty: Ty,
        /// First value.
        value: Expr,
    },
    /// New value of a variable.
    Set {
        /// Name of the variable.
        name: String,
        /// New value.
        value: Expr,
    },
    /// Declaration of a local array.
    Array {
        /// Name of the array.
        name: String,
        /// Type of the elements.
        ty: Ty,
        /// Number of elements.
        len: Expr,
        /// True for memory that a work-group shares.
        shared: bool,
        /// First values; empty for none.
        values: Vec<Expr>,
    },
    /// Declaration of a pointer into a tensor or an array.
    Pointer {
        /// Name of the pointer.
        name: String,
        /// Type of the elements.
        dtype: DType,
        /// Address.
        value: Expr,
    },
    /// Store of an element.
    Store {
        /// Memory that is written.
        memory: Memory,
        /// Type of the element.
        dtype: DType,
        /// Index of the element.
        index: Expr,
        /// Value.
        value: Expr,
    },
    /// Loop.
    For(Box<Loop>),
    /// Statements for consecutive values of a variable: lanes of a vector where the dialect has vectors.
    Lanes {
        /// Variable.
        var: String,
        /// First value.
        first: Expr,
        /// Number of values.
        width: i64,
        /// Exclusive end of the values that exist; `None` if all do.
        end: Option<i64>,
        /// Statements.
        body: Vec<Stmt>,
    },
    /// Branch.
    If {
        /// Condition.
        condition: Expr,
        /// Statements where it holds.
        then: Vec<Stmt>,
        /// Statements where it does not.
        otherwise: Vec<Stmt>,
    },
    /// Call of a function of the prelude or of the region.
    Call(String, Vec<Expr>),
    /// Lines of C that call an external function, and the tensors that they name, each with the type of its elements and
    /// whether it is written.
    Foreign(Vec<String>, Vec<(Place, DType, bool)>),
    /// Reduction: a variable that starts at a value and takes another one at each point of its loops.
    Reduce(Box<Reduce>),
    /// End of the work-item where the condition holds.
    Leave(Expr),
    /// End of the innermost loop where the condition holds.
    Break(Expr),
    /// Point that every work-item of a work-group reaches before one of them goes on.
    Barrier,
}

/// Order in which a loop may visit its points.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// One after the other.
    Serial,
    /// In any order, several at once: no iteration reads what another one writes.
    Simd,
    /// One per work-item along a dimension.
    Items(u8),
}

/// Loop over `from..to`.
#[derive(Clone, Debug, PartialEq)]
pub struct Loop {
    /// Index variable.
    pub var: String,
    /// First value.
    pub from: Expr,
    /// Exclusive end.
    pub to: Expr,
    /// Distance between values.
    pub step: Expr,
    /// Order of the points.
    pub mode: Mode,
    /// Statements.
    pub body: Vec<Stmt>,
}

/// Reduction of the values at the points of loops to one variable.
#[derive(Clone, Debug, PartialEq)]
pub struct Reduce {
    /// Variable that holds the result.
    pub name: String,
    /// Type of the variable.
    pub dtype: DType,
    /// First value.
    pub start: Expr,
    /// Loops, outermost first, with empty bodies.
    pub loops: Vec<Loop>,
    /// New value of the variable, an expression that reads it.
    pub value: Expr,
}

impl Loop {
    /// Creates a loop over `0..to`.
    pub fn new(var: &str, to: impl Into<Expr>, body: Vec<Stmt>) -> Loop {
        Loop {
            var: var.to_owned(),
            from: Expr::Index(0),
            to: to.into(),
            step: Expr::Index(1),
            mode: Mode::Serial,
            body,
        }
    }

    /// Returns the loop with another start.
    pub fn starting(self, from: impl Into<Expr>) -> Loop {
        Loop { from: from.into(), ..self }
    }

    /// Returns the loop with another step.
    pub fn by(self, step: impl Into<Expr>) -> Loop {
        Loop { step: step.into(), ..self }
    }

    /// Returns the loop with another mode.
    pub fn mode(self, mode: Mode) -> Loop {
        Loop { mode, ..self }
    }
}

impl From<Loop> for Stmt {
    fn from(value: Loop) -> Stmt {
        Stmt::For(Box::new(value))
    }
}

impl From<Reduce> for Stmt {
    fn from(value: Reduce) -> Stmt {
        Stmt::Reduce(Box::new(value))
    }
}

impl Stmt {
    /// Declares an index.
    pub fn index(name: impl Into<String>, value: impl Into<Expr>) -> Stmt {
        Stmt::Let { name: name.into(), ty: Ty::Index, value: value.into(), note: String::new() }
    }

    /// Declares a value.
    pub fn value(name: impl Into<String>, dtype: DType, value: Expr) -> Stmt {
        Stmt::Let { name: name.into(), ty: Ty::Of(dtype), value, note: String::new() }
    }

    /// Declares a vector.
    pub fn vector(name: impl Into<String>, width: i64, value: Expr) -> Stmt {
        Stmt::Let { name: name.into(), ty: Ty::Vector(width), value, note: String::new() }
    }

    /// Declares a variable that [`Stmt::Set`] changes.
    pub fn variable(name: impl Into<String>, ty: Ty, value: impl Into<Expr>) -> Stmt {
        Stmt::Var { name: name.into(), ty, value: value.into() }
    }

    /// Declares a pointer with the value of an address.
    pub fn pointer(name: impl Into<String>, dtype: DType, value: Expr) -> Stmt {
        Stmt::Pointer { name: name.into(), dtype, value }
    }

    /// Stores an element.
    pub fn store(memory: impl Into<Memory>, dtype: DType, index: Expr, value: Expr) -> Stmt {
        Stmt::Store { memory: memory.into(), dtype, index, value }
    }

    /// Declares an array of values.
    pub fn array(name: &str, dtype: DType, len: impl Into<Expr>) -> Stmt {
        Stmt::Array { name: name.to_owned(), ty: Ty::Of(dtype), len: len.into(), shared: false, values: Vec::new() }
    }

    /// Returns the expressions of the statement itself, without those of statements inside it.
    pub fn expressions(&self) -> Vec<&Expr> {
        match self {
            Stmt::Let { value, .. }
            | Stmt::Var { value, .. }
            | Stmt::Set { value, .. }
            | Stmt::Pointer { value, .. } => vec![value],
            Stmt::Array { len, values, .. } => std::iter::once(len).chain(values).collect(),
            Stmt::Store { index, value, .. } => vec![index, value],
            Stmt::For(l) => vec![&l.from, &l.to, &l.step],
            Stmt::Lanes { first, .. } => vec![first],
            Stmt::If { condition, .. } | Stmt::Leave(condition) | Stmt::Break(condition) => vec![condition],
            Stmt::Call(_, arguments) => arguments.iter().collect(),
            Stmt::Reduce(r) => {
                let bounds = r.loops.iter().flat_map(|l| [&l.from, &l.to, &l.step]);
                [&r.start, &r.value].into_iter().chain(bounds).collect()
            }
            Stmt::Barrier | Stmt::Foreign(..) => Vec::new(),
        }
    }

    /// Returns the lists of statements inside the statement.
    pub fn bodies(&self) -> Vec<&Vec<Stmt>> {
        match self {
            Stmt::For(l) => vec![&l.body],
            Stmt::Lanes { body, .. } => vec![body],
            Stmt::If { then, otherwise, .. } => vec![then, otherwise],
            _ => Vec::new(),
        }
    }

    /// Returns the lists of statements inside the statement.
    pub fn bodies_mut(&mut self) -> Vec<&mut Vec<Stmt>> {
        match self {
            Stmt::For(l) => vec![&mut l.body],
            Stmt::Lanes { body, .. } => vec![body],
            Stmt::If { then, otherwise, .. } => vec![then, otherwise],
            _ => Vec::new(),
        }
    }

    /// Returns true if the statement, or one inside it, reads a variable or an array.
    pub fn reads(&self, name: &str) -> bool {
        self.expressions().iter().any(|expr| expr.reads(name))
            || matches!(self, Stmt::Store { memory: Memory::Local(found), .. } if found == name)
            || self.bodies().iter().any(|body| body.iter().any(|stmt| stmt.reads(name)))
    }
}

/// Parameter of a function inside a region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Parameter {
    /// Index.
    Index(String),
    /// Pointer to float32 values.
    Floats(String),
}

/// Work-items of a launch on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Work-group size along each dimension.
    pub local: [usize; 3],
    /// Number of active work-items along each dimension, before rounding up to whole work-groups.
    pub items: [i64; 3],
}

/// Function of the generated code.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Function {
    /// Name.
    pub name: String,
    /// Parameters of a function that another one calls for a tile; `None` for a function that the region calls.
    pub parameters: Option<Vec<Parameter>>,
    /// Constants that the dialect computes, with a comment: the tile by the length of the machine's vectors.
    pub constants: Vec<(String, Expr, String)>,
    /// Statements.
    pub body: Vec<Stmt>,
}

/// Use of a place in a function: the type of its elements, and whether they are written.
pub type Uses = BTreeMap<Place, (DType, bool)>;

impl Function {
    /// Returns the tensors that the function accesses.
    pub fn uses(&self) -> Uses {
        let mut uses = Uses::new();
        visit(&self.body, &mut |stmt| {
            for expr in stmt.expressions() {
                expr.visit(&mut |inner| {
                    let (place, dtype) = match inner {
                        Expr::Load(Memory::Place(place), dtype, _) | Expr::Address(Memory::Place(place), dtype, _) => {
                            (*place, *dtype)
                        }
                        Expr::LoadVector(Memory::Place(place), ..) => (*place, DType::F32),
                        _ => return,
                    };
                    uses.entry(place).or_insert((dtype, false));
                });
            }
            match stmt {
                Stmt::Store { memory: Memory::Place(place), dtype, .. } => {
                    uses.insert(*place, (*dtype, true));
                }
                Stmt::Foreign(_, named) => {
                    for &(place, dtype, is_written) in named {
                        uses.entry(place).or_insert((dtype, is_written)).1 |= is_written;
                    }
                }
                // A function of the prelude writes to the first address that it is given.
                Stmt::Call(_, arguments) => {
                    if let Some(Expr::Address(Memory::Place(place), dtype, _)) = arguments.first() {
                        uses.insert(*place, (*dtype, true));
                    }
                }
                _ => {}
            }
        });
        uses
    }
}

/// Calls `f` with each statement, outermost first.
pub fn visit<'s>(stmts: &'s [Stmt], f: &mut impl FnMut(&'s Stmt)) {
    let mut stack: Vec<&Stmt> = stmts.iter().rev().collect();
    while let Some(stmt) = stack.pop() {
        f(stmt);
        stack.extend(stmt.bodies().into_iter().flatten().rev());
    }
}

/// Removes declarations of variables that nothing reads.
pub fn remove_unused(stmts: &mut Vec<Stmt>) {
    for stmt in stmts.iter_mut() {
        stmt.bodies_mut().into_iter().for_each(remove_unused);
    }
    // In reverse order, so that variables used only by unused variables are removed as well.
    for i in (0..stmts.len()).rev() {
        let is_unused = match &stmts[i] {
            Stmt::Let { name, .. } | Stmt::Pointer { name, .. } => !stmts[i + 1..].iter().any(|stmt| stmt.reads(name)),
            _ => false,
        };
        if is_unused {
            stmts.remove(i);
        }
    }
}
