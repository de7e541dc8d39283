//! Tests the fast kernels against the naive references, on one thread and on two: max|a - b| / max|b| must not exceed
//! 1e-5.

use crate::random;
use byoc_ir::ir::{AttrValue, Attrs, TensorType};
use byoc_ir::op::{self, Value};
use byoc_ir::tensor::{AlignedBytes, DType, Tensor, TensorView, TensorViewMut};
use byoc_kernels::{Kernel, Offer, Spec};

/// Runs the fast kernel of `name` on a fresh workspace full of NaN; panics if no kernel covers the call.
fn run_kernel(
    name: &str,
    attrs: &Attrs,
    args: &[Tensor],
    constants: &[Option<&Tensor>],
    expected: &[Tensor],
) -> Vec<Tensor> {
    let def = op::get(op::lookup(name).expect("expected a known operator"));
    let type_of = |t: &Tensor| TensorType::fixed(t.dtype(), t.shape());
    let (inputs, outputs): (Vec<_>, Vec<_>) =
        (args.iter().map(type_of).collect(), expected.iter().map(type_of).collect());
    let spec = Spec { def, attrs, inputs: &inputs, outputs: &outputs, constants };
    let offers = || inventory::iter::<Offer>.into_iter().filter(|o| o.op == name);
    let kernel: Box<dyn Kernel> = offers()
        .find_map(|o| (o.make)(&spec))
        .unwrap_or_else(|| panic!("{name}: expected a kernel that covers the call"));
    // Operators share a workspace, so that it may be larger than a kernel asks for.
    let mut workspace = AlignedBytes::zeroed(kernel.workspace() + 8192).unwrap();
    workspace.as_mut().fill(0xff);
    let views: Vec<TensorView<'_>> = args.iter().map(Tensor::view).collect();
    let mut results: Vec<AlignedBytes> =
        expected.iter().map(|t| AlignedBytes::copy_of(&vec![0xff; t.bytes().len()]).unwrap()).collect();
    let write = |results: &mut [AlignedBytes], run: &mut dyn FnMut(&mut [TensorViewMut<'_>])| {
        let mut output_views: Vec<TensorViewMut<'_>> = results
            .iter_mut()
            .zip(expected)
            .map(|(bytes, t)| TensorViewMut { dtype: t.dtype(), shape: t.shape(), data: bytes.as_mut() })
            .collect();
        run(&mut output_views);
    };
    write(&mut results, &mut |output_views| kernel.run(&views, output_views, workspace.as_mut()).unwrap());
    let tensors = |results: &[AlignedBytes]| -> Vec<Tensor> {
        let result_of =
            |(b, t): (&AlignedBytes, &Tensor)| Tensor::from_bytes(t.dtype(), t.shape(), b.as_ref()).unwrap();
        results.iter().zip(expected).map(result_of).collect()
    };
    let results_in_place = tensors(&results);
    if let Some(input) = kernel.in_place() {
        results[0].as_mut().copy_from_slice(args[input].bytes());
        let constant_views: Vec<TensorView<'_>> =
            views.iter().enumerate().filter(|(i, _)| *i != input).map(|(_, v)| *v).collect();
        write(&mut results, &mut |output_views| kernel.run_in_place(&constant_views, output_views).unwrap());
        assert_eq!(tensors(&results)[0], results_in_place[0], "{name}: expected the same result in place");
    }
    results_in_place
}

#[track_caller]
fn assert_close(name: &str, case: &str, actual: &[Tensor], expected: &[Tensor]) {
    for (actual, expected) in actual.iter().zip(expected) {
        let (actual, expected) = (actual.view().to_f64s(), expected.view().to_f64s());
        let largest = expected.iter().fold(0.0f64, |m, v| m.max(v.abs()));
        for (i, (g, w)) in actual.iter().zip(&expected).enumerate() {
            let is_close = g == w || (g - w).abs() <= 1e-5 * largest;
            assert!(is_close, "{name} {case}: element {i} of {}: expected {w}, found {g}", expected.len());
        }
    }
}

/// Checks a call on one thread and on two, with all inputs after the first as constants.
#[track_caller]
fn check_values(name: &str, pairs: &[(&str, AttrValue)], args: &[Tensor]) {
    let attrs = Attrs::new(pairs.iter().map(|(k, v)| (*k, v.clone())));
    let case = format!("{:?} {attrs:?}", args.iter().map(|t| t.shape().to_vec()).collect::<Vec<_>>());
    let values: Vec<Value> = args.iter().cloned().map(Value::Tensor).collect();
    let expected = op::evaluate(op::lookup(name).expect("expected a known operator"), &attrs, &values, 1 << 26)
        .unwrap_or_else(|e| panic!("{name} {case}: {e}"));
    let constants: Vec<Option<&Tensor>> = args.iter().enumerate().map(|(i, t)| (i > 0).then_some(t)).collect();
    for threads in [1, 2] {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        let actual = pool.install(|| run_kernel(name, &attrs, args, &constants, &expected));
        assert_close(name, &format!("{case} on {threads} threads"), &actual, &expected);
    }
}

#[track_caller]
fn check(name: &str, pairs: &[(&str, AttrValue)], shapes: &[&[usize]]) {
    let args: Vec<Tensor> = shapes.iter().zip(1..).map(|(shape, seed)| random(shape, seed)).collect();
    check_values(name, pairs, &args);
}

fn ints<const N: usize>(values: [i64; N]) -> AttrValue {
    AttrValue::from(values)
}

#[test]
fn convolution() {
    let strides = |v: [i64; 2]| ("strides", ints(v));
    let padding = |v: [i64; 4]| ("padding", ints(v));
    let dilation = |v: [i64; 2]| ("dilation", ints(v));
    let groups = |v: i64| ("groups", AttrValue::Int(v));
    // The columns of a 1x1 kernel are the data themselves, unless there is a stride or padding.
    check("nn.conv2d", &[], &[&[1, 16, 7, 7], &[24, 16, 1, 1]]);
    check("nn.conv2d", &[], &[&[3, 5, 9, 11], &[7, 5, 1, 1]]);
    check("nn.conv2d", &[], &[&[1, 64, 40, 40], &[96, 64, 1, 1]]);
    check("nn.conv2d", &[strides([2, 2])], &[&[2, 8, 9, 10], &[6, 8, 1, 1]]);
    check("nn.conv2d", &[padding([1, 1, 1, 1])], &[&[1, 3, 5, 5], &[2, 3, 1, 1]]);
    // Gathered columns, with combinations of the attributes.
    check("nn.conv2d", &[padding([1, 1, 1, 1])], &[&[1, 3, 13, 17], &[5, 3, 3, 3]]);
    check("nn.conv2d", &[strides([2, 1]), padding([0, 1, 2, 3])], &[&[2, 4, 11, 9], &[6, 4, 3, 2]]);
    check("nn.conv2d", &[strides([3, 3]), padding([3, 3, 3, 3])], &[&[1, 3, 23, 25], &[8, 3, 7, 7]]);
    check("nn.conv2d", &[dilation([2, 3]), padding([2, 3, 2, 3])], &[&[1, 3, 12, 12], &[4, 3, 3, 3]]);
    check("nn.conv2d", &[padding([5, 5, 5, 5])], &[&[1, 2, 3, 3], &[3, 2, 3, 3]]);
    check("nn.conv2d", &[padding([2, 2, 2, 2]), dilation([4, 4]), strides([2, 3])], &[&[1, 2, 8, 9], &[3, 2, 3, 3]]);
    // Columns gathered in many blocks, and in one block with many terms.
    check("nn.conv2d", &[padding([1, 1, 1, 1])], &[&[1, 64, 56, 56], &[32, 64, 3, 3]]);
    check("nn.conv2d", &[padding([1, 1, 1, 1])], &[&[1, 256, 7, 7], &[64, 256, 3, 3]]);
    check("nn.conv2d", &[padding([1, 1, 1, 1]), strides([2, 2])], &[&[3, 32, 28, 28], &[40, 32, 3, 3]]);
    // A column, which is computed as a row.
    check("nn.conv2d", &[padding([2, 0, 1, 0]), strides([2, 1])], &[&[2, 5, 33, 1], &[7, 5, 4, 1]]);
    check("nn.conv2d", &[padding([2, 0, 1, 0]), dilation([2, 3]), groups(6)], &[&[2, 6, 33, 1], &[6, 1, 4, 1]]);
    check("nn.conv2d", &[padding([0, 1, 0, 1])], &[&[2, 5, 33, 1], &[7, 5, 4, 3]]);
    check("nn.conv2d_transpose", &[padding([1, 0, 1, 0]), strides([2, 1])], &[&[2, 5, 9, 1], &[5, 7, 4, 1]]);
    // Groups.
    check("nn.conv2d", &[groups(2), padding([1, 1, 1, 1])], &[&[2, 8, 9, 9], &[6, 4, 3, 3]]);
    check("nn.conv2d", &[groups(4)], &[&[1, 16, 8, 8], &[8, 4, 1, 1]]);
    // One spatial axis.
    check("nn.conv1d", &[("padding", ints([2, 1])), ("strides", ints([2]))], &[&[2, 5, 33], &[7, 5, 4]]);
}

#[test]
fn depthwise_convolution() {
    for stride in [1, 2, 3] {
        for (h, w) in [(7, 7), (16, 33), (1, 70), (40, 3)] {
            let padding = ("padding", ints([1, 1, 1, 1]));
            let pairs = [("groups", AttrValue::Int(6)), ("strides", ints([stride, stride])), padding];
            check("nn.conv2d", &pairs, &[&[2, 6, h, w], &[6, 1, 3, 3]]);
        }
    }
    let groups = || ("groups", AttrValue::Int(3));
    let wide_padding =
        [groups(), ("padding", ints([2, 0, 1, 4])), ("dilation", ints([2, 3])), ("strides", ints([1, 2]))];
    check("nn.conv2d", &wide_padding, &[&[1, 3, 15, 40], &[6, 1, 5, 4]]);
    let far_padding = [groups(), ("padding", ints([6, 6, 6, 6])), ("strides", ints([2, 3]))];
    check("nn.conv2d", &far_padding, &[&[1, 3, 3, 2], &[3, 1, 7, 7]]);
    let many_groups = [("groups", AttrValue::Int(96)), ("padding", ints([1, 1]))];
    check("nn.conv2d", &many_groups, &[&[1, 96, 56, 56], &[96, 1, 3, 3]]);
}

#[test]
fn recurrent_layers() {
    // Sizes below, at and above the block of a product, more sequences than threads, and steps that are divided over them.
    for (steps, batch, hidden) in [(1, 1, 1), (3, 1, 64), (5, 3, 7), (2, 4, 33), (4, 9, 40)] {
        for reverse in [false, true] {
            let attrs = [("reverse", AttrValue::Bool(reverse))];
            let state: &[usize] = &[batch, hidden];
            let gates = |count: usize| ([steps, batch, count * hidden], [count * hidden, hidden]);
            let (data, weight) = gates(4);
            check("nn.lstm", &attrs, &[&data, &weight, state, state]);
            let (data, weight) = gates(3);
            check("nn.gru", &attrs, &[&data, &weight, state, &[3 * hidden]]);
            // Sequences that end before, at and after the last step.
            let counts: Vec<i32> = (0..batch as i32).map(|i| (i * 2) % (steps as i32 + 2) - 1).collect();
            let lengths = Tensor::from_slice(&[batch], &counts);
            let values = |shape: &[usize], seed: u64| random(shape, seed);
            for (name, gates, last) in [("nn.lstm", 4, vec![batch, hidden]), ("nn.gru", 3, vec![3 * hidden])] {
                let (data, weight) = (values(&[steps, batch, gates * hidden], 1), values(&[gates * hidden, hidden], 2));
                let operands = [data, weight, values(state, 3), values(&last, 4), lengths.clone()];
                check_values(name, &attrs, &operands);
            }
            let columns = 4 * hidden;
            for (dtype, is_per_column) in [(DType::I8, false), (DType::U8, true)] {
                let parameters: &[usize] = if is_per_column { &[columns] } else { &[] };
                let (data, hidden_state, cell) =
                    (random(&[steps, batch, columns], 1), random(state, 2), random(state, 3));
                let weight = byoc_ir::tensor::random::tensor(dtype, &[hidden, columns], 4);
                let scales = vec![0.003f32; parameters.iter().product()];
                let zero_points: Vec<i32> = (0..scales.len() as i32).map(|i| i % 7 + 1).collect();
                let [zero_points, scales] =
                    [Tensor::from_slice(parameters, &zero_points), Tensor::from_slice(parameters, &scales)];
                let operands = [data, weight, hidden_state, cell, zero_points, scales, lengths.clone()];
                check_values("qnn.lstm", &attrs, &operands[..6]);
                check_values("qnn.lstm", &attrs, &operands);
            }
        }
    }
}

/// A layer whose steps are divided over the threads.
#[test]
fn large_quantized_layer() {
    let (steps, hidden) = (6, 200);
    let state = |seed| random(&[1, hidden], seed);
    let weight = byoc_ir::tensor::random::tensor(DType::I8, &[hidden, 4 * hidden], 4);
    let [zero_point, scale] = [Tensor::scalar(3i32), Tensor::scalar(1e-4f32)];
    let operands = [random(&[steps, 1, 4 * hidden], 1), weight, state(2), state(3), zero_point, scale];
    check_values("qnn.lstm", &[], &operands);
}

#[test]
fn dynamic_quantization() {
    for (len, factor, shift) in
        [(1, 1.0, 0.0), (17, 0.0, 0.0), (100, 3.0, 0.0), (9_001, 1e-3, 5.0), (70_000, 2.0, -9.0)]
    {
        let mut values: Vec<f32> = random(&[len], 7).view().as_slice::<f32>().to_vec();
        values.iter_mut().for_each(|value| *value = *value * factor + shift);
        values[len / 3] = f32::NAN;
        check_values("qnn.contrib_dynamic_quantize", &[], &[Tensor::from_slice(&[len], &values)]);
    }
}

#[test]
fn decision_trees() {
    let (branches, leaves, features, targets) = (60, 61, 5, 3);
    for (modes, nan_bits) in [(1, 0), (6, 0), (6, 8)] {
        // Node i has the children 2 i + 1 and 2 i + 2, or leaves.
        let child = |i: usize| if i < branches { i as i32 } else { -1 - (i - branches) as i32 };
        let node =
            |i: usize| [(i * 7 % features) as i32, (i % modes) as i32 + nan_bits, child(2 * i + 1), child(2 * i + 2)];
        let nodes: Vec<i32> = (0..branches).flat_map(node).collect();
        let mut rows = random(&[40, features], 1).view().as_slice::<f32>().to_vec();
        rows.iter_mut().step_by(11).for_each(|value| *value = f32::NAN);
        let args = [
            Tensor::from_slice(&[40, features], &rows),
            Tensor::from_slice(&[branches, 4], &nodes),
            random(&[branches], 2),
            Tensor::from_slice(&[4], &[0, 5, -3, 1]),
            random(&[leaves, targets], 3),
        ];
        for aggregate in ["sum", "min", "max"] {
            check_values("ml.tree_ensemble", &[("aggregate", AttrValue::Str(aggregate.into()))], &args);
        }
    }
}

/// Trees of nodes that do not exist, or that are below themselves, are left to the reference, which reports them.
#[test]
fn malformed_trees_are_errors() {
    let evaluate = |nodes: [i32; 8], root: i32| {
        let args = [
            random(&[2, 3], 1),
            Tensor::from_slice(&[2, 4], &nodes),
            Tensor::from_slice(&[2], &[0f32, 0.0]),
            Tensor::from_slice(&[1], &[root]),
            random(&[2, 1], 2),
        ];
        let types: Vec<TensorType> = args.iter().map(|t| TensorType::fixed(t.dtype(), t.shape())).collect();
        let outputs = [TensorType::fixed(DType::F32, &[2, 1])];
        let def = op::get(op::lookup("ml.tree_ensemble").unwrap());
        let constants: Vec<Option<&Tensor>> = args.iter().enumerate().map(|(i, t)| (i > 0).then_some(t)).collect();
        let spec = Spec { def, attrs: &Attrs::none(), inputs: &types, outputs: &outputs, constants: &constants };
        let kernel = byoc_kernels::make(op::lookup("ml.tree_ensemble").unwrap(), &spec).unwrap();
        let mut result = AlignedBytes::zeroed(8).unwrap();
        let views: Vec<TensorView<'_>> = args.iter().map(Tensor::view).collect();
        let output = TensorViewMut { dtype: DType::F32, shape: &[2, 1], data: result.as_mut() };
        let mut workspace = AlignedBytes::zeroed(kernel.workspace()).unwrap();
        kernel.run(&views, &mut [output], workspace.as_mut())
    };
    let leaf = [0, 0, -1, -2];
    let with = |node: [i32; 4]| [node, leaf].concat().try_into().unwrap();
    assert!(evaluate(with([0, 0, 1, -1]), 0).is_ok());
    for (nodes, root, message) in [
        (with([0, 0, 0, 0]), 0, "on a cycle"),
        (with([0, 0, 2, 2]), 0, "found 2 out of range"),
        (with([0, 0, -3, -3]), 0, "found -3 out of range"),
        (with(leaf), 2, "found 2 out of range"),
        (with(leaf), i32::MIN, "out of range"),
        (with([3, 0, -1, -1]), 0, "node 0 has a feature or a mode out of range"),
        (with([0, 6, -1, -1]), 0, "node 0 has a feature or a mode out of range"),
    ] {
        let error = evaluate(nodes, root).unwrap_err();
        assert!(error.contains(message), "{nodes:?}: expected \"{message}\", found {error}");
    }
}

#[test]
fn sorting() {
    let flag = |name: &'static str, value: bool| (name, AttrValue::Bool(value));
    let axis = |value: i64| ("axis", AttrValue::Int(value));
    let k = |value: i64| ("k", AttrValue::Int(value));
    let special = Tensor::from_slice(
        &[2, 6],
        &[0.0, -0.0, f32::NAN, 1.5, f32::INFINITY, -1.5, f32::NEG_INFINITY, 1.5, 0.0, f32::NAN, -0.0, 1.5f32],
    );
    let integers = Tensor::from_slice(&[2, 5], &[3, -1, i32::MIN, i32::MAX, 3, 0, 0, -7, 7, 0]);
    for is_ascending in [false, true] {
        let order = flag("is_ascend", is_ascending);
        for dtype in ["int32", "int64"] {
            let index = ("dtype", AttrValue::from(dtype));
            check("argsort", &[order.clone(), index.clone()], &[&[5, 700]]);
            check("topk", &[k(3), order.clone(), index], &[&[5, 700]]);
        }
        check("sort", &[order.clone(), axis(1)], &[&[3, 17, 4]]);
        check("topk", &[k(5), order.clone(), axis(0)], &[&[17, 3, 4]]);
        check("topk", &[k(0), order.clone()], &[&[3, 1]]);
        check("topk", &[k(2), order.clone(), ("ret_type", "indices".into())], &[&[3, 9]]);
        check("topk", &[k(2), order.clone(), ("ret_type", "values".into())], &[&[3, 9]]);
        for values in [&special, &integers] {
            check_values("argsort", std::slice::from_ref(&order), std::slice::from_ref(values));
            check_values("topk", &[k(4), order.clone(), ("ret_type", "indices".into())], std::slice::from_ref(values));
        }
    }
}

#[test]
fn sampling_at_coordinates() {
    let text = |name: &'static str, value: &'static str| (name, AttrValue::from(value));
    for method in ["bilinear", "nearest"] {
        for padding in ["zeros", "border", "reflection"] {
            for is_aligned in [false, true] {
                let attrs = [
                    text("method", method),
                    text("padding_mode", padding),
                    ("align_corners", AttrValue::Bool(is_aligned)),
                    text("layout", "NHWC"),
                ];
                let wide_grid = |shape: &[usize]| {
                    let values = random(shape, 7).as_slice::<f32>().iter().map(|x| x * 1.7).collect();
                    Tensor::from_vec(shape, values)
                };
                check_values("image.grid_sample", &attrs, &[random(&[2, 3, 7, 5], 1), wide_grid(&[2, 6, 9, 2])]);
                check_values("image.grid_sample", &attrs, &[random(&[1, 2, 3, 4, 5], 1), wide_grid(&[1, 2, 6, 4, 3])]);
                check_values("image.grid_sample", &attrs, &[random(&[1, 2, 1, 4], 1), wide_grid(&[1, 3, 3, 2])]);
            }
        }
    }
    check("image.grid_sample", &[], &[&[2, 3, 7, 5], &[2, 2, 6, 9]]);
    // Taps outside the data and taps with zero weight do not contribute, even if the data contain NaN; neither do
    // samples with a NaN coordinate.
    let data = Tensor::from_slice(&[1, 1, 2, 2], &[f32::NAN, 1.0, 2.0, 3.0]);
    let grid = Tensor::from_slice(&[1, 1, 3, 2], &[1.0, 1.0, 9.0, 9.0, f32::NAN, 1.0]);
    check_values("image.grid_sample", &[text("layout", "NHWC")], &[data, grid]);
}

/// Returns pseudorandom integers from `-bound` to `bound - 1`.
fn indices(shape: &[usize], bound: i64) -> Tensor {
    let values = random(shape, 5);
    Tensor::from_vec(
        shape,
        values.as_slice::<f32>().iter().map(|x| (f64::from(*x) * bound as f64).floor() as i64).collect(),
    )
}

fn as_type(tensor: &Tensor, dtype: &str) -> Tensor {
    let attrs = Attrs::new([("dtype", AttrValue::from(dtype))]);
    op::evaluate(op::lookup("cast").unwrap(), &attrs, &[Value::Tensor(tensor.clone())], 1 << 26).unwrap().remove(0)
}

#[test]
fn gathering() {
    let axis = |value: i64| [("axis", AttrValue::Int(value))];
    for index_type in ["int32", "int64"] {
        for (value, bound) in [(0, 7), (1, 5), (2, 9), (-1, 9)] {
            let index = as_type(&indices(&[3, 4, 6], bound), index_type);
            for element_type in ["float32", "float64", "float16", "uint8"] {
                let data = as_type(&random(&[7, 5, 9], 1), element_type);
                check_values("gather", &axis(value), &[data, index.clone()]);
            }
        }
    }
    check_values("gather", &axis(0), &[random(&[50], 1), indices(&[10_000], 50)]);
    let def = op::get(op::lookup("gather").unwrap());
    let (attrs, data, index) = (Attrs::new(axis(0)), random(&[3], 1), Tensor::from_slice(&[2], &[0i64, 3]));
    let type_of = |t: &Tensor| TensorType::fixed(t.dtype(), t.shape());
    let (inputs, outputs) = ([type_of(&data), type_of(&index)], [TensorType::fixed(DType::F32, &[2])]);
    let spec = Spec { def, attrs: &attrs, inputs: &inputs, outputs: &outputs, constants: &[None, None] };
    let kernel = byoc_kernels::make(op::lookup("gather").unwrap(), &spec).unwrap();
    let mut result = [0f32; 2];
    let message = kernel
        .run(&[data.view(), index.view()], &mut [TensorViewMut::of(&[2], &mut result)], &mut [])
        .expect_err("expected an error for an index outside the axis");
    assert_eq!(message, "index 3 is out of range for an axis of length 3");
}

#[test]
fn taking() {
    let attrs = |axis: i64, mode: &str| [("axis", AttrValue::Int(axis)), ("mode", AttrValue::from(mode))];
    for index_type in ["int32", "int64"] {
        for element_type in ["float32", "float64", "float16", "uint8"] {
            let data = as_type(&random(&[7, 5, 9], 1), element_type);
            for (axis, mode) in [(0, "clip"), (1, "wrap"), (2, "clip"), (-1, "wrap")] {
                for sizes in [&[3, 40][..], &[], &[10_000]] {
                    let index = as_type(&indices(sizes, 12), index_type);
                    check_values("take", &attrs(axis, mode), &[data.clone(), index]);
                }
            }
            let batches = [("axis", AttrValue::Int(2)), ("batch_dims", AttrValue::Int(1)), ("mode", "wrap".into())];
            check_values("take", &batches, &[data, as_type(&indices(&[7, 3], 9), index_type)]);
        }
    }
}

#[test]
fn scattering() {
    let attrs =
        |name: &'static str, axis: i64, mode: &str| [("axis", AttrValue::Int(axis)), (name, AttrValue::from(mode))];
    for mode in ["update", "add", "mul", "min", "max"] {
        for index_type in ["int32", "int64"] {
            for (axis, bound) in [(0, 7), (1, 5), (2, 9), (-1, 9)] {
                for sizes in [[7, 5, 9], [3, 4, 6], [7, 2, 9], [1, 5, 1]] {
                    let index = as_type(&indices(&sizes, bound), index_type);
                    let element_types = ["float32", "float64", "float16", "int64", "uint8"];
                    for element_type in element_types.into_iter().take(if mode == "update" { 5 } else { 1 }) {
                        let data = as_type(&random(&[7, 5, 9], 1), element_type);
                        let updates = as_type(&random(&sizes, 2), element_type);
                        check_values(
                            "scatter_elements",
                            &attrs("reduction", axis, mode),
                            &[data, index.clone(), updates],
                        );
                    }
                }
            }
            for (index_shape, update_shape) in
                [(&[1, 4][..], &[4, 5, 9][..]), (&[2, 2, 3], &[2, 3, 9]), (&[3, 40], &[40]), (&[0, 2], &[2, 7, 5, 9])]
            {
                let index = as_type(&indices(index_shape, 5), index_type);
                let pairs = [("mode", AttrValue::from(mode))];
                check_values("scatter_nd", &pairs, &[random(&[7, 5, 9], 1), index, random(update_shape, 2)]);
            }
        }
    }
    // Several updates of the same element are applied in order.
    let index = indices(&[40_000], 50);
    check_values("scatter_elements", &[], &[random(&[50], 1), index.clone(), random(&[40_000], 2)]);
    check_values("scatter_elements", &attrs("reduction", 0, "min"), &[random(&[50], 1), index, random(&[40_000], 2)]);
    check_values(
        "scatter_elements",
        &attrs("reduction", 1, "add"),
        &[random(&[200, 30], 1), indices(&[200, 400], 30), random(&[200, 400], 2)],
    );
}

#[test]
fn integer_arithmetic_and_relations() {
    let shapes: [[&[usize]; 2]; 4] = [[&[3, 40], &[3, 40]], [&[3, 40], &[]], [&[1, 1], &[3, 40]], [&[3, 1], &[1, 40]]];
    for [a, b] in shapes {
        for name in ["equal", "not_equal", "less", "less_equal", "greater", "greater_equal"] {
            for dtype in ["int32", "int64"] {
                check_values(name, &[], &[as_type(&indices(a, 3), dtype), as_type(&indices(b, 2), dtype)]);
            }
        }
        for name in ["add", "subtract", "multiply", "maximum", "minimum"] {
            for dtype in ["int32", "int64"] {
                check_values(name, &[], &[as_type(&indices(a, 70), dtype), as_type(&indices(b, 50), dtype)]);
            }
            let extremes = |shape: &[usize], at: usize| {
                let values = [i32::MIN, i32::MAX, -1, 7];
                let values: Vec<i32> = (0..shape.iter().product()).map(|i| values[(i + at) % 4]).collect();
                Tensor::from_slice(shape, &values)
            };
            check_values(name, &[], &[extremes(a, 0), extremes(b, 1)]);
        }
        for name in ["logical_and", "logical_or", "logical_xor"] {
            check_values(name, &[], &[as_type(&indices(a, 1), "bool"), as_type(&indices(b, 1), "bool")]);
        }
    }
}

#[test]
fn regions_of_interest() {
    let rois = Tensor::from_slice(
        &[4, 5],
        &[
            0.0, 1.0, 2.0, 15.0, 18.0, 1.0, -3.5, -8.0, 4.0, 30.0, 0.0, 9.25, 3.0, 9.25, 3.0, 1.0, 20.0, 20.0, 4.0,
            2.0f32,
        ],
    );
    for is_aligned in [false, true] {
        for ratio in [-1, 1, 2, 3] {
            let attrs = [
                ("pooled_size", ints([3, 2])),
                ("spatial_scale", AttrValue::Float(0.5)),
                ("sample_ratio", AttrValue::Int(ratio)),
                ("aligned", AttrValue::Bool(is_aligned)),
            ];
            check_values("vision.roi_align", &attrs, &[random(&[2, 3, 11, 9], 1), rois.clone()]);
        }
    }
}

#[test]
fn normalization_over_channels() {
    for size in [1, 3, 5, 99] {
        for beta in [0.75, 0.5] {
            let attrs = [
                ("size", AttrValue::Int(size)),
                ("alpha", AttrValue::Float(0.3)),
                ("beta", AttrValue::Float(beta)),
                ("bias", AttrValue::Float(1.5)),
            ];
            check("nn.lrn", &attrs, &[&[2, 7, 5, 9]]);
            check("nn.lrn", &attrs, &[&[1, 3, 300, 2]]);
            let large = random(&[1, 4, 6, 6], 1).as_slice::<f32>().iter().map(|x| x * 3e25).collect();
            check_values("nn.lrn", &attrs, &[Tensor::from_vec(&[1, 4, 6, 6], large)]);
        }
    }
    check("nn.lrn", &[("axis", AttrValue::Int(0))], &[&[3, 40]]);
}

#[test]
fn fourier_transforms() {
    let flag = |name: &'static str, value: bool| (name, AttrValue::Bool(value));
    let integer = |value: i64| Tensor::scalar(value);
    for is_inverse in [false, true] {
        for is_onesided in [false, true] {
            let attrs = [flag("inverse", is_inverse), flag("onesided", is_onesided)];
            let parts: &[usize] = if is_onesided { if is_inverse { &[2] } else { &[1] } } else { &[1, 2] };
            for &parts in parts {
                for size in [2, 3, 5, 8, 12, 16, 35, 64, 97, 100] {
                    let data = random(&[3, size, parts], 1);
                    check_values("signal.dft", &attrs, &[data, integer(0), integer(1)]);
                }
                for length in [4, 9, 20] {
                    let data = random(&[2, 10, 3, parts], 1);
                    check_values("signal.dft", &attrs, &[data, integer(length), integer(1)]);
                }
            }
        }
    }
    for (parts, is_onesided) in [(1, true), (1, false), (2, false)] {
        let attrs = [flag("onesided", is_onesided)];
        for window in [7, 16, 24] {
            let args = [random(&[2, 100, parts], 1), integer(5), random(&[window], 2)];
            check_values("signal.stft", &attrs, &args);
        }
    }
}

#[test]
fn convolution_of_volumes() {
    let strides = |v: [i64; 3]| ("strides", ints(v));
    let padding = |v: [i64; 6]| ("padding", ints(v));
    let dilation = |v: [i64; 3]| ("dilation", ints(v));
    check("nn.conv3d", &[], &[&[1, 3, 4, 5, 6], &[2, 3, 1, 1, 1]]);
    check("nn.conv3d", &[], &[&[2, 3, 4, 5, 6], &[2, 3, 3, 1, 1]]);
    check("nn.conv3d", &[padding([1, 0, 0, 1, 0, 0])], &[&[2, 4, 5, 7, 6], &[6, 4, 3, 1, 1]]);
    check("nn.conv3d", &[padding([0, 1, 1, 0, 1, 1])], &[&[1, 4, 5, 7, 6], &[6, 4, 1, 3, 3]]);
    check("nn.conv3d", &[padding([1; 6]), strides([2, 1, 2])], &[&[2, 3, 8, 9, 10], &[5, 3, 3, 3, 3]]);
    check("nn.conv3d", &[padding([1, 2, 3, 0, 1, 4]), dilation([2, 1, 3])], &[&[1, 2, 7, 6, 8], &[3, 2, 3, 2, 2]]);
    check("nn.conv3d", &[("groups", AttrValue::Int(2)), padding([1; 6])], &[&[2, 4, 3, 6, 5], &[6, 2, 3, 3, 3]]);
    check("nn.conv3d", &[padding([1; 6])], &[&[1, 16, 6, 20, 21], &[24, 16, 3, 3, 3]]);
    check("nn.conv3d", &[padding([4; 6])], &[&[1, 1, 2, 2, 2], &[1, 1, 3, 3, 3]]);
}

/// Tests that 16-bit floats are computed by the kernels for `f32`, and rounded once.
#[test]
fn products_of_narrow_floats() {
    let padding = [("padding", ints([1, 1, 1, 1]))];
    let cases: [(&str, &[(&str, AttrValue)], &[&[usize]]); 6] = [
        ("nn.dense", &[], &[&[37, 65], &[33, 65]]),
        ("nn.batch_matmul", &[], &[&[3, 5, 8], &[3, 8, 7]]),
        ("nn.conv2d", &padding, &[&[1, 8, 9, 10], &[6, 8, 3, 3]]),
        ("nn.softmax", &[], &[&[5, 40]]),
        ("add", &[], &[&[5, 40], &[40]]),
        ("less", &[], &[&[5, 40], &[40]]),
    ];
    for (name, pairs, shapes) in cases {
        for (dtype, unit) in [(DType::F16, 2f64.powi(-11)), (DType::BF16, 2f64.powi(-8))] {
            let attrs = Attrs::new(pairs.iter().map(|(k, v)| (*k, v.clone())));
            let args: Vec<Tensor> =
                shapes.iter().zip(1..).map(|(shape, seed)| narrow(&random(shape, seed), dtype)).collect();
            let values: Vec<Value> = args.iter().cloned().map(Value::Tensor).collect();
            let op = op::lookup(name).unwrap();
            let expected = op::evaluate(op, &attrs, &values, 1 << 26).unwrap();
            for constants in [vec![None; args.len()], args.iter().map(Some).collect()] {
                let type_of = |t: &Tensor| TensorType::fixed(t.dtype(), t.shape());
                let (inputs, outputs): (Vec<_>, Vec<_>) =
                    (args.iter().map(type_of).collect(), expected.iter().map(type_of).collect());
                let spec =
                    Spec { def: op::get(op), attrs: &attrs, inputs: &inputs, outputs: &outputs, constants: &constants };
                let kernel = byoc_kernels::make(op, &spec).unwrap();
                assert_eq!(kernel.scratch(), 0, "{name} {dtype}: expected a kernel, found the reference");
                let mut workspace = AlignedBytes::zeroed(kernel.workspace()).unwrap();
                workspace.as_mut().fill(0xff);
                let mut result = AlignedBytes::zeroed(expected[0].bytes().len()).unwrap();
                let output =
                    TensorViewMut { dtype: expected[0].dtype(), shape: expected[0].shape(), data: result.as_mut() };
                let views: Vec<TensorView<'_>> = args.iter().map(Tensor::view).collect();
                kernel.run(&views, &mut [output], workspace.as_mut()).unwrap();
                let actual = Tensor::from_bytes(expected[0].dtype(), expected[0].shape(), result.as_ref()).unwrap();
                let (actual, expected) = (actual.view().to_f64s(), expected[0].view().to_f64s());
                let largest = expected.iter().fold(0.0f64, |m, v| m.max(v.abs()));
                for (actual, expected) in actual.iter().zip(&expected) {
                    assert!((actual - expected).abs() <= unit * largest, "{name} {dtype}: {actual} and {expected}");
                }
            }
        }
    }
}

/// Rounds elements to a 16-bit type.
fn narrow(tensor: &Tensor, dtype: DType) -> Tensor {
    let values = tensor.as_slice::<f32>().iter();
    match dtype {
        DType::F16 => Tensor::from_vec(tensor.shape(), values.map(|&x| half::f16::from_f32(x)).collect()),
        _ => Tensor::from_vec(tensor.shape(), values.map(|&x| half::bf16::from_f32(x)).collect()),
    }
}

#[test]
fn convolution_in_other_layouts() {
    let channels_last =
        |kernel: &'static str| [("data_layout", AttrValue::from("NHWC")), ("kernel_layout", kernel.into())];
    let layout_and = |kernel: &'static str, more: &[(&'static str, AttrValue)]| [&channels_last(kernel), more].concat();
    let pads = ("padding", ints([1, 0, 2, 1]));
    check("nn.conv2d", &channels_last("HWIO"), &[&[2, 6, 5, 8], &[1, 1, 8, 12]]);
    check("nn.conv2d", &channels_last("OIHW"), &[&[1, 9, 9, 3], &[5, 3, 1, 1]]);
    check(
        "nn.conv2d",
        &layout_and("HWIO", &[pads.clone(), ("strides", ints([2, 1]))]),
        &[&[2, 9, 8, 5], &[3, 2, 5, 7]],
    );
    check("nn.conv2d", &layout_and("OHWI", &[pads, ("dilation", ints([2, 2]))]), &[&[1, 30, 31, 16], &[20, 3, 3, 16]]);
    check("nn.conv2d", &[("kernel_layout", "HWIO".into())], &[&[1, 4, 6, 6], &[3, 3, 4, 5]]);
}

#[test]
fn products() {
    for (m, n, k) in [(1, 1, 1), (1, 1000, 512), (2, 33, 65), (4, 17, 200), (5, 7, 3), (37, 41, 300), (128, 96, 64)] {
        check("nn.dense", &[], &[&[m, k], &[n, k]]);
        check("nn.matmul", &[], &[&[m, k], &[k, n]]);
        for (a, b) in [(false, true), (true, false), (true, true)] {
            let pairs = [("transpose_a", AttrValue::Bool(a)), ("transpose_b", AttrValue::Bool(b))];
            let lhs_shape = if a { [3, k, m] } else { [3, m, k] };
            let rhs_shape = if b { [3, n, k] } else { [3, k, n] };
            check("nn.batch_matmul", &pairs, &[&lhs_shape, &rhs_shape]);
        }
    }
    check("nn.dense", &[], &[&[2, 3, 20], &[9, 20]]);
    check("nn.dense", &[], &[&[0, 20], &[9, 20]]);
    check("nn.dense", &[], &[&[3, 0], &[2, 0]]);
    check("nn.batch_matmul", &[], &[&[1, 5, 6], &[4, 6, 7]]);
    check("nn.batch_matmul", &[], &[&[4, 5, 6], &[1, 6, 7]]);
    check("nn.batch_matmul", &[], &[&[24, 64, 32], &[24, 32, 64]]);
    check("nn.matmul", &[("transpose_a", AttrValue::Bool(true))], &[&[300, 37], &[300, 41]]);
    check("nn.bias_add", &[], &[&[2, 5, 6, 7], &[5]]);
    check("nn.bias_add", &[], &[&[0, 5], &[5]]);
    check("nn.bias_add", &[("axis", AttrValue::Int(-1))], &[&[300, 500], &[500]]);
}

#[test]
fn transposed_convolution() {
    let strides = |v: i64| ("strides", ints([v, v]));
    check("nn.conv2d_transpose", &[], &[&[1, 5, 6, 7], &[5, 4, 3, 3]]);
    check("nn.conv2d_transpose", &[strides(2)], &[&[2, 16, 9, 8], &[16, 10, 2, 2]]);
    let uneven_attrs = [strides(3), ("padding", ints([1, 0, 2, 3])), ("output_padding", ints([1, 2]))];
    check("nn.conv2d_transpose", &uneven_attrs, &[&[1, 6, 5, 7], &[6, 9, 4, 5]]);
    let groups = [("groups", AttrValue::Int(2)), ("dilation", ints([2, 3])), ("padding", ints([3, 3]))];
    check("nn.conv2d_transpose", &groups, &[&[2, 8, 7, 7], &[8, 3, 3, 3]]);
    check("nn.conv2d_transpose", &[strides(2), ("padding", ints([1, 1]))], &[&[1, 64, 32, 32], &[64, 48, 4, 4]]);
    check("nn.conv1d_transpose", &[("strides", ints([2]))], &[&[2, 5, 11], &[5, 7, 4]]);
}

#[test]
fn pooling() {
    let pool = |v: [i64; 2]| ("pool_size", ints(v));
    let strides = |v: [i64; 2]| ("strides", ints(v));
    for name in ["nn.max_pool2d", "nn.avg_pool2d"] {
        check(name, &[pool([3, 3]), strides([2, 2]), ("padding", ints([1, 1, 1, 1]))], &[&[2, 9, 56, 55]]);
        check(name, &[pool([2, 2]), strides([2, 2]), ("ceil_mode", AttrValue::Bool(true))], &[&[1, 3, 7, 9]]);
        check(name, &[pool([3, 2]), ("padding", ints([2, 0, 1, 1])), ("dilation", ints([2, 3]))], &[&[1, 2, 9, 8]]);
        check(name, &[pool([5, 5]), strides([3, 1]), ("padding", ints([4, 4]))], &[&[1, 2, 3, 2]]);
    }
    let include_padding = ("count_include_pad", AttrValue::Bool(true));
    check("nn.avg_pool2d", &[pool([3, 3]), ("padding", ints([1, 0, 2, 1])), include_padding.clone()], &[&[2, 3, 8, 9]]);
    let ceil_attrs = [pool([3, 3]), strides([2, 2]), ("ceil_mode", AttrValue::Bool(true)), include_padding];
    check("nn.avg_pool2d", &ceil_attrs, &[&[1, 2, 8, 6]]);
    check("nn.max_pool1d", &[("pool_size", ints([3])), ("strides", ints([2]))], &[&[2, 3, 31]]);
    let includes_padding = ("count_include_pad", AttrValue::Bool(true));
    let volume = [("pool_size", ints([3, 2, 3])), ("strides", ints([1, 2, 2])), ("padding", ints([1, 0, 1, 1, 1, 0]))];
    for name in ["nn.max_pool3d", "nn.avg_pool3d"] {
        check(name, &volume, &[&[2, 3, 5, 6, 9]]);
        check(name, &[("pool_size", ints([2, 2, 2]))], &[&[1, 2, 4, 30, 31]]);
    }
    check("nn.avg_pool3d", &[&volume[..], &[includes_padding]].concat(), &[&[1, 2, 5, 6, 9]]);
    check("nn.avg_pool1d", &[("pool_size", ints([4]))], &[&[2, 3, 31]]);
    for p in [1, 2] {
        let norm_order = ("p", AttrValue::Int(p));
        let stride = ("strides", ints([2, 1]));
        let padding = ("padding", ints([1, 0, 2, 1]));
        check("nn.contrib_lp_pool2d", &[pool([3, 2]), padding, stride, norm_order.clone()], &[&[2, 3, 8, 9]]);
        check("nn.contrib_lp_pool1d", &[("pool_size", ints([3])), norm_order], &[&[2, 3, 17]]);
    }
    for name in ["nn.global_max_pool2d", "nn.global_avg_pool2d"] {
        check(name, &[], &[&[2, 65, 7, 7]]);
        check(name, &[], &[&[1, 3, 40, 37]]);
    }
    check("nn.adaptive_avg_pool2d", &[("output_size", ints([1, 1]))], &[&[1, 5, 6, 7]]);
}

#[test]
fn maximum_keeps_nan() {
    let x = Tensor::from_slice(&[1, 1, 2, 3], &[1.0f32, f32::NAN, 2.0, f32::NEG_INFINITY, 0.0, f32::INFINITY]);
    for (name, pairs) in
        [("nn.max_pool2d", vec![("pool_size", ints([1, 1]))]), ("nn.global_max_pool2d", vec![]), ("nn.softmax", vec![])]
    {
        let attrs = Attrs::new(pairs);
        let op = op::lookup(name).unwrap();
        let expected = op::evaluate(op, &attrs, &[Value::Tensor(x.clone())], 1 << 20).unwrap();
        let actual = run_kernel(name, &attrs, std::slice::from_ref(&x), &[None], &expected);
        let nan_mask = |t: &Tensor| t.as_slice::<f32>().iter().map(|v| v.is_nan()).collect::<Vec<_>>();
        assert_eq!(nan_mask(&actual[0]), nan_mask(&expected[0]), "{name}");
        assert!(nan_mask(&expected[0]).contains(&true), "{name}: expected a NaN in the reference result");
    }
}

#[test]
fn normalization() {
    let channel = |n: usize| vec![n];
    for shape in [vec![2, 5, 6, 7], vec![1, 64, 30, 30], vec![3, 5], vec![2, 3, 70]] {
        let c = channel(shape[1]);
        let mut args: Vec<Tensor> = [&shape, &c, &c, &c].iter().zip(1..).map(|(s, seed)| random(s, seed)).collect();
        let variance: Vec<f32> = random(&c, 9).as_slice::<f32>().iter().map(|v| v.abs() + 0.1).collect();
        args.push(Tensor::from_slice(&c, &variance));
        check_values("nn.batch_norm", &[], &args);
        check_values("nn.batch_norm", &[("scale", AttrValue::Bool(false)), ("epsilon", AttrValue::Float(0.1))], &args);
    }
    for shape in [vec![2, 5, 96], vec![1, 128, 256], vec![7, 33], vec![3, 1]] {
        let c = channel(*shape.last().unwrap());
        check("nn.layer_norm", &[("epsilon", AttrValue::Float(1e-3))], &[&shape, &c, &c]);
    }
    for shape in [vec![2, 6, 5, 7], vec![1, 32, 20, 20], vec![3, 6, 33]] {
        let c = channel(shape[1]);
        check("nn.instance_norm", &[], &[&shape, &c, &c]);
        check("nn.group_norm", &[("num_groups", AttrValue::Int(2))], &[&shape, &c, &c]);
    }
    let statistics = random(&[4], 3);
    let batch_norm_args = [
        random(&[2, 4, 3], 1),
        random(&[4], 2),
        statistics.clone(),
        statistics.clone(),
        Tensor::from_slice(&[4], &[0.5f32; 4]),
    ];
    let values: Vec<Value> = batch_norm_args.iter().cloned().map(Value::Tensor).collect();
    let expected = op::evaluate(op::lookup("nn.batch_norm").unwrap(), &Attrs::none(), &values, 1 << 20).unwrap();
    assert_close(
        "nn.batch_norm",
        "of values",
        &run_kernel("nn.batch_norm", &Attrs::none(), &batch_norm_args, &[None; 5], &expected),
        &expected,
    );
}

#[test]
fn softmax_and_prelu() {
    for name in ["nn.softmax", "nn.log_softmax"] {
        for shape in [vec![1, 1000], vec![12, 64, 65], vec![3, 1], vec![2, 7, 40, 5]] {
            for axis in 0..shape.len() as i64 {
                check(name, &[("axis", AttrValue::Int(axis))], &[&shape]);
            }
        }
        let large_values: Vec<f32> = (0..60).map(|i| i as f32 * 7.0 - 200.0).collect();
        check_values(name, &[], &[Tensor::from_slice(&[2, 30], &large_values)]);
    }
    check("nn.prelu", &[], &[&[2, 5, 6, 7], &[5]]);
    check("nn.prelu", &[("axis", AttrValue::Int(-1))], &[&[20, 33], &[33]]);
}

#[test]
fn resizing_and_padding() {
    let modes = ["half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel"];
    for method in ["nearest_neighbor", "linear", "cubic"] {
        for mode in modes {
            for size in [[13, 9], [4, 31], [1, 1]] {
                let mode = ("coordinate_transformation_mode", mode.into());
                check("image.resize2d", &[("size", ints(size)), ("method", method.into()), mode], &[&[2, 3, 7, 8]]);
            }
        }
    }
    let doubled_scales = [("scale_h", AttrValue::Float(2.0)), ("scale_w", AttrValue::Float(2.0))];
    check("nn.upsampling", &doubled_scales, &[&[1, 16, 32, 33]]);
    check("nn.upsampling", &[&doubled_scales[..], &[("method", "bilinear".into())]].concat(), &[&[1, 16, 32, 33]]);
    let pads = |widths: &[[i64; 2]]| ("pad_width", AttrValue::List(widths.iter().map(|&w| ints(w)).collect()));
    for mode in ["constant", "edge", "reflect"] {
        let mode = || ("pad_mode", mode.into());
        check("nn.pad", &[pads(&[[0, 0], [0, 0], [1, 2], [3, 0]]), mode()], &[&[2, 3, 5, 6], &[]]);
        check("nn.pad", &[pads(&[[2, 1], [0, 3]]), mode()], &[&[40, 500], &[]]);
        check("nn.pad", &[pads(&[[-1, 2], [-3, -2]]), mode()], &[&[5, 9], &[]]);
    }
}
