//! Attributes of `image.resize2d` and `nn.upsampling`, and C expressions for coordinates in the data.

use crate::region::Op;

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
    pub fn coordinate(&self, index: &str, source_size: i64, target_size: i64) -> Coordinate {
        let (numerator, denominator) = match self.transformation {
            Transformation::AlignCorners if target_size > 1 => {
                (format!("{index} * {}", source_size - 1), target_size - 1)
            }
            Transformation::AlignCorners => ("0".to_owned(), 1),
            Transformation::Asymmetric => (format!("{index} * {source_size}"), target_size),
            // ((index + 1/2) * source_size / target_size - 1/2) * 2 * target_size
            Transformation::HalfPixel => {
                (format!("(2 * {index} + 1) * {source_size} - {target_size}"), 2 * target_size)
            }
        };
        Coordinate { numerator, denominator }
    }

    /// Returns the index of the nearest element, as a C expression. `numerator` is an expression with the value of
    /// [`Coordinate::numerator`].
    pub fn nearest(&self, numerator: &str, denominator: i64) -> String {
        let d = denominator;
        match self.rounding {
            Rounding::Floor => floor_quotient(numerator, d),
            Rounding::Ceil => floor_quotient(&format!("{numerator} + {}", d - 1), d),
            Rounding::HalfUp => floor_quotient(&format!("2 * {numerator} + {d}"), 2 * d),
            Rounding::HalfDown => floor_quotient(&format!("2 * {numerator} + {}", d - 1), 2 * d),
        }
    }
}

/// Coordinate in the data, represented exactly as a quotient of integers. Greater than -1.
pub struct Coordinate {
    /// Numerator, as a C expression.
    pub numerator: String,
    /// Denominator, greater than 0.
    pub denominator: i64,
}

impl Coordinate {
    /// Returns the coordinate rounded down, as a C expression. `numerator` is an expression with the value of
    /// [`Coordinate::numerator`].
    pub fn floor(&self, numerator: &str) -> String {
        floor_quotient(numerator, self.denominator)
    }

    /// Returns the distance from `floor` to the coordinate as a float32 expression.
    pub fn fraction(&self, numerator: &str, floor: &str) -> String {
        let d = self.denominator;
        format!("(float)({numerator} - {floor} * {d}) / {d}.0f")
    }
}

/// Returns the quotient rounded toward negative infinity. The quotient must be at least -1: adding 1 makes it
/// nonnegative, since C division rounds toward 0.
fn floor_quotient(numerator: &str, denominator: i64) -> String {
    format!("({numerator} + {denominator}) / {denominator} - 1")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Evaluates the expressions of this module for an index, in place of a C compiler: substitutes the numerator, and
    /// divides as C does.
    fn nearest(resize: &Resize, index: i64, from: i64, to: i64) -> i64 {
        let numerator = match resize.transformation {
            Transformation::AlignCorners => index * (from - 1),
            Transformation::Asymmetric => index * from,
            Transformation::HalfPixel => (2 * index + 1) * from - to,
        };
        let text = resize.nearest("n", resize.coordinate("i", from, to).denominator);
        let (sum, rest) = text.strip_prefix('(').unwrap().split_once(") / ").unwrap();
        let denominator: i64 = rest.strip_suffix(" - 1").unwrap().parse().unwrap();
        let sum: i64 = sum
            .split(" + ")
            .map(|term| match term {
                "n" => numerator,
                "2 * n" => 2 * numerator,
                number => number.parse().unwrap(),
            })
            .sum();
        sum / denominator - 1
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
