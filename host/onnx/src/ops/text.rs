//! Operators on strings.

use super::sequence::unite;
use super::{Node, Outputs, Result, Row, attrs, single_output};
use crate::state::Error;
use byoc_ir::diag::codes;
use byoc_ir::ir::{AttrValue, ExprId};
use byoc_ir::op::text::{pattern, whole_pattern};
use byoc_ir::tensor::DType;

pub const ROWS: &[Row] = &[
    ("RegexFullMatch", 20, regex_full_match),
    ("StringConcat", 20, string_concat),
    ("StringNormalizer", 10, string_normalizer),
    ("StringSplit", 20, string_split),
    ("TfIdfVectorizer", 9, tf_idf_vectorizer),
];

pub const CONTRIB_ROWS: &[Row] = &[("Tokenizer", 1, tokenizer)];

fn misuse(n: &Node<'_, '_>, message: String) -> Error {
    Box::new(n.error(codes::frontends::STRING_MISUSE, message))
}

/// Returns the position of each string of input `i` among the keys, and -1 for strings that are no key.
pub(super) fn lookup(n: &mut Node<'_, '_>, strings: [ExprId; 2], keys: ExprId) -> Result<ExprId> {
    lookup_of(n, strings, keys, false)
}

/// Same as [`lookup`], where strings that are no key are errors if `is_required` is true.
pub(super) fn lookup_of(
    n: &mut Node<'_, '_>,
    [bytes, spans]: [ExprId; 2],
    keys: ExprId,
    is_required: bool,
) -> Result<ExprId> {
    let key_bytes = bytes_of(n, keys)?;
    n.op("text.lookup", &[bytes, spans, key_bytes, keys], attrs![is_required: is_required])
}

/// Returns the bytes of strings that a converter created.
fn bytes_of(n: &mut Node<'_, '_>, strings: ExprId) -> Result<ExprId> {
    n.string_bytes(strings).ok_or_else(|| misuse(n, format!("expected strings, found {}", n.value_type(strings))))
}

/// Replaces elements by default strings where `is_known` is false.
pub(super) fn or_default(n: &mut Node<'_, '_>, is_known: ExprId, strings: ExprId, default: ExprId) -> Result<ExprId> {
    let mut values = [strings, default];
    let bytes = unite(n, &mut values)?;
    let default = n.reshape(values[1], &[])?;
    let spans = n.op_without_attrs("where", &[is_known, values[0], default])?;
    Ok(n.with_bytes(spans, bytes))
}

/// Returns a result of two fields, bytes and spans, as strings.
fn strings_of(n: &mut Node<'_, '_>, result: ExprId) -> Result<ExprId> {
    let (bytes, spans) = (n.project(result, 0)?, n.project(result, 1)?);
    Ok(n.with_bytes(spans, bytes))
}

pub(super) fn equal(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let ([a_bytes, a], [b_bytes, b]) = (n.strings(0)?, n.strings(1)?);
    single_output(n.op_without_attrs("text.equal", &[a_bytes, a, b_bytes, b])?)
}

/// Casts input 0, which is a tensor of numbers or of strings, to strings.
pub(super) fn to_strings(n: &mut Node<'_, '_>) -> Result<ExprId> {
    let x = n.input(0)?;
    if n.has_strings(x) {
        return Ok(n.forward(x));
    }
    let strings = n.op_without_attrs("text.from_numbers", &[x])?;
    strings_of(n, strings)
}

/// Casts the strings of input 0 to numbers.
pub(super) fn to_numbers(n: &mut Node<'_, '_>, dtype: DType) -> Result<ExprId> {
    let [bytes, spans] = n.strings(0)?;
    n.op("text.to_numbers", &[bytes, spans], attrs![dtype: dtype])
}

pub(super) fn string_concat(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let ([a_bytes, a], [b_bytes, b]) = (n.strings(0)?, n.strings(1)?);
    let strings = n.op_without_attrs("text.concatenate", &[a_bytes, a, b_bytes, b])?;
    single_output(strings_of(n, strings)?)
}

pub(super) fn string_split(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let [bytes, spans] = n.strings(0)?;
    let delimiter = n.str_attr("delimiter", "")?;
    let mut attributes = attrs![delimiter: delimiter.as_str()];
    if n.has("maxsplit") {
        attributes = attributes.with("maxsplit", n.int_attr("maxsplit", 0)?);
    }
    let parts = n.op("text.split", &[bytes, spans], attributes)?;
    let (spans, counts) = (n.project(parts, 0)?, n.project(parts, 1)?);
    Ok(vec![n.with_bytes(spans, bytes), counts])
}

fn check_pattern<T>(n: &Node<'_, '_>, attribute: &str, checked: std::result::Result<T, String>) -> Result<()> {
    let message = |reason| format!("attribute {attribute}: {reason}");
    checked.map(drop).map_err(|reason| Box::new(n.error(codes::frontends::BAD_PATTERN, message(reason))))
}

pub(super) fn regex_full_match(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let [bytes, spans] = n.strings(0)?;
    let expression = n.str_attr("pattern", "")?;
    check_pattern(n, "pattern", whole_pattern(&expression))?;
    single_output(n.op("text.match", &[bytes, spans], attrs![pattern: expression.as_str()])?)
}

/// Changes the case of strings.
fn change_case(n: &mut Node<'_, '_>, strings: ExprId, action: &str) -> Result<ExprId> {
    let bytes = bytes_of(n, strings)?;
    let changed = n.op("text.case", &[bytes, strings], attrs![action: action])?;
    strings_of(n, changed)
}

pub(super) fn string_normalizer(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let [_, data] = n.strings(0)?;
    let action = match n.str_attr("case_change_action", "NONE")?.as_str() {
        "NONE" => None,
        "LOWER" => Some("lower"),
        "UPPER" => Some("upper"),
        other => {
            let message = format!("attribute case_change_action: expected NONE, LOWER or UPPER, found \"{other}\"");
            return Err(n.invalid_node(message));
        }
    };
    let is_case_sensitive = n.int_attr("is_case_sensitive", 0)? != 0;
    let stop_words = n.strings_attr("stopwords")?.unwrap_or_default();
    let dims = n.dims(data)?;
    let is_row = dims.len() == 2;
    if !(dims.len() == 1 || is_row && dims[0].fixed().is_none_or(|rows| rows == 1)) {
        return Err(n.invalid_node(format!("expected strings of shape [C] or [1, C], found {}", n.ty(data)?)));
    }
    let bytes = bytes_of(n, data)?;
    let vector = if is_row { n.op("squeeze", &[data], attrs![axis: [0i64]])? } else { data };
    let mut strings = n.with_bytes(vector, bytes);
    if !stop_words.is_empty() {
        let keys = n.string_tensor(&[stop_words.len()], &stop_words)?;
        // The case in which words are compared is that of the result.
        let fold = if action == Some("upper") { "upper" } else { "lower" };
        let [keys, words] = match is_case_sensitive {
            true => [keys, strings],
            false => [change_case(n, keys, fold)?, change_case(n, strings, fold)?],
        };
        let word_bytes = bytes_of(n, words)?;
        let position = lookup(n, [word_bytes, words], keys)?;
        let is_kept = n.with_scalar("less", position, 0.0)?;
        let spans = n.op_without_attrs("text.keep", &[strings, is_kept])?;
        strings = n.with_bytes(spans, bytes);
    }
    if let Some(action) = action {
        strings = change_case(n, strings, action)?;
    }
    if !is_row {
        return single_output(strings);
    }
    let bytes = bytes_of(n, strings)?;
    let spans = n.op("expand_dims", &[strings], attrs![axis: 0])?;
    single_output(n.with_bytes(spans, bytes))
}

pub(super) fn tokenizer(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let [_, data] = n.strings(0)?;
    let rank = n.rank(data)?;
    if !(1..=2).contains(&rank) {
        return Err(n.invalid_node(format!("expected strings of rank 1 or 2, found {}", n.ty(data)?)));
    }
    let expression = n.str_attr("tokenexp", "")?;
    let separators = n.strings_attr("separators")?.unwrap_or_default();
    if expression.is_empty() {
        separators.iter().try_for_each(|separator| check_pattern(n, "separators", pattern(separator)))?;
    } else {
        check_pattern(n, "tokenexp", pattern(&expression))?;
    }
    let separators = n.string_tensor(&[separators.len()], &separators)?;
    let separator_bytes = bytes_of(n, separators)?;
    // The marks of the operator: the control characters for the start and the end of a text.
    let marks = n.string_tensor(&[3], &[n.str_attr("pad_value", "")?.as_str(), "\x02", "\x03"])?;
    let mut values = [data, marks];
    let bytes = unite(n, &mut values)?;
    let attributes = attrs![
        tokenexp: expression.as_str(),
        min_chars: n.int_attr("mincharnum", 1)?,
        mark: n.int_attr("mark", 0)? != 0,
    ];
    let arguments = [bytes, values[0], separator_bytes, separators, values[1]];
    let tokens = n.op("text.tokenize", &arguments, attributes)?;
    single_output(n.with_bytes(tokens, bytes))
}

pub(super) fn tf_idf_vectorizer(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let data = n.input(0)?;
    let words = n.strings_attr("pool_strings")?.filter(|words| !words.is_empty());
    let (items, pool) = if n.has_strings(data) || words.is_some() {
        let strings = n.strings(0)?;
        let Some(words) = words else {
            return Err(misuse(n, "expected numbers as in the attribute pool_int64s, found strings".into()));
        };
        let keys = n.string_tensor(&[words.len()], &words)?;
        let key_bytes = bytes_of(n, keys)?;
        (lookup(n, strings, keys)?, lookup(n, [key_bytes, keys], keys)?)
    } else {
        let pool = n.ints_attr("pool_int64s")?.unwrap_or_default();
        (n.cast(data, DType::I64)?, n.vector(&pool))
    };
    let weights = n.floats_attr("weights")?.unwrap_or_default();
    let attributes = attrs![
        counts: AttrValue::ints(n.ints_attr("ngram_counts")?.unwrap_or_default()),
        columns: AttrValue::ints(n.ints_attr("ngram_indexes")?.unwrap_or_default()),
        weights: AttrValue::List(weights.into_iter().map(AttrValue::Float).collect()),
        mode: n.str_attr("mode", "TF")?.as_str(),
        min_length: n.int_attr("min_gram_length", 1)?,
        max_length: n.int_attr("max_gram_length", 1)?,
        max_skips: n.int_attr("max_skip_count", 0)?,
    ];
    single_output(n.op("text.ngrams", &[items, pool], attributes)?)
}
