//! `qnn.conv2d`, `qnn.dense` and `qnn.batch_matmul` on 8-bit integers; the first two also fused with a requantization or a
//! conversion to real numbers.

use super::depthwise;
use super::engine::{DataShape, Engine, OutShape, Values};
use super::epilogue::{BIAS, ByteEpilogue, Epilogue, FloatEpilogue, Offsets, Output, PlainEpilogue, SCALES, Scaling};
use super::tile::TILE_CHANNELS;
use super::weights::{KernelShape, pack};
use crate::split::SharedPtr;
use crate::{Kernel, Offer, Packs, Spec, fallback};
use byoc_ir::op::conv::ConvShape;
use byoc_ir::op::dense::MatMulShape;
use byoc_ir::op::qnn::numerics::{Rescale, range};
use byoc_ir::op::qnn::{fused_bounds, requantization, scales};
use byoc_ir::tensor::{DType, TensorView, TensorViewMut};

inventory::submit! { Offer { op: "qnn.conv2d", make: make_conv } }
inventory::submit! { Offer { op: "qnn.contrib_conv2d_requantize", make: make_conv } }
inventory::submit! { Offer { op: "qnn.contrib_conv2d_dequantize", make: make_conv } }
inventory::submit! { Offer { op: "qnn.dense", make: make_product } }
inventory::submit! { Offer { op: "qnn.contrib_dense_requantize", make: make_product } }
inventory::submit! { Offer { op: "qnn.contrib_dense_dequantize", make: make_product } }
inventory::submit! { Offer { op: "qnn.batch_matmul", make: make_product } }
inventory::submit! { Packs("qnn.conv2d") }
inventory::submit! { Packs("qnn.contrib_conv2d_requantize") }
inventory::submit! { Packs("qnn.contrib_conv2d_dequantize") }
inventory::submit! { Packs("qnn.dense") }
inventory::submit! { Packs("qnn.contrib_dense_requantize") }
inventory::submit! { Packs("qnn.contrib_dense_dequantize") }

/// Several matrix products, possibly with separate weights, or one convolution.
struct Batch {
    count: usize,
    /// Strides between consecutive products in the data, the weights and the results, in elements.
    steps: [usize; 3],
}

struct Contraction {
    engine: Engine,
    batch: Batch,
    /// Index of the first zero point among the inputs.
    zero_points: usize,
    /// Packed constant weights, and their sum for each output channel.
    packed: Option<(Vec<i8>, Vec<i32>)>,
    output: Output,
    data: DType,
    /// Reference kernel, used for zero points that 8 bits cannot represent.
    reference: Box<dyn Kernel>,
}

fn make_conv(spec: &Spec<'_>) -> Option<Box<dyn Kernel>> {
    let shapes: Vec<_> = spec.inputs.iter().map(|t| t.shape()).collect::<Option<_>>()?;
    let out = spec.outputs.first()?.shape()?;
    let s = ConvShape::new(&spec.params(), &shapes[0], &shapes[1], &out);
    let plane = |size: [usize; 5]| [size[3], size[4]];
    let last_two = |v: [usize; 3]| [v[1], v[2]];
    let size = plane(s.data.size);
    let (before, after) = (last_two(s.window.before), last_two(s.window.after));
    let [kh, kw] = plane(s.weight.size);
    let dilation = last_two(s.window.dilation);
    let taps = || (0..kh).flat_map(move |h| (0..kw).map(move |w| [h, w]));
    let step = |strides: &[usize; 5]| [strides[0], strides[1], strides[3], strides[4]];
    let (out_size, w) = (plane(s.out.size), s.weight.stride);
    let engine = Engine {
        data: DataShape {
            images: s.data.size[0],
            size,
            before,
            padded_size: [0, 1].map(|i| before[i] + size[i] + after[i]),
            steps: step(&s.data.stride),
        },
        out: OutShape { size: out_size, steps: [s.out.stride[0], s.out.stride[1], s.out.stride[4]] },
        kernel: KernelShape {
            groups: s.groups,
            outputs: s.out.size[1] / s.groups,
            inputs: s.data.size[1] / s.groups,
            taps: taps().map(|[h, wd]| h * w[3] + wd * w[4]).collect(),
            output_step: w[0],
            input_step: w[1],
        },
        stride: last_two(s.window.stride),
        taps: taps().map(|[h, w]| [h * dilation[0], w * dilation[1]]).collect(),
    };
    if let Some(kernel) = depthwise::make(spec, &s, output(spec, s.out.size[1])?) {
        return Some(kernel);
    }
    // The rows of the result must be adjacent, so that one stride addresses every position.
    if s.out.stride[3] != s.out.stride[4] * out_size[1] {
        return None;
    }
    make(spec, engine, Batch { count: 1, steps: [0; 3] })
}

fn make_product(spec: &Spec<'_>) -> Option<Box<dyn Kernel>> {
    let shapes: Vec<_> = spec.inputs.iter().map(|t| t.shape()).collect::<Option<_>>()?;
    let s = MatMulShape::new(&spec.params(), &shapes[0], &shapes[1], &spec.outputs.first()?.shape()?);
    let engine = Engine {
        data: DataShape {
            images: 1,
            size: [1, s.m],
            before: [0; 2],
            padded_size: [1, s.m],
            steps: [0, s.a[2], 0, s.a[1]],
        },
        out: OutShape { size: [1, s.m], steps: [0, 1, s.n] },
        kernel: KernelShape {
            groups: 1,
            outputs: s.n,
            inputs: s.k,
            taps: vec![0],
            output_step: s.b[2],
            input_step: s.b[1],
        },
        stride: [1, 1],
        taps: vec![[0, 0]],
    };
    make(spec, engine, Batch { count: s.batch, steps: [s.a[0], s.b[0], s.m * s.n] })
}

fn make(spec: &Spec<'_>, engine: Engine, batch: Batch) -> Option<Box<dyn Kernel>> {
    let is_byte = |i: usize| matches!(spec.inputs[i].dtype, DType::I8 | DType::U8);
    let is_empty = spec.inputs[..2].iter().chain(spec.outputs).any(|t| t.len().is_none_or(|n| n == 0));
    if !is_byte(0) || !is_byte(1) || is_empty {
        return None;
    }
    let output = output(spec, engine.kernel.groups * engine.kernel.outputs)?;
    let packed = spec.constants.get(1).copied().flatten().filter(|_| batch.steps[1] == 0).map(|weights| {
        let mut packed = vec![0i8; engine.kernel.packed_bytes()];
        let mut totals = vec![0i32; engine.kernel.groups * engine.kernel.outputs];
        pack(&engine.kernel, &weights.view(), &mut packed, &mut totals);
        (packed, totals)
    });
    let zero_points = output.zero_points();
    let reference = fallback::make(spec)?;
    Some(Box::new(Contraction { engine, batch, zero_points, packed, output, data: spec.inputs[0].dtype, reference }))
}

/// Returns what becomes of the accumulators of an operator, if there is a kernel for it.
fn output(spec: &Spec<'_>, channels: usize) -> Option<Output> {
    match spec.def.name {
        name if name.ends_with("_requantize") => scaling(spec, channels).map(Output::Bytes),
        name if name.ends_with("_dequantize") => Some(Output::Reals),
        _ => (spec.outputs[0].dtype == DType::I32).then_some(Output::Sums),
    }
}

/// Returns the requantization of a fused operator, if its scales and zero points are constants.
fn scaling(spec: &Spec<'_>, channels: usize) -> Option<Scaling> {
    let params = spec.params();
    let constant = |i: usize| spec.constants.get(i).copied().flatten();
    let source_scales = scales(&params, 5, &constant(5)?.view()).ok()?;
    let result_scales = scales(&params, 6, &constant(6)?.view()).ok()?;
    let zero_point = *constant(7)?.as_slice::<i32>().first()?;
    let out = spec.outputs[0].dtype;
    if result_scales.len() != 1 || out.size() != 1 {
        return None;
    }
    let factors = requantization(&params, &source_scales, &result_scales);
    let bounds = fused_bounds(&params, range(out));
    let is_finite = factors.iter().all(|factor| !matches!(factor, Rescale::Float(ratio, _) if !ratio.is_finite()));
    is_finite.then(|| Scaling::new(&factors, channels, zero_point, (bounds.0 as i32, bounds.1 as i32)))
}

/// Parts of the workspace.
struct Scratch<'a> {
    data: &'a mut [u8],
    offsets: &'a mut [i32],
    zero_points: &'a mut [i32],
    weights: &'a mut [i8],
    totals: &'a mut [i32],
    /// Scale of each output channel, for real results.
    scales: &'a mut [f32],
}

impl Contraction {
    fn channels(&self) -> usize {
        self.engine.kernel.groups * self.engine.kernel.outputs
    }

    /// Returns the size in bytes of each part of the workspace.
    fn parts(&self) -> [usize; 6] {
        let (channels, packed) = (self.channels(), self.packed.is_some());
        [
            self.engine.workspace(self.data),
            (channels + TILE_CHANNELS) * 4,
            channels * 4,
            if packed { 0 } else { self.engine.kernel.packed_bytes() },
            if packed { 0 } else { channels * 4 },
            if matches!(self.output, Output::Reals) { channels * 4 } else { 0 },
        ]
        .map(|bytes| bytes.next_multiple_of(64))
    }

    fn scratch<'a>(&self, workspace: &'a mut [u8]) -> Scratch<'a> {
        let [data, offsets, zero_points, weights, totals, scales] = self.parts();
        let (data, remainder) = workspace.split_at_mut(data);
        let (offsets, remainder) = remainder.split_at_mut(offsets);
        let (zero_points, remainder) = remainder.split_at_mut(zero_points);
        let (weights, remainder) = remainder.split_at_mut(weights);
        let (totals, remainder) = remainder.split_at_mut(totals);
        Scratch {
            data,
            offsets: bytemuck::cast_slice_mut(offsets),
            zero_points: bytemuck::cast_slice_mut(zero_points),
            weights: bytemuck::cast_slice_mut(weights),
            totals: bytemuck::cast_slice_mut(totals),
            scales: bytemuck::cast_slice_mut(&mut remainder[..scales]),
        }
    }

    /// Prepares the data, the packed weights and the offsets of product `i`, and passes them to `run` together with
    /// scratch memory.
    fn with<F>(&self, inputs: &[TensorView<'_>], scratch: &mut Scratch<'_>, i: usize, run: F)
    where
        F: FnOnce(&Values<'_>, Offsets<'_>, &mut [u8]),
    {
        let (kernel, channels) = (&self.engine.kernel, self.channels());
        let part = |view: &TensorView<'_>, step: usize| view.data.get(i * step..).unwrap_or_default().len();
        let free_bytes = |view: &TensorView<'_>, step: usize| view.data.len() - part(view, step);
        let data = TensorView { data: &inputs[0].data[free_bytes(&inputs[0], self.batch.steps[0])..], ..inputs[0] };
        let weights = TensorView { data: &inputs[1].data[free_bytes(&inputs[1], self.batch.steps[1])..], ..inputs[1] };
        let (packed, totals): (&[i8], &[i32]) = match &self.packed {
            Some((packed, totals)) => (packed, totals),
            None => {
                pack(kernel, &weights, scratch.weights, scratch.totals);
                (scratch.weights, scratch.totals)
            }
        };
        // Tiles compute with uint8 data and int8 weights, so the zero points are shifted to these types.
        let zero_point = inputs[self.zero_points].as_slice::<i32>()[0];
        let shifted_zero_point = if self.data == DType::U8 { zero_point } else { zero_point.wrapping_add(128) };
        let weight_zero_points = inputs[self.zero_points + 1].as_slice::<i32>();
        let sign_shift = if inputs[1].dtype == DType::U8 { 128 } else { 0 };
        let mut has_zero_point = false;
        for (c, zero) in scratch.zero_points[..channels].iter_mut().enumerate() {
            *zero = weight_zero_points[if weight_zero_points.len() == 1 { 0 } else { c }].wrapping_sub(sign_shift);
            has_zero_point |= *zero != 0;
        }
        let bias = matches!(self.output, Output::Bytes(_)).then(|| inputs[BIAS].as_slice::<i32>());
        let terms = kernel.terms() as i32;
        for (c, offset) in scratch.offsets[..channels].iter_mut().enumerate() {
            let correction = terms.wrapping_mul(scratch.zero_points[c]).wrapping_sub(totals[c]);
            let bias = bias.map_or(0, |bias| bias[c]);
            *offset = shifted_zero_point.wrapping_mul(correction).wrapping_add(bias);
        }
        let zero_points = if has_zero_point { &scratch.zero_points[..channels] } else { &[][..] };
        let offsets = Offsets { values: scratch.offsets, zero_points };
        run(&Values { data, zero_point, weights: packed }, offsets, scratch.data);
    }

    fn run_product<F: Epilogue>(&self, values: &Values<'_>, epilogue: &F, workspace: &mut [u8]) {
        self.engine.run(values, epilogue, workspace);
    }
}

impl Kernel for Contraction {
    fn workspace(&self) -> usize {
        self.parts().iter().sum::<usize>().max(self.reference.workspace())
    }

    fn run(
        &self,
        inputs: &[TensorView<'_>],
        outputs: &mut [TensorViewMut<'_>],
        workspace: &mut [u8],
    ) -> Result<(), String> {
        let zero_point = inputs[self.zero_points].as_slice::<i32>()[0];
        if !self.engine.takes_zero_point(self.data, zero_point) {
            return self.reference.run(inputs, outputs, workspace);
        }
        let mut scratch = self.scratch(workspace);
        let len = outputs[0].len();
        match &self.output {
            Output::Sums => {
                let out = SharedPtr::new(outputs[0].as_mut_slice::<i32>());
                for i in 0..self.batch.count {
                    let first = i * self.batch.steps[2];
                    // SAFETY: the type relation gives the output `len` = `count * steps[2]` elements, so `first` lies
                    // inside it.
                    let (out, len) = (SharedPtr::at(unsafe { out.get().add(first) }), len - first);
                    self.with(inputs, &mut scratch, i, |values, offsets, workspace| {
                        if offsets.zero_points.is_empty() {
                            self.run_product(values, &PlainEpilogue::<false> { offsets, out, len }, workspace);
                        } else {
                            self.run_product(values, &PlainEpilogue::<true> { offsets, out, len }, workspace);
                        }
                    });
                }
            }
            Output::Bytes(scaling) => {
                let out = SharedPtr::new(&mut *outputs[0].data);
                self.with(inputs, &mut scratch, 0, |values, offsets, workspace| {
                    if offsets.zero_points.is_empty() {
                        self.run_product(values, &ByteEpilogue::<false> { offsets, scaling, out, len }, workspace);
                    } else {
                        self.run_product(values, &ByteEpilogue::<true> { offsets, scaling, out, len }, workspace);
                    }
                });
            }
            Output::Reals => {
                let out = SharedPtr::new(outputs[0].as_mut_slice::<f32>());
                let channels = self.channels();
                let scales = std::mem::take(&mut scratch.scales);
                match inputs[SCALES].as_slice::<f32>() {
                    [scale] => scales[..channels].fill(*scale),
                    each => scales[..channels].copy_from_slice(each),
                }
                let (scales, bias) = (&*scales, inputs[BIAS].as_slice::<f32>());
                self.with(inputs, &mut scratch, 0, |values, offsets, workspace| {
                    if offsets.zero_points.is_empty() {
                        let epilogue = FloatEpilogue::<false> { offsets, scales, bias, out, len };
                        self.run_product(values, &epilogue, workspace);
                    } else {
                        let epilogue = FloatEpilogue::<true> { offsets, scales, bias, out, len };
                        self.run_product(values, &epilogue, workspace);
                    }
                });
            }
        }
        Ok(())
    }
}
