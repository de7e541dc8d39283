//! Inference requests and responses as JSON, with the binary tensor extension.

use crate::datatype::{Datatype, Scalar, encode, max_json_width, write_json, write_number};
use crate::error::{Result, ServeError};
use crate::memory;
use crate::request::{
    InferRequest, InferResponse, InputData, InputTensor, OutputData, Param, Params, check_count, requested_output,
    take_shared,
};
use byoc::io::footprint::JsonCosts;
use byoc_ir::tensor::memory::Charge;
use bytes::Bytes;
use serde::de::{DeserializeSeed, Error as _, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::borrow::Cow;
use std::fmt;

/// Maximum nesting depth of arrays in tensor data.
const MAX_DEPTH: usize = 100;

/// Inference request over HTTP.
#[derive(Debug, Default)]
pub struct HttpRequest {
    pub request: InferRequest,
    /// True if outputs without a `binary_data` parameter are binary.
    pub binary_output: bool,
}

#[derive(Deserialize)]
struct JsonRequest {
    #[serde(default)]
    id: Option<String>,
    #[serde(default)]
    parameters: JsonParams,
    inputs: Vec<JsonInput>,
    #[serde(default)]
    outputs: Option<Vec<JsonOutput>>,
}

#[derive(Deserialize)]
struct JsonInput {
    name: String,
    shape: Vec<i64>,
    datatype: String,
    #[serde(default)]
    parameters: JsonParams,
    #[serde(default)]
    data: Option<JsonData>,
}

#[derive(Deserialize)]
struct JsonOutput {
    name: String,
    #[serde(default)]
    parameters: JsonParams,
}

/// Parameters; a value other than a string, number or Boolean is an error.
#[derive(Default)]
struct JsonParams(Params);

impl<'de> Deserialize<'de> for JsonParams {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct Fields;
        impl<'de> Visitor<'de> for Fields {
            type Value = JsonParams;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object with parameters")
            }

            fn visit_unit<E>(self) -> std::result::Result<JsonParams, E> {
                Ok(JsonParams::default())
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<JsonParams, A::Error> {
                let mut params = Params::new();
                while let Some((name, Element(value))) = map.next_entry::<String, Element>()? {
                    let value = match value {
                        Scalar::Bool(value) => Param::Bool(value),
                        Scalar::Int(value) => Param::Int(value),
                        Scalar::Uint(value) => Param::Uint(value),
                        Scalar::Float(value) => Param::Float(value),
                        Scalar::Text(value) => Param::Text(value),
                    };
                    params.insert(name, value);
                }
                Ok(JsonParams(params))
            }
        }
        deserializer.deserialize_any(Fields)
    }
}

/// Single JSON value: a string, a number or a Boolean.
struct Element(Scalar);

impl<'de> Deserialize<'de> for Element {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        let mut data = JsonData::default();
        ElementCollector { data: &mut data, depth: 0, accepts_arrays: false }.deserialize(deserializer)?;
        data.elements.pop().map(Element).ok_or_else(|| D::Error::custom("expected a value, found none"))
    }
}

/// Tensor elements, with the lengths of the enclosing JSON arrays.
#[derive(Default)]
struct JsonData {
    elements: Vec<Scalar>,
    /// Array length at each depth; `None` if not known yet.
    lengths: Vec<Option<usize>>,
    /// Nesting depth of the elements; `None` before the first element.
    depth: Option<usize>,
}

impl JsonData {
    /// Returns true if the data is a flat array, or nested arrays that match the shape.
    fn has_shape(&self, shape: &[i64]) -> bool {
        let lengths: Option<Vec<i64>> = self.lengths.iter().map(|length| Some((*length)? as i64)).collect();
        let Some(lengths) = lengths else { return false };
        // An empty array does not determine the dimensions of deeper levels.
        let is_flat = self.elements.is_empty() && shape.starts_with(&lengths);
        lengths.len() == 1 || lengths == shape || is_flat
    }
}

impl<'de> Deserialize<'de> for JsonData {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        let mut data = JsonData::default();
        ElementCollector { data: &mut data, depth: 0, accepts_arrays: true }.deserialize(deserializer)?;
        Ok(data)
    }
}

struct ElementCollector<'a> {
    data: &'a mut JsonData,
    depth: usize,
    accepts_arrays: bool,
}

impl ElementCollector<'_> {
    fn push<E: serde::de::Error>(self, element: Scalar) -> std::result::Result<(), E> {
        let depth = *self.data.depth.get_or_insert(self.depth);
        if self.accepts_arrays && (self.depth == 0 || depth != self.depth) {
            return Err(E::custom(format!("expected a flat array, or arrays nested as in the shape, found {element}")));
        }
        self.data.elements.push(element);
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for ElementCollector<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> std::result::Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ElementCollector<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.accepts_arrays { "an array of elements" } else { "a string, a number or a Boolean" })
    }

    fn visit_bool<E: serde::de::Error>(self, value: bool) -> std::result::Result<(), E> {
        self.push(Scalar::Bool(value))
    }

    fn visit_i64<E: serde::de::Error>(self, value: i64) -> std::result::Result<(), E> {
        self.push(Scalar::Int(value))
    }

    fn visit_u64<E: serde::de::Error>(self, value: u64) -> std::result::Result<(), E> {
        self.push(i64::try_from(value).map_or(Scalar::Uint(value), Scalar::Int))
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> std::result::Result<(), E> {
        self.push(Scalar::Float(value))
    }

    fn visit_str<E: serde::de::Error>(self, value: &str) -> std::result::Result<(), E> {
        self.push(Scalar::Text(value.to_owned()))
    }

    fn visit_unit<E: serde::de::Error>(self) -> std::result::Result<(), E> {
        // JSON writers without a NaN token emit null.
        self.push(Scalar::Float(f64::NAN))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> std::result::Result<(), A::Error> {
        if !self.accepts_arrays {
            return Err(A::Error::custom("expected a string, a number or a Boolean, found an array"));
        }
        if self.depth == MAX_DEPTH {
            let message = format!("expected at most {MAX_DEPTH} nested arrays, found {}", MAX_DEPTH + 1);
            return Err(A::Error::custom(message));
        }
        let mut length = 0usize;
        while seq
            .next_element_seed(ElementCollector { data: self.data, depth: self.depth + 1, accepts_arrays: true })?
            .is_some()
        {
            length += 1;
        }
        if self.data.lengths.len() <= self.depth {
            self.data.lengths.resize(self.depth + 1, None);
        }
        match self.data.lengths[self.depth].replace(length) {
            Some(previous_length) if previous_length != length => Err(A::Error::custom(format!(
                "expected arrays of equal length at each depth, found lengths {previous_length} and {length}"
            ))),
            _ => Ok(()),
        }
    }
}

/// Quotes the tokens `NaN`, `Infinity` and `-Infinity`, which are not valid JSON, but are emitted by Python.
fn quote_tokens(text: &[u8]) -> Cow<'_, [u8]> {
    let mut quoted_text: Option<Vec<u8>> = None;
    let (mut copied_len, mut offset, mut in_string) = (0, 0, false);
    while let Some(&byte) = text.get(offset) {
        match byte {
            b'\\' if in_string => offset += 1,
            b'"' => in_string = !in_string,
            b'N' | b'I' | b'-' if !in_string => {
                let tokens: [&[u8]; 3] = [b"NaN", b"Infinity", b"-Infinity"];
                if let Some(token) = tokens.into_iter().find(|token| text[offset..].starts_with(token)) {
                    let out = quoted_text.get_or_insert_default();
                    out.extend_from_slice(&text[copied_len..offset]);
                    out.push(b'"');
                    out.extend_from_slice(token);
                    out.push(b'"');
                    offset += token.len();
                    copied_len = offset;
                    continue;
                }
            }
            _ => {}
        }
        offset += 1;
    }
    match quoted_text {
        None => Cow::Borrowed(text),
        Some(mut quoted_text) => {
            quoted_text.extend_from_slice(&text[copied_len..]);
            Cow::Owned(quoted_text)
        }
    }
}

/// Memory of the parts of a request. The first element of a vector reserves four, the first entry of a map eleven, and
/// vectors double their capacity as they grow.
const COSTS: JsonCosts = JsonCosts {
    object: 4 * size_of::<JsonInput>() + 11 * (size_of::<String>() + size_of::<Param>()),
    member: 2 * (size_of::<String>() + size_of::<Param>()),
    list: 4 * size_of::<Scalar>(),
    element: 2 * size_of::<Scalar>(),
};

/// Parses a request: `header` bytes of JSON, followed by the binary data of its inputs. The memory that the request
/// takes is added to `charge`.
///
/// # Errors
/// If the request is malformed, its sizes are inconsistent, or the memory limit is exhausted.
pub fn parse(body: &Bytes, header: usize, charge: &mut Charge) -> Result<HttpRequest> {
    memory::grow(charge, COSTS.of(&body[..header]))?;
    let json: JsonRequest = serde_json::from_slice(&quote_tokens(&body[..header])).map_err(|error| {
        ServeError::bad_request(format!(
            "failed to parse the request JSON buffer: expected an inference request: {error}"
        ))
    })?;
    let outputs = json.outputs.unwrap_or_default();
    check_count("inputs", json.inputs.len())?;
    check_count("outputs", outputs.len())?;
    let mut params = json.parameters.0;
    let binary_output =
        params.remove("binary_data_output").map_or(Ok(false), |value| value.bool("binary_data_output"))?;
    let mut offset = header;
    let mut inputs = Vec::with_capacity(json.inputs.len());
    for JsonInput { name, shape, datatype, parameters, data } in json.inputs {
        let mut params = parameters.0;
        let shared_span = take_shared(&mut params)?;
        let size = params.remove("binary_data_size").map(|size| size.count("binary_data_size")).transpose()?;
        let data = match (data, size, shared_span) {
            (Some(data), None, None) => {
                let Some(parsed_datatype) = Datatype::parse(&datatype) else {
                    return Err(unknown_datatype(&name, &datatype));
                };
                let count = shape.iter().try_fold(1i64, |n, &d| n.checked_mul(d));
                if count != i64::try_from(data.elements.len()).ok() || !data.has_shape(&shape) {
                    let message = format!(
                        "input '{name}': expected {} elements for shape {shape:?}, flat or nested as in the shape, \
                         found {} in arrays of lengths {:?}",
                        count.map_or_else(|| "2^63 or more".to_owned(), |n| n.to_string()),
                        data.elements.len(),
                        data.lengths.iter().flatten().collect::<Vec<_>>()
                    );
                    return Err(ServeError::bad_tensor(message));
                }
                InputData::Bytes(encode(&name, parsed_datatype, &data.elements)?.into())
            }
            (None, Some(size), None) => {
                let end = usize::try_from(size).ok().and_then(|size| offset.checked_add(size));
                let Some(end) = end.filter(|end| *end <= body.len()) else {
                    let message = format!(
                        "input '{name}': expected {size} bytes of binary data after the JSON, found {}",
                        body.len() - offset
                    );
                    return Err(ServeError::bad_request(message));
                };
                let bytes = body.slice(offset..end);
                offset = end;
                InputData::Bytes(bytes)
            }
            (None, None, Some(shared_span)) => InputData::Shared(shared_span),
            (data, size, shared_span) => {
                let given_fields: Vec<&str> = [
                    data.map(|_| "'data'"),
                    size.map(|_| "'binary_data_size'"),
                    shared_span.map(|_| "'shared_memory_region'"),
                ]
                .into_iter()
                .flatten()
                .collect();
                let given_fields = if given_fields.is_empty() { "none".to_owned() } else { given_fields.join(" and ") };
                return Err(ServeError::bad_request(format!(
                    "input '{name}': expected one of 'data', 'binary_data_size' and 'shared_memory_region', found {given_fields}"
                )));
            }
        };
        inputs.push(InputTensor { name, datatype, shape, data });
    }
    if offset != body.len() {
        let message =
            format!("expected {} bytes of binary data for all inputs, found {}", offset - header, body.len() - header);
        return Err(ServeError::bad_request(message));
    }
    let outputs =
        outputs.into_iter().map(|output| requested_output(output.name, output.parameters.0)).collect::<Result<_>>()?;
    let request = InferRequest { id: json.id.unwrap_or_default(), params, inputs, outputs };
    Ok(HttpRequest { request, binary_output })
}

/// Returns the error for an unknown datatype.
pub fn unknown_datatype(input: &str, datatype: &str) -> ServeError {
    let prefix: String = datatype.chars().take(40).collect();
    ServeError::bad_tensor(format!("input '{input}': expected a datatype such as FP32, found {prefix:?}"))
}

/// HTTP response: JSON, followed by binary data.
#[derive(Debug)]
pub struct HttpResponse {
    pub header: Vec<u8>,
    pub binary: Vec<Bytes>,
    /// Charge of the header.
    pub charge: Charge,
}

/// Serializes a response.
///
/// # Errors
/// If the datatype of a JSON output has no JSON representation, or the memory limit is exhausted.
pub fn write(response: &InferResponse, is_binary: bool) -> Result<HttpResponse> {
    let (mut binary, mut charge) = (Vec::new(), Charge::default());
    let mut json = Vec::with_capacity(256);
    json.push(b'{');
    if !response.id.is_empty() {
        write_field("id", &response.id, &mut json);
    }
    write_field("model_name", &response.model, &mut json);
    write_field("model_version", &response.version, &mut json);
    json.extend_from_slice(b"\"outputs\":[");
    for (i, output) in response.outputs.iter().enumerate() {
        json.extend_from_slice(if i > 0 { b",{" } else { b"{" });
        write_field("name", &output.name, &mut json);
        write_field("datatype", &output.datatype.name().unwrap_or_default(), &mut json);
        write_field("shape", &output.shape, &mut json);
        match &output.data {
            OutputData::Bytes(bytes) if output.binary.unwrap_or(is_binary) => {
                json.extend_from_slice(b"\"parameters\":{\"binary_data_size\":");
                write_number(&bytes.len(), &mut json);
                json.extend_from_slice(b"}}");
                binary.push(bytes.clone());
            }
            OutputData::Bytes(bytes) => {
                json.extend_from_slice(b"\"data\":");
                let max_size = max_json_width(output.datatype).saturating_mul(bytes.len());
                memory::grow(&mut charge, max_size)?;
                json.reserve_exact(max_size);
                write_json(&output.name, output.datatype, bytes, &mut json)?;
                json.push(b'}');
            }
            OutputData::Shared(span) => {
                json.extend_from_slice(b"\"parameters\":{");
                write_field("shared_memory_region", &span.region, &mut json);
                write_field("shared_memory_offset", &span.offset, &mut json);
                json.extend_from_slice(b"\"shared_memory_byte_size\":");
                write_number(&span.byte_size, &mut json);
                json.extend_from_slice(b"}}");
            }
        }
    }
    json.extend_from_slice(b"]}");
    json.shrink_to_fit();
    memory::resize(&mut charge, json.len())?;
    Ok(HttpResponse { header: json, binary, charge })
}

fn write_field(name: &str, value: &impl serde::Serialize, out: &mut Vec<u8>) {
    write_number(&name, out);
    out.push(b':');
    write_number(value, out);
    out.push(b',');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_request(text: &str) -> Result<HttpRequest> {
        parse(&Bytes::copy_from_slice(text.as_bytes()), text.len(), &mut Charge::default())
    }

    fn input(shape: &str, data: &str) -> String {
        format!(r#"{{"inputs":[{{"name":"x","datatype":"FP32","shape":{shape},"data":{data}}}]}}"#)
    }

    fn floats(request: &HttpRequest) -> Vec<f32> {
        let InputData::Bytes(bytes) = &request.request.inputs[0].data else {
            panic!("expected bytes, found shared memory")
        };
        bytes.chunks_exact(4).map(|c| f32::from_le_bytes(c.try_into().unwrap())).collect()
    }

    #[test]
    fn data_is_flat_or_nested_to_the_shape() {
        for data in ["[1,2,3,4]", "[[1,2],[3,4]]", "[1.0,2e0,3,4.0]"] {
            assert_eq!(floats(&parse_request(&input("[2,2]", data)).unwrap()), [1.0, 2.0, 3.0, 4.0], "{data}");
        }
        for shape in ["[0]", "[0,3]", "[2,0]"] {
            assert!(floats(&parse_request(&input(shape, "[]")).unwrap()).is_empty(), "{shape}");
        }
        assert!(floats(&parse_request(&input("[2,0]", "[[],[]]")).unwrap()).is_empty());
        for data in ["[[1,2,3,4]]", "[[1,2],[3]]", "[1,2,3]", "[[1],[2],[3],[4]]", "[1,[2],3,4]", "4", "{}"] {
            let error = parse_request(&input("[2,2]", data)).unwrap_err();
            assert!(error.message.contains("expected"), "{data}: {error}");
        }
    }

    #[test]
    fn tokens_of_python_are_read() {
        let request = parse_request(&input("[4]", "[NaN,Infinity,-Infinity,null]")).unwrap();
        let values = floats(&request);
        assert!(
            values[0].is_nan() && values[1] == f32::INFINITY && values[2] == f32::NEG_INFINITY && values[3].is_nan()
        );
        let request = parse_request(r#"{"id":"NaN \" -Infinity","inputs":[]}"#).unwrap();
        assert_eq!(request.request.id, "NaN \" -Infinity");
    }

    #[test]
    fn wrong_requests_are_errors() {
        let deep_json = format!("{}{}", "[".repeat(1_000_000), "]".repeat(1_000_000));
        let cases = [
            (input("[1]", &deep_json), "at most 100"),
            (input("[1]", &format!("{}1{}", "[".repeat(101), "]".repeat(101))), "at most 100"),
            (input("[9223372036854775807,4]", "[1]"), "2^63 or more"),
            (input("[99999999999999999999]", "[1]"), "invalid"),
            (input("[1]", "[1e999]"), "out of range"),
            (input("[1]", "[\"x\"]"), "found \"x\""),
            ("{}".to_owned(), "missing field `inputs`"),
            ("[1".to_owned(), "expected an inference request"),
            (r#"{"inputs":[{"name":"x","datatype":"FP32","shape":[1]}]}"#.to_owned(), "found none"),
            (r#"{"inputs":[{"name":"x","datatype":"FLOAT","shape":[1],"data":[1]}]}"#.to_owned(), "\"FLOAT\""),
            (r#"{"inputs":[],"parameters":{"a":[1]}}"#.to_owned(), "parse"),
            (
                r#"{"inputs":[{"name":"x","datatype":"FP32","shape":[1],"data":[1],"parameters":{"binary_data_size":4}}]}"#
                    .to_owned(),
                "found 'data' and 'binary_data_size'",
            ),
            (
                r#"{"inputs":[{"name":"x","datatype":"FP32","shape":[1],"parameters":{"binary_data_size":4}}]}"#.to_owned(),
                "expected 4 bytes of binary data after the JSON, found 0",
            ),
            (
                r#"{"inputs":[{"name":"x","datatype":"FP32","shape":[1],"parameters":{"binary_data_size":-4}}]}"#.to_owned(),
                "expected an integer >= 0, found -4",
            ),
        ];
        for (text, expected) in cases {
            let error = parse_request(&text).unwrap_err();
            let shortened_text: String = text.chars().take(100).collect();
            assert!(error.message.contains(expected), "{shortened_text}: {error}");
        }
    }

    #[test]
    fn binary_data_follows_in_order_without_gaps() {
        let json = r#"{"inputs":[{"name":"a","datatype":"INT8","shape":[2],"parameters":{"binary_data_size":2}},
            {"name":"b","datatype":"INT8","shape":[1],"data":[5]},
            {"name":"c","datatype":"INT8","shape":[0],"parameters":{"binary_data_size":0}},
            {"name":"d","datatype":"INT8","shape":[3],"parameters":{"binary_data_size":3}}]}"#;
        let mut body = json.as_bytes().to_vec();
        body.extend_from_slice(&[1, 2, 6, 7, 8]);
        let request = parse(&body.clone().into(), json.len(), &mut Charge::default()).unwrap().request;
        let data = request.inputs.iter().map(|input| match &input.data {
            InputData::Bytes(bytes) => bytes.to_vec(),
            InputData::Shared(_) => panic!("expected bytes, found shared memory"),
        });
        assert_eq!(data.collect::<Vec<_>>(), [vec![1, 2], vec![5], vec![], vec![6, 7, 8]]);
        body.push(9);
        let error = parse(&body.into(), json.len(), &mut Charge::default()).unwrap_err();
        assert!(error.message.contains("expected 5 bytes of binary data for all inputs, found 6"), "{error}");
    }
}
