//! Device objects of a program, and its runs.

use crate::device::event::{Event, INTERVAL, UnfinishedEvent};
use crate::device::launch::Launch;
use crate::device::memory::Buffer;
use crate::device::program::Program as Built;
use crate::device::space::host_buffer;
use crate::device::{Device, space};
use crate::program::{Edge, PackedConstant, Place, Program};
use byoc_plugin_api::device::{BufferHandle, Completion, DeviceWorkspace, submit, workspace};
use byoc_plugin_api::{Call, Constant, Error, Result, Services, Span, Tensor, TensorMut, TensorRef};
use byoc_plugin_support::cache::Settings;
use serde_json::json;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Device copies of constants. Plans of a region share a copy if the packing is the same.
#[derive(Default)]
pub struct ConstantPool(Mutex<Vec<(PackedConstant, Arc<Buffer>)>>);

/// Resources for constructing a plan.
pub struct Setup<'a> {
    /// Constants of the region.
    pub constants: &'a [Constant],
    /// Device copies of constants, shared with other plans of the region.
    pub pool: &'a ConstantPool,
    /// Settings of the program cache; `None` if caching is disabled.
    pub cache: Option<Settings>,
    pub services: &'a Services,
}

/// Program with its device objects.
pub struct Plan {
    target: Arc<Target>,
    state: Mutex<State>,
}

/// Program and its device.
struct Target {
    program: Program,
    device: Arc<Device>,
}

/// Device objects of a program. Fields are dropped in this order: kernels before the buffers that they reference.
struct State {
    launches: Vec<Launch>,
    /// Inputs, then outputs.
    edges: Vec<BoundEdge>,
    arena: BoundArena,
    _constants: Vec<Arc<Buffer>>,
}

/// Intermediate results, in the workspace of a run or in a buffer of the plan.
#[derive(Default)]
struct BoundArena {
    /// For each intermediate result, the launch index and argument index of each kernel argument that refers to it.
    arguments: Vec<Vec<[usize; 2]>>,
    /// Buffer for runs without a workspace, allocated on first use.
    own_buffer: Option<Buffer>,
    binding: Binding,
}

impl BoundArena {
    /// Sets the kernel arguments of the intermediate results.
    fn bind(
        &mut self,
        workspace: Option<DeviceWorkspace>,
        program: &Program,
        launches: &[Launch],
        device: &Arc<Device>,
    ) -> Result<()> {
        if program.buffers.is_empty() {
            return Ok(());
        }
        let workspace = workspace.filter(|workspace| workspace.bytes as u64 >= program.arena);
        let workspace = match workspace {
            Some(range) => Some((host_buffer(range.buffer)?, range.offset as u64)),
            None => None,
        };
        let binding = match &workspace {
            Some((parent, offset)) => Binding::Part(parent.serial, *offset),
            None => Binding::Own,
        };
        if self.binding == binding {
            return Ok(());
        }
        if workspace.is_none() && self.own_buffer.is_none() {
            self.own_buffer = Some(Buffer::new(device, program.arena)?);
        }
        let (parent, base) = match (&workspace, &self.own_buffer) {
            (Some((parent, offset)), _) => (&parent.buffer, *offset),
            (None, Some(own_buffer)) => (own_buffer, 0),
            (None, None) => return Err(Error::new("intermediate results: expected a buffer, found none")),
        };
        // After an error below, the next run sets all arguments.
        self.binding = Binding::Nothing;
        for (buffer, arguments) in program.buffers.iter().zip(&self.arguments) {
            let part = parent.part(base + buffer.offset, buffer.bytes)?;
            arguments.iter().try_for_each(|&[launch, argument]| launches[launch].set(argument, part))?;
        }
        self.binding = binding;
        Ok(())
    }
}

/// Input or output, with the buffer that kernels access.
struct BoundEdge {
    bytes: u64,
    /// Launch index and argument index of each kernel argument that refers to the tensor.
    arguments: Vec<[usize; 2]>,
    /// Device buffer for tensors in host memory, allocated on first use.
    own_buffer: Option<Buffer>,
    /// Host memory that the device copies from and to. A lost device may access it after the caller has freed its
    /// tensors.
    staging: Vec<u8>,
    binding: Binding,
}

/// Memory that kernel arguments refer to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Binding {
    #[default]
    Nothing,
    Own,
    /// Part of the host's buffer with this serial number, at this offset in bytes.
    Part(u64, u64),
}

/// Location of a tensor argument.
#[derive(Clone, Copy)]
enum Operand {
    Host,
    Device(BufferHandle, u64),
}

impl Operand {
    fn of(tensor: &Tensor) -> Result<Operand> {
        if tensor.device != space::dlpack_device() {
            return Ok(Operand::Host);
        }
        let buffer = BufferHandle::new(tensor.data.cast())
            .ok_or_else(|| Error::new("data of a device tensor: expected a buffer, found null"))?;
        Ok(Operand::Device(buffer, tensor.byte_offset))
    }
}

impl BoundEdge {
    fn new(edge: &Edge) -> BoundEdge {
        let bytes = edge.bytes().unwrap_or(u64::MAX);
        BoundEdge { bytes, arguments: Vec::new(), own_buffer: None, staging: Vec::new(), binding: Binding::Nothing }
    }

    /// Returns the edge's own buffer, allocated on first use, and its staging memory.
    fn allocate_own_buffer(&mut self, device: &Arc<Device>) -> Result<(&Buffer, &mut Vec<u8>)> {
        if self.own_buffer.is_none() {
            self.own_buffer = Some(Buffer::new(device, self.bytes)?);
        }
        self.staging.resize(self.bytes as usize, 0);
        match &self.own_buffer {
            Some(buffer) => Ok((buffer, &mut self.staging)),
            None => Err(Error::new(format!("expected an allocated buffer of {} bytes, found none", self.bytes))),
        }
    }

    /// Sets the kernel arguments of the edge to the buffer of an operand.
    fn bind(&mut self, operand: Operand, launches: &[Launch], device: &Arc<Device>) -> Result<()> {
        let (binding, handle) = match operand {
            Operand::Host if self.binding == Binding::Own => return Ok(()),
            Operand::Host => (Binding::Own, self.allocate_own_buffer(device)?.0.handle()),
            Operand::Device(buffer, offset) => {
                let host_buffer = host_buffer(buffer)?;
                let binding = Binding::Part(host_buffer.serial, offset);
                if self.binding == binding {
                    return Ok(());
                }
                (binding, host_buffer.buffer.part(offset, self.bytes)?)
            }
        };
        self.binding = Binding::Nothing;
        self.arguments.iter().try_for_each(|&[launch, argument_index]| launches[launch].set(argument_index, handle))?;
        self.binding = binding;
        Ok(())
    }
}

impl ConstantPool {
    /// Returns the device copy of a constant; packs and copies the constant unless the pool already has it.
    fn get(&self, device: &Arc<Device>, packed_constant: &PackedConstant, setup: &Setup<'_>) -> Result<Arc<Buffer>> {
        let mut pool = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, buffer)) = pool.iter().find(|(pooled_constant, _)| pooled_constant == packed_constant) {
            return Ok(buffer.clone());
        }
        let data = match packed_constant.constant {
            Some(constant) => packed_constant.packing.pack(setup.constants[constant].bytes(), packed_constant.element),
            None => vec![0; packed_constant.bytes().unwrap_or(0) as usize],
        };
        let buffer = Buffer::new(device, data.len() as u64)?;
        // SAFETY: `data` outlives the wait for the event, and is leaked below if the device is lost.
        let result = unsafe { buffer.write(0, &data) }.and_then(|event| event.wait(setup.services));
        if device.is_lost() {
            std::mem::forget(data);
        }
        result?;
        let buffer = Arc::new(buffer);
        pool.push((packed_constant.clone(), buffer.clone()));
        Ok(buffer)
    }
}

impl State {
    fn new(program: &Program, device: &Arc<Device>, setup: &Setup<'_>) -> Result<State> {
        for kernel in &program.kernels {
            let size: usize = kernel.local.iter().product();
            if size > device.max_group_size {
                let (max_group_size, name) = (device.max_group_size, &device.traits.name);
                return Err(Error::new(format!(
                    "expected work-groups of at most {max_group_size} work-items on {name}, found {size}"
                ))
                .hint("compile the model again for this device"));
            }
        }
        let built_program = Built::build(device, &program.source, setup.cache.as_ref(), setup.services)?;
        let mut edges: Vec<BoundEdge> = program.inputs.iter().chain(&program.outputs).map(BoundEdge::new).collect();
        let constants: Vec<Arc<Buffer>> = program
            .packed
            .iter()
            .map(|packed_constant| setup.pool.get(device, packed_constant, setup))
            .collect::<Result<_>>()?;
        // If the intermediate results do not fit in device memory, loading fails instead of a run.
        drop(Buffer::new(device, program.arena)?);
        let mut arena = BoundArena { arguments: vec![Vec::new(); program.buffers.len()], ..BoundArena::default() };
        let mut launches = Vec::new();
        for (launch_index, launch) in program.launches.iter().enumerate() {
            let kernel = &program.kernels[launch.kernel];
            let bound_launch = Launch::new(&built_program, &kernel.name, launch.global, kernel.local)?;
            for (argument_index, place) in launch.arguments.iter().enumerate() {
                match *place {
                    Place::Input(i) => edges[i].arguments.push([launch_index, argument_index]),
                    Place::Output(i) => edges[program.inputs.len() + i].arguments.push([launch_index, argument_index]),
                    Place::Constant(i) => bound_launch.set(argument_index, constants[i].handle())?,
                    Place::Work(i) => arena.arguments[i].push([launch_index, argument_index]),
                }
            }
            launches.push(bound_launch);
        }
        Ok(State { launches, edges, arena, _constants: constants })
    }

    /// Enqueues copies of the host inputs to the device, all kernels, and copies of the host outputs back. After an
    /// error, `commands` contains the commands enqueued before the error.
    fn enqueue(&mut self, operands: &[Operand], inputs: usize, commands: &mut EnqueuedCommands) -> Result<()> {
        let is_on_host = |operand: &Operand| matches!(operand, Operand::Host);
        for (edge, _) in self.edges.iter().zip(operands).take(inputs).filter(|(_, operand)| is_on_host(operand)) {
            let Some(own_buffer) = &edge.own_buffer else { continue };
            // SAFETY: `edge` owns the staging memory. `run` waits for the copy before it writes there again, and leaks
            // the memory if the device is lost.
            commands.copy = Some(unsafe { own_buffer.write(0, &edge.staging) }?);
        }
        for launch in &self.launches {
            commands.kernels.push(launch.enqueue()?);
        }
        for (edge, _) in self.edges.iter_mut().zip(operands).skip(inputs).filter(|(_, operand)| is_on_host(operand)) {
            let Some(own_buffer) = &edge.own_buffer else { continue };
            // SAFETY: `edge` owns the staging memory. `run` waits for the copy before it reads the result, and leaks
            // the memory if the device is lost.
            commands.copy = Some(unsafe { own_buffer.read(0, &mut edge.staging) }?);
            commands.ends_with_copy = true;
        }
        Ok(())
    }
}

/// Events of the commands of a run.
#[derive(Default)]
struct EnqueuedCommands {
    kernels: Vec<Event>,
    /// Last copy; `None` if nothing is copied.
    copy: Option<Event>,
    /// True if the last command is a copy to the host.
    ends_with_copy: bool,
}

impl EnqueuedCommands {
    /// Returns the event of the last command.
    fn last_event(&self) -> Option<&Event> {
        let kernel = self.kernels.last().filter(|_| !self.ends_with_copy);
        kernel.or(self.copy.as_ref())
    }
}

/// Work that continues after its run has returned.
struct Work {
    target: Arc<Target>,
    kernels: Vec<Event>,
    services: Services,
    last: UnfinishedEvent,
    is_reported: AtomicBool,
}

impl Completion for Work {
    fn wait(&self, time: Duration) -> Result<bool> {
        let is_done = self.last.wait(time)?;
        if is_done && !self.is_reported.swap(true, Ordering::Relaxed) {
            let kernels = self.kernels.iter().chain([self.last.event()]);
            self.target.report(kernels, &self.services, [0; 2]);
        }
        Ok(is_done)
    }
}

/// Compares tensor shapes with the shapes that a program expects.
///
/// # Errors
/// If the number of tensors or a shape differs.
pub fn check_shapes<'s>(kind: &str, shapes: impl ExactSizeIterator<Item = &'s [usize]>, edges: &[Edge]) -> Result<()> {
    if shapes.len() != edges.len() {
        return Err(Error::new(format!("number of {kind}s: expected {}, found {}", edges.len(), shapes.len())));
    }
    for (i, (shape, edge)) in shapes.zip(edges).enumerate() {
        if shape != edge.shape {
            return Err(Error::new(format!("{kind} {i}: expected shape {:?}, found {shape:?}", edge.shape)));
        }
    }
    Ok(())
}

impl Plan {
    /// Creates the device objects of a program.
    ///
    /// # Errors
    /// If a work-group is too large, the driver cannot compile the source, the device lacks memory or is lost, or the
    /// caller cancels.
    pub fn new(program: Program, device: &Arc<Device>, setup: &Setup<'_>) -> Result<Plan> {
        let state = Mutex::new(State::new(&program, device, setup)?);
        Ok(Plan { target: Arc::new(Target { program, device: device.clone() }), state })
    }

    pub fn program(&self) -> &Program {
        &self.target.program
    }

    /// Returns the response to the host's query for the workspace in device memory.
    pub fn workspace_response(&self) -> Vec<u8> {
        let program = self.program();
        let bytes = if program.buffers.is_empty() { 0 } else { program.arena };
        bytes.to_string().into_bytes()
    }

    /// Returns the memory use of this plan in bytes, without the constants that plans share.
    pub fn bytes(&self) -> u64 {
        let program = self.program();
        let edges: u64 = program.inputs.iter().chain(&program.outputs).filter_map(Edge::bytes).sum();
        // Each tensor has a device buffer and staging memory on the host.
        program.arena + 2 * edges
    }

    /// Runs the program. If all tensors are on the device, hands the unfinished work to the host and returns.
    ///
    /// # Errors
    /// If a tensor has an unexpected shape, a command fails, the device is lost, or the caller cancels.
    pub fn run(&self, call: Call<'_, '_>, services: &Services) -> Result<()> {
        let Call { inputs, outputs, .. } = call;
        let Target { program, device } = &*self.target;
        check_shapes("input", inputs.iter().map(TensorRef::shape), &program.inputs)?;
        check_shapes("output", outputs.iter().map(TensorMut::shape), &program.outputs)?;
        let raw_tensors = inputs.iter().map(TensorRef::raw).chain(outputs.iter().map(TensorMut::raw));
        let operands: Vec<Operand> = raw_tensors.map(Operand::of).collect::<Result<_>>()?;
        let mut guard = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let state = &mut *guard;
        device.check()?;
        for (edge, operand) in state.edges.iter_mut().zip(&operands) {
            edge.bind(*operand, &state.launches, device)?;
        }
        state.arena.bind(workspace(services), program, &state.launches, device)?;
        let mut copied_bytes = [0; 2];
        for ((edge, operand), tensor) in state.edges.iter_mut().zip(&operands).zip(inputs) {
            if let Operand::Host = operand {
                edge.allocate_own_buffer(device)?.1.copy_from_slice(tensor.bytes());
                copied_bytes[0] += edge.bytes;
            }
        }
        for (edge, operand) in state.edges.iter_mut().zip(&operands).skip(inputs.len()) {
            if let Operand::Host = operand {
                edge.allocate_own_buffer(device)?;
                copied_bytes[1] += edge.bytes;
            }
        }
        let mut enqueued_commands = EnqueuedCommands::default();
        let outcome = state.enqueue(&operands, inputs.len(), &mut enqueued_commands);
        if outcome.is_ok() && enqueued_commands.copy.is_none() {
            drop(guard);
            return self.hand_over(enqueued_commands.kernels, services);
        }
        // After an error, the commands that are already enqueued still use the staging memory.
        let wait_result = match enqueued_commands.last_event() {
            Some(last_event) if !device.is_lost() => last_event.wait(services),
            _ => Ok(()),
        };
        let result = outcome.and(wait_result);
        if device.is_lost() {
            // The device may still copy from and to this memory.
            state.edges.iter_mut().for_each(|edge| std::mem::forget(std::mem::take(&mut edge.staging)));
        }
        result?;
        for ((edge, operand), tensor) in state.edges[inputs.len()..].iter().zip(&operands[inputs.len()..]).zip(outputs)
        {
            if let Operand::Host = operand {
                tensor.bytes_mut().copy_from_slice(&edge.staging);
            }
        }
        drop(guard);
        self.target.report(enqueued_commands.kernels.iter(), services, copied_bytes);
        Ok(())
    }

    /// Hands the enqueued kernels to the host; waits for them if the host does not accept them.
    fn hand_over(&self, mut kernels: Vec<Event>, services: &Services) -> Result<()> {
        let Some(last_kernel) = kernels.pop() else { return Ok(()) };
        let last_kernel = last_kernel.into_unfinished()?;
        let work = Work {
            target: self.target.clone(),
            kernels,
            services: services.clone(),
            last: last_kernel,
            is_reported: AtomicBool::new(false),
        };
        let Err(work) = submit(services, work) else { return Ok(()) };
        work.last.event().wait(services)?;
        work.wait(INTERVAL).map(|_| ())
    }
}

impl Target {
    /// Reports the device time of each kernel, and the bytes that the run has copied in and out.
    fn report<'e>(&self, kernels: impl Iterator<Item = &'e Event>, services: &Services, copied_bytes: [u64; 2]) {
        let program = &self.program;
        let times: Vec<Option<[u64; 2]>> = kernels.map(Event::times).collect();
        let latest_end = times.iter().flatten().map(|[_, end]| *end).max().unwrap_or(0);
        for (launch, time) in program.launches.iter().zip(&times) {
            let Some([start, end]) = *time else { continue };
            let fields = json!({
                "region": program.symbol,
                "kernel": program.kernels[launch.kernel].name,
                "device": self.device.traits.name,
                "microseconds": end.saturating_sub(start) as f64 / 1000.0,
                "work_items": launch.global.iter().product::<usize>(),
            });
            services.span(
                &launch.name,
                &Span { track: &self.device.traits.name, begin: start, end, now: latest_end },
                fields,
            );
        }
        let time = times.iter().flatten().map(|[start, end]| end.saturating_sub(*start)).sum();
        services.counter("opencl.nanoseconds", time);
        services.counter("opencl.bytes_in", copied_bytes[0]);
        services.counter("opencl.bytes_out", copied_bytes[1]);
    }
}
