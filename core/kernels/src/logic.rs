//! Comparisons of integers and logical operators on Booleans, with broadcasting.

use super::broadcast::LoopNest;
use super::{Kernel, Offer, Spec};
use byoc_ir::tensor::{DType, Element, TensorView, TensorViewMut};

/// Loops over the rows of two operands.
struct Relation<T: 'static> {
    walk: LoopNest<2>,
    loops: &'static Loops<T>,
}

/// Loops of an operator with two slices, with a scalar on the right, with a scalar on the left.
struct Loops<T: 'static> {
    slices: fn(&[T], &[T], &mut [u8]),
    right: fn(&[T], T, &mut [u8]),
    left: fn(T, &[T], &mut [u8]),
}

impl<T: Element> Kernel for Relation<T> {
    fn run(&self, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>], _: &mut [u8]) -> Result<(), String> {
        let (a, b) = (inputs[0].as_slice::<T>(), inputs[1].as_slice::<T>());
        self.walk.for_each_row(outputs[0].as_mut_slice::<u8>(), 1, |[i, j], out| match self.walk.inner.1 {
            [0, _] => (self.loops.left)(a[i], &b[j..j + out.len()], out),
            [_, 0] => (self.loops.right)(&a[i..i + out.len()], b[j], out),
            _ => (self.loops.slices)(&a[i..i + out.len()], &b[j..j + out.len()], out),
        });
        Ok(())
    }
}

fn make<T: Element>(spec: &Spec<'_>, dtype: DType, loops: &'static Loops<T>) -> Option<Box<dyn Kernel>> {
    if spec.inputs.iter().any(|input| input.dtype != dtype) || spec.outputs[0].dtype != DType::Bool {
        return None;
    }
    let (a, b, out) = (spec.inputs[0].shape()?, spec.inputs[1].shape()?, spec.outputs[0].shape()?);
    Some(Box::new(Relation { walk: LoopNest::new([&a, &b], &out), loops }))
}

macro_rules! loops {
    ($element:ty, |$a:ident, $b:ident| $formula:expr) => {{
        static LOOPS: Loops<$element> = Loops {
            slices: |lhs, rhs, output| {
                for ((out, &$a), &$b) in output.iter_mut().zip(lhs).zip(rhs) {
                    *out = u8::from($formula);
                }
            },
            right: |lhs, $b, output| {
                for (out, &$a) in output.iter_mut().zip(lhs) {
                    *out = u8::from($formula);
                }
            },
            left: |$a, rhs, output| {
                for (out, &$b) in output.iter_mut().zip(rhs) {
                    *out = u8::from($formula);
                }
            },
        };
        &LOOPS
    }};
}

macro_rules! comparisons {
    ($($name:literal |$a:ident, $b:ident| $formula:expr;)*) => {$(
        inventory::submit! { Offer { op: $name, make: |spec| make(spec, DType::I32, loops!(i32, |$a, $b| $formula)) } }
        inventory::submit! { Offer { op: $name, make: |spec| make(spec, DType::I64, loops!(i64, |$a, $b| $formula)) } }
    )*};
}

comparisons! {
    "equal" |a, b| a == b;
    "not_equal" |a, b| a != b;
    "less" |a, b| a < b;
    "less_equal" |a, b| a <= b;
    "greater" |a, b| a > b;
    "greater_equal" |a, b| a >= b;
}

macro_rules! logical {
    ($($name:literal |$a:ident, $b:ident| $formula:expr;)*) => {$(
        inventory::submit! { Offer { op: $name, make: |spec| make(spec, DType::Bool, loops!(u8, |$a, $b| $formula)) } }
    )*};
}

logical! {
    "logical_and" |a, b| (a != 0) & (b != 0);
    "logical_or" |a, b| (a | b) != 0;
    "logical_xor" |a, b| (a != 0) != (b != 0);
}
