//! Claims on a whole module: the query through which a code generator names the sets of operators that it takes, after it
//! has seen all operators of the module.
//!
//! The host sends [`KEY`] to a code generator whose description has `whole_graph`. The data is a JSON object, a NUL, and
//! the concatenated bytes of the small constants:
//!
//! ```json
//! {"version": 1,
//!  "graphs": [{"graph": {...}, "taken": [{"node": 3, "backend": "other"}]}],
//!  "constants": [{"dtype": "float32", "dims": [16], "size": 64, "digest": "..."}, {"dtype": "int8", "dims": [9, 512]}],
//!  "options": {"backend_options": {...}, "device": "0"}}
//! ```
//! There is one graph for each function, branch or loop body with operators. What is computed elsewhere is an input of
//! the graph. `taken` lists the operators that a backend of higher priority has. A constant of more than
//! [`MAX_CONSTANT_BYTES`] has neither a size nor bytes here: it reaches the backend with its region, in `judge`.
//!
//! The response names nodes of these graphs. Each set becomes one region:
//!
//! ```json
//! {"regions": [{"graph": 0, "nodes": [1, 2, 5]}],
//!  "reasons": [{"graph": 0, "nodes": [7], "reason": "no more than 8 inputs"}], "reason": "outside of the engine"}
//! ```

use crate::constant::Constant;
use crate::error::{Error, Result};
use crate::graph::Graph;
use crate::program::{constant, constant_row};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Query key for the claims on a module. If the query returns `None`, the host asks about patterns and operators.
pub const KEY: &str = "byoc.claim.1";

/// Maximum size in bytes of a constant whose value is part of a request.
pub const MAX_CONSTANT_BYTES: usize = 4096;

/// Version of the JSON forms.
const VERSION: u64 = 1;

/// Request for the claims on a module.
#[derive(Clone, Debug)]
pub struct Request {
    /// Bodies of the module.
    pub graphs: Vec<ModuleGraph>,
    /// Constants, shared by all graphs; `None` for a constant of more than [`MAX_CONSTANT_BYTES`].
    pub constants: Vec<Option<Constant>>,
    /// The user's choices: `backend_options` and `device`, as in `judge`.
    pub options: Value,
}

/// Function, branch or loop body of a module.
#[derive(Clone, Debug)]
pub struct ModuleGraph {
    /// All operators of the body with their types. The symbol is the name of the function that contains the body.
    pub graph: Graph,
    /// Operators that a backend of higher priority has.
    pub taken: Vec<Taken>,
}

/// Operator that a backend of higher priority has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Taken {
    /// Index of the node in the graph.
    pub node: u32,
    /// Name of the backend.
    pub backend: String,
}

impl Request {
    /// Serializes the request for the given graphs, whose constants are `constants`.
    pub fn write(graphs: &[ModuleGraph], constants: &[Constant], options: &Value) -> Vec<u8> {
        let is_small = |constant: &&Constant| constant.bytes().len() <= MAX_CONSTANT_BYTES;
        let rows: Vec<Value> = constants
            .iter()
            .map(|constant| match is_small(&constant) {
                true => constant_row(constant),
                false => json!({"dtype": constant.dtype().to_string(), "dims": constant.shape()}),
            })
            .collect();
        let graphs: Vec<Value> = graphs
            .iter()
            .map(|ModuleGraph { graph, taken }| {
                let graph: Value = serde_json::from_str(&graph.to_json()).unwrap_or(Value::Null);
                json!({"graph": graph, "taken": taken})
            })
            .collect();
        let text = json!({"version": VERSION, "graphs": graphs, "constants": rows, "options": options});
        let mut data = text.to_string().into_bytes();
        data.push(0);
        constants.iter().filter(is_small).for_each(|constant| data.extend_from_slice(constant.bytes()));
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
        let rows = value["constants"].as_array().ok_or("expected a list \"constants\" in a request, found none")?;
        let read = |row: &Value| if row["size"].is_null() { Ok(None) } else { constant(row, &mut rest).map(Some) };
        let constants: Vec<Option<Constant>> = rows.iter().map(read).collect::<Result<_>>()?;
        let bodies = value["graphs"].as_array().ok_or("expected a list \"graphs\" in a request, found none")?;
        let mut graphs = Vec::with_capacity(bodies.len());
        for body in bodies {
            let graph = Graph::from_json(&body["graph"].to_string())?;
            graph.check(constants.len())?;
            graphs.push(ModuleGraph { graph, taken: serde_json::from_value(body["taken"].clone())? });
        }
        Ok(Request { graphs, constants, options: value["options"].take() })
    }
}

/// Response of a code generator.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Answer {
    /// Sets of operators, each of which becomes a region.
    pub regions: Vec<NodeSet>,
    /// Operators that are in no set, with a reason.
    pub reasons: Vec<Reason>,
    /// Reason for all other operators. May be empty.
    pub reason: String,
}

/// Set of operators.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NodeSet {
    /// Index of the graph in the request.
    pub graph: u32,
    /// Indices of the nodes, in any order.
    pub nodes: Vec<u32>,
}

/// Operators that a backend does not take, with the reason.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Reason {
    /// Index of the graph in the request.
    pub graph: u32,
    /// Indices of the nodes, in any order.
    pub nodes: Vec<u32>,
    /// Text for the user: the expected and the found value.
    pub reason: String,
}

impl Answer {
    /// Serializes the response as JSON, the format of a query result.
    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Parses a response. Missing keys have the values of an empty response.
    ///
    /// # Errors
    /// If the data is not a JSON object of this form.
    pub fn read(data: &[u8]) -> Result<Answer> {
        serde_json::from_slice(data).map_err(|error| Error::new(format!("{KEY}: invalid response: {error}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;
    use crate::graph::{TensorType, ValueRef};
    use crate::program::HeldBytes;

    #[test]
    fn requests_round_trip() {
        let mut graph = Graph::new("main");
        let [small, large] = [[2].as_slice(), &[2000]].map(|dims| TensorType::new(DType::F32, dims));
        let x = graph.push_input("x", small.clone());
        let w = graph.push_constant(0, small.clone());
        graph.push_constant(1, large);
        let y = graph.push_op("add", [ValueRef::of(x), ValueRef::of(w)], [], [small]);
        graph.outputs.push(ValueRef::of(y));
        let constants = [2, 2000].map(|count| {
            let bytes: Vec<u8> = std::iter::repeat_n(1.5f32.to_le_bytes(), count).flatten().collect();
            Constant::new("", DType::F32, &[count], HeldBytes::new(&bytes, "abc"))
        });
        let taken = vec![Taken { node: y, backend: "other".into() }];
        let graphs = [ModuleGraph { graph: graph.clone(), taken: taken.clone() }];
        let data = Request::write(&graphs, &constants, &json!({"device": "1"}));
        let read = Request::read(&data).unwrap();
        assert_eq!((&read.graphs[0].graph, &read.graphs[0].taken), (&graph, &taken));
        assert_eq!(read.constants[0].as_ref().unwrap().tensor().as_slice::<f32>(), [1.5, 1.5]);
        assert!(read.constants[1].is_none(), "a constant of 8000 bytes is not part of the request");
        assert_eq!(read.options["device"], "1");
        for end in 0..data.len() {
            assert!(Request::read(&data[..end]).is_err(), "{end} bytes");
        }
    }

    #[test]
    fn answers_round_trip() {
        let answer = Answer {
            regions: vec![NodeSet { graph: 0, nodes: vec![3, 1] }],
            reasons: vec![Reason { graph: 1, nodes: vec![2], reason: "too large".into() }],
            reason: "outside of the engine".into(),
        };
        assert_eq!(Answer::read(&answer.to_json()).unwrap(), answer);
        assert_eq!(Answer::read(b"{}").unwrap(), Answer::default());
        for invalid in ["", "3", r#"{"regions": [{"graph": -1}]}"#, r#"{"sets": []}"#, r#"{"regions": [3]}"#] {
            let error = Answer::read(invalid.as_bytes()).unwrap_err();
            assert!(error.message.starts_with("byoc.claim.1: invalid response: "), "{invalid}: {error}");
        }
    }
}
