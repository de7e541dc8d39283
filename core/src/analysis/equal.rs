//! Structural equality of modules.
//!
//! * Variables, bound and free, are equal up to renaming. Names of global functions must agree.
//! * Attributes are equal as dictionaries.
//! * Sharing must agree: each call, tuple, projection, let, if, function and reference operation on one side
//!   corresponds to exactly one on the other. Constants and `()` are compared by value, shared or not.
//! * Type definitions are equal by name; type parameters of functions are equal up to renaming.
//! * The types of variables and of function results are compared, as annotated or else as inferred, so either both
//!   sides should be typed or neither.
//! * The order of expressions in the arena, origins and unreachable expressions are ignored.

use byoc_ir::diag::plural;
use byoc_ir::ir::{Attrs, Callee, Expr, ExprId, IndexVec, Module, Name, Type};
use byoc_ir::op;
use byoc_ir::tensor::Tensor;
use byoc_ir::typing::map_params;
use std::collections::{HashMap, HashSet};
use std::fmt;

/// First difference between two modules or expressions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Global function that contains the difference.
    pub function: Option<Name>,
    /// Expression on the left side.
    pub left: Option<ExprId>,
    /// Expression on the right side.
    pub right: Option<ExprId>,
    /// Description of the difference, left side first.
    pub message: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.function {
            Some(name) => write!(f, "in @{name}: {}", self.message),
            None => f.write_str(&self.message),
        }
    }
}

/// Compares two modules.
///
/// # Errors
/// If the modules differ; the error is the first difference.
pub fn structural_equal(a: &Module, b: &Module) -> Result<(), Difference> {
    let module_difference = |message| Difference { function: None, left: None, right: None, message };
    for name in a.globals.keys() {
        if !b.globals.contains_key(name) {
            return Err(module_difference(format!("@{name} is only on the left side")));
        }
    }
    if let Some(name) = b.globals.keys().find(|name| !a.globals.contains_key(*name)) {
        return Err(module_difference(format!("@{name} is only on the right side")));
    }
    compare_types(a, b).map_err(module_difference)?;
    let mut comparison = Comparison::new(a, b);
    for (name, &left) in &a.globals {
        comparison.function = Some(name.clone());
        comparison.run(left, b.globals[name])?;
    }
    Ok(())
}

/// Compares the type definitions, matching type parameters by position.
fn compare_types(a: &Module, b: &Module) -> Result<(), String> {
    for (side, x, y) in [("left", a, b), ("right", b, a)] {
        if let Some((name, _)) = x.types.iter().find(|(name, _)| y.types.get(name).is_none()) {
            return Err(format!("type {name} is only on the {side} side"));
        }
    }
    for (name, left) in a.types.iter() {
        let Some(right) = b.types.get(name) else { continue };
        let by_position = |ty: &Type, params: &[Name]| {
            map_params(ty, &mut |p| params.iter().position(|q| q == p).map(|i| Type::param(format!("?{i}"))))
        };
        let is_same = left.is_extern == right.is_extern
            && left.params.len() == right.params.len()
            && left.constructors.len() == right.constructors.len()
            && left.constructors.iter().zip(&right.constructors).all(|(p, q)| {
                p.name == q.name
                    && p.fields.len() == q.fields.len()
                    && p.fields
                        .iter()
                        .zip(&q.fields)
                        .all(|(s, t)| by_position(s, &left.params) == by_position(t, &right.params))
            });
        if !is_same {
            return Err(format!("type {name} is defined differently"));
        }
    }
    Ok(())
}

/// Compares two expressions.
///
/// # Errors
/// If the expressions differ; the error is the first difference.
pub fn structural_equal_exprs(a: (&Module, ExprId), b: (&Module, ExprId)) -> Result<(), Difference> {
    Comparison::new(a.0, b.0).run(a.1, b.1)
}

struct Comparison<'a> {
    a: &'a Module,
    b: &'a Module,
    /// Maps each expression of `a` to its counterpart in `b`.
    left: IndexVec<ExprId, Option<ExprId>>,
    /// Maps each expression of `b` to its counterpart in `a`.
    right: IndexVec<ExprId, Option<ExprId>>,
    /// Pairs of constants already found equal, so that large constants are compared only once.
    constants: HashSet<(*const Tensor, *const Tensor)>,
    function: Option<Name>,
    stack: Vec<(ExprId, ExprId)>,
    /// Maps the type parameters of the enclosing functions on the left side to their counterparts on the right side.
    params: HashMap<Name, Name>,
}

impl<'a> Comparison<'a> {
    fn new(a: &'a Module, b: &'a Module) -> Comparison<'a> {
        Comparison {
            a,
            b,
            left: IndexVec::filled(None, a.nodes.len()),
            right: IndexVec::filled(None, b.nodes.len()),
            constants: HashSet::new(),
            function: None,
            stack: Vec::new(),
            params: HashMap::new(),
        }
    }

    /// Returns true if the types are equal up to renaming of type parameters.
    fn is_same_type(&self, left: &Type, right: &Type) -> bool {
        if self.params.is_empty() {
            return left == right;
        }
        map_params(left, &mut |name| self.params.get(name).cloned().map(Type::param)) == *right
    }

    fn run(&mut self, left: ExprId, right: ExprId) -> Result<(), Difference> {
        self.stack.push((left, right));
        while let Some((left, right)) = self.stack.pop() {
            if let Err(message) = self.compare_pair(left, right) {
                return Err(Difference {
                    function: self.function.clone(),
                    left: Some(left),
                    right: Some(right),
                    message,
                });
            }
        }
        Ok(())
    }

    /// Compares two expressions without their operands, and pushes the operand pairs onto the stack.
    fn compare_pair(&mut self, left: ExprId, right: ExprId) -> Result<(), String> {
        let (x, y) = (self.a.expr(left), self.b.expr(right));
        let differ = || Err(format!("{} vs. {}", describe(x), describe(y)));
        match (x, y) {
            (Expr::Constant(p), Expr::Constant(q)) => {
                let key = (std::sync::Arc::as_ptr(p), std::sync::Arc::as_ptr(q));
                if key.0 != key.1 && !self.constants.contains(&key) {
                    if p != q {
                        let detail = if p.dtype() == q.dtype() && p.shape() == q.shape() {
                            ", with different values"
                        } else {
                            ""
                        };
                        return Err(format!("{} vs. {}{detail}", describe(x), describe(y)));
                    }
                    self.constants.insert(key);
                }
                return Ok(());
            }
            (Expr::Global(p), Expr::Global(q)) | (Expr::Constructor(p), Expr::Constructor(q)) => {
                return if p == q { Ok(()) } else { differ() };
            }
            // `()` is a constant.
            (Expr::Tuple(p), Expr::Tuple(q)) if p.is_empty() && q.is_empty() => return Ok(()),
            _ => {}
        }
        match (self.left[left], self.right[right]) {
            (None, None) => {}
            (Some(other), _) if other == right => return Ok(()),
            (Some(_), None) => return Err(format!("{} is shared on the left side only", describe(x))),
            (None, Some(_)) => return Err(format!("{} is shared on the right side only", describe(y))),
            (Some(_), Some(_)) => {
                return Err(format!("{} and {} are each shared with a different expression", describe(x), describe(y)));
            }
        }
        self.left[left] = Some(right);
        self.right[right] = Some(left);
        let is_same = match (x, y) {
            (Expr::Var(p), Expr::Var(q)) => {
                let (s, t) =
                    (effective_type(&p.annotation, self.a.ty(left)), effective_type(&q.annotation, self.b.ty(right)));
                if !self.is_same_type(s, t) {
                    return Err(format!("%{} of type {s} vs. %{} of type {t}", p.name, q.name));
                }
                true
            }
            (Expr::Tuple(p), Expr::Tuple(q)) => p.len() == q.len(),
            (Expr::Project { index: p, .. }, Expr::Project { index: q, .. }) => p == q,
            (Expr::Call(p), Expr::Call(q)) => {
                let callee = match (p.callee, q.callee) {
                    (Callee::Op(s), Callee::Op(t)) => s == t,
                    (Callee::Expr(_), Callee::Expr(_)) => true,
                    _ => false,
                };
                if callee && p.args.len() == q.args.len() && p.attrs != q.attrs {
                    let list = |attrs: &Attrs| {
                        let items: Vec<String> = attrs.iter().map(|(k, v)| format!("{k}={v}")).collect();
                        items.join(", ")
                    };
                    return Err(format!("{}: attributes ({}) vs. ({})", describe(x), list(&p.attrs), list(&q.attrs)));
                }
                callee && p.args.len() == q.args.len()
            }
            (Expr::Function(p), Expr::Function(q)) => {
                if p.attrs != q.attrs {
                    let keys = |attrs: &Attrs| {
                        let items: Vec<String> = attrs.iter().map(|(k, v)| format!("{k}={v}")).collect();
                        items.join(", ")
                    };
                    return Err(format!("function attributes ({}) vs. ({})", keys(&p.attrs), keys(&q.attrs)));
                }
                if p.type_params.len() != q.type_params.len() {
                    let (s, t) = (p.type_params.len(), q.type_params.len());
                    return Err(format!("a function with {} vs. one with {t}", plural(s, "type parameter")));
                }
                self.params.extend(p.type_params.iter().cloned().zip(q.type_params.iter().cloned()));
                let (s, t) = (effective_type(&p.ret, self.a.ty(p.body)), effective_type(&q.ret, self.b.ty(q.body)));
                if !self.is_same_type(s, t) {
                    return Err(format!("a function that returns {s} vs. one that returns {t}"));
                }
                p.params.len() == q.params.len()
            }
            (Expr::Match(p), Expr::Match(q)) => {
                p.complete == q.complete
                    && p.clauses.len() == q.clauses.len()
                    && p.clauses.iter().zip(&q.clauses).all(|(s, t)| s.pattern.has_same_form(&t.pattern))
            }
            (Expr::Let { .. }, Expr::Let { .. })
            | (Expr::If { .. }, Expr::If { .. })
            | (Expr::RefNew(_), Expr::RefNew(_))
            | (Expr::RefRead(_), Expr::RefRead(_))
            | (Expr::RefWrite { .. }, Expr::RefWrite { .. }) => true,
            _ => false,
        };
        if !is_same {
            return differ();
        }
        let first = self.stack.len();
        x.for_each_operand(|operand| self.stack.push((operand, operand)));
        let mut position = first;
        y.for_each_operand(|operand| {
            if let Some(pair) = self.stack.get_mut(position) {
                pair.1 = operand;
            }
            position += 1;
        });
        self.stack[first..].reverse();
        Ok(())
    }
}

/// Returns the annotated type if there is an annotation, otherwise the inferred type.
fn effective_type<'t>(annotation: &'t Type, inferred: &'t Type) -> &'t Type {
    if *annotation == Type::Unknown { inferred } else { annotation }
}

pub(super) fn describe(expr: &Expr) -> String {
    match expr {
        Expr::Constant(tensor) => format!("a constant {}", Type::tensor(tensor.dtype(), tensor.shape())),
        Expr::Var(var) => format!("%{}", var.name),
        Expr::Global(name) => format!("@{name}"),
        Expr::Constructor(name) => name.to_string(),
        Expr::Match(m) => format!("a match with {}", plural(m.clauses.len(), "clause")),
        Expr::Tuple(fields) => format!("a tuple of {}", plural(fields.len(), "field")),
        Expr::Project { index, .. } => format!("field {index} of a tuple"),
        Expr::Call(call) => match call.callee {
            Callee::Op(id) => format!("{} with {}", op::get(id).name, plural(call.args.len(), "argument")),
            Callee::Expr(_) => format!("a call to a function with {}", plural(call.args.len(), "argument")),
        },
        Expr::Let { .. } => "a let".to_owned(),
        Expr::If { .. } => "an if".to_owned(),
        Expr::Function(function) => format!("a function of {}", plural(function.params.len(), "parameter")),
        Expr::RefNew(_) => "ref".to_owned(),
        Expr::RefRead(_) => "ref_read".to_owned(),
        Expr::RefWrite { .. } => "ref_write".to_owned(),
    }
}
