//! The curves of gates, a vector of elements at a time, without branches or calls: so loops over them become vector code.

/// Elements that are computed together.
pub const LANES: usize = 16;

/// So many elements, beside each other.
pub type Lanes = [f32; LANES];

/// The first `count` elements behind an address; zeros where there is none.
///
/// # Safety
/// So many elements lie there, at most `LANES`.
#[inline(always)]
pub unsafe fn load(from: Option<*const f32>, at: usize, count: usize) -> Lanes {
    let mut lanes = [0.0; LANES];
    if let Some(from) = from {
        // SAFETY: the caller's word. A whole vector is one instruction, a part of one a call.
        unsafe {
            match count {
                LANES => lanes = from.add(at).cast::<Lanes>().read_unaligned(),
                _ => std::ptr::copy_nonoverlapping(from.add(at), lanes.as_mut_ptr(), count),
            }
        }
    }
    lanes
}

/// Writes the first `count` elements.
///
/// # Safety
/// There is room for so many elements, at most `LANES`, which nothing else uses meanwhile.
#[inline(always)]
pub unsafe fn store(lanes: &Lanes, to: *mut f32, at: usize, count: usize) {
    // SAFETY: the caller's word.
    unsafe {
        match count {
            LANES => to.add(at).cast::<Lanes>().write_unaligned(*lanes),
            _ => std::ptr::copy_nonoverlapping(lanes.as_ptr(), to.add(at), count),
        }
    }
}

/// 1 / (1 + e^-x).
#[inline(always)]
pub fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// The hyperbolic tangent.
#[inline(always)]
pub fn tanh(x: f32) -> f32 {
    1.0 - 2.0 / (exp(2.0 * x) + 1.0)
}

/// e^x = 2^n e^r with |r| <= ln 2 / 2, by the polynomial of Cephes' `expf`. A NaN stays one.
#[inline(always)]
fn exp(x: f32) -> f32 {
    /// Adding it leaves the nearest whole number in the lowest bits.
    const MAGIC: f32 = 12_582_912.0;
    let x = if x > 88.0 { 88.0 } else { x };
    let x = if x < -87.0 { -87.0 } else { x };
    let shifted = x * std::f32::consts::LOG2_E + MAGIC;
    let n = shifted - MAGIC;
    let r = (x - n * 0.693_359_4) + n * 2.121_944_4e-4;
    let p = ((((1.987_569_1e-4 * r + 1.398_199_9e-3) * r + 8.333_452e-3) * r + 4.166_579_6e-2) * r + 1.666_666_6e-1)
        * r
        + 0.5;
    let scale = f32::from_bits(shifted.to_bits().wrapping_add(127) << 23);
    (p * r * r + r + 1.0) * scale
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_functions_are_those_of_the_standard_library() {
        let mut x = -100.0f32;
        while x < 100.0 {
            let wide = f64::from(x);
            assert!((f64::from(sigmoid(x)) - 1.0 / (1.0 + (-wide).exp())).abs() < 2e-7, "{x}");
            assert!((f64::from(tanh(x)) - wide.tanh()).abs() < 3e-7, "{x}");
            x += 0.013;
        }
        assert!(sigmoid(f32::NAN).is_nan() && tanh(f32::NAN).is_nan());
        assert_eq!((sigmoid(f32::INFINITY), tanh(f32::NEG_INFINITY)), (1.0, -1.0));
    }
}
