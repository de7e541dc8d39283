//! Tensors over caller-provided memory.

use crate::error::Error;
use crate::options::{array, text};
use byoc::{DType, Tensor, TensorViewMut};
use smallvec::SmallVec;
use std::ffi::{c_char, c_int, c_void};
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{
    AtomicPtr, AtomicUsize,
    Ordering::{Acquire, Release},
};
use std::sync::{Arc, Mutex, PoisonError};

/// View of a tensor: DLPack's `DLTensor`.
#[repr(C)]
pub struct View {
    data: *mut c_void,
    device_kind: i32,
    device_id: i32,
    ndim: i32,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

/// Dimensions of a view.
pub type Dims = SmallVec<[usize; 6]>;

/// DLPack device type of host memory (`kDLCPU`).
const HOST: i32 = 1;

/// Element types and their DLPack type codes.
const DTYPES: [(DType, u8); 13] = [
    (DType::F64, 2),
    (DType::F32, 2),
    (DType::F16, 2),
    (DType::BF16, 4),
    (DType::I8, 0),
    (DType::I16, 0),
    (DType::I32, 0),
    (DType::I64, 0),
    (DType::U8, 1),
    (DType::U16, 1),
    (DType::U32, 1),
    (DType::U64, 1),
    (DType::Bool, 6),
];

/// Role of a tensor, as named in error messages.
#[derive(Clone, Copy)]
pub enum Operand {
    /// Input of a run, by index.
    Input(usize),
    /// Output of a run, by index.
    Output(usize),
    /// Tensor imported from an external library.
    Tensor,
}

impl fmt::Display for Operand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Operand::Input(index) => write!(f, "input {index}"),
            Operand::Output(index) => write!(f, "output {index}"),
            Operand::Tensor => f.write_str("tensor"),
        }
    }
}

/// Decoded contents of a view.
pub struct Layout {
    pub dtype: DType,
    pub dims: Dims,
    /// Address of the first element.
    pub data: *mut u8,
    /// Stride of each axis, in elements; `None` for dense row-major elements.
    pub strides: Option<SmallVec<[i64; 6]>>,
}

impl View {
    /// Creates a view of dense elements; `None` if DLPack lacks the element type. `shape` must outlive the view.
    pub fn new(dtype: DType, data: *mut c_void, shape: *mut i64, ndim: i32) -> Option<View> {
        let (_, code) = *DTYPES.iter().find(|(entry, _)| *entry == dtype)?;
        let bits = u8::try_from(dtype.bits()).ok()?;
        let strides = std::ptr::null_mut();
        Some(View { data, device_kind: HOST, device_id: 0, ndim, code, bits, lanes: 1, shape, strides, byte_offset: 0 })
    }

    /// Returns the element type, the dimensions and the address of the first element.
    ///
    /// # Errors
    /// See [`View::layout`]. Also fails if the elements are not dense and row-major.
    ///
    /// # Safety
    /// See [`View::layout`].
    unsafe fn dense_layout(&self, operand: Operand) -> Result<(DType, Dims, *mut u8), Error> {
        // SAFETY: the caller meets the requirements of `layout`.
        let Layout { dtype, dims, data, strides } = unsafe { self.layout(operand)? };
        match strides {
            None => Ok((dtype, dims, data)),
            Some(strides) => {
                let message = format!("{operand}: expected dense row-major elements, found strides {strides:?}");
                Err(Error::argument(message))
            }
        }
    }

    /// Decodes the view.
    ///
    /// # Errors
    /// If the tensor is not in host memory, the element type is unknown, the rank or a dimension is negative, or
    /// `shape` or `data` is NULL but required.
    ///
    /// # Safety
    /// `shape` and `strides` are each NULL or point to `ndim` numbers.
    pub unsafe fn layout(&self, operand: Operand) -> Result<Layout, Error> {
        let argument_error = |message: String| Err(Error::argument(format!("{operand}: {message}")));
        if self.device_kind != HOST {
            return argument_error(format!("expected host memory (device 1), found device {}", self.device_kind));
        }
        let dtype_entry =
            DTYPES.iter().find(|(dtype, code)| *code == self.code && dtype.bits() == usize::from(self.bits));
        let Some((dtype, _)) = dtype_entry.filter(|_| self.lanes == 1) else {
            return argument_error(format!(
                "expected a known element type, found code {}, bits {}, lanes {}",
                self.code, self.bits, self.lanes
            ));
        };
        let Ok(rank) = usize::try_from(self.ndim) else {
            return argument_error(format!("expected a rank >= 0, found {}", self.ndim));
        };
        // SAFETY: the caller guarantees that `shape` is NULL or points to `rank` numbers.
        let shape = unsafe { array(self.shape, rank, operand)? };
        let mut dims = Dims::new();
        for &dim in shape {
            match usize::try_from(dim) {
                Ok(dim) => dims.push(dim),
                Err(_) => return argument_error(format!("expected dimensions >= 0, found {dim}")),
            }
        }
        let mut strides = None;
        if !self.strides.is_null() {
            // SAFETY: the caller guarantees that `strides`, which is not NULL here, points to `rank` numbers.
            let given_strides = unsafe { array(self.strides, rank, operand)? };
            let mut dense_stride = 1i64;
            for (&dim, &stride) in shape.iter().zip(given_strides).rev() {
                if dim > 1 && stride != dense_stride {
                    strides = Some(given_strides.into());
                }
                dense_stride = dense_stride.saturating_mul(dim);
            }
        }
        let offset = usize::try_from(self.byte_offset).unwrap_or(usize::MAX);
        let data = self.data.cast::<u8>().wrapping_add(offset);
        if self.data.is_null() && !dims.contains(&0) {
            return argument_error("expected a pointer to elements, found NULL".to_owned());
        }
        Ok(Layout { dtype: *dtype, dims, data, strides })
    }

    /// Returns the memory of an output.
    ///
    /// # Safety
    /// See [`View::layout`]. In addition, `data` points to writable elements that nothing else accesses during the
    /// lifetime of the result.
    pub unsafe fn output<'a>(&self, index: usize) -> Result<Output<'a>, Error> {
        let operand = Operand::Output(index);
        // SAFETY: the caller meets the requirements of `dense_layout`.
        let (dtype, dims, data) = unsafe { self.dense_layout(operand)? };
        let Some(bytes) = byoc_ir::tensor::byte_count(dtype, &dims) else {
            return Err(Error::argument(format!(
                "{operand}: expected a size within the address space, found {dims:?}"
            )));
        };
        let data = match bytes {
            0 => &mut [],
            // SAFETY: the caller guarantees that `data` points to `bytes` writable bytes without concurrent access.
            _ => unsafe { std::slice::from_raw_parts_mut(data, bytes) },
        };
        Ok(Output { dtype, dims, data })
    }
}

/// Caller-provided memory of an output.
pub struct Output<'a> {
    dtype: DType,
    dims: Dims,
    data: &'a mut [u8],
}

impl Output<'_> {
    /// Returns a view of the memory.
    pub fn view(&mut self) -> TensorViewMut<'_> {
        TensorViewMut { dtype: self.dtype, shape: &self.dims, data: self.data }
    }
}

/// Reference to caller-provided bytes for the duration of one call; afterwards the slot is empty.
#[derive(Default)]
struct Slot {
    data: AtomicPtr<u8>,
    bytes: AtomicUsize,
}

impl AsRef<[u8]> for Slot {
    fn as_ref(&self) -> &[u8] {
        match self.bytes.load(Acquire) {
            0 => &[],
            // SAFETY: the C caller provides `bytes` bytes until its call returns, and `BorrowedTensors::drop` empties
            // the slot before that.
            bytes => unsafe { std::slice::from_raw_parts(self.data.load(Acquire), bytes) },
        }
    }
}

/// Pool of unused slots.
#[derive(Default)]
pub struct Slots(Mutex<Vec<Arc<Slot>>>);

/// Maximum number of pooled slots.
const MAX_SLOTS: usize = 64;

/// Inputs of one call, which borrow caller-provided memory.
pub struct BorrowedTensors<'s> {
    slots: &'s Slots,
    used_slots: SmallVec<[Arc<Slot>; 4]>,
    pub tensors: SmallVec<[Tensor; 4]>,
}

impl Slots {
    /// Creates tensors over the memory of views. The tensors must not be used after the result is dropped.
    ///
    /// # Safety
    /// `views` meet the requirements of `byoc.h`, and their memory stays valid until the result is dropped.
    pub unsafe fn borrow(&self, views: &[View]) -> Result<BorrowedTensors<'_>, Error> {
        let mut borrowed_tensors =
            BorrowedTensors { slots: self, used_slots: SmallVec::new(), tensors: SmallVec::new() };
        for (index, view) in views.iter().enumerate() {
            // SAFETY: the caller guarantees that the views meet the requirements of `byoc.h`.
            let (dtype, dims, data) = unsafe { view.dense_layout(Operand::Input(index))? };
            let Some(bytes) = byoc_ir::tensor::byte_count(dtype, &dims) else {
                let message = format!("input {index}: expected a size within the address space, found {dims:?}");
                return Err(Error::argument(message));
            };
            let slot = self.lock().pop().unwrap_or_default();
            slot.data.store(data, Release);
            slot.bytes.store(bytes, Release);
            borrowed_tensors.used_slots.push(slot.clone());
            let tensor = Tensor::from_storage(dtype, &dims, slot);
            let Some(tensor) = tensor else {
                let message = format!("input {index}: not enough memory for an aligned copy of {bytes} bytes");
                return Err(Error::argument(message));
            };
            borrowed_tensors.tensors.push(tensor);
        }
        Ok(borrowed_tensors)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Arc<Slot>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for BorrowedTensors<'_> {
    fn drop(&mut self) {
        self.tensors.clear();
        for slot in self.used_slots.drain(..) {
            // From here on, remaining references to the slot see an empty slice.
            slot.bytes.store(0, Release);
            let mut slots = self.slots.lock();
            if Arc::strong_count(&slot) == 1 && slots.len() < MAX_SLOTS {
                slots.push(slot);
            }
        }
    }
}

impl BorrowedTensors<'_> {
    /// Checks that outputs overlap neither inputs nor each other.
    pub fn check_disjoint(&self, outputs: &[Output<'_>]) -> Result<(), Error> {
        let are_disjoint = |a: Range<*const u8>, b: Range<*const u8>| {
            a.is_empty() || b.is_empty() || a.end <= b.start || b.end <= a.start
        };
        for (index, output) in outputs.iter().enumerate() {
            let memory = output.data.as_ptr_range();
            let inputs = self.used_slots.iter().map(|slot| {
                let pointer = slot.data.load(Acquire).cast_const();
                pointer..pointer.wrapping_add(slot.bytes.load(Acquire))
            });
            let other_ranges = outputs[..index].iter().map(|other| other.data.as_ptr_range());
            if !inputs.chain(other_ranges).all(|other| are_disjoint(memory.clone(), other)) {
                let message = format!("output {index} overlaps an input or another output");
                return Err(Error::argument(message));
            }
        }
        Ok(())
    }

    /// Returns the tensor, or a copy if the tensor refers to caller-provided memory.
    pub fn detach(&self, tensor: Tensor) -> Result<Tensor, Error> {
        let address = tensor.bytes().as_ptr();
        let contains = |slot: &Arc<Slot>| (**slot).as_ref().as_ptr_range().contains(&address);
        if !self.used_slots.iter().any(contains) {
            return Ok(tensor);
        }
        Tensor::from_bytes(tensor.dtype(), tensor.shape(), tensor.bytes()).ok_or_else(|| {
            Error::argument(format!("not enough memory for a copy of a result of {} bytes", tensor.bytes().len()))
        })
    }
}

/// Results that own their memory.
pub struct Results {
    views: Vec<View>,
    _shapes: Vec<Box<[i64]>>,
    /// Tensors, each with a flag that is true if its memory was shared when the results were created.
    tensors: Vec<(Tensor, bool)>,
}

// SAFETY: the views point to heap memory that `tensors` and `_shapes` own and that no method modifies.
unsafe impl Send for Results {}
// SAFETY: the methods of a shared `Results` only read the views, the shapes and the tensors.
unsafe impl Sync for Results {}

impl Results {
    /// Wraps tensors and creates their views.
    ///
    /// # Errors
    /// If DLPack lacks the element type of a tensor.
    pub fn new(tensors: Vec<Tensor>) -> Result<Results, Error> {
        let mut shapes: Vec<Box<[i64]>> =
            tensors.iter().map(|tensor| tensor.shape().iter().map(|&dim| dim as i64).collect()).collect();
        let mut views = Vec::with_capacity(tensors.len());
        for (index, (tensor, shape)) in tensors.iter().zip(&mut shapes).enumerate() {
            let (data, rank) = (tensor.bytes().as_ptr().cast_mut().cast(), tensor.shape().len() as i32);
            let view = View::new(tensor.dtype(), data, shape.as_mut_ptr(), rank);
            views.push(view.ok_or_else(|| {
                Error::argument(format!("output {index}: expected a DLPack element type, found {}", tensor.dtype()))
            })?);
        }
        let is_shared = |tensor: &Tensor| !tensor.is_exclusive();
        let tensors = tensors
            .into_iter()
            .map(|tensor| (is_shared(&tensor), tensor))
            .map(|(is_shared, tensor)| (tensor, is_shared));
        Ok(Results { views, _shapes: shapes, tensors: tensors.collect() })
    }

    /// Returns the number of results.
    pub fn len(&self) -> usize {
        self.tensors.len()
    }

    /// Returns a result, and true if its memory is shared.
    pub fn tensor(&self, index: usize) -> Option<(&Tensor, bool)> {
        self.tensors.get(index).map(|(tensor, is_shared)| (tensor, *is_shared))
    }
}

/// Returns the view of a result; NULL if `index` is out of range or `results` is NULL.
///
/// # Safety
/// `results` is NULL, or results that have not been freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn byoc_results_get(results: *const Results, index: usize) -> *const View {
    // SAFETY: the caller meets the pointer requirements of `byoc.h`.
    let view = unsafe { results.as_ref() }.and_then(|results| results.views.get(index));
    view.map_or(std::ptr::null(), std::ptr::from_ref)
}

/// Frees results.
///
/// # Safety
/// `results` is NULL, or results that have not been freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn byoc_results_free(results: *mut Results) {
    crate::error::free(results);
}

/// Initializes a view of dense elements; returns 0, or -1 if the element type is unknown or `view` is NULL.
///
/// # Safety
/// `view` is NULL or writable, and `dtype` is NULL or NUL-terminated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn byoc_view(
    view: *mut View,
    dtype: *const c_char,
    data: *mut c_void,
    shape: *const i64,
    ndim: i32,
) -> c_int {
    // SAFETY: the caller meets the pointer requirements of `byoc.h`.
    let dtype = unsafe { text(dtype, "dtype") }.ok().and_then(DType::parse);
    match dtype.and_then(|dtype| View::new(dtype, data, shape.cast_mut(), ndim)).filter(|_| !view.is_null()) {
        Some(slot) => {
            // SAFETY: the caller meets the pointer requirements of `byoc.h`.
            unsafe { view.write(slot) };
            0
        }
        None => -1,
    }
}
