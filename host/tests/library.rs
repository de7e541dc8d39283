//! Library interface: models from files and bytes, inputs by name and order, results in caller-provided memory,
//! futures, errors.

use byoc::runtime::tensor::{AlignedBytes, random};
use byoc::{
    Cancel, Compilation, CompileOptions, DType, Error, Inputs, Model, RunOptions, Session, Stage, Tensor, TensorView,
    TensorViewMut,
};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::future::Future;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

/// Allocator that counts the allocations of each thread.
struct CountingAllocator;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: every method forwards its arguments unchanged to the system allocator, which satisfies the contract of
// `GlobalAlloc`.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller upholds the contract of `GlobalAlloc::alloc`, which is also that of `System::alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller upholds the contract of `GlobalAlloc::dealloc`, and `System` allocated `memory` in
        // `alloc`.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

const RELU: &str = "#[version = \"0.0.5\"]\ndef @main(%x: Tensor[(1, 4), float32]) { nn.relu(%x) }\n";
const SUM: &str = "#[version = \"0.0.5\"]\n\
    def @main(%a: Tensor[(n, 2), float32], %b: Tensor[(n, 2), float32]) { subtract(%a, %b) }\n";
const ENDLESS: &str = "#[version = \"0.0.5\"]\n\
    def @spin(%i: Tensor[(), int32]) -> Tensor[(), int32] {\n  if (less(%i, 0)) { %i } else { @spin(%i) }\n}\n\
    def @main(%i: Tensor[(), int32]) { @spin(%i) }\n";

fn compile(session: &Session, text: &str, options: &CompileOptions) -> Result<Model, Error> {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("model.relay");
    std::fs::write(&file, text).unwrap();
    Model::compile(session, &file, options)
}

fn session() -> Session {
    Session::builder().threads(1).build().unwrap()
}

fn digits() -> PathBuf {
    byoc_test_support::workspace().join("tests/digits/digits.onnx")
}

/// Polls a future to completion on the current thread.
fn block_on<F: Future>(future: F) -> F::Output {
    #[derive(Default)]
    struct Signal(Mutex<bool>, Condvar);
    impl Wake for Signal {
        fn wake(self: Arc<Self>) {
            *self.0.lock().unwrap() = true;
            self.1.notify_one();
        }
    }
    let signal = Arc::new(Signal::default());
    let waker = Waker::from(signal.clone());
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return value;
        }
        let mut is_woken = signal.0.lock().unwrap();
        while !*is_woken {
            is_woken = signal.1.wait(is_woken).unwrap();
        }
        *is_woken = false;
    }
}

#[test]
fn inputs_by_order_and_by_name_shared_and_borrowed_are_equal() {
    let options = CompileOptions::new().dim("n", 1);
    let model = compile(&session(), SUM, &options).unwrap();
    let (a, b) = (Tensor::from_slice(&[1, 2], &[5.0f32, 7.0]), Tensor::from_slice(&[1, 2], &[1.0f32, 2.0]));
    let view = TensorView::of(&[1, 2], &[1.0f32, 2.0]);
    let runs = [
        model.run([&a, &b]),
        model.run([("b", &b), ("a", &a)]),
        model.run(vec![a.clone(), b.clone()]),
        model.run(Inputs::named([("b", byoc::Input::from(view)), ("a", byoc::Input::from(&a))])),
    ];
    for outputs in runs {
        let outputs = outputs.unwrap();
        assert_eq!(outputs[0].as_slice::<f32>(), [4.0, 5.0]);
        let name = model.outputs()[0].name.as_str();
        assert_eq!(outputs.get(name), Some(&outputs[0]));
        assert!(outputs.get("nothing").is_none() && outputs.len() == 1);
    }
}

#[test]
fn an_output_that_is_an_input_survives_the_next_run() {
    let text = "#[version = \"0.0.5\"]\ndef @main(%x: Tensor[(1, 4), float32]) { reshape(%x, newshape=[4]) }\n";
    let model = compile(&session(), text, &CompileOptions::new()).unwrap();
    let first_outputs = model.run([TensorView::of(&[1, 4], &[1.0f32, 2.0, 3.0, 4.0])]).unwrap();
    let second_outputs = model.run([TensorView::of(&[1, 4], &[5.0f32, 6.0, 7.0, 8.0])]).unwrap();
    assert_eq!(first_outputs[0].as_slice::<f32>(), [1.0, 2.0, 3.0, 4.0]);
    assert_eq!(second_outputs[0].as_slice::<f32>(), [5.0, 6.0, 7.0, 8.0]);
}

#[test]
fn digits_allocate_nothing_after_the_first_runs() {
    let options = CompileOptions::new().dim("batch", 1);
    let model = Model::compile(&session(), digits(), &options).unwrap();
    let [port] = model.inputs() else { panic!("expected one input of the digits network") };
    let shape = port.ty.shape().unwrap();
    let x = random::tensor(DType::F32, &shape, 1);
    let expected = model.run([&x]).unwrap();
    let dims: Vec<usize> = expected[0].shape().to_vec();
    let mut result = vec![0.0f32; expected[0].len()];
    let options = RunOptions::default();
    let mut run = || {
        let out = TensorViewMut::of(&dims, &mut result);
        model.run_into([x.view()], &mut [out], &options).unwrap();
    };
    (0..3).for_each(|_| run());
    let allocations_before = ALLOCATIONS.get();
    (0..100).for_each(|_| run());
    assert_eq!(ALLOCATIONS.get() - allocations_before, 0, "expected no allocations in 100 runs");
    // After a release, the next run allocates the memory again.
    model.release_memory();
    run();
    let allocations_after = ALLOCATIONS.get();
    assert!(allocations_after > allocations_before, "expected allocations after release_memory, found none");
    (0..100).for_each(|_| run());
    assert_eq!(ALLOCATIONS.get(), allocations_after, "expected no allocations in 100 further runs");
    assert_eq!(result, expected[0].as_slice::<f32>());
}

#[test]
fn results_are_written_to_aligned_memory_as_to_any_other() {
    // The outputs: a result that another step reads, a result that is two outputs at once, a plain result, a field of a
    // tuple, a view, and an input.
    let text = "#[version = \"0.0.5\"]\ndef @main(%x: Tensor[(4, 16), float32]) {\n  let %y = nn.relu(%x);\n  \
                let %z = exp(%y);\n  let %s = split(%x, indices_or_sections=2, axis=0);\n  \
                (%y, %z, negative(%x), %s.0, reshape(%x, newshape=[64]), %x, %z)\n}\n";
    let model = compile(&session(), text, &CompileOptions::new()).unwrap();
    let x = random::tensor(DType::F32, &[4, 16], 3);
    let expected = model.run([&x]).unwrap();
    let dims: Vec<Vec<usize>> = expected.iter().map(|(_, tensor)| tensor.shape().to_vec()).collect();
    for offset in [0, 4, 64] {
        let mut memory: Vec<AlignedBytes> = dims.iter().map(|_| AlignedBytes::zeroed(512).unwrap()).collect();
        for _ in 0..2 {
            let mut outputs: Vec<TensorViewMut<'_>> = memory
                .iter_mut()
                .zip(&dims)
                .zip(expected.iter())
                .map(|((memory, shape), (_, tensor))| TensorViewMut {
                    dtype: DType::F32,
                    shape,
                    data: &mut memory.as_mut()[offset..offset + tensor.bytes().len()],
                })
                .collect();
            model.run_into([&x], &mut outputs, &RunOptions::default()).unwrap();
            for (actual, (name, tensor)) in outputs.iter().zip(expected.iter()) {
                assert_eq!(*actual.data, *tensor.bytes(), "output {name} at offset {offset}");
            }
        }
    }
}

#[test]
fn memory_for_outputs_is_checked() {
    let model = compile(&session(), RELU, &CompileOptions::new()).unwrap();
    let x = Tensor::from_slice(&[1, 4], &[0.0f32; 4]);
    let options = RunOptions::default();
    let (mut short, mut ints) = ([0.0f32; 3], [0i32; 4]);
    let invalid_inputs = [
        model.run_into([&x], &mut [TensorViewMut::of(&[1, 3], &mut short)], &options),
        model.run_into([&x], &mut [TensorViewMut::of(&[1, 4], &mut ints)], &options),
        model.run_into([&x], &mut [], &options),
    ];
    for error in invalid_inputs {
        let error = error.unwrap_err();
        assert!(matches!(error, Error::Input(_)) && error.code().to_string() == "E0621", "{error}");
    }
}

#[test]
fn results_of_unknown_size_need_memory_of_the_right_size() {
    let model = compile(&session(), SUM, &CompileOptions::new().open_dim("n", [])).unwrap();
    let x = Tensor::from_slice(&[3, 2], &[1.0f32; 6]);
    let mut result = [9.0f32; 6];
    model.run_into([&x, &x], &mut [TensorViewMut::of(&[3, 2], &mut result)], &RunOptions::default()).unwrap();
    assert_eq!(result, [0.0; 6]);
    let mut long_values = [0.0f32; 8];
    let outputs = &mut [TensorViewMut::of(&[4, 2], &mut long_values)];
    let error = model.run_into([&x, &x], outputs, &RunOptions::default()).unwrap_err();
    assert_eq!(error.code().to_string(), "E0621", "{error}");
    assert!(error.info().message.contains("[3, 2]") && error.help().is_some(), "{error}");
}

#[test]
fn errors_have_a_kind_a_code_and_help() {
    let session = session();
    let model = compile(&session, SUM, &CompileOptions::new().dim("n", 1)).unwrap();
    let x = Tensor::from_slice(&[1, 2], &[0.0f32; 2]);
    let error = model.run([("a", &x), ("c", &x)]).unwrap_err();
    assert!(matches!(error, Error::Input(_)), "{error}");
    assert_eq!((error.code().to_string().as_str(), error.info().context.is_empty()), ("E0602", false));
    assert!(matches!(model.run([&x]).unwrap_err(), Error::Input(_)));
    let long_input = Tensor::from_slice(&[1, 3], &[0.0f32; 3]);
    assert_eq!(model.run([&x, &long_input]).unwrap_err().code().to_string(), "E0605");

    let error = Model::compile(&session, "missing.onnx", &CompileOptions::new()).unwrap_err();
    assert!(matches!(error, Error::Model(_)), "{error}");
    let error = Model::compile(&session, &b"not a model"[..], &CompileOptions::new()).unwrap_err();
    assert!(matches!(error, Error::Model(_)), "{error}");
    let error = compile(&session, RELU, &CompileOptions::new().backend("none_such")).unwrap_err();
    assert!(matches!(error, Error::Backend(_)), "{error}");
    let error = Model::load(&session, &b"PK not an artifact"[..]).unwrap_err();
    assert!(matches!(error, Error::Artifact(_)), "{error}");
    let error = compile(&session, "#[version = \"0.0.5\"]\ndef @main(%x) { nosuch(%x) }", &CompileOptions::new());
    let error = error.unwrap_err();
    assert!(matches!(error, Error::Model(_)) && error.info().context[0].ends_with(":2"), "{error}");
}

#[test]
fn bytes_and_artifacts_give_the_same_results_as_the_file() {
    let session = session();
    let options = CompileOptions::new().dim("batch", 2);
    let file = Compilation::new(&session, digits(), &options).unwrap();
    let bytes = Compilation::new(&session, std::fs::read(digits()).unwrap(), &options).unwrap();
    assert_eq!(file.to_bytes().unwrap(), bytes.to_bytes().unwrap());
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("digits.byoc");
    file.save(&path).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), file.to_bytes().unwrap());
    let opened_compilation = Compilation::open(&path).unwrap();
    assert_eq!(opened_compilation.explanation(), file.explanation());
    assert!(!opened_compilation.explanation().nodes.is_empty());
    let shape = file.inputs()[0].ty.shape().unwrap();
    let x = random::tensor(DType::F32, &shape, 7);
    let expected = Model::of(&session, file).unwrap().run([&x]).unwrap();
    let model_from_bytes = Model::load(&session, bytes.to_bytes().unwrap()).unwrap();
    assert_eq!(model_from_bytes.run([&x]).unwrap()[0], expected[0]);
    assert!(
        model_from_bytes.plan().functions[model_from_bytes.plan().entry].iter().any(|step| step.name == "nn.conv2d")
    );
}

#[test]
fn artifacts_of_earlier_builds_explain_themselves() {
    let dir = byoc_test_support::workspace().join("tests/compat");
    let files = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let artifacts: Vec<_> = files.filter(|path| path.extension().is_some_and(|end| end == "byoc")).collect();
    assert!(!artifacts.is_empty());
    for path in artifacts {
        let explanation = Compilation::open(&path).unwrap().explanation().clone();
        assert!(!explanation.nodes.is_empty() && explanation.totals.operators > 0, "{}", path.display());
    }
}

#[test]
fn a_session_searches_the_named_folders_alone() {
    let temp_dir = tempfile::tempdir().unwrap();
    let session_with_dir = Session::builder().plugin_dir(temp_dir.path()).build().unwrap();
    let dirs: Vec<_> = session_with_dir.registry.dirs.iter().map(|dir| dir.path.as_path()).collect();
    assert_eq!(dirs, [temp_dir.path()]);
    let default_session = Session::builder().plugin_dir(temp_dir.path()).search_default_dirs().build().unwrap();
    assert!(default_session.registry.dirs.len() > 1 && default_session.registry.dirs[0].path == temp_dir.path());
}

#[test]
fn futures_end_with_the_result_and_cancel_when_they_are_dropped() {
    let session = session();
    let model = compile(&session, RELU, &CompileOptions::new()).unwrap();
    let x = Tensor::from_slice(&[1, 4], &[-1.0f32, 2.0, -3.0, 4.0]);
    let futures: Vec<_> = (0..20).map(|_| model.run_async([&x], &RunOptions::default()).unwrap()).collect();
    for future in futures {
        assert_eq!(block_on(future).unwrap()[0].as_slice::<f32>(), [0.0, 2.0, 0.0, 4.0]);
    }
    let endless_model = compile(&session, ENDLESS, &CompileOptions::new()).unwrap();
    let start_value = Tensor::scalar(1i32);
    let options = RunOptions { cancel: Some(Cancel::default()), ..RunOptions::default() };
    let future = endless_model.run_async([&start_value], &options).unwrap();
    drop(future);
    assert!(options.cancel.unwrap().is_set());
    // The only executor thread of this model is free again.
    let options = RunOptions { timeout: Some(Duration::from_millis(20)), ..RunOptions::default() };
    let error = block_on(endless_model.run_async([&start_value], &options).unwrap()).unwrap_err();
    assert!(matches!(error, Error::TimedOut(_)), "{error}");
}

#[test]
fn unbound_dimensions_stay_open() {
    let options = CompileOptions::new().open_dim("batch", [2]).open_unbound_dims();
    let model = Model::compile(&session(), digits(), &options).unwrap();
    for batch in [1, 2, 3] {
        let x = Tensor::zeros(DType::F32, &[batch, 1, 8, 8]).unwrap();
        assert_eq!(model.run([&x]).unwrap()[0].shape(), [batch, 10]);
    }
    assert!(Model::compile(&session(), digits(), &CompileOptions::new()).is_err());
    assert!(Model::compile(&session(), digits(), &CompileOptions::new().open_unbound_dims()).is_ok());
}

#[test]
fn a_cancelled_compilation_leaves_the_session() {
    let cancel = Cancel::default();
    cancel.set(true);
    let (session, options) = (session(), CompileOptions::new().dim("batch", 1));
    let error = Model::compile(&session, digits(), &options.clone().cancel(cancel)).unwrap_err();
    assert!(matches!(error, Error::Cancelled(_)), "{error}");
    assert!(Model::compile(&session, digits(), &options).is_ok());
}

/// Waker that blocks until the woken future has been polled, like a waker that acquires a lock held by the polling
/// thread.
struct WaitingWaker {
    wake_sender: Mutex<Sender<()>>,
    poll_receiver: Mutex<Receiver<()>>,
    has_timed_out: AtomicBool,
}

impl Wake for WaitingWaker {
    fn wake(self: Arc<Self>) {
        self.wake_sender.lock().unwrap().send(()).unwrap();
        let poll_result = self.poll_receiver.lock().unwrap().recv_timeout(Duration::from_secs(10));
        self.has_timed_out.store(poll_result.is_err(), SeqCst);
    }
}

#[test]
fn wakers_may_wait_for_a_poll() {
    let endless_model = compile(&session(), ENDLESS, &CompileOptions::new()).unwrap();
    let (wake_sender, wake_receiver) = channel();
    let (poll_sender, poll_receiver) = channel();
    let (wake_sender, poll_receiver) = (Mutex::new(wake_sender), Mutex::new(poll_receiver));
    let waiting_waker = Arc::new(WaitingWaker { wake_sender, poll_receiver, has_timed_out: AtomicBool::new(false) });
    let waker = Waker::from(waiting_waker.clone());
    let options = RunOptions { timeout: Some(Duration::from_millis(50)), ..RunOptions::default() };
    let start_value = Tensor::scalar(1i32);
    let mut future = pin!(endless_model.run_async([&start_value], &options).unwrap());
    let mut context = Context::from_waker(&waker);
    assert!(future.as_mut().poll(&mut context).is_pending());
    wake_receiver.recv_timeout(Duration::from_secs(30)).unwrap();
    let poll = future.as_mut().poll(&mut context);
    // If the poll had waited for the waker, the waker would have timed out.
    assert!(!waiting_waker.has_timed_out.load(SeqCst));
    poll_sender.send(()).unwrap();
    assert!(matches!(poll, Poll::Ready(Err(Error::TimedOut(_)))));
}

#[test]
fn another_thread_cancels_a_run() {
    let endless_model = compile(&session(), ENDLESS, &CompileOptions::new()).unwrap();
    let cancel = Cancel::default();
    let options = RunOptions { cancel: Some(cancel.clone()), ..RunOptions::default() };
    std::thread::scope(|scope| {
        let run = scope.spawn(|| endless_model.run_with([Tensor::scalar(1i32)], &options));
        std::thread::sleep(Duration::from_millis(20));
        cancel.set(true);
        assert!(matches!(run.join().unwrap().unwrap_err(), Error::Cancelled(_)));
    });
}

#[test]
fn one_model_runs_on_many_threads() {
    let session = Session::builder().threads(2).build().unwrap();
    let model = Model::compile(&session, digits(), &CompileOptions::new().dim("batch", 1)).unwrap();
    let shape = model.inputs()[0].ty.shape().unwrap();
    std::thread::scope(|scope| {
        for seed in 0..8 {
            let (model, shape) = (model.clone(), &shape);
            scope.spawn(move || {
                let x = random::tensor(DType::F32, shape, seed);
                let expected = model.run([&x]).unwrap();
                for _ in 0..50 {
                    assert_eq!(model.run([x.view()]).unwrap()[0], expected[0]);
                }
            });
        }
    });
}

#[test]
fn progress_reports_the_stages_in_order() {
    let stages = Arc::new(Mutex::new(Vec::new()));
    let stages_seen = stages.clone();
    let options = CompileOptions::new().progress(move |stage| stages_seen.lock().unwrap().push(stage.clone()));
    compile(&session(), RELU, &options).unwrap();
    assert_eq!(*stages.lock().unwrap(), [Stage::Read, Stage::Simplify, Stage::Partition, Stage::Plan, Stage::Load]);
}

#[test]
fn one_call_runs_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("relu.relay");
    std::fs::write(&file, RELU).unwrap();
    let outputs = byoc::run(&file, [Tensor::from_slice(&[1, 4], &[-1.0f32, 2.0, -3.0, 4.0])]).unwrap();
    assert_eq!(outputs[0].as_slice::<f32>(), [0.0, 2.0, 0.0, 4.0]);
}

#[test]
fn a_small_model_runs_on_the_calling_thread() {
    let session = Session::builder().threads(2).build().unwrap();
    let model = compile(&session, RELU, &CompileOptions::new()).unwrap();
    let x = Tensor::from_slice(&[1, 4], &[1.0f32; 4]);
    struct StepObserver(AtomicBool, std::thread::ThreadId);
    impl byoc::runtime::exec::Observer for StepObserver {
        fn step(&self, _: &byoc::runtime::exec::StepEvent<'_>) {
            self.0.store(std::thread::current().id() == self.1, SeqCst);
        }
    }
    model.run([&x]).unwrap();
    let observer = StepObserver(AtomicBool::new(false), std::thread::current().id());
    model.run_observed([&x], &observer).unwrap();
    assert!(observer.0.load(SeqCst), "expected the second run on the calling thread");
}
