//! Corrupt and malicious model files cause a diagnostic with a code, never a panic or unbounded memory use.

use crate::support;
use crate::support::onnx::{self, integer, node, port};
use crate::support::test_data;
use byoc::frontend::onnx::convert_model;
use byoc::frontend::onnx::proto::{
    AttributeProto, AttributeType, Bytes, FunctionProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto,
    StringStringEntryProto, TensorProto, ValueInfoProto,
};
use byoc::frontend::onnx::tensor::{STRING, encode};
use byoc::frontend::{self, LoadOptions};
use byoc::io::random::Random;
use byoc_ir::cancel::Cancel;
use byoc_ir::diag::{Code, Diagnostic, MAX_REPORTED, codes, codes::frontends};
use byoc_ir::ir::Module;
use byoc_ir::tensor::{DType, Tensor};
use byoc_ir::text::{PrintOptions, print};
use prost::Message;
use std::path::Path;
use std::time::Duration;

/// Creates a model with an input `x` of two elements and an output `y`.
fn model(nodes: Vec<NodeProto>, initializer: Vec<TensorProto>) -> ModelProto {
    onnx::model(onnx::graph(vec![port("x", DType::F32, &["2"])], nodes, initializer))
}

fn error(model: ModelProto) -> Diagnostic {
    convert_model(model, &LoadOptions::default(), None).map(|_| ()).expect_err("expected an invalid model").remove(0)
}

fn code_of_bytes(bytes: &[u8]) -> Code {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.onnx");
    std::fs::write(&path, bytes).unwrap();
    frontend::load(&path, &LoadOptions::default()).map(|_| ()).expect_err("expected an invalid file").diagnostics[0]
        .code
}

#[test]
fn rejects_files_that_are_not_models() {
    assert_eq!(code_of_bytes(b""), frontends::UNREADABLE_MODEL);
    assert_eq!(code_of_bytes(b"version https://git-lfs.github.com/spec/v1"), frontends::UNREADABLE_MODEL);
    let missing_error = frontend::load(Path::new("no/such.onnx"), &LoadOptions::default()).unwrap_err();
    assert_eq!(missing_error.diagnostics[0].code, frontends::UNREADABLE_MODEL);
    let other = frontend::load(&test_data("digits/labels.txt"), &LoadOptions::default()).unwrap_err();
    assert_eq!(other.diagnostics[0].code, frontends::UNKNOWN_MODEL_FORMAT);
    let dir = frontend::load(&test_data("digits/samples"), &LoadOptions::default()).unwrap_err();
    assert_eq!(dir.diagnostics[0].code, frontends::BAD_TEST_FOLDER);
}

/// Creates a model with an input `x` of two strings.
fn string_model(nodes: Vec<NodeProto>) -> ModelProto {
    let mut input = port("x", DType::I64, &["2"]);
    if let Some(tensor) = input.r#type.as_mut().and_then(|ty| ty.tensor_type.as_mut()) {
        tensor.elem_type = STRING;
    }
    with_opset_20(onnx::model(onnx::graph(vec![input], nodes, Vec::new())))
}

fn with_opset_20(mut model: ModelProto) -> ModelProto {
    model.opset_import[0].version = 20;
    model
}

#[test]
fn rejects_strings_for_numbers_and_numbers_for_strings() {
    let text = |name: &str, text: &str| AttributeProto {
        name: name.into(),
        r#type: AttributeType::String as i32,
        s: Some(Bytes::copy_from_slice(text.as_bytes())),
        ..AttributeProto::default()
    };
    let check = |model: ModelProto, code: Code, expected: &str| {
        let error = error(model);
        assert_eq!(error.code, code, "{error}");
        assert!(error.message.contains(expected), "{error}");
    };
    let misuse = frontends::STRING_MISUSE;
    check(
        string_model(vec![node("Add", &["x", "x"], &["y"])]),
        misuse,
        "(Add): input 0: expected numbers, found strings",
    );
    check(
        string_model(vec![node("Identity", &["x"], &["y"])]),
        misuse,
        "output \"y\": expected a value of kind tensor",
    );
    let numbers = vec![node("StringConcat", &["x", "x"], &["y"])];
    check(with_opset_20(model(numbers, Vec::new())), misuse, "input 0: expected strings, found Tensor[(2), float32]");
    let mixed = vec![node("Shape", &["x"], &["s"]), node("Concat", &["x", "s"], &["y"])];
    check(string_model(mixed), misuse, "expected strings in all operands");
    let position = vec![node("Gather", &["x", "x"], &["y"])];
    check(string_model(position), misuse, "input 1: expected numbers, found strings");
    for expression in ["(", "a)|(b", "(\\w{500}){500}"] {
        let mut matched = node("RegexFullMatch", &["x"], &["y"]);
        matched.attribute.push(text("pattern", expression));
        check(
            string_model(vec![matched]),
            frontends::BAD_PATTERN,
            "(RegexFullMatch): attribute pattern: expected a pattern",
        );
    }
    let mut constant = TensorProto { name: "k".into(), data_type: STRING, dims: vec![1], ..TensorProto::default() };
    constant.string_data = vec![Bytes::from_static(b"\xff")];
    let invalid = model(vec![node("Identity", &["k"], &["y"])], vec![constant.clone()]);
    check(invalid, frontends::BAD_TENSOR, "element 0: expected UTF-8");
    constant.dims = vec![3];
    check(model(vec![node("Identity", &["k"], &["y"])], vec![constant]), frontends::BAD_TENSOR, "found 1 values");
}

#[test]
fn reports_all_unknown_operators_at_once() {
    let mut foreign_node = node("Unheard", &["b"], &["c"]);
    foreign_node.domain = "com.microsoft".into();
    let nodes = vec![
        node("Relux", &["x"], &["a"]),
        node("Relux", &["a"], &["b"]),
        foreign_node,
        node("TrainableFilter", &["c"], &["y"]),
    ];
    let error = error(model(nodes, vec![]));
    assert_eq!(error.code, frontends::UNSUPPORTED_OPERATOR);
    assert_eq!(
        error.notes,
        [
            "Relux (domain ai.onnx, opset 17), 2 times, first in node \"Relux_0\"",
            "TrainableFilter (domain ai.onnx, opset 17), once in node \"TrainableFilter_3\"",
            "Unheard (domain com.microsoft, opset 1), once in node \"Unheard_2\"",
        ]
    );
    assert!(error.help.unwrap().contains("\"Relu\""));
}

#[test]
fn reports_unbound_dimension() {
    let error = frontend::load(&test_data("digits/digits.onnx"), &LoadOptions::default()).unwrap_err();
    let error = &error.diagnostics[0];
    assert_eq!(error.code, frontends::UNBOUND_DIMENSION);
    assert!(error.message.contains("\"batch\"") && error.message.contains("\"image\""), "{}", error.message);
    assert!(error.help.as_ref().unwrap().contains("--dim batch=N"));

    let mut options = LoadOptions::default();
    options.dims.insert("batsh".into(), 2);
    let errors = frontend::load(&test_data("digits/digits.onnx"), &options).unwrap_err().diagnostics;
    assert_eq!(errors[0].code, frontends::BAD_BINDING);
    assert_eq!(errors[0].help.as_deref(), Some("did you mean \"batch\"?"));

    let mut options = LoadOptions::default();
    options.input_shapes.insert("image".into(), vec![2, 3, 8, 8]);
    let errors = frontend::load(&test_data("digits/digits.onnx"), &options).unwrap_err().diagnostics;
    assert_eq!(errors[0].code, frontends::BAD_BINDING);
}

#[test]
fn rejects_inconsistent_graphs() {
    assert_eq!(error(model(vec![node("Relu", &["nothing"], &["y"])], vec![])).code, frontends::MISSING_VALUE);
    assert_eq!(error(model(vec![node("Relu", &["x"], &["z"])], vec![])).code, frontends::MISSING_VALUE);
    let duplicate_nodes = vec![node("Relu", &["x"], &["y"]), node("Relu", &["x"], &["y"])];
    assert_eq!(error(model(duplicate_nodes, vec![])).code, frontends::DUPLICATE_VALUE);
    assert_eq!(error(model(vec![node("Add", &["x"], &["y"])], vec![])).code, frontends::BAD_NODE);
    let mut old_model = model(vec![node("Relu", &["x"], &["y"])], vec![]);
    old_model.opset_import[0].version = 0;
    assert_eq!(error(old_model).code, frontends::UNSUPPORTED_OPSET);
    let mut foreign_node = node("Relu", &["x"], &["y"]);
    (foreign_node.name, foreign_node.domain) = ("far".into(), "my.domain".into());
    let error = error(model(vec![foreign_node], vec![]));
    assert_eq!(error.code, frontends::UNKNOWN_DOMAIN);
    assert_eq!(error.message, "node \"far\" (Relu): the model does not import domain my.domain");
}

#[test]
fn nodes_are_sorted() {
    let in_order = vec![node("Relu", &["x"], &["a"]), node("Neg", &["a"], &["b"]), node("Add", &["a", "b"], &["y"])];
    let convert = |nodes| convert_model(model(nodes, vec![]), &LoadOptions::default(), None).unwrap().module;
    let expected = convert(in_order.clone());
    for order in [[2, 1, 0], [1, 2, 0], [2, 0, 1], [0, 2, 1]] {
        let module = convert(order.into_iter().map(|index: usize| in_order[index].clone()).collect());
        let text = |module: &Module| print(module, &PrintOptions::default()).text;
        assert_eq!(text(&module), text(&expected), "{order:?}");
    }
}

#[test]
fn cycles_are_named() {
    let mut nodes = vec![
        node("Relu", &["x"], &["a"]),
        node("Add", &["a", "d"], &["b"]),
        node("Neg", &["b"], &["c"]),
        node("Abs", &["c"], &["d"]),
        node("Exp", &["d"], &["y"]),
    ];
    nodes.reverse();
    let error = error(model(nodes.clone(), vec![]));
    assert_eq!(error.code, frontends::CYCLE);
    assert!(error.message.ends_with("depends on its own result, through a cycle of 3 nodes"), "{}", error.message);
    for operator in ["(Add) reads \"d\"", "(Neg) reads \"b\"", "(Abs) reads \"c\""] {
        assert!(error.notes[0].contains(operator), "{}", error.notes[0]);
    }
    assert!(!error.notes[0].contains("Relu") && !error.notes[0].contains("Exp"), "{}", error.notes[0]);
}

#[test]
fn rejects_tensors_of_wrong_size() {
    let sum = || vec![node("Add", &["x", "w"], &["y"])];
    let valid_tensor = encode("w", &Tensor::from_slice(&[2], &[1f32, 2.0]));
    assert!(convert_model(model(sum(), vec![valid_tensor.clone()]), &LoadOptions::default(), None).is_ok());
    for dims in [vec![3], vec![-2], vec![1 << 40, 1 << 40], vec![i64::MAX], vec![0]] {
        let inconsistent_tensor = TensorProto { dims, ..valid_tensor.clone() };
        assert_eq!(error(model(sum(), vec![inconsistent_tensor])).code, frontends::BAD_TENSOR);
    }
    let string_tensor = TensorProto { data_type: 8, ..valid_tensor };
    assert_eq!(error(model(sum(), vec![string_tensor])).code, frontends::BAD_TENSOR);
}

#[test]
fn rejects_values_that_are_not_constant() {
    let branch = |name: &str, op: &str| AttributeProto {
        name: name.into(),
        r#type: AttributeType::Graph as i32,
        g: Some(Box::new(GraphProto {
            node: vec![node(op, &["x"], &[op])],
            output: vec![port(op, DType::F32, &[])],
            ..GraphProto::default()
        })),
        ..AttributeProto::default()
    };
    let nodes = vec![
        node("ReduceMax", &["x"], &["max"]),
        node("IsNaN", &["max"], &["cond"]),
        NodeProto {
            attribute: vec![branch("then_branch", "Relu"), branch("else_branch", "Flatten")],
            ..node("If", &["cond"], &["y"])
        },
    ];
    let error = error(model(nodes, vec![]));
    assert_eq!(error.code, frontends::NOT_CONSTANT, "{error}");
    assert!(error.message.contains("If") && error.message.contains("condition"), "{}", error.message);
}

#[test]
fn rejects_malformed_trees() {
    let ints = |name: &str, values: &[i64]| AttributeProto {
        name: name.into(),
        r#type: AttributeType::Ints as i32,
        ints: values.to_vec(),
        ..AttributeProto::default()
    };
    let floats = |name: &str, values: &[f32]| AttributeProto {
        name: name.into(),
        r#type: AttributeType::Floats as i32,
        floats: values.to_vec(),
        ..AttributeProto::default()
    };
    let modes = |values: &[&'static str]| AttributeProto {
        name: "nodes_modes".into(),
        r#type: AttributeType::Strings as i32,
        strings: values.iter().map(|value| Bytes::from_static(value.as_bytes())).collect(),
        ..AttributeProto::default()
    };
    let tree = |changed: Vec<AttributeProto>| {
        let mut attribute = vec![
            ints("nodes_treeids", &[0, 0, 0]),
            ints("nodes_nodeids", &[0, 1, 2]),
            modes(&["BRANCH_LEQ", "LEAF", "LEAF"]),
            ints("nodes_featureids", &[1, 0, 0]),
            floats("nodes_values", &[0.5, 0.0, 0.0]),
            ints("nodes_truenodeids", &[1, 0, 0]),
            ints("nodes_falsenodeids", &[2, 0, 0]),
            ints("target_treeids", &[0, 0]),
            ints("target_nodeids", &[1, 2]),
            ints("target_ids", &[0, 0]),
            floats("target_weights", &[1.0, 2.0]),
        ];
        for change in changed {
            attribute.retain(|attribute| attribute.name != change.name);
            attribute.push(change);
        }
        let trees = node("TreeEnsembleRegressor", &["x"], &["y"]);
        let mut model = model(vec![NodeProto { domain: "ai.onnx.ml".into(), attribute, ..trees }], vec![]);
        model.opset_import.push(OperatorSetIdProto { domain: "ai.onnx.ml".into(), version: 3 });
        if let Some(graph) = &mut model.graph {
            graph.output = vec![port("y", DType::F32, &["1", "1"])];
        }
        model
    };
    assert!(convert_model(tree(vec![]), &LoadOptions::default(), None).is_ok());
    let cycle = vec![
        modes(&["BRANCH_LEQ", "BRANCH_LT", "LEAF"]),
        ints("nodes_truenodeids", &[1, 1, 0]),
        ints("nodes_falsenodeids", &[2, 2, 0]),
    ];
    for (changed, message) in [
        (cycle, "expected trees, found a cycle of nodes"),
        (vec![ints("nodes_truenodeids", &[7, 0, 0])], "node 7 of tree 0 is missing"),
        (vec![ints("nodes_nodeids", &[0, 1, 1])], "two nodes have the same nodes_treeids and nodes_nodeids"),
        (vec![ints("target_nodeids", &[1, 5])], "node 5 of tree 0 is missing"),
        (vec![ints("target_ids", &[0, 1])], "n_targets: expected at least 2, found 1"),
        (vec![ints("target_ids", &[0, -1])], "attribute target_ids: -1 is out of range"),
        (vec![ints("nodes_featureids", &[2, 0, 0])], "expected data with more than 2 features, found 2"),
        (vec![floats("nodes_values", &[0.5])], "attribute nodes_values: expected 3 values, found 1"),
        (vec![modes(&["BRANCH_MOST", "LEAF", "LEAF"])], "nodes_modes: expected a known mode, found \"BRANCH_MOST\""),
    ] {
        let error = error(tree(changed));
        assert_eq!(error.code, frontends::BAD_NODE);
        assert!(error.message.ends_with(message), "{}", error.message);
    }
}

/// Creates a model with one node of ONNX Runtime's domain.
fn contrib_model(node: NodeProto, initializer: Vec<TensorProto>) -> ModelProto {
    let mut model = model(vec![NodeProto { domain: "com.microsoft".into(), ..node }], initializer);
    model.opset_import.push(OperatorSetIdProto { domain: "com.microsoft".into(), version: 1 });
    model
}

#[test]
fn rejects_training_on_data_without_channels() {
    let attribute = vec![integer("training_mode", 1)];
    let normalization = NodeProto { attribute, ..node("BatchNormalization", &["x", "x", "x", "x", "x"], &["y"]) };
    let message = error(model(vec![normalization], vec![])).message;
    assert!(message.ends_with("expected data of rank 2 or more, found Tensor[(2), float32]"), "{message}");
}

#[test]
fn rejects_attention_of_other_ranks() {
    let heads = || vec![integer("num_heads", 1), integer("kv_num_heads", 1)];
    let lengths = encode("l", &Tensor::from_slice(&[1], &[1i32]));
    for (op, inputs) in [
        ("GroupQueryAttention", &["x", "x", "x", "", "", "l", "l"][..]),
        ("GroupQueryAttention", &["x", "", "", "", "", "l", "l"]),
        ("MultiHeadAttention", &["x", "x", "x"]),
        ("Attention", &["x", "x"]),
        ("RotaryEmbedding", &["x", "l", "x", "x"]),
    ] {
        let attention = NodeProto { attribute: heads(), ..node(op, inputs, &["y"]) };
        let error = error(contrib_model(attention, vec![lengths.clone()]));
        assert_eq!(error.code, frontends::BAD_NODE, "{}", error.message);
        assert!(error.message.contains("expected a tensor of rank"), "{op}: {}", error.message);
    }
}

#[test]
fn rejects_malformed_quantized_weights() {
    let scales = |count: usize| encode("s", &Tensor::from_slice(&[count], &vec![1f32; count]));
    let bytes = |shape: &[usize]| encode("w", &Tensor::from_slice(shape, &vec![1u8; shape.iter().product()]));
    let indices = encode("i", &Tensor::from_slice(&[1], &[0i64]));
    let zeros = |count: usize| encode("z", &Tensor::from_slice(&[count], &vec![0i8; count]));
    let bnb4 = |count: usize| {
        let attribute = vec![integer("K", 2), integer("N", 16), integer("block_size", 16)];
        (NodeProto { attribute, ..node("MatMulBnb4", &["x", "w", "s"], &["y"]) }, vec![bytes(&[count]), scales(2)])
    };
    let gather = |attribute: Vec<AttributeProto>, scales: TensorProto| {
        let gather = node("GatherBlockQuantized", &["w", "i", "s"], &["y"]);
        (NodeProto { attribute, ..gather }, vec![bytes(&[2, 16]), indices.clone(), scales])
    };
    let scale_rows = |columns: usize| encode("s", &Tensor::from_slice(&[2, columns], &vec![1f32; 2 * columns]));
    let lstm = |zeros: TensorProto| {
        let inputs = ["x", "w", "r", "", "", "", "", "", "s", "z", "s", "z"];
        let recurrent = TensorProto { name: "r".into(), ..bytes(&[1, 1, 4]) };
        (node("DynamicQuantizeLSTM", &inputs, &["y"]), vec![bytes(&[1, 2, 4]), recurrent, scales(1), zeros])
    };
    for ((node, initializer), message) in [
        (
            bnb4(15),
            "expected 16 bytes and 2 block factors for 2 x 16 elements, found Tensor[(15), uint8] and \
                    Tensor[(2), float32]",
        ),
        (
            gather(vec![integer("quantize_axis", 0)], scale_rows(1)),
            "packed data: expected quantize_axis 1 and another \
                    gather_axis, found 0 and 0",
        ),
        (gather(vec![integer("bits", 3)], scale_rows(1)), "attribute bits: expected 2, 4 or 8, found 3"),
        (
            gather(vec![integer("block_size", 16)], scale_rows(3)),
            "scales: expected one per block of 16 along an axis of 32, \
                    found 3",
        ),
        (gather(vec![], scales(2)), "scales and zero points: expected rank 2, found Tensor[(2), float32]"),
        (lstm(zeros(1)), "input 9 (zero point): expected uint8, the type of the weights, found int8"),
    ] {
        let error = error(contrib_model(node, initializer));
        assert_eq!(error.code, frontends::BAD_NODE, "{}", error.message);
        assert!(error.message.ends_with(message), "{}", error.message);
    }
}

#[test]
fn does_not_fold_large_tensors() {
    // Folding would produce 2^38 bytes.
    let big_tensor = encode("big", &Tensor::from_slice(&[2], &[1i64 << 18, 1 << 18]));
    let fill_nodes = vec![node("ConstantOfShape", &["big"], &["c"]), node("ReduceSum", &["c"], &["y"])];
    let loaded_model =
        convert_model(model(fill_nodes, vec![big_tensor.clone()]), &LoadOptions::default(), None).unwrap();
    let resident_bytes: usize =
        loaded_model.module.nodes.iter().filter_map(|(_, n)| n.expr.as_constant()).map(|t| t.bytes().len()).sum();
    assert!(resident_bytes < 1 << 20);

    let one_tensor = encode("one", &Tensor::from_slice(&[1, 1], &[1f32]));
    let expand_nodes = vec![node("Expand", &["one", "big"], &["c"]), node("ReduceSum", &["c"], &["y"])];
    assert!(convert_model(model(expand_nodes, vec![one_tensor, big_tensor]), &LoadOptions::default(), None).is_ok());

    // The result of each node is twice as large as its input, up to 2^40 elements.
    let mut nodes = vec![node("Concat", &["w", "w"], &["c0"])];
    for i in 0..40 {
        nodes.push(node("Concat", &[&format!("c{i}"), &format!("c{i}")], &[&format!("c{}", i + 1)]));
    }
    nodes.push(node("ReduceSum", &["c40"], &["y"]));
    let w = encode("w", &Tensor::from_slice(&[2], &[1f32, 2.0]));
    let loaded_model = convert_model(model(nodes, vec![w]), &LoadOptions::default(), None).unwrap();
    let resident_bytes: usize =
        loaded_model.module.nodes.iter().filter_map(|(_, n)| n.expr.as_constant()).map(|t| t.bytes().len()).sum();
    assert!(resident_bytes <= 512 << 20, "expected at most 512 MiB of constants, found {resident_bytes} bytes");
}

#[test]
fn inlines_functions() {
    let twice_function = FunctionProto {
        name: "Twice".into(),
        domain: "own".into(),
        input: vec!["a".into()],
        output: vec!["b".into()],
        node: vec![node("Add", &["a", "a"], &["t"]), node("Relu", &["t"], &["b"])],
        ..FunctionProto::default()
    };
    let call = |input_name: &str, output_name: &str| NodeProto {
        domain: "own".into(),
        ..node("Twice", &[input_name], &[output_name])
    };
    let mut valid_model = model(vec![call("x", "m"), call("m", "y")], vec![]);
    valid_model.functions.push(twice_function.clone());
    let loaded_model = convert_model(valid_model, &LoadOptions::default(), None).unwrap();
    let actual = support::run(&loaded_model.module, &[Tensor::from_slice(&[2], &[1f32, -1.0])]).unwrap();
    assert_eq!(actual[0].as_slice::<f32>(), [4.0, 0.0]);

    let mut endless_model = model(vec![call("x", "y")], vec![]);
    endless_model.functions.push(FunctionProto { node: vec![call("a", "b")], ..twice_function.clone() });
    assert_eq!(error(endless_model).code, frontends::BROKEN_MODEL);

    // Twenty-three functions, each of which calls its predecessor twice.
    let mut bomb = model(vec![NodeProto { domain: "own".into(), ..node("F23", &["x"], &["y"]) }], vec![]);
    bomb.functions.push(FunctionProto { name: "F0".into(), ..twice_function.clone() });
    for i in 1..24 {
        let call_node = |input_name: &str, output_name: &str| NodeProto {
            domain: "own".into(),
            ..node(&format!("F{}", i - 1), &[input_name], &[output_name])
        };
        let node = vec![call_node("a", "t"), call_node("t", "b")];
        bomb.functions.push(FunctionProto { name: format!("F{i}"), node, ..twice_function.clone() });
    }
    assert_eq!(error(bomb).code, frontends::BROKEN_MODEL);
}

#[test]
fn restricts_external_data_to_folder_of_model() {
    let outer = tempfile::tempdir().unwrap();
    let dir = outer.path().join("model");
    std::fs::create_dir(&dir).unwrap();
    let data: Vec<u8> = [1f32, 2.0, 3.0].iter().flat_map(|v| v.to_le_bytes()).collect();
    std::fs::write(dir.join("w.bin"), &data).unwrap();
    std::fs::write(outer.path().join("secret.bin"), &data).unwrap();
    let load = |entries: &[(&str, &str)]| {
        let entry = |(k, v): &(&str, &str)| StringStringEntryProto { key: (*k).into(), value: (*v).into() };
        let w = TensorProto {
            name: "w".into(),
            dims: vec![2],
            data_type: 1,
            data_location: 1,
            external_data: entries.iter().map(entry).collect(),
            ..TensorProto::default()
        };
        let bytes = model(vec![node("Add", &["x", "w"], &["y"])], vec![w]).encode_to_vec();
        let path = dir.join("m.onnx");
        std::fs::write(&path, bytes).unwrap();
        frontend::load(&path, &LoadOptions::default())
    };
    let loaded_model = load(&[("location", "w.bin"), ("offset", "4"), ("length", "8")]).unwrap();
    let actual = support::run(&loaded_model.module, &[Tensor::from_slice(&[2], &[0f32, 0.0])]).unwrap();
    assert_eq!(actual[0].as_slice::<f32>(), [2.0, 3.0]);
    let absolute_path = outer.path().join("secret.bin").display().to_string();
    for entries in [
        &[("location", "../secret.bin"), ("length", "8")][..],
        &[("location", &absolute_path), ("length", "8")],
        &[("location", "missing.bin"), ("length", "8")],
        &[("location", "w.bin"), ("offset", "8"), ("length", "8")],
        &[("location", "w.bin"), ("offset", "18446744073709551615"), ("length", "8")],
        &[("location", "w.bin"), ("length", "12")],
        &[("location", "."), ("length", "8")],
        &[("length", "8")],
    ] {
        let error = load(entries).unwrap_err();
        assert_eq!(error.diagnostics[0].code, frontends::BAD_EXTERNAL_DATA, "{entries:?}");
    }

    // Symlinks are resolved before the location of the data is checked.
    use std::os::unix::fs::symlink;
    symlink("w.bin", dir.join("inside.bin")).unwrap();
    load(&[("location", "inside.bin"), ("length", "8"), ("offset", "0")]).unwrap();
    symlink("../secret.bin", dir.join("outside.bin")).unwrap();
    symlink("..", dir.join("up")).unwrap();
    for location in ["outside.bin", "up/secret.bin"] {
        let error = load(&[("location", location), ("length", "8")]).unwrap_err();
        assert_eq!(error.diagnostics[0].code, frontends::BAD_EXTERNAL_DATA, "{location}");
        assert!(error.to_string().contains("expected a data file below the model's directory"), "{error}");
    }
    // A directory of symlinks into a file store is permitted.
    let links_dir = outer.path().join("links");
    std::fs::create_dir(&links_dir).unwrap();
    load(&[("location", "w.bin"), ("length", "8"), ("offset", "0")]).unwrap();
    symlink("../model/m.onnx", links_dir.join("m.onnx")).unwrap();
    symlink("../model/w.bin", links_dir.join("w.bin")).unwrap();
    frontend::load(&links_dir.join("m.onnx"), &LoadOptions::default()).unwrap();
}

/// Returns a randomly mutated copy of a model's bytes.
fn mutate(original_bytes: &[u8], random: &mut Random) -> Vec<u8> {
    let mut bytes = original_bytes.to_vec();
    let random_offset = |random: &mut Random, len: usize| (random.next_u64() % len.max(1) as u64) as usize;
    match random.next_u64() % 4 {
        0 => bytes.truncate(random_offset(random, original_bytes.len())),
        1 => {
            let (source, target) =
                (random_offset(random, original_bytes.len()), random_offset(random, original_bytes.len()));
            let part = bytes[source.min(target)..source.max(target).min(source.min(target) + 64)].to_vec();
            let offset = random_offset(random, bytes.len());
            bytes.splice(offset..offset, part);
        }
        _ => {
            for _ in 0..1 + random.next_u64() % 4 {
                let offset = random_offset(random, bytes.len());
                bytes[offset] ^= 1 << (random.next_u64() % 8);
            }
        }
    }
    bytes
}

#[test]
fn ten_thousand_mutations_never_panic() {
    let mut random = Random::new(7);
    let mut refused_count = 0;
    // In small files, most mutations affect structure rather than weights.
    for (name, rounds) in
        [("models/unet_small/model.onnx", 5000), ("models/gru/model.onnx", 2500), ("models/vit_small/model.onnx", 2500)]
    {
        let mut stripped_model = ModelProto::decode(Bytes::from(std::fs::read(test_data(name)).unwrap())).unwrap();
        // Only the first nodes and their inputs are kept, to concentrate the mutations on structure.
        let graph = stripped_model.graph.as_mut().unwrap();
        if name.contains("vit") {
            graph.node.truncate(60);
            let last_output = graph.node.last().unwrap().output[0].clone();
            graph.output[0].name = last_output;
            let used_names: Vec<String> = graph.node.iter().flat_map(|n| n.input.clone()).collect();
            graph.initializer.retain(|t| used_names.contains(&t.name));
        }
        let original_bytes = stripped_model.encode_to_vec();
        for _ in 0..rounds {
            let bytes = mutate(&original_bytes, &mut random);
            let Ok(model) = ModelProto::decode(Bytes::from(bytes)) else {
                refused_count += 1;
                continue;
            };
            if let Err(errors) = convert_model(model, &LoadOptions::default(), None) {
                refused_count += 1;
                assert!(errors.iter().all(|e| (500..600).contains(&e.code.0)), "{errors:?}");
            }
        }
    }
    assert!(refused_count > 1000, "expected more than 1000 rejected mutations, found {refused_count}");
}

#[test]
fn a_rank_is_checked_before_dimensions_are_named() {
    let mut model = model(vec![node("Relu", &["x"], &["y"])], Vec::new());
    model.graph.as_mut().unwrap().input[0] = port("x", DType::F32, &[""; 65]);
    let errors = convert_model(model, &LoadOptions::default(), None).unwrap_err();
    let [error] = &errors[..] else { panic!("expected one error, found {errors:?}") };
    assert_eq!(error.code, frontends::UNSUPPORTED_TYPE);
    assert!(error.message.contains("at most 64 dimensions, found 65"), "{error}");
}

fn branch(name: &str, op: &str, inputs: &[&str]) -> AttributeProto {
    AttributeProto {
        name: name.into(),
        r#type: AttributeType::Graph as i32,
        g: Some(Box::new(GraphProto {
            node: vec![node(op, inputs, &["result"])],
            output: vec![port("result", DType::F32, &[])],
            ..GraphProto::default()
        })),
        ..AttributeProto::default()
    }
}

/// Creates a model with an `If` whose condition is known at run time, and a constant `axis` of 0.
fn model_with_branches(then_branch: AttributeProto, else_branch: AttributeProto) -> ModelProto {
    let maximum = node("ReduceMax", &["x"], &["maximum"]);
    let cast = NodeProto { attribute: vec![integer("to", 9)], ..node("Cast", &["maximum"], &["condition"]) };
    let choice = NodeProto {
        name: "choice".into(),
        attribute: vec![then_branch, else_branch],
        ..node("If", &["condition"], &["y"])
    };
    model(vec![maximum, cast, choice], vec![encode("axis", &Tensor::from_slice(&[1], &[0i64]))])
}

#[test]
fn rejects_branches_of_different_ranks() {
    let then_branch = branch("then_branch", "Relu", &["x"]);
    let error = error(model_with_branches(then_branch, branch("else_branch", "Unsqueeze", &["x", "axis"])));
    assert_eq!(error.code, frontends::NOT_CONSTANT);
    let expected = "node \"choice\" (If): condition: expected a compile-time constant for branches of types \
                    Tensor[(2), float32] and Tensor[(1, 2), float32], found a run-time value";
    assert_eq!(error.message, expected);
}

#[test]
fn warns_of_branches_that_cannot_be_imported() {
    let valid = |name: &str| branch(name, "Relu", &["x"]);
    let invalid = |name: &str| branch(name, "Squeeze", &["x", "axis"]);
    let inner_message = "node \"Squeeze_0\" (Squeeze): squeeze: axis 0: expected dimension 1, found 2";
    for (then_branch, else_branch, name) in [
        (valid("then_branch"), invalid("else_branch"), "else_branch"),
        (invalid("then_branch"), valid("else_branch"), "then_branch"),
    ] {
        let loaded =
            convert_model(model_with_branches(then_branch, else_branch), &LoadOptions::default(), None).unwrap();
        let messages: Vec<&str> = loaded.warnings.iter().map(|warning| warning.message.as_str()).collect();
        assert_eq!(messages, [format!("node \"choice\" (If): a run that takes {name} fails: {inner_message}")]);
    }
    let error = error(model_with_branches(invalid("then_branch"), invalid("else_branch")));
    assert!(error.message.contains(inner_message), "{}", error.message);
}

fn errors(model: ModelProto) -> Vec<Diagnostic> {
    convert_model(model, &LoadOptions::default(), None).map(|_| ()).expect_err("expected an invalid model")
}

/// Creates a model whose graph `change` fills with many declarations.
fn changed(change: impl FnOnce(&mut GraphProto)) -> ModelProto {
    let mut model = model(vec![node("Relu", &["x"], &["y"])], vec![]);
    change(model.graph.as_mut().unwrap());
    model
}

#[test]
fn errors_beyond_the_first_are_counted() {
    const COUNT: usize = MAX_REPORTED + 50;
    let untyped = |i: usize| ValueInfoProto { name: format!("v{i}"), ..ValueInfoProto::default() };
    let symbolic = |i: usize| port(&format!("v{i}"), DType::F32, &[&format!("d{i}")]);
    for model in [
        changed(|graph| graph.input.extend((0..COUNT).map(untyped))),
        changed(|graph| graph.output.extend((0..COUNT).map(untyped))),
        changed(|graph| graph.input.extend((0..COUNT).map(symbolic))),
        changed(|graph| graph.input.extend(vec![graph.input[0].clone(); COUNT])),
    ] {
        let errors = errors(model);
        assert_eq!(errors.len(), MAX_REPORTED);
        assert_eq!(errors.last().unwrap().notes.last().unwrap(), "50 more errors are not shown");
    }
    let unknown = |i: usize| node(&format!("Unknown{i}"), &["x"], &[""]);
    let errors = errors(changed(|graph| graph.node.extend((0..COUNT).map(unknown))));
    assert_eq!((errors.len(), errors[0].notes.len()), (1, MAX_REPORTED + 1));
    assert!(errors[0].message.contains(&format!("{COUNT} unsupported operators")), "{}", errors[0]);
    assert_eq!(errors[0].notes.last().unwrap(), "50 more operators");
}

#[test]
fn import_ends_after_cancellation() {
    const COUNT: usize = 1000;
    let cancel = Cancel::default();
    cancel.set_timeout(Some(Duration::ZERO));
    let names = |prefix: &str| (0..COUNT).map(|i| format!("{prefix}{i}")).collect::<Vec<_>>();
    let function = FunctionProto { name: "F".into(), domain: "m".into(), ..FunctionProto::default() };
    let mut calls = changed(|graph| {
        let call = NodeProto { domain: "m".into(), ..node("F", &[], &[]) };
        graph.node.extend(vec![call; COUNT]);
    });
    calls.functions.push(FunctionProto { input: names("i"), output: names("i"), ..function });
    for model in [
        calls,
        changed(|graph| graph.input.extend(names("v").iter().map(|name| port(name, DType::F32, &[])))),
        changed(|graph| graph.node.extend(names("Unknown").iter().map(|name| node(name, &["x"], &[""])))),
        changed(|graph| graph.node.extend(vec![node("Relu", &["x"], &[""]); COUNT])),
    ] {
        let errors = cancel.within(|| errors(model));
        assert_eq!(errors.iter().map(|error| error.code).collect::<Vec<_>>(), [codes::runtime::TIMED_OUT]);
    }
}

#[test]
fn nested_loops_are_not_unrolled_without_end() {
    // Three loops of 1000 iterations carry a sequence, so they are unrolled.
    let body = |nodes: Vec<NodeProto>| AttributeProto {
        name: "body".into(),
        r#type: AttributeType::Graph as i32,
        g: Some(Box::new(GraphProto {
            node: nodes,
            input: ["i", "go", "carried"].map(|name| port(name, DType::F32, &[])).to_vec(),
            output: ["go", "result"].map(|name| port(name, DType::F32, &[])).to_vec(),
            ..GraphProto::default()
        })),
        ..AttributeProto::default()
    };
    let mut nodes = vec![node("Identity", &["carried"], &["result"])];
    for _ in 0..3 {
        let attribute = vec![body(nodes)];
        nodes = vec![NodeProto { attribute, ..node("Loop", &["trips", "", "carried"], &["result"]) }];
    }
    nodes.insert(0, node("SequenceConstruct", &["x"], &["carried"]));
    nodes.push(node("SequenceAt", &["result", "position"], &["y"]));
    let numbers = [("trips", 1000i64), ("position", 0)];
    let error = error(model(nodes, numbers.map(|(name, number)| encode(name, &Tensor::scalar(number))).to_vec()));
    assert!(error.message.contains("at most 1000000 nodes after unrolling"), "{error}");
}
