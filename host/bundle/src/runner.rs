//! Execution of the model in a bundle. Regions are opened in place; the outputs are the only files written.

use crate::contents;
use crate::options::Options;
use crate::verify::Bundle;
use byoc_files::npy::{self, ReadError};
use byoc_files::{bad_file, npz, write_atomically};
use byoc_ir::diag::{Diagnostic, codes};
use byoc_ir::escape;
use byoc_ir::interface::PortKind;
use byoc_ir::tensor::{Tensor, random};
use byoc_runtime::exec::check_type;
use byoc_runtime::exec::program::Port;
use byoc_runtime::invocation::{self, Invocation};
use byoc_runtime::value::{self, PortValue};
use byoc_runtime::{Failure, Model, Session, artifact, limits};
use serde_json::json;
use std::io::{Cursor, Read, Write};
use std::path::{Path, PathBuf};

/// Value of `--input` and `--output` for the standard streams.
const STREAM: &str = "-";

/// Runs, checks or describes the model. `warn` receives each warning.
///
/// # Errors
/// If the bundle is corrupt, an input is unsuitable, the run fails, or an output cannot be written.
pub fn run(options: &Options, stdout: &mut dyn Write, warn: &mut dyn FnMut(&Diagnostic)) -> Result<(), Failure> {
    let root = root(options)?;
    invocation::set(Invocation { command: Vec::new(), arguments: Vec::new(), directory: root.clone() });
    let bundle = Bundle::open(&root)?;
    let mut compiled = artifact::open(&bundle.file(contents::MODEL)?)?.into_compiled();
    if options.describe {
        let ports = [("input", &compiled.program.inputs), ("output", &compiled.program.outputs)];
        return describe(&ports, options.json, stdout);
    }
    for (region, file) in compiled.all_regions_mut().zip(&bundle.description.regions) {
        region.library = file.as_ref().map(|file| bundle.file(file)).transpose()?;
    }
    if let Some(bytes) = options.max_memory {
        limits::set_max_memory(bytes);
    }
    let session = Session::builder().threads(options.threads).plugin_dir(root.join(contents::PLUGINS)).build()?;
    let (model, warnings) = Model::load(&session, compiled, None)?;
    warnings.iter().for_each(&mut *warn);
    if options.check {
        if let Some(warning) = warnings.first() {
            return Err(warning.clone().into());
        }
        let files = &bundle.description;
        let (regions, libraries) = (model.regions, files.libraries.len());
        return print(
            stdout,
            &format!("every file matches its digest; regions loaded: {regions}, libraries: {libraries}\n"),
        );
    }
    let outputs = model.run(&inputs(&model, &options.inputs)?)?;
    let names = value::by_value(model.outputs()).map(|ports| ports[0].name.as_str());
    let named_outputs: Vec<(&str, PortValue)> = names.zip(value::values(model.outputs(), outputs)?).collect();
    if let Some(path) = &options.output {
        write_outputs(path, &named_outputs, stdout)?;
        if path == Path::new(STREAM) {
            return Ok(());
        }
    }
    for (line, json) in named_outputs.iter().flat_map(|(name, value)| value.summaries(name)) {
        let line = if options.json { json.to_string() } else { line };
        print(stdout, &(line + "\n"))?;
    }
    Ok(())
}

/// Returns the directory of the bundle: the value of `--bundle`, or the parent of the directory with the runner.
fn root(options: &Options) -> Result<PathBuf, Diagnostic> {
    if let Some(path) = &options.bundle {
        return Ok(path.clone());
    }
    // When the bundle's dynamic loader starts the runner, the process executable is the dynamic loader, and the first
    // argument is the path of the runner. A bare name results from a `PATH` search, so only the executable path is
    // known.
    let command = std::env::args_os().next().map(PathBuf::from).filter(|path| path.components().count() > 1);
    let program = command.and_then(|path| std::path::absolute(path).ok()).or_else(|| std::env::current_exe().ok());
    let root = program.as_deref().and_then(Path::parent).and_then(Path::parent).map(Path::to_owned);
    root.ok_or_else(|| {
        Diagnostic::error(codes::artifacts::NOT_A_BUNDLE, "cannot determine the directory of this program")
            .help("pass the bundle directory with --bundle, or start the script DIR/run of the bundle")
    })
}

fn describe(ports: &[(&str, &Vec<Port>)], is_json: bool, stdout: &mut dyn Write) -> Result<(), Failure> {
    for (kind, ports) in ports {
        for ports in value::by_value(ports) {
            let (port, ty) = (&ports[0], value::type_text(ports));
            let line = match is_json {
                true => json!({"kind": kind, "name": port.name, "type": ty}).to_string(),
                false => format!("{kind:6}  {}  {ty}", escape::line(&port.name)),
            };
            print(stdout, &(line + "\n"))?;
        }
    }
    Ok(())
}

/// Returns the input tensors in the order of the model.
fn inputs(model: &Model, arguments: &[(String, String)]) -> Result<Vec<Tensor>, Failure> {
    let mut tensors = Vec::with_capacity(arguments.len());
    for (name, value) in arguments {
        // `bind` reports an unknown name together with the names of the model's inputs.
        let port =
            model.inputs().iter().chain(model.optional_inputs()).enumerate().find(|(_, port)| port.name == *name);
        match port {
            Some((_, port)) if port.kind == PortKind::Strings => {
                let [spans, bytes] = strings(port, value)?;
                tensors.extend([(name.clone(), spans), (format!("{name}.bytes"), bytes)]);
            }
            Some((index, port)) => tensors.push((name.clone(), input(port, index, value)?)),
            None => tensors.push((name.clone(), Tensor::scalar(0.0f32))),
        }
    }
    Ok(model.bind(tensors)?)
}

/// Reads the spans and the bytes of an input of strings from a file.
fn strings(port: &Port, value: &str) -> Result<[Tensor; 2], Diagnostic> {
    let path = Path::new(value);
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("npy") => npy::read_strings(path),
        Some("npz") => npz::read_strings(path, Some(&port.name)),
        _ => Err(bad_file(path, format!("expected a .npy or .npz file of strings, found {value:?}"))),
    }
}

fn input(port: &Port, index: usize, value: &str) -> Result<Tensor, Diagnostic> {
    let input_types = || {
        port.ty.shape().ok_or_else(|| {
            let message = format!("input \"{}\": expected a type with known dimensions, found {}", port.name, port.ty);
            let help = format!("pass a file: --input {}=FILE.npy", port.name);
            Diagnostic::error(codes::runtime::INPUT_SHAPE, message).help(help)
        })
    };
    let (kind, seed) = value.split_once(':').map_or((value, Ok(0)), |(kind, seed)| (kind, seed.parse::<u64>()));
    match (kind, seed) {
        ("random", Ok(seed)) => Ok(random::try_tensor(port.ty.dtype, &input_types()?, seed ^ index as u64)?),
        ("ones", Ok(0)) => Ok(random::filled(port.ty.dtype, &input_types()?, 1.0)?),
        ("zeros", Ok(0)) => Ok(random::filled(port.ty.dtype, &input_types()?, 0.0)?),
        (STREAM, _) => {
            let mut stream = std::io::stdin().lock();
            read_stream(port, &mut stream).map_err(|error| error.of(Path::new("standard input")))
        }
        _ => {
            let path = Path::new(value);
            match path.extension().and_then(|extension| extension.to_str()) {
                Some("npy") => npy::read(path),
                Some("npz") => npz::read_entry(path, Some(&port.name)),
                _ => Err(bad_file(
                    path,
                    format!("expected a .npy or .npz file, -, random, ones or zeros, found {value:?}"),
                )),
            }
        }
    }
}

/// Reads a tensor for an input from a stream. The type is checked before the elements are read.
fn read_stream(port: &Port, stream: &mut impl Read) -> Result<Tensor, ReadError> {
    let header = npy::Header::read(stream).map_err(ReadError::File)?;
    check_type(port, header.dtype, &header.shape).map_err(|error| ReadError::File(error.message))?;
    let size = header.size().map_err(ReadError::File)?;
    header.read_elements(stream, size as u64)
}

fn write_outputs(path: &Path, named_outputs: &[(&str, PortValue)], stdout: &mut dyn Write) -> Result<(), Failure> {
    let is_npy = path.extension().is_some_and(|extension| extension == "npy");
    let mut arrays: Vec<(String, Vec<u8>)> =
        named_outputs.iter().flat_map(|(name, value)| value.arrays(name)).collect();
    if path == Path::new(STREAM) {
        let bytes = match &mut arrays[..] {
            [(_, bytes)] => std::mem::take(bytes),
            _ => {
                let mut bytes = Cursor::new(Vec::new());
                npz::write_encoded(&mut bytes, arrays).map_err(|error| stdout_error(&error))?;
                bytes.into_inner()
            }
        };
        return Ok(stdout.write_all(&bytes).and_then(|()| stdout.flush()).map_err(|error| stdout_error(&error))?);
    }
    match &arrays[..] {
        [(_, bytes)] if is_npy => Ok(write_atomically(path, |file| file.write_all(bytes))?),
        _ if is_npy => {
            let message = format!("{}: expected one output for a .npy file, found {}", path.display(), arrays.len());
            Err(Diagnostic::error(codes::frontends::CANNOT_WRITE, message).help("pass --output FILE.npz").into())
        }
        _ => Ok(write_atomically(path, |file| npz::write_encoded(file, arrays))?),
    }
}

fn print(stdout: &mut dyn Write, text: &str) -> Result<(), Failure> {
    let escaped = escape::escape_json(text);
    Ok(stdout.write_all(escaped.as_bytes()).map_err(|error| stdout_error(&error))?)
}

fn stdout_error(error: &std::io::Error) -> Diagnostic {
    Diagnostic::error(codes::frontends::STDOUT_FAILED, format!("cannot write standard output: {error}"))
}
