//! Memory footprint of encoded messages: the memory that a protocol buffer or a JSON text takes once it is decoded.
//!
//! Decoding multiplies: two bytes of a protocol buffer become a message of hundreds of bytes, two bytes of JSON a value of
//! dozens. A reader therefore computes the footprint from the encoded bytes, and charges it to the memory budget
//! ([`byoc_ir::tensor::memory`]) before it decodes them. The footprint is an upper bound of what the decoder keeps, with
//! the capacity that growing vectors reserve.
//!
//! A type of message describes itself with [`layout!`](crate::layout) from the same tokens from which `prost` derives
//! its decoder, so that a field can't be forgotten.

use byoc_ir::cancel;
use bytes::Bytes;
use std::collections::BTreeMap;

/// Maximum memory of a decoded message per byte. ONNX nodes with the shortest names and attributes take up to 50 bytes, and
/// the tensors of a request as much; what takes more consists of empty messages.
pub const MAX_EXPANSION: usize = 64;
/// Memory that a message may take regardless of its encoded size.
const MIN_LIMIT: usize = 64 << 20;

/// Returns the maximum memory in bytes of a message of `encoded` bytes.
pub fn limit(encoded: usize) -> usize {
    encoded.saturating_mul(MAX_EXPANSION).saturating_add(MIN_LIMIT)
}

/// Memory of a message: its own size, and what its fields allocate.
#[derive(Debug)]
pub struct Layout {
    /// Size of the message in bytes.
    pub size: usize,
    /// Fields that allocate otherwise than a text, by number. A delimited field that is not listed counts as a text,
    /// which takes its encoded size.
    pub fields: &'static [(u32, Field)],
}

/// Allocations of a field.
#[derive(Clone, Copy, Debug)]
pub enum Field {
    /// Part of the message.
    Inline,
    /// Text, copied.
    Text,
    /// Bytes that share the memory of the encoded message.
    Shared,
    /// Vector of numbers of this size, encoded as varints.
    Varints(usize),
    /// Vector of numbers of this size, encoded with this size.
    Numbers(usize),
    /// Vector of texts.
    Texts,
    /// Vector of bytes that share the memory of the encoded message.
    SharedTexts,
    /// Message inside its parent.
    Message(fn() -> &'static Layout),
    /// Message in an allocation of its own.
    Boxed(fn() -> &'static Layout),
    /// Vector of messages.
    Messages(fn() -> &'static Layout),
    /// Ordered map: size of an entry, and the fields of an entry.
    Map(usize, &'static [(u32, Field)]),
}

/// Message with a known layout.
pub trait Decodable: Sized {
    /// True for a message in an allocation of its own.
    const IS_BOXED: bool = false;

    /// Returns the layout of the message.
    fn layout() -> &'static Layout;
}

impl<M: Decodable> Decodable for Box<M> {
    const IS_BOXED: bool = true;

    fn layout() -> &'static Layout {
        M::layout()
    }
}

/// Type of a field of a message.
pub trait FieldType {
    /// Allocations of the field.
    const FIELD: Field;
}

macro_rules! field_types {
    ($($ty:ty => $field:expr,)*) => {
        $(impl FieldType for $ty {
            const FIELD: Field = $field;
        })*
    };
}

macro_rules! numbers {
    ($vector:ident: $($ty:ty),*) => {
        field_types! {
            $($ty => Field::Inline,
            Option<$ty> => Field::Inline,
            Vec<$ty> => Field::$vector(size_of::<$ty>()),)*
        }
    };
}

numbers!(Varints: bool, i32, i64, u32, u64);
numbers!(Numbers: f32, f64);

field_types! {
    String => Field::Text,
    Bytes => Field::Shared,
    Option<Bytes> => Field::Shared,
    Vec<String> => Field::Texts,
    Vec<Bytes> => Field::SharedTexts,
    BTreeMap<String, String> => Field::Map(2 * size_of::<String>(), &[]),
}

impl<M: Decodable> FieldType for Option<M> {
    const FIELD: Field = if M::IS_BOXED { Field::Boxed(M::layout) } else { Field::Message(M::layout) };
}

impl<M: Decodable> FieldType for Vec<M> {
    const FIELD: Field = Field::Messages(M::layout);
}

impl<M: Decodable> FieldType for BTreeMap<String, M> {
    const FIELD: Field = Field::Map(size_of::<String>() + size_of::<M>(), &[(2, Field::Message(M::layout))]);
}

impl<M: Decodable> FieldType for BTreeMap<u64, M> {
    const FIELD: Field = Field::Map(size_of::<u64>() + size_of::<M>(), &[(2, Field::Message(M::layout))]);
}

/// Implements [`Decodable`](crate::footprint::Decodable) for a message, from the attributes and types of its fields:
/// `layout!(Node { r#"prost(string, tag = "1")"# => String, })`. An attribute is given as text.
#[macro_export]
macro_rules! layout {
    ($name:ident { $($attributes:expr => $ty:ty,)* }) => {
        impl $crate::footprint::Decodable for $name {
            fn layout() -> &'static $crate::footprint::Layout {
                static LAYOUT: $crate::footprint::Layout = $crate::footprint::Layout {
                    size: size_of::<$name>(),
                    fields: &[$(($crate::footprint::tag($attributes), <$ty as $crate::footprint::FieldType>::FIELD),)*],
                };
                &LAYOUT
            }
        }
    };
}

/// Implements [`Decodable`](crate::footprint::Decodable) for a choice of several fields, each a number or a text. Its
/// fields are not listed: they belong to the message with the choice.
#[macro_export]
macro_rules! choice_layout {
    ($name:ident) => {
        $crate::layout!($name {});
    };
}

/// Returns the field number in the text of a `prost` attribute; 0 for a choice of several fields.
pub const fn tag(attributes: &str) -> u32 {
    const KEY: &[u8] = b"tag = \"";
    let text = attributes.as_bytes();
    let mut start = 0;
    while start + KEY.len() < text.len() {
        let mut matched = 0;
        while matched < KEY.len() && text[start + matched] == KEY[matched] {
            matched += 1;
        }
        if matched == KEY.len() {
            let (mut number, mut position) = (0, start + KEY.len());
            while position < text.len() && text[position].is_ascii_digit() {
                number = number * 10 + (text[position] - b'0') as u32;
                position += 1;
            }
            return number;
        }
        start += 1;
    }
    0
}

/// Maximum nesting depth of messages, as in `prost`.
const MAX_DEPTH: usize = 100;
/// Number of fields after which cancellation is polled.
const POLL_INTERVAL: usize = 1 << 16;

/// Message that is being scanned.
struct Frame {
    end: usize,
    fields: &'static [(u32, Field)],
    /// Number of values of each field so far.
    counts: Vec<usize>,
}

impl Frame {
    fn new(end: usize, fields: &'static [(u32, Field)]) -> Frame {
        Frame { end, fields, counts: Vec::new() }
    }

    /// Counts a value of the field at `index`, and returns the growth in bytes of a vector that holds the values.
    fn grow(&mut self, index: usize, size: usize) -> usize {
        if self.counts.len() <= index {
            self.counts.resize(index + 1, 0);
        }
        let count = self.counts[index];
        self.counts[index] += 1;
        match count {
            0 => 4 * size,
            4.. if count.is_power_of_two() => count * size,
            _ => 0,
        }
    }
}

/// Returns the memory in bytes that the protocol buffer `bytes` takes as a message of type `M`; `None` if it has more
/// than `max_fields` fields, or the work is cancelled.
///
/// Malformed bytes count up to the place at which a decoder rejects them.
pub fn protobuf<M: Decodable>(bytes: &[u8], max_fields: usize) -> Option<usize> {
    let layout = M::layout();
    let mut total = layout.size;
    let mut stack = vec![Frame::new(bytes.len(), layout.fields)];
    let (mut offset, mut field_count) = (0, 0);
    while let Some(frame) = stack.last_mut() {
        if offset >= frame.end {
            stack.pop();
            continue;
        }
        field_count += 1;
        if field_count > max_fields || (field_count % POLL_INTERVAL == 0 && cancel::is_requested()) {
            return None;
        }
        let Some(key) = varint(bytes, &mut offset) else { break };
        let length = match key & 7 {
            0 => {
                let Some(_) = varint(bytes, &mut offset) else { break };
                0
            }
            1 => 8,
            5 => 4,
            2 => {
                let Some(length) = varint(bytes, &mut offset) else { break };
                usize::try_from(length).unwrap_or(usize::MAX)
            }
            // The fields of a group count as fields of the message; a decoder skips them.
            _ => 0,
        };
        let Some(end) = offset.checked_add(length).filter(|end| *end <= frame.end) else { break };
        let is_delimited = key & 7 == 2;
        let number = (key >> 3) as u32;
        let index = frame.fields.iter().position(|(field, _)| *field == number);
        let field = index.map_or(Field::Text, |index| frame.fields[index].1);
        let index = index.unwrap_or(0);
        let mut inner = None;
        total = total.saturating_add(match field {
            Field::Varints(size) if is_delimited => {
                2 * size * bytes[offset..end].iter().filter(|byte| **byte < 0x80).count()
            }
            Field::Numbers(size) if is_delimited => 2 * length / size * size,
            Field::Varints(size) | Field::Numbers(size) => frame.grow(index, size),
            _ if !is_delimited => 0,
            Field::Inline | Field::Shared => 0,
            Field::Text => length,
            Field::Texts => frame.grow(index, size_of::<String>()) + length,
            Field::SharedTexts => frame.grow(index, size_of::<Bytes>()),
            Field::Message(layout) => {
                inner = Some(layout().fields);
                0
            }
            Field::Boxed(layout) => {
                inner = Some(layout().fields);
                layout().size
            }
            Field::Messages(layout) => {
                inner = Some(layout().fields);
                frame.grow(index, layout().size)
            }
            // A leaf of a B-tree has room for 11 entries, and is at least half full unless it is the only one.
            Field::Map(size, fields) => {
                inner = Some(fields);
                if frame.grow(index, 1) > 0 { 12 * size } else { 3 * size }
            }
        });
        match inner {
            Some(fields) if stack.len() < MAX_DEPTH => stack.push(Frame::new(end, fields)),
            _ => offset = end,
        }
    }
    Some(total)
}

/// Reads a varint at `offset`, and moves `offset` behind it.
fn varint(bytes: &[u8], offset: &mut usize) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = *bytes.get(*offset)?;
        *offset += 1;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

/// Memory in bytes of what the parts of a JSON text become, with the capacity that growing vectors reserve.
#[derive(Clone, Copy, Debug)]
pub struct JsonCosts {
    /// An object that is not empty, without its members.
    pub object: usize,
    /// A member of an object.
    pub member: usize,
    /// A list that is not empty, with its first elements.
    pub list: usize,
    /// A further element of a list, or member of an object.
    pub element: usize,
}

impl JsonCosts {
    /// Returns the costs of a tree of values, each of `size` bytes: lists begin with four elements, and an object is a
    /// table with its entries.
    pub const fn tree(size: usize) -> JsonCosts {
        JsonCosts { object: 4 * (size + 32), member: size + 80, list: 4 * size, element: 3 * size / 2 }
    }

    /// Returns an upper bound on the memory in bytes that a text takes once it is decoded. The text need not be valid.
    pub fn of(&self, text: &[u8]) -> usize {
        /// Memory of a string, without its text.
        const STRING: usize = 32;
        let mut bytes = text.len();
        let mut text = text.iter();
        while let Some(byte) = text.next() {
            let is_empty = |end: u8| text.as_slice().first() == Some(&end);
            let size = match byte {
                b'{' if !is_empty(b'}') => self.object,
                b':' => self.member,
                b'[' if !is_empty(b']') => self.list,
                b',' => self.element,
                b'"' => {
                    while let Some(byte) = text.next()
                        && *byte != b'"'
                    {
                        if *byte == b'\\' {
                            text.next();
                        }
                    }
                    STRING
                }
                _ => 0,
            };
            bytes = bytes.saturating_add(size);
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Message with a field of each kind, as `prost` would declare it.
    #[derive(Default)]
    struct Leaf {
        _name: String,
        _numbers: Vec<i64>,
        _floats: Vec<f32>,
        _names: Vec<String>,
        _data: Bytes,
    }
    crate::layout!(Leaf {
        r#"prost(string, tag = "1")"# => String,
        r#"prost(int64, repeated, tag = "2")"# => Vec<i64>,
        r#"prost(float, repeated, tag = "3")"# => Vec<f32>,
        r#"prost(string, repeated, tag = "4")"# => Vec<String>,
        r#"prost(bytes = "bytes", tag = "15")"# => Bytes,
    });
    struct Root {
        _leaves: Vec<Leaf>,
        _boxed: Option<Box<Root>>,
        _map: BTreeMap<String, Leaf>,
    }
    crate::layout!(Root {
        r#"doc = r" Leaves."prost(message, repeated, tag = "1")"# => Vec<Leaf>,
        r#"prost(message, optional, boxed, tag = "2")"# => Option<Box<Root>>,
        r#"prost(btree_map = "string, message", tag = "3")"# => BTreeMap<String, Leaf>,
    });

    fn delimited(field: u8, content: &[u8]) -> Vec<u8> {
        let mut message = vec![field << 3 | 2];
        let mut length = content.len();
        while length >= 0x80 {
            message.push(length as u8 | 0x80);
            length >>= 7;
        }
        message.push(length as u8);
        message.extend_from_slice(content);
        message
    }

    fn of<M: Decodable>(bytes: &[u8]) -> usize {
        protobuf::<M>(bytes, usize::MAX).unwrap() - M::layout().size
    }

    #[test]
    fn fields_take_what_they_become() {
        assert_eq!(of::<Root>(&[]), 0);
        assert_eq!(of::<Leaf>(&delimited(1, b"abc")), 3, "a text is copied");
        assert_eq!(of::<Leaf>(&delimited(15, &[7; 1000])), 0, "bytes are shared");
        assert_eq!(of::<Leaf>(&delimited(9, &[7; 1000])), 1000, "an unknown field counts as a text");
        assert_eq!(of::<Leaf>(&delimited(2, &[1, 2, 0x80, 1])), 2 * 3 * 8, "packed varints");
        assert_eq!(of::<Leaf>(&delimited(3, &[0; 12])), 2 * 3 * 4, "packed floats");
        assert_eq!(of::<Leaf>(&[2 << 3, 5].repeat(5)), 8 * 8, "numbers one by one, with the capacity of a vector");
        assert_eq!(of::<Leaf>(&delimited(4, b"").repeat(3)), 4 * size_of::<String>());
        let leaves = delimited(1, b"").repeat(1000);
        assert_eq!(of::<Root>(&leaves), 1024 * size_of::<Leaf>());
        assert_eq!(of::<Root>(&delimited(2, &delimited(2, b""))), 2 * size_of::<Root>(), "boxed messages");
        let entry = delimited(3, &[delimited(1, b"k"), delimited(2, &delimited(1, b"abc"))].concat());
        assert_eq!(of::<Root>(&entry), 12 * (size_of::<String>() + size_of::<Leaf>()) + 1 + 3, "an entry of a map");
    }

    #[test]
    fn the_number_of_fields_is_limited() {
        let leaves = delimited(1, b"").repeat(1000);
        assert_eq!(protobuf::<Root>(&leaves, 999), None);
        assert!(protobuf::<Root>(&leaves, 1000).is_some());
    }

    #[test]
    fn malformed_bytes_count_up_to_the_fault() {
        let leaf = delimited(1, b"");
        for fault in
            [&[0xff; 12][..], &[1 << 3 | 2], &[1 << 3 | 2, 5, 0], &[1 << 3 | 2, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]]
        {
            assert_eq!(of::<Root>(&[&leaf, fault].concat()), 4 * size_of::<Leaf>(), "{fault:?}");
        }
        // Deeper messages than a decoder accepts are not entered.
        let deep = (0..200).fold(Vec::new(), |inner, _| delimited(2, &inner));
        assert!(of::<Root>(&deep) <= MAX_DEPTH * size_of::<Root>() + deep.len());
    }

    #[test]
    fn json_takes_what_it_becomes() {
        let costs = JsonCosts { object: 10_000, member: 1000, list: 100, element: 1 };
        for (text, expected) in [
            ("12", 0),
            ("[]", 0),
            ("{}", 0),
            ("[[],2,3]", 102),
            (r#"{"a":1}"#, 11_000 + 32),
            (r#""[,\"{\\""#, 32),
            (r#"["unfinished,,,"#, 132),
            ("[[[[", 400),
        ] {
            assert_eq!(costs.of(text.as_bytes()), expected + text.len(), "{text}");
        }
    }
}
