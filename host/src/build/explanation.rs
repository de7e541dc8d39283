//! Placement of each operator of a model and the refusals of the other backends, as data.

use serde::Serialize;

/// Explanation of a whole model.
#[derive(Clone, Debug, Default, Serialize, PartialEq)]
pub struct Explanation {
    /// Operators of the model, in the order of the file.
    pub nodes: Vec<NodeRow>,
    /// Regions, in the order of the program.
    pub regions: Vec<RegionRow>,
    /// Sums over the model.
    pub totals: Totals,
}

/// Operator of the model.
#[derive(Clone, Debug, Serialize, PartialEq)]
pub struct NodeRow {
    /// Position in the model.
    pub id: usize,
    /// Operator type in the model.
    pub op: String,
    /// Name in the model.
    pub source: String,
    /// Floating-point operations of its expressions.
    pub flops: u64,
    /// Placement of the operator; of one that is computed in several places, the region with most of its work.
    pub placement: Placement,
    /// All places of an operator that is computed in several, in the order of the program; empty for others.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<Placement>,
    /// Refusals of the backends that did not take it.
    pub refusals: Vec<RefusalRow>,
    /// Predecessors, by position.
    pub inputs: Vec<usize>,
}

/// Placement of an operator. An operator counts as placed in a region if any of its expressions runs there.
#[derive(Clone, Debug, Default, Serialize, PartialEq)]
pub struct Placement {
    /// Kind of the place.
    pub kind: PlacementKind,
    /// Backend of its region.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backend: Option<String>,
    /// Symbol of its region.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub region: Option<String>,
    /// Description of the expression it was folded into.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub into: Option<String>,
}

/// Kind of place of an operator.
#[derive(Clone, Copy, Debug, Default, Serialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum PlacementKind {
    /// In a region.
    Region,
    /// On the host.
    #[default]
    Host,
    /// Nowhere: it was folded into another operator or a constant.
    Folded,
}

impl PlacementKind {
    /// Every kind, in the order of reports.
    pub const ALL: [PlacementKind; 3] = [PlacementKind::Region, PlacementKind::Host, PlacementKind::Folded];

    /// Name of the kind in reports and in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            PlacementKind::Region => "region",
            PlacementKind::Host => "host",
            PlacementKind::Folded => "folded",
        }
    }
}

/// Refusal of an operator by a backend.
#[derive(Clone, Debug, Serialize, PartialEq, Eq, PartialOrd, Ord)]
pub struct RefusalRow {
    /// Name of the backend.
    pub backend: String,
    /// Refusal code.
    pub code: String,
    /// Reason for the refusal.
    pub detail: String,
    /// Remedy; may be empty.
    pub hint: String,
}

/// Region of the program.
#[derive(Clone, Debug, Serialize, PartialEq)]
pub struct RegionRow {
    /// Symbol of the region.
    pub symbol: String,
    /// Backend of the region.
    pub backend: String,
    /// Operators of the model with an expression in the region, by position.
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
    /// Number of operators of the model.
    pub operators: usize,
    /// Number of operators with an expression in a region.
    pub in_regions: usize,
    /// Number of operators that run on the host alone.
    pub on_host: usize,
    /// Number of operators folded away.
    pub folded: usize,
    /// Number of regions.
    pub regions: usize,
    /// Floating-point operations of one run.
    pub flops: u64,
    /// Floating-point operations in regions.
    pub offload_flops: u64,
    /// `offload_flops / flops`; 0 for a model without floating-point operations.
    pub offload_share: f64,
    /// True if any dimension is open; open dimensions count as 1.
    #[serde(skip)]
    pub open_dims: bool,
}
