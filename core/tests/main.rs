//! Tests of the passes and of the text format.

mod evaluate;
mod partitioning;
mod properties;
mod shorthand;
mod simplify;
