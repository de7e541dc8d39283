//! ONNX graphs of known operators with shapes and attributes that nobody would write. The bytes of an input are the choices.

use crate::{Target, files};
use byoc::frontend::onnx::proto::{
    AttributeProto, AttributeType, DimensionProto, DimensionValue, GraphProto, ModelProto, NodeProto,
    OperatorSetIdProto, TensorProto, TensorShapeProto, TensorTypeProto, TypeProto, ValueInfoProto,
};
use prost::Message;

pub const ONNX_GRAPH: Target = Target {
    name: "onnx_graph",
    seeds: || vec![Vec::new()],
    mutate: |_, random| (0..64).flat_map(|_| random.next_u64().to_le_bytes()).collect(),
    run: |bytes| files::model(&model(bytes).encode_to_vec(), "onnx"),
};

/// Operators, by how many inputs they have; a few are given more or fewer.
const OPERATORS: &[(&str, usize)] = &[
    ("Relu", 1),
    ("Sigmoid", 1),
    ("Tanh", 1),
    ("Exp", 1),
    ("Log", 1),
    ("Neg", 1),
    ("Abs", 1),
    ("Sqrt", 1),
    ("Erf", 1),
    ("Floor", 1),
    ("Round", 1),
    ("Not", 1),
    ("IsNaN", 1),
    ("LeakyRelu", 1),
    ("Elu", 1),
    ("Selu", 1),
    ("Softplus", 1),
    ("HardSigmoid", 1),
    ("Softmax", 1),
    ("LogSoftmax", 1),
    ("Identity", 1),
    ("Shape", 1),
    ("Size", 1),
    ("NonZero", 1),
    ("Cast", 1),
    ("Transpose", 1),
    ("Flatten", 1),
    ("Squeeze", 1),
    ("Unsqueeze", 1),
    ("ReduceSum", 1),
    ("ReduceMean", 1),
    ("ReduceMax", 1),
    ("ReduceProd", 1),
    ("ArgMax", 1),
    ("ArgMin", 1),
    ("GlobalAveragePool", 1),
    ("GlobalMaxPool", 1),
    ("AveragePool", 1),
    ("MaxPool", 1),
    ("LpNormalization", 1),
    ("LRN", 1),
    ("DepthToSpace", 1),
    ("SpaceToDepth", 1),
    ("ConstantOfShape", 1),
    ("EyeLike", 1),
    ("DynamicQuantizeLinear", 1),
    ("Split", 1),
    ("CumSum", 2),
    ("Add", 2),
    ("Sub", 2),
    ("Mul", 2),
    ("Div", 2),
    ("Mod", 2),
    ("Pow", 2),
    ("And", 2),
    ("Xor", 2),
    ("Equal", 2),
    ("Less", 2),
    ("Greater", 2),
    ("Max", 2),
    ("Min", 2),
    ("Mean", 2),
    ("BitShift", 2),
    ("MatMul", 2),
    ("Gather", 2),
    ("GatherElements", 2),
    ("GatherND", 2),
    ("Expand", 2),
    ("Reshape", 2),
    ("Tile", 2),
    ("TopK", 2),
    ("OneHot", 3),
    ("Concat", 2),
    ("PRelu", 2),
    ("Conv", 2),
    ("ConvTranspose", 2),
    ("Pad", 2),
    ("Compress", 2),
    ("Where", 3),
    ("Clip", 3),
    ("Gemm", 3),
    ("Range", 3),
    ("ScatterElements", 3),
    ("ScatterND", 3),
    ("LayerNormalization", 3),
    ("InstanceNormalization", 3),
    ("QuantizeLinear", 3),
    ("DequantizeLinear", 3),
    ("Slice", 4),
    ("Resize", 4),
    ("LSTM", 3),
    ("GRU", 3),
    ("RNN", 3),
    ("BatchNormalization", 5),
    ("MatMulInteger", 2),
    ("ConvInteger", 2),
    ("QLinearMatMul", 8),
    ("Einsum", 2),
    ("Trilu", 1),
    ("NonMaxSuppression", 2),
    ("RoiAlign", 3),
    ("GridSample", 2),
    ("MaxRoiPool", 2),
];

const ATTRIBUTES: &[&str] = &[
    "axis",
    "axes",
    "keepdims",
    "perm",
    "to",
    "kernel_shape",
    "strides",
    "pads",
    "dilations",
    "group",
    "auto_pad",
    "alpha",
    "beta",
    "transA",
    "transB",
    "epsilon",
    "mode",
    "ceil_mode",
    "count_include_pad",
    "size",
    "blocksize",
    "num_outputs",
    "hidden_size",
    "direction",
    "output_padding",
    "output_shape",
    "largest",
    "sorted",
    "batch_dims",
    "reduction",
    "equation",
    "exclusive",
    "reverse",
    "k",
    "upper",
    "fmod",
    "noop_with_empty_axes",
    "select_last_index",
    "storage_order",
    "coordinate_transformation_mode",
    "value",
    "allowzero",
    "split",
    "start",
    "end",
    "layout",
    "linear_before_reset",
    "bias",
    "dtype",
    "align_corners",
    "padding_mode",
];

const TEXTS: &[&str] = &[
    "",
    "SAME_UPPER",
    "SAME_LOWER",
    "VALID",
    "NOTSET",
    "bidirectional",
    "reverse",
    "linear",
    "nearest",
    "cubic",
    "constant",
    "edge",
    "reflect",
    "wrap",
    "ij,jk->ik",
    "...ij,...jk->...ik",
    "ii->i",
    "i,j->ij",
    "DCR",
    "CRD",
    "add",
    "max",
    "none",
    "asymmetric",
    "->",
    "half_pixel",
    "align_corners",
    "LEFT",
    "border",
    "zeros",
];

/// Sizes of dimensions: mostly small, since odd shapes are where mistakes are, and now and then huge.
const SIZES: [i64; 20] = [0, 1, 1, 2, 2, 3, 3, 4, 5, 7, 8, 16, 17, 33, 64, -1, 1 << 20, 1 << 31, 1 << 36, i64::MAX];

/// Element types: float32 most of the time.
const TYPES: [i32; 16] = [1, 1, 1, 1, 1, 7, 7, 6, 3, 2, 9, 11, 10, 16, 8, 99];

/// Choices from bytes: 0 where there are no more.
struct Choices<'a>(std::slice::Iter<'a, u8>);

impl Choices<'_> {
    fn byte(&mut self) -> usize {
        self.0.next().copied().map_or(0, usize::from)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.byte() << 8 | self.byte()) % n
    }

    fn of<'t, T>(&mut self, of: &'t [T]) -> &'t T {
        &of[self.below(of.len())]
    }

    /// Small most of the time; one in sixteen is anything.
    fn size(&mut self) -> i64 {
        if self.byte() < 16 { *self.of(&SIZES) } else { SIZES[1 + self.below(10)] }
    }

    fn dims(&mut self, most: usize) -> Vec<i64> {
        (0..self.below(most + 1)).map(|_| self.size()).collect()
    }
}

fn model(bytes: &[u8]) -> ModelProto {
    let mut c = Choices(bytes.iter());
    let mut graph = GraphProto { name: "g".into(), ..GraphProto::default() };
    let mut names: Vec<String> = Vec::new();
    for i in 0..1 + c.below(3) {
        names.push(format!("in{i}"));
        let (elem_type, dims) = (*c.of(&TYPES), c.dims(5));
        graph.input.push(port(&names[i], elem_type, &dims));
    }
    for i in 0..c.below(4) {
        names.push(format!("c{i}"));
        graph.initializer.push(constant(&mut c, names[names.len() - 1].clone()));
    }
    for number in 0..1 + c.below(6) {
        let (op, arity) = *c.of(OPERATORS);
        let arity = if c.byte() < 16 { c.below(6) } else { arity };
        let mut input = Vec::new();
        for at in 0..arity {
            // What says a shape, an axis or a size is a constant in most models.
            if at > 0 && c.byte() < 128 {
                let name = format!("k{number}_{at}");
                graph.initializer.push(constant(&mut c, name.clone()));
                input.push(name);
            } else {
                input.push(if c.byte() < 8 { String::new() } else { c.of(&names).clone() });
            }
        }
        let output: Vec<String> =
            (0..if c.byte() < 32 { c.below(4) } else { 1 }).map(|i| format!("v{number}_{i}")).collect();
        let attribute = (0..c.below(4)).map(|_| attribute(&mut c)).collect();
        names.extend(output.iter().cloned());
        graph.node.push(NodeProto {
            input,
            output,
            name: format!("n{number}"),
            op_type: op.into(),
            attribute,
            ..NodeProto::default()
        });
    }
    for _ in 0..1 + c.below(2) {
        let name = if c.byte() < 128 { names[names.len() - 1].clone() } else { c.of(&names).clone() };
        let dims = c.dims(4);
        let mut out = port(&name, 1, &dims);
        if c.byte() < 200 {
            out.r#type = None;
        }
        graph.output.push(out);
    }
    let version = *c.of(&[17i64, 13, 18, 21, 11, 9, 7, 20]);
    let opset = OperatorSetIdProto { domain: String::new(), version };
    ModelProto { ir_version: 8, opset_import: vec![opset], graph: Some(graph), ..ModelProto::default() }
}

fn port(name: &str, elem_type: i32, dims: &[i64]) -> ValueInfoProto {
    let dim = dims.iter().map(|&dim| DimensionProto { value: Some(DimensionValue::DimValue(dim)) }).collect();
    let tensor = TensorTypeProto { elem_type, shape: Some(TensorShapeProto { dim }) };
    let ty = TypeProto { tensor_type: Some(tensor), ..TypeProto::default() };
    ValueInfoProto { name: name.into(), r#type: Some(ty), ..ValueInfoProto::default() }
}

/// A tensor of few elements; now and then one that promises more than it has.
fn constant(c: &mut Choices<'_>, name: String) -> TensorProto {
    let dims: Vec<i64> = if c.byte() < 128 { vec![c.below(5) as i64] } else { c.dims(4) };
    let count = dims.iter().try_fold(1i64, |all, &dim| all.checked_mul(dim)).filter(|count| (0..4096).contains(count));
    let count = count.unwrap_or(1) as usize;
    let data_type = if c.byte() < 128 { 7 } else { *c.of(&TYPES) };
    let mut tensor = TensorProto { dims, data_type, name, ..TensorProto::default() };
    match data_type {
        7 => {
            tensor.int64_data =
                (0..count).map(|_| if c.byte() < 240 { c.below(9) as i64 - 2 } else { c.size() }).collect()
        }
        11 => tensor.double_data = (0..count).map(|_| c.below(9) as f64 - 2.0).collect(),
        1 => tensor.float_data = (0..count).map(|_| c.below(9) as f32 - 2.0).collect(),
        _ => tensor.int32_data = (0..count).map(|_| c.below(9) as i32 - 2).collect(),
    }
    tensor
}

fn attribute(c: &mut Choices<'_>) -> AttributeProto {
    let mut attribute = AttributeProto { name: (*c.of(ATTRIBUTES)).into(), ..AttributeProto::default() };
    let kind = match c.below(6) {
        0 => {
            attribute.f = Some(*c.of(&[0.0, 1.0, -1.0, 0.5, 1e-30, f32::NAN, f32::INFINITY]));
            AttributeType::Float
        }
        1 | 2 => {
            attribute.i = Some(if c.byte() < 128 { c.below(5) as i64 - 2 } else { c.size() });
            AttributeType::Int
        }
        3 => {
            attribute.s = Some((*c.of(TEXTS)).into());
            AttributeType::String
        }
        _ => {
            attribute.ints = c.dims(4);
            AttributeType::Ints
        }
    };
    attribute.r#type = kind as i32;
    attribute
}
