//! Dimensions of tensor types: numbers, expressions over symbols, unknowns.

use super::{DimExpr, Name};
use std::fmt;

/// One dimension of a tensor type.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Dim {
    /// Extent known at compile time.
    Fixed(usize),
    /// Non-constant expression whose value is known only at run time. Equal expressions in a module have equal values.
    Symbolic(DimExpr),
    /// `?`: known only at run time; two occurrences may have different values.
    Any,
}

impl Dim {
    /// Creates a dimension that is a single symbol.
    pub fn symbol(name: impl Into<Name>) -> Dim {
        Dim::Symbolic(DimExpr::symbol(name))
    }

    /// Returns the number; `None` unless the dimension is fixed.
    pub fn fixed(&self) -> Option<usize> {
        match self {
            Dim::Fixed(n) => Some(*n),
            _ => None,
        }
    }

    /// Returns the symbol if the dimension is a single symbol.
    pub fn name(&self) -> Option<&Name> {
        match self {
            Dim::Symbolic(expr) => expr.as_symbol(),
            _ => None,
        }
    }

    /// Returns the largest known factor: the number itself, 12 for `12*batch`, 1 for `?`.
    pub fn number(&self) -> usize {
        match self {
            Dim::Fixed(n) => *n,
            Dim::Symbolic(expr) => usize::try_from(expr.content()).unwrap_or(1),
            Dim::Any => 1,
        }
    }

    /// Returns the distinct symbols of the dimension, sorted.
    pub fn symbols(&self) -> Vec<&Name> {
        match self {
            Dim::Symbolic(expr) => expr.symbols(),
            _ => Vec::new(),
        }
    }

    /// Replaces the symbols for which `size` returns a value. A negative result becomes [`Dim::Any`].
    pub fn with_sizes(&self, size: impl Fn(&str) -> Option<usize>) -> Dim {
        let Dim::Symbolic(expr) = self else { return self.clone() };
        let value = |name: &Name| size(name).and_then(|n| i64::try_from(n).ok()).map(DimExpr::constant);
        expr.substitute(&value).into()
    }

    /// Replaces the symbols for which `dim` returns a dimension. The result is [`Dim::Any`] if a replacement is `?`.
    pub fn with_dims(&self, dim: impl Fn(&str) -> Option<Dim>) -> Dim {
        let Dim::Symbolic(expr) = self else { return self.clone() };
        if expr.symbols().iter().any(|name| dim(name) == Some(Dim::Any)) {
            return Dim::Any;
        }
        expr.substitute(&|name: &Name| DimExpr::of(&dim(name)?)).into()
    }

    /// Computes a dimension from the operands `dims`; [`Dim::Any`] if an operand is `?` or the result cannot be
    /// represented.
    pub fn compute<const N: usize>(dims: [&Dim; N], result: impl FnOnce([DimExpr; N]) -> Option<DimExpr>) -> Dim {
        let operands: Option<Vec<DimExpr>> = dims.into_iter().map(DimExpr::of).collect();
        operands.and_then(|operands| result(operands.try_into().ok()?)).into()
    }

    /// Returns the product of dimensions; [`Dim::Any`] if a factor is `?`. `None` if the product of the fixed factors
    /// overflows.
    pub fn product<'a>(dims: impl IntoIterator<Item = &'a Dim>) -> Option<Dim> {
        let (mut number, mut symbolic) = (1usize, Some(DimExpr::constant(1)));
        for dim in dims {
            match dim {
                Dim::Fixed(n) => number = number.checked_mul(*n)?,
                Dim::Symbolic(expr) => symbolic = symbolic.and_then(|product| product.mul(expr)),
                Dim::Any => symbolic = None,
            }
        }
        Some(match symbolic {
            Some(expr) if expr.as_constant() == Some(1) => Dim::Fixed(number),
            Some(expr) => expr.scale(i64::try_from(number).ok()?).into(),
            None => Dim::Any,
        })
    }

    /// Divides the product of `numerator` by the product of `denominator`; [`Dim::Any`] unless the quotient is provably
    /// an integer.
    pub fn quotient<'a>(
        numerator: impl IntoIterator<Item = &'a Dim>,
        denominator: impl IntoIterator<Item = &'a Dim>,
    ) -> Dim {
        match (Dim::product(numerator), Dim::product(denominator)) {
            (Some(numerator), Some(denominator)) => {
                Dim::compute([&numerator, &denominator], |[numerator, denominator]| numerator.div_exact(&denominator))
            }
            _ => Dim::Any,
        }
    }
}

impl From<DimExpr> for Dim {
    /// Converts a constant to [`Dim::Fixed`], or to [`Dim::Any`] if it is negative, because no dimension is negative.
    fn from(expr: DimExpr) -> Dim {
        match expr.as_constant() {
            Some(n) => usize::try_from(n).map_or(Dim::Any, Dim::Fixed),
            None => Dim::Symbolic(expr),
        }
    }
}

impl From<Option<DimExpr>> for Dim {
    fn from(expr: Option<DimExpr>) -> Dim {
        expr.map_or(Dim::Any, Dim::from)
    }
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Dim::Fixed(n) => write!(f, "{n}"),
            Dim::Symbolic(expr) => write!(f, "{expr}"),
            Dim::Any => f.write_str("?"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_and_quotients() {
        let (b, s) = (Dim::symbol("b"), Dim::symbol("s"));
        let product = Dim::product([&b, &Dim::Fixed(12), &s]).unwrap();
        assert_eq!(product.to_string(), "12*b*s");
        assert_eq!(product.number(), 12);
        assert_eq!(Dim::quotient([&product], [&s, &Dim::Fixed(4)]).to_string(), "3*b");
        assert_eq!(Dim::quotient([&product], [&Dim::Fixed(5)]), Dim::Any);
        assert_eq!(Dim::quotient([&product], [&product]), Dim::Fixed(1));
        assert_eq!(Dim::product([&b, &Dim::Fixed(0)]), Some(Dim::Fixed(0)));
        assert_eq!(Dim::product([&b, &Dim::Any]), Some(Dim::Any));
        assert_eq!(Dim::product([&Dim::Fixed(usize::MAX), &Dim::Fixed(2)]), None);
    }

    #[test]
    fn symbols_get_sizes() {
        let quotient = Dim::compute([&Dim::symbol("n")], |[n]| n.floor_div(&DimExpr::constant(2)));
        assert_eq!(quotient.with_sizes(|_| Some(7)), Dim::Fixed(3));
        assert_eq!(quotient.with_sizes(|_| None), quotient);
        let difference = Dim::compute([&Dim::symbol("n")], |[n]| n.offset(-8));
        assert_eq!(difference.with_sizes(|_| Some(7)), Dim::Any);
        assert_eq!(quotient.with_dims(|_| Some(Dim::Fixed(9))), Dim::Fixed(4));
        assert_eq!(quotient.with_dims(|_| Some(Dim::Any)), Dim::Any);
    }
}
