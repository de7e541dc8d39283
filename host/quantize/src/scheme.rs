//! Quantization schemes: mappings of real numbers to integers, `real = scale * (integer - zero_point)`.

use super::range::Range;
use byoc_ir::diag::{Diagnostic, codes};
use byoc_ir::tensor::DType;
use byoc_plugin_api::Quantization;
use std::fmt;

/// Minimum scale; the ratio of two smaller scales could overflow.
const MIN_SCALE: f64 = 1e-30;

/// Maximum number of times that [`best_power_of_two`] halves a scale: the number of magnitude bits of int8.
const MAX_HALVINGS: i32 = 7;

/// Quantization scheme. Weights are always int8 with zero point 0, accumulators and biases int32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scheme {
    /// Element type of activations: int8 or uint8.
    pub activation: DType,
    /// True if the zero point of activations is 0.
    pub symmetric: bool,
    /// True if the scales of a weight are per-channel (output channels), false if per-tensor.
    pub per_channel: bool,
    /// True if every scale is a power of two.
    pub power_of_two: bool,
}

/// Scale and zero point of an activation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Parameters {
    /// Real value of one integer step.
    pub scale: f32,
    /// Integer that represents 0.
    pub zero_point: i32,
}

impl Scheme {
    /// Scheme with int8 activations, zero point 0 and per-channel weight scales, which every int8 backend supports.
    pub const SYMMETRIC: Scheme =
        Scheme { activation: DType::I8, symmetric: true, per_channel: true, power_of_two: false };

    /// Parses `symmetric` or `asymmetric`, followed by any of `uint8`, `per-tensor` and `power-of-two`, separated by
    /// commas.
    ///
    /// # Errors
    /// E0430 if the syntax is invalid, or the scheme is symmetric uint8, which cannot represent negative values.
    pub fn parse(text: &str) -> Result<Scheme, Diagnostic> {
        let scheme_error = |reason: String| {
            Diagnostic::error(codes::plugins::NO_SCHEME, format!("scheme \"{text}\": {reason}"))
                .help("pass \"symmetric\" or \"asymmetric\", optionally followed by \"uint8\", \"per-tensor\" and \"power-of-two\", such as asymmetric,uint8")
        };
        let mut parts = text.split(',').map(str::trim);
        let symmetric = match parts.next() {
            Some("symmetric") => true,
            Some("asymmetric") => false,
            other => {
                return Err(scheme_error(format!(
                    "expected \"symmetric\" or \"asymmetric\" first, found \"{}\"",
                    other.unwrap_or("")
                )));
            }
        };
        let mut scheme = Scheme { symmetric, ..Scheme::SYMMETRIC };
        for part in parts {
            match part {
                "int8" => scheme.activation = DType::I8,
                "uint8" => scheme.activation = DType::U8,
                "per-channel" => scheme.per_channel = true,
                "per-tensor" => scheme.per_channel = false,
                "power-of-two" => scheme.power_of_two = true,
                other => {
                    return Err(scheme_error(format!(
                        "expected int8, uint8, per-channel, per-tensor or power-of-two, found \"{other}\""
                    )));
                }
            }
        }
        scheme.validate().map_err(scheme_error)
    }

    /// Converts the scheme that a backend declares.
    ///
    /// # Errors
    /// E0430 if the weights are not int8, the accumulators not int32, or the activations neither int8 nor uint8, or if
    /// the scheme is symmetric uint8.
    pub fn declared(backend: &str, declaration: &Quantization) -> Result<Scheme, Diagnostic> {
        let scheme_error = |reason: String| {
            Diagnostic::error(codes::plugins::NO_SCHEME, format!("scheme declared by {backend}: {reason}"))
                .help("set the scheme with --scheme")
        };
        let or_default = |text: &str, default: &str| if text.is_empty() { default.to_owned() } else { text.to_owned() };
        let (weight, accumulator_text) =
            (or_default(&declaration.weight, "int8"), or_default(&declaration.accumulator, "int32"));
        if weight != "int8" {
            return Err(scheme_error(format!("expected int8 weights, found {weight}")));
        }
        if accumulator_text != "int32" {
            return Err(scheme_error(format!("expected int32 accumulators, found {accumulator_text}")));
        }
        let activation = match or_default(&declaration.activation, "int8").as_str() {
            "int8" => DType::I8,
            "uint8" => DType::U8,
            other => return Err(scheme_error(format!("expected int8 or uint8 activations, found {other}"))),
        };
        let Quantization { symmetric, per_channel, power_of_two, .. } = *declaration;
        Scheme { activation, symmetric, per_channel, power_of_two }.validate().map_err(scheme_error)
    }

    fn validate(self) -> Result<Scheme, String> {
        match (self.activation, self.symmetric) {
            (DType::U8, true) => Err("symmetric uint8 cannot represent negative values".into()),
            _ => Ok(self),
        }
    }

    /// Returns the minimum and maximum integer of an activation.
    pub fn limits(&self) -> (i32, i32) {
        if self.activation == DType::U8 { (0, 255) } else { (-128, 127) }
    }

    /// Returns the number of steps from 0 to the farther bound of a symmetric range, or between the bounds of an
    /// asymmetric range.
    pub fn steps(&self) -> f64 {
        if self.symmetric { 127.0 } else { 255.0 }
    }

    /// Returns the extent that is divided into [`steps`](Self::steps) steps: the distance from 0 to the farther bound
    /// of a symmetric range, or the width of an asymmetric range that is widened to contain 0.
    pub fn reach(&self, range: Range) -> f64 {
        let (min, max) = (range.lo.min(0.0), range.hi.max(0.0));
        if self.symmetric { max.max(-min) } else { max - min }
    }

    /// Returns the scale and zero point for a range. The range is widened to contain 0, because padding and activations
    /// require an exact 0. If both bounds are 0, the scale is 1.
    pub fn parameters(&self, range: Range) -> Parameters {
        let min = range.lo.min(0.0);
        let scale = self.scale(self.reach(range) / self.steps());
        if self.symmetric {
            return Parameters { scale, zero_point: 0 };
        }
        let (lowest, highest) = self.limits();
        let zero_point = (f64::from(lowest) - min / f64::from(scale)).round();
        Parameters { scale, zero_point: (zero_point as i32).clamp(lowest, highest) }
    }

    /// Returns the difference between `value` and the real value of its integer, after rounding and clipping.
    pub fn error(&self, parameters: Parameters, value: f64) -> f64 {
        let (min, max) = self.limits();
        let (scale, zero_point) = (f64::from(parameters.scale), f64::from(parameters.zero_point));
        let integer = ((value / scale).round() + zero_point).clamp(f64::from(min), f64::from(max));
        value - scale * (integer - zero_point)
    }

    /// Returns `exact_scale`, rounded up to a power of two if the scheme requires it; 1 if `exact_scale` is
    /// non-positive or non-finite.
    pub fn scale(&self, exact_scale: f64) -> f32 {
        if exact_scale <= 0.0 || !exact_scale.is_finite() {
            return 1.0;
        }
        let exact_scale = exact_scale.max(MIN_SCALE);
        let scale = if self.power_of_two { exact_scale.log2().ceil().exp2() } else { exact_scale };
        scale.min(f64::from(f32::MAX)) as f32
    }
}

/// Returns the power of two with the smallest `error` among `max_scale` and its successive halves down to `min_scale`;
/// the greatest in case of a tie. At the scale `max_scale`, no value is clipped.
pub fn best_power_of_two(max_scale: f32, min_scale: f64, error: impl Fn(f32) -> f64) -> f32 {
    let min_scale = min_scale.max(MIN_SCALE);
    let mut best_scale = (f64::INFINITY, max_scale);
    let scales = (0..=MAX_HALVINGS).map(|halvings| max_scale * 0.5f32.powi(halvings));
    for scale in scales.take_while(|scale| f64::from(*scale) >= min_scale) {
        let error = error(scale);
        if error < best_scale.0 {
            best_scale = (error, scale);
        }
    }
    best_scale.1
}

impl fmt::Display for Scheme {
    /// Formats the scheme in the syntax of [`Scheme::parse`].
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.symmetric { "symmetric" } else { "asymmetric" })?;
        write!(f, ",{}", self.activation)?;
        f.write_str(if self.per_channel { ",per-channel" } else { ",per-tensor" })?;
        f.write_str(if self.power_of_two { ",power-of-two" } else { "" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(lo: f64, hi: f64) -> Range {
        Range { lo, hi }
    }

    #[test]
    fn symmetric_ranges_are_centered_at_zero() {
        let s = Scheme::SYMMETRIC;
        assert_eq!(s.parameters(range(-2.0, 12.7)), Parameters { scale: 0.1, zero_point: 0 });
        assert_eq!(s.parameters(range(-25.4, 3.0)), Parameters { scale: 0.2, zero_point: 0 });
        assert_eq!(s.parameters(range(0.0, 0.0)), Parameters { scale: 1.0, zero_point: 0 });
    }

    #[test]
    fn asymmetric_ranges_hold_zero_exactly() {
        let s = Scheme::parse("asymmetric").unwrap();
        // 255 steps of 0.1 from -5.1: 0 is 51 steps above -128.
        assert_eq!(s.parameters(range(-5.1, 20.4)), Parameters { scale: 0.1, zero_point: -77 });
        // A range above 0 is extended down to 0, a range below 0 up to 0.
        assert_eq!(s.parameters(range(3.0, 25.5)), Parameters { scale: 0.1, zero_point: -128 });
        assert_eq!(s.parameters(range(-25.5, -3.0)), Parameters { scale: 0.1, zero_point: 127 });
        let unsigned_scheme = Scheme::parse("asymmetric,uint8").unwrap();
        assert_eq!(unsigned_scheme.parameters(range(-5.1, 20.4)), Parameters { scale: 0.1, zero_point: 51 });
    }

    #[test]
    fn powers_of_two_are_rounded_up() {
        let s = Scheme::parse("symmetric,power-of-two").unwrap();
        assert_eq!(s.parameters(range(-1.0, 127.0)).scale, 1.0);
        assert_eq!(s.parameters(range(-1.0, 127.5)).scale, 2.0);
        assert_eq!(s.parameters(range(-0.3, 0.3)).scale, 2f32.powi(-8));
    }

    #[test]
    fn best_power_of_two_is_a_half_of_the_covering_one() {
        // The error is the distance from 2^-3 in octaves.
        let error = |scale: f32| (f64::from(scale).log2() + 3.0).abs();
        assert_eq!(best_power_of_two(4.0, 0.0, error), 0.125);
        assert_eq!(best_power_of_two(4.0, 0.2, error), 0.25);
        assert_eq!(best_power_of_two(4.0, 5.0, error), 4.0);
        assert_eq!(best_power_of_two(0.0625, 0.0, error), 0.0625);
        assert_eq!(best_power_of_two(4.0, 0.0, |_| 1.0), 4.0);
        assert_eq!(best_power_of_two(4.0, 0.0, |_| f64::NAN), 4.0);
    }

    #[test]
    fn error_is_that_of_rounding_and_clipping() {
        let s = Scheme::parse("asymmetric,uint8").unwrap();
        let parameters = Parameters { scale: 0.5, zero_point: 10 };
        for (value, error) in [(0.0, 0.0), (0.7, 0.2), (-5.0, 0.0), (-6.25, -1.25), (122.5, 0.0), (130.0, 7.5)] {
            let actual = s.error(parameters, value);
            assert!((actual - error).abs() < 1e-12, "error of {value}: expected {error}, found {actual}");
        }
    }

    #[test]
    fn scales_stay_in_bounds() {
        let s = Scheme::SYMMETRIC;
        assert!(s.parameters(range(-1e-44, 1e-44)).scale > 0.0);
        assert!(s.parameters(range(-1e300, 1e300)).scale.is_finite());
    }

    #[test]
    fn parses_what_it_prints() {
        for text in ["symmetric,int8,per-channel", "asymmetric,uint8,per-tensor,power-of-two"] {
            assert_eq!(Scheme::parse(text).unwrap().to_string(), text);
        }
        for text in ["", "symetric", "symmetric,uint8", "asymmetric,int4"] {
            assert_eq!(Scheme::parse(text).unwrap_err().code, codes::plugins::NO_SCHEME, "{text}");
        }
    }

    #[test]
    fn declared_schemes_are_checked() {
        let declaration =
            Quantization { activation: "int8".into(), symmetric: true, per_channel: true, ..Default::default() };
        assert_eq!(Scheme::declared("x", &declaration).unwrap(), Scheme::SYMMETRIC);
        for invalid in [
            Quantization { weight: "int4".into(), ..declaration.clone() },
            Quantization { accumulator: "int16".into(), ..declaration.clone() },
            Quantization { activation: "float8".into(), ..declaration.clone() },
            Quantization { activation: "uint8".into(), ..declaration.clone() },
        ] {
            let error = Scheme::declared("x", &invalid).unwrap_err();
            assert!(error.message.contains("declared by x"), "{error}");
        }
    }
}
