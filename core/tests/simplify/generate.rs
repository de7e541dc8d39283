//! Random well-typed programs, from a list of choices; when the list is exhausted, every choice is the first
//! alternative. They have the constructs that the simplification passes rewrite: constants, convolutions and dense
//! layers with scales and biases, batch norms, equal expressions, lets, branches, functions, tuples, and references; and
//! those that need care in the text format: names, constants of other types, attributes of functions, open dimensions.
//!
//! References are only accessed in the values of lets, where their order is defined: a branch or a function that
//! accesses one is itself the value of a let.

use byoc_ir::ir::{AttrValue, Attrs, Dim, Expr, ExprId, Type};
use byoc_ir::tensor::{DType, Tensor};
use byoc_ir::typing::Builder;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Float,
    /// Float, with an open batch dimension.
    OpenFloat,
    Int,
}

/// NCHW shape: batch 1, two channels, height and width 2.
const SHAPE: [usize; 4] = [1, 2, 2, 2];

impl Kind {
    fn dtype(self) -> DType {
        match self {
            Kind::Float | Kind::OpenFloat => DType::F32,
            Kind::Int => DType::I32,
        }
    }

    fn tensor(self, shape: &[usize], seed: usize) -> Tensor {
        let count: usize = shape.iter().product();
        let values = (0..count).map(|i| ((seed * 7 + i * 5 + 3) % 11) as i32 - 5);
        match self {
            Kind::Float | Kind::OpenFloat => {
                Tensor::from_slice(shape, &values.map(|v| v as f32 * 0.25).collect::<Vec<_>>())
            }
            Kind::Int => Tensor::from_slice(shape, &values.collect::<Vec<_>>()),
        }
    }

    fn ty(self) -> Type {
        let batch = if self == Kind::OpenFloat { Dim::symbol("n") } else { Dim::Fixed(1) };
        Type::tensor_of(self.dtype(), [batch, Dim::Fixed(2), Dim::Fixed(2), Dim::Fixed(2)])
    }
}

/// Creates arguments: two tensors and a boolean.
pub fn arguments(kind: Kind) -> Vec<Tensor> {
    vec![kind.tensor(&SHAPE, 1), kind.tensor(&SHAPE, 4), Tensor::from_bools(&[], &[true])]
}

struct Generator<'a> {
    builder: Builder,
    choices: std::slice::Iter<'a, u8>,
    kind: Kind,
    /// Values in scope, all of one type.
    values: Vec<ExprId>,
    cond: ExprId,
    cell: ExprId,
}

impl Generator<'_> {
    fn choose(&mut self, n: usize) -> usize {
        usize::from(*self.choices.next().unwrap_or(&0)) % n
    }

    fn pick(&mut self) -> ExprId {
        let index = self.choose(self.values.len());
        // Index from the end: exhausted choices, which read as 0, select the most recent value.
        self.values[self.values.len() - 1 - index]
    }

    fn op(&mut self, name: &str, args: &[ExprId], attrs: Attrs) -> ExprId {
        self.builder.op(name, args, attrs).unwrap_or_else(|d| panic!("{d}"))
    }

    fn constant(&mut self, shape: &[usize]) -> ExprId {
        let seed = self.choose(3);
        self.builder.constant(self.kind.tensor(shape, seed))
    }

    /// Generates a constant that broadcasts to the shape of the values.
    fn operand(&mut self) -> ExprId {
        let shape: &[usize] = [&[][..], &[2, 1, 1], &[1, 2, 1, 1], &[2], &[2, 2], &SHAPE][self.choose(6)];
        self.constant(shape)
    }

    fn scope(&mut self, build_body: impl FnOnce(&mut Self) -> ExprId) -> ExprId {
        let values = self.values.len();
        let body = build_body(self);
        self.values.truncate(values);
        body
    }

    /// Generates an expression. If `has_effects` is true, its lets may access the reference.
    fn block(&mut self, depth: usize, has_effects: bool) -> ExprId {
        self.scope(|g| {
            for _ in 0..g.choose(5) {
                let value = g.statement(depth, false);
                g.values.push(value);
            }
            match g.choose(4) {
                0 | 1 if depth > 0 => {
                    let value = g.bound(depth - 1, has_effects);
                    let ty = g.builder.module.ty(value).clone();
                    let name = ["v", "x", "a b", "_"][g.choose(4)];
                    let var = g.builder.var(name, ty.clone());
                    if ty == g.kind.ty() {
                        g.values.push(var);
                    }
                    let body = g.block(depth - 1, has_effects);
                    g.builder.push(Expr::Let { var, value, body }).unwrap()
                }
                _ => g.pick(),
            }
        })
    }

    /// Generates the value of a let.
    fn bound(&mut self, depth: usize, has_effects: bool) -> ExprId {
        match self.choose(8) {
            0 if has_effects => {
                let value = self.pick();
                self.builder.push(Expr::RefWrite { reference: self.cell, value }).unwrap()
            }
            1 if has_effects => self.builder.push(Expr::RefRead(self.cell)).unwrap(),
            2 => self.constant(&SHAPE),
            3 => {
                let value = self.pick();
                let cell = self.builder.push(Expr::RefNew(value)).unwrap();
                self.builder.push(Expr::RefRead(cell)).unwrap()
            }
            4 => self.unused(),
            _ => self.statement(depth, has_effects),
        }
    }

    /// Generates the value of a let whose variable is not used: a tuple, or a constant of another type.
    fn unused(&mut self) -> ExprId {
        let constant = match self.choose(5) {
            0 => Tensor::scalar(self.choose(256) as f32 * 0.1),
            1 => Tensor::scalar(self.choose(256) as i8),
            2 => Tensor::from_bools(&[], &[true]),
            3 => Tensor::from_slice(&[2], &[self.choose(256) as f32, f32::NAN]),
            _ => {
                let fields: Vec<ExprId> = (0..self.choose(4)).map(|_| self.pick()).collect();
                return self.builder.tuple(&fields).unwrap();
            }
        };
        self.builder.constant(constant)
    }

    fn statement(&mut self, depth: usize, has_effects: bool) -> ExprId {
        let is_float = self.kind != Kind::Int;
        match self.choose(if depth > 0 { 13 } else { 10 }) {
            0 => {
                let x = self.pick();
                let name = ["nn.relu", "negative", "abs"][self.choose(3)];
                match self.choose(4) {
                    0 => self.op("nn.max_pool2d", &[x], Attrs::new([("pool_size", AttrValue::ints([1, 1]))])),
                    _ => self.op(name, &[x], Attrs::none()),
                }
            }
            1 | 2 => {
                let name = ["add", "multiply", "subtract", "maximum"][self.choose(4)];
                let (a, b) = (self.pick(), self.operand());
                let args = if self.choose(2) == 0 { [a, b] } else { [b, a] };
                let is_wild = name == "multiply" && !is_float;
                self.op(if is_wild { "add" } else { name }, &args, Attrs::none())
            }
            3 => {
                let (a, b) = (self.pick(), self.pick());
                let name = ["add", "maximum", "minimum"][self.choose(3)];
                self.op(name, &[a, b], Attrs::none())
            }
            4 | 5 => {
                // A convolution, and operators that may follow it.
                let (x, weight) = (self.pick(), self.constant(&[2, 2, 1, 1]));
                let mut value = self.op("nn.conv2d", &[x, weight], Attrs::none());
                for _ in 0..self.choose(4) {
                    if self.choose(4) == 0 {
                        self.values.push(value);
                    }
                    let rhs = self.operand();
                    let name = ["multiply", "add"][self.choose(2)];
                    value = self.op(name, &[value, rhs], Attrs::none());
                }
                // Clips to a small range, so that values do not overflow along a chain of convolutions.
                let bounds = [("a_min", AttrValue::Float(-8.0)), ("a_max", AttrValue::Float(8.0))];
                self.op("clip", &[value], Attrs::new(bounds))
            }
            6 => {
                let (x, bias) = (self.pick(), self.constant(&[2]));
                let axis = [1i64, 2, -1][self.choose(3)];
                self.op("nn.bias_add", &[x, bias], Attrs::new([("axis", axis.into())]))
            }
            7 if is_float => {
                let x = self.pick();
                let [gamma, beta, mean] = [(); 3].map(|()| self.constant(&[2]));
                let var = self.builder.constant(Tensor::from_slice(&[2], &[0.5f32, 2.0]));
                let axis = [1i64, 3, -2][self.choose(3)];
                let scale = self.choose(3) > 0;
                let attrs = Attrs::new([("axis", axis.into()), ("scale", scale.into())]);
                let norm = self.op("nn.batch_norm", &[x, gamma, beta, mean, var], attrs);
                self.builder.project(norm, 0).unwrap()
            }
            8 if is_float => {
                let x = self.pick();
                let dropout = self.op("nn.dropout", &[x], Attrs::none());
                self.builder.project(dropout, 0).unwrap()
            }
            7..=9 => {
                let fields = [self.pick(), self.pick()];
                let tuple = self.builder.tuple(&fields).unwrap();
                let field = self.choose(2) as u32;
                self.builder.project(tuple, field).unwrap()
            }
            10 => {
                let cond = match self.choose(3) {
                    0 => self.builder.constant(Tensor::from_bools(&[], &[false])),
                    _ => self.cond,
                };
                let then = self.block(depth - 1, has_effects);
                let otherwise = self.block(depth - 1, has_effects);
                self.builder.push(Expr::If { cond, then, otherwise }).unwrap()
            }
            11 => {
                let param = self.builder.var("p", self.kind.ty());
                let body = self.scope(|g| {
                    g.values.push(param);
                    g.block(depth - 1, has_effects)
                });
                let attrs = match self.choose(3) {
                    0 => Attrs::new([("Compiler", AttrValue::from("t"))]),
                    1 => Attrs::new([("Composite", AttrValue::from("t.x")), ("Primitive", AttrValue::Int(1))]),
                    _ => Attrs::none(),
                };
                let function = self.builder.function(&[param], body, Type::Unknown, attrs).unwrap();
                let arg = self.pick();
                self.builder.call(function, &[arg]).unwrap()
            }
            _ => self.block(depth - 1, has_effects),
        }
    }
}

/// Generates functions which take two tensors, a boolean and a reference; each shares the choices that the ones before
/// it left.
pub fn program(names: &[&str], choices: &[u8], kind: Kind) -> byoc_ir::ir::Module {
    let (mut builder, mut choices) = (Builder::default(), choices.iter());
    for name in names {
        let x = builder.var("x", kind.ty());
        let y = builder.var("y", kind.ty());
        let cond = builder.var("c", Type::scalar(DType::Bool));
        let cell = builder.var("r", Type::reference(kind.ty()));
        let mut generator = Generator { builder, choices, kind, values: vec![x, y], cond, cell };
        let body = generator.block(4, true);
        (builder, choices) = (generator.builder, generator.choices);
        builder.define(name, &[x, y, cond, cell], body).unwrap();
    }
    builder.module
}
