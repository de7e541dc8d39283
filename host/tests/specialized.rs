//! Specialized programs for fixed values of symbolic dimensions, in one artifact with the symbolic program.

mod support;

use byoc::build::{self, BuildOptions, Compiled};
use byoc::frontend::folder::TestFolder;
use byoc::frontend::{self, LoadOptions};
use byoc::runtime::artifact;
use byoc::runtime::model::Model;
use byoc::runtime::session::Session;
use std::collections::BTreeMap;
use support::{max_rel_err, test_data};

/// Builds the model with the dimensions in `dims` bound; the remaining dimensions stay symbolic.
fn build(session: &Session, dir: &TestFolder, dims: &BTreeMap<String, usize>) -> Compiled {
    let open = ["batch", "sequence"].into_iter().filter(|name| !dims.contains_key(*name)).map(String::from).collect();
    let options = LoadOptions { dims: dims.clone(), open, ..LoadOptions::default() };
    let loaded = frontend::load(&dir.model, &options).unwrap();
    build::build(session, loaded, &BuildOptions::default(), &mut |_| {}).unwrap().compiled
}

#[test]
fn inputs_run_on_the_program_of_their_sizes() {
    let session = Session::without_plugins(2).unwrap();
    let dir = TestFolder::open(&test_data("open/bert_open")).unwrap();
    let mut compiled = build(&session, &dir, &BTreeMap::new());
    let values = [("batch".to_owned(), vec![1, 2]), ("sequence".to_owned(), vec![7, 16])];
    for dims in build::combinations(&values).unwrap() {
        let variant = build(&session, &dir, &dims);
        compiled.add_variant(dims, variant);
    }
    let temp_dir = tempfile::tempdir().unwrap();
    let path = temp_dir.path().join("bert.byoc");
    artifact::write(&path, &compiled).unwrap();
    let opened = artifact::open(&path).unwrap();
    let weight_bytes: usize = compiled.constants.iter().map(|constant| constant.bytes().len()).sum();
    let entry = opened.manifest.entries.iter().find(|entry| entry.name == "weights.safetensors").unwrap();
    let stored_bytes = entry.bytes as usize;
    assert!(
        stored_bytes < weight_bytes * 3 / 2,
        "expected weights to be stored once, found {stored_bytes} bytes for {weight_bytes} bytes of weights"
    );
    let opened = opened.into_compiled();
    assert_eq!(opened.variants.len(), 4);
    let (model, _) = Model::load(&session, opened, None).unwrap();
    let mut fixed_count = 0;
    for set in &dir.sets {
        let loaded = dir.load(&LoadOptions::default()).unwrap();
        let inputs = set.read_inputs(&loaded.signature.inputs).unwrap();
        let expected = set.read_outputs(&loaded.signature.outputs).unwrap();
        let actual = model.run(&inputs).unwrap();
        for (actual, expected) in actual.iter().zip(&expected) {
            assert!(max_rel_err(actual, expected) <= 1e-5);
        }
        let ports = &model.executor_for(&inputs).program().inputs;
        let is_fixed = ports[0].ty.shape().is_some();
        let shape = inputs[0].shape();
        assert_eq!(is_fixed, [1, 2].contains(&shape[0]) && [7, 16].contains(&shape[1]), "{shape:?}");
        fixed_count += usize::from(is_fixed);
    }
    assert_eq!((fixed_count, dir.sets.len()), (2, 4));
}
