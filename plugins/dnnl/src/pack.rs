//! Constants that are packed when a region is loaded, and the memory that they lie in.

use crate::library::{Attr, Desc, Failure, Memory, OneDnn, PostOps, Primitive, PrimitiveDesc, Stream, ffi, pages};
use crate::row::Panels;
use crate::winograd::Weights;
use byoc_plugin_api::{Constant, Error, Result};
use std::alloc::Layout;
use std::sync::{Arc, Weak};

/// A constant in a layout of its own.
pub struct Pack {
    /// The constant.
    pub constant: usize,
    /// Bytes from its start to the first element that is read.
    pub offset: usize,
    /// How it lies in the host's memory.
    pub from: Desc,
    /// How it is wanted.
    pub to: Packing,
}

/// How a constant is packed.
#[derive(Clone, PartialEq)]
pub enum Packing {
    /// In a layout of the library's.
    Layout(Desc),
    /// As kernels of a convolution of the plugin's own.
    Winograd(Weights),
    /// As the matrix of a product of the plugin's own.
    Panels(Panels),
}

impl Packing {
    /// Bytes of the packed constant.
    pub fn bytes(&self) -> usize {
        match self {
            Packing::Layout(desc) => desc.size(),
            Packing::Winograd(weights) => weights.elements() * size_of::<f32>(),
            Packing::Panels(panels) => panels.elements() * size_of::<f32>(),
        }
    }
}

impl Pack {
    /// Writes the packed constant.
    ///
    /// # Errors
    /// A constant that is shorter than its type says, or a layout that the library does not know.
    ///
    /// # Safety
    /// As many bytes as [`Packing::bytes`] says have to lie at `to`, aligned for floats, which nobody else uses.
    pub unsafe fn write(&self, library: &'static OneDnn, constant: &Constant, to: *mut u8) -> Result<()> {
        let short = || Error::new(format!("constant {} is shorter than its type says", self.constant));
        let from = constant.bytes().get(self.offset..).ok_or_else(short)?;
        if self.from.size() > from.len() {
            return Err(short());
        }
        // SAFETY: the caller's word.
        let own = |elements| unsafe { zeros(to, elements) };
        match &self.to {
            // SAFETY: both have the bytes that their layouts span; the caller's word.
            Packing::Layout(layout) => unsafe { reorder(library, (&self.from, from), (layout, to)) },
            Packing::Winograd(weights) => weights.transform(from, own(weights.elements())).ok_or_else(short),
            Packing::Panels(panels) => panels.pack(from, own(panels.elements())).ok_or_else(short),
        }
    }
}

/// So many zeros.
///
/// # Safety
/// There has to be room for them, which nobody else uses.
unsafe fn zeros<'a>(at: *mut u8, count: usize) -> &'a mut [f32] {
    let at = at.cast::<f32>();
    // SAFETY: the caller's word; zero bytes are floats.
    unsafe {
        at.write_bytes(0, count);
        std::slice::from_raw_parts_mut(at, count)
    }
}

unsafe fn reorder(library: &'static OneDnn, from: (&Desc, &[u8]), to: (&Desc, *mut u8)) -> Result<()> {
    let ((from, bytes), (to, place)) = (from, to);
    let attr = Attr::new(library, &PostOps::new(library)?)?;
    let desc = PrimitiveDesc::reorder(library, from, to, &attr)?;
    let primitive = Primitive::new(&desc)?;
    let (mut from, mut to) = (Memory::new(library, from)?, Memory::new(library, to)?);
    from.set(bytes.as_ptr().cast_mut())?;
    to.set(place)?;
    let mut args = vec![from.arg(ffi::ARG_SRC), to.arg(ffi::ARG_DST)];
    let scratch = desc.scratchpad()?;
    let scratch_lines = scratch.as_ref().map(|desc| Lines::new(desc.size())).transpose()?;
    let mut scratch_memory = None;
    if let (Some(desc), Some(lines)) = (&scratch, &scratch_lines) {
        let memory = scratch_memory.insert(Memory::new(library, desc)?);
        memory.set(lines.at)?;
        args.push(memory.arg(ffi::ARG_SCRATCHPAD));
    }
    // SAFETY: the caller's word; the source is read only, and the scratch memory is our own.
    unsafe { primitive.execute(&Stream::new(library)?, &args) }?;
    Ok(())
}

/// A cache line.
pub const LINE: usize = 64;

/// A large page, where the system has them.
const LARGE_PAGE: usize = 2 << 20;

/// A packed constant: the memory that it lies in with others, and where it lies there.
#[derive(Clone)]
pub struct Packed {
    /// What it lies in.
    pub lines: Arc<Lines>,
    /// Where.
    pub at: *mut u8,
}

// SAFETY: it points into the memory that it holds, which is written before it is shared, and only read afterwards.
unsafe impl Send for Packed {}
// SAFETY: as above.
unsafe impl Sync for Packed {}

/// Where a packed constant lies as long as somebody reads it.
pub struct WeakPacked {
    lines: Weak<Lines>,
    at: *mut u8,
}

// SAFETY: it is looked at only where the memory that it points into is held.
unsafe impl Send for WeakPacked {}

impl WeakPacked {
    /// Of a constant that is packed.
    pub fn of(packed: &Packed) -> WeakPacked {
        WeakPacked { lines: Arc::downgrade(&packed.lines), at: packed.at }
    }

    /// The packed constant, if somebody holds it.
    pub fn get(this: &Option<WeakPacked>) -> Option<Packed> {
        let this = this.as_ref()?;
        Some(Packed { lines: this.lines.upgrade()?, at: this.at })
    }
}

/// Memory aligned to a cache line.
pub struct Lines {
    /// Where it begins.
    pub at: *mut u8,
    layout: Layout,
}

// SAFETY: the memory is written before it is shared, and only read afterwards.
unsafe impl Send for Lines {}
// SAFETY: as above.
unsafe impl Sync for Lines {}

impl Lines {
    /// So many bytes.
    ///
    /// # Errors
    /// Where they cannot be had.
    pub fn new(bytes: usize) -> Result<Lines> {
        Lines::aligned(bytes, LINE)
    }

    fn aligned(bytes: usize, to: usize) -> Result<Lines> {
        let layout = Layout::from_size_align(bytes.max(1), to).map_err(|_| too_much(bytes))?;
        // SAFETY: the size is not 0.
        let at = unsafe { std::alloc::alloc(layout) };
        if at.is_null() {
            return Err(too_much(bytes));
        }
        Ok(Lines { at, layout })
    }

    /// Memory in large pages, where the system has them: a run goes through all weights once, and with small pages it would
    /// look up thousands of them.
    pub fn in_large_pages(bytes: usize) -> Result<Lines> {
        if bytes < LARGE_PAGE {
            return Lines::new(bytes);
        }
        let lines = Lines::aligned(bytes, LARGE_PAGE)?;
        pages::in_large_pages(lines.at, bytes);
        Ok(lines)
    }
}

fn too_much(bytes: usize) -> Error {
    Failure::OutOfMemory(format!("{bytes} bytes for packed weights cannot be had")).into()
}

impl Drop for Lines {
    fn drop(&mut self) {
        // SAFETY: it was allocated with this layout.
        unsafe { std::alloc::dealloc(self.at, self.layout) };
    }
}
