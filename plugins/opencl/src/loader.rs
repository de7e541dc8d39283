//! Loads regions onto a device, and runs them.

use crate::blob;
use crate::device::Device;
use crate::device::event::Event;
use crate::device::launch::Launch;
use crate::device::memory::Buffer;
use crate::device::program::{Program as Built, cache_settings};
use crate::program::{Edge, Place, Program};
use byoc_plugin_api::{
    Call, Constant, Error, Executable, LoadRequest, Loader, Prepared, Result, Services, TensorMut, TensorRef,
};
use serde_json::json;
use std::sync::{Arc, Mutex, PoisonError};

/// Loader of regions, `loadbinary_opencl`.
pub struct OpenClLoader;

/// Loaded region.
struct LoadedRegion {
    program: Program,
    device: Arc<Device>,
    state: Mutex<State>,
    services: Services,
}

/// Objects of a region on its device. Fields are dropped in this order: kernels before the buffers that they refer to.
struct State {
    launches: Vec<Launch>,
    inputs: Vec<Buffer>,
    outputs: Vec<Buffer>,
    /// Constants, the parts of the arena, and the arena.
    _held: Vec<Buffer>,
    /// Host memory that the device copies from and to: the tensors of a call may end before a device does that is lost.
    staging: Staging,
}

#[derive(Default)]
struct Staging {
    inputs: Vec<Vec<u8>>,
    outputs: Vec<Vec<u8>>,
}

impl Loader for OpenClLoader {
    fn load(&self, request: &LoadRequest<'_>) -> Result<Box<dyn Executable>> {
        let program = blob::read(request.blob)?;
        if program.symbol != request.symbol {
            let detail = format!("expected the program of {}, found that of {}", request.symbol, program.symbol);
            return Err(Error::new(detail));
        }
        check_constants(&program, request.constants)?;
        request.check_signature(&program.signature)?;
        let device = Device::get(&program.selector, Some(request.services.num_threads()))?;
        let state = State::new(&program, &device, request)?;
        let services = request.services.clone();
        Ok(Box::new(LoadedRegion { program, device, state: Mutex::new(state), services }))
    }

    fn query(&self, key: &str, data: &[u8]) -> Result<Option<Vec<u8>>> {
        match key {
            // The blob holds source that `load` compiles.
            "blob.native" => Ok(Some(b"true".to_vec())),
            "blob.summary" => Ok(Some(summary(&blob::read(data)?).into_bytes())),
            "blob.listing" => Ok(Some(blob::read(data)?.source.into_bytes())),
            _ => Ok(None),
        }
    }
}

/// Formats the launches of a program, one per line.
fn summary(program: &Program) -> String {
    let line = |launch: &crate::program::Launch| {
        let [x, y, z] = launch.global;
        format!("{}: {}, {x} x {y} x {z} work-items\n", program.kernels[launch.kernel].name, launch.name)
    };
    let lines: String = program.launches.iter().map(line).collect();
    format!("for {}, arena {} bytes\n{lines}", program.device, program.arena)
}

fn check_constants(program: &Program, constants: &[Constant]) -> Result<()> {
    if program.constants.len() != constants.len() {
        let (wanted, found) = (program.constants.len(), constants.len());
        return Err(Error::new(format!("expected {wanted} constants, found {found}")));
    }
    for (i, (&(elements, dtype), constant)) in program.constants.iter().zip(constants).enumerate() {
        let found = constant.shape().iter().product::<usize>();
        if elements != found || dtype != constant.dtype() {
            let found = format!("{found} of {}", constant.dtype());
            return Err(Error::new(format!("constant {i}: expected {elements} elements of {dtype}, found {found}")));
        }
    }
    Ok(())
}

impl State {
    fn new(program: &Program, device: &Arc<Device>, request: &LoadRequest<'_>) -> Result<State> {
        for kernel in &program.kernels {
            let size: usize = kernel.local.iter().product();
            if size > device.max_group {
                let (most, name) = (device.max_group, &device.traits.name);
                return Err(Error::new(format!("expected work-groups of at most {most} on {name}, found {size}"))
                    .hint("compile the model again for this device"));
            }
        }
        let cache = cache_settings(request.options);
        let built = Built::build(device, &program.source, cache.as_ref(), request.services)?;
        let edges = |edges: &[Edge]| -> Result<Vec<Buffer>> {
            edges.iter().map(|edge| Buffer::new(device, edge.bytes().unwrap_or(u64::MAX))).collect()
        };
        let (inputs, outputs) = (edges(&program.inputs)?, edges(&program.outputs)?);
        let constants = upload(program, device, request)?;
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
        let held = constants.into_iter().chain(parts).chain([arena]).collect();
        Ok(State { launches, inputs, outputs, _held: held, staging })
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

/// Packs the constants, and copies them to the device, one at a time.
fn upload(program: &Program, device: &Arc<Device>, request: &LoadRequest<'_>) -> Result<Vec<Buffer>> {
    let mut buffers = Vec::new();
    for packed in &program.packed {
        let data = match packed.constant {
            Some(constant) => packed.packing.pack(request.constants[constant].bytes(), packed.element),
            None => vec![0; packed.bytes().unwrap_or(0) as usize],
        };
        let buffer = Buffer::new(device, data.len() as u64)?;
        // SAFETY: the data lives until the event has ended, or for ever if the device is lost.
        let written = unsafe { buffer.write(&data) }.and_then(|event| event.wait(request.services));
        if device.is_lost() {
            std::mem::forget(data);
        }
        written?;
        buffers.push(buffer);
    }
    Ok(buffers)
}

fn check_shapes<'s>(kind: &str, shapes: impl ExactSizeIterator<Item = &'s [usize]>, edges: &[Edge]) -> Result<()> {
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

impl LoadedRegion {
    /// Reports the time of each kernel on the device.
    fn report(&self, times: &[Option<u64>]) {
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
            self.services.event(&launch.name, &fields);
        }
        self.services.counter("opencl.nanoseconds", times.iter().flatten().sum());
        let bytes = |edges: &[Edge]| edges.iter().filter_map(Edge::bytes).sum();
        self.services.counter("opencl.bytes_in", bytes(&program.inputs));
        self.services.counter("opencl.bytes_out", bytes(&program.outputs));
    }
}

impl Executable for LoadedRegion {
    fn prepare(&self, inputs: &[&[usize]]) -> Result<Prepared> {
        check_shapes("input", inputs.iter().copied(), &self.program.inputs)?;
        Ok(Prepared::exact(self.program.outputs.iter().map(|edge| &edge.shape)))
    }

    fn run(&self, call: Call<'_, '_>) -> Result<()> {
        let Call { inputs, outputs, .. } = call;
        check_shapes("input", inputs.iter().map(TensorRef::shape), &self.program.inputs)?;
        check_shapes("output", outputs.iter().map(TensorMut::shape), &self.program.outputs)?;
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.device.check()?;
        for (staged, tensor) in state.staging.inputs.iter_mut().zip(inputs) {
            staged.copy_from_slice(tensor.bytes());
        }
        let times = state.run(&self.device, &self.services)?;
        for (staged, tensor) in state.staging.outputs.iter().zip(outputs.iter_mut()) {
            tensor.bytes_mut().copy_from_slice(staged);
        }
        drop(state);
        self.report(&times);
        Ok(())
    }
}
