//! Sampling of images at computed coordinates. The taps and weights of every coordinate are computed once, and then
//! applied to each channel.

use super::dense::f32_shapes;
use super::{Kernel, Offer, Spec, split};
use byoc_ir::tensor::{TensorView, TensorViewMut};
use smallvec::SmallVec;

inventory::submit! { Offer { op: "image.grid_sample", make } }

/// Treatment of taps outside the data.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Padding {
    Zeros,
    Border,
    Reflection,
}

struct GridSample {
    channels: usize,
    /// Spatial dimensions of the data.
    size: SmallVec<[usize; 3]>,
    /// Number of coordinates per image.
    positions: usize,
    /// True if the coordinates are the last axis of the grid.
    is_last: bool,
    is_nearest: bool,
    is_aligned: bool,
    padding: Padding,
    images: usize,
}

fn make(spec: &Spec<'_>) -> Option<Box<dyn Kernel>> {
    let ([data, _], out) = f32_shapes(spec)?;
    let params = spec.params();
    let method = params.string("method");
    let size: SmallVec<[usize; 3]> = data[2..].into();
    if method == "bicubic" || u32::try_from(size.iter().product::<usize>()).is_err() {
        return None;
    }
    Some(Box::new(GridSample {
        channels: data[1],
        size,
        positions: out[2..].iter().product(),
        is_last: params.string("layout").ends_with('C'),
        is_nearest: method == "nearest",
        is_aligned: params.bool("align_corners"),
        padding: match params.string("padding_mode").as_str() {
            "border" => Padding::Border,
            "reflection" => Padding::Reflection,
            _ => Padding::Zeros,
        },
        images: data[0],
    }))
}

/// Offset and weight of a tap, packed into one word.
fn entry(offset: usize, weight: f64) -> u64 {
    (offset as u64) << 32 | u64::from((weight as f32).to_bits())
}

impl GridSample {
    /// Returns the number of taps per coordinate.
    fn taps(&self) -> usize {
        if self.is_nearest { 1 } else { 1 << self.size.len() }
    }

    /// Converts a coordinate in [-1, 1] to an index along an axis of `size` elements.
    fn index_of(&self, coordinate: f64, size: f64) -> f64 {
        if self.is_aligned { (coordinate + 1.0) / 2.0 * (size - 1.0) } else { ((coordinate + 1.0) * size - 1.0) / 2.0 }
    }

    /// Maps an index into the data.
    fn wrap(&self, index: f64, size: f64) -> f64 {
        match self.padding {
            Padding::Zeros => index,
            Padding::Border => index.clamp(0.0, size - 1.0),
            Padding::Reflection => {
                let (low, range) = if self.is_aligned { (0.0, size - 1.0) } else { (-0.5, size) };
                let reflected = if range > 0.0 && index.is_finite() {
                    let distance = (index - low).rem_euclid(2.0 * range);
                    low + distance.min(2.0 * range - distance)
                } else {
                    0.0
                };
                reflected.clamp(0.0, size - 1.0)
            }
        }
    }

    /// Writes the taps of a sampling point; `coordinate` returns its coordinate along a spatial axis of the data.
    fn fill(&self, coordinate: impl Fn(usize) -> f64, entries: &mut [u64]) {
        let mut corners: SmallVec<[(usize, f64); 8]> = smallvec::smallvec![(0, 1.0)];
        for (axis, &size) in self.size.iter().enumerate() {
            let extent = size as f64;
            let index = self.wrap(self.index_of(coordinate(axis), extent), extent);
            let (first, part) =
                if self.is_nearest { (index.round_ties_even(), 0.0) } else { (index.floor(), index - index.floor()) };
            let tap = |index: f64, weight: f64| {
                let index = self.wrap(index, extent);
                // A tap outside the data, or with a NaN coordinate, has weight zero.
                if (0.0..extent).contains(&index) { (index as usize, weight) } else { (0, 0.0) }
            };
            let taps = [tap(first, 1.0 - part), tap(first + 1.0, part)];
            let taps = &taps[..if self.is_nearest { 1 } else { 2 }];
            let combine = |&(offset, weight): &(usize, f64)| {
                taps.iter().map(move |&(tap, tap_weight)| (offset * size + tap, weight * tap_weight))
            };
            corners = corners.iter().flat_map(combine).collect();
        }
        entries.iter_mut().zip(corners).for_each(|(out, (offset, weight))| *out = entry(offset, weight));
    }
}

impl Kernel for GridSample {
    fn workspace(&self) -> usize {
        self.images * self.positions * self.taps() * 8
    }

    fn run(
        &self,
        inputs: &[TensorView<'_>],
        outputs: &mut [TensorViewMut<'_>],
        workspace: &mut [u8],
    ) -> Result<(), String> {
        let (data, grid) = (inputs[0].as_slice::<f32>(), inputs[1].as_slice::<f32>());
        let entries: &mut [u64] = bytemuck::cast_slice_mut(&mut workspace[..self.workspace()]);
        let (axes, taps) = (self.size.len(), self.taps());
        let work = entries.len() * 8;
        split::for_each_chunk(entries, taps, work, |i, entries| {
            let (image, position) = (i / self.positions, i % self.positions);
            let grid = &grid[image * axes * self.positions..][..axes * self.positions];
            // The first coordinate belongs to the last axis of the data.
            let coordinate = |axis: usize| {
                let i = axes - 1 - axis;
                f64::from(grid[if self.is_last { position * axes + i } else { i * self.positions + position }])
            };
            self.fill(coordinate, entries);
        });
        let plane_len: usize = self.size.iter().product();
        let entries = &*entries;
        let out = outputs[0].as_mut_slice::<f32>();
        let work = out.len() * taps;
        split::for_each_chunk(out, self.positions, work, |plane, out| {
            let data = &data[plane * plane_len..][..plane_len];
            let entries = &entries[plane / self.channels * self.positions * taps..][..self.positions * taps];
            for (out, entries) in out.iter_mut().zip(entries.chunks_exact(taps)) {
                let mut sum = 0.0;
                for &entry in entries {
                    let weight = f32::from_bits(entry as u32);
                    // A tap with weight zero contributes nothing, even if the element is not finite.
                    if weight != 0.0 {
                        sum += data[(entry >> 32) as usize] * weight;
                    }
                }
                *out = sum;
            }
        });
        Ok(())
    }
}
