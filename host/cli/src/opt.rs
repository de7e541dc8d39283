//! `byoc opt`: runs passes on Relay text and prints the result, or compares the result with an expected module.

use super::args::OptArgs;
use super::{escape, models_out, output_file, render};
use byoc::frontend::{LoadOptions, Signature, relay};
use byoc::runtime::error::Failure;
use byoc_core::analysis::structural_equal;
use byoc_core::pass::manager::{self, RunOptions};
use byoc_core::pass::{DesiredLayout, PassOptions, TargetRule, infer_type};
use byoc_core::pattern::{Checks, entry_name, parse_table};
use byoc_ir::cancel::Cancel;
use byoc_ir::diag::{Diagnostic, codes, nearest};
use byoc_ir::ir::Module;
use byoc_ir::op;
use byoc_ir::text::{PrintOptions, print};
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

/// Time that the search for a minimal difference between two modules takes at most.
const MAX_DIFF_TIME: Duration = Duration::from_secs(2);

/// Runs the passes on a module, and prints the result or compares it with the expected module.
pub fn run(args: &OptArgs) -> Result<ExitCode, Failure> {
    crate::log::log_to_stderr(args.diagnostics.verbose);
    let options = pass_options(args)?;
    let names: Vec<&str> = args.passes.iter().map(String::as_str).collect();
    for name in names.iter().copied().chain(args.print_after.as_deref().filter(|p| *p != "all")) {
        manager::find(name)?;
    }
    output_file::check(args.output.as_deref())?;
    let to_onnx = args.output.as_deref().is_some_and(models_out::is_onnx);
    let is_program = !to_onnx && !models_out::is_onnx(&args.file);
    if names.is_empty() && args.expect.is_none() && is_program {
        write_result(args, &relay::read_verified(&args.file)?, None)?;
        return Ok(ExitCode::SUCCESS);
    }
    let (module, signature) = if is_program {
        (relay::read_typed(&args.file)?, None)
    } else {
        let model = models_out::read(&args.file, LoadOptions::default())?;
        model.warnings.iter().for_each(render::print_diagnostic);
        (model.module, Some(model.signature))
    };
    let mut print_module = |pass: &str, module: &Module| {
        if args.print_after.as_deref().is_some_and(|p| p == "all" || p == pass) {
            // The pass manager ends after a pass if the work is cancelled.
            let text = text(module).unwrap_or_else(|reason| format!("// {}\n", reason.message));
            eprint!("// after {pass}\n{text}");
        }
    };
    let mut run = RunOptions { verify_each: true, step_limit: args.pass_limit, after_pass: Some(&mut print_module) };
    let output = manager::run(module, &names, &options, &mut run).map_err(|e| {
        let mut failure = Failure::from(e.diagnostics);
        if let Some(diagnostic) = failure.diagnostics.first_mut() {
            diagnostic.notes.push(format!("in pass {}", e.pass));
        }
        failure
    })?;
    output.warnings.iter().for_each(render::print_diagnostic);
    if args.time_passes {
        for timing in &output.timings {
            eprintln!("{:>12.3} ms  {}", timing.time.as_secs_f64() * 1e3, timing.pass);
        }
    }
    let Some(expected) = &args.expect else {
        write_result(args, &output.module, signature.as_ref())?;
        return Ok(ExitCode::SUCCESS);
    };
    let expected_module = relay::read_typed(expected)?;
    let actual_module = infer_type(&output.module).map_err(|faults| {
        let diagnostics: Vec<Diagnostic> = faults.into_iter().map(|fault| fault.diagnostic).collect();
        Failure::from(diagnostics)
    })?;
    match structural_equal(&actual_module, &expected_module) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(difference) => {
            let (actual_module, expected_module) = (text(&actual_module)?, text(&expected_module)?);
            // The time for a minimal difference is quadratic in the number of lines that differ.
            let time_left = Cancel::current().and_then(|cancel| cancel.remaining()).unwrap_or(MAX_DIFF_TIME);
            let diff = similar::TextDiff::configure()
                .timeout(time_left.min(MAX_DIFF_TIME))
                .diff_lines(&expected_module, &actual_module);
            print!("{}", diff.unified_diff().header(&expected.display().to_string(), &args.file.display().to_string()));
            let message = format!(
                "{} after the passes: expected the module in {}, found a different module",
                args.file.display(),
                expected.display()
            );
            Err(Diagnostic::error(codes::passes::NOT_EQUAL, message).note(difference.to_string()).into())
        }
    }
}

/// Writes the resulting module to the output file or to standard output. `signature` has the inputs and outputs of a model.
fn write_result(args: &OptArgs, module: &Module, signature: Option<&Signature>) -> Result<(), Failure> {
    let path = args.output.as_deref().unwrap_or(Path::new("-"));
    match signature {
        Some(signature) if models_out::is_onnx(path) || models_out::is_relay(path) => {
            models_out::write(path, module, signature, &models_out::options(args.opset, "qdq"))
        }
        None if models_out::is_relay(path) => Ok(relay::write(path, module)?),
        _ => {
            let text = text(module)?;
            Ok(output_file::write(path, |file| file.write_all(text.as_bytes()))?)
        }
    }
}

fn text(module: &Module) -> Result<String, Diagnostic> {
    let printed = print(module, &PrintOptions { metadata: true, ..PrintOptions::default() }).complete()?;
    Ok(escape::lines(&printed.text).into_owned())
}

fn pass_options(args: &OptArgs) -> Result<PassOptions, Failure> {
    let mut options = PassOptions {
        include_non_call_ops: args.include_non_call_ops,
        bind_constants: args.bind_constants,
        module_name: args.module_name.clone(),
        compiler: args.compiler.clone(),
        inline_bound_to: args.inline_bound_to.iter().map(|f| f.trim_start_matches('@').to_owned()).collect(),
        ..PassOptions::default()
    };
    for (operator, layouts) in &args.layouts {
        let (data, kernel) = match layouts.split_once(',') {
            Some((data, kernel)) => (data, Some(kernel.trim().into())),
            None => (layouts.as_str(), None),
        };
        options.layouts.push(DesiredLayout { operator: operator.as_str().into(), data: data.trim().into(), kernel });
    }
    if let Some(path) = &args.patterns {
        options.patterns = read_patterns(path)?;
    }
    for (target, operators) in &args.annotate {
        let mut rule = TargetRule { target: target.as_str().into(), operators: Vec::new() };
        for name in operators.split(',').map(str::trim).filter(|n| !n.is_empty()) {
            if op::lookup(name).is_none() {
                let message = format!("--annotate {target}: unknown operator \"{name}\"");
                let mut diagnostic = Diagnostic::error(codes::types::UNKNOWN_OPERATOR, message);
                if let Some(suggestion) = nearest(name, op::names()) {
                    diagnostic = diagnostic.help(format!("did you mean \"{suggestion}\"?"));
                }
                return Err(diagnostic.into());
            }
            rule.operators.push(name.into());
        }
        options.annotate.push(rule);
    }
    Ok(options)
}

fn read_patterns(path: &Path) -> Result<Vec<byoc_core::pattern::Entry>, Failure> {
    let text = byoc::io::read_text(path).map_err(|e| {
        Diagnostic::error(codes::frontends::UNREADABLE_MODEL, format!("cannot read {}: {e}", path.display()))
    })?;
    let patterns = parse_table(&text, Checks::Refused);
    let has_errors = patterns.has_errors();
    let add_entry_note = |diagnostic: Diagnostic| {
        let start = diagnostic.labels.first().map_or(0, |label| label.span.start as usize);
        match entry_name(&text, start) {
            "" => diagnostic,
            name => diagnostic.note(format!("in entry {name}")),
        }
    };
    let diagnostics: Vec<Diagnostic> = patterns.diagnostics.into_iter().map(add_entry_note).collect();
    let failure = Failure::from(diagnostics).in_source(&path.display().to_string(), &text);
    if has_errors {
        return Err(failure);
    }
    render::print_failure(&failure);
    Ok(patterns.entries)
}
