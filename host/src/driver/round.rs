//! A round of a build: partitioning, and code for the regions. There is another round if a backend fails.

use super::backend::Backend;
use super::codegen::{CompileFailure, RegionCompiler, takes_part};
use super::explain::RegionFacts;
use super::judge::PluginJudge;
use super::options::BuildOptions;
use super::pass_log::{PassLog, as_cancelled_build};
use super::progress::Stage;
use super::recovery::{OnFailure, Recovery, RegionFailure};
use super::{CompiledRegion, plan};
use crate::frontend::Signature;
use byoc_core::analysis::VerifiedModule;
use byoc_core::pass::manager::Step;
use byoc_core::pass::{
    PassOptions, Refusal, RegionReport, Report, decompose_declared, leaves_float16_to_host, partition_for,
};
use byoc_ir::diag::{Diagnostic, Severity, codes};
use byoc_ir::ir::{Module, Name, TensorType};
use byoc_ir::tensor::Tensor;
use byoc_runtime::error::Failure;
use byoc_runtime::exec::program::{Port, Program};
use byoc_runtime::plugin::{self, fault};
use byoc_runtime::session::Session;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Instant;

/// Module after partitioning, with the partitioning report.
pub(super) struct Partition {
    /// Partitioned module.
    pub module: Module,
    /// Place of each operator, with the refusals.
    pub report: Report,
    /// Statements of the backends about their regions, by region symbol.
    pub facts: BTreeMap<Name, RegionFacts>,
}

/// Partitions a module for backends.
pub(super) fn partition(
    module: &Module,
    backends: &[Backend<'_>],
    recovery: &Recovery,
    passes: &mut PassLog<'_>,
    warnings: &mut Vec<Diagnostic>,
) -> Result<Partition, Failure> {
    let mut judges: Vec<PluginJudge<'_, '_>> =
        backends.iter().map(|backend| PluginJudge::new(backend).after(recovery)).collect();
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

/// Common part of all rounds of a build.
pub(super) struct Round<'a> {
    pub session: &'a Session,
    pub options: &'a BuildOptions,
    pub signature: &'a Signature,
    /// Selected backends, in priority order.
    pub backends: &'a [Backend<'a>],
    /// The selected backends, and those that regions of the model name.
    pub compilers: &'a [&'a Backend<'a>],
}

/// Partition of a round.
pub(super) struct Placement {
    /// The partitioned module and its report.
    pub partition: Partition,
    /// The module that was partitioned, if it is not the simplified one.
    pub widened: Option<Module>,
}

impl Placement {
    /// Returns the module that was partitioned.
    pub fn placed<'m>(&'m self, simplified: &'m Module) -> &'m Module {
        self.widened.as_ref().unwrap_or(simplified)
    }
}

/// Program of a round, with its regions.
pub(super) struct Generated {
    pub program: Program,
    pub constants: Vec<Tensor>,
    /// Compiled regions, in the order of the program; `None` where a backend failed.
    pub regions: Vec<Option<CompiledRegion>>,
    /// Data that the regions of a backend share, by backend.
    pub linked: BTreeMap<String, Option<Tensor>>,
    /// Regions that their backends failed to compile.
    pub failures: BTreeMap<String, RegionFailure>,
    /// Reasons for regions that were compiled and could not be linked.
    pub refusals: BTreeMap<String, Refusal>,
}

impl Round<'_> {
    /// Partitions the simplified module.
    pub fn place(
        &self,
        simplified: &Module,
        recovery: &Recovery,
        passes: &mut PassLog<'_>,
        warnings: &mut Vec<Diagnostic>,
    ) -> Result<Placement, Failure> {
        self.options.report(|| Stage::Partition);
        let receivers = if self.options.keep_partition { &[] } else { self.backends };
        let first = partition(simplified, receivers, recovery, passes, warnings)?;
        if self.options.program || !leaves_float16_to_host(&first.module) {
            return Ok(Placement { partition: first, widened: None });
        }
        // Where no backend takes 16-bit floats, all of them run fastest in float32.
        tracing::info!("float16 and bfloat16 are computed in float32: no selected backend takes them");
        let step = vec![Step::pass("widen_float16")?];
        let widened = passes.run(Cow::Borrowed(simplified), step, &PassOptions::default(), warnings)?;
        let second = partition(&widened, receivers, recovery, passes, warnings)?;
        Ok(Placement { partition: second, widened: Some(widened) })
    }

    /// Plans the program, and compiles its regions.
    pub fn generate(
        &self,
        placement: &Placement,
        passes: &mut PassLog<'_>,
        warnings: &mut Vec<Diagnostic>,
    ) -> Result<Generated, Failure> {
        let partitioned = &placement.partition.module;
        let start = Instant::now();
        let verified_module = VerifiedModule::of(partitioned).map_err(verification_failure)?;
        passes.record("verify", start);

        self.options.report(|| Stage::Plan);
        let outputs: Vec<String> = self.signature.outputs.iter().map(|p| p.name.clone()).collect();
        // Only operators that no backend accepted remain outside regions. Among these operators, the host fuses
        // convolutions and matrix products with the requantization that follows them, and computes tables of what
        // remains between integers.
        let decompose = Step::new("decompose_declared", |module, _, _| decompose_declared(module));
        let steps = vec![decompose, Step::pass("fuse_requantize")?, Step::pass("tabulate")?];
        let lowered_module = passes.run(Cow::Borrowed(partitioned), steps, &PassOptions::default(), warnings)?;
        passes.print_missing();
        let start = Instant::now();
        let memory_backends = self.compilers.iter().filter(|backend| backend.description.device_memory);
        let device_backends: Vec<&str> = memory_backends.map(|backend| backend.name.as_str()).collect();
        let lowered_program = plan::plan(&lowered_module, &outputs, &device_backends)?;
        passes.record("plan", start);

        let start = Instant::now();
        let (mut program, mut constants) = (lowered_program.program, lowered_program.constants);
        self.name_ports(&mut program);
        let mut compiler = RegionCompiler::new(verified_module, &constants, self.code_options());
        let (mut regions, failures) = self.compile(&mut compiler, &mut program, &mut constants)?;
        let in_place: plan::InPlace =
            regions.iter().flatten().map(|region| (region.symbol.clone(), region.in_place())).collect();
        if in_place.values().any(|pairs| !pairs.is_empty()) {
            // The second plan differs from the first only in storage locations, so only the functions are replaced.
            let lowering = plan::plan_in_place(&lowered_module, &outputs, &device_backends, &in_place)?;
            program.functions = lowering.program.functions;
        }
        let (linked, refusals) = self.link(&compiler, &mut program, &mut regions, warnings)?;
        // A region may read a constant that no host step reads.
        for tensor in &constants[program.constants.len()..] {
            program.constants.push(constant_port(program.constants.len(), tensor));
        }
        passes.record("codegen", start);
        Ok(Generated { program, constants, regions, linked, failures, refusals })
    }

    /// Gives the ports of the program the names of the model file. Variables have names that are valid in Relay text, but
    /// users know the inputs by their names in the file.
    fn name_ports(&self, program: &mut Program) {
        if program.inputs.len() == self.signature.inputs.len() {
            for (port, info) in program.inputs.iter_mut().zip(&self.signature.inputs) {
                port.name.clone_from(&info.name);
                port.kind = info.kind;
            }
        }
        if program.outputs.len() == self.signature.outputs.len() {
            for (port, info) in program.outputs.iter_mut().zip(&self.signature.outputs) {
                port.kind = info.kind;
            }
        }
    }

    /// Returns the options that code generators receive.
    fn code_options(&self) -> serde_json::Value {
        let mut code_options = plugin::options(self.options.cache_dir.as_deref(), None);
        code_options["source"] = self.options.source.into();
        if let Some(stage) = &self.options.stage {
            code_options["stage"] = stage.as_str().into();
        }
        if self.options.program {
            code_options["program"] = "c".into();
        }
        code_options
    }

    /// Compiles the regions of a program. Returns them, and the failures by symbol.
    fn compile(
        &self,
        compiler: &mut RegionCompiler<'_>,
        program: &mut Program,
        constants: &mut Vec<Tensor>,
    ) -> Result<(Vec<Option<CompiledRegion>>, BTreeMap<String, RegionFailure>), Failure> {
        let mut failures = BTreeMap::new();
        let mut regions = Vec::with_capacity(program.regions.len());
        let count = program.regions.len();
        for (index, region) in program.regions.iter_mut().enumerate() {
            let (symbol, backend) = (&region.symbol, &region.backend);
            self.options.report(|| Stage::Region { symbol: symbol.clone(), backend: backend.clone(), index, count });
            let Some(backend) = self.compilers.iter().find(|b| b.name == region.backend) else {
                regions.push(None);
                continue;
            };
            let start = Instant::now();
            let compiled = compiler.compile(backend, &region.symbol, constants);
            let (verb, millis) =
                (if compiled.is_ok() { "compiled" } else { "failed on" }, start.elapsed().as_secs_f64() * 1e3);
            tracing::info!(target: "byoc::codegen", "{} {verb} {symbol} in {millis:.1} ms", region.backend);
            check_cancelled(self.session, || format!("region {symbol} was being compiled by {}", region.backend))?;
            match compiled {
                Ok(compiled_region) => {
                    region.loader = compiled_region.loader.clone();
                    regions.push(Some(compiled_region));
                }
                Err(compile_error) if self.options.on_failure == OnFailure::Error => {
                    let diagnostic = with_region_code(compile_error.diagnostic, Severity::Error);
                    return Err(diagnostic.note(format!("region {symbol} could not be compiled")).into());
                }
                Err(compile_error) => {
                    let CompileFailure { diagnostic, refusal } = *compile_error;
                    let diagnostic = with_region_code(diagnostic, Severity::Warning);
                    failures.insert(region.symbol.clone(), RegionFailure { refusal, diagnostic });
                    regions.push(None);
                }
            }
        }
        Ok((regions, failures))
    }

    /// Links the regions of each backend. Returns the data that they share, and the reasons for regions that could not be
    /// linked.
    #[expect(clippy::type_complexity, reason = "two maps of one caller")]
    fn link(
        &self,
        compiler: &RegionCompiler<'_>,
        program: &mut Program,
        regions: &mut [Option<CompiledRegion>],
        warnings: &mut Vec<Diagnostic>,
    ) -> Result<(BTreeMap<String, Option<Tensor>>, BTreeMap<String, Refusal>), Failure> {
        let (mut linked, mut refusals) = (BTreeMap::new(), BTreeMap::new());
        // Self-contained C programs share no data, so their regions are not linked.
        for backend in self.compilers.iter().filter(|_| !self.options.program) {
            match compiler.link(backend, regions) {
                Ok(Some(shared_data)) => drop(linked.insert(backend.name.clone(), shared_data)),
                Ok(None) => {}
                Err(diagnostic) if self.options.on_failure == OnFailure::Error => {
                    return Err(with_region_code(diagnostic, Severity::Error).into());
                }
                Err(diagnostic) => {
                    let refusal = CompileFailure::from(diagnostic.clone()).refusal;
                    let message =
                        format!("the regions of {} could not be linked, so they run on the host", backend.name);
                    warnings.push(with_region_code(diagnostic, Severity::Warning).note(message));
                    for (region, compiled) in program.regions.iter_mut().zip(&mut *regions) {
                        if let Some(unlinked) = compiled.take_if(|compiled| takes_part(compiled, &backend.name)) {
                            refusals.insert(unlinked.symbol, refusal.clone());
                            region.loader.clear();
                        }
                    }
                }
            }
            check_cancelled(self.session, || format!("{} was linking its regions", backend.name))?;
        }
        Ok((linked, refusals))
    }
}

/// Returns the port of a constant.
pub(super) fn constant_port(index: usize, tensor: &Tensor) -> Port {
    Port::tensor(format!("c{index}"), TensorType::fixed(tensor.dtype(), tensor.shape()))
}

/// Returns the diagnostic of a region that was not compiled: its code is more specific than the generic code of a plugin's
/// error.
fn with_region_code(diagnostic: Diagnostic, severity: Severity) -> Diagnostic {
    let code = match diagnostic.code {
        codes::plugins::PLUGIN_FAULT => codes::plugins::REGION_NOT_COMPILED,
        specific => specific,
    };
    Diagnostic { severity, code, ..diagnostic }
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
