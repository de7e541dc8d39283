//! Loaded regions: plans with their generated code, packed weights, and the memory objects that a run points at its tensors.
//!
//! A run allocates nothing and looks nothing up by name. Memory objects hold the place of a tensor, which differs from run to
//! run, so each run takes a set of them for itself; there are as many sets as there were runs at once. A set remembers the
//! places of the run before, and only what has moved is said anew.

use crate::argument::Given;
use crate::library::ffi::ExecArg;
use crate::library::{Memory, OneDnn, Primitive, Stream, onednn};
use crate::lower::{Packs, lower};
use crate::options::{self, Options};
use crate::pack::{LINE, Lines, Packed, WeakPacked};
use crate::plan::{Place, Plan, Work};
use crate::program::Program;
use byoc_plugin_api::{Attr, Call, Constant, Error, Executable, Graph, Input, Prepared, Result, Services};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

/// A loaded region.
pub struct Region {
    library: &'static OneDnn,
    graph: Graph,
    services: Services,
    threads: usize,
    options: Options,
    state: Mutex<State>,
    plans: RwLock<BTreeMap<u64, Arc<Ready>>>,
}

/// What grows as further input dimensions come.
struct State {
    /// The constants, as long as they are needed: all of them where dimensions are open, otherwise those read in place.
    constants: Vec<Option<Constant>>,
    packs: Packs,
    /// Where each of `packs` lies, as long as a plan reads it.
    packed: Vec<Option<WeakPacked>>,
    by_dims: HashMap<Vec<Vec<i64>>, u64>,
    /// The number of the next plan: none is given twice.
    next: u64,
    /// How many plans were released.
    released: u64,
    /// The plan of a region whose dimensions are all known, until it is prepared: weights are packed then, when the host
    /// has let go of the constants too, so that each is gone as soon as it is packed.
    made: Option<Plan>,
}

/// A constant of so many bytes that is read in place is copied nevertheless: biases lie all over a mapped file, and each of
/// them would keep many of its pages in memory.
const SMALL: usize = 64 << 10;

/// What the generated code of a primitive takes, about.
const CODE_BYTES: usize = 64 << 10;

/// After so many releases the library's cache is emptied, which would keep the code of what was released. Until then plans of
/// similar dimensions share code through it.
const RELEASES: u64 = 16;

/// What a step takes beside: layouts, memory objects, names.
const STEP_BYTES: usize = 4 << 10;

/// A plan, ready to run.
struct Ready {
    plan: Plan,
    /// Where the buffers lie that are the same in every run; null for the others.
    fixed: Vec<*mut u8>,
    /// What `fixed` points into.
    _packed: Vec<Arc<Lines>>,
    _constants: Vec<Constant>,
    /// Bytes that go when it is dropped, about.
    bytes: usize,
    idle: Mutex<Vec<Tensors>>,
}

// SAFETY: the pointers in it are read only, into memory that it holds.
unsafe impl Send for Ready {}
// SAFETY: as above.
unsafe impl Sync for Ready {}

/// The memory objects of one run.
struct Tensors {
    stream: Stream,
    memories: Vec<Memory>,
    /// For each memory object, the buffer that it lies in and where.
    at: Vec<(u32, usize)>,
    /// The arguments of each step, as a range of `args`.
    ranges: Vec<(usize, usize)>,
    args: Vec<ExecArg>,
    /// Where the buffers lay in the run before.
    bases: Vec<*mut u8>,
    next: Vec<*mut u8>,
}

// SAFETY: a set belongs to one run at a time, and the pointers in it are used in that run only.
unsafe impl Send for Tensors {}

impl Region {
    /// Loads a graph. Where every dimension is known, code is generated now, and what the library does not take is found out;
    /// the constants are let go as they are packed, when the region is prepared.
    ///
    /// # Errors
    /// Constants that do not fit, operators that the library does not take.
    pub fn new(graph: Graph, constants: &[Constant], services: &Services) -> Result<Region> {
        let library = onednn()?;
        let (options, ignored) = options::of(&graph);
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
            made: None,
        };
        let region = Region {
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
            state.made = Some(region.make(&mut state.packs, constants, &shapes)?);
        }
        Ok(region)
    }

    /// The plan for these input dimensions, which is made if there is none, and its number.
    fn plan(&self, shapes: &[Vec<i64>]) -> Result<(u64, Arc<Ready>)> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(&number) = state.by_dims.get(shapes)
            && let Some(ready) = self.ready(number)
        {
            return Ok((number, ready));
        }
        let open = self.graph.inputs.iter().any(|input| input.ty.shape().is_none());
        let fits = |(input, dims): (&Input, &Vec<i64>)| {
            let own = input.ty.shape();
            own.is_some_and(|own| own.iter().map(|&d| d as i64).eq(dims.iter().copied()))
        };
        let fit = self.graph.inputs.len() == shapes.len() && self.graph.inputs.iter().zip(shapes).all(fits);
        let made = match state.made.take_if(|_| fit) {
            Some(made) => made,
            None => {
                let constants: Option<Vec<Constant>> = state.constants.iter().cloned().collect();
                let Some(constants) = constants.filter(|_| open) else {
                    let wanted: Vec<String> = self.graph.inputs.iter().map(|input| input.ty.to_string()).collect();
                    let wanted = wanted.join(", ");
                    return Err(Error::new(format!("inputs of dimensions {shapes:?}, where {wanted} are wanted")));
                };
                self.make(&mut state.packs, &constants, shapes)?
            }
        };
        if !open {
            state.drop_unused(&made);
        }
        let (packed, bytes) = self.pack(&mut state, &made, open)?;
        let ready = Arc::new(Ready::new(made, &state.constants, &packed, bytes)?);
        if !open {
            // The plan holds what it reads in place.
            state.constants.fill(None);
        }
        let number = state.next;
        state.next += 1;
        self.plans.write().unwrap_or_else(PoisonError::into_inner).insert(number, ready.clone());
        state.by_dims.insert(shapes.to_vec(), number);
        Ok((number, ready))
    }

    fn ready(&self, number: u64) -> Option<Arc<Ready>> {
        self.plans.read().unwrap_or_else(PoisonError::into_inner).get(&number).cloned()
    }

    /// Lets go of a plan: its generated code, and the packed weights that no other plan reads.
    fn release(&self, number: u64) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.by_dims.retain(|_, own| *own != number);
        if self.plans.write().unwrap_or_else(PoisonError::into_inner).remove(&number).is_some() {
            state.released += 1;
            if state.released.is_multiple_of(RELEASES) {
                self.library.empty_cache();
            }
        }
    }

    /// Returns the number of plans.
    #[cfg(test)]
    pub fn plans(&self) -> usize {
        self.plans.read().unwrap().len()
    }

    /// Bytes of packed weights.
    #[cfg(test)]
    pub fn packed_bytes(&self) -> usize {
        let state = self.state.lock().unwrap();
        let alive = state.packed.iter().zip(&state.packs.packs).filter(|(packed, _)| WeakPacked::get(packed).is_some());
        alive.map(|(_, pack)| pack.to.bytes()).sum()
    }

    /// Plans for input dimensions, and generates code.
    fn make(&self, packs: &mut Packs, constants: &[Constant], shapes: &[Vec<i64>]) -> Result<Plan> {
        // What primitives are made for depends on how many threads there are.
        self.library.set_threads(self.threads);
        let mut program = Program::of(&self.graph, constants, shapes)?;
        program.options = self.options;
        let mut plan = lower(self.library, &program, packs)?;
        for step in &mut plan.steps {
            if let Work::Primitive(desc) = &step.work {
                step.work = Work::Code(Primitive::new(desc)?);
            }
        }
        Ok(plan)
    }

    /// Packs what a new plan reads and no other plan does. Unless there may be further plans, constants that are not read in
    /// place are let go one by one. Gives where each packed constant of the plan lies, by number, and how many bytes the plan
    /// is the first to hold. The first layout of a constant is the region's own and not counted: some plan always has one.
    fn pack(&self, state: &mut State, plan: &Plan, open: bool) -> Result<(Vec<Option<Packed>>, usize)> {
        state.packed.resize_with(state.packs.packs.len(), || None);
        let mut packed: Vec<Option<Packed>> = vec![None; state.packed.len()];
        let mut new = Vec::new();
        for number in plan.packed() {
            packed[number] = WeakPacked::get(&state.packed[number]);
            if packed[number].is_none() {
                new.push(number);
            }
        }
        let mut left = vec![0usize; state.constants.len()];
        new.iter().for_each(|&number| left[state.packs.packs[number].constant] += 1);
        plan.in_place().into_iter().for_each(|number| left[number] += 1);
        let size = |number: usize| state.packs.packs[number].to.bytes().next_multiple_of(LINE);
        let total = new.iter().map(|&number| size(number)).sum();
        let (lines, mut next, mut bytes) = (Arc::new(Lines::in_large_pages(total)?), 0, 0);
        for number in new {
            let pack = &state.packs.packs[number];
            let constant = state.constants[pack.constant].as_ref();
            let constant = constant.ok_or_else(|| Error::new(format!("constant {} is gone", pack.constant)))?;
            let at = lines.at.wrapping_add(next);
            next += size(number);
            // SAFETY: these bytes of the new memory are this constant's.
            unsafe { pack.write(self.library, constant, at) }?;
            if state.packs.packs.iter().position(|other| other.constant == pack.constant) != Some(number) {
                bytes += size(number);
            }
            let here = Packed { lines: lines.clone(), at };
            state.packed[number] = Some(WeakPacked::of(&here));
            packed[number] = Some(here);
            left[pack.constant] -= 1;
            if !open && left[pack.constant] == 0 {
                state.constants[pack.constant] = None;
            }
        }
        Ok((packed, bytes))
    }
}

impl State {
    /// Lets go of the constants that a plan neither packs nor reads: what only stood for an attribute.
    fn drop_unused(&mut self, plan: &Plan) {
        let mut used = vec![false; self.constants.len()];
        self.packs.packs.iter().for_each(|pack| used[pack.constant] = true);
        plan.in_place().into_iter().for_each(|number| used[number] = true);
        for (constant, _) in self.constants.iter_mut().zip(used).filter(|(_, used)| !used) {
            *constant = None;
        }
    }
}

impl Ready {
    fn new(
        plan: Plan,
        constants: &[Option<Constant>],
        packed: &[Option<Packed>],
        packed_bytes: usize,
    ) -> Result<Ready> {
        let code = plan.steps.iter().filter(|step| matches!(step.work, Work::Code(_))).count() * CODE_BYTES;
        let bytes = packed_bytes + code + plan.steps.len() * STEP_BYTES;
        let mut fixed = vec![std::ptr::null_mut(); plan.buffers.len()];
        let (mut held_packed, mut held_constants) = (Vec::new(), Vec::new());
        let buffers = plan.buffers.iter().zip(&mut fixed).zip(plan.touched());
        for ((buffer, at), _) in buffers.filter(|(_, touched)| *touched) {
            match buffer.place {
                Place::Constant(number) => {
                    let constant = constants[number].as_ref();
                    let constant = constant.ok_or_else(|| Error::new(format!("constant {number} is gone")))?;
                    if constant.bytes().len() < buffer.bytes {
                        return Err(Error::new(format!("constant {number} is shorter than its type says")));
                    }
                    if buffer.bytes <= SMALL {
                        let copy = Lines::new(buffer.bytes)?;
                        // SAFETY: the constant has so many bytes, and so has its copy.
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
                    let packed = packed.ok_or_else(|| Error::new(format!("packed constant {number} is gone")))?;
                    *at = packed.at;
                    held_packed.push(packed.lines.clone());
                }
                Place::Input(_) | Place::Output(_) | Place::Arena(_) => {}
            }
        }
        let idle = Mutex::new(Vec::new());
        Ok(Ready { plan, fixed, _packed: held_packed, _constants: held_constants, bytes, idle })
    }

    fn tensors(&self, library: &'static OneDnn) -> Result<Tensors> {
        if let Some(tensors) = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop() {
            return Ok(tensors);
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
        Ok(Tensors { stream: Stream::new(library)?, memories, at, ranges, args, bases, next })
    }

    /// Points every tensor at its place in this run.
    fn aim(&self, tensors: &mut Tensors, call: &mut Call<'_, '_>) -> Result<()> {
        let workspace = call.workspace.as_mut_ptr();
        for ((buffer, fixed), next) in self.plan.buffers.iter().zip(&self.fixed).zip(&mut tensors.next) {
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
        for (memory, &(buffer, offset)) in tensors.memories.iter_mut().zip(&tensors.at) {
            let base = tensors.next[buffer as usize];
            if base != tensors.bases[buffer as usize] {
                memory.set(base.wrapping_add(offset))?;
            }
        }
        std::mem::swap(&mut tensors.bases, &mut tensors.next);
        Ok(())
    }

    fn execute(&self, library: &OneDnn, tensors: &Tensors) -> Result<()> {
        for (number, step) in self.plan.steps.iter().enumerate() {
            let (from, to) = tensors.ranges[number];
            let given = Given { args: &step.args, bases: &tensors.bases };
            match &step.work {
                // SAFETY: every memory object has the layout of its argument, and was pointed at a buffer of the size that
                // the plan says: the host's tensors of checked dimensions, the arena, constants and packed weights.
                Work::Code(primitive) => unsafe { primitive.execute(&tensors.stream, &tensors.args[from..to]) }
                    .map_err(|failure| failure.within(&step.what))?,
                // SAFETY: as above; it was chosen for this CPU.
                Work::Winograd(convolution) => unsafe { convolution.run(library, given) },
                // SAFETY: as above; a product has a buffer of its own.
                Work::Row(row) => unsafe { row.run(library, given) },
                // SAFETY: as above; what a cell gives has a buffer of its own.
                Work::Cell(cell) => unsafe { cell.run(given) },
                // SAFETY: as above; it is the same tensor or another.
                Work::Elementwise(function) => unsafe { function.run(library, given) },
                // SAFETY: as above.
                Work::Join(join) => unsafe { join.run(library, given) },
                // SAFETY: as above; what a chain gives has a buffer of its own.
                Work::Finish(finish) => unsafe { finish.run(library, given) },
                // SAFETY: as above.
                Work::Means(means) => unsafe { means.run(library, given) },
                Work::NoNan(number, count) => {
                    let from = given.place(&step.args[0]).cast::<f32>();
                    // SAFETY: as above; the tensor lies there without gaps, and this step alone writes to it now.
                    let elements = unsafe { std::slice::from_raw_parts_mut(from, *count) };
                    elements.iter_mut().for_each(|x| *x = if x.is_nan() { *number } else { *x });
                }
                Work::Fill(byte) => {
                    let buffer = step.args[0].buffer.0 as usize;
                    // SAFETY: the buffer is this run's own, with that many bytes.
                    unsafe { tensors.bases[buffer].write_bytes(*byte, self.plan.buffers[buffer].bytes) };
                }
                Work::Primitive(_) => return Err(Error::new(format!("{} has no generated code", step.what))),
            }
        }
        Ok(())
    }
}

impl Executable for Region {
    fn prepare(&self, inputs: &[&[usize]]) -> Result<Prepared> {
        let shapes: Vec<Vec<i64>> = inputs.iter().map(|dims| dims.iter().map(|&d| d as i64).collect()).collect();
        let (number, ready) = self.plan(&shapes)?;
        let plan = &ready.plan;
        let attrs = vec![Attr::new("bytes", ready.bytes as i64)].into();
        Ok(Prepared { plan: number, attrs, ..Prepared::exact(&plan.outputs).with_workspace(plan.workspace) })
    }

    fn query(&self, key: &str, data: &[u8]) -> Result<Option<Vec<u8>>> {
        if key != "plan.release" {
            return Ok(None);
        }
        let data: serde_json::Value = serde_json::from_slice(data).unwrap_or_default();
        let number = data["plan"].as_u64();
        self.release(
            number.ok_or_else(|| Error::new(format!("plan.release: expected a plan's number, found {data}")))?,
        );
        Ok(Some(Vec::new()))
    }

    fn run(&self, mut call: Call<'_, '_>) -> Result<()> {
        let ready = self.ready(call.plan);
        let ready = ready.ok_or_else(|| Error::new("a plan that was never prepared, or has been released"))?;
        let outputs = call.outputs.iter().zip(&ready.plan.outputs).all(|(given, wanted)| given.shape() == wanted);
        if call.workspace.len() < ready.plan.workspace || call.inputs.len() != self.graph.inputs.len() || !outputs {
            return Err(Error::new("a call with other memory than was prepared"));
        }
        self.library.set_threads(self.services.num_threads());
        let mut tensors = ready.tensors(self.library)?;
        ready.aim(&mut tensors, &mut call)?;
        let done = ready.execute(self.library, &tensors);
        ready.idle.lock().unwrap_or_else(PoisonError::into_inner).push(tensors);
        done
    }
}
