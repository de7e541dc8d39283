//! Winograd convolutions compared with the direct formula, and the conditions under which they are used.

use super::library;
use super::region::{random_floats, run};
use crate::argument::{Argument, Arguments, BufferId};
use crate::cpu::has_avx512;
use crate::ir::RegionIr;
use crate::library::{Desc, ffi};
use crate::lower::{Packs, lower};
use crate::plan::Operation;
use crate::runtime::LoadedRegion;
use crate::winograd::{WeightLayout, Winograd};
use byoc_plugin_api::*;
use byoc_test_support::plugin;

/// Dimensions of a convolution with channels-last images and kernels (filters, channels, 3, 3).
#[derive(Clone, Copy, Debug)]
struct Sizes {
    source: [usize; 3],
    result: [usize; 2],
    padding: [usize; 2],
    filters: usize,
    channels: usize,
}

impl Sizes {
    /// Computes the convolution by the direct formula in float64.
    fn direct_convolution(&self, x: &[f32], w: &[f32]) -> Vec<f64> {
        let ([images, height, width], [rows, columns]) = (self.source, self.result);
        let mut result = Vec::new();
        for (image, row, column) in (0..images * rows * columns)
            .map(|index| (index / (rows * columns), index / columns % rows, index % columns))
        {
            for filter in 0..self.filters {
                let mut sum = 0.0;
                for (i, j) in (0..9).map(|tap| (tap / 3, tap % 3)) {
                    let [y, x_at] =
                        [(row + i).wrapping_sub(self.padding[0]), (column + j).wrapping_sub(self.padding[1])];
                    if y >= height || x_at >= width {
                        continue;
                    }
                    for channel in 0..self.channels {
                        let datum = x[((image * height + y) * width + x_at) * self.channels + channel];
                        let weight = w[(filter * self.channels + channel) * 9 + i * 3 + j];
                        sum += f64::from(datum) * f64::from(weight);
                    }
                }
                result.push(sum);
            }
        }
        result
    }
}

/// Compares the convolution with the direct formula. The convolution has a bias and an addend, which shares the
/// result's memory if `is_in_place` is set. `threads` holds the number of threads with scratch memory and the number of
/// threads that run.
fn compute(sizes: &Sizes, threads: [usize; 2], range: [f32; 2], is_in_place: bool) {
    let Some(library) = library() else { return };
    let Sizes { source, result, padding, filters, channels } = *sizes;
    let weights = WeightLayout { size: [filters, channels], strides: [channels * 9, 9, 3, 1] };
    let strides = [source[1] * source[2] * channels, source[2] * channels, channels];
    let layer = Winograd { source, strides, result, padding, weights, range, slots: threads[0] };
    let elements = source[0] * result[0] * result[1] * filters;
    let (mut x, w) =
        (random_floats(source.iter().product::<usize>() * channels, 1), random_floats(filters * channels * 9, 2));
    let (mut bias, mut addend) = (random_floats(filters, 3), random_floats(elements, 4));
    let expected = sizes.direct_convolution(&x, &w);
    let sum = |i: usize| expected[i] + f64::from(bias[i % filters]) + f64::from(addend[i]);
    let expected: Vec<f64> = (0..elements).map(sum).collect();
    let magnitude = expected.iter().fold(0f64, |max, y| max.max(y.abs()));
    let mut packed_weights = vec![0.0; weights.elements()];
    let bytes: Vec<u8> = w.iter().flat_map(|w| w.to_ne_bytes()).collect();
    assert_eq!(
        weights.transform(&bytes[..bytes.len() - 1], &mut packed_weights),
        None,
        "expected truncated weights to be rejected"
    );
    weights.transform(&bytes, &mut packed_weights).unwrap();
    // The guard elements past the ends of the result and of the scratch memory must not change.
    let mut out = if is_in_place { addend.clone() } else { vec![f32::NAN; elements] };
    out.push(7.0);
    let mut scratch = vec![f32::NAN; layer.scratch() + 1];
    let mut tensors = vec![
        (ffi::ARG_SRC, x.as_mut_ptr()),
        (ffi::ARG_WEIGHTS, packed_weights.as_mut_ptr()),
        (ffi::ARG_BIAS, bias.as_mut_ptr()),
        (ffi::ARG_SCRATCHPAD, scratch.as_mut_ptr()),
        (ffi::ARG_DST, out.as_mut_ptr()),
    ];
    tensors.push((ffi::ARG_SRC_1, if is_in_place { out.as_mut_ptr() } else { addend.as_mut_ptr() }));
    let argument = |(i, (arg, _)): (usize, &(i32, *mut f32))| Argument {
        arg: *arg,
        buffer: BufferId(i as u32),
        offset: 0,
        desc: Desc::with_strides(library, DType::F32, &[1], &[1]).unwrap(),
    };
    let args: Vec<Argument> = tensors.iter().enumerate().map(argument).collect();
    library.set_threads(threads[1]);
    let bases: Vec<*mut u8> = tensors.iter().map(|(_, pointer)| pointer.cast()).collect();
    // SAFETY: all tensors are allocated above in the sizes of `layer`, and the caller checked for AVX-512.
    unsafe { layer.run(library, Arguments { args: &args, bases: &bases }) };
    assert_eq!((out.pop(), scratch.pop().map(f32::is_nan)), (Some(7.0), Some(true)));
    for (i, (&actual, sum)) in out.iter().zip(expected).enumerate() {
        let expected = sum.clamp(f64::from(range[0]), f64::from(range[1]));
        let error = (f64::from(actual) - expected).abs() / magnitude;
        assert!(error < 1e-5, "{sizes:?}, threads {threads:?}, element {i}: expected {expected}, found {actual}");
    }
}

#[test]
fn matches_reference_for_every_size() {
    if !has_avx512() {
        println!("skipped: this CPU does not support AVX-512");
        return;
    }
    const UNBOUNDED: [f32; 2] = [f32::NEG_INFINITY, f32::INFINITY];
    let sizes = |images, height, width, [top, left, bottom, right]: [usize; 4], filters, channels| Sizes {
        source: [images, height, width],
        result: [height + top + bottom - 2, width + left + right - 2],
        padding: [top, left],
        filters,
        channels,
    };
    // Odd and even sizes, every padding, and numbers of channels and filters that fill registers and blocks completely
    // or partially.
    for (sizes, threads) in [
        (sizes(1, 8, 8, [1; 4], 32, 16), [1, 1]),
        (sizes(1, 7, 9, [1; 4], 16, 17), [2, 2]),
        (sizes(2, 5, 6, [0; 4], 48, 31), [2, 2]),
        (sizes(1, 13, 4, [0, 2, 1, 0], 33, 32), [2, 2]),
        (sizes(3, 6, 11, [2, 0, 0, 2], 70, 40), [3, 3]),
        (sizes(1, 3, 3, [0; 4], 64, 16), [4, 4]),
        (sizes(1, 1, 30, [1; 4], 16, 64), [2, 2]),
        // More tiles than fit in one group, and filters that are split among threads.
        (sizes(1, 41, 23, [1; 4], 20, 200), [2, 2]),
        (sizes(1, 4, 4, [1; 4], 100, 16), [5, 5]),
        // Fewer and more threads than scratch memory slots.
        (sizes(1, 20, 20, [1; 4], 32, 16), [4, 1]),
        (sizes(1, 20, 20, [1; 4], 32, 16), [1, 3]),
    ] {
        compute(&sizes, threads, UNBOUNDED, false);
        compute(&sizes, threads, [0.0, f32::INFINITY], true);
        compute(&sizes, threads, [-1.0, 1.5], false);
    }
}

/// Returns a graph that convolves a (1, 32, n, n) image with 32 k x k kernels, with padding that preserves the image
/// size, and then applies an operator. Also returns the kernels.
fn graph(n: usize, k: usize, activation: &str, attrs: Vec<Attr>) -> (Graph, Constant) {
    let ty = |shape: &[usize]| TensorType::new(DType::F32, shape);
    let mut graph = Graph::new("region_0");
    let x = graph.push_input("x", ty(&[1, 32, n, n]));
    let w = graph.push_constant(0, ty(&[32, 32, k, k]));
    let conv_attrs = [Attr::new("padding", vec![k as i64 / 2; 4]), Attr::new("kernel_size", vec![k as i64; 2])];
    let y = graph.push_op("nn.conv2d", [ValueRef::of(x), ValueRef::of(w)], conv_attrs, [ty(&[1, 32, n, n])]);
    let y = graph.push_op(activation, [ValueRef::of(y)], attrs, [ty(&[1, 32, n, n])]);
    graph.outputs.push(ValueRef::of(y));
    (graph, plugin::floats(&[32, 32, k, k], &random_floats(32 * 32 * k * k, 5)))
}

#[test]
fn used_if_profitable_and_enabled() {
    let Some(library) = library().filter(|_| has_avx512()) else { return };
    let count_winograd = |(mut graph, w): (Graph, Constant), options: serde_json::Value| {
        crate::options::store(&mut graph, &options);
        let shape: Vec<i64> = graph.inputs[0].ty.shape().unwrap().iter().map(|&d| d as i64).collect();
        let mut ir = RegionIr::of(&graph, &[w], &[shape]).unwrap();
        ir.options = crate::options::of_graph(&graph).0;
        let plan = lower(library, &ir, &mut Packs::default()).unwrap();
        plan.steps.iter().filter(|step| matches!(step.operation, Operation::Winograd(_))).count()
    };
    let relu = |n, k| graph(n, k, "nn.relu", vec![]);
    let no_options = || serde_json::json!({});
    assert_eq!(count_winograd(relu(16, 3), no_options()), 1);
    assert_eq!(
        count_winograd(graph(16, 3, "clip", vec![Attr::new("a_min", 0.0), Attr::new("a_max", 6.0)]), no_options()),
        1
    );
    assert_eq!(count_winograd(relu(16, 3), serde_json::json!({"backend_options": {"winograd": "false"}})), 0);
    assert_eq!(count_winograd(relu(4, 3), no_options()), 0, "expected no Winograd for too few tiles");
    assert_eq!(count_winograd(relu(16, 5), no_options()), 0, "expected no Winograd for a 5 x 5 kernel");
    assert_eq!(count_winograd(graph(16, 3, "tanh", vec![]), no_options()), 0, "expected no Winograd for a fused tanh");
}

#[test]
fn nan_propagates_within_its_tiles_only() {
    if library().is_none() {
        return;
    }
    const N: usize = 16;
    let (graph, w) = graph(N, 3, "nn.relu", vec![]);
    let region = LoadedRegion::new(graph, &[w], &plugin::services(2)).unwrap();
    let mut x = random_floats(32 * N * N, 6);
    x[5 * N + 5] = f32::NAN;
    let y = run(&region, &[1, 32, N, N], &x);
    for (row, column) in (0..N * N).map(|index| (index / N, index % N)) {
        // NaN is allowed in outputs that depend on the NaN in the input, and in other outputs of the same tiles.
        let is_near = |index: usize| (4..8).contains(&index);
        let value = y[row * N + column];
        let depends_on_nan = (4..=6).contains(&row) && (4..=6).contains(&column);
        let is_in_tiles = is_near(row) && is_near(column);
        assert!(!value.is_nan() || is_in_tiles, "row {row}, column {column}: expected no NaN, found {value}");
        let must_be_nan = depends_on_nan && has_avx512();
        assert!(value.is_nan() || !must_be_nan, "row {row}, column {column}: expected NaN, found {value}");
    }
}
