//! Backend as used by the build pipeline: description, pattern table and choices of the user.

use super::declared;
use super::precision::{self, AppliedClaim, claims_on};
use byoc_core::pass::manager;
use byoc_core::pass::{Composite, ControlFlow, DesiredLayout, Refusal, RegionReport, check_layouts};
use byoc_core::pattern::{Checks, Entry, entry_name, parse_table};
use byoc_ir::diag::{Diagnostic, Severity, codes, nearest};
use byoc_ir::ir::{ExprId, Module};
use byoc_ir::op;
use byoc_plugin_api::host::LoadedPlugin;
use byoc_plugin_api::{
    self as api, Codegen, ComputeFormat, DESCRIBE_KEY, DEVICES_KEY, Description, DeviceInfo, LACK_KEY, Lack,
};
use byoc_runtime::choices::{Choices, base_name};
use byoc_runtime::error::Failure;
use byoc_runtime::plugin::fault;
use byoc_runtime::plugin::registry::{PluginFile, Registry};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
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
    /// Formats in which the backend may compute float32; `None` for any.
    allowed: Option<BTreeSet<ComputeFormat>>,
}

impl<'r> Backend<'r> {
    /// Returns the backend `name` with its description; `mine@1` selects device `1` of the backend `mine`.
    ///
    /// # Errors
    /// E0401 if no plugin registers the backend; E0406 if its `describe` fails; E0408 if the description contradicts
    /// itself.
    pub fn find(registry: &'r Registry, name: &str) -> Result<Backend<'r>, Failure> {
        let (codegen, file) = registry.codegen(base_name(name))?;
        let Some(plugin) = file.plugin() else {
            return Err(Failure::new(codes::plugins::NO_CODEGEN, format!("the plugin of {name} is not loaded")));
        };
        let description = codegen.describe().map_err(|e| fault(&e))?;
        let contradictions = declared::declare(base_name(name), &description);
        let mut description = description;
        description.faults.extend(contradictions);
        Backend::describe(name, codegen, plugin, file, description).without_faults()
    }

    /// Returns the backend, unless ignoring a part of its description would change what it promises.
    fn without_faults(self) -> Result<Backend<'r>, Failure> {
        let mut faults = self.description.faults.clone();
        faults.extend(precision::faults(&self.description, self.table.iter().map(|entry| &entry.name)));
        if faults.is_empty() {
            return Ok(self);
        }
        let message = format!("plugin {}, describe: expected a description without contradictions", self.name);
        let mut error = Diagnostic::error(codes::plugins::BAD_DESCRIPTION, message);
        error.notes = faults;
        Err(error.help("correct the description; \"byoc plugins check FILE\" checks it without a model").into())
    }

    /// Returns the backend, which may compute float32 in `format` and in the formats that its options allow.
    #[must_use]
    pub fn allowing(mut self, format: ComputeFormat) -> Backend<'r> {
        self.allowed = Some(precision::allowed(format, &self.description, &self.choices));
        self
    }

    /// Returns the backend, which may compute in any format that it claims.
    #[must_use]
    pub fn allowing_all(self) -> Backend<'r> {
        Backend { allowed: None, ..self }
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
            allowed: Some(BTreeSet::from([ComputeFormat::F32])),
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
        let described = Backend::describe(&name, codegen, plugin, file, description).without_faults()?;
        Ok(Backend { chosen: chosen_options, choices: load_options, ..described })
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
    pub(super) fn candidate_attrs(&self) -> Vec<api::Attr> {
        match self.choices.as_object().is_none_or(serde_json::Map::is_empty) {
            true => Vec::new(),
            false => vec![api::Attr::new("options", api::AttrValue::Str(self.choices.to_string().into()))],
        }
    }

    /// Returns the reason against computing `nodes` in the precision that the backend claims for them; `None` if the user
    /// allows it.
    pub(super) fn precision_refusal(
        &self,
        module: &Module,
        nodes: &[ExprId],
        composites: &[Composite],
    ) -> Option<Refusal> {
        let allowed = self.allowed.as_ref().filter(|_| !self.description.precision.is_empty())?;
        precision::refusal(&self.name, module, &self.claims_on(module, nodes, composites), allowed)
    }

    fn claims_on(&self, module: &Module, nodes: &[ExprId], composites: &[Composite]) -> Vec<AppliedClaim<'_>> {
        claims_on(&self.description, module, nodes, composites)
    }

    /// Returns the precision that the backend claims for the operators of a region, one line for each claim.
    pub fn precision_of(&self, module: &Module, region: &RegionReport) -> Vec<(String, ComputeFormat)> {
        precision::summaries(&self.claims_on(module, &region.nodes, &region.composites))
    }

    /// Returns the control flow constructs that the backend executes.
    pub fn control_flow(&self) -> ControlFlow {
        // A backend that sees the whole module claims the operators in branches and loops one by one.
        let Description { control_flow, loops, whole_graph, .. } = self.description;
        ControlFlow { branches: control_flow && !whole_graph, loops: loops && !whole_graph }
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
