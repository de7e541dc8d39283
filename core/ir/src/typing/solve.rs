//! Unification of types, and inference of type arguments where a function is used.
//!
//! While the type of a use is being inferred, each type parameter of the function is a *hole*: a [`Type::Param`] whose
//! name the text format cannot express. Holes live as long as one [`Solver`]; a hole that is still open at the end
//! becomes [`Type::Unknown`], to be inferred when more is known.

use crate::ir::{Dim, FuncType, Name, Nested, Type};
use std::collections::HashMap;
use std::sync::Arc;

/// Unifies two types. [`Type::Unknown`] unifies with everything; `?` unifies with every dimension and stays `?`,
/// because the value may have any dimension there. A function with type parameters unifies with any of its instances.
pub fn unify(a: &Type, b: &Type) -> Option<Type> {
    if a == b {
        return Some(a.clone());
    }
    let mut solver = Solver::default();
    let joined_type = solver.join(a, b)?;
    Some(solver.finish(&joined_type))
}

/// Returns the common type of the results of two branches: dimensions that differ become `?`. `None` if the
/// types differ otherwise, or are neither tensors nor tuples of tensors.
pub fn merge(a: &Type, b: &Type) -> Option<Type> {
    match (a, b) {
        (Type::Tensor(a), Type::Tensor(b)) if a.dtype == b.dtype && a.dims.len() == b.dims.len() => {
            let dims = a.dims.iter().zip(&b.dims).map(|(a, b)| if a == b { a.clone() } else { Dim::Any });
            Some(Type::tensor_of(a.dtype, dims.collect::<Vec<_>>()))
        }
        (Type::Tuple(a), Type::Tuple(b)) if a.len() == b.len() => {
            let is_tensor = |ty: &Type| matches!(ty, Type::Tensor(_));
            let fields = a.iter().zip(b.iter()).map(|(a, b)| if is_tensor(a) { merge(a, b) } else { None });
            fields.collect::<Option<Vec<Type>>>().map(Type::tuple)
        }
        _ => None,
    }
}

/// Replaces each type parameter in `names` with the corresponding type in `replacements`.
pub fn substitute(ty: &Type, names: &[Name], replacements: &[Type]) -> Type {
    map_params(ty, &mut |name| names.iter().position(|n| n == name).and_then(|index| replacements.get(index)).cloned())
}

/// Replaces the free type parameters for which `replace` returns a type; parameters bound by nested function types
/// are kept.
pub fn map_params(ty: &Type, replace: &mut dyn FnMut(&Name) -> Option<Type>) -> Type {
    ty.map_leaves(&Type::has_params, &mut |leaf, own| match leaf {
        Type::Param(name) if !own.iter().any(|names| names.contains(name)) => replace(name),
        _ => None,
    })
}

/// Assignment of types to the holes of one use of a function.
#[derive(Default)]
pub struct Solver {
    bound: HashMap<Name, Type>,
    holes: usize,
}

impl Solver {
    /// Returns the type of the function with a new hole for each of its type parameters.
    pub fn instantiate(&mut self, func: &Arc<Nested<FuncType>>) -> Arc<Nested<FuncType>> {
        if func.type_params.is_empty() {
            return func.clone();
        }
        let holes: Vec<Type> = func.type_params.iter().map(|_| self.hole()).collect();
        let params: Box<[Type]> = func.params.iter().map(|p| substitute(p, &func.type_params, &holes)).collect();
        let ret = substitute(&func.ret, &func.type_params, &holes);
        Arc::new(Nested::new(FuncType::new(params, ret)))
    }

    /// Returns a new hole for each name.
    pub fn holes(&mut self, names: &[Name]) -> Vec<Type> {
        names.iter().map(|_| self.hole()).collect()
    }

    fn hole(&mut self) -> Type {
        self.holes += 1;
        Type::param(format!("?{}", self.holes))
    }

    fn is_hole(name: &Name) -> bool {
        name.starts_with('?')
    }

    /// Unifies two types, filling holes as needed. `None` if they do not agree.
    pub fn join(&mut self, a: &Type, b: &Type) -> Option<Type> {
        enum Step {
            Join(Type, Type),
            /// Binds the hole to the unification of its previous type and the new type.
            Bind(Arc<Name>),
            Tuple(usize),
            Func(Box<[Name]>, usize),
            Ref,
            Adt(Name, usize),
        }
        let mut results: Vec<Type> = Vec::new();
        let mut stack = vec![Step::Join(a.clone(), b.clone())];
        let pairs = |stack: &mut Vec<Step>, x: &[Type], y: &[Type]| {
            stack.extend(x.iter().zip(y).rev().map(|(p, q)| Step::Join(p.clone(), q.clone())));
        };
        while let Some(step) = stack.pop() {
            let joined_type = match step {
                Step::Join(a, b) => match (&a, &b) {
                    _ if a == b => a,
                    (Type::Param(hole), other) | (other, Type::Param(hole)) if Solver::is_hole(hole) => {
                        if let Some(binding) = self.bound.get(&**hole).cloned() {
                            stack.extend([Step::Bind(hole.clone()), Step::Join(binding, other.clone())]);
                            continue;
                        }
                        if *other != Type::Unknown {
                            self.bind(hole, other.clone())?;
                        }
                        Type::Param(hole.clone())
                    }
                    (Type::Unknown, other) | (other, Type::Unknown) => other.clone(),
                    (Type::Tensor(x), Type::Tensor(y)) => {
                        if x.dtype != y.dtype || x.dims.len() != y.dims.len() {
                            return None;
                        }
                        let dims: Option<Vec<Dim>> = x.dims.iter().zip(&y.dims).map(|(p, q)| join_dim(p, q)).collect();
                        Type::tensor_of(x.dtype, dims?)
                    }
                    // Fully known types agree only if they are equal.
                    _ if [&a, &b].iter().all(|t| t.is_complete() && !t.has_params() && !t.has_open_dims()) => {
                        return None;
                    }
                    (Type::Tuple(x), Type::Tuple(y)) if x.len() == y.len() => {
                        stack.push(Step::Tuple(x.len()));
                        pairs(&mut stack, x, y);
                        continue;
                    }
                    (Type::Func(x), Type::Func(y)) if x.params.len() == y.params.len() => {
                        let (x, y) = match (x.type_params.len(), y.type_params.len()) {
                            (0, 0) => (x.clone(), y.clone()),
                            (n, m) if n == m => (x.clone(), rename_params(y, &x.type_params)),
                            (_, 0) => (self.instantiate(x), y.clone()),
                            (0, _) => (x.clone(), self.instantiate(y)),
                            _ => return None,
                        };
                        stack.push(Step::Func(x.type_params.clone(), x.params.len()));
                        stack.push(Step::Join(x.ret.clone(), y.ret.clone()));
                        pairs(&mut stack, &x.params, &y.params);
                        continue;
                    }
                    (Type::Ref(x), Type::Ref(y)) => {
                        stack.extend([Step::Ref, Step::Join(Type::clone(x), Type::clone(y))]);
                        continue;
                    }
                    (Type::Adt(x), Type::Adt(y)) if x.name == y.name && x.args.len() == y.args.len() => {
                        stack.push(Step::Adt(x.name.clone(), x.args.len()));
                        pairs(&mut stack, &x.args, &y.args);
                        continue;
                    }
                    _ => return None,
                },
                Step::Bind(hole) => {
                    let joined_type = results.pop()?;
                    self.bind(&hole, joined_type)?;
                    Type::Param(hole)
                }
                Step::Tuple(len) => Type::tuple(results.split_off(results.len() - len)),
                Step::Func(type_params, len) => {
                    let ret = results.pop()?;
                    let params = results.split_off(results.len() - len).into();
                    Type::func(FuncType { type_params, params, ret })
                }
                Step::Ref => Type::reference(results.pop()?),
                Step::Adt(name, len) => Type::adt(name, results.split_off(results.len() - len)),
            };
            results.push(joined_type);
        }
        results.pop()
    }

    /// Binds a hole. The occurs check fails for a type that contains the hole, as the result would be infinite.
    fn bind(&mut self, hole: &Name, ty: Type) -> Option<()> {
        if matches!(&ty, Type::Param(name) if **name == *hole) {
            return Some(());
        }
        let mut occurs = false;
        let ty = self.resolve(&ty, &mut |name| occurs |= name == hole)?;
        if occurs {
            return None;
        }
        self.bound.insert(hole.clone(), ty);
        Some(())
    }

    /// Replaces every filled hole with its type, and calls `visit` with each remaining type parameter. `None` if the
    /// result exceeds [`Type::MAX_PARTS`].
    fn resolve(&self, ty: &Type, visit: &mut dyn FnMut(&Name)) -> Option<Type> {
        let mut resolved = ty.clone();
        // Each round replaces one level of holes with their types; there are at most as many levels as holes.
        for _ in 0..=self.holes {
            let mut has_progressed = false;
            resolved = map_params(&resolved, &mut |name| {
                let filled = self.bound.get(name).cloned();
                has_progressed |= filled.is_some();
                if filled.is_none() {
                    visit(name);
                }
                filled
            });
            if !resolved.is_within_limits() {
                return None;
            }
            if !has_progressed {
                break;
            }
        }
        Some(resolved)
    }

    /// Replaces the holes with their types. An open hole becomes [`Type::Unknown`], as does the entire type if it
    /// exceeds [`Type::MAX_PARTS`].
    pub fn finish(&self, ty: &Type) -> Type {
        if self.holes == 0 {
            return ty.clone();
        }
        let resolved = self.resolve(ty, &mut |_| {}).unwrap_or(Type::Unknown);
        map_params(&resolved, &mut |name| Solver::is_hole(name).then_some(Type::Unknown))
    }
}

/// Renames the type parameters of a function type to `names`.
fn rename_params(func: &Arc<Nested<FuncType>>, names: &[Name]) -> Arc<Nested<FuncType>> {
    if *func.type_params == *names {
        return func.clone();
    }
    let replacements: Vec<Type> = names.iter().cloned().map(Type::param).collect();
    let params = func.params.iter().map(|p| substitute(p, &func.type_params, &replacements)).collect();
    let ret = substitute(&func.ret, &func.type_params, &replacements);
    Arc::new(Nested::new(FuncType { type_params: names.into(), params, ret }))
}

fn join_dim(a: &Dim, b: &Dim) -> Option<Dim> {
    match (a, b) {
        _ if a == b => Some(a.clone()),
        (Dim::Any, _) | (_, Dim::Any) => Some(Dim::Any),
        (Dim::Symbolic(_), other) | (other, Dim::Symbolic(_)) => Some(other.clone()),
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
        Type::param("A")
    }

    fn list(element: Type) -> Type {
        Type::adt("List".into(), [element])
    }

    fn polymorphic_type(params: &[Type], ret: Type) -> Arc<Nested<FuncType>> {
        Arc::new(Nested::new(FuncType { type_params: ["A".into()].into(), params: params.into(), ret }))
    }

    #[test]
    fn use_fills_type_parameters() {
        let mut solver = Solver::default();
        let cons = solver.instantiate(&polymorphic_type(&[a(), list(a())], list(a())));
        assert!(solver.join(&cons.params[0], &int()).is_some());
        assert!(solver.join(&cons.params[1], &list(Type::Unknown)).is_some());
        assert_eq!(solver.finish(&cons.ret), list(int()));
        assert_eq!(solver.finish(&cons.params[1]), list(int()));
        assert!(solver.join(&cons.params[1], &list(Type::unit())).is_none());
    }

    #[test]
    fn open_holes_stay_unknown_and_occurs_check_fails() {
        let mut solver = Solver::default();
        let nil = solver.instantiate(&polymorphic_type(&[], list(a())));
        assert_eq!(solver.finish(&nil.ret), list(Type::Unknown));
        let hole = solver.holes(&["A".into()]).remove(0);
        assert!(solver.join(&hole, &list(hole.clone())).is_none());
    }

    #[test]
    fn polymorphic_function_unifies_with_instances_and_renamings() {
        let identity = Type::Func(polymorphic_type(&[a()], a()));
        let other = Type::Func(rename_params(&polymorphic_type(&[a()], a()), &["B".into()]));
        let use_ = Type::func(FuncType::new([int()], Type::Unknown));
        assert_eq!(unify(&identity, &use_), Some(Type::func(FuncType::new([int()], int()))));
        assert_eq!(unify(&identity, &other), Some(identity));
        assert_eq!(unify(&a(), &int()), None);
    }
}
