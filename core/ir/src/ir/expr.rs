//! Expressions: the nodes of the graph.

use super::{Attrs, ExprId, Match, Name, OpId, OriginId, Type};
use crate::tensor::Tensor;
use smallvec::SmallVec;
use std::sync::Arc;

/// Argument or parameter list. Every call has one and most are short, so short lists are stored inline.
pub type ExprList = SmallVec<[ExprId; 4]>;

/// Callee of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Callee {
    /// Operator of the operator table.
    Op(OpId),
    /// Function value: a global, a function literal, a variable.
    Expr(ExprId),
}

/// Application of an operator or a function.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// Operator, function or constructor.
    pub callee: Callee,
    /// Arguments, left to right.
    pub args: ExprList,
    /// Attributes of the operator; for a function call, the attributes written in the text.
    pub attrs: Attrs,
}

/// Global function or function literal.
#[derive(Clone, Debug, PartialEq)]
pub struct Function {
    /// Type parameters; usually empty.
    pub type_params: Box<[Name]>,
    /// Parameters, each an [`Expr::Var`].
    pub params: ExprList,
    /// Body, whose value the function returns.
    pub body: ExprId,
    /// Annotated result type; [`Type::Unknown`] without annotation.
    pub ret: Type,
    /// Attributes such as `Compiler` and `Composite`.
    pub attrs: Attrs,
}

impl Function {
    /// Creates a function without type parameters.
    pub fn new(params: impl IntoIterator<Item = ExprId>, body: ExprId, ret: Type, attrs: Attrs) -> Function {
        Function { type_params: Box::new([]), params: params.into_iter().collect(), body, ret, attrs }
    }
}

/// Variable, identified by the id of its [`Expr::Var`]; the name is for display only.
#[derive(Clone, Debug, PartialEq)]
pub struct Var {
    /// Name without the `%`.
    pub name: Name,
    /// Annotated type; [`Type::Unknown`] without annotation.
    pub annotation: Type,
}

/// Node of the graph. Its operands have smaller ids.
#[derive(Clone, Debug)]
pub enum Expr {
    /// A tensor known at compile time.
    Constant(Arc<Tensor>),
    /// A parameter or a let-bound variable.
    Var(Box<Var>),
    /// `@name`.
    Global(Name),
    /// Constructor of an algebraic data type as a function value: `Cons`. Like a global, it is the same in every scope.
    Constructor(Name),
    /// `(a, b)`.
    Tuple(Box<[ExprId]>),
    /// `tuple.index`.
    Project {
        /// Tuple operand.
        tuple: ExprId,
        /// Index of the field.
        index: u32,
    },
    /// `callee(args, attrs)`.
    Call(Box<Call>),
    /// `let var = value; body`. The variable is in scope in the body and, if the value is a function, in the value.
    Let {
        /// Bound variable, an [`Expr::Var`].
        var: ExprId,
        /// Value, evaluated once, before the body.
        value: ExprId,
        /// Body, whose value is the result.
        body: ExprId,
    },
    /// `if (cond) { then } else { otherwise }`.
    If {
        /// Condition, a Boolean scalar.
        cond: ExprId,
        /// Result if the condition is true.
        then: ExprId,
        /// Result if the condition is false.
        otherwise: ExprId,
    },
    /// `match (data) { pattern => body, .. }`.
    Match(Box<Match>),
    /// `fn (..) { .. }`; also the definition of a global.
    Function(Box<Function>),
    /// `ref(value)`.
    RefNew(ExprId),
    /// `ref_read(reference)`.
    RefRead(ExprId),
    /// `ref_write(reference, value)`.
    RefWrite {
        /// Cell to write.
        reference: ExprId,
        /// New value.
        value: ExprId,
    },
}

impl Expr {
    /// Returns the approximate number of bytes that the expression takes beside its own size. The data of constants and
    /// shared attributes are not counted.
    pub fn heap_size(&self) -> usize {
        match self {
            Expr::Constant(_) => size_of::<Tensor>(),
            Expr::Var(var) => size_of::<Var>() + var.name.len(),
            Expr::Tuple(fields) => size_of_val(&**fields),
            Expr::Call(call) => size_of::<Call>() + size_of_val(&*call.args),
            Expr::Match(m) => size_of::<Match>() + size_of_val(&*m.clauses),
            Expr::Function(function) => size_of::<Function>() + size_of_val(&*function.params),
            _ => 0,
        }
    }

    /// Creates an operator call.
    pub fn op(op: OpId, args: impl IntoIterator<Item = ExprId>, attrs: Attrs) -> Expr {
        Expr::Call(Box::new(Call { callee: Callee::Op(op), args: args.into_iter().collect(), attrs }))
    }

    /// Creates a call to a function value.
    pub fn call(callee: ExprId, args: impl IntoIterator<Item = ExprId>) -> Expr {
        let args = args.into_iter().collect();
        Expr::Call(Box::new(Call { callee: Callee::Expr(callee), args, attrs: Attrs::none() }))
    }

    /// Creates a variable.
    pub fn var(name: impl Into<Name>, annotation: Type) -> Expr {
        Expr::Var(Box::new(Var { name: name.into(), annotation }))
    }

    /// Returns the call; `None` for other expressions.
    pub fn as_call(&self) -> Option<&Call> {
        match self {
            Expr::Call(call) => Some(call),
            _ => None,
        }
    }

    /// Returns the operator and the call; `None` unless the expression is an operator call.
    pub fn as_op_call(&self) -> Option<(OpId, &Call)> {
        match self {
            Expr::Call(call) => match call.callee {
                Callee::Op(op) => Some((op, call)),
                Callee::Expr(_) => None,
            },
            _ => None,
        }
    }

    /// Returns the function; `None` unless the expression is a function literal.
    pub fn as_function(&self) -> Option<&Function> {
        match self {
            Expr::Function(function) => Some(function),
            _ => None,
        }
    }

    /// Returns the tensor of a constant; `None` for other expressions.
    pub fn as_constant(&self) -> Option<&Arc<Tensor>> {
        match self {
            Expr::Constant(tensor) => Some(tensor),
            _ => None,
        }
    }

    /// Returns true for a constant, a global or a constructor, which have no operands and are the same in every scope.
    #[inline]
    pub fn is_closed_leaf(&self) -> bool {
        matches!(self, Expr::Constant(_) | Expr::Global(_) | Expr::Constructor(_))
    }

    /// Returns true for an expression without operands: a closed leaf or a variable.
    #[inline]
    pub fn is_leaf(&self) -> bool {
        self.is_closed_leaf() || matches!(self, Expr::Var(_))
    }

    /// Returns the number of scopes that the expression opens: one for a function or a let, one for each branch of an
    /// if and one for each clause of a match.
    pub fn scopes(&self) -> usize {
        match self {
            Expr::Function(_) | Expr::Let { .. } => 1,
            Expr::If { .. } => 2,
            Expr::Match(m) => m.clauses.len(),
            _ => 0,
        }
    }

    /// Calls `visit` with each variable that the expression binds.
    pub fn for_each_binder(&self, mut visit: impl FnMut(ExprId)) {
        match self {
            Expr::Let { var, .. } => visit(*var),
            Expr::Function(function) => function.params.iter().copied().for_each(visit),
            Expr::Match(m) => m.clauses.iter().for_each(|clause| clause.pattern.for_each_var(&mut visit)),
            _ => {}
        }
    }

    /// Calls `visit` with each operand in evaluation order, left to right: callee before arguments, parameters before
    /// the body, variable and value before the body, condition before the branches, the variables of a pattern before
    /// the body of its clause.
    pub fn for_each_operand(&self, mut visit: impl FnMut(ExprId)) {
        match self {
            Expr::Constant(_) | Expr::Var(_) | Expr::Global(_) | Expr::Constructor(_) => {}
            Expr::Match(m) => {
                visit(m.data);
                for clause in &m.clauses {
                    clause.pattern.for_each_var(&mut visit);
                    visit(clause.body);
                }
            }
            Expr::Tuple(fields) => fields.iter().copied().for_each(visit),
            Expr::Project { tuple, .. } => visit(*tuple),
            Expr::Call(call) => {
                if let Callee::Expr(callee) = call.callee {
                    visit(callee);
                }
                call.args.iter().copied().for_each(visit);
            }
            Expr::Let { var, value, body } => [*var, *value, *body].into_iter().for_each(visit),
            Expr::If { cond, then, otherwise } => [*cond, *then, *otherwise].into_iter().for_each(visit),
            Expr::Function(function) => {
                function.params.iter().copied().for_each(&mut visit);
                visit(function.body);
            }
            Expr::RefNew(value) | Expr::RefRead(value) => visit(*value),
            Expr::RefWrite { reference, value } => [*reference, *value].into_iter().for_each(visit),
        }
    }

    /// Replaces each operand with the result of `map`.
    pub fn map_operands(&mut self, mut map: impl FnMut(ExprId) -> ExprId) {
        match self {
            Expr::Constant(_) | Expr::Var(_) | Expr::Global(_) | Expr::Constructor(_) => {}
            Expr::Match(m) => {
                m.data = map(m.data);
                for clause in &mut m.clauses {
                    clause.pattern.map_vars(&mut map);
                    clause.body = map(clause.body);
                }
            }
            Expr::Tuple(fields) => fields.iter_mut().for_each(|f| *f = map(*f)),
            Expr::Project { tuple, .. } => *tuple = map(*tuple),
            Expr::Call(call) => {
                if let Callee::Expr(callee) = &mut call.callee {
                    *callee = map(*callee);
                }
                call.args.iter_mut().for_each(|a| *a = map(*a));
            }
            Expr::Let { var, value, body } => {
                *var = map(*var);
                *value = map(*value);
                *body = map(*body);
            }
            Expr::If { cond, then, otherwise } => {
                *cond = map(*cond);
                *then = map(*then);
                *otherwise = map(*otherwise);
            }
            Expr::Function(function) => {
                function.params.iter_mut().for_each(|p| *p = map(*p));
                function.body = map(function.body);
            }
            Expr::RefNew(value) | Expr::RefRead(value) => *value = map(*value),
            Expr::RefWrite { reference, value } => {
                *reference = map(*reference);
                *value = map(*value);
            }
        }
    }
}

/// Expression with its type and origin.
#[derive(Clone, Debug)]
pub struct Node {
    /// Expression without its type and origin.
    pub expr: Expr,
    /// Type; [`Type::Unknown`] until inference has run.
    pub ty: Type,
    /// Set of model operators from which the expression originates.
    pub origin: OriginId,
}
