//! Names of dimensions that only a run determines.
//!
//! Relay types such a dimension as `?`. The conversion needs more: that two values have the same length, and how to
//! compute it. Each unknown dimension therefore gets a name when it is first asked for, with the value and the axis that
//! it is read from; the dimensions of results are derived from the named dimensions of their arguments. Names do not
//! occur in the types of the module.

use super::state::ConversionState;
use byoc_ir::ir::{Callee, Dim, DimExpr, Expr, ExprId, Name, TensorType, Type};
use byoc_ir::op;
use std::collections::{BTreeMap, HashMap};

/// Named dimensions of values whose types have unknown dimensions.
#[derive(Default)]
pub struct Names {
    by_value: HashMap<ExprId, Vec<Dim>>,
    sources: BTreeMap<Name, Source>,
}

/// Place that a named dimension is read from.
#[derive(Clone, Copy)]
struct Source {
    value: ExprId,
    axis: usize,
    /// Number of functions around the place where the value is visible.
    depth: usize,
}

impl ConversionState<'_> {
    /// Returns the dimensions of a value of type `ty`; those that are unknown get names.
    pub fn named_dims(&mut self, value: ExprId, ty: &TensorType) -> Vec<Dim> {
        if !ty.dims.contains(&Dim::Any) {
            return ty.dims.to_vec();
        }
        let depth = self.function_depth();
        let Names { by_value, sources } = &mut self.names;
        let dims = by_value.entry(value).or_insert_with(|| ty.dims.to_vec());
        for (axis, dim) in dims.iter_mut().enumerate().filter(|(_, dim)| **dim == Dim::Any) {
            let mut name = Name::from(format!("?{}", sources.len()));
            while self.symbolic_dims.contains_key(&name) {
                name = Name::from(format!("?{name}"));
            }
            sources.insert(name.clone(), Source { value, axis, depth });
            *dim = Dim::Symbolic(DimExpr::symbol(name));
        }
        dims.clone()
    }

    /// Records the dimensions of a value, where its type does not have them.
    pub fn name_dims(&mut self, value: ExprId, dims: &[Dim]) {
        let Type::Tensor(ty) = self.builder.module.ty(value) else { return };
        if ty.dims.len() == dims.len() && ty.dims.contains(&Dim::Any) {
            let known = |(own, given): (&Dim, &Dim)| if *own == Dim::Any { given.clone() } else { own.clone() };
            let dims = ty.dims.iter().zip(dims).map(known).collect();
            self.names.by_value.insert(value, dims);
        }
    }

    /// Gives a variable the named dimensions of the value that it stands for.
    pub fn copy_names(&mut self, from: ExprId, to: ExprId) {
        if let Some(dims) = self.names.by_value.get(&from) {
            self.names.by_value.insert(to, dims.clone());
        }
    }

    /// Derives the dimensions of an operator call, or of a field of one, from the named dimensions of the arguments.
    pub fn name_result(&mut self, value: ExprId) {
        let module = &self.builder.module;
        if !matches!(module.ty(value), Type::Tensor(ty) if ty.dims.contains(&Dim::Any)) {
            return;
        }
        let (call, field) = match module.expr(value) {
            Expr::Project { tuple, index } => (*tuple, Some(*index as usize)),
            _ => (value, None),
        };
        let Expr::Call(call) = module.expr(call) else { return };
        let Callee::Op(id) = call.callee else { return };
        let (attrs, args) = (call.attrs.clone(), call.args.clone());
        let types: Vec<Type> = args.iter().map(|&arg| self.named_type(arg)).collect();
        let values: Vec<_> =
            args.iter().map(|&arg| self.builder.module.expr(arg).as_constant().map(|t| &**t)).collect();
        // Types that the relation accepts with unknown dimensions can disagree by their names.
        let Ok(result) = op::get(id).infer(&attrs, &types, &values) else { return };
        let result = match (&result, field) {
            (Type::Tuple(fields), Some(index)) => fields.get(index),
            (result, None) => Some(result),
            _ => None,
        };
        if let Some(Type::Tensor(ty)) = result {
            let dims = ty.dims.to_vec();
            self.name_dims(value, &dims);
        }
    }

    /// Returns the type of an argument with named dimensions.
    fn named_type(&mut self, value: ExprId) -> Type {
        if let Expr::Tuple(fields) = self.builder.module.expr(value) {
            let fields: Vec<Type> = fields.clone().iter().map(|&field| self.named_tensor(field)).collect();
            return Type::tuple(fields);
        }
        self.named_tensor(value)
    }

    fn named_tensor(&mut self, value: ExprId) -> Type {
        match self.builder.module.ty(value).clone() {
            Type::Tensor(ty) => Type::tensor_of(ty.dtype, self.named_dims(value, &ty)),
            other => other,
        }
    }

    /// Returns the value and the axis that a named dimension is read from, in the innermost function.
    pub fn source_of_dim(&mut self, name: &str) -> Option<(ExprId, usize)> {
        let Source { value, axis, depth } = *self.names.sources.get(name)?;
        Some((self.capture_from(value, depth), axis))
    }

    /// Returns true if `name` names a dimension that only a run determines.
    pub fn is_computed_dim(&self, name: &str) -> bool {
        self.names.sources.contains_key(name)
    }
}
