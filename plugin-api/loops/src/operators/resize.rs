//! Attributes of `image.resize2d` and `nn.upsampling`, and the coordinates in the data.

use crate::nest::Expr;
use byoc_plugin_api::DType;
use byoc_plugin_support::region::Op;

/// Interpolation of a resize operator.
pub struct Resize {
    /// True for the nearest element, false for linear interpolation.
    pub is_nearest: bool,
    transformation: Transformation,
    rounding: Rounding,
}

/// Map from the coordinates of the result to those of the data.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Transformation {
    HalfPixel,
    Asymmetric,
    AlignCorners,
}

/// Rounding of a coordinate to the index of an element.
#[derive(Clone, Copy, Debug)]
enum Rounding {
    Floor,
    Ceil,
    HalfUp,
    HalfDown,
}

impl Resize {
    /// Reads the attributes of an operator.
    ///
    /// # Errors
    /// If the value of an attribute is unsupported; the text names the attribute.
    pub fn new(op: &Op<'_>) -> Result<Resize, String> {
        let method = op.attrs().text("method");
        let is_nearest = match method {
            "nearest_neighbor" | "nearest" => true,
            "linear" | "bilinear" => false,
            _ => return Err(format!("attribute method: expected linear or nearest_neighbor, found \"{method}\"")),
        };
        let is_upsampling = op.name == "nn.upsampling";
        let transformation = match op.attrs().text("coordinate_transformation_mode") {
            _ if is_upsampling && op.attrs().flag("align_corners", false) => Transformation::AlignCorners,
            _ if is_upsampling => Transformation::Asymmetric,
            "" | "half_pixel" => Transformation::HalfPixel,
            "asymmetric" => Transformation::Asymmetric,
            "align_corners" => Transformation::AlignCorners,
            mode => {
                return Err(format!(
                    "attribute coordinate_transformation_mode: expected half_pixel, asymmetric or align_corners, \
                     found \"{mode}\""
                ));
            }
        };
        let rounding = match op.attrs().text("rounding_method") {
            "round" | "round_prefer_ceil" if !is_upsampling => Rounding::HalfUp,
            "round_prefer_floor" if !is_upsampling => Rounding::HalfDown,
            "ceil" if !is_upsampling => Rounding::Ceil,
            // Default: round to nearest for `align_corners`, otherwise round down.
            "" if transformation == Transformation::AlignCorners => Rounding::HalfUp,
            _ if is_upsampling && transformation == Transformation::AlignCorners => Rounding::HalfUp,
            _ => Rounding::Floor,
        };
        Ok(Resize { is_nearest, transformation, rounding })
    }

    /// Returns the coordinate in the data for index `index` of the result, along an axis with `source_size` elements in
    /// the data and `target_size` in the result.
    pub fn coordinate(&self, index: Expr, source_size: i64, target_size: i64) -> Coordinate {
        let (numerator, denominator) = match self.transformation {
            Transformation::AlignCorners if target_size > 1 => (index * (source_size - 1), target_size - 1),
            Transformation::AlignCorners => (Expr::Index(0), 1),
            Transformation::Asymmetric => (index * source_size, target_size),
            // ((index + 1/2) * source_size / target_size - 1/2) * 2 * target_size
            Transformation::HalfPixel => ((index * 2 + 1) * source_size - target_size, 2 * target_size),
        };
        Coordinate { numerator, denominator }
    }

    /// Returns the index of the nearest element. `numerator` has the value of [`Coordinate::numerator`].
    pub fn nearest(&self, numerator: Expr, denominator: i64) -> Expr {
        let d = denominator;
        match self.rounding {
            Rounding::Floor => floor_quotient(numerator, d),
            Rounding::Ceil => floor_quotient(numerator + (d - 1), d),
            Rounding::HalfUp => floor_quotient(numerator * 2 + d, 2 * d),
            Rounding::HalfDown => floor_quotient(numerator * 2 + (d - 1), 2 * d),
        }
    }
}

/// Coordinate in the data, represented exactly as a quotient of integers. Greater than -1.
pub struct Coordinate {
    /// Numerator.
    pub numerator: Expr,
    /// Denominator, greater than 0.
    pub denominator: i64,
}

impl Coordinate {
    /// Returns the coordinate rounded down. `numerator` has the value of [`Coordinate::numerator`].
    pub fn floor(&self, numerator: Expr) -> Expr {
        floor_quotient(numerator, self.denominator)
    }

    /// Returns the distance from `floor` to the coordinate as a float32.
    pub fn fraction(&self, numerator: Expr, floor: Expr) -> Expr {
        let d = self.denominator;
        (numerator - floor * d).cast(DType::F32) / Expr::Number(DType::F32, d as f64)
    }
}

/// Returns the quotient rounded toward negative infinity. The quotient must be at least -1: adding 1 makes it
/// nonnegative, since C division rounds toward 0.
fn floor_quotient(numerator: Expr, denominator: i64) -> Expr {
    (numerator + denominator) / denominator - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the nearest element, by the constants that the expressions fold to.
    fn nearest(resize: &Resize, index: i64, from: i64, to: i64) -> i64 {
        let coordinate = resize.coordinate(Expr::Index(index), from, to);
        resize.nearest(coordinate.numerator, coordinate.denominator).as_index().unwrap()
    }

    #[test]
    fn nearest_elements_are_exact() {
        use Rounding::{Ceil, Floor, HalfDown, HalfUp};
        use Transformation::{AlignCorners, Asymmetric, HalfPixel};
        for transformation in [HalfPixel, Asymmetric, AlignCorners] {
            for rounding in [Floor, Ceil, HalfUp, HalfDown] {
                let resize = Resize { is_nearest: true, transformation, rounding };
                for (from, to) in [(1, 4), (3, 7), (7, 3), (5, 5), (10, 23), (16, 8), (9, 4)] {
                    for index in 0..to {
                        let (x, m, n) = (index as f64, from as f64, to as f64);
                        let coordinate = match transformation {
                            HalfPixel => (x + 0.5) * m / n - 0.5,
                            Asymmetric => x * m / n,
                            AlignCorners => x * (m - 1.0) / (n - 1.0),
                        };
                        let expected = match rounding {
                            Floor => coordinate.floor(),
                            Ceil => coordinate.ceil(),
                            HalfUp => (coordinate + 0.5).floor(),
                            HalfDown => (coordinate - 0.5).ceil(),
                        };
                        assert_eq!(nearest(&resize, index, from, to), expected as i64, "{from} to {to}, index {index}");
                    }
                }
            }
        }
    }
}
