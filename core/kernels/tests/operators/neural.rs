//! Tests of the type relations of convolutions, products, pooling, normalization and resizing: unknown dimensions,
//! element types, and errors.

use super::{attrs, call, f32s, inferred_type, run};
use byoc_ir::ir::{AttrValue, Attrs, Type};
use byoc_ir::op::{self, Value};
use byoc_ir::tensor::{DType, Tensor};

#[track_caller]
fn expect_type<const N: usize>(name: &str, pairs: [(&str, AttrValue); N], args: &[Type], expected: &str) {
    assert_eq!(inferred_type(name, &attrs(pairs), args).as_deref(), Ok(expected));
}

#[track_caller]
fn expect_error<const N: usize>(name: &str, pairs: [(&str, AttrValue); N], args: &[Type], part: &str) {
    let error = inferred_type(name, &attrs(pairs), args).expect_err("expected an error");
    assert!(error.contains(part), "expected an error with \"{part}\", found \"{error}\"");
}

fn ints<const N: usize>(values: [i64; N]) -> AttrValue {
    AttrValue::from(values)
}

#[test]
fn convolution_sizes() {
    let stem_args = [f32s("1, 3, 224, 224"), f32s("64, 3, 7, 7")];
    let strides = || ("strides", ints([2, 2]));
    expect_type(
        "nn.conv2d",
        [strides(), ("padding", ints([3, 3])), ("channels", AttrValue::Int(64)), ("kernel_size", ints([7, 7]))],
        &stem_args,
        "Tensor[(1, 64, 112, 112), float32]",
    );
    expect_type(
        "nn.conv2d",
        [strides(), ("padding", AttrValue::Int(3))],
        &stem_args,
        "Tensor[(1, 64, 112, 112), float32]",
    );
    expect_type(
        "nn.conv2d",
        [("padding", ints([1, 1]))],
        &[f32s("batch, 3, ?, 8"), f32s("4, 3, 3, 3")],
        "Tensor[(batch, 4, ?, 8), float32]",
    );
    expect_type(
        "nn.conv2d",
        [("data_layout", "NHWC".into()), ("kernel_layout", "HWOI".into()), ("groups", AttrValue::Int(8))],
        &[f32s("1, 5, 6, 8"), f32s("3, 3, 8, 1")],
        "Tensor[(1, 3, 4, 8), float32]",
    );
    expect_type(
        "nn.conv2d",
        [("out_dtype", "int32".into())],
        &[Type::tensor(DType::U8, &[1, 2, 3, 3]), Type::tensor(DType::I8, &[2, 2, 1, 1])],
        "Tensor[(1, 2, 3, 3), int32]",
    );
    expect_type(
        "nn.conv2d_transpose",
        [strides(), ("padding", ints([1, 1])), ("output_padding", ints([1, 1])), ("groups", AttrValue::Int(2))],
        &[f32s("?, 4, 5, ?"), f32s("4, 3, 3, 3")],
        "Tensor[(?, 6, 10, ?), float32]",
    );
    expect_type("nn.conv1d", [], &[f32s("0, 2, 5"), f32s("3, 2, 3")], "Tensor[(0, 3, 3), float32]");
}

#[test]
fn convolution_errors() {
    let (data, weight) = (f32s("1, 4, 8, 8"), f32s("6, 4, 3, 3"));
    let args = [data.clone(), weight.clone()];
    expect_error(
        "nn.conv2d",
        [("groups", AttrValue::Int(2))],
        &args,
        "channels of data and weight: expected equal dimensions, found 4 and 8",
    );
    expect_error(
        "nn.conv2d",
        [("groups", AttrValue::Int(4))],
        &[data.clone(), f32s("6, 1, 3, 3")],
        "expected a number of channels divisible by groups = 4, found 6",
    );
    expect_error("nn.conv2d", [("groups", AttrValue::Int(0))], &args, "groups: expected an integer >= 1, found 0");
    expect_error(
        "nn.conv2d",
        [("kernel_size", ints([5, 5]))],
        &args,
        "kernel_size and weight: expected equal dimensions, found 5 and 3",
    );
    expect_error(
        "nn.conv2d",
        [("channels", AttrValue::Int(7))],
        &args,
        "channels and weight: expected equal dimensions, found 7 and 6",
    );
    expect_error("nn.conv2d", [("strides", ints([0, 1]))], &args, "strides: expected 2 integers >= 1, found [0, 1]");
    expect_error(
        "nn.conv2d",
        [("padding", ints([1, 1, 1]))],
        &args,
        "padding: expected 1, 2 or 4 integers >= 0, found [1, 1, 1]",
    );
    expect_error(
        "nn.conv2d",
        [("dilation", ints([4, 4]))],
        &args,
        "a window of 3 (dilation 4) does not fit an axis of length 8",
    );
    expect_error("nn.conv2d", [("data_layout", "NCHW8".into())], &args, "a permutation of NCHW");
    expect_error(
        "nn.conv2d",
        [("data_layout", "NCHW8c".into())],
        &args,
        "expected 5 dimensions for layout \"NCHW8c\", found 4",
    );
    expect_error("nn.conv2d", [("kernel_layout", "OIHW8h".into())], &args, "found blocks of axis H");
    expect_error("nn.conv2d", [], &[f32s("1, 4, 8"), weight], "data: expected 4 dimensions, found 3");
    expect_error("nn.conv2d", [], &[data, Type::tensor(DType::F16, &[6, 4, 3, 3])], "expected equal element types");
    let oversized_args = [f32s("1, 1, 9223372036854775807"), f32s("1, 1, 9223372036854775807")];
    expect_error("nn.conv1d_transpose", [("strides", ints([1 << 30]))], &oversized_args, "expected a result dimension");
}

#[test]
fn product_types() {
    expect_type("nn.dense", [], &[f32s("?, 7, 5"), f32s("3, 5")], "Tensor[(?, 7, 3), float32]");
    expect_type("nn.dense", [("units", AttrValue::Int(3))], &[f32s("2, 5"), f32s("?, 5")], "Tensor[(2, 3), float32]");
    expect_error(
        "nn.dense",
        [],
        &[f32s("2, 5"), f32s("3, 4")],
        "inner dimensions: expected equal dimensions, found 5 and 4",
    );
    expect_error(
        "nn.dense",
        [("units", AttrValue::Int(4))],
        &[f32s("2, 5"), f32s("3, 5")],
        "units and weight: expected equal dimensions, found 4 and 3",
    );
    expect_error("nn.dense", [], &[f32s("2, 5"), f32s("5")], "weight: expected 2 dimensions, found 1");
    expect_type("nn.batch_matmul", [], &[f32s("?, 2, 3"), f32s("1, 3, ?")], "Tensor[(?, 2, ?), float32]");
    expect_error(
        "nn.batch_matmul",
        [],
        &[f32s("2, 2, 3"), f32s("3, 3, 4")],
        "batches: expected equal dimensions, found 2 and 3",
    );
    let transpose_a = ("transpose_a", AttrValue::Bool(true));
    expect_error(
        "nn.matmul",
        [transpose_a],
        &[f32s("2, 2, 3"), f32s("3, 4")],
        "tensor_a: expected 2 dimensions, found 3",
    );
    expect_type("nn.bias_add", [("axis", AttrValue::Int(-1))], &[f32s("2, ?"), f32s("4")], "Tensor[(2, 4), float32]");
    expect_error(
        "nn.bias_add",
        [],
        &[f32s("2, 3"), f32s("4")],
        "bias and data: expected equal dimensions, found 3 and 4",
    );
    expect_error("nn.bias_add", [("axis", AttrValue::Int(2))], &[f32s("2, 3"), f32s("3")], "axis 2");
}

#[test]
fn pooling_types() {
    let pool = |n: i64| ("pool_size", ints([n, n]));
    let strides = || ("strides", ints([2, 2]));
    expect_type("nn.max_pool2d", [pool(3), strides()], &[f32s("?, 2, 6, 7")], "Tensor[(?, 2, 2, 3), float32]");
    let ceil_mode = ("ceil_mode", AttrValue::Bool(true));
    expect_type(
        "nn.max_pool2d",
        [pool(3), strides(), ceil_mode],
        &[f32s("1, 2, 6, 7")],
        "Tensor[(1, 2, 3, 3), float32]",
    );
    let layouts = [pool(2), ("layout", "NHWC".into()), ("out_layout", "NCHW".into())];
    expect_type("nn.avg_pool2d", layouts, &[f32s("1, 4, 5, 3")], "Tensor[(1, 3, 3, 4), float32]");
    let window = [("pool_size", AttrValue::ints([2, 3])), ("layout", "NHWC".into())];
    expect_type("nn.contrib_lp_pool2d", window, &[f32s("1, 5, n, 4")], "Tensor[(1, 4, n - 2, 4), float32]");
    expect_type("nn.global_avg_pool2d", [], &[f32s("n, 3, ?, 7")], "Tensor[(n, 3, 1, 1), float32]");
    expect_type("nn.adaptive_avg_pool2d", [], &[f32s("1, 3, ?, 7")], "Tensor[(1, 3, ?, 7), float32]");
    expect_error("nn.max_pool2d", [pool(9)], &[f32s("1, 2, 6, 7")], "a window of 9");
    expect_error("nn.max_pool2d", [], &[f32s("1, 2, 6, 7")], "expected the attribute \"pool_size\"");
    expect_error("nn.global_avg_pool2d", [], &[f32s("1, 2, 6")], "data: expected 4 dimensions, found 3");
}

#[test]
fn normalization_types() {
    let channel = || f32s("3");
    let five = [f32s("1, ?, 4"), channel(), channel(), channel(), channel()];
    let triple = "(Tensor[(1, 3, 4), float32], Tensor[(3), float32], Tensor[(3), float32])";
    expect_type("nn.batch_norm", [], &five, triple);
    expect_error(
        "nn.batch_norm",
        [("axis", AttrValue::Int(2))],
        &five,
        "data and gamma: expected equal dimensions, found 4 and 3",
    );
    expect_type("nn.dropout", [], &[f32s("?, 2")], "(Tensor[(?, 2), float32], Tensor[(?, 2), float32])");
    expect_error("nn.softmax", [("axis", AttrValue::Int(3))], &[f32s("1, 2")], "axis 3");
    expect_error("nn.lrn", [("size", AttrValue::Int(4))], &[f32s("1, 2, 3, 3")], "an odd number");
    let groups = ("num_groups", AttrValue::Int(2));
    expect_error(
        "nn.group_norm",
        [groups],
        &[f32s("1, 3, 2"), channel(), channel()],
        "num_groups: expected a divisor of 3 channels, found 2",
    );
    expect_type("nn.prelu", [], &[f32s("1, 3, ?"), channel()], "Tensor[(1, 3, ?), float32]");
}

#[test]
fn plane_types() {
    expect_type("image.resize2d", [("size", ints([5, 6]))], &[f32s("?, 3, ?, 4")], "Tensor[(?, 3, 5, 6), float32]");
    expect_error(
        "image.resize2d",
        [("size", ints([5, 6])), ("method", "sharp".into())],
        &[f32s("1, 1, 2, 2")],
        "sharp",
    );
    expect_error("image.resize2d", [("size", ints([5, 6]))], &[f32s("1, 1, 0, 2")], "empty plane");
    let scale = |v: f64| ("scale_h", AttrValue::Float(v));
    expect_type("nn.upsampling", [scale(2.5)], &[f32s("1, 2, 3, ?")], "Tensor[(1, 2, 8, ?), float32]");
    expect_error(
        "nn.upsampling",
        [scale(-1.0)],
        &[f32s("1, 2, 3, 4")],
        "scale_h: expected a scale in (0, 1000000], found -1",
    );
    let pairs = |widths: &[[i64; 2]]| ("pad_width", AttrValue::List(widths.iter().map(|&w| ints(w)).collect()));
    let scalar = || f32s("");
    expect_type("nn.pad", [pairs(&[[1, 2], [0, 0]])], &[f32s("3, n"), scalar()], "Tensor[(6, n), float32]");
    expect_error("nn.pad", [pairs(&[[1, 2]])], &[f32s("3, 4"), scalar()], "a pair per axis (rank 2)");
    let reflect_mode = ("pad_mode", "reflect".into());
    expect_error(
        "nn.pad",
        [pairs(&[[3, 0]]), reflect_mode],
        &[f32s("3"), scalar()],
        "expected reflect padding of at most 2 on an axis of length 3, found 3",
    );
    expect_error("nn.pad", [pairs(&[[-2, -2]])], &[f32s("3"), scalar()], "found -1");
    let block = || ("block_size", AttrValue::Int(2));
    expect_type("nn.depth_to_space", [block()], &[f32s("1, 8, ?, 3")], "Tensor[(1, 2, ?, 6), float32]");
    expect_error(
        "nn.depth_to_space",
        [block()],
        &[f32s("1, 6, 2, 3")],
        "expected a number of channels divisible by 4, found 6",
    );
    expect_error(
        "nn.space_to_depth",
        [block()],
        &[f32s("1, 6, 3, 2")],
        "expected a number of rows divisible by 2, found 3",
    );
}

#[test]
fn nan_is_never_hidden() {
    let x = Tensor::from_slice(&[1, 1, 1, 4], &[1.0f32, f32::NAN, 3.0, 2.0]);
    let maxima = run("nn.max_pool2d", &attrs([("pool_size", ints([1, 2]))]), &[&x]).view().to_f64s();
    assert!(maxima[0].is_nan() && maxima[1].is_nan() && maxima[2] == 3.0, "{maxima:?}");
    let probabilities = run("nn.softmax", &Attrs::none(), &[&x]).view().to_f64s();
    assert!(probabilities.iter().all(|v| v.is_nan()), "{probabilities:?}");
}

#[test]
fn dropout_keeps_the_data() {
    let x = Tensor::from_slice(&[3], &[1.0f32, -2.0, 0.5]);
    let out = call("nn.dropout", &Attrs::none(), &[Value::Tensor(x.clone())]).unwrap();
    assert_eq!((&out[0], out[1].as_slice::<f32>()), (&x, &[1.0f32; 3][..]));
}

#[test]
fn counts_flops() {
    let flops = |name: &str, flop_attrs: Attrs, args: &[Type]| {
        let def = op::get(op::lookup(name).unwrap());
        let ret = def.infer(&flop_attrs, args, &vec![None; args.len()]).unwrap();
        (def.flops)(&op::Cost { params: op::Params::new(def, &flop_attrs), args, ret: &ret })
    };
    let conv = [f32s("1, 4, 8, 8"), f32s("6, 2, 3, 3")];
    assert_eq!(flops("nn.conv2d", attrs([("groups", AttrValue::Int(2))]), &conv), 2 * (6 * 6 * 6) * (2 * 9));
    let transposed = [f32s("1, 4, 8, 8"), f32s("4, 3, 2, 2")];
    assert_eq!(flops("nn.conv2d_transpose", Attrs::none(), &transposed), 2 * (4 * 8 * 8) * (3 * 4));
    assert_eq!(flops("nn.dense", Attrs::none(), &[f32s("2, 5"), f32s("3, 5")]), 2 * 2 * 3 * 5);
    assert_eq!(flops("nn.batch_matmul", Attrs::none(), &[f32s("7, 2, 5"), f32s("1, 5, 3")]), 7 * 2 * 2 * 3 * 5);
    // Unknown dimensions count as 1, also in products.
    assert_eq!(flops("nn.conv2d", Attrs::none(), &[f32s("?, 4, 8, 8"), f32s("6, 4, 3, 3")]), 2 * (6 * 6 * 6) * (4 * 9));
    assert_eq!(flops("nn.dense", Attrs::none(), &[f32s("12*n, 5"), f32s("3, 5")]), 12 * 2 * 3 * 5);
}

#[test]
fn norms_of_windows_do_not_overflow() {
    let attrs = |p: i64| Attrs::new([("pool_size", AttrValue::ints([1, 2])), ("p", AttrValue::Int(p))]);
    let values = [3e30f32, 4e30, 3e-30, 4e-30, f32::INFINITY, 1.0];
    let data = Value::Tensor(Tensor::from_slice(&[1, 1, 3, 2], &values));
    let norm_with = |p| call("nn.contrib_lp_pool2d", &attrs(p), std::slice::from_ref(&data)).unwrap().swap_remove(0);
    let is_close = |a: f32, b: f32| a == b || (a - b).abs() <= 1e-6 * b.abs();
    for (p, expected) in [(1, [7e30, 7e-30, f32::INFINITY]), (2, [5e30, 5e-30, f32::INFINITY])] {
        let actual = norm_with(p);
        assert!(
            actual.as_slice::<f32>().iter().zip(expected).all(|(&a, b)| is_close(a, b)),
            "p = {p}: expected {expected:?}, found {actual:?}"
        );
    }
    let error = call("nn.contrib_lp_pool2d", &attrs(0), &[data]).unwrap_err();
    assert!(error.contains("p: expected an integer >= 1, found"), "{error}");
}
