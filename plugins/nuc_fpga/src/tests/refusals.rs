//! Tests of refusals: code, detail and hint.

use super::harness::{Case, ConvCase, ty};
use byoc_plugin_api::*;

/// Builds a convolution and applies `change` to its node.
fn conv(change: impl FnOnce(&mut Node), data: DType, out: DType) -> Case {
    let conv = ConvCase::default();
    let mut case = Case::new(0);
    let x = case.input_of(data, &conv.data);
    let w = case.kernel(&conv.kernel_shape());
    let y = case.op("nn.conv2d", &[x, w], conv.attrs(), ty(out, &conv.out_shape()));
    change(&mut case.graph.nodes[y.node as usize]);
    case.output(y);
    case
}

fn set(key: &'static str, value: impl Into<AttrValue>) -> impl FnOnce(&mut Node) {
    let value = value.into();
    move |node| node.attrs.iter_mut().find(|attr| attr.key == key).unwrap().value = value
}

#[test]
fn refuses_unsupported_convolutions() {
    let refusal = |change: Box<dyn FnOnce(&mut Node)>| conv(change, DType::I8, DType::I32).refusal();
    assert_eq!(refusal(Box::new(|_| {})), "supported");
    assert_eq!(
        refusal(Box::new(set("dilation", vec![2i64, 2]))),
        "UnsupportedAttr: dilation: expected [1, 1], found [2, 2]"
    );
    assert_eq!(
        refusal(Box::new(set("padding", vec![0i64, 1, 2, 1]))),
        "UnsupportedAttr: padding: expected the same on opposite sides, found 0 above, 2 below, 1 left and 1 right"
    );
    assert_eq!(
        refusal(Box::new(set("data_layout", "NHWC"))),
        "UnsupportedLayout: data_layout: expected NCHW, found NHWC"
    );
    assert_eq!(
        refusal(Box::new(set("kernel_layout", "HWIO"))),
        "UnsupportedLayout: kernel_layout: expected OIHW, found HWIO"
    );
    assert_eq!(
        refusal(Box::new(set("out_layout", "NHWC"))),
        "UnsupportedLayout: out_layout: expected NCHW, found NHWC"
    );
    assert_eq!(
        refusal(Box::new(set("strides", vec![-1i64, 1]))),
        "UnsupportedAttr: strides: expected 0 to 4294967295, found -1"
    );
    assert_eq!(conv(|_| {}, DType::U8, DType::I32).refusal(), "UnsupportedDtype: input 0: expected int8, found uint8");
    assert_eq!(conv(|_| {}, DType::I8, DType::I8).refusal(), "UnsupportedDtype: result: expected int32, found int8");
}

#[test]
fn float_models_get_a_hint() {
    let conv = ConvCase::default();
    let mut case = Case::new(0);
    let x = case.input_of(DType::F32, &conv.data);
    let w = case.input_of(DType::F32, &conv.kernel_shape());
    let y = case.op("nn.conv2d", &[x, w], conv.attrs(), ty(DType::F32, &conv.out_shape()));
    case.output(y);
    let Verdict::Refused(refusal) = case.judge() else { panic!("expected a refusal, found support") };
    assert_eq!(refusal.detail.as_str(), "input 0: expected int8, found float32");
    assert!(refusal.hint.starts_with("run \"byoc quantize\" first"), "{}", refusal.hint);
}

#[test]
fn layers_that_exceed_the_buffers() {
    let wide_conv = ConvCase { data: [1, 16, 8, 40_000], kernels: 16, ..ConvCase::default() };
    let mut case = Case::new(0);
    let x = case.input_of(DType::I8, &wide_conv.data);
    let y = case.conv2d(&wide_conv, x);
    case.output(y);
    assert!(case.refusal().starts_with("ResourceLimit: one output row of 16 input and 16 output channels: expected"));

    let mut case = Case::new(0);
    let x = case.input_of(DType::I8, &[1, 131_072]);
    let w = case.kernel(&[1, 131_072]);
    let y = case.op("nn.dense", &[x, w], vec![], ty(DType::I32, &[1, 1]));
    case.output(y);
    assert_eq!(case.refusal(), "ResourceLimit: expected at most 131071 terms per int32 accumulator, found 131072");
}

/// Builds a quantized dense layer with the given zero points, followed by the operators that `add_operators` adds.
fn quantized_dense(
    input_zero: i64,
    kernel_zeros: &[i64],
    add_operators: impl FnOnce(&mut Case, ValueRef) -> ValueRef,
) -> Case {
    let mut case = Case::new(0);
    let x = case.input_of(DType::I8, &[2, 8]);
    let w = case.kernel(&[4, 8]);
    let operands = [
        x,
        w,
        case.int32(&[], &[input_zero]),
        case.int32(&[kernel_zeros.len()], kernel_zeros),
        case.float32(&[], &[0.5]),
        case.float32(&[], &[0.25]),
    ];
    let sum = case.op("qnn.dense", &operands, vec![], ty(DType::I32, &[2, 4]));
    let value = add_operators(&mut case, sum);
    case.output(value);
    case
}

#[test]
fn refuses_nonzero_zero_points() {
    assert_eq!(quantized_dense(0, &[0, 0, 0, 0], |_, sum| sum).refusal(), "supported");
    assert_eq!(quantized_dense(3, &[0], |_, sum| sum).refusal(), "QuantScheme: input zero point: expected 0, found 3");
    assert_eq!(
        quantized_dense(0, &[0, 0, -7, 0], |_, sum| sum).refusal(),
        "QuantScheme: kernel zero point: expected 0, found -7"
    );
    let mut case = quantized_dense(0, &[0], |_, sum| sum);
    // A quantized layer whose zero point is an input.
    let zero = case.input_of(DType::I32, &[]);
    let sum = case.graph.nodes.iter().position(|node| node.op().is_some()).unwrap();
    case.graph.nodes[sum].inputs[2] = zero;
    let last_node = case.graph.nodes.len() - 1;
    case.graph.nodes.swap(sum, last_node);
    case.graph.nodes[last_node].inputs[2].node = sum as u32;
    case.graph.outputs[0].node = last_node as u32;
    assert_eq!(case.refusal(), "NotConstant: input zero point: expected a constant, found a runtime value");
}

/// Adds a requantization of `sum`.
fn requantize(
    case: &mut Case,
    sum: ValueRef,
    in_scales: &[f32],
    zeros: [i64; 2],
    out_scale: f32,
    attrs: [&str; 2],
) -> ValueRef {
    let [from_zero, to_zero] = zeros.map(|zero| case.int32(&[], &[zero]));
    let shape: &[usize] = if in_scales.len() == 1 { &[] } else { &[in_scales.len()] };
    let inputs = [sum, case.float32(shape, in_scales), from_zero, case.float32(&[], &[out_scale]), to_zero];
    let attrs = vec![
        Attr::new("axis", 1i64),
        Attr::new("rounding", attrs[0]),
        Attr::new("compute_dtype", attrs[1]),
        Attr::new("out_dtype", "int8"),
    ];
    case.op("qnn.requantize", &inputs, attrs, ty(DType::I8, &[2, 4]))
}

#[test]
fn refuses_unsupported_epilogues() {
    let refusal_of = |in_scales: &[f32], zeros: [i64; 2], out_scale: f32, attrs: [&str; 2]| {
        quantized_dense(0, &[0], |case, sum| requantize(case, sum, in_scales, zeros, out_scale, attrs)).refusal()
    };
    let default_attrs = ["UPWARD", "int64"];
    assert_eq!(refusal_of(&[0.125; 4], [0, 5], 1.0, default_attrs), "supported");
    assert_eq!(
        refusal_of(&[0.125], [1, 0], 1.0, default_attrs),
        "QuantScheme: input zero point of qnn.requantize: expected 0, found 1"
    );
    assert_eq!(
        refusal_of(&[0.125; 3], [0, 0], 1.0, default_attrs),
        "QuantScheme: qnn.requantize: expected 1 input scale, or 4 along the channel axis, found 3"
    );
    assert_eq!(
        refusal_of(&[0.125, 0.0, 1.0, 1.0], [0, 0], 1.0, default_attrs),
        "QuantScheme: input scale of qnn.requantize: expected a finite scale > 0, found 0"
    );
    assert_eq!(
        refusal_of(&[0.125], [0, 0], f32::NAN, default_attrs),
        "QuantScheme: output scale of qnn.requantize: expected a finite scale > 0, found NaN"
    );
    assert_eq!(
        refusal_of(&[1e30], [0, 0], 1e-5, default_attrs),
        "QuantScheme: scale ratio of qnn.requantize: expected less than 2^31, found 100000000000000000000000000000000000"
    );
    assert_eq!(
        refusal_of(&[0.125], [0, 0], 1.0, ["UPWARD", "float32"]),
        "UnsupportedAttr: compute_dtype of qnn.requantize: expected int64, found float32"
    );
    assert_eq!(
        refusal_of(&[0.125], [0, 0], 1.0, ["DOWN", "int64"]),
        "UnsupportedAttr: rounding of qnn.requantize: expected UPWARD, TONEAREST or TOEVEN, found DOWN"
    );

    let bias = |shape: &'static [usize]| {
        let case = quantized_dense(0, &[0], |case, sum| {
            let bias = case.int32(shape, &vec![1; shape.iter().product()]);
            case.op("add", &[sum, bias], vec![], ty(DType::I32, &[2, 4]))
        });
        case.refusal()
    };
    assert_eq!(bias(&[1, 4]), "supported");
    assert_eq!(bias(&[2, 1]), "UnsupportedShape: bias: expected one value per channel, or one for all, found [2, 1]");
    let sum_with_itself =
        quantized_dense(0, &[0], |case, sum| case.op("add", &[sum, sum], vec![], ty(DType::I32, &[2, 4])));
    assert_eq!(
        sum_with_itself.refusal(),
        "UnsupportedOp: add does not follow a convolution or a dense layer of the same region"
    );
}

#[test]
fn regions_without_a_layer() {
    let mut case = Case::new(0);
    let x = case.input_of(DType::I32, &[4]);
    case.output(x);
    assert_eq!(case.refusal(), "NotProfitable: the region has no convolution and no dense layer");
    let mut case = Case::new(0);
    let x = case.input_of(DType::I8, &[4]);
    let y = case.op("nn.relu", &[x], vec![], ty(DType::I8, &[4]));
    case.output(y);
    assert!(case.refusal().starts_with("UnsupportedOp: nn.relu does not follow"));
    let mut case = conv(|_| {}, DType::I8, DType::I32);
    case.graph.inputs[0].ty.dims[0] = Dim::Unknown("batch".into());
    case.graph.nodes[0].outputs[0].dims[0] = Dim::Unknown("batch".into());
    assert!(
        case.refusal()
            .starts_with("DynamicDim: expected dimensions known at compile time, found Tensor[(batch, 8, 9, 7), int8]"),
        "{}",
        case.refusal()
    );
}
