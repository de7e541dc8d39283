//! Conversion of worker replies to case outcomes and faults.

use super::fault::{Fault, Kind};
use super::supervise::{Reply, Termination};
use serde_json::Value;

/// Outcome of a case, as the worker reported it.
pub(super) enum CaseReply {
    Passed(f64),
    Refused(String, String),
    Invalid,
    Failed(Fault),
}

impl CaseReply {
    pub(super) fn of(reply: &Reply) -> CaseReply {
        let Reply::Done(data) = reply else { return CaseReply::Failed(fault_of_reply(reply, "")) };
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        if let Some(passed_share) = data["passed"].as_f64() {
            CaseReply::Passed(passed_share)
        } else if let Some(refusal) = data.get("refused") {
            CaseReply::Refused(text(&refusal["code"]), text(&refusal["detail"]))
        } else {
            fault_of(data).map_or(CaseReply::Invalid, CaseReply::Failed)
        }
    }
}

/// Returns the number of runs in a case that returned before their work was complete.
pub(super) fn unfinished_runs(reply: &Reply) -> u64 {
    match reply {
        Reply::Done(data) => data["unfinished"].as_u64().unwrap_or(0),
        _ => 0,
    }
}

/// Returns the fault in a reply.
pub(super) fn fault_in(reply: &Reply) -> Option<Fault> {
    match CaseReply::of(reply) {
        CaseReply::Failed(fault) => Some(fault),
        _ => None,
    }
}

/// Returns the fault in a worker response.
pub(super) fn fault_of(data: &Value) -> Option<Fault> {
    serde_json::from_value(data.get("fault")?.clone()).ok()
}

/// Converts a reply without a result to a fault of the entry that the worker was executing.
pub(super) fn fault_of_reply(reply: &Reply, entry: &str) -> Fault {
    let entry_name = |call: &str| if call == "start" && !entry.is_empty() { entry.to_owned() } else { call.to_owned() };
    match reply {
        Reply::Died { entry: call, region, termination, last_line } => {
            let suffix = last_line.as_ref().map(|line| format!(", after \"{line}\"")).unwrap_or_default();
            let exit_code = if let Termination::Exited(code) = termination { Some(*code) } else { None };
            let fault = Fault::new(Kind::Crash, &entry_name(call), format!("{termination}{suffix}"));
            Fault { exit_code, ..fault }.in_region(region)
        }
        Reply::Late { entry: call, region } => {
            Fault::new(Kind::TimeLimit, &entry_name(call), "the entry did not return within the time limit")
                .in_region(region)
        }
        Reply::Done(data) => {
            Fault::new(Kind::BadDescription, entry, format!("expected a worker response with a result, found: {data}"))
        }
    }
}
