//! Entries of a backend, each with a check of its result.

use super::case::{Case, Subject};
use super::execute::{self, Setting, expect};
use super::fault::{Fault, Kind, Outcome};
use super::piece::Piece;
use super::reference;
use byoc::build::backend::{Backend, PluginJudge};
use byoc::plugin;
use byoc_core::pass::{Backend as Target, Refusal, RefusalCode, partition_for};
use byoc_ir::tensor::Tensor;
use byoc_plugin_api::{CompiledRegion, Executable, LoadRequest, Loader, Prepared, Region, Services, Signature};
use serde_json::Value;
use std::path::Path;
use std::sync::Arc;

/// Environment of a trial.
pub struct Bench<'b, 'r> {
    /// Backend under test.
    pub backend: &'b Backend<'r>,
    /// Finds a loader by its key.
    pub loader: &'b dyn Fn(&str) -> Option<Arc<dyn Loader>>,
    /// Services with several threads.
    pub services: &'b Services,
    /// Services with one thread.
    pub alone: &'b Services,
    /// Cache folder for the backend.
    pub cache_dir: Option<&'b Path>,
    /// Called with the name of each entry before its call.
    pub at: &'b dyn Fn(&str),
}

/// The pieces of a case, or the outcome if it ended before there were any.
pub type Cut = Result<Vec<Piece>, Outcome>;

impl Bench<'_, '_> {
    /// Partitions a case into regions for the backend.
    pub fn cut(&self, case: &Case) -> Cut {
        let values = reference::evaluate(&case.module, &case.inputs).map_err(Outcome::Invalid)?;
        (self.at)("judge");
        let description = &self.backend.description;
        let finite_math = description.finite_math;
        if finite_math && !reference::is_finite(&values) {
            let name = &self.backend.name;
            return Err(Outcome::Invalid(format!("a value is not finite, and {name} declares finite_math")));
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
        let (module, report) = partitioned.map_err(|d| Outcome::Invalid(d.to_string()))?;
        if let Some(error) = judge.faults.first() {
            return Err(Outcome::Failed(Fault::of_error(Kind::JudgeFailed, "judge", error)));
        }
        if report.regions.is_empty() {
            let refusals = report.operators.iter().flat_map(|operator| operator.refusals.iter());
            // The refusal of a region is more specific than that of a pattern that did not match.
            let reason =
                refusals.map(|(_, refusal)| (**refusal).clone()).max_by_key(|r| r.code != RefusalCode::NoPatternMatch);
            let none = || Refusal::new(RefusalCode::NoPatternMatch, "no reason was given");
            return Err(Outcome::Refused(reason.unwrap_or_else(none)));
        }
        let pieces: Result<Vec<Piece>, String> =
            report.regions.iter().map(|region| Piece::of(&module, region, &values, finite_math)).collect();
        pieces.map_err(Outcome::Invalid)
    }

    /// Calls `compile`, and checks the size and the symbols of the blob.
    pub fn compile(&self, piece: &Piece, cache_dir: Option<&Path>) -> Result<CompiledRegion, Fault> {
        (self.at)("compile");
        let options: Value = plugin::options(cache_dir, None);
        let region = Region { graph: &piece.graph, constants: &piece.constants, options: &options };
        let compiled = self
            .backend
            .codegen
            .compile(&region)
            .map_err(|error| Fault::of_error(Kind::ClaimNotKept, "compile", &error))?;
        let symbol = &piece.graph.symbol;
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
        piece: &Piece,
        compiled: &CompiledRegion,
        blob: &[u8],
        services: &Services,
    ) -> Result<Box<dyn Executable>, Fault> {
        let key = compiled.loader.as_str();
        let loader = (self.loader)(key).ok_or_else(|| {
            let message = format!("the blob is for loadbinary_{key}, which no plugin here registers");
            Fault::new(Kind::WrongLoader, "compile", message)
        })?;
        (self.at)("load");
        let mut options = plugin::options(self.cache_dir, Some(services.num_threads()));
        options["region"] = Signature::of(&piece.graph).to_json();
        let request =
            LoadRequest { symbol: &piece.graph.symbol, blob, constants: &piece.constants, options: &options, services };
        loader.load(&request).map_err(|error| Fault::of_error(Kind::LoadFailed, "load", &error))
    }

    /// Calls `prepare`, and checks the prepared outputs against those of the region.
    pub fn prepare(&self, piece: &Piece, executable: &dyn Executable) -> Result<Prepared, Fault> {
        (self.at)("prepare");
        let dims: Vec<&[usize]> = piece.inputs.iter().map(Tensor::shape).collect();
        let prepared =
            executable.prepare(&dims).map_err(|error| Fault::of_error(Kind::LoadFailed, "prepare", &error))?;
        let wrong = |message: String| Err(Fault::new(Kind::WrongShape, "prepare", message));
        if prepared.outputs.len() != piece.expected.len() {
            let (given, wanted) = (prepared.outputs.len(), piece.expected.len());
            return wrong(format!("expected {wanted} outputs, prepared {given}"));
        }
        for (i, (output, want)) in prepared.outputs.iter().zip(&piece.expected).enumerate() {
            let (dims, want) = (&output.dims[..], want.value.shape());
            let bound = dims.len() == want.len() && dims.iter().zip(want).all(|(d, w)| d >= w);
            if (output.exact && dims != want) || !bound {
                return wrong(format!("output {i}: expected {want:?}, prepared {dims:?}"));
            }
        }
        Ok(prepared)
    }

    /// Runs once in guarded memory.
    pub fn run(
        &self,
        piece: &Piece,
        executable: &dyn Executable,
        prepared: &Prepared,
        setting: Setting,
        inputs: &[Tensor],
    ) -> Result<Vec<Tensor>, Fault> {
        (self.at)("run");
        execute::run(piece, executable, prepared, setting, inputs)
    }

    /// Prepares and runs a piece on its own inputs. A wrong result is a fault of the given kind in the given entry;
    /// `how` describes the run in its message.
    pub fn rerun(
        &self,
        piece: &Piece,
        executable: &dyn Executable,
        (kind, entry, how): (Kind, &str, &str),
    ) -> Result<(), Fault> {
        let prepared = self.prepare(piece, executable)?;
        let outputs = self.run(piece, executable, &prepared, Setting::NAN, &piece.inputs)?;
        expect(&outputs, &piece.expected, kind, entry, how)
    }
}
