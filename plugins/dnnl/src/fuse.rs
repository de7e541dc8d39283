//! Which operators become one primitive: an anchor and the chain of elementwise operators behind it.
//!
//! The chain follows a value as long as one operator alone uses it. Reshapes and transposes on the way are looked through,
//! as an elementwise operator does not care in which order it goes over the elements. The whole runs where its last operator
//! stands: whatever the chain takes from elsewhere has been computed by then.

use crate::library::ffi;
use crate::program::{Kind, Program, Val};
use crate::qnn::Stage;
use byoc_plugin_api::DType;

/// An operator in the chain behind an anchor, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// A reshape or a transpose.
    View(usize),
    /// A function of each element.
    Eltwise(usize),
    /// A function of the chain's value and another tensor.
    Binary {
        /// The operator.
        op: usize,
        /// The other tensor.
        other: Val,
    },
    /// A function of each integer, and of that of another tensor where it takes one.
    Stage {
        /// The operator.
        op: usize,
        /// The other tensor.
        other: Option<Val>,
    },
}

impl Link {
    /// The operator's number.
    pub fn op(self) -> usize {
        match self {
            Link::View(op) | Link::Eltwise(op) | Link::Binary { op, .. } | Link::Stage { op, .. } => op,
        }
    }
}

/// What is computed at one place of the program's order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// The operator that it begins with; a view has no chain.
    pub anchor: usize,
    /// What follows.
    pub chain: Vec<Link>,
}

impl Item {
    fn last(&self) -> usize {
        self.chain.last().map_or(self.anchor, |link| link.op())
    }
}

fn takes_chain(kind: &Kind) -> bool {
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

/// Returns true if the chain is one of integers, which the library has no part in.
fn takes_stages(program: &Program, anchor: usize) -> bool {
    let op = &program.ops[anchor];
    match op.kind {
        Kind::Stage(_) => true,
        Kind::Conv { .. } | Kind::MatMul { .. } => program.get(op.output).dtype != DType::F32,
        _ => false,
    }
}

/// Returns true if another tensor may come into the chain. Where it may not, the library was seen to combine the wrong
/// elements: a pool with more than one image, followed by the sum with a tensor of its own size.
fn takes_tensors(kind: &Kind) -> bool {
    matches!(kind, Kind::Conv { .. } | Kind::MatMul { .. } | Kind::Eltwise(_) | Kind::Binary(_))
}

/// The items of a program, in an order in which they can be computed.
pub fn items(program: &Program) -> Vec<Item> {
    let users = program.users();
    let mut is_output = vec![false; program.values.len()];
    program.outputs.iter().for_each(|output| is_output[output.index()] = true);
    let mut absorbed = vec![false; program.ops.len()];
    let mut items = Vec::new();
    for anchor in 0..program.ops.len() {
        if absorbed[anchor] {
            continue;
        }
        let mut chain = Vec::new();
        if takes_chain(&program.ops[anchor].kind) {
            follow(program, &users, &is_output, &absorbed, anchor, &mut chain);
            chain.iter().for_each(|link: &Link| absorbed[link.op()] = true);
        }
        items.push(Item { anchor, chain });
    }
    items.sort_by_key(Item::last);
    items
}

fn follow(
    program: &Program,
    users: &[Vec<usize>],
    is_output: &[bool],
    absorbed: &[bool],
    anchor: usize,
    chain: &mut Vec<Link>,
) {
    let mut value = program.ops[anchor].output;
    let stages = takes_stages(program, anchor);
    let mut kept = 0;
    while let [user] = users[value.index()][..] {
        if is_output[value.index()] || absorbed[user] {
            break;
        }
        let op = &program.ops[user];
        match &op.kind {
            // Of two operands only those of a sum of integers may change places.
            Kind::Stage(stage) if stages && (op.inputs[0] == value || matches!(stage, Stage::Sum { .. })) => {
                let other = op.inputs.iter().copied().find(|&input| input != value);
                chain.push(Link::Stage { op: user, other });
            }
            Kind::Eltwise(_) | Kind::Binary(_) if stages => break,
            Kind::Eltwise(_) => chain.push(Link::Eltwise(user)),
            Kind::Binary(alg) if takes_tensors(&program.ops[anchor].kind) => {
                let first = op.inputs[0] == value;
                let other = op.inputs[usize::from(first)];
                let swaps = !matches!(*alg, ffi::BINARY_SUB | ffi::BINARY_DIV);
                if program.shape(op.output) != program.shape(value) || !(first || swaps) {
                    break;
                }
                chain.push(Link::Binary { op: user, other });
            }
            Kind::Reshape | Kind::Transpose(_) => {
                chain.push(Link::View(user));
                value = op.output;
                continue;
            }
            _ => break,
        }
        kept = chain.len();
        value = op.output;
    }
    chain.truncate(kept);
}
