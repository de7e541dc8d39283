//! Report on an exported project: flash, RAM per step, operations and stack.

use crate::exported::{ExportedModel, Port};
use serde_json::{Value, json};
use std::fmt::Write;

/// Sizes and operations of an exported program.
pub struct Report<'e, 'a> {
    exported: &'e ExportedModel<'a>,
    /// Size in bytes of the constants.
    pub weights: i64,
    /// Size in bytes of the constant arrays in the region sources, as declared by the backends.
    pub region_constants: i64,
    /// Number of multiply-adds per run.
    pub macs: i64,
    /// Maximum size in bytes of the local arrays of a function.
    pub stack: i64,
}

fn bytes(ports: &[Port]) -> i64 {
    ports.iter().map(Port::bytes).sum()
}

impl<'e, 'a> Report<'e, 'a> {
    /// Computes the sizes and operations of an exported program.
    pub fn new(exported: &'e ExportedModel<'a>) -> Report<'e, 'a> {
        let program = &exported.program;
        Report {
            exported,
            weights: program.arrays.iter().map(|array| array.array.bytes.len() as i64).sum(),
            region_constants: exported.regions.iter().map(|region| region.constant_bytes).sum(),
            macs: program.steps.iter().map(|step| step.macs).sum(),
            stack: program.steps.iter().map(|step| step.stack).max().unwrap_or(0),
        }
    }

    /// Returns the report as text.
    pub fn text(&self) -> String {
        let e = self.exported;
        let mut text = format!("{}\n\n", e.options.title);
        let w = &mut text;
        let location = if e.has_weights_file() { " in a file" } else { "" };
        let _ = writeln!(w, "flash  {:>12} bytes of constants{location}, and the code (make size)", self.weights);
        if self.region_constants > 0 {
            let _ = writeln!(w, "       {:>12} bytes of constants in region sources", self.region_constants);
        }
        let _ = writeln!(w, "RAM    {:>12} bytes in the arena of an instance", e.program.arena);
        let _ = writeln!(w, "       {:>12} bytes of inputs", bytes(&e.inputs));
        let _ = writeln!(w, "       {:>12} bytes of outputs", bytes(&e.outputs));
        let _ = writeln!(w, "stack  {:>12} bytes of local arrays at most", self.stack);
        let _ = writeln!(w, "work   {:>12} multiply-adds\n", self.macs);
        if !e.regions.is_empty() {
            let _ = writeln!(w, "Multiply-adds in backend regions are not counted.\n");
        }
        let _ = writeln!(w, "{:>5} {:>14} {:>12} {:>8}  operators", "step", "multiply-adds", "arena in use", "stack");
        for (index, step) in e.program.steps.iter().enumerate() {
            let title = step.comment.first().map_or("", String::as_str);
            let _ = writeln!(w, "{index:>5} {:>14} {:>12} {:>8}  {title}", step.macs, step.live, step.stack);
            for line in step.comment.iter().skip(1) {
                let _ = writeln!(w, "{:>42}  {line}", "");
            }
        }
        text
    }

    /// Returns the metadata of the project as JSON; `files` are the names of its files.
    pub fn json(&self, files: &[String]) -> String {
        let e = self.exported;
        let ports = |ports: &[Port]| -> Value {
            ports
                .iter()
                .map(|p| {
                    json!({"name": p.name, "identifier": p.identifier, "type": p.dtype.to_string(), "shape": p.shape,
                           "bytes": p.bytes()})
                })
                .collect()
        };
        let steps: Vec<Value> = e
            .program
            .steps
            .iter()
            .map(|step| {
                json!({"function": step.name, "operators": step.comment, "multiply_adds": step.macs,
                       "arena_bytes": step.live, "stack_bytes": step.stack})
            })
            .collect();
        let value = json!({
            "format": 1,
            "producer": concat!("byoc ", env!("CARGO_PKG_VERSION")),
            "model": e.options.title,
            "prefix": e.options.prefix,
            "weights": if e.has_weights_file() { "file" } else { "source" },
            "half_weights": e.options.half_weights,
            "weights_bytes": self.weights,
            "region_constant_bytes": self.region_constants,
            "arena_bytes": e.program.arena,
            "stack_bytes": self.stack,
            "multiply_adds": self.macs,
            "inputs": ports(&e.inputs),
            "outputs": ports(&e.outputs),
            "steps": steps,
            "files": files,
        });
        format!("{value:#}\n")
    }
}
