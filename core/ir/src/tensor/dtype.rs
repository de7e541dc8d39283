//! Element types and their names in Relay.

use half::{bf16, f16};
use std::fmt;

macro_rules! dtypes {
    ($($variant:ident $name:literal $size:literal $doc:literal;)*) => {
        /// Type of the elements of a tensor.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum DType { $(#[doc = $doc] $variant),* }

        impl DType {
            /// All element types, in declaration order.
            pub const ALL: &'static [DType] = &[$(DType::$variant),*];

            /// Returns the name in Relay.
            pub const fn name(self) -> &'static str {
                match self { $(DType::$variant => $name),* }
            }

            /// Returns the size of an element in bytes.
            pub const fn size(self) -> usize {
                match self { $(DType::$variant => $size),* }
            }
        }
    };
}

dtypes! {
    F64 "float64" 8 "IEEE binary64";
    F32 "float32" 4 "IEEE binary32";
    F16 "float16" 2 "IEEE binary16";
    BF16 "bfloat16" 2 "Upper half of an IEEE binary32";
    I8 "int8" 1 "8-bit signed integer";
    I16 "int16" 2 "16-bit signed integer";
    I32 "int32" 4 "32-bit signed integer";
    I64 "int64" 8 "64-bit signed integer";
    U8 "uint8" 1 "8-bit unsigned integer";
    U16 "uint16" 2 "16-bit unsigned integer";
    U32 "uint32" 4 "32-bit unsigned integer";
    U64 "uint64" 8 "64-bit unsigned integer";
    Bool "bool" 1 "Boolean: one byte, 0 or 1";
    F8E4M3Fn "float8_e4m3fn" 1 "8-bit float: 4 exponent bits, no infinities";
    F8E4M3FnUz "float8_e4m3fnuz" 1 "8-bit float: 4 exponent bits, no infinities, no negative zero";
    F8E5M2 "float8_e5m2" 1 "8-bit float: 5 exponent bits";
    F8E5M2FnUz "float8_e5m2fnuz" 1 "8-bit float: 5 exponent bits, no infinities, no negative zero";
    F8E8M0Fnu "float8_e8m0fnu" 1 "8-bit power of two";
    F4E2M1Fn "float4_e2m1fn" 1 "4-bit float: 2 exponent bits, stored in one byte";
    I4 "int4" 1 "4-bit signed integer, stored in one byte";
    U4 "uint4" 1 "4-bit unsigned integer, stored in one byte";
    I2 "int2" 1 "2-bit signed integer, stored in one byte";
    U2 "uint2" 1 "2-bit unsigned integer, stored in one byte";
}

impl DType {
    /// Element types that operators compute with; the remaining types are only converted and moved.
    pub const COMPUTED: &'static [DType] = DType::ALL.split_at(13).0;

    /// Returns the element type with the Relay name `name`.
    pub fn parse(name: &str) -> Option<DType> {
        DType::ALL.iter().copied().find(|d| d.name() == name)
    }

    /// Returns the alignment of an element in bytes.
    pub const fn align(self) -> usize {
        self.size()
    }

    /// Returns the number of bits in an element. An element of fewer than 8 bits still occupies one byte of memory.
    pub const fn bits(self) -> usize {
        match self {
            DType::F4E2M1Fn | DType::I4 | DType::U4 => 4,
            DType::I2 | DType::U2 => 2,
            other => other.size() * 8,
        }
    }

    /// Returns true for floating-point types of fewer than 16 bits, which operators convert and move but do not compute
    /// with.
    pub const fn is_small_float(self) -> bool {
        matches!(
            self,
            DType::F8E4M3Fn
                | DType::F8E4M3FnUz
                | DType::F8E5M2
                | DType::F8E5M2FnUz
                | DType::F8E8M0Fnu
                | DType::F4E2M1Fn
        )
    }

    /// Returns true for integer types of fewer than 8 bits, which operators convert and move but do not compute with.
    pub const fn is_small_int(self) -> bool {
        matches!(self, DType::I4 | DType::U4 | DType::I2 | DType::U2)
    }

    /// Returns true for the four floating-point types that operators compute with.
    pub const fn is_float(self) -> bool {
        matches!(self, DType::F64 | DType::F32 | DType::F16 | DType::BF16)
    }

    /// Returns true for signed integer types.
    pub const fn is_signed_int(self) -> bool {
        matches!(self, DType::I8 | DType::I16 | DType::I32 | DType::I64)
    }

    /// Returns true for the integer types that operators compute with, which do not include `bool`.
    pub const fn is_int(self) -> bool {
        self.is_signed_int() || matches!(self, DType::U8 | DType::U16 | DType::U32 | DType::U64)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Rust type that represents an element type. (`bool` is stored as `u8`.)
pub trait Element: bytemuck::Pod + Send + Sync + fmt::Debug + PartialOrd {
    /// Element type that the Rust type represents.
    const DTYPE: DType;
    /// Converts to binary64; exact for all but large 64-bit integers.
    fn to_f64(self) -> f64;
    /// Converts from binary64: floats round to the nearest value, integers truncate toward zero and saturate, like
    /// `as`.
    fn from_f64(value: f64) -> Self;
}

macro_rules! elements {
    ($($ty:ty => $variant:ident, $to:expr, $from:expr;)*) => {$(
        impl Element for $ty {
            const DTYPE: DType = DType::$variant;
            #[inline(always)]
            fn to_f64(self) -> f64 { ($to)(self) }
            #[inline(always)]
            fn from_f64(value: f64) -> Self { ($from)(value) }
        }
    )*};
}

elements! {
    f64 => F64, |v| v, |v| v;
    f32 => F32, |v| v as f64, |v| v as f32;
    f16 => F16, |v: f16| v.to_f64(), f16::from_f64;
    bf16 => BF16, |v: bf16| v.to_f64(), bf16::from_f64;
    i8 => I8, |v| v as f64, |v| v as i8;
    i16 => I16, |v| v as f64, |v| v as i16;
    i32 => I32, |v| v as f64, |v| v as i32;
    i64 => I64, |v| v as f64, |v| v as i64;
    u8 => U8, |v| v as f64, |v| v as u8;
    u16 => U16, |v| v as f64, |v| v as u16;
    u32 => U32, |v| v as f64, |v| v as u32;
    u64 => U64, |v| v as f64, |v| v as u64;
}

/// Evaluates `$body` with `$T` as the Rust type of `$dtype`; `u8` for Booleans.
#[macro_export]
macro_rules! with_dtype {
    ($dtype:expr, $T:ident => $body:expr) => {
        match $dtype {
            $crate::tensor::DType::F64 => {
                type $T = f64;
                $body
            }
            $crate::tensor::DType::F32 => {
                type $T = f32;
                $body
            }
            $crate::tensor::DType::F16 => {
                type $T = $crate::tensor::f16;
                $body
            }
            $crate::tensor::DType::BF16 => {
                type $T = $crate::tensor::bf16;
                $body
            }
            $crate::tensor::DType::I8 => {
                type $T = i8;
                $body
            }
            $crate::tensor::DType::I16 => {
                type $T = i16;
                $body
            }
            $crate::tensor::DType::I32 => {
                type $T = i32;
                $body
            }
            $crate::tensor::DType::I64 => {
                type $T = i64;
                $body
            }
            $crate::tensor::DType::U8 | $crate::tensor::DType::Bool => {
                type $T = u8;
                $body
            }
            $crate::tensor::DType::U16 => {
                type $T = u16;
                $body
            }
            $crate::tensor::DType::U32 => {
                type $T = u32;
                $body
            }
            $crate::tensor::DType::U64 => {
                type $T = u64;
                $body
            }
            $crate::tensor::DType::F8E4M3Fn => {
                type $T = $crate::tensor::F8E4M3Fn;
                $body
            }
            $crate::tensor::DType::F8E4M3FnUz => {
                type $T = $crate::tensor::F8E4M3FnUz;
                $body
            }
            $crate::tensor::DType::F8E5M2 => {
                type $T = $crate::tensor::F8E5M2;
                $body
            }
            $crate::tensor::DType::F8E5M2FnUz => {
                type $T = $crate::tensor::F8E5M2FnUz;
                $body
            }
            $crate::tensor::DType::F8E8M0Fnu => {
                type $T = $crate::tensor::F8E8M0Fnu;
                $body
            }
            $crate::tensor::DType::F4E2M1Fn => {
                type $T = $crate::tensor::F4E2M1Fn;
                $body
            }
            $crate::tensor::DType::I4 => {
                type $T = $crate::tensor::I4;
                $body
            }
            $crate::tensor::DType::U4 => {
                type $T = $crate::tensor::U4;
                $body
            }
            $crate::tensor::DType::I2 => {
                type $T = $crate::tensor::I2;
                $body
            }
            $crate::tensor::DType::U2 => {
                type $T = $crate::tensor::U2;
                $body
            }
        }
    };
}
