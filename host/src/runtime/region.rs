//! What the executor wants of a region that a backend has made executable. The plugin layer implements it.

use byoc_core::diag::Diagnostic;
use byoc_core::tensor::{Shape, TensorView, TensorViewMut};

/// A loaded region. Several threads may run it at once.
pub trait Region: Send + Sync {
    /// Plans for these input dimensions. The executor keeps the answer by dimensions, for as many as its limits allow.
    ///
    /// # Errors
    /// When the backend does not take these dimensions; the region then runs on the host.
    fn prepare(&self, inputs: &[&[usize]]) -> Result<Prepared, Diagnostic>;

    /// Computes. Inputs and outputs do not overlap; nothing is known about what the outputs and the workspace hold.
    ///
    /// # Errors
    /// When the run fails; the model's run then fails with it.
    fn run(&self, call: RegionCall<'_, '_>) -> Result<(), Diagnostic>;

    /// Lets go of what was made for [`Prepared::plan`]: no run will name that number again, unless `prepare` gives it again.
    /// No `prepare` of this region is under way meanwhile.
    fn release(&self, plan: u64) {
        let _ = plan;
    }
}

/// What a run for given dimensions needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prepared {
    /// What comes out, in order.
    pub outputs: Vec<OutputDims>,
    /// Bytes of scratch memory.
    pub workspace: usize,
    /// A number of the backend's own, handed back in [`RegionCall::plan`].
    pub plan: u64,
    /// Bytes that are held until the plan is released.
    pub bytes: usize,
}

/// The dimensions of an output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputDims {
    /// Its dimensions, or the most that they can be.
    pub dims: Shape,
    /// True if these are the dimensions. Otherwise the run says them in [`RegionCall::shapes`].
    pub exact: bool,
}

/// One run of a region.
pub struct RegionCall<'a, 't> {
    /// What goes in.
    pub inputs: &'a [TensorView<'t>],
    /// What comes out, sized as prepared.
    pub outputs: &'a mut [TensorViewMut<'t>],
    /// The dimensions that came out, for outputs that were prepared with a bound; a dense tensor of them then lies at
    /// the start of the output. They are filled with the prepared dimensions before the call.
    pub shapes: &'a mut [Shape],
    /// Scratch memory, 64-byte aligned.
    pub workspace: &'a mut [u8],
    /// [`Prepared::plan`].
    pub plan: u64,
}
