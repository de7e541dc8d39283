//! Regions of backends, which become local functions of the model: the domain of a function names its backend.

use super::names::Base;
use super::values::{Operand, Value};
use super::writer::{Operator, Refusal, Result, Writer};
use crate::proto::{FunctionProto, GraphProto, NodeProto, OperatorSetIdProto};
use byoc_ir::ir::{ExprId, ScopeId};
use std::collections::{BTreeSet, HashSet};
use std::rc::Rc;

/// Prefix of the domains of local functions.
const DOMAIN: &str = "byoc.region";

/// Writes a region as a local function, whose body `write_unit` writes, and a node that calls it. Constants of the region are inputs of the function, as
/// functions have no initializers.
pub fn write(
    w: &mut Writer<'_>,
    id: ExprId,
    (function, backend): (ExprId, &str),
    args: &[ExprId],
    write_unit: impl FnOnce(&mut Writer<'_>, ScopeId, &[ExprId]) -> Result<()>,
) -> Result<Value> {
    let Some(definition) = w.module.expr(function).as_function() else {
        return Err(Refusal::new("a call of a value that is no function"));
    };
    let mut symbol = definition.attrs.str("global_symbol").unwrap_or("region").to_owned();
    let calls = w.functions.iter().filter(|function| function.name.starts_with(&symbol)).count();
    if calls > 0 {
        symbol = format!("{symbol}.{calls}");
    }
    let domain = format!("{DOMAIN}.{backend}");
    let mut inputs = Vec::new();
    for &arg in args {
        inputs.extend(w.leaves(arg)?);
    }
    w.enter(function)?;
    w.open()?;
    let mut names: Vec<Rc<str>> = Vec::new();
    for &param in &definition.params {
        let fields = w.leaf_types(param).len();
        let fresh: Vec<Rc<str>> =
            (0..fields).map(|_| w.names.temporary(Base::Label(format!("{symbol}.input")))).collect();
        names.extend(fresh.iter().cloned());
        let value = Value::of_type(w.module.ty(param), &mut fresh.into_iter().map(Operand::Name));
        w.set(param, value);
    }
    let unit = w.units.opened(function, 0);
    let written = write_unit(w, unit, &[definition.body]);
    w.calls.pop();
    let results = written.and_then(|()| w.leaves(definition.body));
    let results = match results {
        Ok(results) => results,
        Err(refusal) => {
            w.close();
            return Err(refusal);
        }
    };
    let (graph, outputs) = w.finish_graph(&symbol, &results);
    let weights = free_names(&graph, &names);
    names.extend(weights.iter().cloned());
    inputs.extend(weights.into_iter().map(Operand::Name));
    let import = OperatorSetIdProto { domain: String::new(), version: w.opset };
    w.functions.push(FunctionProto {
        name: symbol.clone(),
        input: names.iter().map(|name| name.to_string()).collect(),
        output: outputs.iter().map(|name| name.to_string()).collect(),
        node: graph.node,
        opset_import: vec![import],
        domain: domain.clone(),
        ..FunctionProto::default()
    });
    let label = w.label(id, &symbol);
    let operator = Operator { domain: &domain, doc_string: w.sources(id), ..Operator::new(&symbol) };
    let results = w.node(&label, operator, &inputs, outputs.len());
    Ok(Value::of_type(w.module.ty(id), &mut results.into_iter()))
}

/// Returns the names that a graph reads and neither computes nor has as inputs, in order of first use.
fn free_names(graph: &GraphProto, inputs: &[Rc<str>]) -> Vec<Rc<str>> {
    let mut known: HashSet<&str> = inputs.iter().map(|name| &**name).collect();
    let (mut nodes, mut read) = (Vec::new(), Vec::new());
    let mut stack: Vec<&NodeProto> = graph.node.iter().rev().collect();
    while let Some(node) = stack.pop() {
        nodes.push(node);
        for inner in node.attribute.iter().filter_map(|attribute| attribute.g.as_deref()) {
            known.extend(inner.input.iter().map(|input| input.name.as_str()));
            stack.extend(inner.node.iter().rev());
        }
    }
    for node in &nodes {
        known.extend(node.output.iter().map(String::as_str));
    }
    let mut seen = BTreeSet::new();
    for name in nodes.iter().flat_map(|node| &node.input) {
        if !name.is_empty() && !known.contains(name.as_str()) && seen.insert(name.as_str()) {
            read.push(Rc::from(name.as_str()));
        }
    }
    read
}
