//! Lowers a region to a program: the kernels that `byoc-loops` generates for the device, and the types of the region.

use crate::device::Traits;
use crate::program::{ALIGNMENT, Buffer, Edge, Kernel, Launch, PackedConstant, Place, Program};
use crate::widen;
use byoc_loops::device::{self, Kernels};
use byoc_loops::form::Device;
use byoc_loops::nest;
use byoc_loops::stage::Stage;
use byoc_plugin_api::{Constant, Graph, RefusalCode, Signature};
use byoc_plugin_support::refusal::CompileError;
use byoc_plugin_support::region::RegionIr;

/// Returns a stage of a region before its kernels.
///
/// # Errors
/// If the graph is invalid, or no kernel supports an operator.
pub fn stage(graph: &Graph, constants: &[Constant], traits: &Traits, stage: Stage) -> Result<String, CompileError> {
    let (graph, constants) = (widen::graph(graph, constants.len())?, widen::constants(constants));
    let ir = RegionIr::new(&graph, &constants)?;
    device::stage(&ir, tuned(traits), stage).map_err(refused)
}

fn tuned(traits: &Traits) -> Device {
    Device { width: traits.width, local_memory: traits.uses_local_memory }
}

fn refused(detail: String) -> CompileError {
    CompileError::new(RefusalCode::UnsupportedAttr, detail)
}

/// Lowers a region to a program.
///
/// # Errors
/// If no kernel supports an operator with its element types, shapes and attributes.
pub fn lower(graph: &Graph, ir: &RegionIr<'_>, traits: &Traits) -> Result<Program, CompileError> {
    let title = format!("{}, for {}", graph.symbol, traits.name);
    let Kernels { kernels, launches, packed, buffers, arena, source } =
        device::kernels(ir, &title, tuned(traits), ALIGNMENT as i64).map_err(refused)?;
    let edge = |value: &_| Edge {
        shape: ir.shape(*value).iter().map(|&dim| dim as usize).collect(),
        element: ir.val(*value).dtype.size(),
    };
    let place = |place: nest::Place| match place {
        nest::Place::Input(i) => Place::Input(i),
        nest::Place::Output(i) => Place::Output(i),
        nest::Place::Constant(i) | nest::Place::Packed(i) => Place::Constant(i),
        nest::Place::Work(i) => Place::Work(i),
    };
    let launch = |launch: device::Launch| Launch {
        name: launch.name,
        kernel: launch.kernel,
        arguments: launch.arguments.into_iter().map(place).collect(),
        global: launch.global,
    };
    let kernel =
        |kernel: device::Kernel| Kernel { name: kernel.name, arguments: kernel.arguments, local: kernel.local };
    let constants = packed.into_iter().map(|packed| PackedConstant {
        constant: packed.constant,
        element: packed.dtype.size(),
        packing: packed.packing,
    });
    Ok(Program {
        symbol: graph.symbol.to_string(),
        signature: Signature::of(graph),
        inputs: ir.inputs.iter().map(edge).collect(),
        outputs: ir.outputs.iter().map(edge).collect(),
        constants: ir.constants.iter().map(|c| (c.shape().iter().product(), c.dtype())).collect(),
        packed: constants.collect(),
        buffers: buffers
            .into_iter()
            .map(|(offset, bytes)| Buffer { offset: offset as u64, bytes: bytes as u64 })
            .collect(),
        arena: arena as u64,
        kernels: kernels.into_iter().map(kernel).collect(),
        launches: launches.into_iter().map(launch).collect(),
        source,
        device: traits.name.clone(),
        selector: "auto".to_owned(),
    })
}
