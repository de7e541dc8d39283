//! Per-layer quantization report, as structured data.

use super::measure::Accuracy;
use super::range::Range;
use super::scheme::Parameters;
use serde_json::{Value, json};

/// Row for a layer, or for a non-layer operator whose result has a separate scale.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Name of the operator in the model.
    pub layer: String,
    /// Relay operator in the float model.
    pub operator: &'static str,
    /// Reason for keeping the layer in float; `None` for a quantized layer.
    pub kept: Option<String>,
    /// Range of the result after bias and activation, as represented by the integers.
    pub range: Option<Range>,
    /// Scale and zero point of the result; `None` if the result is int32 or float.
    pub output: Option<Parameters>,
    /// Scale and zero point of the input.
    pub input: Option<Parameters>,
    /// Minimum and maximum scale of the weight.
    pub weight_scale: Option<(f32, f32)>,
    /// Signal-to-noise ratio of the result, in decibels; includes the noise of all predecessors.
    pub signal_to_noise: Option<f64>,
    /// 1 minus the cosine of the model outputs with only this layer quantized, if measured.
    pub sensitivity: Option<f64>,
}

/// Report on a quantized model.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// Layers in evaluation order.
    pub rows: Vec<Row>,
    /// Measurements of the complete model.
    pub accuracy: Accuracy,
    /// Scheme, in the syntax of [`Scheme::parse`](super::scheme::Scheme::parse).
    pub scheme: String,
    /// Method, in the syntax of [`Method::parse`](super::method::Method::parse).
    pub method: String,
    /// Number of quantized layers.
    pub quantized: usize,
    /// Number of layers.
    pub layers: usize,
}

/// Converts a number to JSON; NaN and infinity, which JSON cannot represent, become null.
fn finite_number(value: f64) -> Value {
    if value.is_finite() { json!(value) } else { Value::Null }
}

impl Row {
    /// Returns the row as a JSON object.
    pub fn to_json(&self) -> Value {
        let parameters = |p: &Parameters| json!({"scale": p.scale, "zero_point": p.zero_point});
        json!({
            "layer": self.layer,
            "op": self.operator,
            "kind": if self.kept.is_some() { "float" } else { "int8" },
            "reason": self.kept,
            "range": self.range.map(|r| json!([r.lo, r.hi])),
            "output": self.output.as_ref().map(parameters),
            "input": self.input.as_ref().map(parameters),
            "weight_scale": self.weight_scale.map(|(min, max)| json!([min, max])),
            "signal_to_noise_db": self.signal_to_noise.map(finite_number),
            "sensitivity": self.sensitivity.map(finite_number),
        })
    }
}

impl Report {
    /// Returns the summary line, which follows the layer lines.
    pub fn summary(&self) -> Value {
        let accuracy = &self.accuracy;
        let fraction = |n: usize| json!(n as f64 / accuracy.samples.max(1) as f64);
        let top1 = accuracy.correct.map(|(float, quantized_correct)| {
            json!({"float": fraction(float), "int8": fraction(quantized_correct), "float_right": float, "int8_right": quantized_correct})
        });
        json!({"summary": {
            "scheme": self.scheme,
            "method": self.method,
            "layers": self.layers,
            "quantized": self.quantized,
            "samples": accuracy.samples,
            "cosine": accuracy.cosine,
            "top1": top1,
        }})
    }
}
