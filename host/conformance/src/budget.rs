//! Error budgets: the permitted deviation of a result from the reference, per operator and element type.
//!
//! The reference accumulates in binary64 and rounds once. A backend may compute single operations in the element type,
//! but must accumulate 16-bit floats in binary32 or wider. Each operator has an [`ErrorModel`]:
//!
//! * **Exact**: data movement, comparisons, selections, and all integer operations. Results match bit for bit, except
//!   that NaN equals NaN and 0 equals -0. Subnormal numbers must be preserved: flushing them to zero is an error.
//! * **Ulps**: elementwise functions, with a bound in units in the last place. IEEE 754 requires `+ - * /` and the
//!   square root to be correctly rounded; for every other function, the operator's definition states the bound.
//! * **Sum**: `gamma(n) * sum |terms|` with `gamma(n) = n * u / (1 - n * u)`, where `u` is the unit roundoff. The bound
//!   holds for every order of summation (N. J. Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., SIAM
//!   2002, sections 3.1 and 4.2). The smallest subnormal number is added per term, because each product may underflow
//!   (ibid., equation 2.8).
//! * **Stable**: normalizations and other compositions: the error of a backward stable computation, that is, the change
//!   of the result under a relative change of every input by `gamma(n + 8)` (ibid., section 1.5), estimated by
//!   perturbing the inputs.
//! * **Moments**: normalizations by the mean of the same elements: the bound of **Stable**, plus `gamma(n + 2)` times
//!   the change of the result per relative error in the mean. For example, two elements are equally far from their
//!   exact mean, so perturbing them does not change the result, whereas rounding the mean does.
//! * **Logarithm**: `nn.log_softmax`, whose logarithm is near 0 if the sum is near 1: the bound of **Stable** plus
//!   `gamma(n + 8) * (1 + |y|)` (P. Blanchard, D. J. Higham and N. J. Higham, Accurately computing the log-sum-exp and
//!   softmax functions, IMA J. Numer. Anal. 41, 2021).
//! * **Interpolation**: weighted sums whose weights are computed from rounded coordinates: `16 * u * size * max |x|`,
//!   where `size` is the largest dimension.
//!
//! Errors propagate from one operator to the next: see [`super::reference`].

use byoc_ir::op::facts::ErrorModel;
use byoc_ir::op::{OpDef, Params};
use byoc_ir::tensor::DType;

/// Returns the error model of a call.
pub fn error_model(def: &OpDef, params: &Params<'_>) -> ErrorModel {
    match def.properties.error {
        ErrorModel::Interpolation if params.string("method") == "nearest_neighbor" => ErrorModel::Exact,
        rule => rule,
    }
}

/// Returns the number of terms accumulated per result element; 1 for operators that neither sum nor reduce.
pub fn term_count(def: &OpDef, params: &Params<'_>, shapes: &[&[usize]], result: &[usize]) -> usize {
    match def.properties.error {
        ErrorModel::Sum(terms)
        | ErrorModel::Stable(terms)
        | ErrorModel::Moments(terms, _)
        | ErrorModel::Logarithm(terms) => terms(params, shapes, result),
        ErrorModel::Exact | ErrorModel::Ulps(_) | ErrorModel::Interpolation => 1,
    }
}

/// Returns the unit roundoff of the arithmetic that a backend may use.
pub fn roundoff(dtype: DType) -> f64 {
    if dtype == DType::F64 { f64::powi(2.0, -53) } else { f64::powi(2.0, -24) }
}

/// Computes `n * u / (1 - n * u)`, where `u` is the unit roundoff.
pub fn gamma(n: usize, dtype: DType) -> f64 {
    let nu = n as f64 * roundoff(dtype);
    nu / (1.0 - nu).max(f64::EPSILON)
}

/// Returns the largest finite number of a floating-point type.
pub fn largest_finite(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => f64::MAX,
        DType::F16 => 65504.0,
        DType::BF16 => f64::from(half::bf16::MAX),
        _ => f64::from(f32::MAX),
    }
}

/// Returns the unit in the last place of `value` in `dtype`; 0 for non-float types and non-finite values.
pub fn ulp(value: f64, dtype: DType) -> f64 {
    let (digits, min_normal) = match dtype {
        DType::F64 => (52, -1022),
        DType::F32 => (23, -126),
        DType::F16 => (10, -14),
        DType::BF16 => (7, -126),
        _ => return 0.0,
    };
    if !value.is_finite() {
        return 0.0;
    }
    let exponent = if value == 0.0 { min_normal } else { (value.abs().log2().floor() as i32).max(min_normal) };
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
}
