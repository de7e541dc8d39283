//! What a backend says about itself. It crosses as JSON text, so that a later version can say more: what a host does
//! not understand it keeps in [`Description::unknown`] and reports, and what an older backend leaves out has a default.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// The version of the description that this crate writes.
pub const DESCRIPTION_VERSION: u32 = 1;

/// What a backend says about itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Description {
    /// The version of this form.
    pub version: u32,
    /// One line about the backend, for people.
    pub about: String,
    /// The pattern table, in the pattern notation: one `name: pattern` a line, in table order. Names are written
    /// with the backend's name in front (`dnnl.conv2d_relu`) or without.
    pub patterns: String,
    /// The single operators that it wants to be asked about, in order of preference.
    pub operators: Vec<String>,
    /// Whether it takes dimensions that are not known before the run. A candidate with one is refused for it
    /// otherwise, without asking it.
    pub dynamic_dims: bool,
    /// When a region is worth it.
    pub cost: Cost,
    /// The layouts that it wants, by operator: `"nn.conv2d": ["NHWC", "HWIO"]`.
    pub layouts: BTreeMap<String, Vec<String>>,
    /// Passes to run before its patterns are looked for, by name.
    pub pre_passes: Vec<String>,
    /// How a float model becomes one that it takes, if it takes quantized ones.
    pub quantization: Option<Quantization>,
    /// What a later version says and this one does not know.
    #[serde(flatten)]
    pub unknown: Map<String, Value>,
}

impl Default for Description {
    fn default() -> Description {
        Description {
            version: DESCRIPTION_VERSION,
            about: String::new(),
            patterns: String::new(),
            operators: Vec::new(),
            dynamic_dims: false,
            cost: Cost::default(),
            layouts: BTreeMap::new(),
            pre_passes: Vec::new(),
            quantization: None,
            unknown: Map::new(),
        }
    }
}

/// When a region is worth the call. A region below either bound goes back to the host as `NotProfitable`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Cost {
    /// The fewest floating-point operations.
    pub min_region_flops: u64,
    /// The fewest operators.
    pub min_region_operators: u32,
}

/// How a float model becomes an integer one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Quantization {
    /// Element type of what flows: `int8`, `uint8`.
    pub activation: String,
    /// Element type of weights.
    pub weight: String,
    /// Element type of sums and biases.
    pub accumulator: String,
    /// Whether every zero point is 0.
    pub symmetric: bool,
    /// Whether a weight has a scale per output channel.
    pub per_channel: bool,
    /// Whether every scale is a power of two.
    pub power_of_two: bool,
}

impl Description {
    /// The JSON form.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("texts, numbers and maps with text keys serialise")
    }

    /// Reads the JSON form. Unknown keys are kept.
    ///
    /// # Errors
    /// Where the text is no JSON object, or a known key has a value of another kind.
    pub fn from_json(text: &str) -> Result<Description, serde_json::Error> {
        serde_json::from_str(text)
    }
}
