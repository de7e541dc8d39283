//! Files as tools write them: default values of inputs, weights that many nodes share, random numbers, and sequences of a
//! length that the run determines.

use crate::support::onnx::{self, integer, node, number, port};
use crate::support::{max_rel_err, run, test_data};
use byoc::frontend::LoadOptions;
use byoc::frontend::onnx::convert_model;
use byoc::frontend::onnx::proto::{AttributeProto, AttributeType, GraphProto, ModelProto, NodeProto, ValueInfoProto};
use byoc::frontend::onnx::tensor::encode;
use byoc::{Compilation, CompileOptions, DType, Inputs, Model, RunOptions, Session, Source, Tensor};
use byoc_ir::diag::codes;
use byoc_ir::tensor::random;
use prost::Message;
use std::sync::Arc;
use std::time::Duration;

fn model(inputs: Vec<ValueInfoProto>, nodes: Vec<NodeProto>, weights: &[(&str, Tensor)]) -> ModelProto {
    let initializer = weights.iter().map(|(name, tensor)| encode(name, tensor)).collect();
    onnx::model(onnx::graph(inputs, nodes, initializer))
}

fn session() -> Session {
    Session::without_plugins(1).unwrap()
}

fn values(tensor: &Tensor) -> Vec<f64> {
    tensor.view().to_f64s()
}

#[test]
fn default_values_are_replaced_by_name() {
    let session = session();
    let path = test_data("operators/reads_overridden_initializer/model.onnx");
    let compilation = Compilation::new(&session, path, &CompileOptions::new()).unwrap();
    let artifact = compilation.to_bytes().unwrap();
    for model in [Model::of(&session, compilation).unwrap(), Model::load(&session, artifact).unwrap()] {
        let [x] = model.inputs() else { panic!("expected one input") };
        let [w, _] = model.optional_inputs() else { panic!("expected two optional inputs") };
        let tensor = |port: &byoc::runtime::exec::program::Port, seed| {
            random::tensor(port.ty.dtype, &port.ty.shape().unwrap(), seed)
        };
        let (first, second) = (tensor(x, 1), tensor(w, 2));
        let with_default = model.run([first.clone()]).unwrap();
        let by_name = model.run(Inputs::named([(&*x.name, &first)])).unwrap();
        assert_eq!(with_default.clone().into_tensors(), by_name.into_tensors());
        let replaced = model.run(Inputs::named([(&*w.name, &second), (&*x.name, &first)])).unwrap();
        assert_ne!(with_default.into_tensors(), replaced.into_tensors());

        let of_another_type = random::tensor(DType::I64, second.shape(), 3);
        let error = model.run(Inputs::named([(&*x.name, &first), (&*w.name, &of_another_type)])).unwrap_err();
        assert_eq!(error.code(), codes::runtime::INPUT_DTYPE);
        let error = model.run(Inputs::named([(&*w.name, &second)])).unwrap_err();
        assert_eq!(error.code(), codes::runtime::INPUT_COUNT);
    }
}

#[test]
fn default_that_must_be_constant_stays() {
    let branch = |name: &str, nodes: Vec<NodeProto>| AttributeProto {
        name: name.into(),
        r#type: AttributeType::Graph as i32,
        g: Some(Box::new(GraphProto {
            output: vec![port(&nodes.last().unwrap().output[0], DType::F32, &[])],
            node: nodes,
            ..GraphProto::default()
        })),
        ..AttributeProto::default()
    };
    // The branches return values of different ranks.
    let then_branch = branch("then_branch", vec![node("Relu", &["x"], &["t"])]);
    let else_branch = branch("else_branch", vec![node("Flatten", &["x"], &["e"])]);
    let inputs = vec![port("x", DType::F32, &["2", "3", "4"]), port("clips", DType::Bool, &["1"])];
    let choice = NodeProto { attribute: vec![then_branch, else_branch], ..node("If", &["clips"], &["y"]) };
    let nodes = vec![choice];
    let bytes = model(inputs, nodes, &[("clips", Tensor::from_bools(&[1], &[true]))]).encode_to_vec();
    let model = Model::compile(&session(), bytes, &CompileOptions::new()).unwrap();
    assert!(model.inputs().len() == 1 && model.optional_inputs().is_empty());
    let [warning] = model.warnings() else { panic!("expected one warning, found {:?}", model.warnings()) };
    assert_eq!(warning.message, "input \"clips\" keeps its default value");
}

/// Returns the bytes of the constants in the programs of a model.
fn constant_bytes(model: ModelProto) -> usize {
    let options = CompileOptions::new().open_unbound_dims();
    let compilation = Compilation::new(&session(), model.encode_to_vec(), &options).unwrap();
    let model = Model::of(&session(), compilation).unwrap();
    let ports = &model.loaded().executor().program().constants;
    ports.iter().map(|port| port.ty.len().unwrap() * port.ty.dtype.size()).sum()
}

#[test]
fn shared_weights_are_held_once() {
    let weight = random::tensor(DType::F32, &[160, 160], 1);
    for through_identity in [false, true] {
        let mut nodes = Vec::new();
        for i in 0..20 {
            let (input, output, copy) = (format!("h{i}"), format!("h{}", i + 1), format!("w{i}"));
            let name = if through_identity { copy.as_str() } else { "w" };
            if through_identity {
                nodes.push(node("Identity", &["w"], &[name]));
            }
            nodes.push(node("MatMul", &[if i == 0 { "x" } else { &input }, name], &["m"]));
            nodes.last_mut().unwrap().output[0] = format!("m{i}");
            nodes.push(node("Tanh", &[&format!("m{i}")], &[if i == 19 { "y" } else { &output }]));
        }
        let model = model(vec![port("x", DType::F32, &["n", "160"])], nodes, &[("w", weight.clone())]);
        let bytes = constant_bytes(model);
        assert!(bytes <= weight.bytes().len() * 12 / 10, "through identity: {through_identity}, found {bytes} bytes");
    }
}

#[test]
fn quantized_recurrent_weights_stay_int8() {
    const HIDDEN: usize = 64;
    let weight = |seed| random::tensor(DType::U8, &[1, HIDDEN, 4 * HIDDEN], seed);
    let (scale, zero) = (Tensor::from_slice(&[1], &[0.01f32]), Tensor::from_slice(&[1], &[4u8]));
    let inputs = ["x", "w", "r", "", "", "", "", "", "scale", "zero", "scale", "zero"];
    let layer = NodeProto {
        domain: "com.microsoft".into(),
        attribute: vec![integer("hidden_size", HIDDEN as i64)],
        ..node("DynamicQuantizeLSTM", &inputs, &["y"])
    };
    let weights = [("w", weight(1)), ("r", weight(2)), ("scale", scale), ("zero", zero)];
    let expected: usize = weights.iter().map(|(_, tensor)| tensor.bytes().len()).sum();
    let bytes = constant_bytes(model(vec![port("x", DType::F32, &["30", "1", "64"])], vec![layer], &weights));
    assert!(bytes <= expected * 12 / 10, "expected at most 1.2 times {expected} bytes, found {bytes}");
}

/// Runs a model with one node on a vector of `count` elements.
fn run_random(op: &str, count: usize, value: f32, attributes: Vec<AttributeProto>) -> Vec<f64> {
    let nodes = vec![NodeProto { attribute: attributes, ..node(op, &["x"], &["y"]) }];
    let model = model(vec![port("x", DType::F32, &[&count.to_string()])], nodes, &[]);
    let module = convert_model(model, &LoadOptions::default(), None).unwrap().module;
    values(&run(&module, &[Tensor::from_slice(&[count], &vec![value; count])]).unwrap()[0])
}

fn mean_and_deviation(numbers: &[f64]) -> (f64, f64) {
    let mean = numbers.iter().sum::<f64>() / numbers.len() as f64;
    let variance = numbers.iter().map(|number| (number - mean).powi(2)).sum::<f64>() / numbers.len() as f64;
    (mean, variance.sqrt())
}

#[test]
fn random_numbers_have_their_distribution() {
    const COUNT: usize = 40_000;
    let is_near = |actual: f64, expected: f64, tolerance: f64| (actual - expected).abs() < tolerance;
    let (mean, deviation) = mean_and_deviation(&run_random(
        "RandomNormalLike",
        COUNT,
        0.0,
        vec![number("mean", 3.0), number("scale", 2.0), number("seed", 1.0)],
    ));
    // Four standard errors of the mean and of the deviation.
    assert!(is_near(mean, 3.0, 0.04) && is_near(deviation, 2.0, 0.03), "{mean} {deviation}");
    let uniform = run_random("RandomUniformLike", COUNT, 0.0, vec![number("low", -1.0), number("high", 3.0)]);
    let (mean, deviation) = mean_and_deviation(&uniform);
    assert!(is_near(mean, 1.0, 0.024) && is_near(deviation, 4.0 / 12f64.sqrt(), 0.02), "{mean} {deviation}");
    assert!(uniform.iter().all(|number| (-1.0..3.0).contains(number)));
    let drawn = run_random("Bernoulli", COUNT, 0.25, vec![number("seed", 5.0)]);
    assert!(drawn.iter().all(|&number| number == 0.0 || number == 1.0));
    assert!(is_near(mean_and_deviation(&drawn).0, 0.25, 0.009));

    let with_seed = |seed| run_random("RandomNormalLike", 100, 0.0, vec![number("seed", seed)]);
    assert_eq!(with_seed(1.0), with_seed(1.0));
    assert_ne!(with_seed(1.0), with_seed(2.0));
}

#[test]
fn random_operators_of_a_model_differ() {
    let nodes = vec![
        node("RandomNormalLike", &["x"], &["a"]),
        node("RandomNormalLike", &["x"], &["b"]),
        node("Sub", &["a", "b"], &["y"]),
    ];
    let model = model(vec![port("x", DType::F32, &["100"])], nodes, &[]);
    let module = convert_model(model, &LoadOptions::default(), None).unwrap().module;
    let difference = values(&run(&module, &[Tensor::from_slice(&[100], &[0f32; 100])]).unwrap()[0]);
    assert!(difference.iter().filter(|&&value| value == 0.0).count() < 2);
}

#[test]
fn position_out_of_range_in_the_run_is_an_error() {
    let session = session();
    let path = test_data("operators/sequence_positions_in_the_run/model.onnx");
    let model = Model::compile(&session, path, &CompileOptions::new()).unwrap();
    let x = random::tensor(DType::F32, &[6, 2], 1);
    for position in [-2i64, 2] {
        assert!(model.run([x.clone(), Tensor::scalar(position)]).is_ok(), "{position}");
    }
    for position in [-4i64, 3, i64::MIN] {
        let error = model.run([x.clone(), Tensor::scalar(position)]).unwrap_err();
        assert_eq!(error.code(), codes::runtime::SEQUENCE_INDEX, "{error}");
        let message = format!("position {position} is out of range for a sequence of length 3");
        assert!(error.to_string().contains(&message), "{error}");
    }
}

/// Runs of a model with an open size: each is compared with the model of that size.
#[test]
fn shapes_that_come_again_get_a_program() {
    let session = Arc::new(session());
    let weight = random::tensor(DType::F32, &[4, 4], 1);
    let nodes = vec![node("MatMul", &["x", "w"], &["product"]), node("Tanh", &["product"], &["y"])];
    let source = Source::from(model(vec![port("x", DType::F32, &["n", "4"])], nodes, &[("w", weight)]).encode_to_vec());
    let options = CompileOptions::new().open_unbound_dims();
    let compilation = Compilation::new(&session, source.clone(), &options).unwrap();
    let general = Model::of(&session, compilation.clone()).unwrap();
    let model = Model::adaptive(&session, compilation, source, options).unwrap();
    let run = |rows: usize, options: &RunOptions| {
        let x = random::tensor(DType::F32, &[rows, 4], rows as u64);
        let expected = general.run([x.clone()]).unwrap().into_tensors().remove(0);
        let found = model.run_with([x], options).unwrap().into_tensors().remove(0);
        assert!(max_rel_err(&found, &expected) < 1e-6, "{rows} rows");
        model.adapted()
    };
    let unlimited = RunOptions::default();
    // Shapes that change in each run are no reason to compile, and nor are runs with a limit.
    let limited = RunOptions { timeout: Some(Duration::from_secs(60)), ..RunOptions::default() };
    assert_eq!([2, 3, 2, 3].map(|rows| run(rows, &unlimited)), [0; 4]);
    assert_eq!([5, 5, 5].map(|rows| run(rows, &limited)), [0; 3]);
    assert_eq!([2, 2, 2, 2].map(|rows| run(rows, &unlimited)), [0, 1, 1, 1]);
    // The second program is compiled after eight times as many runs.
    assert_eq!([3; 16].map(|rows| run(rows, &unlimited)), [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2]);
    assert_eq!([2, 3, 7].map(|rows| run(rows, &unlimited)), [2; 3]);
}

#[test]
fn a_file_that_was_replaced_is_not_compiled_again() {
    let session = Arc::new(session());
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.onnx");
    let write = |factor: f32| {
        let weight = Tensor::from_slice(&[1], &[factor]);
        let graph = onnx::graph(vec![port("x", DType::F32, &["n"])], vec![node("Mul", &["x", "w"], &["y"])], vec![]);
        let mut model = onnx::model(graph);
        model.graph.as_mut().unwrap().initializer.push(encode("w", &weight));
        std::fs::write(&path, model.encode_to_vec()).unwrap();
    };
    write(2.0);
    let options = CompileOptions::new().open_unbound_dims();
    let compilation = Compilation::new(&session, &path, &options).unwrap();
    let model = Model::adaptive(&session, compilation, Source::from(&path), options).unwrap();
    // The file of the model is replaced by another one.
    std::fs::remove_file(&path).unwrap();
    write(3.0);
    for _ in 0..4 {
        let outputs = model.run([Tensor::from_slice(&[2], &[1f32, 2.0])]).unwrap().into_tensors();
        assert_eq!(values(&outputs[0]), [2.0, 4.0]);
    }
    assert_eq!(model.adapted(), 0);
}
