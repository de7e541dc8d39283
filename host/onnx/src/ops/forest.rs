//! Evaluation of decision trees: by one operator, or by table lookups, which backends can take. Then a matrix holds the index
//! of the current node for each row of the data and each tree. Every step advances all indices by one level; a leaf is its
//! own child.

use super::super::tensor::from_f64s;
use super::ml::table;
use super::{Node, Result, attrs};
use byoc_ir::interface::HostOperators;
use byoc_ir::ir::ExprId;
use byoc_ir::op::trees::{self, NAN_IS_TRUE};
use byoc_ir::tensor::Tensor;
use std::collections::BTreeSet;

/// Kind of a node: a leaf, or a comparison of a feature with the value of the node. The first child is selected if the
/// comparison holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Mode {
    Branch(trees::Mode),
    Leaf,
}

impl Mode {
    pub(super) fn parse(name: &str) -> Option<Mode> {
        Some(Mode::Branch(match name {
            "BRANCH_LEQ" => trees::Mode::LessEqual,
            "BRANCH_LT" => trees::Mode::Less,
            "BRANCH_GTE" => trees::Mode::GreaterEqual,
            "BRANCH_GT" => trees::Mode::Greater,
            "BRANCH_EQ" => trees::Mode::Equal,
            "BRANCH_NEQ" => trees::Mode::NotEqual,
            "LEAF" => return Some(Mode::Leaf),
            _ => return None,
        }))
    }

    fn operator(self) -> &'static str {
        match self {
            Mode::Branch(trees::Mode::LessEqual) => "less_equal",
            Mode::Branch(trees::Mode::Less) => "less",
            Mode::Branch(trees::Mode::GreaterEqual) => "greater_equal",
            Mode::Branch(trees::Mode::Greater) => "greater",
            Mode::Branch(trees::Mode::Equal) | Mode::Leaf => "equal",
            Mode::Branch(trees::Mode::NotEqual) => "not_equal",
        }
    }
}

/// Node of a tree. A leaf is its own child.
#[derive(Clone, Copy)]
pub(super) struct TreeNode {
    pub mode: Mode,
    pub feature: usize,
    pub value: f64,
    /// Children: the first is selected if the comparison holds, the second if it does not.
    pub children: [usize; 2],
    /// True if a missing value (NaN) selects the first child.
    pub missing_is_true: bool,
}

impl TreeNode {
    pub(super) fn leaf(index: usize) -> TreeNode {
        TreeNode { mode: Mode::Leaf, feature: 0, value: 0.0, children: [index; 2], missing_is_true: false }
    }
}

/// Nodes of all trees.
pub(super) struct Forest {
    pub nodes: Vec<TreeNode>,
    pub roots: Vec<usize>,
}

/// Rule that combines the weights of the leaves that a row reaches into its scores.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Aggregate {
    Average,
    Sum,
    Min,
    Max,
}

/// Leaf weights, as (node, target, weight).
pub(super) type Weights = Vec<(usize, usize, f64)>;

/// Nodes as the operator takes them: branches (feature, mode, first child, second child) with their values, and leaves,
/// which are numbered separately. A child or root c < 0 is the leaf -1 - c.
struct Tables {
    branches: Vec<i32>,
    values: Vec<f64>,
    roots: Vec<i32>,
    /// Number of each node among the branches or, for c < 0, among the leaves.
    numbers: Vec<i32>,
    leaf_count: usize,
}

impl Forest {
    fn tables(&self, n: &Node<'_, '_>) -> Result<Tables> {
        if i32::try_from(self.nodes.len()).is_err() {
            return Err(n.invalid_node(format!("expected fewer than 2^31 nodes, found {}", self.nodes.len())));
        }
        let (mut branch_count, mut leaf_count) = (0, 0);
        let number = |node: &TreeNode| {
            let (count, is_leaf) =
                if node.mode == Mode::Leaf { (&mut leaf_count, true) } else { (&mut branch_count, false) };
            *count += 1;
            if is_leaf { -*count } else { *count - 1 }
        };
        let numbers: Vec<i32> = self.nodes.iter().map(number).collect();
        let mut tables = Tables {
            branches: Vec::with_capacity(4 * branch_count as usize),
            values: Vec::with_capacity(branch_count as usize),
            roots: self.roots.iter().map(|&root| numbers[root]).collect(),
            numbers,
            leaf_count: leaf_count as usize,
        };
        for node in &self.nodes {
            let Mode::Branch(mode) = node.mode else { continue };
            let mode = mode as i32 + if node.missing_is_true { NAN_IS_TRUE } else { 0 };
            let [first, second] = node.children.map(|child| tables.numbers[child]);
            tables.branches.extend([node.feature as i32, mode, first, second]);
            tables.values.push(node.value);
        }
        Ok(tables)
    }

    /// Returns the maximum number of edges from a root to a leaf.
    fn depth(&self, n: &mut Node<'_, '_>) -> Result<usize> {
        let mut level: BTreeSet<usize> = self.roots.iter().copied().collect();
        let mut depth = 0;
        loop {
            level = level
                .into_iter()
                .map(|node| &self.nodes[node])
                .filter(|node| node.mode != Mode::Leaf)
                .flat_map(|node| node.children)
                .collect();
            if level.is_empty() {
                return Ok(depth);
            }
            depth += 1;
            if depth > self.nodes.len() {
                return Err(n.invalid_node("expected trees, found a cycle of nodes"));
            }
            n.reserve_steps(1)?;
        }
    }

    /// Returns a constant with one value per node.
    fn per_node<T: byoc_ir::tensor::Element>(&self, n: &mut Node<'_, '_>, f: impl Fn(&TreeNode) -> T) -> ExprId {
        let values: Vec<T> = self.nodes.iter().map(f).collect();
        n.vector(&values)
    }

    /// Returns the indices of the leaves that each row reaches, with the shape (rows, trees).
    fn leaves(&self, n: &mut Node<'_, '_>, data: ExprId) -> Result<ExprId> {
        let depth = self.depth(n)?;
        let dtype = n.dtype(data)?;
        let values: Vec<f64> = self.nodes.iter().map(|node| node.value).collect();
        let values = n.tensor(from_f64s(dtype, &[values.len()], &values));
        let features = self.per_node(n, |node| node.feature as i32);
        let children = [0, 1].map(|child| self.per_node(n, |node| node.children[child] as i32));
        let modes: BTreeSet<Mode> =
            self.nodes.iter().map(|node| node.mode).filter(|&mode| mode != Mode::Leaf).collect();
        let flags = |n: &mut Node<'_, '_>, f: &dyn Fn(&TreeNode) -> bool| {
            let values: Vec<bool> = self.nodes.iter().map(f).collect();
            n.bools(&values)
        };
        let modes: Vec<(Mode, Option<ExprId>)> = match &modes.into_iter().collect::<Vec<_>>()[..] {
            [mode] => vec![(*mode, None)],
            modes => modes.iter().map(|&mode| (mode, Some(flags(n, &|node| node.mode == mode)))).collect(),
        };
        let tracks_missing = self.nodes.iter().any(|node| node.missing_is_true);
        let missing = tracks_missing.then(|| flags(n, &|node| node.missing_is_true));
        let roots: Vec<i32> = self.roots.iter().map(|&root| root as i32).collect();
        let roots = n.vector(&roots);
        let mut index = n.op("expand_dims", &[roots], attrs![axis: 0])?;
        // Initially, `index` is one row, the roots. The first step broadcasts it to one row per row of the data.
        for level in 0..depth.max(1) {
            let look_up = |n: &mut Node<'_, '_>, table| n.op("take", &[table, index], attrs![axis: 0, mode: "fast"]);
            let node_features = look_up(n, features)?;
            let row_values = if level == 0 {
                let columns = n.op("reshape", &[node_features], attrs![newshape: [-1i64]])?;
                n.op("take", &[data, columns], attrs![axis: 1])?
            } else {
                n.op("gather", &[data, node_features], attrs![axis: 1])?
            };
            let node_values = look_up(n, values)?;
            let mut goes_first: Option<ExprId> = None;
            let mut join = |n: &mut Node<'_, '_>, holds: ExprId| -> Result<()> {
                goes_first = Some(match goes_first {
                    None => holds,
                    Some(before) => n.op_without_attrs("logical_or", &[before, holds])?,
                });
                Ok(())
            };
            for &(mode, is_mode) in &modes {
                let mut holds = n.op_without_attrs(mode.operator(), &[row_values, node_values])?;
                if let Some(is_mode) = is_mode {
                    let is_mode = look_up(n, is_mode)?;
                    holds = n.op_without_attrs("logical_and", &[holds, is_mode])?;
                }
                join(n, holds)?;
            }
            if let Some(missing) = missing {
                let (is_nan, tracks) = (n.op_without_attrs("isnan", &[row_values])?, look_up(n, missing)?);
                let holds = n.op_without_attrs("logical_and", &[is_nan, tracks])?;
                join(n, holds)?;
            }
            let goes_first = match goes_first {
                Some(goes_first) => goes_first,
                // Every tree consists of a single leaf.
                None => n.op_without_attrs("equal", &[row_values, node_values])?,
            };
            let [first, second] = [look_up(n, children[0])?, look_up(n, children[1])?];
            index = n.op_without_attrs("where", &[goes_first, first, second])?;
        }
        Ok(index)
    }

    /// Returns the scores of each row, with the shape (rows, `targets`).
    pub(super) fn scores(
        &self,
        n: &mut Node<'_, '_>,
        data: ExprId,
        weights: &Weights,
        targets: usize,
        aggregate: Aggregate,
    ) -> Result<ExprId> {
        if self.roots.is_empty() {
            return Err(n.invalid_node("expected at least one tree, found none"));
        }
        let dtype = n.dtype(data)?;
        // A leaf without a weight for a target does not contribute to the minimum or maximum of the target.
        let absent = match aggregate {
            Aggregate::Average | Aggregate::Sum => 0.0,
            Aggregate::Min => f64::INFINITY,
            Aggregate::Max => f64::NEG_INFINITY,
        };
        let reduction = match aggregate {
            Aggregate::Average | Aggregate::Sum => "sum",
            Aggregate::Min => "min",
            Aggregate::Max => "max",
        };
        let scores = match n.host_operators() {
            HostOperators::None => {
                let table = leaf_table(weights, self.nodes.len(), targets, absent, Some)?;
                let table = n.tensor(from_f64s(dtype, &[self.nodes.len(), targets], &table));
                let leaves = self.leaves(n, data)?;
                let leaf_weights = n.op("take", &[table, leaves], attrs![axis: 0, mode: "fast"])?;
                n.op(reduction, &[leaf_weights], attrs![axis: [1]])?
            }
            HostOperators::Long | HostOperators::All => {
                self.depth(n)?;
                let Tables { branches, values, roots, numbers, leaf_count } = self.tables(n)?;
                // Weights of inner nodes have no effect.
                let leaf = |node: usize| (numbers[node] < 0).then(|| (-1 - numbers[node]) as usize);
                let table = leaf_table(weights, leaf_count, targets, absent, leaf)?;
                let nodes = n.tensor(Tensor::from_slice(&[values.len(), 4], &branches));
                let values = n.tensor(from_f64s(dtype, &[values.len()], &values));
                let roots = n.vector(&roots);
                let table = n.tensor(from_f64s(dtype, &[leaf_count, targets], &table));
                n.op("ml.tree_ensemble", &[data, nodes, values, roots, table], attrs![aggregate: reduction])?
            }
        };
        match aggregate {
            Aggregate::Sum => Ok(scores),
            Aggregate::Average => n.with_scalar("divide", scores, self.roots.len() as f64),
            Aggregate::Min | Aggregate::Max => {
                let is_absent = n.with_scalar("equal", scores, absent)?;
                let zero = n.scalar(dtype, 0.0);
                n.op_without_attrs("where", &[is_absent, zero, scores])
            }
        }
    }
}

/// Returns the weights of `rows` leaves for each target; `row` returns the row of a node.
fn leaf_table(
    weights: &Weights,
    rows: usize,
    targets: usize,
    absent: f64,
    row: impl Fn(usize) -> Option<usize>,
) -> Result<Vec<f64>> {
    let mut table = table(rows, targets, absent)?;
    for &(node, target, weight) in weights {
        let Some(row) = row(node) else { continue };
        let entry = &mut table[row * targets + target];
        *entry = if *entry == absent { weight } else { *entry + weight };
    }
    Ok(table)
}
