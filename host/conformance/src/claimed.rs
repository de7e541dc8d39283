//! Error budgets that a backend claims: the part of a result's bound that stands in the description.
//!
//! A claim in units in the last place of a format permits three errors: the operands are rounded to the format, which
//! propagates through the operator like any other error; the result is rounded; and the operator errs by the given number
//! of units. A bound of the backend's own stands for all three. Both are relative to the magnitude of the result, which is
//! the sum of the magnitudes of the terms for a sum, and both are added to the budget that every backend has.

use byoc::driver::precision::claims_on;
use byoc_core::pass::RegionReport;
use byoc_ir::ir::{Module, OpId};
use byoc_ir::tensor::DType;
use byoc_plugin_api::{ComputeFormat, Description, PrecisionClaim};
use std::collections::HashMap;

/// Claims that apply in a case, by operator.
#[derive(Clone, Debug, Default)]
pub struct ClaimedErrors {
    claims: HashMap<OpId, PrecisionClaim>,
}

impl ClaimedErrors {
    /// Returns the claims of a description on the operators of the regions of a case. If an operator occurs in patterns
    /// with several claims, the one in the format with the fewest bits applies.
    pub fn of(description: &Description, module: &Module, regions: &[RegionReport]) -> ClaimedErrors {
        let mut claims: HashMap<OpId, PrecisionClaim> = HashMap::new();
        for region in regions {
            for applied in claims_on(description, module, &region.nodes, &region.composites) {
                let Some((operator, _)) = module.expr(applied.expr).as_op_call() else { continue };
                let claim = claims.entry(operator).or_insert(*applied.claim);
                if applied.claim.computes.significant_bits() < claim.computes.significant_bits() {
                    *claim = *applied.claim;
                }
            }
        }
        ClaimedErrors { claims }
    }

    /// Returns the claim on an operator.
    pub fn of_operator(&self, operator: OpId) -> Option<&PrecisionClaim> {
        self.claims.get(&operator)
    }
}

/// Returns the error that a claim permits for a result of the given magnitude.
pub fn operator_bound(claim: &PrecisionClaim, magnitude: f64) -> f64 {
    let Some(ulps) = claim.ulps else {
        return claim.absolute.unwrap_or(0.0) + claim.relative.unwrap_or(0.0) * magnitude;
    };
    if magnitude > claim.computes.largest() {
        return f64::INFINITY;
    }
    // Half a unit more for the rounding of the result.
    (ulps + 0.5) * ulp(claim.computes, magnitude)
}

/// Returns the maximum error of rounding an operand of type `dtype` to a format.
pub fn operand_error(format: ComputeFormat, dtype: DType, value: f64) -> f64 {
    let bits = match dtype {
        DType::F64 => 53,
        DType::F32 => 24,
        DType::F16 => 11,
        DType::BF16 => 8,
        _ => return 0.0,
    };
    let is_narrower = format.significant_bits() < bits || (format == ComputeFormat::F16 && dtype != DType::F16);
    match value.abs() {
        magnitude if !is_narrower || !magnitude.is_finite() => 0.0,
        magnitude if magnitude > format.largest() => f64::INFINITY,
        magnitude => ulp(format, magnitude) / 2.0,
    }
}

/// Returns the unit in the last place of a format at a magnitude.
fn ulp(format: ComputeFormat, magnitude: f64) -> f64 {
    let min_exponent = format.min_exponent();
    let exponent = if magnitude == 0.0 { min_exponent } else { (magnitude.log2().floor() as i32).max(min_exponent) };
    f64::powi(2.0, exponent + 1 - format.significant_bits())
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::{bf16, f16};

    #[test]
    fn rounding_of_operands_is_covered() {
        let values = [1.0f32, 1.003_906_3, -3.337, 1e-3, 6.1e-5, 5.9e-8, 65_503.0, 0.0];
        for value in values {
            let to_bf16 = (bf16::from_f32(value).to_f64() - f64::from(value)).abs();
            let to_f16 = (f16::from_f32(value).to_f64() - f64::from(value)).abs();
            let bound = |format| operand_error(format, DType::F32, f64::from(value));
            assert!(to_bf16 <= bound(ComputeFormat::Bf16) && to_f16 <= bound(ComputeFormat::F16), "{value}");
        }
        assert_eq!(operand_error(ComputeFormat::F16, DType::F32, 1e5), f64::INFINITY);
        assert_eq!(operand_error(ComputeFormat::Bf16, DType::F32, 1e5), 256.0);
        assert_eq!(operand_error(ComputeFormat::F32, DType::F32, 1e5), 0.0);
        assert_eq!(operand_error(ComputeFormat::Bf16, DType::BF16, 1e5), 0.0);
        assert_eq!(operand_error(ComputeFormat::Bf16, DType::I8, 3.0), 0.0);
    }

    #[test]
    fn bounds_of_results() {
        let bf16 = PrecisionClaim::ulps(ComputeFormat::Bf16, 1.5);
        assert_eq!(operator_bound(&bf16, 1.0), 2.0 * f64::powi(2.0, -7));
        assert_eq!(operator_bound(&PrecisionClaim::ulps(ComputeFormat::F16, 1.0), 70_000.0), f64::INFINITY);
        let own = PrecisionClaim { relative: Some(0.5), absolute: Some(3.0), ..PrecisionClaim::default() };
        assert_eq!(operator_bound(&own, 4.0), 5.0);
    }
}
