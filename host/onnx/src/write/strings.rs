//! Strings. In a module, a tensor of strings is that of its spans and the bytes of all ([`byoc_ir::tensor::strings`]); in the
//! written model it is the value of the spans. The reader joins the bytes of operands, and moves the spans of all but the first by the
//! bytes before them: neither has a counterpart.

use super::call::Call;
use super::units::Units;
use super::values::{Operand, Strings};
use super::writer::{Refusal, Result, Writer};
use crate::proto::Bytes;
use byoc_ir::interface::{PortKind, Signature};
use byoc_ir::ir::{Expr, ExprId, Module};
use byoc_ir::op;
use byoc_ir::tensor::{Tensor, strings};
use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use std::sync::Arc;

/// Operators that move elements, and the arguments from which they do.
const MOVES: &[(&str, &[usize])] = &[
    ("add", &[0]),
    ("broadcast_to", &[0]),
    ("concatenate", &[0]),
    ("copy", &[0]),
    ("dyn.broadcast_to", &[0]),
    ("dyn.reshape", &[0]),
    ("dyn.strided_slice", &[0]),
    ("dyn.tile", &[0]),
    ("expand_dims", &[0]),
    ("gather", &[0]),
    ("gather_nd", &[0]),
    ("reshape", &[0]),
    ("scatter_elements", &[0, 2]),
    ("scatter_nd", &[0, 2]),
    ("split", &[0]),
    ("squeeze", &[0]),
    ("stack", &[0]),
    ("strided_slice", &[0]),
    ("take", &[0]),
    ("text.keep", &[0]),
    ("tile", &[0]),
    ("transpose", &[0]),
    ("where", &[1, 2]),
];

/// Returns the arguments from which an operator moves elements.
fn moved(name: &str) -> Option<&'static [usize]> {
    MOVES.binary_search_by_key(&name, |row| row.0).ok().map(|row| MOVES[row].1)
}

/// Finds the constants that are spans, from the operators and outputs that read strings.
pub fn constants(module: &Module, units: &Units<'_>, signature: &Signature) -> HashMap<ExprId, Rc<Strings>> {
    let mut pairs = Vec::new();
    for (id, node) in module.nodes.iter() {
        let Some((op, call)) = node.expr.as_op_call().filter(|_| units.unit(id).is_some()) else { continue };
        if op::get(op).name.starts_with("text.") {
            let inputs = op::get(op).inputs.iter().zip(&call.args);
            let bytes = inputs.clone().filter(|(name, _)| name.ends_with("bytes")).map(|(_, &arg)| arg);
            let spans = inputs.filter(|(name, _)| name.ends_with("spans")).map(|(_, &arg)| arg);
            pairs.extend(spans.zip(bytes));
        }
    }
    let body = module.main().map(|main| module.expr(main.body));
    let results = match body {
        Some(Expr::Tuple(fields)) => fields.to_vec(),
        _ => module.main().map(|main| vec![main.body]).unwrap_or_default(),
    };
    for (i, port) in signature.outputs.iter().enumerate() {
        if let (PortKind::Strings, [spans, bytes, ..]) = (port.kind, results.get(i..).unwrap_or_default()) {
            pairs.push((*spans, *bytes));
        }
    }
    decode_all(module, units, pairs)
}

fn decode_all(module: &Module, units: &Units<'_>, mut pairs: Vec<(ExprId, ExprId)>) -> HashMap<ExprId, Rc<Strings>> {
    let (mut found, mut visited) = (HashMap::new(), HashSet::new());
    while let Some((spans, bytes)) = pairs.pop() {
        if !visited.insert(spans) {
            continue;
        }
        match module.expr(spans) {
            Expr::Constant(tensor) => {
                let bytes = constant_bytes(module, bytes);
                let decoded = bytes.and_then(|bytes| strings::decode(tensor, bytes).ok());
                if let Some(decoded) = decoded {
                    let values = decoded.strings.iter().map(|text| Bytes::copy_from_slice(text.as_bytes())).collect();
                    found.insert(spans, Rc::new(Strings { shape: tensor.shape().to_vec(), values }));
                }
            }
            Expr::Var(_) => pairs.extend(units.bound(spans).map(|value| (value, bytes))),
            Expr::Project { tuple, .. } => pairs.push((*tuple, bytes)),
            Expr::Tuple(fields) => pairs.extend(fields.iter().map(|&field| (field, bytes))),
            expr => {
                let Some((op, call)) = expr.as_op_call() else { continue };
                let arguments = moved(op::get(op).name).unwrap_or_default();
                pairs.extend(arguments.iter().filter_map(|&i| Some((*call.args.get(i)?, bytes))));
            }
        }
    }
    found
}

/// Returns constant bytes, or the only constant among those that are joined.
fn constant_bytes(module: &Module, bytes: ExprId) -> Option<&Arc<Tensor>> {
    if let Some(tensor) = module.expr(bytes).as_constant() {
        return Some(tensor);
    }
    let (_, call) = module.expr(bytes).as_op_call()?;
    let Expr::Tuple(fields) = module.expr(*call.args.first()?) else { return None };
    let mut constants = fields.iter().filter_map(|&field| module.expr(field).as_constant());
    constants.next().filter(|_| constants.next().is_none())
}

/// Writes an operator on the bytes of strings: joined bytes have no counterpart, and spans that are moved are the strings
/// themselves. `None` for any other operator.
pub fn write_on_bytes(c: &mut Call<'_, '_>) -> Result<Option<Vec<Operand>>> {
    let name = c.params.def().name;
    let mut leaves = Vec::new();
    for &arg in c.args {
        leaves.extend(c.w.leaves(arg)?);
    }
    if let (Some(strings), "add") = (leaves.iter().find(|leaf| c.w.has_strings(leaf)), name) {
        return Ok(Some(vec![strings.clone()]));
    }
    if name.starts_with("text.") || !leaves.iter().any(|leaf| matches!(leaf, Operand::Bytes)) {
        return Ok(None);
    }
    match leaves.iter().find(|leaf| c.w.has_strings(leaf)) {
        Some(_) => Err(Refusal::new("the operator on strings and their bytes")),
        None => Ok(Some(vec![Operand::Bytes; c.ret.as_tuple().map_or(1, <[_]>::len)])),
    }
}

impl Writer<'_> {
    /// Returns true if the value has strings.
    pub fn has_strings(&self, value: &Operand) -> bool {
        match value {
            Operand::Strings(_) => true,
            Operand::Name(name) => self.string_names.contains(name),
            _ => false,
        }
    }

    /// Records that values have strings.
    pub fn mark_strings<'v>(&mut self, values: impl IntoIterator<Item = &'v Operand>) {
        for value in values {
            if let Operand::Name(name) = value {
                self.string_names.insert(name.clone());
            }
        }
    }

    /// Checks the arguments of an operator: returns true if the results have strings.
    ///
    /// # Errors
    /// If the operator computes with the spans of strings.
    pub fn moves_strings(&self, name: &str, args: &[ExprId]) -> Result<bool> {
        let is_string =
            |&arg: &ExprId| self.leaves(arg).is_ok_and(|leaves| leaves.iter().any(|leaf| self.has_strings(leaf)));
        if !args.iter().any(is_string) || ["shape_of", "ndarray_size"].contains(&name) {
            return Ok(false);
        }
        if name.starts_with("text.") && name != "text.keep" {
            return Ok(false);
        }
        match moved(name) {
            Some(arguments) if arguments.iter().all(|&i| args.get(i).is_some_and(is_string)) => Ok(true),
            _ => Err(Refusal::new("the operator on the positions of strings")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moves_are_sorted_operators() {
        assert!(MOVES.is_sorted_by_key(|row| row.0));
        assert!(MOVES.iter().all(|row| op::lookup(row.0).is_some()));
    }
}
