//! File tests of the kind `emit`: `tests/emit/*.relay`, the loops that code generation makes of a program, with the
//! expectations in the file; `BYOC_BLESS=1` rewrites the expectations.
//!
//! A file holds cases separated by lines `// ====`. A case is a program, of which `@main` is the region, and after lines
//! `// ---- SECTION` what is generated: `group` the operators that share a loop nest, `schedule` the steps that made the
//! loops of each phase, `C` the functions of the tasks of a region, `OpenCL C` its kernels for a device with vectors of
//! eight elements and local memory, `CUDA C++` those for vectors of four. Without a line `// sections: group, C`, the
//! first four are shown. `// constant: float32 (2, 2): 1 2 3 4` defines
//! `meta[relay.Constant][0]`, as in the file tests of passes.
//!
//! The text of each case is compiled, too: the tasks without warnings, and the program in strict C99 with sanitizers,
//! for each kind of processor; that program runs, and its results are compared with those of the host. The CUDA kernels
//! are compiled on request (`cargo xtask check-cuda`).

mod nvrtc;

use crate::common;
use byoc::runtime::plugin::to_graph::{ConstantTable, function_graph};
use byoc_core::pass::infer_type;
use byoc_ir::ir::Module;
use byoc_ir::tensor::{Tensor, f16};
use byoc_ir::text::{ParseOptions, parse};
use byoc_loops::externals::Externals;
use byoc_loops::form::{Device, Form, Machine};
use byoc_loops::group::{Fusion, Grouping};
use byoc_loops::lower::{Lowering, lower};
use byoc_loops::print::{c::C, cuda, kernel::kernel, opencl::OpenCl};
use byoc_loops::single_file::single_file;
use byoc_loops::source::source;
use byoc_loops::stage::{self, Stage};
use byoc_plugin_api::{Constant, Graph};
use byoc_plugin_support::region::RegionIr;
use byoc_test_support::filetest::{Outcome, check_file, constants, files, headers, read_cases};
use byoc_test_support::random::Random;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

const SECTIONS: [&str; 5] = ["group", "schedule", "C", "OpenCL C", CUDA];
const CUDA: &str = "CUDA C++";

const OPENCL_DEVICE: Device = Device { width: 8, local_memory: true };
const CUDA_DEVICE: Device = Device { width: 4, local_memory: true };

const WARNINGS: [&str; 3] = ["-Wall", "-Wextra", "-Werror"];
const STRICT: [&str; 5] = ["-std=c99", "-Wpedantic", "-Wconversion", "-O1", "-fno-sanitize-recover=all"];
const SANITIZERS: &str = "-fsanitize=address,undefined";

fn paths() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/emit");
    let paths = files(&root);
    assert!(!paths.is_empty(), "{}: expected files", root.display());
    paths
}

#[test]
fn generated_code() {
    let failures: Vec<String> = paths().iter().filter_map(|path| check_file(path, emit_case).err()).collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Program of a case, as a module and as a graph with its constants.
struct Case {
    module: Module,
    graph: Graph,
    constants: Vec<Constant>,
    /// True if the backend that runs tasks takes the program.
    runs_as_tasks: bool,
}

impl Case {
    fn read(input: &str, symbol: &str) -> Result<Case, String> {
        let parsed = parse(input, &ParseOptions { constants: &constants(input)? });
        if let Some(first) = parsed.diagnostics.first() {
            return Err(first.to_string());
        }
        let module = infer_type(&parsed.module).map_err(|faults| faults[0].diagnostic.to_string())?;
        let main = module.main().ok_or("expected a function @main")?;
        let mut table = ConstantTable::default();
        let graph = function_graph(&module, symbol, main, &mut table).map_err(|reason| reason.to_string())?;
        Ok(Case { graph, constants: table.handles, module, runs_as_tasks: shows(input, "C") })
    }

    /// Applies `read` to the region, lowered in a form.
    fn lowered<T>(&self, form: Form, read: impl FnOnce(&Lowering<'_, '_>) -> T) -> Result<T, String> {
        let ir = RegionIr::new(&self.graph, &self.constants).map_err(|error| error.detail)?;
        let externals = Externals::default();
        let fusion = if form == Form::Tasks { Fusion::Always } else { Fusion::Vectors };
        let grouping = Grouping::new(&ir, fusion, &externals);
        Ok(read(&lower(&ir, &grouping, &self.graph.symbol, form, &externals)?))
    }
}

/// Returns the program of a case, without its expectations.
fn input(case: &str) -> &str {
    case.split_once("// ---- ").map_or(case, |(input, _)| input)
}

/// Returns true if a case shows a section.
fn shows(input: &str, section: &str) -> bool {
    match headers(input, "sections")[..] {
        [] => section != CUDA,
        [line, ..] => line.split(", ").any(|name| name == section),
    }
}

fn emit_case(text: &str) -> Outcome {
    let input = input(text);
    let case = Case::read(input, "region")?;
    let mut text = input.to_owned();
    for section in SECTIONS.into_iter().filter(|section| shows(input, section)) {
        let form = match section {
            "OpenCL C" => Form::Device(OPENCL_DEVICE),
            CUDA => Form::Device(CUDA_DEVICE),
            _ => Form::Tasks,
        };
        let _ = writeln!(text, "// ---- {section}");
        text.push_str(&case.lowered(form, |lowering| generated(lowering, section))?);
    }
    Ok(text)
}

/// Returns what a section shows of a lowered region.
fn generated(lowering: &Lowering<'_, '_>, section: &str) -> String {
    let mut text = String::new();
    if section == "group" {
        return stage::text(lowering, Stage::Group);
    }
    let dialect = C { symbol: "region", form: Form::Tasks, restrict: true };
    for (i, phase) in lowering.phases.iter().enumerate() {
        match section {
            "schedule" => {
                let _ = writeln!(text, "phase {i}: {}, {} tasks", phase.kind, phase.tasks);
                phase.schedule.iter().for_each(|step| {
                    let _ = writeln!(text, "  {step}");
                });
            }
            "C" => phase.functions.iter().for_each(|function| {
                dialect.constants(function, &mut text);
                dialect.function(function, &mut text);
            }),
            _ => {
                let (function, grid) = phase.functions.last().zip(phase.grid).expect("a kernel for each phase");
                let _ = writeln!(text, "{:?} in groups of {:?}", grid.items, grid.local);
                let (head, printed) = match section {
                    CUDA => ("extern \"C\" __global__ void", kernel(&cuda::Cuda, function, grid)),
                    _ => ("kernel void", kernel(&OpenCl, function, grid)),
                };
                let _ = writeln!(text, "{head} {}{}", phase.kind, printed.definition);
            }
        }
    }
    format!("{}\n", text.trim_end())
}

/// Returns the cases of all files, with the names of their functions.
fn cases() -> Vec<Case> {
    let texts = paths().iter().flat_map(|path| read_cases(path).unwrap()).collect::<Vec<String>>();
    let case = |(i, text): (usize, &String)| Case::read(input(text), &format!("case_{i}")).unwrap();
    texts.iter().enumerate().map(case).collect()
}

fn run(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}\n{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn tasks_compile_without_warnings() {
    let folder = tempfile::tempdir().unwrap();
    let mut compile = Command::new("cc");
    compile.current_dir(folder.path()).arg("-std=gnu11").args(WARNINGS).arg("-fsyntax-only");
    for case in cases().into_iter().filter(|case| case.runs_as_tasks) {
        let symbol = case.graph.symbol.as_str();
        let text = case.lowered(Form::Tasks, |lowering| source(lowering, symbol).text).unwrap();
        std::fs::write(folder.path().join(format!("{symbol}.c")), text).unwrap();
        compile.arg(format!("{symbol}.c"));
    }
    run(&mut compile);
}

/// Compiles the CUDA kernels of all cases by the runtime compiler, which needs no GPU. `cargo xtask check-cuda` fetches
/// it, and names its library and the folder of its headers.
#[test]
#[ignore = "needs NVRTC: run cargo xtask check-cuda"]
fn cuda_kernels_compile() {
    let variable = |name: &str| std::env::var(name).unwrap_or_else(|_| panic!("{name}: run cargo xtask check-cuda"));
    let compiler = nvrtc::Compiler::open(&variable("BYOC_NVRTC"), &variable("BYOC_CUDA_INCLUDE"));
    for case in cases() {
        let form = Form::Device(CUDA_DEVICE);
        let text = case.lowered(form, |lowering| {
            let kernels = lowering.phases.iter().enumerate().map(|(i, phase)| {
                let (function, grid) = phase.functions.last().zip(phase.grid).expect("a kernel for each phase");
                format!("extern \"C\" __global__ void k{i}{}", kernel(&cuda::Cuda, function, grid).definition)
            });
            kernels.collect::<String>()
        });
        let source = format!("{}{}", cuda::PRELUDE, text.unwrap());
        if let Err(log) = compiler.compile(&source) {
            panic!("{}\n{log}", case.graph.symbol);
        }
    }
}

#[test]
fn programs_compute_what_the_host_computes() {
    check_programs("generic", &[]);
}

#[test]
fn programs_with_vectors_compute_what_the_host_computes() {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma") {
        check_programs("x86-64-v3", &["-march=x86-64-v3"]);
    }
}

/// Compiles the programs of all cases for a machine as one executable, runs it, and compares the results.
fn check_programs(machine: &str, flags: &[&str]) {
    let machine = Machine::of_target(machine).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let write = |name: String, bytes: &[u8]| std::fs::write(folder.path().join(name), bytes).unwrap();
    let mut compile = Command::new("cc");
    compile.current_dir(folder.path()).args(STRICT).args(WARNINGS).arg(SANITIZERS).args(flags);
    let mut calls = String::new();
    let mut expected: Vec<(String, Vec<Tensor>)> = Vec::new();
    for case in cases() {
        let symbol = case.graph.symbol.as_str();
        let program = single_file(&case.graph, &case.constants, machine).unwrap_or_else(|e| panic!("{symbol}: {e}"));
        write(format!("{symbol}.c"), program.text.as_bytes());
        let inputs: Vec<Tensor> = case.graph.inputs.iter().map(|input| values(&input.ty)).collect();
        inputs.iter().enumerate().for_each(|(i, input)| write(format!("{symbol}.in{i}"), input.bytes()));
        let outputs = common::run_reference(&case.module, &inputs);
        let list = |tensors: &[Tensor]| {
            let sizes: Vec<String> = tensors.iter().map(|tensor| tensor.bytes().len().to_string()).collect();
            format!("{}, (const size_t[]){{{}}}", tensors.len(), sizes.join(", "))
        };
        let (ins, outs, work) = (list(&inputs), list(&outputs), program.workspace.max(1));
        let _ = writeln!(calls, "    call({symbol}, \"{symbol}\", {ins}, {outs}, {work});");
        compile.arg(format!("{symbol}.c"));
        expected.push((symbol.to_owned(), outputs));
    }
    let declaration = |(symbol, _): &(String, Vec<Tensor>)| {
        format!("void {symbol}(const void *const *, void *const *, const void *const *, void *);\n")
    };
    let declarations: String = expected.iter().map(declaration).collect();
    let main =
        format!("{}\n{declarations}\nint main(void) {{\n{calls}    return 0;\n}}\n", include_str!("emit/call.c"));
    write("main.c".to_owned(), main.as_bytes());
    run(compile.args(["main.c", "-o", "run", "-lm"]));
    run(Command::new("./run").current_dir(folder.path()));
    for (symbol, outputs) in expected {
        for (i, expected) in outputs.iter().enumerate() {
            let bytes = std::fs::read(folder.path().join(format!("{symbol}.out{i}"))).unwrap();
            let found = Tensor::from_bytes(expected.dtype(), expected.shape(), &bytes).unwrap();
            let (found, expected) = (found.view().to_f64s(), expected.view().to_f64s());
            let finite = expected.iter().filter(|value| value.is_finite());
            let scale = finite.fold(1e-30, |largest: f64, value| largest.max(value.abs()));
            for (k, (a, b)) in found.iter().zip(&expected).enumerate() {
                let is_close = a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() / scale <= 1e-5;
                assert!(is_close, "{symbol}, output {i}, element {k}: expected {b}, found {a}");
            }
        }
    }
}

/// Returns the values of an input. Those of ten elements, as elementwise operators have, are unusual.
fn values(ty: &byoc_plugin_api::TensorType) -> Tensor {
    let shape = ty.shape().unwrap();
    let mut random = Random::new(5);
    let unusual = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -0.0, 0.0, 0.5, -0.5, 1.5, 3e9, -3e9];
    let count = shape.iter().product();
    let floats: Vec<f32> =
        if count == unusual.len() { unusual.to_vec() } else { (0..count).map(|_| random.float()).collect() };
    let integers: Vec<i64> = (0..count).map(|_| random.between(-3, 4)).collect();
    match ty.dtype {
        byoc_plugin_api::DType::F32 => Tensor::from_slice(&shape, &floats),
        byoc_plugin_api::DType::I32 => {
            Tensor::from_slice(&shape, &integers.iter().map(|&v| v as i32).collect::<Vec<_>>())
        }
        byoc_plugin_api::DType::I64 => Tensor::from_slice(&shape, &integers),
        _ => Tensor::from_slice(&shape, &floats.iter().map(|&v| f16::from_f32(v)).collect::<Vec<_>>()),
    }
}
