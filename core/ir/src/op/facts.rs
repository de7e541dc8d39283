//! Properties of an operator beyond its type and its reference: passes, the planner and the conformance run read them
//! here, so that none of them lists operators by name.

use super::Params;
use crate::tensor::TensorView;

/// Properties of an operator. Start from one of the constants and refine it:
/// `Properties::POINTWISE.ulps(1.0).commutative()`.
#[derive(Clone, Copy, Debug)]
pub struct Properties {
    /// True if the pattern matcher may swap the two arguments, as Relay's does.
    pub commutative: bool,
    /// Relation of the result's memory to the memory of argument 0.
    pub result: ResultMemory,
    /// True if every element of the result is an element of argument 0, so that both have the same scale and zero point
    /// when they are quantized.
    pub selects: bool,
    /// True for an annotation: an identity that guides partitioning or fusion, so that passes must keep it.
    pub annotation: bool,
    /// Behavior when the layout of argument 0 changes.
    pub layout: LayoutRule,
    /// Error bound of implementations.
    pub error: ErrorModel,
}

/// Relation of a result's memory to the memory of argument 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResultMemory {
    /// New memory.
    New,
    /// The same bytes with other dimensions.
    View,
    /// Argument 0 itself, of any type.
    Argument,
    /// New memory with the fields of argument 0, a tuple, concatenated along attribute `axis`.
    Concatenation,
}

/// Behavior of an operator when the layout of argument 0 changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayoutRule {
    /// Accepts only the original layout.
    Fixed,
    /// Accepts any layout that all arguments share; the result has the same layout.
    Pointwise,
    /// Attribute `axis` is adapted to the new layout; argument 1 is a vector along that axis.
    Axis,
    /// Attribute `axis` is adapted to the new layout, which all fields of the tuple must have.
    Concatenation,
    /// Attribute `layout` names the layout of the data, `out_layout` the layout of the result.
    Window2d,
    /// Attributes `data_layout`, `kernel_layout` and `out_layout` name the layouts.
    Conv2d,
}

/// Number of terms accumulated per element of the result, computed from the attributes, the shapes of the arguments and
/// the shape of the result.
pub type Terms = fn(&Params<'_>, &[&[usize]], &[usize]) -> usize;

/// Sensitivity to the mean: change in each element of the result per unit of relative error in the mean, computed from
/// the attributes and the arguments.
pub type MeanSensitivity = fn(&Params<'_>, &[TensorView<'_>]) -> Vec<f64>;

/// Error bound of an operator's floating-point results, relative to the reference. On integers all operators are exact.
#[derive(Clone, Copy, Debug)]
pub enum ErrorModel {
    /// Bitwise equality: data movement, comparison, selection.
    Exact,
    /// Bound in units in the last place, for elementwise functions.
    Ulps(f64),
    /// Proportional to the sum of the magnitudes of the terms.
    Sum(Terms),
    /// Backward stable: bounded by the change in the result when every input is perturbed by the rounding error of a
    /// sum with the given number of terms.
    Stable(Terms),
    /// Same as `Stable`, plus the change in the result when the mean is rounded, for elements normalized by their own
    /// mean: no perturbation of the inputs accounts for that change, because every element contributes to the mean.
    Moments(Terms, MeanSensitivity),
    /// Same as `Stable`, with an additional term proportional to `1 + result`, for the logarithm of a sum near 1.
    Logarithm(Terms),
    /// Proportional to the largest input and the largest dimension, because the weights depend on rounded coordinates.
    /// Exact if attribute `method` is `nearest_neighbor`.
    Interpolation,
}

impl Properties {
    /// Properties of an operator that moves, compares or computes exactly, in new memory and a fixed layout.
    pub const EXACT: Properties = Properties {
        commutative: false,
        result: ResultMemory::New,
        selects: false,
        annotation: false,
        layout: LayoutRule::Fixed,
        error: ErrorModel::Exact,
    };
    /// Properties of an exact operator whose result elements depend on the elements of the arguments at the same
    /// position.
    pub const POINTWISE: Properties = Properties::EXACT.layout(LayoutRule::Pointwise);
    /// Properties of an operator that only moves or selects elements of argument 0.
    pub const SELECTS: Properties = Properties { selects: true, ..Properties::EXACT };
    /// Properties of an operator that reinterprets the elements of argument 0 under other dimensions.
    pub const VIEW: Properties = Properties { result: ResultMemory::View, ..Properties::SELECTS };
    /// Properties of an annotation.
    pub const ANNOTATION: Properties =
        Properties { result: ResultMemory::Argument, annotation: true, ..Properties::EXACT };

    /// Marks the operator as commutative.
    pub const fn commutative(self) -> Properties {
        Properties { commutative: true, ..self }
    }

    /// Marks every element of the result as an element of argument 0.
    pub const fn selects(self) -> Properties {
        Properties { selects: true, ..self }
    }

    /// Sets the relation of the result's memory to the memory of argument 0.
    pub const fn result(self, result: ResultMemory) -> Properties {
        Properties { result, ..self }
    }

    /// Sets the behavior when the layout changes.
    pub const fn layout(self, layout: LayoutRule) -> Properties {
        Properties { layout, ..self }
    }

    /// Sets the error bound.
    pub const fn error(self, error: ErrorModel) -> Properties {
        Properties { error, ..self }
    }

    /// Sets the error bound in units in the last place.
    pub const fn ulps(self, ulps: f64) -> Properties {
        self.error(ErrorModel::Ulps(ulps))
    }

    /// Sets the error bound of a sum.
    pub const fn sum(self, terms: Terms) -> Properties {
        self.error(ErrorModel::Sum(terms))
    }

    /// Sets the error bound of a backward stable computation.
    pub const fn stable(self, terms: Terms) -> Properties {
        self.error(ErrorModel::Stable(terms))
    }
}

/// Returns the number of elements in argument 0 per element of the result: the terms of a reduction.
pub fn reduced_elements(_: &Params<'_>, shapes: &[&[usize]], result: &[usize]) -> usize {
    let input: usize = shapes.first().map_or(0, |shape| shape.iter().product());
    input / result.iter().product::<usize>().max(1)
}

/// Returns the dimension of argument 0 on the axis in attribute `axis`.
pub fn elements_along_axis(params: &Params<'_>, shapes: &[&[usize]], _: &[usize]) -> usize {
    size_along(shapes, params.int("axis"))
}

/// Returns the dimension of argument 0 on `axis`; a negative axis counts from the end.
pub fn size_along(shapes: &[&[usize]], axis: i64) -> usize {
    let data = shapes.first().copied().unwrap_or_default();
    data.get(axis.rem_euclid(data.len().max(1) as i64) as usize).copied().unwrap_or(1)
}

/// Returns the number of elements in argument `I`.
pub fn elements_of<const I: usize>(_: &Params<'_>, shapes: &[&[usize]], _: &[usize]) -> usize {
    shapes.get(I).map_or(1, |shape| shape.iter().product())
}
