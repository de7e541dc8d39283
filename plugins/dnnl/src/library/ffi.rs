//! Hand-written declarations of oneDNN's C API, version 3: the types, constants and functions used here.
//!
//! Every object of the library is an opaque pointer. Constants have the values in `dnnl_types.h` and
//! `dnnl_common_types.h`; a test compares each constant with the headers if they are installed.

use libloading::os::unix::Library;
use std::ffi::{c_char, c_int, c_uint, c_void};

/// Maximum rank of a tensor.
pub const MAX_NDIMS: usize = 12;
/// `dnnl_dims_t`.
pub type Dims = [i64; MAX_NDIMS];
/// `dnnl_status_t`.
pub type Status = c_int;

macro_rules! objects {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[repr(C)]
        pub struct $name([u8; 0]);
    )*};
}

objects! {
    /// `struct dnnl_engine`.
    CEngine;
    /// `struct dnnl_stream`.
    CStream;
    /// `struct dnnl_memory_desc`.
    CMemoryDesc;
    /// `struct dnnl_memory`.
    CMemory;
    /// `struct dnnl_primitive_attr`.
    CAttr;
    /// `struct dnnl_post_ops`.
    CPostOps;
    /// `struct dnnl_primitive_desc`.
    CPrimitiveDesc;
    /// `struct dnnl_primitive`.
    CPrimitive;
}

/// `dnnl_exec_arg_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ExecArg {
    pub arg: c_int,
    pub memory: *mut CMemory,
}

/// `dnnl_version_t`.
#[repr(C)]
pub struct Version {
    /// Major version; the declarations here are for version 3.
    pub major: c_int,
    pub minor: c_int,
    pub patch: c_int,
    pub hash: *const c_char,
    /// Threading runtime that the library was built with.
    pub cpu_runtime: c_uint,
    /// GPU runtime that the library was built with.
    pub gpu_runtime: c_uint,
}

/// Declares constants together with their header names, for a test that compares them with the headers.
macro_rules! constants {
    ($($(#[$doc:meta])* $name:ident = $c:literal $value:literal;)*) => {
        $($(#[$doc])* pub const $name: c_int = $value;)*
        /// Header name and value of each constant.
        #[cfg(test)]
        pub const CONSTANTS: &[(&str, c_int)] = &[$(($c, $value)),*];
    };
}

constants! {
    SUCCESS = "dnnl_success" 0;
    CPU = "dnnl_cpu" 1;
    /// Execution of primitives in order of submission.
    IN_ORDER = "dnnl_stream_in_order" 1;
    RUNTIME_OMP = "DNNL_RUNTIME_OMP" 2;

    BF16 = "dnnl_bf16" 2;
    F32 = "dnnl_f32" 3;
    S32 = "dnnl_s32" 4;
    S8 = "dnnl_s8" 5;
    U8 = "dnnl_u8" 6;

    /// Layout chosen by the primitive.
    FORMAT_ANY = "dnnl_format_tag_any" 1;
    FORWARD_INFERENCE = "dnnl_forward_inference" 96;

    CONVOLUTION_DIRECT = "dnnl_convolution_direct" 1;
    DECONVOLUTION_DIRECT = "dnnl_deconvolution_direct" 10;
    POOLING_MAX = "dnnl_pooling_max" 0x1ff;
    POOLING_AVG_INCLUDE_PADDING = "dnnl_pooling_avg_include_padding" 0x2ff;
    POOLING_AVG_EXCLUDE_PADDING = "dnnl_pooling_avg_exclude_padding" 0x3ff;
    SOFTMAX_ACCURATE = "dnnl_softmax_accurate" 0x30000;
    RESAMPLING_NEAREST = "dnnl_resampling_nearest" 0x2fff0;
    RESAMPLING_LINEAR = "dnnl_resampling_linear" 0x2fff1;
    REDUCTION_MAX = "dnnl_reduction_max" 0x2fff2;
    REDUCTION_MIN = "dnnl_reduction_min" 0x2fff3;
    REDUCTION_SUM = "dnnl_reduction_sum" 0x2fff4;
    REDUCTION_MUL = "dnnl_reduction_mul" 0x2fff5;
    REDUCTION_MEAN = "dnnl_reduction_mean" 0x2fff6;

    /// `x`, or `alpha * x` for `x < 0`.
    ELTWISE_RELU = "dnnl_eltwise_relu" 0x20;
    ELTWISE_TANH = "dnnl_eltwise_tanh" 0x21;
    ELTWISE_ABS = "dnnl_eltwise_abs" 0x24;
    ELTWISE_SQRT = "dnnl_eltwise_sqrt" 0x25;
    /// `alpha * x + beta`.
    ELTWISE_LINEAR = "dnnl_eltwise_linear" 0x26;
    /// `min(1, max(0, alpha * x + beta))`.
    ELTWISE_HARDSIGMOID = "dnnl_eltwise_hardsigmoid" 0x28;
    /// `1 / (1 + exp(-x))`.
    ELTWISE_LOGISTIC = "dnnl_eltwise_logistic" 0x29;
    ELTWISE_EXP = "dnnl_eltwise_exp" 0x2a;
    /// `x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3)))`.
    ELTWISE_GELU_TANH = "dnnl_eltwise_gelu_tanh" 0x2b;
    /// `x / (1 + exp(-alpha * x))`.
    ELTWISE_SWISH = "dnnl_eltwise_swish" 0x2c;
    /// `min(beta, max(alpha, x))`.
    ELTWISE_CLIP = "dnnl_eltwise_clip" 0x2e;
    /// `alpha * x^beta`.
    ELTWISE_POW = "dnnl_eltwise_pow" 0x30;
    /// `x / 2 * (1 + erf(x / sqrt(2)))`.
    ELTWISE_GELU_ERF = "dnnl_eltwise_gelu_erf" 0x31;
    /// `x * min(1, max(0, alpha * x + beta))`.
    ELTWISE_HARDSWISH = "dnnl_eltwise_hardswish" 0x34;

    BINARY_ADD = "dnnl_binary_add" 0x1fff0;
    BINARY_MUL = "dnnl_binary_mul" 0x1fff1;
    BINARY_MAX = "dnnl_binary_max" 0x1fff2;
    BINARY_MIN = "dnnl_binary_min" 0x1fff3;
    BINARY_DIV = "dnnl_binary_div" 0x1fff4;
    BINARY_SUB = "dnnl_binary_sub" 0x1fff5;

    /// Flag for a normalization with a scale tensor.
    USE_SCALE = "dnnl_use_scale" 2;
    /// Flag for a normalization with a shift tensor.
    USE_SHIFT = "dnnl_use_shift" 4;

    /// Caller-supplied scratchpad.
    SCRATCHPAD_USER = "dnnl_scratchpad_mode_user" 1;

    QUERY_IMPL_INFO = "dnnl_query_impl_info_str" 8;
    /// Layout of the weights.
    QUERY_WEIGHTS_MD = "dnnl_query_weights_md" 131;
    /// Layout of the scratchpad.
    QUERY_SCRATCHPAD_MD = "dnnl_query_scratchpad_md" 136;

    ARG_SRC = "DNNL_ARG_SRC_0" 1;
    ARG_SRC_1 = "DNNL_ARG_SRC_1" 2;
    ARG_DST = "DNNL_ARG_DST_0" 17;
    ARG_WEIGHTS = "DNNL_ARG_WEIGHTS_0" 33;
    ARG_BIAS = "DNNL_ARG_BIAS" 41;
    /// Scales of a normalization.
    ARG_SCALE = "DNNL_ARG_SCALE" 51;
    /// Shifts of a normalization.
    ARG_SHIFT = "DNNL_ARG_SHIFT" 52;
    ARG_SCRATCHPAD = "DNNL_ARG_SCRATCHPAD" 80;
    /// First of several sources.
    ARG_MULTIPLE_SRC = "DNNL_ARG_MULTIPLE_SRC" 1024;
    /// Base of post-op arguments: the arguments of post-op `i` start at `(i + 1) * ARG_POST_OP`.
    ARG_POST_OP = "DNNL_ARG_ATTR_MULTIPLE_POST_OP_BASE" 32768;
}

/// Sizes of the types that are passed to the library by value or by pointer.
#[cfg(test)]
pub const SIZES: &[(&str, usize)] = &[
    ("dnnl_dims_t", size_of::<Dims>()),
    ("dnnl_exec_arg_t", size_of::<ExecArg>()),
    ("dnnl_version_t", size_of::<Version>()),
    ("dnnl_status_t", size_of::<Status>()),
    ("dnnl_alg_kind_t", size_of::<c_int>()),
    ("dnnl_data_type_t", size_of::<c_int>()),
    ("dnnl_format_tag_t", size_of::<c_int>()),
    ("dnnl_query_t", size_of::<c_int>()),
];

/// Declares a function table whose pointers are resolved by name from a library.
macro_rules! functions {
    ($(fn $name:ident($($arg:ident: $ty:ty),* $(,)?) -> $ret:ty;)*) => {
        /// Library functions, named without the prefix `dnnl_`.
        pub struct Api {
            $(pub $name: unsafe extern "C" fn($($arg: $ty),*) -> $ret,)*
        }

        impl Api {
            /// Resolves every function.
            ///
            /// # Errors
            /// If the library lacks a function; the error is the function's name.
            ///
            /// # Safety
            /// The library must be oneDNN version 3, and must stay mapped while the table is in use.
            pub unsafe fn of(library: &Library) -> Result<Api, &'static str> {
                Ok(Api {
                    $($name: {
                        let name = concat!("dnnl_", stringify!($name));
                        // SAFETY: the caller guarantees oneDNN 3, which defines the function with this signature.
                        *unsafe { library.get(name.as_bytes()) }.map_err(|_| name)?
                    },)*
                })
            }
        }
    };
}

functions! {
    fn get_primitive_cache_capacity(capacity: *mut c_int) -> Status;
    fn set_primitive_cache_capacity(capacity: c_int) -> Status;
    fn engine_create(engine: *mut *mut CEngine, kind: c_int, index: usize) -> Status;
    fn stream_create(stream: *mut *mut CStream, engine: *mut CEngine, flags: c_uint) -> Status;
    fn stream_destroy(stream: *mut CStream) -> Status;

    fn memory_desc_create_with_strides(
        desc: *mut *mut CMemoryDesc, ndims: c_int, dims: *const Dims, dtype: c_int, strides: *const Dims,
    ) -> Status;
    fn memory_desc_create_with_tag(
        desc: *mut *mut CMemoryDesc, ndims: c_int, dims: *const Dims, dtype: c_int, tag: c_int,
    ) -> Status;
    fn memory_desc_clone(desc: *mut *mut CMemoryDesc, existing: *const CMemoryDesc) -> Status;
    fn memory_desc_destroy(desc: *mut CMemoryDesc) -> Status;
    fn memory_desc_get_size(desc: *const CMemoryDesc) -> usize;
    fn memory_desc_equal(a: *const CMemoryDesc, b: *const CMemoryDesc) -> c_int;
    fn memory_create(
        memory: *mut *mut CMemory, desc: *const CMemoryDesc, engine: *mut CEngine, handle: *mut c_void,
    ) -> Status;
    fn memory_set_data_handle(memory: *mut CMemory, handle: *mut c_void) -> Status;
    fn memory_destroy(memory: *mut CMemory) -> Status;

    fn primitive_attr_create(attr: *mut *mut CAttr) -> Status;
    fn primitive_attr_destroy(attr: *mut CAttr) -> Status;
    fn primitive_attr_set_scratchpad_mode(attr: *mut CAttr, mode: c_int) -> Status;
    fn primitive_attr_set_post_ops(attr: *mut CAttr, post_ops: *const CPostOps) -> Status;
    fn post_ops_create(post_ops: *mut *mut CPostOps) -> Status;
    fn post_ops_destroy(post_ops: *mut CPostOps) -> Status;
    fn post_ops_append_sum(post_ops: *mut CPostOps, scale: f32, zero_point: i32, dtype: c_int) -> Status;
    fn post_ops_append_eltwise(post_ops: *mut CPostOps, alg: c_int, alpha: f32, beta: f32) -> Status;
    fn post_ops_append_binary(post_ops: *mut CPostOps, alg: c_int, desc: *const CMemoryDesc) -> Status;

    fn primitive_desc_query(desc: *const CPrimitiveDesc, what: c_int, index: c_int, result: *mut c_void) -> Status;
    fn primitive_desc_query_md(desc: *const CPrimitiveDesc, what: c_int, index: c_int) -> *const CMemoryDesc;
    fn primitive_desc_next_impl(desc: *mut CPrimitiveDesc) -> Status;
    fn primitive_desc_destroy(desc: *mut CPrimitiveDesc) -> Status;
    fn primitive_create(primitive: *mut *mut CPrimitive, desc: *const CPrimitiveDesc) -> Status;
    fn primitive_execute(
        primitive: *const CPrimitive, stream: *mut CStream, count: c_int, args: *const ExecArg,
    ) -> Status;
    fn primitive_destroy(primitive: *mut CPrimitive) -> Status;

    fn reorder_primitive_desc_create(
        desc: *mut *mut CPrimitiveDesc, src: *const CMemoryDesc, src_engine: *mut CEngine, dst: *const CMemoryDesc,
        dst_engine: *mut CEngine, attr: *const CAttr,
    ) -> Status;
    fn convolution_forward_primitive_desc_create(
        desc: *mut *mut CPrimitiveDesc, engine: *mut CEngine, prop: c_int, alg: c_int, src: *const CMemoryDesc,
        weights: *const CMemoryDesc, bias: *const CMemoryDesc, dst: *const CMemoryDesc, strides: *const Dims,
        dilates: *const Dims, pad_before: *const Dims, pad_after: *const Dims, attr: *const CAttr,
    ) -> Status;
    fn deconvolution_forward_primitive_desc_create(
        desc: *mut *mut CPrimitiveDesc, engine: *mut CEngine, prop: c_int, alg: c_int, src: *const CMemoryDesc,
        weights: *const CMemoryDesc, bias: *const CMemoryDesc, dst: *const CMemoryDesc, strides: *const Dims,
        dilates: *const Dims, pad_before: *const Dims, pad_after: *const Dims, attr: *const CAttr,
    ) -> Status;
    fn matmul_primitive_desc_create(
        desc: *mut *mut CPrimitiveDesc, engine: *mut CEngine, src: *const CMemoryDesc, weights: *const CMemoryDesc,
        bias: *const CMemoryDesc, dst: *const CMemoryDesc, attr: *const CAttr,
    ) -> Status;
    fn pooling_forward_primitive_desc_create(
        desc: *mut *mut CPrimitiveDesc, engine: *mut CEngine, prop: c_int, alg: c_int, src: *const CMemoryDesc,
        dst: *const CMemoryDesc, strides: *const Dims, kernel: *const Dims, dilation: *const Dims,
        pad_before: *const Dims, pad_after: *const Dims, attr: *const CAttr,
    ) -> Status;
    fn softmax_forward_primitive_desc_create(
        desc: *mut *mut CPrimitiveDesc, engine: *mut CEngine, prop: c_int, alg: c_int, src: *const CMemoryDesc,
        dst: *const CMemoryDesc, axis: c_int, attr: *const CAttr,
    ) -> Status;
    fn layer_normalization_forward_primitive_desc_create(
        desc: *mut *mut CPrimitiveDesc, engine: *mut CEngine, prop: c_int, src: *const CMemoryDesc,
        dst: *const CMemoryDesc, stat: *const CMemoryDesc, epsilon: f32, flags: c_uint, attr: *const CAttr,
    ) -> Status;
    fn eltwise_forward_primitive_desc_create(
        desc: *mut *mut CPrimitiveDesc, engine: *mut CEngine, prop: c_int, alg: c_int, src: *const CMemoryDesc,
        dst: *const CMemoryDesc, alpha: f32, beta: f32, attr: *const CAttr,
    ) -> Status;
    fn binary_primitive_desc_create(
        desc: *mut *mut CPrimitiveDesc, engine: *mut CEngine, alg: c_int, src0: *const CMemoryDesc,
        src1: *const CMemoryDesc, dst: *const CMemoryDesc, attr: *const CAttr,
    ) -> Status;
    fn prelu_forward_primitive_desc_create(
        desc: *mut *mut CPrimitiveDesc, engine: *mut CEngine, prop: c_int, src: *const CMemoryDesc,
        weights: *const CMemoryDesc, dst: *const CMemoryDesc, attr: *const CAttr,
    ) -> Status;
    fn concat_primitive_desc_create(
        desc: *mut *mut CPrimitiveDesc, engine: *mut CEngine, dst: *const CMemoryDesc, count: c_int, axis: c_int,
        srcs: *const *const CMemoryDesc, attr: *const CAttr,
    ) -> Status;
    fn reduction_primitive_desc_create(
        desc: *mut *mut CPrimitiveDesc, engine: *mut CEngine, alg: c_int, src: *const CMemoryDesc,
        dst: *const CMemoryDesc, p: f32, epsilon: f32, attr: *const CAttr,
    ) -> Status;
    fn resampling_forward_primitive_desc_create(
        desc: *mut *mut CPrimitiveDesc, engine: *mut CEngine, prop: c_int, alg: c_int, factors: *const f32,
        src: *const CMemoryDesc, dst: *const CMemoryDesc, attr: *const CAttr,
    ) -> Status;
}
