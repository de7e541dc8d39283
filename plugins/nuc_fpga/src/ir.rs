//! Region with its composites expanded: operators in topological order, values numbered.

use crate::error::{CompileError, refuse, refuse_with_hint};
use byoc_plugin_api::{AttrValue, Constant, DType, Graph, Node, NodeKind, RefusalCode, TensorType, ValueRef};

/// Maximum nesting depth of composites.
const MAX_DEPTH: usize = 64;

/// Id of a value: its index in [`RegionIr::values`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Val(u32);

impl Val {
    /// Returns the index.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Definition of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Def {
    /// Input of the region, by index.
    Input(usize),
    /// Constant, by index.
    Constant(usize),
    /// Operator, by its index in [`RegionIr::ops`].
    Op(usize),
}

/// Tensor of the region.
#[derive(Clone, Debug)]
pub struct Value {
    /// Dimensions.
    pub shape: Vec<usize>,
    /// Element type.
    pub dtype: DType,
    /// Definition.
    pub def: Def,
    /// Operators that read the value.
    pub users: Vec<usize>,
}

/// Operator of the region. All operators that this backend supports have one result.
#[derive(Clone, Debug)]
pub struct Op<'a> {
    /// Relay name.
    pub name: &'a str,
    /// Node of the graph, for attributes and sources.
    pub node: &'a Node,
    /// Values that the operator reads.
    pub inputs: Vec<Val>,
    /// Result.
    pub output: Val,
}

/// Region with numbered values.
pub struct RegionIr<'a> {
    /// Values, indexed by [`Val`].
    pub values: Vec<Value>,
    /// Operators in topological order.
    pub ops: Vec<Op<'a>>,
    /// Inputs of the region.
    pub inputs: Vec<Val>,
    /// Outputs of the region.
    pub outputs: Vec<Val>,
    /// Constants of the region.
    pub constants: &'a [Constant],
}

/// Graph being expanded: its inputs, and the values of its nodes so far.
struct GraphScope<'a> {
    graph: &'a Graph,
    inputs: Vec<Val>,
    nodes: Vec<Vec<Val>>,
}

impl<'a> RegionIr<'a> {
    /// Expands the composites of a graph and numbers its values.
    pub fn new(graph: &'a Graph, constants: &'a [Constant]) -> Result<RegionIr<'a>, CompileError> {
        if let Err(error) = graph.check(constants.len()) {
            return refuse(RefusalCode::UnsupportedOp, error);
        }
        let mut ir =
            RegionIr { values: Vec::new(), ops: Vec::new(), inputs: Vec::new(), outputs: Vec::new(), constants };
        for (i, input) in graph.inputs.iter().enumerate() {
            let value = ir.value(&input.ty, Def::Input(i))?;
            ir.inputs.push(value);
        }
        let mut scopes = vec![GraphScope { graph, inputs: ir.inputs.clone(), nodes: Vec::new() }];
        while let Some(scope) = scopes.last_mut() {
            let resolve = |nodes: &[Vec<Val>], value: &ValueRef| nodes[value.node as usize][value.index as usize];
            let Some(node) = scope.graph.nodes.get(scope.nodes.len()) else {
                let outputs: Vec<Val> = scope.graph.outputs.iter().map(|v| resolve(&scope.nodes, v)).collect();
                scopes.pop();
                match scopes.last_mut() {
                    Some(caller) => caller.nodes.push(outputs),
                    None => ir.outputs = outputs,
                }
                continue;
            };
            let inputs: Vec<Val> = node.inputs.iter().map(|v| resolve(&scope.nodes, v)).collect();
            match &node.kind {
                NodeKind::Input(i) => {
                    let value = scope.inputs[*i as usize];
                    scope.nodes.push(vec![value]);
                }
                NodeKind::Constant(i) => {
                    let value = ir.value(&node.outputs[0], Def::Constant(*i as usize))?;
                    scope.nodes.push(vec![value]);
                }
                NodeKind::Op(name) => {
                    let output = ir.op(name, node, inputs)?;
                    scope.nodes.push(vec![output]);
                }
                NodeKind::Composite(composite) => {
                    if scopes.len() > MAX_DEPTH {
                        return refuse(
                            RefusalCode::ResourceLimit,
                            format!("composites nest more than {MAX_DEPTH} deep"),
                        );
                    }
                    scopes.push(GraphScope { graph: &composite.body, inputs, nodes: Vec::new() });
                }
            }
        }
        Ok(ir)
    }

    fn value(&mut self, ty: &TensorType, def: Def) -> Result<Val, CompileError> {
        let Some(shape) = ty.shape() else {
            let detail = format!("{ty} has a dimension that is not known before the run");
            return refuse_with_hint(RefusalCode::DynamicDim, detail, "bind it with --dim NAME=N");
        };
        self.values.push(Value { shape, dtype: ty.dtype, def, users: Vec::new() });
        Ok(Val((self.values.len() - 1) as u32))
    }

    fn op(&mut self, name: &'a str, node: &'a Node, inputs: Vec<Val>) -> Result<Val, CompileError> {
        let [ty] = &node.outputs[..] else {
            let detail = format!("{name} has {} results; nuc_fpga takes operators with one", node.outputs.len());
            return refuse(RefusalCode::UnsupportedOp, detail);
        };
        let number = self.ops.len();
        let output = self.value(ty, Def::Op(number))?;
        for input in &inputs {
            self.values[input.index()].users.push(number);
        }
        self.ops.push(Op { name, node, inputs, output });
        Ok(output)
    }

    /// Returns a value by id.
    pub fn get(&self, value: Val) -> &Value {
        &self.values[value.index()]
    }

    /// Returns the constant that a value refers to and its index; `None` for other values.
    pub fn constant(&self, value: Val) -> Option<(usize, &'a Constant)> {
        match self.get(value).def {
            Def::Constant(i) => Some((i, &self.constants[i])),
            _ => None,
        }
    }
}

impl Op<'_> {
    /// Returns a string attribute; `""` if it is not set.
    pub fn text(&self, key: &str) -> &str {
        self.node.text(key).unwrap_or_default()
    }

    /// Returns a list of integers, where a single integer is a list of one; empty if the attribute is not set.
    pub fn ints(&self, key: &str) -> Vec<i64> {
        match self.node.attr(key) {
            Some(AttrValue::Int(value)) => vec![*value],
            Some(other) => other.as_ints().unwrap_or_default(),
            None => Vec::new(),
        }
    }

    /// Returns an axis attribute, where a negative value counts from the end; `None` if the axis is out of range.
    pub fn axis(&self, key: &str, default: i64, rank: usize) -> Option<usize> {
        let axis = self.node.int(key).unwrap_or(default);
        let axis = if axis < 0 { axis + rank as i64 } else { axis };
        usize::try_from(axis).ok().filter(|&axis| axis < rank)
    }
}
