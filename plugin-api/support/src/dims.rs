//! Evaluation of dimensions that are unknown until run time.
//!
//! An unknown dimension crosses the boundary as text: an empty string, a symbol, or an expression over symbols such as
//! `12*batch` or `floordiv(n + 1, 2)`. Equal texts denote equal extents.

use byoc_plugin_api::Dim;

/// Maximum nesting of functions and parentheses.
const MAX_DEPTH: usize = 16;

/// Evaluates a dimension, with the sizes of symbols given by `symbol`. Returns `None` for `?`, a malformed expression,
/// an unknown symbol, and a result that is negative or overflows.
///
/// ```
/// use byoc_plugin_api::Dim;
/// use byoc_plugin_support::dims::size;
///
/// let half = Dim::Unknown("floordiv(n + 1, 2)".into());
/// assert_eq!(size(&half, &mut |name| (name == "n").then_some(7)), Some(4));
/// ```
pub fn size(dim: &Dim, symbol: &mut dyn FnMut(&str) -> Option<usize>) -> Option<usize> {
    match dim {
        Dim::Known(size) => Some(*size),
        Dim::Unknown(text) => {
            let value = parse(text, &mut |name| Some(Linear::constant(i64::try_from(symbol(name)?).ok()?)))?;
            usize::try_from(value.constant).ok()
        }
    }
}

/// Returns the symbol that a dimension depends on linearly, and the size of the symbol for which the dimension equals
/// `size` (`None` if there is none). Returns `None` if the dimension is not a linear function of exactly one symbol.
///
/// ```
/// use byoc_plugin_api::Dim;
/// use byoc_plugin_support::dims::solve;
///
/// assert_eq!(solve(&Dim::Unknown("12*batch".into()), 36), Some(("batch", Some(3))));
/// assert_eq!(solve(&Dim::Unknown("12*batch".into()), 35), Some(("batch", None)));
/// assert_eq!(solve(&Dim::Unknown("n*m".into()), 35), None);
/// ```
pub fn solve(dim: &Dim, size: usize) -> Option<(&str, Option<usize>)> {
    let Dim::Unknown(text) = dim else { return None };
    let mut unknown: Option<&str> = None;
    let Linear { constant, slope } =
        parse(text, &mut |name| (*unknown.get_or_insert(name) == name).then_some(Linear { constant: 0, slope: 1 }))?;
    let symbol = unknown.filter(|_| slope != 0)?;
    let product = i64::try_from(size).ok()?.checked_sub(constant)?;
    let value = (product.checked_rem(slope)? == 0).then(|| product / slope);
    Some((symbol, value.and_then(|value| usize::try_from(value).ok())))
}

fn parse<'a>(text: &'a str, symbol: &mut dyn FnMut(&'a str) -> Option<Linear>) -> Option<Linear> {
    let mut parser = Parser { text, position: 0, depth: 0, symbol };
    let value = parser.sum()?;
    parser.peek().is_none().then_some(value)
}

/// Linear function of one symbol.
#[derive(Clone, Copy)]
struct Linear {
    constant: i64,
    slope: i64,
}

impl Linear {
    fn constant(constant: i64) -> Linear {
        Linear { constant, slope: 0 }
    }

    /// Returns the value; `None` if it depends on the symbol.
    fn fixed(self) -> Option<i64> {
        (self.slope == 0).then_some(self.constant)
    }

    fn checked_add(self, other: Linear) -> Option<Linear> {
        let constant = self.constant.checked_add(other.constant)?;
        Some(Linear { constant, slope: self.slope.checked_add(other.slope)? })
    }

    fn checked_mul(self, other: Linear) -> Option<Linear> {
        let (factor, function) = if self.slope == 0 { (self.constant, other) } else { (other.fixed()?, self) };
        let constant = function.constant.checked_mul(factor)?;
        Some(Linear { constant, slope: function.slope.checked_mul(factor)? })
    }

    fn checked_neg(self) -> Option<Linear> {
        self.checked_mul(Linear::constant(-1))
    }
}

struct Parser<'a, 'b> {
    text: &'a str,
    position: usize,
    depth: usize,
    symbol: &'b mut dyn FnMut(&'a str) -> Option<Linear>,
}

impl<'a> Parser<'a, '_> {
    fn peek(&mut self) -> Option<u8> {
        let bytes = self.text.as_bytes();
        while bytes.get(self.position) == Some(&b' ') {
            self.position += 1;
        }
        bytes.get(self.position).copied()
    }

    fn eat(&mut self, byte: u8) -> bool {
        let is_match = self.peek() == Some(byte);
        self.position += usize::from(is_match);
        is_match
    }

    fn identifier(&mut self) -> &'a str {
        let remaining = &self.text[self.position..];
        let end = remaining
            .find(|c: char| !c.is_ascii_alphanumeric() && !matches!(c, '_' | '.' | '$'))
            .unwrap_or(remaining.len());
        self.position += end;
        &remaining[..end]
    }

    fn sum(&mut self) -> Option<Linear> {
        let mut sum = if self.eat(b'-') { self.product()?.checked_neg()? } else { self.product()? };
        loop {
            if self.eat(b'+') {
                sum = sum.checked_add(self.product()?)?;
            } else if self.eat(b'-') {
                sum = sum.checked_add(self.product()?.checked_neg()?)?;
            } else {
                return Some(sum);
            }
        }
    }

    fn product(&mut self) -> Option<Linear> {
        let mut product = self.factor()?;
        while self.eat(b'*') {
            product = product.checked_mul(self.factor()?)?;
        }
        Some(product)
    }

    fn factor(&mut self) -> Option<Linear> {
        let first_byte = self.peek()?;
        let name = self.identifier();
        match (first_byte, name) {
            (b'(', _) => match self.operands()?[..] {
                [operand] => Some(operand),
                _ => None,
            },
            (b'0'..=b'9', number) => number.parse().ok().map(Linear::constant),
            (_, "") => None,
            (_, name) if self.peek() == Some(b'(') => {
                let operands: Option<Vec<i64>> = self.operands()?.into_iter().map(Linear::fixed).collect();
                apply(name, &operands?).map(Linear::constant)
            }
            (_, name) => (self.symbol)(name),
        }
    }

    fn operands(&mut self) -> Option<Vec<Linear>> {
        self.depth += 1;
        if self.depth > MAX_DEPTH || !self.eat(b'(') {
            return None;
        }
        let mut operands = vec![self.sum()?];
        while self.eat(b',') {
            operands.push(self.sum()?);
        }
        self.depth -= 1;
        self.eat(b')').then_some(operands)
    }
}

fn apply(name: &str, operands: &[i64]) -> Option<i64> {
    match (name, operands) {
        ("floordiv", [a, b]) if *b > 0 => a.checked_div_euclid(*b),
        ("ceildiv", [a, b]) if *b > 0 => a.checked_neg()?.checked_div_euclid(*b)?.checked_neg(),
        ("min", operands) => operands.iter().min().copied(),
        ("max", operands) => operands.iter().max().copied(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use byoc_ir::text::parse_dim;
    use proptest::prelude::*;

    fn evaluate(text: &str, sizes: [usize; 2]) -> Option<usize> {
        let mut symbol =
            |name: &str| ["n", "m"].iter().position(|symbol_name| *symbol_name == name).map(|index| sizes[index]);
        size(&Dim::Unknown(text.into()), &mut symbol)
    }

    #[test]
    fn sizes_of_texts() {
        let cases = [
            ("n", Some(7)),
            ("12*n", Some(84)),
            ("n - m + 1", Some(5)),
            ("floordiv(n - 1, 2) + min(n, m, 2)", Some(5)),
            ("ceildiv(n, 2)*(m)", Some(12)),
            ("", None),
            ("?", None),
            ("k", None),
            ("n n", None),
            ("m - n", None),
            ("floordiv(n, 0)", None),
            ("n*9223372036854775807", None),
        ];
        for (text, expected) in cases {
            assert_eq!(evaluate(text, [7, 3]), expected, "{text}");
        }
        assert_eq!(evaluate(&"(".repeat(100_000), [1, 1]), None);
    }

    #[test]
    fn solutions_of_linear_dimensions() {
        let cases = [
            ("n", 7, Some(Some(7))),
            ("12*n", 36, Some(Some(3))),
            ("12*n", 35, Some(None)),
            ("2*(n + 1) - n + 3", 7, Some(Some(2))),
            ("10 - 2*n", 4, Some(Some(3))),
            ("10 - 2*n", 12, Some(None)),
            ("floordiv(9, 2)*n", 8, Some(Some(2))),
            ("n - n", 0, None),
            ("n*n", 4, None),
            ("n + m", 4, None),
            ("floordiv(n, 2)", 4, None),
            ("5", 5, None),
            ("", 5, None),
        ];
        for (text, size, expected) in cases {
            let expected = expected.map(|value| ("n", value));
            assert_eq!(solve(&Dim::Unknown(text.into()), size), expected, "{text}");
        }
        assert_eq!(solve(&Dim::Known(5), 5), None);
    }

    fn text() -> impl Strategy<Value = String> {
        let leaf = prop_oneof![Just("n".to_owned()), Just("m".to_owned()), (0..9).prop_map(|n: i32| n.to_string())];
        leaf.prop_recursive(4, 12, 2, |inner| {
            (0..7usize, inner.clone(), inner).prop_map(|(op, a, b)| match op {
                0 => format!("({a} + {b})"),
                1 => format!("({a} - {b})"),
                2 => format!("({a} * {b})"),
                op => format!("{}({a}, {b})", ["floordiv", "ceildiv", "min", "max"][op - 3]),
            })
        })
    }

    proptest! {
        /// Tests that evaluating the printed normal form of a dimension yields the size that the compiler computes.
        #[test]
        fn agrees_with_the_compiler(text in text(), n in 1..20usize, m in 1..20usize) {
            if let Ok(dim) = parse_dim(&text) {
                let expected = dim.with_sizes(|name| Some(if name == "n" { n } else { m })).fixed();
                let actual = evaluate(&dim.to_string(), [n, m]);
                prop_assert_eq!(actual, expected, "{} in normal form: {}", text, dim);
            }
        }
    }
}
