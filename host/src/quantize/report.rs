//! What was done to each layer, as data.

use super::measure::Measured;
use super::range::Range;
use super::scheme::Parameters;
use serde_json::{Value, json};

/// A layer, or another operator with a scale of its own.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The name of the model's operator.
    pub layer: String,
    /// The operator of the float model.
    pub operator: &'static str,
    /// Why it stays in float; none for what is computed with integers.
    pub kept: Option<String>,
    /// What its result was seen to hold, bias and activation included, as far as integers stand for it.
    pub range: Option<Range>,
    /// The scale and zero point of its result; none where it leaves as int32 sums, or in float.
    pub output: Option<Parameters>,
    /// The scale and zero point of what it takes.
    pub input: Option<Parameters>,
    /// The smallest and the largest scale of the weight.
    pub weight_scale: Option<(f32, f32)>,
    /// The signal-to-noise ratio of its result, in decibels: the noise of everything before it is in it.
    pub signal_to_noise: Option<f64>,
    /// By how much the loss of the model grows when this layer alone is quantized, where that was asked for.
    pub sensitivity: Option<f64>,
}

/// What quantization did.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// In the order of evaluation.
    pub rows: Vec<Row>,
    /// The whole model.
    pub measured: Measured,
    /// The scheme, as it is written.
    pub scheme: String,
    /// The method, as it is written.
    pub method: String,
    /// How many layers are computed with integers.
    pub quantized: usize,
    /// Number of layers.
    pub layers: usize,
}

/// A number, or null for what JSON cannot say.
fn number(value: f64) -> Value {
    if value.is_finite() { json!(value) } else { Value::Null }
}

impl Row {
    /// The JSON form.
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
            "weight_scale": self.weight_scale.map(|(least, most)| json!([least, most])),
            "signal_to_noise_db": self.signal_to_noise.map(number),
            "sensitivity": self.sensitivity.map(number),
        })
    }
}

impl Report {
    /// The line behind those of the layers.
    pub fn summary(&self) -> Value {
        let measured = &self.measured;
        let share = |n: usize| json!(n as f64 / measured.samples.max(1) as f64);
        let top1 = measured.right.map(|(float, quantized)| {
            json!({"float": share(float), "int8": share(quantized), "float_right": float, "int8_right": quantized})
        });
        json!({"summary": {
            "scheme": self.scheme,
            "method": self.method,
            "layers": self.layers,
            "quantized": self.quantized,
            "samples": measured.samples,
            "cosine": measured.cosine,
            "top1": top1,
        }})
    }
}
