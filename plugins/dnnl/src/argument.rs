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
