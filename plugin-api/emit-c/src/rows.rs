//! Computations per row or per point: softmax, layer normalization, reductions, and plain loop nests.

use crate::index_space::memory_order;
use crate::literals::{loaded, storage_type};
use crate::loop_body::{Load, LoopBody, Place, Storage, address};
use crate::lowering::{Lowering, Phase, axis};
use crate::schedule::nest::{Points, Reduction, TRANSPOSE_BLOCK, Transpose};
use crate::schedule::tasks;
use crate::text::{decode, share_loop};
use byoc_plugin_api::DType;
use byoc_plugin_support::region::OpId;
use byoc_plugin_support::view::{View, count};
use std::fmt::Write;

/// Maximum number of elements in a row, which is held on the stack.
pub const MAX_ROW: i64 = 65_536;

impl Lowering<'_, '_> {
    /// Emits a loop nest without an anchor, merging adjacent dimensions where the strides permit.
    pub fn map(&mut self, body: &LoopBody, comment: Vec<String>) -> Result<(), String> {
        let order = match body.stores.first() {
            Some(store) => memory_order(&store.view),
            None => (0..body.domain.len()).collect(),
        };
        let (body, _, _) = body.permute(&order).collapse(&[], &[order.len()]);
        if !self.transpose(&body, &comment) {
            self.points(&body, comment, |_| String::new());
        }
        Ok(())
    }

    /// Emits a blocked transpose if the body is a float32 copy whose source and target have different innermost
    /// dimensions. Returns true if the transpose was emitted.
    fn transpose(&mut self, body: &LoopBody, comment: &[String]) -> bool {
        let ([load], [store]) = (&body.loads[..], &body.stores[..]) else { return false };
        let Some(Transpose { across, rows, columns, dims, items, tasks }) = Transpose::new(body) else { return false };
        let tasks = self.tasks(tasks);
        let inner_dim = dims.len();
        let (source, destination) = (&load.view, &store.view);
        let name = self.phase_name();
        let mut vars: Vec<String> = (0..=inner_dim).map(|d| format!("i{d}")).collect();
        let mut code = String::new();
        let w = &mut code;
        w.push_str(&self.head(&name));
        w.push_str(self.unused_task(tasks));
        w.push_str(&self.pointers(body));
        let _ = writeln!(w, "    {}", share_loop("item", &items.to_string(), "task", tasks));
        w.push_str(&decode(&vars[..inner_dim], &dims, "item", 2));
        let count = if rows % TRANSPOSE_BLOCK == 0 {
            TRANSPOSE_BLOCK.to_string()
        } else {
            let remaining = format!("{rows} - i{across} * {TRANSPOSE_BLOCK}");
            format!("({remaining} < {TRANSPOSE_BLOCK} ? {remaining} : {TRANSPOSE_BLOCK})")
        };
        vars[across] = format!("(i{across} * {TRANSPOSE_BLOCK})");
        vars[inner_dim] = "0".into();
        let _ = writeln!(
            w,
            "        byoc_transpose({} + {}, {}, {} + {}, {}, {count}, {columns});",
            store.place,
            address(destination, &vars),
            destination.strides[across],
            load.place,
            address(source, &vars),
            source.strides[inner_dim]
        );
        let _ = writeln!(w, "    }}\n}}\n");
        let mut phase = Phase { comment: comment.to_vec(), code, ..Phase::default() };
        phase.call = self.call(&name, tasks);
        phase.touch_all(body);
        self.phases.push(phase);
        true
    }

    /// Emits a loop nest over an index space without merging dimensions; `first` formats the statements before the
    /// body, given the index variables.
    pub fn points(&mut self, body: &LoopBody, comment: Vec<String>, first: impl Fn(&[String]) -> String) {
        let name = self.phase_name();
        let rank = body.domain.len();
        let vars: Vec<String> = (0..rank).map(|d| format!("i{d}")).collect();
        let mut phase = Phase { comment, ..Phase::default() };
        phase.touch_all(body);
        let Some(Points { rows, len, tasks }) = Points::new(body) else { return };
        let tasks = self.tasks(tasks);
        let mut code = String::new();
        let w = &mut code;
        w.push_str(&self.head(&name));
        w.push_str(self.unused_task(tasks));
        w.push_str(&self.pointers(body));
        let inner_var = vars.last().cloned().unwrap_or_else(|| "i".into());
        if rows == 1 {
            w.push_str(&decode(&vars[..rank.saturating_sub(1)], &body.domain[..rank.saturating_sub(1)], "0", 1));
            let _ = writeln!(w, "    BYOC_IVDEP\n    {}", share_loop(&inner_var, &len.to_string(), "task", tasks));
            w.push_str(&indent(&first(&vars), 2));
            w.push_str(&body.statements(&vars, 2));
            let _ = writeln!(w, "    }}\n}}\n");
        } else {
            let _ = writeln!(w, "    {}", share_loop("row", &rows.to_string(), "task", tasks));
            w.push_str(&decode(&vars[..rank - 1], &body.domain[..rank - 1], "row", 2));
            let _ = writeln!(
                w,
                "        BYOC_IVDEP\n        for (int64_t {inner_var} = 0; {inner_var} < {len}; ++{inner_var}) {{"
            );
            w.push_str(&indent(&first(&vars), 3));
            w.push_str(&body.statements(&vars, 3));
            let _ = writeln!(w, "        }}\n    }}\n}}\n");
        }
        phase.code = code;
        phase.call = self.call(&name, tasks);
        self.phases.push(phase);
    }

    /// Returns a tensor with `axis` innermost, as a copy if necessary.
    fn with_innermost_axis(
        &mut self,
        storage: Storage,
        axis: usize,
        dtype: DType,
        comment: &str,
    ) -> Result<Storage, String> {
        if storage.view.strides[axis] == 1 || storage.view.shape[axis] == 1 {
            return Ok(storage);
        }
        let mut order: Vec<usize> = (0..storage.view.shape.len()).filter(|&d| d != axis).collect();
        order.push(axis);
        let destination = self.allocate(&storage.view.shape, &order, &[], dtype, comment);
        self.copy(&storage, &destination, dtype, comment)?;
        Ok(destination)
    }

    /// Lowers `nn.softmax`, `nn.log_softmax` and `nn.layer_norm`.
    pub fn normalize(&mut self, group_index: usize, id: OpId, comment: Vec<String>) -> Result<(), String> {
        let ir = self.ir;
        let op = ir.get(id);
        let shape = ir.shape(op.inputs[0]).to_vec();
        let rank = shape.len();
        let axis = axis(op, -1, rank)?;
        let data = self.resolve(op.inputs[0])?;
        let dtype = ir.val(op.inputs[0]).dtype;
        let data = self.with_innermost_axis(data, axis, dtype, &comment[0])?;
        let mut order: Vec<usize> = memory_order(&data.view);
        order.retain(|&d| d != axis);
        order.push(axis);
        let (mut body, _) = self.loop_body(group_index, Some(&order))?;
        let mut result = "s".to_owned();
        if op.name == "nn.layer_norm" {
            for (i, (flag, sign)) in [("scale", "*"), ("center", "+")].into_iter().enumerate() {
                if !op.attrs().flag(flag, true) {
                    continue;
                }
                let storage = self.resolve(op.inputs[1 + i])?;
                let mut strides = vec![0; rank];
                strides[axis] = storage.view.strides.first().copied().unwrap_or(0);
                let view = View { shape: shape.clone(), strides, offset: storage.view.offset };
                let name = ["gamma", "beta"][i].to_owned();
                result = format!("{result} {sign} {name}");
                let dtype = ir.val(op.inputs[1 + i]).dtype;
                body.loads.push(Load { name, place: storage.place, view, dtype });
            }
        }
        body.lines.insert(0, format!("const float acc = {result};"));
        let body = body.permute(&order);
        let x = data.view.permute(&order);
        let (body, strides, lengths) = body.collapse(&[&x.strides], &[rank - 1, 1]);
        let x = View { shape: body.domain.clone(), strides: strides[0].clone(), offset: x.offset };
        let rows: i64 = body.domain[..lengths[0]].iter().product();
        let n = shape[axis];
        let name = self.phase_name();
        let tasks = self.tasks(tasks(rows * n, 4096, 16, rows));
        let mut vars: Vec<String> = (0..lengths[0]).map(|d| format!("r{d}")).collect();
        vars.push("c".into());
        let mut code = String::new();
        let w = &mut code;
        w.push_str(&self.head(&name));
        w.push_str(&self.pointers_and(&body, data.place, dtype));
        let _ = writeln!(w, "    float BYOC_ALIGNED t[{n}];");
        if dtype == DType::F16 {
            let _ = writeln!(w, "    float values[{n}];");
        }
        w.push_str(self.unused_task(tasks));
        let _ = writeln!(w, "    {}", share_loop("row", &rows.to_string(), "task", tasks));
        w.push_str(&decode(&vars[..lengths[0]], &body.domain[..lengths[0]], "row", 2));
        let mut index = vars.clone();
        index[lengths[0]] = "0".into();
        let mut row_address = format!("{} + {}", data.place, address(&x, &index));
        if dtype == DType::F16 {
            let _ = writeln!(w, "        for (int64_t c = 0; c < {n}; ++c)");
            let _ = writeln!(w, "            values[c] = byoc_from_half(({row_address})[c]);");
            row_address = "values".to_owned();
        }
        let _ = match op.name {
            "nn.softmax" => writeln!(w, "        byoc_softmax({row_address}, t, {n});"),
            "nn.log_softmax" => writeln!(w, "        byoc_log_softmax({row_address}, t, {n});"),
            _ => {
                let epsilon = crate::literals::literal(DType::F32, op.attrs().float("epsilon", 1e-5));
                writeln!(w, "        byoc_layer_norm({row_address}, t, {n}, {epsilon});")
            }
        };
        let _ = writeln!(w, "        BYOC_IVDEP\n        for (int64_t c = 0; c < {n}; ++c) {{");
        let _ = writeln!(w, "            const float s = t[c];");
        w.push_str(&body.statements(&vars, 3));
        let _ = writeln!(w, "        }}\n    }}\n}}\n");
        let mut phase = Phase { comment, code, ..Phase::default() };
        phase.call = self.call(&name, tasks);
        phase.touch(data.place);
        phase.touch_all(&body);
        self.phases.push(phase);
        Ok(())
    }

    /// Lowers `sum`, `mean`, `max`, `min` and `prod`.
    pub fn reduce(&mut self, group_index: usize, id: OpId, comment: Vec<String>) -> Result<(), String> {
        let ir = self.ir;
        let op = ir.get(id);
        let shape = ir.shape(op.inputs[0]).to_vec();
        let rank = shape.len();
        let is_reduced = op.attrs().reduced(rank).ok_or_else(|| {
            let axes = op.attrs().ints("axis").unwrap_or_default();
            format!("{}: attribute axis: expected axes of a tensor of rank {rank}, found {axes:?}", op.name)
        })?;
        let data = self.resolve(op.inputs[0])?;
        let kept_dims: Vec<usize> = (0..rank).filter(|&d| !is_reduced[d]).collect();
        // Dimensions that are not reduced, in memory order.
        let kept_in_memory_order: Vec<usize> =
            memory_order(&data.view).into_iter().filter(|d| !is_reduced[*d]).collect();
        let out_rank = ir.shape(op.outputs[0]).len();
        let keeps_dims = out_rank == rank && out_rank != kept_dims.len();
        let out_dim = |d: usize| if keeps_dims { d } else { kept_dims.iter().position(|&k| k == d).unwrap_or(0) };
        let mut order: Vec<usize> = kept_in_memory_order.iter().map(|&d| out_dim(d)).collect();
        if keeps_dims {
            order.extend((0..rank).filter(|&d| is_reduced[d]));
        }
        let (body, _) = self.loop_body(group_index, Some(&order))?;
        let kept_shape: Vec<i64> = kept_dims.iter().map(|&d| shape[d]).collect();
        let body = body.transform(|v| v.reshape(&kept_shape)).ok_or_else(|| {
            let result = ir.shape(op.outputs[0]);
            format!("{}: expected a result that can be viewed as shape {kept_shape:?}, found shape {result:?}", op.name)
        })?;
        let positions: Vec<usize> =
            kept_in_memory_order.iter().map(|d| kept_dims.iter().position(|k| k == d).unwrap_or(0)).collect();
        let body = body.permute(&positions);
        let kept_view = data.view.permute(&kept_in_memory_order);
        let (body, strides, _) = body.collapse(&[&kept_view.strides], &[kept_dims.len()]);
        let x = View { shape: body.domain.clone(), strides: strides[0].clone(), offset: data.view.offset };
        let summed_dims: Vec<usize> = memory_order(&data.view).into_iter().filter(|d| is_reduced[*d]).collect();
        let element_count: i64 = summed_dims.iter().map(|&d| shape[d]).product();
        let dims = body.domain.len();
        let name = self.phase_name();
        let vars: Vec<String> = (0..dims).map(|d| format!("i{d}")).collect();
        let (start, step): (&str, fn(&str, &str) -> String) = match op.name {
            "max" => ("-INFINITY", |t, x| format!("{t} != {t} || {t} > {x} ? {t} : {x}")),
            "min" => ("INFINITY", |t, x| format!("{t} != {t} || {t} < {x} ? {t} : {x}")),
            "prod" => ("1.0f", |t, x| format!("{t} * {x}")),
            _ => ("0.0f", |t, x| format!("{t} + {x}")),
        };
        let result = |t: &str| if op.name == "mean" { format!("{t} / {element_count}.0f") } else { t.to_owned() };
        let len = body.domain[dims - 1];
        let Reduction { across, block, blocks, items, tasks } = Reduction::new(&x, count(&shape));
        let tasks = self.tasks(tasks);
        let mut code = String::new();
        let w = &mut code;
        w.push_str(&self.head(&name));
        let dtype = ir.val(op.inputs[0]).dtype;
        w.push_str(&self.pointers_and(&body, data.place, dtype));
        w.push_str(self.unused_task(tasks));
        let _ = writeln!(w, "    {}", share_loop("item", &items.to_string(), "task", tasks));
        let mut outer_dims = body.domain[..dims - 1].to_vec();
        outer_dims.push(blocks);
        let mut outer_vars = vars[..dims - 1].to_vec();
        outer_vars.push("block".into());
        w.push_str(&decode(&outer_vars, &outer_dims, "item", 2));
        let last_var = &vars[dims - 1];
        let mut index = vars.clone();
        let mut depth = 2;
        if across {
            let _ = writeln!(w, "        const int64_t first = block * {block};");
            let _ = writeln!(w, "        const int64_t n = {len} - first < {block} ? {len} - first : {block};");
            let _ = writeln!(w, "        float t[{block}];");
            let _ = writeln!(w, "        for (int64_t j = 0; j < n; ++j)\n            t[j] = {start};");
            index[dims - 1] = "first".into();
        } else {
            let _ = writeln!(w, "        const int64_t {last_var} = block;\n        (void){last_var};");
            let _ = writeln!(w, "        float t = {start};");
        }
        let mut terms = vec![format!("{} + {}", data.place, address(&x, &index))];
        let (outer, inner_dim) = match summed_dims.split_last() {
            Some((&inner_dim, outer)) if !across && data.view.strides[inner_dim] == 1 && dtype == DType::F32 => {
                (outer, Some(inner_dim))
            }
            _ => (&summed_dims[..], None),
        };
        for (k, &d) in outer.iter().enumerate() {
            let pad = "    ".repeat(depth);
            let _ = writeln!(w, "{pad}for (int64_t y{k} = 0; y{k} < {}; ++y{k}) {{", shape[d]);
            terms.push(format!("y{k} * {}", data.view.strides[d]));
            depth += 1;
        }
        let pad = "    ".repeat(depth);
        let ty = storage_type(dtype).unwrap_or("float");
        let _ = writeln!(w, "{pad}const {ty} *x = {};", terms.join(" + "));
        if across {
            let statement = step("t[j]", &loaded(dtype, "x[j]"));
            let _ = writeln!(w, "{pad}for (int64_t j = 0; j < n; ++j)\n{pad}    t[j] = {statement};");
        } else if let Some(inner_dim) = inner_dim {
            let run = match op.name {
                "max" => "byoc_row_max",
                "min" => "byoc_row_min",
                "prod" => "byoc_row_prod",
                _ => "byoc_row_sum",
            };
            let _ = writeln!(w, "{pad}const float run = {run}(x, {});", shape[inner_dim]);
            let _ = writeln!(w, "{pad}t = {};", step("t", "run"));
        } else {
            let _ = writeln!(w, "{pad}t = {};", step("t", &loaded(dtype, "x[0]")));
        }
        for level in (2..depth).rev() {
            let _ = writeln!(w, "{}}}", "    ".repeat(level));
        }
        if across {
            let _ = writeln!(w, "        BYOC_IVDEP\n        for (int64_t j = 0; j < n; ++j) {{");
            let _ = writeln!(w, "            const int64_t {last_var} = first + j;\n            (void){last_var};");
            let _ = writeln!(w, "            const float acc = {};", result("t[j]"));
            w.push_str(&body.statements(&vars, 3));
            let _ = writeln!(w, "        }}");
        } else {
            let _ = writeln!(w, "        const float acc = {};", result("t"));
            w.push_str(&body.statements(&vars, 2));
        }
        let _ = writeln!(w, "    }}\n}}\n");
        let mut phase = Phase { comment, code, ..Phase::default() };
        phase.call = self.call(&name, tasks);
        phase.touch(data.place);
        phase.touch_all(&body);
        self.phases.push(phase);
        Ok(())
    }

    /// Formats the pointer declarations of a loop body and of one additional source tensor.
    pub fn pointers_and(&self, body: &LoopBody, place: Place, dtype: DType) -> String {
        let mut pointers = self.pointers(body);
        if !pointers.contains(&format!("{place} =")) {
            pointers.push_str(&self.pointer(place, dtype, "const "));
        }
        pointers
    }
}

/// Indents each line by `levels` levels of four spaces.
fn indent(text: &str, levels: usize) -> String {
    text.lines().map(|line| format!("{}{line}\n", "    ".repeat(levels))).collect()
}
