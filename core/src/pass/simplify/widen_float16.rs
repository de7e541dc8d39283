//! `widen_float16`: computes float16 and bfloat16 in float32.
//!
//! Inputs and outputs of the module keep their types, and are converted at once. Values between operators are no longer
//! rounded to 16 bits, so results are nearer to those in exact arithmetic. A conversion from another type to 16 bits is a
//! rounding that the model asks for, and stays, unless it ends a detour: float32 computed from 16-bit floats alone.
//!
//! A module with functions beside `@main`, references or data types is left unchanged.

use byoc_ir::diag::Diagnostic;
use byoc_ir::ir::{Attrs, Callee, Expr, ExprId, Function, IndexVec, Module, Type};
use byoc_ir::op::{self, AttrKind, Params};
use byoc_ir::tensor::{DType, Tensor, TensorViewMut, bf16, f16};
use byoc_ir::typing::{Builder, Rebuild};
use half::slice::HalfFloatSliceExt;

fn is_half(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16)
}

fn half_of(ty: &Type) -> Option<DType> {
    ty.as_tensor().map(|tensor| tensor.dtype).filter(|&dtype| is_half(dtype))
}

/// Returns true if operators of `@main`, other than conversions, take or give 16-bit floats, and no other function has such
/// values: no backend has taken them.
pub fn leaves_float16_to_host(module: &Module) -> bool {
    let is_half_value = |id: ExprId| half_of(module.ty(id)).is_some();
    let is_computed = |id: ExprId| match module.expr(id) {
        Expr::Call(call) => {
            matches!(call.callee, Callee::Op(op) if op::get(op).name != "cast")
                && (is_half_value(id) || call.args.iter().any(|&arg| is_half_value(arg)))
        }
        _ => false,
    };
    let main = module.globals.get("main").copied();
    let others = module.globals.values().copied().filter(|&id| Some(id) != main);
    main.is_some_and(|main| reachable(module, [main]).any(is_computed)) && !reachable(module, others).any(is_half_value)
}

/// Returns the expressions that `roots` consist of, without those of global functions that they call.
fn reachable(module: &Module, roots: impl IntoIterator<Item = ExprId>) -> impl Iterator<Item = ExprId> {
    let mut is_seen = IndexVec::filled(false, module.nodes.len());
    let mut stack: Vec<ExprId> = roots.into_iter().collect();
    while let Some(id) = stack.pop() {
        if !std::mem::replace(&mut is_seen[id], true) {
            module.expr(id).for_each_operand(|operand| stack.push(operand));
        }
    }
    module.nodes.ids().filter(move |&id| is_seen[id])
}

/// Returns true if the module is one function of operators, tuples and branches.
fn is_plain(module: &Module) -> bool {
    let live = module.live();
    let main = module.globals.get("main").copied();
    module.nodes.iter().filter(|(id, _)| live[*id]).all(|(id, node)| match &node.expr {
        Expr::Function(_) => Some(id) == main,
        // The bits of a float16 are not those of a float32.
        Expr::Call(call) => matches!(call.callee, Callee::Op(op) if op::get(op).name != "reinterpret"),
        Expr::Constant(_) | Expr::Var(_) | Expr::Tuple(_) | Expr::Project { .. } => true,
        Expr::Let { .. } | Expr::If { .. } => true,
        _ => false,
    })
}

/// Computes float16 and bfloat16 in float32.
///
/// # Errors
/// If an operator does not take float32 in place of a 16-bit type.
pub fn widen_float16(module: &Module) -> Result<Module, Box<Diagnostic>> {
    let Some(main) = module.main().filter(|_| is_plain(module)) else { return Ok(module.clone()) };
    let mut params: IndexVec<ExprId, Option<ExprId>> = IndexVec::filled(None, module.nodes.len());
    let mut is_detour: IndexVec<ExprId, bool> = IndexVec::filled(false, module.nodes.len());
    Rebuild::run(module, |rebuild, id, expr| match expr {
        Expr::Constant(tensor) if is_half(tensor.dtype()) => Ok(Some(rebuild.new.constant(widened(tensor)?))),
        Expr::Var(var) => {
            let is_param = main.params.contains(&id);
            let annotation = if is_param { var.annotation.clone() } else { wide_type(&var.annotation) };
            let new = rebuild.new.var(var.name.clone(), annotation);
            params[id] = Some(new);
            if is_param { convert(&mut rebuild.new, new, &wide_type).map(Some) } else { Ok(Some(new)) }
        }
        Expr::Call(call) => {
            let Callee::Op(op) = call.callee else { return Ok(None) };
            let def = op::get(op);
            is_detour[id] = leaves_float16(module, def.name, &call.args, &is_detour);
            if def.name == "cast" {
                let operand = call.args[0];
                return widen_cast(rebuild, module, id, operand, is_detour[operand]);
            }
            let wide = |dtype: DType| if is_half(dtype) { "float32" } else { dtype.name() };
            let given = Params::new(def, &call.attrs);
            let mut attrs: Attrs = call.attrs.clone();
            for attr in def.attrs.iter().filter(|attr| attr.kind == AttrKind::DType) {
                if let Some(dtype) = given.dtype(attr.name).filter(|&dtype| is_half(dtype)) {
                    attrs = attrs.with(attr.name, wide(dtype));
                }
            }
            let args: Vec<ExprId> = call.args.iter().map(|&arg| rebuild.get(arg)).collect();
            rebuild.new.op(def.name, &args, attrs).map(Some)
        }
        Expr::Function(function) => {
            let body = rebuild.get(function.body);
            let body = convert(&mut rebuild.new, body, &|_| module.ty(function.body).clone())?;
            let params: Vec<ExprId> = function.params.iter().filter_map(|&param| params[param]).collect();
            let Function { ret, attrs, .. } = &**function;
            rebuild.new.function(&params, body, ret.clone(), attrs.clone()).map(Some)
        }
        _ => Ok(None),
    })
}

/// Returns true if a call gives float32 that was computed from 16-bit floats and constants alone.
fn leaves_float16(module: &Module, name: &str, args: &[ExprId], is_detour: &IndexVec<ExprId, bool>) -> bool {
    match name {
        "cast" => args.iter().any(|&arg| half_of(module.ty(arg)).is_some()),
        _ => {
            let stays = |&&arg: &&ExprId| is_detour[arg] || matches!(module.expr(arg), Expr::Constant(_));
            args.iter().all(|arg| stays(&arg)) && args.iter().any(|&arg| is_detour[arg])
        }
    }
}

/// Replaces a conversion whose operand was `operand`.
fn widen_cast(
    rebuild: &mut Rebuild<'_>,
    module: &Module,
    id: ExprId,
    operand: ExprId,
    is_detour: bool,
) -> Result<Option<ExprId>, Box<Diagnostic>> {
    let new = rebuild.get(operand);
    let target = module.ty(id).as_tensor().map_or(DType::F32, |ty| ty.dtype);
    let (from_half, to_half) = (half_of(module.ty(operand)).is_some(), is_half(target));
    let mut value = new;
    if to_half && !from_half && !is_detour {
        value = cast(&mut rebuild.new, value, target)?;
    }
    let target = if to_half { DType::F32 } else { target };
    cast(&mut rebuild.new, value, target).map(Some)
}

/// Converts a tensor to an element type, if it has another.
fn cast(builder: &mut Builder, value: ExprId, dtype: DType) -> Result<ExprId, Box<Diagnostic>> {
    match builder.module.ty(value).as_tensor() {
        Some(ty) if ty.dtype != dtype => builder.op("cast", &[value], Attrs::none().with("dtype", dtype.name())),
        _ => Ok(value),
    }
}

/// Converts the tensors of a value to the element types of `target`, which gives the wanted type of the value's type.
fn convert(builder: &mut Builder, value: ExprId, target: &dyn Fn(&Type) -> Type) -> Result<ExprId, Box<Diagnostic>> {
    let (found, wanted) = (builder.module.ty(value).clone(), target(builder.module.ty(value)));
    if found == wanted {
        return Ok(value);
    }
    match (found.as_tuple(), wanted.as_tuple()) {
        (Some(_), Some(wanted)) => {
            let mut fields = Vec::with_capacity(wanted.len());
            for (i, wanted) in wanted.iter().enumerate() {
                let field = builder.project(value, i as u32)?;
                fields.push(match wanted.as_tensor() {
                    Some(ty) => cast(builder, field, ty.dtype)?,
                    None => field,
                });
            }
            builder.tuple(&fields)
        }
        _ => match wanted.as_tensor() {
            Some(ty) => cast(builder, value, ty.dtype),
            None => Ok(value),
        },
    }
}

/// Returns a type with float32 in place of 16-bit floats. (Only a tuple of tensors has a type of several tensors here.)
fn wide_type(ty: &Type) -> Type {
    let wide = |ty: &Type| match ty.as_tensor() {
        Some(tensor) if is_half(tensor.dtype) => Type::tensor_of(DType::F32, tensor.dims.iter().cloned()),
        _ => ty.clone(),
    };
    match ty.as_tuple() {
        Some(fields) => Type::tuple(fields.iter().map(wide).collect::<Vec<_>>()),
        None => wide(ty),
    }
}

/// Returns a constant in float32.
fn widened(tensor: &Tensor) -> Result<Tensor, Box<Diagnostic>> {
    let shape = tensor.shape();
    let result = Tensor::build(DType::F32, shape, |bytes| {
        let mut out = TensorViewMut { dtype: DType::F32, shape, data: bytes };
        let out = out.as_mut_slice::<f32>();
        match tensor.dtype() {
            DType::F16 => tensor.as_slice::<f16>().convert_to_f32_slice(out),
            _ => tensor.as_slice::<bf16>().convert_to_f32_slice(out),
        }
    });
    Ok(result?)
}
