//! Claims of a description besides its patterns and operators, and the cases that tested them.

use super::case::Case;
use super::generate::draw::Layouts;
use super::reply::CaseReply;
use super::report::ClaimReport;
use byoc_ir::op;
use serde_json::Value;
use std::collections::BTreeMap;

/// Name of the claim that dimensions may be unknown until the run.
pub const OPEN_DIMS: &str = "open dimensions";

/// Claims and their counts.
pub(super) struct Claims {
    /// True if the backend takes open dimensions.
    pub open_dims: bool,
    /// Values of each option that has a list of them.
    pub options: BTreeMap<String, Vec<String>>,
    layouts: Layouts,
    /// Counts, by the name of the claim.
    pub reports: Vec<ClaimReport>,
}

/// Returns the name of the claim that an option has a value.
pub(super) fn option_claim(option: &str, value: &str) -> String {
    format!("option {option}={value}")
}

fn layout_claim(operator: &str) -> String {
    format!("layout {operator}")
}

impl Claims {
    /// Returns the claims of a description.
    pub fn of(description: &Value, layouts: &Layouts) -> Claims {
        let options: BTreeMap<String, Vec<String>> =
            serde_json::from_value(description["options"].clone()).unwrap_or_default();
        let open_dims = description["dynamic_dims"] == true;
        let of_options =
            options.iter().flat_map(|(name, values)| values.iter().map(move |value| option_claim(name, value)));
        let names =
            layouts.keys().map(|operator| layout_claim(operator)).chain(open_dims.then(|| OPEN_DIMS.to_owned()));
        let reports = names.chain(of_options).map(|claim| ClaimReport { claim, cases: 0, tested: 0 }).collect();
        Claims { open_dims, options, layouts: layouts.clone(), reports }
    }

    /// Counts the outcome of a case of a claim.
    pub fn count(&mut self, claim: &str, outcome: &CaseReply) {
        if let Some(report) = self.reports.iter_mut().find(|report| report.claim == claim) {
            report.cases += usize::from(!matches!(outcome, CaseReply::Invalid));
            report.tested += usize::from(matches!(outcome, CaseReply::Passed(_) | CaseReply::Failed(_)));
        }
    }

    /// Counts the outcome of a case for each operator in it that has its declared layout.
    pub fn count_layouts(&mut self, case: &Case, outcome: &CaseReply) {
        if self.layouts.is_empty() {
            return;
        }
        for (_, node) in case.module.nodes.iter() {
            let Some((operator, call)) = node.expr.as_op_call() else { continue };
            let name = op::get(operator).name;
            let given = ["data_layout", "layout"].into_iter().find_map(|key| call.attrs.str(key));
            let declared = self.layouts.get(name).and_then(|layouts| layouts.first()).map(String::as_str);
            if declared.is_some() && declared == given {
                self.count(&layout_claim(name), outcome);
            }
        }
    }
}
