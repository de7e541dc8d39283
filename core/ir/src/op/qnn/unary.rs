//! Functions of one quantized tensor: dequantization, the floating-point operator, quantization.

use super::numerics::{Rounding, range};
use super::params::{Kind, NARROW_DTYPES, check_one_of, check_parameter, scale, zero_points};
use super::quantize::{dequantized, quantize_f32};
use super::{Arity, AttrDef, AttrKind, Default, Evaluation, OpDef, OpPattern, Params, Relation, TypeResult};
use crate::ir::{TensorType, Type};
use crate::op;
use crate::op::scalar::Writer;
use crate::tensor::{DType, Tensor, TensorView, TensorViewMut};

macro_rules! unary {
    ($($name:literal $input:literal $scale:literal $zero:literal $what:literal [$($attr:expr),*] $flops:literal;)*) => {$(
        operator! {
            name: $name,
            doc: concat!($what, " of a quantized tensor: dequantized to float32, computed there, and quantized \
                (halves away from zero, saturating) to the output's scale and zero point and the element type of \
                the data."),
            arity: Arity::exactly(5),
            inputs: &[$input, $scale, $zero, "output_scale", "output_zero_point"],
            attrs: &[$($attr),*],
            pattern: OpPattern::OutEWiseFusable,
            relation,
            reference: Some(reference),
            flops: |cost| ($flops + 6) * cost.ret_len(),
        }
    )*};
}

unary! {
    "qnn.tanh" "x" "scale" "zero_point" "Hyperbolic tangent" [] 1;
    "qnn.exp" "x" "scale" "zero_point" "Exponential function" [] 1;
    "qnn.sqrt" "x" "scale" "zero_point" "Square root" [] 1;
    "qnn.rsqrt" "x" "scale" "zero_point" "Reciprocal square root" [] 1;
    "qnn.erf" "x" "scale" "zero_point" "Error function" [] 1;
    "qnn.sigmoid" "x" "scale" "zero_point" "Sigmoid 1 / (1 + exp(-x))" [] 1;
    "qnn.hardswish" "x" "scale" "zero_point" "Hard swish x * clip(x + 3, 0, 6) / 6" [] 4;
    "qnn.log" "x" "scale" "zero_point" "Natural logarithm" [] 1;
    "qnn.abs" "x" "scale" "zero_point" "Absolute value" [] 1;
    "qnn.softmax" "x" "scale" "zero_point" "Softmax exp(x - max) / sum of exp(x - max) along one axis"
        [AttrDef::new("axis", AttrKind::Int, Default::Int(-1), "axis to sum over")] 5;
    "qnn.leaky_relu" "x" "input_scale" "input_zero_point" "Leaky ReLU (x where x is positive, alpha * x elsewhere)"
        [AttrDef::new("alpha", AttrKind::Float, Default::Float(0.25), "slope for negative x")] 1;
}

/// Returns true for the functions of one element of a quantized tensor.
pub fn is_elementwise(name: &str) -> bool {
    let function = name.strip_prefix("qnn.").unwrap_or_default();
    matches!(
        function,
        "tanh" | "exp" | "sqrt" | "rsqrt" | "erf" | "sigmoid" | "hardswish" | "log" | "abs" | "leaky_relu"
    )
}

/// Returns the floating-point counterpart of the quantized operator `name`; `None` if `name` corresponds to several
/// operators.
pub fn real_operator(name: &str) -> Option<&'static OpDef> {
    let name = match name {
        "qnn.softmax" => "nn.softmax",
        "qnn.leaky_relu" => "nn.leaky_relu",
        "qnn.hardswish" => return None,
        other => other.strip_prefix("qnn.")?,
    };
    op::lookup(name).map(op::get)
}

fn relation(relation: &Relation<'_>) -> TypeResult {
    let data = relation.tensor(0)?;
    check_one_of(relation, relation.def.inputs[0], data.dtype, NARROW_DTYPES)?;
    for (i, kind) in [Kind::Scale, Kind::ZeroPoint, Kind::Scale, Kind::ZeroPoint].into_iter().enumerate() {
        check_parameter(relation, i + 1, kind, None)?;
    }
    if let Some(real) = real_operator(relation.def.name) {
        let float = Type::Tensor(std::sync::Arc::new(TensorType { dtype: DType::F32, dims: data.dims.clone() }));
        let params = relation.params.with_def(real);
        (real.relation)(&Relation { def: relation.def, params, args: &[float], values: &[] })?;
    }
    Ok(relation.args[0].clone())
}

fn reference(params: Params<'_>, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>]) -> Evaluation {
    let data = &inputs[0];
    let x = dequantized(&params, data, (1, &inputs[1]), &inputs[2], -1)?;
    let mut y = vec![0f32; x.len()];
    match real_operator(params.def().name) {
        Some(real) => {
            let x = Tensor::from_slice(data.shape, &x);
            let mut out =
                [TensorViewMut { dtype: DType::F32, shape: data.shape, data: bytemuck::cast_slice_mut(&mut y) }];
            let compute = real.reference.ok_or_else(|| format!("{} has no reference", real.name))?;
            compute(params.with_def(real), &[x.view()], &mut out)?;
        }
        None => y.iter_mut().zip(x).for_each(|(y, x)| *y = hard_swish(x)),
    }
    quantized(&params, &y, inputs, outputs)
}

/// Computes hard swish with each step rounded to float32, as a sequence of operators would.
fn hard_swish(x: f32) -> f32 {
    x * (x + 3.0).clamp(0.0, 6.0) / 6.0
}

/// Quantizes real numbers with the scale and zero point in the last two inputs.
pub(super) fn quantized(
    params: &Params<'_>,
    values: &[f32],
    inputs: &[TensorView<'_>],
    outputs: &mut [TensorViewMut<'_>],
) -> Evaluation {
    let (scale, zero) = (scale(params, 3, &inputs[3])?, zero_points(&inputs[4])[0]);
    let limits = range(outputs[0].dtype);
    let quantized = |&x: &f32| f64::from(quantize_f32(x, scale, zero, limits, Rounding::ToNearest));
    Writer::new(&mut outputs[0]).store(values.iter().map(quantized));
    Ok(())
}
