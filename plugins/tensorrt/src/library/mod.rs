//! TensorRT for RTX: finding and opening the library, its objects.
//!
//! The library is opened only if its version is one whose tables have been run, and answers known questions as expected.

mod find;
mod logger;
mod objects;
mod table;

pub use find::{INSTALL_HINT, cuda_runtimes, set_plugin_path};
pub use objects::{Config, Context, Engine, Layer, Network, ParserError, shown_capability};
pub use table::Dims;

use byoc_plugin_api::{DType, Error, Result};
use byoc_plugin_support::library;
use find::Files;
use std::ffi::{c_int, c_void};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use table::Object;

/// Versions whose tables have been run, as the library numbers them.
const VERIFIED: [c_int; 3] = [10_500, 10_601, 10_701];
/// Versions of the parser in them.
const VERIFIED_PARSERS: [c_int; 2] = [100, 200];
/// Lowest version of full TensorRT since its numbers have this form, 10.0.0.
const FULL_SINCE: c_int = 100_000;

type GetNumber = unsafe extern "C" fn() -> c_int;
type Create = unsafe extern "C" fn(*mut c_void, c_int) -> Object;
type CreateParser = unsafe extern "C" fn(*mut c_void, *mut c_void, c_int) -> Object;

/// Opened library.
#[derive(Debug)]
pub struct TensorRt {
    /// File of the library.
    pub file: PathBuf,
    /// Version as text: 1.7.1.
    pub version: String,
    number: c_int,
    parser_number: c_int,
    create_builder: Create,
    create_runtime: Create,
    create_parser: CreateParser,
}

/// Returns the library, opened at the first call.
///
/// # Errors
/// If there is none, or it is not of a version that has been run; the hint says how to install one.
pub fn tensorrt() -> Result<&'static TensorRt> {
    static LIBRARY: Mutex<Option<Result<&'static TensorRt>>> = Mutex::new(None);
    let mut library = LIBRARY.lock().unwrap_or_else(PoisonError::into_inner);
    library.get_or_insert_with(|| open(&find::find()?).map(|library| &*Box::leak(Box::new(library)))).clone()
}

/// Formats a version: 10701 as 1.7.1.
fn shown_version(number: c_int) -> String {
    format!("{}.{}.{}", number / 10_000, number / 100 % 100, number % 100)
}

fn open(files: &Files) -> Result<TensorRt> {
    let shown = files.library.display();
    let unusable = |problem: String| Error::new(format!("{shown}: {problem}")).hint(INSTALL_HINT);
    let names = ["getInferLibVersion", "createInferBuilder_INTERNAL", "createInferRuntime_INTERNAL"];
    let [get_version, create_builder, create_runtime] = library::open(&files.library, names).map_err(unusable)?;
    // SAFETY: every version of the library has this function with this type.
    let number = unsafe { std::mem::transmute::<library::Symbol, GetNumber>(get_version)() };
    let verified = VERIFIED.map(shown_version).join(", ");
    if !VERIFIED.contains(&number) {
        let kind = if number >= FULL_SINCE { "full TensorRT" } else { "TensorRT for RTX" };
        return Err(unusable(format!(
            "expected TensorRT for RTX {verified}, the versions that have been run, found {kind} {}",
            shown_version(number)
        )));
    }
    let names = ["getNvOnnxParserVersion", "createNvOnnxParser_INTERNAL"];
    let parser_file = files.parser.display();
    let symbols = library::open(&files.parser, names);
    let [get_parser_version, create_parser] =
        symbols.map_err(|problem| Error::new(format!("{parser_file}: {problem}")).hint(INSTALL_HINT))?;
    // SAFETY: every version of the parser has this function with this type.
    let parser_number = unsafe { std::mem::transmute::<library::Symbol, GetNumber>(get_parser_version)() };
    if !VERIFIED_PARSERS.contains(&parser_number) {
        return Err(unusable(format!("expected a parser of version 100 or 200, found {parser_number}")));
    }
    // SAFETY: these are the functions' types in the verified versions.
    let (create_builder, create_runtime, create_parser) = unsafe {
        (
            std::mem::transmute::<library::Symbol, Create>(create_builder),
            std::mem::transmute::<library::Symbol, Create>(create_runtime),
            std::mem::transmute::<library::Symbol, CreateParser>(create_parser),
        )
    };
    let library = TensorRt {
        file: files.library.clone(),
        version: shown_version(number),
        number,
        parser_number,
        create_builder,
        create_runtime,
        create_parser,
    };
    probe(&library).map_err(|problem| {
        unusable(format!("version {} answers otherwise than the one that has been run: {problem}", library.version))
    })?;
    tracing::debug!("TensorRT for RTX {} from {shown}", library.version);
    Ok(library)
}

/// ONNX model of one node, from the float32 vector x of two elements to y.
const RELU: &[u8] = b"\x08\x08:3\n\x0c\n\x01x\x12\x01y\"\x04Relu\x12\x01gZ\x0f\n\x01x\x12\n\n\x08\x08\x01\x12\x04\n\x02\x08\x02b\x0f\n\x01y\x12\n\n\x08\x08\x01\x12\x04\n\x02\x08\x02B\x04\n\x00\x10\x11";
/// The same with an operator that does not exist.
const UNKNOWN: &[u8] = b"\x08\x08:=\n\x16\n\x01x\x12\x01y\"\x0eNoSuchOperator\x12\x01gZ\x0f\n\x01x\x12\n\n\x08\x08\x01\x12\x04\n\x02\x08\x02b\x0f\n\x01y\x12\n\n\x08\x08\x01\x12\x04\n\x02\x08\x02B\x04\n\x00\x10\x11";

/// Asks questions whose answers are known: a tiny network, its settings, and an operator that the parser has to refuse.
fn probe(library: &TensorRt) -> Result<(), String> {
    let facts = Network::parse(library, RELU, |network| {
        let config = network.config().map_err(|error| error.to_string())?;
        let before = config.capability();
        let is_set = config.set_capability(89).is_ok();
        config.set_tf32(false);
        Ok::<_, String>((
            network.layers().len(),
            network.ports(),
            before,
            is_set,
            config.capability(),
            config.has_tf32(),
        ))
    });
    let (layers, [inputs, outputs], before, is_set, capability, has_tf32) =
        facts.map_err(|errors| errors.first().map(ParserError::line).unwrap_or_default())??;
    if layers != 1 {
        return Err(format!("expected a network of 1 layer, found {layers}"));
    }
    for (ports, name) in [(&inputs, "x"), (&outputs, "y")] {
        match &ports[..] {
            [port] if port.name == name && port.dtype == Some(DType::F32) => {}
            other => return Err(format!("expected a float32 tensor {name}, found {other:?}")),
        }
    }
    if (before, is_set, capability, has_tf32) != (None, true, Some(89), false) {
        return Err(format!("expected capability 8.9 without TF32, found {capability:?}, TF32 {has_tf32}"));
    }
    match Network::parse(library, UNKNOWN, |_| ()) {
        Err(errors) if errors.first().is_some_and(|error| error.operator == "NoSuchOperator") => Ok(()),
        Err(errors) => Err(format!("expected the name of a refused operator, found {errors:?}")),
        Ok(()) => Err("expected a refusal of an operator that does not exist, found none".into()),
    }
}
