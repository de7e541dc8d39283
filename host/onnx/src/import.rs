//! Conversion of a model to a module: checks the opsets and operators, then converts the nodes in order.

use super::external::ExternalFiles;
use super::functions::flatten;
use super::graph::{DEFAULT_VERSION, FlatNode, nested_nodes};
use super::node::Node;
use super::ops::strings;
use super::proto::{ModelProto, NodeProto, STANDARD_DOMAIN, is_standard_domain};
use super::state::{ConversionState, Error, Result};
use super::{NEWEST_OPSET, OLDEST_OPSET, invalid_model, model_signature, ops, schema, sources};
use byoc_ir::cancel::{self, Ticks};
use byoc_ir::diag::{Diagnostic, MAX_REPORTED, Reports, Severity, codes, list, nearest};
use byoc_ir::interface::{Identifiers, LoadOptions, Loaded, PortKind, Signature, bind};
use byoc_ir::ir::{ExprId, OriginId, Origins, Source, Type};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Converts a model to a module.
pub fn convert(
    mut model: ModelProto,
    options: &LoadOptions,
    external: Option<&ExternalFiles>,
) -> Result<Loaded, Vec<Diagnostic>> {
    let single_diagnostic = |d: Diagnostic| vec![d];
    let signature = model_signature(&model)?.with_given(options);
    let (nodes, has_moved) = flatten(&mut model).map_err(single_diagnostic)?;
    if has_moved {
        tracing::info!(target: "byoc::onnx", "the nodes of the model are not in topological order, and were sorted");
    }
    let graph = model.graph.take().unwrap_or_default();
    let warnings = check_versions(&model, &nodes)?;
    check_operators(&nodes)?;
    let (types, bound) = bind(&signature, options)?;

    let mut conversion = ConversionState::new(&graph, external, convert_node)?;
    conversion.warnings = warnings;
    conversion.excludes_ones = options.exclude_ones;
    conversion.host_operators = options.host_operators;
    let defaults = conversion.take_defaults(&signature).map_err(|d| vec![*d])?;
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
        params.push(var);
    }
    for (i, port) in signature.inputs.iter().enumerate().filter(|(_, port)| port.kind != PortKind::Part) {
        let value = conversion.input_value(port.kind, &params[i..]).map_err(|d| vec![*d])?;
        conversion.bind_name(&port.name, value).map_err(|d| vec![*d])?;
    }
    for (position, node) in nodes.iter().enumerate() {
        cancel::check(|| format!("{position} of {} model nodes had been converted", nodes.len()))
            .map_err(single_diagnostic)?;
        convert_node(&mut conversion, node, position).map_err(|d| vec![*d])?;
    }
    let no_node = FlatNode { proto: NodeProto::default(), opset: None, graphs: Vec::new() };
    let origin = Origins::none();
    let mut results = Vec::new();
    for port in signature.outputs.iter().filter(|port| port.kind != PortKind::Part) {
        let result = conversion.value(&port.name).map_err(|d| vec![*d])?.ok_or_else(|| {
            let message = format!("output \"{}\" is neither the result of a node nor an input", port.name);
            vec![Diagnostic::error(codes::frontends::MISSING_VALUE, message)]
        })?;
        let result = ops::output(&mut Node::new(&mut conversion, &no_node, Vec::new(), origin), port, result);
        let parts = result.and_then(|result| conversion.output_parts(port, result));
        results.extend(parts.map_err(|d| vec![*d])?);
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
    let digest = String::new();
    Ok(Loaded {
        module: builder.module,
        signature,
        defaults,
        bound,
        excluded_ones,
        warnings,
        digest,
        is_self_contained: true,
    })
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
    let standard_nodes = nested_nodes(nodes).filter(|n| is_standard_domain(&n.proto.domain));
    let versions: BTreeSet<Option<i64>> = standard_nodes.map(|n| n.opset).collect();
    let mut warnings = check_domains(nodes)?;
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
                warning.severity = Severity::Warning;
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

/// Checks the domains that the model does not import: a domain with converters only causes a warning.
fn check_domains(nodes: &[FlatNode]) -> Result<Vec<Diagnostic>, Vec<Diagnostic>> {
    let mut domains: BTreeMap<&str, (usize, &FlatNode)> = BTreeMap::new();
    for (position, node) in nested_nodes(nodes).enumerate() {
        if node.opset.is_none() && !is_standard_domain(&node.proto.domain) {
            domains.entry(&node.proto.domain).or_insert((position, node));
        }
    }
    let (mut warnings, mut errors) = (Vec::new(), Reports::default());
    for (domain, (position, node)) in domains {
        let label = node.label(position);
        let message = format!("node \"{label}\" ({}): the model does not import domain {domain}", node.proto.op_type);
        let mut diagnostic = Diagnostic::error(codes::frontends::UNKNOWN_DOMAIN, message);
        if ops::domains().any(|known_domain| known_domain == domain) {
            diagnostic.severity = Severity::Warning;
            let note = format!("its operators are interpreted as defined in version {DEFAULT_VERSION}");
            warnings.push(diagnostic.note(note));
        } else {
            let known_domains = list(ops::domains(), ", ");
            let help = "export the model without the operators of this domain, or with functions that define them";
            errors.add(|| diagnostic.note(format!("supported domains: {known_domains}")).help(help));
        }
    }
    if errors.is_empty() { Ok(warnings) } else { Err(errors.into_vec()) }
}

/// Checks that every operator has a converter; the operators without one are reported together.
fn check_operators(nodes: &[FlatNode]) -> Result<(), Vec<Diagnostic>> {
    let mut missing_operators: BTreeMap<(&str, &str, i64), (usize, String)> = BTreeMap::new();
    let mut has_converter: HashMap<(&str, &str, i64), bool> = HashMap::new();
    let mut ticks = Ticks::every(1 << 8);
    for (position, node) in nested_nodes(nodes).enumerate() {
        if ticks.is_requested() {
            cancel::check(|| "the operators of the model were being checked".to_owned())
                .map_err(|reason| vec![reason])?;
        }
        let proto = &node.proto;
        let domain = if is_standard_domain(&proto.domain) { STANDARD_DOMAIN } else { proto.domain.as_str() };
        let key = (proto.op_type.as_str(), domain, node.version());
        let has_converter = has_converter
            .entry(key)
            .or_insert_with(|| ops::converter(domain, &proto.op_type, node.version()).is_some());
        if !*has_converter {
            missing_operators.entry(key).or_insert_with(|| (0, node.label(position))).0 += 1;
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
    let (mut suggested_name, mut foreign) = (None, None);
    let omitted = missing_operators.len().saturating_sub(MAX_REPORTED);
    for ((op, domain, version), (count, first)) in missing_operators.into_iter().take(MAX_REPORTED) {
        let times = if count == 1 { "once".to_owned() } else { format!("{count} times, first") };
        error = error.note(format!("{op} (domain {domain}, opset {version}), {times} in node \"{first}\""));
        if !ops::domains().any(|known| known == domain) {
            foreign = foreign.or(Some(domain.to_owned()));
        }
        if suggested_name.is_none() {
            suggested_name = nearest(op, ops::names(domain)).filter(|suggestion| *suggestion != op);
        }
    }
    if omitted > 0 {
        error = error.note(format!("{omitted} more operators"));
    }
    Err(vec![error.help(match (suggested_name, foreign) {
        (Some(suggestion), _) => {
            format!("did you mean \"{suggestion}\"? Otherwise export the model without these operators")
        }
        (None, Some(domain)) => format!(
            "select the backend whose plugin declares the operators of {domain} with --backend NAME; otherwise export \
             the model without these operators, or with functions composed of standard operators"
        ),
        (None, None) => {
            "export the model without these operators, or with functions composed of standard operators".to_owned()
        }
    })])
}

fn convert_node(conversion: &mut ConversionState<'_>, flat: &FlatNode, position: usize) -> Result<()> {
    let proto = &flat.proto;
    let label = flat.label(position);
    let mut inputs = Vec::with_capacity(proto.input.len());
    for name in &proto.input {
        let value = if name.is_empty() { None } else { conversion.value(name)? };
        if value.is_none() && !name.is_empty() {
            let message = format!(
                "node \"{label}\" ({}) reads \"{name}\", which is neither the result of a node, nor an input, nor an \
                 initializer",
                proto.op_type
            );
            return Err(Box::new(Diagnostic::error(codes::frontends::MISSING_VALUE, message)));
        }
        inputs.push(value);
    }
    let origin = add_sources(conversion, proto, &label);
    let mut converter = ops::converter(&proto.domain, &proto.op_type, flat.version()).ok_or_else(|| {
        let message = format!("unsupported operator {} (opset {})", proto.op_type, flat.version());
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
    let has_strings = inputs.iter().flatten().any(|&input| conversion.has_strings(input));
    let mut node = Node::new(conversion, flat, inputs, origin);
    let outputs = if has_strings {
        if let Some(reads_strings) = strings::converter(&proto.op_type) {
            converter = reads_strings;
        }
        strings::convert(&mut node, &proto.op_type, converter)
    } else {
        converter(&mut node)
    };
    let outputs = outputs.map_err(|error| node_error(*error, &label, &proto.op_type))?;
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

/// Records the node as the origin of its expressions, or the operators that it combines if byoc wrote it.
fn add_sources(conversion: &mut ConversionState<'_>, proto: &NodeProto, label: &str) -> OriginId {
    let origins = &mut conversion.builder.module.origins;
    let combined = sources::parse(&proto.doc_string);
    let added: Vec<OriginId> = combined.into_iter().map(|source| origins.add_source(source)).collect();
    match added.is_empty() {
        true => origins.add_source(Source { name: label.into(), op: proto.op_type.as_str().into() }),
        false => origins.union_all(added),
    }
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
