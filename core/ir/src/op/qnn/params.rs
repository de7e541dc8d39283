//! Scales, zero points and rounding modes: checks and accessors common to the operators of the dialect.

use super::numerics::{FixedPoint, Rescale, Rounding};
use super::{AttrDef, AttrKind, Default, Params, ReferenceError, Relation};
use crate::diag::{Diagnostic, codes};
use crate::ir::{Dim, TensorType};
use crate::tensor::{DType, Tensor, TensorView};

type Result<T, E = Box<Diagnostic>> = std::result::Result<T, E>;

/// Element types of quantized tensors.
pub(super) const QUANTIZED_DTYPES: &[DType] = &[DType::I8, DType::U8, DType::I16, DType::U16, DType::I32];

/// Element types of the operands of quantized arithmetic, which has `int32` accumulators.
pub(super) const NARROW_DTYPES: &[DType] = &[DType::I8, DType::U8, DType::I16, DType::U16];

/// Kind of a parameter of a quantized operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Real value of one integer step: `float32`, finite, above zero.
    Scale,
    /// The integer that represents zero: `int32`.
    ZeroPoint,
}

/// Checks that the element type of an argument is one of `expected`.
pub(super) fn check_one_of(relation: &Relation<'_>, subject: &str, actual: DType, expected: &[DType]) -> Result<()> {
    if expected.contains(&actual) {
        return Ok(());
    }
    let names: Vec<_> = expected.iter().map(|d| d.name()).collect();
    let (last, lead) = names.split_last().unwrap_or((&"", &[]));
    let list = if lead.is_empty() { (*last).to_owned() } else { format!("{} or {last}", lead.join(", ")) };
    Err(relation.mismatch(format!("{subject}: expected {list}, found {actual}")))
}

/// Checks a scale or a zero point: its element type, its shape (a scalar or, along `dim`, a vector with one element per
/// index), and its values where they are known.
pub(super) fn check_parameter(relation: &Relation<'_>, i: usize, kind: Kind, dim: Option<&Dim>) -> Result<()> {
    let value = relation.values.get(i).copied().flatten();
    check(relation, relation.def.inputs[i], relation.tensor(i)?, value, kind, dim)
}

/// Checks the element type and the shape of a scale or a zero point.
pub(super) fn check_parameter_type(relation: &Relation<'_>, i: usize, kind: Kind, dim: Option<&Dim>) -> Result<()> {
    check(relation, relation.def.inputs[i], relation.tensor(i)?, None, kind, dim)
}

/// Performs the checks of [`check_parameter`] on a given type, which need not be the type of an argument.
pub(super) fn check(
    relation: &Relation<'_>,
    name: &str,
    ty: &TensorType,
    value: Option<&Tensor>,
    kind: Kind,
    dim: Option<&Dim>,
) -> Result<()> {
    let expected = if kind == Kind::Scale { DType::F32 } else { DType::I32 };
    check_one_of(relation, name, ty.dtype, &[expected])?;
    match (&ty.dims[..], dim) {
        ([] | [Dim::Fixed(1)], _) => {}
        ([length], Some(dim)) => {
            relation.same_dim(&format!("{name} and its axis"), length, dim)?;
        }
        ([length], None) => return Err(relation.mismatch(format!("{name}: expected one value, found {length}"))),
        (dims, _) => {
            return Err(relation.mismatch(format!("{name}: expected 0 or 1 dimensions, found {}", dims.len())));
        }
    }
    if let (Kind::Scale, Some(tensor)) = (kind, value)
        && let Err(reason) = check_scales(&tensor.view())
    {
        let fault = relation.error(codes::types::BAD_QUANTIZATION, format!("{name}: {reason}"));
        return Err(Box::new(fault.help("specify a finite scale above 0: the real value of one integer step")));
    }
    Ok(())
}

/// Checks that scales are finite and above zero.
fn check_scales(view: &TensorView<'_>) -> Result<(), String> {
    let values = view.as_slice::<f32>();
    match values.iter().position(|&s| !(s.is_finite() && s > 0.0)) {
        None => Ok(()),
        Some(_) if values.len() == 1 => Err(format!("expected a finite scale above 0, found {}", values[0])),
        Some(index) => Err(format!("expected finite scales above 0, found {} at index {index}", values[index])),
    }
}

/// Returns the dimension of `data` on the axis in attribute `attr`; `None` for a scalar.
pub(super) fn axis_dim(relation: &Relation<'_>, attr: &str, data: &TensorType) -> Result<Option<Dim>> {
    if data.dims.is_empty() {
        return Ok(None);
    }
    let axis = relation.axis(relation.params.int(attr), data.dims.len())?;
    Ok(Some(data.dims[axis].clone()))
}

/// One value for all elements, or one value for each index on an axis.
#[derive(Clone, Debug)]
pub struct PerAxis<T> {
    /// One value, or one value for each index on the axis.
    pub values: Vec<T>,
    /// Stride along the axis, in elements.
    pub inner: usize,
}

impl<T: Copy> PerAxis<T> {
    /// Creates values along `axis` of `shape`; a negative axis counts from the end.
    pub fn new(values: Vec<T>, shape: &[usize], axis: i64) -> PerAxis<T> {
        let axis = if axis < 0 { axis + shape.len() as i64 } else { axis };
        let inner = shape.iter().skip(axis.max(0) as usize + 1).product();
        PerAxis { values, inner }
    }

    /// Returns the value for element `i` of the tensor.
    #[inline(always)]
    pub fn at(&self, i: usize) -> T {
        if self.values.len() == 1 { self.values[0] } else { self.values[i / self.inner % self.values.len()] }
    }
}

/// Returns the values of a scale, argument `i`.
///
/// # Errors
/// If a value is not finite and above zero.
pub fn scales(params: &Params<'_>, i: usize, view: &TensorView<'_>) -> Result<Vec<f32>, ReferenceError> {
    check_scales(view).map_err(|reason| {
        let name = params.def().inputs.get(i).copied().unwrap_or("scale");
        format!("{name}: {reason}")
    })?;
    Ok(view.as_slice::<f32>().to_vec())
}

/// Returns the value of a scalar scale.
pub(super) fn scale(params: &Params<'_>, i: usize, view: &TensorView<'_>) -> Result<f32, ReferenceError> {
    Ok(scales(params, i, view)?[0])
}

/// Returns the values of a zero point.
pub(super) fn zero_points(view: &TensorView<'_>) -> Vec<i32> {
    view.as_slice::<i32>().to_vec()
}

/// Returns the rounding in attribute `rounding`, which the type relation must have accepted; `"None"` means `default`.
pub fn rounding_of(params: &Params<'_>, default: Rounding) -> Rounding {
    Rounding::parse(&params.string("rounding")).unwrap_or(default)
}

/// Returns the method of requantization from `input` to `output` that the attributes `rounding` and `compute_dtype`
/// specify: one entry for a single pair of scales, otherwise one entry for each index on the axis.
pub fn requantization(params: &Params<'_>, input: &[f32], output: &[f32]) -> Vec<Rescale> {
    let rounding = rounding_of(params, Rounding::Upward);
    rescales(input, output, |input, output| {
        if params.string("compute_dtype") == "float32" {
            Rescale::Float(input / output, rounding)
        } else {
            Rescale::Fixed(FixedPoint::ratio(input, output), rounding)
        }
    })
}

/// Returns the method of requantization for operators without `rounding` and `compute_dtype`: `UPWARD` rounding in
/// 64-bit fixed point, Relay's default.
pub fn default_requantization(input: &[f32], output: &[f32]) -> Vec<Rescale> {
    rescales(input, output, |input, output| Rescale::Fixed(FixedPoint::ratio(input, output), Rounding::Upward))
}

fn rescales(input: &[f32], output: &[f32], rescale: impl Fn(f32, f32) -> Rescale) -> Vec<Rescale> {
    let value_at = |values: &[f32], i: usize| values[i.min(values.len() - 1)];
    let count = if input.is_empty() || output.is_empty() { 0 } else { input.len().max(output.len()) };
    let pairs = || (0..count).map(|i| (value_at(input, i), value_at(output, i)));
    if pairs().all(|(input, output)| input == output) {
        return vec![Rescale::Same; count];
    }
    pairs().map(|(input, output)| rescale(input, output)).collect()
}

/// Checks that attribute `attr` is one of `choices`.
pub(super) fn check_choice(relation: &Relation<'_>, attr: &str, choices: &[&str]) -> Result<()> {
    let value = relation.params.string(attr);
    if choices.contains(&value.as_str()) {
        return Ok(());
    }
    let list = choices.join("\", \"");
    Err(relation.error(codes::types::BAD_ATTRIBUTE, format!("{attr}: expected one of \"{list}\", found \"{value}\"")))
}

pub(super) const AXIS: AttrDef = AttrDef::new(
    "axis",
    AttrKind::Int,
    Default::Int(-1),
    "axis of scales and zero points that are vectors; a negative axis counts from the end",
);
