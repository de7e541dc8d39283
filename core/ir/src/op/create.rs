//! Operators that create tensors from attributes, scalars, or the shape of an argument.

use super::elementwise::same_as_input;
use super::repeat::dims_of;
use super::reshape::unknown_dims;
use super::scalar::{Reader, Writer};
use super::{Arity, AttrDef, AttrKind, Default, Evaluation, OpPattern, Params, Relation, TypeResult};
use crate::diag::{Diagnostic, codes};
use crate::ir::{Dim, Type};
use crate::op::facts::Properties;
use crate::tensor::{DType, TensorView, TensorViewMut};

const SHAPE: AttrDef = AttrDef::new("shape", AttrKind::Ints, Default::Required, "shape of the result");
const DTYPE: AttrDef = AttrDef::new("dtype", AttrKind::DType, Default::Str("float32"), "element type of the result");

/// Fills the output with a scalar, converted to the output's element type.
pub(super) fn fill(value: &TensorView<'_>, output: &mut TensorViewMut<'_>) {
    let size = output.dtype.size();
    Writer::new(output).convert(0, &Reader::new(value), 0);
    let (first, rest) = output.data.split_at_mut(size);
    rest.chunks_exact_mut(size).for_each(|element| element.copy_from_slice(first));
}

fn fill_number(number: i8, output: &mut TensorViewMut<'_>) {
    fill(&TensorView { dtype: DType::I8, shape: &[], data: &[number as u8] }, output);
}

pub(super) fn element_type(relation: &Relation<'_>) -> Result<DType, Box<Diagnostic>> {
    let missing_dtype = || relation.error(codes::types::BAD_ATTRIBUTE, "dtype: expected an element type, found \"\"");
    relation.params.dtype("dtype").ok_or_else(missing_dtype)
}

/// Returns the result type for the shape in attribute `shape`.
fn of_shape(relation: &Relation<'_>) -> TypeResult {
    Ok(Type::tensor_of(element_type(relation)?, dims_of(relation, &relation.params.ints("shape"))?))
}

/// Returns the result type for the shape in argument `i`.
fn of_computed_shape(relation: &Relation<'_>, i: usize) -> TypeResult {
    let dims = match relation.known_ints(i) {
        Some(shape) => dims_of(relation, &shape)?,
        None => unknown_dims(relation, i)?,
    };
    Ok(Type::tensor_of(element_type(relation)?, dims))
}

macro_rules! constants {
    ($($name:literal $number:literal $properties:ident $doc:literal, [$($input:literal)?], $attrs:expr, $relation:expr;)*) => {$(
        operator! {
            name: $name,
            doc: $doc,
            arity: Arity::exactly(0 $(+ { let _: &str = $input; 1 })?),
            inputs: &[$($input)?],
            attrs: $attrs,
            pattern: OpPattern::ElemWise,
            relation: $relation,
            reference: Some(|_, _, outputs| { fill_number($number, &mut outputs[0]); Ok(()) }),
            properties: Properties::$properties,
        }
    )*};
}

constants! {
    "zeros" 0 EXACT "A tensor of zeros.", [], &[SHAPE, DTYPE], of_shape;
    "ones" 1 EXACT "A tensor of ones.", [], &[SHAPE, DTYPE], of_shape;
    "dyn.zeros" 0 EXACT "zeros with a shape computed at run time.", ["shape"], &[DTYPE], |r| of_computed_shape(r, 0);
    "dyn.ones" 1 EXACT "ones with a shape computed at run time.", ["shape"], &[DTYPE], |r| of_computed_shape(r, 0);
    "zeros_like" 0 POINTWISE "Zeros with the type of data.", ["data"], &[], same_as_input;
    "ones_like" 1 POINTWISE "Ones with the type of data.", ["data"], &[], same_as_input;
}

/// Checks that argument `i` is a scalar.
pub(super) fn scalar_argument(relation: &Relation<'_>, i: usize) -> Result<DType, Box<Diagnostic>> {
    let ty = relation.tensor(i)?;
    if !ty.dims.is_empty() {
        let name = relation.def.inputs[i];
        return Err(relation.mismatch(format!("{name}: expected a scalar, found {}", relation.args[i])));
    }
    Ok(ty.dtype)
}

const FULL_DTYPE: AttrDef =
    AttrDef::new("dtype", AttrKind::DType, Default::Str(""), "element type of the result; that of fill_value if empty");

fn full_type(relation: &Relation<'_>, dims: Vec<Dim>) -> TypeResult {
    let fill_dtype = scalar_argument(relation, 0)?;
    Ok(Type::tensor_of(relation.params.dtype("dtype").unwrap_or(fill_dtype), dims))
}

operator! {
    name: "full",
    doc: "A tensor filled with the scalar fill_value.",
    inputs: &["fill_value"],
    attrs: &[SHAPE, FULL_DTYPE],
    pattern: OpPattern::ElemWise,
    relation: |relation| full_type(relation, dims_of(relation, &relation.params.ints("shape"))?),
    reference: Some(|_, inputs, outputs| { fill(&inputs[0], &mut outputs[0]); Ok(()) }),
}

operator! {
    name: "dyn.full",
    doc: "full with a shape computed at run time.",
    inputs: &["fill_value", "shape"],
    attrs: &[FULL_DTYPE],
    pattern: OpPattern::ElemWise,
    relation: |relation| {
        let dims = match relation.known_ints(1) {
            Some(shape) => dims_of(relation, &shape)?,
            None => unknown_dims(relation, 1)?,
        };
        full_type(relation, dims)
    },
    reference: Some(|_, inputs, outputs| { fill(&inputs[0], &mut outputs[0]); Ok(()) }),
}

operator! {
    name: "full_like",
    doc: "A tensor of the type of data, filled with the scalar fill_value.",
    inputs: &["data", "fill_value"],
    pattern: OpPattern::ElemWise,
    relation: |relation| {
        scalar_argument(relation, 1)?;
        same_as_input(relation)
    },
    reference: Some(|_, inputs, outputs| { fill(&inputs[1], &mut outputs[0]); Ok(()) }),
    properties: Properties::POINTWISE,
}

/// Returns the number of elements in the arithmetic progression from `start` up to but excluding `stop`.
fn steps(start: &TensorView<'_>, stop: &TensorView<'_>, step: &TensorView<'_>) -> Result<usize, String> {
    let count = if start.dtype.is_float() {
        let (start, stop, step) = (start.to_f64s()[0], stop.to_f64s()[0], step.to_f64s()[0]);
        if step == 0.0 || !(start.is_finite() && stop.is_finite() && !step.is_nan()) {
            return Err(format!(
                "expected finite bounds and a nonzero step, found {start} to {stop} in steps of {step}"
            ));
        }
        ((stop - start) / step).ceil().max(0.0)
    } else {
        let [start, stop, step] = [start, stop, step].map(|view| Reader::new(view).int(0));
        let distance = stop - start;
        if step == 0 {
            return Err(format!("expected a nonzero step, found {start} to {stop} in steps of 0"));
        }
        (distance / step + i128::from(distance % step != 0 && (distance < 0) == (step < 0))).max(0) as f64
    };
    if count > 2f64.powi(40) {
        return Err(format!("expected at most 2^40 elements, found {count}"));
    }
    Ok(count as usize)
}

operator! {
    name: "arange",
    doc: "start, start + step, ... up to but excluding stop, for three scalars of one element type.",
    inputs: &["start", "stop", "step"],
    attrs: &[AttrDef::new("dtype", AttrKind::DType, Default::Str("float32"), "element type of the result")],
    relation: |relation| {
        let dtype = scalar_argument(relation, 0)?;
        relation.same_dtype(dtype, scalar_argument(relation, 1)?)?;
        relation.same_dtype(dtype, scalar_argument(relation, 2)?)?;
        let dim = match [0, 1, 2].map(|i| relation.values.get(i).copied().flatten()) {
            [Some(start), Some(stop), Some(step)] => {
                let count = steps(&start.view(), &stop.view(), &step.view());
                Dim::Fixed(count.map_err(|message| relation.error(codes::types::BAD_ATTRIBUTE, message))?)
            }
            _ => Dim::Any,
        };
        Ok(Type::tensor_of(element_type(relation)?, [dim]))
    },
    reference: Some(arange),
}

fn arange(_: Params<'_>, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>]) -> Evaluation {
    let count = steps(&inputs[0], &inputs[1], &inputs[2])?;
    if count != outputs[0].len() {
        return Err(format!("expected the inferred shape {:?}, found [{count}]", outputs[0].shape));
    }
    let (start, step, mut out) = (Reader::new(&inputs[0]), Reader::new(&inputs[2]), Writer::new(&mut outputs[0]));
    for i in 0..out.len() {
        if start.is_float() {
            out.set_float(i, start.float(0) + i as f64 * step.float(0));
        } else {
            out.set_int(i, start.int(0) + i as i128 * step.int(0));
        }
    }
    Ok(())
}

const SHAPE_DTYPE: AttrDef =
    AttrDef::new("dtype", AttrKind::DType, Default::Str("int32"), "element type of the result");

operator! {
    name: "shape_of",
    doc: "Dimensions of data as a vector.",
    inputs: &["data"],
    attrs: &[SHAPE_DTYPE],
    pattern: OpPattern::Injective,
    relation: |relation| {
        let rank = relation.tensor(0)?.dims.len();
        Ok(Type::tensor(element_type(relation)?, &[rank]))
    },
    reference: Some(|_, inputs, outputs| {
        let mut out = Writer::new(&mut outputs[0]);
        for (i, &n) in inputs[0].shape.iter().enumerate() {
            out.set_int(i, n as i128);
        }
        Ok(())
    }),
}

operator! {
    name: "ndarray_size",
    doc: "Number of elements of data.",
    inputs: &["data"],
    attrs: &[SHAPE_DTYPE],
    pattern: OpPattern::Injective,
    relation: |relation| {
        relation.tensor(0)?;
        Ok(Type::scalar(element_type(relation)?))
    },
    reference: Some(|_, inputs, outputs| {
        Writer::new(&mut outputs[0]).set_int(0, inputs[0].len() as i128);
        Ok(())
    }),
}
