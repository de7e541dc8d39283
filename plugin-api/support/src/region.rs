//! Regions with their composites expanded: a list of operators over numbered values, each with its users.
//!
//! A region arrives as a [`Graph`] whose nodes may be composites, which contain graphs. [`expand`] visits all operators
//! in evaluation order, without recursion, for a backend that builds its own representation; [`RegionIr`] is a
//! representation for backends whose code generator requires static shapes.

use crate::attributes::Attributes;
use crate::refusal::CompileError;
use byoc_plugin_api::{Constant, DType, Graph, Node, NodeKind, RefusalCode, TensorType, ValueRef, WHILE};

/// Maximum nesting depth of composites.
const MAX_DEPTH: usize = 64;

/// Evaluates a graph over values of an arbitrary type, with its composites expanded. `visit` receives each constant,
/// operator and while loop in evaluation order, with its operand values, and returns its output values. Returns the
/// values of the graph's outputs.
///
/// # Errors
/// If `visit` fails, the graph is invalid for this number of constants, the number of inputs differs, or composites are
/// nested more than 64 deep.
pub fn expand<'a, V: Copy, E: From<CompileError>>(
    graph: &'a Graph,
    constants: usize,
    inputs: Vec<V>,
    mut visit: impl FnMut(&'a Node, &[V]) -> Result<Vec<V>, E>,
) -> Result<Vec<V>, E> {
    /// Graph whose expansion is in progress: its inputs, and the values of the nodes expanded so far.
    struct Scope<'a, V> {
        graph: &'a Graph,
        inputs: Vec<V>,
        nodes: Vec<Vec<V>>,
    }
    graph.check(constants).map_err(|error| CompileError::new(RefusalCode::UnsupportedOp, error))?;
    if graph.inputs.len() != inputs.len() {
        let detail = format!("number of inputs: expected {}, found {}", graph.inputs.len(), inputs.len());
        return Err(CompileError::new(RefusalCode::UnsupportedShape, detail).into());
    }
    let read = |nodes: &[Vec<V>], values: &[ValueRef]| -> Vec<V> {
        values.iter().map(|value| nodes[value.node as usize][value.index as usize]).collect()
    };
    let mut callers: Vec<Scope<'a, V>> = Vec::new();
    let mut scope = Scope { graph, inputs, nodes: Vec::new() };
    loop {
        let Some(node) = scope.graph.nodes.get(scope.nodes.len()) else {
            let outputs = read(&scope.nodes, &scope.graph.outputs);
            match callers.pop() {
                Some(caller) => scope = caller,
                None => return Ok(outputs),
            }
            scope.nodes.push(outputs);
            continue;
        };
        let operands = read(&scope.nodes, &node.inputs);
        match &node.kind {
            NodeKind::Input(i) => scope.nodes.push(vec![scope.inputs[*i as usize]]),
            NodeKind::Composite(composite) if composite.name != WHILE => {
                if callers.len() >= MAX_DEPTH {
                    let detail =
                        format!("expected composites nested at most {MAX_DEPTH} levels deep, found a deeper nesting");
                    return Err(CompileError::new(RefusalCode::ResourceLimit, detail).into());
                }
                let body = Scope { graph: &composite.body, inputs: operands, nodes: Vec::new() };
                callers.push(std::mem::replace(&mut scope, body));
            }
            NodeKind::Constant(_) | NodeKind::Op(_) | NodeKind::Composite(_) => {
                let outputs = visit(node, &operands)?;
                debug_assert_eq!(outputs.len(), node.outputs.len(), "`visit` returns one value per output");
                scope.nodes.push(outputs);
            }
        }
    }
}

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(u32);

        impl $name {
            /// Creates an id from an index.
            pub fn new(index: usize) -> $name {
                $name(index as u32)
            }

            /// Returns the index.
            pub fn index(self) -> usize {
                self.0 as usize
            }
        }
    )*};
}

ids! {
    /// Id of a tensor in the region.
    Val;
    /// Id of an operator in the region.
    OpId;
}

/// Definition of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Def {
    /// Input of the region, by index.
    Input(usize),
    /// Constant, by index.
    Constant(usize),
    /// Output of an operator, by index.
    Op(OpId, usize),
}

/// Tensor of the region.
#[derive(Clone, Debug)]
pub struct Value {
    /// Dimensions, outermost first.
    pub shape: Vec<i64>,
    /// Element type.
    pub dtype: DType,
    /// Input, constant or operator that defines the value.
    pub def: Def,
    /// Operators that read the value, listed once per read.
    pub users: Vec<OpId>,
}

/// Operator of the region.
#[derive(Clone, Debug)]
pub struct Op<'a> {
    /// Relay name, or `while` for a loop.
    pub name: &'a str,
    /// Node of the graph, for attributes and sources.
    pub node: &'a Node,
    /// Values that the operator reads.
    pub inputs: Vec<Val>,
    /// Values that the operator computes.
    pub outputs: Vec<Val>,
}

impl<'a> Op<'a> {
    /// Returns the attributes.
    pub fn attrs(&self) -> Attributes<'a> {
        Attributes(self.node)
    }
}

/// Region with numbered values and static shapes.
#[derive(Debug)]
pub struct RegionIr<'a> {
    /// Values, indexed by `Val`.
    pub values: Vec<Value>,
    /// Operators in topological order, indexed by `OpId`.
    pub ops: Vec<Op<'a>>,
    /// Inputs of the region.
    pub inputs: Vec<Val>,
    /// Outputs of the region.
    pub outputs: Vec<Val>,
    /// Constants that values refer to.
    pub constants: &'a [Constant],
}

impl<'a> RegionIr<'a> {
    /// Expands the composites of a graph and numbers its values.
    ///
    /// # Errors
    /// If a dimension is unknown, composites are nested too deeply, or the graph has a reference out of range.
    pub fn new(graph: &'a Graph, constants: &'a [Constant]) -> Result<RegionIr<'a>, CompileError> {
        let mut ir =
            RegionIr { values: Vec::new(), ops: Vec::new(), inputs: Vec::new(), outputs: Vec::new(), constants };
        let inputs = graph.inputs.iter().enumerate();
        ir.inputs = inputs.map(|(i, input)| ir.push_value(&input.ty, Def::Input(i))).collect::<Result<_, _>>()?;
        ir.outputs = expand(graph, constants.len(), ir.inputs.clone(), |node, operands| match &node.kind {
            NodeKind::Constant(i) => Ok(vec![ir.push_value(&node.outputs[0], Def::Constant(*i as usize))?]),
            _ => ir.push_op(node, operands),
        })?;
        Ok(ir)
    }

    fn push_value(&mut self, ty: &TensorType, def: Def) -> Result<Val, CompileError> {
        let Some(shape) = ty.shape() else {
            let detail = format!("expected dimensions known at compile time, found {ty}");
            let hint = "bind the dimension with `--dim NAME=N`";
            return Err(CompileError { hint: hint.into(), ..CompileError::new(RefusalCode::DynamicDim, detail) });
        };
        let shape = shape.iter().map(|&d| d as i64).collect();
        self.values.push(Value { shape, dtype: ty.dtype, def, users: Vec::new() });
        Ok(Val::new(self.values.len() - 1))
    }

    fn push_op(&mut self, node: &'a Node, inputs: &[Val]) -> Result<Vec<Val>, CompileError> {
        let id = OpId::new(self.ops.len());
        let outputs = node.outputs.iter().enumerate();
        let outputs: Vec<Val> =
            outputs.map(|(k, ty)| self.push_value(ty, Def::Op(id, k))).collect::<Result<_, CompileError>>()?;
        for &input in inputs {
            self.values[input.index()].users.push(id);
        }
        let name = node.op().or(node.as_composite().map(|(name, _)| name)).unwrap_or_default();
        let mut results = outputs.clone();
        if let ("nn.batch_norm", [_, _, _, mean, variance], [_, _, _]) = (name, inputs, &outputs[..]) {
            // In inference, the moving mean and variance are returned unchanged.
            results[1..].copy_from_slice(&[*mean, *variance]);
        }
        self.ops.push(Op { name, node, inputs: inputs.to_vec(), outputs });
        Ok(results)
    }

    /// Returns a value by id.
    pub fn val(&self, value: Val) -> &Value {
        &self.values[value.index()]
    }

    /// Returns the dimensions of a value.
    pub fn shape(&self, value: Val) -> &[i64] {
        &self.val(value).shape
    }

    /// Returns an operator by id.
    pub fn get(&self, op: OpId) -> &Op<'a> {
        &self.ops[op.index()]
    }

    /// Returns the operator that computes a value; `None` for inputs and constants.
    pub fn producer(&self, value: Val) -> Option<OpId> {
        if let Def::Op(op, _) = self.val(value).def { Some(op) } else { None }
    }

    /// Returns the index of the constant that a value refers to, and the constant; `None` for other values.
    pub fn constant(&self, value: Val) -> Option<(usize, &'a Constant)> {
        if let Def::Constant(i) = self.val(value).def { Some((i, self.constants.get(i)?)) } else { None }
    }

    /// Returns the elements of an int64 or int32 constant; `None` for other values.
    pub fn constant_ints(&self, value: Val) -> Option<Vec<i64>> {
        let tensor = self.constant(value)?.1.tensor();
        match tensor.dtype() {
            DType::I64 => Some(tensor.as_slice::<i64>().to_vec()),
            DType::I32 => Some(tensor.as_slice::<i32>().iter().map(|&x| i64::from(x)).collect()),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use byoc_plugin_api::Dim;

    fn vector(n: usize) -> TensorType {
        TensorType { dtype: DType::F32, dims: [Dim::Known(n)].into_iter().collect() }
    }

    /// Builds a graph with one relu inside `depth` nested composites.
    fn nested_graph(depth: usize) -> Graph {
        let mut graph = Graph::new("region");
        let x = graph.push_input("x", vector(4));
        let y = if depth == 0 {
            graph.push_op("nn.relu", [ValueRef::of(x)], [], [vector(4)])
        } else {
            graph.push(Node::composite("p", nested_graph(depth - 1), [ValueRef::of(x)]))
        };
        graph.outputs = [ValueRef::of(y)].into_iter().collect();
        graph
    }

    #[test]
    fn composites_are_expanded_in_order() {
        let mut graph = nested_graph(3);
        let relu = graph.outputs[0];
        let split_op = graph.push_op("split", [relu], [], [vector(2), vector(2)]);
        let sum = graph.push_op("add", [ValueRef { node: split_op, index: 1 }; 2], [], [vector(2)]);
        graph.outputs = [ValueRef::of(sum), relu].into_iter().collect();
        let ir = RegionIr::new(&graph, &[]).unwrap();
        let names: Vec<&str> = ir.ops.iter().map(|op| op.name).collect();
        assert_eq!(names, ["nn.relu", "split", "add"]);
        let [relu, add] = [OpId::new(0), OpId::new(2)].map(|op| ir.get(op));
        assert_eq!(ir.outputs, [add.outputs[0], relu.outputs[0]]);
        assert_eq!(ir.val(add.inputs[0]).users, [OpId::new(2); 2]);
        assert_eq!(ir.producer(add.inputs[0]), Some(OpId::new(1)));
        assert_eq!(ir.shape(add.outputs[0]), [2]);
    }

    #[test]
    fn deep_composites_and_open_dimensions_are_refused() {
        assert!(RegionIr::new(&nested_graph(MAX_DEPTH), &[]).is_ok());
        assert_eq!(RegionIr::new(&nested_graph(MAX_DEPTH + 1), &[]).unwrap_err().code, RefusalCode::ResourceLimit);
        let mut graph = Graph::new("region");
        let open_type = TensorType { dtype: DType::F32, dims: [Dim::Unknown("n".into())].into_iter().collect() };
        let x = graph.push_input("x", open_type);
        graph.outputs = [ValueRef::of(x)].into_iter().collect();
        assert_eq!(RegionIr::new(&graph, &[]).unwrap_err().code, RefusalCode::DynamicDim);
    }
}
