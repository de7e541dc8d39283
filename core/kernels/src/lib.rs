//! Fast host kernels, one file per operator family. A kernel is created once for a call with known types, and runs many
//! times; without a fast kernel the operator's naive reference runs ([`make`] hides the difference).
//!
//! Kernels split their work over the rayon pool in which they are called, allocate nothing while running (their scratch
//! memory is requested as workspace), and never serve as the reference in a test. Between chunks of work they poll for
//! [cancellation](byoc_ir::cancel): results are valid only if the caller finds afterwards that the work was not
//! cancelled.

mod blocked;
mod blocks;
mod broadcast;
mod cast;
mod conv;
mod conv_transpose;
mod dense;
mod depthwise;
mod elementwise;
mod fallback;
mod fourier;
mod gather;
mod gemm;
mod grid;
mod image;
mod logic;
mod lrn;
mod math;
mod norm;
mod plane;
mod pool;
mod qnn;
mod recurrent;
mod reduce;
mod roi;
mod scatter;
pub(crate) mod simd;
mod sort;
pub mod split;
mod strided;
mod team;
mod text;
mod trees;
mod widened;

use byoc_ir::ir::{Attrs, OpId, TensorType};
use byoc_ir::op::{self, OpDef, Params};
use byoc_ir::tensor::{Tensor, TensorView, TensorViewMut};

/// Operator call with the facts known before the run: attributes, types and constants.
#[derive(Clone, Copy)]
pub struct Spec<'a> {
    /// Entry of the operator table.
    pub def: &'static OpDef,
    /// Attributes of the call.
    pub attrs: &'a Attrs,
    /// Input types, tuples flattened; every dimension is known.
    pub inputs: &'a [TensorType],
    /// Output types, tuples flattened; every dimension is known.
    pub outputs: &'a [TensorType],
    /// Values of inputs that never change (weights), which a kernel may pack; `None` for other inputs.
    pub constants: &'a [Option<&'a Tensor>],
}

impl<'a> Spec<'a> {
    /// Returns the attributes, with defaults.
    pub fn params(&self) -> Params<'a> {
        Params::new(self.def, self.attrs)
    }
}

/// Host implementation of one call, ready to run.
pub trait Kernel: Send + Sync {
    /// Returns the size in bytes of the scratch memory of a run.
    fn workspace(&self) -> usize {
        0
    }

    /// Returns the maximum number of bytes that a run allocates and frees besides the workspace; only references
    /// allocate. The caller [reserves](byoc_ir::tensor::memory::reserve) this memory.
    fn scratch(&self) -> usize {
        0
    }

    /// Returns the input whose buffer output 0 may reuse, if the kernel can compute in place.
    fn in_place(&self) -> Option<usize> {
        None
    }

    /// Computes the outputs. `workspace` has at least [`Kernel::workspace`] bytes, 64-byte aligned. A kernel that
    /// computes in place on its first input can keep the default, which runs it on a copy of that input.
    ///
    /// # Errors
    /// If a value is invalid, such as an index out of bounds.
    fn run(
        &self,
        inputs: &[TensorView<'_>],
        outputs: &mut [TensorViewMut<'_>],
        _workspace: &mut [u8],
    ) -> Result<(), String> {
        outputs[0].data.copy_from_slice(inputs[0].data);
        self.run_in_place(&inputs[1..], outputs)
    }

    /// Variant of [`Kernel::run`] where `outputs[0]` already holds the input that [`Kernel::in_place`] names, and
    /// `inputs` omits that input.
    ///
    /// # Errors
    /// If [`Kernel::run`] would fail, or the kernel does not compute in place.
    fn run_in_place(&self, _inputs: &[TensorView<'_>], _outputs: &mut [TensorViewMut<'_>]) -> Result<(), String> {
        Err("this kernel does not compute in place".into())
    }
}

/// Registration of a fast kernel for an operator.
pub struct Offer {
    /// Name of the operator.
    pub op: &'static str,
    /// Creates the kernel, or declines a call that it does not cover.
    pub make: fn(&Spec<'_>) -> Option<Box<dyn Kernel>>,
}

inventory::collect!(Offer);

/// Creates the kernel for a call: a fast kernel that covers the call, otherwise the reference. `None` if the operator
/// has no host implementation at all.
pub fn make(op: OpId, spec: &Spec<'_>) -> Option<Box<dyn Kernel>> {
    // If one dimension of the result is 0, the remaining dimensions may be arbitrarily large, and a fast kernel could
    // build tables of that length.
    if !spec.outputs.is_empty() && spec.outputs.iter().all(|ty| ty.len() == Some(0)) {
        return fallback::make(spec);
    }
    if let Some(kernel) = blocked::layout_wrapped(op, spec) {
        return Some(kernel);
    }
    fast(spec).or_else(|| widened::make(spec, fast)).or_else(|| fallback::make(spec))
}

/// Creates the first fast kernel that covers a call.
fn fast(spec: &Spec<'_>) -> Option<Box<dyn Kernel>> {
    let offers = inventory::iter::<Offer>.into_iter().filter(|offer| offer.op == spec.def.name);
    offers.map(|offer| offer.make).find_map(|make| make(spec))
}

/// Registration of an operator whose kernels need its constants in another form, whatever the other dimensions are.
pub struct Packs(pub &'static str);

inventory::collect!(Packs);

/// Returns true if the kernels of the operator need its constants in another form: a kernel for dimensions that only a run
/// determines then gets the constants as well, and has a copy of its own.
pub fn packs_constants(op: &str) -> bool {
    inventory::iter::<Packs>.into_iter().any(|packs| packs.0 == op)
}

/// Returns true if the host can run the operator.
pub fn exists(op: OpId) -> bool {
    op::get(op).reference.is_some()
}
