//! Summary of a tensor in one line, or as JSON.

use byoc_ir::escape;
use byoc_ir::ir::Type;
use byoc_ir::tensor::Tensor;
use serde_json::{Value, json};

/// Maximum number of elements that a summary shows.
pub const MAX_SHOWN_VALUES: usize = 5;

/// Type, range, mean and first elements of a tensor.
#[derive(Clone, Debug)]
pub struct Summary {
    name: String,
    ty: String,
    min: f64,
    max: f64,
    mean: f64,
    first: Vec<f64>,
    len: usize,
}

impl Summary {
    /// Summarizes an output of a model.
    pub fn new(name: &str, tensor: &Tensor) -> Summary {
        let values = || tensor.view().f64s();
        Summary {
            name: name.to_owned(),
            ty: Type::tensor(tensor.dtype(), tensor.shape()).to_string(),
            min: values().fold(f64::INFINITY, f64::min),
            max: values().fold(f64::NEG_INFINITY, f64::max),
            mean: values().sum::<f64>() / tensor.len().max(1) as f64,
            first: values().take(MAX_SHOWN_VALUES).collect(),
            len: tensor.len(),
        }
    }

    /// Returns the summary as JSON.
    pub fn to_json(&self) -> Value {
        json!({
            "output": self.name, "type": self.ty, "min": self.min, "max": self.max, "mean": self.mean, "first": self.first
        })
    }

    /// Returns the summary as a line for a terminal.
    pub fn to_line(&self) -> String {
        let Summary { name, ty, min, max, mean, first: first_values, len } = self;
        let first_values: Vec<String> = first_values.iter().map(|v| format!("{v:.6}")).collect();
        let ellipsis = if *len > MAX_SHOWN_VALUES { ", ..." } else { "" };
        let name = escape::line(name);
        format!("{name}: {ty}  min {min:.6}  max {max:.6}  mean {mean:.6}  [{}{ellipsis}]", first_values.join(", "))
    }
}
