//! Operators on [tensors of strings](crate::tensor::strings). Each takes the bytes and the spans of its strings; results
//! that are substrings are spans of the same bytes.

use super::broadcast::broadcast_dims;
use super::walk::{broadcast_strides, for_each_index, offset};
use super::{AttrDef, AttrKind, Default, Evaluation, Params, ReferenceError, Relation, TypeResult};
use crate::cancel::Ticks;
use crate::diag::{Diagnostic, codes};
use crate::ir::{Dim, TensorType, Type};
use crate::tensor::strings::{MAX_BYTES, Strings, span};
use crate::tensor::{DType, TensorView, TensorViewMut};
use regex::{Regex, RegexBuilder};
use std::collections::{BTreeSet, HashMap};
use std::fmt::Write;

/// Maximum size in bytes of a compiled pattern.
const MAX_PATTERN_BYTES: usize = 10 << 20;

/// Maximum number of bytes of a number in decimal.
const NUMBER_WIDTH: usize = 24;

/// Checks the types of the strings in arguments `i` and `i + 1`, and returns that of the spans.
fn spans_type<'a>(relation: &Relation<'a>, i: usize) -> Result<&'a TensorType, Box<Diagnostic>> {
    let (bytes, spans) = (relation.tensor(i)?, relation.tensor(i + 1)?);
    if bytes.dtype != DType::U8 || bytes.dims.len() != 1 || spans.dtype != DType::I64 {
        return Err(relation.mismatch(format!(
            "expected a vector of uint8 and spans of type int64, found {} and {}",
            relation.args[i],
            relation.args[i + 1]
        )));
    }
    Ok(spans)
}

/// Returns the strings in arguments `i` and `i + 1`, if they are known.
fn known_strings<'a>(relation: &Relation<'a>, i: usize) -> Result<Option<Strings<'a>>, Box<Diagnostic>> {
    let value = |i: usize| relation.values.get(i).copied().flatten();
    let (Some(bytes), Some(spans)) = (value(i), value(i + 1)) else { return Ok(None) };
    Strings::new(&bytes.view(), &spans.view()).map(Some).map_err(|reason| invalid(relation, reason))
}

fn invalid(relation: &Relation<'_>, reason: impl std::fmt::Display) -> Box<Diagnostic> {
    relation.error(codes::runtime::BAD_STRING, reason)
}

fn strings<'a>(inputs: &[TensorView<'a>], i: usize) -> Result<Strings<'a>, ReferenceError> {
    Strings::new(&inputs[i], &inputs[i + 1]).map_err(|reason| reason.to_string())
}

/// Returns the type of strings: bytes and spans.
fn strings_type(bytes: Dim, spans: impl IntoIterator<Item = Dim>) -> Type {
    Type::tuple([Type::tensor_of(DType::U8, [bytes]), Type::tensor_of(DType::I64, spans)])
}

/// Returns a number of bytes as a dimension.
fn byte_dim(relation: &Relation<'_>, count: usize) -> Result<Dim, Box<Diagnostic>> {
    match count <= MAX_BYTES {
        true => Ok(Dim::Fixed(count)),
        false => Err(relation.error(
            codes::runtime::BAD_STRING,
            format!("expected strings of at most {MAX_BYTES} bytes in total, found {count}"),
        )),
    }
}

/// Compiles a pattern in the syntax of RE2.
///
/// # Errors
/// If the pattern is malformed, or exceeds the size limit.
pub fn pattern(text: &str) -> Result<Regex, String> {
    let compiled = RegexBuilder::new(&with_ascii_classes(text)).size_limit(MAX_PATTERN_BYTES).build();
    compiled.map_err(|error| match error {
        regex::Error::CompiledTooBig(limit) => {
            format!("expected a pattern that takes at most {limit} bytes, found a larger one")
        }
        error => {
            // The last line states the reason; the others repeat the pattern.
            let message = error.to_string();
            let reason = message.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned();
            format!("expected a pattern, found \"{}\": {reason}", crate::escape::line(text))
        }
    })
}

/// Replaces the classes `\w`, `\d`, `\s`, their complements and `\b`, which have ASCII characters only in RE2.
fn with_ascii_classes(text: &str) -> String {
    let (mut replaced, mut depth) = (String::with_capacity(text.len()), 0usize);
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '[' => depth += 1,
            ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if c != '\\' {
            replaced.push(c);
            continue;
        }
        match chars.next() {
            Some('w') => replaced.push_str("[0-9A-Za-z_]"),
            Some('W') => replaced.push_str("[^0-9A-Za-z_]"),
            Some('d') => replaced.push_str("[0-9]"),
            Some('D') => replaced.push_str("[^0-9]"),
            Some('s') => replaced.push_str(r"[\t\n\x0c\r ]"),
            Some('S') => replaced.push_str(r"[^\t\n\x0c\r ]"),
            Some('b') if depth == 0 => replaced.push_str(r"(?-u:\b)"),
            Some(other) => replaced.extend(['\\', other]),
            None => replaced.push('\\'),
        }
    }
    replaced
}

/// Compiles a pattern that matches whole strings.
///
/// # Errors
/// See [`pattern`].
pub fn whole_pattern(text: &str) -> Result<Regex, String> {
    // Alone, the pattern must be valid as well: it may not close the group around it.
    pattern(text)?;
    pattern(&format!(r"\A(?:{text})\z"))
}

/// Writes the position of each string among the keys, and -1 for strings that are no key.
///
/// # Errors
/// If a string is invalid, or no key although keys are required.
pub fn look_up(
    data: Strings<'_>,
    position: impl Fn(&[u8]) -> Option<i64>,
    is_required: bool,
    out: &mut [i64],
) -> Evaluation {
    for (i, slot) in out.iter_mut().enumerate() {
        let string = data.bytes(i).map_err(|reason| reason.to_string())?;
        *slot = match position(string) {
            None if is_required => {
                let found = String::from_utf8_lossy(string);
                return Err(format!("element {i}: expected a key, found \"{}\"", crate::escape::line(&found)));
            }
            position => position.unwrap_or(-1),
        };
    }
    Ok(())
}

/// Position of each key; of equal keys, that of the first.
///
/// # Errors
/// If a key is invalid.
pub fn positions<'a>(keys: Strings<'a>) -> Result<HashMap<&'a [u8], i64>, ReferenceError> {
    let mut positions = HashMap::with_capacity(keys.len());
    for i in 0..keys.len() {
        positions.entry(keys.bytes(i).map_err(|reason| format!("keys: {reason}"))?).or_insert(i as i64);
    }
    Ok(positions)
}

operator! {
    name: "text.lookup",
    doc: "The position of each string among the keys, the first one if keys are equal, and -1 for strings that are no \
          key.",
    inputs: &["bytes", "spans", "key_bytes", "key_spans"],
    attrs: &[
        AttrDef::new("is_required", AttrKind::Bool, Default::Bool(false), "true if a string that is no key is an error"),
    ],
    relation: |relation| {
        let keys = spans_type(relation, 2)?;
        if keys.dims.len() != 1 {
            return Err(relation.mismatch(format!("keys: expected a vector, found {}", relation.args[3])));
        }
        Ok(Type::tensor_of(DType::I64, spans_type(relation, 0)?.dims.iter().cloned()))
    },
    reference: Some(|params, inputs, outputs| {
        let (data, keys) = (strings(inputs, 0)?, strings(inputs, 2)?);
        let positions = positions(keys)?;
        let position = |string: &[u8]| positions.get(string).copied();
        look_up(data, position, params.bool("is_required"), outputs[0].as_mut_slice())
    }),
}

operator! {
    name: "text.rank",
    doc: "The position of each string among the distinct strings in ascending order of their bytes.",
    inputs: &["bytes", "spans"],
    relation: |relation| Ok(Type::tensor_of(DType::I64, spans_type(relation, 0)?.dims.iter().cloned())),
    reference: Some(|_, inputs, outputs| {
        let data = strings(inputs, 0)?;
        let all = (0..data.len()).map(|i| data.bytes(i)).collect::<Result<Vec<&[u8]>, _>>();
        let all = all.map_err(|reason| reason.to_string())?;
        let mut distinct = all.clone();
        distinct.sort_unstable();
        distinct.dedup();
        for (slot, string) in outputs[0].as_mut_slice::<i64>().iter_mut().zip(all) {
            *slot = distinct.binary_search(&string).unwrap_or_default() as i64;
        }
        Ok(())
    }),
}

/// Returns the dimensions of two tensors of strings, in arguments 0 and 2, that are broadcast.
fn broadcast_strings(relation: &Relation<'_>) -> Result<Vec<Dim>, Box<Diagnostic>> {
    let (a, b) = (spans_type(relation, 0)?, spans_type(relation, 2)?);
    broadcast_dims(relation, [a, b])
}

/// Calls `visit` with the positions of the elements of two tensors that are broadcast to `shape`, in order.
fn for_each_pair(shape: &[usize], a: &[usize], b: &[usize], mut visit: impl FnMut(usize, usize)) {
    let strides = [broadcast_strides(a, shape.len()), broadcast_strides(b, shape.len())];
    for_each_index(shape, |index| visit(offset(index, &strides[0]), offset(index, &strides[1])));
}

operator! {
    name: "text.equal",
    doc: "Whether strings are equal, with broadcasting.",
    inputs: &["bytes", "spans", "other_bytes", "other_spans"],
    relation: |relation| Ok(Type::tensor_of(DType::Bool, broadcast_strings(relation)?)),
    reference: Some(|_, inputs, outputs| {
        let (a, b) = (strings(inputs, 0)?, strings(inputs, 2)?);
        let (mut position, mut failure) = (0, None);
        let (shape, out) = (outputs[0].shape, &mut *outputs[0].data);
        for_each_pair(shape, inputs[1].shape, inputs[3].shape, |i, j| {
            match (a.bytes(i), b.bytes(j)) {
                (Ok(a), Ok(b)) => out[position] = u8::from(a == b),
                (Err(reason), _) | (_, Err(reason)) => failure = Some(reason.to_string()),
            }
            position += 1;
        });
        failure.map_or(Ok(()), Err)
    }),
}

/// Writes strings to the bytes and the spans of a result.
struct StringWriter<'a> {
    bytes: &'a mut [u8],
    spans: &'a mut [i64],
    begin: usize,
    position: usize,
}

impl<'a> StringWriter<'a> {
    fn new(outputs: &'a mut [TensorViewMut<'_>]) -> Result<StringWriter<'a>, ReferenceError> {
        let [bytes, spans] = outputs else { return Err("expected two results".into()) };
        Ok(StringWriter { bytes: &mut *bytes.data, spans: spans.as_mut_slice(), begin: 0, position: 0 })
    }

    /// Writes the next string, which consists of parts.
    fn push(&mut self, parts: &[&[u8]]) -> Evaluation {
        let start = self.begin;
        for part in parts {
            let target = self.bytes.get_mut(self.begin..self.begin + part.len());
            target.ok_or("expected as many bytes as the strings have")?.copy_from_slice(part);
            self.begin += part.len();
        }
        let slot = self.spans.get_mut(self.position).ok_or("expected as many spans as there are strings")?;
        *slot = if self.begin == start { 0 } else { span(start, self.begin - start) };
        self.position += 1;
        Ok(())
    }
}

operator! {
    name: "text.concatenate",
    doc: "Each string followed by the other one, with broadcasting.",
    inputs: &["bytes", "spans", "other_bytes", "other_spans"],
    relation: |relation| {
        let dims = broadcast_strings(relation)?;
        let (Some(a), Some(b)) = (known_strings(relation, 0)?, known_strings(relation, 2)?) else {
            return Ok(strings_type(Dim::Any, dims));
        };
        let count = dims.iter().try_fold(1usize, |count, dim| count.checked_mul(dim.fixed()?));
        // Each element is repeated equally often.
        let size = |strings: Strings<'_>| -> Result<usize, Box<Diagnostic>> {
            let bytes = strings.byte_count().map_err(|reason| invalid(relation, reason))?;
            let repeats = count.unwrap_or(0).checked_div(strings.len()).unwrap_or(0);
            Ok(bytes.saturating_mul(repeats))
        };
        Ok(strings_type(byte_dim(relation, size(a)?.saturating_add(size(b)?))?, dims))
    },
    reference: Some(|_, inputs, outputs| {
        let (a, b) = (strings(inputs, 0)?, strings(inputs, 2)?);
        let shape = outputs[1].shape;
        let mut writer = StringWriter::new(outputs)?;
        let mut result = Ok(());
        for_each_pair(shape, inputs[1].shape, inputs[3].shape, |i, j| {
            let written = match (a.bytes(i), b.bytes(j)) {
                (Ok(a), Ok(b)) => writer.push(&[a, b]),
                (Err(reason), _) | (_, Err(reason)) => Err(reason.to_string()),
            };
            if result.is_ok() {
                result = written;
            }
        });
        result
    }),
}

/// Changes the case of a string. Characters whose other case has several characters, such as ß, stay as they are.
fn with_case(text: &str, is_upper: bool) -> String {
    let single = |mut other: Box<dyn Iterator<Item = char>>, c: char| match (other.next(), other.next()) {
        (Some(changed), None) => changed,
        _ => c,
    };
    let change = |c: char| match is_upper {
        _ if c.is_ascii() => {
            if is_upper {
                c.to_ascii_uppercase()
            } else {
                c.to_ascii_lowercase()
            }
        }
        true => single(Box::new(c.to_uppercase()), c),
        false => single(Box::new(c.to_lowercase()), c),
    };
    text.chars().map(change).collect()
}

operator! {
    name: "text.case",
    doc: "Strings in lower or upper case. A character whose other case has several characters stays as it is.",
    inputs: &["bytes", "spans"],
    attrs: &[AttrDef::new("action", AttrKind::Str, Default::Required, "lower or upper")],
    relation: |relation| {
        let action = relation.params.string("action");
        if action != "lower" && action != "upper" {
            let message = format!("action: expected lower or upper, found \"{action}\"");
            return Err(relation.error(codes::types::BAD_ATTRIBUTE, message));
        }
        let dims = spans_type(relation, 0)?.dims.iter().cloned();
        let Some(data) = known_strings(relation, 0)? else { return Ok(strings_type(Dim::Any, dims)) };
        let size = data.iter().try_fold(0usize, |size, text| {
            let text = text.map_err(|reason| invalid(relation, reason))?;
            let len = if text.is_ascii() { text.len() } else { with_case(text, action == "upper").len() };
            Ok::<usize, Box<Diagnostic>>(size.saturating_add(len))
        })?;
        Ok(strings_type(byte_dim(relation, size)?, dims))
    },
    reference: Some(|params, inputs, outputs| {
        let is_upper = params.string("action") == "upper";
        let mut writer = StringWriter::new(outputs)?;
        let mut ticks = Ticks::every(16);
        for text in strings(inputs, 0)?.iter() {
            if ticks.is_requested() {
                break;
            }
            writer.push(&[with_case(text.map_err(|reason| reason.to_string())?, is_upper).as_bytes()])?;
        }
        Ok(())
    }),
}

operator! {
    name: "text.match",
    doc: "Whether a pattern in the syntax of RE2 matches the whole of each string.",
    inputs: &["bytes", "spans"],
    attrs: &[AttrDef::new("pattern", AttrKind::Str, Default::Required, "pattern in the syntax of RE2")],
    relation: |relation| {
        let spans = spans_type(relation, 0)?;
        whole_pattern(&relation.params.string("pattern"))
            .map_err(|reason| relation.error(codes::types::BAD_ATTRIBUTE, format!("pattern: {reason}")))?;
        Ok(Type::tensor_of(DType::Bool, spans.dims.iter().cloned()))
    },
    reference: Some(|params, inputs, outputs| {
        match_whole(&whole_pattern(&params.string("pattern"))?, strings(inputs, 0)?, outputs[0].data)
    }),
}

/// Writes to `out` whether the pattern matches each string.
///
/// # Errors
/// If a string is invalid.
pub fn match_whole(pattern: &Regex, strings: Strings<'_>, out: &mut [u8]) -> Evaluation {
    let mut ticks = Ticks::every(1);
    for (text, slot) in strings.iter().zip(out) {
        if ticks.is_requested() {
            break;
        }
        *slot = u8::from(pattern.is_match(text.map_err(|reason| reason.to_string())?));
    }
    Ok(())
}

fn kept_count(is_kept: &[u8]) -> usize {
    is_kept.iter().filter(|&&is_kept| is_kept != 0).count()
}

operator! {
    name: "text.keep",
    doc: "The spans of a vector for which is_kept is true; an empty string, the span 0, if there is none.",
    inputs: &["spans", "is_kept"],
    relation: |relation| {
        let (spans, is_kept) = (relation.tensor(0)?, relation.tensor(1)?);
        let ([length], [flags]) = (&spans.dims[..], &is_kept.dims[..]) else {
            let [spans, is_kept] = [&relation.args[0], &relation.args[1]];
            return Err(relation.mismatch(format!("expected two vectors, found {spans} and {is_kept}")));
        };
        if spans.dtype != DType::I64 || is_kept.dtype != DType::Bool {
            let (spans, is_kept) = (spans.dtype, is_kept.dtype);
            let message = format!("expected spans of int64 and Booleans, found {spans} and {is_kept}");
            return Err(relation.mismatch(message));
        }
        relation.same_dim("spans and is_kept", length, flags)?;
        let count = relation.values.get(1).copied().flatten().map(|flags| kept_count(flags.bytes()).max(1));
        Ok(Type::tensor_of(DType::I64, [count.map_or(Dim::Any, Dim::Fixed)]))
    },
    reference: Some(|_, inputs, outputs| {
        let kept = inputs[0].as_slice::<i64>().iter().zip(inputs[1].data).filter(|(_, is_kept)| **is_kept != 0);
        let out = outputs[0].as_mut_slice::<i64>();
        out.fill(0);
        out.iter_mut().zip(kept).for_each(|(slot, (&span, _))| *slot = span);
        Ok(())
    }),
}

/// Part of a string: the position of its first byte, and the number of its bytes.
type Part = (usize, usize);

/// Returns the span of a part of the string that begins at byte `begin`.
fn part_span(begin: usize, (start, len): Part) -> i64 {
    if len == 0 { 0 } else { span(begin + start, len) }
}

/// Returns the parts of a string between delimiters, or between runs of white space. After `limit` delimiters, the rest
/// is one part. An empty string has no parts.
fn split(text: &str, delimiter: &str, limit: usize) -> Vec<Part> {
    let mut parts = Vec::new();
    if delimiter.is_empty() {
        let mut position = 0;
        loop {
            let rest = &text[position..];
            let trimmed = rest.trim_start();
            position += rest.len() - trimmed.len();
            if trimmed.is_empty() {
                return parts;
            }
            let len = if parts.len() == limit { None } else { trimmed.find(char::is_whitespace) };
            let len = len.unwrap_or(trimmed.len());
            parts.push((position, len));
            position += len;
        }
    }
    let mut position = 0;
    while !text.is_empty() {
        let found = if parts.len() == limit { None } else { text[position..].find(delimiter) };
        parts.push((position, found.unwrap_or(text.len() - position)));
        match found {
            Some(len) => position += len + delimiter.len(),
            None => break,
        }
    }
    parts
}

fn split_each(params: &Params<'_>, data: Strings<'_>) -> Result<Vec<Vec<Part>>, String> {
    let limit = params.opt_int("maxsplit").and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX);
    let delimiter = params.string("delimiter");
    let mut ticks = Ticks::every(16);
    let part = |text: Result<_, _>| match ticks.is_requested() {
        true => Ok(Vec::new()),
        false => text
            .map(|text| split(text, &delimiter, limit))
            .map_err(|reason: crate::tensor::strings::Invalid| reason.to_string()),
    };
    data.iter().map(part).collect()
}

/// Returns the dimensions of a result with another axis for the parts of each string.
fn parts_dims(spans: &TensorType, width: Dim) -> impl Iterator<Item = Dim> {
    spans.dims.iter().cloned().chain([width])
}

operator! {
    name: "text.split",
    doc: "The parts of each string between delimiters, as spans of the same bytes on another last axis, filled up \
          with empty strings; and the number of parts. Python's str.split, except that an empty string has no parts.",
    inputs: &["bytes", "spans"],
    attrs: &[
        AttrDef::new("delimiter", AttrKind::Str, Default::Str(""), "delimiter; runs of white space if empty"),
        AttrDef::new("maxsplit", AttrKind::Int, Default::None, "number of delimiters before the last part"),
    ],
    relation: |relation| {
        let spans = spans_type(relation, 0)?;
        let counts = Type::tensor_of(DType::I64, spans.dims.iter().cloned());
        let width = match known_strings(relation, 0)? {
            Some(data) => {
                let parts = split_each(&relation.params, data).map_err(|reason| invalid(relation, reason))?;
                Dim::Fixed(parts.iter().map(Vec::len).max().unwrap_or(0))
            }
            None => Dim::Any,
        };
        Ok(Type::tuple([Type::tensor_of(DType::I64, parts_dims(spans, width)), counts]))
    },
    reference: Some(|params, inputs, outputs| {
        let data = strings(inputs, 0)?;
        let parts = split_each(&params, data)?;
        let [spans, counts] = outputs else { return Err("expected two results".into()) };
        for (slot, parts) in counts.as_mut_slice::<i64>().iter_mut().zip(&parts) {
            *slot = parts.len() as i64;
        }
        let width = spans.shape.last().copied().unwrap_or(0);
        write_parts(data, &parts, 0, width, spans.as_mut_slice());
        Ok(())
    }),
}

/// Writes the spans of the parts of each string, `width` of them for each, filled up with `fill`.
fn write_parts(data: Strings<'_>, parts: &[Vec<Part>], fill: i64, width: usize, out: &mut [i64]) {
    if width == 0 {
        return;
    }
    for (i, (row, parts)) in out.chunks_mut(width).zip(parts).enumerate() {
        row.fill(fill);
        row.iter_mut().zip(parts).for_each(|(slot, &part)| *slot = part_span(data.begin(i), part));
    }
}

/// Function from a string to its tokens.
enum Tokens {
    /// Matches of a pattern.
    Matches(Regex),
    /// Parts between the matches of patterns.
    Between(Vec<Regex>),
    Characters,
}

impl Tokens {
    fn new(params: &Params<'_>, separators: Strings<'_>) -> Result<Tokens, String> {
        let expression = params.string("tokenexp");
        if !expression.is_empty() {
            return pattern(&expression).map(Tokens::Matches);
        }
        let separators: Vec<&str> = separators.iter().collect::<Result<_, _>>().map_err(|reason| reason.to_string())?;
        match separators[..] {
            [""] => Ok(Tokens::Characters),
            _ => separators.into_iter().map(pattern).collect::<Result<_, _>>().map(Tokens::Between),
        }
    }

    fn of(&self, text: &str, min_chars: usize) -> Vec<Part> {
        let mut tokens: Vec<Part> = match self {
            Tokens::Matches(pattern) => pattern.find_iter(text).map(|found| (found.start(), found.len())).collect(),
            Tokens::Characters => return text.char_indices().map(|(i, c)| (i, c.len_utf8())).collect(),
            Tokens::Between(patterns) => patterns.iter().fold(vec![(0, text.len())], |parts, pattern| {
                parts.into_iter().flat_map(|part| between(pattern, text, part)).collect()
            }),
        };
        tokens.retain(|&(start, len)| text[start..start + len].chars().count() >= min_chars);
        tokens
    }
}

/// Returns the parts of a part of a text between the matches of a pattern.
fn between(pattern: &Regex, text: &str, (start, len): Part) -> Vec<Part> {
    let mut parts = Vec::new();
    let mut position = 0;
    for found in pattern.find_iter(&text[start..start + len]) {
        parts.push((start + position, found.start() - position));
        position = found.end();
    }
    parts.push((start + position, len - position));
    parts
}

/// Returns the tokens of each string.
fn tokenize_each(params: &Params<'_>, data: Strings<'_>, separators: Strings<'_>) -> Result<Vec<Vec<Part>>, String> {
    let tokens = Tokens::new(params, separators)?;
    let min_chars = usize::try_from(params.int("min_chars")).unwrap_or(0);
    let mut ticks = Ticks::every(4);
    let part = |text: Result<_, crate::tensor::strings::Invalid>| match ticks.is_requested() {
        true => Ok(Vec::new()),
        false => text.map(|text| tokens.of(text, min_chars)).map_err(|reason| reason.to_string()),
    };
    data.iter().map(part).collect()
}

/// Returns the number of spans for each string: those of its tokens, and two marks.
fn token_width(params: &Params<'_>, parts: &[Vec<Part>]) -> usize {
    match parts.iter().map(Vec::len).max().unwrap_or(0) {
        0 => 0,
        width => width + if params.bool("mark") { 2 } else { 0 },
    }
}

operator! {
    name: "text.tokenize",
    doc: "The tokens of each string, as spans of the same bytes on another last axis, filled up with the first span \
          of `marks`. Tokens are the matches of an expression, or the parts between the matches of separators; the \
          only separator \"\" separates characters. With `mark`, the second and the third span of `marks` enclose them.",
    inputs: &["bytes", "spans", "separator_bytes", "separator_spans", "marks"],
    attrs: &[
        AttrDef::new("tokenexp", AttrKind::Str, Default::Str(""), "pattern of tokens, as in RE2; none if empty"),
        AttrDef::new("min_chars", AttrKind::Int, Default::Int(1), "number of characters that tokens have at least"),
        AttrDef::new("mark", AttrKind::Bool, Default::Bool(false), "whether to enclose the tokens in marks"),
    ],
    relation: |relation| {
        let (spans, _, marks) = (spans_type(relation, 0)?, spans_type(relation, 2)?, relation.tensor(4)?);
        if marks.dtype != DType::I64 || marks.dims[..] != [Dim::Fixed(3)] {
            return Err(relation.mismatch(format!("marks: expected three spans, found {}", relation.args[4])));
        }
        let separators = known_strings(relation, 2)?;
        if let Some(separators) = separators {
            Tokens::new(&relation.params, separators)
                .map_err(|reason| relation.error(codes::types::BAD_ATTRIBUTE, reason))?;
        }
        let width = match (known_strings(relation, 0)?, separators) {
            (Some(data), Some(separators)) => {
                let parts = tokenize_each(&relation.params, data, separators);
                let parts = parts.map_err(|reason| invalid(relation, reason))?;
                Dim::Fixed(token_width(&relation.params, &parts))
            }
            _ => Dim::Any,
        };
        Ok(Type::tensor_of(DType::I64, parts_dims(spans, width)))
    },
    reference: Some(|params, inputs, outputs| {
        let (data, separators) = (strings(inputs, 0)?, strings(inputs, 2)?);
        let parts = tokenize_each(&params, data, separators)?;
        let width = outputs[0].shape.last().copied().unwrap_or(0);
        let &[fill, first, last] = inputs[4].as_slice::<i64>() else { return Err("expected three marks".into()) };
        let out = outputs[0].as_mut_slice::<i64>();
        if !params.bool("mark") {
            write_parts(data, &parts, fill, width, out);
            return Ok(());
        }
        for (i, (row, parts)) in out.chunks_mut(width.max(1)).zip(&parts).enumerate() {
            row.fill(fill);
            let spans = parts.iter().map(|&part| part_span(data.begin(i), part));
            let marked = std::iter::once(first).chain(spans).chain([last]);
            row.iter_mut().zip(marked).for_each(|(slot, span)| *slot = span);
        }
        Ok(())
    }),
}

operator! {
    name: "text.from_numbers",
    doc: "Numbers in decimal: floats with 8 digits, as C's %g prints them, NaN, INF and -INF; Booleans as 0 and 1.",
    inputs: &["data"],
    relation: |relation| {
        let data = relation.tensor(0)?;
        let bytes = match Dim::product(&data.dims) {
            Some(Dim::Fixed(count)) => byte_dim(relation, count.saturating_mul(NUMBER_WIDTH))?,
            _ => Dim::Any,
        };
        Ok(strings_type(bytes, data.dims.iter().cloned()))
    },
    reference: Some(|_, inputs, outputs| {
        let data = &inputs[0];
        let mut writer = StringWriter::new(outputs)?;
        if data.dtype.is_float() || data.dtype.is_small_float() {
            return data.f64s().try_for_each(|value| writer.push(&[float_text(value).as_bytes()]));
        }
        if data.dtype == DType::U64 {
            return data.as_slice::<u64>().iter().try_for_each(|value| writer.push(&[value.to_string().as_bytes()]));
        }
        let values = data.to_i64s().unwrap_or_default();
        values.into_iter().try_for_each(|value| writer.push(&[value.to_string().as_bytes()]))
    }),
}

/// Formats a number as C's `%.8g` does.
fn float_text(value: f64) -> String {
    const DIGITS: usize = 8;
    if value.is_nan() {
        return "NaN".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "INF" } else { "-INF" }.to_owned();
    }
    let scientific = format!("{value:.*e}", DIGITS - 1);
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let without_zeros = |text: &str| match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text.to_owned(),
    };
    if exponent < -4 || exponent >= DIGITS as i32 {
        let mut text = without_zeros(mantissa);
        let _ = write!(text, "e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.unsigned_abs());
        return text;
    }
    without_zeros(&format!("{value:.*}", (DIGITS as i32 - 1 - exponent).max(0) as usize))
}

/// Number at the beginning of a string, after white space, as C's `strtod` reads it.
fn parse_float(text: &str) -> Option<f64> {
    let text = text.trim_start_matches([' ', '\t', '\n', '\r', '\x0b', '\x0c']);
    let (sign, rest) = match text.as_bytes().first()? {
        b'-' => (-1.0, &text[1..]),
        b'+' => (1.0, &text[1..]),
        _ => (1.0, text),
    };
    let has_prefix = |prefix: &str| rest.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix));
    if has_prefix("inf") {
        return Some(sign * f64::INFINITY);
    }
    if has_prefix("nan") {
        return Some(f64::NAN);
    }
    if has_prefix("0x")
        && let Some(value) = parse_hexadecimal(&rest[2..])
    {
        return Some(sign * value);
    }
    let digits_from = |start: usize| rest[start..].bytes().take_while(u8::is_ascii_digit).count();
    let whole = digits_from(0);
    let mut end = whole;
    if rest[end..].starts_with('.') {
        let fraction = digits_from(end + 1);
        if whole + fraction == 0 {
            return None;
        }
        end += 1 + fraction;
    } else if whole == 0 {
        return None;
    }
    if rest[end..].starts_with(['e', 'E']) {
        let sign_len = usize::from(rest[end + 1..].starts_with(['+', '-']));
        let exponent = digits_from(end + 1 + sign_len);
        end += if exponent == 0 { 0 } else { 1 + sign_len + exponent };
    }
    rest[..end].parse::<f64>().ok().map(|value| sign * value)
}

/// Number in hexadecimal at the beginning of a string, after the prefix.
fn parse_hexadecimal(text: &str) -> Option<f64> {
    let (mut value, mut scale, mut digits, mut end, mut has_point) = (0.0f64, 1.0f64, 0usize, 0usize, false);
    for c in text.chars() {
        match c.to_digit(16) {
            Some(digit) => {
                value = value * 16.0 + f64::from(digit);
                scale *= if has_point { 16.0 } else { 1.0 };
                digits += 1;
            }
            None if c == '.' && !has_point => has_point = true,
            None => break,
        }
        end += 1;
    }
    let exponent = text[end..].strip_prefix(['p', 'P']).and_then(parse_int).unwrap_or(0).clamp(-4096, 4096);
    (digits > 0).then(|| value / scale * 2f64.powi(exponent as i32))
}

/// Integer at the beginning of a string, after white space, as C's `strtoll` reads it.
fn parse_int(text: &str) -> Option<i128> {
    let text = text.trim_start_matches([' ', '\t', '\n', '\r', '\x0b', '\x0c']);
    let sign_len = usize::from(text.starts_with(['+', '-']));
    let digits = text[sign_len..].bytes().take_while(u8::is_ascii_digit).count();
    // More digits are out of range for every type.
    text[..sign_len + digits].parse().ok().filter(|_| (1..=38).contains(&digits))
}

operator! {
    name: "text.to_numbers",
    doc: "The number at the beginning of each string, in decimal. Integers of 64 bits are cast to narrower types.",
    inputs: &["bytes", "spans"],
    attrs: &[AttrDef::new("dtype", AttrKind::DType, Default::Required, "element type of the result")],
    relation: |relation| {
        let spans = spans_type(relation, 0)?;
        let dtype = relation.params.dtype("dtype").filter(|dtype| dtype.bits() >= 8);
        let message = "dtype: expected a type of at least 8 bits";
        let dtype = dtype.ok_or_else(|| relation.error(codes::types::BAD_ATTRIBUTE, message))?;
        Ok(Type::tensor_of(dtype, spans.dims.iter().cloned()))
    },
    reference: Some(|_, inputs, outputs| {
        let data = strings(inputs, 0)?;
        let dtype = outputs[0].dtype;
        for (i, text) in data.iter().enumerate() {
            let text = text.map_err(|reason| reason.to_string())?;
            let error = || {
                let found = crate::escape::line(text);
                format!("element {i}: expected a number of type {dtype}, found \"{found}\"")
            };
            if dtype.is_float() || dtype.is_small_float() {
                write_number(&mut outputs[0], i, parse_float(text).ok_or_else(error)?);
                continue;
            }
            let range = match dtype {
                DType::U8 | DType::U16 | DType::U32 | DType::U64 => -i128::from(u64::MAX)..=i128::from(u64::MAX),
                _ => i128::from(i64::MIN)..=i128::from(i64::MAX),
            };
            let value = parse_int(text).filter(|value| range.contains(value)).ok_or_else(error)?;
            let size = dtype.size();
            let value = if dtype == DType::Bool { i128::from(value != 0) } else { value };
            outputs[0].data[i * size..(i + 1) * size].copy_from_slice(&value.to_le_bytes()[..size]);
        }
        Ok(())
    }),
}

fn write_number(out: &mut TensorViewMut<'_>, i: usize, value: f64) {
    use crate::tensor::Element;
    crate::with_dtype!(out.dtype, T => out.as_mut_slice::<T>()[i] = T::from_f64(value));
}

/// N-grams of a vocabulary.
struct Grams {
    /// Column and weight of each n-gram.
    columns: HashMap<Vec<i64>, (usize, f64)>,
    lengths: BTreeSet<usize>,
}

impl Grams {
    fn new(params: &Params<'_>, pool: &[i64]) -> Result<Grams, ReferenceError> {
        let (starts, columns, weights) = (params.ints("counts"), params.ints("columns"), params.floats("weights"));
        let (min, max) = (params.int("min_length"), params.int("max_length"));
        let mut grams = Grams { columns: HashMap::new(), lengths: BTreeSet::new() };
        let mut number = 0;
        for (i, &start) in starts.iter().enumerate() {
            let length = i + 1;
            let end = starts.get(length).map_or(pool.len() as i64, |&end| end);
            let items = usize::try_from(start).ok().zip(usize::try_from(end).ok());
            let items = items.and_then(|(start, end)| pool.get(start..end));
            let items =
                items.ok_or_else(|| format!("counts: expected ascending positions in the pool, found {starts:?}"))?;
            for gram in items.chunks_exact(length) {
                let column = columns.get(number).and_then(|&column| usize::try_from(column).ok());
                let column = column.ok_or("columns: expected a column for each n-gram of the pool")?;
                let weight = if weights.is_empty() { Some(1.0) } else { weights.get(number).copied() };
                let weight = weight.ok_or("weights: expected a weight for each n-gram of the pool")?;
                if (min..=max).contains(&(length as i64)) {
                    grams.columns.insert(gram.to_vec(), (column, weight));
                    grams.lengths.insert(length);
                }
                number += 1;
            }
        }
        Ok(grams)
    }

    /// Counts the n-grams in a row of items, each item followed by the one after at most `skips` others.
    fn count(&self, items: &[i64], skips: usize, row: &mut [f32]) {
        let mut gram = Vec::new();
        for &length in &self.lengths {
            // An n-gram of one item has no gaps.
            for step in 1..=(if length > 1 { skips } else { 0 }) + 1 {
                for start in 0..items.len().saturating_sub((length - 1) * step) {
                    gram.clear();
                    gram.extend((0..length).map(|k| items[start + k * step]));
                    if let Some((column, _)) = self.columns.get(&gram) {
                        row[*column] += 1.0;
                    }
                }
            }
        }
    }
}

/// Maximum number of items that an n-gram may skip.
const MAX_SKIPS: i64 = 1 << 16;

operator! {
    name: "text.ngrams",
    doc: "The number of occurrences of each n-gram of a vocabulary in each row of items, ONNX's TfIdfVectorizer. \
          The pool has the n-grams of one item, then those of two, and so on.",
    inputs: &["data", "pool"],
    attrs: &[
        AttrDef::new("counts", AttrKind::Ints, Default::Required, "position in the pool of each length's first n-gram"),
        AttrDef::new("columns", AttrKind::Ints, Default::Required, "column of each n-gram in the result"),
        AttrDef::new("weights", AttrKind::Floats, Default::Floats(&[]), "weight of each n-gram; 1 if empty"),
        AttrDef::new("mode", AttrKind::Str, Default::Str("TF"), "TF: counts; IDF: weights of n-grams that occur; TFIDF: both"),
        AttrDef::new("min_length", AttrKind::Int, Default::Int(1), "number of items of the shortest n-grams"),
        AttrDef::new("max_length", AttrKind::Int, Default::Int(1), "number of items of the longest n-grams"),
        AttrDef::new("max_skips", AttrKind::Int, Default::Int(0), "number of items skipped at most between two items"),
    ],
    relation: ngrams_type,
    reference: Some(|params, inputs, outputs| {
        let grams = Grams::new(&params, inputs[1].as_slice())?;
        let mode = params.string("mode");
        let (items, width) = (inputs[0].as_slice::<i64>(), outputs[0].shape.last().copied().unwrap_or(0));
        let row_length = inputs[0].shape.last().copied().unwrap_or(0);
        let mut weights = vec![0f32; width];
        grams.columns.values().for_each(|&(column, weight)| weights[column] = weight as f32);
        let mut ticks = Ticks::every(1);
        for (i, row) in outputs[0].as_mut_slice::<f32>().chunks_mut(width.max(1)).enumerate() {
            if ticks.is_requested() {
                return Ok(());
            }
            row.fill(0.0);
            grams.count(&items[i * row_length..][..row_length], params.int("max_skips") as usize, row);
            for (count, weight) in row.iter_mut().zip(&weights) {
                match &*mode {
                    "IDF" => *count = if *count > 0.0 { *weight } else { 0.0 },
                    "TFIDF" => *count *= weight,
                    _ => {}
                }
            }
        }
        Ok(())
    }),
    flops: |cost| cost.arg_len(0),
}

fn ngrams_type(relation: &Relation<'_>) -> TypeResult {
    let (data, pool) = (relation.tensor(0)?, relation.tensor(1)?);
    if data.dtype != DType::I64 || pool.dtype != DType::I64 || !matches!(data.dims.len(), 1 | 2) || pool.dims.len() != 1
    {
        let [data, pool] = [&relation.args[0], &relation.args[1]];
        return Err(
            relation.mismatch(format!("expected items of rank 1 or 2 and a vector, int64, found {data} and {pool}"))
        );
    }
    let attribute_error = |message: String| relation.error(codes::types::BAD_ATTRIBUTE, message);
    let mode = relation.params.string("mode");
    if !matches!(&*mode, "TF" | "IDF" | "TFIDF") {
        return Err(attribute_error(format!("mode: expected TF, IDF or TFIDF, found \"{mode}\"")));
    }
    let skips = relation.params.int("max_skips");
    if !(0..=MAX_SKIPS).contains(&skips) {
        return Err(attribute_error(format!("max_skips: expected a number from 0 to {MAX_SKIPS}, found {skips}")));
    }
    let columns = relation.params.ints("columns");
    if let Some(column) = columns.iter().find(|column| !(0..=i64::from(i32::MAX)).contains(*column)) {
        return Err(attribute_error(format!("columns: expected columns >= 0, found {column}")));
    }
    if let Some(pool) = relation.known_ints(1) {
        Grams::new(&relation.params, &pool).map_err(attribute_error)?;
    }
    let width = columns.iter().max().map_or(0, |&column| column as usize + 1);
    let rows = data.dims[..data.dims.len() - 1].iter().cloned();
    Ok(Type::tensor_of(DType::F32, rows.chain([Dim::Fixed(width)])))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_floats_as_c_does() {
        let cases = [
            (0.1, "0.1"),
            (1.0, "1"),
            (-0.0, "-0"),
            (123456789.0, "1.2345679e+08"),
            (1e-5, "1e-05"),
            (0.0001, "0.0001"),
            (9.999999999, "10"),
            (99999999.5, "1e+08"),
            (f64::MIN, "-1.7976931e+308"),
            (f64::NAN, "NaN"),
            (f64::NEG_INFINITY, "-INF"),
            (100.0, "100"),
        ];
        for (value, expected) in cases {
            assert_eq!(float_text(value), expected);
            assert!(expected.len() <= NUMBER_WIDTH);
        }
    }

    #[test]
    fn parses_numbers_as_c_does() {
        let cases = [
            ("1.5abc", 1.5),
            (" -.5e1", -5.0),
            ("+2.", 2.0),
            ("3e", 3.0),
            ("Infinity", f64::INFINITY),
            ("7e+", 7.0),
            ("0x1.8p1", 3.0),
        ];
        for (text, expected) in cases {
            assert_eq!(parse_float(text), Some(expected), "{text}");
        }
        for text in ["", "abc", ".", "-", "e5"] {
            assert_eq!(parse_float(text), None, "{text}");
            assert_eq!(parse_int(text), None, "{text}");
        }
        assert_eq!((parse_int("  -12x"), parse_int("+3.7"), parse_int(&"9".repeat(60))), (Some(-12), Some(3), None));
    }

    #[test]
    fn splits_as_python_does() {
        let parts = |text: &str, delimiter: &str, limit: usize| -> Vec<String> {
            split(text, delimiter, limit).into_iter().map(|(start, len)| text[start..start + len].to_owned()).collect()
        };
        assert_eq!(parts("  a b  c ", "", usize::MAX), ["a", "b", "c"]);
        assert_eq!(parts(" a b  c ", "", 1), ["a", "b  c "]);
        assert_eq!(parts("a,,b,", ",", usize::MAX), ["a", "", "b", ""]);
        assert_eq!(parts("a,,b,", ",", 1), ["a", ",b,"]);
        assert!(parts("", ",", usize::MAX).is_empty() && parts("   ", "", usize::MAX).is_empty());
    }

    #[test]
    fn bounds_patterns() {
        assert!(pattern("(a{1000}){1000}").unwrap_err().contains("larger"));
        assert!(pattern("(").unwrap_err().contains("\"(\""));
        assert!(whole_pattern("a)|(b").is_err());
        let is_match = |expression: &str, text: &str| whole_pattern(expression).unwrap().is_match(text);
        assert!(is_match(r"\w+\b\W\d[\s\d]", "a_1 23") && !is_match(r"\w", "é") && is_match(r"[^\d\W]", "x"));
        assert!(is_match("a|ab", "ab") && !is_match("a", "ab") && !is_match("a", "a\n") && is_match("", ""));
    }
}
