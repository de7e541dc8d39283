//! Operators that vendors declare, in domains of their own.

use super::Result;
use crate::node::{Node, Outputs};
use byoc_ir::ir::{AttrValue, Attrs};
use byoc_ir::op::AttrKind;

/// Converts a node to a call of the declared operator, with the attributes that the node has.
pub fn convert(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let Some((def, declared)) = n.declared() else {
        return Err(n.invalid_node("expected a declared operator, found another one"));
    };
    let mut values: Vec<(&str, AttrValue)> = Vec::new();
    for attr in def.attrs.iter().filter(|attr| n.has(attr.name)) {
        let value = match attr.kind {
            AttrKind::Float => AttrValue::Float(n.float_attr(attr.name, 0.0)?),
            AttrKind::Bool => AttrValue::Bool(n.int_attr(attr.name, 0)? != 0),
            AttrKind::Str => AttrValue::Str(n.str_attr(attr.name, "")?.as_str().into()),
            AttrKind::Ints => AttrValue::ints(n.ints_attr(attr.name)?.unwrap_or_default()),
            AttrKind::Floats => AttrValue::List(
                n.floats_attr(attr.name)?.unwrap_or_default().into_iter().map(AttrValue::Float).collect(),
            ),
            _ => AttrValue::Int(n.int_attr(attr.name, 0)?),
        };
        values.push((attr.name, value));
    }
    let args = n.all_inputs()?;
    let call = n.op_unfolded(declared.name, &args, Attrs::new(values))?;
    match declared.outputs.len() {
        0 | 1 => Ok(vec![call]),
        count => (0..count as u32).map(|index| n.project(call, index)).collect(),
    }
}
