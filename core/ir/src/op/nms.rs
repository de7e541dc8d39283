//! Non-maximum suppression per class.

use super::scalar::Writer;
use super::{AttrDef, AttrKind, Default, Evaluation, Params, Relation, TypeResult};
use crate::cancel::Ticks;
use crate::diag::codes;
use crate::ir::{Dim, Type};
use crate::tensor::{DType, TensorView, TensorViewMut};

operator! {
    name: "vision.all_class_non_max_suppression",
    doc: "For each batch and class, boxes in descending order of their scores, without those that overlap a box \
          chosen before by more than iou_threshold, without those whose score is not above score_threshold, and at \
          most max_output_boxes_per_class. boxes is (n, boxes, 4), scores is (n, classes, boxes). The result is \
          (batch, class, box) in the first rows of int64 (n * classes * boxes, 3), and their number; other rows are \
          0. To disable a threshold, pass 0 as iou_threshold or -inf as score_threshold.",
    inputs: &["boxes", "scores", "max_output_boxes_per_class", "iou_threshold", "score_threshold"],
    attrs: &[
        AttrDef::new("center_point_box", AttrKind::Bool, Default::Bool(false),
            "true if a box is center x, center y, width, height; false if it is two opposite corners, y before x"),
        AttrDef::new("output_format", AttrKind::Str, Default::Str("onnx"), "form of the results; only onnx"),
    ],
    relation: nms_type,
    reference: Some(nms),
    flops: |cost| cost.arg_len(1),
}

fn nms_type(relation: &Relation<'_>) -> TypeResult {
    let (boxes, scores) = (relation.tensor(0)?, relation.tensor(1)?);
    let format = relation.params.string("output_format");
    if format != "onnx" {
        let message = format!("output_format: expected \"onnx\", found \"{format}\"");
        return Err(relation.error(codes::types::BAD_ATTRIBUTE, message));
    }
    if boxes.dims.len() != 3 || scores.dims.len() != 3 || boxes.dims[2].fixed().is_some_and(|n| n != 4) {
        let [a, b] = [&relation.args[0], &relation.args[1]];
        return Err(relation
            .mismatch(format!("expected boxes (n, boxes, 4) and scores (n, classes, boxes), found {a} and {b}")));
    }
    relation.same_dim("batch", &boxes.dims[0], &scores.dims[0])?;
    relation.same_dim("boxes", &boxes.dims[1], &scores.dims[2])?;
    for i in 2..5 {
        if relation.tensor(i)?.dims.iter().any(|dim| dim.fixed().is_some_and(|n| n != 1)) {
            let name = relation.def.inputs[i];
            return Err(relation.error(
                codes::types::TYPE_MISMATCH,
                format!("{name}: expected one number, found {}", relation.args[i]),
            ));
        }
    }
    let rows = Dim::product(&scores.dims).unwrap_or(Dim::Any);
    let selected = Type::tensor_of(DType::I64, [rows, Dim::Fixed(3)]);
    Ok(Type::tuple([selected, Type::tensor(DType::I64, &[1])]))
}

/// Box, given by its minimum and maximum corners.
#[derive(Clone, Copy)]
struct Rectangle {
    low: [f64; 2],
    high: [f64; 2],
}

impl Rectangle {
    fn new(numbers: &[f64], is_center: bool) -> Rectangle {
        let [a, b, c, d] = [numbers[0], numbers[1], numbers[2], numbers[3]];
        if is_center {
            return Rectangle { low: [a - c / 2.0, b - d / 2.0], high: [a + c / 2.0, b + d / 2.0] };
        }
        Rectangle { low: [a.min(c), b.min(d)], high: [a.max(c), b.max(d)] }
    }

    fn area(&self) -> f64 {
        (self.high[0] - self.low[0]) * (self.high[1] - self.low[1])
    }

    /// Returns the intersection over union of two boxes; 0 if the union has no area.
    fn overlap(&self, other: &Rectangle) -> f64 {
        let side = |i: usize| (self.high[i].min(other.high[i]) - self.low[i].max(other.low[i])).max(0.0);
        let intersection = side(0) * side(1);
        let union = self.area() + other.area() - intersection;
        if self.area() <= 0.0 || other.area() <= 0.0 || union <= 0.0 { 0.0 } else { intersection / union }
    }
}

fn nms(params: Params<'_>, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>]) -> Evaluation {
    let (boxes, scores) = (inputs[0].to_f64s(), inputs[1].to_f64s());
    let &[batches, classes, count] = inputs[1].shape else {
        return Err(format!("scores: expected 3 dimensions, found {}", inputs[1].shape.len()));
    };
    let number = |i: usize| inputs[i].f64s().next().unwrap_or(0.0);
    let max_boxes = number(2).max(0.0) as usize;
    // The thresholds are compared in the precision of the data.
    let (iou_threshold, score_threshold) = (number(3), number(4));
    let is_center = params.bool("center_point_box");
    let rectangles: Vec<Rectangle> = boxes.chunks_exact(4).map(|numbers| Rectangle::new(numbers, is_center)).collect();
    let mut ticks = Ticks::every(64);
    let mut selected_boxes: Vec<f64> = Vec::new();
    for batch in 0..batches {
        for class in 0..classes {
            let scores = &scores[(batch * classes + class) * count..][..count];
            let rectangles = &rectangles[batch * count..][..count];
            let mut order: Vec<usize> = (0..count).filter(|&i| scores[i] > score_threshold).collect();
            order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
            let mut kept_boxes: Vec<usize> = Vec::new();
            for candidate in order {
                if kept_boxes.len() == max_boxes {
                    break;
                }
                if ticks.is_requested() {
                    return Err("cancelled".into());
                }
                let is_suppressed_by =
                    |&other: &usize| rectangles[candidate].overlap(&rectangles[other]) > iou_threshold;
                if !kept_boxes.iter().any(is_suppressed_by) {
                    kept_boxes.push(candidate);
                }
            }
            selected_boxes.extend(kept_boxes.iter().flat_map(|&i| [batch as f64, class as f64, i as f64]));
        }
    }
    let rows = selected_boxes.len() / 3;
    selected_boxes.resize(outputs[0].len(), 0.0);
    Writer::new(&mut outputs[0]).store(selected_boxes);
    outputs[1].as_mut_slice::<i64>()[0] = rows as i64;
    Ok(())
}
