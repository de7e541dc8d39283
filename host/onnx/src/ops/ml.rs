//! Feature preprocessing operators of the domain `ai.onnx.ml`.

use super::{Node, Result, Row, attrs, single_output};

pub const ROWS: &[Row] = &[
    ("ArrayFeatureExtractor", 1, |n| {
        let (data, indices) = (n.input(0)?, n.input(1)?);
        let rank = n.rank(data)? as i64;
        let indices = n.op("reshape", &[indices], attrs![newshape: [-1]])?;
        let selected_features = n.op("take", &[data, indices], attrs![axis: rank - 1, mode: "fast"])?;
        single_output(if rank == 1 {
            n.op("expand_dims", &[selected_features], attrs![axis: 0])?
        } else {
            selected_features
        })
    }),
    ("Binarizer", 1, |n| {
        let data = n.input(0)?;
        let threshold = n.float_attr("threshold", 0.0)?;
        let is_above = n.with_scalar("greater", data, threshold)?;
        single_output(n.cast(is_above, n.dtype(data)?)?)
    }),
    ("Scaler", 1, |n| {
        let data = n.input(0)?;
        let data = n.cast(data, byoc_ir::tensor::DType::F32)?;
        let parameters = |n: &mut Node<'_, '_>, name: &str| -> Result<_> {
            let values: Vec<f32> = n.floats_attr(name)?.unwrap_or_default().iter().map(|&value| value as f32).collect();
            Ok(n.vector(&values))
        };
        let (offset, scale) = (parameters(n, "offset")?, parameters(n, "scale")?);
        let difference = n.op_without_attrs("subtract", &[data, offset])?;
        single_output(n.op_without_attrs("multiply", &[difference, scale])?)
    }),
];
