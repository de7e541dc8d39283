//! Feature preprocessing operators, of the domain `ai.onnx.ml`.

use super::{Node, Result, Row, attrs, one};

pub const ROWS: &[Row] = &[
    ("ArrayFeatureExtractor", 1, |n| {
        let (data, places) = (n.input(0)?, n.input(1)?);
        let rank = n.rank(data)? as i64;
        let places = n.op("reshape", &[places], attrs![newshape: [-1]])?;
        let chosen = n.op("take", &[data, places], attrs![axis: rank - 1, mode: "fast"])?;
        one(if rank == 1 { n.op("expand_dims", &[chosen], attrs![axis: 0])? } else { chosen })
    }),
    ("Binarizer", 1, |n| {
        let data = n.input(0)?;
        let threshold = n.float_attr("threshold", 0.0)?;
        let above = n.with_scalar("greater", data, threshold)?;
        one(n.cast(above, n.dtype(data)?)?)
    }),
    ("Scaler", 1, |n| {
        let data = n.input(0)?;
        let data = n.cast(data, byoc_ir::tensor::DType::F32)?;
        let parameters = |n: &mut Node<'_, '_>, name: &str| -> Result<_> {
            let values: Vec<f32> = n.floats_attr(name)?.unwrap_or_default().iter().map(|&value| value as f32).collect();
            Ok(n.vector(&values))
        };
        let (offset, scale) = (parameters(n, "offset")?, parameters(n, "scale")?);
        let centered = n.op_without_attrs("subtract", &[data, offset])?;
        one(n.op_without_attrs("multiply", &[centered, scale])?)
    }),
];
