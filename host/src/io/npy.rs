//! NumPy's `.npy` format, versions 1 to 3: a text header with element type, order and shape, then the elements.
//! <https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html>

use super::files::{bad_file, map_file};
use super::output::write_atomically;
use byoc_core::diag::Diagnostic;
use byoc_core::tensor::{DType, Tensor, element_count};
use std::io::Write;
use std::path::Path;

const MAGIC: &[u8] = b"\x93NUMPY";

/// Reads a file.
///
/// # Errors
/// When it cannot be read or is no tensor.
pub fn read(path: &Path) -> Result<Tensor, Diagnostic> {
    let bytes = map_file(path).map_err(|e| bad_file(path, e))?;
    decode(&bytes).map_err(|why| bad_file(path, why))
}

/// Writes a file.
///
/// # Errors
/// When it cannot be written.
pub fn write(path: &Path, tensor: &Tensor) -> Result<(), Diagnostic> {
    write_atomically(path, |file| {
        file.write_all(&header(tensor))?;
        file.write_all(tensor.bytes())
    })
}

/// The tensor in the bytes of a `.npy` file.
///
/// # Errors
/// What is wrong with them.
pub fn decode(bytes: &[u8]) -> Result<Tensor, String> {
    let rest = bytes.strip_prefix(MAGIC).ok_or("it does not begin like a .npy file")?;
    let (&major, rest) = rest.split_first().ok_or("the header is cut off")?;
    let rest = rest.get(1..).ok_or("the header is cut off")?;
    let (length, rest) = match major {
        1 => rest.split_first_chunk::<2>().map(|(n, rest)| (u16::from_le_bytes(*n) as usize, rest)),
        2 | 3 => rest.split_first_chunk::<4>().map(|(n, rest)| (u32::from_le_bytes(*n) as usize, rest)),
        other => return Err(format!("version {other} of the format is not known")),
    }
    .ok_or("the header is cut off")?;
    let (header, data) = rest.split_at_checked(length).ok_or("the header is cut off")?;
    let header = std::str::from_utf8(header).map_err(|_| "the header is no text")?;

    let descr = field(header, "descr")?.trim_matches(['\'', '"']);
    let (dtype, swap) = element_type(descr)?;
    let fortran = field(header, "fortran_order")?.starts_with("True");
    let shape = field(header, "shape")?;
    let shape: Vec<usize> = shape
        .trim_matches(['(', ')'])
        .split(',')
        .map(str::trim)
        .filter(|d| !d.is_empty())
        .map(|d| d.parse().map_err(|_| format!("\"{d}\" is no dimension")))
        .collect::<Result<_, _>>()?;
    let size = element_count(&shape).and_then(|n| n.checked_mul(dtype.size()));
    if size != Some(data.len()) {
        return Err(format!("{} bytes of data for shape {shape:?} of {dtype}", data.len()));
    }
    let mut data = std::borrow::Cow::Borrowed(data);
    if swap {
        data.to_mut().chunks_exact_mut(dtype.size()).for_each(<[u8]>::reverse);
    }
    if fortran && shape.len() > 1 {
        data = row_major(&data, &shape, dtype.size()).into();
    }
    if dtype == DType::Bool && data.iter().any(|&b| b > 1) {
        data.to_mut().iter_mut().for_each(|b| *b = u8::from(*b != 0));
    }
    Tensor::from_bytes(dtype, &shape, &data).ok_or_else(|| "the data does not fit its shape".to_owned())
}

/// The bytes of a `.npy` file with that tensor.
pub fn encode(tensor: &Tensor) -> Vec<u8> {
    [header(tensor).as_slice(), tensor.bytes()].concat()
}

fn header(tensor: &Tensor) -> Vec<u8> {
    let mut dims = tensor.shape().iter().map(|d| format!("{d}, ")).collect::<String>();
    if tensor.shape().len() > 1 {
        dims.truncate(dims.len() - 2);
    }
    let dims = dims.trim_end();
    let descr = descr(tensor.dtype());
    let mut text = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({dims}), }}");
    // Magic, version and length take ten bytes; the data begins at a multiple of 64, the header ends in a newline.
    let padded = (10 + text.len() + 1).next_multiple_of(64);
    text.extend(std::iter::repeat_n(' ', padded - 11 - text.len()));
    text.push('\n');
    let mut out = MAGIC.to_vec();
    out.extend([1, 0]);
    out.extend((text.len() as u16).to_le_bytes());
    out.extend(text.as_bytes());
    out
}

/// The text of a field of the header, which is a Python dictionary.
fn field<'a>(header: &'a str, name: &str) -> Result<&'a str, String> {
    let missing = || format!("the header has no {name}");
    let at = header.find(&format!("'{name}'")).ok_or_else(missing)?;
    let rest = header[at + name.len() + 2..].trim_start().strip_prefix(':').ok_or_else(missing)?.trim_start();
    let end = if rest.starts_with('(') { rest.find(')').map(|i| i + 1) } else { rest.find([',', '}']) };
    Ok(rest[..end.unwrap_or(rest.len())].trim_end())
}

/// The element type of a type string, and whether its bytes must be swapped.
fn element_type(descr: &str) -> Result<(DType, bool), String> {
    let unknown = || format!("elements of type '{descr}' are not supported");
    let (order, kind) = match descr.chars().next() {
        Some(order @ ('<' | '>' | '=' | '|')) => (order, &descr[1..]),
        _ => ('<', descr),
    };
    let dtype = match kind {
        "f8" => DType::F64,
        "f4" => DType::F32,
        "f2" => DType::F16,
        // NumPy has no bfloat16: the ml_dtypes package stores it as two opaque bytes.
        "V2" => DType::BF16,
        "i1" => DType::I8,
        "i2" => DType::I16,
        "i4" => DType::I32,
        "i8" => DType::I64,
        "u1" => DType::U8,
        "u2" => DType::U16,
        "u4" => DType::U32,
        "u8" => DType::U64,
        "b1" | "?" => DType::Bool,
        _ => return Err(unknown()),
    };
    Ok((dtype, order == '>'))
}

fn descr(dtype: DType) -> &'static str {
    match dtype {
        DType::F64 => "<f8",
        DType::F32 => "<f4",
        DType::F16 => "<f2",
        DType::BF16 => "<V2",
        DType::I8 => "|i1",
        DType::I16 => "<i2",
        DType::I32 => "<i4",
        DType::I64 => "<i8",
        DType::U8 => "|u1",
        DType::U16 => "<u2",
        DType::U32 => "<u4",
        DType::U64 => "<u8",
        DType::Bool => "|b1",
    }
}

/// Column-major elements in row-major order.
fn row_major(data: &[u8], shape: &[usize], size: usize) -> Vec<u8> {
    let mut strides = vec![1; shape.len()];
    for axis in 1..shape.len() {
        strides[axis] = strides[axis - 1] * shape[axis - 1];
    }
    let mut out = Vec::with_capacity(data.len());
    let mut index = vec![0; shape.len()];
    for _ in 0..data.len() / size {
        let at = index.iter().zip(&strides).map(|(i, s)| i * s).sum::<usize>() * size;
        out.extend_from_slice(&data[at..at + size]);
        for axis in (0..shape.len()).rev() {
            index[axis] += 1;
            if index[axis] < shape[axis] {
                break;
            }
            index[axis] = 0;
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file as NumPy writes it: `np.save(f, np.arange(6, dtype="<i2").reshape(2, 3))`.
    fn numpy_file(descr: &str, order: &str, shape: &str, data: &[u8]) -> Vec<u8> {
        let mut text = format!("{{'descr': '{descr}', 'fortran_order': {order}, 'shape': {shape}, }}");
        text.extend(std::iter::repeat_n(' ', 117 - text.len()));
        text.push('\n');
        [b"\x93NUMPY\x01\x00\x76\x00".as_slice(), text.as_bytes(), data].concat()
    }

    #[test]
    fn reads_what_numpy_writes() {
        let expected = Tensor::from_slice(&[2, 3], &[0i16, 1, 2, 3, 4, 5]);
        let little = [0, 0, 1, 0, 2, 0, 3, 0, 4, 0, 5, 0];
        let big = [0, 0, 0, 1, 0, 2, 0, 3, 0, 4, 0, 5];
        let columns = [0, 0, 3, 0, 1, 0, 4, 0, 2, 0, 5, 0];
        assert_eq!(decode(&numpy_file("<i2", "False", "(2, 3)", &little)).unwrap(), expected);
        assert_eq!(decode(&numpy_file(">i2", "False", "(2, 3)", &big)).unwrap(), expected);
        assert_eq!(decode(&numpy_file("<i2", "True", "(2, 3)", &columns)).unwrap(), expected);
        assert_eq!(decode(&numpy_file("|u1", "False", "()", &[7])).unwrap(), Tensor::scalar(7u8));
        assert_eq!(
            decode(&numpy_file("|b1", "False", "(2,)", &[0, 1])).unwrap(),
            Tensor::from_bools(&[2], &[false, true])
        );
    }

    #[test]
    fn every_element_type_survives_the_round_trip() {
        for &dtype in DType::ALL {
            for shape in [&[][..], &[3], &[2, 0], &[2, 3, 4]] {
                let tensor = crate::io::random::tensor(dtype, shape, 5);
                let bytes = encode(&tensor);
                assert_eq!(decode(&bytes).unwrap(), tensor);
                assert_eq!((bytes.len() - tensor.bytes().len()) % 64, 0);
            }
        }
    }

    #[test]
    fn damaged_files_are_refused() {
        let good = encode(&Tensor::from_slice(&[2, 3], &[0i16, 1, 2, 3, 4, 5]));
        for length in 0..good.len() {
            assert!(decode(&good[..length]).is_err(), "cut off at {length}");
        }
        assert!(decode(&numpy_file("<i2", "False", "(99999999999, 99999999999)", &[0, 0])).is_err());
        assert!(decode(&numpy_file("|O", "False", "(2,)", &[0, 0])).unwrap_err().contains("'|O'"));
    }
}
