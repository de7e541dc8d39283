//! A tensor of a step, and the buffer that it lies in.

use crate::library::Desc;

/// A buffer of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Buf(pub u32);

/// A tensor of a step.
pub struct Argument {
    /// Which of the primitive's arguments it is: `ffi::ARG_*`.
    pub arg: i32,
    /// Its buffer.
    pub buffer: Buf,
    /// Where in the buffer it begins.
    pub offset: usize,
    /// Its layout.
    pub desc: Desc,
}

/// The tensors of a step in a run: its arguments, and where each buffer of the plan lies.
#[derive(Clone, Copy)]
pub struct Given<'a> {
    /// The arguments.
    pub args: &'a [Argument],
    /// Addresses of buffers, by number.
    pub bases: &'a [*mut u8],
}

impl Given<'_> {
    /// Where an argument lies.
    pub fn place(&self, argument: &Argument) -> *mut u8 {
        self.bases[argument.buffer.0 as usize].wrapping_add(argument.offset)
    }

    /// Where the argument of that number lies, if there is one.
    pub fn find(&self, arg: i32) -> Option<*mut u8> {
        self.args.iter().find(|argument| argument.arg == arg).map(|argument| self.place(argument))
    }

    /// The same, for a tensor of floats.
    pub fn floats(&self, arg: i32) -> Option<*mut f32> {
        self.find(arg).map(<*mut u8>::cast)
    }
}
