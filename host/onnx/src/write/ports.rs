//! Inputs and outputs of the written model.

use super::proto_parts::value_info;
use super::values::{Operand, Value};
use super::writer::{Refusal, Result, Writer};
use crate::proto::{GraphProto, ValueInfoProto};
use byoc_ir::interface::{PortInfo, PortKind, Signature};
use byoc_ir::ir::{Dim, ExprId, TensorType, Type};
use byoc_ir::tensor::DType;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// Declares a value inside the model; something else than a tensor is declared without dimensions.
pub fn declare(name: &str, ty: &Type) -> ValueInfoProto {
    let unknown = TensorType { dtype: DType::F32, dims: Box::default() };
    value_info(name, ty.as_tensor().unwrap_or(&unknown), false, Dim::to_string)
}

/// Names of dimensions as the model declares them, by their names in the module.
#[derive(Default)]
pub struct DimNames(BTreeMap<String, String>);

impl DimNames {
    fn add(&mut self, port: &PortInfo, ty: &TensorType) {
        for (dim, declared) in ty.dims.iter().zip(port.dims.iter().flatten()) {
            if let (Some(name), Some(declared)) = (dim.name(), declared.name()) {
                self.0.entry(name.to_string()).or_insert_with(|| declared.to_string());
            }
        }
    }

    fn declare(&self, name: &str, ty: &TensorType, has_strings: bool) -> ValueInfoProto {
        value_info(name, ty, has_strings, |dim| {
            let own = dim.to_string();
            self.0.get(&own).cloned().unwrap_or(own)
        })
    }
}

/// Tensors of a port: that of numbers or of the spans of strings, and the bytes of strings.
struct Tensors<'s> {
    name: &'s str,
    port: &'s PortInfo,
    /// Position of the tensor among all.
    position: usize,
}

impl Tensors<'_> {
    fn has_strings(&self) -> bool {
        self.port.kind == PortKind::Strings
    }
}

/// Returns the values that ports declare, of `count` tensors.
fn values_of<'s>(ports: &'s [PortInfo], count: usize, role: &str) -> Result<Vec<Tensors<'s>>> {
    if ports.len() != count {
        let found = ports.len();
        return Err(Refusal::new(format!("expected {count} {role}s in the signature, found {found}")));
    }
    let mut values = Vec::with_capacity(count);
    let mut position = 0;
    while let Some(port) = ports.get(position) {
        let name = port.name.as_str();
        if !matches!(port.kind, PortKind::Tensor | PortKind::Strings) {
            return Err(Refusal::new(format!(
                "{role} \"{name}\": sequences, optional values and maps are not written"
            )));
        }
        values.push(Tensors { name, port, position });
        position += 1 + port.kind.parts().len();
    }
    Ok(values)
}

fn tensor_type<'t>(ty: &'t Type, role: &str, name: &str) -> Result<&'t TensorType> {
    ty.as_tensor().ok_or_else(|| Refusal::new(format!("{role} \"{name}\": expected a tensor, found {ty}")))
}

/// Declares the parameters of `@main` as inputs, and reserves the names of the outputs.
pub fn inputs(w: &mut Writer<'_>, params: &[ExprId], signature: &Signature) -> Result<(Vec<ValueInfoProto>, DimNames)> {
    let mut dim_names = DimNames::default();
    let types: Vec<&Type> = params.iter().flat_map(|&param| w.leaf_types(param)).collect();
    let values = values_of(&signature.inputs, types.len(), "input")?;
    signature.outputs.iter().for_each(|port| w.names.unique.reserve(&port.name));
    let mut infos = Vec::with_capacity(values.len());
    let mut operands = vec![Operand::Bytes; types.len()];
    let mut names = BTreeSet::new();
    for value in &values {
        let ty = tensor_type(types[value.position], "input", value.name)?;
        w.names.unique.reserve(value.name);
        dim_names.add(value.port, ty);
        infos.push(dim_names.declare(value.name, ty, value.has_strings()));
        operands[value.position] = Operand::Name(value.name.into());
        if !names.insert(value.name) {
            return Err(Refusal::new(format!("two inputs of the name \"{}\"", value.name)));
        }
        if value.has_strings() {
            w.mark_strings([&operands[value.position]]);
        }
    }
    let mut operands = operands.into_iter();
    for &param in params {
        let value = Value::of_type(w.module.ty(param), &mut operands);
        w.set(param, value);
    }
    Ok((infos, dim_names))
}

/// Makes the results of `@main` the outputs of the graph, under the names of the model. Returns the temporary names as well.
pub fn outputs(
    w: &mut Writer<'_>,
    body: ExprId,
    signature: &Signature,
    dim_names: &DimNames,
) -> Result<(GraphProto, Vec<Rc<str>>)> {
    let types = w.leaf_types(body);
    let values = values_of(&signature.outputs, types.len(), "output")?;
    let leaves = w.leaves(body)?;
    let mut results = Vec::with_capacity(values.len());
    let mut taken: BTreeSet<&str> = signature.inputs.iter().map(|port| port.name.as_str()).collect();
    for value in &values {
        let result = leaves.get(value.position).cloned().unwrap_or(Operand::Absent);
        if value.has_strings() != w.has_strings(&result) && !matches!(result, Operand::Refused) {
            return Err(Refusal::new(format!("output \"{}\": strings of which the bytes are computed", value.name)));
        }
        // An input may be an output as it is.
        let is_passed = matches!(&result, Operand::Name(name) if **name == *value.name);
        if !is_passed && !taken.insert(value.name) {
            return Err(Refusal::new(format!("output \"{}\": a name that an input or another output has", value.name)));
        }
        results.push((result, is_passed));
    }
    let computed: Vec<Operand> =
        results.iter().filter(|(_, is_passed)| !is_passed).map(|(result, _)| result.clone()).collect();
    let (mut graph, names) = w.finish_graph("main", &computed);
    let mut own_names = names.iter();
    for (value, (_, is_passed)) in values.iter().zip(&results) {
        let ty = tensor_type(types[value.position], "output", value.name)?;
        let own = if *is_passed { None } else { own_names.next() };
        if let Some(own) = own {
            w.names.fix(own, value.name);
        }
        graph.output.push(dim_names.declare(value.name, ty, value.has_strings()));
    }
    Ok((graph, names))
}
