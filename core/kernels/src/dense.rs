//! Matrix products and bias addition.

use super::gemm::{Matrix, Output, gemm};
use super::simd::multiversion;
use super::{Kernel, Offer, Spec, split};
use byoc_ir::op::dense::MatMulShape;
use byoc_ir::op::norm::AxisView;
use byoc_ir::tensor::{DType, TensorView, TensorViewMut};

inventory::submit! { Offer { op: "nn.dense", make: make_product } }
inventory::submit! { Offer { op: "nn.matmul", make: make_product } }
inventory::submit! { Offer { op: "nn.batch_matmul", make: make_product } }
inventory::submit! { Offer { op: "nn.bias_add", make: make_bias } }

/// Returns the shapes of `N` inputs and of output 0, if all are `float32`.
pub(super) fn f32_shapes<const N: usize>(
    spec: &Spec<'_>,
) -> Option<([byoc_ir::tensor::Shape; N], byoc_ir::tensor::Shape)> {
    let is_f32 = spec.inputs.iter().chain(spec.outputs).all(|t| t.dtype == DType::F32);
    if !is_f32 || spec.inputs.len() != N {
        return None;
    }
    let shapes: Vec<_> = spec.inputs.iter().map(|t| t.shape()).collect::<Option<_>>()?;
    Some((shapes.try_into().ok()?, spec.outputs.first()?.shape()?))
}

struct Product(MatMulShape);

fn make_product(spec: &Spec<'_>) -> Option<Box<dyn Kernel>> {
    let ([a, b], out) = f32_shapes(spec)?;
    Some(Box::new(Product(MatMulShape::new(&spec.params(), &a, &b, &out))))
}

impl Kernel for Product {
    fn run(&self, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>], _: &mut [u8]) -> Result<(), String> {
        let s = &self.0;
        let (a, b) = (inputs[0].as_slice::<f32>(), inputs[1].as_slice::<f32>());
        let out = outputs[0].as_mut_slice::<f32>();
        if out.is_empty() {
            return Ok(());
        }
        let multiply_one = |threads: usize, i: usize, out: &mut [f32]| {
            let a = Matrix { data: &a[i * s.a[0]..], row: s.a[1], col: s.a[2] };
            let b = Matrix { data: &b[i * s.b[0]..], row: s.b[1], col: s.b[2] };
            gemm(threads, s.k, a, b, Output::of(out, s.m, s.n, s.n));
        };
        // The constants convert multiply-adds to the unit of work of [`split`]: a blocked product needs less time per
        // multiply-add than the dot products of a result with few rows.
        let work = s.m * s.n * s.k / if s.m > 4 { 8 } else { 2 };
        if s.batch < 2 * split::available_threads() {
            for (i, out) in out.chunks_mut(s.m * s.n).enumerate() {
                multiply_one(split::threads(work), i, out);
            }
        } else {
            split::for_each_chunk(out, s.m * s.n, s.batch * work, |i, out| multiply_one(1, i, out));
        }
        Ok(())
    }
}

struct Bias(AxisView);

fn make_bias(spec: &Spec<'_>) -> Option<Box<dyn Kernel>> {
    let ([data, _], _) = f32_shapes(spec)?;
    Some(Box::new(Bias(AxisView::new(&data, spec.params().int("axis")))))
}

impl Bias {
    fn add(&self, bias: &[f32], out: &mut [f32]) {
        let (AxisView { len, inner, .. }, work) = (self.0, out.len() / 4);
        if inner == 1 {
            split::for_each_chunk(out, len, work, |_, row| add_each(row, bias));
        } else {
            split::for_each_chunk(out, inner, work, |i, line| add_one(line, bias[i % len]));
        }
    }
}

impl Kernel for Bias {
    fn in_place(&self) -> Option<usize> {
        Some(0)
    }

    fn run_in_place(&self, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>]) -> Result<(), String> {
        self.add(inputs[0].as_slice(), outputs[0].as_mut_slice());
        Ok(())
    }
}

multiversion! {
    fn add_each(out: &mut [f32], bias: &[f32]) {
        for (o, b) in out.iter_mut().zip(bias) {
            *o += b;
        }
    }

    fn add_one(out: &mut [f32], bias: f32) {
        for o in out {
            *o += bias;
        }
    }
}
