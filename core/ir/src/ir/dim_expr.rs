//! Expressions over symbolic dimensions, in a normal form.
//!
//! An expression is a polynomial with integer coefficients. Its variables are symbols and applications of the functions
//! `floordiv`, `min` and `max`. Terms are merged and sorted, so that expressions that are equal as polynomials compare
//! equal. A division by an integer leaves only the remainders of the coefficients in `floordiv`:
//! `floordiv(4*n + 3, 2)` is `2*n + 1`. `ceildiv(a, b)` is `floordiv(a + b - 1, b)`.
//!
//! Symbols stand for dimensions and are at least 0; divisors are at least 1. An expression has at most [`MAX_ATOMS`]
//! variables, so that a chain of operators cannot build an expression that is slow to compare. A result that exceeds
//! this limit, or a coefficient that overflows, cannot be represented: the operation returns `None`.

use super::{Dim, Name};
use std::cmp::{Ordering, Reverse};
use std::fmt;
use std::sync::Arc;

/// Maximum number of variables in an expression, including repetitions.
pub const MAX_ATOMS: usize = 64;

/// Polynomial over symbols and integer functions.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DimExpr {
    /// Terms by descending degree, then by variables; no coefficient is 0.
    terms: Arc<[Term]>,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Term {
    /// Variables, sorted; a power repeats its variable. Empty in the constant term.
    atoms: Vec<Atom>,
    coefficient: i64,
}

/// Variable of a polynomial.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Atom {
    Symbol(Name),
    FloorDiv(DimExpr, DimExpr),
    /// At least two operands, sorted.
    Min(Vec<DimExpr>),
    /// At least two operands, sorted.
    Max(Vec<DimExpr>),
}

impl DimExpr {
    /// Creates a constant.
    pub fn constant(value: i64) -> DimExpr {
        let term = Term { atoms: Vec::new(), coefficient: value };
        DimExpr { terms: if value == 0 { [].into() } else { [term].into() } }
    }

    /// Creates an expression that is a single symbol.
    pub fn symbol(name: impl Into<Name>) -> DimExpr {
        DimExpr::atom(Atom::Symbol(name.into()))
    }

    /// Converts a dimension; `None` for `?` and for a number that exceeds `i64`.
    pub fn of(dim: &Dim) -> Option<DimExpr> {
        match dim {
            Dim::Fixed(n) => i64::try_from(*n).ok().map(DimExpr::constant),
            Dim::Symbolic(expr) => Some(expr.clone()),
            Dim::Any => None,
        }
    }

    fn atom(atom: Atom) -> DimExpr {
        DimExpr { terms: [Term { atoms: vec![atom], coefficient: 1 }].into() }
    }

    /// Sorts the terms, merges equal monomials and drops zero coefficients; `None` if the result cannot be represented.
    fn normal_form(mut terms: Vec<Term>) -> Option<DimExpr> {
        terms.sort_by(|a, b| monomial_order(&a.atoms, &b.atoms));
        let mut sum: Vec<Term> = Vec::with_capacity(terms.len());
        for term in terms {
            match sum.last_mut() {
                Some(last) if last.atoms == term.atoms => {
                    last.coefficient = last.coefficient.checked_add(term.coefficient)?;
                }
                _ => sum.push(term),
            }
        }
        sum.retain(|term| term.coefficient != 0);
        let expr = DimExpr { terms: sum.into() };
        (expr.size() <= MAX_ATOMS).then_some(expr)
    }

    /// Returns the number of variables, including those inside functions.
    fn size(&self) -> usize {
        self.atoms()
            .map(|atom| match atom {
                Atom::Symbol(_) => 1,
                Atom::FloorDiv(a, b) => 1 + a.size() + b.size(),
                Atom::Min(list) | Atom::Max(list) => 1 + list.iter().map(DimExpr::size).sum::<usize>(),
            })
            .sum()
    }

    fn atoms(&self) -> impl Iterator<Item = &Atom> {
        self.terms.iter().flat_map(|term| &term.atoms)
    }

    /// Returns the value if the expression is constant.
    pub fn as_constant(&self) -> Option<i64> {
        match &*self.terms {
            [] => Some(0),
            [Term { atoms, coefficient }] if atoms.is_empty() => Some(*coefficient),
            _ => None,
        }
    }

    /// Returns the symbol if the expression is a single symbol.
    pub fn as_symbol(&self) -> Option<&Name> {
        match &*self.terms {
            [Term { atoms, coefficient: 1 }] => match &atoms[..] {
                [Atom::Symbol(name)] => Some(name),
                _ => None,
            },
            _ => None,
        }
    }

    /// Returns the greatest common divisor of the coefficients; 0 for the constant 0.
    pub fn content(&self) -> u64 {
        self.terms.iter().fold(0, |divisor, term| gcd(divisor, term.coefficient.unsigned_abs()))
    }

    /// Returns the distinct symbols of the expression, sorted.
    pub fn symbols(&self) -> Vec<&Name> {
        let mut names = Vec::new();
        let mut stack = vec![self];
        while let Some(expr) = stack.pop() {
            for atom in expr.atoms() {
                match atom {
                    Atom::Symbol(name) => names.push(name),
                    Atom::FloorDiv(a, b) => stack.extend([a, b]),
                    Atom::Min(list) | Atom::Max(list) => stack.extend(list),
                }
            }
        }
        names.sort();
        names.dedup();
        names
    }

    /// Returns `self + other`; `None` if it cannot be represented.
    pub fn add(&self, other: &DimExpr) -> Option<DimExpr> {
        DimExpr::normal_form(self.terms.iter().chain(&*other.terms).cloned().collect())
    }

    /// Returns `self - other`; `None` if it cannot be represented.
    pub fn sub(&self, other: &DimExpr) -> Option<DimExpr> {
        self.add(&other.scale(-1)?)
    }

    /// Returns `self + amount`; `None` if it cannot be represented.
    pub fn offset(&self, amount: i64) -> Option<DimExpr> {
        self.add(&DimExpr::constant(amount))
    }

    /// Returns `self * factor`; `None` if it cannot be represented.
    pub fn scale(&self, factor: i64) -> Option<DimExpr> {
        let terms = self
            .terms
            .iter()
            .map(|term| Some(Term { atoms: term.atoms.clone(), coefficient: term.coefficient.checked_mul(factor)? }));
        DimExpr::normal_form(terms.collect::<Option<_>>()?)
    }

    /// Returns `self * other`; `None` if it cannot be represented.
    pub fn mul(&self, other: &DimExpr) -> Option<DimExpr> {
        if self.terms.len() * other.terms.len() > MAX_ATOMS * 2 {
            return None;
        }
        let mut terms = Vec::with_capacity(self.terms.len() * other.terms.len());
        for a in &*self.terms {
            for b in &*other.terms {
                terms.push(a.mul(b)?);
            }
        }
        DimExpr::normal_form(terms)
    }

    /// Returns `self / divisor` if the quotient is a polynomial, and thus an integer for all values of the symbols.
    pub fn div_exact(&self, divisor: &DimExpr) -> Option<DimExpr> {
        let (quotient, remainder) = self.divide(divisor)?;
        (remainder.as_constant() == Some(0)).then_some(quotient)
    }

    /// Divides polynomials: `self = quotient * divisor + remainder`, where the leading term of `divisor` divides no
    /// term of `remainder`.
    fn divide(&self, divisor: &DimExpr) -> Option<(DimExpr, DimExpr)> {
        let first = divisor.terms.first()?;
        let (mut quotient, mut remainder) = (DimExpr::constant(0), self.clone());
        // Each round removes one term and adds only smaller terms.
        for _ in 0..MAX_ATOMS {
            let Some(term) = remainder.terms.iter().find_map(|term| term.div(first)) else { break };
            let factor = DimExpr { terms: [term].into() };
            remainder = remainder.sub(&factor.mul(divisor)?)?;
            quotient = quotient.add(&factor)?;
        }
        Some((quotient, remainder))
    }

    /// Returns `floor(self / divisor)`; `None` if it cannot be represented.
    pub fn floor_div(&self, divisor: &DimExpr) -> Option<DimExpr> {
        match divisor.as_constant() {
            Some(number) => self.floor_div_number(number),
            None => {
                let (quotient, remainder) = self.divide(divisor)?;
                if remainder.as_constant() == Some(0) {
                    return Some(quotient);
                }
                quotient.add(&DimExpr::atom(Atom::FloorDiv(remainder, divisor.clone())))
            }
        }
    }

    /// Moves the multiples of `by` out of the division: floor((by * q + r) / by) = q + floor(r / by).
    fn floor_div_number(&self, by: i64) -> Option<DimExpr> {
        if by < 1 {
            return None;
        }
        let coefficients_by = |operation: fn(i64, i64) -> i64| {
            let terms = self
                .terms
                .iter()
                .map(|term| Term { atoms: term.atoms.clone(), coefficient: operation(term.coefficient, by) });
            DimExpr::normal_form(terms.collect())
        };
        let (quotient, remainder) = (coefficients_by(i64::div_euclid)?, coefficients_by(i64::rem_euclid)?);
        if remainder.as_constant().is_some() {
            return Some(quotient);
        }
        let (variable, constant) = remainder.split_constant();
        // floor((g * x + c) / (g * b)) = floor((x + floor(c / g)) / b)
        let divisor_gcd = i64::try_from(gcd(variable.content(), by.unsigned_abs())).ok()?;
        let remainder = DimExpr { terms: variable.terms.iter().map(|term| term.shrink(divisor_gcd)).collect() };
        let (remainder, by) = (remainder.offset(constant / divisor_gcd)?, by / divisor_gcd);
        // floor((floor(x / a) + c) / b) = floor((x + a * c) / (a * b))
        let (variable, constant) = remainder.split_constant();
        if let [Term { atoms, coefficient: 1 }] = &*variable.terms
            && let [Atom::FloorDiv(inner, divisor)] = &atoms[..]
            && let Some(divisor) = divisor.as_constant()
        {
            let inner = inner.offset(divisor.checked_mul(constant)?)?;
            return quotient.add(&inner.floor_div_number(divisor.checked_mul(by)?)?);
        }
        quotient.add(&DimExpr::atom(Atom::FloorDiv(remainder, DimExpr::constant(by))))
    }

    /// Returns `ceil(self / divisor)`; `None` if it cannot be represented.
    pub fn ceil_div(&self, divisor: &DimExpr) -> Option<DimExpr> {
        self.add(divisor)?.offset(-1)?.floor_div(divisor)
    }

    /// Returns the minimum of two dimension expressions; `None` if it cannot be represented.
    pub fn minimum(&self, other: &DimExpr) -> Option<DimExpr> {
        DimExpr::extremum(self, other, true)
    }

    /// Returns the maximum of two dimension expressions; `None` if it cannot be represented.
    pub fn maximum(&self, other: &DimExpr) -> Option<DimExpr> {
        DimExpr::extremum(self, other, false)
    }

    fn extremum(a: &DimExpr, b: &DimExpr, is_minimum: bool) -> Option<DimExpr> {
        let mut operands: Vec<DimExpr> = Vec::new();
        for operand in [a, b] {
            match (&*operand.terms, is_minimum) {
                ([Term { atoms, coefficient: 1 }], true) if let [Atom::Min(list)] = &atoms[..] => {
                    operands.extend(list.iter().cloned());
                }
                ([Term { atoms, coefficient: 1 }], false) if let [Atom::Max(list)] = &atoms[..] => {
                    operands.extend(list.iter().cloned());
                }
                _ => operands.push(operand.clone()),
            }
        }
        operands.sort();
        operands.dedup();
        // An operand is redundant if another operand is never greater (for a minimum) or never less (for a maximum).
        let mut essential_operands: Vec<DimExpr> = Vec::with_capacity(operands.len());
        for (i, expr) in operands.iter().enumerate() {
            let decides = |other: &DimExpr| {
                let (low, high) = if is_minimum { (other, expr) } else { (expr, other) };
                high.sub(low).is_some_and(|delta| delta.is_non_negative())
            };
            if !operands.iter().enumerate().any(|(j, other)| i != j && decides(other)) {
                essential_operands.push(expr.clone());
            }
        }
        match &essential_operands[..] {
            [one] => Some(one.clone()),
            _ => {
                let expr = DimExpr::atom(if is_minimum {
                    Atom::Min(essential_operands)
                } else {
                    Atom::Max(essential_operands)
                });
                (expr.size() <= MAX_ATOMS).then_some(expr)
            }
        }
    }

    /// Returns true if the expression is provably at least 0 for all values of its symbols.
    pub fn is_non_negative(&self) -> bool {
        self.terms.iter().all(|term| term.coefficient > 0 && term.atoms.iter().all(Atom::is_non_negative))
    }

    /// Replaces the symbols for which `value` returns an expression; `None` if the result cannot be represented.
    pub fn substitute(&self, value: &impl Fn(&Name) -> Option<DimExpr>) -> Option<DimExpr> {
        let mut sum = DimExpr::constant(0);
        for term in &*self.terms {
            let mut product = DimExpr::constant(term.coefficient);
            for atom in &term.atoms {
                let replacement = match atom {
                    Atom::Symbol(name) => value(name).unwrap_or_else(|| DimExpr::symbol(name.clone())),
                    Atom::FloorDiv(a, b) => a.substitute(value)?.floor_div(&b.substitute(value)?)?,
                    Atom::Min(list) | Atom::Max(list) => {
                        let mut list = list.iter().map(|expr| expr.substitute(value));
                        let first_operand = list.next()??;
                        let is_minimum = matches!(atom, Atom::Min(_));
                        list.try_fold(first_operand, |extremum, operand| {
                            DimExpr::extremum(&extremum, &operand?, is_minimum)
                        })?
                    }
                };
                product = product.mul(&replacement)?;
            }
            sum = sum.add(&product)?;
        }
        Some(sum)
    }

    /// Evaluates the expression with the operations `ops`, for callers that compute dimensions at run time.
    ///
    /// # Errors
    /// If an operation of `ops` fails.
    pub fn fold<T, E>(&self, ops: &mut impl DimOps<T, E>) -> Result<T, E> {
        let mut sum: Option<T> = None;
        for term in &*self.terms {
            let mut product: Option<T> = match term.coefficient {
                1 if !term.atoms.is_empty() => None,
                number => Some(ops.constant(number)?),
            };
            for atom in &term.atoms {
                let factor = match atom {
                    Atom::Symbol(name) => ops.symbol(name)?,
                    Atom::FloorDiv(a, b) => {
                        let operands = (a.fold(ops)?, b.fold(ops)?);
                        ops.binary(DimOp::FloorDiv, operands.0, operands.1)?
                    }
                    Atom::Min(list) | Atom::Max(list) => {
                        let op = if matches!(atom, Atom::Min(_)) { DimOp::Min } else { DimOp::Max };
                        let mut accumulator: Option<T> = None;
                        for expr in list {
                            let operand = expr.fold(ops)?;
                            accumulator = Some(match accumulator {
                                Some(accumulator) => ops.binary(op, accumulator, operand)?,
                                None => operand,
                            });
                        }
                        match accumulator {
                            Some(accumulator) => accumulator,
                            None => ops.constant(0)?,
                        }
                    }
                };
                product = Some(match product {
                    Some(product) => ops.binary(DimOp::Mul, product, factor)?,
                    None => factor,
                });
            }
            let product = match product {
                Some(product) => product,
                None => ops.constant(1)?,
            };
            sum = Some(match sum {
                Some(sum) => ops.binary(DimOp::Add, sum, product)?,
                None => product,
            });
        }
        match sum {
            Some(sum) => Ok(sum),
            None => ops.constant(0),
        }
    }

    fn split_constant(&self) -> (DimExpr, i64) {
        match self.terms.split_last() {
            Some((last, rest)) if last.atoms.is_empty() => (DimExpr { terms: rest.into() }, last.coefficient),
            _ => (self.clone(), 0),
        }
    }
}

/// Binary operation on dimensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DimOp {
    /// Sum.
    Add,
    /// Product.
    Mul,
    /// Quotient, rounded down.
    FloorDiv,
    /// Minimum.
    Min,
    /// Maximum.
    Max,
}

/// Operations with which [`DimExpr::fold`] evaluates an expression.
pub trait DimOps<T, E> {
    /// Returns the constant `value`.
    ///
    /// # Errors
    /// If the implementation cannot represent `value`.
    fn constant(&mut self, value: i64) -> Result<T, E>;
    /// Returns the value of the symbol `name`.
    ///
    /// # Errors
    /// If the implementation does not know the value.
    fn symbol(&mut self, name: &Name) -> Result<T, E>;
    /// Applies `op` to `a` and `b`.
    ///
    /// # Errors
    /// If the implementation cannot compute the result.
    fn binary(&mut self, op: DimOp, a: T, b: T) -> Result<T, E>;
}

impl Term {
    fn mul(&self, other: &Term) -> Option<Term> {
        let mut atoms = [&self.atoms[..], &other.atoms[..]].concat();
        atoms.sort();
        Some(Term { atoms, coefficient: self.coefficient.checked_mul(other.coefficient)? })
    }

    /// Returns `self / divisor`; `None` if `divisor` does not divide `self`.
    fn div(&self, divisor: &Term) -> Option<Term> {
        let coefficient = self.coefficient.checked_div(divisor.coefficient)?;
        if self.coefficient.checked_rem(divisor.coefficient)? != 0 {
            return None;
        }
        let mut atoms = self.atoms.clone();
        for atom in &divisor.atoms {
            atoms.remove(atoms.iter().position(|candidate| candidate == atom)?);
        }
        Some(Term { atoms, coefficient })
    }

    fn shrink(&self, divisor: i64) -> Term {
        Term { atoms: self.atoms.clone(), coefficient: self.coefficient / divisor }
    }
}

impl Atom {
    fn is_non_negative(&self) -> bool {
        match self {
            Atom::Symbol(_) => true,
            Atom::FloorDiv(a, b) => a.is_non_negative() && b.is_non_negative(),
            Atom::Min(list) => list.iter().all(DimExpr::is_non_negative),
            Atom::Max(list) => list.iter().any(DimExpr::is_non_negative),
        }
    }
}

/// Compares monomials by descending degree, then by variables. Multiplication preserves this order, as polynomial
/// division requires.
fn monomial_order(a: &[Atom], b: &[Atom]) -> Ordering {
    Reverse(a.len()).cmp(&Reverse(b.len())).then_with(|| a.cmp(b))
}

fn gcd(a: u64, b: u64) -> u64 {
    let (mut a, mut b) = (a, b);
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

impl fmt::Display for DimExpr {
    /// Formats the expression as text that [`parse_dim`](crate::text::parse_dim) accepts: `12*batch`, `n + 1`,
    /// `floordiv(n - 1, 2)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.terms.is_empty() {
            return f.write_str("0");
        }
        for (i, term) in self.terms.iter().enumerate() {
            let negative = term.coefficient < 0;
            match (i, negative) {
                (0, false) => {}
                (0, true) => f.write_str("-")?,
                (_, false) => f.write_str(" + ")?,
                (_, true) => f.write_str(" - ")?,
            }
            let number = term.coefficient.unsigned_abs();
            if number != 1 || term.atoms.is_empty() {
                write!(f, "{number}{}", if term.atoms.is_empty() { "" } else { "*" })?;
            }
            for (i, atom) in term.atoms.iter().enumerate() {
                write!(f, "{}{atom}", if i == 0 { "" } else { "*" })?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for Atom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut call = |name: &str, list: &[&DimExpr]| {
            let list: Vec<String> = list.iter().map(ToString::to_string).collect();
            write!(f, "{name}({})", list.join(", "))
        };
        match self {
            Atom::Symbol(name) => f.write_str(name),
            Atom::FloorDiv(a, b) => call("floordiv", &[a, b]),
            Atom::Min(list) => call("min", &list.iter().collect::<Vec<_>>()),
            Atom::Max(list) => call("max", &list.iter().collect::<Vec<_>>()),
        }
    }
}

impl fmt::Debug for DimExpr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}
