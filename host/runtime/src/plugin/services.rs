//! Host services for plugins: threads, log, trace, counters, reference runs.

use super::from_graph::{dtype_from_api, module_of};
use super::to_graph::{dtype_to_api, flat_types};
use crate::cancel::Cancel;
use crate::exec::Pool;
use byoc_ir::cancel;
use byoc_ir::diag::Diagnostic;
use byoc_ir::ir::Module;
use byoc_ir::op::interpret::{Tensors, Values, interpret};
use byoc_ir::tensor::Tensor;
use byoc_plugin_api::device::STREAM_SERVICE;
use byoc_plugin_api::host::{device, entries, run_options};
use byoc_plugin_api::run_options::RUN_OPTIONS_SERVICE;
use byoc_plugin_api::{
    Call, Constant, Error, Executable, Graph, HostServices, NodeKind, Prepared, Result, Services, TensorType,
};
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use tracing::Level;

/// Plugin counters by name, such as device cycles or bytes moved. After a call to [`Metrics::record`], events and their
/// times are recorded as well.
#[derive(Debug, Default)]
pub struct Metrics {
    counters: Mutex<BTreeMap<String, u64>>,
    recorded_events: Mutex<Option<Vec<RecordedEvent>>>,
}

/// Event or counter update of a plugin, for the trace.
#[derive(Clone, Debug)]
pub struct RecordedEvent {
    /// Time of the event.
    pub at: Instant,
    /// Name of the event or counter.
    pub name: String,
    /// Content of the event.
    pub payload: EventPayload,
}

/// Event, or the new value of a counter.
#[derive(Clone, Debug)]
pub enum EventPayload {
    /// Fields of an event.
    Event(serde_json::Value),
    /// New value of a counter.
    Count(u64),
}

impl Metrics {
    /// Returns the current values of the counters, by name.
    pub fn snapshot(&self) -> BTreeMap<String, u64> {
        self.counters.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Starts recording events and counter updates, for [`Metrics::take_recorded`].
    pub fn record(&self) {
        *self.recorded_events.lock().unwrap_or_else(PoisonError::into_inner) = Some(Vec::new());
    }

    /// Stops recording and returns the recorded events, in order.
    pub fn take_recorded(&self) -> Vec<RecordedEvent> {
        self.recorded_events.lock().unwrap_or_else(PoisonError::into_inner).take().unwrap_or_default()
    }

    pub(super) fn add(&self, name: &str, increment: u64) {
        let mut counters = self.counters.lock().unwrap_or_else(PoisonError::into_inner);
        // A counter that exists is found without a copy of its name, as backends count in every run.
        let new_total = match counters.get_mut(name) {
            Some(counter) => {
                *counter = counter.saturating_add(increment);
                *counter
            }
            None => *counters.entry(name.to_owned()).or_insert(increment),
        };
        drop(counters);
        self.record_event(name, || EventPayload::Count(new_total));
    }

    fn record_event(&self, name: &str, payload: impl FnOnce() -> EventPayload) {
        let mut recorded_events = self.recorded_events.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(events) = &mut *recorded_events {
            events.push(RecordedEvent { at: Instant::now(), name: name.to_owned(), payload: payload() });
        }
    }
}

/// Creates the services for plugins on top of a thread pool; the service `cancelled` reports the state of `cancel`.
pub fn services(pool: Arc<Pool>, metrics: Arc<Metrics>, cancel: Cancel) -> Services {
    Services::new(Host { pool, metrics, cancel })
}

/// Service of a crate above this one, such as a writer of models: a program has those of the crates that it links.
pub struct Service {
    /// Name, with the version in it.
    pub name: &'static str,
    /// Returns the function table, which lives as long as the process.
    pub table: fn() -> NonNull<c_void>,
}

inventory::collect!(Service);

struct Host {
    pool: Arc<Pool>,
    metrics: Arc<Metrics>,
    cancel: Cancel,
}

impl HostServices for Host {
    fn num_threads(&self) -> usize {
        self.pool.threads()
    }

    fn parallel_for(&self, count: usize, task: &(dyn Fn(usize) + Sync)) {
        self.pool.parallel_for(count, task);
    }

    fn event(&self, name: &str, fields: &serde_json::Value) {
        self.metrics.record_event(name, || EventPayload::Event(fields.clone()));
        tracing::info!(target: "byoc::plugin", event = name, %fields);
    }

    fn counter(&self, name: &str, increment: u64) {
        self.metrics.add(name, increment);
        tracing::trace!(target: "byoc::plugin", counter = name, increment);
    }

    fn log_level(&self) -> Option<Level> {
        tracing::level_filters::LevelFilter::current().into_level()
    }

    fn log(&self, level: Level, target: &str, message: &str) {
        // A tracing callsite has a fixed level, so there is one callsite per level; the plugin's target becomes a field
        // of the message.
        match level {
            Level::ERROR => tracing::error!(target: "byoc::plugin", plugin = target, "{message}"),
            Level::WARN => tracing::warn!(target: "byoc::plugin", plugin = target, "{message}"),
            Level::INFO => tracing::info!(target: "byoc::plugin", plugin = target, "{message}"),
            Level::DEBUG => tracing::debug!(target: "byoc::plugin", plugin = target, "{message}"),
            Level::TRACE => tracing::trace!(target: "byoc::plugin", plugin = target, "{message}"),
        }
    }

    fn cancelled(&self) -> bool {
        self.cancel.is_set() || cancel::is_requested() || entries::is_shut_down()
    }

    fn get_service(&self, name: &str) -> Option<NonNull<c_void>> {
        match name {
            STREAM_SERVICE => Some(device::stream_service()),
            RUN_OPTIONS_SERVICE => Some(run_options::service()),
            _ => inventory::iter::<Service>().find(|service| service.name == name).map(|service| (service.table)()),
        }
    }

    fn reference(&self, graph: &Graph, constants: &[Constant]) -> Result<Box<dyn Executable>> {
        let module = module_of(graph, constants).map_err(|d| Error::new(d.to_string()))?;
        Ok(Box::new(Reference { module, graph: graph.clone(), constants: constants.to_vec() }))
    }
}

/// Maximum size in bytes of a value in a reference run.
const MAX_VALUE_BYTES: usize = 4 << 30;

/// Graph that is evaluated call by call with the reference implementations, for correctness rather than speed. Values
/// are retained until the run ends.
struct Reference {
    module: Module,
    graph: Graph,
    constants: Vec<Constant>,
}

impl Reference {
    /// Returns the module for inputs with the dimensions `inputs`; the dimensions of the results are inferred.
    fn with_dims(&self, inputs: &[&[usize]]) -> std::result::Result<Module, Box<Diagnostic>> {
        let mut graph = self.graph.clone();
        for (input, dims) in graph.inputs.iter_mut().zip(inputs) {
            input.ty = TensorType::new(input.ty.dtype, dims);
        }
        for node in &mut graph.nodes {
            if let NodeKind::Input(index) = node.kind
                && let Some(input) = graph.inputs.get(index as usize)
            {
                node.outputs = [input.ty.clone()].into_iter().collect();
            }
        }
        module_of(&graph, &self.constants)
    }

    fn evaluate(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        let Some(main) = self.module.main() else {
            return Err(Error::new("expected a graph with outputs, found none"));
        };
        let inputs = inputs.iter().map(|input| vec![input.clone()]);
        let mut values: Values<Tensor> = main.params.iter().copied().zip(inputs).collect();
        let domain = Tensors { max_bytes: MAX_VALUE_BYTES };
        interpret(&self.module, main.body, &domain, &mut values).map_err(Error::new)?;
        Ok(values.remove(&main.body).unwrap_or_default())
    }
}

impl Executable for Reference {
    fn prepare(&self, inputs: &[&[usize]]) -> Result<Prepared> {
        let Some(main) = self.module.main() else {
            return Err(Error::new("expected a graph with outputs, found none"));
        };
        for (&param, dims) in main.params.iter().zip(inputs) {
            let ty = self.module.ty(param);
            let is_compatible = ty.as_tensor().is_some_and(|t| {
                t.dims.len() == dims.len() && t.dims.iter().zip(*dims).all(|(d, n)| d.fixed().is_none_or(|d| d == *n))
            });
            if !is_compatible {
                return Err(Error::new(format!("expected an input of type {ty}, found dimensions {dims:?}")));
            }
        }
        let module = self.with_dims(inputs).map_err(|d| Error::new(d.to_string()))?;
        let output_types = match module.main() {
            Some(main) => flat_types(module.ty(main.body)).map_err(|d| Error::new(d.to_string()))?,
            None => Vec::new(),
        };
        let shapes: Option<Vec<Vec<usize>>> =
            output_types.iter().map(|ty| ty.shape().map(|shape| shape.to_vec())).collect();
        match shapes {
            Some(shapes) => Ok(Prepared::exact(shapes)),
            None => Err(Error::new(
                "expected result dimensions that follow from the input dimensions, found data-dependent dimensions",
            )),
        }
    }

    fn run(&self, call: Call<'_, '_>) -> Result<()> {
        let reference_error = |message: &str| Error::new(format!("reference run: {message}"));
        let params = self.module.main().map_or(&[][..], |main| &main.params);
        let mut inputs = Vec::with_capacity(call.inputs.len());
        for (&param, input) in params.iter().zip(call.inputs) {
            let param_type = self.module.ty(param);
            let dtype = dtype_from_api(input.dtype()).map_err(|diagnostic| reference_error(&diagnostic.message))?;
            if param_type.as_tensor().is_none_or(|ty| ty.dtype != dtype) {
                return Err(reference_error(&format!("expected an input of type {param_type}, found {dtype}")));
            }
            let tensor = Tensor::from_bytes(dtype, input.shape(), input.bytes());
            inputs.push(tensor.ok_or_else(|| {
                reference_error(&format!("expected data of type {param_type}, found {} bytes", input.bytes().len()))
            })?);
        }
        let results = self.evaluate(&inputs)?;
        for (output, result) in call.outputs.iter_mut().zip(results) {
            if output.dtype() != dtype_to_api(result.dtype()) || output.shape() != result.shape() {
                let output_dtype = output.dtype();
                return Err(reference_error(&format!(
                    "expected an output {result:?}, found {output_dtype} {:?}",
                    output.shape()
                )));
            }
            let bytes = output.bytes_mut();
            bytes.copy_from_slice(result.bytes());
        }
        Ok(())
    }
}
