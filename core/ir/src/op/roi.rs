//! Pooling of regions of interest with interpolation (K. He et al., Mask R-CNN, 2017).

use super::scalar::Writer;
use super::spatial::CanonicalDims;
use super::walk::for_each_index;
use super::{AttrDef, AttrKind, Cost, Default, Evaluation, Params, Relation, TypeResult};
use crate::diag::codes;
use crate::ir::{Dim, Type};
use crate::op::facts::{ErrorModel, Properties};
use crate::tensor::{TensorView, TensorViewMut};

operator! {
    name: "vision.roi_align",
    doc: "For each region of data (n, c, h, w) a grid of pooled_size bins: the average or the maximum of samples, which \
          are interpolated from the four elements around them. rois is (count, 5): batch index, x1, y1, x2, y2. The \
          maximum is that of the weighted elements, as in ONNX.",
    inputs: &["data", "rois"],
    attrs: &[
        AttrDef::new("pooled_size", AttrKind::Ints, Default::Required, "height and width of the result"),
        AttrDef::new("spatial_scale", AttrKind::Float, Default::Float(1.0), "ratio of the size of the data to that of the image in which coordinates are given"),
        AttrDef::new("sample_ratio", AttrKind::Int, Default::Int(-1),
            "samples per bin along each axis; if not positive, one for each element of the data, rounded up"),
        AttrDef::new("layout", AttrKind::Str, Default::Str("NCHW"), "order of the axes of data and result"),
        AttrDef::new("mode", AttrKind::Str, Default::Str("avg"), "avg or max"),
        AttrDef::new("aligned", AttrKind::Bool, Default::Bool(false),
            "true to move coordinates by half an element; false also widens regions to at least one element"),
    ],
    relation: roi_type,
    reference: Some(roi_align),
    flops,
    properties: Properties::EXACT.error(ErrorModel::Interpolation),
}

/// Counts one sample per element of the result, with a multiply-add for each of the four elements around the sample.
fn flops(cost: &Cost<'_>) -> u64 {
    cost.ret_len().saturating_mul(8)
}

fn roi_type(relation: &Relation<'_>) -> TypeResult {
    let (data, rois) = (relation.tensor(0)?, relation.tensor(1)?);
    let columns = rois.dims.get(1).and_then(Dim::fixed);
    if data.dims.len() != 4 || rois.dims.len() != 2 || columns.is_some_and(|n| n != 5) || !data.dtype.is_float() {
        let [a, b] = [&relation.args[0], &relation.args[1]];
        return Err(
            relation.mismatch(format!("expected float data (n, c, h, w) and rois (count, 5), found {a} and {b}"))
        );
    }
    let size = super::spatial::per_axis(relation, "pooled_size", 2, 1)?;
    let mode = relation.params.string("mode");
    if !["avg", "max"].contains(&mode.as_str()) {
        return Err(relation.error(codes::types::BAD_ATTRIBUTE, format!("mode: expected avg or max, found \"{mode}\"")));
    }
    let positions = super::spatial::layout(relation, "layout", "NCHW", "NCHW")?;
    let mut dims = data.dims.to_vec();
    dims[positions[0]] = rois.dims[0].clone();
    dims[positions[2]] = Dim::Fixed(size[0] as usize);
    dims[positions[3]] = Dim::Fixed(size[1] as usize);
    Ok(Type::tensor_of(data.dtype, dims))
}

/// Returns the elements around a coordinate along one axis, with their weights; `None` outside the data.
fn neighbors(coordinate: f64, size: usize) -> Option<[(usize, f64); 2]> {
    if size == 0 || !(-1.0..=size as f64).contains(&coordinate) {
        return None;
    }
    let clamped_coordinate = coordinate.max(0.0);
    let low = clamped_coordinate as usize;
    if low + 1 >= size {
        return Some([(size - 1, 1.0), (size - 1, 0.0)]);
    }
    let part = clamped_coordinate - low as f64;
    Some([(low, 1.0 - part), (low + 1, part)])
}

fn roi_align(params: Params<'_>, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>]) -> Evaluation {
    let (data, rois) = (inputs[0].to_f64s(), inputs[1].to_f64s());
    let layout = params.string("layout");
    let dims = CanonicalDims::new(inputs[0].shape, &layout, "NC");
    let [batches, _, _, height, width] = dims.size;
    let positions = super::spatial::positions(&layout, "NCHW").ok_or("layout: expected a permutation of NCHW")?;
    let (scale, aligned) = (params.float("spatial_scale"), params.bool("aligned"));
    let (ratio, max) = (params.int("sample_ratio"), params.string("mode") == "max");
    let pooled_size = params.per_axis("pooled_size", 2);
    if let Some(invalid) = rois.chunks_exact(5).find(|roi| !(0.0..batches as f64).contains(&roi[0])) {
        return Err(format!("rois: expected a batch index >= 0 and < {batches}, found {}", invalid[0]));
    }
    // First coordinate, bin size, and number of samples per bin along y or x.
    let bins_along = |roi: &[f64], axis: usize| {
        let offset = if aligned { 0.5 } else { 0.0 };
        let (first, last) = (roi[2 - axis] * scale - offset, roi[4 - axis] * scale - offset);
        let size = if aligned { last - first } else { (last - first).max(1.0) };
        let bin = size / pooled_size[axis] as f64;
        let samples = if ratio > 0 { ratio as usize } else { bin.ceil().clamp(0.0, 1e4) as usize };
        (first, bin, samples)
    };
    let mut values = Vec::with_capacity(outputs[0].len());
    for_each_index(outputs[0].shape, |index| {
        let [region, channel, bin_row, bin_column] = [0, 1, 2, 3].map(|i| index[positions[i]]);
        let roi = &rois[region * 5..][..5];
        let (y, x) = (bins_along(roi, 0), bins_along(roi, 1));
        let coordinate = |(first, bin, samples): (f64, f64, usize), bin_index: usize, sample: usize| {
            first + bin_index as f64 * bin + (sample as f64 + 0.5) * bin / samples as f64
        };
        let (mut sum, mut maximum) = (0.0, f64::NEG_INFINITY);
        for (i, j) in (0..y.2).flat_map(|i| (0..x.2).map(move |j| (i, j))) {
            let pair = neighbors(coordinate(y, bin_row, i), height).zip(neighbors(coordinate(x, bin_column, j), width));
            let Some((rows, columns)) = pair else {
                maximum = maximum.max(0.0);
                continue;
            };
            for ((row, a), (column, b)) in rows.into_iter().flat_map(|row| columns.map(|column| (row, column))) {
                let weighted_sample = data[dims.at(roi[0] as usize, channel, [0, row, column])] * a * b;
                sum += weighted_sample;
                maximum = maximum.max(weighted_sample);
            }
        }
        let count = (y.2 * x.2).max(1) as f64;
        values.push(match max {
            true if maximum == f64::NEG_INFINITY => 0.0,
            true => maximum,
            false => sum / count,
        });
    });
    Writer::new(&mut outputs[0]).store(values);
    Ok(())
}
