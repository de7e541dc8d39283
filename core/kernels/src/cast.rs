//! Conversions between common element types; the reference performs all other conversions.

use super::{Kernel, Offer, Spec, split};
use byoc_ir::tensor::{DType, Element, TensorView, TensorViewMut};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

/// Number of elements per call to a loop.
const CHUNK: usize = 4096;

struct Cast<S, D> {
    convert: fn(&[S], &mut [D]),
}

impl<S: Element, D: Element> Kernel for Cast<S, D> {
    fn run(&self, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>], _: &mut [u8]) -> Result<(), String> {
        let x = inputs[0].as_slice::<S>();
        split::for_each_chunk(outputs[0].as_mut_slice::<D>(), CHUNK, x.len(), |i, out| {
            (self.convert)(&x[i * CHUNK..i * CHUNK + out.len()], out);
        });
        Ok(())
    }
}

fn cast<S: Element, D: Element>(convert: fn(&[S], &mut [D])) -> Option<Box<dyn Kernel>> {
    Some(Box::new(Cast { convert }))
}

/// Creates a [`Cast`] kernel that evaluates `$formula` for each element.
macro_rules! each {
    ($from:ty, $to:ty, |$x:ident| $formula:expr) => {
        cast::<$from, $to>(|input, output| {
            for (out, &$x) in output.iter_mut().zip(input) {
                *out = $formula;
            }
        })
    };
}

fn make(spec: &Spec<'_>) -> Option<Box<dyn Kernel>> {
    use DType::{BF16, Bool, F16, F32, F64, I8, I32, I64, U8};
    match (spec.inputs[0].dtype, spec.outputs[0].dtype) {
        (F32, F32) => each!(f32, f32, |x| x),
        (F32, F64) => each!(f32, f64, |x| x as f64),
        (F64, F32) => each!(f64, f32, |x| x as f32),
        (F32, F16) => cast::<f32, f16>(|input, output| output.convert_from_f32_slice(input)),
        (F32, BF16) => cast::<f32, bf16>(|input, output| output.convert_from_f32_slice(input)),
        (F16, F32) => cast::<f16, f32>(|input, output| input.convert_to_f32_slice(output)),
        (BF16, F32) => cast::<bf16, f32>(|input, output| input.convert_to_f32_slice(output)),
        (F32, I8) => each!(f32, i8, |x| x as i8),
        (F32, U8) => each!(f32, u8, |x| x as u8),
        (F32, I32) => each!(f32, i32, |x| x as i32),
        (F32, I64) => each!(f32, i64, |x| x as i64),
        (F32, Bool) => each!(f32, u8, |x| u8::from(x != 0.0)),
        (I8, F32) => each!(i8, f32, |x| x as f32),
        (U8 | Bool, F32) => each!(u8, f32, |x| x as f32),
        (I32, F32) => each!(i32, f32, |x| x as f32),
        (I64, F32) => each!(i64, f32, |x| x as f32),
        (I8, I32) => each!(i8, i32, |x| x as i32),
        (U8 | Bool, I32) => each!(u8, i32, |x| x as i32),
        (U8 | Bool, I64) => each!(u8, i64, |x| x as i64),
        (I32, I8) => each!(i32, i8, |x| x as i8),
        (I32, U8) => each!(i32, u8, |x| x as u8),
        (I32, I64) => each!(i32, i64, |x| x as i64),
        (I64, I32) => each!(i64, i32, |x| x as i32),
        (I64, Bool) => each!(i64, u8, |x| u8::from(x != 0)),
        (I32, Bool) => each!(i32, u8, |x| u8::from(x != 0)),
        _ => None,
    }
}

inventory::submit! { Offer { op: "cast", make } }
inventory::submit! { Offer { op: "cast_like", make } }
