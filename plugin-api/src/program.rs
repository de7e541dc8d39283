//! Regions as C: the query through which a code generator contributes to an exported program (`byoc export`).
//!
//! The host sends [`KEY`] to the code generator of each region of an export. The data is a JSON object, a NUL, and the
//! concatenated bytes of the constants, in order:
//!
//! ```json
//! {"version": 1, "language": "c99", "symbol": "f", "graph": {...},
//!  "constants": [{"dtype": "float32", "dims": [16, 3], "size": 192, "digest": "..."}], "options": {...}}
//! ```
//! The response is a JSON object, either a [`Program`] or a refusal with its reason:
//!
//! ```json
//! {"source": "...", "workspace": 4096, "status": false, "constant_bytes": 0}
//! {"refused": "expected dimensions known at export, found \"n\"", "hint": "bind it with --dim n=N"}
//! ```
//! The source defines `void SYMBOL(const void *const *in, void *const *out, const void *const *constants, void *work)`,
//! or a function that returns an int if `status` is true.

use crate::constant::{Constant, ConstantSource};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::graph::Graph;
use serde_json::{Value, json};

/// Query key for regions as C.
pub const KEY: &str = "byoc.program.1";

/// Version of the JSON forms.
const VERSION: u64 = 1;

/// Alignment of a request's constants in bytes.
const ALIGN: usize = 64;

/// Request for the C code of a region.
#[derive(Clone, Debug)]
pub struct Request {
    /// Operators and composites, as in `compile`; the region's symbol is `graph.symbol`.
    pub graph: Graph,
    /// Constants of the graph.
    pub constants: Vec<Constant>,
    /// Options, as in `compile`.
    pub options: Value,
}

/// Constant data at an aligned address.
pub(crate) struct HeldBytes {
    memory: Vec<u8>,
    start: usize,
    size: usize,
    digest: String,
}

impl HeldBytes {
    pub(crate) fn new(bytes: &[u8], digest: &str) -> HeldBytes {
        let mut memory = vec![0; bytes.len() + ALIGN];
        let start = memory.as_ptr().align_offset(ALIGN).min(ALIGN);
        memory[start..start + bytes.len()].copy_from_slice(bytes);
        HeldBytes { memory, start, size: bytes.len(), digest: digest.to_owned() }
    }
}

impl ConstantSource for HeldBytes {
    fn bytes(&self) -> &[u8] {
        &self.memory[self.start..self.start + self.size]
    }

    fn digest(&self) -> String {
        self.digest.clone()
    }
}

impl Request {
    /// Serializes the request for a region as query data.
    pub fn write(graph: &Graph, constants: &[Constant], options: &Value) -> Vec<u8> {
        let rows: Vec<Value> = constants.iter().map(constant_row).collect();
        let graph_value: Value = serde_json::from_str(&graph.to_json()).unwrap_or(Value::Null);
        let text = json!({"version": VERSION, "language": "c99", "symbol": graph.symbol.as_str(), "graph": graph_value,
                          "constants": rows, "options": options});
        let mut data = text.to_string().into_bytes();
        data.push(0);
        for constant in constants {
            data.extend_from_slice(constant.bytes());
        }
        data
    }

    /// Parses query data.
    ///
    /// # Errors
    /// If the data is malformed, or has a different version.
    pub fn read(data: &[u8]) -> Result<Request> {
        let end =
            data.iter().position(|&byte| byte == 0).ok_or("expected a NUL after the JSON of a request, found none")?;
        let (text, mut rest) = (&data[..end], &data[end + 1..]);
        let mut value: Value = serde_json::from_slice(text)?;
        if value["version"] != VERSION {
            return Err(format!("expected a request of version {VERSION}, found {}", value["version"]).into());
        }
        let graph = Graph::from_json(&value["graph"].to_string())?;
        let rows = value["constants"].as_array().ok_or("expected a list \"constants\" in a request, found none")?;
        let mut constants = Vec::with_capacity(rows.len());
        for row in rows {
            constants.push(constant(row, &mut rest)?);
        }
        graph.check(constants.len())?;
        Ok(Request { graph, constants, options: value["options"].take() })
    }
}

/// Returns the JSON form of a constant whose bytes follow the text.
pub(crate) fn constant_row(constant: &Constant) -> Value {
    json!({"dtype": constant.dtype().to_string(), "dims": constant.shape(), "size": constant.bytes().len(),
           "digest": constant.digest()})
}

/// Parses the constant that `row` describes, and removes its bytes from the front of `rest`.
pub(crate) fn constant(row: &Value, rest: &mut &[u8]) -> Result<Constant> {
    let dtype = row["dtype"]
        .as_str()
        .and_then(DType::parse)
        .ok_or_else(|| Error::new(format!("constant: expected an element type, found {}", row["dtype"])))?;
    let malformed_dims = || Error::new(format!("constant: expected a list of dimensions >= 0, found {}", row["dims"]));
    let dims = row["dims"].as_array().ok_or_else(malformed_dims)?;
    let dims: Option<Vec<usize>> = dims.iter().map(|dim| dim.as_u64()?.try_into().ok()).collect();
    let dims = dims.ok_or_else(malformed_dims)?;
    let count = dims.iter().try_fold(dtype.size(), |n, &dim| n.checked_mul(dim));
    let size = row["size"].as_u64().and_then(|size| usize::try_from(size).ok());
    let size = size.filter(|size| count == Some(*size) && *size <= rest.len());
    let size = size.ok_or_else(|| {
        let remaining = rest.len();
        Error::new(format!(
            "constant: expected the size of {dtype}{dims:?} in bytes, with {remaining} bytes remaining, found {}",
            row["size"]
        ))
    })?;
    let (bytes, remaining) = rest.split_at(size);
    *rest = remaining;
    Ok(Constant::new("", dtype, &dims, HeldBytes::new(bytes, row["digest"].as_str().unwrap_or_default())))
}

/// Region as C99 code.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Program {
    /// Text of a C file that is compiled as a separate translation unit.
    pub source: String,
    /// Size in bytes of the workspace, which is aligned to 64 bytes.
    pub workspace: u64,
    /// True if the function returns an int, 0 for success.
    pub status: bool,
    /// Size in bytes of the constant arrays in the source.
    pub constant_bytes: u64,
}

/// Response of a code generator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Region as C code.
    Program(Program),
    /// The code generator cannot generate C code for the region.
    Refused {
        /// Expected and found values.
        reason: String,
        /// Remedy for the user; may be empty.
        hint: String,
    },
}

impl Answer {
    /// Serializes the response as JSON, the format of a query result.
    pub fn to_json(&self) -> Vec<u8> {
        let value = match self {
            Answer::Program(program) => {
                json!({"source": program.source, "workspace": program.workspace, "status": program.status,
                       "constant_bytes": program.constant_bytes})
            }
            Answer::Refused { reason, hint } => json!({"refused": reason, "hint": hint}),
        };
        value.to_string().into_bytes()
    }

    /// Parses a response. Missing keys, except for `source`, have the values of an empty [`Program`].
    ///
    /// # Errors
    /// If the data is not JSON, has neither a source nor a reason, or has a size that is not an unsigned integer.
    pub fn read(data: &[u8]) -> Result<Answer> {
        let value: Value = serde_json::from_slice(data)?;
        let text = |key: &str| value[key].as_str().map(str::to_owned);
        if let Some(reason) = text("refused") {
            return Ok(Answer::Refused { reason, hint: text("hint").unwrap_or_default() });
        }
        let integer = |key: &str| match &value[key] {
            Value::Null => Ok(0),
            found => {
                found.as_u64().ok_or_else(|| Error::new(format!("\"{key}\": expected an integer >= 0, found {found}")))
            }
        };
        Ok(Answer::Program(Program {
            source: text("source").ok_or("expected \"source\" or \"refused\" in the response, found neither")?,
            workspace: integer("workspace")?,
            status: value["status"] == true,
            constant_bytes: integer("constant_bytes")?,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{TensorType, ValueRef};

    fn graph() -> Graph {
        let mut graph = Graph::new("f");
        let ty = TensorType::new(DType::F32, &[2]);
        let x = graph.push_input("x", ty.clone());
        let w = graph.push_constant(0, ty.clone());
        let y = graph.push_op("add", [ValueRef::of(x), ValueRef::of(w)], [], [ty]);
        graph.outputs.push(ValueRef::of(y));
        graph
    }

    #[test]
    fn requests_round_trip() {
        let bytes: Vec<u8> = [1.5f32, 0.0].iter().flat_map(|v| v.to_le_bytes()).collect();
        let constants = [Constant::new("w", DType::F32, &[2], HeldBytes::new(&bytes, "abc"))];
        let data = Request::write(&graph(), &constants, &json!({"threads": 1}));
        let read = Request::read(&data).unwrap();
        assert_eq!(read.graph, graph());
        assert_eq!(read.constants[0].tensor().as_slice::<f32>(), [1.5, 0.0]);
        assert_eq!((read.constants[0].digest().as_str(), &read.options["threads"]), ("abc", &json!(1)));
        for end in 0..data.len() {
            assert!(Request::read(&data[..end]).is_err(), "{end} bytes");
        }
    }

    #[test]
    fn answers_round_trip() {
        let program = Program { source: "void f(void);".into(), workspace: 64, status: true, constant_bytes: 3 };
        let refusal = Answer::Refused { reason: "expected x, found y".into(), hint: String::new() };
        for answer in [Answer::Program(program), refusal] {
            assert_eq!(Answer::read(&answer.to_json()).unwrap(), answer);
        }
        let minimal_answer = Answer::read(br#"{"source": "x"}"#).unwrap();
        assert_eq!(minimal_answer, Answer::Program(Program { source: "x".into(), ..Program::default() }));
        for invalid in ["", "[]", "{}", r#"{"source": 1}"#, r#"{"source": "", "workspace": -1}"#] {
            assert!(Answer::read(invalid.as_bytes()).is_err(), "{invalid}");
        }
    }
}
