//! CUDA C++.
//!
//! The kernels are those of a device, as OpenCL C has them. A vector is a class of the prelude, and a choice per element
//! is a call, for C++ has no `?:` on classes. No backend runs these kernels yet: `cargo xtask check-cuda` compiles them.

use super::c_types::int_literal;
use super::kernel::KernelDialect;
use super::{Dialect, Lanes};
use crate::nest::{Memory, Position};
use crate::operators::elementwise::ROUND_TO_HALF;
use crate::types::computed;
use byoc_plugin_api::DType;

/// Functions that the kernels call, and the vectors that they compute on.
pub const PRELUDE: &str = concat!("#include <cuda_fp16.h>\n\n", include_str!("../prelude/cuda.cu"));

/// Functions that differ from their Relay name. The others have the name of C, in single precision.
const FUNCTIONS: &[(&str, &str)] = &[
    ("sigmoid", "byoc_sigmoid"),
    (ROUND_TO_HALF, "byoc_half"),
    ("abs", "fabsf"),
    ("mod", "fmodf"),
    ("power", "powf"),
    ("round_to_even", "rintf"),
    ("floor_divide", "byoc_floor_divide"),
    ("floor_mod", "byoc_floor_mod"),
];

/// CUDA C++.
pub struct Cuda;

impl Dialect for Cuda {
    fn index_type(&self) -> &'static str {
        "int"
    }

    fn value_type(&self, dtype: DType) -> &'static str {
        match computed(dtype) {
            DType::F32 => "float",
            DType::I8 => "signed char",
            DType::I32 => "int",
            DType::I64 => "long long",
            DType::U8 | DType::BOOL => "unsigned char",
            DType::U32 => "unsigned int",
            DType::U64 => "unsigned long long",
            _ => "void",
        }
    }

    fn storage_type(&self, dtype: DType) -> &'static str {
        if dtype == DType::F16 { "__half" } else { self.value_type(dtype) }
    }

    fn vector_type(&self, width: i64) -> String {
        if width == 1 { "float".to_owned() } else { format!("byoc_floats<{width}>") }
    }

    fn select(&self, width: i64, [condition, then, otherwise]: [&str; 3]) -> Option<String> {
        (width > 1).then(|| format!("byoc_select({condition}, {then}, {otherwise})"))
    }

    fn integer(&self, dtype: DType, value: i128) -> String {
        match dtype {
            DType::I64 if value == i128::from(i64::MIN) => "LONG_MIN".to_owned(),
            DType::I32 if value == i128::from(i32::MIN) => "INT_MIN".to_owned(),
            DType::I64 => format!("{value}LL"),
            DType::U64 => format!("{value}ULL"),
            _ => int_literal(dtype, value),
        }
    }

    fn convert(&self, from: DType, to: DType, value: &str) -> String {
        let (from, to) = (computed(from), computed(to));
        let ty = self.value_type(to);
        match (from, to) {
            _ if from == to => value.to_owned(),
            (_, DType::BOOL) => format!("{value} != 0"),
            // These instructions saturate, and give 0 for NaN.
            (DType::F32, DType::I32) => format!("__float2int_rz({value})"),
            (DType::F32, DType::U32) => format!("__float2uint_rz({value})"),
            // For 64 bits, NaN gives the lowest number.
            (DType::F32, DType::I64) => format!("{value} != {value} ? 0LL : __float2ll_rz({value})"),
            (DType::F32, DType::U64) => format!("{value} != {value} ? 0ULL : __float2ull_rz({value})"),
            (DType::F32, DType::I8) => format!("({ty})max(-128, min(127, __float2int_rz({value})))"),
            (DType::F32, DType::U8) => format!("({ty})max(0, min(255, __float2int_rz({value})))"),
            _ => format!("({ty}){value}"),
        }
    }

    fn math(&self, name: &str, _: DType, _: i64, arguments: &[String]) -> String {
        let function = FUNCTIONS.iter().find(|row| row.0 == name);
        let function = function.map_or_else(|| format!("{name}f"), |row| row.1.to_owned());
        format!("{function}({})", arguments.join(", "))
    }

    fn load(&self, dtype: DType, address: &str, index: &str) -> String {
        if dtype == DType::F16 { format!("__half2float({address}[{index}])") } else { format!("{address}[{index}]") }
    }

    fn store(&self, dtype: DType, address: &str, index: &str, value: &str) -> String {
        match dtype {
            DType::F16 => format!("{address}[{index}] = __float2half_rn({value});"),
            _ => format!("{address}[{index}] = {value};"),
        }
    }

    fn load_vector(&self, width: i64, address: &str, index: &str, stride: i64, valid: Option<&str>) -> String {
        let width_text = width.to_string();
        format!("byoc_load<{width}>({address} + {index}, {stride}, {})", valid.unwrap_or(&width_text))
    }

    fn store_vector(&self, lanes: &Lanes, address: &str, index: &str, stride: i64, value: &str) -> String {
        let width_text = lanes.width.to_string();
        let count = lanes.valid.as_ref().unwrap_or(&width_text);
        format!("byoc_store({value}, {address} + {index}, {stride}, {count});")
    }

    fn position(&self, position: Position, dim: u8) -> String {
        let axis = ["x", "y", "z"][dim as usize % 3];
        match position {
            Position::Global => format!("(int)(blockIdx.{axis} * blockDim.{axis} + threadIdx.{axis})"),
            Position::Local => format!("(int)threadIdx.{axis}"),
            Position::Group => format!("(int)blockIdx.{axis}"),
        }
    }

    fn barrier(&self) -> &'static str {
        "__syncthreads();"
    }

    fn simd(&self) -> Option<&'static str> {
        None
    }

    fn array(&self, is_shared: bool) -> (&'static str, &'static str) {
        (if is_shared { "__shared__ " } else { "" }, "")
    }

    fn pointer(&self, _: &Memory) -> &'static str {
        ""
    }
}

impl KernelDialect for Cuda {
    fn parameter(&self, constant: &str, ty: &str, name: &str) -> String {
        format!("{constant}{ty} *__restrict__ {name}")
    }
}
