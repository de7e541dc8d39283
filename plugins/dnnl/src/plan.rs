//! What a run does: primitives in order, and where each of their tensors lies.
//!
//! Intermediate tensors and the scratch memory of primitives share one arena, in which two of them overlap only if they are
//! never needed at once.

use crate::argument::Argument;
use crate::library::{Primitive, PrimitiveDesc};
use byoc_plugin_api::DType;
use std::collections::{BTreeMap, BTreeSet};

/// Where a buffer lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The region's input of that number.
    Input(usize),
    /// The region's output of that number.
    Output(usize),
    /// The constant of that number, as the host holds it.
    Constant(usize),
    /// The packed constant of that number.
    Packed(usize),
    /// The arena, from this byte on.
    Arena(usize),
}

/// A buffer.
#[derive(Clone, Debug)]
pub struct Buffer {
    /// Where it lies.
    pub place: Place,
    /// Its size in bytes.
    pub bytes: usize,
    /// The type of its elements.
    pub dtype: DType,
}

/// What a step does.
pub enum Work {
    /// Runs a primitive, for which code is yet to be generated.
    Primitive(PrimitiveDesc),
    /// Runs a primitive. Its description is gone, which takes twice what the primitive does.
    Code(Primitive),
    /// Fills the buffer of its only argument with this byte.
    Fill(u8),
    /// Puts this number in the place of every NaN among so many elements of its only argument.
    NoNan(f32, usize),
    /// A convolution of the plugin's own.
    Winograd(crate::winograd::Winograd),
    /// A product of a row by a constant matrix.
    Row(crate::row::Row),
    /// A step of a recurrent layer; the arguments are numbered by `cell`.
    Cell(crate::cell::Cell),
    /// A function of each element.
    Elementwise(crate::elementwise::Elementwise),
    /// Rows behind each other.
    Join(crate::join::Join),
    /// A chain of integer operators, on each element; the arguments are numbered by `qnn`.
    Finish(crate::qnn::Finish),
    /// Means of windows of bytes; the arguments are numbered likewise.
    Means(crate::qnn::Means),
}

/// A step.
pub struct Step {
    /// What it does.
    pub work: Work,
    /// Its tensors.
    pub args: Vec<Argument>,
    /// What it computes, for messages and traces.
    pub what: String,
}

/// What a run does.
pub struct Plan {
    /// The steps, in order.
    pub steps: Vec<Step>,
    /// The buffers.
    pub buffers: Vec<Buffer>,
    /// Bytes of the arena.
    pub workspace: usize,
    /// The dimensions of the outputs.
    pub outputs: Vec<Vec<usize>>,
}

impl Plan {
    /// Which buffers a step reads or writes. That of a constant which is only packed is none of them.
    pub fn touched(&self) -> Vec<bool> {
        let mut touched = vec![false; self.buffers.len()];
        self.steps.iter().flat_map(|step| &step.args).for_each(|arg| touched[arg.buffer.0 as usize] = true);
        touched
    }

    /// The numbers of the packed constants that a step reads, in order.
    pub fn packed(&self) -> BTreeSet<usize> {
        let touched = self.touched();
        let buffers = self.buffers.iter().zip(touched).filter(|(_, touched)| *touched);
        let number = |place| if let Place::Packed(number) = place { Some(number) } else { None };
        buffers.filter_map(|(buffer, _)| number(buffer.place)).collect()
    }

    /// The constants that are read where they lie, once for each of their buffers.
    pub fn in_place(&self) -> Vec<usize> {
        let touched = self.touched();
        let buffers = self.buffers.iter().zip(touched).filter(|(_, touched)| *touched);
        let constant = |place| if let Place::Constant(number) = place { Some(number) } else { None };
        buffers.filter_map(|(buffer, _)| constant(buffer.place)).collect()
    }
}

/// Alignment of everything in the arena.
const LINE: usize = 64;

/// Gives each arena buffer its place, from the first step that touches it to the last, and gives the arena's size. A buffer goes
/// into the smallest gap that holds it, or to the end.
pub fn place_in_arena(steps: &[Step], buffers: &mut [Buffer]) -> usize {
    let mut last = vec![None; buffers.len()];
    for (number, step) in steps.iter().enumerate() {
        step.args.iter().for_each(|argument| last[argument.buffer.0 as usize] = Some(number));
    }
    let mut begun = vec![false; buffers.len()];
    let mut arena = Arena::default();
    for (number, step) in steps.iter().enumerate() {
        let own = || step.args.iter().map(|argument| argument.buffer.0 as usize);
        for buffer in own() {
            if matches!(buffers[buffer].place, Place::Arena(_)) && !std::mem::replace(&mut begun[buffer], true) {
                buffers[buffer].place = Place::Arena(arena.take(buffers[buffer].bytes.next_multiple_of(LINE)));
            }
        }
        for buffer in own() {
            if let Place::Arena(at) = buffers[buffer].place
                && last[buffer] == Some(number)
            {
                // A buffer that a step names twice is given back once.
                last[buffer] = None;
                arena.give(at, buffers[buffer].bytes.next_multiple_of(LINE));
            }
        }
    }
    arena.size
}

#[derive(Default)]
struct Arena {
    /// Gaps: where they begin, and their size.
    gaps: BTreeMap<usize, usize>,
    size: usize,
}

impl Arena {
    fn take(&mut self, bytes: usize) -> usize {
        let best = self.gaps.iter().filter(|(_, size)| **size >= bytes).min_by_key(|(_, size)| **size);
        if let Some((&at, &size)) = best {
            self.gaps.remove(&at);
            if size > bytes {
                self.gaps.insert(at + bytes, size - bytes);
            }
            return at;
        }
        // The gap at the end grows.
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

    fn give(&mut self, mut at: usize, mut bytes: usize) {
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
    fn gaps_are_used_again_and_join() {
        let mut arena = Arena::default();
        let [a, b, c] = [arena.take(128), arena.take(64), arena.take(256)];
        assert_eq!((a, b, c, arena.size), (0, 128, 192, 448));
        arena.give(a, 128);
        arena.give(b, 64);
        assert_eq!(arena.take(192), 0, "two neighbours are one gap");
        arena.give(c, 256);
        assert_eq!((arena.take(512), arena.size), (192, 704), "the gap at the end grows");
    }
}
