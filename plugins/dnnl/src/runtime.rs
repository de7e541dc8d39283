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
    packed_constants: Vec<Option<WeakPackedMemory>>,
    by_dims: HashMap<Vec<Vec<i64>>, u64>,
    /// Number of the next plan; numbers are never reused.
    next: u64,
    /// Number of plans released so far.
    released: u64,
    /// Plan of a region with known dimensions, kept until the region is prepared. Weights are packed during
    /// preparation, when the host has dropped its own references to the constants, so each constant is freed as soon as
    /// it is packed.
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
    fixed_addresses: Vec<*mut u8>,
    /// Owners of the memory that `fixed_addresses` points into.
    _packed: Vec<Arc<AlignedMemory>>,
    _constants: Vec<Constant>,
    /// Approximate number of bytes that dropping the plan frees.
    bytes: usize,
    /// Counters of a run, with their increments.
    counts: Vec<(String, u64)>,
    idle_sets: Mutex<Vec<MemorySet>>,
}

// SAFETY: `fixed_addresses` points into memory that `_packed` and `_constants` own and that is only read.
unsafe impl Send for PreparedPlan {}
// SAFETY: the memory that `fixed_addresses` points into is only read, and a mutex protects `idle_sets`.
unsafe impl Sync for PreparedPlan {}

/// Memory objects of one run.
struct MemorySet {
    stream: Stream,
    memories: Vec<Memory>,
    /// Buffer index and byte offset of each memory object.
    locations: Vec<(u32, usize)>,
    /// Arguments of each step, as a range of `args`.
    ranges: Vec<(usize, usize)>,
    args: Vec<ExecArg>,
    /// Buffer addresses in the previous run.
    bases: Vec<*mut u8>,
    next_bases: Vec<*mut u8>,
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
        let (options, ignored_option) = options::of_graph(&graph);
        if let Some(ignored_option) = ignored_option {
            tracing::warn!("{}: {ignored_option}", graph.symbol);
        }
        let shapes: Option<Vec<Vec<i64>>> = graph
            .inputs
            .iter()
            .map(|input| input.ty.shape().map(|shape| shape.iter().map(|&d| d as i64).collect()))
            .collect();
        let state = State {
            constants: constants.iter().cloned().map(Some).collect(),
            packs: Packs::default(),
            packed_constants: Vec::new(),
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
        if let Some(&id) = state.by_dims.get(shapes)
            && let Some(prepared_plan) = self.find(id)
        {
            return Ok((id, prepared_plan));
        }
        let has_dynamic_shape = self.has_dynamic_shape();
        let has_input_shape = |(input, dims): (&Input, &Vec<i64>)| {
            let input_shape = input.ty.shape();
            input_shape.is_some_and(|input_shape| input_shape.iter().map(|&d| d as i64).eq(dims.iter().copied()))
        };
        let is_match =
            self.graph.inputs.len() == shapes.len() && self.graph.inputs.iter().zip(shapes).all(has_input_shape);
        let plan = match state.pending.take_if(|_| is_match) {
            Some(plan) => plan,
            None => {
                let constants: Option<Vec<Constant>> = state.constants.iter().cloned().collect();
                let Some(constants) = constants.filter(|_| has_dynamic_shape) else {
                    let expected: Vec<String> = self.graph.inputs.iter().map(|input| input.ty.to_string()).collect();
                    let expected = expected.join(", ");
                    return Err(Error::new(format!("expected inputs {expected}, found dimensions {shapes:?}")));
                };
                self.compile(&mut state.packs, &constants, shapes)?
            }
        };
        if !has_dynamic_shape {
            state.drop_unused(&plan);
        }
        let (packed_constants, bytes) = self.pack(&mut state, &plan, has_dynamic_shape)?;
        let mut prepared_plan = PreparedPlan::new(plan, &state.constants, &packed_constants, bytes)?;
        // Counters that no run increments are announced here, because each costs a call.
        prepared_plan.counts.retain(|(name, increment)| {
            self.services.counter(name, 0);
            *increment > 0
        });
        let prepared_plan = Arc::new(prepared_plan);
        if !has_dynamic_shape {
            // The plan owns the constants that it reads in place.
            state.constants.fill(None);
        }
        let id = state.next;
        state.next += 1;
        self.plans.write().unwrap_or_else(PoisonError::into_inner).insert(id, prepared_plan.clone());
        state.by_dims.insert(shapes.to_vec(), id);
        Ok((id, prepared_plan))
    }

    /// Returns true if dimensions of an input become known only at run time.
    fn has_dynamic_shape(&self) -> bool {
        self.graph.inputs.iter().any(|input| input.ty.shape().is_none())
    }

    fn find(&self, id: u64) -> Option<Arc<PreparedPlan>> {
        self.plans.read().unwrap_or_else(PoisonError::into_inner).get(&id).cloned()
    }

    /// Releases a plan: its generated code, and the packed weights that no other plan reads.
    fn release(&self, id: u64) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.by_dims.retain(|_, plan_id| *plan_id != id);
        if self.plans.write().unwrap_or_else(PoisonError::into_inner).remove(&id).is_some() {
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
        let live_packs = state
            .packed_constants
            .iter()
            .zip(&state.packs.packs)
            .filter(|(packed_memory, _)| WeakPackedMemory::get(packed_memory).is_some());
        live_packs.map(|(_, pack)| pack.packing.bytes()).sum()
    }

    /// Creates a plan for these input dimensions and generates its code.
    fn compile(&self, packs: &mut Packs, constants: &[Constant], shapes: &[Vec<i64>]) -> Result<Plan> {
        let mut ir = RegionIr::of(&self.graph, constants, shapes)?;
        ir.options = self.options;
        ir.limits_retained_code = self.has_dynamic_shape();
        // The number of threads affects the library's choice of implementations.
        self.library.set_threads(if ir.is_small() { 1 } else { self.threads });
        let mut plan = lower(self.library, &ir, packs)?;
        for step in &mut plan.steps {
            if let Operation::Primitive(desc) = &step.operation {
                step.operation = Operation::Code(Primitive::shared(desc)?);
            }
        }
        Ok(plan)
    }

    /// Packs the constants that a new plan reads and that no other plan has packed. If no further plans are possible
    /// (`is_dynamic` is false), drops each constant after its last packing, unless the plan reads it in place. Returns
    /// the plan's packed constants, by index, and the size in bytes of the constants packed here. The first packed form
    /// of each constant is not counted but attributed to the region, because some plan always uses it.
    fn pack(&self, state: &mut State, plan: &Plan, is_dynamic: bool) -> Result<(Vec<Option<PackedMemory>>, usize)> {
        state.packed_constants.resize_with(state.packs.packs.len(), || None);
        let mut packed_constants: Vec<Option<PackedMemory>> = vec![None; state.packed_constants.len()];
        let mut new_packs = Vec::new();
        for index in plan.packed_constants() {
            packed_constants[index] = WeakPackedMemory::get(&state.packed_constants[index]);
            if packed_constants[index].is_none() {
                new_packs.push(index);
            }
        }
        let mut use_counts = vec![0usize; state.constants.len()];
        new_packs.iter().for_each(|&index| use_counts[state.packs.packs[index].constant] += 1);
        plan.constants_in_place().into_iter().for_each(|index| use_counts[index] += 1);
        let size = |index: usize| state.packs.packs[index].packing.bytes().next_multiple_of(CACHE_LINE);
        let total_bytes: usize = new_packs.iter().map(|&index| size(index)).sum();
        self.services.counter("dnnl.packed_bytes", total_bytes as u64);
        let (memory, mut next_offset, mut bytes) = (Arc::new(AlignedMemory::in_huge_pages(total_bytes)?), 0, 0);
        for index in new_packs {
            let pack = &state.packs.packs[index];
            let constant = state.constants[pack.constant].as_ref();
            let constant =
                constant.ok_or_else(|| Error::new(format!("constant {} has already been released", pack.constant)))?;
            let address = memory.address.wrapping_add(next_offset);
            next_offset += size(index);
            // SAFETY: `address` is aligned to a cache line, and the allocation above reserves `size(index)` bytes
            // there.
            unsafe { pack.write(self.library, constant, address) }?;
            if state.packs.packs.iter().position(|candidate| candidate.constant == pack.constant) != Some(index) {
                bytes += size(index);
            }
            let entry = PackedMemory { memory: memory.clone(), address };
            state.packed_constants[index] = Some(WeakPackedMemory::of(&entry));
            packed_constants[index] = Some(entry);
            use_counts[pack.constant] -= 1;
            if !is_dynamic && use_counts[pack.constant] == 0 {
                state.constants[pack.constant] = None;
            }
        }
        Ok((packed_constants, bytes))
    }
}

impl State {
    /// Drops the constants that a plan neither packs nor reads, such as those folded into an attribute.
    fn drop_unused(&mut self, plan: &Plan) {
        let mut is_used = vec![false; self.constants.len()];
        self.packs.packs.iter().for_each(|pack| is_used[pack.constant] = true);
        plan.constants_in_place().into_iter().for_each(|index| is_used[index] = true);
        for (constant, _) in self.constants.iter_mut().zip(is_used).filter(|(_, is_used)| !is_used) {
            *constant = None;
        }
    }
}

impl PreparedPlan {
    fn new(
        plan: Plan,
        constants: &[Option<Constant>],
        packed_constants: &[Option<PackedMemory>],
        packed_bytes: usize,
    ) -> Result<PreparedPlan> {
        let code = plan.steps.iter().filter(|step| matches!(step.operation, Operation::Code(_))).count() * CODE_BYTES;
        let bytes = packed_bytes + code + plan.steps.len() * STEP_BYTES;
        let mut fixed_addresses = vec![std::ptr::null_mut(); plan.buffers.len()];
        let (mut held_packed, mut held_constants) = (Vec::new(), Vec::new());
        let buffers = plan.buffers.iter().zip(&mut fixed_addresses).zip(plan.touched_buffers());
        for ((buffer, address), _) in buffers.filter(|(_, is_touched)| *is_touched) {
            match buffer.place {
                Place::Constant(index) => {
                    let constant = constants[index].as_ref();
                    let constant =
                        constant.ok_or_else(|| Error::new(format!("constant {index} has already been released")))?;
                    if constant.bytes().len() < buffer.bytes {
                        let (expected, found) = (buffer.bytes, constant.bytes().len());
                        let problem = format!("constant {index}: expected at least {expected} bytes, found {found}");
                        return Err(Error::new(problem));
                    }
                    if buffer.bytes <= MAX_COPIED_BYTES {
                        let copy = AlignedMemory::new(buffer.bytes)?;
                        // SAFETY: the check above ensures `buffer.bytes` bytes in the constant, and the copy has that
                        // size.
                        unsafe { copy.address.copy_from_nonoverlapping(constant.bytes().as_ptr(), buffer.bytes) };
                        *address = copy.address;
                        held_packed.push(Arc::new(copy));
                        continue;
                    }
                    *address = constant.bytes().as_ptr().cast_mut();
                    held_constants.push(constant.clone());
                }
                Place::Packed(index) => {
                    let packed_constants = packed_constants[index].as_ref();
                    let packed_constants = packed_constants
                        .ok_or_else(|| Error::new(format!("packed constant {index} has already been released")))?;
                    *address = packed_constants.address;
                    held_packed.push(packed_constants.memory.clone());
                }
                Place::Input(_) | Place::Output(_) | Place::Arena(_) => {}
            }
        }
        let (idle_sets, counts) = (Mutex::new(Vec::new()), plan.counts());
        let (_packed, _constants) = (held_packed, held_constants);
        Ok(PreparedPlan { plan, fixed_addresses, _packed, _constants, bytes, counts, idle_sets })
    }

    fn take_memory_set(&self, library: &'static OneDnn) -> Result<MemorySet> {
        if let Some(set) = self.idle_sets.lock().unwrap_or_else(PoisonError::into_inner).pop() {
            return Ok(set);
        }
        let (mut memories, mut locations, mut ranges, mut args) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for step in &self.plan.steps {
            let first_arg = args.len();
            for argument in &step.args {
                let memory = Memory::new(library, &argument.desc)?;
                args.push(memory.arg(argument.arg));
                memories.push(memory);
                locations.push((argument.buffer.0, argument.offset));
            }
            ranges.push((first_arg, args.len()));
        }
        let bases = vec![std::ptr::null_mut(); self.plan.buffers.len()];
        let next_bases = bases.clone();
        Ok(MemorySet { stream: Stream::new(library)?, memories, locations, ranges, args, bases, next_bases })
    }

    /// Sets the address of every tensor for this run.
    fn bind(&self, set: &mut MemorySet, call: &mut Call<'_, '_>) -> Result<()> {
        let workspace = call.workspace.as_mut_ptr();
        for ((buffer, address), next_base) in
            self.plan.buffers.iter().zip(&self.fixed_addresses).zip(&mut set.next_bases)
        {
            *next_base = match buffer.place {
                Place::Input(i) => call.inputs[i].raw().data.wrapping_add(call.inputs[i].raw().byte_offset as usize),
                Place::Output(k) => {
                    let raw = call.outputs[k].raw();
                    raw.data.wrapping_add(raw.byte_offset as usize)
                }
                Place::Constant(_) | Place::Packed(_) => *address,
                Place::Arena(offset) => workspace.wrapping_add(offset),
            };
        }
        for (memory, &(buffer, offset)) in set.memories.iter_mut().zip(&set.locations) {
            let base = set.next_bases[buffer as usize];
            if base != set.bases[buffer as usize] {
                memory.set(base.wrapping_add(offset))?;
            }
        }
        std::mem::swap(&mut set.bases, &mut set.next_bases);
        Ok(())
    }

    fn execute(&self, library: &OneDnn, set: &MemorySet) -> Result<()> {
        for (step_index, step) in self.plan.steps.iter().enumerate() {
            let (start, end) = set.ranges[step_index];
            let args = Arguments { args: &step.args, bases: &set.bases };
            match &step.operation {
                // SAFETY: `take_memory_set` gave each memory object its argument's layout, and `bind` its address in a
                // buffer of the planned size: a host tensor of checked dimensions, the arena, or a constant.
                Operation::Code(primitive) => unsafe { primitive.execute(&set.stream, &set.args[start..end]) }
                    .map_err(|failure| failure.in_step(&step.label))?,
                // SAFETY: `bind` set all addresses to buffers of the planned sizes; lowering checked for AVX-512.
                Operation::Winograd(convolution) => unsafe { convolution.run(library, args) },
                // SAFETY: `bind` set all addresses to buffers of the planned sizes; lowering gave the result its own
                // buffer.
                Operation::OverlapAdd(overlap_add) => unsafe { overlap_add.run(library, args) },
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
                Operation::NoNan(replacement, count) => {
                    let start = args.address(&step.args[0]).cast::<f32>();
                    // SAFETY: `bind` set the address to a buffer that holds the packed tensor of `count` elements, and
                    // steps run one after another.
                    let elements = unsafe { std::slice::from_raw_parts_mut(start, *count) };
                    elements.iter_mut().for_each(|x| *x = if x.is_nan() { *replacement } else { *x });
                }
                Operation::Fill(byte) => {
                    let buffer = step.args[0].buffer.0 as usize;
                    // SAFETY: `bind` set the address to a buffer of this run, which has the planned number of bytes.
                    unsafe { set.bases[buffer].write_bytes(*byte, self.plan.buffers[buffer].bytes) };
                }
                Operation::Primitive(_) => {
                    return Err(Error::new(format!("{}: the primitive ran before its code was generated", step.label)));
                }
            }
        }
        Ok(())
    }
}

impl Executable for LoadedRegion {
    fn prepare(&self, inputs: &[&[usize]]) -> Result<Prepared> {
        let shapes: Vec<Vec<i64>> = inputs.iter().map(|dims| dims.iter().map(|&d| d as i64).collect()).collect();
        let (id, prepared_plan) = self.plan(&shapes)?;
        let plan = &prepared_plan.plan;
        let attrs = vec![Attr::new("bytes", prepared_plan.bytes as i64)].into();
        Ok(Prepared { plan: id, attrs, ..Prepared::exact(&plan.outputs).with_workspace(plan.workspace) })
    }

    fn query(&self, key: &str, data: &[u8]) -> Result<Option<Vec<u8>>> {
        if !["plan.release", "plan.steps"].contains(&key) {
            return Ok(None);
        }
        let data: serde_json::Value = serde_json::from_slice(data).unwrap_or_default();
        let id = data["plan"].as_u64();
        let id = id.ok_or_else(|| Error::new(format!("{key}: expected a plan number, found {data}")))?;
        if key == "plan.steps" {
            return Ok(self.find(id).map(|prepared_plan| prepared_plan.plan.report().to_string().into_bytes()));
        }
        self.release(id);
        Ok(Some(Vec::new()))
    }

    fn run(&self, mut call: Call<'_, '_>) -> Result<()> {
        let prepared_plan = self.find(call.plan);
        let prepared_plan =
            prepared_plan.ok_or_else(|| Error::new("the plan was never prepared, or has been released"))?;
        let outputs_match =
            call.outputs.iter().zip(&prepared_plan.plan.outputs).all(|(output, expected)| output.shape() == expected);
        if call.workspace.len() < prepared_plan.plan.workspace
            || call.inputs.len() != self.graph.inputs.len()
            || !outputs_match
        {
            let shapes: Vec<_> = call.outputs.iter().map(|output| output.shape()).collect();
            return Err(Error::new(format!(
                "input count, output shapes, workspace bytes: expected {}, {:?}, at least {}, found {}, {shapes:?}, {}",
                self.graph.inputs.len(),
                prepared_plan.plan.outputs,
                prepared_plan.plan.workspace,
                call.inputs.len(),
                call.workspace.len()
            )));
        }
        self.library.set_threads(if prepared_plan.plan.is_serial { 1 } else { self.services.num_threads() });
        let mut set = prepared_plan.take_memory_set(self.library)?;
        prepared_plan.bind(&mut set, &mut call)?;
        let result = prepared_plan.execute(self.library, &set);
        prepared_plan.idle_sets.lock().unwrap_or_else(PoisonError::into_inner).push(set);
        prepared_plan.counts.iter().for_each(|(name, increment)| self.services.counter(name, *increment));
        result
    }
}
