//! Text form of dimensions: `3`, `?`, `batch`, `12*batch`, `n + 1`, `floordiv(n - 1, 2)`, `ceildiv(n, 2)`, `min(n, 8)`,
//! `max(n, m)`.

use crate::ir::{Dim, DimExpr};

/// Maximum nesting depth of functions and parentheses in a dimension.
const MAX_DEPTH: usize = 16;

/// Parses a dimension; inverse of the `Display` of [`Dim`].
///
/// # Errors
/// If the text is malformed or nests too deeply, or the dimension is negative or cannot be represented.
pub fn parse_dim(text: &str) -> Result<Dim, String> {
    let mut parser = DimParser { text, offset: 0, depth: 0 };
    let expr = parser.sum()?;
    if parser.peek().is_some() {
        return Err(parser.expected("`+`, `-` or `*`"));
    }
    match expr.as_ref().and_then(DimExpr::as_constant) {
        Some(n) if n < 0 => Err(format!("expected a dimension >= 0, found {n}")),
        _ => Ok(expr.into()),
    }
}

/// Parses a dimension from an artifact or a plugin; text that is not a dimension becomes the name of a symbol.
pub fn dim_or_symbol(text: &str) -> Dim {
    parse_dim(text).unwrap_or_else(|_| Dim::symbol(text))
}

/// Operand of a dimension expression. `None` stands for `?`; every operation on `?` yields `?`.
type Operand = Option<DimExpr>;

struct DimParser<'a> {
    text: &'a str,
    offset: usize,
    depth: usize,
}

impl<'a> DimParser<'a> {
    fn sum(&mut self) -> Result<Operand, String> {
        let minus = |product: Operand| apply(product, Some(DimExpr::constant(-1)), DimExpr::mul);
        let mut sum = if self.accept(b'-') { minus(self.product()?)? } else { self.product()? };
        loop {
            let next = match self.peek() {
                Some(b'+' | b'-') if self.accept(b'-') => minus(self.product()?)?,
                Some(b'+') if self.accept(b'+') => self.product()?,
                _ => return Ok(sum),
            };
            sum = apply(sum, next, DimExpr::add)?;
        }
    }

    fn product(&mut self) -> Result<Operand, String> {
        let mut product = self.factor()?;
        while self.accept(b'*') {
            product = apply(product, self.factor()?, DimExpr::mul)?;
        }
        Ok(product)
    }

    fn factor(&mut self) -> Result<Operand, String> {
        match self.peek() {
            Some(b'?') => {
                self.offset += 1;
                Ok(None)
            }
            Some(b'(') => match <[Operand; 1]>::try_from(self.operands()?) {
                Ok([atom]) => Ok(atom),
                Err(several) => Err(format!("expected one expression in parentheses, found {}", several.len())),
            },
            Some(c) if c.is_ascii_digit() => {
                let digits = self.take_while(|c| c.is_ascii_digit());
                let number = digits.parse().map_err(|_| format!("expected at most {}, found {digits}", i64::MAX))?;
                Ok(Some(DimExpr::constant(number)))
            }
            Some(c) if c.is_ascii_alphabetic() || c == b'_' => {
                let name = self.take_while(|c| c.is_ascii_alphanumeric() || matches!(c, b'_' | b'.' | b'$'));
                if self.peek() == Some(b'(') {
                    function(name, self.operands()?)
                } else {
                    Ok(Some(DimExpr::symbol(name)))
                }
            }
            _ => Err(self.expected("a number, `?`, a name or a function")),
        }
    }

    /// Parses comma-separated operands in parentheses.
    fn operands(&mut self) -> Result<Vec<Operand>, String> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(format!("functions nested more than {MAX_DEPTH} levels deep"));
        }
        self.offset += 1;
        let mut operands = vec![self.sum()?];
        while self.accept(b',') {
            operands.push(self.sum()?);
        }
        if !self.accept(b')') {
            return Err(self.expected("`,` or `)`"));
        }
        self.depth -= 1;
        Ok(operands)
    }

    fn peek(&mut self) -> Option<u8> {
        let bytes = self.text.as_bytes();
        while bytes.get(self.offset).is_some_and(u8::is_ascii_whitespace) {
            self.offset += 1;
        }
        bytes.get(self.offset).copied()
    }

    fn accept(&mut self, byte: u8) -> bool {
        let is_match = self.peek() == Some(byte);
        self.offset += usize::from(is_match);
        is_match
    }

    fn take_while(&mut self, part: impl Fn(u8) -> bool) -> &'a str {
        let rest = &self.text[self.offset..];
        let len = rest.bytes().position(|c| !part(c)).unwrap_or(rest.len());
        self.offset += len;
        &rest[..len]
    }

    fn expected(&self, token: &str) -> String {
        let found: String = self.text[self.offset..].chars().take(16).collect();
        match found.is_empty() {
            true => format!("expected {token}, found the end of `{}`", self.text),
            false => format!("expected {token}, found `{found}`"),
        }
    }
}

fn apply(a: Operand, b: Operand, op: impl Fn(&DimExpr, &DimExpr) -> Option<DimExpr>) -> Result<Operand, String> {
    let (Some(a), Some(b)) = (a, b) else { return Ok(None) };
    op(&a, &b).map(Some).ok_or_else(|| format!("the dimension computed from `{a}` and `{b}` cannot be represented"))
}

fn function(name: &str, operands: Vec<Operand>) -> Result<Operand, String> {
    let count = operands.len();
    let mut operands = operands.into_iter();
    let first = operands.next().flatten();
    let op = match (name, count) {
        ("floordiv", 2) => DimExpr::floor_div,
        ("ceildiv", 2) => DimExpr::ceil_div,
        ("min", 2..) => DimExpr::minimum,
        ("max", 2..) => DimExpr::maximum,
        ("floordiv" | "ceildiv" | "min" | "max", _) => {
            return Err(format!("{name}: expected two operands, found {count}"));
        }
        _ => return Err(format!("expected floordiv, ceildiv, min or max, found `{name}`")),
    };
    operands.try_fold(first, |accumulated, next| apply(accumulated, next, op))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn equal_expressions_have_one_form() {
        let cases = [
            ("3", "3"),
            ("?", "?"),
            ("batch", "batch"),
            ("batch*12", "12*batch"),
            ("4*s*3*b", "12*b*s"),
            ("1 + n", "n + 1"),
            ("n - 1 + 2*n + m", "m + 3*n - 1"),
            ("n - n", "0"),
            ("n + ?", "?"),
            ("(n + 1)*(n - 1)", "n*n - 1"),
            ("floordiv(4*n + 3, 2)", "2*n + 1"),
            ("floordiv(n - 1, 2) + 1", "floordiv(n + 1, 2)"),
            ("ceildiv(n, 2)", "floordiv(n + 1, 2)"),
            ("floordiv(floordiv(n, 2), 3)", "floordiv(n, 6)"),
            ("floordiv(floordiv(n + 1, 2) + 1, 2)", "floordiv(n + 3, 4)"),
            ("floordiv(6*n + 5, 4)", "n + floordiv(n, 2) + 1"),
            ("floordiv(n*m + m, m)", "n + 1"),
            ("floordiv(n + m, m)", "floordiv(n, m) + 1"),
            ("max(n, 0)", "n"),
            ("min(n, n + 1)", "n"),
            ("min(8, n)", "min(8, n)"),
            ("max(n, max(m, n))", "max(m, n)"),
            ("max(n - 8, 0)", "max(0, n - 8)"),
        ];
        for (text, expected) in cases {
            let dim = parse_dim(text).unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(dim.to_string(), expected, "{text}");
            assert_eq!(parse_dim(expected), Ok(dim), "{expected} does not round-trip");
        }
    }

    #[test]
    fn refusals() {
        let deep = format!("{}n{}", "(".repeat(99), ")".repeat(99));
        let variables: Vec<String> = (0..99).map(|i| format!("a{i}")).collect();
        for text in [
            "",
            "n +",
            "3 n",
            "floordiv(n)",
            "f(n, 2)",
            "(n, 2)",
            "-3",
            "99999999999999999999",
            &deep,
            &variables.join("+"),
            "n ; m",
        ] {
            parse_dim(text).unwrap_err();
        }
        assert_eq!(dim_or_symbol("a, b").name().map(|name| &**name), Some("a, b"));
    }

    /// Dimension expression with an independent evaluator, as a test oracle.
    #[derive(Clone, Debug)]
    enum Tree {
        Number(i64),
        Symbol(usize),
        Of(&'static str, Box<Tree>, Box<Tree>),
    }

    const NAMES: [&str; 3] = ["a", "b", "c"];

    impl Tree {
        fn text(&self) -> String {
            match self {
                Tree::Number(n) => n.to_string(),
                Tree::Symbol(i) => NAMES[*i].to_owned(),
                Tree::Of(op @ ("+" | "-" | "*"), a, b) => format!("({} {op} {})", a.text(), b.text()),
                Tree::Of(op, a, b) => format!("{op}({}, {})", a.text(), b.text()),
            }
        }

        fn value(&self, sizes: &[i64; 3]) -> Option<i64> {
            Some(match self {
                Tree::Number(n) => *n,
                Tree::Symbol(i) => sizes[*i],
                Tree::Of(op, a, b) => {
                    let (a, b) = (a.value(sizes)?, b.value(sizes)?);
                    match *op {
                        "+" => a + b,
                        "-" => a - b,
                        "*" => a.checked_mul(b)?,
                        "min" => a.min(b),
                        "max" => a.max(b),
                        _ if b < 1 => return None,
                        "floordiv" => a.div_euclid(b),
                        "ceildiv" => -(-a).div_euclid(b),
                        _ => unreachable!("{op}"),
                    }
                }
            })
        }
    }

    fn tree() -> impl proptest::strategy::Strategy<Value = Tree> {
        use proptest::prelude::*;
        let leaf = prop_oneof![(0i64..9).prop_map(Tree::Number), (0usize..3).prop_map(Tree::Symbol)];
        leaf.prop_recursive(4, 12, 2, |inner| {
            let ops = prop::sample::select(vec!["+", "-", "*", "floordiv", "ceildiv", "min", "max"]);
            (ops, inner.clone(), inner).prop_map(|(op, a, b)| Tree::Of(op, a.into(), b.into()))
        })
    }

    proptest::proptest! {
        #[test]
        fn a_normal_form_has_the_value_of_its_text(tree in tree(), sizes in proptest::array::uniform3(1i64..20)) {
            // A negative constant is not a dimension, nor is a quotient whose divisor may be 0.
            if let (Ok(dim), Some(value)) = (parse_dim(&tree.text()), tree.value(&sizes)) {
                let by_name: BTreeMap<&str, usize> = NAMES.into_iter().zip(sizes.map(|n| n as usize)).collect();
                let actual = dim.with_sizes(|name| by_name.get(name).copied());
                let expected = usize::try_from(value).map_or(Dim::Any, Dim::Fixed);
                proptest::prop_assert_eq!(actual, expected, "{} in normal form: {}", tree.text(), dim);
                proptest::prop_assert_eq!(parse_dim(&dim.to_string()), Ok(dim));
            }
        }
    }
}
