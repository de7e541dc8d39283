//! Reading of a declaration, with a line for each fault.

use super::{Declared, Function, OnnxForm, Port, leak};
use crate::ir::Dim;
use crate::op::{AttrDef, AttrKind, Default};
use crate::tensor::DType;
use crate::text::parse_dim;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// Units in the last place that a result may differ by if the declaration does not say.
const ULPS: f64 = 4.0;

/// Declaration that was read: the operator, its attributes, its description, its error bound.
pub type Reading = (Declared, Vec<AttrDef>, String, f64);

/// Reads a declaration.
///
/// # Errors
/// A line for each fault, with the key at fault.
pub fn read(plugin: &str, source: &Value, function: Option<Function>) -> Result<Reading, Vec<String>> {
    let mut reader = Reader::default();
    let text = |key: &str| source[key].as_str().unwrap_or_default().to_owned();
    let name = text("name");
    if !is_name(&name) || !name.contains('.') {
        reader.fault("name", "a name of letters, digits and _ in parts, such as vendor.swish", &source["name"]);
    }
    let inputs = reader.inputs(&source["inputs"]);
    let attrs = reader.attributes(&source["attributes"]);
    let outputs = reader.outputs(&source["outputs"], &inputs, &attrs);
    let onnx = reader.onnx(&source["onnx"]);
    let ulps = match &source["ulps"] {
        Value::Null => ULPS,
        value => value.as_f64().filter(|ulps| *ulps >= 0.0 && ulps.is_finite()).unwrap_or_else(|| {
            reader.fault("ulps", "a number of units in the last place, at least 0", value);
            ULPS
        }),
    };
    let decomposition = reader.decomposition(&source["decomposition"], &inputs, &attrs);
    if outputs.is_empty() && decomposition.is_none() {
        reader.faults.push("\"outputs\": expected the types of the outputs, or a decomposition, found neither".into());
    }
    let sizes = reader.sizes(&source["sizes"]);
    if !reader.faults.is_empty() {
        return Err(reader.faults);
    }
    let (name, plugin) = (leak(name), plugin.to_owned());
    let source = source.clone();
    let about =
        Some(text("about")).filter(|about| !about.is_empty()).unwrap_or_else(|| format!("declared by {plugin}"));
    let declared = Declared { name, plugin, onnx, inputs, outputs, decomposition, sizes, function, source };
    Ok((declared, attrs, about, ulps))
}

fn is_name(name: &str) -> bool {
    let is_part = |part: &str| {
        part.starts_with(|c: char| c.is_ascii_alphabetic())
            && part.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    name.len() <= 128 && name.split('.').all(is_part)
}

/// Returns the items of a list; none if there is no list.
fn items(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

#[derive(Default)]
struct Reader {
    faults: Vec<String>,
}

impl Reader {
    fn fault(&mut self, key: &str, expected: &str, found: &Value) {
        self.faults.push(format!("\"{key}\": expected {expected}, found {found}"));
    }

    /// Reads a name of an input or an attribute.
    fn name(&mut self, key: &str, value: &Value) -> &'static str {
        match value.as_str() {
            Some(name) if is_name(name) && !name.contains('.') => leak(name.to_owned()),
            _ => {
                self.fault(key, "a name of letters, digits and _", value);
                ""
            }
        }
    }

    fn inputs(&mut self, value: &Value) -> Vec<Port> {
        let mut inputs: Vec<Port> = Vec::new();
        for (index, item) in items(value).iter().enumerate() {
            let key = format!("inputs[{index}]");
            let name = self.name(&format!("{key}.name"), &item["name"]);
            if inputs.iter().any(|input| input.name == name) {
                self.fault(&format!("{key}.name"), "a name that no other input has", &item["name"]);
            }
            let dtypes = items(&item["dtypes"]).iter().filter_map(|dtype| self.dtype(&format!("{key}.dtypes"), dtype));
            let dtypes = dtypes.collect();
            let (leading, dims) = self.dims(&format!("{key}.dims"), &item["dims"]);
            for dim in dims.iter().flatten().filter(|dim| dim.fixed().is_none() && dim.name().is_none()) {
                let found = Value::from(dim.to_string());
                self.fault(&format!("{key}.dims"), "a number or a name; expressions are for outputs", &found);
            }
            inputs.push(Port { name, dtypes, same_dtype: String::new(), leading, dims });
        }
        if inputs.is_empty() {
            self.fault("inputs", "a list of at least one input", value);
        }
        inputs
    }

    fn outputs(&mut self, value: &Value, inputs: &[Port], attrs: &[AttrDef]) -> Vec<Port> {
        let integers = attrs.iter().filter(|attr| attr.kind == AttrKind::Int).map(|attr| attr.name.to_owned());
        let dims = inputs.iter().filter_map(|input| input.dims.as_ref()).flatten();
        let names = dims.flat_map(Dim::symbols).map(ToString::to_string);
        let known: BTreeSet<String> = names.chain(integers).collect();
        let has_leading = inputs.iter().any(|input| input.leading);
        let mut outputs = Vec::new();
        for (index, item) in items(value).iter().enumerate() {
            let key = format!("outputs[{index}]");
            let dtype = item["dtype"].as_str().unwrap_or_default();
            let same_dtype = inputs.iter().find(|input| input.name == dtype).map_or("", |input| input.name).to_owned();
            let dtypes = match same_dtype.is_empty() {
                true => self.dtype(&format!("{key}.dtype"), &item["dtype"]).into_iter().collect(),
                false => Vec::new(),
            };
            let (leading, dims) = self.dims(&format!("{key}.dims"), &item["dims"]);
            if dims.is_none() {
                self.fault(&format!("{key}.dims"), "a list of dimensions", &item["dims"]);
            }
            if leading && !has_leading {
                self.fault(&format!("{key}.dims"), "no \"...\", as no input has it", &item["dims"]);
            }
            let unknown: BTreeSet<String> =
                dims.iter().flatten().flat_map(Dim::symbols).map(ToString::to_string).collect();
            for name in unknown.difference(&known) {
                let expected = "names of dimensions of inputs and of integer attributes";
                self.fault(&format!("{key}.dims"), expected, &Value::from(name.as_str()));
            }
            outputs.push(Port { name: "", dtypes, same_dtype, leading, dims });
        }
        outputs
    }

    fn dtype(&mut self, key: &str, value: &Value) -> Option<DType> {
        let dtype = value.as_str().and_then(DType::parse);
        if dtype.is_none() {
            self.fault(key, "an element type such as float32, or for an output the name of an input", value);
        }
        dtype
    }

    /// Reads dimensions: whether they begin with `...`, and the rest.
    fn dims(&mut self, key: &str, value: &Value) -> (bool, Option<Vec<Dim>>) {
        let Some(list) = value.as_array() else { return (false, None) };
        let leading = list.first().is_some_and(|first| first == "...");
        let mut dims = Vec::new();
        for item in &list[usize::from(leading)..] {
            let parsed = match (item.as_u64(), item.as_str()) {
                (Some(number), _) => Ok(Dim::Fixed(number as usize)),
                (None, Some(text)) => parse_dim(text),
                (None, None) => Err("neither a number nor a text".to_owned()),
            };
            match parsed {
                Ok(dim) if dim != Dim::Any => dims.push(dim),
                Ok(_) => self.fault(key, "a known dimension", item),
                Err(reason) => self.fault(key, &format!("a dimension ({reason})"), item),
            }
        }
        (leading, Some(dims))
    }

    fn onnx(&mut self, value: &Value) -> Option<OnnxForm> {
        let fields = value.as_object()?;
        let text = |key: &str| fields.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        let version = fields.get("version").map_or(Some(1), Value::as_i64).filter(|version| *version >= 1);
        let form = OnnxForm { domain: text("domain"), name: text("name"), version: version.unwrap_or(1) };
        let is_standard = ["", "ai.onnx", "ai.onnx.ml", "com.microsoft"].contains(&form.domain.as_str());
        if is_standard || form.name.is_empty() || version.is_none() {
            self.fault("onnx", "a domain of the vendor's own, a name, and a version of at least 1", value);
        }
        Some(form)
    }

    fn attributes(&mut self, value: &Value) -> Vec<AttrDef> {
        let mut attrs: Vec<AttrDef> = Vec::new();
        for (index, item) in items(value).iter().enumerate() {
            let key = format!("attributes[{index}]");
            let name = self.name(&format!("{key}.name"), &item["name"]);
            if attrs.iter().any(|attr| attr.name == name) {
                self.fault(&format!("{key}.name"), "a name that no other attribute has", &item["name"]);
            }
            let kind = match item["kind"].as_str() {
                Some("int") => AttrKind::Int,
                Some("float") => AttrKind::Float,
                Some("bool") => AttrKind::Bool,
                Some("string") => AttrKind::Str,
                Some("ints") => AttrKind::Ints,
                Some("floats") => AttrKind::Floats,
                _ => {
                    self.fault(&format!("{key}.kind"), "int, float, bool, string, ints or floats", &item["kind"]);
                    continue;
                }
            };
            let default = default_of(kind, &item["default"]).unwrap_or_else(|| {
                self.fault(&format!("{key}.default"), &format!("{kind}, or nothing"), &item["default"]);
                Default::Required
            });
            let about = item["about"].as_str().filter(|about| !about.is_empty());
            let doc = about.map_or_else(|| format!("attribute {name}"), ToOwned::to_owned);
            attrs.push(AttrDef { name, kind, default, doc: leak(doc) });
        }
        attrs
    }

    fn decomposition(&mut self, value: &Value, inputs: &[Port], attrs: &[AttrDef]) -> Option<String> {
        let text = match value {
            Value::Null => return None,
            Value::String(text) => text,
            other => {
                self.fault("decomposition", "the body of a function as Relay text", other);
                return None;
            }
        };
        for name in super::decompose::placeholders(text) {
            if !attrs.iter().any(|attr| attr.name == name) {
                let expected = format!(
                    "attributes of the operator after $ (inputs are %{})",
                    inputs.first().map_or("x", |i| i.name)
                );
                self.fault("decomposition", &expected, &Value::from(format!("${name}")));
            }
        }
        Some(text.clone())
    }

    fn sizes(&mut self, value: &Value) -> BTreeMap<String, Vec<usize>> {
        let mut sizes = BTreeMap::new();
        for (name, list) in value.as_object().into_iter().flatten() {
            let numbers: Vec<usize> = items(list).iter().filter_map(|n| Some(n.as_u64()? as usize)).collect();
            if numbers.is_empty() || numbers.len() != items(list).len() {
                self.fault(&format!("sizes.{name}"), "a list of sizes", list);
            }
            sizes.insert(name.clone(), numbers);
        }
        sizes
    }
}

/// Reads the default value of an attribute. `None` if it has another kind.
fn default_of(kind: AttrKind, value: &Value) -> Option<Default> {
    if value.is_null() {
        return Some(Default::Required);
    }
    let ints = || items(value).iter().map(Value::as_i64).collect::<Option<Vec<i64>>>().filter(|_| value.is_array());
    let floats = || items(value).iter().map(Value::as_f64).collect::<Option<Vec<f64>>>().filter(|_| value.is_array());
    match kind {
        AttrKind::Int => value.as_i64().map(Default::Int),
        AttrKind::Float => value.as_f64().map(Default::Float),
        AttrKind::Bool => value.as_bool().map(Default::Bool),
        AttrKind::Str => value.as_str().map(|text| Default::Str(leak(text.to_owned()))),
        AttrKind::Ints => ints().map(|list| Default::Ints(Box::leak(list.into_boxed_slice()))),
        AttrKind::Floats => floats().map(|list| Default::Floats(Box::leak(list.into_boxed_slice()))),
        _ => None,
    }
}
