//! Weights quantized in blocks of consecutive elements that share a scale, with several elements packed into a byte.

use super::{Node, Outputs, Result, Row, attrs, index, math, single_output};
use byoc_ir::ir::{Dim, ExprId};
use byoc_ir::tensor::DType;

pub const ROWS: &[Row] = &[
    ("GatherBlockQuantized", 1, gather_block_quantized),
    ("MatMulBnb4", 1, matmul_bnb4),
    ("MatMulNBits", 1, matmul_n_bits),
];

/// Reads an attribute that is a positive number of elements.
fn positive(n: &Node<'_, '_>, name: &str, default: i64) -> Result<usize> {
    let value = n.int_attr(name, default)?;
    let count = usize::try_from(value).ok().filter(|count| (1..1 << 31).contains(count));
    count.ok_or_else(|| n.invalid_node(format!("attribute {name}: expected an integer >= 1, found {value}")))
}

/// Reads the attribute `bits`, the size of an element.
fn bits(n: &Node<'_, '_>) -> Result<usize> {
    match positive(n, "bits", 4)? {
        bits @ (2 | 4 | 8) => Ok(bits),
        bits => Err(n.invalid_node(format!("attribute bits: expected 2, 4 or 8, found {bits}"))),
    }
}

/// Takes rows of a block-quantized table, and dequantizes them. A table of bytes holds packed elements along its last
/// axis.
fn gather_block_quantized(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let (data, indices, scales, zero_points) = (n.input(0)?, n.input(1)?, n.input(2)?, n.optional_input(3));
    let (rank, dtype) = (n.rank(data)?, n.dtype(scales)?);
    let gather_axis = n.axis(n.int_attr("gather_axis", 0)?, rank)?;
    let quantize_axis = n.axis(n.int_attr("quantize_axis", 1)?, rank)?;
    let block = positive(n, "block_size", 128)?;
    let is_packed = n.dtype(data)? == DType::U8;
    let default_zero_point = if is_packed { f64::from(1u8 << (bits(n)? - 1)) } else { 0.0 };
    if is_packed && (quantize_axis + 1 != rank || gather_axis == quantize_axis) {
        return Err(n.invalid_node(format!(
            "packed data: expected quantize_axis {} and another gather_axis, found {quantize_axis} and {gather_axis}",
            rank - 1
        )));
    }
    for table in [scales].into_iter().chain(zero_points) {
        if n.rank(table)? != rank {
            return Err(n.invalid_node(format!("scales and zero points: expected rank {rank}, found {}", n.ty(table)?)));
        }
    }
    let blocks = n.shape(scales)?[quantize_axis];
    // Rows are taken before they are dequantized, because a dequantized table would be several times as large. Blocks
    // that span rows are dequantized first.
    let takes_first = gather_axis != quantize_axis;
    let rows = |n: &mut Node<'_, '_>, table: ExprId| {
        if takes_first { index::gather_along(n, table, indices, gather_axis) } else { Ok(table) }
    };
    let (data, scales) = (rows(n, data)?, rows(n, scales)?);
    let zero_points = zero_points.map(|table| rows(n, table)).transpose()?;
    let axis =
        if takes_first && gather_axis < quantize_axis { quantize_axis + n.rank(indices)? - 1 } else { quantize_axis };
    let integers = |n: &mut Node<'_, '_>, value: ExprId, count: Option<usize>| {
        let value = if is_packed { unpack_last(n, value, bits(n)?)? } else { value };
        let value = match count {
            Some(count) if is_packed => n.slice(value, axis, 0, count)?,
            _ => value,
        };
        n.cast(value, dtype)
    };
    let value = integers(n, data, None)?;
    let zero_points = match zero_points {
        Some(zero_points) => integers(n, zero_points, Some(blocks))?,
        None => n.scalar(dtype, default_zero_point),
    };
    let size = n.dims(value)?[axis].clone();
    let Some(size) = size.fixed().filter(|size| size.div_ceil(block) == blocks) else {
        return Err(n.invalid_node(format!(
            "scales: expected one per block of {block} along an axis of {size}, found {blocks}"
        )));
    };
    let expand = |n: &mut Node<'_, '_>, value: ExprId| {
        if n.rank(value)? == 0 {
            return Ok(value);
        }
        let value = n.op("repeat", &[value], attrs![repeats: block.min(size.max(1)) as i64, axis: axis as i64])?;
        n.slice(value, axis, 0, size)
    };
    let (scales, zero_points) = (expand(n, scales)?, expand(n, zero_points)?);
    let difference = n.op_without_attrs("subtract", &[value, zero_points])?;
    let result = n.op_without_attrs("multiply", &[difference, scales])?;
    single_output(if takes_first { result } else { index::gather_along(n, result, indices, gather_axis)? })
}

/// The 16 values of a 4-bit float with 1 sign bit, 2 exponent bits and 1 mantissa bit, scaled to a maximum of 1, in the
/// order of bitsandbytes.
const FP4: [f32; 16] = {
    let magnitudes = [0.0, 1.0 / 192.0, 2.0 / 3.0, 1.0, 1.0 / 3.0, 0.5, 1.0 / 6.0, 0.25];
    let mut values = [0.0; 16];
    let mut i = 0;
    while i < 8 {
        values[i] = magnitudes[i];
        values[i + 8] = -magnitudes[i];
        i += 1;
    }
    values
};

/// The 16 values of NF4, the quantiles of a normal distribution (QLoRA, Dettmers et al. 2023, appendix E).
const NF4: [f32; 16] = [
    -1.0,
    -0.696_192_8,
    -0.525_073_05,
    -0.394_917_5,
    -0.284_441_38,
    -0.184_773_43,
    -0.091_050_036,
    0.0,
    0.079_580_3,
    0.160_930_2,
    0.246_112_3,
    0.337_915_24,
    0.440_709_83,
    0.562_617,
    0.722_956_84,
    1.0,
];

/// Multiplies by a transposed matrix of 4-bit codes, two per byte with the first one in the high bits. Each code selects
/// a value from a table, and `absmax` holds the factor of each block of consecutive elements.
fn matmul_bnb4(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let (data, codes, absmax) = (n.input(0)?, n.input(1)?, n.input(2)?);
    if n.int_attr("transB", 1)? == 0 {
        return Err(n.invalid_node("attribute transB: expected 1, found 0"));
    }
    let table = match n.int_attr("quant_type", 1)? {
        0 => FP4,
        1 => NF4,
        other => return Err(n.invalid_node(format!("attribute quant_type: expected 0 or 1, found {other}"))),
    };
    let (rows, columns, block) = (positive(n, "K", 0)?, positive(n, "N", 0)?, positive(n, "block_size", 64)?);
    let count = rows.saturating_mul(columns);
    let expected = (count.div_ceil(2), count.div_ceil(block));
    let found = (n.shape(codes)?.iter().product::<usize>(), n.shape(absmax)?.iter().product::<usize>());
    if found != expected {
        let (codes, absmax) = (n.ty(codes)?, n.ty(absmax)?);
        return Err(n.invalid_node(format!(
            "expected {} bytes and {} block factors for {rows} x {columns} elements, found {codes} and {absmax}",
            expected.0, expected.1
        )));
    }
    let dtype = n.dtype(data)?;
    let codes = n.reshape(codes, &[expected.0])?;
    let (high, low) = (n.with_scalar("right_shift", codes, 4.0)?, n.with_scalar("bitwise_and", codes, 15.0)?);
    let pair = n.tuple(&[high, low])?;
    let pairs = n.op("stack", &[pair], attrs![axis: -1])?;
    let codes = n.reshape(pairs, &[2 * expected.0])?;
    let codes = n.slice(codes, 0, 0, count)?;
    let codes = n.cast(codes, DType::I32)?;
    let table = n.vector(&table);
    let values = n.op("take", &[table, codes], attrs![axis: 0, mode: "clip"])?;
    let absmax = n.reshape(absmax, &[expected.1])?;
    let factors = n.op("repeat", &[absmax], attrs![repeats: block.min(count) as i64, axis: 0])?;
    let factors = n.slice(factors, 0, 0, count)?;
    let values = n.cast(values, n.dtype(factors)?)?;
    let weight = n.op_without_attrs("multiply", &[values, factors])?;
    let weight = n.cast(weight, dtype)?;
    let weight = n.reshape(weight, &[columns, rows])?;
    let weight = n.transpose(weight, &[1, 0])?;
    single_output(math::matmul(n, data, weight, None)?)
}

/// Multiplies by a transposed, block-quantized matrix. Its 2-bit, 4-bit or 8-bit elements are packed into bytes, with
/// the first element in the lowest bits.
fn matmul_n_bits(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let (data, packed_weight, scales) = (n.input(0)?, n.input(1)?, n.input(2)?);
    if n.optional_input(4).is_some() {
        return Err(n.invalid_node("input 4 (g_idx) is not supported"));
    }
    let dtype = n.dtype(data)?;
    let (rows, columns) = (positive(n, "K", 0)?, positive(n, "N", 0)?);
    let (bits, block) = (bits(n)?, positive(n, "block_size", 32)?);
    let blocks = rows.div_ceil(block);
    let integers = unpack(n, packed_weight, bits)?;
    let integers = n.reshape(integers, &[columns, blocks, block])?;
    let float_value = n.cast(integers, dtype)?;
    let zero_point = match n.optional_input(3) {
        None => n.scalar(dtype, f64::from(1u8 << (bits - 1))),
        Some(zero_point) if n.dtype(zero_point)? == DType::U8 => {
            let elements_per_byte = 8 / bits;
            let bytes = blocks.div_ceil(elements_per_byte);
            let zero_point = n.reshape(zero_point, &[columns, bytes])?;
            let zero_point = unpack(n, zero_point, bits)?;
            let zero_point = n.reshape(zero_point, &[columns, bytes * elements_per_byte])?;
            let zero_point = n.slice(zero_point, 1, 0, blocks)?;
            let zero_point = n.cast(zero_point, dtype)?;
            n.reshape(zero_point, &[columns, blocks, 1])?
        }
        Some(zero_point) => {
            let zero_point = n.cast(zero_point, dtype)?;
            n.reshape(zero_point, &[columns, blocks, 1])?
        }
    };
    let scales = n.cast(scales, dtype)?;
    let scales = n.reshape(scales, &[columns, blocks, 1])?;
    let difference = n.op_without_attrs("subtract", &[float_value, zero_point])?;
    let weight = n.op_without_attrs("multiply", &[difference, scales])?;
    let weight = n.reshape(weight, &[columns, blocks * block])?;
    let weight = n.slice(weight, 1, 0, rows)?;
    let product = n.op("nn.dense", &[data, weight], attrs![units: columns as i64])?;
    single_output(match n.optional_input(5) {
        Some(bias) => n.op_without_attrs("add", &[product, bias])?,
        None => product,
    })
}

/// Unpacks bytes into `bits`-bit integers along a new last axis.
fn unpack(n: &mut Node<'_, '_>, bytes: ExprId, bits: usize) -> Result<ExprId> {
    let mut fields = Vec::with_capacity(8 / bits);
    for i in 0..8 / bits {
        let shifted_bytes = n.with_scalar("right_shift", bytes, (i * bits) as f64)?;
        let mask = f64::from((1u16 << bits) - 1);
        fields.push(n.with_scalar("bitwise_and", shifted_bytes, mask)?);
    }
    let fields = n.tuple(&fields)?;
    n.op("stack", &[fields], attrs![axis: -1])
}

/// Unpacks bytes into `bits`-bit integers along the last axis.
fn unpack_last(n: &mut Node<'_, '_>, bytes: ExprId, bits: usize) -> Result<ExprId> {
    if bits == 8 {
        return Ok(bytes);
    }
    let mut dims = n.dims(bytes)?;
    let elements = unpack(n, bytes, bits)?;
    if let Some(last) = dims.last_mut() {
        *last = Dim::product(&[last.clone(), Dim::Fixed(8 / bits)]).unwrap_or(Dim::Any);
    }
    n.reshape_to(elements, &dims)
}
