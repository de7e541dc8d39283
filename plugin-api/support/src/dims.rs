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
            let mut parser = Parser { text, position: 0, depth: 0, symbol };
            let value = parser.sum()?;
            (parser.peek().is_none()).then(|| usize::try_from(value).ok())?
        }
    }
}

struct Parser<'a> {
    text: &'a str,
    position: usize,
    depth: usize,
    symbol: &'a mut dyn FnMut(&str) -> Option<usize>,
}

impl<'a> Parser<'a> {
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

    fn sum(&mut self) -> Option<i64> {
        let mut sum = if self.eat(b'-') { self.product()?.checked_neg()? } else { self.product()? };
        loop {
            if self.eat(b'+') {
                sum = sum.checked_add(self.product()?)?;
            } else if self.eat(b'-') {
                sum = sum.checked_sub(self.product()?)?;
            } else {
                return Some(sum);
            }
        }
    }

    fn product(&mut self) -> Option<i64> {
        let mut product = self.factor()?;
        while self.eat(b'*') {
            product = product.checked_mul(self.factor()?)?;
        }
        Some(product)
    }

    fn factor(&mut self) -> Option<i64> {
        let first_byte = self.peek()?;
        let name = self.identifier();
        match (first_byte, name) {
            (b'(', _) => match self.operands()?[..] {
                [operand] => Some(operand),
                _ => None,
            },
            (b'0'..=b'9', number) => number.parse().ok(),
            (_, "") => None,
            (_, name) if self.peek() == Some(b'(') => apply(name, &self.operands()?),
            (_, name) => (self.symbol)(name).and_then(|size| i64::try_from(size).ok()),
        }
    }

    fn operands(&mut self) -> Option<Vec<i64>> {
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
