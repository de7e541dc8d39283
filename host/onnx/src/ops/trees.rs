//! Ensembles of decision trees (`ai.onnx.ml`); [`forest`](super::forest) evaluates them.

use super::super::tensor::from_f64s;
use super::forest::{Aggregate, Forest, Mode, TreeNode, Weights};
use super::ml::{class_labels, labels_of, post_transform, rows_of};
use super::{Node, Outputs, Result, Row, attrs, single_output};
use byoc_ir::ir::ExprId;
use byoc_ir::op::trees;
use byoc_ir::tensor::{DType, Tensor};
use std::collections::{BTreeMap, BTreeSet};

pub const ROWS: &[Row] = &[
    ("TreeEnsemble", 5, tree_ensemble),
    ("TreeEnsembleClassifier", 1, classifier),
    ("TreeEnsembleRegressor", 1, regressor),
];

/// Returns the values of an attribute after checking that there are `count`; an absent or empty list stands for `count`
/// default values.
fn entries<T: Clone>(n: &Node<'_, '_>, name: &str, values: Option<Vec<T>>, count: usize, default: T) -> Result<Vec<T>> {
    match values {
        Some(values) if values.len() == count => Ok(values),
        Some(values) if !values.is_empty() => {
            Err(n.invalid_node(format!("attribute {name}: expected {count} values, found {}", values.len())))
        }
        _ => Ok(vec![default; count]),
    }
}

/// Returns a list of numbers that is stored in the attribute `name`, or as a tensor in the attribute
/// `<name>_as_tensor`.
fn numbers(n: &Node<'_, '_>, name: &str) -> Result<Option<Vec<f64>>> {
    match n.tensor_attr(&format!("{name}_as_tensor"))? {
        Some(tensor) => Ok(Some(tensor.view().to_f64s())),
        None => n.floats_attr(name),
    }
}

fn required<T>(n: &Node<'_, '_>, name: &str, values: Option<T>) -> Result<T> {
    values.ok_or_else(|| n.invalid_node(format!("attribute {name} is missing")))
}

/// Reads an attribute list of indices, which must be non-negative and fit into int32.
fn indices(n: &Node<'_, '_>, name: &str) -> Result<Vec<usize>> {
    let values = required(n, name, n.ints_attr(name)?)?;
    let index = |value: i64| usize::try_from(value).ok().filter(|&index| index <= i32::MAX as usize);
    values
        .into_iter()
        .map(|value| index(value).ok_or_else(|| n.invalid_node(format!("attribute {name}: {value} is out of range"))))
        .collect()
}

impl Forest {
    /// Reads the trees of an operator before version 5, where a tree number and a node number identify a node. Also
    /// returns the index of each node by these two numbers.
    fn read(n: &Node<'_, '_>) -> Result<(Forest, BTreeMap<[i64; 2], usize>)> {
        let ints = |name: &str| required(n, name, n.ints_attr(name)?);
        let (trees, numbers_in_tree) = (ints("nodes_treeids")?, ints("nodes_nodeids")?);
        let count = trees.len();
        let numbers_in_tree = entries(n, "nodes_nodeids", Some(numbers_in_tree), count, 0)?;
        let ids: Vec<[i64; 2]> = trees.iter().zip(&numbers_in_tree).map(|(&tree, &node)| [tree, node]).collect();
        let index: BTreeMap<[i64; 2], usize> = ids.iter().copied().zip(0..).collect();
        if index.len() != count {
            return Err(n.invalid_node("two nodes have the same nodes_treeids and nodes_nodeids"));
        }
        let modes = required(n, "nodes_modes", n.strings_attr("nodes_modes")?)?;
        let modes = entries(n, "nodes_modes", Some(modes), count, String::new())?;
        let features = entries(n, "nodes_featureids", n.ints_attr("nodes_featureids")?, count, 0)?;
        let values = entries(n, "nodes_values", numbers(n, "nodes_values")?, count, 0.0)?;
        let children = [ints("nodes_truenodeids")?, ints("nodes_falsenodeids")?];
        let children = [
            entries(n, "nodes_truenodeids", Some(children[0].clone()), count, 0)?,
            entries(n, "nodes_falsenodeids", Some(children[1].clone()), count, 0)?,
        ];
        let tracks = n.ints_attr("nodes_missing_value_tracks_true")?;
        let tracks = entries(n, "nodes_missing_value_tracks_true", tracks, count, 0)?;
        let mut nodes = Vec::with_capacity(count);
        let mut is_child = vec![false; count];
        for i in 0..count {
            let mode = Mode::parse(&modes[i]).ok_or_else(|| {
                n.invalid_node(format!("attribute nodes_modes: expected a known mode, found \"{}\"", modes[i]))
            })?;
            if mode == Mode::Leaf {
                nodes.push(TreeNode::leaf(i));
                continue;
            }
            let mut child_indices = [0; 2];
            for (child, numbers) in child_indices.iter_mut().zip(&children) {
                let id = [trees[i], numbers[i]];
                *child = *index
                    .get(&id)
                    .ok_or_else(|| n.invalid_node(format!("node {} of tree {} is missing", id[1], id[0])))?;
                is_child[*child] = true;
            }
            nodes.push(TreeNode {
                mode,
                feature: feature(n, features[i])?,
                value: values[i],
                children: child_indices,
                missing_is_true: tracks[i] != 0,
            });
        }
        let mut seen = BTreeSet::new();
        let roots = (0..count).filter(|&i| !is_child[i] && seen.insert(trees[i])).collect();
        Ok((Forest { nodes, roots }, index))
    }
}

fn feature(n: &Node<'_, '_>, feature: i64) -> Result<usize> {
    let in_range = usize::try_from(feature).ok().filter(|&feature| feature <= i32::MAX as usize);
    in_range.ok_or_else(|| n.invalid_node(format!("nodes_featureids: {feature} is out of range")))
}

/// Returns the data as a matrix of floats, after checking that it has every feature that a node reads.
fn data(n: &mut Node<'_, '_>, forest: &Forest) -> Result<ExprId> {
    let data = rows_of(n)?;
    let last_feature = forest.nodes.iter().map(|node| node.feature).max().unwrap_or(0);
    let columns = n.ty(data)?.dims[1].fixed();
    match columns {
        Some(columns) if columns <= last_feature => {
            Err(n.invalid_node(format!("expected data with more than {last_feature} features, found {columns}")))
        }
        _ => Ok(data),
    }
}

/// Reads the weights of leaves from the attributes with the prefix `class` or `target`.
fn weights(n: &Node<'_, '_>, prefix: &str, index: &BTreeMap<[i64; 2], usize>) -> Result<Weights> {
    let attr = |name: &str| format!("{prefix}_{name}");
    let targets = indices(n, &attr("ids"))?;
    let ints = |name: String| entries(n, &name, n.ints_attr(&name)?, targets.len(), 0);
    let (trees, nodes) = (ints(attr("treeids"))?, ints(attr("nodeids"))?);
    let values = entries(n, &attr("weights"), numbers(n, &attr("weights"))?, targets.len(), 0.0)?;
    let mut weights = Vec::with_capacity(targets.len());
    for (i, &target) in targets.iter().enumerate() {
        let node = index
            .get(&[trees[i], nodes[i]])
            .ok_or_else(|| n.invalid_node(format!("node {} of tree {} is missing", nodes[i], trees[i])))?;
        weights.push((*node, target, values[i]));
    }
    Ok(weights)
}

/// Adds the base values: one value for all targets, or one value per target.
fn add_base(n: &mut Node<'_, '_>, scores: ExprId, targets: usize) -> Result<ExprId> {
    let Some(base) = numbers(n, "base_values")?.filter(|base| !base.is_empty()) else { return Ok(scores) };
    if base.len() != targets && base.len() != 1 {
        return Err(n.invalid_node(format!("attribute base_values: expected {targets} values, found {}", base.len())));
    }
    let base = n.tensor(from_f64s(n.dtype(scores)?, &[base.len()], &base));
    n.op_without_attrs("add", &[scores, base])
}

fn aggregate(n: &Node<'_, '_>) -> Result<Aggregate> {
    Ok(match n.str_attr("aggregate_function", "SUM")?.as_str() {
        "AVERAGE" => Aggregate::Average,
        "SUM" => Aggregate::Sum,
        "MIN" => Aggregate::Min,
        "MAX" => Aggregate::Max,
        other => {
            let message = format!("attribute aggregate_function: expected AVERAGE, SUM, MIN or MAX, found \"{other}\"");
            return Err(n.invalid_node(message));
        }
    })
}

/// Returns the number of targets, after checking that it covers the targets of all weights.
fn checked_targets(n: &Node<'_, '_>, targets: i64, weights: &Weights) -> Result<usize> {
    let last = weights.iter().map(|(_, target, _)| *target).max();
    match usize::try_from(targets).ok().filter(|&targets| targets > 0 && last.is_none_or(|last| last < targets)) {
        Some(targets) => Ok(targets),
        None => {
            let last = last.unwrap_or(0);
            Err(n.invalid_node(format!("attribute n_targets: expected at least {}, found {targets}", last + 1)))
        }
    }
}

fn regressor(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let (forest, index) = Forest::read(n)?;
    let weights = weights(n, "target", &index)?;
    let targets = checked_targets(n, n.int_attr("n_targets", 1)?, &weights)?;
    let (data, aggregate) = (data(n, &forest)?, aggregate(n)?);
    let scores = forest.scores(n, data, &weights, targets, aggregate)?;
    let scores = add_base(n, scores, targets)?;
    let transform = n.str_attr("post_transform", "NONE")?;
    let scores = post_transform(n, scores, &transform)?;
    single_output(n.cast(scores, DType::F32)?)
}

fn classifier(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let (forest, index) = Forest::read(n)?;
    let mut weights = weights(n, "class", &index)?;
    let labels = class_labels(n, "classlabels_int64s", "classlabels_strings")?;
    let ids: BTreeSet<usize> = weights.iter().map(|(_, class, _)| *class).collect();
    let transform = n.str_attr("post_transform", "NONE")?;
    let data = data(n, &forest)?;
    if labels.len() == 2 && transform != "PROBIT" {
        let (class, scores) = two_classes(n, &forest, data, &weights, &transform)?;
        return Ok(vec![labels_of(n, &labels, class)?, n.cast(scores, DType::F32)?]);
    }
    if labels.len() == 2 && ids.len() == 1 {
        // The scores belong to the second class. The decision threshold is 0.5 for probabilities, and 0 otherwise.
        weights.iter_mut().for_each(|(_, class, _)| *class = 0);
        let mut score = forest.scores(n, data, &weights, 1, Aggregate::Sum)?;
        let base = numbers(n, "base_values")?.unwrap_or_default();
        if let Some(&base) = base.get(if base.len() == 2 { 1 } else { 0 }) {
            score = n.with_scalar("add", score, base)?;
        }
        let are_probabilities = base.len() != 2 && weights.iter().all(|(_, _, weight)| *weight >= 0.0);
        let threshold = if are_probabilities { 0.5 } else { 0.0 };
        let is_second = n.with_scalar("greater", score, threshold)?;
        let class = n.cast(is_second, DType::I32)?;
        let class = n.op("squeeze", &[class], attrs![axis: [1]])?;
        let negative_score = n.op_without_attrs("negative", &[score])?;
        let is_complement = transform == "PROBIT" || transform == "NONE" && are_probabilities;
        let first = if is_complement { n.with_scalar("add", negative_score, 1.0)? } else { negative_score };
        let scores = n.concatenate(&[first, score], 1)?;
        let scores = post_transform(n, scores, &transform)?;
        let scores = n.cast(scores, DType::F32)?;
        return Ok(vec![labels_of(n, &labels, class)?, scores]);
    }
    let classes = checked_targets(n, labels.len() as i64, &weights)?;
    let scores = forest.scores(n, data, &weights, classes, Aggregate::Sum)?;
    let scores = add_base(n, scores, classes)?;
    let class = n.op("argmax", &[scores], attrs![axis: [1]])?;
    let scores = post_transform(n, scores, &transform)?;
    let scores = n.cast(scores, DType::F32)?;
    Ok(vec![labels_of(n, &labels, class)?, scores])
}

/// Returns the class and the scores of a binary classifier, as ONNX Runtime computes them: where no leaf has a weight for
/// the second class, the weights of the first one are the score of the second class.
fn two_classes(
    n: &mut Node<'_, '_>,
    forest: &Forest,
    data: ExprId,
    weights: &Weights,
    transform: &str,
) -> Result<(ExprId, ExprId)> {
    let base = numbers(n, "base_values")?.unwrap_or_default();
    if base.len() > 2 {
        return Err(n.invalid_node(format!("attribute base_values: expected at most 2 values, found {}", base.len())));
    }
    let classes = checked_targets(n, 2, weights)?;
    let scores = forest.scores(n, data, weights, classes, Aggregate::Sum)?;
    let (mut first, mut second) = (n.slice(scores, 1, 0, 1)?, n.slice(scores, 1, 1, 2)?);
    let mut has_first = has_weight(n, forest, data, weights, 0)?;
    let has_second = has_weight(n, forest, data, weights, 1)?;
    match base[..] {
        [only] => first = n.with_scalar("add", first, only)?,
        [of_first, of_second] => {
            let sum = n.with_scalar("add", first, of_second)?;
            let negative_sum = n.op_without_attrs("negative", &[sum])?;
            let with_base = n.with_scalar("add", first, of_first)?;
            first = n.op_without_attrs("where", &[has_second, negative_sum, with_base])?;
            let zero = n.scalar(n.dtype(sum)?, 0.0);
            second = n.op_without_attrs("where", &[has_second, sum, zero])?;
            let has_no_second = n.op_without_attrs("logical_not", &[has_second])?;
            has_first = n.op_without_attrs("logical_or", &[has_first, has_no_second])?;
        }
        _ => {}
    }
    let are_positive = weights.iter().all(|(_, _, weight)| *weight >= 0.0);
    let is_single = weights.iter().all(|(_, class, _)| *class == weights[0].1);
    let decisive = n.op_without_attrs("where", &[has_second, second, first])?;
    let is_second = n.with_scalar("greater", decisive, if is_single && are_positive { 0.5 } else { 0.0 })?;
    let class = n.cast(is_second, DType::I32)?;
    let class = n.op("squeeze", &[class], attrs![axis: [1]])?;

    let zero = n.scalar(n.dtype(first)?, 0.0);
    let own_first = n.op_without_attrs("where", &[has_first, first, zero])?;
    let both = n.concatenate(&[own_first, second], 1)?;
    let both = post_transform(n, both, transform)?;
    if base.len() == 2 {
        return Ok((class, both));
    }
    let negative = n.op_without_attrs("negative", &[first])?;
    let is_complement = transform != "LOGISTIC" && are_positive;
    let other = if is_complement { n.with_scalar("add", negative, 1.0)? } else { negative };
    let pair = n.concatenate(&[other, first], 1)?;
    let pair = if transform == "LOGISTIC" { post_transform(n, pair, transform)? } else { pair };
    Ok((class, n.op_without_attrs("where", &[has_second, both, pair])?))
}

/// Returns whether each row reaches a leaf with a weight for the class, a column; a single element if all rows do, or none.
fn has_weight(n: &mut Node<'_, '_>, forest: &Forest, data: ExprId, weights: &Weights, class: usize) -> Result<ExprId> {
    let nodes: BTreeSet<usize> = weights.iter().filter(|(_, own, _)| *own == class).map(|(node, ..)| *node).collect();
    let is_leaf = |(_, node): &(usize, &TreeNode)| node.mode == Mode::Leaf;
    let has_all = forest.nodes.iter().enumerate().filter(is_leaf).all(|(i, _)| nodes.contains(&i));
    if has_all || nodes.is_empty() {
        return Ok(n.tensor(Tensor::from_bools(&[1, 1], &[has_all])));
    }
    let ones: Weights = nodes.into_iter().map(|node| (node, 0, 1.0)).collect();
    let count = forest.scores(n, data, &ones, 1, Aggregate::Sum)?;
    n.with_scalar("greater", count, 0.0)
}

/// Reads a tensor attribute as a list of numbers.
fn tensor_numbers(n: &Node<'_, '_>, name: &str) -> Result<Option<Vec<f64>>> {
    Ok(n.tensor_attr(name)?.map(|tensor: Tensor| tensor.view().to_f64s()))
}

/// Converts the operator of version 5, which has separate lists for inner nodes and leaves.
fn tree_ensemble(n: &mut Node<'_, '_>) -> Result<Outputs> {
    const MEMBER: f64 = 6.0;
    let modes = required(n, "nodes_modes", tensor_numbers(n, "nodes_modes")?)?;
    let count = modes.len();
    let features = entries(n, "nodes_featureids", n.ints_attr("nodes_featureids")?, count, 0)?;
    let splits = entries(n, "nodes_splits", tensor_numbers(n, "nodes_splits")?, count, 0.0)?;
    let tracks = n.ints_attr("nodes_missing_value_tracks_true")?;
    let tracks = entries(n, "nodes_missing_value_tracks_true", tracks, count, 0)?;
    let leaf_targets = indices(n, "leaf_targetids")?;
    let leaf_weights = tensor_numbers(n, "leaf_weights")?;
    let leaf_weights = entries(n, "leaf_weights", leaf_weights, leaf_targets.len(), 0.0)?;
    let mut children = Vec::with_capacity(2);
    for name in ["true", "false"] {
        let numbers = indices(n, &format!("nodes_{name}nodeids"))?;
        let is_leaf = n.ints_attr(&format!("nodes_{name}leafs"))?;
        let is_leaf = entries(n, &format!("nodes_{name}leafs"), is_leaf, count, 0)?;
        let numbers = entries(n, &format!("nodes_{name}nodeids"), Some(numbers), count, 0)?;
        let child = |i: usize| {
            let (limit, offset) = if is_leaf[i] != 0 { (leaf_targets.len(), count) } else { (count, 0) };
            (numbers[i] < limit).then_some(numbers[i] + offset)
        };
        let indices: Option<Vec<usize>> = (0..count).map(child).collect();
        children.push(indices.ok_or_else(|| n.invalid_node(format!("nodes_{name}nodeids: a node is out of range")))?);
    }
    // Member sets of the nodes with mode 6, each terminated by NaN.
    let members = tensor_numbers(n, "membership_values")?.unwrap_or_default();
    let mut sets = members.split(|value| value.is_nan());
    let mut nodes: Vec<TreeNode> = Vec::with_capacity(count + leaf_targets.len());
    for i in 0..count {
        let mode = match modes[i] {
            MEMBER => Mode::Branch(trees::Mode::Equal),
            number if (0.0..MEMBER).contains(&number) && number.fract() == 0.0 => {
                Mode::Branch(trees::Mode::ALL[number as usize])
            }
            other => return Err(n.invalid_node(format!("attribute nodes_modes: expected 0 to 6, found {other}"))),
        };
        nodes.push(TreeNode {
            mode,
            feature: feature(n, features[i])?,
            value: splits[i],
            children: [children[0][i], children[1][i]],
            missing_is_true: tracks[i] != 0,
        });
    }
    nodes.extend((0..leaf_targets.len()).map(|leaf| TreeNode::leaf(count + leaf)));
    for i in (0..count).filter(|&i| modes[i] == MEMBER) {
        // A membership test becomes a chain of equality comparisons, one per member.
        let set = sets.next().unwrap_or_default();
        let node = nodes[i];
        let Some((&first, others)) = set.split_first() else {
            return Err(n.invalid_node("attribute membership_values: expected a set for each node of mode 6"));
        };
        nodes[i].value = first;
        let mut last = i;
        for &value in others {
            nodes[last].children[1] = nodes.len();
            last = nodes.len();
            nodes.push(TreeNode { value, ..node });
        }
    }
    let roots = indices(n, "tree_roots")?;
    if roots.iter().any(|&root| root >= count) {
        return Err(n.invalid_node("tree_roots: a node is out of range"));
    }
    let forest = Forest { nodes, roots };
    let weights: Weights =
        leaf_targets.iter().zip(&leaf_weights).enumerate().map(|(i, (&target, &w))| (count + i, target, w)).collect();
    let targets = checked_targets(n, n.int_attr("n_targets", 1)?, &weights)?;
    let aggregate = match n.int_attr("aggregate_function", 1)? {
        0 => Aggregate::Average,
        1 => Aggregate::Sum,
        2 => Aggregate::Min,
        3 => Aggregate::Max,
        other => return Err(n.invalid_node(format!("attribute aggregate_function: expected 0 to 3, found {other}"))),
    };
    let transform = match n.int_attr("post_transform", 0)? {
        0 => "NONE",
        1 => "SOFTMAX",
        2 => "LOGISTIC",
        3 => "SOFTMAX_ZERO",
        4 => "PROBIT",
        other => return Err(n.invalid_node(format!("attribute post_transform: expected 0 to 4, found {other}"))),
    };
    let data = data(n, &forest)?;
    let scores = forest.scores(n, data, &weights, targets, aggregate)?;
    single_output(post_transform(n, scores, transform)?)
}
