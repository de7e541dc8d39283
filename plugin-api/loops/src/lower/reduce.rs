//! Reductions over axes: `sum`, `mean`, `max`, `min` and `prod`.

use super::{Lowering, Phase};
use crate::form::Form;
use crate::index_space::memory_order;
use crate::nest::Step;
use crate::nest::transform::nest;
use crate::nest::{Expr, Infix, Loop, Place, Reduce, Stmt, element, indices, numbered};
use crate::operators::elementwise::extreme;
use crate::schedule::nest::Reduction;
use byoc_plugin_api::DType;
use byoc_plugin_support::region::OpId;
use byoc_plugin_support::view::{View, count};

/// Returns the first value of a reduction, the new value for an accumulator and an element, and the function that reduces
/// a contiguous row.
fn combination(name: &str, dtype: DType) -> (f64, Box<dyn Fn(Expr, Expr) -> Expr>, &'static str) {
    match name {
        "max" => (f64::NEG_INFINITY, Box::new(move |a, b| extreme(Infix::Gt, dtype, a, b)), "byoc_row_max"),
        "min" => (f64::INFINITY, Box::new(move |a, b| extreme(Infix::Lt, dtype, a, b)), "byoc_row_min"),
        "prod" => (1.0, Box::new(|a, b| a * b), "byoc_row_prod"),
        _ => (0.0, Box::new(|a, b| a + b), "byoc_row_sum"),
    }
}

impl Lowering<'_, '_> {
    /// Lowers a reduction.
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
        // Dimensions in memory order.
        let (summed, kept): (Vec<usize>, Vec<usize>) =
            memory_order(&data.view).into_iter().partition(|&d| is_reduced[d]);
        let kept_dims: Vec<usize> = (0..rank).filter(|&d| !is_reduced[d]).collect();
        let positions: Vec<usize> = kept.iter().map(|d| kept_dims.iter().position(|k| k == d).unwrap_or(0)).collect();
        let out_rank = ir.shape(op.outputs[0]).len();
        let keeps_dims = out_rank == rank && out_rank != kept_dims.len();
        let mut order = if keeps_dims { kept.clone() } else { positions.clone() };
        if keeps_dims {
            order.extend((0..rank).filter(|&d| is_reduced[d]));
        }
        let body = self.loop_body(group_index, Some(&order))?;
        let kept_shape: Vec<i64> = kept_dims.iter().map(|&d| shape[d]).collect();
        let body = body.transform(|v| v.reshape(&kept_shape)).ok_or_else(|| {
            let result = ir.shape(op.outputs[0]);
            format!("{}: expected a result that can be viewed as shape {kept_shape:?}, found shape {result:?}", op.name)
        })?;
        let kept_view = data.view.permute(&kept);
        let (body, strides, _) = body.permute(&positions).collapse(&[&kept_view.strides], &[kept.len()]);
        let x = View { shape: body.domain.clone(), strides: strides[0].clone(), offset: data.view.offset };
        let dtype = ir.val(op.inputs[0]).dtype;
        let schedule = Reduction::new(&x, count(&shape));
        let index = indices(&numbered("i", body.domain.len()));
        // A contiguous row is reduced by a function, which has several accumulators.
        let has_row =
            !schedule.across && dtype == DType::F32 && summed.last().is_some_and(|&d| data.view.strides[d] == 1);
        let loops: Vec<(i64, i64)> = summed.iter().map(|&d| (shape[d], data.view.strides[d])).collect();
        let reduce = reduction(op.name, (data.place, dtype, element(&x, &index)), &loops, has_row);
        let (sum, elements) = (Expr::name("sum"), loops.iter().map(|level| level.0).product::<i64>());
        let result = if op.name == "mean" { sum / Expr::Number(DType::F32, elements as f64) } else { sum };
        let mut stmts = vec![reduce.into(), Stmt::value("acc", DType::F32, result)];
        stmts.extend(body.statements(&index));
        self.push_reduction(Phase::of("reduce", comment, &[data.place], &body), &body.domain, schedule, stmts);
        Ok(())
    }

    /// Adds the nest of a reduction.
    fn push_reduction(&mut self, mut phase: Phase, dims: &[i64], schedule: Reduction, stmts: Vec<Stmt>) {
        let Reduction { across, block, tasks } = schedule;
        let vars = numbered("i", dims.len());
        if matches!(self.form, Form::Device(_)) {
            return self.push_points(phase, &vars, dims, stmts, 1);
        }
        let mut stmts = nest(&vars, dims, stmts);
        phase.tasks = self.form.tasks(tasks);
        let mut fused = vars;
        if across {
            let into = ["block".to_owned(), "j".to_owned()];
            let last = fused.len() - 1;
            let var = std::mem::replace(&mut fused[last], into[0].clone());
            phase.schedule.push(Step::Split { var, by: block, into });
        }
        phase.schedule.push(Step::Fuse { vars: fused, into: "item".into() });
        phase.schedule.push(Step::Parallel { var: "item".into(), tasks: phase.tasks });
        if across {
            phase.schedule.push(Step::Accumulate { var: "j".into(), len: block });
        }
        self.push_scheduled(phase, &mut stmts);
    }
}

/// Returns the reduction of the elements from `first` on, over loops given by their sizes and strides; with `has_row`, a
/// function reduces the innermost one.
fn reduction(name: &str, first: (Place, DType, Expr), loops: &[(i64, i64)], has_row: bool) -> Reduce {
    let (place, dtype, mut index) = first;
    let (start, combine, row_function) = combination(name, DType::F32);
    let (outer, row) = loops.split_at(loops.len() - usize::from(has_row));
    for (k, &(_, stride)) in outer.iter().enumerate() {
        index = index + Expr::name(format!("y{k}")) * stride;
    }
    let value = match row {
        [(size, _)] => Expr::Call(row_function, vec![Expr::address(place, dtype, index), Expr::Index(*size)]),
        _ => Expr::load(place, dtype, index),
    };
    let level = |(k, &(size, _)): (usize, &(i64, i64))| Loop::new(&format!("y{k}"), size, Vec::new());
    Reduce {
        name: "sum".into(),
        dtype: DType::F32,
        start: Expr::Number(DType::F32, start),
        loops: outer.iter().enumerate().map(level).collect(),
        value: combine(Expr::name("sum"), value),
    }
}
