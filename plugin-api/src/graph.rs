//! Graphs: how a region, a candidate and a composite body cross the boundary.
//!
//! A graph is a list of nodes in topological order: a node reads only values of nodes before it. A value is one tensor,
//! named by a node and the number of its output. Tuples do not exist here: an operator that gives a tuple has several
//! outputs, and one that takes a tuple (`concatenate`) has its fields as inputs. Every attribute of an operator is
//! present, defaults included, under Relay's name.

use crate::dtype::DType;
use abi_stable::StableAbi;
use abi_stable::std_types::{RBox, RString, RVec};
use std::fmt;

/// A data-flow graph.
#[repr(C)]
#[derive(StableAbi, Clone, Debug, Default, PartialEq)]
pub struct Graph {
    /// The global symbol of a region; the name of a composite.
    pub symbol: RString,
    /// Inputs, in order. `NodeKind::Input(i)` stands for `inputs[i]`.
    pub inputs: RVec<Input>,
    /// The nodes, in topological order.
    pub nodes: RVec<Node>,
    /// Outputs, in order.
    pub outputs: RVec<ValueRef>,
    /// Attributes of the function.
    pub attrs: RVec<Attr>,
}

/// An input of a graph.
#[repr(C)]
#[derive(StableAbi, Clone, Debug, PartialEq)]
pub struct Input {
    /// Its name, for people.
    pub name: RString,
    /// Its type.
    pub ty: TensorType,
}

/// A node.
#[repr(C)]
#[derive(StableAbi, Clone, Debug, PartialEq)]
pub struct Node {
    /// Operator, composite, input or constant.
    pub kind: NodeKind,
    /// Operands, in order.
    pub inputs: RVec<ValueRef>,
    /// Its attributes, all of them, in the order of the operator's schema.
    pub attrs: RVec<Attr>,
    /// The types of what it gives; one for all but a few operators.
    pub outputs: RVec<TensorType>,
    /// The names of the model's nodes that it came from, for comments and messages.
    pub sources: RVec<RString>,
}

/// Kind of a node.
#[repr(u8)]
#[derive(StableAbi, Clone, Debug, PartialEq)]
pub enum NodeKind {
    /// The graph's input of that number.
    Input(u32),
    /// The constant of that number in the table that comes with the graph. A composite's body uses the same table.
    Constant(u32),
    /// An operator, under Relay's name.
    Op(RString),
    /// A match of one of the backend's patterns.
    Composite(Composite),
}

/// A match of a pattern. The node's inputs are the body's inputs.
#[repr(C)]
#[derive(StableAbi, Clone, Debug, PartialEq)]
pub struct Composite {
    /// The pattern's name: `dnnl.conv2d_bias_relu`.
    pub name: RString,
    /// Operators of the composite.
    pub body: RBox<Graph>,
}

/// A value: an output of a node.
#[repr(C)]
#[derive(StableAbi, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ValueRef {
    /// The node's number in `Graph::nodes`.
    pub node: u32,
    /// Index among the outputs of the node.
    pub index: u32,
}

impl ValueRef {
    /// The first output of a node.
    pub const fn of(node: u32) -> ValueRef {
        ValueRef { node, index: 0 }
    }
}

/// The type of a tensor.
#[repr(C)]
#[derive(StableAbi, Clone, Debug, PartialEq, Eq, Hash)]
pub struct TensorType {
    /// The element type.
    pub dtype: DType,
    /// The dimensions.
    pub dims: RVec<Dim>,
}

/// A dimension.
#[repr(u8)]
#[derive(StableAbi, Clone, Debug, PartialEq, Eq, Hash)]
pub enum Dim {
    /// Its size.
    Known(usize),
    /// Not known before the run. The name of a symbolic dimension, or empty for `?`. Equal names are equal sizes. The name of a
    /// product is its factors, a number first if there is one: `12*batch`.
    Unknown(RString),
}

/// A named attribute.
#[repr(C)]
#[derive(StableAbi, Clone, Debug, PartialEq)]
pub struct Attr {
    /// Its name.
    pub key: RString,
    /// Its value.
    pub value: AttrValue,
}

/// The value of an attribute.
#[repr(u8)]
#[derive(StableAbi, Clone, Debug, PartialEq)]
pub enum AttrValue {
    /// Not set.
    None,
    /// A flag.
    Bool(bool),
    /// An integer.
    Int(i64),
    /// A float.
    Float(f64),
    /// A text; element types cross as their names.
    Str(RString),
    /// A list.
    List(RVec<AttrValue>),
}

impl Graph {
    /// An empty graph of that symbol.
    pub fn new(symbol: &str) -> Graph {
        Graph { symbol: symbol.into(), ..Graph::default() }
    }

    /// Adds a node and gives its number.
    pub fn push(&mut self, node: Node) -> u32 {
        self.nodes.push(node);
        (self.nodes.len() - 1) as u32
    }

    /// Adds an input and the node that stands for it, and gives the node's number.
    pub fn push_input(&mut self, name: &str, ty: TensorType) -> u32 {
        let index = self.inputs.len() as u32;
        self.inputs.push(Input { name: name.into(), ty: ty.clone() });
        self.push(Node::new(NodeKind::Input(index), [], [ty]))
    }

    /// Adds the node that stands for constant `index` of the table, and gives the node's number.
    pub fn push_constant(&mut self, index: u32, ty: TensorType) -> u32 {
        self.push(Node::new(NodeKind::Constant(index), [], [ty]))
    }

    /// Adds a call of an operator, and gives the node's number.
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

    /// The node of that number.
    pub fn node(&self, number: u32) -> &Node {
        &self.nodes[number as usize]
    }

    /// The type of a value.
    pub fn type_of(&self, value: ValueRef) -> &TensorType {
        &self.nodes[value.node as usize].outputs[value.index as usize]
    }

    /// The types of what comes out.
    pub fn output_types(&self) -> impl ExactSizeIterator<Item = &TensorType> {
        self.outputs.iter().map(|&value| self.type_of(value))
    }

    /// The attribute of the function of that name.
    pub fn attr(&self, key: &str) -> Option<&AttrValue> {
        find(&self.attrs, key)
    }

    /// Every operator in it, those inside composites included, each with the graph that it stands in.
    pub fn operators(&self) -> Vec<(&str, &Node, &Graph)> {
        let mut found = Vec::new();
        let mut open = vec![(self, 0)];
        while let Some((graph, mut at)) = open.pop() {
            while let Some(node) = graph.nodes.get(at) {
                at += 1;
                match &node.kind {
                    NodeKind::Op(name) => found.push((name.as_str(), node, graph)),
                    NodeKind::Composite(composite) => {
                        open.push((graph, at));
                        open.push((&composite.body, 0));
                        break;
                    }
                    NodeKind::Input(_) | NodeKind::Constant(_) => {}
                }
            }
        }
        found
    }

    /// Checks that every number in it points at something, with `constants` constants in the table.
    ///
    /// # Errors
    /// One line about the first thing that is wrong.
    pub fn check(&self, constants: usize) -> Result<(), String> {
        let mut open = vec![self];
        while let Some(graph) = open.pop() {
            let symbol = &graph.symbol;
            for (number, node) in graph.nodes.iter().enumerate() {
                let wrong = |what: String| Err(format!("graph {symbol}, node {number}: {what}"));
                for input in &node.inputs {
                    if input.node as usize >= number {
                        return wrong(format!("reads node {}, which is not before it", input.node));
                    }
                    if input.index as usize >= graph.node(input.node).outputs.len() {
                        return wrong(format!("reads output {} of node {}, which has fewer", input.index, input.node));
                    }
                }
                match &node.kind {
                    NodeKind::Input(index) => match graph.inputs.get(*index as usize) {
                        None => return wrong(format!("stands for input {index}, of {}", graph.inputs.len())),
                        Some(input) if node.outputs[..] != [input.ty.clone()] => {
                            return wrong(format!("has another type than input {index}"));
                        }
                        Some(_) => {}
                    },
                    NodeKind::Constant(index) if *index as usize >= constants => {
                        return wrong(format!("stands for constant {index}, of {constants}"));
                    }
                    NodeKind::Constant(_) if node.outputs.len() != 1 => return wrong("a constant has one type".into()),
                    NodeKind::Composite(Composite { body, .. }) => {
                        if body.inputs.len() != node.inputs.len() || body.outputs.len() != node.outputs.len() {
                            return wrong("has other numbers of inputs and outputs than its body".into());
                        }
                        open.push(body);
                    }
                    NodeKind::Constant(_) | NodeKind::Op(_) => {}
                }
            }
            if graph.outputs.is_empty() {
                return Err(format!("graph {symbol}: it has no outputs, so that nobody can see what it computes"));
            }
            for value in &graph.outputs {
                let node = graph.nodes.get(value.node as usize);
                if node.is_none_or(|node| value.index as usize >= node.outputs.len()) {
                    return Err(format!("graph {symbol}: output {}.{} does not exist", value.node, value.index));
                }
            }
        }
        Ok(())
    }
}

impl Node {
    /// A node without attributes and sources.
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

    /// A match of a pattern.
    pub fn composite(name: &str, body: Graph, inputs: impl IntoIterator<Item = ValueRef>) -> Node {
        let outputs: Vec<TensorType> = body.output_types().cloned().collect();
        Node::new(NodeKind::Composite(Composite { name: name.into(), body: RBox::new(body) }), inputs, outputs)
    }

    /// The operator's name, if it is one.
    pub fn op(&self) -> Option<&str> {
        match &self.kind {
            NodeKind::Op(name) => Some(name.as_str()),
            _ => None,
        }
    }

    /// The name and the body, if it is a match of a pattern.
    pub fn as_composite(&self) -> Option<(&str, &Graph)> {
        match &self.kind {
            NodeKind::Composite(composite) => Some((composite.name.as_str(), &composite.body)),
            _ => None,
        }
    }

    /// The attribute of that name.
    pub fn attr(&self, key: &str) -> Option<&AttrValue> {
        find(&self.attrs, key)
    }

    /// The integer attribute of that name.
    pub fn int(&self, key: &str) -> Option<i64> {
        self.attr(key)?.as_int()
    }

    /// The float (or integer) attribute of that name.
    pub fn float(&self, key: &str) -> Option<f64> {
        self.attr(key)?.as_float()
    }

    /// The flag of that name.
    pub fn flag(&self, key: &str) -> Option<bool> {
        self.attr(key)?.as_bool()
    }

    /// The text attribute of that name.
    pub fn text(&self, key: &str) -> Option<&str> {
        self.attr(key)?.as_str()
    }

    /// The attribute of that name as a list of integers.
    pub fn ints(&self, key: &str) -> Option<Vec<i64>> {
        self.attr(key)?.as_ints()
    }
}

fn find<'a>(attrs: &'a [Attr], key: &str) -> Option<&'a AttrValue> {
    attrs.iter().find(|attr| attr.key == key).map(|attr| &attr.value)
}

impl Attr {
    /// A named attribute.
    pub fn new(key: &str, value: impl Into<AttrValue>) -> Attr {
        Attr { key: key.into(), value: value.into() }
    }
}

impl AttrValue {
    /// The flag.
    pub fn as_bool(&self) -> Option<bool> {
        if let AttrValue::Bool(value) = self { Some(*value) } else { None }
    }

    /// The integer.
    pub fn as_int(&self) -> Option<i64> {
        if let AttrValue::Int(value) = self { Some(*value) } else { None }
    }

    /// The float; an integer as a float.
    pub fn as_float(&self) -> Option<f64> {
        match self {
            AttrValue::Float(value) => Some(*value),
            AttrValue::Int(value) => Some(*value as f64),
            _ => None,
        }
    }

    /// The text.
    pub fn as_str(&self) -> Option<&str> {
        if let AttrValue::Str(value) = self { Some(value) } else { None }
    }

    /// The list.
    pub fn as_list(&self) -> Option<&[AttrValue]> {
        if let AttrValue::List(values) = self { Some(values) } else { None }
    }

    /// The list, if all of it are integers.
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
    /// A type of known shape.
    pub fn new(dtype: DType, shape: &[usize]) -> TensorType {
        TensorType { dtype, dims: shape.iter().map(|&dim| Dim::Known(dim)).collect() }
    }

    /// The shape, if all of it is known.
    pub fn shape(&self) -> Option<Vec<usize>> {
        self.dims.iter().map(Dim::known).collect()
    }

    /// The number of dimensions.
    pub fn rank(&self) -> usize {
        self.dims.len()
    }

    /// The number of elements, if the shape is known.
    pub fn element_count(&self) -> Option<usize> {
        self.dims.iter().map(Dim::known).try_fold(1usize, |count, dim| count.checked_mul(dim?))
    }
}

impl Dim {
    /// The size, if it is known.
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
    /// As Relay prints it: `Tensor[(1, ?), float32]`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dims: Vec<String> = self.dims.iter().map(Dim::to_string).collect();
        match &dims[..] {
            [only] => write!(f, "Tensor[({only},), {}]", self.dtype),
            _ => write!(f, "Tensor[({}), {}]", dims.join(", "), self.dtype),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operators_come_in_order_with_those_of_composites_in_place() {
        let ty = TensorType::new(DType::F32, &[2]);
        let mut body = Graph::new("fused");
        let x = body.push_input("x", ty.clone());
        let a = body.push_op("a", [ValueRef::of(x)], [], [ty.clone()]);
        let b = body.push_op("b", [ValueRef::of(a)], [], [ty.clone()]);
        body.outputs.push(ValueRef::of(b));
        let mut graph = Graph::new("f");
        let x = graph.push_input("x", ty.clone());
        let first = graph.push_op("first", [ValueRef::of(x)], [], [ty.clone()]);
        let fused = graph.push(Node::composite("mine.fused", body, [ValueRef::of(first)]));
        let last = graph.push_op("last", [ValueRef::of(fused)], [], [ty]);
        graph.outputs.push(ValueRef::of(last));
        graph.check(0).unwrap();
        let names: Vec<&str> = graph.operators().iter().map(|(name, ..)| *name).collect();
        assert_eq!(names, ["first", "a", "b", "last"]);
        assert_eq!(graph.output_types().next().unwrap().to_string(), "Tensor[(2,), float32]");
    }

    #[test]
    fn check_finds_numbers_that_point_nowhere() {
        let ty = TensorType::new(DType::F32, &[2]);
        let mut graph = Graph::new("f");
        let x = graph.push_input("x", ty.clone());
        graph.push_constant(3, ty.clone());
        graph.outputs.push(ValueRef::of(x));
        assert_eq!(graph.check(3).unwrap_err(), "graph f, node 1: stands for constant 3, of 3");
        graph.check(4).unwrap();
        graph.inputs[0].ty.dtype = DType::I8;
        assert_eq!(graph.check(4).unwrap_err(), "graph f, node 0: has another type than input 0");
        graph.inputs[0].ty.dtype = DType::F32;
        graph.push_op("f", [ValueRef { node: x, index: 1 }], [], [ty.clone()]);
        assert_eq!(graph.check(4).unwrap_err(), "graph f, node 2: reads output 1 of node 0, which has fewer");
        graph.nodes.pop();
        graph.outputs.clear();
        assert!(graph.check(4).unwrap_err().starts_with("graph f: it has no outputs"));
        graph.outputs.push(ValueRef::of(x));
        graph.push(Node::composite("c", Graph::new("c"), [ValueRef::of(x)]));
        assert!(graph.check(4).unwrap_err().ends_with("has other numbers of inputs and outputs than its body"));
    }
}
