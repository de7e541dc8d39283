//! `remove_default_annotations`: drops the annotations of what no backend takes.

use super::annotation::{Annotations, DEFAULT, Mark};
use crate::diag::Diagnostic;
use crate::ir::Module;
use crate::typing::Rebuild;

/// Drops begins and ends of `default`.
///
/// # Errors
/// None that a typed module can cause.
pub fn remove_default_annotations(module: &Module) -> Result<Module, Box<Diagnostic>> {
    let marks = Annotations::new();
    Rebuild::run(module, |rebuild, id, _| {
        Ok(match marks.mark(module, id) {
            Some(Mark::Begin(value, DEFAULT) | Mark::End(value, DEFAULT)) => Some(rebuild.get(value)),
            _ => None,
        })
    })
}
