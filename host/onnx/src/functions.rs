//! Model-defined functions (`ModelProto.functions`): a node with a function's name and domain is replaced by the
//! function's nodes, with unique names and resolved attribute references.

use super::invalid_model;
use super::proto::{
    AttributeProto, Bytes, FunctionProto, ModelProto, NodeProto, OperatorSetIdProto, is_standard_domain,
};
use byoc_ir::cancel::{self, Ticks};
use byoc_ir::diag::{Diagnostic, codes};
use byoc_ir::tensor::memory;
use prost::Message;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

/// Node after the expansion of function calls, with the opset version of its domain.
pub struct FlatNode {
    /// Node with unique names in the graph.
    pub proto: NodeProto,
    /// Opset version of the node's domain; `None` if the model does not import the domain.
    pub opset: Option<i64>,
}

/// Maximum nesting depth of function calls; deeper nesting is treated as recursion.
const MAX_DEPTH: usize = 64;
/// Maximum number of expanded nodes; guards against functions whose expansion grows exponentially.
const MAX_NODES: usize = 500_000;
/// Maximum total size of the names and attributes of the expanded nodes, in bytes; also guards against exponential
/// growth.
const MAX_BYTES: usize = 512 << 20;

type Functions<'m> = HashMap<(&'m str, &'m str), &'m FunctionProto>;

/// Node count and size of expanded functions.
#[derive(Clone, Copy, Default)]
struct ExpansionSize {
    nodes: usize,
    bytes: usize,
}

impl ExpansionSize {
    /// Returns the size of the names that a call maps to names of the graph, without the function's nodes.
    fn of_call(function: &FunctionProto) -> ExpansionSize {
        const BYTES_PER_NAME: usize = 4 * size_of::<&str>();
        let names = function.input.len() + function.output.len() + function.attribute_proto.len();
        ExpansionSize { nodes: 0, bytes: names * BYTES_PER_NAME }
    }

    /// Returns the size of a single node. The factor of 2 accounts for unique names, which are longer; `raw_data` is
    /// shared with the file and not counted.
    fn of(node: &NodeProto) -> ExpansionSize {
        let raw_bytes = |a: &AttributeProto| a.t.as_ref().and_then(|t| t.raw_data.as_ref()).map_or(0, Bytes::len);
        let attribute_bytes: usize = node.attribute.iter().map(raw_bytes).sum();
        ExpansionSize {
            nodes: 1,
            bytes: size_of::<NodeProto>() + 2 * node.encoded_len().saturating_sub(attribute_bytes),
        }
    }

    fn add(&mut self, other: ExpansionSize) {
        self.nodes = self.nodes.saturating_add(other.nodes);
        self.bytes = self.bytes.saturating_add(other.bytes);
    }
}

/// Rejects functions whose expansion would exceed the limits, before any node is created.
fn check_size(functions: &Functions<'_>, nodes: &[NodeProto]) -> Result<(), Diagnostic> {
    let callee = |node: &NodeProto| functions.get(&(node.domain.as_str(), node.op_type.as_str())).copied();
    let key = |function: &FunctionProto| std::ptr::from_ref(function);
    // `None` marks a function whose nodes are being counted.
    let mut sizes_by_function: HashMap<*const FunctionProto, Option<ExpansionSize>> = HashMap::new();
    let mut total_size = ExpansionSize::default();
    let mut ticks = Ticks::every(1 << 8);
    for function in nodes.iter().filter_map(callee) {
        // Stack of functions whose nodes are being counted, each with its next node and its partial sum.
        let mut stack: Vec<(&FunctionProto, usize, ExpansionSize)> = Vec::new();
        if let Entry::Vacant(slot) = sizes_by_function.entry(key(function)) {
            slot.insert(None);
            stack.push((function, 0, ExpansionSize::of_call(function)));
        }
        while let Some((function, next, sum)) = stack.last_mut() {
            if ticks.is_requested() {
                check_cancelled()?;
            }
            let Some(node) = function.node.get(*next) else {
                sizes_by_function.insert(key(function), Some(*sum));
                stack.pop();
                continue;
            };
            match callee(node).map(|callee_proto| (callee_proto, sizes_by_function.get(&key(callee_proto)))) {
                None => sum.add(ExpansionSize::of(node)),
                Some((_, Some(Some(callee_proto)))) => sum.add(*callee_proto),
                Some((callee_proto, Some(None))) => return Err(recursion_error(callee_proto)),
                Some((callee_proto, None)) => {
                    sizes_by_function.insert(key(callee_proto), None);
                    stack.push((callee_proto, 0, ExpansionSize::of_call(callee_proto)));
                    continue;
                }
            }
            *next += 1;
        }
        total_size.add(sizes_by_function.get(&key(function)).copied().flatten().unwrap_or_default());
    }
    if total_size.nodes > MAX_NODES {
        let message =
            format!("model functions: expected at most {MAX_NODES} nodes after expansion, found {}", total_size.nodes);
        return Err(invalid_model(message));
    }
    let limit = MAX_BYTES.min(memory::available());
    if total_size.bytes > limit {
        let (bytes, limit) = (memory::Bytes(total_size.bytes), memory::Bytes(limit));
        return Err(invalid_model(format!(
            "model functions: expected at most {limit} of nodes after expansion, found {bytes}"
        )));
    }
    Ok(())
}

fn check_cancelled() -> Result<(), Diagnostic> {
    cancel::check(|| "the functions of the model were being expanded".to_owned())
}

fn recursion_error(function: &FunctionProto) -> Diagnostic {
    invalid_model(format!("model function \"{}\" calls itself", function.name))
}

/// Opset versions by domain.
type Opsets = BTreeMap<String, i64>;

fn opsets(imports: &[OperatorSetIdProto]) -> Opsets {
    let domain = |d: &str| if is_standard_domain(d) { String::new() } else { d.to_owned() };
    imports.iter().map(|import| (domain(&import.domain), import.version)).collect()
}

fn version(opsets: &Opsets, domain: &str) -> Option<i64> {
    opsets.get(if is_standard_domain(domain) { "" } else { domain }).copied()
}

struct PendingNode {
    node: NodeProto,
    opsets: Rc<Opsets>,
    depth: usize,
}

/// Returns the nodes of the graph with all function calls expanded, each with its opset version.
///
/// # Errors
/// If a function calls itself, a call does not match its function, or the expansion exceeds `MAX_NODES` or `MAX_BYTES`.
pub fn flatten(model: &mut ModelProto) -> Result<Vec<FlatNode>, Diagnostic> {
    let functions: Functions<'_> = model.functions.iter().map(|f| ((f.domain.as_str(), f.name.as_str()), f)).collect();
    let main = Rc::new(opsets(&model.opset_import));
    let nodes = std::mem::take(&mut model.graph.get_or_insert_default().node);
    check_size(&functions, &nodes)?;

    let mut flat = Vec::with_capacity(nodes.len());
    let mut calls = 0usize;
    let mut ticks = Ticks::every(1 << 8);
    let mut opsets_by_function: HashMap<*const FunctionProto, Rc<Opsets>> = HashMap::new();
    let mut worklist: Vec<PendingNode> =
        nodes.into_iter().rev().map(|node| PendingNode { node, opsets: main.clone(), depth: 0 }).collect();
    while let Some(PendingNode { node, opsets: call_opsets, depth }) = worklist.pop() {
        if ticks.is_requested() {
            check_cancelled()?;
        }
        let Some(function) = functions.get(&(node.domain.as_str(), node.op_type.as_str())) else {
            let opset = version(&call_opsets, &node.domain);
            flat.push(FlatNode { proto: node, opset });
            continue;
        };
        if depth == MAX_DEPTH {
            return Err(recursion_error(function));
        }
        calls += 1;
        let callee_opsets = match function.opset_import.as_slice() {
            [] => call_opsets,
            imports => {
                let own_opsets = opsets_by_function.entry(std::ptr::from_ref(*function));
                own_opsets.or_insert_with(|| Rc::new(opsets(imports))).clone()
            }
        };
        check_cancelled()?;
        let expansion = expand(&node, function, calls)?;
        worklist.extend(expansion.into_iter().rev().map(|node| PendingNode {
            node,
            opsets: callee_opsets.clone(),
            depth: depth + 1,
        }));
    }
    Ok(flat)
}

/// Returns the nodes of `function` that replace `call`, in order.
fn expand(call: &NodeProto, function: &FunctionProto, call_index: usize) -> Result<Vec<NodeProto>, Diagnostic> {
    if call.input.len() > function.input.len() || call.output.len() > function.output.len() {
        return Err(Diagnostic::error(
            codes::frontends::BAD_NODE,
            format!(
                "node \"{0}\": expected at most {4} and {5} inputs and outputs for function \"{3}\", found {1} and {2}",
                call.name,
                call.input.len(),
                call.output.len(),
                function.name,
                function.input.len(),
                function.output.len()
            ),
        ));
    }
    let mut names: HashMap<&str, &str> = function.input.iter().map(|formal| (formal.as_str(), "")).collect();
    // Of an input or attribute that occurs twice, the first counts.
    let input_positions: HashMap<&str, usize> =
        function.input.iter().enumerate().rev().map(|(position, formal)| (formal.as_str(), position)).collect();
    let defaults = function.attribute_proto.iter().rev();
    let attributes = Attributes {
        arguments: call.attribute.iter().rev().map(|a| (a.name.as_str(), a)).collect(),
        defaults: defaults.map(|a| (a.name.as_str(), a)).collect(),
    };
    for (formal, actual) in function.input.iter().zip(&call.input) {
        names.insert(formal, actual);
    }
    for (formal, actual) in function.output.iter().zip(&call.output) {
        if !actual.is_empty() {
            names.insert(formal, actual);
        }
    }
    // A result that is also an input is copied by an Identity node, whose output has the caller's name.
    let mut nodes = Vec::with_capacity(function.node.len());
    for (formal, actual) in function.output.iter().zip(&call.output) {
        if let Some(&index) = input_positions.get(formal.as_str()) {
            let input = call.input.get(index).cloned().unwrap_or_default();
            names.insert(formal, call.input.get(index).map_or("", String::as_str));
            nodes.push(NodeProto {
                op_type: "Identity".into(),
                input: vec![input],
                output: vec![actual.clone()],
                name: call.name.clone(),
                ..NodeProto::default()
            });
        }
    }
    let rename = |name: &String| match names.get(name.as_str()) {
        _ if name.is_empty() => String::new(),
        Some(actual) => (*actual).to_owned(),
        None => format!("{}#{call_index}/{name}", call.name),
    };
    for node in &function.node {
        let name = match (call.name.is_empty(), node.name.is_empty()) {
            (false, false) => format!("{}/{}", call.name, node.name),
            (false, true) => call.name.clone(),
            (true, _) => node.name.clone(),
        };
        nodes.push(NodeProto {
            name,
            input: node.input.iter().map(rename).collect(),
            output: node.output.iter().map(rename).collect(),
            attribute: node.attribute.iter().filter_map(|a| attributes.resolve(a)).collect(),
            ..node.clone()
        });
    }
    Ok(nodes)
}

/// Attributes of a call, and the defaults of the function, by name.
struct Attributes<'m> {
    arguments: HashMap<&'m str, &'m AttributeProto>,
    defaults: HashMap<&'m str, &'m AttributeProto>,
}

impl Attributes<'_> {
    /// Resolves an attribute reference; `None` if the call omits the referenced attribute and the attribute has no
    /// default.
    fn resolve(&self, attribute: &AttributeProto) -> Option<AttributeProto> {
        let attribute_name = attribute.ref_attr_name.as_str();
        if attribute_name.is_empty() {
            return Some(attribute.clone());
        }
        let value = self.arguments.get(attribute_name).or_else(|| self.defaults.get(attribute_name))?;
        Some(AttributeProto { name: attribute.name.clone(), ..AttributeProto::clone(value) })
    }
}
