//! Dimensions of tensor types: numbers, expressions over symbols, unknowns.

use super::{DimExpr, Name};
use std::fmt;

/// One dimension of a tensor type.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Dim {
    /// Known before the run.
    Fixed(usize),
    /// Known during the run, and the same wherever an equal expression stands in the module. Never a constant.
    Symbolic(DimExpr),
    /// `?`: known during the run; two of them need not be equal.
    Any,
}

impl Dim {
    /// Creates a symbolic dimension of one symbol.
    pub fn symbol(name: impl Into<Name>) -> Dim {
        Dim::Symbolic(DimExpr::symbol(name))
    }

    /// Returns the number of a fixed dimension.
    pub fn fixed(&self) -> Option<usize> {
        match self {
            Dim::Fixed(n) => Some(*n),
            _ => None,
        }
    }

    /// Returns the symbol, unless the dimension is computed from symbols.
    pub fn name(&self) -> Option<&Name> {
        match self {
            Dim::Symbolic(expr) => expr.as_symbol(),
            _ => None,
        }
    }

    /// Returns the largest known factor: the number itself, 12 of `12*batch`, 1 of an unknown dimension.
    pub fn number(&self) -> usize {
        match self {
            Dim::Fixed(n) => *n,
            Dim::Symbolic(expr) => usize::try_from(expr.content()).unwrap_or(1),
            Dim::Any => 1,
        }
    }

    /// Returns the symbols in it, each once, in order.
    pub fn symbols(&self) -> Vec<&Name> {
        match self {
            Dim::Symbolic(expr) => expr.symbols(),
            _ => Vec::new(),
        }
    }

    /// Replaces the symbols whose sizes are known. A dimension that would be negative becomes unknown.
    pub fn with_sizes(&self, size: impl Fn(&str) -> Option<usize>) -> Dim {
        let Dim::Symbolic(expr) = self else { return self.clone() };
        let value = |name: &Name| size(name).and_then(|n| i64::try_from(n).ok()).map(DimExpr::constant);
        expr.substitute(&value).into()
    }

    /// Replaces symbols by dimensions. A symbol that is replaced by an unknown dimension makes the whole unknown.
    pub fn with_dims(&self, dim: impl Fn(&str) -> Option<Dim>) -> Dim {
        let Dim::Symbolic(expr) = self else { return self.clone() };
        if expr.symbols().iter().any(|name| dim(name) == Some(Dim::Any)) {
            return Dim::Any;
        }
        expr.substitute(&|name: &Name| DimExpr::of(&dim(name)?)).into()
    }

    /// Computes a dimension from others; unknown if one of `of` is, or if the result cannot be represented.
    pub fn compute<const N: usize>(of: [&Dim; N], result: impl FnOnce([DimExpr; N]) -> Option<DimExpr>) -> Dim {
        let operands: Option<Vec<DimExpr>> = of.into_iter().map(DimExpr::of).collect();
        operands.and_then(|operands| result(operands.try_into().ok()?)).into()
    }

    /// Returns the product; unknown if a factor is. `None` if a product of numbers exceeds the range of sizes.
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

    /// Returns the product of `of` divided by the product of `by` where the quotient is known to be whole; unknown otherwise.
    pub fn quotient<'a>(of: impl IntoIterator<Item = &'a Dim>, by: impl IntoIterator<Item = &'a Dim>) -> Dim {
        match (Dim::product(of), Dim::product(by)) {
            (Some(of), Some(by)) => Dim::compute([&of, &by], |[of, by]| of.div_exact(&by)),
            _ => Dim::Any,
        }
    }
}

impl From<DimExpr> for Dim {
    /// A constant becomes a number, a negative one an unknown dimension: there is no such tensor.
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
        let half = Dim::compute([&Dim::symbol("n")], |[n]| n.floor_div(&DimExpr::constant(2)));
        assert_eq!(half.with_sizes(|_| Some(7)), Dim::Fixed(3));
        assert_eq!(half.with_sizes(|_| None), half);
        let less = Dim::compute([&Dim::symbol("n")], |[n]| n.offset(-8));
        assert_eq!(less.with_sizes(|_| Some(7)), Dim::Any);
        assert_eq!(half.with_dims(|_| Some(Dim::Fixed(9))), Dim::Fixed(4));
        assert_eq!(half.with_dims(|_| Some(Dim::Any)), Dim::Any);
    }
}
