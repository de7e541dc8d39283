//! Build pipeline: compiles a module from a frontend to a program.

use super::backend::{Backend, CONVERT_LAYOUT};
use super::contract::RuleOutcome;
use super::explain::{Operators, copies, explain};
use super::explanation::{BackendRow, BuildRow, Explanation, RefusalRow, Totals};
use super::options::BuildOptions;
use super::pass_log::{ALL_PASSES, PassLog};
use super::progress::Stage;
use super::recovery::Recovery;
use super::round::{Generated, Partition, Round, constant_port, partition};
use super::{Compiled, contract, declared};
use crate::frontend::{Loaded, Signature};
use byoc_core::pass::manager::{self, Step};
use byoc_core::pass::{DesiredLayout, PassOptions, RefusalCode, RegionReport};
use byoc_ir::diag::{Diagnostic, codes, plural};
use byoc_ir::ir::Module;
use byoc_ir::tensor::Tensor;
use byoc_plugin_api::ComputeFormat;
use byoc_runtime::choices::base_name;
use byoc_runtime::compiled::Variant;
use byoc_runtime::error::Failure;
use byoc_runtime::session::Session;
use serde_json::{Value, json};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

/// Passes that simplify every module before partitioning.
pub const SIMPLIFY: &[&str] = &[
    "fake_quantization_to_integer",
    "simplify_inference",
    "fold_constant",
    "fold_scale_axis",
    "fold_constant",
    "eliminate_common_subexpr",
    "dead_code_elimination",
];

/// Built model, with the intermediate results of the build.
pub struct BuildOutput {
    /// Program, constants and compiled regions, for the executor and the artifact.
    pub compiled: Compiled,
    /// Module after the passes of [`SIMPLIFY`] and of the backends.
    pub simplified: Module,
    /// Module after partitioning, with its regions.
    pub partitioned: Module,
    /// Placement of each operator of the model.
    pub explanation: Explanation,
    /// Inputs and outputs as declared by the model file.
    pub signature: Signature,
    /// Non-fatal diagnostics, except those about unused backends.
    pub warnings: Vec<Diagnostic>,
    /// Backends without a region in any program of the model.
    pub unused: Vec<UnusedBackend>,
    /// Totals of the programs for fixed values of symbolic dimensions, which are the first of [`Compiled::variants`].
    pub variant_totals: Vec<Totals>,
    /// Outcome of each rule of the contract, for every program of the model.
    pub contract: Vec<RuleOutcome>,
}

/// Backend that accepted no operator of a model.
#[derive(Clone, Debug)]
pub struct UnusedBackend {
    /// Name of the backend.
    pub name: String,
    /// Warning that lists the most frequent refusal reasons.
    pub warning: Diagnostic,
}

impl BuildOutput {
    /// Returns the share of the model's FLOPs that backends execute. If there are programs for fixed values of symbolic
    /// dimensions, returns the smallest of their shares.
    pub fn min_offload_share(&self) -> f64 {
        let shares = self.variant_totals.iter().map(|totals| totals.offload_share);
        shares.reduce(f64::min).unwrap_or(self.explanation.totals.offload_share)
    }

    /// Returns all non-fatal diagnostics.
    pub fn warnings(&self) -> impl Iterator<Item = &Diagnostic> {
        self.warnings.iter().chain(self.unused.iter().map(|backend| &backend.warning))
    }

    /// Adds a program for fixed values of symbolic dimensions. A backend that has regions only in this program counts
    /// as used.
    pub fn add_variant(&mut self, dims: BTreeMap<String, usize>, variant: BuildOutput) {
        self.unused.retain(|backend| variant.unused.iter().any(|unused| unused.name == backend.name));
        let new_warnings: Vec<Diagnostic> =
            variant.warnings.into_iter().filter(|warning| !self.warnings.contains(warning)).collect();
        self.warnings.extend(new_warnings);
        self.variant_totals.push(variant.explanation.totals);
        self.contract.extend(variant.contract);
        self.compiled.add_variant(Variant { dims, defaults: Vec::new(), compiled: variant.compiled });
    }

    /// Adds the program whose last inputs are the optional inputs, which have the given default values.
    pub fn add_optional(&mut self, mut variant: BuildOutput, values: Vec<Tensor>) {
        self.contract.append(&mut variant.contract);
        let Compiled { program, constants, .. } = &mut variant.compiled;
        let mut defaults = Vec::with_capacity(values.len());
        for value in values {
            defaults.push(constants.len() as u32);
            program.constants.push(constant_port(constants.len(), &value));
            constants.push(value);
        }
        self.compiled.add_variant(Variant { dims: BTreeMap::new(), defaults, compiled: variant.compiled });
    }
}

/// Builds a model. `print_line` receives the output of `print_after` and `time_passes`.
///
/// # Errors
/// If a backend, a backend option or the pass of `print_after` is unknown, the types of the model cannot be inferred,
/// the model cannot be lowered, or the build is cancelled.
pub fn build(
    session: &Session,
    model: Loaded,
    options: &BuildOptions,
    print_line: &mut dyn FnMut(&str),
) -> Result<BuildOutput, Failure> {
    let _scope = session.cancellation().enter();
    let printed_pass = options.print_after.as_deref().filter(|&name| name != ALL_PASSES);
    printed_pass.map(manager::find).transpose()?;
    let mut warnings = model.warnings;
    let backends = configured_backends(session, options)?;
    for backend in &backends {
        warnings.extend(backend.warnings.iter().cloned());
    }

    let named = if options.host_only { Vec::new() } else { named_backends(session, &model.module, &backends)? };

    let operators = Operators::of(&model.module);
    let mut passes = PassLog::new(options.print_after.as_deref(), print_line);
    options.report(|| Stage::Simplify);
    let declared_operators = declared::used(&model.module);
    let simplified = simplify(model.module, &backends, &mut passes, &mut warnings)?;
    let compilers: Vec<&Backend<'_>> = backends.iter().chain(&named).collect();
    let mut recovery = Recovery::new(options.on_failure, backends.iter().map(|backend| backend.name.clone()).collect());
    let round = Round { session, options, signature: &model.signature, backends: &backends, compilers: &compilers };
    let (placement, generated, round_warnings) = loop {
        let mut round_warnings = Vec::new();
        let placement = round.place(&simplified, &recovery, &mut passes, &mut round_warnings)?;
        let Partition { module: partitioned, report, .. } = &placement.partition;
        declared::check_host(placement.placed(&simplified), partitioned, report)?;
        let generated = round.generate(&placement, &mut passes, &mut round_warnings)?;
        if !recovery.learn(placement.placed(&simplified), &placement.partition.report, &generated.failures) {
            break (placement, generated, round_warnings);
        }
    };
    warnings.extend(round_warnings);
    passes.print_times(options.time_passes);

    let placed = placement.widened.as_ref().unwrap_or(&simplified);
    let Partition { module: partitioned, mut report, facts } = placement.partition;
    warnings.extend(recovery.warnings(placed, &report, &generated.failures));
    report.add_regions_of(placed, |name| compilers.iter().any(|backend| backend.name == name));
    let Generated { program, constants, regions, linked, failures, mut refusals } = generated;
    refusals.extend(failures.into_iter().map(|(symbol, failure)| (symbol, failure.refusal)));
    let facts_of = |region: &RegionReport| facts.get(&region.symbol).cloned().unwrap_or_default();
    let mut explanation = explain(placed, &operators, &report, &refusals, &facts_of);
    explanation.copies = copies(&program);
    let compiled_options = compiled_options(&compilers, &model.bound, options.precision, &declared_operators);
    explanation.build = Some(build_row(&compilers, &compiled_options));
    let mut outcomes = Vec::new();
    if let Some(contract) = &options.contract {
        let constant_bytes = constants.iter().map(|tensor| tensor.bytes().len()).sum();
        let build = contract::Build { explanation: &explanation, program: &program, constant_bytes, facts: &facts };
        outcomes = contract.check(&build);
        let violations: Vec<Diagnostic> = outcomes.iter().flat_map(|outcome| outcome.violations.clone()).collect();
        if !violations.is_empty() && !options.reports_contract {
            return Err(Failure::from(violations));
        }
    }
    // A model may already contain regions, on which no backend returns a verdict.
    let has_region = |backend: &Backend<'_>| {
        regions.iter().flatten().any(|region| region.backend == backend.name)
            || explanation.regions.iter().any(|region| region.backend == backend.name)
    };
    let unused = unused_backends(backends.iter().filter(|backend| !has_region(backend)), &explanation);
    let compiled = Compiled {
        program,
        constants,
        absent: BTreeSet::new(),
        regions,
        linked,
        explain: serde_json::to_value(&explanation).unwrap_or_default(),
        model_digest: model.digest,
        options: compiled_options,
        from_file: false,
        variants: Vec::new(),
        charges: Arc::default(),
    };
    let signature = model.signature;
    Ok(BuildOutput {
        compiled,
        simplified,
        partitioned,
        explanation,
        signature,
        warnings,
        unused,
        variant_totals: Vec::new(),
        contract: outcomes,
    })
}

/// Returns the selected backends with their descriptions for the options of a build.
fn configured_backends<'s>(session: &'s Session, options: &BuildOptions) -> Result<Vec<Backend<'s>>, Failure> {
    let mut backends = backends(session, &options.backends)?;
    choose(&mut backends, &options.backend_options)?;
    let configured = |backend: Backend<'s>| Ok(backend.configured(&session.choices)?.allowing(options.precision));
    backends.into_iter().map(configured).collect()
}

/// Returns the selected backends with their descriptions.
fn backends<'s>(session: &'s Session, names: &[String]) -> Result<Vec<Backend<'s>>, Failure> {
    let mut requested_names: Vec<String> = Vec::new();
    for name in names {
        let expanded_names = match name.as_str() {
            "auto" => session.registry.backends(),
            name => vec![name.to_owned()],
        };
        expanded_names.into_iter().for_each(|name| {
            if !requested_names.contains(&name) {
                requested_names.push(name);
            }
        });
    }
    let mut selected_backends = Vec::with_capacity(requested_names.len());
    for name in &requested_names {
        let backend = Backend::find(&session.registry, name)?;
        match &backend.instances(&session.choices)?[..] {
            [single_name] if single_name == name => selected_backends.push(backend),
            instances => {
                for instance in instances.iter().filter(|instance| !requested_names.contains(instance)) {
                    selected_backends.push(Backend::find(&session.registry, instance)?);
                }
            }
        }
    }
    Ok(selected_backends)
}

/// Declares the operators of the selected backends, so that the model can be read.
///
/// # Errors
/// If a backend is unknown, fails, or contradicts itself.
pub fn declare_operators(session: &Session, backends: &[String]) -> Result<(), Failure> {
    for name in backends {
        let names = if name == "auto" { session.registry.backends() } else { vec![name.clone()] };
        for name in names {
            Backend::find(&session.registry, &name)?;
        }
    }
    Ok(())
}

/// Returns the backends that the functions of a module name, `Compiler="NAME"`, besides the selected ones. These compile
/// the regions that the module already has, and receive no further operators.
///
/// # Errors
/// E0401 if no plugin registers the code generator.
fn named_backends<'s>(
    session: &'s Session,
    module: &Module,
    selected: &[Backend<'_>],
) -> Result<Vec<Backend<'s>>, Failure> {
    let mut named: Vec<Backend<'s>> = Vec::new();
    for (symbol, &root) in &module.globals {
        let Some(name) = module.expr(root).as_function().and_then(|function| function.attrs.str("Compiler")) else {
            continue;
        };
        if selected.iter().chain(&named).any(|backend| backend.name == name) {
            continue;
        }
        let backend = Backend::find(&session.registry, name).map_err(|mut failure| {
            if let Some(first) = failure.diagnostics.first_mut() {
                first.notes.push(format!("the function @{symbol} of the model has Compiler=\"{name}\""));
                let remedy = "correct the attribute, add the backend's directory with --plugin-dir DIR, or run the \
                              regions of the model on the host with --backend none";
                first.help = Some(remedy.to_owned());
            }
            failure
        })?;
        named.push(backend.configured(&session.choices)?);
    }
    Ok(named)
}

/// Sets the user's backend options.
fn choose(backends: &mut [Backend<'_>], chosen_options: &[(String, String, String)]) -> Result<(), Failure> {
    for (name, option, value) in chosen_options {
        let names: Vec<String> = backends.iter().map(|backend| backend.name.clone()).collect();
        let is_named = |backend: &Backend<'_>| backend.name == *name || base_name(&backend.name) == name;
        if !backends.iter().any(is_named) {
            let message = format!("option \"{option}\": expected a backend of this build, found {name}");
            let backend_list = if names.is_empty() { "none, as --backend is missing".into() } else { names.join(", ") };
            return Err(Diagnostic::error(codes::plugins::UNKNOWN_OPTION, message)
                .note(format!("backends of this build: {backend_list}"))
                .help(format!("select the backend with --backend {name}"))
                .into());
        }
        for backend in backends.iter_mut().filter(|backend| is_named(backend)) {
            backend.choose(option, value)?;
        }
    }
    Ok(())
}

/// Returns the options that affect the result and are stored in the artifact.
fn compiled_options(
    backends: &[&Backend<'_>],
    dims: &BTreeMap<String, usize>,
    precision: ComputeFormat,
    declared_operators: &BTreeMap<&str, &str>,
) -> Value {
    let names: Vec<&str> = backends.iter().map(|b| b.name.as_str()).collect();
    let mut options = json!({"backends": names, "dims": dims});
    let chosen_options: BTreeMap<&str, _> =
        backends.iter().filter(|b| !b.chosen.is_empty()).map(|b| (b.name.as_str(), &b.chosen)).collect();
    if !chosen_options.is_empty() {
        options["backend_options"] = json!(chosen_options);
    }
    if !declared_operators.is_empty() {
        options["operators"] = json!(declared_operators);
    }
    if precision != ComputeFormat::F32 {
        options["precision"] = precision.name().into();
    }
    options
}

/// Returns the backends and the options of a build, for its explanation.
fn build_row(backends: &[&Backend<'_>], options: &Value) -> BuildRow {
    let row = |backend: &&Backend<'_>| BackendRow {
        name: backend.name.clone(),
        plugin: backend.plugin.name.clone(),
        version: backend.plugin.version.clone(),
    };
    BuildRow { backends: backends.iter().map(row).collect(), options: options.clone() }
}

fn simplify(
    module: Module,
    backends: &[Backend<'_>],
    passes: &mut PassLog<'_>,
    warnings: &mut Vec<Diagnostic>,
) -> Result<Module, Failure> {
    let mut names: Vec<&str> = SIMPLIFY.to_vec();
    // The first backend that requests a layout for an operator determines the layout.
    let mut pass_options = PassOptions::default();
    for layout in backends.iter().flat_map(|backend| &backend.layouts) {
        let is_same_operator = |other: &DesiredLayout| other.operator == layout.operator;
        if !pass_options.layouts.iter().any(is_same_operator) {
            pass_options.layouts.push(layout.clone());
        }
    }
    if !pass_options.layouts.is_empty() {
        names.push(CONVERT_LAYOUT);
    }
    for backend in backends {
        for pass in &backend.description.pre_passes {
            manager::find(pass).map_err(|d| d.note(format!("requested by {}", backend.name)))?;
            if !names.contains(&pass.as_str()) {
                names.push(pass);
            }
        }
    }
    if names.len() > SIMPLIFY.len() {
        names.extend(["fold_constant", "dead_code_elimination"]);
    }
    let steps = names.into_iter().map(Step::pass).collect::<Result<_, _>>()?;
    passes.run(Cow::Owned(module), steps, &pass_options, warnings)
}

/// Partitions a model for the selected backends, without compiling its regions. Returns the module and the warnings.
///
/// # Errors
/// If a backend or a backend option is unknown, or the types of the model cannot be inferred.
pub fn partitioned(
    session: &Session,
    model: Loaded,
    options: &BuildOptions,
) -> Result<(Module, Vec<Diagnostic>), Failure> {
    let _scope = session.cancellation().enter();
    let mut warnings = model.warnings;
    let backends = configured_backends(session, options)?;
    let mut print_nothing = |_: &str| {};
    let mut passes = PassLog::new(None, &mut print_nothing);
    let simplified = simplify(model.module, &backends, &mut passes, &mut warnings)?;
    let partition = partition(&simplified, &backends, &Recovery::default(), &mut passes, &mut warnings)?;
    Ok((partition.module, warnings))
}

/// Places the operators of a model on the selected backends as [`build`] does, without compiling a region.
///
/// # Errors
/// If a backend or a backend option is unknown, or the types of the model cannot be inferred.
pub fn placement(session: &Session, model: Loaded, options: &BuildOptions) -> Result<Explanation, Failure> {
    let _scope = session.cancellation().enter();
    let backends = configured_backends(session, options)?;
    let operators = Operators::of(&model.module);
    let (mut print_nothing, mut warnings) = (|_: &str| {}, Vec::new());
    let mut passes = PassLog::new(None, &mut print_nothing);
    let simplified = simplify(model.module, &backends, &mut passes, &mut warnings)?;
    let compilers: Vec<&Backend<'_>> = backends.iter().collect();
    let round = Round { session, options, signature: &model.signature, backends: &backends, compilers: &compilers };
    let placement = round.place(&simplified, &Recovery::default(), &mut passes, &mut warnings)?;
    let placed = placement.widened.as_ref().unwrap_or(&simplified);
    let Partition { mut report, facts, .. } = placement.partition;
    report.add_regions_of(placed, |name| compilers.iter().any(|backend| backend.name == name));
    let facts_of = |region: &RegionReport| facts.get(&region.symbol).cloned().unwrap_or_default();
    Ok(explain(placed, &operators, &report, &BTreeMap::new(), &facts_of))
}

/// Refusal reason of a backend, with the number of refused operators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusalSummary {
    /// Name of the backend.
    pub backend: String,
    /// Refusal code.
    pub code: String,
    /// Detail of the refusal: the expected and the found values.
    pub detail: String,
    /// Remedy, or an empty string.
    pub hint: String,
    /// Number of operators refused for this reason.
    pub operators: usize,
}

impl fmt::Display for RefusalSummary {
    /// Formats the summary, for example `nuc refused 9 operators: UnsupportedDtype: expected float32, found float64:
    /// cast it first`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let operators = plural(self.operators, "operator");
        write!(f, "{} refused {operators}: {}: {}", self.backend, self.code, self.detail)?;
        if self.hint.is_empty() { Ok(()) } else { write!(f, ": {}", self.hint) }
    }
}

/// Returns the given backends, none of which has a region, each with a warning that lists its refusal reasons. A
/// backend is omitted if it refused operators only because backends of higher priority accepted them.
fn unused_backends<'b>(
    backends: impl Iterator<Item = &'b Backend<'b>>,
    explanation: &Explanation,
) -> Vec<UnusedBackend> {
    let summary = refusal_summary(explanation);
    let is_outranked = |name: &str| {
        let refusals: Vec<&RefusalRow> =
            explanation.nodes.iter().flat_map(|n| &n.refusals).filter(|r| r.backend == name).collect();
        let has_lower_priority = |r: &&RefusalRow| RefusalCode::parse(&r.code) == Some(RefusalCode::LowerPriority);
        !refusals.is_empty() && refusals.iter().all(has_lower_priority)
    };
    let unused = backends.filter(|backend| !is_outranked(&backend.name)).map(|backend| {
        let reasons: Vec<&RefusalSummary> = summary.iter().filter(|r| r.backend == backend.name).collect();
        let message = format!("{} accepted no operator of the model{}", backend.name, refusal_headline(&reasons));
        let mut warning = Diagnostic::warning(codes::plugins::TOOK_NOTHING, message);
        warning.notes = reasons.iter().map(|reason| reason.to_string()).collect();
        UnusedBackend { name: backend.name.clone(), warning }
    });
    unused.collect()
}

/// Returns at most five refusal reasons per backend, most frequent first.
pub fn refusal_summary(explanation: &Explanation) -> Vec<RefusalSummary> {
    let mut counts: BTreeMap<(&str, String, &str, &str), usize> = BTreeMap::new();
    for refusal in explanation.nodes.iter().flat_map(|n| &n.refusals) {
        let key = (&*refusal.backend, refusal.code.to_string(), &*refusal.detail, &*refusal.hint);
        *counts.entry(key).or_default() += 1;
    }
    let mut reasons: Vec<RefusalSummary> = counts
        .into_iter()
        .map(|((backend, code, detail, hint), operators)| RefusalSummary {
            backend: backend.to_owned(),
            code,
            detail: detail.to_owned(),
            hint: hint.to_owned(),
            operators,
        })
        .collect();
    // The sort is stable, so equally frequent reasons remain sorted by their texts.
    reasons.sort_by(|a, b| a.backend.cmp(&b.backend).then(b.operators.cmp(&a.operators)));
    let mut summaries: Vec<RefusalSummary> = Vec::new();
    for reason in reasons {
        if summaries.iter().filter(|k| k.backend == reason.backend).count() < 5 {
            summaries.push(reason);
        }
    }
    summaries
}

/// Returns the suffix of a headline: the most frequent reason that has a remedy, otherwise the most frequent reason;
/// empty if there are no reasons.
pub fn refusal_headline(reasons: &[&RefusalSummary]) -> String {
    match reasons.iter().find(|reason| !reason.hint.is_empty()).or(reasons.first()) {
        Some(RefusalSummary { detail, hint, .. }) if hint.is_empty() => format!(": {detail}"),
        Some(RefusalSummary { detail, hint, .. }) => format!(": {detail}: {hint}"),
        None => String::new(),
    }
}
