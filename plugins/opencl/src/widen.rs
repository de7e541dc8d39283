//! float16 support: tensors in memory are float16, kernels compute in float32.
//!
//! A region's float16 inputs are converted when they are read, its float16 outputs when they are written, and float16
//! constants when the region is loaded. Intermediate results are float32, which is more precise than float16 operators
//! require. A cast to float16 rounds. No device support for float16 arithmetic is needed: every device can convert
//! (`vload_half`, `vstore_half`).

use byoc_loops::operators::elementwise::ROUND_TO_HALF;
use byoc_loops::types::half;
use byoc_plugin_api::{Attr, Constant, ConstantSource, DType, Graph, Node, NodeKind, TensorType, ValueRef};
use byoc_plugin_support::refusal::CompileError;
use byoc_plugin_support::region::expand;
use std::borrow::Cow;

/// Tests a graph for float16 tensors.
fn has_half(graph: &Graph) -> bool {
    let mut graphs = vec![graph];
    while let Some(graph) = graphs.pop() {
        let types = graph.inputs.iter().map(|input| &input.ty).chain(graph.nodes.iter().flat_map(|node| &node.outputs));
        if types.into_iter().any(|ty| ty.dtype == DType::F16) {
            return true;
        }
        graphs.extend(graph.nodes.iter().filter_map(|node| node.as_composite().map(|(_, body)| body)));
    }
    false
}

fn widened_type(ty: &TensorType) -> TensorType {
    let dtype = if ty.dtype == DType::F16 { DType::F32 } else { ty.dtype };
    TensorType { dtype, dims: ty.dims.clone() }
}

/// Appends a `cast` of a value to element type `dtype`, which Relay calls `name`.
fn cast(graph: &mut Graph, value: ValueRef, dtype: DType, name: &str) -> ValueRef {
    let ty = TensorType { dtype, dims: graph.type_of(value).dims.clone() };
    ValueRef::of(graph.push_op("cast", [value], [Attr::new("dtype", name)], [ty]))
}

/// Returns a float32 version of a graph with its composites expanded; the graph itself if it has no float16 tensors.
/// Inputs and outputs keep their types; [`constants`] converts float16 constants.
///
/// # Errors
/// If the graph is invalid for this number of constants.
pub fn graph(graph: &Graph, constants: usize) -> Result<Cow<'_, Graph>, CompileError> {
    if !has_half(graph) {
        return Ok(Cow::Borrowed(graph));
    }
    let mut widened_graph = Graph { symbol: graph.symbol.clone(), attrs: graph.attrs.clone(), ..Graph::default() };
    let mut inputs = Vec::with_capacity(graph.inputs.len());
    for input in &graph.inputs {
        let value = ValueRef::of(widened_graph.push_input(&input.name, input.ty.clone()));
        inputs.push(if input.ty.dtype == DType::F16 {
            cast(&mut widened_graph, value, DType::F32, "float32")
        } else {
            value
        });
    }
    let outputs = expand(graph, constants, inputs, |node: &Node, operands: &[ValueRef]| {
        let narrows = node.op() == Some("cast") && node.outputs.iter().any(|ty| ty.dtype == DType::F16);
        let outputs: Vec<TensorType> = node.outputs.iter().map(widened_type).collect();
        let mut new_node = Node { inputs: operands.iter().copied().collect(), outputs: outputs.into(), ..node.clone() };
        if narrows {
            let in_dtype = operands.first().map(|&operand| widened_graph.type_of(operand).dtype);
            if in_dtype != Some(DType::F32) {
                // `ROUND_TO_HALF` accepts only float32, so the operand is first cast to float32.
                let index = widened_graph.push(new_node.clone());
                new_node.inputs = [ValueRef::of(index)].into_iter().collect();
            }
            new_node.kind = NodeKind::Op(ROUND_TO_HALF.into());
        }
        let count = new_node.outputs.len() as u32;
        let node_index = widened_graph.push(new_node);
        Ok::<_, CompileError>((0..count).map(|index| ValueRef { node: node_index, index }).collect())
    })?;
    for (value, ty) in outputs.into_iter().zip(graph.output_types()) {
        let is_narrow = ty.dtype == DType::F16;
        let output = if is_narrow { cast(&mut widened_graph, value, DType::F16, "float16") } else { value };
        widened_graph.outputs.push(output);
    }
    Ok(Cow::Owned(widened_graph))
}

/// Returns the constants with float16 converted to float32.
pub fn constants(constants: &[Constant]) -> Cow<'_, [Constant]> {
    if constants.iter().all(|constant| constant.dtype() != DType::F16) {
        return Cow::Borrowed(constants);
    }
    let widen_constant = |constant: &Constant| match constant.dtype() == DType::F16 {
        true => Constant::new(constant.name(), DType::F32, constant.shape(), WidenedConstant::of(constant)),
        false => constant.clone(),
    };
    Cow::Owned(constants.iter().map(widen_constant).collect())
}

/// Elements of a constant that was converted to float32.
struct WidenedConstant(Vec<f32>);

impl WidenedConstant {
    fn of(constant: &Constant) -> WidenedConstant {
        let halves = constant.bytes().chunks_exact(2).map(|pair| half([pair[0], pair[1]]));
        WidenedConstant(halves.collect())
    }
}

impl ConstantSource for WidenedConstant {
    fn bytes(&self) -> &[u8] {
        bytemuck::cast_slice(&self.0)
    }

    fn digest(&self) -> String {
        String::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn graph_computes_in_float32_between_its_edges() {
        let half_type = TensorType::new(DType::F16, &[4]);
        let mut half_graph = Graph::new("f");
        let x = half_graph.push_input("x", half_type.clone());
        let c = half_graph.push_constant(0, half_type.clone());
        let sum = half_graph.push_op("add", [ValueRef::of(x), ValueRef::of(c)], [], [half_type.clone()]);
        half_graph.outputs.push(ValueRef::of(sum));
        let widened_graph = graph(&half_graph, 1).unwrap();
        widened_graph.check(1).unwrap();
        let operators: Vec<(&str, DType)> =
            widened_graph.operators().iter().map(|(name, node, _)| (*name, node.outputs[0].dtype)).collect();
        assert_eq!(operators, [("cast", DType::F32), ("add", DType::F32), ("cast", DType::F16)]);
        assert!(widened_graph.output_types().eq([&half_type]) && widened_graph.inputs == half_graph.inputs);
        let float_graph = Graph::new("g");
        assert!(matches!(graph(&float_graph, 0).unwrap(), Cow::Borrowed(_)));
    }
}
