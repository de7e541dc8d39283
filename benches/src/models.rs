//! Loading and building of models through the library, and benches of their runs.

use crate::families::{FAMILIES, Work};
use byoc::driver::{BuildOptions, build};
use byoc::frontend::{self, LoadOptions};
use byoc::io::random;
use byoc::runtime::model::Model;
use byoc::runtime::session::Session;
use byoc_ir::tensor::Tensor;
use criterion::{Criterion, Throughput};
use std::path::Path;

/// Loaded model, with matching inputs.
pub struct PreparedModel {
    /// Model compiled for the requested backends.
    pub model: Model,
    /// Random inputs.
    pub inputs: Vec<Tensor>,
}

/// Builds and loads the model in `file` for `backends`.
///
/// # Panics
/// If the model does not build.
pub fn prepare(session: &Session, file: &Path, backends: &[&str]) -> PreparedModel {
    let fail = |action: &str| format!("cannot {action} {}", file.display());
    let loaded = frontend::load(file, &LoadOptions::default()).unwrap_or_else(|e| panic!("{}: {e:?}", fail("load")));
    let backends = backends.iter().map(|&name| name.to_owned()).collect();
    let options = BuildOptions { backends, ..BuildOptions::default() };
    let output = build(session, loaded, &options, &mut |_| {}).unwrap_or_else(|e| panic!("{}: {e:?}", fail("build")));
    let (model, _) = Model::load(session, output.compiled, None).unwrap_or_else(|e| panic!("{}: {e:?}", fail("load")));
    let input = |(seed, port): (usize, &byoc::runtime::exec::program::Port)| {
        let shape: Option<Vec<usize>> = port.ty.dims.iter().map(|dim| dim.fixed()).collect();
        let shape = shape.expect("expected inputs with fixed dimensions");
        random::tensor(port.ty.dtype, &shape, seed as u64)
    };
    let inputs = model.inputs().iter().enumerate().map(input).collect();
    PreparedModel { model, inputs }
}

/// Measures every pattern on `backend`. Patterns that do not become a single region are marked.
///
/// # Panics
/// If a program does not build or run.
pub fn bench_patterns(criterion: &mut Criterion, group: &str, session: &Session, backend: &str) {
    let dir = byoc_test_support::temporary_folder();
    let mut group = criterion.benchmark_group(group);
    for (name, module) in crate::patterns::all() {
        let file = dir.path().join("pattern.relay");
        frontend::relay::write(&file, &module).expect("cannot write the module");
        let PreparedModel { model, inputs } = prepare(session, &file, &[backend]);
        group.throughput(Throughput::Elements(model.offload_flops));
        let is_one_region = model.regions == 1 && model.offload_share >= 1.0;
        let name = if is_one_region { name } else { format!("{name} (partly on the host)") };
        group.bench_function(name, |b| b.iter(|| model.run(&inputs).expect("the run failed")));
    }
    group.finish();
}

/// Measures every family on `backends`.
///
/// # Panics
/// If a program does not build or run.
pub fn bench_families(criterion: &mut Criterion, group: &str, session: &Session, backends: &[&str]) {
    let dir = byoc_test_support::temporary_folder();
    let mut group = criterion.benchmark_group(group);
    for family in FAMILIES {
        let file = dir.path().join("family.relay");
        std::fs::write(&file, family.text()).expect("cannot write the module");
        let PreparedModel { model, inputs } = prepare(session, &file, backends);
        group.throughput(match family.work {
            // Criterion counts elements; here one element is one operation.
            Work::Flops(count) => Throughput::Elements(count),
            Work::Bytes(count) => Throughput::Bytes(count),
        });
        let location = if model.regions > 0 { "" } else { " (on the host)" };
        let name = if backends.is_empty() { family.name.to_owned() } else { format!("{}{location}", family.name) };
        group.bench_function(name, |b| b.iter(|| model.run(&inputs).expect("the run failed")));
    }
    group.finish();
}
