//! Tests of single operators and of fused groups.

use super::harness::{Case, f32s};
use byoc_plugin_api::{Attr, AttrValue, DType, TensorType, ValueRef};

fn attr(key: &str, value: impl Into<AttrValue>) -> Attr {
    Attr::new(key, value)
}

struct Conv {
    data: [usize; 4],
    out: usize,
    kernel: [usize; 2],
    strides: [usize; 2],
    padding: [usize; 4],
    dilation: [usize; 2],
    groups: usize,
}

impl Default for Conv {
    fn default() -> Conv {
        Conv {
            data: [1, 8, 9, 9],
            out: 8,
            kernel: [3, 3],
            strides: [1, 1],
            padding: [1; 4],
            dilation: [1, 1],
            groups: 1,
        }
    }
}

fn to_i64s(values: &[usize]) -> Vec<i64> {
    values.iter().map(|&v| v as i64).collect()
}

impl Conv {
    fn out_shape(&self) -> [usize; 4] {
        let size = |i: usize| {
            let extent = (self.kernel[i] - 1) * self.dilation[i] + 1;
            (self.data[2 + i] + self.padding[i] + self.padding[2 + i] - extent) / self.strides[i] + 1
        };
        [self.data[0], self.out, size(0), size(1)]
    }

    fn attrs(&self) -> Vec<Attr> {
        vec![
            attr("strides", to_i64s(&self.strides)),
            attr("padding", to_i64s(&self.padding)),
            attr("dilation", to_i64s(&self.dilation)),
            attr("groups", self.groups as i64),
            attr("channels", self.out as i64),
            attr("kernel_size", to_i64s(&self.kernel)),
            attr("data_layout", "NCHW"),
            attr("kernel_layout", "OIHW"),
            attr("out_layout", ""),
            attr("out_dtype", ""),
        ]
    }

    fn add(&self, case: &mut Case, data: ValueRef) -> ValueRef {
        let weight = case.constant(&[self.out, self.data[1] / self.groups, self.kernel[0], self.kernel[1]]);
        case.op("nn.conv2d", [data, weight], self.attrs(), f32s(&self.out_shape()))
    }

    fn check(&self) {
        let mut case = Case::new();
        let x = case.input(&self.data);
        let y = self.add(&mut case, x);
        case.output(y);
        case.check(1e-5);
    }
}

#[test]
fn convolution_shapes() {
    Conv::default().check();
    Conv { data: [2, 3, 17, 13], out: 20, kernel: [7, 7], strides: [2, 2], padding: [3; 4], ..Conv::default() }.check();
    Conv { data: [1, 5, 7, 8], out: 17, kernel: [1, 1], padding: [0; 4], ..Conv::default() }.check();
    Conv { data: [1, 16, 8, 8], out: 33, kernel: [1, 1], padding: [0; 4], strides: [2, 2], ..Conv::default() }.check();
    Conv { data: [1, 4, 10, 11], kernel: [3, 2], padding: [0, 1, 2, 0], dilation: [2, 3], ..Conv::default() }.check();
    Conv { data: [1, 1, 5, 5], out: 1, ..Conv::default() }.check();
    Conv { data: [1, 40, 14, 14], out: 96, ..Conv::default() }.check();
}

#[test]
fn grouped_and_depthwise_convolutions() {
    Conv { data: [1, 12, 9, 7], out: 18, groups: 3, ..Conv::default() }.check();
    Conv { data: [2, 20, 9, 7], out: 20, groups: 20, ..Conv::default() }.check();
    Conv {
        data: [1, 32, 15, 15],
        out: 32,
        groups: 32,
        kernel: [5, 5],
        padding: [2; 4],
        strides: [2, 2],
        ..Conv::default()
    }
    .check();
    Conv { data: [1, 7, 10, 12], out: 7, groups: 7, dilation: [2, 1], padding: [2, 0, 1, 1], ..Conv::default() }
        .check();
    Conv { data: [1, 6, 8, 8], out: 12, groups: 6, ..Conv::default() }.check();
}

#[test]
fn convolution_with_fused_elementwise_operators() {
    let mut case = Case::new();
    let x = case.input(&[1, 16, 14, 14]);
    let base = Conv { data: [1, 16, 14, 14], out: 24, ..Conv::default() };
    let y = base.add(&mut case, x);
    let bias = case.constant(&[24]);
    let y = case.op("nn.bias_add", [y, bias], vec![attr("axis", 1i64)], f32s(&[1, 24, 14, 14]));
    let y = case.elementwise("nn.relu", [y]);
    let z = Conv { data: [1, 24, 14, 14], out: 24, ..Conv::default() }.add(&mut case, y);
    let bias = case.constant(&[24, 1, 1]);
    let z = case.elementwise("add", [z, bias]);
    let z = case.elementwise("add", [z, y]);
    let s = case.elementwise("sigmoid", [z]);
    let z = case.elementwise("multiply", [z, s]);
    case.output(z);
    case.output(y);
    case.check(1e-5);
}

#[test]
fn transposed_convolutions() {
    for (kernel, stride, pad, output_padding, groups) in
        [(2, 2, 0, 0, 1), (3, 2, 1, 1, 1), (4, 2, 1, 0, 2), (3, 1, 1, 0, 1), (5, 3, 2, 2, 1), (2, 3, 0, 0, 1)]
    {
        let mut case = Case::new();
        let x = case.input(&[1, 4, 5, 6]);
        let w = case.constant(&[4, 6 / groups, kernel, kernel]);
        let size = |n: usize| (n - 1) * stride + kernel + output_padding - 2 * pad;
        let out = f32s(&[1, 6, size(5), size(6)]);
        let attrs = vec![
            attr("strides", vec![stride as i64; 2]),
            attr("padding", vec![pad as i64; 4]),
            attr("output_padding", vec![output_padding as i64; 2]),
            attr("dilation", vec![1i64; 2]),
            attr("groups", groups as i64),
            attr("data_layout", "NCHW"),
            attr("kernel_layout", "IOHW"),
        ];
        let y = case.op("nn.conv2d_transpose", [x, w], attrs, out);
        let y = case.elementwise("nn.relu", [y]);
        case.output(y);
        case.check(1e-5);
    }
}

#[test]
fn matrix_products() {
    for (m, k, n) in [(1, 40, 10), (13, 7, 33), (30, 64, 96), (2, 2048, 100)] {
        let mut case = Case::new();
        let x = case.input(&[m, k]);
        let w = case.constant(&[n, k]);
        let y = case.op("nn.dense", [x, w], vec![attr("units", n as i64)], f32s(&[m, n]));
        let bias = case.constant(&[n]);
        let y = case.elementwise("add", [y, bias]);
        case.output(y);
        case.check(1e-5);
    }
    for (ta, tb) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut case = Case::new();
        let x = case.input(if ta { &[6, 9, 5] } else { &[6, 5, 9] });
        let w = case.input(if tb { &[6, 21, 9] } else { &[6, 9, 21] });
        let attrs = vec![attr("transpose_a", ta), attr("transpose_b", tb)];
        let y = case.op("nn.batch_matmul", [x, w], attrs, f32s(&[6, 5, 21]));
        case.output(y);
        case.check(1e-5);
    }
}

#[test]
fn attention() {
    // Splits the heads by reshape and transpose, scales and masks the scores, and merges the heads again.
    let (b, s, h, d) = (2, 10, 3, 8);
    let mut case = Case::new();
    let x = case.input(&[b * s, h * d]);
    let mask = case.input(&[b, 1, s, s]);
    let mut projections = Vec::new();
    for _ in 0..3 {
        let w = case.constant(&[h * d, h * d]);
        let y = case.op("nn.dense", [x, w], vec![], f32s(&[b * s, h * d]));
        let bias = case.constant(&[h * d]);
        let y = case.elementwise("add", [y, bias]);
        let y = case.op("reshape", [y], vec![], f32s(&[b, s, h, d]));
        let y = case.op("transpose", [y], vec![attr("axes", vec![0i64, 2, 1, 3])], f32s(&[b, h, s, d]));
        projections.push(case.op("reshape", [y], vec![], f32s(&[b * h, s, d])));
    }
    let attrs = vec![attr("transpose_a", false), attr("transpose_b", true)];
    let scores = case.op("nn.batch_matmul", [projections[0], projections[1]], attrs, f32s(&[b * h, s, s]));
    let scores = case.op("reshape", [scores], vec![], f32s(&[b, h, s, s]));
    let score_scale = case.scalar(0.35);
    let scores = case.elementwise("multiply", [scores, score_scale]);
    let scores = case.elementwise("add", [scores, mask]);
    let p = case.op("nn.softmax", [scores], vec![attr("axis", -1i64)], f32s(&[b, h, s, s]));
    let p = case.op("reshape", [p], vec![], f32s(&[b * h, s, s]));
    let attrs = vec![attr("transpose_a", false), attr("transpose_b", false)];
    let y = case.op("nn.batch_matmul", [p, projections[2]], attrs, f32s(&[b * h, s, d]));
    let y = case.op("reshape", [y], vec![], f32s(&[b, h, s, d]));
    let y = case.op("transpose", [y], vec![attr("axes", vec![0i64, 2, 1, 3])], f32s(&[b, s, h, d]));
    let y = case.op("reshape", [y], vec![], f32s(&[b * s, h * d]));
    let w = case.constant(&[h * d, h * d]);
    let y = case.op("nn.dense", [y, w], vec![], f32s(&[b * s, h * d]));
    let y = case.elementwise("add", [y, x]);
    let (gamma, beta) = (case.constant(&[h * d]), case.constant(&[h * d]));
    let attrs = vec![attr("axis", -1i64), attr("epsilon", 1e-5)];
    let y = case.op("nn.layer_norm", [y, gamma, beta], attrs, f32s(&[b * s, h * d]));
    let constant_half = case.scalar(0.5);
    let inverse_sqrt_2 = case.scalar(std::f64::consts::FRAC_1_SQRT_2);
    let constant_one = case.scalar(1.0);
    let e = case.elementwise("multiply", [y, inverse_sqrt_2]);
    let e = case.elementwise("erf", [e]);
    let e = case.elementwise("add", [e, constant_one]);
    let y = case.elementwise("multiply", [y, e]);
    let y = case.elementwise("multiply", [y, constant_half]);
    case.output(y);
    case.check(2e-5);
}

#[test]
fn pools() {
    for (name, includes_padding) in [("nn.max_pool2d", false), ("nn.avg_pool2d", false), ("nn.avg_pool2d", true)] {
        for (size, stride, pads) in [(3, 2, [1i64, 1, 1, 1]), (2, 2, [0, 0, 0, 0]), (3, 1, [0, 1, 2, 1])] {
            let mut case = Case::new();
            let x = case.input(&[2, 5, 9, 10]);
            let out = |n: usize, i: usize| (n + (pads[i] + pads[2 + i]) as usize - size) / stride + 1;
            let attrs = vec![
                attr("pool_size", vec![size as i64; 2]),
                attr("strides", vec![stride as i64; 2]),
                attr("dilation", vec![1i64; 2]),
                attr("padding", pads.to_vec()),
                attr("layout", "NCHW"),
                attr("ceil_mode", false),
                attr("count_include_pad", includes_padding),
            ];
            let y = case.op(name, [x], attrs, f32s(&[2, 5, out(9, 0), out(10, 1)]));
            case.output(y);
            case.check(1e-6);
        }
    }
    for out in [[1, 1], [3, 2], [7, 7]] {
        let mut case = Case::new();
        let x = case.input(&[1, 35, 7, 9]);
        let ty = f32s(&[1, 35, out[0], out[1]]);
        let y = case.op("nn.adaptive_avg_pool2d", [x], vec![attr("layout", "NCHW")], ty);
        case.output(y);
        case.check(1e-6);
    }
}

#[test]
fn rows_and_reductions() {
    for shape in [&[3usize, 7][..], &[2, 5, 130], &[1, 6, 4, 5]] {
        for axis in [-1i64, 1] {
            for name in ["nn.softmax", "nn.log_softmax"] {
                let mut case = Case::new();
                let x = case.input(shape);
                let y = case.op(name, [x], vec![attr("axis", axis)], f32s(shape));
                case.output(y);
                case.check(1e-6);
            }
        }
    }
    for name in ["sum", "mean", "max", "min"] {
        for axes in [vec![0i64], vec![-1], vec![1, 2], vec![0, 3], vec![0, 1, 2, 3]] {
            for keepdims in [false, true] {
                let mut case = Case::new();
                let shape = [2usize, 5, 6, 67];
                let x = case.input(&shape);
                let reduced_axes: Vec<usize> = axes.iter().map(|&a| (a + 4) as usize % 4).collect();
                let out: Vec<usize> = (0..4)
                    .filter(|d| keepdims || !reduced_axes.contains(d))
                    .map(|d| if reduced_axes.contains(&d) { 1 } else { shape[d] })
                    .collect();
                let attrs = vec![attr("axis", axes.clone()), attr("keepdims", keepdims), attr("exclude", false)];
                let y = case.op(name, [x], attrs, f32s(&out));
                let y = case.elementwise("exp", [y]);
                case.output(y);
                case.check(1e-5);
            }
        }
    }
}

#[test]
fn log_softmax_of_a_dominant_element_is_not_rounded_to_zero() {
    let mut case = Case::new();
    let x = case.input(&[2, 2]);
    case.inputs[0].data = [-8.75, 6.5, 6.5, -8.75].to_vec();
    let y = case.op("nn.log_softmax", [x], vec![attr("axis", -1i64)], f32s(&[2, 2]));
    let sign = case.elementwise("sign", [y]);
    case.output(sign);
    case.check(1e-6);
}

#[test]
fn elementwise_chains() {
    let mut case = Case::new();
    let x = case.input(&[3, 4, 50]);
    let y = case.input(&[4, 1]);
    let z = case.input(&[50]);
    let a = case.elementwise("add", [x, y]);
    let b = case.elementwise("multiply", [a, z]);
    for name in ["exp", "erf", "tanh", "sigmoid", "sin", "abs", "negative", "sign", "floor", "ceil", "round", "nn.relu"]
    {
        let v = case.elementwise(name, [b]);
        case.output(v);
    }
    let magnitudes = case.elementwise("abs", [b]);
    for name in ["log", "sqrt", "rsqrt"] {
        let v = case.elementwise(name, [magnitudes]);
        case.output(v);
    }
    let v = case.op("clip", [b], vec![attr("a_min", -0.25), attr("a_max", 0.5)], f32s(&[3, 4, 50]));
    case.output(v);
    for name in ["subtract", "divide", "maximum", "minimum", "floor_mod"] {
        let v = case.elementwise(name, [b, z]);
        case.output(v);
    }
    let is_less = case.op("less", [b, z], vec![], TensorType::new(DType::BOOL, &[3, 4, 50]));
    case.output(is_less);
    let v = case.op("where", [is_less, b, z], vec![], f32s(&[3, 4, 50]));
    case.output(v);
    case.check(2e-6);
}

#[test]
fn handles_nan_infinities_and_rounding_cases() {
    let mut case = Case::new();
    let x = case.input(&[19]);
    let infinity = f64::INFINITY;
    case.inputs[0].data = vec![
        f64::NAN,
        infinity,
        -infinity,
        0.0,
        -0.0,
        1e-30,
        -1e-30,
        88.0,
        -88.0,
        100.0,
        -100.0,
        0.6,
        -0.65,
        1.0,
        4.0,
        -4.2,
        10.0,
        3e38,
        -3e38,
    ];
    case.inputs[0].data.iter_mut().for_each(|v| *v = f64::from(*v as f32));
    for name in ["nn.relu", "tanh", "sigmoid", "erf", "abs", "isnan"] {
        let dtype = if name == "isnan" { DType::BOOL } else { DType::F32 };
        let v = case.op(name, [x], vec![], TensorType::new(dtype, &[19]));
        case.output(v);
    }
    let v = case.op("clip", [x], vec![attr("a_min", -2.0), attr("a_max", 6.0)], f32s(&[19]));
    case.output(v);
    let constant_one = case.scalar(1.0);
    for name in ["maximum", "minimum", "divide"] {
        let v = case.op(name, [constant_one, x], vec![], f32s(&[19]));
        case.output(v);
        let w = case.elementwise(name, [x, constant_one]);
        case.output(w);
    }
    let v = case.op("cast", [x], vec![attr("dtype", "int32")], TensorType::new(DType::I32, &[19]));
    case.output(v);
    let v = case.op("cast", [x], vec![attr("dtype", "int64")], TensorType::new(DType::I64, &[19]));
    case.output(v);
    case.check(1e-6);
    // The results of exp span many orders of magnitude, so each result is compared individually.
    let mut case = Case::new();
    let values = [f64::NAN, infinity, -infinity, 0.0, 1.0, -1.0, 88.7, 89.5, -87.0, -95.0, -110.0];
    for value in values {
        let x = case.input(&[1]);
        case.inputs.last_mut().unwrap().data = vec![f64::from(value as f32)];
        let v = case.elementwise("exp", [x]);
        case.output(v);
    }
    case.check(3e-6);
}

#[test]
fn integers() {
    let mut case = Case::new();
    let x = case.input_of(DType::I64, &[4, 6]);
    let constant_three = case.constant_with(super::naive::Array { dtype: DType::I64, shape: vec![], data: vec![3.0] });
    let a = case.elementwise("add", [x, constant_three]);
    let b = case.elementwise("multiply", [a, x]);
    let c = case.elementwise("divide", [b, constant_three]);
    case.output(c);
    let d = case.op("subtract", [constant_three, x], vec![], TensorType::new(DType::I64, &[4, 6]));
    case.output(d);
    let e = case.elementwise("subtract", [x, b]);
    let m = case.elementwise("floor_mod", [e, constant_three]);
    case.output(m);
    let g = case.op("greater_equal", [x, constant_three], vec![], TensorType::new(DType::BOOL, &[4, 6]));
    let n = case.elementwise("logical_not", [g]);
    case.output(n);
    let f = case.op("cast", [x], vec![attr("dtype", "float32")], f32s(&[4, 6]));
    case.output(f);
    case.check(0.0);
}

#[test]
fn view_operators_with_and_without_copies() {
    let mut case = Case::new();
    let x = case.input(&[2, 3, 4, 6]);
    let t = case.op("transpose", [x], vec![attr("axes", vec![0i64, 2, 3, 1])], f32s(&[2, 4, 6, 3]));
    let r = case.op("reshape", [t], vec![], f32s(&[2, 24, 3]));
    let v = case.elementwise("exp", [r]);
    case.output(v);
    let flat_value = case.op("reshape", [t], vec![], f32s(&[2, 72]));
    let v = case.elementwise("nn.relu", [flat_value]);
    case.output(v);
    let attrs = vec![
        attr("begin", vec![3i64, -1]),
        attr("end", vec![0i64, -7]),
        attr("strides", vec![-1i64, -2]),
        attr("axes", vec![1i64, 2]),
        attr("slice_mode", "end"),
    ];
    let s = case.op("strided_slice", [t], attrs, f32s(&[2, 3, 3, 3]));
    case.output(s);
    let node = case.graph.push_op("split", [x], [attr("axis", 3i64)], [f32s(&[2, 3, 4, 2]), f32s(&[2, 3, 4, 4])]);
    let second_result = ValueRef { node, index: 1 };
    let w = case.elementwise("negative", [second_result]);
    case.output(w);
    case.output(ValueRef { node, index: 0 });
    case.output(x);
    case.check(1e-6);
}

#[test]
fn concatenation_operands_are_computed_in_place() {
    let mut case = Case::new();
    let x = case.input(&[1, 8, 6, 6]);
    let a = Conv { data: [1, 8, 6, 6], out: 5, ..Conv::default() }.add(&mut case, x);
    let b = Conv { data: [1, 8, 6, 6], out: 11, kernel: [1, 1], padding: [0; 4], ..Conv::default() }.add(&mut case, x);
    let c = case.op("concatenate", [a, b, x], vec![attr("axis", 1i64)], f32s(&[1, 24, 6, 6]));
    let d = Conv { data: [1, 24, 6, 6], out: 4, ..Conv::default() }.add(&mut case, c);
    let e = case.op("concatenate", [c, d], vec![attr("axis", 1i64)], f32s(&[1, 28, 6, 6]));
    let e = case.elementwise("nn.relu", [e]);
    case.output(e);
    case.output(a);
    case.check(1e-5);
}

#[test]
fn channel_shuffle_and_batch_norm() {
    let mut case = Case::new();
    let x = case.input(&[1, 8, 5, 5]);
    let a = Conv { data: [1, 8, 5, 5], out: 12, ..Conv::default() }.add(&mut case, x);
    let r = case.op("reshape", [a], vec![], f32s(&[1, 2, 6, 5, 5]));
    let t = case.op("transpose", [r], vec![attr("axes", vec![0i64, 2, 1, 3, 4])], f32s(&[1, 6, 2, 5, 5]));
    let s = case.op("reshape", [t], vec![], f32s(&[1, 12, 5, 5]));
    let params: Vec<ValueRef> = (0..4).map(|_| case.constant(&[12])).collect();
    let mut variance = case.constant_values[4].clone();
    variance.data.iter_mut().for_each(|v| *v = f64::from(v.abs() as f32) + 0.5);
    let variance = case.constant_with(variance);
    let attrs = vec![attr("axis", 1i64), attr("epsilon", 1e-3), attr("center", true), attr("scale", true)];
    let node = case.graph.push_op(
        "nn.batch_norm",
        [s, params[0], params[1], params[2], variance],
        attrs,
        [f32s(&[1, 12, 5, 5]), f32s(&[12]), f32s(&[12])],
    );
    let y = case.elementwise("nn.relu", [ValueRef::of(node)]);
    let y = Conv { data: [1, 12, 5, 5], out: 3, ..Conv::default() }.add(&mut case, y);
    case.output(y);
    case.check(1e-5);
}

#[test]
fn gather_pad_and_resize() {
    let mut case = Case::new();
    let table = case.constant(&[10, 7]);
    let ids = case.input_of(DType::I64, &[2, 4]);
    let y = case.op("take", [table, ids], vec![attr("axis", 0i64), attr("mode", "clip")], f32s(&[2, 4, 7]));
    let z = case.input(&[4, 7]);
    let y = case.elementwise("add", [y, z]);
    case.output(y);
    let columns = case.input_of(DType::I32, &[3]);
    case.inputs.last_mut().unwrap().data = vec![6.0, 0.0, 3.0];
    let w = case.op("take", [y, columns], vec![attr("axis", 2i64), attr("mode", "clip")], f32s(&[2, 4, 3]));
    case.output(w);
    let indices = case.input_of(DType::I64, &[2, 2, 7]);
    case.inputs.last_mut().unwrap().data.iter_mut().for_each(|v| *v %= 4.0);
    let g = case.op("gather", [y, indices], vec![attr("axis", 1i64)], f32s(&[2, 2, 7]));
    case.output(g);
    case.check(1e-6);
    for mode in ["constant", "edge", "reflect"] {
        let mut case = Case::new();
        let x = case.input(&[1, 3, 4, 5]);
        let value = case.scalar(0.75);
        let widths: Vec<AttrValue> = [[0i64, 0], [0, 0], [1, 2], [3, 0]].map(|w| AttrValue::from(w.to_vec())).to_vec();
        let attrs = vec![attr("pad_width", widths), attr("pad_mode", mode)];
        let y = case.op("nn.pad", [x, value], attrs, f32s(&[1, 3, 7, 8]));
        let y = case.elementwise("nn.relu", [y]);
        case.output(y);
        case.check(1e-6);
    }
    for (method, mode) in [("linear", "half_pixel"), ("linear", "asymmetric"), ("nearest_neighbor", "asymmetric")] {
        let mut case = Case::new();
        let x = case.input(&[1, 3, 5, 6]);
        let attrs = vec![
            attr("layout", "NCHW"),
            attr("method", method),
            attr("coordinate_transformation_mode", mode),
            attr("rounding_method", ""),
        ];
        let y = case.op("image.resize2d", [x], attrs, f32s(&[1, 3, 10, 9]));
        case.output(y);
        case.check(1e-5);
    }
}
