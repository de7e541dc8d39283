//! Binary operators with broadcasting. Dimensions that both operands traverse in the same way are merged to
//! make the innermost loop as long as possible; in that loop each operand is either contiguous or a scalar.

use super::simd::multiversion;
use super::{Kernel, Offer, Spec, split};
use byoc_ir::tensor::{DType, Element, Shape, TensorView, TensorViewMut};
use smallvec::SmallVec;

/// Maximum number of elements per call to an inner loop.
const CHUNK: usize = 4096;

/// Traversal of `N` operands in output order: each merged dimension with the strides of the operands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LoopNest<const N: usize> {
    /// All dimensions but the innermost, outermost first.
    pub outer: SmallVec<[(usize, [usize; N]); 4]>,
    /// Innermost dimension; its strides are 0 or 1.
    pub inner: (usize, [usize; N]),
}

impl<const N: usize> LoopNest<N> {
    /// Creates the loop nest over operands whose shapes broadcast to `out`.
    pub fn new(shapes: [&[usize]; N], out: &[usize]) -> LoopNest<N> {
        let strides: [Shape; N] = shapes.map(|shape| {
            let mut strides: Shape = smallvec::smallvec![0; out.len()];
            let mut step = 1;
            for (i, &size) in shape.iter().enumerate().rev() {
                if size != 1 {
                    strides[out.len() - shape.len() + i] = step;
                }
                step *= size;
            }
            strides
        });
        let mut dims: SmallVec<[(usize, [usize; N]); 4]> = SmallVec::new();
        for (axis, &size) in out.iter().enumerate() {
            if size == 1 {
                continue;
            }
            let step: [usize; N] = std::array::from_fn(|operand| strides[operand][axis]);
            match dims.last_mut() {
                Some((n, outer)) if (0..N).all(|i| outer[i] == step[i] * size) => (*n, *outer) = (*n * size, step),
                _ => dims.push((size, step)),
            }
        }
        let inner = dims.pop().unwrap_or((1, [1; N]));
        LoopNest { outer: dims, inner }
    }

    /// Calls `row(offsets, out)` for every chunk of the output, with the offsets of the operands.
    pub fn for_each_row<T: Send>(&self, out: &mut [T], cost: usize, row: impl Fn([usize; N], &mut [T]) + Sync) {
        let (size, steps) = self.inner;
        let work = out.len() * cost;
        if self.outer.is_empty() {
            return split::for_each_chunk(out, CHUNK, work, |i, out| row(steps.map(|s| i * CHUNK * s), out));
        }
        // Several rows per chunk amortize the computation of the index of the first row.
        let rows = (CHUNK / size.max(1)).max(1);
        split::for_each_chunk(out, rows * size, work, |i, out| {
            let mut index: SmallVec<[usize; 4]> = smallvec::smallvec![0; self.outer.len()];
            let mut offsets = [0; N];
            let mut row_index = i * rows;
            for (coordinate, (n, steps)) in index.iter_mut().zip(&self.outer).rev() {
                *coordinate = row_index % n;
                row_index /= n;
                offsets = std::array::from_fn(|k| offsets[k] + *coordinate * steps[k]);
            }
            for out in out.chunks_mut(size) {
                row(offsets, out);
                for (coordinate, (n, steps)) in index.iter_mut().zip(&self.outer).rev() {
                    *coordinate += 1;
                    offsets = std::array::from_fn(|k| offsets[k] + steps[k]);
                    if *coordinate < *n {
                        break;
                    }
                    offsets = std::array::from_fn(|k| offsets[k] - n * steps[k]);
                    *coordinate = 0;
                }
            }
        });
    }
}

/// Loops of an operator from `I` to `O`: with two slices, with a scalar on the right, with a scalar on the left.
pub(super) struct Loops<I: 'static, O: 'static> {
    pub slices: fn(&[I], &[I], &mut [O]),
    pub right: fn(&[I], I, &mut [O]),
    pub left: fn(I, &[I], &mut [O]),
}

/// In-place loops: the output already holds the left operand, or the right operand.
pub(super) struct InPlace {
    left_slice: fn(&mut [f32], &[f32]),
    left_number: fn(&mut [f32], f32),
    right_slice: fn(&[f32], &mut [f32]),
    right_number: fn(f32, &mut [f32]),
}

struct Binary<I: 'static, O: 'static> {
    walk: LoopNest<2>,
    loops: &'static Loops<I, O>,
    in_place: Option<&'static InPlace>,
    /// Index of the operand with the output's shape, 0 if both have it.
    full_operand: Option<usize>,
}

impl<I: Element, O: Element> Kernel for Binary<I, O> {
    fn in_place(&self) -> Option<usize> {
        self.in_place.and(self.full_operand)
    }

    fn run(&self, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>], _: &mut [u8]) -> Result<(), String> {
        let (a, b) = (inputs[0].as_slice::<I>(), inputs[1].as_slice::<I>());
        self.walk.for_each_row(outputs[0].as_mut_slice::<O>(), 1, |[i, j], out| match self.walk.inner.1 {
            [0, _] => (self.loops.left)(a[i], &b[j..j + out.len()], out),
            [_, 0] => (self.loops.right)(&a[i..i + out.len()], b[j], out),
            _ => (self.loops.slices)(&a[i..i + out.len()], &b[j..j + out.len()], out),
        });
        Ok(())
    }

    fn run_in_place(&self, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>]) -> Result<(), String> {
        let (Some(loops), Some(full_operand)) = (self.in_place, self.full_operand) else {
            return Err("this call does not compute in place".into());
        };
        let operand = inputs[0].as_slice::<f32>();
        self.walk.for_each_row(outputs[0].as_mut_slice::<f32>(), 1, |offsets, out| {
            let offset = offsets[1 - full_operand];
            match (full_operand, self.walk.inner.1[1 - full_operand]) {
                (0, 0) => (loops.left_number)(out, operand[offset]),
                (0, _) => (loops.left_slice)(out, &operand[offset..offset + out.len()]),
                (_, 0) => (loops.right_number)(operand[offset], out),
                _ => (loops.right_slice)(&operand[offset..offset + out.len()], out),
            }
        });
        Ok(())
    }
}

/// Creates the kernel of a call whose operands have the element type `dtype`, represented by `I`.
pub(super) fn make<I: Element, O: Element>(
    spec: &Spec<'_>,
    dtype: DType,
    loops: &'static Loops<I, O>,
    in_place: Option<&'static InPlace>,
) -> Option<Box<dyn Kernel>> {
    if spec.inputs.iter().any(|input| input.dtype != dtype) {
        return None;
    }
    let (a, b, out) = (spec.inputs[0].shape()?, spec.inputs[1].shape()?, spec.outputs[0].shape()?);
    let full_operand = [&a, &b].iter().position(|shape| **shape == out);
    Some(Box::new(Binary { walk: LoopNest::new([&a, &b], &out), loops, in_place, full_operand }))
}

macro_rules! loops {
    ($module:ident $out:ty, |$a:ident, $b:ident| $formula:expr) => {
        mod $module {
            use super::*;
            multiversion! {
                pub(super) fn slices(lhs: &[f32], rhs: &[f32], output: &mut [$out]) {
                    for ((out, &$a), &$b) in output.iter_mut().zip(lhs).zip(rhs) {
                        *out = $formula;
                    }
                }
                pub(super) fn right(lhs: &[f32], $b: f32, output: &mut [$out]) {
                    for (out, &$a) in output.iter_mut().zip(lhs) {
                        *out = $formula;
                    }
                }
                pub(super) fn left($a: f32, rhs: &[f32], output: &mut [$out]) {
                    for (out, &$b) in output.iter_mut().zip(rhs) {
                        *out = $formula;
                    }
                }
            }
            pub(super) static LOOPS: Loops<f32, $out> = Loops { slices, right, left };
        }
    };
}

macro_rules! arithmetic {
    ($($name:literal $module:ident $in_place:ident |$a:ident, $b:ident| $formula:expr;)*) => {$(
        loops! { $module f32, |$a, $b| $formula }
        mod $in_place {
            use super::*;
            multiversion! {
                fn left_slice(data: &mut [f32], rhs: &[f32]) {
                    for (out, &$b) in data.iter_mut().zip(rhs) {
                        let $a = *out;
                        *out = $formula;
                    }
                }
                fn left_number(data: &mut [f32], $b: f32) {
                    for out in data {
                        let $a = *out;
                        *out = $formula;
                    }
                }
                fn right_slice(lhs: &[f32], data: &mut [f32]) {
                    for (out, &$a) in data.iter_mut().zip(lhs) {
                        let $b = *out;
                        *out = $formula;
                    }
                }
                fn right_number($a: f32, data: &mut [f32]) {
                    for out in data {
                        let $b = *out;
                        *out = $formula;
                    }
                }
            }
            pub(super) static LOOPS: InPlace = InPlace { left_slice, left_number, right_slice, right_number };
        }
        inventory::submit! {
            Offer { op: $name, make: |spec| make(spec, DType::F32, &$module::LOOPS, Some(&$in_place::LOOPS)) }
        }
    )*};
}

arithmetic! {
    "add" add add_in_place |a, b| a + b;
    "subtract" subtract subtract_in_place |a, b| a - b;
    "multiply" multiply multiply_in_place |a, b| a * b;
    "divide" divide divide_in_place |a, b| a / b;
    "maximum" maximum maximum_in_place |a, b| if a.is_nan() || a > b { a } else { b };
    "minimum" minimum minimum_in_place |a, b| if a.is_nan() || a < b { a } else { b };
    "power" power power_in_place |a, b| if b == 2.0 { a * a } else { a.powf(b) };
}

macro_rules! comparisons {
    ($($name:literal $module:ident |$a:ident, $b:ident| $formula:expr;)*) => {$(
        loops! { $module u8, |$a, $b| u8::from($formula) }
        inventory::submit! { Offer { op: $name, make: |spec| make(spec, DType::F32, &$module::LOOPS, None) } }
    )*};
}

comparisons! {
    "equal" equal |a, b| a == b;
    "not_equal" not_equal |a, b| a != b;
    "less" less |a, b| a < b;
    "less_equal" less_equal |a, b| a <= b;
    "greater" greater |a, b| a > b;
    "greater_equal" greater_equal |a, b| a >= b;
}

/// Kernel of `where` for every element type that has the size of `T`: the bytes are copied unchanged.
struct Select<T> {
    walk: LoopNest<3>,
    element: std::marker::PhantomData<T>,
}

inventory::submit! {
    Offer {
        op: "where",
        make: |spec| {
            if spec.inputs[0].dtype.size() != 1 {
                return None;
            }
            let shapes = [spec.inputs[0].shape()?, spec.inputs[1].shape()?, spec.inputs[2].shape()?];
            let walk = LoopNest::new([&shapes[0], &shapes[1], &shapes[2]], &spec.outputs[0].shape()?);
            let element = std::marker::PhantomData;
            Some(match spec.outputs[0].dtype.size() {
                1 => Box::new(Select { walk, element: std::marker::PhantomData::<u8> }),
                2 => Box::new(Select { walk, element: std::marker::PhantomData::<u16> }),
                4 => Box::new(Select { walk, element: std::marker::PhantomData::<u32> }),
                _ => Box::new(Select::<u64> { walk, element }),
            })
        },
    }
}

impl<T: bytemuck::Pod + Send + Sync> Kernel for Select<T> {
    fn run(&self, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>], _: &mut [u8]) -> Result<(), String> {
        let condition = inputs[0].data;
        let (x, y): (&[T], &[T]) = (bytemuck::cast_slice(inputs[1].data), bytemuck::cast_slice(inputs[2].data));
        let [c, s, t] = self.walk.inner.1;
        self.walk.for_each_row(bytemuck::cast_slice_mut(outputs[0].data), 2, |[i, j, k], out: &mut [T]| {
            if (c, s, t) == (1, 1, 1) {
                let (condition, x, y) = (&condition[i..], &x[j..], &y[k..]);
                for (((out, &c), &x), &y) in out.iter_mut().zip(condition).zip(x).zip(y) {
                    *out = if c != 0 { x } else { y };
                }
                return;
            }
            for (n, out) in out.iter_mut().enumerate() {
                *out = if condition[i + n * c] != 0 { x[j + n * s] } else { y[k + n * t] };
            }
        });
        Ok(())
    }
}
