//! Naive reference of an operator as a kernel.

use super::{Kernel, Spec};
use byoc_ir::ir::Attrs;
use byoc_ir::op::{self, OpDef, Params, Reference};
use byoc_ir::tensor::{TensorView, TensorViewMut};

struct Fallback {
    def: &'static OpDef,
    attrs: Attrs,
    reference: Reference,
    scratch: usize,
}

/// Wraps the reference as a kernel; `None` if the operator has no reference.
pub(super) fn make(spec: &Spec<'_>) -> Option<Box<dyn Kernel>> {
    let reference = spec.def.reference?;
    let elements = spec.inputs.iter().chain(spec.outputs).map(|ty| ty.len().unwrap_or(usize::MAX));
    let scratch = op::reference_scratch(elements);
    Some(Box::new(Fallback { def: spec.def, attrs: spec.attrs.clone(), reference, scratch }))
}

impl Kernel for Fallback {
    fn scratch(&self) -> usize {
        self.scratch
    }

    fn run(&self, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>], _: &mut [u8]) -> Result<(), String> {
        if outputs.iter().all(TensorViewMut::is_empty) {
            return Ok(());
        }
        (self.reference)(Params::new(self.def, &self.attrs), inputs, outputs)
    }
}
