//! Backend as used by the build pipeline: description, pattern table and verdicts.

use byoc_core::pass::manager;
use byoc_core::pass::{
    Candidate, ControlFlow, DesiredLayout, Judge, Question, Refusal, RefusalCode, RegionReport, Verdict, check_layouts,
};
use byoc_core::pattern::{Checks, Entry, entry_name, parse_table};
use byoc_ir::diag::{Diagnostic, Severity, codes, nearest};
use byoc_ir::ir::{Dim, ExprId, Module};
use byoc_ir::op::{self, Cost, Params};
use byoc_plugin_api::host::LoadedPlugin;
use byoc_plugin_api::{self as api, Codegen, DESCRIBE_KEY, DEVICES_KEY, Description, DeviceInfo, LACK_KEY, Lack};
use byoc_runtime::choices::{Choices, base_name};
use byoc_runtime::error::Failure;
use byoc_runtime::plugin::fault;
use byoc_runtime::plugin::registry::{PluginFile, Registry};
use byoc_runtime::plugin::to_graph::{self, ConstantTable, Group};
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

/// Backend selected for a build.
pub struct Backend<'r> {
    /// Name of the backend, followed by `@<device>` if a device is selected.
    pub name: String,
    /// Code generator of the backend.
    pub codegen: Arc<dyn Codegen>,
    /// Plugin that registers the backend.
    pub plugin: &'r LoadedPlugin,
    /// Plugin file.
    pub file: &'r PluginFile,
    /// Description returned by the backend.
    pub description: Description,
    /// Supported layouts among those that the backend requests for its operators.
    pub layouts: Vec<DesiredLayout>,
    /// Backend options set by the user.
    pub chosen: BTreeMap<String, String>,
    /// Options and device as a JSON object, for the entries of the backend.
    pub choices: Value,
    /// Pattern table without unparsable entries; every name begins with the backend name.
    pub table: Vec<Entry>,
    /// Warnings about errors in the description or the pattern table.
    pub warnings: Vec<Diagnostic>,
}

impl<'r> Backend<'r> {
    /// Returns the backend `name` with its description; `mine@1` selects device `1` of the backend `mine`.
    ///
    /// # Errors
    /// E0401 if no plugin registers the backend; E0406 if its `describe` fails.
    pub fn find(registry: &'r Registry, name: &str) -> Result<Backend<'r>, Failure> {
        let (codegen, file) = registry.codegen(base_name(name))?;
        let Some(plugin) = file.plugin() else {
            return Err(Failure::new(codes::plugins::NO_CODEGEN, format!("the plugin of {name} is not loaded")));
        };
        let description = codegen.describe().map_err(|e| fault(&e))?;
        Ok(Backend::describe(name, codegen, plugin, file, description))
    }

    fn describe(
        name: &str,
        codegen: Arc<dyn Codegen>,
        plugin: &'r LoadedPlugin,
        file: &'r PluginFile,
        mut description: Description,
    ) -> Backend<'r> {
        let mut warnings = description_warnings(name, &description);
        let table_result = parse_table(&description.patterns, Checks::Allowed);
        warnings.extend(table_result.diagnostics.into_iter().map(|d| table_warning(name, &description.patterns, d)));
        let mut table = table_result.entries;
        let prefix = format!("{}.", base_name(name));
        for entry in &mut table {
            if !entry.name.starts_with(&prefix) {
                entry.name = format!("{prefix}{}", entry.name).into();
            }
        }
        let query_error = |query: &str| {
            Diagnostic::warning(
                codes::plugins::BAD_DESCRIPTION,
                format!("plugin {name}, describe: unsupported request: {query}"),
            )
        };
        for operator in &description.operators {
            if op::lookup(operator).is_none() {
                let warning = query_error(&format!("unknown operator \"{operator}\""));
                warnings.push(did_you_mean(warning, operator, op::names()));
            }
        }
        let mut layouts = Vec::new();
        for (operator, desired) in &description.layouts {
            match desired_layout(operator, desired) {
                Ok(layout) => layouts.push(layout),
                Err(reason) => {
                    let warning =
                        query_error(&format!("layouts {} of {operator}: {}", desired.join(", "), reason.message));
                    warnings.push(Diagnostic { help: reason.help, ..warning }.note("the operator keeps its layout"));
                }
            }
        }
        description.pre_passes.retain(|pass| {
            let is_known_pass = manager::find(pass).is_ok();
            if !is_known_pass {
                let warning = query_error(&format!("unknown pass \"{pass}\""));
                warnings.push(did_you_mean(warning, pass, manager::PASSES.iter().map(|p| p.name)));
            } else if pass == CONVERT_LAYOUT && layouts.is_empty() {
                let warning = query_error(&format!("pass \"{pass}\" without a supported layout"));
                warnings.push(warning.help("list the layouts by operator in \"layouts\" of the description"));
                return false;
            }
            is_known_pass
        });
        let (name, chosen_options, load_options) = (name.to_owned(), BTreeMap::new(), json!({}));
        Backend {
            name,
            codegen,
            plugin,
            file,
            description,
            layouts,
            chosen: chosen_options,
            choices: load_options,
            table,
            warnings,
        }
    }

    /// Returns the backend with its description for the user's options and the session's devices.
    ///
    /// # Errors
    /// E0406 if the backend fails, E0427 if the selected device does not exist.
    pub fn configured(self, load_options: &Choices) -> Result<Backend<'r>, Failure> {
        let device = load_options.device(&self.name);
        if !device.is_empty() {
            self.check_device(device)?;
        }
        let load_options = load_options.of(&self.name, &self.chosen);
        if load_options == json!({}) {
            return Ok(self);
        }
        let response = self.codegen.query(DESCRIBE_KEY, load_options.to_string().as_bytes()).map_err(|e| fault(&e))?;
        let Some(response) = response else { return Ok(Backend { choices: load_options, ..self }) };
        let description = Description::from_json_lossy(&String::from_utf8_lossy(&response));
        let Backend { name, codegen, plugin, file, chosen: chosen_options, .. } = self;
        Ok(Backend {
            chosen: chosen_options,
            choices: load_options,
            ..Backend::describe(&name, codegen, plugin, file, description)
        })
    }

    /// Returns the devices that the backend lists, possibly none.
    ///
    /// # Errors
    /// E0406 if the backend fails, or does not return a list of devices.
    pub fn devices(&self) -> Result<Vec<DeviceInfo>, Failure> {
        let response = self.codegen.query(DEVICES_KEY, b"{}").map_err(|e| fault(&e))?;
        let Some(response) = response else { return Ok(Vec::new()) };
        serde_json::from_slice(&response).map_err(|error| {
            let message = format!("plugin {}: {DEVICES_KEY}: invalid list of devices: {error}", self.plugin.name);
            Failure::new(codes::plugins::PLUGIN_FAULT, message)
        })
    }

    /// Returns one backend name per device if the backend requests one instance per device and neither its name nor the
    /// user selects a device. Otherwise, returns only the backend's name.
    ///
    /// # Errors
    /// E0406 if the backend cannot list its devices.
    pub fn instances(&self, load_options: &Choices) -> Result<Vec<String>, Failure> {
        if !self.description.per_device || !load_options.device(&self.name).is_empty() {
            return Ok(vec![self.name.clone()]);
        }
        let devices = self.devices()?;
        Ok(match devices.is_empty() {
            true => vec![self.name.clone()],
            false => devices.iter().map(|device| format!("{}@{}", self.name, device.id)).collect(),
        })
    }

    fn check_device(&self, device: &str) -> Result<(), Failure> {
        let known_ids: Vec<String> = self.devices()?.into_iter().map(|device| device.id).collect();
        if known_ids.iter().any(|id| id == device) {
            return Ok(());
        }
        let message = format!("{} has no device \"{device}\"", base_name(&self.name));
        let device_list = if known_ids.is_empty() { "none".into() } else { known_ids.join(", ") };
        let name = base_name(&self.name);
        let help = format!("\"byoc plugins show {name}\" lists the devices with their properties");
        let error = Diagnostic::error(codes::plugins::UNKNOWN_OPTION, message);
        Err(error.note(format!("devices of the backend: {device_list}")).help(help).into())
    }
}

impl Backend<'_> {
    /// Returns the attributes of a candidate: the user's choices as JSON text, or none if the user made no choices.
    fn candidate_attrs(&self) -> Vec<api::Attr> {
        match self.choices.as_object().is_none_or(serde_json::Map::is_empty) {
            true => Vec::new(),
            false => vec![api::Attr::new("options", api::AttrValue::Str(self.choices.to_string().into()))],
        }
    }

    /// Returns the control flow constructs that the backend executes.
    pub fn control_flow(&self) -> ControlFlow {
        ControlFlow { branches: self.description.control_flow, loops: self.description.loops }
    }

    /// Sets a user-selected option.
    ///
    /// # Errors
    /// E0427 if the backend has no such option, or the option does not accept the value.
    pub fn choose(&mut self, option: &str, value: &str) -> Result<(), Box<Diagnostic>> {
        let (name, options) = (&self.name, &self.description.options);
        let option_error = |message: String| Diagnostic::error(codes::plugins::UNKNOWN_OPTION, message);
        let Some(spec) = options.get(option) else {
            let error = did_you_mean(
                option_error(format!("{name} has no option \"{option}\"")),
                option,
                options.keys().map(String::as_str),
            );
            let option_names: Vec<&str> = options.keys().map(String::as_str).collect();
            let option_names = if option_names.is_empty() {
                "the backend has no options".to_owned()
            } else {
                format!("options of the backend: {}", option_names.join(", "))
            };
            return Err(Box::new(error.note(option_names)));
        };
        if !spec.values.is_empty() && !spec.values.iter().any(|options| options == value) {
            let error = option_error(format!("{name}.{option}: unsupported value \"{value}\""));
            return Err(Box::new(error.note(format!("supported values: {}", spec.values.join(", ")))));
        }
        self.chosen.insert(option.to_owned(), value.to_owned());
        Ok(())
    }
}

/// Returns what a backend lacks on this machine, such as a vendor's library, in one line. Calls no other entry of it.
///
/// # Errors
/// E0401 if no plugin registers the backend, E0406 if it fails, or does not answer in the documented form.
pub fn lack(registry: &Registry, name: &str) -> Result<Option<String>, Failure> {
    let (codegen, _) = registry.codegen(name)?;
    let response = codegen.query(LACK_KEY, b"{}").map_err(|e| fault(&e))?;
    let Some(response) = response else { return Ok(None) };
    let Lack { reason, hint } = serde_json::from_slice(&response).map_err(|error| {
        let message = format!("backend {name}: {LACK_KEY}: expected a reason: {error}");
        Failure::new(codes::plugins::PLUGIN_FAULT, message)
    })?;
    Ok(Some(if hint.is_empty() { reason } else { format!("{reason}; {hint}") }))
}

/// Checks that a backend option may be set per run, and that it accepts the value.
///
/// # Errors
/// E0401 if no plugin registers the backend, E0427 if it has no such run option, or the option does not accept the
/// value.
pub fn check_run_option(registry: &Registry, backend: &str, option: &str, value: &str) -> Result<(), Failure> {
    let mut found_backend = Backend::find(registry, backend)?;
    found_backend.choose(option, value)?;
    if found_backend.description.options.get(option).is_some_and(|spec| spec.run) {
        return Ok(());
    }
    let run_options: Vec<&str> =
        found_backend.description.options.iter().filter(|(_, spec)| spec.run).map(|(name, _)| name.as_str()).collect();
    let device_list = if run_options.is_empty() { "none".to_owned() } else { run_options.join(", ") };
    let message = format!("{backend}.{option} is not a run option");
    let error = Diagnostic::error(codes::plugins::UNKNOWN_OPTION, message).note(format!("run options: {device_list}"));
    Err(error.help("set the option when the model is compiled").into())
}

/// Name of the pass that applies the layouts requested in a description.
pub const CONVERT_LAYOUT: &str = "convert_layout";

/// Converts the layouts that a description requests for an operator (data, then kernel) to the layout pass's format.
fn desired_layout(operator: &str, layout_names: &[String]) -> Result<DesiredLayout, Box<Diagnostic>> {
    let (data, kernel) = match layout_names {
        [data] => (data, None),
        [data, kernel] => (data, Some(kernel.as_str().into())),
        _ => {
            let message =
                format!("expected a data layout and an optional kernel layout, found {} layouts", layout_names.len());
            return Err(Box::new(Diagnostic::error(codes::plugins::BAD_DESCRIPTION, message)));
        }
    };
    let layout = DesiredLayout { operator: operator.into(), data: data.as_str().into(), kernel };
    check_layouts(std::slice::from_ref(&layout)).map(|()| layout)
}

fn did_you_mean<'a>(diagnostic: Diagnostic, value: &str, candidates: impl IntoIterator<Item = &'a str>) -> Diagnostic {
    match nearest(value, candidates) {
        Some(suggestion) => diagnostic.help(format!("did you mean \"{suggestion}\"?")),
        None => diagnostic,
    }
}

/// Returns one warning that lists the invalid parts of a description.
fn description_warnings(name: &str, description: &Description) -> Vec<Diagnostic> {
    let message = match description.problems.len() {
        0 => return Vec::new(),
        1 => format!("plugin {name}, describe: 1 problem in its description"),
        n => format!("plugin {name}, describe: {n} problems in its description"),
    };
    let mut warning = Diagnostic::warning(codes::plugins::BAD_DESCRIPTION, message);
    warning.notes.clone_from(&description.problems);
    let is_empty = *description == Description { problems: description.problems.clone(), ..Description::default() };
    vec![if is_empty { warning } else { warning.note("the other parts of the description are used") }]
}

/// Returns the warning about an error in a pattern table, with plugin, entry and column.
fn table_warning(name: &str, text: &str, diagnostic: Diagnostic) -> Diagnostic {
    let offset = diagnostic.labels.first().map_or(0, |l| (l.span.start as usize).min(text.len()));
    let start = text[..offset].rfind('\n').map_or(0, |n| n + 1);
    let line = text[start..].lines().next().unwrap_or_default().trim_end();
    let column = text[start..offset].chars().count() + 1;
    let line_number = text[..start].matches('\n').count() + 1;
    let message = format!(
        "plugin {name}, pattern table, entry \"{}\", line {line_number}, column {column}: {}",
        entry_name(text, offset),
        diagnostic.message
    );
    let mut warning = Diagnostic::warning(codes::plugins::BAD_PATTERN_TABLE, message);
    warning = warning.note(line).note(format!("{}^", " ".repeat(column - 1)));
    warning.notes.extend(diagnostic.notes);
    warning.help = diagnostic.help;
    if diagnostic.severity == Severity::Error {
        warning = warning.note("the entry is ignored; the others are used");
    }
    warning
}

/// Converts an error returned by a plugin entry to an operator refusal. The refusal code is that of the error, or
/// `default_code` if the error has no valid refusal code.
pub fn refusal_of(error: &api::Error, default_code: RefusalCode) -> Refusal {
    let code = RefusalCode::parse(&error.code).unwrap_or(default_code);
    Refusal { code, detail: error.to_string(), hint: error.hint.to_string() }
}

/// Judge that asks a backend for verdicts on candidates.
pub struct PluginJudge<'b, 'r> {
    backend: &'b Backend<'r>,
    /// Errors that the backend returned instead of a verdict.
    pub faults: Vec<api::Error>,
    /// Estimates by candidate. The key consists of a flag, which is true for a region and false for a pattern or an
    /// operator, and the candidate's results.
    estimates: HashMap<(bool, Vec<ExprId>), api::Estimate>,
}

impl<'b, 'r> PluginJudge<'b, 'r> {
    /// Creates a judge for `backend`.
    pub fn new(backend: &'b Backend<'r>) -> Self {
        PluginJudge { backend, faults: Vec::new(), estimates: HashMap::new() }
    }

    /// Returns the backend's estimate of a region: its estimate for the region itself if available, otherwise the sum
    /// over the region's composites and operators.
    pub fn estimate(&self, module: &Module, region: &RegionReport) -> Option<api::Estimate> {
        if let Some(estimate) = self.estimates.get(&(true, region.outputs.to_vec())) {
            return Some(estimate.clone());
        }
        let composite_nodes: HashSet<ExprId> =
            region.composites.iter().flat_map(|composite| composite.nodes.clone()).collect();
        let roots = region.composites.iter().map(|composite| composite.root);
        let is_operator = |id: &ExprId| module.expr(*id).as_op_call().is_some() && !composite_nodes.contains(id);
        let operators = roots.chain(region.nodes.iter().copied().filter(is_operator));
        let part_estimate = |id: ExprId| self.estimates.get(&(false, vec![id])).cloned();
        operators.map(part_estimate).reduce(|sum, part| Some(sum?.plus(&part?))).flatten().filter(|sum| !sum.is_empty())
    }

    /// Records the estimates contained in verdicts.
    fn record_estimates(&mut self, query: Question<'_>, queries: &[Vec<ExprId>], verdicts: &[api::Verdict]) {
        let is_region = matches!(query, Question::Regions);
        for (outputs, verdict) in queries.iter().zip(verdicts) {
            if let Some(estimate) = verdict.estimate() {
                self.estimates.insert((is_region, outputs.clone()), estimate);
            }
        }
    }

    /// Returns the refusal that follows from the description alone, if any.
    fn refusal_from_description(&self, module: &Module, query: Question<'_>, candidate: &Candidate) -> Option<Refusal> {
        let description = &self.backend.description;
        if !description.dynamic_dims {
            let open_dims = candidate.nodes.iter().map(|&id| unknown_dims(module, id)).find(|dims| !dims.is_empty());
            if let Some(open_dims) = open_dims {
                // Without the shape, the detail is the same for all operators with this dimension.
                let open_dims: Vec<String> = open_dims.iter().map(Dim::to_string).collect();
                let detail = format!("expected dimensions known at compile time, found {}", open_dims.join(", "));
                let hint = "bind the dimensions with --dim NAME=N, or add a program per size with --dim NAME=N,N..";
                return Some(Refusal { hint: hint.to_owned(), ..Refusal::new(RefusalCode::DynamicDim, detail) });
            }
        }
        if let Question::Regions = query {
            let operators = candidate.nodes.iter().filter(|&&id| module.expr(id).as_call().is_some()).count();
            let flops = candidate.nodes.iter().map(|&id| flops(module, id)).fold(0, u64::saturating_add);
            let cost = &description.cost;
            // The minimum number of FLOPs does not apply to a region with unknown dimensions, because its FLOPs are
            // unknown.
            let is_open_shape = candidate.nodes.iter().any(|&id| has_unknown_dims(module, id));
            if operators < cost.min_region_operators as usize || (flops < cost.min_region_flops && !is_open_shape) {
                let detail = format!(
                    "{}: expected a region of at least {} operators and {} FLOPs, found {operators} operators and \
                     {flops} FLOPs",
                    self.backend.name, cost.min_region_operators, cost.min_region_flops
                );
                return Some(Refusal::new(RefusalCode::NotProfitable, detail));
            }
        }
        None
    }

    fn candidate(
        &self,
        module: &Module,
        query: Question<'_>,
        candidate: &Candidate,
    ) -> Result<api::Candidate, Box<Diagnostic>> {
        let (kind, name, check) = match query {
            Question::Pattern(entry) => {
                (api::CandidateKind::Pattern, entry.name.to_string(), entry.check.as_deref().unwrap_or_default())
            }
            Question::Composite(name) => (api::CandidateKind::Pattern, name.to_string(), ""),
            Question::Operators => {
                let operator = candidate.outputs.first().and_then(|&id| module.expr(id).as_op_call());
                let name = operator.map_or("", |(id, _)| op::get(id).name);
                (api::CandidateKind::Operator, name.to_owned(), "")
            }
            Question::Regions => (api::CandidateKind::Region, base_name(&self.backend.name).to_owned(), ""),
        };
        let mut constants = ConstantTable::default();
        // Constants defined outside the candidate are passed as constants, not as inputs.
        let is_input = |id: &ExprId| module.expr(*id).as_constant().is_none();
        let inputs: Vec<ExprId> = candidate.inputs.iter().copied().filter(is_input).collect();
        let graph = {
            let groups: Vec<Group<'_>> =
                candidate.composites.iter().map(|c| Group { name: &c.name, root: c.root, inputs: &c.inputs }).collect();
            to_graph::subgraph(module, &name, &inputs, &candidate.outputs, &groups, &mut constants)?
        };
        Ok(api::Candidate {
            kind,
            name: name.as_str().into(),
            check: check.into(),
            graph,
            constants: constants.handles.into(),
            outside_users: candidate.outside_users as u32,
            attrs: self.backend.candidate_attrs().into(),
        })
    }
}

impl Judge for PluginJudge<'_, '_> {
    fn judge(&mut self, module: &Module, query: Question<'_>, candidates: &[Candidate]) -> Vec<Verdict> {
        let mut verdicts: Vec<Option<Verdict>> = Vec::with_capacity(candidates.len());
        let (mut queries, mut results) = (Vec::new(), Vec::new());
        for candidate in candidates {
            let verdict = match self.refusal_from_description(module, query, candidate) {
                Some(refusal) => Some(Verdict::Refused(refusal)),
                None => match self.candidate(module, query, candidate) {
                    Ok(asked_for) => {
                        queries.push(asked_for);
                        results.push(candidate.outputs.clone());
                        None
                    }
                    Err(diagnostic) => {
                        let refusal = Refusal::new(RefusalCode::UnsupportedOp, diagnostic.message.clone());
                        Some(Verdict::Refused(refusal))
                    }
                },
            };
            verdicts.push(verdict);
        }
        let batch_result = if queries.is_empty() { Ok(Vec::new()) } else { self.backend.codegen.judge_batch(&queries) };
        let mut batch_result = match batch_result {
            Ok(batch_result) => {
                self.record_estimates(query, &results, &batch_result);
                batch_result.into_iter().map(verdict_from_api).collect::<Vec<_>>().into_iter()
            }
            Err(error) => {
                let refusal = refusal_of(&error, RefusalCode::Unavailable);
                self.faults.push(error);
                vec![Verdict::Refused(refusal); queries.len()].into_iter()
            }
        };
        let missing_verdict =
            || Verdict::Refused(Refusal::new(RefusalCode::Unavailable, "the backend returned no verdict"));
        verdicts.into_iter().map(|v| v.unwrap_or_else(|| batch_result.next().unwrap_or_else(missing_verdict))).collect()
    }
}

fn verdict_from_api(verdict: api::Verdict) -> Verdict {
    match verdict {
        api::Verdict::Supported => Verdict::Supported,
        api::Verdict::Refused(refusal) => {
            if refusal.code == api::Verdict::ESTIMATED {
                return Verdict::Supported;
            }
            if refusal.code == api::Verdict::SPLIT
                && let Ok(size) = refusal.detail.parse()
            {
                return Verdict::Split(size);
            }
            // An unknown refusal code is a plugin error, but the detail is still valid.
            let code = RefusalCode::parse(&refusal.code).unwrap_or(RefusalCode::UnsupportedOp);
            Verdict::Refused(Refusal { code, detail: refusal.detail.into(), hint: refusal.hint.into() })
        }
    }
}

fn has_unknown_dims(module: &Module, id: ExprId) -> bool {
    !unknown_dims(module, id).is_empty()
}

/// Returns the distinct unknown dimensions of an expression's type, in order.
fn unknown_dims(module: &Module, id: ExprId) -> Vec<Dim> {
    let mut dims = Vec::new();
    for dim in to_graph::flat_types(module.ty(id)).iter().flatten().flat_map(|ty| &ty.dims) {
        if dim.fixed().is_none() && !dims.contains(dim) {
            dims.push(dim.clone());
        }
    }
    dims
}

/// Returns the FLOPs of an expression, which are 0 unless it is an operator call.
pub fn flops(module: &Module, id: ExprId) -> u64 {
    let Some((operator, call)) = module.expr(id).as_op_call() else { return 0 };
    let def = op::get(operator);
    let args: Vec<_> = call.args.iter().map(|&a| module.ty(a).clone()).collect();
    (def.flops)(&Cost { params: Params::new(def, &call.attrs), args: &args, ret: module.ty(id) })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The host's refusal codes begin with the codes of the plugin boundary; host-only codes follow.
    #[test]
    fn refusal_codes_of_backends_are_those_of_the_boundary() {
        let api_codes: Vec<&str> = api::RefusalCode::ALL.iter().map(|code| code.as_str()).collect();
        let own_codes: Vec<String> = RefusalCode::ALL.iter().map(RefusalCode::to_string).collect();
        assert_eq!(own_codes[..api_codes.len()], api_codes);
        assert!(own_codes[api_codes.len()..].iter().all(|code| !api_codes.contains(&code.as_str())));
        assert!(api_codes.iter().all(|code| RefusalCode::parse(code).is_some()));
    }
}
