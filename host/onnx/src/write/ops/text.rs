//! Operators on strings, which have the bytes and the spans of a value as two arguments.

use super::super::call::{Call, Outputs, int_vector, scalar};
use super::super::proto_parts::{floats, int, ints, string, strings};
use super::super::values::{Operand, Strings};
use super::super::writer::{Refusal, Result};
use super::{Row, single};
use crate::tensor::{STRING, type_number};
use byoc_ir::tensor::DType;
use std::collections::HashSet;
use std::rc::Rc;

pub const ROWS: &[Row] = &[
    ("text.case", |c| {
        if c.rank(1)? != 1 {
            return Err(Refusal::new("strings of another rank than 1"));
        }
        let (x, action) = (c.arg(1)?, c.params.string("action").to_uppercase());
        let result =
            c.node("StringNormalizer", &[x], vec![string("case_change_action", &action), string("locale", "C.UTF-8")]);
        pair(c, result)
    }),
    ("text.concatenate", |c| {
        c.since(20, "StringConcat")?;
        let (a, b) = (c.arg(1)?, c.arg(3)?);
        let result = c.apply("StringConcat", &[&a, &b]);
        pair(c, result)
    }),
    ("text.equal", |c| {
        c.since(19, "Equal of strings")?;
        let (a, b) = (c.arg(1)?, c.arg(3)?);
        single(c.apply("Equal", &[&a, &b]))
    }),
    ("text.from_numbers", |c| {
        let x = c.arg(0)?;
        let result = c.node("Cast", &[x], vec![int("to", STRING.into())]);
        pair(c, result)
    }),
    ("text.keep", keep),
    ("text.lookup", lookup),
    ("text.match", |c| {
        c.since(20, "RegexFullMatch")?;
        let (x, pattern) = (c.arg(1)?, c.params.string("pattern"));
        single(c.node("RegexFullMatch", &[x], vec![string("pattern", &pattern)]))
    }),
    ("text.ngrams", ngrams),
    ("text.split", |c| {
        c.since(20, "StringSplit")?;
        let x = c.arg(1)?;
        let mut attrs = vec![string("delimiter", &c.params.string("delimiter"))];
        attrs.extend(c.params.opt_int("maxsplit").map(|count| int("maxsplit", count)));
        let outputs = c.nodes("StringSplit", &[x], attrs, 2);
        c.w.mark_strings(&outputs[..1]);
        Ok(outputs)
    }),
    ("text.to_numbers", |c| {
        let (x, dtype) = (c.arg(1)?, c.result()?.dtype);
        single(c.node("Cast", &[x], vec![int("to", type_number(dtype).into())]))
    }),
];

/// Returns strings as a result of two fields, of which the first are the bytes.
fn pair(c: &mut Call<'_, '_>, strings: Operand) -> Result<Outputs> {
    c.w.mark_strings([&strings]);
    Ok(vec![Operand::Bytes, strings])
}

/// Writes the kept strings of a vector; an empty string if there is none.
fn keep(c: &mut Call<'_, '_>) -> Result<Outputs> {
    let (x, is_kept) = (c.arg(0)?, c.arg(1)?);
    let kept = c.node("Compress", &[x, is_kept.clone()], vec![int("axis", 0)]);
    let empty = Operand::Strings(Rc::new(Strings { shape: vec![1], values: vec![Default::default()] }));
    let extended = c.concat(&[kept, empty], 0);
    let flags = c.cast(&is_kept, DType::Bool, DType::I64)?;
    let count = c.node("ReduceSum", &[flags, int_vector(&[0])], vec![int("keepdims", 1)]);
    let end = c.apply("Max", &[&count, &scalar(DType::I64, 1.0)]);
    let end = c.reshape(&end, &[1])?;
    single(c.node("Slice", &[extended, int_vector(&[0]), end, int_vector(&[0])], Vec::new()))
}

/// Writes the positions of strings among constant keys, the first one of equal keys.
fn lookup(c: &mut Call<'_, '_>) -> Result<Outputs> {
    let x = c.arg(1)?;
    let Operand::Strings(keys) = c.arg(3)? else { return Err(Refusal::new("keys that are computed")) };
    let mut seen = HashSet::new();
    let positions = keys.values.iter().enumerate().filter(|(_, key)| seen.insert(&key[..]));
    let (positions, keys): (Vec<i64>, Vec<_>) = positions.map(|(i, key)| (i as i64, key.clone())).unzip();
    let attrs = vec![int("default_int64", -1), strings("keys_strings", keys), ints("values_int64s", &positions)];
    c.domain = "ai.onnx.ml";
    let result = c.node("LabelEncoder", &[x], attrs);
    c.domain = "";
    single(result)
}

fn ngrams(c: &mut Call<'_, '_>) -> Result<Outputs> {
    let pool = c.known_ints(1).ok_or_else(|| Refusal::new("a pool that is computed"))?;
    let x = c.arg(0)?;
    let mut attrs = vec![
        string("mode", &c.params.string("mode")),
        int("min_gram_length", c.params.int("min_length")),
        int("max_gram_length", c.params.int("max_length")),
        int("max_skip_count", c.params.int("max_skips")),
        ints("ngram_counts", &c.params.ints("counts")),
        ints("ngram_indexes", &c.params.ints("columns")),
        ints("pool_int64s", &pool),
    ];
    let weights = c.params.floats("weights");
    if !weights.is_empty() {
        attrs.push(floats("weights", &weights));
    }
    single(c.node("TfIdfVectorizer", &[x], attrs))
}
