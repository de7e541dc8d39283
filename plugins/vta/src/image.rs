//! Compiled region: buffers in memory that host and device share, layers, and the stream.

use crate::lower::Node;
use crate::pack::{Layout, Weights};
use byoc_plugin_api::{Constant, DType, Error, Result, Services};
use byoc_vta_machine::check::Segment;
use byoc_vta_machine::config::Config;
use byoc_vta_machine::isa::{Insn, Memory, Op};
use byoc_vta_program::layer::{Form, Layer};
use byoc_vta_program::tile::Tile;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::Range;

/// Page size of driver memory in bytes. Buffers begin at page boundaries.
pub const PAGE: usize = 4096;

/// Simulator mode for a region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Simulator {
    /// Runs the region under the rules of VTA's functional simulator.
    #[default]
    Functional,
    /// Runs the region under the rules that all hardware designs share.
    Strict,
    /// Runs the region in both modes under many schedules, and compares the results.
    Schedules,
}

impl Simulator {
    /// Names of the modes in the backend option; the first is the default.
    pub const NAMES: [&'static str; 3] = ["functional", "strict", "schedules"];

    /// Returns the mode with the given name, or the default mode for an unknown name, which the host rejects.
    pub fn named(name: Option<&str>) -> Simulator {
        match name {
            Some("strict") => Simulator::Strict,
            Some("schedules") => Simulator::Schedules,
            _ => Simulator::Functional,
        }
    }
}

impl fmt::Display for Simulator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Simulator::Functional => "functional simulator",
            Simulator::Strict => "strict simulator",
            Simulator::Schedules => "simulator under many schedules",
        })
    }
}

/// Compiled region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// Symbol of the region.
    pub symbol: String,
    /// Simulator mode for runs without a driver.
    pub simulator: Simulator,
    /// Target device of the stream.
    pub config: Config,
    /// Region inputs.
    pub inputs: Vec<Edge>,
    /// Region outputs.
    pub outputs: Vec<Edge>,
    /// Number of region constants.
    pub constants: usize,
    pub buffers: Vec<Buffer>,
    /// Layers in execution order.
    pub layers: Vec<LayerInfo>,
    /// Instruction range of each device run.
    pub runs: Vec<Range<usize>>,
    /// Contents of the vector buffer.
    pub vectors: Vec<u8>,
    /// Contents of the micro-operation buffer.
    pub uops: Vec<u32>,
    /// Instructions. Transfer addresses are relative to their buffers.
    pub stream: Vec<Insn>,
    /// Index of the buffer that each instruction accesses, if any.
    pub accessed_buffers: Vec<Option<u32>>,
}

/// Region input or output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Edge {
    /// Dimensions of the tensor.
    pub shape: Vec<usize>,
    /// True for int32, which is packed as four byte planes; false for int8.
    pub int32: bool,
    /// Index of the packed tensor's buffer.
    pub buffer: u32,
}

impl Edge {
    /// Returns the layout of the tensor.
    pub fn layout(&self) -> Layout {
        Layout::of(&self.shape)
    }

    /// Returns the size of the packed tensor in bytes.
    pub fn bytes(&self, config: &Config) -> usize {
        let form = if self.int32 { Form::Planes } else { Form::Bytes };
        self.layout().elements(config) * config.element_bytes(Memory::Out) * form.bytes()
    }
}

/// Buffer in memory that host and device share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Buffer {
    /// Size in bytes.
    pub bytes: usize,
    pub content: Content,
}

/// Content of a buffer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Content {
    /// Micro-operations.
    Uops,
    /// Weight element with the identity matrix.
    Identity,
    /// Vectors: one operand per output channel.
    Vectors,
    /// Packed weights.
    Weights(Weights),
    /// Packed input, by index.
    Input(usize),
    /// Packed output, by index.
    Output(usize),
    /// Packed tensor between layers.
    Scratch,
}

impl fmt::Display for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Content::Uops => f.write_str("micro-operations"),
            Content::Identity => f.write_str("identity matrix"),
            Content::Vectors => f.write_str("vectors of biases and shift amounts"),
            Content::Weights(weights) => write!(f, "weights of constant {}", weights.constant),
            Content::Input(index) => write!(f, "input {index}"),
            Content::Output(index) => write!(f, "output {index}"),
            Content::Scratch => f.write_str("tensor between layers"),
        }
    }
}

/// Layer of a region, for reports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerInfo {
    /// Operators, with their source nodes in the model.
    pub name: String,
    /// Range of the layer's instructions.
    pub instructions: Range<usize>,
    /// Tile: rows, columns, input channel blocks, output channel blocks, virtual threads.
    pub tile: [usize; 5],
    /// Number of matrix unit steps.
    pub gemm_steps: u64,
    /// Number of bytes that transfers move.
    pub bytes: u64,
    /// Predicted cycles.
    pub cycles: u64,
}

impl LayerInfo {
    /// Creates the report entry of a layer.
    pub fn new(
        config: &Config,
        node: &Node,
        layer: &Layer,
        tile: Tile,
        instructions: Range<usize>,
        cycles: u64,
        stream: &[Insn],
    ) -> LayerInfo {
        let transferred_bytes = |insn: &Insn| match &insn.op {
            Op::Load(transfer) | Op::Store(transfer) => {
                u64::from(transfer.x_size) * u64::from(transfer.y_size) * config.element_bytes(transfer.memory) as u64
            }
            _ => 0,
        };
        LayerInfo {
            name: node.comment.clone(),
            bytes: stream[instructions.clone()].iter().map(transferred_bytes).sum(),
            instructions,
            tile: [tile.size[0], tile.size[1], tile.inputs, tile.outputs, tile.threads.count()],
            gemm_steps: if let Layer::Conv(conv) = layer { conv.gemm_steps() as u64 } else { 0 },
            cycles,
        }
    }

    /// Returns the fraction of the predicted cycles in which the matrix unit executes a step.
    pub fn utilization(&self) -> f64 {
        self.gemm_steps as f64 / self.cycles.max(1) as f64
    }
}

impl Image {
    /// Returns consecutive page-aligned buffer addresses, and the end of the last buffer.
    pub fn addresses(&self) -> (Vec<u64>, usize) {
        let mut end = PAGE;
        let mut addresses = Vec::with_capacity(self.buffers.len());
        for buffer in &self.buffers {
            addresses.push(end as u64);
            end += buffer.bytes.next_multiple_of(PAGE).max(PAGE);
        }
        (addresses, end)
    }

    /// Returns the buffers as segments for the checker.
    pub fn segments(&self, addresses: &[u64]) -> Vec<Segment> {
        let segment = |(buffer, address): (&Buffer, &u64)| Segment {
            range: *address as usize..*address as usize + buffer.bytes,
            writable: matches!(buffer.content, Content::Output(_) | Content::Scratch),
            uops: (buffer.content == Content::Uops).then(|| self.uops.clone()),
        };
        self.buffers.iter().zip(addresses).map(segment).collect()
    }

    /// Returns the content of a buffer that is filled before the first run; `None` for a tensor.
    ///
    /// # Errors
    /// If a constant does not match the compiled region.
    pub fn content(&self, buffer: usize, constants: &[Constant], services: &Services) -> Result<Option<Vec<u8>>> {
        let block = self.config.block();
        Ok(Some(match &self.buffers[buffer].content {
            Content::Uops => self.uops.iter().flat_map(|uop| uop.to_le_bytes()).collect(),
            Content::Identity => (0..block * block).map(|i| u8::from(i / block == i % block)).collect(),
            Content::Vectors => self.vectors.clone(),
            Content::Weights(weights) => {
                let constant = &constants[weights.constant];
                let expected = weights.kernels * weights.channels * weights.taps;
                if constant.dtype() != DType::I8 || constant.bytes().len() != expected {
                    let index = weights.constant;
                    let (dtype, found) = (constant.dtype(), constant.bytes().len());
                    return Err(Error::new(format!(
                        "constant {index}: expected {expected} int8 weights, found {found} bytes of {dtype}"
                    )));
                }
                let mut packed_weights = vec![0; weights.bytes(block)];
                weights.pack(services, block, constant.tensor().as_slice::<i8>(), &mut packed_weights)?;
                packed_weights
            }
            Content::Input(_) | Content::Output(_) | Content::Scratch => return Ok(None),
        }))
    }

    /// Returns the layer of an instruction.
    pub fn layer_of(&self, instruction: usize) -> Option<&LayerInfo> {
        self.layers.iter().find(|layer| layer.instructions.contains(&instruction))
    }

    /// Prefixes a message with the layer and index of an instruction.
    pub fn locate_message(&self, instruction: Option<usize>, message: &str) -> String {
        match instruction {
            Some(index) => match self.layer_of(index) {
                Some(layer) => format!("layer {}: instruction {index}: {message}", layer.name),
                None => format!("instruction {index}: {message}"),
            },
            None => message.to_owned(),
        }
    }

    /// Returns the predicted cycles per run of the region.
    pub fn cycles(&self) -> u64 {
        self.layers.iter().map(|layer| layer.cycles).sum()
    }
}
