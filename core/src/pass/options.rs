//! Options of the passes.

use crate::pattern::Entry;
use byoc_ir::ir::Name;

/// Operators that are assigned to a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetRule {
    /// Name of the target. Composites named `<target>.x` belong to the target without being listed.
    pub target: Name,
    /// Operator names, as in the operator table.
    pub operators: Vec<Name>,
}

/// Layout requested for an operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DesiredLayout {
    /// Name of the operator: `nn.conv2d`, or a two-dimensional pooling operator.
    pub operator: Name,
    /// Layout of the data: an order of N, C, H and W.
    pub data: Name,
    /// Layout of the weights: an order of O, I, H and W. The default follows from the data layout: `OIHW` for `NCHW`,
    /// `HWIO` for `NHWC` (`HWOI` if depthwise).
    pub kernel: Option<Name>,
}

/// Options of all passes. Each option names the passes that read it.
#[derive(Clone, Debug)]
pub struct PassOptions {
    /// `merge_composite`: pattern table.
    pub patterns: Vec<Entry>,
    /// `annotate_target`: operators of each target, in priority order.
    pub annotate: Vec<TargetRule>,
    /// `annotate_target`: true if tuples, projections and references are assigned to targets, too.
    pub include_non_call_ops: bool,
    /// `partition_graph`: true if constant arguments move into the region.
    pub bind_constants: bool,
    /// `partition_graph`: name of the module in `tvmgen_<module>_...`.
    pub module_name: String,
    /// `outline_compiler_functions`, `mark_compiler_functions_extern`: backend whose functions are processed; `None`
    /// for all backends.
    pub compiler: Option<String>,
    /// `inline_compiler_functions_bound_to`: names of the global functions to inline.
    pub inline_bound_to: Vec<String>,
    /// `convert_layout`: requested layouts.
    pub layouts: Vec<DesiredLayout>,
}

impl Default for PassOptions {
    fn default() -> PassOptions {
        PassOptions {
            patterns: Vec::new(),
            annotate: Vec::new(),
            include_non_call_ops: true,
            bind_constants: true,
            module_name: "default".to_owned(),
            compiler: None,
            inline_bound_to: Vec::new(),
            layouts: Vec::new(),
        }
    }
}
