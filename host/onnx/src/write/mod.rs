//! ONNX writer: from a typed module to a model.
//!
//! | file | contents |
//! |---|---|
//! | `units` | graphs of the model, and the order of their nodes |
//! | `values`, `names`, `proto_parts` | values, their names; attributes and declarations |
//! | `writer`, `call` | the model under construction, and the view of a call for the functions of the table |
//! | `strings` | tensors of strings |
//! | `control`, `regions` | branches, loops, calls; local functions for regions of backends |
//! | `ports` | inputs and outputs |
//! | `ops` | the table from Relay's operators to their forms in ONNX, one file per family |
//! | `file` | the bytes of the model |
//!
//! Constants are written by reference: their bytes go from where they are to the file.

mod call;
mod control;
mod file;
mod names;
mod ops;
mod ports;
mod proto_parts;
mod regions;
mod strings;
mod units;
mod values;
mod writer;

pub use file::MAX_MODEL_BYTES;

use super::NEWEST_OPSET;
use super::proto::{GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto};
use byoc_ir::cancel;
use byoc_ir::diag::{Diagnostic, MAX_REPORTED, codes};
use byoc_ir::interface::Signature;
use byoc_ir::ir::{Module, OriginId, Origins};
use byoc_ir::tensor::Tensor;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::rc::Rc;
use std::sync::Arc;
use writer::{Fault, Refusal, Writer};

/// Oldest operator set that is written.
pub const OLDEST_WRITTEN: i64 = 13;
/// Operator set that is written unless an operator needs a later one.
pub const DEFAULT_WRITTEN: i64 = 17;

/// Form of quantized operators.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Form {
    /// DequantizeLinear, the float operator, QuantizeLinear.
    #[default]
    Qdq,
    /// Operators on integers: ConvInteger, MatMulInteger.
    Integer,
}

/// Options of the writer.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Operator set; by default 17, or the lowest after it that has all operators.
    pub opset: Option<i64>,
    /// Form of quantized operators.
    pub form: Form,
    /// True to write constant biases of quantized operators as float32 instead of int32 with a DequantizeLinear, which
    /// some readers take for bytes alone.
    pub float_bias: bool,
    /// Number of bytes from which weights are written to a file beside the model; by default those that a model of
    /// 2 GB, the limit of the format, cannot hold.
    pub external_from: Option<usize>,
}

/// Written model: everything but the weights, and the weights by name.
#[derive(Clone, Debug)]
pub struct Model {
    /// Model without initializers.
    pub proto: ModelProto,
    /// Initializers of the main graph, in order of first use.
    pub weights: Vec<(String, Arc<Tensor>)>,
    /// Origins of the nodes of the main graph, in order: of the expressions for which they were written.
    pub origins: Vec<OriginId>,
    external_from: usize,
}

/// Writes a typed module, whose inputs and outputs `signature` names.
///
/// # Errors
/// E0508 if the operator set is not supported, E0526 if an operator or a type has no form in it.
pub fn write(module: &Module, signature: &Signature, options: &Options) -> Result<Model, Vec<Diagnostic>> {
    let mut opset = options.opset.unwrap_or(DEFAULT_WRITTEN);
    if !(OLDEST_WRITTEN..=NEWEST_OPSET).contains(&opset) {
        return Err(vec![
            Diagnostic::error(codes::frontends::UNSUPPORTED_OPSET, format!("unsupported opset {opset}"))
                .note(format!("opsets that are written: {OLDEST_WRITTEN} to {NEWEST_OPSET}")),
        ]);
    }
    loop {
        let mut writer = Writer::new(module, options, opset);
        let written = write_main(&mut writer, signature);
        cancel::check(|| "the model was being written".to_owned()).map_err(|reason| vec![reason])?;
        if let Err(refusal) = written.as_ref().map(drop).map_err(Refusal::clone) {
            writer.refuse("main", "main".to_owned(), refusal);
        }
        let needed = writer.faults.values().map(|fault| fault.refusal.since).max().flatten();
        let is_curable = writer.faults.values().all(|fault| fault.refusal.since.is_some());
        match (written, needed) {
            (Ok((graph, outputs)), _) if writer.faults.is_empty() => return Ok(finish(writer, graph, outputs)),
            (_, Some(needed)) if options.opset.is_none() && is_curable && needed > opset && needed <= NEWEST_OPSET => {
                opset = needed;
            }
            _ => return Err(vec![unwritable(&writer.faults, opset)]),
        }
    }
}

fn write_main(w: &mut Writer<'_>, signature: &Signature) -> writer::Result<(GraphProto, Vec<Rc<str>>)> {
    let main = w.module.globals.get("main").copied();
    let main = main.and_then(|id| Some((id, w.module.expr(id).as_function()?)));
    let Some((id, function)) = main else { return Err(Refusal::new("the module has no @main")) };
    if w.units.is_too_deep {
        return Err(Refusal::new("branches and functions that are nested too deeply"));
    }
    let (inputs, dim_names) = ports::inputs(w, &function.params, signature)?;
    w.string_constants = strings::constants(w.module, &w.units, signature);
    w.enter(id)?;
    // Expressions that several functions share stand outside of all of them.
    let root = byoc_ir::ir::Scopes::root();
    control::write_unit(w, root, &[id])?;
    control::write_unit(w, w.units.opened(id, 0), &[function.body])?;
    let (mut graph, names) = ports::outputs(w, function.body, signature, &dim_names)?;
    graph.input = inputs;
    Ok((graph, names))
}

fn finish(w: Writer<'_>, mut graph: GraphProto, outputs: Vec<Rc<str>>) -> Model {
    let mut live: HashSet<Rc<str>> = outputs.into_iter().collect();
    prune(&mut graph.node, &mut live);
    let mut functions = w.functions;
    for function in &mut functions {
        let mut live: HashSet<Rc<str>> = function.output.iter().map(|output| output.as_str().into()).collect();
        prune(&mut function.node, &mut live);
    }
    let origin = |node: &NodeProto| w.node_exprs.get(node.name.as_str()).map(|&id| w.module.nodes[id].origin);
    let origins = graph.node.iter().map(|node| origin(node).unwrap_or(Origins::none())).collect();
    let final_names = w.names.finish(&mut graph, &mut functions);
    let final_name = |name: &str| final_names.get(name).filter(|_| live.contains(name)).cloned();
    let weights = w.initializers.into_iter().filter_map(|(name, tensor)| Some((final_name(&name)?, tensor)));
    let mut weights: Vec<_> = weights.collect();
    weights.sort_by_key(|((position, _), _)| *position);
    let weights = weights.into_iter().map(|((_, name), tensor)| (name.to_string(), tensor)).collect();
    let strings = w.string_initializers.into_iter();
    let strings = strings.filter_map(|tensor| Some((final_name(&tensor.name)?, tensor)));
    let mut strings: Vec<_> = strings.collect();
    strings.sort_by_key(|((position, _), _)| *position);
    let named = |((_, name), tensor): ((usize, Rc<str>), TensorProto)| TensorProto { name: name.to_string(), ..tensor };
    graph.initializer = strings.into_iter().map(named).collect();
    let domains: BTreeSet<&str> = functions.iter().map(|function| function.domain.as_str()).collect();
    let mut opset_import = vec![OperatorSetIdProto { domain: String::new(), version: w.opset }];
    opset_import.extend(domains.into_iter().map(|domain| OperatorSetIdProto { domain: domain.to_owned(), version: 1 }));
    opset_import
        .extend(w.domains.iter().map(|(&domain, &version)| OperatorSetIdProto { domain: domain.to_owned(), version }));
    let proto = ModelProto {
        ir_version: ir_version(w.opset),
        opset_import,
        producer_name: "byoc".to_owned(),
        producer_version: env!("CARGO_PKG_VERSION").to_owned(),
        graph: Some(graph),
        functions,
        ..ModelProto::default()
    };
    Model { proto, weights, origins, external_from: w.options.external_from.unwrap_or(MAX_MODEL_BYTES) }
}

/// Removes the nodes whose results nothing reads. `live` are the names that are read, to which those of the remaining
/// nodes are added. Subgraphs are nested at most as deep as the writer allows.
fn prune(nodes: &mut Vec<NodeProto>, live: &mut HashSet<Rc<str>>) {
    let mut kept = Vec::with_capacity(nodes.len());
    for mut node in std::mem::take(nodes).into_iter().rev() {
        if !node.output.iter().any(|output| live.contains(output.as_str())) {
            continue;
        }
        for graph in node.attribute.iter_mut().filter_map(|attribute| attribute.g.as_deref_mut()) {
            live.extend(graph.output.iter().map(|output| Rc::from(output.name.as_str())));
            prune(&mut graph.node, live);
        }
        live.extend(node.input.iter().map(|input| Rc::from(input.as_str())));
        kept.push(node);
    }
    kept.reverse();
    *nodes = kept;
}

/// Returns the version of the file format that came with an operator set.
fn ir_version(opset: i64) -> i64 {
    match opset {
        ..=14 => 7,
        15..=18 => 8,
        19..=20 => 9,
        21..=22 => 10,
        23 => 11,
        24 => 12,
        25..=27 => 13,
        _ => 14,
    }
}

fn unwritable(faults: &BTreeMap<(String, String), Fault>, opset: i64) -> Diagnostic {
    let count = faults.len();
    let subject = if count == 1 { "an operator".to_owned() } else { format!("{count} operators") };
    let message = format!("{subject} without a form in ONNX (operator set {opset})");
    let mut error = Diagnostic::error(codes::frontends::NO_ONNX_FORM, message);
    for ((operator, reason), fault) in faults.iter().take(MAX_REPORTED) {
        let times = if fault.count == 1 { "once".to_owned() } else { format!("{} times, first", fault.count) };
        error = error.note(format!("{operator}, {times} in \"{}\": {reason}", fault.label));
    }
    let needed = faults.values().map(|fault| fault.refusal.since).collect::<Option<Vec<i64>>>();
    match needed.and_then(|needed| needed.into_iter().max()) {
        Some(lowest) => error.help(format!("write the model with operator set {lowest} or later: --opset {lowest}")),
        None => error,
    }
}
