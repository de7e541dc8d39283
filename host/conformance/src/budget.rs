//! Error budgets: the permitted distance of a result from the reference, by operator and element type.
//!
//! The reference sums in binary64 and rounds once. A backend may use the arithmetic of the element type for single
//! operations, and binary32 for the sums of 16-bit floats; nothing narrower. Each operator has a [`Rule`]:
//!
//! * **Exact**: data movement, comparisons, selections, and everything on integers. Bit for bit, except that NaN equals
//!   NaN and 0 equals -0. Subnormal numbers are numbers: flushing them is an error here.
//! * **Ulps**: functions of single elements, in units in the last place. IEEE 754 rounds `+ - * /` and the square root
//!   correctly; for the others these are the bounds that OpenCL asks of every implementation (The OpenCL C Specification
//!   3.0, section "Relative Error as ULPs", full profile).
//! * **Sum**: `gamma(n) * sum |terms|` with `gamma(n) = n u / (1 - n u)`, which holds for every order of summation
//!   (N. J. Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., SIAM 2002, sections 3.1 and 4.2), and one
//!   least subnormal number for every term, whose product may underflow (ibid., equation 2.8).
//! * **Stable**: normalizations and other compositions: the error of a backward stable computation, that is, the change
//!   of the result when every input changes by `gamma(n + 8)` of itself (ibid., section 1.5), found by perturbing the
//!   inputs.
//! * **Logarithm**: `nn.log_softmax`, whose sum near 1 has a logarithm near 0: `gamma(n + 8) (1 + |y|)` on top of that
//!   (P. Blanchard, D. J. Higham and N. J. Higham, Accurately computing the log-sum-exp and softmax functions, IMA J.
//!   Numer. Anal. 41, 2021).
//! * **Weights**: interpolation, whose weights come from rounded coordinates: `16 u * size * max |x|`.
//!
//! Errors propagate from one operator to the next: see [`super::reference`].

use byoc_ir::op::{OpDef, Params};
use byoc_ir::tensor::DType;

/// Error bound of an operator's results.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rule {
    /// Bit for bit.
    Exact,
    /// Units in the last place.
    Ulps(f64),
    /// Proportional to the sum of the magnitudes of the terms.
    Sum,
    /// Proportional to the sensitivity of the result to its inputs.
    Stable,
    /// Same as `Stable`, plus a bound proportional to 1 plus the result: the logarithm of a sum near 1.
    Logarithm,
    /// Proportional to the largest input and the size of the largest axis.
    Weights,
}

/// Functions of single elements that are not exact, and their bounds in units in the last place.
const ULPS: &[(&str, f64)] = &[
    ("add", 1.0),
    ("subtract", 1.0),
    ("multiply", 1.0),
    ("divide", 2.5),
    ("nn.bias_add", 1.0),
    ("qnn.dequantize", 1.0),
    ("nn.leaky_relu", 1.0),
    ("nn.prelu", 1.0),
    ("sqrt", 3.0),
    ("rsqrt", 3.0),
    ("exp", 3.0),
    ("log", 3.0),
    ("log2", 3.0),
    ("log10", 3.0),
    ("sin", 4.0),
    ("cos", 4.0),
    ("tan", 5.0),
    ("asin", 4.0),
    ("acos", 4.0),
    ("atan", 5.0),
    ("sinh", 4.0),
    ("cosh", 4.0),
    ("tanh", 5.0),
    ("asinh", 4.0),
    ("acosh", 4.0),
    ("atanh", 5.0),
    ("erf", 16.0),
    ("power", 16.0),
    // 1 / (1 + exp(-x)): the exponential, an addition, a division.
    ("sigmoid", 8.0),
];

const SUMS: &[&str] = &[
    "nn.conv1d",
    "nn.conv2d",
    "nn.conv3d",
    "nn.conv1d_transpose",
    "nn.conv2d_transpose",
    "nn.conv3d_transpose",
    "nn.dense",
    "nn.matmul",
    "nn.batch_matmul",
    "nn.avg_pool1d",
    "nn.avg_pool2d",
    "nn.avg_pool3d",
    "nn.global_avg_pool2d",
    "nn.adaptive_avg_pool1d",
    "nn.adaptive_avg_pool2d",
    "nn.adaptive_avg_pool3d",
    "sum",
    "mean",
    "cumsum",
    "scatter_nd",
    "scatter_elements",
];

const STABLE: &[&str] = &[
    "nn.softmax",
    "nn.batch_norm",
    "nn.layer_norm",
    "nn.instance_norm",
    "nn.group_norm",
    "nn.l2_normalize",
    "nn.lrn",
    "variance",
    "vision.multibox_prior",
    "vision.multibox_transform_loc",
    "prod",
    "cumprod",
    "mod",
    "floor_mod",
    "floor_divide",
];

/// Returns the rule of a call.
pub fn rule(def: &OpDef, params: &Params<'_>) -> Rule {
    if let Some((_, ulps)) = ULPS.iter().find(|(name, _)| *name == def.name) {
        return Rule::Ulps(*ulps);
    }
    if SUMS.contains(&def.name) {
        return Rule::Sum;
    }
    if def.name == "nn.log_softmax" {
        return Rule::Logarithm;
    }
    if STABLE.contains(&def.name) {
        return Rule::Stable;
    }
    let interpolates = def.name.ends_with("image.resize2d") || def.name.ends_with("nn.upsampling");
    match interpolates && params.string("method") != "nearest_neighbor" {
        true => Rule::Weights,
        false => Rule::Exact,
    }
}

/// Returns the number of terms of an element of the result, for operators that sum or reduce.
pub fn terms(def: &OpDef, params: &Params<'_>, shapes: &[&[usize]], result: &[usize]) -> usize {
    let input: usize = shapes.first().map_or(0, |s| s.iter().product());
    let output: usize = result.iter().product();
    let data = shapes.first().copied().unwrap_or_default();
    let weight: usize = shapes.get(1).map_or(0, |s| s.iter().product());
    let along = |axis: i64| data.get(axis.rem_euclid(data.len().max(1) as i64) as usize).copied().unwrap_or(1);
    match def.name {
        name if name.starts_with("nn.conv") => weight,
        "nn.dense" | "nn.matmul" | "nn.batch_matmul" => data.iter().copied().max().unwrap_or(1),
        name if name.contains("avg_pool") => {
            (input / output.max(1)).max(params.ints("pool_size").iter().product::<i64>() as usize)
        }
        "nn.softmax" | "nn.log_softmax" | "nn.layer_norm" | "cumsum" | "cumprod" => along(params.int("axis")),
        "nn.instance_norm" | "nn.group_norm" => data.iter().skip(1).product(),
        "nn.l2_normalize" => params.ints("axis").iter().map(|&axis| along(axis)).product(),
        "nn.lrn" => params.int("size").max(1) as usize,
        "scatter_nd" | "scatter_elements" => shapes.get(2).map_or(1, |s| s.iter().product()),
        _ => input / output.max(1),
    }
}

/// Returns the unit roundoff of the arithmetic that a backend may use.
pub fn roundoff(dtype: DType) -> f64 {
    if dtype == DType::F64 { f64::powi(2.0, -53) } else { f64::powi(2.0, -24) }
}

/// Computes `n u / (1 - n u)`.
pub fn gamma(n: usize, dtype: DType) -> f64 {
    let nu = n as f64 * roundoff(dtype);
    nu / (1.0 - nu).max(f64::EPSILON)
}

/// Returns the distance from `value` to the next number of a float type; 0 for other types and non-finite values.
pub fn ulp(value: f64, dtype: DType) -> f64 {
    let (digits, least) = match dtype {
        DType::F64 => (52, -1022),
        DType::F32 => (23, -126),
        DType::F16 => (10, -14),
        DType::BF16 => (7, -126),
        _ => return 0.0,
    };
    if !value.is_finite() {
        return 0.0;
    }
    let exponent = if value == 0.0 { least } else { (value.abs().log2().floor() as i32).max(least) };
    f64::powi(2.0, exponent - digits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn computes_units_in_last_place() {
        assert_eq!(ulp(1.0, DType::F32), f64::from(f32::EPSILON));
        assert_eq!(ulp(-3.0, DType::F32), 2.0 * f64::from(f32::EPSILON));
        assert_eq!(ulp(0.0, DType::F32), f64::from(f32::from_bits(1)));
        assert_eq!(ulp(1.0, DType::F64), f64::EPSILON);
        assert_eq!(ulp(1.0, DType::I32), 0.0);
        assert_eq!(ulp(f64::INFINITY, DType::F32), 0.0);
    }

    #[test]
    fn tables_name_existing_operators() {
        let exist = |name: &&str| byoc_ir::op::lookup(name).is_some();
        let names = ULPS.iter().map(|(name, _)| *name).chain(SUMS.iter().copied()).chain(STABLE.iter().copied());
        let missing: Vec<&str> = names.filter(|name| !exist(name)).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }
}
