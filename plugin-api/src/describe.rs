//! Description of a backend. It crosses the boundary as JSON text, so that later versions can add fields: the host
//! keeps unknown fields in [`Description::unknown`] and reports them, and fields that an older backend omits have
//! defaults.

use crate::precision::{ComputeFormat, PrecisionClaim};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Version of the description that this crate writes.
pub const DESCRIPTION_VERSION: u32 = 1;

/// Description of a backend.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Description {
    /// Version of the format.
    pub version: u32,
    /// Human-readable one-line summary of the backend.
    pub about: String,
    /// Pattern table, in the pattern notation: one `name: pattern` per line, in table order. Names may carry the
    /// backend's name as a prefix (`dnnl.conv2d_relu`) or omit it. In the JSON form, the table may also be a list of
    /// lines.
    pub patterns: String,
    /// Single operators that the backend judges, in order of preference.
    pub operators: Vec<String>,
    /// True if the backend supports dimensions unknown until run time. Otherwise the host refuses candidates with such
    /// dimensions without calling the backend.
    pub dynamic_dims: bool,
    /// Minimum cost of a region.
    pub cost: Cost,
    /// Required layouts by operator: `"nn.conv2d": ["NHWC", "HWIO"]`.
    pub layouts: BTreeMap<String, Vec<String>>,
    /// Passes to run before pattern matching, by name.
    pub pre_passes: Vec<String>,
    /// Quantization scheme, for backends that accept quantized models.
    pub quantization: Option<Quantization>,
    /// Maximum size of a blob in bytes. A larger blob is treated as a backend error, and its region runs on the host.
    /// Unlimited by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_blob_bytes: Option<u64>,
    /// True if results are undefined when an input or an intermediate value is NaN or infinite: for example, a relu may
    /// turn NaN into 0.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub finite_math: bool,
    /// True if subnormal inputs and intermediate values may be replaced by zero.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub flush_to_zero: bool,
    /// True if the backend's devices have dedicated memory, in which tensors passed between its regions remain. The
    /// loader then responds to [`MEMORY_KEY`](crate::device::MEMORY_KEY) queries.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub device_memory: bool,
    /// True if regions may contain branches. An `if` whose branches the backend supports is then judged and compiled as
    /// a composite `NAME.if`, whose body has a node of the operator [`IF`](crate::IF).
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub control_flow: bool,
    /// True if regions may contain while loops. A loop whose function the backend supports is then judged and compiled
    /// as a composite `NAME.while`, whose body has a composite named [`WHILE`](crate::WHILE).
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub loops: bool,
    /// True if each device of the backend is a separate backend, `NAME@ID`, with its own description, verdicts and
    /// regions; one program may use several devices. The code generator lists the devices in response to the query
    /// [`DEVICES_KEY`].
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub per_device: bool,
    /// True if the code generator sees all operators of a module before it is asked about any, and answers with the sets
    /// that it takes as regions ([`claim::KEY`](crate::claim::KEY)). Its patterns are then matched inside of these sets.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub whole_graph: bool,
    /// Precision of computation, by operator (`nn.conv2d`), by pattern (`conv2d_relu`), or for all others (`*`). What
    /// has no claim is computed in the types of its operands.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub precision: BTreeMap<String, PrecisionClaim>,
    /// User options of the backend, by name. The host passes user-set values to `compile`, as `backend_options` in its
    /// options.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub options: BTreeMap<String, BackendOption>,
    /// Operators that are not Relay's: the JSON form of each
    /// [`OperatorDeclaration`](crate::declare::OperatorDeclaration). The host refuses a backend with an invalid one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub declares: Vec<Value>,
    /// Fields of a later version, unchanged.
    #[serde(flatten)]
    pub unknown: Map<String, Value>,
    /// Parser warnings, one line each. Valid fields are used regardless.
    #[serde(skip)]
    pub problems: Vec<String>,
    /// Parser errors, one line each: with them, the backend cannot be used, because ignoring the field would change
    /// what the backend promises.
    #[serde(skip)]
    pub faults: Vec<String>,
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
            max_blob_bytes: None,
            finite_math: false,
            flush_to_zero: false,
            device_memory: false,
            control_flow: false,
            loops: false,
            per_device: false,
            whole_graph: false,
            precision: BTreeMap::new(),
            options: BTreeMap::new(),
            declares: Vec::new(),
            unknown: Map::new(),
            problems: Vec::new(),
            faults: Vec::new(),
        }
    }
}

/// Minimum cost of a region. A region below either bound is returned to the host as `NotProfitable`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Cost {
    /// Minimum number of floating-point operations.
    pub min_region_flops: u64,
    /// Minimum number of operators.
    pub min_region_operators: u32,
}

/// User option of a backend.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct BackendOption {
    /// Human-readable one-line summary of the option.
    pub about: String,
    /// Accepted values; the first is the default. Any value is accepted if the list is empty.
    pub values: Vec<String>,
    /// True if the option may be set when a compiled region is loaded, overriding the compile-time value.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub load: bool,
    /// True if the option may be set for each run, overriding the load-time value:
    /// [`run_options`](crate::run_options::run_options).
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub run: bool,
    /// Format that a user who sets a value allows for this backend, as with `--precision`: `{"true": "bf16"}`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub precision: BTreeMap<String, ComputeFormat>,
}

/// `query` key by which the host requests the [`Description`] for the user's options and device. The request data is
/// `{"backend_options": {...}, "device": "..."}`; if `query` returns `None`, [`Codegen::describe`] applies.
///
/// [`Codegen::describe`]: crate::Codegen::describe
pub const DESCRIBE_KEY: &str = "byoc.describe.1";

/// `query` key by which the host requests the devices of a backend. The answer is a JSON list of [`DeviceInfo`]:
///
/// ```
/// # use byoc_plugin_api::*;
/// # struct Mine;
/// # impl Codegen for Mine {
/// #     fn describe(&self) -> Result<Description> { Ok(Description::default()) }
/// #     fn judge(&self, _: &Candidate) -> Verdict { Verdict::Supported }
/// #     fn compile(&self, _: &Region<'_>) -> Result<CompiledRegion> { Err(Error::new("")) }
/// fn query(&self, key: &str, _data: &[u8]) -> Result<Option<Vec<u8>>> {
///     let first = DeviceInfo { id: "0".into(), name: "Chip A".into(), memory: 8 << 30, ..DeviceInfo::default() };
///     Ok((key == DEVICES_KEY).then(|| DeviceInfo::list_to_json(&[first])))
/// }
/// # }
/// # let listed = Mine.query(DEVICES_KEY, b"{}").unwrap().unwrap();
/// # assert_eq!(listed, br#"[{"id":"0","name":"Chip A","memory":8589934592,"about":""}]"#);
/// ```
pub const DEVICES_KEY: &str = "byoc.devices.1";

/// `query` key by which the host asks a code generator what it lacks on this machine, such as a vendor's library. The
/// data is `{}`, and the answer a JSON object of type [`Lack`]; a backend that lacks nothing does not answer. `byoc
/// plugins` prints it.
pub const LACK_KEY: &str = "byoc.lack.1";

/// Missing part of a backend on this machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Lack {
    /// One line, lower case, no full stop.
    pub reason: String,
    /// Remedy for the user.
    pub hint: String,
}

/// Device of a backend, as listed by `byoc plugins show`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceInfo {
    /// Identifier by which the user selects the device: `--device NAME=ID`.
    pub id: String,
    /// Product name, for display; may be empty.
    #[serde(default)]
    pub name: String,
    /// Size of the device memory in bytes; 0 if unknown.
    #[serde(default)]
    pub memory: u64,
    /// Textual description of the capabilities.
    #[serde(default)]
    pub about: String,
}

impl DeviceInfo {
    /// Returns the answer to a [`DEVICES_KEY`] query.
    pub fn list_to_json(devices: &[DeviceInfo]) -> Vec<u8> {
        serde_json::to_vec(devices).unwrap_or_default()
    }
}

/// Quantization scheme of a backend.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Quantization {
    /// Element type of activations: `int8`, `uint8`.
    pub activation: String,
    /// Element type of weights.
    pub weight: String,
    /// Element type of accumulators and biases.
    pub accumulator: String,
    /// True if every zero point is 0.
    pub symmetric: bool,
    /// True if a weight has a scale per output channel.
    pub per_channel: bool,
    /// True if every scale is a power of two.
    pub power_of_two: bool,
}

impl Description {
    /// Returns the JSON form.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("strings, numbers and string-keyed maps serialize")
    }

    /// Parses the JSON form key by key: a value of the wrong type is skipped, an unknown key is kept in `unknown`, and
    /// both are reported in `problems`.
    ///
    /// # Errors
    /// If the text is not a JSON object.
    pub fn from_json(text: &str) -> Result<Description, serde_json::Error> {
        let fields: Map<String, Value> = serde_json::from_str(text)?;
        let mut description = Description::default();
        let mut reader = FieldReader::default();
        for (key, value) in fields {
            match key.as_str() {
                "version" => reader.set(&mut description.version, &key, value),
                "about" => reader.set(&mut description.about, &key, value),
                "patterns" => match value {
                    Value::Array(_) => {
                        let mut lines: Vec<String> = Vec::new();
                        reader.list(&mut lines, &key, value);
                        description.patterns = lines.join("\n");
                    }
                    other => reader.set(&mut description.patterns, &key, other),
                },
                "operators" => reader.list(&mut description.operators, &key, value),
                "dynamic_dims" => reader.set(&mut description.dynamic_dims, &key, value),
                "cost" => reader.fields(&key, value, |reader, name, value| match name {
                    "cost.min_region_flops" => reader.set(&mut description.cost.min_region_flops, name, value),
                    "cost.min_region_operators" => reader.set(&mut description.cost.min_region_operators, name, value),
                    _ => reader.unknown(name),
                }),
                "layouts" => reader.fields(&key, value, |reader, name, value| {
                    let mut layouts = Vec::new();
                    reader.list(&mut layouts, name, value);
                    description.layouts.insert(name["layouts.".len()..].to_owned(), layouts);
                }),
                "pre_passes" => reader.list(&mut description.pre_passes, &key, value),
                "quantization" => reader.set(&mut description.quantization, &key, value),
                "max_blob_bytes" => reader.set(&mut description.max_blob_bytes, &key, value),
                "finite_math" => reader.set(&mut description.finite_math, &key, value),
                "flush_to_zero" => reader.set(&mut description.flush_to_zero, &key, value),
                "device_memory" => reader.set(&mut description.device_memory, &key, value),
                "control_flow" => reader.set(&mut description.control_flow, &key, value),
                "loops" => reader.set(&mut description.loops, &key, value),
                "per_device" => reader.set(&mut description.per_device, &key, value),
                "whole_graph" => reader.set(&mut description.whole_graph, &key, value),
                "precision" => reader.fields(&key, value, |reader, name, value| {
                    let claim = serde_json::from_value(value).map_err(|error| error.to_string());
                    match claim.and_then(|claim: PrecisionClaim| claim.fault().map_or(Ok(claim), Err)) {
                        Ok(claim) => drop(description.precision.insert(name["precision.".len()..].to_owned(), claim)),
                        Err(fault) => reader.faults.push(format!("\"{name}\": {fault}")),
                    }
                }),
                "options" => reader.fields(&key, value, |reader, name, value| {
                    let option = reader.option(name, value);
                    description.options.insert(name["options.".len()..].to_owned(), option);
                }),
                "declares" => match value {
                    Value::Array(declarations) => description.declares = declarations,
                    other => reader.faults.push(format!("\"declares\": expected a list of operators, found {other}")),
                },
                _ => {
                    reader.unknown(&key);
                    description.unknown.insert(key, value);
                }
            }
        }
        if description.version > DESCRIPTION_VERSION {
            let version = description.version;
            reader.problems.push(format!("expected version {DESCRIPTION_VERSION} or older, found {version}"));
        }
        (description.problems, description.faults) = (reader.problems, reader.faults);
        Ok(description)
    }

    /// Reads untrusted text as [`from_json`](Description::from_json) does. If the text is not a JSON object, returns an
    /// empty description with one entry in `problems`.
    pub fn from_json_lossy(text: &str) -> Description {
        Description::from_json(text).unwrap_or_else(|error| {
            let prefix: String = text.chars().take(40).collect();
            let problem = format!("the description is ignored: expected a JSON object, found {prefix:?}... ({error})");
            Description { problems: vec![problem], ..Description::default() }
        })
    }
}

/// Reads values, and records a problem for each invalid one.
#[derive(Default)]
struct FieldReader {
    problems: Vec<String>,
    faults: Vec<String>,
}

impl FieldReader {
    fn set<T: DeserializeOwned>(&mut self, field: &mut T, name: &str, value: Value) {
        match serde_json::from_value(value) {
            Ok(value) => *field = value,
            Err(error) => self.problems.push(format!("\"{name}\" is ignored: {error}")),
        }
    }

    /// Reads a list, one item at a time.
    fn list<T: DeserializeOwned>(&mut self, field: &mut Vec<T>, name: &str, value: Value) {
        let Value::Array(items) = value else {
            self.problems.push(format!("\"{name}\" is ignored: expected a list, found {value}"));
            return;
        };
        for (index, item) in items.into_iter().enumerate() {
            match serde_json::from_value(item) {
                Ok(item) => field.push(item),
                Err(error) => {
                    self.problems.push(format!("\"{name}[{index}]\" is ignored: {error}"));
                }
            }
        }
    }

    /// Reads an object, one field at a time, passing each field's qualified name to `read`.
    fn fields(&mut self, name: &str, value: Value, mut read: impl FnMut(&mut FieldReader, &str, Value)) {
        match value {
            Value::Object(fields) => {
                fields.into_iter().for_each(|(key, value)| read(self, &format!("{name}.{key}"), value));
            }
            other => {
                let problem = format!("\"{name}\" is ignored: expected an object, found {other}");
                self.problems.push(problem);
            }
        }
    }

    /// Reads the option with the qualified name `option_name`.
    fn option(&mut self, option_name: &str, value: Value) -> BackendOption {
        let mut option = BackendOption::default();
        self.fields(option_name, value, |reader, name, value| match &name[option_name.len() + 1..] {
            "about" => reader.set(&mut option.about, name, value),
            "values" => reader.list(&mut option.values, name, value),
            "load" => reader.set(&mut option.load, name, value),
            "run" => reader.set(&mut option.run, name, value),
            "precision" => reader.set(&mut option.precision, name, value),
            _ => reader.unknown(name),
        });
        option
    }

    fn unknown(&mut self, name: &str) {
        self.problems.push(format!("unknown field \"{name}\" is ignored"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trips_through_json() {
        let description = Description {
            about: "a device".into(),
            patterns: "a: nn.relu(*)\nb: add(*, *)".into(),
            operators: vec!["nn.conv2d".into()],
            dynamic_dims: true,
            cost: Cost { min_region_flops: 1 << 40, min_region_operators: 2 },
            layouts: [("nn.conv2d".to_owned(), vec!["NHWC".to_owned(), "HWIO".to_owned()])].into(),
            pre_passes: vec!["fold_constant".into()],
            quantization: Some(Quantization { activation: "int8".into(), symmetric: true, ..Default::default() }),
            max_blob_bytes: Some(1 << 20),
            finite_math: true,
            flush_to_zero: true,
            device_memory: true,
            control_flow: true,
            loops: true,
            per_device: true,
            options: [(
                "half".to_owned(),
                BackendOption {
                    about: "faster".into(),
                    values: vec!["false".into(), "true".into()],
                    load: true,
                    run: true,
                    precision: [("true".to_owned(), ComputeFormat::Bf16)].into(),
                },
            )]
            .into(),
            ..Description::default()
        };
        assert_eq!(Description::from_json(&description.to_json()).unwrap(), description);
        assert_eq!(Description::from_json("{}").unwrap(), Description::default());
    }

    #[test]
    fn uses_known_fields_and_reports_the_rest() {
        let text = r#"{"version": 7, "operators": ["add", 3, "tanh"], "dynamic_dims": "yes", "streams": 4,
            "cost": {"min_region_flops": -1, "min_region_operators": 2, "watts": 1}, "layouts": {"nn.conv2d": "NHWC"},
            "patterns": ["a: nn.relu(*)", "b: add(*, *)"], "pre_passes": "fold_constant",
            "options": {"half": {"about": "faster", "values": ["false", true], "runs": true, "load": 1}, "wide": []}}"#;
        let description = Description::from_json(text).unwrap();
        assert_eq!(description.operators, ["add", "tanh"]);
        assert_eq!(description.patterns, "a: nn.relu(*)\nb: add(*, *)");
        assert_eq!(description.cost, Cost { min_region_flops: 0, min_region_operators: 2 });
        assert!(!description.dynamic_dims && description.pre_passes.is_empty());
        assert_eq!(description.unknown["streams"], 4);
        let half = BackendOption { about: "faster".into(), values: vec!["false".into()], ..Default::default() };
        let options = [("half".to_owned(), half), ("wide".to_owned(), BackendOption::default())];
        assert_eq!(description.options, BTreeMap::from(options));
        let expected = [
            "\"operators[1]\" is ignored: invalid type: integer `3`, expected a string",
            "\"dynamic_dims\" is ignored: invalid type: string \"yes\", expected a boolean",
            "unknown field \"streams\" is ignored",
            "\"cost.min_region_flops\" is ignored: invalid value: integer `-1`, expected u64",
            "unknown field \"cost.watts\" is ignored",
            "\"layouts.nn.conv2d\" is ignored: expected a list, found \"NHWC\"",
            "\"pre_passes\" is ignored: expected a list, found \"fold_constant\"",
            "\"options.half.values[1]\" is ignored: invalid type: boolean `true`, expected a string",
            "unknown field \"options.half.runs\" is ignored",
            "\"options.half.load\" is ignored: invalid type: integer `1`, expected a boolean",
            "\"options.wide\" is ignored: expected an object, found []",
            "expected version 1 or older, found 7",
        ];
        assert_eq!(description.problems, expected);
    }

    /// Invalid claims of precision are errors: without them, the backend would claim more.
    #[test]
    fn invalid_claims_of_precision_are_faults() {
        let text = r#"{"precision": {"nn.relu": {"computes": "bf16", "ulps": 1}, "add": {"relative": -1},
                       "*": {"computes": "f16"}, "abs": null}}"#;
        let description = Description::from_json(text).unwrap();
        assert_eq!(description.precision.keys().collect::<Vec<_>>(), ["nn.relu"]);
        let expected = [
            "\"precision.add\": \"relative\": expected a finite number >= 0, found -1",
            "\"precision.*\": expected \"ulps\", \"relative\" or \"absolute\", found none",
            "\"precision.abs\": invalid type: null, expected struct PrecisionClaim",
        ];
        assert_eq!(description.faults, expected);
        // Text has no NaN: it is written as null.
        let claim = PrecisionClaim { ulps: Some(f64::NAN), ..PrecisionClaim::default() };
        let description = Description { precision: [("*".to_owned(), claim)].into(), ..Description::default() };
        assert_eq!(Description::from_json(&description.to_json()).unwrap().faults.len(), 1);
    }

    #[test]
    fn reports_text_that_is_not_a_json_object() {
        for text in ["", "no JSON", "[]", "3", "{\"version\": 1"] {
            Description::from_json(text).expect_err(text);
            let description = Description::from_json_lossy(text);
            assert_eq!(description.problems.len(), 1);
            assert!(
                description.problems[0].starts_with("the description is ignored: expected a JSON object, found "),
                "{}",
                description.problems[0]
            );
            assert_eq!(Description { problems: Vec::new(), ..description }, Description::default());
        }
    }
}
