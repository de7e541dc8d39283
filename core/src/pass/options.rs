//! What passes can be told.

use crate::ir::Name;
use crate::pattern::Entry;

/// The operators that a target takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetRule {
    /// The target. Composites named `<target>.x` are its own by name.
    pub target: Name,
    /// The operators, by name.
    pub operators: Vec<Name>,
}

/// The layout that an operator is to have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DesiredLayout {
    /// `nn.conv2d`, or a two-dimensional pooling.
    pub operator: Name,
    /// Of its data: an order of N, C, H and W.
    pub data: Name,
    /// Of its kernel: an order of O, I, H and W. By default what goes with the data: `OIHW` with `NCHW`, `HWIO` with
    /// `NHWC` (`HWOI` when depthwise).
    pub kernel: Option<Name>,
}

/// The options of all passes; each reads its own.
#[derive(Clone, Debug)]
pub struct PassOptions {
    /// `merge_composite`: the table.
    pub patterns: Vec<Entry>,
    /// `annotate_target`: what each target takes, in priority order.
    pub annotate: Vec<TargetRule>,
    /// `annotate_target`: whether tuples, projections and references get a target too.
    pub include_non_call_ops: bool,
    /// `partition_graph`: whether constant arguments move into the region.
    pub bind_constants: bool,
    /// `partition_graph`: the module's name in `tvmgen_<module>_...`.
    pub module_name: String,
    /// `outline_compiler_functions`, `mark_compiler_functions_extern`: whose functions; all when not given.
    pub compiler: Option<String>,
    /// `inline_compiler_functions_bound_to`: which global functions.
    pub inline_bound_to: Vec<String>,
    /// `convert_layout`: what is wanted.
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
