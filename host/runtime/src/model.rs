//! Built model, loaded and ready to run on this machine's plugins.

use crate::cancel::Cancel;
use crate::compiled::{Compiled, Variant};
use crate::error::Failure;
use crate::exec::constants::needed_constants;
use crate::exec::executor::Executor;
use crate::exec::program::{Place, Port, Region};
use crate::exec::trace::{Observer, StepKind};
use crate::exec::{self, memory, order_inputs, validate};
use crate::loading::{LoadedRegions, load_regions};
use crate::native;
use crate::session::Session;
use byoc_ir::diag::{Diagnostic, Severity, codes};
use byoc_ir::ir::Dim;
use byoc_ir::tensor::{Tensor, TensorViewMut};
use byoc_plugin_api::host::entries;
use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::sync::Arc;

/// Returns the FLOPs per run in the given regions, and their share of the total, as counted at compile time. The host
/// program of a region may need more or fewer FLOPs.
fn offloaded_flops(explain: &serde_json::Value, regions: &HashSet<&str>) -> (u64, f64) {
    let flops = |value: &serde_json::Value| value["flops"].as_u64().unwrap_or(0);
    let rows = explain["regions"].as_array().into_iter().flatten();
    let region_rows = rows.filter(|row| row["symbol"].as_str().is_some_and(|symbol| regions.contains(symbol)));
    let (offloaded_flops, total_flops) =
        (region_rows.map(flops).fold(0, u64::saturating_add), flops(&explain["totals"]));
    (offloaded_flops, if total_flops == 0 { 0.0 } else { offloaded_flops as f64 / total_flops as f64 })
}

/// Loaded model, ready to run.
pub struct Model {
    executor: Executor,
    /// Executors of the programs for fixed values of symbolic dimensions.
    variants: Vec<Executor>,
    /// Program that also takes the optional inputs.
    optional: Option<Optional>,
    /// Share of the FLOPs per run that backends execute, excluding regions that fell back to the host.
    pub offload_share: f64,
    /// Smallest such share among the programs for fixed values of symbolic dimensions; `offload_share` if there are
    /// none.
    pub min_offload_share: f64,
    /// FLOPs per run that backends execute.
    pub offload_flops: u64,
    /// Number of regions that run on backends.
    pub regions: usize,
}

/// Program that takes the inputs of the model, and then optional inputs.
struct Optional {
    executor: Executor,
    defaults: Vec<Tensor>,
}

impl Model {
    /// Loads every region with its loader. A region that has no loader, or that its loader refuses, runs on the host;
    /// the warnings name the region and the reason.
    ///
    /// Constants that only regions read are released once all regions are ready to run, so packed constants are in
    /// memory twice until then. [`Model::load_sparing`] avoids the second copy.
    ///
    /// # Errors
    /// If the program is invalid, or the host has to run an operator that it does not implement.
    pub fn load(
        session: &Session,
        compiled: Compiled,
        cache_dir: Option<&Path>,
    ) -> Result<(Model, Vec<Diagnostic>), Failure> {
        load(session, compiled, cache_dir, ConstantRetention::UntilReady)
    }

    /// Same as [`Model::load`], except that the host releases constants that only regions read as soon as the regions
    /// are loaded: a backend that packs and releases its constants one by one keeps at most one of them in memory
    /// twice. Code used only for compiling and loading is released too. If a backend refuses a region afterwards, the
    /// model is built again by `rebuild` and loaded by [`Model::load`].
    ///
    /// # Errors
    /// Same as [`Model::load`], and the errors of `rebuild`.
    pub fn load_sparing(
        session: &Session,
        compiled: Compiled,
        cache_dir: Option<&Path>,
        rebuild: impl FnOnce() -> Result<Compiled, Failure>,
    ) -> Result<(Model, Vec<Diagnostic>), Failure> {
        match load(session, compiled, cache_dir, ConstantRetention::UntilLoaded) {
            Err(failure) if failure.diagnostics.iter().any(|d| d.code == codes::runtime::CONSTANTS_GONE) => {
                load(session, rebuild()?, cache_dir, ConstantRetention::UntilReady)
            }
            outcome => outcome,
        }
    }

    /// Returns the inputs of the model.
    pub fn inputs(&self) -> &[Port] {
        &self.executor.program().inputs
    }

    /// Returns the inputs that have a default value.
    pub fn optional_inputs(&self) -> &[Port] {
        let ports = self.optional.as_ref().map(|optional| &optional.executor.program().inputs[..]);
        ports.map_or(&[], |ports| &ports[self.inputs().len()..])
    }

    /// Sorts named inputs into the order of the model's inputs, as a run takes them. If an optional input is among them,
    /// the values of all optional inputs follow.
    ///
    /// # Errors
    /// If a name is unknown, or an input is duplicated or missing.
    pub fn bind(&self, named: impl IntoIterator<Item = (String, Tensor)>) -> Result<Vec<Tensor>, Diagnostic> {
        order_inputs(self.inputs(), self.optional_inputs(), self.defaults(), named)
    }

    fn defaults(&self) -> &[Tensor] {
        self.optional.as_ref().map_or(&[], |optional| &optional.defaults)
    }

    fn executors(&self) -> impl Iterator<Item = &Executor> {
        let optional = self.optional.as_ref().map(|optional| &optional.executor);
        std::iter::once(&self.executor).chain(&self.variants).chain(optional)
    }

    /// Returns the outputs of the model.
    pub fn outputs(&self) -> &[Port] {
        &self.executor.program().outputs
    }

    /// Returns the number of operators in the entry function that the host executes.
    pub fn host_steps(&self) -> usize {
        let entry = self.executor.program().entry as usize;
        let steps = self.executor.steps().get(entry);
        steps.map_or(0, |steps| steps.iter().filter(|s| s.kind == StepKind::Kernel).count())
    }

    /// Returns the executor.
    pub fn executor(&self) -> &Executor {
        &self.executor
    }

    /// Returns true if runs change the state of a region.
    pub fn is_stateful(&self) -> bool {
        self.executors().any(Executor::is_stateful)
    }

    /// Resets the state of each stateful region to the state after loading.
    ///
    /// # Errors
    /// If a backend cannot reset the state.
    pub fn reset_state(&self) -> Result<(), Failure> {
        Ok(self.executors().try_for_each(Executor::reset_state)?)
    }

    /// Releases the memory that is retained between runs: activations, and the plans for dimensions of earlier runs.
    /// The next run allocates it again.
    pub fn release_memory(&self) {
        self.executors().for_each(Executor::release_memory);
        memory::trim_heap();
    }

    /// Returns the executor for the given inputs: that of the specialized program whose dimensions match the inputs and
    /// that has the most fixed dimensions, or else that of the main program. With optional inputs, it is the executor of
    /// the program that takes them.
    pub fn executor_for(&self, inputs: &[Tensor]) -> &Executor {
        if let Some(Optional { executor, .. }) = &self.optional
            && inputs.len() == executor.program().inputs.len()
        {
            return executor;
        }
        let matches = |(dim, &size): (&Dim, &usize)| dim.fixed().is_none_or(|fixed| fixed == size);
        let takes = |port: &Port, input: &Tensor| {
            port.ty.dims.len() == input.shape().len() && port.ty.dims.iter().zip(input.shape()).all(matches)
        };
        let accepts_inputs =
            |executor: &&Executor| executor.program().inputs.iter().zip(inputs).all(|(port, x)| takes(port, x));
        self.variants.iter().find(accepts_inputs).unwrap_or(&self.executor)
    }

    /// Runs the model. The inputs correspond to [`Model::inputs`], the results to [`Model::outputs`].
    ///
    /// # Errors
    /// If the inputs do not match [`Model::inputs`], or a step fails.
    pub fn run(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, Failure> {
        entries::save_float_state();
        Ok(self.executor_for(inputs).run(inputs)?)
    }

    /// Runs the model; the observer is notified of every step.
    ///
    /// # Errors
    /// Same as [`Model::run`].
    pub fn run_observed(&self, inputs: &[Tensor], observer: &dyn Observer) -> Result<Vec<Tensor>, Failure> {
        entries::save_float_state();
        Ok(self.executor_for(inputs).run_observed(inputs, Some(observer))?)
    }

    /// Same as [`Model::run_observed`], and setting `cancel` ends the run.
    ///
    /// # Errors
    /// Same as [`Model::run`].
    pub fn run_observed_under(
        &self,
        inputs: &[Tensor],
        observer: &dyn Observer,
        cancel: &Cancel,
    ) -> Result<Vec<Tensor>, Failure> {
        entries::save_float_state();
        Ok(self.executor_for(inputs).run_under(inputs, Some(observer), cancel)?)
    }

    /// Runs the model; setting `cancel` ends the run. A request with its own deadline uses a [`Cancel::part`] of the
    /// session's cancellation.
    ///
    /// # Errors
    /// Same as [`Model::run`].
    pub fn run_under(&self, inputs: &[Tensor], cancel: &Cancel) -> Result<Vec<Tensor>, Failure> {
        entries::save_float_state();
        Ok(self.executor_for(inputs).run_under(inputs, None, cancel)?)
    }

    /// Same as [`Model::run_under`], and writes the results to caller-provided memory.
    ///
    /// # Errors
    /// Same as [`Model::run`], and E0621 if the memory of an output does not have the type of the output.
    pub fn run_into(
        &self,
        inputs: &[Tensor],
        outputs: &mut [TensorViewMut<'_>],
        cancel: &Cancel,
    ) -> Result<(), Failure> {
        entries::save_float_state();
        Ok(self.executor_for(inputs).run_into(inputs, outputs, None, cancel)?)
    }
}

/// Point up to which the host retains constants that only loaded regions read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ConstantRetention {
    UntilLoaded,
    UntilReady,
}

fn load(
    session: &Session,
    mut compiled: Compiled,
    cache_dir: Option<&Path>,
    retention: ConstantRetention,
) -> Result<(Model, Vec<Diagnostic>), Failure> {
    let _scope = session.cancellation().enter();
    compiled.check()?;
    let mut variants = std::mem::take(&mut compiled.variants);
    variants.sort_by_key(|variant| std::cmp::Reverse(variant.dims.len()));
    let (mut model, mut warnings) = load_program(session, compiled, cache_dir, retention)?;
    if variants.iter().any(|variant| variant.defaults.is_empty()) {
        model.min_offload_share = 1.0;
    }
    for Variant { defaults, compiled, .. } in variants {
        let defaults: Vec<Tensor> = defaults.iter().map(|&index| compiled.constants[index as usize].clone()).collect();
        let (variant, variant_warnings) = load_program(session, compiled, cache_dir, retention)?;
        match defaults.is_empty() {
            true => {
                model.min_offload_share = model.min_offload_share.min(variant.offload_share);
                model.variants.push(variant.executor);
            }
            false => model.optional = Some(Optional { executor: variant.executor, defaults }),
        }
        // A warning that several programs share is reported once.
        warnings.extend(variant_warnings.into_iter().filter(|warning| !warnings.contains(warning)).collect::<Vec<_>>());
    }
    Ok((model, warnings))
}

/// Checks that no region whose constants are stored only in its blob has to run on the host.
fn check_absent(
    compiled: &Compiled,
    regions: &[Option<Arc<dyn exec::Region>>],
    host_reasons: &BTreeMap<String, String>,
) -> Result<(), Diagnostic> {
    if compiled.absent.is_empty() {
        return Ok(());
    }
    let is_needed = needed_constants(&compiled.program, |region| regions[region as usize].is_some());
    let missing_constants: HashSet<u32> =
        compiled.absent.iter().copied().filter(|&index| is_needed[index as usize]).collect();
    if missing_constants.is_empty() {
        return Ok(());
    }
    let reads_missing = |region: &Region| {
        let registers = &compiled.program.functions[region.fallback as usize].registers;
        registers
            .iter()
            .any(|register| matches!(register.place, Place::Constant(index) if missing_constants.contains(&index)))
    };
    let mut host_regions = compiled.program.regions.iter().zip(regions).filter(|(_, loaded)| loaded.is_none());
    let missing_region = host_regions.find(|(region, _)| reads_missing(region)).map(|(region, _)| region);
    let region_text =
        missing_region.map_or_else(|| "a region".to_owned(), |region| format!("region {}", region.symbol));
    let verb = if missing_constants.len() == 1 { "is" } else { "are" };
    let message = format!(
        "{region_text} cannot run on the host: {} of the constants {verb} stored only in blobs",
        missing_constants.len()
    );
    let mut error = Diagnostic::error(codes::artifacts::CONSTANTS_IN_BLOB, message);
    if let Some(region) = missing_region {
        error = error.note(format!(
            "{} stores them in its blobs and declared that the region needs no host fallback",
            region.backend
        ));
        error.notes.extend(host_reasons.get(&*region.symbol).cloned());
    }
    Err(error.help("run the model with the plugin that compiled it, or compile the model again"))
}

/// Names the plugin of a declared operator that the host cannot compute, in the error about it.
fn with_plugins(error: Diagnostic, declared_operators: &serde_json::Value) -> Diagnostic {
    let is_named = |operator: &str| error.code == codes::runtime::NO_KERNEL && error.message.ends_with(operator);
    let mut plugins = declared_operators.as_object().into_iter().flatten();
    let Some((operator, plugin)) = plugins.find(|(operator, _)| is_named(operator)) else { return error };
    let plugin = plugin.as_str().unwrap_or_default().to_owned();
    let note = format!("{operator} is an operator of plugin {plugin}, which has no decomposition for the host");
    error.note(note).help(format!("add the plugin {plugin} with --plugin-dir DIR"))
}

/// Returns the error about a region that its backend does not load.
fn as_load_error(mut warning: Diagnostic) -> Diagnostic {
    // The note says that the host runs the region.
    warning.notes.pop();
    Diagnostic { severity: Severity::Error, ..warning }
}

fn load_program(
    session: &Session,
    compiled: Compiled,
    cache_dir: Option<&Path>,
    retention: ConstantRetention,
) -> Result<(Model, Vec<Diagnostic>), Failure> {
    if compiled.from_file && !session.allow_native {
        native::reject_native_code(session, &compiled)?;
    }
    let LoadedRegions { regions, spaces, has_own_threads, mut warnings, host_reasons } =
        load_regions(session, &compiled, cache_dir)?;
    if session.choices.fails_without_backend && !host_reasons.is_empty() {
        let refused =
            warnings.into_iter().filter(|warning| host_reasons.values().any(|reason| *reason == warning.message));
        return Err(Failure::from(refused.map(as_load_error).collect::<Vec<_>>()));
    }
    let count = regions.iter().flatten().count();
    let region_pairs = regions.iter().zip(&compiled.program.regions).filter(|(loaded, _)| loaded.is_some());
    let loaded_symbols: HashSet<&str> = region_pairs.map(|(_, region)| &*region.symbol).collect();
    let (offload_flops, offload_share) = offloaded_flops(&compiled.explain, &loaded_symbols);
    check_absent(&compiled, &regions, &host_reasons)?;
    let declared_operators = compiled.options["operators"].clone();
    let (program, absent) = (compiled.program, compiled.absent);
    validate(&program)?;
    let keeps_constants = |region: u32| regions[region as usize].as_ref().is_some_and(|region| !region.may_be_lost());
    let is_needed = needed_constants(&program, keeps_constants);
    let retain_needed = |((index, constant), is_needed): ((u32, Tensor), bool)| {
        let is_retained = is_needed || retention == ConstantRetention::UntilReady;
        (is_retained && !absent.contains(&index)).then_some(constant)
    };
    let constants = (0u32..).zip(compiled.constants).zip(is_needed).map(retain_needed).collect();
    memory::trim_heap();
    if retention == ConstantRetention::UntilLoaded {
        memory::release_code();
    }
    let executor = Executor::with_partial_constants(program, constants, regions, spaces, session.pool.clone());
    let mut executor = executor.map_err(|error| with_plugins(error, &declared_operators))?;
    executor.release_constants();
    if has_own_threads {
        executor = executor.with_regions_on_caller();
    }
    executor = executor.with_cancel(session.cancel.clone()).with_options(session.choices.run_options.clone());
    if session.choices.fails_without_backend {
        executor = executor.without_fallback();
    }
    // These notes report regions that were refused while they were prepared for known dimensions.
    for note in executor.notes() {
        warnings.push(Diagnostic::warning(codes::plugins::PLUGIN_FAULT, note).note("the result is the same"));
    }
    let min_offload_share = offload_share;
    let (variants, optional) = (Vec::new(), None);
    Ok((
        Model { executor, variants, optional, offload_share, min_offload_share, offload_flops, regions: count },
        warnings,
    ))
}
