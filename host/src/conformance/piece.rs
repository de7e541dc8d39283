//! A region of a case, as a backend gets it, with what is to come out.

use super::reference::{self, Bounded, Values};
use crate::plugin::bridge::{ConstantTable, function_graph, module_of};
use byoc_core::ir::{ExprId, Module};
use byoc_core::pass::RegionReport;
use byoc_core::tensor::Tensor;
use byoc_plugin_api::{Constant, Graph};
use std::sync::Arc;

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
    /// True if the backend promises nothing of numbers that are not finite.
    finite_math: bool,
    sources: Vec<ExprId>,
    results: Vec<ExprId>,
}

impl Piece {
    /// The region that partitioning made, with what the reference gives for it.
    ///
    /// # Errors
    /// Where it is none that can run alone.
    pub fn of(module: &Module, region: &RegionReport, values: &Values, finite_math: bool) -> Result<Piece, String> {
        let function = module.function(&region.symbol).ok_or("a region without a function")?;
        let mut constants = ConstantTable::default();
        let graph = function_graph(module, &region.symbol, function, &mut constants).map_err(|d| d.to_string())?;
        let mut piece = Piece {
            graph,
            constants: constants.handles,
            tensors: constants.tensors,
            inputs: Vec::new(),
            expected: Vec::new(),
            finite_math,
            sources: region.inputs.to_vec(),
            results: region.outputs.to_vec(),
        };
        piece.take(values)?;
        Ok(piece)
    }

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
    /// What the reference turns down, or the backend promises nothing of.
    pub fn on(&self, inputs: Vec<Tensor>) -> Result<(Vec<Tensor>, Vec<Bounded>), String> {
        let module = module_of(&self.graph, &self.constants).map_err(|d| d.to_string())?;
        let main = module.main().ok_or("a graph without outputs")?;
        let body = main.body;
        let mut values = reference::evaluate(&module, &inputs)?;
        if self.finite_math && !reference::is_finite(&values) {
            return Err("a number is not finite".into());
        }
        Ok((inputs, values.remove(&body).unwrap_or_default()))
    }
}
