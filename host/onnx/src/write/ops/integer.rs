//! Arithmetic, whose integers ONNX divides and shifts in its own way, and operators on bits.

use super::super::call::{Call, Outputs, scalar};
use super::super::proto_parts::{int, string};
use super::super::values::Operand;
use super::super::writer::{Refusal, Result};
use super::{Row, single};
use byoc_ir::tensor::DType;

pub const ROWS: &[Row] = &[
    ("abs", |c| unary(c, "Abs")),
    ("add", |c| arithmetic(c, "Add")),
    ("bitwise_and", |c| bits(c, "And")),
    ("bitwise_not", bit_complement),
    ("bitwise_or", |c| bits(c, "Or")),
    ("bitwise_xor", |c| bits(c, "Xor")),
    ("divide", |c| arithmetic(c, "Div")),
    ("floor_divide", floor_divide),
    ("floor_mod", floor_mod),
    ("left_shift", |c| shift(c, "LEFT")),
    ("maximum", |c| extremum(c, "Max", "Or")),
    ("minimum", |c| extremum(c, "Min", "And")),
    ("mod", |c| remainder(c)),
    ("multiply", |c| arithmetic(c, "Mul")),
    ("negative", |c| unary(c, "Neg")),
    ("power", power),
    ("right_shift", |c| shift(c, "RIGHT")),
    ("sign", |c| unary(c, "Sign")),
    ("subtract", |c| arithmetic(c, "Sub")),
    ("trunc_divide", trunc_divide),
    ("trunc_mod", |c| remainder(c)),
];

/// Returns the least and the greatest number of an integer type.
pub fn range(dtype: DType) -> Option<(f64, f64)> {
    Some(match dtype {
        DType::I8 => (-128.0, 127.0),
        DType::U8 => (0.0, 255.0),
        DType::I16 => (-32768.0, 32767.0),
        DType::U16 => (0.0, 65535.0),
        DType::I32 => (f64::from(i32::MIN), f64::from(i32::MAX)),
        DType::U32 => (0.0, f64::from(u32::MAX)),
        DType::I64 => (i64::MIN as f64, i64::MAX as f64),
        DType::U64 => (0.0, u64::MAX as f64),
        DType::Bool => (0.0, 1.0),
        _ => return None,
    })
}

/// Writes the integer part, with the sign of x.
pub fn truncated(c: &mut Call<'_, '_>, x: &Operand) -> Operand {
    let size = c.apply("Abs", &[x]);
    let floor = c.apply("Floor", &[&size]);
    let sign = c.apply("Sign", &[x]);
    c.apply("Mul", &[&sign, &floor])
}

/// Returns the type in which ONNX computes with a type: operators before operator set 14 have no narrow integers.
pub fn computed_type(c: &Call<'_, '_>, dtype: DType) -> DType {
    match dtype {
        DType::Bool => DType::I32,
        DType::I8 | DType::U8 | DType::I16 | DType::U16 if c.w.opset < 14 => DType::I32,
        _ => dtype,
    }
}

fn operands(c: &mut Call<'_, '_>, dtype: DType) -> Result<Vec<Operand>> {
    let indices = 0..c.args.len();
    indices
        .map(|i| {
            let (value, from) = (c.arg(i)?, c.dtype(i)?);
            c.cast(&value, from, dtype)
        })
        .collect()
}

fn arithmetic(c: &mut Call<'_, '_>, op: &str) -> Result<Outputs> {
    let dtype = c.result()?.dtype;
    let computed = computed_type(c, dtype);
    let values = operands(c, computed)?;
    let result = c.node(op, &values, Vec::new());
    single(c.cast(&result, computed, dtype)?)
}

fn unary(c: &mut Call<'_, '_>, op: &str) -> Result<Outputs> {
    let dtype = c.result()?.dtype;
    // Neg has no unsigned types; the negative number modulo 2^n is that of the same width.
    let computed = match dtype {
        DType::U8 | DType::U16 | DType::U32 if op == "Neg" => DType::I64,
        DType::U64 if op == "Neg" => return Err(Refusal::new("the negative of uint64")),
        _ => computed_type(c, dtype),
    };
    let values = operands(c, computed)?;
    let result = c.node(op, &values, Vec::new());
    single(c.cast(&result, computed, dtype)?)
}

fn extremum(c: &mut Call<'_, '_>, op: &str, logic: &str) -> Result<Outputs> {
    let op = if c.result()?.dtype == DType::Bool { logic } else { op };
    let values = operands(c, c.result()?.dtype)?;
    single(c.node(op, &values, Vec::new()))
}

fn power(c: &mut Call<'_, '_>) -> Result<Outputs> {
    let dtype = c.result()?.dtype;
    let computed = if dtype.is_float() || matches!(dtype, DType::I32 | DType::I64) { dtype } else { DType::I64 };
    let values = operands(c, computed)?;
    let result = c.node("Pow", &values, Vec::new());
    single(c.cast(&result, computed, dtype)?)
}

fn trunc_divide(c: &mut Call<'_, '_>) -> Result<Outputs> {
    let outputs = arithmetic(c, "Div")?;
    match &outputs[..] {
        [quotient] if c.result()?.dtype.is_float() => {
            let quotient = truncated(c, &quotient.clone());
            single(quotient)
        }
        _ => Ok(outputs),
    }
}

/// Writes the remainder with the sign of the dividend.
fn remainder(c: &mut Call<'_, '_>) -> Result<Outputs> {
    let dtype = c.result()?.dtype;
    let values = operands(c, dtype)?;
    single(c.node("Mod", &values, vec![int("fmod", 1)]))
}

fn floor_divide(c: &mut Call<'_, '_>) -> Result<Outputs> {
    let dtype = c.result()?.dtype;
    let computed = computed_type(c, dtype);
    let values = operands(c, computed)?;
    let result = if computed.is_float() {
        let quotient = c.node("Div", &values, Vec::new());
        c.apply("Floor", &[&quotient])
    } else {
        // The remainder has the sign of the divisor, so that the rest is a multiple of it.
        let rest = c.node("Mod", &values, Vec::new());
        let multiple = c.apply("Sub", &[&values[0], &rest]);
        c.apply("Div", &[&multiple, &values[1]])
    };
    single(c.cast(&result, computed, dtype)?)
}

/// Writes the remainder with the sign of the divisor, which Mod computes for integers only.
fn floor_mod(c: &mut Call<'_, '_>) -> Result<Outputs> {
    let dtype = c.result()?.dtype;
    let values = operands(c, dtype)?;
    if !dtype.is_float() {
        return single(c.node("Mod", &values, Vec::new()));
    }
    let zero = scalar(dtype, 0.0);
    let rest = c.node("Mod", &values, vec![int("fmod", 1)]);
    let is_negative = c.apply("Less", &[&rest, &zero]);
    let is_divisor_negative = c.apply("Less", &[&values[1], &zero]);
    let differs = c.apply("Xor", &[&is_negative, &is_divisor_negative]);
    let is_zero = c.apply("Equal", &[&rest, &zero]);
    let is_nonzero = c.apply("Not", &[&is_zero]);
    let is_moved = c.apply("And", &[&differs, &is_nonzero]);
    let moved = c.apply("Add", &[&rest, &values[1]]);
    single(c.apply("Where", &[&is_moved, &moved, &rest]))
}

fn bits(c: &mut Call<'_, '_>, op: &str) -> Result<Outputs> {
    let dtype = c.result()?.dtype;
    let values = operands(c, dtype)?;
    if dtype == DType::Bool {
        return single(c.node(op, &values, Vec::new()));
    }
    let op = format!("Bitwise{op}");
    c.since(18, &op)?;
    single(c.node(&op, &values, Vec::new()))
}

fn bit_complement(c: &mut Call<'_, '_>) -> Result<Outputs> {
    let x = c.arg(0)?;
    if c.dtype(0)? == DType::Bool {
        return single(c.apply("Not", &[&x]));
    }
    c.since(18, "BitwiseNot")?;
    single(c.apply("BitwiseNot", &[&x]))
}

fn shift(c: &mut Call<'_, '_>, direction: &str) -> Result<Outputs> {
    let dtype = c.result()?.dtype;
    let unsigned = match dtype {
        DType::I8 => DType::U8,
        DType::I16 => DType::U16,
        DType::I32 => DType::U32,
        DType::I64 => DType::U64,
        DType::U8 | DType::U16 | DType::U32 | DType::U64 => dtype,
        _ => return Err(Refusal::new(format!("a shift of {dtype}"))),
    };
    if direction == "RIGHT" && unsigned != dtype {
        return signed_right_shift(c, dtype, unsigned);
    }
    let values = operands(c, unsigned)?;
    let result = c.node("BitShift", &values, vec![string("direction", direction)]);
    single(c.cast(&result, unsigned, dtype)?)
}

/// Shifts signed numbers, which BitShift does not: x >> n is !(!x >> n) for negative x, and !x is -1 - x.
fn signed_right_shift(c: &mut Call<'_, '_>, dtype: DType, unsigned: DType) -> Result<Outputs> {
    let wide = if dtype == DType::I64 { DType::I64 } else { DType::I32 };
    let values = operands(c, wide)?;
    let minus_one = scalar(wide, -1.0);
    let is_negative = c.apply("Less", &[&values[0], &scalar(wide, 0.0)]);
    let complement = c.apply("Sub", &[&minus_one, &values[0]]);
    let size = c.apply("Where", &[&is_negative, &complement, &values[0]]);
    let (size, amount) = (c.cast(&size, wide, unsigned)?, c.cast(&values[1], wide, unsigned)?);
    let shifted = c.node("BitShift", &[size, amount], vec![string("direction", "RIGHT")]);
    let shifted = c.cast(&shifted, unsigned, wide)?;
    let complement = c.apply("Sub", &[&minus_one, &shifted]);
    let result = c.apply("Where", &[&is_negative, &complement, &shifted]);
    single(c.cast(&result, wide, dtype)?)
}
