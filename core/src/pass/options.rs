//! Options of the passes.

use crate::pattern::Entry;
use byoc_ir::ir::Name;

/// Operators that a target takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetRule {
    /// Target. Composites named `<target>.x` belong to it by name.
    pub target: Name,
    /// Names of the operators.
    pub operators: Vec<Name>,
}

/// Layout requested for an operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DesiredLayout {
    /// Operator: `nn.conv2d`, or a two-dimensional pooling.
    pub operator: Name,
    /// Layout of the data: an order of N, C, H and W.
    pub data: Name,
    /// Layout of the kernel: an order of O, I, H and W. The default follows from the data: `OIHW` with `NCHW`, `HWIO`
    /// with `NHWC` (`HWOI` when depthwise).
    pub kernel: Option<Name>,
}

/// Options of all passes; each reads its own.
#[derive(Clone, Debug)]
pub struct PassOptions {
    /// `merge_composite`: pattern table.
    pub patterns: Vec<Entry>,
    /// `annotate_target`: operators of each target, in priority order.
    pub annotate: Vec<TargetRule>,
    /// `annotate_target`: assigns a target to tuples, projections and references too.
    pub include_non_call_ops: bool,
    /// `partition_graph`: moves constant arguments into the region.
    pub bind_constants: bool,
    /// `partition_graph`: name of the module in `tvmgen_<module>_...`.
    pub module_name: String,
    /// `outline_compiler_functions`, `mark_compiler_functions_extern`: backend whose functions to process; all if
    /// `None`.
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
