//! `byoc plugins check`: reports the errors of a plugin file that can be detected without a model.
//!
//! For a file that cannot be loaded, the loading steps are printed up to the failing step. For a file that loads, all
//! errors in the backend descriptions are printed.

use super::args::PluginsCheckArgs;
use super::{plugins_list, render};
use byoc::driver::backend::Backend;
use byoc::runtime::error::Failure;
use byoc::runtime::plugin::registry::{PluginFile, Registry, Status, rejection_diagnostic};
use byoc::runtime::session::Session;
use byoc_ir::diag::{Diagnostic, Severity, plural};
use byoc_ir::op;
use byoc_plugin_api::CODEGEN_PREFIX;
use byoc_plugin_api::host::{FileFacts, LoadedPlugin, RegisteredObject, read_facts};
use serde_json::{Value, json};
use std::process::ExitCode;

/// Checks a plugin file and prints the errors that can be detected without a model.
pub fn run(args: &PluginsCheckArgs) -> Result<ExitCode, Failure> {
    crate::log::log_to_stderr(args.diagnostics.verbose);
    let registry = Registry::of_file(&args.file, &Session::without_plugins(1)?.services);
    let Some(plugin_file) = registry.found().next() else { return Ok(ExitCode::SUCCESS) };
    let file_facts = read_facts(&plugin_file.path).ok();
    let backend_checks = match &plugin_file.status {
        Status::Loaded(plugin) => backends(&registry, plugin),
        _ => Vec::new(),
    };
    let problems: Vec<Diagnostic> = match &plugin_file.status {
        Status::Rejected(rejection) => vec![rejection_diagnostic(&plugin_file.path, rejection)],
        _ => backend_checks.iter().flat_map(|backend| backend.problems.iter().cloned()).collect(),
    };
    if args.diagnostics.json {
        println!("{}", json_row(plugin_file, file_facts.as_ref(), &backend_checks, &problems));
    } else {
        print_file(plugin_file, file_facts.as_ref());
        backend_checks.iter().for_each(print_backend);
        problems.iter().for_each(render::print_diagnostic);
        if problems.is_empty() && backend_checks.is_empty() {
            println!("no code generator: the library registers none, so --backend has nothing to select in it");
        } else if problems.is_empty() {
            println!(
                "no problems found; run \"byoc plugins test {}\" to test the claims of the plugin",
                plugin_file.path.display()
            );
        }
    }
    Ok(if problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Description of a backend, with its errors.
struct BackendCheck {
    name: String,
    about: String,
    /// Number of valid patterns.
    patterns: usize,
    /// Number of known single operators.
    operators: usize,
    problems: Vec<Diagnostic>,
}

fn backends(registry: &Registry, plugin: &LoadedPlugin) -> Vec<BackendCheck> {
    let mut backend_checks = Vec::new();
    let names = plugin.registrations.iter().filter_map(|registration| match registration.object {
        RegisteredObject::Codegen(_) => registration.name.strip_prefix(CODEGEN_PREFIX),
        _ => None,
    });
    for name in names {
        let row = |problems| BackendCheck {
            name: name.to_owned(),
            about: String::new(),
            patterns: 0,
            operators: 0,
            problems,
        };
        backend_checks.push(match Backend::find(registry, name) {
            Err(failure) => row(failure.diagnostics),
            Ok(backend) => {
                let description = &backend.description;
                // Commands that run a model report these problems as warnings, as the rest of the backend is usable;
                // here they are errors, as the plugin author has to fix them.
                let to_error = |warning: Diagnostic| Diagnostic { severity: Severity::Error, ..warning };
                BackendCheck {
                    about: description.about.clone(),
                    patterns: backend.table.len(),
                    operators: description.operators.iter().filter(|name| op::lookup(name).is_some()).count(),
                    ..row(backend.warnings.into_iter().map(to_error).collect())
                }
            }
        });
    }
    backend_checks
}

fn print_file(plugin_file: &PluginFile, file_facts: Option<&FileFacts>) {
    println!("{}", plugin_file.path.display());
    if let Some(file_facts) = file_facts {
        println!("  entry       {}", file_facts.entry);
        println!(
            "  needs       {}",
            if file_facts.needed.is_empty() { "nothing".into() } else { file_facts.needed.join(", ") }
        );
    }
    match &plugin_file.status {
        Status::Loaded(plugin) => {
            // A C plugin reports the header and its version, a Rust plugin the version of the crate.
            let is_rust_api = plugin.api_version.starts_with(|c: char| c.is_ascii_digit());
            println!("  built with  {}{}", if is_rust_api { "byoc-plugin-api " } else { "" }, plugin.api_version);
            println!("  plugin      {} {}", plugin.name, plugin.version);
            let names: Vec<&str> = plugin.registrations.iter().map(|r| r.name.as_str()).collect();
            println!("  registers   {}", names.join(", "));
        }
        Status::Rejected(rejection) => println!("  rejected    {}: {}", rejection.code, rejection.reason),
        Status::Shadowed { by, .. } => println!("  shadowed by {}", by.display()),
    }
}

fn print_backend(backend: &BackendCheck) {
    let about_prefix = if backend.about.is_empty() { "" } else { ": " };
    println!("  --backend {}{about_prefix}{}", backend.name, backend.about);
    let patterns = plural(backend.patterns, "pattern");
    println!("              {patterns} and {} are valid", plural(backend.operators, "single operator"));
}

fn json_row(
    plugin_file: &PluginFile,
    file_facts: Option<&FileFacts>,
    backends: &[BackendCheck],
    problems: &[Diagnostic],
) -> Value {
    let mut row = plugins_list::row(plugin_file);
    let problem =
        |d: &Diagnostic| json!({"code": d.code.to_string(), "message": d.message, "notes": d.notes, "help": d.help});
    let backend =
        |b: &BackendCheck| json!({"name": b.name, "about": b.about, "patterns": b.patterns, "operators": b.operators});
    row["entry"] = json!(file_facts.map(|f| f.entry));
    row["needs"] = json!(file_facts.map(|f| &f.needed));
    row["backends"] = backends.iter().map(backend).collect();
    row["problems"] = problems.iter().map(problem).collect();
    row
}
