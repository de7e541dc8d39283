//! Tokens between neighboring modules.

use crate::isa::{Deps, Insn, Module};

/// Number of modules.
pub(crate) const MODULES: usize = 3;

/// Number of token queues.
pub(crate) const QUEUES: usize = 4;

/// Token queue from one module to a neighbor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Queue {
    LoadToCompute,
    ComputeToLoad,
    ComputeToStore,
    StoreToCompute,
}

impl Queue {
    pub(crate) const NAMES: [&'static str; QUEUES] =
        ["LOAD to COMPUTE", "COMPUTE to LOAD", "COMPUTE to STORE", "STORE to COMPUTE"];
}

/// Returns the queues from which an instruction pops tokens: those from the previous and from the next module.
///
/// # Errors
/// If a flag refers to a neighbor that the module does not have.
pub(crate) fn popped_queues(module: Module, deps: &Deps) -> Result<[Option<Queue>; 2], String> {
    let [previous, next] = neighbor_queues(
        module,
        [Queue::LoadToCompute, Queue::ComputeToStore],
        [Queue::ComputeToLoad, Queue::StoreToCompute],
    );
    select(module, [(deps.pop_prev, previous, "pop_prev"), (deps.pop_next, next, "pop_next")])
}

/// Returns the queues to which an instruction pushes tokens: those to the previous and to the next module.
///
/// # Errors
/// If a flag refers to a neighbor that the module does not have.
pub(crate) fn pushed_queues(module: Module, deps: &Deps) -> Result<[Option<Queue>; 2], String> {
    let [previous, next] = neighbor_queues(
        module,
        [Queue::ComputeToLoad, Queue::StoreToCompute],
        [Queue::LoadToCompute, Queue::ComputeToStore],
    );
    select(module, [(deps.push_prev, previous, "push_prev"), (deps.push_next, next, "push_next")])
}

/// Returns the queues between a module and its previous and next neighbors. `previous` lists the queues that COMPUTE
/// and STORE share with their previous neighbors, `next` those that LOAD and COMPUTE share with their next neighbors.
fn neighbor_queues(module: Module, previous: [Queue; 2], next: [Queue; 2]) -> [Option<Queue>; 2] {
    match module {
        Module::Load => [None, Some(next[0])],
        Module::Compute => [Some(previous[0]), Some(next[1])],
        Module::Store => [Some(previous[1]), None],
    }
}

fn select(module: Module, flags: [(bool, Option<Queue>, &str); 2]) -> Result<[Option<Queue>; 2], String> {
    let mut queues = [None; 2];
    for (slot, (set, queue, name)) in queues.iter_mut().zip(flags) {
        if set && queue.is_none() {
            return Err(format!("{name}: expected a module with a neighbor on this side, found {module}"));
        }
        *slot = queue.filter(|_| set);
    }
    Ok(queues)
}

/// Returns the instruction indices of each module, in order.
pub(crate) fn by_module(stream: &[Insn]) -> [Vec<usize>; MODULES] {
    let mut queues: [Vec<usize>; MODULES] = Default::default();
    for (index, insn) in stream.iter().enumerate() {
        queues[insn.module() as usize].push(index);
    }
    queues
}
