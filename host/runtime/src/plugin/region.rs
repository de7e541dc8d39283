//! Adapter from a plugin's executable to a region of the executor.
//!
//! By default a run receives the executor's memory directly, without copies or checks. With `BYOC_CHECK_REGIONS` set,
//! every run uses guarded copies, and a plugin that writes outside its outputs is reported. A thread cannot be
//! terminated externally, so a run that does not return continues until `--timeout` ends the process; the last line of
//! output names the plugin. At level debug (`-vv`), each run is logged before it starts.

use super::fault;
use super::guard::{GuardedBuffer, first_damage};
use super::run_slots::{RunSlot, RunSlots};
use super::to_graph::dtype_to_api;
use crate::exec::device::DeviceSlice;
use crate::exec::region::{OutputDims, Prepared, Region, RegionCall};
use byoc_ir::diag::{Diagnostic, codes};
use byoc_ir::tensor::{OutOfMemory, Shape, TensorView, TensorViewMut, memory};
use byoc_plugin_api::host::device::{self, Event};
use byoc_plugin_api::host::{InPlaceType, entries, in_place};
use byoc_plugin_api::{AttrValue, Call, Executable, TensorMut, TensorRef};
use smallvec::SmallVec;
use std::sync::Arc;

/// Loaded region of a plugin.
pub struct PluginRegion {
    executable: Box<dyn Executable>,
    /// Prefix of messages: plugin, entry and region.
    label: String,
    plugin: String,
    is_checked: bool,
    /// Slots that a run must acquire; empty for a region without a limit on concurrent runs.
    slots: Vec<Arc<RunSlots>>,
    /// True if runs change the state of the region.
    is_stateful: bool,
    may_be_lost: bool,
    needs_zeroed_memory: bool,
}

/// `query` key that resets a region to its state after `load`.
const RESET_STATE: &str = "state.reset";

/// `query` key whose response is the JSON boolean `true` if a run may fail because the device is lost.
const MAY_BE_LOST: &str = "region.may_be_lost";

impl PluginRegion {
    /// Wraps the executable that a loader returned for the region `symbol` of `plugin`.
    pub fn new(executable: Box<dyn Executable>, symbol: &str, plugin: &str) -> PluginRegion {
        let is_checked = std::env::var_os("BYOC_CHECK_REGIONS").is_some_and(|value| !value.is_empty() && value != "0");
        let label = format!("plugin {plugin}: run: region {symbol}");
        let may_be_lost = matches!(executable.query(MAY_BE_LOST, b"{}"), Ok(Some(answer)) if answer == b"true");
        let plugin = plugin.to_owned();
        PluginRegion {
            executable,
            label,
            plugin,
            is_checked,
            slots: Vec::new(),
            is_stateful: false,
            may_be_lost,
            needs_zeroed_memory: false,
        }
    }

    /// Declares that the blob of the region was read from a file, so the region may read memory that it has not
    /// written.
    pub fn with_zeroed_memory(self) -> PluginRegion {
        PluginRegion { needs_zeroed_memory: true, ..self }
    }

    /// Declares that the region runs on a device with separate memory, which may be lost.
    pub fn with_device(self) -> PluginRegion {
        PluginRegion { may_be_lost: true, ..self }
    }

    /// Limits the concurrent runs of all regions that share the slots.
    pub fn with_slots(mut self, slots: Arc<RunSlots>) -> PluginRegion {
        self.slots.push(slots);
        self
    }

    /// Declares that runs change the state of the region: runs are serialized, and the state can be reset.
    pub fn with_state(mut self) -> PluginRegion {
        self.is_stateful = true;
        self.with_slots(Arc::new(RunSlots::new(1)))
    }

    /// Acquires the slots for a run, always in the same order, waiting until they are free.
    fn acquire(&self) -> Vec<RunSlot<'_>> {
        self.slots.iter().map(|slots| slots.acquire()).collect()
    }

    /// Runs with guarded copies of all memory.
    fn run_checked(&self, call: RegionCall<'_, '_>) -> Result<(), Diagnostic> {
        const POISON: u8 = 0xa5;
        let label = &self.label;
        // The copies require as much memory as the originals.
        let bytes = call.inputs.iter().map(|t| t.data.len()).chain(call.outputs.iter().map(|t| t.data.len()));
        let _reservation = memory::reserve(bytes.chain([call.workspace.len()]).fold(0, usize::saturating_add))?;
        let inputs = call.inputs.iter().map(|t| GuardedBuffer::copy_of(t.data, POISON));
        let mut inputs = inputs.collect::<Result<Vec<GuardedBuffer>, OutOfMemory>>()?;
        let outputs = call.outputs.iter().map(|t| GuardedBuffer::new(t.data.len(), POISON, POISON));
        let mut outputs = outputs.collect::<Result<Vec<GuardedBuffer>, OutOfMemory>>()?;
        let mut workspace = GuardedBuffer::new(call.workspace.len(), POISON, POISON)?;
        // The copies do not overlap, so the region does not compute in place. An input that shares memory with an
        // output receives the initial contents of that output.
        for &[output, input] in call.in_place {
            inputs[input as usize] = GuardedBuffer::copy_of(call.outputs[output as usize].data, POISON)?;
        }
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
            in_place: &[],
            device: call.device,
        })?;
        if let Some(damage_text) = first_damage(&outputs, &workspace, &inputs) {
            return Err(contract_violation(format!("{label}: {damage_text}")));
        }
        let is_in_place = |i: usize| call.in_place.iter().any(|[_, input]| *input as usize == i);
        let damaged_input = |(i, (memory, t)): (usize, (&GuardedBuffer, &TensorView<'_>))| {
            (!is_in_place(i) && memory.bytes() != t.data).then_some(i)
        };
        if let Some(i) = inputs.iter().zip(call.inputs).enumerate().find_map(damaged_input) {
            return Err(contract_violation(format!("{label}: input {i} was written to")));
        }
        for (target, memory) in call.outputs.iter_mut().zip(&outputs) {
            target.data.copy_from_slice(memory.bytes());
        }
        Ok(())
    }
}

fn contract_violation(message: String) -> Diagnostic {
    Diagnostic::error(codes::runtime::REGION_FAILED, message).help(
        "run without the backend, and report the fault to the plugin's authors with a case from byoc plugins test",
    )
}

impl Region for PluginRegion {
    fn prepare(&self, inputs: &[&[usize]]) -> Result<Prepared, Diagnostic> {
        let prepare_result = self.executable.prepare(inputs).map_err(|e| fault(&e))?;
        let outputs =
            prepare_result.outputs.iter().map(|o| OutputDims { dims: Shape::from_slice(&o.dims), exact: o.exact });
        // The workspace belongs to a run, not to the plan. If the plan does not declare its own size, the size of the
        // workspace serves as an estimate.
        let declared_bytes = prepare_result.attrs.iter().find(|attr| attr.key == "bytes").map(|attr| &attr.value);
        let bytes = match declared_bytes {
            Some(AttrValue::Int(bytes)) => usize::try_from(*bytes).unwrap_or(0),
            _ => prepare_result.workspace,
        };
        Ok(Prepared {
            outputs: outputs.collect(),
            workspace: prepare_result.workspace,
            plan: prepare_result.plan,
            bytes,
        })
    }

    fn device_workspace(&self, plan: u64, inputs: &[&[usize]]) -> Result<usize, Diagnostic> {
        device::workspace_bytes(&*self.executable, plan, inputs).map_err(|error| fault(&error))
    }

    fn needs_zeroed_memory(&self) -> bool {
        self.needs_zeroed_memory
    }

    fn may_be_lost(&self) -> bool {
        self.may_be_lost
    }

    fn release(&self, plan: u64) {
        let data = serde_json::json!({ "plan": plan }).to_string();
        if let Err(error) = self.executable.query("plan.release", data.as_bytes())
            && !entries::is_shut_down()
        {
            tracing::warn!("{}: cannot release plan {plan}: {}", self.label, fault(&error));
        }
    }

    fn is_stateful(&self) -> bool {
        self.is_stateful
    }

    fn reset_state(&self) -> Result<(), Diagnostic> {
        if !self.is_stateful {
            return Ok(());
        }
        let _slots = self.acquire();
        match self.executable.query(RESET_STATE, b"{}").map_err(|error| fault(&error))? {
            Some(_) => Ok(()),
            None => {
                Err(contract_violation(format!("{}: expected a response to {RESET_STATE}, found none", self.label)))
            }
        }
    }

    fn run(&self, call: RegionCall<'_, '_>) -> Result<(), Diagnostic> {
        match call.device.and_then(|device| device.workspace) {
            None => self.run_in_slots(call),
            workspace => device::submitting(&self.plugin, None, workspace, || self.run_in_slots(call)).0,
        }
    }

    fn start(&self, call: RegionCall<'_, '_>, dependencies: &[&Event]) -> Result<Option<Event>, Diagnostic> {
        if !self.slots.is_empty() {
            return self.run(call).map(|()| None);
        }
        let workspace = call.device.and_then(|device| device.workspace);
        let (run_result, event) =
            device::submitting(&self.plugin, Some(dependencies), workspace, || self.run_in_slots(call));
        run_result?;
        Ok(event)
    }
}

impl PluginRegion {
    fn run_in_slots(&self, call: RegionCall<'_, '_>) -> Result<(), Diagnostic> {
        tracing::debug!(target: "byoc::region", "{} begins", self.label);
        // An empty list allocates nothing.
        let _slots = self.acquire();
        if self.is_checked { self.run_checked(call) } else { self.run_unchecked(call) }
    }

    fn run_unchecked(&self, call: RegionCall<'_, '_>) -> Result<(), Diagnostic> {
        if !call.in_place.is_empty() {
            return self.run_in_place(call);
        }
        // `push` writes in place and is inlined, whereas the large result of `collect` would be moved.
        let mut inputs: SmallVec<[TensorRef<'_>; 8]> = SmallVec::new();
        let device = call.device;
        for (i, t) in call.inputs.iter().enumerate() {
            inputs.push(match device.and_then(|device| device.inputs.get(i)) {
                Some(Some(slice)) => slice.buffer.tensor(dtype_to_api(t.dtype), t.shape, slice.offset),
                _ => TensorRef::new(dtype_to_api(t.dtype), t.shape, t.data),
            });
        }
        // Outputs with exact dimensions have no buffer for their shapes.
        let mut exact_shapes: SmallVec<[Shape; 4]> = SmallVec::new();
        if call.shapes.is_empty() {
            for t in call.outputs.iter() {
                exact_shapes.push(Shape::from_slice(t.shape));
            }
        }
        let mut outputs: SmallVec<[TensorMut<'_>; 4]> = SmallVec::new();
        let targets = call.outputs.iter_mut().zip(call.shapes.iter_mut().chain(&mut exact_shapes));
        for (i, (t, shape)) in targets.enumerate() {
            outputs.push(match device.and_then(|d| d.outputs.get(i)) {
                Some(Some(slice)) => slice.buffer.tensor_mut(dtype_to_api(t.dtype), shape.as_mut_slice(), slice.offset),
                _ => TensorMut::new(dtype_to_api(t.dtype), shape.as_mut_slice(), t.data),
            });
        }
        let call = Call { inputs: &inputs, outputs: &mut outputs, workspace: call.workspace, plan: call.plan };
        self.executable.run(call).map_err(|e| fault(&e))
    }

    /// Runs a region in which results reuse the memory of inputs.
    fn run_in_place(&self, call: RegionCall<'_, '_>) -> Result<(), Diagnostic> {
        let device_slice = |slices: Option<&Option<DeviceSlice>>| slices.and_then(Option::as_ref).cloned();
        let device = call.device;
        let input_slices: Vec<Option<DeviceSlice>> =
            (0..call.inputs.len()).map(|i| device_slice(device.and_then(|d| d.inputs.get(i)))).collect();
        let output_slices: Vec<Option<DeviceSlice>> =
            (0..call.outputs.len()).map(|i| device_slice(device.and_then(|d| d.outputs.get(i)))).collect();
        let mut input_shapes: Vec<Shape> = call.inputs.iter().map(|t| Shape::from_slice(t.shape)).collect();
        let mut output_shapes: Vec<Shape> = call.outputs.iter().map(|t| Shape::from_slice(t.shape)).collect();
        // Shape of each input; `None` once an output has taken it over.
        let mut remaining_shapes: Vec<Option<&mut Shape>> = input_shapes.iter_mut().map(Some).collect();
        let mut inputs: Vec<Option<TensorRef<'_>>> = call.inputs.iter().map(|_| None).collect();
        let mut outputs: Vec<TensorMut<'_>> = Vec::with_capacity(call.outputs.len());
        for (i, (t, shape)) in call.outputs.iter_mut().zip(&mut output_shapes).enumerate() {
            let dtype = dtype_to_api(t.dtype);
            let pair = call.in_place.iter().find(|[output, _]| *output as usize == i).map(|[_, input]| *input as usize);
            let shape = shape.as_mut_slice();
            outputs.push(
                match (&output_slices[i], pair.and_then(|input| Some((input, remaining_shapes[input].take()?)))) {
                    (Some(slice), previous_shape) => {
                        if let Some((input, input_shape)) = previous_shape {
                            let dtype = dtype_to_api(call.inputs[input].dtype);
                            inputs[input] = Some(slice.buffer.tensor(dtype, input_shape, slice.offset));
                        }
                        slice.buffer.tensor_mut(dtype, shape, slice.offset)
                    }
                    (None, None) => TensorMut::new(dtype, shape, t.data),
                    (None, Some((input, input_shape))) => {
                        let input_type = InPlaceType {
                            dtype: dtype_to_api(call.inputs[input].dtype),
                            shape: input_shape.as_mut_slice(),
                        };
                        let (input_tensor, output) = in_place(input_type, InPlaceType { dtype, shape }, t.data);
                        inputs[input] = Some(input_tensor);
                        output
                    }
                },
            );
        }
        let input_refs = inputs.into_iter().zip(call.inputs).zip(&input_slices).map(|((tensor, t), slice)| {
            tensor.unwrap_or_else(|| match slice {
                Some(slice) => slice.buffer.tensor(dtype_to_api(t.dtype), t.shape, slice.offset),
                None => TensorRef::new(dtype_to_api(t.dtype), t.shape, t.data),
            })
        });
        let inputs: Vec<TensorRef<'_>> = input_refs.collect();
        let call = Call { inputs: &inputs, outputs: &mut outputs, workspace: call.workspace, plan: call.plan };
        self.executable.run(call).map_err(|e| fault(&e))
    }
}
