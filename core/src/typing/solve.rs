//! Agreement of types: what two types have in common, and what stands for the type parameters of a function where it
//! is used.
//!
//! While a use is being typed, each type parameter of the function is a *hole*: a [`Type::Param`] whose name no text
//! can write. Holes live as long as one [`Solver`]; what is still open at the end becomes [`Type::Unknown`], which
//! inference fills when more is known.

use crate::ir::{AdtType, Dim, FuncType, Name, Type};
use std::collections::HashMap;
use std::sync::Arc;

/// The type that two types agree on. [`Type::Unknown`] agrees with everything; `?` agrees with every dimension and
/// stays `?`, because the value may have any size there. A function with type parameters agrees with any of its uses.
pub fn unify(a: &Type, b: &Type) -> Option<Type> {
    if a == b {
        return Some(a.clone());
    }
    let mut solver = Solver::default();
    let both = solver.join(a, b)?;
    Some(solver.finish(&both))
}

/// The type with each of `names` replaced by the type beside it.
pub fn substitute(ty: &Type, names: &[Name], with: &[Type]) -> Type {
    map_params(ty, &mut |name| names.iter().position(|n| n == name).and_then(|at| with.get(at)).cloned())
}

/// The type with what `replace` gives for its type parameters; those of function types inside it stay.
pub fn map_params(ty: &Type, replace: &mut dyn FnMut(&Name) -> Option<Type>) -> Type {
    match ty {
        Type::Param(name) => replace(name).unwrap_or_else(|| ty.clone()),
        Type::Tensor(_) | Type::Unknown => ty.clone(),
        Type::Tuple(fields) => Type::tuple(fields.iter().map(|f| map_params(f, replace))),
        Type::Ref(inner) => Type::Ref(Arc::new(map_params(inner, replace))),
        Type::Adt(adt) if adt.args.is_empty() => ty.clone(),
        Type::Adt(adt) => {
            let args: Box<[Type]> = adt.args.iter().map(|a| map_params(a, replace)).collect();
            Type::adt(adt.name.clone(), args)
        }
        Type::Func(func) => {
            let own = func.type_params.clone();
            let mut outer = |name: &Name| if own.contains(name) { None } else { replace(name) };
            let params = func.params.iter().map(|p| map_params(p, &mut outer)).collect();
            let ret = map_params(&func.ret, &mut outer);
            Type::Func(Arc::new(FuncType { type_params: own.clone(), params, ret }))
        }
    }
}

/// What the holes of one use stand for.
#[derive(Default)]
pub struct Solver {
    bound: HashMap<Name, Type>,
    holes: usize,
}

impl Solver {
    /// The function's type with a new hole for each of its type parameters.
    pub fn instantiate(&mut self, func: &Arc<FuncType>) -> Arc<FuncType> {
        if func.type_params.is_empty() {
            return func.clone();
        }
        let holes: Vec<Type> = func.type_params.iter().map(|_| self.hole()).collect();
        let params = func.params.iter().map(|p| substitute(p, &func.type_params, &holes)).collect();
        let ret = substitute(&func.ret, &func.type_params, &holes);
        Arc::new(FuncType { type_params: Box::new([]), params, ret })
    }

    /// New holes in the place of some names.
    pub fn holes(&mut self, names: &[Name]) -> Vec<Type> {
        names.iter().map(|_| self.hole()).collect()
    }

    fn hole(&mut self) -> Type {
        self.holes += 1;
        Type::Param(format!("?{}", self.holes).into())
    }

    fn is_hole(name: &Name) -> bool {
        name.starts_with('?')
    }

    /// The type that both agree on, holes filled as far as that needs. `None` when they do not agree.
    pub fn join(&mut self, a: &Type, b: &Type) -> Option<Type> {
        match (a, b) {
            (Type::Param(x), Type::Param(y)) if x == y => Some(a.clone()),
            (Type::Param(hole), other) | (other, Type::Param(hole)) if Solver::is_hole(hole) => {
                if let Some(before) = self.bound.get(hole).cloned() {
                    let both = self.join(&before, other)?;
                    self.bind(hole, both)?;
                } else if *other != Type::Unknown {
                    self.bind(hole, other.clone())?;
                }
                Some(Type::Param(hole.clone()))
            }
            (Type::Unknown, other) | (other, Type::Unknown) => Some(other.clone()),
            (Type::Tensor(x), Type::Tensor(y)) => {
                if x == y {
                    return Some(a.clone());
                }
                if x.dtype != y.dtype || x.dims.len() != y.dims.len() {
                    return None;
                }
                let dims: Option<Vec<Dim>> = x.dims.iter().zip(&y.dims).map(|(p, q)| join_dim(p, q)).collect();
                Some(Type::tensor_of(x.dtype, dims?))
            }
            (Type::Tuple(x), Type::Tuple(y)) if x.len() == y.len() => {
                let fields: Option<Vec<Type>> = x.iter().zip(&**y).map(|(p, q)| self.join(p, q)).collect();
                Some(Type::tuple(fields?))
            }
            (Type::Func(x), Type::Func(y)) if x.params.len() == y.params.len() => {
                let (x, y) = match (x.type_params.len(), y.type_params.len()) {
                    (0, 0) => (x.clone(), y.clone()),
                    (n, m) if n == m => (x.clone(), renamed(y, &x.type_params)),
                    (_, 0) => (self.instantiate(x), y.clone()),
                    (0, _) => (x.clone(), self.instantiate(y)),
                    _ => return None,
                };
                let params: Option<Box<[Type]>> =
                    x.params.iter().zip(&y.params).map(|(p, q)| self.join(p, q)).collect();
                let ret = self.join(&x.ret, &y.ret)?;
                Some(Type::Func(Arc::new(FuncType { type_params: x.type_params.clone(), params: params?, ret })))
            }
            (Type::Ref(x), Type::Ref(y)) => Some(Type::Ref(Arc::new(self.join(x, y)?))),
            (Type::Adt(x), Type::Adt(y)) if x.name == y.name && x.args.len() == y.args.len() => {
                let args: Option<Box<[Type]>> = x.args.iter().zip(&y.args).map(|(p, q)| self.join(p, q)).collect();
                Some(Type::Adt(Arc::new(AdtType { name: x.name.clone(), args: args? })))
            }
            _ => None,
        }
    }

    /// A hole cannot stand for a type that holds it: such a type would have no end.
    fn bind(&mut self, hole: &Name, ty: Type) -> Option<()> {
        if ty == Type::Param(hole.clone()) {
            return Some(());
        }
        let mut found = false;
        let ty = self.resolve(&ty, &mut |name| found |= name == hole)?;
        if found {
            return None;
        }
        self.bound.insert(hole.clone(), ty);
        Some(())
    }

    /// The type with every hole that is filled replaced. `None` beyond the limits of types.
    fn resolve(&self, ty: &Type, met: &mut dyn FnMut(&Name)) -> Option<Type> {
        let mut resolved = ty.clone();
        // Each round replaces one level of holes by what they stand for; there are no more levels than holes.
        for _ in 0..=self.holes {
            let mut changed = false;
            resolved = map_params(&resolved, &mut |name| {
                let filled = self.bound.get(name).cloned();
                changed |= filled.is_some();
                if filled.is_none() {
                    met(name);
                }
                filled
            });
            if !resolved.is_within_limits() {
                return None;
            }
            if !changed {
                break;
            }
        }
        Some(resolved)
    }

    /// The type with what the holes stand for; [`Type::Unknown`] where a hole is open, and for the whole of a type beyond
    /// the limits.
    pub fn finish(&self, ty: &Type) -> Type {
        if self.holes == 0 {
            return ty.clone();
        }
        let resolved = self.resolve(ty, &mut |_| {}).unwrap_or(Type::Unknown);
        map_params(&resolved, &mut |name| Solver::is_hole(name).then_some(Type::Unknown))
    }
}

/// A function's type under other names for its type parameters.
fn renamed(func: &Arc<FuncType>, names: &[Name]) -> Arc<FuncType> {
    if *func.type_params == *names {
        return func.clone();
    }
    let with: Vec<Type> = names.iter().cloned().map(Type::Param).collect();
    let params = func.params.iter().map(|p| substitute(p, &func.type_params, &with)).collect();
    let ret = substitute(&func.ret, &func.type_params, &with);
    Arc::new(FuncType { type_params: names.into(), params, ret })
}

fn join_dim(a: &Dim, b: &Dim) -> Option<Dim> {
    match (a, b) {
        _ if a == b => Some(a.clone()),
        (Dim::Any, _) | (_, Dim::Any) => Some(Dim::Any),
        (Dim::Named(_), other) | (other, Dim::Named(_)) => Some(other.clone()),
        (Dim::Fixed(_), Dim::Fixed(_)) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::DType;

    fn int() -> Type {
        Type::scalar(DType::I32)
    }

    fn a() -> Type {
        Type::Param("A".into())
    }

    fn list(of: Type) -> Type {
        Type::adt("List".into(), [of])
    }

    fn poly(params: &[Type], ret: Type) -> Arc<FuncType> {
        Arc::new(FuncType { type_params: ["A".into()].into(), params: params.into(), ret })
    }

    #[test]
    fn a_use_fills_type_parameters() {
        let mut solver = Solver::default();
        let cons = solver.instantiate(&poly(&[a(), list(a())], list(a())));
        assert!(solver.join(&cons.params[0], &int()).is_some());
        assert!(solver.join(&cons.params[1], &list(Type::Unknown)).is_some());
        assert_eq!(solver.finish(&cons.ret), list(int()));
        assert_eq!(solver.finish(&cons.params[1]), list(int()));
        assert!(solver.join(&cons.params[1], &list(Type::unit())).is_none());
    }

    #[test]
    fn what_is_open_stays_unknown_and_nothing_holds_itself() {
        let mut solver = Solver::default();
        let nil = solver.instantiate(&poly(&[], list(a())));
        assert_eq!(solver.finish(&nil.ret), list(Type::Unknown));
        let hole = solver.holes(&["A".into()]).remove(0);
        assert!(solver.join(&hole, &list(hole.clone())).is_none());
    }

    #[test]
    fn a_function_with_type_parameters_agrees_with_its_uses_and_with_itself_renamed() {
        let identity = Type::Func(poly(&[a()], a()));
        let other = Type::Func(renamed(&poly(&[a()], a()), &["B".into()]));
        let use_ = Type::Func(Arc::new(FuncType::new([int()], Type::Unknown)));
        assert_eq!(unify(&identity, &use_), Some(Type::Func(Arc::new(FuncType::new([int()], int())))));
        assert_eq!(unify(&identity, &other), Some(identity));
        assert_eq!(unify(&a(), &int()), None);
    }
}
