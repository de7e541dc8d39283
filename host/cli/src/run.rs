//! `byoc run`: compiles a model if needed, runs it and prints its outputs.

use super::args::RunArgs;
use super::interrupt::cancel_on_interrupt;
use super::ready::{self, Request};
use super::{escape, output_file, table};
use byoc::io;
use byoc::runtime::error::Failure;
use byoc::runtime::exec::program::Port;
use byoc::runtime::summary::MAX_SHOWN_VALUES;
use byoc::runtime::value::{self, PortValue};
use byoc::trace::Trace;
use byoc_ir::diag::{Diagnostic, codes};
use byoc_ir::interface::PortKind;
use byoc_ir::ir::Type;
use byoc_ir::tensor::Tensor;
use byoc_ir::tensor::memory::{self, Charge};
use byoc_plugin_api::host::entries;
use serde_json::json;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Runs a model, which is compiled if needed, and prints its outputs.
pub fn run(args: &RunArgs) -> Result<ExitCode, Failure> {
    output_file::check([&args.output, &args.trace].into_iter().flatten().map(PathBuf::as_path))?;
    let labels = args.labels.as_deref().map(read_labels).transpose()?;
    if args.describe {
        return print_signature(args);
    }
    let mut request = Request::new(&args.build)?;
    let model_run = request.prepare(&args.model, &args.input)?;
    let session = &request.session;
    let outputs = value::by_value(model_run.model.outputs()).count();
    if let Some(path) = args.output.as_deref().filter(|path| is_npy(path) && outputs != 1) {
        let message = format!("{}: expected one output for a .npy file, found {outputs}", path.display());
        return Err(Diagnostic::error(codes::frontends::CANNOT_WRITE, message).help("pass --output FILE.npz").into());
    }
    let inputs = model_run.inputs.resolve(&model_run.model, None)?;
    let trace = Trace::new(args.trace.is_some());
    if args.trace.is_some() {
        session.metrics.record();
    }
    let _interruptible = cancel_on_interrupt(&session.cancel);
    let outputs = if trace.is_enabled() {
        model_run.model.run_observed(&inputs, &trace)?
    } else {
        model_run.model.run(&inputs)?
    };
    entries::restore_process();
    if let Some(path) = &args.trace {
        trace.add_plugin_events(&session.metrics.take_recorded());
        output_file::write(path, |file| trace.write_to(file))?;
    }
    let names = value::by_value(model_run.model.outputs()).map(|ports| ports[0].name.as_str());
    let named_outputs: Vec<(&str, PortValue)> = names.zip(value::values(model_run.model.outputs(), outputs)?).collect();
    if let Some(path) = &args.output {
        let arrays = named_outputs.iter().flat_map(|(name, value)| value.arrays(name));
        match &named_outputs[..] {
            [(_, PortValue::Tensor(_) | PortValue::Strings(_))] if is_npy(path) => {
                output_file::write(path, |file| {
                    arrays.map(|(_, bytes)| bytes).try_for_each(|bytes| file.write_all(&bytes))
                })?;
            }
            _ => output_file::write(path, |file| io::npz::write_encoded(file, arrays))?,
        }
    }
    for (name, value) in &named_outputs {
        match (&labels, value) {
            (Some((labels, _)), PortValue::Tensor(tensor)) => {
                print_top_classes(name, tensor, labels, args.build.diagnostics.json)?;
            }
            _ => print_summaries(&value.summaries(name), args.build.diagnostics.json),
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Tests for an .npy file, which contains a single array; all other output files contain named arrays.
fn is_npy(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "npy")
}

fn print_signature(args: &RunArgs) -> Result<ExitCode, Failure> {
    let mut rows: Vec<(&str, String, String)> = Vec::new();
    if ready::is_artifact(&args.model) {
        let compiled = byoc::runtime::artifact::open(&args.model)?.into_compiled();
        let value = |kind, ports: &[Port]| (kind, ports[0].name.clone(), value::type_text(ports));
        rows.extend(value::by_value(&compiled.program.inputs).map(|ports| value("input", ports)));
        rows.extend(value::by_value(&compiled.program.outputs).map(|ports| value("output", ports)));
    } else {
        let signature = byoc::frontend::signature(&args.model)?;
        let ports = |kind, ports: &[byoc::frontend::PortInfo]| -> Vec<_> {
            let all: Vec<Port> = ports.iter().map(Port::declared).collect();
            let text = |ports: &[Port], info: &byoc::frontend::PortInfo| match &info.dims {
                None => info.type_text(),
                Some(_) => value::type_text(ports),
            };
            let infos = ports.iter().filter(|p| p.kind != PortKind::Part);
            value::by_value(&all).zip(infos).map(|(p, info)| (kind, info.name.clone(), text(p, info))).collect()
        };
        rows.extend(ports("input", &signature.inputs));
        rows.extend(ports("output", &signature.outputs));
    }
    if args.build.diagnostics.json {
        for (kind, name, ty) in rows {
            println!("{}", json!({"kind": kind, "name": name, "type": ty}));
        }
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = table::new(&["", "name", "type"]);
    for (kind, name, ty) in rows {
        table.add_row([kind.to_owned(), name, ty]);
    }
    table::print(&table);
    Ok(ExitCode::SUCCESS)
}

/// Labels, and the charge for their memory.
type Labels = (Vec<String>, Charge);

fn read_labels(path: &Path) -> Result<Labels, Failure> {
    let text = io::read_text(path).map_err(|e| {
        Diagnostic::error(codes::frontends::BAD_TENSOR_FILE, format!("cannot read {}: {e}", path.display()))
    })?;
    // Each label is a string with an allocation of its own.
    const BYTES_PER_LABEL: usize = 2 * size_of::<String>();
    let line_breaks = text.bytes().filter(|byte| *byte == b'\n').count();
    let charge = memory::reserve(text.len() + line_breaks * BYTES_PER_LABEL).map_err(Diagnostic::from)?;
    let labels = text.lines().map(|l| l.trim().to_owned()).filter(|l| !l.is_empty()).collect();
    Ok((labels, charge))
}

/// Prints the most probable classes of each row. An output that does not consist of probabilities is treated as logits.
fn print_top_classes(name: &str, tensor: &Tensor, labels: &[String], is_json: bool) -> Result<(), Failure> {
    let classes = tensor.shape().last().copied().unwrap_or(1);
    if classes != labels.len() || !tensor.dtype().is_float() {
        let ty = Type::tensor(tensor.dtype(), tensor.shape());
        let message = format!(
            "expected a float output with {} classes, one per label, found \"{name}\" of type {ty}",
            labels.len()
        );
        return Err(Failure::new(codes::runtime::BAD_LABELS, message));
    }
    let mut values = tensor.view().f64s();
    for row in 0..tensor.len() / classes.max(1) {
        let values: Vec<f64> = values.by_ref().take(classes).collect();
        let probabilities = probabilities(&values);
        let mut order: Vec<usize> = (0..classes).collect();
        order.sort_by(|&a, &b| probabilities[b].total_cmp(&probabilities[a]));
        order.truncate(MAX_SHOWN_VALUES);
        if is_json {
            let top: Vec<_> =
                order.iter().map(|&c| json!({"label": labels[c], "probability": probabilities[c]})).collect();
            println!("{}", json!({"output": name, "row": row, "top": top}));
            continue;
        }
        println!("{}[{row}]", escape::line(name));
        for (rank, &class) in order.iter().enumerate() {
            println!("  {}  {:<20} {:6.2} %", rank + 1, escape::line(&labels[class]), 100.0 * probabilities[class]);
        }
    }
    Ok(())
}

fn probabilities(values: &[f64]) -> Vec<f64> {
    let sum: f64 = values.iter().sum();
    if values.iter().all(|v| *v >= 0.0) && (sum - 1.0).abs() < 1e-3 {
        return values.to_vec();
    }
    let max = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let powers: Vec<f64> = values.iter().map(|v| (v - max).exp()).collect();
    let sum: f64 = powers.iter().sum();
    powers.iter().map(|p| p / sum).collect()
}

/// Prints the type and the first elements of an output.
fn print_summaries(summaries: &[(String, serde_json::Value)], is_json: bool) {
    for (line, json) in summaries {
        if is_json {
            println!("{json}");
        } else {
            println!("{line}");
        }
    }
}
