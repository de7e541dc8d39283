//! Elementwise operators as C expressions.
//!
//! The semantics follow the operator reference: `nn.relu`, `clip`, `maximum` and `minimum` propagate NaN; a cast from
//! float to integer rounds toward zero and saturates; integer overflow wraps.

use crate::literals::{c_type, cast, computed, floats, literal};
use crate::quantized;
use byoc_plugin_api::DType;
use byoc_plugin_support::region::{Op, RegionIr};
use byoc_plugin_support::view::View;

/// Unary floating-point functions: Relay name, C function for `float`, C function for `double`. The prelude defines the
/// functions with the prefix `byoc_`.
const FUNCTIONS: &[(&str, &str, &str)] = &[
    ("exp", "byoc_exp", "exp"),
    ("erf", "byoc_erf", "erf"),
    ("tanh", "byoc_tanh", "tanh"),
    ("sigmoid", "byoc_sigmoid", "byoc_sigmoid64"),
    ("log", "logf", "log"),
    ("log2", "log2f", "log2"),
    ("log10", "log10f", "log10"),
    ("sqrt", "sqrtf", "sqrt"),
    ("sin", "sinf", "sin"),
    ("cos", "cosf", "cos"),
    ("tan", "tanf", "tan"),
    ("asin", "asinf", "asin"),
    ("acos", "acosf", "acos"),
    ("atan", "atanf", "atan"),
    ("sinh", "sinhf", "sinh"),
    ("cosh", "coshf", "cosh"),
    ("asinh", "asinhf", "asinh"),
    ("acosh", "acoshf", "acosh"),
    ("atanh", "atanhf", "atanh"),
];

/// Rounding functions, in the format of `FUNCTIONS`. For integers, they are the identity.
const ROUNDINGS: &[(&str, &str, &str)] = &[
    ("floor", "floorf", "floor"),
    ("ceil", "ceilf", "ceil"),
    ("round", "roundf", "round"),
    ("trunc", "truncf", "trunc"),
];

/// Binary operators that map to a C infix operator for every element type.
const INFIX: &[(&str, &str)] = &[
    ("add", "+"),
    ("nn.bias_add", "+"),
    ("subtract", "-"),
    ("multiply", "*"),
    ("equal", "=="),
    ("not_equal", "!="),
    ("less", "<"),
    ("less_equal", "<="),
    ("greater", ">"),
    ("greater_equal", ">="),
    ("bitwise_and", "&"),
    ("bitwise_or", "|"),
    ("bitwise_xor", "^"),
];

/// Elementwise operators that `expression` handles individually.
const OTHER_OPERATORS: &[&str] = &[
    "rsqrt",
    "nn.relu",
    "nn.leaky_relu",
    "nn.prelu",
    "nn.batch_norm",
    "abs",
    "negative",
    "sign",
    "logical_not",
    "isnan",
    "isinf",
    "isfinite",
    "clip",
    "cast",
    "divide",
    "floor_divide",
    "mod",
    "floor_mod",
    "power",
    "maximum",
    "minimum",
    "logical_and",
    "logical_or",
    "logical_xor",
    "where",
];

/// Returns the names of all elementwise operators.
pub fn names() -> impl Iterator<Item = &'static str> {
    let functions = FUNCTIONS.iter().chain(ROUNDINGS).map(|f| f.0);
    functions.chain(INFIX.iter().map(|f| f.0)).chain(OTHER_OPERATORS.iter().copied())
}

/// Returns true if each output element depends only on the input elements at the same index, up to broadcasting.
pub fn is_elementwise(name: &str) -> bool {
    names().any(|elementwise_name| elementwise_name == name) || quantized::is_elementwise(name)
}

/// Returns operand `i` as a view of the result's shape, broadcast or aligned with the attribute `axis`; `None` if the
/// shapes do not match.
pub fn operand_view(ir: &RegionIr<'_>, op: &Op<'_>, i: usize, view: &View) -> Option<View> {
    let out = ir.shape(op.outputs[0]);
    let is_along_axis = matches!((op.name, i), ("nn.bias_add" | "nn.prelu", 1) | ("nn.batch_norm", 1..))
        || (quantized::is_conversion(op.name) && i > 0 && view.shape.len() == 1 && view.shape[0] > 1);
    if !is_along_axis {
        return view.broadcast(out);
    }
    let default = if quantized::is_conversion(op.name) { -1 } else { 1 };
    let axis = op.attrs().axis("axis", default, out.len())?;
    let mut strides = vec![0; out.len()];
    if view.shape.len() != 1 || (view.shape[0] != out[axis] && view.shape[0] != 1) {
        return None;
    }
    strides[axis] = if view.shape[0] == 1 { 0 } else { view.strides[0] };
    Some(View { shape: out.to_vec(), strides, offset: view.offset })
}

/// Returns a C expression for an operator applied to `args`; `None` if the operator does not support the types.
pub fn expression(ir: &RegionIr<'_>, op: &Op<'_>, args: &[String]) -> Option<String> {
    let dtype = ir.val(*op.inputs.last()?).dtype;
    let dtype = computed(if op.name == "cast" { ir.val(op.inputs[0]).dtype } else { dtype });
    let out = computed(ir.val(op.outputs[0]).dtype);
    let is_float = matches!(dtype, DType::F32 | DType::F64);
    let is_single = dtype == DType::F32;
    let f = |name32: &str, name64: &str| if is_single { name32.to_owned() } else { name64.to_owned() };
    let (a, b) = (args.first()?, args.get(1).map_or("", String::as_str));
    c_type(dtype).and(c_type(out))?;
    if let Some((_, name32, name64)) = FUNCTIONS.iter().find(|entry| entry.0 == op.name) {
        return is_float.then(|| format!("{}({a})", f(name32, name64)));
    }
    if let Some((_, name32, name64)) = ROUNDINGS.iter().find(|entry| entry.0 == op.name) {
        return Some(if is_float { format!("{}({a})", f(name32, name64)) } else { a.clone() });
    }
    if let Some((_, sign)) = INFIX.iter().find(|entry| entry.0 == op.name) {
        let is_bitwise = matches!(*sign, "&" | "|" | "^");
        let is_arithmetic = matches!(*sign, "+" | "-" | "*");
        if is_bitwise && is_float {
            return None;
        }
        return Some(match dtype {
            DType::BOOL if is_arithmetic => format!("({a} {sign} {b}) != 0"),
            // Signed overflow wraps in Relay but is undefined in C, so the operation is unsigned.
            DType::I32 if is_arithmetic => format!("(int32_t)((uint32_t){a} {sign} (uint32_t){b})"),
            DType::I64 if is_arithmetic => format!("(int64_t)((uint64_t){a} {sign} (uint64_t){b})"),
            _ => format!("{a} {sign} {b}"),
        });
    }
    if quantized::is_elementwise(op.name) {
        return quantized::expression(ir, op, args);
    }
    let zero = literal(dtype, 0.0);
    let one = literal(dtype, 1.0);
    Some(match op.name {
        "rsqrt" if is_float => format!("{one} / {}({a})", f("sqrtf", "sqrt")),
        "nn.relu" => format!("{a} < {zero} ? {zero} : {a}"),
        "nn.leaky_relu" if is_float => {
            format!("{a} > {zero} ? {a} : {} * {a}", literal(dtype, op.attrs().float("alpha", 0.25)))
        }
        "nn.prelu" if is_float => format!("{a} > {zero} ? {a} : {b} * {a}"),
        "nn.batch_norm" if is_float => {
            let (beta, mean, variance) = (args.get(2)?, args.get(3)?, args.get(4)?);
            let epsilon = literal(dtype, op.attrs().float("epsilon", 1e-5));
            let scale = if op.attrs().flag("scale", true) { b } else { &one };
            let shift = if op.attrs().flag("center", true) { beta } else { &zero };
            let square_root = f("sqrtf", "sqrt");
            format!("({a} - {mean}) * ({scale} / {square_root}({variance} + {epsilon})) + {shift}")
        }
        "abs" if is_float => format!("{}({a})", f("fabsf", "fabs")),
        "abs" => format!("{a} < 0 ? -{a} : {a}"),
        "negative" if dtype != DType::BOOL => format!("-{a}"),
        "sign" => format!("{a} > {zero} ? {one} : {a} < {zero} ? -{one} : {a}"),
        "logical_not" => format!("{a} == {zero}"),
        "isnan" if is_float => format!("{a} != {a}"),
        "isnan" => "0".to_owned(),
        "isinf" if is_float => format!("{}({a}) == INFINITY", f("fabsf", "fabs")),
        "isfinite" if is_float => format!("{}({a}) < INFINITY", f("fabsf", "fabs")),
        "isinf" => "0".to_owned(),
        "isfinite" => "1".to_owned(),
        "clip" => {
            let (low, high) = (op.attrs().float("a_min", f64::NEG_INFINITY), op.attrs().float("a_max", f64::INFINITY));
            // A bound that no element exceeds is omitted.
            let is_unneeded = |bound: f64| {
                let (min, max) = integer_range(dtype);
                bound.is_infinite()
                    || (dtype.size() < 4 && (bound < min || bound > max || bound == min || bound == max))
            };
            let bounds = |name: &str, bound: f64| match (is_float, is_unneeded(bound)) {
                (false, true) => None,
                _ => Some(format!("{a} {name} {0} ? {0} : ", literal(dtype, bound))),
            };
            let low = bounds("<", low).unwrap_or_default();
            format!("{low}{}{a}", bounds(">", high).unwrap_or_default())
        }
        "cast" => cast(dtype, out, a)?,
        "divide" if is_float => format!("{a} / {b}"),
        "divide" if is_safe_division(ir, op) => format!("{a} / {b}"),
        "mod" if is_float => format!("{}({a}, {b})", f("fmodf", "fmod")),
        "mod" if is_safe_division(ir, op) => format!("{a} % {b}"),
        "floor_divide" if is_single => format!("byoc_floor_divide({a}, {b})"),
        "floor_divide" if is_float => format!("floor({a} / {b})"),
        "floor_divide" if is_safe_division(ir, op) => {
            format!("{a} / {b} - ({a} % {b} != 0 && ({a} % {b} < 0) != ({b} < 0))")
        }
        "floor_mod" if is_float => format!("{}({a}, {b})", f("byoc_floor_mod", "byoc_floor_mod64")),
        "floor_mod" if is_safe_division(ir, op) => {
            format!("{a} % {b} + ({a} % {b} != 0 && ({a} % {b} < 0) != ({b} < 0) ? {b} : 0)")
        }
        "power" if is_float => power(ir, op, dtype, a, b),
        "maximum" if is_float => format!("{a} != {a} || {a} > {b} ? {a} : {b}"),
        "minimum" if is_float => format!("{a} != {a} || {a} < {b} ? {a} : {b}"),
        "maximum" => format!("{a} > {b} ? {a} : {b}"),
        "minimum" => format!("{a} < {b} ? {a} : {b}"),
        "logical_and" => format!("({a} != {zero}) & ({b} != {zero})"),
        "logical_or" => format!("({a} != {zero}) | ({b} != {zero})"),
        "logical_xor" => format!("({a} != {zero}) != ({b} != {zero})"),
        "where" => format!("{a} ? {b} : {}", args.get(2)?),
        _ => return None,
    })
}

/// Returns the minimum and the maximum of an integer type.
fn integer_range(dtype: DType) -> (f64, f64) {
    let bits = i32::from(dtype.bits);
    if dtype.code == 1 { (0.0, 2f64.powi(bits) - 1.0) } else { (-(2f64.powi(bits - 1)), 2f64.powi(bits - 1) - 1.0) }
}

/// Returns true if an integer division cannot trap: the divisor is a constant that contains neither 0 nor -1.
fn is_safe_division(ir: &RegionIr<'_>, op: &Op<'_>) -> bool {
    let dtype = ir.val(op.inputs[0]).dtype;
    matches!(dtype, DType::I32 | DType::I64)
        && op
            .inputs
            .get(1)
            .and_then(|&divisor| ir.constant_ints(divisor))
            .is_some_and(|divisors| divisors.iter().all(|&d| d != 0 && d != -1))
}

/// Returns a C expression for `power`: a product if the exponent is the constant 2 or 3.
fn power(ir: &RegionIr<'_>, op: &Op<'_>, dtype: DType, a: &str, b: &str) -> String {
    let constant = ir.constant(op.inputs[1]).map(|(_, c)| c).filter(|c| c.shape().iter().product::<usize>() == 1);
    let exponent = constant.and_then(|c| floats(c).first().copied());
    match (exponent, dtype) {
        (Some(2.0), _) => format!("{a} * {a}"),
        (Some(3.0), _) => format!("{a} * {a} * {a}"),
        (_, DType::F32) => format!("powf({a}, {b})"),
        _ => format!("pow({a}, {b})"),
    }
}
