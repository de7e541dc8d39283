//! Transposed convolutions, compared with the direct formula, in the forms that the plugin computes them in; weights that
//! are inputs; and the steps that a plan reports.

use super::library;
use super::region::{random_floats, run_inputs};
use crate::runtime::LoadedRegion;
use byoc_plugin_api::*;
use byoc_test_support::plugin;
use serde_json::{Value, json};

/// Transposed convolution. Each spatial axis is given as (data, taps, stride, dilation, padding before and after, output
/// padding).
struct Layer {
    images: usize,
    groups: usize,
    /// Channels per group of the data and of the result.
    channels: [usize; 2],
    axes: Vec<[usize; 7]>,
    /// Operators after the convolution.
    chain: &'static [&'static str],
}

impl Layer {
    fn output(&self) -> Vec<usize> {
        let size = |&[data, taps, stride, dilation, before, after, extra]: &[usize; 7]| {
            (data - 1) * stride + (taps - 1) * dilation + 1 + extra - before - after
        };
        self.axes.iter().map(size).collect()
    }

    fn shape(&self, channels: usize, spatial: &[usize]) -> Vec<usize> {
        [self.images, channels].iter().chain(spatial).copied().collect()
    }

    /// Returns the column `index` of the axes.
    fn column(&self, index: usize) -> Vec<usize> {
        self.axes.iter().map(|axis| axis[index]).collect()
    }

    /// Computes the convolution by the direct formula in float64, row-major.
    fn direct(&self, x: &[f32], w: &[f32]) -> Vec<f64> {
        let ([from, to], output, data, taps) = (self.channels, self.output(), self.column(0), self.column(1));
        let count = |sizes: &[usize]| sizes.iter().product::<usize>();
        let unravel = |mut index: usize, sizes: &[usize]| {
            let mut position: Vec<usize> = sizes.iter().rev().map(|size| (index % size, index /= size).0).collect();
            position.reverse();
            position
        };
        let mut result = vec![0.0; self.images * self.groups * to * count(&output)];
        for (image, group, i, o) in (0..self.images * self.groups * from * to)
            .map(|n| (n / to / from / self.groups, n / to / from % self.groups, n / to % from, n % to))
        {
            for (p, position) in (0..count(&data)).map(|p| (p, unravel(p, &data))) {
                let datum = x[(image * self.groups * from + group * from + i) * count(&data) + p];
                for (t, tap) in (0..count(&taps)).map(|t| (t, unravel(t, &taps))) {
                    let mut at = self.axes.iter().zip(&output).zip(position.iter().zip(&tap));
                    let index = at.try_fold(0, |index, ((axis, &size), (&p, &t))| {
                        let at = (p * axis[2] + t * axis[3]).checked_sub(axis[4]).filter(|&at| at < size)?;
                        Some(index * size + at)
                    });
                    if let Some(index) = index {
                        let weight = w[((group * from + i) * to + o) * count(&taps) + t];
                        let row = image * self.groups * to + group * to + o;
                        result[row * count(&output) + index] += f64::from(datum) * f64::from(weight);
                    }
                }
            }
        }
        result
    }

    /// Checks the region against the direct formula and returns its steps. The weights are an input if
    /// `has_weight_input` is set, otherwise a constant.
    fn check(&self, threads: usize, has_weight_input: bool) -> Vec<Value> {
        let ([from, to], output, taps) = (self.channels, self.output(), self.column(1));
        let ty = |shape: &[usize]| TensorType::new(DType::F32, shape);
        let mut graph = Graph::new("region_0");
        crate::options::store(&mut graph, &json!({"backend_options": {"serial": "false"}}));
        let x_shape = self.shape(self.groups * from, &self.column(0));
        let w_shape: Vec<usize> = [self.groups * from, to].iter().chain(&taps).copied().collect();
        let y_shape = self.shape(self.groups * to, &output);
        let x = ValueRef::of(graph.push_input("x", ty(&x_shape)));
        let (x_values, w_values) =
            (random_floats(x_shape.iter().product(), 1), random_floats(w_shape.iter().product(), 2));
        let bias = random_floats(self.groups * to, 3);
        let constants =
            vec![plugin::floats(&[self.groups * to], &bias.clone()), plugin::floats(&w_shape, &w_values.clone())];
        let w = match has_weight_input {
            true => graph.push_input("w", ty(&w_shape)),
            false => graph.push_constant(1, ty(&w_shape)),
        };
        let w = ValueRef::of(w);
        let ints = |values: Vec<usize>| values.into_iter().map(|value| value as i64).collect::<Vec<i64>>();
        let attrs = [
            ("strides", ints(self.column(2))),
            ("dilation", ints(self.column(3))),
            ("padding", ints([self.column(4), self.column(5)].concat())),
            ("output_padding", ints(self.column(6))),
            ("kernel_size", ints(taps.clone())),
        ];
        let attrs = attrs.map(|(name, values)| Attr::new(name, values)).into_iter();
        let attrs = attrs.chain([Attr::new("groups", self.groups as i64)]);
        let name = format!("nn.conv{}d_transpose", self.axes.len());
        let mut y = ValueRef::of(graph.push_op(&name, [x, w], attrs, [ty(&y_shape)]));
        for operator in self.chain {
            y = ValueRef::of(match *operator {
                "nn.bias_add" => {
                    let b = ValueRef::of(graph.push_constant(0, ty(&[self.groups * to])));
                    graph.push_op("nn.bias_add", [y, b], [Attr::new("axis", 1i64)], [ty(&y_shape)])
                }
                operator => graph.push_op(operator, [y], [], [ty(&y_shape)]),
            });
        }
        graph.outputs.push(y);
        let region = LoadedRegion::new(graph, &constants, &plugin::services(threads)).unwrap();
        let mut expected = self.direct(&x_values, &w_values);
        let positions = output.iter().product::<usize>();
        for operator in self.chain {
            for (i, y) in expected.iter_mut().enumerate() {
                *y = match *operator {
                    "nn.bias_add" => *y + f64::from(bias[i / positions % (self.groups * to)]),
                    "nn.relu" => y.max(0.0),
                    _ => y.tanh(),
                };
            }
        }
        let mut inputs = vec![(x_shape, x_values)];
        if has_weight_input {
            inputs.push((w_shape, w_values));
        }
        let (found, steps) = run(&region, &inputs);
        let magnitude = expected.iter().fold(0f64, |max, y| max.max(y.abs()));
        assert_eq!(found.len(), expected.len());
        for (i, (&found, expected)) in found.iter().zip(expected).enumerate() {
            let error = (f64::from(found) - expected).abs() / magnitude;
            assert!(error < 1e-5, "threads {threads}, element {i}: expected {expected}, found {found}: {steps:?}");
        }
        for step in &steps {
            assert!(!crate::library::is_slow(step["implementation"].as_str().unwrap()), "{step}");
        }
        steps
    }
}

/// Runs a region twice, and returns the second result and the steps of its plan.
fn run(region: &LoadedRegion, inputs: &[(Vec<usize>, Vec<f32>)]) -> (Vec<f32>, Vec<Value>) {
    let shapes: Vec<&[usize]> = inputs.iter().map(|(shape, _)| &shape[..]).collect();
    let plan = region.prepare(&shapes).unwrap().plan;
    let steps = region.query("plan.steps", json!({ "plan": plan }).to_string().as_bytes()).unwrap().unwrap();
    let inputs: Vec<(&[usize], &[f32])> = inputs.iter().map(|(shape, values)| (&shape[..], &values[..])).collect();
    (run_inputs(region, &inputs, 2), serde_json::from_slice(&steps).unwrap())
}

/// Layers of one to three spatial axes: kernels equal to their strides, overlapping kernels, dilation, groups, padding at
/// one side only, and output padding beyond the stride.
fn layers() -> Vec<(Layer, bool)> {
    let layer = |images, groups, channels, axes: &[[usize; 7]], chain| Layer {
        images,
        groups,
        channels,
        axes: axes.to_vec(),
        chain,
    };
    const BIAS_RELU: &[&str] = &["nn.bias_add", "nn.relu"];
    const BIAS_TANH: &[&str] = &["nn.bias_add", "tanh"];
    let square = [9, 2, 2, 1, 0, 0, 0];
    vec![
        // Few channels and fixed lengths of runs, with and without parts that fall outside of the result.
        (layer(1, 1, [24, 1], &[square; 2], BIAS_RELU), true),
        (layer(2, 1, [7, 3], &[[11, 3, 2, 1, 1, 1, 1], [5, 3, 2, 1, 1, 0, 0]], BIAS_TANH), true),
        (layer(1, 1, [16, 5], &[[30, 8, 4, 1, 2, 2, 0]], BIAS_RELU), true),
        (
            layer(1, 1, [4, 2], &[[3, 4, 2, 1, 3, 3, 0], [4, 2, 3, 1, 0, 1, 2], [5, 3, 2, 1, 1, 1, 1]], &["nn.relu"]),
            true,
        ),
        (layer(1, 1, [5, 8], &[[6, 2, 2, 2, 1, 0, 0], [6, 3, 3, 2, 2, 2, 0]], &[]), true),
        (layer(1, 1, [3, 1], &[[2, 5, 2, 1, 4, 2, 0]], &[]), true),
        (layer(1, 1, [64, 2], &[[90, 2, 2, 1, 0, 0, 0], [130, 2, 2, 1, 0, 0, 0]], BIAS_RELU), true),
        // More channels, groups, depthwise kernels and dilation, which the library implements.
        (layer(1, 1, [24, 24], &[square; 2], BIAS_RELU), false),
        (layer(2, 4, [8, 8], &[[7, 3, 2, 1, 1, 1, 1]; 2], BIAS_RELU), false),
        (layer(1, 12, [1, 1], &[[8, 4, 2, 1, 1, 1, 0]; 2], BIAS_RELU), false),
        (layer(1, 1, [16, 12], &[[7, 3, 2, 2, 1, 2, 1]; 2], BIAS_TANH), false),
        (layer(1, 2, [5, 5], &[[4, 3, 2, 1, 1, 1, 0]; 3], BIAS_RELU), false),
        // Output padding beyond the stride, for which the library has no primitive.
        (layer(1, 1, [16, 12], &[[5, 3, 2, 3, 0, 0, 2], [5, 4, 1, 3, 0, 0, 2]], BIAS_RELU), true),
        (layer(2, 3, [4, 9], &[[5, 3, 1, 3, 0, 0, 2], [6, 2, 2, 1, 0, 0, 0]], BIAS_RELU), true),
    ]
}

#[test]
fn transposed_convolutions_match_the_direct_formula() {
    if library().is_none() {
        return;
    }
    for (index, (layer, is_overlap_add)) in layers().into_iter().enumerate() {
        for threads in [1, 2] {
            for has_weight_input in [false, true] {
                let steps = layer.check(threads, has_weight_input);
                let has_overlap_add = steps.iter().any(|step| step["implementation"] == "byoc:overlap_add");
                assert_eq!(has_overlap_add, is_overlap_add, "layer {index}: {steps:?}");
            }
        }
    }
}

/// Tests that weights that are an input are copied into the layout of a generated implementation, once for all readers.
#[test]
fn weights_that_are_inputs_are_copied_once() {
    if library().is_none() {
        return;
    }
    let ty = |shape: &[usize]| TensorType::new(DType::F32, shape);
    let mut graph = Graph::new("region_0");
    let (data, kernel) = ([1, 32, 14, 14], [32, 32, 3, 3]);
    let x = ValueRef::of(graph.push_input("x", ty(&data)));
    let w = ValueRef::of(graph.push_input("w", ty(&kernel)));
    let attrs =
        || [("padding", vec![1i64; 4]), ("kernel_size", vec![3; 2])].map(|(name, values)| Attr::new(name, values));
    let y = ValueRef::of(graph.push_op("nn.conv2d", [x, w], attrs(), [ty(&data)]));
    let y = ValueRef::of(graph.push_op("nn.conv2d", [y, w], attrs(), [ty(&data)]));
    graph.outputs.push(y);
    let region = LoadedRegion::new(graph, &[], &plugin::services(2)).unwrap();
    let inputs = [data, kernel].map(|shape| (shape.to_vec(), random_floats(shape.iter().product(), 5)));
    let (found, steps) = run(&region, &inputs);
    assert_eq!(steps.iter().filter(|step| step["step"] == "weights").count(), 1, "{steps:?}");
    for step in steps.iter().filter(|step| step["step"] == "convolution") {
        assert!(!crate::library::is_slow(step["implementation"].as_str().unwrap()), "{step}");
    }
    let convolve = |x: &[f64]| -> Vec<f64> {
        let weights = &inputs[1].1;
        let element = |index: usize| {
            let (o, row, column) = (index / 196, index / 14 % 14, index % 14);
            let taps = (0..32 * 9).map(|tap| (tap / 9, tap / 3 % 3, tap % 3));
            let product = |(i, r, c): (usize, usize, usize)| {
                let (r_at, c_at) = ((row + r).checked_sub(1)?, (column + c).checked_sub(1)?);
                let is_inside = r_at < 14 && c_at < 14;
                is_inside.then(|| x[(i * 14 + r_at) * 14 + c_at] * f64::from(weights[((o * 32 + i) * 3 + r) * 3 + c]))
            };
            taps.filter_map(product).sum()
        };
        (0..32 * 196).map(element).collect()
    };
    let x: Vec<f64> = inputs[0].1.iter().map(|&x| f64::from(x)).collect();
    let expected = convolve(&convolve(&x));
    let magnitude = expected.iter().fold(0f64, |max, y| max.max(y.abs()));
    for (found, expected) in found.iter().zip(expected) {
        assert!((f64::from(*found) - expected).abs() <= 1e-5 * magnitude, "expected {expected}, found {found}");
    }
}

/// Tests that small regions run on one thread, unless an option forbids it, and that steps are counted.
#[test]
fn small_regions_are_serial() {
    if library().is_none() {
        return;
    }
    let plan = |n: usize, options: Value| {
        let ty = TensorType::new(DType::F32, &[n, n]);
        let mut graph = Graph::new("region_0");
        crate::options::store(&mut graph, &options);
        let x = ValueRef::of(graph.push_input("x", ty.clone()));
        let w = ValueRef::of(graph.push_constant(0, ty.clone()));
        let y = ValueRef::of(graph.push_op("nn.dense", [x, w], [], [ty]));
        graph.outputs.push(y);
        let mut ir =
            crate::ir::RegionIr::of(&graph, &[plugin::floats(&[n, n], &vec![0.5; n * n])], &[vec![n as i64; 2]])
                .unwrap();
        ir.options = crate::options::of_graph(&graph).0;
        let library = library().unwrap();
        library.set_threads(2);
        crate::lower::lower(library, &ir, &mut crate::lower::Packs::default()).unwrap()
    };
    let count = |plan: &crate::plan::Plan, name: &str| {
        plan.counts().into_iter().find(|(counter, _)| counter == name).map(|(_, count)| count)
    };
    let small = plan(32, json!({}));
    assert!(small.is_serial);
    assert_eq!((count(&small, "dnnl.steps"), count(&small, "dnnl.parallel_steps")), (Some(1), Some(0)));
    let forbidden = plan(32, json!({"backend_options": {"serial": "false"}}));
    assert_eq!((forbidden.is_serial, count(&forbidden, "dnnl.parallel_steps")), (false, Some(1)));
    let large = plan(512, json!({}));
    assert_eq!((large.is_serial, count(&large, "dnnl.slow_steps")), (false, Some(0)));
    let name = format!("dnnl.implementation.{}", large.steps[0].implementation);
    assert_eq!(count(&large, &name), Some(1));
    assert_eq!(large.report()[0]["bytes"], 3 * 512 * 512 * 4);
}
