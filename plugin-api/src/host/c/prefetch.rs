//! Prefetches candidates before they are written.
//!
//! A candidate consists of some fifty small allocations, and thousands of candidates exceed the caches: written one by
//! one, most of the time is spent waiting for one cache miss at a time. So a group of candidates is prefetched level by
//! level, all allocations of a level at once, while the previous group is written.

use crate::backend::Candidate;
use crate::graph::{AttrValue, Graph, NodeKind};

/// Prefetches the data that the JSON of these candidates is made of, except the bodies of composites.
pub fn prefetch(candidates: &[Candidate]) {
    candidates.iter().for_each(|candidate| top(&candidate.graph));
    candidates.iter().for_each(|candidate| nodes(&candidate.graph));
    candidates.iter().for_each(|candidate| leaves(&candidate.graph));
}

fn top(graph: &Graph) {
    ask(&graph.symbol);
    ask(&graph.inputs);
    ask(&graph.nodes);
    ask(&graph.outputs);
}

fn nodes(graph: &Graph) {
    for input in &graph.inputs {
        ask(&input.name);
        ask(&input.ty.dims);
    }
    for node in &graph.nodes {
        if let NodeKind::Op(name) = &node.kind {
            ask(name);
        }
        ask(&node.inputs);
        ask(&node.attrs);
        ask(&node.outputs);
        ask(&node.sources);
    }
}

fn leaves(graph: &Graph) {
    for node in &graph.nodes {
        node.outputs.iter().for_each(|ty| ask(&ty.dims));
        node.sources.iter().for_each(ask);
        for attr in &node.attrs {
            ask(&attr.key);
            match &attr.value {
                AttrValue::Str(text) => ask(text),
                AttrValue::List(items) => ask(items),
                _ => {}
            }
        }
    }
}

/// Value in one contiguous allocation.
trait Piece {
    fn bytes(&self) -> (*const i8, usize);
}

impl<T> Piece for abi_stable::std_types::RVec<T> {
    fn bytes(&self) -> (*const i8, usize) {
        (self.as_ptr().cast(), size_of_val(self.as_slice()))
    }
}

impl Piece for abi_stable::std_types::RString {
    fn bytes(&self) -> (*const i8, usize) {
        (self.as_ptr().cast(), self.len())
    }
}

/// Prefetches an allocation, one cache line at a time.
fn ask(piece: &impl Piece) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        const LINE: usize = 64;
        let (start, size) = piece.bytes();
        let mut at = 0;
        while at < size {
            // SAFETY: the address is inside the allocation, and a prefetch does not access it.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(start.add(at)) };
            at += LINE;
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = piece.bytes();
}
