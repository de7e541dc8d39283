//! Regions as ONNX models: the service `byoc.onnx.1`, for backends whose compilers take ONNX.
//!
//! The graph of a candidate or of a region goes in as the JSON text that C plugins know, its constants as DLPack
//! descriptors; the model comes out in pieces, so that a weight goes from the host's mapped file to the plugin's buffer
//! without a copy in between.

use crate::constant::Constant;
use crate::error::{Error, Result};
use crate::graph::Graph;
use crate::services::Services;
use crate::tensor::{Tensor, TensorRef};
use serde::{Deserialize, Serialize};
use std::ffi::{c_char, c_void};

/// Name of the service, whose type is [`OnnxTable`].
pub const ONNX_SERVICE: &str = "byoc.onnx.1";

/// Part of the answer: bytes of the model.
pub const PART_MODEL: i32 = 0;
/// Part of the answer: bytes of the weights that stand outside of the model.
pub const PART_WEIGHTS: i32 = 1;
/// Part of the answer: the JSON form of an [`OnnxInfo`].
pub const PART_INFO: i32 = 2;
/// Part of the answer: the JSON form of the error, `{"message": "...", "hint": "..."}`.
pub const PART_ERROR: i32 = 3;

/// Receives a piece of the answer: `receive(context, part, bytes, size)`. The bytes are valid during the call.
pub type Receive = unsafe extern "C" fn(*mut c_void, i32, *const c_void, usize);

/// Function table of the service [`ONNX_SERVICE`]. It begins with its size; later versions append fields.
#[repr(C)]
pub struct OnnxTable {
    /// Size of the table in bytes.
    pub struct_size: usize,
    /// Writes a graph as an ONNX model: graph (JSON), constants, number of constants, options (JSON, or null), context
    /// and function for the answer. The pieces of a part arrive in order; those of different parts may alternate.
    /// Returns 0, or another number after an error.
    pub write: unsafe extern "C" fn(*const c_char, *const Tensor, usize, *const c_char, *mut c_void, Receive) -> i32,
}

/// Form of quantized operators in the model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnnxForm {
    /// DequantizeLinear, the float operator, QuantizeLinear.
    #[default]
    Qdq,
    /// Operators on integers: ConvInteger, MatMulInteger.
    Integer,
}

/// Options of the writer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct OnnxOptions {
    /// Operator set; by default the writer's own, or the lowest after it that has all operators.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub opset: Option<i64>,
    /// Form of quantized operators.
    pub form: OnnxForm,
    /// True for constant biases of quantized operators in float32, instead of int32 with a DequantizeLinear, which some
    /// compilers take for bytes alone.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub float_bias: bool,
    /// Name of the file of the weights, as the model spells it. If it is set, weights of 1 KiB and more are written to
    /// the part [`PART_WEIGHTS`] instead of the model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weights_file: Option<String>,
}

/// Node of the written model.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct OnnxNode {
    /// Name of the node in the model.
    pub name: String,
    /// Operator of the node: `Conv`.
    pub op: String,
    /// Operators of the graph that the node computes: the index of a node in the graph, for an operator in a composite
    /// followed by the index in its body. Empty for a node that the writer inserted.
    pub operators: Vec<Vec<u32>>,
}

/// Facts about a written model.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct OnnxInfo {
    /// Operator set.
    pub opset: i64,
    /// Names of the inputs, in the order of the graph's.
    pub inputs: Vec<String>,
    /// Names of the outputs, in the order of the graph's.
    pub outputs: Vec<String>,
    /// Nodes of the main graph, in order.
    pub nodes: Vec<OnnxNode>,
}

/// Written model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OnnxModel {
    /// ModelProto.
    pub bytes: Vec<u8>,
    /// Weights outside of the model: the contents of [`OnnxOptions::weights_file`].
    pub weights: Vec<u8>,
    /// Names of inputs and outputs, and the map from nodes to operators.
    pub info: OnnxInfo,
}

/// Error of the service, as it crosses the boundary.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct OnnxFailure {
    pub message: String,
    pub hint: String,
}

/// Parts of an answer as they arrive.
#[derive(Default)]
struct Answer {
    parts: [Vec<u8>; 4],
}

unsafe extern "C" fn receive(context: *mut c_void, part: i32, bytes: *const c_void, size: usize) {
    // SAFETY: `onnx` passes its `Answer` as `context`, and the host returns from `write` before it goes out of scope.
    let answer = unsafe { &mut *context.cast::<Answer>() };
    let part = usize::try_from(part).ok().and_then(|part| answer.parts.get_mut(part));
    if let Some(part) = part.filter(|_| size > 0) {
        // SAFETY: by the contract of `Receive`, `size` bytes are valid during the call.
        part.extend_from_slice(unsafe { std::slice::from_raw_parts(bytes.cast::<u8>(), size) });
    }
}

/// Appends a NUL. JSON escapes control characters, so its text has none inside.
fn nul_terminated(mut text: String) -> String {
    text.push('\0');
    text
}

impl Services {
    /// Writes the graph of a candidate or of a region as an ONNX model. Composites are written as their operators.
    ///
    /// # Errors
    /// If an operator or a type has no form in ONNX: the message names it, and the first operator set that has it if a
    /// later one does. If the host has no writer of ONNX, as a program that only runs artifacts.
    pub fn onnx(&self, graph: &Graph, constants: &[Constant], options: &OnnxOptions) -> Result<OnnxModel> {
        let Some(table) = self.get_service(ONNX_SERVICE) else {
            return Err(Error::new(format!("expected a host with the service {ONNX_SERVICE}, found one without it"))
                .hint("compile the model with the command line or the Python package of byoc"));
        };
        let text = nul_terminated(graph.to_json());
        let options = nul_terminated(serde_json::to_string(options)?);
        let views: Vec<TensorRef<'_>> = constants.iter().map(Constant::tensor).collect();
        let tensors: Vec<Tensor> = views.iter().map(|view| *view.raw()).collect();
        let mut answer = Answer::default();
        // SAFETY: the host guarantees that a service of this name is an `OnnxTable` that lives as long as the process.
        // The texts end with a NUL, `tensors` has the given length, and its descriptors live as long as `views`.
        let status = unsafe {
            (table.cast::<OnnxTable>().as_ref().write)(
                text.as_ptr().cast(),
                tensors.as_ptr(),
                tensors.len(),
                options.as_ptr().cast(),
                (&raw mut answer).cast(),
                receive,
            )
        };
        let [bytes, weights, info, failure] = answer.parts;
        if status != 0 {
            let OnnxFailure { message, hint } = serde_json::from_slice(&failure).unwrap_or_default();
            let message = if message.is_empty() { "the region cannot be written as ONNX".to_owned() } else { message };
            return Err(if hint.is_empty() { Error::new(message) } else { Error::new(message).hint(hint) });
        }
        Ok(OnnxModel { bytes, weights, info: serde_json::from_slice(&info)? })
    }
}
