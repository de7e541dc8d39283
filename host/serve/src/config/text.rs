//! Parser for the protocol buffers text format, without a schema: fields without effect, whose messages the protocol's
//! file leaves empty, may have any contents. Libraries parse by a schema, and refuse such contents.

use super::tree::{Fields, Node};
use crate::error::{Result, ServeError};

/// Maximum nesting depth of messages; a model configuration has at most five levels.
const MAX_DEPTH: usize = 32;

/// Parses a message.
///
/// # Errors
/// If the text is malformed. The error message has the line number.
pub fn parse(text: &str) -> Result<Fields> {
    let mut parser = Parser { rest: text, text };
    parser.fields(None, 0)
}

struct Parser<'a> {
    rest: &'a str,
    text: &'a str,
}

impl Parser<'_> {
    fn error(&self, expected: &str) -> ServeError {
        let read_length = self.text.len() - self.rest.len();
        let line = self.text.as_bytes()[..read_length].iter().filter(|byte| **byte == b'\n').count() + 1;
        let found = match self.rest.chars().next() {
            Some(c) => format!("{:?}", c),
            None => "the end of the text".to_owned(),
        };
        ServeError::repository(format!("line {line}: expected {expected}, found {found}"))
    }

    /// Skips white space and comments, and returns the next byte.
    fn peek(&mut self) -> Option<u8> {
        loop {
            self.rest = self.rest.trim_start();
            match self.rest.strip_prefix('#') {
                Some(comment) => self.rest = comment.find('\n').map_or("", |end| &comment[end..]),
                None => return self.rest.bytes().next(),
            }
        }
    }

    fn take(&mut self, expected: u8) -> bool {
        let is_match = self.peek() == Some(expected);
        if is_match {
            self.rest = &self.rest[1..];
        }
        is_match
    }

    fn fields(&mut self, end: Option<u8>, depth: usize) -> Result<Fields> {
        if depth > MAX_DEPTH {
            return Err(self.error(&format!("at most {MAX_DEPTH} nested messages")));
        }
        let mut fields = Fields::new();
        loop {
            match (self.peek(), end) {
                (None, None) => return Ok(fields),
                (Some(byte), Some(end)) if byte == end => {
                    self.rest = &self.rest[1..];
                    return Ok(fields);
                }
                _ => {}
            }
            let name = self.word().ok_or_else(|| self.error("a field name"))?;
            let has_colon = self.take(b':');
            let value = match self.peek() {
                Some(b'{' | b'<' | b'[') => self.value(depth)?,
                _ if has_colon => self.value(depth)?,
                _ => return Err(self.error(&format!("':' after \"{name}\""))),
            };
            fields.push((name, value));
            if !self.take(b',') {
                self.take(b';');
            }
        }
    }

    fn value(&mut self, depth: usize) -> Result<Node> {
        match self.peek() {
            Some(opening @ (b'{' | b'<')) => {
                self.rest = &self.rest[1..];
                let closing = if opening == b'{' { b'}' } else { b'>' };
                Ok(Node::Message(self.fields(Some(closing), depth + 1)?))
            }
            Some(b'[') => {
                self.rest = &self.rest[1..];
                let mut values = Vec::new();
                if self.take(b']') {
                    return Ok(Node::List(values));
                }
                loop {
                    if self.peek() == Some(b'[') {
                        return Err(self.error("a value"));
                    }
                    values.push(self.value(depth)?);
                    if self.take(b']') {
                        return Ok(Node::List(values));
                    }
                    if !self.take(b',') {
                        return Err(self.error("',' or ']'"));
                    }
                }
            }
            Some(b'"' | b'\'') => {
                let mut text = String::new();
                while let Some(quote @ (b'"' | b'\'')) = self.peek() {
                    self.read_quoted(char::from(quote), &mut text)?;
                }
                Ok(Node::Text(text))
            }
            _ => self.word().map(Node::Word).ok_or_else(|| self.error("a value")),
        }
    }

    fn word(&mut self) -> Option<String> {
        self.peek();
        let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '+' | '.');
        let end = self.rest.find(|c| !is_part(c)).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        (!word.is_empty()).then(|| word.to_owned())
    }

    fn read_quoted(&mut self, quote: char, text: &mut String) -> Result<()> {
        let mut chars = self.rest.char_indices().skip(1);
        while let Some((position, c)) = chars.next() {
            match c {
                c if c == quote => {
                    self.rest = &self.rest[position + 1..];
                    return Ok(());
                }
                '\n' => break,
                '\\' => match chars.next().map(|(_, c)| c) {
                    Some('n') => text.push('\n'),
                    Some('t') => text.push('\t'),
                    Some('r') => text.push('\r'),
                    Some(c @ ('\\' | '\'' | '"' | '?')) => text.push(c),
                    _ => return Err(self.error("a string with escapes \\n, \\t, \\r, \\\\, \\' or \\\"")),
                },
                c => text.push(c),
            }
        }
        Err(self.error("a closing quote on the same line"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_the_forms_of_the_format() {
        let text = "name: \"m\" # comment\nmax_batch_size: 8\ninput [ { name: 'x' dims: [ -1, 4 ] } ]\n\
                    input < name: \"y\" \"z\"; dims: 3 >, empty {} none: []";
        let word_node = |w: &str| Node::Word(w.to_owned());
        let text_node = |t: &str| Node::Text(t.to_owned());
        let field = |n: &str, v: Node| (n.to_owned(), v);
        let first_field = Node::Message(vec![
            field("name", text_node("x")),
            field("dims", Node::List(vec![word_node("-1"), word_node("4")])),
        ]);
        let second_field = Node::Message(vec![field("name", text_node("yz")), field("dims", word_node("3"))]);
        let expected = vec![
            field("name", text_node("m")),
            field("max_batch_size", word_node("8")),
            field("input", Node::List(vec![first_field])),
            field("input", second_field),
            field("empty", Node::Message(Fields::new())),
            field("none", Node::List(Vec::new())),
        ];
        assert_eq!(parse(text).unwrap(), expected);
    }

    #[test]
    fn errors_have_the_line() {
        let cases = [
            ("a", "line 1: expected ':' after \"a\", found the end"),
            ("a: 1\nb { c: 2", "line 2: expected a field name, found the end"),
            ("\n\na: \"x\n", "line 3: expected a closing quote on the same line"),
            ("a: [1 2]", "line 1: expected ',' or ']', found '2'"),
            ("a: \"\\q\"", "expected a string with escapes"),
            ("ü: 1", "expected a field name, found 'ü'"),
            ("a: [[1]]", "expected a value"),
        ];
        for (text, expected) in cases {
            let message = parse(text).unwrap_err().message;
            assert!(message.contains(expected), "{text:?}: {message}");
        }
        assert!(parse(&"a {".repeat(100_000)).unwrap_err().message.contains("at most 32"));
    }
}
