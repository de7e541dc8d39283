//! Host services for plugins.
//!
//! [`HostServices`] is the plain trait that the host implements; [`Services`] is the handle that crosses the boundary
//! and that plugins call. Panics on either side become errors.
#![expect(unused_qualifications, non_local_definitions, reason = "expansion of `sabi_trait`")]

use crate::constant::Constant;
use crate::error::{Error, Result};
use crate::executable::{Call, Executable};
use crate::executable_object::{ExecutableObject, ImportedExecutable, export_executable};
use crate::graph::Graph;
use crate::guard::guard;
use crate::tensor::{TensorMut, TensorRef};
use abi_stable::sabi_trait::TD_Opaque;
use abi_stable::std_types::{RArc, RBox, ROption, RResult, RSlice, RStr};
use abi_stable::{StableAbi, sabi_trait};
use serde_json::Value;
use std::ffi::c_void;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use tracing::Level;

/// Services that the host implements.
pub trait HostServices: Send + Sync + 'static {
    /// Number of threads that `parallel_for` uses, including the calling thread. A library with its own thread pool
    /// should use this number of threads.
    fn num_threads(&self) -> usize;

    /// Calls `task` with every index below `count`, on several threads, and returns when all calls have returned. Runs
    /// inline when called from inside a task. `task` does not panic.
    fn parallel_for(&self, count: usize, task: &(dyn Fn(usize) + Sync));

    /// Records an event in the trace. `fields` is a JSON object.
    fn event(&self, name: &str, fields: &Value);

    /// Adds `amount` to the counter `name`, such as the cycles of a device. Counters appear in the trace and in the
    /// metrics of a benchmark.
    fn counter(&self, name: &str, amount: u64);

    /// Most verbose enabled level; `None` if logging is disabled.
    fn log_level(&self) -> Option<Level>;

    /// Writes a log message. `target` is the plugin's name or a path of one of its modules.
    fn log(&self, level: Level, target: &str, message: &str);

    /// Returns an executable that runs `graph` with the host's reference kernels.
    ///
    /// # Errors
    /// If the host has no kernel for an operator.
    fn reference(&self, graph: &Graph, constants: &[Constant]) -> Result<Box<dyn Executable>>;

    /// Returns true if the current work, usually a compilation, was cancelled. Long-running work polls this and returns
    /// [`Error::cancelled`].
    fn cancelled(&self) -> bool {
        false
    }

    /// Returns a service that was added after the boundary was frozen: a pointer to the type given in its
    /// documentation, valid for the life of the process. `None` for an unknown name.
    fn get_service(&self, name: &str) -> Option<NonNull<c_void>> {
        let _ = name;
        None
    }
}

/// Time span of device work, in nanoseconds of the device clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span<'a> {
    /// Device or device queue; spans of one track do not overlap.
    pub track: &'a str,
    /// Time at which the work started.
    pub begin: u64,
    /// Time at which the work ended.
    pub end: u64,
    /// Device timestamp of the call; the host uses it to convert the span to its own clock.
    pub now: u64,
}

impl Span<'_> {
    /// Event field that marks a span: an object with `track`, `begin`, `end` and `now`.
    pub const KEY: &'static str = "span";
}

/// ABI representation of a `parallel_for` task. `call` catches panics.
#[repr(C)]
#[derive(StableAbi, Clone, Copy)]
pub struct Task {
    /// Argument of `call`.
    pub context: *const u8,
    /// Runs the task for one index.
    pub call: unsafe extern "C" fn(*const u8, usize),
}

// SAFETY: `Services::try_parallel_for` sets `context` to a `TaskState`, which is `Sync`.
unsafe impl Send for Task {}
// SAFETY: `Services::try_parallel_for` sets `context` to a `TaskState`, which is `Sync`.
unsafe impl Sync for Task {}

#[sabi_trait]
pub trait ServicesAbi: Send + Sync + 'static {
    fn num_threads(&self) -> usize;
    fn parallel_for(&self, count: usize, task: Task) -> RResult<(), Error>;
    fn event(&self, name: RStr<'_>, fields: RStr<'_>);
    fn counter(&self, name: RStr<'_>, amount: u64);
    fn log_level(&self) -> u8;
    fn log(&self, level: u8, target: RStr<'_>, message: RStr<'_>);
    fn reference(&self, graph: &Graph, constants: RSlice<'_, Constant>) -> RResult<ExecutableObject, Error>;
    fn cancelled(&self) -> bool;
    #[sabi(last_prefix_field)]
    fn get_service(&self, name: RStr<'_>) -> ROption<NonNull<u8>>;
}

type ServicesObject = ServicesAbi_TO<RBox<()>>;

/// Handle to the host's services. Cheap to clone.
#[repr(C)]
#[derive(StableAbi, Clone)]
pub struct Services {
    object: RArc<ServicesObject>,
}

impl Services {
    /// Creates a handle to an implementation.
    pub fn new(host: impl HostServices) -> Services {
        let object = ServicesAbi_TO::from_value(ExportedServices(host), TD_Opaque);
        Services { object: RArc::new(object) }
    }

    /// Number of threads that [`parallel_for`](Services::parallel_for) uses, including the calling thread. It never
    /// changes for one handle, but may differ between [`Context::services`](crate::Context::services) and the handles
    /// of different loads.
    pub fn num_threads(&self) -> usize {
        self.object.num_threads()
    }

    /// Calls `task` with every index below `count`, on the host's threads, and returns when all calls have returned.
    /// Runs inline when called from inside a task. A large number of small tasks works but is slow: split the work into
    /// a few chunks per thread.
    ///
    /// # Errors
    /// If a task panics; the error has the message and the location. Tasks that have not started by then are skipped.
    pub fn parallel_for(&self, count: usize, task: impl Fn(usize) + Sync) -> Result<()> {
        self.try_parallel_for(count, |index| {
            task(index);
            Ok(())
        })
    }

    /// Variant of [`parallel_for`](Services::parallel_for) with fallible tasks.
    ///
    /// # Errors
    /// If a task fails; returns the first error. Tasks that have not started by then are skipped.
    pub fn try_parallel_for(&self, count: usize, task: impl Fn(usize) -> Result<()> + Sync) -> Result<()> {
        let state = TaskState { task, failed: AtomicBool::new(false), first_error: Mutex::new(None) };
        let call = call_task(&state);
        let result = self.object.parallel_for(count, Task { context: (&raw const state).cast(), call });
        match state.first_error.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner()) {
            Some(first_error) => Err(first_error),
            None => result.into_result(),
        }
    }

    /// Variant of [`parallel_for`](Services::parallel_for) whose task also receives the index of the calling worker,
    /// below [`num_threads`](Services::num_threads). Within one loop, calls with the same worker index never overlap,
    /// so each worker may own a part of the workspace.
    ///
    /// # Errors
    /// As for [`parallel_for`](Services::parallel_for).
    pub fn parallel_for_workers(&self, count: usize, task: impl Fn(usize, usize) + Sync) -> Result<()> {
        let next_index = AtomicUsize::new(0);
        let has_failed = AtomicBool::new(false);
        // A worker is a `parallel_for` task that claims indices until all are claimed. If the host runs the
        // tasks sequentially, the first worker claims all indices.
        self.try_parallel_for(self.num_threads().max(1).min(count), |worker| {
            while !has_failed.load(Ordering::Relaxed) {
                let index = next_index.fetch_add(1, Ordering::Relaxed);
                if index >= count {
                    break;
                }
                guard(|| {
                    task(worker, index);
                    Ok(())
                })
                .inspect_err(|_| has_failed.store(true, Ordering::Relaxed))?;
            }
            Ok(())
        })
    }

    /// Records an event in the trace. `fields` is a JSON object.
    pub fn event(&self, name: &str, fields: &Value) {
        self.object.event(name.into(), fields.to_string().as_str().into());
    }

    /// Records a span of device work in the trace, on a separate track. `fields` is a JSON object.
    pub fn span(&self, name: &str, span: &Span<'_>, mut fields: Value) {
        if let Some(fields) = fields.as_object_mut() {
            let Span { track, begin, end, now } = *span;
            fields
                .insert(Span::KEY.into(), serde_json::json!({"track": track, "begin": begin, "end": end, "now": now}));
        }
        self.event(name, &fields);
    }

    /// Adds `amount` to the counter `name`, such as the cycles of a device. Counters appear in the trace and in the
    /// metrics of a benchmark.
    pub fn counter(&self, name: &str, amount: u64) {
        self.object.counter(name.into(), amount);
    }

    /// Most verbose enabled level; `None` if logging is disabled.
    pub fn log_level(&self) -> Option<Level> {
        level_from_number(self.object.log_level())
    }

    /// Returns [`log_level`](Services::log_level) as a number: 0 if logging is disabled, 1 for errors, up to 5.
    #[cfg(feature = "host")]
    pub(crate) fn level_number(&self) -> i32 {
        self.object.log_level().into()
    }

    /// Variant of [`log`](Services::log) with the level as a number.
    #[cfg(feature = "host")]
    pub(crate) fn log_number(&self, level: i32, target: &str, message: &str) {
        if let Some(level) = u8::try_from(level).ok().and_then(level_from_number) {
            self.log(level, target, message);
        }
    }

    /// Writes a log message. Events that a plugin emits with `tracing` are forwarded to the host automatically.
    pub fn log(&self, level: Level, target: &str, message: &str) {
        self.object.log(level_number(level), target.into(), message.into());
    }

    /// Returns an executable that runs `graph` with the host's reference kernels.
    ///
    /// # Errors
    /// If the host has no kernel for an operator.
    pub fn reference(&self, graph: &Graph, constants: &[Constant]) -> Result<Box<dyn Executable>> {
        let object = self.object.reference(graph, RSlice::from_slice(constants)).into_result()?;
        Ok(Box::new(ImportedExecutable::new("host", object)))
    }

    /// Runs a graph once with the host's reference kernels. To run a graph several times, keep the result of
    /// [`reference`](Services::reference).
    ///
    /// # Errors
    /// If the host has no kernel for an operator, or the run fails.
    pub fn reference_run<'t>(
        &self,
        graph: &Graph,
        constants: &[Constant],
        inputs: &[TensorRef<'t>],
        outputs: &mut [TensorMut<'t>],
    ) -> Result<()> {
        let executable = self.reference(graph, constants)?;
        let dims: Vec<&[usize]> = inputs.iter().map(TensorRef::shape).collect();
        let preparation = executable.prepare(&dims)?;
        // A vector of cache lines aligns the workspace to 64 bytes.
        let mut workspace = vec![CacheLine([0; 64]); preparation.workspace.div_ceil(64)];
        // SAFETY: the vector outlives the slice, and holds at least `preparation.workspace` initialized bytes.
        let workspace =
            unsafe { std::slice::from_raw_parts_mut(workspace.as_mut_ptr().cast::<u8>(), preparation.workspace) };
        executable.run(Call { inputs, outputs, workspace, plan: preparation.plan })
    }

    /// Returns true if the current work was cancelled. Long-running work, such as a search over tilings or a wait for a
    /// compiler process, polls this and returns [`Error::cancelled`].
    pub fn cancelled(&self) -> bool {
        self.object.cancelled()
    }

    /// Returns a service that was added after the boundary was frozen; `None` if the host does not provide it.
    pub fn get_service(&self, name: &str) -> Option<NonNull<c_void>> {
        self.object.get_service(name.into()).into_option().map(NonNull::cast)
    }
}

impl fmt::Debug for Services {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Services({} threads)", self.num_threads())
    }
}

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct CacheLine([u8; 64]);

struct TaskState<F> {
    task: F,
    failed: AtomicBool,
    first_error: Mutex<Option<Error>>,
}

fn call_task<F: Fn(usize) -> Result<()> + Sync>(_: &TaskState<F>) -> unsafe extern "C" fn(*const u8, usize) {
    unsafe extern "C" fn call<F: Fn(usize) -> Result<()> + Sync>(context: *const u8, index: usize) {
        // SAFETY: `try_parallel_for` passes its `TaskState<F>` as `context` and keeps it alive until `parallel_for` has
        // returned.
        let state = unsafe { &*context.cast::<TaskState<F>>() };
        if state.failed.load(Ordering::Relaxed) {
            return;
        }
        if let Err(error) = guard(|| (state.task)(index)) {
            state.failed.store(true, Ordering::Relaxed);
            let mut first_error = state.first_error.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            first_error.get_or_insert(error);
        }
    }
    call::<F>
}

struct ExportedServices<H>(H);

impl<H: HostServices> ServicesAbi for ExportedServices<H> {
    fn num_threads(&self) -> usize {
        guard(|| Ok(self.0.num_threads())).unwrap_or(1)
    }

    fn parallel_for(&self, count: usize, task: Task) -> RResult<(), Error> {
        // A task also runs on other threads, where it is recorded under the entry that called `parallel_for`.
        #[cfg(feature = "host")]
        let site = crate::entries::current_site();
        let body = move |index| {
            let task = task;
            // SAFETY: the caller keeps `context` alive until this entry has returned.
            let call = || unsafe { (task.call)(task.context, index) };
            #[cfg(feature = "host")]
            if let Some(site) = site {
                return crate::entries::run_task(site, call);
            }
            call();
        };
        guard(|| {
            self.0.parallel_for(count, &body);
            Ok(())
        })
        .map_err(|error| error.with_entry("host", "parallel_for"))
        .into()
    }

    fn event(&self, name: RStr<'_>, fields: RStr<'_>) {
        // An event that cannot be recorded must not make the plugin fail.
        let _ = guard(|| {
            self.0.event(name.as_str(), &serde_json::from_str(fields.as_str()).unwrap_or(Value::Null));
            Ok(())
        });
    }

    fn counter(&self, name: RStr<'_>, amount: u64) {
        // As in `event`, a failure must not reach the plugin.
        let _ = guard(|| {
            self.0.counter(name.as_str(), amount);
            Ok(())
        });
    }

    fn log_level(&self) -> u8 {
        guard(|| Ok(self.0.log_level().map_or(0, level_number))).unwrap_or(0)
    }

    fn log(&self, level: u8, target: RStr<'_>, message: RStr<'_>) {
        // As in `event`, a failure must not reach the plugin.
        let _ = guard(|| {
            if let Some(level) = level_from_number(level) {
                self.0.log(level, target.as_str(), message.as_str());
            }
            Ok(())
        });
    }

    fn reference(&self, graph: &Graph, constants: RSlice<'_, Constant>) -> RResult<ExecutableObject, Error> {
        guard(|| Ok(export_executable(self.0.reference(graph, constants.as_slice())?)))
            .map_err(|error| error.with_entry("host", "reference"))
            .into()
    }

    fn cancelled(&self) -> bool {
        guard(|| Ok(self.0.cancelled())).unwrap_or(false)
    }

    fn get_service(&self, name: RStr<'_>) -> ROption<NonNull<u8>> {
        guard(|| Ok(self.0.get_service(name.as_str()))).ok().flatten().map(NonNull::cast).into()
    }
}

fn level_number(level: Level) -> u8 {
    match level {
        Level::ERROR => 1,
        Level::WARN => 2,
        Level::INFO => 3,
        Level::DEBUG => 4,
        Level::TRACE => 5,
    }
}

fn level_from_number(number: u8) -> Option<Level> {
    [Level::ERROR, Level::WARN, Level::INFO, Level::DEBUG, Level::TRACE].get((number as usize).checked_sub(1)?).copied()
}
