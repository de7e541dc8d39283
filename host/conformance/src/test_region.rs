//! Region of a case as a backend receives it, with the expected results.

use super::claimed::ClaimedErrors;
use super::reference::{self, BoundedTensor, Exclusions, Values};
use byoc::runtime::plugin::from_graph::module_of;
use byoc::runtime::plugin::to_graph::{ConstantTable, function_graph};
use byoc_core::pass::RegionReport;
use byoc_ir::ir::{ExprId, Module};
use byoc_ir::tensor::Tensor;
use byoc_plugin_api::{Constant, Dim, Graph};
use std::sync::Arc;

/// Region of a case, with its inputs and the expected results.
pub struct TestRegion {
    /// Graph of the region.
    pub graph: Graph,
    /// Constants, as passed to the backend.
    pub constants: Vec<Constant>,
    /// Tensors of the constants.
    pub tensors: Vec<Arc<Tensor>>,
    /// Input tensors, in the order of the graph's inputs.
    pub inputs: Vec<Tensor>,
    /// Expected outputs.
    pub expected: Vec<BoundedTensor>,
    /// Values for which the backend makes no guarantee.
    exclusions: Exclusions,
    /// Errors that the backend claims.
    claimed: ClaimedErrors,
    sources: Vec<ExprId>,
    results: Vec<ExprId>,
}

impl TestRegion {
    /// Creates the test of a partitioned region, with inputs and expected results from the reference values.
    ///
    /// # Errors
    /// If `module` has no function for the region, the function cannot be converted to a graph, or `values` lacks an
    /// input or output of the region.
    pub fn of(
        module: &Module,
        region: &RegionReport,
        values: &Values,
        exclusions: Exclusions,
        claimed: ClaimedErrors,
    ) -> Result<TestRegion, String> {
        let function = module.function(&region.symbol).ok_or("expected a function for the region, found none")?;
        let mut constants = ConstantTable::default();
        let graph = function_graph(module, &region.symbol, function, &mut constants).map_err(|d| d.to_string())?;
        let mut test_region = TestRegion {
            graph,
            constants: constants.handles,
            tensors: constants.tensors,
            inputs: Vec::new(),
            expected: Vec::new(),
            exclusions,
            claimed,
            sources: region.inputs.to_vec(),
            results: region.outputs.to_vec(),
        };
        test_region.read_values(values)?;
        Ok(test_region)
    }

    /// Copies the inputs and the expected results from the values of the module.
    fn read_values(&mut self, values: &Values) -> Result<(), String> {
        let value_of = |id: &ExprId| values.get(id).cloned().ok_or("expected a reference value, found none");
        let gather = |ids: &[ExprId]| -> Result<Vec<BoundedTensor>, &str> {
            let bounded_values: Result<Vec<Vec<BoundedTensor>>, &str> = ids.iter().map(value_of).collect();
            Ok(bounded_values?.into_iter().flatten().collect())
        };
        self.inputs = gather(&self.sources)?.into_iter().map(|tensor| tensor.value).collect();
        // The region receives the reference's values as exact inputs; the bounds of the expected results nevertheless
        // include the errors of earlier operators.
        self.expected = gather(&self.results)?;
        let is_complete =
            self.inputs.len() == self.graph.inputs.len() && self.expected.len() == self.graph.outputs.len();
        if is_complete {
            Ok(())
        } else {
            Err(format!(
                "number of inputs and outputs: expected {} and {}, as in the region's graph, found {} and {}",
                self.graph.inputs.len(),
                self.graph.outputs.len(),
                self.inputs.len(),
                self.expected.len()
            ))
        }
    }

    /// Returns the region with inputs whose symbolic dimensions are larger by 1, and with the reference results for
    /// these inputs; `None` if a symbolic dimension is an expression, no dimension is symbolic, or the reference
    /// rejects the dimensions.
    pub fn with_other_dims(&self) -> Option<TestRegion> {
        let mut inputs = Vec::with_capacity(self.inputs.len());
        for (declaration, tensor) in self.graph.inputs.iter().zip(&self.inputs) {
            let mut shape = tensor.shape().to_vec();
            for (dim, size) in declaration.ty.dims.iter().zip(&mut shape) {
                if let Dim::Unknown(name) = dim {
                    name.chars().all(|c| c.is_ascii_alphanumeric()).then_some(())?;
                    *size += 1;
                }
            }
            let length = shape.iter().product::<usize>() * tensor.dtype().size();
            let elements = if tensor.is_empty() { &[0][..] } else { tensor.bytes() };
            let bytes: Vec<u8> = elements.iter().copied().cycle().take(length).collect();
            inputs.push(Tensor::from_bytes(tensor.dtype(), &shape, &bytes)?);
        }
        if inputs.iter().zip(&self.inputs).all(|(input, original)| input.shape() == original.shape()) {
            return None;
        }
        let (inputs, expected) = self.with_inputs(inputs).ok()?;
        let (graph, constants, tensors) = (self.graph.clone(), self.constants.clone(), self.tensors.clone());
        let (exclusions, claimed) = (self.exclusions, self.claimed.clone());
        let (sources, results) = (Vec::new(), Vec::new());
        Some(TestRegion { graph, constants, tensors, inputs, expected, exclusions, claimed, sources, results })
    }

    /// Evaluates the region on `inputs`, and returns the inputs with the reference results.
    ///
    /// # Errors
    /// If the reference rejects the inputs, or a value is non-finite and the backend makes no guarantee for non-finite
    /// values.
    pub fn with_inputs(&self, inputs: Vec<Tensor>) -> Result<(Vec<Tensor>, Vec<BoundedTensor>), String> {
        let module = module_of(&self.graph, &self.constants).map_err(|d| d.to_string())?;
        let main = module.main().ok_or("expected a graph with outputs, found none")?;
        let body = main.body;
        let mut values = reference::evaluate(&module, &inputs, &self.claimed)?;
        if let Some(reason) = self.exclusions.reason(&values) {
            return Err(reason.into());
        }
        Ok((inputs, values.remove(&body).unwrap_or_default()))
    }
}
