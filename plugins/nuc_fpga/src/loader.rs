//! Loads command lists, and runs them on the driver or on the software device.

use crate::blob;
use crate::command_list::{Command, CommandList, Place, Port};
use crate::device::config::Config;
use crate::device::cycles::{self, Estimate};
use crate::device::product;
use crate::driver::{DRIVERS, Driver};
use crate::epilogue::{self, Element, Target};
use crate::layer::Layer;
use byoc_plugin_api::{
    Call, Constant, DType, Error, Executable, LoadRequest, Loader, Prepared, Result, Services, Signature, TensorType,
};
use serde_json::{Value, json};
use std::sync::Arc;

/// Loader registered as `loadbinary_nuc_fpga`.
pub struct CommandLoader {
    /// Parameters of the software device.
    pub config: Config,
}

/// Device that executes the commands.
enum Device {
    /// Driver library.
    Driver(Arc<Driver>),
    /// Software device, with the estimated cost of each command on hardware.
    Software(Vec<Estimate>),
}

/// Loaded region.
struct LoadedRegion {
    list: CommandList,
    constants: Vec<Option<Constant>>,
    device: Device,
    services: Services,
    clock_hz: u64,
}

fn dtype(element: Element) -> DType {
    match element {
        Element::Int8 => DType::I8,
        Element::Uint8 => DType::U8,
        Element::Int32 => DType::I32,
    }
}

/// Returns the input and output types of a command list.
fn signature(list: &CommandList) -> Signature {
    let ty = |port: &Port| TensorType::new(dtype(port.element), &port.shape);
    Signature { inputs: list.inputs.iter().map(ty).collect(), outputs: list.outputs.iter().map(ty).collect() }
}

impl Loader for CommandLoader {
    fn load(&self, request: &LoadRequest<'_>) -> Result<Box<dyn Executable>> {
        let list = blob::read(request.blob)?;
        if list.symbol != request.symbol {
            return Err(
                format!("expected the command list of {1}, found that of {0}", list.symbol, request.symbol).into()
            );
        }
        if list.constants.len() != request.constants.len() {
            let (expected, constant_count) = (list.constants.len(), request.constants.len());
            return Err(format!("number of constants: expected {expected}, found {constant_count}").into());
        }
        request.check_signature(&signature(&list))?;
        let mut constants = Vec::with_capacity(request.constants.len());
        for (i, (port, constant)) in list.constants.iter().zip(request.constants).enumerate() {
            constants.push(match port {
                None => None,
                Some(port) => {
                    let is_match = constant.dtype() == dtype(port.element)
                        && constant.shape() == port.shape
                        && port.bytes() == Some(constant.bytes().len() as u64);
                    if !is_match {
                        let (found_shape, found_dtype) = (constant.shape(), constant.dtype());
                        return Err(format!(
                            "constant {i}: expected shape {:?} and dtype {}, found {found_shape:?} and {found_dtype}",
                            port.shape, port.element
                        )
                        .into());
                    }
                    Some(constant.clone())
                }
            });
        }
        let device = match DRIVERS.from_environment()? {
            Some(driver) => Device::Driver(driver),
            None => {
                let plans = list.commands.iter().map(|command| cycles::plan(&command.layer, &self.config));
                Device::Software(plans.collect::<std::result::Result<_, String>>()?)
            }
        };
        let (services, clock_hz) = (request.services.clone(), self.config.clock_hz);
        Ok(Box::new(LoadedRegion { list, constants, device, services, clock_hz }))
    }

    fn query(&self, key: &str, _: &[u8]) -> Result<Option<Vec<u8>>> {
        Ok(match key {
            // The blob contains commands, not native code.
            "blob.native" => Some(b"false".to_vec()),
            "byoc.files.1" => Some(DRIVERS.files()?),
            _ => None,
        })
    }
}

impl LoadedRegion {
    /// Returns a pointer to the first byte of a place.
    fn address(&self, call: &mut Call<'_, '_>, place: Place) -> *mut u8 {
        match place {
            Place::Input(i) => call.inputs[i].bytes().as_ptr().cast_mut(),
            Place::Output(i) => call.outputs[i].bytes_mut().as_mut_ptr(),
            Place::Constant(i) => {
                self.constants[i].as_ref().map_or(std::ptr::null_mut(), |constant| constant.bytes().as_ptr().cast_mut())
            }
            Place::Work(offset) => call.workspace.as_mut_ptr().wrapping_add(offset as usize),
        }
    }

    fn run_command(&self, call: &mut Call<'_, '_>, index: usize, command: &Command) -> Result<()> {
        let layer = &command.layer;
        let [feature, kernel, count] = layer.elements().map(|count| count as usize);
        let a = self.address(call, command.feature).cast::<i8>();
        let b = self.address(call, command.kernel).cast::<i8>();
        let accumulators = self.address(call, command.sums);
        match &self.device {
            // SAFETY: `CommandList::check` ensures that the places contain the layer's tensors and that the sums do not
            // overlap the operands; `run` checks that the call's tensors match the command list.
            Device::Driver(driver) => unsafe { driver.run(layer, a, b, accumulators.cast()) },
            Device::Software(_) => {
                // SAFETY: `CommandList::check` ensures that the places contain `feature` and `kernel` elements; `run`
                // has checked the call's tensors.
                let (a, b) = unsafe { (std::slice::from_raw_parts(a, feature), std::slice::from_raw_parts(b, kernel)) };
                // SAFETY: `CommandList::check` ensures that the result has as many elements as the layer has sums, and
                // does not overlap the operands.
                unsafe { product::run(&self.services, layer, a, b, Target(accumulators)) }?;
            }
        }
        self.report(index, layer);
        let Some(epilogue) = &command.epilogue else { return Ok(()) };
        let out = Target(self.address(call, epilogue.out));
        // SAFETY: the device has written `count` sums, and `CommandList::check` ensures that the epilogue does not
        // overlap them.
        let accumulators = unsafe { std::slice::from_raw_parts(accumulators.cast::<i32>().cast_const(), count) };
        let bias = |constant: usize| match self.constants.get(constant) {
            Some(Some(constant)) => constant.bytes().as_ptr().cast(),
            _ => std::ptr::null(),
        };
        // SAFETY: `CommandList::check` ensures that the result has one element per sum and does not overlap the sums,
        // and that biases have the elements that are read.
        unsafe {
            epilogue::run(&self.services, &epilogue.steps, epilogue.element, layer.channels(), accumulators, out, &bias)
        }
    }

    /// Reports a call to the host as an event. On the software device, the event includes the estimated cost.
    fn report(&self, index: usize, layer: &Layer) {
        let mut fields = json!({"region": self.list.symbol, "command": index});
        let mut set = |key: &str, value: Value| fields[key] = value;
        set("arguments", json!(layer.arguments()));
        self.services.counter("nuc_fpga.calls", 1);
        match &self.device {
            Device::Driver(driver) => set("device", json!(driver.path.display().to_string())),
            Device::Software(estimates) => {
                let estimate = &estimates[index];
                set("device", json!("software"));
                set("cycles", json!(estimate.cycles));
                set("compute_cycles", json!(estimate.compute_cycles));
                set("microseconds", json!(estimate.cycles as f64 * 1e6 / self.clock_hz as f64));
                set("utilisation", json!(estimate.utilization()));
                set("bytes", json!(estimate.bytes()));
                set("input_bytes", json!(estimate.input_bytes));
                set("weight_bytes", json!(estimate.weight_bytes));
                set("sum_bytes", json!(estimate.sum_bytes));
                let tiling = estimate.tiling;
                set("tile", json!({"channels": tiling.channels, "outputs": tiling.outputs, "rows": tiling.rows}));
                self.services.counter("nuc_fpga.cycles", estimate.cycles);
                self.services.counter("nuc_fpga.bytes", estimate.bytes());
                self.services.counter("nuc_fpga.macs.used", estimate.macs);
                self.services.counter("nuc_fpga.macs.available", estimate.possible_macs);
            }
        }
        self.services.event(layer.function(), &fields);
    }
}

/// Compares the number and shapes of tensors with the command list.
///
/// # Errors
/// If the number of tensors or a shape differs.
fn check_shapes<'s>(name: &str, shapes: impl ExactSizeIterator<Item = &'s [usize]>, ports: &[Port]) -> Result<()> {
    if shapes.len() != ports.len() {
        return Err(Error::new(format!("number of {name}s: expected {}, found {}", ports.len(), shapes.len())));
    }
    for (i, (shape, port)) in shapes.zip(ports).enumerate() {
        if shape != port.shape {
            return Err(Error::new(format!("{name} {i}: expected shape {:?}, found {shape:?}", port.shape)));
        }
    }
    Ok(())
}

fn check_types(name: &str, types: impl Iterator<Item = DType>, ports: &[Port]) -> Result<()> {
    for (i, (actual, port)) in types.zip(ports).enumerate() {
        let expected = dtype(port.element);
        if actual != expected {
            return Err(Error::new(format!("{name} {i}: expected element type {expected}, found {actual}")));
        }
    }
    Ok(())
}

impl Executable for LoadedRegion {
    fn prepare(&self, inputs: &[&[usize]]) -> Result<Prepared> {
        check_shapes("input", inputs.iter().copied(), &self.list.inputs)?;
        let outputs = self.list.outputs.iter().map(|port| &port.shape);
        Ok(Prepared::exact(outputs).with_workspace(self.list.workspace as usize))
    }

    fn run(&self, mut call: Call<'_, '_>) -> Result<()> {
        check_shapes("input", call.inputs.iter().map(|tensor| tensor.shape()), &self.list.inputs)?;
        check_shapes("output", call.outputs.iter().map(|tensor| tensor.shape()), &self.list.outputs)?;
        check_types("input", call.inputs.iter().map(|tensor| tensor.dtype()), &self.list.inputs)?;
        check_types("output", call.outputs.iter().map(|tensor| tensor.dtype()), &self.list.outputs)?;
        if (call.workspace.len() as u64) < self.list.workspace {
            let (workspace_size, expected) = (call.workspace.len(), self.list.workspace);
            return Err(format!("expected at least {expected} bytes of workspace, found {workspace_size}").into());
        }
        for (index, command) in self.list.commands.iter().enumerate() {
            self.run_command(&mut call, index, command)?;
        }
        Ok(())
    }
}
