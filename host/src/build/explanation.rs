//! Explanation of a build as data: the placement of each operator of the model, and the refusals of the other backends.

use byoc_ir::diag::Interface;
use byoc_plugin_api::Estimate;
use serde::{Deserialize, Serialize};

/// Explanation of a whole model.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq)]
pub struct Explanation {
    /// Operators of the model, in the order of the file.
    pub nodes: Vec<NodeRow>,
    /// Regions, in the order of the program.
    pub regions: Vec<RegionRow>,
    /// Copies of one run between the memories of host and devices; empty without such devices.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub copies: Vec<CopyRow>,
    /// Totals over all operators of the model.
    pub totals: Totals,
}

impl Explanation {
    /// Returns the explanation with the options or functions of an interface in the reasons.
    pub fn in_interface(&self, interface: Interface) -> Explanation {
        let mut changed = self.clone();
        for refusal in changed.nodes.iter_mut().flat_map(|node| &mut node.refusals) {
            refusal.detail = interface.words(&refusal.detail).into_owned();
            refusal.hint = interface.words(&refusal.hint).into_owned();
        }
        changed
    }
}

/// Copies between the memories of the host and of a backend's device, counted by the instructions of the program: those
/// in a loop count once.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct CopyRow {
    /// Name of the backend.
    pub backend: String,
    /// Number of tensors copied to the device.
    pub to_device: usize,
    /// Size in bytes of the tensors copied to the device.
    pub to_device_bytes: usize,
    /// Number of tensors copied from the device.
    pub from_device: usize,
    /// Size in bytes of the tensors copied from the device.
    pub from_device_bytes: usize,
}

/// Operator of the model.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct NodeRow {
    /// Index of the operator in [`Explanation::nodes`].
    pub id: usize,
    /// Operator type in the model.
    pub op: String,
    /// Name in the model.
    pub source: String,
    /// Floating-point operations of the operator's expressions.
    pub flops: u64,
    /// Placement of the operator; if parts of it run in several places, the region with the most of its FLOPs.
    pub placement: Placement,
    /// All placements of an operator whose parts run in several places, in the order of the program; otherwise empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<Placement>,
    /// Refusals by the backends that did not take the operator.
    pub refusals: Vec<RefusalRow>,
    /// Indices of the predecessors.
    pub inputs: Vec<usize>,
}

/// Placement of an operator. An operator counts as placed in a region if any of its expressions runs there.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq)]
pub struct Placement {
    /// Region, host or folded.
    pub kind: PlacementKind,
    /// Backend of the region.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend: Option<String>,
    /// Symbol of the region that runs the operator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub region: Option<String>,
    /// Description of the expression that the operator was folded into.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub into: Option<String>,
}

/// Kind of placement of an operator.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum PlacementKind {
    /// Executed by a region.
    Region,
    /// Executed on the host.
    #[default]
    Host,
    /// Not executed: the operator was folded into another operator or a constant, or removed.
    Folded,
}

impl PlacementKind {
    /// All kinds, in the order of reports.
    pub const ALL: [PlacementKind; 3] = [PlacementKind::Region, PlacementKind::Host, PlacementKind::Folded];

    /// Returns the name of the kind in reports and in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            PlacementKind::Region => "region",
            PlacementKind::Host => "host",
            PlacementKind::Folded => "folded",
        }
    }
}

/// Refusal of an operator by a backend, in the notation of the command line: [`Explanation::in_interface`].
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq, PartialOrd, Ord)]
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
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct RegionRow {
    /// Symbol of the region.
    pub symbol: String,
    /// Backend of the region.
    pub backend: String,
    /// Indices of the operators that have an expression in the region.
    pub nodes: Vec<usize>,
    /// Floating-point operations of one run.
    pub flops: u64,
    /// Input types.
    pub inputs: Vec<String>,
    /// Output types.
    pub outputs: Vec<String>,
    /// The backend's estimate of the cost of a run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub estimate: Option<Estimate>,
}

/// Totals over all operators of the model.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq)]
pub struct Totals {
    /// Number of operators of the model.
    pub operators: usize,
    /// Number of operators with an expression in a region.
    pub in_regions: usize,
    /// Number of operators that run on the host alone.
    pub on_host: usize,
    /// Number of folded operators.
    pub folded: usize,
    /// Number of regions.
    pub regions: usize,
    /// Floating-point operations of one run.
    pub flops: u64,
    /// Floating-point operations in regions.
    pub offload_flops: u64,
    /// `offload_flops / flops`; 0 for a model without floating-point operations.
    pub offload_share: f64,
    /// True if any dimension is unknown; an unknown dimension counts as 1 in the FLOPs.
    #[serde(skip)]
    pub open_dims: bool,
}
