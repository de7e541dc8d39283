//! Model-defined functions (`ModelProto.functions`): a node with a function's name and domain is replaced by the
//! function's nodes, with unique names and resolved attribute references, in the main graph and in the graphs of
//! attributes.

use super::graph::{FlatGraph, FlatNode, sort};
use super::invalid_model;
use super::proto::{
    AttributeProto, Bytes, FunctionProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, is_standard_domain,
};
use byoc_ir::cancel::{self, Ticks};
use byoc_ir::diag::{Diagnostic, codes};
use byoc_ir::tensor::memory;
use prost::Message;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::iter::Peekable;
use std::rc::Rc;

/// Maximum nesting depth of function calls; deeper nesting is treated as recursion.
const MAX_DEPTH: usize = 64;
/// Maximum nesting depth of subgraphs.
const MAX_NESTING: usize = 64;
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
fn check_size<'m>(functions: &Functions<'m>, nodes: &'m [NodeProto]) -> Result<(), Diagnostic> {
    let callee = |node: &NodeProto| functions.get(&(node.domain.as_str(), node.op_type.as_str())).copied();
    let key = |function: &FunctionProto| std::ptr::from_ref(function);
    // `None` marks a function whose nodes are being counted.
    let mut sizes_by_function: HashMap<*const FunctionProto, Option<ExpansionSize>> = HashMap::new();
    let mut total_size = ExpansionSize::default();
    let mut ticks = Ticks::every(1 << 8);
    for function in NestedNodes::of(nodes).filter_map(|(node, _)| callee(node)) {
        // Stack of functions whose nodes are being counted, each with its remaining nodes and its partial sum.
        let mut stack: Vec<(&FunctionProto, Peekable<NestedNodes<'_>>, ExpansionSize)> = Vec::new();
        let nodes = |function: &'m FunctionProto| NestedNodes::of(&function.node).peekable();
        if let Entry::Vacant(slot) = sizes_by_function.entry(key(function)) {
            slot.insert(None);
            stack.push((function, nodes(function), ExpansionSize::of_call(function)));
        }
        while let Some((function, remaining, sum)) = stack.last_mut() {
            if ticks.is_requested() {
                check_cancelled()?;
            }
            let Some(&(node, is_nested)) = remaining.peek() else {
                sizes_by_function.insert(key(function), Some(*sum));
                stack.pop();
                continue;
            };
            match callee(node).map(|callee_proto| (callee_proto, sizes_by_function.get(&key(callee_proto)))) {
                // The size of a node includes the graphs of its attributes.
                None if is_nested => {}
                None => sum.add(ExpansionSize::of(node)),
                Some((_, Some(Some(callee_proto)))) => sum.add(*callee_proto),
                Some((callee_proto, Some(None))) => return Err(recursion_error(callee_proto)),
                Some((callee_proto, None)) => {
                    sizes_by_function.insert(key(callee_proto), None);
                    stack.push((callee_proto, nodes(callee_proto), ExpansionSize::of_call(callee_proto)));
                    continue;
                }
            }
            remaining.next();
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

/// Iterator over nodes and the nodes of their graphs, each with `true` if it is in a graph of another node.
struct NestedNodes<'m> {
    pending: Vec<(std::slice::Iter<'m, NodeProto>, bool)>,
}

impl<'m> NestedNodes<'m> {
    fn of(nodes: &'m [NodeProto]) -> NestedNodes<'m> {
        NestedNodes { pending: vec![(nodes.iter(), false)] }
    }
}

impl<'m> Iterator for NestedNodes<'m> {
    type Item = (&'m NodeProto, bool);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let (nodes, is_nested) = self.pending.last_mut()?;
            let Some(node) = nodes.next() else {
                self.pending.pop();
                continue;
            };
            let item = (node, *is_nested);
            self.pending.extend(node.attribute.iter().filter_map(|a| a.g.as_deref()).map(|g| (g.node.iter(), true)));
            return Some(item);
        }
    }
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

/// Returns the nodes of the graph in topological order with all function calls expanded, each with its opset version,
/// and whether the order is another than that of the file.
///
/// # Errors
/// If a function calls itself, a call does not match its function, the nodes form a cycle, graphs are nested too deeply,
/// or the expansion exceeds `MAX_NODES` or `MAX_BYTES`.
pub fn flatten(model: &mut ModelProto) -> Result<(Vec<FlatNode>, bool), Diagnostic> {
    let nodes = std::mem::take(&mut model.graph.get_or_insert_default().node);
    let functions: Functions<'_> = model.functions.iter().map(|f| ((f.domain.as_str(), f.name.as_str()), f)).collect();
    check_size(&functions, &nodes)?;
    let mut expansion = Expansion {
        functions,
        opsets_by_function: HashMap::new(),
        calls: 0,
        has_moved: false,
        ticks: Ticks::every(1 << 8),
    };
    let opsets = Rc::new(opsets(&model.opset_import));
    let flat = expansion.flatten(nodes, &opsets, 0, 0)?;
    Ok((flat, expansion.has_moved))
}

/// Expansion of the function calls of a model.
struct Expansion<'m> {
    functions: Functions<'m>,
    opsets_by_function: HashMap<*const FunctionProto, Rc<Opsets>>,
    /// Number of calls so far.
    calls: usize,
    /// True if a node was not in topological order.
    has_moved: bool,
    ticks: Ticks,
}

impl Expansion<'_> {
    /// Expands the calls among the nodes of a graph, which is at nesting depth `nesting` and the body of `depth` nested
    /// function calls.
    fn flatten(
        &mut self,
        nodes: Vec<NodeProto>,
        opsets: &Rc<Opsets>,
        depth: usize,
        nesting: usize,
    ) -> Result<Vec<FlatNode>, Diagnostic> {
        if nesting > MAX_NESTING {
            return Err(invalid_model(format!(
                "expected at most {MAX_NESTING} levels of nested subgraphs, found {nesting}"
            )));
        }
        let mut flat = Vec::with_capacity(nodes.len());
        let mut worklist: Vec<PendingNode> =
            nodes.into_iter().rev().map(|node| PendingNode { node, opsets: opsets.clone(), depth }).collect();
        while let Some(PendingNode { node, opsets, depth }) = worklist.pop() {
            if self.ticks.is_requested() {
                check_cancelled()?;
            }
            match self.functions.get(&(node.domain.as_str(), node.op_type.as_str())).copied() {
                None => flat.push(self.flat_node(node, &opsets, depth, nesting)?),
                Some(function) if depth == MAX_DEPTH => return Err(recursion_error(function)),
                Some(function) => {
                    self.calls += 1;
                    let opsets = match function.opset_import.as_slice() {
                        [] => opsets,
                        imports => {
                            let own_opsets = self.opsets_by_function.entry(std::ptr::from_ref(function));
                            own_opsets.or_insert_with(|| Rc::new(self::opsets(imports))).clone()
                        }
                    };
                    check_cancelled()?;
                    let body = expand(&node, function, self.calls)?.into_iter().rev();
                    worklist.extend(body.map(|node| PendingNode { node, opsets: opsets.clone(), depth: depth + 1 }));
                }
            }
        }
        let (sorted, has_moved) = sort(flat)?;
        self.has_moved |= has_moved;
        Ok(sorted)
    }

    /// Moves the graphs out of the attributes of a node, and expands the calls in them.
    fn flat_node(
        &mut self,
        mut proto: NodeProto,
        opsets: &Rc<Opsets>,
        depth: usize,
        nesting: usize,
    ) -> Result<FlatNode, Diagnostic> {
        let mut graphs = Vec::new();
        for attribute in &mut proto.attribute {
            if let Some(mut graph) = attribute.g.take() {
                let nodes = self.flatten(std::mem::take(&mut graph.node), opsets, depth, nesting + 1)?;
                graphs.push((attribute.name.clone(), FlatGraph { proto: *graph, nodes }));
            }
        }
        let opset = version(opsets, &proto.domain);
        Ok(FlatNode { proto, opset, graphs })
    }
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
        let mut node = NodeProto { name, ..node.clone() };
        rename_node(&mut node, &rename, &attributes);
        nodes.push(node);
    }
    Ok(nodes)
}

/// Renames the values of a node and of the graphs in its attributes, and resolves the attribute references.
fn rename_node(node: &mut NodeProto, rename: &impl Fn(&String) -> String, attributes: &Attributes<'_>) {
    let rename_in_place = |name: &mut String| *name = rename(name);
    let mut pending = vec![node];
    while let Some(node) = pending.pop() {
        node.input.iter_mut().chain(&mut node.output).for_each(rename_in_place);
        node.attribute = node.attribute.iter().filter_map(|a| attributes.resolve(a)).collect();
        for GraphProto { node, initializer, sparse_initializer, input, output, .. } in
            node.attribute.iter_mut().filter_map(|attribute| attribute.g.as_deref_mut())
        {
            input.iter_mut().chain(output).for_each(|port| rename_in_place(&mut port.name));
            let sparse_values = sparse_initializer.iter_mut().filter_map(|sparse| sparse.values.as_mut());
            initializer.iter_mut().chain(sparse_values).for_each(|tensor| rename_in_place(&mut tensor.name));
            pending.extend(node);
        }
    }
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
