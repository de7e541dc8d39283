//! Service `byoc.onnx.1`: graphs of the boundary as ONNX models, from Rust and from C.

use crate::support::{max_rel_err, run};
use byoc::driver::{BuildOptions, build};
use byoc::frontend::{self, LoadOptions};
use byoc::runtime::cancel::Cancel;
use byoc::runtime::exec::Pool;
use byoc::runtime::plugin::from_graph::module_of;
use byoc::runtime::plugin::services::{Metrics, services};
use byoc::runtime::plugin::to_graph::constant_handle;
use byoc::runtime::session::Session;
use byoc_ir::tensor::{DType as HostDType, Tensor};
use byoc_plugin_api::{Attr, Constant, DType, Dim, Graph, Node, OnnxOptions, Services, TensorType, ValueRef};
use std::sync::Arc;

fn host() -> Services {
    services(Arc::new(Pool::new(1).unwrap()), Arc::new(Metrics::default()), Cancel::default())
}

fn floats(shape: &[usize]) -> Arc<Tensor> {
    let count = shape.iter().product::<usize>();
    let values: Vec<f32> = (0..count).map(|i| (i % 11) as f32 * 0.25 - 1.0).collect();
    Arc::new(Tensor::from_bytes(HostDType::F32, shape, bytemuck::cast_slice(&values)).unwrap())
}

/// Composite of a convolution and a bias, followed by a relu; weight and bias are constants.
fn network() -> (Graph, Vec<Constant>) {
    let [x, y] = [&[1, 8, 6, 6][..], &[1, 16, 6, 6]].map(|shape| TensorType::new(DType::F32, shape));
    let [w, b] = [&[16, 8, 3, 3][..], &[16]].map(|shape| TensorType::new(DType::F32, shape));
    let mut body = Graph::new("conv_bias");
    let data = body.push_input("data", x.clone());
    let weight = body.push_constant(0, w);
    let bias = body.push_constant(1, b);
    let attrs =
        [Attr::new("padding", vec![1i64; 4]), Attr::new("channels", 16), Attr::new("kernel_size", vec![3i64; 2])];
    let conv = body.push_op("nn.conv2d", [data, weight].map(ValueRef::of), attrs, [y.clone()]);
    body.nodes[conv as usize].sources.push("/conv/Conv".into());
    let sum = body.push_op("nn.bias_add", [conv, bias].map(ValueRef::of), [], [y.clone()]);
    body.outputs.push(ValueRef::of(sum));
    let mut graph = Graph::new("region_0");
    let input = graph.push_input("image", x);
    let layer = graph.push(Node::composite("mine.conv_bias", body, [ValueRef::of(input)]));
    let relu = graph.push_op("nn.relu", [ValueRef::of(layer)], [], [y]);
    graph.outputs.push(ValueRef::of(relu));
    let constants = [floats(&[16, 8, 3, 3]), floats(&[16])];
    (graph, constants.iter().map(|tensor| constant_handle("", tensor)).collect())
}

#[test]
fn written_region_computes_what_the_region_does() {
    let (graph, constants) = network();
    let model = host().onnx(&graph, &constants, &OnnxOptions::default()).unwrap();
    assert_eq!((model.info.inputs, model.info.outputs), (vec!["image".to_owned()], vec!["output0".to_owned()]));
    assert!(model.weights.is_empty());
    let read = frontend::load_bytes(model.bytes.into(), None, &LoadOptions::default()).unwrap();
    let input = (*floats(&[1, 8, 6, 6])).clone();
    let expected = run(&module_of(&graph, &constants).unwrap(), std::slice::from_ref(&input)).unwrap();
    let actual = run(&read.module, &[input]).unwrap();
    assert_eq!(actual.len(), 1);
    assert!(max_rel_err(&actual[0], &expected[0]) == 0.0);
}

#[test]
fn nodes_name_their_operators() {
    let (graph, constants) = network();
    let options = OnnxOptions { opset: Some(13), ..OnnxOptions::default() };
    let info = host().onnx(&graph, &constants, &options).unwrap().info;
    assert_eq!(info.opset, 13);
    let nodes: Vec<(&str, &str, &[Vec<u32>])> =
        info.nodes.iter().map(|node| (node.name.as_str(), node.op.as_str(), &node.operators[..])).collect();
    // The bias goes into the convolution: its operator, node 4 of the composite, has no node of its own.
    assert_eq!(nodes, [("/conv/Conv", "Conv", &[vec![1, 3]][..]), ("nn.relu", "Relu", &[vec![2]][..])]);
}

#[test]
fn weights_come_apart_from_the_model() {
    let (graph, constants) = network();
    let options = OnnxOptions { weights_file: Some("w.bin".into()), ..OnnxOptions::default() };
    let model = host().onnx(&graph, &constants, &options).unwrap();
    let weight_bytes = 16 * 8 * 9 * 4;
    assert_eq!(model.weights, constants[0].bytes());
    assert!(model.bytes.len() < weight_bytes / 4, "{} bytes", model.bytes.len());
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("w.bin"), &model.weights).unwrap();
    std::fs::write(dir.path().join("model.onnx"), &model.bytes).unwrap();
    frontend::load(&dir.path().join("model.onnx"), &LoadOptions::default()).unwrap();
}

#[test]
fn symbols_stay_symbolic() {
    let mut graph = Graph::new("open");
    let ty =
        TensorType { dtype: DType::F32, dims: [Dim::Unknown("batch".into()), Dim::Known(4)].into_iter().collect() };
    let input = graph.push_input("", ty.clone());
    let relu = graph.push_op("nn.relu", [ValueRef::of(input)], [], [ty]);
    graph.outputs.push(ValueRef::of(relu));
    let model = host().onnx(&graph, &[], &OnnxOptions::default()).unwrap();
    assert_eq!(model.info.inputs, ["input0"]);
    let read =
        frontend::load_bytes(model.bytes.into(), None, &LoadOptions { open_unbound: true, ..LoadOptions::default() });
    assert_eq!(read.unwrap().signature.symbols(), ["batch"]);
}

#[test]
fn refusals_name_operator_and_opset() {
    let ty = TensorType::new(DType::F32, &[4]);
    let mut graph = Graph::new("r");
    let input = graph.push_input("x", ty.clone());
    let gelu = graph.push_op("nn.relu", [ValueRef::of(input)], [], [ty.clone()]);
    graph.outputs.push(ValueRef::of(gelu));
    let options = OnnxOptions { opset: Some(5), ..OnnxOptions::default() };
    let error = host().onnx(&graph, &[], &options).unwrap_err();
    assert!(error.message.starts_with("unsupported opset 5: opsets that are written: 13 to "), "{error}");
    let mut unknown = graph.clone();
    unknown.nodes[1].kind = byoc_plugin_api::NodeKind::Op("nn.no_such".into());
    let error = host().onnx(&unknown, &[], &OnnxOptions::default()).unwrap_err();
    assert!(error.message.contains("nn.no_such"), "{error}");
    let mut cut = graph;
    cut.outputs[0].node = 9;
    let error = host().onnx(&cut, &[], &OnnxOptions::default()).unwrap_err();
    assert!(error.message.contains('9'), "{error}");
}

/// A plugin in C asks the service in `judge` and in `compile`; its blob is the model.
#[test]
fn service_serves_plugins_in_c() {
    let dir = tempfile::tempdir().unwrap();
    byoc_test_support::copy(&byoc_test_support::c_plugin("onnx_region"), &dir.path().join("libbyoc_onnx_region.so"));
    let session = Session::new(&[dir.path().to_owned()], 1).unwrap();
    let text = "fn (%x: Tensor[(2, 3, 4, 4), float32], %a: Tensor[(2, 8), float32], %w: Tensor[(4, 8), float32]) { \
                (nn.relu(nn.dense(%a, %w)), nn.adaptive_avg_pool2d(%x, output_size=[3, 3])) }";
    let file = dir.path().join("model.relay");
    std::fs::write(&file, text).unwrap();
    let loaded = frontend::load(&file, &LoadOptions::default()).unwrap();
    let options = BuildOptions { backends: vec!["onnx_region".into()], ..BuildOptions::default() };
    let output = build(&session, loaded, &options, &mut |_| {}).unwrap();
    let regions: Vec<_> = output.compiled.regions.iter().flatten().collect();
    assert_eq!(regions.len(), 1);
    let read = frontend::load_bytes(regions[0].blob.to_vec().into(), None, &LoadOptions::default()).unwrap();
    let input = [floats(&[2, 8]), floats(&[4, 8])].map(|tensor| (*tensor).clone());
    let actual = run(&read.module, &input).unwrap();
    let product = |row: usize, unit: usize| -> f32 {
        let at = |tensor: &Tensor, i: usize| tensor.as_slice::<f32>()[i];
        (0..8).map(|k| at(&input[0], row * 8 + k) * at(&input[1], unit * 8 + k)).sum::<f32>().max(0.0)
    };
    let expected: Vec<f32> = (0..8).map(|i| product(i / 4, i % 4)).collect();
    for (actual, expected) in actual[0].as_slice::<f32>().iter().zip(&expected) {
        assert!((actual - expected).abs() <= 1e-5, "{actual} instead of {expected}");
    }
}
