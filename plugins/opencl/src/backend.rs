//! Code generator entries: `describe`, `query`, `judge` and `compile`.

use crate::device::{AUTO, Device, Traits};
use crate::program::{PackedConstant, Program};
use crate::{blob, lower, open, support, widen};
use byoc_loops::operators::PATTERNS;
use byoc_loops::operators::views::is_view_op;
use byoc_loops::stage::Stage;
use byoc_plugin_api::{
    Attr, BackendOption, Candidate, CandidateKind, Codegen, CompiledRegion, Constant, DEVICES_KEY, Description,
    DeviceInfo, Estimate, Graph, RefusalCode, Region, Result, Verdict,
};
use byoc_plugin_support::refusal::{CompileError, refuse, refuse_with_hint};
use byoc_plugin_support::region::RegionIr;
use serde_json::Value;

/// Code generator registered as `relay.ext.opencl`.
pub struct OpenCl;

/// Accepted values of option `tile`.
const TILES: [&str; 3] = ["auto", "registers", "local"];

/// Returns the user-supplied value of a backend option; `None` if the option is unset.
pub fn option<'v>(options: &'v Value, name: &str) -> Option<&'v str> {
    options["backend_options"][name].as_str()
}

/// Returns the device properties with `uses_local_memory` set as option `tile` requests.
pub fn with_tile(traits: &Traits, tile: &str) -> Traits {
    let uses_local_memory = match tile {
        "registers" => false,
        "local" => true,
        _ => traits.uses_local_memory,
    };
    Traits { uses_local_memory, ..traits.clone() }
}

/// Returns the verdict on a candidate. The verdict on a region estimates its launches, and the memory for constants and
/// intermediate results.
fn check(candidate: &Candidate) -> std::result::Result<Verdict, CompileError> {
    let options = candidate.options();
    let device = match Device::get(options["device"].as_str().unwrap_or(AUTO), None) {
        Ok(device) => device,
        Err(error) => return refuse_with_hint(RefusalCode::Unavailable, error.message.as_str(), &error.hint),
    };
    let closed_graph = match open::is_open(&candidate.graph) {
        true => Some(open::example(&candidate.graph)?),
        false => None,
    };
    let graph = closed_graph.as_ref().unwrap_or(&candidate.graph);
    let (graph, constants) = (widen::graph(graph, candidate.constants.len())?, widen::constants(&candidate.constants));
    let ir = RegionIr::new(&graph, &constants)?;
    for op in &ir.ops {
        support::check(&ir, op)?;
    }
    if candidate.kind == CandidateKind::Region {
        if ir.ops.iter().all(|op| is_view_op(op.name)) {
            return refuse(RefusalCode::NotProfitable, "the region has only view operators and computes nothing");
        }
        if ir.ops.len() > support::MAX_OPERATORS {
            let (op_count, max_ops) = (ir.ops.len(), support::MAX_OPERATORS);
            return refuse(
                RefusalCode::ResourceLimit,
                format!("expected at most {max_ops} operators in a region, found {op_count}"),
            );
        }
    }
    // A verdict is binding, so the operators are lowered first.
    let program = lower::lower(&graph, &ir, &device.traits)?;
    Ok(match candidate.kind {
        // An estimate for sample sizes of open dimensions does not apply to other sizes.
        CandidateKind::Region if closed_graph.is_none() => Verdict::estimated(&estimate(&program)),
        _ => Verdict::Supported,
    })
}

/// Option that makes the device read inputs of a model in host memory, for devices that share memory with the host.
pub const ZERO_COPY: &str = "zero_copy";

/// Description of [`ZERO_COPY`].
const ZERO_COPY_ABOUT: &str = "Access to model inputs in host memory, without a copy, for integrated devices";

/// Estimates the cost of one run: number of launches, and size of constants and arena in bytes.
fn estimate(program: &Program) -> Estimate {
    let constants = program.packed.iter().filter_map(PackedConstant::bytes).fold(program.arena, u64::saturating_add);
    Estimate { launches: Some(program.launches.len() as u64), bytes: Some(constants), ..Estimate::default() }
}

/// Lowers a region with known dimensions.
///
/// # Errors
/// If the graph is invalid or an operator has no kernel.
pub fn generate(graph: &Graph, constants: &[Constant], traits: &Traits) -> std::result::Result<Program, CompileError> {
    let (graph, constants) = (widen::graph(graph, constants.len())?, widen::constants(constants));
    let ir = RegionIr::new(&graph, &constants)?;
    for op in &ir.ops {
        support::check(&ir, op)?;
    }
    lower::lower(&graph, &ir, traits)
}

impl Codegen for OpenCl {
    fn describe(&self) -> Result<Description> {
        let option = |about: &str, values: &[&str]| BackendOption {
            about: about.into(),
            values: values.iter().map(|&value| value.to_owned()).collect(),
            ..BackendOption::default()
        };
        Ok(Description {
            about: "float32 and float16 networks on OpenCL devices: GPUs, and CPUs through PoCL".into(),
            patterns: PATTERNS.into(),
            operators: support::operators(),
            dynamic_dims: true,
            device_memory: true,
            options: [
                ("tile".to_owned(), option("Memory for operands that work-items of a GEMM share", &TILES)),
                (ZERO_COPY.to_owned(), BackendOption { load: true, ..option(ZERO_COPY_ABOUT, &["false", "true"]) }),
            ]
            .into(),
            ..Description::default()
        })
    }

    fn query(&self, key: &str, _: &[u8]) -> Result<Option<Vec<u8>>> {
        match key {
            // Without an OpenCL library, the list is empty; `judge` reports the cause.
            DEVICES_KEY => Ok(Some(DeviceInfo::list_to_json(&Device::list().unwrap_or_default()))),
            _ => Ok(None),
        }
    }

    fn judge(&self, candidate: &Candidate) -> Verdict {
        check(candidate).unwrap_or_else(Verdict::from)
    }

    fn compile(&self, region: &Region<'_>) -> Result<CompiledRegion> {
        let selector = region.options["device"].as_str().unwrap_or(AUTO);
        let tile = option(region.options, "tile").unwrap_or("auto");
        let device = Device::get(selector, None)?;
        let traits = with_tile(&device.traits, tile);
        let symbol = region.graph.symbol.as_str();
        let (program, bytes) = if open::is_open(region.graph) {
            let program = generate(&open::example(region.graph)?, region.constants, &traits)?;
            (program, blob::write_open(region.graph, region.constants, selector, tile)?)
        } else {
            let program = generate(region.graph, region.constants, &traits)?;
            let program = Program { selector: selector.to_owned(), ..program };
            let bytes = blob::write(&program)?;
            (program, bytes)
        };
        let mut compiled_region = CompiledRegion::new(symbol, "opencl", bytes);
        let (launches, kernels) = (program.launches.len(), program.kernels.len());
        let note = format!("kernels: {kernels}, launches: {launches}, arena: {} bytes", program.arena);
        compiled_region.notes.push(note.into());
        compiled_region.metadata.push(Attr::new("device", program.device.as_str()));
        compiled_region.metadata.push(Attr::new("own_threads", true));
        if let Some(Ok(stage)) = region.options["stage"].as_str().map(str::parse::<Stage>) {
            let closed_graph = match open::is_open(region.graph) {
                true => Some(open::example(region.graph)?),
                false => None,
            };
            let graph = closed_graph.as_ref().unwrap_or(region.graph);
            let text = lower::stage(graph, region.constants, &traits, stage)?;
            return Ok(compiled_region.with_source(&stage.to_string(), text));
        }
        Ok(compiled_region.with_source("cl", program.source))
    }
}
