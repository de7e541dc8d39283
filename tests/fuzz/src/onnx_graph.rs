//! ONNX graphs of known operators with unusual shapes and attributes. The bytes of an input determine the random
//! choices.

use crate::{Target, files};
use byoc::frontend::onnx::proto::{
    AttributeProto, AttributeType, DimensionProto, DimensionValue, GraphProto, ModelProto, NodeProto,
    OperatorSetIdProto, TensorProto, TensorShapeProto, TensorTypeProto, TypeProto, ValueInfoProto,
};
use prost::Message;

pub const ONNX_GRAPH: Target = Target {
    name: "onnx_graph",
    seeds: || vec![Vec::new()],
    hostile: crate::hostile::any,
    mutate: |_, random| (0..64).flat_map(|_| random.next_u64().to_le_bytes()).collect(),
    run: |bytes| files::model(&model(bytes).encode_to_vec(), "onnx"),
};

/// Operator: name, kinds of its inputs (`x` an earlier result, `s` an earlier result or a scalar, `w` weights, `i`
/// integers, `f` floats), and attributes. One input in sixteen has a different kind.
type Operator = (&'static str, &'static str, &'static [&'static str]);

const OPERATORS: &[Operator] = &[
    ("Relu", "x", &[]),
    ("Sigmoid", "x", &[]),
    ("Tanh", "x", &[]),
    ("Exp", "x", &[]),
    ("Log", "x", &[]),
    ("Neg", "x", &[]),
    ("Abs", "x", &[]),
    ("Sqrt", "x", &[]),
    ("Erf", "x", &[]),
    ("Floor", "x", &[]),
    ("Round", "x", &[]),
    ("Not", "x", &[]),
    ("IsNaN", "x", &[]),
    ("Softplus", "x", &[]),
    ("Identity", "x", &[]),
    ("Shape", "x", &[]),
    ("Size", "x", &[]),
    ("NonZero", "x", &[]),
    ("GlobalAveragePool", "x", &[]),
    ("GlobalMaxPool", "x", &[]),
    ("DynamicQuantizeLinear", "x", &[]),
    ("Sign", "x", &[]),
    ("Reciprocal", "x", &[]),
    ("Ceil", "x", &[]),
    ("Sin", "x", &[]),
    ("Cos", "x", &[]),
    ("HardSwish", "x", &[]),
    ("Mish", "x", &[]),
    ("LeakyRelu", "x", &["alpha"]),
    ("Elu", "x", &["alpha"]),
    ("HardSigmoid", "x", &["alpha", "beta"]),
    ("Softmax", "x", &["axis"]),
    ("LogSoftmax", "x", &["axis"]),
    ("Cast", "x", &["to"]),
    ("Transpose", "x", &["perm"]),
    ("Flatten", "x", &["axis"]),
    ("Squeeze", "xi", &[]),
    ("Unsqueeze", "xi", &[]),
    ("ReduceSum", "xi", &["keepdims", "noop_with_empty_axes"]),
    ("ReduceMean", "x", &["axes", "keepdims"]),
    ("ReduceMax", "x", &["axes", "keepdims"]),
    ("ReduceProd", "x", &["axes", "keepdims"]),
    ("ReduceL2", "x", &["axes", "keepdims"]),
    ("ArgMax", "x", &["axis", "keepdims", "select_last_index"]),
    ("ArgMin", "x", &["axis", "keepdims"]),
    (
        "AveragePool",
        "x",
        &["kernel_shape", "strides", "pads", "ceil_mode", "count_include_pad", "auto_pad", "dilations"],
    ),
    ("MaxPool", "x", &["kernel_shape", "strides", "pads", "ceil_mode", "dilations", "auto_pad", "storage_order"]),
    ("LRN", "x", &["size", "alpha", "beta", "bias"]),
    ("DepthToSpace", "x", &["blocksize", "mode"]),
    ("SpaceToDepth", "x", &["blocksize"]),
    ("ConstantOfShape", "i", &["value"]),
    ("EyeLike", "x", &["k", "dtype"]),
    ("Split", "xi", &["axis", "num_outputs"]),
    ("CumSum", "xi", &["exclusive", "reverse"]),
    ("Add", "xs", &[]),
    ("Sub", "xs", &[]),
    ("Mul", "xs", &[]),
    ("Div", "xs", &[]),
    ("Pow", "xs", &[]),
    ("Equal", "xs", &[]),
    ("Less", "xs", &[]),
    ("Greater", "xs", &[]),
    ("Max", "xs", &[]),
    ("Min", "xs", &[]),
    ("Mean", "xs", &[]),
    ("PRelu", "xs", &[]),
    ("Mod", "xs", &["fmod"]),
    ("And", "xx", &[]),
    ("MatMul", "xx", &[]),
    ("MatMul", "xw", &[]),
    ("Gather", "xi", &["axis"]),
    ("GatherElements", "xi", &["axis"]),
    ("GatherND", "xi", &["batch_dims"]),
    ("Expand", "xi", &[]),
    ("Reshape", "xi", &["allowzero"]),
    ("Tile", "xi", &[]),
    ("TopK", "xi", &["axis", "largest", "sorted"]),
    ("OneHot", "iif", &["axis"]),
    ("Concat", "xx", &["axis"]),
    ("Concat", "xxx", &["axis"]),
    ("Conv", "xw", &["kernel_shape", "strides", "pads", "dilations", "group", "auto_pad"]),
    (
        "ConvTranspose",
        "xw",
        &["kernel_shape", "strides", "pads", "dilations", "group", "output_padding", "output_shape", "auto_pad"],
    ),
    ("Pad", "xi", &["mode"]),
    ("Compress", "xi", &["axis"]),
    ("Where", "xxs", &[]),
    ("Clip", "xff", &[]),
    ("Gemm", "xwf", &["alpha", "beta", "transA", "transB"]),
    ("Range", "iii", &[]),
    ("ScatterElements", "xix", &["axis", "reduction"]),
    ("ScatterND", "xix", &["reduction"]),
    ("LayerNormalization", "xff", &["axis", "epsilon"]),
    ("InstanceNormalization", "xff", &["epsilon"]),
    ("QuantizeLinear", "xf", &["axis"]),
    ("DequantizeLinear", "xf", &["axis"]),
    ("Slice", "xiii", &[]),
    ("Resize", "xff", &["mode", "coordinate_transformation_mode"]),
    ("LSTM", "xww", &["hidden_size", "direction", "layout"]),
    ("GRU", "xww", &["hidden_size", "direction", "linear_before_reset"]),
    ("BatchNormalization", "xffff", &["epsilon"]),
    ("Einsum", "xx", &["equation"]),
    ("Trilu", "xi", &["upper"]),
    ("GridSample", "xx", &["mode", "padding_mode", "align_corners"]),
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

/// Dimensions: mostly small, some odd or prime, and a few negative or huge.
const SIZES: [i64; 20] = [0, 1, 1, 2, 2, 3, 3, 4, 5, 7, 8, 16, 17, 33, 64, -1, 1 << 20, 1 << 31, 1 << 36, i64::MAX];

/// ONNX element type codes. The most frequent is 1, float32; 99 is invalid.
const TYPES: [i32; 16] = [1, 1, 1, 1, 1, 7, 7, 6, 3, 2, 9, 11, 10, 16, 8, 99];

/// Random choices, derived from the bytes of an input, followed by zeros.
struct Choices<'a>(std::slice::Iter<'a, u8>);

impl Choices<'_> {
    fn byte(&mut self) -> usize {
        self.0.next().copied().map_or(0, usize::from)
    }

    fn random_below(&mut self, n: usize) -> usize {
        (self.byte() << 8 | self.byte()) % n
    }

    fn random_item<'t, T>(&mut self, items: &'t [T]) -> &'t T {
        &items[self.random_below(items.len())]
    }

    /// Returns a dimension: any of [`SIZES`] with probability 1/32, otherwise a small size.
    fn size(&mut self) -> i64 {
        if self.byte() < 8 { *self.random_item(&SIZES) } else { SIZES[1 + self.random_below(10)] }
    }

    fn dims(&mut self, max_rank: usize) -> Vec<i64> {
        (0..self.random_below(max_rank + 1)).map(|_| self.size()).collect()
    }
}

fn model(bytes: &[u8]) -> ModelProto {
    let mut c = Choices(bytes.iter());
    let mut graph = GraphProto { name: "g".into(), ..GraphProto::default() };
    let mut names: Vec<String> = Vec::new();
    // Most graphs have one element type and related shapes.
    let base = if c.byte() < 16 { *c.random_item(&TYPES) } else { 1 };
    let shape = c.dims(4);
    for i in 0..1 + c.random_below(3) {
        names.push(format!("in{i}"));
        let dims = match c.random_below(8) {
            0 => c.dims(5),
            1 => shape.iter().map(|&dim| if c.byte() < 128 { 1 } else { dim }).collect(),
            2 => shape.iter().skip(1).copied().collect(),
            _ => shape.clone(),
        };
        let elem_type = if c.byte() < 16 { *c.random_item(&TYPES) } else { base };
        graph.input.push(port(&names[i], elem_type, &dims));
    }
    for node_index in 0..1 + c.random_below(6) {
        let (op, kinds, attribute_names) = *c.random_item(OPERATORS);
        let mut input = Vec::new();
        for (operand_index, kind) in kinds.bytes().enumerate() {
            let kind = if c.byte() < 16 { *c.random_item(b"xswif-") } else { kind };
            let kind = if kind == b's' && c.byte() < 128 { b'x' } else { kind };
            let last_name = names[names.len() - 1].clone();
            input.push(match kind {
                b'x' if c.byte() < 160 => last_name,
                b'x' => c.random_item(&names).clone(),
                b'-' => String::new(),
                kind => {
                    let name = format!("k{node_index}_{operand_index}");
                    graph.initializer.push(constant(&mut c, name.clone(), kind, &shape));
                    name
                }
            });
        }
        let output: Vec<String> =
            (0..if c.byte() < 16 { c.random_below(4) } else { 1 }).map(|i| format!("v{node_index}_{i}")).collect();
        let mut attribute = Vec::new();
        for name in attribute_names {
            if c.byte() < 128 {
                attribute.push(self::attribute(&mut c, name));
            }
        }
        names.extend(output.iter().cloned());
        let node = NodeProto {
            input,
            output,
            name: format!("n{node_index}"),
            op_type: op.into(),
            attribute,
            ..NodeProto::default()
        };
        graph.node.push(node);
    }
    for _ in 0..1 + c.random_below(2) {
        let name = if c.byte() < 200 { names[names.len() - 1].clone() } else { c.random_item(&names).clone() };
        if graph.output.iter().all(|out| out.name != name) || c.byte() < 8 {
            let mut out = port(&name, if c.byte() < 16 { *c.random_item(&TYPES) } else { base }, &[]);
            if let Some(TypeProto { tensor_type: Some(tensor), .. }) = &mut out.r#type {
                // Leaves the rank unspecified.
                tensor.shape = None;
            }
            graph.output.push(out);
        }
    }
    let version = *c.random_item(&[17i64, 17, 17, 13, 18, 21, 11, 9, 7, 20]);
    let opset = OperatorSetIdProto { domain: String::new(), version };
    ModelProto { ir_version: 8, opset_import: vec![opset], graph: Some(graph), ..ModelProto::default() }
}

fn port(name: &str, elem_type: i32, dims: &[i64]) -> ValueInfoProto {
    let dim = dims.iter().map(|&dim| DimensionProto { value: Some(DimensionValue::DimValue(dim)) }).collect();
    let tensor = TensorTypeProto { elem_type, shape: Some(TensorShapeProto { dim }) };
    let ty = TypeProto { tensor_type: Some(tensor), ..TypeProto::default() };
    ValueInfoProto { name: name.into(), r#type: Some(ty), ..ValueInfoProto::default() }
}

/// Returns a tensor with few elements, sometimes with dimensions that exceed its data.
fn constant(c: &mut Choices<'_>, name: String, kind: u8, shape: &[i64]) -> TensorProto {
    let channels = shape.get(1).copied().filter(|size| (1..64).contains(size)).unwrap_or(1);
    let mut dims: Vec<i64> = match (kind, c.byte()) {
        (_, 0..8) => c.dims(4),
        (b'w', _) if shape.len() < 3 => vec![channels, 1 + c.random_below(4) as i64],
        (b'w', _) => {
            let kernel = 1 + c.random_below(3) as i64;
            [1 + c.random_below(4) as i64, channels].into_iter().chain(shape[2..].iter().map(|_| kernel)).collect()
        }
        (b'i', _) => vec![1 + c.random_below(4) as i64],
        (_, 0..128) => Vec::new(),
        _ => vec![channels],
    };
    if kind == b'i' && c.byte() < 32 {
        dims.clear();
    }
    let count =
        dims.iter().try_fold(1i64, |product, &dim| product.checked_mul(dim)).filter(|count| (0..4096).contains(count));
    let count = count.unwrap_or(1) as usize;
    let data_type = match (c.byte(), kind) {
        (0..8, _) => *c.random_item(&TYPES),
        (_, b'i') => 7,
        _ => 1,
    };
    let mut tensor = TensorProto { dims, data_type, name, ..TensorProto::default() };
    match data_type {
        7 => {
            tensor.int64_data =
                (0..count).map(|_| if c.byte() < 250 { c.random_below(5) as i64 - 1 } else { c.size() }).collect()
        }
        11 => tensor.double_data = (0..count).map(|_| c.random_below(9) as f64 - 2.0).collect(),
        1 => tensor.float_data = (0..count).map(|_| c.random_below(9) as f32 - 2.0).collect(),
        _ => tensor.int32_data = (0..count).map(|_| c.random_below(9) as i32 - 2).collect(),
    }
    tensor
}

/// Returns an attribute, usually of the kind that most operators give an attribute of this name.
fn attribute(c: &mut Choices<'_>, name: &str) -> AttributeProto {
    let mut attribute = AttributeProto { name: name.into(), ..AttributeProto::default() };
    let default_kind = match name {
        "alpha" | "beta" | "epsilon" | "bias" => 0,
        "mode"
        | "auto_pad"
        | "direction"
        | "reduction"
        | "equation"
        | "padding_mode"
        | "coordinate_transformation_mode" => 2,
        "kernel_shape" | "strides" | "pads" | "dilations" | "perm" | "axes" | "output_padding" | "output_shape" => 3,
        _ => 1,
    };
    let kind = match if c.byte() < 8 { c.random_below(4) } else { default_kind } {
        0 => {
            attribute.f = Some(*c.random_item(&[0.0, 1.0, -1.0, 0.5, 1e-30, f32::NAN, f32::INFINITY]));
            AttributeType::Float
        }
        1 => {
            attribute.i = Some(if c.byte() < 240 { c.random_below(4) as i64 - 1 } else { c.size() });
            AttributeType::Int
        }
        2 => {
            attribute.s = Some((*c.random_item(TEXTS)).into());
            AttributeType::String
        }
        _ => {
            let count = c.random_below(5);
            attribute.ints =
                (0..count).map(|_| if c.byte() < 240 { c.random_below(4) as i64 } else { c.size() }).collect();
            AttributeType::Ints
        }
    };
    attribute.r#type = kind as i32;
    attribute
}
