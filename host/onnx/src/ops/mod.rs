//! Converters, one file per operator family, and their table.
//!
//! Each row states the first opset to which its converter applies; the row with the highest opset that does not exceed
//! the model's opset is used. To add an operator, write its converter in the file of its family and add a row there.
//! Operators outside the standard domain have separate tables.

mod attention;
mod contrib;
mod control;
mod conv;
mod declared;
mod deform;
mod early;
mod einsum;
mod elementwise;
mod embedding;
mod forest;
mod geometry;
mod index;
mod loops;
mod loss;
mod math;
mod ml;
mod norm;
mod pool;
mod quant;
mod random;
mod recurrence;
mod recurrent;
mod reduce;
mod resize;
mod select;
mod sequence;
mod shape;
mod signal;
mod slice;
pub mod strings;
mod svm;
mod text;
mod training;
mod trees;

use super::node::{Node, Outputs, attrs};
use super::proto::{STANDARD_DOMAIN, is_standard_domain};
use super::state::Result;
use byoc_ir::interface::{PortInfo, PortKind};
use byoc_ir::ir::ExprId;

/// Converter of a node to Relay calls.
pub type Convert = fn(&mut Node<'_, '_>) -> Result<Outputs>;

/// Row of an operator table: operator, first opset, converter.
type Row = (&'static str, i64, Convert);

/// Operator tables of a domain.
struct Domain {
    name: &'static str,
    tables: &'static [&'static [Row]],
}

const DOMAINS: &[Domain] = &[
    Domain { name: STANDARD_DOMAIN, tables: STANDARD },
    Domain { name: "ai.onnx.ml", tables: &[ml::ROWS, svm::ROWS, trees::ROWS] },
    Domain { name: "ai.onnx.preview.training", tables: &[training::ROWS] },
    Domain { name: "com.microsoft", tables: contrib::TABLES },
];

/// Returns the names of all domains with converters.
pub fn domains() -> impl Iterator<Item = &'static str> {
    DOMAINS.iter().map(|domain| domain.name)
}

const STANDARD: &[&[Row]] = &[
    attention::ROWS,
    control::ROWS,
    conv::ROWS,
    deform::ROWS,
    early::ROWS,
    einsum::ROWS,
    elementwise::ROWS,
    embedding::ROWS,
    geometry::ROWS,
    index::ROWS,
    loss::ROWS,
    math::ROWS,
    norm::ROWS,
    pool::ROWS,
    quant::ROWS,
    random::ROWS,
    recurrence::ROWS,
    recurrent::ROWS,
    reduce::ROWS,
    resize::ROWS,
    shape::ROWS,
    select::ROWS,
    sequence::ROWS,
    signal::ROWS,
    slice::ROWS,
    text::ROWS,
];

fn rows(domain: &str) -> impl Iterator<Item = &'static Row> {
    let domain = if is_standard_domain(domain) { STANDARD_DOMAIN } else { domain };
    let tables = DOMAINS
        .iter()
        .filter(move |domain_table| domain_table.name == domain)
        .flat_map(|domain_table| domain_table.tables);
    tables.flat_map(|rows| rows.iter())
}

/// Returns the converter of an operator for an opset of its domain.
pub fn converter(domain: &str, op: &str, version: i64) -> Option<Convert> {
    let matching_rows = rows(domain).filter(|(name, version_added, _)| *name == op && *version_added <= version);
    let row = matching_rows.max_by_key(|(_, version_added, _)| *version_added).map(|(_, _, convert)| *convert);
    row.or_else(|| byoc_ir::declared::by_onnx(domain, op, version).map(|_| declared::convert as Convert))
}

/// Returns the names of all operators with a converter in a domain.
pub fn names(domain: &str) -> impl Iterator<Item = &'static str> + use<'_> {
    let forms = byoc_ir::declared::all().filter_map(|(_, declared)| declared.onnx.as_ref());
    let declared = forms.filter(move |form| form.domain == domain).map(|form| form.name.as_str());
    rows(domain).map(|(name, _, _)| *name).chain(declared)
}

/// Converts the value of an output of the model to the form of its port.
///
/// # Errors
/// If the tensors of a sequence have different ranks.
pub fn output(n: &mut Node<'_, '_>, port: &PortInfo, value: ExprId) -> Result<ExprId> {
    let is_other = matches!(port.kind, PortKind::Tensor | PortKind::Strings | PortKind::Maps | PortKind::StringMaps);
    if is_other || n.is_packed(value) {
        return Ok(value);
    }
    let (bytes, presence) = (n.string_bytes(value), n.presence(value));
    let sequence = sequence::packed_output(n, value, port.dtype)?;
    if let Some(presence) = presence {
        n.set_presence(sequence, presence);
    }
    Ok(bytes.map_or(sequence, |bytes| n.with_bytes(sequence, bytes)))
}

/// Wraps the output of a single-output operator.
fn single_output(value: ExprId) -> Result<Outputs> {
    Ok(vec![value])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selects_newest_matching_converter() {
        let is_same_converter = |op, a, b| match (converter("", op, a), converter("", op, b)) {
            (Some(x), Some(y)) => std::ptr::fn_addr_eq(x, y),
            _ => false,
        };
        assert!(
            is_same_converter("Squeeze", 7, 12)
                && is_same_converter("Squeeze", 13, 21)
                && !is_same_converter("Squeeze", 12, 13)
        );
        assert!(converter("", "GroupNormalization", 17).is_none());
        assert!(converter("ai.onnx", "GroupNormalization", 18).is_some());
        assert!(converter("", "Nonsense", 17).is_none() && converter("", "Momentum", 17).is_none());
        assert!(converter("ai.onnx.preview.training", "Momentum", 1).is_some());
    }

    #[test]
    fn rows_are_unique() {
        let converters = DOMAINS
            .iter()
            .flat_map(|domain| rows(domain.name).map(|(op, version_added, _)| (domain.name, *op, *version_added)));
        let mut rows: Vec<(&str, &str, i64)> = converters.collect();
        let row_count = rows.len();
        rows.sort_unstable();
        rows.dedup();
        assert_eq!(rows.len(), row_count);
    }
}
