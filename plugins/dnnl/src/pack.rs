//! Constants packed at load time, and the memory that holds them.

use crate::gemv::Panels;
use crate::library::{Attr, Desc, Memory, OneDnn, OneDnnError, PostOps, Primitive, PrimitiveDesc, Stream, ffi, pages};
use crate::winograd::WeightLayout;
use byoc_plugin_api::{Constant, Error, Result};
use std::alloc::Layout;
use std::sync::{Arc, Weak};

/// Constant to be packed, with its packed form.
pub struct PackSpec {
    pub constant: usize,
    /// Offset of the first element read, in bytes.
    pub offset: usize,
    /// Layout in the host's memory.
    pub source: Desc,
    pub packing: Packing,
}

/// Packed form of a constant.
#[derive(Clone, PartialEq)]
pub enum Packing {
    /// oneDNN layout.
    Layout(Desc),
    /// Transformed Winograd kernels.
    Winograd(WeightLayout),
    /// Column panels of a GEMV matrix.
    Panels(Panels),
    /// Values that were computed from the constant when the region was lowered.
    Values(Vec<f32>),
}

impl Packing {
    /// Size of the packed constant in bytes.
    pub fn bytes(&self) -> usize {
        match self {
            Packing::Layout(desc) => desc.size(),
            Packing::Winograd(weights) => weights.elements() * size_of::<f32>(),
            Packing::Panels(panels) => panels.elements() * size_of::<f32>(),
            Packing::Values(values) => size_of_val(&values[..]),
        }
    }
}

impl PackSpec {
    /// Writes the packed constant.
    ///
    /// # Errors
    /// If the constant has fewer bytes than its type requires, or the library does not support a layout.
    ///
    /// # Safety
    /// `destination` must be aligned for `f32` and point to [`Packing::bytes`] bytes that nothing else accesses.
    pub unsafe fn write(&self, library: &'static OneDnn, constant: &Constant, destination: *mut u8) -> Result<()> {
        let size_error = || {
            let (expected, found) = (self.offset + self.source.size(), constant.bytes().len());
            Error::new(format!("constant {}: expected at least {expected} bytes, found {found}", self.constant))
        };
        let source = constant.bytes().get(self.offset..).ok_or_else(size_error)?;
        if self.source.size() > source.len() {
            return Err(size_error());
        }
        // SAFETY: the caller guarantees an aligned `destination` with `Packing::bytes` bytes, the size of `elements`
        // floats.
        let zeroed_floats = |elements| unsafe { zeros(destination, elements) };
        match &self.packing {
            // SAFETY: the check above ensures `self.source.size()` bytes in `source`; the caller guarantees the bytes
            // at `destination`.
            Packing::Layout(layout) => unsafe { reorder(library, (&self.source, source), (layout, destination)) },
            Packing::Winograd(weights) => {
                weights.transform(source, zeroed_floats(weights.elements())).ok_or_else(size_error)
            }
            Packing::Panels(panels) => panels.pack(source, zeroed_floats(panels.elements())).ok_or_else(size_error),
            Packing::Values(values) => {
                zeroed_floats(values.len()).copy_from_slice(values);
                Ok(())
            }
        }
    }
}

/// Writes `count` zeros and returns them as a slice.
///
/// # Safety
/// `address` must be aligned for `f32` and point to memory for `count` floats that nothing else accesses.
unsafe fn zeros<'a>(address: *mut u8, count: usize) -> &'a mut [f32] {
    let address = address.cast::<f32>();
    // SAFETY: the caller guarantees exclusive access to `count` aligned floats; zero bytes are valid floats.
    unsafe {
        address.write_bytes(0, count);
        std::slice::from_raw_parts_mut(address, count)
    }
}

unsafe fn reorder(library: &'static OneDnn, source: (&Desc, &[u8]), destination: (&Desc, *mut u8)) -> Result<()> {
    let ((source, bytes), (destination, address)) = (source, destination);
    let attr = Attr::new(library, &PostOps::new(library)?)?;
    let desc = PrimitiveDesc::reorder(library, source, destination, &attr)?;
    let primitive = Primitive::new(&desc)?;
    let (mut source, mut destination) = (Memory::new(library, source)?, Memory::new(library, destination)?);
    source.set(bytes.as_ptr().cast_mut())?;
    destination.set(address)?;
    let mut args = vec![source.arg(ffi::ARG_SRC), destination.arg(ffi::ARG_DST)];
    let scratch = desc.scratchpad()?;
    let buffer = scratch.as_ref().map(|desc| AlignedMemory::new(desc.size())).transpose()?;
    let mut memory = None;
    if let (Some(desc), Some(buffer)) = (&scratch, &buffer) {
        let memory = memory.insert(Memory::new(library, desc)?);
        memory.set(buffer.address)?;
        args.push(memory.arg(ffi::ARG_SCRATCHPAD));
    }
    // SAFETY: the caller guarantees memory of each layout's size; the source is only read, and the scratchpad is
    // allocated above in the size that the primitive requires.
    unsafe { primitive.execute(&Stream::new(library)?, &args) }?;
    Ok(())
}

/// Size of a cache line in bytes.
pub const CACHE_LINE: usize = 64;

/// Size of a huge page in bytes, on systems that support huge pages.
const HUGE_PAGE: usize = 2 << 20;

/// Packed constant: its address and the allocation that it shares with other packed constants.
#[derive(Clone)]
pub struct PackedMemory {
    /// Allocation that contains the packed data.
    pub memory: Arc<AlignedMemory>,
    /// Address of the packed data.
    pub address: *mut u8,
}

// SAFETY: `address` points into `memory`, which `LoadedRegion::pack` writes before sharing it and which is only read
// afterwards.
unsafe impl Send for PackedMemory {}
// SAFETY: `address` points into `memory`, which `LoadedRegion::pack` does not write after sharing it.
unsafe impl Sync for PackedMemory {}

/// Weak reference to a packed constant.
pub struct WeakPackedMemory {
    memory: Weak<AlignedMemory>,
    address: *mut u8,
}

// SAFETY: `get` returns the pointer only together with a strong reference to the allocation that it points into.
unsafe impl Send for WeakPackedMemory {}

impl WeakPackedMemory {
    /// Creates a weak reference to a packed constant.
    pub fn of(packed_memory: &PackedMemory) -> WeakPackedMemory {
        WeakPackedMemory { memory: Arc::downgrade(&packed_memory.memory), address: packed_memory.address }
    }

    /// Returns the packed constant if its allocation is still alive.
    pub fn get(this: &Option<WeakPackedMemory>) -> Option<PackedMemory> {
        let this = this.as_ref()?;
        Some(PackedMemory { memory: this.memory.upgrade()?, address: this.address })
    }
}

/// Allocation aligned to at least a cache line.
pub struct AlignedMemory {
    /// Start of the allocation.
    pub address: *mut u8,
    layout: Layout,
}

// SAFETY: the struct owns the allocation, which is not bound to a thread.
unsafe impl Send for AlignedMemory {}
// SAFETY: this crate fills an allocation before sharing it, and only reads it afterwards.
unsafe impl Sync for AlignedMemory {}

impl AlignedMemory {
    /// Allocates memory for `bytes` bytes.
    ///
    /// # Errors
    /// If memory is exhausted.
    pub fn new(bytes: usize) -> Result<AlignedMemory> {
        AlignedMemory::with_alignment(bytes, CACHE_LINE)
    }

    fn with_alignment(bytes: usize, alignment: usize) -> Result<AlignedMemory> {
        let layout = Layout::from_size_align(bytes.max(1), alignment).map_err(|_| out_of_memory(bytes))?;
        // SAFETY: `bytes.max(1)` makes the size of the layout nonzero.
        let address = unsafe { std::alloc::alloc(layout) };
        if address.is_null() {
            return Err(out_of_memory(bytes));
        }
        Ok(AlignedMemory { address, layout })
    }

    /// Allocates memory, in huge pages where the system supports them: with small pages, reading all weights in every
    /// run would cause thousands of TLB misses.
    pub fn in_huge_pages(bytes: usize) -> Result<AlignedMemory> {
        if bytes < HUGE_PAGE {
            return AlignedMemory::new(bytes);
        }
        let memory = AlignedMemory::with_alignment(bytes, HUGE_PAGE)?;
        pages::advise_huge_pages(memory.address, bytes);
        Ok(memory)
    }
}

fn out_of_memory(bytes: usize) -> Error {
    OneDnnError::OutOfMemory(format!("cannot allocate {bytes} bytes for packed weights")).into()
}

impl Drop for AlignedMemory {
    fn drop(&mut self) {
        // SAFETY: `with_alignment` allocated the memory with this layout.
        unsafe { std::alloc::dealloc(self.address, self.layout) };
    }
}
