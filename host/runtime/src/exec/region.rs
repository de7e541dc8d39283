//! Interface between the executor and a loaded region. The plugin layer implements the trait.

use super::device::DeviceOperands;
use byoc_ir::diag::Diagnostic;
use byoc_ir::tensor::{Shape, TensorView, TensorViewMut};
use byoc_plugin_api::host::device::Event;

/// Loaded region of a backend. Several threads may run the same region concurrently.
pub trait Region: Send + Sync {
    /// Prepares runs with the given input dimensions. The executor caches a bounded number of plans, keyed by the
    /// dimensions.
    ///
    /// # Errors
    /// If the backend refuses the dimensions; the region then runs on the host.
    fn prepare(&self, inputs: &[&[usize]]) -> Result<Prepared, Diagnostic>;

    /// Runs the region. Inputs and outputs do not overlap. The initial contents of the outputs and of the workspace are
    /// unspecified, unless [`Region::needs_zeroed_memory`] returns true.
    ///
    /// # Errors
    /// If the run fails; the run of the model then fails with the same error.
    fn run(&self, call: RegionCall<'_, '_>) -> Result<(), Diagnostic>;

    /// Starts the region, whose operands are all in the memory of one device. The run has to wait for `dependencies`,
    /// the unfinished runs on which it depends. Returns the event of the unfinished run; `None` if the outputs are
    /// complete.
    ///
    /// # Errors
    /// If the run fails.
    fn start(&self, call: RegionCall<'_, '_>, dependencies: &[&Event]) -> Result<Option<Event>, Diagnostic> {
        let _ = dependencies;
        self.run(call).map(|()| None)
    }

    /// Returns the size in bytes of the device workspace for runs of `plan`, which was prepared for the given input
    /// dimensions.
    ///
    /// # Errors
    /// If the backend fails.
    fn device_workspace(&self, plan: u64, inputs: &[&[usize]]) -> Result<usize, Diagnostic> {
        let _ = (plan, inputs);
        Ok(0)
    }

    /// Releases the resources of `plan`, a number from [`Prepared::plan`]: no later run passes it unless `prepare`
    /// returns it again. The executor does not call `prepare` of this region concurrently.
    fn release(&self, plan: u64) {
        let _ = plan;
    }

    /// Returns true if runs change the state of the region.
    fn is_stateful(&self) -> bool {
        false
    }

    /// Resets the state of the region to the state after loading; does nothing for a region without state.
    ///
    /// # Errors
    /// If the backend cannot reset the state.
    fn reset_state(&self) -> Result<(), Diagnostic> {
        Ok(())
    }

    /// Returns true if the region may return what its memory held before the run. Its results, its workspace and its
    /// device memory are then zeroed, as they may hold tensors of earlier runs.
    fn needs_zeroed_memory(&self) -> bool {
        false
    }

    /// Returns true if a run may fail because the device is lost. The host then runs the region, so the region's
    /// constants are retained.
    fn may_be_lost(&self) -> bool {
        false
    }
}

/// Resources of a run for given dimensions: output dimensions, workspace, plan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prepared {
    /// Dimensions of each output.
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
    /// Exact dimensions, or an upper bound on each dimension.
    pub dims: Shape,
    /// True if the dimensions are exact. Otherwise the run returns them in [`RegionCall::shapes`].
    pub exact: bool,
}

/// One run of a region.
pub struct RegionCall<'a, 't> {
    /// Inputs, in the order of the region's parameters.
    pub inputs: &'a [TensorView<'t>],
    /// Outputs, with the prepared dimensions.
    pub outputs: &'a mut [TensorViewMut<'t>],
    /// Actual dimensions of each output; empty if all outputs are exact. The executor sets the prepared dimensions
    /// before the call. The buffer of an output that was prepared with a bound begins with a dense tensor of its actual
    /// dimensions.
    pub shapes: &'a mut [Shape],
    /// Workspace, 64-byte aligned.
    pub workspace: &'a mut [u8],
    /// Plan number, from [`Prepared::plan`].
    pub plan: u64,
    /// Results that reuse the memory of an input, as pairs of indices into `outputs` and `inputs`: the view of such an
    /// input has no data, and its contents are those of the output before the run.
    pub in_place: &'a [[u32; 2]],
    /// Operands in device memory, whose views in `inputs` and `outputs` have no data; `None` if there are no such
    /// operands.
    pub device: Option<&'a DeviceOperands>,
}
