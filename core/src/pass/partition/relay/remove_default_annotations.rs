//! `remove_default_annotations`: removes the annotations of the target `default`.

use super::annotation::{Annotations, DEFAULT, Mark};
use byoc_ir::diag::Diagnostic;
use byoc_ir::ir::Module;
use byoc_ir::typing::Rebuild;
use std::borrow::Cow;

/// Removes the begins and ends of the target `default`, which marks expressions that no backend supports.
///
/// # Errors
/// If the module is ill-typed.
pub fn remove_default_annotations(module: &Module) -> Result<Module, Box<Diagnostic>> {
    remove_if_present(module).map(Cow::into_owned)
}

/// Variant of [`remove_default_annotations`] that borrows a module without annotations of the target `default`.
pub(super) fn remove_if_present(module: &Module) -> Result<Cow<'_, Module>, Box<Diagnostic>> {
    let annotations = Annotations::new();
    let is_default =
        |id| matches!(annotations.annotation_of(module, id), Some(Mark::Begin(_, DEFAULT) | Mark::End(_, DEFAULT)));
    if !module.nodes.ids().any(is_default) {
        return Ok(Cow::Borrowed(module));
    }
    Rebuild::run(module, |rebuild, id, _| {
        Ok(match annotations.annotation_of(module, id) {
            Some(Mark::Begin(value, DEFAULT) | Mark::End(value, DEFAULT)) => Some(rebuild.get(value)),
            _ => None,
        })
    })
    .map(Cow::Owned)
}
