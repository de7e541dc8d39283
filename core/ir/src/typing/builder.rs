//! Builder of typed modules.

use crate::diag::{Diagnostic, codes, nearest};
use crate::ir::{Attrs, Call, Callee, Expr, ExprId, Function, Module, Name, OriginId, Origins, Type};
use crate::op;
use crate::tensor::Tensor;
use std::sync::Arc;

type Result<T, E = Box<Diagnostic>> = std::result::Result<T, E>;

/// Builder that appends typed expressions to a module.
///
/// ```
/// use byoc_ir::ir::{Attrs, Type};
/// use byoc_ir::tensor::DType;
/// use byoc_ir::typing::Builder;
///
/// let mut builder = Builder::default();
/// let x = builder.var("x", Type::tensor(DType::F32, &[2, 3]));
/// let y = builder.op("nn.relu", &[x], Attrs::none())?;
/// builder.define("main", &[x], y)?;
/// assert_eq!(builder.module.ty(y).to_string(), "Tensor[(2, 3), float32]");
/// # Ok::<(), Box<byoc_ir::diag::Diagnostic>>(())
/// ```
#[derive(Default)]
pub struct Builder {
    /// Module built so far.
    pub module: Module,
    /// Origin of subsequently appended expressions.
    pub origin: Option<OriginId>,
}

impl Builder {
    /// Creates a builder that appends to a module.
    pub fn new(module: Module) -> Builder {
        Builder { module, origin: None }
    }

    /// Appends an expression and infers its type. Attributes of an operator call are checked and normalized.
    ///
    /// # Errors
    /// If the expression is not well typed, or an attribute is invalid.
    pub fn push(&mut self, mut expr: Expr) -> Result<ExprId> {
        if let Expr::Call(call) = &mut expr
            && let Callee::Op(op) = call.callee
        {
            call.attrs = op::normalize_attrs(op::get(op), std::mem::take(&mut call.attrs))?;
        }
        let ty = super::infer_expr(&self.module, &expr)?;
        Ok(self.module.push_typed(expr, ty, self.origin.unwrap_or(Origins::none())))
    }

    /// Appends a call to the operator `name`.
    ///
    /// # Errors
    /// If the operator is unknown, an attribute is invalid, or the types do not agree.
    pub fn op(&mut self, name: &str, args: &[ExprId], attrs: Attrs) -> Result<ExprId> {
        let Some(op) = op::lookup(name) else {
            let mut diagnostic =
                Diagnostic::error(codes::types::UNKNOWN_OPERATOR, format!("unknown operator \"{name}\""));
            if let Some(suggestion) = nearest(name, op::names()) {
                diagnostic = diagnostic.help(format!("did you mean \"{suggestion}\"?"));
            }
            return Err(Box::new(diagnostic));
        };
        self.push(Expr::op(op, args.iter().copied(), attrs))
    }

    /// Appends a constant.
    pub fn constant(&mut self, tensor: Tensor) -> ExprId {
        let ty = Type::tensor(tensor.dtype(), tensor.shape());
        self.module.push_typed(Expr::Constant(Arc::new(tensor)), ty, self.origin.unwrap_or(Origins::none()))
    }

    /// Appends a new variable.
    pub fn var(&mut self, name: impl Into<Name>, ty: Type) -> ExprId {
        self.module.push_typed(Expr::var(name, ty.clone()), ty, Origins::none())
    }

    /// Appends a tuple.
    ///
    /// # Errors
    /// If the tuple type has more than [`Type::MAX_PARTS`] parts.
    pub fn tuple(&mut self, fields: &[ExprId]) -> Result<ExprId> {
        self.push(Expr::Tuple(fields.into()))
    }

    /// Appends a tuple projection.
    ///
    /// # Errors
    /// If the operand is not a tuple, or the index is out of range.
    pub fn project(&mut self, tuple: ExprId, index: u32) -> Result<ExprId> {
        self.push(Expr::Project { tuple, index })
    }

    /// Appends a call to a function value.
    ///
    /// # Errors
    /// If the callee is not a function, or the argument types do not match.
    pub fn call(&mut self, callee: ExprId, args: &[ExprId]) -> Result<ExprId> {
        self.push(Expr::Call(Box::new(Call { callee: Callee::Expr(callee), args: args.into(), attrs: Attrs::none() })))
    }

    /// Appends a function literal.
    ///
    /// # Errors
    /// If the body does not have the declared type.
    pub fn function(&mut self, params: &[ExprId], body: ExprId, ret: Type, attrs: Attrs) -> Result<ExprId> {
        self.push(Expr::Function(Box::new(Function::new(params.iter().copied(), body, ret, attrs))))
    }

    /// Defines a global function.
    ///
    /// # Errors
    /// See [`Builder::function`].
    pub fn define(&mut self, name: &str, params: &[ExprId], body: ExprId) -> Result<ExprId> {
        let function = self.function(params, body, Type::Unknown, Attrs::none())?;
        self.module.globals.insert(name.into(), function);
        Ok(function)
    }
}
