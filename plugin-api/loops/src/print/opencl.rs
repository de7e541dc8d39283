//! OpenCL C, for devices whose driver compiles the source.
//!
//! A vector is a type of the language, `float4`; it is read and written by `vload4` and `vstore4`, or element by element
//! where the elements lie apart or some are missing. Pointers name their memory: `global` for the parameters, `local` for
//! what a work-group shares. float16 is a type of memory only, and a driver need not support it as a type of values. The
//! functions that kernels call are made here too, each in the widths that occur.

use super::c_types::int_literal;
use super::kernel::KernelDialect;
use super::{Dialect, Lanes};
use crate::nest::{Memory, Position};
use crate::operators::elementwise::ROUND_TO_HALF;
use crate::types::computed;
use byoc_plugin_api::DType;

/// OpenCL C.
pub struct OpenCl;

/// Functions that differ from their Relay name. Those with the prefix `byoc_` are defined in the source, once per vector
/// width, which is appended to the name.
const FUNCTIONS: &[(&str, &str)] = &[
    ("erf", "byoc_erf"),
    ("sigmoid", "byoc_sigmoid"),
    (ROUND_TO_HALF, "byoc_half"),
    ("abs", "fabs"),
    ("mod", "fmod"),
    ("power", "pow"),
    ("round_to_even", "rint"),
];

impl Dialect for OpenCl {
    fn index_type(&self) -> &'static str {
        "int"
    }

    fn value_type(&self, dtype: DType) -> &'static str {
        match computed(dtype) {
            DType::F32 => "float",
            DType::I8 => "char",
            DType::I32 => "int",
            DType::I64 => "long",
            DType::U8 | DType::BOOL => "uchar",
            DType::U32 => "uint",
            DType::U64 => "ulong",
            _ => "void",
        }
    }

    fn storage_type(&self, dtype: DType) -> &'static str {
        if dtype == DType::F16 { "half" } else { self.value_type(dtype) }
    }

    fn vector_type(&self, width: i64) -> String {
        if width == 1 { "float".to_owned() } else { format!("float{width}") }
    }

    fn integer(&self, dtype: DType, value: i128) -> String {
        match dtype {
            DType::I64 if value == i128::from(i64::MIN) => "LONG_MIN".to_owned(),
            DType::I32 if value == i128::from(i32::MIN) => "INT_MIN".to_owned(),
            DType::I64 => format!("{value}L"),
            DType::U64 => format!("{value}UL"),
            _ => int_literal(dtype, value),
        }
    }

    fn convert(&self, from: DType, to: DType, value: &str) -> String {
        let (from, to) = (computed(from), computed(to));
        let ty = self.value_type(to);
        if from == to {
            value.to_owned()
        } else if to == DType::BOOL {
            format!("{value} != 0")
        } else if from == DType::F32 {
            format!("{value} != {value} ? ({ty})0 : convert_{ty}_sat_rtz({value})")
        } else {
            format!("({ty}){value}")
        }
    }

    fn math(&self, name: &str, _: DType, width: i64, arguments: &[String]) -> String {
        let function = FUNCTIONS.iter().find(|row| row.0 == name).map_or(name, |row| row.1);
        let suffix = if function.starts_with("byoc_") { width.to_string() } else { String::new() };
        format!("{function}{suffix}({})", arguments.join(", "))
    }

    fn load(&self, dtype: DType, address: &str, index: &str) -> String {
        if dtype == DType::F16 { format!("vload_half({index}, {address})") } else { format!("{address}[{index}]") }
    }

    fn store(&self, dtype: DType, address: &str, index: &str, value: &str) -> String {
        match dtype {
            DType::F16 => format!("vstore_half_rte({value}, {index}, {address});"),
            _ => format!("{address}[{index}] = {value};"),
        }
    }

    fn load_vector(&self, width: i64, address: &str, index: &str, stride: i64, valid: Option<&str>) -> String {
        match (stride, valid) {
            (1, None) => format!("vload{width}(0, {address} + {index})"),
            _ => {
                let width_text = width.to_string();
                format!("byoc_load{width}({address} + {index}, {stride}, {})", valid.unwrap_or(&width_text))
            }
        }
    }

    fn store_vector(&self, lanes: &Lanes, address: &str, index: &str, stride: i64, value: &str) -> String {
        let width = lanes.width;
        match (stride, &lanes.valid) {
            (1, None) => format!("vstore{width}({value}, 0, {address} + {index});"),
            (_, valid) => {
                let width_text = width.to_string();
                let count = valid.as_ref().unwrap_or(&width_text);
                format!("byoc_store{width}({value}, {address} + {index}, {stride}, {count});")
            }
        }
    }

    fn position(&self, position: Position, dim: u8) -> String {
        match position {
            Position::Global => format!("get_global_id({dim})"),
            Position::Local => format!("get_local_id({dim})"),
            Position::Group => format!("get_group_id({dim})"),
        }
    }

    fn barrier(&self) -> &'static str {
        "barrier(CLK_LOCAL_MEM_FENCE);"
    }

    fn simd(&self) -> Option<&'static str> {
        None
    }

    fn array(&self, is_shared: bool) -> (&'static str, &'static str) {
        (if is_shared { "local " } else { "" }, "")
    }

    fn pointer(&self, memory: &Memory) -> &'static str {
        if matches!(memory, Memory::Place(_)) { "global " } else { "" }
    }
}

impl KernelDialect for OpenCl {
    fn parameter(&self, constant: &str, ty: &str, name: &str) -> String {
        format!("global {constant}{ty} *restrict {name}")
    }
}

/// Functions that do not depend on a vector width, each with its name.
const ROW_FUNCTIONS: &[(&str, &str)] = &[
    (
        "byoc_is_below",
        "/* 0 <= x < size */\nint byoc_is_below(int x, int size) {\n    return (uint)x < (uint)size;\n}\n",
    ),
    (
        "byoc_first_tap",
        "/* The first tap k >= 0 for which base + k * step >= 0. */\n\
         int byoc_first_tap(int base, int step) {\n    return base < 0 ? (-base + step - 1) / step : 0;\n}\n",
    ),
    (
        "byoc_end_tap",
        "/* The end of the taps k < n for which base + k * step < size; at least the first tap. */\n\
         int byoc_end_tap(int base, int step, int size, int n) {\n    \
         const int end = base < size ? min((size - base + step - 1) / step, n) : 0;\n    \
         return max(end, base < 0 ? (-base + step - 1) / step : 0);\n}\n",
    ),
];

/// Reductions of a contiguous row in 16 lanes: name, further parameter, first value, term, combination of two values.
const REDUCTIONS: &[(&str, &str, &str, &str, &str)] = &[
    ("byoc_row_sum", "", "0.0f", "x", "a + b"),
    ("byoc_row_prod", "", "1.0f", "x", "a * b"),
    ("byoc_row_max", "", "-INFINITY", "x", "((a != a) | (a > b)) ? a : b"),
    ("byoc_row_min", "", "INFINITY", "x", "((a != a) | (a < b)) ? a : b"),
    ("byoc_row_squares", ", float mean", "0.0f", "(x - mean) * (x - mean)", "a + b"),
    ("byoc_row_exponentials", ", float top", "0.0f", "exp(x - top)", "a + b"),
];

/// Returns the definition of a reduction.
fn reduction((name, parameter, start, term, combine): (&str, &str, &str, &str, &str)) -> String {
    let mut halves = String::new();
    let (mut source, mut width) = ("s".to_owned(), 16);
    while width > 1 {
        width /= 2;
        let ty = if width == 1 { "float".to_owned() } else { format!("float{width}") };
        let (low, high) = if width == 1 { ("x", "y") } else { ("lo", "hi") };
        let target = format!("s{width}");
        halves.push_str(&format!(
            "    {ty} {target};\n    {{\n        const {ty} a = {source}.{low}, b = {source}.{high};\n        \
             {target} = {combine};\n    }}\n"
        ));
        source = target;
    }
    format!(
        "float {name}(global const float *row, int n{parameter}) {{\n    \
         float16 s = (float16)({start});\n    int i = 0;\n    \
         for (; i + 16 <= n; i += 16) {{\n        const float16 x = vload16(0, row + i);\n        \
         const float16 a = s, b = {term};\n        s = {combine};\n    }}\n{halves}    \
         for (; i < n; ++i) {{\n        const float x = row[i];\n        const float a = {source}, b = {term};\n        \
         {source} = {combine};\n    }}\n    return {source};\n}}\n"
    )
}

/// Coefficients of `erf(x) / x - 1` in powers of `x * x`, for `|x| < 1`; a Chebyshev fit.
const ERF_SMALL: [f64; 8] = [
    0.128_379_17,
    -0.376_126_38,
    0.112_837_83,
    -0.026_865_438,
    0.005_221_053_5,
    -0.000_848_439_64,
    0.000_112_682_54,
    -9.673_59e-6,
];

/// Coefficients of `log(1 - erf(x))` in powers of `x`, for `x` from 1 to 4; a Chebyshev fit.
const ERF_LARGE: [f64; 9] = [
    0.000_296_073_47,
    -1.130_136_1,
    -0.631_992_2,
    -0.109_923_586,
    0.026_332_093,
    -0.004_728_193,
    0.000_590_087_7,
    -4.525_934_5e-5,
    1.596_663_8e-6,
];

/// Formats a polynomial in Horner form.
fn polynomial(coefficients: &[f64], x: &str) -> String {
    let mut terms = coefficients.iter().rev().map(|&c| format!("{:?}f", c as f32));
    let first_term = terms.next().unwrap_or_default();
    terms.fold(first_term, |sum, term| format!("({sum} * {x} + {term})"))
}

/// Returns the functions for vectors of `width` elements: the name and the definition of each.
fn vector_functions(width: i64) -> Vec<(String, String)> {
    let ty = if width == 1 { "float".to_owned() } else { format!("float{width}") };
    let number = |text: &str| format!("({ty})({text})");
    let (zero, one, four) = (number("0.0f"), number("1.0f"), number("4.0f"));
    // The exponential of a negative number does not overflow.
    let sigmoid = format!(
        "{ty} byoc_sigmoid{width}({ty} x) {{\n    const {ty} e = exp(-fabs(x));\n    \
         return (x < {zero} ? e : {one}) / ({one} + e);\n}}\n"
    );
    let erf = format!(
        "/* Two polynomials, below and above 1. */\n{ty} byoc_erf{width}({ty} x) {{\n    \
         const {ty} a = fabs(x), s = x * x;\n    const {ty} t = a > {four} ? {four} : a;\n    \
         const {ty} small = x + x * {};\n    const {ty} large = copysign({one} - exp({}), x);\n    \
         return a < {one} ? small : (a >= {one} ? large : x + {zero});\n}}\n",
        polynomial(&ERF_SMALL, "s"),
        polynomial(&ERF_LARGE, "t"),
    );
    let load = format!(
        "/* Loads the first count elements of a strided vector; the others are zeros. */\n\
         {ty} byoc_load{width}(global const float *p, int stride, int count) {{\n    float t[{width}];\n    \
         for (int i = 0; i < {width}; ++i)\n        t[i] = i < count ? p[i * stride] : 0.0f;\n    \
         return vload{width}(0, t);\n}}\n"
    );
    let store = format!(
        "void byoc_store{width}({ty} x, global float *p, int stride, int count) {{\n    float t[{width}];\n    \
         vstore{width}(x, 0, t);\n    for (int i = 0; i < {width}; ++i)\n        \
         if (i < count)\n            p[i * stride] = t[i];\n}}\n"
    );
    let vectors = if width == 1 { String::new() } else { width.to_string() };
    let half = format!(
        "/* Rounds to the nearest float16 value. */\n{ty} byoc_half{width}({ty} x) {{\n    ushort t[{width}];\n    \
         vstore_half{vectors}_rte(x, 0, (half *)t);\n    return vload_half{vectors}(0, (half *)t);\n}}\n"
    );
    let texts = [("sigmoid", sigmoid), ("erf", erf), ("load", load), ("store", store), ("half", half)];
    texts.into_iter().map(|(name, text)| (format!("byoc_{name}{width}"), text)).collect()
}

/// Returns the definitions of the functions that `kernels` call.
pub fn prelude(kernels: &[String]) -> String {
    let mut text = String::new();
    let mut define = |name: &str, definition: &str| {
        let call = format!("{name}(");
        if kernels.iter().any(|kernel| kernel.contains(&call)) {
            text.push_str(definition);
            text.push('\n');
        }
    };
    ROW_FUNCTIONS.iter().for_each(|(name, definition)| define(name, definition));
    REDUCTIONS.iter().for_each(|row| define(row.0, &reduction(*row)));
    for (name, definition) in [1, 2, 4, 8, 16].into_iter().flat_map(vector_functions) {
        define(&name, &definition);
    }
    text
}
