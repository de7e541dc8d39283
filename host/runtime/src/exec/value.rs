//! Contents of registers while a program runs.
//!
//! Closures, cells and values of data types may be nested arbitrarily deeply, so they are dropped by a loop, not by
//! recursion. A program can create any number of them, so the memory of each counts toward the limit of the process.

use byoc_ir::diag::{Diagnostic, codes};
use byoc_ir::tensor::memory::Charge;
use byoc_ir::tensor::{OutOfMemory, Tensor};
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

/// Values owned by a value: the fields of a data type, the captured values of a closure, or the contents of a cell.
pub(super) struct Fields {
    values: Vec<Value>,
    #[expect(dead_code, reason = "counts toward the memory limit until it is dropped")]
    charge: Charge,
}

impl Fields {
    /// Size in bytes of a value that owns other values, without those: the largest such object with its reference
    /// counts, and the headers of its two allocations.
    const OWNER_BYTES: usize = size_of::<Cell>() + 6 * size_of::<usize>();

    /// Collects up to `count` values in memory that counts toward the limit.
    ///
    /// # Errors
    /// If the memory limit of the process is exceeded, or a value cannot be read.
    pub(super) fn collect(
        count: usize,
        values: impl Iterator<Item = Result<Value, Diagnostic>>,
    ) -> Result<Fields, Diagnostic> {
        let bytes = count.saturating_mul(size_of::<Value>()).saturating_add(Fields::OWNER_BYTES);
        let charge = Charge::new(bytes).map_err(out_of_handles)?;
        let mut fields = Fields { values: Vec::with_capacity(count), charge };
        for value in values.take(count) {
            fields.values.push(value?);
        }
        Ok(fields)
    }
}

impl std::ops::Deref for Fields {
    type Target = [Value];

    fn deref(&self) -> &[Value] {
        &self.values
    }
}

/// Returns the diagnostic for a value that exceeds the memory limit.
fn out_of_handles(error: OutOfMemory) -> Diagnostic {
    Diagnostic::from(error).note("required by a closure, a reference cell or a value of a data type")
}

/// A value of an algebraic data type.
pub(super) struct Data {
    pub tag: u32,
    pub fields: Fields,
}

/// A function with captured values.
pub(super) struct Closure {
    /// Index of the function.
    pub function: u32,
    /// Captured values: the last arguments of the function.
    pub captures: Fields,
}

/// A reference cell. The lock is never contended, because a run belongs to one thread.
pub(super) struct Cell(Mutex<Option<Fields>>);

impl Cell {
    pub(super) fn new(values: Fields) -> Cell {
        Cell(Mutex::new(Some(values)))
    }

    pub(super) fn read(&self) -> Vec<Value> {
        let contents = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        contents.as_deref().unwrap_or_default().to_vec()
    }

    /// Replaces the contents and returns the previous contents. The caller drops the previous contents after the lock
    /// is released, because the drop may take a long time.
    pub(super) fn replace(&self, values: Option<Fields>) -> Option<Fields> {
        std::mem::replace(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner), values)
    }
}

/// Drops values, and everything owned only by them, without recursion.
fn drop_iteratively(mut values: Vec<Value>) {
    while let Some(value) = values.pop() {
        let owned = match value {
            Value::Empty | Value::Tensor(_) => None,
            Value::Closure(closure) => Arc::into_inner(closure).map(|closure| closure.captures),
            Value::Data(data) => Arc::into_inner(data).map(|data| data.fields),
            Value::Cell(cell) => Arc::into_inner(cell).and_then(|cell| cell.replace(None)),
        };
        if let Some(mut owned) = owned {
            values.append(&mut owned.values);
        }
    }
}

impl Drop for Fields {
    fn drop(&mut self) {
        if !self.values.is_empty() {
            drop_iteratively(std::mem::take(&mut self.values));
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
    pub(super) fn make(&mut self, values: Fields) -> Value {
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
                drop(cell.replace(None));
            }
        }
    }
}

/// Maximum length in bytes of the description of an invalid program, which may have types with a million dimensions.
const MAX_MESSAGE: usize = 4096;

/// Returns the diagnostic for a program that violates the invariants of the planner.
pub(super) fn bad_program(message: &str) -> Diagnostic {
    let end = message.floor_char_boundary(MAX_MESSAGE);
    let rest = if end < message.len() { ".." } else { "" };
    Diagnostic::error(codes::runtime::BAD_PROGRAM, format!("invalid program: {}{rest}", &message[..end]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields<const N: usize>(values: [Value; N]) -> Fields {
        Fields::collect(N, values.into_iter().map(Ok)).unwrap()
    }

    #[test]
    fn drops_long_chain_without_recursion() {
        let mut value = Value::Empty;
        for i in 0..1_000_000 {
            value = match i % 3 {
                0 => Value::Closure(Arc::new(Closure { function: 0, captures: fields([value]) })),
                1 => Value::Data(Arc::new(Data { tag: 0, fields: fields([value]) })),
                _ => Value::Cell(Arc::new(Cell::new(fields([value])))),
            };
        }
        drop(value);
    }

    #[test]
    fn drops_cyclic_cell_at_end_of_run() {
        let tensor = Arc::new(Closure { function: 0, captures: fields([]) });
        let mut cells = Cells::default();
        let Value::Cell(cell) = cells.make(fields([Value::Closure(tensor.clone())])) else { unreachable!() };
        let cycle = Arc::new(Closure { function: 0, captures: fields([Value::Cell(cell.clone())]) });
        cell.replace(Some(fields([Value::Closure(cycle), Value::Closure(tensor.clone())])));
        drop(cell);
        assert_eq!(Arc::strong_count(&tensor), 2);
        drop(cells);
        assert_eq!(Arc::strong_count(&tensor), 1);
    }
}
