//! The IR as data: an arena of expressions, types, attributes, and provenance. The types provide access and traversal
//! only.

mod adt;
mod attrs;
mod dim;
mod dim_expr;
mod expr;
mod fault;
mod id;
mod module;
mod nested;
mod origin;
mod scopes;
mod ty;
mod while_loop;

pub use adt::{Clause, ClausePattern, Constructor, Match, TypeDef, TypeDefs};
pub use attrs::{AttrValue, Attrs};
pub use dim::Dim;
pub use dim_expr::{DimExpr, DimOp, DimOps, MAX_ATOMS};
pub use expr::{Call, Callee, Expr, ExprList, Function, Node, Var};
pub use fault::Fault;
pub use id::{ExprId, Id, IndexVec, OpId, OriginId, ScopeId, SourceId};
pub use module::Module;
pub use nested::{Nested, TypeParts};
pub use origin::{Origins, Source};
pub use scopes::{Scope, Scopes};
pub use ty::{AdtType, FuncType, TensorType, Type};
pub use while_loop::WhileLoop;

/// Name, cheap to clone.
pub type Name = std::sync::Arc<str>;
