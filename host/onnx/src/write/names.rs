//! Names of the written model, given when it is complete: nodes and values that were removed take none.
//!
//! While the model is written, each value has a number for a name. Nodes and values share one set of names, so that a node
//! and its first result have the same.

use super::values::UniqueNames;
use crate::proto::{FunctionProto, GraphProto, NodeProto};
use std::collections::HashMap;
use std::rc::Rc;

/// Origin of a name.
#[derive(Clone, Debug)]
pub enum Base {
    /// The label of a node.
    Label(String),
    /// Another result of a node: its temporary name, and the number of the result.
    Result(Rc<str>, usize),
    /// The node that reads an initializer first, and what it uses it for.
    Input,
}

/// Temporary names, and what the final ones derive from.
#[derive(Default)]
pub struct Names {
    pub unique: UniqueNames,
    bases: HashMap<Rc<str>, Base>,
    /// Names of outputs.
    fixed: HashMap<Rc<str>, Rc<str>>,
}

impl Names {
    /// Returns a temporary name.
    pub fn temporary(&mut self, base: Base) -> Rc<str> {
        // No name of a model begins so, as reserved names are looked up here as well.
        let name: Rc<str> = format!("\u{1}{}", self.bases.len()).into();
        self.bases.insert(name.clone(), base);
        name
    }

    /// Gives a value the name of an output.
    pub fn fix(&mut self, temporary: &Rc<str>, name: &str) {
        self.fixed.insert(temporary.clone(), name.into());
    }

    /// Replaces the temporary names of a model. Returns the names of the initializers, each with its position among those
    /// that were given.
    pub fn finish(self, graph: &mut GraphProto, functions: &mut [FunctionProto]) -> HashMap<Rc<str>, (usize, Rc<str>)> {
        let mut finisher = Finisher { names: self, done: HashMap::new(), node_names: HashMap::new() };
        // Constants of a function are named after the node that calls it.
        finisher.nodes(&mut graph.node);
        graph.output.iter_mut().for_each(|output| finisher.replace(&mut output.name, String::new));
        for function in functions.iter_mut() {
            function.input.iter_mut().for_each(|name| finisher.replace(name, String::new));
            finisher.nodes(&mut function.node);
            function.output.iter_mut().for_each(|name| finisher.replace(name, String::new));
        }
        finisher.done
    }
}

struct Finisher {
    names: Names,
    /// Final names by temporary names.
    done: HashMap<Rc<str>, (usize, Rc<str>)>,
    /// Final names of nodes, which differ from that of the first result if it is an output.
    node_names: HashMap<Rc<str>, Rc<str>>,
}

impl Finisher {
    /// Names the nodes of a graph in order. Subgraphs are nested at most as deep as the writer allows.
    fn nodes(&mut self, nodes: &mut [NodeProto]) {
        for node in nodes {
            let temporary: Rc<str> = node.name.as_str().into();
            let label = match self.names.bases.get(&temporary) {
                Some(Base::Label(label)) => label.clone(),
                _ => node.op_type.clone(),
            };
            let name = self.names.unique.unique(&label);
            self.set(&temporary, name.clone());
            self.node_names.insert(temporary.clone(), name.clone());
            let output = node.output.first().and_then(|output| self.names.fixed.get(output.as_str()).cloned());
            if let Some(output) = output {
                self.set(&temporary, output);
            }
            node.name = name.to_string();
            for (i, input) in node.input.iter_mut().enumerate() {
                let role = || format!("{name}.{}", input_role(&node.op_type, i));
                self.replace(input, role);
            }
            node.output.iter_mut().for_each(|output| self.replace(output, || name.to_string()));
            for graph in node.attribute.iter_mut().filter_map(|attribute| attribute.g.as_deref_mut()) {
                graph.name = format!("{name}.{}", graph.name);
                graph.input.iter_mut().for_each(|input| self.replace(&mut input.name, || name.to_string()));
                self.nodes(&mut graph.node);
                graph.output.iter_mut().for_each(|output| self.replace(&mut output.name, || name.to_string()));
            }
        }
    }

    fn set(&mut self, temporary: &str, name: Rc<str>) {
        let position = self.done.len();
        self.done.insert(temporary.into(), (position, name));
    }

    /// Replaces a temporary name; `role` is the name of an initializer that is read here first.
    fn replace(&mut self, name: &mut String, role: impl FnOnce() -> String) {
        if let Some((_, done)) = self.done.get(name.as_str()) {
            *name = done.to_string();
            return;
        }
        let Some(base) = self.names.bases.get(name.as_str()).cloned() else { return };
        let fixed = self.names.fixed.get(name.as_str()).cloned();
        let unique = match base {
            _ if fixed.is_some() => fixed.unwrap_or_default(),
            Base::Label(label) => self.names.unique.unique(&label),
            Base::Input => self.names.unique.unique(&role()),
            Base::Result(first, number) => {
                let node = self.node_names.get(&first).cloned().unwrap_or_else(|| role().into());
                self.names.unique.unique(&format!("{node}.{number}"))
            }
        };
        self.set(name, unique.clone());
        *name = unique.to_string();
    }
}

/// Returns the part of an initializer's name that tells what the node uses it for.
fn input_role(op: &str, i: usize) -> String {
    let role = match (op, i) {
        ("Conv" | "ConvTranspose" | "ConvInteger" | "Gemm" | "MatMul" | "MatMulInteger", 1) => "weight",
        ("Conv" | "ConvTranspose" | "Gemm", 2) => "bias",
        ("QuantizeLinear" | "DequantizeLinear", 0) => "values",
        ("QuantizeLinear" | "DequantizeLinear", 1) => "scale",
        ("QuantizeLinear" | "DequantizeLinear", 2) => "zero_point",
        ("Reshape" | "Expand", 1) => "shape",
        ("Unsqueeze" | "Squeeze" | "ReduceSum", 1) => "axes",
        _ => return format!("input_{i}"),
    };
    role.to_owned()
}
