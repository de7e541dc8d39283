//! Step arguments and the buffers that hold them.

use crate::library::Desc;

/// Index of a buffer in its plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BufferId(pub u32);

/// Tensor argument of a step.
pub struct Argument {
    /// Index of the argument: `ffi::ARG_*`.
    pub arg: i32,
    pub buffer: BufferId,
    /// Offset in the buffer, in bytes.
    pub offset: usize,
    pub desc: Desc,
}

/// Step arguments during a run, with the plan's buffer addresses.
#[derive(Clone, Copy)]
pub struct Arguments<'a> {
    pub args: &'a [Argument],
    /// Buffer addresses, by buffer index.
    pub bases: &'a [*mut u8],
}

impl Arguments<'_> {
    pub fn address(&self, argument: &Argument) -> *mut u8 {
        self.bases[argument.buffer.0 as usize].wrapping_add(argument.offset)
    }

    /// Returns the address of the argument with index `arg`, if present.
    pub fn find(&self, arg: i32) -> Option<*mut u8> {
        self.args.iter().find(|argument| argument.arg == arg).map(|argument| self.address(argument))
    }

    /// Returns the address of the `float32` argument with index `arg`, if present.
    pub fn floats(&self, arg: i32) -> Option<*mut f32> {
        self.find(arg).map(<*mut u8>::cast)
    }
}
