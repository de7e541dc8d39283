//! Run plan: steps in execution order, and the placement of their tensors.
//!
//! Intermediate tensors and primitive scratchpads share one arena, in which two buffers overlap only if they are never
//! live at the same time.

use crate::argument::Argument;
use crate::library::{Primitive, PrimitiveDesc};
use byoc_plugin_api::DType;
use std::collections::{BTreeMap, BTreeSet};

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
    Code(Primitive),
    /// Fills the buffer of the only argument with this byte.
    Fill(u8),
    /// Replaces every NaN in the only argument with the first field. The second field is the number of elements.
    NoNan(f32, usize),
    /// Winograd convolution.
    Winograd(crate::winograd::Winograd),
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

/// Step of a plan.
pub struct Step {
    pub operation: Operation,
    pub args: Vec<Argument>,
    /// Description of the computation, for messages and traces.
    pub label: String,
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
}

impl Plan {
    /// Returns one flag per buffer: true if a step reads or writes it. A constant that is read only in packed form is
    /// not touched.
    pub fn touched(&self) -> Vec<bool> {
        let mut touched = vec![false; self.buffers.len()];
        self.steps.iter().flat_map(|step| &step.args).for_each(|arg| touched[arg.buffer.0 as usize] = true);
        touched
    }

    /// Returns the indices of the packed constants that steps read, ascending.
    pub fn packed(&self) -> BTreeSet<usize> {
        let touched = self.touched();
        let buffers = self.buffers.iter().zip(touched).filter(|(_, touched)| *touched);
        let number = |place| if let Place::Packed(number) = place { Some(number) } else { None };
        buffers.filter_map(|(buffer, _)| number(buffer.place)).collect()
    }

    /// Returns the indices of the constants that steps read in place, once per buffer.
    pub fn in_place(&self) -> Vec<usize> {
        let touched = self.touched();
        let buffers = self.buffers.iter().zip(touched).filter(|(_, touched)| *touched);
        let constant = |place| if let Place::Constant(number) = place { Some(number) } else { None };
        buffers.filter_map(|(buffer, _)| constant(buffer.place)).collect()
    }
}

/// Alignment of arena buffers in bytes.
const CACHE_LINE: usize = 64;

/// Assigns an arena offset to each arena buffer and returns the arena size. From the first to the last step that uses
/// it, a buffer occupies the smallest gap that is large enough (best fit), or else the end of the arena.
pub fn place_in_arena(steps: &[Step], buffers: &mut [Buffer]) -> usize {
    let mut last = vec![None; buffers.len()];
    for (number, step) in steps.iter().enumerate() {
        step.args.iter().for_each(|argument| last[argument.buffer.0 as usize] = Some(number));
    }
    let mut allocated = vec![false; buffers.len()];
    let mut arena = Arena::default();
    for (number, step) in steps.iter().enumerate() {
        let own = || step.args.iter().map(|argument| argument.buffer.0 as usize);
        for buffer in own() {
            if matches!(buffers[buffer].place, Place::Arena(_)) && !std::mem::replace(&mut allocated[buffer], true) {
                buffers[buffer].place =
                    Place::Arena(arena.allocate(buffers[buffer].bytes.next_multiple_of(CACHE_LINE)));
            }
        }
        for buffer in own() {
            if let Place::Arena(at) = buffers[buffer].place
                && last[buffer] == Some(number)
            {
                // Cleared so that a buffer that is two arguments of a step is freed only once.
                last[buffer] = None;
                arena.free(at, buffers[buffer].bytes.next_multiple_of(CACHE_LINE));
            }
        }
    }
    arena.size
}

#[derive(Default)]
struct Arena {
    /// Free gaps: offset to size.
    gaps: BTreeMap<usize, usize>,
    size: usize,
}

impl Arena {
    fn allocate(&mut self, bytes: usize) -> usize {
        let best = self.gaps.iter().filter(|(_, size)| **size >= bytes).min_by_key(|(_, size)| **size);
        if let Some((&at, &size)) = best {
            self.gaps.remove(&at);
            if size > bytes {
                self.gaps.insert(at + bytes, size - bytes);
            }
            return at;
        }
        // Extends the gap at the end of the arena, if any.
        let at = match self.gaps.last_key_value() {
            Some((&at, &size)) if at + size == self.size => {
                self.gaps.remove(&at);
                at
            }
            _ => self.size,
        };
        self.size = at + bytes;
        at
    }

    fn free(&mut self, mut at: usize, mut bytes: usize) {
        if bytes == 0 {
            return;
        }
        if let Some((&before, &size)) = self.gaps.range(..at).next_back()
            && before + size == at
        {
            self.gaps.remove(&before);
            (at, bytes) = (before, size + bytes);
        }
        if let Some(size) = self.gaps.remove(&(at + bytes)) {
            bytes += size;
        }
        self.gaps.insert(at, bytes);
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
        arena.free(a, 128);
        arena.free(b, 64);
        assert_eq!(arena.allocate(192), 0, "adjacent gaps are merged");
        arena.free(c, 256);
        assert_eq!((arena.allocate(512), arena.size), (192, 704), "the gap at the end grows");
    }
}
