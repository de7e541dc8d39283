//! Intermediate representation of a region during compilation: composites inlined, all dimensions known, operators
//! reduced to a small set of kinds.
//!
//! Operators are created in topological order and simplified on creation (`simplify`), so that a GELU that a model
//! expresses as seven operators becomes one operator here. Dead operators are removed at the end.

use crate::library::OneDnnError;
use crate::options::Options;
use byoc_plugin_api::{Constant, DType};
pub use byoc_plugin_support::refusal::CompileError;
pub use byoc_plugin_support::region::Val;
use byoc_plugin_support::view::count;
use std::collections::{BTreeSet, HashMap};

impl From<OneDnnError> for CompileError {
    fn from(failure: OneDnnError) -> CompileError {
        CompileError::new(failure.code(), failure.to_string())
    }
}

/// Result type of translation and lowering.
pub type Result<T, E = CompileError> = std::result::Result<T, E>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Def {
    /// Region input with this index.
    Input(usize),
    /// Constant with this index.
    Constant(usize),
    /// Output of the operator with this index.
    Op(usize),
}

/// Tensor type and definition.
#[derive(Clone, Debug)]
pub struct Value {
    pub shape: Vec<i64>,
    pub dtype: DType,
    pub def: Def,
}

/// Elementwise function with its oneDNN parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EltwiseParams {
    /// Algorithm: `ffi::ELTWISE_*`.
    pub alg: i32,
    pub alpha: f32,
    pub beta: f32,
}

impl EltwiseParams {
    /// Creates a function with both parameters.
    pub fn new(alg: i32, alpha: f32, beta: f32) -> EltwiseParams {
        EltwiseParams { alg, alpha, beta }
    }

    /// Creates a function without parameters.
    pub fn plain(alg: i32) -> EltwiseParams {
        EltwiseParams { alg, alpha: 0.0, beta: 0.0 }
    }
}

/// Operator kind. Shapes are stored in the operator's values. The order of dimensions is (N, C, spatial...) for images,
/// (O, I / groups, spatial...) for kernels, and (I, O / groups, spatial...) for kernels of transposed convolutions.
#[derive(Clone, Debug, PartialEq)]
pub enum Kind {
    /// Convolution of data with a kernel.
    Conv { window: crate::library::Window, groups: i64, transposed: bool },
    /// Matrix product; each flag is set if its operand is transposed. The right operand may be a single matrix that all
    /// batches share.
    MatMul { transpose_a: bool, transpose_b: bool },
    /// Pooling; `alg` is the oneDNN algorithm.
    Pool { alg: i32, window: crate::library::Window },
    /// Softmax or log-softmax.
    Softmax { alg: i32, axis: usize },
    /// Layer normalization over the last axis: data, gamma, beta.
    LayerNorm { epsilon: f32 },
    /// Elementwise function.
    Eltwise(EltwiseParams),
    /// Tests each element for NaN. Has no lowering: supported only as the condition of a `where` that is simplified to
    /// [`Kind::NoNan`].
    IsNan,
    /// Replaces every NaN with this value.
    NoNan(f32),
    /// Error function, which the library implements only as part of GELU.
    Erf,
    /// Elementwise function with a hand-written kernel.
    MathFn(crate::elementwise::MathFn),
    /// Elementwise function of two tensors, with broadcasting; the field is the oneDNN algorithm.
    Binary(i32),
    /// PReLU: `x`, or `slope * x` where `x` is negative; the slope is broadcast.
    Prelu,
    /// Step of a recurrent layer after its matrix product; `cell` defines the operands.
    Cell(crate::cell::CellKind),
    /// Concatenation of the operands along `axis`.
    Concat { axis: usize },
    /// Reduction over `axes`, which are kept with dimension 1.
    Reduce { alg: i32, axes: Vec<usize> },
    /// Resize along the spatial axes, with half-pixel centers.
    Resample { alg: i32 },
    /// Padding with zeros.
    Pad { pad_before: Vec<i64> },
    /// Padding of an int8 or uint8 tensor with the byte `value`.
    PadBytes { pad_before: Vec<i64>, value: u8 },
    /// Integer stage: an elementwise function of one tensor, or of two tensors of the same shape.
    Stage(crate::qnn::Stage),
    /// Average pooling of an int8 or uint8 tensor with `float32` results.
    IntAvgPool(crate::qnn::IntAvgPool),
    /// Reshape of the operand to the result's shape.
    Reshape,
    /// Permutation of the dimensions.
    Transpose(Vec<usize>),
    /// Strided slice; `begin` and `step` have one entry per axis.
    Slice { begin: Vec<i64>, step: Vec<i64> },
}

/// Rates of a core at its peak, and the estimated time of the largest region that a single thread runs. Regions take two
/// to three times as long as the estimate.
const OPERATIONS_PER_NANOSECOND: u64 = 100;
const BYTES_PER_NANOSECOND: u64 = 100;
const MAX_SMALL_NANOSECONDS: u64 = 20_000;

impl Kind {
    /// Returns true if the result is a view of the operand.
    pub fn is_view(&self) -> bool {
        matches!(self, Kind::Reshape | Kind::Transpose(_) | Kind::Slice { .. })
    }
}

/// Operator of the IR.
#[derive(Clone, Debug)]
pub struct Op {
    pub kind: Kind,
    pub inputs: Vec<Val>,
    pub output: Val,
}

/// Region during compilation.
#[derive(Debug, Default)]
pub struct RegionIr {
    /// Values, indexed by [`Val`].
    pub values: Vec<Value>,
    /// Operators in topological order.
    pub ops: Vec<Op>,
    pub inputs: Vec<Val>,
    pub outputs: Vec<Val>,
    /// Constants, indexed by [`Def::Constant`].
    pub constants: Vec<Constant>,
    /// `int32` accumulators whose magnitude may reach 2^24.
    pub wide_sums: BTreeSet<Val>,
    /// Cell states computed by LSTM cells, keyed by the model's value that each state replaces.
    pub cells: HashMap<Val, Val>,
    pub options: Options,
    /// True if the number of primitives whose code the library never frees is limited, because a plan for these
    /// dimensions is one of many.
    pub limits_retained_code: bool,
    /// Operators by kind, operands and type, for deduplication while the IR is built.
    value_by_key: HashMap<String, Val>,
}

impl RegionIr {
    /// Creates an IR with the given constants and no operators.
    pub fn new(constants: Vec<Constant>) -> RegionIr {
        RegionIr { constants, ..RegionIr::default() }
    }

    /// Adds a value.
    pub fn value(&mut self, shape: Vec<i64>, dtype: DType, def: Def) -> Val {
        self.values.push(Value { shape, dtype, def });
        Val::new(self.values.len() - 1)
    }

    /// Adds an operator without simplification. Its result has the element type of the first operand. Identical
    /// operators on the same operands are added only once, because composites may contain copies of the same
    /// computation.
    pub fn push(&mut self, kind: Kind, inputs: &[Val], shape: Vec<i64>) -> Val {
        self.push_as(kind, inputs, shape, self.get(inputs[0]).dtype)
    }

    /// Adds an operator like [`push`](RegionIr::push), with an explicit result element type.
    pub fn push_as(&mut self, kind: Kind, inputs: &[Val], shape: Vec<i64>, dtype: DType) -> Val {
        let key = format!("{kind:?} {inputs:?} {shape:?} {dtype:?}");
        if let Some(&value) = self.value_by_key.get(&key) {
            return value;
        }
        let output = self.value(shape, dtype, Def::Op(self.ops.len()));
        self.ops.push(Op { kind, inputs: inputs.to_vec(), output });
        self.value_by_key.insert(key, output);
        output
    }

    pub fn get(&self, value: Val) -> &Value {
        &self.values[value.index()]
    }

    pub fn shape(&self, value: Val) -> &[i64] {
        &self.get(value).shape
    }

    /// Returns the operator that defines `value`, or `None` for an input or a constant.
    pub fn producer(&self, value: Val) -> Option<&Op> {
        if let Def::Op(op) = self.get(value).def { self.ops.get(op) } else { None }
    }

    /// Returns the index of the constant that defines `value`, if it is a constant.
    pub fn constant(&self, value: Val) -> Option<usize> {
        if let Def::Constant(index) = self.get(value).def { Some(index) } else { None }
    }

    /// Returns the element of a single-element `float32` constant.
    pub fn scalar(&self, value: Val) -> Option<f32> {
        let constant = &self.constants[self.constant(value)?];
        let is_scalar = constant.dtype() == DType::F32 && constant.shape().iter().all(|&d| d == 1);
        is_scalar.then(|| constant.tensor().as_slice::<f32>()[0])
    }

    /// Returns true if a single thread should run the region: waking the pool would take about as long as the work.
    pub fn is_small(&self) -> bool {
        self.options.serial && self.estimated_nanoseconds() <= MAX_SMALL_NANOSECONDS
    }

    /// Estimates the time of one core that computes at its peak and reads every operand from its cache.
    fn estimated_nanoseconds(&self) -> u64 {
        let elements = |value: Val| count(self.shape(value)).unsigned_abs();
        let estimate = |op: &Op| {
            let operations = match &op.kind {
                // Every element of the result, or of the data if it is transposed, is multiplied by one filter.
                Kind::Conv { transposed, .. } => {
                    let filters = self.shape(op.inputs[1])[0].unsigned_abs().max(1);
                    let positions = if *transposed { op.inputs[0] } else { op.output };
                    2 * elements(positions).saturating_mul(elements(op.inputs[1]) / filters)
                }
                Kind::MatMul { transpose_a, .. } => {
                    let shape = self.shape(op.inputs[0]);
                    let inner_dim = shape[shape.len() - 1 - usize::from(*transpose_a)].unsigned_abs();
                    2 * elements(op.output).saturating_mul(inner_dim)
                }
                _ => 0,
            };
            let operands = op.inputs.iter().chain([&op.output]);
            let bytes: u64 = operands.map(|&value| elements(value) * self.get(value).dtype.size() as u64).sum();
            (operations / OPERATIONS_PER_NANOSECOND).max(bytes / BYTES_PER_NANOSECOND)
        };
        self.ops.iter().filter(|op| !op.kind.is_view()).map(estimate).fold(0, u64::saturating_add)
    }

    /// Removes the operators that no output depends on.
    pub fn eliminate_dead_ops(&mut self) {
        self.value_by_key = HashMap::new();
        // Later operators read the cell state that the LSTM cell computes, so that the state is not computed twice.
        let cells = std::mem::take(&mut self.cells);
        for index in 0..self.ops.len() {
            for input in 0..self.ops[index].inputs.len() {
                if let Some(&cell_state) = cells.get(&self.ops[index].inputs[input])
                    && matches!(self.get(cell_state).def, Def::Op(by) if by < index)
                {
                    self.ops[index].inputs[input] = cell_state;
                }
            }
        }
        for output in &mut self.outputs {
            *output = cells.get(output).copied().unwrap_or(*output);
        }
        let mut is_live = vec![false; self.values.len()];
        self.outputs.iter().for_each(|output| is_live[output.index()] = true);
        for op in self.ops.iter().rev() {
            if is_live[op.output.index()] {
                op.inputs.iter().for_each(|input| is_live[input.index()] = true);
            }
        }
        self.ops.retain(|op| is_live[op.output.index()]);
        for (index, op) in self.ops.iter().enumerate() {
            self.values[op.output.index()].def = Def::Op(index);
        }
    }

    /// Returns the operators that read each value; an operator that reads a value twice is listed twice.
    pub fn users(&self) -> Vec<Vec<usize>> {
        let mut users = vec![Vec::new(); self.values.len()];
        for (index, op) in self.ops.iter().enumerate() {
            op.inputs.iter().for_each(|input| users[input.index()].push(index));
        }
        users
    }
}
