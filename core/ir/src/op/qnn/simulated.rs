//! Quantization with floats in place of integers: the values are those of the integers, and the integer type is an argument.

use super::params::PerAxis;
use super::{AttrDef, AttrKind, Default, Evaluation, OpPattern, Params, Relation};
use crate::op::TypeResult;
use crate::op::elementwise::same_as_input;
use crate::op::facts::Properties;
use crate::op::scalar::Writer;
use crate::tensor::{TensorView, TensorViewMut};

const AXIS: AttrDef =
    AttrDef::new("axis", AttrKind::Int, Default::Int(-1), "axis of a vector of scales or zero points");

macro_rules! simulated {
    ($($name:literal $inputs:expr, $doc:literal, $f:expr;)*) => {$(
        operator! {
            name: $name,
            doc: $doc,
            inputs: &$inputs,
            attrs: &[AXIS],
            pattern: OpPattern::ElemWise,
            relation: simulated_type,
            reference: Some(|params, inputs, outputs| simulate(params, inputs, outputs, $f)),
            flops: |cost| 4 * cost.ret_len(),
            properties: Properties::EXACT.ulps(2.0),
        }
    )*};
}

simulated! {
    "qnn.simulated_quantize" ["data", "out_dtype", "output_scale", "output_zero_point"],
        "qnn.quantize with a result of floats. The type is a number: 0 for none, which returns data, 1 for int8, 2 for \
         uint8, 3 for int32.",
        |x, scale, zero, (low, high)| ((x / scale).round() + zero).min(high).max(low);
    "qnn.simulated_dequantize" ["data", "in_dtype", "input_scale", "input_zero_point"],
        "qnn.dequantize of integers that are given as floats. The type is a number: 0 for none, which returns data, 1 for \
         int8, 2 for uint8, 3 for int32.",
        |x, scale, zero, _| (x - zero) * scale;
}

fn simulated_type(relation: &Relation<'_>) -> TypeResult {
    let (data, code) = (relation.tensor(0)?, relation.tensor(1)?);
    if !data.dtype.is_float() || !code.dtype.is_int() || !code.dims.is_empty() {
        let [data, code] = [&relation.args[0], &relation.args[1]];
        return Err(relation.mismatch(format!("expected floats and the number of a type, found {data} and {code}")));
    }
    let axis =
        if data.dims.is_empty() { None } else { Some(relation.axis(relation.params.int("axis"), data.dims.len())?) };
    for i in [2, 3] {
        let (name, parameter) = (relation.def.inputs[i], relation.tensor(i)?);
        match (&parameter.dims[..], axis) {
            ([], _) => {}
            ([length], _) if length.fixed() == Some(1) => {}
            ([length], Some(axis)) => {
                drop(relation.same_dim(&format!("{name} and its axis"), length, &data.dims[axis])?)
            }
            _ => {
                return Err(
                    relation.mismatch(format!("{name}: expected a scalar or a vector, found {}", relation.args[i]))
                );
            }
        }
    }
    same_as_input(relation)
}

/// Function of an element, its scale, its zero point, and the range of the integer type.
type Simulation = fn(f64, f64, f64, (f64, f64)) -> f64;

fn simulate(
    params: Params<'_>,
    inputs: &[TensorView<'_>],
    outputs: &mut [TensorViewMut<'_>],
    f: Simulation,
) -> Evaluation {
    let range = match inputs[1].to_i64s().as_deref() {
        Some([1]) => (f64::from(i8::MIN), f64::from(i8::MAX)),
        Some([2]) => (f64::from(u8::MIN), f64::from(u8::MAX)),
        Some([3]) => (f64::from(i32::MIN), f64::from(i32::MAX)),
        Some([0]) => {
            outputs[0].data.copy_from_slice(inputs[0].data);
            return Ok(());
        }
        found => {
            let found = found.and_then(|code| code.first().copied()).unwrap_or(-1);
            return Err(format!(
                "{}: expected the number of a type, from 0 to 3, found {found}",
                params.def().inputs[1]
            ));
        }
    };
    let [scale, zero] = [2, 3].map(|i| PerAxis::new(inputs[i].to_f64s(), inputs[0].shape, params.int("axis")));
    let values = inputs[0].f64s().enumerate().map(|(i, x)| f(x, scale.at(i), zero.at(i), range));
    Writer::new(&mut outputs[0]).store(values);
    Ok(())
}
