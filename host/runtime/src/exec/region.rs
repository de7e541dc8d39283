//! Interface between the executor and a region that a backend has made executable. The plugin layer implements it.

use byoc_ir::diag::Diagnostic;
use byoc_ir::tensor::{Shape, TensorView, TensorViewMut};

/// A loaded region. Several threads may run it at once.
pub trait Region: Send + Sync {
    /// Plans a run for these input dimensions. The executor caches the result by dimensions, within its limits.
    ///
    /// # Errors
    /// Dimensions that the backend refuses; the region then runs on the host.
    fn prepare(&self, inputs: &[&[usize]]) -> Result<Prepared, Diagnostic>;

    /// Runs the region. Inputs and outputs do not overlap; the outputs and the workspace are uninitialized, with
    /// arbitrary contents.
    ///
    /// # Errors
    /// A failed run; the run of the model then fails with it.
    fn run(&self, call: RegionCall<'_, '_>) -> Result<(), Diagnostic>;

    /// Releases the resources of [`Prepared::plan`]: no run will pass that number again, unless `prepare` returns it
    /// again. No `prepare` of this region is in progress meanwhile.
    fn release(&self, plan: u64) {
        let _ = plan;
    }
}

/// Resources of a run for given dimensions: output dimensions, workspace, plan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prepared {
    /// Outputs, in order.
    pub outputs: Vec<OutputDims>,
    /// Size of the workspace in bytes.
    pub workspace: usize,
    /// Number chosen by the backend, passed back in [`RegionCall::plan`].
    pub plan: u64,
    /// Memory that the plan holds until it is released, in bytes.
    pub bytes: usize,
}

/// Dimensions of an output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputDims {
    /// Dimensions, or an upper bound for each.
    pub dims: Shape,
    /// True if the dimensions are exact. Otherwise the run returns them in [`RegionCall::shapes`].
    pub exact: bool,
}

/// One run of a region.
pub struct RegionCall<'a, 't> {
    /// Inputs.
    pub inputs: &'a [TensorView<'t>],
    /// Outputs, sized as prepared.
    pub outputs: &'a mut [TensorViewMut<'t>],
    /// Actual dimensions of outputs that were prepared with a bound; such an output starts with a dense tensor of these
    /// dimensions. Filled with the prepared dimensions before the call.
    pub shapes: &'a mut [Shape],
    /// Workspace, 64-byte aligned.
    pub workspace: &'a mut [u8],
    /// Plan number, from [`Prepared::plan`].
    pub plan: u64,
}
