//! Element types, numbers and conversions in C.

use crate::types::computed;
use byoc_plugin_api::DType;

/// Returns the C type of an element type; `None` for an unsupported type.
pub fn c_type(dtype: DType) -> Option<&'static str> {
    Some(match dtype {
        DType::F32 => "float",
        DType::F64 => "double",
        DType::I8 => "int8_t",
        DType::I16 => "int16_t",
        DType::I32 => "int32_t",
        DType::I64 => "int64_t",
        DType::U8 | DType::BOOL => "uint8_t",
        DType::U16 => "uint16_t",
        DType::U32 => "uint32_t",
        DType::U64 => "uint64_t",
        _ => return None,
    })
}

/// Returns the C type of tensor elements in memory; `None` for an unsupported type.
pub fn storage_type(dtype: DType) -> Option<&'static str> {
    if dtype == DType::F16 { Some("uint16_t") } else { c_type(dtype) }
}

/// Returns the C type of a variable that holds an element; `None` for an unsupported type.
pub fn value_type(dtype: DType) -> Option<&'static str> {
    c_type(computed(dtype))
}

/// Formats the conversion of an element in memory to its value.
pub fn loaded(dtype: DType, element: &str) -> String {
    if dtype == DType::F16 { format!("byoc_from_half({element})") } else { element.to_owned() }
}

/// Formats the conversion of a value to an element in memory.
pub fn stored(dtype: DType, value: &str) -> String {
    if dtype == DType::F16 { format!("byoc_to_half({value})") } else { value.to_owned() }
}

/// Formats a number as a C literal. Float literals round-trip exactly.
pub fn literal(dtype: DType, value: f64) -> String {
    let special_value = |suffix: &str| match value {
        v if v.is_nan() => "NAN".to_owned(),
        v if v == f64::INFINITY => "INFINITY".to_owned(),
        v if v == f64::NEG_INFINITY => "-INFINITY".to_owned(),
        v if suffix == "f" => format!("{:?}f", v as f32),
        v => format!("{v:?}"),
    };
    match dtype {
        // A value outside the range of float32 rounds to infinity.
        DType::F32 if (value as f32).is_infinite() => if value > 0.0 { "INFINITY" } else { "-INFINITY" }.to_owned(),
        DType::F32 => special_value("f"),
        DType::F64 => special_value(""),
        _ => int_literal(dtype, value as i128),
    }
}

/// Formats an integer as a C literal.
pub fn int_literal(dtype: DType, value: i128) -> String {
    match dtype {
        DType::I64 if value == i128::from(i64::MIN) => "INT64_MIN".to_owned(),
        DType::I32 if value == i128::from(i32::MIN) => "INT32_MIN".to_owned(),
        DType::I64 => format!("INT64_C({value})"),
        DType::U64 => format!("UINT64_C({value})"),
        DType::U32 => format!("{value}u"),
        _ => value.to_string(),
    }
}

/// Returns a C expression for a conversion: from float to integer, it rounds toward zero, saturates, and maps NaN to 0.
pub fn cast(from: DType, to: DType, a: &str) -> Option<String> {
    let target = c_type(to)?;
    let is_float = |dtype: DType| matches!(dtype, DType::F32 | DType::F64);
    Some(if to == DType::BOOL {
        format!("{a} != 0")
    } else if is_float(from) && !is_float(to) {
        // Values outside [`low`, `high`) saturate; both bounds are exactly representable in float32 and in float64.
        let bits = i32::from(to.bits);
        let (low, high) =
            if to.code == 1 { (0.0, 2f64.powi(bits)) } else { (-(2f64.powi(bits - 1)), 2f64.powi(bits - 1)) };
        let (min, max) = match to {
            DType::I8 => ("INT8_MIN", "INT8_MAX"),
            DType::I16 => ("INT16_MIN", "INT16_MAX"),
            DType::I32 => ("INT32_MIN", "INT32_MAX"),
            DType::I64 => ("INT64_MIN", "INT64_MAX"),
            DType::U8 => ("0", "UINT8_MAX"),
            DType::U16 => ("0", "UINT16_MAX"),
            DType::U32 => ("0", "UINT32_MAX"),
            _ => ("0", "UINT64_MAX"),
        };
        let (low, high) = (literal(from, low), literal(from, high));
        format!("{a} != {a} ? 0 : {a} < {low} ? {min} : {a} >= {high} ? {max} : ({target}){a}")
    } else {
        format!("({target}){a}")
    })
}
