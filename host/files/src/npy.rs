//! NumPy's `.npy` format, versions 1 to 3: a text header with element type, order and shape, then the elements.
//! <https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html>

use crate::input::{bad_file, map_file};
use crate::output::write_atomically;
use byoc_ir::cancel::{self, Ticks};
use byoc_ir::diag::Diagnostic;
use byoc_ir::ir::TensorType;
use byoc_ir::tensor::strings::{self, EncodeError};
use byoc_ir::tensor::{AlignedBytes, DType, OutOfMemory, Shape, Tensor, byte_count, element_count, memory};
use std::borrow::Cow;
use std::io::{Read, Write};
use std::path::Path;

const MAGIC: &[u8] = b"\x93NUMPY";

/// Header of an array.
#[derive(Clone, Debug, PartialEq)]
pub struct Header {
    /// Element type.
    pub dtype: DType,
    /// Dimensions.
    pub shape: Shape,
    /// Form of the elements, if they are strings; `dtype` is then the type of spans.
    pub strings: Option<StringElements>,
    /// True if the elements are big-endian.
    is_swapped: bool,
    /// True if the elements are column-major.
    is_fortran: bool,
}

/// Form of string elements: arrays of characters of equal length, padded with zeros.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StringElements {
    /// Number of characters of each element.
    width: usize,
    /// Size in bytes of a character: 4 for code points, 1 for bytes of UTF-8.
    unit: usize,
}

/// Type of the elements of a file.
enum ElementType {
    Number(DType),
    /// Strings of a number of characters, each of a size in bytes.
    Strings(usize, usize),
}

/// Maximum length of a header in bytes; NumPy typically writes 128.
const MAX_HEADER: usize = 1 << 20;

impl Header {
    /// Reads the header at the beginning of a `.npy` file, without reading beyond it.
    ///
    /// # Errors
    /// If the header is truncated or invalid.
    pub fn read(file: &mut impl Read) -> Result<Header, String> {
        let truncated_error = |_| "the header is truncated".to_owned();
        let mut start = [0; 8];
        file.read_exact(&mut start).map_err(truncated_error)?;
        if start[..6] != *MAGIC {
            let found = start[..6].escape_ascii();
            let expected = MAGIC.escape_ascii();
            return Err(format!("expected the magic number \"{expected}\" of a .npy file, found \"{found}\""));
        }
        let mut length = [0; 4];
        let bytes = match start[6] {
            1 => 2,
            2 | 3 => 4,
            other => return Err(format!("expected format version 1 to 3, found {other}")),
        };
        file.read_exact(&mut length[..bytes]).map_err(truncated_error)?;
        let length = u32::from_le_bytes(length) as usize;
        if length > MAX_HEADER {
            return Err(format!("expected a header of at most {MAX_HEADER} bytes, found {length} bytes"));
        }
        let mut header = vec![0; length];
        file.read_exact(&mut header).map_err(truncated_error)?;
        let header = std::str::from_utf8(&header).map_err(|_| "the header is not UTF-8")?;
        let (kind, is_swapped) = element_type(field(header, "descr")?.trim_matches(['\'', '"']))?;
        let dims = field(header, "shape")?.trim_matches(['(', ')']).split(',').map(str::trim).filter(|d| !d.is_empty());
        let shape: Shape = dims
            .map(|d| d.parse().map_err(|_| format!("expected a dimension, found \"{d}\"")))
            .collect::<Result<_, _>>()?;
        if shape.len() > TensorType::MAX_RANK {
            let (max, found) = (TensorType::MAX_RANK, shape.len());
            return Err(format!("expected an array of at most {max} dimensions, found {found}"));
        }
        let is_fortran = field(header, "fortran_order")?.starts_with("True") && shape.len() > 1;
        let (dtype, strings) = match kind {
            ElementType::Number(dtype) => (dtype, None),
            ElementType::Strings(width, unit) => (DType::I64, Some(StringElements { width, unit })),
        };
        Ok(Header { dtype, shape, strings, is_swapped, is_fortran })
    }

    /// Returns the total size of the elements in bytes.
    ///
    /// # Errors
    /// If the size overflows.
    pub fn size(&self) -> Result<usize, String> {
        let Header { dtype, shape, .. } = self;
        let size = match self.strings {
            Some(StringElements { width, unit }) => {
                element_count(shape).and_then(|count| count.checked_mul(width)?.checked_mul(unit))
            }
            None => byte_count(*dtype, shape),
        };
        size.ok_or_else(|| format!("expected a tensor that fits in the address space, found {dtype}{shape:?}"))
    }

    /// Reads the tensor. Its elements are the remaining `size` bytes of the file.
    ///
    /// # Errors
    /// If `size` is not the size of the tensor (in which case nothing is read), the file has fewer or more bytes, or
    /// the allocation fails.
    pub fn read_elements(&self, file: &mut impl Read, size: u64) -> Result<Tensor, ReadError> {
        if self.strings.is_some() {
            return Err(ReadError::File("expected numbers, found strings".to_owned()));
        }
        let Header { dtype, ref shape, .. } = *self;
        let byte_count = self.size().map_err(ReadError::File)?;
        if u64::try_from(byte_count) != Ok(size) {
            let message = format!("{dtype}{shape:?}: expected {byte_count} bytes of data, found {size}");
            return Err(ReadError::File(message));
        }
        let mut outcome = Ok(());
        let tensor = Tensor::build(dtype, shape, |bytes| {
            outcome = file.read_exact(bytes);
            if self.is_swapped {
                bytes.chunks_exact_mut(dtype.size()).for_each(<[u8]>::reverse);
            }
            if dtype == DType::Bool {
                bytes.iter_mut().for_each(|b| *b = u8::from(*b != 0));
            }
        })?;
        outcome.map_err(|e| ReadError::File(format!("the data cannot be read: {e}")))?;
        if file.read(&mut [0]).map_err(|e| ReadError::File(e.to_string()))? != 0 {
            return Err(ReadError::File(format!("expected {size} bytes of data, found more")));
        }
        if !self.is_fortran {
            return Ok(tensor);
        }
        let tensor = Tensor::build(dtype, shape, |bytes| copy_row_major(tensor.bytes(), shape, dtype.size(), bytes))?;
        match cancel::is_requested() {
            true => Err(ReadError::File("cancelled".to_owned())),
            false => Ok(tensor),
        }
    }
}

impl Header {
    /// Reads the strings of an array: the spans and the bytes. The elements are the remaining `size` bytes of the file.
    ///
    /// # Errors
    /// Same as [`Header::read_elements`], and if an element is no string.
    pub fn read_strings(&self, file: &mut impl Read, size: u64) -> Result<[Tensor; 2], ReadError> {
        let (Some(StringElements { width, unit }), false) = (self.strings, self.is_fortran) else {
            return Err(ReadError::File("expected strings in row-major order, found other elements".to_owned()));
        };
        let byte_count = self.size().map_err(ReadError::File)?;
        if u64::try_from(byte_count) != Ok(size) {
            return Err(ReadError::File(format!("expected {byte_count} bytes of strings, found {size}")));
        }
        let mut data = AlignedBytes::zeroed(byte_count)?;
        file.read_exact(data.as_mut()).map_err(|e| ReadError::File(format!("the data cannot be read: {e}")))?;
        let count = element_count(&self.shape).unwrap_or(0);
        let _charge = memory::reserve(byte_count.saturating_add(count.saturating_mul(size_of::<String>())))?;
        let mut strings = Vec::with_capacity(count);
        for (i, element) in data.as_ref().chunks(width.max(1) * unit).take(count).enumerate() {
            let invalid = || ReadError::File(format!("element {i}: expected a string, found invalid characters"));
            let text = match unit {
                1 => std::str::from_utf8(element).ok().map(str::to_owned),
                _ => element.chunks_exact(4).map(|unit| self.char_of(unit)).collect(),
            };
            strings.push(text.map(|text: String| text.trim_end_matches('\0').to_owned()).ok_or_else(invalid)?);
        }
        strings.resize(count, String::new());
        strings::encode(&self.shape, &strings).map_err(|error| match error {
            EncodeError::Memory(error) => ReadError::Memory(error),
            EncodeError::Invalid(reason) => ReadError::File(reason.to_string()),
        })
    }

    fn char_of(&self, unit: &[u8]) -> Option<char> {
        let unit = <[u8; 4]>::try_from(unit).ok()?;
        char::from_u32(if self.is_swapped { u32::from_be_bytes(unit) } else { u32::from_le_bytes(unit) })
    }
}

/// Error in reading an array.
#[derive(Debug)]
pub enum ReadError {
    /// Invalid or unreadable file, with a description.
    File(String),
    /// Out of memory.
    Memory(OutOfMemory),
}

impl ReadError {
    /// Converts the error to a diagnostic about the file `path`.
    pub fn of(self, path: &Path) -> Diagnostic {
        match self {
            ReadError::File(reason) => bad_file(path, reason),
            ReadError::Memory(error) => Diagnostic::from(error).note(format!("while reading {}", path.display())),
        }
    }

    /// Prepends a location within the file to the message.
    pub fn with_location(self, location: &str) -> ReadError {
        match self {
            ReadError::File(reason) => ReadError::File(format!("{location}: {reason}")),
            memory => memory,
        }
    }
}

impl From<OutOfMemory> for ReadError {
    fn from(error: OutOfMemory) -> ReadError {
        ReadError::Memory(error)
    }
}

/// Reads the tensor in a `.npy` file.
///
/// # Errors
/// If the file cannot be read or is not a tensor, or the allocation fails.
pub fn read(path: &Path) -> Result<Tensor, Diagnostic> {
    let bytes = map_file(path).map_err(|e| bad_file(path, e))?;
    decode(&bytes).map_err(|error| error.of(path))
}

/// Reads the strings in a `.npy` file: the spans and the bytes.
///
/// # Errors
/// If the file cannot be read or has no strings, or the allocation fails.
pub fn read_strings(path: &Path) -> Result<[Tensor; 2], Diagnostic> {
    let bytes = map_file(path).map_err(|e| bad_file(path, e))?;
    let mut rest = &bytes[..];
    let strings = Header::read(&mut rest).map_err(ReadError::File).and_then(|header| {
        let size = rest.len() as u64;
        header.read_strings(&mut rest, size)
    });
    strings.map_err(|error| error.of(path))
}

/// Reads the header of a `.npy` file.
///
/// # Errors
/// If the file cannot be read or is not a tensor.
pub fn header_of(path: &Path) -> Result<Header, Diagnostic> {
    let bytes = map_file(path).map_err(|e| bad_file(path, e))?;
    Header::read(&mut &bytes[..]).map_err(|reason| bad_file(path, reason))
}

/// Writes a tensor to a `.npy` file.
///
/// # Errors
/// If the file cannot be written.
pub fn write(path: &Path, tensor: &Tensor) -> Result<(), Diagnostic> {
    write_atomically(path, |file| {
        file.write_all(&header(tensor))?;
        file.write_all(&data(tensor))
    })
}

/// Decodes the tensor in the bytes of a `.npy` file.
///
/// # Errors
/// If the bytes are not a `.npy` file of a supported type, or the allocation fails.
pub fn decode(mut bytes: &[u8]) -> Result<Tensor, ReadError> {
    let header = Header::read(&mut bytes).map_err(ReadError::File)?;
    let size = bytes.len() as u64;
    header.read_elements(&mut bytes, size)
}

/// Returns the bytes of a `.npy` file that contains `tensor`.
pub fn encode(tensor: &Tensor) -> Vec<u8> {
    [header(tensor).as_slice(), &data(tensor)].concat()
}

/// Returns the bytes of a `.npy` file that contains strings, as code points.
pub fn encode_strings(shape: &[usize], strings: &[String]) -> Vec<u8> {
    // NumPy has no strings of length 0.
    let width = strings.iter().map(|string| string.chars().count()).max().unwrap_or(0).max(1);
    let mut out = header_of_type(&format!("<U{width}"), shape);
    for string in strings {
        let end = out.len() + width * 4;
        out.extend(string.chars().flat_map(|c| u32::from(c).to_le_bytes()));
        out.resize(end, 0);
    }
    out
}

/// Returns the data of a tensor in the element type of the file: floats of fewer than 16 bits, which NumPy lacks,
/// become float32.
fn data(tensor: &Tensor) -> Cow<'_, [u8]> {
    if !tensor.dtype().is_small_float() {
        return tensor.bytes().into();
    }
    let values: Vec<f32> = tensor.view().to_f64s().into_iter().map(|value| value as f32).collect();
    bytemuck::cast_slice(&values).to_vec().into()
}

fn header(tensor: &Tensor) -> Vec<u8> {
    header_of_type(descr(tensor.dtype()), tensor.shape())
}

fn header_of_type(descr: &str, shape: &[usize]) -> Vec<u8> {
    let mut dims = shape.iter().map(|d| format!("{d}, ")).collect::<String>();
    if shape.len() > 1 {
        dims.truncate(dims.len() - 2);
    }
    let dims = dims.trim_end();
    let mut text = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({dims}), }}");
    // The magic number, the version and the length occupy ten bytes. The header ends with a newline, and the data is
    // aligned to 64 bytes.
    let padded_len = (10 + text.len() + 1).next_multiple_of(64);
    text.extend(std::iter::repeat_n(' ', padded_len - 11 - text.len()));
    text.push('\n');
    let mut out = MAGIC.to_vec();
    out.extend([1, 0]);
    out.extend((text.len() as u16).to_le_bytes());
    out.extend(text.as_bytes());
    out
}

/// Returns the value of a field in the header, a Python dictionary literal, as text.
fn field<'a>(header: &'a str, name: &str) -> Result<&'a str, String> {
    let missing_field = || format!("missing field '{name}' in the header");
    let position = header.find(&format!("'{name}'")).ok_or_else(missing_field)?;
    let value =
        header[position + name.len() + 2..].trim_start().strip_prefix(':').ok_or_else(missing_field)?.trim_start();
    let end = if value.starts_with('(') { value.find(')').map(|i| i + 1) } else { value.find([',', '}']) };
    Ok(value[..end.unwrap_or(value.len())].trim_end())
}

/// Parses a type string; returns the element type, and true if the elements are big-endian.
fn element_type(descr: &str) -> Result<(ElementType, bool), String> {
    let type_error = || format!("unsupported element type '{descr}'");
    let (order, kind) = match descr.chars().next() {
        Some(order @ ('<' | '>' | '=' | '|')) => (order, &descr[1..]),
        _ => ('<', descr),
    };
    let width = |digits: &str| digits.parse::<usize>().ok();
    let strings = match kind.split_at_checked(1) {
        Some(("U", digits)) => width(digits).map(|width| ElementType::Strings(width, 4)),
        Some(("S", digits)) => width(digits).map(|width| ElementType::Strings(width, 1)),
        _ => None,
    };
    if let Some(strings) = strings {
        return Ok((strings, order == '>'));
    }
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
        _ => return Err(type_error()),
    };
    Ok((ElementType::Number(dtype), order == '>'))
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
        DType::I4 | DType::I2 => "|i1",
        DType::U4 | DType::U2 => "|u1",
        DType::F8E4M3Fn
        | DType::F8E4M3FnUz
        | DType::F8E5M2
        | DType::F8E5M2FnUz
        | DType::F8E8M0Fnu
        | DType::F4E2M1Fn => "<f4",
    }
}

/// Converts column-major elements to row-major order.
fn copy_row_major(data: &[u8], shape: &[usize], size: usize, out: &mut [u8]) {
    let mut strides = vec![1; shape.len()];
    for axis in 1..shape.len() {
        strides[axis] = strides[axis - 1] * shape[axis - 1];
    }
    let mut index = vec![0; shape.len()];
    let mut ticks = Ticks::every(1 << 4);
    for element in out.chunks_exact_mut(size) {
        if ticks.is_requested() {
            return;
        }
        let offset = index.iter().zip(&strides).map(|(i, s)| i * s).sum::<usize>() * size;
        element.copy_from_slice(&data[offset..offset + size]);
        for axis in (0..shape.len()).rev() {
            index[axis] += 1;
            if index[axis] < shape[axis] {
                break;
            }
            index[axis] = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Builds a file byte by byte as NumPy does, for example for `np.arange(6, dtype="<i2").reshape(2, 3)`.
    fn numpy_file(descr: &str, order: &str, shape: &str, data: &[u8]) -> Vec<u8> {
        let mut text = format!("{{'descr': '{descr}', 'fortran_order': {order}, 'shape': {shape}, }}");
        text.extend(std::iter::repeat_n(' ', 117 - text.len()));
        text.push('\n');
        [b"\x93NUMPY\x01\x00\x76\x00".as_slice(), text.as_bytes(), data].concat()
    }

    #[test]
    fn reads_files_written_by_numpy() {
        let expected = Tensor::from_slice(&[2, 3], &[0i16, 1, 2, 3, 4, 5]);
        let little_endian = [0, 0, 1, 0, 2, 0, 3, 0, 4, 0, 5, 0];
        let big_endian = [0, 0, 0, 1, 0, 2, 0, 3, 0, 4, 0, 5];
        let columns = [0, 0, 3, 0, 1, 0, 4, 0, 2, 0, 5, 0];
        assert_eq!(decode(&numpy_file("<i2", "False", "(2, 3)", &little_endian)).unwrap(), expected);
        assert_eq!(decode(&numpy_file(">i2", "False", "(2, 3)", &big_endian)).unwrap(), expected);
        assert_eq!(decode(&numpy_file("<i2", "True", "(2, 3)", &columns)).unwrap(), expected);
        assert_eq!(decode(&numpy_file("|u1", "False", "()", &[7])).unwrap(), Tensor::scalar(7u8));
        assert_eq!(
            decode(&numpy_file("|b1", "False", "(2,)", &[0, 1])).unwrap(),
            Tensor::from_bools(&[2], &[false, true])
        );
    }

    #[test]
    fn round_trips_every_element_type() {
        for &dtype in DType::COMPUTED {
            for shape in [&[][..], &[3], &[2, 0], &[2, 3, 4]] {
                let tensor = byoc_ir::tensor::random::tensor(dtype, shape, 5);
                let bytes = encode(&tensor);
                assert_eq!(decode(&bytes).unwrap(), tensor);
                assert_eq!((bytes.len() - tensor.bytes().len()) % 64, 0);
            }
        }
    }

    #[test]
    fn rejects_damaged_files() {
        let valid_file = encode(&Tensor::from_slice(&[2, 3], &[0i16, 1, 2, 3, 4, 5]));
        for length in 0..valid_file.len() {
            assert!(decode(&valid_file[..length]).is_err(), "expected an error for {length} bytes");
        }
        assert!(decode(&numpy_file("<i2", "False", "(99999999999, 99999999999)", &[0, 0])).is_err());
        let type_error = decode(&numpy_file("|O", "False", "(2,)", &[0, 0])).unwrap_err();
        assert!(type_error.of(Path::new("x.npy")).message.contains("'|O'"));
        let mut long_file = valid_file;
        (long_file[6], long_file[8], long_file[9], long_file[10], long_file[11]) = (2, 0xff, 0xff, 0xff, 0xff);
        assert!(decode(&long_file).unwrap_err().of(Path::new("x.npy")).message.contains("4294967295 bytes"));
    }
}
