//! Random dimensions, element types and values. A theme selects the part of the input space that a case samples. All
//! draws derive from a seed, and are the same on every machine.

use crate::budget::largest_finite;
use byoc::io::random::Random;
use byoc_ir::tensor::{DType, Element, Tensor};
use byoc_ir::with_dtype;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Range of the dimensions of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DimRange {
    /// Dimensions from 2 to 6.
    Small,
    /// Odd dimensions, which are not multiples of a vector width.
    Odd,
    /// Dimensions that are mostly 1.
    One,
    /// Dimensions from 2 to 6, one of which is replaced by 0.
    Zero,
    /// Dimensions around multiples of 16, the boundaries of vectors, blocks and cache lines.
    Wide,
}

/// Value distribution of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Values {
    /// Floats between -2 and 2; small integers.
    Plain,
    /// Includes NaN, infinities and zeros of both signs.
    Special,
    /// Subnormal numbers.
    Denormal,
    /// Includes the largest and the smallest value of the type.
    Extreme,
}

/// Part of the input space that a case samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Theme {
    /// Range of the dimensions.
    pub dims: DimRange,
    /// Value distribution.
    pub values: Values,
    /// Element type of the first operand.
    pub dtype: DType,
}

const fn theme(sizes: DimRange, values: Values, dtype: DType) -> Theme {
    Theme { dims: sizes, values, dtype }
}

/// Themes for the cases of an operator or a pattern, in order. Additional cases repeat the themes with different random
/// values.
pub const THEMES: &[Theme] = &[
    theme(DimRange::Small, Values::Plain, DType::F32),
    theme(DimRange::Odd, Values::Plain, DType::F32),
    theme(DimRange::Odd, Values::Special, DType::F32),
    theme(DimRange::Zero, Values::Plain, DType::F32),
    theme(DimRange::Wide, Values::Plain, DType::F32),
    theme(DimRange::Small, Values::Extreme, DType::I32),
    theme(DimRange::Odd, Values::Denormal, DType::F32),
    theme(DimRange::Small, Values::Plain, DType::I8),
    theme(DimRange::One, Values::Plain, DType::F32),
    theme(DimRange::Wide, Values::Plain, DType::F16),
    theme(DimRange::Odd, Values::Plain, DType::F64),
    theme(DimRange::Small, Values::Extreme, DType::I8),
    theme(DimRange::Wide, Values::Special, DType::F32),
    theme(DimRange::Odd, Values::Plain, DType::U8),
    theme(DimRange::Small, Values::Extreme, DType::I64),
    theme(DimRange::Odd, Values::Plain, DType::Bool),
    theme(DimRange::Wide, Values::Extreme, DType::F32),
    theme(DimRange::Odd, Values::Plain, DType::BF16),
    theme(DimRange::Wide, Values::Plain, DType::I32),
    theme(DimRange::Odd, Values::Extreme, DType::U8),
    theme(DimRange::Small, Values::Plain, DType::I64),
    theme(DimRange::Wide, Values::Denormal, DType::F32),
    theme(DimRange::Odd, Values::Special, DType::F16),
    theme(DimRange::Odd, Values::Plain, DType::U32),
];

/// Convolution attribute that a case varies; together, the cases of a claim vary every such attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variation {
    /// Dilation greater than 1.
    Dilation,
    /// Several groups, each with several channels.
    Groups,
    /// Padding that differs between the two sides of an axis.
    Padding,
}

/// Declared quantization scheme of a backend, reduced to its restrictions on operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scheme {
    /// Element type of activations.
    pub activation: DType,
    /// True if every zero point is 0.
    pub symmetric: bool,
    /// True if every scale is a power of two.
    pub power_of_two: bool,
}

/// Restrictions on the cases of a claim, derived from its refusals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Restrictions {
    /// True if all operands after the first are constants.
    pub constants: bool,
    /// True if broadcast operands are scalars.
    pub scalars: bool,
    /// True if attributes are restricted as described at [`Sampler::common_attrs`].
    pub common_attrs: bool,
    /// True if quantized operands have zero points of 0.
    pub symmetric: bool,
}

impl Restrictions {
    /// Returns the restrictions that may avoid a refusal with this code, most specific first.
    pub fn for_refusal_code(code: &str) -> &'static [Restrictions] {
        const NONE: Restrictions =
            Restrictions { constants: false, scalars: false, common_attrs: false, symmetric: false };
        const CONSTANTS: Restrictions = Restrictions { constants: true, ..NONE };
        const SCALARS: Restrictions = Restrictions { scalars: true, ..CONSTANTS };
        const COMMON: Restrictions = Restrictions { common_attrs: true, ..NONE };
        const SYMMETRIC: Restrictions = Restrictions { symmetric: true, common_attrs: true, ..CONSTANTS };
        const ALL: Restrictions = Restrictions { scalars: true, ..SYMMETRIC };
        match code {
            "NotConstant" => &[CONSTANTS, SCALARS, ALL],
            "UnsupportedShape" => &[SCALARS, COMMON, ALL],
            "UnsupportedAttr" | "UnsupportedLayout" => &[COMMON, SCALARS, ALL],
            "QuantScheme" => &[SYMMETRIC, ALL],
            "UnsupportedOp" | "UnsupportedDtype" | "ResourceLimit" => &[SYMMETRIC, ALL],
            _ => &[],
        }
    }
}

/// Constraint on the elements of an operand.
#[derive(Clone, Debug, PartialEq)]
pub enum Fill {
    /// Arbitrary values within the theme.
    Free,
    /// Terms of a sum: same as `Free`, but without values whose sum overflows only in some summation orders.
    Terms,
    /// Factors of the terms of a sum: values as in [`Values::Plain`], in any theme.
    Factors,
    /// Values between two bounds, inclusive.
    Within(f64, f64),
    /// Same as `Free`, but without zeros.
    NonZero,
    /// Powers of two with exponents between two bounds, inclusive.
    PowerOfTwo(i64, i64),
    /// Exactly the listed integers.
    Exactly(Vec<i64>),
}

/// Random generator of dimensions and values.
pub struct Sampler {
    random: Random,
    /// Index of the case.
    pub index: usize,
    /// Part of the input space to sample.
    pub theme: Theme,
    /// True if attributes are restricted to common values: default layouts, no dilation, equal padding on both sides. A
    /// backend that supports only common values thus has enough supported cases.
    pub common_attrs: bool,
    /// Scheme that scales and zero points conform to, if any.
    pub scheme: Option<Scheme>,
    /// Restrictions derived from earlier refusals.
    pub restrictions: Restrictions,
    /// Declared layouts of the backend.
    pub layouts: Arc<Layouts>,
    /// Preferred shape of the next operand: the shape of the value that it is combined with.
    pub shape_hint: Option<Vec<usize>>,
}

/// Declared layouts per operator: data layout, then kernel layout.
pub type Layouts = BTreeMap<String, Vec<String>>;

impl Sampler {
    /// Creates a generator for a theme.
    pub fn new(seed: u64, theme: Theme) -> Sampler {
        Sampler {
            random: Random::new(seed),
            index: 0,
            theme,
            common_attrs: false,
            scheme: None,
            restrictions: Restrictions::default(),
            layouts: Arc::default(),
            shape_hint: None,
        }
    }

    /// Returns the declared layouts of an operator in three out of four draws and `None` otherwise, so that some cases
    /// have undeclared layouts.
    pub fn declared_layouts(&mut self, operator: &str) -> Option<Vec<String>> {
        let layouts = self.layouts.get(operator).cloned()?;
        (!self.chance(4)).then_some(layouts)
    }

    /// Draws an integer below `n`; 0 if `n` is 0.
    pub fn below(&mut self, n: usize) -> usize {
        (self.random.next_u64() % n.max(1) as u64) as usize
    }

    /// Draws an integer from `min` to `max`, inclusive.
    pub fn int(&mut self, min: i64, max: i64) -> i64 {
        min + self.below((max - min + 1).max(1) as usize) as i64
    }

    /// Draws an element of `items`.
    pub fn pick<T: Clone>(&mut self, items: &[T]) -> T {
        items[self.below(items.len())].clone()
    }

    /// Returns true with probability `1/n`.
    pub fn chance(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    /// Returns the attribute that the case varies; `None` if the attributes have common values or are random.
    pub fn variation(&self) -> Option<Variation> {
        let variations = [None, Some(Variation::Dilation), Some(Variation::Groups), Some(Variation::Padding)];
        // The second term varies the attributes among the cases of one element type as well.
        variations[(self.index + self.index / 8) % 4].filter(|_| !self.common_attrs)
    }

    /// Draws a non-zero dimension.
    pub fn dim(&mut self) -> usize {
        match self.theme.dims {
            DimRange::Small | DimRange::Zero => 2 + self.below(5),
            DimRange::Odd => self.pick(&[3, 5, 7, 9, 11, 13]),
            DimRange::One => self.pick(&[1, 1, 1, 2]),
            DimRange::Wide => self.pick(&[15, 16, 17, 19, 31, 32, 33]),
        }
    }

    /// Draws a dimension of a matrix product. Some dimensions exceed the block sizes of typical libraries.
    pub fn matrix_dim(&mut self) -> usize {
        if self.theme.dims == DimRange::Wide && self.chance(3) { self.pick(&[257, 513, 600]) } else { self.dim() }
    }

    /// Draws a spatial dimension, from a smaller range than [`Sampler::dim`], because the number of elements grows
    /// with its square or cube.
    pub fn spatial_dim(&mut self) -> usize {
        match self.theme.dims {
            DimRange::Wide => self.pick(&[8, 9, 14, 17]),
            DimRange::Zero => 3 + self.below(4),
            _ => self.dim(),
        }
    }

    /// Draws a batch dimension; 0 if the theme has a dimension of 0.
    pub fn batch(&mut self) -> usize {
        match self.theme.dims {
            DimRange::Zero => 0,
            DimRange::Wide => 1 + self.below(2),
            _ => 1 + self.below(3),
        }
    }

    /// Draws a shape of this rank, with one dimension of 0 if the theme requires it.
    pub fn shape(&mut self, rank: usize) -> Vec<usize> {
        let mut elements = 1;
        let mut shape: Vec<usize> = Vec::with_capacity(rank);
        for _ in 0..rank {
            // The number of elements is bounded, because the references are slow.
            let dim = if elements > 512 { 1 + self.below(3) } else { self.dim() };
            elements *= dim;
            shape.push(dim);
        }
        if self.theme.dims == DimRange::Zero && rank > 0 {
            let axis = self.below(rank);
            shape[axis] = 0;
        }
        shape
    }

    /// Draws a shape whose rank is between `min` and `max`, inclusive. If the rank of the shape hint is in this range,
    /// the result is the hint.
    pub fn shape_of_rank(&mut self, min: usize, max: usize) -> Vec<usize> {
        if let Some(shape) = self.shape_hint.as_ref().filter(|shape| (min..=max).contains(&shape.len())) {
            return shape.clone();
        }
        let rank = self.int(min as i64, max as i64) as usize;
        self.shape(rank)
    }

    /// Draws an axis of a tensor of this rank; a negative axis counts from the end.
    pub fn axis(&mut self, rank: usize) -> i64 {
        let axis = self.below(rank) as i64;
        if self.chance(3) { axis - rank as i64 } else { axis }
    }

    /// Returns the theme's element type if it is a float, else binary32.
    pub fn float(&self) -> DType {
        if self.theme.dtype.is_float() { self.theme.dtype } else { DType::F32 }
    }

    /// Draws the elements of an operand.
    pub fn tensor(&mut self, dtype: DType, shape: &[usize], fill: &Fill) -> Tensor {
        if let Fill::Exactly(values) = fill {
            let mut values = values.iter();
            let random_tensor = Tensor::build(dtype, shape, |bytes| {
                with_dtype!(dtype, T => for element in bytemuck::cast_slice_mut::<u8, T>(bytes) {
                    *element = T::from_f64(values.next().copied().unwrap_or(0) as f64);
                });
            });
            return random_tensor.expect("a case fits within the memory limit");
        }
        Tensor::build(dtype, shape, |bytes| {
            if dtype == DType::I64 || dtype == DType::U64 {
                // The elements are drawn as integers, because binary64 cannot represent every 64-bit integer.
                for element in bytemuck::cast_slice_mut::<u8, i64>(bytes) {
                    *element = self.integer(dtype, fill) as i64;
                }
                return;
            }
            with_dtype!(dtype, T => for element in bytemuck::cast_slice_mut::<u8, T>(bytes) {
                *element = T::from_f64(match dtype {
                    DType::Bool => f64::from(u8::from(*fill == Fill::NonZero || self.chance(2))),
                    _ if dtype.is_int() => self.integer(dtype, fill) as f64,
                    _ => self.random_value(dtype, fill),
                });
            });
        })
        .expect("a case fits within the memory limit")
    }

    fn integer(&mut self, dtype: DType, fill: &Fill) -> i128 {
        let (min, max) = limits(dtype);
        let value = match (fill, self.theme.values) {
            (Fill::Within(min, max), _) => i128::from(self.int(*min as i64, *max as i64)),
            (Fill::Free | Fill::NonZero | Fill::Terms, Values::Extreme) => {
                let offset = self.below(3) as i128;
                self.pick(&[min + offset, max - offset, min + offset, max - offset, -1, 0, 1])
            }
            // int8 and uint8 use their full range, so that dot products test the accumulators.
            (Fill::Terms | Fill::Factors, _) if dtype.size() == 1 => i128::from(self.int(min as i64, max as i64)),
            _ => i128::from(self.int(-10, 10)),
        };
        let value = value.clamp(min, max);
        if *fill == Fill::NonZero && value == 0 { 1 } else { value }
    }

    fn random_value(&mut self, dtype: DType, fill: &Fill) -> f64 {
        let sample = |sampler: &mut Sampler| sampler.random.uniform() * 4.0 - 2.0;
        let largest = largest_finite(dtype);
        let min_exponent = match dtype {
            DType::F64 => f64::from_bits(1),
            DType::F16 => f64::powi(2.0, -24),
            DType::BF16 => f64::powi(2.0, -133),
            _ => f64::powi(2.0, -149),
        };
        let value = match (fill, self.theme.values) {
            (Fill::Within(min, max), _) => return min + self.random.uniform() * (max - min),
            (Fill::PowerOfTwo(min, max), _) => return f64::powi(2.0, self.int(*min, *max) as i32),
            (Fill::Factors, _) | (_, Values::Plain) => sample(self),
            (_, Values::Denormal) => {
                let steps = self.int(-90, 90) as f64;
                steps * min_exponent
            }
            (_, Values::Special) => match self.below(9) {
                0 => f64::NAN,
                1 => f64::INFINITY,
                2 => f64::NEG_INFINITY,
                3 => -0.0,
                4 => 0.0,
                _ => sample(self),
            },
            (Fill::Terms, Values::Extreme) => sample(self),
            (_, Values::Extreme) => match self.below(6) {
                0 => largest,
                1 => -largest,
                2 => min_exponent,
                _ => sample(self) * 100.0,
            },
        };
        if *fill == Fill::NonZero && value == 0.0 { 1.0 } else { value }
    }
}

/// Returns the least and the greatest value of an integer type.
pub fn limits(dtype: DType) -> (i128, i128) {
    let bits = dtype.size() as u32 * 8;
    match dtype {
        DType::Bool => (0, 1),
        _ if dtype.is_signed_int() => (-(1i128 << (bits - 1)), (1i128 << (bits - 1)) - 1),
        _ => (0, (1i128 << bits) - 1),
    }
}
