//! Loops that are compiled three times (for AVX-512, for AVX2 with fused multiply-add, and for baseline x86-64) and
//! selected at run time. The crate is built for baseline x86-64, so that one binary runs on every x86-64 processor.

use std::sync::LazyLock;

/// Vector instruction set of the processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    /// Instructions of the compilation target.
    Baseline,
    /// 256-bit vectors with fused multiply-add.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// 512-bit vectors.
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

/// Returns the highest level that this processor supports and the variable `BYOC_MAX_ISA` permits.
pub(crate) fn level() -> Level {
    static LEVEL: LazyLock<Level> = LazyLock::new(|| {
        #[cfg(target_arch = "x86_64")]
        {
            let has_avx2 = permits(Level::Avx2) && is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
            if has_avx2
                && permits(Level::Avx512)
                && is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl")
            {
                return Level::Avx512;
            }
            if has_avx2 {
                return Level::Avx2;
            }
        }
        Level::Baseline
    });
    *LEVEL
}

/// Returns true unless the variable `BYOC_MAX_ISA` names a lower level: `avx2` or `baseline`.
#[cfg(target_arch = "x86_64")]
pub(crate) fn permits(level: Level) -> bool {
    match std::env::var("BYOC_MAX_ISA").as_deref() {
        Ok("avx2") => level <= Level::Avx2,
        Ok("baseline") => level <= Level::Baseline,
        _ => true,
    }
}

/// Computes `a * b + c`, fused if `FMA` is true. Fusing requires hardware support; without it, the standard function is
/// a slow library call.
#[inline(always)]
pub(crate) fn mul_add<const FMA: bool>(a: f32, b: f32, c: f32) -> f32 {
    if FMA { a.mul_add(b, c) } else { a * b + c }
}

/// Declares functions whose bodies are compiled once per [`Level`]. In a body, the constant `FMA` is true if fused
/// multiply-add is available; bodies pass it to [`mul_add`]. Helpers called from a body must be `#[inline(always)]`.
macro_rules! multiversion {
    ($($(#[$meta:meta])* $vis:vis fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? $body:block)*) => {$(
        $(#[$meta])*
        $vis fn $name($($arg: $ty),*) $(-> $ret)? {
            #[inline(always)]
            fn body<const FMA: bool>($($arg: $ty),*) $(-> $ret)? $body
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
                fn avx512($($arg: $ty),*) $(-> $ret)? {
                    body::<true>($($arg),*)
                }
                #[target_feature(enable = "avx2,fma")]
                fn avx2($($arg: $ty),*) $(-> $ret)? {
                    body::<true>($($arg),*)
                }
                match $crate::simd::level() {
                    // SAFETY: `level` detected every feature that `avx512` enables.
                    $crate::simd::Level::Avx512 => return unsafe { avx512($($arg),*) },
                    // SAFETY: `level` detected every feature that `avx2` enables.
                    $crate::simd::Level::Avx2 => return unsafe { avx2($($arg),*) },
                    $crate::simd::Level::Baseline => {}
                }
            }
            body::<false>($($arg),*)
        }
    )*};
}
pub(crate) use multiversion;

/// 1.5 * 2^23 and 1.5 * 2^52: the sum with an integral value below 2^22, or 2^51, has the value's two's complement in
/// its lowest bits. The conversions of the language saturate, for which processors have no vector instructions.
const SUMMAND_F32: f32 = 12_582_912.0;
const SUMMAND_F64: f64 = 6_755_399_441_055_744.0;

/// Returns the lowest byte of an integral value below 2^22 in magnitude; 0 for NaN.
#[inline(always)]
pub(crate) fn low_byte(value: f32) -> u8 {
    let value = if value.is_nan() { 0.0 } else { value };
    (value + SUMMAND_F32).to_bits() as u8
}

/// Returns the lowest byte of an integral value below 2^51 in magnitude.
#[inline(always)]
pub(crate) fn low_byte_f64(value: f64) -> u8 {
    (value + SUMMAND_F64).to_bits() as u8
}

multiversion! {
    /// Converts integral values below 2^24 in magnitude.
    pub(crate) fn to_integers(values: &[f32], out: &mut [i32]) {
        const BOUND: f32 = (1 << 24) as f32;
        for (out, &value) in out.iter_mut().zip(values) {
            let value = if value > -BOUND { value } else { -BOUND };
            let value = if value < BOUND { value } else { BOUND };
            // SAFETY: the comparisons, which are false for NaN, bound the value.
            *out = unsafe { value.to_int_unchecked() };
        }
    }

    /// Copies every `step`-th element of `values` until `out` is full.
    pub(super) fn copy_every(out: &mut [f32], values: &[f32], step: usize) {
        match step {
            1 => out.copy_from_slice(&values[..out.len()]),
            2 => {
                let (pairs, tail) = values.as_chunks::<2>();
                out.iter_mut().zip(pairs).for_each(|(t, f)| *t = f[0]);
                if let (Some(t), Some(f)) = (out.get_mut(pairs.len()), tail.first()) {
                    *t = *f;
                }
            }
            _ => out.iter_mut().zip(values.iter().step_by(step)).for_each(|(t, f)| *t = *f),
        }
    }
}

/// Computes e^x within 2 units in the last place: x = n * ln 2 + r, with a polynomial for e^r (Cephes' expf). NaN
/// propagates.
#[inline(always)]
pub(crate) fn exp<const FMA: bool>(x: f32) -> f32 {
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    // Beyond these bounds the result is 0 or infinite. (`max` and `min` would lose a NaN.)
    let clamped = if x < -104.0 { -104.0 } else { x };
    let clamped = if clamped > 88.8 { 88.8 } else { clamped };
    // Adding and subtracting 1.5 * 2^23 rounds to the nearest integer.
    let shifted = clamped * std::f32::consts::LOG2_E + 12_582_912.0;
    let n = shifted - 12_582_912.0;
    let r = mul_add::<FMA>(n, -LN2_LOW, mul_add::<FMA>(n, -LN2_HIGH, clamped));
    let mut p = 1.987_569_1e-4;
    p = mul_add::<FMA>(p, r, 1.398_2e-3);
    p = mul_add::<FMA>(p, r, 8.333_452e-3);
    p = mul_add::<FMA>(p, r, 4.166_579_6e-2);
    p = mul_add::<FMA>(p, r, 1.666_666_5e-1);
    p = mul_add::<FMA>(p, r, 0.5);
    let y = mul_add::<FMA>(p * r, r, r) + 1.0;
    // 2^n in two factors, each a normal number, so that denormal results are correct.
    let n = (shifted.to_bits() as i32).wrapping_sub(0x4b40_0000);
    let half = n >> 1;
    let power = |k: i32| f32::from_bits((k.wrapping_add(127) as u32) << 23);
    y * power(half) * power(n.wrapping_sub(half))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn converts_integral_values() {
        for value in -300i32..=300 {
            assert_eq!(low_byte(value as f32), value as u8);
            assert_eq!(low_byte_f64(f64::from(value)), value as u8);
        }
        assert_eq!([f32::NAN, -f32::NAN, f32::from_bits(0x7fc0_00ff)].map(low_byte), [0; 3]);
        let values: Vec<i32> = (-40..=40).map(|i| i * 419_430).chain([1 << 24, -(1 << 24)]).collect();
        let (floats, mut integers) = (values.iter().map(|&i| i as f32).collect::<Vec<_>>(), vec![0; values.len()]);
        to_integers(&floats, &mut integers);
        assert_eq!(integers, values);
    }

    multiversion! {
        fn exps(values: &mut [f32]) {
            for v in values {
                *v = exp::<FMA>(*v);
            }
        }
    }

    #[test]
    fn exp_is_exact_to_two_units() {
        let inputs: Vec<f32> = (-104_000..=88_700).map(|i| i as f32 / 1000.0).collect();
        let mut actual = inputs.clone();
        exps(&mut actual);
        for (x, g) in inputs.iter().zip(&actual) {
            let expected = f64::from(*x).exp();
            let unit = (expected * 2f64.powi(-23)).max(f64::from(f32::from_bits(1)));
            assert!((f64::from(*g) - expected).abs() <= 2.0 * unit, "exp({x}): expected {expected}, found {g}");
        }
    }

    #[test]
    fn exp_at_the_ends() {
        let mut values = [f32::NEG_INFINITY, f32::INFINITY, f32::NAN, 0.0, -1e30, 1e30];
        exps(&mut values);
        assert_eq!((values[0], values[3], values[4]), (0.0, 1.0, 0.0));
        assert!(values[1] == f32::INFINITY && values[2].is_nan() && values[5] == f32::INFINITY, "{values:?}");
    }
}
