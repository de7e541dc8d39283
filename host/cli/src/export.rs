//! `byoc export`: writes a model as a C project that requires only a C compiler.

use super::args::{BuildArgs, ExportArgs, WeightsForm};
use super::ready::{self, Request};
use byoc::frontend::folder::TestFolder;
use byoc::io;
use byoc::runtime::error::Failure;
use byoc_export::{Extern, Options, Project, RecordedValues, Weights, project};
use byoc_ir::diag::{Diagnostic, codes};
use byoc_loops::form::Machine;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Runs `byoc export`.
pub fn run(args: &ExportArgs) -> Result<ExitCode, Failure> {
    let previous_files = previous_files(&args.c)?;
    let externs = externs(&args.externs)?;
    let machine = machine(args.build.target.as_deref())?;
    let build = BuildArgs { target: None, ..args.build.clone() };
    let mut request = Request::new(&build)?;
    (request.options.source, request.options.program) = (true, true);
    let sources = ready::input_sources(&args.model, &args.input)?;
    let build_output = request.build(&args.model, &sources)?;
    let options = Options {
        prefix: args.prefix.clone(),
        title: ready::name_of(&args.model),
        machine,
        externs,
        weights: match args.weights {
            WeightsForm::Source => Weights::Source,
            WeightsForm::File => Weights::File,
        },
        half_weights: args.half_weights,
    };
    // Rejects an unsupported model before running it. Recorded values are not needed for this.
    project(&build_output, &options, &RecordedValues::default())?;
    let signature = build_output.signature.clone();
    let output_copy = byoc::driver::BuildOutput { compiled: build_output.compiled.clone(), ..build_output };
    let (model, _) = request.load(output_copy.compiled.clone())?;
    let inputs = sources.resolve(&model, Some(0))?;
    let outputs = match recorded_outputs(args, &signature)? {
        Some(outputs) => outputs,
        None => model.run(&inputs)?,
    };
    let project = project(&output_copy, &options, &RecordedValues { inputs, outputs })?;
    write(&args.c, &project, &previous_files)?;
    println!(
        "{}: {} files, {} bytes of constants, {} bytes of arena, {} multiply-adds",
        args.c.display(),
        project.files.len(),
        project.weights,
        project.arena,
        project.macs
    );
    Ok(ExitCode::SUCCESS)
}

/// Parses the values of `--extern`.
fn externs(texts: &[String]) -> Result<Vec<Extern>, Failure> {
    let mut externs: Vec<Extern> = Vec::new();
    for text in texts {
        let extern_symbol: Extern =
            text.parse().map_err(|reason| Failure::new(codes::frontends::NOT_EXPORTABLE, reason))?;
        if byoc_ir::op::lookup(&extern_symbol.operator).is_none() {
            let message = format!("--extern: unknown operator \"{}\"", extern_symbol.operator);
            let mut diagnostic = Diagnostic::error(codes::frontends::NOT_EXPORTABLE, message);
            if let Some(suggestion) = byoc_ir::diag::nearest(&extern_symbol.operator, byoc_ir::op::names()) {
                diagnostic = diagnostic.help(format!("did you mean \"{suggestion}\"?"));
            }
            return Err(diagnostic.into());
        }
        externs.push(extern_symbol);
    }
    Ok(externs)
}

fn machine(target: Option<&str>) -> Result<Machine, Failure> {
    let target_names = Machine::TARGETS.iter().map(|entry| entry.0);
    let name = target.unwrap_or("generic");
    Machine::of_target(name).ok_or_else(|| {
        let message =
            format!("--target: expected one of {}, found {name}", target_names.collect::<Vec<_>>().join(", "));
        Failure::new(codes::frontends::NOT_EXPORTABLE, message)
    })
}

/// Returns the recorded outputs of the first data set of a test-data directory; `None` for a model file, or if the user
/// supplies inputs.
fn recorded_outputs(
    args: &ExportArgs,
    signature: &byoc::frontend::Signature,
) -> Result<Option<Vec<byoc_ir::tensor::Tensor>>, Failure> {
    if !args.model.is_dir() || !args.input.inputs.is_empty() || args.input.image.is_some() {
        return Ok(None);
    }
    let dir = TestFolder::open(&args.model)?;
    Ok(dir.sets.first().map(|set| set.read_outputs(&signature.outputs)).transpose()?)
}

/// Returns the files of an earlier export in the directory.
///
/// # Errors
/// E0513 if the directory cannot be read, or is neither empty nor an earlier export.
fn previous_files(dir: &Path) -> Result<Vec<PathBuf>, Failure> {
    let refuse = |message: String| {
        Failure::from(
            Diagnostic::error(codes::frontends::CANNOT_WRITE, format!("{}: {message}", dir.display()))
                .help("pass a new or empty directory, or the directory of an earlier export"),
        )
    };
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(refuse(error.to_string())),
    };
    if entries.count() == 0 {
        return Ok(Vec::new());
    }
    let metadata = io::read_text(&dir.join("model.json")).ok();
    let metadata: Option<Value> = metadata.and_then(|text| serde_json::from_str(&text).ok());
    let is_export = |json: &&Value| json["producer"].as_str().is_some_and(|name| name.starts_with("byoc "));
    let files = metadata.as_ref().filter(is_export).and_then(|json| json["files"].as_array());
    let files = files.ok_or_else(|| refuse("expected an empty directory or an export, found other files".into()))?;
    let is_plain_name = |name: &str| !name.contains(['/', '\\']) && name != ".." && name != ".";
    Ok(files.iter().filter_map(Value::as_str).filter(|name| is_plain_name(name)).map(|name| dir.join(name)).collect())
}

/// Writes either all files of a project or none, then removes the stale files of an earlier export.
fn write(dir: &Path, project: &Project, old_files: &[PathBuf]) -> Result<(), Failure> {
    let is_new = !dir.exists();
    let write_error = |error: std::io::Error| {
        Failure::new(codes::frontends::CANNOT_WRITE, format!("cannot write {}: {error}", dir.display()))
    };
    if is_new {
        std::fs::create_dir_all(dir).map_err(write_error)?;
    }
    let paths: Vec<PathBuf> = project.files.iter().map(|(name, _)| dir.join(name)).collect();
    let files: Vec<(&Path, &[u8])> =
        paths.iter().zip(&project.files).map(|(path, (_, text))| (path.as_path(), text.as_slice())).collect();
    if let Err(error) = io::write_together(&files) {
        if is_new {
            let _ = std::fs::remove_dir(dir);
        }
        return Err(error.into());
    }
    for stale in old_files.iter().filter(|stale| !paths.contains(stale)) {
        std::fs::remove_file(stale).map_err(write_error)?;
    }
    Ok(())
}
