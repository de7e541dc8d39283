//! Serialized array in TVM's format, little-endian: u64 magic, u64 0, device (i32 type, i32 number), i32 rank, element
//! type (u8 code, u8 bits, u16 lanes), i64 per dimension, i64 number of data bytes, the data.

use crate::tensor::{DType, Tensor, element_count};

const MAGIC: u64 = 0xDD5E_40F0_96B4_A13F;

/// Device type of the CPU.
const CPU: i32 = 1;

/// Returns the type code and the number of bits of an element type in a `DLDataType`.
fn code(dtype: DType) -> (u8, u8) {
    let bits = dtype.bits() as u8;
    match dtype {
        DType::Bool => (1, 1),
        DType::I8 | DType::I16 | DType::I32 | DType::I64 | DType::I4 | DType::I2 => (0, bits),
        DType::U8 | DType::U16 | DType::U32 | DType::U64 | DType::U4 | DType::U2 => (1, bits),
        DType::F16 | DType::F32 | DType::F64 => (2, bits),
        DType::BF16 => (4, bits),
        DType::F8E4M3Fn => (10, bits),
        DType::F8E4M3FnUz => (11, bits),
        DType::F8E5M2 => (12, bits),
        DType::F8E5M2FnUz => (13, bits),
        DType::F8E8M0Fnu => (14, bits),
        DType::F4E2M1Fn => (17, bits),
    }
}

/// Reader that consumes bytes from the front.
struct ByteReader<'a>(&'a [u8]);

impl ByteReader<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let (head, tail) = self
            .0
            .split_first_chunk::<N>()
            .ok_or_else(|| format!("array header: expected {N} more bytes, found {}", self.0.len()))?;
        self.0 = tail;
        Ok(*head)
    }

    fn u64(&mut self) -> Result<u64, String> {
        self.take().map(u64::from_le_bytes)
    }

    fn i64(&mut self) -> Result<i64, String> {
        self.take().map(i64::from_le_bytes)
    }

    fn i32(&mut self) -> Result<i32, String> {
        self.take().map(i32::from_le_bytes)
    }
}

/// Deserializes an array.
///
/// # Errors
/// If the header is truncated or invalid, or the length of the data does not match the type.
pub(super) fn read(bytes: &[u8]) -> Result<Tensor, String> {
    let mut reader = ByteReader(bytes);
    let magic = reader.u64()?;
    if magic != MAGIC {
        return Err(format!("array: expected the magic number {MAGIC:#x}, found {magic:#x}"));
    }
    reader.u64()?;
    let device = (reader.i32()?, reader.i32()?);
    if device.0 != CPU {
        return Err(format!("expected an array on device type 1 (CPU), found {}", device.0));
    }
    let rank = reader.i32()?;
    let rank = usize::try_from(rank).map_err(|_| format!("expected an array rank >= 0, found {rank}"))?;
    let [kind, bits] = reader.take()?;
    let lanes = u16::from_le_bytes(reader.take()?);
    let dtype = DType::ALL.iter().copied().find(|&dtype| code(dtype) == (kind, bits) && lanes == 1);
    // Some versions of TVM encode a Boolean as an unsigned integer of one bit; other versions have a type code for it.
    let dtype = dtype.or((kind == 6 && bits == 8 && lanes == 1).then_some(DType::Bool));
    let dtype = dtype.ok_or_else(|| format!("unknown element type: type code {kind}, bits {bits}, lanes {lanes}"))?;
    if rank > reader.0.len() / 8 {
        return Err(format!("array rank: expected at most {}, found {rank}", reader.0.len() / 8));
    }
    let mut shape = Vec::with_capacity(rank);
    for _ in 0..rank {
        let dim = reader.i64()?;
        shape.push(usize::try_from(dim).map_err(|_| format!("expected an array dimension >= 0, found {dim}"))?);
    }
    let declared_size = reader.i64()?;
    let expected_size = element_count(&shape).and_then(|count| count.checked_mul(dtype.size()));
    let actual_size = reader.0.len();
    let tensor = expected_size
        .filter(|&expected_size| i64::try_from(expected_size) == Ok(declared_size) && expected_size == actual_size)
        .and_then(|_| Tensor::from_bytes(dtype, &shape, reader.0));
    tensor.ok_or_else(|| {
        let expected_size =
            expected_size.map_or_else(|| "a size within the address space".to_owned(), |n| format!("{n} bytes"));
        format!(
            "array {dtype}{shape:?}: expected {expected_size}, found {declared_size} bytes declared and {actual_size} \
             bytes present"
        )
    })
}

/// Serializes an array.
pub(super) fn write(tensor: &Tensor) -> Vec<u8> {
    let (kind, bits) = code(tensor.dtype());
    let mut bytes = Vec::with_capacity(48 + 8 * tensor.shape().len() + tensor.bytes().len());
    bytes.extend(MAGIC.to_le_bytes());
    bytes.extend(0u64.to_le_bytes());
    bytes.extend(CPU.to_le_bytes());
    bytes.extend(0i32.to_le_bytes());
    bytes.extend((tensor.shape().len() as i32).to_le_bytes());
    bytes.extend([kind, bits, 1, 0]);
    for &dim in tensor.shape() {
        bytes.extend((dim as i64).to_le_bytes());
    }
    bytes.extend((tensor.bytes().len() as i64).to_le_bytes());
    bytes.extend(tensor.bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_round_trip_and_malformed_ones_fail() {
        let tensors = [
            Tensor::from_slice(&[2, 3], &[1f32, 2., 3., 4., 5., f32::NAN]),
            Tensor::scalar(-7i64),
            Tensor::from_bools(&[2], &[true, false]),
            Tensor::scalar(half::bf16::from_f32(1.5)),
            Tensor::from_slice::<u8>(&[0, 4], &[]),
        ];
        for tensor in &tensors {
            let bytes = write(tensor);
            assert_eq!(read(&bytes).as_ref(), Ok(tensor));
            for length in 0..bytes.len() {
                assert!(read(&bytes[..length]).is_err(), "{length} bytes of {tensor:?}");
            }
            let mut longer_bytes = bytes.clone();
            longer_bytes.push(0);
            assert!(read(&longer_bytes).is_err());
        }
        let mut oversized_bytes = write(&tensors[0]);
        oversized_bytes[28..36].copy_from_slice(&i64::MAX.to_le_bytes());
        assert!(read(&oversized_bytes).is_err());
    }
}
