//! Representation of a region in the code generator: composites expanded, shapes static, values numbered.

use crate::view::View;
use byoc_plugin_api::{AttrValue, Constant, DType, Graph, Node, NodeKind, TensorType, ValueRef};

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(u32);

        impl $name {
            /// Creates the id with an index.
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
    /// Id of a tensor of the region.
    Val;
    /// Id of an operator of the region.
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
    /// Dimensions.
    pub shape: Vec<i64>,
    /// Element type.
    pub dtype: DType,
    /// Definition.
    pub def: Def,
    /// Operators that read the value.
    pub users: Vec<OpId>,
}

/// Operator of the region.
#[derive(Clone, Debug)]
pub struct Op<'a> {
    /// Relay name.
    pub name: &'a str,
    /// Node of the graph, for attributes and sources.
    pub node: &'a Node,
    /// Values that the operator reads.
    pub inputs: Vec<Val>,
    /// Values that the operator computes.
    pub outputs: Vec<Val>,
}

/// Region with numbered values.
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
    /// If a dimension is dynamic, composites are nested too deep, or the graph has a reference out of range.
    pub fn new(graph: &'a Graph, constants: &'a [Constant]) -> Result<RegionIr<'a>, String> {
        graph.check(constants.len())?;
        let mut ir =
            RegionIr { values: Vec::new(), ops: Vec::new(), inputs: Vec::new(), outputs: Vec::new(), constants };
        // One scope per graph being expanded: its inputs and the values of its nodes so far.
        struct GraphScope<'a> {
            graph: &'a Graph,
            inputs: Vec<Val>,
            nodes: Vec<Vec<Val>>,
        }
        let inputs = graph.inputs.iter().enumerate();
        let inputs: Vec<Val> =
            inputs.map(|(i, input)| ir.value(&input.ty, Def::Input(i))).collect::<Result<_, String>>()?;
        ir.inputs.clone_from(&inputs);
        let mut scopes = vec![GraphScope { graph, inputs, nodes: Vec::new() }];
        loop {
            let Some(scope) = scopes.last_mut() else { return Err("the graph has no outermost frame".into()) };
            let resolve = |nodes: &[Vec<Val>], value: &ValueRef| nodes[value.node as usize][value.index as usize];
            let Some(node) = scope.graph.nodes.get(scope.nodes.len()) else {
                let outputs: Vec<Val> = scope.graph.outputs.iter().map(|v| resolve(&scope.nodes, v)).collect();
                scopes.pop();
                match scopes.last_mut() {
                    Some(caller) => caller.nodes.push(outputs),
                    None => {
                        ir.outputs = outputs;
                        return Ok(ir);
                    }
                }
                continue;
            };
            let read: Vec<Val> = node.inputs.iter().map(|v| resolve(&scope.nodes, v)).collect();
            let values = match &node.kind {
                NodeKind::Input(i) => vec![scope.inputs[*i as usize]],
                NodeKind::Constant(i) => vec![ir.value(&node.outputs[0], Def::Constant(*i as usize))?],
                NodeKind::Op(name) => ir.op(name, node, read)?,
                NodeKind::Composite(composite) => {
                    if scopes.len() > 64 {
                        return Err("composites are nested more than 64 deep".into());
                    }
                    scopes.push(GraphScope { graph: &composite.body, inputs: read, nodes: Vec::new() });
                    continue;
                }
            };
            scope.nodes.push(values);
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
            // In inference the moving mean and variance are returned unchanged.
            results.truncate(1);
            results.extend([inputs[3], inputs[4]]);
        }
        self.ops.push(Op { name, node, inputs, outputs });
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

    /// Returns the constant that a value refers to; `None` for other values.
    pub fn constant(&self, value: Val) -> Option<&'a Constant> {
        if let Def::Constant(i) = self.val(value).def { self.constants.get(i) } else { None }
    }

    /// Returns the elements of an int64 or int32 constant; `None` for other values.
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
    /// Returns an integer or boolean attribute as an integer; `default` if it is not set.
    pub fn int(&self, key: &str, default: i64) -> i64 {
        self.node.int(key).or_else(|| self.node.flag(key).map(i64::from)).unwrap_or(default)
    }

    /// Returns a numeric attribute; `default` if it is not set.
    pub fn float(&self, key: &str, default: f64) -> f64 {
        self.node.float(key).unwrap_or(default)
    }

    /// Returns a boolean or integer attribute as a boolean; `default` if it is not set.
    pub fn flag(&self, key: &str, default: bool) -> bool {
        self.node.flag(key).or_else(|| self.node.int(key).map(|v| v != 0)).unwrap_or(default)
    }

    /// Returns a string attribute; `""` if it is not set.
    pub fn text(&self, key: &str) -> &str {
        self.node.text(key).unwrap_or_default()
    }

    /// Returns a list of integers, where a single integer is a list of one; `None` if the attribute is not set.
    pub fn ints(&self, key: &str) -> Option<Vec<i64>> {
        match self.node.attr(key)? {
            AttrValue::Int(value) => Some(vec![*value]),
            other => other.as_ints(),
        }
    }

    /// Returns one value per spatial axis; the last one given applies to all further axes.
    pub fn per_axis(&self, key: &str, axes: usize, default: i64) -> Vec<i64> {
        let given = self.ints(key).unwrap_or_default();
        (0..axes).map(|i| given.get(i).or(given.last()).copied().unwrap_or(default)).collect()
    }

    /// Returns the spatial padding (before, after) per axis. The attribute has one value, one per axis, or the values
    /// before all axes followed by those after all axes.
    pub fn padding(&self, axes: usize) -> Vec<(i64, i64)> {
        let given = self.ints("padding").unwrap_or_default();
        let at = |i: usize| given.get(i).or(given.last()).copied().unwrap_or(0);
        (0..axes).map(|i| if given.len() >= 2 * axes { (at(i), at(axes + i)) } else { (at(i), at(i)) }).collect()
    }

    /// Returns an axis attribute; a negative value counts from the end.
    pub fn axis(&self, key: &str, default: i64, rank: usize) -> usize {
        let axis = self.int(key, default);
        (if axis < 0 { axis + rank as i64 } else { axis }).clamp(0, rank.max(1) as i64 - 1) as usize
    }

    /// Tests each axis for being reduced by a reduction.
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

/// Returns true if the operator can be expressed as a view of its input, for most shapes.
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

/// Returns true if the output of a view operator has each element of its input exactly once.
pub fn is_bijective(name: &str) -> bool {
    is_view_op(name) && !matches!(name, "strided_slice" | "split" | "broadcast_to")
}

/// Returns output `k` of a view operator as a view of the memory of its input; `None` if a copy is needed.
pub fn view_through(ir: &RegionIr<'_>, op: &Op<'_>, k: usize, input: &View) -> Option<View> {
    let out = ir.shape(op.outputs[k]);
    let rank = input.shape.len();
    match op.name {
        "copy" => Some(input.clone()),
        "transpose" => Some(input.permute(&transpose_axes(op, rank))),
        "broadcast_to" => input.broadcast(out),
        "split" => {
            let axis = op.axis("axis", 0, rank);
            let before = op.outputs[..k].iter().map(|&v| ir.shape(v)[axis]).sum();
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

/// Returns the axes of a transpose; the default reverses them.
pub fn transpose_axes(op: &Op<'_>, rank: usize) -> Vec<usize> {
    match op.ints("axes") {
        Some(axes) if !axes.is_empty() || rank == 0 => {
            axes.iter().map(|&a| (if a < 0 { a + rank as i64 } else { a }) as usize).collect()
        }
        _ => (0..rank).rev().collect(),
    }
}

/// Returns the first index and the step of a `strided_slice` per axis.
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
