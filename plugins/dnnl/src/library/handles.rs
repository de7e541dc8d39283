//! Safe layer over the C API: every object is owned and destroyed on drop, and every status is checked.
//!
//! Descriptors are only created and queried. Only [`Primitive::execute`] accesses tensor data, and it is the only
//! `unsafe` function.

use super::OneDnn;
use super::ffi::{self, Dims, MAX_NDIMS};
use super::status::{OneDnnError, Status};
use byoc_plugin_api::DType;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::{null, null_mut};

/// Result of a library call.
pub type Result<T, E = OneDnnError> = std::result::Result<T, E>;

fn check(status: ffi::Status, subject: &str) -> Result<()> {
    Status::of(status).map_or(Ok(()), |status| Err(OneDnnError::of(status, subject)))
}

/// Returns oneDNN's code for an element type.
///
/// # Errors
/// If oneDNN does not support the element type.
fn dtype_number(dtype: DType) -> Result<c_int> {
    Ok(match dtype {
        DType::F32 => ffi::F32,
        DType::BF16 => ffi::BF16,
        DType::I32 => ffi::S32,
        DType::I8 => ffi::S8,
        DType::U8 | DType::BOOL => ffi::U8,
        other => return Err(format!("oneDNN does not support element type {other}").into()),
    })
}

fn dims(values: &[i64]) -> Result<Dims> {
    if values.len() > MAX_NDIMS {
        return Err(format!("expected a rank of at most {MAX_NDIMS}, found {}", values.len()).into());
    }
    let mut dims = [0; MAX_NDIMS];
    dims[..values.len()].copy_from_slice(values);
    Ok(dims)
}

macro_rules! owned {
    ($($(#[$doc:meta])* $name:ident($raw:ty, $destroy:ident) $({ $($field:ident: $ty:ty),* })?;)*) => {$(
        $(#[$doc])*
        pub struct $name {
            library: &'static OneDnn,
            raw: *mut $raw,
            $($($field: $ty,)*)?
        }

        impl Drop for $name {
            fn drop(&mut self) {
                // SAFETY: `self` owns the object, which the library created.
                unsafe { (self.library.api.$destroy)(self.raw) };
            }
        }

        // SAFETY: oneDNN does not bind objects to a thread.
        unsafe impl Send for $name {}
    )*};
}

owned! {
    /// Element type, shape and layout of a tensor.
    Desc(ffi::CMemoryDesc, memory_desc_destroy);
    /// Attributes of a primitive: post-ops and scratchpad mode.
    Attr(ffi::CAttr, primitive_attr_destroy) { post_ops: Vec<PostOpKey> };
    /// List of post-ops.
    PostOps(ffi::CPostOps, post_ops_destroy) { entries: Vec<PostOpKey> };
    /// Implementation that the library chose for given types and layouts.
    PrimitiveDesc(ffi::CPrimitiveDesc, primitive_desc_destroy) { retained_key: Option<Box<ConvKey>> };
    /// Compiled primitive, which owns its generated code.
    Primitive(ffi::CPrimitive, primitive_destroy);
    /// Layout and address of a tensor.
    Memory(ffi::CMemory, memory_destroy);
    /// Stream that primitives are submitted to.
    Stream(ffi::CStream, stream_destroy);
}

// SAFETY: oneDNN does not modify a descriptor after its creation.
unsafe impl Sync for Desc {}
// SAFETY: oneDNN does not modify a primitive descriptor after its creation.
unsafe impl Sync for PrimitiveDesc {}
// SAFETY: the caller supplies the scratchpad, so oneDNN permits concurrent executions of a primitive.
unsafe impl Sync for Primitive {}

impl Desc {
    /// Creates the descriptor of a tensor with the given strides, in elements.
    ///
    /// # Errors
    /// If the library does not support the element type, the rank or the strides.
    pub fn with_strides(library: &'static OneDnn, dtype: DType, shape: &[i64], strides: &[i64]) -> Result<Desc> {
        let (dtype_code, dims, strides) = (dtype_number(dtype)?, dims(shape)?, dims(strides)?);
        let mut raw = null_mut();
        // SAFETY: `dims` returns arrays of the length that oneDNN requires, and `raw` is a valid out-pointer.
        let status = unsafe {
            (library.api.memory_desc_create_with_strides)(&mut raw, shape.len() as c_int, &dims, dtype_code, &strides)
        };
        check(status, "tensor layout")?;
        Ok(Desc { library, raw })
    }

    /// Creates the descriptor of a tensor whose layout the primitive chooses.
    ///
    /// # Errors
    /// If the library does not support the element type or the rank.
    pub fn any(library: &'static OneDnn, dtype: DType, shape: &[i64]) -> Result<Desc> {
        let (dtype_code, dims) = (dtype_number(dtype)?, dims(shape)?);
        let mut raw = null_mut();
        // SAFETY: `dims` returns an array of the length that oneDNN requires, and `raw` is a valid out-pointer.
        let status = unsafe {
            (library.api.memory_desc_create_with_tag)(
                &mut raw,
                shape.len() as c_int,
                &dims,
                dtype_code,
                ffi::FORMAT_ANY,
            )
        };
        check(status, "tensor of any layout")?;
        Ok(Desc { library, raw })
    }

    /// Returns the size in bytes, from the start of the first element to the end of the last element.
    pub fn size(&self) -> usize {
        // SAFETY: `self` owns the descriptor, so it is valid for the call.
        unsafe { (self.library.api.memory_desc_get_size)(self.raw) }
    }
}

impl Clone for Desc {
    fn clone(&self) -> Desc {
        let mut raw = null_mut();
        // SAFETY: `self` owns the descriptor. Cloning fails only if memory is exhausted.
        let status = unsafe { (self.library.api.memory_desc_clone)(&mut raw, self.raw) };
        assert_eq!(Status::of(status), None, "cannot clone a tensor layout");
        Desc { library: self.library, raw }
    }
}

impl PartialEq for Desc {
    fn eq(&self, other: &Desc) -> bool {
        // SAFETY: `self` and `other` own their descriptors.
        unsafe { (self.library.api.memory_desc_equal)(self.raw, other.raw) != 0 }
    }
}

/// Post-op, as part of the key of a primitive.
#[derive(Clone, PartialEq)]
pub enum PostOpKey {
    Sum,
    /// Algorithm, and the bits of alpha and beta.
    Eltwise(c_int, [u32; 2]),
    /// Algorithm, and the second operand.
    Binary(c_int, Desc),
}

impl PostOps {
    /// Creates an empty list.
    ///
    /// # Errors
    /// If memory is exhausted.
    pub fn new(library: &'static OneDnn) -> Result<PostOps> {
        let mut raw = null_mut();
        // SAFETY: `raw` is a valid out-pointer.
        check(unsafe { (library.api.post_ops_create)(&mut raw) }, "post-ops")?;
        Ok(PostOps { library, raw, entries: Vec::new() })
    }

    /// Appends an addition of the destination's previous contents.
    ///
    /// # Errors
    /// If there are too many post-ops.
    pub fn sum(&mut self) -> Result<()> {
        // SAFETY: `self` owns the list. Type 0 stands for the destination's type.
        check(unsafe { (self.library.api.post_ops_append_sum)(self.raw, 1.0, 0, 0) }, "sum post-op")?;
        self.entries.push(PostOpKey::Sum);
        Ok(())
    }

    /// Appends an elementwise function.
    ///
    /// # Errors
    /// If the function is unknown, or there are too many post-ops.
    pub fn eltwise(&mut self, alg: c_int, alpha: f32, beta: f32) -> Result<()> {
        // SAFETY: `self` owns the list.
        let status = unsafe { (self.library.api.post_ops_append_eltwise)(self.raw, alg, alpha, beta) };
        check(status, "eltwise post-op")?;
        self.entries.push(PostOpKey::Eltwise(alg, [alpha.to_bits(), beta.to_bits()]));
        Ok(())
    }

    /// Appends a binary operator whose second operand has the layout `other`.
    ///
    /// # Errors
    /// If the second operand does not broadcast, or there are too many post-ops.
    pub fn binary(&mut self, alg: c_int, other: &Desc) -> Result<()> {
        // SAFETY: `self` owns the list and `other` the descriptor; the library copies the descriptor.
        let status = unsafe { (self.library.api.post_ops_append_binary)(self.raw, alg, other.raw) };
        check(status, "binary post-op")?;
        self.entries.push(PostOpKey::Binary(alg, other.clone()));
        Ok(())
    }
}

impl Attr {
    /// Creates attributes with a caller-supplied scratchpad and the given post-ops.
    ///
    /// # Errors
    /// If memory is exhausted.
    pub fn new(library: &'static OneDnn, post_ops: &PostOps) -> Result<Attr> {
        let mut raw = null_mut();
        // SAFETY: `raw` is a valid out-pointer.
        check(unsafe { (library.api.primitive_attr_create)(&mut raw) }, "attributes")?;
        let attr = Attr { library, raw, post_ops: post_ops.entries.clone() };
        // SAFETY: `attr` and `post_ops` own both objects; the library copies the list.
        unsafe {
            check((library.api.primitive_attr_set_scratchpad_mode)(raw, ffi::SCRATCHPAD_USER), "scratchpad mode")?;
            check((library.api.primitive_attr_set_post_ops)(raw, post_ops.raw), "post-ops")?;
        }
        Ok(attr)
    }

    /// Returns true if the primitive computes more than its own function.
    pub fn has_post_ops(&self) -> bool {
        !self.post_ops.is_empty()
    }
}

/// Strides, dilation, kernel size and padding of a window, per spatial axis.
#[derive(Clone, Debug, PartialEq)]
pub struct Window {
    /// Distance between the starts of adjacent windows, in elements.
    pub strides: Vec<i64>,
    /// Distance between adjacent taps, in elements; 1 is dense.
    pub dilation: Vec<i64>,
    /// Number of taps.
    pub kernel: Vec<i64>,
    /// Padding at the start.
    pub pad_before: Vec<i64>,
    /// Padding at the end.
    pub pad_after: Vec<i64>,
}

/// Tensors of a convolution or matrix product.
pub struct Conv<'a> {
    pub src: &'a Desc,
    pub weights: &'a Desc,
    pub bias: Option<&'a Desc>,
    pub dst: &'a Desc,
}

/// Everything that determines the code of a convolution.
#[derive(Clone, PartialEq)]
pub struct ConvKey {
    pub implementation: String,
    pub is_transposed: bool,
    /// Number of threads, which determines how the work is divided.
    pub threads: usize,
    pub window: Window,
    pub post_ops: Vec<PostOpKey>,
    /// Source, weights, destination and, if present, bias.
    pub tensors: Vec<Desc>,
}

impl ConvKey {
    /// Returns true if the convolution adds a bias.
    pub fn has_bias(&self) -> bool {
        self.tensors.len() == 4
    }
}

fn raw(desc: Option<&Desc>) -> *const ffi::CMemoryDesc {
    desc.map_or(null(), |desc| desc.raw.cast_const())
}

macro_rules! describe {
    ($library:expr, $subject:literal, $function:ident($($arg:expr),* $(,)?)) => {{
        let library: &'static OneDnn = $library;
        let mut raw = null_mut();
        // SAFETY: the callers borrow every descriptor and attribute from its owner for the call, and `dims` gives every
        // array the length that oneDNN requires.
        let status = unsafe { (library.api.$function)(&mut raw, library.engine, $($arg),*) };
        check(status, $subject)?;
        Ok(PrimitiveDesc { library, raw, retained_key: None })
    }};
}

const INFERENCE: c_int = ffi::FORWARD_INFERENCE;

impl PrimitiveDesc {
    /// Describes a copy of a tensor into another layout or element type.
    ///
    /// # Errors
    /// If the library has no implementation. The same applies to the other functions that describe a primitive.
    pub fn reorder(library: &'static OneDnn, src: &Desc, dst: &Desc, attr: &Attr) -> Result<PrimitiveDesc> {
        let mut raw = null_mut();
        let engine = library.engine;
        // SAFETY: `src`, `dst` and `attr` own their objects, so they are valid for the call.
        let status = unsafe {
            (library.api.reorder_primitive_desc_create)(&mut raw, src.raw, engine, dst.raw, engine, attr.raw)
        };
        check(status, "reorder")?;
        Ok(PrimitiveDesc { library, raw, retained_key: None })
    }

    pub fn convolution(library: &'static OneDnn, io: &Conv<'_>, w: &Window, attr: &Attr) -> Result<PrimitiveDesc> {
        let [strides, dilates, pad_before, pad_after] = conv_dims(w)?;
        let alg = ffi::CONVOLUTION_DIRECT;
        let desc: Result<PrimitiveDesc> = describe!(
            library,
            "convolution",
            convolution_forward_primitive_desc_create(
                INFERENCE,
                alg,
                io.src.raw,
                io.weights.raw,
                raw(io.bias),
                io.dst.raw,
                &strides,
                &dilates,
                &pad_before,
                &pad_after,
                attr.raw
            )
        );
        desc?.with_retained_key(false, io, w, attr)
    }

    /// Describes a transposed convolution. An implementation that leaves the bias or the post-ops to reference code is
    /// treated as missing.
    pub fn deconvolution(library: &'static OneDnn, io: &Conv<'_>, w: &Window, attr: &Attr) -> Result<PrimitiveDesc> {
        let [strides, dilates, pad_before, pad_after] = conv_dims(w)?;
        let alg = ffi::DECONVOLUTION_DIRECT;
        let desc: Result<PrimitiveDesc> = describe!(
            library,
            "transposed convolution",
            deconvolution_forward_primitive_desc_create(
                INFERENCE,
                alg,
                io.src.raw,
                io.weights.raw,
                raw(io.bias),
                io.dst.raw,
                &strides,
                &dilates,
                &pad_before,
                &pad_after,
                attr.raw
            )
        );
        let desc: PrimitiveDesc = desc?;
        desc.check_epilogue(io.bias.is_some() || attr.has_post_ops())?;
        desc.with_retained_key(true, io, w, attr)
    }

    /// Describes a matrix product, batched over all dimensions except the last two.
    pub fn matmul(library: &'static OneDnn, io: &Conv<'_>, attr: &Attr) -> Result<PrimitiveDesc> {
        describe!(
            library,
            "matrix product",
            matmul_primitive_desc_create(io.src.raw, io.weights.raw, raw(io.bias), io.dst.raw, attr.raw)
        )
    }

    pub fn pooling(
        library: &'static OneDnn,
        alg: c_int,
        src: &Desc,
        dst: &Desc,
        w: &Window,
        attr: &Attr,
    ) -> Result<PrimitiveDesc> {
        let [strides, dilates, pad_before, pad_after] = conv_dims(w)?;
        let kernel = dims(&w.kernel)?;
        describe!(
            library,
            "pooling",
            pooling_forward_primitive_desc_create(
                INFERENCE,
                alg,
                src.raw,
                dst.raw,
                &strides,
                &kernel,
                &dilates,
                &pad_before,
                &pad_after,
                attr.raw
            )
        )
    }

    /// Describes a softmax or log-softmax.
    pub fn softmax(
        library: &'static OneDnn,
        alg: c_int,
        src: &Desc,
        dst: &Desc,
        axis: usize,
        attr: &Attr,
    ) -> Result<PrimitiveDesc> {
        describe!(
            library,
            "softmax",
            softmax_forward_primitive_desc_create(INFERENCE, alg, src.raw, dst.raw, axis as c_int, attr.raw)
        )
    }

    /// Describes a layer normalization over the last dimension, with scale and shift.
    pub fn layer_norm(
        library: &'static OneDnn,
        src: &Desc,
        dst: &Desc,
        epsilon: f32,
        attr: &Attr,
    ) -> Result<PrimitiveDesc> {
        let flags = (ffi::USE_SCALE | ffi::USE_SHIFT) as u32;
        describe!(
            library,
            "layer normalization",
            layer_normalization_forward_primitive_desc_create(
                INFERENCE,
                src.raw,
                dst.raw,
                null(),
                epsilon,
                flags,
                attr.raw
            )
        )
    }

    /// Describes an elementwise function.
    pub fn eltwise(
        library: &'static OneDnn,
        (alg, alpha, beta): (c_int, f32, f32),
        src: &Desc,
        dst: &Desc,
        attr: &Attr,
    ) -> Result<PrimitiveDesc> {
        describe!(
            library,
            "eltwise",
            eltwise_forward_primitive_desc_create(INFERENCE, alg, src.raw, dst.raw, alpha, beta, attr.raw)
        )
    }

    /// Describes an elementwise function of two tensors, the second of which is broadcast.
    pub fn binary(
        library: &'static OneDnn,
        alg: c_int,
        src0: &Desc,
        src1: &Desc,
        dst: &Desc,
        attr: &Attr,
    ) -> Result<PrimitiveDesc> {
        describe!(library, "binary", binary_primitive_desc_create(alg, src0.raw, src1.raw, dst.raw, attr.raw))
    }

    /// Describes a PReLU: `x`, or `slope * x` where `x` is negative.
    pub fn prelu(library: &'static OneDnn, src: &Desc, slope: &Desc, dst: &Desc, attr: &Attr) -> Result<PrimitiveDesc> {
        describe!(
            library,
            "prelu",
            prelu_forward_primitive_desc_create(INFERENCE, src.raw, slope.raw, dst.raw, attr.raw)
        )
    }

    pub fn concat(
        library: &'static OneDnn,
        axis: usize,
        srcs: &[&Desc],
        dst: &Desc,
        attr: &Attr,
    ) -> Result<PrimitiveDesc> {
        let srcs: Vec<*const ffi::CMemoryDesc> = srcs.iter().map(|desc| desc.raw.cast_const()).collect();
        describe!(
            library,
            "concatenation",
            concat_primitive_desc_create(dst.raw, srcs.len() as c_int, axis as c_int, srcs.as_ptr(), attr.raw)
        )
    }

    /// Describes a reduction over the dimensions that are 1 in the destination.
    pub fn reduction(
        library: &'static OneDnn,
        alg: c_int,
        src: &Desc,
        dst: &Desc,
        attr: &Attr,
    ) -> Result<PrimitiveDesc> {
        describe!(library, "reduction", reduction_primitive_desc_create(alg, src.raw, dst.raw, 0.0, 0.0, attr.raw))
    }

    /// Describes a resize with half-pixel centers.
    pub fn resampling(
        library: &'static OneDnn,
        alg: c_int,
        src: &Desc,
        dst: &Desc,
        attr: &Attr,
    ) -> Result<PrimitiveDesc> {
        describe!(
            library,
            "resampling",
            resampling_forward_primitive_desc_create(INFERENCE, alg, null(), src.raw, dst.raw, attr.raw)
        )
    }

    /// Records the key of a convolution whose code the library retains.
    fn with_retained_key(
        mut self,
        is_transposed: bool,
        io: &Conv<'_>,
        w: &Window,
        attr: &Attr,
    ) -> Result<PrimitiveDesc> {
        if self.library.retains_code(self.implementation()) {
            let tensors = [io.src.clone(), self.weights()?, io.dst.clone()].into_iter().chain(io.bias.cloned());
            self.retained_key = Some(Box::new(ConvKey {
                implementation: self.implementation().to_owned(),
                is_transposed,
                threads: self.library.threads(),
                window: w.clone(),
                post_ops: attr.post_ops.clone(),
                tensors: tensors.collect(),
            }));
        }
        Ok(self)
    }

    /// Declares that equal kernels of this convolution have equal code, so that the library stores each of them once.
    pub fn without_retained_key(self) -> PrimitiveDesc {
        let mut desc = self;
        desc.retained_key = None;
        desc
    }

    /// Returns the key of a convolution whose code the library retains; `None` for every other primitive.
    pub(super) fn retained_key(&self) -> Option<&ConvKey> {
        self.retained_key.as_deref()
    }

    /// Replaces the implementation of a convolution by the library's next one.
    ///
    /// # Errors
    /// If there is no other implementation.
    pub(super) fn advance(&mut self) -> Result<()> {
        // SAFETY: `self` owns the descriptor, which the library changes in place.
        check(unsafe { (self.library.api.primitive_desc_next_impl)(self.raw) }, "next implementation")?;
        let key = self.retained_key.take().filter(|_| self.library.retains_code(self.implementation()));
        if let Some(mut key) = key {
            self.implementation().clone_into(&mut key.implementation);
            key.tensors[1] = self.weights()?;
            self.retained_key = Some(key);
        }
        Ok(())
    }

    /// Returns the weight layout that the implementation expects.
    pub fn weights(&self) -> Result<Desc> {
        // SAFETY: `self` owns the descriptor; the result lives as long as the descriptor and is copied.
        let raw = unsafe { (self.library.api.primitive_desc_query_md)(self.raw, ffi::QUERY_WEIGHTS_MD, 0) };
        self.clone_desc(raw)
    }

    fn clone_desc(&self, raw: *const ffi::CMemoryDesc) -> Result<Desc> {
        if raw.is_null() {
            return Err("oneDNN does not report the layout of this tensor".into());
        }
        let mut clone_handle = null_mut();
        // SAFETY: `raw` points to a layout that belongs to the descriptor of `self`.
        check(unsafe { (self.library.api.memory_desc_clone)(&mut clone_handle, raw) }, "tensor layout")?;
        Ok(Desc { library: self.library, raw: clone_handle })
    }

    /// Returns the scratchpad that the implementation requires, if any.
    ///
    /// # Errors
    /// If memory is exhausted.
    pub fn scratchpad(&self) -> Result<Option<Desc>> {
        // SAFETY: `self` owns the descriptor; the result lives as long as the descriptor and is copied.
        let raw = unsafe { (self.library.api.primitive_desc_query_md)(self.raw, ffi::QUERY_SCRATCHPAD_MD, 0) };
        if raw.is_null() {
            return Ok(None);
        }
        Ok(Some(self.clone_desc(raw)?).filter(|desc| desc.size() > 0))
    }

    /// Returns the name of the implementation, such as `brgconv:avx512_core` or `ref:any`.
    pub fn implementation(&self) -> &str {
        let mut text: *const c_char = null();
        // SAFETY: oneDNN returns a NUL-terminated string for this query, owned by the descriptor and valid as long as
        // the descriptor.
        unsafe {
            let result = (&raw mut text).cast::<c_void>();
            (self.library.api.primitive_desc_query)(self.raw, ffi::QUERY_IMPL_INFO, 0, result);
            if text.is_null() { "" } else { CStr::from_ptr(text).to_str().unwrap_or_default() }
        }
    }

    /// Returns true for oneDNN's general GEMM, which runs one batch at a time.
    pub fn is_general_product(&self) -> bool {
        self.implementation().starts_with("gemm")
    }

    /// Returns true for oneDNN's reference implementation or a general loop, which are correct but slow.
    pub fn is_slow(&self) -> bool {
        is_slow(self.implementation())
    }

    /// Checks that an implementation computes the bias and the post-ops, if there are any, with generated code. A
    /// transposed convolution named `conv:any+...` calls another primitive and then applies both with reference code,
    /// which takes up to two hundred times as long as separate elementwise primitives.
    ///
    /// # Errors
    /// If it does not.
    pub(super) fn check_epilogue(&self, has_epilogue: bool) -> Result<()> {
        let name = self.implementation();
        match has_epilogue && name.starts_with("conv:any+") {
            true => {
                Err(format!("expected an implementation that fuses the bias and the post-ops, found {name}").into())
            }
            false => Ok(()),
        }
    }
}

/// Returns true if an implementation is oneDNN's reference code, or one of its general loops over elements, or wraps one,
/// as `conv:any+ref:any` does.
pub fn is_slow(implementation: &str) -> bool {
    implementation.split('+').any(|part| part.starts_with("ref") || part.starts_with("simple"))
}

/// Returns the strides, the dilation, and the padding at the start and at the end. In oneDNN's convention, a dense
/// kernel has dilation 0.
fn conv_dims(w: &Window) -> Result<[Dims; 4]> {
    let dilates: Vec<i64> = w.dilation.iter().map(|d| d - 1).collect();
    Ok([dims(&w.strides)?, dims(&dilates)?, dims(&w.pad_before)?, dims(&w.pad_after)?])
}

impl Primitive {
    /// Generates the code of an implementation.
    ///
    /// # Errors
    /// If memory is exhausted.
    pub fn new(desc: &PrimitiveDesc) -> Result<Primitive> {
        let mut raw = null_mut();
        // SAFETY: the descriptor is borrowed from its owner, so it is valid for the call.
        check(unsafe { (desc.library.api.primitive_create)(&mut raw, desc.raw) }, "primitive")?;
        Ok(Primitive { library: desc.library, raw })
    }

    /// Runs the primitive on the number of threads set for the calling thread.
    ///
    /// # Errors
    /// If the computation fails.
    ///
    /// # Safety
    /// The memory object of each argument must have the layout that the primitive was created for and point to memory
    /// that is large enough. During the call, nothing else may access memory that the primitive writes.
    pub unsafe fn execute(&self, stream: &Stream, args: &[ffi::ExecArg]) -> Result<()> {
        // SAFETY: `self` and `stream` own their objects; the caller guarantees the memory objects.
        let status =
            unsafe { (self.library.api.primitive_execute)(self.raw, stream.raw, args.len() as c_int, args.as_ptr()) };
        check(status, "execution")
    }
}

impl Memory {
    /// Creates a memory object with the given layout and no address.
    ///
    /// # Errors
    /// If memory is exhausted.
    pub fn new(library: &'static OneDnn, desc: &Desc) -> Result<Memory> {
        let mut raw = null_mut();
        // SAFETY: `desc` owns the descriptor, which oneDNN copies; oneDNN allows a null address until an execution.
        let status = unsafe { (library.api.memory_create)(&mut raw, desc.raw, library.engine, null_mut()) };
        check(status, "memory")?;
        Ok(Memory { library, raw })
    }

    /// Sets the address of the first element.
    ///
    /// # Errors
    /// If the library rejects the address, which is not expected to happen.
    pub fn set(&mut self, address: *mut u8) -> Result<()> {
        // SAFETY: `self` owns the object; oneDNN dereferences the address only during an execution.
        check(unsafe { (self.library.api.memory_set_data_handle)(self.raw, address.cast()) }, "memory")
    }

    /// Returns an execution argument with the given index, valid for the lifetime of this object.
    pub fn arg(&self, arg: c_int) -> ffi::ExecArg {
        ffi::ExecArg { arg, memory: self.raw }
    }
}

impl Stream {
    /// Creates a stream.
    ///
    /// # Errors
    /// If memory is exhausted.
    pub fn new(library: &'static OneDnn) -> Result<Stream> {
        let mut raw = null_mut();
        let flags = ffi::IN_ORDER as u32;
        // SAFETY: `OneDnn` never destroys the engine, and `raw` is a valid out-pointer.
        check(unsafe { (library.api.stream_create)(&mut raw, library.engine, flags) }, "stream")?;
        Ok(Stream { library, raw })
    }
}
