//! The naive reference of an operator in the dress of a kernel.

use super::{Kernel, Spec};
use crate::ir::Attrs;
use crate::op::{OpDef, Params, Reference};
use crate::tensor::{TensorView, TensorViewMut};

struct Fallback {
    def: &'static OpDef,
    attrs: Attrs,
    reference: Reference,
}

/// The reference as a kernel; `None` when the operator has none.
pub(super) fn make(spec: &Spec<'_>) -> Option<Box<dyn Kernel>> {
    let reference = spec.def.reference?;
    Some(Box::new(Fallback { def: spec.def, attrs: spec.attrs.clone(), reference }))
}

impl Kernel for Fallback {
    fn run(&self, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>], _: &mut [u8]) -> Result<(), String> {
        (self.reference)(Params::new(self.def, &self.attrs), inputs, outputs)
    }
}
