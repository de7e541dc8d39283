//! Complete backend around a compiler that takes ONNX files and a run time that is a program:
//!
//! ```sh
//! onnx_command-cc region.onnx -o region.bin   # with --check in place of -o region.bin: says whether it would compile
//! onnx_command-run region.bin                 # reads inputs from its standard input, writes outputs, run after run
//! ```

use byoc_plugin_api::*;
use byoc_plugin_support::command::{Compiler, Program, RunTime, seconds};
use byoc_plugin_support::refusal::CompileError;
use std::path::Path;
use std::time::Duration;
use tempfile::tempdir;

const COMPILER: Program = Program { name: "onnx_command-cc", variable: "ONNX_COMMAND_CC" };
const RUN_TIME: Program = Program { name: "onnx_command-run", variable: "ONNX_COMMAND_RUN" };
/// Operators that the compiler is asked about, as well as the patterns.
const OPERATORS: &str = "add clip concatenate multiply nn.avg_pool2d nn.batch_flatten nn.bias_add nn.conv2d nn.dense \
    nn.max_pool2d nn.relu qnn.add qnn.avg_pool2d qnn.dequantize qnn.quantize reshape sigmoid";
/// Products of bytes with what follows: in ONNX, float operators between DequantizeLinear and QuantizeLinear.
const PATTERNS: &str = "\
qnn_product: let sum = qnn.conv2d(*, const, const, const, const, const) | qnn.dense(*, const, const, const, const, const);
    let biased = nn.bias_add(sum, const) | add(sum, const) | sum;
    qnn.requantize(biased, const, const, const, const) ? nn.relu ? clip | qnn.dequantize(biased, const, const)";
/// Element types of inputs and outputs.
const TYPES: [DType; 3] = [DType::F32, DType::I8, DType::U8];
/// Asks the compiler about each candidate; otherwise the tables above are the verdict.
const ASKS: bool = true;

declare_plugin!("onnx_command", env!("CARGO_PKG_VERSION"));
register!(|context, registry| {
    registry.codegen("onnx_command", OnnxCommand(context.services.clone(), Compiler::new(COMPILER)));
    registry.loader("onnx_command", Binaries);
    Ok(())
});

struct OnnxCommand(Services, Compiler);

impl OnnxCommand {
    fn write(&self, folder: &Path, graph: &Graph, constants: &[Constant]) -> Result<()> {
        let options = OnnxOptions { opset: Some(17), ..OnnxOptions::default() };
        Ok(std::fs::write(folder.join("region.onnx"), self.0.onnx(graph, constants, &options)?.bytes)?)
    }

    fn ask(&self, candidate: &Candidate) -> Result<String> {
        let folder = tempdir()?;
        self.write(folder.path(), &candidate.graph, &candidate.constants)?;
        let limit = seconds(candidate.option("time_limit").as_deref(), 60);
        self.1.ask(folder.path(), &["region.onnx", "--check"], limit, &self.0)
    }
}

impl Codegen for OnnxCommand {
    fn describe(&self) -> Result<Description> {
        let about = "seconds that the compiler and a run may take, 60 by default".into();
        let limit = BackendOption { about, load: true, ..BackendOption::default() };
        Ok(Description {
            about: "regions as ONNX files for a compiler that is a command".into(),
            patterns: PATTERNS.into(),
            operators: OPERATORS.split(' ').map(String::from).collect(),
            quantization: Some(Quantization {
                activation: "int8".into(),
                weight: "int8".into(),
                accumulator: "int32".into(),
                symmetric: true,
                per_channel: true,
                power_of_two: false,
            }),
            options: [("time_limit".to_owned(), limit)].into(),
            ..Description::default()
        })
    }

    fn judge(&self, candidate: &Candidate) -> Verdict {
        let inputs = candidate.graph.inputs.iter().map(|input| &input.ty);
        if let Some(other) = inputs.chain(candidate.graph.output_types()).find(|ty| !TYPES.contains(&ty.dtype)) {
            return Verdict::refused(RefusalCode::UnsupportedDtype, format!("found {}", other.dtype));
        }
        let answer = if ASKS { self.ask(candidate) } else { Ok(String::new()) };
        answer.map_or_else(|error| CompileError::from(error).into(), |_| Verdict::Supported)
    }

    fn compile(&self, region: &Region<'_>) -> Result<CompiledRegion> {
        let folder = tempdir()?;
        self.write(folder.path(), region.graph, region.constants)?;
        let args = ["region.onnx", "-o", "region.bin"];
        let lines = self.1.run(folder.path(), &args, seconds(region.option("time_limit"), 60), &self.0)?;
        let binary = std::fs::read(folder.path().join("region.bin")).unwrap_or_default();
        if binary.is_empty() {
            return Err(Error::new(format!("the compiler succeeded, but region.bin is missing or empty: {lines}")));
        }
        // A line with the types of inputs and outputs, which `load` compares, and the binary.
        let types = Signature::of(region.graph).to_json().to_string();
        Ok(CompiledRegion::new(&region.graph.symbol, "onnx_command", [types.as_bytes(), b"\n", &binary].concat()))
    }
}

struct Binaries;

impl Loader for Binaries {
    fn load(&self, region: &LoadRequest<'_>) -> Result<Box<dyn Executable>> {
        let end = region.blob.iter().position(|&byte| byte == b'\n').ok_or("expected a line of types, found none")?;
        let signature = Signature::from_json(&serde_json::from_slice(&region.blob[..end])?)?;
        region.check_signature(&signature)?;
        let folder = tempdir()?;
        std::fs::write(folder.path().join("region.bin"), &region.blob[end + 1..])?;
        let run_time = RunTime::new(RUN_TIME, &["region.bin"], folder);
        let limit = seconds(region.option("time_limit"), 60);
        Ok(Box::new(Binary { run_time, signature, limit, services: region.services.clone() }))
    }
}

struct Binary {
    run_time: RunTime,
    signature: Signature,
    limit: Duration,
    services: Services,
}

impl Executable for Binary {
    fn prepare(&self, _inputs: &[&[usize]]) -> Result<Prepared> {
        Ok(Prepared::exact(self.signature.outputs.iter().map(|ty| ty.shape().unwrap_or_default())))
    }

    fn run(&self, call: Call<'_, '_>) -> Result<()> {
        self.run_time.run(call, self.limit, &self.services)
    }
}
