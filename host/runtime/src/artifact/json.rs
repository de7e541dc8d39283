//! JSON inside of an artifact, whose memory is counted before it is decoded: a list of two bytes becomes a hundred.

use super::malformed;
use byoc_ir::diag::Diagnostic;
use byoc_ir::tensor::memory::Charge;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Sizes in bytes of what the parts of a JSON text become, with the spare room of lists that grow.
pub struct DecodedSize {
    /// An object that is not empty, without its members.
    object: usize,
    /// A member of an object.
    member: usize,
    /// A list that is not empty, with its first elements.
    list: usize,
    /// A further element of a list.
    element: usize,
}

/// Sizes of a [`Value`]: lists begin with four elements, and an object is a table with its entries.
pub const TREE: DecodedSize = DecodedSize {
    object: 4 * (size_of::<Value>() + 32),
    member: size_of::<Value>() + 80,
    list: 4 * size_of::<Value>(),
    element: 3 * size_of::<Value>() / 2,
};

/// Sizes of a [`Program`](crate::exec::Program), whose largest parts are instructions and registers.
pub const PROGRAM: DecodedSize = DecodedSize { object: 256, member: 8, list: 64, element: 96 };

/// Size of a string in bytes, without its text.
const STRING_BYTES: usize = 32;

impl DecodedSize {
    /// Returns an upper bound on the size in bytes of a decoded text. The text need not be valid.
    fn of(&self, text: &[u8]) -> usize {
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
                    STRING_BYTES
                }
                _ => 0,
            };
            bytes = bytes.saturating_add(size);
        }
        bytes
    }
}

/// Decodes an entry; `copies` is the number of times that it will be in memory. The charge is that of the memory.
///
/// # Errors
/// If the memory limit of the process would be exceeded, or the text is invalid.
pub fn decode<T: DeserializeOwned>(
    name: &str,
    text: &[u8],
    size: &DecodedSize,
    copies: usize,
) -> Result<(T, Charge), Diagnostic> {
    let charge = Charge::new(size.of(text).saturating_mul(copies));
    let charge = charge.map_err(|error| {
        Diagnostic::from(error).note(format!("required by entry {name} of {} bytes once it is decoded", text.len()))
    })?;
    let value = serde_json::from_slice(text).map_err(|e| malformed(format!("{name}: {e}")))?;
    Ok((value, charge))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_what_text_becomes() {
        let count = |text: &str| TREE.of(text.as_bytes()) - text.len();
        assert_eq!(count("12"), 0);
        assert_eq!(count("[]") + count("{}"), 0);
        assert_eq!(count("[[],2,3]"), TREE.list + 2 * TREE.element);
        assert_eq!(count(r#"{"a":1}"#), TREE.object + TREE.member + STRING_BYTES);
        assert_eq!(count(r#""[,\"{\\""#), STRING_BYTES, "expected the text of a string to count once");
        assert_eq!(count(r#"["unfinished,,,"#), TREE.list + STRING_BYTES);
    }
}
