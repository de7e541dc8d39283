//! Tests of blobs (reproducibility, verification, recompilation for another CPU) and of verdicts.

use super::harness::{Case, f32s};
use crate::backend::CCompiler;
use crate::loader::{Object, ObjectLoader};
use crate::{blob, cpu, toolchain};
use byoc_plugin_api::*;
use byoc_test_support::plugin::services;
use std::path::{Path, PathBuf};

/// Builds a region with a dense layer and an activation.
fn layer() -> Case {
    let mut case = Case::new();
    let x = case.input(&[3, 20]);
    let w = case.constant(&[18, 20]);
    let y = case.op("nn.dense", [x, w], vec![], f32s(&[3, 18]));
    let bias = case.constant(&[18]);
    let y = case.elementwise("add", [y, bias]);
    let y = case.elementwise("tanh", [y]);
    case.output(y);
    case
}

/// Lists the objects in a cache.
fn objects(cache: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(cache.join(toolchain::CACHE_FOLDER)).unwrap().map(|e| e.unwrap().path());
    let mut objects: Vec<PathBuf> = entries.filter(|path| path.extension().is_some_and(|e| e == "so")).collect();
    objects.sort();
    objects
}

#[test]
fn compilation_is_reproducible() {
    let case = layer();
    let blob = case.compile(None).blob;
    let cache = tempfile::tempdir().unwrap();
    let blob_of_cold_cache = case.compile(Some(cache.path())).blob;
    let cached_objects = objects(cache.path());
    assert_eq!(cached_objects.len(), 1, "expected one cached object");
    let blob_of_warm_cache = case.compile(Some(cache.path())).blob;
    assert!(
        blob == blob_of_cold_cache && blob_of_cold_cache == blob_of_warm_cache,
        "expected identical blobs with a cold and a warm cache"
    );
    // A corrupted object is detected and compiled again.
    let path = &cached_objects[0];
    let mut bytes = std::fs::read(path).unwrap();
    bytes[1000] ^= 1;
    std::fs::write(path, bytes).unwrap();
    assert!(case.compile(Some(cache.path())).blob == blob, "expected a corrupted cached object to be recompiled");
}

#[test]
fn opening_an_object_reports_a_missing_symbol() {
    let object = toolchain::toolchain().unwrap().compile("void region_0(void) {}\n", None, &services(1)).unwrap();
    let error = Object::open(&object, "region_0").err().unwrap();
    assert_eq!(error.message.as_str(), "the object of region_0 has no symbol `region_0_pack`");
}

#[test]
fn an_object_for_another_cpu_is_compiled_again() {
    let case = layer();
    let mut compiled_region = case.compile(None);
    let bytes = compiled_region.blob.to_vec();
    let read = blob::read(&bytes).unwrap();
    let mut header = read.header.clone();
    header.features.push("a feature of the year 2050".into());
    // The object is invalid, so the result can only come from the source.
    compiled_region.blob = blob::write(header, read.source, b"for another machine").unwrap().into();
    let result = case.run(&compiled_region, 1);
    let direct_result = case.run(&case.compile(None), 1);
    assert_eq!(result, direct_result);
}

#[test]
fn tiles_for_256_bit_vectors_give_the_same_result() {
    let mut case = Case::new();
    let x = case.input(&[1, 16, 8, 8]);
    let w = case.constant(&[33, 16, 1, 1]);
    let attrs = vec![
        Attr::new("strides", vec![2i64, 2]),
        Attr::new("padding", vec![0i64; 4]),
        Attr::new("dilation", vec![1i64, 1]),
        Attr::new("groups", 1i64),
        Attr::new("data_layout", "NCHW"),
        Attr::new("kernel_layout", "OIHW"),
    ];
    let y = case.op("nn.conv2d", [x, w], attrs, f32s(&[1, 33, 4, 4]));
    case.output(y);
    let compiled_region = case.compile(None);
    let bytes = compiled_region.blob.to_vec();
    let read = blob::read(&bytes).unwrap();
    // Without the AVX-512 macro, the source selects the tiles for 256-bit vectors.
    let narrow_source = read.source.replace("__AVX512F__", "BYOC_NO_SUCH_MACRO");
    let object = toolchain::toolchain().unwrap().compile(&narrow_source, None, &services(1)).unwrap();
    let mut changed_region = compiled_region.clone();
    changed_region.blob = blob::write(read.header, &narrow_source, &object).unwrap().into();
    let (a, b) = (case.run(&compiled_region, 2), case.run(&changed_region, 2));
    for (x, y) in a.iter().zip(&b) {
        assert!((x - y).abs() < 1e-5, "expected {x}, found {y}");
    }
}

#[test]
fn rejects_other_shapes_and_symbols() {
    let case = layer();
    let compiled_region = case.compile(None);
    let services = services(1);
    let request = |symbol: &'static str| LoadRequest {
        symbol,
        blob: &compiled_region.blob,
        constants: &case.constants,
        services: &services,
        options: &serde_json::Value::Null,
    };
    assert!(ObjectLoader.load(&request("region_1")).is_err());
    let executable = ObjectLoader.load(&request("region_0")).unwrap();
    assert!(executable.prepare(&[&[3, 20]]).is_ok());
    assert!(executable.prepare(&[&[4, 20]]).is_err());
    assert!(executable.prepare(&[]).is_err());
}

#[test]
fn refusals_give_code_and_detail() {
    let judge = |case: &Case| {
        let candidate = Candidate {
            kind: CandidateKind::Operator,
            name: "".into(),
            check: "".into(),
            graph: case.graph.clone(),
            constants: case.constants.clone().into(),
            outside_users: 1,
            attrs: RVec::new(),
        };
        match (CCompiler { services: services(1) }).judge(&candidate) {
            Verdict::Supported => "supported".to_owned(),
            Verdict::Refused(refusal) => format!("{}: {}", refusal.code, refusal.detail),
        }
    };
    assert_eq!(judge(&layer()), "supported");

    let mut case = Case::new();
    let x = case.input_of(DType::I64, &[4]);
    let y = case.input_of(DType::I64, &[4]);
    let z = case.elementwise("divide", [x, y]);
    case.output(z);
    let detail = "divide: expected a constant int64 divisor other than 0 and -1, found a runtime value";
    assert_eq!(judge(&case), format!("UnsupportedAttr: {detail}"));

    let mut case = Case::new();
    let x = case.input(&[4]);
    let z = case.elementwise("vision.proposal", [x]);
    case.output(z);
    assert!(judge(&case).starts_with("UnsupportedOp: vision.proposal"));

    let mut case = Case::new();
    let x = case.input(&[1, 4, 5, 5]);
    let w = case.constant(&[4, 4, 1, 1]);
    let attrs = vec![Attr::new("data_layout", "NCHW4c"), Attr::new("kernel_layout", "OIHW")];
    let z = case.op("nn.conv2d", [x, w], attrs, f32s(&[1, 4, 5, 5]));
    case.output(z);
    assert_eq!(judge(&case), "UnsupportedLayout: nn.conv2d: unsupported layouts: data NCHW4c, kernel OIHW");

    let mut case = layer();
    case.graph.nodes[0].outputs[0].dims[0] = Dim::Unknown("batch".into());
    case.graph.inputs[0].ty.dims[0] = Dim::Unknown("batch".into());
    let detail = "DynamicDim: expected dimensions known at compile time, found Tensor[(batch, 20), float32]";
    assert_eq!(judge(&case), detail);
}

#[test]
fn description_lists_each_operator_once() {
    let description = CCompiler { services: services(1) }.describe().unwrap();
    let mut names = description.operators.clone();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), description.operators.len());
    assert!(cpu::features().windows(2).all(|w| w[0] < w[1]), "expected features in ascending order");
}
