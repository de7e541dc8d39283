//! Data-flow pattern language, in which backends declare supported subgraphs.
//!
//! A [`Pattern`] is an arena of pattern nodes. The identity of a node matters: a node that is visited twice during a
//! match must match the same expression both times, which expresses "the same input twice" and shared values. Patterns
//! are written in a [text notation](parse_table), in which they also cross the plugin boundary; a [`Matcher`] matches
//! them against a [`Graph`] and records the expression that each pattern node matched ([`Match`]).
//!
//! [`Pattern::matches`], [`Pattern::partition`] and [`rewrite`](crate::pass::rewrite) are the API for pass authors;
//! pattern tables are applied by [`merge_composite`](crate::pass::merge_composite).
//!
//! No function here recurses on the depth of a graph: the matcher keeps an explicit stack, and so does the walk along
//! the paths of a `dominates` pattern.

mod data;
mod graph;
mod lexer;
mod matcher;
mod notation;

pub use data::{MAX_DEPTH, Pattern, PatternId, PatternNode, RootOps};
pub use graph::{Collapsed, Graph};
pub use matcher::{Failure, Match, Matcher, Trace};
pub use notation::{Checks, Entry, Parsed, entry_name, parse_pattern, parse_table};
