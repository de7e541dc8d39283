//! Slices, which ONNX bounds as Relay does.

use super::super::call::{Call, Outputs, int_vector, normal_axis};
use super::super::values::Operand;
use super::super::writer::{Refusal, Result};
use super::{Row, single};
use byoc_ir::ir::Expr;
use byoc_ir::tensor::DType;

pub const ROWS: &[Row] = &[
    ("dyn.reverse", |c| {
        let (x, axis) = (c.arg(0)?, c.int_vector(1)?);
        single(reversed(c, x, axis))
    }),
    ("dyn.strided_slice", computed),
    ("reverse", |c| {
        let (x, axis) = (c.arg(0)?, c.axis("axis", c.rank(0)?)?);
        single(reversed(c, x, int_vector(&[axis])))
    }),
    ("slice_like", slice_like),
    ("strided_slice", strided_slice),
];

/// Reverses the elements along an axis.
pub fn reversed(c: &mut Call<'_, '_>, x: Operand, axis: Operand) -> Operand {
    c.node("Slice", &[x, int_vector(&[-1]), int_vector(&[i64::MIN + 1]), axis, int_vector(&[-1])], Vec::new())
}

fn strided_slice(c: &mut Call<'_, '_>) -> Result<Outputs> {
    let (begin, end, strides) = (c.params.ints("begin"), c.params.ints("end"), c.params.ints("strides"));
    let (x, rank, has_sizes) = (c.arg(0)?, c.rank(0)?, c.params.string("slice_mode") == "size");
    let axes = match c.params.opt_ints("axes") {
        Some(axes) => axes.iter().map(|&axis| normal_axis(axis, rank)).collect::<Result<Vec<_>>>()?,
        None => (0..begin.len().max(end.len()) as i64).collect(),
    };
    if axes.is_empty() {
        return single(c.apply("Identity", &[&x]));
    }
    let mut bounds = [Vec::new(), Vec::new(), Vec::new()];
    for i in 0..axes.len() {
        let step = if has_sizes { 1 } else { strides.get(i).copied().unwrap_or(1) };
        let (first, past) = if step > 0 { (0, i64::MAX) } else { (i64::MAX, i64::MIN + 1) };
        let first = begin.get(i).copied().unwrap_or(first);
        let last = match end.get(i) {
            Some(&size) if has_sizes && size < 0 => past,
            // A slice from the end whose size reaches the end.
            Some(&size) if has_sizes && first < 0 && first.saturating_add(size) >= 0 => past,
            Some(&size) if has_sizes => first.saturating_add(size),
            Some(&bound) => bound,
            None => past,
        };
        bounds[0].push(first);
        bounds[1].push(last);
        bounds[2].push(step);
    }
    let [first, last, steps] = bounds;
    let mut inputs = vec![x, int_vector(&first), int_vector(&last), int_vector(&axes)];
    if steps.iter().any(|&step| step != 1) {
        inputs.push(int_vector(&steps));
    }
    single(c.node("Slice", &inputs, Vec::new()))
}

fn computed(c: &mut Call<'_, '_>) -> Result<Outputs> {
    if c.params.string("slice_mode") != "end" {
        return Err(Refusal::new("a slice of computed sizes"));
    }
    if let Some(rows) = selected_rows(c) {
        return single(rows);
    }
    let x = c.arg(0)?;
    let vector = |c: &mut Call<'_, '_>, i: usize| {
        let value = c.arg(i)?;
        let dtype = c.dtype(i)?;
        c.cast(&value, dtype, DType::I64)
    };
    let (begin, end, steps) = (vector(c, 1)?, vector(c, 2)?, vector(c, 3)?);
    let axes = match (c.args.len(), c.params.opt_ints("axes")) {
        (5, _) => vector(c, 4)?,
        (_, Some(axes)) => int_vector(&axes),
        _ => Operand::Absent,
    };
    let is_one = |steps: &Operand| {
        steps.constant().and_then(|tensor| tensor.view().to_i64s()).is_some_and(|steps| steps.iter().all(|&s| s == 1))
    };
    let steps = if is_one(&steps) { Operand::Absent } else { steps };
    single(c.node("Slice", &[x, begin, end, axes, steps], Vec::new()))
}

/// Returns the first result of an operator without the rows that pad it, if that is what a slice selects: as many rows as the
/// second result says.
fn selected_rows(c: &Call<'_, '_>) -> Option<Operand> {
    let field = |i: usize, field: u32| match c.w.module.expr(*c.args.get(i)?) {
        Expr::Project { tuple, index } if *index == field => Some(*tuple),
        _ => None,
    };
    let call = field(0, 0).filter(|&call| field(2, 1) == Some(call))?;
    let all = |i: usize, value: i64| c.known_ints(i).is_some_and(|values| values == [value]);
    let is_selection = all(1, 0) && all(3, 1) && c.params.opt_ints("axes") == Some(vec![0]) && c.args.len() == 4;
    c.w.unpadded.get(&call).filter(|_| is_selection).cloned()
}

fn slice_like(c: &mut Call<'_, '_>) -> Result<Outputs> {
    let (x, like, rank) = (c.arg(0)?, c.arg(1)?, c.rank(0)?);
    let axes = match c.params.opt_ints("axes").filter(|axes| !axes.is_empty()) {
        Some(axes) => axes.iter().map(|&axis| normal_axis(axis, rank)).collect::<Result<Vec<_>>>()?,
        None => (0..rank as i64).collect(),
    };
    let shape = c.shape_of(&like);
    let ends = c.node("Gather", &[shape, int_vector(&axes)], Vec::new());
    let begins = int_vector(&vec![0; axes.len()]);
    single(c.node("Slice", &[x, begins, ends, int_vector(&axes)], Vec::new()))
}
