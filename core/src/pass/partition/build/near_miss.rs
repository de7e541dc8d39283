//! Near misses: the entry of a pattern table that came nearest to an operator that no entry matched.
//!
//! The operator is looked for in the patterns. From each place in which a pattern names it, the subpattern is matched
//! below the operator, and then the enclosing subpatterns at its consumers, one after the other, until one of them fails.
//! The entry with the most operators matched came nearest; among equals, the one that lacks the fewest operators, and
//! then the first of the table. The search sees the module as the backend does, before any operator was assigned, and
//! its work is bounded: the operators of a large module that come last have no near miss.

use super::super::grouping::describe;
use crate::pattern::{Entry, Failure, Graph, Matcher, Pattern, PatternId, PatternNode, Trace};
use byoc_ir::diag::list;
use byoc_ir::ir::{AttrValue, Callee, Dim, Expr, ExprId, IndexVec, Module, Name, OpId};
use byoc_ir::op::{self, Params};
use byoc_ir::tensor::Tensor;
use std::cmp::Reverse;
use std::collections::HashMap;

/// Entry that came nearest to an operator, and where it stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NearMiss {
    /// Name of the entry.
    pub entry: Name,
    /// Position in the pattern: `input 1 of nn.conv2d`, `consumer of nn.bias_add`.
    pub position: String,
    /// Expected at that position.
    pub expected: String,
    /// Found at that position.
    pub found: String,
    /// Operator calls that matched, in the order of the expressions.
    pub matched: Vec<ExprId>,
    /// Expression found at the position, if there is one.
    pub at: Option<ExprId>,
}

impl NearMiss {
    /// Returns the near miss of an entry that matched, and whose match the backend refused.
    pub fn refused(entry: &Entry, backend: &str, code: impl ToString) -> NearMiss {
        NearMiss {
            entry: entry.name.clone(),
            position: "the whole pattern".to_owned(),
            expected: format!("a match that {backend} accepts"),
            found: code.to_string(),
            matched: Vec::new(),
            at: None,
        }
    }
}

/// Maximum number of visits of pattern nodes per search from an operator.
const MAX_STEPS: usize = 1 << 12;

/// Maximum number of visits of pattern nodes and of consumers per table.
const MAX_WORK: usize = 1 << 20;

/// Maximum number of attributes with which a message names a call.
const MAX_ATTRS: usize = 2;

/// Number of operators of something that a pattern cannot have there.
const UNREACHABLE: u32 = u32::MAX / 4;

/// Search in one pattern table.
pub(super) struct NearMisses<'e, 'g, 'm> {
    graph: &'g Graph<'m>,
    matcher: Matcher<'g, 'm>,
    outlines: Vec<PatternOutline<'e>>,
    /// Places in which the patterns call each operator: an index into `outlines`, and the node of the call.
    places: HashMap<OpId, Vec<(usize, PatternId)>>,
    work_left: usize,
}

/// Pattern of an entry, with facts about its nodes.
struct PatternOutline<'e> {
    entry: &'e Entry,
    parents: IndexVec<PatternId, Vec<PatternId>>,
    /// Least number of operators in each subpattern.
    within: IndexVec<PatternId, u32>,
    /// Least number of operators around each subpattern, up to the root.
    around: IndexVec<PatternId, u32>,
}

/// Partial match of an entry.
struct Attempt {
    matched: Vec<ExprId>,
    /// Number of operators that the match lacks.
    lacks: u32,
    outline: usize,
    stop: Stop,
}

/// Place at which a match stopped.
enum Stop {
    /// Alternatives that did not match below an operator.
    Below(Vec<Failure>),
    /// Subpatterns that none of the consumers of an expression matched.
    Consumer(ExprId, Vec<PatternId>),
}

impl<'e, 'g, 'm> NearMisses<'e, 'g, 'm> {
    /// Creates a search in a table. The graph is that of the module before anything was grouped.
    pub fn new(graph: &'g Graph<'m>, table: &'e [Entry]) -> NearMisses<'e, 'g, 'm> {
        let is_searched = |entry: &&Entry| !entry.pattern.is_recursive();
        let outlines: Vec<PatternOutline<'_>> = table.iter().filter(is_searched).map(PatternOutline::of).collect();
        let mut places: HashMap<OpId, Vec<(usize, PatternId)>> = HashMap::new();
        for (index, outline) in outlines.iter().enumerate() {
            for (id, node) in outline.entry.pattern.nodes.iter().filter(|(id, _)| outline.around[*id] < UNREACHABLE) {
                let PatternNode::Call { callee, .. } = node else { continue };
                for op in called_ops(&outline.entry.pattern, *callee) {
                    places.entry(op).or_default().push((index, id));
                }
            }
        }
        NearMisses { graph, matcher: Matcher::new(graph), outlines, places, work_left: MAX_WORK }
    }

    /// Returns the entry that came nearest to an operator call; `None` if no entry names the operator, or one of them
    /// matches.
    pub fn of(&mut self, id: ExprId) -> Option<NearMiss> {
        let (op, _) = self.graph.expr(id)?.as_op_call()?;
        let mut nearest: Option<Attempt> = None;
        for place in 0..self.places.get(&op).map_or(0, Vec::len) {
            let (outline, node) = self.places[&op][place];
            let key = |attempt: &Attempt| (attempt.matched.len(), Reverse(attempt.lacks));
            let Some(attempt) = self.attempt(outline, node, id) else { continue };
            if nearest.as_ref().is_none_or(|other| key(&attempt) > key(other)) {
                nearest = Some(attempt);
            }
        }
        Some(self.describe(nearest?))
    }

    /// Matches an entry from the place in which it calls the operator of `id`.
    fn attempt(&mut self, index: usize, mut node: PatternId, mut id: ExprId) -> Option<Attempt> {
        let outline = &self.outlines[index];
        loop {
            node = outline.with_conditions(node);
            let steps = MAX_STEPS.min(self.work_left);
            let (left, is_match, trace) = self.matcher.trace_at(&outline.entry.pattern, node, id, steps);
            self.work_left -= steps - left;
            let Trace { matched, failures } = trace;
            if left == 0 || !is_match {
                let lacks = outline.nearest(failures.iter().map(|failure| failure.id));
                let lacks = lacks.saturating_add(outline.around[node]);
                let is_complete = failures.is_empty() || left == 0;
                return (!is_complete).then_some(Attempt {
                    matched,
                    lacks,
                    outline: index,
                    stop: Stop::Below(failures),
                });
            }
            let parents = outline.users(node)?;
            let next = self.graph.users(id).find_map(|user| {
                self.work_left = self.work_left.saturating_sub(1);
                let expr = self.graph.expr(user)?;
                Some((user, *parents.iter().find(|&&parent| outline.begins(parent, expr))?))
            });
            match next {
                Some((user, parent)) => (node, id) = (parent, user),
                None => {
                    let lacks = outline.around[node];
                    return Some(Attempt { matched, lacks, outline: index, stop: Stop::Consumer(id, parents) });
                }
            }
        }
    }

    fn describe(&self, attempt: Attempt) -> NearMiss {
        let outline = &self.outlines[attempt.outline];
        let (position, expected, found, at) = match attempt.stop {
            Stop::Below(failures) => self.describe_failures(outline, &failures),
            Stop::Consumer(id, parents) => self.describe_consumers(outline, id, &parents),
        };
        let entry = outline.entry.name.clone();
        NearMiss { entry, position, expected, found, matched: attempt.matched, at }
    }

    /// Returns position, expected and found, and the expression found, of a match that stopped below an operator.
    fn describe_failures(
        &self,
        outline: &PatternOutline<'_>,
        failures: &[Failure],
    ) -> (String, String, String, Option<ExprId>) {
        let module = self.graph.module;
        let lacks = outline.nearest(failures.iter().map(|failure| failure.id));
        let is_near = |failure: &&Failure| outline.within(failure.id) == lacks;
        let near: Vec<&Failure> = failures.iter().filter(is_near).collect();
        let Some(first) = near.first() else { return Default::default() };
        let is_beside = |failure: &&&Failure| failure.at == first.at && failure.again == first.again;
        let mut expected: Vec<String> = Vec::new();
        for failure in near.iter().filter(is_beside) {
            let text = match failure.again {
                Some(bound) => format!("{} again", describe_callee(module, bound)),
                None => expected_text(module, &outline.entry.pattern, failure),
            };
            if !expected.contains(&text) {
                expected.push(text);
            }
        }
        let at = match first.at {
            Callee::Expr(id) => Some(id),
            Callee::Op(_) => None,
        };
        let position = match (condition_on(&outline.entry.pattern, first.id), first.argument) {
            (Some(_), _) if is_operator_call(module, at) => describe_callee(module, first.at),
            (_, Some((call, argument))) => format!("input {argument} of {}", describe(module, call)),
            (_, None) => describe_callee(module, first.at),
        };
        (position, alternatives(&expected), found_text(module, &outline.entry.pattern, first), at)
    }

    /// Returns position, expected and found, and the expression found, of a match that stopped after an expression.
    fn describe_consumers(
        &self,
        outline: &PatternOutline<'_>,
        id: ExprId,
        parents: &[PatternId],
    ) -> (String, String, String, Option<ExprId>) {
        let module = self.graph.module;
        let pattern = &outline.entry.pattern;
        let nearest = parents.iter().map(|&parent| outline.around[parent]).min().unwrap_or(0);
        let mut expected: Vec<String> = Vec::new();
        for &parent in parents.iter().filter(|&&parent| outline.around[parent] == nearest) {
            let text = node_text(pattern, parent);
            if !expected.contains(&text) {
                expected.push(text);
            }
        }
        let computes = |user: &ExprId| !matches!(module.expr(*user), Expr::Function(_) | Expr::Let { .. });
        let user = self.graph.users(id).find(computes);
        let found = user.map_or_else(|| "no consumer".to_owned(), |user| call_text(module, user));
        (format!("consumer of {}", describe(module, id)), alternatives(&expected), found, user)
    }
}

impl<'e> PatternOutline<'e> {
    fn of(entry: &'e Entry) -> PatternOutline<'e> {
        let pattern = &entry.pattern;
        let count = pattern.nodes.len();
        let mut parents: IndexVec<PatternId, Vec<PatternId>> = IndexVec::filled(Vec::new(), count);
        let mut within: IndexVec<PatternId, u32> = IndexVec::filled(0, count);
        let mut around: IndexVec<PatternId, u32> = IndexVec::filled(UNREACHABLE, count);
        for (id, node) in pattern.nodes.iter() {
            let operands = Pattern::operands(node);
            let sum = operands.iter().map(|&operand| within[operand]).fold(0, u32::saturating_add);
            within[id] = match node {
                PatternNode::Alt(left, right) => within[*left].min(within[*right]),
                PatternNode::Call { .. } => sum.saturating_add(1),
                _ => sum,
            };
            operands.into_iter().for_each(|operand| parents[operand].push(id));
        }
        around[pattern.root] = 0;
        for id in pattern.nodes.ids().rev() {
            let cost = u32::from(matches!(pattern.nodes[id], PatternNode::Call { .. }));
            for operand in Pattern::operands(&pattern.nodes[id]) {
                around[operand] = around[operand].min(around[id].saturating_add(cost));
            }
        }
        PatternOutline { entry, parents, within, around }
    }

    /// Returns the least number of operators in a subpattern; a form of a pattern that the matcher made has none of its
    /// own.
    fn within(&self, id: PatternId) -> u32 {
        self.within.get(id).copied().unwrap_or(1)
    }

    /// Returns the least number of operators in any of several subpatterns.
    fn nearest(&self, ids: impl Iterator<Item = PatternId>) -> u32 {
        ids.map(|id| self.within(id)).min().unwrap_or(0)
    }

    /// Returns the outermost node that adds a condition to a node.
    fn with_conditions(&self, mut node: PatternId) -> PatternId {
        let pattern = &self.entry.pattern;
        while let Some(&outer) = self.parents[node].iter().find(|&&parent| condition_on(pattern, parent).is_some()) {
            node = outer;
        }
        node
    }

    /// Returns the subpatterns that use a node as an operand, those nearest to the root first; `None` if the node alone
    /// can be the whole pattern, or is part of something other than calls, tuples and fields.
    fn users(&self, node: PatternId) -> Option<Vec<PatternId>> {
        let mut users: Vec<PatternId> = Vec::new();
        let mut stack = vec![node];
        while let Some(id) = stack.pop() {
            if id == self.entry.pattern.root {
                return None;
            }
            for &parent in &self.parents[id] {
                match &self.entry.pattern.nodes[parent] {
                    PatternNode::Call { .. } | PatternNode::Tuple(_) | PatternNode::Project { .. }
                        if !users.contains(&parent) =>
                    {
                        users.push(parent);
                    }
                    PatternNode::Alt(..)
                    | PatternNode::Typed(..)
                    | PatternNode::OfDtype(..)
                    | PatternNode::OfShape(..)
                    | PatternNode::WithAttrs(..) => stack.push(parent),
                    _ => {}
                }
            }
        }
        users.sort_by_key(|&user| (self.around[user], user));
        (!users.is_empty()).then_some(users)
    }

    /// Returns true if an expression is of the kind, and calls the operator, of a subpattern.
    fn begins(&self, node: PatternId, expr: &Expr) -> bool {
        match (&self.entry.pattern.nodes[node], expr) {
            (PatternNode::Call { callee, .. }, Expr::Call(_)) => {
                expr.as_op_call().is_some_and(|(op, _)| called_ops(&self.entry.pattern, *callee).contains(&op))
            }
            (PatternNode::Tuple(_), Expr::Tuple(_)) | (PatternNode::Project { .. }, Expr::Project { .. }) => true,
            _ => false,
        }
    }
}

/// Returns the operators that the callee of a pattern names.
fn called_ops(pattern: &Pattern, callee: PatternId) -> Vec<OpId> {
    let mut ops = Vec::new();
    let mut stack = vec![callee];
    while let Some(id) = stack.pop() {
        match &pattern.nodes[id] {
            PatternNode::Op(op) => ops.push(*op),
            PatternNode::Alt(left, right) => stack.extend([*right, *left]),
            PatternNode::WithAttrs(inner, _) => stack.push(*inner),
            _ => {}
        }
    }
    ops
}

/// Returns a node that adds a condition, if the failed node is one.
fn condition_on(pattern: &Pattern, id: PatternId) -> Option<&PatternNode> {
    let is_condition = |node: &&PatternNode| {
        matches!(
            node,
            PatternNode::Typed(..) | PatternNode::OfDtype(..) | PatternNode::OfShape(..) | PatternNode::WithAttrs(..)
        )
    };
    pattern.nodes.get(id).filter(is_condition)
}

fn is_operator_call(module: &Module, at: Option<ExprId>) -> bool {
    at.is_some_and(|id| module.expr(id).as_op_call().is_some())
}

/// Describes what a failed node requires.
fn expected_text(module: &Module, pattern: &Pattern, failure: &Failure) -> String {
    let Some(PatternNode::WithAttrs(_, attrs)) = pattern.nodes.get(failure.id) else {
        return node_text(pattern, failure.id);
    };
    let differing = attrs.iter().filter(|(key, value)| attr_of(module, failure.at, key).as_ref() != Some(*value));
    list(differing.map(|(key, value)| format!("{key}={value}")), ", ")
}

/// Describes what a failed node found, in the terms of what it requires.
fn found_text(module: &Module, pattern: &Pattern, failure: &Failure) -> String {
    let Callee::Expr(id) = failure.at else { return describe_callee(module, failure.at) };
    let tensor = module.ty(id).as_tensor();
    match (pattern.nodes.get(failure.id), module.expr(id)) {
        (Some(PatternNode::Typed(..)), _) => module.ty(id).to_string(),
        (Some(PatternNode::OfDtype(..)), _) if let Some(ty) = tensor => ty.dtype.name().to_owned(),
        (Some(PatternNode::OfShape(..)), _) if let Some(ty) = tensor => dims_text(&ty.dims),
        (Some(PatternNode::WithAttrs(_, attrs)), _) => {
            let found = attrs.iter().filter_map(|(key, value)| {
                let found = attr_of(module, failure.at, key);
                match found {
                    Some(found) if found == *value => None,
                    Some(found) => Some(format!("{key}={found}")),
                    None => Some(format!("no {key}")),
                }
            });
            list(found, ", ")
        }
        (Some(PatternNode::Literal(_)), Expr::Constant(tensor)) => constant_text(tensor),
        (Some(PatternNode::Tuple(Some(_))), Expr::Tuple(fields)) => format!("a tuple of {}", fields.len()),
        _ => call_text(module, id),
    }
}

/// Returns the value of an attribute of a call to an operator.
fn attr_of(module: &Module, at: Callee, key: &Name) -> Option<AttrValue> {
    let Callee::Expr(id) = at else { return None };
    let (op, call) = module.expr(id).as_op_call()?;
    let def = op::get(op);
    def.attr(key)?;
    Some(Params::new(def, &call.attrs).value(key))
}

/// Describes what a node of a pattern matches.
fn node_text(pattern: &Pattern, id: PatternId) -> String {
    let Some(node) = pattern.nodes.get(id) else { return "the other form of a quotient of products".to_owned() };
    match node {
        PatternNode::Call { callee, .. } => {
            let names: Vec<&str> = called_ops(pattern, *callee).into_iter().map(|op| op::get(op).name).collect();
            if names.is_empty() { "another call".to_owned() } else { alternatives(&names) }
        }
        PatternNode::Op(op) => op::get(*op).name.to_owned(),
        PatternNode::Wildcard => "anything".to_owned(),
        PatternNode::Var(None) => "a variable".to_owned(),
        PatternNode::Var(Some(name)) => format!("%{name}"),
        PatternNode::Constant => "a constant".to_owned(),
        PatternNode::Literal(tensor) => constant_text(tensor),
        PatternNode::Tuple(Some(fields)) => format!("a tuple of {}", fields.len()),
        PatternNode::Tuple(None) => "a tuple".to_owned(),
        PatternNode::Project { index: Some(index), .. } => format!("field {index} of a tuple"),
        PatternNode::Project { index: None, .. } => "a field of a tuple".to_owned(),
        PatternNode::If { .. } => "an if".to_owned(),
        PatternNode::Let { .. } => "a let".to_owned(),
        PatternNode::Function { .. } => "a function".to_owned(),
        PatternNode::Typed(_, ty) => ty.to_string(),
        PatternNode::OfDtype(_, dtype) => dtype.name().to_owned(),
        PatternNode::OfShape(_, dims) => dims_text(dims),
        PatternNode::WithAttrs(_, attrs) => list(attrs.iter().map(|(key, value)| format!("{key}={value}")), ", "),
        PatternNode::Dominates { .. } => "a path to its end".to_owned(),
        PatternNode::Alt(..) | PatternNode::Redirect(_) => "another alternative".to_owned(),
    }
}

/// Describes an expression, a call to an operator with the attributes that the model gives it if they are few.
fn call_text(module: &Module, id: ExprId) -> String {
    let name = describe(module, id);
    match module.expr(id).as_op_call() {
        Some((op, call)) if (1..=MAX_ATTRS).contains(&call.attrs.len()) => {
            let params = Params::new(op::get(op), &call.attrs);
            let given = params.all().filter(|(key, _)| call.attrs.get(key).is_some());
            format!("{name}({})", list(given.map(|(key, value)| format!("{key}={value}")), ", "))
        }
        _ => name,
    }
}

fn describe_callee(module: &Module, at: Callee) -> String {
    match at {
        Callee::Expr(id) => describe(module, id),
        Callee::Op(op) => op::get(op).name.to_owned(),
    }
}

fn constant_text(tensor: &Tensor) -> String {
    match tensor.view().to_f64s()[..] {
        [value] => format!("the constant {value}"),
        _ => format!("a constant of shape {:?}", tensor.shape()),
    }
}

fn dims_text(dims: &[Dim]) -> String {
    match dims {
        [dim] => format!("({dim},)"),
        dims => format!("({})", list(dims, ", ")),
    }
}

/// Lists alternatives: `a, b or c`.
fn alternatives(texts: &[impl AsRef<str>]) -> String {
    match texts {
        [] => String::new(),
        [only] => only.as_ref().to_owned(),
        [rest @ .., last] => format!("{} or {}", list(rest.iter().map(AsRef::as_ref), ", "), last.as_ref()),
    }
}
