//! Operators that backends declare: entered in the operator table before a model is read, decomposed for the host.

use byoc_core::pass::{Report, without_reference};
use byoc_ir::declared::{self, Declared};
use byoc_ir::diag::{Diagnostic, codes};
use byoc_ir::ir::Module;
use byoc_ir::op;
use byoc_plugin_api::Description;
use byoc_runtime::error::Failure;
use std::collections::BTreeMap;

/// Declares the operators of a description. Returns the faults, one line each.
pub(super) fn declare(backend: &str, description: &Description) -> Vec<String> {
    let mut faults = Vec::new();
    for (index, declaration) in description.declares.iter().enumerate() {
        if let Err(lines) = declared::declare(backend, declaration, None) {
            let name = declaration["name"].as_str().unwrap_or_default();
            faults.extend(lines.iter().map(|line| format!("\"declares[{index}]\" ({name}): {line}")));
        }
    }
    faults
}

/// Returns the plugins that declare the operators of a module, by operator.
pub(super) fn used(module: &Module) -> BTreeMap<&'static str, &'static str> {
    let calls = module.nodes.iter().filter_map(|(_, node)| node.expr.as_op_call());
    let declared = calls.filter_map(|(operator, _)| Declared::of(op::get(operator)));
    declared.map(|declared| (declared.name, declared.plugin.as_str())).collect()
}

/// Checks that the host can compute every declared operator that no backend took. `placed` is the module before
/// partitioning.
///
/// # Errors
/// E0429 for each that it cannot: the plugin that declares it, and the reasons of the backends.
pub(super) fn check_host(placed: &Module, partitioned: &Module, report: &Report) -> Result<(), Failure> {
    let missing = without_reference(partitioned);
    if missing.is_empty() {
        return Ok(());
    }
    let errors = missing.into_iter().map(|(operator, call)| {
        let name = op::get(operator).name;
        let plugin = Declared::of(op::get(operator)).map_or("", |declared| declared.plugin.as_str());
        let message = format!("{name}: expected a backend that takes this operator, found none");
        let mut error = Diagnostic::error(codes::plugins::NO_HOST_FORM, message);
        let origins = &partitioned.origins;
        if let Some(&source) = origins.get(partitioned.nodes[call].origin).first() {
            error = error.note(format!("first in node \"{}\"", origins.sources()[source].name));
        }
        let is_call = |expr| placed.expr(expr).as_op_call().is_some_and(|(other, _)| other == operator);
        let rows = report.operators.iter().filter(|row| row.region.is_none() && is_call(row.expr));
        for (backend, refusal) in rows.take(1).flat_map(|row| row.refusals.iter()) {
            error = error.note(format!("{backend}: {}: {}", refusal.code, refusal.detail));
        }
        error = error
            .note(format!("{plugin} declares the operator without a decomposition, so the host cannot compute it"));
        error.help(format!("select a backend that takes it, such as --backend {plugin}"))
    });
    Err(Failure::from(errors.collect::<Vec<_>>()))
}
