//! `byoc ops`: the operator reference, printed from the operator table.

use super::args::OpsArgs;
use super::table;
use byoc::runtime::error::Failure;
use byoc_ir::diag::{Diagnostic, codes, nearest};
use byoc_ir::op::{self, Default, OpDef};
use serde_json::json;
use std::process::ExitCode;

/// Prints the table of operators, or the reference of one operator.
pub fn run(args: &OpsArgs) -> Result<ExitCode, Failure> {
    let Some(name) = &args.name else {
        if args.diagnostics.json {
            op::table().iter().for_each(|def| println!("{}", object(def)));
        } else {
            let mut table = table::new(&["operator", "arguments", "host", "description"]);
            for def in op::table() {
                let host = if def.reference.is_some() { "yes" } else { "no" };
                let summary = def.doc.split(['.', ';']).next().unwrap_or_default();
                table.add_row([def.name, &def.inputs.join(", "), host, summary]);
            }
            table::print(&table);
        }
        return Ok(ExitCode::SUCCESS);
    };
    let Some(id) = op::lookup(name) else {
        let mut diagnostic = Diagnostic::error(codes::types::UNKNOWN_OPERATOR, format!("unknown operator \"{name}\""));
        diagnostic = match nearest(name, op::names()) {
            Some(suggestion) => diagnostic.help(format!("did you mean \"{suggestion}\"?")),
            None => diagnostic.help("run \"byoc ops\" to list all operators"),
        };
        return Err(diagnostic.into());
    };
    let def = op::get(id);
    if args.diagnostics.json {
        println!("{}", object(def));
        return Ok(ExitCode::SUCCESS);
    }
    println!("{}({})\n\n{}", def.name, def.inputs.join(", "), def.doc);
    if !def.attrs.is_empty() {
        println!();
        let mut table = table::new(&["attribute", "kind", "default", "meaning"]);
        for attr in def.attrs {
            table.add_row([attr.name, &format!("{:?}", attr.kind), &default_text(attr.default), attr.doc]);
        }
        table::print(&table);
    }
    Ok(ExitCode::SUCCESS)
}

fn default_text(default: Default) -> String {
    match default {
        Default::Required => "required".to_owned(),
        other => other.value().to_string(),
    }
}

fn object(def: &OpDef) -> serde_json::Value {
    let attrs: Vec<_> = def
        .attrs
        .iter()
        .map(|a| json!({"name": a.name, "kind": format!("{:?}", a.kind), "default": default_text(a.default), "doc": a.doc}))
        .collect();
    json!({"name": def.name, "inputs": def.inputs, "min_arguments": def.arity.min, "max_arguments": def.arity.max,
           "pattern": def.pattern as i64, "host": def.reference.is_some(), "attributes": attrs, "doc": def.doc})
}
