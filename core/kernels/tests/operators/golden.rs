//! Tests the naive references against recorded results of ONNX Runtime and numpy (`tests/golden/nn.txt`).
//!
//! A case names an operator, its attributes, its inputs and the expected output. Inputs are not stored: element i of an
//! input with seed s is `(37 * i + 101 * s + 13 * (i / 5)) % 23 - 11`, divided by 8 for floating-point types (exact in
//! all of them); `abs` takes the absolute value and adds 1/4; uint8 adds 11.

use super::call;
use byoc_ir::ir::{AttrValue, Attrs};
use byoc_ir::op::Value;
use byoc_ir::tensor::{DType, Tensor};

const CASES: &str = include_str!("../golden/nn.txt");

#[test]
fn references_agree_with_recorded_results() {
    let mut failures = Vec::new();
    let cases: Vec<&str> = CASES.split("case ").skip(1).collect();
    assert!(cases.len() > 60, "expected more than 60 cases, found {}", cases.len());
    for text in cases {
        if let Err(error) = check(text) {
            failures.push(format!("{}: {error}", text.lines().next().unwrap_or_default()));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

fn check(text: &str) -> Result<(), String> {
    let (mut op, mut attrs, mut args, mut expected, mut shape) = ("", Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut dtype = DType::F32;
    for line in text.lines().skip(1) {
        let (word, rest) =
            line.split_once(' ').ok_or_else(|| format!("expected a keyword and its arguments, found \"{line}\""))?;
        match word {
            "op" => op = rest,
            "attr" => {
                let (key, value) =
                    rest.split_once(" = ").ok_or_else(|| format!("attr: expected KEY = VALUE, found \"{rest}\""))?;
                attrs.push((key, attribute(value)));
            }
            "in" => args.push(Value::Tensor(input(rest))),
            "out" => {
                let (name, dims) = rest
                    .split_once(' ')
                    .ok_or_else(|| format!("out: expected an element type and a shape, found \"{rest}\""))?;
                dtype = DType::parse(name).ok_or_else(|| format!("out: expected an element type, found \"{name}\""))?;
                shape = numbers(dims);
            }
            _ => expected.extend(line.split_whitespace().map(|v| v.parse::<f64>().expect("expected a number"))),
        }
    }
    let actual = call(op, &Attrs::new(attrs), &args)?.swap_remove(0);
    if actual.shape() != shape || actual.dtype() != dtype {
        return Err(format!(
            "expected {dtype} of shape {shape:?}, found {} of shape {:?}",
            actual.dtype(),
            actual.shape()
        ));
    }
    let actual = actual.view().to_f64s();
    let largest = expected.iter().fold(0.0f64, |m, v| m.max(v.abs()));
    let tolerance = if dtype.is_float() { 2e-6 * largest } else { 0.0 };
    for (i, (g, w)) in actual.iter().zip(&expected).enumerate() {
        // Negating `<=`, rather than testing `>`, also rejects NaN.
        let is_close = (g - w).abs() <= tolerance;
        if !is_close {
            return Err(format!("element {i}: expected {w}, found {g}"));
        }
    }
    Ok(())
}

fn numbers(text: &str) -> Vec<usize> {
    let inner = text.trim_matches(['[', ']']);
    inner.split(',').filter(|d| !d.is_empty()).map(|d| d.trim().parse().expect("expected a number")).collect()
}

fn input(text: &str) -> Tensor {
    let fields: Vec<&str> = text.split(' ').collect();
    let (shape, seed) = (numbers(fields[1]), fields[2].parse::<usize>().expect("expected a number"));
    let count: usize = shape.iter().product();
    let integers = (0..count).map(|i| ((i * 37 + seed * 101 + i / 5 * 13) % 23) as i64 - 11);
    match fields[0] {
        "float32" => {
            let is_positive = fields.len() > 3;
            let values = integers.map(|v| v as f32 / 8.0).map(|v| if is_positive { v.abs() + 0.25 } else { v });
            Tensor::from_slice(&shape, &values.collect::<Vec<_>>())
        }
        "int8" => Tensor::from_slice(&shape, &integers.map(|v| v as i8).collect::<Vec<_>>()),
        "uint8" => Tensor::from_slice(&shape, &integers.map(|v| (v + 11) as u8).collect::<Vec<_>>()),
        other => panic!("expected an input of type float32, int8 or uint8, found {other}"),
    }
}

/// Parses an attribute value: `True`, `"text"`, `1`, `0.5`, `[1, 2]`, `[[0, 1], [2, 3]]`.
fn attribute(text: &str) -> AttrValue {
    match text {
        "True" => AttrValue::Bool(true),
        "False" => AttrValue::Bool(false),
        _ if text.starts_with('"') => AttrValue::from(text.trim_matches('"')),
        _ if text.starts_with("[[") => {
            let pairs = text[1..text.len() - 1].split("], ").map(attribute);
            AttrValue::List(pairs.collect())
        }
        _ if text.starts_with('[') => {
            AttrValue::ints(text.trim_matches(['[', ']']).split(", ").map(|v| v.parse().expect("expected an integer")))
        }
        _ => text.parse().map_or_else(|_| AttrValue::Float(text.parse().expect("expected a number")), AttrValue::Int),
    }
}
