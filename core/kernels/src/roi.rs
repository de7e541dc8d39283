//! `vision.roi_align` with averaging. The elements and weights of all samples along each axis of a region are computed
//! once, and then applied to each channel.

use super::dense::f32_shapes;
use super::{Kernel, Offer, Spec, split};
use byoc_ir::cancel::Ticks;
use byoc_ir::tensor::{TensorView, TensorViewMut};
use smallvec::SmallVec;

inventory::submit! { Offer { op: "vision.roi_align", make } }

struct RoiAlign {
    /// Batch, channels, height and width of the data.
    data: [usize; 4],
    /// Number of bins along height and width.
    pooled_size: [usize; 2],
    scale: f64,
    is_aligned: bool,
    /// Samples per bin along each axis; 0 if they depend on the region.
    samples: usize,
}

fn make(spec: &Spec<'_>) -> Option<Box<dyn Kernel>> {
    let ([data, _], out) = f32_shapes(spec)?;
    let params = spec.params();
    if params.string("mode") != "avg" || params.string("layout") != "NCHW" {
        return None;
    }
    Some(Box::new(RoiAlign {
        data: data.as_slice().try_into().ok()?,
        pooled_size: [out[2], out[3]],
        scale: params.float("spatial_scale"),
        is_aligned: params.bool("aligned"),
        samples: usize::try_from(params.int("sample_ratio")).unwrap_or(0),
    }))
}

/// Elements around a sample along one axis, with their weights; `None` outside the data.
type Sample = Option<[(usize, f32); 2]>;

/// Samples of the bins along one axis.
struct Samples {
    samples: SmallVec<[Sample; 32]>,
    /// Number of samples per bin.
    per_bin: usize,
}

impl Samples {
    fn bin(&self, i: usize) -> &[Sample] {
        &self.samples[i * self.per_bin..][..self.per_bin]
    }
}

fn sample(coordinate: f64, size: usize) -> Sample {
    if size == 0 || !(-1.0..=size as f64).contains(&coordinate) {
        return None;
    }
    let coordinate = coordinate.max(0.0);
    let low = coordinate as usize;
    if low + 1 >= size {
        return Some([(size - 1, 1.0), (size - 1, 0.0)]);
    }
    let part = coordinate - low as f64;
    Some([(low, (1.0 - part) as f32), (low + 1, part as f32)])
}

impl RoiAlign {
    /// Returns the samples along one axis of a region that extends from `first` to `last` on this axis.
    fn samples(&self, first: f32, last: f32, axis: usize) -> Samples {
        let offset = if self.is_aligned { 0.5 } else { 0.0 };
        let (first, last) = (f64::from(first) * self.scale - offset, f64::from(last) * self.scale - offset);
        let length = if self.is_aligned { last - first } else { (last - first).max(1.0) };
        let bins = self.pooled_size[axis];
        let bin = length / bins as f64;
        let per_bin = if self.samples > 0 { self.samples } else { bin.ceil().clamp(0.0, 1e4) as usize };
        let at = |i: usize| {
            let (bin_index, sample) = (i / per_bin, i % per_bin);
            first + bin_index as f64 * bin + (sample as f64 + 0.5) * bin / per_bin as f64
        };
        Samples { samples: (0..bins * per_bin).map(|i| sample(at(i), self.data[2 + axis])).collect(), per_bin }
    }

    /// Returns the average of the samples of a bin.
    fn average(&self, plane: &[f32], rows: &[Sample], columns: &[Sample]) -> f32 {
        let width = self.data[3];
        let mut sum = 0.0;
        for row in rows.iter().flatten() {
            for column in columns.iter().flatten() {
                for (y, a) in row {
                    let line = &plane[y * width..][..width];
                    sum += line[column[0].0] * a * column[0].1 + line[column[1].0] * a * column[1].1;
                }
            }
        }
        sum / (rows.len() * columns.len()).max(1) as f32
    }
}

impl Kernel for RoiAlign {
    fn run(&self, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>], _: &mut [u8]) -> Result<(), String> {
        let (data, rois) = (inputs[0].as_slice::<f32>(), inputs[1].as_slice::<f32>());
        let [batches, channels, height, width] = self.data;
        if let Some(invalid) = rois.chunks_exact(5).find(|roi| !(0.0..batches as f32).contains(&roi[0])) {
            return Err(format!("rois: expected a batch index >= 0 and < {batches}, found {}", invalid[0]));
        }
        let [bin_rows, bin_columns] = self.pooled_size;
        let (bins, plane_len) = (bin_rows * bin_columns, height * width);
        let out = outputs[0].as_mut_slice::<f32>();
        let work = out.len() * 4 * self.samples.max(2).pow(2);
        split::for_each_chunk(out, channels * bins, work, |i, out| {
            let roi = &rois[i * 5..][..5];
            let (rows, columns) = (self.samples(roi[2], roi[4], 0), self.samples(roi[1], roi[3], 1));
            let image = &data[roi[0] as usize * channels * plane_len..][..channels * plane_len];
            let mut ticks = Ticks::every(bins * rows.per_bin * columns.per_bin);
            for (channel, out) in out.chunks_exact_mut(bins).enumerate() {
                if ticks.is_requested() {
                    return;
                }
                let plane = &image[channel * plane_len..][..plane_len];
                for (bin, out) in out.iter_mut().enumerate() {
                    *out = self.average(plane, rows.bin(bin / bin_columns), columns.bin(bin % bin_columns));
                }
            }
        });
        Ok(())
    }
}
