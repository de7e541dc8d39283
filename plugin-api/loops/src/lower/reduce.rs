//! Reductions over axes: `sum`, `mean`, `max`, `min` and `prod`.

use super::{Lowering, Phase};
use crate::form::Form;
use crate::index_space::memory_order;
use crate::nest::Step;
use crate::nest::transform::nest;
use crate::nest::{Expr, Infix, Loop, Reduce, Stmt, element, indices, numbered};
use crate::operators::elementwise::extreme;
use crate::schedule::nest::Reduction;
use byoc_plugin_api::DType;
use byoc_plugin_support::region::OpId;
use byoc_plugin_support::view::{View, count};

/// Returns the first value of a reduction, the new value for an accumulator and an element, and the function that reduces
/// a contiguous row.
pub fn combination(name: &str, dtype: DType) -> (f64, Box<dyn Fn(Expr, Expr) -> Expr>, &'static str) {
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
        let dtype = ir.val(op.inputs[0]).dtype;
        let Reduction { across, block, blocks, tasks, .. } = Reduction::new(&x, count(&shape));

        let dims = body.domain.len();
        let vars = numbered("i", dims);
        let (start, combine, row_function) = combination(op.name, DType::F32);
        let mut index = element(&x, &indices(&vars));
        // A contiguous row is reduced by a function, which has several accumulators.
        let row =
            summed_dims.split_last().filter(|(d, _)| !across && data.view.strides[**d] == 1 && dtype == DType::F32);
        let loops = row.map_or(&summed_dims[..], |(_, outer)| outer);
        for (k, &d) in loops.iter().enumerate() {
            index = index + Expr::name(format!("y{k}")) * data.view.strides[d];
        }
        let value = match row {
            Some((&d, _)) => {
                Expr::Call(row_function, vec![Expr::address(data.place, dtype, index), Expr::Index(shape[d])])
            }
            None => Expr::load(data.place, dtype, index),
        };
        let reduce = Reduce {
            name: "sum".into(),
            dtype: DType::F32,
            start: Expr::Number(DType::F32, start),
            loops: loops.iter().enumerate().map(|(k, &d)| Loop::new(&format!("y{k}"), shape[d], Vec::new())).collect(),
            value: combine(Expr::name("sum"), value),
        };
        let sum = Expr::name("sum");
        let result = if op.name == "mean" { sum / Expr::Number(DType::F32, element_count as f64) } else { sum };
        let mut stmts = vec![reduce.into(), Stmt::value("acc", DType::F32, result)];
        stmts.extend(body.statements(&indices(&vars)));

        let mut phase = Phase::new("reduce", comment);
        phase.touch(data.place);
        phase.touch_all(&body);
        if matches!(self.form, Form::Device(_)) {
            self.push_points(phase, &vars, &body.domain, stmts, 1);
            return Ok(());
        }
        let mut stmts = nest(&vars, &body.domain, stmts);
        phase.tasks = self.form.tasks(tasks);
        let mut fused = vars.clone();
        if across {
            let into = ["block".to_owned(), "j".to_owned()];
            fused[dims - 1].clone_from(&into[0]);
            phase.schedule.push(Step::Split { var: vars[dims - 1].clone(), by: block, into });
        }
        phase.schedule.push(Step::Fuse { vars: fused, into: "item".into() });
        phase.schedule.push(Step::Parallel { var: "item".into(), tasks: phase.tasks });
        if across {
            phase.schedule.push(Step::Accumulate { var: "j".into(), len: block });
        }
        debug_assert!(across || blocks == body.domain[dims - 1]);
        self.push_scheduled(phase, &mut stmts);
        Ok(())
    }
}
