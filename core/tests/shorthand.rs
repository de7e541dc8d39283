//! Shorthands in the programs of tests.

/// Expands `B[t](e)` and `E[t](e)`, the annotations of the target `t`, and each name of `types` to the type that it
/// abbreviates.
pub fn expand(text: &str, types: &[(&str, &str)]) -> String {
    let mut out = String::new();
    // Target of each open parenthesis, if an annotation opened it.
    let mut open: Vec<Option<&str>> = Vec::new();
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let standalone = !out.chars().last().is_some_and(|p| p.is_ascii_alphanumeric() || "_.%@".contains(p));
        let mark = [("B[", "annotation.compiler_begin("), ("E[", "annotation.compiler_end(")]
            .into_iter()
            .find(|(short, _)| standalone && rest.starts_with(short));
        if let Some((short, long)) = mark
            && let Some(close) = rest.find("](")
        {
            open.push(Some(&rest[short.len()..close]));
            out.push_str(long);
            rest = &rest[close + 2..];
            continue;
        }
        let word = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
        if let Some((name, ty)) = types.iter().find(|(name, _)| standalone && *name == &rest[..word]) {
            out.push_str(ty);
            rest = &rest[name.len()..];
            continue;
        }
        match c {
            '(' => open.push(None),
            ')' => {
                if let Some(Some(target)) = open.pop() {
                    out.push_str(&format!(", compiler=\"{target}\""));
                }
            }
            _ => {}
        }
        out.push(c);
        rest = &rest[c.len_utf8()..];
    }
    out
}
