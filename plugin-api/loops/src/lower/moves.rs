//! Operators that read elements at computed indices: `take`, `gather`, `nn.pad`.

use super::{Lowering, axis};
use crate::index_space::memory_order;
use crate::nest::body::Storage;
use crate::nest::{Expr, Stmt, element};
use crate::types::computed;
use byoc_plugin_support::region::{Op, OpId};
use byoc_plugin_support::view::View;

impl Lowering<'_, '_> {
    /// Lowers `take` and `gather`.
    pub fn gather(&mut self, group_index: usize, id: OpId, comment: Vec<String>) -> Result<(), String> {
        let ir = self.ir;
        let op = ir.get(id);
        let data = self.resolve(op.inputs[0])?;
        let indices = self.resolve(op.inputs[1])?;
        let (data_type, index_type) = (ir.val(op.inputs[0]).dtype, ir.val(op.inputs[1]).dtype);
        let rank = data.view.shape.len();
        let order: Vec<usize> = (0..ir.shape(op.outputs[0]).len()).collect();
        let body = self.loop_body(group_index, Some(&order))?;
        let axis = op.attrs().ints("axis").map(|_| axis(op, 0, rank)).transpose()?;
        let is_take = op.name == "take";
        let flat_size: i64 = data.view.shape.iter().product();
        let flat_view = if is_take && axis.is_none() { data.view.reshape(&[flat_size]) } else { None };
        let data = match (is_take, axis, flat_view) {
            (true, None, Some(view)) => Storage::new(data.place, view),
            (true, None, None) => {
                let dense = self.dense_copy(&data, data_type, &comment[0]);
                Storage::new(dense.place, View::dense(&[flat_size]))
            }
            _ => data,
        };
        let axis = axis.unwrap_or(0);
        let size = data.view.shape[axis];
        let index_rank = indices.view.shape.len();
        let wraps = op.attrs().text("mode") == "wrap";
        self.points("take", &body, comment, |vars| {
            let index_vars = if is_take { &vars[axis..axis + index_rank] } else { vars };
            let mut index = vars.to_vec();
            match is_take {
                true => drop(index.splice(axis..axis + index_rank, [Expr::name("index")])),
                false => index[axis] = Expr::name("index"),
            }
            let found = Expr::load(indices.place, index_type, element(&indices.view, index_vars));
            let read = || Expr::name("read");
            let wrapped = match (is_take, wraps) {
                (false, _) => read().lt(0).select(read() + size, read()),
                (true, true) => (read() % size + size) % size,
                (true, false) => read(),
            };
            vec![
                Stmt::index("read", found),
                Stmt::index("wrapped", wrapped),
                // Out-of-range indices are clamped.
                Stmt::index("index", Expr::name("wrapped").clamp(size)),
                Stmt::value("acc", data_type, Expr::load(data.place, data_type, element(&data.view, &index))),
            ]
        });
        Ok(())
    }

    /// Lowers `nn.pad`.
    pub fn pad(&mut self, group_index: usize, id: OpId, comment: Vec<String>) -> Result<(), String> {
        let ir = self.ir;
        let op = ir.get(id);
        let data = self.resolve(op.inputs[0])?;
        let dtype = ir.val(op.inputs[0]).dtype;
        let shape = ir.shape(op.inputs[0]).to_vec();
        let widths = pad_widths(op);
        let order = memory_order(&data.view);
        let body = self.loop_body(group_index, Some(&order))?.permute(&order);
        let view = data.view.permute(&order);
        let value = match op.inputs.get(1) {
            Some(&v) => {
                let (storage, dtype) = (self.resolve(v)?, ir.val(v).dtype);
                Expr::load(storage.place, dtype, Expr::Index(storage.view.offset))
            }
            None => Expr::number(computed(dtype), op.attrs().float("pad_value", 0.0)),
        };
        let mode = op.attrs().text("pad_mode").to_owned();
        self.points("pad", &body, comment, |vars| {
            let mut stmts = Vec::new();
            let mut conditions: Vec<Expr> = Vec::new();
            let mut index = vars.to_vec();
            for (k, &d) in order.iter().enumerate() {
                let (pad_before, pad_after) = widths.get(d).copied().unwrap_or((0, 0));
                let size = shape[d];
                if pad_before == 0 && pad_after == 0 {
                    continue;
                }
                let (moved, name) = (format!("at{k}"), format!("inner{k}"));
                stmts.push(Stmt::index(&moved, vars[k].clone() - pad_before));
                let at = || Expr::from(&moved);
                let position = match mode.as_str() {
                    "edge" => at().clamp(size),
                    "reflect" => at()
                        .lt(0)
                        .select(Expr::Index(0) - at(), at().ge(size).select(Expr::Index(2 * (size - 1)) - at(), at())),
                    _ => {
                        conditions.push(at().ge(0).and(at().lt(size)));
                        at()
                    }
                };
                stmts.push(Stmt::index(&name, position));
                index[k] = Expr::from(&name);
            }
            let element = Expr::load(data.place, dtype, element(&view, &index));
            let padded = match conditions.into_iter().reduce(Expr::and) {
                Some(inside) => inside.select(element, value.clone()),
                None => element,
            };
            stmts.push(Stmt::value("acc", dtype, padded));
            stmts
        });
        Ok(())
    }
}

/// Reads the attribute `pad_width`: the number of elements added before and after each axis.
fn pad_widths(op: &Op<'_>) -> Vec<(i64, i64)> {
    let list = op.node.attr("pad_width").and_then(|v| v.as_list()).unwrap_or_default();
    let pairs: Option<Vec<(i64, i64)>> =
        list.iter().map(|pair| pair.as_ints().filter(|p| p.len() == 2).map(|p| (p[0], p[1]))).collect();
    pairs.unwrap_or_else(|| {
        let flat_widths: Vec<i64> = list.iter().filter_map(|v| v.as_int()).collect();
        flat_widths.chunks(2).map(|p| (p[0], p.get(1).copied().unwrap_or(0))).collect()
    })
}
