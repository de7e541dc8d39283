//! The answer to "where did each operator of my model go, and why not elsewhere?", as data.

use serde::Serialize;

/// The whole answer.
#[derive(Clone, Debug, Default, Serialize, PartialEq)]
pub struct Explanation {
    /// One per operator of the model, in the order of the file.
    pub nodes: Vec<NodeRow>,
    /// One per region, in the order of the program.
    pub regions: Vec<RegionRow>,
    /// Sums.
    pub totals: Totals,
}

/// An operator of the model.
#[derive(Clone, Debug, Serialize, PartialEq)]
pub struct NodeRow {
    /// Its position in the model.
    pub id: usize,
    /// Its operator type in the model.
    pub op: String,
    /// Its name in the model.
    pub source: String,
    /// Floating-point operations that it became.
    pub flops: u64,
    /// Where it went.
    pub placement: Placement,
    /// Why it is on no backend that did not take it.
    pub refusals: Vec<RefusalRow>,
    /// The operators that it reads from.
    pub inputs: Vec<usize>,
}

/// Where an operator went.
#[derive(Clone, Debug, Default, Serialize, PartialEq)]
pub struct Placement {
    /// `region`, `host` or `folded`.
    pub kind: &'static str,
    /// Whose region.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backend: Option<String>,
    /// The region's symbol.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub region: Option<String>,
    /// What it was folded into.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub into: Option<String>,
}

/// Why a backend did not take an operator.
#[derive(Clone, Debug, Serialize, PartialEq, Eq, PartialOrd, Ord)]
pub struct RefusalRow {
    /// The backend.
    pub backend: String,
    /// One of the closed set of refusal codes.
    pub code: String,
    /// The reason in words.
    pub detail: String,
    /// What to do about it; may be empty.
    pub hint: String,
}

/// A region.
#[derive(Clone, Debug, Serialize, PartialEq)]
pub struct RegionRow {
    /// Its symbol.
    pub symbol: String,
    /// Whose it is.
    pub backend: String,
    /// The operators of the model in it.
    pub nodes: Vec<usize>,
    /// Floating-point operations of one run.
    pub flops: u64,
    /// Input types.
    pub inputs: Vec<String>,
    /// Output types.
    pub outputs: Vec<String>,
}

/// Sums over the model.
#[derive(Clone, Debug, Default, Serialize, PartialEq)]
pub struct Totals {
    /// Operators of the model.
    pub operators: usize,
    /// Of those, in regions.
    pub in_regions: usize,
    /// Of those, on the host.
    pub on_host: usize,
    /// Of those, folded away.
    pub folded: usize,
    /// Regions.
    pub regions: usize,
    /// Floating-point operations of one run.
    pub flops: u64,
    /// Of those, in regions.
    pub offload_flops: u64,
    /// `offload_flops / flops`; 0 when there are none.
    pub offload_share: f64,
    /// True if dimensions are open: they count as 1.
    #[serde(skip)]
    pub open_dims: bool,
}
