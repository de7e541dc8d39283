//! Stand-in for a vendor's compiler and run time, for the tests of backends that are generated around such programs:
//!
//! ```sh
//! onnx_compiler region.onnx -o region.bin   # checks the model, and writes it with a digest
//! onnx_compiler region.onnx --check         # checks the model
//! onnx_compiler region.bin                  # reads inputs from its standard input, writes outputs, until it ends
//! onnx_compiler region.bin x.raw -o y.raw   # reads and writes files, one run
//! ```
//!
//! It takes what a compiler for an int8 chip takes: models of one operator set, static dimensions, known names, weights of
//! convolutions and products as constants.
#![expect(clippy::print_stderr, reason = "standalone program")]

use byoc::{CompileOptions, Model, Session, Source, Tensor};
use byoc_onnx::proto::{GraphProto, ModelProto, NodeProto};
use prost::Message;
use std::collections::BTreeSet;
use std::error::Error;
use std::io::{Read, Write};
use std::path::Path;
use std::process::ExitCode;

/// First bytes of a binary.
const MAGIC: &[u8; 8] = b"STANDIN1";
/// Operators of ONNX that it compiles.
const OPERATORS: &str = "Abs Add AveragePool BatchNormalization Cast Ceil Clip Concat Conv \
    ConvInteger DequantizeLinear Div Flatten Floor Gemm GlobalAveragePool Identity MatMul MatMulInteger Max \
    MaxPool Min Mul Neg Pad QuantizeLinear Relu Reshape Round Sigmoid Sign Squeeze Sub Transpose Unsqueeze Where";

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = match args[..] {
        [model, "--check"] => check(Path::new(model)).map(drop),
        [model, "-o", binary] if model.ends_with(".onnx") => compile(Path::new(model), Path::new(binary)),
        [binary] => serve(Path::new(binary)),
        [binary, ref files @ ..] => run_files(Path::new(binary), files),
        [] => Err("usage: onnx_compiler region.onnx (-o region.bin | --check), or region.bin".into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Checks a model and returns its bytes.
fn check(path: &Path) -> Result<Vec<u8>> {
    let bytes = std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let model = ModelProto::decode(&bytes[..])?;
    let opsets: Vec<(&str, i64)> = model.opset_import.iter().map(|set| (set.domain.as_str(), set.version)).collect();
    if opsets != [("", 17)] {
        return Err(format!("opset: expected 17 of the standard domain alone, found {opsets:?}").into());
    }
    let graph = model.graph.ok_or("expected a graph, found none")?;
    let constants = constants_of(&graph);
    for node in &graph.node {
        check_node(node, &constants).map_err(|error| format!("node {} ({}): {error}", node.name, node.op_type))?;
    }
    let model = load(bytes.clone())?;
    for port in model.inputs().iter().chain(model.outputs()) {
        if port.ty.shape().is_none() {
            return Err(format!("{}: expected static dimensions, found {}", port.name, port.ty).into());
        }
    }
    Ok(bytes)
}

/// Returns the names of initializers, and of what QuantizeLinear and DequantizeLinear make of them.
fn constants_of(graph: &GraphProto) -> BTreeSet<String> {
    let mut constants: BTreeSet<String> = graph.initializer.iter().map(|tensor| tensor.name.clone()).collect();
    for node in &graph.node {
        if node.op_type.ends_with("quantizeLinear") && node.input.iter().all(|name| constants.contains(name)) {
            constants.extend(node.output.iter().cloned());
        }
    }
    constants
}

/// Checks the operator of a node, and that its weights are constants.
fn check_node(node: &NodeProto, constants: &BTreeSet<String>) -> Result<()> {
    if node.name.is_empty() || !node.domain.is_empty() {
        return Err(format!("expected a name and the standard domain, found domain \"{}\"", node.domain).into());
    }
    if !OPERATORS.split(' ').any(|operator| operator == node.op_type) {
        return Err("this compiler has no such operator".into());
    }
    let has_weight = ["Conv", "ConvInteger", "Gemm"].contains(&node.op_type.as_str());
    if has_weight && !constants.contains(&node.input[1]) {
        return Err(format!("expected a constant weight, found {}", node.input[1]).into());
    }
    Ok(())
}

/// Writes a binary: magic, digest, model.
fn compile(path: &Path, binary: &Path) -> Result<()> {
    let bytes = check(path)?;
    let digest = blake3::hash(&bytes);
    Ok(std::fs::write(binary, [&MAGIC[..], digest.as_bytes(), &bytes].concat())?)
}

/// Loads a model for the host's kernels.
fn load(bytes: Vec<u8>) -> Result<Model> {
    let session = Session::builder().threads(1).build()?;
    let source = Source::Bytes { bytes: bytes.into(), folder: None };
    Ok(Model::compile(&session, source, &CompileOptions::new())?)
}

/// Reads a binary.
fn open(binary: &Path) -> Result<Model> {
    let bytes = std::fs::read(binary)?;
    let rest = bytes.strip_prefix(MAGIC).ok_or("expected a binary of this compiler, found another file")?;
    let (digest, model) = rest.split_at_checked(32).ok_or("the binary is truncated")?;
    if blake3::hash(model).as_bytes() != digest {
        return Err("the binary is damaged: its digest differs".into());
    }
    load(model.to_vec())
}

/// Reads the inputs of a run from `source(index, size)`. Returns none if there are no more.
fn read_inputs(
    model: &Model,
    mut source: impl FnMut(usize, usize) -> Result<Option<Vec<u8>>>,
) -> Result<Option<Vec<Tensor>>> {
    let mut inputs = Vec::new();
    for (index, port) in model.inputs().iter().enumerate() {
        let shape = port.ty.shape().ok_or("expected static dimensions")?;
        let size = shape.iter().product::<usize>() * port.ty.dtype.size();
        let Some(bytes) = source(index, size)? else { return Ok(None) };
        inputs.push(Tensor::from_bytes(port.ty.dtype, &shape, &bytes).ok_or("an input has the wrong size")?);
    }
    Ok(Some(inputs))
}

/// Runs a binary on its standard input until that ends.
fn serve(binary: &Path) -> Result<()> {
    let model = open(binary)?;
    let (mut stdin, mut stdout) = (std::io::stdin().lock(), std::io::stdout().lock());
    let mut read = |_: usize, size: usize| {
        let mut bytes = vec![0; size];
        Ok(stdin.read_exact(&mut bytes).is_ok().then_some(bytes))
    };
    while let Some(inputs) = read_inputs(&model, &mut read)? {
        for output in model.run(inputs.as_slice())?.into_tensors() {
            stdout.write_all(output.bytes())?;
        }
        stdout.flush()?;
    }
    Ok(())
}

/// Runs a binary on files: those of the inputs, `-o`, those of the outputs.
fn run_files(binary: &Path, files: &[&str]) -> Result<()> {
    let model = open(binary)?;
    let split = files.iter().position(|&file| file == "-o").ok_or("expected -o before the files of the outputs")?;
    let (sources, targets) = (&files[..split], &files[split + 1..]);
    let read = |index: usize, _: usize| Ok(sources.get(index).map(std::fs::read).transpose()?);
    let inputs = read_inputs(&model, read)?.ok_or("expected a file for each input")?;
    for (output, target) in model.run(inputs.as_slice())?.into_tensors().iter().zip(targets) {
        std::fs::write(target, output.bytes())?;
    }
    Ok(())
}
