//! Plain loop nests, and computations per row: softmax and layer normalization.

use super::{Lowering, Phase, axis};
use crate::form::Form;
use crate::index_space::memory_order;
use crate::nest::Step;
use crate::nest::body::{Access, LoopBody};
use crate::nest::transform::{apply, decode, divided, nest};
use crate::nest::{Expr, Loop, Stmt, element, indices, numbered};
use crate::schedule::nest::{TRANSPOSE_BLOCK, Transpose, point_tasks};
use crate::schedule::tasks;
use byoc_plugin_api::DType;
use byoc_plugin_support::region::{Op, OpId};
use byoc_plugin_support::view::{View, count};

impl Lowering<'_, '_> {
    /// Adds a loop nest without an anchor, with adjacent dimensions merged where the strides permit.
    pub fn map(&mut self, kind: &'static str, body: &LoopBody, comment: Vec<String>) {
        let order = match body.stores.first() {
            Some(store) => memory_order(&store.view),
            None => (0..body.domain.len()).collect(),
        };
        let (body, _, _) = body.permute(&order).collapse(&[], &[order.len()]);
        let is_transposed = !matches!(self.form, Form::Device(_)) && self.transpose(&body, &comment);
        if !is_transposed {
            self.points(kind, &body, comment, |_| Vec::new());
        }
    }

    /// Adds a blocked transpose if the body is a float32 copy whose source and target have different innermost
    /// dimensions. Returns true if it is.
    fn transpose(&mut self, body: &LoopBody, comment: &[String]) -> bool {
        let ([load], [store]) = (&body.loads[..], &body.stores[..]) else { return false };
        let Some(Transpose { across, dims, tasks }) = Transpose::new(body) else { return false };
        let tasks = self.form.tasks(tasks);
        let inner_dim = dims.len();
        let (rows, columns) = (body.domain[across], body.domain[inner_dim]);
        let vars = numbered("i", inner_dim);
        let mut index = indices(&vars);
        index[across] = index[across].clone() * TRANSPOSE_BLOCK;
        let block_rows = (Expr::Index(rows) - index[across].clone()).min(TRANSPOSE_BLOCK);
        let block_rows = if rows % TRANSPOSE_BLOCK == 0 { Expr::Index(TRANSPOSE_BLOCK) } else { block_rows };
        index.push(Expr::Index(0));
        let mut stmts = decode(&vars, &dims, &Expr::name("item"));
        let arguments = vec![
            Expr::address(store.place, DType::F32, element(&store.view, &index)),
            Expr::Index(store.view.strides[across]),
            Expr::address(load.place, DType::F32, element(&load.view, &index)),
            Expr::Index(load.view.strides[inner_dim]),
            block_rows,
            Expr::Index(columns),
        ];
        stmts.push(Stmt::Call("byoc_transpose".into(), arguments));
        let phase = Phase { tasks, ..Phase::of("transpose", comment.to_vec(), &[], body) };
        self.push(phase, vec![divided("item", count(&dims), "task", tasks, stmts)]);
        true
    }

    /// Adds a loop nest over an index space without merging dimensions; `first` returns the statements before the body,
    /// given the indices.
    pub fn points(
        &mut self,
        kind: &'static str,
        body: &LoopBody,
        comment: Vec<String>,
        first: impl Fn(&[Expr]) -> Vec<Stmt>,
    ) {
        let Some(tasks) = point_tasks(body) else { return };
        let vars = numbered("i", body.domain.len().max(1));
        let dims = if body.domain.is_empty() { &[1][..] } else { &body.domain };
        let index = indices(&vars[..body.domain.len()]);
        let mut stmts = first(&index);
        stmts.extend(body.statements(&index));
        let phase = Phase::of(kind, comment, &[], body);
        self.push_points(phase, &vars, dims, stmts, tasks);
    }

    /// Adds a nest whose points are independent: rows are divided among `tasks` tasks, or among work-items together with
    /// the vectors of a row.
    pub fn push_points(&mut self, mut phase: Phase, vars: &[String], dims: &[i64], stmts: Vec<Stmt>, tasks: i64) {
        let Some((last, outer)) = vars.split_last() else { return };
        let rows = count(&dims[..outer.len()]);
        let mut stmts = nest(vars, dims, stmts);
        phase.schedule = match self.form {
            Form::Device(device) => {
                let width = device.lanes(&stmts, last, dims[outer.len()]);
                let columns = if width == 1 { last.clone() } else { format!("{last}_vector") };
                phase.grid = Some(device.grid((dims[outer.len()] + width - 1) / width, rows));
                vec![
                    Step::Fuse { vars: outer.to_vec(), into: "row".into() },
                    Step::Items { var: "row".into(), dim: 1 },
                    Step::Vectorize { var: last.clone(), width },
                    Step::Items { var: columns, dim: 0 },
                ]
            }
            _ => {
                phase.tasks = self.form.tasks(tasks);
                let divided = if rows == 1 { last } else { "row" };
                vec![
                    Step::Fuse { vars: outer.to_vec(), into: "row".into() },
                    Step::Parallel { var: divided.to_owned(), tasks: phase.tasks },
                    Step::Simd { var: last.clone() },
                ]
            }
        };
        if outer.is_empty() {
            phase.schedule.retain(|step| !matches!(step, Step::Fuse { .. } | Step::Items { dim: 1, .. }));
        }
        self.push_scheduled(phase, &mut stmts);
    }

    /// Transforms a nest by the schedule of its phase, and adds it.
    pub fn push_scheduled(&mut self, mut phase: Phase, stmts: &mut Vec<Stmt>) {
        phase
            .schedule
            .retain(|step| !matches!(step, Step::Parallel { tasks: 1, .. } | Step::Vectorize { width: 1, .. }));
        phase.nest.clone_from(stmts);
        for step in &phase.schedule {
            let applied = apply(stmts, step);
            debug_assert!(applied.is_ok(), "{applied:?}");
        }
        self.push(phase, std::mem::take(stmts));
    }

    /// Adds the operators that scale and shift the rows of a layer normalization. Returns what they compute.
    fn scaled_rows(&mut self, op: &Op<'_>, axis: usize, body: &mut LoopBody) -> Result<Expr, String> {
        let mut result = Expr::name("normalized");
        for (i, (flag, name)) in [("scale", "gamma"), ("center", "beta")].into_iter().enumerate() {
            if !op.attrs().flag(flag, true) {
                continue;
            }
            let (value, storage) = (op.inputs[1 + i], self.resolve(op.inputs[1 + i])?);
            let shape = self.ir.shape(op.inputs[0]).to_vec();
            let mut strides = vec![0; shape.len()];
            strides[axis] = storage.view.strides.first().copied().unwrap_or(0);
            let view = View { shape, strides, offset: storage.view.offset };
            result = if i == 0 { result * name } else { result + name };
            body.loads.push(Access { name: name.into(), place: storage.place, view, dtype: self.ir.val(value).dtype });
        }
        Ok(result)
    }

    /// Lowers `nn.softmax`, `nn.log_softmax` and `nn.layer_norm`.
    pub fn normalize(&mut self, group_index: usize, id: OpId, comment: Vec<String>) -> Result<(), String> {
        let ir = self.ir;
        let op = ir.get(id);
        let shape = ir.shape(op.inputs[0]).to_vec();
        let rank = shape.len();
        let axis = axis(op, -1, rank)?;
        let mut data = self.resolve(op.inputs[0])?;
        let dtype = ir.val(op.inputs[0]).dtype;
        if data.view.strides[axis] != 1 && data.view.shape[axis] != 1 {
            data = self.copy_with_innermost(&data, axis, &[], dtype, &comment[0]);
        }
        let mut order: Vec<usize> = memory_order(&data.view);
        order.retain(|&d| d != axis);
        order.push(axis);
        let mut body = self.loop_body(group_index, Some(&order))?;
        let is_scaled = op.name == "nn.layer_norm";
        let result = if is_scaled { self.scaled_rows(op, axis, &mut body)? } else { Expr::name("normalized") };
        body.lines.insert(0, Stmt::value("acc", DType::F32, result));
        let body = body.permute(&order);
        let x = data.view.permute(&order);
        let (body, strides, lengths) = body.collapse(&[&x.strides], &[rank - 1, 1]);
        let x = View { shape: body.domain.clone(), strides: strides[0].clone(), offset: x.offset };
        let outer = lengths[0];
        let rows: i64 = body.domain[..outer].iter().product();
        let n = shape[axis];
        let vars = numbered("r", outer);
        let mut index = indices(&vars);
        index.push(Expr::Index(0));
        let row = Expr::address(data.place, dtype, element(&x, &index));
        index[outer] = Expr::name("c");
        let mut phase = Phase::of("rows", comment, &[data.place], &body);
        let epsilon = Expr::Number(DType::F32, op.attrs().float("epsilon", 1e-5));
        let (mut stmts, normalized) = match self.form {
            Form::Device(_) => {
                row_of_device(op.name, row, Expr::load(data.place, dtype, element(&x, &index)), n, epsilon)
            }
            _ => row_of_stack(op.name, row, dtype, n, epsilon),
        };
        let mut point = vec![Stmt::value("normalized", DType::F32, normalized)];
        point.extend(body.statements(&index));
        stmts.push(Loop::new("c", n, point).into());
        let mut stmts = nest(&vars, &body.domain[..outer], stmts);
        phase.schedule = vec![Step::Fuse { vars, into: "row".into() }];
        phase.schedule.extend(match self.form {
            Form::Device(device) => {
                phase.grid = Some(device.row_grid(rows));
                let width = device.lanes(&stmts, "c", n);
                [Step::Items { var: "row".into(), dim: 0 }, Step::Vectorize { var: "c".into(), width }]
            }
            _ => {
                phase.tasks = self.form.tasks(tasks(rows * n, 4096, 16, rows));
                [Step::Parallel { var: "row".into(), tasks: phase.tasks }, Step::Simd { var: "c".into() }]
            }
        });
        self.push_scheduled(phase, &mut stmts);
        Ok(())
    }
}

/// Normalizes a row into an array on the stack. Returns the statements, and the value at column `c`.
fn row_of_stack(name: &str, row: Expr, dtype: DType, n: i64, epsilon: Expr) -> (Vec<Stmt>, Expr) {
    let mut stmts = vec![Stmt::array("t", DType::F32, n)];
    let local = |name: &str| Expr::address(name, DType::F32, Expr::Index(0));
    let mut source = row.clone();
    if let (DType::F16, Expr::Address(memory, _, start)) = (dtype, row) {
        // The functions take float32.
        stmts.push(Stmt::array("values", DType::F32, n));
        let value = Expr::load(memory, dtype, *start + Expr::name("c"));
        let store = Stmt::store("values", DType::F32, Expr::name("c"), value);
        stmts.push(Loop::new("c", n, vec![store]).into());
        source = local("values");
    }
    let (function, epsilon) = match name {
        "nn.softmax" => ("byoc_softmax", None),
        "nn.log_softmax" => ("byoc_log_softmax", None),
        _ => ("byoc_layer_norm", Some(epsilon)),
    };
    let arguments = [local("t"), source, Expr::Index(n)].into_iter().chain(epsilon).collect();
    stmts.push(Stmt::Call(function.into(), arguments));
    (stmts, Expr::load("t", DType::F32, Expr::name("c")))
}

/// Computes what the elements of a row share. Returns the statements, and the value for the element `x`.
fn row_of_device(name: &str, row: Expr, x: Expr, n: i64, epsilon: Expr) -> (Vec<Stmt>, Expr) {
    let value = |name: &str, value: Expr| Stmt::value(name, DType::F32, value);
    let of_row = |function: &'static str, more: Option<&str>| {
        Expr::Call(function, [row.clone(), Expr::Index(n)].into_iter().chain(more.map(Expr::from)).collect())
    };
    let math = |name: &'static str, x: Expr| Expr::Math(name, DType::F32, vec![x]);
    let size = Expr::Number(DType::F32, n as f64);
    if name == "nn.layer_norm" {
        let deviation = math("sqrt", of_row("byoc_row_squares", Some("mean")) / size.clone() + epsilon);
        let stmts = vec![
            value("mean", of_row("byoc_row_sum", None) / size),
            value("scale", Expr::Number(DType::F32, 1.0) / deviation),
        ];
        return (stmts, (x - Expr::name("mean")) * Expr::name("scale"));
    }
    let mut stmts =
        vec![value("top", of_row("byoc_row_max", None)), value("total", of_row("byoc_row_exponentials", Some("top")))];
    let distance = x - Expr::name("top");
    if name == "nn.softmax" {
        return (stmts, math("exp", distance) / Expr::name("total"));
    }
    stmts.push(value("shift", math("log", Expr::name("total"))));
    (stmts, distance - Expr::name("shift"))
}
