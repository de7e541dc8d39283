//! Pattern matcher.
//!
//! Each pattern node is bound to the expression that it matched; if the node is visited again, it must match the same
//! expression. When a subpattern fails, its bindings are undone. A choice commits to the left side if that matches,
//! without backtracking. Calls to `add` and `multiply` match with their arguments in either order, and the patterns
//! `(a * b) / c` and `b * (a / c)` each match expressions of both forms.
//!
//! A match of a recursive pattern can be as deep as the module, so the matcher keeps an explicit stack: a [`Frame`] for
//! each pattern node that waits for the result of one of its subpatterns.

use super::data::{Pattern, PatternId, PatternNode};
use super::graph::Graph;
use byoc_ir::ir::{AttrValue, Attrs, Callee, Dim, Expr, ExprId, Id, Name, OpId, TensorType, Type};
use byoc_ir::op::{self, Params};
use std::collections::HashSet;

/// Maximum number of visits of pattern nodes per match, as nested optional subpatterns can otherwise take exponential
/// time.
/// For a recursive pattern, the maximum grows by [`STEPS_PER_EXPRESSION`] per expression of the module.
const MAX_STEPS: usize = 1 << 20;
const STEPS_PER_EXPRESSION: usize = 16;

/// Bindings of a successful match: the expressions that each pattern node matched.
#[derive(Clone, Debug, Default)]
pub struct Match {
    /// Pattern nodes with the expressions (or operators) that they matched, in the order of matching. A node in the
    /// path of a `dominates` pattern, or inside a recursive pattern, may be listed several times.
    pub bindings: Vec<(PatternId, Callee)>,
}

impl Match {
    /// Returns the first expression or operator that a pattern node matched.
    pub fn get(&self, id: PatternId) -> Option<Callee> {
        self.all(id).next()
    }

    /// Iterates over the expressions and operators that a pattern node matched.
    pub fn all(&self, id: PatternId) -> impl Iterator<Item = Callee> + '_ {
        self.bindings.iter().filter(move |(p, _)| *p == id).map(|&(_, matched)| matched)
    }
}

/// Matcher of patterns against one graph. The buffers are reused between matches.
pub struct Matcher<'g, 'm> {
    graph: &'g Graph<'m>,
    bindings: Vec<Binding>,
    /// Position in `bindings` of the latest match of each pattern node, counted from 1.
    last_bindings: Vec<u32>,
    /// Calls synthesized for the two forms of divide and multiply. Their ids follow the ids of the pattern's nodes.
    derived_nodes: Vec<(PatternId, [PatternId; 2])>,
    frames: Vec<Frame>,
    memoize: bool,
    steps: usize,
    /// Failures of the last traced match that had the most operators before them; `None` if matches are not traced.
    trace: Option<Trace>,
}

/// Failures of a match that came equally far, in the order of matching.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    /// Operator calls that had matched, in the order of the expressions.
    pub matched: Vec<ExprId>,
    /// Pattern nodes that did not match, each at its expression.
    pub failures: Vec<Failure>,
}

/// Pattern node that did not match.
#[derive(Clone, Debug)]
pub struct Failure {
    /// Pattern node; its callee may be what did not match.
    pub id: PatternId,
    /// Expression or operator that it did not match.
    pub at: Callee,
    /// Innermost call that the pattern had reached, with the index of the argument that did not match.
    pub argument: Option<(ExprId, u32)>,
    /// Expression that the node had matched before, and would have to match again.
    pub again: Option<Callee>,
}

/// Maximum number of failures that a trace holds.
const MAX_FAILURES: usize = 64;

/// Binding of a pattern node to the expression or operator that it matched.
struct Binding {
    id: PatternId,
    at: Callee,
    /// Entry of `last_bindings` for the node before this match, restored when the match is undone.
    before: u32,
}

/// Pattern node that waits for the result of one of its subpatterns.
struct Frame {
    id: PatternId,
    at: Callee,
    /// Number of bindings to keep if the node fails.
    checkpoint: u32,
    state: State,
}

enum State {
    Start,
    /// The only subpattern is being matched, and its result becomes the result of the node.
    Forward,
    /// The pattern to which the node adds a condition is being matched.
    Condition,
    /// The left side of a choice is being matched.
    Left,
    /// A subpattern is being matched. The number is the index of the next subpattern.
    Part(u32),
    /// The callee of a call is being matched.
    Called,
    /// Waiting for an argument, with the arguments in the order of the pattern or swapped. `next` is the next argument.
    Args {
        next: u32,
        is_swapped: bool,
        checkpoint: u32,
    },
    /// Waiting for a form. The number is the index of the next form.
    Form(u32),
    /// Waiting for the child of a `dominates` pattern.
    Child,
    /// Waiting for the parent of a `dominates` pattern.
    Parent(Box<Walk>),
    /// Waiting for the path of a `dominates` pattern.
    Path(Box<Walk>),
}

/// Walk from the child of a `dominates` pattern through its operands to the parent.
struct Walk {
    on_path: HashSet<ExprId>,
    /// Expressions inside the child, which need not match the path; empty unless operands off the path are
    /// unconstrained.
    in_child: HashSet<ExprId>,
    stack: Vec<ExprId>,
    at: ExprId,
}

enum Next {
    Answer(bool),
    Ask(PatternId, Callee),
}

/// Node of the pattern, or a synthesized call.
#[derive(Clone, Copy)]
enum NodeRef<'p> {
    Own(&'p PatternNode),
    Extra(PatternId, [PatternId; 2]),
}

impl<'p> NodeRef<'p> {
    /// Returns the callee and the arguments of a call.
    fn call(&self) -> Option<(PatternId, Option<&[PatternId]>)> {
        match self {
            NodeRef::Own(PatternNode::Call { callee, args }) => Some((*callee, args.as_deref())),
            NodeRef::Own(_) => None,
            NodeRef::Extra(callee, args) => Some((*callee, Some(args))),
        }
    }
}

impl<'g, 'm> Matcher<'g, 'm> {
    /// Creates a matcher for a graph.
    pub fn new(graph: &'g Graph<'m>) -> Matcher<'g, 'm> {
        Matcher {
            graph,
            bindings: Vec::new(),
            last_bindings: Vec::new(),
            derived_nodes: Vec::new(),
            frames: Vec::new(),
            memoize: true,
            steps: 0,
            trace: None,
        }
    }

    /// Matches the subpattern at `node` of a pattern that is not recursive at `root`, in at most `steps` visits of
    /// pattern nodes, of which the number left is returned. The second result is true for a match. The trace has the
    /// operator calls that matched and, unless all did, where the match stopped.
    pub fn trace_at(&mut self, pattern: &Pattern, node: PatternId, root: ExprId, steps: usize) -> (usize, bool, Trace) {
        self.reset(pattern, steps);
        self.trace = Some(Trace::default());
        let is_match = self.visit(pattern, node, Callee::Expr(root));
        let mut trace = self.trace.take().unwrap_or_default();
        if is_match {
            trace = Trace { matched: self.matched_calls(pattern), failures: Vec::new() };
        }
        (self.steps, is_match, trace)
    }

    fn reset(&mut self, pattern: &Pattern, steps: usize) {
        self.forget(0);
        self.derived_nodes.clear();
        self.frames.clear();
        self.last_bindings.clear();
        self.last_bindings.resize(pattern.nodes.len(), 0);
        (self.memoize, self.steps) = (true, steps);
    }

    /// Matches `pattern` at `root`. Returns the bindings, or `None` if the pattern does not match.
    pub fn match_at(&mut self, pattern: &Pattern, root: ExprId) -> Option<Match> {
        let further = if pattern.is_recursive() { STEPS_PER_EXPRESSION * self.graph.module.nodes.len() } else { 0 };
        self.reset(pattern, MAX_STEPS + further);
        let is_own = |binding: &&Binding| pattern.nodes.get(binding.id).is_some();
        self.visit(pattern, pattern.root, Callee::Expr(root)).then(|| Match {
            bindings: self.bindings.iter().filter(is_own).map(|binding| (binding.id, binding.at)).collect(),
        })
    }

    fn node<'p>(&self, pattern: &'p Pattern, id: PatternId) -> NodeRef<'p> {
        match pattern.nodes.get(id) {
            Some(node) => NodeRef::Own(node),
            None => {
                let (callee, args) = self.derived_nodes[id.index() - pattern.nodes.len()];
                NodeRef::Extra(callee, args)
            }
        }
    }

    fn visit(&mut self, pattern: &Pattern, node: PatternId, root: Callee) -> bool {
        let mut answer = self.enter(pattern, node, root);
        while let Some(mut frame) = self.frames.pop() {
            let next = self.step(pattern, &mut frame, answer);
            // A failure that does not pass on that of a subpattern.
            if self.trace.is_some() && answer != Some(false) && matches!(next, Next::Answer(false)) {
                self.record_failure(pattern, frame.id, frame.at, None);
            }
            match next {
                Next::Answer(true) => {
                    self.remember(frame.id, frame.at);
                    answer = Some(true);
                }
                Next::Answer(false) => {
                    self.forget(frame.checkpoint);
                    answer = Some(false);
                }
                Next::Ask(id, at) => {
                    self.frames.push(frame);
                    answer = self.enter(pattern, id, at);
                }
            }
        }
        answer == Some(true)
    }

    /// Starts matching a pattern node, unless the result is already known.
    fn enter(&mut self, pattern: &Pattern, id: PatternId, at: Callee) -> Option<bool> {
        if self.steps == 0 {
            return Some(false);
        }
        self.steps -= 1;
        let last_binding = self.last_bindings[id.index()];
        if self.memoize && last_binding > 0 {
            let bound = self.bindings[last_binding as usize - 1].at;
            let is_same = self.is_same(bound, at);
            if self.trace.is_some() && !is_same {
                self.record_failure(pattern, id, at, Some(bound));
            }
            return Some(is_same);
        }
        self.frames.push(Frame { id, at, checkpoint: self.bindings.len() as u32, state: State::Start });
        None
    }

    /// Adds a failure to the trace, if the match had come at least as far as at those in it.
    fn record_failure(&mut self, pattern: &Pattern, id: PatternId, at: Callee, again: Option<Callee>) {
        let matched = self.matched_calls(pattern);
        let mut waiting = self.frames.iter().rev().peekable();
        // An operator is named by its call.
        let call = waiting.peek().filter(|frame| matches!(frame.state, State::Called));
        let (id, at) = call.map_or((id, at), |frame| (frame.id, frame.at));
        let argument = waiting.find_map(|frame| match (&frame.state, frame.at) {
            (State::Args { next, .. }, Callee::Expr(call)) => Some((call, next - 1)),
            _ => None,
        });
        let Some(trace) = &mut self.trace else { return };
        if matched.len() > trace.matched.len() {
            *trace = Trace { matched, failures: Vec::new() };
        } else if matched.len() < trace.matched.len() {
            return;
        }
        if trace.failures.len() < MAX_FAILURES {
            trace.failures.push(Failure { id, at, argument, again });
        }
    }

    /// Returns the operator calls that matched, or wait for the rest of their arguments, in the order of the expressions.
    fn matched_calls(&self, pattern: &Pattern) -> Vec<ExprId> {
        let is_call = |id: PatternId| self.node(pattern, id).call().is_some();
        let bound = self.bindings.iter().filter(|binding| is_call(binding.id)).map(|binding| binding.at);
        let waiting =
            self.frames.iter().filter(|frame| matches!(frame.state, State::Args { .. })).map(|frame| frame.at);
        let calls = bound.chain(waiting).filter_map(|at| match at {
            Callee::Expr(id) => Some(id),
            Callee::Op(_) => None,
        });
        let mut calls: Vec<ExprId> = calls.collect();
        calls.sort_unstable();
        calls.dedup();
        calls
    }

    /// Returns true if `a` and `b` denote the same object. All references to one global function or constructor denote
    /// the same object.
    fn is_same(&self, a: Callee, b: Callee) -> bool {
        a == b
            || match (self.expr(a), self.expr(b)) {
                (Some(Expr::Global(a)), Some(Expr::Global(b))) => a == b,
                (Some(Expr::Constructor(a)), Some(Expr::Constructor(b))) => a == b,
                _ => false,
            }
    }

    fn remember(&mut self, id: PatternId, at: Callee) {
        self.bindings.push(Binding { id, at, before: self.last_bindings[id.index()] });
        self.last_bindings[id.index()] = self.bindings.len() as u32;
    }

    fn forget(&mut self, checkpoint: u32) {
        while self.bindings.len() > checkpoint as usize {
            if let Some(binding) = self.bindings.pop() {
                self.last_bindings[binding.id.index()] = binding.before;
            }
        }
    }

    fn expr(&self, at: Callee) -> Option<&'m Expr> {
        match at {
            Callee::Expr(id) => self.graph.expr(id),
            Callee::Op(_) => None,
        }
    }

    /// Resumes a frame with the result of the subpattern that it waited for.
    fn step(&mut self, pattern: &Pattern, frame: &mut Frame, answer: Option<bool>) -> Next {
        let node = self.node(pattern, frame.id);
        let is_match = answer == Some(true);
        match std::mem::replace(&mut frame.state, State::Forward) {
            State::Start => self.start(frame, node),
            State::Forward => Next::Answer(is_match),
            State::Condition => Next::Answer(is_match && self.meets_condition(node, frame.at)),
            State::Left => match node {
                NodeRef::Own(PatternNode::Alt(_, right)) if !is_match => Next::Ask(*right, frame.at),
                _ => Next::Answer(is_match),
            },
            State::Part(next) => match part_of(node, self.expr(frame.at), next) {
                _ if !is_match => Next::Answer(false),
                Some((pattern_id, operand)) => {
                    frame.state = State::Part(next + 1);
                    Next::Ask(pattern_id, Callee::Expr(operand))
                }
                None => Next::Answer(true),
            },
            State::Called if is_match => match (node.call(), self.expr(frame.at)) {
                (Some((_, None)), _) => Next::Answer(true),
                (Some((_, Some(arg_patterns))), Some(Expr::Call(call))) if arg_patterns.len() == call.args.len() => {
                    self.request_arg(frame, node, 0, false, self.bindings.len() as u32)
                }
                _ => Next::Answer(false),
            },
            State::Called => self.request_form(pattern, frame, node, 0),
            State::Args { next, is_swapped, checkpoint } if is_match => {
                self.request_arg(frame, node, next, is_swapped, checkpoint)
            }
            State::Args { is_swapped, checkpoint, .. } => {
                self.forget(checkpoint);
                let commutes = node.call().is_some_and(|(callee, _)| self.is_commutative(pattern, callee));
                if is_swapped || !commutes {
                    return Next::Answer(false);
                }
                self.request_arg(frame, node, 0, true, checkpoint)
            }
            State::Form(_) if is_match => Next::Answer(true),
            State::Form(next) => {
                self.forget(frame.checkpoint);
                self.request_form(pattern, frame, node, next)
            }
            State::Child => match frame.at {
                Callee::Expr(root) if is_match => {
                    let in_child = self.inside_child(pattern, frame, node);
                    let walk = Walk { on_path: HashSet::from([root]), in_child, stack: Vec::new(), at: root };
                    self.walk_up(frame, node, Box::new(walk))
                }
                _ => Next::Answer(false),
            },
            State::Parent(walk) if is_match => self.walk_on(frame, node, walk),
            State::Parent(walk) => match node {
                NodeRef::Own(PatternNode::Dominates { path, .. }) => {
                    let at = Callee::Expr(walk.at);
                    self.memoize = false;
                    frame.state = State::Path(walk);
                    Next::Ask(*path, at)
                }
                _ => Next::Answer(false),
            },
            State::Path(mut walk) => {
                self.memoize = true;
                if !is_match {
                    // An operand off the paths is unconstrained, but the value of the parent must not flow through it,
                    // which is checked at the end of the walk.
                    return if is_free(node) { self.walk_on(frame, node, walk) } else { Next::Answer(false) };
                }
                walk.on_path.insert(walk.at);
                self.walk_up(frame, node, walk)
            }
        }
    }

    /// Matches a node without its subpatterns against an expression. Returns the result, or the first subpattern to
    /// match.
    fn start(&mut self, frame: &mut Frame, node: NodeRef<'_>) -> Next {
        let (at, expr) = (frame.at, self.expr(frame.at));
        let mut ask = |state: State, id: PatternId, at: Callee| {
            frame.state = state;
            Next::Ask(id, at)
        };
        if let Some((callee, _)) = node.call() {
            return match expr {
                Some(Expr::Call(call)) => ask(State::Called, callee, call.callee),
                _ => Next::Answer(false),
            };
        }
        let NodeRef::Own(node) = node else { return Next::Answer(false) };
        match (node, expr) {
            (PatternNode::Wildcard, _) => Next::Answer(true),
            (PatternNode::Op(op), _) => Next::Answer(at == Callee::Op(*op)),
            (PatternNode::Redirect(inner), _) => ask(State::Forward, *inner, at),
            (PatternNode::Alt(left, _), _) => ask(State::Left, *left, at),
            (
                PatternNode::Typed(inner, _)
                | PatternNode::OfDtype(inner, _)
                | PatternNode::OfShape(inner, _)
                | PatternNode::WithAttrs(inner, _),
                _,
            ) => ask(State::Condition, *inner, at),
            (PatternNode::Dominates { child, .. }, _) => ask(State::Child, *child, at),
            (PatternNode::Var(name), Some(Expr::Var(var))) => {
                Next::Answer(name.as_ref().is_none_or(|name| *name == var.name))
            }
            (PatternNode::Constant, Some(Expr::Constant(_))) => Next::Answer(true),
            (PatternNode::Literal(value), Some(Expr::Constant(tensor))) => Next::Answer(value == tensor),
            (PatternNode::Tuple(None), Some(Expr::Tuple(_))) => Next::Answer(true),
            (PatternNode::Project { tuple: tuple_pattern, index: field }, Some(Expr::Project { tuple, index })) => {
                match field.is_none_or(|field| field == *index) {
                    true => ask(State::Forward, *tuple_pattern, Callee::Expr(*tuple)),
                    false => Next::Answer(false),
                }
            }
            (PatternNode::Tuple(Some(field_patterns)), Some(Expr::Tuple(fields)))
                if field_patterns.len() != fields.len() =>
            {
                Next::Answer(false)
            }
            (PatternNode::Function { params: Some(param_patterns), .. }, Some(Expr::Function(function)))
                if param_patterns.len() != function.params.len() =>
            {
                Next::Answer(false)
            }
            (_, Some(_)) => match part(node, expr, 0) {
                Some((pattern_id, operand)) => ask(State::Part(1), pattern_id, Callee::Expr(operand)),
                // An empty tuple has no subpatterns.
                None => Next::Answer(matches!((node, expr), (PatternNode::Tuple(_), Some(Expr::Tuple(_))))),
            },
            (_, None) => Next::Answer(false),
        }
    }

    /// Returns true if the expression has the type or the attributes that the pattern requires.
    fn meets_condition(&self, node: NodeRef<'_>, at: Callee) -> bool {
        match node {
            NodeRef::Own(PatternNode::Typed(_, ty)) => self.ty(at).is_some_and(|actual| matches_type(ty, actual)),
            NodeRef::Own(PatternNode::OfDtype(_, dtype)) => self.tensor(at).is_some_and(|t| t.dtype == *dtype),
            NodeRef::Own(PatternNode::OfShape(_, dims)) => self.tensor(at).is_some_and(|t| matches_dims(dims, &t.dims)),
            NodeRef::Own(PatternNode::WithAttrs(_, attrs)) => self.has_attrs(at, self.expr(at), attrs),
            _ => false,
        }
    }

    /// Requests the next argument of a call, in the order of the pattern or with both arguments swapped.
    fn request_arg(&self, frame: &mut Frame, node: NodeRef<'_>, next: u32, is_swapped: bool, checkpoint: u32) -> Next {
        let (Some((_, Some(arg_patterns))), Some(Expr::Call(call))) = (node.call(), self.expr(frame.at)) else {
            return Next::Answer(false);
        };
        let index = next as usize;
        if index == arg_patterns.len() {
            return Next::Answer(true);
        }
        frame.state = State::Args { next: next + 1, is_swapped, checkpoint };
        Next::Ask(
            arg_patterns[if is_swapped { arg_patterns.len() - 1 - index } else { index }],
            Callee::Expr(call.args[index]),
        )
    }

    /// Requests the next form of the pattern `divide(multiply(a, b), c)` at an expression that multiplies by a
    /// quotient, or of `multiply(divide(a, b), c)` at an expression that divides a product.
    fn request_form(&mut self, pattern: &Pattern, frame: &mut Frame, node: NodeRef<'_>, form: u32) -> Next {
        match self.form(pattern, node, frame.at, form) {
            Some(rewritten) => {
                frame.state = State::Form(form + 1);
                Next::Ask(rewritten, frame.at)
            }
            None => Next::Answer(false),
        }
    }

    fn form(&mut self, pattern: &Pattern, node: NodeRef<'_>, at: Callee, form: u32) -> Option<PatternId> {
        let (callee, arg_patterns) = node.call()?;
        let &[first, second] = arg_patterns? else { return None };
        let outer_name = self.op_name(pattern, callee)?;
        let call = self.expr(at)?.as_call()?;
        let Callee::Op(called) = call.callee else { return None };
        let has_arg = |name: &str| call.args.iter().any(|&arg| self.called_op(arg) == Some(name));
        match (outer_name, op::get(called).name) {
            ("divide", "multiply") if has_arg("divide") && form < 2 => {
                let (multiply, inner) = self.call_of(pattern, first, "multiply")?;
                let i = form as usize;
                let quotient = self.make(pattern, callee, [inner[i], second]);
                Some(self.make(pattern, multiply, [inner[1 - i], quotient]))
            }
            ("multiply", "divide") if has_arg("multiply") && form < 1 => {
                let (quotient, factor) = match self.call_of(pattern, first, "divide") {
                    Some(quotient) => (quotient, second),
                    None => (self.call_of(pattern, second, "divide")?, first),
                };
                let (divide, inner) = quotient;
                let product = self.make(pattern, callee, [inner[0], factor]);
                Some(self.make(pattern, divide, [product, inner[1]]))
            }
            _ => None,
        }
    }

    /// Returns the callee and the arguments of a pattern that calls the operator `name` with two arguments.
    fn call_of(&self, pattern: &Pattern, id: PatternId, name: &str) -> Option<(PatternId, [PatternId; 2])> {
        let node = self.node(pattern, id);
        let (callee, args) = node.call()?;
        (self.op_name(pattern, callee) == Some(name)).then_some((callee, <[PatternId; 2]>::try_from(args?).ok()?))
    }

    fn make(&mut self, pattern: &Pattern, callee: PatternId, args: [PatternId; 2]) -> PatternId {
        self.derived_nodes.push((callee, args));
        self.last_bindings.push(0);
        PatternId::new(pattern.nodes.len() + self.derived_nodes.len() - 1)
    }

    /// Pushes the operands of a walk's current expression onto the walk's stack, and continues the walk.
    fn walk_up(&mut self, frame: &mut Frame, node: NodeRef<'_>, mut walk: Box<Walk>) -> Next {
        if !self.push_operands(walk.at, &mut walk.stack) && !is_free(node) {
            return Next::Answer(false);
        }
        self.walk_on(frame, node, walk)
    }

    /// Visits the next expression of a walk, left to right. The parent ends a path; any other expression must match the
    /// path, and the walk continues with its operands.
    fn walk_on(&mut self, frame: &mut Frame, node: NodeRef<'_>, mut walk: Box<Walk>) -> Next {
        let NodeRef::Own(PatternNode::Dominates { parent, free: is_free, .. }) = node else {
            return Next::Answer(false);
        };
        while let Some(id) = walk.stack.pop() {
            if walk.in_child.contains(&id) && walk.on_path.insert(id) {
                self.push_operands(id, &mut walk.stack);
            } else if !walk.on_path.contains(&id) {
                walk.at = id;
                frame.state = State::Parent(walk);
                return Next::Ask(*parent, Callee::Expr(id));
            }
        }
        let parent_match = match self.last_bindings[parent.index()] {
            0 => None,
            last_binding => Some(self.bindings[last_binding as usize - 1].at),
        };
        Next::Answer(match (parent_match, frame.at) {
            (Some(Callee::Expr(parent_match)), Callee::Expr(root)) if *is_free => {
                self.graph.exprs_between(parent_match, root, |id| walk.on_path.contains(&id)).is_some()
            }
            (Some(Callee::Expr(parent_match)), Callee::Expr(root)) => self.graph.flows_into(parent_match, root),
            _ => false,
        })
    }

    /// Returns the non-root expressions that the non-leaf nodes in the child of a `post_dominates` pattern matched.
    fn inside_child(&self, pattern: &Pattern, frame: &Frame, node: NodeRef<'_>) -> HashSet<ExprId> {
        if !is_free(node) {
            return HashSet::new();
        }
        let has_operands = |id: PatternId| match self.node(pattern, id) {
            NodeRef::Own(node) => !Pattern::operands(node).is_empty(),
            NodeRef::Extra(..) => true,
        };
        let child_bindings =
            self.bindings[frame.checkpoint as usize..].iter().filter(|binding| has_operands(binding.id));
        child_bindings.filter_map(|binding| if let Callee::Expr(id) = binding.at { Some(id) } else { None }).collect()
    }

    /// Pushes the operands of an expression except its callee, last first; returns false if nothing was pushed.
    fn push_operands(&self, id: ExprId, stack: &mut Vec<ExprId>) -> bool {
        let callee = self.graph.expr(id).and_then(Expr::as_call).map(|call| call.callee);
        let base = stack.len();
        self.graph.for_each_operand(id, |operand| {
            if callee != Some(Callee::Expr(operand)) {
                stack.push(operand);
            }
        });
        stack[base..].reverse();
        stack.len() > base
    }

    fn op_name(&self, pattern: &Pattern, callee: PatternId) -> Option<&'static str> {
        match self.node(pattern, callee) {
            NodeRef::Own(PatternNode::Op(op)) => Some(op::get(*op).name),
            _ => None,
        }
    }

    fn is_commutative(&self, pattern: &Pattern, callee: PatternId) -> bool {
        matches!(self.node(pattern, callee), NodeRef::Own(PatternNode::Op(op)) if op::get(*op).properties.commutative)
    }

    fn called_op(&self, id: ExprId) -> Option<&'static str> {
        Some(op::get(self.graph.expr(id)?.as_op_call()?.0).name)
    }

    fn ty(&self, at: Callee) -> Option<&'m Type> {
        match at {
            Callee::Expr(id) => Some(self.graph.ty(id)),
            Callee::Op(_) => None,
        }
    }

    fn tensor(&self, at: Callee) -> Option<&'m TensorType> {
        self.ty(at)?.as_tensor()
    }

    fn has_attrs(&self, at: Callee, expr: Option<&Expr>, expected: &Attrs) -> bool {
        match (at, expr) {
            (Callee::Op(id), _) => expected.iter().all(|(key, value)| op_attr(id, key).is_some_and(|v| v == *value)),
            (Callee::Expr(_), Some(Expr::Call(call))) => expected.iter().all(|(key, value)| match call.callee {
                Callee::Op(id) => {
                    let def = op::get(id);
                    def.attr(key).is_some() && Params::new(def, &call.attrs).value(key) == *value
                }
                Callee::Expr(_) => call.attrs.get(key) == Some(value),
            }),
            (Callee::Expr(_), Some(Expr::Function(function))) => {
                expected.iter().all(|(key, value)| function.attrs.get(key) == Some(value))
            }
            // Expressions of all other kinds, and roots of collapsed groups, have no attributes.
            _ => expected.is_empty(),
        }
    }
}

/// Returns true for `post_dominates`.
fn is_free(node: NodeRef<'_>) -> bool {
    matches!(node, NodeRef::Own(PatternNode::Dominates { free: true, .. }))
}

/// Returns subpattern `number` of a node with a fixed list of subpatterns, and the expression that it must match.
fn part_of(node: NodeRef<'_>, expr: Option<&Expr>, number: u32) -> Option<(PatternId, ExprId)> {
    match node {
        NodeRef::Own(node) => part(node, expr, number),
        NodeRef::Extra(..) => None,
    }
}

fn part(node: &PatternNode, expr: Option<&Expr>, number: u32) -> Option<(PatternId, ExprId)> {
    let index = number as usize;
    match (node, expr?) {
        (PatternNode::Tuple(Some(field_patterns)), Expr::Tuple(fields)) => {
            Some((*field_patterns.get(index)?, *fields.get(index)?))
        }
        (PatternNode::If { cond: a, then: b, otherwise: c }, Expr::If { cond, then, otherwise }) => {
            [(*a, *cond), (*b, *then), (*c, *otherwise)].get(index).copied()
        }
        (PatternNode::Let { var: a, value: b, body: c }, Expr::Let { var, value, body }) => {
            [(*a, *var), (*b, *value), (*c, *body)].get(index).copied()
        }
        (PatternNode::Function { params, body }, Expr::Function(function)) => {
            let params = params.as_deref().unwrap_or_default();
            match params.get(index) {
                Some(&param) => Some((param, *function.params.get(index)?)),
                None => (index == params.len()).then_some((*body, function.body)),
            }
        }
        _ => None,
    }
}

/// Returns an attribute of an operator, if patterns may require it.
fn op_attr(id: OpId, key: &Name) -> Option<AttrValue> {
    (&**key == "TOpPattern").then(|| AttrValue::Int(op::get(id).pattern as i64))
}

fn matches_type(expected: &Type, actual: &Type) -> bool {
    match (expected, actual) {
        (Type::Tensor(w), Type::Tensor(a)) => w.dtype == a.dtype && matches_dims(&w.dims, &a.dims),
        (Type::Tuple(w), Type::Tuple(a)) => {
            w.len() == a.len() && w.iter().zip(a.iter()).all(|(w, a)| matches_type(w, a))
        }
        _ => expected == actual,
    }
}

/// Compares dimensions structurally; `?` in the pattern matches any dimension unknown at compile time, named or not.
fn matches_dims(expected: &[Dim], actual: &[Dim]) -> bool {
    expected.len() == actual.len()
        && expected.iter().zip(actual).all(|(w, a)| w == a || (*w == Dim::Any && matches!(a, Dim::Symbolic(_))))
}
