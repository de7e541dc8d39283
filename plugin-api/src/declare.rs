//! Operators that are not Relay's: a plugin declares them in its description, `declares`.
//!
//! The host enters them in its operator table before it reads a model: Relay text prints and parses them, the ONNX reader
//! takes the nodes of the vendor's domain, patterns and `judge` see them. Where no backend takes one, the host computes
//! its decomposition; without one, the build ends with an error that names the operator and the plugin.
//!
//! ```
//! use byoc_plugin_api::declare::{DeclaredAttribute, DeclaredInput, DeclaredOutput, OnnxName, OperatorDeclaration};
//! use serde_json::json;
//!
//! let swish = OperatorDeclaration {
//!     name: "vendor.swish".into(),
//!     about: "x * sigmoid(beta * x)".into(),
//!     onnx: Some(OnnxName { domain: "com.vendor".into(), name: "Swish".into(), version: 1 }),
//!     inputs: vec![DeclaredInput { name: "data".into(), dtypes: vec!["float32".into()], dims: Some(vec!["...".into()]) }],
//!     outputs: vec![DeclaredOutput { dtype: "data".into(), dims: vec!["...".into()] }],
//!     attributes: vec![DeclaredAttribute {
//!         name: "beta".into(),
//!         kind: "float".into(),
//!         default: json!(1.0),
//!         about: "steepness".into(),
//!     }],
//!     ulps: Some(8.0),
//!     decomposition: Some("multiply(%data, sigmoid(multiply(%data, $beta)))".into()),
//!     ..OperatorDeclaration::default()
//! };
//! assert_eq!(swish.to_json()["onnx"]["name"], "Swish");
//! ```

use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// Declaration of an operator.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct OperatorDeclaration {
    /// Name in Relay text: `vendor.swish`. It has a dot, and no operator of Relay has it.
    pub name: String,
    /// Human-readable one-line summary.
    pub about: String,
    /// Form in ONNX.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub onnx: Option<OnnxName>,
    /// Inputs, all of them tensors.
    pub inputs: Vec<DeclaredInput>,
    /// Outputs. They may be left out if there is a decomposition, whose type then is that of the operator.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub outputs: Vec<DeclaredOutput>,
    /// Attributes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub attributes: Vec<DeclaredAttribute>,
    /// Units in the last place by which implementations may differ from the decomposition, 4 by default. 0 is exact.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ulps: Option<f64>,
    /// Body of a function in Relay text, over operators that are known: `%data` is an input, `$beta` an attribute.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decomposition: Option<String>,
    /// Sizes that the names of dimensions may have in the cases of `byoc plugins test`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub sizes: BTreeMap<String, Vec<usize>>,
}

/// Operator of ONNX.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct OnnxName {
    /// Domain of the vendor: `com.vendor`.
    pub domain: String,
    /// Name in the domain.
    pub name: String,
    /// First version of the domain's operator set with this meaning.
    pub version: i64,
}

/// Input of a declared operator.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DeclaredInput {
    /// Name.
    pub name: String,
    /// Permitted element types; any if there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub dtypes: Vec<String>,
    /// Dimensions: numbers and names. A name stands for one size wherever it occurs. `...` at the beginning stands for any
    /// dimensions, the same wherever it occurs. `None` for any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dims: Option<Vec<String>>,
}

/// Output of a declared operator.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DeclaredOutput {
    /// Element type, or the name of the input that has the same.
    pub dtype: String,
    /// Dimensions: expressions such as `2*c`, `floordiv(n + 1, 2)` over the names of dimensions of inputs and of integer
    /// attributes, and `...` at the beginning.
    pub dims: Vec<String>,
}

/// Attribute of a declared operator.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DeclaredAttribute {
    /// Name, in ONNX too.
    pub name: String,
    /// Kind: `int`, `float`, `bool`, `string`, `ints`, `floats`.
    pub kind: String,
    /// Value where it is not given; null if it has to be given.
    pub default: Value,
    /// Meaning, on one line.
    pub about: String,
}

impl OperatorDeclaration {
    /// Returns the JSON form, for [`Description::declares`](crate::Description::declares).
    pub fn to_json(&self) -> Value {
        serde_json::to_value(self).unwrap_or_default()
    }
}
