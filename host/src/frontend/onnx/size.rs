//! Numbers that are computed from the dimensions of tensors.
//!
//! If dimensions stay open, the arithmetic that exporters write out around `Shape` nodes cannot be folded into
//! constants, and yet its results are mostly known: the batch, the sequence length, or a number after all. So the
//! values of small integer tensors are tracked element by element, as numbers and as (products of) named dimensions.

use byoc_core::ir::{Attrs, Dim, Expr, ExprId, Module, OpId, TensorType};
use byoc_core::op::{self, Value};
use byoc_core::tensor::{Shape, Tensor};
use std::collections::HashMap;

/// Maximum number of elements of a tracked tensor; a larger one is neither a shape nor a part of one.
const MAX_ELEMENTS: usize = 64;

/// A number computed from shapes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Size {
    /// A known number; a boolean is 0 or 1.
    Number(i64),
    /// A named dimension, or a product with named dimensions.
    Open(Dim),
}

impl Size {
    /// Converts a dimension that is named or known.
    pub fn of(dim: &Dim) -> Option<Size> {
        match dim {
            Dim::Fixed(n) => i64::try_from(*n).ok().map(Size::Number),
            Dim::Named(_) => Some(Size::Open(dim.clone())),
            Dim::Any => None,
        }
    }

    /// Returns the number, if it is known.
    pub fn number(&self) -> Option<i64> {
        match self {
            Size::Number(n) => Some(*n),
            Size::Open(_) => None,
        }
    }

    /// Converts to a dimension; `None` if negative.
    pub fn dim(&self) -> Option<Dim> {
        match self {
            Size::Number(n) => usize::try_from(*n).ok().map(Dim::Fixed),
            Size::Open(dim) => Some(dim.clone()),
        }
    }
}

/// Elements of the tracked tensors, in row-major order; `None` for an unknown one.
#[derive(Default)]
pub struct Sizes {
    by_value: HashMap<ExprId, Vec<Option<Size>>>,
}

impl Sizes {
    /// Returns the known elements of a value.
    pub fn get(&self, module: &Module, value: ExprId) -> Option<Vec<Option<Size>>> {
        if let Some(sizes) = self.by_value.get(&value) {
            return Some(sizes.clone());
        }
        let tensor = module.expr(value).as_constant()?;
        let numbers = if tensor.len() <= MAX_ELEMENTS { tensor.view().to_i64s()? } else { return None };
        Some(numbers.into_iter().map(|n| Some(Size::Number(n))).collect())
    }

    /// Records the elements of a value.
    pub fn set(&mut self, value: ExprId, sizes: Vec<Option<Size>>) {
        self.by_value.insert(value, sizes);
    }

    /// Returns the known elements of the result of a call, from those of its arguments.
    pub fn of_call(
        &self,
        module: &Module,
        op: OpId,
        attrs: &Attrs,
        args: &[ExprId],
        ret: &TensorType,
    ) -> Option<Vec<Option<Size>>> {
        let shape =
            ret.shape().filter(|shape| shape.iter().product::<usize>() <= MAX_ELEMENTS && !ret.dtype.is_float())?;
        let mut fields = args.iter().flat_map(|arg| match module.expr(*arg) {
            Expr::Tuple(fields) => fields.to_vec(),
            _ => vec![*arg],
        });
        if !fields.any(|field| self.by_value.contains_key(&field)) {
            return None;
        }
        match op::get(op).name {
            "cast" | "copy" => self.get(module, args[0]),
            "take" | "strided_slice" | "concatenate" | "stack" | "squeeze" | "expand_dims" | "reshape"
            | "transpose" | "broadcast_to" | "tile" => self.moved(module, op, attrs, args),
            "prod" if shape.is_empty() => {
                let factors = self.get(module, args[0])?;
                let product = factors.into_iter().try_fold(Size::Number(1), |a, b| binary("multiply", &a, &b?));
                Some(vec![product])
            }
            name => self.elementwise(module, name, args, &shape),
        }
    }

    /// Evaluates operators that move elements, on the indices of the elements.
    fn moved(&self, module: &Module, op: OpId, attrs: &Attrs, args: &[ExprId]) -> Option<Vec<Option<Size>>> {
        let mut all = Vec::new();
        let mut places = |value: ExprId| -> Option<Tensor> {
            let sizes = self.get(module, value)?;
            let shape = module.ty(value).as_tensor()?.shape()?;
            let numbers: Vec<i64> = (all.len()..all.len() + sizes.len()).map(|i| i as i64).collect();
            all.extend(sizes);
            Some(Tensor::from_slice(&shape, &numbers))
        };
        let mut values = Vec::with_capacity(args.len());
        for (i, &arg) in args.iter().enumerate() {
            values.push(match module.expr(arg) {
                Expr::Tuple(fields) => Value::Tuple(fields.iter().map(|&field| places(field)).collect::<Option<_>>()?),
                // What says where the elements go.
                Expr::Constant(tensor) if i > 0 => Value::Tensor((**tensor).clone()),
                _ if i > 0 => return None,
                _ => Value::Tensor(places(arg)?),
            });
        }
        let outputs = op::evaluate(op, attrs, &values, 1 << 20).ok()?;
        let moved = outputs.first()?.view().to_i64s()?;
        moved.into_iter().map(|place| all.get(usize::try_from(place).ok()?).cloned()).collect()
    }

    fn elementwise(&self, module: &Module, name: &str, args: &[ExprId], shape: &Shape) -> Option<Vec<Option<Size>>> {
        let mut operands = Vec::with_capacity(args.len());
        for &arg in args {
            operands.push((self.get(module, arg)?, module.ty(arg).as_tensor()?.shape()?));
        }
        let count: usize = shape.iter().product();
        let element =
            |i: usize, (sizes, own): &(Vec<Option<Size>>, Shape)| sizes.get(place(i, shape, own)).cloned().flatten();
        match operands.as_slice() {
            [a, b] if is_binary(name) => {
                Some((0..count).map(|i| binary(name, &element(i, a)?, &element(i, b)?)).collect())
            }
            [condition, a, b] if name == "where" => Some(
                (0..count)
                    .map(|i| match element(i, condition) {
                        Some(Size::Number(0)) => element(i, b),
                        Some(Size::Number(_)) => element(i, a),
                        _ => element(i, a).filter(|size| Some(size) == element(i, b).as_ref()),
                    })
                    .collect(),
            ),
            _ => None,
        }
    }
}

/// Index of the element of an operand of shape `own` that is used for element `i` of the result.
fn place(mut i: usize, shape: &[usize], own: &[usize]) -> usize {
    let lead = shape.len() - own.len().min(shape.len());
    let (mut at, mut step) = (0, 1);
    for axis in (0..shape.len()).rev() {
        let index = i % shape[axis].max(1);
        i /= shape[axis].max(1);
        if axis >= lead {
            let size = own[axis - lead];
            at += if size == 1 { 0 } else { index * step };
            step *= size;
        }
    }
    at
}

fn is_binary(name: &str) -> bool {
    matches!(
        name,
        "add"
            | "subtract"
            | "multiply"
            | "divide"
            | "floor_divide"
            | "trunc_divide"
            | "floor_mod"
            | "mod"
            | "maximum"
            | "minimum"
            | "equal"
            | "not_equal"
            | "less"
            | "less_equal"
            | "greater"
            | "greater_equal"
            | "logical_and"
            | "logical_or"
    )
}

/// Result of an operator on two sizes, if it does not depend on the values of the open dimensions. They are at least 0.
fn binary(name: &str, a: &Size, b: &Size) -> Option<Size> {
    use Size::{Number, Open};
    let truth = |value: bool| Some(Number(i64::from(value)));
    match (name, a, b) {
        ("add", Number(0), size) | ("add" | "subtract", size, Number(0)) => Some(size.clone()),
        ("add", Number(x), Number(y)) => x.checked_add(*y).map(Number),
        ("subtract", Number(x), Number(y)) => x.checked_sub(*y).map(Number),
        ("subtract", x, y) if x == y => Some(Number(0)),
        ("multiply", Number(x), Number(y)) => x.checked_mul(*y).map(Number),
        ("multiply", Number(0), _) | ("multiply", _, Number(0)) => Some(Number(0)),
        ("multiply", x, y) => Size::of(&Dim::product([&x.dim()?, &y.dim()?])?),
        ("divide" | "trunc_divide", Number(x), Number(y)) => x.checked_div(*y).map(Number),
        ("floor_divide", Number(x), Number(y)) if *y > 0 => x.checked_div_euclid(*y).map(Number),
        ("divide" | "trunc_divide" | "floor_divide", x, y) => Size::of(&Dim::quotient([&x.dim()?], [&y.dim()?])),
        ("mod", Number(x), Number(y)) => x.checked_rem(*y).map(Number),
        ("floor_mod", Number(x), Number(y)) if *y > 0 => x.checked_rem_euclid(*y).map(Number),
        ("maximum" | "minimum", x, y) if x == y => Some(x.clone()),
        ("maximum", Number(x), Number(y)) => Some(Number(*x.max(y))),
        ("minimum", Number(x), Number(y)) => Some(Number(*x.min(y))),
        ("maximum", Open(dim), Number(n)) | ("maximum", Number(n), Open(dim)) if *n <= 0 => Some(Open(dim.clone())),
        ("minimum", Open(_), Number(n)) | ("minimum", Number(n), Open(_)) if *n <= 0 => Some(Number(*n)),
        ("equal", x, y) if x == y => truth(true),
        ("not_equal", x, y) if x == y => truth(false),
        ("equal" | "not_equal", Number(_), Number(_)) => truth(name == "not_equal"),
        ("equal" | "not_equal", Open(_), Number(n)) | ("equal" | "not_equal", Number(n), Open(_)) if *n < 0 => {
            truth(name == "not_equal")
        }
        ("less", Number(x), Number(y)) => truth(x < y),
        ("less_equal", Number(x), Number(y)) => truth(x <= y),
        ("greater", Number(x), Number(y)) => truth(x > y),
        ("greater_equal", Number(x), Number(y)) => truth(x >= y),
        ("greater_equal", Open(_), Number(n)) if *n <= 0 => truth(true),
        ("less", Open(_), Number(n)) if *n <= 0 => truth(false),
        ("logical_and", Number(x), Number(y)) => truth(*x != 0 && *y != 0),
        ("logical_or", Number(x), Number(y)) => truth(*x != 0 || *y != 0),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(name: &str) -> Size {
        Size::Open(Dim::Named(name.into()))
    }

    #[test]
    fn simplifies_independently_of_open_dimensions() {
        let (n, s) = (Size::Number, open("s"));
        let all = [
            ("multiply", n(12), s.clone(), Some(open("12*s"))),
            ("divide", open("12*s"), n(4), Some(open("3*s"))),
            ("divide", open("12*s"), s.clone(), Some(n(12))),
            ("divide", s.clone(), n(2), None),
            ("subtract", s.clone(), s.clone(), Some(n(0))),
            ("add", s.clone(), n(1), None),
            ("equal", s.clone(), n(-1), Some(n(0))),
            ("equal", s.clone(), n(0), None),
            ("maximum", s.clone(), n(0), Some(s.clone())),
            ("multiply", s.clone(), n(-1), None),
        ];
        for (name, a, b, wanted) in all {
            assert_eq!(binary(name, &a, &b), wanted, "{name} {a:?} {b:?}");
        }
    }

    #[test]
    fn aligns_operands_at_last_axis() {
        assert_eq!((0..6).map(|i| place(i, &[2, 3], &[3])).collect::<Vec<_>>(), [0, 1, 2, 0, 1, 2]);
        assert_eq!((0..6).map(|i| place(i, &[2, 3], &[2, 1])).collect::<Vec<_>>(), [0, 0, 0, 1, 1, 1]);
    }
}
