//! Transcendental functions without branches or calls, so that loops over a vector of elements are vectorized.

/// Number of elements per vector.
pub const LANES: usize = 16;

/// Vector of `float32` elements.
pub type Lanes = [f32; LANES];

/// Loads `count` elements at offset `offset` of `source`, and sets the other lanes to zero. If `source` is `None`, sets
/// all lanes to zero.
///
/// # Safety
/// `source` must hold `count` elements, at most `LANES`, starting at offset `offset`.
#[inline(always)]
pub unsafe fn load(source: Option<*const f32>, offset: usize, count: usize) -> Lanes {
    let mut lanes = [0.0; LANES];
    if let Some(source) = source {
        // SAFETY: the caller guarantees `count` elements starting at offset `offset`. A full vector compiles to one
        // instruction, a partial one to a call.
        unsafe {
            match count {
                LANES => lanes = source.add(offset).cast::<Lanes>().read_unaligned(),
                _ => std::ptr::copy_nonoverlapping(source.add(offset), lanes.as_mut_ptr(), count),
            }
        }
    }
    lanes
}

/// Stores the first `count` elements of `lanes` at offset `offset` of `destination`.
///
/// # Safety
/// `destination` must be valid for writing `count` elements, at most `LANES`, starting at offset `offset`. No other
/// thread may access these elements.
#[inline(always)]
pub unsafe fn store(lanes: &Lanes, destination: *mut f32, offset: usize, count: usize) {
    // SAFETY: the caller guarantees exclusive access to `count` elements starting at offset `offset`.
    unsafe {
        match count {
            LANES => destination.add(offset).cast::<Lanes>().write_unaligned(*lanes),
            _ => std::ptr::copy_nonoverlapping(lanes.as_ptr(), destination.add(offset), count),
        }
    }
}

/// Computes the sigmoid: `1 / (1 + e^-x)`.
#[inline(always)]
pub fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// Computes the hyperbolic tangent.
#[inline(always)]
pub fn tanh(x: f32) -> f32 {
    1.0 - 2.0 / (exp(2.0 * x) + 1.0)
}

/// Computes `e^x = 2^n * e^r` with `|r| <= ln(2) / 2`, using the polynomial of Cephes' `expf`. Propagates NaN.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    /// Rounding constant 1.5 * 2^23: adding it leaves the rounded integer in the lowest bits of the sum.
    const ROUNDING_BIAS: f32 = 12_582_912.0;
    let x = if x > 88.0 { 88.0 } else { x };
    let x = if x < -87.0 { -87.0 } else { x };
    let biased_quotient = x * std::f32::consts::LOG2_E + ROUNDING_BIAS;
    let n = biased_quotient - ROUNDING_BIAS;
    let r = (x - n * 0.693_359_4) + n * 2.121_944_4e-4;
    let p = ((((1.987_569_1e-4 * r + 1.398_199_9e-3) * r + 8.333_452e-3) * r + 4.166_579_6e-2) * r + 1.666_666_6e-1)
        * r
        + 0.5;
    let scale = f32::from_bits(biased_quotient.to_bits().wrapping_add(127) << 23);
    (p * r * r + r + 1.0) * scale
}

/// Computes `x * tanh(ln(1 + e^x))`. With `n = e^x * (e^x + 2)`, this equals `x * n / (n + 2)`, which needs no
/// logarithm (D. Misra, "Mish: A Self Regularized Non-Monotonic Activation Function", 2019).
#[inline(always)]
pub fn mish(x: f32) -> f32 {
    // For x > 30, n / (n + 2) rounds to 1.
    let e = exp(if x > 30.0 { 30.0 } else { x });
    let n = e * (e + 2.0);
    x * (n / (n + 2.0))
}

/// Computes `ln(x) = k * ln(2) + ln(1 + f)` with `1 + f` between `sqrt(1/2)` and `sqrt(2)`, using the polynomial of
/// Cephes' `logf`.
#[inline(always)]
pub fn ln(x: f32) -> f32 {
    /// Scale factor 2^23, which makes subnormal numbers normal.
    const SUBNORMAL_SCALE: f32 = 8_388_608.0;
    let is_subnormal = x < f32::MIN_POSITIVE;
    let x_bits = (if is_subnormal { x * SUBNORMAL_SCALE } else { x }).to_bits();
    // Subtracting the bits of sqrt(1/2) leaves the exponent that belongs to a mantissa in [sqrt(1/2), sqrt(2)).
    let mantissa_offset = x_bits.wrapping_sub(std::f32::consts::FRAC_1_SQRT_2.to_bits());
    let k = (mantissa_offset as i32 >> 23) as f32 - if is_subnormal { 23.0 } else { 0.0 };
    let f =
        f32::from_bits((mantissa_offset & 0x007f_ffff).wrapping_add(std::f32::consts::FRAC_1_SQRT_2.to_bits())) - 1.0;
    let p = (((7.037_683_6e-2 * f - 1.151_461e-1) * f + 1.167_699_87e-1) * f - 1.242_014_1e-1) * f + 1.424_932_3e-1;
    let p = (((p * f - 1.666_805_8e-1) * f + 2.000_071_5e-1) * f - 2.499_999_4e-1) * f + 3.333_333e-1;
    let square = f * f;
    let correction = p * f * square - 2.121_944_4e-4 * k - 0.5 * square;
    let value = f + correction + 0.693_359_4 * k;
    let value = if x == 0.0 { f32::NEG_INFINITY } else { value };
    let value = if x == f32::INFINITY { x } else { value };
    if x >= 0.0 { value } else { f32::NAN }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sigmoid_and_tanh_match_the_standard_library() {
        let mut x = -100.0f32;
        while x < 100.0 {
            let exact = f64::from(x);
            assert!((f64::from(sigmoid(x)) - 1.0 / (1.0 + (-exact).exp())).abs() < 2e-7, "{x}");
            assert!((f64::from(tanh(x)) - exact.tanh()).abs() < 3e-7, "{x}");
            x += 0.013;
        }
        assert!(sigmoid(f32::NAN).is_nan() && tanh(f32::NAN).is_nan());
        assert_eq!((sigmoid(f32::INFINITY), tanh(f32::NEG_INFINITY)), (1.0, -1.0));
    }

    #[test]
    fn mish_matches_reference_over_its_range() {
        for i in -20_000..20_000 {
            let x = i as f32 * 0.006_137;
            let exact = f64::from(x);
            let expected = exact * exact.exp().ln_1p().tanh();
            let error = (f64::from(mish(x)) - expected).abs();
            assert!(error <= 4e-7 * expected.abs() + 1e-35, "{x}: expected {expected}, found {}", mish(x));
        }
        assert!(mish(f32::NAN).is_nan());
        assert_eq!((mish(f32::INFINITY), mish(0.0), mish(1e30)), (f32::INFINITY, 0.0, 1e30));
    }

    #[test]
    fn logarithm_is_accurate_near_1() {
        let check = |x: f32| {
            let (actual, expected) = (f64::from(ln(x)), f64::from(x).ln());
            assert!((actual - expected).abs() <= 2e-7 * expected.abs(), "{x:e}: expected {expected}, found {actual}");
        };
        (1..f32::INFINITY.to_bits()).step_by(4_099).map(f32::from_bits).for_each(check);
        (1..20_000).flat_map(|i| [1.0 + i as f32 * f32::EPSILON, 1.0 - i as f32 * f32::EPSILON]).for_each(check);
        assert_eq!((ln(0.0), ln(-0.0), ln(1.0)), (f32::NEG_INFINITY, f32::NEG_INFINITY, 0.0));
        assert_eq!(ln(f32::INFINITY), f32::INFINITY);
        assert!(ln(f32::NAN).is_nan() && ln(-1.0).is_nan() && ln(f32::NEG_INFINITY).is_nan());
    }
}
