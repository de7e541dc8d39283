//! Patterns as data.

use crate::ir::{Attrs, Dim, Id, IndexVec, Name, OpId, Type};
use crate::op;
use crate::tensor::{DType, Tensor};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Maximum nesting of a pattern: its parser recurses. The alternatives of one choice lie side by side, however many.
pub const MAX_DEPTH: usize = 200;

/// A node of a [`Pattern`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PatternId(u32);

impl Id for PatternId {
    fn new(index: usize) -> PatternId {
        PatternId(u32::try_from(index).expect("fewer than 2^32 pattern nodes"))
    }
    fn index(self) -> usize {
        self.0 as usize
    }
}

/// Node of a pattern.
#[derive(Clone, Debug)]
pub enum PatternNode {
    /// Anything.
    Wildcard,
    /// A variable; of that name, when one is given.
    Var(Option<Name>),
    /// A constant.
    Constant,
    /// A constant equal to this one.
    Literal(Arc<Tensor>),
    /// The operator itself, where it is called.
    Op(OpId),
    /// A call.
    Call {
        /// Callee.
        callee: PatternId,
        /// The arguments; `None` takes any number of any.
        args: Option<Box<[PatternId]>>,
    },
    /// A tuple; `None` takes any fields.
    Tuple(Option<Box<[PatternId]>>),
    /// A field of a tuple; `None` takes any index.
    Project {
        /// The tuple.
        tuple: PatternId,
        /// Index of the field.
        index: Option<u32>,
    },
    /// An `if`.
    If {
        /// The condition.
        cond: PatternId,
        /// The result when it is true.
        then: PatternId,
        /// The result when it is false.
        otherwise: PatternId,
    },
    /// A `let`.
    Let {
        /// The variable.
        var: PatternId,
        /// Its value.
        value: PatternId,
        /// The result.
        body: PatternId,
    },
    /// A function literal; `None` takes any parameters.
    Function {
        /// The parameters.
        params: Option<Box<[PatternId]>>,
        /// The result.
        body: PatternId,
    },
    /// Left, or else right. It commits: what fails later does not come back for the right side.
    Alt(PatternId, PatternId),
    /// `child` at the root; every path upwards runs through `path` and ends in one and the same `parent`.
    Dominates {
        /// Start of all paths.
        parent: PatternId,
        /// Every expression in between.
        path: PatternId,
        /// The root.
        child: PatternId,
    },
    /// Whatever another pattern is; that may lie around it, which makes the pattern recursive.
    Redirect(PatternId),
    /// With this type.
    Typed(PatternId, Type),
    /// A tensor with this element type.
    OfDtype(PatternId, DType),
    /// A tensor with these dimensions.
    OfShape(PatternId, Box<[Dim]>),
    /// With these attributes: of a call, of a function, or of an operator (`TOpPattern`).
    WithAttrs(PatternId, Attrs),
}

/// The operators that an expression at the root of a match can be a call of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RootOps {
    /// Only calls of these.
    These(BTreeSet<OpId>),
    /// Any expression.
    Any,
}

/// A pattern: an arena of nodes and the one where a match begins.
#[derive(Clone, Debug)]
pub struct Pattern {
    /// The nodes. Operands come before their users, but for what a [`PatternNode::Redirect`] stands for.
    pub nodes: IndexVec<PatternId, PatternNode>,
    /// Root of a match.
    pub root: PatternId,
}

impl Pattern {
    /// The operands of a node, in the order in which they are visited.
    pub fn operands(node: &PatternNode) -> Vec<PatternId> {
        match node {
            PatternNode::Wildcard
            | PatternNode::Var(_)
            | PatternNode::Constant
            | PatternNode::Literal(_)
            | PatternNode::Op(_)
            | PatternNode::Tuple(None) => Vec::new(),
            PatternNode::Call { callee, args } => {
                std::iter::once(*callee).chain(args.iter().flat_map(|a| a.iter().copied())).collect()
            }
            PatternNode::Tuple(Some(fields)) => fields.to_vec(),
            PatternNode::Project { tuple, .. } => vec![*tuple],
            PatternNode::If { cond, then, otherwise } => vec![*cond, *then, *otherwise],
            PatternNode::Let { var, value, body } => vec![*var, *value, *body],
            PatternNode::Function { params, body } => {
                params.iter().flat_map(|p| p.iter().copied()).chain([*body]).collect()
            }
            PatternNode::Alt(left, right) => vec![*left, *right],
            PatternNode::Dominates { parent, path, child } => vec![*parent, *path, *child],
            PatternNode::Redirect(inner)
            | PatternNode::Typed(inner, _)
            | PatternNode::OfDtype(inner, _)
            | PatternNode::OfShape(inner, _)
            | PatternNode::WithAttrs(inner, _) => vec![*inner],
        }
    }

    /// Returns true if a part of it stands for a part around it: then a match may go as deep as the program.
    pub fn is_recursive(&self) -> bool {
        self.nodes.iter().any(|(id, node)| matches!(node, PatternNode::Redirect(to) if *to >= id))
    }

    /// Returns true if looking for it at an expression comes back to looking for it at the same expression.
    pub(super) fn stands_for_itself(&self, id: PatternId) -> bool {
        let mut seen = IndexVec::<PatternId, bool>::filled(false, self.nodes.len());
        let mut stack = vec![id];
        while let Some(at) = stack.pop() {
            let here = match &self.nodes[at] {
                PatternNode::Alt(left, right) => vec![*left, *right],
                PatternNode::Dominates { child: inner, .. }
                | PatternNode::Redirect(inner)
                | PatternNode::Typed(inner, _)
                | PatternNode::OfDtype(inner, _)
                | PatternNode::OfShape(inner, _)
                | PatternNode::WithAttrs(inner, _) => vec![*inner],
                _ => Vec::new(),
            };
            for next in here {
                if next == id {
                    return true;
                }
                if !std::mem::replace(&mut seen[next], true) {
                    stack.push(next);
                }
            }
        }
        false
    }

    /// The nodes that the root reaches, operands before users, left to right. Parameters of a composite function are
    /// numbered in this order.
    pub fn post_order(&self) -> Vec<PatternId> {
        let mut seen = IndexVec::<PatternId, bool>::filled(false, self.nodes.len());
        let mut order = Vec::new();
        let mut stack = vec![(self.root, false)];
        while let Some((id, leave)) = stack.pop() {
            if leave {
                order.push(id);
            } else if !seen[id] {
                seen[id] = true;
                stack.push((id, true));
                stack.extend(Pattern::operands(&self.nodes[id]).into_iter().rev().map(|o| (o, false)));
            }
        }
        order
    }

    /// The nesting depth from the root.
    pub fn depth(&self) -> usize {
        let mut depth = IndexVec::<PatternId, usize>::filled(1, self.nodes.len());
        for id in self.post_order() {
            depth[id] = match &self.nodes[id] {
                // One more alternative.
                PatternNode::Alt(left, right) => depth[*left].max(depth[*right] + 1),
                node => Pattern::operands(node).into_iter().map(|o| depth[o]).max().unwrap_or(0) + 1,
            };
        }
        depth[self.root]
    }

    /// Returns the operators that the root of a match can be a call of: an index over the operators of a program then gives all
    /// expressions worth trying.
    pub fn root_ops(&self) -> RootOps {
        let mut these = BTreeSet::new();
        let mut seen = IndexVec::<PatternId, bool>::filled(false, self.nodes.len());
        let mut stack = vec![self.root];
        while let Some(id) = stack.pop() {
            if std::mem::replace(&mut seen[id], true) {
                continue;
            }
            match &self.nodes[id] {
                PatternNode::Alt(left, right) => stack.extend([*left, *right]),
                PatternNode::Dominates { child, .. } => stack.push(*child),
                PatternNode::Redirect(inner)
                | PatternNode::Typed(inner, _)
                | PatternNode::OfDtype(inner, _)
                | PatternNode::OfShape(inner, _)
                | PatternNode::WithAttrs(inner, _) => stack.push(*inner),
                PatternNode::Call { callee, .. } => match self.nodes[*callee] {
                    PatternNode::Op(called) => {
                        these.insert(called);
                        // A product of a quotient is found as a quotient of a product, and the other way round.
                        match op::get(called).name {
                            "multiply" => these.extend(op::lookup("divide")),
                            "divide" => these.extend(op::lookup("multiply")),
                            _ => {}
                        }
                    }
                    _ => return RootOps::Any,
                },
                _ => return RootOps::Any,
            }
        }
        RootOps::These(these)
    }

    /// Operators that every program it matches in has.
    pub fn required_ops(&self) -> BTreeSet<OpId> {
        let mut required: IndexVec<PatternId, BTreeSet<OpId>> = IndexVec::filled(BTreeSet::new(), self.nodes.len());
        for id in self.post_order() {
            required[id] = match &self.nodes[id] {
                PatternNode::Op(op) => BTreeSet::from([*op]),
                PatternNode::Alt(left, right) => required[*left].intersection(&required[*right]).copied().collect(),
                node => {
                    let operands = Pattern::operands(node);
                    // What is found inside a function is not among the operators that a graph counts.
                    if matches!(node, PatternNode::Function { .. }) {
                        BTreeSet::new()
                    } else {
                        operands.into_iter().flat_map(|operand| required[operand].iter().copied()).collect()
                    }
                }
            };
        }
        std::mem::take(&mut required[self.root])
    }

    /// Returns true if it can look into a call of a function: then it must see composites as the functions that they are.
    pub fn looks_into_functions(&self) -> bool {
        self.post_order().into_iter().any(|id| match &self.nodes[id] {
            PatternNode::Function { .. } => true,
            PatternNode::Call { callee, .. } => !self.calls_only_operators(*callee),
            // A path of anything runs through composites too.
            PatternNode::Dominates { path, .. } => !self.calls_operators(*path),
            _ => false,
        })
    }

    fn calls_operators(&self, id: PatternId) -> bool {
        let mut stack = vec![id];
        while let Some(id) = stack.pop() {
            match &self.nodes[id] {
                PatternNode::Call { callee, .. } if self.calls_only_operators(*callee) => {}
                PatternNode::Alt(left, right) => stack.extend([*left, *right]),
                PatternNode::Typed(inner, _)
                | PatternNode::OfDtype(inner, _)
                | PatternNode::OfShape(inner, _)
                | PatternNode::WithAttrs(inner, _) => stack.push(*inner),
                _ => return false,
            }
        }
        true
    }

    fn calls_only_operators(&self, callee: PatternId) -> bool {
        let mut stack = vec![callee];
        while let Some(id) = stack.pop() {
            match &self.nodes[id] {
                PatternNode::Op(_) => {}
                PatternNode::Alt(left, right) => stack.extend([*left, *right]),
                // The attributes that only operators have.
                PatternNode::WithAttrs(_, attrs) if attrs.get("TOpPattern").is_some() => {}
                _ => return false,
            }
        }
        true
    }

    /// The operators that it names, ascending: for the message that no pattern has an operator.
    pub fn named_ops(&self) -> BTreeSet<OpId> {
        let ops = self.post_order().into_iter().filter_map(|id| match self.nodes[id] {
            PatternNode::Op(op) => Some(op),
            _ => None,
        });
        ops.collect()
    }
}
