//! Models that are read, written and read again: the recorded results of single operators, and the bytes of a second write.

use crate::support::{max_rel_err, model_folders, run, test_data};
use byoc::compare::{Tolerance, compare_values};
use byoc::driver::written::{ModelStage, at_stage};
use byoc::frontend::folder::TestFolder;
use byoc::frontend::onnx::write::{self, Options};
use byoc::frontend::{LoadOptions, Loaded};
use byoc::runtime::exec::program::Port;
use byoc::runtime::value::{PortValue, values};
use byoc_ir::diag::{Diagnostic, codes};
use byoc_ir::tensor::DType;
use std::path::Path;

/// Writes a model to a folder that has the data sets of `like`.
fn write_beside(model: &Loaded, folder: &Path, like: &Path) -> Result<(), Vec<Diagnostic>> {
    std::fs::create_dir_all(folder).unwrap();
    let set = folder.join("test_data_set_0");
    if !set.exists() {
        std::os::unix::fs::symlink(std::path::absolute(like).unwrap().join("test_data_set_0"), set).unwrap();
    }
    write::write(&model.module, &model.signature, &Options::default())?
        .write_file(&folder.join("model.onnx"))
        .map_err(|error| vec![error])
}

/// Returns the largest relative error of the outputs of the model in a folder.
fn error_of(folder: &TestFolder, model: &Loaded) -> Result<f64, String> {
    let set = &folder.sets[0];
    let inputs = set.read_inputs(&model.signature).map_err(|e| e.to_string())?;
    let expected = set.read_outputs(&model.signature.outputs).map_err(|e| e.to_string())?;
    let actual = run(&model.module, &inputs)?;
    let ports: Vec<Port> = model.signature.outputs.iter().map(Port::declared).collect();
    let values = |tensors| values(&ports, tensors).map_err(|e| e.to_string());
    let error = |(actual, expected): (PortValue, PortValue)| match (&actual, &expected) {
        (PortValue::Tensor(actual), PortValue::Tensor(expected)) => max_rel_err(actual, expected),
        _ => compare_values(&actual, &expected, Tolerance::AllClose { rtol: 0.0, atol: 0.0 }).max_rel_err,
    };
    Ok(values(actual)?.into_iter().zip(values(expected)?).map(error).fold(0.0, f64::max))
}

fn load(folder: &TestFolder) -> Result<Loaded, String> {
    folder.load(&LoadOptions::default()).map_err(|errors| errors[0].to_string())
}

#[test]
fn written_operators_match_recorded_results() {
    let dir = tempfile::tempdir().unwrap();
    let (mut failures, mut refused, mut same, mut count) = (Vec::new(), Vec::new(), 0, 0);
    let entries = std::fs::read_dir(test_data("operators")).unwrap().map(|e| e.unwrap().path());
    let mut folders: Vec<_> = entries.filter(|p| p.is_dir()).collect();
    folders.sort();
    for path in folders {
        let original = TestFolder::open(&path).unwrap();
        let model = load(&original).unwrap();
        let folder = dir.path().join(&original.name);
        if let Err(errors) = write_beside(&model, &folder, &path) {
            assert_eq!(errors[0].code, codes::frontends::NO_ONNX_FORM, "{}: {}", original.name, errors[0]);
            refused.push(original.name);
            continue;
        }
        count += 1;
        let written = TestFolder::open(&folder).unwrap();
        let first = std::fs::read(folder.join("model.onnx")).unwrap();
        let outcome = load(&written).and_then(|again| {
            let error = error_of(&written, &again)?;
            write_beside(&again, &folder, &path).map_err(|errors| errors[0].to_string())?;
            Ok(error)
        });
        same += usize::from(std::fs::read(folder.join("model.onnx")).unwrap() == first);
        match outcome {
            Ok(error) if error <= 1e-5 => {}
            Ok(error) => failures.push(format!("{}: expected an error of at most 1e-5, found {error:e}", written.name)),
            Err(reason) => failures.push(format!("{}: {reason}", written.name)),
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
    assert!(refused.len() <= MAX_REFUSED, "expected at most {MAX_REFUSED} refused models, found {refused:#?}");
    assert!(
        4 * same >= 3 * count,
        "expected most of {count} models to be written as the same bytes again, found {same}"
    );
}

/// Number of models with an operator that is not written: sequences, tokens and ranks of strings.
const MAX_REFUSED: usize = 30;

#[test]
fn models_are_the_same_bytes_when_written_twice() {
    for path in model_folders() {
        let folder = TestFolder::open(&path).unwrap();
        let model = load(&folder).unwrap();
        let bytes = || {
            let mut bytes = Vec::new();
            let model = write::write(&model.module, &model.signature, &Options::default()).unwrap();
            model.write_to(&mut bytes).unwrap();
            bytes
        };
        assert!(bytes() == bytes(), "{}", folder.name);
    }
}

#[test]
fn large_weights_stand_in_a_file_beside_the_model() {
    let dir = tempfile::tempdir().unwrap();
    let path = test_data("models/resnet18_w16");
    let folder = TestFolder::open(&path).unwrap();
    let model = load(&folder).unwrap();
    let options = Options { external_from: Some(1 << 16), ..Options::default() };
    let written = write::write(&model.module, &model.signature, &options).unwrap();
    let file = dir.path().join("model.onnx");
    written.write_file(&file).unwrap();
    let data = dir.path().join("model.onnx.data");
    assert!(std::fs::metadata(&data).unwrap().len() > 10 * std::fs::metadata(&file).unwrap().len());
    assert!(written.write_to(&mut Vec::new()).is_err(), "a pipe has no file beside it");
    let embedded = write::write(&model.module, &model.signature, &Options::default()).unwrap();
    let embedded_file = dir.path().join("embedded.onnx");
    embedded.write_file(&embedded_file).unwrap();
    let read = |path: &Path| byoc::frontend::load(path, &LoadOptions::default()).unwrap();
    let (first, second) = (read(&file), read(&embedded_file));
    assert!(!first.is_self_contained && second.is_self_contained);
    let inputs = folder.sets[0].read_inputs(&model.signature).unwrap();
    assert_eq!(run(&first.module, &inputs).unwrap(), run(&second.module, &inputs).unwrap());
    // Nothing remains where the data cannot be written.
    let other = tempfile::tempdir().unwrap();
    std::fs::create_dir(other.path().join("model.onnx.data")).unwrap();
    let error = written.write_file(&other.path().join("model.onnx")).unwrap_err();
    assert_eq!(error.code, codes::frontends::CANNOT_WRITE);
    assert_eq!(std::fs::read_dir(other.path()).unwrap().count(), 1);
}

/// Compilers that dequantize bytes alone get the biases of quantized layers in float32.
#[test]
fn biases_are_float_on_request() {
    let file = test_data("lowprec/fire_qdq").join("model.onnx");
    let model = byoc::frontend::load(&file, &LoadOptions::default()).unwrap();
    let model = at_stage(model, ModelStage::Quantized).unwrap();
    let read = |float_bias| {
        let options = Options { float_bias, ..Options::default() };
        let written = write::write(&model.module, &model.signature, &options).unwrap();
        let mut bytes = Vec::new();
        written.write_to(&mut bytes).unwrap();
        let biases =
            written.weights.iter().filter(|(_, tensor)| tensor.dtype() == DType::I32 && tensor.shape().len() == 1);
        (biases.count(), byoc::frontend::load_bytes(bytes.into(), None, &LoadOptions::default()).unwrap())
    };
    let ((int_biases, int_model), (float_biases, float_model)) = (read(false), read(true));
    assert_eq!((int_biases, float_biases), (3, 0));
    let set = &TestFolder::open(file.parent().unwrap()).unwrap().sets[0];
    let inputs = set.read_inputs(&model.signature).unwrap();
    let [expected, actual] = [int_model, float_model].map(|model| run(&model.module, &inputs).unwrap());
    for (actual, expected) in actual.iter().zip(&expected) {
        assert!(max_rel_err(actual, expected) <= 0.02, "{}", max_rel_err(actual, expected));
    }
}
