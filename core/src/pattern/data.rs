//! Patterns as data.

use byoc_ir::ir::{Attrs, Dim, Id, IndexVec, Name, OpId, Type};
use byoc_ir::op;
use byoc_ir::tensor::{DType, Tensor};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Maximum nesting depth of a pattern, as its parser recurses. The alternatives of one choice count as one level.
pub const MAX_DEPTH: usize = 200;

/// Id of a node of a [`Pattern`].
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
    /// Any expression.
    Wildcard,
    /// A variable, of that name if one is given.
    Var(Option<Name>),
    /// A constant.
    Constant,
    /// A constant equal to this one.
    Literal(Arc<Tensor>),
    /// The operator itself, as a callee.
    Op(OpId),
    /// A call.
    Call {
        /// Callee.
        callee: PatternId,
        /// Arguments; `None` matches any.
        args: Option<Box<[PatternId]>>,
    },
    /// A tuple; `None` matches any fields.
    Tuple(Option<Box<[PatternId]>>),
    /// A field of a tuple; `None` matches any index.
    Project {
        /// The tuple.
        tuple: PatternId,
        /// Index of the field.
        index: Option<u32>,
    },
    /// An `if`.
    If {
        /// Condition.
        cond: PatternId,
        /// Result if the condition is true.
        then: PatternId,
        /// Result if the condition is false.
        otherwise: PatternId,
    },
    /// A `let`.
    Let {
        /// Variable.
        var: PatternId,
        /// Value of the variable.
        value: PatternId,
        /// The result.
        body: PatternId,
    },
    /// A function literal; `None` matches any parameters.
    Function {
        /// Parameters.
        params: Option<Box<[PatternId]>>,
        /// The result.
        body: PatternId,
    },
    /// The left pattern, or else the right one. The choice is final: a later failure does not backtrack to the right
    /// side.
    Alt(PatternId, PatternId),
    /// `child` at the root, where every path upwards consists of `path` and ends at the same `parent`.
    Dominates {
        /// Start of all paths.
        parent: PatternId,
        /// Pattern of every expression in between.
        path: PatternId,
        /// End of all paths, the root.
        child: PatternId,
    },
    /// Reference to another node. If that encloses it, the pattern is recursive.
    Redirect(PatternId),
    /// An expression of this type.
    Typed(PatternId, Type),
    /// A tensor with this element type.
    OfDtype(PatternId, DType),
    /// A tensor with these dimensions.
    OfShape(PatternId, Box<[Dim]>),
    /// An expression with these attributes: of a call, of a function, or of an operator (`TOpPattern`).
    WithAttrs(PatternId, Attrs),
}

/// Operators that the root of a match can be a call of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RootOps {
    /// Only calls of these operators.
    These(BTreeSet<OpId>),
    /// Any expression.
    Any,
}

/// Pattern: an arena of nodes and the root, where a match begins.
#[derive(Clone, Debug)]
pub struct Pattern {
    /// Nodes. Operands precede their users, except for the targets of [`PatternNode::Redirect`].
    pub nodes: IndexVec<PatternId, PatternNode>,
    /// Root of a match.
    pub root: PatternId,
}

impl Pattern {
    /// Returns the operands of a node, in the order in which they are visited.
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

    /// Returns true if a node refers to an enclosing one, so that a match may be as deep as the program.
    pub fn is_recursive(&self) -> bool {
        self.nodes.iter().any(|(id, node)| matches!(node, PatternNode::Redirect(to) if *to >= id))
    }

    /// Returns true if matching the node at an expression requires matching it at the same expression again.
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

    /// Returns the nodes that the root reaches, operands before users, left to right. Parameters of a composite
    /// function are numbered in this order.
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

    /// Returns the nesting depth from the root.
    pub fn depth(&self) -> usize {
        let mut depth = IndexVec::<PatternId, usize>::filled(1, self.nodes.len());
        for id in self.post_order() {
            depth[id] = match &self.nodes[id] {
                // A further alternative does not nest.
                PatternNode::Alt(left, right) => depth[*left].max(depth[*right] + 1),
                node => Pattern::operands(node).into_iter().map(|o| depth[o]).max().unwrap_or(0) + 1,
            };
        }
        depth[self.root]
    }

    /// Returns the operators that the root of a match can be a call of, so that an index over the operators of a
    /// program yields all candidate roots.
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
                        // A product of a quotient also matches as a quotient of a product, and vice versa.
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

    /// Returns the operators that every matching program contains.
    pub fn required_ops(&self) -> BTreeSet<OpId> {
        let mut required: IndexVec<PatternId, BTreeSet<OpId>> = IndexVec::filled(BTreeSet::new(), self.nodes.len());
        for id in self.post_order() {
            required[id] = match &self.nodes[id] {
                PatternNode::Op(op) => BTreeSet::from([*op]),
                PatternNode::Alt(left, right) => required[*left].intersection(&required[*right]).copied().collect(),
                node => {
                    let operands = Pattern::operands(node);
                    // The operators counted in a graph exclude those inside functions.
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

    /// Returns true if it can match the inside of a function call, so that it must see composites as functions.
    pub fn looks_into_functions(&self) -> bool {
        self.post_order().into_iter().any(|id| match &self.nodes[id] {
            PatternNode::Function { .. } => true,
            PatternNode::Call { callee, .. } => !self.calls_only_operators(*callee),
            // A wildcard path also matches composites.
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
                // Attributes that only operators have.
                PatternNode::WithAttrs(_, attrs) if attrs.get("TOpPattern").is_some() => {}
                _ => return false,
            }
        }
        true
    }

    /// Returns the operators that it names, ascending, for the message that no pattern contains an operator.
    pub fn named_ops(&self) -> BTreeSet<OpId> {
        let ops = self.post_order().into_iter().filter_map(|id| match self.nodes[id] {
            PatternNode::Op(op) => Some(op),
            _ => None,
        });
        ops.collect()
    }
}
