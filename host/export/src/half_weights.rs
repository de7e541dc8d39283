//! Storage of float32 weights as float16: half the flash, at a relative error of up to 2^-11 per weight.

use byoc_plugin_api::{Constant, ConstantSource, DType, Graph, NodeKind};
use half::f16;
use std::collections::BTreeMap;

/// Operators with weights, and the index of the weight operand. The generated code supports weights and data of
/// different element types.
const WEIGHTS: &[(&str, usize)] = &[
    ("nn.conv1d", 1),
    ("nn.conv2d", 1),
    ("nn.conv2d_transpose", 1),
    ("nn.dense", 1),
    ("nn.matmul", 1),
    ("nn.batch_matmul", 1),
    ("take", 0),
];

/// Bytes and digest of a rounded constant.
struct RoundedConstant {
    bytes: Vec<u8>,
    digest: String,
}

impl ConstantSource for RoundedConstant {
    fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn digest(&self) -> String {
        self.digest.clone()
    }
}

/// Rounds the float32 constants that are used only as weights. The weights of external operators, for which
/// `is_external` returns true, and weights beyond the range of float16 are unchanged.
pub fn round(graph: &mut Graph, constants: &mut [Constant], is_external: impl Fn(&str) -> bool) {
    let mut eligibility: BTreeMap<u32, bool> = BTreeMap::new();
    let constant_of = |graph: &Graph, node: u32| match graph.nodes.get(node as usize).map(|node| &node.kind) {
        Some(NodeKind::Constant(index)) => Some(*index),
        _ => None,
    };
    for node in &graph.nodes {
        for (operand, input) in node.inputs.iter().enumerate() {
            let Some(index) = constant_of(graph, input.node) else { continue };
            let is_weight = match &node.kind {
                NodeKind::Op(name) => WEIGHTS.contains(&(name.as_str(), operand)) && !is_external(name.as_str()),
                _ => false,
            };
            *eligibility.entry(index).or_insert(true) &= is_weight;
        }
    }
    for output in &graph.outputs {
        if let Some(index) = constant_of(graph, output.node) {
            eligibility.insert(index, false);
        }
    }
    for (index, constant) in constants.iter_mut().enumerate() {
        let is_eligible = eligibility.get(&(index as u32)) == Some(&true) && constant.dtype() == DType::F32;
        if let Some(half_constant) = Some(&*constant).filter(|_| is_eligible).and_then(round_constant) {
            *constant = half_constant;
        } else {
            eligibility.remove(&(index as u32));
        }
    }
    for node in graph.nodes.iter_mut() {
        if let NodeKind::Constant(index) = node.kind
            && eligibility.contains_key(&index)
            && let Some(ty) = node.outputs.first_mut()
        {
            ty.dtype = DType::F16;
        }
    }
}

/// Converts a constant to float16; `None` if a finite element would become infinite.
fn round_constant(constant: &Constant) -> Option<Constant> {
    let mut bytes = Vec::with_capacity(constant.bytes().len() / 2);
    for &x in constant.tensor().as_slice::<f32>() {
        let half = f16::from_f32(x);
        if half.is_infinite() && x.is_finite() {
            return None;
        }
        bytes.extend_from_slice(&half.to_le_bytes());
    }
    let digest = format!("{}, float16", constant.digest());
    Some(Constant::new(constant.name(), DType::F16, constant.shape(), RoundedConstant { bytes, digest }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use byoc_plugin_api::{TensorType, ValueRef};

    #[test]
    fn weights_alone_are_rounded() {
        let bytes = |values: &[f32]| values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
        let constant = |values: &[f32], shape: &[usize]| {
            Constant::new("", DType::F32, shape, RoundedConstant { bytes: bytes(values), digest: "d".into() })
        };
        let mut constants = [constant(&[1.0, 0.1], &[1, 2]), constant(&[1e30, 1.0], &[1, 2]), constant(&[2.0], &[1])];
        let mut graph = Graph::new("f");
        let ty = |shape: &[usize]| TensorType::new(DType::F32, shape);
        let mut value = graph.push_input("x", ty(&[1, 2]));
        for index in [0, 1] {
            let weight = graph.push_constant(index, ty(&[1, 2]));
            value = graph.push_op("nn.dense", [ValueRef::of(value), ValueRef::of(weight)], [], [ty(&[1, 1])]);
        }
        let bias = graph.push_constant(2, ty(&[1]));
        let sum = graph.push_op("add", [ValueRef::of(value), ValueRef::of(bias)], [], [ty(&[1, 1])]);
        graph.outputs.push(ValueRef::of(sum));
        round(&mut graph, &mut constants, |_| false);
        let types: Vec<DType> = constants.iter().map(Constant::dtype).collect();
        assert_eq!(types, [DType::F16, DType::F32, DType::F32]);
        let constant_nodes = graph.nodes.iter().filter(|node| matches!(node.kind, NodeKind::Constant(_)));
        assert_eq!(constant_nodes.map(|node| node.outputs[0].dtype).collect::<Vec<_>>(), types);
        assert_eq!(constants[0].bytes(), [0x00, 0x3c, 0x66, 0x2e]);
    }
}
