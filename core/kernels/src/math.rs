//! Branch-free functions of an `f32`, so that loops over them vectorize. Their polynomials are minimax fits to the
//! functions, on the intervals given below; NaN propagates.

use super::simd::{exp, mul_add};

/// Evaluates a polynomial by Horner's rule; the coefficient of the highest power comes first.
#[inline(always)]
fn polynomial<const FMA: bool, const N: usize>(x: f32, coefficients: [f32; N]) -> f32 {
    let mut y = coefficients[0];
    for c in &coefficients[1..] {
        y = mul_add::<FMA>(y, x, *c);
    }
    y
}

/// Computes 1 / (1 + e^-x), in a form that cannot overflow: both branches use e^-|x|.
#[inline(always)]
pub(super) fn sigmoid<const FMA: bool>(x: f32) -> f32 {
    let e = exp::<FMA>(-x.abs());
    (if x < 0.0 { e } else { 1.0 }) / (1.0 + e)
}

/// Computes the hyperbolic tangent: x + x^3 * p(x^2) for |x| < 0.65, otherwise 1 - 2 / (e^(2 * |x|) + 1) with the sign
/// of x.
#[inline(always)]
pub(super) fn tanh<const FMA: bool>(x: f32) -> f32 {
    let (t, z) = (x.abs(), x * x);
    let p =
        polynomial::<FMA, 5>(z, [-5.528_624_6e-3, 2.048_330_6e-2, -5.369_296_3e-2, 1.333_089_9e-1, -3.333_326_3e-1]);
    let small_result = mul_add::<FMA>(x * z, p, x);
    let large_result = (1.0 - 2.0 / (exp::<FMA>(2.0 * t) + 1.0)).copysign(x);
    if t < 0.65 { small_result } else { large_result }
}

/// Computes the error function: with t = |x|, x + x * p(x^2) for t < 0.92, otherwise 1 - e^(t * q(t) - t) with the sign
/// of x. `t` is clamped to 4, where the result rounds to 1.
#[inline(always)]
pub(super) fn erf<const FMA: bool>(x: f32) -> f32 {
    let z = x * x;
    let p = polynomial::<FMA, 7>(
        z,
        [8.215_423e-5, -8.105_965e-4, 5.197_797e-3, -2.685_810_4e-2, 1.128_367_3e-1, -3.761_263_2e-1, 1.283_791_7e-1],
    );
    let small_result = mul_add::<FMA>(x, p, x);
    let t = x.abs();
    let clamped = if t > 4.0 { 4.0 } else { t };
    let q = polynomial::<FMA, 7>(
        clamped,
        [
            -1.043_311_5e-5,
            3.148_581e-4,
            -3.610_342e-3,
            2.369_456_6e-2,
            -1.061_590_5e-1,
            -6.351_980_6e-1,
            -1.286_370_8e-1,
        ],
    );
    let large_result = (1.0 - exp::<FMA>(mul_add::<FMA>(clamped, q, -clamped))).copysign(x);
    if t < 0.92 { small_result } else { large_result }
}

/// Splits x = 2^n * (1 + f) with 1 + f in [sqrt(1/2), sqrt(2)); returns n, f and log(1 + f) - f. `x` must be positive,
/// normal or subnormal.
#[inline(always)]
fn split_log<const FMA: bool>(x: f32) -> (f32, f32, f32) {
    // A subnormal number is scaled into the normal range first.
    let is_tiny = x < f32::MIN_POSITIVE;
    let normal_value = if is_tiny { x * 8_388_608.0 } else { x };
    let bits = normal_value.to_bits() as i32;
    // 0x3f3504f3 is the bit pattern of sqrt(1/2), so the shifted difference is the exponent of x / sqrt(1/2), rounded
    // down.
    let n = bits.wrapping_sub(0x3f35_04f3) >> 23;
    let f = f32::from_bits(bits.wrapping_sub(n << 23) as u32) - 1.0;
    let p = polynomial::<FMA, 9>(
        f,
        [
            6.746_601e-2,
            -1.167_564_1e-1,
            1.188_817_5e-1,
            -1.240_559_15e-1,
            1.421_955e-1,
            -1.666_799_6e-1,
            2.000_211_9e-1,
            -2.500_001e-1,
            3.333_331_3e-1,
        ],
    );
    let z = f * f;
    let correction = mul_add::<FMA>(z * f, p, -0.5 * z);
    (n as f32 - if is_tiny { 23.0 } else { 0.0 }, f, correction)
}

/// Handles the arguments for which a logarithm is not finite.
#[inline(always)]
fn log_ends(x: f32, y: f32) -> f32 {
    let y = if x == 0.0 { f32::NEG_INFINITY } else { y };
    let y = if x == f32::INFINITY { x } else { y };
    // The comparison is also false for NaN.
    if x >= 0.0 { y } else { f32::NAN }
}

/// Computes the natural logarithm.
#[inline(always)]
pub(super) fn log<const FMA: bool>(x: f32) -> f32 {
    // ln 2 in two parts, the first of which has so few bits that its products with n are exact.
    const HIGH: f32 = 0.693_359_4;
    const LOW: f32 = -2.121_944_4e-4;
    let (n, f, correction) = split_log::<FMA>(x);
    log_ends(x, mul_add::<FMA>(n, HIGH, f + mul_add::<FMA>(n, LOW, correction)))
}

/// Computes the logarithm to base 2, exact for powers of two.
#[inline(always)]
pub(super) fn log2<const FMA: bool>(x: f32) -> f32 {
    // log2(e) = 1 + EXCESS.
    const EXCESS: f32 = 0.442_695_04;
    let (n, f, correction) = split_log::<FMA>(x);
    let part = f + correction;
    let low = mul_add::<FMA>(part, EXCESS, (f - part) + correction);
    log_ends(x, n + (part + low))
}

/// Computes the logarithm to base 10.
#[inline(always)]
pub(super) fn log10<const FMA: bool>(x: f32) -> f32 {
    // log10(2) in two parts, the first of which has so few bits that its products with n are exact.
    const HIGH: f32 = 0.301_025_4;
    const LOW: f32 = 4.605_038_7e-6;
    let (n, f, correction) = split_log::<FMA>(x);
    let part = (f + correction) * std::f32::consts::LOG10_E;
    log_ends(x, mul_add::<FMA>(n, HIGH, mul_add::<FMA>(n, LOW, part)))
}
