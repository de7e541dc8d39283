//! Integer expressions over tensor dimensions.
//!
//! If dimensions are symbolic, the arithmetic that exporters emit around `Shape` nodes cannot be folded into constants,
//! although most results are known expressions: the batch size, the sequence length, or a constant. Therefore the
//! elements of small integer tensors are tracked as expressions over symbolic dimensions.

use byoc_ir::ir::{Attrs, DimExpr, Expr, ExprId, Module, OpId, TensorType};
use byoc_ir::op::{self, Value};
use byoc_ir::tensor::{Shape, Tensor};
use std::collections::HashMap;

/// Maximum number of elements of a tracked tensor. Larger tensors are not tracked, because they cannot be shapes or
/// parts of shapes.
const MAX_ELEMENTS: usize = 64;

/// Integer expression over dimensions; a Boolean is 0 or 1.
pub type Size = DimExpr;

/// Elements of tracked tensors, in row-major order; `None` for each unknown element.
#[derive(Default)]
pub struct Sizes {
    by_value: HashMap<ExprId, Vec<Option<Size>>>,
}

impl Sizes {
    /// Returns the tracked elements of a value.
    pub fn get(&self, module: &Module, value: ExprId) -> Option<Vec<Option<Size>>> {
        if let Some(sizes) = self.by_value.get(&value) {
            return Some(sizes.clone());
        }
        let tensor = module.expr(value).as_constant()?;
        let constant_values = if tensor.len() <= MAX_ELEMENTS { tensor.view().to_i64s()? } else { return None };
        Some(constant_values.into_iter().map(|n| Some(Size::constant(n))).collect())
    }

    /// Records the elements of a value.
    pub fn set(&mut self, value: ExprId, sizes: Vec<Option<Size>>) {
        self.by_value.insert(value, sizes);
    }

    /// Derives the tracked elements of a call's result from the tracked elements of its arguments.
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
            | "transpose" | "broadcast_to" | "tile" => self.move_elements(module, op, attrs, args),
            "prod" if shape.is_empty() => {
                let factors = self.get(module, args[0])?;
                let product = factors.into_iter().try_fold(Size::constant(1), |a, b| binary("multiply", &a, &b?));
                Some(vec![product])
            }
            name => self.elementwise(module, name, args, &shape),
        }
    }

    /// Evaluates an operator that only moves elements, by running it on the indices of the elements.
    fn move_elements(&self, module: &Module, op: OpId, attrs: &Attrs, args: &[ExprId]) -> Option<Vec<Option<Size>>> {
        let mut all_sizes = Vec::new();
        let mut positions_of = |value: ExprId| -> Option<Tensor> {
            let sizes = self.get(module, value)?;
            let shape = module.ty(value).as_tensor()?.shape()?;
            let numbers_of_elements: Vec<i64> =
                (all_sizes.len()..all_sizes.len() + sizes.len()).map(|i| i as i64).collect();
            all_sizes.extend(sizes);
            Some(Tensor::from_slice(&shape, &numbers_of_elements))
        };
        let mut values = Vec::with_capacity(args.len());
        for (i, &arg) in args.iter().enumerate() {
            values.push(match module.expr(arg) {
                Expr::Tuple(fields) => {
                    Value::Tuple(fields.iter().map(|&field| positions_of(field)).collect::<Option<_>>()?)
                }
                // A constant argument (for example, indices) determines how the elements move.
                Expr::Constant(tensor) if i > 0 => Value::Tensor((**tensor).clone()),
                _ if i > 0 => return None,
                _ => Value::Tensor(positions_of(arg)?),
            });
        }
        let outputs = op::evaluate(op, attrs, &values, 1 << 20).ok()?;
        let moved_positions = outputs.first()?.view().to_i64s()?;
        moved_positions.into_iter().map(|position| all_sizes.get(usize::try_from(position).ok()?).cloned()).collect()
    }

    fn elementwise(&self, module: &Module, name: &str, args: &[ExprId], shape: &Shape) -> Option<Vec<Option<Size>>> {
        let mut operands = Vec::with_capacity(args.len());
        for &arg in args {
            operands.push((self.get(module, arg)?, module.ty(arg).as_tensor()?.shape()?));
        }
        let count: usize = shape.iter().product();
        let element = |i: usize, (sizes, operand_shape): &(Vec<Option<Size>>, Shape)| {
            sizes.get(broadcast_index(i, shape, operand_shape)).cloned().flatten()
        };
        match operands.as_slice() {
            [a, b] if is_binary(name) => {
                Some((0..count).map(|i| binary(name, &element(i, a)?, &element(i, b)?)).collect())
            }
            [condition, a, b] if name == "where" => Some(
                (0..count)
                    .map(|i| match element(i, condition).as_ref().and_then(Size::as_constant) {
                        Some(0) => element(i, b),
                        Some(_) => element(i, a),
                        None => element(i, a).filter(|size| Some(size) == element(i, b).as_ref()),
                    })
                    .collect(),
            ),
            _ => None,
        }
    }
}

/// Returns the index of the operand element that broadcasts to result element `i`.
fn broadcast_index(mut i: usize, shape: &[usize], operand_shape: &[usize]) -> usize {
    let leading_axes = shape.len() - operand_shape.len().min(shape.len());
    let (mut offset, mut step) = (0, 1);
    for axis in (0..shape.len()).rev() {
        let index = i % shape[axis].max(1);
        i /= shape[axis].max(1);
        if axis >= leading_axes {
            let size = operand_shape[axis - leading_axes];
            offset += if size == 1 { 0 } else { index * step };
            step *= size;
        }
    }
    offset
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

/// Returns the result of an operator on two sizes if one expression is valid for all values of the symbols.
fn binary(name: &str, a: &Size, b: &Size) -> Option<Size> {
    let boolean = |value: bool| Some(Size::constant(i64::from(value)));
    let constant_values = a.as_constant().zip(b.as_constant());
    let (difference, reverse_difference) = (|| b.sub(a), || a.sub(b));
    let is_never_negative = |size: Option<Size>| size.is_some_and(|size| size.is_non_negative());
    let (is_less, is_greater) = (
        || is_never_negative(difference().and_then(|d| d.offset(-1))),
        || is_never_negative(reverse_difference().and_then(|d| d.offset(-1))),
    );
    let (is_at_most, is_at_least) = (|| is_never_negative(difference()), || is_never_negative(reverse_difference()));
    let compare =
        |is_true: bool, is_false: bool| if is_true { boolean(true) } else { is_false.then(|| Size::constant(0)) };
    match (name, constant_values) {
        ("divide" | "trunc_divide", Some((x, y))) => x.checked_div(y).map(Size::constant),
        ("mod", Some((x, y))) => x.checked_rem(y).map(Size::constant),
        ("floor_mod", Some((x, y))) if y > 0 => x.checked_rem_euclid(y).map(Size::constant),
        ("logical_and", Some((x, y))) => boolean(x != 0 && y != 0),
        ("logical_or", Some((x, y))) => boolean(x != 0 || y != 0),
        ("logical_and" | "logical_or", _) => None,
        ("add", _) => a.add(b),
        ("subtract", _) => a.sub(b),
        ("multiply", _) => a.mul(b),
        ("floor_divide", _) if b.is_non_negative() => a.floor_div(b),
        // Truncating division equals floor division if neither operand is negative.
        ("divide" | "trunc_divide", _) => {
            a.div_exact(b).or_else(|| (a.is_non_negative() && b.is_non_negative()).then(|| a.floor_div(b))?)
        }
        ("mod" | "floor_mod", _) if b.is_non_negative() && (name == "floor_mod" || a.is_non_negative()) => {
            a.sub(&a.floor_div(b)?.mul(b)?)
        }
        ("maximum", _) => a.maximum(b),
        ("minimum", _) => a.minimum(b),
        ("equal", _) => compare(a == b, is_less() || is_greater()),
        ("not_equal", _) => compare(is_less() || is_greater(), a == b),
        ("less", _) => compare(is_less(), is_at_least()),
        ("less_equal", _) => compare(is_at_most(), is_greater()),
        ("greater", _) => compare(is_greater(), is_at_most()),
        ("greater_equal", _) => compare(is_at_least(), is_less()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use byoc_ir::text::parse_dim;

    fn size(text: &str) -> Option<Size> {
        match text.parse() {
            Ok(value) => Some(Size::constant(value)),
            Err(_) if text == "?" => None,
            Err(_) => Size::of(&parse_dim(text).unwrap()),
        }
    }

    #[test]
    fn simplifies_independently_of_symbols() {
        let cases = [
            ("multiply", "12", "s", "12*s"),
            ("multiply", "s", "-1", "?"),
            ("add", "s", "1", "s + 1"),
            ("subtract", "s", "s", "0"),
            ("subtract", "s + 3", "s", "3"),
            ("divide", "12*s", "4", "3*s"),
            ("divide", "12*s", "s", "12"),
            ("divide", "s", "2", "floordiv(s, 2)"),
            ("divide", "s - 1", "2", "?"),
            ("divide", "-7", "2", "-3"),
            ("floor_divide", "s - 1", "2", "floordiv(s - 1, 2)"),
            ("floor_divide", "-7", "2", "-4"),
            ("mod", "s", "2", "s - 2*floordiv(s, 2)"),
            ("mod", "4*s + 3", "4", "3"),
            ("equal", "s", "-1", "0"),
            ("equal", "s", "0", "?"),
            ("equal", "s + 1", "s", "0"),
            ("not_equal", "s + 1", "s", "1"),
            ("less", "s", "s + 1", "1"),
            ("less", "s", "0", "0"),
            ("less", "s", "1", "?"),
            ("greater_equal", "s", "0", "1"),
            ("maximum", "s", "0", "s"),
            ("minimum", "s", "-1", "-1"),
            ("minimum", "s", "8", "min(8, s)"),
            ("logical_and", "1", "0", "0"),
        ];
        for (name, a, b, expected) in cases {
            let actual = binary(name, &size(a).unwrap(), &size(b).unwrap());
            // A negative multiple is a valid integer, but not a valid dimension, so `?` is expected.
            let actual = if (name, b) == ("multiply", "-1") { None } else { actual };
            assert_eq!(actual, size(expected), "{name} {a} {b}");
        }
    }

    #[test]
    fn aligns_operands_at_last_axis() {
        assert_eq!((0..6).map(|i| broadcast_index(i, &[2, 3], &[3])).collect::<Vec<_>>(), [0, 1, 2, 0, 1, 2]);
        assert_eq!((0..6).map(|i| broadcast_index(i, &[2, 3], &[2, 1])).collect::<Vec<_>>(), [0, 0, 0, 1, 1, 1]);
    }
}
