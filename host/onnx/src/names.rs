//! Names of dimensions that are known only at run time.
//!
//! Relay types such a dimension as `?`. The conversion needs more: whether two values have the same length, and how to
//! compute the length. Each unknown dimension therefore gets a name at its first use, with the value and the axis that
//! provide it; the dimensions of results are derived from the named dimensions of their arguments. Names do not occur
//! in the types of the module.

use byoc_ir::ir::{Callee, Dim, DimExpr, Expr, ExprId, Module, Name, TensorType, Type};
use byoc_ir::op;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Named dimensions of values whose types have unknown dimensions.
#[derive(Default)]
pub struct Names {
    by_value: HashMap<ExprId, Vec<Dim>>,
    sources: BTreeMap<Name, Source>,
    /// Names of dimensions of the inputs.
    reserved: BTreeSet<Name>,
}

/// Place that a named dimension is read from.
#[derive(Clone, Copy)]
pub struct Source {
    pub value: ExprId,
    pub axis: usize,
    /// Function nesting depth at which the value is visible.
    pub depth: usize,
}

impl Names {
    /// Excludes a name that a dimension of an input has.
    pub fn reserve(&mut self, name: &Name) {
        self.reserved.insert(name.clone());
    }

    /// Returns the dimensions of a value of type `ty` inside `depth` functions; those that are unknown get names.
    pub fn dims(&mut self, value: ExprId, ty: &TensorType, depth: usize) -> Vec<Dim> {
        if !ty.dims.contains(&Dim::Any) {
            return ty.dims.to_vec();
        }
        let Names { by_value, sources, reserved } = self;
        let dims = by_value.entry(value).or_insert_with(|| ty.dims.to_vec());
        for (axis, dim) in dims.iter_mut().enumerate().filter(|(_, dim)| **dim == Dim::Any) {
            let mut name = Name::from(format!("?{}", sources.len()));
            while reserved.contains(&name) {
                name = Name::from(format!("?{name}"));
            }
            sources.insert(name.clone(), Source { value, axis, depth });
            *dim = Dim::Symbolic(DimExpr::symbol(name));
        }
        dims.clone()
    }

    /// Records the dimensions of a value whose type has unknown dimensions.
    pub fn set(&mut self, module: &Module, value: ExprId, dims: &[Dim]) {
        let Type::Tensor(ty) = module.ty(value) else { return };
        if ty.dims.len() == dims.len() && ty.dims.contains(&Dim::Any) {
            let known = |(own, given): (&Dim, &Dim)| if *own == Dim::Any { given.clone() } else { own.clone() };
            let dims = ty.dims.iter().zip(dims).map(known).collect();
            self.by_value.insert(value, dims);
        }
    }

    /// Gives a variable the named dimensions of the value that it stands for.
    pub fn copy(&mut self, from: ExprId, to: ExprId) {
        if let Some(dims) = self.by_value.get(&from) {
            self.by_value.insert(to, dims.clone());
        }
    }

    /// Derives the dimensions of an operator call, or of a field of one, from the named dimensions of the arguments.
    pub fn derive(&mut self, module: &Module, value: ExprId, depth: usize) {
        if !matches!(module.ty(value), Type::Tensor(ty) if ty.dims.contains(&Dim::Any)) {
            return;
        }
        let (call, field) = match module.expr(value) {
            Expr::Project { tuple, index } => (*tuple, Some(*index as usize)),
            _ => (value, None),
        };
        let Expr::Call(call) = module.expr(call) else { return };
        let Callee::Op(id) = call.callee else { return };
        let types: Vec<Type> = call.args.iter().map(|&arg| self.named_type(module, arg, depth)).collect();
        let values: Vec<_> = call.args.iter().map(|&arg| module.expr(arg).as_constant().map(|t| &**t)).collect();
        // The type relation may accept unknown dimensions and reject the same dimensions with names; the result then
        // gets no names.
        let Ok(result) = op::get(id).infer(&call.attrs, &types, &values) else { return };
        let result = match (&result, field) {
            (Type::Tuple(fields), Some(index)) => fields.get(index),
            (result, None) => Some(result),
            _ => None,
        };
        if let Some(Type::Tensor(ty)) = result {
            self.set(module, value, &ty.dims);
        }
    }

    /// Returns the type of an argument with named dimensions.
    fn named_type(&mut self, module: &Module, value: ExprId, depth: usize) -> Type {
        match (module.expr(value), module.ty(value)) {
            (Expr::Tuple(fields), _) => {
                Type::tuple(fields.iter().map(|&field| self.named_tensor(module, field, depth)).collect::<Vec<_>>())
            }
            _ => self.named_tensor(module, value, depth),
        }
    }

    fn named_tensor(&mut self, module: &Module, value: ExprId, depth: usize) -> Type {
        match module.ty(value) {
            Type::Tensor(ty) => Type::tensor_of(ty.dtype, self.dims(value, ty, depth)),
            other => other.clone(),
        }
    }

    /// Returns the place that a named dimension is read from; `None` for a dimension of an input.
    pub fn source(&self, name: &str) -> Option<Source> {
        self.sources.get(name).copied()
    }
}
