//! Contents of registers while a program runs.
//!
//! Closures, cells and values of data types may be nested arbitrarily deeply, so they are dropped by a loop, not by
//! recursion.

use byoc_ir::diag::{Diagnostic, codes};
use byoc_ir::tensor::Tensor;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Contents of a register.
#[derive(Clone, Default)]
pub(super) enum Value {
    /// No contents: the register is not written yet, or was freed.
    #[default]
    Empty,
    Tensor(Tensor),
    /// A function with captured values.
    Closure(Arc<Closure>),
    /// A reference cell.
    Cell(Arc<Cell>),
    /// A value of an algebraic data type.
    Data(Arc<Data>),
}

impl Value {
    /// Unwraps a cell; any other value is an error.
    pub(super) fn cell(self) -> Result<Arc<Cell>, Diagnostic> {
        match self {
            Value::Cell(cell) => Ok(cell),
            other => Err(bad_program(&format!("expected a reference cell, found {}", other.kind()))),
        }
    }

    /// Unwraps a value of an algebraic data type; any other value is an error.
    pub(super) fn data(self) -> Result<Arc<Data>, Diagnostic> {
        match self {
            Value::Data(data) => Ok(data),
            other => Err(bad_program(&format!("expected a value of an algebraic data type, found {}", other.kind()))),
        }
    }

    /// Returns the kind of the value as a noun phrase, for messages.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Value::Empty => "nothing",
            Value::Tensor(_) => "a tensor",
            Value::Closure(_) => "a closure",
            Value::Cell(_) => "a reference cell",
            Value::Data(_) => "a value of an algebraic data type",
        }
    }
}

/// A value of an algebraic data type.
pub(super) struct Data {
    pub tag: u32,
    pub fields: Vec<Value>,
}

/// A function with captured values.
pub(super) struct Closure {
    /// Index of the function.
    pub function: u32,
    /// Captured values: the last arguments of the function.
    pub captures: Vec<Value>,
}

/// A reference cell. The lock is never contended, because a run belongs to one thread.
pub(super) struct Cell(Mutex<Vec<Value>>);

impl Cell {
    pub(super) fn new(values: Vec<Value>) -> Cell {
        Cell(Mutex::new(values))
    }

    pub(super) fn read(&self) -> Vec<Value> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces the contents and returns the previous contents. The caller drops the previous contents after the lock
    /// is released, because the drop may take a long time.
    pub(super) fn replace(&self, values: Vec<Value>) -> Vec<Value> {
        std::mem::replace(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner), values)
    }
}

/// Drops values, and everything owned only by them, without recursion.
fn drop_iteratively(mut values: Vec<Value>) {
    while let Some(value) = values.pop() {
        match value {
            Value::Empty | Value::Tensor(_) => {}
            Value::Closure(closure) => {
                if let Some(mut closure) = Arc::into_inner(closure) {
                    values.append(&mut closure.captures);
                }
            }
            Value::Data(data) => {
                if let Some(mut data) = Arc::into_inner(data) {
                    values.append(&mut data.fields);
                }
            }
            Value::Cell(cell) => {
                if let Some(cell) = Arc::into_inner(cell) {
                    values.append(&mut cell.replace(Vec::new()));
                }
            }
        }
    }
}

impl Drop for Closure {
    fn drop(&mut self) {
        if !self.captures.is_empty() {
            drop_iteratively(std::mem::take(&mut self.captures));
        }
    }
}

impl Drop for Data {
    fn drop(&mut self) {
        if !self.fields.is_empty() {
            drop_iteratively(std::mem::take(&mut self.fields));
        }
    }
}

impl Drop for Cell {
    fn drop(&mut self) {
        let values = self.replace(Vec::new());
        if !values.is_empty() {
            drop_iteratively(values);
        }
    }
}

/// Cells of a run. A cell may own itself through a closure; clearing all cells at the end of the run breaks every such
/// cycle. Cells never leave a run, because its results are tensors.
#[derive(Default)]
pub(super) struct Cells {
    live: Vec<Weak<Cell>>,
    /// Number of entries at which dead entries are removed: twice the number of live entries, so that the amortized
    /// cost is small.
    sweep_threshold: usize,
}

impl Cells {
    pub(super) fn make(&mut self, values: Vec<Value>) -> Value {
        let cell = Arc::new(Cell::new(values));
        if self.live.len() >= self.sweep_threshold {
            self.live.retain(|cell| cell.strong_count() > 0);
            self.sweep_threshold = (2 * self.live.len()).max(64);
        }
        self.live.push(Arc::downgrade(&cell));
        Value::Cell(cell)
    }
}

impl Drop for Cells {
    fn drop(&mut self) {
        for cell in self.live.drain(..) {
            if let Some(cell) = cell.upgrade() {
                drop(cell.replace(Vec::new()));
            }
        }
    }
}

/// Returns the diagnostic for a program that violates the invariants of the planner.
pub(super) fn bad_program(message: &str) -> Diagnostic {
    Diagnostic::error(codes::runtime::BAD_PROGRAM, format!("invalid program: {message}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drops_long_chain_without_recursion() {
        let mut value = Value::Empty;
        for i in 0..1_000_000 {
            value = match i % 3 {
                0 => Value::Closure(Arc::new(Closure { function: 0, captures: vec![value] })),
                1 => Value::Data(Arc::new(Data { tag: 0, fields: vec![value] })),
                _ => Value::Cell(Arc::new(Cell::new(vec![value]))),
            };
        }
        drop(value);
    }

    #[test]
    fn drops_cyclic_cell_at_end_of_run() {
        let tensor = Arc::new(Closure { function: 0, captures: Vec::new() });
        let mut cells = Cells::default();
        let Value::Cell(cell) = cells.make(vec![Value::Closure(tensor.clone())]) else { unreachable!() };
        let cycle = Arc::new(Closure { function: 0, captures: vec![Value::Cell(cell.clone())] });
        cell.replace(vec![Value::Closure(cycle), Value::Closure(tensor.clone())]);
        drop(cell);
        assert_eq!(Arc::strong_count(&tensor), 2);
        drop(cells);
        assert_eq!(Arc::strong_count(&tensor), 1);
    }
}
