//! A plugin's executable as the region that the executor runs.

use super::backend::fault;
use super::bridge::dtype_out;
use crate::runtime::region::{OutputDims, Prepared, Region, RegionCall};
use byoc_core::diag::Diagnostic;
use byoc_core::tensor::Shape;
use byoc_plugin_api::{Call, Executable, TensorMut, TensorRef};
use smallvec::SmallVec;

/// A loaded region of a plugin.
pub struct PluginRegion {
    executable: Box<dyn Executable>,
}

impl PluginRegion {
    /// Wraps what a loader gave.
    pub fn new(executable: Box<dyn Executable>) -> PluginRegion {
        PluginRegion { executable }
    }
}

impl Region for PluginRegion {
    fn prepare(&self, inputs: &[&[usize]]) -> Result<Prepared, Diagnostic> {
        let prepared = self.executable.prepare(inputs).map_err(|e| fault(&e))?;
        let outputs = prepared.outputs.iter().map(|o| OutputDims { dims: Shape::from_slice(&o.dims), exact: o.exact });
        Ok(Prepared { outputs: outputs.collect(), workspace: prepared.workspace, plan: prepared.plan })
    }

    fn run(&self, call: RegionCall<'_, '_>) -> Result<(), Diagnostic> {
        let inputs: SmallVec<[TensorRef<'_>; 8]> =
            call.inputs.iter().map(|t| TensorRef::new(dtype_out(t.dtype), t.shape, t.data)).collect();
        // Outputs of exact dimensions come without room to say others.
        let mut exact: SmallVec<[Shape; 4]> = SmallVec::new();
        if call.shapes.is_empty() {
            exact.extend(call.outputs.iter().map(|t| Shape::from_slice(t.shape)));
        }
        let mut outputs: SmallVec<[TensorMut<'_>; 4]> = call
            .outputs
            .iter_mut()
            .zip(call.shapes.iter_mut().chain(&mut exact))
            .map(|(t, shape)| TensorMut::new(dtype_out(t.dtype), shape.as_mut_slice(), t.data))
            .collect();
        let call = Call { inputs: &inputs, outputs: &mut outputs, workspace: call.workspace, plan: call.plan };
        self.executable.run(call).map_err(|e| fault(&e))
    }
}
