//! Tests of the host services for plugins, and of failures on either side.

use crate::common::{TestHost, single_op_graph};
use byoc_plugin_api::{
    Call, Constant, DType, Error, Executable, Graph, HostServices, LoadRequest, Region, Result, Services, TensorMut,
    TensorRef, host,
};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicUsize, Ordering};
use tracing::Level;

#[test]
fn forwards_messages_of_a_plugin() {
    let test_host = TestHost::default();
    let services = Services::new(test_host.clone());
    let plugin = host::load(&byoc_test_support::test_plugin("talker"), &services).unwrap();
    assert_eq!((plugin.name.as_str(), plugin.version.as_str()), ("talker", "2.1.0"));
    assert_eq!(plugin.api_version, env!("CARGO_PKG_VERSION"));
    let codegen = plugin.codegen("talker").unwrap();
    codegen.describe().unwrap();
    let graph = single_op_graph("f", "nn.relu", &[5]);
    let options = json!({ "cache_dir": "/tmp", "threads": 2 });
    let compiled_region = codegen.compile(&Region { graph: &graph, constants: &[], options: &options }).unwrap();
    let source = compiled_region.source.as_ref().into_option().unwrap();
    assert_eq!(serde_json::from_str::<Value>(&source.text).unwrap(), options);
    test_host.cancelled.store(true, Ordering::Relaxed);
    let error = codegen.compile(&Region { graph: &graph, constants: &[], options: &options }).unwrap_err();
    assert_eq!((error.code.as_str(), error.entry.as_str()), (Error::CANCELLED, "compile"));
    let facts = plugin.registrations.iter().find(|registration| registration.name == "talker.facts").unwrap();
    let host::RegisteredObject::Data(facts) = &facts.object else {
        panic!("expected registered data, found another object")
    };
    assert_eq!(**facts, json!({ "heard": env!("CARGO_PKG_VERSION") }).to_string());
    let request = LoadRequest { symbol: "f", blob: &[], constants: &[], options: &options, services: &services };
    let executable = plugin.loader("talker").unwrap().load(&request).unwrap();

    let preparation = executable.prepare(&[&[1000]]).unwrap();
    let mut sum = [0u8; 8];
    let mut dims = [1];
    let mut memory = vec![0; preparation.workspace];
    executable
        .run(Call {
            inputs: &[TensorRef::new(DType::U8, &[1000], &[0; 1000])],
            outputs: &mut [TensorMut::new(DType::I64, &mut dims, &mut sum)],
            workspace: &mut memory,
            plan: preparation.plan,
        })
        .unwrap();
    assert_eq!(i64::from_ne_bytes(sum), 499_500);

    let recording = test_host.recording.lock().unwrap();
    let lines: Vec<(Level, &str, &str)> =
        recording.lines.iter().map(|(level, target, message)| (*level, target.as_str(), message.as_str())).collect();
    let register_fields = r#"registers file=Some("libtalker.so")"#;
    let compile_message = (Level::WARN, "talker::codegen", "compiles f nodes=2");
    assert_eq!(lines, [(Level::INFO, "talker", register_fields), compile_message, compile_message]);
    assert_eq!(recording.events, [("loaded".to_owned(), json!({ "symbol": "f", "options": options }))]);
    assert_eq!(recording.counters.get("sums"), Some(&1));
}

#[test]
fn runs_every_task_once_and_returns_the_first_failure() {
    let services = Services::new(TestHost::default());
    let calls: Vec<AtomicUsize> = (0..100).map(|_| AtomicUsize::new(0)).collect();
    let count = |index: usize| {
        calls[index].fetch_add(1, Ordering::Relaxed);
    };
    services.parallel_for(100, count).unwrap();
    assert!(calls.iter().all(|count| count.load(Ordering::Relaxed) == 1));
    services.parallel_for(0, |_| panic!("expected no task for an empty range")).unwrap();

    let error =
        services.try_parallel_for(100, |index| if index == 7 { Err(Error::new("seven")) } else { Ok(()) }).unwrap_err();
    assert_eq!((error.message.as_str(), error.panicked), ("seven", false));
    let error = services.parallel_for(2, |index| assert!(index != 1, "one")).unwrap_err();
    assert_eq!((error.message.as_str(), error.panicked), ("one", true));
    assert!(error.location.contains("tests/boundary/services.rs:"), "{}", error.location);
}

#[test]
fn worker_runs_one_task_at_a_time() {
    let services = Services::new(TestHost::default());
    for count in [0, 1, 3, 4, 1000] {
        let calls: Vec<AtomicUsize> = (0..count).map(|_| AtomicUsize::new(0)).collect();
        let active_tasks: Vec<AtomicUsize> = (0..services.num_threads()).map(|_| AtomicUsize::new(0)).collect();
        services
            .parallel_for_workers(count, |worker, index| {
                assert_eq!(
                    active_tasks[worker].fetch_add(1, Ordering::SeqCst),
                    0,
                    "expected one task at a time on worker {worker}"
                );
                calls[index].fetch_add(1, Ordering::Relaxed);
                active_tasks[worker].fetch_sub(1, Ordering::SeqCst);
            })
            .unwrap();
        assert!(calls.iter().all(|count| count.load(Ordering::Relaxed) == 1), "{count}");
    }
    let error = services.parallel_for_workers(100, |_, index| assert!(index != 7, "seven")).unwrap_err();
    assert_eq!((error.message.as_str(), error.panicked), ("seven", true));
    // If the host runs the loop inline, the first worker claims all indices.
    let call_count = AtomicUsize::new(0);
    let error = Services::new(BrokenHost).parallel_for_workers(9, |worker, _| {
        assert_eq!(worker, 0);
        call_count.fetch_add(1, Ordering::Relaxed);
    });
    assert_eq!((call_count.into_inner(), error.unwrap_err().message.as_str()), (9, "in parallel_for"));
}

/// Host that panics in every service.
struct BrokenHost;

impl HostServices for BrokenHost {
    fn num_threads(&self) -> usize {
        panic!("in num_threads")
    }

    fn parallel_for(&self, _: usize, task: &(dyn Fn(usize) + Sync)) {
        task(0);
        panic!("in parallel_for")
    }

    fn event(&self, _: &str, _: &Value) {
        panic!("in event")
    }

    fn counter(&self, _: &str, _: u64) {
        panic!("in counter")
    }

    fn log_level(&self) -> Option<Level> {
        panic!("in log_level")
    }

    fn log(&self, _: Level, _: &str, _: &str) {
        panic!("in log")
    }

    fn reference(&self, _: &Graph, _: &[Constant]) -> Result<Box<dyn Executable>> {
        panic!("in reference")
    }
}

#[test]
fn panicking_host_does_not_crash_the_plugin() {
    let services = Services::new(BrokenHost);
    assert_eq!(services.num_threads(), 1);
    services.event("e", &json!({}));
    services.counter("c", 1);
    assert_eq!(services.log_level(), None);
    services.log(Level::ERROR, "t", "m");
    assert!(services.get_service("s").is_none());
    let error = services.parallel_for(4, |_| ()).unwrap_err();
    assert_eq!(
        (error.plugin.as_str(), error.entry.as_str(), error.message.as_str()),
        ("host", "parallel_for", "in parallel_for")
    );
    let error = services.reference(&single_op_graph("f", "nn.relu", &[1]), &[]).err().unwrap();
    assert_eq!((error.entry.as_str(), error.message.as_str(), error.panicked), ("reference", "in reference", true));
}

#[test]
fn reference_run_computes_a_graph() {
    let services = Services::new(TestHost::default());
    let graph = single_op_graph("f", "nn.relu", &[2]);
    let input = [(-1.0f32).to_ne_bytes(), 2.0f32.to_ne_bytes()].concat();
    let mut dims = [2];
    let mut output = [1u8; 8];
    let inputs = [TensorRef::new(DType::F32, &[2], &input)];
    services.reference_run(&graph, &[], &inputs, &mut [TensorMut::new(DType::F32, &mut dims, &mut output)]).unwrap();
    assert_eq!(output, *[0.0f32.to_ne_bytes(), 2.0f32.to_ne_bytes()].concat());
}
