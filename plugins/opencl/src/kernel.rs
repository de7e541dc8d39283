//! Kernel text: pointers, index variables, loads and stores.

use crate::expression::{c_type, literal, vector};
use crate::program::Place;
use byoc_plugin_api::DType;
use byoc_plugin_support::view::View;
use std::fmt::Write;

/// Kernel text under construction. Equal kernels have equal text, because pointers are named in order of first use.
#[derive(Debug, Default)]
pub struct KernelText {
    pointers: Vec<(Place, DType, bool)>,
    /// Statements of the kernel body.
    pub code: String,
}

impl KernelText {
    /// Returns the name of the pointer parameter for a place; adds the parameter on first use.
    pub fn pointer(&mut self, place: Place, dtype: DType, is_written: bool) -> String {
        let index = self.pointers.iter().position(|pointer| pointer.0 == place).unwrap_or_else(|| {
            self.pointers.push((place, dtype, is_written));
            self.pointers.len() - 1
        });
        self.pointers[index].2 |= is_written;
        format!("p{index}")
    }

    /// Appends a line that is indented by `depth` levels.
    pub fn line(&mut self, depth: usize, text: &str) {
        let _ = writeln!(self.code, "{}{text}", "    ".repeat(depth));
    }

    /// Appends declarations of the index variables `names`, decoded from a row-major position in a tensor of shape
    /// `dims`.
    pub fn decode(&mut self, depth: usize, names: &[String], dims: &[i64], number: &str) {
        let mut inner_size: i64 = dims.iter().product();
        for (d, (name, &size)) in names.iter().zip(dims).enumerate() {
            inner_size /= size.max(1);
            let mut text = number.to_owned();
            if inner_size != 1 {
                let _ = write!(text, " / {inner_size}");
            }
            if d > 0 && size != 1 {
                let _ = write!(text, " % {size}");
            }
            if size != 1 {
                self.line(depth, &format!("const int {name} = {text};"));
            }
        }
    }

    /// Formats the parameter list, in argument order.
    pub fn parameters(&self) -> String {
        let parameter = |(index, (_, dtype, is_written)): (usize, &(Place, DType, bool))| {
            let constant = if *is_written { "" } else { "const " };
            format!("global {constant}{} *restrict p{index}", c_type(*dtype).unwrap_or("void"))
        };
        self.pointers.iter().enumerate().map(parameter).collect::<Vec<_>>().join(", ")
    }

    /// Returns the memory of each argument, in parameter order.
    pub fn arguments(&self) -> Vec<Place> {
        self.pointers.iter().map(|pointer| pointer.0).collect()
    }
}

/// Formats an element offset: indices times strides, plus the view's offset. Unit dimensions have no index
/// variable.
pub fn address(view: &View, indices: &[String]) -> String {
    let mut terms = Vec::new();
    for ((index, &stride), &size) in indices.iter().zip(&view.strides).zip(&view.shape) {
        match stride {
            0 => {}
            _ if size == 1 => {}
            1 => terms.push(index.clone()),
            _ => terms.push(format!("{index} * {stride}")),
        }
    }
    if view.offset != 0 || terms.is_empty() {
        terms.push(view.offset.to_string());
    }
    terms.join(" + ")
}

/// Position of a vector in the index space: consecutive columns of one row.
#[derive(Clone, Debug)]
pub struct Point {
    /// Index variable of each dimension except the last.
    pub indices: Vec<String>,
    /// Expression for the first column.
    pub column: String,
    /// Number of valid columns, if the vector may extend past the last column; `None` if all are valid.
    pub valid: Option<String>,
    /// Number of columns in the vector.
    pub width: i64,
}

impl Point {
    fn address(&self, view: &View) -> (String, i64) {
        let rank = view.shape.len();
        let mut indices = self.indices.clone();
        indices.push(self.column.clone());
        (address(view, &indices), if view.shape[rank - 1] == 1 { 0 } else { view.strides[rank - 1] })
    }

    /// Formats a load of one float16 element as float32.
    pub fn load_half(&self, pointer: &str, view: &View) -> String {
        format!("vload_half({}, {pointer})", self.address(view).0)
    }

    /// Formats a store of one float32 element as float16.
    pub fn store_half(&self, value: &str, pointer: &str, view: &View) -> String {
        format!("vstore_half_rte({value}, {}, {pointer});", self.address(view).0)
    }

    /// Formats a load of the point's columns from a view.
    pub fn load(&self, pointer: &str, view: &View) -> String {
        let (address, stride) = self.address(view);
        let count = self.valid.clone().unwrap_or_else(|| self.width.to_string());
        match (self.width, stride) {
            (1, _) => format!("{pointer}[{address}]"),
            (width, 0) => format!("(float{width})({pointer}[{address}])"),
            (width, 1) if self.valid.is_none() => format!("vload{width}(0, {pointer} + {address})"),
            (width, stride) => format!("byoc_load{width}({pointer} + {address}, {stride}, {count})"),
        }
    }

    /// Formats a store of the point's columns to a view.
    pub fn store(&self, value: &str, pointer: &str, view: &View) -> String {
        let (address, stride) = self.address(view);
        let count = self.valid.clone().unwrap_or_else(|| self.width.to_string());
        match (self.width, stride) {
            (1, _) => format!("{pointer}[{address}] = {value};"),
            (width, 1) if self.valid.is_none() => format!("vstore{width}({value}, 0, {pointer} + {address});"),
            (width, stride) => format!("byoc_store{width}({value}, {pointer} + {address}, {stride}, {count});"),
        }
    }
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
fn polynomial(coefficients: &[f64], x: &str, width: i64) -> String {
    let mut terms = coefficients.iter().rev().map(|&c| literal(c, width));
    let first_term = terms.next().unwrap_or_default();
    terms.fold(first_term, |sum, term| format!("({sum} * {x} + {term})"))
}

/// Formats the helper functions for vectors of `width` elements. Returns the name and the definition of each.
pub fn functions(width: i64) -> Vec<(String, String)> {
    let ty = vector(width);
    let (zero, one) = (literal(0.0, width), literal(1.0, width));
    // The exponential of a negative number does not overflow.
    let sigmoid = format!(
        "{ty} byoc_sigmoid{width}({ty} x) {{\n    \
         const {ty} e = exp(-fabs(x));\n    \
         return (x < {zero} ? e : {one}) / ({one} + e);\n}}\n"
    );
    let erf = format!(
        "/* Two polynomials, below and above 1. */\n\
         {ty} byoc_erf{width}({ty} x) {{\n    \
         const {ty} a = fabs(x), s = x * x;\n    \
         const {ty} t = a > {four} ? {four} : a;\n    \
         const {ty} small = x + x * {low};\n    \
         const {ty} large = copysign({one} - exp({high}), x);\n    \
         return a < {one} ? small : (a >= {one} ? large : x + {zero});\n}}\n",
        four = literal(4.0, width),
        low = polynomial(&ERF_SMALL, "s", width),
        high = polynomial(&ERF_LARGE, "t", width),
    );
    let load = format!(
        "/* Loads the first count elements of a strided vector; the others are zeros. */\n\
         {ty} byoc_load{width}(global const float *p, int stride, int count) {{\n    \
         float t[{width}];\n    \
         for (int i = 0; i < {width}; ++i)\n        t[i] = i < count ? p[i * stride] : 0.0f;\n    \
         return vload{width}(0, t);\n}}\n"
    );
    let store = format!(
        "void byoc_store{width}({ty} x, global float *p, int stride, int count) {{\n    \
         float t[{width}];\n    vstore{width}(x, 0, t);\n    \
         for (int i = 0; i < {width}; ++i)\n        if (i < count)\n            p[i * stride] = t[i];\n}}\n"
    );
    let vectors = if width == 1 { String::new() } else { width.to_string() };
    let rounding_function = format!(
        "/* Rounds to the nearest float16 value. */\n\
         {ty} byoc_half{width}({ty} x) {{\n    \
         ushort t[{width}];\n    \
         vstore_half{vectors}_rte(x, 0, (half *)t);\n    \
         return vload_half{vectors}(0, (half *)t);\n}}\n"
    );
    let texts = [("sigmoid", sigmoid), ("erf", erf), ("load", load), ("store", store), ("half", rounding_function)];
    texts.into_iter().map(|(name, text)| (format!("byoc_{name}{width}"), text)).collect()
}
