//! Geometry of a convolution over a plane, in the form that the fast kernels use.

use byoc_ir::op::conv::ConvShape;
use byoc_ir::op::spatial::CanonicalDims;
use std::ops::Range;

/// Convolution over (at most) height and width.
#[derive(Clone, Debug)]
pub struct Plane {
    pub batch: usize,
    pub groups: usize,
    /// Number of input channels per group.
    pub channels: usize,
    /// Number of output channels per group.
    pub out_channels: usize,
    pub size: [usize; 2],
    pub kernel: [usize; 2],
    pub out: [usize; 2],
    pub stride: [usize; 2],
    pub dilation: [usize; 2],
    pub before: [usize; 2],
    /// True if the plane is one depth of a volume, so that its channels are not adjacent in memory.
    pub is_slice: bool,
}

impl Plane {
    /// Creates the geometry; `None` for three spatial axes and for empty tensors.
    pub fn new(s: &ConvShape) -> Option<Plane> {
        let depth = [s.data.size[2], s.weight.size[2], s.out.size[2], s.window.stride[0]];
        let plane = Plane::of_depth(s).filter(|_| depth == [1; 4])?;
        Some(Plane { is_slice: false, ..plane })
    }

    /// Creates the geometry of one depth of a convolution; `None` for empty tensors.
    pub fn of_depth(s: &ConvShape) -> Option<Plane> {
        if s.data.size.contains(&0) || s.weight.size.contains(&0) || s.out.size.contains(&0) {
            return None;
        }
        let plane = |c: &CanonicalDims| [c.size[3], c.size[4]];
        let last_two = |v: [usize; 3]| [v[1], v[2]];
        let plane = Plane {
            batch: s.data.size[0],
            groups: s.groups,
            channels: s.data.size[1] / s.groups,
            out_channels: s.out.size[1] / s.groups,
            size: plane(&s.data),
            kernel: plane(&s.weight),
            out: plane(&s.out),
            stride: last_two(s.window.stride),
            dilation: last_two(s.window.dilation),
            before: last_two(s.window.before),
            is_slice: true,
        };
        Some(plane.with_long_rows())
    }

    /// Returns the same convolution with a column as a row, for the elements of a row are gathered together.
    fn with_long_rows(mut self) -> Plane {
        if [self.size[1], self.kernel[1], self.out[1]] == [1; 3] && self.before[1] == 0 {
            let axes = [&mut self.size, &mut self.kernel, &mut self.out, &mut self.stride, &mut self.dilation];
            axes.into_iter().for_each(|axis| axis.swap(0, 1));
            self.before.swap(0, 1);
        }
        self
    }

    /// Returns the number of output positions per image.
    pub fn positions(&self) -> usize {
        self.out[0] * self.out[1]
    }

    /// Returns the number of multiply-adds per element of the result.
    pub fn terms(&self) -> usize {
        self.channels * self.kernel[0] * self.kernel[1]
    }

    /// Returns true if the columns are the data itself, so that nothing is gathered.
    pub fn is_direct(&self) -> bool {
        !self.is_slice
            && self.kernel == [1, 1]
            && self.stride == [1, 1]
            && self.before == [0, 0]
            && self.out == self.size
    }

    /// Returns the work of one group of one image in the unit of `split::threads`: a multiply-add of a blocked product
    /// counts as 1/8.
    pub fn work(&self) -> usize {
        self.out_channels * self.positions() * self.terms() / 8
    }

    /// Returns the positions on axis `axis` whose tap `tap` lies inside the data.
    pub fn valid_positions(&self, axis: usize, tap: usize) -> Range<usize> {
        let (step, before) = (self.stride[axis], self.before[axis]);
        let offset = tap * self.dilation[axis];
        let first = before.saturating_sub(offset).div_ceil(step);
        let last = (self.size[axis] + before).saturating_sub(offset).div_ceil(step);
        let last = last.min(self.out[axis]);
        first.min(last)..last
    }
}

/// Returns true if a tensor is dense in canonical order (batch, channels, plane).
pub fn is_dense(c: &CanonicalDims) -> bool {
    let mut step = 1;
    (0..5).rev().all(|i| {
        let is_regular = c.size[i] == 1 || c.stride[i] == step;
        step *= c.size[i];
        is_regular
    })
}

/// Returns true if a tensor is dense with its channels last.
pub fn is_channels_last(c: &CanonicalDims) -> bool {
    let order = [0, 2, 3, 4, 1];
    let reordered = CanonicalDims { size: order.map(|i| c.size[i]), stride: order.map(|i| c.stride[i]) };
    is_dense(&reordered)
}
