//! Conversion between `TensorProto` and [`Tensor`].

use super::external::ExternalFiles;
use super::proto::{Bytes, LOCATION_EXTERNAL, SparseTensorProto, TensorProto};
use byoc_files::mapped::{MappedRange, aligned};
use byoc_ir::ir::TensorType;
use byoc_ir::tensor::{DType, Storage, Tensor, element_count};
use byoc_ir::with_dtype;
use std::sync::Arc;

/// ONNX type number of strings.
pub const STRING: i32 = 8;

/// Returns the element type for an ONNX type number; `None` if unsupported.
pub fn dtype(number: i32) -> Option<DType> {
    Some(match number {
        1 => DType::F32,
        2 => DType::U8,
        3 => DType::I8,
        4 => DType::U16,
        5 => DType::I16,
        6 => DType::I32,
        7 => DType::I64,
        9 => DType::Bool,
        10 => DType::F16,
        11 => DType::F64,
        12 => DType::U32,
        13 => DType::U64,
        16 => DType::BF16,
        17 => DType::F8E4M3Fn,
        18 => DType::F8E4M3FnUz,
        19 => DType::F8E5M2,
        20 => DType::F8E5M2FnUz,
        21 => DType::U4,
        22 => DType::I4,
        23 => DType::F4E2M1Fn,
        24 => DType::F8E8M0Fnu,
        25 => DType::U2,
        26 => DType::I2,
        _ => return None,
    })
}

/// Returns the ONNX type number of an element type.
pub fn type_number(dtype: DType) -> i32 {
    match dtype {
        DType::F32 => 1,
        DType::U8 => 2,
        DType::I8 => 3,
        DType::U16 => 4,
        DType::I16 => 5,
        DType::I32 => 6,
        DType::I64 => 7,
        DType::Bool => 9,
        DType::F16 => 10,
        DType::F64 => 11,
        DType::U32 => 12,
        DType::U64 => 13,
        DType::BF16 => 16,
        DType::F8E4M3Fn => 17,
        DType::F8E4M3FnUz => 18,
        DType::F8E5M2 => 19,
        DType::F8E5M2FnUz => 20,
        DType::U4 => 21,
        DType::I4 => 22,
        DType::F4E2M1Fn => 23,
        DType::F8E8M0Fnu => 24,
        DType::U2 => 25,
        DType::I2 => 26,
    }
}

/// Returns the name of an ONNX type number, including unsupported types.
pub fn type_name(number: i32) -> String {
    match number {
        STRING => "string".into(),
        14 => "complex64".into(),
        15 => "complex128".into(),
        other => dtype(other).map_or_else(|| format!("number {other}"), |d| d.name().into()),
    }
}

/// Converts the dimensions of a tensor.
///
/// # Errors
/// If a dimension is negative, or there are more than [`TensorType::MAX_RANK`].
pub fn shape(dims: &[i64]) -> Result<Vec<usize>, String> {
    if dims.len() > TensorType::MAX_RANK {
        return Err(format!("expected at most {} dimensions, found {}", TensorType::MAX_RANK, dims.len()));
    }
    dims.iter().map(|&d| usize::try_from(d).map_err(|_| format!("expected dimensions >= 0, found {d}"))).collect()
}

/// Decodes a tensor. External data is read through `external`.
///
/// # Errors
/// If the element type is unsupported, the data does not match the type and the dimensions, or external data cannot be
/// read.
pub fn decode(proto: &TensorProto, external: Option<&ExternalFiles>) -> Result<Tensor, String> {
    let dtype =
        dtype(proto.data_type).ok_or_else(|| format!("unsupported element type {}", type_name(proto.data_type)))?;
    let shape = shape(&proto.dims)?;
    let count = element_count(&shape).ok_or_else(|| format!("the size of shape {shape:?} overflows"))?;
    let size = count.checked_mul(dtype.size()).ok_or_else(|| format!("the size of shape {shape:?} overflows"))?;
    let size_error = |found: usize, unit: &str| format!("expected data of type {dtype}{shape:?}, found {found} {unit}");

    let raw: Option<Bytes> = if proto.data_location == LOCATION_EXTERNAL {
        let external = external.ok_or("expected embedded tensor data, found a reference to an external file")?;
        Some(external.read(proto, size)?)
    } else {
        proto.raw_data.clone().filter(|raw| !raw.is_empty() || count == 0)
    };
    if let Some(raw) = raw {
        if dtype.bits() < 8 {
            let packed_len = count.div_ceil(8 / dtype.bits());
            if raw.len() != packed_len {
                return Err(size_error(raw.len(), "bytes"));
            }
            return unpack(dtype, &shape, raw.as_ref());
        }
        if raw.len() != size {
            return Err(size_error(raw.len(), "bytes"));
        }
        if dtype == DType::Bool && raw.iter().any(|&b| b > 1) {
            let values: Vec<bool> = raw.iter().map(|&b| b != 0).collect();
            return Ok(Tensor::from_bools(&shape, &values));
        }
        let raw = MappedRange(raw);
        let storage: Arc<dyn Storage> = match raw.as_ref().as_ptr().addr() % dtype.align() {
            0 => Arc::new(raw),
            _ => aligned(raw.as_ref()).map_err(|e| e.to_string())?,
        };
        return Tensor::from_storage(dtype, &shape, storage).ok_or_else(|| size_error(0, "bytes"));
    }
    if dtype.bits() < 8 {
        // Each int32 holds one byte of packed elements.
        let packed_bytes: Vec<u8> = proto.int32_data.iter().map(|&value| value as u8).collect();
        if packed_bytes.len() != count.div_ceil(8 / dtype.bits()) {
            return Err(size_error(packed_bytes.len(), "values"));
        }
        return unpack(dtype, &shape, &packed_bytes);
    }
    let found = match dtype {
        DType::F32 => proto.float_data.len(),
        DType::F64 => proto.double_data.len(),
        DType::I64 => proto.int64_data.len(),
        DType::U32 | DType::U64 => proto.uint64_data.len(),
        _ => proto.int32_data.len(),
    };
    if found != count {
        return Err(size_error(found, "values"));
    }
    let tensor = Tensor::build(dtype, &shape, |bytes| match dtype {
        DType::F32 => bytes.copy_from_slice(bytemuck::cast_slice(&proto.float_data)),
        DType::F64 => bytes.copy_from_slice(bytemuck::cast_slice(&proto.double_data)),
        DType::I64 => bytes.copy_from_slice(bytemuck::cast_slice(&proto.int64_data)),
        DType::U64 => bytes.copy_from_slice(bytemuck::cast_slice(&proto.uint64_data)),
        DType::U32 => bytemuck::cast_slice_mut::<u8, u32>(bytes)
            .iter_mut()
            .zip(&proto.uint64_data)
            .for_each(|(o, &v)| *o = v as u32),
        DType::Bool => bytes.iter_mut().zip(&proto.int32_data).for_each(|(o, &v)| *o = u8::from(v != 0)),
        // Narrow integers and the bit patterns of 16-bit floats occupy the low bits of an int32.
        _ => {
            let size = dtype.size();
            for (out, value) in bytes.chunks_exact_mut(size).zip(&proto.int32_data) {
                out.copy_from_slice(&value.to_le_bytes()[..size]);
            }
        }
    });
    tensor.map_err(|e| e.to_string())
}

/// Decodes a tensor of strings: its shape and its elements.
///
/// # Errors
/// If the number of strings does not match the dimensions, or a string is not UTF-8.
pub fn decode_strings(proto: &TensorProto) -> Result<(Vec<usize>, Vec<Bytes>), String> {
    if proto.data_type != STRING {
        return Err(format!("expected a tensor of strings, found one of {}", type_name(proto.data_type)));
    }
    if proto.data_location == LOCATION_EXTERNAL {
        return Err("expected embedded strings, found a reference to an external file".to_owned());
    }
    let shape = shape(&proto.dims)?;
    let (count, strings) = (element_count(&shape), &proto.string_data);
    if count != Some(strings.len()) {
        return Err(format!("expected data of type string{shape:?}, found {} values", strings.len()));
    }
    match strings.iter().position(|string| std::str::from_utf8(string).is_err()) {
        Some(element) => Err(format!("element {element}: expected UTF-8, found invalid bytes")),
        None => Ok((shape, strings.clone())),
    }
}

/// Unpacks elements of fewer than 8 bits, the first in the lowest bits, to one byte per element.
fn unpack(dtype: DType, shape: &[usize], packed_bytes: &[u8]) -> Result<Tensor, String> {
    let (bits, elements_per_byte) = (dtype.bits(), 8 / dtype.bits());
    let is_signed = matches!(dtype, DType::I4 | DType::I2);
    let tensor = Tensor::build(dtype, shape, |bytes| {
        for (i, byte) in bytes.iter_mut().enumerate() {
            let shifted_byte = packed_bytes[i / elements_per_byte] << (8 - bits - i % elements_per_byte * bits);
            // An arithmetic shift extends the sign.
            *byte = if is_signed { (shifted_byte as i8 >> (8 - bits)) as u8 } else { shifted_byte >> (8 - bits) };
        }
    });
    tensor.map_err(|e| e.to_string())
}

/// Packs elements of fewer than 8 bits, the first into the lowest bits.
pub(crate) fn pack(dtype: DType, bytes: &[u8]) -> Vec<u8> {
    let (bits, elements_per_byte) = (dtype.bits(), 8 / dtype.bits());
    let pack_byte = |chunk: &[u8]| {
        let mask = u8::MAX >> (8 - bits);
        chunk.iter().enumerate().fold(0, |packed_len, (i, byte)| packed_len | (byte & mask) << (i * bits))
    };
    bytes.chunks(elements_per_byte).map(pack_byte).collect()
}

/// Converts a sparse tensor to a dense tensor of at most `limit` bytes.
///
/// # Errors
/// If indices and values are inconsistent, or the dense tensor would exceed `limit`.
pub fn decode_sparse(proto: &SparseTensorProto, limit: usize) -> Result<Tensor, String> {
    let values = decode(proto.values.as_ref().ok_or("sparse tensor: expected values, found none")?, None)?;
    let indices = decode(proto.indices.as_ref().ok_or("sparse tensor: expected indices, found none")?, None)?;
    let shape = shape(&proto.dims)?;
    let size = element_count(&shape).and_then(|n| n.checked_mul(values.dtype().size()));
    if size.is_none_or(|size| size > limit) {
        return Err(format!(
            "sparse tensor of shape {shape:?}: expected at most {limit} bytes in dense form, found {}",
            size.map_or_else(|| "an overflow".to_owned(), |size| size.to_string())
        ));
    }
    let flat = indices
        .view()
        .to_i64s()
        .ok_or_else(|| format!("sparse tensor indices: expected integers, found {}", indices.dtype()))?;
    let flat: Vec<i64> = match *indices.shape() {
        [_] => flat,
        [_, rank] if rank == shape.len() => flat
            .chunks(rank.max(1))
            .map(|index| {
                index.iter().zip(&shape).try_fold(0i64, |sum, (&i, &d)| {
                    (i >= 0 && (i as usize) < d)
                        .then(|| sum * d as i64 + i)
                        .ok_or_else(|| format!("sparse tensor: index {index:?} is out of bounds for shape {shape:?}"))
                })
            })
            .collect::<Result<_, _>>()?,
        _ => {
            return Err(format!(
                "sparse tensor indices: expected shape [n] or [n, {}], found shape {:?}",
                shape.len(),
                indices.shape()
            ));
        }
    };
    if flat.len() != values.len() {
        return Err(format!(
            "number of sparse tensor indices: expected {}, one per value, found {}",
            values.len(),
            flat.len()
        ));
    }
    let count = element_count(&shape).unwrap_or(0);
    if let Some(index) = flat.iter().find(|&&i| i < 0 || i as usize >= count) {
        return Err(format!("sparse tensor: index {index} is out of bounds for {count} elements"));
    }
    let width = values.dtype().size();
    let tensor = Tensor::build(values.dtype(), &shape, |bytes| {
        for (value, &position) in values.bytes().chunks_exact(width).zip(&flat) {
            bytes[position as usize * width..][..width].copy_from_slice(value);
        }
    });
    tensor.map_err(|e| e.to_string())
}

/// Creates a `TensorProto` named `name`, with the data in `raw_data`.
pub fn encode(name: &str, tensor: &Tensor) -> TensorProto {
    TensorProto {
        name: name.to_owned(),
        dims: tensor.shape().iter().map(|&d| d as i64).collect(),
        data_type: type_number(tensor.dtype()),
        raw_data: Some(match tensor.dtype() {
            dtype if dtype.bits() < 8 => Bytes::from(pack(dtype, tensor.bytes())),
            _ => Bytes::copy_from_slice(tensor.bytes()),
        }),
        ..TensorProto::default()
    }
}

/// Creates a tensor from `f64` values converted to an element type, for attributes that become operands.
///
/// # Panics
/// If the number of values does not match the shape.
pub fn from_f64s(dtype: DType, shape: &[usize], values: &[f64]) -> Tensor {
    use byoc_ir::tensor::Element;
    let bytes: Vec<u8> = with_dtype!(dtype, T => {
        values.iter().flat_map(|&v| bytemuck::bytes_of(&T::from_f64(v)).to_vec()).collect()
    });
    Tensor::from_bytes(dtype, shape, &bytes).expect("the number of values matches the shape")
}
