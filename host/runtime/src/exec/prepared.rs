//! A program prepared for execution, and the memory that is reused between its runs. The state of a single run is in
//! [`interpreter`](super::interpreter).

use super::constants::{constants_of, needed_constants};
use super::device::{DeviceFrame, DeviceSpace, DeviceSpaces};
use super::frame::{Frame, HostArena, Scratch};
use super::load::{self, Code, Step};
use super::lock::lock;
use super::plans::RegionPlans;
use super::pool::Pool;
use super::program::{Instr, Program};
use super::recycler::Recycler;
use super::region::Region;
use super::trace::{StepInfo, steps};
use super::value::Value;
use crate::error::fault;
use byoc_ir::diag::{Diagnostic, codes};
use byoc_ir::tensor::memory::{self, Charge};
use byoc_ir::tensor::{AlignedBytes, OutOfMemory, Tensor};
use std::sync::{Arc, Mutex, OnceLock, Weak};

/// A program, its constants and its code, shared by concurrent runs.
pub(super) struct PreparedProgram {
    pub program: Program,
    /// Constants of the program. A released constant is an empty tensor; `code` returns an error for a function that
    /// reads one.
    pub constants: Vec<Tensor>,
    pub pool: Arc<Pool>,
    released_constants: Vec<bool>,
    /// Device memories, one per space of the program.
    pub spaces: DeviceSpaces,
    regions: Vec<Option<Arc<dyn Region>>>,
    plans: Vec<Option<Arc<RegionPlans>>>,
    /// Code of each function. A function reachable from the entry is prepared at construction. The host program of a
    /// region that a backend runs is prepared when it is first called.
    functions: Vec<OnceLock<Result<Code, Diagnostic>>>,
    free: Arc<FreeMemory>,
    /// True if a region needs memory without contents of earlier runs.
    zeroes_workspace: bool,
    infos: OnceLock<Vec<Vec<StepInfo>>>,
    /// Backend whose device was lost.
    lost_backend: OnceLock<String>,
    /// True if a run needs no thread of the pool; set at construction, or by the first run.
    inline: OnceLock<bool>,
}

/// Threads required by a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Threading {
    /// Unknown until the first run has completed.
    Unknown,
    /// Only the calling thread: no step splits its work, so the pool would only add the cost of the handoff to a pool
    /// thread.
    Inline,
    /// The threads of the pool.
    Pool,
}

/// Maximum number of frames retained per function for reuse: enough for concurrent runs, not for deep recursion.
const MAX_FREE_FRAMES: usize = 16;

/// Working memory that belongs to a run rather than to one of its activations.
pub(super) struct RunBuffers {
    pub scratch: Scratch,
    pub workspace: AlignedBytes,
    pub args: Args,
    pub recycler: Arc<Recycler>,
}

/// Arguments or results of the call in progress.
pub(super) struct Args {
    pub values: Vec<Value>,
    /// Memory of `values`, counted toward the limit.
    charge: Charge,
}

impl Args {
    /// Makes room for `count` values in total.
    ///
    /// # Errors
    /// If the memory limit of the process is exceeded.
    pub fn reserve(&mut self, count: usize) -> Result<(), OutOfMemory> {
        if count > self.values.capacity() {
            self.charge = Charge::new(count.saturating_mul(size_of::<Value>()))?;
            self.values.reserve_exact(count - self.values.len());
        }
        Ok(())
    }
}

/// Memory that is retained for later runs. It is released before an allocation in the process fails.
struct FreeMemory {
    /// Frames of each function.
    frames: Vec<Mutex<Vec<Frame>>>,
    buffers: Mutex<Vec<RunBuffers>>,
}

impl FreeMemory {
    fn new(functions: usize) -> Arc<FreeMemory> {
        let frames = (0..functions).map(|_| Mutex::default()).collect();
        let free = Arc::new(FreeMemory { frames, buffers: Mutex::default() });
        let cache: Weak<FreeMemory> = Arc::downgrade(&free);
        memory::register(cache);
        free
    }

    /// Releases the buffers, and the frames for which `is_released` returns true.
    fn clear(&self, is_released: impl Fn(&Frame) -> bool) {
        for frames in &self.frames {
            let released: Vec<Frame> = lock(frames).extract_if(.., |frame| is_released(frame)).collect();
            drop(released);
        }
        let buffers = std::mem::take(&mut *lock(&self.buffers));
        drop(buffers);
    }
}

impl memory::Cache for FreeMemory {
    fn release(&self) {
        // A plugin may be the one that allocates, so the memory of devices, which plugins release, is retained.
        self.clear(Frame::is_on_host);
    }
}

impl PreparedProgram {
    /// Prepares the functions reachable from the entry, so that a missing kernel is reported before the first run. Host
    /// programs of regions that a backend runs are excluded.
    ///
    /// # Errors
    /// If the host has to run an operator that it does not implement, or reads an absent constant.
    pub fn new(
        program: Program,
        constants: Vec<Option<Tensor>>,
        regions: Vec<Option<Arc<dyn Region>>>,
        spaces: DeviceSpaces,
        pool: Arc<Pool>,
    ) -> Result<PreparedProgram, Diagnostic> {
        let count = program.functions.len();
        let prepared_program = PreparedProgram {
            released_constants: constants.iter().map(Option::is_none).collect(),
            constants: constants.into_iter().map(|constant| constant.unwrap_or_else(placeholder)).collect(),
            plans: RegionPlans::of(&regions),
            spaces,
            pool,
            functions: (0..count).map(|_| OnceLock::new()).collect(),
            free: FreeMemory::new(count),
            zeroes_workspace: regions.iter().flatten().any(|region| region.needs_zeroed_memory()),
            infos: OnceLock::new(),
            lost_backend: OnceLock::new(),
            inline: OnceLock::new(),
            regions,
            program,
        };
        if prepared_program.pool.threads() == 1 {
            let _ = prepared_program.inline.set(true);
        } else if !prepared_program.is_uniform() {
            let _ = prepared_program.inline.set(false);
        }
        let mut is_visited = vec![false; count];
        let mut worklist = vec![prepared_program.program.entry];
        while let Some(index) = worklist.pop() {
            if !std::mem::replace(&mut is_visited[index as usize], true) {
                worklist.extend(prepared_program.code(index)?.callees(&prepared_program.program));
            }
        }
        Ok(prepared_program)
    }

    /// Releases the constants that are read only by host programs of regions that are certain to run on their backends.
    pub fn release_constants(&mut self) {
        let refused_regions: Vec<u32> = self
            .functions
            .iter()
            .filter_map(|code| code.get()?.as_ref().ok())
            .flat_map(|code| &code.steps)
            .filter_map(|step| match step {
                Step::Region(step) if step.region.is_none() => Some(step.index),
                _ => None,
            })
            .collect();
        let is_loaded = |index: u32| {
            let region = self.regions[index as usize].as_ref();
            region.is_some_and(|region| !region.may_be_lost()) && !refused_regions.contains(&index)
        };
        let is_needed = needed_constants(&self.program, is_loaded);
        for (constant_index, _) in is_needed.iter().enumerate().filter(|(_, is_needed)| !**is_needed) {
            self.constants[constant_index] = placeholder();
            self.released_constants[constant_index] = true;
        }
    }

    /// Returns true if runs change the state of a region.
    pub fn is_stateful(&self) -> bool {
        self.regions.iter().flatten().any(|region| region.is_stateful())
    }

    /// Resets the states of the regions.
    pub fn reset_state(&self) -> Result<(), Diagnostic> {
        self.regions.iter().flatten().try_for_each(|region| region.reset_state())
    }

    /// Returns one line per region that its backend refused during preparation, with the reason.
    pub fn notes(&self) -> Vec<String> {
        let ready_functions = self.functions.iter().filter_map(|code| code.get()?.as_ref().ok());
        let mut notes: Vec<String> = ready_functions.flat_map(|code| code.notes.iter().cloned()).collect();
        notes.sort();
        notes.dedup();
        notes
    }

    /// Returns static information about each step, indexed by function and instruction.
    pub fn steps(&self) -> &[Vec<StepInfo>] {
        self.infos.get_or_init(|| steps(&self.program))
    }

    /// Returns the code of a function.
    ///
    /// # Errors
    /// If the host does not implement an operator, or a constant was released.
    pub fn code(&self, index: u32) -> Result<&Code, Diagnostic> {
        let load = || {
            self.check_present(index)?;
            load::load(&self.program, &self.constants, &self.regions, &self.plans, &self.spaces, index as usize)
        };
        let function = &self.functions[index as usize];
        let code = match function.get() {
            Some(code) => code,
            None => match load() {
                // There may be more memory or time when the function is called again.
                Err(error)
                    if [codes::runtime::OUT_OF_MEMORY, codes::runtime::TIMED_OUT, codes::runtime::CANCELLED]
                        .contains(&error.code) =>
                {
                    return Err(error);
                }
                code => function.get_or_init(|| code),
            },
        };
        code.as_ref().map_err(Clone::clone)
    }

    /// Checks that no constant that a function reads was released.
    fn check_present(&self, index: u32) -> Result<(), Diagnostic> {
        let function = &self.program.functions[index as usize];
        if constants_of(function).all(|constant| !self.released_constants[constant]) {
            return Ok(());
        }
        let message = format!("function {} cannot run on the host: its constants were released", function.name);
        Err(Diagnostic::error(codes::runtime::CONSTANTS_GONE, message)
            .note("the backend loaded the region and packed its constants before it refused the region")
            .help("remove the backend from the selected backends"))
    }

    /// Returns memory for an activation, reused if possible.
    pub fn frame(&self, index: u32, code: &Code) -> Result<Frame, Diagnostic> {
        let free_frame = lock(&self.free.frames[index as usize]).pop();
        if let Some(frame) = free_frame {
            if code.zeroes_devices {
                frame.device.zero(&code.arenas.device)?;
            }
            return Ok(frame);
        }
        let buffer = |(bytes, space): (&usize, &Option<Arc<DeviceSpace>>)| match space {
            Some(space) if *bytes > 0 => space.memory.allocate(*bytes).map(Some).map_err(|error| fault(&error)),
            _ => Ok(None),
        };
        let device_arenas = code.arenas.device.iter().zip(&self.spaces).map(buffer).collect::<Result<_, _>>()?;
        let copying_device = code.copying_space.and_then(|space| self.spaces[space as usize].as_deref());
        let arena = HostArena::allocate(code.arenas.host, copying_device)?;
        let device = DeviceFrame::new(device_arenas);
        if code.zeroes_devices {
            device.zero(&code.arenas.device)?;
        }
        Frame::new(code.values, arena, device).map_err(|error| {
            let name = &self.program.functions[index as usize].name;
            Diagnostic::from(error).note(format!("required by the registers of a call of {name}"))
        })
    }

    /// Returns the program without the regions and the device memory of a backend.
    ///
    /// # Errors
    /// If a constant is stored only in the backend's regions, or the host does not implement an operator.
    pub fn without_backend(&self, backend: &str) -> Result<PreparedProgram, Diagnostic> {
        let constants = self.constants.iter().zip(&self.released_constants);
        let constants = constants.map(|(constant, is_released)| (!is_released).then(|| constant.clone())).collect();
        let region_pairs = self.regions.iter().zip(&self.program.regions);
        let regions = region_pairs
            .map(|(region, declaration)| region.clone().filter(|_| declaration.backend != backend))
            .collect();
        let spaces = self.spaces.iter().zip(&self.program.spaces);
        let spaces =
            spaces.map(|(space, declaration)| space.clone().filter(|_| declaration.backend != backend)).collect();
        PreparedProgram::new(self.program.clone(), constants, regions, spaces, self.pool.clone())
    }

    /// Retains the memory of a completed activation for reuse.
    pub fn recycle_frame(&self, index: u32, mut frame: Frame) {
        frame.values.fill(Value::Empty);
        frame.device.clear_imports();
        let mut free_frames = lock(&self.free.frames[index as usize]);
        if free_frames.len() < MAX_FREE_FRAMES {
            free_frames.push(frame);
        }
    }

    /// Returns true if all runs execute the same steps with the same dimensions.
    fn is_uniform(&self) -> bool {
        let has_fixed_inputs = self.program.inputs.iter().all(|port| port.ty.shape().is_some());
        let Ok(code) = self.code(self.program.entry) else { return false };
        let is_uniform_step = |step: &Step| match step {
            Step::Nop | Step::Kernel(_) | Step::Alias { .. } | Step::Copy { .. } => true,
            Step::Region(step) => step.region.is_some(),
            Step::Control(instr) => matches!(instr, Instr::Return { .. } | Instr::Free { .. } | Instr::Move { .. }),
            Step::Dynamic(_) => false,
        };
        has_fixed_inputs && code.steps.iter().all(is_uniform_step)
    }

    /// Returns the threads that a run needs.
    pub fn threading(&self) -> Threading {
        match self.inline.get() {
            None => Threading::Unknown,
            Some(true) => Threading::Inline,
            Some(false) => Threading::Pool,
        }
    }

    /// Records after the first run of a program whether a step split its work.
    pub fn learn_threading(&self, has_split: bool, is_complete: bool) {
        if has_split || is_complete {
            let _ = self.inline.set(!has_split);
        }
    }

    /// Records that the device of a region is lost if the diagnostic says so.
    pub fn check_lost(&self, diagnostic: Diagnostic, region: u32) -> Diagnostic {
        if diagnostic.code == codes::runtime::DEVICE_LOST {
            self.mark_lost(region, &diagnostic.message);
        }
        diagnostic
    }

    /// Records that the device of a region is lost, and logs a warning once.
    pub fn mark_lost(&self, region: u32, reason: &str) {
        let backend = &self.program.regions[region as usize].backend;
        if self.lost_backend.set(backend.clone()).is_ok() {
            tracing::warn!("the device of {backend} is lost, and its regions run on the host from now on: {reason}");
        }
    }

    /// Returns the backend whose device was lost, if any.
    pub fn lost_backend(&self) -> Option<&str> {
        self.lost_backend.get().map(String::as_str)
    }

    /// Returns working memory for a run, reused if possible.
    pub fn buffers(&self) -> RunBuffers {
        let free_buffers = lock(&self.free.buffers).pop();
        let mut buffers = free_buffers.unwrap_or_else(|| RunBuffers {
            scratch: Scratch::default(),
            workspace: AlignedBytes::empty(),
            args: Args { values: Vec::new(), charge: Charge::beyond_limit(0) },
            recycler: Recycler::new(),
        });
        if self.zeroes_workspace {
            buffers.workspace.as_mut().fill(0);
        }
        buffers.recycler.begin_run();
        buffers
    }

    /// Releases the memory that is retained between runs, except the memory of runs in progress.
    pub fn release_memory(&self) {
        self.free.clear(|_| true);
        // All regions share one cache.
        if let Some(plans) = self.plans.iter().flatten().next() {
            plans.clear();
        }
    }

    /// Retains the working memory of a completed run for reuse.
    pub fn recycle_buffers(&self, mut buffers: RunBuffers) {
        buffers.args.values.clear();
        lock(&self.free.buffers).push(buffers);
    }
}

/// Placeholder for a released constant.
fn placeholder() -> Tensor {
    Tensor::empty()
}
