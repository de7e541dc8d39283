//! Benches of the ccompiler backend by operator family, and of entire models on the backend and on the host. Throughput
//! counts floating-point operations; families that the backend refuses are marked.

use byoc::runtime::session::Session;
use byoc_benches::models::{PreparedModel, bench_families, prepare};
use criterion::Criterion;

const MODELS: &[&str] = &["resnet18_w16", "mobilenet_v2_025", "bert_small", "vit_small", "unet_small"];

fn main() {
    let mut criterion = byoc_benches::criterion();
    let plugins = byoc_test_support::plugin_dir(&["ccompiler"]);
    for threads in [1, 2] {
        let session = Session::new(&[plugins.path().to_owned()], threads).expect("cannot start threads");
        bench_families(&mut criterion, &format!("ccompiler, {threads} threads"), &session, &["ccompiler"]);
        models(&mut criterion, &session, threads);
    }
    criterion.final_summary();
}

fn models(criterion: &mut Criterion, session: &Session, threads: usize) {
    let mut group = criterion.benchmark_group(format!("models, {threads} threads"));
    for name in MODELS {
        let file = byoc_test_support::workspace().join("tests/models").join(name).join("model.onnx");
        for backends in [&[][..], &["ccompiler"][..]] {
            let PreparedModel { model, inputs } = prepare(session, &file, backends);
            let backend = backends.first().unwrap_or(&"host");
            group.bench_function(format!("{name}, {backend}"), |b| {
                b.iter(|| model.run(&inputs).expect("the run failed"))
            });
        }
    }
    group.finish();
}
