//! View of an operator call for the functions that write it: arguments, attributes, creation of nodes.

use super::proto_parts::{int, ints, tensor as tensor_attr};
use super::values::{Operand, Value};
use super::writer::{Operator, Refusal, Result, Writer};
use crate::proto::AttributeProto;
use crate::tensor::{from_f64s, type_number};
use byoc_ir::ir::{Attrs, Dim, ExprId, TensorType, Type};
use byoc_ir::op::{self, Params};
use byoc_ir::tensor::{DType, Tensor};
use std::sync::Arc;

/// Results of a call: the tensor, or the fields of the tuple.
pub type Outputs = Vec<Operand>;

/// Operator call that is being written.
pub struct Call<'w, 'm> {
    pub w: &'w mut Writer<'m>,
    /// Attributes, with defaults.
    pub params: Params<'m>,
    pub id: ExprId,
    pub args: &'m [ExprId],
    /// Result type.
    pub ret: &'m Type,
    /// Name from which those of the nodes derive.
    pub label: String,
    /// Domain of the nodes that are appended.
    pub domain: &'static str,
    /// Value in place of argument 0.
    pub replaced: Option<Operand>,
}

impl<'m> Call<'_, 'm> {
    /// Returns argument `i`, a tensor.
    pub fn arg(&self, i: usize) -> Result<Operand> {
        if let (0, Some(replaced)) = (i, &self.replaced) {
            return Ok(replaced.clone());
        }
        let id = *self.args.get(i).ok_or_else(|| Refusal::new(format!("argument {i} is missing")))?;
        match self.w.value(id)? {
            Value::Tensor(Operand::Refused) => Err(Refusal::consequence()),
            Value::Tensor(Operand::Bytes) => Err(Refusal::new("the operator on the bytes of strings")),
            Value::Tensor(operand) => Ok(operand),
            _ => Err(Refusal::new(format!("argument {i}: expected a tensor"))),
        }
    }

    /// Returns the fields of argument `i`, a tuple of tensors.
    pub fn fields(&self, i: usize) -> Result<Vec<Operand>> {
        let id = *self.args.get(i).ok_or_else(|| Refusal::new(format!("argument {i} is missing")))?;
        let fields = self.w.leaves(id)?;
        if fields.iter().any(|field| matches!(field, Operand::Refused)) {
            return Err(Refusal::consequence());
        }
        if fields.iter().any(|field| matches!(field, Operand::Bytes)) {
            return Err(Refusal::new("the operator on the bytes of strings"));
        }
        Ok(fields)
    }

    /// Returns the type of argument `i`.
    pub fn ty(&self, i: usize) -> Result<&'m TensorType> {
        let ty = self.args.get(i).and_then(|&arg| self.w.module.ty(arg).as_tensor());
        ty.ok_or_else(|| Refusal::new(format!("argument {i}: expected a tensor")))
    }

    pub fn dtype(&self, i: usize) -> Result<DType> {
        Ok(self.ty(i)?.dtype)
    }

    pub fn rank(&self, i: usize) -> Result<usize> {
        Ok(self.ty(i)?.dims.len())
    }

    /// Returns the result type; of a tuple, that of the first field.
    pub fn result(&self) -> Result<&'m TensorType> {
        let ty = self.ret.as_tensor().or_else(|| self.ret.as_tuple()?.first()?.as_tensor());
        ty.ok_or_else(|| Refusal::new(format!("expected a tensor as result, found {}", self.ret)))
    }

    /// Returns attribute `name`, an axis of `rank` dimensions, as a non-negative number.
    pub fn axis(&self, name: &str, rank: usize) -> Result<i64> {
        normal_axis(self.params.int(name), rank)
    }

    /// Returns the integers of argument `i`, if it is a constant.
    pub fn known_ints(&self, i: usize) -> Option<Vec<i64>> {
        self.arg(i).ok()?.constant()?.view().to_i64s()
    }

    /// Returns a refusal unless the model has at least operator set `version`.
    pub fn since(&self, version: i64, what: &str) -> Result<()> {
        if self.w.opset >= version {
            return Ok(());
        }
        let reason = format!("{what} is in operator set {version} and later, found {}", self.w.opset);
        Err(Refusal { since: Some(version), ..Refusal::new(reason) })
    }

    /// Appends a node, and returns its results.
    pub fn nodes(&mut self, op: &str, inputs: &[Operand], attrs: Vec<AttributeProto>, count: usize) -> Outputs {
        let given = inputs.iter().rposition(|input| !matches!(input, Operand::Absent)).map_or(0, |last| last + 1);
        let doc_string = self.w.sources(self.id);
        if !self.domain.is_empty() {
            self.w.domains.insert(self.domain, 2);
        }
        let operator = Operator { op_type: op, domain: self.domain, attributes: attrs, doc_string };
        self.w.node(&self.label, operator, &inputs[..given], count)
    }

    /// Appends a node with one result.
    pub fn node(&mut self, op: &str, inputs: &[Operand], attrs: Vec<AttributeProto>) -> Operand {
        self.nodes(op, inputs, attrs, 1).into_iter().next().unwrap_or(Operand::Absent)
    }

    /// Appends a node without attributes.
    pub fn apply(&mut self, op: &str, inputs: &[&Operand]) -> Operand {
        let inputs: Vec<Operand> = inputs.iter().map(|&input| input.clone()).collect();
        self.node(op, &inputs, Vec::new())
    }

    /// Casts a value; the same value if it has the type already.
    pub fn cast(&mut self, value: &Operand, from: DType, to: DType) -> Result<Operand> {
        if from == to {
            return Ok(value.clone());
        }
        if let Operand::Constant(tensor) = value
            && let Some(cast) = self.fold("cast", Attrs::new([("dtype", to.into())]), tensor)
        {
            return Ok(cast);
        }
        if let Operand::Name(name) = value
            && let Some((before, _)) = self.w.casts.get(name).filter(|(_, dtype)| *dtype == to)
        {
            return Ok(before.clone());
        }
        self.since(dtype_since(from).max(dtype_since(to)), "the element type")?;
        let result = self.node("Cast", std::slice::from_ref(value), vec![int("to", type_number(to).into())]);
        if is_narrow(from) && matches!(to, DType::I32 | DType::I64) {
            self.set_cast(&result, value, from);
        }
        Ok(result)
    }

    /// Records that a cast of `result` to `dtype` is `value`.
    fn set_cast(&mut self, result: &Operand, value: &Operand, dtype: DType) {
        if let Operand::Name(name) = result {
            self.w.casts.insert(name.clone(), (value.clone(), dtype));
        }
    }

    /// Casts an int64 result of ONNX to the type that the operator has in Relay.
    pub fn narrow(&mut self, value: &Operand, to: DType) -> Result<Operand> {
        let count = self.w.graph().nodes.len();
        let narrow = self.cast(value, DType::I64, to)?;
        // Positions and dimensions fit in int32. Only a new value is in the graph in which it is found again.
        if self.w.graph().nodes.len() > count {
            self.set_cast(&narrow, value, DType::I64);
        }
        Ok(narrow)
    }

    /// Evaluates an operator on a small constant.
    pub fn fold(&self, name: &str, attrs: Attrs, tensor: &Arc<Tensor>) -> Option<Operand> {
        const MAX_BYTES: usize = 1 << 16;
        if tensor.bytes().len() > MAX_BYTES {
            return None;
        }
        let results =
            op::evaluate(op::lookup(name)?, &attrs, &[op::Value::Tensor((**tensor).clone())], 16 * MAX_BYTES).ok()?;
        results.into_iter().next().map(|tensor| Operand::Constant(Arc::new(tensor)))
    }

    /// Returns argument `i` as an int64 vector.
    pub fn int_vector(&mut self, i: usize) -> Result<Operand> {
        let ty = self.ty(i)?;
        let value = self.cast(&self.arg(i)?, ty.dtype, DType::I64)?;
        if ty.dims.is_empty() { self.reshape(&value, &[1]) } else { Ok(value) }
    }

    /// Returns argument `i`, one element, as a scalar of the given type.
    pub fn scalar_arg(&mut self, i: usize, dtype: DType) -> Result<Operand> {
        let ty = self.ty(i)?;
        let value = self.cast(&self.arg(i)?, ty.dtype, dtype)?;
        if ty.dims.is_empty() { Ok(value) } else { self.reshape(&value, &[]) }
    }

    /// Reshapes a value to known dimensions; those that it had before another reshape cancel both.
    pub fn reshape(&mut self, value: &Operand, shape: &[i64]) -> Result<Operand> {
        if let (Operand::Constant(tensor), Ok(dims)) =
            (value, shape.iter().map(|&n| usize::try_from(n)).collect::<Result<Vec<_>, _>>())
            && let Some(reshaped) = tensor.reshaped(&dims)
        {
            return Ok(Operand::Constant(Arc::new(reshaped)));
        }
        if let Operand::Name(name) = value
            && let Some((source, _)) = self.w.reshaped.get(name).filter(|(_, dims)| dims == shape)
        {
            return Ok(source.clone());
        }
        let has_zero = shape.contains(&0);
        if has_zero {
            self.since(14, "an empty dimension in Reshape")?;
        }
        let attrs = if has_zero { vec![int("allowzero", 1)] } else { Vec::new() };
        Ok(self.node("Reshape", &[value.clone(), int_vector(shape)], attrs))
    }

    /// Reshapes a value; 0 copies a dimension, and -1 is inferred.
    pub fn reshape_copying(&mut self, value: &Operand, shape: &[i64]) -> Operand {
        self.node("Reshape", &[value.clone(), int_vector(shape)], Vec::new())
    }

    /// Permutes the axes of a value. A permutation that undoes another one cancels it.
    pub fn transpose(&mut self, value: &Operand, axes: &[usize]) -> Operand {
        if axes.iter().copied().eq(0..axes.len()) {
            return value.clone();
        }
        if let Operand::Constant(tensor) = value {
            let permutation: Vec<i64> = axes.iter().map(|&axis| axis as i64).collect();
            if let Some(transposed) = self.fold("transpose", Attrs::new([("axes", permutation.into())]), tensor) {
                return transposed;
            }
        }
        if let Operand::Name(name) = value
            && let Some((source, first)) = self.w.transposed.get(name)
            && axes.iter().map(|&axis| first[axis]).eq(0..axes.len())
        {
            return source.clone();
        }
        let perm: Vec<i64> = axes.iter().map(|&axis| axis as i64).collect();
        let result = self.node("Transpose", std::slice::from_ref(value), vec![ints("perm", &perm)]);
        if let Operand::Name(name) = &result {
            self.w.transposed.insert(name.clone(), (value.clone(), axes.to_vec()));
        }
        result
    }

    /// Inserts dimensions of 1.
    pub fn unsqueeze(&mut self, value: &Operand, axes: &[i64]) -> Operand {
        if let Operand::Constant(tensor) = value {
            let mut shape = tensor.shape().to_vec();
            axes.iter().for_each(|&axis| shape.insert((axis as usize).min(shape.len()), 1));
            if let Some(reshaped) = tensor.reshaped(&shape) {
                return Operand::Constant(Arc::new(reshaped));
            }
        }
        self.node("Unsqueeze", &[value.clone(), int_vector(axes)], Vec::new())
    }

    /// Returns the dimensions of a value, int64.
    pub fn shape_of(&mut self, value: &Operand) -> Operand {
        self.node("Shape", std::slice::from_ref(value), Vec::new())
    }

    /// Selects the dimensions `begin..end` of a value, int64.
    pub fn shape_range(&mut self, value: &Operand, begin: i64, end: i64) -> Operand {
        let shape = self.shape_of(value);
        self.slice(&shape, 0, begin, end)
    }

    /// Selects the elements `begin..end` along an axis.
    pub fn slice(&mut self, value: &Operand, axis: i64, begin: i64, end: i64) -> Operand {
        let bounds = [value.clone(), int_vector(&[begin]), int_vector(&[end]), int_vector(&[axis])];
        self.node("Slice", &bounds, Vec::new())
    }

    pub fn concat(&mut self, values: &[Operand], axis: i64) -> Operand {
        self.node("Concat", values, vec![int("axis", axis)])
    }

    /// Creates a tensor of known or computed shape, filled with a constant.
    pub fn filled(&mut self, shape: &Operand, value: &Tensor) -> Result<Operand> {
        let one = value.reshaped(&[1]).ok_or_else(|| Refusal::new("expected one element as fill value"))?;
        Ok(self.node("ConstantOfShape", std::slice::from_ref(shape), vec![tensor_attr("value", &one)]))
    }
}

/// Returns an axis of `rank` dimensions as a non-negative number.
pub fn normal_axis(axis: i64, rank: usize) -> Result<i64> {
    let normal = if axis < 0 { axis.saturating_add(rank as i64) } else { axis };
    if (0..rank as i64).contains(&normal) {
        Ok(normal)
    } else {
        Err(Refusal::new(format!("axis {axis} is out of range for rank {rank}")))
    }
}

/// Tests for types of which int32 has all values.
fn is_narrow(dtype: DType) -> bool {
    matches!(dtype, DType::Bool | DType::I8 | DType::U8 | DType::I16 | DType::U16)
}

/// Creates a constant int64 vector.
pub fn int_vector(values: &[i64]) -> Operand {
    Operand::Constant(Arc::new(Tensor::from_slice(&[values.len()], values)))
}

/// Creates a constant scalar.
pub fn scalar(dtype: DType, value: f64) -> Operand {
    Operand::Constant(Arc::new(from_f64s(dtype, &[], &[value])))
}

/// Creates a constant vector of equal elements.
pub fn vector(dtype: DType, value: f64, len: usize) -> Operand {
    Operand::Constant(Arc::new(from_f64s(dtype, &[len], &vec![value; len])))
}

/// Returns dimensions that are all known.
pub fn known_dims(dims: &[Dim]) -> Option<Vec<i64>> {
    dims.iter().map(|dim| i64::try_from(dim.fixed()?).ok()).collect()
}

/// Returns the lowest operator set that has an element type.
pub fn dtype_since(dtype: DType) -> i64 {
    match dtype {
        DType::F8E4M3Fn | DType::F8E4M3FnUz | DType::F8E5M2 | DType::F8E5M2FnUz => 19,
        DType::I4 | DType::U4 => 21,
        DType::F4E2M1Fn => 23,
        DType::F8E8M0Fnu => 24,
        DType::I2 | DType::U2 => 25,
        _ => 13,
    }
}
