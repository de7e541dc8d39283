//! Loop nests as data: expressions, statements, and the functions that a region becomes.
//!
//! A nest is built once per group of operators, transformed by a [schedule](crate::schedule), and printed in a dialect
//! ([`crate::print`]).

pub mod body;
pub mod expr;
pub mod step;
pub mod stmt;
pub mod transform;

use byoc_plugin_support::view::View;
pub use expr::{Expr, Infix, Memory, Position};
use std::fmt;
pub use step::Step;
pub use stmt::{Function, Loop, Mode, Parameter, Reduce, Stmt, Ty};

/// Memory that the generated code accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// Input of the region, by index.
    Input(usize),
    /// Output of the region, by index.
    Output(usize),
    /// Constant in the host's memory, by index.
    Constant(usize),
    /// Constant packed into a different layout: at load time for a region, at code generation for a program.
    Packed(usize),
    /// Buffer in the workspace.
    Work(usize),
}

impl Place {
    /// Returns the index of a buffer in the workspace; `None` for any other place.
    pub fn buffer(self) -> Option<usize> {
        if let Place::Work(buffer) = self { Some(buffer) } else { None }
    }
}

impl fmt::Display for Place {
    /// Writes the name of the pointer in the generated code.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Input(i) => write!(f, "in{i}"),
            Place::Output(i) => write!(f, "out{i}"),
            Place::Constant(i) => write!(f, "k{i}"),
            Place::Packed(i) => write!(f, "p{i}"),
            Place::Work(i) => write!(f, "w{i}"),
        }
    }
}

/// Returns the index of the element of a view at `indices`.
pub fn element(view: &View, indices: &[Expr]) -> Expr {
    let mut index = Expr::Index(0);
    for ((position, &stride), &size) in indices.iter().zip(&view.strides).zip(&view.shape) {
        if size != 1 {
            index = index + position.clone() * stride;
        }
    }
    index + view.offset
}

/// Returns the indices named by `names`.
pub fn indices(names: &[String]) -> Vec<Expr> {
    names.iter().map(Expr::from).collect()
}

/// Returns the names of the indices of `groups` dimensions of groups, `rows` dimensions of rows, and a column.
pub fn product_indices(groups: usize, rows: usize) -> Vec<String> {
    let mut names = numbered("g", groups);
    names.extend(numbered("r", rows));
    names.push("c".into());
    names
}

/// Returns the names `PREFIX0`, `PREFIX1`, and so on.
pub fn numbered(prefix: &str, count: usize) -> Vec<String> {
    (0..count).map(|i| format!("{prefix}{i}")).collect()
}
