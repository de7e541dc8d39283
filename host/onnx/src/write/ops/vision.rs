//! Operators of detection models, and sampling of images.

use super::super::call::{Call, Outputs, int_vector, scalar};
use super::super::proto_parts::{float, int, string};
use super::super::writer::{Refusal, Result};
use super::{Row, single};
use byoc_ir::tensor::DType;

pub const ROWS: &[Row] = &[
    ("image.grid_sample", grid_sample),
    ("vision.all_class_non_max_suppression", non_max_suppression),
    ("vision.roi_align", roi_align),
];

fn grid_sample(c: &mut Call<'_, '_>) -> Result<Outputs> {
    c.since(16, "GridSample")?;
    let rank = c.rank(0)?;
    if rank != 4 {
        c.since(20, "GridSample of volumes")?;
    }
    let method = match (c.params.string("method").as_str(), c.w.opset >= 20) {
        ("nearest", _) => "nearest",
        ("bicubic", true) => "cubic",
        ("bicubic", false) => "bicubic",
        (_, true) => "linear",
        (_, false) => "bilinear",
    };
    let (x, mut grid) = (c.arg(0)?, c.arg(1)?);
    if !c.params.string("layout").ends_with('C') {
        let axes: Vec<usize> = std::iter::once(0).chain(2..rank).chain([1]).collect();
        grid = c.transpose(&grid, &axes);
    }
    let attrs = vec![
        int("align_corners", c.params.bool("align_corners").into()),
        string("mode", method),
        string("padding_mode", &c.params.string("padding_mode")),
    ];
    single(c.node("GridSample", &[x, grid], attrs))
}

/// Writes NonMaxSuppression, whose result has the selected rows only: rows of zeros follow in Relay.
fn non_max_suppression(c: &mut Call<'_, '_>) -> Result<Outputs> {
    let (boxes, scores) = (c.arg(0)?, c.arg(1)?);
    let count = c.int_vector(2)?;
    let [overlap, threshold] = [3, 4].map(|i| {
        let dtype = c.dtype(i)?;
        let value = c.arg(i)?;
        let value = c.cast(&value, dtype, DType::F32)?;
        c.reshape(&value, &[1])
    });
    let attrs = if c.params.bool("center_point_box") { vec![int("center_point_box", 1)] } else { Vec::new() };
    let selected = c.node("NonMaxSuppression", &[boxes, scores.clone(), count, overlap?, threshold?], attrs);
    let number = c.shape_range(&selected, 0, 1);
    let rows = match c.result()?.dims[0].fixed() {
        Some(rows) => int_vector(&[rows as i64]),
        None => {
            let size = c.apply("Size", &[&scores]);
            c.reshape(&size, &[1])?
        }
    };
    let missing = c.apply("Sub", &[&rows, &number]);
    let pads = c.concat(&[int_vector(&[0, 0]), missing, int_vector(&[0])], 0);
    let padded = c.node("Pad", &[selected.clone(), pads, scalar(DType::I64, 0.0)], Vec::new());
    c.w.unpadded.insert(c.id, selected);
    Ok(vec![padded, number])
}

fn roi_align(c: &mut Call<'_, '_>) -> Result<Outputs> {
    if c.params.string("layout") != "NCHW" {
        return Err(Refusal::new("a layout other than NCHW"));
    }
    let (x, rois, dtype) = (c.arg(0)?, c.arg(1)?, c.dtype(1)?);
    let boxes = c.slice(&rois, 1, 1, 5);
    let batch = c.slice(&rois, 1, 0, 1);
    let batch = c.reshape(&batch, &[-1])?;
    let batch = c.cast(&batch, dtype, DType::I64)?;
    let size = c.params.per_axis("pooled_size", 2);
    let mut attrs = vec![
        string("mode", &c.params.string("mode")),
        int("output_height", size[0]),
        int("output_width", size[1]),
        int("sampling_ratio", c.params.int("sample_ratio").max(0)),
        float("spatial_scale", c.params.float("spatial_scale")),
    ];
    if c.w.opset >= 16 {
        let mode = if c.params.bool("aligned") { "half_pixel" } else { "output_half_pixel" };
        attrs.insert(0, string("coordinate_transformation_mode", mode));
    } else if c.params.bool("aligned") {
        c.since(16, "RoiAlign with aligned coordinates")?;
    }
    single(c.node("RoiAlign", &[x, boxes, batch], attrs))
}
