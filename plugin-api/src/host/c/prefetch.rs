//! Prefetches candidates before they are written as JSON.
//!
//! A candidate consists of about fifty small allocations, and thousands of candidates exceed the caches: without
//! prefetching, writing them would consist mostly of waiting for one cache miss after another. Therefore, while one
//! group of candidates is written, the next group is prefetched level by level, with all allocations of a level
//! together.

use crate::backend::Candidate;
use crate::graph::{AttrValue, Graph, NodeKind};

/// Prefetches the data from which the JSON of `candidates` is written, except composite bodies.
pub fn prefetch(candidates: &[Candidate]) {
    candidates.iter().for_each(|candidate| prefetch_roots(&candidate.graph));
    candidates.iter().for_each(|candidate| prefetch_nodes(&candidate.graph));
    candidates.iter().for_each(|candidate| prefetch_leaves(&candidate.graph));
}

fn prefetch_roots(graph: &Graph) {
    prefetch_allocation(&graph.symbol);
    prefetch_allocation(&graph.inputs);
    prefetch_allocation(&graph.nodes);
    prefetch_allocation(&graph.outputs);
}

fn prefetch_nodes(graph: &Graph) {
    for input in &graph.inputs {
        prefetch_allocation(&input.name);
        prefetch_allocation(&input.ty.dims);
    }
    for node in &graph.nodes {
        if let NodeKind::Op(name) = &node.kind {
            prefetch_allocation(name);
        }
        prefetch_allocation(&node.inputs);
        prefetch_allocation(&node.attrs);
        prefetch_allocation(&node.outputs);
        prefetch_allocation(&node.sources);
    }
}

fn prefetch_leaves(graph: &Graph) {
    for node in &graph.nodes {
        node.outputs.iter().for_each(|ty| prefetch_allocation(&ty.dims));
        node.sources.iter().for_each(prefetch_allocation);
        for attr in &node.attrs {
            prefetch_allocation(&attr.key);
            match &attr.value {
                AttrValue::Str(text) => prefetch_allocation(text),
                AttrValue::List(items) => prefetch_allocation(items),
                _ => {}
            }
        }
    }
}

/// Value stored in one contiguous allocation.
trait Allocation {
    fn bytes(&self) -> (*const i8, usize);
}

impl<T> Allocation for abi_stable::std_types::RVec<T> {
    fn bytes(&self) -> (*const i8, usize) {
        (self.as_ptr().cast(), size_of_val(self.as_slice()))
    }
}

impl Allocation for abi_stable::std_types::RString {
    fn bytes(&self) -> (*const i8, usize) {
        (self.as_ptr().cast(), self.len())
    }
}

/// Prefetches an allocation, one cache line at a time.
fn prefetch_allocation(allocation: &impl Allocation) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        const CACHE_LINE: usize = 64;
        let (start, size) = allocation.bytes();
        let mut offset = 0;
        while offset < size {
            // SAFETY: the address is inside the allocation, and a prefetch does not access it.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(start.add(offset)) };
            offset += CACHE_LINE;
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = allocation.bytes();
}
