//! Algebraic data types: the type definitions (`type`, `extern type`) of a module, and the patterns of `match`.

use super::{ExprId, FuncType, Name, Type};
use std::collections::{BTreeMap, HashSet};

/// Type definition: `type List[A] { Cons(A, List[A]), Nil }`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TypeDef {
    /// Type parameters.
    pub params: Box<[Name]>,
    /// Constructors in source order; empty for an `extern type`, whose values are created outside the module.
    pub constructors: Box<[Constructor]>,
    /// True for an `extern type`.
    pub is_extern: bool,
}

/// Constructor of a type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Constructor {
    /// Name, unique among the constructors of the module.
    pub name: Name,
    /// Types of the fields, which may refer to the type parameters of the definition.
    pub fields: Box<[Type]>,
}

/// Type definitions of a module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TypeDefs {
    defs: BTreeMap<Name, TypeDef>,
    /// Maps each constructor to its type name, its index in that type, and its function type.
    constructors: BTreeMap<Name, (Name, u32, Type)>,
}

impl TypeDefs {
    /// Adds a definition. If the type or one of its constructors has the name of an existing type or constructor, adds
    /// nothing and returns that name.
    pub fn define(&mut self, name: Name, def: TypeDef) -> Option<Name> {
        if self.defs.contains_key(&name) || self.constructors.contains_key(&name) {
            return Some(name);
        }
        let mut names = HashSet::new();
        for constructor in &def.constructors {
            if !names.insert(&constructor.name)
                || self.constructors.contains_key(&constructor.name)
                || self.defs.contains_key(&constructor.name)
            {
                return Some(constructor.name.clone());
            }
        }
        let args: Box<[Type]> = def.params.iter().cloned().map(Type::param).collect();
        let ret = Type::adt(name.clone(), args);
        for (index, constructor) in def.constructors.iter().enumerate() {
            let signature =
                FuncType { type_params: def.params.clone(), params: constructor.fields.clone(), ret: ret.clone() };
            let entry = (name.clone(), index as u32, Type::func(signature));
            self.constructors.insert(constructor.name.clone(), entry);
        }
        self.defs.insert(name, def);
        None
    }

    /// Returns the definition of a type.
    pub fn get(&self, name: &str) -> Option<&TypeDef> {
        self.defs.get(name)
    }

    /// Returns the type name of a constructor, its index in that type, and its function type.
    pub fn constructor(&self, name: &str) -> Option<(&Name, u32, &Type)> {
        self.constructors.get(name).map(|(owner, tag, ty)| (owner, *tag, ty))
    }

    /// Iterates over the definitions in name order.
    pub fn iter(&self) -> impl Iterator<Item = (&Name, &TypeDef)> {
        self.defs.iter()
    }

    /// Iterates over the names of all constructors, sorted.
    pub fn constructor_names(&self) -> impl Iterator<Item = &str> {
        self.constructors.keys().map(|name| &**name)
    }

    /// Returns true if there are no definitions.
    pub fn is_empty(&self) -> bool {
        self.defs.is_empty()
    }
}

/// Expression `match (data) { pattern => body, ... }`.
#[derive(Clone, Debug, PartialEq)]
pub struct Match {
    /// Scrutinee.
    pub data: ExprId,
    /// Clauses, tried from first to last.
    pub clauses: Box<[Clause]>,
    /// True for `match`, which asserts that one of the clauses always matches; false for `match?`.
    pub complete: bool,
}

/// Clause of a [`Match`].
#[derive(Clone, Debug, PartialEq)]
pub struct Clause {
    /// Pattern that the scrutinee must match.
    pub pattern: ClausePattern,
    /// Result if the pattern matches.
    pub body: ExprId,
}

/// Pattern of a clause. The parser limits its nesting to [`MAX_NESTING`](crate::text::MAX_NESTING) levels.
#[derive(Clone, Debug, PartialEq)]
pub enum ClausePattern {
    /// `_`: matches any value.
    Any,
    /// `%x`: matches any value and binds it to the variable, an [`Expr::Var`](super::Expr::Var), in the body.
    Var(ExprId),
    /// `Cons(%x, _)`: matches a value of that constructor.
    Constructor {
        /// Name of the constructor.
        name: Name,
        /// Patterns of the fields.
        fields: Box<[ClausePattern]>,
    },
    /// `(%x, _)`: matches a tuple.
    Tuple(Box<[ClausePattern]>),
}

impl ClausePattern {
    /// Calls `visit` with each variable, left to right.
    pub fn for_each_var(&self, visit: &mut impl FnMut(ExprId)) {
        match self {
            ClausePattern::Any => {}
            ClausePattern::Var(var) => visit(*var),
            ClausePattern::Constructor { fields, .. } | ClausePattern::Tuple(fields) => {
                fields.iter().for_each(|field| field.for_each_var(visit));
            }
        }
    }

    /// Replaces each variable with the result of `map`.
    pub fn map_vars(&mut self, map: &mut impl FnMut(ExprId) -> ExprId) {
        match self {
            ClausePattern::Any => {}
            ClausePattern::Var(var) => *var = map(*var),
            ClausePattern::Constructor { fields, .. } | ClausePattern::Tuple(fields) => {
                fields.iter_mut().for_each(|field| field.map_vars(map));
            }
        }
    }

    /// Returns true if both patterns have the same form, ignoring which variables they bind.
    pub fn has_same_form(&self, other: &ClausePattern) -> bool {
        match (self, other) {
            (ClausePattern::Any, ClausePattern::Any) | (ClausePattern::Var(_), ClausePattern::Var(_)) => true,
            (ClausePattern::Constructor { name: a, fields: x }, ClausePattern::Constructor { name: b, fields: y }) => {
                a == b && x.len() == y.len() && x.iter().zip(y).all(|(p, q)| p.has_same_form(q))
            }
            (ClausePattern::Tuple(x), ClausePattern::Tuple(y)) => {
                x.len() == y.len() && x.iter().zip(y).all(|(p, q)| p.has_same_form(q))
            }
            _ => false,
        }
    }
}
