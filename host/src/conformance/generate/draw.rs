//! Draws sizes, element types and values. A theme says which corner of the space a case is to visit; the numbers follow
//! from a seed and are the same everywhere.

use crate::io::random::Random;
use byoc_core::tensor::{DType, Element, Tensor};
use byoc_core::with_dtype;

/// Which sizes a case has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sizes {
    /// From 2 to 6.
    Small,
    /// Odd ones, which no vector width divides.
    Odd,
    /// Mostly 1.
    One,
    /// A dimension of 0.
    Zero,
    /// Beyond a vector, a block, a cache line.
    Wide,
}

/// Which values a case has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Values {
    /// Numbers around 1; small integers.
    Plain,
    /// NaN, infinities and zeros of both signs among them.
    Special,
    /// Subnormal numbers.
    Denormal,
    /// The largest and the smallest of the type.
    Extreme,
}

/// The corner of the space that a case visits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Theme {
    /// Which sizes.
    pub sizes: Sizes,
    /// Which values.
    pub values: Values,
    /// The element type of the first operand.
    pub dtype: DType,
}

const fn theme(sizes: Sizes, values: Values, dtype: DType) -> Theme {
    Theme { sizes, values, dtype }
}

/// What the cases of an operator or a pattern visit, in this order, then again with other numbers.
pub const THEMES: &[Theme] = &[
    theme(Sizes::Small, Values::Plain, DType::F32),
    theme(Sizes::Odd, Values::Plain, DType::F32),
    theme(Sizes::Odd, Values::Special, DType::F32),
    theme(Sizes::Zero, Values::Plain, DType::F32),
    theme(Sizes::Wide, Values::Plain, DType::F32),
    theme(Sizes::Small, Values::Extreme, DType::I32),
    theme(Sizes::Odd, Values::Denormal, DType::F32),
    theme(Sizes::Small, Values::Plain, DType::I8),
    theme(Sizes::One, Values::Plain, DType::F32),
    theme(Sizes::Wide, Values::Plain, DType::F16),
    theme(Sizes::Odd, Values::Plain, DType::F64),
    theme(Sizes::Small, Values::Extreme, DType::I8),
    theme(Sizes::Wide, Values::Special, DType::F32),
    theme(Sizes::Odd, Values::Plain, DType::U8),
    theme(Sizes::Small, Values::Extreme, DType::I64),
    theme(Sizes::Odd, Values::Plain, DType::Bool),
    theme(Sizes::Wide, Values::Extreme, DType::F32),
    theme(Sizes::Odd, Values::Plain, DType::BF16),
    theme(Sizes::Wide, Values::Plain, DType::I32),
    theme(Sizes::Odd, Values::Extreme, DType::U8),
    theme(Sizes::Small, Values::Plain, DType::I64),
    theme(Sizes::Wide, Values::Denormal, DType::F32),
    theme(Sizes::Odd, Values::Special, DType::F16),
    theme(Sizes::Odd, Values::Plain, DType::U32),
];

/// What the elements of an operand may be.
#[derive(Clone, Debug, PartialEq)]
pub enum Fill {
    /// Anything; what exactly, the theme says.
    Free,
    /// Terms of a sum: as `Free`, without numbers whose sum overflows in one order and not in another.
    Terms,
    /// What terms are multiplied with: always ordinary numbers.
    Factors,
    /// Between these, both included.
    Within(f64, f64),
    /// As `Free`, without zeros.
    NonZero,
    /// These integers.
    Exactly(Vec<i64>),
}

/// Draws.
pub struct Draw {
    random: Random,
    /// Where the case is to go.
    pub theme: Theme,
    /// Keeps to what most models have: the default layouts, no dilation, the same padding on both sides.
    /// A backend that takes nothing else is still to be tested on what it takes.
    pub usual: bool,
}

impl Draw {
    /// Draws for a theme.
    pub fn new(seed: u64, theme: Theme) -> Draw {
        Draw { random: Random::new(seed), theme, usual: false }
    }

    /// A number below `n`, which is not 0.
    pub fn below(&mut self, n: usize) -> usize {
        (self.random.next_u64() % n.max(1) as u64) as usize
    }

    /// An integer from `low` to `high`, both included.
    pub fn int(&mut self, low: i64, high: i64) -> i64 {
        low + self.below((high - low + 1).max(1) as usize) as i64
    }

    /// One of these.
    pub fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())].clone()
    }

    /// True in one of `n` draws.
    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    /// A dimension that is not 0.
    pub fn dim(&mut self) -> usize {
        match self.theme.sizes {
            Sizes::Small | Sizes::Zero => 2 + self.below(5),
            Sizes::Odd => self.pick(&[3, 5, 7, 9, 11, 13]),
            Sizes::One => self.pick(&[1, 1, 1, 2]),
            Sizes::Wide => self.pick(&[15, 16, 17, 19, 31, 32, 33]),
        }
    }

    /// A dimension of a plane or a volume, where the number of elements grows fast.
    pub fn side(&mut self) -> usize {
        match self.theme.sizes {
            Sizes::Wide => self.pick(&[8, 9, 14, 17]),
            Sizes::Zero => 3 + self.below(4),
            _ => self.dim(),
        }
    }

    /// A dimension that may be 0: a batch.
    pub fn batch(&mut self) -> usize {
        match self.theme.sizes {
            Sizes::Zero => 0,
            Sizes::Wide => 1 + self.below(2),
            _ => 1 + self.below(3),
        }
    }

    /// A shape of that rank; where the theme wants it, with a 0 in it.
    pub fn shape(&mut self, rank: usize) -> Vec<usize> {
        let mut elements = 1;
        let mut shape: Vec<usize> = Vec::with_capacity(rank);
        for _ in 0..rank {
            // Bounded: the references are naive.
            let dim = if elements > 512 { 1 + self.below(3) } else { self.dim() };
            elements *= dim;
            shape.push(dim);
        }
        if self.theme.sizes == Sizes::Zero && rank > 0 {
            let axis = self.below(rank);
            shape[axis] = 0;
        }
        shape
    }

    /// A shape of a rank between these.
    pub fn shape_of_rank(&mut self, low: usize, high: usize) -> Vec<usize> {
        let rank = self.int(low as i64, high as i64) as usize;
        self.shape(rank)
    }

    /// An axis of `rank`, from the front or from the end.
    pub fn axis(&mut self, rank: usize) -> i64 {
        let axis = self.below(rank) as i64;
        if self.one_in(3) { axis - rank as i64 } else { axis }
    }

    /// The theme's element type if it is a float, else binary32.
    pub fn float(&self) -> DType {
        if self.theme.dtype.is_float() { self.theme.dtype } else { DType::F32 }
    }

    /// The elements of an operand.
    pub fn tensor(&mut self, dtype: DType, shape: &[usize], fill: &Fill) -> Tensor {
        if let Fill::Exactly(values) = fill {
            let mut values = values.iter();
            let filled = Tensor::build(dtype, shape, |bytes| {
                with_dtype!(dtype, T => for element in bytemuck::cast_slice_mut::<u8, T>(bytes) {
                    *element = T::from_f64(values.next().copied().unwrap_or(0) as f64);
                });
            });
            return filled.expect("memory for a case");
        }
        Tensor::build(dtype, shape, |bytes| {
            if dtype == DType::I64 || dtype == DType::U64 {
                // Beyond the integers that binary64 holds.
                for element in bytemuck::cast_slice_mut::<u8, i64>(bytes) {
                    *element = self.integer(dtype, fill) as i64;
                }
                return;
            }
            with_dtype!(dtype, T => for element in bytemuck::cast_slice_mut::<u8, T>(bytes) {
                *element = T::from_f64(match dtype {
                    DType::Bool => f64::from(u8::from(*fill == Fill::NonZero || self.one_in(2))),
                    _ if dtype.is_int() => self.integer(dtype, fill) as f64,
                    _ => self.number(dtype, fill),
                });
            });
        })
        .expect("memory for a case")
    }

    fn integer(&mut self, dtype: DType, fill: &Fill) -> i128 {
        let (low, high) = limits(dtype);
        let value = match (fill, self.theme.values) {
            (Fill::Within(from, to), _) => i128::from(self.int(*from as i64, *to as i64)),
            (Fill::Free | Fill::NonZero | Fill::Terms, Values::Extreme) => {
                let near = self.below(3) as i128;
                self.pick(&[low + near, high - near, low + near, high - near, -1, 0, 1])
            }
            // Bytes are used to their ends: sums of their products are what accumulators are for.
            (Fill::Terms | Fill::Factors, _) if dtype.size() == 1 => i128::from(self.int(low as i64, high as i64)),
            _ => i128::from(self.int(-10, 10)),
        };
        let value = value.clamp(low, high);
        if *fill == Fill::NonZero && value == 0 { 1 } else { value }
    }

    fn number(&mut self, dtype: DType, fill: &Fill) -> f64 {
        let plain = |draw: &mut Draw| draw.random.uniform() * 4.0 - 2.0;
        let (smallest, largest) = match dtype {
            DType::F64 => (f64::from_bits(1), f64::MAX),
            DType::F16 => (f64::powi(2.0, -24), 65504.0),
            DType::BF16 => (f64::powi(2.0, -133), f64::from(half::bf16::MAX)),
            _ => (f64::powi(2.0, -149), f64::from(f32::MAX)),
        };
        let value = match (fill, self.theme.values) {
            (Fill::Within(low, high), _) => return low + self.random.uniform() * (high - low),
            (Fill::Factors, _) | (_, Values::Plain) => plain(self),
            (_, Values::Denormal) => {
                let steps = self.int(-90, 90) as f64;
                steps * smallest
            }
            (_, Values::Special) => match self.below(9) {
                0 => f64::NAN,
                1 => f64::INFINITY,
                2 => f64::NEG_INFINITY,
                3 => -0.0,
                4 => 0.0,
                _ => plain(self),
            },
            (Fill::Terms, Values::Extreme) => plain(self),
            (_, Values::Extreme) => match self.below(6) {
                0 => largest,
                1 => -largest,
                2 => smallest,
                _ => plain(self) * 100.0,
            },
        };
        if *fill == Fill::NonZero && value == 0.0 { 1.0 } else { value }
    }
}

/// The least value of an integer type, and the greatest.
pub fn limits(dtype: DType) -> (i128, i128) {
    let bits = dtype.size() as u32 * 8;
    match dtype {
        DType::Bool => (0, 1),
        _ if dtype.is_signed_int() => (-(1i128 << (bits - 1)), (1i128 << (bits - 1)) - 1),
        _ => (0, (1i128 << bits) - 1),
    }
}
