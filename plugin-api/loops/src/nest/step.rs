//! Steps of a schedule, as values.

use std::fmt;

/// Step of a schedule: a value that transforms a nest ([`super::transform::apply`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Joins adjacent loops to one.
    Fuse {
        /// Loops, outermost first.
        vars: Vec<String>,
        /// Name of the new loop.
        into: String,
    },
    /// Splits a loop into blocks.
    Split {
        /// Loop.
        var: String,
        /// Number of points in a block.
        by: i64,
        /// Loop over the blocks, and loop over the points of a block.
        into: [String; 2],
    },
    /// Exchanges a loop with the loop inside of it.
    Sink {
        /// Loop.
        var: String,
        /// Loop inside of it.
        below: String,
    },
    /// Divides a loop among the tasks of a region.
    Parallel {
        /// Loop.
        var: String,
        /// Number of tasks.
        tasks: i64,
    },
    /// Lets the C compiler compute the points of a loop in any order.
    Simd {
        /// Loop.
        var: String,
    },
    /// Computes points of a loop in a vector of a device.
    Vectorize {
        /// Loop.
        var: String,
        /// Number of elements.
        width: i64,
    },
    /// Gives each point of a loop to a work-item of a device.
    Items {
        /// Loop.
        var: String,
        /// Dimension of the launch.
        dim: u8,
    },
    /// Moves a loop inside of the reduction in its body, with an array of accumulators.
    Accumulate {
        /// Loop.
        var: String,
        /// Maximum number of points.
        len: i64,
    },
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::Fuse { vars, into } => write!(f, "fuse {} -> {into}", vars.join(", ")),
            Step::Split { var, by, into: [outer, inner] } => write!(f, "split {var} by {by} -> {outer}, {inner}"),
            Step::Sink { var, below } => write!(f, "sink {var} below {below}"),
            Step::Parallel { var, tasks } => write!(f, "parallel {var} in {tasks} tasks"),
            Step::Simd { var } => write!(f, "simd {var}"),
            Step::Vectorize { var, width } => write!(f, "vectorize {var} by {width}"),
            Step::Items { var, dim } => write!(f, "items {var} along {dim}"),
            Step::Accumulate { var, len } => write!(f, "accumulate {var}, {len} at most"),
        }
    }
}
