//! Adapter from a plugin's executable to a region of the executor.
//!
//! By default a run gets the executor's own memory, without copies and without checks. With `BYOC_CHECK_REGIONS` set,
//! every run uses guarded copies, and a plugin that writes outside its outputs is reported. A thread cannot be stopped
//! from outside, so a run that does not return continues until `--timeout` ends the process; the last line of output
//! names the plugin. At level debug (`-vv`), each run is logged before it starts.

use super::bridge::dtype_to_api;
use super::fault;
use super::guard::{GuardedBuffer, first_damage};
use crate::exec::region::{OutputDims, Prepared, Region, RegionCall};
use byoc_ir::diag::{Diagnostic, codes};
use byoc_ir::tensor::{OutOfMemory, Shape, TensorView, TensorViewMut, memory};
use byoc_plugin_api::host::device::{self, Event};
use byoc_plugin_api::{AttrValue, Call, Executable, TensorMut, TensorRef};
use smallvec::SmallVec;
use std::sync::{Arc, Mutex, PoisonError};

/// Loaded region of a plugin.
pub struct PluginRegion {
    executable: Box<dyn Executable>,
    /// Prefix of messages: plugin, entry and region.
    label: String,
    plugin: String,
    checked: bool,
    /// Lock of a backend that serves one run at a time.
    one_run: Option<Arc<Mutex<()>>>,
    may_be_lost: bool,
}

/// Key of a region's `query`: the JSON boolean `true` if a run may fail because the device is gone.
const MAY_BE_LOST: &str = "region.may_be_lost";

impl PluginRegion {
    /// Wraps the executable that a loader returned for the region `symbol` of `plugin`.
    pub fn new(executable: Box<dyn Executable>, symbol: &str, plugin: &str) -> PluginRegion {
        let checked = std::env::var_os("BYOC_CHECK_REGIONS").is_some_and(|value| !value.is_empty() && value != "0");
        let label = format!("plugin {plugin}: run: region {symbol}");
        let may_be_lost = matches!(executable.query(MAY_BE_LOST, b"{}"), Ok(Some(answer)) if answer == b"true");
        PluginRegion { executable, label, plugin: plugin.to_owned(), checked, one_run: None, may_be_lost }
    }

    /// Declares that the region runs on a device with memory of its own, which may be lost.
    pub fn with_device(self) -> PluginRegion {
        PluginRegion { may_be_lost: true, ..self }
    }

    /// Lets one region run at a time of those that share the lock.
    pub fn one_at_a_time(mut self, one_run: Arc<Mutex<()>>) -> PluginRegion {
        self.one_run = Some(one_run);
        self
    }

    /// Runs with guarded copies of all memory.
    fn run_checked(&self, call: RegionCall<'_, '_>) -> Result<(), Diagnostic> {
        const POISON: u8 = 0xa5;
        let label = &self.label;
        // The copies need as much memory as the originals.
        let bytes = call.inputs.iter().map(|t| t.data.len()).chain(call.outputs.iter().map(|t| t.data.len()));
        let _reservation = memory::reserve(bytes.chain([call.workspace.len()]).fold(0, usize::saturating_add))?;
        let inputs = call.inputs.iter().map(|t| GuardedBuffer::copy_of(t.data, POISON));
        let inputs = inputs.collect::<Result<Vec<GuardedBuffer>, OutOfMemory>>()?;
        let outputs = call.outputs.iter().map(|t| GuardedBuffer::new(t.data.len(), POISON, POISON));
        let mut outputs = outputs.collect::<Result<Vec<GuardedBuffer>, OutOfMemory>>()?;
        let mut workspace = GuardedBuffer::new(call.workspace.len(), POISON, POISON)?;
        let views: Vec<TensorView<'_>> =
            call.inputs.iter().zip(&inputs).map(|(t, memory)| TensorView { data: memory.bytes(), ..*t }).collect();
        let mut targets: Vec<TensorViewMut<'_>> = call
            .outputs
            .iter()
            .zip(&mut outputs)
            .map(|(t, memory)| TensorViewMut { dtype: t.dtype, shape: t.shape, data: memory.bytes_mut() })
            .collect();
        self.run_unchecked(RegionCall {
            inputs: &views,
            outputs: &mut targets,
            shapes: call.shapes,
            workspace: workspace.bytes_mut(),
            plan: call.plan,
            device: call.device,
        })?;
        if let Some(damage) = first_damage(&outputs, &workspace, &inputs) {
            return Err(contract_violation(format!("{label}: {damage}")));
        }
        if let Some(i) = inputs.iter().zip(call.inputs).position(|(memory, t)| memory.bytes() != t.data) {
            return Err(contract_violation(format!("{label}: input {i} was written to")));
        }
        for (target, memory) in call.outputs.iter_mut().zip(&outputs) {
            target.data.copy_from_slice(memory.bytes());
        }
        Ok(())
    }
}

fn contract_violation(message: String) -> Diagnostic {
    Diagnostic::error(codes::runtime::REGION_FAILED, message)
        .help("run without the backend, and report it to the plugin's authors; byoc plugins test finds a small case")
}

impl Region for PluginRegion {
    fn prepare(&self, inputs: &[&[usize]]) -> Result<Prepared, Diagnostic> {
        let prepared = self.executable.prepare(inputs).map_err(|e| fault(&e))?;
        let outputs = prepared.outputs.iter().map(|o| OutputDims { dims: Shape::from_slice(&o.dims), exact: o.exact });
        // The workspace belongs to a run and not to the plan, but its size serves as an estimate if the plan declares
        // none.
        let declared = prepared.attrs.iter().find(|attr| attr.key == "bytes").map(|attr| &attr.value);
        let bytes = match declared {
            Some(AttrValue::Int(bytes)) => usize::try_from(*bytes).unwrap_or(0),
            _ => prepared.workspace,
        };
        Ok(Prepared { outputs: outputs.collect(), workspace: prepared.workspace, plan: prepared.plan, bytes })
    }

    fn may_be_lost(&self) -> bool {
        self.may_be_lost
    }

    fn release(&self, plan: u64) {
        let data = serde_json::json!({ "plan": plan }).to_string();
        if let Err(error) = self.executable.query("plan.release", data.as_bytes()) {
            tracing::warn!("{}: plan {plan} is not released: {}", self.label, fault(&error));
        }
    }

    fn run(&self, call: RegionCall<'_, '_>) -> Result<(), Diagnostic> {
        tracing::debug!(target: "byoc::region", "{} begins", self.label);
        let _one = self.one_run.as_deref().map(|one_run| one_run.lock().unwrap_or_else(PoisonError::into_inner));
        if self.checked { self.run_checked(call) } else { self.run_unchecked(call) }
    }

    fn start(&self, call: RegionCall<'_, '_>, dependencies: &[&Event]) -> Result<Option<Event>, Diagnostic> {
        if self.one_run.is_some() {
            return self.run(call).map(|()| None);
        }
        let (ran, event) = device::submitting(&self.plugin, dependencies, || self.run(call));
        ran?;
        Ok(event)
    }
}

impl PluginRegion {
    fn run_unchecked(&self, call: RegionCall<'_, '_>) -> Result<(), Diagnostic> {
        // `extend` writes in place, whereas the large result of `collect` would be moved.
        let mut inputs: SmallVec<[TensorRef<'_>; 8]> = SmallVec::new();
        let device = call.device;
        inputs.extend(call.inputs.iter().enumerate().map(
            |(i, t)| match device.and_then(|device| device.inputs.get(i)) {
                Some(Some(slice)) => slice.buffer.tensor(dtype_to_api(t.dtype), t.shape, slice.offset),
                _ => TensorRef::new(dtype_to_api(t.dtype), t.shape, t.data),
            },
        ));
        // Outputs of exact dimensions have no buffer for their shapes.
        let mut exact: SmallVec<[Shape; 4]> = SmallVec::new();
        if call.shapes.is_empty() {
            exact.extend(call.outputs.iter().map(|t| Shape::from_slice(t.shape)));
        }
        let mut outputs: SmallVec<[TensorMut<'_>; 4]> = SmallVec::new();
        let targets = call.outputs.iter_mut().zip(call.shapes.iter_mut().chain(&mut exact));
        outputs.extend(targets.enumerate().map(|(i, (t, shape))| match device.and_then(|d| d.outputs.get(i)) {
            Some(Some(slice)) => slice.buffer.tensor_mut(dtype_to_api(t.dtype), shape.as_mut_slice(), slice.offset),
            _ => TensorMut::new(dtype_to_api(t.dtype), shape.as_mut_slice(), t.data),
        }));
        let call = Call { inputs: &inputs, outputs: &mut outputs, workspace: call.workspace, plan: call.plan };
        self.executable.run(call).map_err(|e| fault(&e))
    }
}
