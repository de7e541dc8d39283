//! Inputs and outputs of the written model.

use super::proto_parts::value_info;
use super::values::{Operand, Value};
use super::writer::{Refusal, Result, Writer};
use crate::proto::{GraphProto, ValueInfoProto};
use byoc_ir::interface::{PortInfo, PortKind, Signature};
use byoc_ir::ir::{Dim, ExprId, TensorType, Type};
use byoc_ir::tensor::DType;
use std::collections::BTreeMap;
use std::rc::Rc;

/// Declares a value inside the model; something else than a tensor is declared without dimensions.
pub fn declare(name: &str, ty: &Type) -> ValueInfoProto {
    let unknown = TensorType { dtype: DType::F32, dims: Box::default() };
    value_info(name, ty.as_tensor().unwrap_or(&unknown), Dim::to_string)
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

    fn declare(&self, name: &str, ty: &TensorType) -> ValueInfoProto {
        value_info(name, ty, |dim| {
            let own = dim.to_string();
            self.0.get(&own).cloned().unwrap_or(own)
        })
    }
}

/// Returns the ports that declare the tensors `types`: those of the model if their number agrees.
fn ports_of<'s>(ports: &'s [PortInfo], types: &[&Type], role: &str) -> Result<Vec<(&'s str, Option<&'s PortInfo>)>> {
    if let Some(port) = ports.iter().find(|port| port.kind != PortKind::Tensor) {
        let name = &port.name;
        return Err(Refusal::new(format!("{role} \"{name}\": strings, sequences and maps are not written")));
    }
    if ports.len() != types.len() {
        let (expected, found) = (types.len(), ports.len());
        return Err(Refusal::new(format!("expected {expected} {role}s in the signature, found {found}")));
    }
    Ok(ports.iter().map(|port| (port.name.as_str(), Some(port))).collect())
}

fn tensor_type<'t>(ty: &'t Type, role: &str, name: &str) -> Result<&'t TensorType> {
    ty.as_tensor().ok_or_else(|| Refusal::new(format!("{role} \"{name}\": expected a tensor, found {ty}")))
}

/// Declares the parameters of `@main` as inputs, and reserves the names of the outputs.
pub fn inputs(w: &mut Writer<'_>, params: &[ExprId], signature: &Signature) -> Result<(Vec<ValueInfoProto>, DimNames)> {
    let mut dim_names = DimNames::default();
    let types: Vec<&Type> = params.iter().flat_map(|&param| w.leaf_types(param)).collect();
    let ports = ports_of(&signature.inputs, &types, "input")?;
    signature.outputs.iter().for_each(|port| w.names.unique.reserve(&port.name));
    let mut infos = Vec::with_capacity(ports.len());
    for (&(name, port), ty) in ports.iter().zip(&types) {
        let ty = tensor_type(ty, "input", name)?;
        w.names.unique.reserve(name);
        if let Some(port) = port {
            dim_names.add(port, ty);
        }
        infos.push(dim_names.declare(name, ty));
    }
    let mut names = ports.iter().map(|(name, _)| Value::Tensor(Operand::Name((*name).into())));
    for &param in params {
        let value = match w.module.ty(param) {
            Type::Tuple(_) => Value::Tuple(names.by_ref().take(w.leaf_types(param).len()).collect()),
            _ => names.next().unwrap_or(Value::Tensor(Operand::Absent)),
        };
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
    let ports = ports_of(&signature.outputs, &types, "output")?;
    let results = w.leaves(body)?;
    let (mut graph, names) = w.finish_graph("main", &results);
    for ((name, own), ty) in ports.iter().zip(&names).zip(&types) {
        let ty = tensor_type(ty, "output", name.0)?;
        w.names.fix(own, name.0);
        graph.output.push(dim_names.declare(name.0, ty));
    }
    // The names in the declarations are final; those of the nodes follow.
    Ok((graph, names))
}
