//! OpenCL C expressions for elementwise operators.
//!
//! The semantics match the operator reference: `nn.relu`, `clip`, `maximum` and `minimum` propagate NaN; a cast
//! from float to integer rounds toward zero and saturates; integer overflow wraps. float32 is computed in vectors of 1
//! to 16 elements, other types one element at a time.

use byoc_plugin_api::DType;
use byoc_plugin_support::region::{Op, RegionIr};
use byoc_plugin_support::view::View;

/// Returns the OpenCL C type of an element; `None` if the element type is unsupported.
pub fn c_type(dtype: DType) -> Option<&'static str> {
    Some(match dtype {
        DType::F32 => "float",
        // Only in memory: variables are float32.
        DType::F16 => "half",
        DType::I8 => "char",
        DType::I32 => "int",
        DType::I64 => "long",
        DType::U8 | DType::BOOL => "uchar",
        _ => return None,
    })
}

/// Returns the OpenCL C type of a float32 vector; a vector of one element is a scalar.
pub fn vector(width: i64) -> String {
    if width == 1 { "float".to_owned() } else { format!("float{width}") }
}

/// Unary float32 operators: Relay name and OpenCL C function. The functions also accept vectors. Functions with the
/// prefix `byoc_` are defined in the source, once per vector width, which is appended to the name.
const FUNCTIONS: &[(&str, &str)] = &[
    ("erf", "byoc_erf"),
    ("sigmoid", "byoc_sigmoid"),
    ("exp", "exp"),
    ("tanh", "tanh"),
    ("log", "log"),
    ("log2", "log2"),
    ("log10", "log10"),
    ("sqrt", "sqrt"),
    ("sin", "sin"),
    ("cos", "cos"),
    ("tan", "tan"),
    ("asin", "asin"),
    ("acos", "acos"),
    ("atan", "atan"),
    ("sinh", "sinh"),
    ("cosh", "cosh"),
    ("asinh", "asinh"),
    ("acosh", "acosh"),
    ("atanh", "atanh"),
    ("abs", "fabs"),
    ("floor", "floor"),
    ("ceil", "ceil"),
    ("round", "round"),
    ("trunc", "trunc"),
];

/// Operators on float32, int32 and int64 that map to one infix operator of C.
const ARITHMETIC: &[(&str, &str)] = &[("add", "+"), ("nn.bias_add", "+"), ("subtract", "-"), ("multiply", "*")];

/// Comparisons and their infix operators in C. The results are Booleans.
const COMPARISONS: &[(&str, &str)] = &[
    ("equal", "=="),
    ("not_equal", "!="),
    ("less", "<"),
    ("less_equal", "<="),
    ("greater", ">"),
    ("greater_equal", ">="),
];

/// Elementwise operators that [`expression`] handles individually.
const OTHER_OPERATORS: &[&str] = &[
    "rsqrt",
    "nn.relu",
    "nn.leaky_relu",
    "nn.prelu",
    "nn.batch_norm",
    "negative",
    "sign",
    "clip",
    "cast",
    "divide",
    "power",
    "maximum",
    "minimum",
    "where",
    "logical_and",
    "logical_or",
    "logical_xor",
    "logical_not",
];

/// Internal operator that rounds float32 to float16 precision. Graphs from the host do not contain it.
pub const ROUND_TO_HALF: &str = "opencl.round_to_half";

/// Returns the names of all elementwise operators.
pub fn names() -> impl Iterator<Item = &'static str> {
    let name_tables = FUNCTIONS.iter().chain(ARITHMETIC).chain(COMPARISONS);
    name_tables.map(|entry| entry.0).chain(OTHER_OPERATORS.iter().copied())
}

/// Tests for an elementwise operator: each result element depends only on operand elements at the same index, up to
/// broadcasting.
pub fn is_elementwise(name: &str) -> bool {
    name == ROUND_TO_HALF || names().any(|elementwise_name| elementwise_name == name)
}

/// Returns operand `i` as a view with the result's shape, broadcast or aligned with the attribute `axis`; `None` if the
/// shapes do not match.
pub fn operand_view(ir: &RegionIr<'_>, op: &Op<'_>, i: usize, view: &View) -> Option<View> {
    let out = ir.shape(op.outputs[0]);
    let is_along_axis = matches!((op.name, i), ("nn.bias_add" | "nn.prelu", 1) | ("nn.batch_norm", 1..));
    if !is_along_axis {
        return view.broadcast(out);
    }
    let axis = op.attrs().axis("axis", 1, out.len())?;
    let mut strides = vec![0; out.len()];
    if view.shape.len() != 1 || (view.shape[0] != out[axis] && view.shape[0] != 1) {
        return None;
    }
    strides[axis] = if view.shape[0] == 1 { 0 } else { view.strides[0] };
    Some(View { shape: out.to_vec(), strides, offset: view.offset })
}

/// Formats a float32 value as a scalar or vector literal that round-trips exactly.
pub fn literal(value: f64, width: i64) -> String {
    let float_value = value as f32;
    let text = match float_value {
        v if v.is_nan() => "NAN".to_owned(),
        v if v == f32::INFINITY => "INFINITY".to_owned(),
        v if v == f32::NEG_INFINITY => "-INFINITY".to_owned(),
        v => format!("{v:?}f"),
    };
    if width == 1 { text } else { format!("(float{width})({text})") }
}

/// Formats an integer as a C literal.
pub fn int_literal(dtype: DType, value: i64) -> String {
    match dtype {
        DType::I64 if value == i64::MIN => "LONG_MIN".to_owned(),
        DType::I32 if value == i64::from(i32::MIN) => "INT_MIN".to_owned(),
        DType::I64 => format!("{value}L"),
        _ => value.to_string(),
    }
}

/// Formats an operator applied to `args`, which are variables or literals; `None` if the types are unsupported.
pub fn expression(ir: &RegionIr<'_>, op: &Op<'_>, args: &[String], width: i64) -> Option<String> {
    let first_dtype = ir.val(*op.inputs.first()?).dtype;
    let out = ir.val(op.outputs[0]).dtype;
    c_type(first_dtype).and(c_type(out))?;
    for &input in &op.inputs {
        c_type(ir.val(input).dtype)?;
    }
    // Operators other than `cast` and `where` compute in the type of their last operand.
    let dtype = ir.val(*op.inputs.last()?).dtype;
    let (a, b) = (args.first()?, args.get(1).map_or("", String::as_str));
    if op.name == "cast" {
        return Some(cast(first_dtype, out, a));
    }
    if op.name == "where" {
        let c = args.get(2)?;
        return (first_dtype == DType::BOOL).then(|| format!("{a} ? {b} : {c}"));
    }
    if dtype == DType::F32 {
        return float_expression(op, args, width);
    }
    let unsigned_type = match dtype {
        DType::I32 => "uint",
        DType::I64 => "ulong",
        DType::BOOL => return bool_expression(op.name, a, b),
        _ => return None,
    };
    let ty = c_type(dtype)?;
    if let Some((_, sign)) = ARITHMETIC.iter().find(|entry| entry.0 == op.name) {
        // Signed overflow wraps in Relay and is undefined in C, so the operation is unsigned.
        return Some(format!("({ty})(({unsigned_type}){a} {sign} ({unsigned_type}){b})"));
    }
    if let Some((_, sign)) = COMPARISONS.iter().find(|entry| entry.0 == op.name) {
        return Some(format!("{a} {sign} {b}"));
    }
    Some(match op.name {
        "maximum" => format!("max({a}, {b})"),
        "minimum" => format!("min({a}, {b})"),
        "negative" => format!("({ty})(0 - ({unsigned_type}){a})"),
        "nn.relu" => format!("max({a}, ({ty})0)"),
        _ => return None,
    })
}

fn bool_expression(name: &str, a: &str, b: &str) -> Option<String> {
    Some(match name {
        "logical_and" => format!("({a} != 0) & ({b} != 0)"),
        "logical_or" => format!("({a} != 0) | ({b} != 0)"),
        "logical_xor" => format!("({a} != 0) != ({b} != 0)"),
        "logical_not" => format!("{a} == 0"),
        _ => return None,
    })
}

fn float_expression(op: &Op<'_>, args: &[String], width: i64) -> Option<String> {
    let (a, b) = (args.first()?, args.get(1).map_or("", String::as_str));
    if let Some((_, name)) = FUNCTIONS.iter().find(|entry| entry.0 == op.name) {
        return Some(if name.starts_with("byoc_") { format!("{name}{width}({a})") } else { format!("{name}({a})") });
    }
    if let Some((_, sign)) = ARITHMETIC.iter().find(|entry| entry.0 == op.name) {
        return Some(format!("{a} {sign} {b}"));
    }
    if let Some((_, sign)) = COMPARISONS.iter().find(|entry| entry.0 == op.name) {
        // A vector comparison returns a vector of masks, not of Booleans.
        return (width == 1).then(|| format!("{a} {sign} {b}"));
    }
    let (zero, one) = (literal(0.0, width), literal(1.0, width));
    let attribute = |name: &str, default: f64| literal(op.attrs().float(name, default), width);
    Some(match op.name {
        ROUND_TO_HALF => format!("byoc_half{width}({a})"),
        "rsqrt" => format!("{one} / sqrt({a})"),
        "nn.relu" => format!("{a} < {zero} ? {zero} : {a}"),
        "nn.leaky_relu" => format!("{a} > {zero} ? {a} : {} * {a}", attribute("alpha", 0.25)),
        "nn.prelu" => format!("{a} > {zero} ? {a} : {b} * {a}"),
        "nn.batch_norm" => {
            let (beta, mean, variance) = (args.get(2)?, args.get(3)?, args.get(4)?);
            let scale = if op.attrs().flag("scale", true) { b } else { &one };
            let shift = if op.attrs().flag("center", true) { beta } else { &zero };
            let epsilon = attribute("epsilon", 1e-5);
            format!("({a} - {mean}) * ({scale} / sqrt({variance} + {epsilon})) + {shift}")
        }
        "negative" => format!("-({a})"),
        "sign" => format!("{a} > {zero} ? {one} : ({a} < {zero} ? -{one} : {a})"),
        "clip" => {
            let (low, high) = (attribute("a_min", f64::NEG_INFINITY), attribute("a_max", f64::INFINITY));
            format!("{a} < {low} ? {low} : ({a} > {high} ? {high} : {a})")
        }
        "divide" => format!("{a} / {b}"),
        "power" => format!("pow({a}, {b})"),
        "maximum" => format!("(({a} != {a}) | ({a} > {b})) ? {a} : {b}"),
        "minimum" => format!("(({a} != {a}) | ({a} < {b})) ? {a} : {b}"),
        _ => return None,
    })
}

fn cast(source_type: DType, target_type: DType, a: &str) -> String {
    // Loads and stores convert between float16 and float32.
    let in_register = |dtype| if dtype == DType::F16 { DType::F32 } else { dtype };
    let (source_type, target_type) = (in_register(source_type), in_register(target_type));
    let target = c_type(target_type).unwrap_or("float");
    if source_type == target_type {
        a.to_owned()
    } else if target_type == DType::BOOL {
        format!("{a} != 0")
    } else if source_type == DType::F32 && target_type != DType::F32 {
        format!("{a} != {a} ? ({target})0 : convert_{target}_sat_rtz({a})")
    } else {
        format!("({target}){a}")
    }
}
