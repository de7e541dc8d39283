//! Lexer of the pattern notation.

use byoc_ir::diag::Span;

/// Token of the notation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Token<'a> {
    /// Name or keyword: `nn.conv2d`, `let`.
    Name(&'a str),
    /// Number: `12`, `1.5f`, `-3`, `7i64`; validated by the parser.
    Number(&'a str),
    /// Text of a string, without the quotes.
    Str(&'a str),
    /// One of `( ) { } [ ] , ; : = | ? * . %`.
    Mark(char),
    /// `..`, which matches arbitrary arguments or fields.
    Any,
    /// Character that begins no token.
    Bad(char),
    /// End of the entry.
    End,
}

/// Token with its span.
#[derive(Clone, Copy, Debug)]
pub(super) struct SpannedToken<'a> {
    pub token: Token<'a>,
    pub span: Span,
}

/// Splits `text[from..to]` into tokens; comments extend from `#` to the end of the line.
pub(super) fn tokens(text: &str, start_offset: usize, end_offset: usize) -> Vec<SpannedToken<'_>> {
    let bytes = text.as_bytes();
    let mut tokens = Vec::new();
    let mut offset = start_offset;
    let is_name_start = |b: u8| b.is_ascii_alphabetic() || b == b'_' || b == b'/';
    while offset < end_offset {
        let start = offset;
        let byte = bytes[offset];
        let token = match byte {
            b' ' | b'\t' | b'\r' | b'\n' => {
                offset += 1;
                continue;
            }
            b'#' => {
                while offset < end_offset && bytes[offset] != b'\n' {
                    offset += 1;
                }
                continue;
            }
            b if is_name_start(b) => {
                loop {
                    while offset < end_offset && (is_name_start(bytes[offset]) || bytes[offset].is_ascii_digit()) {
                        offset += 1;
                    }
                    // A dot continues the name only if another part follows: `f.0` is a projection. The same rule
                    // applies to a hyphen, which may occur in the name of a target.
                    if offset + 1 < end_offset
                        && matches!(bytes[offset], b'.' | b'-')
                        && is_name_start(bytes[offset + 1])
                    {
                        offset += 1;
                    } else {
                        break;
                    }
                }
                Token::Name(&text[start..offset])
            }
            b if b.is_ascii_digit() || (b == b'-' && begins_number(&bytes[offset + 1..end_offset])) => {
                // `t.0.1` is two projections, not a number with a fraction.
                let follows_dot = tokens.last().is_some_and(|t: &SpannedToken<'_>| t.token == Token::Mark('.'));
                offset += 1;
                while offset < end_offset {
                    let is_fraction = bytes[offset] == b'.'
                        && !follows_dot
                        && offset + 1 < end_offset
                        && bytes[offset + 1].is_ascii_digit()
                        && !text[start..offset].contains('.');
                    let is_sign = matches!(bytes[offset], b'+' | b'-') && matches!(bytes[offset - 1], b'e' | b'E');
                    if bytes[offset].is_ascii_alphanumeric() || is_fraction || is_sign {
                        offset += 1;
                    } else {
                        break;
                    }
                }
                Token::Number(&text[start..offset])
            }
            b'"' => {
                offset += 1;
                while offset < end_offset && bytes[offset] != b'"' && bytes[offset] != b'\n' {
                    offset += 1;
                }
                if offset < end_offset && bytes[offset] == b'"' {
                    offset += 1;
                    Token::Str(&text[start + 1..offset - 1])
                } else {
                    Token::Bad('"')
                }
            }
            b'.' if offset + 1 < end_offset && bytes[offset + 1] == b'.' => {
                offset += 2;
                Token::Any
            }
            b'(' | b')' | b'{' | b'}' | b'[' | b']' | b',' | b';' | b':' | b'=' | b'|' | b'?' | b'*' | b'.' | b'%' => {
                offset += 1;
                Token::Mark(char::from(byte))
            }
            _ => {
                let character = text[offset..].chars().next().unwrap_or('\u{fffd}');
                offset += character.len_utf8();
                Token::Bad(character)
            }
        };
        tokens.push(SpannedToken { token, span: Span { start: start as u32, end: offset as u32 } });
    }
    let end = end_offset as u32;
    tokens.push(SpannedToken { token: Token::End, span: Span { start: end, end } });
    tokens
}

/// Returns true if a minus sign before `bytes` belongs to a number: `-3`, `-inff`.
fn begins_number(bytes: &[u8]) -> bool {
    bytes.first().is_some_and(u8::is_ascii_digit) || bytes.starts_with(b"inf") || bytes.starts_with(b"nan")
}

/// Returns the byte ranges of the entries of a table: an entry begins at an unindented line, and includes the indented
/// lines that follow.
pub(super) fn entries(text: &str) -> Vec<(usize, usize)> {
    let mut entries: Vec<(usize, usize)> = Vec::new();
    let mut offset = 0;
    for line in text.split_inclusive('\n') {
        let content = line.trim_end();
        let end = offset + content.len();
        let is_beginning = !line.starts_with([' ', '\t', '#']) && !content.is_empty();
        if is_beginning {
            entries.push((offset, end));
        } else if let Some(last) = entries.last_mut()
            && !content.trim_start().is_empty()
            && !line.starts_with('#')
        {
            last.1 = end;
        } else if entries.is_empty() && !content.trim_start().is_empty() && !content.trim_start().starts_with('#') {
            // An indented line with no entry above becomes an entry, so that its errors are reported.
            entries.push((offset, end));
        }
        offset += line.len();
    }
    entries
}
