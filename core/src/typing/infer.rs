//! The type of one expression from the types of its operands.

use crate::diag::{Diagnostic, codes};
use crate::ir::{Call, Callee, Dim, Expr, FuncType, Function, Module, Type};
use crate::op;
use crate::tensor::{DType, Tensor};
use smallvec::SmallVec;
use std::sync::Arc;

/// The type of `expr`, whose operands are in `module` and typed. [`Type::Unknown`] when an operand's type is unknown.
///
/// # Errors
/// What does not agree.
pub fn infer_expr(module: &Module, expr: &Expr) -> op::TypeResult {
    let ty = infer_unbounded(module, expr)?;
    // Only these build types out of the types of their operands.
    if matches!(expr, Expr::Tuple(_) | Expr::RefNew(_) | Expr::Function(_)) && !ty.is_within_limits() {
        let (depth, parts) = (Type::MAX_DEPTH, Type::MAX_PARTS);
        let message = format!("the type nests deeper than {depth} levels or has more than {parts} parts");
        return Err(Box::new(Diagnostic::error(codes::types::TYPE_TOO_LARGE, message)));
    }
    Ok(ty)
}

fn infer_unbounded(module: &Module, expr: &Expr) -> op::TypeResult {
    Ok(match expr {
        Expr::Constant(tensor) => Type::tensor(tensor.dtype(), tensor.shape()),
        Expr::Var(var) => var.annotation.clone(),
        Expr::Global(name) => match module.globals.get(name) {
            Some(&id) => module.ty(id).clone(),
            None => Type::Unknown,
        },
        Expr::Tuple(fields) => Type::tuple(fields.iter().map(|&f| module.ty(f).clone())),
        Expr::Project { tuple, index } => match module.ty(*tuple) {
            Type::Unknown => Type::Unknown,
            Type::Tuple(fields) => match fields.get(*index as usize) {
                Some(field) => field.clone(),
                None => {
                    return Err(mismatch(format!(
                        "field {index} of {}, which has {}",
                        module.ty(*tuple),
                        fields.len()
                    )));
                }
            },
            other => return Err(mismatch(format!("field {index} of {other}, which is no tuple"))),
        },
        Expr::Call(call) => infer_call(module, call)?,
        Expr::Let { var, value, body } => {
            let (var, value) = (module.ty(*var), module.ty(*value));
            if unify(var, value).is_none() {
                return Err(mismatch(format!("the variable of a let is {var}, its value is {value}")));
            }
            module.ty(*body).clone()
        }
        Expr::If { cond, then, otherwise } => {
            let cond = module.ty(*cond);
            if *cond != Type::Unknown && *cond != Type::scalar(DType::Bool) {
                return Err(mismatch(format!("the condition of an if is {cond}, bool is wanted")));
            }
            let (then, otherwise) = (module.ty(*then), module.ty(*otherwise));
            unify(then, otherwise)
                .ok_or_else(|| mismatch(format!("the branches of an if are {then} and {otherwise}")))?
        }
        Expr::Function(function) => function_type(module, function)?,
        Expr::RefNew(value) => match module.ty(*value) {
            Type::Unknown => Type::Unknown,
            inner => Type::Ref(Arc::new(inner.clone())),
        },
        Expr::RefRead(reference) => match module.ty(*reference) {
            Type::Unknown => Type::Unknown,
            Type::Ref(inner) => (**inner).clone(),
            other => return Err(mismatch(format!("ref_read of {other}, which is no reference"))),
        },
        Expr::RefWrite { reference, value } => match module.ty(*reference) {
            Type::Unknown => Type::unit(),
            Type::Ref(inner) => match unify(inner, module.ty(*value)) {
                Some(_) => Type::unit(),
                None => return Err(mismatch(format!("ref_write of {} into ref({inner})", module.ty(*value)))),
            },
            other => return Err(mismatch(format!("ref_write to {other}, which is no reference"))),
        },
    })
}

/// The type of a function: what was written, completed by what its parameters and body have.
///
/// # Errors
/// When the body has another type than was written.
pub fn function_type(module: &Module, function: &Function) -> op::TypeResult {
    let body = module.ty(function.body);
    let ret = unify(&function.ret, body)
        .ok_or_else(|| mismatch(format!("the function should return {}, its body is {body}", function.ret)))?;
    let params = function.params.iter().map(|&p| module.ty(p).clone()).collect();
    Ok(Type::Func(Arc::new(FuncType { params, ret })))
}

fn infer_call(module: &Module, call: &Call) -> op::TypeResult {
    match call.callee {
        Callee::Op(id) => {
            let args: SmallVec<[Type; 4]> = call.args.iter().map(|&a| module.ty(a).clone()).collect();
            if !args.iter().all(Type::is_complete) {
                return Ok(Type::Unknown);
            }
            let values: SmallVec<[Option<&Tensor>; 4]> =
                call.args.iter().map(|&a| module.expr(a).as_constant().map(|t| &**t)).collect();
            op::get(id).infer(&call.attrs, &args, &values)
        }
        Callee::Expr(callee) => match module.ty(callee) {
            Type::Unknown => Ok(Type::Unknown),
            Type::Func(func) => {
                if func.params.len() != call.args.len() {
                    return Err(Box::new(Diagnostic::error(
                        codes::types::BAD_ARITY,
                        format!("{} arguments given to a function of {}", call.args.len(), func.params.len()),
                    )));
                }
                for (i, (&arg, param)) in call.args.iter().zip(&func.params).enumerate() {
                    let arg = module.ty(arg);
                    if unify(arg, param).is_none() {
                        return Err(mismatch(format!("argument {i} is {arg}, the function takes {param}")));
                    }
                }
                Ok(func.ret.clone())
            }
            other => Err(mismatch(format!("a call of {other}, which is no function"))),
        },
    }
}

/// The type that two types agree on. [`Type::Unknown`] agrees with everything; `?` agrees with every dimension and
/// stays `?`, because the value may have any size there.
pub fn unify(a: &Type, b: &Type) -> Option<Type> {
    match (a, b) {
        (Type::Unknown, other) | (other, Type::Unknown) => Some(other.clone()),
        (Type::Tensor(x), Type::Tensor(y)) => {
            if x == y {
                return Some(a.clone());
            }
            if x.dtype != y.dtype || x.dims.len() != y.dims.len() {
                return None;
            }
            let dims: Option<Vec<Dim>> = x.dims.iter().zip(&y.dims).map(|(p, q)| unify_dim(p, q)).collect();
            Some(Type::tensor_of(x.dtype, dims?))
        }
        (Type::Tuple(x), Type::Tuple(y)) if x.len() == y.len() => {
            let fields: Option<Vec<Type>> = x.iter().zip(&**y).map(|(p, q)| unify(p, q)).collect();
            Some(Type::tuple(fields?))
        }
        (Type::Func(x), Type::Func(y)) if x.params.len() == y.params.len() => {
            let params: Option<Box<[Type]>> = x.params.iter().zip(&y.params).map(|(p, q)| unify(p, q)).collect();
            Some(Type::Func(Arc::new(FuncType { params: params?, ret: unify(&x.ret, &y.ret)? })))
        }
        (Type::Ref(x), Type::Ref(y)) => Some(Type::Ref(Arc::new(unify(x, y)?))),
        _ => None,
    }
}

fn unify_dim(a: &Dim, b: &Dim) -> Option<Dim> {
    match (a, b) {
        _ if a == b => Some(a.clone()),
        (Dim::Any, _) | (_, Dim::Any) => Some(Dim::Any),
        (Dim::Named(_), other) | (other, Dim::Named(_)) => Some(other.clone()),
        (Dim::Fixed(_), Dim::Fixed(_)) => None,
    }
}

fn mismatch(message: String) -> Box<Diagnostic> {
    Box::new(Diagnostic::error(codes::types::TYPE_MISMATCH, message))
}
