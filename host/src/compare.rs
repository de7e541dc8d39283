//! Comparison of model outputs with recorded outputs.

use byoc_ir::tensor::{Tensor, TensorView};
use byoc_runtime::value::PortValue;

/// Tolerance of a comparison. Shapes and element types must be equal, and so must the elements of integer and boolean
/// tensors. NaN equals NaN.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Tolerance {
    /// NumPy's allclose: |a - b| <= atol + rtol * |b| for each element.
    AllClose {
        /// Tolerance relative to the recorded element.
        rtol: f64,
        /// Absolute tolerance.
        atol: f64,
    },
    /// Bound on max|a - b| / max|b| over the entire tensor. Suitable for model outputs, whose small
    /// elements contain the rounding errors of large elements.
    MaxRelative(f64),
}

/// Result of comparing an output with a recorded output.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// Largest |a - b|; infinite if two elements differ and one of them is NaN or infinite.
    pub max_abs_err: f64,
    /// Largest |a - b|, divided by the largest finite |b|.
    pub max_rel_err: f64,
    /// Description of the difference; `None` if it is within the tolerance.
    pub difference: Option<String>,
}

/// Compares `actual` with the recorded tensor `expected`.
pub fn compare(actual: &Tensor, expected: &Tensor, tolerance: Tolerance) -> Comparison {
    let difference_of = |difference: String| Comparison {
        max_abs_err: f64::INFINITY,
        max_rel_err: f64::INFINITY,
        difference: Some(difference),
    };
    if actual.dtype() != expected.dtype() {
        return difference_of(format!("expected element type {1}, found {0}", actual.dtype(), expected.dtype()));
    }
    if actual.shape() != expected.shape() {
        return difference_of(format!("expected shape {1:?}, found {0:?}", actual.shape(), expected.shape()));
    }
    if !actual.dtype().is_float() && !actual.dtype().is_small_float() {
        return integers(actual, expected);
    }
    // Floats of at most 8 bits are compared exactly, because one unit in the last place exceeds any reasonable
    // tolerance.
    let tolerance = if actual.dtype().is_small_float() { Tolerance::MaxRelative(0.0) } else { tolerance };
    let (a, b) = (actual.view(), expected.view());
    let scale = b.f64s().filter(|v| v.is_finite()).fold(0.0f64, |m, v| m.max(v.abs()));
    let mut max_abs_err = 0.0f64;
    let mut worst_element = None;
    let mut max_excess = 0.0f64;
    for (i, (a, b)) in a.f64s().zip(b.f64s()).enumerate() {
        let error = if a == b || (a.is_nan() && b.is_nan()) {
            0.0
        } else if a.is_finite() && b.is_finite() {
            (a - b).abs()
        } else {
            f64::INFINITY
        };
        max_abs_err = max_abs_err.max(error);
        let bound = match tolerance {
            // For NaN and infinities, only an equal value is within the tolerance.
            Tolerance::AllClose { .. } if !b.is_finite() => 0.0,
            Tolerance::AllClose { rtol, atol } => atol + rtol * b.abs(),
            Tolerance::MaxRelative(limit) => limit * scale,
        };
        if error > bound && error - bound >= max_excess {
            max_excess = error - bound;
            worst_element = Some((i, a, b));
        }
    }
    let max_rel_err = if max_abs_err == 0.0 { 0.0 } else { max_abs_err / scale };
    let difference =
        worst_element.map(|(i, a, b)| format!("element {i}: expected {b}, found {a} (max_rel_err {max_rel_err:.2e})"));
    Comparison { max_abs_err, max_rel_err, difference }
}

/// Compares `actual` with the recorded value `expected`.
pub fn compare_values(actual: &PortValue, expected: &PortValue, tolerance: Tolerance) -> Comparison {
    const SAME: Comparison = Comparison { max_abs_err: 0.0, max_rel_err: 0.0, difference: None };
    let difference_of = |difference: String| Comparison {
        max_abs_err: f64::INFINITY,
        max_rel_err: f64::INFINITY,
        difference: Some(difference),
    };
    match (actual, expected) {
        (PortValue::Tensor(actual), PortValue::Tensor(expected))
        | (PortValue::Optional(Some(actual)), PortValue::Optional(Some(expected))) => {
            compare(actual, expected, tolerance)
        }
        (PortValue::Optional(None), PortValue::Optional(None))
        | (PortValue::OptionalSequence(None), PortValue::OptionalSequence(None)) => SAME,
        (PortValue::Strings(actual), PortValue::Strings(expected)) if actual.shape == expected.shape => {
            let mut pairs = actual.strings.iter().zip(&expected.strings).enumerate();
            match pairs.find(|(_, (actual, expected))| actual != expected) {
                Some((i, (actual, expected))) => {
                    difference_of(format!("element {i}: expected \"{expected}\", found \"{actual}\""))
                }
                None => SAME,
            }
        }
        (PortValue::Sequence(actual), PortValue::Sequence(expected))
        | (PortValue::OptionalSequence(Some(actual)), PortValue::OptionalSequence(Some(expected)))
            if actual.len() == expected.len() =>
        {
            let elements = actual.iter().zip(expected).enumerate();
            elements.fold(SAME, |sum, (i, (actual, expected))| {
                let element = compare_values(actual, expected, tolerance);
                Comparison {
                    max_abs_err: sum.max_abs_err.max(element.max_abs_err),
                    max_rel_err: sum.max_rel_err.max(element.max_rel_err),
                    difference: sum.difference.or(element.difference.map(|text| format!("position {i}: {text}"))),
                }
            })
        }
        (PortValue::Maps(actual_keys, actual), PortValue::Maps(expected_keys, expected))
            if actual_keys == expected_keys =>
        {
            compare(actual, expected, tolerance)
        }
        _ => difference_of(format!("expected {}, found {}", expected.type_text(), actual.type_text())),
    }
}

fn integers(actual: &Tensor, expected: &Tensor) -> Comparison {
    let (a, b) = (actual.view(), expected.view());
    // Bytes are compared because different 64-bit integers may convert to the same binary64 value.
    let size = actual.dtype().size();
    let first_difference = actual.bytes().chunks(size).zip(expected.bytes().chunks(size)).position(|(x, y)| x != y);
    let max_abs_err = a.f64s().zip(b.f64s()).fold(0.0f64, |m, (x, y)| m.max((x - y).abs()));
    let scale = b.f64s().fold(0.0f64, |m, v| m.max(v.abs()));
    let value_at = |values: TensorView<'_>, i: usize| values.f64s().nth(i).unwrap_or(f64::NAN);
    Comparison {
        max_abs_err,
        max_rel_err: if max_abs_err == 0.0 { 0.0 } else { max_abs_err / scale },
        difference: first_difference
            .map(|i| format!("element {i}: expected {1}, found {0}", value_at(a, i), value_at(b, i))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nan_equals_nan_and_nothing_else() {
        let nan = Tensor::from_slice(&[2], &[f32::NAN, 1.0]);
        let close_tolerance = Tolerance::AllClose { rtol: 1e-3, atol: 1e-5 };
        assert_eq!(compare(&nan, &nan, close_tolerance).difference, None);
        let numbers_tensor = Tensor::from_slice(&[2], &[0.0f32, 1.0]);
        assert!(compare(&numbers_tensor, &nan, close_tolerance).difference.is_some());
        assert!(compare(&nan, &numbers_tensor, Tolerance::MaxRelative(1.0)).difference.is_some());
    }

    #[test]
    fn max_relative_scales_by_the_largest_element() {
        let expected = Tensor::from_slice(&[2], &[1000.0f32, 0.0]);
        let actual = Tensor::from_slice(&[2], &[1000.0f32, 0.4]);
        assert_eq!(compare(&actual, &expected, Tolerance::MaxRelative(5e-4)).difference, None);
        assert!(compare(&actual, &expected, Tolerance::MaxRelative(3e-4)).difference.is_some());
        assert!(compare(&actual, &expected, Tolerance::AllClose { rtol: 1e-3, atol: 1e-5 }).difference.is_some());
    }

    #[test]
    fn integers_are_exact() {
        let expected = Tensor::from_slice(&[1], &[i64::MAX]);
        let actual = Tensor::from_slice(&[1], &[i64::MAX - 1]);
        assert!(compare(&actual, &expected, Tolerance::MaxRelative(1.0)).difference.is_some());
    }

    #[test]
    fn reports_shapes_and_types() {
        let a = Tensor::from_slice(&[1], &[1.0f32]);
        let b = Tensor::from_slice(&[1, 1], &[1.0f32]);
        assert!(compare(&a, &b, Tolerance::MaxRelative(1.0)).difference.is_some_and(|f| f.contains("[1, 1]")));
    }
}
