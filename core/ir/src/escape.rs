//! Escaping of untrusted text for the terminal. Names come from models, and a terminal interprets control sequences in
//! them, so control characters are escaped.

use std::borrow::Cow;
use std::fmt::Write;

/// Escapes single-line text, including line breaks and tabs.
pub fn line(text: &str) -> Cow<'_, str> {
    escape_text(text, |_| false)
}

/// Escapes multi-line text, keeping line breaks and tabs.
pub fn lines(text: &str) -> Cow<'_, str> {
    escape_text(text, |c| matches!(c, '\n' | '\t'))
}

/// Escapes text that passed through neither [`line`] nor [`lines`], such as JSON. Uses JSON escapes, so a JSON value
/// keeps its meaning.
pub fn escape_json(text: &str) -> Cow<'_, str> {
    let is_printable = |c: char| is_plain(c) || matches!(c, '\n' | '\t');
    if text.chars().all(is_printable) {
        return Cow::Borrowed(text);
    }
    let escape = |c: char| if is_printable(c) { c.to_string() } else { format!("\\u{:04x}", u32::from(c)) };
    Cow::Owned(text.chars().map(escape).collect())
}

fn escape_text(text: &str, as_it_is: impl Fn(char) -> bool) -> Cow<'_, str> {
    let is_printable = |c: char| is_plain(c) || as_it_is(c);
    if text.chars().all(is_printable) {
        return Cow::Borrowed(text);
    }
    let mut output = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c {
            c if is_printable(c) => output.push(c),
            '\n' => output.push_str("\\n"),
            '\r' => output.push_str("\\r"),
            '\t' => output.push_str("\\t"),
            c => {
                let _ = write!(output, "\\u{{{:x}}}", u32::from(c));
            }
        }
    }
    Cow::Owned(output)
}

/// Tests whether a character is safe to print: not a control character, a line or paragraph separator, or a
/// bidirectional control.
fn is_plain(c: char) -> bool {
    !c.is_control() && !matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_control_characters() {
        assert_eq!(line("größe/conv_1:0 \\ 層"), "größe/conv_1:0 \\ 層");
        assert_eq!(line("x\u{1b}[2J\u{7}\u{9b}2J\u{7f}\0"), "x\\u{1b}[2J\\u{7}\\u{9b}2J\\u{7f}\\u{0}");
        assert_eq!(line("a\nb\tc\rd\u{202e}e"), "a\\nb\\tc\\rd\\u{202e}e");
        assert_eq!(lines("a\nb\tc\rd\u{1b}"), "a\nb\tc\\rd\\u{1b}");
    }

    #[test]
    fn escaping_preserves_json_values() {
        let value = serde_json::json!({ "name": "x\u{7f}\u{9b}2J\u{1b}\u{202e}\n", "größe": 1 });
        let text = escape_json(&value.to_string()).into_owned();
        assert!(text.contains("x\\u007f\\u009b2J\\u001b\\u202e\\n"), "{text}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), value);
    }
}
