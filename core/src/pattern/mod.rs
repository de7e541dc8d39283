//! The data-flow pattern language: what backends say they take.
//!
//! A [`Pattern`] is an arena of pattern nodes. Identity of a node matters: a node that is met twice during a match must
//! meet the same expression both times, which is how "the same input twice" and shared values are said. Patterns are
//! written in a [text notation](parse_table) and crossed over the plugin boundary in it; they are matched here, against
//! a [`Graph`], by a [`Matcher`] that remembers what each pattern node met ([`Match`]).
//!
//! [`Pattern::matches`], [`Pattern::partition`] and [`rewrite`] are the API for those who write passes; pattern tables
//! are the business of [`merge_composite`](crate::pass::merge_composite).
//!
//! Nothing here recurses on the depth of a graph: the matcher and the path of a dominator keep stacks of their own.

mod data;
mod graph;
mod lexer;
mod matcher;
mod notation;
mod rewrite;

pub use data::{MAX_DEPTH, Pattern, PatternId, PatternNode, RootOps};
pub use graph::{Collapsed, Graph};
pub use matcher::{Match, Matcher};
pub use notation::{Checks, Entry, Parsed, parse_pattern, parse_table};
pub use rewrite::{Callback, MAX_ROUNDS, Site, rewrite};
