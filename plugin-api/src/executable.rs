//! Plain trait of loaded regions, which a loader returns and the host runs.

use crate::error::Result;
use crate::graph::Attr;
use crate::tensor::{TensorMut, TensorRef};
use abi_stable::StableAbi;
use abi_stable::std_types::RVec;

/// Loaded region. Several threads may run it concurrently.
pub trait Executable: Send + Sync + 'static {
    /// Creates a plan for the input dimensions `inputs`. The host caches the plans for recently used dimensions, and
    /// announces each evicted plan with `query("plan.release", {"plan": 7})`.
    ///
    /// # Errors
    /// If the region does not support these dimensions.
    fn prepare(&self, inputs: &[&[usize]]) -> Result<Prepared>;

    /// Computes the outputs. Must not retain a reference to any part of `call`, and should not allocate.
    ///
    /// # Errors
    /// If execution fails; the run of the model then fails with this message.
    fn run(&self, call: Call<'_, '_>) -> Result<()>;

    /// Handles the request `key`, for which the ABI has no dedicated entry. Returns `None` for an unknown key.
    ///
    /// # Errors
    /// If the key is known but the request fails.
    fn query(&self, key: &str, data: &[u8]) -> Result<Option<Vec<u8>>> {
        let _ = (key, data);
        Ok(None)
    }
}

/// Requirements of a run: outputs, workspace, plan.
#[repr(C)]
#[derive(StableAbi, Clone, Debug, Default, PartialEq)]
pub struct Prepared {
    /// Outputs, in order.
    pub outputs: RVec<OutputDims>,
    /// Size of the workspace in bytes.
    pub workspace: usize,
    /// Plan ID, chosen by the backend and passed back in [`Call::plan`].
    pub plan: u64,
    /// Additional attributes. The host reads only `bytes`, the size of the memory that the plan holds until its
    /// release.
    pub attrs: RVec<Attr>,
}

/// Dimensions of an output.
#[repr(C)]
#[derive(StableAbi, Clone, Debug, PartialEq, Eq)]
pub struct OutputDims {
    /// Dimensions, or their upper bounds.
    pub dims: RVec<usize>,
    /// True if the dimensions are exact. Otherwise `run` sets them with [`TensorMut::set_shape`].
    pub exact: bool,
}

impl Prepared {
    /// Creates a plan for outputs of exactly the given dimensions, without a workspace.
    pub fn exact<D: AsRef<[usize]>>(outputs: impl IntoIterator<Item = D>) -> Prepared {
        let outputs = outputs.into_iter().map(|dims| OutputDims { dims: dims.as_ref().to_vec().into(), exact: true });
        Prepared { outputs: outputs.collect(), ..Prepared::default() }
    }

    /// Requests a workspace of `bytes` bytes.
    pub fn with_workspace(mut self, bytes: usize) -> Prepared {
        self.workspace = bytes;
        self
    }

    /// Sets the plan ID.
    pub fn with_plan(mut self, plan: u64) -> Prepared {
        self.plan = plan;
        self
    }
}

/// Arguments of one run. The caller owns all memory.
#[derive(Debug)]
pub struct Call<'a, 't> {
    /// Inputs, in order.
    pub inputs: &'a [TensorRef<'t>],
    /// Outputs, with the dimensions that `prepare` returned. Their contents are undefined before the run; they never
    /// overlap an input, except for the pairs that the region's metadata lists as `in_place`.
    pub outputs: &'a mut [TensorMut<'t>],
    /// Workspace of the size that `prepare` returned, aligned to 64 bytes. Its contents are undefined before the run.
    pub workspace: &'a mut [u8],
    /// [`Prepared::plan`] for the dimensions of `inputs`.
    pub plan: u64,
}
