//! `byoc plugins list`: the plugins found and their files.

use super::args::{DiagnosticArgs, PluginDirArgs};
use super::{render, table};
use byoc::driver::backend::lack;
use byoc::runtime::error::Failure;
use byoc::runtime::plugin::registry::{PluginFile, Registry, Status};
use byoc::runtime::session::Session;
use byoc_ir::diag::{Code, Diagnostic};
use byoc_ir::escape::line;
use serde_json::{Value, json};
use std::process::ExitCode;

/// Prints the discovered plugins and their files.
pub fn run(plugins: &PluginDirArgs, diagnostics: &DiagnosticArgs) -> Result<ExitCode, Failure> {
    crate::log::log_to_stderr(diagnostics.verbose);
    let registry = Session::new(&plugins.plugin_dirs, 1)?.registry;
    registry.load_all();
    let files: Vec<&PluginFile> = registry.found().collect();
    print_list(&files, diagnostics);
    if !diagnostics.json {
        print_lacks(&registry);
    }
    if !diagnostics.json && files.is_empty() {
        let mut diagnostic = Diagnostic::warning(Code(401), "no plugin file found");
        diagnostic = registry.inventory(diagnostic);
        render::print_diagnostic(&diagnostic.help("copy a backend's shared library to one of these directories"));
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints what backends lack on this machine, one line each.
fn print_lacks(registry: &Registry) {
    for name in registry.backends() {
        if let Ok(Some(lack)) = lack(registry, &name) {
            println!("{}", line(&format!("{name}: {lack}")));
        }
    }
}

fn print_list(files: &[&PluginFile], diagnostics: &DiagnosticArgs) {
    if diagnostics.json {
        for files in files {
            println!("{}", row(files));
        }
        return;
    }
    if files.is_empty() {
        return;
    }
    let mut table = table::new(&["status", "name", "version", "file", "registers, or reason"]);
    for files in files {
        let row = row(files);
        let text = |key: &str| row[key].as_str().unwrap_or("-").to_owned();
        let description = match (&row["code"], row["registrations"].as_array()) {
            (Value::String(code), _) => format!("{code}: {}", text("reason")),
            (_, Some(names)) => names.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(", "),
            _ => String::new(),
        };
        table.add_row([text("status"), text("name"), text("version"), text("file"), description]);
    }
    table::print(&table);
}

/// Returns the JSON object that `--json` prints for a file.
pub fn row(plugin_file: &PluginFile) -> Value {
    let file = plugin_file.path.display().to_string();
    match &plugin_file.status {
        Status::Loaded(plugin) => {
            let names: Vec<&str> = plugin.registrations.iter().map(|r| r.name.as_str()).collect();
            json!({"file": file, "status": "loaded", "name": plugin.name, "version": plugin.version,
                   "code": null, "reason": null, "registrations": names})
        }
        Status::Rejected(rejection) => {
            json!({"file": file, "status": "refused", "name": null, "version": null,
                   "code": rejection.code, "reason": rejection.reason, "registrations": []})
        }
        Status::Shadowed { name, version, by } => {
            let reason = format!("{} takes precedence and registers the same name", by.display());
            json!({"file": file, "status": "shadowed", "name": name, "version": version,
                   "code": "E0422", "reason": reason, "registrations": []})
        }
    }
}
