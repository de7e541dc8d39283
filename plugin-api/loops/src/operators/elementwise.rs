//! Elementwise operators: what each one computes, with its rule for NaN, once for every dialect.
//!
//! The semantics follow the operator reference: a cast from float to integer rounds toward zero and saturates; integer
//! overflow wraps.

use crate::nest::{Expr, Infix};
use crate::operators::quantized;
use crate::types::{computed, floats, integer_range};
use byoc_plugin_api::DType;
use byoc_plugin_support::region::{Op, RegionIr};
use byoc_plugin_support::view::View;

/// Result for a NaN among the operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nan {
    /// NaN, as arithmetic and functions give by themselves.
    Arithmetic,
    /// NaN, because a comparison with it chooses the operand that holds it.
    Kept,
    /// Result of the comparison or the test.
    Tested,
}

/// Operator applied to operands.
pub struct Application<'a> {
    ir: &'a RegionIr<'a>,
    op: &'a Op<'a>,
    /// Operands: variables or literals.
    args: &'a [Expr],
    /// Type in which the operator computes.
    dtype: DType,
    /// Type of the result.
    out: DType,
}

/// Row of the table: name, rule for NaN, and what the operator computes; `None` for types that it does not take.
pub type Row = (&'static str, Nan, fn(&Application<'_>) -> Option<Expr>);

use Nan::{Arithmetic, Kept, Tested};

/// Elementwise operators, apart from those of the QNN dialect.
pub const TABLE: &[Row] = &[
    ("exp", Arithmetic, |x| x.math()),
    ("erf", Arithmetic, |x| x.math()),
    ("tanh", Arithmetic, |x| x.math()),
    ("sigmoid", Arithmetic, |x| x.math()),
    ("log", Arithmetic, |x| x.math()),
    ("log2", Arithmetic, |x| x.math()),
    ("log10", Arithmetic, |x| x.math()),
    ("sqrt", Arithmetic, |x| x.math()),
    ("sin", Arithmetic, |x| x.math()),
    ("cos", Arithmetic, |x| x.math()),
    ("tan", Arithmetic, |x| x.math()),
    ("asin", Arithmetic, |x| x.math()),
    ("acos", Arithmetic, |x| x.math()),
    ("atan", Arithmetic, |x| x.math()),
    ("sinh", Arithmetic, |x| x.math()),
    ("cosh", Arithmetic, |x| x.math()),
    ("asinh", Arithmetic, |x| x.math()),
    ("acosh", Arithmetic, |x| x.math()),
    ("atanh", Arithmetic, |x| x.math()),
    ("floor", Arithmetic, |x| x.rounding()),
    ("ceil", Arithmetic, |x| x.rounding()),
    ("round", Arithmetic, |x| x.rounding()),
    ("trunc", Arithmetic, |x| x.rounding()),
    ("add", Arithmetic, |x| x.arithmetic(Infix::Add)),
    ("nn.bias_add", Arithmetic, |x| x.arithmetic(Infix::Add)),
    ("subtract", Arithmetic, |x| x.arithmetic(Infix::Sub)),
    ("multiply", Arithmetic, |x| x.arithmetic(Infix::Mul)),
    ("equal", Tested, |x| x.infix(Infix::Eq)),
    ("not_equal", Tested, |x| x.infix(Infix::Ne)),
    ("less", Tested, |x| x.infix(Infix::Lt)),
    ("less_equal", Tested, |x| x.infix(Infix::Le)),
    ("greater", Tested, |x| x.infix(Infix::Gt)),
    ("greater_equal", Tested, |x| x.infix(Infix::Ge)),
    ("bitwise_and", Tested, |x| x.bits(Infix::BitAnd)),
    ("bitwise_or", Tested, |x| x.bits(Infix::BitOr)),
    ("bitwise_xor", Tested, |x| x.bits(Infix::BitXor)),
    ("rsqrt", Arithmetic, |x| Some(x.float()?.number(1.0) / Expr::Math("sqrt", x.dtype, vec![x.a()]))),
    // A NaN is not less than 0, and stays.
    ("nn.relu", Kept, |x| Some(x.a().lt(x.zero()).select(x.zero(), x.a()))),
    ("nn.leaky_relu", Arithmetic, |x| {
        let slope = x.float()?.number(x.op.attrs().float("alpha", 0.25));
        Some(x.a().gt(x.zero()).select(x.a(), slope * x.a()))
    }),
    ("nn.prelu", Arithmetic, |x| Some(x.float()?.a().gt(x.zero()).select(x.a(), x.b()? * x.a()))),
    ("nn.batch_norm", Arithmetic, |x| x.batch_norm()),
    ("abs", Arithmetic, |x| match x.is_float() {
        true => Some(Expr::Math("abs", x.dtype, vec![x.a()])),
        false => Some(x.a().lt(x.zero()).select(x.negative(), x.a())),
    }),
    ("negative", Arithmetic, |x| (x.dtype != DType::BOOL).then(|| x.negative())),
    ("sign", Kept, |x| {
        let below = x.a().lt(x.zero()).select(Expr::Negate(Box::new(x.number(1.0))), x.a());
        Some(x.a().gt(x.zero()).select(x.number(1.0), below))
    }),
    ("logical_not", Tested, |x| Some(x.a().equal(x.zero()))),
    ("isnan", Tested, |x| Some(if x.is_float() { x.a().not_equal(x.a()) } else { truth(false) })),
    ("isinf", Tested, |x| Some(if x.is_float() { x.magnitude().equal(x.number(f64::INFINITY)) } else { truth(false) })),
    ("isfinite", Tested, |x| Some(if x.is_float() { x.magnitude().lt(x.number(f64::INFINITY)) } else { truth(true) })),
    ("clip", Kept, |x| x.clip()),
    ("cast", Tested, |x| Some(Expr::Convert { from: x.dtype, to: x.out, value: Box::new(x.a()) })),
    ("divide", Arithmetic, |x| x.divisible()?.infix(Infix::Div)),
    ("mod", Arithmetic, |x| match x.divisible()?.is_float() {
        true => Some(Expr::Math("mod", x.dtype, vec![x.a(), x.b()?])),
        false => x.infix(Infix::Rem),
    }),
    ("floor_divide", Arithmetic, |x| {
        if x.divisible()?.is_float() {
            return Some(Expr::Math("floor_divide", x.dtype, vec![x.a(), x.b()?]));
        }
        let quotient = Expr::binary(Infix::Div, x.a(), x.b()?);
        let one_less = Expr::binary(Infix::Sub, quotient.clone(), x.number(1.0));
        Some(x.rounds_up()?.select(one_less, quotient))
    }),
    ("floor_mod", Arithmetic, |x| {
        if x.divisible()?.is_float() {
            return Some(Expr::Math("floor_mod", x.dtype, vec![x.a(), x.b()?]));
        }
        let rest = Expr::binary(Infix::Rem, x.a(), x.b()?);
        let positive_rest = Expr::binary(Infix::Add, rest.clone(), x.b()?);
        Some(x.rounds_up()?.select(positive_rest, rest))
    }),
    ("power", Arithmetic, |x| x.power()),
    ("maximum", Kept, |x| x.extreme(Infix::Gt)),
    ("minimum", Kept, |x| x.extreme(Infix::Lt)),
    ("logical_and", Tested, |x| x.logical(Infix::BitAnd)),
    ("logical_or", Tested, |x| x.logical(Infix::BitOr)),
    ("logical_xor", Tested, |x| x.logical(Infix::Ne)),
    ("where", Kept, |x| Some(x.a().select(x.b()?, x.args.get(2)?.clone()))),
    (ROUND_TO_HALF, Arithmetic, |x| Some(Expr::Math(ROUND_TO_HALF, x.float()?.dtype, vec![x.a()]))),
];

/// Rounding of a float32 to the nearest float16, which the float16 support of a device inserts; graphs from the host do
/// not contain it.
pub const ROUND_TO_HALF: &str = "byoc.round_to_half";

/// Returns the names of all elementwise operators that a graph may contain.
pub fn names() -> impl Iterator<Item = &'static str> {
    TABLE.iter().map(|row| row.0).filter(|&name| name != ROUND_TO_HALF)
}

/// Returns true if each output element depends only on the input elements at the same index, up to broadcasting.
pub fn is_elementwise(name: &str) -> bool {
    TABLE.iter().any(|row| row.0 == name) || quantized::is_elementwise(name)
}

/// Returns operand `i` as a view of the result's shape, broadcast or aligned with the attribute `axis`; `None` if the
/// shapes do not match.
pub fn operand_view(ir: &RegionIr<'_>, op: &Op<'_>, i: usize, view: &View) -> Option<View> {
    let out = ir.shape(op.outputs[0]);
    let is_along_axis = matches!((op.name, i), ("nn.bias_add" | "nn.prelu", 1) | ("nn.batch_norm", 1..))
        || (quantized::is_conversion(op.name) && i > 0 && view.shape.len() == 1 && view.shape[0] > 1);
    if !is_along_axis {
        return view.broadcast(out);
    }
    let default = if quantized::is_conversion(op.name) { -1 } else { 1 };
    let axis = op.attrs().axis("axis", default, out.len())?;
    let mut strides = vec![0; out.len()];
    if view.shape.len() != 1 || (view.shape[0] != out[axis] && view.shape[0] != 1) {
        return None;
    }
    strides[axis] = if view.shape[0] == 1 { 0 } else { view.strides[0] };
    Some(View { shape: out.to_vec(), strides, offset: view.offset })
}

/// Returns an operator applied to `args`, which are variables or literals; `None` if it does not take the types.
pub fn expression(ir: &RegionIr<'_>, op: &Op<'_>, args: &[Expr]) -> Option<Expr> {
    if quantized::is_elementwise(op.name) {
        return quantized::expression(ir, op, args);
    }
    // Operators other than `cast` compute in the type of their last operand.
    let dtype = ir.val(if op.name == "cast" { op.inputs[0] } else { *op.inputs.last()? }).dtype;
    let application = Application { ir, op, args, dtype: computed(dtype), out: computed(ir.val(op.outputs[0]).dtype) };
    args.first()?;
    TABLE.iter().find(|row| row.0 == op.name).and_then(|row| row.2(&application))
}

/// Returns the larger of two values for [`Infix::Gt`], the smaller one for [`Infix::Lt`]; NaN if one of them is.
pub fn extreme(infix: Infix, dtype: DType, a: Expr, b: Expr) -> Expr {
    let chosen = Expr::binary(infix, a.clone(), b.clone());
    let keeps_a =
        if matches!(dtype, DType::F32 | DType::F64) { a.clone().not_equal(a.clone()).or(chosen) } else { chosen };
    keeps_a.select(a, b)
}

fn truth(value: bool) -> Expr {
    Expr::Integer(DType::BOOL, value.into())
}

impl Application<'_> {
    fn a(&self) -> Expr {
        self.args[0].clone()
    }

    fn b(&self) -> Option<Expr> {
        self.args.get(1).cloned()
    }

    fn is_float(&self) -> bool {
        matches!(self.dtype, DType::F32 | DType::F64)
    }

    /// Returns the application if it is on floating-point numbers.
    fn float(&self) -> Option<&Self> {
        self.is_float().then_some(self)
    }

    fn number(&self, value: f64) -> Expr {
        Expr::number(self.dtype, value)
    }

    fn zero(&self) -> Expr {
        self.number(0.0)
    }

    fn magnitude(&self) -> Expr {
        Expr::Math("abs", self.dtype, vec![self.a()])
    }

    fn math(&self) -> Option<Expr> {
        Some(Expr::Math(TABLE.iter().find(|row| row.0 == self.op.name)?.0, self.float()?.dtype, vec![self.a()]))
    }

    /// For integers, the rounding functions are the identity.
    fn rounding(&self) -> Option<Expr> {
        if self.is_float() { self.math() } else { Some(self.a()) }
    }

    fn negative(&self) -> Expr {
        match self.dtype {
            DType::I32 | DType::I64 => Expr::Wrapping(Infix::Sub, self.dtype, Box::new([self.zero(), self.a()])),
            _ => Expr::Negate(Box::new(self.a())),
        }
    }

    fn infix(&self, infix: Infix) -> Option<Expr> {
        Some(Expr::binary(infix, self.a(), self.b()?))
    }

    fn arithmetic(&self, infix: Infix) -> Option<Expr> {
        Some(match self.dtype {
            DType::BOOL => Expr::binary(infix, self.a(), self.b()?).not_equal(0),
            DType::I32 | DType::I64 => Expr::Wrapping(infix, self.dtype, Box::new([self.a(), self.b()?])),
            _ => self.infix(infix)?,
        })
    }

    fn bits(&self, infix: Infix) -> Option<Expr> {
        (!self.is_float()).then(|| self.infix(infix))?
    }

    fn logical(&self, infix: Infix) -> Option<Expr> {
        Some(Expr::binary(infix, self.a().not_equal(self.zero()), self.b()?.not_equal(self.zero())))
    }

    fn extreme(&self, infix: Infix) -> Option<Expr> {
        Some(extreme(infix, self.dtype, self.a(), self.b()?))
    }

    fn batch_norm(&self) -> Option<Expr> {
        self.float()?;
        let [_, gamma, beta, mean, variance] = self.args else { return None };
        let scale = if self.op.attrs().flag("scale", true) { gamma.clone() } else { self.number(1.0) };
        let shift = if self.op.attrs().flag("center", true) { beta.clone() } else { self.zero() };
        let epsilon = self.number(self.op.attrs().float("epsilon", 1e-5));
        let deviation = Expr::Math("sqrt", self.dtype, vec![variance.clone() + epsilon]);
        Some((self.a() - mean.clone()) * (scale / deviation) + shift)
    }

    fn clip(&self) -> Option<Expr> {
        let attrs = self.op.attrs();
        let (low, high) = (attrs.float("a_min", f64::NEG_INFINITY), attrs.float("a_max", f64::INFINITY));
        // A bound that no integer exceeds is omitted.
        let is_needed = |bound: f64| {
            let (min, max) = integer_range(self.dtype);
            self.is_float() || !(bound.is_infinite() || (self.dtype.size() < 4 && !(min < bound && bound < max)))
        };
        let limit = |infix: Infix, bound: f64, rest: Expr| match is_needed(bound) {
            true => Expr::binary(infix, self.a(), self.number(bound)).select(self.number(bound), rest),
            false => rest,
        };
        Some(limit(Infix::Lt, low, limit(Infix::Gt, high, self.a())))
    }

    /// A product if the exponent is the constant 2 or 3.
    fn power(&self) -> Option<Expr> {
        self.float()?;
        let exponent = self.ir.constant(*self.op.inputs.get(1)?).map(|(_, c)| c);
        let exponent = exponent.filter(|c| c.shape().iter().product::<usize>() == 1);
        Some(match exponent.and_then(|c| floats(c).first().copied()) {
            Some(2.0) => self.a() * self.a(),
            Some(3.0) => self.a() * self.a() * self.a(),
            _ => Expr::Math("power", self.dtype, vec![self.a(), self.b()?]),
        })
    }

    /// Returns the application if its division cannot trap: integers are divided by constants other than 0 and -1 only.
    fn divisible(&self) -> Option<&Self> {
        let divisors = || self.op.inputs.get(1).and_then(|&divisor| self.ir.constant_ints(divisor));
        let is_safe = || divisors().is_some_and(|divisors| divisors.iter().all(|&d| d != 0 && d != -1));
        (self.is_float() || (matches!(self.dtype, DType::I32 | DType::I64) && is_safe())).then_some(self)
    }

    /// Returns the condition under which a division toward zero has rounded up.
    fn rounds_up(&self) -> Option<Expr> {
        let rest = Expr::binary(Infix::Rem, self.a(), self.b()?);
        let differ = rest.clone().lt(self.zero()).not_equal(self.b()?.lt(self.zero()));
        Some(rest.not_equal(self.zero()).and(differ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_distinct() {
        let mut names: Vec<&str> = TABLE.iter().map(|row| row.0).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), TABLE.len());
    }
}
