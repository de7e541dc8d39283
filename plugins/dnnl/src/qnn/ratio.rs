//! Ratio of two scales, in fixed point or as a float.

/// Rounding of ties (values halfway between two integers). All other values are rounded to the nearest integer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounding {
    /// Rounds ties toward positive infinity.
    Up,
    /// Rounds ties away from zero.
    Away,
    /// Rounds ties to even.
    Even,
}

/// Fixed-point number `multiplier * 2^(exponent - 31)`, with 2^30 <= multiplier < 2^31.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fixed {
    /// Leading 31 bits of the ratio.
    pub multiplier: i32,
    pub exponent: i32,
}

impl Fixed {
    /// Returns `in_scale / out_scale`, rounded to 31 bits, with ties rounded up. Both scales must be finite and
    /// positive.
    pub fn ratio(in_scale: f32, out_scale: f32) -> Fixed {
        // The quotient of two 32-bit floats is a normal 64-bit float, 1.m * 2^(e - 1023).
        let bits = (f64::from(in_scale) / f64::from(out_scale)).to_bits();
        let exponent = ((bits >> 52) & 0x7ff) as i32 - 1022;
        let mantissa = (bits & ((1 << 52) - 1)) | (1 << 52);
        match (mantissa + (1 << 21)) >> 22 {
            // The mantissa was rounded up to the next power of two.
            0x8000_0000 => Fixed { multiplier: 1 << 30, exponent: exponent + 1 },
            multiplier => Fixed { multiplier: multiplier as i32, exponent },
        }
    }
}

impl Fixed {
    /// Returns `x * self`, rounded with ties up, for a result below 2^21 in magnitude.
    fn apply(self, x: i32) -> Option<i32> {
        let shift = 31 - self.exponent;
        if !(1..=62).contains(&shift) {
            return None;
        }
        let scaled_value = (i64::from(x) * i64::from(self.multiplier) + (1 << (shift - 1))) >> shift;
        i32::try_from(scaled_value).ok().filter(|scaled_value| scaled_value.abs() < 1 << 21)
    }

    /// Returns a float by which every integer between `low` and `high` has the same product as by `self` when both are
    /// rounded with ties up; `None` if no float next to the ratio has this property.
    pub fn equivalent_float(self, low: i32, high: i32) -> Option<f32> {
        let ratio = (f64::from(self.multiplier) * f64::powi(2.0, self.exponent - 31)) as f32;
        let is_equivalent = |ratio: &f32| {
            (low..=high).all(|x| self.apply(x).is_some_and(|y| (x as f32 * ratio + 0.5).floor() == y as f32))
        };
        [ratio, ratio.next_up(), ratio.next_down()].into_iter().find(is_equivalent)
    }
}

/// Per-tensor or per-axis scale ratios.
#[derive(Clone, Debug, PartialEq)]
pub enum Ratios {
    /// Equal scales.
    Same,
    /// Ratios in 64-bit fixed point.
    Fixed(Vec<Fixed>),
    /// Ratios as 32-bit floats.
    Float(Vec<f32>),
}

impl Ratios {
    /// Returns the ratio of each scale in `in_scales` to the scale `out_scale`, as floats if `are_floats` is set,
    /// otherwise in fixed point. All scales must be finite and positive.
    pub fn new(in_scales: &[f32], out_scale: f32, are_floats: bool) -> Ratios {
        if in_scales.iter().all(|&in_scale| in_scale == out_scale) {
            Ratios::Same
        } else if are_floats {
            Ratios::Float(in_scales.iter().map(|&in_scale| in_scale / out_scale).collect())
        } else {
            Ratios::Fixed(in_scales.iter().map(|&in_scale| Fixed::ratio(in_scale, out_scale)).collect())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_replace_fixed_points_on_bytes() {
        let mut replaced_count = 0;
        for step in 1..2000 {
            let fixed = Fixed::ratio(step as f32 * 0.0037, 1.0);
            let Some(float) = fixed.equivalent_float(-128, 255) else { continue };
            replaced_count += 1;
            for x in -128..=255i32 {
                let product = i64::from(x) * i64::from(fixed.multiplier);
                let expected = (product + (1i64 << (30 - fixed.exponent))) >> (31 - fixed.exponent);
                assert_eq!((x as f32 * float + 0.5).floor() as i64, expected, "{x} * {fixed:?}");
            }
        }
        assert!(replaced_count > 1900, "{replaced_count} of 1999 ratios");
        assert_eq!(Fixed::ratio(1e20, 1.0).equivalent_float(0, 255), None);
    }

    #[test]
    fn ratio_splits_into_fraction_and_power_of_two() {
        let fixed_point = |multiplier, exponent| Fixed { multiplier, exponent };
        assert_eq!(Fixed::ratio(1.0, 1.0), fixed_point(1 << 30, 1));
        assert_eq!(Fixed::ratio(0.75, 1.0), fixed_point(3 << 29, 0));
        assert_eq!(Fixed::ratio(3.0, 0.25), fixed_point(3 << 29, 4));
        assert_eq!(Fixed::ratio(1.0, 3.0), fixed_point(1_431_655_765, -1));
        let smallest_float = f32::from_bits(1);
        assert_eq!(Fixed::ratio(smallest_float, smallest_float * 8.0), fixed_point(1 << 30, -2));
        assert_eq!(Fixed::ratio(smallest_float, f32::MAX).exponent, -276);
        // 1 - 2^-24, the largest float32 below 1.
        let below_one = Fixed::ratio(f32::from_bits(0x3f7f_ffff), 1.0);
        assert_eq!(below_one, fixed_point(0x7fff_ff80, 0));
        let adjacent_floats = (8_388_609.0f32, 8_388_608.0f32);
        assert_eq!(Fixed::ratio(adjacent_floats.1, adjacent_floats.0), fixed_point(0x7fff_ff00, 0));
    }
}
