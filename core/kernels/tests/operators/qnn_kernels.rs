//! Tests that the 8-bit kernels and the naive references produce identical bits, over many shapes.

use super::attrs;
use byoc_ir::ir::{AttrValue, Attrs, TensorType};
use byoc_ir::op::{self, Value};
use byoc_ir::tensor::{AlignedBytes, DType, Tensor, TensorView, TensorViewMut};
use byoc_kernels::{self, Spec};
use byoc_test_support::random::Random;

/// Returns a random tensor of 8-bit elements in which the ends of the range are more frequent than other values.
fn bytes(random: &mut Random, dtype: DType, shape: &[usize]) -> Tensor {
    let bytes: Vec<u8> = (0..shape.iter().product::<usize>())
        .map(|_| if random.below(8) == 0 { random.pick(&[0x00, 0x7f, 0x80, 0xff]) } else { random.bits() as u8 })
        .collect();
    Tensor::from_bytes(dtype, shape, &bytes).unwrap()
}

fn random_int32s(random: &mut Random, shape: &[usize]) -> Tensor {
    let values: Vec<i32> = (0..shape.iter().product::<usize>())
        .map(|_| {
            let bits = 8 + random.below(24);
            (random.bits() as i32) >> bits
        })
        .collect();
    Tensor::from_slice(shape, &values)
}

/// Returns zero points: all zero, all within the range of an 8-bit type, or (occasionally) arbitrary integers.
fn zero_points(random: &mut Random, shape: &[usize], dtype: DType) -> Tensor {
    let kind = random.below(10);
    let values: Vec<i32> = (0..shape.iter().product::<usize>())
        .map(|_| match kind {
            0..4 => 0,
            4..9 => random.below(256) as i32 - if dtype == DType::U8 { 0 } else { 128 },
            _ => random.bits() as i32 >> random.below(24),
        })
        .collect();
    Tensor::from_slice(shape, &values)
}

fn random_scales(random: &mut Random, shape: &[usize], exponent: i32) -> Tensor {
    let values: Vec<f32> = (0..shape.iter().product::<usize>())
        .map(|_| {
            let mantissa =
                if random.below(5) == 0 { 1.0 } else { 1.0 + random.below(1 << 20) as f32 / (1 << 20) as f32 };
            mantissa * 2f32.powi(exponent + random.below(5) as i32 - 2)
        })
        .collect();
    Tensor::from_slice(shape, &values)
}

fn scale_tensor(scale: f32) -> Tensor {
    Tensor::scalar(scale)
}

/// Runs the kernel of a call in a pool of `threads` threads, with the inputs in `constant_inputs` as constants. Asserts
/// that the output is bitwise equal to the output of the reference.
fn check(name: &str, attrs: &Attrs, args: &[&Tensor], constant_inputs: &[usize], threads: usize) {
    let values: Vec<Value> = args.iter().map(|&t| Value::Tensor(t.clone())).collect();
    check_call(name, attrs, &values, args, constant_inputs, threads);
}

/// Compares the kernel with the reference; `args` are the tensors in `values`.
fn check_call(
    name: &str,
    attrs: &Attrs,
    values: &[Value],
    args: &[&Tensor],
    constant_inputs: &[usize],
    threads: usize,
) {
    let id = op::lookup(name).unwrap_or_else(|| panic!("unknown operator {name}"));
    let def = op::get(id);
    let attrs = op::normalize_attrs(def, attrs.clone()).unwrap_or_else(|error| panic!("{name} {attrs:?}: {error}"));
    let expected = op::evaluate(id, &attrs, values, 1 << 30).unwrap_or_else(|error| panic!("{error}"));
    let types: Vec<TensorType> = args.iter().map(|t| TensorType::fixed(t.dtype(), t.shape())).collect();
    let outputs: Vec<TensorType> = expected.iter().map(|t| TensorType::fixed(t.dtype(), t.shape())).collect();
    let constants: Vec<Option<&Tensor>> =
        args.iter().enumerate().map(|(i, t)| constant_inputs.contains(&i).then_some(*t)).collect();
    let spec = Spec { def, attrs: &attrs, inputs: &types, outputs: &outputs, constants: &constants };
    let kernel = byoc_kernels::make(id, &spec).unwrap();
    let views: Vec<TensorView<'_>> = args.iter().map(|t| t.view()).collect();
    let mut workspace = AlignedBytes::copy_of(&vec![0x5a; kernel.workspace() + 8192]).unwrap();
    // The fill pattern reveals elements that a kernel does not write.
    let mut buffer = AlignedBytes::copy_of(&vec![0xa5; expected[0].bytes().len()]).unwrap();
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
    for _ in 0..2 {
        let out = TensorViewMut { dtype: expected[0].dtype(), shape: expected[0].shape(), data: buffer.as_mut() };
        pool.install(|| kernel.run(&views, &mut [out], workspace.as_mut())).unwrap();
        let actual = Tensor::from_bytes(expected[0].dtype(), expected[0].shape(), buffer.as_ref()).unwrap();
        if actual != expected[0] {
            let shapes: Vec<_> = args.iter().map(|t| (t.dtype(), t.shape().to_vec())).collect();
            let (actual, expected) = (actual.view().to_f64s(), expected[0].view().to_f64s());
            let mismatch = actual.iter().zip(&expected).position(|(g, w)| g != w).unwrap_or(0);
            panic!(
                "{name} {attrs:?} of {shapes:?}: element {mismatch}: expected {}, found {}",
                expected[mismatch], actual[mismatch]
            );
        }
    }
}

const BYTES: [DType; 2] = [DType::I8, DType::U8];

/// Creates a random convolution. Returns the attributes, the data, the weight and the number of output channels.
fn convolution(random: &mut Random) -> (Vec<(&'static str, AttrValue)>, Tensor, Tensor, usize) {
    let groups = random.pick(&[1usize, 1, 1, 2, 3, 8]);
    let inputs = groups * random.pick(&[1usize, 2, 3, 4, 5, 8, 16, 19]);
    let outputs = groups * random.pick(&[1usize, 2, 7, 15, 16, 17, 32, 33, 48]);
    let kernel = [1 + random.below(4), 1 + random.below(4)];
    let dilation = [1 + random.below(3), 1 + random.below(2)];
    let strides = [1 + random.below(3), 1 + random.below(3)];
    let pads = [0; 4].map(|_| if random.below(2) == 0 { 0 } else { random.below(4) });
    let size: [usize; 2] = std::array::from_fn(|i| {
        let min_size = ((kernel[i] - 1) * dilation[i] + 1).saturating_sub(pads[i] + pads[i + 2]).max(1);
        min_size + random.below(12)
    });
    let batch = 1 + random.below(2);
    let is_channels_last = random.below(3) == 0;
    let order = |shape: [usize; 4]| if is_channels_last { [shape[0], shape[2], shape[3], shape[1]] } else { shape };
    let data = any_bytes(random, &order([batch, inputs, size[0], size[1]]));
    let is_hwio = random.below(3) == 0;
    let (o, i) = (outputs, inputs / groups);
    let weight = any_bytes(random, &if is_hwio { [kernel[0], kernel[1], i, o] } else { [o, i, kernel[0], kernel[1]] });
    let ints = |values: &[usize]| AttrValue::ints(values.iter().map(|&v| v as i64));
    let attrs = vec![
        ("strides", ints(&strides)),
        ("padding", ints(&pads)),
        ("dilation", ints(&dilation)),
        ("groups", AttrValue::Int(groups as i64)),
        ("data_layout", (if is_channels_last { "NHWC" } else { "NCHW" }).into()),
        ("kernel_layout", (if is_hwio { "HWIO" } else { "OIHW" }).into()),
    ];
    (attrs, data, weight, outputs)
}

fn any_bytes(random: &mut Random, shape: &[usize]) -> Tensor {
    let dtype = random.pick(&BYTES);
    bytes(random, dtype, shape)
}

fn per_channel(random: &mut Random, channels: usize) -> Vec<usize> {
    if random.below(2) == 0 { vec![] } else { vec![channels] }
}

#[test]
fn convolutions() {
    let mut random = Random::new(1);
    for round in 0..250 {
        let (attrs_and_shapes, data, weight, outputs) = convolution(&mut random);
        let shape = per_channel(&mut random, outputs);
        let zeros = [zero_points(&mut random, &[], data.dtype()), zero_points(&mut random, &shape, weight.dtype())];
        let args = [&data, &weight, &zeros[0], &zeros[1], &scale_tensor(0.5), &scale_tensor(0.25)];
        let constant_inputs: &[usize] = if round % 3 == 0 { &[] } else { &[1] };
        check("qnn.conv2d", &Attrs::new(attrs_and_shapes), &args, constant_inputs, 1 + round % 3);
    }
}

#[test]
fn fused_convolutions() {
    let mut random = Random::new(2);
    for round in 0..250 {
        let (mut conv_attrs, data, weight, outputs) = convolution(&mut random);
        let (shape, scale_shape) = (per_channel(&mut random, outputs), per_channel(&mut random, outputs));
        let zeros = [zero_points(&mut random, &[], data.dtype()), zero_points(&mut random, &shape, weight.dtype())];
        let bias = random_int32s(&mut random, &[outputs]);
        let out = random.pick(&BYTES);
        let (source_scale, result_scale) =
            (random_scales(&mut random, &scale_shape, -12), random_scales(&mut random, &[], -2));
        let result_zero_point = zero_points(&mut random, &[], out);
        conv_attrs.extend([
            ("out_dtype", out.into()),
            ("rounding", random.pick(&["None", "UPWARD", "TONEAREST", "TOEVEN"]).into()),
            ("compute_dtype", random.pick(&["None", "int64", "float32"]).into()),
        ]);
        if random.below(3) == 0 {
            conv_attrs.extend([("a_min", AttrValue::Int(3)), ("a_max", AttrValue::Int(90))]);
        }
        let args = [&data, &weight, &bias, &zeros[0], &zeros[1], &source_scale, &result_scale, &result_zero_point];
        let constant_inputs: &[usize] = if round % 4 == 0 { &[5, 6, 7] } else { &[1, 2, 3, 4, 5, 6, 7] };
        check("qnn.contrib_conv2d_requantize", &Attrs::new(conv_attrs), &args, constant_inputs, 1 + round % 3);
    }
}

#[test]
fn depthwise_convolutions() {
    let mut random = Random::new(3);
    for round in 0..120 {
        let [channels, multiplier] = [2 + random.below(5), 1 + random.below(2)];
        let (kernel, stride) = ([1 + random.below(5), 1 + random.below(5)], [1 + random.below(3), 1 + random.below(2)]);
        let size = [kernel[0] + random.below(20), kernel[1] + random.below(40)];
        let outputs = channels * multiplier;
        let batch = 1 + random.below(2);
        let data = any_bytes(&mut random, &[batch, channels, size[0], size[1]]);
        let weight = any_bytes(&mut random, &[outputs, 1, kernel[0], kernel[1]]);
        let ints = |values: &[usize]| AttrValue::ints(values.iter().map(|&v| v as i64));
        let padding = [random.below(2), random.below(3), random.below(2), random.below(3)];
        let geometry =
            [("groups", AttrValue::Int(channels as i64)), ("strides", ints(&stride)), ("padding", ints(&padding))];
        let shape = per_channel(&mut random, outputs);
        let zeros = [zero_points(&mut random, &[], data.dtype()), zero_points(&mut random, &shape, weight.dtype())];
        let threads = 1 + round % 3;
        let args = [&data, &weight, &zeros[0], &zeros[1], &scale_tensor(0.5), &scale_tensor(0.25)];
        check("qnn.conv2d", &Attrs::new(geometry.clone()), &args, &[1, 3], threads);
        let (bias, scales) = (random_scales(&mut random, &[outputs], -2), random_scales(&mut random, &shape, -12));
        let args = [&data, &weight, &bias, &zeros[0], &zeros[1], &scales];
        check("qnn.contrib_conv2d_dequantize", &Attrs::new(geometry.clone()), &args, &[1, 4], threads);
        let (bias, out) = (random_int32s(&mut random, &[outputs]), random.pick(&BYTES));
        let (result_scale, result_zero_point) =
            (random_scales(&mut random, &[], -2), zero_points(&mut random, &[], out));
        let modes = [
            ("out_dtype", out.into()),
            ("rounding", random.pick(&["None", "TONEAREST", "TOEVEN"]).into()),
            ("compute_dtype", random.pick(&["int64", "float32"]).into()),
        ];
        let attrs = Attrs::new(geometry.into_iter().chain(modes));
        let args = [&data, &weight, &bias, &zeros[0], &zeros[1], &scales, &result_scale, &result_zero_point];
        check("qnn.contrib_conv2d_requantize", &attrs, &args, &[1, 4, 5, 6, 7], threads);
    }
}

#[test]
fn concatenations() {
    let mut random = Random::new(4);
    for round in 0..40 {
        let (dtype, axis, count) = (random.pick(&BYTES), random.below(3), 1 + random.below(3));
        let parts: Vec<Tensor> = (0..count)
            .map(|_| {
                let mut shape = [2, 3, 40];
                shape[axis] = random.below(5);
                bytes(&mut random, dtype, &shape)
            })
            .collect();
        if parts.iter().all(|part| part.shape()[axis] == 0) {
            continue;
        }
        let scales: Vec<Tensor> = (0..=count).map(|_| random_scales(&mut random, &[], -3)).collect();
        let zeros: Vec<Tensor> = (0..=count).map(|_| zero_points(&mut random, &[], dtype)).collect();
        let tuple = |parts: &[Tensor]| Value::Tuple(parts.to_vec());
        let values = [tuple(&parts), tuple(&scales[..count]), tuple(&zeros[..count])];
        let result = [Value::Tensor(scales[count].clone()), Value::Tensor(zeros[count].clone())];
        let args: Vec<&Tensor> = parts.iter().chain(&scales[..count]).chain(&zeros[..count]).collect();
        let args = [&args[..], &[&scales[count], &zeros[count]]].concat();
        let constants: Vec<usize> = (count..args.len()).collect();
        let attrs = attrs([("axis", AttrValue::Int(axis as i64))]);
        check_call("qnn.concatenate", &attrs, &[&values[..], &result].concat(), &args, &constants, 1 + round % 2);
    }
}

#[test]
fn lookups() {
    let mut random = Random::new(5);
    for round in 0..30 {
        let (x, table) = (any_bytes(&mut random, &[3, 40, 50]), any_bytes(&mut random, &[256]));
        check("qnn.contrib_lookup", &Attrs::none(), &[&x, &table], &[], 1 + round % 2);
        let table = any_bytes(&mut random, &[1 << 16]);
        for shape in [&[3, 40, 50][..], &[40, 1], &[50], &[]] {
            let y = any_bytes(&mut random, shape);
            check("qnn.contrib_lookup_pair", &Attrs::none(), &[&x, &y, &table], &[], 1 + round % 2);
            check("qnn.contrib_lookup_pair", &Attrs::none(), &[&y, &x, &table], &[], 1 + round % 2);
        }
    }
}

#[test]
fn softmax() {
    let mut random = Random::new(6);
    for round in 0..40 {
        let shape = random.pick(&[vec![1], vec![7, 130], vec![2, 3, 5, 33], vec![40, 2]]);
        let x = any_bytes(&mut random, &shape);
        let zeros = [zero_points(&mut random, &[], x.dtype()), zero_points(&mut random, &[], x.dtype())];
        let args =
            [&x, &random_scales(&mut random, &[], -3), &zeros[0], &random_scales(&mut random, &[], -7), &zeros[1]];
        let axis = [-1, shape.len() as i64 - 1, 0][round % 3];
        check("qnn.softmax", &attrs([("axis", AttrValue::Int(axis))]), &args, &[], 1 + round % 2);
    }
}

#[test]
fn convolutions_with_real_results() {
    let mut random = Random::new(7);
    for round in 0..100 {
        let (attrs, data, weight, outputs) = convolution(&mut random);
        let shape = per_channel(&mut random, outputs);
        let zeros = [zero_points(&mut random, &[], data.dtype()), zero_points(&mut random, &shape, weight.dtype())];
        let (bias, scales) = (random_scales(&mut random, &[outputs], -2), random_scales(&mut random, &shape, -12));
        let constant_inputs: &[usize] = if round % 3 == 0 { &[] } else { &[1] };
        let args = [&data, &weight, &bias, &zeros[0], &zeros[1], &scales];
        check("qnn.contrib_conv2d_dequantize", &Attrs::new(attrs), &args, constant_inputs, 1 + round % 3);
    }
}

#[test]
fn products() {
    let mut random = Random::new(8);
    for round in 0..200 {
        let [m, n, k] = [1 + random.below(40), 1 + random.below(80), 1 + random.below(70)];
        let (data, weight) = (any_bytes(&mut random, &[m, k]), any_bytes(&mut random, &[n, k]));
        let shape = per_channel(&mut random, n);
        let zeros = [zero_points(&mut random, &[], data.dtype()), zero_points(&mut random, &shape, weight.dtype())];
        let args = [&data, &weight, &zeros[0], &zeros[1], &scale_tensor(0.5), &scale_tensor(0.25)];
        check("qnn.dense", &Attrs::none(), &args, if round % 2 == 0 { &[] } else { &[1] }, 1 + round % 2);

        let bias = random_int32s(&mut random, &[n]);
        let scale_shape = per_channel(&mut random, n);
        let (source_scale, result_scale, result_zero_point) = (
            random_scales(&mut random, &scale_shape, -10),
            random_scales(&mut random, &[], -2),
            zero_points(&mut random, &[], DType::I8),
        );
        let args = [&data, &weight, &bias, &zeros[0], &zeros[1], &source_scale, &result_scale, &result_zero_point];
        let product_attrs = attrs([("compute_dtype", random.pick(&["int64", "float32"]).into())]);
        check("qnn.contrib_dense_requantize", &product_attrs, &args, &[1, 5, 6, 7], 1 + round % 2);
        let real_bias = random_scales(&mut random, &[n], -3);
        let args = [&data, &weight, &real_bias, &zeros[0], &zeros[1], &source_scale];
        check(
            "qnn.contrib_dense_dequantize",
            &Attrs::none(),
            &args,
            if round % 2 == 0 { &[] } else { &[1] },
            1 + round % 2,
        );

        let batch = 1 + random.below(4);
        let flags = [random.below(2) == 0, random.below(2) == 0];
        let x = any_bytes(&mut random, &if flags[0] { [batch, k, m] } else { [batch, m, k] });
        let shared_batch = random.pick(&[1, batch]);
        let y = any_bytes(&mut random, &if flags[1] { [shared_batch, n, k] } else { [shared_batch, k, n] });
        let zeros = [zero_points(&mut random, &[], x.dtype()), zero_points(&mut random, &[], y.dtype())];
        let product_attrs =
            attrs([("transpose_a", AttrValue::Bool(flags[0])), ("transpose_b", AttrValue::Bool(flags[1]))]);
        let args = [&x, &y, &zeros[0], &zeros[1], &scale_tensor(0.5), &scale_tensor(0.25)];
        check("qnn.batch_matmul", &product_attrs, &args, if round % 2 == 0 { &[] } else { &[1] }, 1 + round % 2);
    }
}

#[test]
fn elementwise() {
    let mut random = Random::new(9);
    for round in 0..60 {
        let shape = random.pick(&[vec![1500], vec![2, 3, 30, 31], vec![5, 700], vec![3, 4]]);
        let x = any_bytes(&mut random, &shape);
        let dtype = x.dtype();
        let out = random.pick(&BYTES);
        let zeros = [
            zero_points(&mut random, &[], dtype),
            zero_points(&mut random, &[], out),
            zero_points(&mut random, &[], dtype),
        ];
        let scales = [
            random_scales(&mut random, &[], -3),
            random_scales(&mut random, &[], -3),
            random_scales(&mut random, &[], -2),
        ];
        let threads = 1 + round % 3;
        let requantize = attrs([
            ("out_dtype", out.into()),
            ("rounding", random.pick(&["None", "TONEAREST", "TOEVEN"]).into()),
            ("compute_dtype", random.pick(&["int64", "float32"]).into()),
        ]);
        let requantize_args = [&x, &scales[0], &zeros[0], &scales[1], &zeros[1]];
        check("qnn.requantize", &requantize, &requantize_args, &[1, 2, 3, 4], threads);
        check("qnn.dequantize", &Attrs::none(), &requantize_args[..3], &[], threads);
        for name in ["qnn.tanh", "qnn.sigmoid", "qnn.hardswish", "qnn.abs", "qnn.softmax", "qnn.leaky_relu"] {
            check(name, &Attrs::none(), &[&x, &scales[0], &zeros[0], &scales[1], &zeros[2]], &[], threads);
        }
        check(
            "clip",
            &attrs([("a_min", AttrValue::Float(-3.0)), ("a_max", AttrValue::Float(100.0))]),
            &[&x],
            &[],
            threads,
        );
        check("nn.relu", &Attrs::none(), &[&x], &[], threads);

        let y = bytes(&mut random, dtype, &shape);
        let binary_args = [&x, &y, &scales[0], &zeros[0], &scales[1], &zeros[2], &scales[2], &zeros[2]];
        for name in ["qnn.add", "qnn.subtract", "qnn.mul"] {
            check(name, &Attrs::none(), &binary_args, &[2, 3, 4, 5, 6, 7], threads);
        }
        // Operands with one element, with a vector along an axis, and both with an axis that the other one lacks.
        let kept = random.below(shape.len());
        let one_axis: Vec<usize> = (0..shape.len()).map(|i| if i == kept { shape[i] } else { 1 }).collect();
        let other_axes: Vec<usize> = (0..shape.len()).map(|i| if i == kept { 1 } else { shape[i] }).collect();
        for (left, right) in [(&shape, &vec![]), (&vec![1], &shape), (&shape, &one_axis), (&one_axis, &other_axes)] {
            let (x, y) = (bytes(&mut random, dtype, left), bytes(&mut random, dtype, right));
            let args = [&x, &y, &scales[0], &zeros[0], &scales[1], &zeros[2], &scales[2], &zeros[2]];
            for name in ["qnn.add", "qnn.subtract", "qnn.mul"] {
                check(name, &Attrs::none(), &args, &[2, 3, 4, 5, 6, 7], threads);
            }
        }

        let int32s = random_int32s(&mut random, &shape);
        let axis = random.below(shape.len());
        let axis_shape = if random.below(2) == 0 { vec![] } else { vec![shape[axis]] };
        let source_scale = random_scales(&mut random, &axis_shape, -8);
        let requantize_attrs =
            Attrs::new([("axis", AttrValue::Int(axis as i64))].into_iter().chain(
                ["out_dtype", "rounding", "compute_dtype"].map(|key| (key, requantize.get(key).unwrap().clone())),
            ));
        let args = [&int32s, &source_scale, &Tensor::scalar(0i32), &scales[0], &zeros[1]];
        check("qnn.requantize", &requantize_attrs, &args, &[1, 2, 3, 4], threads);
        let bias = random_int32s(&mut random, &[shape[axis]]);
        check("nn.bias_add", &attrs([("axis", AttrValue::Int(axis as i64))]), &[&int32s, &bias], &[1], threads);

        let reals: Vec<f32> =
            x.view().to_f64s().iter().map(|v| (*v as f32 - 3.0) / 2.0 * scales[0].as_slice::<f32>()[0]).collect();
        let mut reals = reals;
        (reals[0], reals[1], reals[2]) = (f32::NAN, f32::INFINITY, f32::NEG_INFINITY);
        let reals = Tensor::from_slice(&shape, &reals);
        let quantize_attrs =
            attrs([("out_dtype", out.into()), ("rounding", random.pick(&["TONEAREST", "TOEVEN"]).into())]);
        check("qnn.quantize", &quantize_attrs, &[&reals, &scales[0], &zeros[1]], &[1, 2], threads);
    }
}

#[test]
fn pooling() {
    let mut random = Random::new(10);
    for round in 0..80 {
        let is_channels_last = round % 3 == 0;
        let [channels, h, w] = [1 + random.below(5), 1 + random.below(9), 1 + random.below(9)];
        let (kernel, dilation) = ([1 + random.below(3), 1 + random.below(3)], 1 + random.below(2));
        let pads = [random.below(kernel[0]), random.below(kernel[1])];
        let min_size = |i: usize| (kernel[i] - 1) * dilation + 1;
        let (h, w) = (h + min_size(0), w + min_size(1));
        let shape = if is_channels_last { [2, h, w, channels] } else { [2, channels, h, w] };
        let ints = |values: &[usize]| AttrValue::ints(values.iter().map(|&v| v as i64));
        let pool_attrs = attrs([
            ("pool_size", ints(&kernel)),
            ("strides", ints(&[1 + random.below(2), 1 + random.below(2)])),
            ("padding", ints(&pads)),
            ("dilation", ints(&[dilation, dilation])),
            ("layout", (if is_channels_last { "NHWC" } else { "NCHW" }).into()),
            ("ceil_mode", AttrValue::Bool(random.below(2) == 0)),
        ]);
        check("nn.max_pool2d", &pool_attrs, &[&any_bytes(&mut random, &shape)], &[], 1 + round % 3);
        let (dtype, include) = (random.pick(&BYTES), AttrValue::Bool(random.flip()));
        let x = bytes(&mut random, dtype, &shape);
        let [scales, result_scales] = [0, 1].map(|_| random_scales(&mut random, &[], -3));
        let [zeros, result_zeros] = [0, 1].map(|_| zero_points(&mut random, &[], dtype));
        let args = [&x, &scales, &zeros, &result_scales, &result_zeros];
        check("qnn.avg_pool2d", &pool_attrs.with("count_include_pad", include), &args, &[1, 2, 3, 4], 1 + round % 3);
    }
}
