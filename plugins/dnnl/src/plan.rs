//! Run plan: steps in execution order, and the placement of their tensors.
//!
//! Intermediate tensors and primitive scratchpads share one arena, in which two buffers overlap only if they are never
//! live at the same time.

use crate::argument::Argument;
use crate::library::{Primitive, PrimitiveDesc, ffi, is_slow};
use byoc_plugin_api::DType;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Location of a buffer's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Region input with this index.
    Input(usize),
    /// Region output with this index.
    Output(usize),
    /// Constant with this index, in the host's memory.
    Constant(usize),
    /// Packed constant with this index.
    Packed(usize),
    /// Arena, at this byte offset.
    Arena(usize),
}

/// Buffer of a plan.
#[derive(Clone, Debug)]
pub struct Buffer {
    pub place: Place,
    /// Size in bytes.
    pub bytes: usize,
    pub dtype: DType,
}

/// Operation of a step.
pub enum Operation {
    /// Runs a primitive whose code is not generated yet.
    Primitive(PrimitiveDesc),
    /// Runs a primitive. The descriptor, which is twice as large as the primitive, has been dropped.
    Code(Arc<Primitive>),
    /// Fills the buffer of the only argument with this byte.
    Fill(u8),
    /// Replaces every NaN in the only argument with the first field. The second field is the number of elements.
    NoNan(f32, usize),
    /// Winograd convolution.
    Winograd(crate::winograd::Winograd),
    /// Overlap-add of a transposed convolution.
    OverlapAdd(crate::overlap::OverlapAdd),
    /// GEMV: product of a row vector and a constant matrix.
    Gemv(crate::gemv::Gemv),
    /// Step of a recurrent layer; `cell` defines the argument indices.
    Cell(crate::cell::Cell),
    /// Elementwise function.
    Elementwise(crate::elementwise::Elementwise),
    Concat(crate::concat::RowConcat),
    /// Elementwise chain of integer operators; `qnn` defines the argument indices.
    Epilogue(crate::qnn::Epilogue),
    /// Average pooling of 8-bit integers; `qnn` defines the argument indices.
    IntAvgPool(crate::qnn::IntAvgPoolKernel),
}

impl Operation {
    /// Returns the name of the implementation: that of the library, or that of a hand-written kernel after `byoc:`.
    pub fn implementation(&self) -> &str {
        match self {
            Operation::Primitive(desc) => desc.implementation(),
            Operation::Code(_) => "generated",
            Operation::Fill(_) => "byoc:fill",
            Operation::NoNan(..) => "byoc:no_nan",
            Operation::Winograd(_) => "byoc:winograd",
            Operation::OverlapAdd(_) => "byoc:overlap_add",
            Operation::Gemv(_) => "byoc:gemv",
            Operation::Cell(_) => "byoc:cell",
            Operation::Elementwise(_) => "byoc:elementwise",
            Operation::Concat(_) => "byoc:rows",
            Operation::Epilogue(_) => "byoc:stages",
            Operation::IntAvgPool(_) => "byoc:avg_pool",
        }
    }
}

/// Step of a plan.
pub struct Step {
    pub operation: Operation,
    pub args: Vec<Argument>,
    /// Description of the computation, for messages and traces.
    pub label: String,
    /// Name of the implementation, which is kept when the descriptor is dropped.
    pub implementation: String,
    /// True if the step only copies a tensor into another layout.
    pub is_copy: bool,
}

impl Step {
    /// Returns the size in bytes of the tensors that the step reads and writes.
    pub fn bytes(&self) -> usize {
        let tensors = self.args.iter().filter(|argument| argument.arg != ffi::ARG_SCRATCHPAD);
        tensors.map(|argument| argument.desc.size()).sum()
    }

    /// Returns true for the library's reference code and general loops.
    pub fn is_slow(&self) -> bool {
        is_slow(&self.implementation)
    }
}

/// Plan of a run.
pub struct Plan {
    /// Steps in execution order.
    pub steps: Vec<Step>,
    pub buffers: Vec<Buffer>,
    /// Size of the arena in bytes.
    pub workspace: usize,
    /// Dimensions of the outputs.
    pub outputs: Vec<Vec<usize>>,
    /// True if the plan has so little work that it runs on the calling thread alone.
    pub is_serial: bool,
}

impl Plan {
    /// Returns the steps as JSON: the computation, its implementation, and the size of its tensors in bytes.
    pub fn report(&self) -> Value {
        let step =
            |step: &Step| json!({ "step": step.label, "implementation": step.implementation, "bytes": step.bytes() });
        self.steps.iter().map(step).collect()
    }

    /// Returns what a run on several threads counts: steps, slow steps, steps that may wake the pool, bytes copied into
    /// other layouts, and steps by implementation.
    pub fn counts(&self) -> Vec<(String, u64)> {
        let count = |is_counted: fn(&Step) -> bool| self.steps.iter().filter(|step| is_counted(step)).count() as u64;
        let copied_bytes: usize = self.steps.iter().filter(|step| step.is_copy).map(Step::bytes).sum();
        let parallel_steps = if self.is_serial { 0 } else { count(|_| true) };
        let mut counts = vec![
            ("dnnl.steps".to_owned(), count(|_| true)),
            ("dnnl.slow_steps".to_owned(), count(Step::is_slow)),
            ("dnnl.parallel_steps".to_owned(), parallel_steps),
            ("dnnl.copied_bytes".to_owned(), copied_bytes as u64),
        ];
        let mut by_name = BTreeMap::<&str, u64>::new();
        self.steps.iter().for_each(|step| *by_name.entry(&step.implementation).or_default() += 1);
        counts.extend(by_name.into_iter().map(|(name, count)| (format!("dnnl.implementation.{name}"), count)));
        counts
    }

    /// Returns one flag per buffer: true if a step reads or writes it. A constant that is read only in packed form is
    /// not touched.
    pub fn touched_buffers(&self) -> Vec<bool> {
        let mut is_touched = vec![false; self.buffers.len()];
        self.steps.iter().flat_map(|step| &step.args).for_each(|arg| is_touched[arg.buffer.0 as usize] = true);
        is_touched
    }

    /// Returns the indices of the packed constants that steps read, in ascending order.
    pub fn packed_constants(&self) -> BTreeSet<usize> {
        let is_touched = self.touched_buffers();
        let buffers = self.buffers.iter().zip(is_touched).filter(|(_, is_touched)| *is_touched);
        let packed_index = |place| if let Place::Packed(packed_index) = place { Some(packed_index) } else { None };
        buffers.filter_map(|(buffer, _)| packed_index(buffer.place)).collect()
    }

    /// Returns the indices of the constants that steps read in place, once per buffer.
    pub fn constants_in_place(&self) -> Vec<usize> {
        let is_touched = self.touched_buffers();
        let buffers = self.buffers.iter().zip(is_touched).filter(|(_, is_touched)| *is_touched);
        let constant = |place| if let Place::Constant(index) = place { Some(index) } else { None };
        buffers.filter_map(|(buffer, _)| constant(buffer.place)).collect()
    }
}

/// Alignment of arena buffers in bytes.
const CACHE_LINE: usize = 64;

/// Assigns an arena offset to each arena buffer and returns the arena size. From the first to the last step that uses
/// it, a buffer occupies the smallest gap that is large enough (best fit), or else the end of the arena.
pub fn place_in_arena(steps: &[Step], buffers: &mut [Buffer]) -> usize {
    let mut last_uses = vec![None; buffers.len()];
    for (step_index, step) in steps.iter().enumerate() {
        step.args.iter().for_each(|argument| last_uses[argument.buffer.0 as usize] = Some(step_index));
    }
    let mut is_allocated = vec![false; buffers.len()];
    let mut arena = Arena::default();
    for (step_index, step) in steps.iter().enumerate() {
        let step_buffers = || step.args.iter().map(|argument| argument.buffer.0 as usize);
        for buffer in step_buffers() {
            if matches!(buffers[buffer].place, Place::Arena(_)) && !std::mem::replace(&mut is_allocated[buffer], true) {
                buffers[buffer].place =
                    Place::Arena(arena.allocate(buffers[buffer].bytes.next_multiple_of(CACHE_LINE)));
            }
        }
        for buffer in step_buffers() {
            if let Place::Arena(offset) = buffers[buffer].place
                && last_uses[buffer] == Some(step_index)
            {
                // Cleared so that a buffer that is two arguments of a step is freed only once.
                last_uses[buffer] = None;
                arena.release(offset, buffers[buffer].bytes.next_multiple_of(CACHE_LINE));
            }
        }
    }
    arena.size
}

#[derive(Default)]
struct Arena {
    /// Sizes of the free gaps, keyed by offset.
    gaps: BTreeMap<usize, usize>,
    size: usize,
}

impl Arena {
    fn allocate(&mut self, bytes: usize) -> usize {
        let best_gap = self.gaps.iter().filter(|(_, size)| **size >= bytes).min_by_key(|(_, size)| **size);
        if let Some((&offset, &size)) = best_gap {
            self.gaps.remove(&offset);
            if size > bytes {
                self.gaps.insert(offset + bytes, size - bytes);
            }
            return offset;
        }
        // Extends the gap at the end of the arena, if any.
        let offset = match self.gaps.last_key_value() {
            Some((&offset, &size)) if offset + size == self.size => {
                self.gaps.remove(&offset);
                offset
            }
            _ => self.size,
        };
        self.size = offset + bytes;
        offset
    }

    fn release(&mut self, mut offset: usize, mut bytes: usize) {
        if bytes == 0 {
            return;
        }
        if let Some((&previous, &size)) = self.gaps.range(..offset).next_back()
            && previous + size == offset
        {
            self.gaps.remove(&previous);
            (offset, bytes) = (previous, size + bytes);
        }
        if let Some(size) = self.gaps.remove(&(offset + bytes)) {
            bytes += size;
        }
        self.gaps.insert(offset, bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reuses_and_merges_gaps() {
        let mut arena = Arena::default();
        let [a, b, c] = [arena.allocate(128), arena.allocate(64), arena.allocate(256)];
        assert_eq!((a, b, c, arena.size), (0, 128, 192, 448));
        arena.release(a, 128);
        arena.release(b, 64);
        assert_eq!(arena.allocate(192), 0, "expected adjacent gaps to be merged");
        arena.release(c, 256);
        assert_eq!((arena.allocate(512), arena.size), (192, 704), "expected the gap at the end to grow");
    }
}
