//! Base64 (RFC 4648, section 4), with padding.

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Value of each byte; 64 for a byte outside the alphabet.
const VALUES: [u8; 256] = {
    let mut values = [64; 256];
    let mut i = 0;
    while i < 64 {
        values[ALPHABET[i] as usize] = i as u8;
        i += 1;
    }
    values
};

/// Decodes base64 text, ignoring line breaks and spaces.
///
/// # Errors
/// If the text has an invalid digit, misplaced padding or an incomplete group.
pub(super) fn decode(text: &str) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    let (mut group, mut count, mut padding) = (0u32, 0, 0);
    for &byte in text.as_bytes().iter().filter(|b| !b.is_ascii_whitespace()) {
        let value = match byte {
            b'=' if padding < 2 => {
                padding += 1;
                0
            }
            _ if padding > 0 => {
                return Err(format!("unexpected character {:?} after the base64 padding", byte as char));
            }
            _ => VALUES[byte as usize],
        };
        if value == 64 {
            return Err(format!("expected a base64 digit, found {:?}", byte as char));
        }
        group = group << 6 | u32::from(value);
        count += 1;
        if count == 4 {
            bytes.extend_from_slice(&group.to_be_bytes()[1..]);
            (group, count) = (0, 0);
        }
    }
    if count != 0 {
        return Err(format!("expected base64 digits in groups of four, found an incomplete group of {count}"));
    }
    bytes.truncate(bytes.len() - padding);
    Ok(bytes)
}

/// Encodes bytes as base64 text.
pub(super) fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let group = chunk.iter().fold(0u32, |group, &byte| group << 8 | u32::from(byte)) << (8 * (3 - chunk.len()));
        for at in 0..4 {
            let digit = ALPHABET[(group >> (18 - 6 * at)) as usize & 63];
            text.push(if at <= chunk.len() { digit as char } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc_4648_test_vectors() {
        let vectors =
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg=="), ("fooba", "Zm9vYmE=")];
        for (decoded, text) in vectors {
            assert_eq!(encode(decoded.as_bytes()), text);
            assert_eq!(decode(text).as_deref(), Ok(decoded.as_bytes()));
        }
        let bytes: Vec<u8> = (0..=255).collect();
        assert_eq!(decode(&encode(&bytes)), Ok(bytes));
        assert_eq!(decode("Zm9v\nYg=="), Ok(b"foob".to_vec()));
        for invalid in ["Zg", "Zg=", "Z===", "Zg==Zg==", "Zm9\u{e9}"] {
            assert!(decode(invalid).is_err(), "{invalid}");
        }
    }
}
