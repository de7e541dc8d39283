//! Programs in TVM's notation (`tests/relay/programs`): each is read, printed and read again, compiled for the host, and run on
//! the inputs in its first lines; the outputs are compared with those there, which NumPy computed.

use crate::support;
use byoc::{CompileOptions, DType, Model, Session, Tensor};
use byoc_core::analysis::structural_equal;
use byoc_ir::text::{ParseOptions, PrintOptions, parse, print};
use std::path::PathBuf;

/// Reads `int32 (2, 3): 1 2 3 4 5 6`.
fn tensor(text: &str) -> Tensor {
    let (ty, elements) =
        text.split_once(':').unwrap_or_else(|| panic!("expected TYPE (SHAPE): ELEMENTS, found {text}"));
    let (name, dims) = ty.trim().split_once(' ').unwrap_or((ty.trim(), "()"));
    let dims = dims.trim_matches(['(', ')']).split(',').map(str::trim).filter(|dim| !dim.is_empty());
    let shape: Vec<usize> = dims.map(|dim| dim.parse().unwrap()).collect();
    macro_rules! of {
        ($ty:ty) => {
            Tensor::from_slice(&shape, &elements.split_whitespace().map(|v| v.parse().unwrap()).collect::<Vec<$ty>>())
        };
    }
    match DType::parse(name) {
        Some(DType::F32) => of!(f32),
        Some(DType::I32) => of!(i32),
        Some(DType::I64) => of!(i64),
        Some(DType::Bool) => {
            let elements: Vec<bool> = elements.split_whitespace().map(|v| v.parse().unwrap()).collect();
            Tensor::from_bools(&shape, &elements)
        }
        other => panic!("expected float32, int32, int64 or bool, found {other:?} in {text}"),
    }
}

fn check_round_trip(text: &str) -> Result<(), String> {
    let read = |text: &str| {
        let parsed = parse(text, &ParseOptions::default());
        match parsed.diagnostics.first() {
            None => Ok(parsed.module),
            Some(diagnostic) => Err(format!("{diagnostic}\nin\n{text}")),
        }
    };
    let module = read(text)?;
    let printed = print(&module, &PrintOptions::default()).text;
    let reread = read(&printed)?;
    structural_equal(&module, &reread).map_err(|difference| difference.to_string())?;
    let reprinted = print(&reread, &PrintOptions::default()).text;
    if printed == reprinted {
        Ok(())
    } else {
        Err(format!("expected the same text twice, found\n{printed}\n{reprinted}"))
    }
}

fn check(session: &Session, path: &PathBuf) -> Result<(), String> {
    let text = std::fs::read_to_string(path).unwrap();
    check_round_trip(&text)?;
    let model = Model::compile(session, path, &CompileOptions::new()).map_err(|error| error.to_string())?;
    let lines = |word: &'static str| text.lines().filter_map(move |line| line.strip_prefix(word));
    let inputs: Vec<(String, Tensor)> = lines("// input ")
        .map(|line| line.split_once(": ").unwrap_or((line, "")))
        .map(|(name, value)| (name.to_owned(), tensor(value)))
        .collect();
    let names: Vec<&str> = model.inputs().iter().map(|port| &*port.name).collect();
    if names != inputs.iter().map(|(name, _)| name).collect::<Vec<_>>() {
        return Err(format!("expected the inputs {names:?}"));
    }
    let values: Vec<Tensor> = inputs.into_iter().map(|(_, value)| value).collect();
    let outputs = model.run(&values[..]).map_err(|error| error.to_string())?;
    let expected: Vec<Tensor> = lines("// output: ").map(tensor).collect();
    let actual: Vec<&Tensor> = outputs.iter().map(|(_, tensor)| tensor).collect();
    if actual.len() != expected.len() {
        return Err(format!("expected {} outputs, found {}", expected.len(), actual.len()));
    }
    for (i, (actual, expected)) in actual.into_iter().zip(&expected).enumerate() {
        let is_close = |(a, b): (f64, f64)| (a - b).abs() <= 1e-5 * b.abs();
        let same_type = actual.dtype() == expected.dtype() && actual.shape() == expected.shape();
        let (x, y) = (actual.view().to_f64s(), expected.view().to_f64s());
        if !same_type || !x.into_iter().zip(y).all(is_close) {
            return Err(format!("output {i}: expected {expected:?}, found {actual:?}"));
        }
    }
    Ok(())
}

#[test]
fn programs_round_trip_and_run() {
    let mut paths: Vec<PathBuf> =
        std::fs::read_dir(support::test_data("relay/programs")).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(paths.len() >= 50, "expected at least 50 programs, found {}", paths.len());
    let session = Session::without_plugins(1).unwrap();
    let faults: Vec<String> = paths
        .iter()
        .filter_map(|path| check(&session, path).err().map(|error| format!("{}: {error}", path.display())))
        .collect();
    assert!(faults.is_empty(), "{}", faults.join("\n\n"));
}
