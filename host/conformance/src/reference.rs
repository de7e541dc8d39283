//! Reference results of a module and their error bounds: every operator is executed by its naive reference, with a
//! running error bound (Higham, section 3.3).
//!
//! The bound of a result is the error of the operator itself ([`super::budget`]) plus the propagated bounds of its
//! operands. The propagated bounds are estimated: the operator is executed in binary64 on operands perturbed to the
//! limits of their bounds, in ten ways, and the bound is twice the largest change of the result.

use super::budget::{error_model, gamma, largest_finite, roundoff, term_count, ulp};
use super::claimed::{ClaimedErrors, operand_error, operator_bound};
use byoc::io::random::Random;
use byoc_ir::declared::Declared;
use byoc_ir::ir::{Attrs, Module, OpId, Type};
use byoc_ir::op::facts::ErrorModel;
use byoc_ir::op::interpret::{self, Domain, interpret};
use byoc_ir::op::{self, OpDef, Params, Value};
use byoc_ir::tensor::{DType, Tensor, TensorView};
use byoc_plugin_api::{ComputeFormat, Description, PrecisionClaim};
use std::sync::Arc;

/// Maximum size of a value in bytes.
const MAX_VALUE_BYTES: usize = 1 << 30;

/// Tensor with an error bound per element.
#[derive(Clone, Debug)]
pub struct BoundedTensor {
    /// Reference value.
    pub value: Tensor,
    /// Error bound of each element; empty if the value is exact.
    pub error: Vec<f64>,
}

impl BoundedTensor {
    fn exact(value: Tensor) -> BoundedTensor {
        BoundedTensor { value, error: Vec::new() }
    }
}

/// All values of a module, keyed by expression, with tuples flattened.
pub type Values = interpret::Values<BoundedTensor>;

/// Computes every value of `@main`. The bounds include the errors that a backend claims.
///
/// # Errors
/// If there is no `@main`, the number of inputs is wrong, the reference rejects a value (for example, an out-of-bounds
/// index), or an expression is neither data flow nor an `if` nor a while loop.
pub fn evaluate(module: &Module, inputs: &[Tensor], claimed: &ClaimedErrors) -> Result<Values, String> {
    let main = module.main().ok_or("the module has no @main")?;
    if main.params.len() != inputs.len() {
        return Err(format!("number of inputs: expected {}, found {}", main.params.len(), inputs.len()));
    }
    let inputs = inputs.iter().map(|input| vec![BoundedTensor::exact(input.clone())]);
    let mut values: Values = main.params.iter().copied().zip(inputs).collect();
    interpret(module, main.body, &Bounded { claimed }, &mut values)?;
    Ok(values)
}

/// Domain of tensors with error bounds.
struct Bounded<'c> {
    claimed: &'c ClaimedErrors,
}

impl Domain for Bounded<'_> {
    type Value = BoundedTensor;

    fn constant(&self, tensor: &Arc<Tensor>) -> BoundedTensor {
        BoundedTensor::exact((**tensor).clone())
    }

    fn is_true(&self, value: &BoundedTensor) -> bool {
        value.value.bytes().first() == Some(&1)
    }

    fn call(&self, operator: OpId, attrs: &Attrs, args: &Arguments) -> Result<Vec<BoundedTensor>, String> {
        call_with_bounds(operator, attrs, args, self.claimed.of_operator(operator))
    }
}

/// Classes of floating-point values for which a description makes no guarantee.
#[derive(Clone, Copy, Debug)]
pub struct Exclusions {
    finite_math: bool,
    flush_to_zero: bool,
}

impl Exclusions {
    /// Returns the exclusions of a description.
    pub fn of(description: &Description) -> Exclusions {
        Exclusions { finite_math: description.finite_math, flush_to_zero: description.flush_to_zero }
    }

    /// Returns the reason why results are not guaranteed for these values, including intermediate results; `None` if
    /// they are.
    pub fn reason(self, values: &Values) -> Option<&'static str> {
        let floats = || values.values().flatten().filter(|tensor| tensor.value.dtype().is_float());
        let floats_of = |tensor: &BoundedTensor| tensor.value.view().to_f64s();
        if self.finite_math && floats().any(|tensor| !floats_of(tensor).into_iter().all(f64::is_finite)) {
            return Some("a value is not finite, which `finite_math` excludes");
        }
        let has_subnormal = |tensor: &BoundedTensor| {
            let min_normal = least_normal(tensor.value.dtype());
            floats_of(tensor).into_iter().any(|value| value != 0.0 && value.abs() < min_normal)
        };
        (self.flush_to_zero && floats().any(has_subnormal))
            .then_some("a value is subnormal, which `flush_to_zero` excludes")
    }
}

/// Returns the least positive normal number of a floating-point type.
fn least_normal(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 2f64.powi(-14),
        DType::F64 => f64::MIN_POSITIVE,
        // bfloat16 has the exponents of binary32.
        _ => f64::from(f32::MIN_POSITIVE),
    }
}

type Arguments = [(bool, Vec<BoundedTensor>)];

fn call_with_bounds(
    operator: OpId,
    attrs: &Attrs,
    args: &Arguments,
    claim: Option<&PrecisionClaim>,
) -> Result<Vec<BoundedTensor>, String> {
    let def = op::get(operator);
    if Declared::of(def).is_some_and(|declared| !declared.has_reference()) {
        return unknown_results(def, attrs, args);
    }
    let results = apply(operator, attrs, args, |_, tensor| tensor.value.clone())?;
    let params = Params::new(def, attrs);
    let rule = error_model(def, &params);
    let shapes: Vec<&[usize]> = args.iter().flat_map(|(_, fields)| fields).map(|b| b.value.shape()).collect();
    let is_inexact = args.iter().flat_map(|(_, fields)| fields).any(|b| !b.error.is_empty());
    let has_floats = args.iter().flat_map(|(_, fields)| fields).any(|b| b.value.dtype().is_float());
    let float64_attrs = binary64_attrs(attrs);
    let mut errors: Vec<Vec<f64>> = Vec::with_capacity(results.len());
    for result in &results {
        let n = term_count(def, &params, &shapes, result.shape());
        let mut error = operator_error(operator, &float64_attrs, args, rule, n, result, errors.len());
        if let Some(claim) = claim.filter(|_| result.dtype().is_float()) {
            let magnitudes = magnitudes(operator, &float64_attrs, args, rule, result, errors.len());
            error.resize(result.len(), 0.0);
            error.iter_mut().zip(magnitudes).for_each(|(error, magnitude)| *error += operator_bound(claim, magnitude));
        }
        errors.push(error);
    }
    let is_stable =
        matches!(rule, ErrorModel::Stable(_) | ErrorModel::Moments(..) | ErrorModel::Logarithm(_)) && has_floats;
    let rounded = claim.filter(|claim| has_floats && claim.ulps.is_some()).map(|claim| claim.computes);
    if is_inexact || is_stable || rounded.is_some() {
        let n = results.first().map_or(0, |r| term_count(def, &params, &shapes, r.shape()));
        let backward_terms = if is_stable { n + 8 } else { 0 };
        for (error, changes) in
            errors.iter_mut().zip(perturbation_changes(operator, &float64_attrs, args, backward_terms, rounded))
        {
            if error.is_empty() {
                *error = changes;
            } else {
                error.iter_mut().zip(changes).for_each(|(e, m)| *e += m);
            }
        }
    }
    Ok(results.into_iter().zip(errors).map(|(value, error)| BoundedTensor { value, error }).collect())
}

/// Returns results of the types of a declared operator that has no decomposition: nobody but its backend knows their values.
fn unknown_results(def: &'static OpDef, attrs: &Attrs, args: &Arguments) -> Result<Vec<BoundedTensor>, String> {
    let of = |bounded: &BoundedTensor| Type::tensor(bounded.value.dtype(), bounded.value.shape());
    let types: Vec<Type> = args.iter().flat_map(|(_, fields)| fields).map(of).collect();
    let values = vec![None; types.len()];
    let ty = def.infer(attrs, &types, &values).map_err(|error| error.message)?;
    let parts = ty.as_tuple().map_or_else(|| vec![ty.clone()], <[Type]>::to_vec);
    let unknown = |part: &Type| {
        let ty = part.as_tensor()?;
        let value = Tensor::zeros(ty.dtype, &ty.shape()?).ok()?;
        Some(BoundedTensor { error: vec![f64::INFINITY; value.len()], value })
    };
    let results: Option<Vec<BoundedTensor>> = parts.iter().map(unknown).collect();
    results.ok_or_else(|| format!("{}: expected results of known dimensions, found {ty}", def.name))
}

/// Executes the operator on the tensors that `choose` derives from the arguments.
fn apply(
    operator: OpId,
    attrs: &Attrs,
    args: &Arguments,
    mut choose: impl FnMut(usize, &BoundedTensor) -> Tensor,
) -> Result<Vec<Tensor>, String> {
    let mut index = 0;
    let mut next = |bounded: &BoundedTensor| {
        index += 1;
        choose(index - 1, bounded)
    };
    let args: Vec<Value> = args
        .iter()
        .map(|(tuple, fields)| match (tuple, &fields[..]) {
            (false, [tensor]) => Value::Tensor(next(tensor)),
            _ => Value::Tuple(fields.iter().map(&mut next).collect()),
        })
        .collect();
    op::evaluate(operator, attrs, &args, MAX_VALUE_BYTES)
}

/// Returns the attributes with a floating-point `out_dtype` widened to float64.
fn binary64_attrs(attrs: &Attrs) -> Attrs {
    let is_float_output = attrs.get("out_dtype").and_then(|v| v.as_dtype()).is_some_and(DType::is_float);
    if is_float_output { attrs.with("out_dtype", DType::F64) } else { attrs.clone() }
}

fn map_binary64(tensor: &Tensor, change: impl Fn(usize, f64) -> f64) -> Tensor {
    if !tensor.dtype().is_float() {
        return tensor.clone();
    }
    let values: Vec<f64> = tensor.view().to_f64s().into_iter().enumerate().map(|(i, v)| change(i, v)).collect();
    Tensor::from_slice(tensor.shape(), &values)
}

/// Returns the error bound of the operator itself for each element of `result`.
fn operator_error(
    operator: OpId,
    wide_attrs: &Attrs,
    args: &Arguments,
    rule: ErrorModel,
    n: usize,
    result: &Tensor,
    index: usize,
) -> Vec<f64> {
    let dtype = result.dtype();
    if !dtype.is_float() || result.is_empty() {
        return Vec::new();
    }
    let values = result.view().to_f64s();
    // A 16-bit result is rounded once more.
    let rounding = |v: f64| if dtype.size() == 2 { ulp(v, dtype) } else { 0.0 };
    let working_dtype = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
    match rule {
        ErrorModel::Exact => Vec::new(),
        ErrorModel::Ulps(ulps) => values.iter().map(|&v| ulps * ulp(v, working_dtype) + rounding(v)).collect(),
        ErrorModel::Stable(_) => values.iter().map(|&v| 4.0 * ulp(v, working_dtype) + rounding(v)).collect(),
        ErrorModel::Moments(_, sensitivity) => {
            let views: Vec<TensorView<'_>> =
                args.iter().flat_map(|(_, fields)| fields).map(|b| b.value.view()).collect();
            let changes = sensitivity(&Params::new(op::get(operator), wide_attrs), &views);
            let mean_error = |change: f64| if change.is_finite() { gamma(n + 2, dtype) * change } else { 0.0 };
            let bounds = values.iter().zip(changes);
            bounds.map(|(&v, change)| 4.0 * ulp(v, working_dtype) + rounding(v) + mean_error(change)).collect()
        }
        ErrorModel::Logarithm(_) => {
            values.iter().map(|&v| gamma(n + 8, dtype) * (1.0 + v.abs()) + rounding(v)).collect()
        }
        ErrorModel::Sum(_) => {
            let magnitudes = magnitudes(operator, wide_attrs, args, rule, result, index);
            let bound = gamma(n + 2, dtype);
            let underflow = n as f64 * ulp(0.0, working_dtype);
            values
                .iter()
                .zip(magnitudes)
                .map(|(&v, sum)| {
                    if sum > largest_finite(working_dtype) {
                        // Partial sums overflow in some orders of summation.
                        return f64::INFINITY;
                    }
                    bound * sum + ulp(v, working_dtype) + underflow + rounding(v)
                })
                .collect()
        }
        ErrorModel::Interpolation => {
            let inputs = args.iter().flat_map(|(_, fields)| fields);
            let largest = inputs
                .clone()
                .flat_map(|b| b.value.view().to_f64s())
                .filter(|v| v.is_finite())
                .fold(0.0f64, |m, v| m.max(v.abs()));
            let size = inputs.flat_map(|b| b.value.shape()).chain(result.shape()).copied().max().unwrap_or(1);
            // A pixel is the sum of up to 16 products, each of which may underflow.
            let bound = 16.0 * (roundoff(dtype) * size as f64 * largest + ulp(0.0, working_dtype));
            values.iter().map(|&v| bound + rounding(v)).collect()
        }
    }
}

/// Returns the magnitude of each element of `result`: for a sum, the sum of the magnitudes of its terms. It is 0 where it
/// is not finite.
fn magnitudes(
    operator: OpId,
    wide_attrs: &Attrs,
    args: &Arguments,
    rule: ErrorModel,
    result: &Tensor,
    index: usize,
) -> Vec<f64> {
    let sums = match rule {
        ErrorModel::Sum(_) => apply(operator, wide_attrs, args, |_, b| map_binary64(&b.value, |_, v| v.abs())).ok(),
        _ => None,
    };
    let sums = sums.and_then(|results| Some(results.get(index)?.view().to_f64s()));
    let magnitudes = sums.unwrap_or_else(|| result.view().to_f64s().into_iter().map(f64::abs).collect());
    magnitudes.into_iter().map(|sum| if sum.is_finite() { sum } else { 0.0 }).collect()
}

/// Returns, for each result element, twice its largest change when the operands are perturbed by their error bounds
/// plus a relative error of `gamma(backward_terms)` plus the error of rounding to the format `rounded`.
fn perturbation_changes(
    operator: OpId,
    attrs: &Attrs,
    args: &Arguments,
    backward_terms: usize,
    rounded: Option<ComputeFormat>,
) -> Vec<Vec<f64>> {
    const PERTURBATIONS: u64 = 10;
    let Ok(baseline) = apply(operator, attrs, args, |_, b| map_binary64(&b.value, |_, v| v)) else { return Vec::new() };
    let baseline: Vec<Vec<f64>> = baseline.iter().map(|t| t.view().to_f64s()).collect();
    let mut max_changes: Vec<Vec<f64>> = baseline.iter().map(|values| vec![0.0; values.len()]).collect();
    for perturbation in 0..PERTURBATIONS {
        let perturbed_results = apply(operator, attrs, args, |argument, b| {
            let mut random = Random::new(perturbation << 32 | argument as u64);
            let signs: Vec<f64> = (0..b.value.len())
                .map(|element| match perturbation {
                    0 => 1.0,
                    1 => -1.0,
                    2 if element % 2 == 0 => 1.0,
                    2 => -1.0,
                    _ if random.next_u64() & 1 == 0 => 1.0,
                    _ => -1.0,
                })
                .collect();
            let relative_error = gamma(backward_terms, b.value.dtype());
            map_binary64(&b.value, |i, v| {
                let error = b.error.get(i).copied().unwrap_or(0.0);
                let rounding = rounded.map_or(0.0, |format| operand_error(format, b.value.dtype(), v));
                let step = error + relative_error * v.abs() + rounding;
                match v.is_finite() {
                    // An operand with an infinite error bound makes every dependent result unbounded, even if its own
                    // value is infinite.
                    _ if error == f64::INFINITY => f64::NAN,
                    true if step == f64::INFINITY => f64::NAN,
                    true => v + signs[i] * step,
                    false => v,
                }
            })
        });
        let Ok(perturbed_results) = perturbed_results else { continue };
        for ((max_changes, baseline), result) in max_changes.iter_mut().zip(&baseline).zip(&perturbed_results) {
            for ((max_change, baseline), result) in max_changes.iter_mut().zip(baseline).zip(result.view().to_f64s()) {
                let is_equal = *baseline == result || (baseline.is_nan() && result.is_nan());
                // If a small step leaves the domain of the operator, the error is unbounded.
                let change = if is_equal { 0.0 } else { (baseline - result).abs() };
                *max_change = if change.is_nan() { f64::INFINITY } else { max_change.max(2.0 * change) };
            }
        }
    }
    max_changes
}

/// Element outside its error bound.
#[derive(Clone, Debug, PartialEq)]
pub struct Mismatch {
    /// Row-major index of the element.
    pub element: usize,
    /// Computed value.
    pub found: f64,
    /// Reference value.
    pub expected: f64,
    /// Error bound.
    pub bound: f64,
    /// Number of elements outside their bounds.
    pub count: usize,
    /// Number of elements.
    pub total: usize,
}

impl std::fmt::Display for Mismatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Mismatch { element, found: actual, expected, bound, count, total: element_count } = self;
        write!(f, "element {element}: expected {expected:?}")?;
        if *bound > 0.0 {
            write!(f, " within {bound:.3e}")?;
        }
        write!(f, ", found {actual:?} ({count} of {element_count} elements differ)")
    }
}

/// Compares a result with its bounds; returns the largest fraction of its bound that any element used.
///
/// # Errors
/// If an element exceeds its bound. The mismatch is the element that exceeds its bound most.
pub fn compare(actual: &Tensor, expected: &BoundedTensor) -> Result<f64, Mismatch> {
    let (a, b) = (actual.view().to_f64s(), expected.value.view().to_f64s());
    let size = actual.dtype().size();
    let bytes = |t: &Tensor, i: usize| t.bytes()[i * size..(i + 1) * size].to_vec();
    let mut share = 0.0f64;
    let mut mismatch: Option<(f64, Mismatch)> = None;
    let mut count = 0;
    for (i, (&a, &b)) in a.iter().zip(&b).enumerate() {
        let bound = expected.error.get(i).copied().unwrap_or(0.0);
        // Different 64-bit integers may be equal in binary64.
        let is_integer = !actual.dtype().is_float() && bound == 0.0;
        let is_equal = if is_integer {
            bytes(actual, i) == bytes(&expected.value, i)
        } else {
            a == b || (a.is_nan() && b.is_nan())
        };
        if is_equal || bound == f64::INFINITY {
            continue;
        }
        let deviation = if bound > 0.0 && (a.is_infinite() || b.is_infinite()) {
            // A result this close to the largest number may round to infinity, depending on the summation order.
            let limit = largest_finite(actual.dtype());
            (a.clamp(-limit, limit) - b.clamp(-limit, limit)).abs()
        } else {
            (a - b).abs()
        };
        if deviation.is_finite() && deviation <= bound {
            share = share.max(deviation / bound);
            continue;
        }
        count += 1;
        let excess = if deviation.is_finite() { deviation / bound.max(f64::MIN_POSITIVE) } else { f64::INFINITY };
        if mismatch.as_ref().is_none_or(|(max_excess, _)| excess > *max_excess) {
            mismatch =
                Some((excess, Mismatch { element: i, found: a, expected: b, bound, count: 0, total: actual.len() }));
        }
    }
    match mismatch {
        None => Ok(share),
        Some((_, mismatch)) => Err(Mismatch { count, ..mismatch }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use byoc_ir::ir::ExprId;
    use byoc_ir::typing::Builder;

    #[test]
    fn propagates_unbounded_errors() {
        let mut builder = Builder::default();
        let ty = Type::tensor(DType::F32, &[1, 2]);
        let x = builder.var("x", ty.clone());
        let w = builder.constant(Tensor::from_slice(&[2, 2], &[1.0f32, -1.0, 1.0, 1.0]));
        let op = |builder: &mut Builder, name, args: &[ExprId]| builder.op(name, args, Attrs::default()).unwrap();
        // The first sum is close to 0, where an additional rounding makes the root NaN.
        let product = op(&mut builder, "nn.dense", &[x, w]);
        let roots = op(&mut builder, "rsqrt", &[product]);
        let transposed = op(&mut builder, "transpose", &[roots]);
        builder.define("main", &[x], transposed).unwrap();
        let input = Tensor::from_slice(&[1, 2], &[1.0f32 + f32::EPSILON, 1.0]);
        let values = evaluate(&builder.module, &[input], &ClaimedErrors::default()).unwrap();
        for value in [roots, transposed] {
            let error = &values[&value][0].error;
            assert_eq!((error[0], error[1] < 1e-5), (f64::INFINITY, true), "error bounds: {error:?}");
        }
    }

    /// Tests the normalization of two close values, computed as on a device: in binary32, with a rounded mean.
    #[test]
    fn bound_of_normalization_covers_rounded_mean() {
        let mut builder = Builder::default();
        let x = builder.var("x", Type::tensor(DType::F32, &[1, 2]));
        let [gamma, beta] = [[-1.0174261f32, 1.4656844], [1.2437059, 1.5588105]];
        let parameters = [gamma, beta].map(|values| builder.constant(Tensor::from_slice(&[2], &values)));
        let norm = builder.op("nn.layer_norm", &[x, parameters[0], parameters[1]], Attrs::default()).unwrap();
        builder.define("main", &[x], norm).unwrap();
        let pair = [1.4876088f32, 1.4522636];
        let values =
            evaluate(&builder.module, &[Tensor::from_slice(&[1, 2], &pair)], &ClaimedErrors::default()).unwrap();
        let mean = (pair[0] + pair[1]) / 2.0;
        let variance = ((pair[0] - mean).powi(2) + (pair[1] - mean).powi(2)) / 2.0;
        let scale = 1.0 / (variance + 1e-5).sqrt();
        let computed: Vec<f32> = (0..2).map(|i| (pair[i] - mean) * scale * gamma[i] + beta[i]).collect();
        let share = compare(&Tensor::from_slice(&[1, 2], &computed), &values[&norm][0]).unwrap();
        // The bound must not be many times larger than the error either.
        assert!(share > 0.1, "expected more than 0.1 of the bound to be used, found {share}");
    }

    #[test]
    fn sum_near_largest_number_may_overflow() {
        let expected = BoundedTensor { value: Tensor::from_slice(&[2], &[-f32::MAX, 1.0]), error: vec![1e33, 1e33] };
        let result = |values: [f32; 2]| compare(&Tensor::from_slice(&[2], &values), &expected).map_err(|m| m.element);
        assert_eq!(result([f32::NEG_INFINITY, 1.0]), Ok(0.0));
        assert_eq!(result([f32::INFINITY, 1.0]), Err(0));
        assert_eq!(result([-f32::MAX, f32::INFINITY]), Err(1));
        assert_eq!(result([f32::NAN, 1.0]), Err(0));
        let exact = BoundedTensor { error: vec![0.0, 0.0], ..expected };
        assert!(compare(&Tensor::from_slice(&[2], &[f32::NEG_INFINITY, 1.0]), &exact).is_err());
    }

    #[test]
    fn sum_whose_partial_sums_may_overflow_is_unbounded() {
        let axes = byoc_ir::ir::AttrValue::List(vec![byoc_ir::ir::AttrValue::Int(1)].into());
        let mut builder = Builder::default();
        let x = builder.var("x", Type::tensor(DType::F32, &[2, 3]));
        let sum = builder.op("sum", &[x], Attrs::new([("axis", axes)])).unwrap();
        builder.define("main", &[x], sum).unwrap();
        let input = Tensor::from_slice(&[2, 3], &[-2e38f32, -2e38, 3e38, -1e38, -1e38, 1e38]);
        let error = &evaluate(&builder.module, &[input], &ClaimedErrors::default()).unwrap()[&sum][0].error;
        assert_eq!((error[0], error[1] < 1e33), (f64::INFINITY, true), "error bounds: {error:?}");
    }
}
