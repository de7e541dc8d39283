//! Pooling of a quantized tensor.

use super::params::{Kind, NARROW_DTYPES, check_one_of, check_parameter, scale, zero_points};
use super::quantize::{difference, integers};
use super::unary::quantized;
use super::{Evaluation, OpPattern, Params, Relation, TypeResult};
use crate::op::facts::{LayoutRule, Properties};
use crate::op::pool;
use crate::tensor::{DType, Tensor, TensorView, TensorViewMut};

operator! {
    name: "qnn.avg_pool2d",
    doc: "Mean of each window (as nn.avg_pool2d) of data - input_zero_point, exact and rounded once to float32, \
          times input_scale, quantized (halves away from zero, saturating) to the output's scale and zero point \
          and the element type of the data. Padding that is counted represents zero.",
    inputs: &["data", "input_scale", "input_zero_point", "output_scale", "output_zero_point"],
    attrs: &pool::avg_attrs_2d(),
    pattern: OpPattern::OutEWiseFusable,
    relation,
    reference: Some(reference),
    flops: pool::pool_flops,
    properties: Properties::EXACT.layout(LayoutRule::Window2d),
}

fn relation(relation: &Relation<'_>) -> TypeResult {
    check_one_of(relation, "data", relation.tensor(0)?.dtype, NARROW_DTYPES)?;
    for (i, kind) in [Kind::Scale, Kind::ZeroPoint, Kind::Scale, Kind::ZeroPoint].into_iter().enumerate() {
        check_parameter(relation, i + 1, kind, None)?;
    }
    pool::pool_relation::<2>(relation)
}

fn reference(params: Params<'_>, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>]) -> Evaluation {
    let (scale, zero) = (scale(&params, 1, &inputs[1])?, zero_points(&inputs[2])[0]);
    let x: Vec<f32> = integers(&inputs[0]).into_iter().map(|x| difference(x, zero) as f32).collect();
    let x = Tensor::from_slice(inputs[0].shape, &x);
    let mut averages = vec![0f32; outputs[0].len()];
    let (shape, data) = (outputs[0].shape, bytemuck::cast_slice_mut(&mut averages));
    pool::avg_reference(params, &[x.view()], &mut [TensorViewMut { dtype: DType::F32, shape, data }])?;
    averages.iter_mut().for_each(|mean| *mean *= scale);
    quantized(&params, &averages, inputs, outputs)
}
