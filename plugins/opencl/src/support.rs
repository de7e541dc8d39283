//! Verdicts on operators, with the reasons for refusals.

use byoc_loops::operators::anchors::ANCHORS;
use byoc_loops::operators::check::{self, Limits};
use byoc_loops::operators::views::VIEWS;
use byoc_loops::operators::{anchors, elementwise};
use byoc_loops::types::is_computed_on_device;
use byoc_plugin_api::DType;
use byoc_plugin_support::refusal::CompileError;
use byoc_plugin_support::region::{Op, RegionIr};

/// Maximum number of operators per region; with more, drivers take minutes to build the kernels.
pub const MAX_OPERATORS: usize = 5_000;

/// Elementwise operators that OpenCL C has no function for.
const MISSING: [&str; 2] = ["floor_divide", "floor_mod"];

/// Limits of the kernels, whose indices are 32-bit integers.
const LIMITS: Limits = Limits {
    backend: "opencl",
    log2_elements: 30,
    stores: |dtype| is_computed_on_device(dtype) && !matches!(dtype, DType::U32 | DType::U64),
    anchor: anchors::anchor,
};

/// Returns the names of the supported operators, in order of preference.
pub fn operators() -> Vec<String> {
    let names = ANCHORS.iter().map(|entry| entry.0).chain(elementwise::names()).chain(VIEWS.iter().copied());
    names.filter(|name| !MISSING.contains(name)).map(str::to_owned).collect()
}

/// Checks that an operator has a kernel.
///
/// # Errors
/// If the operator has no kernel for its element types, shapes or attributes.
pub fn check(ir: &RegionIr<'_>, op: &Op<'_>) -> Result<(), CompileError> {
    check::operator(ir, op, &LIMITS)
}
