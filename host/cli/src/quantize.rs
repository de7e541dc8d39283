//! `byoc quantize`: quantizes a float model to int8.

use super::args::QuantizeArgs;
use super::{escape, models_out, output_file, ready, render, table};
use byoc::driver::backend::Backend;
use byoc::io::image;
use byoc::runtime::error::Failure;
use byoc::runtime::session::Session;
use byoc_ir::diag::{Diagnostic, codes};
use byoc_ir::tensor::DType;
use byoc_ir::text::{PrintOptions, print};
use byoc_quantize::report::{Report, Row};
use byoc_quantize::scheme::Scheme;
use byoc_quantize::source::Source;
use byoc_quantize::{Keep, Options, labels, quantize};
use std::io::Write;
use std::process::ExitCode;

/// Quantizes a float model to int8 and writes the result.
pub fn run(args: &QuantizeArgs) -> Result<ExitCode, Failure> {
    let to_stdout = output_file::is_stdout(&args.output);
    if !to_stdout && !models_out::is_onnx(&args.output) && !models_out::is_relay(&args.output) {
        let message = format!("expected a .onnx or .relay file for the output, found {}", args.output.display());
        return Err(Diagnostic::error(codes::frontends::CANNOT_WRITE, message)
            .help("pass -o FILE.onnx, or -o FILE.relay, whose weights are written to FILE.relay.safetensors")
            .into());
    }
    output_file::check([args.output.as_path()])?;
    if ready::is_artifact(&args.model) {
        let message = format!("expected a model, found the compiled artifact {}", args.model.display());
        return Err(Failure::new(codes::plugins::BACKEND_MISPLACED, message));
    }
    crate::log::log_to_stderr(args.diagnostics.verbose);
    let session = Session::new(&args.plugins.plugin_dirs, args.threads.map_or(0, usize::from))?;
    let normalization = image::Normalization { mean: args.mean.clone(), std: args.std.clone() };
    let options = Options {
        scheme: scheme(args, &session)?,
        method: args.method,
        keep: parse_keep(&args.keep)?,
        max_loss: args.max_loss,
        labels: args.labels.as_deref().map(labels::read).transpose()?,
        samples: args.samples.map(|n| n as usize),
        dims: args.dims.iter().cloned().collect(),
    };
    let spinner = ready::spinner(format!("quantizing {}", ready::name_of(&args.model)));
    let progress = |stage: &str| {
        spinner.set_message(format!(
            "quantizing {}: {}",
            escape::line(&ready::name_of(&args.model)),
            escape::line(stage)
        ));
    };
    let source = Source::parse(&args.calibrate, normalization);
    let result = quantize(&args.model, &source, &options, &session.pool, &progress)?;
    spinner.finish_and_clear();
    result.warnings.iter().for_each(render::print_diagnostic);
    if to_stdout {
        // Standard output has no accompanying file, so the weights are written into the text.
        let text = print(&result.module, &PrintOptions { metadata: true, ..PrintOptions::default() }).complete()?.text;
        output_file::write(&args.output, |file| file.write_all(text.as_bytes()))?;
    } else {
        let options = models_out::options(None, "qdq");
        models_out::write(&args.output, &result.module, &result.signature, &options)?;
    }
    if args.diagnostics.json {
        result.report.rows.iter().for_each(|row| println!("{}", row.to_json()));
        println!("{}", result.report.summary());
    } else {
        print_report(&result.report);
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the scheme named by `--scheme`, or the scheme of the first backend that declares one.
fn scheme(args: &QuantizeArgs, session: &Session) -> Result<Scheme, Failure> {
    let mut backends = Vec::new();
    for name in &args.backend {
        backends.push(Backend::find(&session.registry, name)?);
    }
    backends.iter().flat_map(|backend| &backend.warnings).for_each(render::print_diagnostic);
    if let Some(text) = &args.scheme {
        return Ok(Scheme::parse(text)?);
    }
    if backends.is_empty() {
        // Other runtimes have their fastest kernels for uint8 activations.
        let other = Scheme { activation: DType::U8, symmetric: false, ..Scheme::SYMMETRIC };
        return Ok(if models_out::is_onnx(&args.output) { other } else { Scheme::SYMMETRIC });
    }
    let backend_scheme = backends.iter().find_map(|b| Some((b.name.as_str(), b.description.quantization.as_ref()?)));
    let Some((name, backend_scheme)) = backend_scheme else {
        let names: Vec<&str> = backends.iter().map(|b| b.name.as_str()).collect();
        let message = format!("no quantization scheme declared by {}", names.join(", "));
        return Err(Diagnostic::error(codes::plugins::NO_SCHEME, message)
            .help("set a scheme, for example with --scheme symmetric")
            .into());
    };
    Ok(Scheme::declared(name, backend_scheme)?)
}

/// Parses the layers that stay in float: names, `first`, `none`.
fn parse_keep(arguments: &[String]) -> Result<Keep, Failure> {
    if arguments.is_empty() {
        return Ok(Keep::default());
    }
    let keeps_none = arguments.iter().any(|name| name == "none");
    if keeps_none && arguments.len() > 1 {
        let message = format!("--keep: expected \"none\" alone, found {}", arguments.join(", "));
        return Err(Diagnostic::error(codes::passes::UNKNOWN_LAYER, message)
            .help("remove \"none\": the first convolution stays in float only if \"first\" is listed")
            .into());
    }
    let names = arguments.iter().filter(|name| !["none", "first"].contains(&name.as_str())).cloned().collect();
    Ok(Keep { first: arguments.iter().any(|name| name == "first"), names })
}

fn print_report(report: &Report) {
    let mut table = table::new(&["layer", "operator", "as", "range", "scale", "zero", "weight scale", "dB"]);
    for row in &report.rows {
        table.add_row(cells(row));
    }
    table::print(&table);
    let accuracy = &report.accuracy;
    println!("{} of {} layers in int8 ({}, {})", report.quantized, report.layers, report.scheme, report.method);
    if let Some((float, output)) = accuracy.correct {
        let samples = accuracy.samples;
        let percent = |n: usize| 100.0 * n as f64 / samples.max(1) as f64;
        println!(
            "correct predictions: {float} of {samples} before ({:.2} %), {output} after ({:.2} %)",
            percent(float),
            percent(output)
        );
    }
    if let Some(cosine) = accuracy.cosine {
        println!("cosine of the mean-centered outputs over {} samples: {cosine:.5}", accuracy.samples);
    }
}

fn cells(row: &Row) -> [String; 8] {
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    [
        row.layer.clone(),
        row.operator.to_owned(),
        row.kept.as_ref().map_or_else(|| "int8".to_owned(), |reason| format!("float: {reason}")),
        or_dash(row.range.map(|r| format!("[{:.4}, {:.4}]", r.lo, r.hi))),
        or_dash(row.output.map(|p| format!("{:.3e}", p.scale))),
        or_dash(row.output.map(|p| p.zero_point.to_string())),
        or_dash(row.weight_scale.map(|(min, max)| format!("{min:.2e} to {max:.2e}"))),
        or_dash(row.signal_to_noise.map(|noise| format!("{noise:.1}"))),
    ]
}
