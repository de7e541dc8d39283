//! Patterns of the dnnl backend, each as a small program with constant weights, at the sizes of ResNet-50, MobileNetV2
//! and BERT, and the steps of recurrent layers. If a backend matches only part of a pattern, the pattern is
//! noticeably slower than its anchor operator.

use byoc::io::random;
use byoc_ir::ir::{AttrValue, Attrs, ExprId, Module, Type};
use byoc_ir::tensor::{DType, Tensor};
use byoc_ir::typing::Builder;

/// Module under construction.
#[derive(Default)]
pub struct NetBuilder {
    builder: Builder,
    params: Vec<ExprId>,
    constants: u64,
}

type Attr = (&'static str, AttrValue);

fn int_list(values: &[i64]) -> AttrValue {
    AttrValue::ints(values.iter().copied())
}

impl NetBuilder {
    fn input(&mut self, shape: &[usize]) -> ExprId {
        let var = self.builder.var(format!("x{}", self.params.len()), Type::tensor(DType::F32, shape));
        self.params.push(var);
        var
    }

    fn weight(&mut self, shape: &[usize]) -> ExprId {
        self.constants += 1;
        self.builder.constant(random::tensor(DType::F32, shape, self.constants))
    }

    fn number(&mut self, value: f32) -> ExprId {
        self.builder.constant(Tensor::scalar(value))
    }

    fn op(&mut self, name: &str, args: &[ExprId], attrs: &[Attr]) -> ExprId {
        let attrs = Attrs::new(attrs.iter().cloned());
        self.builder.op(name, args, attrs).unwrap_or_else(|error| panic!("{name}: {error:?}"))
    }

    fn op_scalar(&mut self, name: &str, x: ExprId, value: f32) -> ExprId {
        let value = self.number(value);
        self.op(name, &[x, value], &[])
    }

    fn split(&mut self, x: ExprId, count: u32) -> Vec<ExprId> {
        let tuple = self.op("split", &[x], &[("indices_or_sections", i64::from(count).into()), ("axis", 1.into())]);
        (0..count).map(|i| self.builder.project(tuple, i).expect("expected a tuple field")).collect()
    }

    /// Adds a convolution of a square image, without bias.
    fn conv(&mut self, x: ExprId, layer: &Layer) -> ExprId {
        let Layer { input, output, taps, stride, groups, .. } = *layer;
        let w = self.weight(&[output, input / groups, taps, taps]);
        let (pad, stride) = ((taps / 2) as i64, stride as i64);
        let attrs = [
            ("padding", int_list(&[pad, pad, pad, pad])),
            ("strides", int_list(&[stride, stride])),
            ("groups", (groups as i64).into()),
            ("channels", (output as i64).into()),
            ("kernel_size", int_list(&[taps as i64, taps as i64])),
        ];
        self.op("nn.conv2d", &[x, w], &attrs)
    }

    fn biased(&mut self, x: ExprId, channels: usize, axis: i64) -> ExprId {
        let b = self.weight(&[channels]);
        self.op("nn.bias_add", &[x, b], &[("axis", axis.into())])
    }

    /// Returns the finished module.
    fn module(mut self, result: ExprId) -> Module {
        self.builder.define("main", &self.params, result).expect("expected a well-typed module");
        self.builder.module
    }
}

/// Parameters of a convolution.
#[derive(Clone, Copy)]
struct Layer {
    /// Name of the layer in the tables.
    name: &'static str,
    input: usize,
    output: usize,
    size: usize,
    taps: usize,
    stride: usize,
    groups: usize,
}

const fn layer(name: &'static str, [input, output, size]: [usize; 3], [taps, stride, groups]: [usize; 3]) -> Layer {
    Layer { name, input, output, size, taps, stride, groups }
}

const LAYERS: &[Layer] = &[
    layer("stem 7x7/2", [3, 64, 224], [7, 2, 1]),
    layer("3x3 56", [64, 64, 56], [3, 1, 1]),
    layer("1x1 56", [64, 256, 56], [1, 1, 1]),
    layer("1x1/2 56", [256, 512, 56], [1, 2, 1]),
    layer("3x3 14", [256, 256, 14], [3, 1, 1]),
    layer("1x1 7", [2048, 512, 7], [1, 1, 1]),
    layer("expansion 1x1 56", [24, 144, 56], [1, 1, 1]),
    layer("depthwise 3x3 56", [144, 144, 56], [3, 1, 144]),
    layer("depthwise 3x3/2 14", [576, 576, 14], [3, 2, 576]),
    layer("projection 1x1 14", [384, 64, 14], [1, 1, 1]),
    layer("grouped 3x3 28", [256, 256, 28], [3, 1, 32]),
];

/// Activations with their names in the pattern table.
const ACTIVATIONS: &[(&str, fn(&mut NetBuilder, ExprId) -> ExprId)] = &[
    ("relu", |n, x| n.op("nn.relu", &[x], &[])),
    ("leaky_relu", |n, x| n.op("nn.leaky_relu", &[x], &[("alpha", 0.1.into())])),
    ("clip", |n, x| n.op("clip", &[x], &[("a_min", 0.0.into()), ("a_max", 6.0.into())])),
    ("sigmoid", |n, x| n.op("sigmoid", &[x], &[])),
    ("tanh", |n, x| n.op("tanh", &[x], &[])),
    ("hardsigmoid", |n, x| {
        let x = n.op_scalar("multiply", x, 1.0 / 6.0);
        let x = n.op_scalar("add", x, 0.5);
        n.op("clip", &[x], &[("a_min", 0.0.into()), ("a_max", 1.0.into())])
    }),
    ("hardswish", |n, x| {
        let gate = n.op_scalar("add", x, 3.0);
        let gate = n.op("clip", &[gate], &[("a_min", 0.0.into()), ("a_max", 6.0.into())]);
        let product = n.op("multiply", &[x, gate], &[]);
        n.op_scalar("divide", product, 6.0)
    }),
    ("swish", |n, x| {
        let gate = n.op("sigmoid", &[x], &[]);
        n.op("multiply", &[x, gate], &[])
    }),
    ("mish", |n, x| {
        let exp = n.op("exp", &[x], &[]);
        let sum = n.op_scalar("add", exp, 1.0);
        let log = n.op("log", &[sum], &[]);
        let gate = n.op("tanh", &[log], &[]);
        n.op("multiply", &[x, gate], &[])
    }),
    ("gelu", |n, x| {
        let quotient = n.op_scalar("divide", x, std::f32::consts::SQRT_2);
        let erf = n.op("erf", &[quotient], &[]);
        let gate = n.op_scalar("add", erf, 1.0);
        let product = n.op("multiply", &[x, gate], &[]);
        n.op_scalar("multiply", product, 0.5)
    }),
    ("gelu_tanh", |n, x| {
        let cube = n.op_scalar("power", x, 3.0);
        let cube = n.op_scalar("multiply", cube, 0.044_715);
        let sum = n.op("add", &[x, cube], &[]);
        let scaled_sum = n.op_scalar("multiply", sum, (2.0 / std::f32::consts::PI).sqrt());
        let tanh = n.op("tanh", &[scaled_sum], &[]);
        let gate = n.op_scalar("add", tanh, 1.0);
        let half_x = n.op_scalar("multiply", x, 0.5);
        n.op("multiply", &[half_x, gate], &[])
    }),
];

/// Returns every pattern, with a name for the tables.
pub fn all() -> Vec<(String, Module)> {
    let mut cases = Vec::new();
    for layer in LAYERS {
        for (name, parts) in [("conv2d", 0), ("conv2d_bias", 1), ("conv2d_bias_relu", 2), ("conv2d_bias_sum_relu", 3)] {
            cases.push((format!("{name}, {}", layer.name), convolution(layer, parts)));
        }
    }
    for (name, activation) in ACTIVATIONS {
        // The pattern with relu is already among the layers.
        if *name != "relu" {
            let mut n = NetBuilder::default();
            let layer = &LAYERS[2];
            let x = n.input(&[1, layer.input, layer.size, layer.size]);
            let y = n.conv(x, layer);
            let y = n.biased(y, layer.output, 1);
            let y = activation(&mut n, y);
            cases.push((format!("conv2d_bias_{name}, {}", layer.name), n.module(y)));
        }
        let mut n = NetBuilder::default();
        let y = dense(&mut n, [128, 768, 3072]);
        let y = activation(&mut n, y);
        cases.push((format!("dense_bias_{name}, 128 x 768 x 3072"), n.module(y)));
    }
    let mut add = |name: &str, build: fn(&mut NetBuilder) -> ExprId| {
        let mut n = NetBuilder::default();
        let y = build(&mut n);
        cases.push((name.to_owned(), n.module(y)));
    };
    add("dense_bias, 128 x 768 x 768", |n| dense(n, [128, 768, 768]));
    add("dense_bias, 1 x 2048 x 1000", |n| dense(n, [1, 2048, 1000]));
    add("dense_bias_sum, 128 x 3072 x 768", |n| {
        let y = dense(n, [128, 3072, 768]);
        let residual = n.input(&[128, 768]);
        n.op("add", &[y, residual], &[])
    });
    add("batch_matmul, 12 x 128 x 64 x 128", |n| scores(n, 0));
    add("batch_matmul, scale, mask", |n| scores(n, 2));
    add("batch_matmul, scale, mask, softmax", |n| scores(n, 3));
    add("layer_norm, 128 x 768", |n| {
        let (x, g, b) = (n.input(&[1, 128, 768]), n.weight(&[768]), n.weight(&[768]));
        n.op("nn.layer_norm", &[x, g, b], &[])
    });
    add("max_pool2d 3x3/2, 64 x 112", |n| {
        let attrs =
            [("pool_size", int_list(&[3, 3])), ("strides", int_list(&[2, 2])), ("padding", int_list(&[1, 1, 1, 1]))];
        pooled(n, [64, 64, 112], "nn.max_pool2d", &attrs)
    });
    add("avg_pool2d 2x2/2, 128 x 56", |n| {
        let attrs = [("pool_size", int_list(&[2, 2])), ("strides", int_list(&[2, 2]))];
        pooled(n, [64, 128, 56], "nn.avg_pool2d", &attrs)
    });
    add("global_avg_pool2d, 2048 x 7", |n| pooled(n, [512, 2048, 7], "nn.global_avg_pool2d", &[]));
    add("resize2d bilinear, 64 x 28 to 56", |n| {
        let attrs = [("size", int_list(&[56, 56])), ("method", "linear".into())];
        pooled(n, [64, 64, 28], "image.resize2d", &attrs)
    });
    add("concatenate, 2 x 64 x 56", |n| {
        let x = n.input(&[1, 64, 56, 56]);
        let parts = [1, 3].map(|taps| {
            let branch = layer("", [64, 64, 56], [taps, 1, 1]);
            let y = n.conv(x, &branch);
            n.op("nn.relu", &[y], &[])
        });
        let tuple = n.builder.tuple(&parts).expect("expected a tuple");
        n.op("concatenate", &[tuple], &[("axis", 1.into())])
    });
    add("LSTM, 16 steps of 512", |n| recurrent(n, &[4], lstm_step));
    add("GRU, 16 steps of 512", |n| recurrent(n, &[3], gru_step));
    add("GRU reset before the product, 16 steps of 512", |n| recurrent(n, &[2, 1], gru_step_reset_first));
    cases
}

/// Returns a convolution. `parts` selects no epilogue (0), bias (1), bias and ReLU (2), or bias, residual and ReLU (3).
fn convolution(layer: &Layer, parts: usize) -> Module {
    let mut n = NetBuilder::default();
    let x = n.input(&[1, layer.input, layer.size, layer.size]);
    let mut y = n.conv(x, layer);
    if parts > 0 {
        y = n.biased(y, layer.output, 1);
    }
    if parts > 2 {
        let size = layer.size.div_ceil(layer.stride);
        let residual = n.input(&[1, layer.output, size, size]);
        y = n.op("add", &[y, residual], &[]);
    }
    if parts > 1 {
        y = n.op("nn.relu", &[y], &[]);
    }
    n.module(y)
}

fn dense(n: &mut NetBuilder, [rows, inner, columns]: [usize; 3]) -> ExprId {
    let (x, w) = (n.input(&[rows, inner]), n.weight(&[columns, inner]));
    let y = n.op("nn.dense", &[x, w], &[("units", (columns as i64).into())]);
    n.biased(y, columns, 1)
}

/// Adds attention scores. `parts` selects the product alone (0), scale and mask as well (1), or also softmax (3).
fn scores(n: &mut NetBuilder, parts: usize) -> ExprId {
    let (q, k) = (n.input(&[12, 128, 64]), n.input(&[12, 128, 64]));
    let mut y = n.op("nn.batch_matmul", &[q, k], &[("transpose_b", true.into())]);
    if parts > 0 {
        y = n.op_scalar("divide", y, 8.0);
        let mask = n.input(&[1, 1, 128]);
        y = n.op("add", &[y, mask], &[]);
    }
    if parts > 2 {
        y = n.op("nn.softmax", &[y], &[("axis", (-1).into())]);
    }
    y
}

/// Adds an operator on the output of a convolution, to bench the operator in the layout used inside a network.
fn pooled(n: &mut NetBuilder, [input, channels, size]: [usize; 3], name: &str, attrs: &[Attr]) -> ExprId {
    let x = n.input(&[1, input, size, size]);
    let y = n.conv(x, &layer("", [input, channels, size], [1, 1, 1]));
    n.op(name, &[y], attrs)
}

/// Step of a recurrent layer, which maps the projected input, the recurrent weights and the state to the hidden state
/// and the remaining state.
type Step = fn(&mut NetBuilder, ExprId, &[ExprId], Option<[ExprId; 2]>) -> [ExprId; 2];

const STEPS: usize = 16;
const HIDDEN: usize = 512;

/// Adds a recurrent layer over a sequence, without an initial state. `gates` lists the number of gates in each
/// recurrent matrix product.
fn recurrent(n: &mut NetBuilder, gates: &[usize], step: Step) -> ExprId {
    let x = n.input(&[STEPS, 256]);
    let columns = gates.iter().sum::<usize>() * HIDDEN;
    let w = n.weight(&[columns, 256]);
    let r: Vec<ExprId> = gates.iter().map(|count| n.weight(&[count * HIDDEN, HIDDEN])).collect();
    let projected = matmul(n, x, w, columns);
    let attrs = [("indices_or_sections", (STEPS as i64).into()), ("axis", 0.into())];
    let by_step = n.op("split", &[projected], &attrs);
    let (mut state, mut hiddens) = (None, Vec::new());
    for t in 0..STEPS {
        let projection = n.builder.project(by_step, t as u32).expect("expected a field per step");
        let next_state = step(n, projection, &r, state);
        hiddens.push(next_state[0]);
        state = Some(next_state);
    }
    let tuple = n.builder.tuple(&hiddens).expect("expected a tuple");
    n.op("stack", &[tuple], &[("axis", 0.into())])
}

fn matmul(n: &mut NetBuilder, state: ExprId, weights: ExprId, units: usize) -> ExprId {
    n.op("nn.dense", &[state, weights], &[("units", (units as i64).into())])
}

fn lstm_step(n: &mut NetBuilder, projected: ExprId, weights: &[ExprId], state: Option<[ExprId; 2]>) -> [ExprId; 2] {
    let mut gates = projected;
    if let Some([h, _]) = state {
        let product = matmul(n, h, weights[0], 4 * HIDDEN);
        gates = n.op("add", &[gates, product], &[]);
    }
    let parts = n.split(gates, 4);
    let [i, o, f] = [parts[0], parts[1], parts[2]].map(|gate| n.op("sigmoid", &[gate], &[]));
    let g = n.op("tanh", &[parts[3]], &[]);
    let mut cell = n.op("multiply", &[i, g], &[]);
    if let Some([_, previous]) = state {
        let retained_state = n.op("multiply", &[f, previous], &[]);
        cell = n.op("add", &[retained_state, cell], &[]);
    }
    let tanh = n.op("tanh", &[cell], &[]);
    [n.op("multiply", &[o, tanh], &[]), cell]
}

/// Adds the operators of the state update of a GRU (operator GRU of ONNX): `(1 - z) * n + z * h`, where `z` is the
/// update gate, `n` the candidate and `h` the previous state.
fn blend_states(n: &mut NetBuilder, update: ExprId, candidate: ExprId, state: Option<[ExprId; 2]>) -> [ExprId; 2] {
    let unit = n.number(1.0);
    let complement = n.op("subtract", &[unit, update], &[]);
    let mut new_state = n.op("multiply", &[complement, candidate], &[]);
    if let Some([previous, _]) = state {
        let retained_state = n.op("multiply", &[update, previous], &[]);
        new_state = n.op("add", &[new_state, retained_state], &[]);
    }
    [new_state; 2]
}

fn gru_step(n: &mut NetBuilder, projected: ExprId, weights: &[ExprId], state: Option<[ExprId; 2]>) -> [ExprId; 2] {
    let x = n.split(projected, 3);
    let (mut update, mut candidate) = (x[0], x[2]);
    if let Some([h, _]) = state {
        let product = matmul(n, h, weights[0], 3 * HIDDEN);
        let product = n.biased(product, 3 * HIDDEN, 1);
        let h = n.split(product, 3);
        update = n.op("add", &[x[0], h[0]], &[]);
        let reset = n.op("add", &[x[1], h[1]], &[]);
        let reset = n.op("sigmoid", &[reset], &[]);
        let reset_state = n.op("multiply", &[reset, h[2]], &[]);
        candidate = n.op("add", &[x[2], reset_state], &[]);
    }
    let update = n.op("sigmoid", &[update], &[]);
    let candidate = n.op("tanh", &[candidate], &[]);
    blend_states(n, update, candidate, state)
}

fn gru_step_reset_first(
    n: &mut NetBuilder,
    projected: ExprId,
    weights: &[ExprId],
    state: Option<[ExprId; 2]>,
) -> [ExprId; 2] {
    let x = n.split(projected, 3);
    let Some([h, _]) = state else {
        let update = n.op("sigmoid", &[x[0]], &[]);
        let candidate = n.op("tanh", &[x[2]], &[]);
        return blend_states(n, update, candidate, state);
    };
    let product = matmul(n, h, weights[0], 2 * HIDDEN);
    let gates = n.split(product, 2);
    let [update, reset] = [(x[0], gates[0]), (x[1], gates[1])].map(|(x, h)| {
        let sum = n.op("add", &[x, h], &[]);
        n.op("sigmoid", &[sum], &[])
    });
    let reset_state = n.op("multiply", &[reset, h], &[]);
    let product = matmul(n, reset_state, weights[1], HIDDEN);
    let candidate = n.op("add", &[x[2], product], &[]);
    let candidate = n.op("tanh", &[candidate], &[]);
    blend_states(n, update, candidate, state)
}
