//! Conversion of a model to a module: checks the opsets and operators, then converts the nodes in order.

use super::external::ExternalFiles;
use super::functions::{FlatNode, flatten};
use super::node::Node;
use super::proto::{ModelProto, NodeProto, STANDARD_DOMAIN, is_standard_domain};
use super::state::{ConversionState, Error, Result};
use super::{NEWEST_OPSET, OLDEST_OPSET, graph_signature, invalid_model, ops, schema};
use byoc_ir::cancel::{self, Ticks};
use byoc_ir::diag::{Diagnostic, MAX_REPORTED, codes, nearest};
use byoc_ir::interface::{Identifiers, LoadOptions, Loaded, Signature, bind};
use byoc_ir::ir::{ExprId, Source, Type};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Converts a model to a module.
pub fn convert(
    mut model: ModelProto,
    options: &LoadOptions,
    external: Option<&ExternalFiles>,
) -> Result<Loaded, Vec<Diagnostic>> {
    let single_diagnostic = |d: Diagnostic| vec![d];
    let nodes = flatten(&mut model).map_err(single_diagnostic)?;
    let graph = model.graph.take().unwrap_or_default();
    let signature = graph_signature(&graph)?;
    let warnings = check_versions(&model, &nodes)?;
    check_operators(&nodes)?;
    let (types, bound) = bind(&signature, options)?;

    let mut conversion = ConversionState::new(&graph, external, convert_node)?;
    conversion.warnings = warnings;
    conversion.excludes_ones = options.exclude_ones;
    let mut names = Identifiers::default();
    let mut params = Vec::new();
    for (port, ty) in signature.inputs.iter().zip(types) {
        let var = conversion.builder.var(names.unique(&port.name), ty.clone());
        for (axis, dim) in ty.as_tensor().iter().flat_map(|ty| ty.dims.iter().enumerate()) {
            if let Some(name) = dim.name() {
                conversion.symbolic_dims.entry(name.clone()).or_insert((var, axis));
                conversion.names.reserve(name);
            }
        }
        conversion.bind_name(&port.name, var).map_err(|d| vec![*d])?;
        params.push(var);
    }
    for (position, node) in nodes.iter().enumerate() {
        cancel::check(|| format!("{position} of {} model nodes had been converted", nodes.len()))
            .map_err(single_diagnostic)?;
        convert_node(&mut conversion, node, position).map_err(|d| vec![*d])?;
    }
    let mut results = Vec::new();
    for port in &signature.outputs {
        let result = conversion.value(&port.name).map_err(|d| vec![*d])?.ok_or_else(|| {
            vec![invalid_model(format!("output \"{}\" is neither the result of a node nor an input", port.name))]
        })?;
        results.push(result);
    }
    let body = match results.as_slice() {
        [] => return Err(vec![invalid_model("expected a graph with at least one output, found none".into())]),
        [result] => *result,
        elements => conversion.builder.tuple(elements).map_err(|d| vec![*d])?,
    };
    conversion.builder.define("main", &params, body).map_err(|d| vec![*d])?;
    let excluded_ones = declared_names(&signature, &params, &conversion);
    let ConversionState { builder, mut warnings, .. } = conversion;
    // The body of a loop may be converted several times.
    warnings.dedup();
    Ok(Loaded { module: builder.module, signature, bound, excluded_ones, warnings, digest: String::new() })
}

/// Returns the names that the model declares for the dimensions assumed to differ from 1; in the module, names may be
/// changed to identifiers.
fn declared_names(signature: &Signature, params: &[ExprId], conversion: &ConversionState<'_>) -> BTreeSet<String> {
    let sources = conversion.excluded_ones.iter().filter_map(|name| conversion.symbolic_dims.get(name));
    let declared_dim = |&(var, axis): &(ExprId, usize)| {
        let position = params.iter().position(|&param| param == var)?;
        signature.inputs.get(position)?.dims.as_ref()?.get(axis)?.name()
    };
    sources.filter_map(declared_dim).map(|name| name.to_string()).collect()
}

/// Checks that the opsets are supported; an opset newer than the supported range only causes a warning.
fn check_versions(model: &ModelProto, nodes: &[FlatNode]) -> Result<Vec<Diagnostic>, Vec<Diagnostic>> {
    let standard_nodes = nodes.iter().filter(|n| is_standard_domain(&n.proto.domain));
    let versions: BTreeSet<Option<i64>> = standard_nodes.map(|n| n.opset).collect();
    let mut warnings = Vec::new();
    for version in versions {
        let opset_error = |message: String| Diagnostic::error(codes::frontends::UNSUPPORTED_OPSET, message);
        let range = format!("supported opsets: {OLDEST_OPSET} to {NEWEST_OPSET}");
        match version {
            None => {
                return Err(vec![
                    opset_error("missing opset for the standard domain".into())
                        .note("opset_import has no entry for the standard domain"),
                ]);
            }
            Some(v) if v < OLDEST_OPSET => {
                return Err(vec![
                    opset_error(format!("unsupported opset {v}"))
                        .note(range)
                        .help("convert the model with onnx.version_converter, or export it with a newer opset"),
                ]);
            }
            Some(v) if v > NEWEST_OPSET => {
                let mut warning = opset_error(format!("opset {v} is newer than the newest supported opset"));
                warning.severity = byoc_ir::diag::Severity::Warning;
                warnings.push(
                    warning.note(range).note("operators are interpreted as defined in the newest supported opset"),
                );
            }
            Some(_) => {}
        }
    }
    if model.ir_version == 0 && model.opset_import.is_empty() && nodes.is_empty() {
        return Err(vec![invalid_model("expected an ONNX model, found data with neither a version nor nodes".into())]);
    }
    Ok(warnings)
}

/// Checks that every operator has a converter; the operators without one are reported together.
fn check_operators(nodes: &[FlatNode]) -> Result<(), Vec<Diagnostic>> {
    let mut missing_operators: BTreeMap<(&str, &str, i64), usize> = BTreeMap::new();
    let mut pending: Vec<(&NodeProto, i64)> = nodes.iter().map(|node| (&node.proto, node.opset.unwrap_or(0))).collect();
    let mut has_converter: HashMap<(&str, &str, i64), bool> = HashMap::new();
    let mut ticks = Ticks::every(1 << 8);
    while let Some((proto, version)) = pending.pop() {
        if ticks.is_requested() {
            cancel::check(|| "the operators of the model were being checked".to_owned())
                .map_err(|reason| vec![reason])?;
        }
        let subgraphs = proto.attribute.iter().filter_map(|attribute| attribute.g.as_deref());
        pending.extend(subgraphs.flat_map(|graph| &graph.node).map(|node| (node, version)));
        let domain = if is_standard_domain(&proto.domain) { STANDARD_DOMAIN } else { proto.domain.as_str() };
        let has_converter = has_converter
            .entry((proto.op_type.as_str(), domain, version))
            .or_insert_with(|| ops::converter(domain, &proto.op_type, version).is_some());
        if !*has_converter {
            *missing_operators.entry((proto.op_type.as_str(), domain, version)).or_default() += 1;
        }
    }
    if missing_operators.is_empty() {
        return Ok(());
    }
    let mut error = Diagnostic::error(
        codes::frontends::UNSUPPORTED_OPERATOR,
        match missing_operators.len() {
            1 => "the model has an unsupported operator".to_owned(),
            n => format!("the model has {n} unsupported operators"),
        },
    );
    let mut suggested_name = None;
    let omitted = missing_operators.len().saturating_sub(MAX_REPORTED);
    for ((op, domain, version), count) in missing_operators.into_iter().take(MAX_REPORTED) {
        let times = if count == 1 { "once".to_owned() } else { format!("{count} times") };
        error = error.note(format!("{op} (domain {domain}, opset {version}), {times}"));
        if suggested_name.is_none() {
            suggested_name = nearest(op, ops::names(domain)).filter(|suggestion| *suggestion != op);
        }
    }
    if omitted > 0 {
        error = error.note(format!("{omitted} more operators"));
    }
    Err(vec![error.help(match suggested_name {
        Some(suggestion) => {
            format!("did you mean \"{suggestion}\"? Otherwise export the model without these operators")
        }
        None => "export the model without these operators, or with functions composed of standard operators".to_owned(),
    })])
}

fn convert_node(conversion: &mut ConversionState<'_>, flat: &FlatNode, position: usize) -> Result<()> {
    let proto = &flat.proto;
    let version = flat.opset.unwrap_or(0);
    let label = if proto.name.is_empty() { format!("{}_{position}", proto.op_type) } else { proto.name.clone() };
    let mut inputs = Vec::with_capacity(proto.input.len());
    for name in &proto.input {
        let value = if name.is_empty() { None } else { conversion.value(name)? };
        if value.is_none() && !name.is_empty() {
            return Err(Box::new(
                invalid_model(format!(
                    "node \"{label}\" ({}) reads \"{name}\", which no earlier node produces",
                    proto.op_type
                ))
                .note("the nodes of a graph must be in topological order"),
            ));
        }
        inputs.push(value);
    }
    let source = Source { name: label.as_str().into(), op: proto.op_type.as_str().into() };
    let origin = conversion.builder.module.origins.add_source(source);
    let converter = ops::converter(&proto.domain, &proto.op_type, version).ok_or_else(|| {
        let message = format!("unsupported operator {} (opset {version})", proto.op_type);
        Box::new(Diagnostic::error(codes::frontends::UNSUPPORTED_OPERATOR, message))
    })?;
    if is_standard_domain(&proto.domain) {
        for (i, value) in inputs.iter().enumerate() {
            let ty = value.map(|value| conversion.builder.module.ty(value));
            let Some(ty) = ty.and_then(Type::as_tensor) else { continue };
            schema::check_input(&proto.op_type, i, ty.dtype).map_err(|message| {
                node_error(Diagnostic::error(codes::frontends::BAD_NODE, message), &label, &proto.op_type)
            })?;
        }
    }
    let first_node = conversion.builder.module.nodes.len();
    let first_warning = conversion.warnings.len();
    let mut node = Node::new(conversion, proto, version, inputs, origin);
    let outputs = converter(&mut node).map_err(|error| node_error(*error, &label, &proto.op_type))?;
    for warning in &mut conversion.warnings[first_warning..] {
        warning.message = node_message(&label, &proto.op_type, &warning.message);
    }
    conversion.release_folded(proto, &outputs, first_node);
    for (i, name) in proto.output.iter().enumerate().filter(|(_, name)| !name.is_empty()) {
        let Some(&value) = outputs.get(i) else {
            let message = format!("unsupported output {i} (\"{name}\")");
            let error = Diagnostic::error(codes::frontends::BAD_NODE, message);
            return Err(node_error(error, &label, &proto.op_type));
        };
        conversion.bind_name(name, value).map_err(|error| node_error(*error, &label, &proto.op_type))?;
    }
    Ok(())
}

/// Prefixes a diagnostic with the node. An error from the type relation of a Relay operator is mapped to a frontend
/// code.
fn node_error(mut error: Diagnostic, label: &str, op: &str) -> Error {
    let process_codes = [codes::runtime::OUT_OF_MEMORY, codes::runtime::CANCELLED, codes::runtime::TIMED_OUT];
    if !(500..600).contains(&error.code.0) && !process_codes.contains(&error.code) {
        error.code = codes::frontends::BAD_NODE;
    }
    error.message = node_message(label, op, &error.message);
    Box::new(error)
}

fn node_message(label: &str, op: &str, message: &str) -> String {
    format!("node \"{label}\" ({op}): {message}")
}
