//! The program as data: an arena of expressions, types, attributes, provenance. No behaviour beyond access and walks.

mod attrs;
mod expr;
mod id;
mod module;
mod origin;
mod scopes;
mod ty;

pub use attrs::{AttrValue, Attrs};
pub use expr::{Call, Callee, Expr, Function, Node, Var};
pub use id::{ExprId, Id, IndexVec, OpId, OriginId, ScopeId, SourceId};
pub use module::Module;
pub use origin::{Origins, Source};
pub use scopes::{Scope, Scopes};
pub use ty::{Dim, FuncType, TensorType, Type};

/// A name that is cheap to clone.
pub type Name = std::sync::Arc<str>;
