//! IR of byoc and all of the compiler that is independent of plugins, files and terminals.
//!
//! A [`ir::Module`] is an arena of expressions and a table of global functions. Expressions refer only to
//! expressions made before them, so a module is acyclic by construction, ascending ids are a valid evaluation
//! order, and every walk over it is a loop: nothing in this crate recurses on the depth of a graph. Sharing is
//! id equality, exactly as `%0` is in the text form. Recursion goes through names: globals and let-bound variables.
//!
//! The modules are layers; each uses only those above it:
//!
//! | module | contents |
//! |---|---|
//! | [`diag`] | diagnostics as data: code, message, labels, help |
//! | [`stop`] | cancellation: a flag and a deadline |
//! | [`tensor`] | element types, shapes, tensors and views |
//! | [`ir`] | the module: expressions, types, attributes, provenance |
//! | [`op`] | the operator table: attributes, type relation, naive reference, FLOPs |
//! | [`kernel`] | the fast host kernels; without one, the reference is the fallback |
//! | [`typing`] | type inference, and building and rebuilding modules so that types stay up to date |
//! | [`text`] | the Relay text format: lexer, parser, printer |
//! | [`analysis`] | the verifier, and structural equality |
//! | [`pattern`] | the data-flow pattern language |
//! | [`pass`] | one file per pass, and the manager that runs, times and verifies them |

pub mod analysis;
pub mod diag;
pub mod ir;
pub mod kernel;
pub mod op;
pub mod pass;
pub mod pattern;
pub mod stop;
pub mod tensor;
pub mod text;
pub mod typing;
