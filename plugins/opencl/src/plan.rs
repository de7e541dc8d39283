//! Objects of a program on a device, and its runs.

use crate::device::Device;
use crate::device::event::Event;
use crate::device::launch::Launch;
use crate::device::memory::Buffer;
use crate::device::program::Program as Built;
use crate::program::{Edge, PackedConstant, Place, Program};
use byoc_plugin_api::{Call, Constant, Error, Result, Services, TensorMut, TensorRef};
use byoc_plugin_support::cache::Settings;
use serde_json::json;
use std::sync::{Arc, Mutex, PoisonError};

/// Constants on the device, which the plans of a region share where they pack them alike.
#[derive(Default)]
pub struct ConstantPool(Mutex<Vec<(PackedConstant, Arc<Buffer>)>>);

/// Resources that a plan is made with.
pub struct Setup<'a> {
    /// Constants of the region.
    pub constants: &'a [Constant],
    /// Constants on the device.
    pub pool: &'a ConstantPool,
    /// Cache of programs.
    pub cache: Option<Settings>,
    /// Services of the host.
    pub services: &'a Services,
}

/// Program on a device.
pub struct Plan {
    /// Program.
    pub program: Program,
    device: Arc<Device>,
    state: Mutex<State>,
}

/// Objects of a region on its device. Fields are dropped in this order: kernels before the buffers that they refer to.
struct State {
    launches: Vec<Launch>,
    inputs: Vec<Buffer>,
    outputs: Vec<Buffer>,
    _parts: Vec<Buffer>,
    _arena: Buffer,
    _constants: Vec<Arc<Buffer>>,
    /// Host memory that the device copies from and to: the tensors of a call may end before a device does that is lost.
    staging: Staging,
}

#[derive(Default)]
struct Staging {
    inputs: Vec<Vec<u8>>,
    outputs: Vec<Vec<u8>>,
}

impl ConstantPool {
    /// Returns a constant on the device. It is packed and copied there unless an equal one is.
    fn get(&self, device: &Arc<Device>, packed: &PackedConstant, setup: &Setup<'_>) -> Result<Arc<Buffer>> {
        let mut pool = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, buffer)) = pool.iter().find(|(known, _)| known == packed) {
            return Ok(buffer.clone());
        }
        let data = match packed.constant {
            Some(constant) => packed.packing.pack(setup.constants[constant].bytes(), packed.element),
            None => vec![0; packed.bytes().unwrap_or(0) as usize],
        };
        let buffer = Buffer::new(device, data.len() as u64)?;
        // SAFETY: the data lives until the event has ended, or for ever if the device is lost.
        let written = unsafe { buffer.write(&data) }.and_then(|event| event.wait(setup.services));
        if device.is_lost() {
            std::mem::forget(data);
        }
        written?;
        let buffer = Arc::new(buffer);
        pool.push((packed.clone(), buffer.clone()));
        Ok(buffer)
    }
}

impl State {
    fn new(program: &Program, device: &Arc<Device>, setup: &Setup<'_>) -> Result<State> {
        for kernel in &program.kernels {
            let size: usize = kernel.local.iter().product();
            if size > device.max_group {
                let (most, name) = (device.max_group, &device.traits.name);
                return Err(Error::new(format!("expected work-groups of at most {most} on {name}, found {size}"))
                    .hint("compile the model again for this device"));
            }
        }
        let built = Built::build(device, &program.source, setup.cache.as_ref(), setup.services)?;
        let edges = |edges: &[Edge]| -> Result<Vec<Buffer>> {
            edges.iter().map(|edge| Buffer::new(device, edge.bytes().unwrap_or(u64::MAX))).collect()
        };
        let (inputs, outputs) = (edges(&program.inputs)?, edges(&program.outputs)?);
        let constants: Vec<Arc<Buffer>> =
            program.packed.iter().map(|packed| setup.pool.get(device, packed, setup)).collect::<Result<_>>()?;
        let arena = Buffer::new(device, program.arena)?;
        let parts: Vec<Buffer> =
            program.buffers.iter().map(|part| arena.part(part.offset, part.bytes)).collect::<Result<_>>()?;
        let handle = |place: &Place| match *place {
            Place::Input(i) => inputs[i].handle(),
            Place::Output(i) => outputs[i].handle(),
            Place::Constant(i) => constants[i].handle(),
            Place::Work(i) => parts[i].handle(),
        };
        let mut launches = Vec::new();
        for launch in &program.launches {
            let kernel = &program.kernels[launch.kernel];
            let arguments: Vec<_> = launch.arguments.iter().map(handle).collect();
            launches.push(Launch::new(&built, &kernel.name, &arguments, launch.global, kernel.local)?);
        }
        let bytes = |edges: &[Edge]| edges.iter().map(|edge| vec![0; edge.bytes().unwrap_or(0) as usize]).collect();
        let staging = Staging { inputs: bytes(&program.inputs), outputs: bytes(&program.outputs) };
        Ok(State { launches, inputs, outputs, _parts: parts, _arena: arena, _constants: constants, staging })
    }

    /// Enqueues copies of the inputs, all kernels, and copies of the outputs. Returns the events of the kernels, and the
    /// last event; events that were enqueued before an error are in `events` too.
    fn enqueue(&mut self, events: &mut Vec<Event>) -> Result<Option<Event>> {
        let mut last = None;
        for (buffer, data) in self.inputs.iter().zip(&self.staging.inputs) {
            // SAFETY: the staging memory is written before the next run, or never again if the device is lost.
            events.push(unsafe { buffer.write(data) }?);
        }
        for launch in &self.launches {
            events.push(launch.enqueue()?);
        }
        for (buffer, data) in self.outputs.iter().zip(&mut self.staging.outputs) {
            // SAFETY: the staging memory is read after the last event, or never if the device is lost.
            events.extend(last.replace(unsafe { buffer.read(data) }?));
        }
        Ok(last)
    }

    /// Runs all launches on the staged inputs. Returns the device's times in nanoseconds, by launch.
    fn run(&mut self, device: &Device, services: &Services) -> Result<Vec<Option<u64>>> {
        let mut events = Vec::new();
        let ran = match self.enqueue(&mut events) {
            Ok(Some(last)) => last.wait(services),
            Ok(None) => Ok(()),
            Err(error) => {
                // What has been enqueued still uses the staging memory.
                if let Some(last) = events.last().filter(|_| !device.is_lost()) {
                    let _ = last.wait(services);
                }
                Err(error)
            }
        };
        if device.is_lost() {
            // The device may still copy from and to this memory.
            std::mem::forget(std::mem::take(&mut self.staging));
        }
        ran?;
        Ok(events[self.inputs.len()..].iter().take(self.launches.len()).map(Event::nanoseconds).collect())
    }
}

/// Compares shapes with those of tensors of a region.
///
/// # Errors
/// The first difference.
pub fn check_shapes<'s>(kind: &str, shapes: impl ExactSizeIterator<Item = &'s [usize]>, edges: &[Edge]) -> Result<()> {
    if shapes.len() != edges.len() {
        return Err(Error::new(format!("expected {} {kind}s, found {}", edges.len(), shapes.len())));
    }
    for (i, (shape, edge)) in shapes.zip(edges).enumerate() {
        if shape != edge.shape {
            return Err(Error::new(format!("{kind} {i}: expected shape {:?}, found {shape:?}", edge.shape)));
        }
    }
    Ok(())
}

impl Plan {
    /// Creates the objects of a program on a device.
    ///
    /// # Errors
    /// Source that the driver does not compile, lack of memory, cancellation, or a device that is lost.
    pub fn new(program: Program, device: &Arc<Device>, setup: &Setup<'_>) -> Result<Plan> {
        let state = Mutex::new(State::new(&program, device, setup)?);
        Ok(Plan { program, device: device.clone(), state })
    }

    /// Returns the number of bytes that only this plan holds.
    pub fn bytes(&self) -> u64 {
        let edges: u64 = self.program.inputs.iter().chain(&self.program.outputs).filter_map(Edge::bytes).sum();
        // Tensors are staged on the host too.
        self.program.arena + 2 * edges
    }

    /// Runs the program.
    ///
    /// # Errors
    /// Tensors of other shapes, cancellation, or a device that is lost.
    pub fn run(&self, call: Call<'_, '_>, services: &Services) -> Result<()> {
        let Call { inputs, outputs, .. } = call;
        check_shapes("input", inputs.iter().map(TensorRef::shape), &self.program.inputs)?;
        check_shapes("output", outputs.iter().map(TensorMut::shape), &self.program.outputs)?;
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.device.check()?;
        for (staged, tensor) in state.staging.inputs.iter_mut().zip(inputs) {
            staged.copy_from_slice(tensor.bytes());
        }
        let times = state.run(&self.device, services)?;
        for (staged, tensor) in state.staging.outputs.iter().zip(outputs.iter_mut()) {
            tensor.bytes_mut().copy_from_slice(staged);
        }
        drop(state);
        self.report(&times, services);
        Ok(())
    }

    /// Reports the time of each kernel on the device.
    fn report(&self, times: &[Option<u64>], services: &Services) {
        let program = &self.program;
        for (launch, time) in program.launches.iter().zip(times) {
            let Some(time) = time else { continue };
            let fields = json!({
                "region": program.symbol,
                "kernel": program.kernels[launch.kernel].name,
                "device": self.device.traits.name,
                "microseconds": *time as f64 / 1000.0,
                "work_items": launch.global.iter().product::<usize>(),
            });
            services.event(&launch.name, &fields);
        }
        services.counter("opencl.nanoseconds", times.iter().flatten().sum());
        let bytes = |edges: &[Edge]| edges.iter().filter_map(Edge::bytes).sum();
        services.counter("opencl.bytes_in", bytes(&program.inputs));
        services.counter("opencl.bytes_out", bytes(&program.outputs));
    }
}
