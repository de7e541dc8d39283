//! Claims of precision: the format in which a backend computes an operator or a pattern, and its error.
//!
//! Without a claim, a backend computes float32 in float32. A claim below that is refused in a float32 model unless the
//! user allows the format (`--precision`), and it is the error budget of the conformance run.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Format in which an operator is computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ComputeFormat {
    /// binary32.
    #[default]
    F32,
    /// TF32: the exponents of binary32, 11 significant bits.
    Tf32,
    /// bfloat16: the exponents of binary32, 8 significant bits.
    Bf16,
    /// binary16: 5 bits of exponent, 11 significant bits.
    F16,
    /// Integers of 8 bits, with scales that the backend chooses.
    Int8,
}

impl ComputeFormat {
    /// All formats.
    pub const ALL: [ComputeFormat; 5] =
        [ComputeFormat::F32, ComputeFormat::Tf32, ComputeFormat::Bf16, ComputeFormat::F16, ComputeFormat::Int8];

    /// Formats that a user may allow for a float32 model.
    pub const FLOATS: [ComputeFormat; 4] =
        [ComputeFormat::F32, ComputeFormat::Tf32, ComputeFormat::Bf16, ComputeFormat::F16];

    /// Returns the name in descriptions and options.
    pub const fn name(self) -> &'static str {
        match self {
            ComputeFormat::F32 => "f32",
            ComputeFormat::Tf32 => "tf32",
            ComputeFormat::Bf16 => "bf16",
            ComputeFormat::F16 => "f16",
            ComputeFormat::Int8 => "int8",
        }
    }

    /// Parses the name of a format.
    pub fn parse(name: &str) -> Option<ComputeFormat> {
        ComputeFormat::ALL.into_iter().find(|format| format.name() == name)
    }

    /// Returns true if a user who allows `self` allows `other`: `other` has every number of `self`. So `bf16` and `f16`
    /// allow `tf32`, but not each other.
    pub fn allows(self, other: ComputeFormat) -> bool {
        self == other || matches!(other, ComputeFormat::F32) || {
            other == ComputeFormat::Tf32 && matches!(self, ComputeFormat::Bf16 | ComputeFormat::F16)
        }
    }

    /// Returns the number of significant bits, including the implicit one.
    pub const fn significant_bits(self) -> i32 {
        match self {
            ComputeFormat::F32 => 24,
            ComputeFormat::Tf32 | ComputeFormat::F16 => 11,
            ComputeFormat::Bf16 => 8,
            ComputeFormat::Int8 => 7,
        }
    }

    /// Returns the exponent of the least normal number.
    pub const fn min_exponent(self) -> i32 {
        if matches!(self, ComputeFormat::F16) { -14 } else { -126 }
    }

    /// Returns the largest finite number.
    pub fn largest(self) -> f64 {
        let max_exponent = if self == ComputeFormat::F16 { 16 } else { 128 };
        (1.0 - f64::powi(2.0, -self.significant_bits())) * f64::powi(2.0, max_exponent)
    }
}

impl FromStr for ComputeFormat {
    type Err = String;

    /// Parses the name of a format that a user may allow for a float32 model.
    fn from_str(name: &str) -> Result<ComputeFormat, String> {
        let format = ComputeFormat::parse(name).filter(|format| ComputeFormat::FLOATS.contains(format));
        format.ok_or_else(|| {
            let names = ComputeFormat::FLOATS.map(ComputeFormat::name).join(", ");
            format!("expected one of {names}, found \"{name}\"")
        })
    }
}

impl fmt::Display for ComputeFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Precision of an operator or of the operators of a pattern, on a float32 model.
///
/// The error is either in units in the last place of the format: the operands and the result are rounded to the format,
/// and each operator errs by at most `ulps` besides. Or it is a bound of the backend's own: `absolute` plus `relative`
/// times the magnitude of the result. For sums, the magnitude is the sum of the magnitudes of the terms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PrecisionClaim {
    /// Format of the computation.
    pub computes: ComputeFormat,
    /// Maximum error of an operator in units in the last place of the format.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ulps: Option<f64>,
    /// Maximum error of an operator, relative to the magnitude of the result.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub relative: Option<f64>,
    /// Maximum error of an operator in addition to `relative`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub absolute: Option<f64>,
}

impl PrecisionClaim {
    /// Creates a claim with an error in units in the last place of a format.
    pub fn ulps(computes: ComputeFormat, ulps: f64) -> PrecisionClaim {
        PrecisionClaim { computes, ulps: Some(ulps), ..PrecisionClaim::default() }
    }

    /// Returns the reason why the claim is invalid; `None` if it is valid.
    pub fn fault(&self) -> Option<String> {
        let bounds = [("ulps", self.ulps), ("relative", self.relative), ("absolute", self.absolute)];
        for (name, bound) in bounds {
            if let Some(bound) = bound.filter(|bound| !bound.is_finite() || *bound < 0.0) {
                return Some(format!("\"{name}\": expected a finite number >= 0, found {bound}"));
            }
        }
        let has_own_bound = self.relative.is_some() || self.absolute.is_some();
        match (self.ulps, has_own_bound, self.computes) {
            (Some(_), true, _) => Some("expected \"ulps\" or a bound of its own, found both".into()),
            (None, false, _) => Some("expected \"ulps\", \"relative\" or \"absolute\", found none".into()),
            (Some(_), _, ComputeFormat::Int8) => {
                Some("int8: expected \"relative\" or \"absolute\", found \"ulps\" of a format without a scale".into())
            }
            _ => None,
        }
    }

    /// Describes the claim for users: `bf16, 2 ulps`.
    pub fn summary(&self) -> String {
        let format = self.computes;
        match (self.ulps, self.relative, self.absolute) {
            (Some(ulps), ..) => format!("{format}, {ulps} ulp{}", if ulps == 1.0 { "" } else { "s" }),
            (None, relative, absolute) => {
                let bounds = [("relative", relative), ("absolute", absolute)].into_iter();
                let texts: Vec<String> =
                    bounds.filter_map(|(name, bound)| Some(format!("{name} error {:e}", bound?))).collect();
                format!("{format}, {}", texts.join(", "))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_format_allows_those_that_have_all_its_numbers() {
        use ComputeFormat::{Bf16, F16, F32, Int8, Tf32};
        let allowed = |format: ComputeFormat| -> Vec<ComputeFormat> {
            ComputeFormat::ALL.into_iter().filter(|other| format.allows(*other)).collect()
        };
        assert_eq!(allowed(F32), [F32]);
        assert_eq!(allowed(Tf32), [F32, Tf32]);
        assert_eq!(allowed(Bf16), [F32, Tf32, Bf16]);
        assert_eq!(allowed(F16), [F32, Tf32, F16]);
        assert!(ComputeFormat::FLOATS.iter().all(|format| !format.allows(Int8)));
    }

    #[test]
    fn users_allow_floats() {
        assert_eq!("tf32".parse(), Ok(ComputeFormat::Tf32));
        for name in ["int8", "BF16", ""] {
            let message = format!("expected one of f32, tf32, bf16, f16, found \"{name}\"");
            assert_eq!(name.parse::<ComputeFormat>(), Err(message));
        }
    }

    #[test]
    fn formats_have_their_largest_numbers() {
        assert_eq!(ComputeFormat::F32.largest(), f64::from(f32::MAX));
        assert_eq!(ComputeFormat::F16.largest(), 65504.0);
    }

    #[test]
    fn refuses_contradictions() {
        let fault = |text: &str| match serde_json::from_str::<PrecisionClaim>(text) {
            Ok(claim) => claim.fault(),
            Err(error) => Some(error.to_string()),
        };
        assert_eq!(fault(r#"{"computes": "bf16", "ulps": 2}"#), None);
        assert_eq!(fault(r#"{"computes": "int8", "relative": 0.02, "absolute": 1e-3}"#), None);
        for (text, part) in [
            (r#"{"computes": "bf16"}"#, "found none"),
            (r#"{"computes": "bf16", "ulps": 1, "relative": 0.1}"#, "found both"),
            (r#"{"computes": "bf16", "ulps": -1}"#, "expected a finite number >= 0, found -1"),
            (r#"{"computes": "int8", "ulps": 1}"#, "without a scale"),
            (r#"{"computes": "fp8", "ulps": 1}"#, "unknown variant `fp8`"),
            (r#"{"computes": "f16", "ulp": 1}"#, "unknown field `ulp`"),
        ] {
            assert!(fault(text).is_some_and(|fault| fault.contains(part)), "{text}: {:?}", fault(text));
        }
        for bound in [f64::NAN, f64::INFINITY] {
            let claim = PrecisionClaim { absolute: Some(bound), ..PrecisionClaim::default() };
            assert!(claim.fault().is_some_and(|fault| fault.contains("expected a finite number")), "{bound}");
        }
    }

    #[test]
    fn claims_have_a_summary() {
        assert_eq!(PrecisionClaim::ulps(ComputeFormat::Bf16, 2.0).summary(), "bf16, 2 ulps");
        let claim = PrecisionClaim { relative: Some(0.02), absolute: Some(1e-3), ..PrecisionClaim::default() };
        assert_eq!(claim.summary(), "f32, relative error 2e-2, absolute error 1e-3");
    }
}
