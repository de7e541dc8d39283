//! Verdicts on operators, with the reasons for refusals.

use byoc_loops::operators::anchors::{self, ANCHORS};
use byoc_loops::operators::check::{self, Limits};
use byoc_loops::operators::views::VIEWS;
use byoc_loops::operators::{PATTERNS, elementwise};
use byoc_loops::print::c_types::c_type;
use byoc_plugin_api::Verdict;
use byoc_plugin_support::region::{Op, RegionIr};

/// Maximum number of operators in a region; a C compiler needs minutes for larger regions.
pub const MAX_OPERATORS: usize = 5_000;

/// Limits of the generated code.
const LIMITS: Limits = Limits {
    backend: "ccompiler",
    log2_elements: 31,
    stores: |dtype| c_type(dtype).is_some(),
    anchor: anchors::anchor,
};

/// Returns the pattern table.
pub fn patterns() -> String {
    format!("{PATTERNS}silu: multiply(*x, sigmoid(*x)) | multiply(sigmoid(*x), *x)\n")
}

/// Returns the single operators for the description, in order of preference.
pub fn operators() -> Vec<String> {
    let anchors = ANCHORS.iter().map(|entry| entry.0);
    anchors.chain(elementwise::names()).chain(VIEWS.iter().copied()).map(str::to_owned).collect()
}

/// Returns the verdict on an operator.
pub fn check(ir: &RegionIr<'_>, op: &Op<'_>) -> Verdict {
    check::operator(ir, op, &LIMITS).map_or_else(Verdict::from, |()| Verdict::Supported)
}
