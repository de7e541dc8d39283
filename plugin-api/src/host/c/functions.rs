//! Host functions that a C plugin calls: results and services. Each function is guarded, because a panic must not
//! unwind into C.

use super::abi::{self, ERROR, OK};
use super::call::{CallState, HostTable, in_call};
use super::foreign;
use super::handles::{
    CConstant, CReference, constant_digest, constant_name, constant_release, constant_retain, constant_tensor,
    reference_release, run_guarded,
};
use super::objects::{CCodegen, CExecutable, CLoader};
use crate::backend::{CompiledRegion, Refusal, Source, Verdict};
use crate::constant::Constant;
use crate::error::{Error, Result};
use crate::executable::{Call, Executable, OutputDims};
use crate::graph::{Attr, Graph};
use crate::graph_json::read_value;
use crate::guard::guard;
use crate::host::loaded::RegisteredObject;
use crate::services::Services;
use crate::tensor::{TensorMut, TensorRef};
use abi_stable::std_types::{ROption, RString};
use serde_json::{Map, Value};
use std::ffi::{CStr, c_char, c_void};
use std::sync::Arc;

/// Creates the host function table for `services`.
pub fn host_table(services: &Services) -> Arc<HostTable> {
    let table = abi::Host {
        struct_size: size_of::<abi::Host>(),
        abi: abi::ABI,
        reserved: 0,
        fail,
        rename,
        register_codegen,
        register_loader,
        register_data,
        answer,
        support,
        refuse,
        compiled,
        loaded,
        output,
        prepared,
        constant_tensor,
        constant_digest,
        constant_retain,
        constant_release,
        num_threads,
        parallel_for,
        event,
        counter,
        log_level,
        log,
        cancelled,
        reference,
        reference_prepare,
        reference_run,
        reference_release,
        get_service,
        fail_with,
        constant_name,
        parallel_for_workers,
    };
    Arc::new(HostTable { table, services: services.clone() })
}

/// Copies a plugin's C string; `None` for a null pointer.
fn read_text(pointer: *const c_char) -> Option<String> {
    if pointer.is_null() {
        return None;
    }
    // SAFETY: the header requires that a string ends with a NUL.
    Some(unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned())
}

fn require_text(pointer: *const c_char, name: &str) -> Result<String, String> {
    read_text(pointer).ok_or_else(|| format!("{name}: expected a string, found NULL"))
}

/// Copies a plugin's structure. `name` describes the structure in messages.
fn read_sized<T: abi::SizeTagged>(pointer: *const T, name: &str) -> Result<T, String> {
    // SAFETY: the header requires that a structure has `struct_size` bytes.
    unsafe { abi::read(pointer) }
        .ok_or_else(|| format!("expected {name} with a valid struct_size, found NULL or an invalid struct_size"))
}

/// Returns a plugin's list as a slice. Messages begin with `name`.
fn list<'a, T>(data: *const T, count: usize, name: &str) -> Result<&'a [T], String> {
    match (data.is_null(), count) {
        (_, 0) => Ok(&[]),
        (true, count) => Err(format!("{name}: expected {count} items, found NULL")),
        // SAFETY: the header requires that a list has `count` items.
        (false, count) => Ok(unsafe { std::slice::from_raw_parts(data, count) }),
    }
}

/// Returns a plugin's list as a mutable slice; see [`list`].
///
/// # Safety
/// No other reference to the items may exist while the slice lives.
unsafe fn list_mut<'a, T>(data: *mut T, count: usize, name: &str) -> Result<&'a mut [T], String> {
    list(data, count, name)?;
    match count {
        0 => Ok(&mut []),
        // SAFETY: the header requires that a list has `count` items, the caller guarantees exclusive access, and `list`
        // has checked the pointer.
        count => Ok(unsafe { std::slice::from_raw_parts_mut(data, count) }),
    }
}

unsafe extern "C" fn fail(call: *mut abi::Call, message: *const c_char, hint: *const c_char) {
    in_call(call, "fail", |state| {
        let error = Error::new(read_text(message).unwrap_or_default()).hint(read_text(hint).unwrap_or_default());
        state.with_answers(|answers| answers.failure = Some(error));
        Ok(())
    });
}

unsafe extern "C" fn fail_with(call: *mut abi::Call, code: *const c_char, message: *const c_char, hint: *const c_char) {
    in_call(call, "fail_with", |state| {
        let error = Error::new(read_text(message).unwrap_or_default()).hint(read_text(hint).unwrap_or_default());
        let error = error.code(&read_text(code).unwrap_or_default());
        state.with_answers(|answers| answers.failure = Some(error));
        Ok(())
    });
}

unsafe extern "C" fn rename(call: *mut abi::Call, name: *const c_char) {
    in_call(call, "rename", |state| {
        let name = require_text(name, "name")?;
        state.with_answers(|answers| answers.name = Some(name));
        Ok(())
    });
}

unsafe extern "C" fn register_codegen(
    call: *mut abi::Call,
    name: *const c_char,
    table: *const abi::Codegen,
    this: *mut c_void,
) {
    in_call(call, "register_codegen", |state| {
        let name = require_text(name, "name")?;
        let table = read_sized(table, "a table")?;
        let codegen = CCodegen::new(state.plugin.clone(), state.host.clone(), table, this)?;
        state.with_answers(|answers| answers.registrations.push((name, RegisteredObject::Codegen(Arc::new(codegen)))));
        Ok(())
    });
}

unsafe extern "C" fn register_loader(
    call: *mut abi::Call,
    key: *const c_char,
    table: *const abi::Loader,
    this: *mut c_void,
) {
    in_call(call, "register_loader", |state| {
        let key = require_text(key, "key")?;
        let table = read_sized(table, "a table")?;
        let loader = CLoader::new(state.plugin.clone(), state.host.clone(), table, this)?;
        state.with_answers(|answers| answers.registrations.push((key, RegisteredObject::Loader(Arc::new(loader)))));
        Ok(())
    });
}

unsafe extern "C" fn register_data(call: *mut abi::Call, name: *const c_char, json: *const c_char) {
    in_call(call, "register_data", |state| {
        let (name, json) = (require_text(name, "name")?, require_text(json, "data")?);
        state.with_answers(|answers| answers.registrations.push((name, RegisteredObject::Data(json))));
        Ok(())
    });
}

unsafe extern "C" fn answer(call: *mut abi::Call, data: *const c_void, size: usize) {
    in_call(call, "answer", |state| {
        let bytes = foreign::copy(data, size, "answer")?;
        state.with_answers(|answers| answers.bytes = Some(bytes));
        Ok(())
    });
}

fn verdict(state: &CallState<'_>, index: usize, verdict: Verdict) -> Result<(), String> {
    state.with_answers(|answers| {
        let count = answers.verdicts.len();
        let slot =
            answers.verdicts.get_mut(index).ok_or_else(|| format!("candidate {index} is out of range 0..{count}"))?;
        *slot = Some(verdict);
        Ok(())
    })
}

unsafe extern "C" fn support(call: *mut abi::Call, index: usize) {
    in_call(call, "support", |state| verdict(state, index, Verdict::Supported));
}

unsafe extern "C" fn refuse(
    call: *mut abi::Call,
    index: usize,
    code: *const c_char,
    detail: *const c_char,
    hint: *const c_char,
) {
    in_call(call, "refuse", |state| {
        let refusal = Refusal {
            code: require_text(code, "code")?.into(),
            detail: require_text(detail, "detail")?.into(),
            hint: read_text(hint).unwrap_or_default().into(),
        };
        verdict(state, index, Verdict::Refused(refusal))
    });
}

unsafe extern "C" fn compiled(call: *mut abi::Call, result: *const abi::Compiled) {
    in_call(call, "compiled", |state| {
        let result = read_sized(result, "a result")?;
        let blob = foreign::copy(result.blob, result.blob_size, "blob")?;
        let mut region = CompiledRegion::new(state.symbol, &require_text(result.loader, "loader")?, blob);
        if !result.symbols.is_null() {
            let symbols = list(result.symbols, result.symbol_count, "symbols")?;
            let symbols = symbols.iter().map(|&symbol| require_text(symbol, "symbol").map(RString::from));
            region.symbols = symbols.collect::<Result<_, String>>()?;
        }
        if let (Some(language), Some(source)) = (read_text(result.source_language), read_text(result.source)) {
            region.source = ROption::RSome(Source { language: language.into(), text: source.into() });
        }
        region.notes = read_text(result.notes).unwrap_or_default().lines().map(RString::from).collect();
        if let Some(metadata) = read_text(result.metadata) {
            let metadata: Map<String, Value> =
                serde_json::from_str(&metadata).map_err(|error| format!("metadata: invalid JSON object: {error}"))?;
            let metadata =
                metadata.iter().map(|(key, value)| Ok(Attr { key: key.as_str().into(), value: read_value(value)? }));
            region.metadata = metadata.collect::<Result<_>>().map_err(|error| format!("metadata: {error}"))?;
        }
        state.with_answers(|answers| answers.compiled = Some(region));
        Ok(())
    });
}

unsafe extern "C" fn loaded(call: *mut abi::Call, table: *const abi::Executable, this: *mut c_void) {
    in_call(call, "loaded", |state| {
        let table = read_sized(table, "a table")?;
        let executable = CExecutable::new(state.plugin.clone(), state.host.clone(), state.symbol, table, this)?;
        state.with_answers(|answers| answers.loaded = Some(Box::new(executable)));
        Ok(())
    });
}

unsafe extern "C" fn output(call: *mut abi::Call, dims: *const i64, count: usize, exact: i32) {
    in_call(call, "output", |state| {
        let dims = list(dims, count, "dimensions")?;
        let sizes =
            dims.iter().map(|&dim| usize::try_from(dim).map_err(|_| format!("expected a dimension >= 0, found {dim}")));
        let dims = sizes.collect::<Result<_, String>>()?;
        state.with_answers(|answers| answers.prepared.outputs.push(OutputDims { dims, exact: exact != 0 }));
        Ok(())
    });
}

unsafe extern "C" fn prepared(call: *mut abi::Call, workspace: usize, plan: u64) {
    in_call(call, "prepared", |state| {
        state.with_answers(|answers| (answers.prepared.workspace, answers.prepared.plan) = (workspace, plan));
        Ok(())
    });
}

/// Returns the services behind a host function table.
fn services<'a>(host: *const abi::Host) -> Option<&'a Services> {
    // SAFETY: every table that the host passes to a plugin is the beginning of a `HostTable`.
    (!host.is_null()).then(|| unsafe { &(*host.cast::<HostTable>()).services })
}

unsafe extern "C" fn num_threads(host: *const abi::Host) -> usize {
    services(host).map_or(1, |services| run_guarded(|| services.num_threads()).max(1))
}

/// Function and argument that a plugin passed to `parallel_for` or `parallel_for_workers`.
#[derive(Clone, Copy)]
struct Task<F> {
    run: F,
    context: *mut c_void,
}

// SAFETY: the header requires that a task of `parallel_for` can be called on several threads.
unsafe impl<F: Send> Send for Task<F> {}
// SAFETY: the header requires that a task of `parallel_for` can be called on several threads.
unsafe impl<F: Sync> Sync for Task<F> {}

unsafe extern "C" fn parallel_for(
    call: *mut abi::Call,
    count: usize,
    task: Option<unsafe extern "C" fn(*mut c_void, usize)>,
    context: *mut c_void,
) -> i32 {
    in_call(call, "parallel_for", |state| {
        let task = Task { run: task.ok_or("task: expected a function, found NULL")?, context };
        let result = state.host.services.parallel_for(count, move |index| {
            let task = task;
            // SAFETY: the header requires that the plugin's function accepts the plugin's argument and every index.
            unsafe { (task.run)(task.context, index) }
        });
        Ok(status(state, result))
    })
    .0
}

unsafe extern "C" fn parallel_for_workers(
    call: *mut abi::Call,
    count: usize,
    task: Option<abi::WorkerTask>,
    context: *mut c_void,
) -> i32 {
    in_call(call, "parallel_for_workers", |state| {
        let task = Task { run: task.ok_or("task: expected a function, found NULL")?, context };
        let result = state.host.services.parallel_for_workers(count, move |worker, index| {
            let task = task;
            // SAFETY: the header requires that the plugin's function accepts the plugin's argument and every index.
            unsafe { (task.run)(task.context, worker, index) }
        });
        Ok(status(state, result))
    })
    .0
}

/// Converts a service's result into a status, and records an error as the failure of the call.
fn status(state: &CallState<'_>, result: Result<()>) -> Status {
    match result {
        Ok(()) => Status(OK),
        Err(error) => {
            state.with_answers(|answers| answers.failure = Some(error));
            Status(ERROR)
        }
    }
}

/// Status of a host function. The default, for a call that could not start, is an error.
struct Status(i32);

impl Default for Status {
    fn default() -> Status {
        Status(ERROR)
    }
}

unsafe extern "C" fn event(host: *const abi::Host, name: *const c_char, fields: *const c_char) {
    let Some(services) = services(host) else { return };
    run_guarded(|| {
        let fields = read_text(fields).unwrap_or_default();
        let fields = serde_json::from_str(&fields).unwrap_or_else(|_| Value::String(fields));
        services.event(&read_text(name).unwrap_or_default(), &fields);
    });
}

unsafe extern "C" fn counter(host: *const abi::Host, name: *const c_char, amount: u64) {
    let Some(services) = services(host) else { return };
    run_guarded(|| services.counter(&read_text(name).unwrap_or_default(), amount));
}

unsafe extern "C" fn log_level(host: *const abi::Host) -> i32 {
    services(host).map_or(0, |services| run_guarded(|| services.level_number()))
}

unsafe extern "C" fn log(host: *const abi::Host, level: i32, target: *const c_char, message: *const c_char) {
    let Some(services) = services(host) else { return };
    run_guarded(|| {
        services.log_number(level, &read_text(target).unwrap_or_default(), &read_text(message).unwrap_or_default())
    });
}

unsafe extern "C" fn cancelled(host: *const abi::Host) -> i32 {
    services(host).map_or(0, |services| i32::from(run_guarded(|| services.cancelled())))
}

unsafe extern "C" fn get_service(host: *const abi::Host, name: *const c_char) -> *mut c_void {
    let Some(services) = services(host) else { return std::ptr::null_mut() };
    guard(|| Ok(services.get_service(&read_text(name).unwrap_or_default())))
        .ok()
        .flatten()
        .map_or(std::ptr::null_mut(), std::ptr::NonNull::as_ptr)
}

unsafe extern "C" fn reference(
    call: *mut abi::Call,
    graph: *const c_char,
    constants: *const *const CConstant,
    count: usize,
) -> *mut CReference {
    let executable = in_call(call, "reference", |state| {
        let graph = require_text(graph, "graph")?;
        let handles = list(constants, count, "constants")?;
        if handles.iter().any(|handle| handle.is_null()) {
            return Err("constants: expected handles, found NULL".into());
        }
        // SAFETY: the plugin received these handles and has not released them.
        let constants: Vec<Constant> = handles.iter().map(|&handle| unsafe { &*handle }.0.clone()).collect();
        let executable = Graph::from_json(&graph).and_then(|graph| state.host.services.reference(&graph, &constants));
        Ok(executable.map_err(|error| state.with_answers(|answers| answers.failure = Some(error))).ok())
    });
    executable.map_or(std::ptr::null_mut(), |executable| Box::into_raw(Box::new(CReference(executable))))
}

/// Runs the body of a reference function, and records an error of `body` as the failure of the call.
fn in_reference(
    reference: *const CReference,
    call: *mut abi::Call,
    name: &str,
    body: impl FnOnce(&dyn Executable, &CallState<'_>) -> Result<(), Error>,
) -> i32 {
    in_call(call, name, |state| {
        // SAFETY: the plugin passes null or a reference that it has not released.
        let reference = unsafe { reference.as_ref() }.ok_or("reference: expected a handle, found NULL")?;
        Ok(status(state, body(&*reference.0, state)))
    })
    .0
}

unsafe extern "C" fn reference_prepare(
    reference: *const CReference,
    call: *mut abi::Call,
    inputs: *const abi::Dims,
    count: usize,
) -> i32 {
    in_reference(reference, call, "reference_prepare", |executable, state| {
        let slices = list(inputs, count, "inputs")?;
        let mut dims: Vec<Vec<usize>> = Vec::with_capacity(count);
        for slice in slices {
            let sizes = list(slice.data, slice.count, "dimensions")?.iter();
            let sizes =
                sizes.map(|&dim| usize::try_from(dim).map_err(|_| format!("expected a dimension >= 0, found {dim}")));
            dims.push(sizes.collect::<Result<_, String>>()?);
        }
        let dims: Vec<&[usize]> = dims.iter().map(Vec::as_slice).collect();
        let preparation = executable.prepare(&dims)?;
        state.with_answers(|answers| answers.prepared = preparation);
        Ok(())
    })
}

unsafe extern "C" fn reference_run(reference: *const CReference, call: *mut abi::Call, run: *const abi::Run) -> i32 {
    in_reference(reference, call, "reference_run", |executable, _| {
        let run = read_sized(run, "a run")?;
        let inputs: &[TensorRef<'_>] = list(run.inputs.cast(), run.input_count, "inputs")?;
        // SAFETY: `TensorMut` is a transparent wrapper around `Tensor`, and the plugin lends the outputs exclusively to
        // the run.
        let outputs: &mut [TensorMut<'_>] = unsafe { list_mut(run.outputs.cast(), run.output_count, "outputs") }?;
        // SAFETY: the plugin lends `workspace_size` bytes exclusively to the run.
        let workspace: &mut [u8] = unsafe { list_mut(run.workspace.cast(), run.workspace_size, "workspace") }?;
        executable.run(Call { inputs, outputs, workspace, plan: run.plan })
    })
}
