//! Helpers that format readable C.

use byoc_plugin_support::view::dense_strides;
use std::fmt::Write;

/// Formats the bounds of part `index` of the range `0..n`, divided into `parts` parts as evenly as possible.
pub fn bounds_of_part(n: &str, index: &str, parts: i64) -> (String, String) {
    if parts == 1 {
        return ("0".to_owned(), n.to_owned());
    }
    (format!("{n} * {index} / {parts}"), format!("{n} * ({index} + 1) / {parts}"))
}

/// Formats the head of a loop over part `index` of the range `0..n`, divided into `parts` parts as evenly as possible.
pub fn share_loop(var: &str, n: &str, index: &str, parts: i64) -> String {
    let (start, end) = bounds_of_part(n, index, parts);
    format!("for (int64_t {var} = {start}; {var} < {end}; ++{var}) {{")
}

/// Formats `index / divisor % modulus` without redundant operations; a modulus of 0 omits the modulo operation.
pub fn digit(index: &str, divisor: i64, modulus: i64) -> String {
    if modulus == 1 {
        return "0".to_owned();
    }
    let mut text = index.to_owned();
    if divisor != 1 {
        let _ = write!(text, " / {divisor}");
    }
    if modulus != 0 {
        let _ = write!(text, " % {modulus}");
    }
    text
}

/// Formats declarations of `vars`, the indices of the element at row-major position `number` in a tensor of shape
/// `dims`.
pub fn decode(vars: &[String], dims: &[i64], number: &str, indent: usize) -> String {
    let pad = "    ".repeat(indent);
    let mut text = String::new();
    let strides = dense_strides(dims);
    for (d, var) in vars.iter().enumerate() {
        let modulus = if dims[d] == 1 {
            1
        } else if d == 0 {
            0
        } else {
            dims[d]
        };
        let _ = writeln!(text, "{pad}const int64_t {var} = {};\n{pad}(void){var};", digit(number, strides[d], modulus));
    }
    text
}

/// Removes the `(void)x;` statements of each function, along with the declarations of variables that are otherwise
/// unused.
pub fn tidy(code: &str) -> String {
    let mut text = String::new();
    for function in code.split_inclusive("\n}\n") {
        let lines: Vec<&str> = function.lines().collect();
        let mut is_kept = vec![true; lines.len()];
        // In reverse order, so that variables used only by unused variables are removed as well.
        for index in (0..lines.len()).rev() {
            let Some(name) = lines[index].trim().strip_prefix("(void)").and_then(|l| l.strip_suffix(';')) else {
                continue;
            };
            let declares = |line: &str| line.trim_start().starts_with(&format!("const int64_t {name} ="));
            let Some(declaration) = (0..index).rev().find(|&i| declares(lines[i])) else { continue };
            is_kept[index] = false;
            let is_used = (declaration + 1..lines.len()).any(|i| is_kept[i] && has_word(lines[i], name));
            is_kept[declaration] = is_used;
        }
        for (line, is_kept_line) in lines.iter().zip(is_kept) {
            if is_kept_line {
                text.push_str(line);
                text.push('\n');
            }
        }
    }
    text
}

fn has_word(line: &str, word: &str) -> bool {
    let is_name_char = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric() || c == '_');
    line.match_indices(word).any(|(position, _)| {
        !is_name_char(line[..position].chars().next_back())
            && !is_name_char(line[position + word.len()..].chars().next())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tidy_keeps_used_variables() {
        let code = "void f(void) {\n    const int64_t a = 1;\n    (void)a;\n    const int64_t b = a;\n    (void)b;\n    g(ab);\n}\n";
        assert_eq!(tidy(code), "void f(void) {\n    g(ab);\n}\n");
        let code = "void f(void) {\n    const int64_t a = 1;\n    (void)a;\n    g(a);\n}\n";
        assert_eq!(tidy(code), "void f(void) {\n    const int64_t a = 1;\n    g(a);\n}\n");
    }
}
