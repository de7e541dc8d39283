//! Conversion of a built model to the files of a C project.

use crate::exported::{ExportedModel, Options, Port, RecordedValues, export_error};
use crate::externs::{self, EXTERN_HEADER};
use crate::names::{identifiers, is_identifier};
use crate::{build_files, checking, code, half_weights, report, weights_file};
use byoc::driver::BuildOutput;
use byoc::runtime::error::Failure;
use byoc::runtime::plugin::to_graph::{ConstantTable, dtype_to_api, graph_with_regions};
use byoc_ir::diag::{Diagnostic, codes};
use byoc_ir::ir::Dim;
use byoc_ir::tensor::Tensor;
use byoc_loops::externals::REGION;
use byoc_loops::program::{Unsupported, program};

/// Files of a C project.
#[derive(Clone, Debug)]
pub struct Project {
    /// Names and contents, sorted by name.
    pub files: Vec<(String, Vec<u8>)>,
    /// Size in bytes of the arena.
    pub arena: i64,
    /// Size in bytes of the constants.
    pub weights: i64,
    /// Number of multiply-adds per run.
    pub macs: i64,
}

/// Exports a built model.
///
/// # Errors
/// E0504 if a dimension is open. E0519 if the model has branches or loops, an operator has no C code generation, a
/// region has no C program, the prefix is not a C identifier, or a recorded value does not match the interface.
pub fn project(
    build_output: &BuildOutput,
    options: &Options,
    recorded_values: &RecordedValues,
) -> Result<Project, Failure> {
    if !is_identifier(&options.prefix) {
        let message =
            format!("prefix: expected a C identifier that begins with a letter, found \"{}\"", options.prefix);
        return Err(Failure::new(codes::frontends::NOT_EXPORTABLE, message));
    }
    check_dimensions(build_output)?;
    let module = &build_output.partitioned;
    let main = module.main().ok_or_else(|| export_error("the module has no function @main".into()))?;
    let mut table = ConstantTable::default();
    let mut graph = graph_with_regions(module, "main", main, REGION, &mut table).map_err(|reason| {
        export_error(reason.message.clone()).note("only modules without branches and loops can be exported")
    })?;
    let regions = externs::regions(&build_output.compiled, &options.prefix)?;
    let externals = externs::externals(&options.externs, &regions);
    if options.half_weights {
        half_weights::round(&mut graph, &mut table.handles, |name| externals.contains(name));
    }
    let mut program = program(&graph, &table.handles, &options.prefix, options.machine, &externals)
        .map_err(|refusals| refusal(&refusals))?;
    for array in regions.iter().flat_map(|region| &region.arrays) {
        if program.arrays.iter().all(|known_array| known_array.name != array.name) {
            program.arrays.push(array.clone());
        }
    }
    let ports = |names: Vec<String>, tensors: &[byoc_loops::program::Tensor]| -> Vec<Port> {
        let ids = identifiers(names.iter().map(String::as_str));
        let ports = names.into_iter().zip(ids).zip(tensors);
        ports.map(|((name, identifier), t)| Port { name, identifier, dtype: t.dtype, shape: t.shape.clone() }).collect()
    };
    let names = |count: usize, ports: &[byoc::frontend::PortInfo], kind: &str| -> Vec<String> {
        (0..count).map(|i| ports.get(i).map_or_else(|| format!("{kind}_{i}"), |port| port.name.clone())).collect()
    };
    let inputs = ports(names(program.inputs.len(), &build_output.signature.inputs, "input"), &program.inputs);
    let outputs = ports(names(program.outputs.len(), &build_output.signature.outputs, "output"), &program.outputs);
    check_recorded(&inputs, &recorded_values.inputs)?;
    check_recorded(&outputs, &recorded_values.outputs)?;
    let mut includes: Vec<String> = options.externs.iter().map(|e| e.header.clone()).collect();
    includes.sort();
    includes.dedup();
    if !includes.is_empty() {
        includes.insert(0, EXTERN_HEADER.into());
    }
    let project_parts = ExportedModel { options, program, inputs, outputs, regions, includes };
    let mut files: Vec<(String, Vec<u8>)> = Vec::new();
    let mut add = |name: String, text: String| files.push((name, text.into_bytes()));
    let mut sources = Vec::new();
    for (name, text) in code::sources(&project_parts) {
        sources.push(name.clone());
        add(name, text);
    }
    if !project_parts.includes.is_empty() {
        add(EXTERN_HEADER.into(), externs::header());
    }
    for (name, text) in code::headers(&project_parts) {
        add(name, text);
    }
    add("main.c".into(), checking::main(&project_parts));
    add(format!("{}_recorded.h", options.prefix), checking::recorded_cases(&project_parts, recorded_values));
    add("Makefile".into(), build_files::makefile(&project_parts, &sources));
    add("CMakeLists.txt".into(), build_files::cmake(&project_parts, &sources));
    if project_parts.has_weights_file() {
        files.push((format!("{}_weights.bin", options.prefix), weights_file::content(&project_parts.program.arrays)));
    }
    let report = report::Report::new(&project_parts);
    files.push(("report.txt".into(), report.text().into_bytes()));
    let mut paths: Vec<String> = files.iter().map(|file| file.0.clone()).collect();
    paths.push(METADATA.into());
    paths.sort();
    files.push((METADATA.into(), report.json(&paths).into_bytes()));
    files.sort();
    Ok(Project { files, arena: project_parts.program.arena, weights: report.weights, macs: report.macs })
}

/// Name of the metadata file of a project.
pub const METADATA: &str = "model.json";

/// Checks that every input dimension is known.
fn check_dimensions(build_output: &BuildOutput) -> Result<(), Failure> {
    for port in &build_output.compiled.program.inputs {
        for (axis, dim) in port.ty.dims.iter().enumerate() {
            let name = match dim {
                Dim::Fixed(_) => continue,
                Dim::Symbolic(symbol) => symbol.to_string(),
                Dim::Any => format!("{}.{axis}", port.name),
            };
            let message = format!("input \"{}\": expected dimensions known at export, found {dim}", port.name);
            return Err(Diagnostic::error(codes::frontends::UNBOUND_DIMENSION, message)
                .help(format!("bind it with --dim {name}=N"))
                .into());
        }
    }
    Ok(())
}

fn check_recorded(ports: &[Port], values: &[Tensor]) -> Result<(), Failure> {
    for (port, value) in ports.iter().zip(values) {
        let matches = dtype_to_api(value.dtype()) == port.dtype && value.bytes().len() as i64 == port.bytes();
        if !matches {
            let message = format!(
                "recorded value of \"{}\": expected {} {:?}, found {} {:?}",
                port.name,
                port.dtype,
                port.shape,
                value.dtype(),
                value.shape()
            );
            return Err(export_error(message).into());
        }
    }
    Ok(())
}

/// Returns the error that names every operator without C code generation.
fn refusal(refusals: &[Unsupported]) -> Failure {
    let mut names: Vec<&str> = refusals.iter().map(|r| r.operator.as_str()).filter(|name| !name.is_empty()).collect();
    names.sort_unstable();
    names.dedup();
    let reason = match names[..] {
        [] => refusals.first().map(|r| r.reason.clone()).unwrap_or_default(),
        _ => format!("no C code generation for {}", names.join(", ")),
    };
    let mut diagnostic = export_error(reason);
    for refusal_entry in refusals.iter().filter(|r| !r.operator.is_empty()) {
        let nodes = if refusal_entry.sources.is_empty() {
            String::new()
        } else {
            format!(" \"{}\"", refusal_entry.sources.join("\", \""))
        };
        diagnostic = diagnostic.note(format!("{}{nodes}: {}", refusal_entry.operator, refusal_entry.reason));
    }
    diagnostic.help("remove these operators from the model, or run it with \"byoc run\"").into()
}
