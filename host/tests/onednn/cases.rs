//! Families of random modules.

use byoc::io::random::{self, Random};
use byoc_ir::ir::{AttrValue, Attrs, ExprId, Module, Type};
use byoc_ir::tensor::{DType, Tensor};
use byoc_ir::typing::Builder;

/// Returns true, since every CPU supports these families.
pub fn is_supported() -> bool {
    true
}

/// Module under construction, with the values of its inputs.
pub struct Case {
    /// Name of the family to which the case belongs.
    pub name: String,
    /// Seed of the random number generator.
    pub seed: u64,
    /// Values of the inputs.
    pub inputs: Vec<Tensor>,
    /// Tolerance for each element, relative to the largest element of the output.
    pub tolerance: f64,
    /// Builder of the module.
    pub builder: Builder,
    params: Vec<ExprId>,
    body: Option<ExprId>,
    random: Random,
}

impl Case {
    /// Creates a case with an empty module.
    pub fn new(name: &str, seed: u64) -> Case {
        let name_hash: u64 = name.bytes().fold(7, |hash, byte| hash.wrapping_mul(31).wrapping_add(u64::from(byte)));
        Case {
            name: name.to_owned(),
            seed,
            inputs: Vec::new(),
            tolerance: 2e-5,
            builder: Builder::default(),
            params: Vec::new(),
            body: None,
            random: Random::new(name_hash ^ (seed << 20)),
        }
    }

    /// Returns the finished module.
    pub fn module(&self) -> Module {
        let mut builder = Builder::new(self.builder.module.clone());
        builder
            .define("main", &self.params, self.body.expect("expected a result"))
            .expect("expected a well-typed module");
        builder.module
    }

    /// Draws an integer between `min` and `max`, inclusive.
    pub fn int(&mut self, min: usize, max: usize) -> usize {
        min + (self.random.next_u64() % (max - min + 1) as u64) as usize
    }

    /// Returns true with probability 1 / `n`.
    pub fn chance(&mut self, n: usize) -> bool {
        self.int(1, n) == 1
    }

    /// Draws an element of `items`.
    pub fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.int(0, items.len() - 1)]
    }

    /// Draws a number in [0, 1).
    pub fn uniform(&mut self) -> f64 {
        self.random.uniform()
    }

    fn input(&mut self, shape: &[usize]) -> ExprId {
        let seed = self.random.next_u64();
        self.input_of(random::tensor(DType::F32, shape, seed))
    }

    /// Adds an input with the given value.
    pub fn input_of(&mut self, value: Tensor) -> ExprId {
        let ty = Type::tensor(value.dtype(), value.shape());
        self.inputs.push(value);
        let var = self.builder.var(format!("x{}", self.params.len()), ty);
        self.params.push(var);
        var
    }

    fn constant(&mut self, shape: &[usize]) -> ExprId {
        let seed = self.random.next_u64();
        self.builder.constant(random::tensor(DType::F32, shape, seed))
    }

    fn scalar(&mut self, value: f32) -> ExprId {
        self.builder.constant(Tensor::scalar(value))
    }

    /// Adds an operator call.
    pub fn op(&mut self, name: &str, args: &[ExprId], attrs: &[(&str, AttrValue)]) -> ExprId {
        let attrs = Attrs::new(attrs.iter().cloned());
        self.builder.op(name, args, attrs).unwrap_or_else(|e| panic!("{}, seed {}: {e:?}", self.name, self.seed))
    }

    pub fn shape(&self, value: ExprId) -> Vec<usize> {
        self.builder.module.ty(value).as_tensor().and_then(|t| t.shape()).expect("expected a known shape").to_vec()
    }

    /// Sets the result of the module.
    pub fn set_result(&mut self, result: ExprId) {
        self.body = Some(result);
    }

    fn with_scalar(&mut self, name: &str, x: ExprId, value: f32) -> ExprId {
        let value = self.scalar(value);
        self.op(name, &[x, value], &[])
    }

    /// Adds a random activation, or none.
    fn activation(&mut self, x: ExprId) -> ExprId {
        match self.int(0, 13) {
            0 => self.op("nn.relu", &[x], &[]),
            1 => self.op("nn.leaky_relu", &[x], &[("alpha", 0.1.into())]),
            2 => self.op("tanh", &[x], &[]),
            3 => self.op("sigmoid", &[x], &[]),
            4 => self.op("clip", &[x], &[("a_min", 0.0.into()), ("a_max", 6.0.into())]),
            5 => {
                let gate = self.op("sigmoid", &[x], &[]);
                self.op("multiply", &[x, gate], &[])
            }
            6 => {
                let gate = self.with_scalar("add", x, 3.0);
                let gate = self.op("clip", &[gate], &[("a_min", 0.0.into()), ("a_max", 6.0.into())]);
                let product = self.op("multiply", &[gate, x], &[]);
                self.with_scalar("divide", product, 6.0)
            }
            7 => {
                let gate = self.with_scalar("multiply", x, 1.0 / 6.0);
                let gate = self.with_scalar("add", gate, 0.5);
                let gate = self.op("clip", &[gate], &[("a_min", 0.0.into()), ("a_max", 1.0.into())]);
                if self.chance(2) { gate } else { self.op("multiply", &[x, gate], &[]) }
            }
            8 | 9 => self.gelu_erf(x),
            10 => self.gelu_tanh(x),
            11 => {
                let exp = self.op("exp", &[x], &[]);
                let log = self.with_scalar("add", exp, 1.0);
                let log = self.op("log", &[log], &[]);
                let tanh = self.op("tanh", &[log], &[]);
                self.op("multiply", &[x, tanh], &[])
            }
            _ => x,
        }
    }

    fn gelu_erf(&mut self, x: ExprId) -> ExprId {
        let root = std::f32::consts::SQRT_2;
        let inner = if self.chance(2) {
            self.with_scalar("divide", x, root)
        } else {
            self.with_scalar("multiply", x, 1.0 / root)
        };
        let erf = self.op("erf", &[inner], &[]);
        let gate = self.with_scalar("add", erf, 1.0);
        match self.int(0, 2) {
            0 => {
                let product = self.op("multiply", &[x, gate], &[]);
                self.with_scalar("multiply", product, 0.5)
            }
            1 => {
                let half_x = self.with_scalar("multiply", x, 0.5);
                self.op("multiply", &[gate, half_x], &[])
            }
            _ => {
                let gate = self.with_scalar("multiply", gate, 0.5);
                self.op("multiply", &[x, gate], &[])
            }
        }
    }

    fn gelu_tanh(&mut self, x: ExprId) -> ExprId {
        let cube = if self.chance(2) {
            self.with_scalar("power", x, 3.0)
        } else {
            let square = self.op("multiply", &[x, x], &[]);
            self.op("multiply", &[square, x], &[])
        };
        let scaled_cube = self.with_scalar("multiply", cube, 0.044_715);
        let sum = self.op("add", &[x, scaled_cube], &[]);
        let inner = self.with_scalar("multiply", sum, 0.797_884_6);
        let tanh = self.op("tanh", &[inner], &[]);
        let gate = self.with_scalar("add", tanh, 1.0);
        let half_x = self.with_scalar("multiply", x, 0.5);
        self.op("multiply", &[half_x, gate], &[])
    }

    /// Adds a bias along `axis`, in one of Relay's two representations, or none.
    fn bias(&mut self, x: ExprId, axis: usize) -> ExprId {
        let shape = self.shape(x);
        match self.int(0, 2) {
            0 => x,
            1 => {
                let bias = self.constant(&[shape[axis]]);
                self.op("nn.bias_add", &[x, bias], &[("axis", (axis as i64).into())])
            }
            _ => {
                let mut broadcast_shape = vec![1; shape.len() - axis];
                broadcast_shape[0] = shape[axis];
                let bias = self.constant(&broadcast_shape);
                let args = if self.chance(2) { [x, bias] } else { [bias, x] };
                self.op("add", &args, &[])
            }
        }
    }

    /// Adds a bias, a residual and an activation, each optional; sometimes the operand of the activation is also an
    /// output.
    fn chain(&mut self, x: ExprId, axis: usize) -> ExprId {
        let mut x = self.bias(x, axis);
        if self.chance(3) {
            let shape = self.shape(x);
            let other = self.input(&shape);
            let other = if self.chance(2) { self.op("tanh", &[other], &[]) } else { other };
            let args = if self.chance(2) { [x, other] } else { [other, x] };
            x = self.op("add", &args, &[]);
        }
        let y = self.activation(x);
        if self.chance(8) { self.builder.tuple(&[x, y]).expect("expected a tuple") } else { y }
    }
}

/// Creates an integer list attribute.
pub fn ints_attr(values: &[usize]) -> AttrValue {
    AttrValue::ints(values.iter().map(|&v| v as i64))
}

fn convolution(c: &mut Case, axes: usize, groups: usize, channels_per_group: usize, is_transposed: bool) {
    let max_extent = [24, 12, 7][axes - 1];
    let mut data = vec![c.int(1, 2), groups * channels_per_group];
    let mut kernel = Vec::new();
    let (mut strides, mut dilation, mut padding) = (Vec::new(), Vec::new(), vec![0; 2 * axes]);
    for i in 0..axes {
        kernel.push(c.pick(&[1, 1, 2, 3, 3, 5]));
        strides.push(c.pick(&[1, 1, 2, 3]));
        dilation.push(c.pick(&[1, 1, 1, 2]));
        let kernel_extent = (kernel[i] - 1) * dilation[i] + 1;
        let max_padding = if is_transposed { kernel[i] - 1 } else { kernel_extent - 1 };
        padding[i] = c.int(0, max_padding);
        padding[axes + i] = if c.chance(2) { padding[i] } else { c.int(0, max_padding) };
        let min_extent =
            (kernel_extent + usize::from(is_transposed)).saturating_sub(padding[i] + padding[axes + i]).max(1);
        let min_extent = if is_transposed { 2 } else { min_extent };
        data.push(c.int(min_extent, min_extent + max_extent));
    }
    let out = c.pick(&[1, 2, 4, 5, 8, 16]);
    let x = c.input(&data);
    let shape: Vec<usize> = if is_transposed { [data[1], out] } else { [out * groups, channels_per_group] }
        .into_iter()
        .chain(kernel.clone())
        .collect();
    let w = if c.chance(4) { c.input(&shape) } else { c.constant(&shape) };
    let output_padding: Vec<usize> = strides.iter().map(|&stride| c.int(0, stride - 1)).collect();
    let name = format!("nn.conv{axes}d{}", if is_transposed { "_transpose" } else { "" });
    let mut attrs = vec![
        ("strides", ints_attr(&strides)),
        ("padding", ints_attr(&padding)),
        ("dilation", ints_attr(&dilation)),
        ("groups", (groups as i64).into()),
        ("channels", ((out * groups) as i64).into()),
        ("kernel_size", ints_attr(&kernel)),
    ];
    if is_transposed {
        attrs.push(("output_padding", ints_attr(&output_padding)));
    }
    let y = c.op(&name, &[x, w], &attrs);
    let y = c.chain(y, 1);
    c.set_result(y);
}

fn generate_convolution(c: &mut Case, axes: usize, is_transposed: bool) {
    let groups = c.pick(&[1, 1, 1, 2, 3]);
    let channels_per_group = c.pick(&[1, 2, 3, 4, 8, 16]);
    convolution(c, axes, groups, channels_per_group, is_transposed);
}

pub fn convolution_1d(c: &mut Case) {
    generate_convolution(c, 1, false);
}

pub fn convolution_2d(c: &mut Case) {
    generate_convolution(c, 2, false);
}

/// Ungrouped 3 x 3 convolutions with enough channels and positions for the Winograd algorithm to pay off, in every data
/// layout and kernel layout that occurs in models.
pub fn convolution_3x3(c: &mut Case) {
    let (images, channels, filters) = (c.int(1, 3), c.int(16, 70), c.int(16, 70));
    let padding: Vec<usize> = (0..4).map(|_| c.pick(&[0, 1, 1, 2])).collect();
    let (height, width) = (c.int(8, 24), c.int(8, 24));
    let mut x = c.input(&[images, channels, height, width]);
    if c.chance(3) {
        // Slices the data from a tensor with more channels, which makes the data strided.
        let full_input = c.input(&[images, channels + 8, height, width]);
        let tanh = c.op("tanh", &[full_input], &[]);
        let begin = c.int(0, 8);
        let attrs = [
            ("begin", ints_attr(&[0, begin, 0, 0])),
            ("end", ints_attr(&[images, begin + channels, height, width])),
            ("strides", ints_attr(&[1, 1, 1, 1])),
        ];
        let channel_slice = c.op("strided_slice", &[tanh], &attrs);
        x = c.op("add", &[x, channel_slice], &[]);
        if c.chance(2) {
            x = channel_slice;
        }
    }
    let has_rows_first = c.chance(3);
    let shape = if has_rows_first { [3, 3, channels, filters] } else { [filters, channels, 3, 3] };
    let mut w = c.constant(&shape);
    if has_rows_first {
        w = c.op("transpose", &[w], &[("axes", ints_attr(&[3, 2, 0, 1]))]);
    }
    let attrs =
        [("padding", ints_attr(&padding)), ("channels", (filters as i64).into()), ("kernel_size", ints_attr(&[3, 3]))];
    let y = c.op("nn.conv2d", &[x, w], &attrs);
    let y = c.chain(y, 1);
    c.set_result(y);
}

pub fn convolution_3d(c: &mut Case) {
    generate_convolution(c, 3, false);
}

pub fn depthwise_convolution(c: &mut Case) {
    let groups = c.int(2, 40);
    convolution(c, 2, groups, 1, false);
}

pub fn transposed_convolution(c: &mut Case) {
    let axes = c.pick(&[1, 2, 2, 2, 3]);
    generate_convolution(c, axes, true);
}

pub fn dense(c: &mut Case) {
    let (rows, inner, units) = (c.int(1, 20), c.int(1, 40), c.int(1, 40));
    let mut shape = vec![rows, inner];
    if c.chance(3) {
        shape.insert(0, c.int(1, 3));
    }
    let x = c.input(&shape);
    let w = if c.chance(6) { c.input(&[units, inner]) } else { c.constant(&[units, inner]) };
    let mut y = c.op("nn.dense", &[x, w], &[]);
    // Some models reshape between the matrix product and its successors.
    if c.chance(3) {
        y = c.op("reshape", &[y], &[("newshape", AttrValue::ints([1, -1, units as i64]))]);
    }
    let axis = c.shape(y).len() - 1;
    let y = c.chain(y, axis);
    c.set_result(y);
}

pub fn batch_matmul(c: &mut Case) {
    let (batch, m, k, n) = (c.int(1, 4), c.int(1, 12), c.int(1, 12), c.int(1, 12));
    let (ta, tb) = (c.chance(3), c.chance(2));
    let is_single_row = c.chance(6);
    let a = c.input(&if ta { [batch, k, m] } else { [batch, m, k] });
    let b_shape = [if is_single_row { 1 } else { batch }, if tb { n } else { k }, if tb { k } else { n }];
    let b = if c.chance(3) { c.constant(&b_shape) } else { c.input(&b_shape) };
    let attrs = [("transpose_a", ta.into()), ("transpose_b", tb.into())];
    let mut y = c.op("nn.batch_matmul", &[a, b], &attrs);
    if c.chance(2) {
        y = c.with_scalar("multiply", y, 0.25);
    }
    if c.chance(2) {
        let mask = c.input(&[1, 1, n]);
        y = c.op("add", &[y, mask], &[]);
    }
    let y = if c.chance(2) { c.op("nn.softmax", &[y], &[]) } else { c.activation(y) };
    c.set_result(y);
}

pub fn pooling(c: &mut Case) {
    let axes = c.pick(&[1, 2, 2, 2, 3]);
    let kind = c.pick(&["max", "avg"]);
    let mut data = vec![c.int(1, 2), c.int(1, 20)];
    if axes == 2 && c.chance(4) {
        data.extend([c.int(1, 9), c.int(1, 9)]);
        let x = c.input(&data);
        let x = if c.chance(2) { c.op("nn.relu", &[x], &[]) } else { x };
        let y = c.op(&format!("nn.global_{kind}_pool2d"), &[x], &[]);
        let y = c.chain(y, 1);
        return c.set_result(y);
    }
    let (mut pool, mut strides, mut padding) = (Vec::new(), Vec::new(), vec![0; 2 * axes]);
    for i in 0..axes {
        pool.push(c.int(1, 3));
        strides.push(c.int(1, 3));
        padding[i] = c.int(0, pool[i] / 2);
        padding[axes + i] = c.int(0, pool[i] / 2);
        data.push(c.int(pool[i], 10));
    }
    let counts_padding = kind == "avg" && c.chance(2);
    let has_ceil_mode = !counts_padding && c.chance(4);
    let mut attrs = vec![
        ("pool_size", ints_attr(&pool)),
        ("strides", ints_attr(&strides)),
        ("padding", ints_attr(&padding)),
        ("ceil_mode", has_ceil_mode.into()),
    ];
    if kind == "avg" {
        attrs.push(("count_include_pad", counts_padding.into()));
    }
    let x = c.input(&data);
    let y = c.op(&format!("nn.{kind}_pool{axes}d"), &[x], &attrs);
    let y = if c.chance(3) { c.activation(y) } else { y };
    c.set_result(y);
}

fn any_shape(c: &mut Case, ranks: std::ops::RangeInclusive<usize>) -> Vec<usize> {
    let rank = c.int(*ranks.start(), *ranks.end());
    (0..rank).map(|_| c.pick(&[1, 2, 3, 4, 5, 7, 8, 16])).collect()
}

pub fn softmax(c: &mut Case) {
    let shape = any_shape(c, 1..=4);
    let axis = c.int(0, shape.len() - 1) as i64;
    let axis = if c.chance(2) { axis } else { -1 };
    let x = c.input(&shape);
    let name = c.pick(&["nn.softmax", "nn.softmax", "nn.log_softmax"]);
    let y = c.op(name, &[x], &[("axis", axis.into())]);
    c.set_result(y);
}

pub fn layer_norm(c: &mut Case) {
    let mut shape = any_shape(c, 1..=3);
    // At least two elements per row, because normalization maps a single element to beta regardless of its value.
    shape.push(c.int(2, 40));
    let width = shape[shape.len() - 1];
    let x = c.input(&shape);
    let (gamma, beta) = (c.constant(&[width]), c.constant(&[width]));
    let epsilon = c.pick(&[1e-5, 1e-6, 1e-12, 0.1]);
    let y = c.op("nn.layer_norm", &[x, gamma, beta], &[("epsilon", epsilon.into())]);
    let y = c.activation(y);
    c.set_result(y);
}

pub fn batch_norm(c: &mut Case) {
    let shape = any_shape(c, 2..=4);
    let axis = c.int(0, shape.len() - 1);
    let x = c.input(&shape);
    let (gamma, beta, mean) = (c.constant(&[shape[axis]]), c.constant(&[shape[axis]]), c.constant(&[shape[axis]]));
    let variance = c.constant(&[shape[axis]]);
    let variance = c.op("abs", &[variance], &[]);
    let attrs = [
        ("axis", (axis as i64).into()),
        ("epsilon", 0.01.into()),
        ("center", c.chance(2).into()),
        ("scale", c.chance(2).into()),
    ];
    let batch_norm_results = c.op("nn.batch_norm", &[x, gamma, beta, mean, variance], &attrs);
    let y = c.builder.project(batch_norm_results, 0).expect("expected a field of nn.batch_norm");
    let y = c.activation(y);
    c.set_result(y);
}

pub fn elementwise(c: &mut Case) {
    let shape = any_shape(c, 0..=5);
    let mut x = c.input(&shape);
    for _ in 0..c.int(1, 3) {
        x = match c.int(0, 7) {
            0 => c.op("exp", &[x], &[]),
            1 => c.op("abs", &[x], &[]),
            2 => {
                let x = c.op("abs", &[x], &[]);
                let x = c.with_scalar("add", x, 0.5);
                let name = c.pick(&["log", "sqrt", "rsqrt"]);
                c.op(name, &[x], &[])
            }
            3 => c.op("negative", &[x], &[]),
            4 => {
                let name = c.pick(&["add", "subtract", "multiply", "divide", "maximum", "minimum"]);
                c.with_scalar(name, x, 0.75)
            }
            5 => {
                let name = c.pick(&["subtract", "add", "multiply"]);
                let constant_value = c.scalar(1.5);
                c.op(name, &[constant_value, x], &[])
            }
            _ => c.activation(x),
        };
    }
    c.set_result(x);
}

pub fn binary(c: &mut Case) {
    let shape = any_shape(c, 1..=5);
    let x = c.input(&shape);
    let mut other = shape.clone();
    if c.chance(2) {
        let removed_axis = c.int(0, other.len());
        other.drain(..removed_axis);
        for size in &mut other {
            if c.chance(2) {
                *size = 1;
            }
        }
    }
    let y = if c.chance(2) { c.input(&other) } else { c.constant(&other) };
    let name = c.pick(&["add", "subtract", "multiply", "divide", "maximum", "minimum"]);
    let y = if name == "divide" {
        let size = c.op("abs", &[y], &[]);
        c.with_scalar("add", size, 1.0)
    } else {
        y
    };
    let is_swapped = c.chance(3) && name != "divide";
    let z = c.op(name, &if is_swapped { [y, x] } else { [x, y] }, &[]);
    let z = c.activation(z);
    c.set_result(z);
}

/// Chains of elementwise operators with broadcast operands, whose values may be read again later. No in-place operator
/// may overwrite such a value.
pub fn diamonds(c: &mut Case) {
    let shape = any_shape(c, 2..=5);
    let x = c.input(&shape);
    let mut last_value = c.activation(x);
    let mut values = vec![last_value];
    for _ in 0..c.int(2, 5) {
        let other = if c.chance(2) {
            c.pick(&values)
        } else {
            let other: Vec<usize> = shape.iter().map(|&size| if c.chance(2) { 1 } else { size }).collect();
            if c.chance(2) { c.input(&other) } else { c.constant(&other) }
        };
        let name = c.pick(&["add", "add", "multiply", "maximum", "minimum", "subtract"]);
        let args = if c.chance(3) { [other, last_value] } else { [last_value, other] };
        let y = c.op(name, &args, &[]);
        last_value = if c.chance(4) { c.activation(y) } else { y };
        values.push(last_value);
    }
    c.set_result(last_value);
}

pub fn reductions(c: &mut Case) {
    let shape = any_shape(c, 1..=4);
    let x = c.input(&shape);
    let mut axes: Vec<i64> = (0..shape.len() as i64).collect();
    axes.retain(|_| c.chance(2));
    if axes.is_empty() {
        axes.push(-1);
    }
    let name = c.pick(&["mean", "sum", "max", "min", "mean"]);
    let keep_dims = c.chance(2);
    let y = c.op(name, &[x], &[("axis", AttrValue::ints(axes)), ("keepdims", keep_dims.into())]);
    c.set_result(y);
}

pub fn joins_and_views(c: &mut Case) {
    let mut shape = any_shape(c, 2..=4);
    let axis = c.int(0, shape.len() - 1);
    let mut pieces = Vec::new();
    for _ in 0..c.int(2, 4) {
        shape[axis] = c.int(1, 9);
        let part = c.input(&shape);
        pieces.push(if c.chance(2) { c.op("tanh", &[part], &[]) } else { part });
    }
    let tuple = c.builder.tuple(&pieces).expect("expected a tuple");
    let mut x = c.op("concatenate", &[tuple], &[("axis", (axis as i64).into())]);
    for _ in 0..c.int(1, 4) {
        let shape = c.shape(x);
        x = match c.int(0, 4) {
            0 => {
                let mut axes: Vec<usize> = (0..shape.len()).collect();
                for i in 0..axes.len() {
                    let j = c.int(i, axes.len() - 1);
                    axes.swap(i, j);
                }
                c.op("transpose", &[x], &[("axes", ints_attr(&axes))])
            }
            1 => {
                let split_axis = c.int(0, shape.len() - 1);
                let mut target_shape = shape.clone();
                if target_shape.len() > 1 && c.chance(2) {
                    let split_axis = split_axis.min(target_shape.len() - 2);
                    let next = target_shape.remove(split_axis + 1);
                    target_shape[split_axis] *= next;
                } else if target_shape[split_axis].is_multiple_of(2) {
                    target_shape[split_axis] /= 2;
                    target_shape.insert(split_axis, 2);
                }
                c.op("reshape", &[x], &[("newshape", ints_attr(&target_shape))])
            }
            2 => {
                let split_axis = c.int(0, shape.len() - 1);
                let begin = c.int(0, shape[split_axis] - 1);
                let end = c.int(begin + 1, shape[split_axis]);
                let stride = c.int(1, 2);
                let attrs = [
                    ("begin", ints_attr(&[begin])),
                    ("end", ints_attr(&[end])),
                    ("strides", ints_attr(&[stride])),
                    ("axes", ints_attr(&[split_axis])),
                ];
                c.op("strided_slice", &[x], &attrs)
            }
            3 => {
                let split_axis = c.int(0, shape.len() - 1);
                if shape[split_axis] < 2 {
                    c.op("expand_dims", &[x], &[("axis", (split_axis as i64).into())])
                } else {
                    let split_index = c.int(1, shape[split_axis] - 1);
                    let attrs =
                        [("indices_or_sections", ints_attr(&[split_index])), ("axis", (split_axis as i64).into())];
                    let split_tuple = c.op("split", &[x], &attrs);
                    let split_side = c.int(0, 1) as u32;
                    c.builder.project(split_tuple, split_side).expect("expected a field of split")
                }
            }
            _ => c.activation(x),
        };
    }
    c.set_result(x);
}

pub fn resizing(c: &mut Case) {
    let shape = [c.int(1, 2), c.int(1, 20), c.int(1, 7), c.int(1, 7)];
    let x = c.input(&shape);
    let y = if c.chance(2) {
        let (h, w) = (c.int(1, 3), c.int(1, 3));
        let attrs = [("scale_h", (h as f64).into()), ("scale_w", (w as f64).into())];
        c.op("nn.upsampling", &[x], &attrs)
    } else if c.chance(2) {
        let modes = [
            ("asymmetric", ""),
            ("asymmetric", "floor"),
            ("half_pixel", "round"),
            ("half_pixel", "round_prefer_floor"),
            ("half_pixel", "round_prefer_ceil"),
        ];
        let (mode, rounding) = modes[c.int(0, modes.len() - 1)];
        let attrs = [
            ("size", ints_attr(&[c.int(1, 7) * shape[2], c.int(1, 7) * shape[3]])),
            ("method", "nearest_neighbor".into()),
            ("coordinate_transformation_mode", mode.into()),
            ("rounding_method", rounding.into()),
        ];
        c.op("image.resize2d", &[x], &attrs)
    } else {
        let size = [c.int(1, 15), c.int(1, 15)];
        let attrs = [
            ("size", ints_attr(&size)),
            ("method", "linear".into()),
            ("coordinate_transformation_mode", "half_pixel".into()),
        ];
        c.op("image.resize2d", &[x], &attrs)
    };
    c.set_result(y);
}

/// Attention as emitted by exporters: heads split by reshape and transpose, scaled, masked, normalized and merged.
pub fn attention(c: &mut Case) {
    let (batch, length, heads, width) = (c.int(1, 3), c.int(1, 9), c.int(1, 4), c.int(1, 8));
    let model = heads * width;
    let x = c.input(&[batch, length, model]);
    let head = |c: &mut Case, axes: [usize; 4], last_value: [usize; 2]| {
        let w = c.constant(&[model, model]);
        let y = c.op("nn.dense", &[x, w], &[]);
        let y = c.bias(y, 2);
        let y = c.op("reshape", &[y], &[("newshape", ints_attr(&[batch, length, heads, width]))]);
        let y = c.op("transpose", &[y], &[("axes", ints_attr(&axes))]);
        c.op("reshape", &[y], &[("newshape", ints_attr(&[batch * heads, last_value[0], last_value[1]]))])
    };
    let q = head(c, [0, 2, 1, 3], [length, width]);
    let q = if c.chance(2) { c.with_scalar("multiply", q, 0.7) } else { q };
    let k = head(c, [0, 2, 3, 1], [width, length]);
    let v = head(c, [0, 2, 1, 3], [length, width]);
    let s = c.op("nn.batch_matmul", &[q, k], &[]);
    let s = c.op("reshape", &[s], &[("newshape", ints_attr(&[batch, heads, length, length]))]);
    let s = c.with_scalar("multiply", s, 0.5);
    let mask = c.input(&[batch, 1, 1, length]);
    let s = c.op("add", &[s, mask], &[]);
    let p = c.op("nn.softmax", &[s], &[]);
    let p = c.op("reshape", &[p], &[("newshape", ints_attr(&[batch * heads, length, length]))]);
    let y = c.op("nn.batch_matmul", &[p, v], &[]);
    let y = c.op("reshape", &[y], &[("newshape", ints_attr(&[batch, heads, length, width]))]);
    let y = c.op("transpose", &[y], &[("axes", ints_attr(&[0, 2, 1, 3]))]);
    let y = c.op("reshape", &[y], &[("newshape", ints_attr(&[batch, length, model]))]);
    let w = c.constant(&[model, model]);
    let y = c.op("nn.dense", &[y, w], &[]);
    let y = c.op("add", &[y, x], &[]);
    c.set_result(y);
}

/// LSTM steps as unrolled by frontends, with the gates in arbitrary order, and with or without an initial state.
pub fn lstm(c: &mut Case) {
    let (batch, hidden_size, width, steps) = (c.int(1, 3), c.int(1, 40), c.int(1, 8), c.int(1, 4));
    let (w, r) = (c.constant(&[4 * hidden_size, width]), c.constant(&[4 * hidden_size, hidden_size]));
    let mut order = [0u32, 1, 2, 3];
    for i in 0..4 {
        order.swap(i, c.int(i, 3));
    }
    let mut state = match c.chance(2) {
        true => Some((c.input(&[batch, hidden_size]), c.input(&[batch, hidden_size]))),
        false => None,
    };
    let mut hiddens = Vec::new();
    for _ in 0..steps {
        let x = c.input(&[batch, width]);
        let mut preactivation = c.op("nn.dense", &[x, w], &[]);
        preactivation = c.bias(preactivation, 1);
        if let Some((h, _)) = state {
            let product = c.op("nn.dense", &[h, r], &[]);
            preactivation = c.op("add", &[preactivation, product], &[]);
        }
        let pieces = c.op("split", &[preactivation], &[("indices_or_sections", 4.into()), ("axis", 1.into())]);
        let gates = order.map(|i| c.builder.project(pieces, i).expect("expected a field of split"));
        let [i, f, o] = [gates[0], gates[1], gates[2]].map(|gate| c.op("sigmoid", &[gate], &[]));
        let g = c.op("tanh", &[gates[3]], &[]);
        let mut cell = c.op("multiply", &[i, g], &[]);
        if let Some((_, previous)) = state {
            let kept_state = c.op("multiply", &[f, previous], &[]);
            cell = c.op("add", &[kept_state, cell], &[]);
        }
        let cell_tanh = c.op("tanh", &[cell], &[]);
        let h = c.op("multiply", &[o, cell_tanh], &[]);
        hiddens.push(h);
        state = Some((h, cell));
    }
    // The last cell state is sometimes an output as well.
    hiddens.extend(state.map(|(_, cell)| cell).filter(|_| c.chance(2)));
    let tuple = c.builder.tuple(&hiddens).expect("expected a tuple");
    let hidden_sequence = c.op("stack", &[tuple], &[("axis", 0.into())]);
    c.set_result(hidden_sequence);
}

/// GRU steps as unrolled by frontends, with the reset gate after or before the recurrent matrix product, with or
/// without an initial state, and with or without biases.
pub fn gru(c: &mut Case) {
    let (batch, hidden_size, width, steps) = (c.int(1, 3), c.int(1, 40), c.int(1, 8), c.int(1, 4));
    let (linear_before_reset, has_bias) = (c.chance(2), c.chance(2));
    let (w, r) = (c.constant(&[3 * hidden_size, width]), c.constant(&[3 * hidden_size, hidden_size]));
    let bias = c.constant(&[3 * hidden_size]);
    let mut state = if c.chance(2) { Some(c.input(&[batch, hidden_size])) } else { None };
    let part = |c: &mut Case, x: ExprId, begin: usize, target_shape: usize| {
        let attrs = [("begin", ints_attr(&[begin])), ("end", ints_attr(&[target_shape])), ("axes", ints_attr(&[1]))];
        c.op("strided_slice", &[x], &attrs)
    };
    let pieces = |c: &mut Case, x: ExprId, count: usize| -> Vec<ExprId> {
        let split_result = c.op("split", &[x], &[("indices_or_sections", (count as i64).into()), ("axis", 1.into())]);
        (0..count).map(|i| c.builder.project(split_result, i as u32).expect("expected a field of split")).collect()
    };
    let mut hiddens = Vec::new();
    for _ in 0..steps {
        let x = c.input(&[batch, width]);
        let projection = c.op("nn.dense", &[x, w], &[]);
        let (update, inner) = if linear_before_reset {
            let product = match state {
                Some(previous) => {
                    let dense = c.op("nn.dense", &[previous, r], &[]);
                    Some(if has_bias { c.op("nn.bias_add", &[dense, bias], &[("axis", 1.into())]) } else { dense })
                }
                None if has_bias => Some(c.op("reshape", &[bias], &[("newshape", ints_attr(&[1, 3 * hidden_size]))])),
                None => None,
            };
            let x = pieces(c, projection, 3);
            match product.map(|product| pieces(c, product, 3)) {
                None => (x[0], x[2]),
                Some(h) => {
                    let reset = c.op("add", &[x[1], h[1]], &[]);
                    let reset = c.op("sigmoid", &[reset], &[]);
                    let kept_state = if c.chance(2) { [reset, h[2]] } else { [h[2], reset] };
                    let kept_state = c.op("multiply", &kept_state, &[]);
                    (c.op("add", &[x[0], h[0]], &[]), c.op("add", &[x[2], kept_state], &[]))
                }
            }
        } else {
            let (gates, candidate) =
                (part(c, projection, 0, 2 * hidden_size), part(c, projection, 2 * hidden_size, 3 * hidden_size));
            match state {
                None => (part(c, gates, 0, hidden_size), candidate),
                Some(previous) => {
                    // The recurrent weights of all gates are one constant, whose slices must be treated as weights.
                    let gate_weight = c.op(
                        "strided_slice",
                        &[r],
                        &[("begin", ints_attr(&[0])), ("end", ints_attr(&[2 * hidden_size]))],
                    );
                    let attrs = [("begin", ints_attr(&[2 * hidden_size])), ("end", ints_attr(&[3 * hidden_size]))];
                    let candidate_weight = c.op("strided_slice", &[r], &attrs);
                    let product = c.op("nn.dense", &[previous, gate_weight], &[]);
                    let preactivation = c.op("add", &[gates, product], &[]);
                    let gates = c.op("sigmoid", &[preactivation], &[]);
                    let gates = pieces(c, gates, 2);
                    let kept_state = c.op("multiply", &[gates[1], previous], &[]);
                    let product = c.op("nn.dense", &[kept_state, candidate_weight], &[]);
                    let candidate = c.op("add", &[candidate, product], &[]);
                    let candidate = c.op("tanh", &[candidate], &[]);
                    state = Some(blend_states(c, gates[0], candidate, state));
                    hiddens.extend(state);
                    continue;
                }
            }
        };
        let update = c.op("sigmoid", &[update], &[]);
        let candidate = c.op("tanh", &[inner], &[]);
        state = Some(blend_states(c, update, candidate, state));
        hiddens.extend(state);
    }
    let tuple = c.builder.tuple(&hiddens).expect("expected a tuple");
    let hidden_sequence = c.op("stack", &[tuple], &[("axis", 0.into())]);
    c.set_result(hidden_sequence);
}

/// Adds `(1 - z) * n + z * h`, sometimes in the form `n + z * (h - n)`.
fn blend_states(c: &mut Case, update: ExprId, candidate: ExprId, previous: Option<ExprId>) -> ExprId {
    if let Some(previous) = previous.filter(|_| c.chance(2)) {
        let state_difference = c.op("subtract", &[previous, candidate], &[]);
        let weighted_difference = c.op("multiply", &[state_difference, update], &[]);
        return c.op("add", &[weighted_difference, candidate], &[]);
    }
    let one = c.scalar(1.0);
    let complement = c.op("subtract", &[one, update], &[]);
    let new = c.op("multiply", &[complement, candidate], &[]);
    match previous {
        None => new,
        Some(previous) => {
            let kept_state = c.op("multiply", &[update, previous], &[]);
            if c.chance(2) { c.op("add", &[new, kept_state], &[]) } else { c.op("add", &[kept_state, new], &[]) }
        }
    }
}

/// Channel shuffles: the channels of two branches are interleaved and split again.
pub fn channel_shuffle(c: &mut Case) {
    let (batch, groups, channels, size) = (c.int(1, 2), c.int(2, 3), c.int(1, 10), c.int(1, 5));
    let pieces: Vec<ExprId> = (0..groups)
        .map(|_| {
            let x = c.input(&[batch, channels, size, size]);
            let w = c.constant(&[channels, channels, 1, 1]);
            if c.chance(3) { x } else { c.op("nn.conv2d", &[x, w], &[]) }
        })
        .collect();
    let tuple = c.builder.tuple(&pieces).expect("expected a tuple");
    let x = c.op("concatenate", &[tuple], &[("axis", 1.into())]);
    let x = c.op("reshape", &[x], &[("newshape", ints_attr(&[batch, groups, channels, size, size]))]);
    let x = c.op("transpose", &[x], &[("axes", ints_attr(&[0, 2, 1, 3, 4]))]);
    let total_channels = groups * channels;
    let mut x = c.op("reshape", &[x], &[("newshape", ints_attr(&[batch, total_channels, size, size]))]);
    if total_channels > 1 && c.chance(2) {
        let split_index = c.int(1, total_channels - 1);
        let split_tuple =
            c.op("split", &[x], &[("indices_or_sections", ints_attr(&[split_index])), ("axis", 1.into())]);
        let split_side = c.int(0, 1);
        x = c.builder.project(split_tuple, split_side as u32).expect("expected a field of split");
    }
    let channel_count = c.shape(x)[1];
    let w = c.constant(&[3, channel_count, 1, 1]);
    let y = c.op("nn.conv2d", &[x, w], &[]);
    c.set_result(y);
}

/// Convolution blocks with shortcuts, channel gates, and concatenations.
pub fn residual_blocks(c: &mut Case) {
    let channels = c.pick(&[3, 8, 16]);
    let size = c.int(3, 8);
    let batch = if c.chance(3) { 2 } else { 1 };
    let mut x = c.input(&[batch, channels, size, size]);
    for _ in 0..c.int(1, 3) {
        let channels = c.shape(x)[1];
        let conv = |c: &mut Case, x: ExprId, out: usize, kernel: usize| {
            let inner = c.shape(x)[1];
            let w = c.constant(&[out, inner, kernel, kernel]);
            let pad = (kernel / 2) as i64;
            let y = c.op("nn.conv2d", &[x, w], &[("padding", AttrValue::ints([pad, pad]))]);
            c.bias(y, 1)
        };
        let y = conv(c, x, channels, 3);
        let y = c.activation(y);
        let y = conv(c, y, channels, 1);
        x = match c.int(0, 3) {
            0 => {
                let sum = c.op("add", &[y, x], &[]);
                c.op("nn.relu", &[sum], &[])
            }
            1 => {
                let shortcut = conv(c, x, channels, 1);
                let sum = c.op("add", &[y, shortcut], &[]);
                c.activation(sum)
            }
            2 => {
                let gate = c.op("nn.global_avg_pool2d", &[y], &[]);
                let gate = conv(c, gate, channels, 1);
                let gate = c.op("sigmoid", &[gate], &[]);
                c.op("multiply", &[y, gate], &[])
            }
            _ => {
                let tuple = c.builder.tuple(&[x, y]).expect("expected a tuple");
                c.op("concatenate", &[tuple], &[("axis", 1.into())])
            }
        };
        // Scales the values down, because weights of standard deviation 1 make values grow from layer to layer.
        x = c.with_scalar("multiply", x, 0.05);
    }
    c.set_result(x);
}

/// Softmax with some fully masked rows, which become NaN, followed by the NaN guard that exporters emit. The remaining
/// rows are only partially masked.
pub fn masked_rows(case: &mut Case) {
    let (batch, rows, columns) = (case.int(1, 3), case.int(1, 9), case.int(1, 40));
    let x = case.input(&[batch, rows, columns]);
    let mask: Vec<f32> = (0..batch * rows)
        .flat_map(|row| {
            let is_batch_norm = row == 0 || case.chance(3);
            (0..columns)
                .map(|_| if is_batch_norm || case.chance(4) { f32::NEG_INFINITY } else { 0.0 })
                .collect::<Vec<_>>()
        })
        .collect();
    let mask = case.builder.constant(Tensor::from_slice(&[batch, rows, columns], &mask));
    let masked_scores = case.op("add", &[x, mask], &[]);
    let softmax = case.op("nn.softmax", &[masked_scores], &[("axis", (-1).into())]);
    let is_nan = case.op("isnan", &[softmax], &[]);
    let constant_value = case.pick(&[0.0, -1.5]);
    let constant_value = case.scalar(constant_value);
    let mut result = case.op("where", &[is_nan, constant_value, softmax], &[]);
    if case.chance(2) {
        let values = case.input(&[batch, 5, columns]);
        result = case.op("nn.batch_matmul", &[result, values], &[("transpose_b", true.into())]);
    }
    if case.chance(3) {
        // A second consumer reads the unguarded softmax.
        let transposed_softmax = case.op("transpose", &[softmax], &[("axes", ints_attr(&[0, 2, 1]))]);
        let is_nan = case.op("isnan", &[transposed_softmax], &[]);
        let constant_value = case.scalar(2.0);
        let guarded_result = case.op("where", &[is_nan, constant_value, transposed_softmax], &[]);
        let split_tuple = case.builder.tuple(&[result, guarded_result]).expect("expected a tuple");
        return case.set_result(split_tuple);
    }
    case.set_result(result);
}
