//! `byoc plugins`: dispatches to the subcommands, and shows the description and pattern table of a plugin.

use super::args::{DiagnosticArgs, PluginDirArgs, PluginsArgs, PluginsCommand};
use super::{plugins_check, plugins_list, plugins_new, plugins_test};
use byoc::driver::backend::Backend;
use byoc::runtime::error::Failure;
use byoc::runtime::session::Session;
use byoc_conformance::report::exclusions;
use byoc_core::pattern::{Checks, parse_table};
use byoc_ir::diag::Severity;
use byoc_plugin_api::{BackendOption, Description};
use std::process::ExitCode;

/// Dispatches to the subcommand.
pub fn run(args: PluginsArgs) -> Result<ExitCode, Failure> {
    match args.command {
        None => plugins_list::run(&args.plugins, &args.diagnostics),
        Some(PluginsCommand::List(list_args)) => {
            plugins_list::run(&merge_dirs(args.plugins, list_args.plugins), &list_args.diagnostics)
        }
        Some(PluginsCommand::Show(show_args)) => {
            show(&show_args.name, &merge_dirs(args.plugins, show_args.plugins), &show_args.diagnostics)
        }
        Some(PluginsCommand::Check(check)) => plugins_check::run(&check),
        Some(PluginsCommand::New(new)) => plugins_new::run(&new),
        Some(PluginsCommand::Update(update)) => plugins_new::update(&update),
        Some(PluginsCommand::Test(mut test)) => {
            test.plugins = merge_dirs(args.plugins, test.plugins);
            plugins_test::run(&test)
        }
        Some(PluginsCommand::TestWorker(worker)) => plugins_test::run_worker(&worker),
    }
}

fn merge_dirs(mut outer: PluginDirArgs, inner: PluginDirArgs) -> PluginDirArgs {
    outer.plugin_dirs.extend(inner.plugin_dirs);
    outer
}

fn show(name: &str, plugins: &PluginDirArgs, diagnostics: &DiagnosticArgs) -> Result<ExitCode, Failure> {
    crate::log::log_to_stderr(diagnostics.verbose);
    let registry = Session::new(&plugins.plugin_dirs, 1)?.registry;
    let backend = Backend::find(&registry, name)?;
    if diagnostics.json {
        println!("{}", backend.description.to_json());
        return Ok(ExitCode::SUCCESS);
    }
    let plugin = backend.plugin;
    println!("{} {} (boundary {}), {}", plugin.name, plugin.version, plugin.api_version, plugin.path.display());
    if !backend.description.about.is_empty() {
        println!("{}", backend.description.about);
    }
    println!("\npatterns, in order:");
    print_table(&backend.description.patterns);
    println!("\nsingle operators: {}", backend.description.operators.join(", "));
    let cost = &backend.description.cost;
    if cost.min_region_flops > 0 || cost.min_region_operators > 0 {
        println!(
            "minimum size of a region: FLOPs: {}, operators: {}",
            cost.min_region_flops, cost.min_region_operators
        );
    }
    for (operator, layouts) in &backend.description.layouts {
        println!("layouts of {operator}: {}", layouts.join(", "));
    }
    for (key, claim) in &backend.description.precision {
        println!("precision of {key}: {}", claim.summary());
    }
    for (def, declared) in byoc_ir::declared::all().filter(|(_, declared)| declared.plugin == name) {
        let form = declared.onnx.as_ref().map(|form| format!(", {} {} {}", form.domain, form.name, form.version));
        let host = if declared.has_reference() { "on the host too" } else { "on the backend alone" };
        println!("declares {}{}, {host}: {}", def.name, form.unwrap_or_default(), def.doc);
    }
    for note in declarations(&backend.description) {
        println!("{note}");
    }
    for note in exclusions(backend.description.finite_math, backend.description.flush_to_zero) {
        println!("{note}");
    }
    if !backend.description.options.is_empty() {
        println!("\noptions, set with --backend-option {name}.OPTION=VALUE:");
    }
    for (option, spec) in &backend.description.options {
        let values = match &spec.values[..] {
            [] => "any value".to_owned(),
            [default, ..] => format!("{}; {default} unless set", spec.values.join(" or ")),
        };
        println!("  {option} ({values}; set {}): {}", phases(spec), spec.about);
    }
    let devices = backend.devices()?;
    if !devices.is_empty() {
        println!("\ndevices, selected with --device {name}=ID:");
    }
    for device in devices {
        let memory = if device.memory > 0 { format!(", {} MiB", device.memory >> 20) } else { String::new() };
        let suffix = if device.about.is_empty() { String::new() } else { format!(", {}", device.about) };
        println!("  {}: {}{memory}{suffix}", device.id, device.name);
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns notes on what a description declares besides patterns and operators.
fn declarations(description: &Description) -> impl Iterator<Item = &'static str> {
    let Description { dynamic_dims, device_memory, control_flow, per_device, whole_graph, .. } = description;
    let notes = [
        dynamic_dims.then_some("dynamic_dims: dimensions may be unknown until run time"),
        device_memory.then_some("device_memory: tensors may be in device memory"),
        control_flow.then_some("control_flow: regions may contain branches"),
        per_device.then_some("per_device: each device is a separate backend"),
        whole_graph.then_some("whole_graph: the backend sees the whole module and names its regions"),
    ];
    notes.into_iter().flatten()
}

/// Returns the phases in which an option may be set.
fn phases(option: &BackendOption) -> &'static str {
    match (option.load, option.run) {
        (false, false) => "at compilation",
        (true, false) => "at compilation or at load",
        (false, true) => "at compilation or per run",
        (true, true) => "at compilation, at load or per run",
    }
}

/// Prints a pattern table. Each line with a diagnostic is followed by the diagnostic and its remedy.
fn print_table(table: &str) {
    let table_result = parse_table(table, Checks::Allowed);
    let mut start = 0;
    for line in table.lines() {
        let line_range = start..=start + line.len();
        start = line_range.end() + 1;
        if line.trim().is_empty() {
            continue;
        }
        println!("  {line}");
        for diagnostic in &table_result.diagnostics {
            let offset = diagnostic.labels.first().map_or(0, |label| label.span.start as usize);
            if !line_range.contains(&offset) {
                continue;
            }
            let column_offset = offset - line_range.start();
            let column = line.get(..column_offset).map_or(column_offset, |prefix| prefix.chars().count());
            let severity = if diagnostic.severity == Severity::Error { "refused" } else { "warning" };
            println!("  {}^ {severity}: {}", " ".repeat(column), diagnostic.message);
            if let Some(help) = &diagnostic.help {
                println!("    {help}");
            }
        }
    }
}
