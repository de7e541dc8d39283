//! Backend claims other than patterns and operators, with their case counts.

use super::case::Case;
use super::generate::draw::Layouts;
use super::reply::CaseReply;
use super::report::ClaimReport;
use byoc_ir::op;
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;

/// Name of the claim that dimensions may be known only at run time.
pub const OPEN_DIMS: &str = "open dimensions";

/// Name of the claim that tensors may be in device memory.
pub const DEVICE_MEMORY: &str = "device memory";

/// Name of the claim that regions may contain branches.
pub const CONTROL_FLOW: &str = "control flow";

/// Name of the claim that regions may contain while loops.
pub const LOOPS: &str = "loops";

/// Name of the claim that a run may return before its work is complete. A backend makes the claim by submitting
/// unfinished work.
pub const STREAMS: &str = "unfinished runs";

/// Claims and their case counts.
pub(super) struct Claims {
    /// True if the backend accepts open dimensions.
    pub open_dims: bool,
    /// True if the backend has devices with separate memory.
    pub device_memory: bool,
    /// True if the backend executes branches.
    pub control_flow: bool,
    /// True if the backend executes while loops.
    pub loops: bool,
    /// Options with a list of values, by name.
    pub options: Vec<(String, OptionValues)>,
    /// Devices that the backend lists.
    pub devices: Vec<String>,
    layouts: Layouts,
    /// Case counts per claim.
    pub reports: Vec<ClaimReport>,
}

/// Backend option in the description sent by the worker.
#[derive(Clone, Deserialize)]
pub(super) struct OptionValues {
    pub values: Vec<String>,
    /// True if the option may be set at load.
    pub load: bool,
    /// True if the option may be set for each run.
    pub run: bool,
}

/// Returns the name of the claim that a device is supported.
pub(super) fn device_claim(device: &str) -> String {
    format!("device {device}")
}

/// Returns the name of the claim that an option value is supported.
pub(super) fn option_claim(option: &str, value: &str) -> String {
    format!("option {option}={value}")
}

fn layout_claim(operator: &str) -> String {
    format!("layout {operator}")
}

impl Claims {
    /// Returns the claims of a description.
    pub fn of(description: &Value, layouts: &Layouts) -> Claims {
        let options: BTreeMap<String, OptionValues> =
            serde_json::from_value(description["options"].clone()).unwrap_or_default();
        let options: Vec<(String, OptionValues)> = options.into_iter().collect();
        let devices: Vec<String> = serde_json::from_value(description["devices"].clone()).unwrap_or_default();
        let (open_dims, device_memory) = (description["dynamic_dims"] == true, description["device_memory"] == true);
        let (control_flow, loops) = (description["control_flow"] == true, description["loops"] == true);
        let option_claims =
            options.iter().flat_map(|(name, option)| option.values.iter().map(move |value| option_claim(name, value)));
        let names = layouts
            .keys()
            .map(|operator| layout_claim(operator))
            .chain(open_dims.then(|| OPEN_DIMS.to_owned()))
            .chain(device_memory.then(|| DEVICE_MEMORY.to_owned()))
            .chain(control_flow.then(|| CONTROL_FLOW.to_owned()))
            .chain(loops.then(|| LOOPS.to_owned()))
            .chain(option_claims)
            .chain(devices.iter().map(|device| device_claim(device)));
        let reports = names.map(|claim| ClaimReport { claim, cases: 0, tested: 0 }).collect();
        Claims { open_dims, device_memory, control_flow, loops, options, devices, layouts: layouts.clone(), reports }
    }

    /// Counts a case outcome for a claim that the description does not contain.
    pub fn count_discovered(&mut self, claim: &str, outcome: &CaseReply) {
        if !self.reports.iter().any(|report| report.claim == claim) {
            self.reports.push(ClaimReport { claim: claim.to_owned(), cases: 0, tested: 0 });
        }
        self.count(claim, outcome);
    }

    /// Counts a case outcome for a claim.
    pub fn count(&mut self, claim: &str, outcome: &CaseReply) {
        if let Some(report) = self.reports.iter_mut().find(|report| report.claim == claim) {
            report.cases += usize::from(!matches!(outcome, CaseReply::Invalid));
            report.tested += usize::from(matches!(outcome, CaseReply::Passed(_) | CaseReply::Failed(_)));
        }
    }

    /// Returns the number of supported cases of a claim.
    pub fn tested_count(&self, claim: &str) -> usize {
        self.reports.iter().find(|report| report.claim == claim).map_or(0, |report| report.tested)
    }

    /// Counts a case outcome for each operator in the case that uses its first declared data layout.
    pub fn count_layouts(&mut self, case: &Case, outcome: &CaseReply) {
        if self.layouts.is_empty() {
            return;
        }
        for (_, node) in case.module.nodes.iter() {
            let Some((operator, call)) = node.expr.as_op_call() else { continue };
            let name = op::get(operator).name;
            let layout = ["data_layout", "layout"].into_iter().find_map(|key| call.attrs.str(key));
            let default_layout = self.layouts.get(name).and_then(|layouts| layouts.first()).map(String::as_str);
            if default_layout.is_some() && default_layout == layout {
                self.count(&layout_claim(name), outcome);
            }
        }
    }
}
