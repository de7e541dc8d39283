//! Tests the naive references against recorded results of ONNX Runtime and numpy (`tests/golden/nn.txt`), and of numpy alone
//! (`tests/golden/relay.txt`, written by `relay.py` beside it).
//!
//! A case names an operator, its attributes, its inputs and the expected outputs. An `arg` has its elements below; those
//! between `tuple` and `end` are the fields of one argument. The elements of an `in` are not stored: element i of an
//! input with seed s is `(37 * i + 101 * s + 13 * (i / 5)) % 23 - 11`, divided by 8 for floating-point types (exact in
//! all of them); `abs` takes the absolute value and adds 1/4; uint8 adds 11.

use super::call;
use byoc_ir::ir::{AttrValue, Attrs};
use byoc_ir::op::Value;
use byoc_ir::tensor::{DType, Tensor};

#[test]
fn references_agree_with_recorded_results() {
    check_all(include_str!("../golden/nn.txt"), 60);
}

#[test]
fn references_of_relay_agree_with_numpy() {
    check_all(include_str!("../golden/relay.txt"), 100);
}

fn check_all(file: &str, least: usize) {
    let mut failures = Vec::new();
    let cases: Vec<&str> = file.split("case ").skip(1).collect();
    assert!(cases.len() > least, "expected more than {least} cases, found {}", cases.len());
    for text in cases {
        if let Err(error) = check(text) {
            failures.push(format!("{}: {error}", text.lines().next().unwrap_or_default()));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Tensor of a case, with its elements.
struct Recorded {
    dtype: DType,
    shape: Vec<usize>,
    elements: Vec<f64>,
    /// Elements of 64 bits, which not every binary64 number can hold.
    words: Vec<i128>,
}

impl Recorded {
    fn new(text: &str) -> Result<Recorded, String> {
        let (name, dims) =
            text.split_once(' ').ok_or_else(|| format!("expected an element type and a shape, found \"{text}\""))?;
        let dtype = DType::parse(name).ok_or_else(|| format!("expected an element type, found \"{name}\""))?;
        Ok(Recorded { dtype, shape: numbers(dims), elements: Vec::new(), words: Vec::new() })
    }

    fn extend(&mut self, line: &str) {
        for word in line.split_whitespace() {
            self.elements.push(word.parse().expect("expected a number"));
            self.words.extend(word.parse::<i128>());
        }
    }

    fn tensor(&self) -> Tensor {
        macro_rules! tensor {
            ($source:ident as $ty:ty) => {
                Tensor::from_slice(&self.shape, &self.$source.iter().map(|&v| v as $ty).collect::<Vec<_>>())
            };
        }
        match self.dtype {
            DType::F32 => tensor!(elements as f32),
            DType::F64 => tensor!(elements as f64),
            DType::I8 => tensor!(words as i8),
            DType::U8 => tensor!(words as u8),
            DType::I32 => tensor!(words as i32),
            DType::I64 => tensor!(words as i64),
            DType::U64 => tensor!(words as u64),
            other => panic!("arg: expected another element type, found {other}"),
        }
    }

    fn compare(&self, actual: &Tensor) -> Result<(), String> {
        if actual.shape() != self.shape || actual.dtype() != self.dtype {
            let (dtype, shape) = (actual.dtype(), actual.shape());
            return Err(format!("expected {} of shape {:?}, found {dtype} of shape {shape:?}", self.dtype, self.shape));
        }
        if self.dtype == DType::U64 {
            let actual: Vec<i128> = actual.as_slice::<u64>().iter().map(|&word| i128::from(word)).collect();
            return if actual == self.words {
                Ok(())
            } else {
                Err(format!("expected {:?}, found {actual:?}", self.words))
            };
        }
        let largest = self.elements.iter().fold(0.0f64, |m, v| m.max(v.abs()));
        let tolerance = if self.dtype.is_float() { 2e-6 * largest } else { 0.0 };
        for (i, (g, w)) in actual.view().to_f64s().iter().zip(&self.elements).enumerate() {
            // Negating `<=`, rather than testing `>`, also rejects NaN.
            let is_close = (g - w).abs() <= tolerance;
            if !is_close {
                return Err(format!("element {i}: expected {w}, found {g}"));
            }
        }
        Ok(())
    }
}

/// Part of a case to which lines of elements belong.
enum Part {
    Argument,
    Output,
}

fn check(text: &str) -> Result<(), String> {
    let (mut op, mut attrs, mut args) = ("", Vec::new(), Vec::new());
    let (mut fields, mut outputs): (Vec<Recorded>, Vec<Recorded>) = (Vec::new(), Vec::new());
    let (mut is_tuple, mut part) = (false, Part::Argument);
    let flush = |fields: &mut Vec<Recorded>, is_tuple: bool, args: &mut Vec<Value>| {
        let tensors: Vec<Tensor> = fields.drain(..).map(|field| field.tensor()).collect();
        match is_tuple {
            true => args.push(Value::Tuple(tensors)),
            false => args.extend(tensors.into_iter().map(Value::Tensor)),
        }
    };
    for line in text.lines().skip(1) {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        match word {
            "op" => op = rest,
            "attr" => {
                let (key, value) =
                    rest.split_once(" = ").ok_or_else(|| format!("attr: expected KEY = VALUE, found \"{rest}\""))?;
                attrs.push((key, attribute(value)));
            }
            "in" => args.push(Value::Tensor(input(rest))),
            "tuple" | "end" => {
                flush(&mut fields, word == "end", &mut args);
                is_tuple = word == "tuple";
            }
            "arg" => {
                if !is_tuple {
                    flush(&mut fields, false, &mut args);
                }
                part = Part::Argument;
                fields.push(Recorded::new(rest)?);
            }
            "out" => {
                flush(&mut fields, false, &mut args);
                part = Part::Output;
                outputs.push(Recorded::new(rest)?);
            }
            _ => {
                let recorded = match part {
                    Part::Argument => fields.last_mut(),
                    Part::Output => outputs.last_mut(),
                };
                recorded.ok_or_else(|| format!("expected a keyword, found \"{line}\""))?.extend(line);
            }
        }
    }
    let actual = call(op, &Attrs::new(attrs), &args)?;
    if actual.len() < outputs.len() || outputs.is_empty() {
        return Err(format!("expected {} results, found {}", outputs.len(), actual.len()));
    }
    outputs.iter().zip(&actual).try_for_each(|(expected, actual)| expected.compare(actual))
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
            let items = text.trim_matches(['[', ']']).split(", ").filter(|item| !item.is_empty());
            AttrValue::List(items.map(attribute).collect())
        }
        _ => text.parse().map_or_else(|_| AttrValue::Float(text.parse().expect("expected a number")), AttrValue::Int),
    }
}
