//! Test harness: regions under construction, and a naive evaluator of their operators.

use crate::backend::NucFpga;
use crate::device::config::Config;
use crate::loader::CommandLoader;
use byoc_plugin_api::*;
use byoc_test_support::plugin::{self, Memory, Recording, host};
use byoc_test_support::random::Random;
use serde_json::json;
use std::sync::Arc;

/// Returns uniformly distributed int8 values, including -128.
pub fn int8s(random: &mut Random, count: usize) -> Vec<i8> {
    (0..count).map(|_| random.bits() as i8).collect()
}

/// Encodes integers as elements of type `dtype`.
pub fn encode(dtype: DType, values: &[i64]) -> Vec<u8> {
    match dtype.size() {
        1 => values.iter().map(|&v| v as u8).collect(),
        4 => values.iter().flat_map(|&v| (v as i32).to_le_bytes()).collect(),
        size => panic!("expected elements of 1 or 4 bytes, found {size}"),
    }
}

/// Decodes tensor elements to integers.
pub fn decode(dtype: DType, bytes: &[u8]) -> Vec<i64> {
    match dtype {
        DType::I8 => bytes.iter().map(|&b| i64::from(b as i8)).collect(),
        DType::U8 => bytes.iter().map(|&b| i64::from(b)).collect(),
        DType::I32 => bytes.chunks_exact(4).map(|b| i64::from(i32::from_le_bytes(b.try_into().unwrap()))).collect(),
        other => panic!("unsupported element type {other}"),
    }
}

/// Region under construction, with the values of its inputs.
pub struct Case {
    pub graph: Graph,
    pub constants: Vec<Constant>,
    pub inputs: Vec<Memory>,
    pub random: Random,
}

pub fn ty(dtype: DType, shape: &[usize]) -> TensorType {
    TensorType::new(dtype, shape)
}

impl Case {
    pub fn new(seed: u64) -> Case {
        Case { graph: Graph::new("region_0"), constants: Vec::new(), inputs: Vec::new(), random: Random::new(seed) }
    }

    pub fn input_of(&mut self, dtype: DType, shape: &[usize]) -> ValueRef {
        let count = shape.iter().product::<usize>() * dtype.size();
        let bytes: Vec<u8> = int8s(&mut self.random, count).iter().map(|&v| v as u8).collect();
        self.inputs.push(Memory::of(&bytes));
        let name = format!("x{}", self.inputs.len());
        ValueRef::of(self.graph.push_input(&name, ty(dtype, shape)))
    }

    pub fn constant(&mut self, dtype: DType, shape: &[usize], bytes: &[u8]) -> ValueRef {
        let index = self.constants.len() as u32;
        self.constants.push(plugin::constant(dtype, shape, bytes));
        ValueRef::of(self.graph.push_constant(index, ty(dtype, shape)))
    }

    pub fn int32(&mut self, shape: &[usize], values: &[i64]) -> ValueRef {
        self.constant(DType::I32, shape, &encode(DType::I32, values))
    }

    pub fn float32(&mut self, shape: &[usize], values: &[f32]) -> ValueRef {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.constant(DType::F32, shape, &bytes)
    }

    /// Adds a constant kernel with random elements.
    pub fn kernel(&mut self, shape: &[usize]) -> ValueRef {
        let values = int8s(&mut self.random, shape.iter().product());
        let bytes: Vec<u8> = values.iter().map(|&v| v as u8).collect();
        self.constant(DType::I8, shape, &bytes)
    }

    pub fn op(&mut self, name: &str, inputs: &[ValueRef], attrs: Vec<Attr>, out: TensorType) -> ValueRef {
        let node = self.graph.push_op(name, inputs.iter().copied(), attrs, [out]);
        self.graph.nodes[node as usize].sources.push(format!("node {node} */").into());
        ValueRef::of(node)
    }

    pub fn conv2d(&mut self, conv: &ConvCase, data: ValueRef) -> ValueRef {
        let kernel = self.kernel(&conv.kernel_shape());
        self.op("nn.conv2d", &[data, kernel], conv.attrs(), ty(DType::I32, &conv.out_shape()))
    }

    pub fn output(&mut self, value: ValueRef) {
        self.graph.outputs.push(value);
    }

    /// Returns the verdict of the code generator on the region.
    pub fn judge(&self) -> Verdict {
        let mut candidate = Candidate::new(CandidateKind::Operator, "", self.graph.clone());
        candidate.constants = self.constants.clone().into();
        NucFpga { config: Config::default() }.judge(&candidate)
    }

    /// Returns the verdict as text.
    pub fn refusal(&self) -> String {
        match self.judge() {
            Verdict::Supported => "supported".to_owned(),
            Verdict::Refused(r) => format!("{}: {}", r.code, r.detail),
        }
    }

    pub fn compile(&self) -> CompiledRegion {
        assert_eq!(self.judge(), Verdict::Supported);
        let region = Region { graph: &self.graph, constants: &self.constants, options: &json!({}) };
        NucFpga { config: Config::default() }.compile(&region).unwrap_or_else(|error| panic!("{error}"))
    }

    pub fn load(&self, blob: &[u8], services: &Services) -> Result<Box<dyn Executable>> {
        CommandLoader { config: Config::default() }.load(&LoadRequest {
            symbol: &self.graph.symbol,
            blob,
            constants: &self.constants,
            services,
            options: &json!({}),
        })
    }

    pub fn output_types(&self) -> Vec<TensorType> {
        self.graph.output_types().cloned().collect()
    }

    /// Runs a compiled region. Returns its outputs, and the events and counters that the host has received.
    pub fn run(&self, blob: &[u8], threads: usize) -> (Vec<Vec<i64>>, Arc<Recording>) {
        let (services, recording) = host(threads);
        let executable = self.load(blob, &services).unwrap_or_else(|error| panic!("{error}"));
        let inputs: Vec<_> = self.graph.inputs.iter().map(|input| input.ty.clone()).zip(self.inputs.clone()).collect();
        let types = self.output_types();
        let memory = plugin::run(&*executable, &inputs, &types, 1);
        (types.iter().zip(memory).map(|(t, memory)| decode(t.dtype, memory.bytes())).collect(), recording)
    }

    /// Evaluates the region naively and returns its outputs.
    pub fn expected(&self) -> Vec<Vec<i64>> {
        let mut values: Vec<Vec<i64>> = Vec::new();
        let constant = |value: ValueRef| match self.graph.node(value.node).kind {
            NodeKind::Constant(i) => &self.constants[i as usize],
            _ => panic!("expected a constant, found another node"),
        };
        for node in self.graph.nodes.iter() {
            let values_of = |i: usize| &values[node.inputs[i].node as usize];
            let shape = |i: usize| self.graph.type_of(node.inputs[i]).shape().unwrap();
            let out = node.outputs[0].shape().unwrap();
            let value = match &node.kind {
                NodeKind::Input(i) => decode(node.outputs[0].dtype, self.inputs[*i as usize].bytes()),
                // The operators that use scales read them from the constants.
                NodeKind::Constant(_) if node.outputs[0].dtype == DType::F32 => Vec::new(),
                NodeKind::Constant(i) => decode(node.outputs[0].dtype, self.constants[*i as usize].bytes()),
                NodeKind::Composite(_) => panic!("expected an operator, found a composite"),
                NodeKind::Op(name) => match name.as_str() {
                    "nn.conv2d" | "qnn.conv2d" => {
                        naive_conv2d(node, values_of(0), &shape(0), values_of(1), &shape(1), &out)
                    }
                    "nn.dense" | "qnn.dense" => naive_dense(values_of(0), values_of(1), &shape(1)),
                    "nn.bias_add" | "add" => {
                        let axis = if out.len() == 4 { 1 } else { out.len() - 1 };
                        let inner: usize = out[axis + 1..].iter().product();
                        let (x, b) =
                            if shape(0) == out { (values_of(0), values_of(1)) } else { (values_of(1), values_of(0)) };
                        let channel_of = |i: usize| if b.len() == 1 { 0 } else { i / inner % b.len() };
                        x.iter()
                            .enumerate()
                            .map(|(i, &x)| i64::from((x as i32).wrapping_add(b[channel_of(i)] as i32)))
                            .collect()
                    }
                    "nn.relu" => values_of(0).iter().map(|&x| x.max(0)).collect(),
                    "clip" => {
                        let (low, high) = (node.float("a_min").unwrap(), node.float("a_max").unwrap());
                        let clip = |&x: &i64| {
                            if (x as f64) < low {
                                low as i64
                            } else if x as f64 > high {
                                high as i64
                            } else {
                                x
                            }
                        };
                        values_of(0).iter().map(clip).collect()
                    }
                    "cast" => decode(node.outputs[0].dtype, &encode(node.outputs[0].dtype, values_of(0))),
                    "fixed_point_multiply" => {
                        let (m, s) = (node.int("multiplier").unwrap(), node.int("shift").unwrap());
                        let wrap_to_int32 = |y: i128| i64::from(y as i32);
                        values_of(0)
                            .iter()
                            .map(|&x| wrap_to_int32(fixed_point(x, m as i32, s as i32, "UPWARD")))
                            .collect()
                    }
                    "qnn.requantize" => {
                        let scales = constant(node.inputs[1]).tensor().as_slice::<f32>();
                        let out_scale = constant(node.inputs[3]).tensor().as_slice::<f32>()[0];
                        let zero = i128::from(constant(node.inputs[4]).tensor().as_slice::<i32>()[0]);
                        let axis = if out.len() == 4 { 1 } else { out.len() - 1 };
                        let inner: usize = out[axis + 1..].iter().product();
                        let range = match node.outputs[0].dtype {
                            DType::I8 => [-128, 127],
                            DType::U8 => [0, 255],
                            _ => [i128::from(i32::MIN), i128::from(i32::MAX)],
                        };
                        let requantize = |(i, &x): (usize, &i64)| {
                            let in_scale = scales[if scales.len() == 1 { 0 } else { i / inner % scales.len() }];
                            let (m, e) = multiplier_and_exponent(in_scale, out_scale);
                            let y = if in_scale == out_scale {
                                i128::from(x)
                            } else {
                                fixed_point(x, m, e, node.text("rounding").unwrap())
                            };
                            let y = y.clamp(i32::MIN.into(), i32::MAX.into());
                            (y + zero).clamp(range[0], range[1]) as i64
                        };
                        values_of(0).iter().enumerate().map(requantize).collect()
                    }
                    other => panic!("unsupported operator {other}"),
                },
            };
            values.push(value);
        }
        self.graph.outputs.iter().map(|v| values[v.node as usize].clone()).collect()
    }
}

/// Evaluates Relay's formula, with both shifts, in 128 bits.
pub fn fixed_point(x: i64, multiplier: i32, exponent: i32, rounding: &str) -> i128 {
    let (left_shift, right) = (exponent.max(0), (-exponent).max(0));
    let y = (i128::from(x) << left_shift) * i128::from(multiplier);
    let (half_unit, shift) = (1i128 << (30 + right), 31 + right);
    match rounding {
        "TONEAREST" if y < 0 => (y + half_unit - 1) >> shift,
        "TOEVEN" => {
            let floor = y >> shift;
            let remainder = y - (floor << shift);
            if remainder > half_unit || (remainder == half_unit && floor % 2 != 0) { floor + 1 } else { floor }
        }
        _ => (y + half_unit) >> shift,
    }
}

/// Returns `frexp` of the quotient, computed by repeated scaling by 2, with the fraction rounded to 31 bits.
fn multiplier_and_exponent(in_scale: f32, out_scale: f32) -> (i32, i32) {
    let (mut fraction, mut exponent) = (f64::from(in_scale) / f64::from(out_scale), 0);
    while fraction >= 1.0 {
        fraction /= 2.0;
        exponent += 1;
    }
    while fraction < 0.5 {
        fraction *= 2.0;
        exponent -= 1;
    }
    let multiplier = (fraction * f64::from(1u32 << 31)).round() as i64;
    if multiplier == 1 << 31 { (1 << 30, exponent + 1) } else { (multiplier as i32, exponent) }
}

fn naive_conv2d(node: &Node, x: &[i64], x_shape: &[usize], w: &[i64], ws: &[usize], out: &[usize]) -> Vec<i64> {
    let ints = |key: &str| node.ints(key).unwrap();
    let (padding, strides) = (ints("padding"), ints("strides"));
    let groups = node.int("groups").unwrap() as usize;
    let mut y = Vec::with_capacity(out.iter().product());
    for n in 0..out[0] {
        for o in 0..out[1] {
            let group = o / (ws[0] / groups);
            for r in 0..out[2] {
                for c in 0..out[3] {
                    let mut sum = 0;
                    for i in 0..ws[1] {
                        for v in 0..ws[2] {
                            for u in 0..ws[3] {
                                let row = r as i64 * strides[0] + v as i64 - padding[0];
                                let column = c as i64 * strides[1] + u as i64 - padding[1];
                                if row < 0 || column < 0 || row >= x_shape[2] as i64 || column >= x_shape[3] as i64 {
                                    continue;
                                }
                                let channel = group * ws[1] + i;
                                let index = ((n * x_shape[1] + channel) * x_shape[2] + row as usize) * x_shape[3]
                                    + column as usize;
                                sum += x[index] * w[((o * ws[1] + i) * ws[2] + v) * ws[3] + u];
                            }
                        }
                    }
                    y.push(sum);
                }
            }
        }
    }
    y
}

fn naive_dense(x: &[i64], w: &[i64], ws: &[usize]) -> Vec<i64> {
    let rows = x.chunks_exact(ws[1]);
    rows.flat_map(|x| w.chunks_exact(ws[1]).map(move |w| x.iter().zip(w).map(|(a, b)| a * b).sum::<i64>())).collect()
}

/// Convolution parameters.
#[derive(Clone, Debug)]
pub struct ConvCase {
    pub data: [usize; 4],
    pub kernels: usize,
    pub kernel: [usize; 2],
    pub strides: [usize; 2],
    pub padding: [usize; 2],
    pub groups: usize,
}

impl Default for ConvCase {
    fn default() -> ConvCase {
        ConvCase { data: [1, 8, 9, 7], kernels: 6, kernel: [3, 3], strides: [1, 1], padding: [1, 1], groups: 1 }
    }
}

impl ConvCase {
    /// Returns random parameters. A third of the cases may have groups, including depthwise convolutions.
    pub fn random(random: &mut Random) -> ConvCase {
        let random_in = |random: &mut Random, min, max| random.between(min, max) as usize;
        let groups = [1, 1, random_in(random, 1, 8)][random_in(random, 0, 2)];
        let (channels, kernels) = (random_in(random, 1, 12), random_in(random, 1, 12));
        let kernel = [random_in(random, 1, 5), random_in(random, 1, 5)];
        let padding = [random_in(random, 0, 3), random_in(random, 0, 3)];
        let random_size = |random: &mut Random, i: usize| {
            let min_size = kernel[i].saturating_sub(2 * padding[i]).max(1) as i64;
            random.between(min_size, min_size + 13) as usize
        };
        let (height, width) = (random_size(random, 0), random_size(random, 1));
        ConvCase {
            data: [random_in(random, 1, 3), groups * channels, height, width],
            kernels: groups * kernels,
            kernel,
            strides: [random_in(random, 1, 3), random_in(random, 1, 3)],
            padding,
            groups,
        }
    }

    pub fn kernel_shape(&self) -> [usize; 4] {
        [self.kernels, self.data[1] / self.groups, self.kernel[0], self.kernel[1]]
    }

    pub fn out_shape(&self) -> [usize; 4] {
        let size = |i: usize| (self.data[2 + i] + 2 * self.padding[i] - self.kernel[i]) / self.strides[i] + 1;
        [self.data[0], self.kernels, size(0), size(1)]
    }

    pub fn attrs(&self) -> Vec<Attr> {
        let to_i64s = |values: &[usize]| values.iter().map(|&v| v as i64).collect::<Vec<i64>>();
        let [y, x] = self.padding;
        vec![
            Attr::new("strides", to_i64s(&self.strides)),
            Attr::new("padding", to_i64s(&[y, x, y, x])),
            Attr::new("dilation", vec![1i64, 1]),
            Attr::new("groups", self.groups as i64),
            Attr::new("channels", self.kernels as i64),
            Attr::new("kernel_size", to_i64s(&self.kernel)),
            Attr::new("data_layout", "NCHW"),
            Attr::new("kernel_layout", "OIHW"),
            Attr::new("out_layout", ""),
            Attr::new("out_dtype", "int32"),
        ]
    }
}
