//! A region as the code generator works on it: composites opened, shapes known, every value numbered.

use crate::view::View;
use byoc_plugin_api::{AttrValue, Constant, DType, Graph, Node, NodeKind, TensorType, ValueRef};

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(u32);

        impl $name {
            /// The id of that number.
            pub fn new(index: usize) -> $name {
                $name(index as u32)
            }

            /// Its number.
            pub fn index(self) -> usize {
                self.0 as usize
            }
        }
    )*};
}

ids! {
    /// A tensor of the region.
    Val;
    /// An operator of the region.
    OpId;
}

/// Where a value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Def {
    /// The region's input of that number.
    Input(usize),
    /// The constant of that number.
    Constant(usize),
    /// An output of an operator.
    Op(OpId, usize),
}

/// A tensor of the region.
#[derive(Clone, Debug)]
pub struct Value {
    /// Its dimensions.
    pub shape: Vec<i64>,
    /// Its element type.
    pub dtype: DType,
    /// Where it comes from.
    pub def: Def,
    /// Who reads it.
    pub users: Vec<OpId>,
}

/// An operator of the region.
#[derive(Clone, Debug)]
pub struct Op<'a> {
    /// Relay's name.
    pub name: &'a str,
    /// Its node, for attributes and sources.
    pub node: &'a Node,
    /// What it reads.
    pub inputs: Vec<Val>,
    /// What it gives.
    pub outputs: Vec<Val>,
}

/// A region.
#[derive(Debug)]
pub struct Program<'a> {
    /// The values.
    pub values: Vec<Value>,
    /// The operators, in topological order.
    pub ops: Vec<Op<'a>>,
    /// What goes in.
    pub inputs: Vec<Val>,
    /// What comes out.
    pub outputs: Vec<Val>,
    /// The constants that values refer to.
    pub constants: &'a [Constant],
}

impl<'a> Program<'a> {
    /// Opens the composites of a graph and numbers its values.
    ///
    /// # Errors
    /// Where a dimension is not known, or the graph refers to what it does not have.
    pub fn new(graph: &'a Graph, constants: &'a [Constant]) -> Result<Program<'a>, String> {
        graph.check(constants.len())?;
        let mut program =
            Program { values: Vec::new(), ops: Vec::new(), inputs: Vec::new(), outputs: Vec::new(), constants };
        // One frame per open graph: its inputs, the values of its nodes so far, and the caller's node it stands for.
        struct Frame<'a> {
            graph: &'a Graph,
            inputs: Vec<Val>,
            nodes: Vec<Vec<Val>>,
        }
        let inputs = graph.inputs.iter().enumerate();
        let inputs: Vec<Val> =
            inputs.map(|(i, input)| program.value(&input.ty, Def::Input(i))).collect::<Result<_, String>>()?;
        program.inputs.clone_from(&inputs);
        let mut frames = vec![Frame { graph, inputs, nodes: Vec::new() }];
        loop {
            let Some(frame) = frames.last_mut() else { return Err("a graph without an end".into()) };
            let resolve = |nodes: &[Vec<Val>], value: &ValueRef| nodes[value.node as usize][value.index as usize];
            let Some(node) = frame.graph.nodes.get(frame.nodes.len()) else {
                let outputs: Vec<Val> = frame.graph.outputs.iter().map(|v| resolve(&frame.nodes, v)).collect();
                frames.pop();
                match frames.last_mut() {
                    Some(caller) => caller.nodes.push(outputs),
                    None => {
                        program.outputs = outputs;
                        return Ok(program);
                    }
                }
                continue;
            };
            let read: Vec<Val> = node.inputs.iter().map(|v| resolve(&frame.nodes, v)).collect();
            let values = match &node.kind {
                NodeKind::Input(i) => vec![frame.inputs[*i as usize]],
                NodeKind::Constant(i) => vec![program.value(&node.outputs[0], Def::Constant(*i as usize))?],
                NodeKind::Op(name) => program.op(name, node, read)?,
                NodeKind::Composite(composite) => {
                    if frames.len() > 64 {
                        return Err("composites are nested more than 64 deep".into());
                    }
                    frames.push(Frame { graph: &composite.body, inputs: read, nodes: Vec::new() });
                    continue;
                }
            };
            frame.nodes.push(values);
        }
    }

    fn value(&mut self, ty: &TensorType, def: Def) -> Result<Val, String> {
        let shape = ty.shape().ok_or_else(|| format!("{ty} has a dimension that is not known"))?;
        let shape = shape.iter().map(|&d| d as i64).collect();
        self.values.push(Value { shape, dtype: ty.dtype, def, users: Vec::new() });
        Ok(Val::new(self.values.len() - 1))
    }

    fn op(&mut self, name: &'a str, node: &'a Node, inputs: Vec<Val>) -> Result<Vec<Val>, String> {
        let id = OpId::new(self.ops.len());
        let outputs = node.outputs.iter().enumerate();
        let outputs: Vec<Val> = outputs.map(|(k, ty)| self.value(ty, Def::Op(id, k))).collect::<Result<_, String>>()?;
        for &input in &inputs {
            self.values[input.index()].users.push(id);
        }
        let mut results = outputs.clone();
        if name == "nn.batch_norm" && inputs.len() == 5 {
            // In inference the running statistics come out as they went in.
            results.truncate(1);
            results.extend([inputs[3], inputs[4]]);
        }
        self.ops.push(Op { name, node, inputs, outputs });
        Ok(results)
    }

    /// The value of that number.
    pub fn val(&self, value: Val) -> &Value {
        &self.values[value.index()]
    }

    /// The dimensions of a value.
    pub fn shape(&self, value: Val) -> &[i64] {
        &self.val(value).shape
    }

    /// The operator of that number.
    pub fn get(&self, op: OpId) -> &Op<'a> {
        &self.ops[op.index()]
    }

    /// The operator that gives a value.
    pub fn producer(&self, value: Val) -> Option<OpId> {
        if let Def::Op(op, _) = self.val(value).def { Some(op) } else { None }
    }

    /// The constant that a value stands for.
    pub fn constant(&self, value: Val) -> Option<&'a Constant> {
        if let Def::Constant(i) = self.val(value).def { self.constants.get(i) } else { None }
    }

    /// The elements of a constant of 64-bit or 32-bit integers, if the value is one.
    pub fn constant_ints(&self, value: Val) -> Option<Vec<i64>> {
        let tensor = self.constant(value)?.tensor();
        match tensor.dtype() {
            DType::I64 => Some(tensor.as_slice::<i64>().to_vec()),
            DType::I32 => Some(tensor.as_slice::<i32>().iter().map(|&x| i64::from(x)).collect()),
            _ => None,
        }
    }
}

impl Op<'_> {
    /// An integer attribute, or `default` where it is not set.
    pub fn int(&self, key: &str, default: i64) -> i64 {
        self.node.int(key).or_else(|| self.node.flag(key).map(i64::from)).unwrap_or(default)
    }

    /// A number, or `default` where it is not set.
    pub fn float(&self, key: &str, default: f64) -> f64 {
        self.node.float(key).unwrap_or(default)
    }

    /// A flag, or `default` where it is not set.
    pub fn flag(&self, key: &str, default: bool) -> bool {
        self.node.flag(key).or_else(|| self.node.int(key).map(|v| v != 0)).unwrap_or(default)
    }

    /// A text, or `""` where it is not set.
    pub fn text(&self, key: &str) -> &str {
        self.node.text(key).unwrap_or_default()
    }

    /// A list of integers; one integer is a list of one; `None` where it is not set.
    pub fn ints(&self, key: &str) -> Option<Vec<i64>> {
        match self.node.attr(key)? {
            AttrValue::Int(value) => Some(vec![*value]),
            other => other.as_ints(),
        }
    }

    /// One value per spatial axis, where a single one stands for all.
    pub fn per_axis(&self, key: &str, axes: usize, default: i64) -> Vec<i64> {
        let given = self.ints(key).unwrap_or_default();
        (0..axes).map(|i| given.get(i).or(given.last()).copied().unwrap_or(default)).collect()
    }

    /// Spatial padding as (before, after) by axis, from one value, one per axis, or all befores and then all afters.
    pub fn padding(&self, axes: usize) -> Vec<(i64, i64)> {
        let given = self.ints("padding").unwrap_or_default();
        let at = |i: usize| given.get(i).or(given.last()).copied().unwrap_or(0);
        (0..axes).map(|i| if given.len() >= 2 * axes { (at(i), at(axes + i)) } else { (at(i), at(i)) }).collect()
    }

    /// An axis attribute, counted from the end when negative.
    pub fn axis(&self, key: &str, default: i64, rank: usize) -> usize {
        let axis = self.int(key, default);
        (if axis < 0 { axis + rank as i64 } else { axis }).clamp(0, rank.max(1) as i64 - 1) as usize
    }

    /// The axes that a reduction goes over.
    pub fn reduced_axes(&self, rank: usize) -> Vec<bool> {
        let mut reduced = vec![false; rank];
        match self.ints("axis") {
            None => return vec![true; rank],
            Some(axes) => {
                for axis in axes {
                    let axis = if axis < 0 { axis + rank as i64 } else { axis };
                    if let Some(flag) = reduced.get_mut(axis as usize) {
                        *flag = true;
                    }
                }
            }
        }
        if self.flag("exclude", false) {
            reduced.iter_mut().for_each(|flag| *flag = !*flag);
        }
        reduced
    }
}

/// Returns true if the operator only looks at its input in another way, as far as shapes allow.
pub fn is_view_op(name: &str) -> bool {
    matches!(
        name,
        "reshape"
            | "nn.batch_flatten"
            | "squeeze"
            | "expand_dims"
            | "transpose"
            | "strided_slice"
            | "split"
            | "broadcast_to"
            | "copy"
    )
}

/// Returns true if a view operator's output has the elements of its input, each once.
pub fn is_bijective(name: &str) -> bool {
    is_view_op(name) && !matches!(name, "strided_slice" | "split" | "broadcast_to")
}

/// Output `k` of a view operator, as a view of what its input is a view of; `None` where that takes a copy.
pub fn view_through(program: &Program<'_>, op: &Op<'_>, k: usize, input: &View) -> Option<View> {
    let out = program.shape(op.outputs[k]);
    let rank = input.shape.len();
    match op.name {
        "copy" => Some(input.clone()),
        "transpose" => Some(input.permute(&transpose_axes(op, rank))),
        "broadcast_to" => input.broadcast(out),
        "split" => {
            let axis = op.axis("axis", 0, rank);
            let before = op.outputs[..k].iter().map(|&v| program.shape(v)[axis]).sum();
            Some(input.slice(axis, before, 1, out[axis]))
        }
        "strided_slice" => {
            let mut view = input.clone();
            for (axis, (begin, step)) in slice_starts(op, &input.shape).into_iter().enumerate() {
                view = view.slice(axis, begin, step, out[axis]);
            }
            Some(view)
        }
        _ => input.reshape(out),
    }
}

/// The axes of a transpose, in order.
pub fn transpose_axes(op: &Op<'_>, rank: usize) -> Vec<usize> {
    match op.ints("axes") {
        Some(axes) if !axes.is_empty() || rank == 0 => {
            axes.iter().map(|&a| (if a < 0 { a + rank as i64 } else { a }) as usize).collect()
        }
        _ => (0..rank).rev().collect(),
    }
}

/// First index and step of a `strided_slice`, by axis.
fn slice_starts(op: &Op<'_>, shape: &[i64]) -> Vec<(i64, i64)> {
    let rank = shape.len();
    let begin = op.ints("begin").unwrap_or_default();
    let strides = op.ints("strides").unwrap_or_default();
    let axes = op.ints("axes").filter(|a| !a.is_empty()).unwrap_or_else(|| (0..begin.len() as i64).collect());
    let by_size = op.text("slice_mode") == "size";
    let mut starts = vec![(0, 1); rank];
    for (i, axis) in axes.iter().enumerate() {
        let axis = (if *axis < 0 { axis + rank as i64 } else { *axis }) as usize;
        let (Some(start), Some(&size)) = (starts.get_mut(axis), shape.get(axis)) else { continue };
        let step = if by_size { 1 } else { strides.get(i).or(strides.last()).copied().unwrap_or(1) };
        let given = begin.get(i).copied().unwrap_or(0);
        let from = if given < 0 { given + size } else { given };
        *start = (if step < 0 { from.clamp(-1, size - 1) } else { from.clamp(0, size) }, step);
    }
    starts
}
