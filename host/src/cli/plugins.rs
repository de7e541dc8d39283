//! `byoc plugins`: what was found where, and a plugin's pattern table.

use super::args::{PluginDirArgs, PluginsArgs, PluginsCommand, TalkArgs};
use super::{plugins_check, plugins_new, plugins_test, render, table};
use crate::error::Failure;
use crate::plugin::registry::{Found, Status};
use crate::session::{self, Session};
use byoc_core::diag::{Code, Diagnostic};
use serde_json::{Value, json};
use std::process::ExitCode;

/// Runs the command.
pub fn run(args: PluginsArgs) -> Result<ExitCode, Failure> {
    match args.command {
        None => list(&args.plugins, &args.talk),
        Some(PluginsCommand::List(list_args)) => list(&merge(args.plugins, list_args.plugins), &list_args.talk),
        Some(PluginsCommand::Show(show_args)) => {
            show(&show_args.name, &merge(args.plugins, show_args.plugins), &show_args.talk)
        }
        Some(PluginsCommand::Check(check)) => plugins_check::run(&check),
        Some(PluginsCommand::New(new)) => plugins_new::run(&new),
        Some(PluginsCommand::Test(mut test)) => {
            test.plugins = merge(args.plugins, test.plugins);
            plugins_test::run(&test)
        }
        Some(PluginsCommand::TestWorker(worker)) => plugins_test::worker(&worker),
    }
}

fn merge(mut outer: PluginDirArgs, inner: PluginDirArgs) -> PluginDirArgs {
    outer.plugin_dirs.extend(inner.plugin_dirs);
    outer
}

fn list(plugins: &PluginDirArgs, talk: &TalkArgs) -> Result<ExitCode, Failure> {
    session::log_to_stderr(talk.verbose);
    let registry = Session::new(&plugins.plugin_dirs, 1)?.registry;
    print_list(&registry.found, talk);
    if !talk.json && registry.found.is_empty() {
        let mut diagnostic = Diagnostic::warning(Code(401), "no plugin file found");
        diagnostic = registry.inventory(diagnostic);
        render::diagnostic(&diagnostic.help("drop a backend's shared library into one of these directories"));
    }
    Ok(ExitCode::SUCCESS)
}

fn print_list(found: &[Found], talk: &TalkArgs) {
    if talk.json {
        for found in found {
            println!("{}", row(found));
        }
        return;
    }
    if found.is_empty() {
        return;
    }
    let mut table = table::new(&["status", "name", "version", "file", "registers, or reason"]);
    for found in found {
        let row = row(found);
        let text = |key: &str| row[key].as_str().unwrap_or("-").to_owned();
        let last = match (&row["code"], row["registrations"].as_array()) {
            (Value::String(code), _) => format!("{code}: {}", text("reason")),
            (_, Some(names)) => names.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(", "),
            _ => String::new(),
        };
        table.add_row([text("status"), text("name"), text("version"), text("file"), last]);
    }
    table::print(&table);
}

/// A file as the JSON object that `--json` prints.
pub(super) fn row(found: &Found) -> Value {
    let file = found.path.display().to_string();
    match &found.status {
        Status::Loaded(plugin) => {
            let names: Vec<&str> = plugin.registrations.iter().map(|r| r.name.as_str()).collect();
            json!({"file": file, "status": "loaded", "name": plugin.name, "version": plugin.version,
                   "code": null, "reason": null, "registrations": names})
        }
        Status::Refused(rejection) => {
            json!({"file": file, "status": "refused", "name": null, "version": null,
                   "code": rejection.code, "reason": rejection.reason, "registrations": []})
        }
        Status::Shadowed { name, version, by } => {
            let reason = format!("{} comes first and registers the same name", by.display());
            json!({"file": file, "status": "shadowed", "name": name, "version": version,
                   "code": "E0422", "reason": reason, "registrations": []})
        }
    }
}

fn show(name: &str, plugins: &PluginDirArgs, talk: &TalkArgs) -> Result<ExitCode, Failure> {
    session::log_to_stderr(talk.verbose);
    let registry = Session::new(&plugins.plugin_dirs, 1)?.registry;
    let backend = registry.backend(name)?;
    if talk.json {
        println!("{}", backend.description.to_json());
        return Ok(ExitCode::SUCCESS);
    }
    let plugin = backend.plugin;
    println!("{} {} (boundary {}), {}", plugin.name, plugin.version, plugin.api_version, plugin.path.display());
    if !backend.description.about.is_empty() {
        println!("{}", backend.description.about);
    }
    println!("\npatterns, in order:");
    for line in backend.description.patterns.lines().filter(|l| !l.trim().is_empty()) {
        println!("  {line}");
    }
    println!("\nsingle operators: {}", backend.description.operators.join(", "));
    let cost = &backend.description.cost;
    if cost.min_region_flops > 0 || cost.min_region_operators > 0 {
        println!("regions of at least {} FLOPs and {} operators", cost.min_region_flops, cost.min_region_operators);
    }
    Ok(ExitCode::SUCCESS)
}
