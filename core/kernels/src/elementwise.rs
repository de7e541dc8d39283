//! Elementwise operators on `f32`: one loop per operator, compiled for each instruction set, split over the threads in
//! runs that fit in the L1 cache.

use super::math;
use super::simd::{exp, multiversion};
use super::{Kernel, Offer, Spec, split};
use byoc_ir::tensor::{DType, TensorView, TensorViewMut};

/// Number of elements per call to a loop: 16 KiB in, 16 KiB out.
const CHUNK: usize = 4096;

/// Loops of an operator, out of place and in place, and its cost per element, in units of an addition.
struct Map {
    out_of_place: fn(&[f32], &mut [f32]),
    in_place: fn(&mut [f32]),
    cost: usize,
}

impl Kernel for Map {
    fn in_place(&self) -> Option<usize> {
        Some(0)
    }

    fn run(&self, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>], _: &mut [u8]) -> Result<(), String> {
        let x = inputs[0].as_slice::<f32>();
        let out = outputs[0].as_mut_slice::<f32>();
        split::for_each_chunk(out, CHUNK, x.len() * self.cost, |i, out| {
            (self.out_of_place)(&x[i * CHUNK..i * CHUNK + out.len()], out);
        });
        Ok(())
    }

    fn run_in_place(&self, _: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>]) -> Result<(), String> {
        let out = outputs[0].as_mut_slice::<f32>();
        let work = out.len() * self.cost;
        split::for_each_chunk(out, CHUNK, work, |_, out| (self.in_place)(out));
        Ok(())
    }
}

/// Returns true if a call maps `f32` to `f32`.
fn is_f32(spec: &Spec<'_>) -> bool {
    spec.inputs.len() == 1 && spec.inputs[0].dtype == DType::F32 && spec.outputs[0].dtype == DType::F32
}

/// Registers a kernel for each operator: its name, the cost of an element, and its formula.
macro_rules! maps {
    ($($name:literal $cost:literal $loops:ident |$x:ident| $formula:expr;)*) => {$(
        mod $loops {
            use super::*;
            multiversion! {
                pub(super) fn out_of_place(input: &[f32], output: &mut [f32]) {
                    for (out, &$x) in output.iter_mut().zip(input) {
                        *out = $formula;
                    }
                }
                pub(super) fn in_place(data: &mut [f32]) {
                    for out in data {
                        let $x = *out;
                        *out = $formula;
                    }
                }
            }
        }
        inventory::submit! {
            Offer {
                op: $name,
                make: |spec| {
                    let map = Map { out_of_place: $loops::out_of_place, in_place: $loops::in_place, cost: $cost };
                    is_f32(spec).then(|| Box::new(map) as Box<dyn Kernel>)
                },
            }
        }
    )*};
}

maps! {
    "nn.relu" 1 relu |x| if x < 0.0 { 0.0 } else { x };
    "abs" 1 abs |x| x.abs();
    "negative" 1 negative |x| -x;
    "sign" 1 sign |x| if x > 0.0 { 1.0 } else if x < 0.0 { -1.0 } else { x };
    "floor" 1 floor |x| x.floor();
    "ceil" 1 ceil |x| x.ceil();
    "round" 1 round |x| x.round();
    "trunc" 1 trunc |x| x.trunc();
    "sqrt" 2 sqrt |x| x.sqrt();
    "rsqrt" 3 rsqrt |x| 1.0 / x.sqrt();
    "exp" 4 exponential |x| exp::<FMA>(x);
    "log" 4 log |x| math::log::<FMA>(x);
    "log2" 4 log2 |x| math::log2::<FMA>(x);
    "log10" 4 log10 |x| math::log10::<FMA>(x);
    "sigmoid" 5 sigmoid |x| math::sigmoid::<FMA>(x);
    "tanh" 6 tanh |x| math::tanh::<FMA>(x);
    "erf" 7 erf |x| math::erf::<FMA>(x);
}

/// Registers a kernel for each function without a vectorized form: computed in binary64, one element at a time, on all
/// threads.
macro_rules! scalar_maps {
    ($($name:literal $method:ident;)*) => {$(
        inventory::submit! {
            Offer {
                op: $name,
                make: |spec| {
                    let map = Map {
                        out_of_place: |input, output| {
                            for (out, x) in output.iter_mut().zip(input) {
                                *out = f64::from(*x).$method() as f32;
                            }
                        },
                        in_place: |data| data.iter_mut().for_each(|x| *x = f64::from(*x).$method() as f32),
                        cost: 30,
                    };
                    is_f32(spec).then(|| Box::new(map) as Box<dyn Kernel>)
                },
            }
        }
    )*};
}

scalar_maps! {
    "sin" sin;
    "cos" cos;
    "tan" tan;
    "asin" asin;
    "acos" acos;
    "atan" atan;
    "sinh" sinh;
    "cosh" cosh;
}

multiversion! {
    fn clip_out_of_place(input: &[f32], output: &mut [f32], low: f32, high: f32) {
        for (out, &x) in output.iter_mut().zip(input) {
            let raised_value = if x < low { low } else { x };
            *out = if raised_value > high { high } else { raised_value };
        }
    }
    fn clip_in_place(data: &mut [f32], low: f32, high: f32) {
        for out in data {
            let raised_value = if *out < low { low } else { *out };
            *out = if raised_value > high { high } else { raised_value };
        }
    }
    fn leaky_out_of_place(input: &[f32], output: &mut [f32], alpha: f32, _unused: f32) {
        for (out, &x) in output.iter_mut().zip(input) {
            *out = if x > 0.0 { x } else { alpha * x };
        }
    }
    fn leaky_in_place(data: &mut [f32], alpha: f32, _unused: f32) {
        for out in data {
            *out = if *out > 0.0 { *out } else { alpha * *out };
        }
    }
}

/// Variant of [`Map`] with two parameters from the attributes.
struct ParameterMap {
    out_of_place: fn(&[f32], &mut [f32], f32, f32),
    in_place: fn(&mut [f32], f32, f32),
    numbers: (f32, f32),
}

impl Kernel for ParameterMap {
    fn in_place(&self) -> Option<usize> {
        Some(0)
    }

    fn run(&self, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>], _: &mut [u8]) -> Result<(), String> {
        let (x, (a, b)) = (inputs[0].as_slice::<f32>(), self.numbers);
        split::for_each_chunk(outputs[0].as_mut_slice::<f32>(), CHUNK, x.len(), |i, out| {
            (self.out_of_place)(&x[i * CHUNK..i * CHUNK + out.len()], out, a, b);
        });
        Ok(())
    }

    fn run_in_place(&self, _: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>]) -> Result<(), String> {
        let (out, (a, b)) = (outputs[0].as_mut_slice::<f32>(), self.numbers);
        let work = out.len();
        split::for_each_chunk(out, CHUNK, work, |_, out| (self.in_place)(out, a, b));
        Ok(())
    }
}

inventory::submit! {
    Offer {
        op: "clip",
        make: |spec| {
            let (low, high) = (spec.params().float("a_min") as f32, spec.params().float("a_max") as f32);
            let map = ParameterMap { out_of_place: clip_out_of_place, in_place: clip_in_place, numbers: (low, high) };
            // If `low` exceeds `high`, the result depends on the order of the comparisons, so the call is left to the
            // reference.
            (is_f32(spec) && low <= high).then(|| Box::new(map) as Box<dyn Kernel>)
        },
    }
}

inventory::submit! {
    Offer {
        op: "nn.leaky_relu",
        make: |spec| {
            let alpha = spec.params().float("alpha") as f32;
            let map =
                ParameterMap { out_of_place: leaky_out_of_place, in_place: leaky_in_place, numbers: (alpha, 0.0) };
            is_f32(spec).then(|| Box::new(map) as Box<dyn Kernel>)
        },
    }
}
