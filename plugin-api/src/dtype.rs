//! Element types and devices, as defined by DLPack.
//!
//! Both sets are open: a code without a name in this module keeps its DLPack meaning, and a new element type or device
//! type leaves the ABI layout unchanged.

use abi_stable::StableAbi;
use std::fmt;

/// Element type: DLPack's `DLDataType`. Compare and match it against the constants, such as [`DType::F32`].
#[repr(C)]
#[derive(StableAbi, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DType {
    /// DLPack's type code: 0 signed, 1 unsigned, 2 IEEE float, 4 bfloat, 6 bool.
    pub code: u8,
    /// Size of an element in bits.
    pub bits: u8,
    /// Number of vector lanes; 1 for every named type.
    pub lanes: u16,
}

macro_rules! dtypes {
    ($($name:ident $text:literal $code:literal $bits:literal;)*) => {
        impl DType {
            $(#[doc = concat!("`", $text, "`")] pub const $name: DType = DType { code: $code, bits: $bits, lanes: 1 };)*
            /// Every named element type, in order of declaration.
            pub const ALL: &'static [(DType, &'static str)] = &[$((DType::$name, $text)),*];

            /// Returns the type's name in Relay; `None` for a type outside [`DType::ALL`].
            pub const fn name(self) -> Option<&'static str> {
                match self {
                    $(DType::$name => Some($text),)*
                    _ => None,
                }
            }
        }
    };
}

dtypes! {
    F64 "float64" 2 64;
    F32 "float32" 2 32;
    F16 "float16" 2 16;
    BF16 "bfloat16" 4 16;
    I8 "int8" 0 8;
    I16 "int16" 0 16;
    I32 "int32" 0 32;
    I64 "int64" 0 64;
    U8 "uint8" 1 8;
    U16 "uint16" 1 16;
    U32 "uint32" 1 32;
    U64 "uint64" 1 64;
    BOOL "bool" 6 8;
}

impl DType {
    /// Parses the name of an element type (`float32`, `int8`, ...).
    pub fn parse(name: &str) -> Option<DType> {
        DType::ALL.iter().find(|(_, text)| *text == name).map(|(dtype, _)| *dtype)
    }

    /// Size of an element in bytes.
    #[inline]
    pub const fn size(self) -> usize {
        (self.bits as usize * self.lanes as usize).div_ceil(8)
    }

    /// Returns true for an IEEE float or a bfloat.
    pub const fn is_float(self) -> bool {
        matches!(self.code, 2 | 4)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.pad(name),
            None => write!(f, "dlpack({}, {}, {})", self.code, self.bits, self.lanes),
        }
    }
}

impl fmt::Debug for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// Device that owns memory: DLPack's `DLDevice`.
#[repr(C)]
#[derive(StableAbi, Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Device {
    /// DLPack's device type: 1 for host memory, 2 for CUDA, 12 for an extension device, ...
    pub kind: i32,
    /// Index among the devices of this type.
    pub id: i32,
}

impl Device {
    /// Host memory.
    pub const CPU: Device = Device { kind: 1, id: 0 };
}

mod sealed {
    pub trait Sealed {}
}

/// Rust type that a tensor can be viewed as. Booleans are viewed as `u8`, 16-bit floats as `u16` (their bit patterns).
pub trait Element: Copy + Send + Sync + sealed::Sealed + 'static {
    /// Returns true if a tensor of this element type can be viewed as `Self`.
    fn can_view(dtype: DType) -> bool;
}

macro_rules! elements {
    ($($ty:ty => $($name:ident)|+;)*) => {$(
        impl sealed::Sealed for $ty {}
        impl Element for $ty {
            fn can_view(dtype: DType) -> bool {
                matches!(dtype, $(DType::$name)|+)
            }
        }
    )*};
}

elements! {
    f64 => F64;
    f32 => F32;
    i8 => I8;
    i16 => I16;
    i32 => I32;
    i64 => I64;
    u8 => U8 | BOOL;
    u16 => U16 | F16 | BF16;
    u32 => U32;
    u64 => U64;
}
