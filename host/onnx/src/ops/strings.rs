//! Operators whose operands have strings.
//!
//! A tensor of strings is the tensor of its spans, whose bytes the conversion records ([`byoc_ir::tensor::strings`]). An
//! operator that moves elements is therefore the same one on the spans, after its operands got the same bytes. All other
//! operators have a converter for strings in [`STRING_ROWS`], or accept none.

use super::sequence::unite;
use super::{Convert, Node, Outputs, Result, control, elementwise, ml, select, sequence, shape, text};
use byoc_ir::diag::codes;

/// Converters that accept strings.
const STRING_ROWS: &[(&str, Convert)] = &[
    ("Cast", elementwise::cast),
    ("CastLike", elementwise::cast_like),
    ("CategoryMapper", ml::category_mapper),
    ("Equal", text::equal),
    ("LabelEncoder", ml::label_encoder),
    ("Loop", control::repeat),
    ("OneHotEncoder", ml::one_hot_encoder),
    ("OptionalHasElement", sequence::has_element),
    ("RegexFullMatch", text::regex_full_match),
    ("SequenceLength", sequence::sequence_length),
    ("SequenceMap", sequence::sequence_map),
    ("Shape", shape::shape),
    ("Size", shape::size),
    ("StringConcat", text::string_concat),
    ("StringNormalizer", text::string_normalizer),
    ("StringSplit", text::string_split),
    ("TfIdfVectorizer", text::tf_idf_vectorizer),
    ("Tokenizer", text::tokenizer),
    ("Unique", select::unique),
];

/// Inputs whose elements an operator moves to its results.
enum Moved {
    All,
    These(&'static [usize]),
}

/// Operators that move elements.
const MOVES: &[(&str, Moved)] = &[
    ("ArrayFeatureExtractor", Moved::These(&[0])),
    ("Compress", Moved::These(&[0])),
    ("Concat", Moved::All),
    ("ConcatFromSequence", Moved::These(&[0])),
    ("DepthToSpace", Moved::These(&[0])),
    ("Expand", Moved::These(&[0])),
    ("Flatten", Moved::These(&[0])),
    ("Gather", Moved::These(&[0])),
    ("GatherElements", Moved::These(&[0])),
    ("GatherND", Moved::These(&[0])),
    ("Identity", Moved::These(&[0])),
    ("Optional", Moved::These(&[0])),
    ("OptionalGetElement", Moved::These(&[0])),
    ("Pad", Moved::These(&[0, 2])),
    ("Reshape", Moved::These(&[0])),
    ("ReverseSequence", Moved::These(&[0])),
    ("Scatter", Moved::These(&[0, 2])),
    ("ScatterElements", Moved::These(&[0, 2])),
    ("ScatterND", Moved::These(&[0, 2])),
    ("SequenceAt", Moved::These(&[0])),
    ("SequenceConstruct", Moved::All),
    ("SequenceErase", Moved::These(&[0])),
    ("SequenceInsert", Moved::These(&[0, 1])),
    ("Slice", Moved::These(&[0])),
    ("SpaceToDepth", Moved::These(&[0])),
    ("Split", Moved::These(&[0])),
    ("SplitToSequence", Moved::These(&[0])),
    ("Squeeze", Moved::These(&[0])),
    ("Tile", Moved::These(&[0])),
    ("Transpose", Moved::These(&[0])),
    ("Unsqueeze", Moved::These(&[0])),
    ("Where", Moved::These(&[1, 2])),
];

/// Returns the converter of an operator for strings, if it has one of its own.
pub fn converter(op: &str) -> Option<Convert> {
    STRING_ROWS.iter().find(|(name, _)| *name == op).map(|(_, convert)| *convert)
}

/// Converts a node that reads strings.
///
/// # Errors
/// E0524 if its operator does not accept strings, or not in this input.
pub fn convert(n: &mut Node<'_, '_>, op: &str, convert: Convert) -> Result<Outputs> {
    if converter(op).is_some() {
        return convert(n);
    }
    let moved = MOVES.iter().find(|(name, _)| *name == op).map(|(_, moved)| moved);
    let is_moved = |i: usize| match moved {
        Some(Moved::All) => true,
        Some(Moved::These(inputs)) => inputs.contains(&i),
        None => false,
    };
    let (mut inputs, mut values) = (Vec::new(), Vec::new());
    for i in 0..n.input_count() {
        let Some(value) = n.optional_input(i) else { continue };
        if is_moved(i) {
            inputs.push(i);
            values.push(value);
        } else if n.has_strings(value) {
            let message = format!("input {i}: expected numbers, found strings");
            return Err(Box::new(n.error(codes::frontends::STRING_MISUSE, message)));
        }
    }
    let bytes = unite(n, &mut values)?;
    inputs.into_iter().zip(values).for_each(|(i, value)| n.replace_input(i, value));
    let outputs = convert(n)?;
    Ok(outputs.into_iter().map(|output| n.with_bytes(output, bytes)).collect())
}
