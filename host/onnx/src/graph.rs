//! Graphs as converters read them: nodes in topological order, with all calls of model-defined functions expanded.

use super::proto::{GraphProto, NodeProto};
use byoc_ir::cancel::{self, Ticks};
use byoc_ir::diag::{Diagnostic, codes, list, plural};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet};

/// Version of a domain that the model does not import.
pub const DEFAULT_VERSION: i64 = 1;

/// Node after the expansion of function calls, with the opset version of its domain.
pub struct FlatNode {
    /// Node with unique names in the graph; the graphs of its attributes are in `graphs`.
    pub proto: NodeProto,
    /// Opset version of the node's domain; `None` if the model does not import the domain.
    pub opset: Option<i64>,
    /// Graphs of the attributes, by the name of the attribute.
    pub graphs: Vec<(String, FlatGraph)>,
}

/// Graph of an attribute.
pub struct FlatGraph {
    /// Graph without its nodes.
    pub proto: GraphProto,
    /// Nodes in topological order.
    pub nodes: Vec<FlatNode>,
}

impl FlatNode {
    /// Returns the opset version whose definitions apply. Domains without an import have the oldest version.
    pub fn version(&self) -> i64 {
        self.opset.unwrap_or(DEFAULT_VERSION)
    }

    /// Returns the label of the node in messages; `position` is its position in the graph.
    pub fn label(&self, position: usize) -> String {
        if self.proto.name.is_empty() { format!("{}_{position}", self.proto.op_type) } else { self.proto.name.clone() }
    }

    /// Calls `visit` with the name of each value that the node reads, itself or in the graphs of its attributes.
    pub fn for_each_read<'n>(&'n self, mut visit: impl FnMut(&'n str)) {
        enum Step<'n> {
            Node(&'n FlatNode),
            Enter(&'n FlatGraph),
            Leave(&'n FlatGraph),
        }
        // Names that the graphs around a step define, with the number of these graphs.
        let mut local_names: HashMap<&str, usize> = HashMap::new();
        let mut pending = vec![Step::Node(self)];
        while let Some(step) = pending.pop() {
            let is_local = |name: &str| local_names.get(name).is_some_and(|&count| count > 0);
            match step {
                Step::Node(node) => {
                    let inputs = node.proto.input.iter().map(String::as_str);
                    inputs.filter(|name| !name.is_empty() && !is_local(name)).for_each(&mut visit);
                    pending.extend(node.graphs.iter().map(|(_, graph)| Step::Enter(graph)));
                }
                Step::Enter(graph) => {
                    graph.for_each_definition(|name| *local_names.entry(name).or_default() += 1);
                    let is_local = |name: &str| local_names.get(name).is_some_and(|&count| count > 0);
                    let outputs = graph.proto.output.iter().map(|output| output.name.as_str());
                    outputs.filter(|name| !is_local(name)).for_each(&mut visit);
                    pending.push(Step::Leave(graph));
                    pending.extend(graph.nodes.iter().map(Step::Node));
                }
                Step::Leave(graph) => graph.for_each_definition(|name| {
                    if let Some(count) = local_names.get_mut(name) {
                        *count -= 1;
                    }
                }),
            }
        }
    }
}

impl FlatGraph {
    /// Calls `visit` with the name of each value that the graph defines.
    fn for_each_definition<'n>(&'n self, mut visit: impl FnMut(&'n str)) {
        self.proto.input.iter().for_each(|input| visit(&input.name));
        self.proto.initializer.iter().for_each(|tensor| visit(&tensor.name));
        self.proto.sparse_initializer.iter().filter_map(|s| s.values.as_ref()).for_each(|values| visit(&values.name));
        self.nodes.iter().flat_map(|node| &node.proto.output).for_each(|name| visit(name));
    }

    /// Returns the names of the values that the graph, or a graph nested in it, reads or returns.
    pub fn read_names(&self) -> HashSet<&str> {
        let mut names: HashSet<&str> = self.proto.output.iter().map(|output| output.name.as_str()).collect();
        for node in &self.nodes {
            node.for_each_read(|name| {
                names.insert(name);
            });
        }
        names
    }
}

/// Iterates over nodes and the nodes of the graphs nested in them.
pub fn nested_nodes(nodes: &[FlatNode]) -> impl Iterator<Item = &FlatNode> {
    let mut pending = vec![nodes.iter()];
    std::iter::from_fn(move || {
        loop {
            match pending.last_mut()?.next() {
                Some(node) => {
                    pending.extend(node.graphs.iter().map(|(_, graph)| graph.nodes.iter()));
                    return Some(node);
                }
                None => pending.pop(),
            };
        }
    })
}

/// Sorts nodes topologically: each node follows the nodes whose results it reads. Nodes in order stay where they are.
/// Returns the nodes, and whether any of them has moved.
///
/// # Errors
/// If nodes read each other's results in a cycle.
pub fn sort(nodes: Vec<FlatNode>) -> Result<(Vec<FlatNode>, bool), Diagnostic> {
    let mut ticks = Ticks::every(1 << 8);
    let mut check_cancelled = || match ticks.is_requested() {
        true => cancel::check(|| "the nodes of the model were being sorted".to_owned()),
        false => Ok(()),
    };
    let mut producers: HashMap<&str, usize> = HashMap::new();
    for (position, node) in nodes.iter().enumerate() {
        check_cancelled()?;
        for name in node.proto.output.iter().filter(|name| !name.is_empty()) {
            producers.entry(name).or_insert(position);
        }
    }
    let mut is_sorted = true;
    for (position, node) in nodes.iter().enumerate() {
        check_cancelled()?;
        node.for_each_read(|name| is_sorted &= producers.get(name).is_none_or(|&producer| producer < position));
    }
    if is_sorted {
        return Ok((nodes, false));
    }

    let mut users: Vec<Vec<usize>> = vec![Vec::new(); nodes.len()];
    let mut missing: Vec<usize> = vec![0; nodes.len()];
    for (position, node) in nodes.iter().enumerate() {
        check_cancelled()?;
        node.for_each_read(|name| {
            if let Some(&producer) = producers.get(name) {
                users[producer].push(position);
                missing[position] += 1;
            }
        });
    }
    // The ready node with the lowest position is next, so that the order changes as little as possible.
    let mut ready: BinaryHeap<Reverse<usize>> =
        missing.iter().enumerate().filter(|(_, count)| **count == 0).map(|(position, _)| Reverse(position)).collect();
    let mut order = Vec::with_capacity(nodes.len());
    while let Some(Reverse(position)) = ready.pop() {
        check_cancelled()?;
        order.push(position);
        for &user in &users[position] {
            missing[user] -= 1;
            if missing[user] == 0 {
                ready.push(Reverse(user));
            }
        }
    }
    if order.len() < nodes.len() {
        return Err(cycle_error(&nodes, &producers, &missing));
    }
    let mut nodes: Vec<Option<FlatNode>> = nodes.into_iter().map(Some).collect();
    Ok((order.into_iter().filter_map(|position| nodes[position].take()).collect(), true))
}

/// Creates the diagnostic for a cycle among the nodes that could not be sorted, for which `missing` is not 0.
fn cycle_error(nodes: &[FlatNode], producers: &HashMap<&str, usize>, missing: &[usize]) -> Diagnostic {
    let unsorted_producer = |position: usize| {
        let mut found = None;
        nodes[position].for_each_read(|name| {
            let producer = producers.get(name).copied().filter(|&producer| missing[producer] > 0);
            found = found.or(producer.map(|producer| (name, producer)));
        });
        found
    };
    // Each unsorted node reads the result of another one, so that the walk from result to producer ends in a cycle.
    let mut visited: HashMap<usize, usize> = HashMap::new();
    let mut walk: Vec<(usize, &str)> = Vec::new();
    let mut position = missing.iter().position(|&count| count > 0).unwrap_or_default();
    while !visited.contains_key(&position) {
        let Some((name, producer)) = unsorted_producer(position) else { break };
        visited.insert(position, walk.len());
        walk.push((position, name));
        position = producer;
    }
    let cycle = &walk[visited.get(&position).copied().unwrap_or_default()..];
    let reads = cycle.iter().map(|&(position, name)| {
        let node = &nodes[position];
        format!("node \"{}\" ({}) reads \"{name}\"", node.label(position), node.proto.op_type)
    });
    let message = format!(
        "node \"{}\" depends on its own result, through a cycle of {}",
        cycle.first().map(|&(position, _)| nodes[position].label(position)).unwrap_or_default(),
        plural(cycle.len(), "node"),
    );
    Diagnostic::error(codes::frontends::CYCLE, message).note(list(reads, ", "))
}
