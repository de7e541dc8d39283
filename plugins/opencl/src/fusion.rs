//! Fusion: divides the operators of a region into groups, each of which becomes one kernel.
//!
//! A group has at most one anchor (a non-elementwise operator), and elementwise operators that are applied to its
//! result while it is in registers. Operators are visited in topological order and join the group of an operand, unless
//! the group would then depend on itself. A group without an anchor is a chain of elementwise operators.

use crate::expression::is_elementwise;
use crate::view_ops::{is_bijective, is_view, through};
use byoc_plugin_api::DType;
use byoc_plugin_support::region::{Op, OpId, RegionIr, Val};
use byoc_plugin_support::view::{View, count};
use std::collections::BTreeMap;

/// Maximum number of elementwise operators per kernel.
const MAX_MEMBERS: usize = 48;

/// Operators that become one kernel.
#[derive(Debug)]
pub struct Group {
    /// Operator that the members are fused into.
    pub anchor: Option<OpId>,
    /// Index space: the result shape of the anchor, or of the first member if there is no anchor.
    pub domain: Vec<i64>,
    /// Elementwise operators in topological order.
    pub members: Vec<OpId>,
    /// Values that the group computes, each as a view of the domain in row-major order.
    pub index: BTreeMap<Val, View>,
}

/// Bit set of group indices.
#[derive(Clone, Default)]
struct GroupSet(Vec<u64>);

impl GroupSet {
    fn contains(&self, group: usize) -> bool {
        self.0.get(group / 64).is_some_and(|word| word >> (group % 64) & 1 == 1)
    }

    fn insert(&mut self, group: usize) {
        if self.0.len() <= group / 64 {
            self.0.resize(group / 64 + 1, 0);
        }
        self.0[group / 64] |= 1 << (group % 64);
    }

    fn extend(&mut self, other: &GroupSet) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        self.0.iter_mut().zip(&other.0).for_each(|(word, other_word)| *word |= other_word);
    }

    fn len(&self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }
}

/// Division of a region into groups.
pub struct Grouping {
    /// Groups in topological order.
    pub groups: Vec<Group>,
    /// Group of each operator; `None` for view operators.
    pub group_of_op: Vec<Option<usize>>,
}

/// Groups under construction, with the transitive dependencies of each.
struct Builder<'p, 'a> {
    ir: &'p RegionIr<'a>,
    groups: Vec<Group>,
    group_of_op: Vec<Option<usize>>,
    dependencies: Vec<GroupSet>,
}

/// Follows bijective view operators from `value` back to a value of the group. Returns the group's value, and `value`
/// as a view of the domain; `None` if either does not exist.
pub fn index_in(ir: &RegionIr<'_>, group: &Group, value: Val) -> Option<(Val, View)> {
    let mut chain = Vec::new();
    let mut source = value;
    while let Some(op) = ir.producer(source).filter(|&op| is_bijective(ir.get(op).name)) {
        chain.push(op);
        source = ir.get(op).inputs[0];
    }
    let mut view = group.index.get(&source)?.clone();
    for op in chain.into_iter().rev() {
        view = through(ir, ir.get(op), 0, &view)?;
    }
    Some((source, view))
}

/// Tests for an operator that computes only on float32.
fn is_float(ir: &RegionIr<'_>, op: &Op<'_>) -> bool {
    let is_comparison = ["equal", "not_equal", "less", "less_equal", "greater", "greater_equal"].contains(&op.name);
    !is_comparison && op.inputs.iter().chain(&op.outputs).all(|&value| ir.val(value).dtype == DType::F32)
}

/// Tests whether all members of a group compute only on float32.
pub fn is_float_group(ir: &RegionIr<'_>, group: &Group) -> bool {
    group.members.iter().all(|&op| is_float(ir, ir.get(op)))
}

impl Builder<'_, '_> {
    /// Returns the group that computes `value`, looking through view operators; `None` for inputs and constants.
    fn group_of(&self, mut value: Val) -> Option<usize> {
        while let Some(op) = self.ir.producer(value) {
            if let Some(group) = self.group_of_op[op.index()] {
                return Some(group);
            }
            value = self.ir.get(op).inputs[0];
        }
        None
    }

    /// Returns the groups that an operator depends on, except `own_group`.
    fn dependencies(&self, op: &Op<'_>, own_group: Option<usize>) -> GroupSet {
        let mut set = GroupSet::default();
        for group in op.inputs.iter().filter_map(|&input| self.group_of(input)) {
            if Some(group) != own_group {
                set.insert(group);
                set.extend(&self.dependencies[group]);
            }
        }
        set
    }

    /// Returns an operator's result as a view of the group's domain; `None` if the operator cannot join the group.
    fn view_in_group(&self, op: &Op<'_>, group: usize, dependencies: &GroupSet) -> Option<View> {
        let (ir, member_group) = (self.ir, &self.groups[group]);
        let shape = ir.shape(op.outputs[0]);
        let can_join = member_group.members.len() < MAX_MEMBERS
            && count(shape) == count(&member_group.domain)
            && !dependencies.contains(group)
            && op.outputs.len() == 1
            && member_group.anchor.is_none_or(|anchor| can_fuse(ir.get(anchor)))
            && is_float(ir, op) == (member_group.anchor.is_some() || is_float_group(ir, member_group));
        let mut joint_view: Option<View> = None;
        for &input in op.inputs.iter().filter(|_| can_join) {
            match (index_in(ir, member_group, input), &joint_view) {
                (Some((_, view)), None) if view.shape == shape => joint_view = Some(view),
                (Some((_, view)), Some(joint)) if view.offset == joint.offset && view.same_layout(joint) => {}
                (Some(_), _) => return None,
                // The operand would read elements that this group computes at other points.
                (None, _) if self.group_of(input) == Some(group) => return None,
                (None, _) => {}
            }
        }
        joint_view
    }

    fn add(&mut self, id: OpId) {
        let op = self.ir.get(id);
        let is_elementwise_op = is_elementwise(op.name);
        let mut candidates: Vec<usize> = op.inputs.iter().filter_map(|&input| self.group_of(input)).collect();
        candidates.sort_unstable();
        candidates.dedup();
        for group in candidates.into_iter().rev().filter(|_| is_elementwise_op) {
            let dependencies = self.dependencies(op, Some(group));
            let Some(view) = self.view_in_group(op, group, &dependencies) else { continue };
            self.groups[group].members.push(id);
            self.groups[group].index.insert(op.outputs[0], view);
            self.group_of_op[id.index()] = Some(group);
            for candidate in 0..self.groups.len() {
                if candidate == group || self.dependencies[candidate].contains(group) {
                    self.dependencies[candidate].extend(&dependencies);
                }
            }
            return;
        }
        let domain = self.ir.shape(op.outputs[0]).to_vec();
        let index = BTreeMap::from([(op.outputs[0], View::dense(&domain))]);
        let dependencies = self.dependencies(op, None);
        self.group_of_op[id.index()] = Some(self.groups.len());
        self.dependencies.push(dependencies);
        let (anchor, members) = if is_elementwise_op { (None, vec![id]) } else { (Some(id), Vec::new()) };
        self.groups.push(Group { anchor, domain, members, index });
    }
}

/// Tests for an anchor whose kernel can apply elementwise operators.
fn can_fuse(anchor: &Op<'_>) -> bool {
    !matches!(anchor.name, "concatenate" | "take")
}

impl Grouping {
    /// Divides a region into groups.
    pub fn new(ir: &RegionIr<'_>) -> Grouping {
        let mut builder =
            Builder { ir, groups: Vec::new(), group_of_op: vec![None; ir.ops.len()], dependencies: Vec::new() };
        for (op_index, op) in ir.ops.iter().enumerate() {
            if !is_view(op.name) {
                builder.add(OpId::new(op_index));
            }
        }
        let Builder { groups, mut group_of_op, dependencies, .. } = builder;
        // A group has more dependencies than any group it depends on, so this order is topological.
        let mut order: Vec<usize> = (0..groups.len()).collect();
        order.sort_by_key(|&group| (dependencies[group].len(), group));
        let mut position = vec![0; groups.len()];
        for (new_index, &old_index) in order.iter().enumerate() {
            position[old_index] = new_index;
        }
        group_of_op.iter_mut().flatten().for_each(|group| *group = position[*group]);
        let mut groups: Vec<Option<Group>> = groups.into_iter().map(Some).collect();
        Grouping { groups: order.iter().filter_map(|&old_index| groups[old_index].take()).collect(), group_of_op }
    }
}
