//! Conformance run of a backend: tests its claims with generated cases, then runs the plugin-wide checks.

use super::case::{Case, OptionScope, Setting, Subject};
use super::claims::{Claims, OptionValues, device_claim, option_claim};
use super::fault::{Fault, Kind};
use super::generate::draw::{Layouts, Restrictions, Scheme};
use super::generate::{Cases, Claim, Neighbor};
use super::reply::{CaseReply, fault_of, fault_of_reply};
use super::report::{BackendReport, FailedCase, Reason, SubjectReport};
use super::subject::{Progress, Tally};
use super::supervise::Reply;
use byoc_core::pattern::{Checks, Entry, parse_table};
use byoc_ir::declared;
use byoc_ir::op::{self, OpDef};
use byoc_ir::tensor::DType;
use byoc_plugin_api::Quantization;
use serde_json::{Value, json};

pub use super::driver::{Options, Run};

/// Maximum number of cases per option value, and per device.
const MAX_OPTION_CASES: usize = 32;
const MAX_CASES_PER_DEVICE: usize = 8;

/// Maximum number of rounds that combine untested claims with neighbors; each round adds a neighbor to the cases.
const MAX_NEIGHBORS: usize = 2;

/// Maximum number of cases drawn to find a passing sample of an unselected claim.
const MAX_DRAWN_NEIGHBORS: usize = 6;

/// Refusal code of a claim that requires a device, a driver or instructions that the machine lacks.
const UNAVAILABLE: &str = "Unavailable";

/// Parses the declared quantization scheme of a description.
fn scheme_of(scheme: &Value) -> Option<Scheme> {
    let scheme: Quantization = serde_json::from_value(scheme.clone()).ok()?;
    let activation = if scheme.activation == "uint8" { DType::U8 } else { DType::I8 };
    Some(Scheme { activation, symmetric: scheme.symmetric, power_of_two: scheme.power_of_two })
}

impl Run<'_> {
    /// Returns the backends that the plugin registers.
    ///
    /// # Errors
    /// If the plugin cannot be loaded.
    pub fn backends(&self) -> Result<Vec<String>, Fault> {
        match self.supervisor(None).send(&json!({ "do": "backends" })) {
            Reply::Done(Value::Array(names)) => Ok(names.iter().filter_map(|n| n.as_str().map(String::from)).collect()),
            reply => Err(fault_of_reply(&reply, "init")),
        }
    }

    /// Tests one backend, and returns the findings.
    pub fn test(&self, backend: &str) -> BackendReport {
        let mut report = BackendReport::new(backend);
        let mut worker = self.supervisor(None);
        (self.progress)("describe");
        let description = match worker.send(&json!({ "do": "describe", "backend": backend })) {
            Reply::Done(description) => description,
            reply => {
                report.faults.push(fault_of_reply(&reply, "describe"));
                return report;
            }
        };
        if let Some(fault) = fault_of(&description) {
            report.faults.push(fault);
            if description.get("patterns").is_none() {
                return report;
            }
        }
        let text = |key: &str| description[key].as_str().unwrap_or_default().to_owned();
        (report.plugin, report.version) = (text("plugin"), text("version"));
        report.finite_math = description["finite_math"] == true;
        report.flush_to_zero = description["flush_to_zero"] == true;
        let warnings = description["warnings"].as_array().into_iter().flatten();
        let faults = warnings.filter_map(|w| w.as_str()).map(|w| Fault::new(Kind::BadDescription, "describe", w));
        report.faults.extend(faults);
        let (table, operators) = subjects_of(backend, &description);
        report.subject_names = subject_names(&table, &operators);
        let layouts: Layouts = serde_json::from_value(description["layouts"].clone()).unwrap_or_default();
        let scheme = scheme_of(&description["quantization"]);
        let cases = Cases { seed: self.options.seed, scheme, layouts: layouts.into() };
        let claims = Claims::of(&description, &cases.layouts);
        let mut progress = Progress { worker, report, claims, cases, refused_dtypes: Vec::new() };
        let samples = self.try_subjects(&mut progress, &table, &operators);
        self.try_options(&mut progress, &samples, (&table[..], &operators[..]));
        self.try_devices(&mut progress, &samples);
        let Progress { mut report, claims, .. } = progress;
        report.claims = claims.reports;
        self.report_untested(&mut report);
        if let Some(case) = samples.first() {
            self.check_lifecycle(&mut report, case);
        }
        report
    }

    /// Tests every pattern and operator, and regions with several operators. Returns passed cases: the first one of
    /// each subject, then the second one of each, and so on.
    fn try_subjects(&self, progress: &mut Progress, table: &[Entry], operators: &[&'static OpDef]) -> Vec<Case> {
        let claims = table.iter().map(Claim::Pattern).chain(operators.iter().map(|&def| Claim::Operator(def)));
        let claims: Vec<Claim<'_>> = claims.filter(|claim| self.is_selected(&claim.subject())).collect();
        let mut tallies: Vec<Tally> = claims
            .iter()
            .map(|&claim| {
                let make = |cases: &Cases, index, restrictions| cases.single_case(claim, index, restrictions);
                self.try_alone(progress, &claim.subject(), make)
            })
            .collect();
        let mut other_samples = None;
        for _ in 0..MAX_NEIGHBORS {
            let untested: Vec<usize> = (0..claims.len()).filter(|&i| tallies[i].tested_count() == 0).collect();
            if untested.is_empty() {
                break;
            }
            let other_samples =
                other_samples.get_or_insert_with(|| self.unselected_samples(progress, table, operators));
            let passed_claims = claims.iter().zip(&tallies).filter(|(_, tally)| !tally.samples.is_empty());
            let selected_claims =
                passed_claims.map(|(&claim, tally)| Neighbor { claim, samples: tally.samples.clone() });
            let neighbors: Vec<Neighbor<'_>> = selected_claims.chain(other_samples.iter().cloned()).collect();
            for &i in &untested {
                self.try_with_neighbors(progress, &mut tallies[i], claims[i], &neighbors);
            }
            if untested.iter().all(|&i| tallies[i].tested_count() == 0) {
                break;
            }
        }
        if operators.len() > 1 && self.is_selected(&Subject::Region) {
            let make = |cases: &Cases, index, _| cases.region(operators, index);
            tallies.push(self.try_alone(progress, &Subject::Region, make));
        }
        let rounds = tallies.iter().map(|tally| tally.samples.len()).max().unwrap_or(0);
        let samples =
            (0..rounds).flat_map(|round| tallies.iter().filter_map(move |tally| tally.samples.get(round).cloned()));
        let samples = samples.collect();
        progress.report.subjects.extend(tallies.into_iter().map(|tally| tally.report));
        samples
    }

    /// Returns the unselected claims, each with a passing case, as neighbors for the selected claims.
    fn unselected_samples<'c>(
        &self,
        progress: &mut Progress,
        table: &'c [Entry],
        operators: &[&'static OpDef],
    ) -> Vec<Neighbor<'c>> {
        let all_claims = table.iter().map(Claim::Pattern).chain(operators.iter().map(|&def| Claim::Operator(def)));
        let other_samples = all_claims.filter(|claim| !self.is_selected(&claim.subject()));
        other_samples
            .filter_map(|claim| {
                let candidates = (0..MAX_DRAWN_NEIGHBORS)
                    .filter_map(|index| progress.cases.single_case(claim, index, Restrictions::default()));
                let candidates: Vec<Case> = candidates.collect();
                let sample = candidates.into_iter().find(|case| {
                    let reply = self.run_case(&mut progress.worker, &progress.report.backend, case, false);
                    matches!(CaseReply::of(&reply), CaseReply::Passed(_))
                })?;
                Some(Neighbor { claim, samples: vec![sample] })
            })
            .collect()
    }

    /// Tests every value of every option, on cases that passed without the option and on claims that need it.
    fn try_options(&self, progress: &mut Progress, samples: &[Case], selected_claims: (&[Entry], &[&'static OpDef])) {
        for (option, OptionValues { values, load, run }) in progress.claims.options.clone() {
            let scopes: Vec<OptionScope> =
                [load.then_some(OptionScope::Load), run.then_some(OptionScope::Run)].into_iter().flatten().collect();
            for value in values {
                let name = option_claim(&option, &value);
                if self.is_waived(&name) {
                    continue;
                }
                (self.progress)(&name);
                let option_setting = Some((option.clone(), value.clone()));
                for sample in samples.iter().take(MAX_OPTION_CASES) {
                    let setting = Setting { option: option_setting.clone(), ..sample.setting.clone() };
                    let case = Case { setting, ..sample.clone() };
                    let mut is_good = self.try_variant(progress, case.clone(), &name);
                    for &option_scope in &scopes {
                        let setting = Setting { option_scope, ..case.setting.clone() };
                        is_good = is_good && self.try_variant(progress, Case { setting, ..case.clone() }, &name);
                    }
                    if !is_good {
                        break;
                    }
                }
                // The option value may admit further element types.
                for case in progress.refused_dtypes.clone() {
                    let setting = Setting { option: option_setting.clone(), ..case.setting.clone() };
                    if !self.try_variant(progress, Case { setting, ..case }, &name) {
                        break;
                    }
                }
                self.try_claims_under(progress, option_setting, &name, selected_claims);
            }
        }
    }

    /// Tests the claims that need an option: claims that appear in the description only with the option set, and claims
    /// without a supported case in the default configuration.
    fn try_claims_under(
        &self,
        progress: &mut Progress,
        option: Option<(String, String)>,
        name: &str,
        (table, operators): (&[Entry], &[&'static OpDef]),
    ) {
        let backend = progress.report.backend.clone();
        let request = json!({ "do": "describe", "backend": backend, "option": option });
        let Reply::Done(description) = progress.worker.send(&request) else { return };
        let (entries, all_operators) = subjects_of(&backend, &description);
        let all_claims =
            entries.iter().map(Claim::Pattern).chain(all_operators.iter().map(|&def| Claim::Operator(def)));
        for claim in all_claims {
            let subject = claim.subject();
            let is_known = match claim {
                Claim::Pattern(entry) => table.iter().any(|selected_claims| selected_claims.name == entry.name),
                Claim::Operator(def) => operators.iter().any(|selected_claims| selected_claims.name == def.name),
            };
            let text = subject.to_string();
            let base_report = progress.report.subjects.iter().position(|report| report.subject == text);
            let is_tested = base_report.is_some_and(|position| progress.report.subjects[position].tested_count() > 0);
            if (is_known && is_tested) || !self.is_selected(&subject) {
                continue;
            }
            let make = |cases: &Cases, index, restrictions| {
                let case = cases.single_case(claim, index, restrictions)?;
                let setting = Setting { option: option.clone(), ..case.setting.clone() };
                Some(Case { setting, ..case })
            };
            let tally = self.try_alone(progress, &subject, make);
            match base_report {
                Some(position) => progress.report.subjects[position].add(tally.report),
                None => {
                    let subject = format!("{subject}, {name}");
                    progress.report.subjects.push(SubjectReport { subject, ..tally.report });
                }
            }
        }
    }

    /// Tests passed cases again on every device that the backend lists.
    fn try_devices(&self, progress: &mut Progress, samples: &[Case]) {
        for device in progress.claims.devices.clone() {
            let name = device_claim(&device);
            if self.is_waived(&name) {
                continue;
            }
            (self.progress)(&name);
            let is_on_device = progress.claims.device_memory;
            for sample in samples.iter().take(MAX_CASES_PER_DEVICE) {
                let setting = Setting { device: Some(device.clone()), ..sample.setting.clone() };
                let case = Case { setting, ..sample.clone() };
                let mut is_good = self.try_variant(progress, case.clone(), &name);
                if is_good && is_on_device {
                    let setting = Setting { is_on_device, ..case.setting.clone() };
                    is_good = self.try_variant(progress, Case { setting, ..case }, &name);
                }
                if !is_good {
                    break;
                }
            }
        }
    }

    /// Adds a fault for each claim without a tested case, unless the run has a filter or tested no claim at all.
    fn report_untested(&self, report: &mut BackendReport) {
        let unavailable = |s: &SubjectReport| s.reasons.keys().find(|r| r.code == UNAVAILABLE).map(Reason::to_string);
        let subjects = report.subjects.iter().map(|s| (&s.subject, s.tested_count(), s.cases, unavailable(s)));
        let claims = report.claims.iter().map(|claim| (&claim.claim, claim.tested, claim.cases, None));
        let rows: Vec<_> =
            subjects.chain(claims).map(|(name, tested, n, why)| (name.clone(), tested, n, why)).collect();
        if self.options.name_filter.is_some() || rows.iter().all(|(_, tested_count, ..)| *tested_count == 0) {
            return;
        }
        for (name, _, cases, unavailable) in rows.into_iter().filter(|(_, tested_count, ..)| *tested_count == 0) {
            let message = match (cases, &unavailable) {
                (0, _) if self.is_waived(&name) => "not tried".to_owned(),
                (0, _) => "no case was tested: no valid case was generated".to_owned(),
                (n, Some(reason)) => format!("no case was tested ({n} refused): {reason}"),
                (n, None) => format!("no case was tested ({n} refused)"),
            };
            let fault = Fault::new(Kind::NotTested, "", message);
            let failure = FailedCase { subject: name, fault, case: String::new(), file: None, command: None };
            self.report_failure(report, failure);
        }
    }
}

/// Returns the patterns and the operators of a description.
fn subjects_of(backend: &str, description: &Value) -> (Vec<Entry>, Vec<&'static OpDef>) {
    // The worker has accepted the declarations; this process, which draws the cases, does not load the plugin.
    for declaration in description["declares"].as_array().into_iter().flatten() {
        let _ = declared::declare(backend, declaration, None);
    }
    let names = description["operators"].as_array().into_iter().flatten();
    let operators = names.filter_map(|name| Some(op::get(op::lookup(name.as_str()?)?))).collect();
    (qualified_pattern_table(backend, description["patterns"].as_str().unwrap_or_default()), operators)
}

/// Returns the names of all subjects of a run without a filter.
fn subject_names(table: &[Entry], operators: &[&'static OpDef]) -> Vec<String> {
    let claims = table.iter().map(Claim::Pattern).chain(operators.iter().map(|&def| Claim::Operator(def)));
    let region = (operators.len() > 1).then_some(Subject::Region);
    claims.map(|claim| claim.subject()).chain(region).map(|subject| subject.to_string()).collect()
}

/// Parses a pattern table, and prefixes its entry names with the backend name, as partitioning does.
fn qualified_pattern_table(backend: &str, text: &str) -> Vec<Entry> {
    let mut table = parse_table(text, Checks::Allowed).entries;
    let prefix = format!("{backend}.");
    for entry in &mut table {
        if !entry.name.starts_with(&prefix) {
            entry.name = format!("{prefix}{}", entry.name).into();
        }
    }
    table
}
