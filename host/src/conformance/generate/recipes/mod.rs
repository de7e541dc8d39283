//! Valid arguments for every operator of the table, by family. The type relations have the last word: a recipe may
//! propose what a relation then turns down, and whoever asked draws again. An operator without a recipe gets what its
//! schema says: operands of one type and the default attributes.

mod create;
mod detection;
mod elementwise;
mod index;
mod norm;
mod products;
mod qnn;
mod shape;
mod windows;

use super::draw::{Draw, Fill};
use byoc_core::ir::{AttrValue, Attrs};
use byoc_core::op::{Default, OpDef};
use byoc_core::tensor::DType;

/// An operand that has yet to be made.
#[derive(Clone, Debug)]
pub struct Operand {
    /// Its element type.
    pub dtype: DType,
    /// Its dimensions.
    pub shape: Vec<usize>,
    /// Its elements.
    pub fill: Fill,
    /// True if models hold it as a constant: a weight, a bias, a shape.
    pub weight: bool,
}

/// An argument of a call.
#[derive(Clone, Debug)]
pub enum Argument {
    /// A tensor.
    One(Operand),
    /// A tuple of tensors.
    Tuple(Vec<Operand>),
}

/// A call that has yet to be made.
#[derive(Clone, Debug)]
pub struct Recipe {
    /// Its arguments.
    pub args: Vec<Argument>,
    /// Its attributes.
    pub attrs: Attrs,
}

/// A type that an operand has already.
pub type Known = (DType, Vec<usize>);

/// What is known of an argument beforehand.
#[derive(Clone, Debug, Default)]
pub enum Given {
    /// Nothing.
    #[default]
    Open,
    /// The type of the tensor.
    One(Known),
    /// The fields of the tuple, as far as they are known.
    Tuple(Vec<Option<Known>>),
}

/// Proposes a call. `given` may be shorter than the arguments are.
pub fn propose(def: &'static OpDef, draw: &mut Draw, given: &[Given]) -> Option<Recipe> {
    elementwise::propose(def, draw, given)
        .or_else(|| products::propose(def, draw, given))
        .or_else(|| qnn::propose(def, draw, given))
        .or_else(|| windows::propose(def, draw, given))
        .or_else(|| norm::propose(def, draw, given))
        .or_else(|| shape::propose(def, draw, given))
        .or_else(|| index::propose(def, draw, given))
        .or_else(|| create::propose(def, draw, given))
        .or_else(|| detection::propose(def, draw, given))
        .or_else(|| by_schema(def, draw, given))
}

/// What the schema alone says.
fn by_schema(def: &'static OpDef, draw: &mut Draw, given: &[Given]) -> Option<Recipe> {
    if def.attrs.iter().any(|a| matches!(a.default, Default::Required)) {
        return None;
    }
    let (dtype, shape) = first(draw, given, 1, 4);
    let args = (0..def.arity.min).map(|i| match known(given, i) {
        Some((dtype, shape)) => free(dtype, shape),
        None => free(dtype, shape.clone()),
    });
    Some(Recipe { args: args.collect(), attrs: Attrs::none() })
}

fn known(given: &[Given], i: usize) -> Option<Known> {
    match given.get(i) {
        Some(Given::One(known)) => Some(known.clone()),
        _ => None,
    }
}

/// The type of the first argument: as given, or drawn.
fn first(draw: &mut Draw, given: &[Given], low: usize, high: usize) -> Known {
    known(given, 0).unwrap_or_else(|| (draw.theme.dtype, draw.shape_of_rank(low, high)))
}

fn operand(dtype: DType, shape: Vec<usize>, fill: Fill) -> Argument {
    Argument::One(Operand { dtype, shape, fill, weight: false })
}

fn free(dtype: DType, shape: Vec<usize>) -> Argument {
    operand(dtype, shape, Fill::Free)
}

fn weight(dtype: DType, shape: Vec<usize>, fill: Fill) -> Argument {
    Argument::One(Operand { dtype, shape, fill, weight: true })
}

/// A list of integers, which the type of the call depends on.
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
