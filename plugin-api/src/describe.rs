//! What a backend says about itself. It crosses as JSON text, so that a later version can say more: what a host does
//! not understand it keeps in [`Description::unknown`] and reports, and what an older backend leaves out has a default.

use serde::de::DeserializeOwned;
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
    /// What was not understood when it was read, one line each. What was understood serves all the same.
    #[serde(skip)]
    pub problems: Vec<String>,
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
            problems: Vec::new(),
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

    /// Reads the JSON form, key by key: one that has a value of another kind keeps its default, one that is not known is
    /// kept in `unknown`, and both are reported in `problems`.
    ///
    /// # Errors
    /// Where the text is no JSON object.
    pub fn from_json(text: &str) -> Result<Description, serde_json::Error> {
        let fields: Map<String, Value> = serde_json::from_str(text)?;
        let mut description = Description::default();
        let mut problems = Vec::new();
        for (key, value) in fields {
            let read = match key.as_str() {
                "version" => set(&mut description.version, value),
                "about" => set(&mut description.about, value),
                "patterns" => set(&mut description.patterns, value),
                "operators" => set(&mut description.operators, value),
                "dynamic_dims" => set(&mut description.dynamic_dims, value),
                "cost" => set(&mut description.cost, value),
                "layouts" => set(&mut description.layouts, value),
                "pre_passes" => set(&mut description.pre_passes, value),
                "quantization" => set(&mut description.quantization, value),
                _ => {
                    problems.push(format!("\"{key}\" is not known to this version and has no effect"));
                    description.unknown.insert(key, value);
                    continue;
                }
            };
            if let Err(error) = read {
                problems.push(format!("\"{key}\" is not understood and has no effect: {error}"));
            }
        }
        if description.version > DESCRIPTION_VERSION {
            let version = description.version;
            problems.push(format!("a description of version {version}; this version knows {DESCRIPTION_VERSION}"));
        }
        description.problems = problems;
        Ok(description)
    }
}

fn set<T: DeserializeOwned>(field: &mut T, value: Value) -> Result<(), serde_json::Error> {
    *field = serde_json::from_value(value)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_it_writes() {
        let description = Description {
            about: "a device".into(),
            patterns: "a: nn.relu(*)\nb: add(*, *)".into(),
            operators: vec!["nn.conv2d".into()],
            dynamic_dims: true,
            cost: Cost { min_region_flops: 1 << 40, min_region_operators: 2 },
            layouts: [("nn.conv2d".to_owned(), vec!["NHWC".to_owned(), "HWIO".to_owned()])].into(),
            pre_passes: vec!["fold_constant".into()],
            quantization: Some(Quantization { activation: "int8".into(), symmetric: true, ..Default::default() }),
            ..Description::default()
        };
        assert_eq!(Description::from_json(&description.to_json()).unwrap(), description);
        assert_eq!(Description::from_json("{}").unwrap(), Description::default());
    }

    #[test]
    fn uses_what_it_understands_and_says_the_rest() {
        let text = r#"{"version": 7, "operators": ["add"], "dynamic_dims": "yes", "streams": 4, "cost": {"min_region_flops": -1}}"#;
        let description = Description::from_json(text).unwrap();
        assert_eq!((description.operators, description.dynamic_dims), (vec!["add".to_owned()], false));
        assert_eq!(description.unknown["streams"], 4);
        let problems = description.problems.join("\n");
        for part in [
            "\"dynamic_dims\" is not understood and has no effect: invalid type: string \"yes\", expected a boolean",
            "\"streams\" is not known to this version and has no effect",
            "\"cost\" is not understood and has no effect: invalid value",
            "a description of version 7; this version knows 1",
        ] {
            assert!(problems.contains(part), "{part:?} is missing in\n{problems}");
        }
        for text in ["", "no JSON", "[]", "3"] {
            Description::from_json(text).expect_err(text);
        }
    }
}
