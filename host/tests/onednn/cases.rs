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
    /// Name of the case's family.
    pub name: String,
    /// Seed of the random number generator.
    pub seed: u64,
    /// Values of the inputs.
    pub inputs: Vec<Tensor>,
    /// Tolerance of an element, relative to the largest element.
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
        let salt: u64 = name.bytes().fold(7, |hash, byte| hash.wrapping_mul(31).wrapping_add(u64::from(byte)));
        Case {
            name: name.to_owned(),
            seed,
            inputs: Vec::new(),
            tolerance: 2e-5,
            builder: Builder::default(),
            params: Vec::new(),
            body: None,
            random: Random::new(salt ^ (seed << 20)),
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

    /// Draws an integer between `from` and `to`, inclusive.
    pub fn int(&mut self, from: usize, to: usize) -> usize {
        from + (self.random.next_u64() % (to - from + 1) as u64) as usize
    }

    /// Returns true with probability 1 / `one_in`.
    pub fn chance(&mut self, one_in: usize) -> bool {
        self.int(1, one_in) == 1
    }

    /// Draws an element of `from`.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.int(0, from.len() - 1)]
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
                let half = self.with_scalar("multiply", x, 0.5);
                self.op("multiply", &[gate, half], &[])
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
        let scaled = self.with_scalar("multiply", cube, 0.044_715);
        let sum = self.op("add", &[x, scaled], &[]);
        let inner = self.with_scalar("multiply", sum, 0.797_884_6);
        let tanh = self.op("tanh", &[inner], &[]);
        let gate = self.with_scalar("add", tanh, 1.0);
        let half = self.with_scalar("multiply", x, 0.5);
        self.op("multiply", &[half, gate], &[])
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
                let mut along = vec![1; shape.len() - axis];
                along[0] = shape[axis];
                let bias = self.constant(&along);
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

fn convolution(c: &mut Case, axes: usize, groups: usize, per_group: usize, transposed: bool) {
    let most = [24, 12, 7][axes - 1];
    let mut data = vec![c.int(1, 2), groups * per_group];
    let mut kernel = Vec::new();
    let (mut strides, mut dilation, mut padding) = (Vec::new(), Vec::new(), vec![0; 2 * axes]);
    for i in 0..axes {
        kernel.push(c.pick(&[1, 1, 2, 3, 3, 5]));
        strides.push(c.pick(&[1, 1, 2, 3]));
        dilation.push(if transposed { 1 } else { c.pick(&[1, 1, 1, 2]) });
        let reach = (kernel[i] - 1) * dilation[i] + 1;
        let most_padding = if transposed { kernel[i] - 1 } else { reach - 1 };
        padding[i] = c.int(0, most_padding);
        padding[axes + i] = if c.chance(2) { padding[i] } else { c.int(0, most_padding) };
        let least = (reach + usize::from(transposed)).saturating_sub(padding[i] + padding[axes + i]).max(1);
        let least = if transposed { 2 } else { least };
        data.push(c.int(least, least + most));
    }
    let out = c.pick(&[1, 2, 4, 5, 8, 16]);
    let x = c.input(&data);
    let shape: Vec<usize> =
        if transposed { [data[1], out] } else { [out * groups, per_group] }.into_iter().chain(kernel.clone()).collect();
    let w = if c.chance(10) { c.input(&shape) } else { c.constant(&shape) };
    let name = format!("nn.conv{axes}d{}", if transposed { "_transpose" } else { "" });
    let attrs = [
        ("strides", ints_attr(&strides)),
        ("padding", ints_attr(&padding)),
        ("dilation", ints_attr(&dilation)),
        ("groups", (groups as i64).into()),
        ("channels", ((out * groups) as i64).into()),
        ("kernel_size", ints_attr(&kernel)),
    ];
    let y = c.op(&name, &[x, w], &attrs);
    let y = c.chain(y, 1);
    c.set_result(y);
}

fn grouped(c: &mut Case, axes: usize, transposed: bool) {
    let groups = c.pick(&[1, 1, 1, 2, 3]);
    let per_group = c.pick(&[1, 2, 3, 4, 8, 16]);
    convolution(c, axes, groups, per_group, transposed);
}

pub fn convolution_1d(c: &mut Case) {
    grouped(c, 1, false);
}

pub fn convolution_2d(c: &mut Case) {
    grouped(c, 2, false);
}

/// Ungrouped 3 x 3 convolutions with enough channels and positions for Winograd to pay off, in every data layout and
/// kernel layout that occurs in models.
pub fn three_by_three(c: &mut Case) {
    let (images, channels, filters) = (c.int(1, 3), c.int(16, 70), c.int(16, 70));
    let padding: Vec<usize> = (0..4).map(|_| c.pick(&[0, 1, 1, 2])).collect();
    let (height, width) = (c.int(8, 24), c.int(8, 24));
    let mut x = c.input(&[images, channels, height, width]);
    if c.chance(3) {
        // Slices the data from a tensor with more channels, which makes the data strided.
        let all = c.input(&[images, channels + 8, height, width]);
        let more = c.op("tanh", &[all], &[]);
        let begin = c.int(0, 8);
        let attrs = [
            ("begin", ints_attr(&[0, begin, 0, 0])),
            ("end", ints_attr(&[images, begin + channels, height, width])),
            ("strides", ints_attr(&[1, 1, 1, 1])),
        ];
        let some = c.op("strided_slice", &[more], &attrs);
        x = c.op("add", &[x, some], &[]);
        if c.chance(2) {
            x = some;
        }
    }
    let rows_first = c.chance(3);
    let shape = if rows_first { [3, 3, channels, filters] } else { [filters, channels, 3, 3] };
    let mut w = c.constant(&shape);
    if rows_first {
        w = c.op("transpose", &[w], &[("axes", ints_attr(&[3, 2, 0, 1]))]);
    }
    let attrs =
        [("padding", ints_attr(&padding)), ("channels", (filters as i64).into()), ("kernel_size", ints_attr(&[3, 3]))];
    let y = c.op("nn.conv2d", &[x, w], &attrs);
    let y = c.chain(y, 1);
    c.set_result(y);
}

pub fn convolution_3d(c: &mut Case) {
    grouped(c, 3, false);
}

pub fn depthwise_convolution(c: &mut Case) {
    let groups = c.int(2, 40);
    convolution(c, 2, groups, 1, false);
}

pub fn transposed_convolution(c: &mut Case) {
    let axes = c.pick(&[1, 2, 2, 2, 3]);
    grouped(c, axes, true);
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
    let one = c.chance(6);
    let a = c.input(&if ta { [batch, k, m] } else { [batch, m, k] });
    let b_shape = [if one { 1 } else { batch }, if tb { n } else { k }, if tb { k } else { n }];
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
    let include = kind == "avg" && c.chance(2);
    let ceil = !include && c.chance(4);
    let mut attrs = vec![
        ("pool_size", ints_attr(&pool)),
        ("strides", ints_attr(&strides)),
        ("padding", ints_attr(&padding)),
        ("ceil_mode", ceil.into()),
    ];
    if kind == "avg" {
        attrs.push(("count_include_pad", include.into()));
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
    let all = c.op("nn.batch_norm", &[x, gamma, beta, mean, variance], &attrs);
    let y = c.builder.project(all, 0).expect("expected the result");
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
                let number = c.scalar(1.5);
                c.op(name, &[number, x], &[])
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
        let gone = c.int(0, other.len());
        other.drain(..gone);
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
    let swapped = c.chance(3) && name != "divide";
    let z = c.op(name, &if swapped { [y, x] } else { [x, y] }, &[]);
    let z = c.activation(z);
    c.set_result(z);
}

/// Values with later reads, combined with broadcast operands. No in-place operator may overwrite such a value.
pub fn diamonds(c: &mut Case) {
    let shape = any_shape(c, 2..=5);
    let x = c.input(&shape);
    let mut last = c.activation(x);
    let mut values = vec![last];
    for _ in 0..c.int(2, 5) {
        let other = if c.chance(2) {
            c.pick(&values)
        } else {
            let other: Vec<usize> = shape.iter().map(|&size| if c.chance(2) { 1 } else { size }).collect();
            if c.chance(2) { c.input(&other) } else { c.constant(&other) }
        };
        let name = c.pick(&["add", "add", "multiply", "maximum", "minimum", "subtract"]);
        let args = if c.chance(3) { [other, last] } else { [last, other] };
        let y = c.op(name, &args, &[]);
        last = if c.chance(4) { c.activation(y) } else { y };
        values.push(last);
    }
    c.set_result(last);
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
    let keep = c.chance(2);
    let y = c.op(name, &[x], &[("axis", AttrValue::ints(axes)), ("keepdims", keep.into())]);
    c.set_result(y);
}

pub fn joins_and_views(c: &mut Case) {
    let mut shape = any_shape(c, 2..=4);
    let axis = c.int(0, shape.len() - 1);
    let mut parts = Vec::new();
    for _ in 0..c.int(2, 4) {
        shape[axis] = c.int(1, 9);
        let part = c.input(&shape);
        parts.push(if c.chance(2) { c.op("tanh", &[part], &[]) } else { part });
    }
    let tuple = c.builder.tuple(&parts).expect("expected a tuple");
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
                let at = c.int(0, shape.len() - 1);
                let mut to = shape.clone();
                if to.len() > 1 && c.chance(2) {
                    let at = at.min(to.len() - 2);
                    let next = to.remove(at + 1);
                    to[at] *= next;
                } else if to[at].is_multiple_of(2) {
                    to[at] /= 2;
                    to.insert(at, 2);
                }
                c.op("reshape", &[x], &[("newshape", ints_attr(&to))])
            }
            2 => {
                let at = c.int(0, shape.len() - 1);
                let begin = c.int(0, shape[at] - 1);
                let end = c.int(begin + 1, shape[at]);
                let stride = c.int(1, 2);
                let attrs = [
                    ("begin", ints_attr(&[begin])),
                    ("end", ints_attr(&[end])),
                    ("strides", ints_attr(&[stride])),
                    ("axes", ints_attr(&[at])),
                ];
                c.op("strided_slice", &[x], &attrs)
            }
            3 => {
                let at = c.int(0, shape.len() - 1);
                if shape[at] < 2 {
                    c.op("expand_dims", &[x], &[("axis", (at as i64).into())])
                } else {
                    let cut = c.int(1, shape[at] - 1);
                    let attrs = [("indices_or_sections", ints_attr(&[cut])), ("axis", (at as i64).into())];
                    let both = c.op("split", &[x], &attrs);
                    let side = c.int(0, 1) as u32;
                    c.builder.project(both, side).expect("expected a part")
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
    let head = |c: &mut Case, axes: [usize; 4], last: [usize; 2]| {
        let w = c.constant(&[model, model]);
        let y = c.op("nn.dense", &[x, w], &[]);
        let y = c.bias(y, 2);
        let y = c.op("reshape", &[y], &[("newshape", ints_attr(&[batch, length, heads, width]))]);
        let y = c.op("transpose", &[y], &[("axes", ints_attr(&axes))]);
        c.op("reshape", &[y], &[("newshape", ints_attr(&[batch * heads, last[0], last[1]]))])
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
    let (batch, hidden, width, steps) = (c.int(1, 3), c.int(1, 40), c.int(1, 8), c.int(1, 4));
    let (w, r) = (c.constant(&[4 * hidden, width]), c.constant(&[4 * hidden, hidden]));
    let mut order = [0u32, 1, 2, 3];
    for i in 0..4 {
        order.swap(i, c.int(i, 3));
    }
    let mut state = match c.chance(2) {
        true => Some((c.input(&[batch, hidden]), c.input(&[batch, hidden]))),
        false => None,
    };
    let mut hiddens = Vec::new();
    for _ in 0..steps {
        let x = c.input(&[batch, width]);
        let mut sums = c.op("nn.dense", &[x, w], &[]);
        sums = c.bias(sums, 1);
        if let Some((h, _)) = state {
            let product = c.op("nn.dense", &[h, r], &[]);
            sums = c.op("add", &[sums, product], &[]);
        }
        let parts = c.op("split", &[sums], &[("indices_or_sections", 4.into()), ("axis", 1.into())]);
        let gates = order.map(|i| c.builder.project(parts, i).expect("expected a part"));
        let [i, f, o] = [gates[0], gates[1], gates[2]].map(|gate| c.op("sigmoid", &[gate], &[]));
        let g = c.op("tanh", &[gates[3]], &[]);
        let mut cell = c.op("multiply", &[i, g], &[]);
        if let Some((_, old)) = state {
            let kept = c.op("multiply", &[f, old], &[]);
            cell = c.op("add", &[kept, cell], &[]);
        }
        let curve = c.op("tanh", &[cell], &[]);
        let h = c.op("multiply", &[o, curve], &[]);
        hiddens.push(h);
        state = Some((h, cell));
    }
    // The last cell state is sometimes an output as well.
    hiddens.extend(state.map(|(_, cell)| cell).filter(|_| c.chance(2)));
    let tuple = c.builder.tuple(&hiddens).expect("expected a tuple");
    let all = c.op("stack", &[tuple], &[("axis", 0.into())]);
    c.set_result(all);
}

/// GRU steps as unrolled by frontends, with the reset gate after or before the recurrent matrix product, with or
/// without an initial state, and with or without biases.
pub fn gru(c: &mut Case) {
    let (batch, hidden, width, steps) = (c.int(1, 3), c.int(1, 40), c.int(1, 8), c.int(1, 4));
    let (behind, biased) = (c.chance(2), c.chance(2));
    let (w, r) = (c.constant(&[3 * hidden, width]), c.constant(&[3 * hidden, hidden]));
    let bias = c.constant(&[3 * hidden]);
    let mut state = if c.chance(2) { Some(c.input(&[batch, hidden])) } else { None };
    let part = |c: &mut Case, x: ExprId, from: usize, to: usize| {
        let attrs = [("begin", ints_attr(&[from])), ("end", ints_attr(&[to])), ("axes", ints_attr(&[1]))];
        c.op("strided_slice", &[x], &attrs)
    };
    let parts = |c: &mut Case, x: ExprId, count: usize| -> Vec<ExprId> {
        let all = c.op("split", &[x], &[("indices_or_sections", (count as i64).into()), ("axis", 1.into())]);
        (0..count).map(|i| c.builder.project(all, i as u32).expect("expected a part")).collect()
    };
    let mut hiddens = Vec::new();
    for _ in 0..steps {
        let x = c.input(&[batch, width]);
        let projected = c.op("nn.dense", &[x, w], &[]);
        let (update, inner) = if behind {
            let product = match state {
                Some(old) => {
                    let all = c.op("nn.dense", &[old, r], &[]);
                    Some(if biased { c.op("nn.bias_add", &[all, bias], &[("axis", 1.into())]) } else { all })
                }
                None if biased => Some(c.op("reshape", &[bias], &[("newshape", ints_attr(&[1, 3 * hidden]))])),
                None => None,
            };
            let x = parts(c, projected, 3);
            match product.map(|product| parts(c, product, 3)) {
                None => (x[0], x[2]),
                Some(h) => {
                    let reset = c.op("add", &[x[1], h[1]], &[]);
                    let reset = c.op("sigmoid", &[reset], &[]);
                    let kept = if c.chance(2) { [reset, h[2]] } else { [h[2], reset] };
                    let kept = c.op("multiply", &kept, &[]);
                    (c.op("add", &[x[0], h[0]], &[]), c.op("add", &[x[2], kept], &[]))
                }
            }
        } else {
            let (gates, candidate) = (part(c, projected, 0, 2 * hidden), part(c, projected, 2 * hidden, 3 * hidden));
            match state {
                None => (part(c, gates, 0, hidden), candidate),
                Some(old) => {
                    // The recurrent weights of all gates are one constant, whose slices must be treated as weights.
                    let first =
                        c.op("strided_slice", &[r], &[("begin", ints_attr(&[0])), ("end", ints_attr(&[2 * hidden]))]);
                    let attrs = [("begin", ints_attr(&[2 * hidden])), ("end", ints_attr(&[3 * hidden]))];
                    let second = c.op("strided_slice", &[r], &attrs);
                    let product = c.op("nn.dense", &[old, first], &[]);
                    let sums = c.op("add", &[gates, product], &[]);
                    let gates = c.op("sigmoid", &[sums], &[]);
                    let gates = parts(c, gates, 2);
                    let kept = c.op("multiply", &[gates[1], old], &[]);
                    let product = c.op("nn.dense", &[kept, second], &[]);
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
    let all = c.op("stack", &[tuple], &[("axis", 0.into())]);
    c.set_result(all);
}

/// Adds `(1 - z) n + z h`, sometimes in the form `n + z (h - n)`.
fn blend_states(c: &mut Case, update: ExprId, candidate: ExprId, old: Option<ExprId>) -> ExprId {
    if let Some(old) = old.filter(|_| c.chance(2)) {
        let difference = c.op("subtract", &[old, candidate], &[]);
        let scaled = c.op("multiply", &[difference, update], &[]);
        return c.op("add", &[scaled, candidate], &[]);
    }
    let one = c.scalar(1.0);
    let rest = c.op("subtract", &[one, update], &[]);
    let new = c.op("multiply", &[rest, candidate], &[]);
    match old {
        None => new,
        Some(old) => {
            let kept = c.op("multiply", &[update, old], &[]);
            if c.chance(2) { c.op("add", &[new, kept], &[]) } else { c.op("add", &[kept, new], &[]) }
        }
    }
}

/// Channel shuffles: the channels of two branches are interleaved and split again.
pub fn channel_shuffle(c: &mut Case) {
    let (batch, groups, channels, size) = (c.int(1, 2), c.int(2, 3), c.int(1, 10), c.int(1, 5));
    let parts: Vec<ExprId> = (0..groups)
        .map(|_| {
            let x = c.input(&[batch, channels, size, size]);
            let w = c.constant(&[channels, channels, 1, 1]);
            if c.chance(3) { x } else { c.op("nn.conv2d", &[x, w], &[]) }
        })
        .collect();
    let tuple = c.builder.tuple(&parts).expect("expected a tuple");
    let x = c.op("concatenate", &[tuple], &[("axis", 1.into())]);
    let x = c.op("reshape", &[x], &[("newshape", ints_attr(&[batch, groups, channels, size, size]))]);
    let x = c.op("transpose", &[x], &[("axes", ints_attr(&[0, 2, 1, 3, 4]))]);
    let all = groups * channels;
    let mut x = c.op("reshape", &[x], &[("newshape", ints_attr(&[batch, all, size, size]))]);
    if all > 1 && c.chance(2) {
        let cut = c.int(1, all - 1);
        let both = c.op("split", &[x], &[("indices_or_sections", ints_attr(&[cut])), ("axis", 1.into())]);
        let side = c.int(0, 1);
        x = c.builder.project(both, side as u32).expect("expected a part");
    }
    let left = c.shape(x)[1];
    let w = c.constant(&[3, left, 1, 1]);
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
            let all = row == 0 || case.chance(3);
            (0..columns).map(|_| if all || case.chance(4) { f32::NEG_INFINITY } else { 0.0 }).collect::<Vec<_>>()
        })
        .collect();
    let mask = case.builder.constant(Tensor::from_slice(&[batch, rows, columns], &mask));
    let masked = case.op("add", &[x, mask], &[]);
    let soft = case.op("nn.softmax", &[masked], &[("axis", (-1).into())]);
    let nan = case.op("isnan", &[soft], &[]);
    let number = case.pick(&[0.0, -1.5]);
    let number = case.scalar(number);
    let mut result = case.op("where", &[nan, number, soft], &[]);
    if case.chance(2) {
        let values = case.input(&[batch, 5, columns]);
        result = case.op("nn.batch_matmul", &[result, values], &[("transpose_b", true.into())]);
    }
    if case.chance(3) {
        // A second consumer reads the unguarded softmax.
        let turned = case.op("transpose", &[soft], &[("axes", ints_attr(&[0, 2, 1]))]);
        let nan = case.op("isnan", &[turned], &[]);
        let number = case.scalar(2.0);
        let guarded = case.op("where", &[nan, number, turned], &[]);
        let both = case.builder.tuple(&[result, guarded]).expect("expected a tuple");
        return case.set_result(both);
    }
    case.set_result(result);
}
