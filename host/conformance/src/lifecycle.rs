//! Plugin-wide checks on one passing case: cancelled and killed compilations, an unusable cache, low memory, and no
//! calls to services after the last region is dropped.

use super::case::{Case, Setting};
use super::driver::Run;
use super::fault::{Fault, Kind};
use super::reply::fault_in;
use super::report::{BackendReport, CHECKS, FailedCase};
use std::time::Duration;

impl Run<'_> {
    /// Runs the plugin-wide checks once, on a passing case.
    pub(super) fn check_lifecycle(&self, report: &mut BackendReport, case: &Case) {
        let backend = report.backend.clone();
        let [cancelled, interrupted, unusable_cache, little_memory, calls_after_drop] = CHECKS;
        let mut check = |name: &str, fault: Option<Fault>, setting: Setting| {
            let is_waived = fault.is_some() && self.is_waived(name);
            report.checks.push((name.to_owned(), fault.is_none() || is_waived));
            if let Some(fault) = fault {
                let case = Case { setting, ..case.clone() };
                let written_case = (!case.setting.is_plain()).then(|| self.write_case(&backend, &case, name, &fault));
                let (file, command) = written_case.flatten().unzip();
                let subject = name.to_owned();
                self.report_failure(report, FailedCase { subject, fault, case: case.description, file, command });
            }
        };
        (self.progress)("a cancelled compilation");
        let cancel_fault = self.request(&backend, case, false, None).ok().and_then(|mut request| {
            request["do"] = "cancel".into();
            fault_in(&self.supervisor(None).send(&request))
        });
        check(cancelled, cancel_fault, Setting::default());
        (self.progress)("an interrupted compilation");
        check(interrupted, self.check_interrupted(&backend, case), Setting::default());
        (self.progress)("an unusable cache directory");
        check(unusable_cache, self.check_unusable_cache(&backend, case), Setting::default());
        (self.progress)("too little memory");
        let (fault, memory) = self.check_low_memory(&backend, case).unzip();
        check(little_memory, fault, Setting { memory, ..case.setting.clone() });
        (self.progress)("host calls after the last region was dropped");
        let unload_fault = self.request(&backend, case, false, None).ok().and_then(|mut request| {
            request["do"] = "unload".into();
            fault_in(&self.supervisor(None).send(&request))
        });
        check(calls_after_drop, unload_fault, Setting::default());
    }

    /// Checks that cache entries of killed compilations do not break a later compilation.
    pub(super) fn check_interrupted(&self, backend: &str, case: &Case) -> Option<Fault> {
        let cache = self.scratch.join("interrupted");
        for milliseconds in [2, 10, 25, 60, 120] {
            let request = self.request(backend, case, false, Some(&cache)).ok()?;
            self.supervisor(None).interrupt(&request, Duration::from_millis(milliseconds));
            let fault = fault_in(&self.supervisor(None).send(&request));
            if let Some(fault) = fault {
                let message = format!("after a compilation that was killed after {milliseconds} ms: {fault}");
                return Some(Fault::new(Kind::Cache, "compile", message));
            }
        }
        None
    }

    /// Checks that a file in place of the cache directory is tolerated: an error is permitted, a crash or a wrong
    /// result is not.
    pub(super) fn check_unusable_cache(&self, backend: &str, case: &Case) -> Option<Fault> {
        let cache = self.scratch.join("no folder");
        std::fs::write(&cache, "a file").ok()?;
        let request = self.request(backend, case, false, Some(&cache)).ok()?;
        let fault = fault_in(&self.supervisor(None).send(&request))?;
        if matches!(fault.kind, Kind::ClaimNotKept | Kind::LoadFailed) {
            return None;
        }
        Some(Fault::new(
            Kind::Cache,
            &fault.entry,
            format!("with a file in place of the cache directory: {}", fault.message),
        ))
    }

    /// Checks that a small address space is tolerated: an error or an orderly exit is permitted. Returns the fault and
    /// the headroom in KiB.
    pub(super) fn check_low_memory(&self, backend: &str, case: &Case) -> Option<(Fault, u64)> {
        [1 << 10, 8 << 10, 64 << 10].into_iter().find_map(|headroom| {
            let (_, fault) = self.run_in_memory(backend, case, headroom)?;
            Some((fault?, headroom))
        })
    }
}
