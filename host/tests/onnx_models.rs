//! Test models: import, type check and evaluation with the naive references, compared with the outputs of PyTorch.

use crate::support::{max_rel_err, model_folders, run, test_data};
use byoc::frontend::folder::TestFolder;
use byoc::frontend::{self, LoadOptions};
use byoc_ir::ir::{Expr, Type};
use byoc_ir::tensor::{DType, Tensor};

/// Tolerance for the rounding errors of float32 over a whole model.
const MAX_REL_ERR: f64 = 5e-4;

#[test]
fn types_of_models_match_recorded_outputs() {
    let dirs = model_folders();
    assert_eq!(dirs.len(), 15);
    for path in dirs {
        let dir = TestFolder::open(&path).unwrap();
        let loaded = dir.load(&LoadOptions::default()).unwrap_or_else(|e| panic!("{}: {e:?}", dir.name));
        let outputs = dir.sets[0].read_outputs(&loaded.signature.outputs).unwrap();
        let main = loaded.module.main().unwrap();
        let types = match loaded.module.ty(main.body) {
            Type::Tuple(fields) => fields.to_vec(),
            other => vec![other.clone()],
        };
        let expected_types: Vec<Type> = outputs.iter().map(|t| Type::tensor(t.dtype(), t.shape())).collect();
        assert_eq!(types, expected_types, "{}", dir.name);
        assert!(loaded.warnings.is_empty(), "{}: expected no warnings, found {:?}", dir.name, loaded.warnings);
    }
}

#[test]
fn models_match_pytorch() {
    for path in model_folders() {
        let dir = TestFolder::open(&path).unwrap();
        let loaded = dir.load(&LoadOptions::default()).unwrap_or_else(|e| panic!("{}: {e:?}", dir.name));
        let inputs = dir.sets[0].read_inputs(&loaded.signature).unwrap();
        let expected = dir.sets[0].read_outputs(&loaded.signature.outputs).unwrap();
        let actual = run(&loaded.module, &inputs).unwrap_or_else(|e| panic!("{}: {e:?}", dir.name));
        assert_eq!(actual.len(), expected.len());
        for (actual, expected) in actual.iter().zip(&expected) {
            let error = max_rel_err(actual, expected);
            assert!(
                error <= MAX_REL_ERR,
                "{}: expected a relative error of at most {MAX_REL_ERR:e}, found {error:e}",
                dir.name
            );
        }
    }
}

#[test]
fn folds_shape_arithmetic() {
    let dir = TestFolder::open(&test_data("models/swin_small")).unwrap();
    let loaded = dir.load(&LoadOptions::default()).unwrap();
    let live_exprs = loaded.module.live();
    let calls =
        loaded.module.nodes.iter().filter(|(id, _)| live_exprs[*id]).filter_map(|(_, node)| node.expr.as_op_call());
    let names: Vec<&str> = calls.map(|(op, _)| byoc_ir::op::get(op).name).collect();
    for folded_op in ["shape_of", "full", "broadcast_to", "arange", "floor_mod", "scatter_nd", "equal"] {
        assert!(!names.contains(&folded_op), "expected no {folded_op}, found one among {} calls", names.len());
    }
    assert!(names.len() < 400, "expected fewer than 400 calls for 2317 nodes, found {}", names.len());
}

#[test]
fn every_operator_of_file_is_an_origin() {
    for path in model_folders() {
        let dir = TestFolder::open(&path).unwrap();
        let loaded = dir.load(&LoadOptions::default()).unwrap();
        let module = &loaded.module;
        let live_exprs = module.live();
        let mut seen_sources = std::collections::BTreeSet::new();
        for (id, node) in module.nodes.iter().filter(|(id, _)| live_exprs[*id]) {
            let is_call = matches!(module.expr(id), Expr::Call(_));
            assert!(
                !is_call || !module.origins.get(node.origin).is_empty(),
                "{}: expected an origin for every call",
                dir.name
            );
            seen_sources.extend(module.origins.get(node.origin).iter().copied());
        }
        let sources = module.origins.sources().iter();
        let missing_names: Vec<&str> =
            sources.filter(|(id, _)| !seen_sources.contains(id)).map(|(_, s)| &*s.name).collect();
        assert!(
            missing_names.is_empty(),
            "{}: expected every operator as an origin, found none for {missing_names:?}",
            dir.name
        );
    }
}

#[test]
fn classifies_digits_like_pytorch() {
    let path = test_data("digits/digits.onnx");
    let arrays = byoc::io::npz::read(&test_data("digits/test.npz")).unwrap();
    let array = |array_name: &str| {
        let entry = arrays.iter().find(|(name, _)| name == array_name);
        &entry.unwrap_or_else(|| panic!("expected an array \"{array_name}\", found none")).1
    };
    let (images, labels) = (array("image"), array("label"));
    let mut options = LoadOptions::default();
    options.dims.insert("batch".into(), images.shape()[0]);
    let loaded = frontend::load(&path, &options).unwrap();
    let logits: &Tensor = &run(&loaded.module, std::slice::from_ref(images)).unwrap()[0];
    let class_count = logits.shape()[1];
    let correct_count = logits
        .as_slice::<f32>()
        .chunks(class_count)
        .zip(labels.view().to_i64s().unwrap())
        .filter(|(row, label)| (0..class_count).max_by(|&a, &b| row[a].total_cmp(&row[b])) == Some(*label as usize))
        .count();
    assert_eq!(correct_count, 357, "expected 357 correct predictions for {} images", images.shape()[0]);
}

/// If a GRU resets its state before the matrix product, each step reads two parts of the recurrent weights. If every
/// step sliced the weights, folding would create separate constants for every step.
#[test]
fn slices_recurrent_weights_once() {
    let dir = TestFolder::open(&test_data("operators/gru")).unwrap();
    let loaded = dir.load(&LoadOptions::default()).unwrap();
    let module = &loaded.module;
    let of = |shape: &[usize]| {
        module.nodes.iter().filter(|(id, _)| *module.ty(*id) == Type::tensor(DType::F32, shape)).count()
    };
    // 4 steps with a hidden size of 5: the recurrent weights of two gates are [10, 5], those of the third [5, 5].
    assert_eq!((of(&[10, 5]), of(&[5, 5])), (1, 1));
}
