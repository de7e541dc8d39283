//! Resizing and padding of dense tensors. Resizing blends the input rows of each result row first, and then the
//! columns of the blended row; padding copies whole runs of the last axis.

use super::dense::f32_shapes;
use super::plane::is_dense;
use super::simd::{mul_add, multiversion};
use super::split::{self, SharedPtr};
use super::{Kernel, Offer, Spec};
use byoc_ir::op::image::{AxisTaps, ResizeShape};
use byoc_ir::op::pad::{pad_source, pad_width};
use byoc_ir::tensor::{Shape, TensorView, TensorViewMut};

inventory::submit! { Offer { op: "image.resize2d", make: make_resize } }
inventory::submit! { Offer { op: "nn.upsampling", make: make_resize } }
inventory::submit! { Offer { op: "nn.pad", make: make_pad } }

/// Maximum number of threads, each with its own blended row.
const SLOTS: usize = 16;

struct Resize {
    size: [usize; 2],
    out: [usize; 2],
    planes: usize,
    rows: AxisTaps,
    cols: AxisTaps,
    /// Interpolation weights of the columns, rounded to `f32`.
    weights: Vec<f32>,
    /// True if resizing keeps the columns of the data unchanged.
    has_same_columns: bool,
}

fn make_resize(spec: &Spec<'_>) -> Option<Box<dyn Kernel>> {
    let ([data], out) = f32_shapes(spec)?;
    let ResizeShape { data, out, axes: [rows, cols] } = ResizeShape::new(&spec.params(), &data, &out).ok()?;
    let has_outside = rows.outside.iter().chain(&cols.outside).any(|&o| o);
    if !is_dense(&data) || !is_dense(&out) || has_outside || data.size.contains(&0) {
        return None;
    }
    let weights: Vec<f32> = cols.weight.iter().map(|&w| w as f32).collect();
    let has_same_columns = cols.per_index == 1 && cols.index.iter().copied().eq(0..data.size[4]);
    Some(Box::new(Resize {
        size: [data.size[3], data.size[4]],
        out: [out.size[3], out.size[4]],
        planes: data.size[0] * data.size[1],
        rows,
        cols,
        weights,
        has_same_columns,
    }))
}

impl Resize {
    fn row(&self, plane: &[f32], h: usize, blended_line: &mut [f32], out: &mut [f32]) {
        let width = self.size[1];
        let taps = h * self.rows.per_index..(h + 1) * self.rows.per_index;
        let line = |tap: usize| &plane[self.rows.index[tap] * width..][..width];
        let mut nonzero_taps = taps.clone().filter(|&tap| self.rows.weight[tap] != 0.0);
        let row = match (nonzero_taps.next(), nonzero_taps.next()) {
            // A single row with a weight of 1 is used directly.
            (Some(only), None) if self.rows.weight[only] == 1.0 => line(only),
            _ => {
                blended_line.fill(0.0);
                for tap in taps.filter(|&tap| self.rows.weight[tap] != 0.0) {
                    blend(blended_line, line(tap), self.rows.weight[tap] as f32);
                }
                blended_line
            }
        };
        match self.cols.per_index {
            _ if self.has_same_columns => out.copy_from_slice(row),
            1 => out.iter_mut().zip(&self.cols.index).for_each(|(o, &i)| *o = row[i]),
            n => {
                let taps = self.cols.index.chunks(n).zip(self.weights.chunks(n));
                for (o, (index, weight)) in out.iter_mut().zip(taps) {
                    let weighted_pixels =
                        index.iter().zip(weight).map(|(&i, &w)| if w == 0.0 { 0.0 } else { row[i] * w });
                    *o = weighted_pixels.sum();
                }
            }
        }
    }
}

multiversion! {
    fn blend(out: &mut [f32], line: &[f32], weight: f32) {
        for (t, f) in out.iter_mut().zip(line) {
            *t = mul_add::<FMA>(*f, weight, *t);
        }
    }
}

impl Kernel for Resize {
    fn workspace(&self) -> usize {
        SLOTS * self.size[1] * 4
    }

    fn run(
        &self,
        inputs: &[TensorView<'_>],
        outputs: &mut [TensorViewMut<'_>],
        workspace: &mut [u8],
    ) -> Result<(), String> {
        let x = inputs[0].as_slice::<f32>();
        let out = outputs[0].as_mut_slice::<f32>();
        let scratch = split::scratch(workspace);
        let (lines, width, slot) = (self.planes * self.out[0], self.out[1], self.size[1]);
        let parts = split::threads(out.len() * self.rows.per_index).min(SLOTS).min(lines);
        assert!(parts * slot <= scratch.len() && lines * width <= out.len(), "every part lies within the buffers");
        let (scratch, out) = (SharedPtr::new(scratch), SharedPtr::new(out));
        split::for_each_part(parts, |part| {
            // SAFETY: the assertion keeps slot `part` inside the scratch memory, and `for_each_part` runs each part
            // once, so no other thread accesses the slot.
            let blended_line = unsafe { std::slice::from_raw_parts_mut(scratch.get().add(part * slot), slot) };
            for line in split::part(lines, 1, part, parts) {
                let (plane, h) = (line / self.out[0], line % self.out[0]);
                let size = self.size[0] * self.size[1];
                // SAFETY: the assertion keeps the line inside the result, and `split::part` assigns each line to one
                // part, so no other thread accesses it.
                let out = unsafe { std::slice::from_raw_parts_mut(out.get().add(line * width), width) };
                self.row(&x[plane * size..][..size], h, blended_line, out);
            }
        });
        Ok(())
    }
}

struct Pad {
    shape: Shape,
    out: Shape,
    widths: Vec<(i64, i64)>,
    mode: String,
    bytes: usize,
}

fn make_pad(spec: &Spec<'_>) -> Option<Box<dyn Kernel>> {
    let shape = spec.inputs.first()?.shape()?;
    let out = spec.outputs.first()?.shape()?;
    let widths = pad_width(&spec.params())?;
    let is_plain = !shape.is_empty() && widths.len() == shape.len() && !shape.contains(&0) && !out.contains(&0);
    let mode = spec.params().string("pad_mode");
    let bytes = spec.outputs[0].dtype.size();
    is_plain.then(|| Box::new(Pad { shape, out, widths, mode, bytes }) as Box<dyn Kernel>)
}

impl Kernel for Pad {
    fn run(&self, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>], _: &mut [u8]) -> Result<(), String> {
        let (x, value) = (inputs[0].data, &inputs[1].data[..self.bytes]);
        let last = self.shape.len() - 1;
        let (width, size, bytes) = (self.out[last], self.shape[last], self.bytes);
        let left_pad = self.widths[last].0;
        // Positions of an output row that receive elements of the data.
        let inside = left_pad.clamp(0, width as i64) as usize..(size as i64 + left_pad).clamp(0, width as i64) as usize;
        let inside = inside.start..inside.end.max(inside.start);
        let work = outputs[0].data.len() / 16;
        split::for_each_chunk(outputs[0].data, width * bytes, work, |row, out| {
            let (mut remaining_index, mut offset, mut step) = (row, Some(0), 1);
            for axis in (0..last).rev() {
                let i = (remaining_index % self.out[axis]) as i64 - self.widths[axis].0;
                remaining_index /= self.out[axis];
                offset = offset
                    .zip(pad_source(&self.mode, i, self.shape[axis] as i64))
                    .map(|(offset, i)| offset + i as usize * step);
                step *= self.shape[axis];
            }
            let Some(offset) = offset else {
                out.chunks_mut(bytes).for_each(|t| t.copy_from_slice(value));
                return;
            };
            let line = &x[offset * size * bytes..][..size * bytes];
            if !inside.is_empty() {
                let first = (inside.start as i64 - left_pad) as usize;
                out[inside.start * bytes..inside.end * bytes]
                    .copy_from_slice(&line[first * bytes..][..inside.len() * bytes]);
            }
            for position in (0..inside.start).chain(inside.end..width) {
                let source = pad_source(&self.mode, position as i64 - left_pad, size as i64);
                let pixel = source.map_or(value, |i| &line[i as usize * bytes..][..bytes]);
                out[position * bytes..][..bytes].copy_from_slice(pixel);
            }
        });
        Ok(())
    }
}
