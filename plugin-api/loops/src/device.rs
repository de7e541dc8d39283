//! Kernels of a device: a region as launches of kernels in OpenCL C over an arena. The kernels of a lowered region in
//! another language are those of [`crate::print::kernel`] in its dialect.

use crate::externals::Externals;
use crate::form::{Device, Form};
use crate::group::{Fusion, Grouping};
use crate::lower::{PackedConstant, lower};
use crate::nest::Place;
use crate::packing::Packing;
use crate::print::comment;
use crate::print::kernel::kernel;
use crate::print::opencl::{self, OpenCl};
use crate::stage::{self, Stage};
use byoc_plugin_support::arena;
use byoc_plugin_support::region::RegionIr;
use std::collections::BTreeMap;
use std::fmt::Write;

/// Kernel function in the source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// Name in the source.
    pub name: String,
    /// Number of arguments, all of which are buffers.
    pub arguments: usize,
    /// Work-group size along each dimension.
    pub local: [usize; 3],
}

/// Launch of a kernel. Launches execute in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// Names of the operators that the launch computes.
    pub name: String,
    /// Index of the kernel.
    pub kernel: usize,
    /// Arguments. [`Place::Packed`] is an index into [`Kernels::packed`]; there is no [`Place::Constant`].
    pub arguments: Vec<Place>,
    /// Number of work-items along each dimension, a multiple of the kernel's work-group size.
    pub global: [usize; 3],
}

/// Region as kernels.
#[derive(Clone, Debug, Default)]
pub struct Kernels {
    /// Kernels.
    pub kernels: Vec<Kernel>,
    /// Launches, in execution order.
    pub launches: Vec<Launch>,
    /// Constants in the order that kernels read.
    pub packed: Vec<PackedConstant>,
    /// Offset and size in bytes of each buffer in the arena.
    pub buffers: Vec<(i64, i64)>,
    /// Size of the arena in bytes.
    pub arena: i64,
    /// Source of all kernels.
    pub source: String,
}

/// Generates the kernels of a region for a device, with the buffers of the arena at multiples of `align` bytes. `title`
/// is the first line of the source.
///
/// # Errors
/// If code generation does not support an operator, its types or its attributes.
pub fn kernels(ir: &RegionIr<'_>, title: &str, device: Device, align: i64) -> Result<Kernels, String> {
    let externals = Externals::default();
    let grouping = Grouping::new(ir, Fusion::Vectors, &externals);
    let lowering = lower(ir, &grouping, "region", Form::Device(device), &externals)?;
    let mut result = Kernels::default();
    let mut definitions: Vec<String> = Vec::new();
    let mut packed = lowering.packed.clone();
    let mut used: BTreeMap<Place, usize> = BTreeMap::new();
    // Equal kernels are defined once.
    let mut known: BTreeMap<String, usize> = BTreeMap::new();
    let mut list = format!("/* {}. Launches, in order:\n\n", comment(title));
    for phase in &lowering.phases {
        let Some((function, grid)) = phase.functions.last().zip(phase.grid) else { continue };
        let text = kernel(&OpenCl, function, grid);
        let operators = phase.comment.join("\n   ");
        let [x, y, z] = grid.local;
        let key = format!("{} {x} {y} {z} {}", phase.kind, text.definition);
        let kernel = *known.entry(key).or_insert_with(|| {
            let name = format!("k{}_{}", result.kernels.len(), phase.kind);
            let head = format!("kernel __attribute__((reqd_work_group_size({x}, {y}, {z})))\nvoid {name}");
            definitions.push(format!("/* {operators} */\n{head}{}", text.definition));
            result.kernels.push(Kernel { name, arguments: text.arguments.len(), local: grid.local });
            result.kernels.len() - 1
        });
        let round = |d: usize| (grid.items[d].max(1) as usize).div_ceil(grid.local[d]) * grid.local[d];
        let global = [round(0), round(1), round(2)];
        let [x, y, z] = global;
        let _ = writeln!(list, "   {}, {x} x {y} x {z} work-items\n   {operators}\n", result.kernels[kernel].name);
        let arguments = text.arguments.into_iter().map(|place| {
            // A constant that is read as it is has the trivial order.
            let place = match place {
                Place::Constant(i) => {
                    let constant = &ir.constants[i];
                    let elements = constant.shape().iter().product::<usize>() as i64;
                    packed.push(PackedConstant {
                        constant: Some(i),
                        dtype: constant.dtype(),
                        packing: Packing::identity(elements),
                        width: None,
                        comment: String::new(),
                    });
                    Place::Packed(packed.len() - 1)
                }
                place => place,
            };
            let Place::Packed(i) = place else { return place };
            let same = (0..packed.len()).find(|&j| {
                (packed[j].constant, packed[j].dtype, &packed[j].packing)
                    == (packed[i].constant, packed[i].dtype, &packed[i].packing)
            });
            let index = *used.entry(Place::Packed(same.unwrap_or(i))).or_insert_with(|| {
                result.packed.push(packed[i].clone());
                result.packed.len() - 1
            });
            Place::Packed(index)
        });
        let arguments = arguments.collect();
        let names: Vec<&str> = phase.comment.iter().map(|line| line.split(':').next().unwrap_or_default()).collect();
        let is_group = phase.group.is_some();
        let name = if is_group { names.join(" + ") } else { phase.kind.to_owned() };
        result.launches.push(Launch { name, kernel, arguments, global });
    }
    let sizes: Vec<i64> = lowering.buffers.iter().map(|buffer| buffer.bytes.max(1)).collect();
    let (offsets, arena) = arena::plan(&sizes, lowering.phases.iter().map(|phase| &phase.buffers), align);
    // An unused buffer stays at offset 0; the arena must still be large enough for it.
    let largest = sizes.iter().map(|bytes| (bytes + align - 1) / align * align).max().unwrap_or(0);
    result.buffers = offsets.into_iter().zip(sizes).collect();
    result.arena = arena.max(largest);
    result.source = format!(
        "{list}*/\n\n#pragma OPENCL FP_CONTRACT ON\n\n{}{}",
        opencl::prelude(&definitions),
        definitions.join("\n")
    );
    Ok(result)
}

/// Returns a stage of a region before the text of its kernels.
///
/// # Errors
/// If code generation does not support an operator, its types or its attributes.
pub fn stage(ir: &RegionIr<'_>, device: Device, stage: Stage) -> Result<String, String> {
    let externals = Externals::default();
    let grouping = Grouping::new(ir, Fusion::Vectors, &externals);
    Ok(stage::text(&lower(ir, &grouping, "region", Form::Device(device), &externals)?, stage))
}
