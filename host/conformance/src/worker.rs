//! Worker process of a conformance run. It loads the plugin in a separate process, so that a crash or an infinite loop
//! is a finding and does not end the run. The worker reads requests, one JSON object per line, and responds to each
//! with lines that name the current entry (`{"at": "compile"}`) and one line with the outcome (`{"done": ...}`).

use super::call_counter::{CallCounter, counting_services};
use super::case::{Case, OptionScope, Setting};
use super::fault::{CaseResult, Fault, Kind};
use super::harness::Harness;
use byoc::driver::backend::Backend;
use byoc::runtime::cancel::Cancel;
use byoc::runtime::choices::Choices;
use byoc::runtime::error::Failure;
use byoc::runtime::exec::Pool;
use byoc::runtime::plugin::registry::{Registry, Status, rejection_diagnostic};
use byoc::runtime::plugin::services::{Metrics, services};
use byoc_plugin_api::{BackendOption, Cost, Description, Loader, Services};
use serde_json::{Value, json};
use std::io::BufRead;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Worker with the plugin under test.
pub struct Worker {
    registry: Registry,
    /// Additional plugins, searched for a loader that the plugin under test does not register.
    others: Registry,
    services: Services,
    single_threaded: Services,
    call_counter: Arc<CallCounter>,
    cancel: Cancel,
    /// True if cases end after `compile`.
    until_compile: bool,
}

impl Worker {
    /// Loads the plugin, and the plugins in `dirs` for their loaders.
    ///
    /// # Errors
    /// If the plugin cannot be loaded, or threads cannot be started.
    pub fn new(file: &Path, dirs: &[PathBuf], threads: usize) -> Result<Worker, Failure> {
        let (call_counter, cancel) = (Arc::new(CallCounter::default()), Cancel::default());
        let make = |threads: usize| -> Result<Services, Failure> {
            let pool = Arc::new(Pool::new(threads)?);
            Ok(counting_services(services(pool, Arc::new(Metrics::default()), cancel.clone()), call_counter.clone()))
        };
        let (multi_threaded, single_threaded) = (make(threads)?, make(1)?);
        let registry = Registry::of_file(file, &multi_threaded);
        if let Some(Status::Rejected(rejection)) = registry.found().next().map(|f| &f.status) {
            return Err(rejection_diagnostic(file, rejection).into());
        }
        let other_plugins = if dirs.is_empty() { Registry::empty() } else { Registry::discover(dirs, &multi_threaded) };
        Ok(Worker {
            registry,
            others: other_plugins,
            services: multi_threaded,
            single_threaded,
            call_counter,
            cancel,
            until_compile: false,
        })
    }

    /// Ends cases after `compile`, if set.
    #[must_use]
    pub fn until_compile(self, until_compile: bool) -> Worker {
        Worker { until_compile, ..self }
    }

    /// Serves requests until end of input.
    pub fn serve(self, requests: impl BufRead, send: &dyn Fn(&Value)) {
        for line in requests.lines() {
            let Ok(line) = line else { return };
            let Ok(request) = serde_json::from_str::<Value>(&line) else { continue };
            let reply = self.respond(&request, &|entry, region| send(&json!({ "at": entry, "region": region })));
            send(&json!({ "done": reply }));
        }
    }

    fn respond(&self, request: &Value, progress: &dyn Fn(&str, &str)) -> Value {
        let text = |key: &str| request[key].as_str().unwrap_or_default();
        match text("do") {
            "backends" => json!(self.registry.backends()),
            "describe" => self.describe(request, progress),
            "memory" => json!(address_space()),
            "case" => self.case(request, progress),
            "unload" => self.unload(request, progress),
            "cancel" => self.cancel(request, progress),
            other => json!({ "error": format!("unknown request \"{other}\"") }),
        }
    }

    /// Calls `describe` twice, and compares the results. For a request with an option, returns the description with
    /// that option set.
    fn describe(&self, request: &Value, progress: &dyn Fn(&str, &str)) -> Value {
        let name = request["backend"].as_str().unwrap_or_default();
        progress("describe", "");
        let option: Option<(String, String)> = serde_json::from_value(request["option"].clone()).unwrap_or_default();
        let setting = Setting { option, ..Setting::default() };
        let backend = match self.backend(name, &setting) {
            Ok(backend) => backend,
            Err(failure) => {
                // Either the entry failed, or the host failed to process its result.
                let description = self.registry.codegen(name).ok().map(|(codegen, _)| codegen.describe());
                let is_panic = matches!(description, Some(Err(error)) if error.panicked);
                let kind = if is_panic { Kind::Panic } else { Kind::BadDescription };
                return json!({ "fault": Fault::new(kind, "describe", failure.to_string()) });
            }
        };
        let warnings: Vec<String> = backend
            .warnings
            .iter()
            .map(|w| {
                let notes: Vec<&str> = w.notes.iter().map(String::as_str).collect();
                if notes.is_empty() { w.message.clone() } else { format!("{} ({})", w.message, notes.join("; ")) }
            })
            .collect();
        let second_description = self
            .backend(name, &setting)
            .map(|second_description| second_description.description.to_json())
            .unwrap_or_default();
        let first_description = backend.description.to_json();
        let mut fault = (second_description != first_description)
            .then(|| Fault::new(Kind::BadDescription, "describe", "two calls return different descriptions"));
        progress("query", "");
        let devices: Vec<String> = match backend.devices() {
            Ok(devices) => devices.into_iter().map(|device| device.id).collect(),
            Err(failure) => {
                fault.get_or_insert(Fault::new(Kind::Query, "query", failure.to_string()));
                Vec::new()
            }
        };
        json!({
            "plugin": backend.plugin.name, "version": backend.plugin.version,
            "finite_math": backend.description.finite_math,
            "flush_to_zero": backend.description.flush_to_zero,
            "quantization": backend.description.quantization,
            "layouts": backend.description.layouts, "dynamic_dims": backend.description.dynamic_dims,
            "device_memory": backend.description.device_memory, "devices": devices,
            "control_flow": backend.description.control_flow, "loops": backend.description.loops,
            "options": options_of(&backend.description),
            "patterns": backend.description.patterns, "operators": backend.description.operators,
            "declares": backend.description.declares,
            "warnings": warnings, "fault": fault,
        })
    }

    fn case(&self, request: &Value, progress: &dyn Fn(&str, &str)) -> Value {
        let case = match Case::read(Path::new(request["file"].as_str().unwrap_or_default())) {
            Ok(case) => case,
            Err(failure) => return json!({ "invalid": failure.to_string() }),
        };
        let is_thorough = request["thorough"].as_bool().unwrap_or(false);
        match self.with_harness(request, &case.setting, progress, |harness| harness.try_case(&case, is_thorough)) {
            Ok(outcome) => result_to_json(&outcome),
            Err(failure) => json!({ "fault": Fault::new(Kind::BadDescription, "describe", failure.to_string()) }),
        }
    }

    /// Runs a case, drops its regions, and counts subsequent service calls.
    fn unload(&self, request: &Value, progress: &dyn Fn(&str, &str)) -> Value {
        let reply = self.case(request, progress);
        if reply.get("passed").is_none() {
            return reply;
        }
        progress("after the region was dropped", "");
        let calls_before = self.call_counter.calls();
        std::thread::sleep(Duration::from_millis(250));
        let calls = self.call_counter.calls() - calls_before;
        if calls == 0 {
            return reply;
        }
        let message = format!(
            "expected no calls to host services after the last region was dropped, found {calls} within 250 ms"
        );
        json!({ "fault": Fault::new(Kind::WorksAfterUnload, "run", message) })
    }

    /// Cancels a compilation, which must report the cancellation or finish regardless. The next compilation must
    /// succeed.
    fn cancel(&self, request: &Value, progress: &dyn Fn(&str, &str)) -> Value {
        let Ok(case) = Case::read(Path::new(request["file"].as_str().unwrap_or_default())) else { return Value::Null };
        let fault_when_cancelled = self.with_harness(request, &case.setting, progress, |harness| {
            let test_regions = harness.partition(&case).unwrap_or_default();
            self.cancel.set(true);
            let mut faults =
                test_regions.iter().filter_map(|test_region| harness.compile(test_region, harness.cache_dir).err());
            let other_fault = faults.find(|fault| fault.kind != Kind::Cancelled);
            self.cancel.set(false);
            other_fault
        });
        match fault_when_cancelled {
            Ok(Some(fault)) if fault.kind != Kind::Panic => {
                let message = format!(
                    "cancelled compilation: expected success or Error::cancelled, found another error: {}",
                    fault.message
                );
                json!({ "fault": Fault::new(Kind::Cancelled, "compile", message) })
            }
            Ok(Some(fault)) => json!({ "fault": fault }),
            _ => match self.case(request, progress) {
                Value::Object(reply) if reply.contains_key("fault") => {
                    let message = format!("after a cancelled compilation: {}", reply["fault"]["message"]);
                    json!({ "fault": Fault::new(Kind::Cancelled, "compile", message) })
                }
                reply => reply,
            },
        }
    }

    /// Returns a backend, with its description for the option and device of a case.
    fn backend(&self, name: &str, setting: &Setting) -> Result<Backend<'_>, Failure> {
        let mut backend = Backend::find(&self.registry, name)?;
        if let Some((option, value)) = setting.option.as_ref().filter(|_| setting.option_scope == OptionScope::All) {
            backend.choose(option, value).map_err(|diagnostic| Failure::from(*diagnostic))?;
        }
        let devices = setting.device.iter().map(|device| (backend.name.clone(), device.clone())).collect();
        Ok(backend.configured(&Choices { devices, ..Choices::default() })?.allowing_all())
    }

    fn with_harness<R>(
        &self,
        request: &Value,
        setting: &Setting,
        progress: &dyn Fn(&str, &str),
        body: impl FnOnce(&Harness<'_, '_>) -> R,
    ) -> Result<R, Failure> {
        let mut backend = self.backend(request["backend"].as_str().unwrap_or_default(), setting)?;
        // Cost bounds concern profitability, not correctness; a case is smaller than any profitable region.
        backend.description.cost = Cost::default();
        let plugin_name = &backend.plugin.name;
        let loader = |key: &str| -> Option<Arc<dyn Loader>> {
            self.registry.loader(key, plugin_name).or_else(|| self.others.loader(key, plugin_name))
        };
        let harness = Harness {
            backend: &backend,
            find_loader: &loader,
            services: &self.services,
            single_threaded: &self.single_threaded,
            cache_dir: request["cache_dir"].as_str().map(Path::new),
            setting,
            until_compile: self.until_compile,
            progress,
        };
        Ok(body(&harness))
    }
}

/// Returns the options of a description that have a list of values, by name.
fn options_of(description: &Description) -> Value {
    let options_with_values = description.options.iter().filter(|(_, option)| !option.values.is_empty());
    let values = |option: &BackendOption| json!({ "values": option.values, "load": option.load, "run": option.run });
    options_with_values.map(|(name, option)| (name.clone(), values(option))).collect::<serde_json::Map<_, _>>().into()
}

fn result_to_json(outcome: &CaseResult) -> Value {
    match outcome {
        CaseResult::Passed { share, unfinished } => json!({ "passed": share, "unfinished": unfinished }),
        CaseResult::Refused(refusal) => {
            json!({ "refused": { "code": refusal.code.to_string(), "detail": refusal.detail } })
        }
        CaseResult::Invalid(reason) => json!({ "invalid": reason }),
        CaseResult::Failed(fault) => json!({ "fault": fault }),
    }
}

/// Returns the size of this process's address space in KiB; 0 if the system does not report it.
fn address_space() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmSize:"));
    line.and_then(|l| l.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}
