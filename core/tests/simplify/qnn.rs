//! Tests that QNN operators and the plain operators that they are lowered to produce bit-identical results.

use crate::evaluate::{Evaluator, Value, tensors};
use byoc_ir::ir::{AttrValue, Attrs, Expr, ExprId, Module, Type};
use byoc_ir::op;
use byoc_ir::tensor::{DType, Tensor};
use byoc_ir::text::{ParseOptions, parse};
use byoc_ir::typing::Builder;
use byoc_test_support::random::Random;

/// Returns a random value of an integer type, mostly using all of its bits.
fn integers(random: &mut Random, dtype: DType, shape: &[usize]) -> Tensor {
    let values: Vec<i64> = (0..shape.iter().product()).map(|_| random.bits() as i64 >> random.below(20)).collect();
    macro_rules! of {
        ($ty:ty) => {
            Tensor::from_slice(shape, &values.iter().map(|&v| v as $ty).collect::<Vec<_>>())
        };
    }
    match dtype {
        DType::I8 => of!(i8),
        DType::U8 => of!(u8),
        DType::I16 => of!(i16),
        DType::U16 => of!(u16),
        _ => of!(i32),
    }
}

fn scales(random: &mut Random, shape: &[usize]) -> Tensor {
    let is_wide = random.below(6) == 0;
    let values: Vec<f32> = (0..shape.iter().product())
        .map(|_| {
            let exponent = if is_wide { random.below(121) as i32 - 60 } else { random.below(9) as i32 - 8 };
            let mantissa = if random.below(4) == 0 { 0.0 } else { random.below(1 << 23) as f32 / (1 << 23) as f32 };
            (1.0 + mantissa) * 2f32.powi(exponent)
        })
        .collect();
    Tensor::from_slice(shape, &values)
}

/// Returns a random zero point, mostly within one byte, occasionally an arbitrary integer.
fn zero_points(random: &mut Random, shape: &[usize]) -> Tensor {
    match random.below(8) {
        0..3 => Tensor::zeros(DType::I32, shape).unwrap(),
        3 => integers(random, DType::I32, shape),
        _ => {
            let values: Vec<i32> = (0..shape.iter().product()).map(|_| random.below(256) as i32 - 100).collect();
            Tensor::from_slice(shape, &values)
        }
    }
}

fn reals(random: &mut Random, shape: &[usize]) -> Tensor {
    let values: Vec<f32> = (0..shape.iter().product())
        .map(|_| match random.below(40) {
            0 => f32::INFINITY,
            1 => f32::NEG_INFINITY,
            2 => f32::NAN,
            3..20 => (random.below(4001) as f32 - 2000.0) / 2.0,
            _ => (random.below(1 << 24) as f32 / (1 << 23) as f32 - 1.0) * 2f32.powi(random.below(40) as i32 - 8),
        })
        .collect();
    Tensor::from_slice(shape, &values)
}

/// Operator call; every argument is a constant or a parameter of `@main`.
struct Case {
    builder: Builder,
    args: Vec<ExprId>,
    params: Vec<ExprId>,
    arguments: Vec<Value>,
}

impl Case {
    fn new() -> Case {
        Case { builder: Builder::default(), args: Vec::new(), params: Vec::new(), arguments: Vec::new() }
    }

    fn leaf(&mut self, tensor: Tensor, is_constant: bool) -> ExprId {
        if is_constant {
            return self.builder.constant(tensor);
        }
        let var = self.builder.var(format!("p{}", self.params.len()), Type::tensor(tensor.dtype(), tensor.shape()));
        self.params.push(var);
        self.arguments.push(Value::Tensor(tensor));
        var
    }

    fn data(&mut self, tensor: Tensor) {
        let id = self.leaf(tensor, false);
        self.args.push(id);
    }

    fn push_parameter(&mut self, tensor: Tensor, is_constant: bool) {
        let id = self.leaf(tensor, is_constant);
        self.args.push(id);
    }

    fn check(mut self, name: &str, attrs: Attrs) {
        let call = match self.builder.op(name, &self.args, attrs.clone()) {
            Ok(call) => call,
            Err(error) => panic!("{name} {attrs:?}: {error}"),
        };
        self.builder.define("main", &self.params, call).unwrap();
        let module = self.builder.module;
        let canonical = super::run(&module, "qnn_canonicalize");
        let remaining = operators(&canonical).find(|name| name.starts_with("qnn."));
        assert_eq!(remaining, None, "{name} {attrs:?}: expected only plain operators");
        let value = |module: &Module| tensors(&Evaluator::new(module).run("main", &self.arguments));
        let (before, after) = (value(&module), value(&canonical));
        if before != after {
            let text = super::print(&canonical, &super::PrintOptions::default()).text;
            let values_of = |t: &Tensor| t.view().to_f64s();
            panic!("{name} {attrs:?}\nexpected {:?}\nfound {:?}\n{text}", values_of(&before[0]), values_of(&after[0]));
        }
    }
}

fn operators(module: &Module) -> impl Iterator<Item = &'static str> {
    let live = module.live();
    let op_name = move |(id, node): (ExprId, &byoc_ir::ir::Node)| match &node.expr {
        expr @ Expr::Call(_) if live[id] => expr.as_op_call().map(|(operator, _)| op::get(operator).name),
        _ => None,
    };
    module.nodes.iter().filter_map(op_name)
}

const NARROW: [DType; 4] = [DType::I8, DType::U8, DType::I16, DType::U16];
const ALL: [DType; 5] = [DType::I8, DType::U8, DType::I16, DType::U16, DType::I32];
const ROUNDINGS: [&str; 3] = ["UPWARD", "TONEAREST", "TOEVEN"];

#[test]
fn quantize_dequantize_and_requantize() {
    let mut random = Random::new(1);
    for _ in 0..400 {
        let shape = [2, 3, 17];
        let axis = random.below(3) as i64;
        let vector = [shape[axis as usize]];
        let axis_shape = |random: &mut Random| -> Vec<usize> {
            match random.below(3) {
                0 => vec![],
                1 => vec![1],
                _ => vector.to_vec(),
            }
        };
        let axis_attr = AttrValue::Int(if random.flip() { axis } else { axis - 3 });
        let mut case = Case::new();
        case.data(reals(&mut random, &shape));
        let (s, z) = (axis_shape(&mut random), axis_shape(&mut random));
        case.push_parameter(scales(&mut random, &s), false);
        case.push_parameter(zero_points(&mut random, &z), random.flip());
        let rounding = AttrValue::from(ROUNDINGS[1 + random.below(2)]);
        let out = AttrValue::from(random.pick(&ALL));
        let attrs = Attrs::new([("axis", axis_attr.clone()), ("rounding", rounding), ("out_dtype", out)]);
        case.check("qnn.quantize", attrs);

        let mut case = Case::new();
        let dtype = random.pick(&ALL);
        case.data(integers(&mut random, dtype, &shape));
        case.push_parameter(scales(&mut random, &s), false);
        case.push_parameter(zero_points(&mut random, &z), random.flip());
        let out = AttrValue::from(random.pick(&["float32", "float16"]));
        case.check("qnn.dequantize", Attrs::new([("axis", axis_attr.clone()), ("out_dtype", out)]));

        let mut case = Case::new();
        let dtype = random.pick(&[DType::I8, DType::U8, DType::I16, DType::U16, DType::I32, DType::I32, DType::I32]);
        case.data(integers(&mut random, dtype, &shape));
        for _ in 0..2 {
            let (s, z) = (axis_shape(&mut random), axis_shape(&mut random));
            case.push_parameter(scales(&mut random, &s), true);
            case.push_parameter(zero_points(&mut random, &z), random.flip());
        }
        case.check(
            "qnn.requantize",
            Attrs::new([
                ("axis", axis_attr),
                ("rounding", random.pick(&ROUNDINGS).into()),
                ("compute_dtype", random.pick(&["int64", "int64", "float32"]).into()),
                ("out_dtype", random.pick(&ALL).into()),
            ]),
        );
    }
}

#[test]
fn sums_of_products() {
    let mut random = Random::new(2);
    for _ in 0..150 {
        let kernel = |case: &mut Case, random: &mut Random, channels: usize| {
            let axis_shape = |random: &mut Random| if random.flip() { vec![] } else { vec![channels] };
            case.push_parameter(zero_points(random, &[]), random.flip());
            let shape = axis_shape(random);
            case.push_parameter(zero_points(random, &shape), random.flip());
            case.push_parameter(scales(random, &[]), random.flip());
            let shape = axis_shape(random);
            case.push_parameter(scales(random, &shape), random.flip());
        };
        let out = || ("out_dtype", AttrValue::from("int32"));
        let mut case = Case::new();
        let (a, b) = (random.pick(&NARROW), random.pick(&NARROW));
        let groups = random.pick(&[1usize, 1, 2, 4]);
        case.data(integers(&mut random, a, &[2, 4, 5, 6]));
        let layout = random.pick(&["OIHW", "HWIO"]);
        let shape = if layout == "OIHW" { [8, 4 / groups, 2, 3] } else { [2, 3, 4 / groups, 8] };
        case.data(integers(&mut random, b, &shape));
        kernel(&mut case, &mut random, 8);
        let out_dtype = random.pick(&["int32", "int32", "int64"]);
        case.check(
            "qnn.conv2d",
            Attrs::new([
                ("groups", AttrValue::Int(groups as i64)),
                ("padding", AttrValue::from([1, 0, 2, 1])),
                ("strides", AttrValue::from([1, 2])),
                ("dilation", AttrValue::from([2, 1])),
                ("kernel_layout", layout.into()),
                ("out_dtype", out_dtype.into()),
            ]),
        );

        let mut case = Case::new();
        case.data(integers(&mut random, a, &[3, 9]));
        case.data(integers(&mut random, b, &[5, 9]));
        kernel(&mut case, &mut random, 5);
        case.check("qnn.dense", Attrs::new([out()]));

        let mut case = Case::new();
        case.data(integers(&mut random, a, &[1, 3, 4, 4]));
        case.data(integers(&mut random, b, &[3, 5, 2, 2]));
        kernel(&mut case, &mut random, 5);
        case.check(
            "qnn.conv2d_transpose",
            Attrs::new([("strides", AttrValue::from([2, 2])), ("kernel_layout", "IOHW".into())]),
        );

        let mut case = Case::new();
        case.data(integers(&mut random, a, &[2, 3, 7]));
        case.data(integers(&mut random, b, &[2, 4, 7]));
        kernel(&mut case, &mut random, 1);
        case.check("qnn.batch_matmul", Attrs::new([("transpose_b", AttrValue::Bool(true))]));
    }
}

#[test]
fn arithmetic_and_concatenation() {
    let mut random = Random::new(3);
    for _ in 0..300 {
        let dtype = random.pick(&NARROW);
        let is_shared = random.below(4) == 0;
        let (scale, zero) = (scales(&mut random, &[]), zero_points(&mut random, &[]));
        for name in ["qnn.add", "qnn.subtract", "qnn.mul"] {
            let mut case = Case::new();
            case.data(integers(&mut random, dtype, &[2, 3, 5]));
            case.data(integers(&mut random, dtype, &[3, 1]));
            let is_per_tensor = name == "qnn.mul" || random.flip();
            for side in 0..3 {
                let shape: &[usize] = if is_per_tensor || side != 0 { &[] } else { &[3] };
                let (s, z) = (scales(&mut random, shape), zero_points(&mut random, shape));
                case.push_parameter(if is_shared { scale.clone() } else { s }, true);
                case.push_parameter(if is_shared { zero.clone() } else { z }, random.flip());
            }
            case.check(name, Attrs::new([("lhs_axis", AttrValue::Int(1))]));
        }
        let mut case = Case::new();
        let parts: Vec<ExprId> = (1..4).map(|n| case.leaf(integers(&mut random, dtype, &[2, n, 3]), false)).collect();
        let scales: Vec<ExprId> = (1..4).map(|_| case.leaf(scales(&mut random, &[]), true)).collect();
        let zeros: Vec<ExprId> = (1..4).map(|_| case.leaf(zero_points(&mut random, &[]), random.flip())).collect();
        case.args = [parts, scales, zeros].map(|fields| case.builder.tuple(&fields).unwrap()).to_vec();
        case.push_parameter(scale, true);
        case.push_parameter(zero, random.flip());
        case.check("qnn.concatenate", Attrs::new([("axis", AttrValue::Int(1))]));
    }
}

#[test]
fn functions() {
    let mut random = Random::new(4);
    let names = ["tanh", "exp", "sqrt", "rsqrt", "erf", "sigmoid", "hardswish", "log", "abs", "softmax", "leaky_relu"];
    for _ in 0..60 {
        for name in names.iter().chain(&["avg_pool2d"]) {
            let mut case = Case::new();
            let dtype = random.pick(&NARROW);
            case.data(integers(&mut random, dtype, &[1, 2, 6, 7]));
            for _ in 0..2 {
                case.push_parameter(scales(&mut random, &[]), random.flip());
                case.push_parameter(zero_points(&mut random, &[]), random.flip());
            }
            let attrs = match *name {
                "softmax" => Attrs::new([("axis", AttrValue::Int(1))]),
                "leaky_relu" => Attrs::new([("alpha", AttrValue::Float(0.1))]),
                "avg_pool2d" => Attrs::new([
                    ("pool_size", AttrValue::from([3, 2])),
                    ("padding", AttrValue::from([1, 1])),
                    ("strides", AttrValue::from([2, 1])),
                    ("count_include_pad", AttrValue::Bool(random.flip())),
                ]),
                _ => Attrs::none(),
            };
            case.check(&format!("qnn.{name}"), attrs);
        }
    }
}

#[test]
fn dynamic_quantization() {
    let mut random = Random::new(5);
    for shift in [0.0, 3.0, -3.0] {
        let values: Vec<f32> = (0..40).map(|_| random.below(1000) as f32 / 300.0 - 1.5 + shift).collect();
        for values in [&values[..], &[0.0; 40]] {
            let mut case = Case::new();
            case.data(Tensor::from_slice(&[5, 8], values));
            case.check("qnn.contrib_dynamic_quantize", Attrs::none());
        }
    }
}

/// Tables give the results of the chains that they replace.
#[test]
fn tables_of_chains() {
    let program = |dtype: &str| {
        format!(
            "#[version = \"0.0.5\"]\n\
             def @main(%x: Tensor[(2, 80, 128), {dtype}], %y: Tensor[(80, 1), {dtype}]) {{\n\
             %0 = qnn.dequantize(%x, 0.05f, 3);\n%1 = sigmoid(%0);\n%2 = multiply(%0, %1);\n\
             %3 = qnn.quantize(%2, 0.04f, 7, out_dtype=\"{dtype}\", rounding=\"TOEVEN\");\n\
             %4 = qnn.dequantize(%y, 0.5f, 0);\n%5 = subtract(%0, %4);\n%6 = clip(%5, a_min=-1f, a_max=3f);\n\
             %7 = qnn.quantize(%6, 0.02f, 5, out_dtype=\"{dtype}\");\n(%3, %7)\n}}\n"
        )
    };
    for dtype in [DType::I8, DType::U8] {
        let parsed = parse(&program(dtype.name()), &ParseOptions { constants: &[] });
        let module = byoc_core::pass::infer_type(&parsed.module).unwrap();
        let tabulated = super::run(&module, "tabulate");
        let names: Vec<_> = operators(&tabulated).collect();
        assert_eq!(names, ["qnn.contrib_lookup", "qnn.contrib_lookup_pair"]);
        let argument = |shape: &[usize], seed| Value::Tensor(byoc_ir::tensor::random::tensor(dtype, shape, seed));
        let arguments = [argument(&[2, 80, 128], 1), argument(&[80, 1], 2)];
        let value = |module: &Module| tensors(&Evaluator::new(module).run("main", &arguments));
        assert_eq!(value(&module), value(&tabulated));
    }
}

#[test]
fn unknown_scales_stay() {
    let mut case = Case::new();
    case.data(Tensor::from_slice(&[2], &[1i8, 2]));
    for _ in 0..2 {
        case.push_parameter(Tensor::scalar(0.5f32), false);
        case.push_parameter(Tensor::scalar(0i32), true);
    }
    let call = case.builder.op("qnn.requantize", &case.args, Attrs::none()).unwrap();
    case.builder.define("main", &case.params, call).unwrap();
    let canonical = super::run(&case.builder.module, "qnn_canonicalize");
    assert_eq!(operators(&canonical).collect::<Vec<_>>(), ["qnn.requantize"]);
}

fn ints(values: &[i64]) -> AttrValue {
    AttrValue::from(values)
}

/// Tests a small network as exporters write it: every value is quantized and dequantized again.
#[test]
fn float_network_becomes_an_integer_one() {
    let mut random = Random::new(6);
    for _ in 0..20 {
        let mut case = Case::new();
        let step = |exponent: i32| Tensor::scalar(1.25 * 2f32.powi(exponent));
        let real = |case: &mut Case, value: ExprId, scale: Tensor, point: i32, axis: i64| {
            let (scale, point) = (case.builder.constant(scale), case.builder.constant(Tensor::scalar(point)));
            let attrs = Attrs::new([("axis", AttrValue::Int(axis))]);
            case.builder.op("qnn.dequantize", &[value, scale, point], attrs).unwrap()
        };
        let requantize = |case: &mut Case, value: ExprId, exponent: i32, point: i32| {
            let (scale, zero) = (case.builder.constant(step(exponent)), case.builder.constant(Tensor::scalar(point)));
            let attrs = Attrs::new([("out_dtype", "uint8".into()), ("rounding", "TOEVEN".into())]);
            let value = case.builder.op("qnn.quantize", &[value, scale, zero], attrs).unwrap();
            real(case, value, step(exponent), point, -1)
        };
        let x = case.leaf(integers(&mut random, DType::U8, &[1, 4, 8, 8]), false);
        let weight = case.builder.constant(integers(&mut random, DType::I8, &[4, 4, 3, 3]));
        let bias = case.builder.constant(Tensor::from_slice(&[4], &[100i32, -200, 0, 3000]));
        let data = real(&mut case, x, step(-4), 100, -1);
        let kernel = real(&mut case, weight, Tensor::from_slice(&[4], &[0.01f32, 0.02, 0.015, 0.005]), 0, 0);
        let pad_attrs = Attrs::new([("padding", ints(&[1, 1]))]);
        let conv = case.builder.op("nn.conv2d", &[data, kernel], pad_attrs).unwrap();
        let product: Vec<f32> = [0.01f32, 0.02, 0.015, 0.005].map(|s| s * 1.25 * 2f32.powi(-4)).to_vec();
        let bias = real(&mut case, bias, Tensor::from_slice(&[4], &product), 0, 0);
        let conv = case.builder.op("nn.bias_add", &[conv, bias], Attrs::none()).unwrap();
        let conv = case.builder.op("nn.relu", &[conv], Attrs::none()).unwrap();
        let conv = requantize(&mut case, conv, -3, 0);
        let sum = case.builder.op("add", &[conv, data], Attrs::none()).unwrap();
        let sum = requantize(&mut case, sum, -2, 60);
        let pool = Attrs::new([("pool_size", ints(&[2, 2])), ("strides", ints(&[2, 2]))]);
        let pool = case.builder.op("nn.max_pool2d", &[sum], pool).unwrap();
        let concatenated = case.builder.tuple(&[pool, pool]).unwrap();
        let concatenated =
            case.builder.op("concatenate", &[concatenated], Attrs::new([("axis", AttrValue::Int(1))])).unwrap();
        let concatenated = requantize(&mut case, concatenated, -2, 50);
        let mean = case.builder.op("nn.global_avg_pool2d", &[concatenated], Attrs::none()).unwrap();
        let mean = requantize(&mut case, mean, -3, 30);
        let (scale, zero) = (case.builder.constant(step(-3)), case.builder.constant(Tensor::scalar(30i32)));
        let attrs = Attrs::new([("out_dtype", "uint8".into()), ("rounding", "TOEVEN".into())]);
        let out = case.builder.op("qnn.quantize", &[mean, scale, zero], attrs).unwrap();
        case.builder.define("main", &case.params, out).unwrap();
        let module = case.builder.module;
        let integers = super::run(&module, "fake_quantization_to_integer");
        let names: Vec<_> = operators(&integers).collect();
        let allowed = [
            "qnn.conv2d",
            "nn.bias_add",
            "qnn.requantize",
            "qnn.add",
            "nn.max_pool2d",
            "qnn.concatenate",
            "qnn.avg_pool2d",
        ];
        let mut unexpected: Vec<_> = names.iter().filter(|name| !allowed.contains(name)).collect();
        unexpected.retain(|name| **name != "clip");
        assert!(unexpected.is_empty(), "expected only integer operators, found {names:?}");
        assert!(allowed.iter().all(|name| names.contains(name)), "{names:?}");
        let value =
            |module: &Module| tensors(&Evaluator::new(module).run("main", &case.arguments)).remove(0).view().to_f64s();
        for (a, b) in value(&module).iter().zip(value(&integers)) {
            // Each requantization may be off by one step; averaging removes more than half of the accumulated error.
            assert!((a - b).abs() <= 2.0, "expected {a} within 2, found {b}");
        }
    }
}
