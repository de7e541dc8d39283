//! Services of the host for its plugins.
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
    /// Number of threads that `parallel_for` uses, including the calling one. A library with its own thread pool should
    /// use this size.
    fn num_threads(&self) -> usize;

    /// Calls `task` with every index below `count`, on several threads, and returns when all calls have returned. Runs
    /// inline when called from inside a task. `task` does not panic.
    fn parallel_for(&self, count: usize, task: &(dyn Fn(usize) + Sync));

    /// Records an event in the trace. `fields` is a JSON object.
    fn event(&self, name: &str, fields: &Value);

    /// Adds `amount` to the counter `name`, such as the cycles of a device. Counters appear in the trace and in the
    /// metrics of a benchmark.
    fn counter(&self, name: &str, amount: u64);

    /// Most verbose level that is enabled; `None` if logging is disabled.
    fn log_level(&self) -> Option<Level>;

    /// Writes a log message. `target` is the plugin's name or a path of one of its modules.
    fn log(&self, level: Level, target: &str, message: &str);

    /// Returns an executable that runs `graph` with the host's reference kernels.
    ///
    /// # Errors
    /// If the host has no kernel for an operator.
    fn reference(&self, graph: &Graph, constants: &[Constant]) -> Result<Box<dyn Executable>>;

    /// Returns true if the current work, usually a compilation, was cancelled. Long work polls this and returns
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

/// Task of a `parallel_for` in the form that crosses the boundary. `call` catches panics.
#[repr(C)]
#[derive(StableAbi, Clone, Copy)]
pub struct Task {
    /// Argument of `call`.
    pub context: *const u8,
    /// Runs the task for one index.
    pub call: unsafe extern "C" fn(*const u8, usize),
}

// SAFETY: `context` points at a `TaskState`, which is `Sync`.
unsafe impl Send for Task {}
// SAFETY: as above.
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

    /// Number of threads that [`parallel_for`](Services::parallel_for) uses, including the calling one.
    pub fn num_threads(&self) -> usize {
        self.object.num_threads()
    }

    /// Calls `task` with every index below `count`, on the host's threads, and returns when all calls have returned.
    /// Runs inline when called from inside a task. A large `count` of small tasks is correct but slow: split the work
    /// into a few pieces per thread.
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

    /// Variant of [`parallel_for`](Services::parallel_for) whose task also gets the number of the worker that calls it,
    /// below [`num_threads`](Services::num_threads). No two calls of one loop with the same worker
    /// overlap, so that a worker may own a part of the workspace.
    ///
    /// # Errors
    /// As for [`parallel_for`](Services::parallel_for).
    pub fn parallel_for_workers(&self, count: usize, task: impl Fn(usize, usize) + Sync) -> Result<()> {
        let next = AtomicUsize::new(0);
        let failed = AtomicBool::new(false);
        // A worker is a task of `parallel_for` that takes indices until none is left; a host that runs the tasks one
        // after the other leaves all indices to the first.
        self.try_parallel_for(self.num_threads().max(1).min(count), |worker| {
            while !failed.load(Ordering::Relaxed) {
                let index = next.fetch_add(1, Ordering::Relaxed);
                if index >= count {
                    break;
                }
                guard(|| {
                    task(worker, index);
                    Ok(())
                })
                .inspect_err(|_| failed.store(true, Ordering::Relaxed))?;
            }
            Ok(())
        })
    }

    /// Records an event in the trace. `fields` is a JSON object.
    pub fn event(&self, name: &str, fields: &Value) {
        self.object.event(name.into(), fields.to_string().as_str().into());
    }

    /// Adds `amount` to the counter `name`, such as the cycles of a device. Counters appear in the trace and in the
    /// metrics of a benchmark.
    pub fn counter(&self, name: &str, amount: u64) {
        self.object.counter(name.into(), amount);
    }

    /// Most verbose level that is enabled.
    pub fn log_level(&self) -> Option<Level> {
        level_from_number(self.object.log_level())
    }

    /// Returns [`log_level`](Services::log_level) as a number: 0 for none, 1 for errors, up to 5.
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

    /// Writes a log message. Events that a plugin emits with `tracing` are forwarded to the host without a call of
    /// this.
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

    /// Runs a graph once with the host's reference kernels. To run it several times, keep the result of
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
        let prepared = executable.prepare(&dims)?;
        // A vector of cache lines aligns the workspace to 64 bytes.
        let mut workspace = vec![CacheLine([0; 64]); prepared.workspace.div_ceil(64)];
        // SAFETY: the lines are plain bytes, at least `prepared.workspace` of them.
        let workspace =
            unsafe { std::slice::from_raw_parts_mut(workspace.as_mut_ptr().cast::<u8>(), prepared.workspace) };
        executable.run(Call { inputs, outputs, workspace, plan: prepared.plan })
    }

    /// Returns true if the current work was cancelled. Long work, such as a search over tilings or a wait for a
    /// compiler process, polls this and returns [`Error::cancelled`].
    pub fn cancelled(&self) -> bool {
        self.object.cancelled()
    }

    /// Returns a service that was added after the boundary was frozen; `None` if this host does not have it.
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
        // SAFETY: `context` is the `TaskState<F>` that lives until `parallel_for` has returned.
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
        let site = crate::entries::current();
        let body = move |index| {
            let task = task;
            // SAFETY: the caller keeps `context` alive until this entry has returned.
            let call = || unsafe { (task.call)(task.context, index) };
            #[cfg(feature = "host")]
            if let Some(site) = site {
                return crate::entries::run(site, call);
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
        // As in `event`.
        let _ = guard(|| {
            self.0.counter(name.as_str(), amount);
            Ok(())
        });
    }

    fn log_level(&self) -> u8 {
        guard(|| Ok(self.0.log_level().map_or(0, level_number))).unwrap_or(0)
    }

    fn log(&self, level: u8, target: RStr<'_>, message: RStr<'_>) {
        // As in `event`.
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
