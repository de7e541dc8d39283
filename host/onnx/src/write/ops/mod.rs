//! Table from Relay's operators to their forms in ONNX, one file per family.
//!
//! A function appends the nodes of a call and returns its results. Where ONNX lacks the operator, the function composes it
//! from others; what has no form is refused with a reason, and with the lowest operator set that has it, if there is one.

mod contraction;
mod conv;
mod create;
mod elementwise;
mod index;
mod integer;
mod matrix;
mod norm;
mod pad;
mod pool;
mod qnn;
mod reduce;
mod resize;
mod select;
mod shape;
mod signal;
mod slice;
mod text;
mod vision;

use super::call::{Call, Outputs};
use super::values::Operand;
use super::writer::{Refusal, Result};
use std::collections::HashMap;
use std::sync::LazyLock;

/// Function that writes a call.
type Write = fn(&mut Call<'_, '_>) -> Result<Outputs>;

/// Row of the table: Relay's operator, and the function that writes it.
type Row = (&'static str, Write);

const TABLES: &[&[Row]] = &[
    contraction::ROWS,
    conv::ROWS,
    create::ROWS,
    elementwise::ROWS,
    index::ROWS,
    integer::ROWS,
    matrix::ROWS,
    norm::ROWS,
    pad::ROWS,
    pool::ROWS,
    qnn::ROWS,
    reduce::ROWS,
    resize::ROWS,
    select::ROWS,
    shape::ROWS,
    signal::ROWS,
    slice::ROWS,
    text::ROWS,
    vision::ROWS,
];

static ROWS: LazyLock<HashMap<&'static str, Write>> =
    LazyLock::new(|| TABLES.iter().flat_map(|rows| rows.iter().copied()).collect());

/// Writes a call, and returns its results.
///
/// # Errors
/// If the call has no form in ONNX.
pub fn write(c: &mut Call<'_, '_>) -> Result<Outputs> {
    if let Some(outputs) = super::strings::write_on_bytes(c)? {
        return Ok(outputs);
    }
    if c.w.moves_strings(c.params.def().name, c.args)? {
        let outputs = dispatch(c)?;
        c.w.mark_strings(&outputs);
        return Ok(outputs);
    }
    match qnn::write_on_reals(c)? {
        Some(outputs) => Ok(outputs),
        None => dispatch(c),
    }
}

fn dispatch(c: &mut Call<'_, '_>) -> Result<Outputs> {
    match ROWS.get(c.params.def().name) {
        Some(write) => write(c),
        None => Err(Refusal::new("ONNX has no such operator")),
    }
}

/// Wraps the result of an operator with one result.
fn single(value: Operand) -> Result<Outputs> {
    Ok(vec![value])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_unique_and_name_operators() {
        assert_eq!(ROWS.len(), TABLES.iter().map(|rows| rows.len()).sum::<usize>());
        for name in ROWS.keys() {
            assert!(byoc_ir::op::lookup(name).is_some(), "{name}");
        }
    }
}
