//! The byoc IR as data: modules, tensors, operators with their naive references, type inference, and the text format.
//!
//! An [`ir::Module`] is an arena of expressions and a table of global functions. Expressions refer only to expressions
//! appended before them, so a module is acyclic by construction, ascending ids are a valid evaluation order, and every
//! walk over it is a loop: nothing in this crate recurses on the depth of a graph. Sharing is expressed by equal ids,
//! as by repeated uses of `%0` in the text format. Recursion goes through names: globals and let-bound variables.
//!
//! The modules form layers; each uses only those above it:
//!
//! | module | contents |
//! |---|---|
//! | [`diag`] | diagnostics as data: code, message, labels, help |
//! | [`escape`] | escaping of untrusted text for terminals |
//! | [`cancel`] | cancellation: a flag and a deadline |
//! | [`tensor`] | element types, shapes, tensors and views |
//! | [`ir`] | the module: expressions, types, attributes, provenance |
//! | [`op`] | the operator table: attributes, type relation, naive reference, FLOPs |
//! | [`text`] | the Relay text format: lexer, parser, printer |
//! | [`typing`] | type inference, and building and rebuilding modules so that types stay up to date |
//! | [`interface`] | inputs and outputs of a model as its file declares them, and their binding |

pub mod cancel;
pub mod declared;
pub mod diag;
pub mod escape;
pub mod interface;
pub mod ir;
pub mod op;
pub mod tensor;
pub mod text;
pub mod typing;
