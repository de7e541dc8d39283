//! Objects of a program on a device, and its runs.

use crate::device::event::{Event, INTERVAL, Unfinished};
use crate::device::launch::Launch;
use crate::device::memory::Buffer;
use crate::device::program::Program as Built;
use crate::device::{Device, space};
use crate::program::{Edge, PackedConstant, Place, Program};
use byoc_plugin_api::device::{BufferHandle, Completion, submit};
use byoc_plugin_api::{Call, Constant, Error, Result, Services, Span, Tensor, TensorMut, TensorRef};
use byoc_plugin_support::cache::Settings;
use serde_json::json;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

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
    target: Arc<Target>,
    state: Mutex<State>,
}

/// Program and its device.
struct Target {
    program: Program,
    device: Arc<Device>,
}

/// Objects of a region on its device. Fields are dropped in this order: kernels before the buffers that they refer to.
struct State {
    launches: Vec<Launch>,
    /// Inputs, then outputs.
    edges: Vec<BoundEdge>,
    _parts: Vec<Buffer>,
    _arena: Buffer,
    _constants: Vec<Arc<Buffer>>,
}

/// Input or output with the buffer that the kernels use for it.
struct BoundEdge {
    bytes: u64,
    /// Arguments of launches that stand for it.
    arguments: Vec<[usize; 2]>,
    /// Buffer of its own, for tensors in the host's memory.
    own: Option<Buffer>,
    /// Host memory that the device copies from and to: the tensors of a call may end before a device does that is lost.
    staging: Vec<u8>,
    bound: Bound,
}

/// Buffer that the arguments of an edge are set to.
enum Bound {
    Nothing,
    Own,
    /// Part of the buffer with this handle, at an offset.
    Part(usize, u64, Buffer),
}

/// Place of a tensor of a call.
#[derive(Clone, Copy)]
enum Operand {
    Host,
    Device(BufferHandle, u64),
}

impl Operand {
    fn of(raw: &Tensor) -> Result<Operand> {
        if raw.device != space::dlpack_device() {
            return Ok(Operand::Host);
        }
        let buffer = BufferHandle::new(raw.data.cast()).ok_or_else(|| Error::new("expected a buffer, found none"))?;
        Ok(Operand::Device(buffer, raw.byte_offset))
    }
}

impl BoundEdge {
    fn new(edge: &Edge) -> BoundEdge {
        let bytes = edge.bytes().unwrap_or(u64::MAX);
        BoundEdge { bytes, arguments: Vec::new(), own: None, staging: Vec::new(), bound: Bound::Nothing }
    }

    /// Returns the edge's own buffer, which is made on first use, and its staging memory.
    fn own(&mut self, device: &Arc<Device>) -> Result<(&Buffer, &mut Vec<u8>)> {
        if self.own.is_none() {
            self.own = Some(Buffer::new(device, self.bytes)?);
        }
        self.staging.resize(self.bytes as usize, 0);
        match &self.own {
            Some(buffer) => Ok((buffer, &mut self.staging)),
            None => Err(Error::new("expected a buffer, found none")),
        }
    }

    /// Sets the arguments of the edge to the buffer of an operand.
    fn bind(&mut self, operand: Operand, launches: &[Launch], device: &Arc<Device>) -> Result<()> {
        let bound = match (operand, &self.bound) {
            (Operand::Host, Bound::Own) => return Ok(()),
            (Operand::Device(buffer, offset), Bound::Part(known, at, _))
                if (buffer.as_ptr() as usize, offset) == (*known, *at) =>
            {
                return Ok(());
            }
            (Operand::Host, _) => {
                self.own(device)?;
                Bound::Own
            }
            (Operand::Device(buffer, offset), _) => {
                // SAFETY: the host keeps the buffer until the run has ended, and alone releases it; the part retains it.
                let whole = unsafe { Buffer::from_handle(device, buffer.as_ptr(), usize::MAX) };
                let part = whole.part(offset, self.bytes);
                whole.into_handle();
                Bound::Part(buffer.as_ptr() as usize, offset, part?)
            }
        };
        let handle = match (&bound, &self.own) {
            (Bound::Part(_, _, part), _) => part.handle(),
            (_, Some(own)) => own.handle(),
            _ => return Err(Error::new("expected a buffer, found none")),
        };
        self.arguments.iter().try_for_each(|&[launch, number]| launches[launch].set(number, handle))?;
        self.bound = bound;
        Ok(())
    }
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
        let mut edges: Vec<BoundEdge> = program.inputs.iter().chain(&program.outputs).map(BoundEdge::new).collect();
        let constants: Vec<Arc<Buffer>> =
            program.packed.iter().map(|packed| setup.pool.get(device, packed, setup)).collect::<Result<_>>()?;
        let arena = Buffer::new(device, program.arena)?;
        let parts: Vec<Buffer> =
            program.buffers.iter().map(|part| arena.part(part.offset, part.bytes)).collect::<Result<_>>()?;
        let mut launches = Vec::new();
        for (number, launch) in program.launches.iter().enumerate() {
            let kernel = &program.kernels[launch.kernel];
            let made = Launch::new(&built, &kernel.name, launch.global, kernel.local)?;
            for (at, place) in launch.arguments.iter().enumerate() {
                match *place {
                    Place::Input(i) => edges[i].arguments.push([number, at]),
                    Place::Output(i) => edges[program.inputs.len() + i].arguments.push([number, at]),
                    Place::Constant(i) => made.set(at, constants[i].handle())?,
                    Place::Work(i) => made.set(at, parts[i].handle())?,
                }
            }
            launches.push(made);
        }
        Ok(State { launches, edges, _parts: parts, _arena: arena, _constants: constants })
    }

    /// Enqueues copies of the inputs in the host's memory, all kernels, and copies of the outputs there. Returns the events of
    /// the kernels in `kernels`, and the last event.
    fn enqueue(&mut self, operands: &[Operand], inputs: usize, kernels: &mut Vec<Event>) -> Result<Option<Event>> {
        let mut last = None;
        let on_host = |operand: &Operand| matches!(operand, Operand::Host);
        for (edge, _) in self.edges.iter().zip(operands).take(inputs).filter(|(_, operand)| on_host(operand)) {
            let Some(own) = &edge.own else { continue };
            // SAFETY: the staging memory is written before the next run, or never again if the device is lost.
            last = Some(unsafe { own.write(&edge.staging) }?);
        }
        for launch in &self.launches {
            kernels.push(launch.enqueue()?);
        }
        for (edge, _) in self.edges.iter_mut().zip(operands).skip(inputs).filter(|(_, operand)| on_host(operand)) {
            let Some(own) = &edge.own else { continue };
            // SAFETY: the staging memory is read after the last event, or never if the device is lost.
            last = Some(unsafe { own.read(&mut edge.staging) }?);
        }
        Ok(last)
    }
}

/// Work of a run that goes on after it has returned.
struct Work {
    target: Arc<Target>,
    kernels: Vec<Event>,
    services: Services,
    last: Unfinished,
    reported: AtomicBool,
}

impl Completion for Work {
    fn wait(&self, time: Duration) -> Result<bool> {
        let done = self.last.wait(time)?;
        if done && !self.reported.swap(true, Ordering::Relaxed) {
            let kernels = self.kernels.iter().chain([self.last.event()]);
            self.target.report(kernels, &self.services, [0; 2]);
        }
        Ok(done)
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
        Ok(Plan { target: Arc::new(Target { program, device: device.clone() }), state })
    }

    /// Returns the program.
    pub fn program(&self) -> &Program {
        &self.target.program
    }

    /// Returns the number of bytes that only this plan holds.
    pub fn bytes(&self) -> u64 {
        let program = self.program();
        let edges: u64 = program.inputs.iter().chain(&program.outputs).filter_map(Edge::bytes).sum();
        // Tensors are staged on the host too.
        program.arena + 2 * edges
    }

    /// Runs the program. If all tensors are on the device, the work is handed to the host, and goes on.
    ///
    /// # Errors
    /// Tensors of other shapes, cancellation, or a device that is lost.
    pub fn run(&self, call: Call<'_, '_>, services: &Services) -> Result<()> {
        let Call { inputs, outputs, .. } = call;
        let Target { program, device } = &*self.target;
        check_shapes("input", inputs.iter().map(TensorRef::shape), &program.inputs)?;
        check_shapes("output", outputs.iter().map(TensorMut::shape), &program.outputs)?;
        let raw = inputs.iter().map(TensorRef::raw).chain(outputs.iter().map(TensorMut::raw));
        let operands: Vec<Operand> = raw.map(Operand::of).collect::<Result<_>>()?;
        let mut guard = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let state = &mut *guard;
        device.check()?;
        for (edge, operand) in state.edges.iter_mut().zip(&operands) {
            edge.bind(*operand, &state.launches, device)?;
        }
        let mut copied = [0; 2];
        for ((edge, operand), tensor) in state.edges.iter_mut().zip(&operands).zip(inputs) {
            if let Operand::Host = operand {
                edge.own(device)?.1.copy_from_slice(tensor.bytes());
                copied[0] += edge.bytes;
            }
        }
        for (edge, operand) in state.edges.iter_mut().zip(&operands).skip(inputs.len()) {
            if let Operand::Host = operand {
                edge.own(device)?;
                copied[1] += edge.bytes;
            }
        }
        let mut kernels = Vec::new();
        let enqueued = state.enqueue(&operands, inputs.len(), &mut kernels);
        if matches!(enqueued, Ok(None)) {
            drop(guard);
            return self.hand_over(kernels, services);
        }
        let ran = enqueued.and_then(|last| last.map_or(Ok(()), |last| last.wait(services)));
        if let (Err(_), Some(last), false) = (&ran, kernels.last(), device.is_lost()) {
            // What has been enqueued still uses the staging memory.
            let _ = last.wait(services);
        }
        if device.is_lost() {
            // The device may still copy from and to this memory.
            state.edges.iter_mut().for_each(|edge| std::mem::forget(std::mem::take(&mut edge.staging)));
        }
        ran?;
        for ((edge, operand), tensor) in state.edges[inputs.len()..].iter().zip(&operands[inputs.len()..]).zip(outputs)
        {
            if let Operand::Host = operand {
                tensor.bytes_mut().copy_from_slice(&edge.staging);
            }
        }
        drop(guard);
        self.target.report(kernels.iter(), services, copied);
        Ok(())
    }

    /// Hands the work of kernels to the host; waits for it if the host does not take it.
    fn hand_over(&self, mut kernels: Vec<Event>, services: &Services) -> Result<()> {
        let Some(last) = kernels.pop() else { return Ok(()) };
        let last = last.unfinished()?;
        let work = Work {
            target: self.target.clone(),
            kernels,
            services: services.clone(),
            last,
            reported: AtomicBool::new(false),
        };
        let Err(work) = submit(services, work) else { return Ok(()) };
        work.last.event().wait(services)?;
        work.wait(INTERVAL).map(|_| ())
    }
}

impl Target {
    /// Reports the time of each kernel on the device, and the bytes that the run has copied in and out.
    fn report<'e>(&self, kernels: impl Iterator<Item = &'e Event>, services: &Services, copied: [u64; 2]) {
        let program = &self.program;
        let times: Vec<Option<[u64; 2]>> = kernels.map(Event::times).collect();
        let now = times.iter().flatten().map(|[_, end]| *end).max().unwrap_or(0);
        for (launch, time) in program.launches.iter().zip(&times) {
            let Some([begin, end]) = *time else { continue };
            let fields = json!({
                "region": program.symbol,
                "kernel": program.kernels[launch.kernel].name,
                "device": self.device.traits.name,
                "microseconds": end.saturating_sub(begin) as f64 / 1000.0,
                "work_items": launch.global.iter().product::<usize>(),
            });
            services.span(&launch.name, &Span { track: &self.device.traits.name, begin, end, now }, fields);
        }
        let time = times.iter().flatten().map(|[begin, end]| end.saturating_sub(*begin)).sum();
        services.counter("opencl.nanoseconds", time);
        services.counter("opencl.bytes_in", copied[0]);
        services.counter("opencl.bytes_out", copied[1]);
    }
}
