//! Inference of the type of one expression from the types of its operands.

use super::coverage;
use super::solve::{Solver, merge, unify};
use crate::diag::{Diagnostic, codes, nearest};
use crate::ir::{Call, Callee, ClausePattern, Expr, ExprId, FuncType, Function, Match, Module, Nested, Type};
use crate::op;
use crate::tensor::{DType, Tensor};
use smallvec::SmallVec;
use std::sync::Arc;

/// Infers the type of `expr`, whose operands are in `module` and typed. Returns [`Type::Unknown`] if the type of an
/// operand is unknown.
///
/// # Errors
/// If the types of the operands do not agree.
pub fn infer_expr(module: &Module, expr: &Expr) -> op::TypeResult {
    let ty = infer_unbounded(module, expr)?;
    // Only tuples, references, functions and calls nest the types of their operands in a larger type.
    let builds = match expr {
        Expr::Tuple(_) | Expr::RefNew(_) | Expr::Function(_) => true,
        Expr::Call(call) => matches!(call.callee, Callee::Expr(_)) && !module.types.is_empty(),
        _ => false,
    };
    // Expressions of other kinds take their tensor types from the text, which the parser checks, or from an operand.
    let computes = matches!(expr, Expr::Constant(_) | Expr::Var(_))
        || matches!(expr, Expr::Call(call) if matches!(call.callee, Callee::Op(_)));
    if let Some(fault) = computes.then(|| ty.tensor_fault()).flatten() {
        return Err(Box::new(Diagnostic::error(codes::types::TYPE_TOO_LARGE, fault)));
    }
    if builds && !ty.is_within_limits() {
        let message = format!("the type has more than {} parts", Type::MAX_PARTS);
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
        Expr::Constructor(name) => match module.types.constructor(name) {
            Some((_, _, ty)) => ty.clone(),
            None => return Err(unknown_constructor(module, name)),
        },
        Expr::Match(m) => infer_match(module, m)?,
        Expr::Tuple(fields) => Type::tuple(fields.iter().map(|&f| module.ty(f).clone())),
        Expr::Project { tuple, index } => match module.ty(*tuple) {
            Type::Unknown => Type::Unknown,
            Type::Tuple(fields) => match fields.get(*index as usize) {
                Some(field) => field.clone(),
                None => {
                    return Err(mismatch(format!(
                        "tuple {}: expected a field index < {}, found {index}",
                        module.ty(*tuple),
                        fields.len()
                    )));
                }
            },
            other => return Err(mismatch(format!("field {index}: expected a tuple, found {other}"))),
        },
        Expr::Call(call) => infer_call(module, call)?,
        Expr::Let { var, value, body } => {
            let (var, value) = (module.ty(*var), module.ty(*value));
            if unify(var, value).is_none() {
                return Err(mismatch(format!("let: expected a value of type {var}, found {value}")));
            }
            module.ty(*body).clone()
        }
        Expr::If { cond, then, otherwise } => {
            let cond = module.ty(*cond);
            if *cond != Type::Unknown && *cond != Type::scalar(DType::Bool) {
                return Err(mismatch(format!("if condition: expected bool, found {cond}")));
            }
            let (then, otherwise) = (module.ty(*then), module.ty(*otherwise));
            merge(then, otherwise)
                .or_else(|| unify(then, otherwise))
                .ok_or_else(|| mismatch(format!("if branches: expected equal types, found {then} and {otherwise}")))?
        }
        Expr::Function(function) => function_type(module, function)?,
        Expr::RefNew(value) => match module.ty(*value) {
            Type::Unknown => Type::Unknown,
            inner => Type::reference(inner.clone()),
        },
        Expr::RefRead(reference) => match module.ty(*reference) {
            Type::Unknown => Type::Unknown,
            Type::Ref(inner) => Type::clone(inner),
            other => return Err(mismatch(format!("ref_read: expected a reference, found {other}"))),
        },
        Expr::RefWrite { reference, value } => match module.ty(*reference) {
            Type::Unknown => Type::unit(),
            Type::Ref(inner) => match unify(inner, module.ty(*value)) {
                Some(_) => Type::unit(),
                None => {
                    return Err(mismatch(format!(
                        "ref_write: expected a value for {}, found {}",
                        module.ty(*reference),
                        module.ty(*value)
                    )));
                }
            },
            other => return Err(mismatch(format!("ref_write: expected a reference, found {other}"))),
        },
    })
}

/// Returns the type of a function: its annotations, completed by the types of its parameters and body.
///
/// # Errors
/// If the type of the body differs from the annotation.
pub fn function_type(module: &Module, function: &Function) -> op::TypeResult {
    let body = module.ty(function.body);
    let ret = unify(&function.ret, body)
        .ok_or_else(|| mismatch(format!("function body: expected {}, found {body}", function.ret)))?;
    let params = function.params.iter().map(|&p| module.ty(p).clone()).collect();
    Ok(Type::func(FuncType { type_params: function.type_params.clone(), params, ret }))
}

/// Returns the type of the callee of a function call, instantiated for this use: type parameters are inferred from the
/// arguments and from the type of the result, which may be [`Type::Unknown`]. `None` if the callee is not a function or
/// the types do not agree.
pub fn signature_of_call(
    module: &Module,
    callee: ExprId,
    args: &[ExprId],
    result: &Type,
) -> Option<Arc<Nested<FuncType>>> {
    let Type::Func(func) = module.ty(callee) else { return None };
    if func.type_params.is_empty() {
        return Some(func.clone());
    }
    let mut solver = Solver::default();
    let func = solver.instantiate(func);
    solver.join(&func.ret, result)?;
    for (&arg, param) in args.iter().zip(&func.params) {
        solver.join(param, module.ty(arg))?;
    }
    let params: Box<[Type]> = func.params.iter().map(|p| solver.finish(p)).collect();
    Some(Arc::new(Nested::new(FuncType::new(params, solver.finish(&func.ret)))))
}

/// Infers the common type of all clauses, and checks each pattern against the scrutinee.
fn infer_match(module: &Module, m: &Match) -> op::TypeResult {
    let data = module.ty(m.data);
    let mut solver = Solver::default();
    let mut expected = data.clone();
    let mut result = Type::Unknown;
    for clause in &m.clauses {
        let pattern = pattern_type(module, &mut solver, &clause.pattern)?;
        expected = solver.join(&expected, &pattern).ok_or_else(|| {
            let pattern = solver.finish(&pattern);
            mismatch(format!("expected a match pattern of type {data}, found {pattern}"))
        })?;
        let body = module.ty(clause.body);
        result = unify(&result, body)
            .ok_or_else(|| mismatch(format!("match clauses: expected equal types, found {result} and {body}")))?;
    }
    if m.complete
        && data.is_complete()
        && let Some(missing) = coverage::missing(module, m)
    {
        let message = format!("non-exhaustive match: {missing} is not covered");
        let diagnostic = Diagnostic::error(codes::types::MISSING_CLAUSE, message);
        return Err(Box::new(
            diagnostic
                .help("add a clause for this value or `_ => ...`, or use `match?`, which need not cover every value"),
        ));
    }
    Ok(result)
}

/// Returns the type of the values that a pattern matches, with [`Type::Unknown`] for parts that the pattern leaves
/// open.
fn pattern_type(module: &Module, solver: &mut Solver, pattern: &ClausePattern) -> op::TypeResult {
    Ok(match pattern {
        ClausePattern::Any => Type::Unknown,
        ClausePattern::Var(var) => module.ty(*var).clone(),
        ClausePattern::Tuple(fields) => {
            let fields: Result<Vec<Type>, _> = fields.iter().map(|f| pattern_type(module, solver, f)).collect();
            Type::tuple(fields?)
        }
        ClausePattern::Constructor { name, fields } => {
            let Some((_, _, Type::Func(signature))) = module.types.constructor(name) else {
                return Err(unknown_constructor(module, name));
            };
            let signature = solver.instantiate(signature);
            if signature.params.len() != fields.len() {
                return Err(Box::new(Diagnostic::error(
                    codes::types::BAD_ARITY,
                    format!("fields of pattern {name}: expected {}, found {}", signature.params.len(), fields.len()),
                )));
            }
            for (field, expected) in fields.iter().zip(&signature.params) {
                let ty = pattern_type(module, solver, field)?;
                if solver.join(expected, &ty).is_none() {
                    let (ty, expected) = (solver.finish(&ty), solver.finish(expected));
                    return Err(mismatch(format!("field of pattern {name}: expected {expected}, found {ty}")));
                }
            }
            signature.ret.clone()
        }
    })
}

fn unknown_constructor(module: &Module, name: &str) -> Box<Diagnostic> {
    let diagnostic = Diagnostic::error(codes::types::BAD_STRUCTURE, format!("undefined constructor {name}"));
    Box::new(match nearest(name, module.types.constructor_names()) {
        Some(near) => diagnostic.help(format!("did you mean {near}?")),
        None => diagnostic,
    })
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
                        format!("call arguments: expected {}, found {}", func.params.len(), call.args.len()),
                    )));
                }
                let mut solver = Solver::default();
                let func = solver.instantiate(func);
                for (i, (&arg, param)) in call.args.iter().zip(&func.params).enumerate() {
                    let arg = module.ty(arg);
                    if arg != param && solver.join(param, arg).is_none() {
                        let expected = solver.finish(param);
                        return Err(mismatch(format!("argument {i}: expected {expected}, found {arg}")));
                    }
                }
                Ok(solver.finish(&func.ret))
            }
            other => Err(mismatch(format!("callee: expected a function, found {other}"))),
        },
    }
}

fn mismatch(message: String) -> Box<Diagnostic> {
    Box::new(Diagnostic::error(codes::types::TYPE_MISMATCH, message))
}
