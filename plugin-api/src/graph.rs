//! Graphs: representation of regions, candidates and composite bodies at the boundary.
//!
//! A graph is a list of nodes in topological order: a node reads only values of earlier nodes. A value is one tensor,
//! identified by a node and the index of one of its outputs. There are no tuples: an operator that returns a tuple has
//! several outputs, and an operator that accepts a tuple (`concatenate`) has the fields of the tuple as inputs. Every
//! attribute of an operator is present, defaults included, under Relay's name.

use crate::dtype::DType;
use abi_stable::StableAbi;
use abi_stable::std_types::{RBox, RString, RVec};
use std::fmt;

/// Data-flow graph.
#[repr(C)]
#[derive(StableAbi, Clone, Debug, Default, PartialEq)]
pub struct Graph {
    /// Global symbol of a region; name of a composite.
    pub symbol: RString,
    /// Inputs, in order. `NodeKind::Input(i)` refers to `inputs[i]`.
    pub inputs: RVec<Input>,
    /// Nodes, in topological order.
    pub nodes: RVec<Node>,
    /// Outputs, in order.
    pub outputs: RVec<ValueRef>,
    /// Attributes of the function.
    pub attrs: RVec<Attr>,
}

/// Input of a graph.
#[repr(C)]
#[derive(StableAbi, Clone, Debug, PartialEq)]
pub struct Input {
    /// Human-readable name.
    pub name: RString,
    /// Type of the tensor.
    pub ty: TensorType,
}

/// Node of a graph.
#[repr(C)]
#[derive(StableAbi, Clone, Debug, PartialEq)]
pub struct Node {
    /// Operator, composite, input or constant.
    pub kind: NodeKind,
    /// Operands, in order.
    pub inputs: RVec<ValueRef>,
    /// All attributes, in the order of the operator's schema.
    pub attrs: RVec<Attr>,
    /// Types of the outputs. Most operators have exactly one.
    pub outputs: RVec<TensorType>,
    /// Names of the model's nodes from which this node was derived, for comments and messages.
    pub sources: RVec<RString>,
}

/// Kind of a node.
#[repr(u8)]
#[derive(StableAbi, Clone, Debug, PartialEq)]
pub enum NodeKind {
    /// Graph input with this index.
    Input(u32),
    /// Constant with this index in the graph's constant table. A composite's body uses the same table.
    Constant(u32),
    /// Relay name of the operator.
    Op(RString),
    /// Match of one of the backend's patterns.
    Composite(Composite),
}

/// Name of the operator that selects one of two branches. Its inputs are a boolean scalar, the results of the branch
/// for `true`, and those of the branch for `false`; its outputs are the results of the selected branch. A backend may
/// evaluate both branches, or only the nodes that the selected results depend on.
pub const IF: &str = "if";

/// Name of the composite that represents a while loop. Its inputs are the initial state, followed by the values that
/// the loop only reads; its outputs are the final state. The inputs of its body are the state at the start of an
/// iteration and the read-only values; the outputs of the body are the condition, a boolean scalar, and the next state.
/// While the condition is true, the next state becomes the current state. A backend may compute the next state even if
/// the condition is false.
pub const WHILE: &str = "while";

/// Match of a pattern. The node's inputs are the body's inputs.
#[repr(C)]
#[derive(StableAbi, Clone, Debug, PartialEq)]
pub struct Composite {
    /// Name of the pattern: `dnnl.conv2d_bias_relu`.
    pub name: RString,
    /// Operators of the composite.
    pub body: RBox<Graph>,
}

/// Value: an output of a node.
#[repr(C)]
#[derive(StableAbi, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ValueRef {
    /// Index of the node in `Graph::nodes`.
    pub node: u32,
    /// Index among the outputs of the node.
    pub index: u32,
}

impl ValueRef {
    /// Returns the first output of a node.
    pub const fn of(node: u32) -> ValueRef {
        ValueRef { node, index: 0 }
    }
}

/// Type of a tensor.
#[repr(C)]
#[derive(StableAbi, Clone, Debug, PartialEq, Eq, Hash)]
pub struct TensorType {
    /// Element type.
    pub dtype: DType,
    /// Dimensions, outermost first.
    pub dims: RVec<Dim>,
}

/// Dimension of a tensor type.
#[repr(u8)]
#[derive(StableAbi, Clone, Debug, PartialEq, Eq, Hash)]
pub enum Dim {
    /// Known dimension.
    Known(usize),
    /// Dimension unknown until run time: the name of a symbolic dimension, or empty for `?`. Dimensions with the same
    /// name are equal. The name of a computed dimension is an expression that `byoc-plugin-support` evaluates:
    /// `12*batch`, `floordiv(n + 1, 2)`.
    Unknown(RString),
}

/// Named attribute.
#[repr(C)]
#[derive(StableAbi, Clone, Debug, PartialEq)]
pub struct Attr {
    /// Name of the attribute.
    pub key: RString,
    /// Value of the attribute.
    pub value: AttrValue,
}

/// Value of an attribute.
#[repr(u8)]
#[derive(StableAbi, Clone, Debug, PartialEq)]
pub enum AttrValue {
    /// Absent value.
    None,
    /// Boolean value.
    Bool(bool),
    /// Integer value.
    Int(i64),
    /// Floating-point value.
    Float(f64),
    /// String value; element types cross as their names.
    Str(RString),
    /// List of values.
    List(RVec<AttrValue>),
}

impl Graph {
    /// Creates an empty graph named `symbol`.
    pub fn new(symbol: &str) -> Graph {
        Graph { symbol: symbol.into(), ..Graph::default() }
    }

    /// Adds a node and returns its index.
    pub fn push(&mut self, node: Node) -> u32 {
        self.nodes.push(node);
        (self.nodes.len() - 1) as u32
    }

    /// Adds an input and its node, and returns the node's index.
    pub fn push_input(&mut self, name: &str, ty: TensorType) -> u32 {
        let index = self.inputs.len() as u32;
        self.inputs.push(Input { name: name.into(), ty: ty.clone() });
        self.push(Node::new(NodeKind::Input(index), [], [ty]))
    }

    /// Adds a node for constant `index` of the table, and returns the node's index.
    pub fn push_constant(&mut self, index: u32, ty: TensorType) -> u32 {
        self.push(Node::new(NodeKind::Constant(index), [], [ty]))
    }

    /// Adds an operator call, and returns the node's index.
    pub fn push_op(
        &mut self,
        name: &str,
        inputs: impl IntoIterator<Item = ValueRef>,
        attrs: impl IntoIterator<Item = Attr>,
        outputs: impl IntoIterator<Item = TensorType>,
    ) -> u32 {
        let mut node = Node::new(NodeKind::Op(name.into()), inputs, outputs);
        node.attrs = attrs.into_iter().collect();
        self.push(node)
    }

    /// Returns the node at `index`.
    pub fn node(&self, index: u32) -> &Node {
        &self.nodes[index as usize]
    }

    /// Returns the type of a value.
    pub fn type_of(&self, value: ValueRef) -> &TensorType {
        &self.nodes[value.node as usize].outputs[value.index as usize]
    }

    /// Returns the types of the outputs.
    pub fn output_types(&self) -> impl ExactSizeIterator<Item = &TensorType> {
        self.outputs.iter().map(|&value| self.type_of(value))
    }

    /// Returns the attribute `key` of the function.
    pub fn attr(&self, key: &str) -> Option<&AttrValue> {
        find(&self.attrs, key)
    }

    /// Returns every operator in the graph, including those inside composites, each with the graph that contains it.
    pub fn operators(&self) -> Vec<(&str, &Node, &Graph)> {
        let mut operators = Vec::new();
        let mut stack = vec![(self, 0)];
        while let Some((graph, mut next_node)) = stack.pop() {
            while let Some(node) = graph.nodes.get(next_node) {
                next_node += 1;
                match &node.kind {
                    NodeKind::Op(name) => operators.push((name.as_str(), node, graph)),
                    NodeKind::Composite(composite) => {
                        stack.push((graph, next_node));
                        stack.push((&composite.body, 0));
                        break;
                    }
                    NodeKind::Input(_) | NodeKind::Constant(_) => {}
                }
            }
        }
        operators
    }

    /// Checks that every index is in range, given a table of `constants` constants, and that nodes precede their users.
    ///
    /// # Errors
    /// If the graph is invalid; the message, one line, describes the first violation.
    pub fn check(&self, constants: usize) -> Result<(), String> {
        let mut worklist = vec![self];
        while let Some(graph) = worklist.pop() {
            let symbol = &graph.symbol;
            for (node_index, node) in graph.nodes.iter().enumerate() {
                let invalid = |problem: String| Err(format!("graph {symbol}, node {node_index}: {problem}"));
                for input in &node.inputs {
                    if input.node as usize >= node_index {
                        return invalid(format!("expected an earlier node as operand, found node {}", input.node));
                    }
                    if input.index as usize >= graph.node(input.node).outputs.len() {
                        return invalid(format!("output {} of node {} does not exist", input.index, input.node));
                    }
                }
                match &node.kind {
                    NodeKind::Input(index) => match graph.inputs.get(*index as usize) {
                        None => {
                            return invalid(format!("input {index} is out of range 0..{}", graph.inputs.len()));
                        }
                        Some(input) if node.outputs[..] != [input.ty.clone()] => {
                            let types: Vec<String> = node.outputs.iter().map(ToString::to_string).collect();
                            return invalid(format!(
                                "input {index}: expected one output of type {}, found [{}]",
                                input.ty,
                                types.join(", ")
                            ));
                        }
                        Some(_) => {}
                    },
                    NodeKind::Constant(index) if *index as usize >= constants => {
                        return invalid(format!("constant {index} is out of range 0..{constants}"));
                    }
                    NodeKind::Constant(_) if node.outputs.len() != 1 => {
                        return invalid(format!("constant: expected one output, found {}", node.outputs.len()));
                    }
                    NodeKind::Composite(Composite { name, body }) => {
                        // The body of a loop also returns the condition.
                        let outputs = body.outputs.len().saturating_sub(usize::from(*name == WHILE));
                        if body.inputs.len() != node.inputs.len() || outputs != node.outputs.len() {
                            return invalid(format!(
                                "number of composite inputs and outputs: expected {} and {outputs}, found {} and {}",
                                body.inputs.len(),
                                node.inputs.len(),
                                node.outputs.len()
                            ));
                        }
                        if *name == WHILE && (outputs == 0 || outputs > node.inputs.len()) {
                            let inputs = node.inputs.len();
                            return invalid(format!("loop: expected 1 to {inputs} values as state, found {outputs}"));
                        }
                        worklist.push(body);
                    }
                    NodeKind::Constant(_) | NodeKind::Op(_) => {}
                }
            }
            if graph.outputs.is_empty() {
                return Err(format!("graph {symbol}: expected at least one output, found none"));
            }
            for value in &graph.outputs {
                let node = graph.nodes.get(value.node as usize);
                if node.is_none_or(|node| value.index as usize >= node.outputs.len()) {
                    return Err(format!(
                        "graph {symbol}: output {} of node {} does not exist",
                        value.index, value.node
                    ));
                }
            }
        }
        Ok(())
    }
}

impl Node {
    /// Creates a node without attributes or sources.
    pub fn new(
        kind: NodeKind,
        inputs: impl IntoIterator<Item = ValueRef>,
        outputs: impl IntoIterator<Item = TensorType>,
    ) -> Node {
        Node {
            kind,
            inputs: inputs.into_iter().collect(),
            attrs: RVec::new(),
            outputs: outputs.into_iter().collect(),
            sources: RVec::new(),
        }
    }

    /// Creates a composite node with the outputs of `body`.
    pub fn composite(name: &str, body: Graph, inputs: impl IntoIterator<Item = ValueRef>) -> Node {
        let outputs: Vec<TensorType> = body.output_types().cloned().collect();
        Node::new(NodeKind::Composite(Composite { name: name.into(), body: RBox::new(body) }), inputs, outputs)
    }

    /// Creates a while loop, a composite named [`WHILE`]. The state has the types of the first inputs of `body`.
    pub fn while_loop(body: Graph, inputs: impl IntoIterator<Item = ValueRef>) -> Node {
        let states = body.outputs.len().saturating_sub(1);
        let outputs: Vec<TensorType> = body.inputs.iter().take(states).map(|input| input.ty.clone()).collect();
        Node::new(NodeKind::Composite(Composite { name: WHILE.into(), body: RBox::new(body) }), inputs, outputs)
    }

    /// Returns the operator's name if the node is an operator.
    pub fn op(&self) -> Option<&str> {
        match &self.kind {
            NodeKind::Op(name) => Some(name.as_str()),
            _ => None,
        }
    }

    /// Returns the name and the body if the node is a composite.
    pub fn as_composite(&self) -> Option<(&str, &Graph)> {
        match &self.kind {
            NodeKind::Composite(composite) => Some((composite.name.as_str(), &composite.body)),
            _ => None,
        }
    }

    /// Returns the attribute `key`.
    pub fn attr(&self, key: &str) -> Option<&AttrValue> {
        find(&self.attrs, key)
    }

    /// Returns the integer attribute `key`.
    pub fn int(&self, key: &str) -> Option<i64> {
        self.attr(key)?.as_int()
    }

    /// Returns the float or integer attribute `key` as a float.
    pub fn float(&self, key: &str) -> Option<f64> {
        self.attr(key)?.as_float()
    }

    /// Returns the boolean attribute `key`.
    pub fn flag(&self, key: &str) -> Option<bool> {
        self.attr(key)?.as_bool()
    }

    /// Returns the string attribute `key`.
    pub fn text(&self, key: &str) -> Option<&str> {
        self.attr(key)?.as_str()
    }

    /// Returns the attribute `key` as a list of integers.
    pub fn ints(&self, key: &str) -> Option<Vec<i64>> {
        self.attr(key)?.as_ints()
    }
}

fn find<'a>(attrs: &'a [Attr], key: &str) -> Option<&'a AttrValue> {
    attrs.iter().find(|attr| attr.key == key).map(|attr| &attr.value)
}

impl Attr {
    /// Creates a named attribute.
    pub fn new(key: &str, value: impl Into<AttrValue>) -> Attr {
        Attr { key: key.into(), value: value.into() }
    }
}

impl AttrValue {
    /// Returns the boolean; `None` for any other kind of value.
    pub fn as_bool(&self) -> Option<bool> {
        if let AttrValue::Bool(value) = self { Some(*value) } else { None }
    }

    /// Returns the integer; `None` for any other kind of value.
    pub fn as_int(&self) -> Option<i64> {
        if let AttrValue::Int(value) = self { Some(*value) } else { None }
    }

    /// Returns the float, or the integer converted to a float; `None` for any other kind of value.
    pub fn as_float(&self) -> Option<f64> {
        match self {
            AttrValue::Float(value) => Some(*value),
            AttrValue::Int(value) => Some(*value as f64),
            _ => None,
        }
    }

    /// Returns the string; `None` for any other kind of value.
    pub fn as_str(&self) -> Option<&str> {
        if let AttrValue::Str(value) = self { Some(value) } else { None }
    }

    /// Returns the list; `None` for any other kind of value.
    pub fn as_list(&self) -> Option<&[AttrValue]> {
        if let AttrValue::List(values) = self { Some(values) } else { None }
    }

    /// Returns the list if all elements are integers.
    pub fn as_ints(&self) -> Option<Vec<i64>> {
        self.as_list()?.iter().map(AttrValue::as_int).collect()
    }
}

impl From<bool> for AttrValue {
    fn from(value: bool) -> AttrValue {
        AttrValue::Bool(value)
    }
}

impl From<i64> for AttrValue {
    fn from(value: i64) -> AttrValue {
        AttrValue::Int(value)
    }
}

impl From<f64> for AttrValue {
    fn from(value: f64) -> AttrValue {
        AttrValue::Float(value)
    }
}

impl From<&str> for AttrValue {
    fn from(value: &str) -> AttrValue {
        AttrValue::Str(value.into())
    }
}

impl From<String> for AttrValue {
    fn from(value: String) -> AttrValue {
        AttrValue::Str(value.into())
    }
}

impl<T: Into<AttrValue>> From<Vec<T>> for AttrValue {
    fn from(values: Vec<T>) -> AttrValue {
        AttrValue::List(values.into_iter().map(Into::into).collect())
    }
}

impl TensorType {
    /// Creates a type with known dimensions.
    pub fn new(dtype: DType, shape: &[usize]) -> TensorType {
        TensorType { dtype, dims: shape.iter().map(|&dim| Dim::Known(dim)).collect() }
    }

    /// Returns the shape if every dimension is known.
    pub fn shape(&self) -> Option<Vec<usize>> {
        self.dims.iter().map(Dim::known).collect()
    }

    /// Number of dimensions.
    pub fn rank(&self) -> usize {
        self.dims.len()
    }

    /// Number of elements; `None` if a dimension is unknown or the product overflows.
    pub fn element_count(&self) -> Option<usize> {
        self.dims.iter().map(Dim::known).try_fold(1usize, |count, dim| count.checked_mul(dim?))
    }
}

impl Dim {
    /// Returns the dimension if it is known.
    pub fn known(&self) -> Option<usize> {
        if let Dim::Known(size) = self { Some(*size) } else { None }
    }
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Dim::Known(size) => write!(f, "{size}"),
            Dim::Unknown(name) if name.is_empty() => f.write_str("?"),
            Dim::Unknown(name) => f.write_str(name),
        }
    }
}

impl fmt::Display for TensorType {
    /// Formats the type as Relay prints it: `Tensor[(1, ?), float32]`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dims: Vec<String> = self.dims.iter().map(Dim::to_string).collect();
        match &dims[..] {
            [dim] => write!(f, "Tensor[({dim},), {}]", self.dtype),
            _ => write!(f, "Tensor[({}), {}]", dims.join(", "), self.dtype),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_operators_in_order_with_composite_bodies_inlined() {
        let ty = TensorType::new(DType::F32, &[2]);
        let mut body = Graph::new("fused");
        let x = body.push_input("x", ty.clone());
        let a = body.push_op("a", [ValueRef::of(x)], [], [ty.clone()]);
        let b = body.push_op("b", [ValueRef::of(a)], [], [ty.clone()]);
        body.outputs.push(ValueRef::of(b));
        let mut graph = Graph::new("f");
        let x = graph.push_input("x", ty.clone());
        let first_op = graph.push_op("first", [ValueRef::of(x)], [], [ty.clone()]);
        let composite = graph.push(Node::composite("mine.fused", body, [ValueRef::of(first_op)]));
        let last_op = graph.push_op("last", [ValueRef::of(composite)], [], [ty]);
        graph.outputs.push(ValueRef::of(last_op));
        graph.check(0).unwrap();
        let names: Vec<&str> = graph.operators().iter().map(|(name, ..)| *name).collect();
        assert_eq!(names, ["first", "a", "b", "last"]);
        assert_eq!(graph.output_types().next().unwrap().to_string(), "Tensor[(2,), float32]");
    }

    #[test]
    fn check_rejects_out_of_range_indices() {
        let ty = TensorType::new(DType::F32, &[2]);
        let mut graph = Graph::new("f");
        let x = graph.push_input("x", ty.clone());
        graph.push_constant(3, ty.clone());
        graph.outputs.push(ValueRef::of(x));
        assert_eq!(graph.check(3).unwrap_err(), "graph f, node 1: constant 3 is out of range 0..3");
        graph.check(4).unwrap();
        graph.inputs[0].ty.dtype = DType::I8;
        assert_eq!(
            graph.check(4).unwrap_err(),
            "graph f, node 0: input 0: expected one output of type Tensor[(2,), int8], found [Tensor[(2,), float32]]"
        );
        graph.inputs[0].ty.dtype = DType::F32;
        graph.push_op("f", [ValueRef { node: x, index: 1 }], [], [ty.clone()]);
        assert_eq!(graph.check(4).unwrap_err(), "graph f, node 2: output 1 of node 0 does not exist");
        graph.nodes.pop();
        graph.outputs.clear();
        assert!(graph.check(4).unwrap_err().starts_with("graph f: expected at least one output"));
        graph.outputs.push(ValueRef::of(x));
        graph.push(Node::composite("c", Graph::new("c"), [ValueRef::of(x)]));
        let message = "number of composite inputs and outputs: expected 0 and 0, found 1 and 0";
        assert!(graph.check(4).unwrap_err().ends_with(message));
    }
}
