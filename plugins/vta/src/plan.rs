//! Plans a region: translates nodes into buffers, layers, tilings and an instruction stream.

use crate::image::{Buffer, Content, Edge, Image, LayerInfo, Simulator};
use crate::lower::range::ChannelStep;
use crate::lower::{ConvShape, Kind, Network, Node, NodeStep};
use crate::pack::{self, Layout, Weights};
use byoc_plugin_api::{DType, RefusalCode};
use byoc_plugin_support::refusal::{CompileError, refuse, refuse_with_hint};
use byoc_plugin_support::region::{RegionIr, Val};
use byoc_vta_machine::config::Config;
use byoc_vta_machine::cycles;
use byoc_vta_machine::isa::Memory;
use byoc_vta_program::emit::{self, Auxiliary, Runs};
use byoc_vta_program::layer::{Conv, Elementwise, Form, Layer, Place, Pool, Step};
use byoc_vta_program::search;
use byoc_vta_program::tile::Tile;
use std::collections::BTreeMap;

/// Maximum buffer size in bytes, the limit of the newest drivers.
const MAX_BUFFER: usize = 1 << 24;

/// Buffers and layers of a region under construction.
struct Planner<'a> {
    config: &'a Config,
    ir: &'a RegionIr<'a>,
    buffers: Vec<Buffer>,
    /// Contents of the vector buffer.
    vectors: Vec<u8>,
    /// Buffer index of each tensor.
    tensors: BTreeMap<Val, u32>,
    layers: Vec<Layer>,
}

/// Index of the micro-operation buffer.
const UOPS: u32 = 0;
/// Index of the identity matrix buffer.
const IDENTITY: u32 = 1;
/// Index of the vector buffer.
const VECTORS: u32 = 2;

fn shape_of(ir: &RegionIr<'_>, value: Val) -> Vec<usize> {
    ir.shape(value).iter().map(|&dim| dim as usize).collect()
}

/// Checks that every layer of a region has a tiling that fits into the device memories.
///
/// # Errors
/// If an input is not int8, a layer has no tiling, or a buffer is too large.
pub fn check(network: &Network<'_>, config: &Config) -> Result<(), CompileError> {
    Planner::new(network, config)?;
    Ok(())
}

/// Plans a region: chooses tilings, and emits the stream.
///
/// # Errors
/// If an input is not int8, a layer has no tiling, or a buffer is too large.
pub fn plan(network: &Network<'_>, symbol: &str, config: &Config, runs: Runs) -> Result<Image, CompileError> {
    let planner = Planner::new(network, config)?;
    let mut tiled_layers: Vec<(Layer, Tile)> = Vec::new();
    let mut tiles_by_layer: BTreeMap<String, Tile> = BTreeMap::new();
    for (layer, node) in planner.layers.iter().zip(&network.nodes) {
        // Layers that differ only in the locations of their tensors share a tiling.
        let key = format!("{:?}", layer.without_places());
        let tile = match tiles_by_layer.get(&key) {
            Some(tile) => *tile,
            None => match search::fastest(config, layer) {
                Some((tile, _)) => tile,
                None => {
                    return refuse(
                        RefusalCode::ResourceLimit,
                        format!("{}: no tiling fits into the on-chip memories", node.comment),
                    );
                }
            },
        };
        tiles_by_layer.insert(key, tile);
        tiled_layers.push((layer.clone(), tile));
    }
    let program = match emit::program(config, &tiled_layers, Auxiliary { uops: UOPS, identity: IDENTITY }, runs) {
        Ok(program) => program,
        Err(error) => return refuse(RefusalCode::ResourceLimit, error.to_string()),
    };
    let timing = cycles::time(config, &program.stream).unwrap_or_default();
    let mut start = 0.0;
    let layers = program.layers.iter().zip(&tiled_layers).zip(&network.nodes).map(|((range, (layer, tile)), node)| {
        let end = timing.ends.get(range.clone()).unwrap_or_default().iter().fold(start, |a: f64, b| a.max(*b));
        let cycles = (end - start).round() as u64;
        start = end;
        LayerInfo::new(config, node, layer, *tile, range.clone(), cycles, &program.stream)
    });
    let layers = layers.collect();
    let mut buffers = planner.buffers;
    buffers[UOPS as usize].bytes = program.uops.len() * 4;
    buffers[VECTORS as usize].bytes = planner.vectors.len();
    if buffers[UOPS as usize].bytes > MAX_BUFFER {
        return refuse(
            RefusalCode::ResourceLimit,
            format!("expected at most {MAX_BUFFER} bytes of micro-operations, found {}", buffers[UOPS as usize].bytes),
        );
    }
    let edge = |value: &Val, dtype: DType| Edge {
        shape: shape_of(&network.ir, *value),
        int32: dtype == DType::I32,
        buffer: planner.tensors[value],
    };
    Ok(Image {
        symbol: symbol.to_owned(),
        simulator: Simulator::default(),
        config: config.clone(),
        inputs: network.ir.inputs.iter().map(|value| edge(value, DType::I8)).collect(),
        outputs: network.ir.outputs.iter().map(|value| edge(value, network.ir.val(*value).dtype)).collect(),
        constants: network.ir.constants.len(),
        buffers,
        layers,
        runs: program.runs,
        vectors: planner.vectors,
        uops: program.uops,
        stream: program.stream,
        accessed_buffers: program.buffers,
    })
}

impl<'a> Planner<'a> {
    fn new(network: &'a Network<'a>, config: &'a Config) -> Result<Planner<'a>, CompileError> {
        let identity = config.element_bytes(Memory::Wgt);
        let buffers = vec![
            Buffer { bytes: 0, content: Content::Uops },
            Buffer { bytes: identity, content: Content::Identity },
            Buffer { bytes: 0, content: Content::Vectors },
        ];
        let ir = &network.ir;
        let (vectors, layers) = (Vec::new(), Vec::new());
        let mut planner = Planner { config, ir, buffers, vectors, tensors: BTreeMap::new(), layers };
        for (index, input) in ir.inputs.iter().enumerate() {
            if ir.val(*input).dtype != DType::I8 {
                let detail = format!("input {index}: expected int8, found {}", ir.val(*input).dtype);
                return refuse(RefusalCode::UnsupportedDtype, detail);
            }
            planner.tensor(*input, Form::Bytes, Content::Input(index))?;
        }
        for node in &network.nodes {
            let layer = planner.layer(node)?;
            if !search::has_tiling(config, &layer) {
                let detail = format!(
                    "{}: even a tile of one result exceeds the on-chip memories of {}",
                    node.comment,
                    config.name()
                );
                return refuse_with_hint(
                    RefusalCode::ResourceLimit,
                    detail,
                    "set the memory sizes of the device in libbyoc_vta.json next to the plugin",
                );
            }
            planner.layers.push(layer);
        }
        Ok(planner)
    }

    fn buffer(&mut self, bytes: usize, content: Content) -> Result<u32, CompileError> {
        if bytes > MAX_BUFFER {
            let detail = format!("expected buffers of at most {MAX_BUFFER} bytes, found {bytes}");
            return refuse(RefusalCode::ResourceLimit, detail);
        }
        self.buffers.push(Buffer { bytes, content });
        Ok(self.buffers.len() as u32 - 1)
    }

    /// Adds a buffer for a tensor.
    fn tensor(&mut self, value: Val, form: Form, content: Content) -> Result<Place, CompileError> {
        let elements = Layout::of(&shape_of(self.ir, value)).elements(self.config);
        let bytes = elements * self.config.element_bytes(Memory::Inp) * form.bytes();
        let buffer = self.buffer(bytes, content)?;
        self.tensors.insert(value, buffer);
        Ok(Place { buffer, offset: 0 })
    }

    fn address_of(&self, value: Val) -> Place {
        Place { buffer: self.tensors.get(&value).copied().unwrap_or(u32::MAX), offset: 0 }
    }

    fn layer(&mut self, node: &Node) -> Result<Layer, CompileError> {
        let form = if self.ir.val(node.result).dtype == DType::I32 { Form::Planes } else { Form::Bytes };
        let output = self.ir.outputs.iter().position(|output| *output == node.result);
        let result = self.tensor(node.result, form, output.map_or(Content::Scratch, Content::Output))?;
        let data = self.address_of(node.data);
        Ok(match &node.kind {
            Kind::Conv(shape) => {
                let weights = self.weights(shape);
                let groups = weights.merged_groups();
                let steps = self.steps(node, groups);
                Layer::Conv(self.conv(shape, weights, steps, [data, result], form)?)
            }
            Kind::Pool(shape) => Layer::Pool(Pool {
                images: shape.batch.div_ceil(self.config.batch()) * shape.channels.div_ceil(self.config.block()),
                size: shape.size,
                kernel: shape.kernel,
                strides: shape.strides,
                pads: shape.pads,
                results: shape.results,
                data,
                steps: self.steps(node, 1),
                result,
            }),
            Kind::Elementwise => {
                let elements = Layout::of(&shape_of(self.ir, node.result)).elements(self.config);
                Layer::Elementwise(Elementwise { elements, data, steps: self.steps(node, 1), result })
            }
        })
    }

    fn weights(&self, shape: &ConvShape) -> Weights {
        let (channels, kernels) = (shape.channels / shape.groups, shape.kernels / shape.groups);
        Weights {
            constant: shape.weight,
            kernels: shape.kernels,
            channels,
            groups: shape.groups,
            merged: Weights::groups_to_merge(channels, kernels, shape.groups, self.config.block()),
            taps: shape.kernel[0] * shape.kernel[1],
        }
    }

    fn conv(
        &mut self,
        shape: &ConvShape,
        weights: Weights,
        steps: Vec<Step>,
        [data, result]: [Place; 2],
        form: Form,
    ) -> Result<Conv, CompileError> {
        let block = self.config.block();
        let [inputs, outputs] = weights.blocks(block);
        let groups = weights.merged_groups();
        let weight = Place { buffer: self.buffer(weights.bytes(block), Content::Weights(weights))?, offset: 0 };
        let batch = shape.batch.div_ceil(self.config.batch());
        // The rows of a dense layer are treated as positions in one image.
        let (batch, size) = if shape.dense { (1, [batch, 1]) } else { (batch, shape.size) };
        let ConvShape { kernel, strides, pads, .. } = *shape;
        Ok(Conv { batch, groups, inputs, outputs, size, kernel, strides, pads, data, weight, steps, result, form })
    }

    fn steps(&mut self, node: &Node, groups: usize) -> Vec<Step> {
        let step = |step: &NodeStep| match step {
            NodeStep::Channel(ChannelStep::Immediate(op, imm)) => Step::Immediate(*op, *imm),
            NodeStep::Channel(ChannelStep::Vector(op, values)) => {
                let address = Place { buffer: VECTORS, offset: self.vectors.len() };
                self.vectors.extend(pack::vector(self.config, groups, values));
                Step::Vector(*op, address)
            }
            NodeStep::Add(widened) => {
                Step::AddTensor { place: self.address_of(widened.tensor), steps: widened.steps.clone() }
            }
        };
        node.steps.iter().map(step).collect()
    }
}
