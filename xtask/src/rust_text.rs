//! Comments, messages and names in Rust source, found by a scanner that recognizes literals, comments, attributes and
//! declaring keywords, but does not parse the language.

/// Text from a source file, with its line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// 1-based line number of the first character.
    pub line: usize,
    /// Text without comment markers or quotes.
    pub text: String,
}

/// Texts of one source file.
#[derive(Debug, Default)]
pub struct Texts {
    /// Doc comments; adjacent lines with the same marker form one comment.
    pub doc_comments: Vec<Piece>,
    /// Non-doc comments; adjacent comment-only lines form one comment.
    pub comments: Vec<Piece>,
    /// String literals that read as sentences, except those in attributes and in a file's tests.
    pub messages: Vec<Piece>,
    /// Declared names: functions, types, constants, variables, public fields.
    pub names: Vec<Piece>,
}

/// Minimum number of words in a literal that counts as a message.
const MIN_MESSAGE_WORDS: usize = 3;

/// Keywords before a declared name.
const DECLARING: [&str; 10] = ["fn", "struct", "enum", "trait", "type", "const", "static", "mod", "let", "pub"];

/// Keywords between a declaring keyword and the name, as in `const fn` and `let mut`.
const MODIFIERS: [&str; 9] = ["fn", "mut", "const", "unsafe", "extern", "struct", "enum", "static", "use"];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mark {
    Outer,
    Inner,
    Plain,
}

/// Collects the texts of a source file.
pub fn scan(source: &str) -> Texts {
    let mut scanner =
        Scanner { source, offset: 0, line: 1, texts: Texts::default(), open_comment: None, declaring: false };
    scanner.run();
    scanner.texts
}

struct Scanner<'a> {
    source: &'a str,
    offset: usize,
    line: usize,
    texts: Texts,
    /// Marker and last line of the open comment, which a comment on the next line continues.
    open_comment: Option<(Mark, usize)>,
    /// True after a declaring keyword.
    declaring: bool,
}

impl Scanner<'_> {
    fn run(&mut self) {
        let tests = self.source.find("#[cfg(test)]\nmod tests {").unwrap_or(self.source.len());
        while self.offset < self.source.len() {
            let tail = &self.source[self.offset..];
            let first = tail.chars().next().unwrap_or_default();
            if tail.starts_with("//") {
                self.skip_line_comment();
            } else if tail.starts_with("/*") {
                self.advance(block_comment_len(tail));
            } else if tail.starts_with("#[") || tail.starts_with("#![") {
                // A literal in an attribute is a lint reason, not a message to the user.
                self.advance(attribute_len(tail));
            } else if let Some((len, text)) = literal(tail) {
                if self.offset < tests
                    && let Some(text) = text
                    && is_message(text)
                {
                    self.texts.messages.push(Piece { line: self.line, text: unescape(text) });
                }
                self.declaring = false;
                self.advance(len);
            } else if first.is_alphabetic() || first == '_' {
                let len = word_len(tail);
                self.visit_word(&tail[..len], tail[len..].trim_start());
                self.advance(len);
            } else {
                self.declaring &= first.is_whitespace();
                self.advance(first.len_utf8());
            }
        }
    }

    fn advance(&mut self, len: usize) {
        self.line += self.source[self.offset..self.offset + len].matches('\n').count();
        self.offset += len;
    }

    fn skip_line_comment(&mut self) {
        let tail = &self.source[self.offset..];
        let len = tail.find('\n').unwrap_or(tail.len());
        let text = &tail[..len];
        let (kind, text) = match text.as_bytes() {
            [b'/', b'/', b'/', b'/', ..] => (Mark::Plain, text.trim_start_matches('/')),
            [b'/', b'/', b'/', ..] => (Mark::Outer, &text[3..]),
            [b'/', b'/', b'!', ..] => (Mark::Inner, &text[3..]),
            _ => (Mark::Plain, &text[2..]),
        };
        let line_start = self.source[..self.offset].rsplit('\n').next().unwrap_or_default();
        let is_own_line = line_start.trim().is_empty();
        let list = match kind {
            Mark::Plain => &mut self.texts.comments,
            Mark::Outer | Mark::Inner => &mut self.texts.doc_comments,
        };
        match (self.open_comment, list.last_mut()) {
            (Some((open_kind, line)), Some(last)) if is_own_line && open_kind == kind && line + 1 == self.line => {
                last.text.push('\n');
                last.text.push_str(text.trim());
            }
            _ => list.push(Piece { line: self.line, text: text.trim().to_owned() }),
        }
        self.open_comment = is_own_line.then_some((kind, self.line));
        self.advance(len);
    }

    fn visit_word(&mut self, word: &str, following: &str) {
        let is_name = self.declaring && !MODIFIERS.contains(&word) && !DECLARING.contains(&word);
        // A path, or a pattern constructor as in `let Some(x)`, is not a declaration.
        let is_use = following.starts_with("::") || word.starts_with(char::is_uppercase) && following.starts_with('(');
        if is_name && !is_use && !["_", "self", "crate"].contains(&word) {
            self.texts.names.push(Piece { line: self.line, text: word.to_owned() });
        }
        self.declaring = DECLARING.contains(&word) || (self.declaring && !is_name && word != "use");
    }
}

fn word_len(text: &str) -> usize {
    text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len())
}

/// Returns the length of a block comment, which may contain nested block comments.
fn block_comment_len(text: &str) -> usize {
    let (mut depth, mut offset) = (0usize, 0);
    loop {
        let tail = &text[offset..];
        let (step, next) = match tail {
            _ if tail.starts_with("/*") => (2, depth + 1),
            _ if tail.starts_with("*/") => (2, depth - 1),
            _ => (tail.chars().next().map_or(0, char::len_utf8), depth),
        };
        (offset, depth) = (offset + step, next);
        if depth == 0 || step == 0 {
            return offset;
        }
    }
}

/// Returns the length of an attribute, whose literals may contain brackets.
fn attribute_len(text: &str) -> usize {
    let (mut depth, mut offset) = (0usize, text.find('[').unwrap_or(0));
    while offset < text.len() {
        let tail = &text[offset..];
        let step = literal(tail).map_or_else(|| tail.chars().next().map_or(1, char::len_utf8), |(len, _)| len);
        match &tail[..step] {
            "[" => depth += 1,
            "]" => depth -= 1,
            _ => {}
        }
        offset += step;
        if depth == 0 {
            break;
        }
    }
    offset
}

/// Returns the length of the string or character literal that `text` begins with, and the content of a string.
fn literal(text: &str) -> Option<(usize, Option<&str>)> {
    let prefix = ["br", "cr", "r", "b", "c", ""].into_iter().find(|prefix| {
        let suffix = text.strip_prefix(prefix).unwrap_or_default();
        let hashes = suffix.trim_start_matches('#');
        suffix.starts_with(['"', '\'']) && !(prefix.ends_with(['r', 'c']) && suffix.starts_with('\''))
            || prefix.ends_with('r') && hashes.len() < suffix.len() && hashes.starts_with('"')
    })?;
    let tail = &text[prefix.len()..];
    if prefix.ends_with('r') {
        let hashes = tail.len() - tail.trim_start_matches('#').len();
        let body = &tail[hashes + 1..];
        let terminator = format!("\"{}", &tail[..hashes]);
        let len = body.find(&terminator).unwrap_or(body.len());
        let literal_len = (prefix.len() + hashes + 1 + len + terminator.len()).min(text.len());
        return Some((literal_len, Some(&body[..len])));
    }
    if tail.starts_with('\'') {
        return character_len(tail).map(|len| (prefix.len() + len, None));
    }
    let mut is_escaped = false;
    for (i, c) in tail.char_indices().skip(1) {
        match c {
            '"' if !is_escaped => return Some((prefix.len() + i + 1, Some(&tail[1..i]))),
            _ => is_escaped = c == '\\' && !is_escaped,
        }
    }
    Some((text.len(), None))
}

/// Returns the length of a character literal; `None` for a lifetime.
fn character_len(text: &str) -> Option<usize> {
    let mut chars = text.char_indices().skip(1);
    let (_, first) = chars.next()?;
    if first == '\\' {
        chars.next()?;
        return chars.find(|(_, c)| *c == '\'').map(|(i, _)| i + 1);
    }
    chars.next().filter(|(_, c)| *c == '\'').map(|(i, _)| i + 1)
}

/// Returns true for a sentence: several words, at least two of them purely alphabetic, and no signs of generated code.
fn is_message(text: &str) -> bool {
    let letters = |word: &&str| word.chars().filter(|c| c.is_alphabetic()).count() >= 2;
    let is_plain = |word: &&str| word.trim_end_matches([',', ':', '.']).chars().all(char::is_alphabetic);
    let words: Vec<&str> = text.split_whitespace().filter(letters).collect();
    let end = text.trim_end().trim_end_matches("\\n");
    let is_program = ["def @", ";\n", ";\\n", "{\n", "{\\n"].iter().any(|marker| text.contains(marker));
    let is_code = is_program || text.starts_with(['#', '<', '%', '/']) || end.ends_with([';', '{']) || end == "}";
    words.len() >= MIN_MESSAGE_WORDS && words.into_iter().filter(is_plain).count() >= 2 && !is_code
}

/// Removes line continuations, and leaves the remaining escapes unchanged.
fn unescape(text: &str) -> String {
    let mut lines = text.split("\\\n");
    let first = lines.next().unwrap_or_default().to_owned();
    lines.fold(first, |joined, line| joined + line.trim_start())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(pieces: &[Piece]) -> Vec<(usize, &str)> {
        pieces.iter().map(|piece| (piece.line, piece.text.as_str())).collect()
    }

    #[test]
    fn separates_comments_literals_and_names() {
        let source = "//! Module.\n//! More.\n\n/// Returns `x`.\n#[expect(dead_code, reason = \"not a message at all [\")]\n\
                      pub fn read<'a>(x: &'a str) -> char {\n    // One reason,\n    // in two lines.\n    \
                      let mut error = \"expected \\\"a\\\" or b // no comment\"; // trailing\n    \
                      let raw = r#\"found \" in a raw literal\"#;\n    '\"'\n}\n/* none /* nested */ \"not a message either\" */\n\
                      const LIMIT: usize = 1;\n#[cfg(test)]\nmod tests { const A: &str = \"text of a test\"; }\n";
        let texts_found = scan(source);
        assert_eq!(texts(&texts_found.doc_comments), [(1, "Module.\nMore."), (4, "Returns `x`.")]);
        assert_eq!(texts(&texts_found.comments), [(7, "One reason,\nin two lines."), (9, "trailing")]);
        assert_eq!(
            texts(&texts_found.messages),
            [(9, "expected \\\"a\\\" or b // no comment"), (10, "found \" in a raw literal")]
        );
        assert_eq!(
            texts(&texts_found.names),
            [(6, "read"), (9, "error"), (10, "raw"), (14, "LIMIT"), (16, "tests"), (16, "A")]
        );
    }

    #[test]
    fn joins_continued_lines_and_skips_generated_code() {
        let texts_found = scan(
            "let a = \"expected an integer, \\\n         found a float\";\nlet b = \"for (int i = 0; i < n; i++) {\";",
        );
        assert_eq!(texts(&texts_found.messages), [(1, "expected an integer, found a float")]);
    }

    #[test]
    fn unfinished_source_ends_the_scan() {
        for source in ["\"open", "/* open", "#[open", "r#\"open", "'", "'\\", "b'", "///", "let"] {
            scan(source);
        }
    }
}
