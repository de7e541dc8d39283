//! Names of dimensions that are known only at run time.
//!
//! Relay types such a dimension as `?`. The conversion needs more information: equality of unknown dimensions, and a
//! computation of each dimension. Each unknown dimension is therefore named at its first use, and the name is recorded
//! with the value and the axis that provide the dimension; result dimensions are derived from the named dimensions of
//! the arguments. Names do not occur in the types of the module.

use byoc_ir::ir::{Callee, Dim, DimExpr, Expr, ExprId, Module, Name, TensorType, Type};
use byoc_ir::op;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Named dimensions of values whose types have unknown dimensions.
#[derive(Default)]
pub struct Names {
    by_value: HashMap<ExprId, Vec<Dim>>,
    sources: BTreeMap<Name, Source>,
    /// Names of input dimensions.
    reserved: BTreeSet<Name>,
}

/// Value and axis that provide a named dimension.
#[derive(Clone, Copy)]
pub struct Source {
    pub value: ExprId,
    pub axis: usize,
    /// Function nesting depth at which the value is visible.
    pub depth: usize,
}

impl Names {
    /// Reserves the name of an input dimension, so that no unknown dimension is given this name.
    pub fn reserve(&mut self, name: &Name) {
        self.reserved.insert(name.clone());
    }

    /// Returns the dimensions of a value of type `ty` at function nesting depth `depth`, after naming the unknown
    /// dimensions.
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
            let known_dim =
                |(own_dim, new_dim): (&Dim, &Dim)| if *own_dim == Dim::Any { new_dim.clone() } else { own_dim.clone() };
            let dims = ty.dims.iter().zip(dims).map(known_dim).collect();
            self.by_value.insert(value, dims);
        }
    }

    /// Copies the named dimensions of a value to the variable that represents it.
    pub fn copy(&mut self, source: ExprId, target: ExprId) {
        if let Some(dims) = self.by_value.get(&source) {
            self.by_value.insert(target, dims.clone());
        }
    }

    /// Derives the dimensions of an operator call, or of a field of its result, from the named dimensions of the
    /// arguments.
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
        // A type relation may accept unknown dimensions but reject the corresponding named dimensions; the result then
        // stays unnamed.
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

    /// Returns the value and axis that provide a named dimension; `None` for an input dimension.
    pub fn source(&self, name: &str) -> Option<Source> {
        self.sources.get(name).copied()
    }
}
