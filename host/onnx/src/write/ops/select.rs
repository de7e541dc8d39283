//! Sorting and selection, and cumulative sums.

use super::super::call::{Call, Outputs, int_vector, scalar};
use super::super::proto_parts::int;
use super::super::values::Operand;
use super::super::writer::{Refusal, Result};
use super::{Row, single};
use byoc_ir::tensor::DType;

pub const ROWS: &[Row] = &[
    ("argsort", |c| sorted(c, 1)),
    ("argwhere", |c| {
        let (x, rank) = (c.arg(0)?, c.rank(0)?);
        if rank == 0 {
            return Err(Refusal::new("the positions in a scalar"));
        }
        let positions = c.apply("NonZero", &[&x]);
        single(c.transpose(&positions, &[1, 0]))
    }),
    ("cumprod", |c| cumulate(c, "CumProd")),
    ("cumsum", |c| cumulate(c, "CumSum")),
    ("dyn.cumprod", |c| cumulate(c, "CumProd")),
    ("dyn.cumsum", |c| cumulate(c, "CumSum")),
    ("dyn.topk", |c| {
        let k = c.int_vector(1)?;
        top(c, k)
    }),
    ("reverse_sequence", |c| {
        let (x, lengths) = (c.arg(0)?, c.int_vector(1)?);
        let rank = c.rank(0)?;
        let (time, batch) = (c.axis("seq_axis", rank)?, c.axis("batch_axis", rank)?);
        if time.max(batch) > 1 {
            return Err(Refusal::new(format!("expected axes 0 and 1, found {time} and {batch}")));
        }
        single(c.node("ReverseSequence", &[x, lengths], vec![int("time_axis", time), int("batch_axis", batch)]))
    }),
    ("sort", |c| sorted(c, 0)),
    ("topk", |c| {
        let k = match c.params.int("k") {
            k if k < 1 => {
                let (x, axis) = (c.arg(0)?, c.axis("axis", c.rank(0)?)?);
                c.shape_range(&x, axis, axis + 1)
            }
            k => int_vector(&[k]),
        };
        top(c, k)
    }),
    ("trilu", |c| {
        c.since(14, "Trilu")?;
        let (x, k) = (c.arg(0)?, c.scalar_arg(1, DType::I64)?);
        let upper = c.params.bool("upper");
        single(c.node("Trilu", &[x, k], vec![int("upper", upper.into())]))
    }),
    ("unique_slices", |c| {
        let (dtype, sorted) = (c.dtype(0)?, c.params.bool("is_sorted"));
        let computed = if dtype == DType::BF16 { DType::F32 } else { dtype };
        let x = c.cast(&c.arg(0)?, dtype, computed)?;
        let mut attrs = vec![int("sorted", sorted.into())];
        attrs.extend(c.params.opt_int("axis").map(|axis| int("axis", axis)));
        let outputs = c.nodes("Unique", &[x], attrs, 4);
        let types = c.ret.as_tuple().unwrap_or_default();
        let narrowed = outputs.iter().zip(types).enumerate().map(|(i, (output, ty))| match ty.as_tensor() {
            Some(ty) if i > 0 => c.narrow(output, ty.dtype),
            Some(_) => c.cast(output, computed, dtype),
            _ => Ok(output.clone()),
        });
        narrowed.collect()
    }),
];

/// Writes TopK, and returns the values and the indices.
fn top_k(c: &mut Call<'_, '_>, k: Operand, axis: i64, is_largest: bool) -> Result<[Operand; 2]> {
    let (x, dtype) = (c.arg(0)?, c.dtype(0)?);
    // Types that few runtimes sort.
    let computed = match dtype {
        DType::Bool | DType::I8 | DType::U8 | DType::I16 | DType::U16 => DType::I32,
        _ => dtype,
    };
    let x = c.cast(&x, dtype, computed)?;
    let attrs = vec![int("axis", axis), int("largest", is_largest.into()), int("sorted", 1)];
    let outputs = c.nodes("TopK", &[x, k], attrs, 2);
    let values = c.cast(&outputs[0], computed, dtype)?;
    Ok([values, outputs[1].clone()])
}

fn sorted(c: &mut Call<'_, '_>, output: usize) -> Result<Outputs> {
    let (axis, dtype) = (c.axis("axis", c.rank(0)?)?, c.result()?.dtype);
    let x = c.arg(0)?;
    let k = match c.ty(0)?.dims[axis as usize].fixed() {
        Some(size) => int_vector(&[size as i64]),
        None => c.shape_range(&x, axis, axis + 1),
    };
    let is_ascending = c.params.bool("is_ascend");
    let outputs = top_k(c, k, axis, !is_ascending)?;
    single(if output == 0 { outputs[0].clone() } else { c.narrow(&outputs[1], dtype)? })
}

fn top(c: &mut Call<'_, '_>, k: Operand) -> Result<Outputs> {
    let axis = c.axis("axis", c.rank(0)?)?;
    let is_ascending = c.params.bool("is_ascend");
    let [values, indices] = top_k(c, k, axis, !is_ascending)?;
    let dtype = c.params.dtype("dtype").unwrap_or(DType::I32);
    Ok(match c.params.string("ret_type").as_str() {
        "values" => vec![values],
        "indices" => vec![c.narrow(&indices, dtype)?],
        _ => vec![values, c.narrow(&indices, dtype)?],
    })
}

fn cumulate(c: &mut Call<'_, '_>, op: &str) -> Result<Outputs> {
    if op == "CumProd" {
        c.since(26, op)?;
    }
    let (from, to, rank) = (c.dtype(0)?, c.result()?.dtype, c.rank(0)?);
    let computed = match to {
        DType::F32 | DType::F64 | DType::I32 | DType::I64 => to,
        dtype if dtype.is_float() => DType::F32,
        _ => DType::I64,
    };
    let mut x = c.cast(&c.arg(0)?, from, computed)?;
    let axis = match (c.args.len(), c.params.opt_int("axis")) {
        (2, _) => c.scalar_arg(1, DType::I64)?,
        (_, Some(_)) => scalar(DType::I64, c.axis("axis", rank)? as f64),
        (_, None) => {
            x = c.reshape(&x, &[-1])?;
            scalar(DType::I64, 0.0)
        }
    };
    let exclusive = c.params.bool("exclusive");
    let attrs = if exclusive { vec![int("exclusive", 1)] } else { Vec::new() };
    let result = c.node(op, &[x, axis], attrs);
    single(c.cast(&result, computed, to)?)
}
