//! The functions of the host that a C plugin calls: its answers, and the services. Every one is guarded: C knows no panics.

use super::abi::{self, ERROR, OK};
use super::call::{CallState, HostTable, in_call};
use super::foreign;
use super::handles::{
    CConstant, CReference, constant_digest, constant_release, constant_retain, constant_tensor, guarded,
    reference_release,
};
use super::objects::{CCodegen, CExecutable, CLoader};
use crate::backend::{Call, CompiledRegion, Executable, OutputDims, Refusal, Source, Verdict};
use crate::constant::Constant;
use crate::error::{Error, Result};
use crate::graph::{Attr, Graph};
use crate::graph_json::read_value;
use crate::guard::guard;
use crate::host::loaded::Offer;
use crate::services::Services;
use crate::tensor::{TensorMut, TensorRef};
use abi_stable::std_types::{ROption, RString};
use serde_json::{Map, Value};
use std::ffi::{CStr, c_char, c_void};
use std::sync::Arc;

/// The table over these services.
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
    };
    Arc::new(HostTable { table, services: services.clone() })
}

/// A text of the plugin's.
fn text(from: *const c_char) -> Option<String> {
    if from.is_null() {
        return None;
    }
    // SAFETY: texts end with a NUL.
    Some(unsafe { CStr::from_ptr(from) }.to_string_lossy().into_owned())
}

fn needed(from: *const c_char, what: &str) -> Result<String, String> {
    text(from).ok_or_else(|| format!("{what} is NULL"))
}

/// A list of the plugin's; `what` is what it is called where it should be and is not.
///
/// # Safety
/// `data` points at so many items, or there are none.
unsafe fn list<'a, T>(data: *const T, count: usize, what: &str) -> Result<&'a [T], String> {
    match (data.is_null(), count) {
        (_, 0) => Ok(&[]),
        (true, count) => Err(format!("{what}: {count} at NULL")),
        // SAFETY: the caller's.
        (false, count) => Ok(unsafe { std::slice::from_raw_parts(data, count) }),
    }
}

/// The same for a list that is written to.
///
/// # Safety
/// As for [`list`]; nobody else looks at it meanwhile.
unsafe fn list_mut<'a, T>(data: *mut T, count: usize, what: &str) -> Result<&'a mut [T], String> {
    // SAFETY: the caller's.
    unsafe { list(data, count, what) }?;
    match count {
        0 => Ok(&mut []),
        // SAFETY: the caller's.
        count => Ok(unsafe { std::slice::from_raw_parts_mut(data, count) }),
    }
}

unsafe extern "C" fn fail(call: *mut abi::Call, message: *const c_char, hint: *const c_char) {
    in_call(call, "fail", |state| {
        let error = Error::new(text(message).unwrap_or_default()).hint(text(hint).unwrap_or_default());
        state.with(|answers| answers.failure = Some(error));
        Ok(())
    });
}

unsafe extern "C" fn rename(call: *mut abi::Call, name: *const c_char) {
    in_call(call, "rename", |state| {
        let name = needed(name, "the name")?;
        state.with(|answers| answers.name = Some(name));
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
        let name = needed(name, "the name")?;
        // SAFETY: the plugin's table is as long as it says.
        let table = unsafe { abi::read(table) }.ok_or("no table, or one without a struct_size")?;
        let codegen = CCodegen::new(state.plugin.clone(), state.host.clone(), table, this)?;
        state.with(|answers| answers.registrations.push((name, Offer::Codegen(Arc::new(codegen)))));
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
        let key = needed(key, "the key")?;
        // SAFETY: as above.
        let table = unsafe { abi::read(table) }.ok_or("no table, or one without a struct_size")?;
        let loader = CLoader::new(state.plugin.clone(), state.host.clone(), table, this)?;
        state.with(|answers| answers.registrations.push((key, Offer::Loader(Arc::new(loader)))));
        Ok(())
    });
}

unsafe extern "C" fn register_data(call: *mut abi::Call, name: *const c_char, json: *const c_char) {
    in_call(call, "register_data", |state| {
        let (name, json) = (needed(name, "the name")?, needed(json, "the data")?);
        state.with(|answers| answers.registrations.push((name, Offer::Data(json))));
        Ok(())
    });
}

unsafe extern "C" fn answer(call: *mut abi::Call, data: *const c_void, size: usize) {
    in_call(call, "answer", |state| {
        let bytes = foreign::copy(data, size, "the answer")?;
        state.with(|answers| answers.bytes = Some(bytes));
        Ok(())
    });
}

fn verdict(state: &CallState<'_>, index: usize, verdict: Verdict) -> Result<(), String> {
    state.with(|answers| {
        let count = answers.verdicts.len();
        let slot = answers.verdicts.get_mut(index).ok_or_else(|| format!("candidate {index}, of {count}"))?;
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
            code: needed(code, "the code")?.into(),
            detail: needed(detail, "the detail")?.into(),
            hint: text(hint).unwrap_or_default().into(),
        };
        verdict(state, index, Verdict::Refused(refusal))
    });
}

unsafe extern "C" fn compiled(call: *mut abi::Call, result: *const abi::Compiled) {
    in_call(call, "compiled", |state| {
        // SAFETY: the plugin's structure is as long as it says.
        let result = unsafe { abi::read(result) }.ok_or("no result, or one without a struct_size")?;
        let blob = foreign::copy(result.blob, result.blob_size, "the blob")?;
        let mut region = CompiledRegion::new(state.symbol, &needed(result.loader, "the loader")?, blob);
        if !result.symbols.is_null() {
            // SAFETY: the plugin's list is as long as it says.
            let symbols = unsafe { list(result.symbols, result.symbol_count, "the symbols") }?;
            let symbols = symbols.iter().map(|&symbol| needed(symbol, "a symbol").map(RString::from));
            region.symbols = symbols.collect::<Result<_, String>>()?;
        }
        if let (Some(language), Some(source)) = (text(result.source_language), text(result.source)) {
            region.source = ROption::RSome(Source { language: language.into(), text: source.into() });
        }
        region.notes = text(result.notes).unwrap_or_default().lines().map(RString::from).collect();
        if let Some(metadata) = text(result.metadata) {
            let facts: Map<String, Value> =
                serde_json::from_str(&metadata).map_err(|error| format!("the metadata is no JSON object: {error}"))?;
            let facts =
                facts.iter().map(|(key, value)| Ok(Attr { key: key.as_str().into(), value: read_value(value)? }));
            region.metadata = facts.collect::<Result<_>>().map_err(|error| format!("the metadata: {error}"))?;
        }
        state.with(|answers| answers.compiled = Some(region));
        Ok(())
    });
}

unsafe extern "C" fn loaded(call: *mut abi::Call, table: *const abi::Executable, this: *mut c_void) {
    in_call(call, "loaded", |state| {
        // SAFETY: the plugin's table is as long as it says.
        let table = unsafe { abi::read(table) }.ok_or("no table, or one without a struct_size")?;
        let executable = CExecutable::new(state.plugin.clone(), state.host.clone(), state.symbol, table, this)?;
        state.with(|answers| answers.loaded = Some(Box::new(executable)));
        Ok(())
    });
}

unsafe extern "C" fn output(call: *mut abi::Call, dims: *const i64, count: usize, exact: i32) {
    in_call(call, "output", |state| {
        // SAFETY: the plugin's list is as long as it says.
        let dims = unsafe { list(dims, count, "the dimensions") }?;
        let sizes = dims.iter().map(|&dim| usize::try_from(dim).map_err(|_| format!("a dimension of {dim}")));
        let dims = sizes.collect::<Result<_, String>>()?;
        state.with(|answers| answers.prepared.outputs.push(OutputDims { dims, exact: exact != 0 }));
        Ok(())
    });
}

unsafe extern "C" fn prepared(call: *mut abi::Call, workspace: usize, plan: u64) {
    in_call(call, "prepared", |state| {
        state.with(|answers| (answers.prepared.workspace, answers.prepared.plan) = (workspace, plan));
        Ok(())
    });
}

/// The services behind a host table.
fn services<'a>(host: *const abi::Host) -> Option<&'a Services> {
    // SAFETY: every table that a plugin gets is the beginning of a `HostTable`.
    (!host.is_null()).then(|| unsafe { &(*host.cast::<HostTable>()).services })
}

unsafe extern "C" fn num_threads(host: *const abi::Host) -> usize {
    services(host).map_or(1, |services| guarded(|| services.num_threads()).max(1))
}

/// A function and its argument of the plugin's, which says that several threads may call it.
#[derive(Clone, Copy)]
struct Task {
    run: unsafe extern "C" fn(*mut c_void, usize),
    context: *mut c_void,
}

// SAFETY: what the plugin hands to `parallel_for` is called on several threads, as the header says.
unsafe impl Send for Task {}
// SAFETY: as above.
unsafe impl Sync for Task {}

unsafe extern "C" fn parallel_for(
    call: *mut abi::Call,
    count: usize,
    task: Option<unsafe extern "C" fn(*mut c_void, usize)>,
    context: *mut c_void,
) -> i32 {
    in_call(call, "parallel_for", |state| {
        let task = Task { run: task.ok_or("the task is NULL")?, context };
        let outcome = state.host.services.parallel_for(count, move |index| {
            let task = task;
            // SAFETY: the plugin's function with the plugin's argument.
            unsafe { (task.run)(task.context, index) }
        });
        Ok(match outcome {
            Ok(()) => Status(OK),
            Err(error) => {
                state.with(|answers| answers.failure = Some(error));
                Status(ERROR)
            }
        })
    })
    .0
}

/// A status; a function that could not even begin has failed.
struct Status(i32);

impl Default for Status {
    fn default() -> Status {
        Status(ERROR)
    }
}

unsafe extern "C" fn event(host: *const abi::Host, name: *const c_char, fields: *const c_char) {
    let Some(services) = services(host) else { return };
    guarded(|| {
        let fields = text(fields).unwrap_or_default();
        let fields = serde_json::from_str(&fields).unwrap_or_else(|_| Value::String(fields));
        services.event(&text(name).unwrap_or_default(), &fields);
    });
}

unsafe extern "C" fn counter(host: *const abi::Host, name: *const c_char, amount: u64) {
    let Some(services) = services(host) else { return };
    guarded(|| services.counter(&text(name).unwrap_or_default(), amount));
}

unsafe extern "C" fn log_level(host: *const abi::Host) -> i32 {
    services(host).map_or(0, |services| guarded(|| services.level_number()))
}

unsafe extern "C" fn log(host: *const abi::Host, level: i32, target: *const c_char, message: *const c_char) {
    let Some(services) = services(host) else { return };
    guarded(|| services.log_number(level, &text(target).unwrap_or_default(), &text(message).unwrap_or_default()));
}

unsafe extern "C" fn cancelled(host: *const abi::Host) -> i32 {
    services(host).map_or(0, |services| i32::from(guarded(|| services.cancelled())))
}

unsafe extern "C" fn get_service(host: *const abi::Host, name: *const c_char) -> *mut c_void {
    let Some(services) = services(host) else { return std::ptr::null_mut() };
    guard(|| Ok(services.get_service(&text(name).unwrap_or_default())))
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
    let made = in_call(call, "reference", |state| {
        let graph = needed(graph, "the graph")?;
        // SAFETY: the plugin's list is as long as it says.
        let handles = unsafe { list(constants, count, "the constants") }?;
        if handles.iter().any(|handle| handle.is_null()) {
            return Err("a constant is NULL".into());
        }
        // SAFETY: handles that the plugin was given, and has not given back.
        let constants: Vec<Constant> = handles.iter().map(|&handle| unsafe { &*handle }.0.clone()).collect();
        let made = Graph::from_json(&graph).and_then(|graph| state.host.services.reference(&graph, &constants));
        Ok(made.map_err(|error| state.with(|answers| answers.failure = Some(error))).ok())
    });
    made.map_or(std::ptr::null_mut(), |executable| Box::into_raw(Box::new(CReference(executable))))
}

/// Runs the body of an entry of a reference; its error is the call's.
fn in_reference(
    reference: *const CReference,
    call: *mut abi::Call,
    name: &str,
    body: impl FnOnce(&dyn Executable, &CallState<'_>) -> Result<(), Error>,
) -> i32 {
    in_call(call, name, |state| {
        // SAFETY: null, or a reference that the plugin has not released.
        let reference = unsafe { reference.as_ref() }.ok_or("the reference is NULL")?;
        Ok(match body(&*reference.0, state) {
            Ok(()) => Status(OK),
            Err(error) => {
                state.with(|answers| answers.failure = Some(error));
                Status(ERROR)
            }
        })
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
        // SAFETY: the plugin hands on what `prepare` got.
        let given = unsafe { list(inputs, count, "the inputs") }?;
        let mut dims: Vec<Vec<usize>> = Vec::with_capacity(count);
        for given in given {
            // SAFETY: as above.
            let sizes = unsafe { list(given.data, given.count, "the dimensions") }?.iter();
            let sizes: Option<Vec<usize>> = sizes.map(|&size| usize::try_from(size).ok()).collect();
            dims.push(sizes.ok_or_else(|| Error::new("a dimension below zero"))?);
        }
        let dims: Vec<&[usize]> = dims.iter().map(Vec::as_slice).collect();
        let prepared = executable.prepare(&dims)?;
        state.with(|answers| answers.prepared = prepared);
        Ok(())
    })
}

unsafe extern "C" fn reference_run(reference: *const CReference, call: *mut abi::Call, run: *const abi::Run) -> i32 {
    in_reference(reference, call, "reference_run", |executable, _| {
        // SAFETY: the plugin hands on what `run` got, or its like.
        let run = unsafe { abi::read(run) }.ok_or_else(|| Error::new("no run, or one without a struct_size"))?;
        // SAFETY: a `TensorRef` is a `Tensor` with a lifetime.
        let inputs: &[TensorRef<'_>] = unsafe { list(run.inputs.cast(), run.input_count, "the inputs") }?;
        // SAFETY: the same for a `TensorMut`.
        let outputs: &mut [TensorMut<'_>] = unsafe { list_mut(run.outputs.cast(), run.output_count, "the outputs") }?;
        // SAFETY: the run's workspace is as long as it says.
        let workspace: &mut [u8] = unsafe { list_mut(run.workspace.cast(), run.workspace_size, "the workspace") }?;
        executable.run(Call { inputs, outputs, workspace, plan: run.plan })
    })
}
