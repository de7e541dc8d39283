//! Representation of patterns as an arena of nodes, and properties computed from the nodes.

use byoc_ir::ir::{Attrs, Dim, Id, IndexVec, Name, OpId, Type};
use byoc_ir::op;
use byoc_ir::tensor::{DType, Tensor};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Maximum nesting depth of a pattern; bounds the recursion of the parser. The alternatives of one choice count as one
/// level.
pub const MAX_DEPTH: usize = 200;

/// Id of a node of a [`Pattern`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PatternId(u32);

impl Id for PatternId {
    fn new(index: usize) -> PatternId {
        PatternId(u32::try_from(index).expect("a pattern has fewer than 2^32 nodes"))
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
    /// A variable; `None` matches any name.
    Var(Option<Name>),
    /// A constant.
    Constant,
    /// A constant equal to the tensor.
    Literal(Arc<Tensor>),
    /// An operator as the callee of a call.
    Op(OpId),
    /// A call.
    Call {
        /// Pattern of the callee.
        callee: PatternId,
        /// Patterns of the arguments; `None` matches any arguments.
        args: Option<Box<[PatternId]>>,
    },
    /// A tuple; `None` matches any fields.
    Tuple(Option<Box<[PatternId]>>),
    /// A field of a tuple; `None` matches any index.
    Project {
        /// Pattern of the tuple.
        tuple: PatternId,
        /// Index of the field.
        index: Option<u32>,
    },
    /// An `if`.
    If {
        /// Pattern of the condition.
        cond: PatternId,
        /// Pattern of the branch taken if the condition is true.
        then: PatternId,
        /// Pattern of the branch taken if the condition is false.
        otherwise: PatternId,
    },
    /// A `let`.
    Let {
        /// Pattern of the bound variable.
        var: PatternId,
        /// Pattern of the bound value.
        value: PatternId,
        /// Pattern of the body.
        body: PatternId,
    },
    /// A function literal; `None` matches any parameters.
    Function {
        /// Patterns of the parameters.
        params: Option<Box<[PatternId]>>,
        /// Pattern of the body.
        body: PatternId,
    },
    /// Ordered choice: the left pattern, otherwise the right pattern. The choice is final: a later failure does not
    /// backtrack to the right side.
    Alt(PatternId, PatternId),
    /// Subgraph with `child` at the root, such that every path from the root through its operands ends at the same
    /// `parent`, and every expression in between matches `path`. With `free`, only paths that lead to the parent count:
    /// the child post-dominates the parent, and operands off those paths are unconstrained.
    Dominates {
        /// Pattern of the expression at which all paths end.
        parent: PatternId,
        /// Pattern of every expression in between.
        path: PatternId,
        /// Pattern of the root, at which all paths begin.
        child: PatternId,
        /// True for `post_dominates`, where operands off the paths are unconstrained.
        free: bool,
    },
    /// Reference to another node. A reference to an enclosing node makes the pattern recursive.
    Redirect(PatternId),
    /// An expression of the given type.
    Typed(PatternId, Type),
    /// A tensor with the given element type.
    OfDtype(PatternId, DType),
    /// A tensor with the given dimensions.
    OfShape(PatternId, Box<[Dim]>),
    /// A call, a function or an operator with the given attributes; the only attribute of an operator is `TOpPattern`.
    WithAttrs(PatternId, Attrs),
}

/// Operators whose calls can be the root of a match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RootOps {
    /// Only calls to the listed operators.
    These(BTreeSet<OpId>),
    /// Any expression.
    Any,
}

/// Pattern: an arena of nodes, and the root, at which matching begins.
#[derive(Clone, Debug)]
pub struct Pattern {
    /// Nodes. Operands precede their users, except for the targets of [`PatternNode::Redirect`].
    pub nodes: IndexVec<PatternId, PatternNode>,
    /// Node that matches the root of the subgraph.
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
            PatternNode::Dominates { parent, path, child, .. } => vec![*parent, *path, *child],
            PatternNode::Redirect(inner)
            | PatternNode::Typed(inner, _)
            | PatternNode::OfDtype(inner, _)
            | PatternNode::OfShape(inner, _)
            | PatternNode::WithAttrs(inner, _) => vec![*inner],
        }
    }

    /// Returns true if a node refers to an enclosing node, so that a match may be as deep as the module.
    pub fn is_recursive(&self) -> bool {
        self.nodes.iter().any(|(id, node)| matches!(node, PatternNode::Redirect(to) if *to >= id))
    }

    /// Returns true if the recursion of a node is unguarded: matching the node at an expression can require matching it
    /// at the same expression again.
    pub(super) fn is_unguarded(&self, id: PatternId) -> bool {
        let mut visited = IndexVec::<PatternId, bool>::filled(false, self.nodes.len());
        let mut stack = vec![id];
        while let Some(at) = stack.pop() {
            let children = match &self.nodes[at] {
                PatternNode::Alt(left, right) => vec![*left, *right],
                PatternNode::Dominates { child: inner, .. }
                | PatternNode::Redirect(inner)
                | PatternNode::Typed(inner, _)
                | PatternNode::OfDtype(inner, _)
                | PatternNode::OfShape(inner, _)
                | PatternNode::WithAttrs(inner, _) => vec![*inner],
                _ => Vec::new(),
            };
            for child in children {
                if child == id {
                    return true;
                }
                if !std::mem::replace(&mut visited[child], true) {
                    stack.push(child);
                }
            }
        }
        false
    }

    /// Returns the nodes that the root reaches, operands before users, left to right. Parameters of a composite
    /// function are numbered in this order.
    pub fn post_order(&self) -> Vec<PatternId> {
        let mut visited = IndexVec::<PatternId, bool>::filled(false, self.nodes.len());
        let mut order = Vec::new();
        let mut stack = vec![(self.root, false)];
        while let Some((id, is_exit)) = stack.pop() {
            if is_exit {
                order.push(id);
            } else if !visited[id] {
                visited[id] = true;
                stack.push((id, true));
                stack.extend(Pattern::operands(&self.nodes[id]).into_iter().rev().map(|o| (o, false)));
            }
        }
        order
    }

    /// Returns the nesting depth of the root.
    pub fn depth(&self) -> usize {
        let mut depth = IndexVec::<PatternId, usize>::filled(1, self.nodes.len());
        for id in self.post_order() {
            depth[id] = match &self.nodes[id] {
                // A choice is left-associative, and only its right side nests.
                PatternNode::Alt(left, right) => depth[*left].max(depth[*right] + 1),
                node => Pattern::operands(node).into_iter().map(|o| depth[o]).max().unwrap_or(0) + 1,
            };
        }
        depth[self.root]
    }

    /// Returns the operators whose calls can be the root of a match, so that an index over the operators of a module
    /// yields all possible roots.
    pub fn root_ops(&self) -> RootOps {
        let mut ops = BTreeSet::new();
        let mut visited = IndexVec::<PatternId, bool>::filled(false, self.nodes.len());
        let mut stack = vec![self.root];
        while let Some(id) = stack.pop() {
            if std::mem::replace(&mut visited[id], true) {
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
                    PatternNode::Op(op_id) => {
                        ops.insert(op_id);
                        // The matcher also tries the other form: `(a * b) / c` as `b * (a / c)`, and vice versa.
                        match op::get(op_id).name {
                            "multiply" => ops.extend(op::lookup("divide")),
                            "divide" => ops.extend(op::lookup("multiply")),
                            _ => {}
                        }
                    }
                    _ => return RootOps::Any,
                },
                _ => return RootOps::Any,
            }
        }
        RootOps::These(ops)
    }

    /// Returns the operators that every matching module contains.
    pub fn required_ops(&self) -> BTreeSet<OpId> {
        let mut required_sets: IndexVec<PatternId, BTreeSet<OpId>> =
            IndexVec::filled(BTreeSet::new(), self.nodes.len());
        for id in self.post_order() {
            required_sets[id] = match &self.nodes[id] {
                PatternNode::Op(op) => BTreeSet::from([*op]),
                PatternNode::Alt(left, right) => {
                    required_sets[*left].intersection(&required_sets[*right]).copied().collect()
                }
                node => {
                    let operands = Pattern::operands(node);
                    // The operators of a graph do not include operators inside functions.
                    if matches!(node, PatternNode::Function { .. }) {
                        BTreeSet::new()
                    } else {
                        operands.into_iter().flat_map(|operand| required_sets[operand].iter().copied()).collect()
                    }
                }
            };
        }
        std::mem::take(&mut required_sets[self.root])
    }

    /// Returns true if the pattern can match the body of a called function, so that composites have to be presented to
    /// the matcher as functions.
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
                // Only operators have the attribute `TOpPattern`.
                PatternNode::WithAttrs(_, attrs) if attrs.get("TOpPattern").is_some() => {}
                _ => return false,
            }
        }
        true
    }

    /// Returns the operators that the pattern names, in ascending order, to explain why an operator matched no pattern.
    pub fn named_ops(&self) -> BTreeSet<OpId> {
        let ops = self.post_order().into_iter().filter_map(|id| match self.nodes[id] {
            PatternNode::Op(op) => Some(op),
            _ => None,
        });
        ops.collect()
    }
}
