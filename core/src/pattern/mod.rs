//! Data-flow pattern language, in which backends declare what they support.
//!
//! A [`Pattern`] is an arena of pattern nodes. Identity of a node matters: a node that is visited twice during a match
//! must match the same expression both times, which expresses "the same input twice" and shared values. Patterns are
//! written in a [text notation](parse_table) and cross the plugin boundary in it; a [`Matcher`] matches them against a
//! [`Graph`] and records the expression that each pattern node matched ([`Match`]).
//!
//! [`Pattern::matches`], [`Pattern::partition`] and [`rewrite`](crate::pass::rewrite) are the API for authors of passes; pattern tables are
//! handled by [`merge_composite`](crate::pass::merge_composite).
//!
//! Nothing here recurses on the depth of a graph: the matcher and the path of a dominator keep explicit stacks.

mod data;
mod graph;
mod lexer;
mod matcher;
mod notation;

pub use data::{MAX_DEPTH, Pattern, PatternId, PatternNode, RootOps};
pub use graph::{Collapsed, Graph};
pub use matcher::{Match, Matcher};
pub use notation::{Checks, Entry, Parsed, parse_pattern, parse_table};
