//! The fast host kernels, one file per operator family. A kernel is made once for a call whose types are known, and
//! run many times; where no kernel is offered the operator's naive reference serves ([`make`] hides the difference).
//!
//! Kernels split their work over the rayon pool in which they are called, allocate nothing while running (what they
//! need they ask for as workspace), and are never the reference of a test. Between the pieces of their work they look whether
//! it is to [end](crate::stop): a result is one only if whoever runs them finds that it is not.

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
mod gemm;
mod image;
mod math;
mod norm;
mod plane;
mod pool;
mod qnn;
mod reduce;
pub(crate) mod simd;
mod split;
mod strided;

use crate::ir::{Attrs, OpId, TensorType};
use crate::op::{self, OpDef, Params};
use crate::tensor::{Tensor, TensorView, TensorViewMut};

/// A call with everything that is known before it runs.
#[derive(Clone, Copy)]
pub struct Spec<'a> {
    /// The operator.
    pub def: &'static OpDef,
    /// Its attributes.
    pub attrs: &'a Attrs,
    /// Input types, tuples flattened; every dimension is known.
    pub inputs: &'a [TensorType],
    /// Output types, tuples flattened; every dimension is known.
    pub outputs: &'a [TensorType],
    /// The values of inputs that never change (weights), which a kernel may pack. `None` elsewhere.
    pub constants: &'a [Option<&'a Tensor>],
}

impl<'a> Spec<'a> {
    /// The attributes, with defaults.
    pub fn params(&self) -> Params<'a> {
        Params::new(self.def, self.attrs)
    }
}

/// A call ready to run.
pub trait Kernel: Send + Sync {
    /// Bytes of scratch memory that a run needs.
    fn workspace(&self) -> usize {
        0
    }

    /// Bytes that a run may allocate besides, and frees when it ends: those of a reference. Whoever runs it makes
    /// [room](crate::tensor::memory::room) for them.
    fn scratch(&self) -> usize {
        0
    }

    /// The input whose buffer output 0 may take over, if the kernel can compute in place.
    fn in_place(&self) -> Option<usize> {
        None
    }

    /// Computes the outputs. `workspace` has at least [`Kernel::workspace`] bytes, 64-byte aligned. A kernel that computes
    /// in place on its first input need not say how: it is given a copy of it.
    ///
    /// # Errors
    /// What is wrong with the values (an index out of bounds).
    fn run(
        &self,
        inputs: &[TensorView<'_>],
        outputs: &mut [TensorViewMut<'_>],
        _workspace: &mut [u8],
    ) -> Result<(), String> {
        outputs[0].data.copy_from_slice(inputs[0].data);
        self.run_in_place(&inputs[1..], outputs)
    }

    /// As [`Kernel::run`], where `outputs[0]` already holds the input that [`Kernel::in_place`] names, and that input
    /// is left out of `inputs`.
    ///
    /// # Errors
    /// As [`Kernel::run`]; also when the kernel does not compute in place.
    fn run_in_place(&self, _inputs: &[TensorView<'_>], _outputs: &mut [TensorViewMut<'_>]) -> Result<(), String> {
        Err("this kernel does not compute in place".into())
    }
}

/// Offers a fast kernel for an operator.
pub struct Offer {
    /// The operator's name.
    pub op: &'static str,
    /// Makes the kernel, or declines a call that it does not cover.
    pub make: fn(&Spec<'_>) -> Option<Box<dyn Kernel>>,
}

inventory::collect!(Offer);

/// The kernel for a call: a fast one where one is offered, otherwise the reference.
/// `None` when the operator has no host implementation at all.
pub fn make(op: OpId, spec: &Spec<'_>) -> Option<Box<dyn Kernel>> {
    // Where a result has no elements, its other dimensions may be of any size: no table is made by them.
    if !spec.outputs.is_empty() && spec.outputs.iter().all(|ty| ty.len() == Some(0)) {
        return fallback::make(spec);
    }
    if let Some(kernel) = blocked::between_changes(op, spec) {
        return Some(kernel);
    }
    let name = op::get(op).name;
    inventory::iter::<Offer>
        .into_iter()
        .filter(|offer| offer.op == name)
        .find_map(|offer| (offer.make)(spec))
        .or_else(|| fallback::make(spec))
}

/// Returns true if the host can run the operator at all.
pub fn exists(op: OpId) -> bool {
    op::get(op).reference.is_some()
}
