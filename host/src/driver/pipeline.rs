//! Build pipeline: compiles a module from a frontend to a program.

use super::backend::{Backend, CONVERT_LAYOUT};
use super::codegen::{CompileFailure, RegionCompiler, takes_part};
use super::explain::{Operators, RegionFacts, copies, explain};
use super::explanation::{Explanation, RefusalRow, Totals};
use super::judge::PluginJudge;
use super::progress::{Progress, Stage};
use super::{Compiled, plan};
use crate::frontend::{Loaded, Signature};
use byoc_core::analysis::VerifiedModule;
use byoc_core::pass::manager::{self, RunOptions, Step, Timing};
use byoc_core::pass::{
    DesiredLayout, PassOptions, Refusal, RefusalCode, RegionReport, Report, leaves_float16_to_host, partition_for,
};
use byoc_ir::diag::{Diagnostic, Severity, codes, plural};
use byoc_ir::interface::HostOperators;
use byoc_ir::ir::{Module, Name, TensorType};
use byoc_ir::tensor::Tensor;
use byoc_ir::text::{PrintOptions, print};
use byoc_plugin_api::ComputeFormat;
use byoc_runtime::choices::base_name;
use byoc_runtime::compiled::Variant;
use byoc_runtime::error::Failure;
use byoc_runtime::exec::program::Port;
use byoc_runtime::plugin::{self, fault};
use byoc_runtime::session::Session;
use serde_json::{Value, json};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

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

/// Build options.
#[derive(Clone, Debug, Default)]
pub struct BuildOptions {
    /// Backends in priority order; `auto` stands for every backend found.
    pub backends: Vec<String>,
    /// Values of backend options, as (backend, option, value).
    pub backend_options: Vec<(String, String, String)>,
    /// Lowest precision in which backends may compute float32.
    pub precision: ComputeFormat,
    /// Cache directory of the backends; `None` for no cache.
    pub cache_dir: Option<PathBuf>,
    /// Pass after which the module is printed, or `all`.
    pub print_after: Option<String>,
    /// True to print the time of each pass.
    pub time_passes: bool,
    /// True to request the source of every region from code generators, regardless of its size.
    pub source: bool,
    /// Stage before the text that code generators show in place of the source, if they have such stages.
    pub stage: Option<String>,
    /// True to request regions as self-contained C99 programs from code generators; see `docs/boundary.md`.
    pub program: bool,
    /// True if backends receive only the regions that the module already has.
    pub keep_partition: bool,
    /// True if the regions that the module already has run on the host as well.
    pub host_only: bool,
    /// Callback for the stages of the build.
    pub progress: Option<Progress>,
}

impl BuildOptions {
    /// Returns the structures that are read as one operator.
    pub fn host_operators(&self) -> HostOperators {
        match self.backends.is_empty() {
            _ if self.program => HostOperators::None,
            true => HostOperators::All,
            false => HostOperators::Long,
        }
    }

    /// Reports the start of a stage.
    pub fn report(&self, stage: impl FnOnce() -> Stage) {
        if let Some(progress) = &self.progress {
            progress.report(&stage());
        }
    }
}

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
        self.compiled.add_variant(Variant { dims, defaults: Vec::new(), compiled: variant.compiled });
    }

    /// Adds the program whose last inputs are the optional inputs, which have the given default values.
    pub fn add_optional(&mut self, mut variant: BuildOutput, values: Vec<Tensor>) {
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

fn constant_port(index: usize, tensor: &Tensor) -> Port {
    Port::tensor(format!("c{index}"), TensorType::fixed(tensor.dtype(), tensor.shape()))
}

/// Value of `print_after` for all passes.
const ALL_PASSES: &str = "all";

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
    let mut passes = PassLog { print_after: options.print_after.as_deref(), print_line, timings: Vec::new() };
    options.report(|| Stage::Simplify);
    let simplified = simplify(model.module, &backends, &mut passes, &mut warnings)?;
    options.report(|| Stage::Partition);
    let receivers = if options.keep_partition { &[] } else { &backends[..] };
    let mut partition_result = partition(&simplified, receivers, &mut passes, &mut warnings)?;
    // Where no backend takes 16-bit floats, all of them run fastest in float32.
    let widened = match !options.program && leaves_float16_to_host(&partition_result.module) {
        true => {
            tracing::info!("float16 and bfloat16 are computed in float32: no selected backend takes them");
            let step = vec![Step::pass("widen_float16")?];
            Some(passes.run(Cow::Borrowed(&simplified), step, &PassOptions::default(), &mut warnings)?)
        }
        false => None,
    };
    if let Some(widened) = &widened {
        partition_result = partition(widened, receivers, &mut passes, &mut warnings)?;
    }
    let Partition { module: partitioned, mut report, facts } = partition_result;
    let placed = widened.as_ref().unwrap_or(&simplified);
    let compilers: Vec<&Backend<'_>> = backends.iter().chain(&named).collect();
    report.add_regions_of(placed, |name| compilers.iter().any(|backend| backend.name == name));

    let start = Instant::now();
    let verified_module = VerifiedModule::of(&partitioned).map_err(verification_failure)?;
    passes.record("verify", start);

    options.report(|| Stage::Plan);
    let outputs: Vec<String> = model.signature.outputs.iter().map(|p| p.name.clone()).collect();
    // Only operators that no backend accepted remain outside regions. Among these operators, the host fuses
    // convolutions and matrix products with the requantization that follows them, and computes tables of what remains
    // between integers.
    let steps = vec![Step::pass("fuse_requantize")?, Step::pass("tabulate")?];
    let lowered_module = passes.run(Cow::Borrowed(&partitioned), steps, &PassOptions::default(), &mut warnings)?;
    if let Some(name) = printed_pass.filter(|&name| !passes.timings.iter().any(|timing| timing.0 == name)) {
        (passes.print_line)(&format!("// {name} is not among the passes of this build\n"));
    }
    let start = Instant::now();
    let memory_backends = compilers.iter().filter(|backend| backend.description.device_memory);
    let device_backends: Vec<&str> = memory_backends.map(|backend| backend.name.as_str()).collect();
    let lowered_program = plan::plan(&lowered_module, &outputs, &device_backends)?;
    passes.record("plan", start);

    let start = Instant::now();
    let (mut program, mut constants) = (lowered_program.program, lowered_program.constants);
    // Variables have names that are valid in Relay text, but users know the inputs by their names in the model file.
    if program.inputs.len() == model.signature.inputs.len() {
        for (port, info) in program.inputs.iter_mut().zip(&model.signature.inputs) {
            port.name.clone_from(&info.name);
            port.kind = info.kind;
        }
    }
    if program.outputs.len() == model.signature.outputs.len() {
        for (port, info) in program.outputs.iter_mut().zip(&model.signature.outputs) {
            port.kind = info.kind;
        }
    }
    let mut code_options = plugin::options(options.cache_dir.as_deref(), None);
    code_options["source"] = options.source.into();
    if let Some(stage) = &options.stage {
        code_options["stage"] = stage.as_str().into();
    }
    if options.program {
        code_options["program"] = "c".into();
    }
    let mut compiler = RegionCompiler::new(verified_module, &constants, code_options);
    let mut failures: BTreeMap<String, Refusal> = BTreeMap::new();
    let mut regions = Vec::with_capacity(program.regions.len());
    let count = program.regions.len();
    for (index, region) in program.regions.iter_mut().enumerate() {
        let (symbol, backend) = (&region.symbol, &region.backend);
        options.report(|| Stage::Region { symbol: symbol.clone(), backend: backend.clone(), index, count });
        let Some(backend) = compilers.iter().find(|b| b.name == region.backend) else {
            regions.push(None);
            continue;
        };
        let compiled = compiler.compile(backend, &region.symbol, &mut constants);
        check_cancelled(session, || format!("region {} was being compiled by {}", region.symbol, region.backend))?;
        match compiled {
            Ok(compiled_region) => {
                region.loader = compiled_region.loader.clone();
                regions.push(Some(compiled_region));
            }
            Err(compile_error) => {
                let CompileFailure { diagnostic, refusal } = *compile_error;
                failures.insert(region.symbol.clone(), refusal);
                let message = format!("region {} could not be compiled, so it runs on the host", region.symbol);
                warnings.push(compilation_warning(diagnostic.note(message)));
                regions.push(None);
            }
        }
    }
    let in_place: plan::InPlace = regions
        .iter()
        .flatten()
        .map(|region_output| (region_output.symbol.clone(), region_output.in_place()))
        .collect();
    if in_place.values().any(|pairs| !pairs.is_empty()) {
        // The second plan differs from the first only in storage locations, so only the functions are replaced.
        let lowering = plan::plan_in_place(&lowered_module, &outputs, &device_backends, &in_place)?;
        program.functions = lowering.program.functions;
    }
    let mut linked_data = BTreeMap::new();
    // Self-contained C programs share no data, so their regions are not linked.
    for backend in compilers.iter().filter(|_| !options.program) {
        match compiler.link(backend, &mut regions) {
            Ok(Some(shared_data)) => drop(linked_data.insert(backend.name.clone(), shared_data)),
            Ok(None) => {}
            Err(diagnostic) => {
                let refusal = CompileFailure::from(diagnostic.clone()).refusal;
                let message = format!("the regions of {} could not be linked, so they run on the host", backend.name);
                warnings.push(compilation_warning(diagnostic.note(message)));
                for (region, compiled) in program.regions.iter_mut().zip(&mut regions) {
                    if let Some(unlinked) = compiled.take_if(|compiled| takes_part(compiled, &backend.name)) {
                        failures.insert(unlinked.symbol, refusal.clone());
                        region.loader.clear();
                    }
                }
            }
        }
        check_cancelled(session, || format!("{} was linking its regions", backend.name))?;
    }
    let region_backends: Vec<String> =
        regions.iter().flatten().map(|compiled_region| compiled_region.backend.clone()).collect();
    // A region may read a constant that no host step reads.
    for tensor in &constants[program.constants.len()..] {
        program.constants.push(constant_port(program.constants.len(), tensor));
    }
    passes.record("codegen", start);
    if options.time_passes {
        for (name, time) in &passes.timings {
            (passes.print_line)(&format!("{:>12.3} ms  {name}", time.as_secs_f64() * 1e3));
        }
    }

    let facts = |region: &RegionReport| facts.get(&region.symbol).cloned().unwrap_or_default();
    let mut explanation = explain(placed, &operators, &report, &failures, &facts);
    explanation.copies = copies(&program);
    // A model may already contain regions, on which no backend returns a verdict.
    let has_region = |backend: &Backend<'_>| {
        region_backends.contains(&backend.name) || explanation.regions.iter().any(|r| r.backend == backend.name)
    };
    let unused = unused_backends(backends.iter().filter(|backend| !has_region(backend)), &explanation);
    let compiled = Compiled {
        program,
        constants,
        absent: BTreeSet::new(),
        regions,
        linked: linked_data,
        explain: serde_json::to_value(&explanation).unwrap_or_default(),
        model_digest: model.digest,
        options: compiled_options(&compilers, &model.bound, options.precision),
        from_file: false,
        variants: Vec::new(),
        charges: Arc::default(),
    };
    let signature = model.signature;
    let variant_totals = Vec::new();
    Ok(BuildOutput { compiled, simplified, partitioned, explanation, signature, warnings, unused, variant_totals })
}

/// Returns the warning about regions that run on the host because their backend failed.
fn compilation_warning(diagnostic: Diagnostic) -> Diagnostic {
    // The code for a region that was not compiled is more specific than the generic code of a plugin's error.
    let code = match diagnostic.code {
        codes::plugins::PLUGIN_FAULT => codes::plugins::REGION_NOT_COMPILED,
        specific => specific,
    };
    Diagnostic { severity: Severity::Warning, code, ..diagnostic }
}

/// Returns the failure for a module that does not pass verification.
fn verification_failure(mut faults: Vec<Diagnostic>) -> Failure {
    if let Some(first_fault) = faults.first_mut() {
        first_fault.notes.push("this is a bug in byoc, found before code generation: please report it".into());
    }
    Failure::from(faults)
}

/// Returns an error if the build is cancelled; `position` describes the progress.
fn check_cancelled(session: &Session, position: impl FnOnce() -> String) -> Result<(), Diagnostic> {
    session.cancellation().check(position).map_err(as_cancelled_build)
}

/// Converts the diagnostic of a cancellation to that of a cancelled build.
fn as_cancelled_build(diagnostic: Diagnostic) -> Diagnostic {
    if diagnostic.code != codes::runtime::CANCELLED {
        return diagnostic;
    }
    let message = "the build was cancelled, and nothing was written".to_owned();
    Diagnostic { code: codes::plugins::BUILD_CANCELLED, message, ..diagnostic }
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
fn compiled_options(backends: &[&Backend<'_>], dims: &BTreeMap<String, usize>, precision: ComputeFormat) -> Value {
    let names: Vec<&str> = backends.iter().map(|b| b.name.as_str()).collect();
    let mut options = json!({"backends": names, "dims": dims});
    let chosen_options: BTreeMap<&str, _> =
        backends.iter().filter(|b| !b.chosen.is_empty()).map(|b| (b.name.as_str(), &b.chosen)).collect();
    if !chosen_options.is_empty() {
        options["backend_options"] = json!(chosen_options);
    }
    if precision != ComputeFormat::F32 {
        options["precision"] = precision.name().into();
    }
    options
}

/// Pass runner of a build, which prints the module after the requested passes and records times.
struct PassLog<'a> {
    print_after: Option<&'a str>,
    print_line: &'a mut dyn FnMut(&str),
    timings: Vec<(&'static str, Duration)>,
}

impl PassLog<'_> {
    /// Runs steps through the pass manager.
    fn run(
        &mut self,
        module: Cow<'_, Module>,
        steps: Vec<Step<'_>>,
        options: &PassOptions,
        warnings: &mut Vec<Diagnostic>,
    ) -> Result<Module, Failure> {
        let requested_names = self.print_after;
        let mut print_module = |pass: &str, module: &Module| {
            if requested_names.is_some_and(|p| p == ALL_PASSES || p == pass) {
                (self.print_line)(&format!("// after {pass}\n{}", print(module, &PrintOptions::default()).text));
            }
        };
        let mut run =
            RunOptions { verify_each: cfg!(debug_assertions), step_limit: None, after_pass: Some(&mut print_module) };
        let output = manager::run_steps(module, steps, options, &mut run)
            .map_err(|e| Failure::from(e.diagnostics.into_iter().map(as_cancelled_build).collect::<Vec<_>>()))?;
        warnings.extend(output.warnings);
        self.timings.extend(output.timings.iter().map(|Timing { pass, time }| (*pass, *time)));
        Ok(output.module)
    }

    /// Records the duration of a stage that is not a pass.
    fn record(&mut self, stage: &'static str, start: Instant) {
        self.timings.push((stage, start.elapsed()));
    }
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

/// Module after partitioning, with the partitioning report.
struct Partition {
    module: Module,
    report: Report,
    /// Statements of the backends about their regions, by region symbol.
    facts: BTreeMap<Name, RegionFacts>,
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
    let mut passes = PassLog { print_after: None, print_line: &mut |_| {}, timings: Vec::new() };
    let simplified = simplify(model.module, &backends, &mut passes, &mut warnings)?;
    let partition = partition(&simplified, &backends, &mut passes, &mut warnings)?;
    Ok((partition.module, warnings))
}

fn partition(
    module: &Module,
    backends: &[Backend<'_>],
    passes: &mut PassLog<'_>,
    warnings: &mut Vec<Diagnostic>,
) -> Result<Partition, Failure> {
    let mut judges: Vec<PluginJudge<'_, '_>> = backends.iter().map(PluginJudge::new).collect();
    let mut report = Report::default();
    let step = Step::new("partition_graph", |module, options, _| {
        let mut targets: Vec<byoc_core::pass::Backend<'_>> = Vec::new();
        for (backend, judge) in backends.iter().zip(&mut judges) {
            targets.push(byoc_core::pass::Backend {
                name: backend.name.as_str().into(),
                table: &backend.table,
                operators: &backend.description.operators,
                control_flow: backend.control_flow(),
                judge,
            });
        }
        let partitioned;
        (partitioned, report) = partition_for(module, &mut targets, &options.module_name)?;
        Ok(partitioned)
    });
    let partitioned = passes.run(Cow::Borrowed(module), vec![step], &PassOptions::default(), warnings)?;
    for judge in &judges {
        warnings.extend(judge.faults.iter().map(|error| Diagnostic { severity: Severity::Warning, ..fault(error) }));
    }
    let facts = |region: &RegionReport| {
        let index = backends.iter().position(|backend| *backend.name == *region.backend)?;
        let precision = backends[index].precision_of(module, region);
        Some((region.symbol.clone(), RegionFacts { precision, estimate: judges[index].estimate(module, region) }))
    };
    let facts = report.regions.iter().filter_map(facts).collect();
    Ok(Partition { module: partitioned, report, facts })
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
