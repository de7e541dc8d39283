//! Service `byoc.onnx.1`: candidates and regions as ONNX models, for backends whose compilers take ONNX.

use crate::frontend::onnx::proto::NodeProto;
use crate::frontend::onnx::write::{self, Form, Model, Options};
use byoc_ir::diag::Diagnostic;
use byoc_ir::interface::{PortInfo, Signature};
use byoc_ir::ir::{Id, Module, OriginId, TensorType};
use byoc_plugin_api::host::onnx::{OnnxWriter, service};
use byoc_plugin_api::onnx::ONNX_SERVICE;
use byoc_plugin_api::{Constant, Error, Graph, OnnxForm, OnnxInfo, OnnxNode, OnnxOptions, Result};
use byoc_runtime::plugin::from_graph::{Positions, traced_module_of};
use byoc_runtime::plugin::services::Service;
use byoc_runtime::plugin::to_graph::flat_types;
use std::collections::BTreeSet;
use std::ffi::c_void;
use std::io::Write;
use std::ptr::NonNull;

inventory::submit! {
    Service { name: ONNX_SERVICE, table }
}

/// Returns the table of the service.
fn table() -> NonNull<c_void> {
    service::<Writer>()
}

/// Writer of the service.
struct Writer;

impl OnnxWriter for Writer {
    fn write(
        graph: &Graph,
        constants: &[Constant],
        options: &OnnxOptions,
        model: &mut dyn Write,
        weights: &mut dyn Write,
    ) -> Result<OnnxInfo> {
        let (module, positions) = traced_module_of(graph, constants).map_err(|diagnostic| error_of(&[*diagnostic]))?;
        let signature = signature(graph, &module)?;
        let form = match options.form {
            OnnxForm::Qdq => Form::Qdq,
            OnnxForm::Integer => Form::Integer,
        };
        let writer_options =
            Options { opset: options.opset, form, float_bias: options.float_bias, external_from: None };
        let written =
            write::write(&module, &signature, &writer_options).map_err(|diagnostics| error_of(&diagnostics))?;
        match &options.weights_file {
            Some(file) => written.write_parts(file, model, weights)?,
            None if written.is_external() => {
                return Err(Error::new("expected a region whose weights take less than 2 GB, found a larger one")
                    .hint("ask for the weights in a file of their own: `weights_file`"));
            }
            None => written.write_to(model)?,
        }
        Ok(info(&module, &signature, &written, &positions))
    }
}

/// Returns the inputs and outputs of a graph as ports with names that are free: those of the graph where they are.
fn signature(graph: &Graph, module: &Module) -> Result<Signature> {
    let main = module.main().ok_or_else(|| Error::new("expected a graph with outputs, found none"))?;
    let mut taken = BTreeSet::new();
    let mut free = |name: &str, number: usize, role: &str| {
        let base = if name.is_empty() { format!("{role}{number}") } else { name.to_owned() };
        let mut free = base.clone();
        let mut next = 1;
        while !taken.insert(free.clone()) {
            free = format!("{base}_{next}");
            next += 1;
        }
        free
    };
    let flat = |ty| flat_types(ty).map_err(|diagnostic| error_of(&[*diagnostic]));
    let port = |name, ty: &TensorType| PortInfo::tensor(name, ty.dtype, Some(ty.dims.to_vec()));
    let mut signature = Signature::default();
    for (number, (&param, input)) in main.params.iter().zip(&graph.inputs).enumerate() {
        for ty in flat(module.ty(param))? {
            signature.inputs.push(port(free(&input.name, number, "input"), ty));
        }
    }
    for (number, ty) in flat(module.ty(main.body))?.into_iter().enumerate() {
        signature.outputs.push(port(free("", number, "output"), ty));
    }
    Ok(signature)
}

/// Returns names, and the operators that each node computes.
fn info(module: &Module, signature: &Signature, written: &Model, positions: &Positions) -> OnnxInfo {
    let names = |ports: &[PortInfo]| ports.iter().map(|port| port.name.clone()).collect();
    let nodes = written.proto.graph.iter().flat_map(|graph| &graph.node).zip(&written.origins);
    let node = |(node, &origin): (&NodeProto, &OriginId)| OnnxNode {
        name: node.name.clone(),
        op: node.op_type.clone(),
        operators: module.origins.get(origin).iter().filter_map(|&id| positions.get(id.index()).cloned()).collect(),
    };
    OnnxInfo {
        opset: written.proto.opset_import.first().map_or(0, |import| import.version),
        inputs: names(&signature.inputs),
        outputs: names(&signature.outputs),
        nodes: nodes.map(node).collect(),
    }
}

/// Returns the first diagnostic as an error in one line: its message and its notes, and its help as the hint.
fn error_of(diagnostics: &[Diagnostic]) -> Error {
    let Some(first) = diagnostics.first() else { return Error::new("the graph cannot be written as ONNX") };
    let message = std::iter::once(&first.message).chain(&first.notes).cloned().collect::<Vec<_>>().join(": ");
    match &first.help {
        Some(help) => Error::new(message).hint(help.clone()),
        None => Error::new(message),
    }
}
