//! Signature of a region: the types of its input and output tensors.
//!
//! A blob may be paired with a model that it was not compiled for, because a file was edited by hand or a tool mixed up
//! two blobs. The host checks only the types known to it. A loader should also compare the types that its blob was
//! compiled for with the model's types ([`LoadRequest::check_signature`]); `prepare` cannot, because it receives
//! dimensions but no element types.

use crate::backend::LoadRequest;
use crate::error::{Error, Result};
use crate::graph::{Dim, Graph, TensorType};
use crate::graph_json::read_type;
use serde_json::{Value, json};

/// Key of [`LoadRequest::options`] under which the host passes the region's signature.
pub(crate) const REGION: &str = "region";

/// Types of a region's tensors.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Signature {
    /// Types of the inputs.
    pub inputs: Vec<TensorType>,
    /// Types of the outputs.
    pub outputs: Vec<TensorType>,
}

impl Signature {
    /// Returns the signature of a graph. Its outputs must exist; this holds for graphs from the host, from
    /// [`Graph::from_json`], or checked with [`Graph::check`].
    ///
    /// # Panics
    /// If an output of the graph does not exist.
    pub fn of(graph: &Graph) -> Signature {
        let output = |value: &crate::ValueRef| graph.nodes[value.node as usize].outputs[value.index as usize].clone();
        Signature {
            inputs: graph.inputs.iter().map(|input| input.ty.clone()).collect(),
            outputs: graph.outputs.iter().map(output).collect(),
        }
    }

    /// Reads the JSON form: `{"inputs": [{"dtype": "float32", "dims": [1, "n", null]}], "outputs": [...]}`.
    ///
    /// # Errors
    /// If a list of types is missing, or a type is malformed.
    pub fn from_json(value: &Value) -> Result<Signature> {
        let types = |key: &str| match value.get(key).and_then(Value::as_array) {
            Some(types) => types.iter().map(TensorType::from_json).collect(),
            None => Err(Error::new(format!("expected a list \"{key}\" in a signature, found none"))),
        };
        Ok(Signature { inputs: types("inputs")?, outputs: types("outputs")? })
    }

    /// Returns the JSON form.
    pub fn to_json(&self) -> Value {
        let types = |types: &[TensorType]| -> Vec<Value> { types.iter().map(TensorType::to_json).collect() };
        json!({ "inputs": types(&self.inputs), "outputs": types(&self.outputs) })
    }

    /// Checks that two signatures agree in element types, ranks and known dimensions. The names of unknown dimensions
    /// may differ.
    ///
    /// # Errors
    /// If a tensor differs; the message describes the first difference.
    pub fn check(&self, found: &Signature) -> Result<()> {
        let lists = [("input", &self.inputs, &found.inputs), ("output", &self.outputs, &found.outputs)];
        for (kind, expected, found) in lists {
            if expected.len() != found.len() {
                return Err(format!("number of {kind}s: expected {}, found {}", expected.len(), found.len()).into());
            }
            for (i, (expected, found)) in expected.iter().zip(found).enumerate() {
                let has_same_dims = expected.dims.iter().map(Dim::known).eq(found.dims.iter().map(Dim::known));
                if expected.dtype != found.dtype || !has_same_dims {
                    return Err(format!("{kind} {i}: expected {expected}, found {found}").into());
                }
            }
        }
        Ok(())
    }
}

impl LoadRequest<'_> {
    /// Returns the types of the tensors that the region will be run on; `None` if the host does not provide them.
    ///
    /// # Errors
    /// If a list of types is missing, or a type is malformed.
    pub fn signature(&self) -> Result<Option<Signature>> {
        self.options.get(REGION).map(Signature::from_json).transpose()
    }

    /// Compares a blob's compile-time types with the types of the tensors that the region will be run on.
    ///
    /// # Errors
    /// If a tensor differs; the message describes the first difference.
    pub fn check_signature(&self, compiled_for: &Signature) -> Result<()> {
        match self.signature()? {
            Some(actual) => compiled_for.check(&actual).map_err(|error| {
                Error::new(format!(
                    "{}: the tensor types differ from the compiled region's: {}",
                    self.symbol, error.message
                ))
                .hint("compile the model again")
            }),
            None => Ok(()),
        }
    }
}

impl TensorType {
    /// Reads the JSON form: `{"dtype": "float32", "dims": [1, "n", null]}`.
    ///
    /// # Errors
    /// If the value is not a tensor type.
    pub fn from_json(value: &Value) -> Result<TensorType> {
        read_type(value)
    }

    /// Returns the JSON form.
    pub fn to_json(&self) -> Value {
        let dim = |dim: &Dim| match dim {
            Dim::Known(size) => json!(size),
            Dim::Unknown(name) if name.is_empty() => Value::Null,
            Dim::Unknown(name) => json!(name.as_str()),
        };
        let dtype = match self.dtype.name() {
            Some(name) => json!(name),
            None => json!([self.dtype.code, self.dtype.bits, self.dtype.lanes]),
        };
        json!({ "dtype": dtype, "dims": self.dims.iter().map(dim).collect::<Vec<_>>() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DType;

    fn signature(dtype: DType, dims: Vec<Dim>) -> Signature {
        Signature { inputs: vec![TensorType { dtype, dims: dims.into() }], outputs: vec![] }
    }

    #[test]
    fn round_trips_through_json() {
        let dims = vec![Dim::Known(3), Dim::Unknown("n".into()), Dim::Unknown("".into())];
        for dtype in [DType::BF16, DType { code: 0, bits: 4, lanes: 2 }] {
            let expected = signature(dtype, dims.clone());
            assert_eq!(Signature::from_json(&expected.to_json()).unwrap(), expected);
        }
        Signature::from_json(&json!({ "inputs": [] })).unwrap_err();
        Signature::from_json(&json!({ "inputs": [1], "outputs": [] })).unwrap_err();
    }

    #[test]
    fn compares_element_type_rank_and_known_dims_only() {
        let expected = signature(DType::F32, vec![Dim::Known(3), Dim::Unknown("n".into())]);
        expected.check(&signature(DType::F32, vec![Dim::Known(3), Dim::Unknown("m".into())])).unwrap();
        for mismatch in [
            signature(DType::I8, vec![Dim::Known(3), Dim::Unknown("n".into())]),
            signature(DType::F32, vec![Dim::Known(4), Dim::Unknown("n".into())]),
            signature(DType::F32, vec![Dim::Known(3), Dim::Known(4)]),
            signature(DType::F32, vec![Dim::Known(3)]),
            Signature::default(),
        ] {
            expected.check(&mismatch).unwrap_err();
        }
    }
}
