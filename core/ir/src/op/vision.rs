//! Operators of single-shot detectors (W. Liu et al., 2016): default boxes, decoding, and non-maximum suppression. A
//! box is (left, top, right, bottom). Entries without a box are filled with -1.

use super::scalar::Writer;
use super::{Arity, AttrDef, AttrKind, Cost, Default, Evaluation, Params, Relation, TypeResult};
use crate::diag::{Diagnostic, codes};
use crate::ir::{Dim, TensorType, Type};
use crate::op::facts::{Properties, reduced_elements};
use crate::tensor::{DType, TensorView, TensorViewMut};
use std::ops::Range;

/// Fill value for entries without a box.
const NO_BOX: f64 = -1.0;

/// Returns the type of argument `i`, which must be a tensor of `rank` dimensions.
fn tensor_of_rank<'a>(relation: &Relation<'a>, i: usize, rank: usize) -> Result<&'a TensorType, Box<Diagnostic>> {
    let ty = relation.tensor(i)?;
    if ty.dims.len() == rank {
        return Ok(ty);
    }
    let name = relation.def.inputs[i];
    Err(relation.mismatch(format!("{name}: expected a tensor with {rank} dimensions, found {}", relation.args[i])))
}

/// Returns the type of argument `i`, which must be a floating-point tensor of `rank` dimensions.
pub(super) fn float_tensor_of_rank<'a>(
    relation: &Relation<'a>,
    i: usize,
    rank: usize,
) -> Result<&'a TensorType, Box<Diagnostic>> {
    let ty = tensor_of_rank(relation, i, rank)?;
    if ty.dtype.is_float() {
        return Ok(ty);
    }
    let name = relation.def.inputs[i];
    Err(relation.mismatch(format!("{name}: expected floating-point elements, found {}", ty.dtype)))
}

/// Returns the values of attribute `attr`, which must be finite; their number must be in the range `count`.
fn floats(relation: &Relation<'_>, attr: &str, count: Range<usize>) -> Result<Vec<f64>, Box<Diagnostic>> {
    let values = relation.params.floats(attr);
    if count.contains(&values.len()) && values.iter().all(|v| v.is_finite()) {
        return Ok(values);
    }
    let expected = match count.end - count.start {
        1 => count.start.to_string(),
        _ => format!("{} or more", count.start),
    };
    Err(relation
        .error(codes::types::BAD_ATTRIBUTE, format!("{attr}: expected {expected} finite numbers, found {values:?}")))
}

/// Checks that the `width` elements that begin at the index in attribute `attr` lie within a box of `columns` elements;
/// -1 is allowed if `optional`.
fn column(
    relation: &Relation<'_>,
    attr: &str,
    columns: &Dim,
    width: i64,
    optional: bool,
) -> Result<(), Box<Diagnostic>> {
    let column_index = relation.params.int(attr);
    let last_column = columns.fixed().map_or(i64::from(i32::MAX), |n| n as i64);
    if (0..=last_column - width).contains(&column_index) || (optional && column_index == -1) {
        return Ok(());
    }
    Err(relation.error(
        codes::types::BAD_ATTRIBUTE,
        format!("{attr}: expected an index within the {columns} elements of a box, found {column_index}"),
    ))
}

fn flops_per_result_element(cost: &Cost<'_>) -> u64 {
    cost.ret_len()
}

operator! {
    name: "vision.multibox_prior",
    doc: "Default boxes around every position of a feature map (n, c, h, w): (1, h * w * (sizes + ratios - 1), 4). \
          At row i and column j the center is ((j + offsets[1]) * step_x, (i + offsets[0]) * step_y), relative to \
          the image; one box for every size with ratio 1, then one for sizes[0] with every further ratio r: half \
          width size * h / w * sqrt(r) / 2, half height size / sqrt(r) / 2.",
    inputs: &["data"],
    attrs: &[
        AttrDef::new("sizes", AttrKind::Floats, Default::Floats(&[1.0]), "heights of boxes relative to the image"),
        AttrDef::new("ratios", AttrKind::Floats, Default::Floats(&[1.0]), "ratios of width to height"),
        AttrDef::new("steps", AttrKind::Floats, Default::Floats(&[-1.0, -1.0]),
            "distance between centers, y and x; 1 / h and 1 / w if not positive"),
        AttrDef::new("offsets", AttrKind::Floats, Default::Floats(&[0.5, 0.5]), "position of the first center in steps, y and x"),
        AttrDef::new("clip", AttrKind::Bool, Default::Bool(false), "true if boxes are clipped to the image"),
    ],
    relation: prior_relation,
    reference: Some(prior_reference),
    flops: flops_per_result_element,
    properties: Properties::EXACT.stable(reduced_elements),
}

fn prior_relation(relation: &Relation<'_>) -> TypeResult {
    let data = tensor_of_rank(relation, 0, 4)?;
    let sizes = floats(relation, "sizes", 1..usize::MAX)?.len();
    let ratios = floats(relation, "ratios", 1..usize::MAX)?;
    if let Some(ratio) = ratios.iter().find(|&&r| r <= 0.0) {
        return Err(
            relation.error(codes::types::BAD_ATTRIBUTE, format!("ratios: expected numbers above 0, found {ratio}"))
        );
    }
    floats(relation, "steps", 2..3)?;
    floats(relation, "offsets", 2..3)?;
    let boxes = match (data.dims[2].fixed(), data.dims[3].fixed()) {
        (Some(h), Some(w)) => {
            let boxes = h as i128 * w as i128 * (sizes + ratios.len() - 1) as i128;
            super::spatial::to_dim(relation, boxes)?
        }
        _ => Dim::Any,
    };
    Ok(Type::tensor_of(DType::F32, [Dim::Fixed(1), boxes, Dim::Fixed(4)]))
}

fn prior_reference(params: Params<'_>, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>]) -> Evaluation {
    let (rows, columns) = (inputs[0].shape[2], inputs[0].shape[3]);
    let (sizes, ratios) = (params.floats("sizes"), params.floats("ratios"));
    let (steps, offsets) = (params.floats("steps"), params.floats("offsets"));
    let step = |axis: usize, count: usize| if steps[axis] > 0.0 { steps[axis] } else { 1.0 / count as f64 };
    let aspect_ratio = rows as f64 / columns as f64;
    let square_boxes = sizes.iter().map(|&size| (size, 1.0));
    let further_boxes = ratios[1..].iter().map(|&ratio| (sizes[0], ratio));
    let half_sizes: Vec<(f64, f64)> = square_boxes
        .chain(further_boxes)
        .map(|(size, ratio): (f64, f64)| (size * aspect_ratio * ratio.sqrt() / 2.0, size / ratio.sqrt() / 2.0))
        .collect();
    let mut boxes = Vec::with_capacity(outputs[0].len());
    for row in 0..rows {
        let y = (row as f64 + offsets[0]) * step(0, rows);
        for column in 0..columns {
            let x = (column as f64 + offsets[1]) * step(1, columns);
            for (w, h) in &half_sizes {
                boxes.extend([x - w, y - h, x + w, y + h]);
            }
        }
    }
    if params.bool("clip") {
        boxes.iter_mut().for_each(|v| *v = v.clamp(0.0, 1.0));
    }
    Writer::new(&mut outputs[0]).store(boxes);
    Ok(())
}

operator! {
    name: "vision.multibox_transform_loc",
    doc: "Boxes from the predictions of a single-shot detector (Liu et al., SSD, 2016, section 2.2): cls_prob (n, \
          classes, anchors), loc_pred (n, anchors * 4), anchor (1, anchors, 4). Result 0 begins, for each image, \
          with the boxes whose most probable class other than the background (class 0) reaches the threshold: (n, \
          anchors, 6) of class - 1, probability, left, top, right, bottom. Result 1 is the number of these boxes \
          per image: (n), int32. With anchor center (x, y) and size (w, h), prediction (px, py, pw, ph) and \
          variances v: center (px * v0 * w + x, py * v1 * h + y), size (exp(pw * v2) * w, exp(ph * v3) * h).",
    inputs: &["cls_prob", "loc_pred", "anchor"],
    attrs: &[
        AttrDef::new("clip", AttrKind::Bool, Default::Bool(true), "true if boxes are clipped to the image"),
        AttrDef::new("threshold", AttrKind::Float, Default::Float(0.01), "minimum probability of a box"),
        AttrDef::new("variances", AttrKind::Floats, Default::Floats(&[0.1, 0.1, 0.2, 0.2]), "factors of the predictions"),
        AttrDef::new("keep_background", AttrKind::Bool, Default::Bool(false),
            "true if class 0 is not the background; classes then keep their numbers"),
    ],
    relation: transform_relation,
    reference: Some(transform_reference),
    flops: |cost| cost.arg_len(0).saturating_add(cost.arg_len(1).saturating_mul(4)),
    properties: Properties::EXACT.stable(reduced_elements),
}

fn transform_relation(relation: &Relation<'_>) -> TypeResult {
    let (classes, anchor_coords) = (float_tensor_of_rank(relation, 0, 3)?, float_tensor_of_rank(relation, 1, 2)?);
    let anchor = float_tensor_of_rank(relation, 2, 3)?;
    relation.same_dtype(classes.dtype, anchor_coords.dtype)?;
    relation.same_dtype(classes.dtype, anchor.dtype)?;
    floats(relation, "variances", 4..5)?;
    let batch = relation.same_dim("images", &classes.dims[0], &anchor_coords.dims[0])?;
    let anchors = relation.same_dim("anchors", &classes.dims[2], &anchor.dims[1])?;
    relation.same_dim("elements of an anchor", &anchor.dims[2], &Dim::Fixed(4))?;
    relation.same_dim("batch of anchor and 1", &anchor.dims[0], &Dim::Fixed(1))?;
    if let Some(n) = anchors.fixed() {
        relation.same_dim("predictions", &anchor_coords.dims[1], &super::spatial::to_dim(relation, n as i128 * 4)?)?;
    }
    let boxes = Type::tensor_of(classes.dtype, [batch.clone(), anchors, Dim::Fixed(6)]);
    Ok(Type::tuple([boxes, Type::tensor_of(DType::I32, [batch])]))
}

fn transform_reference(params: Params<'_>, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>]) -> Evaluation {
    let [batch, classes, anchors] = [0, 1, 2].map(|axis| inputs[0].shape[axis]);
    let (probability, prediction, anchor) = (inputs[0].to_f64s(), inputs[1].to_f64s(), inputs[2].to_f64s());
    let (threshold, variances) = (params.float("threshold"), params.floats("variances"));
    let first_class = usize::from(!params.bool("keep_background"));
    let mut boxes = vec![NO_BOX; outputs[0].len()];
    let mut counts = vec![0.0; batch];
    for image in 0..batch {
        for anchor_index in 0..anchors {
            let mut best: Option<(usize, f64)> = None;
            for class in first_class..classes {
                let p = probability[(image * classes + class) * anchors + anchor_index];
                if p > best.map_or(NO_BOX, |(_, p)| p) {
                    best = Some((class, p));
                }
            }
            let Some((class, p)) = best.filter(|&(_, p)| p >= threshold) else { continue };
            let side = |i: usize| anchor[anchor_index * 4 + i];
            let scaled_prediction = |i: usize| prediction[(image * anchors + anchor_index) * 4 + i] * variances[i];
            // Center of the box and half its size along one axis, 0 for x and 1 for y.
            let decode_axis = |axis: usize| {
                let (first, last) = (side(axis), side(axis + 2));
                let size = last - first;
                (scaled_prediction(axis) * size + (first + last) / 2.0, scaled_prediction(axis + 2).exp() * size / 2.0)
            };
            let ((x, w), (y, h)) = (decode_axis(0), decode_axis(1));
            let mut sides = [x - w, y - h, x + w, y + h];
            if params.bool("clip") {
                sides = sides.map(|v| v.clamp(0.0, 1.0));
            }
            let row = (image * anchors + counts[image] as usize) * 6;
            boxes[row..row + 2].copy_from_slice(&[(class - first_class) as f64, p]);
            boxes[row + 2..row + 6].copy_from_slice(&sides);
            counts[image] += 1.0;
        }
    }
    Writer::new(&mut outputs[0]).store(boxes);
    Writer::new(&mut outputs[1]).store(counts);
    Ok(())
}

const ID_INDEX: AttrDef =
    AttrDef::new("id_index", AttrKind::Int, Default::Int(0), "index of the class in a box; -1 if boxes have no class");
const SCORE_INDEX: AttrDef = AttrDef::new("score_index", AttrKind::Int, Default::Int(1), "index of the score in a box");

operator! {
    name: "vision.get_valid_counts",
    doc: "Moves the boxes (n, boxes, elements) with a score above the threshold and a non-negative class to the \
          front, in order. The results are their number (n), int32; the boxes; and the previous index of \
          each box (n, boxes), int32. The threshold is the scalar argument 1 or, without it, the attribute.",
    arity: Arity { min: 1, max: 2 },
    inputs: &["data", "score_threshold"],
    attrs: &[
        AttrDef::new("score_threshold", AttrKind::Float, Default::Float(0.0), "score that a box must exceed"),
        ID_INDEX,
        SCORE_INDEX,
    ],
    relation: valid_relation,
    reference: Some(valid_reference),
    flops: |cost| cost.arg_len(0),
}

fn valid_relation(relation: &Relation<'_>) -> TypeResult {
    let data = float_tensor_of_rank(relation, 0, 3)?;
    if relation.args.len() > 1 {
        float_tensor_of_rank(relation, 1, 0)?;
    }
    column(relation, "score_index", &data.dims[2], 1, false)?;
    column(relation, "id_index", &data.dims[2], 1, true)?;
    let [batch, boxes] = [0, 1].map(|axis| data.dims[axis].clone());
    Ok(Type::tuple([
        Type::tensor_of(DType::I32, [batch.clone()]),
        relation.args[0].clone(),
        Type::tensor_of(DType::I32, [batch, boxes]),
    ]))
}

fn valid_reference(params: Params<'_>, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>]) -> Evaluation {
    let [batch, boxes, elements] = [0, 1, 2].map(|axis| inputs[0].shape[axis]);
    let data = inputs[0].to_f64s();
    let threshold = match inputs.get(1) {
        Some(scalar) => scalar.to_f64s()[0],
        None => params.float("score_threshold"),
    };
    let (id, score) = (usize::try_from(params.int("id_index")).ok(), params.int("score_index") as usize);
    let mut counts = vec![0.0; batch];
    let mut valid_boxes = vec![NO_BOX; data.len()];
    let mut positions = vec![NO_BOX; batch * boxes];
    for image in 0..batch {
        for position in 0..boxes {
            let row = &data[(image * boxes + position) * elements..][..elements];
            if row[score] > threshold && id.is_none_or(|id| row[id] >= 0.0) {
                let target = image * boxes + counts[image] as usize;
                valid_boxes[target * elements..][..elements].copy_from_slice(row);
                positions[target] = position as f64;
                counts[image] += 1.0;
            }
        }
    }
    Writer::new(&mut outputs[0]).store(counts);
    Writer::new(&mut outputs[1]).store(valid_boxes);
    Writer::new(&mut outputs[2]).store(positions);
    Ok(())
}

operator! {
    name: "vision.non_max_suppression",
    doc: "Suppresses overlapping boxes among the first valid_count[n] of (n, boxes, elements). In descending order \
          of score, a box is dropped if its intersection over union with a box kept earlier, of the same class or \
          (force_suppress) of any class, is at least iou_threshold; boxes with a score of 0 or less are not \
          compared. Once max_output_size boxes are kept (if not negative), the rest is dropped. A threshold of 0 \
          or less keeps all boxes in place. The results are the entries of `indices` for the kept boxes, moved to \
          the front, (n, boxes), int32, and their number (n, 1), int32; without return_indices, the boxes.",
    inputs: &["data", "valid_count", "indices", "max_output_size", "iou_threshold"],
    attrs: &[
        AttrDef::new("force_suppress", AttrKind::Bool, Default::Bool(false), "true to compare boxes of all classes"),
        AttrDef::new("top_k", AttrKind::Int, Default::Int(-1), "number of boxes considered; all if not positive"),
        AttrDef::new("coord_start", AttrKind::Int, Default::Int(2), "index of the left side in a box"),
        SCORE_INDEX,
        ID_INDEX,
        AttrDef::new("return_indices", AttrKind::Bool, Default::Bool(true), "true to return indices instead of boxes"),
        AttrDef::new("invalid_to_bottom", AttrKind::Bool, Default::Bool(false), "true if kept boxes are moved to the front"),
    ],
    relation: suppression_relation,
    reference: Some(suppression_reference),
    flops: |cost| cost.arg_len(2).saturating_mul(cost.arg_len(2)),
}

fn suppression_relation(relation: &Relation<'_>) -> TypeResult {
    let data = float_tensor_of_rank(relation, 0, 3)?;
    let [batch, boxes, elements] = [0, 1, 2].map(|axis| data.dims[axis].clone());
    column(relation, "score_index", &elements, 1, false)?;
    column(relation, "id_index", &elements, 1, true)?;
    column(relation, "coord_start", &elements, 4, false)?;
    for (i, rank) in [(1, 1), (2, 2), (3, 0)] {
        let ty = tensor_of_rank(relation, i, rank)?;
        if !ty.dtype.is_int() {
            return Err(relation.mismatch(format!("{}: expected integers, found {}", relation.def.inputs[i], ty.dtype)));
        }
    }
    float_tensor_of_rank(relation, 4, 0)?;
    relation.same_dim("images", &batch, &relation.tensor(1)?.dims[0])?;
    relation.same_dim("images", &batch, &relation.tensor(2)?.dims[0])?;
    relation.same_dim("boxes", &boxes, &relation.tensor(2)?.dims[1])?;
    if !relation.params.bool("return_indices") {
        return Ok(relation.args[0].clone());
    }
    let count = Type::tensor_of(DType::I32, [batch.clone(), Dim::Fixed(1)]);
    Ok(Type::tuple([Type::tensor_of(DType::I32, [batch, boxes]), count]))
}

/// Returns the intersection over union of two boxes, with the corners in any order; 0 if the union has no area.
fn overlap(a: &[f64], b: &[f64]) -> f64 {
    let span = |s: &[f64], axis: usize| (s[axis].min(s[axis + 2]), s[axis].max(s[axis + 2]));
    let area = |s: &[f64]| (0..2).map(|axis| span(s, axis)).map(|(first, last)| last - first).product::<f64>();
    let shared_extent = |axis: usize| {
        let ((a0, a1), (b0, b1)) = (span(a, axis), span(b, axis));
        (a1.min(b1) - a0.max(b0)).max(0.0)
    };
    let intersection = shared_extent(0) * shared_extent(1);
    let union = area(a) + area(b) - intersection;
    if union <= 0.0 { 0.0 } else { intersection / union }
}

fn suppression_reference(
    params: Params<'_>,
    inputs: &[TensorView<'_>],
    outputs: &mut [TensorViewMut<'_>],
) -> Evaluation {
    let [batch, boxes, elements] = [0, 1, 2].map(|axis| inputs[0].shape[axis]);
    let data = inputs[0].to_f64s();
    let integers = |i: usize| {
        inputs[i].to_i64s().ok_or_else(|| {
            let name = ["data", "valid_count", "indices", "max_output_size"][i];
            format!("{name}: expected integers that fit int64, found {}", inputs[i].dtype)
        })
    };
    let (valid, indices, max_output) = (integers(1)?, integers(2)?, integers(3)?[0]);
    let threshold = inputs[4].to_f64s()[0];
    let (id, score) = (usize::try_from(params.int("id_index")).ok(), params.int("score_index") as usize);
    let (first, top_k) = (params.int("coord_start") as usize, params.int("top_k"));
    let ignores_class = params.bool("force_suppress");
    let mut kept_boxes = vec![NO_BOX; data.len()];
    let mut kept_indices = vec![NO_BOX; batch * boxes];
    for image in 0..batch {
        let row = |position: usize| &data[(image * boxes + position) * elements..][..elements];
        let Some(count) = usize::try_from(valid[image]).ok().filter(|&n| n <= boxes) else {
            return Err(format!("valid_count: expected 0 to {boxes} boxes, found {}", valid[image]));
        };
        let mut order: Vec<usize> = (0..count).collect();
        // Entry `i` is true if box `order[i]` is kept in the result.
        let mut is_kept = vec![true; count];
        if threshold > 0.0 {
            order.sort_by(|&a, &b| row(b)[score].total_cmp(&row(a)[score]));
            let considered_count = if top_k > 0 { count.min(top_k as usize) } else { count };
            let mut kept_count = 0;
            for i in 0..count {
                let a = row(order[i]);
                is_kept[i] = i < considered_count && kept_count != max_output;
                if !is_kept[i] || a[score] <= 0.0 {
                    continue;
                }
                let kept_rows = (0..i).filter(|&k| is_kept[k]).map(|k| row(order[k]));
                let is_dropped = kept_rows.filter(|b| b[score] > 0.0 && id.is_none_or(|id| b[id] >= 0.0)).any(|b| {
                    let is_compared = ignores_class || id.is_none_or(|id| a[id] == b[id]);
                    is_compared && overlap(&a[first..first + 4], &b[first..first + 4]) >= threshold
                });
                is_kept[i] = !is_dropped;
                kept_count += i64::from(!is_dropped);
            }
        }
        for i in (0..count).filter(|&i| is_kept[i]) {
            let target = image * boxes + i;
            kept_boxes[target * elements..][..elements].copy_from_slice(row(order[i]));
            kept_indices[target] = indices[image * boxes + order[i]] as f64;
        }
    }
    if params.bool("return_indices") {
        let counts = move_valid_to_front(&mut kept_indices, batch, 1);
        Writer::new(&mut outputs[0]).store(kept_indices);
        Writer::new(&mut outputs[1]).store(counts);
        return Ok(());
    }
    if params.bool("invalid_to_bottom") {
        move_valid_to_front(&mut kept_boxes, batch, elements);
    }
    Writer::new(&mut outputs[0]).store(kept_boxes);
    Ok(())
}

/// Moves the rows whose first element is at least 0 to the front of each of `groups` groups of rows, and fills the rest
/// with -1. Returns the number of rows moved in each group.
fn move_valid_to_front(rows: &mut [f64], groups: usize, elements: usize) -> Vec<f64> {
    let size = rows.len() / groups.max(1);
    let compact = |group: &mut [f64]| {
        let mut target = 0;
        for source in (0..size).step_by(elements) {
            if group[source] >= 0.0 {
                group.copy_within(source..source + elements, target);
                target += elements;
            }
        }
        group[target..].fill(NO_BOX);
        (target / elements) as f64
    };
    (0..groups).map(|group| compact(&mut rows[group * size..][..size])).collect()
}
