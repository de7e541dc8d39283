//! Build progress, reported while the build runs.

use std::fmt;
use std::sync::Arc;

/// Build stage.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Stage {
    /// The model is read.
    Read,
    /// Simplification of the module by passes.
    Simplify,
    /// The module is divided between backends.
    Partition,
    /// Program and memory are planned.
    Plan,
    /// A backend compiles a region.
    Region {
        /// Symbol of the region.
        symbol: String,
        /// Backend of the region.
        backend: String,
        /// Index of the region.
        index: usize,
        /// Number of regions.
        count: usize,
    },
    /// The compiled regions are loaded.
    Load,
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Stage::Read => f.write_str("reading"),
            Stage::Simplify => f.write_str("simplifying"),
            Stage::Partition => f.write_str("partitioning"),
            Stage::Plan => f.write_str("planning"),
            Stage::Region { symbol, backend, index, count } => {
                write!(f, "region {} of {count}: {symbol} on {backend}", index + 1)
            }
            Stage::Load => f.write_str("loading"),
        }
    }
}

/// Callback for the start of each build stage.
#[derive(Clone)]
pub struct Progress(Arc<dyn Fn(&Stage) + Send + Sync>);

impl Progress {
    /// Creates a reporter that calls `report`.
    pub fn new(report: impl Fn(&Stage) + Send + Sync + 'static) -> Progress {
        Progress(Arc::new(report))
    }

    /// Reports the start of a stage.
    pub fn report(&self, stage: &Stage) {
        (self.0)(stage);
    }
}

impl fmt::Debug for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Progress")
    }
}
