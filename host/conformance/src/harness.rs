//! Entries of a backend, each with a check of its result.

use super::case::{Case, Subject};
use super::execute::{self, FillPattern, check_outputs};
use super::fault::{CaseResult, Fault, Kind};
use super::reference;
use super::test_region::TestRegion;
use byoc::build::backend::{Backend, PluginJudge};
use byoc::runtime::plugin;
use byoc_core::pass::{Backend as Target, Refusal, RefusalCode, partition_for};
use byoc_ir::tensor::Tensor;
use byoc_plugin_api::{CompiledRegion, Executable, LoadRequest, Loader, Prepared, Region, Services, Signature};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;

/// Environment of a trial.
pub struct Harness<'b, 'r> {
    /// Backend under test.
    pub backend: &'b Backend<'r>,
    /// Finds a loader by its key.
    pub loader: &'b dyn Fn(&str) -> Option<Arc<dyn Loader>>,
    /// Services with several threads.
    pub services: &'b Services,
    /// Services with one thread.
    pub single_threaded: &'b Services,
    /// Cache folder for the backend.
    pub cache_dir: Option<&'b Path>,
    /// Option of the backend, with its value.
    pub option: Option<&'b (String, String)>,
    /// Called with the name of each entry, and of the region that it works on, before its call.
    pub at: &'b dyn Fn(&str, &str),
}

impl Harness<'_, '_> {
    /// Partitions a case into regions for the backend.
    pub fn partition(&self, case: &Case) -> Result<Vec<TestRegion>, CaseResult> {
        let values = reference::evaluate(&case.module, &case.inputs).map_err(CaseResult::Invalid)?;
        (self.at)("judge", "");
        let description = &self.backend.description;
        let finite_math = description.finite_math;
        if finite_math && !reference::is_finite(&values) {
            let name = &self.backend.name;
            return Err(CaseResult::Invalid(format!("a value is not finite, and {name} declares finite_math")));
        }
        let (table, operators): (Vec<_>, Vec<String>) = match &case.subject {
            Subject::Pattern(name) => {
                (self.backend.table.iter().filter(|e| *e.name == **name).cloned().collect(), Vec::new())
            }
            Subject::Operator(name) => (Vec::new(), vec![name.clone()]),
            Subject::Region => (self.backend.table.clone(), description.operators.clone()),
        };
        let mut judge = PluginJudge::new(self.backend);
        let name = self.backend.name.as_str().into();
        let mut targets = [Target { name, table: &table, operators: &operators, judge: &mut judge }];
        let partitioned = partition_for(&case.module, &mut targets, "default");
        let (module, report) = partitioned.map_err(|d| CaseResult::Invalid(d.to_string()))?;
        if let Some(error) = judge.faults.first() {
            return Err(CaseResult::Failed(Fault::of_error(Kind::JudgeFailed, "judge", error)));
        }
        if report.regions.is_empty() {
            let refusals = report.operators.iter().flat_map(|operator| operator.refusals.iter());
            // The refusal of a region is more specific than that of a pattern that did not match.
            let reason =
                refusals.map(|(_, refusal)| (**refusal).clone()).max_by_key(|r| r.code != RefusalCode::NoPatternMatch);
            let none = || Refusal::new(RefusalCode::NoPatternMatch, "no reason was given");
            return Err(CaseResult::Refused(reason.unwrap_or_else(none)));
        }
        let test_regions: Result<Vec<TestRegion>, String> =
            report.regions.iter().map(|region| TestRegion::of(&module, region, &values, finite_math)).collect();
        test_regions.map_err(CaseResult::Invalid)
    }

    /// Adds the option of the backend to those of an entry.
    fn set_option(&self, options: &mut Value) {
        if let Some((name, value)) = self.option {
            options["backend_options"] = json!({ name: value });
        }
    }

    /// Calls `compile`, and checks the size and the symbols of the blob.
    pub fn compile(&self, test_region: &TestRegion, cache_dir: Option<&Path>) -> Result<CompiledRegion, Fault> {
        (self.at)("compile", &test_region.graph.symbol);
        let mut options: Value = plugin::options(cache_dir, None);
        self.set_option(&mut options);
        let request = Region { graph: &test_region.graph, constants: &test_region.constants, options: &options };
        let compiled = self
            .backend
            .codegen
            .compile(&request)
            .map_err(|error| Fault::of_error(Kind::ClaimNotKept, "compile", &error))?;
        let symbol = &test_region.graph.symbol;
        let (size, most) = (compiled.blob.len() as u64, self.backend.description.max_blob_bytes);
        if let Some(most) = most.filter(|&most| size > most) {
            let message = format!("expected a blob of at most {most} bytes, found {size}");
            return Err(Fault::new(Kind::ClaimNotKept, "compile", message));
        }
        if !compiled.symbols.contains(symbol) {
            let names: Vec<&str> = compiled.symbols.iter().map(|s| s.as_str()).collect();
            let has = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            let message = format!("expected symbol {symbol} in the blob, found {has}");
            return Err(Fault::new(Kind::MissingSymbol, "compile", message));
        }
        Ok(compiled)
    }

    /// Calls `load`.
    pub fn load(
        &self,
        test_region: &TestRegion,
        compiled: &CompiledRegion,
        blob: &[u8],
        services: &Services,
    ) -> Result<Box<dyn Executable>, Fault> {
        let key = compiled.loader.as_str();
        let loader = (self.loader)(key).ok_or_else(|| {
            let message = format!("expected a registered loader, found loadbinary_{key}");
            Fault::new(Kind::WrongLoader, "compile", message)
        })?;
        (self.at)("load", &test_region.graph.symbol);
        let mut options = plugin::options(self.cache_dir, Some(services.num_threads()));
        self.set_option(&mut options);
        options["region"] = Signature::of(&test_region.graph).to_json();
        let request = LoadRequest {
            symbol: &test_region.graph.symbol,
            blob,
            constants: &test_region.constants,
            options: &options,
            services,
        };
        loader.load(&request).map_err(|error| Fault::of_error(Kind::LoadFailed, "load", &error))
    }

    /// Calls `prepare`, and checks the prepared outputs against those of the region.
    pub fn prepare(&self, test_region: &TestRegion, executable: &dyn Executable) -> Result<Prepared, Fault> {
        (self.at)("prepare", &test_region.graph.symbol);
        let dims: Vec<&[usize]> = test_region.inputs.iter().map(Tensor::shape).collect();
        let prepared =
            executable.prepare(&dims).map_err(|error| Fault::of_error(Kind::LoadFailed, "prepare", &error))?;
        let wrong = |message: String| Err(Fault::new(Kind::WrongShape, "prepare", message));
        if prepared.outputs.len() != test_region.expected.len() {
            let (given, wanted) = (prepared.outputs.len(), test_region.expected.len());
            return wrong(format!("expected {wanted} prepared outputs, found {given}"));
        }
        for (i, (output, want)) in prepared.outputs.iter().zip(&test_region.expected).enumerate() {
            let (dims, want) = (&output.dims[..], want.value.shape());
            let bound = dims.len() == want.len() && dims.iter().zip(want).all(|(d, w)| d >= w);
            if (output.exact && dims != want) || !bound {
                return wrong(format!("prepared output {i}: expected {want:?}, found {dims:?}"));
            }
        }
        Ok(prepared)
    }

    /// Runs once in guarded memory.
    pub fn run(
        &self,
        test_region: &TestRegion,
        executable: &dyn Executable,
        prepared: &Prepared,
        fill: FillPattern,
        inputs: &[Tensor],
    ) -> Result<Vec<Tensor>, Fault> {
        (self.at)("run", &test_region.graph.symbol);
        execute::run(test_region, executable, prepared, fill, inputs)
    }

    /// Prepares and runs a region on its own inputs. A wrong result is a fault of `kind` in `entry`, whose message
    /// begins with `description`.
    pub fn rerun(
        &self,
        test_region: &TestRegion,
        executable: &dyn Executable,
        (kind, entry, description): (Kind, &str, &str),
    ) -> Result<(), Fault> {
        let prepared = self.prepare(test_region, executable)?;
        let outputs = self.run(test_region, executable, &prepared, FillPattern::NAN, &test_region.inputs)?;
        check_outputs(&outputs, &test_region.expected, kind, entry, description)
    }
}
