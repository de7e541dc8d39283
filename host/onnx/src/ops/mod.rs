//! Converters, one file per operator family, and their table.
//!
//! A row gives the first opset that a converter applies to. The row with the greatest opset not above that of the model
//! is used. To add an operator, write its converter in the file of its family and add a row there.

mod attention;
mod control;
mod conv;
mod early;
mod elementwise;
mod embedding;
mod geometry;
mod index;
mod loss;
mod math;
mod norm;
mod pool;
mod quant;
mod recurrence;
mod recurrent;
mod reduce;
mod resize;
mod select;
mod sequence;
mod shape;
mod signal;
mod slice;

use super::node::{Node, Outputs, attrs};
use super::state::Result;

/// Converter of a node to Relay calls.
pub type Convert = fn(&mut Node<'_, '_>) -> Result<Outputs>;

/// Operator, first opset, converter.
type Row = (&'static str, i64, Convert);

const TABLES: &[&[Row]] = &[
    attention::ROWS,
    control::ROWS,
    conv::ROWS,
    early::ROWS,
    elementwise::ROWS,
    embedding::ROWS,
    geometry::ROWS,
    index::ROWS,
    loss::ROWS,
    math::ROWS,
    norm::ROWS,
    pool::ROWS,
    quant::ROWS,
    recurrence::ROWS,
    recurrent::ROWS,
    reduce::ROWS,
    resize::ROWS,
    shape::ROWS,
    select::ROWS,
    sequence::ROWS,
    signal::ROWS,
    slice::ROWS,
];

/// Returns the converter of an operator of the standard domain for an opset.
pub fn converter(op: &str, version: i64) -> Option<Convert> {
    let rows = TABLES.iter().flat_map(|rows| rows.iter());
    let known = rows.filter(|(name, since, _)| *name == op && *since <= version);
    known.max_by_key(|(_, since, _)| *since).map(|(_, _, convert)| *convert)
}

/// Returns the names of all operators with a converter.
pub fn names() -> impl Iterator<Item = &'static str> {
    TABLES.iter().flat_map(|rows| rows.iter()).map(|(name, _, _)| *name)
}

/// Wraps the output of an operator with a single output.
fn one(value: byoc_ir::ir::ExprId) -> Result<Outputs> {
    Ok(vec![value])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selects_newest_matching_converter() {
        let same = |op, a, b| match (converter(op, a), converter(op, b)) {
            (Some(x), Some(y)) => std::ptr::fn_addr_eq(x, y),
            _ => false,
        };
        assert!(same("Squeeze", 7, 12) && same("Squeeze", 13, 21) && !same("Squeeze", 12, 13));
        assert!(converter("LayerNormalization", 16).is_none() && converter("LayerNormalization", 17).is_some());
        assert!(converter("Nonsense", 17).is_none());
    }

    #[test]
    fn no_row_stands_twice() {
        let mut rows: Vec<(&str, i64)> = TABLES.iter().flat_map(|t| t.iter()).map(|(n, v, _)| (*n, *v)).collect();
        let all = rows.len();
        rows.sort_unstable();
        rows.dedup();
        assert_eq!(rows.len(), all);
    }
}
