//! Operators of object detectors: proposals from anchors, suppression per class, and pooling of regions.

use super::repeat::dims_of;
use super::scalar::{Writer, max_or_nan};
use super::spatial::{self, CanonicalDims, each};
use super::vision::float_tensor_of_rank;
use super::walk::gather;
use super::{AttrDef, AttrKind, Default, Evaluation, OpPattern, Params, Relation, TypeResult};
use crate::cancel::Ticks;
use crate::diag::codes;
use crate::ir::{Dim, DimExpr, Type};
use crate::op::facts::{ErrorModel, Properties};
use crate::tensor::{DType, TensorView, TensorViewMut};

operator! {
    name: "vision.regular_non_max_suppression",
    doc: "Boxes that no better box of their class overlaps: boxes is (batch, boxes, 4) with y1, x1, y2, x2, scores \
          (batch, boxes, classes), where the classes before the last num_classes are background. The results, the best \
          first and padded with zeros, are boxes (batch, max_detections, 4), classes, scores, and the number of \
          detections of each batch element.",
    inputs: &["boxes", "scores"],
    attrs: &[
        AttrDef::new("max_detections_per_class", AttrKind::Int, Default::Required, "maximum number of boxes of a class"),
        AttrDef::new("max_detections", AttrKind::Int, Default::Required, "number of rows of the results"),
        AttrDef::new("num_classes", AttrKind::Int, Default::Required, "number of classes without background"),
        AttrDef::new("iou_threshold", AttrKind::Float, Default::Required, "greatest overlap of two boxes of a class, as intersection over union"),
        AttrDef::new("score_threshold", AttrKind::Float, Default::Required, "least score of a box"),
    ],
    relation: regular_nms_type,
    reference: Some(regular_nms),
    flops: |cost| cost.arg_len(1).saturating_mul(10),
}

fn regular_nms_type(relation: &Relation<'_>) -> TypeResult {
    let (boxes, scores) = (float_tensor_of_rank(relation, 0, 3)?, float_tensor_of_rank(relation, 1, 3)?);
    relation.same_dim("corners of a box", &Dim::Fixed(4), &boxes.dims[2])?;
    let batch = relation.same_dim("batch of boxes and scores", &boxes.dims[0], &scores.dims[0])?;
    relation.same_dim("boxes and scores", &boxes.dims[1], &scores.dims[1])?;
    let params = relation.params;
    let (classes, per_class) = (params.int("num_classes"), params.int("max_detections_per_class"));
    if classes < 1 || per_class < 0 || scores.dims[2].fixed().is_some_and(|n| (n as i64) < classes) {
        let message = format!(
            "expected num_classes from 1 to {} and max_detections_per_class >= 0, found {classes} and {per_class}",
            scores.dims[2]
        );
        return Err(relation.error(codes::types::BAD_ATTRIBUTE, message));
    }
    let detections = dims_of(relation, &[params.int("max_detections")])?.remove(0);
    let rows = Type::tensor_of(DType::F32, [batch.clone(), detections.clone()]);
    Ok(Type::tuple([
        Type::tensor_of(DType::F32, [batch.clone(), detections, Dim::Fixed(4)]),
        rows.clone(),
        rows,
        Type::tensor_of(DType::I32, [batch]),
    ]))
}

/// Returns the intersection over union of two boxes; 0 if one of them is empty.
fn box_overlap(a: &[f64], b: &[f64]) -> f64 {
    let area = |corners: &[f64]| (corners[2] - corners[0]) * (corners[3] - corners[1]);
    if !(area(a) > 0.0 && area(b) > 0.0) {
        return 0.0;
    }
    let side = |first: usize| (a[first + 2].min(b[first + 2]) - a[first].max(b[first])).max(0.0);
    let intersection = side(0) * side(1);
    intersection / (area(a) + area(b) - intersection)
}

fn regular_nms(params: Params<'_>, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>]) -> Evaluation {
    let (boxes, scores) = (inputs[0].to_f64s(), inputs[1].to_f64s());
    let &[batch, count, all_classes] = inputs[1].shape else {
        return Err(format!("scores: expected 3 dimensions, found {}", inputs[1].shape.len()));
    };
    let classes = params.int("num_classes") as usize;
    let background = all_classes.checked_sub(classes).ok_or("num_classes: expected at most the classes of scores")?;
    let (per_class, rows) = (params.int("max_detections_per_class") as usize, params.int("max_detections") as usize);
    let (overlap, least) = (params.float("iou_threshold"), params.float("score_threshold"));
    let [box_rows, class_rows, score_rows, counts] = outputs else { return Err("expected four results".into()) };
    let (mut box_rows, mut class_rows) = (Writer::new(box_rows), Writer::new(class_rows));
    let (mut score_rows, mut counts) = (Writer::new(score_rows), Writer::new(counts));
    let mut ticks = Ticks::every(count);
    for n in 0..batch {
        let corners = |i: usize| &boxes[(n * count + i) * 4..][..4];
        let mut detections: Vec<(usize, usize, f64)> = Vec::new();
        for class in 0..classes {
            let score = |i: usize| scores[(n * count + i) * all_classes + class + background];
            let mut order: Vec<usize> = (0..count).filter(|&i| score(i) >= least).collect();
            order.sort_by(|&a, &b| score(b).total_cmp(&score(a)));
            let mut kept: Vec<usize> = Vec::new();
            for candidate in order {
                if kept.len() == per_class || ticks.is_requested() {
                    break;
                }
                if kept.iter().all(|&better| box_overlap(corners(better), corners(candidate)) <= overlap) {
                    kept.push(candidate);
                }
            }
            detections.extend(kept.into_iter().map(|i| (i, class, score(i))));
            detections.sort_by(|a, b| b.2.total_cmp(&a.2));
            detections.truncate(rows);
        }
        counts.set_int(n, detections.len() as i128);
        for row in 0..rows {
            let position = n * rows + row;
            let (class, score) = detections.get(row).map_or((0, 0.0), |&(_, class, score)| (class, score));
            class_rows.set_int(position, class as i128);
            score_rows.set_float(position, score);
            for corner in 0..4 {
                box_rows.set_float(position * 4 + corner, detections.get(row).map_or(0.0, |d| corners(d.0)[corner]));
            }
        }
    }
    Ok(())
}

operator! {
    name: "vision.roi_pool",
    doc: "For each region of data a grid of pooled_size bins with the maximum of the elements in each; 0 for an empty \
          bin. rois is (count, 5): batch index, x1, y1, x2, y2, rounded to elements after multiplication by spatial_scale.",
    inputs: &["data", "rois"],
    attrs: &[
        AttrDef::new("pooled_size", AttrKind::Ints, Default::Required, "height and width of the result"),
        AttrDef::new("spatial_scale", AttrKind::Float, Default::Required, "ratio of the size of the data to that of the image in which coordinates are given"),
        AttrDef::new("layout", AttrKind::Str, Default::Str("NCHW"), "order of the axes, NCHW or NHWC"),
    ],
    pattern: OpPattern::OutEWiseFusable,
    relation: roi_pool_type,
    reference: Some(roi_pool),
    flops: |cost| cost.arg_len(0),
    properties: Properties::SELECTS,
}

fn roi_pool_type(relation: &Relation<'_>) -> TypeResult {
    let (data, rois) = (float_tensor_of_rank(relation, 0, 4)?, float_tensor_of_rank(relation, 1, 2)?);
    relation.same_dim("columns of rois", &Dim::Fixed(5), &rois.dims[1])?;
    let positions = spatial::layout(relation, "layout", "NCHW", "NCHW")?;
    let size = spatial::per_axis(relation, "pooled_size", 2, 1)?;
    let mut dims = data.dims.to_vec();
    dims[positions[0]] = rois.dims[0].clone();
    dims[positions[2]] = Dim::Fixed(size[0] as usize);
    dims[positions[3]] = Dim::Fixed(size[1] as usize);
    Ok(Type::tensor_of(data.dtype, dims))
}

fn roi_pool(params: Params<'_>, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>]) -> Evaluation {
    let layout = params.string("layout");
    let data = CanonicalDims::new(inputs[0].shape, &layout, "NC");
    let out = CanonicalDims::new(outputs[0].shape, &layout, "NC");
    let (elements, rois, scale) = (inputs[0].to_f64s(), inputs[1].to_f64s(), params.float("spatial_scale"));
    let mut result = vec![0.0; outputs[0].len()];
    let mut ticks = Ticks::every(data.size[3] * data.size[4]);
    for (i, roi) in rois.chunks_exact(5).enumerate() {
        if !(0.0..data.size[0] as f64).contains(&roi[0]) {
            return Err(format!("rois: expected a batch index >= 0 and < {}, found {}", data.size[0], roi[0]));
        }
        // Range of elements in bin `bin` along y or x.
        let range = |axis: usize, bin: usize| {
            let (first, last) = ((roi[2 - axis] * scale).round(), (roi[4 - axis] * scale).round());
            let size = (last - first + 1.0).max(1.0) / out.size[3 + axis] as f64;
            let clamp = |edge: f64| (edge + first).clamp(0.0, data.size[3 + axis] as f64) as usize;
            clamp((bin as f64 * size).floor())..clamp(((bin + 1) as f64 * size).ceil())
        };
        each([out.size[1], out.size[3], out.size[4]], |[channel, row, column]| {
            if ticks.is_requested() {
                return;
            }
            let (rows, columns) = (range(0, row), range(1, column));
            let cells = rows.flat_map(|y| columns.clone().map(move |x| (y, x)));
            let largest = cells.map(|(y, x)| elements[data.at(roi[0] as usize, channel, [0, y, x])]).reduce(max_or_nan);
            result[out.at(i, channel, [0, row, column])] = largest.unwrap_or(0.0);
        });
    }
    Writer::new(&mut outputs[0]).store(result);
    Ok(())
}

operator! {
    name: "vision.yolo_reorg",
    doc: "Reorganization of the data (n, c, h, w) of the detector YOLO to (n, c * stride^2, h / stride, w / stride): the \
          elements in the order of reading data as (n, c / stride^2, h * stride, w * stride), every stride-th element of \
          its rows and columns first.",
    inputs: &["data"],
    attrs: &[AttrDef::new("stride", AttrKind::Int, Default::Int(1), "distance between elements")],
    pattern: OpPattern::Injective,
    relation: |relation| {
        let data = relation.tensor(0)?;
        let stride = relation.params.int("stride");
        if !(1..=1 << 15).contains(&stride) {
            let message = format!("stride: expected an integer from 1 to 32768, found {stride}");
            return Err(relation.error(codes::types::BAD_ATTRIBUTE, message));
        }
        let [n, c, h, w] = &data.dims[..] else {
            return Err(relation.mismatch(format!("data: expected 4 dimensions, found {}", relation.args[0])));
        };
        let square = stride * stride;
        let is_divisible = |dim: &Dim, n: i64| dim.fixed().is_none_or(|size| size as i64 % n == 0);
        if !is_divisible(c, square) || !is_divisible(h, stride) || !is_divisible(w, stride) {
            return Err(relation.mismatch(format!(
                "data: expected channels divisible by {square}, and height and width by {stride}, found {}",
                relation.args[0]
            )));
        }
        let divided = |dim: &Dim| match dim.fixed() {
            Some(size) => Dim::Fixed(size / stride as usize),
            None => Dim::compute([dim], |[dim]| dim.floor_div(&DimExpr::constant(stride))),
        };
        let channels = match c.fixed() {
            Some(size) => spatial::to_dim(relation, size as i128 * i128::from(square))?,
            None => Dim::compute([c], |[c]| c.scale(square)),
        };
        Ok(Type::tensor_of(data.dtype, [n.clone(), channels, divided(h), divided(w)]))
    },
    reference: Some(|params, inputs, outputs| {
        let stride = params.int("stride") as usize;
        let &[_, channels, height, width] = inputs[0].shape else {
            return Err(format!("data: expected 4 dimensions, found {}", inputs[0].shape.len()));
        };
        let planes = (channels / (stride * stride)).max(1);
        let mut position = 0;
        gather(&inputs[0], &mut outputs[0], |_| {
            let (x, y, rest) = (position % width, position / width % height, position / width / height);
            let (channel, n) = (rest % channels, rest / channels);
            position += 1;
            let (plane, part) = (channel % planes, channel / planes);
            let (column, row) = (x * stride + part % stride, y * stride + part / stride);
            column + width * stride * (row + height * stride * (plane + planes * n))
        });
        Ok(())
    }),
    properties: Properties::SELECTS,
}

operator! {
    name: "vision.proposal",
    doc: "Proposals of a region proposal network (S. Ren et al., Faster R-CNN, 2015): the anchors of each element, with \
          the sizes in scales and ratios, are moved by bbox_pred (batch, 4 * anchors, h, w) and clipped to the image; \
          the best ones by cls_prob (batch, 2 * anchors, h, w) that overlap no better one are rows (batch index, x1, \
          y1, x2, y2), which repeat until there are rpn_post_nms_top_n for each image. im_info has height, width and \
          scale of each image.",
    inputs: &["cls_prob", "bbox_pred", "im_info"],
    attrs: &[
        AttrDef::new("scales", AttrKind::Floats, Default::Floats(&[4.0, 8.0, 16.0, 32.0]), "sizes of anchors, in units of feature_stride"),
        AttrDef::new("ratios", AttrKind::Floats, Default::Floats(&[0.5, 1.0, 2.0]), "ratios of height and width of anchors"),
        AttrDef::new("feature_stride", AttrKind::Int, Default::Int(16), "distance between elements, in pixels of the image"),
        AttrDef::new("threshold", AttrKind::Float, Default::Float(0.7), "greatest overlap of two proposals, as intersection over union"),
        AttrDef::new("rpn_pre_nms_top_n", AttrKind::Int, Default::Int(6000), "number of the best boxes that are considered; all if not positive"),
        AttrDef::new("rpn_post_nms_top_n", AttrKind::Int, Default::Int(300), "number of proposals for each image"),
        AttrDef::new("rpn_min_size", AttrKind::Int, Default::Int(16), "least height and width, in pixels before scaling"),
        AttrDef::new("iou_loss", AttrKind::Bool, Default::Bool(false), "true if bbox_pred is added to the corners"),
    ],
    relation: proposal_type,
    reference: Some(proposal),
    flops: |cost| cost.arg_len(1).saturating_mul(10),
    properties: Properties::EXACT.error(ErrorModel::Ulps(16.0)),
}

fn proposal_type(relation: &Relation<'_>) -> TypeResult {
    let [scores, deltas] = [float_tensor_of_rank(relation, 0, 4)?, float_tensor_of_rank(relation, 1, 4)?];
    let images = float_tensor_of_rank(relation, 2, 2)?;
    let anchors = relation.params.floats("scales").len() * relation.params.floats("ratios").len();
    relation.same_dim("columns of im_info", &Dim::Fixed(3), &images.dims[1])?;
    let batch = relation.same_dim("batch of cls_prob and bbox_pred", &scores.dims[0], &deltas.dims[0])?;
    let batch = relation.same_dim("batch and im_info", &batch, &images.dims[0])?;
    relation.same_dim("anchors and channels of cls_prob", &Dim::Fixed(2 * anchors), &scores.dims[1])?;
    relation.same_dim("anchors and channels of bbox_pred", &Dim::Fixed(4 * anchors), &deltas.dims[1])?;
    for axis in [2, 3] {
        relation.same_dim(&format!("axis {axis}"), &scores.dims[axis], &deltas.dims[axis])?;
    }
    let (stride, count) = (relation.params.int("feature_stride"), relation.params.int("rpn_post_nms_top_n"));
    if stride < 1 || !(0..=i64::from(i32::MAX)).contains(&count) {
        let message = format!(
            "expected feature_stride >= 1 and rpn_post_nms_top_n from 0 to 2^31 - 1, found {stride} and {count}"
        );
        return Err(relation.error(codes::types::BAD_ATTRIBUTE, message));
    }
    let rows = match batch.fixed() {
        Some(batch) => spatial::to_dim(relation, batch as i128 * i128::from(count))?,
        None => Dim::compute([&batch], |[batch]| batch.scale(count)),
    };
    Ok(Type::tensor_of(scores.dtype, [rows, Dim::Fixed(5)]))
}

/// Returns the corners x1, y1, x2, y2 of an anchor at the first element.
fn anchor(ratio: f64, scale: f64, stride: f64) -> [f64; 4] {
    let center = 0.5 * (stride - 1.0);
    let area = (stride * stride / ratio).floor();
    let base_width = (area.sqrt() + 0.5).floor();
    let (width, height) = (base_width * scale, (base_width * ratio + 0.5).floor() * scale);
    let (dx, dy) = (0.5 * (width - 1.0), 0.5 * (height - 1.0));
    [center - dx, center - dy, center + dx, center + dy]
}

/// Returns the corners of a box moved by a prediction.
fn moved(corners: [f64; 4], delta: [f64; 4], adds_corners: bool) -> [f64; 4] {
    if adds_corners {
        return std::array::from_fn(|i| corners[i] + delta[i]);
    }
    let side = |axis: usize| {
        let size = corners[axis + 2] - corners[axis] + 1.0;
        let center = delta[axis] * size + corners[axis] + 0.5 * (size - 1.0);
        let half = 0.5 * (delta[axis + 2].exp() * size - 1.0);
        (center - half, center + half)
    };
    let ((x1, x2), (y1, y2)) = (side(0), side(1));
    [x1, y1, x2, y2]
}

/// Returns the intersection over union of two boxes of pixels, whose last row and column belong to them.
fn pixel_overlap(a: &[f64; 4], b: &[f64; 4]) -> f64 {
    let side = |first: usize| (a[first + 2].min(b[first + 2]) - a[first].max(b[first]) + 1.0).max(0.0);
    let area = |corners: &[f64; 4]| (corners[2] - corners[0] + 1.0) * (corners[3] - corners[1] + 1.0);
    let intersection = side(0) * side(1);
    intersection / (area(a) + area(b) - intersection)
}

fn proposal(params: Params<'_>, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>]) -> Evaluation {
    let (scores, deltas, images) = (inputs[0].to_f64s(), inputs[1].to_f64s(), inputs[2].to_f64s());
    let &[batch, _, height, width] = inputs[0].shape else {
        return Err(format!("cls_prob: expected 4 dimensions, found {}", inputs[0].shape.len()));
    };
    let (scales, ratios) = (params.floats("scales"), params.floats("ratios"));
    let stride = params.int("feature_stride") as f64;
    let anchors: Vec<[f64; 4]> =
        ratios.iter().flat_map(|&ratio| scales.iter().map(move |&scale| anchor(ratio, scale, stride))).collect();
    let plane = height * width;
    let (adds_corners, count) = (params.bool("iou_loss"), params.int("rpn_post_nms_top_n") as usize);
    let mut result = vec![0.0; outputs[0].len()];
    let mut ticks = Ticks::every(64);
    for n in 0..batch {
        let [image_height, image_width, scale] = [0, 1, 2].map(|i| images[n * 3 + i]);
        let least = scale * params.int("rpn_min_size") as f64;
        let mut boxes: Vec<([f64; 4], f64)> = Vec::with_capacity(plane * anchors.len());
        for (element, (k, corners)) in
            (0..plane).flat_map(|element| anchors.iter().enumerate().map(move |a| (element, a)))
        {
            let (x, y) = ((element % width) as f64, (element / width) as f64);
            let placed = std::array::from_fn(|i| corners[i] + stride * if i % 2 == 0 { x } else { y });
            let delta = std::array::from_fn(|i| deltas[((n * anchors.len() + k) * 4 + i) * plane + element]);
            let limits = [image_width, image_height].map(|size| size - 1.0);
            let mut corners = moved(placed, delta, adds_corners);
            corners.iter_mut().enumerate().for_each(|(i, edge)| *edge = edge.min(limits[i % 2]).max(0.0));
            let is_padding = y >= (image_height / stride).trunc() || x >= (image_width / stride).trunc();
            let mut score = scores[((n * 2 + 1) * anchors.len() + k) * plane + element];
            if is_padding {
                score = -1.0;
            }
            if corners[2] - corners[0] + 1.0 < least || corners[3] - corners[1] + 1.0 < least {
                let half = least / 2.0;
                corners = std::array::from_fn(|i| if i < 2 { corners[i] - half } else { corners[i] + half });
                score = -1.0;
            }
            boxes.push((corners, score));
        }
        boxes.sort_by(|a, b| b.1.total_cmp(&a.1));
        if let Ok(limit @ 1..) = usize::try_from(params.int("rpn_pre_nms_top_n")) {
            boxes.truncate(limit);
        }
        let mut kept: Vec<[f64; 4]> = Vec::new();
        for (corners, _) in &boxes {
            // Boxes after those that are returned do not matter.
            if kept.len() == count || ticks.is_requested() {
                break;
            }
            if kept.iter().all(|better| pixel_overlap(better, corners) <= params.float("threshold")) {
                kept.push(*corners);
            }
        }
        for (row, corners) in (0..count).zip(kept.iter().cycle()) {
            let start = (n * count + row) * 5;
            result[start] = n as f64;
            result[start + 1..start + 5].copy_from_slice(corners);
        }
    }
    Writer::new(&mut outputs[0]).store(result);
    Ok(())
}
