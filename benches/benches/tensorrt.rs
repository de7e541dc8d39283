//! Benches of the tensorrt backend on the CPU: compilation of models to engines, verdicts of the parser included. Runs need
//! a GPU, and are measured where there is one.

#![expect(clippy::print_stdout, reason = "a bench prints its figures")]

use byoc::driver::{BuildOptions, BuildOutput, build};
use byoc::frontend::{self, LoadOptions};
use byoc::runtime::session::Session;
use byoc_benches::models::{PreparedModel, prepare};
use std::path::{Path, PathBuf};

const MODELS: &[&str] = &["resnet18_w16", "mobilenet_v2_025", "bert_small", "unet_small"];
/// Capability of the engines: that of no GPU in particular, as none is needed.
const CAPABILITY: &str = "8.9";

fn main() {
    let Some(library) = byoc_test_support::tensorrt() else {
        println!("skipped: TensorRT for RTX is not installed; fetch it with `cargo xtask tensorrt`");
        return;
    };
    let plugins = byoc_test_support::plugin_dir(&["tensorrt"]);
    for file in std::fs::read_dir(&library).into_iter().flatten().filter_map(|entry| entry.ok()) {
        let link = plugins.path().join(file.file_name());
        std::os::unix::fs::symlink(file.path(), link).expect("cannot create a symlink to the library");
    }
    let mut criterion = byoc_benches::criterion();
    let session = Session::new(&[plugins.path().to_owned()], 2).expect("cannot start threads");
    let mut group = criterion.benchmark_group(format!("compilation for tensorrt, capability {CAPABILITY}"));
    for name in MODELS {
        let regions = compile(&session, &file(name)).compiled.regions.len();
        group.bench_function(format!("{name}, {regions} regions"), |b| b.iter(|| compile(&session, &file(name))));
    }
    group.finish();
    let backend = byoc::driver::backend::Backend::find(&session.registry, "tensorrt").expect("expected the backend");
    if backend.devices().is_ok_and(|devices| devices.is_empty()) {
        println!("skipped: runs, as this machine has no NVIDIA GPU");
    } else {
        let mut group = criterion.benchmark_group("models on tensorrt");
        for name in MODELS {
            let PreparedModel { model, inputs } = prepare(&session, &file(name), &["tensorrt"]);
            group.bench_function(*name, |b| b.iter(|| model.run(&inputs).expect("the run failed")));
        }
        group.finish();
    }
    criterion.final_summary();
}

fn file(name: &str) -> PathBuf {
    byoc_test_support::workspace().join("tests/models").join(name).join("model.onnx")
}

fn compile(session: &Session, file: &Path) -> BuildOutput {
    let loaded = frontend::load(file, &LoadOptions::default()).expect("cannot load the model");
    let options = BuildOptions {
        backends: vec!["tensorrt".to_owned()],
        backend_options: vec![("tensorrt".into(), "capability".into(), CAPABILITY.into())],
        ..BuildOptions::default()
    };
    build(session, loaded, &options, &mut |_| {}).expect("cannot build the model")
}
