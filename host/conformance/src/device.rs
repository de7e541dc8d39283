//! Runs of a region with its tensors in device memory: runs with one host tensor, runs that return before their work is
//! complete, dependent runs, and concurrent runs.

use super::execute::check_outputs;
use super::fault::{CaseResult, Fault, Kind};
use super::harness::Harness;
use super::linked::LinkedRegion;
use super::reference::BoundedTensor;
use super::test_region::TestRegion;
use super::thorough::{SecondInputs, second_inputs};
use byoc::runtime::plugin::guard::GuardedBuffer;
use byoc::runtime::plugin::to_graph::dtype_to_api;
use byoc_core::pass::{Refusal, RefusalCode};
use byoc_ir::tensor::{Tensor, byte_count};
use byoc_plugin_api::host::device::{Buffer, Event, MAX_ALIGNMENT, Memory, submitting, workspace_bytes};
use byoc_plugin_api::host::run_options::BackendOptions;
use byoc_plugin_api::{Call, Error, Executable, Prepared, TensorMut, TensorRef};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Barrier, Mutex, PoisonError};
use std::time::Duration;

/// Number of threads that run the region concurrently, and number of runs per thread.
const THREADS: usize = 4;
const RUNS_PER_THREAD: usize = 6;

/// Interval between two polls of unfinished work. The supervisor limits the total time.
const POLL: Duration = Duration::from_millis(100);

/// Guard byte between the tensors of a buffer; no run may change it.
const GUARD: u8 = 0xa5;

/// Region with the device that runs it.
struct Device<'a> {
    test_region: &'a TestRegion,
    executable: &'a dyn Executable,
    plan: &'a Prepared,
    memory: Memory,
    /// Size in bytes of the workspace in device memory.
    workspace: usize,
    plugin: &'a str,
    run_options: BackendOptions,
    /// Lock for a device that serves one run at a time.
    one_run: Option<Mutex<()>>,
    /// Number of runs that returned before their work was complete.
    unfinished_runs: AtomicUsize,
}

/// Started run: its output shapes, workspace, and completion event.
struct StartedRun {
    shapes: Vec<Vec<usize>>,
    _workspace: GuardedBuffer,
    event: Option<Event>,
}

/// Tensors in one buffer: inputs of one or more runs, then outputs, then a workspace, at aligned offsets, separated by
/// guard bytes.
struct Tensors<'t> {
    buffer: Buffer,
    bytes: usize,
    inputs: Vec<(&'t Tensor, usize)>,
    outputs: Vec<usize>,
    workspace: usize,
    /// Buffer that shares the memory of the first input and replaces its copy.
    shared: Option<Buffer>,
}

/// Tensor whose memory a device shares.
struct SharedTensor(Tensor);

impl AsRef<[u8]> for SharedTensor {
    fn as_ref(&self) -> &[u8] {
        self.0.bytes()
    }
}

/// Tests a region on a device. Returns the number of runs that returned before their work was complete.
///
/// # Errors
/// If the loader provides no device memory or an output size depends on values (a refusal), or if an entry fails or a
/// result is wrong (a fault).
pub(super) fn try_region(
    harness: &Harness<'_, '_>,
    test_region: &TestRegion,
    linked_region: &LinkedRegion,
) -> Result<usize, CaseResult> {
    let symbol = &test_region.graph.symbol;
    let fault = |fault: Fault| CaseResult::Failed(fault.in_region(symbol));
    let loader = harness.loader(linked_region).map_err(fault)?;
    let executable = harness.load(test_region, linked_region, &linked_region.blob, harness.services).map_err(fault)?;
    (harness.progress)("query", symbol);
    let device = harness.setting.device.as_deref().unwrap_or_default();
    let plugin = harness.backend.plugin.name.as_str();
    let memory = Memory::of(loader.as_ref(), plugin, device)
        .map_err(|error| fault(Fault::of_error(Kind::LoadFailed, "query", &error)))?;
    let refuse = |code, detail: &str| CaseResult::Refused(Refusal::new(code, detail));
    let Some(memory) = memory else {
        return Err(refuse(RefusalCode::Unavailable, "the loader does not support the query byoc.memory.1"));
    };
    let plan = harness.prepare(test_region, &*executable).map_err(fault)?;
    if plan.outputs.iter().any(|output| !output.exact) {
        return Err(refuse(
            RefusalCode::DynamicDim,
            "expected output dimensions known before the run, found value-dependent dimensions",
        ));
    }
    let shapes: Vec<&[usize]> = test_region.inputs.iter().map(Tensor::shape).collect();
    let workspace = workspace_bytes(&*executable, plan.plan, &shapes)
        .map_err(|error| fault(Fault::of_error(Kind::LoadFailed, "query", &error)))?;
    let run_lock = memory.serves_one_run() || harness.serves_one_run(linked_region);
    let device = Device {
        test_region,
        executable: &*executable,
        plan: &plan,
        memory,
        workspace,
        run_options: harness.run_options(),
        plugin,
        one_run: run_lock.then(Mutex::default),
        unfinished_runs: AtomicUsize::new(0),
    };
    device.test(harness).map_err(fault)?;
    Ok(device.unfinished_runs.into_inner())
}

impl Device<'_> {
    fn test(&self, harness: &Harness<'_, '_>) -> Result<(), Fault> {
        let symbol = &self.test_region.graph.symbol;
        let expected = &self.test_region.expected;
        let tensors = self.tensors(self.test_region.inputs.iter())?;
        (harness.progress)("run on the device", symbol);
        let context = "tensors in device memory";
        self.run_and_check(&tensors, &[], expected, Kind::WrongResult, context)?;
        (harness.progress)("run with a host tensor", symbol);
        let context = "input 0 in host memory, all other inputs in device memory";
        self.run_and_check(&tensors, &[0], expected, Kind::WrongResult, context)?;
        self.copy_page_locked()?;
        self.run_on_shared_input(harness, tensors)?;
        let second_set = second_inputs(self.test_region);
        (harness.progress)("run after an unfinished run", symbol);
        self.run_in_sequence(second_set.as_ref())?;
        (harness.progress)("run on the device by several threads", symbol);
        self.run_concurrently(second_set.as_ref())
    }

    /// Copies page-locked memory to the device and back, if the device offers such memory.
    fn copy_page_locked(&self) -> Result<(), Fault> {
        const BYTES: usize = 1000;
        let error = |entry: &'static str| move |error: Error| Fault::of_error(Kind::RunFailed, entry, &error);
        let Some(mut memory) = self.memory.allocate_host(BYTES).map_err(error("allocate_host"))? else { return Ok(()) };
        let buffer = self.memory.allocate(BYTES).map_err(error("allocate"))?;
        let pattern: Vec<u8> = (0..BYTES).map(|i| (i % 251) as u8).collect();
        memory.as_mut().copy_from_slice(&pattern);
        buffer.copy_in(0, memory.as_ref()).map_err(error("copy_in"))?;
        memory.as_mut().fill(GUARD);
        buffer.copy_out(0, memory.as_mut()).map_err(error("copy_out"))?;
        match memory.as_ref() == pattern {
            true => Ok(()),
            false => Err(Fault::new(
                Kind::WrongResult,
                "copy_out",
                format!("page-locked memory: expected the {BYTES} bytes that were copied to the device, found others"),
            )),
        }
    }

    /// Runs on a buffer that shares the host memory of input 0, if the device can share it.
    fn run_on_shared_input(&self, harness: &Harness<'_, '_>, mut tensors: Tensors<'_>) -> Result<(), Fault> {
        let Some(input) = self.test_region.inputs.first() else { return Ok(()) };
        let shared_buffer = self.memory.import(SharedTensor(input.clone()));
        let shared_buffer = shared_buffer.map_err(|error| Fault::of_error(Kind::RunFailed, "import_host", &error))?;
        let Some(shared_buffer) = shared_buffer else { return Ok(()) };
        (harness.progress)("run with a shared tensor", &self.test_region.graph.symbol);
        tensors.shared = Some(shared_buffer);
        let context = "input 0 shared with the host, all other inputs in device memory";
        self.run_and_check(&tensors, &[], &self.test_region.expected, Kind::WrongResult, context)
    }

    /// Allocates a buffer for `inputs` and the outputs of one run, and copies the inputs into it.
    fn tensors<'t>(&self, inputs: impl Iterator<Item = &'t Tensor>) -> Result<Tensors<'t>, Fault> {
        let run_error = |entry: &'static str| move |error: Error| Fault::of_error(Kind::RunFailed, entry, &error);
        let mut bytes = MAX_ALIGNMENT;
        let mut reserve = |size: usize| {
            let offset = bytes;
            bytes = (offset + size).next_multiple_of(MAX_ALIGNMENT) + MAX_ALIGNMENT;
            offset
        };
        let inputs: Vec<(&Tensor, usize)> = inputs.map(|tensor| (tensor, reserve(tensor.bytes().len()))).collect();
        let outputs: Vec<usize> = self.sizes().into_iter().map(&mut reserve).collect();
        let workspace = reserve(self.workspace);
        let buffer = self.memory.allocate(bytes).map_err(run_error("allocate"))?;
        buffer.copy_in(0, &vec![GUARD; bytes]).map_err(run_error("copy_in"))?;
        for (tensor, offset) in &inputs {
            buffer.copy_in(*offset, tensor.bytes()).map_err(run_error("copy_in"))?;
        }
        Ok(Tensors { buffer, bytes, inputs, outputs, workspace, shared: None })
    }

    /// Returns the output sizes in bytes.
    fn sizes(&self) -> Vec<usize> {
        let expected = self.test_region.expected.iter().map(|result| result.value.dtype());
        let sizes = self.plan.outputs.iter().zip(expected).map(|(output, dtype)| byte_count(dtype, &output.dims));
        sizes.map(|bytes| bytes.unwrap_or(0)).collect()
    }

    /// Starts a run on the inputs that begin at index `first_index` of `tensors`. Inputs listed in `on_host` (relative
    /// to `first_index`) are in host memory.
    fn start(
        &self,
        tensors: &Tensors<'_>,
        first_index: usize,
        on_host: &[usize],
        dependencies: &[&Event],
    ) -> Result<StartedRun, Fault> {
        let count = self.test_region.inputs.len();
        let views: Vec<TensorRef<'_>> = tensors.inputs[first_index..first_index + count]
            .iter()
            .enumerate()
            .map(|(i, (tensor, offset))| {
                let dtype = dtype_to_api(tensor.dtype());
                match &tensors.shared {
                    _ if on_host.contains(&i) => TensorRef::new(dtype, tensor.shape(), tensor.bytes()),
                    Some(buffer) if i == 0 => buffer.tensor(dtype, tensor.shape(), 0),
                    _ => tensors.buffer.tensor(dtype, tensor.shape(), *offset),
                }
            })
            .collect();
        let mut shapes: Vec<Vec<usize>> = self.plan.outputs.iter().map(|output| output.dims.to_vec()).collect();
        let mut workspace = GuardedBuffer::new(self.plan.workspace, GUARD, GUARD)
            .map_err(|error| Fault::new(Kind::Memory, "run", error.to_string()))?;
        let dtypes = self.test_region.expected.iter().map(|result| dtype_to_api(result.value.dtype()));
        let mut targets: Vec<TensorMut<'_>> = shapes
            .iter_mut()
            .zip(dtypes)
            .zip(&tensors.outputs)
            .map(|((shape, dtype), &offset)| tensors.buffer.tensor_mut(dtype, shape, offset))
            .collect();
        let call =
            Call { inputs: &views, outputs: &mut targets, workspace: workspace.bytes_mut(), plan: self.plan.plan };
        // As in the host, a run with a host tensor is complete when it returns.
        let _options = self.run_options.clone().enter();
        let (status, event) = match on_host {
            [] => {
                let workspace = Some(tensors.buffer.workspace(tensors.workspace, self.workspace));
                submitting(self.plugin, Some(dependencies), workspace, || self.executable.run(call))
            }
            _ => (self.executable.run(call), None),
        };
        status.map_err(|error| Fault::of_error(Kind::RunFailed, "run", &error))?;
        self.unfinished_runs.fetch_add(usize::from(event.is_some()), Ordering::Relaxed);
        Ok(StartedRun { shapes, _workspace: workspace, event })
    }

    /// Waits until the work of a run is complete.
    fn finish(&self, run: &StartedRun) -> Result<(), Fault> {
        let Some(event) = &run.event else { return Ok(()) };
        while !event.wait(POLL).map_err(|error| Fault::of_error(Kind::RunFailed, "wait", &error))? {}
        Ok(())
    }

    /// Runs on the first set of inputs, and checks the results and the guard bytes.
    fn run_and_check(
        &self,
        tensors: &Tensors<'_>,
        on_host: &[usize],
        expected: &[BoundedTensor],
        kind: Kind,
        description: &str,
    ) -> Result<(), Fault> {
        let lock = self.one_run.as_ref().map(|run_lock| run_lock.lock().unwrap_or_else(PoisonError::into_inner));
        let run = self.start(tensors, 0, on_host, &[])?;
        self.finish(&run)?;
        drop(lock);
        self.check(tensors, &run, expected, kind, description)
    }

    fn check(
        &self,
        tensors: &Tensors<'_>,
        run: &StartedRun,
        expected: &[BoundedTensor],
        kind: Kind,
        description: &str,
    ) -> Result<(), Fault> {
        let mut bytes = vec![0; tensors.bytes];
        let copy_result = tensors.buffer.copy_out(0, &mut bytes);
        copy_result.map_err(|error| Fault::of_error(Kind::RunFailed, "copy_out", &error))?;
        let mut results = Vec::with_capacity(expected.len());
        for ((result, &offset), shape) in expected.iter().zip(&tensors.outputs).zip(&run.shapes) {
            let size = result.value.bytes().len();
            results.extend(Tensor::from_bytes(result.value.dtype(), shape, &bytes[offset..offset + size]));
            bytes[offset..offset + size].fill(GUARD);
        }
        for (i, (tensor, offset)) in tensors.inputs.iter().enumerate() {
            let actual = &mut bytes[*offset..offset + tensor.bytes().len()];
            if *actual != *tensor.bytes() {
                let message = format!("{description}: the run changed input {i}");
                return Err(Fault::new(Kind::WritesInput, "run", message));
            }
            actual.fill(GUARD);
        }
        bytes[tensors.workspace..tensors.workspace + self.workspace].fill(GUARD);
        if let Some(position) = bytes.iter().position(|&byte| byte != GUARD) {
            let message = format!(
                "{description}: the run wrote byte {position} of a buffer, outside its tensors and its workspace"
            );
            return Err(Fault::new(Kind::WritesOutside, "run", message));
        }
        check_outputs(&results, expected, kind, "run", description)
    }

    /// Runs twice with the same output buffers, so that the second run must wait for the first run.
    fn run_in_sequence(&self, second_set: Option<&SecondInputs>) -> Result<(), Fault> {
        let (inputs, expected) = (&self.test_region.inputs, &self.test_region.expected);
        let (other_inputs, expected) =
            second_set.map_or((inputs, expected), |second_set| (&second_set.inputs, &second_set.expected));
        let tensors = self.tensors(inputs.iter().chain(other_inputs))?;
        let first_run = self.start(&tensors, 0, &[], &[])?;
        if self.one_run.is_some() {
            self.finish(&first_run)?;
        }
        let dependencies: Vec<&Event> = first_run.event.iter().collect();
        let next = self.start(&tensors, inputs.len(), &[], &dependencies);
        // The buffer must not be released while the first run uses it.
        self.finish(&first_run)?;
        let next = next?;
        self.finish(&next)?;
        self.check(&tensors, &next, expected, Kind::NotRepeatable, "second of two runs with the same output buffers")
    }

    /// Runs on several threads, each with its own tensors.
    fn run_concurrently(&self, second_set: Option<&SecondInputs>) -> Result<(), Fault> {
        let barrier = Barrier::new(THREADS);
        let run_worker = |index: usize| -> Result<(), Fault> {
            let (inputs, expected) = match second_set {
                Some(second_set) if index % 2 == 1 => (&second_set.inputs, &second_set.expected),
                _ => (&self.test_region.inputs, &self.test_region.expected),
            };
            let tensors = self.tensors(inputs.iter());
            barrier.wait();
            let tensors = tensors?;
            let context = format!("{THREADS} threads run one executable on the device");
            (0..RUNS_PER_THREAD)
                .try_for_each(|_| self.run_and_check(&tensors, &[], expected, Kind::NotReentrant, &context))
        };
        let results: Vec<Result<(), Fault>> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS).map(|n| scope.spawn(move || run_worker(n))).collect();
            let panic_fault = || Err(Fault::new(Kind::NotReentrant, "run", "a thread panicked"));
            threads.into_iter().map(|t| t.join().unwrap_or_else(|_| panic_fault())).collect()
        });
        results.into_iter().collect()
    }
}
