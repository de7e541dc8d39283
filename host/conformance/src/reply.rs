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
        let Reply::Done(done) = reply else { return CaseReply::Failed(fault_of_reply(reply, "")) };
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        if let Some(share) = done["passed"].as_f64() {
            CaseReply::Passed(share)
        } else if let Some(refused) = done.get("refused") {
            CaseReply::Refused(text(&refused["code"]), text(&refused["detail"]))
        } else {
            fault_of(done).map_or(CaseReply::Invalid, CaseReply::Failed)
        }
    }
}

/// Returns the number of runs in a case that returned before their work was complete.
pub(super) fn unfinished_runs(reply: &Reply) -> u64 {
    match reply {
        Reply::Done(done) => done["unfinished"].as_u64().unwrap_or(0),
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
pub(super) fn fault_of(done: &Value) -> Option<Fault> {
    serde_json::from_value(done.get("fault")?.clone()).ok()
}

/// Converts a reply without a result to a fault of the entry that the worker was executing.
pub(super) fn fault_of_reply(reply: &Reply, entry: &str) -> Fault {
    let place = |at: &str| if at == "start" && !entry.is_empty() { entry.to_owned() } else { at.to_owned() };
    match reply {
        Reply::Died { at, region, termination, last_line } => {
            let after = last_line.as_ref().map(|line| format!(", after \"{line}\"")).unwrap_or_default();
            let exit_code = if let Termination::Exited(code) = termination { Some(*code) } else { None };
            let fault = Fault::new(Kind::Crash, &place(at), format!("{termination}{after}"));
            Fault { exit_code, ..fault }.in_region(region)
        }
        Reply::Late { at, region } => {
            Fault::new(Kind::TimeLimit, &place(at), "the entry did not return within the time limit").in_region(region)
        }
        Reply::Done(done) => {
            Fault::new(Kind::BadDescription, entry, format!("expected a worker response with a result, found: {done}"))
        }
    }
}
