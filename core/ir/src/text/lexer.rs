//! Lexer: source text to tokens, one at a time and without allocating. A token is a kind and a range of bytes.
//!
//! Beyond Relay's own lexical rules, `%"any name"` and `@"any name"` quote names that are not identifiers (a model
//! input named `input.1`), so that every module can be printed and read back.

use crate::diag::Span;

/// Kind of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The end of the text.
    Eof,
    /// A name, which may contain dots: `nn.conv2d`, `let`, `_`.
    Ident,
    /// `%name` or `%"name"`.
    Local,
    /// `%12`.
    Graph,
    /// `@name` or `@"name"`.
    Global,
    /// `"text"`.
    Str,
    /// Digits with an optional fraction, exponent and suffix: `1`, `2i16`, `1e-3f`.
    Number,
    /// A character that begins no token.
    Unknown,
    /// A string without a closing quote.
    OpenString,
    /// A block comment without `*/`.
    OpenComment,
    OpenParen,
    CloseParen,
    OpenBrace,
    CloseBrace,
    OpenBracket,
    CloseBracket,
    Comma,
    Semicolon,
    Colon,
    Dot,
    Question,
    Hash,
    Equal,
    Arrow,
    FatArrow,
    EqualEqual,
    NotEqual,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
    Plus,
    Minus,
    Star,
    Slash,
}

impl Kind {
    /// Returns the name of this kind of token for messages.
    pub(super) fn describe(self) -> &'static str {
        match self {
            Kind::Eof => "the end of the text",
            Kind::Ident => "a name",
            Kind::Local => "a variable such as `%x`",
            Kind::Graph => "a graph binding",
            Kind::Global => "a function name such as `@name`",
            Kind::Str => "a string",
            Kind::Number => "a number",
            Kind::Unknown => "an unknown character",
            Kind::OpenString => "an unterminated string",
            Kind::OpenComment => "an unterminated comment",
            Kind::OpenParen => "`(`",
            Kind::CloseParen => "`)`",
            Kind::OpenBrace => "`{`",
            Kind::CloseBrace => "`}`",
            Kind::OpenBracket => "`[`",
            Kind::CloseBracket => "`]`",
            Kind::Comma => "`,`",
            Kind::Semicolon => "`;`",
            Kind::Colon => "`:`",
            Kind::Dot => "`.`",
            Kind::Question => "`?`",
            Kind::Hash => "`#`",
            Kind::Equal => "`=`",
            Kind::Arrow => "`->`",
            Kind::FatArrow => "`=>`",
            Kind::EqualEqual => "`==`",
            Kind::NotEqual => "`!=`",
            Kind::Less => "`<`",
            Kind::LessEqual => "`<=`",
            Kind::Greater => "`>`",
            Kind::GreaterEqual => "`>=`",
            Kind::Plus => "`+`",
            Kind::Minus => "`-`",
            Kind::Star => "`*`",
            Kind::Slash => "`/`",
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Token {
    pub(super) kind: Kind,
    pub(super) span: Span,
}

/// Lexer for source text shorter than 4 GiB.
pub(super) struct Lexer<'a> {
    source: &'a str,
    bytes: &'a [u8],
    offset: usize,
    /// True after a `.`, where digits are a field index: `%x.0.1` is two projections, not `0.1`.
    after_dot: bool,
}

impl<'a> Lexer<'a> {
    pub(super) fn new(source: &'a str) -> Lexer<'a> {
        Lexer { source, bytes: source.as_bytes(), offset: 0, after_dot: false }
    }

    /// Returns the next token; at the end, always [`Kind::Eof`].
    pub(super) fn next(&mut self) -> Token {
        if let Err(delimiter) = self.skip_blanks() {
            return self.token(Kind::OpenComment, delimiter);
        }
        let start = self.offset;
        let Some(&first) = self.bytes.get(start) else {
            return self.token(Kind::Eof, start);
        };
        let kind = match first {
            b'%' => self.prefixed_name(true),
            b'@' => self.prefixed_name(false),
            b'"' => self.string(),
            b'0'..=b'9' => self.number(),
            _ if is_name_start(first) => self.ident(),
            _ => self.punctuation(first),
        };
        self.after_dot = kind == Kind::Dot;
        self.token(kind, start)
    }

    /// Skips the rest of the text.
    pub(super) fn skip_to_end(&mut self) {
        self.offset = self.bytes.len();
    }

    fn token(&self, kind: Kind, start: usize) -> Token {
        Token { kind, span: Span { start: start as u32, end: self.offset as u32 } }
    }

    fn peek(&self, ahead: usize) -> u8 {
        self.bytes.get(self.offset + ahead).copied().unwrap_or(0)
    }

    /// Skips whitespace and comments. Returns the start of an unterminated block comment as `Err`.
    fn skip_blanks(&mut self) -> Result<(), usize> {
        loop {
            match (self.peek(0), self.peek(1)) {
                (b' ' | b'\t' | b'\n', _) => self.offset += 1,
                (b'\r', b'\n') => self.offset += 2,
                (b'/', b'/') => {
                    let rest = &self.bytes[self.offset..];
                    self.offset += rest.iter().position(|&b| b == b'\n').unwrap_or(rest.len());
                }
                (b'/', b'*') => {
                    let opening_offset = self.offset;
                    let mut depth = 0usize;
                    loop {
                        match (self.peek(0), self.peek(1)) {
                            (b'/', b'*') => {
                                depth += 1;
                                self.offset += 2;
                            }
                            (b'*', b'/') => {
                                depth -= 1;
                                self.offset += 2;
                                if depth == 0 {
                                    break;
                                }
                            }
                            _ if self.offset >= self.bytes.len() => return Err(opening_offset),
                            _ => self.offset += 1,
                        }
                    }
                }
                _ => return Ok(()),
            }
        }
    }

    /// Reads `%name`, `%"name"` or `%12` if `is_local` is true, otherwise `@name` or `@"name"`.
    fn prefixed_name(&mut self, is_local: bool) -> Kind {
        let kind = if is_local { Kind::Local } else { Kind::Global };
        self.offset += 1;
        match self.peek(0) {
            b'"' => match self.string() {
                Kind::Str => kind,
                open => open,
            },
            b'0'..=b'9' if is_local => {
                while self.peek(0).is_ascii_digit() {
                    self.offset += 1;
                }
                Kind::Graph
            }
            first if is_name_start(first) || (first == b'/' && is_name_part(self.peek(1))) => {
                while is_name_part(self.peek(0)) || (self.peek(0) == b'/' && is_name_part(self.peek(1))) {
                    self.offset += 1;
                }
                kind
            }
            _ => Kind::Unknown,
        }
    }

    fn string(&mut self) -> Kind {
        let rest = &self.bytes[self.offset + 1..];
        match rest.iter().position(|&b| b == b'"') {
            Some(len) => {
                self.offset += len + 2;
                Kind::Str
            }
            None => {
                self.offset = self.bytes.len();
                Kind::OpenString
            }
        }
    }

    fn number(&mut self) -> Kind {
        let digits = |lexer: &mut Self| {
            while lexer.peek(0).is_ascii_digit() {
                lexer.offset += 1;
            }
        };
        digits(self);
        if self.after_dot {
            return Kind::Number;
        }
        // A fraction may be empty: `1.f`.
        if self.peek(0) == b'.' && (self.peek(1).is_ascii_digit() || self.peek(1) == b'f') {
            self.offset += 1;
            digits(self);
        }
        if matches!(self.peek(0), b'e' | b'E') {
            let sign_length = usize::from(matches!(self.peek(1), b'+' | b'-'));
            if self.peek(1 + sign_length).is_ascii_digit() {
                self.offset += 1 + sign_length;
                digits(self);
            }
        }
        while is_name_part(self.peek(0)) {
            self.offset += 1;
        }
        Kind::Number
    }

    fn ident(&mut self) -> Kind {
        loop {
            while is_name_part(self.peek(0)) {
                self.offset += 1;
            }
            if self.peek(0) == b'.' && is_name_start(self.peek(1)) {
                self.offset += 1;
            } else {
                return Kind::Ident;
            }
        }
    }

    fn punctuation(&mut self, first: u8) -> Kind {
        let is_followed_by = |second: u8| self.peek(1) == second;
        let (kind, len) = match first {
            b'(' => (Kind::OpenParen, 1),
            b')' => (Kind::CloseParen, 1),
            b'{' => (Kind::OpenBrace, 1),
            b'}' => (Kind::CloseBrace, 1),
            b'[' => (Kind::OpenBracket, 1),
            b']' => (Kind::CloseBracket, 1),
            b',' => (Kind::Comma, 1),
            b';' => (Kind::Semicolon, 1),
            b':' => (Kind::Colon, 1),
            b'.' => (Kind::Dot, 1),
            b'?' => (Kind::Question, 1),
            b'#' => (Kind::Hash, 1),
            b'+' => (Kind::Plus, 1),
            b'*' => (Kind::Star, 1),
            b'/' => (Kind::Slash, 1),
            b'-' if is_followed_by(b'>') => (Kind::Arrow, 2),
            b'-' => (Kind::Minus, 1),
            b'=' if is_followed_by(b'=') => (Kind::EqualEqual, 2),
            b'=' if is_followed_by(b'>') => (Kind::FatArrow, 2),
            b'=' => (Kind::Equal, 1),
            b'!' if is_followed_by(b'=') => (Kind::NotEqual, 2),
            b'<' if is_followed_by(b'=') => (Kind::LessEqual, 2),
            b'<' => (Kind::Less, 1),
            b'>' if is_followed_by(b'=') => (Kind::GreaterEqual, 2),
            b'>' => (Kind::Greater, 1),
            // The token spans a whole character, so that its bytes are valid UTF-8.
            _ => (Kind::Unknown, self.source[self.offset..].chars().next().map_or(1, char::len_utf8)),
        };
        self.offset += len;
        kind
    }
}

/// Returns true if a name may begin with `byte`.
pub(super) fn is_name_start(byte: u8) -> bool {
    byte.is_ascii_alphabetic() || byte == b'_'
}

/// Returns true if a name may continue with `byte`.
pub(super) fn is_name_part(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(source: &str) -> Vec<(Kind, &str)> {
        let mut lexer = Lexer::new(source);
        std::iter::from_fn(|| {
            let token = lexer.next();
            let text = &source[token.span.start as usize..token.span.end as usize];
            (token.kind != Kind::Eof).then_some((token.kind, text))
        })
        .collect()
    }

    #[test]
    fn names_numbers_and_projections() {
        assert_eq!(
            kinds("%x.0.1 nn.conv2d %12 @main 1e-3f 1.5f16 %/a/b %\"in put\" %a/%b"),
            [
                (Kind::Local, "%x"),
                (Kind::Dot, "."),
                (Kind::Number, "0"),
                (Kind::Dot, "."),
                (Kind::Number, "1"),
                (Kind::Ident, "nn.conv2d"),
                (Kind::Graph, "%12"),
                (Kind::Global, "@main"),
                (Kind::Number, "1e-3f"),
                (Kind::Number, "1.5f16"),
                (Kind::Local, "%/a/b"),
                (Kind::Local, "%\"in put\""),
                (Kind::Local, "%a"),
                (Kind::Slash, "/"),
                (Kind::Local, "%b"),
            ]
        );
    }

    #[test]
    fn comments_nest_and_must_be_terminated() {
        assert_eq!(kinds("a /* b /* c */ d */ e // f"), [(Kind::Ident, "a"), (Kind::Ident, "e")]);
        assert_eq!(kinds("/* /* */")[0].0, Kind::OpenComment);
        assert_eq!(kinds("\"abc")[0].0, Kind::OpenString);
        assert_eq!(kinds("é\r")[..], [(Kind::Unknown, "é"), (Kind::Unknown, "\r")]);
    }
}
