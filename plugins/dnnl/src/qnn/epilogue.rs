//! Elementwise loop after an integer accumulation: applies a list of operations to blocks of elements, on the library's
//! thread pool.

use super::ratio::Rounding;
use crate::argument::Arguments;
use crate::cpu::fastest;
use crate::library::{OneDnn, ffi};
use byoc_plugin_api::DType;
use std::ops::Range;

/// Number of elements per block: enough that an operation does not wait for the results of the one before it.
pub const BLOCK: usize = 256;

/// Minimum number of elements that justifies waking another thread.
const MIN_PARALLEL_ELEMENTS: usize = 8192;

type Ints = [i32; BLOCK];
type Reals = [f32; BLOCK];

/// Per-tensor or per-axis parameter of an operation. Values are repeated so that a block can be read from any index: a
/// single value fills one block, and per-axis values are continued cyclically by one block.
#[derive(Clone, Debug)]
pub struct AxisParam<T> {
    values: Vec<T>,
    /// True if there is one value per index along the axis.
    per_index: bool,
}

impl<T: Copy> AxisParam<T> {
    /// Creates a parameter from a single value or from one value per index.
    pub fn new(values: &[T]) -> AxisParam<T> {
        let is_per_index = values.len() != 1;
        let len = if is_per_index { values.len() + BLOCK } else { BLOCK };
        AxisParam { values: values.iter().copied().cycle().take(len).collect(), per_index: is_per_index }
    }

    /// Returns the values without the padding.
    fn unpadded_values(&self) -> &[T] {
        &self.values[..if self.per_index { self.values.len() - BLOCK } else { 1 }]
    }
}

impl AxisParam<i32> {
    /// Adds `values` to the parameter's values, wrapping on overflow.
    pub fn add(&mut self, values: &[i32]) {
        let own_values = self.unpadded_values();
        let len = own_values.len().max(values.len());
        let totals = own_values.iter().cycle().zip(values.iter().cycle()).take(len).map(|(a, b)| a.wrapping_add(*b));
        *self = AxisParam::new(&totals.collect::<Vec<_>>());
    }
}

/// Fixed-point requantization `(x + offset) * multiplier * 2^(left_shift - shift) + zero`; the addition of the offset
/// wraps.
#[derive(Clone, Debug)]
pub struct FixedPointScale {
    pub offsets: AxisParam<i32>,
    pub multipliers: AxisParam<i32>,
    /// Left shifts; `None` if all are 0.
    pub left_shifts: Option<AxisParam<i64>>,
    /// Right shifts, between 31 and 63.
    pub shifts: AxisParam<i32>,
    pub rounding: Rounding,
    pub zero: i32,
    /// True if the result has an 8-bit type, so that the zero point can be added after clamping without overflow.
    pub bytes: bool,
}

/// Multiplication by float ratios, rounding, and addition of a zero point.
#[derive(Clone, Debug)]
pub struct FloatScale {
    pub ratios: AxisParam<f32>,
    pub rounding: Rounding,
    pub zero: i32,
    pub low: i32,
    pub high: i32,
}

/// Operation on each element. Elements are `int32` regardless of the types in memory, except between
/// [`EpilogueOp::Dequantize`] or [`EpilogueOp::ToReal`] and [`EpilogueOp::Quantize`] or [`EpilogueOp::ToInteger`],
/// where they are floats.
#[derive(Clone, Debug)]
pub enum EpilogueOp {
    /// Computes `x + b`, wrapping.
    Offset(AxisParam<i32>),
    /// Computes `x - zero`, saturating.
    SubtractZeroPoint(i32),
    /// Computes `round((x + offset) * ratio) + zero` in 64-bit fixed point, clamped to the range given by the last two
    /// fields.
    FixedPoint(FixedPointScale, i32, i32),
    /// Computes `round(x * ratio) + zero` in floats, clamped to `[low, high]`.
    Float(FloatScale),
    /// Computes `x + zero`, saturating, clamped to `[low, high]`.
    AddZeroPoint { zero: i32, low: i32, high: i32 },
    /// Clamps an integer to `[low, high]`.
    Clamp { low: i32, high: i32 },
    /// Reads the table's entry for a byte.
    Lookup(Box<[i32; 256]>),
    /// Computes `x + y - zero`, clamped to `[low, high]`, where `y` is the result of applying `operand_ops` to the next
    /// tensor. `narrow` is set if neither summand reaches 2^29 in magnitude.
    Sum { operand_ops: Vec<EpilogueOp>, operand: Operand, zero: i32, low: i32, high: i32, narrow: bool },
    /// Computes `(x - zeros[0]) * (y - zeros[1])`, where `y` is the next tensor.
    Product { operand: Operand, zeros: [i32; 2] },
    /// Computes `x * scale` as a float.
    Dequantize(AxisParam<f32>),
    /// Wraps the integer to the range of the type.
    Wrap(DType),
    /// Converts the integer to a float.
    ToReal,
    /// Rounds the float toward zero and clamps it to `[low, high]`.
    ToInteger { low: i32, high: i32 },
    /// Computes `x + b` in floats.
    RealAdd(AxisParam<f32>),
    /// Computes `x * b` in floats.
    RealMultiply(AxisParam<f32>),
    /// Clamps a float to `[low, high]`.
    RealClamp { low: f32, high: f32 },
    /// Computes `x + y` in floats, where `y` is the result of applying `operand_ops` to the next tensor.
    RealSum { operand_ops: Vec<EpilogueOp>, operand: Operand },
    /// Computes `round(x / scale) + zero`, clamped to `[low, high]`.
    Quantize { scale: f32, zero: i32, rounding: Rounding, low: i32, high: i32 },
}

/// Second operand of an operation.
#[derive(Clone, Copy, Debug)]
pub struct Operand {
    pub dtype: DType,
    /// Broadcast of the operand; `None` if it has an element for each element of the chain.
    pub broadcast: Option<Broadcast>,
}

/// Operand with one element for each index along one axis, for all images or for each image.
#[derive(Clone, Copy, Debug)]
pub struct Broadcast {
    /// Number of the chain's elements that share `len` elements of the operand: those of an image, or all.
    pub image: usize,
    /// Number of indices along the axis.
    pub len: usize,
    /// Stride of the axis among the chain's elements.
    pub stride: usize,
}

impl Broadcast {
    /// Calls `copy` with the runs of the `count` elements of the chain that begin at `start`: the positions among them, the
    /// operand's first element, and the distance between its elements, 0 or 1.
    #[inline(always)]
    fn runs(self, start: usize, count: usize, mut copy: impl FnMut(Range<usize>, usize, usize)) {
        let mut done = 0;
        while done < count {
            let position = start + done;
            let index = position / self.stride % self.len;
            let (rest, distance) = match self.stride {
                1 => (self.len - index, 1),
                stride => (stride - position % stride, 0),
            };
            let run = rest.min(count - done);
            copy(done..done + run, position / self.image * self.len + index, distance);
            done += run;
        }
    }
}

/// Chain of operations on packed elements.
#[derive(Clone, Debug)]
pub struct Epilogue {
    elements: usize,
    /// Dimension and stride of the axis along which parameters vary.
    axis: (usize, usize),
    in_dtype: DType,
    out_dtype: DType,
    ops: Vec<EpilogueOp>,
}

/// Tensor addresses during a run.
#[derive(Clone, Copy)]
struct Pointers<'a> {
    source: *const u8,
    destination: *mut u8,
    operands: &'a [*const u8],
}

// SAFETY: `run` assigns disjoint blocks to the threads, and inputs are not written.
unsafe impl Sync for Pointers<'_> {}

/// Maximum number of sums in a chain, limited so that a run can collect their operands without allocating.
pub const MAX_OTHERS: usize = 8;

impl Epilogue {
    /// Creates a chain. `axis` holds the dimension and the stride of the axis along which parameters vary.
    pub fn new(
        elements: usize,
        axis: (usize, usize),
        (in_dtype, out_dtype): (DType, DType),
        ops: Vec<EpilogueOp>,
    ) -> Epilogue {
        Epilogue { elements, axis, in_dtype, out_dtype, ops }
    }

    /// Runs the chain on all elements.
    ///
    /// # Safety
    /// Each tensor must be at its argument's address with the chain's number of elements, and the result must not
    /// overlap any other tensor.
    pub unsafe fn run(&self, library: &OneDnn, args: Arguments<'_>) {
        let (Some(source), Some(destination)) = (args.find(ffi::ARG_SRC), args.find(ffi::ARG_DST)) else { return };
        let mut operands = [std::ptr::null::<u8>(); MAX_OTHERS];
        for (k, operand) in operands.iter_mut().enumerate() {
            let Some(address) = args.find(ffi::ARG_MULTIPLE_SRC + k as i32) else { break };
            *operand = address.cast_const();
        }
        let pointers = Pointers { source: source.cast_const(), destination, operands: &operands };
        let blocks = self.elements.div_ceil(BLOCK);
        let code = code();
        let run_part = |thread: usize, threads: usize| {
            let pointers = &pointers;
            let (first, last) = (blocks * thread / threads, blocks * (thread + 1) / threads);
            // SAFETY: the caller guarantees tensors that contain the blocks, and only this thread computes them.
            unsafe { code(self, pointers, first, last) };
        };
        library.run_on_threads(self.elements >= MIN_PARALLEL_ELEMENTS, &run_part);
    }
}

fastest! {
    /// Returns the variant of [`blocks`] for this CPU.
    code: unsafe fn(epilogue: &Epilogue, pointers: &Pointers<'_>, first: usize, last: usize) = blocks
}

/// Parameter indices of a block's elements.
struct ParamIndex {
    /// Index of the first element's parameter, if parameters of adjacent elements are adjacent.
    start: usize,
    /// Index of each element's parameter, if parameters of adjacent elements are not adjacent.
    indices: Option<[u32; BLOCK]>,
}

/// Computes the blocks `first..last`.
///
/// # Safety
/// The blocks must be within the tensors, and no other thread may write to them.
#[inline(always)]
unsafe fn blocks(epilogue: &Epilogue, pointers: &Pointers<'_>, first: usize, last: usize) {
    let (size, stride) = epilogue.axis;
    let (mut x, mut floats) = ([0; BLOCK], [0.0; BLOCK]);
    let (mut other, mut other_floats) = ([0; BLOCK], [0.0; BLOCK]);
    for block in first..last {
        let start = block * BLOCK;
        let len = BLOCK.min(epilogue.elements - start);
        let indices = (stride != 1 && size != 1).then(|| std::array::from_fn(|l| ((start + l) / stride % size) as u32));
        let index = ParamIndex { start: if stride == 1 { start % size } else { 0 }, indices };
        let mut operand_index = 0;
        // SAFETY: the caller guarantees that the block is within the tensors.
        unsafe {
            load(epilogue.in_dtype, pointers.source, start, len, &mut x, &mut floats);
            for op in &epilogue.ops {
                if let EpilogueOp::Sum { operand, .. }
                | EpilogueOp::Product { operand, .. }
                | EpilogueOp::RealSum { operand, .. } = op
                {
                    let source = pointers.operands[operand_index];
                    operand_index += 1;
                    match operand.broadcast {
                        None => load(operand.dtype, source, start, len, &mut other, &mut other_floats),
                        Some(broadcast) => broadcast.runs(start, len, |lanes, element, distance| {
                            for (l, y) in other[lanes].iter_mut().enumerate() {
                                let byte = source.add(element + l * distance).read();
                                *y = if operand.dtype == DType::I8 { i32::from(byte as i8) } else { i32::from(byte) };
                            }
                        }),
                    }
                }
                if let EpilogueOp::Sum { operand_ops, zero, low, high, narrow, .. } = op {
                    for op in operand_ops {
                        apply(op, &index, &mut other, &mut other_floats);
                    }
                    if *narrow {
                        for (x, y) in x.iter_mut().zip(&other) {
                            *x = x.wrapping_add(*y).wrapping_sub(*zero).max(*low).min(*high);
                        }
                    } else {
                        for (x, y) in x.iter_mut().zip(&other) {
                            let sum = i64::from(*x) + i64::from(*y) - i64::from(*zero);
                            *x = sum.max(i64::from(*low)).min(i64::from(*high)) as i32;
                        }
                    }
                } else if let EpilogueOp::RealSum { operand_ops, .. } = op {
                    for op in operand_ops {
                        apply(op, &index, &mut other, &mut other_floats);
                    }
                    for (x, y) in floats.iter_mut().zip(&other_floats) {
                        *x += y;
                    }
                } else if let EpilogueOp::Product { zeros, .. } = op {
                    for (x, y) in x.iter_mut().zip(&other) {
                        *x = x.wrapping_sub(zeros[0]).wrapping_mul(y.wrapping_sub(zeros[1]));
                    }
                } else {
                    apply(op, &index, &mut x, &mut floats);
                }
            }
            store(epilogue.out_dtype, pointers.destination, start, len, &x, &floats);
        }
    }
}

/// Loads a block as integers or as floats.
///
/// # Safety
/// `source` must hold `len` elements of type `dtype` starting at element `start`.
#[inline(always)]
unsafe fn load(dtype: DType, source: *const u8, start: usize, len: usize, x: &mut Ints, floats: &mut Reals) {
    macro_rules! into {
        ($ty:ty, $lanes:expr, |$v:ident| $convert:expr) => {{
            let mut block = [<$ty>::default(); BLOCK];
            // SAFETY: the caller guarantees `len` elements starting at `start`. A full block has a constant size, so
            // its copy is inlined.
            unsafe {
                let source = source.cast::<$ty>().add(start);
                match len {
                    BLOCK => std::ptr::copy_nonoverlapping(source, block.as_mut_ptr(), BLOCK),
                    _ => std::ptr::copy_nonoverlapping(source, block.as_mut_ptr(), len),
                }
            }
            for (lane, &$v) in $lanes.iter_mut().zip(&block) {
                *lane = $convert;
            }
        }};
    }
    match dtype {
        DType::I8 => into!(i8, x, |v| v.into()),
        DType::U8 => into!(u8, x, |v| v.into()),
        DType::I32 => into!(i32, x, |v| v),
        _ => into!(f32, floats, |v| v),
    }
}

/// Stores a block.
///
/// # Safety
/// `destination` must be valid for writing `len` elements of type `dtype` starting at element `start`.
#[inline(always)]
unsafe fn store(dtype: DType, destination: *mut u8, start: usize, len: usize, x: &Ints, floats: &Reals) {
    macro_rules! from {
        ($ty:ty, $lanes:expr) => {{
            let mut block = [<$ty>::default(); BLOCK];
            for (out, &v) in block.iter_mut().zip($lanes) {
                *out = v as $ty;
            }
            // SAFETY: the caller guarantees `len` elements starting at `start`. A full block has a constant size, so
            // its copy is inlined.
            unsafe {
                let destination = destination.cast::<$ty>().add(start);
                match len {
                    BLOCK => std::ptr::copy_nonoverlapping(block.as_ptr(), destination, BLOCK),
                    _ => std::ptr::copy_nonoverlapping(block.as_ptr(), destination, len),
                }
            }
        }};
    }
    match dtype {
        DType::I8 => from!(i8, x),
        DType::U8 => from!(u8, x),
        DType::I32 => from!(i32, x),
        _ => from!(f32, floats),
    }
}

/// Returns the parameters of a block's elements.
#[inline(always)]
fn block_params<'a, T: Copy>(
    param: &'a AxisParam<T>,
    index: &ParamIndex,
    buffer: &'a mut [T; BLOCK],
) -> &'a [T; BLOCK] {
    match &index.indices {
        Some(indices) if param.per_index => {
            for (value, &position) in buffer.iter_mut().zip(indices) {
                *value = param.values.get(position as usize).copied().unwrap_or(*value);
            }
            buffer
        }
        _ => {
            let start = if param.per_index { index.start } else { 0 };
            let params = param.values.get(start..).and_then(<[T]>::first_chunk);
            debug_assert!(
                params.is_some(),
                "expected at least {} parameter values, found {}",
                start + BLOCK,
                param.values.len()
            );
            params.unwrap_or(buffer)
        }
    }
}

#[inline(always)]
fn apply(op: &EpilogueOp, index: &ParamIndex, x: &mut Ints, floats: &mut Reals) {
    match op {
        EpilogueOp::Offset(offsets) => {
            let mut buffer = [0; BLOCK];
            let offsets = block_params(offsets, index, &mut buffer);
            for (x, offset) in x.iter_mut().zip(offsets) {
                *x = x.wrapping_add(*offset);
            }
        }
        EpilogueOp::SubtractZeroPoint(zero) => {
            for x in x.iter_mut() {
                *x = x.saturating_sub(*zero);
            }
        }
        EpilogueOp::FixedPoint(scale, low, high) => scale_fixed_point(scale, index, *low, *high, x),
        EpilogueOp::Float(scale) => {
            let mut buffer = [0.0; BLOCK];
            let ratios = block_params(&scale.ratios, index, &mut buffer);
            let (zero, mut products) = (scale.zero as f32, [0.0; BLOCK]);
            for ((product, x), ratio) in products.iter_mut().zip(&*x).zip(ratios) {
                *product = *x as f32 * ratio;
            }
            round(scale.rounding, &mut products);
            products.iter_mut().for_each(|product| *product += zero);
            convert(&products, (scale.low, scale.high), x);
        }
        EpilogueOp::AddZeroPoint { zero, low, high } => {
            for x in x.iter_mut() {
                *x = x.saturating_add(*zero).max(*low).min(*high);
            }
        }
        EpilogueOp::Clamp { low, high } => {
            for x in x.iter_mut() {
                *x = (*x).max(*low).min(*high);
            }
        }
        EpilogueOp::Lookup(table) => {
            for x in x.iter_mut() {
                *x = table[usize::from(*x as u8)];
            }
        }
        // Handled in `blocks`, which has access to the tensors.
        EpilogueOp::Sum { .. } | EpilogueOp::Product { .. } | EpilogueOp::RealSum { .. } => {}
        EpilogueOp::Wrap(DType::I8) => {
            for x in x.iter_mut() {
                *x = i32::from(*x as i8);
            }
        }
        EpilogueOp::Wrap(DType::U8) => {
            for x in x.iter_mut() {
                *x = i32::from(*x as u8);
            }
        }
        EpilogueOp::Wrap(_) => {}
        EpilogueOp::ToReal => {
            for (value, x) in floats.iter_mut().zip(&*x) {
                *value = *x as f32;
            }
        }
        EpilogueOp::ToInteger { low, high } => {
            let mut integers = [0.0; BLOCK];
            for (integer, value) in integers.iter_mut().zip(&*floats) {
                *integer = value.trunc();
            }
            convert(&integers, (*low, *high), x);
        }
        EpilogueOp::RealAdd(summands) => {
            let mut buffer = [0.0; BLOCK];
            let summands = block_params(summands, index, &mut buffer);
            for (value, summand) in floats.iter_mut().zip(summands) {
                *value += summand;
            }
        }
        EpilogueOp::RealMultiply(factors) => {
            let mut buffer = [0.0; BLOCK];
            let factors = block_params(factors, index, &mut buffer);
            for (value, factor) in floats.iter_mut().zip(factors) {
                *value *= factor;
            }
        }
        EpilogueOp::RealClamp { low, high } => {
            for value in floats.iter_mut() {
                // Written so that NaN is preserved.
                let x = if *value < *low { *low } else { *value };
                *value = if x > *high { *high } else { x };
            }
        }
        EpilogueOp::Dequantize(scales) => {
            let mut buffer = [0.0; BLOCK];
            let scales = block_params(scales, index, &mut buffer);
            for ((value, x), scale) in floats.iter_mut().zip(&*x).zip(scales) {
                *value = *x as f32 * scale;
            }
        }
        EpilogueOp::Quantize { scale, zero, rounding, low, high } => {
            let zero = *zero as f32;
            for value in floats.iter_mut() {
                *value /= scale;
            }
            round(*rounding, floats);
            floats.iter_mut().for_each(|value| *value += zero);
            convert(floats, (*low, *high), x);
        }
    }
}

/// Magnitude up to which [`convert`] adds a float to find the bits of an integer.
pub const FAST_BOUND: i32 = 1 << 22;

/// Converts floats without fractions to integers and clamps them to `[low, high]`; NaN becomes 0 before it is clamped.
#[inline(always)]
fn convert(floats: &Reals, (low, high): (i32, i32), x: &mut Ints) {
    if low < -FAST_BOUND || high > FAST_BOUND {
        for (x, value) in x.iter_mut().zip(floats) {
            *x = (*value as i32).max(low).min(high);
        }
        return;
    }
    // A saturating conversion is not vectorized. The sum with 1.5 * 2^23 has the integer in its lowest bits.
    const SUMMAND: f32 = 12_582_912.0;
    let (least, greatest) = (low as f32, high as f32);
    for (x, &value) in x.iter_mut().zip(floats) {
        let value = if value.is_nan() { 0.0 } else { value };
        let value = if value < least { least } else { value };
        let value = if value > greatest { greatest } else { value };
        *x = ((value + SUMMAND).to_bits() as i32).wrapping_sub(SUMMAND.to_bits() as i32);
    }
}

/// Rounds each element to an integer; `rounding` determines the rounding of ties.
#[inline(always)]
fn round(rounding: Rounding, x: &mut Reals) {
    match rounding {
        Rounding::Up => {
            for x in x.iter_mut() {
                *x = (*x + 0.5).floor();
            }
        }
        Rounding::Away => {
            for x in x.iter_mut() {
                *x = x.round();
            }
        }
        Rounding::Even => {
            for x in x.iter_mut() {
                *x = x.round_ties_even();
            }
        }
    }
}

/// Masks a shift, which is at most 63, to let the compiler omit overflow handling.
#[inline(always)]
fn shift(amount: i32) -> i64 {
    i64::from(amount) & 63
}

/// Returns half of the unit in the last place of a value shifted right by `amount`.
#[inline(always)]
fn half_unit(amount: i32) -> i64 {
    1 << (shift(amount) - 1)
}

/// Computes `(x + offset) * multiplier * 2^(left_shift - shift) + zero`, rounded and clamped to `[low, high]`.
#[inline(always)]
fn scale_fixed_point(scale: &FixedPointScale, index: &ParamIndex, low: i32, high: i32, x: &mut Ints) {
    let (mut own_offsets, mut own_multipliers) = ([0; BLOCK], [0; BLOCK]);
    let mut own_shifts = [0; BLOCK];
    let offsets = block_params(&scale.offsets, index, &mut own_offsets);
    let multipliers = block_params(&scale.multipliers, index, &mut own_multipliers);
    let shifts = block_params(&scale.shifts, index, &mut own_shifts);
    if let (None, Rounding::Up, true) = (&scale.left_shifts, scale.rounding, scale.bytes) {
        // Fast path, which covers nearly all networks.
        let (low, high) = (low - scale.zero, high - scale.zero);
        for l in 0..BLOCK {
            let product = i64::from(x[l].wrapping_add(offsets[l])) * i64::from(multipliers[l]);
            let rounded_product = (product + half_unit(shifts[l])) >> shift(shifts[l]);
            x[l] = (rounded_product as i32).max(low).min(high) + scale.zero;
        }
        return;
    }
    for (x, offset) in x.iter_mut().zip(offsets) {
        *x = x.wrapping_add(*offset);
    }
    let mut products = [0i64; BLOCK];
    match &scale.left_shifts {
        None => {
            for ((product, x), multiplier) in products.iter_mut().zip(&*x).zip(multipliers) {
                *product = i64::from(*x) * i64::from(*multiplier);
            }
        }
        Some(left_shifts) => {
            let mut buffer = [0; BLOCK];
            let left_shifts = block_params(left_shifts, index, &mut buffer);
            for (((product, x), multiplier), left) in products.iter_mut().zip(&*x).zip(multipliers).zip(left_shifts) {
                // The shifted value is clamped to 2^32 in magnitude: with a multiplier of at least 2^30, the result
                // still exceeds `int32`, and the product fits in 64 bits.
                let bound = 1i64 << (32 - left);
                *product = (i64::from(*x).max(-bound).min(bound) << left) * i64::from(*multiplier);
            }
        }
    }
    let pairs = products.iter_mut().zip(shifts);
    match scale.rounding {
        Rounding::Up => {
            for (product, &amount) in pairs {
                *product = (*product + half_unit(amount)) >> shift(amount);
            }
        }
        Rounding::Away => {
            for (product, &amount) in pairs {
                *product = (*product + half_unit(amount) - i64::from(*product < 0)) >> shift(amount);
            }
        }
        Rounding::Even => {
            for (product, &amount) in pairs {
                *product = (*product + (half_unit(amount) - 1) + ((*product >> shift(amount)) & 1)) >> shift(amount);
            }
        }
    }
    if scale.left_shifts.is_some() {
        for product in &mut products {
            *product = (*product).max(i32::MIN.into()).min(i32::MAX.into());
        }
    }
    if scale.bytes {
        let (low, high) = (low - scale.zero, high - scale.zero);
        for (x, product) in x.iter_mut().zip(&products) {
            *x = (*product as i32).max(low).min(high) + scale.zero;
        }
    } else {
        for (x, product) in x.iter_mut().zip(&products) {
            *x = (*product as i32).saturating_add(scale.zero).max(low).min(high);
        }
    }
}
