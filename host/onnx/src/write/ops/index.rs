//! Operators that read or write elements at computed indices.

use super::super::call::{Call, Outputs, scalar};
use super::super::proto_parts::{int, string};
use super::super::values::Operand;
use super::super::writer::{Refusal, Result};
use super::{Row, single};
use byoc_ir::ir::{Dim, ExprId};
use byoc_ir::op;
use byoc_ir::tensor::{DType, Tensor};
use std::sync::Arc;

pub const ROWS: &[Row] = &[
    ("dyn.one_hot", |c| {
        let depth = c.scalar_arg(3, DType::I64)?;
        one_hot(c, depth)
    }),
    ("gather", |c| {
        let (x, indices, axis) = (c.arg(0)?, indices(c, 1)?, c.axis("axis", c.rank(0)?)?);
        single(c.node("GatherElements", &[x, indices], vec![int("axis", axis)]))
    }),
    ("gather_nd", |c| {
        let x = c.arg(0)?;
        let batch = c.params.int("batch_dims");
        let indices = components_last(c)?;
        let attrs = if batch == 0 { Vec::new() } else { vec![int("batch_dims", batch)] };
        single(c.node("GatherND", &[x, indices], attrs))
    }),
    ("one_hot", |c| {
        let depth = scalar(DType::I64, c.params.int("depth") as f64);
        one_hot(c, depth)
    }),
    ("scatter", |c| scatter(c, "update")),
    ("scatter_add", |c| scatter(c, "add")),
    ("scatter_elements", |c| {
        let reduction = c.params.string("reduction");
        scatter(c, &reduction)
    }),
    ("scatter_nd", |c| {
        let (x, updates) = (c.arg(0)?, c.arg(2)?);
        let mode = c.params.string("mode");
        let indices = components_last(c)?;
        let attrs = reduction(c, &mode)?;
        single(c.node("ScatterND", &[x, indices, updates], attrs))
    }),
    ("take", take),
];

/// Returns indices in a type that ONNX accepts.
fn indices(c: &mut Call<'_, '_>, i: usize) -> Result<Operand> {
    let (value, dtype) = (c.arg(i)?, c.dtype(i)?);
    match dtype {
        DType::I32 | DType::I64 => Ok(value),
        _ => c.cast(&value, dtype, DType::I64),
    }
}

/// Moves the components of the index vectors, argument 1, from the first axis (Relay) to the last one (ONNX).
fn components_last(c: &mut Call<'_, '_>) -> Result<Operand> {
    let rank = c.rank(1)?;
    let (value, dtype) = (c.arg(1)?, c.dtype(1)?);
    let axes: Vec<usize> = (1..rank).chain([0]).collect();
    let moved = c.transpose(&value, &axes);
    c.cast(&moved, dtype, DType::I64)
}

fn reduction(c: &Call<'_, '_>, mode: &str) -> Result<Vec<crate::proto::AttributeProto>> {
    match mode {
        "update" => return Ok(Vec::new()),
        "add" | "mul" => c.since(16, "the reduction of updates")?,
        _ => c.since(18, "the reduction of updates")?,
    }
    Ok(vec![string("reduction", mode)])
}

fn scatter(c: &mut Call<'_, '_>, mode: &str) -> Result<Outputs> {
    let (x, indices, updates) = (c.arg(0)?, indices(c, 1)?, c.arg(2)?);
    let axis = c.axis("axis", c.rank(0)?)?;
    let mut attrs = reduction(c, mode)?;
    attrs.push(int("axis", axis));
    single(c.node("ScatterElements", &[x, indices, updates], attrs))
}

/// Writes `take` as Gather, which has an error instead of the modes for indices out of range.
fn take(c: &mut Call<'_, '_>) -> Result<Outputs> {
    let mut x = c.arg(0)?;
    let batch = c.params.int("batch_dims");
    let (data, mode) = (c.ty(0)?, c.params.string("mode"));
    let (axis, dim) = match c.params.opt_int("axis") {
        Some(_) => {
            let axis = c.axis("axis", data.dims.len())?;
            (axis, data.dims[axis as usize].clone())
        }
        None => {
            x = c.reshape(&x, &[-1])?;
            (0, Dim::product(&data.dims).unwrap_or(Dim::Any))
        }
    };
    let positions = match wrapped_indices(c, 1).filter(|_| mode != "wrap") {
        Some(raw) => raw,
        None => {
            let raw = indices(c, 1)?;
            bounded(c, raw, &mode, &x, axis, &dim)?
        }
    };
    if batch != 0 {
        return take_in_batches(c, &x, &positions, axis);
    }
    // Gather has no types of fewer than 8 bits.
    let wide = match data.dtype {
        DType::I4 | DType::I2 => DType::I8,
        DType::U4 | DType::U2 => DType::U8,
        dtype => dtype,
    };
    let x = c.cast(&x, data.dtype, wide)?;
    let result = c.node("Gather", &[x, positions], vec![int("axis", axis)]);
    single(c.cast(&result, wide, data.dtype)?)
}

/// Takes elements at indices that share the first dimensions with the data. GatherND has the axis after them.
fn take_in_batches(c: &mut Call<'_, '_>, x: &Operand, positions: &Operand, axis: i64) -> Result<Outputs> {
    let (rank, index_rank, axis) = (c.rank(0)?, c.rank(1)?, axis as usize);
    let batch = c.params.int("batch_dims");
    let batch = if batch < 0 { batch + index_rank as i64 } else { batch } as usize;
    if batch > axis || batch > index_rank {
        return Err(Refusal::new("more batch dimensions than the axis has before it"));
    }
    let axes: Vec<usize> = (0..batch).chain([axis]).chain(batch..axis).chain(axis + 1..rank).collect();
    let moved = c.transpose(x, &axes);
    let vectors = c.unsqueeze(positions, &[index_rank as i64]);
    let vectors = c.cast(&vectors, c.dtype(1)?, DType::I64)?;
    let taken = c.node("GatherND", &[moved, vectors], vec![int("batch_dims", batch as i64)]);
    // The dimensions before the axis are behind those of the indices now.
    let (first, between) = (index_rank, axis - batch);
    let back: Vec<usize> = (0..batch)
        .chain(first..first + between)
        .chain(batch..first)
        .chain(first + between..rank + index_rank - 1 - batch)
        .collect();
    single(c.transpose(&taken, &back))
}

/// Returns the indices before where(i < 0, i + n, i), the form that the reader gives to them: Gather does the same.
fn wrapped_indices(c: &Call<'_, '_>, i: usize) -> Option<Operand> {
    let call = |id: ExprId| {
        let (op, call) = c.w.module.expr(id).as_op_call()?;
        Some((op::get(op).name, &call.args[..]))
    };
    let parts = || match call(*c.args.get(i)?)? {
        ("where", &[test, sum, index]) => match (call(test)?, call(sum)?) {
            (("less", &[a, _]), ("add", &[b, _])) if a == index && b == index => Some(index),
            _ => None,
        },
        _ => None,
    };
    let index = parts()?;
    let dtype = c.w.module.ty(index).as_tensor().map(|ty| ty.dtype);
    let is_index = matches!(dtype, Some(DType::I32 | DType::I64));
    let leaves = c.w.value(index).ok()?.leaves()?;
    leaves.into_iter().next().filter(|_| is_index)
}

/// Brings indices into the range of the axis, unless they are known to be in it.
fn bounded(c: &mut Call<'_, '_>, raw: Operand, mode: &str, x: &Operand, axis: i64, dim: &Dim) -> Result<Operand> {
    let size = dim.fixed().and_then(|size| i64::try_from(size).ok());
    let known = raw.constant().and_then(|tensor| tensor.view().to_i64s());
    let is_inside = known.zip(size).is_some_and(|(values, size)| values.iter().all(|v| (0..size).contains(v)));
    if is_inside || mode == "fast" {
        return Ok(raw);
    }
    let dtype = if c.dtype(1)? == DType::I32 { DType::I32 } else { DType::I64 };
    let count = match size {
        Some(size) => scalar(dtype, size as f64),
        None => {
            let count = c.shape_range(x, axis, axis + 1);
            let count = c.reshape(&count, &[])?;
            c.cast(&count, DType::I64, dtype)?
        }
    };
    if mode == "wrap" {
        return Ok(c.apply("Mod", &[&raw, &count]));
    }
    let last = match size {
        Some(size) => scalar(dtype, size as f64 - 1.0),
        None => c.apply("Sub", &[&count, &scalar(dtype, 1.0)]),
    };
    let positive = c.apply("Max", &[&raw, &scalar(dtype, 0.0)]);
    Ok(c.apply("Min", &[&positive, &last]))
}

/// Writes a one-hot encoding. In ONNX, negative indices count from the end: they are replaced by one out of range.
fn one_hot(c: &mut Call<'_, '_>, depth: Operand) -> Result<Outputs> {
    let axis = c.axis("axis", c.result()?.dims.len())?;
    let from = c.dtype(0)?;
    let (raw, dtype) = (c.cast(&c.arg(0)?, from, DType::I64)?, DType::I64);
    let is_known = raw.constant().and_then(|tensor| tensor.view().to_i64s()).is_some_and(|v| v.iter().all(|&i| i >= 0));
    let positions = if is_known {
        raw
    } else if let Some(index) = wrapped_indices(c, 0) {
        c.cast(&index, from, DType::I64)?
    } else {
        let is_negative = c.apply("Less", &[&raw, &scalar(dtype, 0.0)]);
        c.apply("Where", &[&is_negative, &depth, &raw])
    };
    let values = [c.arg(2)?, c.arg(1)?];
    let result = c.result()?.dtype;
    let computed = match result {
        DType::F32 | DType::F64 | DType::I64 => result,
        dtype if dtype.is_float() => DType::F32,
        _ => DType::I64,
    };
    let values = match [values[0].constant(), values[1].constant()] {
        [Some(off), Some(on)] if result == computed => {
            let bytes = [off.bytes(), on.bytes()].concat();
            let pair =
                Tensor::from_bytes(result, &[2], &bytes).ok_or_else(|| Refusal::new("values of different types"))?;
            Operand::Constant(Arc::new(pair))
        }
        _ => {
            let mut parts = Vec::new();
            for value in &values {
                let value = c.cast(value, result, computed)?;
                parts.push(c.reshape(&value, &[1])?);
            }
            c.concat(&parts, 0)
        }
    };
    let encoded = c.node("OneHot", &[positions, depth, values], vec![int("axis", axis)]);
    single(c.cast(&encoded, computed, result)?)
}
