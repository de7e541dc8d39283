//! Arithmetic and comparisons of integers, and logical operators on Booleans, with broadcasting.

use super::Offer;
use super::broadcast::{Loops, make};
use byoc_ir::tensor::DType;

macro_rules! loops {
    ($element:ty => $out:ty, |$a:ident, $b:ident| $formula:expr) => {{
        static LOOPS: Loops<$element, $out> = Loops {
            slices: |lhs, rhs, output| {
                for ((out, &$a), &$b) in output.iter_mut().zip(lhs).zip(rhs) {
                    *out = $formula;
                }
            },
            right: |lhs, $b, output| {
                for (out, &$a) in output.iter_mut().zip(lhs) {
                    *out = $formula;
                }
            },
            left: |$a, rhs, output| {
                for (out, &$b) in output.iter_mut().zip(rhs) {
                    *out = $formula;
                }
            },
        };
        &LOOPS
    }};
}

macro_rules! comparisons {
    ($($name:literal |$a:ident, $b:ident| $formula:expr;)*) => {$(
        inventory::submit! { Offer { op: $name, make: |spec| make(spec, DType::I32, loops!(i32 => u8, |$a, $b| u8::from($formula)), None) } }
        inventory::submit! { Offer { op: $name, make: |spec| make(spec, DType::I64, loops!(i64 => u8, |$a, $b| u8::from($formula)), None) } }
    )*};
}

comparisons! {
    "equal" |a, b| a == b;
    "not_equal" |a, b| a != b;
    "less" |a, b| a < b;
    "less_equal" |a, b| a <= b;
    "greater" |a, b| a > b;
    "greater_equal" |a, b| a >= b;
}

macro_rules! arithmetic {
    ($($name:literal |$a:ident, $b:ident| $formula:expr;)*) => {$(
        inventory::submit! { Offer { op: $name, make: |spec| make(spec, DType::I32, loops!(i32 => i32, |$a, $b| $formula), None) } }
        inventory::submit! { Offer { op: $name, make: |spec| make(spec, DType::I64, loops!(i64 => i64, |$a, $b| $formula), None) } }
    )*};
}

arithmetic! {
    "add" |a, b| a.wrapping_add(b);
    "subtract" |a, b| a.wrapping_sub(b);
    "multiply" |a, b| a.wrapping_mul(b);
    "maximum" |a, b| a.max(b);
    "minimum" |a, b| a.min(b);
}

macro_rules! logical {
    ($($name:literal |$a:ident, $b:ident| $formula:expr;)*) => {$(
        inventory::submit! { Offer { op: $name, make: |spec| make(spec, DType::Bool, loops!(u8 => u8, |$a, $b| u8::from($formula)), None) } }
    )*};
}

logical! {
    "logical_and" |a, b| (a != 0) & (b != 0);
    "logical_or" |a, b| (a | b) != 0;
    "logical_xor" |a, b| (a != 0) != (b != 0);
}
