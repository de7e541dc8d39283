//! Tries a case on a backend: judges, compiles, loads, and runs each region in guarded memory against the reference.

use super::case::{Case, Subject};
use super::execute::{self, Setting, judge_outputs};
use super::fault::{Fault, Kind};
use super::reference::{self, Bounded, Outside, Values};
use crate::build::codegen;
use crate::plugin::backend::{Backend, PluginJudge};
use crate::plugin::bridge::{ConstantTable, function_graph};
use byoc_core::ir::{ExprId, Module};
use byoc_core::pass::{Backend as Target, Refusal, RefusalCode, RegionReport, partition_for};
use byoc_core::tensor::Tensor;
use byoc_plugin_api::{CompiledRegion, Constant, Executable, Graph, LoadRequest, Loader, Prepared, Region, Services};
use serde_json::Value;
use std::path::Path;
use std::sync::Arc;

/// How a case ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// Everything was right; the largest share of its error budget that an element used.
    Passed(f64),
    /// The backend did not take it, and said why.
    Refused(Refusal),
    /// The case is none: the reference turns its values down.
    Invalid(String),
    /// Something is wrong.
    Failed(Fault),
}

/// What a trial needs of its surroundings.
pub struct Bench<'b, 'r> {
    /// The backend.
    pub backend: &'b Backend<'r>,
    /// Finds a loader by its key.
    pub loader: &'b dyn Fn(&str) -> Option<Arc<dyn Loader>>,
    /// The services with several threads.
    pub services: &'b Services,
    /// The services with one thread.
    pub alone: &'b Services,
    /// Where the backend may keep things.
    pub cache_dir: Option<&'b Path>,
    /// Told of each entry before it is called.
    pub at: &'b dyn Fn(&str),
}

/// A region of a case: what the backend gets, and what is to come out.
pub struct Piece {
    /// The region.
    pub graph: Graph,
    /// Its constants.
    pub constants: Vec<Constant>,
    /// The tensors behind them.
    pub tensors: Vec<Arc<Tensor>>,
    /// What goes in.
    pub inputs: Vec<Tensor>,
    /// What comes out.
    pub expected: Vec<Bounded>,
    sources: Vec<ExprId>,
    results: Vec<ExprId>,
}

/// Either the pieces of a case, or how it ended before there were any.
pub type Cut = Result<Vec<Piece>, Outcome>;

impl Bench<'_, '_> {
    /// Tries a case. `thorough` tries what is about the backend more than about the case, too: threads, repetition,
    /// concurrency, other constants, damaged blobs.
    pub fn try_case(&self, case: &Case, thorough: bool) -> Outcome {
        let pieces = match self.cut(case) {
            Ok(pieces) => pieces,
            Err(outcome) => return outcome,
        };
        let mut share = 0.0f64;
        for piece in &pieces {
            let tried = self.try_piece(piece).and_then(|(compiled, used)| {
                share = share.max(used);
                if thorough { super::thorough::try_piece(self, case, piece, &compiled) } else { Ok(()) }
            });
            if let Err(fault) = tried {
                return Outcome::Failed(fault);
            }
        }
        Outcome::Passed(share)
    }

    /// Cuts a case into regions as the backend wants them.
    pub fn cut(&self, case: &Case) -> Cut {
        let values = reference::evaluate(&case.module, &case.inputs).map_err(Outcome::Invalid)?;
        (self.at)("judge");
        let description = &self.backend.description;
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
        if let Some(fault) = judge.faults.first() {
            let kind = if fault.message.contains("panicked") { Kind::Panic } else { Kind::JudgeFailed };
            return Err(Outcome::Failed(Fault::new(kind, "judge", fault.message.clone())));
        }
        if report.regions.is_empty() {
            let refusals = report.operators.iter().flat_map(|operator| operator.refusals.iter());
            // A region's refusal says more than that of a pattern that did not match.
            let reason =
                refusals.map(|(_, refusal)| (**refusal).clone()).max_by_key(|r| r.code != RefusalCode::NoPatternMatch);
            let none = || Refusal::new(RefusalCode::NoPatternMatch, "no reason was given");
            return Err(Outcome::Refused(reason.unwrap_or_else(none)));
        }
        let pieces: Result<Vec<Piece>, String> =
            report.regions.iter().map(|region| piece(&module, region, &values)).collect();
        pieces.map_err(Outcome::Invalid)
    }

    /// Compiles, loads, prepares and runs a piece; gives what was compiled and the share of the budget that was used.
    fn try_piece(&self, piece: &Piece) -> Result<(CompiledRegion, f64), Fault> {
        let compiled = self.compile(piece, self.cache_dir)?;
        let executable = self.load(piece, &compiled, &compiled.blob, self.services)?;
        let prepared = self.prepare(piece, &*executable)?;
        let share = self.check_run(piece, &*executable, &prepared)?;
        Ok((compiled, share))
    }

    /// `compile`, and what its answer has to hold.
    pub fn compile(&self, piece: &Piece, cache_dir: Option<&Path>) -> Result<CompiledRegion, Fault> {
        (self.at)("compile");
        let options: Value = codegen::options(cache_dir, None);
        let region = Region { graph: &piece.graph, constants: &piece.constants, options: &options };
        let compiled = self
            .backend
            .codegen
            .compile(&region)
            .map_err(|error| Fault::of_error(Kind::ClaimNotKept, "compile", &error))?;
        let symbol = &piece.graph.symbol;
        let (size, most) = (compiled.blob.len() as u64, self.backend.description.max_blob_bytes);
        if let Some(most) = most.filter(|&most| size > most) {
            let message = format!("the blob has {size} bytes; the description says at most {most}");
            return Err(Fault::new(Kind::ClaimNotKept, "compile", message));
        }
        if !compiled.symbols.contains(symbol) {
            let names: Vec<&str> = compiled.symbols.iter().map(|s| s.as_str()).collect();
            let has = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            let message = format!("the blob is to define {symbol}; its symbols are {has}");
            return Err(Fault::new(Kind::MissingSymbol, "compile", message));
        }
        Ok(compiled)
    }

    /// `load`.
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
        let options = codegen::options(self.cache_dir, Some(services.num_threads()));
        let request =
            LoadRequest { symbol: &piece.graph.symbol, blob, constants: &piece.constants, options: &options, services };
        loader.load(&request).map_err(|error| Fault::of_error(Kind::LoadFailed, "load", &error))
    }

    /// `prepare`, and whether it promises what the region gives.
    pub fn prepare(&self, piece: &Piece, executable: &dyn Executable) -> Result<Prepared, Fault> {
        (self.at)("prepare");
        let dims: Vec<&[usize]> = piece.inputs.iter().map(Tensor::shape).collect();
        let prepared =
            executable.prepare(&dims).map_err(|error| Fault::of_error(Kind::LoadFailed, "prepare", &error))?;
        let wrong = |message: String| Err(Fault::new(Kind::WrongShape, "prepare", message));
        if prepared.outputs.len() != piece.expected.len() {
            let (given, wanted) = (prepared.outputs.len(), piece.expected.len());
            return wrong(format!("{given} outputs are promised, the region has {wanted}"));
        }
        for (i, (output, want)) in prepared.outputs.iter().zip(&piece.expected).enumerate() {
            let (dims, want) = (&output.dims[..], want.value.shape());
            let bound = dims.len() == want.len() && dims.iter().zip(want).all(|(d, w)| d >= w);
            if (output.exact && dims != want) || !bound {
                return wrong(format!("output {i} is promised as {dims:?}, the region gives {want:?}"));
            }
        }
        Ok(prepared)
    }

    /// Runs twice in different surroundings and compares; says what a wrong result depends on.
    pub fn check_run(&self, piece: &Piece, executable: &dyn Executable, prepared: &Prepared) -> Result<f64, Fault> {
        let mut share = 0.0f64;
        for setting in [Setting { unset: 0xff, outside: 0xff }, Setting { unset: 0, outside: 0 }] {
            let outputs = self.run(piece, executable, prepared, setting, &piece.inputs)?;
            match judge_outputs(&outputs, &piece.expected) {
                Ok(used) => share = share.max(used),
                Err((output, outside)) => {
                    return Err(self.diagnose(piece, executable, prepared, setting, &outputs, output, &outside));
                }
            }
        }
        Ok(share)
    }

    /// Why a result is wrong, as far as changing one thing at a time can tell.
    fn diagnose(
        &self,
        piece: &Piece,
        executable: &dyn Executable,
        prepared: &Prepared,
        setting: Setting,
        wrong: &[Tensor],
        output: usize,
        outside: &Outside,
    ) -> Fault {
        let same = |setting| {
            let again = self.run(piece, executable, prepared, setting, &piece.inputs);
            again.is_ok_and(|again| again.iter().zip(wrong).all(|(a, b)| a.bytes() == b.bytes()))
        };
        let message = format!("output {output}: {outside}");
        if !same(setting) {
            return Fault::new(Kind::NotRepeatable, "run", format!("{message}; another run gives something else"));
        }
        let other = |byte: u8| if byte == 0 { 0x40 } else { 0 };
        if !same(Setting { outside: other(setting.outside), ..setting }) {
            return Fault::new(
                Kind::ReadsOutside,
                "run",
                format!("{message}; the result changes with bytes before or behind an input"),
            );
        }
        if !same(Setting { unset: other(setting.unset), ..setting }) {
            let what = format!("{message}; the result changes with what outputs and workspace held before");
            return Fault::new(Kind::ReadsUnset, "run", what);
        }
        Fault::new(Kind::WrongResult, "run", message)
    }

    /// One run in guarded memory.
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
}

fn piece(module: &Module, region: &RegionReport, values: &Values) -> Result<Piece, String> {
    let function = module.function(&region.symbol).ok_or("a region without a function")?;
    let mut constants = ConstantTable::default();
    let graph = function_graph(module, &region.symbol, function, &mut constants).map_err(|d| d.to_string())?;
    let mut piece = Piece {
        graph,
        constants: constants.handles,
        tensors: constants.tensors,
        inputs: Vec::new(),
        expected: Vec::new(),
        sources: region.inputs.to_vec(),
        results: region.outputs.to_vec(),
    };
    piece.take(values)?;
    Ok(piece)
}

impl Piece {
    /// Takes inputs and results from the values of the whole program.
    fn take(&mut self, values: &Values) -> Result<(), String> {
        let of = |id: &ExprId| values.get(id).cloned().ok_or("a value that the reference did not compute");
        let gather = |ids: &[ExprId]| -> Result<Vec<Bounded>, &str> {
            let all: Result<Vec<Vec<Bounded>>, &str> = ids.iter().map(of).collect();
            Ok(all?.into_iter().flatten().collect())
        };
        self.inputs = gather(&self.sources)?.into_iter().map(|bounded| bounded.value).collect();
        // A region starts from exact inputs, whatever was computed before it: that is seen when it is evaluated alone.
        self.expected = gather(&self.results)?;
        let whole = self.inputs.len() == self.graph.inputs.len() && self.expected.len() == self.graph.outputs.len();
        if whole { Ok(()) } else { Err("a region whose graph has other inputs or outputs".into()) }
    }

    /// The same region on other inputs, with what the reference makes of them.
    ///
    /// # Errors
    /// What the reference turns down.
    pub fn on(&self, inputs: Vec<Tensor>) -> Result<(Vec<Tensor>, Vec<Bounded>), String> {
        let module = crate::plugin::bridge::module_of(&self.graph, &self.constants).map_err(|d| d.to_string())?;
        let main = module.main().ok_or("a graph without outputs")?;
        let body = main.body;
        let mut values = reference::evaluate(&module, &inputs)?;
        Ok((inputs, values.remove(&body).unwrap_or_default()))
    }
}
