//! Lowers operators to nodes: convolution, dense, pooling and elementwise operators, each with the
//! epilogue on its accumulators.

mod epilogue;
mod layer;
pub mod range;

use byoc_plugin_api::{Constant, DType, Graph, RefusalCode};
use byoc_plugin_support::int8::Hints;
use byoc_plugin_support::refusal::{CompileError, refuse, refuse_with_hint};
use byoc_plugin_support::region::{Def, Op, RegionIr, Val};
use byoc_vta_machine::isa::AluOp;
use epilogue::Epilogue;
use range::ChannelStep;
use std::collections::BTreeMap;

pub use layer::{ConvShape, PoolShape};

/// Hints of refusals.
const HINTS: Hints = Hints {
    quantize: "run \"byoc quantize\" first: byoc quantize MODEL --calibrate DATA --backend vta -o FILE.relay, with \
               --keep none for the first convolution, which otherwise stays in float",
    scheme: "run \"byoc quantize --backend vta\", or --scheme symmetric,power-of-two, for a model in the quantization \
             scheme of the device",
};

/// Operation of a node on its accumulators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeStep {
    /// Operation with constant operands.
    Channel(ChannelStep),
    /// Addition of a widened tensor.
    Add(WidenedTensor),
}

/// int8 tensor that is widened to int32, and operations on the widened elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WidenedTensor {
    /// int8 tensor.
    pub tensor: Val,
    /// Operations on the widened elements.
    pub steps: Vec<(AluOp, i16)>,
}

/// Computation of a node before its epilogue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Convolution or dense layer.
    Conv(ConvShape),
    /// Max pooling.
    Pool(PoolShape),
    /// No computation: the epilogue reads the elements of a tensor.
    Elementwise,
}

/// Computation on one tensor, with a stored result.
#[derive(Clone, Debug)]
pub struct Node {
    /// Computation before the epilogue.
    pub kind: Kind,
    /// Tensor that the node reads.
    pub data: Val,
    /// Epilogue: operations on the accumulators.
    pub steps: Vec<NodeStep>,
    /// Tensor that the node stores.
    pub result: Val,
    /// Index of the last operator.
    last_op: usize,
    /// Operators, with their source nodes in the model.
    pub comment: String,
}

/// Lowered region.
pub struct Network<'a> {
    /// Operators over numbered values.
    pub ir: RegionIr<'a>,
    /// Nodes in execution order.
    pub nodes: Vec<Node>,
}

/// Lowers a region.
///
/// # Errors
/// If the device does not support an operator. The error is the refusal of the first such operator.
pub fn lower<'a>(graph: &'a Graph, constants: &'a [Constant]) -> Result<Network<'a>, CompileError> {
    let ir = RegionIr::new(graph, constants)?;
    ir.ops.iter().try_for_each(check_single_result)?;
    let mut lowering =
        Lowering { ir: &ir, is_fused: vec![false; ir.ops.len()], widened: BTreeMap::new(), nodes: Vec::new() };
    // Widened values are recorded first, because an epilogue may add a value that is computed after its layer.
    for (op_index, op) in ir.ops.iter().enumerate() {
        lowering.is_fused[op_index] = lowering.widen(op);
    }
    for op_index in 0..ir.ops.len() {
        if !lowering.is_fused[op_index] {
            lowering.lower_node(op_index)?;
        }
    }
    let mut nodes = lowering.nodes;
    // A node reads operands of all its operators, so it is executed at the position of the last operator.
    nodes.sort_by_key(|node| node.last_op);
    check_values(&ir, &nodes)?;
    Ok(Network { ir, nodes })
}

struct Lowering<'i, 'a> {
    ir: &'i RegionIr<'a>,
    is_fused: Vec<bool>,
    /// Widened values, which are not stored in memory.
    widened: BTreeMap<Val, WidenedTensor>,
    nodes: Vec<Node>,
}

impl<'a> Lowering<'_, 'a> {
    /// Lowers the node that begins with operator `op_index`, and fuses subsequent operators.
    fn lower_node(&mut self, op_index: usize) -> Result<(), CompileError> {
        let ir = self.ir;
        let op = &ir.ops[op_index];
        self.is_fused[op_index] = true;
        let result = op.outputs[0];
        let (kind, data, mut epilogue) = match op.name {
            "nn.conv2d" | "qnn.conv2d" | "nn.dense" | "qnn.dense" => {
                let shape = layer::conv_shape(ir, op)?;
                let ranges = layer::ranges(ir, &shape)?;
                let epilogue = Epilogue::new(shape.kernels, layer::channel_axis(op), ranges, DType::I32);
                (Kind::Conv(shape), op.inputs[0], epilogue)
            }
            "nn.max_pool2d" => (Kind::Pool(layer::pool(ir, op)?), op.inputs[0], Epilogue::of_tensor(DType::I8)),
            _ => {
                let Some((data, epilogue)) = self.elementwise(op)? else {
                    let detail =
                        format!("{} does not follow a convolution or a dense layer of the same region", op.name);
                    return refuse(RefusalCode::UnsupportedOp, detail);
                };
                (Kind::Elementwise, data, epilogue)
            }
        };
        let (mut last_op, mut tail, mut ops) = (op_index, result, vec![op]);
        while !ir.outputs.contains(&tail) {
            let &[user] = &ir.val(tail).users[..] else { break };
            let next_op = ir.get(user);
            if self.is_fused[user.index()] || !epilogue.append(ir, next_op, tail, &self.widened)? {
                break;
            }
            self.is_fused[user.index()] = true;
            (last_op, tail) = (last_op.max(user.index()), next_op.outputs[0]);
            ops.push(next_op);
        }
        let comment = comment(&ops);
        self.nodes.push(Node { kind, data, steps: epilogue.steps, result: tail, last_op, comment });
        Ok(())
    }

    /// Records an operator that widens an int8 tensor to int32, or that computes on a widened value. Returns false for
    /// any other operator.
    fn widen(&mut self, op: &Op<'a>) -> bool {
        let ir = self.ir;
        let (operand, result) = (op.inputs[0], op.outputs[0]);
        let dtype = |value: Val| ir.val(value).dtype;
        if op.name == "cast" && (dtype(operand), dtype(result)) == (DType::I8, DType::I32) {
            self.widened.insert(result, WidenedTensor { tensor: operand, steps: Vec::new() });
            return true;
        }
        let Some(WidenedTensor { tensor, mut steps }) = self.widened.get(&operand).cloned() else { return false };
        let mut epilogue = Epilogue::of_tensor(DType::I32);
        // An operator that is unsupported here may belong to an epilogue. If not, it is refused later, with the reason.
        if dtype(result) != DType::I32 || !epilogue.append(ir, op, operand, &BTreeMap::new()).unwrap_or(false) {
            return false;
        }
        for step in epilogue.steps {
            match step {
                NodeStep::Channel(ChannelStep::Immediate(op, imm)) => steps.push((op, imm)),
                _ => return false,
            }
        }
        self.widened.insert(result, WidenedTensor { tensor, steps });
        true
    }

    /// Begins an elementwise node with an operator on int8 tensors or widened values.
    fn elementwise(&self, op: &Op<'a>) -> Result<Option<(Val, Epilogue)>, CompileError> {
        let ir = self.ir;
        let data_operand = op.inputs[0];
        let (data, mut epilogue) = match self.widened.get(&data_operand) {
            Some(widened) => {
                let mut epilogue = Epilogue::of_tensor(DType::I32);
                for (op, imm) in &widened.steps {
                    epilogue.push_immediate(*op, *imm);
                }
                (widened.tensor, epilogue)
            }
            None if ir.val(data_operand).dtype == DType::I8 => (data_operand, Epilogue::of_tensor(DType::I8)),
            None => {
                let dtype = ir.val(data_operand).dtype;
                let hint = if dtype.is_float() { HINTS.quantize } else { "" };
                let detail = format!("input 0: expected int8, found {dtype}");
                return refuse_with_hint(RefusalCode::UnsupportedDtype, detail, hint);
            }
        };
        Ok(epilogue.append(ir, op, data_operand, &self.widened)?.then_some((data, epilogue)))
    }
}

/// Formats the names of operators and of their source nodes in the model.
fn comment(ops: &[&Op<'_>]) -> String {
    let names: Vec<&str> = ops.iter().map(|op| op.name).collect();
    let mut sources: Vec<String> =
        ops.iter().flat_map(|op| op.node.sources.iter().map(|source| source.to_string())).collect();
    sources.dedup();
    let origin = if sources.is_empty() { String::new() } else { format!(" (from {})", sources.join(", ")) };
    format!("{}{origin}", names.join(", "))
}

/// Checks that an operator has operands and one result, as every supported operator does.
fn check_single_result(op: &Op<'_>) -> Result<(), CompileError> {
    match op.outputs.len() {
        1 if !op.inputs.is_empty() => Ok(()),
        n => {
            let operand_count = op.inputs.len();
            let detail =
                format!("{}: expected at least 1 operand and 1 result, found {operand_count} and {n}", op.name);
            refuse(RefusalCode::UnsupportedOp, detail)
        }
    }
}

/// Checks that nodes read int8 tensors that are region inputs or node results, and that region outputs are node
/// results.
fn check_values(ir: &RegionIr<'_>, nodes: &[Node]) -> Result<(), CompileError> {
    let is_stored = |value: Val| nodes.iter().any(|node| node.result == value);
    for node in nodes {
        let addends = node.steps.iter().filter_map(|step| match step {
            NodeStep::Add(widened) => Some(widened.tensor),
            NodeStep::Channel(_) => None,
        });
        let elementwise = (node.kind == Kind::Elementwise).then_some(node.data);
        let result = &ir.val(node.result).shape;
        if let Some(mismatch) = addends.clone().chain(elementwise).find(|value| ir.val(*value).shape != *result) {
            let shape = &ir.val(mismatch).shape;
            let detail = format!("{}: expected operands of shape {result:?}, found {shape:?}", node.comment);
            return refuse(RefusalCode::UnsupportedShape, detail);
        }
        for value in [node.data].into_iter().chain(addends) {
            let dtype = ir.val(value).dtype;
            if dtype != DType::I8 {
                return refuse(
                    RefusalCode::UnsupportedDtype,
                    format!("{}: expected int8, found {dtype}", node.comment),
                );
            }
            match ir.val(value).def {
                Def::Input(_) => {}
                Def::Op(..) if is_stored(value) => {}
                Def::Constant(_) => {
                    let detail = format!("{}: expected a tensor, found a constant", node.comment);
                    return refuse(RefusalCode::UnsupportedOp, detail);
                }
                Def::Op(..) => {
                    let detail = format!(
                        "{}: expected the result of a layer as operand, found an intermediate result",
                        node.comment
                    );
                    return refuse(RefusalCode::UnsupportedOp, detail);
                }
            }
        }
        let result = ir.val(node.result);
        if !matches!(result.dtype, DType::I8 | DType::I32) {
            let detail = format!("{}: expected an int8 or int32 result, found {}", node.comment, result.dtype);
            return refuse(RefusalCode::UnsupportedDtype, detail);
        }
        if !matches!(node.kind, Kind::Conv(_)) && result.dtype != DType::I8 {
            let detail = format!("{}: expected an int8 result, found {}", node.comment, result.dtype);
            return refuse(RefusalCode::UnsupportedDtype, detail);
        }
        let mut shapes = [node.data, node.result].into_iter().map(|value| &ir.val(value).shape);
        if let Some(shape) = shapes.find(|shape| shape.contains(&0)) {
            let detail = format!("{}: expected non-empty tensors, found shape {shape:?}", node.comment);
            return refuse(RefusalCode::UnsupportedShape, detail);
        }
    }
    for (i, output) in ir.outputs.iter().enumerate() {
        if !is_stored(*output) || ir.outputs[..i].contains(output) {
            let found =
                if is_stored(*output) { "another output" } else { "an input, a constant or an intermediate result" };
            let detail = format!("output {i}: expected the result of a layer, found {found}");
            return refuse(RefusalCode::UnsupportedOp, detail);
        }
    }
    Ok(())
}
