//! Targets that parse their input directly: models, arrays, images, weights, pattern tables, and plugin JSON.

use crate::{Target, check_diagnostics, count_accepted, hostile, json, mutate, random_below, seeds};
use byoc::driver::{BuildOptions, build};
use byoc::frontend::{self, LoadOptions};
use byoc::io::random;
use byoc::io::{image, npy, npz, weights};
use byoc::runtime::model::Model;
use byoc::runtime::session::Session;
use byoc_core::pattern::{Checks, parse_table};
use byoc_ir::tensor::{DType, Tensor, element_count};
use byoc_plugin_api::{Description, Graph};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

/// Limits on executed models: total number of input elements, and floating-point operations per run.
const MAX_ELEMENTS: usize = 1 << 16;
const MAX_FLOPS: u64 = 1 << 27;

/// Time limit of a run.
const MAX_RUN_TIME: Duration = Duration::from_millis(500);

pub const ONNX: Target = Target {
    name: "onnx",
    seeds: || seeds("onnx"),
    hostile: hostile::onnx,
    mutate: |seed, random| mutate::bytes(seed, random, &["Add", "Conv", "Reshape", "x", "y", "float", "axis"]),
    run: |bytes| model(bytes, "onnx"),
};

pub const RELAY: Target = Target {
    name: "relay",
    seeds: || seeds("relay"),
    hostile: hostile::relay,
    mutate: |seed, random| mutate::bytes(seed, random, RELAY_TOKENS),
    run: |bytes| model(bytes, "relay"),
};

const RELAY_TOKENS: &[&str] = &[
    "def @main(",
    "%x",
    "%0",
    ": Tensor[(",
    "), float32]",
    "int8",
    "{ ",
    " }",
    "let ",
    " = ",
    ";",
    "if (",
    ") else {",
    "fn ",
    "nn.conv2d(",
    "nn.dense(",
    "add(",
    "@f(",
    "meta[relay.Constant][0]",
    "match (",
    "Cons(",
    "Nil",
    "ref(",
    "->",
    "()",
    ",",
    "concatenate((",
    "axis=",
    "type ",
    "[A]",
    ".0",
    "1f",
    "?",
    "Compiler=\"dnnl\", ",
    "/*",
    "*/",
    "\"",
    "\n",
    "free_var",
];

pub const NPY: Target = Target {
    name: "npy",
    seeds: || seeds("npy"),
    hostile: hostile::npy,
    mutate: |seed, random| {
        mutate::bytes(seed, random, &["'descr': '<f4'", "'shape': (", "True", ",", "|b1", ">i8", "\\x93NUMPY"])
    },
    run: |bytes| {
        npy::decode(bytes)
            .map_or_else(|error| check_message(&error.of(Path::new("it")).message), |tensor| accept_tensor(&tensor))
    },
};

pub const NPZ: Target = Target {
    name: "npz",
    seeds: || seeds("npz"),
    hostile: hostile::npz,
    mutate: |seed, random| mutate::bytes(seed, random, &["PK\u{1}\u{2}", "PK\u{3}\u{4}", "x.npy", "'shape': ("]),
    run: |bytes| match npz::read(&file(bytes, "npz")) {
        Ok(arrays) => {
            count_accepted();
            arrays.iter().try_for_each(|(_, tensor)| check_tensor(tensor))
        }
        Err(diagnostic) => check_diagnostics([&diagnostic]),
    },
};

pub const IMAGE: Target = Target {
    name: "image",
    seeds: || seeds("image"),
    hostile: hostile::image,
    mutate: |seed, random| mutate::bytes(seed, random, &["IHDR", "IDAT", "PLTE", "tRNS", "\u{ff}"]),
    run: |bytes| {
        // The first byte selects the model input that the image is loaded for; the rest is the image.
        let (&selector, bytes) = bytes.split_first().unwrap_or((&0, &[]));
        let is_png = bytes.starts_with(b"\x89P");
        let shape: &[usize] = [&[1, 3, 8, 8][..], &[8, 8, 1], &[4, 5, 3], &[7, 9], &[3]][usize::from(selector) % 5];
        let dtype = [DType::F32, DType::U8, DType::F16, DType::I64][usize::from(selector) / 8 % 4];
        match image::load(
            &file(bytes, if is_png { "png" } else { "jpg" }),
            dtype,
            shape,
            &image::Normalization::default(),
        ) {
            Ok(tensor) if tensor.shape() == shape && tensor.dtype() == dtype => accept_tensor(&tensor),
            Ok(tensor) => Err(format!(
                "expected a {dtype} tensor of shape {shape:?}, found a {} tensor of shape {:?}",
                tensor.dtype(),
                tensor.shape()
            )),
            Err(diagnostic) => check_diagnostics([&diagnostic]),
        }
    },
};

pub const SAFETENSORS: Target = Target {
    name: "safetensors",
    seeds: || seeds("safetensors"),
    hostile: hostile::safetensors,
    mutate: |seed, random| {
        mutate::bytes(seed, random, &["\"dtype\":\"F32\"", "\"BOOL\"", "\"shape\":[", "\"data_offsets\":["])
    },
    run: |bytes| match weights::read(&file(bytes, "safetensors")) {
        Ok(tensors) => {
            count_accepted();
            tensors.values().try_for_each(check_tensor)
        }
        Err(diagnostic) => check_diagnostics([&diagnostic]),
    },
};

pub const PATTERNS: Target = Target {
    name: "patterns",
    seeds: || seeds("patterns"),
    hostile: hostile::patterns,
    mutate: |seed, random| mutate::bytes(seed, random, PATTERN_TOKENS),
    run: |bytes| {
        let text = String::from_utf8_lossy(bytes);
        for checks in [Checks::Allowed, Checks::Refused] {
            let parsed_table = parse_table(&text, checks);
            if parsed_table.has_errors() {
                check_diagnostics(&parsed_table.diagnostics)?;
            } else {
                count_accepted();
            }
        }
        Ok(())
    },
};

const PATTERN_TOKENS: &[&str] = &[
    "nn.conv2d(",
    "*",
    "?",
    "|",
    "(",
    ")",
    "wildcard()",
    "is_constant()",
    "is_op(\"",
    "\"",
    "{",
    "}",
    "=",
    ": ",
    "where ",
    "\n",
    "#",
    "$x",
    "any",
    "const",
    "tuple(",
    ".optional(",
    "dominates",
    "has_attr",
    ",",
    "[",
    "]",
    "@",
    "nn.relu",
];

pub const BOUNDARY_JSON: Target = Target {
    name: "boundary_json",
    seeds: || seeds("boundary_json"),
    hostile: hostile::boundary_json,
    mutate: |seed, random| match serde_json::from_slice(seed) {
        Ok(mut value) if random_below(random, 4) != 0 => {
            for _ in 0..=random_below(random, 3) {
                json::mutate(&mut value, random);
            }
            value.to_string().into_bytes()
        }
        _ => mutate::bytes(
            seed,
            random,
            &["\"nodes\":", "\"version\":1", "[", "{", "\"NaN\"", "1e999", "\\ud800", "null"],
        ),
    },
    run: |bytes| {
        let Ok(text) = std::str::from_utf8(bytes) else { return Ok(()) };
        match Graph::from_json(text) {
            Ok(graph) => {
                count_accepted();
                let parsed_graph = Graph::from_json(&graph.to_json())
                    .map_err(|e| format!("the graph does not round-trip through JSON: {e}"))?;
                if parsed_graph.to_json() != graph.to_json() {
                    return Err("expected a graph to round-trip, found a different graph".into());
                }
                // A graph that refers to more than four constants is not converted.
                if graph.check(4).is_ok()
                    && let Err(diagnostic) = byoc::runtime::plugin::from_graph::module_of(&graph, &[])
                {
                    check_diagnostics([&*diagnostic])?;
                }
            }
            Err(error) => check_message(&error.to_string())?,
        }
        if let Err(error) = Description::from_json(text) {
            check_message(&error.to_string())?;
        }
        drop(Description::from_json_lossy(text));
        Ok(())
    },
};

fn check_message(message: &str) -> Result<(), String> {
    if message.trim().is_empty() {
        Err("expected an error with a message, found an empty message".into())
    } else {
        Ok(())
    }
}

/// Counts the input as accepted and checks its tensor.
fn accept_tensor(tensor: &Tensor) -> Result<(), String> {
    count_accepted();
    check_tensor(tensor)
}

/// Reads every byte of a tensor and checks the number of bytes.
fn check_tensor(tensor: &Tensor) -> Result<(), String> {
    let expected = element_count(tensor.shape()).and_then(|count| count.checked_mul(tensor.dtype().size()));
    if expected != Some(tensor.bytes().len()) {
        let expected = expected.map_or_else(|| "fewer than 2^64".to_owned(), |bytes| bytes.to_string());
        return Err(format!(
            "{} tensor of shape {:?}: expected {expected} bytes, found {}",
            tensor.dtype(),
            tensor.shape(),
            tensor.bytes().len()
        ));
    }
    std::hint::black_box(tensor.bytes().iter().fold(0u8, |sum, byte| sum ^ byte));
    Ok(())
}

/// Writes a temporary file, and returns its path, which is constant per process and extension.
pub fn file(bytes: &[u8], extension: &str) -> PathBuf {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    let dir = DIR.get_or_init(|| byoc_test_support::temporary_folder().keep());
    let path = dir.join(format!("input.{extension}"));
    // The old file is removed first, as constants of the previous execution may still map it.
    let _ = std::fs::remove_file(&path);
    std::fs::write(&path, bytes).expect("cannot write a temporary file");
    path
}

/// Reads, builds and runs a model on the host.
pub fn model(bytes: &[u8], extension: &str) -> Result<(), String> {
    let path = file(bytes, extension);
    build_and_run(&path, &LoadOptions::default())
}

/// Returns the session for runs without plugins.
fn host() -> &'static Session {
    static HOST: OnceLock<Session> = OnceLock::new();
    HOST.get_or_init(|| Session::without_plugins(1).expect("cannot start a thread"))
}

fn build_and_run(path: &Path, options: &LoadOptions) -> Result<(), String> {
    let module = match frontend::load(path, options) {
        Ok(module) => module,
        Err(failure) => return check_diagnostics(&failure.diagnostics),
    };
    let compiled_module = match build(host(), module, &BuildOptions::default(), &mut |_| {}) {
        Ok(compiled_module) => compiled_module,
        Err(failure) => return check_diagnostics(&failure.diagnostics),
    };
    let flops = serde_json::to_value(&compiled_module.explanation)
        .ok()
        .and_then(|e| e["totals"]["flops"].as_u64())
        .unwrap_or(0);
    let inputs = small_inputs(&compiled_module.compiled.program.inputs);
    let model = match Model::load(host(), compiled_module.compiled, None) {
        Ok((model, _)) => model,
        Err(failure) => return check_diagnostics(&failure.diagnostics),
    };
    let Some(inputs) = inputs.filter(|_| flops <= MAX_FLOPS) else { return Ok(()) };
    // The model determines how long its loops run, so the run has a time limit.
    match model.run_under(&inputs, &host().cancel.part(Some(MAX_RUN_TIME))) {
        Ok(outputs) => {
            count_accepted();
            outputs.iter().try_for_each(check_tensor)
        }
        Err(failure) => check_diagnostics(&failure.diagnostics),
    }
}

/// Returns random inputs, with every symbolic dimension set to 2; `None` if the inputs are too large.
pub fn small_inputs(ports: &[byoc::runtime::exec::program::Port]) -> Option<Vec<Tensor>> {
    let mut remaining_elements = MAX_ELEMENTS;
    let input = |port: &byoc::runtime::exec::program::Port| {
        let shape: Vec<usize> = port.ty.dims.iter().map(|dim| dim.fixed().unwrap_or(2)).collect();
        remaining_elements = remaining_elements.checked_sub(element_count(&shape)?)?;
        Some(random::tensor(port.ty.dtype, &shape, remaining_elements as u64))
    };
    ports.iter().map(input).collect()
}
