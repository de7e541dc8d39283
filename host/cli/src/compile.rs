//! `byoc compile`: builds an artifact, or prints a stage of the compilation.

use super::args::{BuildArgs, CompileArgs, DimChoice, SourceArgs, SourceStage, Stage};
use super::inspect::blob_constant_size;
use super::ready::{self, Request};
use super::{escape, models_out, output_file, render};
use byoc::driver::explanation::Totals;
use byoc::driver::written::{ModelStage, at_stage};
use byoc::driver::{Compiled, CompiledRegion, export};
use byoc::frontend::LoadOptions;
use byoc::runtime::artifact;
use byoc::runtime::error::Failure;
use byoc_ir::diag::{Diagnostic, codes, nearest, plural};
use byoc_ir::ir::Module;
use byoc_ir::text::{PrintOptions, print};
use clap::ValueEnum;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::ExitCode;

/// Runs `byoc compile`.
pub fn run(args: &CompileArgs) -> Result<ExitCode, Failure> {
    check_output(args)?;
    if let Some(path) = &args.output {
        output_file::check([path.as_path()])?;
    }
    if args.emit == Some(Stage::Onnx) {
        return emit_onnx(args);
    }
    let mut request = Request::new(&args.build)?;
    request.options.source = args.emit == Some(Stage::Source);
    request.keeps_optional = true;
    let build_output = request.build(&args.model, &ready::recorded_alone(&args.model)?)?;
    match args.emit {
        Some(Stage::Relay) => match &args.output {
            Some(path) if !output_file::is_stdout(path) => {
                let options = models_out::options(None, &args.form);
                models_out::write(path, &build_output.simplified, &build_output.signature, &options)?;
                return Ok(ExitCode::SUCCESS);
            }
            _ => print_module(&build_output.simplified)?,
        },
        Some(Stage::Partitioned) => print_module(&build_output.partitioned)?,
        Some(Stage::GraphJson) => println!("{:#}", export::graph_json(&build_output.partitioned)?),
        Some(Stage::RegionJson) => {
            export::region_json(&build_output.partitioned)?.iter().for_each(|g| println!("{g:#}"))
        }
        Some(Stage::Source) => print_source(&build_output.compiled, None, None)?,
        Some(Stage::Onnx) | None => {}
    }
    if let Some(path) = args.output.as_ref().filter(|_| args.emit.is_none()) {
        let totals = &build_output.explanation.totals;
        let mut size = 0;
        let to_stdout = output_file::is_stdout(path);
        if to_stdout {
            output_file::write(path, |file| {
                artifact::write_to(file, &build_output.compiled)?;
                size = file.metadata()?.len();
                Ok(())
            })?;
        } else {
            artifact::write(path, &build_output.compiled)?;
            size = std::fs::metadata(path).map_or(0, |m| m.len());
        }
        eprintln!(
            "wrote {} ({:.1} KiB): {}",
            if to_stdout { "standard output".into() } else { path.display().to_string() },
            size as f64 / 1024.0,
            summary(totals)
        );
        for (variant, totals) in build_output.compiled.variants.iter().zip(&build_output.variant_totals) {
            let dims: Vec<String> = variant.dims.iter().map(|(name, size)| format!("{name}={size}")).collect();
            eprintln!("  {}: {}", escape::line(&dims.join(", ")), summary(totals));
        }
        report_packed_constants(&build_output.compiled);
    }
    Ok(ExitCode::SUCCESS)
}

/// Checks that the name of the output fits what is written to it.
fn check_output(args: &CompileArgs) -> Result<(), Diagnostic> {
    let Some(path) = args.output.as_deref().filter(|path| !output_file::is_stdout(path)) else { return Ok(()) };
    let (model, found) = (args.model.display(), path.display());
    let (expected, help) = match args.emit {
        Some(Stage::Onnx) if !models_out::is_onnx(path) => ("a .onnx file", "pass -o FILE.onnx".to_owned()),
        Some(Stage::Relay) if !models_out::is_relay(path) => ("a .relay file", "pass -o FILE.relay".to_owned()),
        None if models_out::is_onnx(path) => {
            ("a file for an artifact", format!("write the model as ONNX: byoc compile {model} --emit onnx -o {found}"))
        }
        None if models_out::is_relay(path) => {
            ("a file for an artifact", format!("write the model as Relay text: byoc opt {model} -o {found}"))
        }
        Some(Stage::Partitioned | Stage::GraphJson | Stage::RegionJson | Stage::Source) => {
            ("no output file for a stage that is printed", "remove -o".to_owned())
        }
        _ => return Ok(()),
    };
    Err(Diagnostic::error(codes::frontends::CANNOT_WRITE, format!("expected {expected}, found {found}")).help(help))
}

/// Writes the model at a stage as ONNX.
fn emit_onnx(args: &CompileArgs) -> Result<ExitCode, Failure> {
    let Some(path) = &args.output else {
        let message = "expected a file for the ONNX model, found none";
        return Err(Diagnostic::error(codes::frontends::CANNOT_WRITE, message).help("pass -o FILE.onnx").into());
    };
    let options = models_out::options(args.opset, &args.form);
    let stage = args.stage.as_deref().unwrap_or("simplified");
    let Some(stage) = ModelStage::parse(stage) else {
        let output = Request::new(&args.build)?.build(&args.model, &ready::recorded_alone(&args.model)?)?;
        models_out::write(path, &output.partitioned, &output.signature, &options)?;
        return Ok(ExitCode::SUCCESS);
    };
    crate::log::log_to_stderr(args.build.diagnostics.verbose);
    let mut load = LoadOptions::default();
    for (name, choice) in &args.build.dims {
        match choice {
            DimChoice::Fixed(size) => drop(load.dims.insert(name.clone(), *size)),
            DimChoice::Open(_) => drop(load.open.insert(name.clone())),
        }
    }
    let model = at_stage(models_out::read(&args.model, load)?, stage)?;
    model.warnings.iter().for_each(render::print_diagnostic);
    models_out::write(path, &model.module, &model.signature, &options)?;
    Ok(ExitCode::SUCCESS)
}

/// Describes the regions of a program: their number and their share of its FLOPs.
fn summary(totals: &Totals) -> String {
    format!("{} with {:.1} % of the FLOPs", plural(totals.regions, "region"), 100.0 * totals.offload_share)
}

/// Warns if an artifact cannot run without its plugins because some constants are stored only in blobs, in packed form.
fn report_packed_constants(compiled: &Compiled) {
    let constants = compiled.only_in_blobs();
    if constants.is_empty() {
        return;
    }
    let lacks_fallback = |region: &&CompiledRegion| !region.has_fallback();
    let backends: BTreeSet<&str> =
        compiled.regions.iter().flatten().filter(lacks_fallback).map(|region| &*region.backend).collect();
    let backends: Vec<&str> = backends.into_iter().collect();
    let (count, bytes) = blob_constant_size(compiled, &constants);
    let constants = plural(count, "constant");
    let message = format!("{constants} ({bytes} bytes) stored only in the blobs of {}", backends.join(", "));
    let warning = Diagnostic::warning(codes::artifacts::CONSTANTS_IN_BLOB, message);
    render::print_diagnostic(
        &warning.note("the artifact cannot run without these plugins, as the host lacks the constants"),
    );
}

fn print_module(module: &Module) -> Result<(), Failure> {
    print!("{}", escape::lines(&print(module, &PrintOptions::default()).complete()?.text));
    Ok(())
}

/// Runs `byoc source`.
pub fn run_source(args: &SourceArgs) -> Result<ExitCode, Failure> {
    let stage = args.stage.to_possible_value().map(|value| value.get_name().to_owned());
    let stage = stage.filter(|_| args.stage != SourceStage::Text);
    if let (Some(stage), true) = (&stage, ready::is_artifact(&args.model)) {
        let message = format!("stage {stage}: expected a model, found an artifact, which holds generated code alone");
        let diagnostic = Diagnostic::error(codes::plugins::TOOK_NOTHING, message);
        return Err(diagnostic.help("name the model that the artifact was compiled from").into());
    }
    let compiled = compile_or_open(&args.model, &args.build, stage.clone())?;
    print_source(&compiled, args.symbol.as_deref(), stage.as_deref())?;
    Ok(ExitCode::SUCCESS)
}

fn compile_or_open(model: &Path, build: &BuildArgs, stage: Option<String>) -> Result<Compiled, Failure> {
    if ready::is_artifact(model) {
        return Ok(artifact::open(model)?.into_compiled());
    }
    let mut request = Request::new(build)?;
    (request.options.source, request.options.stage) = (true, stage);
    Ok(request.build(model, &ready::recorded_alone(model)?)?.compiled)
}

/// Prints the source of the region `symbol`, or of all regions, or a stage before it. Regions without it are reported on
/// standard error.
fn print_source(compiled: &Compiled, symbol: Option<&str>, stage: Option<&str>) -> Result<(), Failure> {
    let regions: Vec<_> = compiled.regions.iter().flatten().collect();
    let selected_regions: Vec<_> = regions.iter().filter(|r| symbol.is_none_or(|s| s == r.symbol)).collect();
    if let (Some(symbol), true) = (symbol, selected_regions.is_empty()) {
        let names: Vec<&str> = regions.iter().map(|r| r.symbol.as_str()).collect();
        let message = format!("unknown region \"{symbol}\"");
        let mut diagnostic =
            Diagnostic::error(codes::plugins::MISSING_SYMBOL, message).note(format!("regions: {}", names.join(", ")));
        if let Some(suggestion) = nearest(symbol, names) {
            diagnostic = diagnostic.help(format!("did you mean \"{suggestion}\"?"));
        }
        return Err(diagnostic.into());
    }
    if selected_regions.is_empty() {
        return Err(Diagnostic::error(codes::plugins::TOOK_NOTHING, "no generated code: the model has no regions")
            .help(
                "select a backend with --backend, run \"byoc explain\" to list the reasons for each refusal, or write the \
                 whole model as a C program with \"byoc export MODEL --c DIR\"",
            )
            .into());
    }
    for region in selected_regions {
        let source = region.source.as_ref().filter(|source| stage.is_none_or(|stage| source.language == stage));
        match source {
            Some(source) => print!("{}", escape::lines(&source.text)),
            None => {
                let (symbol, backend) = (escape::line(&region.symbol), escape::line(&region.backend));
                let missing = stage.map_or("source".to_owned(), |stage| format!("stage \"{stage}\""));
                eprintln!("region {symbol} of {backend}: the backend provides no {missing}");
            }
        }
    }
    Ok(())
}
