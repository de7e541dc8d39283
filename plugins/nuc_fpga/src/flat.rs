//! A region with its composites opened: operators in order, values numbered.

use crate::refusal::{Refusal, refuse, refuse_with_hint};
use byoc_plugin_api::{AttrValue, Constant, DType, Graph, Node, NodeKind, RefusalCode, TensorType, ValueRef};

/// The deepest nesting of composites.
const DEEPEST: usize = 64;

/// A value, by its number in [`Flat::values`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Val(u32);

impl Val {
    /// Its number.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Where a value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Def {
    /// The region's input of that number.
    Input(usize),
    /// The constant of that number.
    Constant(usize),
    /// The operator of that number in [`Flat::ops`].
    Op(usize),
}

/// A tensor of the region.
#[derive(Clone, Debug)]
pub struct Value {
    /// Its dimensions.
    pub shape: Vec<usize>,
    /// Its element type.
    pub dtype: DType,
    /// Where it comes from.
    pub def: Def,
    /// The operators that read it.
    pub users: Vec<usize>,
}

/// An operator of the region. The ones that this backend knows have one result.
#[derive(Clone, Debug)]
pub struct Op<'a> {
    /// Relay's name.
    pub name: &'a str,
    /// Its node, for attributes and sources.
    pub node: &'a Node,
    /// What it reads.
    pub inputs: Vec<Val>,
    /// What it gives.
    pub output: Val,
}

/// A region.
pub struct Flat<'a> {
    /// The values.
    pub values: Vec<Value>,
    /// The operators, in topological order.
    pub ops: Vec<Op<'a>>,
    /// What goes in.
    pub inputs: Vec<Val>,
    /// What comes out.
    pub outputs: Vec<Val>,
    /// The constants.
    pub constants: &'a [Constant],
}

/// A graph on the way: its inputs, and the values of its nodes so far.
struct Frame<'a> {
    graph: &'a Graph,
    inputs: Vec<Val>,
    nodes: Vec<Vec<Val>>,
}

impl<'a> Flat<'a> {
    /// Opens the composites of a graph.
    pub fn new(graph: &'a Graph, constants: &'a [Constant]) -> Result<Flat<'a>, Refusal> {
        if let Err(wrong) = graph.check(constants.len()) {
            return refuse(RefusalCode::UnsupportedOp, wrong);
        }
        let mut flat = Flat { values: Vec::new(), ops: Vec::new(), inputs: Vec::new(), outputs: Vec::new(), constants };
        for (i, input) in graph.inputs.iter().enumerate() {
            let value = flat.value(&input.ty, Def::Input(i))?;
            flat.inputs.push(value);
        }
        let mut frames = vec![Frame { graph, inputs: flat.inputs.clone(), nodes: Vec::new() }];
        while let Some(frame) = frames.last_mut() {
            let resolve = |nodes: &[Vec<Val>], value: &ValueRef| nodes[value.node as usize][value.index as usize];
            let Some(node) = frame.graph.nodes.get(frame.nodes.len()) else {
                let outputs: Vec<Val> = frame.graph.outputs.iter().map(|v| resolve(&frame.nodes, v)).collect();
                frames.pop();
                match frames.last_mut() {
                    Some(caller) => caller.nodes.push(outputs),
                    None => flat.outputs = outputs,
                }
                continue;
            };
            let inputs: Vec<Val> = node.inputs.iter().map(|v| resolve(&frame.nodes, v)).collect();
            match &node.kind {
                NodeKind::Input(i) => {
                    let value = frame.inputs[*i as usize];
                    frame.nodes.push(vec![value]);
                }
                NodeKind::Constant(i) => {
                    let value = flat.value(&node.outputs[0], Def::Constant(*i as usize))?;
                    frame.nodes.push(vec![value]);
                }
                NodeKind::Op(name) => {
                    let output = flat.op(name, node, inputs)?;
                    frame.nodes.push(vec![output]);
                }
                NodeKind::Composite(composite) => {
                    if frames.len() > DEEPEST {
                        return refuse(RefusalCode::ResourceLimit, format!("composites nest more than {DEEPEST} deep"));
                    }
                    frames.push(Frame { graph: &composite.body, inputs, nodes: Vec::new() });
                }
            }
        }
        Ok(flat)
    }

    fn value(&mut self, ty: &TensorType, def: Def) -> Result<Val, Refusal> {
        let Some(shape) = ty.shape() else {
            let detail = format!("{ty} has a dimension that is not known before the run");
            return refuse_with_hint(RefusalCode::DynamicDim, detail, "bind it with --dim NAME=N");
        };
        self.values.push(Value { shape, dtype: ty.dtype, def, users: Vec::new() });
        Ok(Val((self.values.len() - 1) as u32))
    }

    fn op(&mut self, name: &'a str, node: &'a Node, inputs: Vec<Val>) -> Result<Val, Refusal> {
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

    /// The value of that number.
    pub fn get(&self, value: Val) -> &Value {
        &self.values[value.index()]
    }

    /// The constant that a value stands for, with its number.
    pub fn constant(&self, value: Val) -> Option<(usize, &'a Constant)> {
        match self.get(value).def {
            Def::Constant(i) => Some((i, &self.constants[i])),
            _ => None,
        }
    }
}

impl Op<'_> {
    /// A text, or `""` where it is not set.
    pub fn text(&self, key: &str) -> &str {
        self.node.text(key).unwrap_or_default()
    }

    /// A list of integers; a single one is a list of one; empty where it is not set.
    pub fn ints(&self, key: &str) -> Vec<i64> {
        match self.node.attr(key) {
            Some(AttrValue::Int(value)) => vec![*value],
            Some(other) => other.as_ints().unwrap_or_default(),
            None => Vec::new(),
        }
    }

    /// An axis, counted from the end when negative; none where it does not exist.
    pub fn axis(&self, key: &str, default: i64, rank: usize) -> Option<usize> {
        let axis = self.node.int(key).unwrap_or(default);
        let axis = if axis < 0 { axis + rank as i64 } else { axis };
        usize::try_from(axis).ok().filter(|&axis| axis < rank)
    }
}
