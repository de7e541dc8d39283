//! Ensembles of decision trees.

use super::scalar::{Reader, Writer};
use super::{AttrDef, AttrKind, Default, Evaluation, Params, Relation, TypeResult};
use crate::cancel::Ticks;
use crate::diag::codes;
use crate::ir::{Dim, Type};
use crate::op::facts::Properties;
use crate::tensor::{DType, TensorView, TensorViewMut};

/// Comparison of a feature with the value of a node; the number of a mode is its position in [`Mode::ALL`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    /// The feature is at most the value.
    LessEqual,
    /// The feature is less than the value.
    Less,
    /// The feature is at least the value.
    GreaterEqual,
    /// The feature is greater than the value.
    Greater,
    /// The feature equals the value.
    Equal,
    /// The feature differs from the value.
    NotEqual,
}

impl Mode {
    /// All modes, in the order of their numbers.
    pub const ALL: [Mode; 6] =
        [Mode::LessEqual, Mode::Less, Mode::GreaterEqual, Mode::Greater, Mode::Equal, Mode::NotEqual];

    /// Returns true if the comparison holds.
    #[inline(always)]
    pub fn holds<T: PartialOrd>(self, feature: T, value: T) -> bool {
        match self {
            Mode::LessEqual => feature <= value,
            Mode::Less => feature < value,
            Mode::GreaterEqual => feature >= value,
            Mode::Greater => feature > value,
            Mode::Equal => feature == value,
            Mode::NotEqual => feature != value,
        }
    }
}

/// Bit of a node's mode: NaN selects the first child.
pub const NAN_IS_TRUE: i32 = 8;

/// Rule that combines the weights of the leaves that a row reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aggregate {
    /// Sum of the weights.
    Sum,
    /// Least weight.
    Min,
    /// Greatest weight.
    Max,
}

impl Aggregate {
    /// Reads attribute `aggregate`.
    pub fn of(params: &Params<'_>) -> Option<Aggregate> {
        Some(match params.string("aggregate").as_str() {
            "sum" => Aggregate::Sum,
            "min" => Aggregate::Min,
            "max" => Aggregate::Max,
            _ => return None,
        })
    }
}

operator! {
    name: "ml.tree_ensemble",
    doc: "Scores (rows, targets) of the rows of data by decision trees. A node (feature, mode, first, second) compares a \
          feature of the row with its value, and continues with its first child if the comparison holds, otherwise with \
          the second one; a child or root c < 0 is the leaf -1 - c, whose weights contribute to the scores. Modes 0 to 5 \
          are <=, <, >=, >, ==, !=; 8 is added if NaN continues with the first child.",
    inputs: &["data", "nodes", "values", "roots", "weights"],
    attrs: &[AttrDef::new(
        "aggregate",
        AttrKind::Str,
        Default::Str("sum"),
        "sum, min or max of the weights of all trees",
    )],
    relation: tree_ensemble_type,
    reference: Some(tree_ensemble),
    flops: |cost| cost.ret_len().saturating_mul(cost.arg_len(3)),
    properties: Properties::EXACT.sum(trees),
}

fn trees(_: &Params<'_>, shapes: &[&[usize]], _: &[usize]) -> usize {
    shapes.get(3).and_then(|roots| roots.first()).copied().unwrap_or(1)
}

fn tree_ensemble_type(relation: &Relation<'_>) -> TypeResult {
    let (data, nodes, values) = (relation.tensor(0)?, relation.tensor(1)?, relation.tensor(2)?);
    let (roots, weights) = (relation.tensor(3)?, relation.tensor(4)?);
    let ([rows, _], [count, Dim::Fixed(4)], [value_count], [_], [_, targets]) =
        (&data.dims[..], &nodes.dims[..], &values.dims[..], &roots.dims[..], &weights.dims[..])
    else {
        let message =
            "expected data (rows, features), nodes (n, 4), values (n), roots (trees) and weights (leaves, targets)";
        return Err(relation.mismatch(message));
    };
    relation.same_dim("nodes and values", count, value_count)?;
    for ty in [values, weights] {
        relation.same_dtype(data.dtype, ty.dtype)?;
    }
    if !matches!(data.dtype, DType::F32 | DType::F64) || [nodes, roots].iter().any(|ty| ty.dtype != DType::I32) {
        let message = "expected float32 or float64 data, values and weights, and int32 nodes and roots";
        return Err(relation.mismatch(message));
    }
    if Aggregate::of(&relation.params).is_none() {
        let found = relation.params.string("aggregate");
        let message = format!("aggregate: expected sum, min or max, found \"{found}\"");
        return Err(relation.error(codes::types::BAD_ATTRIBUTE, message));
    }
    Ok(Type::tensor_of(data.dtype, [rows.clone(), targets.clone()]))
}

fn tree_ensemble(params: Params<'_>, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>]) -> Evaluation {
    let [data, nodes, values, roots, weights] = [0, 1, 2, 3, 4].map(|i| Reader::new(&inputs[i]));
    let (features, node_count) = (inputs[0].shape[1], inputs[1].shape[0]);
    let [leaves, targets] = [inputs[4].shape[0], inputs[4].shape[1]];
    let aggregate = Aggregate::of(&params).ok_or("expected an aggregate")?;
    let round = |value: f64| if inputs[0].dtype == DType::F32 { f64::from(value as f32) } else { value };
    let mut out = Writer::new(&mut outputs[0]);
    let mut ticks = Ticks::every(roots_len(inputs).saturating_mul(16));
    for row in 0..inputs[0].shape[0] {
        if ticks.is_requested() {
            return Ok(());
        }
        let mut scores: Vec<Option<f64>> = vec![None; targets];
        for tree in 0..roots_len(inputs) {
            let mut at = roots.int(tree);
            let mut steps = 0;
            while at >= 0 {
                let node = usize::try_from(at).ok().filter(|&node| node < node_count && steps < node_count);
                let node = node.ok_or_else(|| out_of_range(at as i64))?;
                steps += 1;
                let [feature, mode, first, second] = [0, 1, 2, 3].map(|i| nodes.int(node * 4 + i));
                let feature = usize::try_from(feature).ok().filter(|&feature| feature < features);
                let x = data.float(row * features + feature.ok_or_else(|| bad_feature(node))?);
                let comparison = Mode::ALL.get((mode & 7) as usize).ok_or_else(|| bad_feature(node))?;
                let is_first =
                    comparison.holds(x, values.float(node)) || (x.is_nan() && mode & i128::from(NAN_IS_TRUE) != 0);
                at = if is_first { first } else { second };
            }
            let leaf = usize::try_from(-1 - at).ok().filter(|&leaf| leaf < leaves);
            let leaf = leaf.ok_or_else(|| out_of_range(at as i64))?;
            for (target, score) in scores.iter_mut().enumerate() {
                let weight = weights.float(leaf * targets + target);
                *score = Some(score.map_or(weight, |score| match aggregate {
                    Aggregate::Sum => round(score + weight),
                    Aggregate::Min => score.min(weight),
                    Aggregate::Max => score.max(weight),
                }));
            }
        }
        for (target, score) in scores.into_iter().enumerate() {
            out.set_float(row * targets + target, score.unwrap_or_default());
        }
    }
    Ok(())
}

fn roots_len(inputs: &[TensorView<'_>]) -> usize {
    inputs[3].shape[0]
}

/// Returns the message for a node or leaf that does not exist, or that lies on a cycle.
fn out_of_range(at: i64) -> String {
    format!("nodes: expected trees, found {at} out of range or on a cycle")
}

/// Returns the message for a feature or a mode out of range.
fn bad_feature(node: usize) -> String {
    format!("nodes: node {node} has a feature or a mode out of range")
}
