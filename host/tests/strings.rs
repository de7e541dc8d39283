//! Strings, sequences, optional values and maps as inputs and outputs of models, from files and from artifacts.

use crate::support::test_data;
use byoc::runtime::value::{Keys, PortValue, StringTensor, values};
use byoc::{Compilation, CompileOptions, Model, Session, Tensor};
use byoc_ir::diag::codes::runtime;
use byoc_ir::tensor::strings::span;

fn strings(shape: &[usize], strings: &[&str]) -> PortValue {
    PortValue::Strings(StringTensor { shape: shape.into(), strings: strings.iter().map(|&s| s.to_owned()).collect() })
}

/// Compiles a model, and loads it from an artifact as well.
fn models(path: &str) -> [Model; 2] {
    let session = Session::builder().build().unwrap();
    let compilation = Compilation::new(&session, test_data(path), &CompileOptions::new().open_dim("n", [])).unwrap();
    let artifact = compilation.to_bytes().unwrap();
    [Model::of(&session, compilation).unwrap(), Model::load(&session, artifact).unwrap()]
}

/// Runs a model with one input.
fn run(model: &Model, input: PortValue) -> Vec<PortValue> {
    let tensors = input.into_tensors(model.inputs()).unwrap();
    values(model.outputs(), model.run(tensors).unwrap().into_tensors()).unwrap()
}

#[test]
fn strings_pass_through_artifacts() {
    for model in models("operators/string_concat_axis/model.onnx") {
        let input = strings(&[2, 3], &["a", "", "ü", "bb", "c", "d"]);
        let expected = strings(&[3, 3], &["a", "", "ü", "bb", "c", "d", "u", "v", "w"]);
        assert_eq!(run(&model, input), [expected]);
        assert_eq!(run(&model, strings(&[0, 3], &[])), [strings(&[1, 3], &["u", "v", "w"])]);
    }
}

#[test]
fn maps_have_the_names_of_classes() {
    for model in models("values/zip_map_strings/model.onnx") {
        let [label, maps] = run(&model, Tensor::from_slice(&[1, 2], &[3f32, -1.0]).into()).try_into().unwrap();
        assert_eq!(label, strings(&[1], &["blue"]));
        let PortValue::Maps(Keys::Strings(keys), scores) = maps else { panic!("expected maps, found {maps:?}") };
        assert_eq!((keys, scores.shape()), (vec!["blue".into(), "green".into(), "red".into()], &[1, 3][..]));
        assert!(scores.as_slice::<f32>()[0] > 0.5);
    }
}

#[test]
fn inputs_of_another_kind_are_errors() {
    let [model, _] = models("operators/string_concat_axis/model.onnx");
    let tensor = |values: &[i64]| Tensor::from_slice(&[1, values.len()], values);
    let error = PortValue::Tensor(tensor(&[1, 2, 3])).into_tensors(model.inputs()).unwrap_err();
    assert_eq!(error.code, runtime::INPUT_DTYPE);
    assert!(error.message.contains("string"), "{error}");
    let short = strings(&[2, 3], &["a"]).into_tensors(model.inputs()).unwrap_err();
    assert_eq!(short.code, runtime::INPUT_SHAPE);

    // Spans that a program passes itself are checked where they are read.
    let bytes = Tensor::from_slice(&[2], &[b'a', 0xff]);
    for spans in [[span(0, 1), span(1, 1), 0], [span(0, 3), 0, 0], [-1, 0, 0]] {
        let outputs = model.run([tensor(&spans), bytes.clone()]).unwrap().into_tensors();
        assert_eq!(values(model.outputs(), outputs).unwrap_err().code, runtime::BAD_STRING);
    }
}
