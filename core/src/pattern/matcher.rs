//! The matcher.
//!
//! Each pattern node remembers the expression that it met; met again, it must meet the same one. When a part fails,
//! what its nodes remembered is forgotten. Alternation takes the left side when it matches and does not come back.
//! Calls of `add` and `multiply` match with their arguments in either order, and `(a * b) / c` and `b * (a / c)` match
//! each other's programs.

use super::data::{Pattern, PatternId, PatternNode};
use super::graph::Graph;
use crate::ir::{AttrValue, Attrs, Callee, Dim, Expr, ExprId, Id, Name, OpId, TensorType, Type};
use crate::op::{self, Params};
use std::collections::HashSet;

/// After so many visits of pattern nodes a match is given up: optional parts nested in each other can otherwise take
/// exponential time.
const MAX_STEPS: u32 = 1 << 20;

/// What each pattern node met.
#[derive(Clone, Debug, Default)]
pub struct Match {
    /// Pattern node and expression (or operator), in the order in which they matched. The path of a dominator may
    /// have met several.
    pub met: Vec<(PatternId, Callee)>,
}

impl Match {
    /// What a pattern node met first.
    pub fn get(&self, id: PatternId) -> Option<Callee> {
        self.all(id).next()
    }

    /// Everything that a pattern node met.
    pub fn all(&self, id: PatternId) -> impl Iterator<Item = Callee> + '_ {
        self.met.iter().filter(move |(p, _)| *p == id).map(|&(_, met)| met)
    }
}

/// Matches patterns against a graph; keeps its buffers between matches.
pub struct Matcher<'g, 'm> {
    graph: &'g Graph<'m>,
    met: Vec<(PatternId, Callee)>,
    /// Pattern nodes made on the way, for the two divide and multiply forms; numbered on from the pattern's own.
    extra: Vec<PatternNode>,
    memoize: bool,
    steps: u32,
}

impl<'g, 'm> Matcher<'g, 'm> {
    /// A matcher over a graph.
    pub fn new(graph: &'g Graph<'m>) -> Matcher<'g, 'm> {
        Matcher { graph, met: Vec::new(), extra: Vec::new(), memoize: true, steps: 0 }
    }

    /// Whether `pattern` matches at `root`, and how.
    pub fn match_at(&mut self, pattern: &Pattern, root: ExprId) -> Option<Match> {
        self.met.clear();
        self.extra.clear();
        self.memoize = true;
        self.steps = 0;
        self.visit(pattern, pattern.root, Callee::Expr(root)).then(|| Match { met: self.met.clone() })
    }

    fn node<'p>(&self, pattern: &'p Pattern, id: PatternId) -> NodeRef<'p> {
        match pattern.nodes.get(id) {
            Some(node) => NodeRef::Own(node),
            None => NodeRef::Extra(self.extra[id.index() - pattern.nodes.len()].clone()),
        }
    }

    fn visit(&mut self, pattern: &Pattern, id: PatternId, at: Callee) -> bool {
        self.steps += 1;
        if self.steps > MAX_STEPS {
            return false;
        }
        if self.memoize
            && let Some((_, met)) = self.met.iter().find(|(p, _)| *p == id)
        {
            return *met == at;
        }
        let watermark = self.met.len();
        let node = self.node(pattern, id);
        if self.visit_node(pattern, node.get(), at) {
            self.met.push((id, at));
            true
        } else {
            self.met.truncate(watermark);
            false
        }
    }

    fn visit_node(&mut self, pattern: &Pattern, node: &PatternNode, at: Callee) -> bool {
        let expr = match at {
            Callee::Expr(id) => self.graph.expr(id),
            Callee::Op(_) => None,
        };
        match (node, expr) {
            (PatternNode::Wildcard, _) => true,
            (PatternNode::Op(op), _) => at == Callee::Op(*op),
            (PatternNode::Alt(left, right), _) => self.visit(pattern, *left, at) || self.visit(pattern, *right, at),
            (PatternNode::Typed(inner, ty), _) => {
                self.visit(pattern, *inner, at) && self.ty(at).is_some_and(|actual| same_type(ty, actual))
            }
            (PatternNode::OfDtype(inner, dtype), _) => {
                self.visit(pattern, *inner, at) && self.tensor(at).is_some_and(|t| t.dtype == *dtype)
            }
            (PatternNode::OfShape(inner, dims), _) => {
                self.visit(pattern, *inner, at) && self.tensor(at).is_some_and(|t| same_dims(dims, &t.dims))
            }
            (PatternNode::WithAttrs(inner, attrs), _) => {
                self.visit(pattern, *inner, at) && self.has_attrs(at, expr, attrs)
            }
            (PatternNode::Dominates { parent, path, child }, _) => match at {
                Callee::Expr(root) => {
                    self.visit(pattern, *child, at) && self.visit_dominator(pattern, *parent, *path, root)
                }
                Callee::Op(_) => false,
            },
            (PatternNode::Var(name), Some(Expr::Var(var))) => name.as_ref().is_none_or(|n| *n == var.name),
            (PatternNode::Constant, Some(Expr::Constant(_))) => true,
            (PatternNode::Literal(value), Some(Expr::Constant(tensor))) => value == tensor,
            (PatternNode::Tuple(None), Some(Expr::Tuple(_))) => true,
            (PatternNode::Tuple(Some(wanted)), Some(Expr::Tuple(fields))) => self.visit_each(pattern, wanted, fields),
            (PatternNode::Project { tuple: wanted, index: field }, Some(Expr::Project { tuple, index })) => {
                field.is_none_or(|f| f == *index) && self.visit(pattern, *wanted, Callee::Expr(*tuple))
            }
            (PatternNode::If { cond: a, then: b, otherwise: c }, Some(Expr::If { cond, then, otherwise })) => {
                self.visit_each(pattern, &[*a, *b, *c], &[*cond, *then, *otherwise])
            }
            (PatternNode::Let { var: a, value: b, body: c }, Some(Expr::Let { var, value, body })) => {
                self.visit_each(pattern, &[*a, *b, *c], &[*var, *value, *body])
            }
            (PatternNode::Function { params, body }, Some(Expr::Function(function))) => {
                params.as_ref().is_none_or(|wanted| self.visit_each(pattern, wanted, &function.params))
                    && self.visit(pattern, *body, Callee::Expr(function.body))
            }
            (PatternNode::Call { callee, args }, Some(Expr::Call(call))) => {
                let watermark = self.met.len();
                if self.visit(pattern, *callee, call.callee) {
                    self.visit_args(pattern, *callee, args.as_deref(), &call.args)
                } else {
                    self.met.truncate(watermark);
                    self.visit_reassociated(pattern, *callee, args.as_deref(), at, call.callee, &call.args)
                }
            }
            _ => false,
        }
    }

    fn visit_each(&mut self, pattern: &Pattern, wanted: &[PatternId], found: &[ExprId]) -> bool {
        wanted.len() == found.len()
            && wanted.iter().zip(found).all(|(&wanted, &found)| self.visit(pattern, wanted, Callee::Expr(found)))
    }

    fn visit_args(
        &mut self,
        pattern: &Pattern,
        callee: PatternId,
        wanted: Option<&[PatternId]>,
        args: &[ExprId],
    ) -> bool {
        let Some(wanted) = wanted else { return true };
        let watermark = self.met.len();
        if self.visit_each(pattern, wanted, args) {
            return true;
        }
        self.met.truncate(watermark);
        let commutes = matches!(self.op_name(pattern, callee), Some("add" | "multiply"));
        if commutes && wanted.len() == 2 {
            let swapped = [wanted[1], wanted[0]];
            if self.visit_each(pattern, &swapped, args) {
                return true;
            }
            self.met.truncate(watermark);
        }
        false
    }

    /// `divide(multiply(a, b), c)` in a program that multiplies by a quotient, and `multiply(divide(a, b), c)` in one
    /// that divides a product.
    fn visit_reassociated(
        &mut self,
        pattern: &Pattern,
        callee: PatternId,
        wanted: Option<&[PatternId]>,
        at: Callee,
        called: Callee,
        args: &[ExprId],
    ) -> bool {
        let (Some(outer), Some(&[first, second]), Callee::Op(called)) = (self.op_name(pattern, callee), wanted, called)
        else {
            return false;
        };
        let called = op::get(called).name;
        let has_arg = |this: &Self, name: &str| args.iter().any(|&arg| this.called_op(arg) == Some(name));
        if outer == "divide" && called == "multiply" && has_arg(self, "divide") {
            let Some((multiply, inner)) = self.call_of(pattern, first, "multiply") else { return false };
            for i in 0..2 {
                let watermark = self.met.len();
                let quotient = self.push(pattern, callee, [inner[i], second]);
                let product = self.push(pattern, multiply, [inner[1 - i], quotient]);
                if self.visit(pattern, product, at) {
                    return true;
                }
                self.met.truncate(watermark);
            }
        }
        if outer == "multiply" && called == "divide" && has_arg(self, "multiply") {
            for (quotient, other) in [(first, second), (second, first)] {
                if let Some((divide, inner)) = self.call_of(pattern, quotient, "divide") {
                    let product = self.push(pattern, callee, [inner[0], other]);
                    let whole = self.push(pattern, divide, [product, inner[1]]);
                    return self.visit(pattern, whole, at);
                }
            }
        }
        false
    }

    /// Callee and arguments of a pattern that calls the operator of that name with two arguments.
    fn call_of(&self, pattern: &Pattern, id: PatternId, name: &str) -> Option<(PatternId, [PatternId; 2])> {
        match self.node(pattern, id).get() {
            PatternNode::Call { callee, args: Some(args) } if self.op_name(pattern, *callee) == Some(name) => {
                Some((*callee, <[PatternId; 2]>::try_from(&**args).ok()?))
            }
            _ => None,
        }
    }

    fn push(&mut self, pattern: &Pattern, callee: PatternId, args: [PatternId; 2]) -> PatternId {
        self.extra.push(PatternNode::Call { callee, args: Some(args.into()) });
        PatternId::new(pattern.nodes.len() + self.extra.len() - 1)
    }

    /// From `root` upwards, left to right: each operand is the parent, or matches the path and goes on upwards.
    fn visit_dominator(&mut self, pattern: &Pattern, parent: PatternId, path: PatternId, root: ExprId) -> bool {
        let mut on_path = HashSet::from([root]);
        let mut stack = Vec::new();
        if !self.push_operands(root, &mut stack) {
            return false;
        }
        while let Some(id) = stack.pop() {
            if on_path.contains(&id) || self.visit(pattern, parent, Callee::Expr(id)) {
                continue;
            }
            self.memoize = false;
            let matches = self.visit(pattern, path, Callee::Expr(id));
            self.memoize = true;
            if !matches || !self.push_operands(id, &mut stack) {
                return false;
            }
            on_path.insert(id);
        }
        match self.met.iter().find(|(p, _)| *p == parent) {
            Some(&(_, Callee::Expr(met))) => self.graph.flows_into(met, root),
            _ => false,
        }
    }

    /// Pushes the operands of an expression, last first, without what it calls; `false` when there are none.
    fn push_operands(&self, id: ExprId, stack: &mut Vec<ExprId>) -> bool {
        let callee = self.graph.expr(id).and_then(Expr::as_call).map(|call| call.callee);
        let first = stack.len();
        self.graph.for_each_operand(id, |operand| {
            if callee != Some(Callee::Expr(operand)) {
                stack.push(operand);
            }
        });
        stack[first..].reverse();
        stack.len() > first
    }

    fn op_name(&self, pattern: &Pattern, callee: PatternId) -> Option<&'static str> {
        match self.node(pattern, callee).get() {
            PatternNode::Op(op) => Some(op::get(*op).name),
            _ => None,
        }
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

    fn has_attrs(&self, at: Callee, expr: Option<&Expr>, wanted: &Attrs) -> bool {
        match (at, expr) {
            (Callee::Op(id), _) => wanted.iter().all(|(key, value)| op_attr(id, key).is_some_and(|v| v == *value)),
            (Callee::Expr(_), Some(Expr::Call(call))) => wanted.iter().all(|(key, value)| match call.callee {
                Callee::Op(id) => {
                    let def = op::get(id);
                    def.attr(key).is_some() && Params::new(def, &call.attrs).value(key) == *value
                }
                Callee::Expr(_) => call.attrs.get(key) == Some(value),
            }),
            (Callee::Expr(_), Some(Expr::Function(function))) => {
                wanted.iter().all(|(key, value)| function.attrs.get(key) == Some(value))
            }
            // The call of a composite has no attributes.
            _ => wanted.is_empty(),
        }
    }
}

/// A node of the pattern, or one made on the way.
enum NodeRef<'p> {
    Own(&'p PatternNode),
    Extra(PatternNode),
}

impl NodeRef<'_> {
    fn get(&self) -> &PatternNode {
        match self {
            NodeRef::Own(node) => node,
            NodeRef::Extra(node) => node,
        }
    }
}

/// The attributes of operators that patterns may ask for.
fn op_attr(id: OpId, key: &Name) -> Option<AttrValue> {
    (&**key == "TOpPattern").then(|| AttrValue::Int(op::get(id).pattern as i64))
}

fn same_type(wanted: &Type, actual: &Type) -> bool {
    match (wanted, actual) {
        (Type::Tensor(w), Type::Tensor(a)) => w.dtype == a.dtype && same_dims(&w.dims, &a.dims),
        (Type::Tuple(w), Type::Tuple(a)) => w.len() == a.len() && w.iter().zip(&**a).all(|(w, a)| same_type(w, a)),
        _ => wanted == actual,
    }
}

/// Structurally the same; `?` in the pattern is a dimension that is not known before the run, named or not.
fn same_dims(wanted: &[Dim], actual: &[Dim]) -> bool {
    wanted.len() == actual.len()
        && wanted.iter().zip(actual).all(|(w, a)| w == a || (*w == Dim::Any && matches!(a, Dim::Named(_))))
}
