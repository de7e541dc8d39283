//! Recipes for calls to every operator of the table, by family. A recipe may propose arguments that the type relation
//! of the operator rejects; the caller then draws again. For an operator without a recipe, the schema determines the
//! call: operands of one type and the default attributes.

mod create;
mod declared;
mod detection;
mod dynamic;
mod elementwise;
mod fixed;
mod index;
mod norm;
mod products;
mod qnn;
mod shape;
mod windows;

use super::draw::{Fill, Sampler};
use byoc_ir::ir::{AttrValue, Attrs};
use byoc_ir::op::{Default, OpDef};
use byoc_ir::tensor::DType;

/// Proposed operand.
#[derive(Clone, Debug)]
pub struct Operand {
    /// Element type.
    pub dtype: DType,
    /// Dimensions.
    pub shape: Vec<usize>,
    /// Constraint on the elements.
    pub fill: Fill,
    /// True if the operand is a constant in models: a weight, a bias, a shape.
    pub weight: bool,
}

/// Proposed argument of a call.
#[derive(Clone, Debug)]
pub enum Argument {
    /// Single tensor.
    One(Operand),
    /// Tuple of tensors.
    Tuple(Vec<Operand>),
}

/// Proposed call.
#[derive(Clone, Debug)]
pub struct Recipe {
    /// Arguments.
    pub args: Vec<Argument>,
    /// Attributes.
    pub attrs: Attrs,
}

/// Type of an existing operand.
pub type ValueType = (DType, Vec<usize>);

/// Constraint on an argument of a proposed call.
#[derive(Clone, Debug, Default)]
pub enum Constraint {
    /// No constraint.
    #[default]
    Any,
    /// Type of the tensor.
    One(ValueType),
    /// Types of the tuple fields; `None` for a field without constraint.
    Tuple(Vec<Option<ValueType>>),
}

/// Proposes a call that satisfies `constraints`, which may be shorter than the argument list.
pub fn propose(def: &'static OpDef, sampler: &mut Sampler, constraints: &[Constraint]) -> Option<Recipe> {
    declared::propose(def, sampler, constraints)
        .or_else(|| fixed::propose(def, sampler))
        .or_else(|| elementwise::propose(def, sampler, constraints))
        .or_else(|| products::propose(def, sampler, constraints))
        .or_else(|| qnn::propose(def, sampler, constraints))
        .or_else(|| windows::propose(def, sampler, constraints))
        .or_else(|| norm::propose(def, sampler, constraints))
        .or_else(|| shape::propose(def, sampler, constraints))
        .or_else(|| index::propose(def, sampler, constraints))
        .or_else(|| create::propose(def, sampler, constraints))
        .or_else(|| detection::propose(def, sampler, constraints))
        .or_else(|| dynamic::propose(def, sampler, constraints))
        .or_else(|| by_schema(def, sampler, constraints))
}

/// Proposes a call based only on the schema.
fn by_schema(def: &'static OpDef, sampler: &mut Sampler, constraints: &[Constraint]) -> Option<Recipe> {
    if def.attrs.iter().any(|a| matches!(a.default, Default::Required)) {
        return None;
    }
    let (dtype, shape) = first_argument(sampler, constraints, 1, 4);
    let args = (0..def.arity.min).map(|i| match argument_type(constraints, i) {
        Some((dtype, shape)) => unconstrained(dtype, shape),
        None => unconstrained(dtype, shape.clone()),
    });
    Some(Recipe { args: args.collect(), attrs: Attrs::none() })
}

fn argument_type(constraints: &[Constraint], i: usize) -> Option<ValueType> {
    match constraints.get(i) {
        Some(Constraint::One(value_type)) => Some(value_type.clone()),
        _ => None,
    }
}

/// Returns the type of the first argument: the given type, or a drawn type.
fn first_argument(sampler: &mut Sampler, constraints: &[Constraint], min_rank: usize, max_rank: usize) -> ValueType {
    argument_type(constraints, 0).unwrap_or_else(|| (sampler.theme.dtype, sampler.shape_of_rank(min_rank, max_rank)))
}

fn operand(dtype: DType, shape: Vec<usize>, fill: Fill) -> Argument {
    Argument::One(Operand { dtype, shape, fill, weight: false })
}

fn unconstrained(dtype: DType, shape: Vec<usize>) -> Argument {
    operand(dtype, shape, Fill::Free)
}

fn weight(dtype: DType, shape: Vec<usize>, fill: Fill) -> Argument {
    Argument::One(Operand { dtype, shape, fill, weight: true })
}

/// Creates a constant integer list that the type of the call depends on.
fn integers(dtype: DType, values: Vec<i64>) -> Argument {
    weight(dtype, vec![values.len()], Fill::Exactly(values))
}

fn recipe(args: impl IntoIterator<Item = Argument>, attrs: Attrs) -> Option<Recipe> {
    Some(Recipe { args: args.into_iter().collect(), attrs })
}

fn attrs<const N: usize>(pairs: [(&'static str, AttrValue); N]) -> Attrs {
    Attrs::new(pairs)
}

fn ints(values: impl IntoIterator<Item = usize>) -> AttrValue {
    AttrValue::ints(values.into_iter().map(|v| v as i64))
}
