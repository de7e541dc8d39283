//! Operators that a plugin declares, in ONNX models and Relay text: in its regions, on the host, in artifacts.

use crate::support::onnx::{graph, model, node, number, port};
use byoc::frontend::onnx::proto::{ModelProto, NodeProto, OperatorSetIdProto};
use byoc::{Compilation, CompileOptions, Error, Model, Session, Source};
use byoc_ir::tensor::{DType, Tensor};
use byoc_test_support::{copy, test_plugin};
use prost::Message;
use tempfile::TempDir;

/// Creates a session with the plugin that declares `vendor.swish` and `vendor.pairs`.
fn session() -> (TempDir, Session) {
    let dir = tempfile::tempdir().unwrap();
    copy(&test_plugin("operators"), &dir.path().join("libbyoc_operators.so"));
    let session = Session::builder().plugin_dir(dir.path()).threads(1).build().unwrap();
    (dir, session)
}

/// Creates a model of both operators: `Pairs(Swish(x))`.
fn vendor_model() -> ModelProto {
    let vendor = |op: &str, inputs: &[&str], outputs: &[&str]| NodeProto {
        domain: "com.vendor".into(),
        name: format!("/{op}"),
        ..node(op, inputs, outputs)
    };
    let swish = NodeProto { attribute: vec![number("beta", 2.0)], ..vendor("Swish", &["x"], &["s"]) };
    let nodes = vec![node("Relu", &["x"], &["r"]), swish, vendor("Pairs", &["s"], &["p"]), node("Neg", &["p"], &["y"])];
    let mut model = model(graph(vec![port("x", DType::F32, &["2", "4"])], nodes, Vec::new()));
    model.opset_import.push(OperatorSetIdProto { domain: "com.vendor".into(), version: 3 });
    model
}

fn source() -> Source {
    Source::Bytes { bytes: vendor_model().encode_to_vec().into(), folder: None }
}

fn input() -> Tensor {
    Tensor::from_slice(&[2, 4], &[-2.0f32, -0.5, 0.0, 0.25, 1.0, 2.0, 4.0, -8.0])
}

fn assert_computes(found: &Tensor) {
    let x = input();
    let swish: Vec<f32> = x.as_slice::<f32>().iter().map(|x| x / (1.0 + (-2.0 * x).exp())).collect();
    let expected: Vec<f32> = swish.chunks(2).map(|pair| -(pair[0] + pair[1])).collect();
    assert_eq!(found.shape(), [2, 2]);
    for (found, expected) in found.as_slice::<f32>().iter().zip(&expected) {
        assert!((found - expected).abs() < 1e-5, "{found} instead of {expected}");
    }
}

#[test]
fn onnx_models_run_on_the_backend_and_on_the_decomposition() {
    let (_dir, session) = session();
    let options = CompileOptions::new().backend("operators");
    let compilation = Compilation::new(&session, source(), &options).unwrap();
    assert_eq!(compilation.explanation().regions.len(), 2);
    let model = Model::of(&session, compilation).unwrap();
    assert_computes(&model.run([&input()]).unwrap()[0]);
    let refusing = options.backend_option("operators", "refuses", "vendor.swish");
    let model = Model::compile(&session, source(), &refusing).unwrap();
    assert_eq!(model.explanation().regions.len(), 1);
    assert_computes(&model.run([&input()]).unwrap()[0]);
}

#[test]
fn operators_without_decomposition_need_their_backend() {
    let (_dir, session) = session();
    let options = CompileOptions::new().backend("operators").backend_option("operators", "refuses", "vendor.pairs");
    let error = Model::compile(&session, source(), &options).map(drop).unwrap_err();
    let info = error.info();
    assert_eq!(info.code.to_string(), "E0429", "{error:?}");
    assert!(info.message.contains("vendor.pairs: expected a backend that takes this operator"), "{error:?}");
    let text = format!("{error:?}");
    for part in ["/Pairs", "vendor.pairs is switched off", "operators declares the operator without a decomposition"] {
        assert!(text.contains(part), "expected {part} in {text}");
    }
    assert!(matches!(error, Error::Model(_) | Error::Backend(_)), "{error:?}");
}

#[test]
fn artifacts_run_with_the_plugin() {
    let (_dir, session) = session();
    let options = CompileOptions::new().backend("operators");
    let compilation = Compilation::new(&session, source(), &options).unwrap();
    let file = tempfile::tempdir().unwrap();
    let path = file.path().join("model.byoc");
    compilation.save(&path).unwrap();
    let model = Model::load(&session, path.as_path()).unwrap();
    assert_computes(&model.run([&input()]).unwrap()[0]);
}
