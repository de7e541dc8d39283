//! Loaded regions: plans with their generated code, packed weights, and per-run memory objects.
//!
//! Memory objects hold tensor addresses, which differ between runs, so each run has exclusive use of a set of memory
//! objects. A set is created only if every existing set is in use; otherwise, a run performs no allocation and no
//! lookup by name. A set caches the addresses of its last run, and only changed addresses are updated.

use crate::argument::Arguments;
use crate::ir::RegionIr;
use crate::library::ffi::ExecArg;
use crate::library::{Memory, OneDnn, Primitive, Stream, onednn};
use crate::lower::{Packs, lower};
use crate::options::{self, Options};
use crate::pack::{AlignedMemory, CACHE_LINE, PackedMemory, WeakPackedMemory};
use crate::plan::{Operation, Place, Plan};
use byoc_plugin_api::{Attr, Call, Constant, Error, Executable, Graph, Input, Prepared, Result, Services};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

pub struct LoadedRegion {
    library: &'static OneDnn,
    graph: Graph,
    services: Services,
    threads: usize,
    options: Options,
    state: Mutex<State>,
    plans: RwLock<BTreeMap<u64, Arc<PreparedPlan>>>,
}

/// State that grows with each new set of input dimensions.
struct State {
    /// Constants that are still needed: every constant if input dimensions are unknown, otherwise the constants of the
    /// pending plan.
    constants: Vec<Option<Constant>>,
    packs: Packs,
    /// Memory of each entry of `packs`; weak, so that it is freed with the last plan that reads it.
    packed: Vec<Option<WeakPackedMemory>>,
    by_dims: HashMap<Vec<Vec<i64>>, u64>,
    /// Number of the next plan; numbers are never reused.
    next: u64,
    /// Number of plans released so far.
    released: u64,
    /// Plan of a region with known dimensions until the region is prepared. Weights are packed during preparation, when
    /// the host has dropped its own references to the constants, so each constant is freed as soon as it is packed.
    pending: Option<Plan>,
}

/// Maximum size in bytes of a constant that is copied although it could be read in place: biases are scattered over the
/// mapped file, and each bias read in place would keep several pages in memory.
const MAX_COPIED_BYTES: usize = 64 << 10;

/// Approximate size of a primitive's generated code in bytes.
const CODE_BYTES: usize = 64 << 10;

/// Number of plan releases between flushes of the library's primitive cache, which keeps the code of released plans.
/// Until a flush, plans for similar dimensions share code through the cache.
const RELEASES_PER_CACHE_FLUSH: u64 = 16;

/// Approximate size in bytes of a step's data other than its code: layouts, memory objects, names.
const STEP_BYTES: usize = 4 << 10;

/// Plan that is ready to run.
struct PreparedPlan {
    plan: Plan,
    /// Addresses of constants and packed constants, which are the same in every run; null for all other buffers.
    fixed: Vec<*mut u8>,
    /// Owners of the memory that `fixed` points into.
    _packed: Vec<Arc<AlignedMemory>>,
    _constants: Vec<Constant>,
    /// Approximate number of bytes that dropping the plan frees.
    bytes: usize,
    idle: Mutex<Vec<MemorySet>>,
}

// SAFETY: `fixed` points into memory that `_packed` and `_constants` own and that is only read.
unsafe impl Send for PreparedPlan {}
// SAFETY: the memory that `fixed` points into is only read, and a mutex protects `idle`.
unsafe impl Sync for PreparedPlan {}

/// Memory objects of one run.
struct MemorySet {
    stream: Stream,
    memories: Vec<Memory>,
    /// Buffer index and byte offset of each memory object.
    at: Vec<(u32, usize)>,
    /// Arguments of each step, as a range of `args`.
    ranges: Vec<(usize, usize)>,
    args: Vec<ExecArg>,
    /// Buffer addresses in the previous run.
    bases: Vec<*mut u8>,
    next: Vec<*mut u8>,
}

// SAFETY: `take_memory_set` hands a set to one run at a time, and only that run dereferences its pointers.
unsafe impl Send for MemorySet {}

impl LoadedRegion {
    /// Loads a graph. A graph whose dimensions are all known is lowered and compiled here, so that unsupported
    /// operators are reported at load time; its constants are packed and released when the region is prepared.
    ///
    /// # Errors
    /// If oneDNN is not available, constants do not match the graph, or the library does not support an operator.
    pub fn new(graph: Graph, constants: &[Constant], services: &Services) -> Result<LoadedRegion> {
        let library = onednn()?;
        let (options, ignored) = options::of_graph(&graph);
        if let Some(ignored) = ignored {
            tracing::warn!("{}: {ignored}", graph.symbol);
        }
        let shapes: Option<Vec<Vec<i64>>> = graph
            .inputs
            .iter()
            .map(|input| input.ty.shape().map(|shape| shape.iter().map(|&d| d as i64).collect()))
            .collect();
        let state = State {
            constants: constants.iter().cloned().map(Some).collect(),
            packs: Packs::default(),
            packed: Vec::new(),
            by_dims: HashMap::new(),
            next: 0,
            released: 0,
            pending: None,
        };
        let region = LoadedRegion {
            library,
            options,
            graph,
            threads: services.num_threads(),
            services: services.clone(),
            state: Mutex::new(state),
            plans: RwLock::new(BTreeMap::new()),
        };
        if let Some(shapes) = shapes {
            let mut state = region.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.pending = Some(region.compile(&mut state.packs, constants, &shapes)?);
        }
        Ok(region)
    }

    /// Returns the plan for these input dimensions and its number, creating the plan if necessary.
    fn plan(&self, shapes: &[Vec<i64>]) -> Result<(u64, Arc<PreparedPlan>)> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(&number) = state.by_dims.get(shapes)
            && let Some(prepared) = self.find(number)
        {
            return Ok((number, prepared));
        }
        let dynamic = self.graph.inputs.iter().any(|input| input.ty.shape().is_none());
        let fits = |(input, dims): (&Input, &Vec<i64>)| {
            let own = input.ty.shape();
            own.is_some_and(|own| own.iter().map(|&d| d as i64).eq(dims.iter().copied()))
        };
        let fit = self.graph.inputs.len() == shapes.len() && self.graph.inputs.iter().zip(shapes).all(fits);
        let plan = match state.pending.take_if(|_| fit) {
            Some(plan) => plan,
            None => {
                let constants: Option<Vec<Constant>> = state.constants.iter().cloned().collect();
                let Some(constants) = constants.filter(|_| dynamic) else {
                    let wanted: Vec<String> = self.graph.inputs.iter().map(|input| input.ty.to_string()).collect();
                    let wanted = wanted.join(", ");
                    return Err(Error::new(format!("expected inputs {wanted}, found dimensions {shapes:?}")));
                };
                self.compile(&mut state.packs, &constants, shapes)?
            }
        };
        if !dynamic {
            state.drop_unused(&plan);
        }
        let (packed, bytes) = self.pack(&mut state, &plan, dynamic)?;
        let prepared = Arc::new(PreparedPlan::new(plan, &state.constants, &packed, bytes)?);
        if !dynamic {
            // The plan owns the constants that it reads in place.
            state.constants.fill(None);
        }
        let number = state.next;
        state.next += 1;
        self.plans.write().unwrap_or_else(PoisonError::into_inner).insert(number, prepared.clone());
        state.by_dims.insert(shapes.to_vec(), number);
        Ok((number, prepared))
    }

    fn find(&self, number: u64) -> Option<Arc<PreparedPlan>> {
        self.plans.read().unwrap_or_else(PoisonError::into_inner).get(&number).cloned()
    }

    /// Releases a plan: its generated code, and the packed weights that no other plan reads.
    fn release(&self, number: u64) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.by_dims.retain(|_, own| *own != number);
        if self.plans.write().unwrap_or_else(PoisonError::into_inner).remove(&number).is_some() {
            state.released += 1;
            if state.released.is_multiple_of(RELEASES_PER_CACHE_FLUSH) {
                self.library.empty_cache();
            }
        }
    }

    #[cfg(test)]
    pub fn plans(&self) -> usize {
        self.plans.read().unwrap().len()
    }

    /// Returns the size of the packed weights in bytes.
    #[cfg(test)]
    pub fn packed_bytes(&self) -> usize {
        let state = self.state.lock().unwrap();
        let alive =
            state.packed.iter().zip(&state.packs.packs).filter(|(packed, _)| WeakPackedMemory::get(packed).is_some());
        alive.map(|(_, pack)| pack.to.bytes()).sum()
    }

    /// Creates a plan for these input dimensions and generates its code.
    fn compile(&self, packs: &mut Packs, constants: &[Constant], shapes: &[Vec<i64>]) -> Result<Plan> {
        // The number of threads affects the library's choice of implementations.
        self.library.set_threads(self.threads);
        let mut ir = RegionIr::of(&self.graph, constants, shapes)?;
        ir.options = self.options;
        let mut plan = lower(self.library, &ir, packs)?;
        for step in &mut plan.steps {
            if let Operation::Primitive(desc) = &step.operation {
                step.operation = Operation::Code(Primitive::new(desc)?);
            }
        }
        Ok(plan)
    }

    /// Packs the constants that a new plan reads and that no other plan has packed. Unless additional plans are
    /// possible (`dynamic`), drops each constant that is not read in place after its last packing. Returns the plan's
    /// packed constants, by index, and the size in bytes of the constants packed here. The first packed form of each
    /// constant is not counted but attributed to the region, because some plan always uses it.
    fn pack(&self, state: &mut State, plan: &Plan, dynamic: bool) -> Result<(Vec<Option<PackedMemory>>, usize)> {
        state.packed.resize_with(state.packs.packs.len(), || None);
        let mut packed: Vec<Option<PackedMemory>> = vec![None; state.packed.len()];
        let mut new = Vec::new();
        for number in plan.packed() {
            packed[number] = WeakPackedMemory::get(&state.packed[number]);
            if packed[number].is_none() {
                new.push(number);
            }
        }
        let mut uses = vec![0usize; state.constants.len()];
        new.iter().for_each(|&number| uses[state.packs.packs[number].constant] += 1);
        plan.in_place().into_iter().for_each(|number| uses[number] += 1);
        let size = |number: usize| state.packs.packs[number].to.bytes().next_multiple_of(CACHE_LINE);
        let total = new.iter().map(|&number| size(number)).sum();
        let (memory, mut next, mut bytes) = (Arc::new(AlignedMemory::in_huge_pages(total)?), 0, 0);
        for number in new {
            let pack = &state.packs.packs[number];
            let constant = state.constants[pack.constant].as_ref();
            let constant =
                constant.ok_or_else(|| Error::new(format!("constant {} has already been released", pack.constant)))?;
            let at = memory.at.wrapping_add(next);
            next += size(number);
            // SAFETY: `at` is aligned to a cache line, and the allocation above reserves `size(number)` bytes there.
            unsafe { pack.write(self.library, constant, at) }?;
            if state.packs.packs.iter().position(|other| other.constant == pack.constant) != Some(number) {
                bytes += size(number);
            }
            let entry = PackedMemory { memory: memory.clone(), at };
            state.packed[number] = Some(WeakPackedMemory::of(&entry));
            packed[number] = Some(entry);
            uses[pack.constant] -= 1;
            if !dynamic && uses[pack.constant] == 0 {
                state.constants[pack.constant] = None;
            }
        }
        Ok((packed, bytes))
    }
}

impl State {
    /// Drops the constants that a plan neither packs nor reads, such as those folded into an attribute.
    fn drop_unused(&mut self, plan: &Plan) {
        let mut used = vec![false; self.constants.len()];
        self.packs.packs.iter().for_each(|pack| used[pack.constant] = true);
        plan.in_place().into_iter().for_each(|number| used[number] = true);
        for (constant, _) in self.constants.iter_mut().zip(used).filter(|(_, used)| !used) {
            *constant = None;
        }
    }
}

impl PreparedPlan {
    fn new(
        plan: Plan,
        constants: &[Option<Constant>],
        packed: &[Option<PackedMemory>],
        packed_bytes: usize,
    ) -> Result<PreparedPlan> {
        let code = plan.steps.iter().filter(|step| matches!(step.operation, Operation::Code(_))).count() * CODE_BYTES;
        let bytes = packed_bytes + code + plan.steps.len() * STEP_BYTES;
        let mut fixed = vec![std::ptr::null_mut(); plan.buffers.len()];
        let (mut held_packed, mut held_constants) = (Vec::new(), Vec::new());
        let buffers = plan.buffers.iter().zip(&mut fixed).zip(plan.touched());
        for ((buffer, at), _) in buffers.filter(|(_, touched)| *touched) {
            match buffer.place {
                Place::Constant(number) => {
                    let constant = constants[number].as_ref();
                    let constant =
                        constant.ok_or_else(|| Error::new(format!("constant {number} has already been released")))?;
                    if constant.bytes().len() < buffer.bytes {
                        let (expected, found) = (buffer.bytes, constant.bytes().len());
                        let problem = format!("constant {number}: expected at least {expected} bytes, found {found}");
                        return Err(Error::new(problem));
                    }
                    if buffer.bytes <= MAX_COPIED_BYTES {
                        let copy = AlignedMemory::new(buffer.bytes)?;
                        // SAFETY: the check above ensures `buffer.bytes` bytes in the constant, and the copy has that
                        // size.
                        unsafe { copy.at.copy_from_nonoverlapping(constant.bytes().as_ptr(), buffer.bytes) };
                        *at = copy.at;
                        held_packed.push(Arc::new(copy));
                        continue;
                    }
                    *at = constant.bytes().as_ptr().cast_mut();
                    held_constants.push(constant.clone());
                }
                Place::Packed(number) => {
                    let packed = packed[number].as_ref();
                    let packed = packed
                        .ok_or_else(|| Error::new(format!("packed constant {number} has already been released")))?;
                    *at = packed.at;
                    held_packed.push(packed.memory.clone());
                }
                Place::Input(_) | Place::Output(_) | Place::Arena(_) => {}
            }
        }
        let idle = Mutex::new(Vec::new());
        Ok(PreparedPlan { plan, fixed, _packed: held_packed, _constants: held_constants, bytes, idle })
    }

    fn take_memory_set(&self, library: &'static OneDnn) -> Result<MemorySet> {
        if let Some(set) = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop() {
            return Ok(set);
        }
        let (mut memories, mut at, mut ranges, mut args) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for step in &self.plan.steps {
            let first = args.len();
            for argument in &step.args {
                let memory = Memory::new(library, &argument.desc)?;
                args.push(memory.arg(argument.arg));
                memories.push(memory);
                at.push((argument.buffer.0, argument.offset));
            }
            ranges.push((first, args.len()));
        }
        let bases = vec![std::ptr::null_mut(); self.plan.buffers.len()];
        let next = bases.clone();
        Ok(MemorySet { stream: Stream::new(library)?, memories, at, ranges, args, bases, next })
    }

    /// Sets the address of every tensor for this run.
    fn bind(&self, set: &mut MemorySet, call: &mut Call<'_, '_>) -> Result<()> {
        let workspace = call.workspace.as_mut_ptr();
        for ((buffer, fixed), next) in self.plan.buffers.iter().zip(&self.fixed).zip(&mut set.next) {
            *next = match buffer.place {
                Place::Input(i) => call.inputs[i].raw().data.wrapping_add(call.inputs[i].raw().byte_offset as usize),
                Place::Output(k) => {
                    let raw = call.outputs[k].raw();
                    raw.data.wrapping_add(raw.byte_offset as usize)
                }
                Place::Constant(_) | Place::Packed(_) => *fixed,
                Place::Arena(at) => workspace.wrapping_add(at),
            };
        }
        for (memory, &(buffer, offset)) in set.memories.iter_mut().zip(&set.at) {
            let base = set.next[buffer as usize];
            if base != set.bases[buffer as usize] {
                memory.set(base.wrapping_add(offset))?;
            }
        }
        std::mem::swap(&mut set.bases, &mut set.next);
        Ok(())
    }

    fn execute(&self, library: &OneDnn, set: &MemorySet) -> Result<()> {
        for (number, step) in self.plan.steps.iter().enumerate() {
            let (from, to) = set.ranges[number];
            let args = Arguments { args: &step.args, bases: &set.bases };
            match &step.operation {
                // SAFETY: `take_memory_set` gave each memory object its argument's layout, and `bind` its address in a
                // buffer of the planned size: a host tensor of checked dimensions, the arena, or a constant.
                Operation::Code(primitive) => unsafe { primitive.execute(&set.stream, &set.args[from..to]) }
                    .map_err(|failure| failure.in_step(&step.label))?,
                // SAFETY: `bind` set all addresses to buffers of the planned sizes; lowering checked for AVX-512.
                Operation::Winograd(convolution) => unsafe { convolution.run(library, args) },
                // SAFETY: `bind` set all addresses to buffers of the planned sizes; lowering gave the result its own
                // buffer.
                Operation::Gemv(gemv) => unsafe { gemv.run(library, args) },
                // SAFETY: `bind` set all addresses to buffers of the planned sizes; lowering gave the result its own
                // buffer.
                Operation::Cell(cell) => unsafe { cell.run(args) },
                // SAFETY: `bind` set all addresses to buffers of the planned sizes; lowering made source and
                // destination the same tensor or disjoint.
                Operation::Elementwise(function) => unsafe { function.run(library, args) },
                // SAFETY: `bind` set all addresses to buffers of the planned sizes; lowering gave the result its own
                // buffer.
                Operation::Concat(concat) => unsafe { concat.run(library, args) },
                // SAFETY: `bind` set all addresses to buffers of the planned sizes; lowering gave the result its own
                // buffer.
                Operation::Epilogue(epilogue) => unsafe { epilogue.run(library, args) },
                // SAFETY: `bind` set all addresses to buffers of the planned sizes; lowering gave the result its own
                // buffer.
                Operation::IntAvgPool(pool) => unsafe { pool.run(library, args) },
                Operation::NoNan(number, count) => {
                    let from = args.address(&step.args[0]).cast::<f32>();
                    // SAFETY: `bind` set the address to a buffer that holds the packed tensor of `count` elements, and
                    // steps run one after another.
                    let elements = unsafe { std::slice::from_raw_parts_mut(from, *count) };
                    elements.iter_mut().for_each(|x| *x = if x.is_nan() { *number } else { *x });
                }
                Operation::Fill(byte) => {
                    let buffer = step.args[0].buffer.0 as usize;
                    // SAFETY: `bind` set the address to a buffer of this run, which has the planned number of bytes.
                    unsafe { set.bases[buffer].write_bytes(*byte, self.plan.buffers[buffer].bytes) };
                }
                Operation::Primitive(_) => return Err(Error::new(format!("{} has no generated code", step.label))),
            }
        }
        Ok(())
    }
}

impl Executable for LoadedRegion {
    fn prepare(&self, inputs: &[&[usize]]) -> Result<Prepared> {
        let shapes: Vec<Vec<i64>> = inputs.iter().map(|dims| dims.iter().map(|&d| d as i64).collect()).collect();
        let (number, prepared) = self.plan(&shapes)?;
        let plan = &prepared.plan;
        let attrs = vec![Attr::new("bytes", prepared.bytes as i64)].into();
        Ok(Prepared { plan: number, attrs, ..Prepared::exact(&plan.outputs).with_workspace(plan.workspace) })
    }

    fn query(&self, key: &str, data: &[u8]) -> Result<Option<Vec<u8>>> {
        if key != "plan.release" {
            return Ok(None);
        }
        let data: serde_json::Value = serde_json::from_slice(data).unwrap_or_default();
        let number = data["plan"].as_u64();
        self.release(number.ok_or_else(|| Error::new(format!("plan.release: expected a plan number, found {data}")))?);
        Ok(Some(Vec::new()))
    }

    fn run(&self, mut call: Call<'_, '_>) -> Result<()> {
        let prepared = self.find(call.plan);
        let prepared = prepared.ok_or_else(|| Error::new("the plan was never prepared, or has been released"))?;
        let outputs = call.outputs.iter().zip(&prepared.plan.outputs).all(|(given, wanted)| given.shape() == wanted);
        if call.workspace.len() < prepared.plan.workspace || call.inputs.len() != self.graph.inputs.len() || !outputs {
            return Err(Error::new("the call does not match the prepared plan"));
        }
        self.library.set_threads(self.services.num_threads());
        let mut set = prepared.take_memory_set(self.library)?;
        prepared.bind(&mut set, &mut call)?;
        let done = prepared.execute(self.library, &set);
        prepared.idle.lock().unwrap_or_else(PoisonError::into_inner).push(set);
        done
    }
}
