//! Explanation of a build as structured data: the placement of each model operator, and the refusals by backends.

use crate::wording::Interface;
use byoc_plugin_api::Estimate;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Explanation of a model.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq)]
pub struct Explanation {
    /// Model operators, in file order.
    pub nodes: Vec<NodeRow>,
    /// Regions, in program order.
    pub regions: Vec<RegionRow>,
    /// Copies per run between host memory and device memories; empty without device memories.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub copies: Vec<CopyRow>,
    /// Totals over all model operators.
    pub totals: Totals,
}

impl Explanation {
    /// Returns the explanation with refusals that name the options or functions of `interface`.
    pub fn in_interface(&self, interface: Interface) -> Explanation {
        let mut copy = self.clone();
        for refusal in copy.nodes.iter_mut().flat_map(|node| &mut node.refusals) {
            refusal.detail = interface.words(&refusal.detail).into_owned();
            refusal.hint = interface.words(&refusal.hint).into_owned();
        }
        copy
    }
}

/// Copies between host memory and the memory of a backend's device, counted by program instruction: an instruction in a
/// loop counts once.
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

/// Explanation of a model operator.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct NodeRow {
    /// Index of the operator in [`Explanation::nodes`].
    pub id: usize,
    /// Operator type in the model.
    pub op: String,
    /// Name in the model.
    pub source: String,
    /// Number of floating-point operations in the operator's expressions.
    pub flops: u64,
    /// Placement of the operator; if its parts have different placements, the region with the largest share of its
    /// FLOPs.
    pub placement: Placement,
    /// All placements, in program order, of an operator whose parts have different placements; otherwise empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<Placement>,
    /// Refusals by the backends that did not accept the operator.
    pub refusals: Vec<RefusalRow>,
    /// Indices of the predecessors.
    pub inputs: Vec<usize>,
}

/// Placement of an operator. An operator is placed in a region if any of its expressions runs there.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq)]
pub struct Placement {
    /// Kind of placement: region, host or folded.
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

/// Kind of operator placement.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum PlacementKind {
    /// Executed by a region.
    Region,
    /// Executed on the host.
    #[default]
    Host,
    /// Not executed: the operator was folded into an operator or a constant, or removed.
    Folded,
}

impl PlacementKind {
    /// All kinds, in report order.
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

/// Refusal of an operator by a backend, with texts that name command-line options; [`Explanation::in_interface`]
/// converts them.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq, PartialOrd, Ord)]
pub struct RefusalRow {
    /// Name of the backend.
    pub backend: String,
    /// Refusal code.
    pub code: String,
    /// Reason for the refusal.
    pub detail: String,
    /// Remedy, or an empty string.
    pub hint: String,
}

impl fmt::Display for RefusalRow {
    /// Formats the refusal, for example `nuc: UnsupportedDtype: expected float32, found float64 (cast it first)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}", self.backend, self.code, self.detail)?;
        if self.hint.is_empty() { Ok(()) } else { write!(f, " ({})", self.hint) }
    }
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
    /// Number of floating-point operations per run.
    pub flops: u64,
    /// Input types.
    pub inputs: Vec<String>,
    /// Output types.
    pub outputs: Vec<String>,
    /// Precision that the backend claims for operators of the region, one line for each claim.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub precision: Vec<String>,
    /// Cost per run, as estimated by the backend.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub estimate: Option<Estimate>,
}

/// Totals over all model operators.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq)]
pub struct Totals {
    /// Number of model operators.
    pub operators: usize,
    /// Number of operators with an expression in a region.
    pub in_regions: usize,
    /// Number of operators that run only on the host.
    pub on_host: usize,
    /// Number of folded operators.
    pub folded: usize,
    /// Number of regions.
    pub regions: usize,
    /// Number of floating-point operations per run.
    pub flops: u64,
    /// Number of floating-point operations in regions per run.
    pub offload_flops: u64,
    /// `offload_flops / flops`; 0 for a model without floating-point operations.
    pub offload_share: f64,
    /// True if any dimension is unknown; an unknown dimension counts as 1 in the FLOPs.
    #[serde(skip)]
    pub open_dims: bool,
}
