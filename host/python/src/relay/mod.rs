//! Relay for Python programs: expressions, types, modules, passes and patterns over the compiler's IR.
//!
//! All expressions that a program holds live in one [`arena`]; a Python object is a handle of one of them. A module is
//! taken out of the arena for the passes, and their result is put back only if the program looks at its expressions. So
//! passes in sequence run on one module without a conversion, and expressions keep their identity.

pub mod arena;
pub mod arguments;
pub mod attrs;
pub mod build;
pub mod classes;
pub mod expr;
mod failure;
pub mod module;
pub mod pattern;
pub mod types;
