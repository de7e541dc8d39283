//! Fusion of operators into primitives: an anchor and the chain of elementwise operators that follows it.
//!
//! A chain is extended as long as its value has a single user. Reshapes and transposes may be part of a chain, because
//! an elementwise operator does not depend on the order of elements. An item is executed at the position of its last
//! operator, when all other operands of the chain have been computed.

use crate::ir::{Kind, RegionIr, Val};
use crate::library::ffi;
use crate::qnn::Stage;
use byoc_plugin_api::DType;

/// Operator in an anchor's chain, by index in [`RegionIr::ops`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// Reshape or transpose.
    View(usize),
    /// Elementwise function.
    Eltwise(usize),
    /// Elementwise function of the chain's value and the tensor `operand`.
    Binary { op: usize, operand: Val },
    /// Integer stage, with the second operand if the stage has one.
    Stage { op: usize, operand: Option<Val> },
}

impl Link {
    /// Returns the index of the operator.
    pub fn op(self) -> usize {
        match self {
            Link::View(op) | Link::Eltwise(op) | Link::Binary { op, .. } | Link::Stage { op, .. } => op,
        }
    }
}

/// Unit of execution: an anchor with its chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// First operator. If it is a view, the chain is empty.
    pub anchor: usize,
    pub chain: Vec<Link>,
}

impl Item {
    fn last_op(&self) -> usize {
        self.chain.last().map_or(self.anchor, |link| link.op())
    }
}

fn supports_chain(kind: &Kind) -> bool {
    matches!(
        kind,
        Kind::Conv { .. }
            | Kind::MatMul { .. }
            | Kind::Pool { .. }
            | Kind::Softmax { .. }
            | Kind::Eltwise(_)
            | Kind::Binary(_)
            | Kind::Reduce { .. }
            | Kind::Resample { .. }
            | Kind::Stage(_)
    )
}

/// Returns true if the anchor's chain consists of integer stages, which the library cannot fuse.
fn has_stage_chain(ir: &RegionIr, anchor: usize) -> bool {
    let op = &ir.ops[anchor];
    match op.kind {
        Kind::Stage(_) => true,
        Kind::Conv { .. } | Kind::MatMul { .. } => ir.get(op.output).dtype != DType::F32,
        _ => false,
    }
}

/// Returns true if the chain of an anchor of this kind may contain binary operators. For other kinds, oneDNN was
/// observed to combine the wrong elements, for example when a pooling of several images is followed by the addition of
/// a tensor of the same shape.
fn supports_binary_links(kind: &Kind) -> bool {
    matches!(kind, Kind::Conv { .. } | Kind::MatMul { .. } | Kind::Eltwise(_) | Kind::Binary(_))
}

/// Returns a region's items in execution order.
pub fn items(ir: &RegionIr) -> Vec<Item> {
    let users = ir.users();
    let mut is_output = vec![false; ir.values.len()];
    ir.outputs.iter().for_each(|output| is_output[output.index()] = true);
    let mut is_absorbed = vec![false; ir.ops.len()];
    let mut items = Vec::new();
    for anchor in 0..ir.ops.len() {
        if is_absorbed[anchor] {
            continue;
        }
        let mut chain = Vec::new();
        if supports_chain(&ir.ops[anchor].kind) {
            follow(ir, &users, &is_output, &is_absorbed, anchor, &mut chain);
            chain.iter().for_each(|link: &Link| is_absorbed[link.op()] = true);
        }
        items.push(Item { anchor, chain });
    }
    items.sort_by_key(Item::last_op);
    items
}

fn follow(
    ir: &RegionIr,
    users: &[Vec<usize>],
    is_output: &[bool],
    is_absorbed: &[bool],
    anchor: usize,
    chain: &mut Vec<Link>,
) {
    let mut value = ir.ops[anchor].output;
    let stages = has_stage_chain(ir, anchor);
    let mut kept_links = 0;
    while let [user] = users[value.index()][..] {
        if is_output[value.index()] || is_absorbed[user] {
            break;
        }
        let op = &ir.ops[user];
        match &op.kind {
            // Only an integer sum or product may have the chain's value as its second operand.
            Kind::Stage(_) if ir.shape(op.output) != ir.shape(value) => break,
            Kind::Stage(stage)
                if stages && (op.inputs[0] == value || matches!(stage, Stage::Sum { .. } | Stage::Product { .. })) =>
            {
                let operand = op.inputs.iter().copied().find(|&input| input != value);
                chain.push(Link::Stage { op: user, operand });
            }
            Kind::Eltwise(_) | Kind::Binary(_) if stages => break,
            Kind::Eltwise(_) => chain.push(Link::Eltwise(user)),
            Kind::Binary(alg) if supports_binary_links(&ir.ops[anchor].kind) => {
                let is_first = op.inputs[0] == value;
                let operand = op.inputs[usize::from(is_first)];
                let is_commutative = !matches!(*alg, ffi::BINARY_SUB | ffi::BINARY_DIV);
                if ir.shape(op.output) != ir.shape(value) || !(is_first || is_commutative) {
                    break;
                }
                chain.push(Link::Binary { op: user, operand });
            }
            Kind::Reshape | Kind::Transpose(_) => {
                chain.push(Link::View(user));
                value = op.output;
                continue;
            }
            _ => break,
        }
        kept_links = chain.len();
        value = op.output;
    }
    chain.truncate(kept_links);
}
