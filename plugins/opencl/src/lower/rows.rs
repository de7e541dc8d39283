//! Operators over whole rows: softmax, log-softmax and layer normalization.
//!
//! A work-item computes one row. Rows with contiguous elements are read in vectors, and the remaining elements one at a
//! time.

use super::{Grid, Lowering, Result, axis};
use crate::expression::{literal, vector};
use crate::kernel::{KernelText, Point};
use byoc_plugin_api::DType;
use byoc_plugin_support::region::Op;
use byoc_plugin_support::view::View;
use std::fmt::Write;

/// Maximum number of rows per work-group.
const GROUP: i64 = 4;

/// Appends a pairwise reduction of a vector's elements, and returns the expression for its result.
pub fn fold(name: &str, width: i64, combine: fn(&str, &str) -> String, code: &mut String, depth: usize) -> String {
    let pad = "    ".repeat(depth);
    let mut width = width;
    let mut source = name.to_owned();
    while width > 1 {
        width /= 2;
        let (low, high) = match width {
            1 => (format!("{source}.x"), format!("{source}.y")),
            _ => (format!("{source}.lo"), format!("{source}.hi")),
        };
        let target = format!("{name}{width}");
        let ty = vector(width);
        let _ = writeln!(code, "{pad}const {ty} {target}l = {low}, {target}h = {high};");
        let _ = writeln!(code, "{pad}const {ty} {target} = {};", combine(&format!("{target}l"), &format!("{target}h")));
        source = target;
    }
    source
}

/// Row in memory.
struct Row<'t> {
    pointer: &'t str,
    view: &'t View,
    indices: &'t [String],
    size: i64,
    width: i64,
}

impl Row<'_> {
    fn point(&self, width: i64) -> Point {
        Point { indices: self.indices.to_vec(), column: "c".into(), valid: None, width }
    }

    /// Appends a loop over the vectors of a row, and a loop over the remaining elements. `body` appends the statements
    /// for a vector or element `v`.
    fn append_loops(&self, text: &mut KernelText, mut body: impl FnMut(&mut KernelText, i64)) {
        text.line(1, "c = 0;");
        for width in [self.width, 1] {
            if width == 1 && self.size % self.width == 0 && self.width > 1 {
                break;
            }
            let condition =
                if width == 1 { format!("c < {}", self.size) } else { format!("c + {width} <= {}", self.size) };
            text.line(1, &format!("for (; {condition}; c += {width}) {{"));
            let load = self.point(width).load(self.pointer, self.view);
            text.line(2, &format!("const {} v = {load};", vector(width)));
            body(text, width);
            text.line(1, "}");
            if self.width == 1 {
                break;
            }
        }
    }

    /// Appends a reduction of a row into the variable `name`; `element` formats the operand of the reduction as a
    /// function of `v`.
    fn append_reduction(
        &self,
        text: &mut KernelText,
        name: &str,
        start: f64,
        combine: fn(&str, &str) -> String,
        element: impl Fn(i64) -> String,
    ) {
        text.line(1, &format!("float {name} = {};", literal(start, 1)));
        let lanes_name = format!("{name}_v");
        if self.width > 1 {
            text.line(1, &format!("{} {lanes_name} = {};", vector(self.width), literal(start, self.width)));
        }
        self.append_loops(text, |text, width| {
            let sum = if width > 1 { &lanes_name } else { name };
            text.line(2, &format!("const {} e = {};", vector(width), element(width)));
            text.line(2, &format!("{sum} = {};", combine(sum, "e")));
        });
        if self.width > 1 {
            let folded_value = fold(&lanes_name, self.width, combine, &mut text.code, 1);
            text.line(1, &format!("{name} = {};", combine(name, &folded_value)));
        }
    }
}

impl Lowering<'_, '_> {
    /// Lowers `nn.softmax`, `nn.log_softmax` and `nn.layer_norm`.
    pub fn normalize(&mut self, group_index: usize, op: &Op<'_>) -> Result<()> {
        let data = self.resolve(op.inputs[0])?;
        let shape = data.view.shape.clone();
        let rank = shape.len();
        let axis = axis(op, -1, rank)?;
        let is_norm = op.name == "nn.layer_norm";
        let mut parameters = Vec::new();
        for (i, flag) in ["scale", "center"].into_iter().enumerate().filter(|_| is_norm) {
            if op.attrs().flag(flag, true) {
                let storage = self.resolve(op.inputs[1 + i])?;
                parameters.push((["gamma", "beta"][i], storage));
            }
        }
        let mut order: Vec<usize> = (0..rank).filter(|&d| d != axis).collect();
        order.push(axis);
        let body = self.body(group_index, Some(&order))?.permute(&order);
        let view = data.view.permute(&order);
        let size = shape[axis];
        let width = if view.strides[rank - 1] == 1 { self.device.vector(size) } else { 1 };
        let rows: i64 = view.shape[..rank - 1].iter().product();
        let grid = Grid { local: [GROUP.min(rows) as usize, 1, 1], items: [rows, 1, 1] };
        let mut text = KernelText::default();
        text.line(1, "const int m = get_global_id(0);");
        if rows % GROUP.min(rows) != 0 {
            text.line(1, &format!("if (m >= {rows})\n        return;"));
        }
        let indices: Vec<String> = (0..rank - 1).map(|d| format!("i{d}")).collect();
        text.decode(1, &indices, &view.shape[..rank - 1], "m");
        text.line(1, "int c;");
        let pointer = text.pointer(data.place, DType::F32, false);
        let row = Row { pointer: &pointer, view: &view, indices: &indices, size, width };
        let add = |a: &str, b: &str| format!("{a} + {b}");
        let result: Box<dyn Fn(i64) -> String> = if is_norm {
            row.append_reduction(&mut text, "sum", 0.0, add, |_| "v".to_owned());
            text.line(1, &format!("const float mean = sum / {};", literal(size as f64, 1)));
            row.append_reduction(&mut text, "squares", 0.0, add, |_| "(v - mean) * (v - mean)".to_owned());
            let epsilon = literal(op.attrs().float("epsilon", 1e-5), 1);
            text.line(
                1,
                &format!("const float scale = 1.0f / sqrt(squares / {} + {epsilon});", literal(size as f64, 1)),
            );
            let has_parameter = |name: &str| parameters.iter().any(|(parameter, _)| *parameter == name);
            let (gamma, beta) = (has_parameter("gamma"), has_parameter("beta"));
            Box::new(move |_| {
                let scaled_value = if gamma { "(v - mean) * scale * gamma" } else { "(v - mean) * scale" };
                if beta { format!("{scaled_value} + beta") } else { scaled_value.to_owned() }
            })
        } else {
            row.append_reduction(
                &mut text,
                "top",
                f64::NEG_INFINITY,
                |a, b| format!("fmax({a}, {b})"),
                |_| "v".to_owned(),
            );
            row.append_reduction(&mut text, "total", 0.0, add, |_| "exp(v - top)".to_owned());
            if op.name == "nn.log_softmax" {
                text.line(1, "const float shift = log(total);");
                Box::new(|_| "v - top - shift".to_owned())
            } else {
                Box::new(|_| "exp(v - top) / total".to_owned())
            }
        };
        let ir = self.ir;
        row.append_loops(&mut text, |text, width| {
            for (name, storage) in &parameters {
                let mut strides = vec![0; rank];
                strides[rank - 1] = storage.view.strides.first().copied().unwrap_or(0);
                let shape = view.shape.clone();
                let view = View { shape, strides, offset: storage.view.offset };
                let pointer = text.pointer(storage.place, DType::F32, false);
                let load = row.point(width).load(&pointer, &view);
                text.line(2, &format!("const {} {name} = {load};", vector(width)));
            }
            text.line(2, &format!("const {} acc = {};", vector(width), result(width)));
            body.emit(ir, text, &row.point(width), 2);
        });
        let (name, comment) = self.group_names(group_index);
        self.add_launch("rows", text, grid, &name, &comment);
        Ok(())
    }
}
