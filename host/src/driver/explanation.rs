//! Explanation of a build as structured data: the placement of each model operator, and the refusals by backends.

use crate::wording::Interface;
use byoc_ir::diag::list;
use byoc_plugin_api::Estimate;
use serde::{Deserialize, Serialize};
use serde_json::Value;
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
    /// Changes with which backends take more of the model, smallest change first; empty unless they were asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub suggestions: Vec<Suggestion>,
    /// Backends and options of the build.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub build: Option<BuildRow>,
}

/// Backends and options of a build.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq)]
pub struct BuildRow {
    /// Backends, in priority order.
    pub backends: Vec<BackendRow>,
    /// Options that affect the result, as in an artifact.
    pub options: Value,
}

/// Backend of a build, with its plugin.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq)]
pub struct BackendRow {
    /// Name of the backend.
    pub name: String,
    /// Name of the plugin.
    pub plugin: String,
    /// Version of the plugin.
    pub version: String,
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
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq)]
pub struct RefusalRow {
    /// Name of the backend.
    pub backend: String,
    /// Refusal code.
    pub code: String,
    /// Reason for the refusal.
    pub detail: String,
    /// Remedy, or an empty string.
    pub hint: String,
    /// Entry of the backend's pattern table that came nearest to the operator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub near_miss: Option<NearMissRow>,
    /// Changes with which a backend takes the operator, smallest change first; empty unless they were asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub suggestions: Vec<Suggestion>,
}

impl RefusalRow {
    /// Returns the reason without what differs from operator to operator: backend, code, detail and hint.
    pub fn reason(&self) -> [&str; 4] {
        [&self.backend, &self.code, &self.detail, &self.hint]
    }

    /// Formats the refusal with the entry that came nearest.
    pub fn with_near_miss(&self) -> String {
        match &self.near_miss {
            Some(near_miss) => format!("{self}; nearest: {near_miss}"),
            None => self.to_string(),
        }
    }
}

/// Entry of a pattern table that came nearest to an operator, and where it stopped.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq)]
pub struct NearMissRow {
    /// Name of the entry.
    pub entry: String,
    /// Position in the pattern, such as `consumer of nn.bias_add`.
    pub position: String,
    /// Expected at that position.
    pub expected: String,
    /// Found at that position.
    pub found: String,
    /// Operators of the model that matched.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub matched: Vec<String>,
    /// Operator of the model that was found instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
}

impl NearMissRow {
    /// Formats the near miss without the names of operators in the model, as it may be common to many of them.
    pub fn kind(&self) -> String {
        format!("{}, {}: expected {}, found {}", self.entry, self.position, self.expected, self.found)
    }
}

impl fmt::Display for NearMissRow {
    /// Formats the near miss, for example `npu.conv2d_bias_relu matched Conv /0 and Add /1; consumer of nn.bias_add:
    /// expected nn.relu, found clip at Clip /2`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.entry)?;
        match &self.matched[..] {
            [] => {}
            [only] => write!(f, " matched {only}")?,
            [rest @ .., last] => write!(f, " matched {} and {last}", list(rest, ", "))?,
        }
        write!(f, "; {}: expected {}, found {}", self.position, self.expected, self.found)?;
        self.at.as_ref().map_or(Ok(()), |at| write!(f, " at {at}"))
    }
}

/// Change with which a backend takes operators that it refused.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq)]
pub struct Suggestion {
    /// Command that makes the change.
    pub command: String,
    /// Change in a few words.
    pub change: String,
    /// Number of operators of the model that move from the host to a backend.
    pub operators: usize,
    /// Share of the model's FLOPs that moves from the host to a backend.
    pub flops_share: f64,
    /// True if the change was made on a copy of the model, and judged by the backend.
    pub tried: bool,
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
