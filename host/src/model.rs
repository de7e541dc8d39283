//! A built model made ready to run on this machine's plugins.

use crate::build::compiled::CompiledRegion;
use crate::build::{Compiled, codegen};
use crate::cancel::Cancel;
use crate::error::Failure;
use crate::native;
use crate::plugin::backend::fault;
use crate::plugin::bridge::constant_handle;
use crate::plugin::region::PluginRegion;
use crate::runtime::executor::Executor;
use crate::runtime::needs::needed_constants;
use crate::runtime::program::Port;
use crate::runtime::trace::{Observer, StepKind};
use crate::runtime::{Region, memory, validate};
use crate::session::Session;
use byoc_core::diag::{Diagnostic, Severity, codes};
use byoc_core::tensor::Tensor;
use byoc_plugin_api::host::entries;
use byoc_plugin_api::{Constant, LoadRequest};
use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

/// What a plugin records about a region that computes on threads of its own, not by `parallel_for`.
const OWN_THREADS: &str = "own_threads";

fn has_own_threads(region: &CompiledRegion) -> bool {
    region.metadata.iter().any(|(key, value)| key == OWN_THREADS && *value == true)
}

/// The operations of a run that these regions compute, and their share of all. Both are counted in the program that was compiled:
/// the host's own code for a region may take more or fewer of them.
fn offloaded(explain: &serde_json::Value, regions: &HashSet<&str>) -> (u64, f64) {
    let flops = |of: &serde_json::Value| of["flops"].as_u64().unwrap_or(0);
    let rows = explain["regions"].as_array().into_iter().flatten();
    let own = rows.filter(|row| row["symbol"].as_str().is_some_and(|symbol| regions.contains(symbol)));
    let (offloaded, total) = (own.map(flops).fold(0, u64::saturating_add), flops(&explain["totals"]));
    (offloaded, if total == 0 { 0.0 } else { offloaded as f64 / total as f64 })
}

/// A model that can run.
pub struct Model {
    executor: Executor,
    /// Share of the operations of a run that is on backends now, regions that fell back to the host left out.
    pub offload_share: f64,
    /// Operations of a run that are on backends now.
    pub offload_flops: u64,
    /// How many regions run on backends now.
    pub regions: usize,
}

impl Model {
    /// Gives every region to its loader. A region without a loader, or that its loader turns down, runs on the host:
    /// the warnings say which and why.
    ///
    /// Constants that only regions read are let go when all regions are ready to run, so that for a while there are two
    /// copies of what a backend packs. [`Model::load_sparing`] does without that.
    ///
    /// # Errors
    /// When the program makes no sense or the host lacks an operator that it would have to run.
    pub fn load(
        session: &Session,
        compiled: Compiled,
        cache_dir: Option<&Path>,
    ) -> Result<(Model, Vec<Diagnostic>), Failure> {
        load(session, compiled, cache_dir, Hold::UntilReady)
    }

    /// As [`Model::load`], but the constants that only regions read belong to their backends as soon as these have loaded
    /// them: a backend that packs them one by one and lets each go never holds more than one of them twice. Code that only
    /// compiling and loading run is let go too. Where a backend turns a region down after that, the model is made once more
    /// by `again`, and loaded as by [`Model::load`].
    ///
    /// # Errors
    /// As [`Model::load`], and what `again` gives.
    pub fn load_sparing(
        session: &Session,
        compiled: Compiled,
        cache_dir: Option<&Path>,
        again: impl FnOnce() -> Result<Compiled, Failure>,
    ) -> Result<(Model, Vec<Diagnostic>), Failure> {
        match load(session, compiled, cache_dir, Hold::UntilLoaded) {
            Err(failure) if failure.diagnostics.iter().any(|d| d.code == codes::runtime::CONSTANTS_GONE) => {
                load(session, again()?, cache_dir, Hold::UntilReady)
            }
            outcome => outcome,
        }
    }

    /// What goes in.
    pub fn inputs(&self) -> &[Port] {
        &self.executor.program().inputs
    }

    /// What comes out.
    pub fn outputs(&self) -> &[Port] {
        &self.executor.program().outputs
    }

    /// Operators that the host computes in a run without branches.
    pub fn host_steps(&self) -> usize {
        let entry = self.executor.program().entry as usize;
        let steps = self.executor.steps().get(entry);
        steps.map_or(0, |steps| steps.iter().filter(|s| s.kind == StepKind::Kernel).count())
    }

    /// How it runs.
    pub fn executor(&self) -> &Executor {
        &self.executor
    }

    /// Runs it. The inputs go with [`Model::inputs`], the results with [`Model::outputs`].
    ///
    /// # Errors
    /// When the inputs do not fit, or a step fails.
    pub fn run(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, Failure> {
        entries::trust_float_state();
        Ok(self.executor.run(inputs)?)
    }

    /// As [`Model::run`]; the observer hears of every step.
    ///
    /// # Errors
    /// As [`Model::run`].
    pub fn run_observed(&self, inputs: &[Tensor], observer: &dyn Observer) -> Result<Vec<Tensor>, Failure> {
        entries::trust_float_state();
        Ok(self.executor.run_observed(inputs, Some(observer))?)
    }

    /// As [`Model::run`], for a run that ends when `cancel` says so: one request of several, with a deadline of its own
    /// ([`Cancel::part`] of the session's).
    ///
    /// # Errors
    /// As [`Model::run`].
    pub fn run_under(&self, inputs: &[Tensor], cancel: &Cancel) -> Result<Vec<Tensor>, Failure> {
        Ok(self.executor.run_under(inputs, None, cancel)?)
    }
}

/// How long the host holds constants that only loaded regions read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Hold {
    UntilLoaded,
    UntilReady,
}

fn load(
    session: &Session,
    compiled: Compiled,
    cache_dir: Option<&Path>,
    hold: Hold,
) -> Result<(Model, Vec<Diagnostic>), Failure> {
    let _scope = session.cancel.enter();
    compiled.check()?;
    if compiled.from_file && !session.allow_native {
        native::refuse(session, &compiled)?;
    }
    let mut options = codegen::options(cache_dir, Some(session.pool.threads()));
    let mut warnings = Vec::new();
    let mut handles: Vec<Option<Constant>> = vec![None; compiled.constants.len()];
    let mut regions: Vec<Option<Arc<dyn Region>>> = Vec::with_capacity(compiled.regions.len());
    for region in &compiled.regions {
        let Some(region) = region else {
            regions.push(None);
            continue;
        };
        session.cancel.check(|| format!("region {} was to be loaded", region.symbol))?;
        let on_host = |diagnostic: Diagnostic| Diagnostic {
            severity: Severity::Warning,
            ..diagnostic.note(format!("region {} runs on the host instead; the answer is the same", region.symbol))
        };
        let Some(loader) = session.registry.loader(&region.loader, &region.plugin.name) else {
            let message = format!(
                "region {} needs the loader \"loadbinary_{}\", which no plugin found registers",
                region.symbol, region.loader
            );
            let made = format!("it was made by plugin {} {}", region.plugin.name, region.plugin.version);
            warnings.push(on_host(Diagnostic::warning(codes::plugins::NO_LOADER, message).note(made)));
            regions.push(None);
            continue;
        };
        let constants: Vec<Constant> = region
            .constants
            .iter()
            .map(|&i| {
                let slot = &mut handles[i as usize];
                let tensor = &compiled.constants[i as usize];
                slot.get_or_insert_with(|| constant_handle("", &Arc::new(tensor.clone()))).clone()
            })
            .collect();
        let signature = region.signature().map_err(|what| Failure::new(codes::artifacts::MALFORMED, what))?;
        options["region"] = region.load_options(&signature);
        let request = LoadRequest {
            symbol: &region.symbol,
            blob: &region.blob,
            constants: &constants,
            options: &options,
            services: &session.services,
        };
        match loader.load(&request) {
            Ok(executable) => {
                let wrapped = PluginRegion::new(executable, &region.symbol, &region.plugin.name);
                regions.push(Some(Arc::new(wrapped)));
            }
            Err(error) => {
                warnings.push(on_host(fault(&error)));
                regions.push(None);
            }
        }
    }
    let count = regions.iter().flatten().count();
    let loaded = regions.iter().zip(&compiled.program.regions).filter(|(loaded, _)| loaded.is_some());
    let loaded: HashSet<&str> = loaded.map(|(_, region)| &*region.symbol).collect();
    let (offload_flops, offload_share) = offloaded(&compiled.explain, &loaded);
    let mut ready = regions.iter().zip(&compiled.regions).filter(|(loaded, _)| loaded.is_some()).peekable();
    let on_caller = ready.peek().is_some() && ready.all(|(_, region)| region.as_ref().is_some_and(has_own_threads));
    drop(handles);
    let program = compiled.program;
    validate(&program)?;
    let needed = needed_constants(&program, |region| regions[region as usize].is_some());
    let kept = |(constant, needed): (Tensor, bool)| (needed || hold == Hold::UntilReady).then_some(constant);
    let constants = compiled.constants.into_iter().zip(needed).map(kept).collect();
    memory::give_back_heap();
    if hold == Hold::UntilLoaded {
        memory::let_go_of_code();
    }
    let mut executor = Executor::with_some(program, constants, regions, session.pool.clone())?;
    executor.let_go();
    if on_caller {
        executor = executor.regions_on_caller();
    }
    executor = executor.cancelled_by(session.cancel.clone());
    // What a region says when it is prepared for dimensions that are known.
    for note in executor.notes() {
        warnings.push(Diagnostic::warning(codes::plugins::PLUGIN_FAULT, note).note("the answer is the same"));
    }
    Ok((Model { executor, offload_share, offload_flops, regions: count }, warnings))
}
