//! Protocol datatypes, and conversion of their elements from and to JSON and the typed fields of gRPC.

use crate::error::{Result, ServeError};
use byoc::DType;

/// Datatype of a tensor in a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Datatype {
    /// Fixed-size elements.
    Fixed(DType),
    /// Length-prefixed byte strings: the strings of models, and results of classifications.
    Bytes,
}

/// Datatypes with their protocol names and their numbers in `ModelConfig`.
const TABLE: [(Datatype, &str, i32); 14] = [
    (Datatype::Fixed(DType::Bool), "BOOL", 1),
    (Datatype::Fixed(DType::U8), "UINT8", 2),
    (Datatype::Fixed(DType::U16), "UINT16", 3),
    (Datatype::Fixed(DType::U32), "UINT32", 4),
    (Datatype::Fixed(DType::U64), "UINT64", 5),
    (Datatype::Fixed(DType::I8), "INT8", 6),
    (Datatype::Fixed(DType::I16), "INT16", 7),
    (Datatype::Fixed(DType::I32), "INT32", 8),
    (Datatype::Fixed(DType::I64), "INT64", 9),
    (Datatype::Fixed(DType::F16), "FP16", 10),
    (Datatype::Fixed(DType::F32), "FP32", 11),
    (Datatype::Fixed(DType::F64), "FP64", 12),
    (Datatype::Bytes, "BYTES", 13),
    (Datatype::Fixed(DType::BF16), "BF16", 14),
];

impl Datatype {
    /// Parses the protocol name of a datatype.
    pub fn parse(name: &str) -> Option<Datatype> {
        TABLE.iter().find(|row| row.1 == name).map(|row| row.0)
    }

    /// Returns the protocol name; `None` for element types that the protocol lacks.
    pub fn name(self) -> Option<&'static str> {
        TABLE.iter().find(|row| row.0 == self).map(|row| row.1)
    }

    /// Returns the number in `ModelConfig`; 0 for element types that the protocol lacks.
    pub fn number(self) -> i32 {
        TABLE.iter().find(|row| row.0 == self).map_or(0, |row| row.2)
    }
}

/// Tensor element in JSON.
#[derive(Clone, Debug)]
pub enum Scalar {
    Bool(bool),
    Int(i64),
    Uint(u64),
    Float(f64),
    Text(String),
}

impl std::fmt::Display for Scalar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Scalar::Bool(value) => write!(f, "{value}"),
            Scalar::Int(value) => write!(f, "{value}"),
            Scalar::Uint(value) => write!(f, "{value}"),
            Scalar::Float(value) => write!(f, "{value}"),
            Scalar::Text(value) => write!(f, "{:?}", value.chars().take(40).collect::<String>()),
        }
    }
}

impl Scalar {
    fn integer(&self) -> Option<i128> {
        match self {
            Scalar::Int(value) => Some(i128::from(*value)),
            Scalar::Uint(value) => Some(i128::from(*value)),
            _ => None,
        }
    }

    fn float(&self) -> Option<f64> {
        match self {
            Scalar::Int(value) => Some(*value as f64),
            Scalar::Uint(value) => Some(*value as f64),
            Scalar::Float(value) => Some(*value),
            Scalar::Text(text) => match text.as_str() {
                "NaN" => Some(f64::NAN),
                "Infinity" => Some(f64::INFINITY),
                "-Infinity" => Some(f64::NEG_INFINITY),
                _ => None,
            },
            Scalar::Bool(_) => None,
        }
    }
}

/// Encodes the elements of an input in the binary layout of the protocol.
///
/// # Errors
/// If the datatype has no JSON representation, or an element is not a value of the datatype.
pub fn encode(input: &str, datatype: Datatype, elements: &[Scalar]) -> Result<Vec<u8>> {
    let Some(name) = datatype.name() else { return Ok(Vec::new()) };
    let element_error = |element: &Scalar| {
        ServeError::bad_request(format!("input '{input}': expected elements of datatype {name}, found {element}"))
    };
    let mut bytes = Vec::with_capacity(elements.len().saturating_mul(match datatype {
        Datatype::Fixed(dtype) => dtype.size(),
        Datatype::Bytes => 4,
    }));
    macro_rules! push {
        ($ty:ty, $read:ident) => {
            for element in elements {
                let value = element.$read().and_then(|value| <$ty>::try_from(value).ok());
                bytes.extend_from_slice(&value.ok_or_else(|| element_error(element))?.to_le_bytes());
            }
        };
    }
    match datatype {
        Datatype::Fixed(DType::Bool) => {
            for element in elements {
                match element {
                    Scalar::Bool(value) => bytes.push(u8::from(*value)),
                    Scalar::Int(value @ (0 | 1)) => bytes.push(*value as u8),
                    Scalar::Uint(value @ (0 | 1)) => bytes.push(*value as u8),
                    _ => return Err(element_error(element)),
                }
            }
        }
        Datatype::Fixed(DType::U8) => push!(u8, integer),
        Datatype::Fixed(DType::U16) => push!(u16, integer),
        Datatype::Fixed(DType::U32) => push!(u32, integer),
        Datatype::Fixed(DType::U64) => push!(u64, integer),
        Datatype::Fixed(DType::I8) => push!(i8, integer),
        Datatype::Fixed(DType::I16) => push!(i16, integer),
        Datatype::Fixed(DType::I32) => push!(i32, integer),
        Datatype::Fixed(DType::I64) => push!(i64, integer),
        Datatype::Fixed(DType::F64) => push!(f64, float),
        Datatype::Fixed(DType::F32) => {
            for element in elements {
                let value = element.float().ok_or_else(|| element_error(element))?;
                // An out-of-range number would become infinite; only the token Infinity may produce an infinity.
                if value.is_finite() && !(value as f32).is_finite() {
                    return Err(element_error(element));
                }
                bytes.extend_from_slice(&(value as f32).to_le_bytes());
            }
        }
        Datatype::Bytes => {
            for element in elements {
                let Scalar::Text(text) = element else { return Err(element_error(element)) };
                let length = u32::try_from(text.len()).map_err(|_| element_error(element))?;
                bytes.extend_from_slice(&length.to_le_bytes());
                bytes.extend_from_slice(text.as_bytes());
            }
        }
        Datatype::Fixed(_) => {
            return Err(ServeError::bad_request(format!(
                "input '{input}': expected binary data, found JSON data: datatype {name} has no JSON representation"
            )));
        }
    }
    Ok(bytes)
}

/// Writes the elements of an output as a flat JSON array.
///
/// # Errors
/// If the datatype has no JSON representation.
pub fn write_json(output: &str, datatype: Datatype, bytes: &[u8], out: &mut Vec<u8>) -> Result<()> {
    macro_rules! write_all {
        ($ty:ty) => {
            for (i, chunk) in bytes.chunks_exact(size_of::<$ty>()).enumerate() {
                if i > 0 {
                    out.push(b',');
                }
                let value = <$ty>::from_le_bytes(chunk.try_into().unwrap_or_default());
                write_number(&value, out);
            }
        };
    }
    macro_rules! write_floats {
        ($ty:ty) => {
            for (i, chunk) in bytes.chunks_exact(size_of::<$ty>()).enumerate() {
                if i > 0 {
                    out.push(b',');
                }
                let value = <$ty>::from_le_bytes(chunk.try_into().unwrap_or_default());
                if value.is_finite() {
                    write_number(&value, out);
                } else {
                    let token = if value.is_nan() {
                        "NaN"
                    } else if value > 0.0 {
                        "Infinity"
                    } else {
                        "-Infinity"
                    };
                    out.extend_from_slice(token.as_bytes());
                }
            }
        };
    }
    out.push(b'[');
    match datatype {
        Datatype::Fixed(DType::Bool) => {
            for (i, byte) in bytes.iter().enumerate() {
                if i > 0 {
                    out.push(b',');
                }
                out.extend_from_slice(if *byte == 0 { b"false" } else { b"true" });
            }
        }
        Datatype::Fixed(DType::U8) => write_all!(u8),
        Datatype::Fixed(DType::U16) => write_all!(u16),
        Datatype::Fixed(DType::U32) => write_all!(u32),
        Datatype::Fixed(DType::U64) => write_all!(u64),
        Datatype::Fixed(DType::I8) => write_all!(i8),
        Datatype::Fixed(DType::I16) => write_all!(i16),
        Datatype::Fixed(DType::I32) => write_all!(i32),
        Datatype::Fixed(DType::I64) => write_all!(i64),
        Datatype::Fixed(DType::F32) => write_floats!(f32),
        Datatype::Fixed(DType::F64) => write_floats!(f64),
        Datatype::Bytes => {
            let mut unread_bytes = bytes;
            let mut is_first = true;
            while let Some((length, tail)) = unread_bytes.split_first_chunk::<4>() {
                let length = (u32::from_le_bytes(*length) as usize).min(tail.len());
                let (text, tail) = tail.split_at(length);
                if !std::mem::take(&mut is_first) {
                    out.push(b',');
                }
                write_number(&String::from_utf8_lossy(text), out);
                unread_bytes = tail;
            }
        }
        Datatype::Fixed(_) => {
            let name = datatype.name().unwrap_or("unknown");
            return Err(ServeError::bad_request(format!(
                "output '{output}': expected a request for binary data, found one for JSON: datatype {name} has no JSON representation"
            )));
        }
    }
    out.push(b']');
    Ok(())
}

/// Returns the maximum number of characters with which [`write_json`] writes a byte of an output, separators included.
pub fn max_json_width(datatype: Datatype) -> usize {
    match datatype {
        // `false,` and an escaped control character.
        Datatype::Fixed(DType::Bool) | Datatype::Bytes => 6,
        // `-128,`
        Datatype::Fixed(DType::I8) => 5,
        // `255,`, `-32768,`, `-1.1754944e-38,` and `-2.2250738585072014e-308,`.
        _ => 4,
    }
}

/// Appends a value as JSON. Writing to memory does not fail.
pub fn write_number(value: &impl serde::Serialize, out: &mut Vec<u8>) {
    let _ = serde_json::to_writer(out, value);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(name: &str, bytes: &[u8]) -> String {
        let mut text = Vec::new();
        write_json("y", Datatype::parse(name).unwrap(), bytes, &mut text).unwrap();
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn elements_return_from_json_unchanged() {
        let ints = [Scalar::Int(0), Scalar::Int(1), Scalar::Int(127)];
        for name in ["UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64"] {
            let bytes = encode("x", Datatype::parse(name).unwrap(), &ints).unwrap();
            assert_eq!(json(name, &bytes), "[0,1,127]", "{name}");
        }
        let floats =
            [Scalar::Float(0.5), Scalar::Int(-3), Scalar::Text("NaN".into()), Scalar::Text("-Infinity".into())];
        for name in ["FP32", "FP64"] {
            let bytes = encode("x", Datatype::parse(name).unwrap(), &floats).unwrap();
            assert_eq!(json(name, &bytes), "[0.5,-3.0,NaN,-Infinity]", "{name}");
        }
        let texts = [Scalar::Text(String::new()), Scalar::Text("a\0ü".into())];
        assert_eq!(json("BYTES", &encode("x", Datatype::Bytes, &texts).unwrap()), "[\"\",\"a\\u0000ü\"]");
        for (name, bytes) in [
            ("BOOL", vec![0; 3]),
            ("INT8", i8::MIN.to_le_bytes().repeat(3)),
            ("UINT8", u8::MAX.to_le_bytes().repeat(3)),
            ("INT16", i16::MIN.to_le_bytes().repeat(3)),
            ("INT32", i32::MIN.to_le_bytes().repeat(3)),
            ("INT64", i64::MIN.to_le_bytes().repeat(3)),
            ("FP32", (-f32::MIN_POSITIVE).to_le_bytes().repeat(3)),
            ("FP64", (-f64::MIN_POSITIVE).to_le_bytes().repeat(3)),
            ("BYTES", [&3u32.to_le_bytes()[..], &[1; 3]].concat()),
            ("BYTES", vec![0; 12]),
        ] {
            let max_size = bytes.len() * max_json_width(Datatype::parse(name).unwrap());
            assert!(json(name, &bytes).len() <= max_size + 1, "{name}");
        }
        let bools = encode("x", Datatype::parse("BOOL").unwrap(), &[Scalar::Bool(true), Scalar::Int(0)]).unwrap();
        assert_eq!(json("BOOL", &bools), "[true,false]");
    }

    #[test]
    fn numbers_out_of_range_are_errors() {
        let cases = [
            ("UINT8", Scalar::Int(256)),
            ("UINT8", Scalar::Int(-1)),
            ("INT8", Scalar::Int(128)),
            ("INT32", Scalar::Float(1.5)),
            ("INT64", Scalar::Uint(u64::MAX)),
            ("FP32", Scalar::Float(1e300)),
            ("FP32", Scalar::Bool(true)),
            ("BOOL", Scalar::Int(2)),
            ("FP16", Scalar::Float(1.0)),
            ("BF16", Scalar::Float(1.0)),
            ("BYTES", Scalar::Int(1)),
        ];
        for (name, element) in cases {
            let error = encode("x", Datatype::parse(name).unwrap(), std::slice::from_ref(&element)).unwrap_err();
            assert!(error.message.contains("input 'x'") && error.message.contains(name), "{error}");
        }
    }

    #[test]
    fn numbers_are_those_of_configurations() {
        let names = crate::proto::enumeration("DataType").unwrap();
        for (_, name, number) in TABLE {
            assert_eq!(names[number as usize].replace("STRING", "BYTES"), format!("TYPE_{name}"));
        }
    }
}
