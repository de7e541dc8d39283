//! Calls to the entries of a backend, each with a check of its result.

use super::case::{Case, OptionScope, Setting, Subject};
use super::claimed::ClaimedErrors;
use super::execute::{self, FillPattern, check_outputs};
use super::fault::{CaseResult, Fault, Kind};
use super::linked::{self, LinkedRegion};
use super::reference::{self, Exclusions};
use super::test_region::TestRegion;
use byoc::driver::backend::Backend;
use byoc::driver::judge::PluginJudge;
use byoc::runtime::choices::base_name;
use byoc::runtime::plugin;
use byoc_core::pass::{Backend as Target, Composite, Refusal, RefusalCode, RegionReport, Report, partition_for};
use byoc_core::pattern::Entry;
use byoc_ir::ir::{Expr, ExprId, Module};
use byoc_ir::op;
use byoc_ir::tensor::Tensor;
use byoc_plugin_api::host::run_options::BackendOptions;
use byoc_plugin_api::{AttrValue, Executable, LoadRequest, Loader, Prepared, Region, Services, Signature};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;

/// Metadata key of a region whose backend serves one run at a time.
const ONE_AT_A_TIME: &str = "one_at_a_time";

/// Environment of a trial.
pub struct Harness<'b, 'r> {
    /// Backend under test.
    pub backend: &'b Backend<'r>,
    /// Callback that finds a loader by its key.
    pub find_loader: &'b dyn Fn(&str) -> Option<Arc<dyn Loader>>,
    /// Services with several threads.
    pub services: &'b Services,
    /// Services with one thread.
    pub single_threaded: &'b Services,
    /// Cache directory for the backend.
    pub cache_dir: Option<&'b Path>,
    /// Test conditions of the case.
    pub setting: &'b Setting,
    /// True if a case ends after `compile`.
    pub until_compile: bool,
    /// Callback invoked before each call to an entry, with the names of the entry and the region.
    pub progress: &'b dyn Fn(&str, &str),
}

impl Harness<'_, '_> {
    /// Partitions a case into regions for the backend.
    pub fn partition(&self, case: &Case) -> Result<Vec<TestRegion>, CaseResult> {
        (self.progress)("judge", "");
        let description = &self.backend.description;
        let mut subjects: Vec<&Subject> = self.setting.context.iter().collect();
        subjects.push(&case.subject);
        let has_subject = |subject: Subject| subjects.contains(&&Subject::Region) || subjects.contains(&&subject);
        let has_pattern = |entry: &&Entry| has_subject(Subject::Pattern(entry.name.to_string()));
        let table: Vec<Entry> = self.backend.table.iter().filter(has_pattern).cloned().collect();
        let operators: Vec<String> = match &case.subject {
            // With an option set, the description may omit the operator.
            Subject::Operator(name) if subjects.len() == 1 => vec![name.clone()],
            _ => {
                let has_operator = |name: &&String| has_subject(Subject::Operator(name.to_string()));
                description.operators.iter().filter(has_operator).cloned().collect()
            }
        };
        let mut judge = PluginJudge::new(self.backend);
        let name = self.backend.name.as_str().into();
        let mut targets = [Target {
            name,
            table: &table,
            operators: &operators,
            control_flow: self.backend.control_flow(),
            judge: &mut judge,
        }];
        let partitioned = partition_for(&case.module, &mut targets, "default");
        let (module, report) = partitioned.map_err(|d| CaseResult::Invalid(d.to_string()))?;
        if let Some(error) = judge.faults.first() {
            return Err(CaseResult::Failed(Fault::of_error(Kind::JudgeFailed, "judge", error)));
        }
        if !report.regions.iter().any(|region| is_taken(&case.module, region, &case.subject)) {
            return Err(CaseResult::Refused(reason(&report)));
        }
        let claimed = ClaimedErrors::of(description, &case.module, &report.regions);
        let values = reference::evaluate(&case.module, &case.inputs, &claimed).map_err(CaseResult::Invalid)?;
        let exclusions = Exclusions::of(description);
        if let Some(reason) = exclusions.reason(&values) {
            return Err(CaseResult::Invalid(reason.into()));
        }
        let test_region = |region| TestRegion::of(&module, region, &values, exclusions, claimed.clone());
        let test_regions: Result<Vec<TestRegion>, String> = report.regions.iter().map(test_region).collect();
        test_regions.map_err(CaseResult::Invalid)
    }

    /// Adds the backend option and the device of the case to the options of an entry.
    fn add_choices(&self, options: &mut Value, is_load: bool) {
        let is_received = match self.setting.option_scope {
            OptionScope::All => true,
            OptionScope::Load => is_load,
            OptionScope::Run => false,
        };
        if let Some((name, value)) = self.setting.option.as_ref().filter(|_| is_received) {
            options["backend_options"] = json!({ name: value });
        }
        if let Some(device) = &self.setting.device {
            options["device"] = json!(device);
        }
    }

    /// Calls `compile`, and checks the size and the symbols of the blob.
    pub fn compile(&self, test_region: &TestRegion, cache_dir: Option<&Path>) -> Result<LinkedRegion, Fault> {
        (self.progress)("compile", &test_region.graph.symbol);
        let mut options: Value = plugin::options(cache_dir, None);
        self.add_choices(&mut options, false);
        let request = Region { graph: &test_region.graph, constants: &test_region.constants, options: &options };
        let compiled_region = self
            .backend
            .codegen
            .compile(&request)
            .map_err(|error| Fault::of_error(Kind::ClaimNotKept, "compile", &error))?;
        let symbol = &test_region.graph.symbol;
        let (size, max_bytes) = (compiled_region.blob.len() as u64, self.backend.description.max_blob_bytes);
        if let Some(max_bytes) = max_bytes.filter(|&max_bytes| size > max_bytes) {
            let message = format!("expected a blob of at most {max_bytes} bytes, found {size}");
            return Err(Fault::new(Kind::ClaimNotKept, "compile", message));
        }
        if !compiled_region.symbols.contains(symbol) {
            let names: Vec<&str> = compiled_region.symbols.iter().map(|s| s.as_str()).collect();
            let symbol_list = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            let message = format!("symbols of the blob: expected {symbol}, found {symbol_list}");
            return Err(Fault::new(Kind::MissingSymbol, "compile", message));
        }
        if linked::takes_part(&compiled_region) {
            (self.progress)("query", symbol);
        }
        LinkedRegion::link(compiled_region, symbol, self.backend.codegen.as_ref(), &options)
            .map_err(|message| Fault::new(Kind::ClaimNotKept, "query", message))
    }

    /// Returns the loader of a blob.
    pub fn loader(&self, linked_region: &LinkedRegion) -> Result<Arc<dyn Loader>, Fault> {
        let key = linked_region.loader.as_str();
        (self.find_loader)(key).ok_or_else(|| {
            let message = format!("expected a loader \"loadbinary_{key}\", found none");
            Fault::new(Kind::WrongLoader, "compile", message)
        })
    }

    /// Returns true if the metadata of the region declares that the backend serves one run at a time.
    pub fn serves_one_run(&self, linked_region: &LinkedRegion) -> bool {
        linked_region.metadata.iter().any(|attr| attr.key == ONE_AT_A_TIME && attr.value == AttrValue::Bool(true))
    }

    /// Calls `load`.
    pub fn load(
        &self,
        test_region: &TestRegion,
        linked_region: &LinkedRegion,
        blob: &[u8],
        services: &Services,
    ) -> Result<Box<dyn Executable>, Fault> {
        let loader = self.loader(linked_region)?;
        (self.progress)("load", &test_region.graph.symbol);
        let mut options = plugin::options(self.cache_dir, Some(services.num_threads()));
        self.add_choices(&mut options, true);
        let mut metadata = Signature::of(&test_region.graph).to_json();
        let constants = linked_region.constants(&test_region.constants, &mut metadata);
        options["region"] = metadata;
        let request =
            LoadRequest { symbol: &test_region.graph.symbol, blob, constants: &constants, options: &options, services };
        loader.load(&request).map_err(|error| Fault::of_error(Kind::LoadFailed, "load", &error))
    }

    /// Calls `prepare`, and checks the prepared outputs against the region's outputs.
    pub fn prepare(&self, test_region: &TestRegion, executable: &dyn Executable) -> Result<Prepared, Fault> {
        (self.progress)("prepare", &test_region.graph.symbol);
        let dims: Vec<&[usize]> = test_region.inputs.iter().map(Tensor::shape).collect();
        let plan = executable.prepare(&dims).map_err(|error| Fault::of_error(Kind::LoadFailed, "prepare", &error))?;
        let shape_fault = |message: String| Err(Fault::new(Kind::WrongShape, "prepare", message));
        if plan.outputs.len() != test_region.expected.len() {
            let (output_count, expected_count) = (plan.outputs.len(), test_region.expected.len());
            return shape_fault(format!("number of prepared outputs: expected {expected_count}, found {output_count}"));
        }
        for (i, (output, expected)) in plan.outputs.iter().zip(&test_region.expected).enumerate() {
            let (dims, expected) = (&output.dims[..], expected.value.shape());
            let is_bound = dims.len() == expected.len() && dims.iter().zip(expected).all(|(d, w)| d >= w);
            if (output.exact && dims != expected) || !is_bound {
                return shape_fault(format!("prepared output {i}: expected shape {expected:?}, found {dims:?}"));
            }
        }
        Ok(plan)
    }

    /// Returns the option of the case, if it applies to runs.
    pub fn run_options(&self) -> BackendOptions {
        let mut options = BackendOptions::default();
        let described = &self.backend.description.options;
        let is_run_option = |name: &String| described.get(name).is_some_and(|option| option.run);
        if let Some((name, value)) = self.setting.option.as_ref().filter(|(name, _)| is_run_option(name))
            && self.setting.option_scope != OptionScope::Load
        {
            options.set(base_name(&self.backend.name), name, value);
        }
        options
    }

    /// Runs a region once in guarded memory.
    pub fn run(
        &self,
        test_region: &TestRegion,
        executable: &dyn Executable,
        plan: &Prepared,
        fill: FillPattern,
        inputs: &[Tensor],
    ) -> Result<Vec<Tensor>, Fault> {
        (self.progress)("run", &test_region.graph.symbol);
        let _options = self.run_options().enter();
        execute::run(test_region, executable, plan, fill, inputs)
    }

    /// Prepares and runs a region on its inputs from the case. A wrong result is a fault of `kind` in `entry`, with a
    /// message that begins with `description`.
    pub fn rerun(
        &self,
        test_region: &TestRegion,
        executable: &dyn Executable,
        (kind, entry, description): (Kind, &str, &str),
    ) -> Result<(), Fault> {
        let plan = self.prepare(test_region, executable)?;
        let outputs = self.run(test_region, executable, &plan, FillPattern::NAN, &test_region.inputs)?;
        check_outputs(&outputs, &test_region.expected, kind, entry, description)
    }
}

/// Returns true if a region contains the subject: a match of the pattern, or the operator outside any composite.
fn is_taken(module: &Module, region: &RegionReport, subject: &Subject) -> bool {
    let is_branch = |id: ExprId| matches!(module.expr(id), Expr::If { .. });
    // In a case with control flow, the region must contain the branch or the loop, with the operators inside. A loop
    // contains a branch.
    if module.nodes.ids().any(is_branch) {
        return region.nodes.iter().copied().any(is_branch);
    }
    match subject {
        Subject::Pattern(name) => region.composites.iter().any(|composite| *composite.name == **name),
        Subject::Operator(name) => region.nodes.iter().any(|id| {
            let operator = module.expr(*id).as_op_call().map(|(operator, _)| op::get(operator).name);
            let is_in_match = |composite: &Composite| composite.nodes.contains(id);
            operator == Some(name.as_str()) && !region.composites.iter().any(is_in_match)
        }),
        Subject::Region => true,
    }
}

/// Returns the most specific refusal of a case: an unmatched pattern only if there is no refusal with another code.
fn reason(report: &Report) -> Refusal {
    let host_operators = report.operators.iter().filter(|operator| operator.region.is_none());
    let refusals = host_operators.flat_map(|operator| operator.refusals.iter());
    let reason = refusals.map(|(_, refusal)| (**refusal).clone()).max_by_key(|r| r.code != RefusalCode::NoPatternMatch);
    reason.unwrap_or_else(|| Refusal::new(RefusalCode::NoPatternMatch, "the backend gave no reason"))
}
