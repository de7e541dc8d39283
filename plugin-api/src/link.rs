//! Link step: a single request to a code generator, with all regions that it compiled for a model. The code generator
//! may move data common to the regions into shared data of the model, and change the blobs.
//!
//! The request and the response have the same format: the size of a JSON text (8 bytes, little-endian), the text, and
//! the data. A blob is given by its offset and size in the data.
//!
//! ```text
//! request  {"options": {...}, "regions": [{"symbol": "r0", "loader": "mine", "metadata": {...}, "blob": [0, 64]}]}
//! response {"shared": [0, 4096], "regions": [{"symbol": "r0", "blob": [4096, 16]}], "notes": ["..."]}
//! ```

use crate::error::{Error, Result};
use crate::signature::REGION;
use crate::{Constant, LoadRequest};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// Key of a code generator's `query` for the link step of a model. If the query returns `None`, the blobs stay
/// unchanged.
pub const LINK_KEY: &str = "byoc.link.1";

/// Field of `options.region` in a load request: the index of the constant that holds the shared data.
const SHARED: &str = "shared";

/// Request of the link step: all regions of a model that one backend compiled.
#[derive(Clone, Debug, PartialEq)]
pub struct LinkRequest<'a> {
    /// JSON object, as for `compile`.
    pub options: Value,
    /// Regions, in program order.
    pub regions: Vec<LinkRegion<'a>>,
}

/// Compiled region of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct LinkRegion<'a> {
    /// Symbol of the region.
    pub symbol: String,
    /// Key of the region's loader.
    pub loader: String,
    /// Metadata that `compile` recorded.
    pub metadata: Map<String, Value>,
    /// Blob that `compile` returned.
    pub blob: &'a [u8],
}

/// Response of the link step. Regions without an entry in `blobs` keep their blobs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Linked {
    /// Data shared by all regions of the backend. The artifact holds it once, and `load` receives it as an additional
    /// constant.
    pub shared: Option<Vec<u8>>,
    /// New blobs by symbol.
    pub blobs: BTreeMap<String, Vec<u8>>,
    /// Remarks for the user, one line each.
    pub notes: Vec<String>,
}

impl<'a> LinkRequest<'a> {
    /// Parses the data of a query with the key [`LINK_KEY`].
    ///
    /// # Errors
    /// If the data is not a well-formed link request.
    pub fn parse(data: &'a [u8]) -> Result<LinkRequest<'a>> {
        let (mut head, data) = split(data)?;
        let mut regions = Vec::new();
        for region in array(&head, "regions")? {
            regions.push(LinkRegion {
                symbol: text(region, "symbol")?.to_owned(),
                loader: text(region, "loader")?.to_owned(),
                metadata: region["metadata"].as_object().cloned().unwrap_or_default(),
                blob: slice(data, &region["blob"])?,
            });
        }
        Ok(LinkRequest { options: head["options"].take(), regions })
    }

    /// Serializes the request as query data.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut data = Data::default();
        let regions: Vec<Value> = self
            .regions
            .iter()
            .map(|region| {
                let LinkRegion { symbol, loader, metadata, blob } = region;
                json!({"symbol": symbol, "loader": loader, "metadata": metadata, "blob": data.add(blob)})
            })
            .collect();
        data.finish(&json!({"options": self.options, "regions": regions}))
    }
}

impl Linked {
    /// Parses a code generator's response.
    ///
    /// # Errors
    /// If the bytes are not a well-formed link response, or name a region twice.
    pub fn parse(answer: &[u8]) -> Result<Linked> {
        let (head, data) = split(answer)?;
        let mut response = Linked::default();
        if !head[SHARED].is_null() {
            response.shared = Some(slice(data, &head[SHARED])?.to_vec());
        }
        for region in array(&head, "regions")? {
            let symbol = text(region, "symbol")?;
            if response.blobs.insert(symbol.to_owned(), slice(data, &region["blob"])?.to_vec()).is_some() {
                return Err(invalid(format!("expected each region once, found {symbol} twice")));
            }
        }
        for note in array(&head, "notes")? {
            response.notes.push(
                note.as_str().ok_or_else(|| invalid(format!("notes: expected strings, found {note}")))?.to_owned(),
            );
        }
        Ok(response)
    }

    /// Serializes the response.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut data = Data::default();
        let shared_range = self.shared.as_ref().map(|bytes| data.add(bytes));
        let blob = |(symbol, blob): (&String, &Vec<u8>)| json!({"symbol": symbol, "blob": data.add(blob)});
        let regions: Vec<Value> = self.blobs.iter().map(blob).collect();
        data.finish(&json!({"shared": shared_range, "regions": regions, "notes": self.notes}))
    }
}

impl LoadRequest<'_> {
    /// Returns the shared data from the link step, a byte constant that follows the constants passed to `compile`. Its
    /// digest identifies the shared data, and can serve as the key of a resource that all regions of a model share.
    pub fn shared(&self) -> Option<&Constant> {
        let index = self.options.get(REGION)?.get(SHARED)?.as_u64()?;
        self.constants.get(usize::try_from(index).ok()?)
    }
}

/// Data section of a message.
#[derive(Default)]
struct Data(Vec<u8>);

impl Data {
    fn add(&mut self, bytes: &[u8]) -> [usize; 2] {
        let offset = self.0.len();
        self.0.extend_from_slice(bytes);
        [offset, bytes.len()]
    }

    fn finish(self, head: &Value) -> Vec<u8> {
        let text = head.to_string();
        let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
        bytes.extend(text.as_bytes());
        bytes.extend(self.0);
        bytes
    }
}

fn invalid(problem: impl AsRef<str>) -> Error {
    Error::new(format!("{LINK_KEY}: {}", problem.as_ref()))
}

/// Splits a message into its JSON text and its data.
fn split(bytes: &[u8]) -> Result<(Value, &[u8])> {
    let sections = bytes.split_first_chunk::<8>().and_then(|(size, rest)| {
        let size = usize::try_from(u64::from_le_bytes(*size)).ok()?;
        rest.split_at_checked(size)
    });
    let (text, data) =
        sections.ok_or_else(|| invalid(format!("expected a complete message, found {} bytes", bytes.len())))?;
    let head: Value = serde_json::from_slice(text).map_err(|error| invalid(error.to_string()))?;
    match head.is_object() {
        true => Ok((head, data)),
        false => Err(invalid(format!("expected a JSON object, found {head}"))),
    }
}

fn slice<'a>(data: &'a [u8], range: &Value) -> Result<&'a [u8]> {
    let integer = |index: usize| range.get(index)?.as_u64().and_then(|integer| usize::try_from(integer).ok());
    let bytes = integer(0).zip(integer(1)).and_then(|(offset, size)| data.get(offset..offset.checked_add(size)?));
    bytes.ok_or_else(|| {
        invalid(format!("expected an offset and a size within {} bytes of data, found {range}", data.len()))
    })
}

/// Returns the list at `key`, or an empty list if the key is missing.
fn array<'a>(object: &'a Value, key: &str) -> Result<&'a [Value]> {
    match &object[key] {
        Value::Null => Ok(&[]),
        Value::Array(items) => Ok(items),
        other => Err(invalid(format!("{key}: expected a list, found {other}"))),
    }
}

fn text<'a>(object: &'a Value, key: &str) -> Result<&'a str> {
    object[key].as_str().ok_or_else(|| invalid(format!("{key}: expected a string, found {}", object[key])))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_round_trip() {
        let metadata = json!({"packed": [1]}).as_object().cloned().unwrap();
        let region = |symbol: &str, blob| LinkRegion {
            symbol: symbol.to_owned(),
            loader: "mine".into(),
            metadata: metadata.clone(),
            blob,
        };
        let regions = vec![region("a", b"first"), region("b", b""), region("c", b"third")];
        let request = LinkRequest { options: json!({"device": "1"}), regions };
        assert_eq!(LinkRequest::parse(&request.to_bytes()).unwrap(), request);
        let linked_blobs = Linked {
            shared: Some(vec![1, 2, 3]),
            blobs: [("a".to_owned(), vec![9]), ("c".to_owned(), vec![])].into(),
            notes: vec!["3 bytes are shared".into()],
        };
        assert_eq!(Linked::parse(&linked_blobs.to_bytes()).unwrap(), linked_blobs);
        assert_eq!(Linked::parse(&Linked::default().to_bytes()).unwrap(), Linked::default());
    }

    #[test]
    fn messages_that_do_not_hold_what_they_name_are_rejected() {
        let message =
            |text: &str, data: &[u8]| [&(text.len() as u64).to_le_bytes()[..], text.as_bytes(), data].concat();
        for (text, data) in [
            ("[]", &b""[..]),
            ("{", b""),
            (r#"{"shared": [0, 4]}"#, b"abc"),
            (r#"{"shared": [18446744073709551615, 1]}"#, b"abc"),
            (r#"{"shared": "abc"}"#, b"abc"),
            (r#"{"regions": [{"symbol": "a"}]}"#, b""),
            (r#"{"regions": [{"symbol": 1, "blob": [0, 0]}]}"#, b""),
            (r#"{"regions": [{"symbol": "a", "blob": [0, 0]}, {"symbol": "a", "blob": [0, 0]}]}"#, b""),
            (r#"{"regions": {}}"#, b""),
            (r#"{"notes": [1]}"#, b""),
        ] {
            let error = Linked::parse(&message(text, data)).expect_err(text);
            assert!(error.message.starts_with(LINK_KEY), "{}", error.message);
        }
        Linked::parse(&[0; 4]).unwrap_err();
        Linked::parse(&u64::MAX.to_le_bytes()).unwrap_err();
        LinkRequest::parse(&message(r#"{"regions": [{"symbol": "a", "blob": [0, 0]}]}"#, b"")).unwrap_err();
    }
}
