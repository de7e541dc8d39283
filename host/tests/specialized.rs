//! Specialized programs for fixed values of symbolic dimensions, in one artifact with the symbolic program.

use crate::support::{max_rel_err, test_data};
use byoc::driver::{self, BuildOptions, Compiled};
use byoc::frontend::folder::TestFolder;
use byoc::frontend::{self, LoadOptions};
use byoc::runtime::artifact;
use byoc::runtime::model::Model;
use byoc::runtime::session::Session;

/// Builds the programs of a model with symbolic dimensions, and those for the sizes in `specialized`.
fn build(session: &Session, dir: &TestFolder, specialized: &[(String, Vec<usize>)]) -> Compiled {
    let open = ["batch", "sequence"].map(String::from).into();
    let load = LoadOptions { open, ..LoadOptions::default() };
    let read = |load: &LoadOptions| frontend::load(&dir.model, load);
    let build = |model| driver::build(session, model, &BuildOptions::default(), &mut |_| {});
    driver::build_programs(&load, specialized, read, build).unwrap().compiled
}

#[test]
fn inputs_run_on_the_program_of_their_sizes() {
    let session = Session::without_plugins(2).unwrap();
    let dir = TestFolder::open(&test_data("open/bert_open")).unwrap();
    let sizes = [("batch".to_owned(), vec![1, 2]), ("sequence".to_owned(), vec![7, 16])];
    let compiled = build(&session, &dir, &sizes);
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
        let inputs = set.read_inputs(&loaded.signature).unwrap();
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

#[test]
fn programs_with_one_fixed_dimension_serve_every_size_of_the_other() {
    let session = Session::without_plugins(2).unwrap();
    let dir = TestFolder::open(&test_data("open/bert_open")).unwrap();
    let compiled = build(&session, &dir, &[("batch".to_owned(), vec![1, 8])]);
    let (model, _) = Model::load(&session, compiled, None).unwrap();
    let loaded = dir.load(&LoadOptions::default()).unwrap();
    let batches = dir.sets.iter().map(|set| {
        let inputs = set.read_inputs(&loaded.signature).unwrap();
        let expected = set.read_outputs(&loaded.signature.outputs).unwrap();
        let actual = model.run(&inputs).unwrap();
        assert!(max_rel_err(&actual[0], &expected[0]) <= 1e-5);
        let dims = &model.executor_for(&inputs).program().inputs[0].ty.dims;
        (inputs[0].shape()[0], dims[0].fixed(), dims[1].fixed())
    });
    let expected = [(2, None, None), (1, Some(1), None), (3, None, None), (8, Some(8), None)];
    assert_eq!(batches.collect::<Vec<_>>(), expected);
}
