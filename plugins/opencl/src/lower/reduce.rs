//! Reductions: `sum`, `mean`, `max`, `min` and `prod`.

use super::map::grid;
use super::rows::fold;
use super::{Lowering, Result};
use crate::expression::{literal, vector};
use crate::kernel::{KernelText, Point, address};
use crate::view_ops::memory_order;
use byoc_plugin_api::{DType, RefusalCode};
use byoc_plugin_support::refusal::refuse;
use byoc_plugin_support::region::Op;
use byoc_plugin_support::view::View;

/// Binary operation of a reduction, with its initial value.
#[derive(Clone, Copy)]
struct Combine {
    start: f64,
    /// Formats the combination of accumulator `a` and element `b`.
    text: fn(&str, &str) -> String,
}

fn combine(name: &str) -> Combine {
    match name {
        "max" => Combine { start: f64::NEG_INFINITY, text: |a, b| format!("(({a} != {a}) | ({a} > {b})) ? {a} : {b}") },
        "min" => Combine { start: f64::INFINITY, text: |a, b| format!("(({a} != {a}) | ({a} < {b})) ? {a} : {b}") },
        "prod" => Combine { start: 1.0, text: |a, b| format!("{a} * {b}") },
        _ => Combine { start: 0.0, text: |a, b| format!("{a} + {b}") },
    }
}

impl Lowering<'_, '_> {
    /// Lowers a reduction.
    pub fn reduce(&mut self, group_index: usize, op: &Op<'_>) -> Result<()> {
        let data = self.resolve(op.inputs[0])?;
        let x = &data.view;
        let rank = x.shape.len();
        let Some(is_reduced) = op.attrs().reduced(rank) else {
            let detail = format!(
                "{}: attribute axis: expected integers in -{rank}..{rank}, found {:?}",
                op.name,
                op.attrs().ints("axis").unwrap_or_default()
            );
            return refuse(RefusalCode::UnsupportedAttr, detail);
        };
        let kept_dims: Vec<usize> = (0..rank).filter(|&d| !is_reduced[d]).collect();
        let kept_dims_in_memory: Vec<usize> = memory_order(x).into_iter().filter(|&d| !is_reduced[d]).collect();
        let summed_dims: Vec<usize> =
            memory_order(x).into_iter().filter(|&d| is_reduced[d] && x.shape[d] != 1).collect();
        let out_rank = self.ir.shape(op.outputs[0]).len();
        // The result has the memory order of the kept dimensions.
        let keeps_dims = out_rank == rank && kept_dims.len() != rank;
        let result_dim = |d: usize| if keeps_dims { d } else { kept_dims.iter().position(|&k| k == d).unwrap_or(0) };
        let mut order: Vec<usize> = kept_dims_in_memory.iter().map(|&d| result_dim(d)).collect();
        if keeps_dims {
            order.extend((0..rank).filter(|&d| is_reduced[d]));
        }
        let kept_shape: Vec<i64> = kept_dims.iter().map(|&d| x.shape[d]).collect();
        let positions: Vec<usize> =
            kept_dims_in_memory.iter().map(|d| kept_dims.iter().position(|k| k == d).unwrap_or(0)).collect();
        let Some(body) = self.body(group_index, Some(&order))?.transform(|view| view.reshape(&kept_shape)) else {
            let out_shape = self.ir.shape(op.outputs[0]);
            let detail = format!(
                "{}: expected a result that can be viewed as shape {kept_shape:?}, found shape {out_shape:?}",
                op.name
            );
            return refuse(RefusalCode::UnsupportedShape, detail);
        };
        let mut body = body.permute(&positions);
        let mut rows = x.permute(&kept_dims_in_memory);
        if rows.shape.is_empty() {
            // A scalar is a row of one column.
            let Some(scalar) = body.transform(|view| view.reshape(&[1])) else {
                let out_shape = self.ir.shape(op.outputs[0]);
                let detail = format!("{}: result: expected one element, found shape {out_shape:?}", op.name);
                return refuse(RefusalCode::UnsupportedShape, detail);
            };
            body = scalar;
            rows = View { shape: vec![1], strides: vec![0], offset: x.offset };
        }
        let dims = rows.shape.len();
        let columns = rows.shape[dims - 1];
        let innermost = summed_dims.last().map(|&d| (x.shape[d], x.strides[d]));
        let is_across = rows.strides[dims - 1] == 1 && columns >= 4;
        let width = if is_across { self.device.vector(columns) } else { 1 };
        let lanes = match innermost {
            Some((size, 1)) if !is_across => self.device.vector(size),
            _ => 1,
        };
        let mut text = KernelText::default();
        let grid = grid((columns + width - 1) / width, rows.shape[..dims - 1].iter().product());
        text.write_positions(&grid);
        let valid_columns = text.write_column(columns, width);
        let indices: Vec<String> = (0..dims - 1).map(|d| format!("i{d}")).collect();
        text.decode(1, &indices, &rows.shape[..dims - 1], "m");
        let Combine { start, text: combine } = combine(op.name);
        let pointer = text.pointer(data.place, DType::F32, false);
        let ty = vector(width);
        text.line(1, &format!("{ty} a = {};", literal(start, width)));
        let mut view = View { offset: 0, ..rows.clone() };
        let mut depth = 1;
        let mut offset = x.offset.to_string();
        let outer_count = summed_dims.len().saturating_sub(1);
        for (i, &d) in summed_dims[..outer_count].iter().enumerate() {
            text.line(depth, &format!("for (int r{i} = 0; r{i} < {}; ++r{i}) {{", x.shape[d]));
            offset.push_str(&format!(" + r{i} * {}", x.strides[d]));
            depth += 1;
        }
        let point = Point { indices: indices.clone(), column: "c".into(), valid: valid_columns.clone(), width };
        // The innermost loop has its own partial result, which keeps sums of many elements accurate.
        let (size, stride) = innermost.unwrap_or((1, 0));
        let partial = vector(lanes.max(width));
        text.line(depth, &format!("{partial} s = {};", literal(start, lanes.max(width))));
        text.line(depth, "int r = 0;");
        if lanes > 1 {
            let mut element_index = indices.clone();
            element_index.push("c".into());
            text.line(
                depth,
                &format!("global const float *e = {pointer} + {offset} + {};", address(&view, &element_index)),
            );
            text.line(depth, &format!("for (; r + {lanes} <= {size}; r += {lanes}) {{"));
            text.line(depth + 1, &format!("const {partial} v = vload{lanes}(0, e + r);"));
            text.line(depth + 1, &format!("s = {};", combine("s", "v")));
            text.line(depth, "}");
            let folded_value = fold("s", lanes, combine, &mut text.code, depth);
            text.line(depth, &format!("float t = {folded_value};"));
            if size % lanes != 0 {
                text.line(depth, &format!("for (; r < {size}; ++r)"));
                text.line(depth + 1, &format!("t = {};", combine("t", "e[r]")));
            }
            text.line(depth, &format!("a = {};", combine("a", "t")));
        } else {
            view.offset = 0;
            text.line(depth, &format!("for (; r < {size}; ++r) {{"));
            let base = format!("({pointer} + {offset} + r * {stride})");
            let load = point.load(&base, &view);
            text.line(depth + 1, &format!("const {ty} v = {load};"));
            text.line(depth + 1, &format!("s = {};", combine("s", "v")));
            text.line(depth, "}");
            text.line(depth, &format!("a = {};", combine("a", "s")));
        }
        for level in (1..depth).rev() {
            text.line(level, "}");
        }
        let element_count: i64 = summed_dims.iter().map(|&d| x.shape[d]).product();
        let acc =
            if op.name == "mean" { format!("a / {}", literal(element_count as f64, width)) } else { "a".to_owned() };
        text.line(1, &format!("const {ty} acc = {acc};"));
        body.emit(self.ir, &mut text, &point, 1);
        let (name, comment) = self.group_names(group_index);
        self.add_launch("reduce", text, grid, &name, &comment);
        Ok(())
    }
}
