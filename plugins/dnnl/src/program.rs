//! A region as it is compiled: composites opened, every dimension a number, every operator one of a few kinds.
//!
//! Operators are made one by one, operands first, and simplified as they are made (`simplify`), so that a GELU that the model
//! wrote out in seven operators is one here. What lost its users on the way is dropped at the end.

use crate::library::Failure;
use crate::options::Options;
use byoc_plugin_api::{Constant, DType, Error, RefusalCode};
use std::collections::{BTreeSet, HashMap};

/// A tensor of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Val(u32);

impl Val {
    /// Its number.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Why a program is not taken.
#[derive(Clone, Debug, PartialEq)]
pub struct Reason {
    /// The kind of reason.
    pub code: RefusalCode,
    /// In words.
    pub detail: String,
}

impl From<Failure> for Reason {
    fn from(failure: Failure) -> Reason {
        Reason::new(failure.code(), failure.to_string())
    }
}

impl From<Reason> for Error {
    fn from(reason: Reason) -> Error {
        let error = Error::new(reason.detail);
        match reason.code {
            RefusalCode::ResourceLimit => error.code(reason.code.as_str()),
            _ => error,
        }
    }
}

impl Reason {
    /// A reason.
    pub fn new(code: RefusalCode, detail: impl Into<String>) -> Reason {
        Reason { code, detail: detail.into() }
    }
}

/// What this module's functions give.
pub type Taken<T> = Result<T, Reason>;

/// Where a value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Def {
    /// The region's input of that number.
    Input(usize),
    /// The constant of that number.
    Constant(usize),
    /// The operator of that number.
    Op(usize),
}

/// A tensor.
#[derive(Clone, Debug)]
pub struct Value {
    /// Its dimensions.
    pub shape: Vec<i64>,
    /// Its element type.
    pub dtype: DType,
    /// Where it comes from.
    pub def: Def,
}

/// A function of one element, by oneDNN's parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Function {
    /// Which one: `ffi::ELTWISE_*`.
    pub alg: i32,
    /// Its first parameter.
    pub alpha: f32,
    /// Its second parameter.
    pub beta: f32,
}

impl Function {
    /// A function with both parameters.
    pub fn new(alg: i32, alpha: f32, beta: f32) -> Function {
        Function { alg, alpha, beta }
    }

    /// A function without parameters.
    pub fn plain(alg: i32) -> Function {
        Function { alg, alpha: 0.0, beta: 0.0 }
    }
}

/// What an operator does. Shapes are those of its values; images are (N, C, spatial...), kernels (O, I / groups, spatial...),
/// of transposed convolutions (I, O / groups, spatial...).
#[derive(Clone, Debug, PartialEq)]
pub enum Kind {
    /// A convolution of data by a kernel.
    Conv { window: crate::library::Window, groups: i64, transposed: bool },
    /// A matrix product; the flags say which operand lies transposed. The right one may be a single matrix for all batches.
    MatMul { transpose_a: bool, transpose_b: bool },
    /// A pool, by oneDNN's algorithm.
    Pool { alg: i32, window: crate::library::Window },
    /// Softmax or its logarithm.
    Softmax { alg: i32, axis: usize },
    /// Layer normalisation over the last axis: data, gamma, beta.
    LayerNorm { epsilon: f32 },
    /// A function of each element.
    Eltwise(Function),
    /// Whether each element is no number. Nothing computes it; what `where` makes of it is computed.
    IsNan,
    /// This number in the place of every element that is none.
    NoNan(f32),
    /// The error function, which the library has only as a part of GELU.
    Erf,
    /// A function of each element that is computed here.
    Curve(crate::elementwise::Curve),
    /// A function of two tensors that broadcast, by oneDNN's algorithm.
    Binary(i32),
    /// x, or a slope times x below zero; the slope broadcasts.
    Prelu,
    /// A step of a recurrent layer behind its product, by the operands that `cell` says.
    Cell(crate::cell::Form),
    /// Operands behind each other.
    Concat { axis: usize },
    /// A reduction over these axes, which stay as 1.
    Reduce { alg: i32, axes: Vec<usize> },
    /// Resizing of the spatial axes, at half-pixel centres.
    Resample { alg: i32 },
    /// Zeros around.
    Pad { before: Vec<i64> },
    /// This byte around bytes.
    PadBytes { before: Vec<i64>, value: u8 },
    /// A function of each integer, and of that of a second tensor of the same shape where it takes one.
    Stage(crate::qnn::Stage),
    /// Means of windows of bytes, as real numbers.
    Mean(crate::qnn::Mean),
    /// The same elements under another shape.
    Reshape,
    /// The dimensions in this order.
    Transpose(Vec<usize>),
    /// From `begin`, every `step`th element, by dimension.
    Slice { begin: Vec<i64>, step: Vec<i64> },
}

impl Kind {
    /// Returns true if it only looks at its operand in another way.
    pub fn is_view(&self) -> bool {
        matches!(self, Kind::Reshape | Kind::Transpose(_) | Kind::Slice { .. })
    }
}

/// An operator.
#[derive(Clone, Debug)]
pub struct Op {
    /// What it does.
    pub kind: Kind,
    /// What it reads.
    pub inputs: Vec<Val>,
    /// What it gives.
    pub output: Val,
}

/// A region.
#[derive(Debug, Default)]
pub struct Program {
    /// The values.
    pub values: Vec<Value>,
    /// The operators, operands first.
    pub ops: Vec<Op>,
    /// What goes in.
    pub inputs: Vec<Val>,
    /// What comes out.
    pub outputs: Vec<Val>,
    /// The constants, as far as they are still held.
    pub constants: Vec<Constant>,
    /// `int32` sums that may pass 2^24.
    pub wide: BTreeSet<Val>,
    /// Cell states that a step of an LSTM gives, by the value that the model computed instead.
    pub cells: HashMap<Val, Val>,
    /// What the region's user chose.
    pub options: Options,
    /// Operators by what they compute, while the program is made.
    known: HashMap<String, Val>,
}

impl Program {
    /// An empty program over these constants.
    pub fn new(constants: Vec<Constant>) -> Program {
        Program { constants, ..Program::default() }
    }

    /// A new value.
    pub fn value(&mut self, shape: Vec<i64>, dtype: DType, def: Def) -> Val {
        self.values.push(Value { shape, dtype, def });
        Val((self.values.len() - 1) as u32)
    }

    /// An operator on tensors of the type of its first operand, without simplification. The same operator on the same operands
    /// is there once: composites may hold copies of what another one computes.
    pub fn push(&mut self, kind: Kind, inputs: &[Val], shape: Vec<i64>) -> Val {
        self.push_as(kind, inputs, shape, self.get(inputs[0]).dtype)
    }

    /// [`push`](Program::push), for a result of that element type.
    pub fn push_as(&mut self, kind: Kind, inputs: &[Val], shape: Vec<i64>, dtype: DType) -> Val {
        let key = format!("{kind:?} {inputs:?} {shape:?} {dtype:?}");
        if let Some(&known) = self.known.get(&key) {
            return known;
        }
        let output = self.value(shape, dtype, Def::Op(self.ops.len()));
        self.ops.push(Op { kind, inputs: inputs.to_vec(), output });
        self.known.insert(key, output);
        output
    }

    /// A value.
    pub fn get(&self, value: Val) -> &Value {
        &self.values[value.index()]
    }

    /// The dimensions of a value.
    pub fn shape(&self, value: Val) -> &[i64] {
        &self.get(value).shape
    }

    /// The operator that gives a value.
    pub fn producer(&self, value: Val) -> Option<&Op> {
        if let Def::Op(op) = self.get(value).def { self.ops.get(op) } else { None }
    }

    /// The constant that a value is.
    pub fn constant(&self, value: Val) -> Option<usize> {
        if let Def::Constant(number) = self.get(value).def { Some(number) } else { None }
    }

    /// The one element of a constant of 32-bit floats.
    pub fn scalar(&self, value: Val) -> Option<f32> {
        let constant = &self.constants[self.constant(value)?];
        let one = constant.dtype() == DType::F32 && constant.shape().iter().all(|&d| d == 1);
        one.then(|| constant.tensor().as_slice::<f32>()[0])
    }

    /// Drops the operators that nothing needs.
    pub fn drop_dead(&mut self) {
        self.known = HashMap::new();
        // A cell state that a step gives is not computed once more for whoever reads it later.
        let cells = std::mem::take(&mut self.cells);
        for number in 0..self.ops.len() {
            for at in 0..self.ops[number].inputs.len() {
                if let Some(&new) = cells.get(&self.ops[number].inputs[at])
                    && matches!(self.get(new).def, Def::Op(by) if by < number)
                {
                    self.ops[number].inputs[at] = new;
                }
            }
        }
        for output in &mut self.outputs {
            *output = cells.get(output).copied().unwrap_or(*output);
        }
        let mut live = vec![false; self.values.len()];
        self.outputs.iter().for_each(|output| live[output.index()] = true);
        for op in self.ops.iter().rev() {
            if live[op.output.index()] {
                op.inputs.iter().for_each(|input| live[input.index()] = true);
            }
        }
        self.ops.retain(|op| live[op.output.index()]);
        for (number, op) in self.ops.iter().enumerate() {
            self.values[op.output.index()].def = Def::Op(number);
        }
    }

    /// Who reads each value, by operator; an operator that reads a value twice stands there twice.
    pub fn users(&self) -> Vec<Vec<usize>> {
        let mut users = vec![Vec::new(); self.values.len()];
        for (number, op) in self.ops.iter().enumerate() {
            op.inputs.iter().for_each(|input| users[input.index()].push(number));
        }
        users
    }
}
