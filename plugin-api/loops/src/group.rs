//! Fusion: partitions the operators of a region into groups, each of which becomes one loop nest.
//!
//! A group has at most one anchor, a non-elementwise operator (a convolution, a reduction, ...), and the elementwise
//! operators that are applied to the anchor's result in the same loop nest. Operators are visited in topological order
//! and added to the group of one of their producers as long as the groups stay acyclic.

use crate::externals::Externals;
use crate::index_space::{is_same_location, pull_back};
use crate::operators::anchors::{self, Anchor};
use crate::operators::elementwise;
use crate::operators::views::{is_bijective, is_view_op, view_through};
use byoc_plugin_api::DType;
use byoc_plugin_support::region::{Op, OpId, RegionIr, Val};
use byoc_plugin_support::view::{View, count};
use std::collections::BTreeMap;

/// Maximum number of elementwise operators in a loop body.
const MAX_MEMBERS: usize = 48;
/// Maximum number of groups visited in the search for a cycle; beyond this number, the operator is not fused.
const MAX_SEARCH: usize = 4096;

/// Condition under which an operator joins a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fusion {
    /// Always.
    Always,
    /// If its remaining operands can be read in place.
    InPlace,
    /// If it computes on float32, as the rest of the group does, so that the group is computed in vectors; or if neither
    /// does.
    Vectors,
}

/// Operators that share a loop nest.
#[derive(Debug)]
pub struct Group {
    /// Operator that the members are fused into; `None` for a chain of elementwise operators.
    pub anchor: Option<OpId>,
    /// Index space of the loops: the result shape of the anchor, or of the first operator if there is no anchor.
    pub domain: Vec<i64>,
    /// Elementwise operators, in topological order.
    pub members: Vec<OpId>,
    /// Values computed by the group, each as a view of the domain in row-major order.
    pub index: BTreeMap<Val, View>,
}

/// Partition of a region into groups.
pub struct Grouping {
    /// Groups in topological order.
    pub groups: Vec<Group>,
    /// Group of each operator; `None` for view operators.
    pub of: Vec<Option<usize>>,
    fusion: Fusion,
}

/// Follows a chain of bijective view operators to its source. Returns the source and the chain in application order.
fn root(ir: &RegionIr<'_>, mut value: Val) -> (Val, Vec<OpId>) {
    let mut view_ops = Vec::new();
    while let Some(op) = ir.producer(value).filter(|&op| is_bijective(ir.get(op).name)) {
        view_ops.push(op);
        value = ir.get(op).inputs[0];
    }
    view_ops.reverse();
    (value, view_ops)
}

/// Follows view operators from `value` to a value that the group computes. Returns the computed value, and `value` as a
/// view over the domain of the group; `None` if the group computes no such value or the view does not exist.
pub fn index_in(ir: &RegionIr<'_>, group: &Group, value: Val) -> Option<(Val, View)> {
    let (source, view_ops) = root(ir, value);
    let mut view = group.index.get(&source)?.clone();
    for op in view_ops {
        view = view_through(ir, ir.get(op), 0, &view)?;
    }
    Some((source, view))
}

impl Grouping {
    /// Groups the operators of a region. Each operator in `externals` forms a separate group.
    pub fn new(ir: &RegionIr<'_>, fusion: Fusion, externals: &Externals) -> Grouping {
        let mut grouping = Grouping { groups: Vec::new(), of: vec![None; ir.ops.len()], fusion };
        for (op_index, op) in ir.ops.iter().enumerate() {
            let id = OpId::new(op_index);
            if is_view_op(op.name) {
                continue;
            }
            let is_elementwise = elementwise::is_elementwise(op.name) && !externals.contains(op.name);
            if is_elementwise && grouping.fuse(ir, id, externals) {
                continue;
            }
            let domain = ir.shape(op.outputs[0]).to_vec();
            let index = BTreeMap::from([(op.outputs[0], View::dense(&domain))]);
            let (anchor, members) = if is_elementwise { (None, vec![id]) } else { (Some(id), Vec::new()) };
            grouping.of[op_index] = Some(grouping.groups.len());
            grouping.groups.push(Group { anchor, domain, members, index });
        }
        grouping.sort(ir);
        grouping
    }

    /// Adds an elementwise operator to the group of one of its operands. Returns false if no group accepts it.
    fn fuse(&mut self, ir: &RegionIr<'_>, id: OpId, externals: &Externals) -> bool {
        let op = ir.get(id);
        let shape = ir.shape(op.outputs[0]);
        let mut candidates: Vec<usize> = Vec::new();
        for &input in &op.inputs {
            let (source, _) = root(ir, input);
            let group = ir.producer(source).and_then(|p| self.of[p.index()]);
            candidates.extend(group.filter(|g| !candidates.contains(g)));
        }
        // The newest group is tried first, since operands from older groups are computed before that group.
        candidates.sort_unstable_by(|a, b| b.cmp(a));
        for g in candidates {
            let group = &self.groups[g];
            if group.members.len() >= MAX_MEMBERS
                || count(shape) != count(&group.domain)
                || group.anchor.is_some_and(|a| !supports_fusion(ir, a) || externals.contains(ir.get(a).name))
            {
                continue;
            }
            let mut views = op.inputs.iter().filter_map(|&v| index_in(ir, group, v));
            let Some((_, view)) = views.next() else { continue };
            if view.shape != shape
                || !views.all(|(_, other_view)| is_same_location(&other_view, &view))
                || self.creates_cycle(ir, id, g)
            {
                continue;
            }
            // An operand that this group computes but that is not a view over the group's domain would be read before
            // it is complete.
            let is_unreachable =
                op.inputs.iter().any(|&v| self.source(ir, v) == Some(g) && index_in(ir, &self.groups[g], v).is_none());
            let joins = match self.fusion {
                Fusion::Always => true,
                Fusion::InPlace => self.reads_in_place(ir, id, g, &view),
                Fusion::Vectors => is_float(ir, op) == is_float_group(ir, &self.groups[g]),
            };
            if is_unreachable || !joins {
                continue;
            }
            self.groups[g].members.push(id);
            self.groups[g].index.insert(op.outputs[0], view);
            self.of[id.index()] = Some(g);
            return true;
        }
        false
    }

    /// Returns true if the operands that group `g` does not compute are views over its domain; `view` is the operator's
    /// result.
    fn reads_in_place(&self, ir: &RegionIr<'_>, id: OpId, g: usize, view: &View) -> bool {
        let (op, group) = (ir.get(id), &self.groups[g]);
        (0..op.inputs.len()).filter(|&i| index_in(ir, group, op.inputs[i]).is_none()).all(|i| {
            let operand = elementwise::operand_view(ir, op, i, &View::dense(ir.shape(op.inputs[i])));
            operand.and_then(|operand| pull_back(view, &operand, &group.domain)).is_some()
        })
    }

    /// Returns the group that computes `value`, looking through view operators; `None` for an input or a constant.
    fn source(&self, ir: &RegionIr<'_>, mut value: Val) -> Option<usize> {
        while let Some(op) = ir.producer(value) {
            if let Some(group) = self.of[op.index()] {
                return Some(group);
            }
            value = ir.get(op).inputs[0];
        }
        None
    }

    /// Returns the groups whose results an operator reads.
    fn operands(&self, ir: &RegionIr<'_>, op: OpId) -> Vec<usize> {
        ir.get(op).inputs.iter().filter_map(|&v| self.source(ir, v)).collect()
    }

    fn group_operands(&self, ir: &RegionIr<'_>, group: usize) -> Vec<usize> {
        let group = &self.groups[group];
        group.anchor.iter().chain(&group.members).flat_map(|&op| self.operands(ir, op)).collect()
    }

    /// Returns true if `op` depends on group `g` through an intermediate group, or if the search exceeded `MAX_SEARCH`.
    fn creates_cycle(&self, ir: &RegionIr<'_>, op: OpId, g: usize) -> bool {
        let mut worklist: Vec<usize> = self.operands(ir, op).into_iter().filter(|&x| x != g).collect();
        let mut visited = vec![false; self.groups.len()];
        let mut budget = MAX_SEARCH;
        while let Some(group) = worklist.pop() {
            if std::mem::replace(&mut visited[group], true) {
                continue;
            }
            if group == g || budget == 0 {
                return true;
            }
            budget -= 1;
            worklist.extend(self.group_operands(ir, group));
        }
        false
    }

    /// Sorts the groups topologically.
    fn sort(&mut self, ir: &RegionIr<'_>) {
        let group_count = self.groups.len();
        let mut order: Vec<usize> = Vec::with_capacity(group_count);
        let mut states = vec![0u8; group_count];
        for start in 0..group_count {
            let mut stack = vec![start];
            while let Some(&group) = stack.last() {
                if states[group] == 0 {
                    states[group] = 1;
                    let mut predecessors = self.group_operands(ir, group);
                    predecessors.retain(|&b| b != group && states[b] == 0);
                    predecessors.sort_unstable_by(|a, b| b.cmp(a));
                    predecessors.dedup();
                    stack.extend(predecessors);
                } else {
                    stack.pop();
                    if states[group] == 1 {
                        states[group] = 2;
                        order.push(group);
                    }
                }
            }
        }
        let mut position = vec![0; group_count];
        for (new_index, &old_index) in order.iter().enumerate() {
            position[old_index] = new_index;
        }
        for group in self.of.iter_mut().flatten() {
            *group = position[*group];
        }
        let mut groups: Vec<Option<Group>> = std::mem::take(&mut self.groups).into_iter().map(Some).collect();
        self.groups = order.iter().filter_map(|&old_index| groups[old_index].take()).collect();
    }
}

/// Returns true for an operator that computes only on float32.
fn is_float(ir: &RegionIr<'_>, op: &Op<'_>) -> bool {
    op.inputs.iter().chain(&op.outputs).all(|&value| ir.val(value).dtype == DType::F32)
}

/// Returns true if all members of a group, and the result of its anchor, are float32.
fn is_float_group(ir: &RegionIr<'_>, group: &Group) -> bool {
    let has_float_anchor = |anchor: OpId| ir.val(ir.get(anchor).outputs[0]).dtype == DType::F32;
    group.anchor.is_none_or(has_float_anchor) && group.members.iter().all(|&op| is_float(ir, ir.get(op)))
}

/// Returns true if elementwise operators can be fused into an anchor.
fn supports_fusion(ir: &RegionIr<'_>, anchor: OpId) -> bool {
    let op = ir.get(anchor);
    anchors::program_anchor(op.name) != Some(Anchor::Concatenate) && op.outputs.len() == 1
}
